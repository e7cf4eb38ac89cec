//! The tool definitions that a session decides with.
//!
//! They are part of what decisions rest on, so they are recorded: once per distinct set, under
//! its hash, and every session names the hash.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::model::ModelTool;
use crate::tool::{EffectClass, ToolSpec};

/// The tools of one agent as its models see them; made once, for schemas are large.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) tools: Arc<Vec<ModelTool>>,
    pub(super) names: Value,
    /// Stands for all definitions in a request's hash.
    pub(super) key: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Toolset {
    hash: String,
    tools: Arc<[ToolSpec]>,
    /// Of the tools that may change while a session lives: those of a source.
    definitions: BTreeMap<String, String>,
}

impl Toolset {
    pub fn new(tools: Arc<[ToolSpec]>) -> Self {
        let text = Self::describe(&tools).to_string();
        let from_sources = tools.iter().filter(|tool| tool.name.contains('.'));
        let definitions = from_sources.map(|tool| (tool.name.clone(), tool.definition())).collect();
        Self { hash: blake3::hash(text.as_bytes()).to_hex()[..32].to_owned(), tools, definitions }
    }

    /// Half of a BLAKE3 of all definitions, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub(super) fn definition(&self, name: &str) -> Option<String> {
        self.definitions.get(name).cloned()
    }

    pub fn find(&self, name: &str) -> Option<&ToolSpec> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// What a model may call: the tools allowed, and the internal ones.
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

    /// The form that is stored under the hash.
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

    /// Reads the stored form back; `None` when it is not one.
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
    fn a_toolset_read_back_has_the_same_hash() {
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
