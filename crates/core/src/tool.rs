//! The port to tools: what they are called, what they take, what a call answers.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Fut;
use crate::ids::{AgentId, ColonyId, EffectId, SessionId};
use crate::sandbox::{SandboxLevel, SandboxLimits};

/// What a second run of the same effect would do (architecture §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// Changes nothing: done again after a crash.
    Pure,
    /// Changes the same thing in the same way: done again with the same key.
    Idempotent,
    /// Never done again blindly: after a crash its outcome is unknown until a human, or the
    /// agent's own `on_unknown` setting, decides.
    Once,
}

/// The definition of one tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// For example `run_shell` or `mcp.<server>.<tool>`.
    pub name: String,
    pub description: String,
    /// JSON Schema 2020-12 of the arguments. Properties stand in the order of the messages.
    pub schema: Value,
    pub class: EffectClass,
    /// Always allowed, offered to every model, and not in an agent's allow-list.
    pub internal: bool,
}

impl ToolSpec {
    /// Half of a BLAKE3 of name, description and schema, in hexadecimal: two definitions with
    /// the same one are the same to a model and to the validation of arguments.
    pub fn definition(&self) -> String {
        definition(&self.name, &self.description, &self.schema)
    }
}

/// [`ToolSpec::definition`] of parts. The order of keys in the schema does not count.
pub fn definition(name: &str, description: &str, schema: &Value) -> String {
    let mut hash = blake3::Hasher::new();
    for part in [name, description, &sorted(schema).to_string()] {
        hash.update(&(part.len() as u64).to_be_bytes()).update(part.as_bytes());
    }
    hash.finalize().to_hex()[..32].to_owned()
}

/// The same value with the keys of all objects in alphabetical order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<_> = fields.iter().collect();
            keys.sort_by_key(|(key, _)| *key);
            Value::Object(keys.into_iter().map(|(key, v)| (key.clone(), sorted(v))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// On whose behalf and where a tool runs.
#[derive(Clone, Debug)]
pub struct ToolContext {
    pub colony: ColonyId,
    pub session: SessionId,
    pub agent: AgentId,
    /// The idempotency key of the call.
    pub effect: EffectId,
    /// The agent's allow-list.
    pub allowed: Arc<[String]>,
    /// Root of everything that the session may touch on disk.
    pub workspace: PathBuf,
    pub sandbox: SandboxLevel,
    pub limits: SandboxLimits,
}

/// The gateway's answer to one call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOutcome {
    /// False when the tool is not registered or not in the agent's allow-list. A call with bad
    /// arguments was allowed.
    pub allowed: bool,
    /// `{"ok":true,…}` or `{"ok":false,"error":{"code","message","details"?}}`. A command that
    /// ran and exited non-zero is `{"ok":false,"exit_code":N,…}` without `error`.
    pub result: Value,
}

impl ToolOutcome {
    pub fn ok(&self) -> bool {
        self.result.get("ok").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Builds the failure envelope.
    pub fn failure(code: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            allowed: true,
            result: serde_json::json!({"ok": false, "error": {"code": code, "message": message}}),
        }
    }
}

/// The tool gateway: allow-list, validation, handler, one answer. It never panics and never
/// returns an error of its own; whatever goes wrong is in the envelope.
pub trait Toolbox: Send + Sync + fmt::Debug {
    /// Every registered tool, by name.
    fn specs(&self) -> Arc<[ToolSpec]>;

    /// # Cancel safety
    ///
    /// Dropping the future stops the tool; a command's whole process tree is killed.
    fn call<'a>(
        &'a self,
        context: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
    ) -> Fut<'a, ToolOutcome>;

    /// As [`Toolbox::call`], for a caller that knows with which definition
    /// ([`ToolSpec::definition`]) it decided: if the tool is another one by now, the answer is
    /// [`CHANGED`](crate::tool_source::CHANGED) and nothing is called.
    ///
    /// A toolbox whose tools never change while it lives has nothing to compare.
    fn call_defined<'a>(
        &'a self,
        context: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
        definition: &'a str,
    ) -> Fut<'a, ToolOutcome> {
        let _ = definition;
        self.call(context, name, args)
    }

    /// The session is over: what was kept for it alone can go. Must not block.
    fn session_ended(&self, session: SessionId) {
        let _ = session;
    }
}
