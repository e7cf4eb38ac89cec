//! Kinds: what the program knows about one sort of record. A further kind is a row in [`KINDS`].

use serde_json::Value;

use super::{FieldError, Record, Terms, kinds};
use crate::nearest::nearest;
use crate::row::Role;
use crate::time::Timestamp;

/// What somebody does with records of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordVerb {
    /// Reads one, a list, or changes.
    Read,
    /// Creates one or changes its spec and metadata.
    Put,
    /// Changes its status, which only the program itself does.
    Status,
    Delete,
}

/// A column of a table of records.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// In capitals: `NEXT`.
    pub name: &'static str,
    /// Shown only on request (`-o wide`).
    pub is_wide: bool,
    /// The cell, without control characters; empty when there is nothing to say.
    pub cell: fn(&Record, Timestamp) -> String,
}

/// A kind. Function pointers and no generics: what handles records is compiled once.
#[derive(Clone, Copy, Debug)]
pub struct KindInfo {
    /// Singular, as a [`super::Kind`]: `ritual`.
    pub name: &'static str,
    pub plural: &'static str,
    /// Other words for it: short forms and those of other programs.
    pub aliases: &'static [&'static str],
    /// All mistakes of a spec, with paths that begin with `spec`. Size and depth are checked before.
    pub check: fn(&Value) -> Vec<FieldError>,
    pub terms: fn(&Record) -> Terms,
    /// When somebody must look at the record again, as of now. `None`: only after a change.
    pub due: fn(&Record, Timestamp) -> Option<Timestamp>,
    /// The least role that may do this.
    pub role: fn(RecordVerb) -> Role,
    /// Between the columns `NAME` and `AGE`, which every kind has.
    pub columns: &'static [Column],
    /// The JSON Schema of the spec.
    pub schema: fn() -> Value,
    /// Of a kind that is only shown: the commands that change what it shows. Records of it are never
    /// written.
    pub changed_by: Option<&'static str>,
}

/// All kinds of the product, by name.
pub const KINDS: &[KindInfo] = &[
    kinds::shown::AGENT,
    kinds::shown::AKASHA,
    kinds::shown::COLONY,
    kinds::context::CONTEXT,
    kinds::shown::CORTEX,
    kinds::fleet::FLEET,
    kinds::shown::HIVE,
    kinds::fleet::LINEAGE,
    kinds::shown::MEMORY,
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

/// A word that names no kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no kind `{given}`{}", .meant.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default())]
pub struct UnknownKind {
    /// At most 64 characters of it.
    pub given: String,
    pub meant: Option<&'static str>,
}

/// The kind that a word names: its name, its plural or an alias, whatever the case.
///
/// # Errors
///
/// [`UnknownKind`] with the nearest word.
pub fn find<'k>(kinds: &'k [KindInfo], word: &str) -> Result<&'k KindInfo, UnknownKind> {
    let given: String = word.chars().take(64).collect();
    let small = given.to_ascii_lowercase();
    let unknown = || {
        let meant = nearest(&small, kinds.iter().flat_map(words));
        UnknownKind { given: given.clone(), meant }
    };
    kinds.iter().find(|kind| words(kind).any(|known| known == small)).ok_or_else(unknown)
}

/// All words for a kind.
pub fn words(kind: &KindInfo) -> impl Iterator<Item = &'static str> {
    [kind.name, kind.plural].into_iter().chain(kind.aliases.iter().copied())
}
