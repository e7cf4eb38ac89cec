//! Conditions: facts about a record, each with its reason and time, as in Kubernetes. They are in
//! `status.conditions`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::time::Timestamp;

/// Maximum number of conditions of one record. A further type replaces the condition that changed
/// first.
pub const MAX_CONDITIONS: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The type, one word: `Complete`. A record has at most one condition of each type.
    #[serde(rename = "type")]
    pub kind: String,
    pub status: ConditionStatus,
    /// A code for programs, one word: `DeadlineExceeded`.
    #[serde(default)]
    pub reason: String,
    /// A sentence for people.
    #[serde(default)]
    pub message: String,
    /// The generation of the spec to which it applies.
    #[serde(default)]
    pub observed_generation: u64,
    /// Time of the last change of `status`.
    pub last_transition: Timestamp,
}

/// Adds a condition, or replaces the one of the same type. `last_transition` of `new` is used only
/// if the status changes; otherwise the old one is kept. Returns whether anything changed.
pub fn set_condition(conditions: &mut Vec<Condition>, mut new: Condition) -> bool {
    match conditions.iter_mut().find(|old| old.kind == new.kind) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition = old.last_transition;
            }
            let changed = *old != new;
            *old = new;
            changed
        }
        None => {
            if conditions.len() >= MAX_CONDITIONS {
                let oldest = conditions.iter().enumerate().min_by_key(|(_, c)| c.last_transition);
                if let Some((at, _)) = oldest {
                    conditions.remove(at);
                }
            }
            conditions.push(new);
            true
        }
    }
}

/// Returns the conditions in a status. Invalid ones are left out.
pub fn conditions(status: &Value) -> Vec<Condition> {
    let all = status.get("conditions").and_then(Value::as_array);
    all.into_iter().flatten().filter_map(|one| Condition::deserialize(one).ok()).collect()
}

/// Calls [`set_condition`] for a status; a status that is no object becomes one.
pub fn set_in(status: &mut Value, new: Condition) -> bool {
    let mut all = conditions(status);
    let changed = set_condition(&mut all, new);
    if changed {
        let list = serde_json::to_value(all).unwrap_or_default();
        match status {
            Value::Object(fields) => {
                fields.insert("conditions".into(), list);
            }
            other => *other = serde_json::json!({ "conditions": list }),
        }
    }
    changed
}
