//! `save_artifact`, `list_artifacts`, `read_artifact`: files that remain after a run.
//!
//! Content in the arguments is also in the run's log, so it has the limit of `write_file`; larger
//! content is taken from a file of the workspace. Everything that is read back counts as untrusted:
//! other agents may have written it, and the agent's own artifacts may be based on such text.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use overmind_core::Fut;
use overmind_core::artifact::{MAX_BYTES, MAX_NAME};
use overmind_core::mesh::{ArtifactOf, Mesh, MeshAct};
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use serde::Deserialize;
use serde_json::{Value, json};

use super::mesh::{failure, has, object, text};
use crate::MAX_TEXT_BYTES;
use crate::answer::{Answer, Failure, fields, untrusted};
use crate::gateway::Tool;
use crate::schema::{integer, parse};
use crate::workspace::{Root, Workspace, blocking};

/// Longest Base64 of an inline content.
const MAX_BASE64: usize = MAX_TEXT_BYTES.div_ceil(3) * 4;

/// Makes the tools with access to the mesh.
pub(super) fn artifact_tools(mesh: &Arc<dyn Mesh>) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(SaveArtifact(Arc::clone(mesh))),
        Arc::new(ListArtifacts(Arc::clone(mesh))),
        Arc::new(ReadArtifact(Arc::clone(mesh))),
    ]
}

#[derive(Debug)]
struct SaveArtifact(Arc<dyn Mesh>);

#[derive(Debug)]
struct ListArtifacts(Arc<dyn Mesh>);

#[derive(Debug)]
struct ReadArtifact(Arc<dyn Mesh>);

#[derive(Debug, Deserialize)]
struct SaveArgs {
    name: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    content_base64: Option<String>,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    media_type: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ListArgs {
    #[serde(default)]
    run: Option<String>,
    #[serde(default)]
    agent: Option<String>,
    #[serde(default = "fifty", deserialize_with = "integer")]
    limit: u64,
    #[serde(default)]
    after: Option<String>,
}

fn fifty() -> u64 {
    50
}

#[derive(Debug, Deserialize)]
struct ReadArgs {
    name: String,
    #[serde(default)]
    run: Option<String>,
    #[serde(default)]
    agent: Option<String>,
    #[serde(default, deserialize_with = "integer")]
    offset: u64,
    #[serde(default)]
    encoding: Option<String>,
}

fn name() -> Value {
    text(
        u32::try_from(MAX_NAME).unwrap_or(u32::MAX),
        "A relative name, with slashes perhaps: `report.md`.",
    )
}

fn run() -> Value {
    text(100, "The id of another run; your own without it.")
}

fn of(run: Option<String>, agent: Option<String>) -> Result<ArtifactOf, Failure> {
    match (run, agent) {
        (None, None) => Ok(ArtifactOf::Own),
        (Some(run), None) => run
            .parse()
            .map(ArtifactOf::Run)
            .map_err(|_| Failure::bad_args("run is no id of a run, such as ses_…")),
        (None, Some(agent)) => Ok(ArtifactOf::Agent(agent)),
        (Some(_), Some(_)) => Err(Failure::bad_args("give run or agent, not both")),
    }
}

fn too_large(bytes: usize, most: usize) -> Failure {
    Failure::new("size_limit", "content exceeds max size").with_details(json!({
        "bytes": bytes, "max_bytes": most,
        "hint": "write it to a file of the workspace and give its path",
    }))
}

/// Reads the content from the arguments or the file.
async fn content(args: &SaveArgs, context: &ToolContext) -> Result<Vec<u8>, Failure> {
    match (&args.content, &args.content_base64, &args.path) {
        (Some(content), None, None) if content.len() > MAX_TEXT_BYTES => {
            Err(too_large(content.len(), MAX_TEXT_BYTES))
        }
        (Some(content), None, None) => Ok(content.clone().into_bytes()),
        (None, Some(encoded), None) => {
            if encoded.len() > MAX_BASE64 {
                return Err(too_large(encoded.len() / 4 * 3, MAX_TEXT_BYTES));
            }
            STANDARD
                .decode(encoded)
                .map_err(|err| Failure::bad_args(format!("content_base64 is not Base64: {err}")))
        }
        (None, None, Some(path)) => {
            let (root, path) = (Root::of(context), path.clone());
            blocking(move || {
                let workspace = Workspace::open(&root)?;
                let mut opened = workspace.open_file(&workspace.relative(&path)?)?;
                let bytes = opened.bytes;
                opened.read_all(MAX_BYTES)?.ok_or_else(|| {
                    Failure::new("size_limit", "file exceeds max size")
                        .with_details(json!({"bytes": bytes, "max_bytes": MAX_BYTES}))
                })
            })
            .await
        }
        _ => Err(Failure::bad_args("give one of content, content_base64 and path")),
    }
}

impl Tool for SaveArtifact {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "save_artifact".into(),
            description: "Keep a file for the people you work for and for other agents, beyond the \
                          end of this run: a report, a patch, a picture. Give its text as content, \
                          or the path of a file of the workspace, up to 16 MiB. The same name again \
                          takes the place of what was there. Secrets in a text are masked."
                .into(),
            schema: object(
                &json!({
                    "name": name(),
                    "content": {
                        "type": "string",
                        "description": "The text; at most 100000 bytes of UTF-8.",
                    },
                    "content_base64": {
                        "type": "string",
                        "description": "Or bytes in Base64; at most 100000 of them.",
                    },
                    "path": text(4096, "Or a file, relative to the workspace: `out/report.pdf`."),
                    "media_type": text(127, "Such as `text/csv`; guessed without it."),
                }),
                &["name"],
            ),
            // If it is repeated after a crash, it finds the artifact saved.
            class: EffectClass::Idempotent,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let args: SaveArgs = parse(args)?;
            let content = content(&args, context).await?;
            let SaveArgs { name, media_type, .. } = args;
            let act = MeshAct::SaveArtifact { name, content, media_type };
            let done = self.0.act(context.session, context.effect, act).await;
            Ok(fields(done.map_err(failure)?))
        })
    }
}

impl Tool for ListArtifacts {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "list_artifacts".into(),
            description: "List artifacts that were saved, newest first: your own run's, those of \
                          another run, or all that another agent shares. Use read_artifact for a \
                          content."
                .into(),
            schema: object(
                &json!({
                    "run": run(),
                    "agent": text(200, "Or an agent's name, for all that it shares."),
                    "limit": {
                        "type": "integer", "minimum": 1, "maximum": 100, "default": 50,
                        "description": "How many at most.",
                    },
                    "after": text(512, "The `next` of an earlier answer, to go on behind it."),
                }),
                &[],
            ),
            class: EffectClass::Pure,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let ListArgs { run, agent, limit, after } = parse(args)?;
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            let act = MeshAct::ListArtifacts { of: of(run, agent)?, limit, after };
            let done = self.0.act(context.session, context.effect, act).await;
            let all = fields(done.map_err(failure)?);
            let found = has(&all, "artifacts");
            Ok(if found { untrusted(all, "names of artifacts") } else { all })
        })
    }
}

impl Tool for ReadArtifact {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "read_artifact".into(),
            description: "Read an artifact: of your own run, of another run, or one that another \
                          agent shares. A long text comes in parts: go on with offset at \
                          next_offset. What is no text is shown with encoding base64."
                .into(),
            schema: object(
                &json!({
                    "name": name(),
                    "run": run(),
                    "agent": text(200, "Or the name of the agent that shares it."),
                    "offset": {
                        "type": "integer", "minimum": 0, "default": 0,
                        "description": "Byte of the content at which to begin.",
                    },
                    "encoding": {
                        "type": "string", "enum": ["text", "base64"], "default": "text",
                        "description": "How to show it.",
                    },
                }),
                &["name"],
            ),
            class: EffectClass::Pure,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let ReadArgs { name, run, agent, offset, encoding } = parse(args)?;
            let base64 = encoding.as_deref() == Some("base64");
            let act = MeshAct::ReadArtifact { of: of(run, agent)?, name, offset, base64 };
            let done = self.0.act(context.session, context.effect, act).await;
            let all = fields(done.map_err(failure)?);
            let by = all.get("author").and_then(Value::as_str).unwrap_or_default();
            let source = format!("an artifact, saved by {by}");
            Ok(untrusted(all, &source))
        })
    }
}
