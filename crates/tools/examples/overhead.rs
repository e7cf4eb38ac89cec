//! What the gateway adds to a call, in microseconds, on this machine:
//!
//!     cargo run --release -p overmind-tools --example overhead
//!
//! `final_answer` does nothing, so its time is the gateway's own: allow-list, schema, envelope.
//! The other lines are whole calls, for comparison.

#![expect(clippy::print_stdout, reason = "printing figures is all that it does")]

use std::sync::Arc;
use std::time::Instant;

use overmind_core::ids::{AgentId, ColonyId, EffectId, SessionId};
use overmind_core::sandbox::{SandboxLevel, SandboxLimits};
use overmind_core::tool::{ToolContext, Toolbox};
use overmind_testkit::ports::NoMemory;
use overmind_tools::{Gateway, Parts};
use serde_json::{Value, json};

const CALLS: usize = 20_000;

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("f.txt"), "x".repeat(4096)).expect("a file in it");
    let gateway = Gateway::new(Parts { sandboxes: Arc::new(|_| None), memory: Arc::new(NoMemory) });
    let context = ToolContext {
        colony: ColonyId::DEFAULT,
        session: SessionId::from_u128(1),
        agent: AgentId::from_u128(2),
        effect: EffectId::from_u128(3),
        allowed: gateway.specs().iter().map(|spec| spec.name.clone()).collect(),
        workspace: dir.path().to_owned(),
        sandbox: SandboxLevel::Namespace,
        limits: SandboxLimits::default(),
        live: overmind_core::live::LiveSink::default(),
    };
    let page = "word ".repeat(20_000);
    for (what, name, args) in [
        ("the gateway alone", "final_answer", json!({"message": "done"})),
        ("the gateway, 100 kB of arguments", "final_answer", json!({"message": page})),
        ("refused by the schema", "read_file", json!({"path": 7, "nonsense": true})),
        ("refused by the egress rules", "http_request", json!({"url": "https://example.com/"})),
        ("read_file, 4 kB", "read_file", json!({"path": "f.txt"})),
    ] {
        measure(&gateway, &context, what, name, &args).await;
    }
}

async fn measure(gateway: &Gateway, context: &ToolContext, what: &str, name: &str, args: &Value) {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begun = Instant::now();
        let outcome = gateway.call(context, name, args).await;
        times.push(begun.elapsed());
        assert!(outcome.result.is_object(), "every call has an answer");
    }
    times.sort_unstable();
    let at = |share: usize| times[CALLS * share / 100].as_secs_f64() * 1e6;
    println!("{what:34} p50 {:8.1} µs   p99 {:8.1} µs", at(50), at(99));
}
