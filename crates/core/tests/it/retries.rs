//! Failed attempts, and their consequences.

use std::time::Duration;

use overmind_core::tool::ToolOutcome;
use serde_json::json;

use crate::world::{call, error, exited, model, ok, rules};

#[test]
fn a_transient_failure_is_retried_after_a_delay() {
    let mut w = rules("read:a").start();
    w.kinds();
    let step = w.tool("read_file", error("network_error"));
    assert_eq!(w.kinds(), ["tool.called", "tool.retry", "tool.retry.classified"]);
    let wait = step.effects[0].not_before.expect("a backoff").since(w.now);
    assert!((Duration::from_millis(80)..=Duration::from_millis(120)).contains(&wait), "{wait:?}");
    assert_eq!(w.event("tool.retry")["attempt"], 1);
    assert_eq!(w.event("tool.retry.classified")["category"], "transient");
    w.tool("read_file", ok(json!({"content": "text"})));
    w.succeeded("text");
    assert_eq!(w.session.row().steps, 3, "an attempt is not a step");
}

#[test]
fn retries_are_bounded_with_growing_delays() {
    let mut w = rules("read:a").limits(|l| l.max_attempts = 4).start();
    let mut waits = Vec::new();
    for _ in 0..3 {
        let step = w.tool("read_file", error("timeout"));
        waits.push(step.effects[0].not_before.expect("a backoff").since(w.now));
    }
    assert!(waits.is_sorted() && waits[0] < waits[2], "{waits:?}");
    w.tool("read_file", error("timeout"));
    w.failed("timeout");
    assert_eq!(w.count("tool.retry"), 3);
}

#[test]
fn each_class_of_failure_has_its_own_number_of_retries() {
    for (task, tool, code, again) in [
        ("read:a", "read_file", "timeout", true),
        ("read:a", "read_file", "tool_error", true),
        ("read:a", "read_file", "not_found", false),
        ("read:a", "read_file", "bad_args", false),
        ("read:a", "read_file", "tool_not_allowed", false),
        ("write:a:b", "write_file", "rate_limited", true),
        ("write:a:b", "write_file", "size_limit", false),
        // A command that timed out has run.
        ("shell:id", "run_shell", "timeout", false),
        ("shell:id", "run_shell", "network_error", false),
        ("shell:id", "run_shell", "tool_error", false),
        ("shell:id", "run_shell", "unknown_outcome", false),
        // These report that the call did not start.
        ("shell:id", "run_shell", "docker_unavailable", true),
        ("shell:id", "run_shell", "sandbox_unavailable", true),
        ("shell:id", "run_shell", "temporarily_unavailable", true),
    ] {
        let mut w = rules(task).start();
        let step = w.tool(tool, error(code));
        assert_eq!(step.effects.len(), usize::from(again), "{tool} {code}");
        if again {
            w.tool(tool, error(code));
        }
        w.failed(code);
    }
}

#[test]
fn a_command_with_a_non_zero_exit_is_not_retried() {
    let mut w = model().start();
    w.model(call("a", "run_shell", json!({"command": "make"})));
    w.tool("run_shell", exited(2));
    assert_eq!(w.running(), ["model"]);
    assert!(w.told().contains(r#""exit_code":2"#));
}

#[test]
fn answers_of_unexpected_shapes_are_failures_and_do_not_panic() {
    for result in [
        json!(null),
        json!([]),
        json!("yes"),
        json!({}),
        json!({"ok": "yes"}),
        json!({"ok": false}),
        json!({"ok": false, "error": null}),
        json!({"ok": false, "error": "a text"}),
        json!({"ok": false, "error": {"code": 7}}),
    ] {
        let mut w = model().start();
        w.model(call("a", "run_shell", json!({"command": "make"})));
        w.tool("run_shell", ToolOutcome { allowed: true, result: result.clone() });
        assert_eq!(w.running(), ["model"], "{result}");
        assert!(w.step(1).error.is_some(), "{result}");
        let mut w = rules("shell:id").start();
        w.tool("run_shell", ToolOutcome { allowed: true, result: result.clone() });
        assert!(w.status().is_terminal() && w.session.row().error.is_some(), "{result}");
    }
}

#[test]
fn a_repeated_result_counts_once() {
    let mut w = model().start();
    let effect = *w.flights.keys().next().unwrap();
    w.model(call("a", "read_file", json!({"path": "a"})));
    let again = crate::world::Reply::from(call("b", "run_shell", json!({}))).0;
    w.refused(&overmind_core::session::Input::ModelDone { effect, reply: again, latency_ms: 1 });
    let effect = *w.flights.keys().next().unwrap();
    w.tool("read_file", error("timeout"));
    let done = |effect| overmind_core::session::Input::ToolDone {
        effect,
        outcome: ok(json!({})),
        latency_ms: 1,
    };
    w.refused(&done(effect));
    w.refused(&done(effect + 100));
    let effect = *w.flights.keys().next().unwrap();
    w.feed(done(effect));
    w.refused(&done(effect));
}

#[test]
fn a_result_of_the_wrong_type_is_ignored() {
    let mut w = model().start();
    let effect = *w.flights.keys().next().unwrap();
    w.refused(&overmind_core::session::Input::ToolDone {
        effect,
        outcome: ok(json!({})),
        latency_ms: 1,
    });
    w.model(call("a", "read_file", json!({"path": "a"})));
    let effect = *w.flights.keys().next().unwrap();
    let reply = crate::world::Reply::from(crate::world::says("done")).0;
    w.refused(&overmind_core::session::Input::ModelDone { effect, reply, latency_ms: 1 });
}
