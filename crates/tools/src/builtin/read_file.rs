//! `read_file`: reads a text file, whole or some of its lines.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::MAX_TEXT_BYTES;
use crate::answer::{Answer, Failure, fields};
use crate::file_labels::FileLabels;
use crate::gateway::Tool;
use crate::schema::{parse, some_integer};
use crate::workspace::{Opened, PathError, Root, Workspace, blocking};

/// Maximum number of bytes that a call with a range reads to find its lines.
const MAX_SCAN_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct ReadFile {
    pub(super) labels: Arc<FileLabels>,
}

#[derive(Debug, Deserialize)]
struct Args {
    path: String,
    #[serde(default, deserialize_with = "some_integer")]
    start_line: Option<u64>,
    #[serde(default, deserialize_with = "some_integer")]
    end_line: Option<u64>,
}

impl Tool for ReadFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "read_file".into(),
            description: "Read a UTF-8 text file of the workspace. A file of more than 100000 \
                          bytes must be read in parts: give start_line and end_line. The answer \
                          to a call with a range says in `more` whether lines follow."
                .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "path": {
                        "type": "string", "minLength": 1,
                        "description": "Path relative to the workspace, for example src/main.py.",
                    },
                    "start_line": {
                        "type": "integer", "minimum": 1,
                        "description": "First line to read; the first line of a file is 1.",
                    },
                    "end_line": {
                        "type": "integer", "minimum": 1,
                        "description": "Last line to read.",
                    },
                },
                "required": ["path"],
                "additionalProperties": false,
            }),
            class: EffectClass::Pure,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let Args { path, start_line, end_line } = parse(args)?;
            let range = (start_line.is_some() || end_line.is_some())
                .then(|| (start_line.unwrap_or(1), end_line.unwrap_or(u64::MAX)));
            if let Some((start, end)) = range
                && start > end
            {
                return Err(Failure::bad_args("start_line must be <= end_line"));
            }
            let (root, labels) = (Root::of(context), Arc::clone(&self.labels));
            blocking(move || {
                let workspace = Workspace::open(&root)?;
                let opened = workspace.open_file(&workspace.relative(&path)?)?;
                let shown = opened.shown.clone();
                let read = match range {
                    None => whole(opened),
                    Some((start, end)) => lines(opened, start, end),
                };
                Ok(labels.mark(read?, &shown))
            })
            .await
        })
    }
}

fn whole(mut opened: Opened) -> Answer {
    let Some(bytes) = opened.read_all(MAX_TEXT_BYTES)? else {
        return Err(Failure::new("size_limit", "file exceeds max size").with_details(json!({
            "bytes": opened.bytes,
            "max_bytes": MAX_TEXT_BYTES,
            "hint": "read it in parts with start_line and end_line",
        })));
    };
    let content = text(bytes, 0)?;
    Ok(fields(json!({"path": opened.shown, "content": content})))
}

fn lines(opened: Opened, start: u64, end: u64) -> Answer {
    let mut reader = BufReader::with_capacity(64 << 10, LimitedFile::new(&opened.file));
    let failed = |source| {
        Failure::from(PathError::Io { attempt: "reading", path: opened.shown.clone(), source })
    };
    let (mut line, mut offset) = (1, 0);
    while line < start {
        match skip_line(&mut reader).map_err(failed)? {
            0 => break,
            skipped => offset += skipped,
        }
        line += 1;
    }
    let mut kept = Vec::new();
    let mut last = line.saturating_sub(1);
    while line >= start && line <= end {
        let room = MAX_TEXT_BYTES.saturating_sub(kept.len());
        match read_line(&mut reader, &mut kept, room).map_err(failed)? {
            Line::End => break,
            Line::Read => last = line,
            Line::TooLong => {
                return Err(Failure::new("size_limit", "the lines asked for exceed max size")
                    .with_details(json!({
                        "max_bytes": MAX_TEXT_BYTES,
                        "hint": format!("line {line} does not fit any more; ask for fewer lines"),
                    })));
            }
        }
        line += 1;
    }
    // An error here concerns the following text, so there is some.
    let more = reader.fill_buf().map_or(true, |rest| !rest.is_empty());
    let content = text(kept, offset)?;
    let mut all = Map::new();
    all.insert("path".into(), opened.shown.clone().into());
    all.insert("content".into(), content.into());
    all.insert("start_line".into(), start.into());
    // It is before `start_line` if the file ends earlier; `content` is empty then.
    all.insert("end_line".into(), last.into());
    all.insert("more".into(), more.into());
    Ok(all)
}

enum Line {
    Read,
    TooLong,
    End,
}

/// Appends one line, including its end, if it has at most `room` bytes.
fn read_line(reader: &mut impl BufRead, to: &mut Vec<u8>, room: usize) -> std::io::Result<Line> {
    let limit = u64::try_from(room).unwrap_or(u64::MAX).saturating_add(1);
    let mut limited = std::io::Read::take(&mut *reader, limit);
    Ok(match limited.read_until(b'\n', to)? {
        0 => Line::End,
        read if read > room => Line::TooLong,
        _ => Line::Read,
    })
}

/// Skips one line; returns its bytes, 0 at the end.
fn skip_line(reader: &mut impl BufRead) -> std::io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(skipped);
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |at| at + 1);
        skipped += used as u64;
        reader.consume(used);
        if end.is_some() {
            return Ok(skipped);
        }
    }
}

/// A reader that fails if the file is longer than the limit.
struct LimitedFile<'a> {
    file: &'a File,
    left: u64,
}

impl<'a> LimitedFile<'a> {
    fn new(file: &'a File) -> Self {
        Self { file, left: MAX_SCAN_BYTES }
    }
}

impl std::io::Read for LimitedFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut file = self.file;
        if self.left == 0 && file.read(&mut [0])? > 0 {
            return Err(std::io::Error::other(format!(
                "the lines asked for lie beyond the first {MAX_SCAN_BYTES} bytes; \
                 use run_shell with sed, head or tail"
            )));
        }
        let room = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = file.read(&mut buffer[..room])?;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Decodes UTF-8, or names the first bad byte in an error; `offset` is the position of `bytes` in
/// the file.
pub(super) fn text(bytes: Vec<u8>, offset: u64) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|err| {
        let at = err.utf8_error().valid_up_to();
        let byte = err.as_bytes()[at];
        Failure::tool_error(format!(
            "the file is not UTF-8 text: byte 0x{byte:02x} at position {} is not valid",
            offset + at as u64
        ))
    })
}
