//! Queries of the inbox.

use overmind_core::ids::{ColonyId, InboxId, SessionId};
use overmind_core::inbox::{InboxCounts, InboxCursor, InboxFilter, InboxItem, InboxKind};
use overmind_core::store::Page;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, params, params_from_iter};

use super::queries::{MAX_PAGE, bounded, many, one};
use super::rows::{self, Cells, blob, int};
use crate::error::Outcome;

pub(crate) fn fetch(conn: &Connection, id: InboxId) -> Outcome<Option<InboxItem>> {
    let sql = format!("SELECT {} FROM inbox WHERE id = ?1", rows::INBOX);
    one(conn, &sql, [blob(id.as_u128())], rows::inbox)
}

pub(crate) fn list(
    conn: &Connection,
    filter: &InboxFilter,
    page: Page<InboxCursor>,
) -> Outcome<Vec<InboxItem>> {
    let mut sql = format!("SELECT {} FROM inbox WHERE 1", rows::INBOX);
    let mut with = Vec::new();
    let mut only = |column: &str, value: Sql| {
        sql.push_str(" AND ");
        sql.push_str(column);
        with.push(value);
    };
    if let Some(colony) = filter.colony {
        only("colony = ?", Sql::Blob(blob(colony.as_u128()).to_vec()));
    }
    if let Some(state) = filter.state {
        only("state = ?", Sql::Text(state.as_str().into()));
    }
    if let Some(kind) = filter.kind {
        only("kind = ?", Sql::Text(kind.as_str().into()));
    }
    if let Some(session) = filter.session {
        only("session = ?", Sql::Blob(blob(session.as_u128()).to_vec()));
    }
    if let Some(group) = &filter.group {
        only("grp = ?", Sql::Text(group.clone()));
    }
    if let Some(after) = page.after {
        only("(asked_at, id) < (?, ", Sql::Integer(after.asked_at.as_micros()));
        sql.push_str("?)");
        with.push(Sql::Blob(blob(after.id.as_u128()).to_vec()));
    }
    sql.push_str(" ORDER BY asked_at DESC, id DESC LIMIT ?");
    with.push(Sql::Integer(bounded(page.limit, MAX_PAGE)));
    many(conn, &sql, params_from_iter(with), rows::inbox)
}

pub(crate) fn changes(
    conn: &Connection,
    colony: ColonyId,
    after: u64,
    limit: u32,
) -> Outcome<Vec<InboxItem>> {
    // The number at which the page ends; all rows with that number are included.
    let last = one(
        conn,
        "SELECT max(changed) FROM
           (SELECT changed FROM inbox WHERE changed > ?1 ORDER BY changed LIMIT ?2)",
        params![int(after), bounded(limit, MAX_PAGE)],
        |row| Ok(row.get::<_, Option<i64>>(0)?),
    )?;
    let Some(Some(last)) = last else { return Ok(Vec::new()) };
    let sql = format!(
        "SELECT {} FROM inbox WHERE changed > ?1 AND changed <= ?2 AND colony = ?3
         ORDER BY changed, asked_at, id",
        rows::INBOX
    );
    many(conn, &sql, params![int(after), last, blob(colony.as_u128())], rows::inbox)
}

pub(crate) fn counts(conn: &Connection, colony: ColonyId) -> Outcome<(InboxCounts, u64)> {
    // Both are read at one moment: every read of the pool is one transaction.
    let found = many(
        conn,
        "SELECT kind, count(*) FROM inbox WHERE state = 'open' AND colony = ?1 GROUP BY kind",
        [blob(colony.as_u128())],
        |row| {
            let cells = Cells::new(row, "inbox");
            Ok((InboxKind::parse(cells.str(0)?), cells.u64(1)?))
        },
    )?;
    let mut counts = InboxCounts::default();
    for (kind, n) in found {
        match kind {
            Some(InboxKind::Approval) => counts.approvals = n,
            Some(InboxKind::Question) => counts.questions = n,
            Some(InboxKind::Raise) => counts.raises = n,
            Some(InboxKind::Work) => counts.works = n,
            None => {}
        }
    }
    let head = one(conn, "SELECT coalesce(max(changed), 0) FROM inbox", [], |row| {
        Cells::new(row, "inbox").u64(0)
    })?;
    Ok((counts, head.unwrap_or(0)))
}

pub(crate) fn missing(
    conn: &Connection,
    after: Option<SessionId>,
    limit: u32,
) -> Outcome<Vec<SessionId>> {
    // The empty blob sorts before every id.
    let after = after.map(|id| blob(id.as_u128()).to_vec()).unwrap_or_default();
    many(
        conn,
        "SELECT id FROM sessions
         WHERE status IN ('awaiting_input', 'awaiting_approval') AND id > ?1
           AND NOT EXISTS
             (SELECT 1 FROM inbox WHERE inbox.session = sessions.id AND inbox.state = 'open')
         ORDER BY id LIMIT ?2",
        params![after, bounded(limit, MAX_PAGE)],
        |row| Ok(SessionId::from_u128(Cells::new(row, "sessions").u128(0)?)),
    )
}
