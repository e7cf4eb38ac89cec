//! `write_file`: replaces one whole text file in one step.

use overmind_core::Fut;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::MAX_TEXT_BYTES;
use crate::answer::{Answer, Failure, fields};
use crate::gateway::Tool;
use crate::schema::parse;
use crate::workspace::{PathError, Root, Workspace, blocking};

#[derive(Debug)]
pub(crate) struct WriteFile;

#[derive(Debug, Deserialize)]
struct Args {
    path: String,
    content: String,
}

impl Tool for WriteFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "write_file".into(),
            description: "Write a text file in the workspace, replacing it if it exists. Missing \
                          directories are created. The content is written exactly as given, white \
                          space included. To change a part of an existing file use edit_file."
                .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "path": {
                        "type": "string", "minLength": 1,
                        "description": "Path relative to the workspace, for example src/main.py.",
                    },
                    "content": {
                        "type": "string",
                        "description": "The whole new content; at most 100000 bytes of UTF-8.",
                    },
                },
                "required": ["path", "content"],
                "additionalProperties": false,
            }),
            class: EffectClass::Idempotent,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let Args { path, content } = parse(args)?;
            let bytes = content.len();
            if bytes > MAX_TEXT_BYTES {
                return Err(Failure::new("size_limit", "content exceeds max size")
                    .with_details(json!({"bytes": bytes, "max_bytes": MAX_TEXT_BYTES})));
            }
            let (root, key) = (Root::of(context), context.effect.to_string());
            blocking(move || {
                let workspace = Workspace::open(&root)?;
                let relative = workspace.relative(&path)?;
                if path.ends_with('/') {
                    return Err(PathError::IsDirectory { path }.into());
                }
                let shown = workspace.replace(&relative, content.as_bytes(), &key, None)?;
                Ok(fields(json!({"path": shown, "bytes": bytes})))
            })
            .await
        })
    }
}
