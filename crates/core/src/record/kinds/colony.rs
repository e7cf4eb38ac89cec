//! The kind `Colony`: a namespace of runs, agents and resources, with its quota, its least sandbox
//! and its budget.

use serde_json::{Map, Value, json};

use super::{not_a, unknown_fields};
use crate::agent::AgentBudget;
use crate::budget::{Period, UnknownPrice};
use crate::ids::{ColonyId, RecordId};
use crate::record::kind::{Column, KindInfo, RecordVerb};
use crate::record::{FieldError, Record};
use crate::row::Role;
use crate::sandbox::SandboxLevel;

/// The largest quota.
const MOST_RUNS: u64 = 1_000_000;
/// The largest budget in dollars, so that millionths of it fit.
const MOST_USD: f64 = 1e9;
/// The largest budget in tokens.
const MOST_TOKENS: u64 = 1 << 53;

pub const COLONY: KindInfo = KindInfo {
    name: "colony",
    plural: "colonies",
    aliases: &["namespace", "namespaces", "ns"],
    check,
    terms: |_| Vec::new(),
    due: |_, _| None,
    role: |verb| match verb {
        RecordVerb::Read => Role::Viewer,
        RecordVerb::Put | RecordVerb::Status | RecordVerb::Delete => Role::Admin,
    },
    columns: &[
        Column { name: "RUNS", is_wide: false, cell: |record, _| used(record, "runs") },
        Column { name: "RUNNING", is_wide: false, cell: |record, _| used(record, "running") },
        Column { name: "BUDGET", is_wide: false, cell: |record, _| budget_text(record) },
        Column { name: "SANDBOX", is_wide: true, cell: |record, _| sandbox_text(record) },
    ],
    schema,
    changed_by: None,
};

/// Returns whether records of this kind belong to the whole server and not to one colony.
pub fn is_of_swarm(info: &KindInfo) -> bool {
    info.name == COLONY.name
}

/// Returns the colony that a record of the kind `Colony` declares.
pub fn id_of(record: RecordId) -> ColonyId {
    ColonyId::from_u128(record.as_u128())
}

/// Returns the id of the record that declares the default colony.
pub fn default_record() -> RecordId {
    RecordId::from_u128(ColonyId::DEFAULT.as_u128())
}

/// The content of a colony's spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColonySpec {
    /// Maximum number of runs that have not ended.
    pub runs: Option<u32>,
    /// Maximum number of runs that run at the same time; further ones wait in the queue.
    pub running: Option<u32>,
    /// The weakest sandbox of its runs.
    pub sandbox: Option<SandboxLevel>,
    pub budget: Option<AgentBudget>,
}

impl ColonySpec {
    /// Reads a spec that was checked.
    ///
    /// # Errors
    ///
    /// Returns every mistake with its path.
    pub fn read(spec: &Value) -> Result<Self, Vec<FieldError>> {
        let mut reader = Reader { wrong: Vec::new() };
        let empty = Map::new();
        let fields = reader.object("spec", Some(spec), &["budget", "quota", "sandbox"]);
        let fields = fields.unwrap_or(&empty);
        let quota = reader.object("spec.quota", fields.get("quota"), &["runs", "running"]);
        let quota = quota.unwrap_or(&empty);
        let runs = reader.whole("spec.quota.runs", quota.get("runs"), MOST_RUNS);
        let running = reader.whole("spec.quota.running", quota.get("running"), MOST_RUNS);
        let of = |count: Option<u64>| count.and_then(|count| u32::try_from(count).ok());
        let read = Self {
            runs: of(runs),
            running: of(running),
            sandbox: reader.sandbox(fields.get("sandbox")),
            budget: reader.budget(fields.get("budget")),
        };
        if reader.wrong.is_empty() { Ok(read) } else { Err(reader.wrong) }
    }
}

struct Reader {
    wrong: Vec<FieldError>,
}

impl Reader {
    fn object<'v>(
        &mut self,
        at: &str,
        value: Option<&'v Value>,
        known: &[&str],
    ) -> Option<&'v Map<String, Value>> {
        match value? {
            Value::Object(fields) => {
                self.wrong.extend(unknown_fields(at, fields, known));
                Some(fields)
            }
            other => {
                self.wrong.push(not_a(at, "a mapping", other));
                None
            }
        }
    }

    fn whole(&mut self, at: &str, value: Option<&Value>, most: u64) -> Option<u64> {
        let value = value?;
        let found = value.as_u64().filter(|count| (1..=most).contains(count));
        if found.is_none() {
            self.wrong
                .push(FieldError::new(at, format!("must be a whole number from 1 to {most}")));
        }
        found
    }

    fn sandbox(&mut self, value: Option<&Value>) -> Option<SandboxLevel> {
        let level = value?.as_str().and_then(SandboxLevel::parse);
        if level.is_none() {
            let problem = "must be a level: none, namespace, docker or microvm";
            self.wrong.push(FieldError::new("spec.sandbox", problem));
        }
        level
    }

    fn budget(&mut self, value: Option<&Value>) -> Option<AgentBudget> {
        let fields = self.object("spec.budget", value, &["per", "tokens", "usd"])?;
        let tokens = self.whole("spec.budget.tokens", fields.get("tokens"), MOST_TOKENS);
        let microusd = fields.get("usd").and_then(|value| {
            let usd = value.as_f64().filter(|usd| (0.0..=MOST_USD).contains(usd));
            if usd.is_none() {
                let problem = format!("must be a number of dollars from 0 to {MOST_USD}");
                self.wrong.push(FieldError::new("spec.budget.usd", problem));
            }
            usd.map(microusd_of)
        });
        let per = match fields.get("per") {
            None => Some(Period::Total),
            Some(word) => word.as_str().and_then(Period::parse),
        };
        if per.is_none() {
            let problem = "must be a period: day, week, month or total";
            self.wrong.push(FieldError::new("spec.budget.per", problem));
        }
        if !fields.contains_key("usd") && !fields.contains_key("tokens") {
            let error = FieldError::new("spec.budget", "has no amount");
            self.wrong.push(error.hint("give `usd`, `tokens`, or both"));
        }
        let (soft, unknown_price) = (false, UnknownPrice::default());
        Some(AgentBudget { microusd, tokens, per: per?, soft, unknown_price })
    }
}

/// Converts a number of dollars from 0 to [`MOST_USD`] to millionths, rounded.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most 1e15, and not negative"
)]
fn microusd_of(usd: f64) -> u64 {
    (usd * 1e6).round() as u64
}

fn check(spec: &Value) -> Vec<FieldError> {
    ColonySpec::read(spec).err().unwrap_or_default()
}

fn schema() -> Value {
    let quota = |description: &str| json!({"description": description, "type": "integer", "minimum": 1, "maximum": MOST_RUNS});
    json!({
        "description": "A group of runs, agents and resources with names of its own. A key that is \
            bound to a colony reaches nothing outside of it.",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "quota": {
                "description": "How much may exist at the same time.",
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "runs": quota("Runs that have not ended. Further ones are refused."),
                    "running": quota("Runs that are running. Further ones wait in the queue."),
                },
            },
            "sandbox": {
                "description": "The weakest sandbox of its runs. A run with a weaker one is refused.",
                "enum": ["none", "namespace", "docker", "microvm"],
            },
            "budget": {
                "description": "What all its model calls together may cost.",
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "usd": { "type": "number", "minimum": 0, "maximum": MOST_USD,
                        "description": "Dollars." },
                    "tokens": { "type": "integer", "minimum": 1, "maximum": MOST_TOKENS,
                        "description": "Input and output tokens together." },
                    "per": { "enum": ["day", "week", "month", "total"],
                        "description": "The period. Without it, `total`: it never resets." },
                },
            },
        },
    })
}

/// Returns a count of the status and, if there is a quota, the quota: `3/10`.
fn used(record: &Record, what: &str) -> String {
    let count = record.status.get(what).and_then(Value::as_u64);
    let count = count.map(|count| count.to_string()).unwrap_or_default();
    match record.spec.pointer(&format!("/quota/{what}")).and_then(Value::as_u64) {
        Some(most) => format!("{count}/{most}"),
        None => count,
    }
}

fn budget_text(record: &Record) -> String {
    let Some(budget) = record.spec.get("budget") else { return String::new() };
    let spent = record.status.get("spentUsd").and_then(Value::as_f64);
    let usd = budget.get("usd").and_then(Value::as_f64).map(|usd| match spent {
        Some(spent) => format!("${spent:.2}/${usd:.2}"),
        None => format!("${usd:.2}"),
    });
    let tokens = budget.get("tokens").and_then(Value::as_u64).map(|n| format!("{n} tokens"));
    let amount = usd.or(tokens).unwrap_or_default();
    match budget.get("per").and_then(Value::as_str).and_then(Period::parse) {
        None | Some(Period::Total) => amount,
        Some(per) => format!("{amount} per {}", per.as_str()),
    }
}

fn sandbox_text(record: &Record) -> String {
    let level = record.spec.get("sandbox").and_then(Value::as_str).and_then(SandboxLevel::parse);
    level.map(|level| level.as_str().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_read_with_its_quota_sandbox_and_budget() {
        assert_eq!(ColonySpec::read(&json!({})), Ok(ColonySpec::default()));
        let spec = json!({
            "quota": {"runs": 10, "running": 2}, "sandbox": "namespace",
            "budget": {"usd": 2.5, "per": "day"},
        });
        let read = ColonySpec::read(&spec).unwrap();
        assert_eq!((read.runs, read.running), (Some(10), Some(2)));
        assert_eq!(read.sandbox, Some(SandboxLevel::Namespace));
        let budget = read.budget.unwrap();
        assert_eq!((budget.microusd, budget.tokens), (Some(2_500_000), None));
        assert_eq!((budget.per, budget.soft), (Period::Day, false));
    }

    #[test]
    fn every_mistake_of_a_colony_is_named_by_its_path() {
        for (bad, want) in [
            (json!([]), "spec must be a mapping"),
            (json!({"qouta": {}}), "spec.qouta is not a field; did you mean `quota`?"),
            (json!({"quota": {"runs": 0}}), "spec.quota.runs must be a whole number from 1"),
            (json!({"quota": {"running": "2"}}), "spec.quota.running must be a whole number"),
            (json!({"quota": 3}), "spec.quota must be a mapping"),
            (json!({"sandbox": "strong"}), "spec.sandbox must be a level"),
            (json!({"budget": {}}), "spec.budget has no amount"),
            (json!({"budget": {"usd": -1}}), "spec.budget.usd must be a number of dollars"),
            (json!({"budget": {"usd": 1, "per": "year"}}), "spec.budget.per must be a period"),
        ] {
            let wrong = check(&bad);
            let first = wrong.first().map(ToString::to_string).unwrap_or_default();
            assert!(first.starts_with(want), "{bad}: {first}");
        }
    }

    #[test]
    fn the_default_colony_has_the_id_of_its_record() {
        assert_eq!(id_of(default_record()), ColonyId::DEFAULT);
    }
}
