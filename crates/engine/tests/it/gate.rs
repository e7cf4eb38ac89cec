//! Calls under a policy: judged, asked about, bound to the shown action.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use overmind_core::gate::Decision as Verdict;
use overmind_core::ids::SessionId;
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::store::{EventQuery, StreamId};
use overmind_engine::request::{Decision, ForkDraft, ToolCallDraft};
use overmind_testkit::ports::{FakeGate, FakeModels, FakeTools, calls, says};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::world::World;

const DEPLOY: &str = "deploy";

/// Shell commands ask, and writes are denied.
fn policy() -> Arc<FakeGate> {
    FakeGate::new(|request| match request.tool.as_str() {
        "run_shell" => Verdict::Ask,
        "write_file" => Verdict::Deny,
        _ => Verdict::Allow,
    })
}

fn shell() -> Result<overmind_core::model::ModelReply, overmind_core::model::ModelFailure> {
    calls(&[("run_shell", json!({"command": DEPLOY}))])
}

async fn world(
    models: Arc<FakeModels>,
    gate: &Arc<FakeGate>,
    approval_ttl: Option<Duration>,
) -> World {
    let dir = Arc::new(TempDir::new().expect("a directory"));
    World::gated(dir, FakeTools::ok(), models, Some(Arc::clone(gate)), approval_ttl).await
}

async fn asked(world: &World, run: SessionId) -> SessionRow {
    world.until(run, &[SessionStatus::AwaitingApproval]).await
}

async fn approve(world: &World, row: &SessionRow) {
    let approval = row.approval.expect("an approval is asked for");
    let decided =
        world.engine.session_decide(&world.by, row.id, approval, Decision::Approve, None).await;
    decided.expect("it waits for this approval");
}

/// Waits until another approval than that of `row` is requested.
async fn asked_anew(world: &World, row: &SessionRow) -> SessionRow {
    loop {
        let now = asked(world, row.id).await;
        if now.approval != row.approval {
            return now;
        }
        tokio::task::yield_now().await;
    }
}

async fn payloads(world: &World, run: SessionId, kind: &str) -> Vec<Value> {
    let query =
        EventQuery { stream: Some(StreamId::Session(run)), after: 0, kinds: &[], limit: 1000 };
    let events = world.store.events(query).await.expect("the log is readable");
    events
        .iter()
        .filter(|event| &*event.kind == kind)
        .map(|event| serde_json::from_str(&event.payload).expect("payloads are JSON"))
        .collect()
}

fn told(world: &World) -> String {
    let requests = world.models.requests.lock().expect("no test panics here");
    format!("{:?}", requests.last().expect("a model was asked").messages)
}

#[tokio::test]
async fn an_allowed_call_runs_and_the_log_names_the_rule() {
    let models =
        FakeModels::new([calls(&[("look", json!({})), ("look", json!({"n": 2}))]), says("end")]);
    let gate = policy();
    let world = world(models, &gate, None).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "look around").await;
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(world.tools.called("look"), 2);
    let judged = payloads(&world, run, "tool.judged").await;
    assert_eq!(judged.len(), 2);
    assert_eq!(judged[0]["verdict"]["rule"]["id"], "fake");
    assert_eq!(judged[0]["verdict"]["policy"], "p1");
    assert_eq!(judged[0]["verdict"]["reason"], "", "nobody has to be told");
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_denied_call_never_reaches_its_tool_and_the_model_gets_an_alternative() {
    let models = FakeModels::new([calls(&[("write_file", json!({"path": "a"}))]), says("end")]);
    let gate = policy();
    let world = world(models, &gate, None).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "write").await;
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(world.tools.called("write_file"), 0);
    assert!(told(&world).contains("Ask for a review first."), "{}", told(&world));
    let listed = world.engine.session_tool_calls(&world.by, run, 0, 10).await.expect("a list");
    assert_eq!(listed.len(), 1, "a refused call is a call");
    let refused = payloads(&world, run, "tool.refused").await;
    assert_eq!((&refused[0]["allowed"], &refused[0]["args"]["path"]), (&json!(false), &json!("a")));
    world.check(&[run]).await;
}

#[tokio::test]
async fn an_approval_survives_a_restart_and_can_be_late() {
    let dir = Arc::new(TempDir::new().expect("a directory"));
    let (tools, gate) = (FakeTools::ok(), policy());
    let first = World::gated(
        Arc::clone(&dir),
        Arc::clone(&tools),
        FakeModels::new([shell()]),
        Some(Arc::clone(&gate)),
        None,
    )
    .await;
    let agent = first.agent("gpt-test", |_| ()).await;
    let run = first.run(&agent, "deploy").await;
    let row = asked(&first, run).await;
    assert!(row.prompt.as_deref().is_some_and(|text| text.contains("deploy")), "{row:?}");
    first.engine.drain(Duration::from_secs(5)).await;
    drop(first);

    let models = FakeModels::new([says("end")]);
    let second = World::gated(dir, Arc::clone(&tools), models, Some(gate), None).await;
    assert_eq!(asked(&second, run).await.approval, row.approval);
    approve(&second, &row).await;
    assert_eq!(second.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(tools.called("run_shell"), 1);
    second.check(&[run]).await;
}

#[tokio::test]
async fn a_change_between_approval_and_execution_asks_again() {
    let gate = policy();
    let world = world(FakeModels::new([shell(), says("end")]), &gate, None).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "deploy").await;
    let row = asked(&world, run).await;
    // The script that the command runs is another one now.
    world.tools.surroundings.store(1, Ordering::SeqCst);
    approve(&world, &row).await;
    let row = asked_anew(&world, &row).await;
    assert_eq!(world.tools.called("run_shell"), 0);
    // The policy is another one now.
    gate.reload("p2");
    approve(&world, &row).await;
    let row = asked_anew(&world, &row).await;
    assert_eq!(world.tools.called("run_shell"), 0);
    approve(&world, &row).await;
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(world.tools.called("run_shell"), 1);
    let hashes: std::collections::BTreeSet<_> = payloads(&world, run, "approval.requested")
        .await
        .iter()
        .map(|asked| asked["action_hash"].to_string())
        .collect();
    assert_eq!(hashes.len(), 3, "three questions about three different things");
    world.check(&[run]).await;
}

#[tokio::test]
async fn an_expired_approval_is_requested_again_and_has_no_effect() {
    let gate = policy();
    let world = world(FakeModels::new([shell(), says("end")]), &gate, Some(Duration::ZERO)).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "deploy").await;
    let row = asked(&world, run).await;
    approve(&world, &row).await;
    let row = asked_anew(&world, &row).await;
    assert_eq!(payloads(&world, run, "approval.expired").await.len(), 1);
    assert_eq!(world.tools.called("run_shell"), 0);
    // No is never too late.
    let (approval, reason) = (row.approval.expect("asked"), Some("not today".to_owned()));
    world
        .engine
        .session_decide(&world.by, run, approval, Decision::Deny, reason)
        .await
        .expect("it waits");
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    assert!(told(&world).contains("denied this: not today"));
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_session_with_a_policy_does_not_continue_on_a_server_without_one() {
    let dir = Arc::new(TempDir::new().expect("a directory"));
    let tools = FakeTools::ok();
    let hang = calls(&[("hang", json!({}))]);
    let first = World::gated(
        Arc::clone(&dir),
        Arc::clone(&tools),
        FakeModels::new([hang]),
        Some(policy()),
        None,
    )
    .await;
    let agent = first.agent("gpt-test", |_| ()).await;
    let run = first.run(&agent, "go").await;
    first.until_true("it hangs", || tools.called("hang") == 1).await;
    first.engine.drain(Duration::ZERO).await;
    drop(first);

    let models = FakeModels::new([calls(&[("look", json!({}))]), says("end")]);
    let second = World::gated(dir, Arc::clone(&tools), models, None, None).await;
    let row = second.until(run, &[SessionStatus::AwaitingInput]).await;
    second.engine.session_input(&second.by, row.id, "done".into()).await.expect("it asks");
    let row = asked(&second, run).await;
    assert_eq!(tools.called("look"), 0);
    approve(&second, &row).await;
    assert_eq!(second.ended(run).await.status, SessionStatus::Succeeded);
    second.check(&[run]).await;
}

#[tokio::test]
async fn a_direct_call_is_evaluated_and_never_asks() {
    let gate = policy();
    let world = world(FakeModels::new([says("end")]), &gate, None).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "nothing").await;
    world.ended(run).await;
    for (tool, code) in [("run_shell", "tool_not_allowed"), ("write_file", "denied")] {
        let call = ToolCallDraft { tool: tool.into(), args: json!({}) };
        let outcome = world.engine.tool_call(&world.by, run, call).await.expect("an answer");
        assert_eq!((outcome.allowed, &outcome.result["error"]["code"]), (false, &json!(code)));
        assert_eq!(world.tools.called(tool), 0);
    }
    let call = ToolCallDraft { tool: "look".into(), args: json!({}) };
    assert!(world.engine.tool_call(&world.by, run, call).await.expect("an answer").ok());
}

#[tokio::test]
async fn a_fork_asks_for_its_own_approval() {
    let gate = policy();
    let world = world(FakeModels::new([shell(), says("end"), says("end")]), &gate, None).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "deploy").await;
    let row = asked(&world, run).await;
    approve(&world, &row).await;
    world.ended(run).await;
    let fork = ForkDraft { at: 1, ..ForkDraft::default() };
    let fork = world.engine.session_fork(&world.by, run, fork).await.expect("a fork");
    let row = asked(&world, fork.id).await;
    assert_eq!(world.tools.called("run_shell"), 1, "the source's consent is not the fork's");
    approve(&world, &row).await;
    assert_eq!(world.ended(fork.id).await.status, SessionStatus::Succeeded);
    assert_eq!(world.tools.called("run_shell"), 2);
    world.check(&[run, fork.id]).await;
}

#[tokio::test]
async fn a_session_recorded_without_a_policy_continues_and_still_verifies() {
    let dir = Arc::new(TempDir::new().expect("a directory"));
    let tools = FakeTools::ok();
    let first =
        World::gated(Arc::clone(&dir), Arc::clone(&tools), FakeModels::new([shell()]), None, None)
            .await;
    let agent =
        first.agent("gpt-test", |draft| draft.approvals = Some(vec!["run_shell".into()])).await;
    let run = first.run(&agent, "deploy").await;
    let row = asked(&first, run).await;
    first.engine.drain(Duration::from_secs(5)).await;
    drop(first);

    let models = FakeModels::new([says("end")]);
    let second = World::gated(dir, Arc::clone(&tools), models, Some(policy()), None).await;
    assert_eq!(asked(&second, run).await.approval, row.approval);
    approve(&second, &row).await;
    assert_eq!(second.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(tools.called("run_shell"), 1);
    assert!(payloads(&second, run, "tool.judged").await.is_empty(), "it began without a policy");
    second.check(&[run]).await;
}
