//! Decides by their paths which files are private, and which are untrusted.
//!
//! A tool that reads one file labels its result by that file's real path. A command may read
//! anything in the workspace, whatever its text is, so its result gets the labels of all readable
//! files: [`FileLabels::in_reach`] searches for them.
//!
//! It cannot detect a private file under another name, or a hard link to one.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use overmind_core::tool::Labels;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use serde_json::{Map, Value};

use crate::answer::{brief, untrusted};
use crate::glob::matches;
use crate::workspace::{Root, Workspace};

/// Maximum number of entries that are read; a larger workspace gets all labels.
const MAX_SCANNED: usize = 50_000;
const MAX_LEVELS: usize = 32;
/// Directories with generated or downloaded files: full of test keys, and easy to rebuild. A file
/// in them that is read by its path is labelled anyway.
const PASSED_OVER: [&[u8]; 5] = [b".git", b"node_modules", b"target", b".venv", b"__pycache__"];

const PRIVATE: [&str; 20] = [
    ".env",
    ".env.*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    "**/secrets/**",
    "**/.ssh/**",
    "**/.aws/**",
    "**/.gnupg/**",
    "**/.kube/**",
];
/// Directories with files of MCP servers.
const UNTRUSTED: [&str; 1] = [".overmind_runs/*/artifacts/**"];

/// Globs over paths relative to the workspace: `?`, `*`, `**`. A glob without a slash matches the
/// file's name alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLabels {
    pub private: Vec<String>,
    pub untrusted: Vec<String>,
}

impl Default for FileLabels {
    /// By default, keys and credentials with their usual names are private; artifacts of MCP
    /// servers are untrusted.
    fn default() -> Self {
        let own = |all: &[&str]| all.iter().map(|glob| (*glob).to_owned()).collect();
        Self { private: own(&PRIVATE), untrusted: own(&UNTRUSTED) }
    }
}

impl FileLabels {
    /// The labels of one file by its path, relative to the workspace.
    pub fn of(&self, path: &str) -> Labels {
        let name = path.rsplit('/').next().unwrap_or(path);
        let any = |globs: &[String]| {
            globs.iter().any(|glob| matches(glob, if glob.contains('/') { path } else { name }))
        };
        Labels { untrusted: any(&self.untrusted), private: any(&self.private) }
    }

    /// Adds the labels of a file to the fields of a result about it.
    pub(crate) fn mark(&self, fields: Map<String, Value>, path: &str) -> Map<String, Value> {
        put(fields, self.of(path), &format!("file {}", brief(path)))
    }

    /// The labels of everything that a command may read: those of all files together. A workspace
    /// that is too large to search gets every label in use. Blocks.
    pub(crate) fn in_reach(&self, root: &Root) -> Labels {
        let all =
            Labels { untrusted: !self.untrusted.is_empty(), private: !self.private.is_empty() };
        let mut scan = Scan { labels: self, all, found: Labels::default(), scanned: 0 };
        let opened = Workspace::open(root).and_then(|root| root.open_dir(Path::new(".")));
        match opened {
            Ok(dir) => {
                scan.dir(&dir, "", MAX_LEVELS);
                scan.found
            }
            // In this case the command does not start either.
            Err(_) => Labels::default(),
        }
    }
}

/// Adds labels to the fields of a result.
pub(crate) fn put(
    mut fields: Map<String, Value>,
    labels: Labels,
    source: &str,
) -> Map<String, Value> {
    if labels.private {
        fields.insert(Labels::PRIVATE.into(), true.into());
    }
    if labels.untrusted { untrusted(fields, source) } else { fields }
}

struct Scan<'a> {
    labels: &'a FileLabels,
    all: Labels,
    found: Labels,
    scanned: usize,
}

impl Scan<'_> {
    fn dir(&mut self, dir: &OwnedFd, prefix: &str, levels: usize) {
        let Ok(entries) = Dir::read_from(dir) else { return };
        for entry in entries.flatten() {
            if self.found == self.all {
                return;
            }
            if self.scanned == MAX_SCANNED || levels == 0 {
                self.found = self.all;
                return;
            }
            self.scanned += 1;
            let name: &CStr = entry.file_name();
            let name = name.to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let path = format!("{prefix}{}", String::from_utf8_lossy(name));
            match entry.file_type() {
                FileType::Directory => self.below(dir, name, &path, levels),
                // Some file systems do not report the type.
                FileType::Unknown => {
                    self.found |= self.labels.of(&path);
                    self.below(dir, name, &path, levels);
                }
                _ => self.found |= self.labels.of(&path),
            }
        }
    }

    fn below(&mut self, dir: &OwnedFd, name: &[u8], path: &str, levels: usize) {
        if PASSED_OVER.contains(&name) {
            return;
        }
        let flags = OFlags::RDONLY
            | OFlags::DIRECTORY
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        if let Ok(below) = rustix::fs::openat(dir, name, flags, Mode::empty()) {
            self.dir(&below, &format!("{path}/"), levels - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_credentials_are_private_and_code_about_them_is_not() {
        let labels = FileLabels::default();
        for (path, wanted) in [
            (".env", true),
            ("app/.env.local", true),
            ("environment.rs", false),
            ("deploy/server.pem", true),
            ("secrets/db.txt", true),
            ("a/secrets/b/c", true),
            ("src/secrets.rs", false),
            ("id_rsa.pub", true),
            ("src/id_map.rs", false),
            (".ssh/config", true),
            ("README.md", false),
        ] {
            assert_eq!(labels.of(path).private, wanted, "{path}");
        }
        assert!(labels.of(".overmind_runs/ses_1/artifacts/mcp/web/page.md").untrusted);
        assert!(!labels.of(".overmind_runs/ses_1/out.txt").untrusted);
    }

    #[test]
    fn a_workspace_has_the_labels_of_its_files_but_not_of_fetched_ones() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        };
        let labels = FileLabels::default();
        put("src/main.rs");
        put("node_modules/tls/test.pem");
        assert_eq!(labels.in_reach(&Root::plain(dir.path())), Labels::default());
        put("deep/er/.env");
        assert_eq!(
            labels.in_reach(&Root::plain(dir.path())),
            Labels { untrusted: false, private: true }
        );
        put(".overmind_runs/s/artifacts/mcp/x");
        assert_eq!(
            labels.in_reach(&Root::plain(dir.path())),
            Labels { untrusted: true, private: true }
        );
        let none = FileLabels { private: Vec::new(), untrusted: Vec::new() };
        assert_eq!(none.in_reach(&Root::plain(dir.path())), Labels::default());
    }
}
