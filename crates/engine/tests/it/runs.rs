//! Sessions from start to end.

use std::sync::{Arc, Mutex};

use overmind_core::row::{SessionStatus, StepKind};
use overmind_core::store::StreamId;
use overmind_core::tool::ToolOutcome;
use overmind_engine::request::SessionDraft;
use overmind_testkit::ports::{FakeModels, FakeTools, calls, says};
use serde_json::json;

use crate::world::{World, session_draft};

#[tokio::test]
async fn a_successful_rules_run_has_the_ten_original_events() {
    let tools = FakeTools::new(|_, _| ToolOutcome {
        allowed: true,
        result: json!({"ok": true, "exit_code": 0, "stdout": "hi\n", "stderr": ""}),
    });
    let world = World::new(tools, FakeModels::new([])).await;
    let agent = world.agent("stub-v1", |_| ()).await;
    let run = world.run(&agent, "shell:echo hi").await;
    let row = world.ended(run).await;
    assert_eq!(row.status, SessionStatus::Succeeded);
    assert_eq!(row.final_answer.as_deref(), Some("Tool completed with exit_code=0\nhi"));
    assert_eq!(
        world.kinds(run).await,
        [
            "run.queued",
            "run.started",
            "step.started",
            "step.finished",
            "step.started",
            "tool.called",
            "step.finished",
            "step.started",
            "step.finished",
            "run.succeeded"
        ]
    );
    let steps = world.engine.session_steps(&world.by, run, None, 100).await.unwrap();
    let kinds: Vec<_> = steps.iter().map(|step| (step.idx, step.kind)).collect();
    assert_eq!(kinds, [(0, StepKind::Plan), (1, StepKind::Tool), (2, StepKind::Eval)]);
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_model_run_calls_tools_streams_and_counts_its_tokens() {
    let models = FakeModels::new([
        calls(&[("look", json!({"n": 1})), ("look", json!({"n": 2}))]),
        calls(&[("run_shell", json!({"command": "true"}))]),
        says("all done now"),
    ]);
    let world = World::new(FakeTools::ok(), models).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "do it").await;
    let row = world.ended(run).await;
    assert_eq!(row.status, SessionStatus::Succeeded);
    assert_eq!(row.final_answer.as_deref(), Some("all done now"));
    assert_eq!((row.usage.input_tokens, row.cost_microusd, row.model_calls), (30, Some(21), 3));
    assert_eq!((world.tools.called("look"), world.tools.called("run_shell")), (2, 1));
    let kinds = world.kinds(run).await;
    for kind in ["model.output.delta", "model.output.completed", "supervisor.decided"] {
        assert!(kinds.iter().any(|k| k == kind), "{kind} in {kinds:?}");
    }
    let calls = world.engine.session_model_calls(&world.by, run, 0, 100).await.unwrap();
    assert_eq!(calls.len(), 3);
    assert_eq!(calls[0].request["model"], "gpt-test");
    assert_eq!(world.engine.session_tool_calls(&world.by, run, 0, 100).await.unwrap().len(), 3);
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_failed_command_fails_a_rules_run_with_the_reason() {
    let tools = FakeTools::new(|_, _| ToolOutcome {
        allowed: true,
        result: json!({"ok": false, "exit_code": 3, "stdout": "", "stderr": "no"}),
    });
    let world = World::new(tools, FakeModels::new([])).await;
    let agent = world.agent("stub", |_| ()).await;
    let run = world.run(&agent, "shell: exit 3").await;
    let row = world.ended(run).await;
    assert_eq!(row.status, SessionStatus::Failed);
    assert_eq!(row.error.unwrap()["message"], "the command exited with 3");
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_tool_outside_the_allow_list_is_denied_and_recorded() {
    let world = World::new(FakeTools::ok(), FakeModels::new([])).await;
    let agent = world.agent("stub", |draft| draft.tools_allowed.clear()).await;
    let run = world.run(&agent, "shell: true").await;
    assert_eq!(world.ended(run).await.status, SessionStatus::Failed);
    let calls = world.engine.session_tool_calls(&world.by, run, 0, 10).await.unwrap();
    assert!(!calls[0].allowed);
    assert!(world.kinds(run).await.contains(&"tool.denied".to_owned()));
    world.check(&[run]).await;
}

#[tokio::test]
async fn transient_failures_are_retried_and_permanent_ones_are_not() {
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let tools = FakeTools::new(move |name, _| match name {
        "read_file" if tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 => {
            ToolOutcome::failure("timeout", "too slow")
        }
        "read_file" => ToolOutcome { allowed: true, result: json!({"ok": true, "content": "x"}) },
        _ => ToolOutcome::failure("bad_args", "path is required"),
    });
    let world = World::new(tools, FakeModels::new([])).await;
    let agent = world.agent("stub", |_| ()).await;
    let good = world.run(&agent, "read: a.txt").await;
    assert_eq!(world.ended(good).await.status, SessionStatus::Succeeded);
    assert!(world.kinds(good).await.contains(&"tool.retry".to_owned()));
    let bad = world.run(&agent, "write: a: b").await;
    assert_eq!(world.ended(bad).await.error.unwrap()["code"], "bad_args");
    assert_eq!(world.tools.called("write_file"), 1);
    world.check(&[good, bad]).await;
}

#[tokio::test]
async fn the_step_limit_ends_a_run_with_both_events() {
    let world = World::new(FakeTools::ok(), FakeModels::new([])).await;
    let agent = world.agent("stub", |_| ()).await;
    let draft = SessionDraft { step_limit: Some(1), ..session_draft(&agent, "shell: true") };
    let run = world.engine.session_create(&world.by, draft).await.unwrap().value.id;
    let row = world.ended(run).await;
    assert_eq!(row.error.unwrap()["code"], "step_limit");
    let kinds = world.kinds(run).await;
    assert_eq!(&kinds[kinds.len() - 2..], ["run.step_limit_reached", "run.failed"]);
    assert_eq!(world.tools.called("run_shell"), 0);
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_thousand_sessions_all_end() {
    let world = World::new(FakeTools::ok(), FakeModels::new([])).await;
    let agent = world.agent("stub", |_| ()).await;
    let mut runs = Vec::new();
    for batch in 0..20 {
        let created = (0..50).map(|n| world.run_boxed(&agent, format!("remember:x:{batch} {n}")));
        runs.extend(futures_util::future::join_all(created).await);
    }
    for run in &runs {
        assert_eq!(world.ended(*run).await.status, SessionStatus::Succeeded);
    }
    assert_eq!(world.tools.called("store_memory"), 1000);
    world.check(&runs[..5]).await;
}

impl World {
    fn run_boxed<'a>(
        &'a self,
        agent: &'a str,
        task: String,
    ) -> overmind_core::Fut<'a, overmind_core::ids::SessionId> {
        Box::pin(async move { self.run(agent, &task).await })
    }
}

/// The content of the first commit about a new run, while `busy` others run.
async fn first_commit(busy: u32) -> usize {
    let dir = Arc::new(tempfile::TempDir::new().expect("a directory"));
    let models = FakeModels::new((0..=busy).map(|_| calls(&[("hang", json!({}))])));
    let world = World::at(dir, FakeTools::ok(), models, 1).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    for _ in 0..busy {
        let run = world.run(&agent, "be busy").await;
        world.until(run, &[SessionStatus::Running]).await;
    }
    let groups = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&groups);
    world.store.listen(Box::new(move |places| seen.lock().expect("a lock").push(places.to_vec())));
    let run = world.run(&agent, "begin").await;
    let groups = groups.lock().expect("a lock").clone();
    let of_run =
        |group: &&Vec<_>| group.iter().any(|(stream, _)| *stream == StreamId::Session(run));
    let first = groups.iter().find(of_run).expect("it is written when this answers");
    first.iter().filter(|(stream, _)| *stream == StreamId::Session(run)).count()
}

#[tokio::test]
async fn a_run_with_a_free_slot_starts_in_the_commit_that_creates_it() {
    assert!(first_commit(0).await > 1);
    assert_eq!(first_commit(1).await, 1, "it waits for its turn");
}

#[tokio::test]
async fn a_taken_name_leaves_nothing_of_the_refused_run() {
    let dir = Arc::new(tempfile::TempDir::new().unwrap());
    let models = FakeModels::new([calls(&[("hang", json!({}))]), says("done"), says("done")]);
    let world = World::at(dir, FakeTools::ok(), models, 2).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let named =
        |name: &str| SessionDraft { name: Some(name.into()), ..session_draft(&agent, "go") };
    let first = world.engine.session_create(&world.by, named("one")).await.unwrap().value.id;
    world.until(first, &[SessionStatus::Running]).await;
    for _ in 0..3 {
        let refused = world.engine.session_create(&world.by, named("one")).await;
        assert!(matches!(refused, Err(overmind_engine::EngineError::Conflict { .. })));
    }
    // One of the two slots is still free: refused runs have returned theirs.
    let second = world.engine.session_create(&world.by, named("two")).await.unwrap().value.id;
    assert_eq!(world.ended(second).await.status, SessionStatus::Succeeded);
}
