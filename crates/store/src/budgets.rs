//! The tables of budgets: limits, windows, open reservations, calls, and daily sums of their cost.
//!
//! A window is one row that is added to. A call is added to the daily sums of its colony, agent,
//! model and session, or of its caller if it has no session, once for all calls of a commit. No
//! function here reads all calls.

use std::collections::HashMap;

use overmind_core::budget::{
    Amount, Baseline, BudgetChange, CAP, CallRecord, Content, CostBy, CostQuery, CostRow, Ended,
    KEPT_WINDOWS, Limit, Period, Reservation, Scope, Snapshot, Window, WindowKey, Windowed, period,
};
use overmind_core::conflict::ConflictKind;
use overmind_core::ids::{AgentId, CallId, ColonyId, LimitId, RecordId, SessionId};
use overmind_core::model::Usage;
use overmind_core::store::Page;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, Row, params, params_from_iter};
use serde_json::Value;

use crate::error::{Fault, Outcome};
use crate::read::queries::{MAX_PAGE, bounded, many, one};
use crate::read::rows::{Cells, blob, int, opt_blob};
use crate::redact::Redactor;
use crate::writer::apply::taken;

/// A [`BudgetChange`] whose JSON is already written.
#[derive(Debug)]
pub(crate) enum Write {
    LimitPut { id: LimitId, body: String },
    LimitDelete(LimitId),
    WindowMove(Windowed),
    WindowsDelete { scope: Scope, period: Period },
    ReservationPut { call: CallId, body: String },
    ReservationDelete(CallId),
    CallInsert(Box<CallRecord>),
    SpendAdd(Box<Spent>),
}

/// The amounts that calls add to one daily sum.
#[derive(Debug)]
pub(crate) struct Spent {
    dim: &'static str,
    key: String,
    day: i32,
    calls: u64,
    microusd: u64,
    unpriced: u64,
    at_most: u64,
    usage: Usage,
}

/// The amounts that the calls of one commit add to the daily sums: one row for each sum, however
/// many calls there are.
#[derive(Debug, Default)]
pub(crate) struct Sums(HashMap<(i32, Of), Spent>);

/// The subject of a daily sum.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Of {
    Colony(ColonyId),
    Agent(Option<AgentId>),
    Model(String),
    Session(Option<SessionId>),
    Key(String),
}

impl Of {
    /// The values of its two columns.
    fn named(&self) -> (&'static str, String) {
        match self {
            Self::Colony(id) => ("colony", id.to_string()),
            Self::Agent(id) => ("agent", id.map(|id| id.to_string()).unwrap_or_default()),
            Self::Model(model) => ("model", model.clone()),
            Self::Session(id) => ("session", id.map(|id| id.to_string()).unwrap_or_default()),
            Self::Key(name) => ("key", name.clone()),
        }
    }
}

impl Sums {
    /// Adds a call that is inserted.
    pub(crate) fn note(&mut self, write: &Write) {
        let Write::CallInsert(call) = write else { return };
        let day = period::day_of(call.started_at);
        // For a call of a session, the session determines the owner.
        let key = call.session.is_none().then(|| Of::Key(call.caller.clone()));
        let all = [
            Of::Colony(call.colony),
            Of::Agent(call.agent),
            Of::Model(call.asked.model.as_ref().unwrap_or(&call.model).clone()),
            Of::Session(call.session),
        ];
        for of in all.into_iter().chain(key) {
            let sum = self.0.entry((day, of)).or_insert_with_key(|(day, of)| {
                let (dim, key) = of.named();
                let (day, usage) = (*day, Usage::default());
                Spent { dim, key, day, calls: 0, microusd: 0, unpriced: 0, at_most: 0, usage }
            });
            let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more.min(CAP)).min(CAP);
            sum.calls += 1;
            add(&mut sum.microusd, call.microusd.unwrap_or(0));
            sum.unpriced += u64::from(call.microusd.is_none());
            sum.at_most += u64::from(call.at_most);
            let (had, more) = (&mut sum.usage, &call.usage);
            add(&mut had.input_tokens, more.input_tokens);
            add(&mut had.output_tokens, more.output_tokens);
            add(&mut had.cached_input_tokens, more.cached_input_tokens);
            add(&mut had.cache_write_tokens, more.cache_write_tokens);
            add(&mut had.reasoning_tokens, more.reasoning_tokens);
        }
    }

    pub(crate) fn writes(self) -> impl Iterator<Item = Write> {
        self.0.into_values().map(|spent| Write::SpendAdd(Box::new(spent)))
    }
}

/// Masks secrets; also returns about how many bytes the change has.
pub(crate) fn prepare(change: BudgetChange, redactor: &Redactor) -> (Write, usize) {
    fn body(plain: Result<Value, serde_json::Error>, redactor: &Redactor) -> String {
        let mut value = plain.expect("plain data has a JSON form");
        redactor.value(&mut value);
        value.to_string()
    }
    match change {
        BudgetChange::LimitPut(limit) => {
            let body = body(serde_json::to_value(&limit), redactor);
            let size = body.len();
            (Write::LimitPut { id: limit.id, body }, size)
        }
        BudgetChange::LimitDelete(id) => (Write::LimitDelete(id), 0),
        BudgetChange::WindowMove(moved) => (Write::WindowMove(moved), 0),
        BudgetChange::WindowsDelete { scope, period } => {
            (Write::WindowsDelete { scope, period }, 0)
        }
        BudgetChange::ReservationPut(mut reservation) => {
            // Only these are texts; all other fields are ids and numbers.
            let ask = &mut reservation.ask;
            for text in [&mut ask.caller, &mut ask.provider, &mut ask.model] {
                redactor.text(text);
            }
            let body = serde_json::to_string(&reservation).expect("plain data has a JSON form");
            let size = body.len();
            (Write::ReservationPut { call: reservation.ask.call, body }, size)
        }
        BudgetChange::ReservationDelete(call) => (Write::ReservationDelete(call), 0),
        BudgetChange::CallInsert(mut call) => {
            let mut size = 0;
            let texts = [&mut call.caller, &mut call.provider, &mut call.model, &mut call.format];
            for text in texts.into_iter().chain(&mut call.asked.model) {
                redactor.text(text);
                size += text.len();
            }
            for content in [&mut call.request, &mut call.response].into_iter().flatten() {
                redactor.text(&mut content.text);
                size += content.text.len();
            }
            (Write::CallInsert(call), size)
        }
    }
}

/// Applies a change in the current transaction.
pub(crate) fn apply(conn: &Connection, change: &Write) -> Outcome<()> {
    match change {
        Write::LimitPut { id, body } => {
            conn.prepare_cached("INSERT OR REPLACE INTO budget_limits (id, body) VALUES (?1, ?2)")?
                .execute(params![blob(id.as_u128()), body])?;
        }
        Write::LimitDelete(id) => {
            conn.prepare_cached("DELETE FROM budget_limits WHERE id = ?1")?
                .execute([blob(id.as_u128())])?;
        }
        Write::WindowMove(moved) => window_move(conn, moved)?,
        Write::WindowsDelete { scope, period } => {
            conn.prepare_cached("DELETE FROM budget_windows WHERE scope = ?1 AND period = ?2")?
                .execute([scope.to_string().as_str(), period.as_str()])?;
        }
        Write::ReservationPut { call, body } => {
            conn.prepare_cached("INSERT INTO budget_reservations (call, body) VALUES (?1, ?2)")?
                .execute(params![blob(call.as_u128()), body])
                .map_err(|err| taken(err.into(), ConflictKind::Reservation, || call.to_string()))?;
        }
        Write::ReservationDelete(call) => {
            conn.prepare_cached("DELETE FROM budget_reservations WHERE call = ?1")?
                .execute([blob(call.as_u128())])?;
        }
        Write::CallInsert(call) => call_insert(conn, call)?,
        Write::SpendAdd(spent) => spend_add(conn, spent)?,
    }
    Ok(())
}

fn window_move(conn: &Connection, moved: &Windowed) -> Outcome<()> {
    let Windowed { key, spent, reserved, freed, unpriced, warned } = moved;
    conn.prepare_cached(
        "INSERT INTO budget_windows
           (scope, period, start, spent_microusd, spent_tokens, reserved_microusd,
            reserved_tokens, unpriced, warned)
         VALUES (?1, ?2, ?3, min(?4, ?11), min(?5, ?11), max(min(?6, ?11) - ?8, 0),
           max(min(?7, ?11) - ?9, 0), min(?10, ?11), coalesce(?12, 0))
         ON CONFLICT (scope, period, start) DO UPDATE SET
           spent_microusd = min(spent_microusd + ?4, ?11),
           spent_tokens = min(spent_tokens + ?5, ?11),
           reserved_microusd = max(reserved_microusd + ?6 - ?8, 0),
           reserved_tokens = max(reserved_tokens + ?7 - ?9, 0),
           unpriced = min(unpriced + ?10, ?11),
           warned = coalesce(?12, warned)",
    )?
    .execute(params![
        key.scope.to_string(),
        key.period.as_str(),
        key.start.as_micros(),
        capped(spent.microusd),
        capped(spent.tokens),
        capped(reserved.microusd),
        capped(reserved.tokens),
        capped(freed.microusd),
        capped(freed.tokens),
        capped(*unpriced),
        capped(u64::MAX),
        warned,
    ])?;
    Ok(())
}

/// Caps an amount so that the sum of two fits SQLite's integers.
fn capped(amount: u64) -> i64 {
    int(amount.min(CAP))
}

fn call_insert(conn: &Connection, call: &CallRecord) -> Outcome<()> {
    let usage = &call.usage;
    let part = |content: &Option<Content>| match content {
        Some(Content { digest, text }) => (Some(digest.clone()), Some(text.clone())),
        None => (None, None),
    };
    let ((request_digest, request), (response_digest, response)) =
        (part(&call.request), part(&call.response));
    conn.prepare_cached(
        "INSERT INTO model_calls (id, colony, session, agent, caller, provider, model, format,
           input_tokens, output_tokens, cached_input_tokens, cache_write_tokens,
           reasoning_tokens, microusd, started_at, first_byte_ms, total_ms, status, ended,
           request_digest, request, response_digest, response, at_most)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
           ?19, ?20, ?21, ?22, ?23, ?24)",
    )?
    .execute(params![
        blob(call.call.as_u128()),
        blob(call.colony.as_u128()),
        opt_blob(call.session.map(|session| session.as_u128())),
        opt_blob(call.agent.map(|agent| agent.as_u128())),
        call.caller,
        call.provider,
        call.model,
        call.format,
        capped(usage.input_tokens),
        capped(usage.output_tokens),
        capped(usage.cached_input_tokens),
        capped(usage.cache_write_tokens),
        capped(usage.reasoning_tokens),
        call.microusd.map(capped),
        call.started_at.as_micros(),
        call.first_byte_ms.map(int),
        int(call.total_ms),
        call.status,
        call.ended.as_str(),
        request_digest,
        request,
        response_digest,
        response,
        call.at_most,
    ])
    .map_err(|err| taken(err.into(), ConflictKind::ModelCall, || call.call.to_string()))?;
    Ok(())
}

fn spend_add(conn: &Connection, spent: &Spent) -> Outcome<()> {
    let Spent { dim, key, day, calls, microusd, unpriced, at_most, usage } = spent;
    conn.prepare_cached(
        "INSERT INTO spend (dim, key, day, calls, microusd, unpriced, input_tokens,
           output_tokens, cached_input_tokens, cache_write_tokens, reasoning_tokens, at_most)
         VALUES (?1, ?2, ?3, ?12, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?13)
         ON CONFLICT (dim, key, day) DO UPDATE SET
           calls = calls + excluded.calls, microusd = min(microusd + excluded.microusd, ?11),
           unpriced = unpriced + excluded.unpriced, at_most = at_most + excluded.at_most,
           input_tokens = min(input_tokens + excluded.input_tokens, ?11),
           output_tokens = min(output_tokens + excluded.output_tokens, ?11),
           cached_input_tokens =
             min(cached_input_tokens + excluded.cached_input_tokens, ?11),
           cache_write_tokens = min(cache_write_tokens + excluded.cache_write_tokens, ?11),
           reasoning_tokens = min(reasoning_tokens + excluded.reasoning_tokens, ?11)",
    )?
    .execute(params![
        dim,
        key,
        day,
        capped(*microusd),
        int(*unpriced),
        capped(usage.input_tokens),
        capped(usage.output_tokens),
        capped(usage.cached_input_tokens),
        capped(usage.cache_write_tokens),
        capped(usage.reasoning_tokens),
        capped(u64::MAX),
        int(*calls),
        int(*at_most),
    ])?;
    Ok(())
}

// --- reading

fn unreadable(at: &str) -> impl Fn(serde_json::Error) -> Fault + '_ {
    move |err| Fault::Row { at: at.to_owned(), why: format!("it cannot be read: {err}") }
}

pub(crate) fn snapshot(conn: &Connection) -> Outcome<Snapshot> {
    let limits: Vec<Limit> = many(conn, "SELECT body FROM budget_limits ORDER BY id", [], |row| {
        let text = Cells::new(row, "budget_limits").str(0)?;
        serde_json::from_str(text).map_err(unreadable("budget_limits.body"))
    })?;
    let open: Vec<Reservation> =
        many(conn, "SELECT body FROM budget_reservations ORDER BY call", [], |row| {
            let text = Cells::new(row, "budget_reservations").str(0)?;
            serde_json::from_str(text).map_err(unreadable("budget_reservations.body"))
        })?;
    let mut lines: Vec<(Scope, Period)> =
        limits.iter().map(|limit| (limit.scope, limit.period)).collect();
    lines.sort_unstable();
    lines.dedup();
    let mut windows = Vec::new();
    for (scope, period) in lines {
        windows.extend(many(
            conn,
            "SELECT start, spent_microusd, spent_tokens, reserved_microusd, reserved_tokens,
               unpriced, warned
             FROM budget_windows WHERE scope = ?1 AND period = ?2 ORDER BY start DESC LIMIT ?3",
            params![scope.to_string(), period.as_str(), int(KEPT_WINDOWS as u64)],
            |row| {
                let cells = Cells::new(row, "budget_windows");
                let start = cells.time(0)?;
                let amount = |at: usize| -> Outcome<Amount> {
                    Ok(Amount { microusd: cells.u64(at)?, tokens: cells.u64(at + 1)? })
                };
                let window = Window {
                    spent: amount(1)?,
                    reserved: amount(3)?,
                    unpriced: cells.u64(5)?,
                    warned: cells.int(6)? != 0,
                };
                Ok((WindowKey { scope, period, start }, window))
            },
        )?);
    }
    Ok(Snapshot { limits, windows, open })
}

pub(crate) fn baseline(conn: &Connection, scope: Scope, since: i32) -> Outcome<Baseline> {
    let sum = "SELECT coalesce(sum(microusd), 0), coalesce(sum(input_tokens + output_tokens), 0),
                 coalesce(sum(unpriced), 0) FROM spend WHERE day >= ?1 AND dim = ?2";
    let read = |row: &Row<'_>| {
        let cells = Cells::new(row, "spend");
        let spent = Amount { microusd: cells.u64(0)?.min(CAP), tokens: cells.u64(1)?.min(CAP) };
        Ok(Baseline { spent, unpriced: cells.u64(2)? })
    };
    let keyed = format!("{sum} AND key = ?3");
    let of_session =
        |id: SessionId| one(conn, &keyed, params![since, "session", id.to_string()], read);
    let found = match scope {
        Scope::Swarm => one(conn, sum, params![since, "colony"], read)?,
        Scope::Colony(id) => one(conn, &keyed, params![since, "colony", id.to_string()], read)?,
        Scope::Agent(id) => one(conn, &keyed, params![since, "agent", id.to_string()], read)?,
        Scope::Key(name) => one(conn, &keyed, params![since, "key", name.as_str()], read)?,
        Scope::Session(id) => Some(sum_of(family(conn, id)?, &of_session)?),
        Scope::Owner(id) => Some(sum_of(owned(conn, id)?, &of_session)?),
    };
    Ok(found.unwrap_or_default())
}

fn sum_of(
    sessions: Vec<SessionId>,
    of_session: &dyn Fn(SessionId) -> Outcome<Option<Baseline>>,
) -> Outcome<Baseline> {
    let more = |a: u64, b: u64| a.saturating_add(b).min(CAP);
    let mut all = Baseline::default();
    for id in sessions {
        let part = of_session(id)?.unwrap_or_default();
        all.spent.microusd = more(all.spent.microusd, part.spent.microusd);
        all.spent.tokens = more(all.spent.tokens, part.spent.tokens);
        all.unpriced = more(all.unpriced, part.unpriced);
    }
    Ok(all)
}

/// The sessions that exist for a record or for one that it owns, and all that they started.
fn owned(conn: &Connection, record: RecordId) -> Outcome<Vec<SessionId>> {
    many(
        conn,
        "WITH RECURSIVE
           owners (id) AS (
             VALUES (?1)
             UNION SELECT records.id FROM records JOIN owners
               ON records.owner = owners.id AND records.owner_is_session = 0),
           family (id) AS (
             SELECT sessions.id FROM sessions JOIN owners ON sessions.owner = owners.id
             UNION SELECT sessions.id FROM sessions JOIN family ON sessions.parent = family.id)
         SELECT id FROM family",
        [blob(record.as_u128())],
        |row| Ok(SessionId::from_u128(Cells::new(row, "sessions").u128(0)?)),
    )
}

/// A session and all its descendants.
fn family(conn: &Connection, session: SessionId) -> Outcome<Vec<SessionId>> {
    many(
        conn,
        "WITH RECURSIVE family (id) AS (
           VALUES (?1)
           UNION SELECT sessions.id FROM sessions JOIN family ON sessions.parent = family.id)
         SELECT id FROM family",
        [blob(session.as_u128())],
        |row| Ok(SessionId::from_u128(Cells::new(row, "sessions").u128(0)?)),
    )
}

pub(crate) fn costs(conn: &Connection, query: CostQuery) -> Outcome<Vec<CostRow>> {
    let (dim, by, order) = match query.by {
        CostBy::Agent => ("agent", "key", "2 DESC, 1"),
        CostBy::Model => ("model", "key", "2 DESC, 1"),
        CostBy::Session => ("session", "key", "2 DESC, 1"),
        CostBy::Key => ("key", "key", "2 DESC, 1"),
        CostBy::Day => ("colony", "day", "1 DESC"),
    };
    let sql = format!(
        "SELECT {by}, sum(microusd), sum(calls), sum(unpriced), sum(input_tokens),
           sum(output_tokens), sum(cached_input_tokens), sum(cache_write_tokens),
           sum(reasoning_tokens), sum(at_most)
         FROM spend WHERE dim = ?1 AND day BETWEEN ?2 AND ?3
         GROUP BY 1 ORDER BY {order} LIMIT ?4"
    );
    let with = params![dim, query.since, query.until, bounded(query.limit, MAX_PAGE)];
    many(conn, &sql, with, |row| {
        let cells = Cells::new(row, "spend");
        let key = match query.by {
            CostBy::Agent | CostBy::Model | CostBy::Session | CostBy::Key => cells.text(0)?,
            CostBy::Day => {
                let day = i32::try_from(cells.int(0)?).map_err(|_| cells.wrong(0, "a day"))?;
                period::day_name(day)
            }
        };
        cost(&cells, key)
    })
}

/// A row of sums, read from its second column on.
fn cost(cells: &Cells<'_>, key: String) -> Outcome<CostRow> {
    Ok(CostRow {
        key,
        microusd: cells.u64(1)?,
        calls: cells.u64(2)?,
        unpriced: cells.u64(3)?,
        at_most: cells.u64(9)?,
        usage: usage(cells, 4)?,
    })
}

pub(crate) fn session_costs(conn: &Connection, ids: &[SessionId]) -> Outcome<Vec<CostRow>> {
    let ids: Vec<String> = ids.iter().map(SessionId::to_string).collect();
    // Each row needs a key lookup; a session has only a few days.
    let sql = "SELECT spend.key, sum(microusd), sum(calls), sum(unpriced), sum(input_tokens),
         sum(output_tokens), sum(cached_input_tokens), sum(cache_write_tokens),
         sum(reasoning_tokens), sum(at_most)
       FROM json_each(?1) AS wanted JOIN spend ON spend.dim = 'session' AND spend.key = wanted.value
       GROUP BY 1";
    many(conn, sql, [serde_json::json!(ids).to_string()], |row| {
        let cells = Cells::new(row, "spend");
        cost(&cells, cells.text(0)?)
    })
}

fn usage(cells: &Cells<'_>, at: usize) -> Outcome<Usage> {
    Ok(Usage {
        input_tokens: cells.u64(at)?,
        output_tokens: cells.u64(at + 1)?,
        cached_input_tokens: cells.u64(at + 2)?,
        cache_write_tokens: cells.u64(at + 3)?,
        reasoning_tokens: cells.u64(at + 4)?,
    })
}

pub(crate) fn call_list(
    conn: &Connection,
    session: Option<SessionId>,
    page: Page<CallId>,
) -> Outcome<Vec<CallRecord>> {
    let mut sql = "SELECT id, colony, session, agent, caller, provider, model, format,
           input_tokens, output_tokens, cached_input_tokens, cache_write_tokens,
           reasoning_tokens, microusd, started_at, first_byte_ms, total_ms, status, ended,
           request_digest, request, response_digest, response, at_most FROM model_calls WHERE 1"
        .to_owned();
    let mut with = Vec::new();
    if let Some(session) = session {
        sql.push_str(" AND session = ?");
        with.push(Sql::Blob(blob(session.as_u128()).to_vec()));
    }
    if let Some(after) = page.after {
        sql.push_str(" AND id < ?");
        with.push(Sql::Blob(blob(after.as_u128()).to_vec()));
    }
    sql.push_str(" ORDER BY id DESC LIMIT ?");
    with.push(Sql::Integer(bounded(page.limit, MAX_PAGE)));
    many(conn, &sql, params_from_iter(with), |row| {
        let cells = Cells::new(row, "model_calls");
        let content = |at: usize| -> Outcome<Option<Content>> {
            let digest = cells.opt(at, Cells::text)?;
            let text = cells.opt(at + 1, Cells::text)?;
            Ok(digest.zip(text).map(|(digest, text)| Content { digest, text }))
        };
        Ok(CallRecord {
            call: CallId::from_u128(cells.u128(0)?),
            colony: ColonyId::from_u128(cells.u128(1)?),
            session: cells.opt(2, Cells::u128)?.map(SessionId::from_u128),
            agent: cells.opt(3, Cells::u128)?.map(AgentId::from_u128),
            caller: cells.text(4)?,
            provider: cells.text(5)?,
            model: cells.text(6)?,
            format: cells.text(7)?,
            usage: usage(&cells, 8)?,
            microusd: cells.opt(13, Cells::u64)?,
            at_most: cells.int(23)? != 0,
            started_at: cells.time(14)?,
            first_byte_ms: cells.opt(15, Cells::u64)?,
            total_ms: cells.u64(16)?,
            status: u16::try_from(cells.int(17)?).map_err(|_| cells.wrong(17, "a status"))?,
            ended: Ended::parse(cells.str(18)?).ok_or_else(|| cells.wrong(18, "an end"))?,
            request: content(19)?,
            response: content(21)?,
            asked: overmind_core::budget::Asked::default(),
            ending: overmind_core::relay::Ending::default(),
        })
    })
}
