//! Tasks of programs that report an answer: without one, they are not done.

use overmind_core::command::{CommandKind, CommandSpec, RestartRules};
use overmind_core::process::prompt::Provider;
use overmind_core::process::provider::{Fact, launch};
use overmind_core::row::SessionStatus;

use crate::lives::{World, command};

#[test]
fn exit_zero_without_an_answer_does_not_complete_a_task() {
    let task = |provider| CommandSpec {
        provider,
        argv: vec![],
        kind: CommandKind::Task,
        ..command(RestartRules::default())
    };
    let said = || Fact::Said { text: "I begin.".into(), within: None };
    for provider in [Provider::Claude, Provider::Codex] {
        let mut world = World::up(task(provider));
        world.told(10, &[said()]);
        world.ends(0);
        assert_eq!(world.status(), SessionStatus::Failed);
        assert_eq!(world.session.row().error.as_ref().unwrap()["code"], "no_answer");
        world.replays();
    }
    let mut world = World::on_the_host(task(Provider::Claude));
    assert_eq!(world.launch.clone().unwrap().1.input, launch::Input::UntilAnswer);
    world.told(10, &[said(), Fact::Result { text: "Done.".into(), is_error: false }]);
    // The current supervisor closes its input, if it is still open.
    world.recover();
    assert!(world.launch.clone().unwrap().1.answered);
    world.ends(0);
    assert_eq!(world.status(), SessionStatus::Succeeded);
    world.replays();
}
