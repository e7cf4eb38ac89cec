//! Administration of the whole server: memory, settings, the log, audit, backup, retention, status.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use overmind_core::ids::MemoryId;
use overmind_core::memory::{
    MemoryDraft, MemoryError, MemoryFilter, MemoryHit, MemoryItem, MemoryQuery, Provenance,
    Reembedded, Trust, named_key,
};
use overmind_core::relay::Dialect;
use overmind_core::row::Role;
use overmind_core::store::{
    AuditReport, Change, Commit, EventQuery, LogEvent, MemoryScope, NewEvent, Page, Pruned,
    StoreError, StreamId, backup_target,
};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;
use crate::view::{Readiness, Status};

/// Events that name keys, secrets and grants. Only admins are shown them in the log of the server,
/// as with the lists of these. A test compares this with all kinds of events.
const OF_ADMINS: [&str; 10] = [
    "key.created",
    "key.revoked",
    "vault.granted",
    "vault.leaked",
    "vault.revoked",
    "vault.secret_removed",
    "vault.secret_rotated",
    "vault.secret_set",
    "vault.service_declared",
    "vault.used",
];

/// Whether the log of the server shows a caller events of this kind.
fn shows(by: &Caller, kind: &str) -> bool {
    by.is_admin() || !OF_ADMINS.contains(&kind)
}

/// A text to store in memory, as a client gives it.
#[derive(Clone, Debug)]
pub struct MemoryNew {
    pub collection: String,
    pub text: String,
    pub metadata: Value,
    /// An idempotency key: the same key in the same collection stores only once.
    pub key: Option<String>,
    /// The time after which the text expires; at least a second.
    pub ttl: Option<Duration>,
    pub supersedes: Option<MemoryId>,
    /// How far the text is trusted; its author is the caller.
    pub trust: Trust,
    /// The source event, `<stream>.<seq>`.
    pub source_event: Option<String>,
}

impl Engine {
    /// Stores a text.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if it is too long; [`EngineError::Conflict`] if the item that it
    /// replaces does not exist or was already replaced, or if its key has another text of another caller;
    /// [`EngineError::Unavailable`] if the embedding service cannot be reached.
    pub async fn memory_store(
        &self,
        by: &Caller,
        new: MemoryNew,
    ) -> Result<MemoryItem, EngineError> {
        by.require(Role::Operator)?;
        let colony = by.colony;
        let keyed = new.key.as_ref().map(|key| (key.clone(), new.text.clone()));
        let draft = MemoryDraft {
            metadata: new.metadata,
            key: new.key.map(|key| named_key(colony, &new.collection, &key)),
            provenance: Provenance {
                author: by.name.clone(),
                trust: new.trust,
                event: new.source_event,
            },
            expires_at: new.ttl.map(|ttl| self.cortex.clock.now().after(ttl)),
            supersedes: new.supersedes,
            ..MemoryDraft::new(colony, new.collection, new.text)
        };
        let item = self.cortex.memory.store(draft).await.map_err(memory_error)?;
        match keyed {
            // A repeated request gets the item of the first one, but not an item of another caller.
            Some((key, text)) if item.provenance.author != by.name => {
                let same = item.text == text || item.text == self.masked(&text);
                let author = &item.provenance.author;
                let message = format!("the key `{key}` has another text, which {author} stored");
                if same { Ok(item) } else { Err(EngineError::conflict(message)) }
            }
            Some(_) | None => Ok(item),
        }
    }

    /// One item, replaced or not. An expired item is not found.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`].
    pub async fn memory_fetch(&self, by: &Caller, id: MemoryId) -> Result<MemoryItem, EngineError> {
        by.require(Role::Viewer)?;
        let found = self.cortex.store.memory_fetch(id).await?;
        found
            .filter(|item| !item.is_expired(self.cortex.clock.now()) && by.reaches(item.colony))
            .ok_or_else(|| EngineError::not_found("Memory item"))
    }

    /// Makes vectors of the configured model for a batch of items.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if no embedder is configured.
    pub async fn memory_reembed(&self, by: &Caller, limit: u32) -> Result<Reembedded, EngineError> {
        by.require(Role::Admin)?;
        self.cortex.memory.reembed(limit).await.map_err(memory_error)
    }

    /// Searches texts.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if `top_k` is not 1 to 50.
    pub async fn memory_search(
        &self,
        by: &Caller,
        collection: String,
        query: String,
        top_k: u32,
        filter: MemoryFilter,
        history: bool,
    ) -> Result<Vec<MemoryHit>, EngineError> {
        by.require(Role::Viewer)?;
        if !(1..=50).contains(&top_k) {
            return Err(EngineError::invalid("top_k", "top_k must be 1 to 50"));
        }
        let colony = by.colony;
        let top_k = top_k as usize;
        let (session, caller) = (None, by.name.clone());
        let query =
            MemoryQuery { colony, collection, query, top_k, filter, history, session, caller };
        self.cortex.memory.search(query).await.map_err(memory_error)
    }

    /// Items, newest first.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn memory_list(
        &self,
        by: &Caller,
        collection: Option<String>,
        page: Page<MemoryId>,
    ) -> Result<Vec<MemoryItem>, EngineError> {
        by.require(Role::Viewer)?;
        let scope = MemoryScope::new(by.colony, collection, self.cortex.clock.now());
        Ok(self.cortex.store.memory_list(scope, page).await?)
    }

    /// Deletes an item.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`].
    pub async fn memory_delete(&self, by: &Caller, id: MemoryId) -> Result<(), EngineError> {
        by.require(Role::Operator)?;
        let found = self.cortex.store.memory_fetch(id).await?;
        let Some(item) = found.filter(|item| by.reaches(item.colony)) else {
            return Err(EngineError::not_found("Memory item"));
        };
        let payload = json!({"by": by.name, "memory_id": id, "collection": item.collection});
        self.system_commit("memory.deleted", payload, vec![Change::MemoryDelete(id)]).await
    }

    async fn system_commit(
        &self,
        kind: &'static str,
        payload: Value,
        changes: Vec<Change>,
    ) -> Result<(), EngineError> {
        let ts = self.cortex.clock.now();
        let event = NewEvent { stream: StreamId::System, kind, ts, payload };
        self.cortex.store.commit(Commit { guards: vec![], events: vec![event], changes }).await?;
        Ok(())
    }

    /// The newest events of all streams that the caller may see, newest first; the page's `after` is a global number.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn events(&self, by: &Caller, page: Page<u64>) -> Result<Vec<LogEvent>, EngineError> {
        by.require(Role::Viewer)?;
        let Page { limit, mut after } = page;
        let mut shown: Vec<LogEvent> = Vec::new();
        loop {
            let left = limit.saturating_sub(u32::try_from(shown.len()).unwrap_or(u32::MAX));
            let page = Page { limit: left, after };
            let events = self.cortex.store.events_newest(None, page).await?;
            let ends = events.len() < left as usize;
            after = events.last().map(|event| event.global);
            shown.extend(events.into_iter().filter(|event| shows(by, &event.kind)));
            if ends || after.is_none() || shown.len() >= limit as usize {
                return Ok(shown);
            }
        }
    }

    /// Events of all streams that the caller may see in ascending order, those after the global number `after`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn events_after(
        &self,
        by: &Caller,
        after: u64,
        limit: u32,
    ) -> Result<Vec<LogEvent>, EngineError> {
        by.require(Role::Viewer)?;
        let mut after = after;
        loop {
            let query = EventQuery { stream: None, after, kinds: &[], limit };
            let mut events = self.cortex.store.events(query).await?;
            let last = events.last().map(|event| event.global);
            let ends = events.len() < limit as usize;
            events.retain(|event| shows(by, &event.kind));
            match last {
                // There is more behind what is withheld.
                Some(last) if events.is_empty() && !ends => after = last,
                Some(_) | None => return Ok(events),
            }
        }
    }

    /// A counter that changes whenever any stream grows. Read [`events_after`](Self::events_after)
    /// again then.
    pub fn log_watch(&self) -> watch::Receiver<u64> {
        self.cortex.watchers.watch_all()
    }

    /// One setting.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn setting_fetch(
        &self,
        by: &Caller,
        key: &str,
    ) -> Result<Option<Value>, EngineError> {
        by.require(Role::Admin)?;
        Ok(self.cortex.store.setting_fetch(key.to_owned()).await?)
    }

    /// Changes a setting. The log records who changed which setting, but never the value.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn setting_put(
        &self,
        by: &Caller,
        key: &str,
        value: Value,
    ) -> Result<(), EngineError> {
        by.require(Role::Admin)?;
        if key.starts_with("toolset/") {
            return Err(EngineError::invalid("key", "tool definitions are not a setting"));
        }
        let at = self.cortex.clock.now();
        let change = Change::SettingPut { key: key.to_owned(), value, at };
        self.system_commit("setting.changed", json!({"by": by.name, "key": key}), vec![change])
            .await
    }

    /// The state of the server.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn status(&self, by: &Caller) -> Result<Status, EngineError> {
        by.require(Role::Viewer)?;
        Ok(Status {
            version: env!("CARGO_PKG_VERSION"),
            started_at: self.cortex.started_at,
            now: self.cortex.clock.now(),
            ready: self.readiness(),
            running: u32::try_from(self.cortex.running()).unwrap_or(u32::MAX),
            queued: self.cortex.queued() as u64,
            capacity: self.cortex.config.max_running,
            store: self.cortex.store.stats().await?,
            policy: self.cortex.gate.as_ref().map(|gate| (gate.source(), gate.version())),
            policy_refused: self.cortex.gate.as_ref().and_then(|gate| gate.refused()),
            answers: [Dialect::Anthropic, Dialect::OpenAi]
                .into_iter()
                .filter(|dialect| self.models.upstreams().is_some_and(|all| all.is_ready(*dialect)))
                .collect(),
            tools: self.tools.specs().iter().map(|tool| tool.name.clone()).collect(),
        })
    }

    /// Whether the server can work now. It is cheap, and open to everyone.
    pub fn readiness(&self) -> Readiness {
        self.cortex.readiness()
    }

    /// Checks the whole log.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`]. Findings are in the report.
    pub async fn audit(&self, by: &Caller) -> Result<AuditReport, EngineError> {
        by.require(Role::Viewer)?;
        Ok(self.cortex.store.audit().await?)
    }

    /// Writes a backup to `path` on the server's disk; returns its size in bytes.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if the path is not absolute or already exists.
    pub async fn backup(&self, by: &Caller, path: PathBuf) -> Result<u64, EngineError> {
        by.require(Role::Admin)?;
        backup_target(&path).map_err(|message| EngineError::invalid("path", message))?;
        if !path.is_absolute() {
            let message = format!("{} is not an absolute path", path.display());
            return Err(EngineError::invalid("path", message));
        }
        let directory = path.parent().unwrap_or(&path).display();
        let bytes = self.cortex.store.backup(path.clone()).await.map_err(|err| match err {
            StoreError::NotFound { .. } => EngineError::invalid(
                "path",
                format!("there is no directory {directory} on the server: make it first"),
            ),
            other => other.into(),
        })?;
        let payload = json!({"by": by.name, "path": path.to_string_lossy(), "bytes": bytes});
        self.system_commit("backup.made", payload, Vec::new()).await?;
        Ok(bytes)
    }

    /// Removes sessions that ended longer than `older_than` ago.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn prune(&self, by: &Caller, older_than: Duration) -> Result<Pruned, EngineError> {
        by.require(Role::Admin)?;
        let now = self.cortex.clock.now();
        let micros = i64::try_from(older_than.as_micros()).unwrap_or(i64::MAX);
        let before = Timestamp::from_micros(now.as_micros().saturating_sub(micros));
        // Nobody could decide about a removed session's work any more.
        self.park_undecided(by, before).await?;
        Ok(self.cortex.store.prune(before, now).await?)
    }

    /// Counters for `/metrics`: name, help, value.
    pub fn metrics(&self) -> Vec<(&'static str, &'static str, u64)> {
        let c = &self.cortex.counters;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            ("sessions_created", "Sessions created", read(&c.created)),
            ("sessions_succeeded", "Sessions that succeeded", read(&c.succeeded)),
            ("sessions_failed", "Sessions that failed", read(&c.failed)),
            ("sessions_canceled", "Sessions that were canceled", read(&c.canceled)),
            ("sessions_recovered", "Sessions put back to work at start", read(&c.recovered)),
            ("session_commits", "Commits of sessions", read(&c.commits)),
            ("store_errors", "Commits that the store refused", read(&c.store_errors)),
            ("stale_results", "Results that nothing waited for", read(&c.stale)),
            ("canaries_seen", "Results that held a canary", read(&c.canaries_seen)),
            (
                "canaries_tripped",
                "Calls refused because they carried a canary",
                read(&c.canaries_tripped),
            ),
        ]
    }
}

fn memory_error(err: MemoryError) -> EngineError {
    let message = err.to_string();
    match err {
        MemoryError::Embedding { .. } => EngineError::Unavailable { message },
        MemoryError::Store(err) => err.into(),
        MemoryError::Invalid { .. } => EngineError::invalid("", message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_keys_and_of_the_vault_are_hidden_or_known_to_contain_no_name() {
        let name_none = ["vault.master_rotated", "vault.service_removed", "vault.unlocked"];
        let at = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/src/reference/events.txt");
        let all = std::fs::read_to_string(at).expect("the list of events is there");
        let mut known: Vec<&str> = all
            .lines()
            .filter_map(|line| line.split(" | ").next())
            .filter(|kind| kind.starts_with("key.") || kind.starts_with("vault."))
            .collect();
        known.sort_unstable();
        let mut decided: Vec<&str> = OF_ADMINS.iter().chain(&name_none).copied().collect();
        decided.sort_unstable();
        assert_eq!(known, decided);
    }
}
