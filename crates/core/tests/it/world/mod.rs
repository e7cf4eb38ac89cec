//! The outside of one session: feeds inputs, stores the log, and knows the running effects.
//!
//! [`World::feed`] is the only place in these tests that steps a session. What must hold after
//! every step, whatever the test is about, is checked there: see [`checks`].

mod checks;
mod make;
mod replay;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use overmind_core::agent::OnUnknown;
use overmind_core::command::{LifeInput, StopHow};
use overmind_core::effect::{Effect, EffectAction};
use overmind_core::gate::{self, GateVerdict, PolicyVersion};
use overmind_core::ids::{ApprovalId, EffectId, HiveId, SessionId, StepId};
use overmind_core::model::{Message, ModelFailure, ModelReply, ModelRequest};
use overmind_core::row::{SessionStatus, StepRow};
use overmind_core::session::{ForkOf, Input, Refusal, Session, Spec, Step, Toolset};
use overmind_core::time::Timestamp;
use overmind_core::tool::ToolOutcome;

pub(crate) use self::make::*;
pub(crate) use self::replay::{find, replayed};

/// One event of the session's stream.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: String,
    pub(crate) payload: String,
    pub(crate) ts: Timestamp,
    /// The input that this event records; decisions have none.
    pub(crate) input: Option<Input>,
    /// Steps of the session before this input.
    pub(crate) steps_before: u32,
}

/// An effect that was handed out and not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) id: EffectId,
    pub(crate) step: Option<StepId>,
    pub(crate) action: EffectAction,
}

impl Flight {
    pub(crate) fn tool(&self) -> Option<&str> {
        match &self.action {
            EffectAction::Tool { name, .. } => Some(name),
            EffectAction::Model(_)
            | EffectAction::Bind { .. }
            | EffectAction::Live(_)
            | EffectAction::Room(_) => None,
        }
    }

    pub(crate) fn is_binding(&self) -> bool {
        matches!(self.action, EffectAction::Bind { .. })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) session: Session,
    pub(crate) toolset: Arc<Toolset>,
    pub(crate) now: Timestamp,
    /// Shared, so that a world is cheap to copy.
    pub(crate) log: Vec<Arc<Entry>>,
    /// Without a log a world is cheap to copy; it checks everything else all the same.
    keeps_log: bool,
    /// By effect number, oldest first.
    pub(crate) flights: BTreeMap<u64, Flight>,
    /// Steps as the store would have them.
    pub(crate) steps: BTreeMap<u32, StepRow>,
    open: BTreeSet<u32>,
    opened: u32,
    /// Steps whose tool was started in this session (not in the one it was forked from).
    begun: BTreeSet<StepId>,
    /// Steps whose tool was withdrawn before its start.
    taken_back: BTreeSet<StepId>,
    /// An orderly shutdown of the node: nothing runs until the next start.
    pub(crate) handed_over: bool,
    /// The action that a person granted and that has not started.
    granted: Option<String>,
    /// The action of the open approval.
    requested: Option<String>,
    /// Verdicts about calls that did not start: tool, arguments, result.
    cleared: Vec<(String, serde_json::Value, gate::Decision)>,
    /// The verdicts about a gated session's calls: 0 allows all, others are pseudo-random.
    pub(crate) judge: u64,
    judged: u64,
    /// Why the session waits for input, from `run.awaiting_input`.
    pub(crate) asked: String,
    ends: u32,
    read: usize,
}

impl World {
    pub(crate) fn begin(spec: Spec, toolset: Arc<Toolset>) -> Self {
        let now = Timestamp::from_micros(1_000_000_000);
        let payload = serde_json::to_string(&spec).expect("a spec is plain data");
        let session = Session::begin(spec, Arc::clone(&toolset), now);
        let mut world = Self {
            session,
            toolset,
            now,
            log: Vec::new(),
            keeps_log: true,
            flights: BTreeMap::new(),
            steps: BTreeMap::new(),
            open: BTreeSet::new(),
            opened: 0,
            begun: BTreeSet::new(),
            taken_back: BTreeSet::new(),
            handed_over: false,
            granted: None,
            requested: None,
            cleared: Vec::new(),
            judge: 0,
            judged: 0,
            asked: String::new(),
            ends: 0,
            read: 0,
        };
        world.write("run.queued", payload, None);
        world
    }

    /// An independent copy without a log.
    pub(crate) fn without_log(&self) -> Self {
        let (log, keeps_log) = (Vec::new(), false);
        Self {
            session: self.session.clone(),
            toolset: Arc::clone(&self.toolset),
            now: self.now,
            log,
            keeps_log,
            flights: self.flights.clone(),
            steps: self.steps.clone(),
            open: self.open.clone(),
            opened: self.opened,
            begun: self.begun.clone(),
            taken_back: self.taken_back.clone(),
            handed_over: self.handed_over,
            granted: self.granted.clone(),
            requested: self.requested.clone(),
            cleared: self.cleared.clone(),
            judge: self.judge,
            judged: self.judged,
            asked: self.asked.clone(),
            ends: self.ends,
            read: 0,
        }
    }

    /// Feeds an input that the session must accept, and the verdicts that it then wants, as one
    /// commit does.
    #[track_caller]
    pub(crate) fn feed(&mut self, input: Input) -> Step {
        let mut all = self.feed_one(input);
        while self.session.to_judge().is_some() {
            let verdict = Box::new(self.verdict());
            let Step { events, steps, effects, aborted, orders } =
                self.feed_one(Input::Judged { verdict });
            assert!(orders.is_empty(), "orders are for commands");
            all.events.extend(events);
            all.steps.extend(steps);
            all.effects.extend(effects);
            all.aborted.extend(aborted);
        }
        all
    }

    fn verdict(&mut self) -> GateVerdict {
        self.judged += 1;
        let call = self.session.to_judge().expect("a call that waits for its verdict");
        let misfit =
            || GateVerdict::misfit(call.tool, "it is cut".into(), PolicyVersion("p1".into()));
        if !call.args.is_object() {
            return misfit();
        }
        let random = blake3::hash(format!("{} {}", self.judge, self.judged).as_bytes());
        verdict(match random.as_bytes()[0] {
            _ if self.judge == 0 => gate::Decision::Allow,
            0..160 => gate::Decision::Allow,
            160..230 => gate::Decision::Ask,
            230..245 => gate::Decision::Deny,
            245..=255 => return misfit(),
        })
    }

    #[track_caller]
    fn feed_one(&mut self, input: Input) -> Step {
        if let Err(refusal) = self.session.accepts(&input) {
            panic!("refused ({refusal}) while {:?}: {input:?}", self.session.status());
        }
        let (kind, payload) = self.session.record(&input);
        self.check_record(kind, &payload, &input);
        let before = self.session.clone();
        self.write(kind, payload.to_string(), Some(input.clone()));
        let (session, step) = before.clone().step(&input, self.now);
        self.session = session;
        for event in &step.events {
            self.write(event.kind, event.payload.to_string(), None);
        }
        self.check(&before, kind, &input, &step);
        step
    }

    /// Feeds an input without a valid meaning, and checks that it changes nothing.
    #[track_caller]
    pub(crate) fn refused(&self, input: &Input) -> Refusal {
        let Err(refusal) = self.session.accepts(input) else {
            panic!("accepted while {:?}: {input:?}", self.session.status());
        };
        let later = self.now.after(Duration::from_secs(1));
        let (after, step) = self.session.clone().step(input, later);
        assert_same(&after, &self.session, "after a refused input");
        let Step { events, steps, effects, aborted, orders: _ } = step;
        assert!(events.is_empty() && steps.is_empty() && effects.is_empty() && aborted.is_empty());
        refusal
    }

    fn write(&mut self, kind: &str, payload: String, input: Option<Input>) {
        if self.keeps_log {
            let (ts, steps_before) = (self.now, self.session.row().steps);
            let entry = Entry { kind: kind.into(), payload, ts, input, steps_before };
            self.log.push(Arc::new(entry));
        }
    }

    // --- inputs

    pub(crate) fn next_epoch(&self) -> u32 {
        self.session.row().epoch + 1
    }

    pub(crate) fn started(&self, agent_active: bool) -> Input {
        Input::Started { epoch: self.next_epoch(), hive: HiveId::LOCAL, agent_active }
    }

    pub(crate) fn recovered(&self) -> Input {
        Input::Recovered { epoch: self.next_epoch(), hive: HiveId::LOCAL }
    }

    pub(crate) fn answered(&self, message: &str) -> Input {
        let (message, by) = (message.to_owned(), "ann".to_owned());
        Input::Answered { message, by, epoch: self.next_epoch(), hive: HiveId::LOCAL }
    }

    pub(crate) fn told_more(&self, message: &str) -> Input {
        let (message, by) = (message.to_owned(), "ann".to_owned());
        Input::Told { message, by, epoch: self.next_epoch(), hive: HiveId::LOCAL }
    }

    /// Brings it back after its end.
    pub(crate) fn restored(&self) -> Input {
        Input::Restored { by: "ann".into(), epoch: self.next_epoch(), hive: HiveId::LOCAL }
    }

    /// Ends its idle state, as `stop` does.
    pub(crate) fn stopped(&self) -> Input {
        let how = StopHow::Stop { grace_ms: 1 };
        Input::Life(LifeInput::StopAsked { how, by: "ann".to_owned() })
    }

    pub(crate) fn decided(&self, approval: ApprovalId, approve: bool) -> Input {
        Input::Decided {
            approval,
            approve,
            reason: (!approve).then(|| "too risky".to_owned()),
            by: "ann".into(),
            epoch: self.next_epoch(),
            hive: HiveId::LOCAL,
        }
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
    }

    #[track_caller]
    pub(crate) fn start(&mut self) -> Step {
        self.feed(self.started(true))
    }

    /// Answers the open model request.
    #[track_caller]
    pub(crate) fn model(&mut self, reply: impl Into<Reply>) -> Step {
        let effect = *self.flights.keys().next().expect("a model request is under way");
        let Reply(reply) = reply.into();
        self.feed(Input::ModelDone { effect, reply, latency_ms: 7 })
    }

    /// Answers the oldest open call of `tool`.
    #[track_caller]
    pub(crate) fn tool(&mut self, tool: &str, outcome: ToolOutcome) -> Step {
        let found = self.flights.iter().find(|(_, flight)| flight.tool() == Some(tool));
        let Some((effect, _)) = found else {
            panic!("`{tool}` is not under way, but {:?} are", self.running());
        };
        self.feed(Input::ToolDone { effect: *effect, outcome, latency_ms: 3 })
    }

    #[track_caller]
    pub(crate) fn answer(&mut self, message: &str) -> Step {
        self.feed(self.answered(message))
    }

    #[track_caller]
    pub(crate) fn decide(&mut self, approve: bool) -> Step {
        let approval = self.session.row().approval.expect("an approval is asked for");
        self.feed(self.decided(approval, approve))
    }

    #[track_caller]
    pub(crate) fn cancel(&mut self) -> Step {
        self.feed(Input::Canceled { by: "ann".into(), reason: None })
    }

    /// The process dies and comes back: all that is left is the log. A session that ran is
    /// placed again.
    #[track_caller]
    pub(crate) fn crash(&mut self) {
        self.rebuild();
        if self.session.status() == SessionStatus::Running {
            self.feed(self.recovered());
        }
    }

    /// The node shuts down before it began the tools of `step`.
    #[track_caller]
    pub(crate) fn hand_over(&mut self, step: &Step) {
        let tool = |effect: &&Effect| matches!(effect.action, EffectAction::Tool { .. });
        let number = |effect: &Effect| self.session.effect_number(effect.id);
        let not_begun = step.effects.iter().filter(tool).filter_map(number).collect();
        self.feed(Input::HandedOver { not_begun });
    }

    /// Replaces the session with one rebuilt from its log, which must be equal.
    #[track_caller]
    pub(crate) fn rebuild(&mut self) {
        // In turn: as `replay --verify` does it, and as a restart does.
        let verify = self.log.len().is_multiple_of(2);
        let session = replayed(&self.log, &self.toolset, verify).expect("its own log");
        assert_same(&session, &self.session, "rebuilt from the log");
        self.session = session;
    }

    /// A fork of this session whose own part begins before the input that opened step `at`. It gets
    /// the notice of a fork; it is not started.
    #[track_caller]
    pub(crate) fn fork(&self, at: u32, model: Option<&str>, prompt: Option<&str>) -> Self {
        let from = self.session.row().id;
        let mut spec = self.session.spec().clone();
        spec.run_id = SessionId::from_u128(from.as_u128() + 1);
        spec.fork = Some(ForkOf {
            from,
            at,
            model: model.map(str::to_owned),
            prompt: prompt.map(str::to_owned),
            gated: self.session.spec().gated,
        });
        let inputs: Vec<_> = self.log.iter().filter(|entry| entry.input.is_some()).collect();
        let mut kept = inputs
            .iter()
            .enumerate()
            .position(|(n, _)| inputs.get(n + 1).map_or(u32::MAX, |e| e.steps_before) > at)
            .expect("the last input passes every index");
        let mut fork = loop {
            let mut fork = Self::begin(spec.clone(), Arc::clone(&self.toolset));
            for entry in &inputs[..kept] {
                fork.now = entry.ts;
                let input = entry.input.clone().expect("an input");
                fork.feed_one(fork.session.adopt(input));
            }
            if !fork.status().is_terminal() {
                break fork;
            }
            // An end without a following message is not repeated.
            kept -= 1;
        };
        fork.judge = self.judge;
        fork.feed(Input::Forked);
        fork
    }

    /// All outside parts are helpful: results are good, models answer, people say yes.
    #[track_caller]
    pub(crate) fn help(&mut self) {
        for round in 0..60 {
            match self.session.status() {
                SessionStatus::Queued => self.start(),
                SessionStatus::Running if self.handed_over => self.feed(self.recovered()),
                SessionStatus::Running => {
                    let (effect, flight) = self.flights.iter().next().expect("something runs");
                    let (effect, latency_ms) = (*effect, 1);
                    self.feed(match flight.action {
                        EffectAction::Tool { .. } => {
                            let outcome = ok(serde_json::json!({"round": round}));
                            Input::ToolDone { effect, outcome, latency_ms }
                        }
                        EffectAction::Bind { .. } => Input::Bound {
                            effect,
                            hash: format!("bound {effect}"),
                            expires_at: None,
                        },
                        EffectAction::Live(_) | EffectAction::Room(_) => {
                            panic!("no command runs here")
                        }
                        EffectAction::Model(_) => {
                            let Reply(reply) = says("all done").into();
                            Input::ModelDone { effect, reply, latency_ms }
                        }
                    })
                }
                SessionStatus::AwaitingInput => {
                    let prompt = self.session.row().prompt.as_deref().unwrap_or_default();
                    // The rules ask for a URL until they get one.
                    let answer = if prompt.contains("URL") { "https://a.example/" } else { "done" };
                    self.answer(answer)
                }
                SessionStatus::AwaitingApproval => self.decide(true),
                SessionStatus::Idle => self.feed(self.stopped()),
                SessionStatus::Succeeded | SessionStatus::Failed | SessionStatus::Canceled => {
                    return;
                }
            };
        }
        panic!("with all the help of the world it does not end: {:?}", self.session);
    }

    // --- what is seen

    pub(crate) fn status(&self) -> SessionStatus {
        self.session.status()
    }

    /// Tools under way, oldest first; a model request is `model`.
    pub(crate) fn running(&self) -> Vec<&str> {
        let name = |flight: &Flight| if flight.is_binding() { "bind" } else { "model" };
        self.flights.values().map(|flight| flight.tool().unwrap_or(name(flight))).collect()
    }

    #[track_caller]
    pub(crate) fn request(&self) -> &ModelRequest {
        let found = self.flights.values().find_map(|flight| match &flight.action {
            EffectAction::Model(request) => Some(request),
            EffectAction::Tool { .. }
            | EffectAction::Bind { .. }
            | EffectAction::Live(_)
            | EffectAction::Room(_) => None,
        });
        found.expect("a model request is under way")
    }

    /// The last text that the model gets.
    #[track_caller]
    pub(crate) fn told(&self) -> String {
        match self.request().messages.last().expect("a conversation is never empty") {
            Message::User { text } => text.clone(),
            Message::Tool { content, .. } => content.clone(),
            Message::Assistant { .. } => panic!("a request ends with the model's own words"),
        }
    }

    /// Kinds of the events since the last look.
    pub(crate) fn kinds(&mut self) -> Vec<&str> {
        let from = std::mem::replace(&mut self.read, self.log.len());
        self.log[from..].iter().map(|entry| entry.kind.as_str()).collect()
    }

    /// See [`Self::kinds`]; omits the events that every turn of a model writes.
    pub(crate) fn story(&mut self) -> Vec<&str> {
        let every_turn = [
            "supervisor.decided",
            "model.infer.started",
            "model.infer.completed",
            "plan.action_selected",
            "worker.validation",
        ];
        let mut kinds = self.kinds();
        kinds.retain(|kind| !every_turn.contains(kind));
        kinds
    }

    /// The payload of the newest event of `kind`.
    #[track_caller]
    pub(crate) fn event(&self, kind: &str) -> serde_json::Value {
        let entry = self.log.iter().rev().find(|entry| entry.kind == kind);
        let entry = entry.unwrap_or_else(|| panic!("no `{kind}` in the log"));
        serde_json::from_str(&entry.payload).expect("payloads are JSON")
    }

    pub(crate) fn count(&self, kind: &str) -> usize {
        self.log.iter().filter(|entry| entry.kind == kind).count()
    }

    pub(crate) fn step(&self, idx: u32) -> &StepRow {
        &self.steps[&idx]
    }

    #[track_caller]
    pub(crate) fn succeeded(&self, answer: &str) {
        assert_eq!(self.status(), SessionStatus::Succeeded, "{:?}", self.session.row().error);
        assert_eq!(self.session.row().final_answer.as_deref(), Some(answer));
        assert_eq!(self.session.row().error, None);
    }

    #[track_caller]
    pub(crate) fn failed(&self, code: &str) {
        assert_eq!(self.status(), SessionStatus::Failed);
        let error = self.session.row().error.as_ref().expect("a failed session says why");
        assert_eq!(error["code"], code, "{error}");
        assert_eq!(self.session.row().final_answer, None);
    }

    pub(crate) fn why_it_failed(&self) -> Option<String> {
        Some(self.session.row().error.as_ref()?.get("code")?.as_str()?.to_owned())
    }

    /// Permission to start a *once* tool again with `input`, whatever the earlier question was.
    fn may_repeat(&self, input: &Input) -> bool {
        const DID_NOT_BEGIN: [&str; 4] = [
            "temporarily_unavailable",
            "rate_limited",
            "docker_unavailable",
            "sandbox_unavailable",
        ];
        match input {
            Input::ToolDone { outcome, .. } => {
                outcome.result["error"]["code"].as_str().is_some_and(|c| DID_NOT_BEGIN.contains(&c))
            }
            Input::Recovered { .. } => self.session.agent().on_unknown == OnUnknown::Retry,
            Input::Answered { message, .. } => {
                self.asked == "unknown_outcome"
                    && ["retry", "again"].contains(&message.trim().to_lowercase().as_str())
            }
            Input::Started { .. }
            | Input::Told { .. }
            | Input::Restored { .. }
            | Input::ModelDone { .. }
            | Input::Judged { .. }
            | Input::Bound { .. }
            | Input::Decided { .. }
            | Input::Canceled { .. }
            | Input::TimeLimit
            | Input::Life(_)
            | Input::Room(_)
            | Input::Forked
            | Input::HandedOver { .. } => false,
        }
    }
}

/// The reply to a model request.
pub(crate) struct Reply(pub(crate) Result<Box<ModelReply>, ModelFailure>);

impl From<ModelReply> for Reply {
    fn from(reply: ModelReply) -> Self {
        Self(Ok(Box::new(reply)))
    }
}

impl From<ModelFailure> for Reply {
    fn from(failure: ModelFailure) -> Self {
        Self(Err(failure))
    }
}

/// The complete state of a session, including private parts.
#[track_caller]
pub(crate) fn assert_same(a: &Session, b: &Session, when: &str) {
    let (a, b) = (format!("{a:?}"), format!("{b:?}"));
    assert!(a == b, "two sessions differ {when}:\n{a}\n{b}");
}
