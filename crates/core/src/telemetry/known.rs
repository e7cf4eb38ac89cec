//! The facts that all spans of a session share.

use crate::ids::{AgentId, SessionId};
use crate::session::{Recorded, Spec};
use crate::store::LogEvent;
use crate::time::Timestamp;
use crate::trace::Traceparent;

/// The contents of a session's first event.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    pub session: SessionId,
    pub agent: AgentId,
    pub agent_name: String,
    pub agent_version: u32,
    pub name: String,
    pub model: String,
    pub task: String,
    pub parent: Option<SessionId>,
    pub queued_at: Timestamp,
    /// The session's own span.
    pub here: Traceparent,
    /// The span of the request that started it.
    pub given: Option<Traceparent>,
    /// Events up to this one are copies of another session's events, and were already exported for
    /// it.
    pub copied: u64,
}

impl Known {
    /// The kinds of events that [`Known::of`] reads.
    pub const KINDS: &'static [&'static str] = &["run.queued", "run.forked"];

    /// Reads the first events of these kinds. `None` without a readable `run.queued`.
    pub fn of(events: &[LogEvent]) -> Option<Self> {
        let first = events.first()?;
        let Ok(Recorded::Queued(spec)) = Recorded::decode(&first.kind, &first.payload) else {
            return None;
        };
        let Spec {
            run_id, agent_id, agent_version, agent, task, name, parent, fork, trace, ..
        } = *spec;
        let forked = events.iter().find(|event| &*event.kind == "run.forked");
        let copied = match (fork, forked) {
            (Some(_), Some(end)) => end.seq,
            // A fork is written in one commit, so its end exists.
            (Some(_), None) | (None, _) => 0,
        };
        Some(Self {
            session: run_id,
            agent: agent_id,
            agent_name: agent.name.clone(),
            agent_version,
            name,
            model: agent.model.clone(),
            task,
            parent,
            queued_at: first.ts,
            here: Traceparent::of_session(run_id, trace),
            given: trace,
            copied,
        })
    }
}
