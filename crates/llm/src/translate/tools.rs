//! Translates tools of Responses to chat tools. A tool of a namespace and a tool that takes free
//! text become functions; calls in the answer get the original form again. Tools that the provider
//! runs itself (search, containers) are left out, because nobody else can run them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Done, Untranslatable, list, object};

/// Longest function name that all providers accept.
const MAX_NAME: usize = 64;
/// Tools that OpenAI runs on its own machines, or whose data only OpenAI can search.
const HOSTED: [&str; 8] = [
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "tool_search",
];

/// Whether the provider itself runs tools of this type.
fn is_hosted(kind: &str) -> bool {
    HOSTED.contains(&kind) || kind.starts_with("web_search_preview_")
}

/// Whether an item was left in a conversation by such a tool; only its own provider can use it.
pub(super) fn is_trace_of_hosted(kind: &str) -> bool {
    matches!(
        kind,
        "web_search_call"
            | "file_search_call"
            | "code_interpreter_call"
            | "image_generation_call"
            | "mcp_list_tools"
            | "mcp_call"
            | "mcp_approval_request"
            | "mcp_approval_response"
            | "tool_search_call"
            | "tool_search_output"
    )
}

/// A tool as its caller knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tool {
    namespace: Option<String>,
    name: String,
    /// Whether it takes a text instead of an object.
    is_custom: bool,
}

/// The tools of one request that have another name in chat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The tools by their names in chat.
    there: BTreeMap<String, Tool>,
    /// The types of the tools that were left out.
    left_out: Vec<String>,
}

impl Names {
    /// The types of the tools that were left out, each once.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Translates the list of tools to chat tools.
    pub(super) fn read(at: &str, tools: &Value) -> Done<(Vec<Value>, Self)> {
        let mut names = Self::default();
        let tools = list(at, tools)?;
        let plain: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        let mut out = Vec::with_capacity(tools.len());
        for (n, tool) in tools.iter().enumerate() {
            let at = format!("{at}[{n}]");
            if tool["type"] != "namespace" {
                out.extend(names.tool(&at, None, tool, &plain)?);
                continue;
            }
            let namespace = super::text(&format!("{at}.name"), &tool["name"])?;
            let within = format!("{at}.tools");
            for (n, tool) in list(&within, &tool["tools"])?.iter().enumerate() {
                out.extend(names.tool(&format!("{within}[{n}]"), Some(namespace), tool, &plain)?);
            }
        }
        Ok((out, names))
    }

    /// Translates one tool. `plain` holds the names that are already taken.
    fn tool(
        &mut self,
        at: &str,
        namespace: Option<&str>,
        tool: &Value,
        plain: &[&str],
    ) -> Done<Option<Value>> {
        let kind = tool["type"].as_str().unwrap_or("nothing");
        if is_hosted(kind) {
            if !self.left_out.iter().any(|left| left == kind) {
                self.left_out.push(kind.to_owned());
            }
            return Ok(None);
        }
        let is_custom = match kind {
            "function" => false,
            "custom" => true,
            _ => {
                let why = format!("it is {kind}, and only functions are supported there");
                return Err(Untranslatable::new(format!("{at}.type"), why));
            }
        };
        let fields = object(at, tool)?;
        let mut function = json!({});
        for field in ["name", "description", "parameters", "strict"] {
            if let Some(value) = fields.get(field).filter(|value| !value.is_null()) {
                function[field] = value.clone();
            }
        }
        if is_custom {
            function["description"] = described(tool).into();
            function["parameters"] = json!({
                "type": "object", "properties": {"input": {"type": "string"}},
                "required": ["input"], "additionalProperties": false,
            });
        }
        if is_custom || namespace.is_some() {
            let name = super::text(&format!("{at}.name"), &tool["name"])?;
            let mut there = there(namespace, name);
            if namespace.is_some() && (plain.contains(&&*there) || self.there.contains_key(&there))
            {
                there = told_apart(&there, namespace, name);
            }
            function["name"] = there.as_str().into();
            let namespace = namespace.map(str::to_owned);
            self.there.insert(there, Tool { namespace, name: name.to_owned(), is_custom });
        }
        Ok(Some(json!({"type": "function", "function": function})))
    }

    /// The chat name of a tool of the caller, which may come from an earlier request.
    pub(super) fn there(&self, namespace: Option<&str>, name: &str) -> String {
        let mut known = self.there.iter();
        let known =
            known.find(|(_, tool)| tool.namespace.as_deref() == namespace && tool.name == name);
        known.map_or_else(|| there(namespace, name), |(there, _)| there.clone())
    }

    /// Whether the tool with this chat name takes a text.
    pub(super) fn is_custom(&self, there: &str) -> bool {
        self.there.get(there).is_some_and(|tool| tool.is_custom)
    }

    /// Translates a call of chat to an item for the caller.
    pub(super) fn item(
        &self,
        n: usize,
        call: &str,
        there: &str,
        args: &str,
        status: &str,
    ) -> Value {
        let Some(tool) = self.there.get(there) else {
            return json!({
                "type": "function_call", "id": format!("fc_{n}"), "call_id": call, "name": there,
                "arguments": args, "status": status,
            });
        };
        let mut item = match tool.is_custom {
            true => json!({
                "type": "custom_tool_call", "id": format!("ctc_{n}"), "call_id": call,
                "name": tool.name, "input": input_of(args), "status": status,
            }),
            false => json!({
                "type": "function_call", "id": format!("fc_{n}"), "call_id": call,
                "name": tool.name, "arguments": args, "status": status,
            }),
        };
        if let Some(namespace) = &tool.namespace {
            item["namespace"] = namespace.as_str().into();
        }
        item
    }
}

/// The text in the arguments of a function that replaces a custom tool.
pub(super) fn input_of(args: &str) -> String {
    let input = overmind_core::json::read::<Value>(args.as_bytes()).unwrap_or_default();
    input["input"].as_str().unwrap_or(args).to_owned()
}

/// The arguments that carry the text `input`.
pub(super) fn args_of(input: &Value) -> String {
    json!({"input": input.as_str().unwrap_or_default()}).to_string()
}

/// The description of a custom tool with the grammar of its text, which only OpenAI enforces.
fn described(tool: &Value) -> String {
    let mut said = tool["description"].as_str().unwrap_or_default().to_owned();
    let format = &tool["format"];
    if let Some(grammar) = format["definition"].as_str() {
        let syntax = format["syntax"].as_str().unwrap_or_default();
        said.push_str(&format!("\n\n`input` must match this {syntax} grammar:\n{grammar}"));
    }
    said
}

/// The usual chat name of a tool. It is the same in each request, whatever else that contains.
fn there(namespace: Option<&str>, name: &str) -> String {
    let Some(namespace) = namespace else { return name.to_owned() };
    let between = if namespace.ends_with("__") { "" } else { "__" };
    let joined = format!("{namespace}{between}{name}");
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if joined.len() <= MAX_NAME && joined.chars().all(fits) {
        return joined;
    }
    let clean: String = joined.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    told_apart(&clean, Some(namespace), name)
}

/// A chat name that no other tool has.
fn told_apart(there: &str, namespace: Option<&str>, name: &str) -> String {
    let both = format!("{}\0{name}", namespace.unwrap_or_default());
    let hash = blake3::hash(both.as_bytes()).to_hex();
    let kept = there.len().min(MAX_NAME - 9);
    format!("{}_{}", &there[..kept], &hash[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_names_are_valid_and_unique() {
        assert_eq!(there(Some("agents"), "spawn"), "agents__spawn");
        assert_eq!(there(Some("mcp__docs__"), "find"), "mcp__docs__find");
        let long = "n".repeat(60);
        for (namespace, name) in [(long.as_str(), "one"), (&long, "two"), ("a b", "c"), ("ä", "c")]
        {
            let made = there(Some(namespace), name);
            assert!(made.len() <= MAX_NAME && made.is_ascii() && !made.contains(' '), "{made}");
        }
        assert_ne!(there(Some(&long), "one"), there(Some(&long), "two"));
    }

    #[test]
    fn colliding_tool_names_get_distinct_names() {
        let tools = json!([
            {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]},
            {"type": "function", "name": "a__b"},
        ]);
        let (tools, names) = Names::read("tools", &tools).unwrap();
        let name = |n: usize| tools[n]["function"]["name"].as_str().unwrap();
        assert_eq!(name(1), "a__b");
        assert_ne!(name(0), "a__b");
        assert_eq!(names.there(Some("a"), "b"), name(0));
        assert_eq!(names.item(0, "c", name(0), "{}", "completed")["namespace"], "a");
        assert_eq!(names.item(0, "c", "a__b", "{}", "completed").get("namespace"), None);
    }
}
