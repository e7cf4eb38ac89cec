//! Hashes what a call would do, for the approval that is bound to it.
//!
//! The hash covers the files that the verdict names, the files that these import (see
//! [`overmind_core::imports`]), and the targets of the paths that the call writes.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use overmind_core::gate::{Binding, PolicyVersion};
use overmind_core::imports::{Language, candidates};
use overmind_core::tool::ToolContext;
use serde_json::Value;

use crate::workspace::{Root, Workspace, blocking};

/// Maximum number of bytes of one file that are read for its hash. For a larger file, size and
/// modification time are hashed instead: a process that can fake both does not need to.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Maximum number of bytes of a script whose imports are read.
const MAX_SCRIPT_BYTES: usize = 512 << 10;
/// Maximum number of files of one binding, including all that they import and missing ones. Further
/// files are ignored, as are imports that a program computes.
const MAX_BOUND: usize = 2_000;

/// The program start that a call would cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    pub argv: Vec<String>,
    /// The working directory, relative to the workspace.
    pub cwd: String,
    pub env: Vec<(String, String)>,
}

pub(crate) async fn bind(
    context: &ToolContext,
    tool: &str,
    args: &Value,
    execution: Execution,
    files: &[String],
    policy: &PolicyVersion,
) -> String {
    let (root, mut names) = (Root::of(context), files.to_vec());
    if !execution.cwd.is_empty() {
        names.push(format!("{}/", execution.cwd.trim_end_matches('/')));
    }
    let hashed = blocking(move || {
        let workspace = Workspace::open(&root).ok();
        Ok(match workspace {
            Some(workspace) => with_imports(&workspace, names),
            None => names.into_iter().map(|name| (name, None)).collect(),
        })
    });
    // Only a shutdown prevents it, and then no caller waits for the hash.
    let files = hashed.await.unwrap_or_default();
    let Execution { argv, cwd, env } = execution;
    Binding { tool, args, argv: &argv, cwd: &cwd, env: &env, files: &files, policy }.hash()
}

/// The current hash of each name, and of each file that one of them may import.
fn with_imports(workspace: &Workspace, names: Vec<String>) -> Vec<(String, Option<String>)> {
    let mut all = BTreeMap::new();
    let mut open = names;
    while let Some(name) = open.pop() {
        if all.len() >= MAX_BOUND || all.contains_key(&name) {
            continue;
        }
        if let Some(text) = script(workspace, &name)
            && let Some(language) = Language::of_file(&name, &text)
        {
            let inside = workspace.relative(&name).ok();
            let inside = inside.as_deref().and_then(Path::to_str).unwrap_or(&name);
            let dir = inside.rsplit_once('/').map_or(".", |(dir, _)| dir);
            open.extend(candidates(language, &text, dir));
        }
        let content = content(workspace, &name);
        all.insert(name, content);
    }
    all.into_iter().collect()
}

/// The text of a file that can be a script; `None` for others, and for mere paths.
fn script(workspace: &Workspace, name: &str) -> Option<String> {
    if name.ends_with('/') {
        return None;
    }
    let path = workspace.relative(name).ok()?;
    let mut opened = workspace.open_file(&path).ok()?;
    String::from_utf8(opened.read_all(MAX_SCRIPT_BYTES).ok()??).ok()
}

/// Describes the current state of a name: the hash of a file's content or, for a directory and a
/// name that ends in `/`, its kind. If a link leads elsewhere, the real path is added. `None` if
/// nothing is there or it is outside of the workspace, where a sandboxed command cannot have
/// changed it.
fn content(workspace: &Workspace, name: &str) -> Option<String> {
    let path = workspace.relative(name.trim_end_matches('/')).ok()?;
    let elsewhere = |real: Option<PathBuf>| match real {
        Some(real) if real != path => format!(" at {}", real.display()),
        Some(_) | None => String::new(),
    };
    let Ok(opened) = workspace.open_file(&path) else {
        let directory = workspace.open_dir(&path).ok()?;
        return Some(format!("directory{}", elsewhere(workspace.real(&directory))));
    };
    let at = elsewhere(workspace.real(&opened.file));
    if name.ends_with('/') {
        return Some(format!("file{at}"));
    }
    if opened.bytes > MAX_FILE_BYTES {
        return Some(format!("{:?}{at}", opened.seen()));
    }
    let mut hash = blake3::Hasher::new();
    hash.update_reader((&opened.file).take(MAX_FILE_BYTES + 1)).ok()?;
    Some(format!("{}{at}", hash.finalize().to_hex()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn now(dir: &Path, names: &[&str]) -> Vec<(String, Option<String>)> {
        let workspace = Workspace::open(&Root::plain(dir)).unwrap();
        with_imports(&workspace, names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn approvals_cover_imports_that_appear_later() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("bin/run.py", "import json\nfrom helper import go\n");
        put("bin/helper.py", "from deep import er\n");
        put("bin/deep/er.py", "x = 1\n");
        put("other.py", "x = 1\n");
        let before = now(dir.path(), &["bin/run.py"]);
        put("other.py", "x = 2\n");
        assert_eq!(now(dir.path(), &["bin/run.py"]), before, "what is not imported does not count");
        for (name, text) in [
            ("bin/deep/er.py", "x = 2\n"),
            ("bin/helper.py", "from deep import er\ner.x = 7\n"),
            ("bin/json.py", "a module of one's own in place of the library's"),
            ("bin/deep/__init__.py", ""),
        ] {
            let before = now(dir.path(), &["bin/run.py"]);
            put(name, text);
            assert_ne!(now(dir.path(), &["bin/run.py"]), before, "{name}");
        }
    }

    #[test]
    fn labels_follow_the_resolved_path() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("out")).unwrap();
        std::fs::create_dir_all(at("src")).unwrap();
        std::fs::write(at("log"), "1").unwrap();
        let before = now(dir.path(), &["out/", "log/"]);
        std::fs::write(at("log"), "2").unwrap();
        std::fs::write(at("out/new"), "2").unwrap();
        assert_eq!(now(dir.path(), &["out/", "log/"]), before);
        std::fs::rename(at("out"), at("was")).unwrap();
        for to in ["src", "was", "/tmp", "nowhere"] {
            symlink(to, at("out")).unwrap();
            assert_ne!(now(dir.path(), &["out/", "log/"]), before, "{to}");
            std::fs::remove_file(at("out")).unwrap();
        }
        std::fs::rename(at("was"), at("out")).unwrap();
        assert_eq!(now(dir.path(), &["out/", "log/"]), before);
        // A link on the way to a file of the same content.
        std::fs::write(at("src/a.sh"), "same").unwrap();
        std::fs::write(at("out/a.sh"), "same").unwrap();
        let before = now(dir.path(), &["out/a.sh"]);
        std::fs::rename(at("out"), at("was")).unwrap();
        symlink("src", at("out")).unwrap();
        assert_ne!(now(dir.path(), &["out/a.sh"]), before);
    }
}
