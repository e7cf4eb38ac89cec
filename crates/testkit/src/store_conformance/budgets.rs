//! Stored budgets.

use overmind_core::budget::{
    Amount, Ask, BudgetChange, CAP, CallRecord, Content, CostBy, CostQuery, CostRow, Ended,
    KeyName, Limit, Period, Reservation, Scope, Source, Spend, UnknownPrice, WindowKey, Windowed,
    period,
};
use overmind_core::ids::{AgentId, CallId, ColonyId, LimitId, SessionId};
use overmind_core::model::Usage;
use overmind_core::store::{Change, Commit, Page, Store, StoreError};
use overmind_core::time::Timestamp;

use super::{World, at};

fn commit(changes: impl IntoIterator<Item = BudgetChange>) -> Commit {
    let changes = changes.into_iter().map(|change| Change::Budget(Box::new(change))).collect();
    Commit { changes, ..Commit::default() }
}

fn limit(scope: Scope, period: Period) -> Limit {
    Limit {
        id: LimitId::of(scope, period, false),
        scope,
        period,
        soft: false,
        microusd: Some(5_000_000),
        tokens: None,
        unknown_price: UnknownPrice::Allow,
        source: Source::Definition,
        extra: None,
        by: "ann".into(),
        created_at: at(1),
        updated_at: at(2),
    }
}

fn ask(call: CallId, session: Option<SessionId>) -> Ask {
    Ask {
        call,
        session,
        agent: Some(AgentId::from_u128(7)),
        colony: ColonyId::DEFAULT,
        caller: "engine".into(),
        provider: "openai".into(),
        model: "gpt-5".into(),
        worst: Spend::new(300, 40),
        at: at(5),
    }
}

fn moved(key: WindowKey, spent: u64, reserved: u64, freed: u64) -> BudgetChange {
    let amount = |microusd: u64| Amount { microusd, tokens: microusd / 10 };
    BudgetChange::WindowMove(Windowed {
        spent: amount(spent),
        reserved: amount(reserved),
        freed: amount(freed),
        ..Windowed::still(key)
    })
}

pub(super) async fn limits_windows_and_reservations_round_trip(store: &dyn Store, w: &World) {
    assert_eq!(store.budget_snapshot().await.unwrap(), Default::default());
    let scope = Scope::Agent(AgentId::from_u128(7));
    let limit = limit(scope, Period::Day);
    let key = WindowKey::at(scope, Period::Day, at(5));
    let call = CallId::mint(&w.ids);
    let reservation = Reservation { ask: ask(call, None), scopes: vec![Scope::Swarm, scope] };
    let all = [
        BudgetChange::LimitPut(limit.clone()),
        moved(key, 0, 300, 0),
        BudgetChange::ReservationPut(reservation.clone()),
        // A scope without a limit is not read.
        moved(WindowKey::at(Scope::Swarm, Period::Day, at(5)), 1, 0, 0),
    ];
    store.commit(commit(all)).await.unwrap();
    let found = store.budget_snapshot().await.unwrap();
    assert_eq!(found.limits, std::slice::from_ref(&limit));
    assert_eq!(found.open, std::slice::from_ref(&reservation));
    let [(found_key, window)] = found.windows[..] else { panic!("{:?}", found.windows) };
    assert_eq!((found_key, window.reserved.microusd, window.reserved.tokens), (key, 300, 30));

    let twice = store.commit(commit([BudgetChange::ReservationPut(reservation)])).await;
    assert!(matches!(twice, Err(StoreError::Conflict { .. })), "{twice:?}");

    let end = [moved(key, 120, 0, 300), BudgetChange::ReservationDelete(call)];
    store.commit(commit(end)).await.unwrap();
    let found = store.budget_snapshot().await.unwrap();
    assert_eq!(found.open, []);
    let window = found.windows[0].1;
    assert_eq!((window.spent.microusd, window.reserved.microusd), (120, 0));

    let gone = [
        BudgetChange::LimitDelete(limit.id),
        BudgetChange::WindowsDelete { scope, period: Period::Day },
    ];
    store.commit(commit(gone)).await.unwrap();
    assert_eq!(store.budget_snapshot().await.unwrap(), Default::default());
}

pub(super) async fn windows_stop_at_the_cap_and_at_nothing(store: &dyn Store, _: &World) {
    let key = WindowKey::at(Scope::Swarm, Period::Total, at(5));
    let moves = [
        BudgetChange::LimitPut(limit(Scope::Swarm, Period::Total)),
        moved(key, u64::MAX, 100, 0),
        moved(key, u64::MAX, 0, 700),
    ];
    store.commit(commit(moves)).await.unwrap();
    let window = store.budget_snapshot().await.unwrap().windows[0];
    assert_eq!(window.0, key, "the beginning of time is a window's beginning like any other");
    assert_eq!((window.1.spent.microusd, window.1.reserved.microusd), (CAP, 0));
}

fn record(w: &World, session: Option<SessionId>, model: &str, at: Timestamp) -> CallRecord {
    let ask = Ask { at, model: model.into(), ..ask(CallId::mint(&w.ids), session) };
    CallRecord {
        format: "responses".into(),
        usage: Usage {
            input_tokens: 100,
            output_tokens: 20,
            cached_input_tokens: 60,
            cache_write_tokens: 10,
            reasoning_tokens: 5,
        },
        microusd: Some(1_000),
        first_byte_ms: Some(12),
        total_ms: 40,
        status: 200,
        request: Some(Content { digest: "d".into(), text: "{}".into() }),
        ..CallRecord::of(&ask, Ended::Completed)
    }
}

const DAY: i64 = 86_400_000_000;

pub(super) async fn calls_are_added_up_by_day(store: &dyn Store, w: &World) {
    let (parent, mut child) = (w.session(), w.session());
    child.parent = Some(parent.id);
    let rows = [parent.clone(), child.clone()];
    let changes = rows.into_iter().map(|row| Change::SessionInsert(Box::new(row))).collect();
    store.commit(Commit { changes, ..Commit::default() }).await.unwrap();
    let (first, second) = (Timestamp::from_micros(10 * DAY + 5), Timestamp::from_micros(11 * DAY));
    let calls = [
        record(w, Some(parent.id), "gpt-5", first),
        CallRecord { at_most: true, ..record(w, Some(child.id), "gpt-5", second) },
        CallRecord { microusd: None, ..record(w, None, "qwen", second) },
    ];
    let inserts = calls.iter().cloned().map(Box::new).map(BudgetChange::CallInsert);
    store.commit(commit(inserts)).await.unwrap();
    let twice = store.commit(commit([BudgetChange::CallInsert(Box::new(calls[0].clone()))])).await;
    assert!(matches!(twice, Err(StoreError::Conflict { .. })), "{twice:?}");

    let costs = async |by: CostBy, since: i32, until: i32| {
        let query = CostQuery { by, since, until, limit: 10 };
        let rows = store.costs(query).await.unwrap();
        rows.into_iter()
            .map(|row| (row.key, row.calls, row.microusd, row.unpriced))
            .collect::<Vec<_>>()
    };
    let day = |n: i32| period::day_name(n);
    assert_eq!(costs(CostBy::Day, 0, 20).await, [(day(11), 2, 1_000, 1), (day(10), 1, 1_000, 0)]);
    assert_eq!(costs(CostBy::Day, 11, 11).await.len(), 1);
    assert_eq!(
        costs(CostBy::Model, 0, 20).await,
        [("gpt-5".to_owned(), 2, 2_000, 0), ("qwen".to_owned(), 1, 0, 1)]
    );
    let agent = AgentId::from_u128(7).to_string();
    assert_eq!(costs(CostBy::Agent, 0, 20).await, [(agent, 3, 2_000, 1)]);
    assert_eq!(costs(CostBy::Session, 0, 20).await.len(), 3, "calls without a session are one row");
    // Only what no session has called is its caller's.
    let caller = calls[2].caller.clone();
    assert_eq!(costs(CostBy::Key, 0, 20).await, [(caller.clone(), 1, 0, 1)]);
    let of = vec![child.id, SessionId::from_u128(99)];
    let rows = store.session_costs(of).await.unwrap();
    let (key, usage) = (child.id.to_string(), calls[1].usage);
    let row = CostRow { key, calls: 1, microusd: 1_000, unpriced: 0, at_most: 1, usage };
    assert_eq!(rows, [row]);
    let query = CostQuery { by: CostBy::Day, since: 0, until: 20, limit: 10 };
    let at_most: Vec<_> =
        store.costs(query).await.unwrap().into_iter().map(|row| row.at_most).collect();
    assert_eq!(at_most, [1, 0], "the newest day first");
    assert_eq!(store.session_costs(vec![parent.id, child.id]).await.unwrap().len(), 2);

    let sum = async |scope: Scope, since: i32| {
        let found = store.budget_baseline(scope, since).await.unwrap();
        (found.spent.microusd, found.spent.tokens, found.unpriced)
    };
    assert_eq!(sum(Scope::Swarm, i32::MIN).await, (2_000, 360, 1));
    assert_eq!(sum(Scope::Colony(ColonyId::DEFAULT), 11).await, (1_000, 240, 1));
    assert_eq!(sum(Scope::Agent(AgentId::from_u128(8)), 0).await, (0, 0, 0));
    let key = KeyName::of(&caller).unwrap();
    assert_eq!(sum(Scope::Key(key), 0).await, (0, 120, 1));
    assert_eq!(sum(Scope::Session(parent.id), 0).await, (2_000, 240, 0), "its child's, too");
    assert_eq!(sum(Scope::Session(child.id), 0).await, (1_000, 120, 0));

    let page = |after| Page { limit: 2, after };
    let all = store.call_list(None, page(None)).await.unwrap();
    assert_eq!(all, [calls[2].clone(), calls[1].clone()]);
    let rest = store.call_list(None, page(Some(all[1].call))).await.unwrap();
    assert_eq!(rest, [calls[0].clone()]);
    assert_eq!(store.call_list(Some(child.id), page(None)).await.unwrap(), [calls[1].clone()]);
}

pub(super) async fn retention_takes_calls_along_and_leaves_the_sums(store: &dyn Store, w: &World) {
    let mut row = w.session();
    row.status = overmind_core::row::SessionStatus::Succeeded;
    row.finished_at = Some(at(9));
    let insert = Change::SessionInsert(Box::new(row.clone()));
    store.commit(Commit { changes: vec![insert], ..Commit::default() }).await.unwrap();
    let call = record(w, Some(row.id), "gpt-5", at(5));
    store.commit(commit([BudgetChange::CallInsert(Box::new(call))])).await.unwrap();
    store.prune(at(10), at(11)).await.unwrap();
    assert_eq!(store.call_list(None, Page { limit: 5, after: None }).await.unwrap(), []);
    let query = CostQuery { by: CostBy::Session, since: 0, until: 20, limit: 5 };
    let query = CostQuery { until: i32::MAX, ..query };
    assert_eq!(store.costs(query).await.unwrap()[0].key, row.id.to_string());
}

pub(super) async fn secrets_never_come_to_rest_in_calls(store: &dyn Store, w: &World) {
    let secret = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789";
    let text = format!("the key is {secret}");
    let call = CallRecord {
        caller: text.clone(),
        request: Some(Content { digest: "d".into(), text: text.clone() }),
        response: Some(Content { digest: "e".into(), text }),
        asked: overmind_core::budget::Asked::default(),
        ..record(w, None, "gpt-5", at(5))
    };
    store.commit(commit([BudgetChange::CallInsert(Box::new(call))])).await.unwrap();
    let found = store.call_list(None, Page { limit: 5, after: None }).await.unwrap();
    assert!(!format!("{found:?}").contains(secret), "{found:?}");
}
