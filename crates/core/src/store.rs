//! The port to durable state: one append-only log, and rows that change in the same commit.
//!
//! Code above this port does not know which database is behind it. A [`Commit`] is atomic: when
//! [`Store::commit`] answers, either all of it is durable or nothing of it happened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde_json::Value;

use crate::Fut;
use crate::agent::Agent;
use crate::artifact::{Artifact, ArtifactContent, ArtifactHold, ArtifactName, ArtifactSums};
use crate::attest::{Attested, Kept};
use crate::budget::{self, BudgetChange, CallRecord, CostQuery, CostRow};
use crate::conflict::Conflict;
use crate::ids::{
    AgentId, ApiKeyId, CallId, ColonyId, EffectId, HiveId, InboxId, LetterId, MemoryId, RecordId,
    SessionId, StepId, SubscriptionId,
};
use crate::inbox::{InboxCounts, InboxCursor, InboxFilter, InboxItem};
use crate::memory::{MemoryFilter, MemoryItem};
use crate::mesh::{
    BoardEntry, Key, Letter, LetterFilter, LetterMark, MailboxCounts, Registration, Subscription,
};
use crate::record::{RecordKey, Selector, rows::RecordChange};
use crate::row::{ApiKey, SessionRow, SessionStatus, StepRow};
use crate::time::Timestamp;
use crate::vault::rows::VaultChange;

/// A stream of the log, with its own sequence numbers from 1 and its own hash chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamId {
    /// Agents, keys, settings, hives, memory, retention: everything that does not belong to one
    /// session.
    System,
    /// The shared state, topics and messages of the mesh, and the permissions for them.
    Mesh,
    /// Resources: the specs of [`crate::record`], each as it was put.
    Records,
    Session(SessionId),
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("system"),
            Self::Mesh => f.write_str("mesh"),
            Self::Records => f.write_str("records"),
            Self::Session(id) => id.fmt(f),
        }
    }
}

impl FromStr for StreamId {
    type Err = crate::ids::IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "system" => Ok(Self::System),
            "mesh" => Ok(Self::Mesh),
            "records" => Ok(Self::Records),
            other => other.parse().map(Self::Session),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    pub stream: StreamId,
    /// The kind, in lower case with dots: `run.queued`.
    pub kind: &'static str,
    pub ts: Timestamp,
    /// An object. The store masks secrets in it before it is hashed and written.
    pub payload: Value,
}

/// One event as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEvent {
    /// Position in the order of all commits of this store, from 1.
    pub global: u64,
    pub stream: StreamId,
    /// Position in its stream, from 1, without gaps.
    pub seq: u64,
    pub kind: Box<str>,
    pub ts: Timestamp,
    /// JSON text, exactly as hashed.
    pub payload: Box<str>,
    pub hash: [u8; 32],
}

impl LogEvent {
    /// Returns the event's id for users: `<stream>.<seq>`.
    pub fn id(&self) -> String {
        format!("{}.{}", self.stream, self.seq)
    }

    /// Returns the parsed payload, or a JSON string of the raw text if it cannot be parsed.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.payload)
            .unwrap_or_else(|_| Value::String(self.payload.to_string()))
    }
}

/// Returns the hash of an event: `BLAKE3(prev ‖ seq ‖ ts ‖ len(stream) ‖ stream ‖ len(kind) ‖ kind
/// ‖ payload)`, with integers as 8 bytes, big-endian. `prev` is the previous hash in the stream, or
/// 32 zero bytes for the first event.
pub fn chain_hash(
    prev: &[u8; 32],
    stream: StreamId,
    seq: u64,
    ts: Timestamp,
    kind: &str,
    payload: &str,
) -> [u8; 32] {
    let stream = stream.to_string();
    let mut hash = blake3::Hasher::new();
    hash.update(prev).update(&seq.to_be_bytes()).update(&ts.as_micros().to_be_bytes());
    for part in [stream.as_str(), kind] {
        hash.update(&(part.len() as u64).to_be_bytes()).update(part.as_bytes());
    }
    hash.update(payload.as_bytes());
    *hash.finalize().as_bytes()
}

/// A condition that must hold when the commit is applied. Otherwise nothing of the commit happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The session is at exactly this epoch and has not ended.
    SessionEpoch { session: SessionId, epoch: u32 },
    /// The session is at exactly this epoch and has ended.
    SessionEnded { session: SessionId, epoch: u32 },
    /// The session exists, at any epoch and with any status.
    SessionExists { session: SessionId },
    /// The agent is at exactly this version.
    AgentVersion { agent: AgentId, version: u32 },
    /// The colony has no other agent with this name, except removed ones and `except`.
    AgentNameFree { colony: ColonyId, name: String, except: Option<AgentId> },
    /// The colony has no session with this name that has not ended.
    NameFree { colony: ColonyId, name: String },
    /// The colony has fewer than `most` sessions that have not ended.
    ColonyHasRoom { colony: ColonyId, most: u32 },
    /// No session, no agent except removed ones, no record, and no key that is not revoked belongs
    /// to the colony.
    ColonyEmpty { colony: ColonyId },
    /// The key of the shared state is at exactly this version; `None`: it does not exist.
    BoardVersion { colony: ColonyId, key: Key, version: Option<u64> },
    /// The record is at exactly this version; `None`: it does not exist.
    RecordVersion { key: RecordKey, version: Option<u64> },
    /// The message exists, was delivered this many times, and is dead or not as given.
    LetterAt { to: AgentId, id: LetterId, attempts: u32, dead: bool },
}

/// A change of the current state.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Inserts or replaces an agent, and keeps this version in the history.
    AgentPut(Box<Agent>),
    /// Inserts a session. Its id must be new.
    SessionInsert(Box<SessionRow>),
    /// Replaces a session's row, but not its name and parent. The session must exist.
    SessionUpdate(Box<SessionRow>),
    /// Inserts or replaces a step by its id.
    StepPut(Box<StepRow>),
    /// Inserts or replaces an item of the inbox by its id. Its `changed` becomes the global number
    /// of the commit's last event.
    InboxPut(Box<InboxItem>),
    /// Inserts a memory item. If an item with the same `key` exists and had not expired when this
    /// one was created, the change does nothing. A superseded item must be in the same collection
    /// and not superseded yet; otherwise the commit fails with [`StoreError::Conflict`]. The old
    /// item gets its `superseded_by`.
    MemoryInsert {
        item: Box<MemoryItem>,
        key: Option<EffectId>,
    },
    MemoryDelete(MemoryId),
    /// Sets the vector of an item and the model that made it. Does nothing if the item was removed.
    MemoryEmbed {
        id: MemoryId,
        model: String,
        vector: Vec<f32>,
    },
    /// Inserts or replaces a key by its id.
    ApiKeyPut(Box<ApiKey>),
    SettingPut {
        key: String,
        value: Value,
        at: Timestamp,
    },
    SettingDelete {
        key: String,
    },
    /// Stores the record of a measurement under its digest. Does nothing if it exists.
    AttestationPut(Arc<Attested>),
    HivePut {
        hive: HiveId,
        name: String,
        seen_at: Timestamp,
    },
    /// Stores the answer to a request with an Idempotency-Key. The pair of scope and key must be
    /// new; otherwise the commit fails with [`StoreError::Conflict`].
    IdempotencyPut {
        scope: String,
        key: String,
        answer: IdempotentAnswer,
        at: Timestamp,
    },
    /// Changes secrets, grants or services.
    Vault(VaultChange),
    Budget(Box<BudgetChange>),
    /// Inserts or replaces a key of the shared state.
    BoardPut(Box<BoardEntry>),
    /// Removes a key of the shared state, if it exists. Its version is remembered, see
    /// [`Store::board_past`].
    BoardDelete {
        colony: ColonyId,
        key: Key,
    },
    /// Inserts a message. Does nothing if the agent has one with the same id.
    LetterInsert(Box<Letter>),
    /// Changes the state of a message. Does nothing if the message was removed.
    LetterMark {
        to: AgentId,
        id: LetterId,
        mark: LetterMark,
        /// The message's expiry, which this does not change.
        expires_at: Option<Timestamp>,
    },
    LetterDelete {
        to: AgentId,
        id: LetterId,
    },
    /// Inserts a subscription, or replaces the agent's subscription with the same pattern.
    SubscriptionPut(Box<Subscription>),
    SubscriptionDelete(SubscriptionId),
    /// Replaces an agent's registration.
    RegistrationPut(Box<Registration>),
    /// Changes a resource. Each such change needs its own event, see [`RecordChange`].
    Record(Box<RecordChange>),
    /// Inserts a version of an artifact. Its `place` becomes the global number of the commit's last
    /// event. A name that differs only in case from another one of the session fails with
    /// [`StoreError::Conflict`].
    ArtifactPut(Box<Artifact>),
    /// Removes the row of an artifact. [`Store::artifact_drop`] removes its bytes.
    ArtifactDelete {
        session: SessionId,
        name: ArtifactName,
    },
}

/// The result of the first request with an Idempotency-Key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotentAnswer {
    /// BLAKE3 of the request's body. The same key with another body is refused.
    pub fingerprint: [u8; 32],
    /// Id of the created object.
    pub resource: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commit {
    pub guards: Vec<Guard>,
    pub events: Vec<NewEvent>,
    pub changes: Vec<Change>,
}

/// The positions of a commit's events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Global number of the last event, or the store's head if there were no events.
    pub global: u64,
    /// `(stream, seq)` of each event, in the commit's order.
    pub places: Vec<(StreamId, u64)>,
}

/// Why an operation of the store failed. It contains no type of a database driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A guard did not hold, or a unique name is taken. Read and decide again. `guard` is the index
    /// in [`Commit::guards`] of the first guard that did not hold.
    #[error("{what}")]
    Conflict { what: Box<Conflict>, guard: Option<u32> },
    #[error("{what} does not exist")]
    NotFound { what: String },
    /// The disk is full. Nothing was written; the same commit may succeed later.
    #[error("the disk holding {} is full: {detail}; free space and try again", path.display())]
    Full { path: PathBuf, detail: String },
    #[error("{} cannot be written: {detail}; check its owner, its mode and the mount", path.display())]
    ReadOnly { path: PathBuf, detail: String },
    /// Another process has locked the store.
    #[error("{} is in use: {detail}", path.display())]
    Locked { path: PathBuf, detail: String },
    /// The file, or a row in it, is damaged.
    #[error("{} is damaged: {detail}; `overmind audit verify` names the place, `overmind restore` restores a backup", path.display())]
    Corrupt { path: PathBuf, detail: String },
    /// Acknowledged commits are missing: the write-ahead log was damaged or removed, or the store
    /// was replaced by an older file. Nothing was changed.
    #[error("{} has lost acknowledged events: {detail}; its write-ahead log was damaged or removed, or an older copy was put in its place", path.display())]
    Lost { path: PathBuf, detail: String },
    /// A newer version of the program wrote the file.
    #[error("{} has schema {found}, and this program supports at most {known}: use the newer program, or restore a backup made by this one", path.display())]
    TooNew { path: PathBuf, found: u32, known: u32 },
    /// The store was closed, or its writer ended after a fatal failure.
    #[error("the store is closed: {detail}")]
    Closed { detail: String },
    #[error("{attempt}: {detail}")]
    Other { attempt: String, detail: String },
}

impl StoreError {
    /// Returns whether the same request may succeed later without anybody's action.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Full { .. } | Self::ReadOnly { .. } | Self::Locked { .. } => true,
            Self::Conflict { .. }
            | Self::NotFound { .. }
            | Self::Corrupt { .. }
            | Self::Lost { .. }
            | Self::TooNew { .. }
            | Self::Closed { .. }
            | Self::Other { .. } => false,
        }
    }
}

/// A page of a list, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<Id> {
    /// Maximum number of entries, 1..=1000.
    pub limit: u32,
    /// Starts after this entry, which need not exist any more.
    pub after: Option<Id>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    pub colony: Option<ColonyId>,
    pub agent: Option<AgentId>,
    /// Sessions with one of these statuses; empty for any.
    pub statuses: Vec<SessionStatus>,
    /// Sessions that this session started.
    pub parent: Option<SessionId>,
    /// This session and all sessions below it.
    pub tree: Option<SessionId>,
    pub name: Option<NameFilter>,
    /// Sessions that this record owns.
    pub owner: Option<RecordId>,
    /// Sessions with these labels.
    pub selector: Selector,
}

/// A condition on names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameFilter {
    Is(String),
    Begins(String),
}

/// A range of the log, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventQuery {
    /// The stream. `None`: all streams, in global order, and `after` is a global number.
    pub stream: Option<StreamId>,
    /// Returns only events with a greater number.
    pub after: u64,
    /// Returns only these kinds; empty for all.
    pub kinds: &'static [&'static str],
    /// Maximum number of events, 1..=10_000.
    pub limit: u32,
}

/// The memory items that a search or a list may return.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryScope {
    pub colony: ColonyId,
    /// The collection. `None`: all collections. A search without one finds nothing.
    pub collection: Option<String>,
    pub filter: MemoryFilter,
    /// Also returns items that were replaced by others.
    pub history: bool,
    /// The present time. Items that have expired by then are not returned.
    pub now: Timestamp,
}

impl MemoryScope {
    /// Creates the scope of all current items.
    pub fn new(colony: ColonyId, collection: Option<String>, now: Timestamp) -> Self {
        Self { colony, collection, filter: MemoryFilter::default(), history: false, now }
    }
}

/// Id, colony and collection of an expired item.
pub type ExpiredMemory = (MemoryId, ColonyId, String);

/// An expired key of the shared state, with its last version.
pub type ExpiredKey = (ColonyId, Key, u64);

/// A memory item that matches words.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryMatch {
    pub item: MemoryItem,
    /// The BM25 score, higher is better (SQLite's sign inverted). Always above 0 for a match.
    pub bm25: f64,
}

impl MemoryMatch {
    /// The score of items that match only words which are in most items and so do not distinguish
    /// any. It is below all other scores.
    pub const IDLE: f64 = f64::MIN_POSITIVE;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    pub events: u64,
    pub streams: u64,
    pub sessions_by_status: Vec<(SessionStatus, u64)>,
    pub agents: u64,
    pub memory_items: u64,
    /// Bytes on disk, including log files.
    pub bytes: u64,
    pub schema: u32,
    pub last_checkpoint: Option<u64>,
    /// The location of the data: a path, or a URL without credentials.
    pub location: String,
}

/// A finding of `audit verify`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditFinding {
    /// The event's bytes do not match its hash, or its hash does not follow the previous one.
    BadHash { stream: String, seq: u64, global: u64, kind: String },
    /// A number is missing in a stream.
    Gap { stream: String, expected: u64, found: u64 },
    /// A number is missing in the global order, and no retention record explains it.
    GlobalGap { expected: u64, found: u64 },
    /// The stream ends before its recorded head, or with another hash.
    BadHead { stream: String, recorded: u64, found: u64 },
    /// A checkpoint's signature is wrong, or it does not follow the previous checkpoint.
    BadCheckpoint { number: u64, why: String },
    /// A checkpoint confirms a head that the log does not contain.
    CheckpointMismatch { number: u64, stream: String, seq: u64 },
    /// Event `promised` of the stream was acknowledged, but the stream ends at `found` or has
    /// another event there.
    Lost { stream: String, promised: u64, found: u64 },
    /// The record of a sandbox measurement is not the signed one, or differs from the session that
    /// names it.
    BadAttestation { digest: String, why: String },
    /// A stored value cannot be read.
    Unreadable { at: String, why: String },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    pub events: u64,
    pub streams: u64,
    pub checkpoints: u64,
    /// Number of records of sandbox measurements.
    pub attestations: u64,
    /// Number of events after the newest checkpoint. They are in the hash chain but not signed yet.
    pub unsigned_tail: u64,
    /// Fingerprint of the key that signs checkpoints.
    pub key: String,
    /// The findings, at most 100. Empty if the log is intact.
    pub findings: Vec<AuditFinding>,
}

/// The data that retention removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub sessions: u64,
    pub events: u64,
    pub steps: u64,
}

/// Called after each durable commit that had events, with their positions. Must not block.
pub type CommitListener = Box<dyn Fn(&[(StreamId, u64)]) + Send + Sync>;

/// The store of durable state. Writers wait for durability; readers never block writers.
pub trait Store: Send + Sync + fmt::Debug {
    /// Makes one commit durable.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; then nothing of the commit happened.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not undo the commit: it may still happen.
    fn commit(&self, commit: Commit) -> Fut<'_, Result<Committed, StoreError>>;

    /// Masks secrets in every text of `value`: texts that look like one, and those that the store
    /// was given. For texts of people and programs. Applying it twice has no further effect.
    fn redact(&self, value: &mut Value);

    /// Masks secrets in the payload of an event, or in a part of one, by the rule that `commit`
    /// applies. Ids, kinds, states, hashes and directories are not changed.
    fn redact_record(&self, value: &mut Value);

    /// Returns how many bytes at the beginning of a growing text can already be masked and shown:
    /// no secret known to this store extends from them into the text that follows. The result is
    /// after a line end.
    ///
    /// The default implementation assumes that no secret contains a line end.
    fn settled(&self, text: &str) -> usize {
        text.rfind(['\n', '\r']).map_or(0, |at| at + 1)
    }

    /// Returns a problem of the store's location: a disk that is almost full, or missing files. The
    /// check is cheap enough to be called at any time.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Sets the listener for commits. There is only one; a second call replaces it.
    fn listen(&self, listener: CommitListener);

    fn agent_fetch(&self, id: AgentId) -> Fut<'_, Result<Option<Agent>, StoreError>>;
    /// Returns the agent with exactly this name, the newest if several share it.
    fn agent_by_name(
        &self,
        colony: ColonyId,
        name: String,
    ) -> Fut<'_, Result<Option<Agent>, StoreError>>;
    fn agent_list(&self, page: Page<AgentId>) -> Fut<'_, Result<Vec<Agent>, StoreError>>;
    /// Returns all versions of an agent, newest first.
    fn agent_versions(
        &self,
        id: AgentId,
        page: Page<u32>,
    ) -> Fut<'_, Result<Vec<Agent>, StoreError>>;

    fn session_fetch(&self, id: SessionId) -> Fut<'_, Result<Option<SessionRow>, StoreError>>;
    fn session_list(
        &self,
        filter: SessionFilter,
        page: Page<SessionId>,
    ) -> Fut<'_, Result<Vec<SessionRow>, StoreError>>;
    /// Returns sessions with this status, oldest first, in pages. For recovery and the queue.
    fn session_scan(
        &self,
        status: SessionStatus,
        after: Option<SessionId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<SessionRow>, StoreError>>;

    /// Returns the steps after `after` in ascending order of `idx`.
    fn step_list(
        &self,
        session: SessionId,
        after: Option<u32>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<StepRow>, StoreError>>;
    fn step_fetch(&self, id: StepId) -> Fut<'_, Result<Option<StepRow>, StoreError>>;

    fn inbox_fetch(&self, id: InboxId) -> Fut<'_, Result<Option<InboxItem>, StoreError>>;
    /// Returns matching items, newest request first.
    fn inbox_list(
        &self,
        filter: InboxFilter,
        page: Page<InboxCursor>,
    ) -> Fut<'_, Result<Vec<InboxItem>, StoreError>>;
    /// Returns the items that changed after `after`, in their present form and in the order of
    /// their last change.
    /// Items of one commit have the same number and are never split, so a page may have a few more
    /// items than `limit`.
    fn inbox_changes(
        &self,
        colony: ColonyId,
        after: u64,
        limit: u32,
    ) -> Fut<'_, Result<Vec<InboxItem>, StoreError>>;
    /// Returns the numbers of open items and the number of the last change of any item, read at the
    /// same moment.
    fn inbox_counts(&self, colony: ColonyId) -> Fut<'_, Result<(InboxCounts, u64), StoreError>>;
    /// Returns sessions that wait for a human without an open item, oldest first: they began to
    /// wait before the inbox existed.
    fn inbox_missing(
        &self,
        after: Option<SessionId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<SessionId>, StoreError>>;

    fn events(&self, query: EventQuery) -> Fut<'_, Result<Vec<LogEvent>, StoreError>>;
    /// Returns the newest events of one stream or of all, newest first. `after` means "older than".
    fn events_newest(
        &self,
        stream: Option<StreamId>,
        page: Page<u64>,
    ) -> Fut<'_, Result<Vec<LogEvent>, StoreError>>;

    /// Returns the item even if it has expired; the caller checks `expires_at`.
    fn memory_fetch(&self, id: MemoryId) -> Fut<'_, Result<Option<MemoryItem>, StoreError>>;
    /// Returns the item that was last stored with this idempotency key, even if it has expired.
    fn memory_by_key(&self, key: EffectId) -> Fut<'_, Result<Option<MemoryItem>, StoreError>>;
    /// Returns items that contain any of `terms`, best BM25 first. Terms are words without syntax,
    /// and are matched as text. Items that match only common words are returned too if there is
    /// room. In a large store, items that match only words of more than half of all items come
    /// last, with [`MemoryMatch::IDLE`].
    fn memory_match(
        &self,
        scope: MemoryScope,
        terms: Vec<String>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<MemoryMatch>, StoreError>>;
    /// Returns items, newest first.
    fn memory_list(
        &self,
        scope: MemoryScope,
        page: Page<MemoryId>,
    ) -> Fut<'_, Result<Vec<MemoryItem>, StoreError>>;
    /// Returns the items nearest to `vector` by exact cosine, best first, among those with the same
    /// model and dimensions. `bm25` contains the cosine.
    fn memory_nearest(
        &self,
        scope: MemoryScope,
        model: String,
        vector: Vec<f32>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<MemoryMatch>, StoreError>>;
    /// Returns items of all colonies without a vector of `model` (and with `dims` dimensions, if
    /// given), after `after` in the order of their ids. Expired items are not returned.
    fn memory_stale(
        &self,
        model: String,
        dims: Option<u32>,
        now: Timestamp,
        after: Option<MemoryId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<MemoryItem>, StoreError>>;
    /// Returns items that have expired by `now`, first expired first: id, colony and collection.
    fn memory_expired(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Fut<'_, Result<Vec<ExpiredMemory>, StoreError>>;

    fn api_key_by_hash(&self, hash: [u8; 32]) -> Fut<'_, Result<Option<ApiKey>, StoreError>>;
    fn api_key_list(&self, page: Page<ApiKeyId>) -> Fut<'_, Result<Vec<ApiKey>, StoreError>>;

    /// Returns the record of a measurement by its hexadecimal digest, with the validity of its
    /// signature for this store's key and the keys that it trusts.
    fn attestation_fetch(&self, digest: String) -> Fut<'_, Result<Option<Kept>, StoreError>>;
    fn setting_fetch(&self, key: String) -> Fut<'_, Result<Option<Value>, StoreError>>;
    fn idempotency_fetch(
        &self,
        scope: String,
        key: String,
    ) -> Fut<'_, Result<Option<IdempotentAnswer>, StoreError>>;

    /// Returns all limits, all open reservations, and the newest [`budget::KEPT_WINDOWS`] windows
    /// of each scope and period that has a limit.
    fn budget_snapshot(&self) -> Fut<'_, Result<budget::Snapshot, StoreError>>;
    /// Returns a scope's daily sums since a day, which is counted from 1970-01-01. A session
    /// includes its children.
    fn budget_baseline(
        &self,
        scope: budget::Scope,
        since: i32,
    ) -> Fut<'_, Result<budget::Baseline, StoreError>>;
    /// Returns costs by agent, model, session, key or day. Reads only daily sums.
    fn costs(&self, query: CostQuery) -> Fut<'_, Result<Vec<CostRow>, StoreError>>;
    /// Returns the total costs of these sessions, in no order. Sessions without calls are left out.
    /// Reads only daily sums.
    fn session_costs(&self, ids: Vec<SessionId>) -> Fut<'_, Result<Vec<CostRow>, StoreError>>;
    /// Returns calls that have ended, latest start first; of one session if it is given.
    fn call_list(
        &self,
        session: Option<SessionId>,
        page: Page<CallId>,
    ) -> Fut<'_, Result<Vec<CallRecord>, StoreError>>;
    /// Returns the entry even if it has expired; the caller checks `expires_at`.
    fn board_fetch(
        &self,
        colony: ColonyId,
        key: Key,
    ) -> Fut<'_, Result<Option<BoardEntry>, StoreError>>;
    /// Returns a version that is not below the version of any deleted entry of this key; 0 if none
    /// was deleted. It may belong to another key in the same [`Key::bucket`].
    fn board_past(&self, colony: ColonyId, key: Key) -> Fut<'_, Result<u64, StoreError>>;
    /// Returns entries whose keys have exactly this prefix and come after `after`, sorted by key,
    /// including expired ones. Keys are compared byte by byte. A page with large values ends early,
    /// after at least one entry.
    fn board_list(
        &self,
        colony: ColonyId,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<BoardEntry>, StoreError>>;
    /// Returns keys that have expired by `now`, with their versions, first expired first.
    fn board_expired(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Fut<'_, Result<Vec<ExpiredKey>, StoreError>>;
    fn letter_fetch(
        &self,
        to: AgentId,
        id: LetterId,
    ) -> Fut<'_, Result<Option<Letter>, StoreError>>;
    /// Returns the messages of an agent after the position `after`, in order of arrival. A page
    /// with large payloads ends early, after at least one message.
    fn letter_list(
        &self,
        to: AgentId,
        filter: LetterFilter,
        after: u64,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Letter>, StoreError>>;
    /// Returns messages of all agents whose time is over by `now`, see [`Letter::dies_at`].
    fn letter_due(&self, now: Timestamp, limit: u32) -> Fut<'_, Result<Vec<Letter>, StoreError>>;
    /// Returns the number of messages of each agent that has any, by agent, after `after`.
    fn mailbox_list(
        &self,
        after: Option<AgentId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<(AgentId, MailboxCounts)>, StoreError>>;
    /// Returns subscriptions after `after`, oldest first.
    fn subscription_list(
        &self,
        after: Option<SubscriptionId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Subscription>, StoreError>>;
    /// Returns registrations after `after`, by agent.
    fn registration_list(
        &self,
        after: Option<AgentId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Registration>, StoreError>>;

    /// Stores bytes of an artifact durably under `file`, and protects them until a later commit.
    /// The same file again replaces them. They are not masked: see [`Store::redact`].
    fn artifact_write(
        &self,
        session: SessionId,
        file: EffectId,
        content: Vec<u8>,
    ) -> Fut<'_, Result<ArtifactHold, StoreError>>;
    /// Removes bytes that no row names and that are not protected; others stay. Bytes that a crash
    /// left without a row are removed after the next start.
    fn artifact_drop(&self, session: SessionId, file: EffectId) -> Fut<'_, Result<(), StoreError>>;
    /// Opens the bytes; `None` if they do not exist.
    fn artifact_open(
        &self,
        session: SessionId,
        file: EffectId,
    ) -> Fut<'_, Result<Option<Arc<dyn ArtifactContent>>, StoreError>>;
    fn artifact_fetch(
        &self,
        session: SessionId,
        name: ArtifactName,
    ) -> Fut<'_, Result<Option<Artifact>, StoreError>>;
    /// Returns artifacts, last saved first. `after` is a position.
    fn artifact_list(
        &self,
        session: SessionId,
        page: Page<u64>,
    ) -> Fut<'_, Result<Vec<Artifact>, StoreError>>;
    fn artifact_sums(&self, session: SessionId) -> Fut<'_, Result<ArtifactSums, StoreError>>;

    fn stats(&self) -> Fut<'_, Result<StoreStats, StoreError>>;

    /// Reads the whole log and checks every hash, head, number and signature.
    fn audit(&self) -> Fut<'_, Result<AuditReport, StoreError>>;
    /// Signs all stream heads that changed since the last checkpoint; `None` if none did.
    fn checkpoint(&self, now: Timestamp) -> Fut<'_, Result<Option<u64>, StoreError>>;
    /// Writes a consistent copy while writers continue. The target file must not exist.
    fn backup(&self, to: PathBuf) -> Fut<'_, Result<u64, StoreError>>;
    /// Removes sessions that ended before `before`, with their streams and model calls, and writes
    /// a `retention.pruned` event that explains each removal to `audit`. Daily sums of costs stay.
    /// Also removes idempotency keys older than `before`.
    fn prune(&self, before: Timestamp, now: Timestamp) -> Fut<'_, Result<Pruned, StoreError>>;
    /// Removes one ended session as [`prune`](Self::prune) does, however recently it ended. Returns
    /// `None`, and removes nothing, if the session does not exist or has not ended.
    fn session_remove(
        &self,
        session: SessionId,
        now: Timestamp,
    ) -> Fut<'_, Result<Option<Pruned>, StoreError>>;
    /// Finishes the accepted work and closes the store. Later calls return [`StoreError::Closed`].
    fn close(&self) -> Fut<'_, Result<(), StoreError>>;
}

/// Checks that a path can be the target of a backup.
///
/// # Errors
///
/// Returns a text for the user, with the path, if the path has no file name.
pub fn backup_target(path: &Path) -> Result<(), String> {
    match path.file_name() {
        Some(_) => Ok(()),
        None => Err(format!("{} is not a file path", path.display())),
    }
}
