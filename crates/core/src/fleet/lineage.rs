//! Lineages: sessions that stay the same ones, as a pure function of what is wanted and seen.
//!
//! A lineage is a fleet whose ordinals mean something: an ordinal keeps its session. One that has ended
//! is not replaced but brought back, as a slot whose session is to be started although it was made. They
//! are made in the order of their ordinals, each when those before it are available, and scaled away from
//! the highest, each when those after it have ended. What is scaled away is parked and comes back with
//! its ordinal. Only another template gives an ordinal another session, one at a time from the highest.

use std::collections::BTreeMap;

use super::{
    FleetSpec, FleetStatus, Plan, Seen, Slot, available, calm, fail, failed_until, refused_until,
    revise, superfluous, tell,
};
use crate::time::Timestamp;

#[cfg(test)]
mod tests;

/// Returns the name of a pack.
pub fn pack_name(lineage: &str, revision: u32) -> String {
    let short: String = lineage.chars().take(200).collect();
    format!("{short}-lineage-r{revision}")
}

/// Decides what is to be done for a lineage, as [`super::decide`] does for a fleet. [`Plan::start`] has
/// slots whose sessions are to be made, or brought back where they have ended.
pub fn decide(
    spec: &FleetSpec,
    generation: u64,
    status: &FleetStatus,
    seen: &BTreeMap<u32, Seen>,
    deleting: bool,
    now: Timestamp,
) -> Plan {
    let mut new = status.clone();
    new.observed_generation = generation;
    let why = absorb(&mut new, seen, now);
    let pack = revise(spec, &mut new, deleting);
    let wanted = if deleting { 0 } else { spec.replicas };
    let goes_on = |slot: &Slot| {
        let open = matches!(seen.get(&slot.number), Some(Seen::Starting(_) | Seen::Running(_)));
        open && slot.ended.is_none()
    };
    scale_away(&mut new, wanted, deleting, &goes_on);
    replace(spec, &mut new, wanted, &goes_on, now);
    let waits = |slot: &Slot| !slot.stopping && !goes_on(slot);
    if !new.slots.iter().any(waits) {
        (new.refusals, new.refused_at) = (0, None);
    }
    let missing = next_missing(spec, &new, wanted, now);
    let is_waiting = missing.is_some() || new.slots.iter().any(waits);
    let held = failed_until(&new, now).filter(|_| is_waiting && new.refusals == 0);
    if let Some(ordinal) = missing
        && held.is_none()
        && new.refusals == 0
    {
        add(&mut new, ordinal);
    }
    tell(spec, &mut new, wanted, held, why, now);
    say_who(spec, &mut new, wanted, now);

    let refused = refused_until(&new, now);
    let ready_times = new.slots.iter().filter_map(|slot| slot.ready_at);
    let ready_times = ready_times.map(|at| at.after(spec.min_ready)).filter(|at| *at > now);
    let again = ready_times.chain(refused).chain(held).min();
    let may_start = refused.is_none() && held.is_none();
    let start = new.slots.iter().filter(|slot| may_start && waits(slot)).cloned().collect();
    let cancel = superfluous(&new, seen, deleting);
    let release = deleting && new.slots.is_empty() && cancel.is_empty();
    Plan { status: new, pack, start, cancel, release, again }
}

/// Updates the slots from the observed sessions. Returns why the last one ended on its own.
fn absorb(new: &mut FleetStatus, seen: &BTreeMap<u32, Seen>, now: Timestamp) -> Option<String> {
    calm(new, now);
    let (mut failures, mut last) = (0_u32, None);
    for at in 0..new.slots.len() {
        let (next, revision) = (new.next, new.revision);
        let Some(slot) = new.slots.get_mut(at) else { continue };
        match seen.get(&slot.number) {
            Some(Seen::Starting(id)) => {
                (slot.session, slot.ended, slot.ready_at) = (Some(*id), None, None);
            }
            Some(Seen::Running(id)) => {
                (slot.session, slot.ended) = (Some(*id), None);
                slot.ready_at.get_or_insert(now);
            }
            // One end is seen many times and counts once.
            Some(Seen::Ended { epoch, .. }) if slot.ended == Some(*epoch) => {}
            Some(Seen::Ended { epoch, by_hand, why }) => {
                (slot.ended, slot.ready_at) = (Some(*epoch), None);
                if !slot.stopping && !by_hand {
                    failures += 1;
                    last = Some(why.clone());
                }
            }
            // Somebody has removed it, and all that there was of it.
            None if slot.session.is_some() => {
                let stopping = slot.stopping;
                *slot = Slot { stopping, ..Slot::new(next, slot.ordinal, revision) };
                new.next = next.saturating_add(1);
            }
            None => {}
        }
    }
    fail(new, failures, now);
    last
}

/// Ends the ordinals that are not wanted: the highest first, and of a lineage that goes all at once.
fn scale_away(new: &mut FleetStatus, wanted: u32, deleting: bool, goes_on: &dyn Fn(&Slot) -> bool) {
    new.slots.sort_by_key(|slot| slot.ordinal);
    let mut is_ending = false;
    for slot in new.slots.iter_mut().rev().take_while(|slot| slot.ordinal >= wanted) {
        slot.stopping |= !goes_on(slot) || !is_ending || deleting;
        is_ending |= goes_on(slot);
    }
    let is_gone = |slot: &Slot| slot.stopping && slot.ordinal >= wanted && !goes_on(slot);
    let gone: Vec<Slot> = new.slots.extract_if(.., |slot| is_gone(slot)).collect();
    // A session that was never created leaves nothing.
    let gone = gone.into_iter().filter(|slot| slot.ended.is_some() && !deleting);
    new.parked.extend(gone.map(|slot| Slot { stopping: false, ..slot }));
    new.parked.sort_by_key(|slot| slot.ordinal);
}

/// Gives ordinals of an earlier revision another session: those at once whose session has ended, and of
/// the others the highest, when all are available.
fn replace(
    spec: &FleetSpec,
    new: &mut FleetStatus,
    wanted: u32,
    goes_on: &dyn Fn(&Slot) -> bool,
    now: Timestamp,
) {
    let revision = new.revision;
    for slot in new.slots.iter_mut().filter(|slot| slot.ordinal < wanted && !goes_on(slot)) {
        match slot.revision == revision {
            true => slot.stopping = false,
            false => {
                *slot = Slot::new(new.next, slot.ordinal, revision);
                new.next = new.next.saturating_add(1);
            }
        }
    }
    let is_wanted = |slot: &&Slot| slot.ordinal < wanted;
    let ready = new.slots.iter().filter(is_wanted).filter(|slot| available(spec, slot, now));
    let all_ready = ready.count() == wanted as usize;
    let is_ending = new.slots.iter().filter(is_wanted).any(|slot| slot.stopping);
    let mut old = new.slots.iter_mut().rev().filter(|slot| slot.ordinal < wanted);
    if let Some(slot) = old.find(|slot| slot.revision != revision && !slot.stopping) {
        // One that is not available is no loss.
        slot.stopping = all_ready || (!is_ending && !available(spec, slot, now));
    }
}

/// The lowest ordinal that has no slot, if all before it are available.
fn next_missing(spec: &FleetSpec, new: &FleetStatus, wanted: u32, now: Timestamp) -> Option<u32> {
    let before = new.slots.iter().zip(0_u32..);
    let before = before.take_while(|(slot, at)| slot.ordinal == *at && available(spec, slot, now));
    let next = u32::try_from(before.count()).unwrap_or(u32::MAX);
    (next < wanted && new.slots.iter().all(|slot| slot.ordinal != next)).then_some(next)
}

/// Continues an ordinal at its earlier state, or starts it.
fn add(new: &mut FleetStatus, ordinal: u32) {
    let parked = new.parked.iter().position(|slot| slot.ordinal == ordinal);
    let parked = parked.map(|at| new.parked.remove(at));
    let slot = parked.filter(|slot| slot.revision == new.revision).unwrap_or_else(|| {
        let number = new.next;
        new.next = number.saturating_add(1);
        Slot::new(number, ordinal, new.revision)
    });
    new.slots.push(slot);
    new.slots.sort_by_key(|slot| slot.ordinal);
}

/// Says which ordinal is waited for.
fn say_who(spec: &FleetSpec, new: &mut FleetStatus, wanted: u32, now: Timestamp) {
    let going = new.conditions.iter().find(|one| one.kind == "Progressing");
    let Some(going) = going.filter(|one| one.reason == "RollingOut") else { return };
    let unready = |ordinal: &u32| {
        let slot = new.slots.iter().find(|slot| slot.ordinal == *ordinal);
        slot.is_none_or(|slot| slot.revision != new.revision || !available(spec, slot, now))
    };
    let mut away = new.slots.iter().rev().filter(|slot| slot.ordinal >= wanted);
    let who = match away.next() {
        Some(slot) => format!("{}; waits for the end of ordinal {}", going.message, slot.ordinal),
        None => match (0..wanted).rev().find(|ordinal| {
            unready(ordinal) && new.slots.iter().any(|slot| slot.ordinal == *ordinal)
        }) {
            Some(ordinal) => format!("{}; waits for ordinal {ordinal}", going.message),
            None => return,
        },
    };
    new.say("Progressing", true, "RollingOut", who, now);
}
