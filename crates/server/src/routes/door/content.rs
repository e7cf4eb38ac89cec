//! The result of an MCP server's tool, as MCP has it: what the server said reaches the caller as it
//! was, pictures as pictures and structured content as such.
//!
//! In our own envelope pictures are files of the workspace, which a caller over HTTP does not see.
//! What the envelope adds (labels, what was cut) stands in `_meta` under [`META`].

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The position of the envelope's own members.
const META: &str = "overmind/result";

/// The result of `tools/call`; `None` for the result of a tool of our own, and for a call that failed
/// before the server answered. `files` are the files that the result names, by their
/// paths, as base64.
pub(super) fn of_server(result: &Value, files: &BTreeMap<String, String>) -> Option<Value> {
    let said = result.pointer("/mcp/result")?.as_object()?;
    let blocks = said.get("content").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut content: Vec<Value> = blocks.iter().map(|given| block(given, files)).collect();
    if let Some(cut) = result.get("truncated") {
        content.push(text(format!("[Overmind passed a part of this result on: {cut}]")));
    }
    let mut meta: Map<String, Value> = Map::new();
    for name in ["untrusted", "artifacts", "truncated", "hidden_characters_removed"] {
        if let Some(value) = result.get(name) {
            meta.insert(name.to_owned(), value.clone());
        }
    }
    for name in ["server_id", "tool_name"] {
        if let Some(value) = result.pointer(&format!("/mcp/{name}")) {
            meta.insert(name.to_owned(), value.clone());
        }
    }
    let mut done = json!({
        "content": content,
        "isError": said.get("isError") == Some(&Value::Bool(true)),
        "resultType": "complete",
        "_meta": {META: meta},
    });
    if let Some(structured) = said.get("structuredContent") {
        done["structuredContent"] = structured.clone();
    }
    Some(done)
}

fn text(text: String) -> Value {
    json!({"type": "text", "text": text})
}

fn block(given: &Value, files: &BTreeMap<String, String>) -> Value {
    let word = |name: &str| given.get(name).and_then(Value::as_str);
    let media = word("mimeType").unwrap_or("application/octet-stream");
    let data = word("path").and_then(|path| files.get(path));
    match (word("type").unwrap_or_default(), data) {
        ("text" | "resource_link", _) => given.clone(),
        (kind @ ("image" | "audio"), Some(data)) => {
            json!({"type": kind, "data": data, "mimeType": media})
        }
        ("resource", Some(blob)) => json!({"type": "resource", "resource": {
            "uri": word("uri").unwrap_or_default(), "mimeType": media, "blob": blob,
        }}),
        ("resource", None) if word("text").is_some() => json!({"type": "resource", "resource": {
            "uri": word("uri").unwrap_or_default(), "mimeType": media, "text": word("text"),
        }}),
        (kind, _) => text(format!("[a part of the kind `{kind}` that is not passed on: {given}]")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_a_server_is_forwarded_unchanged() {
        let result = json!({
            "ok": true, "untrusted": true, "artifacts": ["a.png", "gone.png"],
            "mcp": {"server_id": "s", "tool_name": "t", "result": {
                "content": [
                    {"type": "text", "text": "seen"},
                    {"type": "image", "mimeType": "image/png", "bytes": 5, "path": "a.png"},
                    {"type": "resource", "uri": "x:1", "mimeType": "a/b", "bytes": 5, "path": "a.png"},
                    {"type": "resource", "uri": "x:2", "mimeType": null, "text": "words"},
                    {"type": "image", "mimeType": "image/png", "bytes": 9, "path": "gone.png"},
                ],
                "structuredContent": {"n": 1}, "isError": false,
            }},
        });
        let files = BTreeMap::from([("a.png".to_owned(), "aGVsbG8=".to_owned())]);
        let done = of_server(&result, &files).unwrap();
        let content = done["content"].as_array().unwrap();
        assert_eq!(content[0], json!({"type": "text", "text": "seen"}));
        let image = json!({"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"});
        assert_eq!(content[1], image);
        assert_eq!(content[2]["resource"]["blob"], "aGVsbG8=");
        assert_eq!(content[3]["resource"]["text"], "words");
        assert_eq!(content[4]["type"], "text", "what cannot be shown is named");
        assert!(content[4]["text"].as_str().unwrap().contains("gone.png"));
        assert_eq!(done["structuredContent"], json!({"n": 1}));
        assert_eq!(
            (&done["isError"], &done["_meta"][META]["untrusted"]),
            (&json!(false), &json!(true))
        );
    }

    #[test]
    fn truncated_content_is_marked_and_has_no_structured_content() {
        let result = json!({
            "ok": false, "truncated": {"kept_bytes": 1},
            "mcp": {"result": {"content": [], "isError": true}},
        });
        let done = of_server(&result, &BTreeMap::new()).unwrap();
        assert!(done["content"][0]["text"].as_str().unwrap().contains("kept_bytes"));
        assert_eq!((&done["isError"], done.get("structuredContent")), (&json!(true), None));
        let failed = json!({"ok": false, "mcp": {"server_id": "s"}, "error": {"code": "timeout"}});
        assert_eq!(of_server(&failed, &BTreeMap::new()), None);
    }
}
