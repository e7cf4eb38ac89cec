//! Budgets, costs and the emergency stop.

use overmind_core::agent as core_agent;
use overmind_core::budget;
use overmind_core::ids::LimitId;
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::problem::{FieldError, refuse_long};
use crate::vocabulary::{CostBy, Period, UnknownPrice};

/// Longest reason for an emergency stop, in characters.
const MAX_REASON: usize = 500;

/// Converts dollars as people write them to millionths, rounded.
///
/// # Errors
///
/// Returns a text that says what is wrong with the number.
pub fn microusd_of(usd: f64) -> Result<u64, String> {
    const MOST: f64 = (1_u64 << 53) as f64;
    let micros = (usd * 1e6).round();
    if !(0.0..=MOST).contains(&micros) {
        return Err(format!("must be from 0 to {} dollars", MOST / 1e6));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 to 2^53"
    )]
    Ok(micros as u64)
}

/// Converts millionths of a dollar to dollars.
pub fn usd_of(microusd: u64) -> f64 {
    // Exact to the sixth digit: no amount is above 2^53.
    microusd as f64 / 1e6
}

/// An amount in dollars and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetAmount {
    /// Millionths of a US dollar.
    pub microusd: u64,
    pub tokens: u64,
}

/// The rest of a limit; `null` for a unit that has no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetLeft {
    pub microusd: Option<u64>,
    pub tokens: Option<u64>,
}

/// A limit and the state of its current window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Budget {
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "lim_4f1c02d3a9e18b57a6d2f3c4b5a69788"))]
    pub id: LimitId,
    /// The scope: `swarm`, `colony:<id>`, `agent:<id>`, `owner:<uid>`, `session:<id>` or
    /// `key:<name>`.
    #[cfg_attr(
        feature = "openapi",
        schema(example = "agent:agt_0190b2c4d5e67000800000000000002a")
    )]
    pub scope: String,
    /// The scope with a name in place of the id, if the object with that id exists: `agent:coder`,
    /// `session:fix`, `fleet/web`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "agent:coder"))]
    pub scope_name: Option<String>,
    pub per: Period,
    /// Whether the limit only warns and never refuses a call.
    pub soft: bool,
    /// The limit in millionths of a US dollar, including the amount added for this window.
    pub microusd: Option<u64>,
    pub tokens: Option<u64>,
    /// The part of the limit that a human added for this window only.
    pub extra: BudgetAmount,
    pub unknown_price: UnknownPrice,
    /// The origin of the limit: `set` through the API, or `definition` if it is part of the agent's
    /// definition.
    pub source: String,
    pub used: BudgetAmount,
    /// The most that calls in progress may cost.
    pub reserved: BudgetAmount,
    pub left: BudgetLeft,
    /// Number of calls in `used` whose price is not known.
    pub unpriced_calls: u64,
    /// The start of the window; `null` if the limit never resets.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub starts_at: Option<Timestamp>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub resets_at: Option<Timestamp>,
    /// Who changed it last.
    pub by: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub updated_at: Timestamp,
}

impl Budget {
    /// Creates the view of a limit whose window began at `start`.
    pub fn new(
        limit: budget::Limit,
        window: budget::Window,
        start: Timestamp,
        resets_at: Option<Timestamp>,
    ) -> Self {
        let amount = |amount: budget::Amount| BudgetAmount {
            microusd: amount.microusd,
            tokens: amount.tokens,
        };
        let (microusd, tokens) = (limit.microusd_in(start), limit.tokens_in(start));
        let left = |limit: Option<u64>, used: u64, reserved: u64| {
            Some(limit?.saturating_sub(used.saturating_add(reserved)))
        };
        let (used, reserved) = (window.spent, window.reserved);
        let more = |with: Option<u64>, without: Option<u64>| {
            with.unwrap_or(0).saturating_sub(without.unwrap_or(0))
        };
        Self {
            id: limit.id,
            scope: limit.scope.to_string(),
            scope_name: None,
            per: limit.period.into(),
            soft: limit.soft,
            extra: BudgetAmount {
                microusd: more(microusd, limit.microusd),
                tokens: more(tokens, limit.tokens),
            },
            left: BudgetLeft {
                microusd: left(microusd, used.microusd, reserved.microusd),
                tokens: left(tokens, used.tokens, reserved.tokens),
            },
            microusd,
            tokens,
            unknown_price: limit.unknown_price.into(),
            source: limit.source.as_str().to_owned(),
            used: amount(used),
            reserved: amount(reserved),
            unpriced_calls: window.unpriced,
            starts_at: resets_at.map(|_| start),
            resets_at,
            by: limit.by,
            created_at: limit.created_at,
            updated_at: limit.updated_at,
        }
    }
}

/// Body of `PUT /api/budgets`: creates or replaces the limit of a scope, period and kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BudgetPut {
    /// The scope: `swarm`, `colony:default`, `agent:<id or name>`, a kind and a name (`fleet/web`),
    /// `session:<id>` or `key:<name>`.
    #[cfg_attr(feature = "openapi", schema(example = "agent:coder"))]
    pub scope: String,
    pub per: Period,
    /// US dollars, with up to six decimal places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, example = 5.0))]
    pub usd: Option<f64>,
    /// Sum of input and output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Warns once in each window, and refuses nothing.
    #[serde(default)]
    pub soft: bool,
    /// How calls are handled whose price is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_price: Option<UnknownPrice>,
}

impl BudgetPut {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        check_amounts(&mut errors, "", self.usd, self.tokens);
        if self.usd.is_none() && self.tokens.is_none() {
            errors.push(FieldError::new("usd", "give usd, tokens, or both"));
        }
        errors
    }
}

/// The most that a run may spend in total. At least one of the two amounts is required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunBudget {
    /// US dollars, with up to six decimal places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, example = 2.5))]
    pub usd: Option<f64>,
    /// Sum of input and output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

impl RunBudget {
    pub(crate) fn check(&self, errors: &mut Vec<FieldError>) {
        check_amounts(errors, "budget.", self.usd, self.tokens);
        if self.usd.is_none() && self.tokens.is_none() {
            errors.push(FieldError::new("budget", "give usd, tokens, or both"));
        }
    }
}

fn check_amounts(
    errors: &mut Vec<FieldError>,
    before: &str,
    usd: Option<f64>,
    tokens: Option<u64>,
) {
    if let Some(Err(why)) = usd.map(microusd_of) {
        errors.push(FieldError::new(format!("{before}usd"), why));
    }
    if tokens.is_some_and(|tokens| tokens > budget::CAP) {
        errors.push(FieldError::new(
            format!("{before}tokens"),
            format!("must be at most {}", budget::CAP),
        ));
    }
}

/// The most that all runs of an agent may spend together, as part of the agent's definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentBudget {
    /// US dollars, with up to six decimal places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, example = 5.0))]
    pub usd: Option<f64>,
    /// Sum of input and output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    pub per: Period,
    /// Warns once in each window, and refuses nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soft: bool,
    /// How calls are handled whose price is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_price: Option<UnknownPrice>,
}

impl AgentBudget {
    pub(crate) fn check(&self, errors: &mut Vec<FieldError>) {
        check_amounts(errors, "budget.", self.usd, self.tokens);
    }

    /// Returns the limit that this sets; `None` if it limits nothing. The values must have been
    /// checked.
    pub fn limit(&self) -> Option<core_agent::AgentBudget> {
        let Self { usd, tokens, per, soft, unknown_price } = self.clone();
        let microusd = usd.and_then(|usd| microusd_of(usd).ok());
        if microusd.is_none() && tokens.is_none() {
            return None;
        }
        let unknown_price = unknown_price.map(Into::into).unwrap_or_default();
        let per = per.into();
        Some(core_agent::AgentBudget { microusd, tokens, per, soft, unknown_price })
    }
}

impl From<core_agent::AgentBudget> for AgentBudget {
    fn from(budget: core_agent::AgentBudget) -> Self {
        let core_agent::AgentBudget { microusd, tokens, per, soft, unknown_price } = budget;
        let allow = unknown_price == budget::UnknownPrice::Allow;
        Self {
            usd: microusd.map(usd_of),
            tokens,
            per: per.into(),
            soft,
            unknown_price: allow.then(|| unknown_price.into()),
        }
    }
}

/// The amount to add to a limit when a budget request is approved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct InboxRaise {
    /// US dollars to add.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub usd: Option<f64>,
    /// Tokens to add.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Whether the limit stays raised for good. Otherwise it is raised until its window ends.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub for_good: bool,
}

impl InboxRaise {
    pub(crate) fn check(&self, errors: &mut Vec<FieldError>) {
        check_amounts(errors, "raise.", self.usd, self.tokens);
    }
}

/// The cost of one agent, model, run or day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cost {
    /// The group: the id of an agent or run, the name of a model, or a date; empty for calls
    /// without one.
    pub key: String,
    pub calls: u64,
    /// Cost in millionths of a US dollar, for the calls whose price is known.
    pub microusd: u64,
    /// Number of calls whose price is not known.
    pub unpriced_calls: u64,
    /// Number of calls whose real cost is not known, because they broke off or their end was lost.
    /// `microusd` contains the most that they can have cost.
    #[serde(default)]
    pub at_most_calls: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// The part of `input_tokens` that was read from a cache.
    pub cached_input_tokens: u64,
    /// The part of `input_tokens` that was written to a cache.
    pub cache_write_tokens: u64,
    /// The part of `output_tokens` that was used for reasoning.
    pub reasoning_tokens: u64,
}

impl Cost {
    /// Returns whether `microusd` is an upper bound of the cost. It is not if the price of some
    /// calls is not known.
    pub fn is_at_most(&self) -> bool {
        self.at_most_calls > 0 && self.unpriced_calls == 0
    }
}

impl From<budget::CostRow> for Cost {
    fn from(row: budget::CostRow) -> Self {
        let budget::CostRow { key, calls, microusd, unpriced, at_most, usage } = row;
        Self {
            key,
            calls,
            microusd,
            unpriced_calls: unpriced,
            at_most_calls: at_most,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cached_input_tokens: usage.cached_input_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            reasoning_tokens: usage.reasoning_tokens,
        }
    }
}

/// Query of `GET /api/costs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct CostsQuery {
    /// How costs are grouped.
    #[cfg_attr(feature = "openapi", param(inline))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<CostBy>,
    /// The first day, in UTC: `2026-11-01`. Default: the first of this month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The last day, in UTC. Default: today.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Maximum number of rows to return. Rows are sorted by cost, highest first; days are sorted
    /// newest first.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// How an emergency stop treats active runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HaltMode {
    /// A run continues until it calls a model, and then waits until the stop is over.
    #[default]
    Pause,
    /// The runs are cancelled.
    Kill,
}

/// Body of `POST /api/halt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct HaltRequest {
    /// The reason, which callers see when they are refused. At most 500 characters.
    #[cfg_attr(feature = "openapi", schema(max_length = 500))]
    pub reason: String,
    pub mode: HaltMode,
}

impl HaltRequest {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        refuse_long(&mut errors, "reason", &self.reason, MAX_REASON);
        errors
    }
}

/// The state of the emergency stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HaltState {
    pub halted: bool,
    /// Who started it.
    pub by: Option<String>,
    pub reason: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub since: Option<Timestamp>,
    /// Number of runs that this request cancelled.
    pub canceled_runs: u64,
}

impl HaltState {
    pub fn new(halt: Option<budget::Halt>, canceled_runs: u64) -> Self {
        let halted = halt.is_some();
        let (by, reason, since) = match halt {
            Some(halt) => (Some(halt.by), Some(halt.reason), Some(halt.since)),
            None => (None, None, None),
        };
        Self { halted, by, reason, since, canceled_runs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_convert_to_millionths_and_invalid_amounts_are_refused() {
        for (usd, micros) in [(0.0, 0), (5.0, 5_000_000), (0.1, 100_000), (0.000_001, 1), (1e-9, 0)]
        {
            assert_eq!(microusd_of(usd), Ok(micros), "{usd}");
        }
        for micros in [0, 1, 999_999, 1 << 53] {
            assert_eq!(microusd_of(usd_of(micros)), Ok(micros));
        }
        for bad in [-0.01, f64::NAN, f64::INFINITY, 1e30] {
            assert!(microusd_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_limit_that_bounds_nothing_is_refused() {
        let put = |usd, tokens| BudgetPut {
            scope: "swarm".into(),
            per: Period::Day,
            usd,
            tokens,
            soft: false,
            unknown_price: None,
        };
        assert_eq!(put(Some(5.0), None).check(), []);
        assert_eq!(put(None, Some(0)).check(), []);
        assert_eq!(put(None, None).check().len(), 1);
        assert_eq!(put(Some(-1.0), Some(u64::MAX)).check().len(), 2);
    }
}
