//! Guards about the content of a colony.

use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::ColonyId;
use rusqlite::{Connection, params};

use crate::error::{Fault, Outcome};
use crate::read::rows::blob;

/// Whether fewer than `most` sessions of the colony have not ended.
pub(super) fn has_room(conn: &Connection, colony: ColonyId, most: u32) -> Outcome<()> {
    // The index by status contains few sessions that have not ended, and the one by colony all.
    let open: u32 = conn
        .prepare_cached(
            "SELECT count(*) FROM (
               SELECT 1 FROM sessions INDEXED BY sessions_by_status
               WHERE status IN ('queued', 'running', 'awaiting_input', 'awaiting_approval', 'idle')
                 AND colony = ?1
               LIMIT ?2)",
        )?
        .query_row(params![blob(colony.as_u128()), most], |row| row.get(0))?;
    if open < most {
        return Ok(());
    }
    let expected = Stands::AtMost(most.into());
    Err(Fault::conflict(Conflict::new(ConflictKind::Quota, colony, expected, Stands::Present)))
}

/// Whether nothing belongs to the colony.
pub(super) fn is_empty(conn: &Connection, colony: ColonyId) -> Outcome<()> {
    for (what, sql) in [
        ("a run", "SELECT 1 FROM sessions WHERE colony = ?1"),
        ("an agent", "SELECT 1 FROM agents WHERE colony = ?1 AND status != 'removed'"),
        ("a resource", "SELECT 1 FROM records WHERE colony = ?1"),
        ("a key", "SELECT 1 FROM api_keys WHERE colony = ?1 AND revoked_at IS NULL"),
    ] {
        if conn.prepare_cached(sql)?.exists([blob(colony.as_u128())])? {
            let (expected, found) = (Stands::Absent, Stands::Present);
            return Err(Fault::conflict(Conflict::new(
                ConflictKind::Colony,
                what,
                expected,
                found,
            )));
        }
    }
    Ok(())
}
