//! The measured sandbox of a run: in its log, on its row, once, and without influence on decisions.

use std::sync::Arc;
use std::time::Duration;

use overmind_core::attest::{Attestation, AttestationRef, Attested, Seal};
use overmind_core::row::SessionStatus;
use overmind_core::session::SANDBOX_ATTESTED;
use overmind_core::store::{EventQuery, StreamId};
use overmind_engine::EngineError;
use overmind_engine::request::{ForkDraft, ToolCallDraft};
use overmind_testkit::ports::{FakeModels, FakeTools, calls, says};
use overmind_testkit::store_conformance::attestation;
use serde_json::json;

use crate::world::World;

/// Two commands, one after the other, and the end.
fn two_commands() -> Arc<FakeModels> {
    FakeModels::new([
        calls(&[("run_shell", json!({"command": "a"}))]),
        calls(&[("run_shell", json!({"command": "b"}))]),
        says("end"),
    ])
}

/// From now on the sandbox of this world's tools is measured, and signed for by its store.
fn measured(world: &World) -> Arc<Attested> {
    let attested = Arc::new(Attested::new(attestation(), Some(&world.notary)));
    let mut now = world.tools.attested.lock().expect("no test panics here");
    *now = Some(Arc::clone(&attested));
    attested
}

#[tokio::test]
async fn the_first_command_records_the_measurement_once_and_the_log_replays() {
    let world = World::new(FakeTools::ok(), two_commands()).await;
    let attested = measured(&world);
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "x").await;
    let row = world.ended(run).await;
    assert_eq!(row.status, SessionStatus::Succeeded);
    assert_eq!(row.attestation, Some(AttestationRef::from(&*attested)));
    let kinds = world.kinds(run).await;
    let at = |wanted: &str| kinds.iter().position(|kind| kind == wanted).unwrap();
    assert_eq!(kinds.iter().filter(|kind| *kind == SANDBOX_ATTESTED).count(), 1, "{kinds:?}");
    assert!(at(SANDBOX_ATTESTED) < at("tool.called"), "before what ran in it: {kinds:?}");
    let kept = world.engine.session_attestation(&world.by, run, None).await.unwrap();
    assert_eq!((kept.attested, kept.seal), ((*attested).clone(), Seal::Holds));
    // The event contains the same as the row, and is in the chain.
    let query = EventQuery {
        stream: Some(StreamId::Session(run)),
        after: 0,
        kinds: &[SANDBOX_ATTESTED],
        limit: 10,
    };
    let event = world.store.events(query).await.unwrap().remove(0).value();
    assert_eq!(event["attestation"]["digest"], attested.digest);
    assert_eq!(event["attestation"]["signer"], world.notary.signer);
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_direct_call_names_the_measurement_of_its_sandbox() {
    let world = World::new(FakeTools::ok(), FakeModels::new([says("end")])).await;
    let attested = measured(&world);
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "x").await;
    world.ended(run).await;
    let call = |tool: &str| ToolCallDraft { tool: tool.into(), args: json!({"command": "a"}) };
    assert!(world.engine.tool_call(&world.by, run, call("run_shell")).await.unwrap().ok());
    assert!(world.engine.tool_call(&world.by, run, call("look")).await.unwrap().ok());
    let query = EventQuery {
        stream: Some(StreamId::Session(run)),
        after: 0,
        kinds: &["tool.called"],
        limit: 10,
    };
    let events = world.store.events(query).await.unwrap();
    assert_eq!(events[0].value()["attestation"]["digest"], attested.digest);
    assert_eq!(events[1].value().get("attestation"), None, "it ran in no sandbox");
    let kept = world.store.attestation_fetch(attested.digest.clone()).await.unwrap();
    assert_eq!(kept.unwrap().attested, *attested);
    // The run had ended: its row is unchanged.
    assert_eq!(world.ended(run).await.attestation, None);
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_run_without_sandboxed_tools_has_no_measurement() {
    let world = World::new(FakeTools::ok(), FakeModels::new([says("end")])).await;
    measured(&world);
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "x").await;
    assert_eq!(world.ended(run).await.attestation, None);
    let none = world.engine.session_attestation(&world.by, run, None).await;
    assert_eq!(none.unwrap_err(), EngineError::not_found("Attestation"));
    world.check(&[run]).await;
}

#[tokio::test]
async fn the_measurement_is_on_the_row_during_the_command_and_after_a_restart() {
    let hangs = FakeModels::new([calls(&[("hang", json!({}))])]);
    let world = World::new(FakeTools::ok(), hangs).await;
    let attested = measured(&world);
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "x").await;
    world.until_true("the command hangs", || world.tools.called("hang") == 1).await;
    let mut watch = world.engine.session_watch(run);
    let row = async {
        loop {
            watch.borrow_and_update();
            let row = world.engine.session_fetch(&world.by, run).await.unwrap();
            if row.attestation.is_some() {
                return row;
            }
            watch.changed().await.unwrap();
        }
    };
    let row = tokio::time::timeout(Duration::from_secs(20), row).await.unwrap();
    assert_eq!(row.status, SessionStatus::Running);
    world.engine.drain(Duration::ZERO).await;
    let dir = Arc::clone(&world.dir);
    drop(world);

    // The command was interrupted: a person says that it was done. By then the configuration has
    // changed, so the next command runs in a sandbox that was measured again.
    let models = FakeModels::new([calls(&[("run_shell", json!({"command": "b"}))]), says("end")]);
    let world = World::at(dir, FakeTools::ok(), models, 8).await;
    let again = Attestation { config: "another".into(), ..attestation() };
    let again = Arc::new(Attested::new(again, Some(&world.notary)));
    *world.tools.attested.lock().unwrap() = Some(Arc::clone(&again));
    let row = world.until(run, &[SessionStatus::AwaitingInput]).await;
    assert_eq!(row.attestation, Some(AttestationRef::from(&*attested)), "rebuilt from the log");
    world.engine.session_input(&world.by, run, "done".into()).await.unwrap();
    let row = world.ended(run).await;
    assert_eq!(row.attestation, Some(AttestationRef::from(&*again)));
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_fork_has_no_measurement_of_repeated_steps() {
    let world = World::new(FakeTools::ok(), two_commands()).await;
    measured(&world);
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "x").await;
    world.ended(run).await;
    *world.tools.attested.lock().unwrap() = None;
    let draft = ForkDraft { at: 1, ..ForkDraft::default() };
    let fork = world.engine.session_fork(&world.by, run, draft).await.unwrap();
    assert_eq!(fork.attestation, None);
    world.ended(fork.id).await;
    world.check(&[run, fork.id]).await;
}
