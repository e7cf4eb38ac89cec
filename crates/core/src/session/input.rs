//! The inputs of a session and their form in the log.
//!
//! A session's stream contains three classes of events. *Inputs* are facts from outside: results,
//! answers, orders. *Decisions* follow only from the inputs before them; a replay makes them again
//! and compares. *Observations* (streamed output, tool calls from outside the session) change
//! nothing and are skipped.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::claims::GivenClaim;
use super::given::GivenContext;
use super::room::{self, ROOM_DONE, ROOM_FORKED, ROOM_SNAPSHOT, ROOM_UNDONE};
use crate::agent::AgentSpec;
use crate::attest::AttestationRef;
use crate::command::{LifeEnded, LifeInput, Notice, StopHow};
use crate::gate::{self, GateVerdict};
use crate::ids::{AgentId, ApprovalId, ColonyId, HiveId, RecordId, SessionId, StepId};
use crate::model::{ModelFailure, ModelReply};
use crate::process::provider;
use crate::room::RoomWish;
use crate::room::history::RoomChanges;
use crate::room::stay::{RoomAttested, RoomDecision, RoomInput};
use crate::time::Timestamp;
use crate::tool::ToolOutcome;
use crate::trace::Traceparent;

/// Everything except its inputs that a session's decisions depend on. The payload of `run.queued`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub run_id: SessionId,
    pub colony: ColonyId,
    pub agent_id: AgentId,
    pub agent_version: u32,
    /// Shared with the session, so that each agent is in memory only once for all its sessions.
    pub agent: Arc<AgentSpec>,
    pub task: String,
    /// Empty in sessions that were created before sessions had names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The session that started this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// Maximum number of steps; 0 means no limit.
    pub step_limit: u32,
    pub workspace: String,
    pub created_by: String,
    /// Hash of the tool definitions: see [`super::Toolset`].
    pub toolset: String,
    /// Whether a policy judges each call before it starts.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<ForkOf>,
    /// The environment that it requests. `None`: it works directly in its workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<RoomWish>,
    /// The trace span of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Traceparent>,
    /// Whether it becomes idle after its answer, until somebody sends a message, instead of ending.
    #[serde(default, skip_serializing_if = "is_false")]
    pub conversation: bool,
    /// The record for which a reconciler started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<RecordId>,
    /// The labels by which people and reconcilers select it. They never change.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The contents of its contexts when it was created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contexts: Vec<GivenContext>,
    /// Its memory claims when it was created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<GivenClaim>,
}

/// The origin of a fork, and its changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForkOf {
    pub from: SessionId,
    /// Index of the first step that the fork takes itself.
    pub at: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Whether a policy judges the calls of the fork's own part.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gated: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// One fact from outside. The first one, [`Spec`], creates the session.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// It was placed on a hive for the first time, or after a fork.
    Started {
        epoch: u32,
        hive: HiveId,
        agent_active: bool,
    },
    /// Its hive or Cortex failed while it ran, and it is placed again.
    Recovered {
        epoch: u32,
        hive: HiveId,
    },
    ToolDone {
        effect: u64,
        outcome: ToolOutcome,
        latency_ms: u64,
    },
    ModelDone {
        effect: u64,
        reply: Result<Box<ModelReply>, ModelFailure>,
        latency_ms: u64,
    },
    /// The policy's verdict about [`super::Session::to_judge`].
    Judged {
        verdict: Box<GateVerdict>,
    },
    /// The exact description of a call, for a human to approve.
    Bound {
        effect: u64,
        hash: String,
        expires_at: Option<Timestamp>,
    },
    /// A human answered the question for which the session waits.
    Answered {
        message: String,
        by: String,
        epoch: u32,
        hive: HiveId,
    },
    /// A person sent a message to a conversation that is idle, works or has ended. If the session
    /// had left its place on a hive, the epoch is a new one.
    Told {
        message: String,
        by: String,
        epoch: u32,
        hive: HiveId,
    },
    /// A session that had ended is restored: a conversation becomes idle, and any other session
    /// starts again.
    Restored {
        by: String,
        epoch: u32,
        hive: HiveId,
    },
    /// A human decided about an approval.
    Decided {
        approval: ApprovalId,
        approve: bool,
        reason: Option<String>,
        by: String,
        epoch: u32,
        hive: HiveId,
    },
    Canceled {
        by: String,
        /// The reason in words, if no person requested it.
        reason: Option<String>,
    },
    /// The duration that the agent allows has passed.
    TimeLimit,
    /// A report about the command that the session runs.
    Life(LifeInput),
    /// A report about the session's environment.
    Room(RoomInput),
    /// The repeated part of a fork ends here; the fork's own part follows.
    Forked,
    /// The node shut down cleanly: these effects were decided on and never started.
    HandedOver {
        not_begun: Vec<u64>,
    },
}

/// The meaning of an event of a session's stream for a replay.
#[derive(Clone, Debug, PartialEq)]
pub enum Recorded {
    Queued(Box<Spec>),
    Input(Input),
    Decision,
    /// An observation that the row shows: the measured isolation of the session's sandbox.
    Attested(Box<AttestationRef>),
    /// An observation that the row shows: the measured isolation of a program of its environment.
    RoomAttested(Box<RoomAttested>),
    /// An observation that the row shows: the decision about the work in its environment.
    RoomDone(Box<RoomDecision>),
    /// An observation that the row shows: the size of its changes.
    RoomChanges(RoomChanges),
    Observation,
}

/// The error of an input event whose payload does not match its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload of `{kind}` is not readable: {why}")]
pub struct DecodeError {
    pub kind: String,
    pub why: String,
}

#[derive(Deserialize)]
struct Placed {
    epoch: u32,
    hive: HiveId,
    #[serde(default = "yes")]
    agent_active: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct ToolPayload {
    effect: Option<u64>,
    allowed: bool,
    latency_ms: u64,
    result: Value,
}

#[derive(Deserialize)]
struct ReplyPayload {
    effect: u64,
    latency_ms: u64,
    reply: ModelReply,
}

#[derive(Deserialize)]
struct FailurePayload {
    effect: u64,
    latency_ms: u64,
    error: ModelFailure,
}

#[derive(Deserialize)]
struct AnswerPayload {
    message: String,
    by: String,
    epoch: u32,
    hive: HiveId,
}

#[derive(Deserialize)]
struct DecisionPayload {
    approval_id: ApprovalId,
    approve: bool,
    reason: Option<String>,
    by: String,
    epoch: u32,
    hive: HiveId,
}

#[derive(Deserialize)]
struct JudgedPayload {
    verdict: GateVerdict,
}

#[derive(Deserialize)]
struct BoundPayload {
    effect: u64,
    action_hash: String,
    expires_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct LifeStartedPayload {
    effect: u64,
    pid: u32,
}

#[derive(Deserialize)]
struct LifeEndedPayload {
    effect: u64,
    end: LifeEnded,
}

#[derive(Deserialize)]
struct NoticePayload {
    effect: u64,
    notice: Notice,
}

#[derive(Deserialize)]
struct StopPayload {
    how: StopHow,
    by: String,
}

#[derive(Deserialize)]
struct RestoredPayload {
    by: String,
    epoch: u32,
    hive: HiveId,
}

#[derive(Deserialize)]
struct CancelPayload {
    by: String,
    #[serde(default)]
    reason: Option<String>,
}

/// The kind of the event that names the measured isolation of a session's sandbox.
pub const SANDBOX_ATTESTED: &str = "sandbox.attested";

/// All kinds of events from which a session is rebuilt without comparing decisions: its inputs, and
/// what its row shows. Decisions are then made again.
pub const REBUILT_FROM: &[&str] = &[
    "run.queued",
    "run.started",
    "run.recovered",
    "tool.called",
    "tool.denied",
    "model.infer.completed",
    "model.infer.failed",
    "run.input_received",
    "run.told",
    "run.restored",
    "approval.answered",
    "approval.bound",
    "tool.judged",
    "tool.refused",
    "run.canceled",
    "run.time_limit_reached",
    "run.forked",
    "run.handed_over",
    "process.started",
    "process.ended",
    "process.noticed",
    "process.stop_asked",
    "process.due",
    "room.ready",
    "room.failed",
    "room.closed",
    "room.left",
    ROOM_DONE,
    ROOM_SNAPSHOT,
    ROOM_UNDONE,
    SANDBOX_ATTESTED,
];

#[derive(Deserialize)]
struct RoomDonePayload {
    decision: RoomDecision,
}

#[derive(Default, Deserialize)]
struct CountedPayload {
    changes: Option<RoomChanges>,
}

/// The payload of a snapshot or of an undo.
#[derive(Deserialize)]
struct SavedPayload {
    #[serde(default)]
    snapshot: CountedPayload,
    #[serde(default)]
    undone: CountedPayload,
}

#[derive(Deserialize)]
struct AttestedPayload {
    attestation: AttestationRef,
    /// A program of the environment; `None` for the session's own commands.
    #[serde(default)]
    of: Option<String>,
    #[serde(default)]
    driver: String,
}

#[derive(Deserialize)]
struct CanaryPayload {
    #[serde(default)]
    outside: bool,
}

#[derive(Deserialize)]
struct HandedOverPayload {
    not_begun: Vec<u64>,
}

impl Recorded {
    /// Decodes an event.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the payload of an input is damaged or was written by another version of
    /// the program.
    pub fn decode(kind: &str, payload: &str) -> Result<Self, DecodeError> {
        fn read<'a, T: Deserialize<'a>>(kind: &str, payload: &'a str) -> Result<T, DecodeError> {
            serde_json::from_str(payload)
                .map_err(|err| DecodeError { kind: kind.into(), why: err.to_string() })
        }
        Ok(match kind {
            "run.queued" => Self::Queued(Box::new(read(kind, payload)?)),
            "run.started" => {
                let Placed { epoch, hive, agent_active } = read(kind, payload)?;
                Self::Input(Input::Started { epoch, hive, agent_active })
            }
            "run.recovered" => {
                let Placed { epoch, hive, .. } = read(kind, payload)?;
                Self::Input(Input::Recovered { epoch, hive })
            }
            "tool.called" | "tool.denied" => {
                let ToolPayload { effect, allowed, latency_ms, result } = read(kind, payload)?;
                match effect {
                    Some(effect) => Self::Input(Input::ToolDone {
                        effect,
                        outcome: ToolOutcome { allowed, result },
                        latency_ms,
                    }),
                    // Called through the API in the run's name: the session did not ask for it.
                    None => Self::Observation,
                }
            }
            "model.infer.completed" => {
                let ReplyPayload { effect, latency_ms, reply } = read(kind, payload)?;
                Self::Input(Input::ModelDone { effect, reply: Ok(Box::new(reply)), latency_ms })
            }
            "model.infer.failed" => {
                let FailurePayload { effect, latency_ms, error } = read(kind, payload)?;
                Self::Input(Input::ModelDone { effect, reply: Err(error), latency_ms })
            }
            "run.input_received" => {
                let AnswerPayload { message, by, epoch, hive } = read(kind, payload)?;
                Self::Input(Input::Answered { message, by, epoch, hive })
            }
            "run.told" => {
                let AnswerPayload { message, by, epoch, hive } = read(kind, payload)?;
                Self::Input(Input::Told { message, by, epoch, hive })
            }
            "run.restored" => {
                let RestoredPayload { by, epoch, hive } = read(kind, payload)?;
                Self::Input(Input::Restored { by, epoch, hive })
            }
            "approval.answered" => {
                let DecisionPayload { approval_id, approve, reason, by, epoch, hive } =
                    read(kind, payload)?;
                Self::Input(Input::Decided {
                    approval: approval_id,
                    approve,
                    reason,
                    by,
                    epoch,
                    hive,
                })
            }
            "tool.judged" | "tool.refused" => {
                let JudgedPayload { verdict } = read(kind, payload)?;
                Self::Input(Input::Judged { verdict: Box::new(verdict) })
            }
            "approval.bound" => {
                let BoundPayload { effect, action_hash, expires_at } = read(kind, payload)?;
                Self::Input(Input::Bound { effect, hash: action_hash, expires_at })
            }
            "run.canceled" => {
                let CancelPayload { by, reason } = read(kind, payload)?;
                Self::Input(Input::Canceled { by, reason })
            }
            "process.started" => {
                let LifeStartedPayload { effect, pid } = read(kind, payload)?;
                Self::Input(Input::Life(LifeInput::Started { effect, pid }))
            }
            "process.ended" => {
                let LifeEndedPayload { effect, end } = read(kind, payload)?;
                Self::Input(Input::Life(LifeInput::Ended { effect, end }))
            }
            "process.noticed" => {
                let NoticePayload { effect, notice } = read(kind, payload)?;
                Self::Input(Input::Life(LifeInput::Noticed { effect, notice }))
            }
            "process.stop_asked" => {
                let StopPayload { how, by } = read(kind, payload)?;
                Self::Input(Input::Life(LifeInput::StopAsked { how, by }))
            }
            "process.due" => Self::Input(Input::Life(LifeInput::Due)),
            "room.ready" | "room.failed" | "room.closed" | "room.left" => {
                let read = room::decode(kind, payload).transpose();
                let read =
                    read.map_err(|err| DecodeError { kind: kind.into(), why: err.to_string() });
                read?.map_or(Self::Decision, |input| Self::Input(Input::Room(input)))
            }
            ROOM_DONE => {
                let RoomDonePayload { decision } = read(kind, payload)?;
                Self::RoomDone(Box::new(decision))
            }
            ROOM_SNAPSHOT | ROOM_UNDONE => {
                let SavedPayload { snapshot, undone } = read(kind, payload)?;
                let changes = snapshot.changes.or(undone.changes);
                changes.map_or(Self::Observation, Self::RoomChanges)
            }
            "run.time_limit_reached" => Self::Input(Input::TimeLimit),
            "run.forked" => Self::Input(Input::Forked),
            "run.handed_over" => {
                let HandedOverPayload { not_begun } = read(kind, payload)?;
                Self::Input(Input::HandedOver { not_begun })
            }
            // About a call from outside, as such calls are, or about what a model said.
            "canary.seen" | "canary.tripped" => {
                let CanaryPayload { outside } = read(kind, payload)?;
                if outside { Self::Observation } else { Self::Decision }
            }
            SANDBOX_ATTESTED => {
                let AttestedPayload { attestation, of, driver } = read(kind, payload)?;
                match of {
                    None => Self::Attested(Box::new(attestation)),
                    Some(of) => {
                        Self::RoomAttested(Box::new(RoomAttested { of, driver, attestation }))
                    }
                }
            }
            "model.output.started"
            | "model.output.delta"
            | "model.output.completed"
            | "model.output.restarted"
            | "model.unanswered"
            | "memory.stored"
            | "tool.output.delta"
            | "tool.output.skipped"
            | "tool.progress"
            | "room.progress"
            | ROOM_FORKED
            | "input.sent"
            | "attach.began"
            | "attach.ended"
            | "question.asked"
            | "question.answered"
            | "artifact.saved"
            | "artifact.deleted"
            | "budget.settled"
            | "budget.released"
            | "budget.refused" => Self::Observation,
            kind if provider::EVENTS.contains(&kind) => Self::Observation,
            _ => Self::Decision,
        })
    }
}

/// Facts about the effect that an input answers, for readers of the log.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub(super) step: Option<StepId>,
    pub(super) tool: String,
    pub(super) args: Value,
    /// Summary of a model request.
    pub(super) request: Value,
}

/// Deepest nesting of a value from outside that is kept unchanged. JSON readers stop at 128 levels,
/// and an event's own payload adds some.
const DEEPEST: u32 = 64;

/// Replaces values that are nested deeper than `left` levels by their text.
fn flatten(value: &mut Value, left: u32) {
    match value {
        Value::Array(_) | Value::Object(_) if left == 0 => {
            *value = Value::String(value.to_string())
        }
        Value::Array(items) => items.iter_mut().for_each(|item| flatten(item, left - 1)),
        Value::Object(map) => map.values_mut().for_each(|item| flatten(item, left - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

impl Input {
    /// Makes values of models and tools safe for the log: values nested deeper than 64 levels
    /// become text. Otherwise a hostile answer could create an event that nobody can read back, and
    /// so a session that cannot be recovered. Call this before the session handles the input, so
    /// that it decides on the recorded value.
    pub fn flatten(&mut self) {
        match self {
            Self::ToolDone { outcome, .. } => flatten(&mut outcome.result, DEEPEST),
            Self::ModelDone { reply: Ok(reply), .. } => {
                for call in &mut reply.calls {
                    flatten(&mut call.args, DEEPEST);
                }
                if let Some(state) = &mut reply.provider_state {
                    flatten(state, DEEPEST);
                }
            }
            Self::ModelDone { reply: Err(_), .. }
            | Self::Started { .. }
            | Self::Recovered { .. }
            | Self::Judged { .. }
            | Self::Bound { .. }
            | Self::Answered { .. }
            | Self::Told { .. }
            | Self::Restored { .. }
            | Self::Decided { .. }
            | Self::Canceled { .. }
            | Self::TimeLimit
            | Self::Life(_)
            | Self::Room(_)
            | Self::Forked
            | Self::HandedOver { .. } => {}
        }
    }

    /// Returns the event that records this input.
    pub(super) fn record(
        &self,
        run: SessionId,
        agent: AgentId,
        about: About,
    ) -> (&'static str, Value) {
        match self {
            Self::Started { epoch, hive, agent_active } => (
                "run.started",
                json!({
                    "run_id": run, "agent_id": agent, "epoch": epoch, "hive": hive,
                    "agent_active": agent_active,
                }),
            ),
            Self::Recovered { epoch, hive } => {
                ("run.recovered", json!({"run_id": run, "epoch": epoch, "hive": hive}))
            }
            Self::ToolDone { effect, outcome, latency_ms } => (
                if outcome.allowed { "tool.called" } else { "tool.denied" },
                json!({
                    "run_id": run, "step_id": about.step, "effect": effect,
                    "tool_name": about.tool, "args": about.args, "ok": outcome.ok(),
                    "allowed": outcome.allowed, "latency_ms": latency_ms, "result": outcome.result,
                }),
            ),
            Self::ModelDone { effect, reply: Ok(reply), latency_ms } => (
                "model.infer.completed",
                json!({
                    "run_id": run, "effect": effect, "kind": "action", "request": about.request,
                    "reply": reply, "latency_ms": latency_ms,
                }),
            ),
            Self::ModelDone { effect, reply: Err(error), latency_ms } => (
                "model.infer.failed",
                json!({
                    "run_id": run, "effect": effect, "kind": "action", "request": about.request,
                    "error": error, "latency_ms": latency_ms,
                }),
            ),
            Self::Judged { verdict } => {
                let mut payload = json!({
                    "run_id": run, "tool_name": about.tool, "verdict": verdict,
                });
                if verdict.decision != gate::Decision::Deny {
                    return ("tool.judged", payload);
                }
                // Readers of calls find refused ones in the same form.
                let error = json!({"code": "denied", "message": verdict.advice});
                payload["args"] = about.args;
                payload["ok"] = json!(false);
                payload["allowed"] = json!(false);
                payload["latency_ms"] = json!(0);
                payload["result"] = json!({"ok": false, "error": error});
                ("tool.refused", payload)
            }
            Self::Bound { effect, hash, expires_at } => (
                "approval.bound",
                json!({
                    "run_id": run, "tool_name": about.tool, "effect": effect, "action_hash": hash,
                    "expires_at": expires_at,
                }),
            ),
            Self::Answered { message, by, epoch, hive } => (
                "run.input_received",
                json!({"run_id": run, "message": message, "by": by, "epoch": epoch, "hive": hive}),
            ),
            Self::Told { message, by, epoch, hive } => (
                "run.told",
                json!({"run_id": run, "message": message, "by": by, "epoch": epoch, "hive": hive}),
            ),
            Self::Restored { by, epoch, hive } => {
                ("run.restored", json!({"run_id": run, "by": by, "epoch": epoch, "hive": hive}))
            }
            Self::Decided { approval, approve, reason, by, epoch, hive } => (
                "approval.answered",
                json!({
                    "run_id": run, "approval_id": approval, "approve": approve, "reason": reason,
                    "by": by, "epoch": epoch, "hive": hive,
                }),
            ),
            Self::Canceled { by, reason: None } => {
                ("run.canceled", json!({"run_id": run, "by": by}))
            }
            Self::Canceled { by, reason } => {
                ("run.canceled", json!({"run_id": run, "by": by, "reason": reason}))
            }
            Self::TimeLimit => ("run.time_limit_reached", json!({"run_id": run})),
            Self::Life(life) => match life {
                LifeInput::Started { effect, pid } => {
                    ("process.started", json!({"run_id": run, "effect": effect, "pid": pid}))
                }
                LifeInput::Ended { effect, end } => {
                    ("process.ended", json!({"run_id": run, "effect": effect, "end": end}))
                }
                LifeInput::Noticed { effect, notice } => {
                    ("process.noticed", json!({"run_id": run, "effect": effect, "notice": notice}))
                }
                LifeInput::StopAsked { how, by } => {
                    ("process.stop_asked", json!({"run_id": run, "how": how, "by": by}))
                }
                LifeInput::Due => ("process.due", json!({"run_id": run})),
            },
            Self::Room(input) => room::record(input, run),
            Self::Forked => ("run.forked", json!({"run_id": run})),
            Self::HandedOver { not_begun } => {
                ("run.handed_over", json!({"run_id": run, "not_begun": not_begun}))
            }
        }
    }
}
