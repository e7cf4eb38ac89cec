//! The demo's repository: a real one, small, with a real bug and tests that show it.
//!
//! It is a shell script, because every machine has a shell.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FILES: &[(&str, &str)] = &[
    ("README.md", include_str!("project/README.md")),
    ("lib/slug.sh", include_str!("project/slug.sh")),
    ("test.sh", include_str!("project/test.sh")),
];

/// The replies and tool calls of the scripted agent.
pub(super) const SCRIPT: &str = include_str!("project/script.json");

/// The command that runs the tests.
pub(super) const TEST: &str = "sh test.sh";

#[derive(Debug)]
pub(super) struct Project {
    pub path: PathBuf,
    /// It is a git repository; false where there is no git.
    pub git: bool,
}

impl Project {
    /// Writes the files and, where git is installed, commits them.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        for (name, text) in FILES {
            let file = path.join(name);
            std::fs::create_dir_all(file.parent().unwrap_or(path))?;
            std::fs::write(file, text)?;
        }
        let steps: [&[&str]; 3] =
            [&["init", "--quiet"], &["add", "."], &["commit", "--quiet", "-m", "Slugs for links"]];
        let git = steps.iter().all(|step| git(path, step).is_ok_and(|done| done.status.success()));
        Ok(Self { path: path.to_owned(), git })
    }

    /// The changes since then, as a unified diff.
    pub(super) fn diff(&self) -> io::Result<String> {
        if self.git {
            let done = git(&self.path, &["diff", "--no-color", "--no-ext-diff"])?;
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        let mut all = String::new();
        for (name, before) in FILES {
            let after = std::fs::read_to_string(self.path.join(name))?;
            if after != *before {
                let diff = similar::TextDiff::from_lines(*before, after.as_str());
                let (a, b) = (format!("a/{name}"), format!("b/{name}"));
                all.push_str(&diff.unified_diff().header(&a, &b).to_string());
            }
        }
        Ok(all)
    }
}

/// Runs git without the settings, hooks and identity of the person at the machine.
fn git(path: &Path, args: &[&str]) -> io::Result<std::process::Output> {
    Command::new("git")
        .args(["-c", "user.name=demo", "-c", "user.email=demo@localhost"])
        .args(["-c", "init.defaultBranch=main", "-c", "core.hooksPath=/dev/null"])
        .args(["-c", "commit.gpgSign=false", "-C"])
        .arg(path)
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .stdin(Stdio::null())
        .output()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests_pass(path: &Path) -> bool {
        let done = Command::new("sh").arg("test.sh").current_dir(path).output().unwrap();
        done.status.success()
    }

    /// The edit that the script makes.
    fn edit() -> (String, String) {
        let script: serde_json::Value = serde_json::from_str(SCRIPT).unwrap();
        let calls = script["turns"].as_array().unwrap().iter().flat_map(|turn| {
            turn["calls"].as_array().unwrap().iter().filter(|call| call["name"] == "edit_file")
        });
        let args: Vec<_> = calls.map(|call| call["args"].clone()).collect();
        assert_eq!(args.len(), 1);
        let text = |key: &str| args[0][key].as_str().unwrap().to_owned();
        (text("old"), text("new"))
    }

    #[test]
    fn the_demo_tests_fail_before_the_edit_and_pass_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let project = Project::create(dir.path()).unwrap();
        assert!(!tests_pass(dir.path()));
        assert_eq!(project.diff().unwrap(), "");
        let (old, new) = edit();
        let file = dir.path().join("lib/slug.sh");
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.matches(&old).count(), 1, "the edit names one place");
        std::fs::write(&file, text.replace(&old, &new)).unwrap();
        assert!(tests_pass(dir.path()));
        let diff = project.diff().unwrap();
        assert!(
            diff.contains("-        tr -c 'a-z0-9'") && diff.contains("+        tr -cs 'a-z0-9'")
        );
    }

    #[test]
    fn without_git_overmind_computes_the_diff() {
        let dir = tempfile::tempdir().unwrap();
        let project = Project { git: false, ..Project::create(dir.path()).unwrap() };
        std::fs::write(dir.path().join("README.md"), "# slug\n").unwrap();
        let diff = project.diff().unwrap();
        assert!(diff.starts_with("--- a/README.md\n+++ b/README.md\n@@ "), "{diff}");
    }
}
