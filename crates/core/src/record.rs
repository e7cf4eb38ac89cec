//! Records: declared things of every kind, kept in one store.
//!
//! A record has a spec (what somebody wants), a status (what was observed) and metadata. Its kind
//! is one [`KindInfo`]: functions that check a spec and compute indexes, columns and the next time
//! somebody must look. The store knows no kind. [`decide`] holds the decisions: pure functions from
//! the record that was read to the writes of one commit, each with its guard and its event.
//!
//! Writers compare and set: every write names the version it was decided on
//! ([`crate::store::Guard::RecordVersion`]). `changed` orders the last writes of all records. It is
//! never used twice, also when a name is deleted and created again; show it as the resource version.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use crate::ids::{ColonyId, IdError, RecordId, SessionId};
use crate::time::Timestamp;

pub mod bounds;
pub mod condition;
pub mod decide;
pub mod kind;
pub mod kinds;
pub mod label;
pub mod rows;
#[cfg(test)]
mod tests;

pub use bounds::FieldError;
pub use kind::{Column, KINDS, KindInfo, RecordVerb};
pub use label::Selector;

/// Longest name of a record, in bytes.
pub const MAX_NAME: usize = 253;
/// Longest name of a kind, in bytes.
pub const MAX_KIND: usize = 63;

/// What is wrong with a text, in words that follow it: `must begin with a letter`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SyntaxError(pub String);

/// The name of a kind, as it is stored: 1 to 63 small letters, digits and hyphens, the first of
/// which is a letter. The store may hold kinds that this program does not know.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(Box<str>);

impl Kind {
    /// # Errors
    ///
    /// The rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if text.len() > MAX_KIND || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(SyntaxError("must have 1 to 63 characters and begin with a letter".into()));
        }
        match text.chars().enumerate().find(|(_, c)| !plain(*c)) {
            None => Ok(Self(text.into())),
            Some((at, c)) => Err(SyntaxError(format!(
                "may have small letters, digits and hyphens, not {}",
                crate::name::shown(at, c)
            ))),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a record: labels of small letters, digits and hyphens, separated by dots, each of
/// which begins and ends with a letter or digit. 1 to [`MAX_NAME`] bytes; what DNS calls a
/// subdomain.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<str>);

impl Name {
    /// # Errors
    ///
    /// The rule that the text breaks, and where.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        bounds::check_subdomain(text)?;
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

macro_rules! shown_as_text {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
shown_as_text!(Kind Name);

/// What tells a record from all others at one moment. A later record may have the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// First, because lists are in the order of kind, colony and name.
    pub kind: Kind,
    pub colony: ColonyId,
    pub name: Name,
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// What a record exists for: it goes when its owner does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    Record(RecordId),
    Session(SessionId),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(id) => id.fmt(f),
            Self::Session(id) => id.fmt(f),
        }
    }
}

impl FromStr for Owner {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.strip_prefix(SessionId::PREFIX).is_some_and(|rest| rest.starts_with('_')) {
            true => text.parse().map(Self::Session),
            false => text.parse().map(Self::Record),
        }
    }
}

/// The owner that a document names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerWish {
    Is(Owner),
    /// The record of this kind and name: one that is there, or that the same apply creates.
    Named(Kind, Name),
}

/// An index entry that a kind computes: by it records are found without reading all of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term {
    /// The same syntax as a label key without a prefix.
    pub name: Cow<'static, str>,
    /// 0 to [`bounds::MAX_TERM`] bytes.
    pub value: String,
}

impl Term {
    pub fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name: Cow::Borrowed(name), value: value.into() }
    }
}

/// At most [`bounds::MAX_TERMS`].
pub type Terms = Vec<Term>;

/// A declared thing. Bounds of its parts are in [`bounds`].
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub id: RecordId,
    pub key: RecordKey,
    /// Grows by one with every write, from 1.
    pub version: u64,
    /// Grows by one with every change of the spec, from 1.
    pub generation: u64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub owner: Option<Owner>,
    /// An object: what is wanted.
    pub spec: Value,
    /// An object: what was observed. `conditions` in it is a list, see [`condition`].
    pub status: Value,
    /// Computed by the kind at every write.
    pub terms: Terms,
    /// When somebody must look at it again (a tick, a retry). Computed by the kind at every write.
    pub due: Option<Timestamp>,
    /// When it is to be deleted.
    pub expires_at: Option<Timestamp>,
    /// Since when it is being deleted; it stays until it has no finalizer.
    pub deleting: Option<Timestamp>,
    /// Who must clean up before it may go.
    pub finalizers: Vec<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Who wrote it last.
    pub written_by: String,
    /// The global number of the event of its last write. Filled by the store.
    pub changed: u64,
}

impl Record {
    /// When somebody must look at it for any reason: the earlier of `due` and `expires_at`.
    pub fn wake(&self) -> Option<Timestamp> {
        earlier(self.due, self.expires_at)
    }
}

/// The earlier of two times, of which either may be missing.
pub fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    [a, b].into_iter().flatten().min()
}
