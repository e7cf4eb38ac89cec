//! Limits: how much a scope may spend in a period, and how calls above it are handled.

use serde::{Deserialize, Serialize};

use super::ledger::CAP;
use super::period::Period;
use super::scope::Scope;
use crate::ids::LimitId;
use crate::time::Timestamp;

/// How calls are handled whose price is not known, if a limit in dollars applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownPrice {
    /// The calls are refused.
    #[default]
    Deny,
    /// The calls are allowed with no cost in dollars, and counted as calls without a price.
    Allow,
}

impl UnknownPrice {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Deny, Self::Allow].into_iter().find(|known| known.as_str() == text)
    }
}

/// The origin of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Somebody set it through the API.
    Set,
    /// It is part of the agent's definition, and is removed with it.
    Definition,
}

impl Source {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Definition => "definition",
        }
    }
}

/// The amount added to a limit for one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extra {
    /// Start of that window, in microseconds since 1970.
    pub start_us: i64,
    pub microusd: u64,
    pub tokens: u64,
}

/// How much a scope may spend in a period. Each scope and period can have one hard and one soft
/// limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The [`LimitId::of`] the next three fields.
    pub id: LimitId,
    pub scope: Scope,
    pub period: Period,
    /// Warns and never refuses.
    pub soft: bool,
    /// Millionths of a dollar; `None` means no limit in dollars.
    pub microusd: Option<u64>,
    /// Sum of input and output tokens; `None` means no limit in tokens.
    pub tokens: Option<u64>,
    pub unknown_price: UnknownPrice,
    pub source: Source,
    /// The amount that a human added for a window.
    pub extra: Option<Extra>,
    /// Who changed it last.
    pub by: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl LimitId {
    /// Returns the id of the limit of `scope` in `period`. It never changes.
    pub fn of(scope: Scope, period: Period, soft: bool) -> Self {
        let mut hash = blake3::Hasher::new();
        let kind = if soft { "soft" } else { "hard" };
        hash.update(format!("limit {scope} {} {kind}", period.as_str()).as_bytes());
        let mut raw = [0_u8; 16];
        raw.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        // Version 8 of RFC 9562: a UUID whose bits have the maker's own meaning.
        Self::from_u128(uuid::Builder::from_custom_bytes(raw).into_uuid().as_u128())
    }
}

/// A mistake in a requested limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitProblem {
    #[error("a limit bounds dollars, tokens, or both: give at least one")]
    Empty,
    #[error("a limit is at most {CAP} millionths of a dollar and as many tokens")]
    TooLarge,
}

impl Limit {
    /// # Errors
    ///
    /// [`LimitProblem`] if it limits nothing, or is larger than the ledger can count.
    pub fn check(&self) -> Result<(), LimitProblem> {
        if self.microusd.is_none() && self.tokens.is_none() {
            return Err(LimitProblem::Empty);
        }
        let large = |amount: Option<u64>| amount.is_some_and(|amount| amount > CAP);
        if large(self.microusd) || large(self.tokens) {
            return Err(LimitProblem::TooLarge);
        }
        Ok(())
    }

    /// Returns the dollars of the window that began at `start`.
    pub fn microusd_in(&self, start: Timestamp) -> Option<u64> {
        let extra = self.extra_in(start).map_or(0, |extra| extra.microusd);
        Some(self.microusd?.saturating_add(extra).min(CAP))
    }

    /// Returns the tokens of the window that began at `start`.
    pub fn tokens_in(&self, start: Timestamp) -> Option<u64> {
        let extra = self.extra_in(start).map_or(0, |extra| extra.tokens);
        Some(self.tokens?.saturating_add(extra).min(CAP))
    }

    fn extra_in(&self, start: Timestamp) -> Option<Extra> {
        self.extra.filter(|extra| extra.start_us == start.as_micros())
    }

    /// Returns the limit with an added amount: for good, or for the window of `now`.
    #[must_use]
    pub fn raised(
        mut self,
        microusd: u64,
        tokens: u64,
        for_good: bool,
        by: &str,
        now: Timestamp,
    ) -> Self {
        let more = |amount: u64, by: u64| amount.saturating_add(by).min(CAP);
        if for_good {
            self.microusd = self.microusd.map(|amount| more(amount, microusd));
            self.tokens = self.tokens.map(|amount| more(amount, tokens));
        } else {
            let start = self.period.start(now);
            let before = self.extra_in(start);
            self.extra = Some(Extra {
                start_us: start.as_micros(),
                microusd: more(before.map_or(0, |extra| extra.microusd), microusd),
                tokens: more(before.map_or(0, |extra| extra.tokens), tokens),
            });
        }
        by.clone_into(&mut self.by);
        self.updated_at = now;
        self
    }
}
