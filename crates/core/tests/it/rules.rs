//! Sessions that the rules decide: one plan, one tool, one answer.

use overmind_core::effect::EffectAction;
use overmind_core::row::{SessionStatus, StepKind};
use overmind_core::session::Refusal;
use serde_json::{Value, json};

use crate::world::{denied, error, exited, ok, rules};

#[test]
fn a_successful_run_writes_its_ten_events_in_order() {
    let mut w = rules("shell:echo hi").start();
    w.tool("run_shell", exited(0));
    assert_eq!(
        w.kinds(),
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
            "run.succeeded",
        ]
    );
    w.succeeded("Tool completed with exit_code=0\nout");
    let kinds: Vec<_> = w.steps.values().map(|step| (step.idx, step.kind)).collect();
    assert_eq!(kinds, [(0, StepKind::Plan), (1, StepKind::Tool), (2, StepKind::Eval)]);
    assert_eq!(w.step(0).output, Some(json!({"ok": true, "note": "no tool"})));
    assert_eq!(w.step(0).input["task"], "shell:echo hi");
    let input = json!({"tool_name": "run_shell", "args": {"command": "echo hi"}});
    assert_eq!(w.step(1).input, input);
    assert_eq!(
        w.step(2).output.as_ref().unwrap()["final_answer"],
        "Tool completed with exit_code=0\nout"
    );
}

#[test]
fn a_tool_call_has_the_arguments_of_its_step_and_its_own_id() {
    let mut w = rules("read:seed.txt").begin();
    let step = w.start();
    let [effect] = &step.effects[..] else { panic!("one effect: {:?}", step.effects) };
    let EffectAction::Tool { name, args, .. } = &effect.action else { panic!("a tool") };
    assert_eq!((name.as_str(), args), ("read_file", &json!({"path": "seed.txt"})));
    assert_eq!(effect.step, Some(w.step(1).id));
    assert_eq!(effect.not_before, None);
}

#[test]
fn a_permanent_tool_failure_ends_the_run_with_its_error() {
    let mut w = rules("read:none.txt").start();
    w.kinds();
    w.tool("read_file", error("not_found"));
    assert_eq!(w.kinds(), ["tool.called", "step.finished", "tool.failed", "run.failed"]);
    w.failed("not_found");
    assert_eq!(w.step(1).error.as_deref(), Some("no good: not_found"));
    assert_eq!(w.event("step.finished")["ok"], false);
}

#[test]
fn a_denied_tool_call_is_recorded_as_denied() {
    let mut w = rules("shell:id").start();
    w.kinds();
    w.tool("run_shell", denied("run_shell"));
    assert_eq!(w.kinds(), ["tool.denied", "step.finished", "tool.failed", "run.failed"]);
    w.failed("tool_not_allowed");
    assert_eq!(w.event("tool.denied")["allowed"], false);
}

#[test]
fn a_command_with_a_non_zero_exit_ends_the_run_with_its_exit_code() {
    let mut w = rules("shell:false").start();
    w.tool("run_shell", exited(7));
    w.failed("tool_failed");
    assert_eq!(w.session.row().error.as_ref().unwrap()["exit_code"], 7);
    assert_eq!(w.step(1).error.as_deref(), Some("the command exited with 7"));
    assert_eq!(w.count("tool.failed"), 0, "it ran: that is a result, not a failure of the tool");
}

#[test]
fn a_missing_model_fails_the_run_after_its_plan() {
    let mut w = rules("shell:id").model_name("fail-v1").start();
    assert_eq!(
        w.kinds(),
        ["run.queued", "run.started", "step.started", "step.finished", "run.failed"]
    );
    w.failed("model_inference_error");
    assert_eq!(
        w.session.row().error.as_ref().unwrap()["message"],
        "model 'fail-v1' is unavailable"
    );
}

#[test]
fn a_disabled_agent_fails_before_its_first_step() {
    let mut w = rules("shell:id").begin();
    w.feed(w.started(false));
    assert_eq!(w.kinds(), ["run.queued", "run.started", "run.failed"]);
    w.failed("agent_disabled");
    assert_eq!(w.session.row().steps, 0);
    assert!(w.session.row().started_at.is_some());
}

#[test]
fn a_task_without_a_url_asks_for_one_and_uses_the_answer() {
    let mut w = rules("curl that page").start();
    assert_eq!(w.status(), SessionStatus::AwaitingInput);
    assert_eq!(w.session.row().prompt.as_deref(), Some("Please provide the full URL to fetch."));
    assert_eq!(w.step(1).kind, StepKind::AskUser);
    assert_eq!(w.step(1).finished_at, None, "the step ends with the answer");
    w.kinds();
    w.answer("curl https://a.example/x");
    assert_eq!(w.kinds(), ["run.input_received", "step.finished", "step.started"]);
    assert_eq!(w.step(1).output.as_ref().unwrap()["answer"], "curl https://a.example/x");
    assert_eq!(w.session.row().task, "curl that page\n\nUser input: curl https://a.example/x");
    assert_eq!(w.step(2).turn, 1);
    assert_eq!(w.step(2).input["args"]["command"], "curl -L --max-time 20 'https://a.example/x'");
    w.tool("run_shell", exited(0));
    assert_eq!(w.status(), SessionStatus::Succeeded);
}

#[test]
fn a_run_starts_once() {
    let w = rules("shell:id").start();
    assert_eq!(w.refused(&w.started(true)), Refusal::NotQueued);
    assert_eq!(w.refused(&w.answered("hello")), Refusal::NotAwaitingInput);
    assert_eq!(w.refused(&w.answered("hello")).to_string(), "Run is not awaiting input");
}

#[test]
fn times_and_directories_are_stored_in_the_row() {
    let mut w = rules("read:a").begin();
    let created = w.now;
    w.wait(5);
    w.start();
    let started = w.now;
    w.wait(2);
    w.tool("read_file", ok(json!({"path": "a", "content": "text"})));
    let row = w.session.row();
    assert_eq!(
        (row.created_at, row.started_at, row.finished_at),
        (created, Some(started), Some(w.now))
    );
    assert_eq!((row.epoch, row.steps, row.model_calls), (1, 3, 0));
    assert_eq!(row.final_answer.as_deref(), Some("text"));
    assert_eq!(w.event("run.succeeded")["final_answer"], Value::from("text"));
}
