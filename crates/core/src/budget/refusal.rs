//! Why a call may not start, and the error in the form of each kind of client.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Spend;
use super::period::Period;
use super::scope::Scope;
use crate::ids::LimitId;
use crate::time::Timestamp;

/// The unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Millionths of a dollar.
    Microusd,
    Tokens,
}

/// Why a call may not start. Nothing was reserved or sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Refusal {
    /// The call could exceed a limit. Amounts are in `unit`.
    Over {
        id: LimitId,
        scope: Scope,
        /// The scope with a name in place of its id, if known: `agent:coder`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        named: Option<Box<ScopeName>>,
        period: Period,
        unit: Unit,
        limit: u64,
        used: u64,
        reserved: u64,
        /// The highest cost of the call.
        asked: u64,
        /// The number of input tokens, if `asked` is based on the provider's own count of them. No
        /// model accepts more than fit in this type.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counted: Option<NonZeroU32>,
        /// When the window ends; `None` if it never does.
        resets_at: Option<Timestamp>,
    },
    /// A limit in dollars applies, and the price of the model is not known.
    UnknownPrice {
        model: String,
        /// The option of the call that makes its price unknown, if the model has a price:
        /// `service_tier: "priority"`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        option: Option<Box<str>>,
        scope: Scope,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        named: Option<Box<ScopeName>>,
    },
    /// An emergency stop is in force.
    Halted { by: String, reason: String, since: Timestamp },
}

/// The name of a scope: `agent:coder`. Boxed, because errors are passed by value and must stay
/// small.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScopeName(String);

/// The form of errors that a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    OpenAi,
    Anthropic,
    /// RFC 9457, the form of this server's own errors.
    Problem,
}

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Wire {
    pub status: u16,
    /// Headers with names in lower case.
    pub headers: Vec<(&'static str, String)>,
    pub body: Value,
}

/// Longest wait that a client is told, in seconds. Timers of clients do not handle longer waits
/// well.
const LONGEST_WAIT: u64 = 31 * 86_400;

/// Seconds after which a call may have ended that blocks another one.
const SOON: u64 = 5;

impl Refusal {
    /// Returns whether it may succeed soon without anybody's action: the call fits into the unspent
    /// amount, and only reservations of running calls block it, which mostly cost less.
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Over { limit, used, asked, .. } => used.saturating_add(*asked) <= *limit,
            Self::UnknownPrice { .. } | Self::Halted { .. } => false,
        }
    }

    /// Returns whether the unspent amount of a limit is too small for the highest cost of the call.
    pub const fn is_too_small(&self) -> bool {
        matches!(self, Self::Over { .. }) && !self.is_temporary()
    }

    /// Returns whether the call fits into the unspent amount if it costs at most `worst`.
    pub fn has_room_for(&self, worst: Spend) -> bool {
        match self {
            Self::Over { unit, limit, used, .. } => {
                let asked = match unit {
                    Unit::Microusd => worst.microusd,
                    Unit::Tokens => Some(worst.tokens),
                };
                asked.is_some_and(|asked| used.saturating_add(asked) <= *limit)
            }
            Self::UnknownPrice { .. } | Self::Halted { .. } => false,
        }
    }

    /// Returns the scope of the limit that blocks the call; `None` if there is no limit.
    pub const fn scope(&self) -> Option<Scope> {
        match self {
            Self::Over { scope, .. } | Self::UnknownPrice { scope, .. } => Some(*scope),
            Self::Halted { .. } => None,
        }
    }

    /// Adds the name of the scope.
    #[must_use]
    pub fn naming(mut self, name: String) -> Self {
        match &mut self {
            Self::Over { named, .. } | Self::UnknownPrice { named, .. } => {
                *named = Some(Box::new(ScopeName(name)))
            }
            Self::Halted { .. } => {}
        }
        self
    }

    /// Adds the option of the call that makes its price unknown.
    #[must_use]
    pub fn asking(mut self, text: &str) -> Self {
        match &mut self {
            Self::UnknownPrice { option, .. } => *option = Some(text.into()),
            Self::Over { .. } | Self::Halted { .. } => {}
        }
        self
    }

    /// Adds the provider's count of input tokens.
    #[must_use]
    pub fn counting(mut self, tokens: u64) -> Self {
        match &mut self {
            Self::Over { counted, .. } => {
                *counted = u32::try_from(tokens).ok().and_then(NonZeroU32::new);
            }
            Self::UnknownPrice { .. } | Self::Halted { .. } => {}
        }
        self
    }

    /// Returns a code for programs: `budget_exhausted`, `budget_reserved`, `price_unknown` or
    /// `halted`.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Over { .. } if self.is_temporary() => "budget_reserved",
            Self::Over { .. } => "budget_exhausted",
            Self::UnknownPrice { .. } => "price_unknown",
            Self::Halted { .. } => "halted",
        }
    }

    /// Returns a text that says what happened and what the reader can do.
    pub fn message(&self) -> String {
        match self {
            Self::Over {
                scope,
                named,
                period,
                unit,
                limit,
                used,
                reserved,
                asked,
                counted,
                resets_at,
                ..
            } => {
                let whose = *scope;
                let scope = called(whose, named.as_deref());
                let show = |amount: u64| amount_text(*unit, amount);
                let every = match period {
                    Period::Total => "in all".to_owned(),
                    Period::Day | Period::Week | Period::Month => {
                        format!("per {}", period.as_str())
                    }
                };
                let resets = match resets_at {
                    Some(at) => format!("it begins anew at {at}, or "),
                    None => String::new(),
                };
                let who = if whose.of_admins() { "an admin" } else { "a human" };
                let counted =
                    counted.map(|tokens| format!(" (its provider counts {tokens} input tokens)"));
                let amounts = format!(
                    "{} {every}, {} used, {} reserved, and this call may take {}{}",
                    show(*limit),
                    show(*used),
                    show(*reserved),
                    show(*asked),
                    counted.unwrap_or_default(),
                );
                match self.is_temporary() {
                    true => format!(
                        "the budget of {scope} is reserved by calls under way: {amounts}; try again when \
                         one of them has ended"
                    ),
                    false => format!(
                        "the budget of {scope} is exhausted: {amounts}; {resets}ask {who} to raise it"
                    ),
                }
            }
            Self::UnknownPrice { model, option, scope, named } => {
                let scope = called(*scope, named.as_deref());
                let (with, what_to_do) = match option {
                    Some(option) => {
                        (format!(" with `{option}`"), "send the request without that option")
                    }
                    None => (String::new(), "add a price for the model (docs/budgets.md)"),
                };
                format!(
                    "the price of model `{model}`{with} is not known and {scope} has a limit in \
                     dollars: {what_to_do}, or let it pass with `overmind budget set {scope} … \
                     --allow-unknown-price`"
                )
            }
            Self::Halted { by, reason, since } => {
                let why = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
                format!("all model calls were halted by {by} at {since}{why}; a human resumes them")
            }
        }
    }

    /// Returns the HTTP status: 429, or 403 if waiting cannot help.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Over { .. } | Self::Halted { .. } => 429,
            Self::UnknownPrice { .. } => 403,
        }
    }

    /// Returns the seconds after which a retry may succeed; `None` if time alone changes nothing.
    pub fn retry_after(&self, now: Timestamp) -> Option<u64> {
        match self {
            Self::Over { resets_at: None, .. } if self.is_temporary() => Some(SOON),
            Self::Over { resets_at: Some(at), .. } => {
                let longest = if self.is_temporary() { SOON } else { LONGEST_WAIT };
                Some(at.since(now).as_secs().saturating_add(1).min(longest))
            }
            Self::Over { resets_at: None, .. }
            | Self::UnknownPrice { .. }
            | Self::Halted { .. } => None,
        }
    }

    /// Returns the answer for a client of `shape`. It tells SDKs not to retry automatically, except
    /// if a retry may succeed within their patience.
    pub fn render(&self, shape: Shape, now: Timestamp) -> Wire {
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("x-should-retry", self.is_temporary().to_string()),
        ];
        if let Some(seconds) = self.retry_after(now) {
            headers.push(("retry-after", seconds.to_string()));
        }
        let (status, message) = (self.status(), self.message());
        let body = match shape {
            Shape::OpenAi => {
                let kind = match self {
                    Self::Over { .. } if self.is_temporary() => "rate_limit_exceeded",
                    Self::Over { .. } | Self::Halted { .. } => "insufficient_quota",
                    Self::UnknownPrice { .. } => "invalid_request_error",
                };
                json!({"error": {
                    "message": message, "type": kind, "param": null, "code": self.code(),
                }})
            }
            Shape::Anthropic => {
                let kind = match self {
                    Self::Over { .. } | Self::Halted { .. } => "rate_limit_error",
                    Self::UnknownPrice { .. } => "permission_error",
                };
                json!({"type": "error", "error": {"type": kind, "message": message}})
            }
            Shape::Problem => {
                headers[0].1 = "application/problem+json".to_owned();
                json!({
                    "type": "about:blank", "title": self.title(), "status": status,
                    "detail": message, "code": self.code(), "ok": false, "error": message,
                    "refusal": self,
                })
            }
        };
        Wire { status, headers, body }
    }

    const fn title(&self) -> &'static str {
        match self {
            Self::Over { .. } if self.is_temporary() => "Budget reserved",
            Self::Over { .. } => "Budget exhausted",
            Self::UnknownPrice { .. } => "Price unknown",
            Self::Halted { .. } => "Halted",
        }
    }
}

fn called(scope: Scope, named: Option<&ScopeName>) -> String {
    named.map_or_else(|| scope.to_string(), |name| name.0.clone())
}

/// Returns an amount for people: `$1.25`, `3000 tokens`.
pub(super) fn amount_text(unit: Unit, amount: u64) -> String {
    match unit {
        Unit::Tokens => format!("{amount} tokens"),
        Unit::Microusd => {
            let (dollars, micros) = (amount / 1_000_000, amount % 1_000_000);
            let digits = format!("{micros:06}");
            // Cents always, and what is finer where there is something.
            let kept = digits.trim_end_matches('0').len().max(2);
            format!("${dollars}.{}", &digits[..kept])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::AgentId;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn over() -> Refusal {
        let scope = Scope::Agent(AgentId::from_u128(1));
        Refusal::Over {
            id: LimitId::of(scope, Period::Day, false),
            scope,
            named: None,
            period: Period::Day,
            unit: Unit::Microusd,
            limit: 5_000_000,
            used: 4_999_000,
            reserved: 0,
            asked: 1_001,
            counted: None,
            resets_at: Some(at("2026-11-23T00:00:00Z")),
        }
    }

    #[test]
    fn a_refusal_for_reserved_amounts_suggests_a_retry() {
        let now = at("2026-11-22T12:00:00Z");
        let mut reserved = over();
        if let Refusal::Over { limit, used, reserved, asked, .. } = &mut reserved {
            (*used, *reserved) = (*limit - *asked, 1);
        }
        assert!(reserved.is_temporary() && !over().is_temporary());
        assert_eq!(reserved.code(), "budget_reserved");
        for shape in [Shape::OpenAi, Shape::Anthropic, Shape::Problem] {
            let wire = reserved.render(shape, now);
            assert_eq!(wire.status, 429);
            assert!(wire.headers.contains(&("x-should-retry", "true".to_owned())), "{wire:?}");
            assert!(wire.headers.contains(&("retry-after", "5".to_owned())), "{wire:?}");
            assert!(!wire.body.to_string().contains("exhausted"), "{wire:?}");
            assert_ne!(wire.body["error"]["type"], "insufficient_quota");
        }
    }

    #[test]
    fn every_client_gets_a_refusal_in_its_own_format() {
        let now = at("2026-11-22T23:59:00Z");
        let openai = over().render(Shape::OpenAi, now);
        assert_eq!(openai.status, 429);
        assert!(openai.headers.contains(&("retry-after", "61".into())), "{:?}", openai.headers);
        assert!(openai.headers.contains(&("x-should-retry", "false".into())));
        assert_eq!(openai.body["error"]["type"], "insufficient_quota");
        assert_eq!(openai.body["error"]["code"], "budget_exhausted");
        let text = openai.body["error"]["message"].as_str().unwrap().to_owned();
        assert!(text.contains("$5.00 per day, $4.999 used"), "{text}");
        assert!(text.contains("may take $0.001001"), "{text}");
        let anthropic = over().render(Shape::Anthropic, now);
        assert_eq!(anthropic.body["type"], "error");
        assert_eq!(anthropic.body["error"]["type"], "rate_limit_error");
        assert_eq!(anthropic.body["error"]["message"], text.as_str());
        let problem = over().render(Shape::Problem, now);
        assert_eq!(problem.headers[0].1, "application/problem+json");
        assert_eq!((&problem.body["status"], &problem.body["ok"]), (&429.into(), &false.into()));
        assert_eq!(problem.body["refusal"]["why"], "over");
    }

    #[test]
    fn a_refusal_has_no_retry_time_if_waiting_does_not_help() {
        let now = at("2026-11-22T23:59:00Z");
        let unknown = Refusal::UnknownPrice {
            model: "qwen".into(),
            option: None,
            scope: Scope::Swarm,
            named: None,
        };
        let halted = Refusal::Halted { by: "ann".into(), reason: String::new(), since: now };
        for (refusal, status) in [(unknown, 403), (halted, 429)] {
            for shape in [Shape::OpenAi, Shape::Anthropic, Shape::Problem] {
                let wire = refusal.render(shape, now);
                assert_eq!(wire.status, status);
                assert!(wire.headers.iter().all(|(name, _)| *name != "retry-after"), "{wire:?}");
            }
        }
    }

    #[test]
    fn a_refusal_names_the_scope_and_the_command_that_helps() {
        let scope = Scope::Agent(AgentId::from_u128(1));
        let unknown =
            Refusal::UnknownPrice { model: "qwen".into(), option: None, scope, named: None };
        assert!(unknown.message().contains("agent:agt_"), "{}", unknown.message());
        let said = unknown.naming("agent:coder".to_owned()).message();
        assert!(said.contains("and agent:coder has a limit in dollars"), "{said}");
        let command = "`overmind budget set agent:coder … --allow-unknown-price`";
        assert!(said.contains("add a price for the model"), "{said}");
        assert!(said.contains(command) && !said.contains("agt_"), "{said}");
        let over = over().naming("agent:coder".to_owned());
        assert!(over.message().contains("the budget of agent:coder is exhausted"));
        let text = serde_json::to_string(&over).unwrap();
        assert_eq!(serde_json::from_str::<Refusal>(&text).unwrap(), over);
    }

    #[test]
    fn a_refusal_names_the_counted_tokens_and_the_amount_that_would_fit() {
        let counted = over().counting(14);
        let message = counted.message();
        let wanted = "may take $0.001001 (its provider counts 14 input tokens); it begins anew";
        assert!(message.contains(wanted), "{message}");
        let text = serde_json::to_string(&counted).unwrap();
        assert_eq!(serde_json::from_str::<Refusal>(&text).unwrap(), counted);
        for (worst, fits) in [
            (Spend::new(1_000, u64::MAX), true),
            (Spend::new(1_001, 0), false),
            (Spend { microusd: None, tokens: 0 }, false),
        ] {
            assert_eq!(over().has_room_for(worst), fits, "{worst:?}");
        }
        let mut tokens = over();
        if let Refusal::Over { unit, .. } = &mut tokens {
            *unit = Unit::Tokens;
        }
        assert!(tokens.has_room_for(Spend::new(u64::MAX, 1_000)));
        assert!(!tokens.has_room_for(Spend::new(0, 1_001)));
    }

    #[test]
    fn a_refusal_is_read_back_from_its_json() {
        let text = serde_json::to_string(&over()).unwrap();
        assert_eq!(serde_json::from_str::<Refusal>(&text).unwrap(), over());
    }
}
