//! Converts a server's answer to an envelope that is limited and labelled, with files for parts
//! that are not text.
//!
//! ```text
//! {"ok": true, "untrusted": true,
//!  "mcp": {"server_id", "tool_name", "result": {"content": […], "structuredContent"?, "isError"}},
//!  "artifacts": ["path", …]?, "truncated": {"text_bytes", "kept_bytes", …}?,
//!  "hidden_characters_removed": N?}
//! ```
//!
//! An error adds `"ok": false, "error": {"code": "mcp_tool_error", "message"}`. In `content`, a
//! picture, sound or blob is `{"type", "mimeType", "bytes", "path"}`.

use base64::Engine as _;
use overmind_core::tool::{ToolContext, ToolOutcome};
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Map, Value, json};

use crate::artifacts;
use crate::vet::clean;

/// Maximum number of blocks of one result; the rest is only counted.
const MAX_BLOCKS: usize = 256;

/// The context of a result.
#[derive(Debug)]
pub(crate) struct For<'a> {
    pub(crate) context: &'a ToolContext,
    pub(crate) server: &'a str,
    pub(crate) tool: &'a str,
    /// Maximum number of bytes of text that are passed on.
    pub(crate) text_bytes: usize,
    /// Texts that are replaced by `***` everywhere.
    pub(crate) secrets: &'a [String],
}

/// The envelope for a failure of the call itself.
pub(crate) fn failure(server: &str, tool: &str, code: &str, message: String) -> ToolOutcome {
    let mut outcome = ToolOutcome::failure(code, message);
    if let Some(fields) = outcome.result.as_object_mut() {
        fields.insert("untrusted".into(), Value::Bool(true));
        fields.insert("mcp".into(), json!({"server_id": server, "tool_name": tool}));
    }
    outcome
}

/// Converts a result. It writes files, so it may block as long as a disk takes.
pub(crate) fn outcome(result: CallToolResult, wanted: &For<'_>) -> ToolOutcome {
    let is_error = result.is_error.unwrap_or(false);
    let mut budget = Budget { left: wanted.text_bytes, ..Budget::default() };
    let mut content = Vec::new();
    let blocks = result.content.len();
    for block in result.content.into_iter().take(MAX_BLOCKS) {
        content.push(budget.block(block, wanted));
    }
    let mut answer = json!({"content": content, "isError": is_error});
    let mut structured_left_out = false;
    if let Some(given) = result.structured_content {
        let (leaves, cut) = (leaves(&given), budget.total - budget.kept);
        let made = budget.value(given, wanted);
        // Structured content is kept whole or dropped, because a part of it could mean something
        // else.
        structured_left_out = budget.total - budget.kept > cut || self::leaves(&made) < leaves;
        if let (false, Some(answer)) = (structured_left_out, answer.as_object_mut()) {
            answer.insert("structuredContent".into(), made);
        }
    }
    let mut fields = Map::new();
    fields.insert("ok".into(), Value::Bool(!is_error));
    if is_error {
        let message = first_text(&answer);
        fields.insert("error".into(), json!({"code": "mcp_tool_error", "message": message}));
    }
    fields.insert("untrusted".into(), Value::Bool(true));
    fields.insert(
        "mcp".into(),
        json!({"server_id": wanted.server, "tool_name": wanted.tool, "result": answer}),
    );
    if !budget.files.is_empty() {
        fields.insert("artifacts".into(), json!(budget.files));
    }
    let cut = budget.total > budget.kept || structured_left_out;
    if cut || blocks > MAX_BLOCKS || budget.lost > 0 {
        fields.insert(
            "truncated".into(),
            json!({
                "text_bytes": budget.total, "kept_bytes": budget.kept,
                "blocks": blocks, "kept_blocks": blocks.min(MAX_BLOCKS),
                "files_not_kept": budget.lost, "structured_left_out": structured_left_out,
            }),
        );
    }
    if budget.hidden > 0 {
        fields.insert("hidden_characters_removed".into(), json!(budget.hidden));
    }
    ToolOutcome { allowed: true, result: Value::Object(fields) }
}

/// The number of leaf values in a value.
fn leaves(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(leaves).sum(),
        Value::Object(fields) => fields.values().map(leaves).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

fn first_text(answer: &Value) -> String {
    let text = answer["content"]
        .as_array()
        .into_iter()
        .flatten()
        .find_map(|block| block["text"].as_str())
        .unwrap_or("the tool says that it failed, and not why");
    text[..text.floor_char_boundary(2000)].to_owned()
}

#[derive(Debug, Default)]
struct Budget {
    left: usize,
    total: usize,
    kept: usize,
    hidden: usize,
    files: Vec<String>,
    /// The number of files that were too large, too many, or could not be written.
    lost: usize,
}

impl Budget {
    fn text(&mut self, text: &str, wanted: &For<'_>) -> String {
        let (mut text, hidden) = clean(text);
        self.hidden += hidden;
        for secret in wanted.secrets {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "***");
            }
        }
        self.total += text.len();
        text.truncate(text.floor_char_boundary(self.left));
        self.left -= text.len();
        self.kept += text.len();
        text
    }

    fn block(&mut self, block: ContentBlock, wanted: &For<'_>) -> Value {
        match block {
            ContentBlock::Text(text) => {
                json!({"type": "text", "text": self.text(&text.text, wanted)})
            }
            ContentBlock::Image(image) => {
                self.file("image", Some(&image.mime_type), &image.data, None, wanted)
            }
            ContentBlock::Audio(audio) => {
                self.file("audio", Some(&audio.mime_type), &audio.data, None, wanted)
            }
            ContentBlock::Resource(embedded) => match embedded.resource {
                ResourceContents::TextResourceContents { uri, mime_type, text, .. } => json!({
                    "type": "resource", "uri": self.text(&uri, wanted),
                    "mimeType": mime_type.map(|kind| self.text(&kind, wanted)),
                    "text": self.text(&text, wanted),
                }),
                ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                    self.file("resource", mime_type.as_deref(), &blob, Some(&uri), wanted)
                }
                _ => json!({"type": "unknown"}),
            },
            ContentBlock::ResourceLink(link) => json!({
                "type": "resource_link", "uri": self.text(&link.uri, wanted),
                "name": self.text(&link.name, wanted),
            }),
            // The library may support kinds that are unknown here.
            _ => json!({"type": "unknown"}),
        }
    }

    /// Text within structured content counts like other text; numbers and names do not, but the
    /// whole message is limited.
    fn value(&mut self, value: Value, wanted: &For<'_>) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text, wanted)),
            Value::Array(items) => items
                .into_iter()
                .take(self.left.max(1))
                .map(|item| self.value(item, wanted))
                .collect(),
            Value::Object(fields) => {
                let fields = fields.into_iter().take(self.left.max(1));
                Value::Object(
                    fields.map(|(k, v)| (self.text(&k, wanted), self.value(v, wanted))).collect(),
                )
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {
                self.left = self.left.saturating_sub(1);
                value
            }
        }
    }

    fn file(
        &mut self,
        kind: &str,
        media_type: Option<&str>,
        data: &str,
        uri: Option<&str>,
        wanted: &For<'_>,
    ) -> Value {
        let mut shown = Map::new();
        shown.insert("type".into(), kind.into());
        if let Some(uri) = uri {
            shown.insert("uri".into(), self.text(uri, wanted).into());
        }
        let label: String = media_type.unwrap_or_default().chars().take(100).collect();
        shown.insert("mimeType".into(), self.text(&label, wanted).into());
        let ended = self.keep(media_type, data, wanted, &mut shown);
        if let Err(why) = ended {
            self.lost += 1;
            shown.insert("not_kept".into(), why.into());
        }
        Value::Object(shown)
    }

    fn keep(
        &mut self,
        media_type: Option<&str>,
        data: &str,
        wanted: &For<'_>,
        shown: &mut Map<String, Value>,
    ) -> Result<(), String> {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(data)
            .map_err(|_| "its data is not base64".to_owned())?;
        shown.insert("bytes".into(), bytes.len().into());
        if bytes.len() > artifacts::MAX_FILE_BYTES || self.files.len() >= artifacts::MAX_FILES {
            return Err(format!(
                "at most {} files of {} bytes each are kept",
                artifacts::MAX_FILES,
                artifacts::MAX_FILE_BYTES
            ));
        }
        let (context, end) = (wanted.context, artifacts::extension(media_type));
        let number = self.files.len();
        let path = artifacts::write(
            &context.workspace,
            &context.off_limits,
            context.session,
            wanted.server,
            context.effect,
            number,
            end,
            &bytes,
        )
        .map_err(|err| format!("the file could not be written: {err}"))?;
        shown.insert("path".into(), path.clone().into());
        self.files.push(path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overmind_core::ids::{AgentId, ColonyId, EffectId, SessionId};
    use overmind_core::sandbox::{SandboxLevel, SandboxLimits};

    use super::*;

    fn made(result: Value, text_bytes: usize) -> (Value, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let context = ToolContext {
            colony: ColonyId::DEFAULT,
            session: SessionId::from_u128(5),
            agent: AgentId::from_u128(10),
            effect: EffectId::from_u128(14),
            allowed: Arc::from([]),
            workspace: dir.path().to_owned(),
            variables: Default::default(),
            off_limits: Default::default(),
            sandbox: SandboxLevel::None,
            driver: None,
            limits: SandboxLimits::default(),
            claims: Default::default(),
            live: overmind_core::live::LiveSink::default(),
            traceparent: None,
        };
        let secrets = ["hunter2hunter2".to_owned()];
        let wanted =
            For { context: &context, server: "s", tool: "t", text_bytes, secrets: &secrets };
        let result = serde_json::from_value(result).unwrap();
        (outcome(result, &wanted).result, dir)
    }

    #[test]
    fn a_result_is_labelled_and_its_text_truncated_with_counts() {
        let (made, _dir) = made(
            json!({"content": [{"type": "text", "text": "a".repeat(50)}, {"type": "text", "text": "é".repeat(50)}]}),
            61,
        );
        assert_eq!(made["ok"], true);
        assert_eq!(made["untrusted"], true);
        assert_eq!(made["truncated"]["text_bytes"], 150);
        assert_eq!(made["truncated"]["kept_bytes"], 60, "cut at a character");
    }

    #[test]
    fn secrets_and_hidden_characters_are_removed_from_results() {
        let (made, _dir) = made(
            json!({"content": [{"type": "text", "text": "key=hunter2hunter2\u{e0041}"}], "structuredContent": {"k": ["hunter2hunter2"]}}),
            1000,
        );
        assert!(!made.to_string().contains("hunter2"), "{made}");
        assert_eq!(made["hidden_characters_removed"], 1);
        assert_eq!(made["mcp"]["result"]["structuredContent"]["k"][0], "***");
    }

    #[test]
    fn structured_content_is_never_truncated() {
        let result =
            json!({"content": [], "structuredContent": {"rows": ["aaaa", "bbbb"], "n": 2}});
        let (whole, _dir) = made(result.clone(), 1000);
        assert_eq!(whole["mcp"]["result"]["structuredContent"]["rows"], json!(["aaaa", "bbbb"]));
        assert_eq!(whole["truncated"], Value::Null);
        for text_bytes in [1, 5, 8] {
            let (cut, _dir) = made(result.clone(), text_bytes);
            assert_eq!(cut["mcp"]["result"]["structuredContent"], Value::Null, "{cut}");
            assert_eq!(cut["truncated"]["structured_left_out"], true);
        }
    }

    #[test]
    fn an_image_becomes_a_file() {
        let (made, dir) = made(
            json!({"content": [{"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}, {"type": "image", "data": "!", "mimeType": "image/png"}]}),
            1000,
        );
        let path = made["artifacts"][0].as_str().unwrap();
        assert_eq!(std::fs::read(dir.path().join(path)).unwrap(), b"hello");
        assert_eq!(made["mcp"]["result"]["content"][1]["not_kept"], "its data is not base64");
        assert_eq!(made["truncated"]["files_not_kept"], 1);
    }

    #[test]
    fn an_error_of_a_tool_is_a_tool_failure() {
        let (made, _dir) = made(
            json!({"content": [{"type": "text", "text": "no such row"}], "isError": true}),
            1000,
        );
        assert_eq!(made["ok"], false);
        assert_eq!(made["error"], json!({"code": "mcp_tool_error", "message": "no such row"}));
    }
}
