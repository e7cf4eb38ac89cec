//! The kind `Ritual`: a recurring quest. [`crate::ritual`] decides about it.

use serde_json::Value;

use crate::record::Record;
use crate::record::kind::{Column, KindInfo, RecordVerb};
use crate::ritual::{self, Ritual, RitualSpec, RitualStatus, schema};
use crate::row::Role;
use crate::time::Timestamp;

pub const RITUAL: KindInfo = KindInfo {
    name: "ritual",
    plural: "rituals",
    aliases: &["cronjob", "cronjobs", "cj"],
    check: |spec| RitualSpec::read(spec).err().unwrap_or_default(),
    terms: |_| Vec::new(),
    due,
    role: |verb| match verb {
        RecordVerb::Read => Role::Viewer,
        RecordVerb::Put | RecordVerb::Status | RecordVerb::Delete => Role::Operator,
    },
    columns: &[
        Column { name: "SCHEDULE", is_wide: false, cell: |record, _| text(record, "schedule") },
        Column { name: "NEXT", is_wide: false, cell: next },
        Column { name: "LAST", is_wide: false, cell: |record, _| last(record) },
        Column { name: "SUSPENDED", is_wide: false, cell: |record, _| suspended(record) },
        Column { name: "ZONE", is_wide: true, cell: |record, _| text(record, "timeZone") },
    ],
    schema,
    changed_by: None,
};

/// Returns the fields of a record that the decisions need.
pub fn of(record: &Record) -> Ritual<'_> {
    Ritual {
        name: record.key.name.as_str(),
        generation: record.generation,
        created_at: record.created_at,
        written_at: record.updated_at,
    }
}

fn due(record: &Record, now: Timestamp) -> Option<Timestamp> {
    let spec = RitualSpec::read(&record.spec).ok().filter(|_| record.deleting.is_none())?;
    ritual::due(of(record), &spec, &RitualStatus::read(&record.status), now)
}

fn text(record: &Record, field: &str) -> String {
    let text = record.spec.get(field).and_then(Value::as_str).unwrap_or_default();
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect()
}

fn seconds(at: Timestamp) -> String {
    let text = at.to_string();
    text.split('.').next().map(|whole| format!("{whole}Z")).unwrap_or(text)
}

fn next(record: &Record, now: Timestamp) -> String {
    let Ok(spec) = RitualSpec::read(&record.spec) else { return String::new() };
    if spec.suspend {
        return String::new();
    }
    spec.schedule.next(now).map(seconds).unwrap_or_default()
}

fn last(record: &Record) -> String {
    RitualStatus::read(&record.status).last_tick.map(seconds).unwrap_or_default()
}

fn suspended(record: &Record) -> String {
    let suspended = record.spec.get("suspend").and_then(Value::as_bool).unwrap_or(false);
    suspended.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::record::FieldError;

    fn check(spec: &Value) -> Vec<FieldError> {
        (RITUAL.check)(spec)
    }

    #[test]
    fn every_mistake_of_a_ritual_and_its_template_is_reported_with_its_path() {
        let good = json!({"schedule": "0 9 * * 1-5", "timeZone": "Europe/Berlin",
            "concurrency": "forbid", "missed": "all", "template": {"agent": "a"}});
        assert_eq!(check(&good), []);
        let bad = json!({"schedule": "0 0 30 2 *", "concurrency": "maybe", "missed": 1,
            "jitter": "x", "suspend": "no", "succeededHistory": -1, "template": {"agnet": "a"}});
        let paths: Vec<String> = check(&bad).into_iter().map(|one| one.path).collect();
        assert_eq!(paths.len(), 8, "{paths:?}");
        for want in ["spec.schedule", "spec.missed", "spec.template.agnet", "spec.template.agent"] {
            assert!(paths.iter().any(|path| path == want), "{want}: {paths:?}");
        }
        let never = check(&bad).iter().find(|one| one.path == "spec.schedule").cloned();
        assert!(never.expect("it is there").problem.contains("never comes"));
    }
}
