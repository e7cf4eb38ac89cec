//! Random agents, replies and outcomes.

use overmind_core::agent::OnUnknown;
use overmind_core::model::{ModelCall, ModelReply, StopReason};
use overmind_core::session::STALE_APPROVAL;
use overmind_core::tool::ToolOutcome;
use serde_json::{Value, json};

use super::rng::Rng;
use crate::world::{
    Reply, Setup, TOOLS, calls_of, denied, error, exited, model, model_failure, ok, rules, says,
    stops,
};

pub(super) fn setup(rng: &mut Rng) -> Setup {
    let setup = if rng.one_in(4) {
        let tasks = [
            "shell:make",
            "read:a",
            "write:a:b",
            "recall:notes:x",
            "remember:x",
            "curl",
            "save x to y",
            "nothing that the rules know",
        ];
        let setup = rules(rng.pick(&tasks));
        if rng.one_in(20) { setup.model_name("fail-v1") } else { setup }
    } else {
        // By its name, so that a fork to the rules takes the agent with it.
        let setup = model().by_name();
        if rng.one_in(2) { setup.model_name("tape") } else { setup }
    };
    let step_limit = if rng.one_in(3) { 1 + rng.small(20) } else { 0 };
    let gates: [&[&str]; 4] =
        [&["*"], &["run_shell"], &["write_file", "run_shell"], &["read_file"]];
    let approvals = if rng.one_in(3) { rng.pick(&gates) } else { &[] };
    let seconds = if rng.one_in(2) { 0 } else { 4 + rng.small(20) };
    let setup = match rng.below(4) {
        0 => setup.gated(0),
        1 | 2 => setup.gated(rng.next() | 1),
        _ => setup,
    };
    let (budget, attempts) = (1 + rng.small(5), 1 + rng.small(3));
    let rests = rng.one_in(2);
    setup
        .conversation(rests)
        .step_limit(step_limit)
        .approvals(approvals)
        .on_unknown(rng.pick(&[
            OnUnknown::Ask,
            OnUnknown::Ask,
            OnUnknown::Retry,
            OnUnknown::Report,
        ]))
        .limits(|limits| {
            limits.max_seconds = seconds;
            limits.failure_budget = budget;
            limits.max_attempts = attempts;
        })
}

pub(super) fn reply(rng: &mut Rng) -> Reply {
    match rng.below(100) {
        0..4 => says(rng.pick(&["done", "it is done\nand checked"])).into(),
        4..8 => says(rng.pick(&["", " ", "\n"])).into(),
        10..12 => stops("", StopReason::Refusal).into(),
        12..14 => stops("half", StopReason::MaxTokens).into(),
        14..18 => model_failure(true).into(),
        18 => model_failure(false).into(),
        _ => {
            let n = 1 + rng.below(4);
            let text = rng.pick(&["", "first this"]);
            let mut reply = calls_of(text, (0..n).map(|_| call(rng)).collect());
            if rng.one_in(30) {
                reply.cost_microusd = None;
            }
            if rng.one_in(4) {
                reply.provider_state = Some(json!({"signed": rng.below(9)}));
            }
            if rng.one_in(50) {
                reply.stop = StopReason::MaxTokens;
            }
            reply.into()
        }
    }
}

/// One and the same call.
pub(super) fn same_call(rng: &mut Rng) -> ModelReply {
    let args = json!({"path": "a"});
    calls_of("", vec![named(rng, "read_file", args)])
}

fn call(rng: &mut Rng) -> ModelCall {
    let name = match rng.below(20) {
        0 => "no_such_tool",
        1 => "mcp.web.fetch",
        _ => rng.pick(&TOOLS).0,
    };
    let broken = rng.one_in(15);
    let args = match name {
        // Talk is rarer than work, or schedules would be short.
        "final_answer" if !rng.one_in(4) => return call(rng),
        "final_answer" | "ask_user" => {
            json!({"message": rng.pick(&["so it is", "so it is", "so it is", "", "  "])})
        }
        "verify" if rng.one_in(2) => json!({"checks": [], "on_fail_prompt": "what now?"}),
        "verify" => json!({"checks": [{"type": "file_exists", "path": "a"}]}),
        _ => json!({"n": rng.below(4), "text": "x".repeat(rng.index(60))}),
    };
    let args =
        if broken { rng.pick(&["{\"n\": ", "", "[]"]) } else { return named(rng, name, args) };
    named(rng, name, Value::from(args))
}

/// Providers give every call an id that is new in its conversation.
fn named(rng: &mut Rng, name: &str, args: Value) -> ModelCall {
    ModelCall { id: format!("call_{:016x}", rng.next()), name: name.into(), args }
}

pub(super) fn outcome(rng: &mut Rng, tool: &str, bound: bool) -> ToolOutcome {
    if bound && rng.one_in(4) {
        return error(STALE_APPROVAL);
    }
    if tool == "verify" && rng.one_in(2) {
        return error("verification_failed");
    }
    match rng.below(100) {
        0..8 => error(rng.pick(&["timeout", "network_error", "rate_limited"])),
        8..14 => error(rng.pick(&["sandbox_unavailable", "temporarily_unavailable"])),
        14..19 => error(rng.pick(&["not_found", "bad_args", "size_limit"])),
        19..22 => error(rng.pick(&["tool_error", "mcp_transport_error"])),
        22..24 => denied(tool),
        24..30 => exited(i64::from(1 + rng.small(3))),
        30..32 => ToolOutcome { allowed: true, result: odd().swap_remove(rng.index(6)) },
        40..50 => {
            ok(json!({"score": f64::from(rng.small(u32::MAX)) / 7.0, "latency_ms": rng.below(9)}))
        }
        _ => ok(json!({"n": rng.below(3), "content": "y".repeat(rng.index(60))})),
    }
}

fn odd() -> Vec<Value> {
    vec![
        json!(null),
        json!([1]),
        json!({}),
        json!({"ok": "yes"}),
        json!({"ok": false}),
        json!({"ok": false, "error": "text"}),
    ]
}
