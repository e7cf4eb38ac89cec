//! The store itself: opens the parts and passes each call of the port to the right one.

mod removal;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use overmind_core::Fut;
use overmind_core::agent::Agent;
use overmind_core::artifact::{
    Artifact, ArtifactContent, ArtifactHold, ArtifactName, ArtifactSums,
};
use overmind_core::attest::{Kept, Notary};
use overmind_core::budget::{Baseline, CallRecord, CostQuery, CostRow, Scope, Snapshot};
use overmind_core::ids::{
    AgentId, ApiKeyId, CallId, ColonyId, EffectId, InboxId, LetterId, MemoryId, SessionId, StepId,
    SubscriptionId,
};
use overmind_core::inbox::{InboxCounts, InboxCursor, InboxFilter, InboxItem};
use overmind_core::memory::MemoryItem;
use overmind_core::mesh::{
    BoardEntry, Key, Letter, LetterFilter, MailboxCounts, Registration, Subscription,
};
use overmind_core::row::{ApiKey, SessionRow, SessionStatus, StepRow};
use overmind_core::store::{
    AuditReport, Commit, CommitListener, Committed, EventQuery, ExpiredKey, IdempotentAnswer,
    LogEvent, MemoryMatch, MemoryScope, Page, Pruned, SessionFilter, Store, StoreError, StoreStats,
    StreamId,
};
use overmind_core::time::Timestamp;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::error::{closed, explain_io};
use crate::files::{Lock, bytes_on_disk, check_owner, ensure_file, id_of, prepare_dir, trouble};
use crate::key::{SigningKey, fingerprint};
use crate::options::{OnLoss, Options, beside};
use crate::prepare::prepare;
use crate::read::pool::Pool;
use crate::read::words::CommonWords;
use crate::read::{inbox, memory, mesh, queries, words};
use crate::redact::Redactor;
use crate::vectors::Vectors;
use crate::witness::{self, Loss, Witness};
use crate::writer::log::Log;
use crate::writer::{CommitJob, Job, Reply, Writer};
use crate::{artifacts, attestations, audit, backup, budgets, schema, wal};

/// Maximum number of commits that are queued; further callers wait.
const QUEUE: usize = 1_024;
/// Memory for queued commits, in [`ROOM_UNIT`]s: 64 MB. A larger commit takes all of it.
const ROOM: u32 = 64 << 10;
const ROOM_UNIT: usize = 1 << 10;

/// The state that the threads of one store share.
#[derive(Default)]
pub(crate) struct Shared {
    path: PathBuf,
    closed: AtomicBool,
    /// Identifies the write-ahead log that is written.
    log: Option<(u64, u64)>,
    lock: Mutex<Option<Lock>>,
    listener: RwLock<Option<Arc<CommitListener>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn listener(&self) -> Option<Arc<CommitListener>> {
        self.listener.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Releases the store for another process.
    pub(crate) fn release(&self) {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// A store in one SQLite file. See the crate's docs; [`Sqlite::open`] makes one.
///
/// Dropping it does what [`Store::close`] does, and blocks until it is done.
#[derive(Debug)]
pub struct Sqlite {
    shared: Arc<Shared>,
    redactor: Redactor,
    queue: Option<mpsc::Sender<Job>>,
    room: Arc<Semaphore>,
    readers: Pool,
    writer: Option<JoinHandle<()>>,
    key: Arc<SigningKey>,
    /// Public keys whose checkpoints count, the own one first.
    trusted: Arc<[[u8; 32]]>,
    /// Permits one backup or audit at a time, because each keeps the write-ahead log from being
    /// reset.
    long_reads: Semaphore,
    vectors: Arc<Vectors>,
    common_words: Arc<CommonWords>,
    artifacts: Arc<artifacts::Files>,
}

impl Sqlite {
    /// Opens the store for this process, and makes it if there is none.
    ///
    /// Blocks while it reads and writes files: some milliseconds, or longer if a crash left a long
    /// write-ahead log.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`] names the process that has the store open. [`StoreError::TooNew`] is
    /// returned for a newer program's file, which is not changed, and [`StoreError::Lost`] for a
    /// store with less than was acknowledged (see [`OnLoss`]). [`StoreError::ReadOnly`] reports
    /// wrong owners, modes and mounts, [`StoreError::Corrupt`] files that are no store.
    pub fn open(options: Options) -> Result<Self, StoreError> {
        let path = options.path.clone();
        overmind_core::store::backup_target(&path)
            .map_err(|detail| StoreError::Other { attempt: "opening the store".into(), detail })?;
        prepare_dir(&path)?;
        check_owner(&path)?;
        let lock = Lock::take(&path)?;
        schema::inspect(&path)?;
        let key = Arc::new(SigningKey::open(&options.key_file())?);
        let witness_file = witness::file_of(&path);
        let with_witness =
            |err: std::io::Error| explain_io(&err, &witness_file, "keeping what was acknowledged");
        let promises = witness::read(&path, key.witness()).map_err(with_witness)?;
        // This comes before any write, because the rest of a damaged log may still be useful.
        let loss = witness::missing(&path, &promises)?;
        let lost = |loss: &Loss| StoreError::Lost { path: path.clone(), detail: loss.detail() };
        match (&loss, options.on_loss) {
            (Some(loss), OnLoss::Refuse) => return Err(lost(loss)),
            // There is nothing to read.
            (Some(loss), OnLoss::ReadOnly) if loss.is_whole() => return Err(lost(loss)),
            (Some(_), OnLoss::ReadOnly | OnLoss::Accept { .. }) | (None, _) => {}
        }
        ensure_file(&path)?;
        let explain = |fault: crate::error::Fault| fault.explain(&path, "opening the store");
        let mut conn = schema::open_writer(&path, options.max_bytes).map_err(explain)?;
        schema::migrate(&mut conn).map_err(explain)?;
        schema::undo_in_memory(&conn).map_err(explain)?;
        let mut trusted = vec![*key.public()];
        trusted.extend(&options.trusted_keys);
        let log = Log::load(&conn).map_err(explain)?;
        let shared = Arc::new(Shared {
            path: path.clone(),
            log: id_of(&beside(&path, "-wal")),
            lock: Mutex::new(Some(lock)),
            ..Shared::default()
        });
        let thread = |err: std::io::Error| explain_io(&err, &path, "starting a thread for");
        let (queue, jobs) = mpsc::channel(QUEUE);
        let mut writer = Writer {
            witness: None,
            wal: wal::Wal::start(&path).map_err(thread)?,
            conn,
            log,
            key: Arc::clone(&key),
            checkpoint_every: options.checkpoint_every.max(1),
            shared: Arc::clone(&shared),
            queue: jobs,
            broken: None,
        };
        match (&loss, options.on_loss) {
            (None, _) => {
                let witness = Witness::open(&path, *key.witness(), &promises);
                writer.witness = Some(witness.map_err(with_witness)?);
            }
            (Some(loss), OnLoss::Accept { now }) => {
                // The event comes first: after a kill before the new witness is written, the user
                // is asked again.
                writer.accept(loss, now)?;
                let mut witness =
                    Witness::open(&path, *key.witness(), &[]).map_err(with_witness)?;
                witness.forget().map_err(with_witness)?;
                writer.witness = Some(witness);
                tracing::warn!(lost = loss.detail(), "going on without what was lost");
            }
            (Some(loss), OnLoss::ReadOnly | OnLoss::Refuse) => writer.broken = Some(lost(loss)),
        }
        let readers = Pool::start(&path, options.readers).map_err(thread)?;
        let artifacts = Arc::new(artifacts::Files::new(&path));
        artifacts::sweep(&artifacts, &shared).map_err(thread)?;
        let writer = std::thread::Builder::new()
            .name("store-write".into())
            .spawn(move || writer.run())
            .map_err(thread)?;
        Ok(Self {
            shared,
            redactor: Redactor::new(&options.secrets),
            queue: Some(queue),
            room: Arc::new(Semaphore::new(ROOM as usize)),
            readers,
            writer: Some(writer),
            key,
            trusted: trusted.into(),
            long_reads: Semaphore::new(1),
            vectors: Arc::default(),
            common_words: Arc::default(),
            artifacts,
        })
    }

    /// Masks `secret` in everything that is written from now on. Returns `false` if it cannot be
    /// masked: see [`Redactor::learn`].
    #[must_use = "a secret that cannot be masked must be kept out in another way"]
    pub fn learn_secret(&self, secret: &str) -> bool {
        self.redactor.learn(secret)
    }

    /// Learns several secrets; returns `false` if one of them cannot be masked.
    pub(crate) fn learn_secrets(&self, secrets: &[&str]) -> bool {
        self.redactor.learn_all(secrets)
    }

    /// The public key that signs checkpoints here; another store lists it in
    /// [`Options::trusted_keys`].
    pub fn public_key(&self) -> [u8; 32] {
        self.trusted.first().copied().unwrap_or_default()
    }

    /// A short name of [`Sqlite::public_key`], as `audit` reports it.
    pub fn key_fingerprint(&self) -> String {
        fingerprint(&self.public_key())
    }

    /// Returns a signer for attestations of sandboxes. It uses the key that signs checkpoints, but
    /// can sign nothing else.
    pub fn notary(&self) -> Notary {
        let key = Arc::clone(&self.key);
        let sign = move |digest: &[u8; 32]| key.sign_attestation(digest);
        Notary { signer: self.key_fingerprint(), sign: Arc::new(sign) }
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        attempt: &'static str,
        read: impl FnOnce(&rusqlite::Connection) -> crate::error::Outcome<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.shared.is_closed() {
            return Err(closed());
        }
        let done = self.readers.run(attempt, read).await;
        done.map_err(|err| match trouble(&self.shared.path, self.shared.log) {
            // A connection that is opened now would find another log than the writer uses.
            Some(detail) => StoreError::Closed { detail },
            None => err,
        })
    }

    /// Queues a job for the writer and waits for its answer.
    async fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreError> {
        let queue = self.queue.as_ref().ok_or_else(closed)?;
        let (reply, answer) = oneshot::channel();
        queue.send(job(reply)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| StoreError::Closed {
            detail: "its writer ended before it could answer".into(),
        })?
    }

    /// Runs `work`, which reads for a long time, on its own thread.
    async fn read_long<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _turn = self.long_reads.acquire().await.map_err(|_| closed())?;
        if self.shared.is_closed() {
            return Err(closed());
        }
        let (reply, answer) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name(format!("store-{name}"))
            .spawn(move || drop(reply.send(work(&shared))))
            .map_err(|err| explain_io(&err, &self.shared.path, "starting a thread for"))?;
        answer.await.map_err(|_| StoreError::Other {
            attempt: format!("{name} of {}", self.shared.path.display()),
            detail: "it ended without an answer".into(),
        })?
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.readers.shut();
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            // A listener may drop the last handle, on the writer's own thread.
            if writer.thread().id() != std::thread::current().id() && writer.join().is_err() {
                tracing::error!("the store's writer panicked");
            }
        }
        // If the writer panicked, it could not release the lock.
        self.shared.release();
    }
}

impl Store for Sqlite {
    fn commit(&self, commit: Commit) -> Fut<'_, Result<Committed, StoreError>> {
        Box::pin(async move {
            let commit = prepare(commit, &self.redactor)?;
            let units = u32::try_from(commit.bytes / ROOM_UNIT).unwrap_or(ROOM).clamp(1, ROOM);
            let room =
                Arc::clone(&self.room).acquire_many_owned(units).await.map_err(|_| closed())?;
            self.ask(|reply| Job::Commit(CommitJob { commit, reply, room })).await
        })
    }

    fn redact(&self, value: &mut Value) {
        self.redactor.value(value);
    }

    fn redact_record(&self, value: &mut Value) {
        self.redactor.record(value);
    }

    fn settled(&self, text: &str) -> usize {
        self.redactor.settled(text)
    }

    fn trouble(&self) -> Option<String> {
        trouble(&self.shared.path, self.shared.log)
    }

    fn listen(&self, listener: CommitListener) {
        *self.shared.listener.write().unwrap_or_else(PoisonError::into_inner) =
            Some(Arc::new(listener));
    }

    fn agent_fetch(&self, id: AgentId) -> Fut<'_, Result<Option<Agent>, StoreError>> {
        Box::pin(self.read("reading an agent", move |conn| queries::agent_fetch(conn, id)))
    }

    fn agent_by_name(
        &self,
        colony: ColonyId,
        name: String,
    ) -> Fut<'_, Result<Option<Agent>, StoreError>> {
        Box::pin(
            self.read("reading an agent", move |conn| queries::agent_by_name(conn, colony, &name)),
        )
    }

    fn agent_list(&self, page: Page<AgentId>) -> Fut<'_, Result<Vec<Agent>, StoreError>> {
        Box::pin(self.read("listing agents", move |conn| queries::agent_list(conn, page)))
    }

    fn agent_versions(
        &self,
        id: AgentId,
        page: Page<u32>,
    ) -> Fut<'_, Result<Vec<Agent>, StoreError>> {
        Box::pin(self.read("listing an agent's versions", move |conn| {
            queries::agent_versions(conn, id, page)
        }))
    }

    fn session_fetch(&self, id: SessionId) -> Fut<'_, Result<Option<SessionRow>, StoreError>> {
        Box::pin(self.read("reading a session", move |conn| queries::session_fetch(conn, id)))
    }

    fn session_list(
        &self,
        filter: SessionFilter,
        page: Page<SessionId>,
    ) -> Fut<'_, Result<Vec<SessionRow>, StoreError>> {
        Box::pin(
            self.read("listing sessions", move |conn| queries::session_list(conn, &filter, page)),
        )
    }

    fn session_scan(
        &self,
        status: SessionStatus,
        after: Option<SessionId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<SessionRow>, StoreError>> {
        Box::pin(self.read("listing sessions", move |conn| {
            queries::session_scan(conn, status, after, limit)
        }))
    }

    fn step_list(
        &self,
        session: SessionId,
        after: Option<u32>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<StepRow>, StoreError>> {
        Box::pin(
            self.read("listing steps", move |conn| queries::step_list(conn, session, after, limit)),
        )
    }

    fn step_fetch(&self, id: StepId) -> Fut<'_, Result<Option<StepRow>, StoreError>> {
        Box::pin(self.read("reading a step", move |conn| queries::step_fetch(conn, id)))
    }

    fn inbox_fetch(&self, id: InboxId) -> Fut<'_, Result<Option<InboxItem>, StoreError>> {
        Box::pin(self.read("reading the inbox", move |conn| inbox::fetch(conn, id)))
    }

    fn inbox_list(
        &self,
        filter: InboxFilter,
        page: Page<InboxCursor>,
    ) -> Fut<'_, Result<Vec<InboxItem>, StoreError>> {
        Box::pin(self.read("listing the inbox", move |conn| inbox::list(conn, &filter, page)))
    }

    fn inbox_changes(
        &self,
        colony: ColonyId,
        after: u64,
        limit: u32,
    ) -> Fut<'_, Result<Vec<InboxItem>, StoreError>> {
        Box::pin(
            self.read("reading the inbox", move |conn| inbox::changes(conn, colony, after, limit)),
        )
    }

    fn inbox_counts(&self, colony: ColonyId) -> Fut<'_, Result<(InboxCounts, u64), StoreError>> {
        Box::pin(self.read("counting the inbox", move |conn| inbox::counts(conn, colony)))
    }

    fn inbox_missing(
        &self,
        after: Option<SessionId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<SessionId>, StoreError>> {
        Box::pin(
            self.read("looking for sessions that wait", move |conn| {
                inbox::missing(conn, after, limit)
            }),
        )
    }

    fn events(&self, query: EventQuery) -> Fut<'_, Result<Vec<LogEvent>, StoreError>> {
        Box::pin(self.read("reading the log", move |conn| queries::events(conn, &query)))
    }

    fn events_newest(
        &self,
        stream: Option<StreamId>,
        page: Page<u64>,
    ) -> Fut<'_, Result<Vec<LogEvent>, StoreError>> {
        Box::pin(
            self.read("reading the log", move |conn| queries::events_newest(conn, stream, page)),
        )
    }

    fn memory_fetch(&self, id: MemoryId) -> Fut<'_, Result<Option<MemoryItem>, StoreError>> {
        Box::pin(self.read("reading a memory item", move |conn| memory::fetch(conn, id)))
    }

    fn memory_by_key(&self, key: EffectId) -> Fut<'_, Result<Option<MemoryItem>, StoreError>> {
        Box::pin(self.read("reading a memory item", move |conn| memory::by_key(conn, key)))
    }

    fn memory_match(
        &self,
        scope: MemoryScope,
        terms: Vec<String>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<MemoryMatch>, StoreError>> {
        let common = Arc::clone(&self.common_words);
        Box::pin(self.read("searching memory", move |conn| {
            words::matching(conn, &common, &scope, &terms, limit)
        }))
    }

    fn memory_list(
        &self,
        scope: MemoryScope,
        page: Page<MemoryId>,
    ) -> Fut<'_, Result<Vec<MemoryItem>, StoreError>> {
        Box::pin(self.read("listing memory items", move |conn| memory::list(conn, &scope, page)))
    }

    fn memory_nearest(
        &self,
        scope: MemoryScope,
        model: String,
        vector: Vec<f32>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<MemoryMatch>, StoreError>> {
        let vectors = Arc::clone(&self.vectors);
        Box::pin(self.read("searching memory", move |conn| {
            memory::nearest(conn, &vectors, &scope, &model, &vector, limit)
        }))
    }

    fn memory_stale(
        &self,
        model: String,
        dims: Option<u32>,
        now: Timestamp,
        after: Option<MemoryId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<MemoryItem>, StoreError>> {
        Box::pin(self.read("listing memory items", move |conn| {
            memory::stale(conn, &model, dims, now, after, limit)
        }))
    }

    fn memory_expired(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Fut<'_, Result<Vec<overmind_core::store::ExpiredMemory>, StoreError>> {
        Box::pin(self.read("listing memory items", move |conn| memory::expired(conn, now, limit)))
    }

    fn api_key_by_hash(&self, hash: [u8; 32]) -> Fut<'_, Result<Option<ApiKey>, StoreError>> {
        Box::pin(self.read("reading an API key", move |conn| queries::api_key_by_hash(conn, hash)))
    }

    fn api_key_list(&self, page: Page<ApiKeyId>) -> Fut<'_, Result<Vec<ApiKey>, StoreError>> {
        Box::pin(self.read("listing API keys", move |conn| queries::api_key_list(conn, page)))
    }

    fn attestation_fetch(&self, digest: String) -> Fut<'_, Result<Option<Kept>, StoreError>> {
        let trusted = Arc::clone(&self.trusted);
        Box::pin(self.read("reading an attestation", move |conn| {
            attestations::fetch(conn, &digest, &trusted)
        }))
    }

    fn setting_fetch(&self, key: String) -> Fut<'_, Result<Option<Value>, StoreError>> {
        Box::pin(self.read("reading a setting", move |conn| queries::setting_fetch(conn, &key)))
    }

    fn idempotency_fetch(
        &self,
        scope: String,
        key: String,
    ) -> Fut<'_, Result<Option<IdempotentAnswer>, StoreError>> {
        Box::pin(self.read("reading an earlier answer", move |conn| {
            queries::idempotency_fetch(conn, &scope, &key)
        }))
    }

    fn budget_snapshot(&self) -> Fut<'_, Result<Snapshot, StoreError>> {
        Box::pin(self.read("reading the budgets", budgets::snapshot))
    }

    fn budget_baseline(&self, scope: Scope, since: i32) -> Fut<'_, Result<Baseline, StoreError>> {
        Box::pin(self.read("adding up costs", move |conn| budgets::baseline(conn, scope, since)))
    }

    fn costs(&self, query: CostQuery) -> Fut<'_, Result<Vec<CostRow>, StoreError>> {
        Box::pin(self.read("adding up costs", move |conn| budgets::costs(conn, query)))
    }

    fn session_costs(&self, ids: Vec<SessionId>) -> Fut<'_, Result<Vec<CostRow>, StoreError>> {
        Box::pin(self.read("adding up costs", move |conn| budgets::session_costs(conn, &ids)))
    }

    fn call_list(
        &self,
        session: Option<SessionId>,
        page: Page<CallId>,
    ) -> Fut<'_, Result<Vec<CallRecord>, StoreError>> {
        Box::pin(
            self.read("listing model calls", move |conn| budgets::call_list(conn, session, page)),
        )
    }

    fn board_fetch(
        &self,
        colony: ColonyId,
        key: Key,
    ) -> Fut<'_, Result<Option<BoardEntry>, StoreError>> {
        Box::pin(
            self.read("reading the shared state", move |conn| {
                mesh::board_fetch(conn, colony, &key)
            }),
        )
    }

    fn board_past(&self, colony: ColonyId, key: Key) -> Fut<'_, Result<u64, StoreError>> {
        Box::pin(self.read("reading versions of the shared state", move |conn| {
            mesh::board_past(conn, colony, &key)
        }))
    }

    fn board_list(
        &self,
        colony: ColonyId,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<BoardEntry>, StoreError>> {
        Box::pin(self.read("listing the shared state", move |conn| {
            mesh::board_list(conn, colony, &prefix, after.as_deref(), limit)
        }))
    }

    fn board_expired(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Fut<'_, Result<Vec<ExpiredKey>, StoreError>> {
        Box::pin(self.read("looking for what has expired", move |conn| {
            mesh::board_expired(conn, now, limit)
        }))
    }

    fn letter_fetch(
        &self,
        to: AgentId,
        id: LetterId,
    ) -> Fut<'_, Result<Option<Letter>, StoreError>> {
        Box::pin(self.read("reading a letter", move |conn| mesh::letter_fetch(conn, to, id)))
    }

    fn letter_list(
        &self,
        to: AgentId,
        filter: LetterFilter,
        after: u64,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Letter>, StoreError>> {
        Box::pin(
            self.read("listing letters", move |conn| {
                mesh::letter_list(conn, to, filter, after, limit)
            }),
        )
    }

    fn letter_due(&self, now: Timestamp, limit: u32) -> Fut<'_, Result<Vec<Letter>, StoreError>> {
        Box::pin(
            self.read("looking for dead letters", move |conn| mesh::letter_due(conn, now, limit)),
        )
    }

    fn mailbox_list(
        &self,
        after: Option<AgentId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<(AgentId, MailboxCounts)>, StoreError>> {
        Box::pin(self.read("counting letters", move |conn| mesh::mailbox_list(conn, after, limit)))
    }

    fn subscription_list(
        &self,
        after: Option<SubscriptionId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Subscription>, StoreError>> {
        Box::pin(
            self.read("listing subscriptions", move |conn| {
                mesh::subscription_list(conn, after, limit)
            }),
        )
    }

    fn registration_list(
        &self,
        after: Option<AgentId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Registration>, StoreError>> {
        Box::pin(
            self.read("listing registrations", move |conn| {
                mesh::registration_list(conn, after, limit)
            }),
        )
    }

    fn artifact_write(
        &self,
        session: SessionId,
        file: EffectId,
        content: Vec<u8>,
    ) -> Fut<'_, Result<ArtifactHold, StoreError>> {
        let files = Arc::clone(&self.artifacts);
        Box::pin(async move {
            if self.shared.is_closed() {
                return Err(closed());
            }
            let hold = files.hold((session, file));
            artifacts::blocking("keeping an artifact", move || {
                files.write((session, file), &content).map(|()| hold)
            })
            .await
        })
    }

    fn artifact_drop(&self, session: SessionId, file: EffectId) -> Fut<'_, Result<(), StoreError>> {
        let files = Arc::clone(&self.artifacts);
        Box::pin(self.read("removing an artifact", move |conn| {
            files.drop_unless((session, file), || artifacts::is_named(conn, session, file))
        }))
    }

    fn artifact_open(
        &self,
        session: SessionId,
        file: EffectId,
    ) -> Fut<'_, Result<Option<Arc<dyn ArtifactContent>>, StoreError>> {
        let files = Arc::clone(&self.artifacts);
        Box::pin(artifacts::blocking("opening an artifact", move || {
            let found = files.open((session, file))?;
            Ok(found.map(|content| content as Arc<dyn ArtifactContent>))
        }))
    }

    fn artifact_fetch(
        &self,
        session: SessionId,
        name: ArtifactName,
    ) -> Fut<'_, Result<Option<Artifact>, StoreError>> {
        Box::pin(
            self.read("reading an artifact", move |conn| artifacts::fetch(conn, session, &name)),
        )
    }

    fn artifact_list(
        &self,
        session: SessionId,
        page: Page<u64>,
    ) -> Fut<'_, Result<Vec<Artifact>, StoreError>> {
        Box::pin(self.read("listing artifacts", move |conn| artifacts::list(conn, session, page)))
    }

    fn artifact_sums(&self, session: SessionId) -> Fut<'_, Result<ArtifactSums, StoreError>> {
        Box::pin(self.read("adding up artifacts", move |conn| artifacts::sums(conn, session)))
    }

    fn stats(&self) -> Fut<'_, Result<StoreStats, StoreError>> {
        Box::pin(async move {
            let stats = self.read("counting", queries::stats).await?;
            let path = &self.shared.path;
            Ok(StoreStats {
                bytes: bytes_on_disk(path),
                location: path.display().to_string(),
                ..stats
            })
        })
    }

    fn audit(&self) -> Fut<'_, Result<AuditReport, StoreError>> {
        let (trusted, key) = (Arc::clone(&self.trusted), *self.key.witness());
        Box::pin(self.read_long("audit", move |shared| {
            audit::audit(&shared.path, &trusted, &key, &|| shared.is_closed())
        }))
    }

    fn checkpoint(&self, now: Timestamp) -> Fut<'_, Result<Option<u64>, StoreError>> {
        Box::pin(self.ask(move |reply| Job::Checkpoint { now, reply }))
    }

    fn backup(&self, to: PathBuf) -> Fut<'_, Result<u64, StoreError>> {
        let files = Arc::clone(&self.artifacts);
        Box::pin(self.read_long("backup", move |shared| {
            backup::backup(&shared.path, &to, &files, &|| shared.is_closed())
        }))
    }

    fn prune(&self, before: Timestamp, now: Timestamp) -> Fut<'_, Result<Pruned, StoreError>> {
        Box::pin(self.remove_old(before, now))
    }

    fn session_remove(
        &self,
        session: SessionId,
        now: Timestamp,
    ) -> Fut<'_, Result<Option<Pruned>, StoreError>> {
        Box::pin(self.remove_one(session, now))
    }

    fn close(&self) -> Fut<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if self.shared.closed.swap(true, Ordering::AcqRel) {
                return Err(closed());
            }
            self.readers.close().await;
            self.ask(|reply| Job::Close { reply }).await
        })
    }
}
