//! Agents, keys, identities and idempotency.

use overmind_core::agent::AgentStatus;
use overmind_core::row::Role;
use overmind_core::store::Page;
use overmind_engine::request::{AgentDraft, AgentPatch, SessionDraft};
use overmind_engine::{Caller, EngineError, Rights};
use overmind_testkit::ports::{FakeModels, FakeTools};
use serde_json::json;

use crate::world::{World, session_draft};

async fn world() -> World {
    World::new(FakeTools::ok(), FakeModels::new([])).await
}

#[tokio::test]
async fn only_a_real_change_creates_a_version_and_all_versions_stay_readable() {
    let world = world().await;
    let id = world.agent("stub", |_| ()).await;
    let patch = |role: &str| AgentPatch { role: Some(role.into()), ..AgentPatch::default() };
    let same = world.engine.agent_patch(&world.by, &id, AgentPatch::default()).await.unwrap();
    assert_eq!(same.agent.version, 1);
    let second = world.engine.agent_patch(&world.by, &id, patch("two")).await.unwrap().agent;
    assert_eq!(second.version, 2);
    let page = Page { limit: 10, after: None };
    let versions = world.engine.agent_versions(&world.by, &id, page).await.unwrap();
    let roles: Vec<_> = versions.iter().map(|agent| agent.spec.role.as_str()).collect();
    assert_eq!(roles, ["two", "test"]);
    let stale = AgentPatch { if_version: Some(1), ..patch("three") };
    assert!(matches!(
        world.engine.agent_patch(&world.by, &id, stale).await,
        Err(EngineError::Conflict { .. })
    ));
}

#[tokio::test]
async fn concurrent_changes_all_count() {
    let world = world().await;
    let id = world.agent("stub", |_| ()).await;
    let patches = (0..4).map(|n| {
        let patch = AgentPatch { role: Some(format!("role {n}")), ..AgentPatch::default() };
        world.engine.agent_patch(&world.by, &id, patch)
    });
    for result in futures_util::future::join_all(patches).await {
        result.unwrap();
    }
    assert_eq!(world.engine.agent_fetch(&world.by, &id).await.unwrap().version, 5);
}

#[tokio::test]
async fn the_built_in_command_agent_exists_and_gives_no_rights() {
    let world = world().await;
    let named = (0..4).map(|_| world.engine.agent_fetch(&world.by, "command"));
    let mut ids = Vec::new();
    for found in futures_util::future::join_all(named).await {
        let found = found.unwrap();
        let author = found.author.expect("it is the server's own");
        assert_eq!((author.name.as_str(), author.role), ("system", Role::Admin));
        ids.push(found.id);
    }
    ids.dedup();
    let [first] = ids[..] else { panic!("one was made: {ids:?}") };
    // It runs on the host, which is an admin's.
    let operator = Caller::new("bob", Rights::Role(Role::Operator));
    let refused = world.engine.session_create(&operator, session_draft("command", "true")).await;
    assert!(matches!(refused, Err(EngineError::Forbidden { .. })), "{refused:?}");
    // A key with its name would be confused with it.
    let refused = world.engine.key_create(&world.by, "command", Role::Viewer).await;
    assert!(matches!(refused, Err(EngineError::Conflict { .. })), "{:?}", refused.err());
    world.engine.agent_remove(&world.by, "command").await.unwrap();
    let again = world.engine.agent_fetch(&world.by, "command").await.unwrap();
    assert_ne!(again.id, first, "what was removed stays removed");
    assert_eq!(again.version, 1);
}

#[tokio::test]
async fn blank_and_oversized_fields_are_refused_by_name() {
    let world = world().await;
    for (field, change) in [
        (
            "name",
            Box::new(|d: &mut AgentDraft| d.name = "  ".into()) as Box<dyn Fn(&mut AgentDraft)>,
        ),
        ("name", Box::new(|d| d.name = "deployer ".into())),
        ("name", Box::new(|d| d.name = " deployer".into())),
        ("name", Box::new(|d| d.name = "dерloyer".into())),
        ("role", Box::new(|d| d.role = String::new())),
        ("model", Box::new(|d| d.model = "\t".into())),
        ("name", Box::new(|d| d.name = "x".repeat(201))),
        ("tools_allowed", Box::new(|d| d.tools_allowed = vec!["".into()])),
    ] {
        let mut draft = AgentDraft {
            name: "n".into(),
            role: "r".into(),
            model: "stub".into(),
            ..AgentDraft::default()
        };
        change(&mut draft);
        match world.engine.agent_create(&world.by, draft, None).await {
            Err(EngineError::Invalid { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_disabled_agent_accepts_no_new_runs() {
    let world = world().await;
    let id = world.agent("stub", |_| ()).await;
    let agent = world.engine.agent_disable(&world.by, &id).await.unwrap();
    assert_eq!(agent.status, AgentStatus::Disabled);
    let draft = session_draft(&id, "x");
    let refused = world.engine.session_create(&world.by, draft).await;
    assert_eq!(refused.unwrap_err(), EngineError::conflict("Agent is disabled"));
}

#[tokio::test]
async fn an_idempotency_key_creates_one_run_after_any_number_of_requests() {
    let world = world().await;
    let agent = world.agent("stub", |_| ()).await;
    let draft = |print: u8| SessionDraft {
        idempotency: Some(("k".into(), [print; 32])),
        ..session_draft(&agent, "shell: true")
    };
    let all = (0..10).map(|_| world.engine.session_create(&world.by, draft(1)));
    let made = futures_util::future::join_all(all).await;
    let first = made[0].as_ref().unwrap().value.id;
    assert!(made.iter().all(|made| made.as_ref().unwrap().value.id == first));
    assert_eq!(made.iter().filter(|made| !made.as_ref().unwrap().replayed).count(), 1);
    assert!(world.engine.session_create(&world.by, draft(2)).await.is_err());
}

#[tokio::test]
async fn keys_have_the_permissions_of_their_role_until_revoked() {
    let world = world().await;
    let engine = &world.engine;
    assert_eq!(engine.authenticate("ova_test").await.unwrap(), Caller::admin());
    assert!(engine.authenticate("ova_tesT").await.is_err());
    let made = engine.key_create(&world.by, "ci", Role::Viewer).await.unwrap();
    let ci = engine.authenticate(&made.secret).await.unwrap();
    assert_eq!(ci.rights, Rights::Role(Role::Viewer));
    assert!(engine.agent_list(&ci, Page { limit: 1, after: None }).await.is_ok());
    assert!(matches!(engine.agent_disable(&ci, "x").await, Err(EngineError::Forbidden { .. })));
    assert!(matches!(
        engine.key_create(&ci, "more", Role::Admin).await,
        Err(EngineError::Forbidden { .. })
    ));
    assert!(engine.key_create(&world.by, "ci", Role::Viewer).await.is_err(), "names are unique");
    engine.key_revoke(&world.by, made.key.id).await.unwrap();
    assert!(engine.authenticate(&made.secret).await.is_err());
}

#[tokio::test]
async fn a_session_token_opens_only_its_own_running_session() {
    let (world, run) = World::hanging().await;
    let token = world.engine.session_token(run, 1);
    let caller = world.engine.authenticate(&token).await.unwrap();
    assert!(world.engine.session_fetch(&caller, run).await.is_ok());
    assert!(world.engine.session_cancel(&caller, run).await.is_err());
    let stub = world.agent("stub", |_| ()).await;
    let other = world.run(&stub, "shell: true").await;
    assert!(world.engine.session_fetch(&caller, other).await.is_err());
    let old = world.engine.session_token(run, 0);
    assert!(world.engine.authenticate(&old).await.is_err());
    let forged = token.replace(".1.", ".2.");
    assert!(world.engine.authenticate(&forged).await.is_err());
    world.engine.session_cancel(&world.by, run).await.unwrap();
    assert!(world.engine.authenticate(&token).await.is_err(), "it ended with its session");
}

#[tokio::test]
async fn a_session_token_is_refused_from_the_commit_that_ends_its_session() {
    for _ in 0..10 {
        let (world, run) = World::hanging().await;
        let token = world.engine.session_token(run, 1);
        let once = tokio::sync::Notify::new();
        let in_use = async {
            let mut used = 0;
            loop {
                // Read before the token is tried: after the end was seen, the token is refused.
                let row = world.store.session_fetch(run).await.unwrap().unwrap();
                let good = world.engine.authenticate(&token).await.is_ok();
                if row.status.is_terminal() {
                    assert!(!good, "it opened something after its session's end");
                    return used;
                }
                if good {
                    used += 1;
                    once.notify_one();
                }
            }
        };
        let end = async {
            // Known by then, and requested without a pause.
            for _ in 0..50 {
                assert!(world.engine.authenticate(&token).await.is_ok());
            }
            // By both, before it ends.
            once.notified().await;
            world.engine.session_cancel(&world.by, run).await.unwrap();
            assert!(world.engine.authenticate(&token).await.is_err());
        };
        let (used, ()) = tokio::join!(in_use, end);
        assert!(used > 0);
    }
}

#[tokio::test]
async fn only_admins_work_outside_the_workspace() {
    let world = world().await;
    let agent = world.agent("stub", |_| ()).await;
    let made = world.engine.key_create(&world.by, "op", Role::Operator).await.unwrap();
    let operator = world.engine.authenticate(&made.secret).await.unwrap();
    let draft = |workspace: String| SessionDraft {
        workspace: Some(workspace),
        ..session_draft(&agent, "shell: true")
    };
    let home = world.dir.path().to_string_lossy().into_owned();
    assert!(world.engine.session_create(&operator, draft(format!("{home}/sub"))).await.is_ok());
    assert!(world.engine.session_create(&world.by, draft("/srv".into())).await.is_ok());
    assert!(matches!(
        world.engine.session_create(&operator, draft("/srv".into())).await,
        Err(EngineError::Forbidden { .. })
    ));
    // A link counts by its target, not by its own path.
    let elsewhere = tempfile::tempdir().unwrap();
    let real = elsewhere.path().canonicalize().unwrap();
    std::os::unix::fs::symlink(&real, world.dir.path().join("link")).unwrap();
    for way in ["link", "link/sub"] {
        assert!(matches!(
            world.engine.session_create(&operator, draft(format!("{home}/{way}"))).await,
            Err(EngineError::Forbidden { .. })
        ));
    }
    let made = world.engine.session_create(&world.by, draft(format!("{home}/link/sub"))).await;
    assert_eq!(made.unwrap().value.workspace, real.join("sub").to_string_lossy());
    for bad in [format!("{home}/../x"), "relative".into(), format!("{home}2/..")] {
        assert!(matches!(
            world.engine.session_create(&operator, draft(bad)).await,
            Err(EngineError::Invalid { .. } | EngineError::Forbidden { .. })
        ));
    }
}

#[tokio::test]
async fn a_direct_tool_call_is_recorded_and_does_not_affect_the_replay() {
    let world = world().await;
    let agent =
        world.agent("stub", |draft| draft.approvals = Some(vec!["write_file".into()])).await;
    let run = world.run(&agent, "shell: true").await;
    world.ended(run).await;
    let call =
        |tool: &str| overmind_engine::request::ToolCallDraft { tool: tool.into(), args: json!({}) };
    assert!(world.engine.tool_call(&world.by, run, call("look")).await.unwrap().ok());
    let denied = world.engine.tool_call(&world.by, run, call("write_file")).await.unwrap();
    assert!(!denied.allowed, "an approval cannot be gone around");
    let calls = world.engine.session_tool_calls(&world.by, run, 0, 10).await.unwrap();
    assert_eq!(calls.len(), 3);
    assert_eq!(calls[1].step, None);
    world.check(&[run]).await;
}
