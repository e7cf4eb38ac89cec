//! Kinds: the program's definition of each sort of record. To add a kind, add a row in [`KINDS`].

use serde_json::Value;

use super::{FieldError, Record, Terms, kinds};
use crate::nearest::nearest;
use crate::row::Role;
use crate::time::Timestamp;

/// An operation on records of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordVerb {
    /// Reads one record, a list, or changes.
    Read,
    /// Creates a record or changes its spec and metadata.
    Put,
    /// Changes the status, which only the program itself does.
    Status,
    Delete,
}

/// A column of a table of records.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The title in capitals: `NEXT`.
    pub name: &'static str,
    /// Shown only on request (`-o wide`).
    pub is_wide: bool,
    /// Returns the text of a cell, without control characters; may be empty.
    pub cell: fn(&Record, Timestamp) -> String,
}

/// A kind. It has function pointers and no generics, so that code for records is compiled once.
#[derive(Clone, Copy, Debug)]
pub struct KindInfo {
    /// The name, singular, as a [`super::Kind`]: `ritual`.
    pub name: &'static str,
    pub plural: &'static str,
    /// Other names: short forms, and names from other programs.
    pub aliases: &'static [&'static str],
    /// Returns all mistakes in a spec, with paths that begin with `spec`. Size and depth are
    /// checked before.
    pub check: fn(&Value) -> Vec<FieldError>,
    pub terms: fn(&Record) -> Terms,
    /// Returns the time of the record's next pass. `None`: only after a change.
    pub due: fn(&Record, Timestamp) -> Option<Timestamp>,
    /// Returns the lowest role that may do this.
    pub role: fn(RecordVerb) -> Role,
    /// The columns between `NAME` and `AGE`, which every kind has.
    pub columns: &'static [Column],
    /// Returns the JSON Schema of the spec.
    pub schema: fn() -> Value,
    /// For a kind whose objects are stored elsewhere: the commands that change them. Records of
    /// such a kind are never written.
    pub changed_by: Option<&'static str>,
}

/// All kinds of the product, by name.
pub const KINDS: &[KindInfo] = &[
    kinds::shown::AGENT,
    kinds::shown::AKASHA,
    kinds::colony::COLONY,
    kinds::context::CONTEXT,
    kinds::shown::CORTEX,
    kinds::fleet::FLEET,
    kinds::shown::HIVE,
    kinds::fleet::LINEAGE,
    kinds::shown::MEMORY,
    kinds::memory_claim::MEMORY_CLAIM,
    kinds::shown::ORACLE,
    kinds::fleet::PACK,
    kinds::project::PROJECT,
    kinds::quest::QUEST,
    kinds::ritual::RITUAL,
    kinds::shown::SECRET,
    kinds::fleet::SENTINEL,
    kinds::shown::SESSION,
    kinds::shown::SWARM,
    kinds::shown::WEAVER,
];

/// The error for a word that is not a kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no kind `{given}`{}", .meant.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default())]
pub struct UnknownKind {
    /// The word, at most 64 characters of it.
    pub given: String,
    pub meant: Option<&'static str>,
}

/// Returns the kind for a name, plural or alias, in any case.
///
/// # Errors
///
/// [`UnknownKind`] with the most similar word.
pub fn find<'k>(kinds: &'k [KindInfo], word: &str) -> Result<&'k KindInfo, UnknownKind> {
    let given: String = word.chars().take(64).collect();
    let small = given.to_ascii_lowercase();
    let unknown = || {
        let meant = nearest(&small, kinds.iter().flat_map(words));
        UnknownKind { given: given.clone(), meant }
    };
    kinds.iter().find(|kind| words(kind).any(|known| known == small)).ok_or_else(unknown)
}

/// Returns all names of a kind.
pub fn words(kind: &KindInfo) -> impl Iterator<Item = &'static str> {
    [kind.name, kind.plural].into_iter().chain(kind.aliases.iter().copied())
}
