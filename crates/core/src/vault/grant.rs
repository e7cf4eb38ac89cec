//! Grants: which agents may use which secrets and services. Everything that is not granted is
//! forbidden.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::glob;
use crate::time::Timestamp;

/// Maximum number of grants of one vault.
pub const MAX_GRANTS: usize = 1000;
/// Longest pattern, in bytes.
pub const MAX_PATTERN: usize = 200;

/// The kind of object of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantKind {
    /// The secret itself, in the environment of a command. Every process of the command can read
    /// it.
    Secret,
    /// Calls of a service. The key stays in the server.
    Service,
}

impl GrantKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::Service => "service",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Secret, Self::Service].into_iter().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for GrantKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Lets agents use secrets or services.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Grant {
    /// A pattern for names of agents; `*` matches any characters. Case-sensitive.
    pub agent: String,
    pub kind: GrantKind,
    /// A pattern for names of secrets or services, in the same form.
    pub object: String,
}

/// A grant as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRow {
    pub grant: Grant,
    pub created_at: Timestamp,
    pub created_by: String,
}

impl Grant {
    /// # Errors
    ///
    /// Returns which of the two patterns is wrong, and how.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for (field, pattern) in [("agent", &self.agent), ("object", &self.object)] {
            if pattern.is_empty() || pattern.len() > MAX_PATTERN {
                return Err((field, format!("it has 1 to {MAX_PATTERN} bytes")));
            }
            if pattern.chars().any(char::is_control) {
                return Err((field, "it holds a control character".to_owned()));
            }
        }
        let plain = |b: u8| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-' | b'.' | b'*')
        };
        if !self.object.bytes().all(plain) {
            return Err(("object", "names have small letters, digits, `_`, `-`, `.`".to_owned()));
        }
        Ok(())
    }

    /// Returns whether it applies to agents of this name.
    pub fn is_for(&self, agent: &str) -> bool {
        glob::name(&self.agent, agent)
    }

    pub fn covers(&self, agent: &str, kind: GrantKind, object: &str) -> bool {
        self.kind == kind && self.is_for(agent) && glob::name(&self.object, object)
    }
}

/// Returns the first of `grants` that lets an agent use the object.
pub fn by_which<'a>(
    grants: impl IntoIterator<Item = &'a Grant>,
    agent: &str,
    kind: GrantKind,
    object: &str,
) -> Option<&'a Grant> {
    grants.into_iter().find(|grant| grant.covers(agent, kind, object))
}

/// Returns a command that creates the missing grant.
pub fn remedy(agent: &str, kind: GrantKind, object: &str) -> String {
    let quoted = agent.replace('\'', "'\\''");
    let flag = match kind {
        GrantKind::Secret => "--secret",
        GrantKind::Service => "--service",
    };
    format!("overmind vault grant '{quoted}' {flag} {object}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(agent: &str, kind: GrantKind, object: &str) -> Grant {
        Grant { agent: agent.into(), kind, object: object.into() }
    }

    #[test]
    fn only_granted_secrets_are_readable() {
        let grants = [
            grant("build-*", GrantKind::Service, "openai"),
            grant("*", GrantKind::Secret, "public_*"),
        ];
        let may = |agent, kind, object| by_which(&grants, agent, kind, object).is_some();
        assert!(may("build-1", GrantKind::Service, "openai"));
        assert!(!may("build-1", GrantKind::Service, "anthropic"));
        assert!(!may("rebuild-1", GrantKind::Service, "openai"));
        assert!(!may("build-1", GrantKind::Secret, "openai"));
        assert!(may("anyone", GrantKind::Secret, "public_key"));
        assert!(!may("anyone", GrantKind::Secret, "private_key"));
        assert!(by_which(&[], "build-1", GrantKind::Service, "openai").is_none());
    }

    #[test]
    fn patterns_that_never_match_are_refused() {
        assert!(grant("a", GrantKind::Secret, "ok_*").check().is_ok());
        assert_eq!(grant("", GrantKind::Secret, "x").check().unwrap_err().0, "agent");
        assert_eq!(grant("a\n", GrantKind::Secret, "x").check().unwrap_err().0, "agent");
        assert_eq!(grant("a", GrantKind::Secret, "X").check().unwrap_err().0, "object");
        assert_eq!(grant("a", GrantKind::Secret, "").check().unwrap_err().0, "object");
    }
}
