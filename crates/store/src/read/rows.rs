//! Converts rows of the file to values of the port, and back. An invalid value is damage, and the
//! error names its place.

use std::collections::BTreeMap;

use overmind_core::agent::{Agent, AgentStatus};
use overmind_core::ids::{
    AgentId, ApiKeyId, ApprovalId, ColonyId, HiveId, InboxId, MemoryId, RecordId, SessionId, StepId,
};
use overmind_core::inbox::{InboxItem, InboxKind, InboxState};
use overmind_core::memory::{MemoryItem, Provenance, Trust};
use overmind_core::model::Usage;
use overmind_core::row::{ApiKey, Role, SessionRow, SessionStatus, StepKind, StepRow};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::{LogEvent, StreamId};
use overmind_core::time::Timestamp;
use rusqlite::Row;
use rusqlite::types::ValueRef;
use serde_json::Value;

use crate::error::{Fault, Outcome};
use crate::writer::log::stream_of;

/// Converts a counter; values beyond SQLite's range are stored as its largest number.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn blob(id: u128) -> [u8; 16] {
    id.to_be_bytes()
}

pub(crate) fn opt_blob(id: Option<u128>) -> Option<[u8; 16]> {
    id.map(blob)
}

pub(crate) fn opt_time(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_micros)
}

pub(crate) fn agent_status_text(status: AgentStatus) -> &'static str {
    match status {
        AgentStatus::Active => "active",
        AgentStatus::Disabled => "disabled",
        AgentStatus::Removed => "removed",
    }
}

fn agent_status(text: &str) -> Option<AgentStatus> {
    [AgentStatus::Active, AgentStatus::Disabled, AgentStatus::Removed]
        .into_iter()
        .find(|status| agent_status_text(*status) == text)
}

pub(crate) fn unsigned(value: i64, at: &str) -> Outcome<u64> {
    u64::try_from(value).map_err(|_| damaged(at, format!("{value} is negative")))
}

pub(crate) fn u128_of(bytes: &[u8], at: &str) -> Outcome<u128> {
    match bytes.try_into() {
        Ok(bytes) => Ok(u128::from_be_bytes(bytes)),
        Err(_) => Err(damaged(at, format!("{} bytes are not an id", bytes.len()))),
    }
}

fn damaged(at: &str, why: String) -> Fault {
    Fault::Row { at: at.to_owned(), why }
}

/// The cells of one row, read by index.
pub(crate) struct Cells<'r> {
    row: &'r Row<'r>,
    table: &'static str,
}

impl<'r> Cells<'r> {
    pub(crate) fn new(row: &'r Row<'r>, table: &'static str) -> Self {
        Self { row, table }
    }

    pub(crate) fn wrong(&self, at: usize, wanted: &str) -> Fault {
        let column = self.row.as_ref().column_name(at).unwrap_or("?").to_owned();
        damaged(&format!("{}.{column}", self.table), format!("it is not {wanted}"))
    }

    fn cell(&self, at: usize) -> Outcome<ValueRef<'r>> {
        Ok(self.row.get_ref(at)?)
    }

    fn is_null(&self, at: usize) -> Outcome<bool> {
        Ok(matches!(self.cell(at)?, ValueRef::Null))
    }

    /// `None` for NULL; otherwise the result of `read`.
    pub(crate) fn opt<T>(
        &self,
        at: usize,
        read: impl FnOnce(&Self, usize) -> Outcome<T>,
    ) -> Outcome<Option<T>> {
        if self.is_null(at)? { Ok(None) } else { read(self, at).map(Some) }
    }

    pub(crate) fn int(&self, at: usize) -> Outcome<i64> {
        match self.cell(at)? {
            ValueRef::Integer(value) => Ok(value),
            _ => Err(self.wrong(at, "an integer")),
        }
    }

    pub(crate) fn u64(&self, at: usize) -> Outcome<u64> {
        u64::try_from(self.int(at)?).map_err(|_| self.wrong(at, "a count"))
    }

    pub(crate) fn u32(&self, at: usize) -> Outcome<u32> {
        u32::try_from(self.int(at)?).map_err(|_| self.wrong(at, "a small count"))
    }

    pub(crate) fn f64(&self, at: usize) -> Outcome<f64> {
        match self.cell(at)? {
            ValueRef::Real(value) => Ok(value),
            _ => Err(self.wrong(at, "a number")),
        }
    }

    pub(crate) fn time(&self, at: usize) -> Outcome<Timestamp> {
        Ok(Timestamp::from_micros(self.int(at)?))
    }

    pub(crate) fn str(&self, at: usize) -> Outcome<&'r str> {
        match self.cell(at)? {
            ValueRef::Text(bytes) => {
                std::str::from_utf8(bytes).map_err(|_| self.wrong(at, "UTF-8"))
            }
            _ => Err(self.wrong(at, "a text")),
        }
    }

    pub(crate) fn text(&self, at: usize) -> Outcome<String> {
        Ok(self.str(at)?.to_owned())
    }

    /// Parses a text; the error names `wanted`, the expected type.
    pub(crate) fn parsed<T>(
        &self,
        at: usize,
        wanted: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Outcome<T> {
        parse(self.str(at)?).ok_or_else(|| self.wrong(at, wanted))
    }

    pub(crate) fn json(&self, at: usize) -> Outcome<Value> {
        serde_json::from_str(self.str(at)?).map_err(|_| self.wrong(at, "JSON"))
    }

    pub(crate) fn blob(&self, at: usize) -> Outcome<&'r [u8]> {
        match self.cell(at)? {
            ValueRef::Blob(bytes) => Ok(bytes),
            _ => Err(self.wrong(at, "a blob")),
        }
    }

    pub(crate) fn hash(&self, at: usize) -> Outcome<[u8; 32]> {
        self.blob(at)?.try_into().map_err(|_| self.wrong(at, "a hash"))
    }

    pub(crate) fn u128(&self, at: usize) -> Outcome<u128> {
        match self.blob(at)?.try_into() {
            Ok(bytes) => Ok(u128::from_be_bytes(bytes)),
            Err(_) => Err(self.wrong(at, "an id")),
        }
    }
}

pub(crate) const SESSION: &str = "id, colony, agent, agent_version, hive, epoch, status, \
    step_limit, created_at, started_at, finished_at, approval, input_tokens, output_tokens, \
    cached_input_tokens, cache_write_tokens, reasoning_tokens, cost_microusd, model_calls, \
    steps, sandbox, workspace, forked_session, forked_step, created_by, task, prompt, \
    final_answer, error, attestation, name, parent, command, room, owner, labels";

pub(crate) fn session(row: &Row<'_>) -> Outcome<SessionRow> {
    let cells = Cells::new(row, "sessions");
    let forked_from = match (cells.opt(22, Cells::u128)?, cells.opt(23, Cells::u32)?) {
        (Some(session), Some(step)) => Some((SessionId::from_u128(session), step)),
        (None, _) | (_, None) => None,
    };
    Ok(SessionRow {
        id: SessionId::from_u128(cells.u128(0)?),
        colony: ColonyId::from_u128(cells.u128(1)?),
        agent: AgentId::from_u128(cells.u128(2)?),
        agent_version: cells.u32(3)?,
        hive: cells.opt(4, Cells::u128)?.map(HiveId::from_u128),
        epoch: cells.u32(5)?,
        status: SessionStatus::parse(cells.str(6)?).ok_or_else(|| cells.wrong(6, "a status"))?,
        step_limit: cells.u32(7)?,
        created_at: cells.time(8)?,
        started_at: cells.opt(9, Cells::time)?,
        finished_at: cells.opt(10, Cells::time)?,
        approval: cells.opt(11, Cells::u128)?.map(ApprovalId::from_u128),
        usage: Usage {
            input_tokens: cells.u64(12)?,
            output_tokens: cells.u64(13)?,
            cached_input_tokens: cells.u64(14)?,
            cache_write_tokens: cells.u64(15)?,
            reasoning_tokens: cells.u64(16)?,
        },
        cost_microusd: cells.opt(17, Cells::u64)?,
        cost_at_most: false,
        model_calls: cells.u32(18)?,
        steps: cells.u32(19)?,
        sandbox: SandboxLevel::parse(cells.str(20)?)
            .ok_or_else(|| cells.wrong(20, "a sandbox level"))?,
        workspace: cells.text(21)?,
        forked_from,
        created_by: cells.text(24)?,
        task: cells.text(25)?,
        prompt: cells.opt(26, Cells::text)?,
        final_answer: cells.opt(27, Cells::text)?,
        error: cells.opt(28, Cells::json)?,
        attestation: cells.opt(29, |cells, at| {
            serde_json::from_str(cells.str(at)?).map_err(|_| cells.wrong(at, "an attestation"))
        })?,
        name: cells.text(30)?,
        parent: cells.opt(31, Cells::u128)?.map(SessionId::from_u128),
        command: cells.opt(32, |cells, at| {
            serde_json::from_str(cells.str(at)?).map_err(|_| cells.wrong(at, "a command's state"))
        })?,
        room: cells.opt(33, |cells, at| {
            serde_json::from_str(cells.str(at)?).map_err(|_| cells.wrong(at, "a room"))
        })?,
        owner: cells.opt(34, Cells::u128)?.map(RecordId::from_u128),
        labels: match cells.str(35)? {
            "{}" => BTreeMap::new(),
            text => serde_json::from_str(text).map_err(|_| cells.wrong(35, "labels"))?,
        },
    })
}

pub(crate) const STEP: &str =
    "id, session, idx, turn, kind, started_at, finished_at, input, output, error";

pub(crate) fn step(row: &Row<'_>) -> Outcome<StepRow> {
    let cells = Cells::new(row, "steps");
    Ok(StepRow {
        id: StepId::from_u128(cells.u128(0)?),
        session: SessionId::from_u128(cells.u128(1)?),
        idx: cells.u32(2)?,
        turn: cells.u32(3)?,
        kind: StepKind::parse(cells.str(4)?).ok_or_else(|| cells.wrong(4, "a kind of step"))?,
        started_at: cells.time(5)?,
        finished_at: cells.opt(6, Cells::time)?,
        input: cells.json(7)?,
        output: cells.opt(8, Cells::json)?,
        error: cells.opt(9, Cells::text)?,
    })
}

/// The columns of `agents`; for `agent_versions`, `id` is `agent`.
pub(crate) const AGENT: &str = "id, colony, status, version, created_at, updated_at, spec, author";
pub(crate) const AGENT_VERSION: &str =
    "agent, colony, status, version, created_at, updated_at, spec, author";

pub(crate) fn agent(row: &Row<'_>) -> Outcome<Agent> {
    let cells = Cells::new(row, "agents");
    Ok(Agent {
        id: AgentId::from_u128(cells.u128(0)?),
        colony: ColonyId::from_u128(cells.u128(1)?),
        status: agent_status(cells.str(2)?).ok_or_else(|| cells.wrong(2, "a status"))?,
        version: cells.u32(3)?,
        created_at: cells.time(4)?,
        updated_at: cells.time(5)?,
        spec: serde_json::from_str(cells.str(6)?).map_err(|_| cells.wrong(6, "an agent's spec"))?,
        author: match cells.opt(7, Cells::text)? {
            Some(text) => {
                Some(serde_json::from_str(&text).map_err(|_| cells.wrong(7, "an author"))?)
            }
            None => None,
        },
    })
}

/// The columns of an event, joined as `e` with `streams` as `s`.
pub(crate) const EVENT: &str = "e.global, s.name, e.seq, e.ts, e.hash, e.kind, e.payload";

pub(crate) fn event(row: &Row<'_>) -> Outcome<LogEvent> {
    let cells = Cells::new(row, "events");
    let stream: StreamId = stream_of(cells.blob(1)?)?;
    Ok(LogEvent {
        global: cells.u64(0)?,
        stream,
        seq: cells.u64(2)?,
        ts: cells.time(3)?,
        hash: cells.hash(4)?,
        kind: cells.str(5)?.into(),
        payload: cells.str(6)?.into(),
    })
}

pub(crate) const INBOX: &str = "id, colony, session, agent, agent_name, epoch, kind, state, \
    title, details, grp, asked_at, expires_at, answered_at, answered_by, answer, changed, owner";

pub(crate) fn inbox(row: &Row<'_>) -> Outcome<InboxItem> {
    let cells = Cells::new(row, "inbox");
    Ok(InboxItem {
        id: InboxId::from_u128(cells.u128(0)?),
        colony: ColonyId::from_u128(cells.u128(1)?),
        session: cells.opt(2, Cells::u128)?.map(SessionId::from_u128),
        agent: cells.opt(3, Cells::u128)?.map(AgentId::from_u128),
        agent_name: cells.text(4)?,
        epoch: cells.u32(5)?,
        kind: InboxKind::parse(cells.str(6)?).ok_or_else(|| cells.wrong(6, "a kind of item"))?,
        state: InboxState::parse(cells.str(7)?).ok_or_else(|| cells.wrong(7, "a state"))?,
        title: cells.text(8)?,
        details: cells.json(9)?,
        group: cells.opt(10, Cells::text)?,
        asked_at: cells.time(11)?,
        expires_at: cells.opt(12, Cells::time)?,
        answered_at: cells.opt(13, Cells::time)?,
        answered_by: cells.opt(14, Cells::text)?,
        answer: cells.opt(15, Cells::text)?,
        changed: cells.u64(16)?,
        owner: cells.opt(17, Cells::u128)?.map(RecordId::from_u128),
    })
}

/// The columns of a memory item, joined as `m` with `collections` as `c` and, if there is one,
/// `memory_vectors` as `v`.
pub(crate) const MEMORY: &str = "m.id, m.colony, c.name, m.embedding_model, m.created_at, \
    m.source, m.metadata, m.text, v.vector, m.expires_at, m.supersedes, m.superseded_by, \
    m.author, m.trust, m.source_event";
/// The index of the metadata among these columns.
pub(crate) const MEMORY_METADATA: usize = 6;

pub(crate) fn memory(row: &Row<'_>) -> Outcome<MemoryItem> {
    let cells = Cells::new(row, "memory_items");
    Ok(MemoryItem {
        id: MemoryId::from_u128(cells.u128(0)?),
        colony: ColonyId::from_u128(cells.u128(1)?),
        collection: cells.text(2)?,
        embedding_model: cells.text(3)?,
        created_at: cells.time(4)?,
        source: cells.opt(5, Cells::u128)?.map(SessionId::from_u128),
        metadata: cells.json(6)?,
        text: cells.text(7)?,
        embedding: match cells.opt(8, Cells::blob)? {
            Some(bytes) => floats(bytes).collect(),
            None => Vec::new(),
        },
        expires_at: cells.opt(9, Cells::time)?,
        supersedes: cells.opt(10, Cells::u128)?.map(MemoryId::from_u128),
        superseded_by: cells.opt(11, Cells::u128)?.map(MemoryId::from_u128),
        provenance: Provenance {
            author: cells.text(12)?,
            trust: Trust::parse(cells.str(13)?).ok_or_else(|| cells.wrong(13, "a label"))?,
            event: cells.opt(14, Cells::text)?,
        },
    })
}

/// The components of a stored vector; an incomplete last one is dropped.
pub(crate) fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|part| f32::from_le_bytes(*part))
}

pub(crate) fn api_key(row: &Row<'_>) -> Outcome<ApiKey> {
    let cells = Cells::new(row, "api_keys");
    Ok(ApiKey {
        id: ApiKeyId::from_u128(cells.u128(0)?),
        colony: ColonyId::from_u128(cells.u128(1)?),
        name: cells.text(2)?,
        role: Role::parse(cells.str(3)?).ok_or_else(|| cells.wrong(3, "a role"))?,
        hash: cells.hash(4)?,
        created_at: cells.time(5)?,
        revoked_at: cells.opt(6, Cells::time)?,
    })
}
