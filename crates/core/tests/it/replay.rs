//! Replay: a log reproduces the same decisions, and a manipulated log does not.

use std::sync::Arc;

use overmind_core::replay::{ReplayError, Replayer};
use overmind_core::row::{SessionStatus, StepKind};
use overmind_core::session::{Input, Recorded};
use overmind_core::tool::ToolOutcome;
use serde_json::{Value, json};

use crate::world::{
    Entry, Reply, World, assert_same, call, calls, error, exited, find, model, model_failure, ok,
    replayed, says,
};

/// A session with most kinds of events.
fn eventful() -> World {
    let mut w = model().approvals(&["run_shell"]).start();
    w.wait(1);
    w.model(calls([("a", "read_file", json!({"n": 1})), ("b", "no_such_tool", json!("{"))]));
    w.tool("read_file", error("timeout"));
    w.tool("no_such_tool", crate::world::denied("no_such_tool"));
    w.tool("read_file", ok(json!({"score": 0.1, "text": "é\u{0} \"x\""})));
    w.model(model_failure(true));
    w.crash();
    w.answer("again");
    w.model(call("c", "run_shell", json!({"command": "make"})));
    w.decide(true);
    w.crash();
    w.answer("retry");
    w.tool("run_shell", exited(2));
    w.crash();
    w.model(call("d", "ask_user", json!({"message": "well?"})));
    w.answer("well");
    w.model(says(""));
    w.model(says("done"));
    w.succeeded("done");
    w
}

fn verify(log: &[Arc<Entry>], w: &World) -> Result<(), ReplayError> {
    replayed(log, &w.toolset, true).map(|_| ())
}

#[test]
fn replay_reproduces_every_decision_of_a_log() {
    let w = eventful();
    let session = replayed(&w.log, &w.toolset, true).expect("it verifies");
    assert_same(&session, &w.session, "replayed");
    let decisions = w.log.iter().skip(1).filter(|entry| entry.input.is_none()).count();
    let mut replayer = Replayer::default();
    let keep = |_: &mut Value| {};
    for (seq, entry) in (1..).zip(&w.log) {
        let find = find(&w.toolset);
        replayer
            .event(seq, &entry.kind, entry.ts, &entry.payload, Some(&keep), &find)
            .expect("it verifies");
    }
    assert_eq!(replayer.events, w.log.len() as u64);
    assert_eq!(replayer.decided, decisions as u64);
    assert_eq!(
        replayer.session().map(overmind_core::session::Session::status),
        Some(SessionStatus::Succeeded)
    );
    assert_eq!(replayer.last_steps().last().map(|step| step.kind), Some(StepKind::Eval));
}

#[test]
fn replay_finds_every_changed_decision() {
    let w = eventful();
    for n in 1..w.log.len() {
        if w.log[n].input.is_some() {
            continue;
        }
        let kind = w.log[n].kind.clone();
        let seq = n as u64 + 1;
        let changed = |change: &dyn Fn(&mut Vec<Arc<Entry>>)| {
            let mut log = w.log.clone();
            change(&mut log);
            verify(&log, &w)
        };
        let one_byte = changed(&|log| {
            let at = log[n].payload.len() - 3;
            let mut bytes = std::mem::take(&mut Arc::make_mut(&mut log[n]).payload).into_bytes();
            bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
            Arc::make_mut(&mut log[n]).payload = String::from_utf8_lossy(&bytes).into_owned();
        });
        assert!(
            matches!(one_byte, Err(ReplayError::Diverged { seq: at, .. }) if at == seq),
            "{kind}"
        );
        let renamed = changed(&|log| Arc::make_mut(&mut log[n]).kind = "step.strange".into());
        assert!(
            matches!(renamed, Err(ReplayError::Diverged { seq: at, .. }) if at == seq),
            "{kind}"
        );
        let dropped = changed(&|log| drop(log.remove(n)));
        assert!(matches!(dropped, Err(ReplayError::Diverged { .. })), "{kind}");
        let doubled = changed(&|log| log.insert(n, log[n].clone()));
        assert!(matches!(doubled, Err(ReplayError::Diverged { .. })), "{kind}");
    }
}

#[test]
fn replay_skips_observations() {
    let w = eventful();
    let mut log = Vec::new();
    for entry in &w.log {
        for kind in ["model.output.delta", "memory.stored"] {
            if !log.is_empty() {
                log.push(Arc::new(Entry {
                    kind: kind.into(),
                    payload: "{}".into(),
                    input: None,
                    ..Entry::clone(entry)
                }));
            }
        }
        log.push(entry.clone());
        let from_outside = r#"{"effect":null,"allowed":true,"latency_ms":1,"result":{"ok":true}}"#;
        log.push(Arc::new(Entry {
            kind: "tool.called".into(),
            payload: from_outside.into(),
            input: None,
            ..Entry::clone(entry)
        }));
    }
    assert_eq!(verify(&log, &w), Ok(()));
}

#[test]
fn an_inconsistent_log_is_refused_with_the_position() {
    let w = eventful();
    let changed = |change: &dyn Fn(&mut Vec<Arc<Entry>>)| {
        let mut log = w.log.clone();
        change(&mut log);
        (0..2).map(|n| replayed(&log, &w.toolset, n == 0).map(|_| ())).collect::<Vec<_>>()
    };
    for got in changed(&|log| drop(log.remove(0))) {
        assert!(matches!(got, Err(ReplayError::NoBeginning { seq: 1, .. })), "{got:?}");
    }
    for got in changed(&|log| log.insert(1, log[0].clone())) {
        assert!(matches!(got, Err(ReplayError::Refused { seq: 2, .. })), "{got:?}");
    }
    for got in changed(&|log| Arc::make_mut(&mut log[1]).payload = "{}".into()) {
        assert!(matches!(got, Err(ReplayError::Decode { seq: 2, .. })), "{got:?}");
    }
    for got in changed(&|log| log.push(log[1].clone())) {
        let seq = w.log.len() as u64 + 1;
        assert!(matches!(got, Err(ReplayError::Refused { seq: at, .. }) if at == seq), "{got:?}");
    }
    let none = |_: &str| None;
    let (ts, first) = (w.log[0].ts, &w.log[0]);
    let got = Replayer::default().event(1, &first.kind, ts, &first.payload, None, &none);
    assert_eq!(got, Err(ReplayError::NoToolset { hash: w.toolset.hash().to_owned() }));
    assert!(Replayer::default().finish(0).expect("an empty log").is_none());
}

#[test]
fn a_log_with_masked_secrets_verifies() {
    let mask = |text: &str| text.replace("hunter2", "[masked]");
    let redact = |value: &mut Value| {
        *value = serde_json::from_str(&mask(&value.to_string())).expect("still JSON");
    };
    // Inputs are masked before the session gets them; its output is masked when it is written.
    let mut w = model().start();
    w.model(call("a", "read_file", json!({"path": "hunter2.txt"})));
    w.tool("read_file", ok(json!({"content": "nothing"})));
    w.model(says("done"));
    let toolset = Arc::clone(&w.toolset);
    let mut replayer = Replayer::default();
    for (seq, entry) in (1..).zip(&w.log) {
        let payload =
            if entry.input.is_some() { entry.payload.clone() } else { mask(&entry.payload) };
        replayer
            .event(seq, &entry.kind, entry.ts, &payload, Some(&redact), &find(&toolset))
            .expect("it verifies");
    }
    // Written before anybody knew that this is a secret: it verifies as well.
    let mut replayer = Replayer::default();
    for (seq, entry) in (1..).zip(&w.log) {
        replayer
            .event(seq, &entry.kind, entry.ts, &entry.payload, Some(&redact), &find(&toolset))
            .expect("it verifies");
    }
}

#[test]
fn numbers_are_unchanged_after_a_log_round_trip() {
    // Computed numbers, such as scores: the shortest text of each must read back as the same
    // number, or the conversation's hash differs in a replay.
    let mut state = 1_u64;
    for _ in 0..20_000 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = f64::from_bits((state >> 12) | 0x3ff0_0000_0000_0000) * 300.0;
        let text = json!(number).to_string();
        let back: Value = serde_json::from_str(&text).expect("a number");
        assert_eq!(back, json!(number), "{text}");
    }
}

#[test]
fn deeply_nested_values_do_not_make_a_log_unreadable() {
    let deep =
        |levels: usize| -> Value { (0..levels).fold(json!("bottom"), |inner, _| json!([inner])) };
    let reads_back = |w: &World, input: &Input| {
        let (kind, payload) = w.session.record(input);
        Recorded::decode(kind, &payload.to_string()) == Ok(Recorded::Input(input.clone()))
    };
    for levels in [10, 64, 65, 126, 127] {
        let mut w = model().start();
        let mut reply = call("a", "read_file", deep(levels));
        reply.provider_state = Some(deep(levels));
        let reply = Reply::from(reply).0;
        let mut input = Input::ModelDone { effect: 0, reply, latency_ms: 1 };
        assert_eq!(reads_back(&w, &input), levels < 120, "why there is a bound: {levels}");
        let before = input.clone();
        input.flatten();
        assert_eq!(input == before, levels <= 64, "{levels}");
        assert!(reads_back(&w, &input), "{levels}");
        w.feed(input);
        let outcome =
            ToolOutcome { allowed: true, result: json!({"ok": true, "deep": deep(levels)}) };
        let mut input = Input::ToolDone { effect: 1, outcome, latency_ms: 1 };
        input.flatten();
        assert!(reads_back(&w, &input), "{levels}");
        w.feed(input);
        assert!(w.told().contains("bottom"), "nothing is lost");
        w.rebuild();
    }
}
