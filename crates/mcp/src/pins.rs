//! Approved tools, and how the tools that are offered now differ from them.

use std::collections::BTreeMap;

use overmind_core::time::Timestamp;
use overmind_core::tool::EffectClass;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use similar::TextDiff;

use crate::vet::Vetted;

/// One approved tool, with its whole definition, so that a change can be shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pin {
    pub(crate) hash: String,
    pub(crate) description: String,
    pub(crate) schema: Value,
    pub(crate) class: EffectClass,
    pub(crate) at: Timestamp,
}

/// Pins by the server's own tool names.
pub(crate) type Pins = BTreeMap<String, Pin>;

impl Pin {
    pub(crate) fn new(tool: &Vetted, at: Timestamp) -> Self {
        Self {
            hash: tool.hash.clone(),
            description: tool.description.clone(),
            schema: tool.schema.clone(),
            class: tool.class,
            at,
        }
    }
}

/// A tool that differs from the approved one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub pinned: String,
    pub offered: String,
    /// A unified diff of description and schema, at most 16 KiB.
    pub diff: String,
}

const MAX_DIFF_BYTES: usize = 16 << 10;

pub(crate) fn difference(pin: &Pin, tool: &Vetted) -> Difference {
    let text = |description: &str, schema: &Value| {
        let schema = serde_json::to_string_pretty(schema).expect("a JSON value can be written");
        format!("{description}\n\n{schema}\n")
    };
    let (old, new) = (text(&pin.description, &pin.schema), text(&tool.description, &tool.schema));
    let mut diff = TextDiff::from_lines(&old, &new)
        .unified_diff()
        .context_radius(2)
        .header("pinned", "offered")
        .to_string();
    if diff.is_empty() {
        "only what the tool claims of itself (read-only, idempotent) has changed\n"
            .clone_into(&mut diff);
    }
    diff.truncate(diff.floor_char_boundary(MAX_DIFF_BYTES));
    Difference { pinned: pin.hash.clone(), offered: tool.hash.clone(), diff }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_shows_the_lines_that_changed() {
        let tool = Vetted {
            name: "t".into(),
            description: "adds".into(),
            schema: json!({"type": "object"}),
            class: EffectClass::Once,
            hash: "1".into(),
        };
        let pin = Pin::new(&tool, Timestamp::from_micros(0));
        let changed = Vetted { description: "adds, and mails it".into(), hash: "2".into(), ..tool };
        let found = difference(&pin, &changed);
        assert!(found.diff.contains("-adds\n+adds, and mails it\n"), "{}", found.diff);
    }
}
