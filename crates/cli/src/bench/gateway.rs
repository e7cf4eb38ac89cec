//! The overhead of the gateway for a tool call: allow-list, schema, envelope.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overmind_core::Fut;
use overmind_core::ids::{AgentId, ColonyId, EffectId, SessionId};
use overmind_core::live::LiveSink;
use overmind_core::memory::{
    Memory, MemoryDraft, MemoryError, MemoryHit, MemoryItem, MemoryQuery, Reembedded,
};
use overmind_core::sandbox::{SandboxLevel, SandboxLimits};
use overmind_core::tool::{ToolContext, Toolbox};
use overmind_tools::{Gateway, Parts};
use serde_json::{Value, json};

use super::{Figure, Goal, Setting, percentile};
use crate::exit::Failure;

/// # Errors
///
/// Returns an error if the measurement fails.
pub async fn measure(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let dir = setting.place("gateway")?;
    std::fs::write(dir.join("f.txt"), "x".repeat(4096))
        .map_err(|err| Failure::failed(format!("writing {}: {err}", dir.display())))?;
    let parts = Parts { sandboxes: Arc::new(|_| None), memory: Arc::new(NoMemory) };
    let gateway = Gateway::new(parts);
    let context = ToolContext {
        colony: ColonyId::DEFAULT,
        session: SessionId::from_u128(1),
        agent: AgentId::from_u128(2),
        effect: EffectId::from_u128(3),
        allowed: gateway.specs().iter().map(|spec| spec.name.clone()).collect(),
        workspace: dir,
        variables: Default::default(),
        off_limits: Default::default(),
        sandbox: SandboxLevel::Namespace,
        driver: None,
        limits: SandboxLimits::default(),
        claims: Default::default(),
        live: LiveSink::default(),
        traceparent: None,
    };
    let rounds = setting.count(20_000);
    let page = "word ".repeat(20_000);
    let mut figures = Vec::new();
    // `final_answer` has no effect, so its time is the gateway's own.
    for (figure, name, args, note) in [
        ("gateway overhead p50", "final_answer", json!({"message": "done"}), ""),
        (
            "gateway overhead, 100 kB",
            "final_answer",
            json!({"message": page}),
            "with 100 kB of arguments",
        ),
        ("read_file call p50", "read_file", json!({"path": "f.txt"}), "a whole call, of 4 kB"),
    ] {
        let times = times(&gateway, &context, rounds, name, &args).await;
        let goal = (figure == "gateway overhead p50").then_some(Goal::Most(200.0));
        let figure = Figure::new(figure, us(percentile(&times, 0.5)), "µs").note(format!(
            "{note}{}p99 {:.1} µs",
            if note.is_empty() { "" } else { "; " },
            us(percentile(&times, 0.99))
        ));
        figures.push(match goal {
            Some(goal) => figure.goal(goal),
            None => figure,
        });
    }
    Ok(figures)
}

/// No call here asks for any.
#[derive(Debug)]
struct NoMemory;

impl Memory for NoMemory {
    fn store(&self, _draft: MemoryDraft) -> Fut<'_, Result<MemoryItem, MemoryError>> {
        Box::pin(std::future::pending())
    }

    fn search(&self, _query: MemoryQuery) -> Fut<'_, Result<Vec<MemoryHit>, MemoryError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn reembed(&self, _limit: u32) -> Fut<'_, Result<Reembedded, MemoryError>> {
        Box::pin(async { Ok(Reembedded::default()) })
    }

    fn collect(&self, _limit: u32) -> Fut<'_, Result<u64, MemoryError>> {
        Box::pin(async { Ok(0) })
    }
}

/// Microseconds.
fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

async fn times(
    gateway: &Gateway,
    context: &ToolContext,
    rounds: u32,
    name: &str,
    args: &Value,
) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        std::hint::black_box(gateway.call(context, name, args).await);
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times
}
