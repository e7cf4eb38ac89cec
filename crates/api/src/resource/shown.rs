//! Shows objects that are stored elsewhere as resources: agents, sessions, secrets, and the parts
//! of the program.

use overmind_core::ids::ColonyId;
use overmind_core::record::KindInfo;
use overmind_core::record::kinds::shown;
use overmind_core::time::Timestamp;
use serde_json::{Map, Value, json};

use super::{OwnerReference, RESOURCE_API_VERSION, Resource, ResourceMeta, kind_title};
use crate::{Agent, Loop, LoopState, MemoryItem, RoomChanges, Run, RunStatus, SecretInfo, Status};

/// Removes the fields `names` from a body, and returns those that are not null, in camelCase.
fn take(body: &mut Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let camel = |name: &str| {
        let mut parts = name.split('_');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |mut all, part| {
            let mut chars = part.chars();
            all.extend(chars.next().map(|c| c.to_ascii_uppercase()));
            all.push_str(chars.as_str());
            all
        })
    };
    let found = names.iter().filter_map(|name| Some((camel(name), body.remove(*name)?)));
    found.filter(|(_, value)| !value.is_null()).collect()
}

fn body(of: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(of) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => Map::new(),
    }
}

impl Resource {
    fn shown(info: &KindInfo, name: &str, uid: String, created: Timestamp) -> Self {
        Self {
            api_version: RESOURCE_API_VERSION.to_owned(),
            kind: kind_title(info.name),
            metadata: ResourceMeta {
                name: name.to_owned(),
                colony: ColonyId::DEFAULT_NAME.to_owned(),
                uid,
                labels: std::collections::BTreeMap::new(),
                annotations: std::collections::BTreeMap::new(),
                generation: 1,
                resource_version: None,
                owner_references: Vec::new(),
                finalizers: Vec::new(),
                creation_timestamp: created,
                deletion_timestamp: None,
            },
            spec: json!({}),
            status: json!({}),
        }
    }

    /// Creates the resource of a part that exists once in the program.
    fn part(info: &KindInfo, name: &str, since: Timestamp, status: Value) -> Self {
        let uid = format!("{}-{name}", info.name);
        Self { status, ..Self::shown(info, name, uid, since) }
    }

    pub fn of_agent(agent: &Agent) -> Self {
        let mut all = body(agent);
        let phase = all.remove("status");
        for name in ["id", "name", "created_at", "updated_at", "version", "colony", "warnings"] {
            all.remove(name);
        }
        let names: Vec<String> = all.keys().cloned().collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let spec = take(&mut all, &names);
        let mut one =
            Self::shown(&shown::AGENT, &agent.name, agent.id.to_string(), agent.created_at);
        one.metadata.generation = u64::from(agent.version);
        Self { spec: Value::Object(spec), status: json!({"phase": phase}), ..one }
    }

    pub fn of_run(run: &Run) -> Self {
        let mut all = body(run);
        let agent = run.agent_name.clone().unwrap_or_else(|| run.agent_id.to_string());
        let mut spec = take(
            &mut all,
            &[
                "agent_version",
                "task",
                "workspace",
                "step_limit",
                "sandbox",
                "parent_id",
                "forked_from",
            ],
        );
        spec.insert("agent".into(), agent.into());
        let mut status = take(
            &mut all,
            &[
                "epoch",
                "started_at",
                "finished_at",
                "prompt",
                "approval_id",
                "final_answer",
                "error",
                "usage",
                "cost_usd",
                "cost_at_most",
                "hive",
                "created_by",
            ],
        );
        status.insert("phase".into(), run.status.as_str().into());
        status.insert("steps".into(), run.step_count.into());
        status.insert("modelCalls".into(), run.model_call_count.into());
        if let Some(branch) = run.room.as_ref().and_then(|room| room.branch.clone()) {
            status.insert("branch".into(), branch.into());
        }
        if let Some(changes) = run.room.as_ref().and_then(|room| room.changes) {
            let RoomChanges { files, added, removed } = changes;
            let changes = json!({"files": files, "added": added, "removed": removed});
            status.insert("changes".into(), changes);
        }
        if let Some(code) = run.process.as_ref().and_then(|process| process.exit_code) {
            status.insert("exitCode".into(), code.into());
        }
        status.insert("conditions".into(), conditions(run));
        let mut one = Self::shown(&shown::SESSION, &run.name, run.id.to_string(), run.created_at);
        one.metadata.labels.clone_from(&run.labels);
        let owner = run.owner.map(|owner| OwnerReference { uid: owner.to_string() });
        one.metadata.owner_references = owner.into_iter().collect();
        Self { spec: Value::Object(spec), status: Value::Object(status), ..one }
    }

    pub fn of_secret(secret: &SecretInfo) -> Self {
        let mut all = body(secret);
        let status = take(
            &mut all,
            &["versions", "created_by", "uses", "last_used_at", "problem", "shadows_environment"],
        );
        let uid = format!("secret-{}", secret.name);
        let mut one = Self::shown(&shown::SECRET, &secret.name, uid, secret.created_at);
        one.metadata.generation = u64::from(secret.version);
        Self { status: Value::Object(status), ..one }
    }

    pub fn of_memory(item: &MemoryItem) -> Self {
        let mut all = body(item);
        let mut spec = take(&mut all, &["collection", "text"]);
        spec.insert("metadata".into(), item.metadata_json.clone());
        let status = take(
            &mut all,
            &[
                "author",
                "trust",
                "source_run_id",
                "source_event",
                "expires_at",
                "supersedes",
                "superseded_by",
                "embedding_model",
                "dims",
            ],
        );
        let id = item.id.to_string();
        let one = Self::shown(&shown::MEMORY, &id, id.clone(), item.created_at);
        Self { spec: Value::Object(spec), status: Value::Object(status), ..one }
    }

    /// Returns the resource of a part that exists once: hive, swarm, cortex, oracle,
    /// akasha.
    pub fn of_status(info: &KindInfo, status: &Status) -> Option<Self> {
        let (since, phase) = (status.started_at, &status.ready.state);
        let (running, queued, capacity) = (status.running, status.queued, status.capacity);
        let version = &status.version;
        let (name, shown) = match info.name {
            "hive" => {
                let of = json!({"phase": phase, "running": running, "capacity": capacity,
                    "version": version});
                ("local", of)
            }
            "swarm" => ("local", json!({"phase": phase, "hives": 1, "running": running})),
            "cortex" => ("local", json!({"phase": phase, "version": version})),
            "oracle" => {
                ("local", json!({"queued": queued, "running": running, "capacity": capacity}))
            }
            "akasha" => {
                let store = &status.store;
                let of = json!({"events": store.events, "streams": store.streams,
                    "memoryItems": store.memory_items, "bytes": store.bytes,
                    "schema": store.schema});
                ("local", of)
            }
            _ => return None,
        };
        Some(Self::part(info, name, since, shown))
    }

    /// Returns the resource of a loop. Its creation time is `since`, when the server started.
    pub fn of_loop(one: &Loop, since: Timestamp) -> Self {
        let mut status = json!({"phase": one.state.as_str(), "passes": one.passes,
            "errors": one.errors});
        if let (Some(fields), Some(last)) = (status.as_object_mut(), &one.last) {
            fields.insert("lastPass".into(), json!(last.began_at));
            fields.insert("result".into(), json!(last.said));
        }
        let paused = json!({"paused": one.state == LoopState::Paused, "everyMs": one.every_ms});
        Self { spec: paused, ..Self::part(&shown::WEAVER, &one.name, since, status) }
    }
}

/// Returns the conditions of a run, in the form of Kubernetes.
fn conditions(run: &Run) -> Value {
    let over = matches!(run.status, RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled);
    let asks = matches!(run.status, RunStatus::AwaitingInput | RunStatus::AwaitingApproval);
    let rests = run.status == RunStatus::Idle;
    let word = |yes: bool| if yes { "True" } else { "False" };
    let reason: String = kind_title(&run.status.as_str().replace('_', "-"));
    let since = run.finished_at.or(run.started_at).unwrap_or(run.created_at);
    let one = |kind: &str, yes: bool| json!({"type": kind, "status": word(yes), "reason": reason, "lastTransition": since});
    json!([
        one("Finished", over),
        one("Succeeded", run.status == RunStatus::Succeeded),
        one("NeedsYou", asks || rests),
    ])
}
