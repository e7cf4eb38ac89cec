//! Scopes of limits: the whole swarm, a colony, an agent, all sessions of a resource, one session
//! with its children, or an API key.

use std::fmt;
use std::str::FromStr;

use crate::ids::{AgentId, ColonyId, RecordId, SessionId};

/// From the widest to the narrowest. A call counts in every scope to which it belongs, and in each
/// session above its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Everything that this server does.
    Swarm,
    Colony(ColonyId),
    Agent(AgentId),
    /// All sessions that a record owns, such as a fleet or a ritual, with the sessions below them.
    /// A session counts in its owner and in each owner above that.
    Owner(RecordId),
    /// A session and all sessions below it.
    Session(SessionId),
    /// Calls outside of sessions: those with this API key, or with the admin token (`admin`).
    Key(KeyName),
}

impl Scope {
    /// Whether only admins raise limits of this scope: those that bind everybody.
    pub const fn of_admins(self) -> bool {
        match self {
            Self::Swarm | Self::Colony(_) => true,
            Self::Agent(_) | Self::Owner(_) | Self::Session(_) | Self::Key(_) => false,
        }
    }
}

/// The name of a caller, of at most [`KeyName::MAX`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyName([u8; Self::MAX]);

impl KeyName {
    /// Longest name in bytes. Keys with a longer name cannot have their own limits.
    pub const MAX: usize = 48;

    /// Creates a name; `None` if it is empty, too long or contains a NUL.
    pub fn of(name: &str) -> Option<Self> {
        if name.is_empty() || name.len() > Self::MAX || name.contains('\0') {
            return None;
        }
        let mut bytes = [0; Self::MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Self(bytes))
    }

    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(Self::MAX);
        std::str::from_utf8(&self.0[..len]).expect("it was made of a text")
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Swarm => f.write_str("swarm"),
            Self::Colony(id) => write!(f, "colony:{id}"),
            Self::Agent(id) => write!(f, "agent:{id}"),
            Self::Owner(id) => write!(f, "owner:{id}"),
            Self::Session(id) => write!(f, "session:{id}"),
            Self::Key(name) => write!(f, "key:{}", name.as_str()),
        }
    }
}

/// The error for a text that is not a scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a scope: swarm, colony:<id>, agent:<id>, owner:<uid>, session:<id> or key:<name>"
)]
pub struct ScopeError(String);

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        let wrong = || ScopeError(text.chars().take(64).collect());
        if text == "swarm" {
            return Ok(Self::Swarm);
        }
        let (kind, id) = text.split_once(':').ok_or_else(wrong)?;
        match kind {
            "colony" if id == ColonyId::DEFAULT_NAME => Ok(Self::Colony(ColonyId::DEFAULT)),
            "colony" => id.parse().map(Self::Colony).map_err(|_| wrong()),
            "agent" => id.parse().map(Self::Agent).map_err(|_| wrong()),
            "owner" => id.parse().map(Self::Owner).map_err(|_| wrong()),
            "session" => id.parse().map(Self::Session).map_err(|_| wrong()),
            "key" => KeyName::of(id).map(Self::Key).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}

impl serde::Serialize for Scope {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Scope {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_scope_texts_are_parsed() {
        let scopes = [
            Scope::Swarm,
            Scope::Colony(ColonyId::DEFAULT),
            Scope::Agent(AgentId::from_u128(7)),
            Scope::Owner(RecordId::from_u128(9)),
            Scope::Session(SessionId::from_u128(8)),
            Scope::Key(KeyName::of("ci: nightly").unwrap()),
            Scope::Key(KeyName::of(&"é".repeat(24)).unwrap()),
        ];
        for scope in scopes {
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
        assert_eq!("colony:default".parse(), Ok(Scope::Colony(ColonyId::DEFAULT)));
        for bad in [
            "",
            "Swarm",
            "agent",
            "agent:",
            "agent:bob",
            "owner:web",
            "session:agt_1",
            "key:",
            "fleet:x",
        ] {
            assert!(bad.parse::<Scope>().is_err(), "{bad}");
        }
        assert!(format!("key:{}", "x".repeat(49)).parse::<Scope>().is_err());
    }
}
