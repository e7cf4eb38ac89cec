//! The tool definitions with which a session decides.
//!
//! Decisions depend on them, so they are recorded: once per distinct set under its hash. Every
//! session contains the hash.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::model::ModelTool;
use crate::tool::{EffectClass, ToolSpec};

/// The tools of one agent as its models see them; made once, because schemas are large.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) tools: Arc<Vec<ModelTool>>,
    pub(super) names: Value,
    /// Represents all definitions in a request's hash.
    pub(super) key: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Toolset {
    hash: String,
    tools: Arc<[ToolSpec]>,
    /// The definitions that may change while a session runs: those of a tool source.
    definitions: BTreeMap<String, String>,
}

impl Toolset {
    pub fn new(tools: Arc<[ToolSpec]>) -> Self {
        let text = Self::describe(&tools).to_string();
        let from_sources = tools.iter().filter(|tool| tool.name.contains('.'));
        let definitions = from_sources.map(|tool| (tool.name.clone(), tool.definition())).collect();
        Self { hash: blake3::hash(text.as_bytes()).to_hex()[..32].to_owned(), tools, definitions }
    }

    /// Returns half of a BLAKE3 of all definitions, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub(super) fn definition(&self, name: &str) -> Option<String> {
        self.definitions.get(name).cloned()
    }

    pub fn find(&self, name: &str) -> Option<&ToolSpec> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Returns the tools that a model may call: the allowed ones, and the internal ones.
    pub(super) fn offer(&self, allowed: &[String]) -> Offer {
        let tools = self.allowed(allowed);
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let key = format!("{}:{}", self.hash, names.join(","));
        Offer { names: json!(names), key, tools: Arc::new(tools) }
    }

    fn allowed(&self, allowed: &[String]) -> Vec<ModelTool> {
        self.tools
            .iter()
            .filter(|tool| tool.internal || allowed.contains(&tool.name))
            .map(|tool| ModelTool {
                name: tool.name.clone(),
                description: tool.description.clone(),
                schema: tool.schema.clone(),
            })
            .collect()
    }

    /// Returns the form that is stored under the hash.
    pub fn to_value(&self) -> Value {
        Self::describe(&self.tools)
    }

    fn describe(tools: &[ToolSpec]) -> Value {
        tools
            .iter()
            .map(|tool| {
                json!({
                    "name": tool.name, "description": tool.description, "schema": tool.schema,
                    "class": tool.class, "internal": tool.internal,
                })
            })
            .collect()
    }

    /// Decodes the stored form; `None` if the value has another form.
    pub fn from_value(value: &Value) -> Option<Self> {
        let tools: Option<Vec<ToolSpec>> = value
            .as_array()?
            .iter()
            .map(|tool| {
                Some(ToolSpec {
                    name: tool.get("name")?.as_str()?.to_owned(),
                    description: tool.get("description")?.as_str()?.to_owned(),
                    schema: tool.get("schema")?.clone(),
                    class: serde_json::from_value::<EffectClass>(tool.get("class")?.clone())
                        .ok()?,
                    internal: tool.get("internal")?.as_bool()?,
                })
            })
            .collect();
        Some(Self::new(tools?.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolset_has_the_same_hash_after_a_round_trip() {
        let tool = ToolSpec {
            name: "t".into(),
            description: "d".into(),
            schema: json!({"type": "object", "properties": {"b": {}, "a": {}}}),
            class: EffectClass::Once,
            internal: false,
        };
        let set = Toolset::new(vec![tool].into());
        let back = Toolset::from_value(&set.to_value()).expect("its own form");
        assert_eq!(back, set);
        assert!(Toolset::from_value(&json!([{"name": "x"}])).is_none());
    }
}
