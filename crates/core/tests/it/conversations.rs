//! Sessions that are idle after their answer, and continue with the next message.

use overmind_core::model::Message;
use overmind_core::row::SessionStatus;
use overmind_core::session::Refusal;
use serde_json::json;

use crate::world::{call, calls, model, ok, rules, says};

#[test]
fn a_conversation_is_idle_after_its_answer_and_costs_nothing() {
    let mut w = model().conversation(true).start();
    w.model(says("mended"));
    let row = w.session.row();
    assert_eq!(row.status, SessionStatus::Idle);
    assert_eq!((row.final_answer.as_deref(), row.finished_at), (Some("mended"), None));
    assert!(w.session.waiting().is_none(), "nothing in the inbox");
    assert!(w.session.due().is_none() && w.flights.is_empty(), "nothing is due or under way");
    w.rebuild();
}

#[test]
fn the_next_message_starts_the_next_turn_of_the_conversation() {
    let mut w = model().conversation(true).start();
    w.model(calls([
        ("a", "read_file", json!({"path": "a"})),
        ("b", "final_answer", json!({"message": "mended"})),
    ]));
    w.tool("read_file", ok(json!({})));
    assert_eq!(w.status(), SessionStatus::Idle);
    w.feed(w.told_more("and add a test for it"));
    assert_eq!(w.told(), "and add a test for it");
    let said: Vec<_> = w
        .request()
        .messages
        .iter()
        .filter_map(|message| match message {
            Message::User { text } => Some(text.as_str()),
            Message::Assistant { .. } | Message::Tool { .. } => None,
        })
        .collect();
    assert_eq!(said, ["mend the test", "and add a test for it"]);
    w.model(call("c", "final_answer", json!({"message": "added"})));
    assert_eq!(w.session.row().final_answer.as_deref(), Some("added"));
    w.rebuild();
}

#[test]
fn stopping_an_idle_session_succeeds_and_a_message_continues_it() {
    let mut w = model().conversation(true).start();
    w.model(says("mended"));
    w.feed(w.stopped());
    w.succeeded("mended");
    assert_eq!(w.refused(&w.stopped()), Refusal::Finished);
    w.feed(w.told_more("once more"));
    assert_eq!((w.status(), w.told().as_str()), (SessionStatus::Running, "once more"));
    let row = w.session.row();
    assert_eq!((row.finished_at, row.final_answer.as_deref()), (None, None));
    w.model(says("again"));
    assert_eq!(w.status(), SessionStatus::Idle);
    w.rebuild();
}

#[test]
fn a_message_continues_an_ended_session_whatever_its_end() {
    let mut w = model().start();
    w.model(says("mended"));
    w.succeeded("mended");
    w.feed(w.told_more("and now?"));
    assert_eq!(w.told(), "and now?");
    w.cancel();
    w.feed(w.told_more("go on"));
    assert_eq!(w.told(), "go on");
    w.model(says("well"));
    w.succeeded("well");
    w.rebuild();
}

#[test]
fn an_ended_conversation_is_restored_to_idle_without_a_step() {
    let mut w = model().conversation(true).start();
    assert_eq!(w.refused(&w.restored()), Refusal::Stale);
    w.model(call("a", "read_file", json!({"path": "a"})));
    w.cancel();
    let steps = w.session.row().steps;
    let stale = w.restored();
    w.feed(stale.clone());
    assert_eq!((w.status(), w.session.row().steps), (SessionStatus::Idle, steps));
    assert!(w.flights.is_empty() && w.session.row().finished_at.is_none());
    assert_eq!(w.refused(&stale), Refusal::Stale, "nothing is brought back twice");
    w.cancel();
    assert_eq!(w.refused(&stale), Refusal::Stale, "an order of an earlier end means nothing");
    w.feed(w.restored());
    w.feed(w.told_more("go on"));
    assert_eq!(w.told(), "go on");
    w.model(says("well"));
    w.rebuild();
}

#[test]
fn a_session_that_ended_before_its_start_starts_when_it_is_restored() {
    let mut w = model().conversation(true).begin();
    w.cancel();
    w.feed(w.restored());
    assert_eq!((w.status(), w.told().as_str()), (SessionStatus::Running, "mend the test"));
    w.model(says("mended"));
    assert_eq!(w.status(), SessionStatus::Idle);
    w.rebuild();
}

#[test]
fn a_message_during_a_model_call_is_in_the_next_turn() {
    let mut w = model().conversation(true).start();
    w.feed(w.told_more("use tabs"));
    w.model(call("a", "read_file", json!({"path": "a"})));
    w.tool("read_file", ok(json!({})));
    assert_eq!(w.told(), "The user says: use tabs");
    w.rebuild();
}

#[test]
fn steps_are_counted_separately_for_each_message() {
    let mut w = model().conversation(true).step_limit(2).start();
    for n in 0..3 {
        w.model(says("done"));
        assert_eq!(w.status(), SessionStatus::Idle, "round {n}");
        w.feed(w.told_more("again"));
    }
    w.model(call("a", "read_file", json!({"path": "a"})));
    w.tool("read_file", ok(json!({})));
    w.model(says("too much"));
    w.failed("step_limit");
}

#[test]
fn rules_decide_on_the_next_message() {
    let mut w = rules("read:a").conversation(true).start();
    w.tool("read_file", ok(json!({"content": "x"})));
    assert_eq!(w.status(), SessionStatus::Idle);
    w.feed(w.told_more("read:b"));
    assert_eq!(w.running(), ["read_file"]);
    w.rebuild();
}

#[test]
fn a_waiting_or_queued_session_refuses_messages() {
    let mut w = model().conversation(true).start();
    w.model(call("a", "ask_user", json!({"message": "which?"})));
    assert_eq!(w.refused(&w.told_more("x")), Refusal::NotResting);
    let queued = model().conversation(true).begin();
    assert_eq!(queued.refused(&queued.told_more("x")), Refusal::NotResting);
}
