//! Records: resources of every kind, kept in one store.
//!
//! A record has a spec (the desired state), a status (the observed state) and metadata. Its kind is
//! one [`KindInfo`]: functions that check a spec and compute indexes, columns and the time of the
//! next pass. The store does not know kinds. [`decide`] contains the decisions: pure functions from
//! the record that was read to the writes of one commit, each with its guard and its event.
//!
//! Writers use compare-and-set: every write names the version on which it was decided
//! ([`crate::store::Guard::RecordVersion`]). `changed` orders the last writes of all records. It is
//! never used twice, even if a name is deleted and created again. The API shows it as the resource
//! version.

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

/// A mistake in a text, as words that follow the text: `must begin with a letter`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SyntaxError(pub String);

/// The name of a kind as stored: 1 to 63 small letters, digits and hyphens, beginning with a
/// letter. The store may contain kinds that this program does not know.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(Box<str>);

impl Kind {
    /// # Errors
    ///
    /// Returns the rule that the text breaks.
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

/// The name of a record, a DNS subdomain: labels of small letters, digits and hyphens, separated by
/// dots. Each label begins and ends with a letter or digit. 1 to [`MAX_NAME`] bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<str>);

impl Name {
    /// # Errors
    ///
    /// Returns the rule that the text breaks, and where.
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

/// Identifies a record among those that exist at one time. A later record may have the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// The first field, because lists are sorted by kind, colony and name.
    pub kind: Kind,
    pub colony: ColonyId,
    pub name: Name,
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// The owner of a record, which is deleted when its owner is.
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
    /// The record of this kind and name, which exists or is created by the same apply.
    Named(Kind, Name),
}

/// An index entry that a kind computes, for finding records without reading all of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term {
    /// A name with the syntax of a label key without a prefix.
    pub name: Cow<'static, str>,
    /// A text of 0 to [`bounds::MAX_TERM`] bytes.
    pub value: String,
}

impl Term {
    pub fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name: Cow::Borrowed(name), value: value.into() }
    }
}

/// At most [`bounds::MAX_TERMS`] terms.
pub type Terms = Vec<Term>;

/// A resource. [`bounds`] contains the limits of its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub id: RecordId,
    pub key: RecordKey,
    /// Starts at 1 and increases by one with every write.
    pub version: u64,
    /// Starts at 1 and increases by one with every change of the spec.
    pub generation: u64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub owner: Option<Owner>,
    /// The desired state, an object.
    pub spec: Value,
    /// The observed state, an object. Its `conditions` are a list, see [`condition`].
    pub status: Value,
    /// Index entries, computed by the kind at every write.
    pub terms: Terms,
    /// Time of the next pass (a tick, a retry), computed by the kind at every write.
    pub due: Option<Timestamp>,
    /// Time at which it is deleted.
    pub expires_at: Option<Timestamp>,
    /// Time at which deletion was requested. The record stays until it has no finalizer.
    pub deleting: Option<Timestamp>,
    /// The controllers that must clean up before it is removed.
    pub finalizers: Vec<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Who wrote it last.
    pub written_by: String,
    /// The global number of the event of its last write. Set by the store.
    pub changed: u64,
}

impl Record {
    /// Returns the time of the next pass for any reason: the earlier of `due` and `expires_at`.
    pub fn wake(&self) -> Option<Timestamp> {
        earlier(self.due, self.expires_at)
    }
}

/// Returns the earlier of two times, either of which may be missing.
pub fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    [a, b].into_iter().flatten().min()
}
