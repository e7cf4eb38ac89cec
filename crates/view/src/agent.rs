//! The page of one agent: its definition and its versions.

use overmind_api::{Agent, Timestamp};
use serde_json::{Map, Value};

use crate::lists::AgentRow;
use crate::when::When;
use crate::{clean, yaml};

/// The page `/agents/{id}`.
#[derive(Clone, Debug)]
pub struct AgentPage {
    pub row: AgentRow,
    /// The whole definition as YAML.
    pub document: String,
    /// The versions, newest first.
    pub versions: Vec<VersionRow>,
}

/// A version of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRow {
    pub number: u32,
    pub at: When,
    /// Field, old value and new value of each change in this version. Empty for the oldest known
    /// version.
    pub changes: Vec<(String, String, String)>,
}

/// Fields that are not part of the definition.
const ASIDE: [&str; 6] = ["id", "version", "created_at", "updated_at", "warnings", "colony"];
/// Longest value that is shown, in characters.
const MOST: usize = 4000;

impl AgentPage {
    /// Creates the page. `versions`: newest first.
    pub fn new(agent: &Agent, versions: &[Agent], now: Timestamp) -> Self {
        let fields: Vec<_> = versions.iter().map(definition).collect();
        let rows = versions.iter().enumerate().map(|(n, version)| {
            let pair = fields.get(n).zip(fields.get(n + 1));
            VersionRow {
                number: version.version,
                at: When::new(version.updated_at, now),
                changes: pair.map(|(new, old)| differences(old, new)).unwrap_or_default(),
            }
        });
        Self {
            row: AgentRow::new(agent, now),
            document: text(&Value::Object(definition(agent))),
            versions: rows.collect(),
        }
    }
}

/// Returns the fields of the definition.
fn definition(agent: &Agent) -> Map<String, Value> {
    let value = serde_json::to_value(agent).unwrap_or_default();
    let Value::Object(mut fields) = value else { return Map::new() };
    fields.retain(|key, value| !ASIDE.contains(&key.as_str()) && !value.is_null());
    fields
}

fn differences(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
) -> Vec<(String, String, String)> {
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    let changed = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    let side = |of: &Map<String, Value>, key: &str| of.get(key).map(text).unwrap_or_default();
    changed.map(|key| (key.replace('_', " "), side(old, key), side(new, key))).collect()
}

fn text(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => yaml::to_string(other).trim_end().to_owned(),
    };
    clean::cut(&clean::block(&text), MOST).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn agent(version: u32, role: &str, tools: &[&str]) -> Agent {
        serde_json::from_value(
            json!({"id": "agt_00000000000000000000000000000001", "name": "fixer",
            "role": role, "model": "m", "tools_allowed": tools, "status": "active",
            "created_at": "2026-11-25T16:00:00+00:00", "updated_at": "2026-11-25T16:00:00+00:00",
            "version": version, "policy": "auto", "sandbox": "none", "limits": {},
            "on_unknown": "ask", "approvals": [], "reasoning_effort": null,
            "max_output_tokens": null, "colony": "col_00000000000000000000000000000001"}),
        )
        .unwrap()
    }

    #[test]
    fn a_version_lists_only_its_changes() {
        let now: Timestamp = "2026-11-25T17:00:00+00:00".parse().unwrap();
        let versions =
            [agent(2, "fix \u{1b}[2Jit", &["read_file"]), agent(1, "fix it", &["read_file"])];
        let page = AgentPage::new(&versions[0], &versions, now);
        assert_eq!(page.versions.len(), 2);
        let changed = &page.versions[0].changes;
        let (was, is) = ("fix it".to_owned(), "fix \\u{1b}[2Jit".to_owned());
        assert_eq!(*changed, [("role".to_owned(), was, is)]);
        assert_eq!(page.versions[1].changes, []);
        assert!(page.document.contains("read_file") && !page.document.contains("agt_"));
    }
}
