//! The spec of a fleet: read strictly, with every mistake by its path.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::scale::Scale;
use crate::quest::QuestSpec;
use crate::record::FieldError;
use crate::record::bounds::check_labels;
use crate::record::kinds::{not_a, unknown_fields};
use crate::record::label::Selector;
use crate::schedule::period;

/// The maximum number that a status can list, including the surge.
pub const MAX_REPLICAS: u32 = 1_000;
const MAX_SURGE: u32 = 500;
/// Maximum number of packs that are kept.
pub const MAX_HISTORY: u32 = 100;

const FIELDS: &[&str] = &[
    "historyLimit",
    "maxSurge",
    "maxUnavailable",
    "minReady",
    "paused",
    "replicas",
    "scale",
    "template",
];
const OF_LINEAGE: &[&str] = &["historyLimit", "minReady", "paused", "replicas", "template"];
const OF_SENTINEL: &[&str] =
    &["historyLimit", "maxUnavailable", "minReady", "paused", "selector", "template"];
const TEMPLATE: &[&str] = &[
    "agent",
    "command",
    "contexts",
    "labels",
    "memoryClaims",
    "project",
    "restartedAt",
    "sandbox",
    "task",
];

/// The sessions that are kept.
#[derive(Clone, Debug)]
pub struct FleetSpec {
    pub replicas: u32,
    /// The source of that number, if it is not the spec.
    pub scale: Option<Scale>,
    /// Sessions beyond `replicas` that there may be during a rollout.
    pub surge: u32,
    /// The number of `replicas` that may be missing during a rollout.
    pub unavailable: u32,
    /// A session counts as available when it has run for so long.
    pub min_ready: Duration,
    pub paused: bool,
    /// For a sentinel: the matching hives.
    pub selector: Selector,
    pub history: u32,
    /// The template of each session.
    pub template: Template,
    /// The template as written in the spec.
    pub fingerprint: String,
}

/// The template of each session of a fleet.
#[derive(Clone, Debug)]
pub struct Template {
    pub run: QuestSpec,
    pub labels: BTreeMap<String, String>,
}

impl Template {
    /// # Errors
    ///
    /// Every mistake.
    pub fn read(at: &str, template: &Value) -> Result<Self, Vec<FieldError>> {
        let Some(fields) = template.as_object() else {
            return Err(vec![not_a(at, "a mapping", template)]);
        };
        let mut wrong = unknown_fields(at, fields, TEMPLATE);
        if let Some(found) = fields.get("restartedAt").filter(|found| !found.is_string()) {
            wrong.push(not_a(&format!("{at}.restartedAt"), "a text", found));
        }
        let labels = labels(at, fields, &mut wrong);
        let mut run = fields.clone();
        run.retain(|field, _| {
            TEMPLATE.contains(&field.as_str()) && field != "labels" && field != "restartedAt"
        });
        match QuestSpec::read(at, &Value::Object(run)) {
            Ok(run) if wrong.is_empty() => Ok(Self { run, labels }),
            Ok(_) => Err(wrong),
            Err(more) => {
                wrong.extend(more);
                Err(wrong)
            }
        }
    }
}

fn labels(
    at: &str,
    fields: &Map<String, Value>,
    wrong: &mut Vec<FieldError>,
) -> BTreeMap<String, String> {
    let at = format!("{at}.labels");
    let Some(found) = fields.get("labels") else { return BTreeMap::new() };
    let Some(entries) = found.as_object() else {
        wrong.push(not_a(&at, "a mapping of texts", found));
        return BTreeMap::new();
    };
    let mut labels = BTreeMap::new();
    for (key, value) in entries {
        match value.as_str() {
            Some(text) => drop(labels.insert(key.clone(), text.to_owned())),
            None => wrong.push(not_a(&format!("{at}.{key}"), "a text", value)),
        }
    }
    for mut one in check_labels(&labels) {
        one.path = one.path.replacen("metadata.labels", &at, 1);
        wrong.push(one);
    }
    labels
}

impl FleetSpec {
    /// # Errors
    ///
    /// Every mistake.
    pub fn read(spec: &Value) -> Result<Self, Vec<FieldError>> {
        Self::read_with(spec, FIELDS)
    }

    /// For a lineage: one session at a time is replaced, and never has a second one beside it.
    ///
    /// # Errors
    ///
    /// Every mistake.
    pub fn read_lineage(spec: &Value) -> Result<Self, Vec<FieldError>> {
        Ok(Self { surge: 0, unavailable: 1, ..Self::read_with(spec, OF_LINEAGE)? })
    }

    /// For a sentinel: one session per matching hive, and never a second one beside it.
    ///
    /// # Errors
    ///
    /// Every mistake.
    pub fn read_sentinel(spec: &Value) -> Result<Self, Vec<FieldError>> {
        let mut read = Self::read_with(spec, OF_SENTINEL);
        if spec.get("maxUnavailable").and_then(Value::as_u64) == Some(0) {
            let problem = "must be at least 1: a run ends before the next of its hive is made";
            let wrong = FieldError::new("spec.maxUnavailable", problem);
            match &mut read {
                Ok(_) => read = Err(vec![wrong]),
                Err(all) => all.push(wrong),
            }
        }
        let found = spec.get("selector").unwrap_or(&Value::Null);
        let selector = match found {
            Value::Null => Ok(Selector::default()),
            Value::String(text) => Selector::parse(text)
                .map_err(|err| FieldError::new("spec.selector", err.to_string())),
            other => Err(not_a("spec.selector", "a text like `zone=eu`", other)),
        };
        match (&mut read, selector) {
            (Ok(read), Ok(selector)) => {
                (read.surge, read.selector) = (0, selector);
                read.unavailable = read.unavailable.max(1);
            }
            (Ok(_), Err(one)) => return Err(vec![one]),
            (Err(all), Err(one)) => all.push(one),
            (Err(_), Ok(_)) => {}
        }
        read
    }

    fn read_with(spec: &Value, known: &[&str]) -> Result<Self, Vec<FieldError>> {
        let Some(fields) = spec.as_object() else {
            return Err(vec![not_a("spec", "a mapping", spec)]);
        };
        let mut wrong = unknown_fields("spec", fields, known);
        let mut count = |field: &str, default: u32, most: u32| -> u32 {
            let Some(found) = fields.get(field) else { return default };
            let number = found.as_u64().and_then(|number| u32::try_from(number).ok());
            number.filter(|number| *number <= most).unwrap_or_else(|| {
                let problem = format!("must be a whole number from 0 to {most}");
                wrong.push(FieldError::new(format!("spec.{field}"), problem));
                default
            })
        };
        let replicas = count("replicas", 1, MAX_REPLICAS);
        let surge = count("maxSurge", 1, MAX_SURGE);
        let unavailable = count("maxUnavailable", 0, MAX_REPLICAS);
        let history = count("historyLimit", 10, MAX_HISTORY);
        if surge == 0 && unavailable == 0 {
            let problem = "and spec.maxUnavailable are both 0: nothing could ever be replaced";
            wrong.push(FieldError::new("spec.maxSurge", problem));
        }
        let min_ready = match fields.get("minReady") {
            None => Duration::ZERO,
            Some(found) => found.as_str().and_then(period).unwrap_or_else(|| {
                let problem = "must be a period like `30s`, `10m` or `1h30m`, at most 366 days";
                wrong.push(FieldError::new("spec.minReady", problem));
                Duration::ZERO
            }),
        };
        let paused = match fields.get("paused") {
            None => false,
            Some(found) => found.as_bool().unwrap_or_else(|| {
                wrong.push(FieldError::new("spec.paused", "must be true or false"));
                false
            }),
        };
        let template = match fields.get("template") {
            Some(template) => Template::read("spec.template", template),
            None => Err(vec![
                FieldError::new("spec.template", "is required").hint("what each session is"),
            ]),
        };
        let scale = match fields.get("scale").map(Scale::read) {
            None => None,
            Some(Ok(scale)) => Some(scale),
            Some(Err(more)) => {
                wrong.extend(more);
                None
            }
        };
        let text = fields.get("template").map(Value::to_string).unwrap_or_default();
        let fingerprint: String = blake3::hash(text.as_bytes()).to_hex().chars().take(16).collect();
        match template {
            Ok(template) if wrong.is_empty() => Ok(Self {
                replicas,
                scale,
                surge,
                unavailable,
                min_ready,
                paused,
                selector: Selector::default(),
                history,
                template,
                fingerprint,
            }),
            Ok(_) => Err(wrong),
            Err(more) => {
                wrong.extend(more);
                Err(wrong)
            }
        }
    }
}

/// The JSON Schema of a lineage's spec.
pub fn lineage_schema() -> Value {
    let mut schema = schema();
    schema["description"] = json!(
        "A number of runs with permanent names: a run that ends continues with the same files, \
            memory and conversation."
    );
    if let Some(fields) = schema["properties"].as_object_mut() {
        fields.retain(|name, _| OF_LINEAGE.contains(&name.as_str()));
    }
    schema
}

/// The JSON Schema of a sentinel's spec.
pub fn sentinel_schema() -> Value {
    let mut schema = schema();
    schema["description"] =
        json!("One run on each matching hive: a run that ends is started again.");
    if let Some(fields) = schema["properties"].as_object_mut() {
        fields.retain(|name, _| OF_SENTINEL.contains(&name.as_str()));
        let selector = json!({
            "description": "Labels of the hives: `zone=eu`, `overmind/hive in (local)`. Without \
                it, all hives match.",
            "type": "string",
        });
        fields.insert("selector".into(), selector);
        if let Some(most) = fields.get_mut("maxUnavailable") {
            most["description"] = json!("How many hives may be without a run during a rollout.");
            (most["minimum"], most["default"]) = (json!(1), json!(1));
        }
    }
    schema
}

/// The JSON Schema of the spec.
pub fn schema() -> Value {
    let count = |description: &str, default: u32, most: u32| {
        json!({
            "description": description, "type": "integer",
            "minimum": 0, "maximum": most, "default": default,
        })
    };
    let text = |description: &str| json!({"description": description, "type": "string"});
    json!({
        "description": "A number of runs that are kept alive: a run that ends is replaced, and a \
            change of the template replaces all runs one after the other.",
        "type": "object",
        "required": ["template"],
        "additionalProperties": false,
        "properties": {
            "replicas": count("Desired number of runs.", 1, MAX_REPLICAS),
            "scale": super::scale::schema(),
            "maxSurge": count("Additional runs during a rollout.", 1, MAX_SURGE),
            "maxUnavailable": count("How many runs may be missing during a rollout.", 0, MAX_REPLICAS),
            "minReady": {
                "description": "How long a run must have run to count as available: 30s.",
                "type": "string", "pattern": "^([0-9]+[smhdw])+$",
            },
            "paused": {
                "description": "A change of the template waits; runs that end are still replaced.",
                "type": "boolean",
            },
            "historyLimit": count("How many Packs of earlier templates are kept.", 10, MAX_HISTORY),
            "template": {
                "description": "Agent, task and labels of each run.",
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "agent": text("Name or id of the agent; optional if there is a command."),
                    "command": {
                        "description": "Program and arguments, instead of the agent's.",
                        "type": "array", "items": { "type": "string" }, "minItems": 1,
                    },
                    "contexts": {
                        "description": "Names of contexts for each run.",
                        "type": "array", "items": { "type": "string" }, "minItems": 1,
                    },
                    "memoryClaims": {
                        "description": "Memory claims of each run: `NAME`, or `NAME:ro` to read \
                            only.",
                        "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 8,
                    },
                    "task": text("The task of each run."),
                    "labels": {
                        "description": "Labels of the runs.",
                        "type": "object", "additionalProperties": { "type": "string" },
                    },
                    "sandbox": text("A stronger sandbox than the agent's."),
                    "project": text("Absolute path of the directory in which the runs work."),
                    "restartedAt": text("Any text: changing it replaces all runs (`rollout \
                        restart`)."),
                },
            },
        },
    })
}
