//! Queries of sessions, agents, steps, events, keys and settings.
//!
//! Each result comes from one index range of about its own length, with two exceptions. Kinds of
//! events are not indexed, because that would cost every commit a write, so a search for a rare
//! kind reads the events in between. If sessions are filtered by several values, one selects the
//! range and the others are checked row by row.

use std::fmt::Write as _;

use overmind_core::agent::Agent;
use overmind_core::ids::{AgentId, ApiKeyId, ColonyId, SessionId, StepId};
use overmind_core::record::label::{Requirement, Test};
use overmind_core::row::{ApiKey, SessionRow, SessionStatus, StepRow};
use overmind_core::store::{
    EventQuery, IdempotentAnswer, LogEvent, NameFilter, Page, SessionFilter, StoreStats, StreamId,
};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, Params, Row, params, params_from_iter};
use serde_json::Value;

use super::rows::{self, Cells, blob, int};
use crate::error::Outcome;
use crate::prepare::idempotency_id;
use crate::writer::log::name_of;

/// Maximum number of rows in one page, except for events.
pub(crate) const MAX_PAGE: u32 = 1_000;
/// Maximum number of events in one answer.
const MAX_EVENTS: u32 = 10_000;

/// Limits a page size to at least one row and at most `most`.
pub(crate) fn bounded(limit: u32, most: u32) -> i64 {
    i64::from(limit.clamp(1, most))
}

pub(crate) fn one<T>(
    conn: &Connection,
    sql: &str,
    with: impl Params,
    read: impl FnOnce(&Row<'_>) -> Outcome<T>,
) -> Outcome<Option<T>> {
    let mut find = conn.prepare_cached(sql)?;
    let mut found = find.query(with)?;
    match found.next()? {
        Some(row) => read(row).map(Some),
        None => Ok(None),
    }
}

pub(crate) fn many<T>(
    conn: &Connection,
    sql: &str,
    with: impl Params,
    read: impl Fn(&Row<'_>) -> Outcome<T>,
) -> Outcome<Vec<T>> {
    let mut find = conn.prepare_cached(sql)?;
    let mut found = find.query(with)?;
    let mut all = Vec::new();
    while let Some(row) = found.next()? {
        all.push(read(row)?);
    }
    Ok(all)
}

/// Sorts after all ids: the start of a descending list without a previous page.
const BEYOND: [u8; 17] = [0xff; 17];

/// The upper end of a page in a list by id, newest first.
fn below(after: Option<u128>) -> Vec<u8> {
    match after {
        Some(id) => blob(id).to_vec(),
        None => BEYOND.to_vec(),
    }
}

pub(crate) fn agent_fetch(conn: &Connection, id: AgentId) -> Outcome<Option<Agent>> {
    let sql = format!("SELECT {} FROM agents WHERE id = ?1", rows::AGENT);
    one(conn, &sql, [blob(id.as_u128())], rows::agent)
}

pub(crate) fn agent_by_name(
    conn: &Connection,
    colony: ColonyId,
    name: &str,
) -> Outcome<Option<Agent>> {
    let sql = format!(
        "SELECT {} FROM agents WHERE colony = ?1 AND name = ?2 AND status != 'removed'
         ORDER BY id DESC LIMIT 1",
        rows::AGENT
    );
    one(conn, &sql, params![blob(colony.as_u128()), name], rows::agent)
}

pub(crate) fn agent_list(conn: &Connection, page: Page<AgentId>) -> Outcome<Vec<Agent>> {
    let sql = format!(
        "SELECT {} FROM agents WHERE id < ?1 AND status != 'removed' ORDER BY id DESC LIMIT ?2",
        rows::AGENT
    );
    let after = below(page.after.map(AgentId::as_u128));
    many(conn, &sql, params![after, bounded(page.limit, MAX_PAGE)], rows::agent)
}

pub(crate) fn agent_versions(
    conn: &Connection,
    id: AgentId,
    page: Page<u32>,
) -> Outcome<Vec<Agent>> {
    let sql = format!(
        "SELECT {} FROM agent_versions WHERE agent = ?1 AND version < ?2
         ORDER BY version DESC LIMIT ?3",
        rows::AGENT_VERSION
    );
    let after = page.after.map_or(i64::MAX, i64::from);
    let limit = bounded(page.limit, MAX_PAGE);
    many(conn, &sql, params![blob(id.as_u128()), after, limit], rows::agent)
}

pub(crate) fn session_fetch(conn: &Connection, id: SessionId) -> Outcome<Option<SessionRow>> {
    let sql = format!("SELECT {} FROM sessions WHERE id = ?1", rows::SESSION);
    one(conn, &sql, [blob(id.as_u128())], rows::session)
}

pub(crate) fn session_list(
    conn: &Connection,
    filter: &SessionFilter,
    page: Page<SessionId>,
) -> Outcome<Vec<SessionRow>> {
    let below = below(page.after.map(SessionId::as_u128));
    let limit = bounded(page.limit, MAX_PAGE);
    let mut with = Vec::new();
    let mut part = |columns: &str, status: Option<SessionStatus>| {
        let mut sql = format!("SELECT {columns} FROM sessions WHERE id < ?");
        with.push(Sql::Blob(below.clone()));
        if let Some(colony) = filter.colony {
            sql.push_str(" AND colony = ?");
            with.push(Sql::Blob(blob(colony.as_u128()).to_vec()));
        }
        if let Some(agent) = filter.agent {
            sql.push_str(" AND agent = ?");
            with.push(Sql::Blob(blob(agent.as_u128()).to_vec()));
        }
        if let Some(parent) = filter.parent {
            sql.push_str(" AND parent = ?");
            with.push(Sql::Blob(blob(parent.as_u128()).to_vec()));
        }
        if let Some(top) = filter.tree {
            sql.push_str(
                " AND id IN (WITH RECURSIVE family(id) AS (SELECT ?
                   UNION SELECT child.id FROM sessions child JOIN family ON child.parent = family.id)
                   SELECT id FROM family)",
            );
            with.push(Sql::Blob(blob(top.as_u128()).to_vec()));
        }
        match &filter.name {
            Some(NameFilter::Is(name)) => {
                sql.push_str(" AND name = ?");
                with.push(Sql::Text(name.clone()));
            }
            Some(NameFilter::Begins(name)) => {
                // Names are ASCII, so all names with this prefix sort before the prefix followed by
                // DEL.
                sql.push_str(" AND name >= ? AND name < ?");
                with.push(Sql::Text(name.clone()));
                with.push(Sql::Text(format!("{name}\u{7f}")));
            }
            None => {}
        }
        if let Some(owner) = filter.owner {
            sql.push_str(" AND owner = ?");
            with.push(Sql::Blob(blob(owner.as_u128()).to_vec()));
        }
        for requirement in filter.selector.requirements() {
            labelled(requirement, &mut sql, &mut with);
        }
        if let Some(status) = status {
            sql.push_str(" AND status = ?");
            with.push(Sql::Text(status.as_str().into()));
        }
        sql.push_str(" ORDER BY id DESC LIMIT ?");
        with.push(Sql::Integer(limit));
        sql
    };
    let sql = match filter.statuses[..] {
        [] => part(rows::SESSION, None),
        [status] => part(rows::SESSION, Some(status)),
        // Takes the newest of each status and then the newest of these. A single `IN` would either
        // sort all sessions with these statuses or skip all others.
        ref several => {
            let parts: Vec<_> = several
                .iter()
                .map(|status| format!("SELECT id FROM ({})", part("id", Some(*status))))
                .collect();
            with.push(Sql::Integer(limit));
            format!(
                "SELECT {} FROM sessions WHERE id IN ({}) ORDER BY id DESC LIMIT ?",
                rows::SESSION,
                parts.join(" UNION ALL ")
            )
        }
    };
    many(conn, &sql, params_from_iter(with), rows::session)
}

/// Restricts a query to sessions that meet a requirement of a selector.
fn labelled(requirement: &Requirement, sql: &mut String, with: &mut Vec<Sql>) {
    let (has, values) = match &requirement.test {
        Test::In(values) => ("IN", Some(values)),
        Test::NotIn(values) => ("NOT IN", Some(values)),
        Test::Exists => ("IN", None),
        Test::Missing => ("NOT IN", None),
    };
    with.push(Sql::Text(requirement.key.clone()));
    let values = values.map(|values| {
        with.extend(values.iter().cloned().map(Sql::Text));
        format!(" AND value IN ({})", vec!["?"; values.len()].join(", "))
    });
    let values = values.unwrap_or_default();
    let _ =
        write!(sql, " AND id {has} (SELECT session FROM session_labels WHERE label = ?{values})");
}

pub(crate) fn session_scan(
    conn: &Connection,
    status: SessionStatus,
    after: Option<SessionId>,
    limit: u32,
) -> Outcome<Vec<SessionRow>> {
    let sql = format!(
        "SELECT {} FROM sessions WHERE status = ?1 AND id > ?2 ORDER BY id LIMIT ?3",
        rows::SESSION
    );
    // The empty blob sorts before every id.
    let after = after.map(|id| blob(id.as_u128()).to_vec()).unwrap_or_default();
    many(conn, &sql, params![status.as_str(), after, bounded(limit, MAX_PAGE)], rows::session)
}

pub(crate) fn step_list(
    conn: &Connection,
    session: SessionId,
    after: Option<u32>,
    limit: u32,
) -> Outcome<Vec<StepRow>> {
    let sql = format!(
        "SELECT {} FROM steps WHERE session = ?1 AND idx > ?2 ORDER BY idx LIMIT ?3",
        rows::STEP
    );
    let after = after.map_or(-1, i64::from);
    let limit = bounded(limit, MAX_PAGE);
    many(conn, &sql, params![blob(session.as_u128()), after, limit], rows::step)
}

pub(crate) fn step_fetch(conn: &Connection, id: StepId) -> Outcome<Option<StepRow>> {
    let sql = format!("SELECT {} FROM steps WHERE id = ?1", rows::STEP);
    one(conn, &sql, [blob(id.as_u128())], rows::step)
}

pub(crate) fn events(conn: &Connection, query: &EventQuery) -> Outcome<Vec<LogEvent>> {
    // CROSS JOIN keeps the order of the tables as written: the outer loop is over the log, in its
    // own order.
    let (from, order) = match query.stream {
        Some(_) => (
            "FROM streams s CROSS JOIN events e ON e.stream = s.n
             WHERE s.name = ? AND e.seq > ?",
            "e.seq",
        ),
        None => {
            ("FROM events e CROSS JOIN streams s ON s.n = e.stream WHERE e.global > ?", "e.global")
        }
    };
    let mut sql = format!("SELECT {} {from}", rows::EVENT);
    let mut with = Vec::with_capacity(3 + query.kinds.len());
    if let Some(stream) = query.stream {
        with.push(Sql::Blob(name_of(stream).as_slice().to_vec()));
    }
    with.push(Sql::Integer(int(query.after)));
    if !query.kinds.is_empty() {
        let places = vec!["?"; query.kinds.len()].join(", ");
        sql.push_str(&format!(" AND e.kind IN ({places})"));
        with.extend(query.kinds.iter().map(|kind| Sql::Text((*kind).into())));
    }
    sql.push_str(&format!(" ORDER BY {order} LIMIT ?"));
    with.push(Sql::Integer(bounded(query.limit, MAX_EVENTS)));
    many(conn, &sql, params_from_iter(with), rows::event)
}

pub(crate) fn events_newest(
    conn: &Connection,
    stream: Option<StreamId>,
    page: Page<u64>,
) -> Outcome<Vec<LogEvent>> {
    let before = page.after.map_or(i64::MAX, int);
    let limit = bounded(page.limit, MAX_PAGE);
    match stream {
        Some(stream) => {
            let sql = format!(
                "SELECT {} FROM streams s CROSS JOIN events e ON e.stream = s.n
                 WHERE s.name = ?1 AND e.seq < ?2 ORDER BY e.seq DESC LIMIT ?3",
                rows::EVENT
            );
            many(conn, &sql, params![name_of(stream).as_slice(), before, limit], rows::event)
        }
        None => {
            let sql = format!(
                "SELECT {} FROM events e CROSS JOIN streams s ON s.n = e.stream
                 WHERE e.global < ?1 ORDER BY e.global DESC LIMIT ?2",
                rows::EVENT
            );
            many(conn, &sql, params![before, limit], rows::event)
        }
    }
}

const API_KEY: &str = "id, colony, name, role, hash, created_at, revoked_at";

pub(crate) fn api_key_by_hash(conn: &Connection, hash: [u8; 32]) -> Outcome<Option<ApiKey>> {
    let sql = format!("SELECT {API_KEY} FROM api_keys WHERE hash = ?1");
    one(conn, &sql, [hash], rows::api_key)
}

pub(crate) fn api_key_list(conn: &Connection, page: Page<ApiKeyId>) -> Outcome<Vec<ApiKey>> {
    let sql = format!("SELECT {API_KEY} FROM api_keys WHERE id < ?1 ORDER BY id DESC LIMIT ?2");
    let after = below(page.after.map(ApiKeyId::as_u128));
    many(conn, &sql, params![after, bounded(page.limit, MAX_PAGE)], rows::api_key)
}

pub(crate) fn setting_fetch(conn: &Connection, key: &str) -> Outcome<Option<Value>> {
    one(conn, "SELECT value FROM settings WHERE key = ?1", [key], |row| {
        Cells::new(row, "settings").json(0)
    })
}

pub(crate) fn idempotency_fetch(
    conn: &Connection,
    scope: &str,
    key: &str,
) -> Outcome<Option<IdempotentAnswer>> {
    let id = idempotency_id(scope, key);
    one(conn, "SELECT fingerprint, resource FROM idempotency WHERE id = ?1", [id], |row| {
        let cells = Cells::new(row, "idempotency");
        Ok(IdempotentAnswer { fingerprint: cells.hash(0)?, resource: cells.text(1)? })
    })
}

/// All statistics except those that need the file system.
pub(crate) fn stats(conn: &Connection) -> Outcome<StoreStats> {
    let count = |sql: &str| -> Outcome<u64> {
        let found = one(conn, sql, [], |row| Cells::new(row, "counts").u64(0))?;
        Ok(found.unwrap_or(0))
    };
    let by_status =
        many(conn, "SELECT status, count(*) FROM sessions GROUP BY status", [], |row| {
            let cells = Cells::new(row, "sessions");
            Ok((SessionStatus::parse(cells.str(0)?), cells.u64(1)?))
        })?;
    let sessions_by_status = SessionStatus::ALL
        .into_iter()
        .map(|status| {
            let found = by_status.iter().find(|(known, _)| *known == Some(status));
            (status, found.map_or(0, |(_, count)| *count))
        })
        .collect();
    Ok(StoreStats {
        // Only retention makes gaps in the global numbers, so nothing needs to be counted.
        events: count(
            "SELECT coalesce((SELECT max(global) FROM events), 0) - events FROM retention",
        )?,
        streams: count("SELECT count(*) FROM streams WHERE head_seq > 0 OR n <> 1")?,
        sessions_by_status,
        agents: count("SELECT count(*) FROM agents")?,
        memory_items: count("SELECT count(*) FROM memory_items")?,
        bytes: 0,
        schema: u32::try_from(count("SELECT user_version FROM pragma_user_version")?)
            .unwrap_or(u32::MAX),
        last_checkpoint: one(
            conn,
            "SELECT number FROM checkpoints ORDER BY number DESC LIMIT 1",
            [],
            |row| Cells::new(row, "checkpoints").u64(0),
        )?,
        location: String::new(),
    })
}
