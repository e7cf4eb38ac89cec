//! Actions that wait for a human's word.

use overmind_core::ids::ApprovalId;
use overmind_core::row::SessionStatus;
use overmind_core::session::Refusal;
use serde_json::json;

use crate::world::{call, calls, error, exited, model, ok, rules};

#[test]
fn a_gated_tool_waits_until_it_is_granted() {
    let mut w = rules("shell:make").approvals(&["run_shell"]).start();
    assert_eq!(w.status(), SessionStatus::AwaitingApproval);
    assert!(w.flights.is_empty());
    assert_eq!(w.session.row().steps, 1, "no step yet: it may never happen");
    let asked = w.event("approval.requested");
    assert_eq!(
        (&asked["tool_name"], &asked["args"]["command"]),
        (&json!("run_shell"), &json!("make"))
    );
    w.kinds();
    w.wait(3600 * 24);
    w.decide(true);
    assert_eq!(w.kinds(), ["approval.answered", "step.started"]);
    assert_eq!(w.running(), ["run_shell"]);
    w.tool("run_shell", exited(0));
    assert_eq!(w.status(), SessionStatus::Succeeded);
}

#[test]
fn a_grant_applies_to_one_action_only() {
    let mut w = model().approvals(&["run_shell"]).start();
    let make = || ("run_shell", json!({"command": "make"}));
    w.model(calls([("a", make().0, make().1), ("b", make().0, make().1)]));
    let first = w.session.row().approval;
    w.decide(true);
    w.tool("run_shell", exited(0));
    assert_eq!(w.status(), SessionStatus::AwaitingApproval, "the same command asks again");
    assert_ne!(w.session.row().approval, first);
    w.decide(true);
    w.tool("run_shell", exited(0));
    w.model(call("c", make().0, make().1));
    assert_eq!(w.status(), SessionStatus::AwaitingApproval);
}

#[test]
fn an_attempt_that_did_not_start_does_not_ask_twice() {
    let mut w = model().approvals(&["*"]).start();
    w.model(call("a", "run_shell", json!({"command": "make"})));
    w.decide(true);
    w.tool("run_shell", error("sandbox_unavailable"));
    assert_eq!(w.running(), ["run_shell"]);
    assert_eq!(w.count("approval.requested"), 1);
}

#[test]
fn a_model_continues_after_a_denial() {
    let mut w = model().approvals(&["run_shell"]).limits(|l| l.failure_budget = 1).start();
    w.model(call("a", "run_shell", json!({"command": "rm -rf /"})));
    w.kinds();
    w.decide(false);
    assert_eq!(
        w.kinds(),
        [
            "approval.answered",
            "step.started",
            "step.finished",
            "supervisor.decided",
            "model.infer.started",
        ]
    );
    assert!(w.told().contains("ann denied this: too risky"), "{}", w.told());
    assert_eq!(w.step(1).error.as_deref(), Some("ann denied this: too risky"));
}

#[test]
fn the_rules_fail_after_a_denial() {
    let mut w = rules("shell:make").approvals(&["*"]).start();
    w.decide(false);
    w.failed("denied");
    assert_eq!(w.session.row().steps, 2, "plan, and what was denied");
}

#[test]
fn pure_calls_do_not_wait_for_a_gated_call() {
    let mut w = model().approvals(&["write_file"]).start();
    w.model(calls([
        ("a", "read_file", json!({})),
        ("b", "write_file", json!({"path": "x"})),
        ("c", "read_file", json!({"after": true})),
    ]));
    assert_eq!(w.running(), ["read_file"]);
    w.tool("read_file", ok(json!({})));
    assert_eq!(w.status(), SessionStatus::AwaitingApproval);
    w.decide(true);
    assert_eq!(w.running(), ["write_file"]);
    w.tool("write_file", ok(json!({})));
    assert_eq!(w.running(), ["read_file"]);
}

#[test]
fn a_star_gates_every_tool_but_not_messages() {
    let mut w = model().approvals(&["*"]).start();
    w.model(calls([("a", "read_file", json!({})), ("b", "list_files", json!({}))]));
    assert_eq!(w.status(), SessionStatus::AwaitingApproval);
    w.decide(true);
    assert_eq!(w.status(), SessionStatus::Running);
    w.tool("read_file", ok(json!({})));
    assert_eq!(w.status(), SessionStatus::AwaitingApproval);
    w.decide(true);
    w.tool("list_files", ok(json!({})));
    w.model(call("c", "ask_user", json!({"message": "and now?"})));
    assert_eq!(w.status(), SessionStatus::AwaitingInput);
    w.answer("stop");
    w.model(call("d", "final_answer", json!({"message": "stopped"})));
    w.succeeded("stopped");
}

#[test]
fn late_repeated_and_wrong_answers_are_ignored() {
    let mut w = model().approvals(&["run_shell"]).start();
    w.model(call("a", "run_shell", json!({"command": "make"})));
    let asked = w.session.row().approval.unwrap();
    let (wrong, now) = (ApprovalId::from_u128(9), Refusal::NotAwaitingApproval);
    assert_eq!(w.refused(&w.decided(wrong, true)), now);
    assert_eq!(w.refused(&w.answered("yes")), Refusal::NotAwaitingInput);
    let double = w.decided(asked, false);
    w.decide(true);
    assert_eq!(w.refused(&double), now);
    assert_eq!(w.refused(&w.decided(asked, false)), now);
    w.tool("run_shell", exited(0));
    assert_eq!(w.refused(&w.decided(asked, true)), now);
    w.cancel();
    assert_eq!(w.refused(&w.decided(asked, true)), now);
    assert_eq!(now.to_string(), "Run is not awaiting this approval");
}

#[test]
fn invalid_arguments_are_reported_to_the_model_only() {
    let mut w = model().gated(0).approvals(&["*"]).limits(|l| l.failure_budget = 2).start();
    w.model(call("a", "write_file", json!("{\"path\": \"a")));
    assert_eq!(w.status(), SessionStatus::Running, "nobody is asked");
    assert_eq!(w.count("approval.requested"), 0);
    assert_eq!(w.count("tool.failed"), 1);
    assert!(w.told().contains("it is cut"), "{}", w.told());
    assert_eq!(w.step(1).error.as_deref(), Some("it is cut"));
    // A valid retry succeeds, and an invalid one counts.
    w.model(call("b", "write_file", json!([1])));
    w.failed("failure_budget_exhausted");
    let mut w = model().gated(0).start();
    w.model(call("a", "write_file", json!("{")));
    w.model(call("b", "write_file", json!({"path": "a"})));
    assert_eq!(w.running(), ["write_file"]);
}
