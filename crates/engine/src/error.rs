//! What the engine answers when it does not do what was asked.

use overmind_core::conflict::{Conflict, ConflictKind};
use overmind_core::store::StoreError;

/// Each variant says what the reader can do about it; the surface maps it to a status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The request itself is wrong: what, where and what would be right. `field` is empty when
    /// no single field is to blame.
    #[error("{message}")]
    Invalid { field: String, message: String },
    /// No or a wrong credential.
    #[error("{message}")]
    Unauthenticated { message: String },
    /// The caller is known and may not do this.
    #[error("{message}")]
    Forbidden { message: String },
    /// The project orders what no admin has confirmed.
    #[error("{message}")]
    Untrusted { message: String },
    /// `Run not found`, `Agent not found`, …
    #[error("{message}")]
    NotFound { message: String },
    /// The thing stands in a state that does not allow this: `Run is not awaiting input`. `what`: which
    /// thing, what it was taken for and what was found, where that is a name or a version.
    #[error("{message}")]
    Conflict { message: String, what: Option<Box<Conflict>> },
    /// A bounded queue is full.
    #[error("{message}")]
    Busy { message: String },
    /// The server drains, or its store cannot write now.
    #[error("{message}")]
    Unavailable { message: String },
    #[error(transparent)]
    Store(StoreError),
}

impl EngineError {
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::Invalid { field: field.to_owned(), message: message.into() }
    }

    pub fn not_found(what: &str) -> Self {
        Self::NotFound { message: format!("{what} not found") }
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Self::Conflict { message: message.into(), what: None }
    }

    /// A conflict in words that help more than those of `what`.
    pub fn conflict_of(what: Box<Conflict>, message: impl Into<String>) -> Self {
        Self::Conflict { message: message.into(), what: Some(what) }
    }

    /// Whether it is a conflict with something of this sort.
    pub fn is_conflict_of(&self, kind: ConflictKind) -> bool {
        matches!(self, Self::Conflict { what: Some(what), .. } if what.kind == kind)
    }
}

impl From<StoreError> for EngineError {
    fn from(err: StoreError) -> Self {
        match err {
            StoreError::Conflict { what, .. } => {
                let message = what.to_string();
                Self::conflict_of(what, message)
            }
            StoreError::Full { .. }
            | StoreError::ReadOnly { .. }
            | StoreError::Locked { .. }
            | StoreError::Closed { .. } => Self::Unavailable { message: err.to_string() },
            StoreError::NotFound { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Lost { .. }
            | StoreError::TooNew { .. }
            | StoreError::Other { .. } => Self::Store(err),
        }
    }
}
