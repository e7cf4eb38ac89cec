//! Runs (sessions), their steps, and the requests about them.

use std::collections::BTreeMap;

use overmind_core::ids::{AgentId, ApprovalId, ColonyId, HiveId, RecordId, SessionId, StepId};
use overmind_core::row::{SessionRow, StepRow};
use overmind_core::time::Timestamp;
use overmind_core::{attest, model, name};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::problem::{FieldError, refuse_blank, refuse_long};
use crate::{
    Command, Process, RawJson, Room, RoomAction, RoomChanges, RoomWish, RunBudget, RunStatus,
    SandboxLevel, StepType, Verdict,
};

/// One run: one execution of an agent, from start to end. The API also calls it a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Run {
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "ses_0190b2c4d5e67000800000000000002a"))]
    pub id: SessionId,
    /// The name: a DNS label, unique among the runs that have not ended.
    #[cfg_attr(feature = "openapi", schema(example = "brave-otter-7k2"))]
    pub name: String,
    /// The run that started this one.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub parent_id: Option<SessionId>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub agent_id: AgentId,
    /// The agent's current name. Only lists and requests for a single run return it; elsewhere it
    /// is `null`.
    #[serde(default)]
    pub agent_name: Option<String>,
    /// The name of its colony, unless that is `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colony_name: Option<String>,
    pub task: String,
    pub status: RunStatus,
    /// Maximum number of steps of the run; 0 means no limit.
    pub step_limit: u32,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub started_at: Option<Timestamp>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub finished_at: Option<Timestamp>,
    /// The agent's version when the run was created.
    pub agent_version: u32,
    /// How often the run was started; 0 before the first start. A restart after a crash adds 1.
    pub epoch: u32,
    /// The hive on which it was last placed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub hive: Option<HiveId>,
    /// The question to which it waits for an answer.
    pub prompt: Option<String>,
    /// The approval for which it waits.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub approval_id: Option<ApprovalId>,
    pub final_answer: Option<String>,
    /// The error of a failed run: `{"code","message",…}`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub error: Option<Value>,
    pub usage: Usage,
    /// Cost in US dollars so far; `null` if the price of a call is not known.
    pub cost_usd: Option<f64>,
    /// Whether `cost_usd` is an upper bound, because the real cost of a call is not known: the call
    /// broke off, or its end was lost. Only lists and requests for a single run return it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cost_at_most: bool,
    pub step_count: u32,
    /// Number of calls that were refused because they contained a planted secret. Only lists and
    /// requests for a single run return it; elsewhere it is 0.
    #[serde(default)]
    pub alarms: u32,
    /// Why the last model call failed, while the run retries it. Only lists and requests for a
    /// single run return it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    pub model_call_count: u32,
    pub sandbox: SandboxLevel,
    /// The isolation that was measured in the sandbox; `null` until a command first runs in it.
    #[serde(default)]
    pub attestation: Option<Attestation>,
    /// Its process, if its agent runs a command and the command was started.
    #[serde(default)]
    pub process: Option<Process>,
    /// Its environment, if it has its own.
    #[serde(default)]
    pub room: Option<Room>,
    /// Absolute path of its working directory on the hive.
    pub workspace: String,
    pub forked_from: Option<ForkedFrom>,
    /// Who created it: `admin`, the name of an API key, or the id of a run.
    pub created_by: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub colony: ColonyId,
    /// The uid of the resource that owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub owner: Option<RecordId>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The short form of a run, for lists: `view=basic`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunBasic {
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "ses_0190b2c4d5e67000800000000000002a"))]
    pub id: SessionId,
    /// The name: a DNS label, unique among the runs that have not ended.
    #[cfg_attr(feature = "openapi", schema(example = "brave-otter-7k2"))]
    pub name: String,
    /// The run that started this one.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub parent_id: Option<SessionId>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub agent_id: AgentId,
    /// The agent's current name; `null` in the answer to a kill.
    pub agent_name: Option<String>,
    /// The name of its colony, unless that is `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colony_name: Option<String>,
    pub task: String,
    pub status: RunStatus,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub started_at: Option<Timestamp>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub finished_at: Option<Timestamp>,
    pub step_count: u32,
    /// Number of calls that were refused because they contained a planted secret; 0 in the answer
    /// to a kill.
    pub alarms: u32,
    /// Why the last model call failed, while the run retries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Number of restarts of its command.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u32,
    /// Exit code of the last attempt that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether its command was asked to end and still runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// Whether its command has ended and will be restarted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarting: bool,
    /// Cost of its model calls in US dollars; omitted if the price of a call is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Whether `cost_usd` is an upper bound, because the real cost of a call is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cost_at_most: bool,
    /// The directory of the project that it works on; omitted if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The branch that contains its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The size of its changes, compared with the commit at which its branch began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
    /// The decision about its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<RoomAction>,
    /// Whether its worktree is kept until somebody decides about the work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl From<SessionRow> for RunBasic {
    fn from(row: SessionRow) -> Self {
        let command = row.command.unwrap_or_default();
        let room = row.room.map(|room| Room::from(*room));
        Self {
            project: room.is_some().then_some(row.workspace),
            cost_usd: row.cost_microusd.map(dollars),
            cost_at_most: row.cost_at_most,
            done: room.as_ref().and_then(|room| room.done.as_ref()).map(|done| done.action),
            undecided: room.as_ref().is_some_and(|room| room.undecided),
            changes: room.as_ref().and_then(|room| room.changes),
            branch: room.and_then(|room| room.branch),
            id: row.id,
            name: row.name,
            parent_id: row.parent,
            agent_id: row.agent,
            agent_name: None,
            colony_name: None,
            task: row.task,
            status: row.status.into(),
            created_at: row.created_at,
            started_at: row.started_at,
            finished_at: row.finished_at,
            step_count: row.steps,
            alarms: 0,
            trouble: None,
            restarts: command.restarts,
            exit_code: command.exit_code,
            signal: command.signal,
            stopping: command.stopping,
            restarting: command.restart_at.is_some(),
        }
    }
}

impl From<SessionRow> for Run {
    fn from(row: SessionRow) -> Self {
        Self {
            id: row.id,
            name: row.name,
            parent_id: row.parent,
            agent_id: row.agent,
            agent_name: None,
            colony_name: None,
            task: row.task,
            status: row.status.into(),
            step_limit: row.step_limit,
            created_at: row.created_at,
            started_at: row.started_at,
            finished_at: row.finished_at,
            agent_version: row.agent_version,
            epoch: row.epoch,
            hive: row.hive,
            prompt: row.prompt,
            approval_id: row.approval,
            final_answer: row.final_answer,
            error: row.error,
            usage: row.usage.into(),
            cost_usd: row.cost_microusd.map(dollars),
            cost_at_most: row.cost_at_most,
            step_count: row.steps,
            alarms: 0,
            trouble: None,
            model_call_count: row.model_calls,
            sandbox: row.sandbox.into(),
            attestation: row.attestation.map(Into::into),
            process: row.command.map(Into::into),
            room: row.room.map(|room| (*room).into()),
            workspace: row.workspace,
            forked_from: row.forked_from.map(|(run_id, step)| ForkedFrom { run_id, step }),
            created_by: row.created_by,
            colony: row.colony,
            owner: row.owner,
            labels: row.labels,
        }
    }
}

/// Converts millionths to dollars. Exact to the millionth up to 2^53 millionths, which are nine
/// thousand million dollars.
#[expect(clippy::cast_precision_loss, reason = "rounding begins beyond 9e9 dollars")]
fn dollars(microusd: u64) -> f64 {
    microusd as f64 / 1e6
}

/// The isolation that was measured in a run's sandbox: a summary of a signed record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attestation {
    /// Digest of the record (BLAKE3, hexadecimal), which identifies it.
    pub digest: String,
    /// The level that was requested.
    pub asked: SandboxLevel,
    /// The level that the measurement proved. `none` means no isolation.
    pub achieved: SandboxLevel,
    /// Time of the measurement. All runs with the same configuration and kernel share one
    /// measurement.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// Fingerprint of the key that signed the record. The same key signs the log's checkpoints.
    pub signer: Option<String>,
}

impl From<attest::AttestationRef> for Attestation {
    fn from(gist: attest::AttestationRef) -> Self {
        let attest::AttestationRef { digest, asked, achieved, at, signer } = gist;
        Self { digest, asked: asked.into(), achieved: achieved.into(), at, signer }
    }
}

/// The whole record of a sandbox measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttestationRecord {
    pub digest: String,
    /// Result of verifying the signature on this server: `holds`, `unsigned`, `unknown_key` or
    /// `broken`.
    pub seal: String,
    /// The record: `driver`, `asked`, `achieved`, `at`, `took_us`, `kernel`, `config`, `checks`
    /// (each with `name`, `expected`, `measured`, `pass`) and `bounds` (`limit`, `enforced_by`,
    /// `remark`). The digest is computed over exactly this compact text.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub attestation: RawJson,
    /// `{"signer","signature"}`: an Ed25519 signature over the text `overmind attestation 1`, a
    /// zero byte and the 32 bytes of the digest.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub signature: Option<Value>,
}

impl From<attest::Kept> for AttestationRecord {
    fn from(kept: attest::Kept) -> Self {
        let attest::Kept { attested, seal } = kept;
        let text = |value| serde_json::to_string(value).expect("plain data has a JSON form");
        Self {
            digest: attested.digest,
            seal: seal.as_str().to_owned(),
            attestation: RawJson::from_text(&text(&attested.attestation)),
            signature: attested.signature.and_then(|one| serde_json::to_value(one).ok()),
        }
    }
}

/// The run and step from which a run was forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForkedFrom {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
    /// The fork repeats everything before this step.
    pub step: u32,
}

/// Tokens. `input_tokens` counts all prompt tokens, including cached ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_input_tokens: u64,
    pub cache_write_tokens: u64,
    pub reasoning_tokens: u64,
}

impl From<model::Usage> for Usage {
    fn from(usage: model::Usage) -> Self {
        let model::Usage {
            input_tokens,
            output_tokens,
            cached_input_tokens,
            cache_write_tokens,
            reasoning_tokens,
        } = usage;
        Self {
            input_tokens,
            output_tokens,
            cached_input_tokens,
            cache_write_tokens,
            reasoning_tokens,
        }
    }
}

/// One step of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Step {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: StepId,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
    /// Index of the step, from 0, without gaps.
    pub idx: u32,
    #[serde(rename = "type")]
    pub kind: StepType,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub input_json: Value,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub output_json: Option<Value>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub started_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub finished_at: Option<Timestamp>,
    pub error: Option<String>,
    /// Index of its turn, from 0.
    pub turn: u32,
}

impl From<StepRow> for Step {
    fn from(row: StepRow) -> Self {
        Self {
            id: row.id,
            run_id: row.session,
            idx: row.idx,
            kind: row.kind.into(),
            input_json: row.input,
            output_json: row.output,
            started_at: row.started_at,
            finished_at: row.finished_at,
            error: row.error,
            turn: row.turn,
        }
    }
}

/// Body of `POST /api/runs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunCreate {
    /// The agent's id or exact name.
    #[cfg_attr(feature = "openapi", schema(example = "fixer"))]
    pub agent_id: String,
    /// The task for the agent. May be empty.
    #[cfg_attr(feature = "openapi", schema(example = "fix the failing test"))]
    pub task: String,
    /// Maximum number of steps of the run; 0 means no limit. Default: the agent's `max_steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_limit: Option<u32>,
    /// Absolute directory on the server. Default: `engine.workspace`, or an empty private directory
    /// if that is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The run's name: 1 to 63 small letters, digits and hyphens. Default: a generated name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 63, example = "mend-tests"))]
    pub name: Option<String>,
    /// The parent run: an id, or the name of a run that has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Replaces the agent's command for this run. An empty `argv` keeps the agent's `argv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// Replaces the sandbox of an agent that runs a command, for this run. It must be stronger than
    /// the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxLevel>,
    /// The environment that the run gets. Default: its own worktree in a git repository, and
    /// otherwise the directory itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<RoomWish>,
    /// Whether the run becomes `idle` after its answer, keeps its environment, and continues when
    /// it gets a message, until it is stopped or its work is decided. By default, only a program
    /// that reads further input does so, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<bool>,
    /// Labels for selecting runs, such as `{"app": "web"}`, with the syntax of Kubernetes labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Names of contexts whose values and prompt the run gets, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 16))]
    pub contexts: Vec<String>,
    /// Memory claims that the run uses, at most 8: `NAME`, or `NAME:ro` to read only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 8))]
    pub memory_claims: Vec<String>,
    /// Most that this run and all runs below it may spend together. An admin can raise it with `PUT
    /// /api/budgets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<RunBudget>,
}

impl RunCreate {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        refuse_blank(&mut errors, "agent_id", &self.agent_id);
        if let Some(workspace) = &self.workspace
            && !workspace.starts_with('/')
        {
            errors.push(FieldError::new("workspace", "must be an absolute path"));
        }
        if let Some(name) = &self.name
            && let Err(why) = name::check(name)
        {
            errors.push(FieldError::new("name", why));
        }
        if let Some(room) = &self.room {
            room.check(&mut errors);
        }
        if let Some(budget) = &self.budget {
            budget.check(&mut errors);
        }
        errors
    }
}

/// Body of `POST /api/runs/{id}/input`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunInput {
    /// The message. Must not be blank.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub message: String,
}

impl RunInput {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        refuse_blank(&mut errors, "message", &self.message);
        errors
    }
}

/// Body of `POST /api/runs/{id}/approvals/{approval_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ApprovalAnswer {
    pub decision: Verdict,
    /// The reason, at most 2,000 characters. The log keeps it, and the agent gets it if the
    /// approval is denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub reason: Option<String>,
}

impl ApprovalAnswer {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if let Some(reason) = &self.reason {
            refuse_long(&mut errors, "reason", reason, 2000);
        }
        errors
    }
}

/// Body of `POST /api/runs/{id}/fork`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// The fork repeats everything before this step.
    pub at: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Replaces the agent's role text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The fork's name: 1 to 63 small letters, digits and hyphens. Default: a generated name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 63, example = "try-again"))]
    pub name: Option<String>,
}

impl ForkRequest {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (field, value) in [("model", &self.model), ("prompt", &self.prompt)] {
            if let Some(value) = value {
                refuse_blank(&mut errors, field, value);
            }
        }
        if let Some(name) = &self.name
            && let Err(why) = name::check(name)
        {
            errors.push(FieldError::new("name", why));
        }
        errors
    }
}

/// Body of `POST /api/runs/{id}/tools/call`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ToolCallRequest {
    /// The tool's name. If it is unknown or forbidden, the tool gateway reports that, with status
    /// 200.
    #[cfg_attr(feature = "openapi", schema(example = "run_shell"))]
    pub tool_name: String,
    /// The arguments, an object. Default: `{}`.
    #[serde(default = "empty_object")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub args: Value,
}

pub(crate) fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

impl ToolCallRequest {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        crate::problem::refuse_non_object(&mut errors, "args", &self.args);
        errors
    }
}

/// The result of replaying a run's decisions from its log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VerifyReport {
    /// Whether all replayed decisions are the same as the logged ones.
    pub ok: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
    pub events: u64,
    /// Number of events that were decided again and compared.
    pub decided: u64,
    pub divergence: Option<Divergence>,
}

/// The first event that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Divergence {
    pub seq: u64,
    pub recorded: String,
    pub decided: String,
}

/// A comparison of two runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Diff {
    pub a: Run,
    pub b: Run,
    /// Number of steps at the start that are equal in both runs.
    pub common: u32,
    pub rows: Vec<DiffRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffRow {
    pub idx: u32,
    pub a: Option<Step>,
    pub b: Option<Step>,
    pub same: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_in_millionths_keeps_its_digits_as_dollars() {
        assert_eq!(serde_json::to_string(&dollars(1_234_567)).unwrap(), "1.234567");
        assert_eq!(serde_json::to_string(&dollars(1)).unwrap(), "1e-6");
    }

    #[test]
    fn a_run_needs_an_agent_and_takes_an_empty_task() {
        let run = RunCreate { agent_id: "fixer".into(), ..RunCreate::default() };
        assert_eq!(run.check(), []);
        assert_eq!(RunCreate::default().check()[0].field, "agent_id");
        let relative = RunCreate { workspace: Some("src".into()), ..run };
        assert_eq!(relative.check(), [FieldError::new("workspace", "must be an absolute path")]);
    }

    #[test]
    fn tool_arguments_default_to_an_empty_object_and_must_be_an_object() {
        let call: ToolCallRequest = serde_json::from_str(r#"{"tool_name":"x"}"#).unwrap();
        assert_eq!(call.args, empty_object());
        let bad: ToolCallRequest = serde_json::from_str(r#"{"tool_name":"x","args":[1]}"#).unwrap();
        assert_eq!(bad.check(), [FieldError::new("args", "must be an object, not an array")]);
    }
}
