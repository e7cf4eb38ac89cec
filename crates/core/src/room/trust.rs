//! The commands and rights that a project's file requests (its *orders*), and an admin's
//! confirmation of them.
//!
//! A project's file names commands, services and containers. They come from the authors of the
//! repository, so nothing of it runs before an admin has confirmed this project with this content
//! of its file. A changed file must be confirmed again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Maximum number of confirmed projects at one time.
pub const MAX_TRUSTED: usize = 10_000;

/// An admin's confirmation of one project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustGiven {
    /// The hash of the file that was confirmed: see [`RoomTrust::hash`].
    pub hash: String,
    /// Whether `setup` uses the host's network in a sandbox. Otherwise it uses the network of its
    /// run.
    #[serde(default)]
    pub setup_network: bool,
    pub by: String,
    pub at: Timestamp,
}

/// Confirmed projects, by their top directory with links resolved.
pub type TrustedProjects = BTreeMap<PathBuf, TrustGiven>;

/// A project with the orders of its file and their confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomTrust {
    /// The project's top directory, with links resolved.
    pub project: PathBuf,
    /// Whether it is a git repository. Elsewhere a session gets an environment only if it requests
    /// one.
    pub repository: bool,
    /// BLAKE3 of its file, in hexadecimal; `None` without a file.
    pub hash: Option<String>,
    /// Its orders, one line each, in the file's order: `setup: npm ci`. If empty, no confirmation
    /// is needed.
    pub orders: Vec<String>,
    /// Directories of other repositories' objects that the repository's `objects/info/alternates`
    /// leads to, and that its runs can read.
    pub borrows: Vec<PathBuf>,
    /// The confirmation, for the present content or an earlier one.
    pub given: Option<TrustGiven>,
}

impl RoomTrust {
    /// Returns whether its orders may be run.
    pub fn holds(&self) -> bool {
        self.orders.is_empty() || self.confirmed().is_some()
    }

    /// Returns the confirmation of the file's present content.
    pub fn confirmed(&self) -> Option<&TrustGiven> {
        self.given.as_ref().filter(|given| self.hash.as_ref() == Some(&given.hash))
    }

    /// Returns why its orders are not run, and what to do.
    pub fn refusal(&self) -> String {
        let changed = match &self.given {
            Some(given) => format!("changed since {} confirmed it", given.by),
            None => "was not confirmed yet".to_owned(),
        };
        let (project, word) = (self.project.display(), shell_word(&self.project));
        let count = match self.orders.as_slice() {
            [one] => format!("runs `{one}`"),
            many => format!("runs or grants {} things", many.len()),
        };
        format!(
            "the .overmind.yml of {project} {count} and {changed}: an admin must read and confirm \
                it with `overmind trust {word}`; --here runs without its commands"
        )
    }
}

/// Quotes a path so that a shell reads it back unchanged.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(hash: &str) -> TrustGiven {
        let (hash, by) = (hash.to_owned(), "ann".to_owned());
        TrustGiven { hash, setup_network: false, by, at: Timestamp::from_micros(0) }
    }

    fn project(orders: &[&str], hash: Option<&str>, given: Option<TrustGiven>) -> RoomTrust {
        RoomTrust {
            project: "/home/ann/app".into(),
            repository: true,
            hash: hash.map(str::to_owned),
            orders: orders.iter().map(|&order| order.to_owned()).collect(),
            borrows: Vec::new(),
            given,
        }
    }

    #[test]
    fn only_the_confirmed_content_may_run() {
        assert!(project(&[], None, None).holds());
        assert!(project(&[], Some("a"), None).holds());
        assert!(!project(&["setup: x"], Some("a"), None).holds());
        assert!(project(&["setup: x"], Some("a"), Some(given("a"))).holds());
        let changed = project(&["setup: x"], Some("b"), Some(given("a")));
        assert!(!changed.holds());
        assert!(changed.refusal().contains("changed since ann confirmed it"));
        assert!(changed.refusal().contains("`overmind trust /home/ann/app`"));
        let spaced = RoomTrust { project: "/home/ann/my app".into(), ..changed };
        assert!(spaced.refusal().contains("`overmind trust '/home/ann/my app'`"));
    }
}
