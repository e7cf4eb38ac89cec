//! The spec of a ritual, read strictly. Every mistake is reported with its path.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::quest::{QuestSpec, schema as quest_schema};
use crate::record::FieldError;
use crate::record::kinds::{not_a, unknown_fields};
use crate::schedule::{Schedule, period};

const FIELDS: &[&str] = &[
    "concurrency",
    "failedHistory",
    "jitter",
    "missed",
    "schedule",
    "startingDeadline",
    "succeededHistory",
    "suspend",
    "template",
    "timeZone",
];
/// Maximum number of finished quests that are kept, of successful and of failed ones each.
const MAX_HISTORY: u64 = 1_000;

/// How a tick is handled while an earlier quest of the ritual still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    Allow,
    Forbid,
    Replace,
}

/// How ticks are handled that could not be decided in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    Skip,
    Once,
    All,
}

/// The spec of a ritual.
#[derive(Clone, Debug)]
pub struct RitualSpec {
    pub schedule: Schedule,
    /// The schedule as it was written.
    pub text: String,
    pub zone: String,
    pub jitter: Duration,
    pub concurrency: Concurrency,
    pub missed: Missed,
    pub suspend: bool,
    /// Delay after which a tick gets no quest.
    pub starting_deadline: Option<Duration>,
    pub keep_succeeded: u64,
    pub keep_failed: u64,
    /// The spec of the quests.
    pub template: Value,
}

impl RitualSpec {
    /// # Errors
    ///
    /// Returns every mistake.
    pub fn read(spec: &Value) -> Result<Self, Vec<FieldError>> {
        let Some(fields) = spec.as_object() else {
            return Err(vec![not_a("spec", "a mapping", spec)]);
        };
        let mut reader = Reader { fields, wrong: unknown_fields("spec", fields, FIELDS) };
        let zone = reader.text("timeZone").unwrap_or_else(|| "UTC".to_owned());
        let text = reader.text("schedule");
        if text.is_none() && !fields.contains_key("schedule") {
            let hint = "write it like `0 9 * * 1-5`, `every 30m` or `@daily`";
            reader.wrong.push(FieldError::new("spec.schedule", "is required").hint(hint));
        }
        let text = text.unwrap_or_default();
        let schedule = match Schedule::parse(&text, &zone) {
            Ok(schedule) => Some(schedule),
            Err(err) => {
                if fields.contains_key("schedule") {
                    reader.refuse("schedule", format!("is no schedule: {err}"));
                }
                None
            }
        };
        let template = fields.get("template").cloned().unwrap_or_else(|| json!({}));
        if let Err(wrong) = QuestSpec::read("spec.template", &template) {
            reader.wrong.extend(wrong);
        }
        let concurrency = reader.choice(
            "concurrency",
            &[
                ("allow", Concurrency::Allow),
                ("forbid", Concurrency::Forbid),
                ("replace", Concurrency::Replace),
            ],
        );
        let missed = reader.choice(
            "missed",
            &[("once", Missed::Once), ("skip", Missed::Skip), ("all", Missed::All)],
        );
        let suspend = match fields.get("suspend") {
            None => false,
            Some(found) => found.as_bool().unwrap_or_else(|| {
                reader.refuse("suspend", "must be true or false");
                false
            }),
        };
        let jitter = reader.period("jitter").unwrap_or_default();
        let starting_deadline = reader.period("startingDeadline");
        let keep_succeeded = reader.count("succeededHistory", 3);
        let keep_failed = reader.count("failedHistory", 3);
        match (schedule, reader.wrong.is_empty()) {
            (Some(schedule), true) => Ok(Self {
                schedule,
                text,
                zone,
                jitter,
                concurrency,
                missed,
                suspend,
                starting_deadline,
                keep_succeeded,
                keep_failed,
                template,
            }),
            (Some(_) | None, _) => Err(reader.wrong),
        }
    }
}

struct Reader<'a> {
    fields: &'a Map<String, Value>,
    wrong: Vec<FieldError>,
}

impl Reader<'_> {
    fn refuse(&mut self, field: &str, problem: impl Into<String>) {
        self.wrong.push(FieldError::new(format!("spec.{field}"), problem));
    }

    fn text(&mut self, field: &str) -> Option<String> {
        let found = self.fields.get(field)?;
        let text = found.as_str().map(str::to_owned);
        if text.is_none() {
            self.wrong.push(not_a(&format!("spec.{field}"), "a text", found));
        }
        text
    }

    fn period(&mut self, field: &str) -> Option<Duration> {
        let found = self.fields.get(field)?;
        let read = found.as_str().and_then(period);
        if read.is_none() {
            self.refuse(field, "must be a period like `30s`, `10m` or `1h30m`, at most 366 days");
        }
        read
    }

    fn count(&mut self, field: &str, default: u64) -> u64 {
        let Some(found) = self.fields.get(field) else { return default };
        found.as_u64().filter(|number| *number <= MAX_HISTORY).unwrap_or_else(|| {
            self.refuse(field, format!("must be a whole number from 0 to {MAX_HISTORY}"));
            default
        })
    }

    /// Reads one of `choices`. The first is the default.
    fn choice<T: Copy>(&mut self, field: &str, choices: &[(&str, T); 3]) -> T {
        let [(_, default), ..] = *choices;
        let Some(found) = self.fields.get(field) else { return default };
        let chosen = choices.iter().find(|(word, _)| found.as_str() == Some(word));
        chosen.map_or_else(
            || {
                let words = choices.map(|(word, _)| word).join(", ");
                self.refuse(field, format!("must be one of {words}"));
                default
            },
            |(_, chosen)| *chosen,
        )
    }
}

/// The JSON Schema of the spec.
pub fn schema() -> Value {
    let period = |description: &str| {
        json!({
            "description": description, "type": "string", "pattern": "^([0-9]+[smhdw])+$",
        })
    };
    let history = |description: &str| {
        json!({
            "description": description, "type": "integer",
            "minimum": 0, "maximum": MAX_HISTORY, "default": 3,
        })
    };
    json!({
        "description": "A schedule of quests. Each tick creates a quest, named after the tick.",
        "type": "object",
        "required": ["schedule", "template"],
        "additionalProperties": false,
        "properties": {
            "schedule": {
                "description": "5 cron fields (minute hour day month weekday), 6 with a second before \
                    them, `every 30m`, or @hourly, @daily, @weekly, @monthly, @yearly.",
                "type": "string", "minLength": 1, "maxLength": crate::schedule::MAX_TEXT,
            },
            "timeZone": {
                "description": "A name like Europe/Berlin.", "type": "string", "default": "UTC",
            },
            "jitter": period("Each tick is delayed by a fixed time shorter than this."),
            "concurrency": {
                "description": "What a tick does while an earlier quest runs: allow starts \
                    another one, forbid starts none (with missed: all, it starts later), replace \
                    deletes the earlier one.",
                "enum": ["allow", "forbid", "replace"], "default": "allow",
            },
            "missed": {
                "description": "Which missed ticks are run when the server starts again: once the \
                    last one, skip none, all the last 100.",
                "enum": ["skip", "once", "all"], "default": "once",
            },
            "suspend": { "description": "No tick starts anything.", "type": "boolean" },
            "startingDeadline": period("A tick that is later than this starts nothing."),
            "succeededHistory": history("How many successful quests are kept."),
            "failedHistory": history("How many failed quests are kept."),
            "template": quest_schema(),
        },
    })
}
