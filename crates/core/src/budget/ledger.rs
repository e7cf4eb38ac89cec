//! The ledger: limits, windows and open reservations, and every decision about them.
//!
//! A window is found by scope, period and the moment at which a call was asked for, and by
//! nothing else: a reservation settles where it was made, however late; and a clock that goes
//! back finds the earlier window as it stood. Decisions look at the limits that apply, of which
//! there are a handful, and never at calls.
//!
//! Whoever owns a ledger makes each change durable: every decision says by how much which window
//! moved ([`Windowed`]). Those amounts add up in any order.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::limit::{Limit, UnknownPrice};
use super::period::Period;
use super::refusal::{Refusal, Unit};
use super::scope::Scope;
use super::{Ask, Spend};
use crate::ids::{CallId, LimitId};
use crate::time::Timestamp;

/// No amount and no sum is greater: nine billion dollars, or as many tokens a million times. What
/// is added beyond it is lost; a reservation that would pass it is refused.
pub const CAP: u64 = 1 << 53;

/// So many tokens beyond what was reserved no call has: the longest contexts are a tenth of that. A provider
/// that tells of more is wrong, and must not close a budget.
pub const IMPOSSIBLE: u64 = 10_000_000;

/// Windows of one scope and period that are kept in memory: enough for a year of days.
pub const KEPT_WINDOWS: usize = 400;

/// Dollars, in millionths, and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub microusd: u64,
    pub tokens: u64,
}

impl Amount {
    fn of(spend: Spend) -> Self {
        Self { microusd: spend.microusd.unwrap_or(0).min(CAP), tokens: spend.tokens.min(CAP) }
    }

    fn plus(self, other: Self) -> Self {
        let sum = |a: u64, b: u64| a.saturating_add(b).min(CAP);
        Self {
            microusd: sum(self.microusd, other.microusd),
            tokens: sum(self.tokens, other.tokens),
        }
    }

    fn less(self, other: Self) -> Self {
        Self {
            microusd: self.microusd.saturating_sub(other.microusd),
            tokens: self.tokens.saturating_sub(other.tokens),
        }
    }
}

/// Which window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowKey {
    pub scope: Scope,
    pub period: Period,
    pub start: Timestamp,
}

impl WindowKey {
    /// The window of `scope` and `period` that a call of `at` counts in.
    pub fn at(scope: Scope, period: Period, at: Timestamp) -> Self {
        Self { scope, period, start: period.start(at) }
    }
}

/// What was spent in a window, and what may still be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub spent: Amount,
    pub reserved: Amount,
    /// Calls in `spent` whose price is not known.
    pub unpriced: u64,
    /// Its soft limit has warned.
    pub warned: bool,
}

/// By how much a window moved: all is added, but `freed`, which is taken from what is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windowed {
    pub key: WindowKey,
    pub spent: Amount,
    pub reserved: Amount,
    pub freed: Amount,
    pub unpriced: u64,
    /// What `warned` becomes; `None` leaves it.
    pub warned: Option<bool>,
}

impl Windowed {
    /// Nothing moved in `key`.
    pub fn still(key: WindowKey) -> Self {
        let none = Amount::default();
        Self { key, spent: none, reserved: none, freed: none, unpriced: 0, warned: None }
    }

    /// Both movements of one window as one.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        Self {
            key: self.key,
            spent: self.spent.plus(later.spent),
            reserved: self.reserved.plus(later.reserved),
            freed: self.freed.plus(later.freed),
            unpriced: self.unpriced.saturating_add(later.unpriced),
            warned: later.warned.or(self.warned),
        }
    }
}

/// A call that may be under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    pub ask: Ask,
    /// All that it counts in: the swarm, its colony, its agent, its session and those above.
    pub scopes: Vec<Scope>,
}

/// An emergency stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    pub by: String,
    pub reason: String,
    pub since: Timestamp,
}

/// What a decision moved.
pub type Moved = Vec<Windowed>;

/// A soft limit that was reached, for the first time in its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    pub limit: Limit,
    pub key: WindowKey,
    pub window: Window,
}

/// A reservation that came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub reservation: Reservation,
    /// What it counts as: the settlement, and where no price was given the reserved one.
    pub spend: Spend,
    pub moved: Moved,
    /// It cost more than was reserved. All of it is counted.
    pub above: bool,
    /// It was told to have more tokens than any call has ([`IMPOSSIBLE`]): what was reserved is counted.
    pub absurd: bool,
    pub reached: Vec<Reached>,
}

/// What a new window begins with: what was spent before there was a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    pub spent: Amount,
    pub unpriced: u64,
}

/// All that a ledger is made of, as it stands in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub limits: Vec<Limit>,
    pub windows: Vec<(WindowKey, Window)>,
    pub open: Vec<Reservation>,
}

/// The limits of one scope and period, and its windows.
#[derive(Clone, Debug, Default)]
struct Line {
    hard: Option<Limit>,
    soft: Option<Limit>,
    windows: BTreeMap<Timestamp, Window>,
    /// What was spent before is still being looked up.
    loading: bool,
}

impl Line {
    fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.hard.iter().chain(&self.soft)
    }

    fn window(&mut self, start: Timestamp) -> &mut Window {
        self.windows.entry(start).or_default()
    }

    /// Forgets the oldest windows, but none in which something is reserved.
    fn trim(&mut self) {
        while self.windows.len() > KEPT_WINDOWS {
            let idle = |window: &Window| window.reserved == Amount::default();
            let oldest = self.windows.iter().find(|(_, window)| idle(window));
            let Some((start, _)) = oldest else { return };
            let start = *start;
            self.windows.remove(&start);
        }
    }
}

/// Limits, windows, and what is reserved in them.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    lines: HashMap<Scope, BTreeMap<Period, Line>>,
    open: HashMap<CallId, Reservation>,
    halt: Option<Halt>,
}

impl Ledger {
    /// The ledger as it was left. What is reserved follows from the calls that are open.
    pub fn load(snapshot: Snapshot) -> Self {
        let Snapshot { limits, windows, open } = snapshot;
        let mut ledger = Self::default();
        for limit in limits {
            let line = ledger.lines.entry(limit.scope).or_default();
            let line = line.entry(limit.period).or_default();
            if limit.soft {
                line.soft = Some(limit);
            } else {
                line.hard = Some(limit);
            }
        }
        for (key, window) in windows {
            if let Some(line) = ledger.line(key.scope, key.period) {
                let reserved = Amount::default();
                line.windows.insert(key.start, Window { reserved, ..window });
            }
        }
        for open in &open {
            let worst = Amount::of(open.ask.worst);
            ledger.each(open.ask.at, &open.scopes, |window, _| {
                window.reserved = window.reserved.plus(worst);
            });
        }
        ledger.open = open.into_iter().map(|open| (open.ask.call, open)).collect();
        ledger
    }

    fn line(&mut self, scope: Scope, period: Period) -> Option<&mut Line> {
        self.lines.get_mut(&scope)?.get_mut(&period)
    }

    /// Whether nothing has to be looked up before a decision about these scopes.
    pub fn is_ready(&self, scopes: &[Scope]) -> bool {
        let loading = |scope| {
            self.lines.get(scope).is_some_and(|lines| lines.values().any(|line| line.loading))
        };
        !scopes.iter().any(loading)
    }

    /// Whether a hard limit applies to any of these scopes.
    pub fn is_bounded(&self, scopes: &[Scope]) -> bool {
        let hard = |scope| {
            self.lines.get(scope).is_some_and(|lines| lines.values().any(|l| l.hard.is_some()))
        };
        scopes.iter().any(hard)
    }

    pub fn is_open(&self, call: CallId) -> bool {
        self.open.contains_key(&call)
    }

    /// Calls that may be under way.
    pub fn open(&self) -> impl Iterator<Item = &Reservation> {
        self.open.values()
    }

    pub fn halt(&self) -> Option<&Halt> {
        self.halt.as_ref()
    }

    /// Begins an emergency stop, or ends it.
    pub fn set_halt(&mut self, halt: Option<Halt>) {
        self.halt = halt;
    }

    /// Reserves the most that a call may cost in every window that it counts in. The call's id
    /// must be new.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: the widest limit that it could pass. Nothing has moved then.
    pub fn reserve(&mut self, ask: &Ask, scopes: &[Scope]) -> Result<Moved, Refusal> {
        if let Some(Halt { by, reason, since }) = self.halt.clone() {
            return Err(Refusal::Halted { by, reason, since });
        }
        let worst = Amount::of(ask.worst);
        for scope in scopes {
            let Some(lines) = self.lines.get(scope) else { continue };
            for (period, line) in lines {
                let start = period.start(ask.at);
                let window = line.windows.get(&start).copied().unwrap_or_default();
                if let Some(limit) = &line.hard {
                    let known = ask.worst.microusd.is_some();
                    let closed = limit.unknown_price == UnknownPrice::Deny;
                    if limit.microusd.is_some() && !known && closed {
                        let model = ask.model.clone();
                        let scope = *scope;
                        return Err(Refusal::UnknownPrice { model, scope, named: None });
                    }
                }
                for (unit, limit, used, reserved, asked) in [
                    (
                        Unit::Microusd,
                        line.hard.as_ref().and_then(|limit| limit.microusd_in(start)),
                        window.spent.microusd,
                        window.reserved.microusd,
                        worst.microusd,
                    ),
                    (
                        Unit::Tokens,
                        line.hard.as_ref().and_then(|limit| limit.tokens_in(start)),
                        window.spent.tokens,
                        window.reserved.tokens,
                        worst.tokens,
                    ),
                ] {
                    // Beyond the cap nothing could be given back exactly.
                    let beyond = reserved + asked > CAP;
                    let over = limit.is_some_and(|limit| used + reserved + asked > limit);
                    if over || beyond {
                        return Err(Refusal::Over {
                            id: LimitId::of(*scope, *period, false),
                            scope: *scope,
                            named: None,
                            period: *period,
                            unit,
                            limit: limit.unwrap_or(CAP),
                            used,
                            reserved,
                            asked,
                            counted: None,
                            resets_at: period.end(start),
                        });
                    }
                }
            }
        }
        let moved = self.each(ask.at, scopes, |window, moved| {
            window.reserved = window.reserved.plus(worst);
            moved.reserved = worst;
        });
        let reservation = Reservation { ask: ask.clone(), scopes: scopes.to_vec() };
        self.open.insert(ask.call, reservation);
        Ok(moved)
    }

    /// Changes every window that a call of `at` in `scopes` counts in.
    fn each(
        &mut self,
        at: Timestamp,
        scopes: &[Scope],
        mut change: impl FnMut(&mut Window, &mut Windowed),
    ) -> Moved {
        let mut all = Vec::new();
        for scope in scopes {
            let Some(lines) = self.lines.get_mut(scope) else { continue };
            for (period, line) in lines {
                let key = WindowKey::at(*scope, *period, at);
                let mut moved = Windowed::still(key);
                change(line.window(key.start), &mut moved);
                line.trim();
                all.push(moved);
            }
        }
        all
    }

    /// Ends a call that cost `spend`. Where that has no price, the price that was reserved
    /// counts. `None` when no such call is open.
    pub fn settle(&mut self, call: CallId, spend: Spend) -> Option<Settled> {
        let reservation = self.open.remove(&call)?;
        let worst = reservation.ask.worst;
        let absurd = spend.tokens > worst.tokens.saturating_add(IMPOSSIBLE);
        let spend = if absurd { worst } else { spend };
        let spend = Spend { microusd: spend.microusd.or(worst.microusd), ..spend };
        let above = spend.tokens > worst.tokens
            || spend.microusd.zip(worst.microusd).is_some_and(|(spent, worst)| spent > worst);
        let (free, cost) = (Amount::of(worst), Amount::of(spend));
        let unpriced = u64::from(spend.microusd.is_none());
        let mut moved = self.each(reservation.ask.at, &reservation.scopes, |window, moved| {
            window.reserved = window.reserved.less(free);
            window.spent = window.spent.plus(cost);
            window.unpriced = window.unpriced.saturating_add(unpriced);
            (moved.spent, moved.freed, moved.unpriced) = (cost, free, unpriced);
        });
        let mut reached = Vec::new();
        for moved in &mut moved {
            reached.extend(self.warn(moved));
        }
        Some(Settled { reservation, spend, moved, above, absurd, reached })
    }

    /// Ends a call at the most that it may have cost.
    pub fn settle_at_worst(&mut self, call: CallId) -> Option<Settled> {
        let worst = self.open.get(&call)?.ask.worst;
        self.settle(call, worst)
    }

    /// Ends a call that cost nothing, or takes back a reservation that could not be made durable.
    pub fn release(&mut self, call: CallId) -> Option<(Reservation, Moved)> {
        let reservation = self.open.remove(&call)?;
        let free = Amount::of(reservation.ask.worst);
        let moved = self.each(reservation.ask.at, &reservation.scopes, |window, moved| {
            window.reserved = window.reserved.less(free);
            moved.freed = free;
        });
        Some((reservation, moved))
    }

    /// The soft limit of a window that has just moved, if it is reached for the first time.
    fn warn(&mut self, moved: &mut Windowed) -> Option<Reached> {
        let key = moved.key;
        let line = self.line(key.scope, key.period)?;
        let limit = line.soft.clone()?;
        let window = line.windows.get_mut(&key.start)?;
        let passed = |limit: Option<u64>, spent: u64| limit.is_some_and(|limit| spent >= limit);
        let reached = passed(limit.microusd_in(key.start), window.spent.microusd)
            || passed(limit.tokens_in(key.start), window.spent.tokens);
        if window.warned || !reached {
            return None;
        }
        window.warned = true;
        moved.warned = Some(true);
        Some(Reached { limit, key, window: *window })
    }

    // --- limits

    /// Sets a limit. What is reserved at this moment counts in it at once. When the answer's
    /// second part is true, nothing is decided about the scope until [`Ledger::loaded`] says what
    /// was spent before.
    pub fn put(&mut self, limit: Limit, now: Timestamp) -> (Moved, bool) {
        let (scope, period) = (limit.scope, limit.period);
        let lines = self.lines.entry(scope).or_default();
        let known = lines.contains_key(&period);
        let line = lines.entry(period).or_default();
        let mut moved: Moved = Vec::new();
        if limit.soft {
            // Another limit, another warning.
            let key = WindowKey::at(scope, period, now);
            if line.windows.get(&key.start).is_some_and(|window| window.warned) {
                line.window(key.start).warned = false;
                moved.push(Windowed { warned: Some(false), ..Windowed::still(key) });
            }
            line.soft = Some(limit);
        } else {
            line.hard = Some(limit);
        }
        if known {
            return (moved, false);
        }
        line.loading = true;
        for open in self.open.values().filter(|open| open.scopes.contains(&scope)) {
            let key = WindowKey::at(scope, period, open.ask.at);
            let worst = Amount::of(open.ask.worst);
            let window = line.window(key.start);
            window.reserved = window.reserved.plus(worst);
            moved.push(Windowed { reserved: worst, ..Windowed::still(key) });
        }
        (moved, true)
    }

    /// Adds what was spent in the window that `now` is in before its limit was set.
    pub fn loaded(
        &mut self,
        scope: Scope,
        period: Period,
        now: Timestamp,
        baseline: Baseline,
    ) -> Moved {
        let key = WindowKey::at(scope, period, now);
        let Some(line) = self.line(scope, period) else { return Vec::new() };
        line.loading = false;
        let window = line.window(key.start);
        window.spent = window.spent.plus(baseline.spent);
        window.unpriced = window.unpriced.saturating_add(baseline.unpriced);
        let (spent, unpriced) = (baseline.spent, baseline.unpriced);
        vec![Windowed { spent, unpriced, ..Windowed::still(key) }]
    }

    /// Removes a limit; the second part of the answer is true when no other needs its windows.
    pub fn remove(&mut self, id: LimitId) -> Option<(Limit, bool)> {
        let limit = self.limit(id)?.clone();
        let lines = self.lines.get_mut(&limit.scope)?;
        let line = lines.get_mut(&limit.period)?;
        if limit.soft {
            line.soft = None;
        } else {
            line.hard = None;
        }
        let last = line.limits().next().is_none();
        if last {
            lines.remove(&limit.period);
            if lines.is_empty() {
                self.lines.remove(&limit.scope);
            }
        }
        Some((limit, last))
    }

    pub fn limit(&self, id: LimitId) -> Option<&Limit> {
        self.limits().find(|limit| limit.id == id)
    }

    /// The limit of a scope and period.
    pub fn find(&self, scope: Scope, period: Period, soft: bool) -> Option<&Limit> {
        let line = self.lines.get(&scope)?.get(&period)?;
        if soft { line.soft.as_ref() } else { line.hard.as_ref() }
    }

    /// All limits, in no order.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.lines.values().flat_map(BTreeMap::values).flat_map(Line::limits)
    }

    /// How a limit's window stands at `now`.
    pub fn window(&self, scope: Scope, period: Period, now: Timestamp) -> Window {
        let line = self.lines.get(&scope).and_then(|lines| lines.get(&period));
        let window = line.and_then(|line| line.windows.get(&period.start(now)));
        window.copied().unwrap_or_default()
    }

    /// Every window that is kept.
    pub fn windows(&self) -> impl Iterator<Item = (WindowKey, Window)> + '_ {
        self.lines.iter().flat_map(|(scope, lines)| {
            lines.iter().flat_map(move |(period, line)| {
                line.windows.iter().map(move |(start, window)| {
                    (WindowKey { scope: *scope, period: *period, start: *start }, *window)
                })
            })
        })
    }

    /// Scopes that have limits.
    pub fn scopes(&self) -> HashSet<Scope> {
        self.lines.keys().copied().collect()
    }
}
