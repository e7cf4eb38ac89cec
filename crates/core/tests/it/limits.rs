//! Budgets: steps, time, failures, and going in circles.

use std::time::Duration;

use overmind_core::row::SessionStatus;
use overmind_core::session::{Input, Refusal};
use serde_json::json;

use crate::world::{World, call, calls, error, exited, model, ok, rules, says};

#[test]
fn a_limit_of_one_step_ends_after_the_plan() {
    let mut w = rules("shell:id").step_limit(1).start();
    assert_eq!(
        w.kinds(),
        [
            "run.queued",
            "run.started",
            "step.started",
            "step.finished",
            "run.step_limit_reached",
            "run.failed",
        ]
    );
    w.failed("step_limit");
    assert!(w.flights.is_empty(), "no tool began");
}

#[test]
fn a_limit_of_two_steps_allows_the_tool_call() {
    let mut w = rules("write:a:b").step_limit(2).start();
    w.kinds();
    w.tool("write_file", ok(json!({"bytes": 1})));
    assert_eq!(w.kinds(), ["tool.called", "step.finished", "run.step_limit_reached", "run.failed"]);
    w.failed("step_limit");
    assert_eq!(w.session.row().steps, 2);
    assert_eq!(w.step(1).error, None, "the tool's own result stays good");
}

#[test]
fn a_limit_of_three_steps_allows_a_complete_run() {
    let mut w = rules("read:a").step_limit(3).start();
    w.tool("read_file", ok(json!({"content": "x"})));
    w.succeeded("x");
}

#[test]
fn a_limit_within_a_batch_stops_the_running_calls() {
    let mut w = model().step_limit(3).start();
    w.model(calls([("a", "read_file", json!({})), ("b", "run_shell", json!({"command": "x"}))]));
    let step = w.tool("read_file", ok(json!({})));
    assert_eq!(step.effects.len(), 1);
    w.tool("run_shell", exited(0));
    w.model(call("c", "read_file", json!({})));
    w.failed("step_limit");

    let mut w = model().step_limit(2).start();
    let step = w.model(calls([("a", "read_file", json!({})), ("b", "list_files", json!({}))]));
    w.failed("step_limit");
    assert!(step.effects.is_empty(), "what the end overtakes never begins");
    assert!(step.aborted.is_empty(), "and needs no stopping");
    assert_eq!(w.step(1).error.as_deref(), Some("the session reached its limit of 2 steps"));
}

#[test]
fn a_limit_stops_other_running_calls() {
    let mut w = model().step_limit(4).start();
    let read = |id| (id, "read_file", json!({"id": id}));
    w.model(calls([read("a"), read("b"), ("v", "verify", json!({"on_fail_prompt": "go on?"}))]));
    assert_eq!(w.running().len(), 3);
    let step = w.feed(Input::TimeLimit);
    assert_eq!(step.aborted.len(), 3);
    w.failed("time_limit");
}

#[test]
fn time_counts_only_while_the_session_runs() {
    let mut w = model().limits(|l| l.max_seconds = 100).start();
    let started = w.now;
    assert_eq!(w.session.deadline(), Some(started.after(Duration::from_secs(100))));
    w.wait(30);
    w.model(call("q", "ask_user", json!({"message": "well?"})));
    assert_eq!(w.session.deadline(), None);
    assert_eq!(w.refused(&Input::TimeLimit), Refusal::NotRunning);
    w.wait(1_000_000);
    w.answer("yes");
    assert_eq!(w.session.deadline(), Some(w.now.after(Duration::from_secs(70))));
    w.wait(70);
    w.kinds();
    let step = w.feed(Input::TimeLimit);
    assert_eq!(w.kinds(), ["run.time_limit_reached", "run.failed"]);
    assert_eq!(step.aborted.len(), 1, "the model request is stopped");
    w.failed("time_limit");
}

#[test]
fn an_agent_without_a_time_limit_has_no_deadline() {
    let w = model().limits(|l| l.max_seconds = 0).start();
    assert_eq!(w.session.deadline(), None);
}

#[test]
fn a_series_of_failures_ends_the_session_and_a_success_resets_the_count() {
    let mut w = model().limits(|l| l.failure_budget = 2).start();
    for n in 0..4 {
        w.model(call(&format!("f{n}"), "read_file", json!({"n": n})));
        w.tool("read_file", error("not_found"));
        assert!(w.told().contains("1 of 2 failures in a row"), "{}", w.told());
        w.model(call(&format!("g{n}"), "read_file", json!({"good": n})));
        w.tool("read_file", ok(json!({"n": n})));
    }
    for n in 0..2 {
        w.model(call(&format!("h{n}"), "read_file", json!({"n": n})));
        w.tool("read_file", error("not_found"));
    }
    w.failed("failure_budget_exhausted");
    let error = w.session.row().error.as_ref().unwrap();
    assert_eq!(error["last_error"]["code"], "not_found");
}

#[test]
fn an_exhausted_failure_budget_stops_parallel_calls() {
    let mut w = model().limits(|l| l.failure_budget = 1).start();
    w.model(calls([("a", "read_file", json!({})), ("b", "list_files", json!({}))]));
    let step = w.tool("read_file", error("not_found"));
    assert_eq!(step.aborted.len(), 1);
    w.failed("failure_budget_exhausted");
    assert_eq!(w.step(2).error.as_deref(), Some("too many consecutive failed actions"));
}

fn reads_the_same(w: &mut World, times: usize) {
    for _ in 0..times {
        let id = format!("c{}", w.session.row().model_calls);
        w.model(call(&id, "read_file", json!({"path": "a"})));
        w.tool("read_file", ok(json!({"content": "same", "latency_ms": id})));
    }
}

#[test]
fn a_loop_is_reported_twice_and_then_ends_the_session() {
    let mut w = model().start();
    reads_the_same(&mut w, 2);
    assert_eq!(w.count("supervisor.stalled"), 0);
    reads_the_same(&mut w, 1);
    assert_eq!(w.event("supervisor.stalled")["strike"], 1);
    assert!(w.told().starts_with("[supervisor] You are going in circles"), "{}", w.told());
    assert!(w.told().contains("warning 1 of 2"));
    reads_the_same(&mut w, 3);
    assert_eq!(w.event("supervisor.stalled")["strike"], 2);
    assert_eq!(w.status(), SessionStatus::Running);
    reads_the_same(&mut w, 3);
    w.failed("stalled");
    assert_eq!(w.count("supervisor.stalled"), 3);
}

#[test]
fn a_session_that_follows_a_hint_succeeds() {
    let mut w = model().start();
    reads_the_same(&mut w, 3);
    w.model(says("I was going in circles"));
    w.succeeded("I was going in circles");
}

#[test]
fn two_alternating_actions_are_a_loop() {
    let mut w = model().start();
    for n in 0..6 {
        let path = if n % 2 == 0 { "a" } else { "b" };
        w.model(call(&format!("c{n}"), "read_file", json!({"path": path})));
        w.tool("read_file", ok(json!({"content": path})));
    }
    assert_eq!(w.event("supervisor.stalled")["pattern"], "alternate");
}

#[test]
fn the_directive_contains_the_number_of_steps_left() {
    let mut w = model().step_limit(6).start();
    assert_eq!(w.event("supervisor.decided")["directive"]["mode"], "exploration");
    w.model(call("a", "read_file", json!({})));
    w.tool("read_file", error("not_found"));
    let directive = &w.event("supervisor.decided")["directive"];
    assert_eq!(directive["mode"], "recovery");
    assert_eq!(directive["budget"]["remaining_steps_total"], 4);
}
