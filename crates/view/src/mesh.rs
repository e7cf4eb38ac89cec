//! The page of the mesh: shared state as a tree, topics, messages and permissions.

use overmind_api::{
    BlackboardEntry, BlackboardHistory, BlackboardRevision, Can, Letter, MeshAgent, Subscription,
    Timestamp,
};

use crate::clean;
use crate::log::bytes;
use crate::parts::{Pill, Tone, thousands};
use crate::when::When;

/// Longest value that is shown, in characters.
const MOST: usize = 4_000;

fn line(text: &str) -> String {
    clean::cut(&clean::line(text), 200).into_owned()
}

fn value(value: &serde_json::Value) -> String {
    let text = match value {
        serde_json::Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    };
    clean::cut(&clean::block(&text), MOST).into_owned()
}

/// One line of the tree: a directory of keys, or a key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardRow {
    /// Depth in the tree; the root has 0.
    pub depth: usize,
    /// The last part of the key, with `/` at the end for a directory.
    pub name: String,
    pub entry: Option<BoardValue>,
}

/// A value of the shared state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardValue {
    /// The key as it is, for links.
    pub id: String,
    pub key: String,
    pub value: String,
    pub by: String,
    pub version: String,
    pub updated: When,
    pub expires: Option<When>,
}

/// Returns the entries, sorted by key, as a tree.
pub fn tree(entries: &[BlackboardEntry], now: Timestamp) -> Vec<BoardRow> {
    let mut rows = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    for entry in entries {
        let mut parts: Vec<&str> = entry.key.split('/').collect();
        let name = parts.pop().unwrap_or_default();
        let same = open.iter().zip(&parts).take_while(|(a, b)| a == b).count();
        open.truncate(same);
        for part in parts.get(same..).unwrap_or_default() {
            let name = format!("{}/", line(part));
            rows.push(BoardRow { depth: open.len(), name, entry: None });
            open.push(part);
        }
        let shown = BoardValue {
            id: entry.key.clone(),
            key: line(&entry.key),
            value: value(&entry.value),
            by: line(&entry.written_by),
            version: thousands(entry.version),
            updated: When::new(entry.updated_at, now),
            expires: entry.expires_at.map(|at| When::until(at, now)),
        };
        rows.push(BoardRow { depth: open.len(), name: line(name), entry: Some(shown) });
    }
    rows
}

/// The history of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHistory {
    /// The key as it is.
    pub id: String,
    pub key: String,
    /// Newest first.
    pub changes: Vec<KeyChange>,
    /// Whether there may be older changes.
    pub truncated: bool,
}

/// One change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub version: String,
    pub pill: Pill,
    /// Who made it; empty if the entry expired.
    pub by: String,
    /// The path of the run that made it.
    pub link: Option<String>,
    /// Size of the written value.
    pub size: Option<String>,
    pub at: When,
}

impl KeyHistory {
    pub fn new(history: &BlackboardHistory, now: Timestamp) -> Self {
        Self {
            id: history.key.clone(),
            key: line(&history.key),
            changes: history.changes.iter().map(|one| KeyChange::new(one, now)).collect(),
            truncated: history.truncated,
        }
    }
}

impl KeyChange {
    fn new(one: &BlackboardRevision, now: Timestamp) -> Self {
        let pill = match one.change.as_str() {
            "put" => Pill::new(Tone::Good, "✓", "written"),
            "deleted" => Pill::new(Tone::Flat, "✕", "deleted"),
            "expired" => Pill::new(Tone::Flat, "◌", "expired"),
            other => Pill::new(Tone::Flat, "◌", line(other)),
        };
        Self {
            version: thousands(one.version),
            pill,
            by: line(one.by.as_deref().unwrap_or_default()),
            link: one.run_id.map(|id| format!("/runs/{id}")),
            size: one.bytes.map(bytes),
            at: When::new(one.at, now),
        }
    }
}

/// A message in the mailbox of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterRow {
    pub from: String,
    pub kind: String,
    pub topic: String,
    pub pill: Pill,
    pub payload: String,
    pub attempt: u32,
    pub at: When,
}

impl LetterRow {
    pub fn new(letter: &Letter, now: Timestamp) -> Self {
        let pill = match (letter.state.as_str(), letter.why_dead.as_deref()) {
            ("waiting", _) => Pill::new(Tone::Flat, "◌", "waiting"),
            ("held", _) => Pill::new(Tone::Busy, "◐", "being read"),
            (_, Some(why)) => Pill::new(Tone::Bad, "✕", format!("dead: {}", line(why))),
            (other, None) => Pill::new(Tone::Bad, "✕", line(other)),
        };
        Self {
            from: line(&letter.from_agent),
            kind: line(&letter.kind),
            topic: line(letter.topic.as_deref().unwrap_or_default()),
            pill,
            payload: value(&letter.payload),
            attempt: letter.attempt,
            at: When::new(letter.timestamp, now),
        }
    }
}

/// An agent of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshAgentRow {
    pub id: String,
    pub name: String,
    /// The capabilities that it has registered, separated by commas.
    pub capabilities: String,
    /// The topics that it has subscribed to, separated by commas.
    pub topics: String,
    /// Number of messages that wait for it.
    pub waiting: u32,
}

impl MeshAgentRow {
    pub fn new(agent: &MeshAgent, subscriptions: &[Subscription]) -> Self {
        let topics = subscriptions.iter().filter(|one| one.agent_id == agent.id);
        let topics: Vec<&str> = topics.map(|one| one.topic.as_str()).collect();
        Self {
            id: agent.id.to_string(),
            name: line(&agent.name),
            capabilities: line(&agent.capabilities.join(", ")),
            topics: line(&topics.join(", ")),
            waiting: agent.waiting,
        }
    }
}

/// Whether somebody may perform an operation, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MayRow {
    pub pill: Pill,
    /// The question as a sentence.
    pub asked: String,
    /// The rule that decides.
    pub rule: String,
    /// The permission that is missing.
    pub ask_for: String,
}

impl MayRow {
    pub fn new(can: &Can) -> Self {
        Self {
            pill: match can.allowed {
                true => Pill::new(Tone::Good, "✓", "yes"),
                false => Pill::new(Tone::Bad, "✕", "no"),
            },
            asked: line(&format!("{} {} {}", can.agent, can.verb, can.object)),
            rule: line(&can.rule),
            ask_for: line(can.ask_for.as_deref().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AT: &str = "2026-11-25T16:00:00+00:00";

    fn entry(key: &str) -> BlackboardEntry {
        serde_json::from_value(json!({"key": key, "value": {"a": 1}, "written_by": "ann\u{7}",
            "workflow_id": null, "created_at": AT, "updated_at": AT, "ttl": null, "version": 1200}))
        .unwrap()
    }

    #[test]
    fn mesh_keys_become_a_tree_without_duplicate_directories() {
        let keys = ["app", "build/api/status", "build/api/url", "build/web", "notes/x"];
        let rows = tree(&keys.map(entry), AT.parse().unwrap());
        let shown: Vec<_> =
            rows.iter().map(|row| format!("{}{}", "  ".repeat(row.depth), row.name)).collect();
        let want = ["app", "build/", "  api/", "    status", "    url", "  web", "notes/", "  x"];
        assert_eq!(shown, want);
        let first = rows[0].entry.as_ref().unwrap();
        assert_eq!((first.by.as_str(), first.version.as_str()), ("ann\\u{7}", "1,200"));
        assert_eq!(first.value, "{\n  \"a\": 1\n}");
    }

    #[test]
    fn a_history_shows_the_author_time_and_run_of_each_change() {
        let run = "ses_00000000000000000000000000000007";
        let change = |version: u64, change: &str, by: Option<&str>, run: Option<&str>| {
            json!({"version": version, "change": change, "by": by, "run_id": run,
                "bytes": run.map(|_| 1200), "at": AT})
        };
        let changes = [
            change(1200, "expired", None, None),
            change(1200, "put", Some("ann\u{7}"), Some(run)),
            change(1199, "deleted", Some("admin"), None),
        ];
        let told = json!({"key": "a\u{7}/b", "changes": changes, "truncated": true});
        let told: BlackboardHistory = serde_json::from_value(told).unwrap();
        let now = "2026-11-25T16:04:00+00:00".parse().unwrap();
        let KeyHistory { id, key, changes, truncated } = KeyHistory::new(&told, now);
        assert_eq!((id.as_str(), key.as_str(), truncated), ("a\u{7}/b", "a\\u{7}/b", true));
        let words: Vec<_> = changes
            .iter()
            .map(|one| format!("{} {} {}", one.version, one.pill.text, one.by))
            .collect();
        assert_eq!(words, ["1,200 expired ", "1,200 written ann\\u{7}", "1,199 deleted admin"]);
        let put = &changes[1];
        assert_eq!(put.link.as_deref(), Some(format!("/runs/{run}").as_str()));
        assert_eq!((put.size.as_deref(), put.at.ago.as_str()), (Some("1.1 KiB"), "4 min"));
        assert_eq!((&changes[0].link, &changes[0].size), (&None, &None));
    }

    #[test]
    fn a_permission_answer_names_the_rule() {
        let can = Can {
            allowed: false,
            agent: "a".into(),
            verb: "write".into(),
            object: "plan".into(),
            rule: "no\u{7} rule".into(),
            ask_for: Some("blackboard_write: plan".into()),
        };
        let row = MayRow::new(&can);
        assert_eq!((row.pill.text.as_str(), row.asked.as_str()), ("no", "a write plan"));
        assert_eq!(
            (row.rule.as_str(), row.ask_for.as_str()),
            ("no\\u{7} rule", "blackboard_write: plan")
        );
    }
}
