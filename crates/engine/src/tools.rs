//! Tools called through the API in a run's name.

use std::sync::Arc;

use overmind_core::agent::AgentSpec;
use overmind_core::attest::AttestationRef;
use overmind_core::bus::{Assignment, ToHive};
use overmind_core::canary::{self, Alarm};
use overmind_core::gate::{self, Labels};
use overmind_core::ids::{EffectId, SessionId};
use overmind_core::mesh::{DOOR_MEMORY, DOOR_TOOLS};
use overmind_core::row::{Role, SessionRow};
use overmind_core::store::{Change, Commit, Guard, NewEvent, Page, StreamId};
use overmind_core::tool::{ToolOutcome, ToolSpec};
use serde_json::{Value, json};

use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::cortex::{Called, shutting_down};
use crate::error::EngineError;
use crate::request::ToolCallDraft;

/// The run whose door a caller stands at.
fn door_of(by: &Caller) -> Result<SessionId, EngineError> {
    match by.rights {
        Rights::Session { session, .. } => Ok(session),
        Rights::Role(_) => Err(EngineError::Forbidden {
            message: "this door is a run's own: use the token in its OVERMIND_TOKEN".into(),
        }),
    }
}

fn door() -> impl Iterator<Item = &'static str> {
    DOOR_TOOLS.into_iter().chain(DOOR_MEMORY)
}

impl Engine {
    /// Every registered tool, by name.
    pub fn tool_list(&self) -> Arc<[ToolSpec]> {
        self.tools.specs()
    }

    /// Calls a tool as the run's agent would, with its allow-list and sandbox, and records it in
    /// the run's log. The run itself does not hear of it. Tools that need an approval are
    /// refused here: the caller is not the human who decides.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] for the run or its agent. A denied or failed call is no error:
    /// it is in the outcome.
    pub async fn tool_call(
        &self,
        by: &Caller,
        id: SessionId,
        call: ToolCallDraft,
    ) -> Result<ToolOutcome, EngineError> {
        by.require_for(Role::Operator, id)?;
        self.require_host_of(by, id).await?;
        self.tool_call_with(by, id, call, &[]).await
    }

    /// The tools that a run's own door offers: those of the mesh and of the memory, and what its
    /// agent's list of tools names. Only runs have a door.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] for a caller that is no run.
    pub async fn door_tools(&self, by: &Caller) -> Result<Vec<ToolSpec>, EngineError> {
        let row = self.find_session(door_of(by)?).await?;
        let agent = self.agent_at(&row).await?;
        let offered = |spec: &&ToolSpec| {
            !spec.internal
                && (door().any(|name| name == spec.name)
                    || agent.tools_allowed.contains(&spec.name))
        };
        Ok(self.tools.specs().iter().filter(offered).cloned().collect())
    }

    /// Calls one of them, as [`Engine::tool_call`] does.
    ///
    /// # Errors
    ///
    /// As there, and [`EngineError::Forbidden`] for a caller that is no run.
    pub async fn door_call(
        &self,
        by: &Caller,
        tool: String,
        args: Value,
    ) -> Result<ToolOutcome, EngineError> {
        let id = door_of(by)?;
        let more: Vec<&str> = door().collect();
        self.tool_call_with(by, id, ToolCallDraft { tool, args }, &more).await
    }

    /// `more` are tools that are allowed beside those of the agent's list.
    async fn tool_call_with(
        &self,
        by: &Caller,
        id: SessionId,
        call: ToolCallDraft,
        more: &[&str],
    ) -> Result<ToolOutcome, EngineError> {
        if self.cortex.draining() {
            return Err(shutting_down());
        }
        let row = self.find_session(id).await?;
        let mut agent = self.agent_at(&row).await?;
        agent.tools_allowed.extend(more.iter().map(|name| (*name).to_owned()));
        let ToolCallDraft { tool, mut args } = call;
        let effect = EffectId::mint(&*self.cortex.ids);
        let trail = self.trail_of_call(by, id).await?;
        let refused = self.refuses(&row, &agent, &tool, &args);
        let called = if let Some(outcome) = refused {
            Called { outcome, latency_ms: 0, attested: None }
        } else {
            let assignment = Assignment {
                session: id,
                epoch: row.epoch,
                workspace: row.directory().to_owned(),
                has_room: row.has_worktree(),
                name: row.name,
                colony: row.colony,
                agent: row.agent,
                agent_name: agent.name,
                tools_allowed: agent.tools_allowed.into(),
                sandbox: row.sandbox,
                trail,
            };
            let answer = self.cortex.await_call(effect);
            let (name, args) = (tool.clone(), args.clone());
            let message = ToHive::CallTool { call: effect, assignment, name, args };
            if let Err(err) = self.cortex.bus.send(self.cortex.hive(), message).await {
                self.cortex.forget_call(effect);
                return Err(EngineError::Unavailable { message: err.to_string() });
            }
            answer.await.map_err(|_| shutting_down())?
        };
        let Called { mut outcome, latency_ms, attested } = called;
        self.cortex.store.redact(&mut outcome.result);
        if let Some(planter) = &self.cortex.config.canaries {
            planter.of(id).mask(&mut args);
        }
        let now = self.cortex.clock.now();
        let (mut events, mut changes) = (Vec::new(), Vec::new());
        if let Some((alarm, what)) = canary::told_by(&outcome.result) {
            self.cortex.counters.of_event(alarm.kind());
            if alarm == Alarm::Tripped {
                changes.push(self.cortex.alarms.raise(id, now));
            }
            events.push(NewEvent {
                stream: StreamId::Session(id),
                kind: alarm.kind(),
                ts: now,
                payload: json!({
                    "run_id": id, "outside": true, "by": by.name, "tool_name": tool, "what": what,
                }),
            });
        }
        let attestation = attested.as_deref().map(AttestationRef::from);
        if let Some(attested) = attested {
            // The record, for the event that names it; the run's own row is its driver's.
            changes.push(Change::AttestationPut(Arc::clone(&attested)));
            self.cortex.attested(id, row.epoch, attested);
        }
        let mut event = NewEvent {
            stream: StreamId::Session(id),
            kind: if outcome.allowed { "tool.called" } else { "tool.denied" },
            ts: now,
            payload: json!({
                "run_id": id, "step_id": null, "call_id": effect, "by": by.name,
                "tool_name": tool, "args": args, "ok": outcome.ok(), "allowed": outcome.allowed,
                "latency_ms": latency_ms, "result": outcome.result,
            }),
        };
        if let Some(trace) = by.trace {
            event.payload["traceparent"] = json!(trace);
        }
        if let Some(attestation) = attestation {
            event.payload["attestation"] = json!(attestation);
        }
        events.insert(0, event);
        let guards = vec![Guard::SessionExists { session: id }];
        self.cortex.store.commit(Commit { guards, events, changes }).await?;
        Ok(outcome)
    }

    /// Why a call from outside may not happen: the policy forbids it, or a human would have to
    /// agree, and the caller is not the one who decides.
    fn refuses(
        &self,
        row: &SessionRow,
        agent: &AgentSpec,
        tool: &str,
        args: &Value,
    ) -> Option<ToolOutcome> {
        let refused = |code, message| {
            Some(ToolOutcome { allowed: false, ..ToolOutcome::failure(code, message) })
        };
        let outside = self.tools.specs().iter().any(|spec| spec.name == tool && !spec.internal);
        let asks = agent.approvals.iter().any(|name| name == "*" || *name == tool);
        let decision = match &self.cortex.gate {
            Some(_) if outside => {
                let verdict = self.cortex.judge(row, agent, tool, args, Labels::default(), false);
                if verdict.decision == gate::Decision::Deny {
                    return refused("denied", verdict.advice);
                }
                verdict.decision
            }
            Some(_) | None => gate::Decision::Allow,
        };
        if asks || decision == gate::Decision::Ask {
            let message =
                format!("`{tool}` needs an approval, which only the run itself can ask for");
            return refused("tool_not_allowed", message);
        }
        None
    }

    /// The agent as it was when the run was made.
    async fn agent_at(&self, row: &SessionRow) -> Result<AgentSpec, EngineError> {
        let after = row.agent_version.checked_add(1);
        let page = Page { limit: 1, after };
        let versions = self.cortex.store.agent_versions(row.agent, page).await?;
        let agent = versions.into_iter().next().ok_or_else(|| EngineError::not_found("Agent"))?;
        Ok(agent.spec)
    }
}
