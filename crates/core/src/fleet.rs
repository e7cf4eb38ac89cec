//! Fleets: so many sessions that stay, as a pure function of what is wanted and seen.
//!
//! A fleet has slots. Each has an ordinal, which is free again when its session has ended, and a number
//! that no other slot of the fleet ever had: a session is found by it and made once ([`crate::quest`]
//! does the same with attempts). A slot stands in the status before its session is made. A change of
//! the template makes a revision, whose pack is created in the commit that says so; sessions are
//! started from the pack of their revision, so that a paused rollout heals with what runs.
//!
//! Never more sessions exist than `replicas` and the surge, and none that is available is ended while
//! fewer than `replicas` less the unavailable would be left.

pub mod lineage;
pub mod scale;
pub mod sentinel;
mod spec;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::SessionId;
use crate::quest::{Author, backoff};
use crate::record::condition::{Condition, ConditionStatus, set_condition};
use crate::time::Timestamp;

pub use spec::{
    FleetSpec, MAX_HISTORY, MAX_REPLICAS, Template, lineage_schema, schema, sentinel_schema,
};

/// Holds a fleet that is being deleted until its sessions have ended.
pub const FINALIZER: &str = "overmind/fleet";
/// Without a failure for so long, the next one waits for nothing again.
pub const CALM: Duration = Duration::from_mins(1);
/// The delay before the second of several failures is replaced; doubled with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The place of one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    pub number: u32,
    pub ordinal: u32,
    pub revision: u32,
    /// Known once it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Since when it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    /// It is being ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// For a lineage: its session has ended in this epoch, and does not run again yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u32>,
    /// For a sentinel: the hive to which it belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hive: Option<String>,
}

impl Slot {
    fn new(number: u32, ordinal: u32, revision: u32) -> Self {
        let (session, ready_at, ended, hive) = (None, None, None, None);
        Self { number, ordinal, revision, session, ready_at, stopping: false, ended, hive }
    }
}

/// The status of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FleetStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
    pub observed_generation: u64,
    /// The revision of the template that is rolled out; 0 before the first.
    pub revision: u32,
    /// Fingerprint of that template.
    pub template: String,
    /// The number of the next slot.
    pub next: u32,
    pub slots: Vec<Slot>,
    /// For a lineage: sessions that were scaled away, which return with their ordinal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parked: Vec<Slot>,
    /// Sessions that ended by themselves in a row.
    pub failures: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<Timestamp>,
    /// Starts that were refused in a row.
    pub refusals: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_at: Option<Timestamp>,
    /// Sessions that are wanted, that are available, and that are of the newest revision.
    pub replicas: u32,
    pub ready: u32,
    pub updated: u32,
    /// Whether the number follows a schedule or a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaled: Option<scale::Scaled>,
    pub conditions: Vec<Condition>,
}

impl FleetStatus {
    /// Reads a stored status. An invalid one becomes a new status.
    pub fn read(status: &serde_json::Value) -> Self {
        Self::deserialize(status).unwrap_or_default()
    }

    /// A slot's session could not be made.
    pub fn refuse(&mut self, reason: &str, message: String, now: Timestamp) {
        self.refusals = self.refusals.saturating_add(1);
        self.refused_at = Some(now);
        self.say("Waiting", true, reason, message, now);
    }

    fn say(&mut self, kind: &str, so: bool, reason: &str, message: String, now: Timestamp) {
        let new = Condition {
            kind: kind.to_owned(),
            status: if so { ConditionStatus::True } else { ConditionStatus::False },
            reason: reason.to_owned(),
            message,
            observed_generation: self.observed_generation,
            last_transition: now,
        };
        set_condition(&mut self.conditions, new);
    }

    fn says(&self, kind: &str) -> bool {
        self.conditions.iter().any(|one| one.kind == kind && one.status == ConditionStatus::True)
    }
}

/// A session of the fleet's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was made and does not run yet.
    Starting(SessionId),
    Running(SessionId),
    /// It has ended in this epoch; whether somebody ended it, and the reason.
    Ended {
        epoch: u32,
        by_hand: bool,
        why: String,
    },
}

/// The actions to take, in this order: write `status`, with the pack if there is a `pack`, in one
/// commit; then the others in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub status: FleetStatus,
    /// The revision whose pack is to be created from the spec.
    pub pack: Option<u32>,
    /// Slots whose sessions must be created. Creating an existing one changes nothing.
    pub start: Vec<Slot>,
    pub cancel: Vec<SessionId>,
    /// It is being deleted and none of its sessions runs: remove [`FINALIZER`].
    pub release: bool,
    /// When to look again if nothing changes before.
    pub again: Option<Timestamp>,
}

/// Returns the name of a pack.
pub fn pack_name(fleet: &str, revision: u32) -> String {
    let short: String = fleet.chars().take(200).collect();
    format!("{short}-r{revision}")
}

/// Decides what is to be done for a fleet. `seen` has its sessions by number: all that are in slots
/// and all that have not ended. Deciding again on what the plan leads to answers a plan that does
/// nothing.
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
    let mut again = Vec::new();
    shrink(spec, &mut new, wanted, now);
    let held = grow(spec, &mut new, seen, wanted, now);
    again.extend(held);
    // A slot without a session that is no longer wanted is dropped.
    new.slots.retain(|slot| !(slot.stopping && slot.session.is_none()));
    let ready_times = new.slots.iter().filter_map(|slot| slot.ready_at);
    again.extend(ready_times.map(|at| at.after(spec.min_ready)).filter(|at| *at > now));
    tell(spec, &mut new, wanted, held, why, now);

    let refused = refused_until(&new, now);
    again.extend(refused);
    let absent = |slot: &&Slot| {
        slot.session.is_none() && !seen.contains_key(&slot.number) && refused.is_none()
    };
    let start = new.slots.iter().filter(absent).cloned().collect();
    let cancel = superfluous(&new, seen, deleting);
    let release = deleting && new.slots.is_empty() && cancel.is_empty();
    Plan { status: new, pack, start, cancel, release, again: again.into_iter().min() }
}

/// Makes a revision of a template that is another one. Answers it: its pack is to be created.
fn revise(spec: &FleetSpec, new: &mut FleetStatus, deleting: bool) -> Option<u32> {
    let waits = spec.paused && new.revision > 0;
    if new.template == spec.fingerprint || deleting || waits {
        return None;
    }
    new.revision = new.revision.saturating_add(1);
    new.template.clone_from(&spec.fingerprint);
    (new.failures, new.failed_at) = (0, None);
    (new.refusals, new.refused_at) = (0, None);
    Some(new.revision)
}

/// Running sessions without a slot that stays.
fn superfluous(new: &FleetStatus, seen: &BTreeMap<u32, Seen>, deleting: bool) -> Vec<SessionId> {
    let stays = |number: u32| {
        let slot = new.slots.iter().find(|slot| slot.number == number);
        // A later number than the known ones was assigned by another reconciler before us.
        slot.map_or(number >= new.next && !deleting, |slot| !slot.stopping)
    };
    let goes = |(number, seen): (&u32, &Seen)| match seen {
        Seen::Starting(id) | Seen::Running(id) if !stays(*number) => Some(*id),
        Seen::Starting(_) | Seen::Running(_) | Seen::Ended { .. } => None,
    };
    seen.iter().filter_map(goes).collect()
}

/// Why one of [`Plan::cancel`] is ended, in words for the person who decides about its work.
/// `status`: the plan's; `owner`: the owner of the sessions.
pub fn why_ended(status: &FleetStatus, session: SessionId, owner: &str, deleting: bool) -> String {
    let slot = status.slots.iter().find(|slot| slot.session == Some(session));
    let is_old = slot.is_some_and(|slot| slot.revision != status.revision);
    if deleting {
        format!("ended: {owner} was deleted")
    } else if is_old && status.replicas > 0 {
        format!("replaced by revision {} of {owner}", status.revision)
    } else {
        format!("scaled away by {owner}")
    }
}

/// Until when nothing is started because a start was refused.
fn refused_until(new: &FleetStatus, now: Timestamp) -> Option<Timestamp> {
    let until = new.refused_at.map(|at| at.after(backoff(FIRST_WAIT, new.refusals)));
    until.filter(|until| *until > now)
}

/// Until when nothing is started because sessions end by themselves. The first is made good at once.
fn failed_until(new: &FleetStatus, now: Timestamp) -> Option<Timestamp> {
    let wait = backoff(FIRST_WAIT, new.failures.saturating_sub(1));
    new.failed_at.map(|at| at.after(wait)).filter(|until| *until > now)
}

/// Counts sessions that ended by themselves.
fn fail(new: &mut FleetStatus, failures: u32, now: Timestamp) {
    if failures > 0 {
        new.failures = new.failures.saturating_add(failures);
        new.failed_at = Some(now);
    }
}

/// Forgets failures that are long ago.
fn calm(new: &mut FleetStatus, now: Timestamp) {
    if new.failed_at.is_some_and(|at| at.after(CALM) <= now) {
        (new.failures, new.failed_at) = (0, None);
    }
}

/// Takes out the slots whose sessions have ended. Answers why the last one that ended by itself did.
fn absorb(new: &mut FleetStatus, seen: &BTreeMap<u32, Seen>, now: Timestamp) -> Option<String> {
    calm(new, now);
    let (mut failures, mut last) = (0_u32, None);
    new.slots.retain_mut(|slot| match seen.get(&slot.number) {
        Some(Seen::Starting(id)) => {
            slot.session = Some(*id);
            true
        }
        Some(Seen::Running(id)) => {
            slot.session = Some(*id);
            slot.ready_at.get_or_insert(now);
            true
        }
        Some(Seen::Ended { by_hand, why, .. }) => {
            if !slot.stopping && !by_hand {
                failures += 1;
                last = Some(why.clone());
            }
            false
        }
        // It existed and is forgotten.
        None => slot.session.is_none(),
    });
    fail(new, failures, now);
    last
}

fn available(spec: &FleetSpec, slot: &Slot, now: Timestamp) -> bool {
    !slot.stopping && slot.ready_at.is_some_and(|at| at.after(spec.min_ready) <= now)
}

/// Marks slots that are too many, or of an earlier revision and no longer needed.
fn shrink(spec: &FleetSpec, new: &mut FleetStatus, wanted: u32, now: Timestamp) {
    let revision = new.revision;
    let count = |new: &FleetStatus, of: &dyn Fn(&Slot) -> bool| {
        u32::try_from(new.slots.iter().filter(|slot| of(slot)).count()).unwrap_or(u32::MAX)
    };
    // The highest ordinals first, those that are not available before those that are.
    let mut order: Vec<usize> = (0..new.slots.len()).collect();
    order.sort_by_key(|at| {
        let slot = new.slots.get(*at);
        let is_available = slot.is_some_and(|slot| available(spec, slot, now));
        (is_available, std::cmp::Reverse(slot.map(|slot| slot.ordinal)))
    });
    let is_fresh = |slot: &Slot| !slot.stopping && slot.revision == revision;
    let mut superfluous = count(new, &is_fresh).saturating_sub(wanted);
    let least = wanted.saturating_sub(spec.unavailable);
    let mut spare = count(new, &|slot| available(spec, slot, now)).saturating_sub(least);
    for at in order {
        let Some(slot) = new.slots.get_mut(at).filter(|slot| !slot.stopping) else { continue };
        let is_available = available(spec, slot, now);
        let goes =
            if slot.revision == revision { superfluous > 0 } else { !is_available || spare > 0 };
        if !goes || (is_available && spare == 0) {
            continue;
        }
        if slot.revision == revision {
            superfluous -= 1;
        }
        if is_available {
            spare -= 1;
        }
        slot.stopping = true;
    }
}

/// Adds the slots that are missing. Answers until when further ones wait.
fn grow(
    spec: &FleetSpec,
    new: &mut FleetStatus,
    seen: &BTreeMap<u32, Seen>,
    wanted: u32,
    now: Timestamp,
) -> Option<Timestamp> {
    let absent = |slot: &Slot| slot.session.is_none() && !seen.contains_key(&slot.number);
    let refused = new.refusals > 0 && new.slots.iter().any(absent);
    if !refused {
        (new.refusals, new.refused_at) = (0, None);
    }
    let fresh = new.slots.iter().filter(|slot| !slot.stopping && slot.revision == new.revision);
    let fresh = u32::try_from(fresh.count()).unwrap_or(u32::MAX);
    let all = u32::try_from(new.slots.len()).unwrap_or(u32::MAX);
    let room = wanted.saturating_add(spec.surge).saturating_sub(all);
    let missing = wanted.saturating_sub(fresh).min(room);
    if missing == 0 || refused {
        return None;
    }
    let until = failed_until(new, now);
    if until.is_some() {
        return until;
    }
    let taken: BTreeSet<u32> = new.slots.iter().map(|slot| slot.ordinal).collect();
    let free = (0..).filter(|ordinal| !taken.contains(ordinal));
    for ordinal in free.take(missing as usize) {
        new.slots.push(Slot::new(new.next, ordinal, new.revision));
        new.next = new.next.saturating_add(1);
    }
    None
}

/// Counts, and the conditions in words.
fn tell(
    spec: &FleetSpec,
    new: &mut FleetStatus,
    wanted: u32,
    held: Option<Timestamp>,
    why: Option<String>,
    now: Timestamp,
) {
    let count = |of: &dyn Fn(&&Slot) -> bool| {
        u32::try_from(new.slots.iter().filter(of).count()).unwrap_or(u32::MAX)
    };
    let ready = count(&|slot| available(spec, slot, now));
    let updated = count(&|slot| !slot.stopping && slot.revision == new.revision);
    let fresh_ready = count(&|slot| slot.revision == new.revision && available(spec, slot, now));
    let all = u32::try_from(new.slots.len()).unwrap_or(u32::MAX);
    (new.replicas, new.ready, new.updated) = (wanted, ready, updated);
    let least = wanted.saturating_sub(spec.unavailable);
    let enough = ready >= least;
    let message = format!("{ready} of {wanted} are available");
    let reason = if enough { "MinimumAvailable" } else { "MinimumUnavailable" };
    new.say("Available", enough, reason, message, now);
    let complete = fresh_ready == wanted && all == wanted && new.template == spec.fingerprint;
    let (going, reason, message) = if complete {
        (false, "Complete", format!("revision {} is rolled out", new.revision))
    } else if spec.paused && new.template != spec.fingerprint {
        (false, "Paused", "a change of the template waits: the rollout is paused".to_owned())
    } else {
        let text = format!("{fresh_ready} of {wanted} of revision {}", new.revision);
        (true, "RollingOut", text)
    };
    new.say("Progressing", going, reason, message, now);
    new.say("Ready", complete, reason, String::new(), now);
    match (held, new.refusals) {
        (Some(until), _) => {
            let told = new.says("Waiting");
            if why.is_some() || !told {
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                let text = format!("sessions end by themselves{why}; the next starts at {until}");
                new.say("Waiting", true, "BackOff", text, now);
            }
        }
        (None, 0) if new.says("Waiting") => {
            new.say("Waiting", false, "Started", String::new(), now);
        }
        (None, _) => {}
    }
}
