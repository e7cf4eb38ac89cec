//! The spec of a quest, read strictly. Every mistake is reported with its path.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::agent::COMMANDS;
use crate::record::FieldError;
use crate::record::kinds::{not_a, unknown_fields};
use crate::sandbox::SandboxLevel;
use crate::schedule::period;
use crate::session::claims;

pub const MAX_COMPLETIONS: u32 = 10_000;
pub const MAX_PARALLELISM: u32 = 100;
pub const MAX_RETRIES: u32 = 1_000;
/// Longest task in bytes, the same as for any session.
const MAX_TASK: usize = 200_000;

const FIELDS: &[&str] = &[
    "agent",
    "backoff",
    "command",
    "completions",
    "contexts",
    "memoryClaims",
    "deadline",
    "parallelism",
    "project",
    "retries",
    "sandbox",
    "task",
    "ttlAfterFinish",
];

/// The spec of a quest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuestSpec {
    /// Name or id of the agent.
    pub agent: String,
    /// Program and arguments, in place of the agent's own.
    pub command: Option<Vec<String>>,
    pub task: String,
    /// Number of sessions that must succeed: 1 to [`MAX_COMPLETIONS`].
    pub completions: u32,
    /// Maximum number of sessions at the same time: 1 to [`MAX_PARALLELISM`].
    pub parallelism: u32,
    /// Number of failures that are retried: 0 to [`MAX_RETRIES`].
    pub retries: u32,
    /// Wait before the first retry. It doubles with each retry.
    pub backoff: Duration,
    /// Most time since the start of the first session.
    pub deadline: Option<Duration>,
    /// Time from the end until the quest is deleted.
    pub ttl: Option<Duration>,
    pub sandbox: Option<SandboxLevel>,
    /// Absolute path of the project.
    pub project: Option<String>,
    /// Names of contexts that each session gets.
    pub contexts: Vec<String>,
    /// Memory claims of each session: names, with `:ro` to read only.
    pub claims: Vec<String>,
}

impl QuestSpec {
    /// Reads the spec at the path `at`, which is `spec` or `spec.template`.
    ///
    /// # Errors
    ///
    /// Returns every mistake.
    pub fn read(at: &str, spec: &Value) -> Result<Self, Vec<FieldError>> {
        let Some(fields) = spec.as_object() else {
            return Err(vec![not_a(at, "a mapping", spec)]);
        };
        let mut reader = Reader { at, fields, wrong: unknown_fields(at, fields, FIELDS) };
        let command = reader.words("command");
        let contexts = reader.words("contexts").unwrap_or_default();
        let claims = reader.words("memoryClaims").unwrap_or_default();
        if let Some(Err(why)) = claims.iter().map(|text| claims::parse(text)).find(Result::is_err) {
            reader.refuse("memoryClaims", &why);
        }
        let agent = reader.text("agent").filter(|agent| !agent.is_empty());
        if !fields.contains_key("command") && !fields.contains_key("agent") {
            let hint = "name an agent (`overmind agent list`), or give a command";
            let error = FieldError::new(format!("{at}.agent"), "is required").hint(hint);
            reader.wrong.push(error);
        }
        let task = reader.text("task").unwrap_or_default();
        if task.len() > MAX_TASK {
            reader.refuse("task", format!("has more than {MAX_TASK} bytes"));
        }
        let project = reader.text("project");
        if project.as_ref().is_some_and(|project| !Path::new(project).is_absolute()) {
            reader.refuse("project", "must be an absolute path");
        }
        let sandbox = reader.text("sandbox").and_then(|word| {
            let level = SandboxLevel::parse(&word);
            if level.is_none() {
                reader.refuse("sandbox", "must be a level like `namespace` or `none`");
            }
            level
        });
        let spec = Self {
            agent: agent.unwrap_or_else(|| COMMANDS.to_owned()),
            command,
            task,
            completions: reader.count("completions", 1, 1, MAX_COMPLETIONS),
            parallelism: reader.count("parallelism", 1, 1, MAX_PARALLELISM),
            retries: reader.count("retries", 3, 0, MAX_RETRIES),
            backoff: reader.period("backoff").unwrap_or(Duration::from_secs(10)),
            deadline: reader.period("deadline"),
            ttl: reader.period("ttlAfterFinish"),
            sandbox,
            project,
            contexts,
            claims,
        };
        if reader.wrong.is_empty() { Ok(spec) } else { Err(reader.wrong) }
    }
}

/// Reads the fields of one mapping.
struct Reader<'a> {
    at: &'a str,
    fields: &'a Map<String, Value>,
    wrong: Vec<FieldError>,
}

impl Reader<'_> {
    fn refuse(&mut self, field: &str, problem: impl Into<String>) {
        self.wrong.push(FieldError::new(format!("{}.{field}", self.at), problem));
    }

    fn text(&mut self, field: &str) -> Option<String> {
        let found = self.fields.get(field)?;
        let text = found.as_str().map(str::to_owned);
        if text.is_none() {
            self.wrong.push(not_a(&format!("{}.{field}", self.at), "a text", found));
        }
        text
    }

    fn words(&mut self, field: &str) -> Option<Vec<String>> {
        let found = self.fields.get(field)?;
        let list = found.as_array().filter(|list| !list.is_empty());
        let words: Option<Vec<String>> =
            list.and_then(|list| list.iter().map(|one| one.as_str().map(str::to_owned)).collect());
        if words.is_none() {
            self.refuse(field, "must be a list of texts, and not empty");
        }
        words
    }

    fn count(&mut self, field: &str, default: u32, least: u32, most: u32) -> u32 {
        let Some(found) = self.fields.get(field) else { return default };
        let number = found.as_u64().and_then(|number| u32::try_from(number).ok());
        number.filter(|number| (least..=most).contains(number)).unwrap_or_else(|| {
            self.refuse(field, format!("must be a whole number from {least} to {most}"));
            default
        })
    }

    fn period(&mut self, field: &str) -> Option<Duration> {
        let found = self.fields.get(field)?;
        let read = found.as_str().and_then(period);
        if read.is_none() {
            self.refuse(field, "must be a period like `30s`, `10m` or `1h30m`, at most 366 days");
        }
        read
    }
}

/// The JSON Schema of the spec.
pub fn schema() -> Value {
    let period = |description: &str| {
        json!({
            "description": description, "type": "string", "pattern": "^([0-9]+[smhdw])+$",
        })
    };
    let count = |description: &str, default: u32, least: u32, most: u32| {
        json!({
            "description": description, "type": "integer",
            "minimum": least, "maximum": most, "default": default,
        })
    };
    json!({
        "description": "A task that must succeed a number of times. Each attempt is a run.",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "agent": {
                "description": "Name or id of the agent; optional if there is a command.",
                "type": "string",
            },
            "command": {
                "description": "Program and arguments, instead of the agent's.",
                "type": "array", "items": { "type": "string" }, "minItems": 1,
            },
            "contexts": {
                "description": "Names of contexts for each run.",
                "type": "array", "items": { "type": "string" }, "minItems": 1,
            },
            "memoryClaims": {
                "description": "Memory claims of each run: `NAME`, or `NAME:ro` to read only.",
                "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 8,
            },
            "task": { "description": "The task of each run.", "type": "string" },
            "completions": count("Runs that must succeed.", 1, 1, MAX_COMPLETIONS),
            "parallelism": count("Runs at once.", 1, 1, MAX_PARALLELISM),
            "retries": count("How many failed runs are replaced with another one.", 3, 0, MAX_RETRIES),
            "backoff": period("Delay before the first retry, default 10s; doubled with each \
                retry."),
            "deadline": period("Time since the first run after which the quest fails and its runs \
                are ended."),
            "ttlAfterFinish": period("Time after its end at which the quest is deleted; without \
                it, never."),
            "sandbox": {
                "description": "A stronger sandbox than the agent's.",
                "type": "string",
            },
            "project": {
                "description": "Absolute path of the directory in which the runs work. The rules \
                    of `overmind run` apply, including trust in the project.",
                "type": "string",
            },
        },
    })
}
