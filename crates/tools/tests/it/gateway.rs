//! The order of checks of a call, the registry, and the code around a handler.

use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec, Toolbox};
use overmind_tools::{Answer, Gateway, Parts, RegisterError, Tool};
use serde_json::{Map, Value, json};

use crate::support::{Bench, FakeMemory, error, is};

#[derive(Debug)]
struct Made {
    name: &'static str,
    schema: Value,
    body: fn() -> Answer,
}

impl Tool for Made {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.name.into(),
            description: "made for a test".into(),
            schema: self.schema.clone(),
            class: EffectClass::Pure,
            internal: false,
        }
    }

    fn call<'a>(&'a self, _: &'a ToolContext, _: &'a Value) -> Fut<'a, Answer> {
        let body = self.body;
        Box::pin(async move { body() })
    }
}

fn made(name: &'static str, schema: Value) -> Arc<dyn Tool> {
    Arc::new(Made { name, schema, body: || Ok(Map::new()) })
}

fn register(tool: Arc<dyn Tool>) -> Result<Gateway, RegisterError> {
    let parts = Parts { sandboxes: Arc::new(|_| None), memory: Arc::new(FakeMemory::default()) };
    Gateway::with_tools(parts, vec![tool])
}

#[tokio::test]
async fn an_unregistered_tool_is_denied_first() {
    let mut bench = Bench::new();
    bench.context.allowed = [].into();
    let outcome = bench.call("rm_rf", json!("not even an object")).await;
    assert!(!outcome.allowed);
    assert_eq!(error(&outcome), is("tool_not_allowed", "Tool 'rm_rf' is not registered"));
}

#[tokio::test]
async fn a_tool_outside_the_allow_list_is_denied_with_the_agents_id() {
    let mut bench = Bench::new();
    bench.context.allowed = ["read_file".to_owned()].into();
    let outcome = bench.call("run_shell", json!({"nonsense": 1})).await;
    assert!(!outcome.allowed);
    let wanted = "Tool 'run_shell' is not allowed for agent agt_0000000000000000000000000000000a";
    assert_eq!(error(&outcome), is("tool_not_allowed", wanted));
    assert!(bench.shell.asked.lock().unwrap().is_empty(), "nothing ran");
    bench.put("a.txt", "a");
    bench.good("read_file", json!({"path": "a.txt"})).await;
}

#[tokio::test]
async fn internal_tools_are_always_allowed() {
    let mut bench = Bench::new();
    bench.context.allowed = [].into();
    for name in ["ask_user", "final_answer"] {
        let result = bench.good(name, json!({"message": " What now? "})).await;
        assert_eq!(result, json!({"ok": true, "message": " What now? "}));
    }
    bench.put("a.txt", "a");
    let checks = json!({"checks": [{"type": "file_exists", "path": "a.txt"}]});
    bench.good("verify", checks).await;
}

#[tokio::test]
async fn a_call_with_invalid_arguments_is_allowed_and_fails() {
    let bench = Bench::new();
    let outcome = bench.call("read_file", json!({})).await;
    assert!(outcome.allowed);
    assert_eq!(error(&outcome), is("bad_args", "path is required"));
}

#[test]
fn specs_are_sorted_and_describe_the_effect_of_a_repeat() {
    let bench = Bench::new();
    let specs = bench.gateway.specs();
    let found: Vec<_> = specs.iter().map(|s| (s.name.as_str(), s.class, s.internal)).collect();
    use EffectClass::{Idempotent, Once, Pure};
    assert_eq!(
        found,
        [
            ("ask_user", Pure, true),
            ("edit_file", Once, false),
            ("final_answer", Pure, true),
            ("http_request", Once, false),
            ("list_files", Pure, false),
            ("read_file", Pure, false),
            ("run_command", Once, false),
            ("run_shell", Once, false),
            ("search_memory", Pure, false),
            ("store_memory", Idempotent, false),
            ("verify", Pure, true),
            ("web_fetch", Pure, false),
            ("write_file", Idempotent, false),
        ]
    );
    for spec in specs.iter() {
        assert_eq!(spec.schema["additionalProperties"], json!(false), "{}", spec.name);
        assert!(spec.description.len() > 60, "{} tells a model too little", spec.name);
        assert!(!spec.description.contains("  "), "{} has a broken line", spec.name);
    }
}

#[test]
fn a_taken_tool_name_is_refused() {
    let again = register(made("run_shell", json!({"type": "object"})));
    assert_eq!(again.unwrap_err(), RegisterError::Duplicate { name: "run_shell".into() });
}

#[test]
fn an_invalid_schema_is_refused_at_registration() {
    for schema in [json!({"type": "objekt"}), json!("object"), json!({"minLength": "three"})] {
        let err = register(made("x", schema.clone())).unwrap_err();
        assert!(matches!(&err, RegisterError::Schema { name, .. } if name == "x"), "{schema}");
    }
}

#[test]
fn a_schema_with_an_external_reference_is_refused_without_fetching_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/schema.json", listener.local_addr().unwrap());
    let file = "file:///etc/hostname".to_owned();
    for remote in [url, file] {
        let schema = json!({"type": "object", "properties": {"a": {"$ref": remote}}});
        let err = register(made("x", schema)).unwrap_err();
        assert!(matches!(err, RegisterError::Schema { .. }), "{err}");
    }
    let connected = listener.accept();
    assert_eq!(connected.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody connected");
}

#[tokio::test]
async fn a_panic_in_a_handler_fails_only_its_call() {
    let broken =
        Made { name: "broken", schema: json!({"type": "object"}), body: || panic!("on purpose") };
    let bench = Bench::with_tools(vec![Arc::new(broken)]);
    let (code, message) = bench.bad("broken", json!({})).await;
    assert_eq!(code, "tool_error");
    assert!(message.starts_with("the tool `broken` failed inside"), "{message}");
    bench.good("final_answer", json!({"message": "the gateway lives"})).await;
}

#[tokio::test]
async fn a_long_name_from_a_model_is_echoed_truncated() {
    let (_, message) = Bench::new().bad(&"x".repeat(100_000), json!({})).await;
    assert!(message.len() < 300, "{} bytes", message.len());
}

#[tokio::test]
async fn a_missing_workspace_is_a_tool_error() {
    let mut bench = Bench::new();
    bench.context.workspace = bench.outer.path().join("gone");
    for (name, args) in [
        ("read_file", json!({"path": "a"})),
        ("write_file", json!({"path": "a", "content": ""})),
        ("list_files", json!({})),
        ("run_shell", json!({"command": "true", "allow_write": true})),
    ] {
        let (code, message) = bench.bad(name, args).await;
        assert_eq!(code, "tool_error");
        assert!(message.starts_with("opening the workspace /"), "{message}");
        assert!(message.contains("No such file or directory"), "{message}");
    }
}

#[tokio::test]
async fn invalid_arguments_are_detected_without_a_call() {
    let gateway = register(made("wide", json!({"type": "object"}))).unwrap();
    let why = |name: &str, args: Value| gateway.misfit(name, &args);
    assert_eq!(why("run_shell", json!({"command": "ls"})), None);
    assert_eq!(why("nothing_like_it", json!([])), None, "the gateway refuses it by its name");
    let all = why("run_shell", json!({"x": 1, "timeout_s": 999})).unwrap();
    assert_eq!(all, "unknown arg(s): x; command is required; timeout_s must be <= 120");
    let list = why("wide", json!([1])).unwrap();
    assert_eq!(list, "arguments must be a JSON object, got list");
    let cut = why("write_file", json!("{\"path\":\"a.txt\",\"content\":\"half of ")).unwrap();
    assert!(cut.contains("cut after") && cut.contains("half of `"), "{cut}");
    assert!(why("wide", json!({"a": "x".repeat(2 << 20)})).unwrap().contains("must not exceed"));
}
