//! Queries of the mesh; each result is one range of an index.

use overmind_core::ids::{AgentId, ColonyId, EffectId, LetterId, SessionId, SubscriptionId};
use overmind_core::mesh::{
    BoardEntry, Dead, Key, Letter, LetterFilter, LetterMark, MailboxCounts, Priority, Registration,
    Subscription, TopicPattern,
};
use overmind_core::store::ExpiredKey;
use overmind_core::time::Timestamp;
use rusqlite::{Connection, Row, params};

use super::queries::{MAX_PAGE, bounded, many, one};
use super::rows::{Cells, blob, int};
use crate::error::Outcome;

/// A page ends once its values have this many bytes.
const PAGE_BYTES: usize = 4 << 20;

/// Reads rows until there are no more, or until their values in the cell at `at` exceed the page
/// size.
fn within<T>(
    conn: &Connection,
    sql: &str,
    with: impl rusqlite::Params,
    at: usize,
    read: impl Fn(&Row<'_>) -> Outcome<T>,
) -> Outcome<Vec<T>> {
    let mut find = conn.prepare_cached(sql)?;
    let mut found = find.query(with)?;
    let (mut all, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES
        && let Some(row) = found.next()?
    {
        bytes += Cells::new(row, "mesh").str(at)?.len();
        all.push(read(row)?);
    }
    Ok(all)
}

const BOARD: &str = "colony, key, value, version, written_by, workflow, created_at, updated_at, \
    ttl, expires_at, effect";

fn board(row: &Row<'_>) -> Outcome<BoardEntry> {
    let cells = Cells::new(row, "board");
    Ok(BoardEntry {
        colony: ColonyId::from_u128(cells.u128(0)?),
        key: key(&cells, 1)?,
        value: cells.json(2)?,
        version: cells.u64(3)?,
        written_by: cells.text(4)?,
        workflow: cells.opt(5, Cells::text)?,
        created_at: cells.time(6)?,
        updated_at: cells.time(7)?,
        ttl: cells.opt(8, Cells::u64)?,
        expires_at: cells.opt(9, Cells::time)?,
        effect: cells.opt(10, Cells::u128)?.map(EffectId::from_u128),
    })
}

fn key(cells: &Cells<'_>, at: usize) -> Outcome<Key> {
    Key::parse(cells.str(at)?).map_err(|_| cells.wrong(at, "a key"))
}

pub(crate) fn board_fetch(
    conn: &Connection,
    colony: ColonyId,
    key: &Key,
) -> Outcome<Option<BoardEntry>> {
    let sql = format!("SELECT {BOARD} FROM board WHERE colony = ?1 AND key = ?2");
    one(conn, &sql, params![blob(colony.as_u128()), key.as_str()], board)
}

/// The highest version of the deleted entries in the key's bucket.
pub(crate) fn board_past(conn: &Connection, colony: ColonyId, key: &Key) -> Outcome<u64> {
    let sql = "SELECT version FROM board_past WHERE colony = ?1 AND bucket = ?2";
    let with = params![blob(colony.as_u128()), key.bucket()];
    Ok(one(conn, sql, with, |row| Cells::new(row, "board_past").u64(0))?.unwrap_or(0))
}

pub(crate) fn board_list(
    conn: &Connection,
    colony: ColonyId,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Outcome<Vec<BoardEntry>> {
    // An index range is used instead of LIKE, so a prefix has no wildcards. The last code point of
    // Unicode, which no key contains, sorts after everything that begins with the prefix.
    let end = format!("{prefix}\u{10FFFF}");
    let sql = format!(
        "SELECT {BOARD} FROM board
         WHERE colony = ?1 AND key >= ?2 AND key < ?3 AND key > ?4 ORDER BY key LIMIT ?5"
    );
    // No key is empty, so all are after the empty one.
    let after = after.unwrap_or_default();
    let with = params![blob(colony.as_u128()), prefix, end, after, bounded(limit, MAX_PAGE)];
    within(conn, &sql, with, 2, board)
}

pub(crate) fn board_expired(
    conn: &Connection,
    now: Timestamp,
    limit: u32,
) -> Outcome<Vec<ExpiredKey>> {
    many(
        conn,
        "SELECT colony, key, version FROM board WHERE expires_at <= ?1
         ORDER BY expires_at LIMIT ?2",
        params![now.as_micros(), bounded(limit, MAX_PAGE)],
        |row| {
            let cells = Cells::new(row, "board");
            Ok((ColonyId::from_u128(cells.u128(0)?), key(&cells, 1)?, cells.u64(2)?))
        },
    )
}

const LETTER: &str = "place, id, colony, recipient, sender, topic, kind, payload, workflow, \
    reply_to, priority, sent_at, expires_at, attempts, visible_at, holder, session, why_dead";

fn letter(row: &Row<'_>) -> Outcome<Letter> {
    let cells = Cells::new(row, "letters");
    Ok(Letter {
        place: cells.u64(0)?,
        id: LetterId::from_u128(cells.u128(1)?),
        colony: ColonyId::from_u128(cells.u128(2)?),
        to: AgentId::from_u128(cells.u128(3)?),
        from: cells.text(4)?,
        topic: cells.opt(5, Cells::text)?,
        kind: cells.text(6)?,
        payload: cells.json(7)?,
        workflow: cells.opt(8, Cells::text)?,
        reply_to: cells.opt(9, Cells::text)?,
        priority: Priority::parse(cells.str(10)?).ok_or_else(|| cells.wrong(10, "a priority"))?,
        sent_at: cells.time(11)?,
        expires_at: cells.opt(12, Cells::time)?,
        mark: LetterMark {
            attempts: cells.u32(13)?,
            visible_at: cells.time(14)?,
            holder: cells.opt(15, Cells::u128)?.map(EffectId::from_u128),
            session: cells.opt(16, Cells::u128)?.map(SessionId::from_u128),
            dead: cells.opt(17, |cells, at| {
                Dead::parse(cells.str(at)?).ok_or_else(|| cells.wrong(at, "a cause of death"))
            })?,
        },
    })
}

pub(crate) fn letter_fetch(
    conn: &Connection,
    to: AgentId,
    id: LetterId,
) -> Outcome<Option<Letter>> {
    let sql = format!("SELECT {LETTER} FROM letters WHERE recipient = ?1 AND id = ?2");
    one(conn, &sql, params![blob(to.as_u128()), blob(id.as_u128())], letter)
}

pub(crate) fn letter_list(
    conn: &Connection,
    to: AgentId,
    filter: LetterFilter,
    after: u64,
    limit: u32,
) -> Outcome<Vec<Letter>> {
    let (dead, by, session) = match filter {
        LetterFilter::Readable(now) => (false, now.as_micros(), None),
        LetterFilter::Living => (false, i64::MAX, None),
        LetterFilter::HeldBy(session) => (false, i64::MAX, Some(blob(session.as_u128()))),
        LetterFilter::Dead => (true, i64::MAX, None),
    };
    let sql = format!(
        "SELECT {LETTER} FROM letters
         WHERE recipient = ?1 AND is_dead = ?2 AND place > ?3 AND visible_at <= ?4
           AND (?6 IS NULL OR session = ?6)
         ORDER BY place LIMIT ?5"
    );
    let with = params![
        blob(to.as_u128()),
        dead,
        int(after),
        by,
        bounded(limit, MAX_PAGE),
        session.as_ref().map(<[u8; 16]>::as_slice)
    ];
    within(conn, &sql, with, 7, letter)
}

pub(crate) fn letter_due(conn: &Connection, now: Timestamp, limit: u32) -> Outcome<Vec<Letter>> {
    let sql = format!("SELECT {LETTER} FROM letters WHERE due <= ?1 ORDER BY due LIMIT ?2");
    within(conn, &sql, params![now.as_micros(), bounded(limit, MAX_PAGE)], 7, letter)
}

pub(crate) fn mailbox_list(
    conn: &Connection,
    after: Option<AgentId>,
    limit: u32,
) -> Outcome<Vec<(AgentId, MailboxCounts)>> {
    // The empty blob sorts before every id.
    let after = after.map(|id| blob(id.as_u128()).to_vec()).unwrap_or_default();
    many(
        conn,
        "SELECT recipient, sum(is_dead = 0), sum(is_dead = 1) FROM letters
         WHERE recipient > ?1 GROUP BY recipient ORDER BY recipient LIMIT ?2",
        params![after, bounded(limit, MAX_PAGE)],
        |row| {
            let cells = Cells::new(row, "letters");
            let counts = MailboxCounts { waiting: cells.u32(1)?, dead: cells.u32(2)? };
            Ok((AgentId::from_u128(cells.u128(0)?), counts))
        },
    )
}

pub(crate) fn subscription_list(
    conn: &Connection,
    after: Option<SubscriptionId>,
    limit: u32,
) -> Outcome<Vec<Subscription>> {
    let after = after.map(|id| blob(id.as_u128()).to_vec()).unwrap_or_default();
    many(
        conn,
        "SELECT id, colony, agent, pattern, line, created_at, created_by FROM subscriptions
         WHERE id > ?1 ORDER BY id LIMIT ?2",
        params![after, bounded(limit, MAX_PAGE)],
        |row| {
            let cells = Cells::new(row, "subscriptions");
            Ok(Subscription {
                id: SubscriptionId::from_u128(cells.u128(0)?),
                colony: ColonyId::from_u128(cells.u128(1)?),
                agent: AgentId::from_u128(cells.u128(2)?),
                pattern: TopicPattern::parse(cells.str(3)?)
                    .map_err(|_| cells.wrong(3, "a pattern of topics"))?,
                line: texts(&cells, 4)?,
                created_at: cells.time(5)?,
                created_by: cells.text(6)?,
            })
        },
    )
}

pub(crate) fn registration_list(
    conn: &Connection,
    after: Option<AgentId>,
    limit: u32,
) -> Outcome<Vec<Registration>> {
    let after = after.map(|id| blob(id.as_u128()).to_vec()).unwrap_or_default();
    many(
        conn,
        "SELECT agent, colony, capabilities, registered_at FROM registrations
         WHERE agent > ?1 ORDER BY agent LIMIT ?2",
        params![after, bounded(limit, MAX_PAGE)],
        |row| {
            let cells = Cells::new(row, "registrations");
            Ok(Registration {
                agent: AgentId::from_u128(cells.u128(0)?),
                colony: ColonyId::from_u128(cells.u128(1)?),
                capabilities: texts(&cells, 2)?,
                registered_at: cells.time(3)?,
            })
        },
    )
}

fn texts(cells: &Cells<'_>, at: usize) -> Outcome<Vec<String>> {
    serde_json::from_str(cells.str(at)?).map_err(|_| cells.wrong(at, "a list of texts"))
}
