//! The inbox: one open item for each session that waits, answered once, from anywhere.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use overmind_core::gate::Decision as Verdict;
use overmind_core::ids::{InboxId, SessionId};
use overmind_core::inbox::{InboxItem, InboxKind, InboxState};
use overmind_core::row::{Role, SessionStatus};
use overmind_core::store::{Change, Commit, Page};
use overmind_engine::request::{Decision, ForkDraft, InboxAnswer, InboxBatch, InboxQuery};
use overmind_engine::{Caller, EngineError, Rights};
use overmind_testkit::ports::{FakeGate, FakeModels, FakeTools, calls, says};
use serde_json::json;
use tempfile::TempDir;

use crate::world::World;

type Reply = Result<overmind_core::model::ModelReply, overmind_core::model::ModelFailure>;

fn shell(command: &str) -> Reply {
    calls(&[("run_shell", json!({"command": command}))])
}

fn ask(question: &str) -> Reply {
    calls(&[("ask_user", json!({"message": question}))])
}

/// Shell commands ask.
fn gate() -> Arc<FakeGate> {
    FakeGate::new(|request| match request.tool.as_str() {
        "run_shell" => Verdict::Ask,
        _ => Verdict::Allow,
    })
}

async fn world(replies: impl IntoIterator<Item = Reply>) -> World {
    lasting(None, replies).await
}

async fn lasting(ttl: Option<Duration>, replies: impl IntoIterator<Item = Reply>) -> World {
    let dir = Arc::new(TempDir::new().expect("a directory"));
    World::gated(dir, FakeTools::ok(), FakeModels::new(replies), Some(gate()), ttl).await
}

async fn items(world: &World, query: InboxQuery) -> Vec<InboxItem> {
    let page = Page { limit: 1000, after: None };
    world.engine.inbox_list(&world.by, query, page).await.expect("a list")
}

async fn open(world: &World) -> Vec<InboxItem> {
    items(world, InboxQuery { state: Some(InboxState::Open), ..InboxQuery::default() }).await
}

/// The open item of a session that waits.
async fn waits(world: &World, run: SessionId) -> InboxItem {
    world.until(run, &[SessionStatus::AwaitingApproval, SessionStatus::AwaitingInput]).await;
    let query =
        InboxQuery { state: Some(InboxState::Open), session: Some(run), ..InboxQuery::default() };
    let [item] = items(world, query).await.try_into().expect("exactly one open item");
    item
}

/// Waits until the session waits with another item than this.
async fn waits_anew(world: &World, before: &InboxItem) -> InboxItem {
    loop {
        let item = waits(world, before.session.expect("of a session")).await;
        if item.id != before.id {
            return item;
        }
        tokio::task::yield_now().await;
    }
}

fn approve() -> InboxAnswer {
    InboxAnswer::Approve { reason: None }
}

fn deny(reason: &str) -> InboxAnswer {
    InboxAnswer::Deny { reason: Some(reason.into()) }
}

fn words(message: &str) -> InboxAnswer {
    InboxAnswer::Words { message: message.into() }
}

fn person(name: &str) -> Caller {
    Caller::new(name, Rights::Role(Role::Operator))
}

#[tokio::test]
async fn a_waiting_session_has_one_open_item_which_its_answer_closes() {
    let world = world([shell("deploy\nnow"), ask("Which port?"), says("end")]).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "deploy").await;

    let item = waits(&world, run).await;
    let row = world.engine.session_fetch(&world.by, run).await.unwrap();
    assert_eq!((item.kind, item.agent, item.epoch), (InboxKind::Approval, Some(row.agent), 1));
    assert_eq!(item.title, "run_shell: deploy now");
    assert_eq!(Some(item.id.as_u128()), row.approval.map(|id| id.as_u128()));
    assert_eq!(item.details["args"], json!({"command": "deploy\nnow"}));
    assert_eq!((item.detail("risk"), item.detail("prompt")), (Some("high"), row.prompt.as_deref()));
    assert_eq!(item.group.as_deref(), Some("run_shell-high"));
    let denied =
        world.engine.inbox_answer(&person("ann"), item.id, deny("not today")).await.unwrap();
    assert_eq!((denied.state, denied.answered_by.as_deref()), (InboxState::Denied, Some("ann")));
    assert_eq!(denied.answer.as_deref(), Some("not today"));
    assert!(denied.changed > item.changed);

    let question = waits_anew(&world, &item).await;
    assert_eq!((question.kind, question.title.as_str()), (InboxKind::Question, "Which port?"));
    assert_eq!(question.detail("reason"), Some("question"));
    {
        let told = format!("{:?}", world.models.requests.lock().unwrap().last().unwrap().messages);
        assert!(told.contains("ann denied this: not today"), "{told}");
    }
    let done = world.engine.inbox_answer(&person("bob"), question.id, words("8080")).await.unwrap();
    assert_eq!((done.state, done.answer.as_deref()), (InboxState::Answered, Some("8080")));
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(open(&world).await, []);
    assert_eq!(items(&world, InboxQuery::default()).await.len(), 2);
    world.check(&[run]).await;
}

#[tokio::test]
async fn the_first_answer_wins_and_the_others_get_its_author() {
    let world = world([shell("deploy"), says("end")]).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "deploy").await;
    let item = waits(&world, run).await;
    let people: Vec<_> = (0..20).map(|n| person(&format!("p{n}"))).collect();
    let answers = people.iter().enumerate().map(|(n, by)| {
        let answer = if n % 2 == 0 { approve() } else { deny("no") };
        world.engine.inbox_answer(by, item.id, answer)
    });
    let results = join_all(answers).await;
    let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let [Ok(won)] = &won[..] else { panic!("one answer counts, not {won:?}") };
    let by = won.answered_by.clone().unwrap();
    let said = format!("this was already {} by {by} at ", won.state.as_str());
    for lost in lost {
        match lost {
            Err(EngineError::Conflict { message, .. }) => {
                assert!(message.starts_with(&said), "{message}")
            }
            other => panic!("{other:?}"),
        }
    }
    world.ended(run).await;
    let ran = world.tools.called("run_shell");
    assert_eq!(ran, usize::from(won.state == InboxState::Approved));
    world.check(&[run]).await;
}

#[tokio::test]
async fn answers_at_the_run_close_the_same_item() {
    let world = world([shell("deploy"), ask("Which?"), says("end")]).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "deploy").await;
    let item = waits(&world, run).await;
    let approval = world.engine.session_fetch(&world.by, run).await.unwrap().approval.unwrap();
    let engine = &world.engine;
    engine.session_decide(&world.by, run, approval, Decision::Approve, None).await.unwrap();
    let again = engine.inbox_answer(&world.by, item.id, deny("late")).await.unwrap_err();
    assert!(again.to_string().starts_with("this was already approved by admin at "), "{again}");
    let question = waits_anew(&world, &item).await;
    engine.session_input(&world.by, run, "this".into()).await.unwrap();
    let closed = engine.inbox_fetch(&world.by, question.id).await.unwrap();
    assert_eq!((closed.state, closed.answer.as_deref()), (InboxState::Answered, Some("this")));
    world.ended(run).await;
    world.check(&[run]).await;
}

#[tokio::test]
async fn an_answer_to_an_older_question_never_reaches_a_newer_one() {
    let world = world([ask("Which port?"), ask("Delete it all?"), says("end")]).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "go").await;
    let first = waits(&world, run).await;
    world.engine.inbox_answer(&person("ann"), first.id, words("8080")).await.unwrap();
    let second = waits_anew(&world, &first).await;
    let late = world.engine.inbox_answer(&person("bob"), first.id, words("yes")).await;
    let message = late.unwrap_err().to_string();
    assert!(message.starts_with("this was already answered by ann at "), "{message}");
    assert_eq!(waits(&world, run).await, second);
    world.engine.session_cancel(&person("eve"), run).await.unwrap();
    let withdrawn = world.engine.inbox_fetch(&world.by, second.id).await.unwrap();
    assert_eq!(withdrawn.state, InboxState::Withdrawn);
    let late = world.engine.inbox_answer(&world.by, second.id, words("no")).await.unwrap_err();
    let message = late.to_string();
    assert!(message.starts_with("this was withdrawn by eve at "), "{message}");
    assert!(message.ends_with(": the run has ended"), "{message}");
    world.check(&[run]).await;
}

#[tokio::test]
async fn an_answer_must_have_the_items_kind_and_an_authorized_author() {
    let world = world([shell("deploy"), ask("Which?"), says("end")]).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "deploy").await;
    let item = waits(&world, run).await;
    let engine = &world.engine;
    let invalid = |result: Result<InboxItem, EngineError>| match result {
        Err(EngineError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(invalid(engine.inbox_answer(&world.by, item.id, words("yes")).await), "decision");
    let viewer = Caller::new("v", Rights::Role(Role::Viewer));
    // The session's own token: a model that has it cannot approve its own calls.
    let own = Caller::new(run.to_string(), Rights::Session { session: run, epoch: 1 });
    for by in [&viewer, &own] {
        for answer in [approve(), deny("no"), words("yes")] {
            let refused = engine.inbox_answer(by, item.id, answer.clone()).await;
            assert!(matches!(refused, Err(EngineError::Forbidden { .. })), "{refused:?}");
            let batch = InboxBatch { ids: vec![item.id], group: None, answer };
            let refused = engine.inbox_answer_all(by, batch).await;
            assert!(matches!(refused, Err(EngineError::Forbidden { .. })), "{refused:?}");
        }
    }
    assert!(engine.inbox_fetch(&viewer, item.id).await.is_ok());
    assert!(matches!(engine.inbox_fetch(&own, item.id).await, Err(EngineError::Forbidden { .. })));
    let nothing = engine.inbox_answer(&world.by, InboxId::from_u128(1), approve()).await;
    assert_eq!(nothing, Err(EngineError::not_found("Inbox item")));
    engine.inbox_answer(&world.by, item.id, approve()).await.unwrap();
    let question = waits_anew(&world, &item).await;
    assert_eq!(invalid(engine.inbox_answer(&world.by, question.id, approve()).await), "decision");
    assert_eq!(invalid(engine.inbox_answer(&world.by, question.id, words(" ")).await), "message");
    engine.session_cancel(&world.by, run).await.unwrap();
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_late_approval_leaves_the_item_expired_and_asks_again() {
    let world = lasting(Some(Duration::ZERO), [shell("deploy"), says("end")]).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "deploy").await;
    let item = waits(&world, run).await;
    let late = world.engine.inbox_answer(&person("ann"), item.id, approve()).await.unwrap();
    assert_eq!((late.state, late.answered_by.as_deref()), (InboxState::Expired, Some("ann")));
    let anew = waits_anew(&world, &item).await;
    assert_eq!((anew.title.as_str(), anew.state), (item.title.as_str(), InboxState::Open));
    assert_eq!(world.tools.called("run_shell"), 0);
    let again = world.engine.inbox_answer(&world.by, item.id, approve()).await.unwrap_err();
    assert!(again.to_string().contains("it is asked anew"), "{again}");
    world.engine.inbox_answer(&world.by, anew.id, deny("no")).await.unwrap();
    world.ended(run).await;
    world.check(&[run]).await;
}

#[tokio::test]
async fn an_item_survives_a_restart_and_can_be_answered_late() {
    let dir = Arc::new(TempDir::new().expect("a directory"));
    let tools = FakeTools::ok();
    let first = World::gated(
        Arc::clone(&dir),
        Arc::clone(&tools),
        FakeModels::new([shell("deploy")]),
        Some(gate()),
        None,
    )
    .await;
    let agent = first.agent("gpt-test", |_| ()).await;
    let run = first.run(&agent, "deploy").await;
    let item = waits(&first, run).await;
    first.engine.drain(Duration::from_secs(5)).await;
    drop(first);

    let models = FakeModels::new([says("end")]);
    let second = World::gated(dir, Arc::clone(&tools), models, Some(gate()), None).await;
    assert_eq!(open(&second).await, std::slice::from_ref(&item), "as it was, without a new commit");
    second.engine.inbox_answer(&second.by, item.id, approve()).await.unwrap();
    assert_eq!(second.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(tools.called("run_shell"), 1);
    assert_eq!(open(&second).await, []);
    second.check(&[run]).await;
}

#[tokio::test]
async fn sessions_that_waited_before_the_inbox_existed_are_in_it_after_a_start() {
    let dir = Arc::new(TempDir::new().expect("a directory"));
    let tools = FakeTools::ok();
    let models = FakeModels::new([shell("deploy"), ask("Which?")]);
    let first =
        World::gated(Arc::clone(&dir), Arc::clone(&tools), models, Some(gate()), None).await;
    let agent = first.agent("gpt-test", |_| ()).await;
    let a = first.run(&agent, "a").await;
    let mut wanted = vec![waits(&first, a).await];
    let b = first.run(&agent, "b").await;
    wanted.push(waits(&first, b).await);
    // As if it had none: a closed item does not count as that of a waiting session.
    for item in &wanted {
        let gone = InboxItem { state: InboxState::Withdrawn, ..item.clone() };
        let changes = vec![Change::InboxPut(Box::new(gone))];
        first.store.commit(Commit { changes, ..Commit::default() }).await.unwrap();
    }
    assert_eq!(open(&first).await, []);
    first.engine.drain(Duration::from_secs(5)).await;
    drop(first);

    let models = FakeModels::new([says("end"), says("end")]);
    let second = World::gated(dir, Arc::clone(&tools), models, Some(gate()), None).await;
    let bare = |items: Vec<InboxItem>| -> BTreeSet<_> {
        items
            .into_iter()
            .map(|item| (item.id, format!("{:?}", InboxItem { changed: 0, ..item })))
            .collect()
    };
    assert_eq!(bare(open(&second).await), bare(wanted.clone()), "the same as they were");
    second.engine.inbox_answer(&second.by, wanted[0].id, approve()).await.unwrap();
    second.engine.inbox_answer(&second.by, wanted[1].id, words("this")).await.unwrap();
    second.ended(a).await;
    second.ended(b).await;
    second.check(&[a, b]).await;
}

#[tokio::test]
async fn a_batch_answers_only_the_listed_items() {
    let world =
        world((0..4).map(|n| shell(&format!("deploy {n}"))).chain((0..4).map(|_| says("end"))))
            .await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        let run = world.run(&agent, "deploy").await;
        waits(&world, run).await;
        runs.push(run);
    }
    let groups = world.engine.inbox_groups(&world.by).await.unwrap();
    let [group] = &groups[..] else { panic!("{groups:?}") };
    assert_eq!((group.key.as_str(), group.items.len()), ("run_shell-high", 3));
    let seen: Vec<_> = group.items.iter().map(|item| item.id).collect();
    // Asked after the human has looked.
    let later = world.run(&agent, "deploy").await;
    let unseen = waits(&world, later).await;
    // And another caller answered meanwhile.
    world.engine.inbox_answer(&person("ann"), seen[0], deny("no")).await.unwrap();

    let batch = InboxBatch { ids: seen.clone(), group: Some(group.key.clone()), answer: approve() };
    let done = world.engine.inbox_answer_all(&person("bob"), batch).await.unwrap();
    assert_eq!(done.iter().map(|(id, _)| *id).collect::<Vec<_>>(), seen);
    let message = done[0].1.as_ref().unwrap_err().to_string();
    assert!(message.starts_with("this was already denied by ann"), "{message}");
    for (_, result) in &done[1..] {
        assert_eq!(result.as_ref().unwrap().state, InboxState::Approved);
    }
    assert_eq!(open(&world).await, std::slice::from_ref(&unseen));
    let stray = InboxBatch { ids: vec![unseen.id], group: Some("other".into()), answer: approve() };
    let done = world.engine.inbox_answer_all(&world.by, stray).await.unwrap();
    assert_eq!(done[0].1, Err(EngineError::conflict("it is not of group other")));
    for ids in [vec![], vec![unseen.id, unseen.id], vec![unseen.id; 101]] {
        let batch = InboxBatch { ids, group: None, answer: approve() };
        let refused = world.engine.inbox_answer_all(&world.by, batch).await;
        assert!(matches!(refused, Err(EngineError::Invalid { .. })), "{refused:?}");
    }
    world.engine.session_cancel(&world.by, later).await.unwrap();
    runs.push(later);
    for run in &runs {
        world.ended(*run).await;
    }
    world.check(&runs).await;
}

#[tokio::test]
async fn a_rule_is_proposed_after_enough_equal_approvals_without_a_denial() {
    let same = || [shell("git push"), says("end")];
    let replies = [same(), same(), [shell("git pull"), says("end")], same(), same()];
    let world = world(replies.into_iter().flatten()).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let mut runs = Vec::new();
    let mut answer = async |answer: InboxAnswer| {
        let run = world.run(&agent, "push").await;
        let item = waits(&world, run).await;
        world.engine.inbox_answer(&world.by, item.id, answer).await.unwrap();
        world.ended(run).await;
        runs.push(run);
        world.engine.inbox_proposals(&world.by).await.unwrap()
    };
    assert_eq!(answer(approve()).await, []);
    assert_eq!(answer(approve()).await, []);
    assert_eq!(answer(approve()).await, [], "another command is not equal");
    let proposed = answer(approve()).await;
    let [proposal] = &proposed[..] else { panic!("{proposed:?}") };
    assert_eq!(proposal.items.len(), 3);
    assert_eq!(proposal.rule, r#"allow run_shell {"command":"git push"}"#);
    assert_eq!(answer(deny("no more")).await, [], "somebody minds");
    world.check(&runs).await;
}

#[tokio::test]
async fn a_fork_at_a_question_has_its_own_item() {
    let world =
        world([calls(&[("look", json!({}))]), ask("Which?"), says("end"), says("end")]).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "go").await;
    let item = waits(&world, run).await;
    let steps = world.engine.session_fetch(&world.by, run).await.unwrap().steps;
    let draft = ForkDraft { at: steps, ..ForkDraft::default() };
    let fork = world.engine.session_fork(&world.by, run, draft).await.unwrap();
    assert_eq!(fork.status, SessionStatus::AwaitingInput);
    let own = waits(&world, fork.id).await;
    assert_ne!(own.id, item.id);
    assert_eq!(open(&world).await.len(), 2);
    world.engine.inbox_answer(&world.by, own.id, words("that")).await.unwrap();
    world.ended(fork.id).await;
    assert_eq!(open(&world).await, std::slice::from_ref(&item));
    world.engine.inbox_answer(&world.by, item.id, words("this")).await.unwrap();
    world.ended(run).await;
    world.check(&[run, fork.id]).await;
}

/// Sessions that ask many times, humans who answer, deny and cancel in any order, and an observer
/// who looks all the while: at no moment does a session wait without its item.
#[tokio::test]
async fn a_waiting_session_always_has_its_item() {
    const SESSIONS: usize = 40;
    let replies = (0..SESSIONS * 8).map(|n| match n % 4 {
        0 => shell("deploy"),
        1 => ask("Which?"),
        2 => calls(&[("look", json!({"n": n}))]),
        _ => says("end"),
    });
    let world = world(replies).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let runs = join_all((0..SESSIONS).map(|_| world.run(&agent, "go"))).await;
    let looks = std::sync::atomic::AtomicUsize::new(0);
    let observer = async {
        loop {
            // One statement, so one moment.
            assert_eq!(world.store.inbox_missing(None, 100).await.unwrap(), []);
            looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    };
    let humans = async {
        let mut turn = 0_u32;
        loop {
            let items = open(&world).await;
            let answers = items.iter().map(|item| {
                turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let (turn, world) = (turn >> 16, &world);
                async move {
                    let answer = match item.kind {
                        InboxKind::Approval if turn % 3 == 0 => deny("no"),
                        InboxKind::Approval => approve(),
                        InboxKind::Question | InboxKind::Raise | InboxKind::Work => words("this"),
                    };
                    if turn % 17 == 0 {
                        let _ = world.engine.session_cancel(&world.by, item.session.unwrap()).await;
                    }
                    // Twice, because one caller is always late.
                    let _ = world.engine.inbox_answer(&world.by, item.id, answer.clone()).await;
                    assert!(world.engine.inbox_answer(&world.by, item.id, answer).await.is_err());
                }
            });
            join_all(answers).await;
            let left = join_all(runs.iter().map(|run| world.engine.session_fetch(&world.by, *run)));
            if left.await.iter().all(|row| row.as_ref().unwrap().status.is_terminal()) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let all = async {
        tokio::select! {
            () = observer => unreachable!("it never ends"),
            () = humans => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("they all end");
    assert!(looks.into_inner() > 10);
    assert_eq!(open(&world).await, [], "no ended session has an open item");
    assert!(items(&world, InboxQuery::default()).await.len() > SESSIONS);
    world.check(&runs).await;
}
