//! Read-only kinds: their objects are stored elsewhere and have commands of their own, and can be
//! read here like every other resource.

use serde_json::{Value, json};

use crate::record::kind::{Column, KindInfo};
use crate::record::{FieldError, Record};
use crate::row::Role;
use crate::time::Timestamp;

const fn shown(
    name: &'static str,
    plural: &'static str,
    aliases: &'static [&'static str],
    changed_by: &'static str,
    columns: &'static [Column],
    schema: fn() -> Value,
) -> KindInfo {
    KindInfo {
        name,
        plural,
        aliases,
        check,
        terms: |_| Vec::new(),
        due: |_, _| None,
        role: |_| Role::Viewer,
        columns,
        schema,
        changed_by: Some(changed_by),
    }
}

const fn column(name: &'static str, cell: fn(&Record, Timestamp) -> String) -> Column {
    Column { name, is_wide: false, cell }
}

const fn wide(name: &'static str, cell: fn(&Record, Timestamp) -> String) -> Column {
    Column { name, is_wide: true, cell }
}

fn check(_: &Value) -> Vec<FieldError> {
    vec![FieldError::new("kind", "is only shown: it is not applied")]
}

pub const AGENT: KindInfo = shown(
    "agent",
    "agents",
    &["ag"],
    "overmind agent create|edit|rm",
    &[
        column("MODEL", |record, _| text(record, "/spec/model")),
        column("SANDBOX", |record, _| text(record, "/spec/sandbox")),
        column("STATUS", |record, _| text(record, "/status/phase")),
        column("VERSION", |record, _| text(record, "/metadata/generation")),
        wide("ROLE", |record, _| text(record, "/spec/role")),
    ],
    || schema("A definition: a model with its role, or a program. A version never changes."),
);

pub const SESSION: KindInfo = shown(
    "session",
    "sessions",
    &["run", "runs", "pod", "pods", "po"],
    "overmind run|stop|kill|done",
    &[
        column("AGENT", |record, _| text(record, "/spec/agent")),
        column("STATUS", |record, _| text(record, "/status/phase")),
        column("STEPS", |record, _| text(record, "/status/steps")),
        column("COST", |record, _| dollars(record)),
        column("BRANCH", |record, _| text(record, "/status/branch")),
        wide("SANDBOX", |record, _| text(record, "/spec/sandbox")),
        wide("TASK", |record, _| text(record, "/spec/task")),
    ],
    || {
        schema(
            "A run: one piece of work of an agent, from the queue to its end. `overmind ps` lists them.",
        )
    },
);

pub const HIVE: KindInfo = shown(
    "hive",
    "hives",
    &["node", "nodes", "no"],
    "overmind up|down",
    &[
        column("STATUS", |record, _| text(record, "/status/phase")),
        column("RUNNING", |record, _| text(record, "/status/running")),
        column("CAPACITY", |record, _| text(record, "/status/capacity")),
        column("VERSION", |record, _| text(record, "/status/version")),
    ],
    || schema("A machine that runs sessions."),
);

pub const SECRET: KindInfo = shown(
    "secret",
    "secrets",
    &["vault"],
    "overmind vault set|rotate|rm",
    &[
        column("VERSION", |record, _| text(record, "/metadata/generation")),
        column("USES", |record, _| text(record, "/status/uses")),
        column("LAST USED", |record, now| ago(record, "/status/lastUsedAt", now)),
        wide("PROBLEM", |record, _| text(record, "/status/problem")),
    ],
    || schema("A secret of the vault, without its value."),
);

pub const MEMORY: KindInfo = shown(
    "memory",
    "memories",
    &["mem"],
    "overmind memory add|rm",
    &[
        column("COLLECTION", |record, _| text(record, "/spec/collection")),
        column("TRUST", |record, _| text(record, "/status/trust")),
        column("TEXT", |record, _| text(record, "/spec/text")),
    ],
    || schema("A text that agents remember."),
);

pub const SWARM: KindInfo = shown(
    "swarm",
    "swarms",
    &["cluster"],
    "overmind up",
    &[
        column("STATUS", |record, _| text(record, "/status/phase")),
        column("HIVES", |record, _| text(record, "/status/hives")),
        column("RUNNING", |record, _| text(record, "/status/running")),
    ],
    || schema("All machines together."),
);

pub const CORTEX: KindInfo = shown(
    "cortex",
    "cortexes",
    &["apiserver"],
    "overmind up|down",
    &[
        column("STATUS", |record, _| text(record, "/status/phase")),
        column("VERSION", |record, _| text(record, "/status/version")),
    ],
    || schema("The part of the server that serves the API and makes decisions."),
);

pub const WEAVER: KindInfo = shown(
    "weaver",
    "weavers",
    &["controller", "controllers"],
    "overmind loop pause|resume|run",
    &[
        column("STATUS", |record, _| text(record, "/status/phase")),
        column("LAST", |record, now| ago(record, "/status/lastPass", now)),
        column("RESULT", |record, _| text(record, "/status/result")),
    ],
    || {
        schema(
            "A control loop that brings the observed state to the declared state: `overmind \
        loop list`.",
        )
    },
);

pub const ORACLE: KindInfo = shown(
    "oracle",
    "oracles",
    &["scheduler"],
    "the settings `engine.*`",
    &[
        column("QUEUED", |record, _| text(record, "/status/queued")),
        column("RUNNING", |record, _| text(record, "/status/running")),
        column("CAPACITY", |record, _| text(record, "/status/capacity")),
    ],
    || schema("The scheduler of sessions."),
);

pub const AKASHA: KindInfo = shown(
    "akasha",
    "akashas",
    &["store", "etcd"],
    "overmind backup|restore",
    &[
        column("EVENTS", |record, _| text(record, "/status/events")),
        column("MEMORIES", |record, _| text(record, "/status/memoryItems")),
        column("BYTES", |record, _| text(record, "/status/bytes")),
    ],
    || schema("The store of state, log and memory."),
);

fn schema(description: &str) -> Value {
    json!({"description": description, "type": "object", "readOnly": true})
}

/// Returns the value at a path of the resource, as one line.
fn text(record: &Record, at: &str) -> String {
    if at == "/metadata/generation" {
        return record.generation.to_string();
    }
    let of = |body: &Value, rest: &str| match body.pointer(rest) {
        Some(Value::String(text)) => {
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect()
        }
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    match (at.strip_prefix("/spec"), at.strip_prefix("/status")) {
        (Some(rest), _) => of(&record.spec, rest),
        (None, Some(rest)) => of(&record.status, rest),
        (None, None) => String::new(),
    }
}

fn dollars(record: &Record) -> String {
    let cost = record.status.get("costUsd").and_then(Value::as_f64).filter(|cost| *cost > 0.0);
    cost.map(|cost| format!("${cost:.2}")).unwrap_or_default()
}

fn ago(record: &Record, at: &str, now: Timestamp) -> String {
    let Ok(then) = text(record, at).parse::<Timestamp>() else { return String::new() };
    let seconds = now.since(then).as_secs();
    match seconds {
        0..60 => format!("{seconds}s ago"),
        60..3_600 => format!("{}m ago", seconds / 60),
        3_600..86_400 => format!("{}h ago", seconds / 3_600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}
