//! Permissions in the mesh: a matrix of agents, verbs and patterns.
//!
//! An agent's own entry applies; without one, the entry `default`; without that, nothing is
//! allowed. A session may do what its agent *and* the agents of all sessions above it may do, so a
//! child never has more rights than its parents. An agent created by a spawn usually has no entry;
//! it then has the rights of its parents.
//!
//! This module does not authenticate: callers verify the identity before ([`crate::mesh`]).

mod glob;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::glob::{MAX_PATTERN, Segments, covers, matches, reaches};

/// The name of the entry for agents without their own.
pub const DEFAULT: &str = "default";
/// Maximum number of patterns in one list.
pub const MAX_PATTERNS: usize = 256;
/// Maximum number of agents in a matrix.
pub const MAX_ENTRIES: usize = 10_000;

/// An operation that needs a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Send to an agent, by its name.
    Message,
    /// Publish to a topic.
    Publish,
    /// Get what is published to topics.
    Subscribe,
    /// Read a key of the shared state.
    Read,
    /// Write or delete a key of the shared state.
    Write,
    /// Call a service, by its name.
    Api,
    /// Use a model, by its name.
    Model,
    /// Start a child session of an agent, by the agent's name or the new one's role.
    Spawn,
}

impl Verb {
    pub const ALL: [Self; 8] = [
        Self::Message,
        Self::Publish,
        Self::Subscribe,
        Self::Read,
        Self::Write,
        Self::Api,
        Self::Model,
        Self::Spawn,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
            Self::Read => "read",
            Self::Write => "write",
            Self::Api => "api",
            Self::Model => "model",
            Self::Spawn => "spawn",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == text)
    }

    /// Returns the list of [`Permissions`] for this verb.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Message => "can_message",
            Self::Publish => "can_publish",
            Self::Subscribe => "can_subscribe",
            Self::Read => "blackboard_read",
            Self::Write => "blackboard_write",
            Self::Api => "allowed_apis",
            Self::Model => "models",
            Self::Spawn => "spawn",
        }
    }

    /// Returns the separators of its objects.
    pub const fn segments(self) -> Segments {
        match self {
            Self::Publish | Self::Subscribe => Segments::DotOrSlash,
            Self::Message | Self::Read | Self::Write | Self::Api | Self::Model | Self::Spawn => {
                Segments::Slash
            }
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the server handles a message to an agent that does not read its messages itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnMessage {
    /// It stores the message until the agent reads it.
    Queue,
    /// It gives the message to a session that waits for input; a command that takes input gets a
    /// line.
    #[default]
    Wake,
    /// It does the same, and starts a session with the message as its task if there is none.
    Start,
}

/// One agent's row of the matrix. A missing list is empty and allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Permissions {
    pub can_message: Vec<String>,
    pub can_publish: Vec<String>,
    pub can_subscribe: Vec<String>,
    pub blackboard_read: Vec<String>,
    pub blackboard_write: Vec<String>,
    pub allowed_apis: Vec<String>,
    pub models: Vec<String>,
    pub spawn: Vec<String>,
    pub on_message: OnMessage,
}

impl Permissions {
    pub fn of(&self, verb: Verb) -> &[String] {
        match verb {
            Verb::Message => &self.can_message,
            Verb::Publish => &self.can_publish,
            Verb::Subscribe => &self.can_subscribe,
            Verb::Read => &self.blackboard_read,
            Verb::Write => &self.blackboard_write,
            Verb::Api => &self.allowed_apis,
            Verb::Model => &self.models,
            Verb::Spawn => &self.spawn,
        }
    }

    pub fn of_mut(&mut self, verb: Verb) -> &mut Vec<String> {
        match verb {
            Verb::Message => &mut self.can_message,
            Verb::Publish => &mut self.can_publish,
            Verb::Subscribe => &mut self.can_subscribe,
            Verb::Read => &mut self.blackboard_read,
            Verb::Write => &mut self.blackboard_write,
            Verb::Api => &mut self.allowed_apis,
            Verb::Model => &mut self.models,
            Verb::Spawn => &mut self.spawn,
        }
    }

    /// Checks the limits.
    ///
    /// # Errors
    ///
    /// Returns the list, and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        for verb in Verb::ALL {
            let (field, patterns) = (verb.field(), self.of(verb));
            if patterns.len() > MAX_PATTERNS {
                return Err(format!(
                    "{field} has {} patterns; {MAX_PATTERNS} is the most",
                    patterns.len()
                ));
            }
            for pattern in patterns {
                check_pattern(pattern).map_err(|why| format!("{field}: {why}"))?;
            }
        }
        Ok(())
    }
}

/// # Errors
///
/// Returns what is wrong with the pattern.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() || pattern.len() > MAX_PATTERN {
        return Err(format!("a pattern has 1 to {MAX_PATTERN} bytes"));
    }
    if crate::name::check_visible(pattern).is_err() {
        return Err("a pattern has no control characters".to_owned());
    }
    if pattern.contains("***") {
        return Err(format!(
            "`{pattern}`: the only wildcards are `*` (within a segment) and `**` (across segments)"
        ));
    }
    Ok(())
}

/// A matrix in a file: `{"permissions": {"agent": {…}}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermissionsFile {
    pub permissions: BTreeMap<String, Permissions>,
}

impl PermissionsFile {
    /// # Errors
    ///
    /// Returns the agent, the list, and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if self.permissions.len() > MAX_ENTRIES {
            return Err(format!("it has more than {MAX_ENTRIES} agents"));
        }
        for (agent, permissions) in &self.permissions {
            permissions.check().map_err(|why| format!("permissions.{agent}: {why}"))?;
        }
        Ok(())
    }
}

/// The origin of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    File,
    /// It was written through the API, and overrides the file's entry.
    Api,
}

/// Whether an operation is allowed, and by which rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// The list and the pattern that allowed it, or what is missing.
    pub rule: String,
    /// The permission that is missing; `None` if it is allowed.
    pub ask_for: Option<String>,
}

/// The part of one agent in the permissions of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    pub agent: String,
    /// The entry that applies: its own name or [`DEFAULT`]; `None` if there is none.
    pub entry: Option<String>,
    pub origin: Option<Origin>,
    pub permissions: Permissions,
}

/// The whole matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    entries: BTreeMap<String, (Permissions, Origin)>,
}

/// Returns whether a name has the form for spawned agents: `spawn_` and 12 hexadecimal digits.
pub fn is_spawned(agent: &str) -> bool {
    agent.strip_prefix("spawn_").is_some_and(|digits| {
        digits.len() == 12
            && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

impl Matrix {
    /// Creates the matrix. Entries of the API override those of the file.
    pub fn new(file: &BTreeMap<String, Permissions>, api: &BTreeMap<String, Permissions>) -> Self {
        let mut entries = BTreeMap::new();
        for (all, origin) in [(file, Origin::File), (api, Origin::Api)] {
            for (agent, permissions) in all {
                entries.insert(agent.clone(), (permissions.clone(), origin));
            }
        }
        Self { entries }
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns all entries by name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Permissions, Origin)> {
        self.entries
            .iter()
            .map(|(agent, (permissions, origin))| (agent.as_str(), permissions, *origin))
    }

    /// Returns the layer of one agent.
    pub fn layer(&self, agent: &str) -> Layer {
        let found =
            [agent, DEFAULT].into_iter().find_map(|name| Some((name, self.entries.get(name)?)));
        match found {
            Some((name, (permissions, origin))) => Layer {
                agent: agent.to_owned(),
                entry: Some(name.to_owned()),
                origin: Some(*origin),
                permissions: permissions.clone(),
            },
            None => Layer {
                agent: agent.to_owned(),
                entry: None,
                origin: None,
                permissions: Permissions::default(),
            },
        }
    }

    /// Returns the agents whose layers decide for the first of them: an agent, its parent, and so
    /// on. A spawned agent without an entry is left out, unless it is the last in the line.
    pub fn layers<'a>(&self, line: &'a [impl AsRef<str>]) -> Vec<&'a str> {
        let counts = |at: usize, agent: &str| {
            at + 1 == line.len() || self.entries.contains_key(agent) || !is_spawned(agent)
        };
        let line = line.iter().map(AsRef::as_ref).enumerate();
        line.filter(|(at, agent)| counts(*at, agent)).map(|(_, agent)| agent).collect()
    }

    /// Returns whether one agent alone may do this.
    pub fn may(&self, agent: &str, verb: Verb, object: &str) -> Verdict {
        self.verdict(agent, verb, object, |pattern| matches(pattern, object, verb.segments()))
    }

    /// Returns whether a session may do this. `line` is its agent, its parent's agent, and so on;
    /// all of them must allow it.
    pub fn may_in_line(&self, line: &[impl AsRef<str>], verb: Verb, object: &str) -> Verdict {
        self.all(line, |agent| self.may(agent, verb, object))
    }

    /// Returns whether a session may do this to everything that matches a pattern.
    pub fn may_pattern(&self, line: &[impl AsRef<str>], verb: Verb, wanted: &str) -> Verdict {
        self.all(line, |agent| {
            self.verdict(agent, verb, wanted, |pattern| covers(pattern, wanted, verb.segments()))
        })
    }

    /// Returns whether a session may do this to any key below `prefix`.
    pub fn may_beneath(&self, line: &[impl AsRef<str>], verb: Verb, prefix: &str) -> Verdict {
        self.all(line, |agent| {
            self.verdict(agent, verb, prefix, |pattern| reaches(pattern, prefix, verb.segments()))
        })
    }

    fn all(&self, line: &[impl AsRef<str>], one: impl Fn(&str) -> Verdict) -> Verdict {
        let mut first = None;
        for (at, agent) in self.layers(line).into_iter().enumerate() {
            let mut verdict = one(agent);
            if !verdict.allowed {
                if at > 0 {
                    verdict.rule =
                        format!("a child may no more than its parents: {}", verdict.rule);
                }
                return verdict;
            }
            first.get_or_insert(verdict);
        }
        first.unwrap_or_else(|| Verdict {
            allowed: false,
            rule: "nobody asks".to_owned(),
            ask_for: None,
        })
    }

    fn verdict(
        &self,
        agent: &str,
        verb: Verb,
        object: &str,
        fits: impl Fn(&str) -> bool,
    ) -> Verdict {
        let field = verb.field();
        let ask_for = || {
            Some(format!(
                "`{object}` in {field} of `{agent}`: overmind acl allow '{agent}' {verb} '{object}'"
            ))
        };
        let own =
            [agent, DEFAULT].into_iter().find_map(|name| Some((name, self.entries.get(name)?)));
        let Some((entry, (permissions, _))) = own else {
            let rule = format!("there is no entry `{agent}` and none `{DEFAULT}`");
            return Verdict { allowed: false, rule, ask_for: ask_for() };
        };
        match permissions.of(verb).iter().find(|pattern| fits(pattern)) {
            Some(pattern) => Verdict {
                allowed: true,
                rule: format!("{entry}.{field}: `{pattern}`"),
                ask_for: None,
            },
            None => {
                let rule = format!("no pattern of {entry}.{field} matches `{object}`");
                Verdict { allowed: false, rule, ask_for: ask_for() }
            }
        }
    }
}

#[cfg(test)]
mod tests;
