//! The tools of the mesh: shared state, messages, events, other agents.
//!
//! The mesh's permission matrix decides who may do what, by the session's own identity: no argument
//! names the caller. Text of other agents is labelled as untrusted, because they may have read
//! untrusted text.

use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::mesh::{Mesh, MeshAct, MeshError, MeshSpawn};
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::artifacts::artifact_tools;
use crate::answer::{Answer, Failure, fields, untrusted};
use crate::gateway::Tool;
use crate::schema::{integer, parse};

/// Every tool of the mesh. Pass them to [`crate::Gateway::with_options`].
pub fn mesh_tools(mesh: &Arc<dyn Mesh>) -> Vec<Arc<dyn Tool>> {
    let all = Which::ALL.into_iter();
    let tool = |which| Arc::new(MeshTool { which, mesh: Arc::clone(mesh) }) as Arc<dyn Tool>;
    all.map(tool).chain(artifact_tools(mesh)).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Ask,
    CostLeft,
    ListAgents,
    ListState,
    Publish,
    History,
    ReadAnswer,
    ReadMessages,
    ReadState,
    Send,
    Spawn,
    Subscribe,
    WriteState,
}

impl Which {
    const ALL: [Self; 13] = [
        Self::Ask,
        Self::CostLeft,
        Self::ReadAnswer,
        Self::ListAgents,
        Self::ListState,
        Self::Publish,
        Self::History,
        Self::ReadMessages,
        Self::ReadState,
        Self::Send,
        Self::Spawn,
        Self::Subscribe,
        Self::WriteState,
    ];
}

#[derive(Debug)]
struct MeshTool {
    which: Which,
    mesh: Arc<dyn Mesh>,
}

pub(super) fn object(properties: &Value, required: &[&str]) -> Value {
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    })
}

pub(super) fn text(most: u32, description: &str) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": most, "description": description})
}

fn waiting() -> Value {
    json!({
        "type": "integer", "minimum": 0, "maximum": 30, "default": 0,
        "description": "How long to wait for an answer.",
    })
}

fn agent() -> Value {
    text(200, "The agent's name, as list_agents shows it.")
}

impl Tool for MeshTool {
    fn spec(&self) -> ToolSpec {
        use EffectClass::{Idempotent, Pure};
        let (name, class, description, schema) = match self.which {
            Which::Ask => (
                "ask_people",
                Idempotent,
                "Ask the people you work for a question. It waits in their inbox; this goes on with \
                 a question_id, and read_answer looks for the answer.",
                object(
                    &json!({
                        "question": text(10_000, "The question, with what they must know for it."),
                        "wait_seconds": waiting(),
                    }),
                    &["question"],
                ),
            ),
            Which::CostLeft => (
                "cost_left",
                Pure,
                "See what you may still spend on models: each limit that applies to you, what of it \
                 is used, and the least that is left.",
                object(&json!({}), &[]),
            ),
            Which::ReadAnswer => (
                "read_answer",
                Pure,
                "Look whether a question of ask_people was answered.",
                object(
                    &json!({
                        "question_id": text(64, "As ask_people gave it."),
                        "wait_seconds": waiting(),
                    }),
                    &["question_id"],
                ),
            ),
            Which::ListAgents => (
                "list_agents",
                Pure,
                "List the other agents by name, with what they can do.",
                object(&json!({}), &[]),
            ),
            Which::ListState => (
                "list_shared_state",
                Pure,
                "List keys of the state that all agents share, with the beginning of each value. \
                 Use read_shared_state for a whole value.",
                object(
                    &json!({
                        "prefix": {
                            "type": "string", "maxLength": 512, "default": "",
                            "description": "What the keys begin with, exactly; for example `tasks/`.",
                        },
                        "limit": {
                            "type": "integer", "minimum": 1, "maximum": 100, "default": 50,
                            "description": "How many at most.",
                        },
                        "after": text(512, "The `next` of an earlier answer, to go on behind it."),
                    }),
                    &[],
                ),
            ),
            Which::Publish => (
                "publish_event",
                Idempotent,
                "Tell all agents that have subscribed to a topic that something happened. To reach \
                 one agent, use send_message.",
                object(
                    &json!({
                        "topic": text(256, "Words separated by dots or slashes: `build.done`."),
                        "data": {"description": "What to tell; any JSON value.", "default": {}},
                    }),
                    &["topic"],
                ),
            ),
            Which::History => (
                "read_agent_history",
                Pure,
                "Read what another agent was last asked and what it answered.",
                object(&json!({"agent_id": agent()}), &["agent_id"]),
            ),
            Which::ReadMessages => (
                "read_messages",
                Idempotent,
                "Read messages and events that wait for you, oldest first. A later call \
                 acknowledges those of this one. An id seen before is a repetition.",
                object(
                    &json!({
                        "limit": {
                            "type": "integer", "minimum": 1, "maximum": 100, "default": 10,
                            "description": "How many at most.",
                        },
                        "wait_seconds": {
                            "type": "integer", "minimum": 0, "maximum": 30, "default": 0,
                            "description": "How long to wait for the first one.",
                        },
                    }),
                    &[],
                ),
            ),
            Which::ReadState => (
                "read_shared_state",
                Pure,
                "Read a value of the state that all agents share.",
                object(&json!({"key": text(512, "For example `tasks/42`.")}), &["key"]),
            ),
            Which::Send => (
                "send_message",
                Idempotent,
                "Send a message to one agent. It is delivered even when the agent is not at work \
                 now; this does not wait for an answer. Read answers with read_messages.",
                object(
                    &json!({
                        "to": text(200, "The agent's name, or `capability:` and what it can do."),
                        "message": {"description": "The message: a text, or any JSON value."},
                        "type": {
                            "type": "string", "minLength": 1, "maxLength": 64, "default": "query",
                            "description": "task_request, task_result, query, cancel, or another word.",
                        },
                        "reply_to": text(100, "The id of the message that this one answers."),
                    }),
                    &["to", "message"],
                ),
            ),
            Which::Spawn => (
                "spawn_agent",
                Idempotent,
                "Start a child at work on a task, beneath your own permissions: an agent that is \
                 there, or a new one with a role of your choice. This does not wait for its end.",
                object(
                    &json!({
                        "task": text(100_000, "What the child shall do."),
                        "agent": text(200, "The name of an agent that is there."),
                        "role": text(200, "Of a new agent: what it is, in a word or two."),
                        "system_prompt": text(100_000, "Of a new agent: how it shall work."),
                        "model": text(200, "Of a new agent; your own without it."),
                        "ttl": {
                            "type": "integer", "minimum": 1, "default": 3600,
                            "description": "Of a new agent: the most seconds that it may take.",
                        },
                    }),
                    &["task"],
                ),
            ),
            Which::Subscribe => (
                "subscribe_event",
                Idempotent,
                "Get events of a topic from now on, as messages for read_messages.",
                object(
                    &json!({"topic": text(
                        256,
                        "A topic; `*` stands for one word of it, `**` at its end for all that follow.",
                    )}),
                    &["topic"],
                ),
            ),
            Which::WriteState => (
                "write_shared_state",
                Idempotent,
                "Write a value of the state that all agents share. Keys below `history/` are \
                 written once and stay.",
                object(
                    &json!({
                        "key": text(512, "For example `tasks/42`."),
                        "value": {"description": "Any JSON value of at most 256 KiB."},
                        "ttl": {
                            "type": "integer", "minimum": 1,
                            "description": "Seconds after which it is gone.",
                        },
                        "version": {
                            "type": "integer", "minimum": 0,
                            "description": "Write only if the key stands at this version; 0: only if it is not there.",
                        },
                    }),
                    &["key", "value"],
                ),
            ),
        };
        let (name, description) = (name.to_owned(), description.to_owned());
        ToolSpec { name, description, schema, class, internal: false }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let mut act = self.act(args)?;
            if let MeshAct::Spawn(wish) = &mut act {
                wish.trace = context.traceparent;
            }
            let done = self.mesh.act(context.session, context.effect, act).await;
            let all = fields(done.map_err(failure)?);
            Ok(match self.which {
                Which::ReadState if all.get("exists") == Some(&Value::Bool(true)) => {
                    let by = all.get("written_by").and_then(Value::as_str).unwrap_or_default();
                    let source = format!("shared state, written by {by}");
                    untrusted(all, &source)
                }
                Which::ReadMessages if has(&all, "messages") => {
                    untrusted(all, "messages of agents")
                }
                Which::ListState if has(&all, "entries") => untrusted(all, "shared state"),
                Which::History => untrusted(all, "another agent's runs"),
                _ => all,
            })
        })
    }
}

pub(super) fn has(all: &Map<String, Value>, list: &str) -> bool {
    all.get(list).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
}

#[derive(Debug, Deserialize)]
struct KeyArgs {
    key: String,
}

#[derive(Debug, Deserialize)]
struct WriteArgs {
    key: String,
    value: Value,
    #[serde(default, deserialize_with = "maybe")]
    ttl: Option<u64>,
    #[serde(default, deserialize_with = "maybe")]
    version: Option<u64>,
}

fn maybe<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    integer(from).map(Some)
}

#[derive(Debug, Deserialize)]
struct ListArgs {
    #[serde(default)]
    prefix: String,
    #[serde(default = "fifty", deserialize_with = "integer")]
    limit: u64,
    #[serde(default)]
    after: Option<String>,
}

fn fifty() -> u64 {
    50
}

#[derive(Debug, Deserialize)]
struct PublishArgs {
    topic: String,
    #[serde(default = "nothing")]
    data: Value,
}

fn nothing() -> Value {
    json!({})
}

#[derive(Debug, Deserialize)]
struct TopicArgs {
    topic: String,
}

#[derive(Debug, Deserialize)]
struct SendArgs {
    to: String,
    message: Value,
    #[serde(rename = "type", default = "query")]
    kind: String,
    #[serde(default)]
    reply_to: Option<String>,
}

fn query() -> String {
    "query".into()
}

#[derive(Debug, Deserialize)]
struct ReceiveArgs {
    #[serde(default = "ten", deserialize_with = "integer")]
    limit: u64,
    #[serde(default, deserialize_with = "integer")]
    wait_seconds: u64,
}

fn ten() -> u64 {
    10
}

#[derive(Debug, Deserialize)]
struct SpawnArgs {
    task: String,
    #[serde(default)]
    agent: Option<String>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    system_prompt: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default, deserialize_with = "maybe")]
    ttl: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct AskArgs {
    question: String,
    #[serde(default, deserialize_with = "integer")]
    wait_seconds: u64,
}

#[derive(Debug, Deserialize)]
struct AnswerArgs {
    question_id: String,
    #[serde(default, deserialize_with = "integer")]
    wait_seconds: u64,
}

#[derive(Debug, Deserialize)]
struct HistoryArgs {
    agent_id: String,
}

impl MeshTool {
    fn act(&self, args: &Value) -> Result<MeshAct, Failure> {
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(match self.which {
            Which::Ask => {
                let AskArgs { question, wait_seconds } = parse(args)?;
                MeshAct::Ask { question, wait_seconds }
            }
            Which::CostLeft => MeshAct::CostLeft,
            Which::ReadAnswer => {
                let AnswerArgs { question_id, wait_seconds } = parse(args)?;
                let question = question_id
                    .parse()
                    .map_err(|_| Failure::bad_args("question_id is none that ask_people gave"))?;
                MeshAct::Answer { question, wait_seconds }
            }
            Which::ListAgents => MeshAct::Agents,
            Which::ListState => {
                let ListArgs { prefix, limit, after } = parse(args)?;
                MeshAct::List { prefix, limit: small(limit), after }
            }
            Which::Publish => {
                let PublishArgs { topic, data } = parse(args)?;
                MeshAct::Publish { topic, payload: data }
            }
            Which::History => {
                let HistoryArgs { agent_id } = parse(args)?;
                MeshAct::History { agent: agent_id }
            }
            Which::ReadMessages => {
                let ReceiveArgs { limit, wait_seconds } = parse(args)?;
                MeshAct::Receive { limit: small(limit), wait_seconds }
            }
            Which::ReadState => {
                let KeyArgs { key } = parse(args)?;
                MeshAct::Read { key }
            }
            Which::Send => {
                let SendArgs { to, message, kind, reply_to } = parse(args)?;
                MeshAct::Send { to, kind, payload: message, reply_to }
            }
            Which::Spawn => {
                let SpawnArgs { task, agent, role, system_prompt, model, ttl } = parse(args)?;
                MeshAct::Spawn(MeshSpawn {
                    agent,
                    role: role.unwrap_or_default(),
                    system_prompt: system_prompt.unwrap_or_default(),
                    model,
                    task,
                    ttl,
                    trace: None,
                })
            }
            Which::Subscribe => {
                let TopicArgs { topic } = parse(args)?;
                MeshAct::Subscribe { pattern: topic }
            }
            Which::WriteState => {
                let WriteArgs { key, value, ttl, version } = parse(args)?;
                MeshAct::Write { key, value, ttl, version }
            }
        })
    }
}

pub(super) fn failure(err: MeshError) -> Failure {
    let code = match &err {
        MeshError::Invalid(_) => "bad_args",
        MeshError::Denied(_) => "denied",
        MeshError::NotFound(_) => "not_found",
        MeshError::Conflict(_) => "conflict",
        // The engine repeats such calls.
        MeshError::Unavailable(_) => "temporarily_unavailable",
        MeshError::Failed(_) => "tool_error",
    };
    Failure::new(code, err.to_string())
}
