//! Random schedules: random agents, outcomes, humans, crashes and late messages.
//!
//! Every step of every schedule goes through [`World`](crate::world::World), so all its checks
//! apply here: steps begin and end once and without gaps, exactly one event is the end, effects
//! begin only while the session runs, a *once* effect begins again only with a licence, a gated
//! tool only with its grant, an end stops all running effects, and every model request is valid for
//! providers. The tests add checks that need their own schedule.
//!
//! Half of the seeds are the same in every run; the other half are new, so that runs continue to
//! find errors. A failure prints its seed; `OVERMIND_SEED=<seed>` plays only that schedule.

mod random;
pub(crate) mod rng;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overmind_core::effect::EffectAction;
use overmind_core::gate;
use overmind_core::ids::ApprovalId;
use overmind_core::replay::ReplayError;
use overmind_core::row::SessionStatus;
use overmind_core::session::{Input, Step};

use self::random::{outcome, reply, same_call, setup};
use self::rng::Rng;
use crate::count;
use crate::world::{Entry, Reply, World, ok, replayed, says, verdict};

/// Turns of a schedule before everybody gets helpful.
const TURNS: u32 = 60;

/// Events and ends that at least one schedule of every test must reach.
const MUST_SEE: [&str; 41] = [
    "run.idle",
    "run.told",
    "run.restored",
    "run.started",
    "run.recovered",
    "run.handed_over",
    "run.input_received",
    "run.awaiting_input",
    "run.canceled",
    "run.time_limit_reached",
    "run.step_limit_reached",
    "run.succeeded",
    "run.failed",
    "approval.requested",
    "approval.answered",
    "approval.bound",
    "approval.expired",
    "effect.redone",
    "model.infer.completed",
    "model.infer.failed",
    "step.started",
    "step.finished",
    "supervisor.stalled",
    "tool.called",
    "tool.denied",
    "tool.failed",
    "tool.judged",
    "tool.refused",
    "tool.retry",
    "worker.validation",
    "agent_disabled",
    "denied",
    "failure_budget_exhausted",
    "model_inference_error",
    "model_output_truncated",
    "model_refused",
    "step_limit",
    // Why sessions asked a person.
    "model_unreachable",
    "question",
    "unknown_outcome",
    "verification_failed",
];

/// Prints the seed when the schedule that it stands for fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with OVERMIND_SEED={}", self.0);
        }
    }
}

/// The number of schedules that are added to `n` if those did not reach everything.
const LONGER: u64 = 3_000;

/// Plays `n` schedules and prints their number, their length, and their seeds.
fn schedules(name: &str, n: u64, play: fn(&mut Player)) {
    #[expect(clippy::disallowed_methods, reason = "one seed from the person at the keyboard")]
    let one = std::env::var("OVERMIND_SEED").ok();
    let one: Option<u64> = one.map(|seed| seed.parse().expect("OVERMIND_SEED is a number"));
    let fresh = RandomState::new().build_hasher().finish();
    let (n, longest) = if one.is_some() { (1, 1) } else { (n, n + LONGER) };
    let (begun, mut inputs) = (Instant::now(), 0);
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    let mut missing: BTreeSet<&str> = MUST_SEE.into_iter().collect();
    eprintln!("{name}: {n} schedules, seeds 0.. and {fresh}..");
    let mut played = 0;
    while played < n || (played < longest && !missing.is_empty()) {
        let i = played;
        played += 1;
        let seed = one.unwrap_or(if i % 2 == 0 { i } else { fresh.wrapping_add(i) });
        let guard = Seed(seed);
        let mut player = Player::new(seed);
        play(&mut player);
        inputs += player.inputs;
        *ends.entry(player.w.status().as_str()).or_default() += 1;
        for entry in &player.w.log {
            missing.remove(entry.kind.as_str());
        }
        missing.remove(player.w.asked.as_str());
        if let Some(why) = player.w.why_it_failed() {
            missing.remove(why.as_str());
        }
        drop(guard);
    }
    if one.is_none() {
        assert!(missing.is_empty(), "no schedule has seen {missing:?}: they prove too little");
    }
    eprintln!("{name}: {played} schedules, {inputs} inputs, {ends:?}, {:?}", begun.elapsed());
}

/// Plays one schedule.
struct Player {
    w: World,
    rng: Rng,
    /// Its model does the same over and over, with the same result.
    stubborn: bool,
    inputs: u64,
    last: Step,
}

impl Player {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let w = setup(&mut rng).begin();
        let stubborn = rng.one_in(8);
        Self { w, rng, stubborn, inputs: 0, last: Step::default() }
    }

    /// Plays to the end, with `watch` between any two turns.
    fn play(&mut self, watch: fn(&mut Self)) {
        for _ in 0..TURNS {
            watch(self);
            if self.w.status().is_terminal() && !self.rng.one_in(8) {
                return;
            }
            self.turn();
        }
        self.w.help();
        watch(self);
    }

    fn turn(&mut self) {
        let pause = self.rng.below(3);
        self.w.wait(pause);
        if self.w.status().is_terminal() {
            return match self.rng.one_in(3) {
                true => self.feed(self.w.restored()),
                false => self.tell(),
            };
        }
        match self.rng.below(100) {
            0 => {
                let reason = self.rng.one_in(2).then(|| "scaled away".to_owned());
                self.feed(Input::Canceled { by: "bob".into(), reason })
            }
            1..8 => self.w.crash(),
            8..11 if self.w.status() == SessionStatus::Running => {
                let last = std::mem::take(&mut self.last);
                if !self.w.handed_over {
                    self.w.hand_over(&last);
                }
                self.w.crash();
            }
            11..20 if self.w.session.deadline().is_some_and(|at| at <= self.w.now) => {
                self.feed(Input::TimeLimit);
            }
            _ => self.progress(),
        }
    }

    fn feed(&mut self, input: Input) {
        self.inputs += 1;
        self.last = self.w.feed(input);
    }

    /// A person sends a message.
    fn tell(&mut self) {
        let words = ["and a test", "shell:id", "read:a", "curl", "go on"];
        let message = self.rng.pick(&words);
        self.feed(self.w.told_more(message));
    }

    fn progress(&mut self) {
        match self.w.status() {
            SessionStatus::Queued => {
                let active = !self.rng.one_in(20);
                self.feed(self.w.started(active));
            }
            SessionStatus::Running if self.w.flights.is_empty() => self.w.crash(),
            SessionStatus::Running => {
                let at = self.rng.index(self.w.flights.len());
                let (effect, flight) = self.w.flights.iter().nth(at).expect("within bounds");
                let (effect, tool) = (*effect, flight.tool().map(str::to_owned));
                let binding = flight.is_binding();
                let bound = matches!(&flight.action, EffectAction::Tool { bound: Some(_), .. });
                let latency_ms = self.rng.below(2000);
                let again = self.stubborn && !self.rng.one_in(12);
                let input = match tool {
                    None if binding => {
                        let late = self.w.now.after(Duration::from_secs(1));
                        let expires_at = self.rng.one_in(3).then_some(late);
                        Input::Bound { effect, hash: format!("bound {effect}"), expires_at }
                    }
                    Some(_) if again => {
                        let outcome = ok(serde_json::json!({"content": "the same"}));
                        Input::ToolDone { effect, outcome, latency_ms }
                    }
                    None if again => {
                        let Reply(reply) = same_call(&mut self.rng).into();
                        Input::ModelDone { effect, reply, latency_ms }
                    }
                    Some(tool) => {
                        let outcome = outcome(&mut self.rng, &tool, bound);
                        Input::ToolDone { effect, outcome, latency_ms }
                    }
                    None => {
                        let Reply(reply) = reply(&mut self.rng);
                        Input::ModelDone { effect, reply, latency_ms }
                    }
                };
                self.feed(input);
            }
            SessionStatus::AwaitingInput => {
                let words = ["retry", "done", "go on", "curl", "shell:id", "read:a", "again"];
                let message = self.rng.pick(&words);
                self.feed(self.w.answered(message));
            }
            SessionStatus::AwaitingApproval => {
                let approval = self.w.session.row().approval.expect("it is asked for");
                let approve = !self.rng.one_in(3);
                self.feed(self.w.decided(approval, approve));
            }
            SessionStatus::Idle if self.rng.one_in(3) => self.feed(self.w.stopped()),
            SessionStatus::Idle => self.tell(),
            SessionStatus::Succeeded | SessionStatus::Failed | SessionStatus::Canceled => {}
        }
    }

    /// An input that is impossible in the session's state: late, double, stale or misdirected.
    fn noise(&mut self) -> Input {
        let (status, epoch) = (self.w.status(), self.w.session.row().epoch);
        let fresh = self.w.next_epoch() + self.rng.small(3);
        let stale = self.rng.small(epoch + 1);
        // Right but for its time, or at the right time but of an older life.
        let mut with_epoch = |input: Input, fits: bool| {
            let right = if fits || self.rng.one_in(2) { stale } else { fresh };
            of_epoch(input, right)
        };
        let approval = ApprovalId::derive(self.w.session.row().id, 77);
        let asked = self.w.session.row().approval;
        let started = with_epoch(self.w.started(true), status == SessionStatus::Queued);
        let recovered = with_epoch(self.w.recovered(), status == SessionStatus::Running);
        let answered = with_epoch(self.w.answered("x"), status == SessionStatus::AwaitingInput);
        let decided = with_epoch(
            self.w.decided(asked.unwrap_or(approval), true),
            status == SessionStatus::AwaitingApproval,
        );
        let misdirected = of_epoch(self.w.decided(approval, true), fresh);
        // No life knows this number, or one of this life's past does.
        let unknown = self.rng.below(40);
        let unknown = if self.w.flights.contains_key(&unknown) { u64::MAX } else { unknown };
        let tool =
            |effect| Input::ToolDone { effect, outcome: ok(serde_json::json!({})), latency_ms: 1 };
        let model =
            |effect| Input::ModelDone { effect, reply: Reply::from(says("x")).0, latency_ms: 1 };
        let mut all = vec![started, recovered, answered, decided, misdirected];
        let bound = |effect| Input::Bound { effect, hash: "late".to_owned(), expires_at: None };
        let verdict = Box::new(verdict(gate::Decision::Allow));
        all.extend([tool(unknown), model(unknown), bound(unknown), Input::Judged { verdict }]);
        if let Some((n, flight)) = self.w.flights.iter().next() {
            all.push(if flight.tool().is_some() { model(*n) } else { tool(*n) });
            if !flight.is_binding() {
                all.push(bound(*n));
            }
        }
        if status != SessionStatus::Running {
            all.extend([Input::TimeLimit, Input::HandedOver { not_begun: vec![0, 1] }]);
        }
        if self.w.session.spec().fork.is_none() || status.is_terminal() {
            all.push(Input::Forked);
        }
        if status.is_terminal() {
            all.push(Input::Canceled { by: "bob".into(), reason: None });
        }
        let at = self.rng.index(all.len());
        all.swap_remove(at)
    }
}

fn of_epoch(input: Input, new: u32) -> Input {
    match input {
        Input::Started { epoch: _, hive, agent_active } => {
            Input::Started { epoch: new, hive, agent_active }
        }
        Input::Recovered { epoch: _, hive } => Input::Recovered { epoch: new, hive },
        Input::Answered { message, by, epoch: _, hive } => {
            Input::Answered { message, by, epoch: new, hive }
        }
        Input::Told { message, by, epoch: _, hive } => {
            Input::Told { message, by, epoch: new, hive }
        }
        Input::Restored { by, epoch: _, hive } => Input::Restored { by, epoch: new, hive },
        Input::Decided { approval, approve, reason, by, epoch: _, hive } => {
            Input::Decided { approval, approve, reason, by, epoch: new, hive }
        }
        same @ (Input::ToolDone { .. }
        | Input::ModelDone { .. }
        | Input::Judged { .. }
        | Input::Bound { .. }
        | Input::Canceled { .. }
        | Input::TimeLimit
        | Input::Life(_)
        | Input::Room(_)
        | Input::Forked
        | Input::HandedOver { .. }) => same,
    }
}

#[test]
fn every_state_ends_once_its_effects_complete_and_at_once_after_a_cancel() {
    schedules("endings", count(120, 6000), |player| {
        player.play(|player| {
            if player.w.status().is_terminal() {
                return;
            }
            let mut canceled = player.w.without_log();
            canceled.cancel();
            assert_eq!(canceled.status(), SessionStatus::Canceled);
            if player.rng.one_in(3) {
                player.w.without_log().help();
            }
        });
    });
}

#[test]
fn any_prefix_converges_after_a_crash_and_a_recovery() {
    schedules("crashes", count(200, 2000), |player| {
        player.play(|player| {
            if player.rng.one_in(8) {
                let mut other = player.w.clone();
                other.crash();
                // Once more, before anything else could happen.
                other.crash();
                other.help();
                assert!(other.status().is_terminal());
                other.rebuild();
            }
        });
        player.w.rebuild();
    });
}

#[test]
fn stale_and_late_messages_change_nothing() {
    schedules("noise", count(300, 4000), |player| {
        player.play(|player| {
            let noise = player.noise();
            player.w.refused(&noise);
        });
        assert!(player.w.status().is_terminal());
        for _ in 0..8 {
            let noise = player.noise();
            player.w.refused(&noise);
        }
    });
}

#[test]
fn every_log_verifies_and_a_changed_decision_is_found() {
    schedules("logs", count(300, 6000), |player| {
        player.play(|_| {});
        player.w.rebuild();
        let log = &player.w.log;
        let decisions: Vec<_> = (1..log.len()).filter(|n| log[*n].input.is_none()).collect();
        if decisions.is_empty() {
            return;
        }
        let at = player.rng.pick(&decisions);
        let mut touched = log.clone();
        match player.rng.below(4) {
            0 => drop(touched.remove(at)),
            1 => touched.insert(at, touched[at].clone()),
            _ => flip(&mut player.rng, Arc::make_mut(&mut touched[at])),
        }
        let toolset = &player.w.toolset;
        let found = replayed(&touched, toolset, true).expect_err("a touched log is found out");
        assert!(matches!(found, ReplayError::Diverged { .. }), "{found}");
        // Without verification, decisions are not compared.
        replayed(&touched, toolset, false).expect("inputs alone rebuild a session");
    });
}

/// Changes one character of a decision's payload into another that keeps it text.
fn flip(rng: &mut Rng, entry: &mut Entry) {
    let mut chars: Vec<char> = entry.payload.chars().collect();
    let at = rng.index(chars.len());
    chars[at] = if chars[at] == '~' { '!' } else { '~' };
    entry.payload = chars.into_iter().collect();
}

#[test]
fn forks_at_random_steps_end_like_every_session() {
    schedules("forks", count(60, 2000), |player| {
        player.play(|_| {});
        let at = player.rng.small(player.w.session.row().steps + 1);
        let models = [None, Some("other:model"), Some("deterministic")];
        let model = player.rng.pick(&models);
        player.w = player.w.fork(at, model, Some("another role"));
        player.play(|player| {
            if player.rng.one_in(8) {
                player.w.rebuild();
            }
        });
        player.w.rebuild();
    });
}
