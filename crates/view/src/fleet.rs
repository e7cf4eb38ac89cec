//! A fleet: how many of its runs are available, what it does, and its revisions.

use overmind_api::{Resource, Timestamp};
use serde_json::Value;

use crate::clean;
use crate::when::When;

/// The part of a fleet's page that other resources do not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetPanel {
    pub wanted: u64,
    /// Runs that are available.
    pub ready: u64,
    /// Runs of the newest revision.
    pub updated: u64,
    /// Percentage of the wanted runs that are available: 0 to 100.
    pub share: u64,
    pub paused: bool,
    /// What it waits for or does, in the server's words; empty if everything is as wanted.
    pub said: String,
    /// The revisions, newest first.
    pub revisions: Vec<Revision>,
}

/// One revision of a fleet's template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    pub number: u64,
    /// The agent, or `command`.
    pub agent: String,
    /// The task, or the command line of a program without a task.
    pub task: String,
    pub created: When,
    /// Whether it is rolled out, or being rolled out.
    pub current: bool,
}

impl FleetPanel {
    /// Creates the panel. `packs`: the packs that the fleet owns, in any order.
    pub fn new(fleet: &Resource, packs: &[Resource], now: Timestamp) -> Self {
        let number = |key: &str| fleet.status.get(key).and_then(Value::as_u64).unwrap_or_default();
        // A schedule or a queue decides the number, and the status has it.
        let wanted = match fleet.spec.get("scale") {
            Some(_) => number("replicas"),
            None => fleet.spec.get("replicas").and_then(Value::as_u64).unwrap_or(1),
        };
        let (ready, current) = (number("ready"), number("revision"));
        let mut revisions: Vec<_> =
            packs.iter().filter_map(|pack| Revision::new(pack, current, now)).collect();
        revisions.sort_by_key(|one| std::cmp::Reverse(one.number));
        Self {
            wanted,
            ready,
            updated: number("updated"),
            share: ready
                .saturating_mul(100)
                .checked_div(wanted)
                .map_or(100, |share| share.min(100)),
            paused: fleet.spec.get("paused").and_then(Value::as_bool).unwrap_or(false),
            said: said(&fleet.status),
            revisions,
        }
    }
}

impl Revision {
    fn new(pack: &Resource, current: u64, now: Timestamp) -> Option<Self> {
        let number = pack.spec.get("revision").and_then(Value::as_u64)?;
        let text = |key: &str| {
            let text = pack.spec.get("template").and_then(|template| template.get(key));
            clean::cut(&clean::line(text.and_then(Value::as_str).unwrap_or_default()), 160)
                .into_owned()
        };
        let agent = match text("agent") {
            none if none.is_empty() => "command".to_owned(),
            agent => agent,
        };
        let created = When::new(pack.metadata.creation_timestamp, now);
        let task = match text("task") {
            none if none.is_empty() => command_of(pack),
            task => task,
        };
        Some(Self { number, agent, task, created, current: number == current })
    }
}

/// Returns the program and arguments of a pack's template, on one line.
fn command_of(pack: &Resource) -> String {
    let argv = pack.spec.get("template").and_then(|template| template.get("command"));
    let words = argv.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let line = words.collect::<Vec<_>>().join(" ");
    clean::cut(&clean::line(&line), 160).into_owned()
}

/// Returns the most important condition: what blocks the fleet, or else what it does.
fn said(status: &Value) -> String {
    let conditions = status.get("conditions").and_then(Value::as_array);
    let so = |kind: &str| {
        conditions.into_iter().flatten().find(|one| {
            let is = |key: &str, value: &str| one.get(key).and_then(Value::as_str) == Some(value);
            is("type", kind) && is("status", "True")
        })
    };
    if so("Ready").is_some() {
        return String::new();
    }
    let text = so("Waiting").or_else(|| so("Progressing"));
    let text = text.and_then(|one| one.get("message")).and_then(Value::as_str).unwrap_or_default();
    clean::cut(&clean::line(text), 400).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn resource(kind: &str, spec: Value, status: Value) -> Resource {
        serde_json::from_value(json!({"apiVersion": "overmind/v1", "kind": kind, "metadata":
            {"name": "web", "colony": "default", "generation": 1, "uid":
            "rec_00000000000000000000000000000001", "creationTimestamp": "2026-11-25T16:00:00+00:00"},
            "spec": spec, "status": status}))
        .unwrap()
    }

    #[test]
    fn a_fleet_shows_its_progress_and_its_earlier_revisions() {
        let now: Timestamp = "2026-11-25T17:00:00+00:00".parse().unwrap();
        let pack = |revision: u64, template: Value| {
            resource("Pack", json!({"revision": revision, "template": template}), json!({}))
        };
        let packs = [
            pack(1, json!({"command": ["true"]})),
            pack(2, json!({"agent": "sh", "task": "x\u{1b}[2J"})),
        ];
        let waiting = json!([{"type": "Ready", "status": "False", "reason": "R", "message": "no"},
            {"type": "Progressing", "status": "True", "reason": "R", "message": "2 of 4"},
            {"type": "Waiting", "status": "True", "reason": "R", "message": "the agent is disabled"}]);
        let status = json!({"ready": 1, "updated": 1, "revision": 2, "conditions": waiting});
        let fleet = resource("Fleet", json!({"replicas": 4, "paused": true}), status);
        let panel = FleetPanel::new(&fleet, &packs, now);
        assert_eq!((panel.wanted, panel.ready, panel.share, panel.paused), (4, 1, 25, true));
        assert_eq!(panel.said, "the agent is disabled");
        let numbers: Vec<_> = panel.revisions.iter().map(|one| (one.number, one.current)).collect();
        assert_eq!(numbers, [(2, true), (1, false)]);
        assert_eq!((&*panel.revisions[1].agent, &*panel.revisions[0].agent), ("command", "sh"));
        assert!(!panel.revisions[0].task.contains('\u{1b}'));
        assert_eq!(panel.revisions[1].task, "true", "a program is known by its command line");
        // If none are wanted, none are missing.
        let none = resource("Fleet", json!({"replicas": 0}), json!({"ready": 0}));
        assert_eq!(FleetPanel::new(&none, &[], now).share, 100);
        let follows = json!({"replicas": 9, "scale": {"schedule": []}});
        let follows = resource("Fleet", follows, json!({"replicas": 2, "ready": 1}));
        assert_eq!(FleetPanel::new(&follows, &[], now).wanted, 2);
    }
}
