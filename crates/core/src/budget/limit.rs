//! Limits: how much a scope may spend in a period, and what happens at the end of it.

use serde::{Deserialize, Serialize};

use super::ledger::CAP;
use super::period::Period;
use super::scope::Scope;
use crate::ids::LimitId;
use crate::time::Timestamp;

/// What becomes of calls whose price nobody knows, where a limit in dollars applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownPrice {
    /// They are refused.
    #[default]
    Deny,
    /// They count as nothing in dollars, and are counted as calls without a price.
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

/// Where a limit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Somebody set it.
    Set,
    /// Its agent's definition says it; it goes when the definition says so no more.
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

/// What was added to a limit for one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extra {
    /// When that window began, in microseconds since 1970.
    pub start_us: i64,
    pub microusd: u64,
    pub tokens: u64,
}

/// How much a scope may spend in a period. There is one hard and one soft limit for each pair of
/// the two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// [`LimitId::of`] of the three fields that follow.
    pub id: LimitId,
    pub scope: Scope,
    pub period: Period,
    /// Warns instead of refusing.
    pub soft: bool,
    /// Millionths of a dollar; `None` bounds no dollars.
    pub microusd: Option<u64>,
    /// Input and output tokens together; `None` bounds no tokens.
    pub tokens: Option<u64>,
    pub unknown_price: UnknownPrice,
    pub source: Source,
    /// What a human gave on top for a window.
    pub extra: Option<Extra>,
    /// Who set it last.
    pub by: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl LimitId {
    /// The id of the limit of `scope` in `period`: the same for ever.
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

/// What is wrong with a limit that somebody wants to set.
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
    /// [`LimitProblem`] when it bounds nothing, or more than can be counted.
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

    /// Dollars that count in the window that began at `start`.
    pub fn microusd_in(&self, start: Timestamp) -> Option<u64> {
        let extra = self.extra_in(start).map_or(0, |extra| extra.microusd);
        Some(self.microusd?.saturating_add(extra).min(CAP))
    }

    /// Tokens that count in the window that began at `start`.
    pub fn tokens_in(&self, start: Timestamp) -> Option<u64> {
        let extra = self.extra_in(start).map_or(0, |extra| extra.tokens);
        Some(self.tokens?.saturating_add(extra).min(CAP))
    }

    fn extra_in(&self, start: Timestamp) -> Option<Extra> {
        self.extra.filter(|extra| extra.start_us == start.as_micros())
    }

    /// The limit with more in it: for good, or for the window that `now` is in.
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
