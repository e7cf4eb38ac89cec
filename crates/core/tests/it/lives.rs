//! Sessions whose agent is a command: cases, and random schedules of all inputs.

use std::time::Duration;

use overmind_core::agent::AgentLimits;
use overmind_core::command::{
    CommandKind, CommandSpec, Launch, LifeEnded, LifeInput, LifeOrder, Notice, RestartRules,
    StopHow,
};
use overmind_core::effect::EffectAction;
use overmind_core::ids::HiveId;
use overmind_core::inbox::InboxState;
use overmind_core::model::Usage;
use overmind_core::process::EndedBy;
use overmind_core::process::prompt::{Provider, Question};
use overmind_core::process::provider::{Ask, Fact, Scope, Spent, Told};
use overmind_core::process::restart::RestartWhen;
use overmind_core::replay::Replayer;
use overmind_core::room::stay::{RoomAct, RoomPhase};
use overmind_core::room::{RoomWhen, RoomWish};
use overmind_core::row::SessionStatus;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::{Input, REBUILT_FROM, Refusal, STOP_GRACE_MS, Session, Spec, Step};
use overmind_core::time::Timestamp;
use serde_json::json;

use crate::lives_rooms::room_report;
use crate::properties::rng::Rng;
use crate::world::{find, rules, toolset};

pub(crate) const GRACE: StopHow = StopHow::Stop { grace_ms: STOP_GRACE_MS };

/// One session of a command, and all that happened to it.
pub(crate) struct World {
    pub(crate) session: Session,
    pub(crate) spec: Spec,
    pub(crate) now: Timestamp,
    pub(crate) log: Vec<(&'static str, String, Timestamp)>,
    /// The launch in progress, as the hive has it.
    pub(crate) launch: Option<(u64, Launch)>,
    /// The current action on its environment.
    pub(crate) room: Option<(u64, RoomAct)>,
    /// The outcome, once its environment is released.
    decided: Option<SessionStatus>,
    orders: Vec<LifeOrder>,
    next: u64,
}

pub(crate) fn command(restart: RestartRules) -> CommandSpec {
    CommandSpec {
        argv: vec!["agent".into(), "-v".into()],
        kind: CommandKind::Session,
        restart,
        activity_timeout: 30,
        ..CommandSpec::default()
    }
}

pub(crate) fn always() -> RestartRules {
    RestartRules { when: RestartWhen::Always, ..RestartRules::default() }
}

pub(crate) fn exited(code: i32, at: Timestamp) -> LifeEnded {
    LifeEnded {
        exit_code: Some(code),
        signal: None,
        reason: None,
        at,
        leftovers: 0,
        survivors: 0,
        by: EndedBy::Itself,
        log_removed: false,
    }
}

fn tokens(input_tokens: u64) -> Usage {
    Usage { input_tokens, ..Usage::default() }
}

fn cost(scope: Scope, microusd: u64, input_tokens: u64) -> Fact {
    let (usage, cost_microusd) = (Some(tokens(input_tokens)), Some(microusd));
    Fact::Spent(Spent { scope, usage, cost_microusd, calls: 1 })
}

fn question(text: &str, secret: bool) -> Question {
    Question { text: text.into(), options: Vec::new(), secret }
}

fn asked(id: &str, text: &str, at: u64) -> Ask {
    Ask { id: id.into(), question: question(text, false), at, tool_use: None }
}

impl World {
    pub(crate) fn new(command: CommandSpec, max_seconds: u32) -> Self {
        Self::wishing(command, max_seconds, None)
    }

    /// For a session that requests an environment.
    pub(crate) fn wishing(command: CommandSpec, max_seconds: u32, wish: Option<RoomWish>) -> Self {
        let mut spec = rules("mend it").spec.clone();
        let agent = std::sync::Arc::make_mut(&mut spec.agent);
        agent.limits = AgentLimits { max_seconds, ..AgentLimits::default() };
        (agent.command, spec.room) = (Some(command), wish);
        let now = Timestamp::from_micros(1_000_000_000);
        let session = Session::begin(spec.clone(), toolset(), now);
        let payload = serde_json::to_string(&spec).expect("plain data");
        let log = vec![("run.queued", payload, now)];
        let (launch, room, decided, orders) = (None, None, None, Vec::new());
        Self { session, spec, now, log, launch, room, decided, orders, next: 0 }
    }

    /// For a command without a sandbox.
    pub(crate) fn on_the_host(command: CommandSpec) -> Self {
        let mut world = Self::new(command, 0);
        std::sync::Arc::make_mut(&mut world.spec.agent).sandbox = SandboxLevel::None;
        world.session = Session::begin(world.spec.clone(), toolset(), world.now);
        world.log[0].1 = serde_json::to_string(&world.spec).expect("plain data");
        world.feed(Input::Started { epoch: 1, hive: HiveId::LOCAL, agent_active: true });
        world.life(LifeInput::Started { effect: 0, pid: 100 });
        world
    }

    fn started(command: CommandSpec) -> Self {
        let mut world = Self::new(command, 0);
        world.feed(Input::Started { epoch: 1, hive: HiveId::LOCAL, agent_active: true });
        world
    }

    pub(crate) fn up(command: CommandSpec) -> Self {
        let mut world = Self::started(command);
        world.life(LifeInput::Started { effect: 0, pid: 100 });
        world
    }

    pub(crate) fn orders(&self) -> &[LifeOrder] {
        &self.orders
    }

    pub(crate) fn status(&self) -> SessionStatus {
        self.session.status()
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    pub(crate) fn life(&mut self, input: LifeInput) {
        self.feed(Input::Life(input));
    }

    pub(crate) fn notice(&mut self, notice: Notice) {
        let effect = self.effect();
        self.life(LifeInput::Noticed { effect, notice });
    }

    pub(crate) fn told(&mut self, upto: u64, facts: &[Fact]) {
        self.notice(Notice::Told(Box::new(Told::new(upto, facts))));
    }

    pub(crate) fn recover(&mut self) {
        let epoch = self.session.row().epoch + 1;
        self.feed(Input::Recovered { epoch, hive: HiveId::LOCAL });
    }

    fn answer(&mut self, message: &str) {
        let (epoch, hive) = (self.session.row().epoch + 1, HiveId::LOCAL);
        self.feed(Input::Answered { message: message.into(), by: "bob".into(), epoch, hive });
    }

    pub(crate) fn ends(&mut self, code: i32) {
        let (effect, at) = (self.effect(), self.now);
        self.life(LifeInput::Ended { effect, end: exited(code, at) });
    }

    fn effect(&self) -> u64 {
        self.launch.as_ref().expect("a life is under way").0
    }

    /// Feeds a valid input, and checks the invariants.
    pub(crate) fn feed(&mut self, input: Input) {
        assert_eq!(self.session.accepts(&input), Ok(()), "{input:?}");
        let before = self.session.row().clone();
        assert!(
            !(self.session.is_closing()
                && matches!(input, Input::Canceled { .. } | Input::TimeLimit)),
            "what is decided is decided again"
        );
        let (kind, payload) = self.session.record(&input);
        self.log.push((kind, payload.to_string(), self.now));
        let (next, step) = self.session.clone().step(&input, self.now);
        self.session = next;
        let Step { events, steps, effects, aborted, orders } = step;
        for event in events {
            if event.kind == "room.closing" {
                let status = event.payload["status"].as_str().and_then(SessionStatus::parse);
                assert_eq!(self.decided, None, "two ends");
                self.decided = Some(status.expect("it says how it ends"));
            }
            self.log.push((event.kind, event.payload.to_string(), self.now));
        }
        assert!(steps.is_empty(), "a command takes no steps of ours");
        for id in aborted {
            let launched = self.launch.take().map(|(number, _)| number);
            let number = launched.or_else(|| self.room.take().map(|(number, _)| number));
            let number = number.expect("only what is under way is stopped");
            assert_eq!(id, overmind_core::ids::EffectId::derive(self.session.row().id, number));
        }
        if matches!(input, Input::Life(LifeInput::Ended { .. })) {
            self.launch = None;
        }
        if matches!(input, Input::Room(_)) {
            self.room = None;
        }
        let again = matches!(input, Input::Recovered { .. });
        assert!(effects.len() <= 1, "two effects of one input");
        for effect in effects {
            let number = self.session.effect_number(effect.id).expect("it is under way");
            let launch = match effect.action {
                EffectAction::Live(launch) => launch,
                EffectAction::Room(act) => {
                    self.begins_room(number, act, again);
                    continue;
                }
                EffectAction::Tool { .. } | EffectAction::Model(_) | EffectAction::Bind { .. } => {
                    panic!("nothing else is begun")
                }
            };
            assert_eq!(self.room, None, "a life while its room is made or given back");
            let made = self.session.row().room.as_ref().map(|room| {
                assert_eq!(room.phase, RoomPhase::Ready);
                room.made.as_ref().expect("a room that is ready was made").directory.clone()
            });
            let wanted = self.spec.room.as_ref().is_some_and(|wish| wish.when != RoomWhen::Never);
            assert_eq!(made.is_some(), wanted, "a life without its room");
            assert_eq!(launch.directory, made);
            match &self.launch {
                Some(known) if again => {
                    // Output and input since then are neither read nor typed again.
                    let Launch { read_from, first, answered, .. } = known.1.clone();
                    let same = Launch { read_from, first, answered, ..(*launch).clone() };
                    assert_eq!(*known, (number, same), "another life was begun");
                    assert!(launch.read_from >= known.1.read_from, "it is read again");
                    self.launch = Some((number, *launch));
                }
                Some(_) => panic!("two lives at once"),
                None => {
                    assert_eq!(number, self.next, "an effect's number is used twice");
                    self.next += 1;
                    assert_eq!(
                        Some(launch.life),
                        before.command.as_ref().map_or(Some(1), |row| Some(row.life + 1))
                    );
                    self.launch = Some((number, *launch));
                }
            }
        }
        for (id, order) in orders {
            assert!(self.session.effect_number(id).is_some(), "an order to nobody: {order:?}");
            self.orders.push(order);
        }
        self.holds();
    }

    /// The hive begins to create or release the environment.
    fn begins_room(&mut self, number: u64, act: RoomAct, again: bool) {
        assert_eq!(self.launch, None, "its command lives while its room is not there");
        match &self.room {
            Some(known) if again => assert_eq!(*known, (number, act), "another thing is done"),
            Some(known) => panic!("two things are done about a room: {known:?}, {act:?}"),
            None => {
                assert_eq!(number, self.next, "an effect's number is used twice");
                self.next += 1;
                self.room = Some((number, act));
            }
        }
    }

    /// The hive reports the result of its action on the environment.
    pub(crate) fn room_says(&mut self, good: bool) {
        let (effect, act) = self.room.clone().expect("something is done about the room");
        self.feed(Input::Room(room_report(effect, &act, good)));
    }

    /// Invariants between any two inputs.
    fn holds(&self) {
        let (row, under_way) = (self.session.row(), self.session.effects_under_way());
        assert!(self.launch.is_none() || self.room.is_none());
        let busy = self.launch.is_some() || self.room.is_some();
        assert_eq!(under_way.len(), usize::from(busy));
        let command = row.command.clone().unwrap_or_default();
        match self.status() {
            SessionStatus::Queued => assert!(!self.session.is_alive()),
            SessionStatus::Running => {
                assert_ne!(self.session.is_alive(), self.room.is_some());
                assert_eq!(self.session.waiting(), None);
                // Another input will follow: the end of an attempt, or the time for the next one.
                assert!(!under_way.is_empty() || self.session.due().is_some(), "stuck for ever");
                assert_eq!(command.restart_at.is_some(), under_way.is_empty());
            }
            SessionStatus::AwaitingInput => {
                assert!(self.session.is_alive() && !under_way.is_empty());
                let asked = self.session.waiting().expect("it asks something");
                assert_eq!(row.prompt.as_deref(), asked.details["prompt"].as_str());
                assert_eq!(self.session.deadline(), None, "its time runs while it waits");
            }
            SessionStatus::Idle => {
                assert_eq!(self.session.waiting(), None, "a rest is no question");
                assert_eq!(self.session.deadline(), None, "its time runs while it rests");
                assert_eq!(self.session.is_alive(), !under_way.is_empty());
                assert_eq!(command.restart_at, None);
            }
            SessionStatus::AwaitingApproval => panic!("a command asks for no approvals"),
            SessionStatus::Succeeded | SessionStatus::Failed | SessionStatus::Canceled => {
                assert!(!self.session.is_alive() && under_way.is_empty());
                assert_eq!((self.session.due(), self.session.waiting()), (None, None));
                assert_eq!((command.pid, command.restart_at), (None, None));
                assert!(row.finished_at.is_some());
                if let Some(room) = &row.room {
                    assert!(!room.phase.is_open(), "it ended with its room open");
                    assert_eq!(Some(self.status()), self.decided, "another end than decided");
                }
            }
        }
        if self.session.is_closing() {
            assert_eq!((self.session.due(), command.pid), (None, None));
            assert_eq!((&row.error, &row.final_answer), (&None, &None), "said too early");
        }
        if command.pid.is_some() {
            assert!(!under_way.is_empty(), "a process of no life");
        }
    }

    /// The log reproduces the same session, decision by decision.
    pub(crate) fn replays(&self) {
        self.replayed(true);
        self.replayed(false);
    }

    fn replayed(&self, verify: bool) {
        let mut replayer = Replayer::default();
        let (keep, tools) = (|_: &mut serde_json::Value| {}, toolset());
        let mut seq = 0;
        for (kind, payload, ts) in &self.log {
            seq += 1;
            // A restart reads no more than this.
            if verify || REBUILT_FROM.contains(kind) {
                let redact: Option<&dyn Fn(&mut serde_json::Value)> =
                    if verify { Some(&keep) } else { None };
                replayer
                    .event(seq, kind, *ts, payload, redact, &find(&tools))
                    .expect("its own log");
            }
        }
        let again = replayer.finish(seq).expect("its own log").expect("it began");
        assert_eq!(again.row(), self.session.row());
        assert_eq!(again.effects_under_way(), self.session.effects_under_way());
        assert_eq!(again.due(), self.session.due());
        assert_eq!(again.spec(), &self.spec);
    }
}

#[test]
fn exit_code_zero_is_a_success_and_any_other_exit_a_failure() {
    let mut good = World::up(command(RestartRules::default()));
    assert_eq!(good.launch.as_ref().unwrap().1.argv, ["agent", "-v", "mend it"]);
    assert_eq!(good.session.row().command.as_ref().unwrap().pid, Some(100));
    good.ends(0);
    assert_eq!(good.status(), SessionStatus::Succeeded);

    let mut bad = World::up(command(RestartRules::default()));
    bad.ends(3);
    assert_eq!(bad.status(), SessionStatus::Failed);
    let error = bad.session.row().error.clone().unwrap();
    assert_eq!((&error["code"], &error["exit_code"]), (&"exited".into(), &3.into()));
    assert_eq!(error["message"], "the command exited with 3");

    let mut gone = World::started(command(RestartRules::default()));
    let reason = Some("starting `agent`: it is not there".to_owned());
    let end = LifeEnded { exit_code: None, reason, ..exited(0, gone.now) };
    gone.life(LifeInput::Ended { effect: 0, end });
    let error = gone.session.row().error.clone().unwrap();
    assert_eq!(error["code"], "lost");
    assert_eq!(error["message"], "the command is gone: starting `agent`: it is not there");
    for world in [good, bad, gone] {
        world.replays();
    }
}

#[test]
fn the_last_message_of_the_provider_is_the_answer() {
    let result = |text: &str, is_error| Fact::Result { text: text.into(), is_error };
    let mut world = World::up(command(RestartRules::default()));
    world.told(10, &[Fact::Conversation { id: "c-1".into(), model: None }]);
    world.told(20, &[cost(Scope::Turn, 70, 1), result("half", false)]);
    world.told(30, &[cost(Scope::Turn, 70, 1), result("mended", false)]);
    // Read again after a restart: it was processed already.
    let twice = Notice::Told(Box::new(Told::new(30, &[cost(Scope::Turn, 70, 1)])));
    let (effect, notice) = (world.effect(), twice);
    let twice = Input::Life(LifeInput::Noticed { effect, notice });
    assert_eq!(world.session.accepts(&twice), Err(Refusal::Stale));
    world.ends(0);
    let row = world.session.row();
    assert_eq!((row.final_answer.as_deref(), row.cost_microusd), (Some("mended"), Some(140)));
    assert_eq!((row.usage.input_tokens, row.model_calls), (2, 2));
    assert_eq!(row.command.as_ref().unwrap().conversation.as_deref(), Some("c-1"));
    world.replays();
    // A provider that reports a failure has failed, whatever its exit code.
    for code in [0, 1] {
        let mut world = World::up(command(RestartRules::default()));
        world.told(10, &[result("out of credit", true)]);
        world.ends(code);
        let error = world.session.row().error.clone().unwrap();
        assert_eq!(
            (&error["code"], &error["message"]),
            (&json!("provider_error"), &json!("out of credit"))
        );
        world.replays();
    }
}

#[test]
fn usage_of_an_attempt_and_of_a_conversation_is_counted_once() {
    let mut world =
        World::up(CommandSpec { provider: Provider::Claude, argv: vec![], ..command(always()) });
    let began = Fact::Conversation { id: "c-1".into(), model: None };
    world.told(10, &[began.clone(), cost(Scope::Life, 100, 1)]);
    world.told(20, &[cost(Scope::Life, 250, 2), cost(Scope::Conversation, 0, 40)]);
    assert_eq!(world.session.row().cost_microusd, Some(250));
    assert_eq!(world.session.row().usage.input_tokens, 42);
    // Another attempt starts counting at zero, its conversation continues counting.
    world.ends(1);
    world.now = world.session.due().unwrap().0;
    world.life(LifeInput::Due);
    let effect = world.effect();
    world.life(LifeInput::Started { effect, pid: 7 });
    world.told(30, &[began, cost(Scope::Life, 30, 5), cost(Scope::Conversation, 0, 50)]);
    assert_eq!(world.session.row().cost_microusd, Some(280));
    assert_eq!(world.session.row().usage.input_tokens, 57);
    world.replays();
    // Usage without a price has an unknown cost, and not none.
    let mut world = World::up(command(RestartRules::default()));
    let spent = Spent { usage: Some(tokens(3)), ..Spent::default() };
    world.told(10, &[Fact::Spent(spent)]);
    assert_eq!(world.session.row().cost_microusd, None);
    world.replays();
}

#[test]
fn another_attempt_continues_the_conversation_and_the_log() {
    let claude = CommandSpec { provider: Provider::Claude, argv: vec![], ..command(always()) };
    let mut world = World::started(claude);
    let launch = world.launch.clone().unwrap().1;
    assert_eq!((launch.read_from, &launch.conversation), (Some(0), &None));
    assert!(launch.first.as_ref().unwrap().contains("mend it"), "{launch:?}");
    // The Cortex dies before it knows of the start: earlier input is typed afterwards.
    world.recover();
    assert_eq!(world.launch.clone().unwrap().1, launch);
    world.life(LifeInput::Started { effect: 0, pid: 7 });
    world.told(123, &[Fact::Conversation { id: "c-1".into(), model: None }]);
    world.recover();
    let launch = world.launch.clone().unwrap().1;
    assert_eq!((launch.read_from, launch.first), (Some(123), None));
    let next = |world: &mut World, code| {
        world.ends(code);
        world.now = world.session.due().unwrap().0;
        world.life(LifeInput::Due);
        let launch = world.launch.clone().unwrap().1;
        let effect = world.effect();
        world.life(LifeInput::Started { effect, pid: 8 });
        launch
    };
    let launch = next(&mut world, 1);
    assert_eq!(launch.conversation.as_deref(), Some("c-1"));
    assert_eq!((launch.read_from, launch.first), (Some(123), None));
    assert!(launch.argv.windows(2).any(|two| two == ["--resume", "c-1"]), "{:?}", launch.argv);
    // A program that cannot continue it does not retry forever: the next attempt starts a new conversation.
    let launch = next(&mut world, 1);
    assert_eq!(launch.conversation, None);
    assert!(launch.first.is_some() && !launch.argv.contains(&"--resume".to_owned()));
    world.replays();
}

#[test]
fn protocol_questions_are_asked_one_by_one_and_survive_a_crash() {
    let ask = |id: &str, at| Fact::Asks(asked(id, &format!("{id}?"), at));
    let mut world = World::up(command(RestartRules::default()));
    world.told(10, &[ask("a", 3), ask("b", 5), ask("c", 7)]);
    let prompt = |world: &World| world.session.row().prompt.clone();
    assert_eq!((world.status(), prompt(&world)), (SessionStatus::AwaitingInput, Some("a?".into())));
    world.recover();
    assert_eq!((world.status(), prompt(&world)), (SessionStatus::AwaitingInput, Some("a?".into())));
    world.told(20, &[Fact::AskGone { id: "b".into() }]);
    assert_eq!(prompt(&world), Some("a?".into()));
    world.answer("yes");
    let typed = |text: &str, at| LifeOrder::Type {
        text: text.into(),
        by: "bob".into(),
        asked_at: Some(at),
    };
    assert_eq!(world.orders.last(), Some(&typed("yes", 3)));
    assert_eq!((world.status(), prompt(&world)), (SessionStatus::AwaitingInput, Some("c?".into())));
    world.told(30, &[Fact::AskGone { id: "c".into() }]);
    assert_eq!((world.status(), prompt(&world)), (SessionStatus::Running, None));
    world.replays();
}

#[test]
fn a_crash_is_followed_by_a_delay_and_a_restart_until_the_budget_is_spent() {
    let mut world = World::up(command(RestartRules { max_restarts: 2, ..always() }));
    for (life, pause) in [(2, 1), (3, 2)] {
        world.ends(1);
        let row = world.session.row().command.clone().unwrap();
        assert_eq!((row.restarts, row.pid, row.exit_code), (life - 1, None, Some(1)));
        let (due, input) = world.session.due().unwrap();
        assert_eq!(due, world.now.after(Duration::from_secs(pause)));
        world.now = due;
        world.feed(input);
        assert_eq!(world.launch.as_ref().unwrap().1.life, life);
        let effect = world.effect();
        world.life(LifeInput::Started { effect, pid: 100 + life });
    }
    // A late message about an old attempt changes nothing.
    let late = Input::Life(LifeInput::Ended { effect: 0, end: exited(0, world.now) });
    assert_eq!(world.session.accepts(&late), Err(Refusal::Stale));
    world.ends(1);
    assert_eq!(world.session.row().error.as_ref().unwrap()["code"], "restart_budget");
    world.replays();
}

#[test]
fn a_stop_overrides_the_restart_policy_and_can_become_a_kill() {
    let mut world = World::up(command(always()));
    let stop = |how| LifeInput::StopAsked { how, by: "ann".into() };
    world.life(stop(GRACE));
    assert_eq!(world.status(), SessionStatus::Running, "it has not ended yet");
    assert_eq!(world.session.accepts(&Input::Life(stop(GRACE))), Err(Refusal::Stale));
    world.life(stop(StopHow::Kill));
    let how: Vec<_> = world
        .orders
        .iter()
        .filter_map(|order| match order {
            LifeOrder::End { how, .. } => Some(*how),
            LifeOrder::Type { .. } => None,
        })
        .collect();
    assert_eq!(how, [GRACE, StopHow::Kill]);
    world.ends(0);
    assert_eq!(world.status(), SessionStatus::Canceled);
    assert_eq!(world.session.row().command.as_ref().unwrap().exit_code, Some(0));
    let again = world.session.accepts(&Input::Life(stop(GRACE)));
    assert_eq!(again, Err(Refusal::Finished));
    world.replays();

    // Between two attempts, nothing is waited for.
    let mut world = World::up(command(always()));
    world.ends(1);
    world.life(stop(GRACE));
    assert_eq!((world.status(), world.orders.len()), (SessionStatus::Canceled, 0));
    world.replays();
}

#[test]
fn silence_fails_an_attempt_but_not_the_session() {
    let mut world = World::up(command(RestartRules { when: RestartWhen::OnFailure, ..always() }));
    world.notice(Notice::Silent { seconds: 30 });
    let reason = "no activity for 30s".to_owned();
    assert_eq!(world.orders, [LifeOrder::End { how: StopHow::Kill, reason }]);
    // It ended with 0 after all, and yet it was stuck.
    world.ends(0);
    assert_eq!(world.session.row().command.as_ref().unwrap().restarts, 1);
    world.replays();
    let mut world = World::up(command(RestartRules::default()));
    world.notice(Notice::Silent { seconds: 30 });
    world.ends(137);
    assert_eq!(world.session.row().error.as_ref().unwrap()["code"], "stuck");
}

#[test]
fn a_terminal_question_opens_an_inbox_item_and_the_answer_is_typed() {
    let mut world = World::up(command(RestartRules::default()));
    world.notice(Notice::Waits(question("Overwrite? [y/N]", false)));
    assert_eq!(world.status(), SessionStatus::AwaitingInput);
    let item = world.session.inbox_item().unwrap();
    assert_eq!((item.state, item.title.as_str()), (InboxState::Open, "Overwrite? [y/N]"));
    let answer = |epoch| Input::Answered {
        message: "y".into(),
        by: "ann".into(),
        epoch,
        hive: HiveId::LOCAL,
    };
    world.feed(answer(2));
    assert_eq!((world.status(), world.session.row().epoch), (SessionStatus::Running, 1));
    assert_eq!(
        world.orders,
        [LifeOrder::Type { text: "y".into(), by: "ann".into(), asked_at: None }]
    );

    // Answered in the terminal, or gone by itself: the item closes without an answer.
    world.notice(Notice::Waits(question("Again?", false)));
    world.notice(Notice::GoesOn);
    assert_eq!((world.status(), world.session.waiting()), (SessionStatus::Running, None));

    // The question asks for a secret: an answer that would be logged is refused.
    world.notice(Notice::Waits(question("Password:", true)));
    assert_eq!(world.session.accepts(&answer(9)), Err(Refusal::SecretAsked));
    world.ends(1);
    assert_eq!(world.status(), SessionStatus::Failed);
    world.replays();
}

#[test]
fn after_a_crash_the_same_attempt_is_supervised_and_its_exit_requested_again() {
    let mut world = World::up(command(always()));
    world.notice(Notice::Waits(question("Go on?", false)));
    world.feed(Input::Recovered { epoch: 2, hive: HiveId::LOCAL });
    assert_eq!(world.status(), SessionStatus::Running, "whether it still asks is seen again");
    let again = Input::Life(LifeInput::Started { effect: 0, pid: 100 });
    assert_eq!(world.session.accepts(&again), Err(Refusal::Stale), "it has been up all the while");
    world.life(LifeInput::StopAsked { how: GRACE, by: "ann".into() });
    world.feed(Input::Recovered { epoch: 3, hive: HiveId::LOCAL });
    assert_eq!(world.orders.len(), 2, "the wish to stop was lost");
    world.ends(0);
    assert_eq!(world.status(), SessionStatus::Canceled);
    world.replays();

    // In the pause between two attempts nothing starts early.
    let mut world = World::up(command(always()));
    world.ends(1);
    let due = world.session.due();
    world.feed(Input::Recovered { epoch: 2, hive: HiveId::LOCAL });
    assert_eq!((world.session.due(), world.launch.is_none()), (due, true));
}

#[test]
fn cancel_and_the_time_limit_stop_running_attempts() {
    let mut world = World::up(command(always()));
    world.feed(Input::Canceled { by: "ann".into(), reason: None });
    assert_eq!((world.status(), world.launch.is_none()), (SessionStatus::Canceled, true));
    let mut world = World::new(command(always()), 60);
    world.feed(Input::Started { epoch: 1, hive: HiveId::LOCAL, agent_active: true });
    world.wait(Duration::from_secs(60));
    let (at, input) = world.session.due().unwrap();
    assert_eq!((at, &input), (world.now, &Input::TimeLimit));
    world.feed(input);
    assert_eq!((world.status(), world.launch.is_none()), (SessionStatus::Failed, true));
    world.replays();
}

#[test]
fn no_schedule_leaves_a_command_without_an_end_or_with_two_attempts() {
    let mut seen = std::collections::BTreeSet::new();
    let mut ends = std::collections::BTreeSet::new();
    for seed in 0..crate::count(1_000, 20_000) {
        let mut rng = Rng::new(seed);
        let world = play(&mut rng);
        world.replays();
        seen.extend(world.log.iter().map(|(kind, _, _)| *kind));
        ends.insert(world.status().as_str());
        if let Some(error) = &world.session.row().error {
            seen.insert(match error["code"].as_str() {
                Some("restart_budget") => "restart_budget",
                Some("stuck") => "stuck",
                Some("provider_error") => "provider_error",
                Some("exited") => "exited",
                Some("lost") => "lost",
                Some("time_limit") => "time_limit",
                other => panic!("{other:?}"),
            });
        }
    }
    for kind in [
        "process.starting",
        "process.started",
        "process.ended",
        "process.restarting",
        "process.noticed",
        "process.stop_asked",
        "process.due",
        "run.stopped",
        "run.went_on",
        "run.awaiting_input",
        "run.input_received",
        "run.recovered",
        "run.canceled",
        "run.time_limit_reached",
        "restart_budget",
        "stuck",
        "exited",
        "lost",
        "time_limit",
    ] {
        assert!(seen.contains(kind), "no schedule has seen {kind}: they prove too little");
    }
    assert_eq!(ends.len(), 3, "{ends:?}");
}

pub(crate) fn random_rules(rng: &mut Rng) -> RestartRules {
    RestartRules {
        when: rng.pick(&[RestartWhen::Never, RestartWhen::OnFailure, RestartWhen::Always]),
        max_restarts: rng.small(4),
        max_seconds: 1 + rng.small(100),
        backoff_ms: rng.small(3_000),
    }
}

/// Sixty random turns, most of which change nothing; then the session is stopped.
fn play(rng: &mut Rng) -> World {
    let restart = random_rules(rng);
    let limit = if rng.one_in(3) { 1 + rng.small(200) } else { 0 };
    let mut world = World::new(command(restart), limit);
    for _ in 0..60 {
        world.wait(Duration::from_millis(rng.below(4_000)));
        let input = anything(rng, &world);
        if world.session.accepts(&input).is_ok() {
            world.feed(input);
            continue;
        }
        let (same, step) = world.session.clone().step(&input, world.now);
        assert!(step.events.is_empty() && step.effects.is_empty() && step.orders.is_empty());
        assert_eq!(same.row(), world.session.row(), "a refused input changes something");
    }
    if world.status() == SessionStatus::Queued {
        world.feed(Input::Canceled { by: "ann".into(), reason: None });
    }
    let mut patience = 0;
    while !world.status().is_terminal() {
        patience += 1;
        assert!(patience < 5, "it does not end");
        let stop = Input::Life(LifeInput::StopAsked { how: StopHow::Kill, by: "ann".into() });
        if world.session.accepts(&stop).is_ok() {
            world.feed(stop);
        } else {
            world.ends(137);
        }
    }
    world
}

pub(crate) fn anything(rng: &mut Rng, world: &World) -> Input {
    let row = world.session.row();
    // The present effect, one before it, or one that never was.
    let effect = match rng.below(8) {
        0 => world.next,
        1 => world.next.saturating_sub(2),
        _ => world.next.saturating_sub(1),
    };
    let epoch = row.epoch + rng.small(3);
    let life = match rng.below(22) {
        0..6 => return Input::Started { epoch, hive: HiveId::LOCAL, agent_active: true },
        6 | 7 => return Input::Recovered { epoch, hive: HiveId::LOCAL },
        8 if rng.one_in(6) => return Input::Canceled { by: "bob".into(), reason: None },
        9 => match world.session.due() {
            Some((at, input)) if at <= world.now => return input,
            Some(_) | None => LifeInput::Due,
        },
        10 | 11 => {
            let (by, hive) = ("bob".into(), HiveId::LOCAL);
            return Input::Answered { message: "y".into(), by, epoch, hive };
        }
        12..15 => LifeInput::Started { effect, pid: 1 + rng.small(99) },
        15 | 16 => {
            let at = world.now;
            let end = match rng.below(4) {
                0 => LifeEnded { exit_code: None, signal: Some(9), ..exited(0, at) },
                1 => LifeEnded { exit_code: None, reason: Some("lost".into()), ..exited(0, at) },
                _ => exited(i32::from(rng.one_in(2)), at),
            };
            LifeInput::Ended { effect, end }
        }
        17 if rng.one_in(4) => {
            LifeInput::StopAsked { how: rng.pick(&[GRACE, StopHow::Kill]), by: "ann".into() }
        }
        18 if rng.one_in(3) => {
            LifeInput::Noticed { effect, notice: Notice::Silent { seconds: 30 } }
        }
        19 => LifeInput::Noticed { effect, notice: Notice::GoesOn },
        20 => {
            let ask = asked("q", "c?", 1);
            let facts = [
                Fact::Conversation { id: rng.pick(&["c", "d"]).to_owned(), model: None },
                cost(rng.pick(&[Scope::Turn, Scope::Life, Scope::Conversation]), 3, 2),
                if rng.one_in(2) { Fact::Asks(ask) } else { Fact::AskGone { id: "q".into() } },
                Fact::Result { text: "r".into(), is_error: rng.one_in(4) },
            ];
            let told = Told::new(u64::from(rng.small(400)), &facts[usize::from(rng.one_in(2))..]);
            LifeInput::Noticed { effect, notice: Notice::Told(Box::new(told)) }
        }
        _ => {
            let asked = question(rng.pick(&["a?", "b?"]), rng.one_in(3));
            LifeInput::Noticed { effect, notice: Notice::Waits(asked) }
        }
    };
    // Timers are not fired early.
    match (&life, world.session.due()) {
        (LifeInput::Due, Some((at, _))) if at > world.now => {
            Input::HandedOver { not_begun: vec![] }
        }
        _ => Input::Life(life),
    }
}
