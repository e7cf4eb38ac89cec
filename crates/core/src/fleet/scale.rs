//! How many sessions a fleet has, where that follows a schedule or the messages that wait for an agent.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::MAX_REPLICAS;
use crate::record::FieldError;
use crate::record::kinds::{not_a, unknown_fields};
use crate::schedule::{MAX_TEXT, Schedule, period};
use crate::time::Timestamp;

/// Maximum number of entries of a schedule.
const MAX_STEPS: usize = 50;
/// How often the messages that wait are counted.
pub const POLL: Duration = Duration::from_secs(2);
/// How long fewer sessions must be enough before some are ended, unless the spec says so.
const COOLDOWN: Duration = Duration::from_mins(5);

/// The source of the number of sessions.
#[derive(Clone, Debug)]
pub struct Scale {
    steps: Vec<Step>,
    pub queue: Option<Queue>,
}

/// From each tick on, so many sessions.
#[derive(Clone, Debug)]
struct Step {
    at: Schedule,
    replicas: u32,
}

/// Sessions for the messages that wait in the mailbox of an agent.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Name or id of the agent.
    pub agent: String,
    per_replica: u32,
    max: u32,
    cooldown: Duration,
}

/// The last decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scaled {
    pub replicas: u32,
    /// Since when fewer sessions are enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_since: Option<Timestamp>,
}

impl Scale {
    /// How many sessions there are to be, and when to decide again. `replicas`: before the schedule has
    /// ticked for the first time; `waiting`: messages that wait.
    pub fn decide(
        &self,
        replicas: u32,
        waiting: u32,
        last: Option<&Scaled>,
        now: Timestamp,
    ) -> (Scaled, Option<Timestamp>) {
        let ticked = self.steps.iter().filter_map(|step| Some((step.at.last(now)?, step)));
        // If two tick at the same time, the later entry wins.
        let base = ticked.max_by_key(|(at, _)| *at).map_or(replicas, |(_, step)| step.replicas);
        let next = self.steps.iter().filter_map(|step| step.at.next(now)).min();
        let Some(queue) = &self.queue else {
            return (Scaled { replicas: base, low_since: None }, next);
        };
        let most = queue.max.max(base);
        let enough = waiting.div_ceil(queue.per_replica).clamp(base, most);
        let present = last.map_or(base, |last| last.replicas).min(most);
        let again = Some(next.map_or(now.after(POLL), |next| next.min(now.after(POLL))));
        if enough >= present {
            return (Scaled { replicas: enough, low_since: None }, again);
        }
        let since = last.and_then(|last| last.low_since).unwrap_or(now);
        if since.after(queue.cooldown) <= now {
            return (Scaled { replicas: enough, low_since: None }, again);
        }
        (Scaled { replicas: present, low_since: Some(since) }, again)
    }

    /// # Errors
    ///
    /// Every mistake.
    pub(super) fn read(scale: &Value) -> Result<Self, Vec<FieldError>> {
        let at = "spec.scale";
        let Some(fields) = scale.as_object() else {
            return Err(vec![not_a(at, "a mapping", scale)]);
        };
        let mut wrong = unknown_fields(at, fields, &["queue", "schedule"]);
        let steps = match fields.get("schedule") {
            None => Vec::new(),
            Some(Value::Array(all)) if all.len() <= MAX_STEPS => {
                all.iter().enumerate().filter_map(|(n, one)| step(n, one, &mut wrong)).collect()
            }
            Some(Value::Array(_)) => {
                let problem = format!("has more than {MAX_STEPS} entries");
                wrong.push(FieldError::new("spec.scale.schedule", problem));
                Vec::new()
            }
            Some(other) => {
                wrong.push(not_a("spec.scale.schedule", "a list", other));
                Vec::new()
            }
        };
        let queue = fields.get("queue").and_then(|queue| Queue::read(queue, &mut wrong));
        if fields.is_empty() {
            wrong.push(FieldError::new(at, "needs `schedule`, `queue` or both"));
        }
        if wrong.is_empty() { Ok(Self { steps, queue }) } else { Err(wrong) }
    }
}

fn count(
    at: &str,
    fields: &Map<String, Value>,
    field: &str,
    least: u32,
    wrong: &mut Vec<FieldError>,
) -> u32 {
    let number = fields.get(field).and_then(Value::as_u64);
    let number = number.and_then(|number| u32::try_from(number).ok());
    number.filter(|number| (least..=MAX_REPLICAS).contains(number)).unwrap_or_else(|| {
        let problem = format!("must be a whole number from {least} to {MAX_REPLICAS}");
        wrong.push(FieldError::new(format!("{at}.{field}"), problem));
        least
    })
}

fn step(n: usize, step: &Value, wrong: &mut Vec<FieldError>) -> Option<Step> {
    let at = format!("spec.scale.schedule[{n}]");
    let Some(fields) = step.as_object() else {
        wrong.push(not_a(&at, "a mapping", step));
        return None;
    };
    wrong.extend(unknown_fields(&at, fields, &["at", "replicas", "timeZone"]));
    let replicas = count(&at, fields, "replicas", 0, wrong);
    let text = |field: &str, default: &'static str| match fields.get(field) {
        None => Ok(default.to_owned()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(not_a(&format!("{at}.{field}"), "a text", other)),
    };
    match (text("at", ""), text("timeZone", "UTC")) {
        (Ok(text), Ok(zone)) => match Schedule::parse(&text, &zone) {
            Ok(schedule) => Some(Step { at: schedule, replicas }),
            Err(err) => {
                wrong
                    .push(FieldError::new(format!("{at}.at"), format!("is not a schedule: {err}")));
                None
            }
        },
        (text, zone) => {
            wrong.extend(text.err().into_iter().chain(zone.err()));
            None
        }
    }
}

impl Queue {
    fn read(queue: &Value, wrong: &mut Vec<FieldError>) -> Option<Self> {
        let at = "spec.scale.queue";
        let Some(fields) = queue.as_object() else {
            wrong.push(not_a(at, "a mapping", queue));
            return None;
        };
        wrong.extend(unknown_fields(at, fields, &["agent", "cooldown", "max", "perReplica"]));
        let per_replica = count(at, fields, "perReplica", 1, wrong);
        let max = count(at, fields, "max", 1, wrong);
        let cooldown = match fields.get("cooldown") {
            None => COOLDOWN,
            Some(found) => found.as_str().and_then(period).unwrap_or_else(|| {
                let problem = "must be a period like `30s`, `10m` or `1h30m`, at most 366 days";
                wrong.push(FieldError::new(format!("{at}.cooldown"), problem));
                COOLDOWN
            }),
        };
        match fields.get("agent").and_then(Value::as_str).filter(|agent| !agent.is_empty()) {
            Some(agent) => Some(Self { agent: agent.to_owned(), per_replica, max, cooldown }),
            None => {
                let problem = "must be the name or id of an agent";
                wrong.push(FieldError::new(format!("{at}.agent"), problem));
                None
            }
        }
    }
}

/// The JSON Schema of it.
pub(super) fn schema() -> Value {
    let count = |description: &str, least: u32| {
        json!({
            "description": description, "type": "integer",
            "minimum": least, "maximum": MAX_REPLICAS,
        })
    };
    json!({
        "description": "A schedule or a queue that determines the number of runs, instead of `replicas`.",
        "type": "object",
        "additionalProperties": false,
        "minProperties": 1,
        "properties": {
            "schedule": {
                "description": "The entry that ticked last applies. Before the first tick, `replicas` \
                    does.",
                "type": "array", "maxItems": MAX_STEPS,
                "items": {
                    "type": "object",
                    "required": ["at", "replicas"],
                    "additionalProperties": false,
                    "properties": {
                        "at": {
                            "description": "When: five or six fields of cron, `@daily`, `every 30m`.",
                            "type": "string", "minLength": 1, "maxLength": MAX_TEXT,
                        },
                        "timeZone": {
                            "description": "A name of the IANA database.",
                            "type": "string", "default": "UTC",
                        },
                        "replicas": count("Desired number of runs from then on.", 0),
                    },
                },
            },
            "queue": {
                "description": "Adds runs while messages wait in the mailbox of an agent.",
                "type": "object",
                "required": ["agent", "perReplica", "max"],
                "additionalProperties": false,
                "properties": {
                    "agent": {
                        "description": "Name or id of the agent.", "type": "string", "minLength": 1,
                    },
                    "perReplica": count("Number of waiting messages for each run.", 1),
                    "max": count("Maximum number of runs.", 1),
                    "cooldown": {
                        "description": "How long fewer runs must be enough before runs are ended: \
                            5m.",
                        "type": "string", "pattern": "^([0-9]+[smhdw])+$", "default": "5m",
                    },
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(scale: Value) -> Scale {
        Scale::read(&scale).unwrap_or_else(|wrong| panic!("{wrong:?}"))
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_schedule_entry_that_ticked_last_sets_the_size() {
        let scale = read(json!({"schedule": [
            {"at": "0 8 * * 1-5", "replicas": 5, "timeZone": "Europe/Berlin"},
            {"at": "0 20 * * *", "replicas": 1, "timeZone": "Europe/Berlin"},
        ]}));
        for (now, wanted, next) in [
            ("2026-11-27T06:59:59Z", 1, "2026-11-27T07:00:00Z"),
            ("2026-11-27T07:00:00Z", 5, "2026-11-27T19:00:00Z"),
            ("2026-11-27T18:59:00Z", 5, "2026-11-27T19:00:00Z"),
            // A Saturday: nothing but the evening before.
            ("2026-11-28T12:00:00Z", 1, "2026-11-28T19:00:00Z"),
        ] {
            let (scaled, again) = scale.decide(3, 0, None, at(now));
            assert_eq!((scaled.replicas, again), (wanted, Some(at(next))), "{now}");
        }
        let never_yet = read(json!({"schedule": [{"at": "0 0 29 2 *", "replicas": 9}]}));
        let (scaled, _) = never_yet.decide(3, 0, None, at("2027-06-01T00:00:00Z"));
        assert_eq!(scaled.replicas, 3);
    }

    #[test]
    fn waiting_messages_add_sessions_at_once_and_sessions_are_removed_later() {
        let queue = json!({"agent": "worker", "perReplica": 5, "max": 4, "cooldown": "1m"});
        let scale = read(json!({ "queue": queue }));
        let start = at("2026-11-28T12:00:00Z");
        let mut last = None;
        for (second, waiting, wanted) in [
            (0, 0, 1),
            (5, 11, 3),
            (10, 1000, 4),
            (15, 3, 4),
            (70, 0, 4),
            // A minute after there were few.
            (75, 0, 1),
            (80, 6, 2),
            (85, 0, 2),
            // Work that arrives meanwhile restarts the minute.
            (90, 7, 2),
            (146, 0, 2),
            (206, 0, 1),
        ] {
            let now = start.after(Duration::from_secs(second));
            let (scaled, again) = scale.decide(1, waiting, last.as_ref(), now);
            assert_eq!(scaled.replicas, wanted, "after {second} s");
            assert_eq!(again, Some(now.after(POLL)));
            last = Some(scaled);
        }
    }

    #[test]
    fn every_mistake_of_a_scale_is_reported_with_its_path() {
        let wrong = Scale::read(&json!({
            "schedule": [{"at": "0 25 * * *", "replicas": -1}, 7],
            "queue": {"perReplica": 0, "max": 2000, "cooldown": "soon"},
            "cpu": 80,
        }));
        let paths: Vec<String> = wrong.unwrap_err().into_iter().map(|one| one.path).collect();
        for path in [
            "spec.scale.cpu",
            "spec.scale.schedule[0].replicas",
            "spec.scale.schedule[0].at",
            "spec.scale.schedule[1]",
            "spec.scale.queue.perReplica",
            "spec.scale.queue.max",
            "spec.scale.queue.cooldown",
            "spec.scale.queue.agent",
        ] {
            assert!(paths.iter().any(|found| found == path), "{path} is not in {paths:?}");
        }
    }
}
