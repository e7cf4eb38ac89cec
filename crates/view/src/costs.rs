//! The page of costs and budgets.

use overmind_api::{Budget, Cost, HaltState, Timestamp, usd_of};

use crate::clean;
use crate::parts::{money, money_at_most, thousands};
use crate::when::When;

/// A bar of a chart, with the numbers for the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    pub name: String,
    pub cost: String,
    pub calls: String,
    pub input: String,
    pub cached: String,
    pub output: String,
    /// Number of calls without a known price; empty if there are none.
    pub unpriced: String,
    /// Length relative to the longest bar, 0 to 100: by cost, or by tokens if there were no costs.
    pub share: u8,
}

/// A chart of costs, by day, agent or model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostChart {
    pub title: &'static str,
    /// Whether the bars show tokens, because there were no costs.
    pub by_tokens: bool,
    pub bars: Vec<Bar>,
}

impl CostChart {
    /// Creates the chart. `by_day` sorts by day; otherwise the longest bar is first. `names`: ids
    /// of agents with their names.
    pub fn new(
        title: &'static str,
        by_day: bool,
        costs: &[Cost],
        names: &[(String, String)],
    ) -> Self {
        let mut costs: Vec<_> = costs.iter().collect();
        let free = costs.iter().all(|cost| cost.microusd == 0);
        let long = |cost: &Cost| match free {
            true => cost.input_tokens.saturating_add(cost.output_tokens),
            false => cost.microusd,
        };
        match by_day {
            true => costs.sort_by(|a, b| a.key.cmp(&b.key)),
            false => costs.sort_by_key(|cost| std::cmp::Reverse((long(cost), cost.calls))),
        }
        let most = costs.iter().map(|cost| long(cost)).max().unwrap_or(0).max(1);
        let bars = costs.iter().map(|cost| Bar {
            name: named(&cost.key, names),
            cost: money_at_most(usd_of(cost.microusd), cost.is_at_most()),
            calls: thousands(cost.calls),
            input: thousands(cost.input_tokens),
            cached: thousands(cost.cached_input_tokens),
            output: thousands(cost.output_tokens),
            unpriced: match cost.unpriced_calls {
                0 => String::new(),
                count => thousands(count),
            },
            share: percent(long(cost), most),
        });
        Self { title, by_tokens: free, bars: bars.collect() }
    }
}

/// Returns the percentage of a whole, 0 to 100.
fn percent(part: u64, whole: u64) -> u8 {
    let share = u128::from(part) * 100 / u128::from(whole.max(1));
    u8::try_from(share.min(100)).unwrap_or(100)
}

/// Returns a key for people: the agent's name for its id, otherwise the text itself.
fn named(key: &str, names: &[(String, String)]) -> String {
    let (before, id) = key.split_once(':').unwrap_or(("", key));
    let name = names.iter().find(|(known, _)| known == id).map(|(_, name)| name.as_str());
    let text = match (before, name) {
        (_, None) if key.is_empty() => "none".to_owned(),
        (_, None) => key.to_owned(),
        ("", Some(name)) => name.to_owned(),
        (before, Some(name)) => format!("{before} {name}"),
    };
    clean::cut(&clean::line(&text), 80).into_owned()
}

/// A limit and the state of its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRow {
    pub id: String,
    pub scope: String,
    pub per: String,
    /// `$5.00`, `20,000 tokens`, or both.
    pub limit: String,
    pub used: String,
    pub reserved: String,
    pub left: String,
    /// The used and the additionally reserved part of the limit, 0 to 100.
    pub used_share: u8,
    pub reserved_share: u8,
    pub soft: bool,
    /// Whether it can be removed here, because it is not part of a definition.
    pub set: bool,
    pub resets: Option<When>,
}

/// The page `/costs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostsPage {
    pub charts: Vec<CostChart>,
    pub budgets: Vec<BudgetRow>,
    /// The emergency stop in force: who started it, why, and when.
    pub halted: Option<(String, String, Option<When>)>,
}

impl CostsPage {
    pub fn new(
        charts: Vec<CostChart>,
        budgets: &[Budget],
        names: &[(String, String)],
        halt: &HaltState,
        now: Timestamp,
    ) -> Self {
        let text =
            |of: &Option<String>| clean::line(of.as_deref().unwrap_or_default()).into_owned();
        Self {
            charts,
            budgets: budgets.iter().map(|budget| BudgetRow::new(budget, names, now)).collect(),
            halted: halt.halted.then(|| {
                (text(&halt.by), text(&halt.reason), halt.since.map(|at| When::new(at, now)))
            }),
        }
    }
}

impl BudgetRow {
    fn new(budget: &Budget, names: &[(String, String)], now: Timestamp) -> Self {
        let both = |usd: Option<u64>, tokens: Option<u64>| {
            let usd = usd.map(|usd| money(usd_of(usd)));
            let tokens = tokens.map(|tokens| format!("{} tokens", thousands(tokens)));
            usd.into_iter().chain(tokens).collect::<Vec<_>>().join(", ")
        };
        // Only what the limit bounds.
        let of = |amount: overmind_api::BudgetAmount| {
            both(budget.microusd.map(|_| amount.microusd), budget.tokens.map(|_| amount.tokens))
        };
        let share = |amount: overmind_api::BudgetAmount| {
            let usd = budget.microusd.map_or(0, |limit| percent(amount.microusd, limit));
            usd.max(budget.tokens.map_or(0, |limit| percent(amount.tokens, limit)))
        };
        let used_share = share(budget.used);
        Self {
            id: budget.id.to_string(),
            scope: match &budget.scope_name {
                Some(name) => clean::cut(&clean::line(name), 80).into_owned(),
                None => named(&budget.scope, names),
            },
            per: budget.per.as_str().to_owned(),
            limit: both(budget.microusd, budget.tokens),
            used: of(budget.used),
            reserved: of(budget.reserved),
            left: both(budget.left.microusd, budget.left.tokens),
            reserved_share: share(budget.reserved).min(100 - used_share),
            used_share,
            soft: budget.soft,
            set: budget.source == "set",
            resets: budget.resets_at.map(|at| When::until(at, now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(key: &str, microusd: u64) -> Cost {
        serde_json::from_value(serde_json::json!({"key": key, "calls": 2, "microusd": microusd,
            "unpriced_calls": 0, "input_tokens": 1200, "output_tokens": 3, "cached_input_tokens": 0,
            "cache_write_tokens": 0, "reasoning_tokens": 0}))
        .unwrap()
    }

    #[test]
    fn bars_are_relative_to_the_longest_and_days_keep_their_order() {
        let names = [("agt_1".to_owned(), "fixer\u{7}".to_owned())];
        let costs = [cost("agt_1", 500_000), cost("agt_2", 1_000_000)];
        let chart = CostChart::new("By agent", false, &costs, &names);
        let bars: Vec<_> = chart.bars.iter().map(|bar| (bar.name.as_str(), bar.share)).collect();
        assert_eq!(bars, [("agt_2", 100), ("fixer\\u{7}", 50)]);
        let days = [cost("2026-11-26", 1), cost("2026-11-25", 9)];
        let chart = CostChart::new("By day", true, &days, &[]);
        assert_eq!(chart.bars[0].name, "2026-11-25");
        let cut = |unpriced: u64| {
            let cost = Cost { at_most_calls: 1, unpriced_calls: unpriced, ..cost("m", 930_000) };
            CostChart::new("By model", false, &[cost], &[]).bars.remove(0).cost
        };
        assert_eq!((cut(0).as_str(), cut(1).as_str()), ("≤ $0.93", "$0.93"));
        assert_eq!((percent(3, 0), percent(u64::MAX, u64::MAX)), (100, 100));
    }
}
