//! Counts the alarms of each session, for lists of sessions.
//!
//! The alarms themselves are in the log. This is a count that is written with each alarm, so that a
//! list need not read logs and a restart does not lose it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use overmind_core::ids::SessionId;
use overmind_core::store::{Change, Store, StoreError};
use overmind_core::time::Timestamp;
use serde_json::{Map, Value};

const KEY: &str = "alarms";
/// Maximum number of sessions that are counted; the oldest are dropped here but not in the log.
const KEPT: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Alarms(Mutex<BTreeMap<SessionId, u32>>);

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the counts of earlier processes.
    pub(crate) async fn load(&self, store: &dyn Store) -> Result<(), StoreError> {
        let stored = store.setting_fetch(KEY.to_owned()).await?;
        let counts = stored.as_ref().and_then(Value::as_object).into_iter().flatten();
        let counts = counts.filter_map(|(id, count)| {
            Some((id.parse().ok()?, u32::try_from(count.as_u64()?).ok()?))
        });
        self.lock().extend(counts);
        Ok(())
    }

    /// Counts one more alarm; the returned change belongs to the commit that records the alarm. If
    /// two sessions raise one at the same instant, the later commit may lack the other's count
    /// until the next alarm.
    pub(crate) fn raise(&self, session: SessionId, at: Timestamp) -> Change {
        let mut counts = self.lock();
        *counts.entry(session).or_default() += 1;
        while counts.len() > KEPT {
            // Ids begin with their creation time, so this drops the oldest.
            counts.pop_first();
        }
        let value: Map<String, Value> =
            counts.iter().map(|(id, count)| (id.to_string(), (*count).into())).collect();
        Change::SettingPut { key: KEY.to_owned(), value: value.into(), at }
    }

    pub(crate) fn of(&self, session: SessionId) -> u32 {
        self.lock().get(&session).copied().unwrap_or(0)
    }
}
