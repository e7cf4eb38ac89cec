//! Administration of limits, costs and the emergency stop.

use std::collections::BTreeSet;

use overmind_core::budget::{
    BudgetChange, CallRecord, CostQuery, CostRow, Halt, Limit, Period, Scope, Source, Unit,
    UnknownPrice, Window,
};
use overmind_core::ids::{CallId, ColonyId, InboxId, LimitId, SessionId};
use overmind_core::inbox::{InboxCursor, InboxFilter, InboxItem, InboxState};
use overmind_core::record::Name;
use overmind_core::record::kind::{KINDS, find};
use overmind_core::row::{ApiKey, Role, SessionStatus};
use overmind_core::store::{Change, Commit, NewEvent, Page, StreamId};
use overmind_core::time::Timestamp;
use serde_json::json;
use tokio::sync::oneshot;

use super::writer::{Op, Then};
use super::{Budgets, HALT, ended};
use crate::Engine;
use crate::caller::{Caller, Part};
use crate::cortex::Order;
use crate::error::EngineError;
use crate::mesh::ask::is_unwaited;
use crate::quests::starts_runs;
use crate::request::SessionBudget;

/// Maximum number of items of the inbox that are checked after a limit was raised.
const LOOKED_AT: u32 = 1000;
/// Keys that are read at once.
const KEYS: u32 = 100;
/// Longest reason of an emergency stop, in bytes.
const REASON_BYTES: usize = 2_000;
/// Sessions that are read at once when all are ended.
const SCAN: u32 = 500;

/// The group of inbox items that wait for the same limit.
pub(crate) fn group_of(limit: LimitId) -> String {
    format!("raise:{limit}")
}

/// The group of sessions that wait for the end of an emergency stop.
const HALTED: &str = "halted";

/// A limit to set; it replaces an existing one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLimit {
    pub scope: Scope,
    pub period: Period,
    pub soft: bool,
    pub microusd: Option<u64>,
    pub tokens: Option<u64>,
    pub unknown_price: UnknownPrice,
}

/// A limit with the state of its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitView {
    pub limit: Limit,
    pub window: Window,
    /// The start of the window.
    pub start: Timestamp,
    /// The end of the window; `None` if it never ends.
    pub resets_at: Option<Timestamp>,
    /// A readable name of the scope, if that contains an id: `agent:coder`, `session:fix`,
    /// `fleet/web`.
    pub name: Option<String>,
}

/// The amount by which a limit is increased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raise {
    pub microusd: u64,
    pub tokens: u64,
    /// Permanently; otherwise until the window ends.
    pub for_good: bool,
}

/// The treatment of running sessions by an emergency stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halting {
    /// They continue until their next model call, wait there, and continue when the stop is over.
    Pause,
    /// They are cancelled.
    Kill,
}

impl Budgets {
    fn view(&self, limit: &Limit, now: Timestamp) -> LimitView {
        let start = limit.period.start(now);
        LimitView {
            window: self.ledger().window(limit.scope, limit.period, now),
            start,
            resets_at: limit.period.end(start),
            limit: limit.clone(),
            name: None,
        }
    }

    async fn named_view(&self, limit: &Limit, now: Timestamp) -> LimitView {
        LimitView { name: self.name_of(limit.scope).await, ..self.view(limit, now) }
    }

    /// The limits that apply to a session's calls, the widest scope first.
    pub(crate) async fn limits_of(
        &self,
        row: &overmind_core::row::SessionRow,
    ) -> Result<Vec<LimitView>, overmind_core::store::StoreError> {
        let mut scopes = vec![Scope::Swarm, Scope::Colony(row.colony), Scope::Agent(row.agent)];
        scopes.extend(self.line(row.id).await?.iter().copied());
        let mut limits: Vec<Limit> = {
            let ledger = self.ledger();
            ledger.limits().filter(|limit| scopes.contains(&limit.scope)).cloned().collect()
        };
        limits.sort_by_key(|limit| (limit.scope, limit.period, limit.soft));
        let now = self.0.clock.now();
        Ok(limits.iter().map(|limit| self.view(limit, now)).collect())
    }

    /// Sets a limit, which is in force and on disk when this returns.
    pub(super) async fn put_limit(
        &self,
        limit: Limit,
        kind: &'static str,
        by: &str,
        also: Vec<Change>,
    ) -> Result<(), EngineError> {
        let _turn = self.0.limits.lock().await;
        let (reply, answer) = oneshot::channel();
        {
            let mut ledger = self.ledger();
            let before = ledger.find(limit.scope, limit.period, limit.soft).cloned();
            let event = NewEvent {
                stream: StreamId::System,
                kind,
                ts: limit.updated_at,
                payload: json!({"by": by, "limit": limit, "before": before}),
            };
            let (moved, fresh) = ledger.put(limit.clone(), limit.updated_at);
            let (limit, before) = (Box::new(limit), before.map(Box::new));
            let op = Op::Put { limit, before, moved, fresh, event, also, reply };
            // It fails only if the writer has ended; then the answer never comes.
            let _ = self.0.queue.send(op);
        }
        done(answer).await
    }

    async fn alone(&self, commit: Commit, then: Then) -> Result<(), EngineError> {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.queue.send(Op::Alone { commit, then, reply });
        done(answer).await
    }

    pub(super) async fn remove_limit(&self, id: LimitId, by: &str) -> Result<Limit, EngineError> {
        let _turn = self.0.limits.lock().await;
        let (limit, last) = {
            let ledger = self.ledger();
            let limit = ledger.limit(id).cloned();
            let limit = limit.ok_or_else(|| EngineError::not_found("Budget"))?;
            let other = ledger.find(limit.scope, limit.period, !limit.soft).is_some();
            (limit, !other)
        };
        let (scope, period) = (limit.scope, limit.period);
        let mut changes = vec![BudgetChange::LimitDelete(id)];
        if last {
            changes.push(BudgetChange::WindowsDelete { scope, period });
        }
        let event = NewEvent {
            stream: StreamId::System,
            kind: "budget.limit_removed",
            ts: self.0.clock.now(),
            payload: json!({"by": by, "limit": limit}),
        };
        let changes = changes.into_iter().map(|change| Change::Budget(Box::new(change))).collect();
        let commit = Commit { guards: Vec::new(), events: vec![event], changes };
        self.alone(commit, Then::Remove(id)).await?;
        Ok(limit)
    }

    /// Limits the spending of a session that is about to be made.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if there is no amount or it is too large.
    pub(crate) async fn bind(
        &self,
        session: SessionId,
        budget: SessionBudget,
        by: &str,
    ) -> Result<(), EngineError> {
        let (scope, now) = (Scope::Session(session), self.0.clock.now());
        let limit = Limit {
            id: LimitId::of(scope, Period::Total, false),
            scope,
            period: Period::Total,
            soft: false,
            microusd: budget.microusd,
            tokens: budget.tokens,
            unknown_price: UnknownPrice::default(),
            source: Source::Definition,
            extra: None,
            by: by.to_owned(),
            created_at: now,
            updated_at: now,
        };
        limit.check().map_err(|err| EngineError::invalid("budget", err.to_string()))?;
        self.put_limit(limit, "budget.limit_set", by, Vec::new()).await
    }

    /// Removes every limit of a session that does not exist.
    pub(crate) async fn unbind(&self, session: SessionId, by: &str) -> Result<(), EngineError> {
        self.remove_limits(Scope::Session(session), by).await
    }

    async fn remove_limits(&self, scope: Scope, by: &str) -> Result<(), EngineError> {
        let ids: Vec<LimitId> = {
            let ledger = self.ledger();
            ledger.limits().filter(|limit| limit.scope == scope).map(|limit| limit.id).collect()
        };
        for id in ids {
            self.remove_limit(id, by).await?;
        }
        Ok(())
    }

    /// Removes the limits of sessions that do not exist: they were removed, or a crash came before
    /// they were made.
    pub(crate) async fn unbind_lost(&self) -> Result<(), EngineError> {
        let of_session = |scope| if let Scope::Session(id) = scope { Some(id) } else { None };
        for session in self.limited(of_session) {
            if self.0.store.session_fetch(session).await?.is_none() {
                self.unbind(session, Part::Reconcilers.name()).await?;
            }
        }
        Ok(())
    }

    /// The objects with limits, for scopes that `pick` selects.
    fn limited<T: Ord>(&self, pick: impl Fn(Scope) -> Option<T>) -> BTreeSet<T> {
        self.ledger().limits().filter_map(|limit| pick(limit.scope)).collect()
    }

    /// Removes the limits of records that no longer exist. Returns their number.
    pub(crate) async fn unbind_records(&self) -> Result<u64, EngineError> {
        let of_record = |scope| if let Scope::Owner(id) = scope { Some(id) } else { None };
        let mut removed = 0;
        for owner in self.limited(of_record) {
            if self.0.records.record_by_id(owner).await?.is_none() {
                self.remove_limits(Scope::Owner(owner), Part::Reconcilers.name()).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    pub(crate) fn halted(&self) -> Option<Halt> {
        self.ledger().halt().cloned()
    }
}

async fn done(
    answer: oneshot::Receiver<Result<(), overmind_core::store::StoreError>>,
) -> Result<(), EngineError> {
    answer.await.unwrap_or_else(|_| Err(ended())).map_err(EngineError::from)
}

impl Engine {
    /// The budgets, which reserve and settle calls.
    pub fn budgets(&self) -> &Budgets {
        &self.cortex.budgets
    }

    /// The engine's current time.
    pub fn now(&self) -> Timestamp {
        self.cortex.clock.now()
    }

    /// All limits, the widest scope first, with the states of their windows.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn budget_list(&self, by: &Caller) -> Result<Vec<LimitView>, EngineError> {
        by.require(Role::Viewer)?;
        let mut limits: Vec<Limit> = self.budgets().ledger().limits().cloned().collect();
        limits.sort_by_key(|limit| (limit.scope, limit.period, limit.soft));
        let now = self.cortex.clock.now();
        let mut views = Vec::with_capacity(limits.len());
        for limit in &limits {
            views.push(self.budgets().named_view(limit, now).await);
        }
        Ok(views)
    }

    /// One limit.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if there is no such limit.
    pub async fn budget_fetch(&self, by: &Caller, id: LimitId) -> Result<LimitView, EngineError> {
        by.require(Role::Viewer)?;
        let limit = self.budgets().ledger().limit(id).cloned();
        let limit = limit.ok_or_else(|| EngineError::not_found("Budget"))?;
        Ok(self.budgets().named_view(&limit, self.cortex.clock.now()).await)
    }

    /// Parses a scope: in the form of [`Scope`], as `agent:` with an agent's name, or as a kind and
    /// the name of an existing record (`fleet/web`). A key must exist and not be revoked.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] for an invalid scope, [`EngineError::NotFound`] for a missing
    /// object.
    pub async fn budget_scope(&self, by: &Caller, text: &str) -> Result<Scope, EngineError> {
        by.require(Role::Viewer)?;
        if let Some(agent) = text.strip_prefix("agent:") {
            return Ok(Scope::Agent(self.find_agent(by, agent).await?.id));
        }
        if let Some((kind, name)) = text.split_once('/')
            && !kind.contains(':')
        {
            return self.owner_scope(by, kind, name).await;
        }
        if let Some(name) = text.strip_prefix("colony:")
            && name.parse::<ColonyId>().is_err()
        {
            return Ok(Scope::Colony(self.colony_named(by, name)?));
        }
        let scope: Scope =
            text.parse().map_err(|err| EngineError::invalid("scope", format!("{err}")))?;
        match scope {
            Scope::Session(id) => {
                let found = self.cortex.store.session_fetch(id).await?;
                found.map(|_| scope).ok_or_else(|| EngineError::not_found("Run"))
            }
            Scope::Colony(id) if !self.cortex.colonies.exists(id) => {
                Err(EngineError::not_found("Colony"))
            }
            Scope::Key(name) if !self.is_key(name.as_str()).await? => {
                Err(EngineError::not_found("API key"))
            }
            Scope::Owner(id) => {
                let found = self.records.record_by_id(id).await?;
                found.map(|_| scope).ok_or_else(|| EngineError::not_found("Resource"))
            }
            Scope::Swarm | Scope::Colony(_) | Scope::Agent(_) | Scope::Key(_) => Ok(scope),
        }
    }

    /// The scope of a record whose runs a limit applies to.
    async fn owner_scope(&self, by: &Caller, kind: &str, name: &str) -> Result<Scope, EngineError> {
        let info =
            find(KINDS, kind).map_err(|err| EngineError::invalid("scope", err.to_string()))?;
        if !starts_runs(info.name) {
            let message = format!(
                "no run exists for a {}, so a limit of one counts nothing: name a fleet, lineage, quest, \
                 ritual or sentinel",
                info.name
            );
            return Err(EngineError::invalid("scope", message));
        }
        let name =
            Name::parse(name).map_err(|err| EngineError::invalid("scope", err.to_string()))?;
        let record = self
            .record_fetch(&Caller::system(Part::Reconcilers).within(by.colony), info, &name)
            .await?;
        Ok(Scope::Owner(record.id))
    }

    /// Whether this is a caller's name: the holder of the data directory, or of an API key.
    async fn is_key(&self, name: &str) -> Result<bool, EngineError> {
        let mut after = None;
        loop {
            let keys = self.cortex.store.api_key_list(Page { limit: KEYS, after }).await?;
            let is_it = |key: &ApiKey| key.name == name && key.revoked_at.is_none();
            if name == Caller::admin().name || keys.iter().any(is_it) {
                return Ok(true);
            }
            if keys.len() < KEYS as usize {
                return Ok(false);
            }
            after = keys.last().map(|key| key.id);
        }
    }

    /// Sets or replaces a limit. Earlier spending in its window counts. Sessions that wait for it
    /// try again.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if there is no amount or it is too large.
    pub async fn budget_put(&self, by: &Caller, new: NewLimit) -> Result<LimitView, EngineError> {
        by.require(Role::Admin)?;
        let now = self.cortex.clock.now();
        let id = LimitId::of(new.scope, new.period, new.soft);
        let before = self.budgets().ledger().limit(id).cloned();
        let limit = Limit {
            id,
            scope: new.scope,
            period: new.period,
            soft: new.soft,
            microusd: new.microusd,
            tokens: new.tokens,
            unknown_price: new.unknown_price,
            source: Source::Set,
            extra: None,
            by: by.name.clone(),
            created_at: before.map_or(now, |before| before.created_at),
            updated_at: now,
        };
        limit.check().map_err(|err| EngineError::invalid("", err.to_string()))?;
        self.budgets().put_limit(limit, "budget.limit_set", &by.name, Vec::new()).await?;
        self.wake(&group_of(id), "the limit was changed", by).await;
        self.budget_fetch(&Caller::admin(), id).await
    }

    /// Removes a limit. The costs keep what was spent. Sessions that wait for it continue.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if there is no such limit.
    pub async fn budget_remove(&self, by: &Caller, id: LimitId) -> Result<LimitView, EngineError> {
        by.require(Role::Admin)?;
        let view = self.budget_fetch(by, id).await?;
        self.budgets().remove_limit(id, &by.name).await?;
        self.wake(&group_of(id), "the limit was removed", by).await;
        Ok(view)
    }

    /// Costs by agent, model, session or day, from daily sums.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn costs(&self, by: &Caller, query: CostQuery) -> Result<Vec<CostRow>, EngineError> {
        by.require(Role::Viewer)?;
        self.budgets().flush().await;
        Ok(self.cortex.store.costs(query).await?)
    }

    /// Model calls that have ended, newest first.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn call_list(
        &self,
        by: &Caller,
        session: Option<SessionId>,
        page: Page<CallId>,
    ) -> Result<Vec<CallRecord>, EngineError> {
        match session {
            Some(session) => self.reads(by, Role::Viewer, session).await?,
            None => by.require(Role::Viewer)?,
        }
        self.budgets().flush().await;
        Ok(self.cortex.store.call_list(session, page).await?)
    }

    // --- the emergency stop

    /// The emergency stop in force.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub fn halt_fetch(&self, by: &Caller) -> Result<Option<Halt>, EngineError> {
        by.require(Role::Viewer)?;
        Ok(self.budgets().halted())
    }

    /// Stops every model call that has not begun, at once and over restarts, until
    /// [`Engine::resume`]. No queued session starts meanwhile. Returns how many sessions were
    /// cancelled.
    ///
    /// # Errors
    ///
    /// Returns the store's error; calls are refused anyway then, until this process ends.
    pub async fn halt(
        &self,
        by: &Caller,
        reason: String,
        how: Halting,
    ) -> Result<(Halt, u64), EngineError> {
        by.require(Role::Operator)?;
        if reason.len() > REASON_BYTES {
            let text = format!("reason must have at most {REASON_BYTES} bytes");
            return Err(EngineError::invalid("reason", text));
        }
        let since = self.cortex.clock.now();
        let halt = match self.budgets().halted() {
            // The first stop stays in force; a second one may still end running sessions.
            Some(known) => known,
            None => {
                let halt = Halt { by: by.name.clone(), reason, since };
                self.budgets().ledger().set_halt(Some(halt.clone()));
                self.budgets().free();
                let event = NewEvent {
                    stream: StreamId::System,
                    kind: "budget.halted",
                    ts: since,
                    payload: json!({
                        "by": halt.by, "reason": halt.reason, "kill": how == Halting::Kill,
                    }),
                };
                let value = serde_json::to_value(&halt).unwrap_or_default();
                let change = Change::SettingPut { key: HALT.to_owned(), value, at: since };
                let commit =
                    Commit { guards: Vec::new(), events: vec![event], changes: vec![change] };
                self.budgets().alone(commit, Then::Nothing).await?;
                halt
            }
        };
        let ended = match how {
            Halting::Pause => 0,
            Halting::Kill => self.cancel_all(by).await?,
        };
        Ok((halt, ended))
    }

    async fn cancel_all(&self, by: &Caller) -> Result<u64, EngineError> {
        let mut ended = 0;
        for status in SessionStatus::ALL.into_iter().filter(|status| !status.is_terminal()) {
            let mut after = None;
            loop {
                let page = self.cortex.store.session_scan(status, after, SCAN).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.id);
                let all = page.iter().map(|row| {
                    self.cortex.order(row.id, Order::Cancel { by: by.name.clone(), reason: None })
                });
                let done = futures_util::future::join_all(all).await;
                ended += done.into_iter().filter(Result::is_ok).count() as u64;
            }
        }
        Ok(ended)
    }

    /// Ends an emergency stop. Sessions that wait for it continue.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if no emergency stop is active.
    pub async fn resume(&self, by: &Caller) -> Result<Halt, EngineError> {
        by.require(Role::Operator)?;
        let none = || EngineError::conflict("nothing is halted");
        let halt = self.budgets().halted().ok_or_else(none)?;
        let at = self.cortex.clock.now();
        let event = NewEvent {
            stream: StreamId::System,
            kind: "budget.resumed",
            ts: at,
            payload: json!({"by": by.name, "since": halt.since}),
        };
        let change = Change::SettingDelete { key: HALT.to_owned() };
        let commit = Commit { guards: Vec::new(), events: vec![event], changes: vec![change] };
        self.budgets().alone(commit, Then::Resume).await?;
        self.cortex.go_on();
        self.wake(HALTED, "resumed", by).await;
        Ok(halt)
    }

    // --- raises

    /// Answers an inbox item that asks for an increase of a limit.
    pub(crate) async fn raise(
        &self,
        by: &Caller,
        item: InboxItem,
        raise: Raise,
        reason: Option<String>,
    ) -> Result<InboxItem, EngineError> {
        // Increases are handled one at a time: an item that is answered during this wait causes
        // none.
        let _turn = self.raises.lock().await;
        let item = self.find_item(item.id).await?;
        if item.state != InboxState::Open {
            return Err(crate::inbox::closed(&item));
        }
        let id = item.detail("limit_id").and_then(|id| id.parse::<LimitId>().ok());
        let id = id.ok_or_else(|| EngineError::conflict("it names no limit"))?;
        let known = self.budgets().ledger().limit(id).cloned();
        let Some(limit) = known else {
            return Err(EngineError::conflict("the limit no longer exists; deny this"));
        };
        if limit.scope.of_admins() && !by.is_admin() {
            let message = format!(
                "only an admin may raise a limit of the swarm or of a colony (this is one of {}): \
                 deny it, or ask an admin to approve it",
                limit.scope
            );
            return Err(EngineError::Forbidden { message });
        }
        let bounded = (limit.microusd.is_some() && raise.microusd > 0)
            || (limit.tokens.is_some() && raise.tokens > 0);
        if !bounded {
            let unit = item
                .details
                .get("unit")
                .and_then(|unit| serde_json::from_value::<Unit>(unit.clone()).ok());
            let (field, what) = match unit {
                Some(Unit::Tokens) => ("tokens", "tokens"),
                Some(Unit::Microusd) | None => ("microusd", "microusd or tokens"),
            };
            let text = format!("say by how much the limit is raised: {what}");
            return Err(EngineError::invalid(field, text));
        }
        let now = self.cortex.clock.now();
        let raised = limit.raised(raise.microusd, raise.tokens, raise.for_good, &by.name, now);
        let mut also = Vec::new();
        let waits = item.session.filter(|_| !is_unwaited(&item));
        if waits.is_none() {
            also.push(closing(item.clone(), InboxState::Approved, by, reason.clone(), now));
        }
        self.budgets().put_limit(raised, "budget.raised", &by.name, also).await?;
        if let Some(session) = item.session.filter(|_| waits.is_none()) {
            self.forget_question(session, item.id);
            self.continue_failed(by, session).await;
        }
        self.cortex.inbox_moved();
        let words = reason.unwrap_or_else(|| "raised".to_owned());
        self.wake(&group_of(id), &words, by).await;
        self.find_item(item.id).await
    }

    /// Denies an increase: the waiting session ends; a warning is closed.
    pub(crate) async fn raise_deny(
        &self,
        by: &Caller,
        item: InboxItem,
        reason: Option<String>,
    ) -> Result<InboxItem, EngineError> {
        let _turn = self.raises.lock().await;
        let item = self.find_item(item.id).await?;
        if item.state != InboxState::Open {
            return Err(crate::inbox::closed(&item));
        }
        let id = item.id;
        match item.session.filter(|_| !is_unwaited(&item)) {
            Some(session) => {
                let message = overmind_core::inbox::DENY.to_owned();
                let order = Order::Answer { item: Some(id), message, by: by.name.clone() };
                self.cortex.order(session, order).await?;
            }
            None => {
                let now = self.cortex.clock.now();
                let event = NewEvent {
                    stream: StreamId::System,
                    kind: "inbox.answered",
                    ts: now,
                    payload: json!({
                        "inbox_id": id, "by": by.name, "approve": false, "reason": reason,
                    }),
                };
                let session = item.session;
                let changes = vec![closing(item, InboxState::Denied, by, reason, now)];
                let commit = Commit { guards: Vec::new(), events: vec![event], changes };
                self.budgets().alone(commit, Then::Nothing).await?;
                if let Some(session) = session {
                    self.forget_question(session, id);
                }
                self.cortex.inbox_moved();
            }
        }
        self.find_item(id).await
    }

    /// Continues the sessions that wait for the same thing.
    async fn wake(&self, group: &str, words: &str, by: &Caller) {
        let filter = InboxFilter {
            state: Some(InboxState::Open),
            group: Some(group.to_owned()),
            ..InboxFilter::default()
        };
        let mut after: Option<InboxCursor> = None;
        loop {
            let page = Page { limit: LOOKED_AT, after };
            let items = match self.cortex.store.inbox_list(filter.clone(), page).await {
                Ok(items) => items,
                Err(err) => {
                    tracing::error!(error = %err, group, "sessions that wait are not found");
                    return;
                }
            };
            let Some(last) = items.last() else { return };
            after = Some(last.cursor());
            self.let_go(&items, words, by).await;
            let waiting = items.iter().filter(|item| !is_unwaited(item));
            let waiting = waiting.filter_map(|item| Some((item.session?, item.id)));
            let all = waiting.map(|(session, item): (SessionId, InboxId)| {
                let (message, by) = (words.to_owned(), by.name.clone());
                self.cortex.order(session, Order::Answer { item: Some(item), message, by })
            });
            // An item that was just answered is not needed.
            let _ = futures_util::future::join_all(all).await;
        }
    }
}

impl Engine {
    /// Closes requests for which no session waits, because they are already met.
    async fn let_go(&self, items: &[InboxItem], words: &str, by: &Caller) {
        let asked: Vec<&InboxItem> = items.iter().filter(|item| is_unwaited(item)).collect();
        if asked.is_empty() {
            return;
        }
        let now = self.cortex.clock.now();
        let events = asked.iter().map(|item| NewEvent {
            stream: StreamId::System,
            kind: "inbox.answered",
            ts: now,
            payload: json!({
                "inbox_id": item.id, "by": by.name, "approve": true, "reason": words,
            }),
        });
        let close = |item: &InboxItem| {
            closing(item.clone(), InboxState::Approved, by, Some(words.to_owned()), now)
        };
        let (events, changes) = (events.collect(), asked.iter().map(|item| close(item)).collect());
        let commit = Commit { guards: Vec::new(), events, changes };
        if let Err(err) = self.budgets().alone(commit, Then::Nothing).await {
            tracing::error!(error = %err, "budget requests that were met stay open");
            return;
        }
        for item in asked {
            if let Some(session) = item.session {
                self.forget_question(session, item.id);
                self.continue_failed(by, session).await;
            }
        }
        self.cortex.inbox_moved();
    }
}

/// A warning, closed.
fn closing(
    item: InboxItem,
    state: InboxState,
    by: &Caller,
    answer: Option<String>,
    now: Timestamp,
) -> Change {
    let (answered_at, answered_by) = (Some(now), Some(by.name.clone()));
    Change::InboxPut(Box::new(InboxItem { state, answered_at, answered_by, answer, ..item }))
}
