//! Runs (sessions) on the wire, their steps, and what can be asked of them.

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

/// One run: an agent at work, from placement to end. Also served as a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Run {
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "ses_0190b2c4d5e67000800000000000002a"))]
    pub id: SessionId,
    /// A DNS label, unique among the runs that have not ended.
    #[cfg_attr(feature = "openapi", schema(example = "brave-otter-7k2"))]
    pub name: String,
    /// The run that it was started for.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub parent_id: Option<SessionId>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub agent_id: AgentId,
    /// What its agent is called now. Only lists and single runs that are asked for say so; elsewhere
    /// it is `null`.
    #[serde(default)]
    pub agent_name: Option<String>,
    pub task: String,
    pub status: RunStatus,
    /// 0 is none.
    pub step_limit: u32,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub started_at: Option<Timestamp>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub finished_at: Option<Timestamp>,
    /// The agent's version when the run was made.
    pub agent_version: u32,
    /// How often it was started; 0 before the first start. A restart after a crash raises it.
    pub epoch: u32,
    /// The hive it was last placed on.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub hive: Option<HiveId>,
    /// The question it waits for an answer to.
    pub prompt: Option<String>,
    /// The approval it waits for.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub approval_id: Option<ApprovalId>,
    pub final_answer: Option<String>,
    /// `{"code","message",…}` of a failed run.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub error: Option<Value>,
    pub usage: Usage,
    /// US dollars so far; `null` as soon as one call had no known price.
    pub cost_usd: Option<f64>,
    /// `cost_usd` is the most that it can be: the real cost of a call is not known, since it broke off or
    /// its end was lost. Only lists and single runs that are asked for say so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cost_at_most: bool,
    pub step_count: u32,
    /// Calls that were refused because they carried a planted secret. Only lists and single runs
    /// that are asked for say so; elsewhere it is 0.
    #[serde(default)]
    pub alarms: u32,
    /// Why its last model call was not answered, while it has not ended and tries again. Only lists and
    /// single runs that are asked for say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    pub model_call_count: u32,
    pub sandbox: SandboxLevel,
    /// What that sandbox was measured to give; `null` until a command first runs in it.
    #[serde(default)]
    pub attestation: Option<Attestation>,
    /// Its process, if its agent is a command and it was started.
    #[serde(default)]
    pub process: Option<Process>,
    /// What it works in, if it was given something of its own.
    #[serde(default)]
    pub room: Option<Room>,
    /// Absolute path on the hive.
    pub workspace: String,
    pub forked_from: Option<ForkedFrom>,
    /// Who asked for it: `admin`, the name of an API key, or a run's id.
    pub created_by: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub colony: ColonyId,
    /// The uid of the resource that it was started for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub owner: Option<RecordId>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// What a list shows of a run: `view=basic`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunBasic {
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "ses_0190b2c4d5e67000800000000000002a"))]
    pub id: SessionId,
    /// A DNS label, unique among the runs that have not ended.
    #[cfg_attr(feature = "openapi", schema(example = "brave-otter-7k2"))]
    pub name: String,
    /// The run that it was started for.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub parent_id: Option<SessionId>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub agent_id: AgentId,
    /// What its agent is called now; `null` in the answer to a kill.
    pub agent_name: Option<String>,
    pub task: String,
    pub status: RunStatus,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub started_at: Option<Timestamp>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub finished_at: Option<Timestamp>,
    pub step_count: u32,
    /// Calls that were refused because they carried a planted secret; 0 in the answer to a kill.
    pub alarms: u32,
    /// Why its last model call was not answered, while it has not ended and tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// How often its command was started again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u32,
    /// Of the last attempt that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Its command was asked to end, and has not yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// Its command has ended and is started again soon.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarting: bool,
    /// What its model calls came to; not given when the price of one is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// `cost_usd` is the most that it can be: the real cost of a call is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cost_at_most: bool,
    /// The directory of the project that it works on; not given where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The branch that has its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// How much its work changes beside the commit that its branch began at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
    /// What was decided over its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<RoomAction>,
    /// Whether its worktree waits for that.
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

/// Millionths as dollars: exact to the millionth far beyond any real bill (2^53 millionths are
/// nine thousand million dollars).
#[expect(clippy::cast_precision_loss, reason = "rounding begins beyond 9e9 dollars")]
fn dollars(microusd: u64) -> f64 {
    microusd as f64 / 1e6
}

/// What a run's sandbox was measured to give: the gist of a signed record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attestation {
    /// Names the record: its BLAKE3 in hexadecimal.
    pub digest: String,
    /// The level that was promised.
    pub asked: SandboxLevel,
    /// The level that was proved. `none` proves nothing, and promises nothing.
    pub achieved: SandboxLevel,
    /// When it was measured; one measurement serves all runs of a configuration and kernel.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// Fingerprint of the key that signed the record, the one of the log's checkpoints.
    pub signer: Option<String>,
}

impl From<attest::AttestationRef> for Attestation {
    fn from(gist: attest::AttestationRef) -> Self {
        let attest::AttestationRef { digest, asked, achieved, at, signer } = gist;
        Self { digest, asked: asked.into(), achieved: achieved.into(), at, signer }
    }
}

/// The whole record of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttestationRecord {
    pub digest: String,
    /// What its signature is worth here and now: `holds`, `unsigned`, `unknown_key` or `broken`.
    pub seal: String,
    /// `driver`, `asked`, `achieved`, `at`, `took_us`, `kernel`, `config`, `checks` (each with
    /// `name`, `expected`, `measured`, `pass`) and `bounds` (`limit`, `enforced_by`, `remark`).
    /// The digest is made over this member's compact text as it stands here.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub attestation: RawJson,
    /// `{"signer","signature"}`: Ed25519 over `overmind attestation 1`, a zero byte and the
    /// digest's 32 bytes.
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

/// The run and step that a run was forked from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForkedFrom {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
    /// The fork repeats everything before this step.
    pub step: u32,
}

/// Tokens. `input_tokens` counts all prompt tokens, cached ones included.
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
    /// From 0, without gaps.
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
    /// The turn it belongs to, from 0.
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
    /// The agent's id, or its exact name.
    #[cfg_attr(feature = "openapi", schema(example = "fixer"))]
    pub agent_id: String,
    /// What to do. May be empty.
    #[cfg_attr(feature = "openapi", schema(example = "fix the failing test"))]
    pub task: String,
    /// Not given: the agent's `max_steps`. 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_limit: Option<u32>,
    /// Absolute directory on the server. Not given: `engine.workspace`, or an empty
    /// private directory where that is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// What to call it: 1 to 63 small letters, digits and hyphens. Not given: a generated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 63, example = "mend-tests"))]
    pub name: Option<String>,
    /// The run that it is started for: an id, or the name of one that has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// In place of the agent's own command, for this run. An empty `argv` takes the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// In place of the agent's sandbox, for this run of an agent that is a command: a stronger one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxLevel>,
    /// What it is to work in. Not given: its own worktree in
    /// a git repository, and elsewhere the directory itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<RoomWish>,
    /// Whether it rests after its answer (`idle`), keeps what it works in, and goes on with what is sent,
    /// until it is stopped or its work is decided. Not given: only a program that takes more input for as
    /// long as it runs does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<bool>,
    /// By what it is found: `{"app": "web"}`, with the syntax of labels of Kubernetes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Names of contexts whose values and prompt it is given, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 16))]
    pub contexts: Vec<String>,
    /// What it and all runs that it starts may spend in all. An admin raises it with `PUT /api/budgets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<RunBudget>,
}

impl RunCreate {
    /// What is wrong with the values; empty when nothing is.
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
    /// Not blank.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub message: String,
}

impl RunInput {
    /// What is wrong with the values; empty when nothing is.
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
    /// Sent to the agent when denied, and kept in the log. At most 2,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub reason: Option<String>,
}

impl ApprovalAnswer {
    /// What is wrong with the values; empty when nothing is.
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
    /// What to call the fork: 1 to 63 small letters, digits and hyphens. Not given: a generated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 63, example = "try-again"))]
    pub name: Option<String>,
}

impl ForkRequest {
    /// What is wrong with the values; empty when nothing is.
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
    /// An unknown or forbidden name is answered by the tool gateway, with status 200.
    #[cfg_attr(feature = "openapi", schema(example = "run_shell"))]
    pub tool_name: String,
    /// An object; not given: `{}`.
    #[serde(default = "empty_object")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub args: Value,
}

pub(crate) fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

impl ToolCallRequest {
    /// What is wrong with the values; empty when nothing is.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        crate::problem::refuse_non_object(&mut errors, "args", &self.args);
        errors
    }
}

/// What a re-decision of a run from its log found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VerifyReport {
    /// No divergence.
    pub ok: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
    pub events: u64,
    /// Events that were decided again and compared.
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

/// Two runs laid side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Diff {
    pub a: Run,
    pub b: Run,
    /// Steps that are equal from the start on.
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
    fn tool_arguments_default_to_an_empty_object_and_must_be_one() {
        let call: ToolCallRequest = serde_json::from_str(r#"{"tool_name":"x"}"#).unwrap();
        assert_eq!(call.args, empty_object());
        let bad: ToolCallRequest = serde_json::from_str(r#"{"tool_name":"x","args":[1]}"#).unwrap();
        assert_eq!(bad.check(), [FieldError::new("args", "must be an object, not an array")]);
    }
}
