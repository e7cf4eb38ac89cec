//! Questions, answers and approvals.

use overmind_core::row::SessionStatus;
use overmind_engine::EngineError;
use overmind_engine::request::Decision;
use overmind_testkit::ports::{FakeModels, FakeTools, calls, says};
use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn an_answer_to_a_question_reaches_the_model() {
    let models = FakeModels::new([
        calls(&[("ask_user", json!({"message": "which port?"}))]),
        says("ok 8080"),
    ]);
    let world = World::new(FakeTools::ok(), models).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "serve").await;
    let row = world.until(run, &[SessionStatus::AwaitingInput]).await;
    assert_eq!(row.prompt.as_deref(), Some("which port?"));
    let row = world.engine.session_input(&world.by, run, "8080".into()).await.unwrap();
    assert_eq!(row.status, SessionStatus::Running);
    assert_eq!(row.task, "serve\n\nUser input: 8080");
    let row = world.ended(run).await;
    assert_eq!(row.final_answer.as_deref(), Some("ok 8080"));
    let again = world.engine.session_input(&world.by, run, "9".into()).await;
    assert_eq!(again, Err(EngineError::conflict("Run is not awaiting input")));
    world.check(&[run]).await;
}

#[tokio::test]
async fn only_one_of_many_concurrent_answers_counts() {
    let models = FakeModels::new([calls(&[("ask_user", json!({"message": "?"}))])]);
    let world = World::new(FakeTools::ok(), models).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "x").await;
    world.until(run, &[SessionStatus::AwaitingInput]).await;
    let answers = (0..10).map(|n| world.engine.session_input(&world.by, run, n.to_string()));
    let results = futures_util::future::join_all(answers).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    world.ended(run).await;
    world.check(&[run]).await;
}

#[tokio::test]
async fn an_approval_is_requested_granted_and_used_once() {
    let shell = || calls(&[("run_shell", json!({"command": "deploy"}))]);
    let world = World::new(FakeTools::ok(), FakeModels::new([shell(), shell(), says("end")])).await;
    let agent =
        world.agent("gpt-test", |draft| draft.approvals = Some(vec!["run_shell".into()])).await;
    let run = world.run(&agent, "deploy").await;
    for time in 1..=2 {
        let row = world.until(run, &[SessionStatus::AwaitingApproval]).await;
        assert_eq!(world.tools.called("run_shell"), time - 1, "nothing ran before the word");
        let approval = row.approval.unwrap();
        world
            .engine
            .session_decide(&world.by, run, approval, Decision::Approve, None)
            .await
            .unwrap();
        let again =
            world.engine.session_decide(&world.by, run, approval, Decision::Approve, None).await;
        assert!(again.is_err(), "an approval is answered once");
    }
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(world.tools.called("run_shell"), 2);
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_denial_reaches_the_model_with_its_reason() {
    let models =
        FakeModels::new([calls(&[("run_shell", json!({"command": "rm"}))]), says("then not")]);
    let world = World::new(FakeTools::ok(), models).await;
    let agent = world.agent("gpt-test", |draft| draft.approvals = Some(vec!["*".into()])).await;
    let run = world.run(&agent, "clean").await;
    let row = world.until(run, &[SessionStatus::AwaitingApproval]).await;
    let (approval, reason) = (row.approval.unwrap(), Some("too much".to_owned()));
    world.engine.session_decide(&world.by, run, approval, Decision::Deny, reason).await.unwrap();
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(world.tools.called("run_shell"), 0);
    let last = format!("{:?}", world.models.requests.lock().unwrap().last().unwrap().messages);
    assert!(last.contains("admin denied this: too much"), "{last}");
    world.check(&[run]).await;
}
