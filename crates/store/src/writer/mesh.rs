//! Applies changes of the mesh to its tables.

use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::{AgentId, ColonyId, LetterId, SubscriptionId};
use overmind_core::mesh::{
    BoardEntry, Key, Letter, LetterMark, Registration, Subscription, dies_at,
};
use overmind_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Fault, Outcome};
use crate::read::rows::{blob, int, opt_blob, opt_time};

pub(super) fn board_stands_at(
    conn: &Connection,
    colony: ColonyId,
    key: &Key,
    version: Option<u64>,
) -> Outcome<()> {
    let found: Option<i64> = conn
        .prepare_cached("SELECT version FROM board WHERE colony = ?1 AND key = ?2")?
        .query_row(params![blob(colony.as_u128()), key.as_str()], |row| row.get(0))
        .optional()?;
    if found == version.map(int) {
        return Ok(());
    }
    let stands = |version: Option<u64>| version.map_or(Stands::Absent, Stands::Version);
    let found = stands(found.map(i64::cast_unsigned));
    Err(Fault::conflict(Conflict::new(ConflictKind::BoardKey, key, stands(version), found)))
}

pub(super) fn letter_stands_at(
    conn: &Connection,
    to: AgentId,
    id: LetterId,
    attempts: u32,
    dead: bool,
) -> Outcome<()> {
    let stands = conn
        .prepare_cached(
            "SELECT 1 FROM letters
             WHERE recipient = ?1 AND id = ?2 AND attempts = ?3 AND is_dead = ?4",
        )?
        .exists(params![blob(to.as_u128()), blob(id.as_u128()), attempts, dead])?;
    if stands {
        Ok(())
    } else {
        let (expected, found) = (Stands::Present, Stands::Changed);
        Err(Fault::conflict(Conflict::new(ConflictKind::Message, id, expected, found)))
    }
}

pub(super) fn board_put(conn: &Connection, entry: &BoardEntry, value: &str) -> Outcome<()> {
    conn.prepare_cached(
        "INSERT INTO board (colony, key, value, version, written_by, workflow, created_at,
           updated_at, ttl, expires_at, effect)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT (colony, key) DO UPDATE SET
           value = excluded.value, version = excluded.version, written_by = excluded.written_by,
           workflow = excluded.workflow, created_at = excluded.created_at,
           updated_at = excluded.updated_at, ttl = excluded.ttl, expires_at = excluded.expires_at,
           effect = excluded.effect",
    )?
    .execute(params![
        blob(entry.colony.as_u128()),
        entry.key.as_str(),
        value,
        int(entry.version),
        entry.written_by,
        entry.workflow,
        entry.created_at.as_micros(),
        entry.updated_at.as_micros(),
        entry.ttl.map(int),
        opt_time(entry.expires_at),
        opt_blob(entry.effect.map(|effect| effect.as_u128())),
    ])?;
    Ok(())
}

pub(super) fn board_delete(conn: &Connection, colony: ColonyId, key: &Key) -> Outcome<()> {
    conn.prepare_cached(
        "INSERT INTO board_past (colony, bucket, version)
           SELECT colony, ?3, version FROM board WHERE colony = ?1 AND key = ?2
         ON CONFLICT (colony, bucket) DO UPDATE SET version = max(version, excluded.version)",
    )?
    .execute(params![blob(colony.as_u128()), key.as_str(), key.bucket()])?;
    conn.prepare_cached("DELETE FROM board WHERE colony = ?1 AND key = ?2")?
        .execute(params![blob(colony.as_u128()), key.as_str()])?;
    Ok(())
}

pub(super) fn letter_insert(conn: &Connection, letter: &Letter, payload: &str) -> Outcome<()> {
    let mark = &letter.mark;
    conn.prepare_cached(
        "INSERT INTO letters (id, colony, recipient, sender, topic, kind, payload, workflow,
           reply_to, priority, sent_at, expires_at, attempts, visible_at, holder, session, is_dead,
           why_dead, due)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
           ?19)
         ON CONFLICT (recipient, id) DO NOTHING",
    )?
    .execute(params![
        blob(letter.id.as_u128()),
        blob(letter.colony.as_u128()),
        blob(letter.to.as_u128()),
        letter.from,
        letter.topic,
        letter.kind,
        payload,
        letter.workflow,
        letter.reply_to,
        letter.priority.as_str(),
        letter.sent_at.as_micros(),
        opt_time(letter.expires_at),
        mark.attempts,
        mark.visible_at.as_micros(),
        opt_blob(mark.holder.map(|holder| holder.as_u128())),
        opt_blob(mark.session.map(|session| session.as_u128())),
        mark.dead.is_some(),
        mark.dead.map(|why| why.as_str()),
        opt_time(letter.dies_at()),
    ])?;
    Ok(())
}

pub(super) fn letter_mark(
    conn: &Connection,
    to: AgentId,
    id: LetterId,
    mark: &LetterMark,
    expires_at: Option<Timestamp>,
) -> Outcome<()> {
    conn.prepare_cached(
        "UPDATE letters SET attempts = ?3, visible_at = ?4, holder = ?5, session = ?6,
           is_dead = ?7, why_dead = ?8, due = ?9
         WHERE recipient = ?1 AND id = ?2",
    )?
    .execute(params![
        blob(to.as_u128()),
        blob(id.as_u128()),
        mark.attempts,
        mark.visible_at.as_micros(),
        opt_blob(mark.holder.map(|holder| holder.as_u128())),
        opt_blob(mark.session.map(|session| session.as_u128())),
        mark.dead.is_some(),
        mark.dead.map(|why| why.as_str()),
        opt_time(dies_at(mark, expires_at)),
    ])?;
    Ok(())
}

pub(super) fn letter_delete(conn: &Connection, to: AgentId, id: LetterId) -> Outcome<()> {
    conn.prepare_cached("DELETE FROM letters WHERE recipient = ?1 AND id = ?2")?
        .execute(params![blob(to.as_u128()), blob(id.as_u128())])?;
    Ok(())
}

pub(super) fn subscription_put(
    conn: &Connection,
    subscription: &Subscription,
    line: &str,
) -> Outcome<()> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO subscriptions
           (id, colony, agent, pattern, line, created_at, created_by)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        blob(subscription.id.as_u128()),
        blob(subscription.colony.as_u128()),
        blob(subscription.agent.as_u128()),
        subscription.pattern.as_str(),
        line,
        subscription.created_at.as_micros(),
        subscription.created_by,
    ])?;
    Ok(())
}

pub(super) fn subscription_delete(conn: &Connection, id: SubscriptionId) -> Outcome<()> {
    conn.prepare_cached("DELETE FROM subscriptions WHERE id = ?1")?
        .execute([blob(id.as_u128())])?;
    Ok(())
}

pub(super) fn registration_put(
    conn: &Connection,
    registration: &Registration,
    capabilities: &str,
) -> Outcome<()> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO registrations (agent, colony, capabilities, registered_at)
         VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![
        blob(registration.agent.as_u128()),
        blob(registration.colony.as_u128()),
        capabilities,
        registration.registered_at.as_micros(),
    ])?;
    Ok(())
}
