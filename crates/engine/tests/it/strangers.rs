//! Runs with a program of their caller, and attempts to register for messages to others.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::BTreeMap;
use std::time::Duration;

use overmind_core::acl::{Permissions, PermissionsFile, Verb};
use overmind_core::command::CommandSpec;
use overmind_core::ids::SessionId;
use overmind_core::row::Role;
use overmind_core::sandbox::SandboxLevel;
use overmind_engine::request::SessionDraft;
use overmind_engine::{BoardWrite, Caller, EngineError, LetterDraft, Rights};
use overmind_testkit::processes::FakeProcesses;
use serde_json::json;

use crate::world::{World, session_draft};

/// A server with an agent `deployer` that an admin has given an entry, and letters.
async fn world(entry: Permissions) -> (World, String) {
    let world = World::with_commands(FakeProcesses::brief(), None).await;
    let agent = world
        .agent("m", |draft| {
            draft.name = "deployer".into();
            draft.tools_allowed = Vec::new();
            draft.sandbox = Some(SandboxLevel::Namespace);
            draft.command =
                Some(CommandSpec { argv: vec!["deploy".into()], ..CommandSpec::default() });
        })
        .await;
    let permissions = BTreeMap::from([("deployer".to_owned(), entry)]);
    world.engine.permissions_loaded(PermissionsFile { permissions }, "test").await.unwrap();
    (world, agent)
}

fn of(session: SessionId) -> Caller {
    Caller::new(session.to_string(), Rights::Session { session, epoch: 1 })
}

/// A run of the agent that this caller starts with such a program; `None`: with the agent's own.
async fn run(world: &World, by: &Caller, agent: &str, argv: Option<&str>) -> SessionId {
    let command =
        argv.map(|argv| CommandSpec { argv: vec![argv.into()], ..CommandSpec::default() });
    let draft = SessionDraft { command, ..session_draft(agent, "") };
    world.engine.session_create(by, draft).await.unwrap().value.id
}

async fn key(world: &World, name: &str, role: Role) -> Caller {
    world.engine.key_create(&world.by, name, role).await.unwrap();
    Caller::new(name, Rights::Role(role))
}

#[tokio::test]
async fn a_program_of_a_lesser_key_has_no_mesh_identity() {
    let entry =
        Permissions { blackboard_write: vec!["deploys/*".into()], ..Permissions::default() };
    let (world, agent) = world(entry).await;
    let (engine, admin) = (&world.engine, &world.by);
    let letter = || LetterDraft {
        to: "deployer".into(),
        kind: "job".into(),
        payload: json!("for the deployer"),
        ..LetterDraft::default()
    };
    engine.letter_send(admin, None, letter()).await.unwrap();
    let lesser = key(&world, "ci", Role::Runs).await;
    let operator = key(&world, "op", Role::Operator).await;
    let value = || BoardWrite { value: json!(1), ..BoardWrite::default() };
    let receive = async |run| engine.letters_receive(&of(run), None, 1, Duration::ZERO).await;

    let brought = run(&world, &lesser, &agent, Some("curl")).await;
    match receive(brought).await {
        Err(EngineError::Forbidden { message }) => {
            assert!(message.contains("has no letters and subscriptions of `deployer`"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    let refused = engine.board_put(&of(brought), None, "deploys/1", value()).await;
    assert!(matches!(refused, Err(EngineError::Forbidden { .. })), "{refused:?}");
    let registered = engine.mesh_register(&of(brought), None, vec!["x".into()]).await;
    assert!(matches!(registered, Err(EngineError::Forbidden { .. })), "{registered:?}");
    // Runs of a revoked key do not belong to a later key of its name.
    let keys = engine.key_list(admin, overmind_core::store::Page { limit: 9, after: None }).await;
    let id = keys.unwrap().into_iter().find(|key| key.name == "ci").unwrap().id;
    engine.key_revoke(admin, id).await.unwrap();
    assert!(receive(brought).await.is_err());

    // The agent's own program acts as the agent, whoever starts it; so does another program that a
    // caller with mesh rights starts.
    let lesser = key(&world, "ci2", Role::Runs).await;
    for (by, argv) in [(&lesser, None), (&operator, Some("curl")), (admin, Some("curl"))] {
        let own = run(&world, by, &agent, argv).await;
        engine.board_put(&of(own), None, "deploys/1", value()).await.unwrap();
    }
    let own = run(&world, &lesser, &agent, None).await;
    assert_eq!(receive(own).await.unwrap()[0].payload, json!("for the deployer"));
}

#[tokio::test]
async fn only_permitted_capabilities_are_registered() {
    let may =
        Permissions { can_subscribe: vec!["capability:deploy-*".into()], ..Permissions::default() };
    let (world, agent) = world(may).await;
    let (engine, admin) = (&world.engine, &world.by);
    let other = world.agent("m", |draft| draft.name = "other".into()).await;
    let (deployer, other) =
        (of(run(&world, admin, &agent, None).await), of(world.run(&other, "x").await));
    let register = async |who: &Caller, word: &str| {
        engine.mesh_register(who, None, vec![word.to_owned()]).await
    };
    match register(&other, "deploy-prod").await {
        Err(EngineError::Forbidden { message }) => {
            assert!(message.contains("cannot register the capability deploy-prod"), "{message}");
            assert!(message.contains("capability:deploy-prod"), "{message}");
        }
        answer => panic!("{answer:?}"),
    }
    register(&deployer, "deploy-prod").await.unwrap();
    assert!(register(&deployer, "billing").await.is_err());
    let draft = LetterDraft {
        to: "capability:deploy-prod".into(),
        kind: "job".into(),
        ..LetterDraft::default()
    };
    let sent = engine.letter_send(admin, None, draft).await.unwrap();
    assert_eq!(sent.to, "deployer");
    // It asks with the same text.
    let asked = engine.acl_can(admin, Some("other"), Verb::Subscribe, "capability:deploy-prod");
    assert!(!asked.await.unwrap().1.allowed);
    // Runs may register capabilities that a key has registered for their agent.
    engine.mesh_register(admin, Some("other"), vec!["billing".into()]).await.unwrap();
    register(&other, "billing").await.unwrap();
    assert!(register(&other, "deploy-prod").await.is_err());
}
