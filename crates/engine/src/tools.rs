//! Tools that are called through the API on behalf of a run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use overmind_core::agent::AgentSpec;
use overmind_core::attest::AttestationRef;
use overmind_core::bus::{Assignment, ToHive};
use overmind_core::canary::{self, Alarm};
use overmind_core::gate::{self, Labels};
use overmind_core::ids::{AgentId, EffectId, SessionId};
use overmind_core::mesh::{DESK_TOOLS, DOOR_MEMORY, DOOR_TOOLS};
use overmind_core::row::{Role, SessionRow};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::{Change, Commit, Guard, NewEvent, Page, StreamId};
use overmind_core::tool::{ToolOutcome, ToolSpec};
use overmind_core::trace::Trail;
use serde_json::{Value, json};

use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::cortex::{Called, gate_request, lock, shutting_down};
use crate::error::EngineError;
use crate::request::ToolCallDraft;

mod consent;

use consent::Asker;

/// The prefix of the names of MCP servers' tools.
const MCP: &str = "mcp.";

/// Why a call does not begin at once.
enum Refusal {
    No(ToolOutcome),
    /// A person must approve first; the text is for callers without an inbox.
    Asks(String),
}

impl Refusal {
    /// The result for the caller if no person is asked.
    fn outcome(self) -> ToolOutcome {
        match self {
            Self::No(outcome) => outcome,
            Self::Asks(message) => {
                let outcome = ToolOutcome::failure("tool_not_allowed", message);
                ToolOutcome { allowed: false, ..outcome }
            }
        }
    }

    fn no(code: &str, message: impl Into<String>) -> Option<Self> {
        Some(Self::No(ToolOutcome { allowed: false, ..ToolOutcome::failure(code, message) }))
    }
}

/// The set of tools that a caller uses.
enum Door {
    Run(SessionId),
    /// The tools of a key, with the rights of its calls: at most an operator's, except for an
    /// admin.
    Key(Caller),
}

fn door_of(by: &Caller) -> Result<Door, EngineError> {
    match by.rights {
        Rights::Session { session, .. } => Ok(Door::Run(session)),
        Rights::Role(Role::Mcp) => {
            let rights = Rights::Role(Role::Operator);
            Ok(Door::Key(Caller { rights, ..by.clone() }))
        }
        Rights::Role(_) | Rights::System(_) => {
            by.require(Role::Operator)?;
            Ok(Door::Key(by.clone()))
        }
    }
}

/// Whether a key may use a tool: one that needs no run, and tools of MCP servers.
fn for_keys(spec: &ToolSpec) -> bool {
    !spec.internal && (DESK_TOOLS.contains(&&*spec.name) || spec.name.starts_with(MCP))
}

/// The caller of a key's call.
struct Seat<'a> {
    engine: &'a Engine,
    session: SessionId,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        lock(&self.engine.cortex.mesh.seats).remove(&self.session);
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
    /// the run's log. The run itself does not notice. Tools that need an approval are refused here,
    /// because the caller is not the human who decides.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] for the run or its agent. A denied or failed call is no error: the
    /// outcome contains it.
    pub async fn tool_call(
        &self,
        by: &Caller,
        id: SessionId,
        call: ToolCallDraft,
    ) -> Result<ToolOutcome, EngineError> {
        by.require_for(Role::Operator, id)?;
        self.require_host_of(by, id).await?;
        self.tool_call_with(by, id, call, None).await
    }

    /// The tools that `/mcp` offers. A run gets those of the mesh and the memory, and those in its
    /// agent's list. A key gets those of MCP servers, and those of the mesh that need no run.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] for a key of another scope, or below operator.
    pub async fn door_tools(&self, by: &Caller) -> Result<Vec<ToolSpec>, EngineError> {
        let run = match door_of(by)? {
            Door::Run(run) => run,
            Door::Key(_) => {
                let specs = self.tools.specs();
                return Ok(specs.iter().filter(|spec| for_keys(spec)).cloned().collect());
            }
        };
        let row = self.find_session(run).await?;
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
    /// The same as there, and as for [`Engine::door_tools`].
    pub async fn door_call(
        &self,
        by: &Caller,
        tool: String,
        args: Value,
    ) -> Result<ToolOutcome, EngineError> {
        let call = ToolCallDraft { tool, args };
        match door_of(by)? {
            Door::Run(id) => {
                let more: Vec<&str> = door().collect();
                self.tool_call_with(by, id, call, Some(&more)).await
            }
            Door::Key(by) => self.tool_call_of_key(by, call).await,
        }
    }

    /// The files that a result of [`Engine::door_call`] names, by their paths and as base64: as
    /// many as have at most `max_bytes` in total before encoding.
    ///
    /// # Errors
    ///
    /// The same as there.
    pub async fn door_files(
        &self,
        by: &Caller,
        result: &Value,
        max_bytes: usize,
    ) -> Result<BTreeMap<String, String>, EngineError> {
        let named =
            result.get("artifacts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut found = BTreeMap::new();
        if named.is_empty() {
            return Ok(found);
        }
        let workspace = match door_of(by)? {
            Door::Run(run) => self.find_session(run).await?.directory().to_owned(),
            Door::Key(_) => self.workspace_of_keys(),
        };
        let mut left = max_bytes;
        for path in named.iter().filter_map(Value::as_str) {
            if let Some(bytes) = self.tools.artifact(&workspace, path, left).await {
                left = left.saturating_sub(bytes.len());
                found.insert(path.to_owned(), BASE64.encode(bytes));
            }
        }
        Ok(found)
    }

    /// The directory in which calls of keys work.
    fn workspace_of_keys(&self) -> PathBuf {
        let config = &self.cortex.config;
        config.workspace.join(if config.private { "keys" } else { "" })
    }

    /// A call on behalf of a key: the policy judges it like one of an agent with that name, and the
    /// system's log records it.
    async fn tool_call_of_key(
        &self,
        by: Caller,
        call: ToolCallDraft,
    ) -> Result<ToolOutcome, EngineError> {
        if self.cortex.draining() {
            return Err(shutting_down());
        }
        let ToolCallDraft { tool, args } = call;
        let effect = EffectId::mint(&*self.cortex.ids);
        let known = self.tools.specs().iter().any(|spec| spec.name == tool && for_keys(spec));
        let refused = match self.refuses_key(&by, known, &tool, &args) {
            Some(Refusal::Asks(_)) if tool.starts_with(MCP) => {
                self.consented(Asker::Key(&by), &tool, &args).await?
            }
            refused => refused.map(Refusal::outcome),
        };
        let called = match refused {
            Some(outcome) => Called { outcome, latency_ms: 0, attested: None },
            None => {
                let config = &self.cortex.config;
                let seat = self.take_seat(&by);
                let assignment = Assignment {
                    session: seat.session,
                    epoch: 0,
                    workspace: self.workspace_of_keys(),
                    room: None,
                    name: by.name.clone(),
                    colony: by.colony,
                    agent: AgentId::from_u128(0),
                    agent_name: by.name.clone(),
                    tools_allowed: Arc::from([tool.clone()]),
                    sandbox: SandboxLevel::Namespace,
                    given: Arc::default(),
                    files: Arc::default(),
                    claims: Arc::default(),
                    trail: by.trace.map(|here| Trail { here, recorded: config.traced }),
                };
                self.called_by_hive(effect, assignment, &tool, &args).await?
            }
        };
        let Called { mut outcome, latency_ms, attested: _ } = called;
        self.cortex.store.redact(&mut outcome.result);
        let mut event = NewEvent {
            stream: StreamId::System,
            kind: if outcome.allowed { "mcp.called" } else { "mcp.denied" },
            ts: self.cortex.clock.now(),
            payload: json!({
                "call_id": effect, "by": by.name, "tool_name": tool, "args": args,
                "ok": outcome.ok(), "allowed": outcome.allowed, "latency_ms": latency_ms,
                "result": outcome.result,
            }),
        };
        if let Some(trace) = by.trace {
            event.payload["traceparent"] = json!(trace);
        }
        let commit = Commit { guards: Vec::new(), events: vec![event], changes: Vec::new() };
        self.cortex.store.commit(commit).await?;
        Ok(outcome)
    }

    /// Lets the Hive call a tool, and waits for the result.
    async fn called_by_hive(
        &self,
        effect: EffectId,
        assignment: Assignment,
        tool: &str,
        args: &Value,
    ) -> Result<Called, EngineError> {
        let answer = self.cortex.await_call(effect);
        let (name, args) = (tool.to_owned(), args.clone());
        let message = ToHive::CallTool { call: effect, assignment, name, args };
        if let Err(err) = self.cortex.bus.send(self.cortex.hive(), message).await {
            self.cortex.forget_call(effect);
            return Err(EngineError::Unavailable { message: err.to_string() });
        }
        answer.await.map_err(|_| shutting_down())
    }

    /// Why a key's call may not be made.
    fn refuses_key(&self, by: &Caller, known: bool, tool: &str, args: &Value) -> Option<Refusal> {
        if !known {
            return Refusal::no("tool_not_allowed", format!("a key is not offered `{tool}`"));
        }
        if let Some(why) = self.tools.misfit(tool, args) {
            return Some(Refusal::No(ToolOutcome::failure("bad_args", why)));
        }
        let gate = self.cortex.gate.as_ref()?;
        let colony = self.colony_name(by.colony);
        let request = gate_request(colony, &by.name, SandboxLevel::Namespace, "", tool, args);
        let verdict = gate.judge(&request);
        match verdict.decision {
            gate::Decision::Allow => None,
            gate::Decision::Deny => Refusal::no("denied", verdict.advice),
            gate::Decision::Ask => Some(Refusal::Asks(format!(
                "the policy asks a person about `{tool}`, and a call with a key has no run that \
                    can wait: allow it for the agent `{}` in policy.toml, or call it from a run",
                by.name
            ))),
        }
    }

    /// Registers the owner of a key's call for the tools of the mesh, as long as the returned value
    /// exists.
    fn take_seat(&self, by: &Caller) -> Seat<'_> {
        let session = SessionId::mint(&*self.cortex.ids);
        lock(&self.cortex.mesh.seats).insert(session, by.clone());
        Seat { engine: self, session }
    }

    /// For `/mcp`, `door` are the tools that are allowed besides the agent's list, and people are
    /// asked if they have to approve.
    async fn tool_call_with(
        &self,
        by: &Caller,
        id: SessionId,
        call: ToolCallDraft,
        door: Option<&[&str]>,
    ) -> Result<ToolOutcome, EngineError> {
        if self.cortex.draining() {
            return Err(shutting_down());
        }
        let row = self.find_session(id).await?;
        let mut agent = self.agent_at(&row).await?;
        let more = door.unwrap_or_default().iter();
        agent.tools_allowed.extend(more.map(|name| (*name).to_owned()));
        let ToolCallDraft { tool, mut args } = call;
        let effect = EffectId::mint(&*self.cortex.ids);
        let trail = self.trail_of_call(by, id).await?;
        let refused = match self.refuses(&row, &agent, &tool, &args) {
            Some(Refusal::Asks(_)) if door.is_some() && tool.starts_with(MCP) => {
                self.consented(Asker::Run(&row), &tool, &args).await?
            }
            refused => refused.map(Refusal::outcome),
        };
        let called = if let Some(outcome) = refused {
            Called { outcome, latency_ms: 0, attested: None }
        } else {
            let assignment = Assignment {
                session: id,
                epoch: row.epoch,
                workspace: row.directory().to_owned(),
                room: row.surroundings().map(Arc::new),
                name: row.name,
                colony: row.colony,
                agent: row.agent,
                agent_name: agent.name,
                tools_allowed: agent.tools_allowed.into(),
                sandbox: row.sandbox,
                // A caller on behalf of a run has its own variables.
                given: Arc::default(),
                files: Arc::default(),
                claims: self.spec_of(id).await?.claims.clone().into(),
                trail,
            };
            self.called_by_hive(effect, assignment, &tool, &args).await?
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
            // This is the record that the event names; the run's own row belongs to its driver.
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

    /// Why a call from outside may not be made: the policy forbids it, or a human would have to
    /// approve, and the caller is not the one who decides.
    fn refuses(
        &self,
        row: &SessionRow,
        agent: &AgentSpec,
        tool: &str,
        args: &Value,
    ) -> Option<Refusal> {
        let outside = self.tools.specs().iter().any(|spec| spec.name == tool && !spec.internal);
        // The gateway refuses tools that the agent may not call, whatever the arguments are.
        let listed = agent.tools_allowed.iter().any(|name| name == tool);
        if let Some(why) = self.tools.misfit(tool, args).filter(|_| outside && listed) {
            return Some(Refusal::No(ToolOutcome::failure("bad_args", why)));
        }
        let asks = agent.approvals.iter().any(|name| name == "*" || *name == tool);
        let decision = match &self.cortex.gate {
            Some(_) if outside => {
                let verdict = self.cortex.judge(row, agent, tool, args, Labels::default(), false);
                if verdict.decision == gate::Decision::Deny {
                    return Refusal::no("denied", verdict.advice);
                }
                verdict.decision
            }
            Some(_) | None => gate::Decision::Allow,
        };
        if asks || decision == gate::Decision::Ask {
            let message =
                format!("`{tool}` needs an approval, which only the run itself can ask for");
            return Some(Refusal::Asks(message));
        }
        None
    }

    /// The agent's definition when the run was made.
    pub(crate) async fn agent_at(&self, row: &SessionRow) -> Result<AgentSpec, EngineError> {
        let after = row.agent_version.checked_add(1);
        let page = Page { limit: 1, after };
        let versions = self.cortex.store.agent_versions(row.agent, page).await?;
        let agent = versions.into_iter().next().ok_or_else(|| EngineError::not_found("Agent"))?;
        Ok(agent.spec)
    }
}
