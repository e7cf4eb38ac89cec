//! The kind `Quest`: a task that must succeed a given number of times. [`crate::quest`] decides
//! about it.

use serde_json::Value;

use crate::agent::COMMANDS;
use crate::quest::{QuestSpec, QuestStatus, schema};
use crate::record::kind::{Column, KindInfo, RecordVerb};
use crate::record::{FieldError, Record, Term, Terms};
use crate::row::Role;
use crate::time::Timestamp;

/// The index term of a quest that may need actions.
pub const OPEN: (&str, &str) = ("open", "true");

pub const QUEST: KindInfo = KindInfo {
    name: "quest",
    plural: "quests",
    aliases: &["job", "jobs"],
    check,
    terms,
    due,
    role: |verb| match verb {
        RecordVerb::Read => Role::Viewer,
        RecordVerb::Put | RecordVerb::Status | RecordVerb::Delete => Role::Operator,
    },
    columns: &[
        Column { name: "STATUS", is_wide: false, cell: |record, _| status(record).phase().into() },
        Column { name: "COMPLETIONS", is_wide: false, cell: |record, _| completions(record) },
        Column { name: "ACTIVE", is_wide: false, cell: |record, _| active(record) },
        Column {
            name: "FAILED",
            is_wide: false,
            cell: |record, _| status(record).failed.to_string(),
        },
        Column { name: "AGENT", is_wide: true, cell: |record, _| agent(record) },
        Column { name: "REASON", is_wide: true, cell: |record, _| reason(record) },
    ],
    schema,
    changed_by: None,
};

fn check(spec: &Value) -> Vec<FieldError> {
    QuestSpec::read("spec", spec).err().unwrap_or_default()
}

fn status(record: &Record) -> QuestStatus {
    QuestStatus::read(&record.status)
}

/// Returns [`OPEN`] while the quest needs passes: it has not finished, or sessions of it may still
/// run.
fn terms(record: &Record) -> Terms {
    let status = status(record);
    let open = status.finished_at.is_none() || !status.active.is_empty();
    match open || record.deleting.is_some() {
        true => vec![Term::new(OPEN.0, OPEN.1)],
        false => Vec::new(),
    }
}

/// Returns when it is deleted after its end.
fn due(record: &Record, _now: Timestamp) -> Option<Timestamp> {
    let finished = status(record).finished_at?;
    let spec = QuestSpec::read("spec", &record.spec).ok()?;
    spec.ttl.filter(|_| record.deleting.is_none()).map(|ttl| finished.after(ttl))
}

fn completions(record: &Record) -> String {
    let wanted = record.spec.get("completions").and_then(Value::as_u64).unwrap_or(1);
    format!("{}/{wanted}", status(record).succeeded)
}

fn active(record: &Record) -> String {
    status(record).active.len().to_string()
}

fn agent(record: &Record) -> String {
    plain(record.spec.get("agent").and_then(Value::as_str).unwrap_or(COMMANDS))
}

fn reason(record: &Record) -> String {
    let status = status(record);
    let phase = status.phase();
    let condition = status.conditions.iter().find(|one| one.kind == phase);
    condition.map(|one| plain(&one.message)).unwrap_or_default()
}

fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_mistake_of_a_quest_is_reported_with_its_path() {
        assert_eq!(check(&json!({"agent": "coder", "task": "t", "deadline": "1h30m"})), []);
        assert_eq!(check(&json!({"command": ["make"], "backoff": "0s"})), []);
        let bad = json!({
            "agnet": "x", "completions": 0, "parallelism": 1.5, "retries": "3", "backoff": "10",
            "command": [], "project": "here", "sandbox": "strong",
        });
        let all: Vec<String> = check(&bad).iter().map(ToString::to_string).collect();
        assert_eq!(all.len(), 8, "{all:?}");
        for want in [
            "spec.agnet is not a field; did you mean `agent`?",
            "spec.completions must be a whole number from 1 to 10000",
            "spec.parallelism must",
            "spec.retries must",
            "spec.backoff must be a period",
            "spec.command must be a list",
            "spec.project must be an absolute path",
            "spec.sandbox must be a level",
        ] {
            assert!(all.iter().any(|one| one.starts_with(want)), "{want}: {all:?}");
        }
        let none = check(&json!({}));
        assert_eq!(none.iter().map(|one| one.path.as_str()).collect::<Vec<_>>(), ["spec.agent"]);
    }
}
