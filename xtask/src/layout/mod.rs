//! The map kept true: checks of the whole tree that no compiler makes.
//!
//! [`check`] runs all of them in well under a second; `cargo xtask check`, CI's second step and
//! a test call it. Each rule is a function from a [`Tree`] to problems, so that a test can plant
//! a tree that breaks it.

mod code;
mod graph;
mod rules;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

pub use self::code::code_only;
pub use self::graph::{EDGES, Package, edges_in, graph_problems, packages};
pub use self::rules::{FORBIDDEN, LONG_FILES, UNSAFE_FILES, all_rules};

use crate::host::Host;
use crate::say;
use crate::steps::output;

/// One file of the tree: its path from the top, with `/`, and its text.
#[derive(Clone, Debug)]
pub struct File {
    pub path: String,
    pub text: String,
}

/// The text files that git tracks, or would track if asked to add all.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub files: Vec<File>,
}

impl Tree {
    /// Reads the checkout at `root`. Files that are not UTF-8 are left out.
    ///
    /// # Errors
    ///
    /// When git does not list the files, or a file cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        // CI's checkout may belong to another user; we only list files.
        let listed = output(Command::new("git").current_dir(root).args([
            "-c",
            "safe.directory=*",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ]))
        .context("listing the checkout's files")?;
        let mut files = Vec::new();
        for path in listed.split(|&byte| byte == 0).filter(|path| !path.is_empty()) {
            let path = std::str::from_utf8(path).context("a file's name is not UTF-8")?;
            let full: PathBuf = root.join(path);
            // Deleted but still in the index, or a link to a directory: nothing to look at.
            if !full.is_file() {
                continue;
            }
            let bytes = std::fs::read(&full).with_context(|| format!("reading {path}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(File { path: path.to_owned(), text });
            }
        }
        if files.is_empty() {
            bail!("git lists no file under {}", root.display());
        }
        Ok(Self { files })
    }

    /// The file at `path`, if there.
    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The Rust sources, each with comments and literals blanked.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }
}

/// Every problem of the checkout, one line each.
///
/// # Errors
///
/// When the checkout cannot be looked at; that is not the same as a problem.
pub fn check(host: &Host) -> Result<Vec<String>> {
    let tree = Tree::read(&host.root)?;
    let packages = packages(host)?;
    let mut problems = all_rules(&tree, &packages);
    problems.sort();
    Ok(problems)
}

/// `cargo xtask check`.
///
/// # Errors
///
/// When there is a problem; each is printed before.
pub fn command(host: &Host) -> Result<()> {
    let problems = check(host)?;
    for problem in &problems {
        say::note(problem);
    }
    match problems.len() {
        0 => Ok(()),
        n => bail!("the layout has {n} problem(s), listed above"),
    }
}
