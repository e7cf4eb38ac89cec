//! The port to durable state: one append-only log, and rows that change in the same commit.
//!
//! Nothing above this port knows which database is behind it. A [`Commit`] is one unit: all of
//! it is durable when [`Store::commit`] answers, or none of it ever happened.

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

/// A stream of the log: its own sequence numbers from 1, its own hash chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamId {
    /// Agents, keys, settings, hives, memory, retention: everything that is not one session.
    System,
    /// The shared state, topics and letters of the mesh, and who may do what there.
    Mesh,
    /// Declared things: the specs of [`crate::record`], each as it was put.
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
    /// Dotted, lower case: `run.queued`.
    pub kind: &'static str,
    pub ts: Timestamp,
    /// An object. Secrets in it are masked by the store before it is hashed and written.
    pub payload: Value,
}

/// One event at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEvent {
    /// Place in the order of all commits of this store, from 1.
    pub global: u64,
    pub stream: StreamId,
    /// Place in its stream, from 1, without gaps.
    pub seq: u64,
    pub kind: Box<str>,
    pub ts: Timestamp,
    /// JSON text, exactly as hashed.
    pub payload: Box<str>,
    pub hash: [u8; 32],
}

impl LogEvent {
    /// The event's id at the surface: `<stream>.<seq>`.
    pub fn id(&self) -> String {
        format!("{}.{}", self.stream, self.seq)
    }

    /// The payload parsed; a JSON string of the raw text when it does not parse.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.payload)
            .unwrap_or_else(|_| Value::String(self.payload.to_string()))
    }
}

/// The hash of an event: `BLAKE3(prev ‖ seq ‖ ts ‖ len(stream) ‖ stream ‖ len(kind) ‖ kind ‖
/// payload)`, integers as 8 bytes big-endian. `prev` is the hash before it in its stream, 32
/// zero bytes for the first.
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

/// What must be true at the moment of the commit; otherwise nothing of it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The session stands at exactly this epoch and has not ended.
    SessionEpoch { session: SessionId, epoch: u32 },
    /// The session stands at exactly this epoch and has ended.
    SessionEnded { session: SessionId, epoch: u32 },
    /// The session exists (any epoch, any status).
    SessionExists { session: SessionId },
    /// The agent stands at exactly this version.
    AgentVersion { agent: AgentId, version: u32 },
    /// No agent of the colony is called so that is not removed, but for this one.
    AgentNameFree { colony: ColonyId, name: String, except: Option<AgentId> },
    /// No session of the colony that has not ended is called so.
    NameFree { colony: ColonyId, name: String },
    /// The key of the shared state stands at exactly this version; `None`: it is not there.
    BoardVersion { colony: ColonyId, key: Key, version: Option<u64> },
    /// The record stands at exactly this version; `None`: it is not there.
    RecordVersion { key: RecordKey, version: Option<u64> },
    /// The letter is there, was handed out so often, and is dead or not.
    LetterAt { to: AgentId, id: LetterId, attempts: u32, dead: bool },
}

/// A change of current state.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Inserts or replaces an agent and keeps this version in the history.
    AgentPut(Box<Agent>),
    /// A new session; its id must be new.
    SessionInsert(Box<SessionRow>),
    /// Replaces a session's row; its name and parent stay as they are. The session must exist.
    SessionUpdate(Box<SessionRow>),
    /// Inserts or replaces a step by its id.
    StepPut(Box<StepRow>),
    /// Inserts or replaces an item of the inbox by its id. Its `changed` becomes the global
    /// number of the commit's last event.
    InboxPut(Box<InboxItem>),
    /// A new memory item. With a `key` seen before, this change does nothing; a key whose item
    /// had expired when this one was created is free again. What it
    /// supersedes must be in the same collection and not superseded yet, otherwise the commit is
    /// refused with [`StoreError::Conflict`]; the old item gets its `superseded_by`.
    MemoryInsert {
        item: Box<MemoryItem>,
        key: Option<EffectId>,
    },
    MemoryDelete(MemoryId),
    /// Gives an item another vector, and says whose. An item that is gone stays gone.
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
    /// Keeps the record of a measurement under its digest. One that is there already stays.
    AttestationPut(Arc<Attested>),
    HivePut {
        hive: HiveId,
        name: String,
        seen_at: Timestamp,
    },
    /// Remembers the answer to a request that carried an Idempotency-Key. The pair of scope and
    /// key must be new; otherwise the commit is refused with [`StoreError::Conflict`].
    IdempotencyPut {
        scope: String,
        key: String,
        answer: IdempotentAnswer,
        at: Timestamp,
    },
    /// Secrets, grants and services.
    Vault(VaultChange),
    Budget(Box<BudgetChange>),
    /// Inserts or replaces a key of the shared state.
    BoardPut(Box<BoardEntry>),
    /// Removes a key of the shared state; one that is gone stays gone. Its version is remembered, see
    /// [`Store::board_past`].
    BoardDelete {
        colony: ColonyId,
        key: Key,
    },
    /// A new letter. When the agent has one with its id, this change does nothing.
    LetterInsert(Box<Letter>),
    /// What became of a letter. One that is gone stays gone.
    LetterMark {
        to: AgentId,
        id: LetterId,
        mark: LetterMark,
        /// Of the letter, which this does not change.
        expires_at: Option<Timestamp>,
    },
    LetterDelete {
        to: AgentId,
        id: LetterId,
    },
    /// A subscription. When the agent has one with the same pattern, it takes its place.
    SubscriptionPut(Box<Subscription>),
    SubscriptionDelete(SubscriptionId),
    /// What an agent says about itself, in place of what it said before.
    RegistrationPut(Box<Registration>),
    /// A declared thing. Each such change needs an event of its own, see [`RecordChange`].
    Record(Box<RecordChange>),
    /// A new version of an artifact, or the first. Its `place` becomes the global number of the
    /// commit's last event. A name that differs from another of the session only in case is refused
    /// with [`StoreError::Conflict`].
    ArtifactPut(Box<Artifact>),
    /// Removes the row of an artifact; its bytes go with [`Store::artifact_drop`].
    ArtifactDelete {
        session: SessionId,
        name: ArtifactName,
    },
}

/// What a first request with an Idempotency-Key made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotentAnswer {
    /// BLAKE3 of the request's body: the same key with another body is refused.
    pub fingerprint: [u8; 32],
    /// Id of what was created.
    pub resource: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commit {
    pub guards: Vec<Guard>,
    pub events: Vec<NewEvent>,
    pub changes: Vec<Change>,
}

/// Where the events of a commit came to stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Global number of the last event; the store's head when there were none.
    pub global: u64,
    /// `(stream, seq)` of each event, in the commit's order.
    pub places: Vec<(StreamId, u64)>,
}

/// Why the store did not do what was asked. No driver type is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A guard did not hold, or a unique name is taken. Read again, decide again. `guard`: the place
    /// in [`Commit::guards`], from 0, of the first that did not hold.
    #[error("{what}")]
    Conflict { what: Box<Conflict>, guard: Option<u32> },
    #[error("{what} does not exist")]
    NotFound { what: String },
    /// The disk is full. Nothing was written; the same commit may succeed later.
    #[error("the disk holding {} is full: {detail}; free space and try again", path.display())]
    Full { path: PathBuf, detail: String },
    #[error("{} cannot be written: {detail}; check its owner, its mode and the mount", path.display())]
    ReadOnly { path: PathBuf, detail: String },
    /// Another process holds the store.
    #[error("{} is in use: {detail}", path.display())]
    Locked { path: PathBuf, detail: String },
    /// The file, or a row in it, is damaged.
    #[error("{} is damaged: {detail}; `overmind audit verify` names the place, `overmind restore` brings a backup back", path.display())]
    Corrupt { path: PathBuf, detail: String },
    /// Commits that were acknowledged are gone: the write-ahead log was damaged or removed, or an
    /// older file stands in the store's place. Nothing of it has been changed.
    #[error("{} has lost acknowledged events: {detail}; its write-ahead log was damaged or removed, or an older copy was put in its place", path.display())]
    Lost { path: PathBuf, detail: String },
    /// The file was written by a newer program.
    #[error("{} has schema {found}, this program knows up to {known}: use the newer program, or restore a backup made by this one", path.display())]
    TooNew { path: PathBuf, found: u32, known: u32 },
    /// The store was closed, or its writer ended after a failure that it could not survive.
    #[error("the store is closed: {detail}")]
    Closed { detail: String },
    #[error("{attempt}: {detail}")]
    Other { attempt: String, detail: String },
}

impl StoreError {
    /// The same request may succeed later without anyone changing it.
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

/// Part of a list, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<Id> {
    /// At most this many, 1..=1000.
    pub limit: u32,
    /// Only what stands after this one in the list, which need not exist any more.
    pub after: Option<Id>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    pub colony: Option<ColonyId>,
    pub agent: Option<AgentId>,
    /// At one of these; empty: at any.
    pub statuses: Vec<SessionStatus>,
    /// Started by this session.
    pub parent: Option<SessionId>,
    /// This session, and those that were started for it, for those, and so on.
    pub tree: Option<SessionId>,
    pub name: Option<NameFilter>,
    /// Started for this record.
    pub owner: Option<RecordId>,
    /// With these labels.
    pub selector: Selector,
}

/// Which names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameFilter {
    Is(String),
    Begins(String),
}

/// Part of the log, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventQuery {
    /// `None`: all streams, by global order (`after` is a global number then).
    pub stream: Option<StreamId>,
    /// Only events with a greater number.
    pub after: u64,
    /// Only these kinds; empty: all.
    pub kinds: &'static [&'static str],
    /// At most this many, 1..=10_000.
    pub limit: u32,
}

/// Which memory items a search or a list may find.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryScope {
    pub colony: ColonyId,
    /// `None`: all of them. Searches need one; they find nothing without.
    pub collection: Option<String>,
    pub filter: MemoryFilter,
    /// Also items that others have replaced.
    pub history: bool,
    /// Items that have expired by now are not found.
    pub now: Timestamp,
}

impl MemoryScope {
    /// All current items.
    pub fn new(colony: ColonyId, collection: Option<String>, now: Timestamp) -> Self {
        Self { colony, collection, filter: MemoryFilter::default(), history: false, now }
    }
}

/// Id, colony and collection of an item that has expired.
pub type ExpiredMemory = (MemoryId, ColonyId, String);

/// A key of the shared state that has expired, and the version at which it stood.
pub type ExpiredKey = (ColonyId, Key, u64);

/// A memory item that matches words.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryMatch {
    pub item: MemoryItem,
    /// BM25, higher is better (SQLite's sign turned round). Always above 0 for a match.
    pub bm25: f64,
}

impl MemoryMatch {
    /// The score of an item that holds only words which say nothing, because most items hold
    /// them. Below every other score of a match.
    pub const IDLE: f64 = f64::MIN_POSITIVE;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    pub events: u64,
    pub streams: u64,
    pub sessions_by_status: Vec<(SessionStatus, u64)>,
    pub agents: u64,
    pub memory_items: u64,
    /// Bytes on disk, log files included.
    pub bytes: u64,
    pub schema: u32,
    pub last_checkpoint: Option<u64>,
    /// Where the state lies, in words: a path or a URL without credentials.
    pub location: String,
}

/// What `audit verify` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditFinding {
    /// The event's bytes do not give its hash, or do not follow the event before it.
    BadHash { stream: String, seq: u64, global: u64, kind: String },
    /// A number is missing in a stream.
    Gap { stream: String, expected: u64, found: u64 },
    /// A number is missing in the global order, and no retention record explains it.
    GlobalGap { expected: u64, found: u64 },
    /// The stream ends before its recorded head, or at another hash.
    BadHead { stream: String, recorded: u64, found: u64 },
    /// A checkpoint's signature is wrong, or it does not follow the one before it.
    BadCheckpoint { number: u64, why: String },
    /// A checkpoint vouches for a head that the log does not have.
    CheckpointMismatch { number: u64, stream: String, seq: u64 },
    /// Event `promised` of the stream was acknowledged; the stream ends at `found`, or has another
    /// event there.
    Lost { stream: String, promised: u64, found: u64 },
    /// A record of what a sandbox was measured to give is not the one that was signed, or a
    /// session says something else than the record that it names.
    BadAttestation { digest: String, why: String },
    /// A stored value cannot be read at all.
    Unreadable { at: String, why: String },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    pub events: u64,
    pub streams: u64,
    pub checkpoints: u64,
    /// Records of what sandboxes were measured to give.
    pub attestations: u64,
    /// Events after the newest checkpoint: chained, not yet signed for.
    pub unsigned_tail: u64,
    /// Fingerprint of the key that signs checkpoints.
    pub key: String,
    /// Empty when all is well. At most 100 are listed.
    pub findings: Vec<AuditFinding>,
}

/// What retention removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub sessions: u64,
    pub events: u64,
    pub steps: u64,
}

/// Called after each durable commit that had events, with their places; must not block.
pub type CommitListener = Box<dyn Fn(&[(StreamId, u64)]) + Send + Sync>;

/// Durable state. Writers wait for durability; readers never block them.
pub trait Store: Send + Sync + fmt::Debug {
    /// Makes one commit durable.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; nothing of the commit happened then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not undo the commit: it may happen all the same.
    fn commit(&self, commit: Commit) -> Fut<'_, Result<Committed, StoreError>>;

    /// Masks what looks like a secret, or is one that the store was told about, in every text
    /// of `value`. For what people and programs say; applying it twice changes nothing more.
    fn redact(&self, value: &mut Value);

    /// The same for the payload of an event, and for what becomes a part of one: its ids, kinds,
    /// states, hashes and directories stay as they are. The rule that `commit` applies to events.
    fn redact_record(&self, value: &mut Value);

    /// How many bytes at the beginning of a text that is still growing can be masked and shown by
    /// themselves: no secret that this store knows of reaches from them into what follows. Ends
    /// behind a line end.
    ///
    /// As provided it knows of no secret with a line end in it.
    fn settled(&self, text: &str) -> usize {
        text.rfind(['\n', '\r']).map_or(0, |at| at + 1)
    }

    /// What is wrong with where the store lies, by a look that is cheap enough to be had at any time:
    /// a disk that is about to be full, files that were taken away.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Sets who is told about commits. There is one listener; a second call replaces it.
    fn listen(&self, listener: CommitListener);

    fn agent_fetch(&self, id: AgentId) -> Fut<'_, Result<Option<Agent>, StoreError>>;
    /// By exact name; the newest one when several share it.
    fn agent_by_name(
        &self,
        colony: ColonyId,
        name: String,
    ) -> Fut<'_, Result<Option<Agent>, StoreError>>;
    fn agent_list(&self, page: Page<AgentId>) -> Fut<'_, Result<Vec<Agent>, StoreError>>;
    /// All versions of an agent, newest first.
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
    /// Sessions with this status, oldest first, in pages: for recovery and the queue.
    fn session_scan(
        &self,
        status: SessionStatus,
        after: Option<SessionId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<SessionRow>, StoreError>>;

    /// Steps in ascending order of `idx`, those after `after` only.
    fn step_list(
        &self,
        session: SessionId,
        after: Option<u32>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<StepRow>, StoreError>>;
    fn step_fetch(&self, id: StepId) -> Fut<'_, Result<Option<StepRow>, StoreError>>;

    fn inbox_fetch(&self, id: InboxId) -> Fut<'_, Result<Option<InboxItem>, StoreError>>;
    /// Items that fit, those asked last first.
    fn inbox_list(
        &self,
        filter: InboxFilter,
        page: Page<InboxCursor>,
    ) -> Fut<'_, Result<Vec<InboxItem>, StoreError>>;
    /// Items that changed after `after`, as they stand now, in the order of their last change.
    /// Items of one commit have the same number; they never come apart, so a page may have some
    /// more than `limit`.
    fn inbox_changes(
        &self,
        colony: ColonyId,
        after: u64,
        limit: u32,
    ) -> Fut<'_, Result<Vec<InboxItem>, StoreError>>;
    /// How many are open, and the number of the last change of any item, read at one moment.
    fn inbox_counts(&self, colony: ColonyId) -> Fut<'_, Result<(InboxCounts, u64), StoreError>>;
    /// Sessions that wait for a human and have no open item, oldest first: they began to wait
    /// before there was an inbox.
    fn inbox_missing(
        &self,
        after: Option<SessionId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<SessionId>, StoreError>>;

    fn events(&self, query: EventQuery) -> Fut<'_, Result<Vec<LogEvent>, StoreError>>;
    /// The newest events of all streams or of one, newest first; `after` means "older than".
    fn events_newest(
        &self,
        stream: Option<StreamId>,
        page: Page<u64>,
    ) -> Fut<'_, Result<Vec<LogEvent>, StoreError>>;

    /// The item whatever its age; the caller looks at `expires_at`.
    fn memory_fetch(&self, id: MemoryId) -> Fut<'_, Result<Option<MemoryItem>, StoreError>>;
    /// The item that was last stored with this idempotency key, whatever its age.
    fn memory_by_key(&self, key: EffectId) -> Fut<'_, Result<Option<MemoryItem>, StoreError>>;
    /// Items that contain any of `terms`, best BM25 first. Terms are words, not syntax: whatever
    /// they contain is matched as text. However common a word is, items that hold only that are
    /// found where there is room; in a large store those that hold nothing else than words of
    /// more than half of all items come last, with [`MemoryMatch::IDLE`].
    fn memory_match(
        &self,
        scope: MemoryScope,
        terms: Vec<String>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<MemoryMatch>, StoreError>>;
    /// Items newest first.
    fn memory_list(
        &self,
        scope: MemoryScope,
        page: Page<MemoryId>,
    ) -> Fut<'_, Result<Vec<MemoryItem>, StoreError>>;
    /// Items nearest to `vector` by cosine, exactly, among those of the same model and
    /// dimensions, best first, with their cosine in `bm25`'s place.
    fn memory_nearest(
        &self,
        scope: MemoryScope,
        model: String,
        vector: Vec<f32>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<MemoryMatch>, StoreError>>;
    /// Items of all colonies that have no vector of `model` (with `dims` dimensions, where
    /// given), in the order of their ids, those after `after` only. Expired ones are left out.
    fn memory_stale(
        &self,
        model: String,
        dims: Option<u32>,
        now: Timestamp,
        after: Option<MemoryId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<MemoryItem>, StoreError>>;
    /// Items that have expired by `now`, those that did first first: id, colony and collection.
    fn memory_expired(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Fut<'_, Result<Vec<ExpiredMemory>, StoreError>>;

    fn api_key_by_hash(&self, hash: [u8; 32]) -> Fut<'_, Result<Option<ApiKey>, StoreError>>;
    fn api_key_list(&self, page: Page<ApiKeyId>) -> Fut<'_, Result<Vec<ApiKey>, StoreError>>;

    /// The record of a measurement by its digest in hexadecimal, and what its signature is worth
    /// to this store's key and the keys that it trusts.
    fn attestation_fetch(&self, digest: String) -> Fut<'_, Result<Option<Kept>, StoreError>>;
    fn setting_fetch(&self, key: String) -> Fut<'_, Result<Option<Value>, StoreError>>;
    fn idempotency_fetch(
        &self,
        scope: String,
        key: String,
    ) -> Fut<'_, Result<Option<IdempotentAnswer>, StoreError>>;

    /// All limits, open reservations, and of each scope and period that has a limit the newest
    /// [`budget::KEPT_WINDOWS`] windows.
    fn budget_snapshot(&self) -> Fut<'_, Result<budget::Snapshot, StoreError>>;
    /// What the daily sums say about a scope since a day, which is counted from 1970-01-01. A
    /// session has its children's, too.
    fn budget_baseline(
        &self,
        scope: budget::Scope,
        since: i32,
    ) -> Fut<'_, Result<budget::Baseline, StoreError>>;
    /// Costs by agent, model, session, key or day. Reads daily sums only.
    fn costs(&self, query: CostQuery) -> Fut<'_, Result<Vec<CostRow>, StoreError>>;
    /// What the calls of these sessions came to in all, in no order; nothing of a session without any.
    /// Reads daily sums only.
    fn session_costs(&self, ids: Vec<SessionId>) -> Fut<'_, Result<Vec<CostRow>, StoreError>>;
    /// Calls that have ended, those that began last first; of one session where one is named.
    fn call_list(
        &self,
        session: Option<SessionId>,
        page: Page<CallId>,
    ) -> Fut<'_, Result<Vec<CallRecord>, StoreError>>;
    /// The entry whatever its age; the caller looks at `expires_at`.
    fn board_fetch(
        &self,
        colony: ColonyId,
        key: Key,
    ) -> Fut<'_, Result<Option<BoardEntry>, StoreError>>;
    /// A version that no deleted entry of this key has passed; 0 when none was deleted. It may be
    /// that of another key in the same [`Key::bucket`].
    fn board_past(&self, colony: ColonyId, key: Key) -> Fut<'_, Result<u64, StoreError>>;
    /// Entries whose keys begin with exactly `prefix` and come after `after`, by key, whatever
    /// their age. Keys are compared byte by byte. A page whose values grow large ends early, after
    /// one at least.
    fn board_list(
        &self,
        colony: ColonyId,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<BoardEntry>, StoreError>>;
    /// Keys that have expired by `now`, with their versions, those that did first first.
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
    /// Letters of an agent in the order in which they came, those after the place `after` only. A
    /// page whose payloads grow large ends early, after one at least.
    fn letter_list(
        &self,
        to: AgentId,
        filter: LetterFilter,
        after: u64,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Letter>, StoreError>>;
    /// Letters of all agents that time has killed by `now`, see [`Letter::dies_at`].
    fn letter_due(&self, now: Timestamp, limit: u32) -> Fut<'_, Result<Vec<Letter>, StoreError>>;
    /// How many letters each agent has that has any, by agent, those after `after` only.
    fn mailbox_list(
        &self,
        after: Option<AgentId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<(AgentId, MailboxCounts)>, StoreError>>;
    /// All subscriptions, oldest first, those after `after` only.
    fn subscription_list(
        &self,
        after: Option<SubscriptionId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Subscription>, StoreError>>;
    /// All registrations, by agent, those after `after` only.
    fn registration_list(
        &self,
        after: Option<AgentId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Registration>, StoreError>>;

    /// Keeps bytes of an artifact under `file`, durably, and holds them for a commit to come. The
    /// same file again takes the place of what was there. They are not masked: see
    /// [`Store::redact`].
    fn artifact_write(
        &self,
        session: SessionId,
        file: EffectId,
        content: Vec<u8>,
    ) -> Fut<'_, Result<ArtifactHold, StoreError>>;
    /// Removes bytes that no row names and nobody holds; others stay. What a crash leaves without
    /// a row goes by itself after the next start.
    fn artifact_drop(&self, session: SessionId, file: EffectId) -> Fut<'_, Result<(), StoreError>>;
    /// `None` when there are no such bytes.
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
    /// Those saved last first; `after` is a place.
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
    /// Writes a consistent copy while others go on writing. The file must not exist.
    fn backup(&self, to: PathBuf) -> Fut<'_, Result<u64, StoreError>>;
    /// Removes ended sessions that finished before `before`, with their streams and model calls
    /// (daily sums of costs stay), and writes a `retention.pruned` event that explains each to `audit`. Also forgets idempotency keys
    /// older than `before`.
    fn prune(&self, before: Timestamp, now: Timestamp) -> Fut<'_, Result<Pruned, StoreError>>;
    /// Removes one session as [`prune`](Self::prune) does, however long ago it ended. `None`: there is no
    /// such session, or it has not ended; nothing is removed then.
    fn session_remove(
        &self,
        session: SessionId,
        now: Timestamp,
    ) -> Fut<'_, Result<Option<Pruned>, StoreError>>;
    /// Finishes what was accepted and closes. Later calls answer [`StoreError::Closed`].
    fn close(&self) -> Fut<'_, Result<(), StoreError>>;
}

/// Checks that a backup target is fit, in words that name the path.
///
/// # Errors
///
/// A text for the user when the path has no file name.
pub fn backup_target(path: &Path) -> Result<(), String> {
    match path.file_name() {
        Some(_) => Ok(()),
        None => Err(format!("{} is not a file path", path.display())),
    }
}
