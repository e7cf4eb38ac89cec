//! Sentinels: one session on each hive that matches, as a pure function of what is wanted and seen.
//!
//! A sentinel is a fleet whose slots belong to hives. There is never a second session for a hive: the one
//! of an earlier template has ended before the next is made. A hive that is gone, or matches no more,
//! loses its session.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    FleetSpec, FleetStatus, Plan, Seen, Slot, absorb, failed_until, refused_until, revise, shrink,
    superfluous, tell,
};
use crate::time::Timestamp;

#[cfg(test)]
mod tests;

/// The label of each hive that has its name.
pub const NAME_LABEL: &str = "overmind/hive";

/// A machine that runs sessions, as the engine knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hive {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

impl Hive {
    /// With the label [`NAME_LABEL`].
    pub fn new(name: &str) -> Self {
        let labels = BTreeMap::from([(NAME_LABEL.to_owned(), name.to_owned())]);
        Self { name: name.to_owned(), labels }
    }
}

/// Returns the name of a pack.
pub fn pack_name(sentinel: &str, revision: u32) -> String {
    let short: String = sentinel.chars().take(200).collect();
    format!("{short}-sentinel-r{revision}")
}

/// Decides what is to be done for a sentinel, as [`super::decide`] does for a fleet. `hives`: all that
/// there are.
pub fn decide(
    spec: &FleetSpec,
    generation: u64,
    status: &FleetStatus,
    seen: &BTreeMap<u32, Seen>,
    deleting: bool,
    now: Timestamp,
    hives: &[Hive],
) -> Plan {
    let mut new = status.clone();
    new.observed_generation = generation;
    let why = absorb(&mut new, seen, now);
    let pack = revise(spec, &mut new, deleting);
    let matching = hives.iter().filter(|hive| !deleting && spec.selector.matches(&hive.labels));
    let matching: BTreeSet<&str> = matching.map(|hive| hive.name.as_str()).collect();
    let wanted = u32::try_from(matching.len()).unwrap_or(u32::MAX);
    let matches = |slot: &Slot| slot.hive.as_deref().is_some_and(|hive| matching.contains(hive));
    for slot in new.slots.iter_mut().filter(|slot| !matches(slot)) {
        slot.stopping = true;
    }
    shrink(spec, &mut new, wanted, now);
    new.slots.retain(|slot| !(slot.stopping && slot.session.is_none()));
    let held = grow(&mut new, seen, &matching, now);
    let before = new.conditions.clone();
    tell(spec, &mut new, wanted, held, why, now);
    if wanted == 0 && !deleting {
        say_none(&mut new, before, hives, now);
    }

    let refused = refused_until(&new, now);
    let ready_times = new.slots.iter().filter_map(|slot| slot.ready_at);
    let ready_times = ready_times.map(|at| at.after(spec.min_ready)).filter(|at| *at > now);
    let again = ready_times.chain(held).chain(refused).min();
    let absent = |slot: &&Slot| {
        slot.session.is_none() && !seen.contains_key(&slot.number) && refused.is_none()
    };
    let start = new.slots.iter().filter(absent).cloned().collect();
    let cancel = superfluous(&new, seen, deleting);
    let release = deleting && new.slots.is_empty() && cancel.is_empty();
    Plan { status: new, pack, start, cancel, release, again }
}

/// Adds a slot for each hive that has none. Answers until when further ones wait.
fn grow(
    new: &mut FleetStatus,
    seen: &BTreeMap<u32, Seen>,
    matching: &BTreeSet<&str>,
    now: Timestamp,
) -> Option<Timestamp> {
    let absent = |slot: &Slot| slot.session.is_none() && !seen.contains_key(&slot.number);
    let refused = new.refusals > 0 && new.slots.iter().any(absent);
    if !refused {
        (new.refusals, new.refused_at) = (0, None);
    }
    let has = |hive: &str| new.slots.iter().any(|slot| slot.hive.as_deref() == Some(hive));
    let missing: Vec<&str> = matching.iter().copied().filter(|hive| !has(hive)).collect();
    if missing.is_empty() || refused {
        return None;
    }
    let until = failed_until(new, now);
    if until.is_some() {
        return until;
    }
    for hive in missing {
        let taken: BTreeSet<u32> = new.slots.iter().map(|slot| slot.ordinal).collect();
        let ordinal = (0..).find(|ordinal| !taken.contains(ordinal)).unwrap_or_default();
        let slot = Slot::new(new.next, ordinal, new.revision);
        new.slots.push(Slot { hive: Some(hive.to_owned()), ..slot });
        new.next = new.next.saturating_add(1);
    }
    None
}

/// Says that no hive matches. `before`: the conditions before [`tell`], whose word for a rollout that has
/// nothing to do would be another one.
fn say_none(
    new: &mut FleetStatus,
    before: Vec<crate::record::condition::Condition>,
    hives: &[Hive],
    now: Timestamp,
) {
    let is_ours = |kind: &str| kind == "Progressing" || kind == "Ready";
    new.conditions.retain(|one| !is_ours(&one.kind));
    new.conditions.extend(before.into_iter().filter(|one| is_ours(&one.kind)));
    let names: Vec<&str> = hives.iter().take(10).map(|hive| hive.name.as_str()).collect();
    let text = format!("spec.selector matches none of the hives: {}", names.join(", "));
    new.say("Progressing", false, "NoHiveMatches", text, now);
    new.say("Ready", false, "NoHiveMatches", String::new(), now);
    new.conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
}
