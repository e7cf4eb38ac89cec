//! Cancel wins in every phase, and later inputs have no effect.

use overmind_core::row::SessionStatus;
use overmind_core::session::{Input, Refusal};
use serde_json::json;

use crate::world::{World, call, calls, error, model, model_failure, rules};

/// Every phase a session can be in, by a name, with how many effects are under way.
pub(crate) fn every_phase() -> Vec<(&'static str, World, usize)> {
    let mut all = vec![
        ("queued", rules("shell:id").begin(), 0),
        ("a tool of the rules", rules("shell:id").start(), 1),
        ("a question of the rules", rules("curl").start(), 0),
        ("an approval of the rules", rules("shell:id").approvals(&["*"]).start(), 0),
        ("a model request", model().start(), 1),
    ];

    let mut w = model().start();
    w.model(calls([("a", "read_file", json!({})), ("b", "list_files", json!({}))]));
    all.push(("two tools at once", w, 2));

    let mut w = model().start();
    w.model(call("a", "read_file", json!({})));
    w.tool("read_file", error("timeout"));
    all.push(("a tool that is tried again", w, 1));

    let mut w = model().start();
    w.model(calls([("a", "ask_user", json!({"message": "?"})), ("b", "run_shell", json!({}))]));
    all.push(("a question of the model", w, 0));

    let mut w = model().start();
    w.model(calls([
        ("a", "verify", json!({"on_fail_prompt": "?"})),
        ("b", "read_file", json!({})),
    ]));
    w.tool("verify", error("verification_failed"));
    all.push(("a question about a check", w, 0));

    let mut w = model().start();
    w.model(model_failure(true));
    all.push(("a model that cannot be reached", w, 0));

    let mut w = model().start();
    w.model(calls([("a", "run_shell", json!({})), ("b", "read_file", json!({}))]));
    w.crash();
    all.push(("an unknown outcome", w, 0));

    let mut w = model().approvals(&["run_shell"]).start();
    w.model(calls([("a", "run_shell", json!({})), ("b", "run_shell", json!({}))]));
    all.push(("an approval of the model", w, 0));

    let mut w = rules("shell:id").begin();
    let step = w.start();
    w.hand_over(&step);
    all.push(("handed over at a shutdown", w, 0));

    let mut w = model().start();
    w.model(call("a", "read_file", json!({})));
    all.push(("a fork that is not started", w.fork(1, None, None), 0));
    all
}

#[test]
fn cancel_ends_a_session_at_once_in_every_phase() {
    for (phase, mut w, under_way) in every_phase() {
        w.kinds();
        let results: Vec<_> = w.flights.iter().map(|(n, f)| (*n, f.tool().is_some())).collect();
        let step = w.cancel();
        assert_eq!(w.status(), SessionStatus::Canceled, "{phase}");
        assert_eq!(step.aborted.len(), under_way, "{phase}");
        assert!(step.effects.is_empty(), "{phase}");
        let kinds = w.kinds();
        assert_eq!(kinds[0], "run.canceled", "{phase}");
        assert!(kinds[1..].iter().all(|kind| *kind == "step.finished"), "{phase}: {kinds:?}");
        assert_eq!(w.session.row().error, None, "{phase}");
        for (effect, tool) in results {
            let late = if tool {
                let outcome = crate::world::ok(json!({}));
                Input::ToolDone { effect, outcome, latency_ms: 1 }
            } else {
                let reply = crate::world::Reply::from(crate::world::says("late")).0;
                Input::ModelDone { effect, reply, latency_ms: 1 }
            };
            assert_eq!(w.refused(&late), Refusal::Stale, "{phase}");
        }
        let again = w.refused(&Input::Canceled { by: "bob".into(), reason: None });
        assert_eq!(again.to_string(), "Run is already finished", "{phase}");
        for late in [w.started(true), w.recovered(), Input::TimeLimit, Input::Forked] {
            assert_eq!(w.refused(&late), Refusal::Finished, "{phase}");
        }
        assert_eq!(w.refused(&w.answered("late")), Refusal::NotAwaitingInput, "{phase}");
        w.rebuild();
    }
}

#[test]
fn a_session_succeeds_from_every_phase_once_its_effects_complete() {
    for (phase, mut w, _) in every_phase() {
        w.help();
        assert!(
            matches!(w.status(), SessionStatus::Succeeded),
            "{phase}: {:?}",
            w.session.row().error
        );
        w.rebuild();
    }
}

#[test]
fn a_session_ends_after_a_crash_in_any_phase() {
    for (phase, mut w, _) in every_phase() {
        for _ in 0..3 {
            w.crash();
        }
        w.help();
        assert!(w.status().is_terminal(), "{phase}");
        w.rebuild();
    }
}

#[test]
fn an_automatic_cancel_has_a_reason_which_replay_reproduces() {
    for (phase, mut w, _) in every_phase() {
        let reason = "scaled away by fleet/web".to_owned();
        w.feed(Input::Canceled { by: "system".into(), reason: Some(reason.clone()) });
        assert_eq!(w.status(), SessionStatus::Canceled, "{phase}");
        let error = w.session.row().error.clone();
        assert_eq!(error, Some(json!({"code": "canceled", "message": reason})), "{phase}");
        w.rebuild();
        assert_eq!(w.session.row().error, error, "{phase}");
    }
}
