//! Fleet: so many sessions that stay. Lineage: sessions that stay the same ones. Sentinel: one on each
//! hive that matches. Pack: what one revision of a template of theirs was. What becomes of them: [`crate::fleet`].

use serde_json::{Value, json};

use super::{not_a, unknown_fields};
use crate::agent::COMMANDS;
use crate::fleet::{FleetSpec, FleetStatus, Template, lineage_schema, schema, sentinel_schema};
use crate::record::kind::{Column, KindInfo, RecordVerb};
use crate::record::{FieldError, Record, Term, Terms};
use crate::row::Role;

/// The index term of every fleet and lineage: all are looked at when sessions or records change.
pub const OPEN: (&str, &str) = ("open", "true");

pub const FLEET: KindInfo = KindInfo {
    name: "fleet",
    plural: "fleets",
    aliases: &["deployment", "deployments", "deploy"],
    check: |spec| FleetSpec::read(spec).err().unwrap_or_default(),
    terms,
    due: |_, _| None,
    role: |verb| match verb {
        RecordVerb::Read => Role::Viewer,
        RecordVerb::Put | RecordVerb::Status | RecordVerb::Delete => Role::Operator,
    },
    columns: COLUMNS,
    schema,
    changed_by: None,
};

pub const LINEAGE: KindInfo = KindInfo {
    name: "lineage",
    plural: "lineages",
    aliases: &["statefulset", "statefulsets", "sts"],
    check: |spec| FleetSpec::read_lineage(spec).err().unwrap_or_default(),
    schema: lineage_schema,
    ..FLEET
};

pub const SENTINEL: KindInfo = KindInfo {
    name: "sentinel",
    plural: "sentinels",
    aliases: &["daemonset", "daemonsets", "ds"],
    check: |spec| FleetSpec::read_sentinel(spec).err().unwrap_or_default(),
    schema: sentinel_schema,
    columns: OF_HIVES,
    ..FLEET
};

const OF_HIVES: &[Column] = &[
    Column {
        name: "DESIRED",
        is_wide: false,
        cell: |record, _| status(record).replicas.to_string(),
    },
    Column {
        name: "CURRENT",
        is_wide: false,
        cell: |record, _| status(record).slots.len().to_string(),
    },
    Column { name: "READY", is_wide: false, cell: |record, _| status(record).ready.to_string() },
    Column {
        name: "UP-TO-DATE",
        is_wide: false,
        cell: |record, _| status(record).updated.to_string(),
    },
    Column { name: "AGENT", is_wide: false, cell: |record, _| agent(record) },
    Column { name: "SELECTOR", is_wide: true, cell: |record, _| text(record, "selector") },
    Column { name: "STATUS", is_wide: false, cell: |record, _| reason(record) },
];

const COLUMNS: &[Column] = &[
    Column { name: "READY", is_wide: false, cell: |record, _| ready(record) },
    Column {
        name: "UP-TO-DATE",
        is_wide: false,
        cell: |record, _| status(record).updated.to_string(),
    },
    Column { name: "AGENT", is_wide: false, cell: |record, _| agent(record) },
    Column {
        name: "REVISION",
        is_wide: true,
        cell: |record, _| status(record).revision.to_string(),
    },
    Column { name: "STATUS", is_wide: false, cell: |record, _| reason(record) },
];

pub const PACK: KindInfo = KindInfo {
    name: "pack",
    plural: "packs",
    aliases: &["replicaset", "replicasets", "rs"],
    check: check_pack,
    terms: |_| Vec::new(),
    due: |_, _| None,
    role: |verb| match verb {
        RecordVerb::Read => Role::Viewer,
        // Reconcilers write them; a person takes one away at most.
        RecordVerb::Put | RecordVerb::Status | RecordVerb::Delete => Role::Admin,
    },
    columns: &[
        Column { name: "FLEET", is_wide: false, cell: |record, _| text(record, "fleet") },
        Column { name: "REVISION", is_wide: false, cell: |record, _| text(record, "revision") },
        Column { name: "AGENT", is_wide: false, cell: |record, _| agent(record) },
    ],
    schema: pack_schema,
    changed_by: None,
};

fn status(record: &Record) -> FleetStatus {
    FleetStatus::read(&record.status)
}

fn terms(record: &Record) -> Terms {
    let _ = record;
    vec![Term::new(OPEN.0, OPEN.1)]
}

fn ready(record: &Record) -> String {
    let status = status(record);
    let wanted = match record.spec.get("scale") {
        Some(_) => u64::from(status.replicas),
        None => record.spec.get("replicas").and_then(Value::as_u64).unwrap_or(1),
    };
    format!("{}/{wanted}", status.ready)
}

fn text(record: &Record, field: &str) -> String {
    match record.spec.get(field) {
        Some(Value::String(text)) => {
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect()
        }
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

fn agent(record: &Record) -> String {
    let template = record.spec.get("template");
    let agent = template.and_then(|template| template.get("agent")).and_then(Value::as_str);
    let agent = agent.unwrap_or(COMMANDS);
    agent.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect()
}

/// The reason of the condition that says most; of one that waits also why.
fn reason(record: &Record) -> String {
    let all = status(record).conditions;
    let of = |kind: &str| all.iter().find(|one| one.kind == kind);
    let waits =
        of("Waiting").filter(|one| one.status == crate::record::condition::ConditionStatus::True);
    match waits {
        Some(one) => {
            let why = one.message.chars().map(|c| if c.is_control() { ' ' } else { c });
            format!("{}: {}", one.reason, why.take(120).collect::<String>())
        }
        None => of("Progressing").map(|one| one.reason.clone()).unwrap_or_default(),
    }
}

fn check_pack(spec: &Value) -> Vec<FieldError> {
    let Some(fields) = spec.as_object() else { return vec![not_a("spec", "a mapping", spec)] };
    let mut wrong = unknown_fields("spec", fields, &["fleet", "revision", "template"]);
    match fields.get("template") {
        Some(template) => {
            wrong.extend(Template::read("spec.template", template).err().unwrap_or_default());
        }
        None => wrong.push(FieldError::new("spec.template", "is required")),
    }
    if fields.get("revision").and_then(Value::as_u64).is_none() {
        wrong.push(FieldError::new("spec.revision", "must be a whole number"));
    }
    wrong
}

fn pack_schema() -> Value {
    json!({
        "description": "One revision of the template of a fleet or lineage, created by it: \
            `overmind rollout history`.",
        "type": "object",
        "required": ["template", "revision"],
        "additionalProperties": false,
        "properties": {
            "fleet": { "type": "string", "description": "The name of the fleet or lineage." },
            "revision": { "type": "integer", "minimum": 1, "description": "From 1." },
            "template": { "type": "object", "description": "The template at this revision." },
        },
    })
}
