//! Budgets through the engine: reserved on disk before a call is sent, settled after it, recovered
//! after a crash, and the reaction of sessions to a refusal.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use overmind_core::agent::AgentBudget;
use overmind_core::budget::{
    Ask, CallRecord, CostBy, CostQuery, Ended, Period, Price, PriceRow, Prices, Quote, Refusal,
    Scope, Spend, UnknownPrice,
};
use overmind_core::ids::{ColonyId, LimitId, SessionId};
use overmind_core::inbox::{InboxItem, InboxKind, InboxState};
use overmind_core::model::{ModelFailure, ModelReply, Usage};
use overmind_core::row::{Role, SessionStatus};
use overmind_core::store::{EventQuery, Page, StreamId};
use overmind_core::time::{Clock, Timestamp};
use overmind_engine::request::{InboxAnswer, InboxQuery, SessionBudget, SessionDraft};
use overmind_engine::{BudgetError, Caller, EngineError, Halting, NewLimit, Raise, Rights, Ticket};
use overmind_testkit::clock::ManualClock;
use overmind_testkit::ports::{FakeModels, calls, says};
use serde_json::json;
use tempfile::TempDir;

use crate::world::{World, session_draft};

/// A dollar for a million tokens, in and out; models called `odd` have no price, those called `free`
/// cost nothing.
#[derive(Debug)]
struct Flat;

const FLAT: Price =
    Price { input: 1_000_000, cached_input: 1_000_000, output: 1_000_000, ..Price::FREE };

impl Prices for Flat {
    fn quote(&self, model: &str) -> Quote {
        let price = self.price("fake", model);
        Quote { provider: "fake".into(), model: model.into(), price }
    }

    fn price(&self, _provider: &str, model: &str) -> Option<Price> {
        let price = if model.starts_with("free") { Price::FREE } else { FLAT };
        (!model.starts_with("odd")).then_some(price)
    }

    fn table(&self) -> Vec<PriceRow> {
        Vec::new()
    }
}

struct Bank {
    world: World,
    clock: Arc<ManualClock>,
}

impl Bank {
    async fn new(models: Arc<FakeModels>) -> Self {
        let dir = Arc::new(TempDir::new().expect("a directory"));
        Self::at(dir, Arc::default(), models).await
    }

    async fn at(dir: Arc<TempDir>, clock: Arc<ManualClock>, models: Arc<FakeModels>) -> Self {
        let time = Arc::clone(&clock) as Arc<dyn Clock>;
        let world = World::priced(dir, models, time, Arc::new(Flat)).await;
        Self { world, clock }
    }

    /// Another engine over the same directory, after this one ended in good order or not.
    async fn restart(self, models: Arc<FakeModels>) -> Self {
        self.world.engine.drain(Duration::ZERO).await;
        let (dir, clock) = (Arc::clone(&self.world.dir), Arc::clone(&self.clock));
        drop(self);
        Self::at(dir, clock, models).await
    }

    async fn limit(&self, scope: Scope, period: Period, microusd: u64) -> LimitId {
        let new = NewLimit {
            scope,
            period,
            soft: false,
            microusd: Some(microusd),
            tokens: None,
            unknown_price: UnknownPrice::Deny,
        };
        self.world.engine.budget_put(&self.world.by, new).await.expect("a limit").limit.id
    }

    /// The spent and the reserved amount in a limit's window.
    async fn stands(&self, id: LimitId) -> (u64, u64) {
        let view = self.world.engine.budget_fetch(&self.world.by, id).await.expect("it is there");
        (view.window.spent.microusd, view.window.reserved.microusd)
    }

    fn ask(&self, worst: Spend) -> Ask {
        Ask {
            call: self.world.engine.budgets().call_id(),
            session: None,
            agent: None,
            colony: ColonyId::DEFAULT,
            caller: "test".into(),
            provider: "fake".into(),
            model: "m".into(),
            worst,
            at: self.clock.now(),
        }
    }

    async fn reserve(&self, worst: Spend) -> Result<Ticket, BudgetError> {
        self.world.engine.budgets().reserve(self.ask(worst)).await
    }

    async fn settle(&self, ticket: Ticket, microusd: u64) {
        let mut record = CallRecord::of(ticket.ask(), Ended::Completed);
        record.usage = Usage { input_tokens: microusd, ..Usage::default() };
        let spend = Spend::new(microusd, microusd);
        self.world.engine.budgets().settle(ticket, spend, record).await.expect("it is written");
    }

    /// Costs of this month in all, and calls.
    async fn costs(&self) -> (u64, u64) {
        let query = CostQuery { by: CostBy::Day, since: 0, until: i32::MAX, limit: 1000 };
        let rows = self.world.engine.costs(&self.world.by, query).await.expect("costs");
        rows.iter().fold((0, 0), |(sum, calls), row| (sum + row.microusd, calls + row.calls))
    }

    /// Waits until the last settlements are on disk.
    async fn until_costs(&self, wanted: (u64, u64)) {
        let wait = async {
            while self.costs().await != wanted {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(waited.is_ok(), "{:?} is not {wanted:?}", self.costs().await);
    }

    async fn items(&self, state: Option<InboxState>) -> Vec<InboxItem> {
        let query = InboxQuery { state, ..InboxQuery::default() };
        let page = Page { limit: 1000, after: None };
        self.world.engine.inbox_list(&self.world.by, query, page).await.expect("a list")
    }

    async fn system_kinds(&self) -> Vec<String> {
        let stream = Some(StreamId::System);
        let query = EventQuery { stream, after: 0, kinds: &[], limit: 10_000 };
        let events = self.world.store.events(query).await.expect("a log");
        events.into_iter().map(|event| event.kind.into()).collect()
    }
}

fn refused(result: Result<Ticket, BudgetError>) -> Refusal {
    match result {
        Err(BudgetError::Refused(refusal)) => *refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_calls_never_exceed_a_limit_together() {
    let bank = Bank::new(FakeModels::new([])).await;
    let id = bank.limit(Scope::Swarm, Period::Day, 1_000).await;
    let all = join_all((0..200).map(|_| bank.reserve(Spend::new(30, 30)))).await;
    let (tickets, refusals): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!((tickets.len(), refusals.len()), (33, 167));
    assert_eq!(bank.stands(id).await, (0, 990));
    let settled = tickets.into_iter().map(|ticket| bank.settle(ticket.unwrap(), 10));
    join_all(settled).await;
    assert_eq!(bank.stands(id).await, (330, 0));
    assert_eq!(bank.costs().await, (330, 33));
    // The refusals are recorded, and not once for each.
    let kinds = bank.system_kinds().await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "budget.refused").count(), 1);
    assert_eq!(kinds.iter().filter(|kind| *kind == "budget.settled").count(), 33);
    bank.world.check(&[]).await;
}

#[tokio::test]
async fn a_reservation_is_on_disk_before_its_ticket_and_a_restart_counts_it_in_full() {
    let bank = Bank::new(FakeModels::new([])).await;
    let id = bank.limit(Scope::Swarm, Period::Month, 1_000).await;
    let ticket = bank.reserve(Spend::new(400, 40)).await.unwrap();
    let open = bank.world.store.budget_snapshot().await.unwrap().open;
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].ask.call, ticket.call());
    // The state after a crash: the outcome of the call is unknown.
    std::mem::forget(ticket);
    let bank = bank.restart(FakeModels::new([])).await;
    assert_eq!(bank.stands(id).await, (400, 0));
    let refusal = refused(bank.reserve(Spend::new(601, 1)).await);
    assert!(matches!(refusal, Refusal::Over { used: 400, reserved: 0, asked: 601, .. }));
    // Written behind the reservation that follows it in the queue.
    let ticket = bank.reserve(Spend::new(600, 1)).await.unwrap();
    let calls = bank.world.store.call_list(None, Page { limit: 9, after: None }).await.unwrap();
    assert_eq!((calls.len(), calls[0].ended, calls[0].microusd), (1, Ended::Unknown, Some(400)));
    bank.settle(ticket, 600).await;
    assert_eq!(bank.costs().await, (1_000, 2));
    bank.world.check(&[]).await;
}

#[tokio::test]
async fn a_dropped_ticket_counts_in_full_and_a_released_one_not_at_all() {
    let bank = Bank::new(FakeModels::new([])).await;
    let id = bank.limit(Scope::Swarm, Period::Total, 1_000).await;
    drop(bank.reserve(Spend::new(100, 1)).await.unwrap());
    assert_eq!(bank.stands(id).await, (100, 0));
    let ticket = bank.reserve(Spend::new(200, 1)).await.unwrap();
    let record = CallRecord::of(ticket.ask(), Ended::Failed);
    bank.world.engine.budgets().release(ticket, record).await.unwrap();
    assert_eq!(bank.stands(id).await, (100, 0));
    assert_eq!(bank.costs().await, (100, 2));
    // A caller that does not wait for the answer has sent nothing.
    let mut waiting = Box::pin(bank.reserve(Spend::new(300, 1)));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    assert_eq!(bank.stands(id).await, (100, 300));
    drop(waiting);
    let end = bank.reserve(Spend::new(1, 1)).await.unwrap();
    bank.settle(end, 1).await;
    let given_back = async {
        while bank.stands(id).await != (101, 0) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), given_back).await.expect("it is given back");
    bank.world.check(&[]).await;
}

#[tokio::test]
async fn a_new_day_starts_at_midnight_and_late_settlements_belong_to_the_old_day() {
    let bank = Bank::new(FakeModels::new([])).await;
    let id = bank.limit(Scope::Swarm, Period::Day, 100).await;
    // A second before midnight.
    bank.clock.advance(Duration::from_secs(86_399));
    let late = bank.reserve(Spend::new(100, 1)).await.unwrap();
    let refusal = refused(bank.reserve(Spend::new(1, 1)).await);
    assert_eq!(refusal.retry_after(bank.clock.now()), Some(2));
    bank.clock.advance(Duration::from_secs(1));
    let today = bank.reserve(Spend::new(90, 1)).await.unwrap();
    bank.settle(late, 100).await;
    assert_eq!(bank.stands(id).await, (0, 90));
    bank.settle(today, 50).await;
    let query = CostQuery { by: CostBy::Day, since: 0, until: i32::MAX, limit: 9 };
    let days = bank.world.engine.costs(&bank.world.by, query).await.unwrap();
    let days: Vec<_> = days.into_iter().map(|day| (day.key, day.microusd)).collect();
    assert_eq!(days, [("2026-01-02".to_owned(), 50), ("2026-01-01".to_owned(), 100)]);
    // A new limit includes earlier spending.
    let month = bank.limit(Scope::Swarm, Period::Month, 1_000).await;
    assert_eq!(bank.stands(month).await, (150, 0));
}

#[tokio::test]
async fn an_agents_own_limit_is_created_and_removed_with_it() {
    let bank = Bank::new(FakeModels::new([])).await;
    let budget = |microusd| AgentBudget {
        microusd: Some(microusd),
        tokens: None,
        per: Period::Day,
        soft: false,
        unknown_price: UnknownPrice::Deny,
    };
    let agent = bank.world.agent("m", |draft| draft.budget = Some(budget(5_000_000))).await;
    let limits = bank.world.engine.budget_list(&bank.world.by).await.unwrap();
    assert_eq!(limits.len(), 1);
    assert_eq!(limits[0].limit.scope.to_string(), format!("agent:{agent}"));
    assert_eq!(limits[0].limit.microusd, Some(5_000_000));
    let patch = |budget| overmind_engine::request::AgentPatch {
        budget: Some(budget),
        ..Default::default()
    };
    let engine = &bank.world.engine;
    engine.agent_patch(&bank.world.by, &agent, patch(Some(budget(7)))).await.unwrap();
    assert_eq!(engine.budget_list(&bank.world.by).await.unwrap()[0].limit.microusd, Some(7));
    engine.agent_patch(&bank.world.by, &agent, patch(None)).await.unwrap();
    assert!(engine.budget_list(&bank.world.by).await.unwrap().is_empty());
}

/// A run of a new agent, and the item of the inbox that it waits with.
async fn waiting(bank: &Bank, microusd: u64) -> (SessionId, LimitId, InboxItem) {
    let agent = bank.world.agent("m", |_| ()).await;
    let scope = Scope::Agent(agent.parse().unwrap());
    let id = bank.limit(scope, Period::Day, microusd).await;
    let run = bank.world.run(&agent, "x").await;
    let row = bank.world.until(run, &[SessionStatus::AwaitingInput]).await;
    assert_eq!(row.model_calls, 0, "no model was asked");
    let items = bank.items(Some(InboxState::Open)).await;
    let item = items.into_iter().find(|item| item.session == Some(run)).unwrap();
    (run, id, item)
}

#[tokio::test]
async fn a_session_over_its_budget_requests_more_and_continues_after_the_grant() {
    let bank = Bank::new(FakeModels::new([says("done")])).await;
    let (run, id, item) = waiting(&bank, 5).await;
    assert_eq!(item.kind, InboxKind::Raise);
    assert_eq!(item.detail("limit_id"), Some(id.to_string().as_str()));
    assert!(item.title.contains("exhausted"), "{}", item.title);
    assert_eq!(bank.world.models.requests.lock().unwrap().len(), 0);
    let (engine, by) = (&bank.world.engine, &bank.world.by);
    let nothing = engine.inbox_answer(by, item.id, InboxAnswer::Approve { reason: None }).await;
    assert!(matches!(nothing, Err(EngineError::Invalid { .. })), "{nothing:?}");
    // A limit of an admin: an operator raises it for its window, and no other caller at all.
    for (role, for_good) in [(Role::Runs, false), (Role::Operator, true)] {
        let lesser = Caller::new("ci", Rights::Role(role));
        let raise = Raise { microusd: 5_000_000, tokens: 0, for_good };
        let answer = InboxAnswer::Raise { raise, reason: None };
        let refused = engine.inbox_answer(&lesser, item.id, answer).await;
        assert!(matches!(refused, Err(EngineError::Forbidden { .. })), "{refused:?}");
    }
    let raise = Raise { microusd: 5_000_000, tokens: 0, for_good: false };
    let answer = InboxAnswer::Raise { raise, reason: None };
    // Two at once: one counts.
    let both = join_all([
        engine.inbox_answer(by, item.id, answer.clone()),
        engine.inbox_answer(by, item.id, answer),
    ])
    .await;
    assert_eq!(both.iter().filter(|done| done.is_ok()).count(), 1, "{both:?}");
    let row = bank.world.ended(run).await;
    assert_eq!(row.final_answer.as_deref(), Some("done"));
    assert_eq!(engine.inbox_fetch(by, item.id).await.unwrap().state, InboxState::Approved);
    let view = engine.budget_fetch(by, id).await.unwrap();
    assert_eq!(view.limit.microusd_in(view.start), Some(5_000_005));
    assert_eq!((view.limit.microusd, view.window.spent.microusd), (Some(5), 7));
    // A request without a bound on its output got one.
    let sent = bank.world.models.requests.lock().unwrap()[0].max_output_tokens;
    assert_eq!(sent, Some(overmind_core::budget::estimate::OUTPUT));
    bank.world.check(&[run]).await;
}

#[tokio::test]
async fn only_admins_raise_limits_of_the_swarm_or_a_colony() {
    for scope in [Scope::Swarm, Scope::Colony(ColonyId::DEFAULT)] {
        let bank = Bank::new(FakeModels::new([says("done")])).await;
        let id = bank.limit(scope, Period::Total, 5).await;
        let agent = bank.world.agent("m", |_| ()).await;
        let (first, second) =
            (bank.world.run(&agent, "x").await, bank.world.run(&agent, "y").await);
        for run in [first, second] {
            bank.world.until(run, &[SessionStatus::AwaitingInput]).await;
        }
        let items = bank.items(Some(InboxState::Open)).await;
        let of = |run| items.iter().find(|item| item.session == Some(run)).unwrap();
        assert!(of(first).detail("prompt").unwrap().contains("ask an admin to raise it"));
        let engine = &bank.world.engine;
        let op = Caller::new("op", Rights::Role(Role::Operator));
        let raise = Raise { microusd: 5_000_000, tokens: 0, for_good: false };
        let yes = InboxAnswer::Raise { raise, reason: None };
        match engine.inbox_answer(&op, of(first).id, yes.clone()).await {
            Err(EngineError::Forbidden { message }) => assert!(
                message.starts_with("only an admin may raise a limit of the swarm or of a colony"),
                "{message}"
            ),
            other => panic!("{other:?}"),
        }
        let view = engine.budget_fetch(&bank.world.by, id).await.unwrap();
        assert_eq!(view.limit.microusd_in(view.start), Some(5));
        // A denial needs no such rights.
        engine.inbox_answer(&op, of(second).id, InboxAnswer::Deny { reason: None }).await.unwrap();
        engine.inbox_answer(&bank.world.by, of(first).id, yes).await.unwrap();
        assert_eq!(bank.world.ended(first).await.final_answer.as_deref(), Some("done"));
    }
    // The limit of an agent is an operator's too, as its definition is.
    let bank = Bank::new(FakeModels::new([says("done")])).await;
    let (run, _, item) = waiting(&bank, 5).await;
    let op = Caller::new("op", Rights::Role(Role::Operator));
    let raise = Raise { microusd: 5_000_000, tokens: 0, for_good: false };
    let yes = InboxAnswer::Raise { raise, reason: None };
    bank.world.engine.inbox_answer(&op, item.id, yes).await.unwrap();
    bank.world.ended(run).await;
}

#[tokio::test]
async fn a_session_waits_for_reservations_of_others_without_a_request_and_can_be_canceled() {
    let bank = Bank::new(FakeModels::new([says("done")])).await;
    let agent = bank.world.agent("m", |_| ()).await;
    bank.limit(Scope::Swarm, Period::Day, 10_000_000).await;
    // A call in progress may cost nearly all of it.
    let under_way = bank.reserve(Spend::new(9_999_000, 1)).await.unwrap();
    let (run, canceled) = (bank.world.run(&agent, "x").await, bank.world.run(&agent, "y").await);
    for run in [run, canceled] {
        while !bank.world.kinds(run).await.contains(&"model.infer.started".to_owned()) {
            tokio::task::yield_now().await;
        }
        let row = bank.world.until(run, &[SessionStatus::Running]).await;
        assert_eq!(row.model_calls, 0, "no model was asked");
    }
    assert_eq!(bank.items(Some(InboxState::Open)).await, [], "nobody can do anything about it");
    let (engine, by) = (&bank.world.engine, &bank.world.by);
    engine.session_cancel(by, canceled).await.unwrap();
    assert_eq!(bank.world.ended(canceled).await.status, SessionStatus::Canceled);
    // It cost little: the rest is enough.
    bank.settle(under_way, 100).await;
    let row = bank.world.ended(run).await;
    assert_eq!((row.status, row.model_calls), (SessionStatus::Succeeded, 1));
    bank.world.check(&[run, canceled]).await;

    // Spent amounts are final.
    let spent = bank.reserve(Spend::new(9_999_000, 1)).await.unwrap();
    bank.settle(spent, 9_999_000).await;
    let run = bank.world.run(&agent, "z").await;
    bank.world.until(run, &[SessionStatus::AwaitingInput]).await;
}

#[tokio::test]
async fn a_denied_budget_request_ends_the_session_with_its_own_error_code() {
    let bank = Bank::new(FakeModels::new([])).await;
    let (run, _, item) = waiting(&bank, 5).await;
    let deny = InboxAnswer::Deny { reason: None };
    let item = bank.world.engine.inbox_answer(&bank.world.by, item.id, deny).await.unwrap();
    assert_eq!(item.state, InboxState::Denied);
    let row = bank.world.ended(run).await;
    assert_eq!(row.status, SessionStatus::Failed);
    assert_eq!(row.error.unwrap()["code"], "budget_exhausted");
    bank.world.check(&[run]).await;
}

#[tokio::test]
async fn a_larger_limit_wakes_all_waiting_sessions() {
    let bank = Bank::new(FakeModels::new([])).await;
    let swarm = bank.limit(Scope::Swarm, Period::Day, 0).await;
    let agent = bank.world.agent("m", |_| ()).await;
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(bank.world.run(&agent, "x").await);
    }
    for run in &runs {
        bank.world.until(*run, &[SessionStatus::AwaitingInput]).await;
    }
    assert_eq!(bank.limit(Scope::Swarm, Period::Day, 10_000_000).await, swarm);
    for run in &runs {
        assert_eq!(bank.world.ended(*run).await.status, SessionStatus::Succeeded);
    }
    assert_eq!(bank.stands(swarm).await, (35, 0));
    bank.until_costs((35, 5)).await;
    bank.world.check(&runs).await;
}

#[tokio::test]
async fn a_model_without_a_price_is_refused_if_dollars_are_limited() {
    let bank = Bank::new(FakeModels::new([])).await;
    let agent = bank.world.agent("odd", |_| ()).await;
    let scope = Scope::Agent(agent.parse().unwrap());
    bank.limit(scope, Period::Day, 10_000_000).await;
    let run = bank.world.run(&agent, "x").await;
    let row = bank.world.until(run, &[SessionStatus::AwaitingInput]).await;
    assert!(row.prompt.unwrap().contains("price of model `odd` is not known"));
    let new = NewLimit {
        scope,
        period: Period::Day,
        soft: false,
        microusd: Some(10_000_000),
        tokens: None,
        unknown_price: UnknownPrice::Allow,
    };
    bank.world.engine.budget_put(&bank.world.by, new).await.unwrap();
    bank.world.engine.session_input(&bank.world.by, run, "again".into()).await.unwrap();
    assert_eq!(bank.world.ended(run).await.status, SessionStatus::Succeeded);
    bank.world.check(&[run]).await;
}

#[tokio::test]
async fn costs_of_a_child_count_in_its_parents_budget() {
    let asks = calls(&[("ask_user", json!({"message": "?"}))]);
    let bank = Bank::new(FakeModels::new([asks])).await;
    let agent = bank.world.agent("m", |_| ()).await;
    let parent = bank.world.run(&agent, "x").await;
    bank.world.until(parent, &[SessionStatus::AwaitingInput]).await;
    let id = bank.limit(Scope::Session(parent), Period::Total, 50_000_000).await;
    assert_eq!(bank.stands(id).await, (7, 0), "what it spent before there was a limit");
    let draft = SessionDraft { parent: Some(parent.to_string()), ..session_draft(&agent, "x") };
    let child = bank.world.engine.session_create(&bank.world.by, draft).await.unwrap().value.id;
    bank.world.ended(child).await;
    assert_eq!(bank.stands(id).await, (14, 0));
    let query = CostQuery { by: CostBy::Session, since: 0, until: i32::MAX, limit: 9 };
    bank.until_costs((14, 2)).await;
    assert_eq!(bank.world.engine.costs(&bank.world.by, query).await.unwrap().len(), 2);
    bank.world.check(&[parent, child]).await;
}

#[tokio::test]
async fn a_sessions_own_budget_applies_from_its_first_call_and_is_removed_with_it() {
    let bank = Bank::new(FakeModels::new([])).await;
    let (engine, by) = (&bank.world.engine, &bank.world.by);
    let agent = bank.world.agent("m", |_| ()).await;
    let draft = |microusd| SessionDraft {
        name: Some("bounded".into()),
        budget: Some(SessionBudget { microusd, tokens: None }),
        ..session_draft(&agent, "x")
    };
    let bare = engine.session_create(by, draft(None)).await;
    assert!(matches!(bare, Err(EngineError::Invalid { .. })), "{bare:?}");
    let run = engine.session_create(by, draft(Some(1))).await.unwrap().value.id;
    let row = bank.world.until(run, &[SessionStatus::AwaitingInput]).await;
    assert!(row.prompt.unwrap().contains("budget"), "it is refused its first call");
    let limits = async || bank.world.engine.budget_list(&bank.world.by).await.unwrap();
    assert_eq!(limits().await.len(), 1);
    // A session whose name is taken leaves no budget.
    let taken = engine.session_create(by, draft(Some(1))).await;
    assert!(matches!(taken, Err(EngineError::Conflict { .. })), "{taken:?}");
    assert_eq!(limits().await.len(), 1);
    let raised = bank.limit(Scope::Session(run), Period::Total, 50_000_000).await;
    assert_eq!(bank.world.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(bank.stands(raised).await, (7, 0));
    bank.world.check(&[run]).await;
    engine.session_remove(by, run, false).await.unwrap();
    assert_eq!(limits().await, []);
}

#[tokio::test]
async fn a_budget_without_its_session_is_removed_after_a_restart() {
    let bank = Bank::new(FakeModels::new([])).await;
    let scope = Scope::Session(SessionId::from_u128(9));
    let lost = NewLimit {
        scope,
        period: Period::Total,
        soft: false,
        microusd: Some(1),
        tokens: None,
        unknown_price: UnknownPrice::Deny,
    };
    bank.world.engine.budget_put(&bank.world.by, lost).await.unwrap();
    let bank = bank.restart(FakeModels::new([])).await;
    assert_eq!(bank.world.engine.budget_list(&bank.world.by).await.unwrap(), []);
}

#[tokio::test]
async fn an_emergency_stop_survives_a_restart_and_sessions_continue_after_it() {
    let bank = Bank::new(FakeModels::new([])).await;
    let agent = bank.world.agent("m", |_| ()).await;
    let before = bank.world.run(&agent, "x").await;
    bank.world.ended(before).await;
    let by = bank.world.by.clone();
    let halted = bank.world.engine.halt(&by, "a loop".into(), Halting::Pause).await.unwrap();
    assert_eq!((halted.0.reason.as_str(), halted.1), ("a loop", 0));
    let refusal = refused(bank.reserve(Spend::NONE).await);
    assert!(refusal.message().contains("a loop"), "{}", refusal.message());
    let run = bank.world.run(&agent, "x").await;
    let bank = bank.restart(FakeModels::new([])).await;
    assert_eq!(refused(bank.reserve(Spend::NONE).await).code(), "halted");
    let row = bank.world.engine.session_fetch(&by, run).await.unwrap();
    assert_eq!(row.status, SessionStatus::Queued, "nothing starts meanwhile");
    bank.world.engine.resume(&by).await.unwrap();
    assert_eq!(bank.world.ended(run).await.status, SessionStatus::Succeeded);
    let again = bank.world.engine.resume(&by).await;
    assert!(matches!(again, Err(EngineError::Conflict { .. })), "{again:?}");
    let kinds = bank.system_kinds().await;
    assert!(kinds.iter().any(|kind| kind == "budget.halted"), "{kinds:?}");
    bank.world.check(&[run]).await;
}

#[tokio::test]
async fn a_session_at_work_waits_for_the_end_of_an_emergency_stop() {
    let asks = calls(&[("ask_user", json!({"message": "?"}))]);
    let bank = Bank::new(FakeModels::new([asks])).await;
    let (engine, by) = (&bank.world.engine, &bank.world.by);
    let agent = bank.world.agent("m", |_| ()).await;
    let run = bank.world.run(&agent, "x").await;
    bank.world.until(run, &[SessionStatus::AwaitingInput]).await;
    engine.halt(by, String::new(), Halting::Pause).await.unwrap();
    engine.session_input(by, run, "yes".into()).await.unwrap();
    let row = bank.world.until(run, &[SessionStatus::AwaitingInput]).await;
    assert!(row.prompt.unwrap().contains("halted by admin"));
    let open = bank.items(Some(InboxState::Open)).await;
    assert_eq!(open[0].kind, InboxKind::Question);
    engine.resume(by).await.unwrap();
    assert_eq!(bank.world.ended(run).await.status, SessionStatus::Succeeded);
    let kinds = bank.world.kinds(run).await;
    assert!(kinds.contains(&"model.infer.started".to_owned()), "{kinds:?}");
    bank.world.check(&[run]).await;
}

#[tokio::test]
async fn streamed_output_of_a_canceled_call_is_counted() {
    let bank = Bank::new(FakeModels::hanging("four words of it ")).await;
    let id = bank.limit(Scope::Swarm, Period::Day, 10_000_000).await;
    let agent = bank.world.agent("m", |draft| draft.max_output_tokens = Some(1_000)).await;
    let run = bank.world.run(&agent, "x").await;
    let (engine, by) = (&bank.world.engine, &bank.world.by);
    // Its first words are in the log, so the engine has received them.
    let mut watch = engine.session_watch(run);
    let heard = async {
        while !bank.world.kinds(run).await.contains(&"model.output.delta".to_owned()) {
            watch.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), heard).await.unwrap();
    let (spent, reserved) = bank.stands(id).await;
    assert!(spent == 0 && reserved > 1_000, "{reserved}");
    engine.session_cancel(by, run).await.unwrap();
    let (spent, left) = bank.stands(id).await;
    // The bound on its input, and a token for each byte that came.
    assert_eq!((spent, left), (reserved - 1_000 + 17, 0));
    bank.until_costs((spent, 1)).await;
    bank.world.check(&[run]).await;
}

#[tokio::test]
async fn an_emergency_stop_can_end_all_runs() {
    let bank = Bank::new(FakeModels::new([])).await;
    let swarm = bank.limit(Scope::Swarm, Period::Day, 0).await;
    let agent = bank.world.agent("m", |_| ()).await;
    let run = bank.world.run(&agent, "x").await;
    bank.world.until(run, &[SessionStatus::AwaitingInput]).await;
    let (_, ended) =
        bank.world.engine.halt(&bank.world.by, String::new(), Halting::Kill).await.unwrap();
    assert_eq!(ended, 1);
    assert_eq!(bank.world.ended(run).await.status, SessionStatus::Canceled);
    assert_eq!(bank.stands(swarm).await, (0, 0));
}

#[tokio::test]
async fn a_soft_limit_warns_once_in_the_inbox_and_can_be_raised_there() {
    let bank = Bank::new(FakeModels::new([])).await;
    let soft = NewLimit {
        scope: Scope::Swarm,
        period: Period::Day,
        soft: true,
        microusd: Some(100),
        tokens: None,
        unknown_price: UnknownPrice::Deny,
    };
    let id = bank.world.engine.budget_put(&bank.world.by, soft).await.unwrap().limit.id;
    for _ in 0..4 {
        let ticket = bank.reserve(Spend::new(60, 1)).await.unwrap();
        bank.settle(ticket, 60).await;
    }
    let items = bank.items(Some(InboxState::Open)).await;
    assert_eq!(items.len(), 1, "{items:?}");
    assert_eq!((items[0].kind, items[0].session), (InboxKind::Raise, None));
    let raise = Raise { microusd: 400, tokens: 0, for_good: true };
    let answer = InboxAnswer::Raise { raise, reason: Some("fine".into()) };
    let item = bank.world.engine.inbox_answer(&bank.world.by, items[0].id, answer).await.unwrap();
    assert_eq!((item.state, item.answer.as_deref()), (InboxState::Approved, Some("fine")));
    let limit = bank.world.engine.budget_fetch(&bank.world.by, id).await.unwrap().limit;
    assert_eq!(limit.microusd, Some(500));
    // 240 of 500 are spent: the limit warns again when the rest is spent.
    for _ in 0..5 {
        let ticket = bank.reserve(Spend::new(60, 1)).await.unwrap();
        bank.settle(ticket, 60).await;
    }
    let items = bank.items(Some(InboxState::Open)).await;
    assert_eq!(items.len(), 1);
    let deny = InboxAnswer::Deny { reason: None };
    let item = bank.world.engine.inbox_answer(&bank.world.by, items[0].id, deny).await.unwrap();
    assert_eq!(item.state, InboxState::Denied);
    let kinds = bank.system_kinds().await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "budget.soft_limit").count(), 2);
    bank.world.check(&[]).await;
}

#[tokio::test]
async fn usage_above_a_reservation_is_recorded_and_reported() {
    let bank = Bank::new(FakeModels::new([])).await;
    let id = bank.limit(Scope::Swarm, Period::Day, 100).await;
    let ticket = bank.reserve(Spend::new(100, 100)).await.unwrap();
    bank.settle(ticket, 130).await;
    assert_eq!(bank.stands(id).await, (130, 0));
    let query = EventQuery {
        stream: Some(StreamId::System),
        after: 0,
        kinds: &["budget.settled"],
        limit: 9,
    };
    let events = bank.world.store.events(query).await.unwrap();
    assert_eq!(events[0].value()["above_reservation"], true);
    let _: Timestamp = events[0].ts;
}

/// A free reply.
fn free(reply: Result<ModelReply, ModelFailure>) -> Result<ModelReply, ModelFailure> {
    reply.map(|reply| ModelReply { cost_microusd: Some(0), ..reply })
}

#[tokio::test]
async fn settlements_of_unlimited_calls_are_batched_and_visible_to_readers() {
    let models = FakeModels::new([calls(&[("look", json!({}))]), says("done")].map(free));
    let bank = Bank::new(models).await;
    let agent = bank.world.agent("free", |_| ()).await;
    let run = bank.world.run(&agent, "look").await;
    bank.world.ended(run).await;
    let page = || Page { limit: 10, after: None };
    // The clock is stopped, so the collection period does not end.
    let written = bank.world.store.call_list(Some(run), page()).await.unwrap();
    assert_eq!(written.len(), 0, "no commit of their own was made for these");
    let listed = bank.world.engine.call_list(&bank.world.by, Some(run), page()).await.unwrap();
    assert_eq!(listed.len(), 2);
    assert_eq!(bank.world.store.call_list(Some(run), page()).await.unwrap(), listed);
}

#[tokio::test]
async fn batched_settlements_are_written_after_a_delay_or_at_shutdown() {
    let bank = Bank::new(FakeModels::new([says("a"), says("b")].map(free))).await;
    let agent = bank.world.agent("free", |_| ()).await;
    let page = || Page { limit: 10, after: None };
    let first = bank.world.run(&agent, "one").await;
    bank.world.ended(first).await;
    let wait = async {
        while bank.world.store.call_list(Some(first), page()).await.unwrap().is_empty() {
            bank.clock.advance(Duration::from_millis(10));
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("written in time");
    let second = bank.world.run(&agent, "two").await;
    bank.world.ended(second).await;
    let bank = bank.restart(FakeModels::new([])).await;
    assert_eq!(bank.world.store.call_list(Some(second), page()).await.unwrap().len(), 1);
}
