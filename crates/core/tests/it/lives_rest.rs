//! Programs of agents between two turns: idle with their process, and without one.

use overmind_core::command::{CommandKind, CommandSpec, LifeInput, LifeOrder, Notice, StopHow};
use overmind_core::ids::HiveId;
use overmind_core::process::prompt::Provider;
use overmind_core::process::provider::Fact;
use overmind_core::row::SessionStatus;
use overmind_core::session::{Input, Refusal, Session};

use crate::lives::{GRACE, World};
use crate::world::toolset;

fn program(provider: Provider, kind: CommandKind) -> CommandSpec {
    CommandSpec { provider, kind, activity_timeout: 30, ..CommandSpec::default() }
}

fn conversation() -> Fact {
    Fact::Conversation { id: "c-1".into(), model: None }
}

fn says(text: &str) -> Fact {
    Fact::Said { text: text.into(), within: None }
}

fn result(text: &str) -> Fact {
    Fact::Result { text: text.into(), is_error: false }
}

impl World {
    /// A conversation whose first attempt is running.
    fn conversing(command: CommandSpec) -> Self {
        let mut world = Self::new(command, 0);
        world.spec.conversation = true;
        world.session = Session::begin(world.spec.clone(), toolset(), world.now);
        world.log[0].1 = serde_json::to_string(&world.spec).expect("plain data");
        world.feed(Input::Started { epoch: 1, hive: HiveId::LOCAL, agent_active: true });
        world.life(LifeInput::Started { effect: 0, pid: 100 });
        world
    }

    /// A person sends a message.
    fn tell(&mut self, message: &str) {
        let (epoch, hive) = (self.session.row().epoch + 1, HiveId::LOCAL);
        self.feed(Input::Told { message: message.into(), by: "bob".into(), epoch, hive });
    }
}

fn claude() -> World {
    let mut world = World::conversing(program(Provider::Claude, CommandKind::Session));
    world.told(10, &[conversation(), says("hm"), result("mended")]);
    world
}

fn stop() -> Input {
    Input::Life(LifeInput::StopAsked { how: GRACE, by: "bob".into() })
}

#[test]
fn a_session_is_idle_after_its_turn_and_the_next_message_is_typed() {
    let mut world = claude();
    let row = world.session.row();
    assert_eq!(
        (world.status(), row.final_answer.as_deref()),
        (SessionStatus::Idle, Some("mended"))
    );
    world.tell("and a test");
    assert_eq!(world.status(), SessionStatus::Running);
    let typed = world.orders().last();
    assert!(
        matches!(typed, Some(LifeOrder::Type { text, asked_at: None, .. }) if text == "and a test"),
        "{typed:?}"
    );
    world.told(20, &[says("hm"), result("added")]);
    assert_eq!(world.session.row().final_answer.as_deref(), Some("added"));
}

#[test]
fn an_idle_program_is_not_stuck_and_is_running_again_after_output() {
    let mut world = claude();
    let silent =
        Input::Life(LifeInput::Noticed { effect: 0, notice: Notice::Silent { seconds: 30 } });
    assert_eq!(world.session.accepts(&silent), Err(Refusal::Stale));
    world.told(20, &[says("a letter came")]);
    assert_eq!(world.status(), SessionStatus::Running);
    world.notice(Notice::Silent { seconds: 30 });
    assert!(matches!(world.orders().last(), Some(LifeOrder::End { how: StopHow::Kill, .. })));
}

#[test]
fn stopping_an_idle_program_succeeds_and_killing_it_does_not() {
    let mut world = claude();
    world.feed(stop());
    world.ends(143);
    let row = world.session.row();
    assert_eq!(
        (world.status(), row.final_answer.as_deref()),
        (SessionStatus::Succeeded, Some("mended"))
    );

    let mut world = claude();
    world.feed(Input::Life(LifeInput::StopAsked { how: StopHow::Kill, by: "bob".into() }));
    world.ends(137);
    assert_eq!(world.status(), SessionStatus::Canceled);
}

#[test]
fn a_conversation_continues_after_its_idle_program_died() {
    let mut world = claude();
    world.recover();
    assert_eq!(world.status(), SessionStatus::Idle, "a new server finds it as it was");
    world.ends(137);
    let row = world.session.row();
    assert_eq!(
        (world.status(), row.final_answer.as_deref()),
        (SessionStatus::Idle, Some("mended"))
    );
    world.tell("and a test");
    let (_, launch) = world.launch.as_ref().expect("a life");
    assert!(launch.argv.windows(2).any(|pair| pair == ["--resume", "c-1"]), "{:?}", launch.argv);
    assert!(launch.first.as_ref().is_some_and(|first| first.contains("and a test")));
}

#[test]
fn a_killed_program_is_restored_to_idle_or_starts_another_attempt() {
    let bring = |world: &mut World| {
        let epoch = world.session.row().epoch + 1;
        world.feed(Input::Restored { by: "bob".into(), epoch, hive: HiveId::LOCAL });
    };
    let kill = || Input::Life(LifeInput::StopAsked { how: StopHow::Kill, by: "bob".into() });
    let mut world = claude();
    world.feed(kill());
    world.ends(137);
    bring(&mut world);
    assert_eq!((world.status(), world.session.is_alive()), (SessionStatus::Idle, false));
    world.tell("and a test");
    let (_, launch) = world.launch.as_ref().expect("a life");
    assert!(launch.argv.windows(2).any(|pair| pair == ["--resume", "c-1"]), "{:?}", launch.argv);

    let mut world = World::conversing(program(Provider::Raw, CommandKind::Session));
    world.feed(kill());
    world.ends(137);
    bring(&mut world);
    assert_eq!(world.status(), SessionStatus::Running);
    let row = world.session.row().command.clone().expect("it is a program");
    assert_eq!((row.life, row.restarts), (2, 0));
}

#[test]
fn a_one_turn_program_is_idle_without_a_process_and_starts_with_the_next_message() {
    for provider in [Provider::Claude, Provider::Codex] {
        let mut world = World::conversing(program(provider, CommandKind::Task));
        world.told(10, &[conversation(), result("mended")]);
        assert_eq!(world.status(), SessionStatus::Running, "its process has not ended");
        world.ends(0);
        assert_eq!(world.status(), SessionStatus::Idle);
        assert!(!world.session.is_alive());
        world.tell("and a test");
        let (_, launch) = world.launch.as_ref().expect("a life");
        let said = launch.argv.iter().chain(&launch.first).any(|it| it.contains("and a test"));
        assert!(said, "{provider:?}: {:?}", launch.argv);
        assert!(launch.argv.iter().any(|arg| arg == "c-1"), "{:?}", launch.argv);
        // The same life after a crash is the same.
        let before = launch.clone();
        world.recover();
        assert_eq!(world.launch.as_ref().map(|(_, launch)| launch), Some(&before));
        world.feed(stop());
        world.ends(143);
        assert_eq!(world.status(), SessionStatus::Canceled, "it was at work");
    }
}

#[test]
fn a_one_turn_program_gets_messages_after_its_turn() {
    for provider in [Provider::Claude, Provider::Codex] {
        let mut world = World::conversing(program(provider, CommandKind::Task));
        world.told(10, &[conversation(), says("hm")]);
        for message in ["and a test", "and its documentation"] {
            world.tell(message);
            assert_eq!(world.status(), SessionStatus::Running);
        }
        world.recover();
        world.told(20, &[result("mended")]);
        world.ends(0);
        assert_eq!(world.status(), SessionStatus::Running, "it goes on with what was said");
        let (_, launch) = world.launch.as_ref().expect("a life");
        let said = launch
            .argv
            .iter()
            .chain(&launch.first)
            .any(|it| it.contains("and a test") && it.contains("and its documentation"));
        assert!(said, "{provider:?}: {:?}", launch.argv);
        world.told(30, &[conversation(), result("all of it")]);
        world.ends(0);
        assert_eq!(world.status(), SessionStatus::Idle);
        assert_eq!(world.session.row().final_answer.as_deref(), Some("all of it"));

        // Text that a failed turn did not read is sent with the next message.
        world.tell("and a picture");
        world.tell("and its source");
        world.ends(1);
        assert_eq!(world.status(), SessionStatus::Failed);
        world.tell("go on");
        let (_, launch) = world.launch.as_ref().expect("a life");
        let said = launch.argv.iter().chain(&launch.first);
        let said = said.filter(|it| it.contains("and its source") && it.contains("go on"));
        assert_eq!(said.count(), 1, "{provider:?}: {:?}", launch.argv);
    }
}

#[test]
fn an_idle_session_without_a_process_ends_at_once() {
    let mut world = World::conversing(program(Provider::Codex, CommandKind::Task));
    world.told(10, &[conversation(), result("mended")]);
    world.ends(0);
    world.feed(stop());
    assert_eq!(world.status(), SessionStatus::Succeeded);
    world.tell("once more");
    assert_eq!(world.status(), SessionStatus::Running);
}

#[test]
fn a_lost_conversation_starts_again_with_the_task_and_the_messages() {
    let mut world = World::conversing(program(Provider::Codex, CommandKind::Task));
    world.told(10, &[conversation(), result("mended")]);
    world.ends(0);
    world.tell("and a test");
    // It ends without a conversation id: it does not know the conversation any more.
    world.ends(1);
    assert_eq!(world.status(), SessionStatus::Failed);
    world.tell("once more");
    let (_, launch) = world.launch.as_ref().expect("a life");
    let last = launch.argv.last().expect("a task");
    assert!(last.contains("mend it") && last.contains("once more"), "{last}");
}

#[test]
fn a_script_has_no_conversation_to_continue() {
    let mut world =
        World::conversing(CommandSpec { argv: vec!["x".into()], ..CommandSpec::default() });
    world.ends(0);
    assert_eq!(world.status(), SessionStatus::Succeeded);
    let told = Input::Told {
        message: "more".into(),
        by: "bob".into(),
        epoch: world.session.row().epoch + 1,
        hive: HiveId::LOCAL,
    };
    assert_eq!(world.session.accepts(&told), Err(Refusal::NoConversation));
}
