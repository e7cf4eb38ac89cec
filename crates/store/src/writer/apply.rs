//! Applies one commit inside of the group's transaction: guards, events, changes.

use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::SessionId;
use overmind_core::inbox::InboxItem;
use overmind_core::row::StepRow;
use overmind_core::store::{Committed, Guard, StreamId};
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;

use super::log::Log;
use super::{colonies, memory, mesh};
use crate::error::{Fault, Outcome, Reach};
use crate::prepare::{Prepared, Session, Write, json_text};
use crate::read::rows::{agent_status_text, blob, int, opt_blob, opt_time};
use crate::{artifacts, records, vault};

/// Applies `commit`. If it fails with [`Reach::Commit`], the transaction is as it was before.
pub(super) fn apply(conn: &Connection, log: &mut Log, commit: &Prepared) -> Outcome<Committed> {
    // Guards only read and cause most refusals, so no savepoint is needed yet.
    for (at, guard) in (0..).zip(&commit.guards) {
        check(conn, guard).map_err(|fault| fault.of_guard(at))?;
    }
    if commit.events.is_empty() && commit.changes.is_empty() {
        return Ok(Committed { global: log.global(), places: Vec::new() });
    }
    log.begin_commit();
    conn.prepare_cached("SAVEPOINT one")?.execute([])?;
    match write(conn, log, commit) {
        Ok(committed) => {
            conn.prepare_cached("RELEASE one")?.execute([])?;
            log.keep_commit();
            Ok(committed)
        }
        Err(fault) => {
            log.drop_commit();
            if fault.reach() == Reach::Commit {
                conn.prepare_cached("ROLLBACK TO one")?.execute([])?;
                conn.prepare_cached("RELEASE one")?.execute([])?;
            }
            Err(fault)
        }
    }
}

fn write(conn: &Connection, log: &mut Log, commit: &Prepared) -> Outcome<Committed> {
    let mut places = Vec::with_capacity(commit.events.len());
    let mut of_records = Vec::new();
    for event in &commit.events {
        places.push((event.stream, log.append(conn, event)?));
        if event.stream == StreamId::Records {
            of_records.push(log.global());
        }
    }
    let mut of_records = of_records.into_iter();
    for change in &commit.changes {
        let own = if matches!(change, Write::Record(_)) { of_records.next() } else { None };
        apply_change(conn, change, own.unwrap_or(log.global()))?;
    }
    Ok(Committed { global: log.global(), places })
}

/// Whether a session has this epoch, and has ended or not as `ended` says.
fn stands(conn: &Connection, session: SessionId, epoch: u32, ended: bool) -> Outcome<()> {
    let found: Option<(u32, bool)> = conn
        .prepare_cached(
            "SELECT epoch, status IN ('succeeded', 'failed', 'canceled')
             FROM sessions WHERE id = ?1",
        )?
        .query_row([blob(session.as_u128())], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (expected, found) = match found {
        None => (Stands::Epoch(epoch), Stands::Absent),
        Some((_, true)) if !ended => (Stands::Open, Stands::Ended),
        Some((_, false)) if ended => (Stands::Ended, Stands::Open),
        Some((at, _)) if at != epoch => (Stands::Epoch(epoch), Stands::Epoch(at)),
        Some(_) => return Ok(()),
    };
    Err(Fault::conflict(Conflict::new(ConflictKind::Session, session, expected, found)))
}

fn check(conn: &Connection, guard: &Guard) -> Outcome<()> {
    match guard {
        Guard::SessionEpoch { session, epoch } => stands(conn, *session, *epoch, false),
        Guard::SessionEnded { session, epoch } => stands(conn, *session, *epoch, true),
        Guard::SessionExists { session } => {
            let found = conn
                .prepare_cached("SELECT 1 FROM sessions WHERE id = ?1")?
                .exists([blob(session.as_u128())])?;
            if found {
                Ok(())
            } else {
                let (expected, found) = (Stands::Present, Stands::Absent);
                Err(Fault::conflict(Conflict::new(ConflictKind::Session, session, expected, found)))
            }
        }
        Guard::AgentVersion { agent, version } => {
            let found: Option<u32> = conn
                .prepare_cached("SELECT version FROM agents WHERE id = ?1")?
                .query_row([blob(agent.as_u128())], |row| row.get(0))
                .optional()?;
            if found == Some(*version) {
                return Ok(());
            }
            let found = found.map_or(Stands::Absent, |at| Stands::Version(at.into()));
            let expected = Stands::Version((*version).into());
            Err(Fault::conflict(Conflict::new(ConflictKind::Agent, agent, expected, found)))
        }
        Guard::AgentNameFree { colony, name, except } => {
            let except = except.map(|id| blob(id.as_u128()).to_vec()).unwrap_or_default();
            let taken = conn
                .prepare_cached(
                    "SELECT 1 FROM agents
                     WHERE colony = ?1 AND name = ?2 AND status != 'removed' AND id != ?3",
                )?
                .exists(params![blob(colony.as_u128()), name, except])?;
            if taken {
                return Err(Fault::conflict(Conflict::taken(ConflictKind::AgentName, name)));
            }
            Ok(())
        }
        Guard::NameFree { colony, name } => {
            let taken = conn
                .prepare_cached(
                    "SELECT 1 FROM sessions
                     WHERE name = ?1 AND colony = ?2
                       AND status NOT IN ('succeeded', 'failed', 'canceled')",
                )?
                .exists(params![name, blob(colony.as_u128())])?;
            if taken {
                return Err(Fault::conflict(Conflict::taken(ConflictKind::SessionName, name)));
            }
            Ok(())
        }
        Guard::ColonyHasRoom { colony, most } => colonies::has_room(conn, *colony, *most),
        Guard::ColonyEmpty { colony } => colonies::is_empty(conn, *colony),
        Guard::BoardVersion { colony, key, version } => {
            mesh::board_stands_at(conn, *colony, key, *version)
        }
        Guard::RecordVersion { key, version } => records::stands_at(conn, key, *version),
        Guard::LetterAt { to, id, attempts, dead } => {
            mesh::letter_stands_at(conn, *to, *id, *attempts, *dead)
        }
    }
}

/// `global` is the number of the commit's last event or, for a change of a record, of the change's
/// own event.
fn apply_change(conn: &Connection, change: &Write, global: u64) -> Outcome<()> {
    match change {
        Write::AgentPut { agent, spec } => {
            let status = agent_status_text(agent.status);
            let author = agent.author.as_ref().map(|author| {
                serde_json::to_string(author).expect("a name and a role are plain data")
            });
            conn.prepare_cached(
                "INSERT INTO agents
                   (id, colony, name, status, version, created_at, updated_at, spec, author)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT (id) DO UPDATE SET
                   colony = excluded.colony, name = excluded.name, status = excluded.status,
                   version = excluded.version, created_at = excluded.created_at,
                   updated_at = excluded.updated_at, spec = excluded.spec,
                   author = excluded.author",
            )?
            .execute(params![
                blob(agent.id.as_u128()),
                blob(agent.colony.as_u128()),
                agent.spec.name,
                status,
                agent.version,
                agent.created_at.as_micros(),
                agent.updated_at.as_micros(),
                spec,
                author
            ])?;
            conn.prepare_cached(
                "INSERT OR REPLACE INTO agent_versions
                   (agent, version, colony, status, created_at, updated_at, spec, author)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                blob(agent.id.as_u128()),
                agent.version,
                blob(agent.colony.as_u128()),
                status,
                agent.created_at.as_micros(),
                agent.updated_at.as_micros(),
                spec,
                author
            ])?;
            Ok(())
        }
        Write::SessionInsert(session) => insert_session(conn, session),
        Write::SessionUpdate(session) => update_session(conn, session),
        Write::StepPut { row, input, output } => put_step(conn, row, input, output.as_deref()),
        Write::InboxPut { item, details } => put_inbox(conn, item, details, global),
        Write::MemoryInsert { item, metadata, vector, key } => {
            if let Some(key) = key {
                let new = conn
                    .prepare_cached(
                        "INSERT INTO memory_keys (key, item, expires_at) VALUES (?1, ?2, ?3)
                         ON CONFLICT (key) DO UPDATE
                           SET item = excluded.item, expires_at = excluded.expires_at
                           WHERE memory_keys.expires_at <= ?4",
                    )?
                    .execute(params![
                        blob(key.as_u128()),
                        blob(item.id.as_u128()),
                        opt_time(item.expires_at),
                        item.created_at.as_micros()
                    ])?;
                if new == 0 {
                    return Ok(());
                }
            }
            memory::insert(conn, item, metadata, vector)
        }
        Write::MemoryDelete(id) => memory::delete(conn, *id),
        Write::MemoryEmbed { id, model, vector } => memory::embed(conn, *id, model, vector),
        Write::ApiKeyPut(key) => {
            conn.prepare_cached(
                "INSERT INTO api_keys (id, colony, name, role, hash, created_at, revoked_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                 ON CONFLICT (id) DO UPDATE SET
                   colony = excluded.colony, name = excluded.name, role = excluded.role,
                   hash = excluded.hash, created_at = excluded.created_at,
                   revoked_at = excluded.revoked_at",
            )?
            .execute(params![
                blob(key.id.as_u128()),
                blob(key.colony.as_u128()),
                key.name,
                key.role.as_str(),
                key.hash,
                key.created_at.as_micros(),
                opt_time(key.revoked_at)
            ])
            .map_err(|err| taken(err.into(), ConflictKind::ApiKey, || key.name.clone()))?;
            Ok(())
        }
        Write::SettingPut { key, value, at } => {
            conn.prepare_cached(
                "INSERT OR REPLACE INTO settings (key, value, updated_at) VALUES (?1, ?2, ?3)",
            )?
            .execute(params![key, value, at.as_micros()])?;
            Ok(())
        }
        Write::SettingDelete { key } => {
            conn.prepare_cached("DELETE FROM settings WHERE key = ?1")?.execute([key])?;
            Ok(())
        }
        Write::AttestationPut { digest, at, record } => {
            conn.prepare_cached(
                "INSERT OR IGNORE INTO attestations (digest, at, record) VALUES (?1, ?2, ?3)",
            )?
            .execute(params![digest, at.as_micros(), record])?;
            Ok(())
        }
        Write::HivePut { hive, name, seen_at } => {
            conn.prepare_cached(
                "INSERT OR REPLACE INTO hives (id, name, seen_at) VALUES (?1, ?2, ?3)",
            )?
            .execute(params![blob(hive.as_u128()), name, seen_at.as_micros()])?;
            Ok(())
        }
        Write::IdempotencyPut { id, scope, answer, at } => {
            conn.prepare_cached(
                "INSERT INTO idempotency (id, fingerprint, resource, at) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute(params![id, answer.fingerprint, answer.resource, at.as_micros()])
            .map_err(|err| taken(err.into(), ConflictKind::IdempotencyKey, || scope.to_string()))?;
            Ok(())
        }
        Write::Vault(change) => vault::apply(conn, change),
        Write::Record(write) => records::apply(conn, write, global),
        Write::Budget(change) => crate::budgets::apply(conn, change),
        Write::BoardPut { entry, value } => mesh::board_put(conn, entry, value),
        Write::BoardDelete { colony, key } => mesh::board_delete(conn, *colony, key),
        Write::LetterInsert { letter, payload } => mesh::letter_insert(conn, letter, payload),
        Write::LetterMark { to, id, mark, expires_at } => {
            mesh::letter_mark(conn, *to, *id, mark, *expires_at)
        }
        Write::LetterDelete { to, id } => mesh::letter_delete(conn, *to, *id),
        Write::SubscriptionPut { subscription, line } => {
            mesh::subscription_put(conn, subscription, line)
        }
        Write::SubscriptionDelete(id) => mesh::subscription_delete(conn, *id),
        Write::RegistrationPut { registration, capabilities } => {
            mesh::registration_put(conn, registration, capabilities)
        }
        Write::ArtifactPut(artifact) => artifacts::put(conn, artifact, global),
        Write::ArtifactDelete { session, name } => artifacts::delete(conn, *session, name),
    }
}

/// Names the existing item if a uniqueness rule refused the change.
pub(crate) fn taken(fault: Fault, kind: ConflictKind, name: impl FnOnce() -> String) -> Fault {
    if fault.is_taken() { Fault::conflict(Conflict::taken(kind, name())) } else { fault }
}

fn insert_session(conn: &Connection, session: &Session) -> Outcome<()> {
    let row = &session.row;
    let (forked_session, forked_step) = match row.forked_from {
        Some((from, step)) => (Some(blob(from.as_u128())), Some(step)),
        None => (None, None),
    };
    conn.prepare_cached(
        "INSERT INTO sessions (id, colony, agent, agent_version, hive, epoch, status, step_limit,
           created_at, started_at, finished_at, approval, input_tokens, output_tokens,
           cached_input_tokens, cache_write_tokens, reasoning_tokens, cost_microusd, model_calls,
           steps, sandbox, workspace, forked_session, forked_step, created_by, task, prompt,
           final_answer, error, attestation, name, parent, command, room, owner, labels)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
           ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35,
           ?36)",
    )?
    .execute(params![
        blob(row.id.as_u128()),
        blob(row.colony.as_u128()),
        blob(row.agent.as_u128()),
        row.agent_version,
        opt_blob(row.hive.map(|hive| hive.as_u128())),
        row.epoch,
        row.status.as_str(),
        row.step_limit,
        row.created_at.as_micros(),
        opt_time(row.started_at),
        opt_time(row.finished_at),
        opt_blob(row.approval.map(|approval| approval.as_u128())),
        int(row.usage.input_tokens),
        int(row.usage.output_tokens),
        int(row.usage.cached_input_tokens),
        int(row.usage.cache_write_tokens),
        int(row.usage.reasoning_tokens),
        row.cost_microusd.map(int),
        row.model_calls,
        row.steps,
        row.sandbox.as_str(),
        row.workspace,
        forked_session,
        forked_step,
        row.created_by,
        row.task,
        row.prompt,
        row.final_answer,
        session.error,
        session.attestation,
        row.name,
        opt_blob(row.parent.map(|parent| parent.as_u128())),
        session.command,
        session.room,
        opt_blob(row.owner.map(|owner| owner.as_u128())),
        json_text(&json!(row.labels)),
    ])
    .map_err(|err| taken(err.into(), ConflictKind::Session, || row.id.to_string()))?;
    for (label, value) in &row.labels {
        conn.prepare_cached(
            "INSERT INTO session_labels (label, value, session) VALUES (?1, ?2, ?3)",
        )?
        .execute(params![label, value, blob(row.id.as_u128())])?;
    }
    Ok(())
}

/// The assignments of an update. Name, parent, owner and labels never change. The indexed columns
/// are omitted, because SQLite rewrites the index entries of every assigned column, changed or not.
macro_rules! assign_session {
    () => {
        "agent_version = ?2, hive = ?3, epoch = ?4, step_limit = ?5, created_at = ?6,
         started_at = ?7, approval = ?8, input_tokens = ?9, output_tokens = ?10,
         cached_input_tokens = ?11, cache_write_tokens = ?12, reasoning_tokens = ?13,
         cost_microusd = ?14, model_calls = ?15, steps = ?16, sandbox = ?17, workspace = ?18,
         forked_session = ?19, forked_step = ?20, created_by = ?21, task = ?22, prompt = ?23,
         final_answer = ?24, error = ?25, attestation = ?30, command = ?31,
         room = ?32"
    };
}

fn update_session(conn: &Connection, session: &Session) -> Outcome<()> {
    let row = &session.row;
    let (forked_session, forked_step) = match row.forked_from {
        Some((from, step)) => (Some(blob(from.as_u128())), Some(step)),
        None => (None, None),
    };
    let run = |sql: &str| -> Outcome<usize> {
        Ok(conn.prepare_cached(sql)?.execute(params![
            blob(row.id.as_u128()),
            row.agent_version,
            opt_blob(row.hive.map(|hive| hive.as_u128())),
            row.epoch,
            row.step_limit,
            row.created_at.as_micros(),
            opt_time(row.started_at),
            opt_blob(row.approval.map(|approval| approval.as_u128())),
            int(row.usage.input_tokens),
            int(row.usage.output_tokens),
            int(row.usage.cached_input_tokens),
            int(row.usage.cache_write_tokens),
            int(row.usage.reasoning_tokens),
            row.cost_microusd.map(int),
            row.model_calls,
            row.steps,
            row.sandbox.as_str(),
            row.workspace,
            forked_session,
            forked_step,
            row.created_by,
            row.task,
            row.prompt,
            row.final_answer,
            session.error,
            row.status.as_str(),
            opt_time(row.finished_at),
            blob(row.colony.as_u128()),
            blob(row.agent.as_u128()),
            session.attestation,
            session.command,
            session.room
        ])?)
    };
    // Most updates change no indexed column: status, end, colony and agent are equal.
    let same = run(concat!(
        "UPDATE sessions SET ",
        assign_session!(),
        " WHERE id = ?1 AND status = ?26 AND finished_at IS ?27 AND colony = ?28 AND agent = ?29"
    ))?;
    if same == 1 {
        return Ok(());
    }
    let other = run(concat!(
        "UPDATE sessions SET status = ?26, finished_at = ?27, colony = ?28, agent = ?29, ",
        assign_session!(),
        " WHERE id = ?1"
    ))?;
    if other == 1 { Ok(()) } else { Err(Fault::missing(format!("session {}", row.id))) }
}

fn put_step(conn: &Connection, row: &StepRow, input: &str, output: Option<&str>) -> Outcome<()> {
    // A step's session and place never change, so they are compared and not assigned.
    let changed = conn
        .prepare_cached(
            "INSERT INTO steps
               (id, session, idx, turn, kind, started_at, finished_at, input, output, error)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
             ON CONFLICT (id) DO UPDATE SET
               turn = excluded.turn, kind = excluded.kind, started_at = excluded.started_at,
               finished_at = excluded.finished_at, input = excluded.input,
               output = excluded.output, error = excluded.error
             WHERE session = excluded.session AND idx = excluded.idx",
        )?
        .execute(params![
            blob(row.id.as_u128()),
            blob(row.session.as_u128()),
            row.idx,
            row.turn,
            row.kind.as_str(),
            row.started_at.as_micros(),
            opt_time(row.finished_at),
            input,
            output,
            row.error
        ])
        .map_err(Fault::from)
        .map_err(|fault| {
            if fault.is_dangling() {
                return Fault::missing(format!("session {}", row.session));
            }
            taken(fault, ConflictKind::Step, || format!("{} of session {}", row.idx, row.session))
        })?;
    if changed == 0 {
        let expected = Stands::At(format!("{} of session {}", row.idx, row.session));
        let conflict = Conflict::new(ConflictKind::Step, row.id, expected, Stands::Changed);
        return Err(Fault::conflict(conflict));
    }
    Ok(())
}

fn put_inbox(conn: &Connection, item: &InboxItem, details: &str, global: u64) -> Outcome<()> {
    conn.prepare_cached(
        "INSERT INTO inbox (id, colony, session, agent, agent_name, epoch, kind, state, title,
           details, grp, asked_at, expires_at, answered_at, answered_by, answer, changed,
           owner)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
         ON CONFLICT (id) DO UPDATE SET
           colony = excluded.colony, session = excluded.session, agent = excluded.agent,
           agent_name = excluded.agent_name, epoch = excluded.epoch, kind = excluded.kind,
           state = excluded.state, title = excluded.title, details = excluded.details,
           grp = excluded.grp, asked_at = excluded.asked_at, expires_at = excluded.expires_at,
           answered_at = excluded.answered_at, answered_by = excluded.answered_by,
           answer = excluded.answer, changed = excluded.changed, owner = excluded.owner",
    )?
    .execute(params![
        blob(item.id.as_u128()),
        blob(item.colony.as_u128()),
        opt_blob(item.session.map(|session| session.as_u128())),
        opt_blob(item.agent.map(|agent| agent.as_u128())),
        item.agent_name,
        item.epoch,
        item.kind.as_str(),
        item.state.as_str(),
        item.title,
        details,
        item.group,
        item.asked_at.as_micros(),
        opt_time(item.expires_at),
        opt_time(item.answered_at),
        item.answered_by,
        item.answer,
        int(global),
        opt_blob(item.owner.map(|owner| owner.as_u128()))
    ])?;
    Ok(())
}
