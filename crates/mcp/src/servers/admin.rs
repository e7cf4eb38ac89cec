//! The servers as JSON, for the API and the command line.
//!
//! Input is a [`ServerConfig`], or for a program the short form `{"id", "command", "args"?, "env"?,
//! "enabled"?}` with defaults for the rest. Output contains both: the short form's fields beside
//! `config`.

use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::tool_source::{Keeper, ToolServerError, ToolServers};
use serde_json::{Map, Value, json};

use super::{McpError, McpServers, ServerState, ServerView, ToolState, ToolView};
use crate::config::{ServerConfig, Transport};

impl ToolServers for McpServers {
    fn begin(&self, saved: Option<Value>, keeper: Arc<dyn Keeper>) -> Result<(), ToolServerError> {
        McpServers::begin(self, saved, keeper).map_err(told)
    }

    fn list(&self) -> Vec<Value> {
        McpServers::list(self).iter().map(shown).collect()
    }

    fn put(&self, config: Value) -> Fut<'_, Result<Value, ToolServerError>> {
        Box::pin(async move {
            let config = taken(config)
                .map_err(|message| ToolServerError::Bad { field: String::new(), message })?;
            McpServers::put(self, config).await.map(|view| shown(&view)).map_err(told)
        })
    }

    fn remove<'a>(&'a self, id: &'a str) -> Fut<'a, Result<(), ToolServerError>> {
        Box::pin(async move { McpServers::remove(self, id).await.map_err(told) })
    }

    fn pin<'a>(
        &'a self,
        id: &'a str,
        tool: Option<&'a str>,
        hash: Option<&'a str>,
    ) -> Fut<'a, Result<Value, ToolServerError>> {
        Box::pin(async move {
            let pinned = McpServers::pin(self, id, tool, hash).await;
            pinned.map(|view| shown(&view)).map_err(told)
        })
    }

    fn unpin<'a>(&'a self, id: &'a str, tool: &'a str) -> Fut<'a, Result<Value, ToolServerError>> {
        Box::pin(async move {
            McpServers::unpin(self, id, tool).await.map(|view| shown(&view)).map_err(told)
        })
    }
}

fn told(err: McpError) -> ToolServerError {
    let message = err.to_string();
    match err {
        McpError::NotFound => ToolServerError::NotFound { what: "MCP server".to_owned() },
        McpError::Config(config) => ToolServerError::Bad { field: config.field, message },
        McpError::Refused(_) => ToolServerError::Refused { message },
        McpError::Settings(_) | McpError::Damaged(_) | McpError::ShuttingDown => {
            ToolServerError::Unavailable { message }
        }
    }
}

/// Parses either form. In the short form, items and texts are trimmed and blank ones dropped.
fn taken(config: Value) -> Result<ServerConfig, String> {
    let Value::Object(mut fields) = config else {
        return Err("an MCP server is a JSON object".to_owned());
    };
    if let Some(command) = fields.remove("command") {
        if fields.contains_key("transport") {
            return Err("give `command` or `transport`, not both".to_owned());
        }
        let mut transport = Map::new();
        transport.insert("kind".into(), "stdio".into());
        let trimmed = command.as_str().map(|text| json!(text.trim()));
        transport.insert("command".into(), trimmed.unwrap_or(command));
        if let Some(mut args) = fields.remove("args") {
            if let Some(items) = args.as_array_mut() {
                for item in items.iter_mut() {
                    if let Some(text) = item.as_str() {
                        *item = json!(text.trim());
                    }
                }
                items.retain(|item| item != "");
            }
            transport.insert("args".into(), args);
        }
        if let Some(env) = fields.remove("env") {
            transport.insert("env".into(), env);
        }
        fields.insert("transport".into(), Value::Object(transport));
    }
    // serde accepts a list for a struct, by position.
    for field in ["transport", "limits"] {
        if fields.get(field).is_some_and(|value| !value.is_object()) {
            return Err(format!("`{field}` must be an object"));
        }
    }
    serde_json::from_value(Value::Object(fields)).map_err(|err| err.to_string())
}

fn shown(view: &ServerView) -> Value {
    let mut all = json!({
        "id": view.config.id,
        "enabled": view.config.enabled,
        "config": view.config,
        "state": view.state.as_str(),
        "protocol": view.protocol,
        "server_info": view.server_info,
        "attestation": view.attested,
        "sessions": view.sessions,
        "needs_approval": view.needs_approval(),
        "tools": view.tools.iter().map(tool).collect::<Vec<_>>(),
    });
    if let Transport::Stdio { command, args, env, .. } = &view.config.transport {
        all["command"] = json!(command);
        all["args"] = json!(args);
        all["env"] = json!(env);
    }
    if let ServerState::Failed { reason, next_try } = &view.state {
        all["reason"] = json!(reason);
        all["next_try"] = json!(next_try);
    }
    all
}

fn tool(tool: &ToolView) -> Value {
    let mut all = json!({
        "name": tool.name, "full_name": tool.full_name, "state": tool.state.as_str(),
        "description": tool.description, "schema": tool.schema, "class": tool.class,
        "hash": tool.hash, "pinned_at": tool.pinned_at,
    });
    match &tool.state {
        ToolState::Changed(difference) => {
            all["pinned_hash"] = json!(difference.pinned);
            all["diff"] = json!(difference.diff);
        }
        ToolState::Refused(why) => all["reason"] = json!(why),
        ToolState::Ready | ToolState::New | ToolState::Denied | ToolState::Gone => {}
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_names_a_program_and_uses_defaults() {
        let short = json!({"id": "a", "command": " node ", "args": [" x.js", "  "], "env": {"A": "1"}, "enabled": false});
        let config = taken(short).unwrap();
        assert_eq!(config.check(), Ok(()));
        let Transport::Stdio { command, args, env, .. } = &config.transport else { panic!() };
        assert_eq!((command.as_str(), args.as_slice()), ("node", ["x.js".to_owned()].as_slice()));
        assert!(!config.enabled && env.contains_key("A"));
        assert_eq!(taken(serde_json::to_value(&config).unwrap()).unwrap(), config);
        assert!(taken(json!({"id": "a", "command": "x", "transport": {}})).is_err());
        assert!(taken(json!({"id": "a", "command": "x", "colour": 1})).is_err());
        assert!(taken(json!([])).is_err());
        let listed = json!({"id": "a", "transport": ["stdio", {"command": "x"}]});
        assert_eq!(taken(listed), Err("`transport` must be an object".to_owned()));
        let listed = json!({"id": "a", "command": "x", "limits": [1, 1, 1, 1, 1, 1, 1]});
        assert_eq!(taken(listed), Err("`limits` must be an object".to_owned()));
    }
}
