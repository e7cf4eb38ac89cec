//! `overmind budget`, `costs`, `halt`, `resume` and `prices`.

use std::collections::HashMap;

use futures_util::{StreamExt as _, stream};
use overmind_api::{
    Budget, BudgetPut, Cost, CostBy, CostsQuery, HaltMode, HaltRequest, HaltState, InboxRaise,
    LimitId, Period, UnknownPrice, usd_of,
};
use overmind_core::budget::{PriceRow, Prices as _};
use overmind_core::nearest::nearest;
use serde_json::{Value, json};

use crate::args_budget::{
    BudgetCommand, BudgetSetArgs, ByArg, CostsArgs, HaltArgs, PeriodArg, PricesArgs, RaiseArgs,
};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::ids;
use crate::output::table::{Table, Tone};
use crate::output::when;
use crate::remote::Remote;
use crate::show::{self, cell, dim, or_dash};

/// Names that are asked for at the same time.
const AT_ONCE: usize = 32;

/// # Errors
///
/// Returns an error if the command fails.
pub async fn run(cx: &Context, command: BudgetCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    match command {
        BudgetCommand::Set(args) => {
            let (budget, kept) = set(&remote, args).await?;
            if let Some(kept) = kept.filter(|_| cx.out.for_people()) {
                cx.out.note(&kept);
            }
            shown(cx, &[budget])?;
        }
        BudgetCommand::List => {
            shown(cx, &remote.client().budget_list().await?)?;
        }
        BudgetCommand::Rm { id } => {
            let all = remote.client().budget_list().await?;
            let id = found(&remote, &all, &id).await?.to_string();
            let gone = remote.client().budget_remove(&id).await?;
            if cx.out.for_people() {
                let scope = named(&gone);
                cx.out.note(&format!("removed: {} of {scope}", ids::short(&id)));
            } else {
                shown(cx, &[gone])?;
            }
        }
    }
    Ok(Exit::Done)
}

/// The scope of a limit. Names and parts of ids are a convenience of the command line.
async fn scope_of(remote: &Remote, given: &str) -> Result<String, Failure> {
    Ok(match given.split_once(':') {
        Some(("session" | "run", run)) => format!("session:{}", remote.find_run(run).await?),
        Some(("agent", agent)) => format!("agent:{}", remote.find_agent(agent).await?.id),
        Some(_) | None => given.to_owned(),
    })
}

/// Sets a limit. Returns it with a note about an amount that was kept.
async fn set(remote: &Remote, args: BudgetSetArgs) -> Result<(Budget, Option<String>), Failure> {
    let scope = scope_of(remote, &args.scope).await?;
    let per = match args.per {
        PeriodArg::Day => Period::Day,
        PeriodArg::Week => Period::Week,
        PeriodArg::Month => Period::Month,
        PeriodArg::Total => Period::Total,
    };
    let all = remote.client().budget_list().await?;
    let before = all.iter().find(|one| {
        (one.scope == scope || named(one) == scope) && one.per == per && one.soft == args.soft
    });
    let (put, kept) = merged(&args, scope, per, before)?;
    Ok((remote.client().budget_put(&put).await?, kept))
}

/// The limit that replaces `before`: an amount that is neither given nor removed stays, without what
/// was added for one window. Whether calls without a price are allowed stays with the dollars.
fn merged(
    args: &BudgetSetArgs,
    scope: String,
    per: Period,
    before: Option<&Budget>,
) -> Result<(BudgetPut, Option<String>), Failure> {
    let &BudgetSetArgs { usd, tokens, no_usd, no_tokens, soft, .. } = args;
    let old_usd = before.and_then(|one| Some(one.microusd?.saturating_sub(one.extra.microusd)));
    let old_tokens = before.and_then(|one| Some(one.tokens?.saturating_sub(one.extra.tokens)));
    let kept_usd = old_usd.filter(|_| usd.is_none() && !no_usd);
    let kept_tokens = old_tokens.filter(|_| tokens.is_none() && !no_tokens);
    let unknown_price = match before {
        _ if args.allow_unknown_price => Some(UnknownPrice::Allow),
        Some(before) if kept_usd.is_some() => Some(before.unknown_price),
        Some(_) | None => None,
    };
    let usd = usd.or(kept_usd.map(usd_of));
    let tokens = tokens.or(kept_tokens);
    if usd.is_none() && tokens.is_none() {
        let given = &args.scope;
        return Err(Failure::usage(format!("the limit of {given} would have no amount"))
            .hint(format!("give --usd or --tokens, or remove it: overmind budget rm {given}")));
    }
    let note = match (kept_usd, kept_tokens) {
        (None, None) => None,
        (Some(usd), _) => Some(format!("{} stays; --no-usd removes it", when::dollars(usd))),
        (None, Some(tokens)) => {
            let tokens = when::thousands(tokens);
            Some(format!("{tokens} tokens stay; --no-tokens removes them"))
        }
    };
    Ok((BudgetPut { scope, per, usd, tokens, soft, unknown_price }, note))
}

/// The limit that an argument names: by its id, a part of the id, or its scope as [`set`] accepts it.
async fn found(remote: &Remote, all: &[Budget], given: &str) -> Result<LimitId, Failure> {
    let scope = scope_of(remote, given).await.ok();
    let fits = |budget: &&Budget| {
        scope.as_ref() == Some(&budget.scope)
            || budget.scope == given
            || named(budget) == given
            || ids::matches(given, &budget.id.to_string())
    };
    let fitting: Vec<&Budget> = all.iter().filter(fits).collect();
    match fitting.as_slice() {
        [one] => Ok(one.id),
        [] => Err(ids::none("budget", given, "overmind budget list")),
        several => {
            let ids: Vec<String> = several
                .iter()
                .map(|budget| {
                    format!("{} (per {})", ids::short(&budget.id.to_string()), budget.per.as_str())
                })
                .collect();
            Err(Failure::usage(format!("`{given}` has {} budgets", several.len()))
                .hint(format!("give the id of one: {}", ids.join(", "))))
        }
    }
}

/// The scopes of the limits, as `budget list` prints it.
///
/// # Errors
///
/// Returns an error if they could not be listed.
pub async fn scopes(remote: &Remote) -> Result<Vec<String>, Failure> {
    Ok(remote.client().budget_list().await?.iter().map(|one| named(one).to_owned()).collect())
}

/// The scope of a limit, as people say it.
fn named(budget: &Budget) -> &str {
    budget.scope_name.as_deref().unwrap_or(&budget.scope)
}

fn shown(cx: &Context, budgets: &[Budget]) -> Result<(), Failure> {
    let for_people = cx.out.for_people();
    let scopes = budgets.iter().map(|one| if for_people { named(one) } else { &one.scope });
    let scopes: Vec<&str> = scopes.collect();
    let table = |wide: bool| {
        let mut columns = vec!["ID", "SCOPE", "PER", "KIND", "LIMIT", "USED", "RESERVED", "LEFT"];
        if wide {
            columns.extend(["RESETS", "BY", "UNKNOWN PRICE"]);
        }
        let mut table = Table::new(&columns);
        for (budget, scope) in budgets.iter().zip(&scopes) {
            let id = budget.id.to_string();
            let id = if wide { id } else { ids::short(&id).to_owned() };
            let empty = budget.left.microusd == Some(0) || budget.left.tokens == Some(0);
            let left = amounts(budget.left.microusd, budget.left.tokens);
            let mut row = vec![
                cell(id),
                cell(if wide { budget.scope.as_str() } else { *scope }),
                cell(budget.per.as_str()),
                dim(if budget.soft { "soft" } else { "hard" }),
                cell(amounts(budget.microusd, budget.tokens)),
                cell(bounded(budget, budget.used.microusd, budget.used.tokens)),
                dim(bounded(budget, budget.reserved.microusd, budget.reserved.tokens)),
                (left, if empty { Tone::Bad } else { Tone::Plain }),
            ];
            if wide {
                row.push(or_dash(budget.resets_at.map(|at| at.to_string())));
                row.push(cell(budget.by.clone()));
                row.push(dim(budget.unknown_price.as_str()));
            }
            table.row(row);
        }
        table
    };
    let empty = "there are no limits; set one: overmind budget set swarm --usd 50 --per month";
    show::list(&cx.out, budgets, |budget| budget.id.to_string(), table, empty)
}

/// The remaining part of the limited amount.
fn bounded(budget: &Budget, microusd: u64, tokens: u64) -> String {
    amounts(budget.microusd.map(|_| microusd), budget.tokens.map(|_| tokens))
}

fn amounts(microusd: Option<u64>, tokens: Option<u64>) -> String {
    let dollars = microusd.map(when::dollars);
    let tokens = tokens.map(|tokens| format!("{} tok", when::thousands(tokens)));
    dollars.into_iter().chain(tokens).collect::<Vec<_>>().join(", ")
}

/// # Errors
///
/// Returns an error if the costs could not be read.
pub async fn costs(cx: &Context, args: &CostsArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let by = match args.by {
        ByArg::Agent => CostBy::Agent,
        ByArg::Model => CostBy::Model,
        ByArg::Session => CostBy::Session,
        ByArg::Key => CostBy::Key,
        ByArg::Day => CostBy::Day,
    };
    let query = CostsQuery {
        by: Some(by),
        since: args.since.clone(),
        until: args.until.clone(),
        limit: Some(args.limit),
    };
    let costs = remote.client().costs(&query).await?;
    let ids = matches!(by, CostBy::Agent | CostBy::Session);
    let names = match ids && cx.out.for_people() {
        true => names(&remote, by, &costs).await,
        false => HashMap::new(),
    };
    let table = |wide: bool| {
        let head = match by {
            CostBy::Agent => "AGENT",
            CostBy::Model => "MODEL",
            CostBy::Session => "RUN",
            CostBy::Key => "KEY",
            CostBy::Day => "DAY",
        };
        let mut columns = vec![head, "COST", "CALLS", "INPUT", "OUTPUT"];
        if wide && ids {
            columns.push("ID");
        }
        if wide {
            columns.extend(["CACHED", "WRITTEN", "REASONING", "UNPRICED", "AT MOST"]);
        }
        let mut table = Table::new(&columns);
        for column in columns[1..].iter().filter(|column| **column != "ID") {
            table = table.right(column);
        }
        for cost in &costs {
            let Cost { key, calls, unpriced_calls, at_most_calls, .. } = cost;
            let name = names.get(key).unwrap_or(key);
            let name = if name.is_empty() { dim("-") } else { cell(name.clone()) };
            let number = |number: u64| cell(when::thousands(number));
            let mut row = vec![
                name,
                cell(in_words(cost)),
                number(*calls),
                number(cost.input_tokens),
                number(cost.output_tokens),
            ];
            if wide && ids {
                row.push(cell(key.clone()));
            }
            if wide {
                row.push(number(cost.cached_input_tokens));
                row.push(number(cost.cache_write_tokens));
                row.push(number(cost.reasoning_tokens));
                row.push(number(*unpriced_calls));
                row.push(number(*at_most_calls));
            }
            table.row(row);
        }
        table
    };
    show::list(&cx.out, &costs, |cost| cost.key.clone(), table, "nothing was spent")?;
    show::tell_limit(&cx.out, costs.len(), args.limit);
    Ok(Exit::Done)
}

/// A cost with what is not known of it.
fn in_words(cost: &Cost) -> String {
    let less = if cost.is_at_most() { "≤ " } else { "" };
    let known = format!("{less}{}", when::dollars(cost.microusd));
    match cost.unpriced_calls {
        0 => known,
        1 => format!("{known} and 1 call without a price"),
        more => format!("{known} and {} calls without a price", when::thousands(more)),
    }
}

/// The names of the agents or runs that caused costs, by their ids. What was removed has none.
async fn names(remote: &Remote, by: CostBy, costs: &[Cost]) -> HashMap<String, String> {
    let name = async |id: String| {
        let name = match by {
            CostBy::Agent => remote.client().agent_fetch(&id).await.ok()?.name,
            CostBy::Session => remote.client().run_fetch(&id).await.ok()?.name,
            CostBy::Model | CostBy::Key | CostBy::Day => return None,
        };
        Some((id, name))
    };
    let ids = costs.iter().map(|cost| cost.key.clone()).filter(|id| !id.is_empty());
    let found = stream::iter(ids.map(name)).buffer_unordered(AT_ONCE);
    found.filter_map(std::future::ready).collect().await
}

/// # Errors
///
/// Returns an error if it could not be halted.
pub async fn halt(cx: &Context, args: HaltArgs) -> Outcome {
    let HaltArgs { reason, pause: _, kill } = args;
    let remote = Remote::connect(cx)?;
    let mode = if kill { HaltMode::Kill } else { HaltMode::Pause };
    let state = remote.client().halt(&HaltRequest { reason, mode }).await?;
    told(cx, &state)?;
    Ok(Exit::Done)
}

/// # Errors
///
/// Returns an error if the stop could not be ended.
pub async fn resume(cx: &Context) -> Outcome {
    let remote = Remote::connect(cx)?;
    told(cx, &remote.client().resume().await?)?;
    Ok(Exit::Done)
}

fn told(cx: &Context, state: &HaltState) -> Result<(), Failure> {
    if !cx.out.for_people() {
        return show::one(
            &cx.out,
            state,
            if state.halted { "halted" } else { "running" },
            Vec::new,
        );
    }
    if state.halted {
        let by = state.by.clone().unwrap_or_default();
        cx.out.note(&format!("halted by {by}; `overmind resume` ends it"));
        if state.canceled_runs > 0 {
            cx.out.note(&format!("{} runs were cancelled", state.canceled_runs));
        }
    } else {
        cx.out.note("resumed");
    }
    Ok(())
}

/// Shows what models cost, as a server here would count it.
///
/// # Errors
///
/// A configuration that cannot be read; a model without a price is [`Exit::NotFound`].
pub fn prices(cx: &Context, args: &PricesArgs) -> Outcome {
    let config = cx.config(None)?;
    let models = overmind_node::app::models(&config, None)?;
    let Some(model) = &args.model else {
        rows(cx, &models.table())?;
        return Ok(Exit::Done);
    };
    let quote = models.quote(model);
    let Some(price) = quote.price else {
        // Without a key nobody would answer for it here, and it has its price all the same.
        let named: Vec<PriceRow> =
            models.table().into_iter().filter(|row| row.model == *model).collect();
        if !named.is_empty() {
            rows(cx, &named)?;
            return Ok(Exit::Done);
        }
        let message = format!("the price of `{model}` is unknown");
        let known = models.table();
        return Err(Failure::new(Exit::NotFound, message).hint(
            match nearest(model, known.iter().map(|row| row.model.as_str())) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "add it to the file of `models.prices`: docs/budgets.md".to_owned(),
            },
        ));
    };
    let same = |row: &&PriceRow| {
        (row.provider == "*" || row.provider == quote.provider) && row.price == price
    };
    // Dated names share the line of their model.
    let table = models.table();
    let origin = table.iter().filter(same).find(|row| quote.model.starts_with(&row.model));
    let row = PriceRow {
        provider: quote.provider.clone(),
        model: quote.model.clone(),
        price,
        as_of: origin.map(|row| row.as_of.clone()).unwrap_or_default(),
        source: origin.map(|row| row.source.clone()).unwrap_or_default(),
    };
    rows(cx, &[row])?;
    Ok(Exit::Done)
}

fn rows(cx: &Context, rows: &[PriceRow]) -> Result<(), Failure> {
    let values: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "provider": row.provider, "model": row.model, "price": row.price,
                "as_of": row.as_of, "source": row.source,
            })
        })
        .collect();
    let table = |wide: bool| {
        let mut columns =
            vec!["PROVIDER", "MODEL", "INPUT", "CACHED", "WRITTEN", "OUTPUT", "AS OF", "SOURCE"];
        if wide {
            columns.push("LONG");
        }
        let mut table = Table::new(&columns);
        for row in rows {
            // Prices are for a million tokens, in dollars.
            let per_million = |micros: u64| cell(when::dollars(micros));
            let mut cells = vec![
                cell(row.provider.clone()),
                cell(row.model.clone()),
                per_million(row.price.input),
                per_million(row.price.cached_input),
                per_million(row.price.cache_write),
                per_million(row.price.output),
                or_dash(Some(row.as_of.clone()).filter(|text| !text.is_empty())),
                dim(row.source.clone()),
            ];
            if wide {
                cells.push(or_dash(row.price.long_above.map(|above| {
                    format!(
                        "above {}: {} %, {} %",
                        when::thousands(above),
                        row.price.long_input_percent,
                        row.price.long_output_percent
                    )
                })));
            }
            table.row(cells);
        }
        table
    };
    let name = |value: &Value| value["model"].as_str().unwrap_or_default().to_owned();
    show::list(&cx.out, &values, name, table, "no price is known")
}

/// The amount that `approve` adds to the limit, if any.
pub fn raise(args: &RaiseArgs) -> Option<InboxRaise> {
    let RaiseArgs { usd, tokens, for_good } = args.clone();
    (usd.is_some() || tokens.is_some() || for_good).then_some(InboxRaise { usd, tokens, for_good })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(usd: Option<u64>, tokens: Option<u64>) -> Budget {
        serde_json::from_value(json!({
            "id": "lim_4f1c02d3a9e18b57a6d2f3c4b5a69788", "scope": "swarm", "per": "day",
            "soft": false, "microusd": usd, "tokens": tokens,
            "extra": {"microusd": usd.map_or(0, |_| 500_000), "tokens": tokens.map_or(0, |_| 7)},
            "unknown_price": "allow", "source": "set", "used": {"microusd": 0, "tokens": 0},
            "reserved": {"microusd": 0, "tokens": 0}, "left": {"microusd": null, "tokens": null},
            "unpriced_calls": 0, "starts_at": null, "resets_at": null, "by": "admin",
            "created_at": "2026-11-22T00:00:00Z", "updated_at": "2026-11-22T00:00:00Z",
        }))
        .unwrap()
    }

    fn args(usd: Option<f64>, tokens: Option<u64>, no_usd: bool, no_tokens: bool) -> BudgetSetArgs {
        let (scope, per) = ("swarm".to_owned(), PeriodArg::Day);
        let (soft, allow_unknown_price) = (false, false);
        BudgetSetArgs { scope, usd, tokens, no_usd, no_tokens, per, soft, allow_unknown_price }
    }

    #[test]
    fn the_amount_of_the_other_unit_stays_unless_it_is_removed() {
        let (dollars, both) = (budget(Some(5_500_000), None), budget(Some(5_500_000), Some(1_007)));
        let merge = |args: &BudgetSetArgs, before: Option<&Budget>| {
            merged(args, "swarm".to_owned(), Period::Day, before)
        };
        let (put, note) = merge(&args(None, Some(9), false, false), Some(&dollars)).unwrap();
        assert_eq!((put.usd, put.tokens), (Some(5.0), Some(9)));
        assert_eq!(put.unknown_price, Some(UnknownPrice::Allow));
        assert_eq!(note.unwrap(), "$5.00 stays; --no-usd removes it");

        let (put, note) = merge(&args(Some(2.0), None, false, false), Some(&both)).unwrap();
        assert_eq!((put.usd, put.tokens, put.unknown_price), (Some(2.0), Some(1_000), None));
        assert_eq!(note.unwrap(), "1,000 tokens stay; --no-tokens removes them");

        let (put, note) = merge(&args(None, Some(9), true, false), Some(&both)).unwrap();
        assert_eq!((put.usd, put.tokens, note), (None, Some(9), None));
        let (put, _) = merge(&args(None, None, true, false), Some(&both)).unwrap();
        assert_eq!((put.usd, put.tokens), (None, Some(1_000)));
        let (put, note) = merge(&args(Some(2.0), None, false, false), None).unwrap();
        assert_eq!((put.usd, put.tokens, note), (Some(2.0), None, None));
        let refused = merge(&args(None, None, true, false), Some(&dollars)).unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.hint.unwrap().contains("overmind budget rm swarm"));
    }

    #[test]
    fn a_cost_names_its_calls_without_a_price() {
        let cost = |unpriced: u64, at_most: u64| Cost {
            key: "m-1".to_owned(),
            calls: 3,
            microusd: 0,
            unpriced_calls: unpriced,
            at_most_calls: at_most,
            input_tokens: 0,
            output_tokens: 0,
            cached_input_tokens: 0,
            cache_write_tokens: 0,
            reasoning_tokens: 0,
        };
        assert_eq!(in_words(&cost(0, 0)), "$0");
        assert_eq!(in_words(&cost(0, 1)), "≤ $0");
        assert_eq!(in_words(&cost(1, 1)), "$0 and 1 call without a price");
        assert_eq!(in_words(&cost(1_200, 0)), "$0 and 1,200 calls without a price");
    }
}
