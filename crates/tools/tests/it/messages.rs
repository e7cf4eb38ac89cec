//! Every text that validation can answer.

use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use overmind_tools::{Answer, Tool};
use serde_json::{Map, Value, json};

use crate::support::Bench;

#[derive(Debug)]
struct Wide;

/// A tool with every keyword that has its own message.
impl Tool for Wide {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "wide".into(),
            description: "takes everything".into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "code": {"type": "string", "minLength": 3, "maxLength": 5, "pattern": "^[a-z]*$"},
                    "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                    "fixed": {"const": 7},
                    "color": {"enum": ["red", "green", null]},
                    "tags": {"type": "array", "minItems": 1, "maxItems": 2, "uniqueItems": true,
                             "items": {"type": ["string", "integer"]}},
                    "where": {"$ref": "#/$defs/place"},
                    "free": {"type": "object"},
                },
                "$defs": {"place": {
                    "type": "object",
                    "properties": {"a/b": {"type": "boolean"}, "x": {"type": "integer", "minimum": 2}},
                    "required": ["x"],
                    "additionalProperties": false,
                }},
                "additionalProperties": false,
            }),
            class: EffectClass::Pure,
            internal: true,
        }
    }

    fn call<'a>(&'a self, _: &'a ToolContext, _: &'a Value) -> Fut<'a, Answer> {
        Box::pin(std::future::ready(Ok(Map::new())))
    }
}

async fn check(cases: Vec<(&str, Value, &str)>) {
    let bench = Bench::with_tools(vec![Arc::new(Wide)]);
    for (tool, args, wanted) in cases {
        let shown = args.to_string();
        let (code, message) = bench.bad(tool, args).await;
        assert_eq!((code.as_str(), message.as_str()), ("bad_args", wanted), "{tool} {shown}");
    }
    assert!(bench.shell.asked.lock().unwrap().is_empty(), "no handler ran");
    assert!(bench.memory.drafts.lock().unwrap().is_empty(), "no handler ran");
}

#[tokio::test]
async fn error_messages_have_the_documented_text() {
    check(vec![
        ("run_shell", json!({}), "command is required"),
        ("run_shell", json!({"command": 1}), "command must be of type str"),
        ("run_shell", json!({"command": ""}), "command must be a non-empty string"),
        ("run_shell", json!({"command": " \n\t"}), "command must be a non-empty string"),
        ("run_shell", json!({"command": "x", "timeout_s": "9"}), "timeout_s must be of type int"),
        ("run_shell", json!({"command": "x", "timeout_s": 0}), "timeout_s must be >= 1"),
        ("run_shell", json!({"command": "x", "timeout_s": -5}), "timeout_s must be >= 1"),
        ("run_shell", json!({"command": "x", "timeout_s": 121}), "timeout_s must be <= 120"),
        ("run_shell", json!({"command": "x", "timeout_s": null}), "timeout_s must be of type int"),
        (
            "run_shell",
            json!({"command": "x", "allow_write": 1}),
            "allow_write must be of type bool",
        ),
        (
            "run_shell",
            json!({"command": "x", "write_subdir": 3}),
            "write_subdir must be of type str, NoneType",
        ),
        ("run_shell", json!({"command": "x", "zz": 1, "cwd": 2}), "unknown arg(s): cwd, zz"),
        ("read_file", json!({}), "path is required"),
        ("read_file", json!({"path": "  "}), "path must be a non-empty string"),
        ("read_file", json!({"path": ["a"]}), "path must be of type str"),
        ("read_file", json!({"path": "a", "start_line": 0}), "start_line must be >= 1"),
        (
            "read_file",
            json!({"path": "a", "start_line": 3, "end_line": 2}),
            "start_line must be <= end_line",
        ),
        ("write_file", json!({"path": "a"}), "content is required"),
        ("write_file", json!({"path": "a", "content": {}}), "content must be of type str"),
        (
            "edit_file",
            json!({"path": "a", "old": "", "new": "b"}),
            "old must be a non-empty string",
        ),
        (
            "edit_file",
            json!({"path": "a", "old": "b", "new": "b"}),
            "old and new are the same: there is nothing to do",
        ),
        ("store_memory", json!({"text": "x", "metadata": []}), "metadata must be of type dict"),
        ("store_memory", json!({"text": ""}), "text must be a non-empty string"),
        (
            "store_memory",
            json!({"text": "x", "collection": " "}),
            "collection must be a non-empty string",
        ),
        ("search_memory", json!({}), "query is required"),
        ("search_memory", json!({"query": "x", "top_k": 51}), "top_k must be <= 50"),
        ("search_memory", json!({"query": "x", "top_k": 0}), "top_k must be >= 1"),
        ("ask_user", json!({}), "message is required"),
        ("final_answer", json!({"message": " "}), "message must be a non-empty string"),
    ])
    .await;
}

#[tokio::test]
async fn a_boolean_is_not_an_integer() {
    check(vec![
        ("search_memory", json!({"query": "x", "top_k": true}), "top_k must be of type int"),
        ("run_shell", json!({"command": "x", "timeout_s": true}), "timeout_s must be of type int"),
    ])
    .await;
}

#[tokio::test]
async fn a_whole_number_is_an_integer_in_any_spelling() {
    let bench = Bench::new();
    bench.good("run_shell", json!({"command": "true", "timeout_s": 9.0})).await;
    assert_eq!(bench.shell.last().timeout.as_secs(), 9);
    bench.good("search_memory", json!({"query": "x", "top_k": 3.0})).await;
    assert_eq!(bench.memory.queries.lock().unwrap()[0].top_k, 3);
    check(vec![
        ("run_shell", json!({"command": "x", "timeout_s": 9.5}), "timeout_s must be of type int"),
        ("run_shell", json!({"command": "x", "timeout_s": 1e300}), "timeout_s must be <= 120"),
        (
            "read_file",
            json!({"path": "x", "start_line": 1e300}),
            "1e+300 is not a whole number from 0 to 2^53",
        ),
    ])
    .await;
}

#[tokio::test]
async fn unknown_names_come_first_and_then_the_declared_order() {
    check(vec![
        ("write_file", json!({"b": 1, "content": 2, "a": 3}), "unknown arg(s): a, b"),
        ("write_file", json!({"content": 2}), "path is required"),
        ("run_shell", json!({"timeout_s": "x", "command": 5}), "command must be of type str"),
        (
            "run_shell",
            json!({"timeout_s": 0, "command": "x", "allow_write": "y"}),
            "timeout_s must be >= 1",
        ),
        ("store_memory", json!({"collection": ""}), "collection must be a non-empty string"),
    ])
    .await;
}

#[tokio::test]
async fn several_errors_are_all_in_the_details() {
    let bench = Bench::new();
    let outcome = bench.call("run_shell", json!({"x": 1, "timeout_s": 500})).await;
    assert_eq!(
        outcome.result["error"],
        json!({
            "code": "bad_args",
            "message": "unknown arg(s): x",
            "details": {"errors": [
                "unknown arg(s): x", "command is required", "timeout_s must be <= 120",
            ]},
        })
    );
    let outcome = bench.call("run_shell", json!({})).await;
    assert_eq!(outcome.result["error"].get("details"), None);
}

#[tokio::test]
async fn arguments_that_are_no_object_are_refused_with_their_type() {
    check(vec![
        ("run_shell", json!([1]), "arguments must be a JSON object, got list"),
        ("run_shell", json!(null), "arguments must be a JSON object, got NoneType"),
        ("run_shell", json!(true), "arguments must be a JSON object, got bool"),
        ("run_shell", json!(1), "arguments must be a JSON object, got int"),
        ("run_shell", json!(1.5), "arguments must be a JSON object, got float"),
        ("run_shell", json!("{\"command\": \"ls\"}"), "arguments must be a JSON object, got str"),
        (
            "run_shell",
            json!("{\"command\": \"ls"),
            "arguments must be a JSON object, got str that was cut after `{\"command\": \"ls`: nothing was \
             done. Send the whole call again; if the reply reached its token limit, make the call \
             shorter or split it into several",
        ),
        (
            "run_shell",
            json!("{command: ls}"),
            "arguments must be a JSON object, got str that is not valid JSON: \
             key must be a string at line 1 column 2",
        ),
    ])
    .await;
}

#[tokio::test]
async fn every_other_schema_keyword_has_a_message_with_the_position() {
    check(vec![
        ("wide", json!({"code": "ab"}), "code must be at least 3 characters long"),
        ("wide", json!({"code": "abcdef"}), "code must be at most 5 characters long"),
        ("wide", json!({"code": "ABC"}), "code must match the pattern ^[a-z]*$"),
        ("wide", json!({"share": 0}), "share must be > 0"),
        ("wide", json!({"share": 1}), "share must be < 1"),
        ("wide", json!({"share": "1"}), "share must be of type int, float"),
        ("wide", json!({"fixed": 8}), "fixed must be 7"),
        ("wide", json!({"color": "blue"}), "color must be one of \"red\", \"green\", null"),
        ("wide", json!({"tags": []}), "tags must have at least 1 item(s)"),
        ("wide", json!({"tags": [1, 2, 3]}), "tags must have at most 2 item(s)"),
        ("wide", json!({"tags": ["a", 1.5]}), "/tags/1 must be of type str, int"),
        ("wide", json!({"tags": ["a", "a"]}), "tags: value has non-unique elements"),
        ("wide", json!({"where": {}}), "/where/x is required"),
        ("wide", json!({"where": {"x": 1}}), "/where/x must be >= 2"),
        ("wide", json!({"where": {"x": 2, "a/b": 1}}), "/where/a~1b must be of type bool"),
        ("wide", json!({"where": {"x": 2, "z": 1, "y": 1}}), "unknown arg(s): /where/y, /where/z"),
        ("verify", json!({"checks": [{"type": "file_exists"}]}), "/checks/0/path is required"),
        (
            "verify",
            json!({"checks": [{"type": "exists", "path": "a"}]}),
            "/checks/0/type must be one of \"file_exists\", \"file_min_bytes\", \
             \"png_signature\", \"png_dimensions_min\", \"file_entropy_min\"",
        ),
        ("verify", json!({"checks": []}), "checks must have at least 1 item(s)"),
    ])
    .await;
}

#[tokio::test]
async fn arguments_are_bounded_in_size_and_depth() {
    let mut deep = json!(1);
    for _ in 0..63 {
        deep = json!([deep]);
    }
    let bench = Bench::with_tools(vec![Arc::new(Wide)]);
    bench.good("wide", json!({"free": {}})).await;
    let too_deep = "arguments must not be nested deeper than 64 levels";
    let too_large = "arguments must not exceed 1048576 bytes of JSON";
    check(vec![
        ("wide", json!({"free": {"a": deep}}), too_deep),
        ("wide", json!({"free": {"a": "x".repeat(1 << 20)}}), too_large),
        ("wide", json!("x".repeat(1 << 20)), too_large),
    ])
    .await;
    // The arguments, `free`, and 62 lists: 64 levels.
    let mut just = json!(1);
    for _ in 0..62 {
        just = json!([just]);
    }
    bench.good("wide", json!({"free": {"a": just}})).await;
}

#[tokio::test]
async fn a_flood_of_unknown_names_is_truncated_in_the_message() {
    let many: Map<String, Value> = (0..5000).map(|n| (format!("k{n:04}"), json!(n))).collect();
    let (_, message) = Bench::new().bad("read_file", Value::Object(many)).await;
    assert!(message.starts_with("unknown arg(s): k0000, k0001"), "{message}");
    assert!(message.ends_with("k0019 and 4980 more"), "{message}");
}
