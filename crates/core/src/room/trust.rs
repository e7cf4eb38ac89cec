//! What a project orders to be run, and whether an admin confirmed it.
//!
//! A project's file names commands, services and containers. They come with the repository, so
//! whoever wrote the repository wrote them: nothing of it runs before an admin has confirmed this
//! project with this content of its file. A changed file is asked about again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Most projects that are confirmed at once.
pub const MAX_TRUSTED: usize = 10_000;

/// What an admin confirmed of one project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustGiven {
    /// The hash of the file, as [`RoomTrust::hash`] had it.
    pub hash: String,
    /// Whether `setup` has the host's network in a sandbox; otherwise that of its run.
    #[serde(default)]
    pub setup_network: bool,
    pub by: String,
    pub at: Timestamp,
}

/// Confirmed projects, by their top directory without links.
pub type TrustedProjects = BTreeMap<PathBuf, TrustGiven>;

/// A project, what its file orders, and what was confirmed of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomTrust {
    /// Its top directory, without links.
    pub project: PathBuf,
    /// Whether it is a git repository: elsewhere a session gets a room only where it asks for one.
    pub repository: bool,
    /// BLAKE3 of its file, in hex; `None` without a file.
    pub hash: Option<String>,
    /// What it orders, one line each, in the file's order: `setup: npm ci`. Empty: there is nothing
    /// to confirm.
    pub orders: Vec<String>,
    /// What was confirmed, of this content or an earlier one.
    pub given: Option<TrustGiven>,
}

impl RoomTrust {
    /// Whether its orders may be run.
    pub fn holds(&self) -> bool {
        self.orders.is_empty() || self.confirmed().is_some()
    }

    /// What was confirmed of the file as it is now.
    pub fn confirmed(&self) -> Option<&TrustGiven> {
        self.given.as_ref().filter(|given| self.hash.as_ref() == Some(&given.hash))
    }

    /// Why its orders are not run, and what to do.
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

/// A path as a shell reads it back.
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
            given,
        }
    }

    #[test]
    fn only_the_content_that_was_confirmed_may_be_run() {
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
