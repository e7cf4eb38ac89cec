//! Tools that appear and disappear: listed and checked like the others, and refused to callers of
//! an earlier definition.

use std::sync::{Arc, Mutex};

use overmind_core::Fut;
use overmind_core::ids::SessionId;
use overmind_core::tool::{EffectClass, ToolContext, ToolOutcome, ToolSpec, Toolbox};
use overmind_core::tool_source::ToolSource;
use overmind_tools::RegisterError;
use serde_json::{Value, json};

use crate::support::{Bench, SESSION};

#[derive(Debug)]
struct Fake {
    specs: Mutex<Arc<[ToolSpec]>>,
    ended: Mutex<Vec<SessionId>>,
}

fn spec(name: &str, description: &str, schema: Value) -> ToolSpec {
    let (name, description) = (name.to_owned(), description.to_owned());
    ToolSpec { name, description, schema, class: EffectClass::Once, internal: true }
}

fn numbers() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
}

impl Fake {
    fn new(specs: Vec<ToolSpec>) -> Arc<Self> {
        Arc::new(Self { specs: Mutex::new(specs.into()), ended: Mutex::default() })
    }
}

impl ToolSource for Fake {
    fn prefix(&self) -> &str {
        "mcp."
    }
    fn specs(&self) -> Arc<[ToolSpec]> {
        self.specs.lock().unwrap().clone()
    }
    fn call<'a>(
        &'a self,
        _: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
    ) -> Fut<'a, ToolOutcome> {
        let result = json!({"ok": true, "called": name, "args": args});
        Box::pin(async { ToolOutcome { allowed: true, result } })
    }
    fn session_ended(&self, session: SessionId) {
        self.ended.lock().unwrap().push(session);
    }
}

fn bench(source: &Arc<Fake>) -> Bench {
    let mut bench = Bench::new();
    bench.gateway = bench.gateway.with_source(Arc::clone(source) as Arc<dyn ToolSource>).unwrap();
    bench.context.allowed = ["mcp.a.add".to_owned()].into();
    bench
}

fn code(outcome: &ToolOutcome) -> (&Value, bool) {
    (&outcome.result["error"]["code"], outcome.allowed)
}

#[tokio::test]
async fn tools_of_a_source_are_listed_allowed_and_validated_like_all_others() {
    let source = Fake::new(vec![
        spec("mcp.a.add", "Adds.", numbers()),
        spec("mcp.a.other", "Not allowed.", json!({"type": "object"})),
        spec("elsewhere", "Not its name.", json!({"type": "object"})),
        spec("mcp.a.broken", "No schema.", json!({"type": "nonsense"})),
    ]);
    let bench = bench(&source);
    let names: Vec<_> = bench.gateway.specs().iter().map(|spec| spec.name.clone()).collect();
    assert!(names.contains(&"mcp.a.add".to_owned()) && names.contains(&"run_shell".to_owned()));
    assert!(!names.iter().any(|name| name == "elsewhere" || name == "mcp.a.broken"), "{names:?}");
    assert!(Arc::ptr_eq(&bench.gateway.specs(), &bench.gateway.specs()));
    assert!(
        bench.gateway.specs().iter().all(|spec| !spec.name.starts_with("mcp.") || !spec.internal)
    );

    let call = async |name: &str, args| bench.gateway.call(&bench.context, name, &args).await;
    assert_eq!(call("mcp.a.add", json!({"n": 1})).await.result["args"], json!({"n": 1}));
    let wrong = call("mcp.a.add", json!({"n": "x"})).await;
    assert_eq!(code(&wrong), (&json!("bad_args"), true));
    assert_eq!(wrong.result["error"]["message"], "n must be of type int");
    assert_eq!(code(&call("mcp.a.other", json!({})).await), (&json!("tool_not_allowed"), false));
    assert_eq!(code(&call("mcp.a.none", json!({})).await), (&json!("tool_not_allowed"), false));
    bench.gateway.session_ended(SESSION);
    assert_eq!(*source.ended.lock().unwrap(), [SESSION]);
}

#[tokio::test]
async fn a_replaced_tool_is_refused_to_callers_of_the_earlier_one() {
    let source = Fake::new(vec![spec("mcp.a.add", "Adds.", numbers())]);
    let bench = bench(&source);
    let known = bench.gateway.specs().iter().find(|s| s.name == "mcp.a.add").unwrap().definition();
    let args = json!({"n": 1});
    let call = || bench.gateway.call_defined(&bench.context, "mcp.a.add", &args, &known);
    assert!(call().await.ok());
    *source.specs.lock().unwrap() = vec![spec("mcp.a.add", "Adds, and more.", numbers())].into();
    let refused = call().await;
    assert_eq!(code(&refused), (&json!("tool_changed"), false), "{refused:?}");
    assert!(
        bench.gateway.call(&bench.context, "mcp.a.add", &args).await.ok(),
        "who has not decided"
    );
    *source.specs.lock().unwrap() = Arc::from([]);
    assert_eq!(code(&call().await), (&json!("tool_not_allowed"), false));
}

#[test]
fn two_sources_cannot_share_a_prefix() {
    let source = Fake::new(Vec::new());
    let again = bench(&source).gateway.with_source(source);
    assert_eq!(again.unwrap_err(), RegisterError::Duplicate { name: "mcp.".into() });
}
