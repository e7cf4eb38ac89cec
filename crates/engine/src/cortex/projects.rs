//! Whether a run may still start a program in its directory. The current Projects decide, not those
//! of the time at which the run was created.

use std::path::Path;

use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::record::kinds::project::{self, PROJECT};
use overmind_core::record::rows::{RecordQuery, RecordRows};
use overmind_core::record::{Kind, Record};
use overmind_core::row::{Role, SessionRow};
use overmind_core::store::{Page, StoreError};
use overmind_core::time::Timestamp;

use super::Cortex;
use crate::caller::Caller;
use crate::place::resolved;

/// Maximum number of parent sessions that are read.
const DEEPEST: usize = 64;

/// Shows each Project of a colony, or of all, that is not being deleted, until there is an answer.
pub(crate) async fn each_project<T>(
    records: &dyn RecordRows,
    colony: Option<ColonyId>,
    mut show: impl FnMut(&Record) -> Option<T>,
) -> Result<Option<T>, StoreError> {
    let mut after = None;
    loop {
        let query = RecordQuery {
            colony,
            kind: Kind::parse(PROJECT.name).ok(),
            after,
            limit: 500,
            ..RecordQuery::default()
        };
        let page = records.record_list(query).await?;
        let mut present = page.records.iter().filter(|record| record.deleting.is_none());
        if let Some(answer) = present.find_map(&mut show) {
            return Ok(Some(answer));
        }
        match page.records.last().filter(|_| page.more) {
            Some(last) => after = Some(last.key.clone()),
            None => return Ok(None),
        }
    }
}

impl Cortex {
    /// Why a run may not start a program in its directory now: no Project gives it to the key that
    /// started the run, or the first run above it. `None` if it may. Runs of admins, and runs in
    /// the server's own workspace, need no Project.
    pub(crate) async fn withdrawn(&self, row: &SessionRow) -> Result<Option<String>, StoreError> {
        let place = Path::new(&row.workspace);
        if place.starts_with(resolved(&self.config.workspace)) {
            return Ok(None);
        }
        let first = self.first_above(row).await?;
        let name = first.created_by;
        if self.role_at(&name, first.created_at).await? == Some(Role::Admin) {
            return Ok(None);
        }
        let mut others = None;
        let for_them = each_project(&*self.records, Some(row.colony), |record| {
            match project::allows(record, &name, place)? {
                true => return Some(()),
                false => others = Some(record.key.name.clone()),
            }
            None
        });
        if for_them.await?.is_some() {
            return Ok(None);
        }
        let why = match others {
            Some(other) => format!("Project {other} no longer has `{name}` in its `callers`"),
            None => format!("the Project that allowed `{name}` to use it was withdrawn"),
        };
        Ok(Some(format!("no program is started in {}: {why}", row.workspace)))
    }

    /// The session itself, or the first one of those that started it with their tokens.
    async fn first_above(&self, row: &SessionRow) -> Result<SessionRow, StoreError> {
        let mut first = row.clone();
        for _ in 0..DEEPEST {
            let started = |id: &SessionId| first.created_by == id.to_string();
            let Some(parent) = first.parent.filter(started) else { break };
            let Some(above) = self.store.session_fetch(parent).await? else { break };
            first = above;
        }
        Ok(first)
    }

    /// The role of the key with this name at a time, also if it was revoked since then.
    async fn role_at(&self, name: &str, at: Timestamp) -> Result<Option<Role>, StoreError> {
        if name == Caller::admin().name {
            return Ok(Some(Role::Admin));
        }
        let (mut role, mut after) = (None, None);
        loop {
            let keys = self.store.api_key_list(Page { after, limit: 500 }).await?;
            let Some(last) = keys.last() else { return Ok(role) };
            after = Some(last.id);
            let was = |until: Timestamp| at <= until;
            let mut then = keys.iter().filter(|key| {
                key.name == name && key.created_at <= at && key.revoked_at.is_none_or(was)
            });
            role = then.next_back().map(|key| key.role).or(role);
        }
    }
}
