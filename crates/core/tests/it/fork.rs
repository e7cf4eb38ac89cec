//! Forks: a session's beginning, repeated without its effects, and a different end.

use overmind_core::row::SessionStatus;
use overmind_core::session::given::GivenContext;
use overmind_core::session::{Input, Refusal};
use serde_json::json;

use crate::world::{World, call, calls, exited, model, ok, rules, says};

/// Plan, two reads, a command, an answer: five steps.
fn original() -> World {
    let mut w = model().start();
    w.model(calls([("a", "read_file", json!({"n": 1})), ("b", "read_file", json!({"n": 2}))]));
    w.tool("read_file", ok(json!({"n": 1})));
    w.tool("read_file", ok(json!({"n": 2})));
    w.model(call("c", "run_shell", json!({"command": "make"})));
    w.tool("run_shell", exited(0));
    w.model(says("done"));
    w.succeeded("done");
    assert_eq!(w.session.row().steps, 5);
    w
}

#[test]
fn a_fork_at_every_step_repeats_that_step_and_succeeds() {
    let original = original();
    for at in 0..5 {
        let mut fork = original.fork(at, None, None);
        let row = fork.session.row();
        assert_eq!(row.status, SessionStatus::Queued, "at {at}");
        assert!(row.steps <= at, "at {at}: the fork has steps {} already", row.steps);
        assert_eq!(row.forked_from, Some((original.session.row().id, at)));
        assert_eq!((row.started_at, row.model_calls, row.cost_microusd), (None, 0, Some(0)));
        assert_eq!(row.usage.input_tokens, 0, "the original paid for its own part");
        assert!(fork.flights.is_empty(), "nothing begins before the fork is started");
        fork.rebuild();
        fork.start();
        fork.rebuild();
        fork.help();
        assert_eq!(fork.status(), SessionStatus::Succeeded, "at {at}");
        fork.rebuild();
    }
}

#[test]
fn context_texts_reach_the_model_of_a_session_and_of_its_fork() {
    let given = GivenContext {
        name: "tone".into(),
        generation: 1,
        values: std::collections::BTreeMap::new(),
        prompt: "Answer in one line.".into(),
        files: std::collections::BTreeMap::new(),
    };
    let mut w = model().contexts(vec![given]).start();
    assert!(w.request().system.ends_with("\n\nAnswer in one line."), "{}", w.request().system);
    w.model(says("done"));
    w.succeeded("done");
    let mut fork = w.fork(0, None, Some("breaks things"));
    fork.start();
    assert!(fork.request().system.contains("breaks things"));
    assert!(fork.request().system.ends_with("Answer in one line."));
}

#[test]
fn overrides_apply_from_the_fork_on_only() {
    let original = original();
    let first = original.event("model.infer.started")["request"]["request_hash"].clone();
    for at in 0..5 {
        let mut fork = original.fork(at, Some("other:model"), Some("breaks things"));
        let repeated: Vec<_> = fork
            .log
            .iter()
            .filter(|entry| entry.kind == "model.infer.started")
            .map(|entry| entry.payload.clone())
            .collect();
        assert!(repeated.iter().all(|payload| payload.contains("scripted:tape")), "at {at}");
        fork.start();
        if fork.running() != ["model"] {
            fork.help();
            continue;
        }
        assert_eq!(fork.request().model, "other:model");
        assert!(fork.request().system.contains("breaks things"));
        assert!(!fork.request().system.contains("mends things"));
        assert_eq!(fork.session.spec().agent.model, "scripted:tape", "the spec tells the origin");
        assert_ne!(fork.event("model.infer.started")["request"]["request_hash"], first);
    }
}

#[test]
fn the_repeated_part_makes_the_same_decisions() {
    let original = original();
    let fork = original.fork(4, None, None);
    let n = fork.log.iter().position(|entry| entry.kind == "run.forked").unwrap();
    let ids = |text: &str, of: &World| {
        // Ids are the fork's own; all other text is identical.
        let mut text = text.replace(&of.session.row().id.to_string(), "ID");
        for step in of.steps.values() {
            text = text.replace(&step.id.to_string(), &format!("STEP {}", step.idx));
        }
        text
    };
    for (a, b) in original.log[1..n].iter().zip(&fork.log[1..n]) {
        assert_eq!(a.kind, b.kind);
        assert_eq!(ids(&a.payload, &original), ids(&b.payload, &fork));
    }
}

#[test]
fn effects_after_the_fork_point_are_done_again() {
    // The tool's result opened the answer's step: the fork before that has no result yet.
    let mut w = rules("write:a:b").start();
    w.tool("write_file", ok(json!({"bytes": 1, "path": "a"})));
    let mut fork = w.fork(2, None, None);
    fork.start();
    assert_eq!(fork.running(), ["write_file"]);
    let ids: Vec<_> = fork.flights.values().map(|flight| flight.id).collect();
    assert!(w.session.effect_number(ids[0]).is_none(), "its id is the fork's own");
    fork.help();
    assert_eq!(fork.status(), SessionStatus::Succeeded);
}

#[test]
fn a_grant_of_the_original_does_not_apply_to_the_fork() {
    let mut w = rules("shell:make").approvals(&["run_shell"]).start();
    w.decide(true);
    w.tool("run_shell", exited(0));
    for at in 0..3 {
        let mut fork = w.fork(at, None, None);
        if fork.status() == SessionStatus::Queued {
            fork.start();
        }
        assert_eq!(fork.status(), SessionStatus::AwaitingApproval, "at {at}");
        fork.rebuild();
        let mut denied = fork.without_log();
        denied.decide(false);
        denied.failed("denied");
        fork.decide(true);
        assert_eq!(fork.running(), ["run_shell"]);
        fork.help();
        assert_eq!(fork.status(), SessionStatus::Succeeded);
        assert_eq!(fork.session.row().steps, 3, "at {at}");
    }
}

#[test]
fn a_fork_at_a_question_waits_for_its_own_answer() {
    let mut w = model().start();
    w.model(call("q", "ask_user", json!({"message": "which?"})));
    w.answer("the first");
    w.model(says("the first it is"));
    let mut fork = w.fork(2, Some("other:model"), None);
    assert_eq!(fork.status(), SessionStatus::Queued, "the answer is part of what it repeats");
    fork.start();
    assert!(fork.told().contains("the first"));

    let mut w = model().start();
    w.model(call("q", "ask_user", json!({"message": "which?"})));
    w.answer("the first");
    w.model(call("a", "ask_user", json!({"message": "really?"})));
    w.answer("yes");
    w.model(call("b", "read_file", json!({})));
    let mut fork = w.fork(3, Some("other:model"), None);
    fork.start();
    assert!(fork.told().contains("yes"));

    let mut w = model().start();
    w.model(calls([
        ("q", "ask_user", json!({"message": "which?"})),
        ("r", "read_file", json!({})),
    ]));
    w.answer("the first");
    let mut fork = w.fork(2, Some("other:model"), None);
    assert_eq!(fork.status(), SessionStatus::AwaitingInput);
    assert_eq!(fork.session.row().prompt.as_deref(), Some("which?"));
    fork.rebuild();
    fork.answer("the second");
    fork.tool("read_file", ok(json!({})));
    assert_eq!(fork.request().model, "other:model");
    fork.help();
    fork.rebuild();
}

#[test]
fn a_fork_gets_one_notice_that_it_is_a_fork() {
    let mut fork = original().fork(3, None, None);
    assert_eq!(fork.refused(&Input::Forked), Refusal::NotRunning);
    fork.start();
    assert_eq!(fork.refused(&Input::Forked), Refusal::NotRunning);
    fork.help();
    assert_eq!(fork.refused(&Input::Forked), Refusal::Finished);
    let whole = model().start();
    assert_eq!(whole.refused(&Input::Forked), Refusal::NotRunning, "only forks are");
}

#[test]
fn a_fork_of_a_disabled_agent_fails() {
    let mut fork = original().fork(3, None, None);
    fork.feed(fork.started(false));
    fork.failed("agent_disabled");
    fork.rebuild();
}

#[test]
fn a_fork_recovers_after_a_crash() {
    for at in 0..5 {
        let mut fork = original().fork(at, Some("other:model"), None);
        fork.crash();
        assert_eq!(fork.status(), SessionStatus::Queued);
        fork.start();
        fork.crash();
        fork.help();
        assert!(fork.status().is_terminal());
        fork.rebuild();
    }
}

#[test]
fn a_model_continues_for_the_rules_with_the_task_and_the_results() {
    let mut w = rules("write:a:b").start();
    w.tool("write_file", ok(json!({"bytes": 1, "path": "a"})));
    for at in 0..3 {
        let mut fork = w.fork(at, Some("gpt-5"), None);
        fork.start();
        if fork.running() == ["write_file"] {
            fork.tool("write_file", ok(json!({"bytes": 1, "path": "a"})));
        }
        assert_eq!(fork.running(), ["model"], "at {at}");
        let said = serde_json::to_string(&fork.request().messages).unwrap();
        assert!(said.contains("write:a:b"), "at {at}: {said}");
        assert_eq!(at == 2, said.contains("bytes"), "at {at}: {said}");
        fork.crash();
        fork.model(says("took over"));
        fork.succeeded("took over");
        fork.rebuild();
    }
}

#[test]
fn the_rules_continue_for_a_model() {
    let original = {
        let mut setup = model().by_name();
        setup.spec.task = "read:a".into();
        let mut w = setup.start();
        w.model(calls([("a", "read_file", json!({"n": 1})), ("b", "run_shell", json!({}))]));
        w.tool("read_file", ok(json!({})));
        w.tool("run_shell", exited(0));
        w.model(says("done"));
        w
    };
    for at in 0..4 {
        let mut fork = original.fork(at, Some("deterministic"), None);
        fork.start();
        assert!(!fork.running().contains(&"model"), "at {at}: the rules ask no model");
        fork.rebuild();
        fork.help();
        assert_eq!(fork.status(), SessionStatus::Succeeded, "at {at}");
        fork.rebuild();
    }
}

#[test]
fn stopping_a_fork_that_has_ended_does_nothing() {
    let mut setup = model().by_name().step_limit(2);
    setup.spec.task = "read:a".into();
    let mut w = setup.start();
    w.model(call("a", "read_file", json!({})));
    w.tool("read_file", ok(json!({})));
    w.model(says("one step too many"));
    let mut fork = w.fork(2, Some("deterministic"), None);
    let step = fork.start();
    fork.failed("step_limit");
    assert!(step.aborted.is_empty(), "the model was never asked on the fork's behalf");
}

#[test]
fn a_fork_at_a_question_about_a_crash_asks_before_a_repeat() {
    let mut w = model().approvals(&["run_shell"]).start();
    w.model(call("a", "run_shell", json!({"command": "make"})));
    w.decide(true);
    w.crash();
    assert_eq!(w.asked, "unknown_outcome");
    w.answer("done");
    w.model(says("done"));
    // The answer is the last thing before the step that the fork takes itself.
    let mut fork = w.fork(2, None, None);
    assert_eq!(fork.status(), SessionStatus::Queued);
    fork.start();
    assert_eq!(fork.running(), ["model"], "what the human said is part of what it repeats");

    let mut w = model().approvals(&["run_shell"]).start();
    w.model(call("a", "run_shell", json!({"command": "make"})));
    w.decide(true);
    w.crash();
    w.answer("retry");
    let mut fork = w.fork(2, None, None);
    assert_eq!(fork.status(), SessionStatus::AwaitingInput);
    fork.answer("retry");
    assert_eq!(fork.status(), SessionStatus::AwaitingApproval, "the grant was the original's");
    fork.decide(true);
    assert_eq!(fork.running(), ["run_shell"]);
    fork.help();
    fork.rebuild();
}
