//! `edit_file`: replaces one exact piece of a text file.

use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Failure, brief, fields};
use crate::builtin::read_file::text;
use crate::file_labels::FileLabels;
use crate::gateway::Tool;
use crate::schema::parse;
use crate::workspace::{Root, Workspace, blocking};

/// Largest file that is edited, before and after.
const MAX_BYTES: usize = 1_000_000;
/// Maximum number of lines that an answer names.
const MAX_LINES: usize = 10;
/// The longest piece, in lines, whose likeliest place is searched.
const MAX_LOOSE_LINES: usize = 200;

#[derive(Debug)]
pub(crate) struct EditFile {
    pub(super) labels: Arc<FileLabels>,
}

#[derive(Debug, Deserialize)]
struct Args {
    path: String,
    old: String,
    new: String,
    #[serde(default)]
    replace_all: bool,
}

impl Tool for EditFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "edit_file".into(),
            description: "Replace a piece of a text file in the workspace. `old` must match the \
                          file exactly, white space and line ends included, and must occur exactly \
                          once: copy it from read_file and take in enough lines around the change. \
                          With replace_all every occurrence is replaced."
                .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "path": {
                        "type": "string", "minLength": 1,
                        "description": "Path relative to the workspace, for example src/main.py.",
                    },
                    // There is no `minLength`, because a piece may be white space. The handler
                    // refuses "".
                    "old": {"type": "string", "description": "The piece to replace; not empty."},
                    "new": {
                        "type": "string",
                        "description": "What stands there afterwards; empty removes the piece.",
                    },
                    "replace_all": {
                        "type": "boolean", "default": false,
                        "description": "Replace every occurrence.",
                    },
                },
                "required": ["path", "old", "new"],
                "additionalProperties": false,
            }),
            class: EffectClass::Once,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let args: Args = parse(args)?;
            if args.old.is_empty() {
                return Err(Failure::bad_args("old must be a non-empty string"));
            }
            if args.old == args.new {
                return Err(Failure::bad_args("old and new are the same: there is nothing to do"));
            }
            let (root, key) = (Root::of(context), context.effect.to_string());
            let labels = Arc::clone(&self.labels);
            blocking(move || {
                let (workspace, mut shown) = (Workspace::open(&root)?, None);
                let done = edit(&workspace, &args, &key, &mut shown);
                // If the piece is missing, the answer contains the file's own text.
                let Some(path) = shown else { return done };
                done.map_err(|failure| failure.with_all(labels.mark(Map::new(), &path)))
            })
            .await
        })
    }
}

/// `shown` is set to the path of the file once it is open.
fn edit(workspace: &Workspace, args: &Args, key: &str, shown: &mut Option<String>) -> Answer {
    let path = workspace.relative(&args.path)?;
    let mut opened = workspace.open_file(&path)?;
    *shown = Some(opened.shown.clone());
    let too_large = || {
        Failure::new("size_limit", "file exceeds max size")
            .with_details(json!({"max_bytes": MAX_BYTES}))
    };
    let before = text(opened.read_all(MAX_BYTES)?.ok_or_else(too_large)?, 0)?;
    let found: Vec<usize> = before.match_indices(&args.old).map(|(at, _)| at).collect();
    match found.len() {
        0 => return Err(no_match(&before, &args.old, &opened.shown)),
        1 => {}
        _ if args.replace_all => {}
        n => {
            return Err(Failure::new(
                "not_unique",
                format!(
                    "`old` occurs {n} times in {} (lines {}): take in more lines around the one \
                     you mean, or set replace_all",
                    opened.shown,
                    line_list(&before, &found)
                ),
            ));
        }
    }
    // The size is computed before the text: many short pieces that become long could need much
    // memory.
    let grown = args.new.len().saturating_sub(args.old.len()).saturating_mul(found.len());
    let shrunk = args.old.len().saturating_sub(args.new.len()).saturating_mul(found.len());
    if (before.len() + grown).saturating_sub(shrunk) > MAX_BYTES {
        return Err(Failure::new("size_limit", "content exceeds max size")
            .with_details(json!({"max_bytes": MAX_BYTES})));
    }
    let after = before.replace(&args.old, &args.new);
    let shown = workspace.replace(&path, after.as_bytes(), key, Some(opened.seen()))?;
    Ok(fields(json!({
        "path": shown,
        "replacements": found.len(),
        "first_line": line_of(&before, found[0]),
        "bytes": after.len(),
    })))
}

/// The failure for a piece that is missing, with the likeliest reason.
fn no_match(text: &str, old: &str, shown: &str) -> Failure {
    let hint = if text.is_empty() {
        "the file is empty".to_owned()
    } else if text.contains("\r\n")
        && text.contains(&old.replace("\r\n", "\n").replace('\n', "\r\n"))
    {
        "the file's lines end in \\r\\n; write them so in `old` and `new`".to_owned()
    } else if let Some(line) = loose_match(text, old) {
        let there = text.lines().nth(line - 1).unwrap_or_default();
        format!(
            "line {line} matches when white space at the ends of lines is ignored; it reads {:?}",
            brief(there)
        )
    } else {
        "read the file again and copy the piece exactly".to_owned()
    };
    Failure::new("no_match", format!("`old` was not found in {shown}: {hint}"))
}

/// The first line, counted from 1, at which the lines of `old` match after trimming.
fn loose_match(text: &str, old: &str) -> Option<usize> {
    let wanted: Vec<&str> = old.trim().lines().map(str::trim).collect();
    if wanted.len() > MAX_LOOSE_LINES || wanted.iter().all(|line| line.is_empty()) {
        return None;
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.windows(wanted.len()).position(|window| window == wanted).map(|at| at + 1)
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn line_list(text: &str, found: &[usize]) -> String {
    let mut lines: Vec<String> =
        found.iter().take(MAX_LINES).map(|at| line_of(text, *at).to_string()).collect();
    if found.len() > MAX_LINES {
        lines.push("…".into());
    }
    lines.join(", ")
}
