//! Quests: a task that must succeed a given number of times, as a pure function of the desired and
//! the observed state.
//!
//! A quest starts sessions, called attempts and numbered from 0. The quest's id and the number
//! determine the name of an attempt's session ([`session_name`]) and the key that makes its start
//! idempotent. [`decide`] returns the status to write first and the actions to take after it is
//! written. An attempt is in the status before its session is created, so the next pass can finish
//! what a crash interrupted. The caller must write the status of a [`Plan`] with compare-and-set,
//! and take no action of a plan whose status was not written.

mod spec;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{RecordId, SessionId};
use crate::record::condition::{Condition, ConditionStatus, set_condition};
use crate::row::Role;
use crate::time::Timestamp;

pub use spec::{MAX_COMPLETIONS, MAX_PARALLELISM, MAX_RETRIES, QuestSpec, schema};

/// Keeps a deleted quest until its sessions have ended.
pub const FINALIZER: &str = "overmind/quest";
/// The longest wait between two attempts, and between two tries to start one.
pub const MAX_BACKOFF: Duration = Duration::from_mins(5);

/// The author of a spec, with their rights at that time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    pub name: String,
    pub role: Role,
}

/// One session that a quest has started or will start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub number: u32,
    /// The session's id, set after it was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

/// The status of a quest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuestStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
    /// Number of attempts so far, which is the number of the next one.
    pub attempts: u32,
    pub succeeded: u32,
    pub failed: u32,
    pub active: Vec<Attempt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failed_at: Option<Timestamp>,
    /// Number of consecutive refused starts. `refused_at` is the time of the last one.
    pub refusals: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_at: Option<Timestamp>,
    pub conditions: Vec<Condition>,
    /// The generation of the spec, for conditions. It comes from the record and is not stored here.
    #[serde(skip)]
    pub generation: u64,
}

impl QuestStatus {
    /// Reads a stored status. An invalid one is read as the status of a new quest.
    pub fn read(status: &serde_json::Value) -> Self {
        Self::deserialize(status).unwrap_or_default()
    }

    /// Records that the attempt could not be started.
    pub fn refuse(&mut self, reason: &str, message: String, now: Timestamp) {
        self.refusals = self.refusals.saturating_add(1);
        self.refused_at = Some(now);
        self.say("Waiting", ConditionStatus::True, reason, message, now);
    }

    fn say(
        &mut self,
        kind: &str,
        status: ConditionStatus,
        reason: &str,
        message: String,
        now: Timestamp,
    ) {
        let new = Condition {
            kind: kind.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
            observed_generation: self.generation,
            last_transition: now,
        };
        set_condition(&mut self.conditions, new);
    }

    fn says(&self, kind: &str) -> bool {
        self.conditions.iter().any(|one| one.kind == kind && one.status == ConditionStatus::True)
    }

    fn finish(&mut self, kind: &str, reason: &str, message: String, now: Timestamp) {
        self.finished_at = Some(now);
        self.say(kind, ConditionStatus::True, reason, message, now);
    }

    /// Returns `Complete`, `Failed`, `Waiting` or `Running`.
    pub fn phase(&self) -> &'static str {
        ["Complete", "Failed", "Waiting"]
            .into_iter()
            .find(|kind| self.says(kind))
            .unwrap_or("Running")
    }
}

/// The observed state of an attempt's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Open(SessionId),
    Succeeded,
    /// It failed, for this reason.
    Failed(String),
}

/// The actions to take: write `status` first, then the rest in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub status: QuestStatus,
    /// Attempts whose sessions must be created. Creating an existing one changes nothing.
    pub start: Vec<u32>,
    pub cancel: Vec<SessionId>,
    pub end: End,
    /// Time of the next pass, if nothing changes before.
    pub again: Option<Timestamp>,
}

/// An action on the record itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Stays,
    /// Delete it: its time to live after the end is over.
    Delete,
    /// Remove [`FINALIZER`]: it is being deleted and nothing of it runs.
    Release,
}

/// The label of a session that contains its attempt number.
pub const ATTEMPT: &str = "overmind/attempt";

/// Returns the name for the session of an attempt, if that name is free: at most 63 characters.
/// Sessions are never looked up by this name.
pub fn session_name(quest: &str, number: u32) -> String {
    let short: String = quest.chars().take(50).map(|c| if c == '.' { '-' } else { c }).collect();
    format!("{short}-{number}")
}

/// Returns the idempotency key of an attempt's start.
pub fn start_key(id: RecordId, number: u32) -> String {
    format!("quest:{id}:{number}")
}

/// Returns the wait after `failures` failures: `first`, doubled with each further failure, at most
/// [`MAX_BACKOFF`]. Zero without a failure.
pub fn backoff(first: Duration, failures: u32) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
    let times = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
    first.saturating_mul(times).min(MAX_BACKOFF.max(first))
}

/// Decides the actions for a quest. `seen` contains the sessions of its attempts by number: all
/// active ones and all that have not ended. Deciding again on the result of the plan returns a plan
/// without actions.
pub fn decide(
    spec: &QuestSpec,
    status: &QuestStatus,
    seen: &BTreeMap<u32, Seen>,
    deleting: bool,
    now: Timestamp,
) -> Plan {
    let mut new = status.clone();
    let why = absorb(&mut new, seen, now);
    let mut again = Vec::new();
    if new.finished_at.is_none() && !deleting {
        let deadline = new.started_at.zip(spec.deadline).map(|(at, most)| at.after(most));
        if new.succeeded >= spec.completions {
            let message = format!("{} of {} succeeded", new.succeeded, spec.completions);
            new.finish("Complete", "Completed", message, now);
        } else if new.failed > spec.retries {
            let message = format!("{} failed; {} retries are allowed", new.failed, spec.retries);
            let message = why.as_ref().map_or(message.clone(), |why| format!("{message}: {why}"));
            new.finish("Failed", "RetriesExhausted", message, now);
        } else if deadline.is_some_and(|deadline| deadline <= now) {
            let message = format!("{} of {} succeeded in time", new.succeeded, spec.completions);
            new.finish("Failed", "DeadlineExceeded", message, now);
        } else {
            again.extend(deadline);
            again.extend(go_on(spec, &mut new, seen, why, now));
        }
    }
    let over = deleting || new.finished_at.is_some();
    if over {
        // Attempts that did not start are dropped.
        new.active.retain(|attempt| attempt.session.is_some());
        new.refusals = 0;
        new.refused_at = None;
        if new.says("Waiting") {
            new.say("Waiting", ConditionStatus::False, "Finished", String::new(), now);
        }
    }
    let held = new.refused_at.map(|at| at.after(backoff(Duration::from_secs(1), new.refusals)));
    let held = held.filter(|until| *until > now);
    again.extend(held);
    let active = |number: u32| new.active.iter().any(|attempt| attempt.number == number);
    let absent = |attempt: &&Attempt| {
        attempt.session.is_none() && !seen.contains_key(&attempt.number) && held.is_none()
    };
    let start = new.active.iter().filter(absent).map(|attempt| attempt.number).collect();
    let stray = |number: u32| over || (number < new.attempts && !active(number));
    let cancel: Vec<SessionId> = seen
        .iter()
        .filter_map(|(number, seen)| match seen {
            Seen::Open(id) if stray(*number) => Some(*id),
            Seen::Open(_) | Seen::Succeeded | Seen::Failed(_) => None,
        })
        .collect();
    let quiet = new.active.is_empty() && cancel.is_empty();
    let expires = new.finished_at.zip(spec.ttl).map(|(at, ttl)| at.after(ttl));
    let end = match expires {
        _ if deleting && quiet => End::Release,
        Some(at) if !deleting && quiet && at <= now => End::Delete,
        Some(at) => {
            again.extend(Some(at).filter(|at| *at > now));
            End::Stays
        }
        None => End::Stays,
    };
    Plan { status: new, start, cancel, end, again: again.into_iter().min() }
}

/// Counts the sessions that have ended. Returns why the last one failed.
fn absorb(new: &mut QuestStatus, seen: &BTreeMap<u32, Seen>, now: Timestamp) -> Option<String> {
    let counts = new.finished_at.is_none();
    let mut why = None;
    let (mut succeeded, mut failed) = (0, 0);
    let mut fail = |text: &str| {
        failed += 1;
        why = Some(text.to_owned());
    };
    new.active.retain_mut(|attempt| match seen.get(&attempt.number) {
        Some(Seen::Open(id)) => {
            attempt.session = Some(*id);
            true
        }
        Some(Seen::Succeeded) => {
            succeeded += 1;
            false
        }
        Some(Seen::Failed(text)) => {
            fail(text);
            false
        }
        // It existed and is forgotten: its outcome is unknown.
        None if attempt.session.is_some() => {
            fail("its session is gone");
            false
        }
        None => true,
    });
    if !counts {
        return None;
    }
    new.succeeded = new.succeeded.saturating_add(succeeded);
    new.failed = new.failed.saturating_add(failed);
    if failed > 0 {
        new.last_failed_at = Some(now);
    }
    why
}

/// Adds further attempts. Returns when to decide again.
fn go_on(
    spec: &QuestSpec,
    new: &mut QuestStatus,
    seen: &BTreeMap<u32, Seen>,
    why: Option<String>,
    now: Timestamp,
) -> Option<Timestamp> {
    let absent = |one: &Attempt| one.session.is_none() && !seen.contains_key(&one.number);
    let refused = new.refusals > 0 && new.active.iter().any(absent);
    if refused {
        return None;
    }
    new.refusals = 0;
    new.refused_at = None;
    let active = u32::try_from(new.active.len()).unwrap_or(u32::MAX);
    let left = spec.completions.saturating_sub(new.succeeded).min(spec.parallelism);
    let wanted = left.saturating_sub(active);
    let until = new.last_failed_at.map(|at| at.after(backoff(spec.backoff, new.failed)));
    match until {
        Some(until) if until > now && wanted > 0 => {
            if active == 0 && (why.is_some() || !new.says("Waiting")) {
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                let message = format!("attempt failed{why}; the next one starts at {until}");
                new.say("Waiting", ConditionStatus::True, "BackOff", message, now);
            }
            return Some(until);
        }
        Some(_) | None => {}
    }
    for _ in 0..wanted {
        new.active.push(Attempt { number: new.attempts, session: None });
        new.attempts = new.attempts.saturating_add(1);
        new.started_at.get_or_insert(now);
    }
    if new.says("Waiting") && !new.active.is_empty() {
        new.say("Waiting", ConditionStatus::False, "Started", String::new(), now);
    }
    None
}
