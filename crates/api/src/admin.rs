//! The server itself: keys, settings, state, audit, backup, retention, tools.

use overmind_core::ids::{ApiKeyId, ColonyId};
use overmind_core::time::Timestamp;
use overmind_core::{row, store, tool};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::problem::{FieldError, refuse_blank, refuse_long};
use crate::{EffectClass, Role, RunStatus};

/// `{"ok":true}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Okay {
    pub ok: bool,
}

/// Answer of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ready {
    pub ok: bool,
    /// `ready`, `draining` or `degraded`.
    pub state: String,
    /// The reason, if the server is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The program that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Version {
    /// Always `overmind`.
    pub name: String,
    pub version: String,
}

/// The state of the whole server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    pub version: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub started_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub now: Timestamp,
    pub ready: Ready,
    pub running: u32,
    pub queued: u64,
    /// Maximum number of runs at the same time.
    pub capacity: u32,
    pub store: StoreStatus,
    /// The policy for calls of agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyStatus>,
    /// The model APIs that this server offers to the programs of runs, which then need no provider
    /// key: `anthropic`, `openai`.
    #[serde(default)]
    pub answers: Vec<String>,
    /// The names of the tools.
    pub tools: Vec<String>,
}

/// The policy in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyStatus {
    /// The source: `builtin`, `file`, or `off` (everything is allowed).
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Hash of the policy's meaning.
    pub version: String,
    /// The mistake in the policy file, because of which the file is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreStatus {
    pub events: u64,
    pub streams: u64,
    pub runs: Vec<StatusCount>,
    pub agents: u64,
    pub memory_items: u64,
    /// Bytes on disk, including log files.
    pub bytes: u64,
    pub schema: u32,
    /// Number of the newest signed checkpoint.
    pub last_checkpoint: Option<u64>,
    pub location: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatusCount {
    pub status: RunStatus,
    pub count: u64,
}

impl From<store::StoreStats> for StoreStatus {
    fn from(stats: store::StoreStats) -> Self {
        Self {
            events: stats.events,
            streams: stats.streams,
            runs: stats
                .sessions_by_status
                .into_iter()
                .map(|(status, count)| StatusCount { status: status.into(), count })
                .collect(),
            agents: stats.agents,
            memory_items: stats.memory_items,
            bytes: stats.bytes,
            schema: stats.schema,
            last_checkpoint: stats.last_checkpoint,
            location: stats.location,
        }
    }
}

/// A registered tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tool {
    pub name: String,
    pub description: String,
    /// JSON Schema 2020-12 of the arguments.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub schema: Value,
    pub class: EffectClass,
    /// Whether the tool is always allowed, without an entry in an agent's allow-list.
    pub internal: bool,
}

impl From<&tool::ToolSpec> for Tool {
    fn from(spec: &tool::ToolSpec) -> Self {
        Self {
            name: spec.name.clone(),
            description: spec.description.clone(),
            schema: spec.schema.clone(),
            class: spec.class.into(),
            internal: spec.internal,
        }
    }
}

/// A named API key. Its secret is never shown again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Key {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: ApiKeyId,
    pub name: String,
    pub role: Role,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub revoked_at: Option<Timestamp>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub colony: ColonyId,
    /// The name of the colony that the key is bound to. Other keys reach every colony.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colony_name: Option<String>,
}

impl From<row::ApiKey> for Key {
    fn from(key: row::ApiKey) -> Self {
        Self {
            id: key.id,
            name: key.name,
            role: key.role.into(),
            created_at: key.created_at,
            revoked_at: key.revoked_at,
            colony: key.colony,
            colony_name: None,
        }
    }
}

/// Body of `POST /api/keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct KeyCreate {
    /// The name: 1 to 100 characters, not blank, unique among keys that are not revoked.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 100))]
    pub name: String,
    pub role: Role,
    /// The colony to which the key is bound: it reaches nothing outside of it. Not for admins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colony: Option<String>,
}

impl KeyCreate {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        refuse_blank(&mut errors, "name", &self.name);
        refuse_long(&mut errors, "name", &self.name, 100);
        errors
    }
}

/// A new key with its secret, which is shown only once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyCreated {
    pub key: Key,
    /// The secret, `ovk_…`. Send it as `Authorization: Bearer`.
    pub secret: String,
}

impl std::fmt::Debug for KeyCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyCreated").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Whether a provider's key is set. The key itself is not shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderKeyView {
    pub ok: bool,
    pub configured: bool,
    /// The first four characters, `...` and the last four; only stars if the key has eight or
    /// fewer; empty if it is not set.
    pub masked: String,
    /// The origin of the key, for example `environment: OPENAI_API_KEY`; empty if it is not set.
    pub source: String,
}

/// The result of checking the whole log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditReport {
    /// Whether the check found no damage.
    pub ok: bool,
    pub events: u64,
    pub streams: u64,
    pub checkpoints: u64,
    /// Number of signed records of sandbox measurements.
    #[serde(default)]
    pub attestations: u64,
    /// Number of events after the newest checkpoint. They are in the hash chain but not signed yet.
    pub unsigned_tail: u64,
    /// Fingerprint of the key that signs checkpoints.
    pub key: String,
    /// The damage that was found, at most 100 entries.
    pub findings: Vec<AuditFinding>,
}

/// A damaged part of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditFinding {
    /// The kind of damage: `bad_hash`, `gap`, `global_gap`, `bad_head`, `bad_checkpoint`,
    /// `checkpoint_mismatch`, `lost`, `bad_attestation` or `unreadable`.
    pub kind: String,
    /// The damaged stream, if it is known.
    pub stream: Option<String>,
    /// The number of the damaged event or checkpoint, if it is known.
    pub seq: Option<u64>,
    pub message: String,
}

impl From<store::AuditFinding> for AuditFinding {
    fn from(finding: store::AuditFinding) -> Self {
        use store::AuditFinding as F;
        let (kind, stream, seq, message) = match finding {
            F::BadHash { stream, seq, global, kind } => {
                let message = format!(
                    "event {seq} of {stream} (`{kind}`, number {global} overall) does not have \
                     the hash that its bytes and the event before it give"
                );
                ("bad_hash", Some(stream), Some(seq), message)
            }
            F::Gap { stream, expected, found } => {
                let message = format!("{stream} has event {found} where {expected} should stand");
                ("gap", Some(stream), Some(expected), message)
            }
            F::GlobalGap { expected, found } => {
                let message = format!(
                    "number {expected} overall is missing ({found} follows), and no retention \
                     record explains it"
                );
                ("global_gap", None, Some(expected), message)
            }
            F::BadHead { stream, recorded, found } => {
                let message = format!(
                    "{stream} is recorded to end at event {recorded} and ends at {found}, or at \
                     another hash"
                );
                ("bad_head", Some(stream), Some(found), message)
            }
            F::BadCheckpoint { number, why } => {
                ("bad_checkpoint", None, Some(number), format!("checkpoint {number}: {why}"))
            }
            F::CheckpointMismatch { number, stream, seq } => {
                let message = format!(
                    "checkpoint {number} vouches for event {seq} of {stream}, which the log does \
                     not have"
                );
                ("checkpoint_mismatch", Some(stream), Some(seq), message)
            }
            F::Lost { stream, promised, found } => {
                let message = format!(
                    "event {promised} of {stream} was acknowledged and is gone: the stream ends \
                     at {found}, or has another event there"
                );
                ("lost", Some(stream), Some(promised), message)
            }
            F::BadAttestation { digest, why } => {
                ("bad_attestation", None, None, format!("attestation {digest}: {why}"))
            }
            F::Unreadable { at, why } => {
                ("unreadable", None, None, format!("{at} cannot be read: {why}"))
            }
        };
        Self { kind: kind.to_owned(), stream, seq, message }
    }
}

impl From<store::AuditReport> for AuditReport {
    fn from(report: store::AuditReport) -> Self {
        Self {
            ok: report.findings.is_empty(),
            events: report.events,
            streams: report.streams,
            checkpoints: report.checkpoints,
            attestations: report.attestations,
            unsigned_tail: report.unsigned_tail,
            key: report.key,
            findings: report.findings.into_iter().map(Into::into).collect(),
        }
    }
}

/// Body of `POST /api/backup`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BackupRequest {
    /// Absolute path on the server. It must not exist yet.
    pub path: String,
}

impl BackupRequest {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if !self.path.starts_with('/') {
            errors.push(FieldError::new("path", "must be an absolute path on the server"));
        }
        if self.path.contains('\0') {
            errors.push(FieldError::new("path", "must not hold a NUL character"));
        }
        errors
    }
}

/// A finished backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupDone {
    pub ok: bool,
    pub path: String,
    pub bytes: u64,
}

/// Body of `POST /api/prune`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PruneRequest {
    /// Removes runs that ended longer ago than this, with their events.
    pub older_than_seconds: u64,
}

/// The data that a prune removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PruneDone {
    pub ok: bool,
    pub runs: u64,
    pub events: u64,
    pub steps: u64,
}

impl From<store::Pruned> for PruneDone {
    fn from(pruned: store::Pruned) -> Self {
        let store::Pruned { sessions, events, steps } = pruned;
        Self { ok: true, runs: sessions, events, steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_keys_secret_is_not_in_its_debug_form() {
        let key = Key {
            id: ApiKeyId::from_u128(1),
            name: "ci".into(),
            role: Role::Viewer,
            created_at: Timestamp::from_micros(0),
            revoked_at: None,
            colony: ColonyId::DEFAULT,
            colony_name: None,
        };
        let made = KeyCreated { key, secret: "ovk_very_secret".into() };
        assert!(!format!("{made:?}").contains("very_secret"));
    }

    #[test]
    fn an_audit_without_findings_is_ok() {
        assert!(AuditReport::from(store::AuditReport::default()).ok);
        let finding = store::AuditFinding::BadHash {
            stream: "system".into(),
            seq: 4,
            global: 9,
            kind: "agent.created".into(),
        };
        let report = store::AuditReport { findings: vec![finding], ..Default::default() };
        let report = AuditReport::from(report);
        assert!(!report.ok);
        assert!(report.findings[0].message.contains("event 4 of system"), "{report:?}");
    }
}
