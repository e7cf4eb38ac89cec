//! Who used what: at most one event for each secret, session and minute.
//!
//! The first use in a minute is written at once; those that follow are counted, and the count is
//! written when the minute is over. A kill loses at most the counts of its last minute.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use overmind_core::ids::SessionId;
use overmind_core::store::{Change, Commit, NewEvent, StreamId};
use overmind_core::time::Timestamp;
use overmind_core::vault::rows::{VaultChange, minute};
use overmind_core::vault::{SecretName, SecretUses, Use};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Vault;

/// Pairs of secret and session within a minute; more are counted without their session.
const MOST: usize = 4096;

type Key = (SecretName, Option<SessionId>);

/// The first use, how many there were, and the last.
type Taken = (Key, Use, u64, Timestamp);

#[derive(Debug, Default)]
pub(super) struct Pending {
    open: Mutex<HashMap<Key, One>>,
    /// Something is to be written.
    wake: Notify,
}

#[derive(Debug)]
struct One {
    /// The first of those that were not told.
    what: Use,
    uses: u64,
    last: Timestamp,
    /// The minute in which an event was written last.
    told: Option<i64>,
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, One>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, name: SecretName, what: Use, at: Timestamp) {
        let mut open = self.lock();
        let full = open.len() >= MOST;
        let mut key = (name, what.session);
        let mut what = what;
        if full && !open.contains_key(&key) {
            key.1 = None;
            what = Use { session: None, agent: None, ..what };
        }
        let one = open.entry(key).or_insert_with(|| One {
            what: what.clone(),
            uses: 0,
            last: at,
            told: None,
        });
        if one.uses == 0 {
            one.what = what;
        }
        one.uses += 1;
        one.last = at;
        if one.told != Some(minute(at)) {
            self.wake.notify_one();
        }
    }

    /// How often it was used, and when last, that no row says yet.
    pub(super) fn of(&self, name: &SecretName) -> Option<(u64, Timestamp)> {
        let open = self.lock();
        let all = open.iter().filter(|((other, _), one)| other == name && one.uses > 0);
        all.map(|(_, one)| (one.uses, one.last)).reduce(|a, b| (a.0 + b.0, a.1.max(b.1)))
    }

    /// What is to be written now. What has been silent for a minute is forgotten.
    fn take(&self, now: Timestamp, all: bool) -> Vec<Taken> {
        let mut open = self.lock();
        let minute = minute(now);
        let mut taken = Vec::new();
        open.retain(|key, one| {
            if one.uses == 0 {
                return one.told == Some(minute);
            }
            if one.told != Some(minute) || all {
                taken.push((key.clone(), one.what.clone(), one.uses, one.last));
                one.uses = 0;
                one.told = Some(minute);
            }
            true
        });
        taken
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// It could not be written: it is counted again.
    fn put_back(&self, all: Vec<Taken>) {
        let mut open = self.lock();
        for (key, what, uses, last) in all {
            let one = open.entry(key).or_insert(One { what, uses: 0, last, told: None });
            one.uses += uses;
            one.last = one.last.max(last);
        }
    }
}

impl Vault {
    /// Writes down who uses what, until `stop`.
    pub(crate) async fn audit(&self, stop: CancellationToken) {
        loop {
            let now = self.parts.clock.now();
            let next = Timestamp::from_micros((minute(now) + 1) * 60_000_000);
            let idle = self.pending.is_empty();
            tokio::select! {
                () = stop.cancelled() => {
                    self.tell_uses(true).await;
                    return;
                }
                () = self.pending.wake.notified() => {}
                () = self.parts.clock.sleep_until(next), if !idle => {}
            }
            self.tell_uses(false).await;
        }
    }

    async fn tell_uses(&self, all: bool) {
        let now = self.parts.clock.now();
        let (taken, counted) = self.take_uses(now, all);
        if taken.is_empty() {
            return;
        }
        let mut commit = Commit::default();
        for ((name, _), what, uses, _) in &taken {
            let Use { session, agent, service, host } = what;
            commit.events.push(NewEvent {
                stream: StreamId::System,
                kind: "vault.used",
                ts: now,
                payload: json!({
                    "secret": name, "uses": uses, "session": session, "agent": agent,
                    "service": service, "host": host,
                }),
            });
        }
        let changes = counted.values().cloned().map(VaultChange::SecretUsed);
        commit.changes = changes.map(Change::Vault).collect();
        if let Err(err) = self.parts.store.commit(commit).await {
            tracing::error!(error = %err, "uses of secrets could not be written down");
            let mut state = self.state_mut();
            for (name, one) in counted {
                if let Some(known) = state.uses.get_mut(&name) {
                    known.uses = known.uses.saturating_sub(one.uses);
                }
            }
            self.pending.put_back(taken);
        }
    }

    /// What is to be written now, and by secret. It is known from here on as if it were: whoever
    /// looks meanwhile sees neither too many uses nor too few.
    fn take_uses(
        &self,
        now: Timestamp,
        all: bool,
    ) -> (Vec<Taken>, HashMap<SecretName, SecretUses>) {
        let mut state = self.state_mut();
        let taken = self.pending.take(now, all);
        let mut counted: HashMap<SecretName, SecretUses> = HashMap::new();
        for ((name, _), _, uses, last) in &taken {
            let none = || SecretUses { name: name.clone(), uses: 0, last_used_at: *last };
            for one in [
                counted.entry(name.clone()).or_insert_with(none),
                state.uses.entry(name.clone()).or_insert_with(none),
            ] {
                one.uses += uses;
                one.last_used_at = one.last_used_at.max(*last);
            }
        }
        (taken, counted)
    }
}
