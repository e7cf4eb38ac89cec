//! Rituals: recurring quests, as a pure function of the schedule, the time and the earlier ticks.
//!
//! Each tick of the schedule is decided once. The status contains the time up to which ticks were
//! decided, which never goes back, even if the clock does. The caller must write the status of a
//! [`Plan`] and create the quests of its ticks in one commit, so that a crash neither loses nor
//! doubles a tick. A quest is named after its tick ([`quest_name`]).

mod spec;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::quest::Author;
use crate::schedule::jitter;
use crate::time::Timestamp;

pub use spec::{Concurrency, Missed, RitualSpec, schema};

/// A tick that is decided later than this counts as missed.
pub const GRACE: Duration = Duration::from_secs(10);
/// Maximum number of missed ticks that are caught up at once; earlier ones are skipped.
pub const MAX_CATCH_UP: usize = 100;

/// The status of a ritual.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RitualStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
    /// The last generation that was processed; 0 before the first.
    pub observed_generation: u64,
    /// Schedule and time zone of that generation.
    pub schedule: String,
    /// Whether that generation was suspended.
    pub suspended: bool,
    /// All ticks up to this time were decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through: Option<Timestamp>,
    /// The last tick for which a quest was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_tick: Option<Timestamp>,
    /// The last tick for which no quest was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_skipped: Option<Timestamp>,
}

impl RitualStatus {
    /// Reads a stored status. An invalid one is read as the status of a new ritual.
    pub fn read(status: &serde_json::Value) -> Self {
        Self::deserialize(status).unwrap_or_default()
    }
}

/// The fields of a ritual that decisions need.
#[derive(Clone, Copy, Debug)]
pub struct Ritual<'a> {
    pub name: &'a str,
    pub generation: u64,
    pub created_at: Timestamp,
    /// Time at which its spec was last written, or later.
    pub written_at: Timestamp,
}

/// A quest that the ritual owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub name: String,
    pub created_at: Timestamp,
    /// Whether it succeeded; `None` while it has not finished.
    pub finished: Option<bool>,
}

/// The actions to take: write `status` and create a quest for each tick of `fire` in one commit,
/// then do the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub status: RitualStatus,
    pub fire: Vec<Timestamp>,
    /// Names of owned quests to delete.
    pub delete: Vec<String>,
}

/// Returns the name of the quest of a tick.
pub fn quest_name(ritual: &str, tick: Timestamp) -> String {
    let short: String = ritual.chars().take(200).collect();
    format!("{short}-{}", tick.as_micros().div_euclid(1_000_000))
}

/// Returns when the quest of a tick starts, including jitter.
fn begins(name: &str, spec: &RitualSpec, tick: Timestamp) -> Timestamp {
    tick.after(jitter(name, tick, spec.jitter))
}

/// Returns when the next tick must be decided; `None` if there is no further tick.
pub fn due(
    ritual: Ritual<'_>,
    spec: &RitualSpec,
    status: &RitualStatus,
    now: Timestamp,
) -> Option<Timestamp> {
    if status.observed_generation != ritual.generation {
        return Some(now);
    }
    if spec.suspend {
        return None;
    }
    let through = status.through.unwrap_or(ritual.created_at);
    spec.schedule.next(through).map(|tick| begins(ritual.name, spec, tick))
}

/// Decides which ticks get a quest now. Deciding again on the result of the plan returns a plan
/// without actions.
pub fn decide(
    ritual: Ritual<'_>,
    spec: &RitualSpec,
    status: &RitualStatus,
    owned: &[Owned],
    now: Timestamp,
) -> Plan {
    let mut new = status.clone();
    if new.observed_generation != ritual.generation {
        let text = format!("{} {}", spec.text, spec.zone);
        // A new schedule, or the end of a suspension, begins when it was written: no earlier tick
        // is a missed one.
        if new.observed_generation > 0 && (new.suspended || new.schedule != text) {
            let from = ritual.written_at.min(now);
            new.through = Some(new.through.unwrap_or(ritual.created_at).max(from));
        }
        new.observed_generation = ritual.generation;
        new.schedule = text;
        new.suspended = spec.suspend;
    }
    let mut fire = if spec.suspend { Vec::new() } else { due_ticks(ritual, spec, &mut new, now) };
    let is_active = owned.iter().any(|one| one.finished.is_none());
    match spec.concurrency {
        Concurrency::Allow => {}
        Concurrency::Forbid if spec.missed == Missed::All => {
            // Each has its turn, one after the other.
            let next = if is_active { None } else { fire.first().copied() };
            if !fire.is_empty() && next != fire.last().copied() {
                let before = fire.first().map(|tick| tick.before(Duration::from_micros(1)));
                new.through = next.or(before).max(status.through);
            }
            fire = next.into_iter().collect();
        }
        Concurrency::Forbid | Concurrency::Replace => {
            let busy = is_active && spec.concurrency == Concurrency::Forbid;
            let kept = if busy { None } else { fire.last().copied() };
            let skipped = fire.iter().copied().filter(|tick| Some(*tick) != kept).max();
            new.last_skipped = new.last_skipped.max(skipped);
            fire = kept.into_iter().collect();
        }
    }
    new.last_tick = fire.last().copied().or(new.last_tick);
    let delete = superfluous(ritual, spec, &new, owned, !fire.is_empty());
    Plan { status: new, fire, delete }
}

/// Returns the due ticks that need a quest, and marks all due ticks as decided.
fn due_ticks(
    ritual: Ritual<'_>,
    spec: &RitualSpec,
    new: &mut RitualStatus,
    now: Timestamp,
) -> Vec<Timestamp> {
    let through = new.through.unwrap_or(ritual.created_at);
    let begins = |tick: Timestamp| begins(ritual.name, spec, tick);
    let ticks = latest(spec, through, now, &begins);
    let Some(last) = ticks.last().copied() else { return Vec::new() };
    new.through = Some(last);
    let in_time = |tick: &Timestamp| {
        spec.starting_deadline.is_none_or(|most| begins(*tick).after(most) >= now)
    };
    let (late, punctual): (Vec<Timestamp>, Vec<Timestamp>) =
        ticks.iter().copied().partition(|tick| begins(*tick).after(GRACE) < now);
    let mut late = late.into_iter().filter(in_time);
    let mut fire: Vec<Timestamp> = match spec.missed {
        Missed::Skip => Vec::new(),
        Missed::Once if punctual.is_empty() => late.next_back().into_iter().collect(),
        Missed::Once => Vec::new(),
        Missed::All => late.collect(),
    };
    fire.extend(punctual.into_iter().filter(in_time));
    let skipped = ticks.iter().copied().filter(|tick| !fire.contains(tick)).max();
    new.last_skipped = new.last_skipped.max(skipped);
    fire
}

/// Returns the latest started ticks after `through`, at most [`MAX_CATCH_UP`], ascending. It
/// examines few ticks, however long ago `through` is: it searches growing time windows before now.
fn latest(
    spec: &RitualSpec,
    through: Timestamp,
    now: Timestamp,
    begins: &dyn Fn(Timestamp) -> Timestamp,
) -> Vec<Timestamp> {
    let mut window = Duration::from_mins(2).saturating_add(spec.jitter);
    loop {
        let from = through.max(now.before(window));
        let first = spec.schedule.next(from);
        let all = std::iter::successors(first, |last| spec.schedule.next(*last));
        let mut ticks: Vec<Timestamp> = all.take_while(|tick| begins(*tick) <= now).collect();
        if ticks.len() >= MAX_CATCH_UP || from == through {
            return ticks.split_off(ticks.len().saturating_sub(MAX_CATCH_UP));
        }
        window = window.saturating_mul(30);
    }
}

/// Returns owned quests that exceed the kept history or were replaced.
fn superfluous(
    ritual: Ritual<'_>,
    spec: &RitualSpec,
    new: &RitualStatus,
    owned: &[Owned],
    fired: bool,
) -> Vec<String> {
    let mut newest: Vec<&Owned> = owned.iter().collect();
    newest.sort_by(|a, b| (b.created_at, &b.name).cmp(&(a.created_at, &a.name)));
    // The next tick decides about quests that were started by hand since the last tick.
    let last = new.last_tick.map(|tick| quest_name(ritual.name, tick));
    let began = owned.iter().find(|one| Some(&one.name) == last.as_ref()).map(|one| one.created_at);
    let earlier = |one: &Owned| match (fired, began) {
        (true, _) => true,
        (false, Some(began)) => one.created_at < began,
        (false, None) => false,
    };
    let (mut well, mut badly) = (0, 0);
    let mut gone = Vec::new();
    for one in newest {
        let is_over = match one.finished {
            Some(true) => {
                well += 1;
                well > spec.keep_succeeded
            }
            Some(false) => {
                badly += 1;
                badly > spec.keep_failed
            }
            None => {
                spec.concurrency == Concurrency::Replace
                    && last.as_ref() != Some(&one.name)
                    && earlier(one)
            }
        };
        if is_over {
            gone.push(one.name.clone());
        }
    }
    gone
}
