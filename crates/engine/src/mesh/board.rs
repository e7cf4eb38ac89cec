//! The shared state: keys with values that agents read and write.
//!
//! Each key has one writer at a time, so that the event contains the version of the row; writers of
//! different keys share a commit of the store. Recently read and written values are cached in
//! memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use overmind_core::acl::Verb;
use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::{ColonyId, EffectId, SessionId};
use overmind_core::mesh::{BoardEntry, HISTORY, Key, check_prefix};
use overmind_core::store::{Change, EventQuery, Guard, LogEvent, Page, StoreError, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use super::{Who, checked_ttl, event, explained};
use crate::Engine;
use crate::caller::Caller;
use crate::cortex::{Cortex, lock, shutting_down};
use crate::error::EngineError;

/// The number of locks among which keys are distributed for writing.
const TURNS: usize = 1024;
/// The number of parts of the cache, each with its own lock.
const SHARDS: usize = 64;
/// Bytes in each part: 64 MB in total.
const SHARD_BYTES: usize = 1 << 20;
/// Maximum number of rows that one page of a list reads, including those that the caller may not
/// see.
const LOOKED_AT: u32 = 5_000;
const ROWS: u32 = 500;
/// How often a write is retried if the sweep or another process came between.
const TRIES: usize = 3;
/// Maximum number of events that one check of a watch reads.
const WATCHED: u32 = 1_000;
/// The number of events that a history reads, the newest of the mesh's stream, and the page size.
const PAST: u32 = 5_000;
const PAST_PAGE: u32 = 1_000;
/// Changes that a history answers.
const CHANGES: usize = 100;

/// The kinds of events about keys, for watches.
const KINDS: &[&str] = &["blackboard.put", "blackboard.deleted", "blackboard.expired"];

#[derive(Debug)]
pub(super) struct Board {
    turns: Vec<tokio::sync::Mutex<()>>,
    shards: Vec<Mutex<Shard>>,
}

#[derive(Debug, Default)]
struct Shard {
    kept: HashMap<Key, (Arc<BoardEntry>, usize)>,
    bytes: usize,
    /// Incremented by each write: a read that began before it is not cached.
    generation: u64,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            turns: std::iter::repeat_with(Default::default).take(TURNS).collect(),
            shards: std::iter::repeat_with(Default::default).take(SHARDS).collect(),
        }
    }
}

impl Board {
    fn turn(&self, key: &Key) -> &tokio::sync::Mutex<()> {
        &self.turns[usize::from(key.bucket()) % TURNS]
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        &self.shards[usize::from(key.bucket()) % SHARDS]
    }

    fn get(&self, key: &Key) -> Result<Arc<BoardEntry>, u64> {
        let shard = lock(self.shard(key));
        shard.kept.get(key).map(|(entry, _)| Arc::clone(entry)).ok_or(shard.generation)
    }

    /// Caches a value that was read, unless something was written since.
    fn keep(&self, entry: &Arc<BoardEntry>, bytes: usize, generation: u64) {
        let mut shard = lock(self.shard(&entry.key));
        if shard.generation == generation {
            shard.insert(entry, bytes);
        }
    }

    /// Values that are read from now until the next call are not cached.
    fn writing(&self, key: &Key, now: Option<(&Arc<BoardEntry>, usize)>) {
        let mut shard = lock(self.shard(key));
        shard.generation += 1;
        if let Some((_, bytes)) = shard.kept.remove(key) {
            shard.bytes -= bytes;
        }
        if let Some((entry, bytes)) = now {
            shard.insert(entry, bytes);
        }
    }
}

impl Shard {
    fn insert(&mut self, entry: &Arc<BoardEntry>, bytes: usize) {
        let bytes = bytes + entry.key.as_str().len() + 256;
        if bytes > SHARD_BYTES {
            return;
        }
        if self.bytes + bytes > SHARD_BYTES {
            self.kept.clear();
            self.bytes = 0;
        }
        if let Some((_, before)) = self.kept.insert(entry.key.clone(), (Arc::clone(entry), bytes)) {
            self.bytes -= before;
        }
        self.bytes += bytes;
    }
}

/// A value to write.
#[derive(Clone, Debug, Default)]
pub struct BoardWrite {
    pub value: Value,
    /// The lifetime in seconds; not allowed below `history/`.
    pub ttl: Option<u64>,
    pub workflow: Option<String>,
    /// Writes only if the key has this version; 0 means that it does not exist.
    pub version: Option<u64>,
    /// The writing call; if it is repeated, it changes nothing.
    pub effect: Option<EffectId>,
}

/// A page of a list.
#[derive(Clone, Debug, Default)]
pub struct BoardFound {
    pub entries: Vec<BoardEntry>,
    /// The key after which the next page begins, if there may be one.
    pub next: Option<String>,
}

/// The changes of a key, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoardPast {
    pub changes: Vec<BoardChange>,
    /// Whether there may be older changes.
    pub truncated: bool,
}

/// One change of a key. The log has no values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardChange {
    /// The version that was written, or the last one of a key that was removed.
    pub version: u64,
    /// `put`, `deleted` or `expired`.
    pub change: String,
    /// The author; `None` if the entry expired.
    pub by: Option<String>,
    /// The run that did it, if one did.
    pub session: Option<SessionId>,
    /// Size of the value that was written.
    pub bytes: Option<u64>,
    pub at: Timestamp,
}

impl BoardChange {
    /// The change that an event records, if it is one of this key.
    fn of(key: &Key, event: &LogEvent) -> Option<Self> {
        if !KINDS.contains(&&*event.kind) {
            return None;
        }
        let payload = event.value();
        let text = |name: &str| payload.get(name).and_then(Value::as_str);
        (text("key") == Some(key.as_str())).then(|| Self {
            version: payload.get("version").and_then(Value::as_u64).unwrap_or(0),
            change: event.kind.trim_start_matches("blackboard.").to_owned(),
            by: text("by").map(str::to_owned),
            session: text("run_id").and_then(|id| id.parse().ok()),
            bytes: payload.get("bytes").and_then(Value::as_u64),
            at: event.ts,
        })
    }

    /// No version is given twice, so nothing was before it.
    fn is_first(&self) -> bool {
        self.version == 1 && self.change == "put"
    }
}

pub(super) fn parsed(key: &str) -> Result<Key, EngineError> {
    Key::parse(key).map_err(|why| {
        let shown: String = key.chars().take(100).collect();
        EngineError::invalid("key", format!("the key `{shown}` {why}"))
    })
}

impl Cortex {
    /// The entry, also if it has expired.
    async fn board_entry(&self, key: &Key) -> Result<Option<Arc<BoardEntry>>, StoreError> {
        let board = &self.mesh.board;
        let generation = match board.get(key) {
            Ok(entry) => return Ok(Some(entry)),
            Err(generation) => generation,
        };
        let found = self.store.board_fetch(ColonyId::DEFAULT, key.clone()).await?.map(Arc::new);
        if let Some(entry) = &found {
            board.keep(entry, entry.value.to_string().len(), generation);
        }
        Ok(found)
    }

    /// One whole write, at most one at a time for a key.
    pub(super) async fn board_write(
        &self,
        who: Who,
        key: Key,
        bytes: usize,
        write: BoardWrite,
    ) -> Result<Arc<BoardEntry>, EngineError> {
        let board = &self.mesh.board;
        let _turn = board.turn(&key).lock().await;
        let ttl = checked_ttl(write.ttl)?;
        for attempt in 1.. {
            let now = self.clock.now();
            let raw = self.board_entry(&key).await?;
            let live = raw.as_ref().filter(|entry| !entry.is_expired(now));
            if let Some(live) = live
                && write.effect.is_some()
                && live.effect == write.effect
            {
                return Ok(Arc::clone(live));
            }
            if key.is_history() && live.is_some() {
                let message =
                    format!("`{key}` is there, and {HISTORY} is written once: take a new key");
                return Err(EngineError::conflict(message));
            }
            stands_at(&key, live, write.version)?;
            // A version is never reused, so that a deleted key's version can be recognized.
            let before = match &raw {
                Some(raw) => raw.version,
                None => self.store.board_past(ColonyId::DEFAULT, key.clone()).await?,
            };
            let entry = Arc::new(BoardEntry {
                colony: ColonyId::DEFAULT,
                key: key.clone(),
                value: write.value.clone(),
                version: before + 1,
                written_by: who.name.clone(),
                workflow: write.workflow.clone(),
                created_at: live.map_or(now, |live| live.created_at),
                updated_at: now,
                ttl: write.ttl,
                expires_at: ttl.map(|ttl| now.after(ttl)),
                effect: write.effect,
            });
            let digest = blake3::hash(entry.value.to_string().as_bytes()).to_hex();
            let payload = json!({
                "key": key.as_str(), "version": entry.version, "by": who.name,
                "run_id": who.session, "bytes": bytes, "blake3": digest.as_str(),
                "expires_at": entry.expires_at,
            });
            let version = raw.as_ref().map(|raw| raw.version);
            let guard = Guard::BoardVersion { colony: entry.colony, key: key.clone(), version };
            let change = Change::BoardPut(Box::new(BoardEntry::clone(&entry)));
            board.writing(&key, None);
            let told = event("blackboard.put", now, payload);
            match self.store.commit(explained(told, vec![guard], vec![change])).await {
                Ok(_) => {
                    board.writing(&key, Some((&entry, bytes)));
                    return Ok(entry);
                }
                Err(StoreError::Conflict { .. }) if attempt < TRIES => {}
                Err(err) => return Err(err.into()),
            }
        }
        unreachable!("the last attempt returns")
    }

    pub(super) async fn board_remove(
        &self,
        who: Who,
        key: Key,
        version: Option<u64>,
    ) -> Result<(), EngineError> {
        let board = &self.mesh.board;
        let _turn = board.turn(&key).lock().await;
        if key.is_history() {
            let message = format!("`{key}` stays: what is below {HISTORY} is never deleted");
            return Err(EngineError::conflict(message));
        }
        let now = self.clock.now();
        let raw = self.board_entry(&key).await?;
        let live = raw.filter(|entry| !entry.is_expired(now));
        let Some(entry) = &live else { return Err(missing(&key)) };
        stands_at(&key, live.as_ref(), version)?;
        let payload = json!({
            "key": key.as_str(), "version": entry.version, "by": who.name, "run_id": who.session,
        });
        let (colony, version) = (entry.colony, Some(entry.version));
        let guard = Guard::BoardVersion { colony, key: key.clone(), version };
        let change = Change::BoardDelete { colony, key: key.clone() };
        board.writing(&key, None);
        let told = event("blackboard.deleted", now, payload);
        self.store.commit(explained(told, vec![guard], vec![change])).await?;
        board.writing(&key, None);
        Ok(())
    }

    /// Removes at most `limit` expired keys; returns their number.
    pub(super) async fn board_sweep(&self, limit: u32) -> Result<u32, StoreError> {
        let now = self.clock.now();
        let found = self.store.board_expired(now, limit).await?;
        let removed = join_all(found.into_iter().map(|(colony, key, version)| async move {
            // A current writer of the key will find it expired.
            let Ok(_turn) = self.mesh.board.turn(&key).try_lock() else { return Ok(0) };
            let payload = json!({"key": key.as_str(), "version": version});
            let guard = Guard::BoardVersion { colony, key: key.clone(), version: Some(version) };
            let change = Change::BoardDelete { colony, key: key.clone() };
            self.mesh.board.writing(&key, None);
            let told = event("blackboard.expired", now, payload);
            let done = self.store.commit(explained(told, vec![guard], vec![change])).await;
            self.mesh.board.writing(&key, None);
            match done {
                Ok(_) => Ok(1),
                Err(StoreError::Conflict { .. }) => Ok(0),
                Err(err) => Err(err),
            }
        }))
        .await;
        let mut gone = 0;
        for one in removed {
            gone += one?;
        }
        Ok(gone)
    }
}

fn missing(key: &Key) -> EngineError {
    EngineError::NotFound { message: format!("Key not found: {key}") }
}

fn stands_at(
    key: &Key,
    live: Option<&Arc<BoardEntry>>,
    wanted: Option<u64>,
) -> Result<(), EngineError> {
    let at = live.map_or(0, |live| live.version);
    let Some(wanted) = wanted.filter(|wanted| *wanted != at) else { return Ok(()) };
    let stands = |version| if version == 0 { Stands::Absent } else { Stands::Version(version) };
    let what = Conflict::new(ConflictKind::BoardKey, key, stands(wanted), stands(at));
    let message = match at {
        0 => format!("`{key}` is not there, so not at version {wanted}"),
        _ => format!("`{key}` stands at version {at}, not {wanted}"),
    };
    Err(EngineError::conflict_of(what, message))
}

impl Engine {
    /// Reads a key.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`], also for an expired key.
    pub async fn board_get(
        &self,
        by: &Caller,
        given: Option<&str>,
        key: &str,
    ) -> Result<Arc<BoardEntry>, EngineError> {
        let who = self.who(by, given).await?;
        self.board_get_as(&who, key).await
    }

    pub(super) async fn board_get_as(
        &self,
        who: &Who,
        key: &str,
    ) -> Result<Arc<BoardEntry>, EngineError> {
        let key = self.readable_key(who, key).await?;
        self.board_live(&key).await?.ok_or_else(|| missing(&key))
    }

    /// A key that the caller may read.
    async fn readable_key(&self, who: &Who, key: &str) -> Result<Key, EngineError> {
        let key = parsed(key)?;
        let what = || format!("Agent {} cannot read {key}", who.name);
        self.permit(who, Verb::Read, key.as_str(), what).await?;
        Ok(key)
    }

    async fn board_live(&self, key: &Key) -> Result<Option<Arc<BoardEntry>>, EngineError> {
        let now = self.cortex.clock.now();
        let found = self.cortex.board_entry(key).await?;
        Ok(found.filter(|entry| !entry.is_expired(now)))
    }

    /// The newest changes of a key, newest first, also of one that was removed: at most 100, among
    /// the newest 5,000 events of the mesh.
    ///
    /// # Errors
    ///
    /// Like [`Engine::board_get`]; [`EngineError::NotFound`] only if the key does not exist and the
    /// whole log does not mention it.
    pub async fn board_history(
        &self,
        by: &Caller,
        given: Option<&str>,
        key: &str,
    ) -> Result<BoardPast, EngineError> {
        let who = self.who(by, given).await?;
        let key = self.readable_key(&who, key).await?;
        let past = self.past_of(&key).await?;
        let silent = past.changes.is_empty() && !past.truncated;
        if silent && self.board_live(&key).await?.is_none() {
            return Err(missing(&key));
        }
        Ok(past)
    }

    async fn past_of(&self, key: &Key) -> Result<BoardPast, StoreError> {
        let (mut past, mut looked, mut oldest) = (BoardPast::default(), 0, None);
        while looked < PAST {
            let page = Page { limit: PAST_PAGE, after: oldest };
            let events = self.cortex.store.events_newest(Some(StreamId::Mesh), page).await?;
            let Some(last) = events.last() else { break };
            oldest = Some(last.seq);
            looked += PAST_PAGE;
            for change in events.iter().filter_map(|event| BoardChange::of(key, event)) {
                if past.changes.len() == CHANGES {
                    past.truncated = true;
                    return Ok(past);
                }
                let first = change.is_first();
                past.changes.push(change);
                if first {
                    return Ok(past);
                }
            }
        }
        // The events of a stream are numbered from 1.
        past.truncated = oldest.is_some_and(|seq| seq > 1);
        Ok(past)
    }

    /// Writes a key.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if it has another version, or exists below `history/`.
    pub async fn board_put(
        &self,
        by: &Caller,
        given: Option<&str>,
        key: &str,
        write: BoardWrite,
    ) -> Result<Arc<BoardEntry>, EngineError> {
        let who = self.who(by, given).await?;
        self.board_put_as(who, key, write).await
    }

    pub(super) async fn board_put_as(
        &self,
        who: Who,
        key: &str,
        mut write: BoardWrite,
    ) -> Result<Arc<BoardEntry>, EngineError> {
        let key = parsed(key)?;
        self.no_secret("key", key.as_str())?;
        let what = || format!("Agent {} cannot write {key}", who.name);
        self.permit(&who, Verb::Write, key.as_str(), what).await?;
        if key.is_history() && write.ttl.is_some() {
            let message = format!("what is below {HISTORY} stays; it takes no ttl");
            return Err(EngineError::invalid("ttl", message));
        }
        checked_ttl(write.ttl)?;
        if write.workflow.as_ref().is_some_and(|workflow| workflow.len() > 200) {
            return Err(EngineError::invalid("workflow_id", "workflow_id has at most 200 bytes"));
        }
        let bytes = self.cortex.measured("value", &mut write.value)?;
        let cortex = Arc::clone(&self.cortex);
        self.whole(async move { cortex.board_write(who, key, bytes, write).await }).await
    }

    /// Deletes a key.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::board_put`], and [`EngineError::NotFound`].
    pub async fn board_delete(
        &self,
        by: &Caller,
        given: Option<&str>,
        key: &str,
        version: Option<u64>,
    ) -> Result<(), EngineError> {
        let who = self.who(by, given).await?;
        self.board_delete_as(who, key, version).await
    }

    pub(super) async fn board_delete_as(
        &self,
        who: Who,
        key: &str,
        version: Option<u64>,
    ) -> Result<(), EngineError> {
        let key = parsed(key)?;
        let what = || format!("Agent {} cannot write {key}", who.name);
        self.permit(&who, Verb::Write, key.as_str(), what).await?;
        let cortex = Arc::clone(&self.cortex);
        self.whole(async move { cortex.board_remove(who, key, version).await }).await
    }

    /// Completes `work`, also if its caller leaves, so that the cache follows the store.
    pub(super) async fn whole<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
    ) -> Result<T, EngineError> {
        if self.cortex.draining() {
            return Err(shutting_down());
        }
        let (reply, answer) = oneshot::channel();
        self.tasks.spawn(move |_| async move {
            let _ = reply.send(work.await);
        });
        answer.await.unwrap_or_else(|_| Err(shutting_down()))
    }

    /// Entries whose keys begin with exactly `prefix`, by key, as far as the caller may read them.
    /// A page may be short or empty and still have a next one.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] if the caller may not read any key with this prefix.
    pub async fn board_list(
        &self,
        by: &Caller,
        given: Option<&str>,
        prefix: &str,
        after: Option<String>,
        limit: u32,
    ) -> Result<BoardFound, EngineError> {
        let who = self.who(by, given).await?;
        self.board_list_as(&who, prefix, after, limit).await
    }

    pub(super) async fn board_list_as(
        &self,
        who: &Who,
        prefix: &str,
        after: Option<String>,
        limit: u32,
    ) -> Result<BoardFound, EngineError> {
        let matrix = self.readable(who, prefix).await?;
        let (mut found, mut looked, mut after) = (BoardFound::default(), 0, after);
        let rows = ROWS.min(limit.max(1));
        loop {
            let page = self.cortex.store.board_list(
                ColonyId::DEFAULT,
                prefix.to_owned(),
                after.clone(),
                rows,
            );
            let page = page.await?;
            // There are fewer than requested: the end is reached, or values are large.
            let short = page.len() < rows as usize;
            let now = self.cortex.clock.now();
            let Some(last) = page.last() else { return Ok(found) };
            after = Some(last.key.to_string());
            looked += u32::try_from(page.len()).unwrap_or(u32::MAX);
            for entry in page {
                if entry.is_expired(now) || !reads(&matrix, who, entry.key.as_str()) {
                    continue;
                }
                let key = entry.key.to_string();
                found.entries.push(entry);
                if found.entries.len() >= limit as usize {
                    found.next = Some(key);
                    return Ok(found);
                }
            }
            if looked >= LOOKED_AT || (short && !found.entries.is_empty()) {
                found.next = after;
                return Ok(found);
            }
        }
    }

    async fn readable(
        &self,
        who: &Who,
        prefix: &str,
    ) -> Result<Arc<overmind_core::acl::Matrix>, EngineError> {
        check_prefix(prefix)
            .map_err(|why| EngineError::invalid("prefix", format!("the prefix {why}")))?;
        let matrix = self.permissions();
        let verdict = matrix.may_beneath(&who.line, Verb::Read, prefix);
        let what = || format!("Agent {} cannot read {prefix}", who.name);
        self.permitted(who, Verb::Read, prefix, verdict, what).await?;
        Ok(matrix)
    }

    /// Changes of keys that begin with `prefix`, as far as the caller may read them: events of the
    /// mesh's stream after number `after`. Also returns the number up to which events were read.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::board_list`].
    pub async fn board_changes(
        &self,
        by: &Caller,
        prefix: &str,
        after: u64,
    ) -> Result<(u64, Vec<LogEvent>), EngineError> {
        let who = self.who(by, None).await?;
        let matrix = self.readable(&who, prefix).await?;
        let query = EventQuery { stream: Some(StreamId::Mesh), after, kinds: &[], limit: WATCHED };
        let events = self.cortex.store.events(query).await?;
        let upto = events.last().map_or(after, |event| event.seq);
        let fits = |event: &LogEvent| {
            let payload = event.value();
            let key = payload.get("key").and_then(Value::as_str).unwrap_or_default();
            KINDS.contains(&&*event.kind) && key.starts_with(prefix) && reads(&matrix, &who, key)
        };
        Ok((upto, events.into_iter().filter(fits).collect()))
    }

    /// The number of the newest event of the mesh's stream.
    ///
    /// # Errors
    ///
    /// Returns the store's error.
    pub async fn mesh_head(&self) -> Result<u64, EngineError> {
        let page = Page { limit: 1, after: None };
        let newest = self.cortex.store.events_newest(Some(StreamId::Mesh), page).await?;
        Ok(newest.first().map_or(0, |event| event.seq))
    }

    /// A counter that changes with every event of the mesh.
    pub fn mesh_watch(&self) -> watch::Receiver<u64> {
        self.cortex.watchers.watch(StreamId::Mesh)
    }

    /// Removes expired entries and moves expired messages to the dead ones, a bounded batch of
    /// each. Returns whether there may be more.
    ///
    /// # Errors
    ///
    /// Returns the store's error.
    pub async fn mesh_sweep(&self, limit: u32) -> Result<bool, EngineError> {
        let keys = self.cortex.board_sweep(limit).await?;
        let letters = self.letters_sweep(limit).await?;
        Ok(keys >= limit || letters >= limit)
    }
}

fn reads(matrix: &overmind_core::acl::Matrix, who: &Who, key: &str) -> bool {
    who.line.is_empty() || matrix.may_in_line(&who.line, Verb::Read, key).allowed
}
