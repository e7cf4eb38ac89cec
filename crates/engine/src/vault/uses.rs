//! Records the uses of secrets: at most one event for each secret, session and minute.
//!
//! The first use in a minute is recorded at once; later ones are counted, and the count is recorded
//! after the minute. A kill loses at most the counts of the last minute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::ids::SessionId;
use overmind_core::loops::{Pace, Reconcile, Report};
use overmind_core::store::{Change, Commit, NewEvent, StreamId};
use overmind_core::time::Timestamp;
use overmind_core::vault::rows::{VaultChange, minute};
use overmind_core::vault::{SecretName, SecretUses, Use};
use serde_json::json;
use tokio::sync::Notify;

use super::Vault;

/// Maximum number of pairs of secret and session within a minute; further uses are counted without
/// their session.
const MOST: usize = 4096;

type Key = (SecretName, Option<SessionId>);

/// The first use, the number of uses, and the last one.
type Taken = (Key, Use, u64, Timestamp);

#[derive(Debug, Default)]
pub(super) struct Pending {
    open: Mutex<HashMap<Key, One>>,
    /// Notified when something must be recorded.
    wake: Notify,
}

#[derive(Debug)]
struct One {
    /// The first use that was not recorded.
    what: Use,
    uses: u64,
    last: Timestamp,
    /// The minute in which an event was recorded last.
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

    /// The number of uses, and the last one, that no row contains yet.
    pub(super) fn of(&self, name: &SecretName) -> Option<(u64, Timestamp)> {
        let open = self.lock();
        let all = open.iter().filter(|((other, _), one)| other == name && one.uses > 0);
        all.map(|(_, one)| (one.uses, one.last)).reduce(|a, b| (a.0 + b.0, a.1.max(b.1)))
    }

    /// The uses to record now. Entries without a use for a minute are dropped.
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

    /// It could not be recorded, so it is counted again.
    fn put_back(&self, all: Vec<Taken>) {
        let mut open = self.lock();
        for (key, what, uses, last) in all {
            let one = open.entry(key).or_insert(One { what, uses: 0, last, told: None });
            one.uses += uses;
            one.last = one.last.max(last);
        }
    }
}

/// The loop that records uses. It wakes at the first use of a minute, and again after a minute with
/// more uses.
struct Audit(Arc<Vault>);

impl Reconcile for Audit {
    fn name(&self) -> &'static str {
        "vault-audit"
    }

    fn pace(&self) -> Pace {
        Pace::every(Duration::from_hours(1))
    }

    fn wakes_on(&mut self) -> Fut<'_, ()> {
        Box::pin(self.0.pending.wake.notified())
    }

    fn pass(&mut self, now: Timestamp) -> Fut<'_, Result<Report, String>> {
        Box::pin(async move {
            let told = self.0.tell_uses(now, false).await?;
            let said = if told == 0 { String::new() } else { format!("{told} written") };
            let minute_ends = Timestamp::from_micros((minute(now) + 1) * 60_000_000);
            let again = (!self.0.pending.is_empty()).then_some(minute_ends);
            Ok(Report { said, again })
        })
    }

    fn stopped(&mut self, now: Timestamp) -> Fut<'_, ()> {
        Box::pin(async move {
            if let Err(err) = self.0.tell_uses(now, true).await {
                tracing::error!(error = err, "the last uses of secrets");
            }
        })
    }
}

impl Vault {
    /// Makes the loop that records uses.
    pub(crate) fn audit(self: &Arc<Self>) -> Box<dyn Reconcile> {
        Box::new(Audit(Arc::clone(self)))
    }

    /// Returns how many uses it recorded.
    async fn tell_uses(&self, now: Timestamp, all: bool) -> Result<usize, String> {
        let (taken, counted) = self.take_uses(now, all);
        if taken.is_empty() {
            return Ok(0);
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
        let told = taken.len();
        if let Err(err) = self.parts.store.commit(commit).await {
            let mut state = self.state_mut();
            for (name, one) in counted {
                if let Some(known) = state.uses.get_mut(&name) {
                    known.uses = known.uses.saturating_sub(one.uses);
                }
            }
            drop(state);
            self.pending.put_back(taken);
            return Err(format!("uses of secrets could not be recorded: {err}"));
        }
        Ok(told)
    }

    /// The uses to record now, and their sums by secret. From here on they count as recorded, so
    /// that a reader meanwhile sees neither too many nor too few.
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
