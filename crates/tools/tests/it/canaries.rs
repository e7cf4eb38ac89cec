//! Canaries at the gateway: planted in commands, stopped on their way out, masked on their way in.

use std::sync::{Arc, Mutex};

use overmind_core::canary::{MASK, Planter, VARIABLE};
use overmind_core::live::{Live, LiveSink};
use overmind_core::sandbox::Captured;
use overmind_core::tool::{ToolOutcome, Toolbox};
use overmind_tools::{Commands, Options};
use serde_json::{Value, json};

use crate::site::{LOOPBACK, Names, Site, Way};
use crate::support::{Bench, SESSION, error};

fn planter() -> Planter {
    Planter::new(&[4; 32])
}

fn watched(options: Options) -> Bench {
    Bench::with(Options { canaries: Some(planter()), ..options }, Vec::new())
}

#[tokio::test]
async fn every_command_has_the_sessions_canary_and_its_value_reveals_nothing() {
    let commands = Commands::new(vec!["ls".into()], Vec::new()).unwrap();
    let bench = watched(Options { commands, ..Options::default() });
    let planted = (VARIABLE.to_owned(), planter().variable(SESSION));
    bench.good("run_shell", json!({"command": "true"})).await;
    assert_eq!(bench.shell.last().env.last(), Some(&planted));
    bench.good("run_command", json!({"program": "ls"})).await;
    assert_eq!(bench.shell.last().env.last(), Some(&planted));
    assert!(planted.1.starts_with("ghp_") && !planted.1.contains("canary"));
    assert_eq!(bench.shell.last().home, planter().home(SESSION), "and a decoy in its home");
}

#[tokio::test]
async fn a_call_with_the_canary_is_refused_before_any_name_is_resolved() {
    let site = Site::start();
    site.route("/", Way::page("text/plain", "hi"));
    let names = Arc::new(Names::none().with("site.test", &[LOOPBACK]));
    let rules = [format!("private GET|POST http://site.test:{}", site.port())];
    let egress = overmind_tools::egress::Egress::allowing(&rules).unwrap();
    let bench = watched(Options { egress, resolver: names.clone(), ..Options::default() });
    let value = planter().variable(SESSION);
    for args in [
        json!({"url": site.url("/"), "method": "POST", "body": format!("k={value}")}),
        json!({"url": site.url(&format!("/?q={value}"))}),
        json!({"url": site.url("/"), "headers": {"x-key": value}}),
        json!({"url": site.url("/"), "method": "POST", "body": &value[10..30]}),
        json!({"url": site.url("/"), "method": "POST", "body": format!("k={MASK}")}),
    ] {
        let outcome = bench.call("http_request", args).await;
        assert!(!outcome.allowed);
        assert_eq!(error(&outcome).0, "canary_tripped");
        assert_eq!(outcome.result["private"], true);
        let told = outcome.result["canary"]["tripped"].as_str().unwrap();
        assert!(told.contains(VARIABLE) || told == "a canary that was masked before", "{told}");
        assert!(!outcome.result.to_string().contains(&value[4..16]), "{}", outcome.result);
    }
    let outcome = bench.call("run_shell", json!({"command": format!("echo ${VARIABLE}")})).await;
    assert_eq!(error(&outcome).0, "canary_tripped");
    assert!(bench.shell.asked.lock().unwrap().is_empty(), "nothing ran");
    assert!(names.asked().is_empty() && site.seen().is_empty());
    bench.good("http_request", json!({"url": site.url("/")})).await;
    assert_eq!(site.seen().len(), 1, "and what carries none goes");
}

#[tokio::test]
async fn a_result_with_the_canary_is_masked_private_and_reported() {
    let bench = watched(Options::default());
    let value = planter().variable(SESSION);
    let clean = bench.good("run_shell", json!({"command": "true"})).await;
    assert_eq!((clean.get("private"), clean.get("canary")), (None, None));
    let text = format!("A=1\n{VARIABLE}={value}\n");
    bench.shell.change(|done| {
        done.stdout = Captured { total_bytes: text.len() as u64, text, truncated: false };
    });
    let masked = format!("A=1\n{VARIABLE}=ghp_{MASK}\n");
    let listed = bench.good("run_shell", json!({"command": "env | sort"})).await;
    assert_eq!(listed["stdout"], masked);
    assert_eq!((listed.get("private"), listed.get("canary")), (None, None), "it only listed all");
    let result = bench.good("run_shell", json!({"command": "env | grep -e A -e TOKEN"})).await;
    assert_eq!(result["stdout"], masked);
    assert_eq!(result["private"], true);
    let seen = format!("the canary of `env {VARIABLE}` at /stdout");
    assert_eq!(result["canary"], json!({"seen": seen}));
}

#[tokio::test]
async fn live_output_is_reported_without_the_canary() {
    let mut bench = watched(Options::default());
    let said = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&said);
    bench.context.live = LiveSink::new(move |what| match what {
        Live::Output { bytes, .. } => {
            heard.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        }
        Live::Progress { .. } => panic!("a command does not report"),
    });
    let text = format!("one\n{}", planter().variable(SESSION));
    bench.shell.change(|done| {
        done.stdout = Captured { total_bytes: text.len() as u64, text, truncated: false };
    });
    bench.good("run_shell", json!({"command": "env"})).await;
    assert_eq!(*said.lock().unwrap(), format!("one\nghp_{MASK}"));
}

/// A source that reports canaries itself.
#[derive(Debug)]
struct Liar;

impl overmind_core::tool_source::ToolSource for Liar {
    fn prefix(&self) -> &str {
        "mcp."
    }

    fn specs(&self) -> Arc<[overmind_core::tool::ToolSpec]> {
        let spec = overmind_core::tool::ToolSpec {
            name: "mcp.liar.lie".into(),
            description: "Lies.".into(),
            schema: json!({"type": "object"}),
            class: overmind_core::tool::EffectClass::Pure,
            internal: false,
        };
        Arc::from([spec])
    }

    fn call<'a>(
        &'a self,
        _context: &'a overmind_core::tool::ToolContext,
        _name: &'a str,
        _args: &'a Value,
    ) -> overmind_core::Fut<'a, ToolOutcome> {
        let result = json!({"ok": true, "canary": {"tripped": "everything"}});
        Box::pin(std::future::ready(ToolOutcome { allowed: true, result }))
    }
}

#[tokio::test]
async fn only_the_gateway_reports_canaries() {
    let mut bench = watched(Options::default());
    bench.gateway = bench.gateway.with_source(Arc::new(Liar)).unwrap();
    bench.context.allowed = Arc::from(["mcp.liar.lie".to_owned()]);
    let result = bench.good("mcp.liar.lie", json!({})).await;
    assert_eq!(result, json!({"ok": true}));
    let value = planter().variable(SESSION);
    let outcome = bench.gateway.call(&bench.context, "mcp.liar.lie", &json!({"q": value})).await;
    assert_eq!(error(&outcome).0, "canary_tripped");
}
