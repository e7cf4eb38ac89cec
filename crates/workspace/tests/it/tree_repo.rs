//! Real repositories for the tests of trees, and everything that is in one.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use overmind_workspace::Trees;
use overmind_workspace::git::Git;
use overmind_workspace::tree::{Prepared, Request};

/// A directory with a repository and a data directory in it.
pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) repo: PathBuf,
    pub(crate) trees: Trees,
}

impl World {
    /// A repository with three files and one commit on `main`.
    pub(crate) fn new() -> Self {
        Self::called("repo")
    }

    pub(crate) fn called(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let repo = dir.path().join(name);
        std::fs::create_dir(&repo).unwrap();
        git(&repo, &["init", "-q", "-b", "main"]);
        write(&repo, "a.txt", "one\n");
        write(&repo, "src/lib.rs", "fn f() {}\n");
        write(&repo, ".gitignore", "*.log\n.env*\n/node_modules/\n/private/\n");
        commit(&repo, "first");
        let trees = Trees::open(&dir.path().join("data"), Git::default()).unwrap();
        Self { dir, repo, trees }
    }

    pub(crate) fn prepare(&self, name: &str) -> Prepared {
        self.trees.prepare(&Request::new(&self.repo, name)).unwrap()
    }
}

/// Runs git like a user, without the configuration of this machine.
pub(crate) fn try_git(dir: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new("git")
        .current_dir(dir)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_AUTHOR_NAME", "A User")
        .env("GIT_AUTHOR_EMAIL", "user@localhost")
        .env("GIT_COMMITTER_NAME", "A User")
        .env("GIT_COMMITTER_EMAIL", "user@localhost")
        .env("GIT_CEILING_DIRECTORIES", std::env::temp_dir())
        .args(["-c", "protocol.file.allow=always", "-c", "safe.directory=*"])
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    try_git(dir, args).unwrap_or_else(|err| panic!("git {args:?} in {}: {err}", dir.display()))
}

pub(crate) fn write(dir: &Path, path: &str, text: &str) {
    let path = dir.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

pub(crate) fn script(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

pub(crate) fn commit(dir: &Path, message: &str) -> String {
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-q", "--allow-empty", "-m", message]);
    git(dir, &["rev-parse", "HEAD"])
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

/// Everything beneath a directory: each path with its mode and contents.
pub(crate) fn everything(dir: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let contents = if meta.is_dir() {
                left.push(path.clone());
                Vec::new()
            } else if meta.is_symlink() {
                std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if meta.is_file() {
                std::fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            all.insert(path, (meta.permissions().mode(), contents));
        }
    }
    all
}

/// A repository's own state, without the references of Overmind.
pub(crate) fn users_part(repo: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut all = everything(repo);
    all.retain(|path, _| {
        let text = path.to_string_lossy();
        !text.contains("/objects/") && !text.contains("/refs/overmind")
    });
    all
}

/// The differences, for messages.
pub(crate) fn difference(
    before: &BTreeMap<PathBuf, (u32, Vec<u8>)>,
    after: &BTreeMap<PathBuf, (u32, Vec<u8>)>,
) -> Vec<PathBuf> {
    let changed = before.iter().filter(|(path, what)| after.get(*path) != Some(what));
    let new = after.keys().filter(|path| !before.contains_key(*path));
    changed.map(|(path, _)| path.clone()).chain(new.cloned()).collect()
}
