//! Recovery of a session whose process died.

use std::time::Duration;

use overmind_core::agent::OnUnknown;
use overmind_core::model::ToolChoice;
use overmind_core::row::SessionStatus;
use overmind_core::session::{Input, Refusal};
use serde_json::json;

use crate::world::{Reply, World, call, calls, exited, model, model_failure, ok, rules, says};

const ALL: [OnUnknown; 3] = [OnUnknown::Ask, OnUnknown::Retry, OnUnknown::Report];

/// A session with a running `tool`, of a model or of the rules.
fn with_tool(tool: &str, by_model: bool, on_unknown: OnUnknown) -> World {
    let task = match tool {
        "read_file" => "read:a",
        "write_file" => "write:a:b",
        "run_shell" => "shell:make",
        other => panic!("no task for {other}"),
    };
    if !by_model {
        return rules(task).on_unknown(on_unknown).start();
    }
    let mut w = model().on_unknown(on_unknown).start();
    w.model(call("a", tool, json!({"n": 1})));
    w
}

#[test]
fn repeatable_effects_are_repeated_with_their_old_id() {
    for tool in ["read_file", "write_file"] {
        for by_model in [false, true] {
            for on_unknown in ALL {
                let mut w = with_tool(tool, by_model, on_unknown);
                let id = w.flights.values().next().unwrap().id;
                w.kinds();
                w.crash();
                assert_eq!(w.kinds(), ["run.recovered", "effect.redone"]);
                assert_eq!(w.flights.values().next().unwrap().id, id, "the same idempotency key");
                assert_eq!(w.session.row().epoch, 2);
                w.tool(tool, ok(json!({})));
                w.help();
                assert_eq!(w.status(), SessionStatus::Succeeded);
            }
        }
    }
}

#[test]
fn an_agent_with_repeatable_commands_repeats_them() {
    for by_model in [false, true] {
        let mut w = with_tool("run_shell", by_model, OnUnknown::Retry);
        w.kinds();
        w.crash();
        assert_eq!(w.kinds(), ["run.recovered", "effect.redone"]);
        w.tool("run_shell", exited(0));
        w.help();
        assert_eq!(w.status(), SessionStatus::Succeeded);
    }
}

#[test]
fn a_lost_result_is_reported_to_the_model_and_fails_the_rules() {
    let mut w = with_tool("run_shell", true, OnUnknown::Report);
    w.crash();
    assert_eq!(w.running(), ["model"]);
    assert!(w.told().contains("unknown_outcome"), "{}", w.told());
    w.model(says("it was done"));
    w.succeeded("it was done");

    let mut w = with_tool("run_shell", false, OnUnknown::Report);
    w.crash();
    w.failed("unknown_outcome");
}

#[test]
fn a_question_about_a_lost_result_names_the_action() {
    for by_model in [false, true] {
        let mut w = with_tool("run_shell", by_model, OnUnknown::Ask);
        w.kinds();
        w.crash();
        assert_eq!(w.kinds(), ["run.recovered", "run.awaiting_input"]);
        assert_eq!(
            (w.status(), w.asked.as_str()),
            (SessionStatus::AwaitingInput, "unknown_outcome")
        );
        let prompt = w.session.row().prompt.clone().unwrap();
        assert!(prompt.contains("`run_shell`") && prompt.contains("`retry`"), "{prompt}");
        assert!(w.flights.is_empty());
        assert_eq!(w.step(1).finished_at, None, "the step is open until someone knows");
    }
}

#[test]
fn the_answer_retry_repeats_the_action_in_the_same_step() {
    for by_model in [false, true] {
        for word in ["retry", " Again "] {
            let mut w = with_tool("run_shell", by_model, OnUnknown::Ask);
            w.crash();
            w.answer(word);
            assert_eq!(w.running(), ["run_shell"]);
            w.tool("run_shell", exited(0));
            w.help();
            assert_eq!(w.status(), SessionStatus::Succeeded);
            assert_eq!(w.session.row().steps, 3, "plan, tool, answer");
        }
    }
}

#[test]
fn the_answer_done_continues_as_if_it_had_succeeded() {
    for by_model in [false, true] {
        for word in ["done", "OK", "skip"] {
            let mut w = with_tool("run_shell", by_model, OnUnknown::Ask);
            w.crash();
            w.answer(word);
            assert_eq!(w.step(1).error, None);
            w.help();
            assert_eq!(w.status(), SessionStatus::Succeeded);
        }
    }
}

#[test]
fn any_other_answer_is_given_to_the_model_and_fails_the_rules() {
    let mut w = with_tool("run_shell", true, OnUnknown::Ask);
    w.crash();
    w.answer("half of it");
    assert!(w.told().contains("a human said: half of it"), "{}", w.told());
    assert!(w.step(1).error.is_some());

    let mut w = with_tool("run_shell", false, OnUnknown::Ask);
    w.crash();
    w.answer("half of it");
    w.failed("unknown_outcome");
}

#[test]
fn a_batch_continues_where_the_crash_interrupted_it() {
    let mut w = model().start();
    w.model(calls([
        ("a", "read_file", json!({"n": 1})),
        ("b", "read_file", json!({"n": 2})),
        ("c", "run_shell", json!({"command": "make"})),
        ("d", "read_file", json!({"n": 3})),
    ]));
    w.tool("read_file", ok(json!({"n": 1})));
    w.crash();
    assert_eq!(w.running(), ["read_file"], "only what had no result is done again");
    w.tool("read_file", ok(json!({"n": 2})));
    assert_eq!(w.running(), ["run_shell"]);
    w.crash();
    assert_eq!(w.status(), SessionStatus::AwaitingInput);
    w.crash();
    w.answer("done");
    assert_eq!(w.running(), ["read_file"]);
    w.crash();
    w.tool("read_file", ok(json!({"n": 3})));
    assert_eq!(w.running(), ["model"]);
    assert_eq!(w.request().messages.len(), 2 + 4);
}

#[test]
fn a_model_is_asked_again_with_the_same_request() {
    let mut w = model().start();
    let asked = w.request().clone();
    let number = *w.flights.keys().next().unwrap();
    w.kinds();
    w.crash();
    assert_eq!(w.kinds(), ["run.recovered", "model.infer.started"]);
    assert_eq!(w.request(), &asked);
    assert_eq!(*w.flights.keys().next().unwrap(), number);

    w.model(says(""));
    assert_eq!(w.request().tool_choice, ToolChoice::Required);
    let nudged = w.request().clone();
    w.crash();
    assert_eq!(w.request(), &nudged, "a nudge keeps its force");
    w.model(model_failure(true));
    w.crash();
    w.answer("again");
    assert_eq!(w.request(), &nudged);
}

#[test]
fn a_session_that_waits_for_a_person_still_waits_after_a_crash() {
    let mut w = model().approvals(&["run_shell"]).start();
    w.model(call("q", "ask_user", json!({"message": "well?"})));
    w.crash();
    assert_eq!(w.refused(&w.recovered()), Refusal::NotRunning);
    w.answer("well");
    w.model(call("a", "run_shell", json!({})));
    w.crash();
    assert_eq!(w.status(), SessionStatus::AwaitingApproval);
    w.decide(true);
    assert_eq!(w.running(), ["run_shell"]);
}

#[test]
fn an_approved_command_with_a_lost_result_runs_again_only_if_a_person_says_so() {
    let mut w = model().approvals(&["run_shell"]).start();
    w.model(call("a", "run_shell", json!({"command": "make"})));
    w.decide(true);
    w.crash();
    assert_eq!(w.asked, "unknown_outcome");
    w.answer("retry");
    assert_eq!(w.running(), ["run_shell"]);
    assert_eq!(w.count("approval.requested"), 1);
}

#[test]
fn a_session_that_was_never_started_needs_no_recovery() {
    let mut w = rules("shell:id").begin();
    w.crash();
    assert_eq!(w.status(), SessionStatus::Queued);
    assert_eq!(w.refused(&w.recovered()), Refusal::NotRunning);
    w.start();
}

#[test]
fn a_backoff_is_not_repeated_after_a_crash_and_its_attempts_still_count() {
    let mut w = rules("read:a").limits(|l| l.max_attempts = 2).start();
    w.tool("read_file", crate::world::error("timeout"));
    w.crash();
    w.tool("read_file", crate::world::error("timeout"));
    w.failed("timeout");
}

#[test]
fn messages_of_an_older_epoch_are_ignored() {
    let mut w = rules("read:a").start();
    w.crash();
    w.crash();
    let hive = overmind_core::ids::HiveId::LOCAL;
    for epoch in 0..=3 {
        assert_eq!(w.refused(&Input::Recovered { epoch, hive }), Refusal::NotRunning);
        let started = Input::Started { epoch, hive, agent_active: true };
        assert_eq!(w.refused(&started), Refusal::NotQueued);
    }
    let mut w = rules("curl").start();
    for epoch in 0..=1 {
        let stale = Input::Answered { message: "x".into(), by: "ann".into(), epoch, hive };
        assert_eq!(w.refused(&stale), Refusal::NotAwaitingInput);
    }
    w.answer("curl http://a.example");
}

#[test]
fn the_time_of_an_attempt_that_a_crash_ended_is_not_counted() {
    let mut w = rules("read:a").limits(|l| l.max_seconds = 10).start();
    w.wait(9);
    w.crash();
    assert_eq!(w.session.deadline(), Some(w.now.after(Duration::from_secs(10))));
}

#[test]
fn a_result_of_the_previous_attempt_belongs_to_the_same_effect() {
    // Same id, same effect: pure and idempotent effects do not mind which run answers. The
    // engine refuses reports of older epochs before they come here.
    let mut w = rules("read:a").start();
    let (effect, outcome) = (*w.flights.keys().next().unwrap(), ok(json!({"content": "x"})));
    w.crash();
    w.feed(Input::ToolDone { effect, outcome, latency_ms: 1 });
    w.succeeded("x");
}

#[test]
fn a_model_reply_of_the_previous_attempt_counts_once() {
    let mut w = model().start();
    let effect = *w.flights.keys().next().unwrap();
    w.crash();
    w.model(call("a", "read_file", json!({})));
    let reply = Reply::from(says("late")).0;
    assert_eq!(w.refused(&Input::ModelDone { effect, reply, latency_ms: 1 }), Refusal::Stale);
}

#[test]
fn calls_delayed_by_a_shutdown_start_after_the_next_start_without_a_question() {
    for on_unknown in ALL {
        for by_model in [false, true] {
            let setup = if by_model { model() } else { rules("shell:make") };
            let mut w = setup.on_unknown(on_unknown).begin();
            let step = if by_model {
                w.start();
                w.model(call("a", "run_shell", json!({"command": "make"})))
            } else {
                w.start()
            };
            w.kinds();
            w.hand_over(&step);
            assert!(w.flights.is_empty());
            assert_eq!(w.status(), SessionStatus::Running, "it is not the session's doing");
            assert_eq!(w.session.deadline(), None, "and not its time");
            w.crash();
            assert_eq!(w.kinds(), ["run.handed_over", "run.recovered"]);
            assert_eq!(w.running(), ["run_shell"]);
            w.tool("run_shell", exited(0));
            w.help();
            assert_eq!(w.status(), SessionStatus::Succeeded);
            assert_eq!(w.session.row().steps, 3, "plan, tool, answer");
        }
    }
}

#[test]
fn a_shutdown_delays_new_calls_and_a_crash_hides_results_of_running_ones() {
    let mut w = model().approvals(&["run_shell"]).start();
    w.model(calls([("a", "read_file", json!({})), ("b", "run_shell", json!({"command": "make"}))]));
    w.tool("read_file", ok(json!({})));
    let step = w.decide(true);
    w.hand_over(&step);
    w.crash();
    assert_eq!(w.running(), ["run_shell"], "its grant was not used: it holds");
    assert_eq!(w.count("approval.requested"), 1);
    w.crash();
    assert_eq!(w.asked, "unknown_outcome", "this time it had begun");
    w.answer("done");
    w.help();
    w.rebuild();
}

#[test]
fn a_drained_session_can_be_canceled_and_drained_again() {
    let mut w = rules("shell:make").begin();
    let step = w.start();
    w.hand_over(&step);
    w.hand_over(&overmind_core::session::Step::default());
    let mut canceled = w.clone();
    assert!(canceled.cancel().aborted.is_empty(), "nothing of it runs");
    canceled.rebuild();
    w.crash();
    assert_eq!(w.running(), ["run_shell"]);
    let waiting = rules("curl").start();
    let handed_over = Input::HandedOver { not_begun: vec![0] };
    assert_eq!(waiting.refused(&handed_over), Refusal::NotRunning);
}
