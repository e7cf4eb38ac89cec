//! The ledger: limits, windows and open reservations, and all decisions about them.
//!
//! Scope, period and the time of a call's request determine its window. So a reservation is settled
//! in the window in which it was made, however late, and a clock that goes back finds the earlier
//! window unchanged. A decision reads the few limits that apply, and never individual calls.
//!
//! The owner of a ledger makes each change durable: every decision returns the amounts by which
//! windows changed ([`Windowed`]). The amounts can be added in any order.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::limit::{Limit, UnknownPrice};
use super::period::Period;
use super::refusal::{Refusal, Unit};
use super::scope::Scope;
use super::{Ask, Spend};
use crate::ids::{CallId, LimitId};
use crate::time::Timestamp;

/// Largest amount and sum: nine billion dollars, or a million times as many tokens. Additions
/// beyond it are lost; a reservation that would exceed it is refused.
pub const CAP: u64 = 1 << 53;

/// Tokens above the reserved ones that no call can have; the longest contexts are a tenth of it. A
/// provider that reports more is wrong, and must not exhaust a budget.
pub const IMPOSSIBLE: u64 = 10_000_000;

/// Windows of one scope and period that are kept in memory: enough for a year of days.
pub const KEPT_WINDOWS: usize = 400;

/// An amount in millionths of a dollar and in tokens.
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

/// The key of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowKey {
    pub scope: Scope,
    pub period: Period,
    pub start: Timestamp,
}

impl WindowKey {
    /// Returns the window of `scope` and `period` in which a call at `at` counts.
    pub fn at(scope: Scope, period: Period, at: Timestamp) -> Self {
        Self { scope, period, start: period.start(at) }
    }
}

/// The spent and reserved amounts of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub spent: Amount,
    pub reserved: Amount,
    /// Number of calls in `spent` whose price is not known.
    pub unpriced: u64,
    /// Whether its soft limit has warned.
    pub warned: bool,
}

/// The change of a window. All amounts are added, except `freed`, which is subtracted from the
/// reserved amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windowed {
    pub key: WindowKey,
    pub spent: Amount,
    pub reserved: Amount,
    pub freed: Amount,
    pub unpriced: u64,
    /// The new value of `warned`; `None` keeps it.
    pub warned: Option<bool>,
}

impl Windowed {
    /// Creates an empty change of the window `key`.
    pub fn still(key: WindowKey) -> Self {
        let none = Amount::default();
        Self { key, spent: none, reserved: none, freed: none, unpriced: 0, warned: None }
    }

    /// Combines two changes of one window.
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

/// The reservation of a call that may be running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    pub ask: Ask,
    /// All scopes in which it counts: the swarm, its colony, its agent, its session and the
    /// sessions above.
    pub scopes: Vec<Scope>,
}

/// An emergency stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    pub by: String,
    pub reason: String,
    pub since: Timestamp,
}

/// The changes of a decision.
pub type Moved = Vec<Windowed>;

/// A soft limit that was reached for the first time in its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    pub limit: Limit,
    pub key: WindowKey,
    pub window: Window,
}

/// A reservation that was closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub reservation: Reservation,
    /// The amount that counts: the settlement, with the reserved cost if no price was given.
    pub spend: Spend,
    pub moved: Moved,
    /// Whether it cost more than was reserved. All of it counts.
    pub above: bool,
    /// Whether the reported tokens were impossible ([`IMPOSSIBLE`]). Then the reserved amount
    /// counts.
    pub absurd: bool,
    pub reached: Vec<Reached>,
}

/// The initial amount of a new window: what was spent before the limit was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    pub spent: Amount,
    pub unpriced: u64,
}

/// The stored state of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub limits: Vec<Limit>,
    pub windows: Vec<(WindowKey, Window)>,
    pub open: Vec<Reservation>,
}

/// The limits and windows of one scope and period.
#[derive(Clone, Debug, Default)]
struct Line {
    hard: Option<Limit>,
    soft: Option<Limit>,
    windows: BTreeMap<Timestamp, Window>,
    /// Whether the earlier spending is still being looked up.
    loading: bool,
}

impl Line {
    fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.hard.iter().chain(&self.soft)
    }

    fn window(&mut self, start: Timestamp) -> &mut Window {
        self.windows.entry(start).or_default()
    }

    /// Removes the oldest windows, except those with reservations.
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

/// The ledger: limits, windows, and their reservations.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    lines: HashMap<Scope, BTreeMap<Period, Line>>,
    open: HashMap<CallId, Reservation>,
    halt: Option<Halt>,
}

impl Ledger {
    /// Creates the ledger from its stored state. The open calls determine the reserved amounts.
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

    /// Returns whether a decision about these scopes needs no further look-up.
    pub fn is_ready(&self, scopes: &[Scope]) -> bool {
        let loading = |scope| {
            self.lines.get(scope).is_some_and(|lines| lines.values().any(|line| line.loading))
        };
        !scopes.iter().any(loading)
    }

    /// Returns whether a hard limit applies to any of these scopes.
    pub fn is_bounded(&self, scopes: &[Scope]) -> bool {
        let hard = |scope| {
            self.lines.get(scope).is_some_and(|lines| lines.values().any(|l| l.hard.is_some()))
        };
        scopes.iter().any(hard)
    }

    pub fn is_open(&self, call: CallId) -> bool {
        self.open.contains_key(&call)
    }

    /// Returns the calls that may be running.
    pub fn open(&self) -> impl Iterator<Item = &Reservation> {
        self.open.values()
    }

    pub fn halt(&self) -> Option<&Halt> {
        self.halt.as_ref()
    }

    /// Starts or ends an emergency stop.
    pub fn set_halt(&mut self, halt: Option<Halt>) {
        self.halt = halt;
    }

    /// Reserves the highest cost of a call in every window in which it counts. The call's id must
    /// be new.
    ///
    /// # Errors
    ///
    /// [`Refusal`] with the widest limit that it could exceed. Nothing is reserved then.
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
                        return Err(Refusal::UnknownPrice {
                            model,
                            option: None,
                            scope,
                            named: None,
                        });
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
                    // Amounts beyond the cap could not be returned exactly.
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

    /// Changes every window in which a call at `at` in `scopes` counts.
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

    /// Ends a call that cost `spend`. If `spend` has no price, the reserved price counts. `None` if
    /// no such call is open.
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

    /// Ends a call with the highest cost that it can have had.
    pub fn settle_at_worst(&mut self, call: CallId) -> Option<Settled> {
        let worst = self.open.get(&call)?.ask.worst;
        self.settle(call, worst)
    }

    /// Ends a call without cost, or reverts a reservation that could not be made durable.
    pub fn release(&mut self, call: CallId) -> Option<(Reservation, Moved)> {
        let reservation = self.open.remove(&call)?;
        let free = Amount::of(reservation.ask.worst);
        let moved = self.each(reservation.ask.at, &reservation.scopes, |window, moved| {
            window.reserved = window.reserved.less(free);
            moved.freed = free;
        });
        Some((reservation, moved))
    }

    /// Returns the soft limit of a window that has just changed, if it is reached for the first
    /// time.
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

    /// Sets a limit. Present reservations count in it at once. If the second value is true, no
    /// decision about the scope is made until [`Ledger::loaded`] is called with the earlier
    /// spending.
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

    /// Adds the amount that was spent in the window of `now` before its limit was set.
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

    /// Removes a limit. The second value is true if no other limit needs its windows.
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

    /// Returns the limit of a scope and period.
    pub fn find(&self, scope: Scope, period: Period, soft: bool) -> Option<&Limit> {
        let line = self.lines.get(&scope)?.get(&period)?;
        if soft { line.soft.as_ref() } else { line.hard.as_ref() }
    }

    /// Returns all limits, in no order.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.lines.values().flat_map(BTreeMap::values).flat_map(Line::limits)
    }

    /// Returns the window of a scope and period at `now`.
    pub fn window(&self, scope: Scope, period: Period, now: Timestamp) -> Window {
        let line = self.lines.get(&scope).and_then(|lines| lines.get(&period));
        let window = line.and_then(|line| line.windows.get(&period.start(now)));
        window.copied().unwrap_or_default()
    }

    /// Returns every window in memory.
    pub fn windows(&self) -> impl Iterator<Item = (WindowKey, Window)> + '_ {
        self.lines.iter().flat_map(|(scope, lines)| {
            lines.iter().flat_map(move |(period, line)| {
                line.windows.iter().map(move |(start, window)| {
                    (WindowKey { scope: *scope, period: *period, start: *start }, *window)
                })
            })
        })
    }

    /// Returns the scopes that have limits.
    pub fn scopes(&self) -> HashSet<Scope> {
        self.lines.keys().copied().collect()
    }
}
