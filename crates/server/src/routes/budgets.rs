//! `/api/budgets`, `/api/costs`, `/api/halt`: limits, costs, and the emergency stop.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
#[cfg(feature = "openapi")]
use overmind_api::CostsQuery;
use overmind_api::{
    Budget, BudgetPut, Cost, CostBy, DEFAULT_LIMIT, HaltMode, HaltRequest, HaltState, MAX_LIMIT,
    microusd_of,
};
use overmind_core::budget::{CostQuery, Period, period};
use overmind_engine::{Halting, LimitView, NewLimit};

use crate::cx::Cx;
use crate::extract::{Body, BudgetPath, Query, Who};
use crate::fault::Fault;
use crate::page::json;

fn shown(view: LimitView) -> Budget {
    let budget = Budget::new(view.limit, view.window, view.start, view.resets_at);
    Budget { scope_name: view.name, ..budget }
}

/// Lists all limits, the widest scope first, with the used, reserved and remaining amounts.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/budgets", tag = "budgets",
    responses((status = 200, body = [Budget]))
))]
pub(crate) async fn budget_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    let limits: Vec<Budget> =
        cx.engine.budget_list(&caller).await?.into_iter().map(shown).collect();
    Ok(json(&limits))
}

/// Sets the limit of a scope, period and kind (hard or soft), or replaces it.
///
/// Earlier spending in the window counts. Runs that wait for this limit try again.
#[cfg_attr(feature = "openapi", utoipa::path(
    put, path = "/api/budgets", tag = "budgets", request_body = BudgetPut,
    responses(
        (status = 200, body = Budget),
        (status = 404, description = "The agent, resource or run of the scope is not there"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn budget_put(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<BudgetPut>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let BudgetPut { scope, per, usd, tokens, soft, unknown_price } = body.value;
    let engine = cx.engine.clone();
    let work = async move {
        let new = NewLimit {
            scope: engine.budget_scope(&caller, &scope).await?,
            period: per.into(),
            soft,
            microusd: usd.and_then(|usd| microusd_of(usd).ok()),
            tokens,
            unknown_price: unknown_price.map(Into::into).unwrap_or_default(),
        };
        engine.budget_put(&caller, new).await
    };
    Ok(json(&shown(cx.detached(work).await?)))
}

/// Fetches one limit.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/budgets/{id}", tag = "budgets", params(("id" = String, Path)),
    responses((status = 200, body = Budget), (status = 404, description = "`Budget not found`"))
))]
pub(crate) async fn budget_fetch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    BudgetPath(id): BudgetPath,
) -> Result<Response, Fault> {
    Ok(json(&shown(cx.engine.budget_fetch(&caller, id).await?)))
}

/// Removes a limit; answers it as it stood. Costs stay. Runs that wait for it go on.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/budgets/{id}", tag = "budgets", params(("id" = String, Path)),
    responses((status = 200, body = Budget), (status = 404, description = "`Budget not found`"))
))]
pub(crate) async fn budget_remove(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    BudgetPath(id): BudgetPath,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    let gone = cx.detached(async move { engine.budget_remove(&caller, id).await }).await?;
    Ok(json(&shown(gone)))
}

/// Lists what was spent, by agent, model, run or day. Reads daily sums, never single calls.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/costs", tag = "budgets", params(CostsQuery),
    responses((status = 200, body = [Cost]), (status = 422, description = "A parameter is wrong"))
))]
pub(crate) async fn cost_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    mut query: Query,
) -> Result<Response, Fault> {
    let words: Vec<_> = CostBy::ALL.iter().map(|by| by.as_str()).collect();
    let by = query.take_parsed("by", &format!("one of {}", words.join(", ")), CostBy::parse)?;
    let day = "a day like 2026-11-22";
    let since = query.take_parsed("since", day, period::day_named)?;
    let until = query.take_parsed("until", day, period::day_named)?;
    let wanted = format!("from 1 to {MAX_LIMIT}");
    let limit = query.take_parsed("limit", &wanted, |text| {
        text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit))
    })?;
    query.finish()?;
    let now = cx.engine.now();
    let asked = CostQuery {
        by: by.unwrap_or(CostBy::Agent).into(),
        since: since.unwrap_or_else(|| period::day_of(Period::Month.start(now))),
        until: until.unwrap_or_else(|| period::day_of(now)),
        limit: limit.unwrap_or(DEFAULT_LIMIT),
    };
    let rows = cx.engine.costs(&caller, asked).await?;
    Ok(json(&rows.into_iter().map(Cost::from).collect::<Vec<_>>()))
}

/// Tells whether an emergency stop is in force.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/halt", tag = "budgets",
    responses((status = 200, body = HaltState))
))]
pub(crate) async fn halt_fetch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    Ok(json(&HaltState::new(cx.engine.halt_fetch(&caller)?, 0)))
}

/// Stops everything that costs: no model call begins and no queued run starts, over restarts,
/// until `POST /api/resume`.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/halt", tag = "budgets", request_body = HaltRequest,
    responses((status = 200, body = HaltState), (status = 422, description = "A field is wrong"))
))]
pub(crate) async fn halt(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<HaltRequest>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let HaltRequest { reason, mode } = body.value;
    let how = match mode {
        HaltMode::Pause => Halting::Pause,
        HaltMode::Kill => Halting::Kill,
    };
    let engine = cx.engine.clone();
    let work = async move { engine.halt(&caller, reason, how).await };
    let (halt, canceled) = cx.detached(work).await?;
    Ok(json(&HaltState::new(Some(halt), canceled)))
}

/// Ends an emergency stop. Runs that wait for it go on.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/resume", tag = "budgets",
    responses((status = 200, body = HaltState), (status = 409, description = "Nothing is halted"))
))]
pub(crate) async fn resume(State(cx): State<Arc<Cx>>, Who(caller): Who) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    cx.detached(async move { engine.resume(&caller).await }).await?;
    Ok(json(&HaltState::new(None, 0)))
}
