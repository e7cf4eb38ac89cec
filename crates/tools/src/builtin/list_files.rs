//! `list_files`: lists a directory.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use overmind_core::Fut;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::MAX_TEXT_BYTES;
use crate::answer::{Answer, Failure, brief, fields};
use crate::gateway::Tool;
use crate::glob::matches;
use crate::schema::{integer, parse};
use crate::workspace::{PathError, Root, Workspace, blocking};

/// Maximum number of entries in one answer.
const MAX_ENTRIES: usize = 1000;
/// Maximum number of directory entries that one call reads, whether it lists them or not.
const MAX_SCANNED: usize = 50_000;
const MAX_DEPTH: u64 = 20;

#[derive(Debug)]
pub(crate) struct ListFiles;

#[derive(Debug, Deserialize)]
struct Args {
    #[serde(default = "here")]
    path: String,
    #[serde(default = "one", deserialize_with = "integer")]
    depth: u64,
    #[serde(default)]
    glob: Option<String>,
    #[serde(default)]
    include_git: bool,
}

fn here() -> String {
    ".".into()
}

fn one() -> u64 {
    1
}

impl Tool for ListFiles {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "list_files".into(),
            description: "List a directory of the workspace, sorted by path: each entry has path, \
                          type (file, dir, symlink, other) and, for a file, bytes. depth 1 lists \
                          the directory alone, 2 what is in its sub-directories as well, and so \
                          on. At most 1000 entries; `truncated` says when there are more."
                .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "path": {
                        "type": "string", "minLength": 1, "default": ".",
                        "description": "Directory relative to the workspace.",
                    },
                    "depth": {
                        "type": "integer", "minimum": 1, "maximum": MAX_DEPTH, "default": 1,
                        "description": "How many levels to list.",
                    },
                    "glob": {
                        "type": ["string", "null"], "minLength": 1, "maxLength": 200, "default": null,
                        "description": "List only entries whose name matches, for example *.rs; \
                                        with a slash in it the path below the listed directory \
                                        must match: src/**/*.rs. * and ? stop at a slash, ** \
                                        does not.",
                    },
                    "include_git": {
                        "type": "boolean", "default": false,
                        "description": "Go into .git directories, too.",
                    },
                },
                "additionalProperties": false,
            }),
            class: EffectClass::Pure,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let args: Args = parse(args)?;
            let root = Root::of(context);
            let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
            let stopped = stop.0.clone();
            blocking(move || list(&Workspace::open(&root)?, &args, &stopped)).await
        })
    }
}

/// Ends the walk when the caller no longer waits.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn list(workspace: &Workspace, args: &Args, stopped: &AtomicBool) -> Answer {
    let path = workspace.relative(&args.path)?;
    let dir = workspace.open_dir(&path)?;
    let shown = workspace.shown(&dir, &path);
    let prefix = if shown == "." { String::new() } else { format!("{shown}/") };
    let mut walk = Walk {
        glob: args.glob.as_deref(),
        include_git: args.include_git,
        cut_prefix: prefix.len(),
        entries: Vec::new(),
        text_bytes: 0,
        scanned: 0,
        truncated: false,
        skipped: Vec::new(),
        stopped,
    };
    walk.dir(dir, &prefix, args.depth)?;
    let mut answer = fields(json!({
        "path": shown,
        "entries": walk.entries,
        "truncated": walk.truncated,
    }));
    if !walk.skipped.is_empty() {
        answer.insert("unreadable".into(), json!(walk.skipped));
    }
    Ok(answer)
}

struct Walk<'a> {
    glob: Option<&'a str>,
    include_git: bool,
    /// The number of bytes of the listed directory's own path, which the glob does not match.
    cut_prefix: usize,
    entries: Vec<Value>,
    text_bytes: usize,
    scanned: usize,
    truncated: bool,
    skipped: Vec<String>,
    stopped: &'a AtomicBool,
}

struct Found {
    name: Vec<u8>,
    kind: FileType,
    bytes: u64,
}

impl Walk<'_> {
    /// Lists one directory, with each sub-directory directly after its own entry.
    fn dir(&mut self, dir: OwnedFd, prefix: &str, levels: u64) -> Result<(), Failure> {
        for found in self.sorted(&dir, prefix)? {
            if self.truncated || self.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            let name = String::from_utf8_lossy(&found.name);
            let path = format!("{prefix}{name}");
            if self.wanted(&name, &path) {
                self.push(&path, &found);
            }
            let enter = found.kind == FileType::Directory
                && levels > 1
                && (self.include_git || found.name != b".git");
            if enter {
                // The entry is opened below an open directory, by one name and without following
                // links, so it cannot lead out, whatever is replaced meanwhile.
                let flags = OFlags::RDONLY
                    | OFlags::DIRECTORY
                    | OFlags::NOFOLLOW
                    | OFlags::NONBLOCK
                    | OFlags::CLOEXEC;
                match rustix::fs::openat(&dir, found.name.as_slice(), flags, Mode::empty()) {
                    Ok(below) => self.dir(below, &format!("{path}/"), levels - 1)?,
                    // The directory has gone or cannot be read; the rest of the list is still
                    // useful.
                    Err(_) if self.skipped.len() < 20 => self.skipped.push(brief(&path)),
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    fn sorted(&mut self, dir: &OwnedFd, prefix: &str) -> Result<Vec<Found>, Failure> {
        let failed = |err: rustix::io::Errno| PathError::Io {
            attempt: "listing",
            path: brief(if prefix.is_empty() { "." } else { prefix }),
            source: err.into(),
        };
        let mut all = Vec::new();
        for entry in Dir::read_from(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name: &CStr = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.scanned == MAX_SCANNED {
                self.truncated = true;
                break;
            }
            self.scanned += 1;
            // An entry that was removed in between is skipped.
            if let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                all.push(Found {
                    name: name.to_bytes().to_vec(),
                    kind: FileType::from_raw_mode(stat.st_mode),
                    bytes: u64::try_from(stat.st_size).unwrap_or(0),
                });
            }
            if self.stopped.load(Ordering::Relaxed) {
                break;
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn wanted(&self, name: &str, path: &str) -> bool {
        match self.glob {
            None => true,
            Some(glob) if glob.contains('/') => matches(glob, &path[self.cut_prefix..]),
            Some(glob) => matches(glob, name),
        }
    }

    fn push(&mut self, path: &str, found: &Found) {
        self.text_bytes += path.len();
        if self.entries.len() == MAX_ENTRIES || self.text_bytes > MAX_TEXT_BYTES {
            self.truncated = true;
            return;
        }
        self.entries.push(match found.kind {
            FileType::RegularFile => json!({"path": path, "type": "file", "bytes": found.bytes}),
            FileType::Directory => json!({"path": path, "type": "dir"}),
            FileType::Symlink => json!({"path": path, "type": "symlink"}),
            _ => json!({"path": path, "type": "other"}),
        });
    }
}
