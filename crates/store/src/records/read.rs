//! Queries of records.

use std::borrow::Cow;
use std::collections::BTreeMap;

use overmind_core::ids::{ColonyId, RecordId, SessionId};
use overmind_core::record::label::Test;
use overmind_core::record::rows::{
    ChangesQuery, RecordChanges, RecordNews, RecordPage, RecordQuery, Tombstone,
};
use overmind_core::record::{Kind, Name, Owner, Record, RecordKey, Term};
use overmind_core::time::Timestamp;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, Params, Row, params, params_from_iter};

use super::write::term;
use crate::error::Outcome;
use crate::read::queries::{MAX_PAGE, bounded, many, one};
use crate::read::rows::{Cells, blob, int};

/// A page ends once its specs and statuses have this many bytes.
const PAGE_BYTES: usize = 4 << 20;

const RECORD: &str = "id, kind, colony, name, version, generation, changed, owner, \
    owner_is_session, due, expires_at, deleting, created_at, updated_at, written_by, finalizers, \
    terms, labels, annotations, status, spec";

fn record(row: &Row<'_>) -> Outcome<Record> {
    let cells = Cells::new(row, "records");
    let texts = |at: usize| -> Outcome<BTreeMap<String, String>> {
        serde_json::from_str(cells.str(at)?).map_err(|_| cells.wrong(at, "an object of texts"))
    };
    let is_session = cells.int(8)? != 0;
    let owner = cells.opt(7, Cells::u128)?.map(|owner| match is_session {
        true => Owner::Session(SessionId::from_u128(owner)),
        false => Owner::Record(RecordId::from_u128(owner)),
    });
    let terms: Vec<(String, String)> =
        serde_json::from_str(cells.str(16)?).map_err(|_| cells.wrong(16, "pairs of texts"))?;
    Ok(Record {
        id: RecordId::from_u128(cells.u128(0)?),
        key: key(&cells, 1)?,
        version: cells.u64(4)?,
        generation: cells.u64(5)?,
        changed: cells.u64(6)?,
        owner,
        due: cells.opt(9, Cells::time)?,
        expires_at: cells.opt(10, Cells::time)?,
        deleting: cells.opt(11, Cells::time)?,
        created_at: cells.time(12)?,
        updated_at: cells.time(13)?,
        written_by: cells.text(14)?,
        finalizers: serde_json::from_str(cells.str(15)?)
            .map_err(|_| cells.wrong(15, "a list of texts"))?,
        terms: terms
            .into_iter()
            .map(|(name, value)| Term { name: Cow::Owned(name), value })
            .collect(),
        labels: texts(17)?,
        annotations: texts(18)?,
        status: cells.json(19)?,
        spec: cells.json(20)?,
    })
}

/// Reads kind, colony and name, which are adjacent in this order.
fn key(cells: &Cells<'_>, at: usize) -> Outcome<RecordKey> {
    Ok(RecordKey {
        kind: cells.parsed(at, "a kind", |text| Kind::parse(text).ok())?,
        colony: ColonyId::from_u128(cells.u128(at + 1)?),
        name: cells.parsed(at + 2, "a name of a record", |text| Name::parse(text).ok())?,
    })
}

/// At most `limit` records, fewer if they are large, and whether there are more.
fn page(
    conn: &Connection,
    sql: &str,
    with: impl Params,
    limit: i64,
) -> Outcome<(Vec<Record>, bool)> {
    let mut find = conn.prepare_cached(sql)?;
    let mut found = find.query(with)?;
    let (mut all, mut bytes) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        if bytes >= PAGE_BYTES || int(all.len() as u64) >= limit {
            return Ok((all, true));
        }
        let cells = Cells::new(row, "records");
        bytes += cells.str(19)?.len() + cells.str(20)?.len();
        all.push(record(row)?);
    }
    Ok((all, false))
}

pub(super) fn fetch(conn: &Connection, key: &RecordKey) -> Outcome<Option<Record>> {
    let sql = format!("SELECT {RECORD} FROM records WHERE kind = ?1 AND colony = ?2 AND name = ?3");
    let with = params![key.kind.as_str(), blob(key.colony.as_u128()), key.name.as_str()];
    one(conn, &sql, with, record)
}

pub(super) fn by_id(conn: &Connection, id: RecordId) -> Outcome<Option<Record>> {
    one(conn, &format!("SELECT {RECORD} FROM records WHERE id = ?1"), [blob(id.as_u128())], record)
}

fn bytes(id: u128) -> Sql {
    Sql::Blob(blob(id).to_vec())
}

fn text(text: &str) -> Sql {
    Sql::Text(text.to_owned())
}

/// A growing SQL statement with its bound values.
#[derive(Default)]
struct Where {
    sql: String,
    with: Vec<Sql>,
}

impl Where {
    fn and(&mut self, sql: &str, with: impl IntoIterator<Item = Sql>) {
        self.sql.push_str(if self.sql.is_empty() { " WHERE " } else { " AND " });
        self.sql.push_str(sql);
        self.with.extend(with);
    }

    /// Restricts to records that have (or lack) a term, with one of some values if any are given.
    fn and_term<'a>(
        &mut self,
        kind: Option<&Kind>,
        has: bool,
        term: &str,
        values: impl Iterator<Item = &'a str>,
    ) {
        let mut with = Vec::new();
        let of_kind = match kind {
            Some(kind) => {
                with.push(text(kind.as_str()));
                "kind = ? AND "
            }
            None => "",
        };
        with.push(text(term));
        let before = with.len();
        with.extend(values.map(text));
        let values = match with.len() - before {
            0 => String::new(),
            n => format!(" AND value IN ({})", vec!["?"; n].join(", ")),
        };
        let has = if has { "IN" } else { "NOT IN" };
        let sql = format!("id {has} (SELECT id FROM record_terms WHERE {of_kind}term = ?{values})");
        self.and(&sql, with);
    }
}

pub(super) fn list(conn: &Connection, query: &RecordQuery) -> Outcome<RecordPage> {
    let limit = bounded(query.limit, MAX_PAGE);
    let Where { sql, with } = listed(query, limit);
    let (records, more) = page(conn, &sql, params_from_iter(with), limit)?;
    Ok(RecordPage { records, more, at: head(conn)? })
}

/// The whole statement of a list, for one row more than `limit`.
fn listed(query: &RecordQuery, limit: i64) -> Where {
    let mut of = Where::default();
    let kind = query.kind.as_ref();
    if let Some(kind) = kind {
        of.and("kind = ?", [text(kind.as_str())]);
    }
    if let Some(colony) = query.colony {
        of.and("colony = ?", [bytes(colony.as_u128())]);
    }
    if !query.prefix.is_empty() {
        // Names are ASCII, so all names with this prefix sort before the prefix followed by DEL.
        let end = format!("{}\u{7f}", query.prefix);
        of.and("name >= ? AND name < ?", [text(&query.prefix), Sql::Text(end)]);
    }
    if let Some(owner) = query.owner {
        let (id, is_session) = match owner {
            Owner::Record(id) => (id.as_u128(), 0),
            Owner::Session(id) => (id.as_u128(), 1),
        };
        of.and("owner = ? AND owner_is_session = ?", [bytes(id), Sql::Integer(is_session)]);
    }
    for requirement in query.selector.requirements() {
        let key = requirement.key.as_str();
        match &requirement.test {
            Test::In(values) => of.and_term(kind, true, key, values.iter().map(String::as_str)),
            Test::NotIn(values) => of.and_term(kind, false, key, values.iter().map(String::as_str)),
            Test::Exists => of.and_term(kind, true, key, std::iter::empty()),
            Test::Missing => of.and_term(kind, false, key, std::iter::empty()),
        }
    }
    if let Some((name, value)) = &query.term {
        of.and_term(kind, true, &term(name), std::iter::once(value.as_str()));
    }
    if let Some(RecordKey { kind: after, colony, name }) = &query.after {
        let colony_is = bytes(colony.as_u128());
        // The condition is as narrow as possible, so that the range of the index begins there.
        match (kind == Some(after), query.colony == Some(*colony)) {
            (true, true) => of.and("name > ?", [text(name.as_str())]),
            (true, false) => of.and("(colony, name) > (?, ?)", [colony_is, text(name.as_str())]),
            (false, _) => of.and(
                "(kind, colony, name) > (?, ?, ?)",
                [text(after.as_str()), colony_is, text(name.as_str())],
            ),
        }
    }
    let Where { sql, mut with } = of;
    with.push(Sql::Integer(limit + 1));
    let sql = format!("SELECT {RECORD} FROM records{sql} ORDER BY kind, colony, name LIMIT ?");
    Where { sql, with }
}

/// The number of the last change of any record.
fn head(conn: &Connection) -> Outcome<u64> {
    let sql = "SELECT max(
        coalesce((SELECT max(changed) FROM records), 0),
        coalesce((SELECT max(changed) FROM record_tombs), 0))";
    Ok(one(conn, sql, [], |row| Cells::new(row, "records").u64(0))?.unwrap_or(0))
}

/// The result of reading changes after a number.
pub(super) enum Found {
    Changes(RecordChanges),
    /// The number is before this one, up to which deletions were forgotten.
    Beyond(u64),
    /// The number is greater than this one, the newest of the log.
    Ahead(u64),
}

pub(super) fn changes(conn: &Connection, query: &ChangesQuery) -> Outcome<Found> {
    let horizon = one(conn, "SELECT changed FROM record_horizon", [], |row| {
        Cells::new(row, "record_horizon").u64(0)
    })?;
    if let Some(horizon) = horizon.filter(|horizon| query.after < *horizon) {
        return Ok(Found::Beyond(horizon));
    }
    let newest = one(conn, "SELECT coalesce(max(global), 0) FROM events", [], |row| {
        Cells::new(row, "events").u64(0)
    })?;
    if let Some(newest) = newest.filter(|newest| query.after > *newest) {
        return Ok(Found::Ahead(newest));
    }
    let limit = bounded(query.limit, MAX_PAGE);
    let mut of = Where::default();
    of.and("changed > ?", [Sql::Integer(int(query.after))]);
    if let Some(colony) = query.colony {
        of.and("colony = ?", [bytes(colony.as_u128())]);
    }
    if !query.kinds.is_empty() {
        let places = vec!["?"; query.kinds.len()].join(", ");
        of.and(&format!("kind IN ({places})"), query.kinds.iter().map(|kind| text(kind.as_str())));
    }
    let Where { sql: filter, mut with } = of;
    with.push(Sql::Integer(limit + 1));
    // The index by kind would find all records of the kinds and sort them.
    let sql = format!(
        "SELECT {RECORD} FROM records INDEXED BY records_by_change{filter}
         ORDER BY changed LIMIT ?"
    );
    let (records, more_records) = page(conn, &sql, params_from_iter(&with), limit)?;
    let sql = format!(
        "SELECT id, kind, colony, name, at, changed
         FROM record_tombs INDEXED BY record_tombs_by_change{filter} ORDER BY changed LIMIT ?"
    );
    let tombs = many(conn, &sql, params_from_iter(&with), |row| {
        let cells = Cells::new(row, "record_tombs");
        Ok(Tombstone {
            id: RecordId::from_u128(cells.u128(0)?),
            key: key(&cells, 1)?,
            at: cells.time(4)?,
            changed: cells.u64(5)?,
        })
    })?;
    // If the list of records is cut, later changes are not complete.
    let cut = records.last().filter(|_| more_records).map(|record| record.changed);
    let mut news: Vec<_> =
        records.into_iter().map(|record| RecordNews::Put(Box::new(record))).collect();
    news.extend(tombs.into_iter().map(RecordNews::Gone));
    news.sort_unstable_by_key(RecordNews::changed);
    let found = news.len();
    news.retain(|one| cut.is_none_or(|cut| one.changed() <= cut));
    news.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let more = more_records || news.len() < found;
    let at = match news.last().filter(|_| more) {
        Some(last) => last.changed(),
        None => head(conn)?.max(query.after),
    };
    Ok(Found::Changes(RecordChanges { news, at, more }))
}

pub(super) fn due(
    conn: &Connection,
    kind: &Kind,
    now: Timestamp,
    after: Option<(Timestamp, RecordId)>,
    limit: u32,
) -> Outcome<Vec<Record>> {
    let limit = bounded(limit, MAX_PAGE);
    let Where { sql, with } = by_time("wake", Some(kind), now, after, limit);
    Ok(page(conn, &sql, params_from_iter(with), limit)?.0)
}

pub(super) fn expired(
    conn: &Connection,
    now: Timestamp,
    after: Option<(Timestamp, RecordId)>,
    limit: u32,
) -> Outcome<Vec<Record>> {
    let limit = bounded(limit, MAX_PAGE);
    let Where { sql, with } = by_time("expires_at", None, now, after, limit);
    Ok(page(conn, &sql, params_from_iter(with), limit)?.0)
}

/// The whole statement for records whose time in `column` has come.
fn by_time(
    column: &str,
    kind: Option<&Kind>,
    now: Timestamp,
    after: Option<(Timestamp, RecordId)>,
    limit: i64,
) -> Where {
    let mut of = Where::default();
    if let Some(kind) = kind {
        of.and("kind = ?", [text(kind.as_str())]);
    }
    of.and(&format!("{column} <= ?"), [Sql::Integer(now.as_micros())]);
    if let Some((at, id)) = after {
        let after = [Sql::Integer(at.as_micros()), bytes(id.as_u128())];
        of.and(&format!("({column}, id) > (?, ?)"), after);
    }
    let Where { sql, mut with } = of;
    with.push(Sql::Integer(limit));
    let sql = format!("SELECT {RECORD} FROM records{sql} ORDER BY {column}, id LIMIT ?");
    Where { sql, with }
}

pub(super) fn orphans(
    conn: &Connection,
    after: Option<RecordId>,
    limit: u32,
) -> Outcome<Vec<Record>> {
    let limit = bounded(limit, MAX_PAGE);
    let after = after.map(|id| blob(id.as_u128()).to_vec()).unwrap_or_default();
    let sql = format!(
        "SELECT {RECORD} FROM records AS one WHERE owner IS NOT NULL AND id > ?1
           AND CASE owner_is_session
             WHEN 1 THEN NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.id = one.owner)
             ELSE NOT EXISTS (SELECT 1 FROM records AS other WHERE other.id = one.owner)
           END
         ORDER BY id LIMIT ?2"
    );
    Ok(page(conn, &sql, params![after, limit], limit)?.0)
}

pub(super) fn deleting(
    conn: &Connection,
    after: Option<RecordId>,
    limit: u32,
) -> Outcome<Vec<Record>> {
    let limit = bounded(limit, MAX_PAGE);
    let after = after.map(|id| blob(id.as_u128()).to_vec()).unwrap_or_default();
    // The index by id would read all records.
    let sql = format!(
        "SELECT {RECORD} FROM records INDEXED BY records_deleting
         WHERE deleting IS NOT NULL AND id > ?1 ORDER BY id LIMIT ?2"
    );
    Ok(page(conn, &sql, params![after, limit], limit)?.0)
}

#[cfg(test)]
mod tests {
    use overmind_core::record::Selector;

    use super::*;

    /// The query plan of a statement, in one text.
    fn plan(conn: &Connection, Where { sql, with }: Where) -> String {
        let mut plan = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = plan.query_map(params_from_iter(with), |row| row.get::<_, String>(3)).unwrap();
        steps.collect::<Result<Vec<_>, _>>().unwrap().join("; ")
    }

    /// A store of the newest schema, with its directory.
    fn empty() -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        std::fs::write(&path, "").unwrap();
        let mut conn = crate::schema::open_writer(&path, None).unwrap();
        crate::schema::migrate(&mut conn).unwrap();
        (dir, conn)
    }

    #[test]
    fn due_and_expired_records_are_read_in_index_order() {
        let (_dir, conn) = empty();
        let kind = Kind::parse("note").unwrap();
        let now = Timestamp::from_micros(5);
        let after = Some((now, RecordId::from_u128(1)));
        for (of, index) in [
            (by_time("wake", Some(&kind), now, None, 10), "records_by_wake (kind=? AND wake<?)"),
            (
                by_time("wake", Some(&kind), now, after, 10),
                "records_by_wake (kind=? AND (wake,id)>(?,?) AND wake<?)",
            ),
            (by_time("expires_at", None, now, None, 10), "records_by_expiry (expires_at<?)"),
            (
                by_time("expires_at", None, now, after, 10),
                "records_by_expiry ((expires_at,id)>(?,?) AND expires_at<?)",
            ),
        ] {
            let plan = plan(&conn, of);
            assert!(plan.contains(index) && !plan.contains("ORDER BY"), "{plan}");
        }
    }

    #[test]
    fn lists_by_kind_or_owner_use_an_index() {
        let (_dir, conn) = empty();
        let kind = Kind::parse("note").unwrap();
        let after = RecordKey {
            kind: kind.clone(),
            colony: ColonyId::DEFAULT,
            name: Name::parse("a").unwrap(),
        };
        let of_kind = || RecordQuery { kind: Some(kind.clone()), ..RecordQuery::default() };
        let colony = Some(ColonyId::DEFAULT);
        let owner = Some(Owner::Record(RecordId::from_u128(1)));
        let selector = Selector::parse("a=b,c!=d,e,!f").unwrap();
        let term = Some(("agent".to_owned(), "x".to_owned()));
        for (query, index) in [
            (of_kind(), "records_by_key (kind=?)"),
            (
                RecordQuery { colony, after: Some(after.clone()), ..of_kind() },
                "records_by_key (kind=? AND colony=? AND name>?)",
            ),
            (
                RecordQuery { colony, prefix: "a".into(), ..of_kind() },
                "records_by_key (kind=? AND colony=? AND name>? AND name<?)",
            ),
            (RecordQuery { owner, ..RecordQuery::default() }, "records_by_owner (owner=?)"),
            (RecordQuery { selector, ..of_kind() }, "PRIMARY KEY (kind=? AND term=? AND value=?)"),
            (RecordQuery { term, ..of_kind() }, "PRIMARY KEY (kind=? AND term=? AND value=?)"),
        ] {
            let plan = plan(&conn, listed(&query, 10));
            assert!(plan.contains(index) && !plan.contains("SCAN records"), "{plan}");
        }
    }
}
