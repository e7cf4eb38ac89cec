//! Scripted models.

use std::time::{Duration, Instant};

use overmind_core::model::{ModelDelta, ModelRequest, Models, StopReason, Usage};
use overmind_llm::{Cassette, Config, Gateway};
use serde_json::json;

use crate::support::{ask, assistant, complete, failure, reply, result, streamed, user};

const TAPE: &str = r#"{
  "name": "fix",
  "turns": [
    { "reasoning": "Look first.", "text": "Let me look.",
      "calls": [{ "name": "read_file", "args": { "path": "a.txt" } },
                { "name": "list_files", "args": "{broken" }] },
    { "expect": { "last_tool_contains": "hello", "last_user_contains": "mend" }, "text": "It says hello.",
      "usage": { "input_tokens": 10, "output_tokens": 5, "cached_input_tokens": 3 } },
    { "fail": { "code": "overloaded", "message": "busy", "status": 529, "body": "{}", "transient": true } }
  ]
}"#;

fn gateway() -> Gateway {
    Gateway::new(Config::default().with_cassette(Cassette::parse("test", TAPE.as_bytes()).unwrap()))
}

#[tokio::test]
async fn a_recorded_turn_is_streamed_word_by_word_and_returned_whole() {
    let (result, deltas) = complete(&gateway(), &ask("scripted:fix", vec![user("mend it")])).await;
    let reply = result.unwrap();
    assert_eq!((reply.text.as_str(), reply.reasoning.as_str()), ("Let me look.", "Look first."));
    assert_eq!(
        (reply.stop, reply.cost_microusd, reply.provider.as_str()),
        (StopReason::ToolCalls, Some(0), "scripted")
    );
    let calls: Vec<_> =
        reply.calls.iter().map(|c| (c.id.as_str(), c.name.as_str(), &c.args)).collect();
    assert_eq!(
        calls,
        [
            ("call_1_1", "read_file", &json!({ "path": "a.txt" })),
            ("call_1_2", "list_files", &json!("{broken"))
        ]
    );
    let (text, reasoning, args) = streamed(&deltas);
    assert_eq!((text, reasoning), (reply.text.clone(), reply.reasoning.clone()));
    assert_eq!(args[1], ("list_files".to_owned(), "{broken".to_owned()));
    assert_eq!(deltas.iter().filter(|d| matches!(d, ModelDelta::Text(_))).count(), 3);
    assert!(reply.usage.input_tokens >= 4 && reply.usage.output_tokens >= 5, "{:?}", reply.usage);
}

#[tokio::test]
async fn only_the_conversation_selects_the_turn() {
    let history = || {
        vec![user("mend it"), assistant("x", &[("1", "t", json!({}))]), result("1", "hello you")]
    };
    // A new gateway each time, without any state, as after a restart.
    for _ in 0..2 {
        let reply = reply(&gateway(), &ask("scripted:fix", history())).await;
        assert_eq!((reply.text.as_str(), reply.stop), ("It says hello.", StopReason::End));
        let usage = Usage {
            input_tokens: 10,
            output_tokens: 5,
            cached_input_tokens: 3,
            ..Usage::default()
        };
        assert_eq!(reply.usage, usage);
    }
}

#[tokio::test]
async fn a_cassette_fails_where_it_says_and_where_the_session_deviates() {
    let gateway = gateway();
    let said = || assistant("x", &[]);
    let scripted = failure(&gateway, &ask("scripted:fix", vec![user("a"), said(), said()])).await;
    assert_eq!(
        (scripted.code.as_str(), scripted.status, scripted.transient),
        ("overloaded", Some(529), true)
    );
    for (messages, says) in [
        (vec![user("mend"), said()], "expects a tool result and there is none"),
        (vec![user("mend"), said(), result("1", "bye")], "contain `hello`, and it is `bye`"),
        (vec![user("leave"), said(), result("1", "hello")], "contain `mend`, and it is `leave`"),
        (vec![said(), said(), said()], "turn 4: the cassette has only 3 turns"),
    ] {
        let failure = failure(&gateway, &ask("scripted:fix", messages)).await;
        assert_eq!((failure.code.as_str(), failure.transient), ("cassette", false));
        assert!(failure.message.contains(says), "{}", failure.message);
    }
}

#[tokio::test]
async fn a_recorded_delay_is_bounded_by_the_timeout_of_the_call() {
    let tape = br#"{ "name": "slow", "turns": [{ "text": "one two three", "delay_ms": 120 }] }"#;
    let gateway =
        Gateway::new(Config::default().with_cassette(Cassette::parse("t", tape).unwrap()));
    let started = Instant::now();
    reply(&gateway, &ask("scripted:slow", vec![user("go")])).await;
    assert!(started.elapsed() >= Duration::from_millis(120));
    let hurry = ModelRequest {
        total_timeout: Duration::from_millis(20),
        ..ask("scripted:slow", vec![user("go")])
    };
    assert_eq!(failure(&gateway, &hurry).await.code, "timeout");
}

#[test]
fn an_invalid_cassette_is_refused_with_the_position() {
    for (json, says) in [
        ("[]", "not JSON of the right shape"),
        (r#"{ "name": "x", "turns": [], "more": 1 }"#, "unknown field `more`"),
        (r#"{ "turns": [] }"#, "missing field `name`"),
        (r#"{ "name": " ", "turns": [] }"#, "has no name"),
        (r#"{ "name": "x", "turns": [{ "text": "a" }, { "txet": "b" }] }"#, "turn 2"),
        (r#"{ "name": "x", "turns": [{ "text": "a" }, { "txet": "b" }] }"#, "unknown field `txet`"),
        (r#"{ "name": "x", "turns": [{}] }"#, "turn 1 says nothing"),
        (
            r#"{ "name": "x", "turns": [{ "calls": [{ "name": "", "args": {} }] }] }"#,
            "a call without a name",
        ),
        (
            r#"{ "name": "x", "turns": [{ "calls": [{ "name": "t", "args": 7 }] }] }"#,
            "neither an object nor text",
        ),
        (r#"{ "name": "x", "turns": [{ "calls": [{ "name": "t" }] }] }"#, "missing field `args`"),
        (
            r#"{ "name": "x", "turns": [{ "text": "a", "fail": { "code": "c", "message": "m" } }] }"#,
            "both says something and fails",
        ),
        (r#"{ "name": "x", "turns": [{ "text": "a", "delay_ms": 600001 }] }"#, "ten minutes"),
        (
            r#"{ "name": "x", "turns": [{ "text": "a", "expect": { "last": "b" } }] }"#,
            "unknown field `last`",
        ),
        (
            r#"{ "name": "x", "turns": [{ "text": "a", "usage": { "tokens": 1 } }] }"#,
            "unknown field `tokens`",
        ),
    ] {
        let err = Cassette::parse("tape.json", json.as_bytes()).unwrap_err();
        let mut text = err.to_string();
        if let Some(source) = std::error::Error::source(&err) {
            text = format!("{text}: {source}");
        }
        assert!(text.contains(says) && text.contains("tape.json"), "{json}: {text}");
    }
}

#[tokio::test]
async fn cassettes_are_found_only_below_the_cassette_directory() {
    let dir = tempfile::tempdir().unwrap();
    let tapes = dir.path().join("tapes");
    std::fs::create_dir_all(tapes.join("sub")).unwrap();
    let tape = |text: &str| format!(r#"{{ "name": "t", "turns": [{{ "text": "{text}" }}] }}"#);
    std::fs::write(tapes.join("one.json"), tape("one")).unwrap();
    std::fs::write(tapes.join("sub/two.json"), tape("two")).unwrap();
    std::fs::write(tapes.join("bad.json"), "{").unwrap();
    let outside = dir.path().join("outside.json");
    std::fs::write(&outside, tape("outside")).unwrap();
    let config = Config { cassette_dir: Some(tapes.clone()), ..Config::default() };
    let gateway = Gateway::new(config.clone());
    for (name, want) in [("one", "one"), ("one.json", "one"), ("sub/two", "two")] {
        let model = format!("scripted:{name}");
        assert_eq!(gateway.check(&model), Ok(()));
        assert_eq!(reply(&gateway, &ask(&model, vec![user("go")])).await.text, want);
    }
    for (name, says) in [
        ("../outside", "beneath the cassette directory"),
        (outside.to_str().unwrap(), "beneath the cassette directory"),
        ("", "write `scripted:` and its name"),
    ] {
        let model = format!("scripted:{name}");
        let failure = failure(&gateway, &ask(&model, vec![user("go")])).await;
        assert!(
            failure.code == "cassette" && failure.message.contains(says),
            "{}",
            failure.message
        );
        assert_eq!(gateway.check(&model), Err(failure));
    }
    for (name, says) in [("bad", "bad.json"), ("none", "No such file")] {
        let failure = failure(&gateway, &ask(&format!("scripted:{name}"), vec![user("go")])).await;
        assert!(
            failure.code == "cassette" && failure.message.contains(says),
            "{}",
            failure.message
        );
    }
    // If the user of the program owns it, any file is accepted.
    let owner = Gateway::new(Config { any_cassette_path: true, ..config });
    let model = format!("scripted:{}", outside.display());
    assert_eq!(reply(&owner, &ask(&model, vec![user("go")])).await.text, "outside");
    // Without a directory, a cassette must be loaded by name.
    let bare = Gateway::new(Config::default());
    assert_eq!(bare.check("scripted:one").unwrap_err().code, "cassette");
}
