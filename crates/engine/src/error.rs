//! The errors of the engine.

use overmind_core::conflict::{Conflict, ConflictKind};
use overmind_core::store::StoreError;

/// Each variant tells the reader what to do; the API maps it to a status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The request is wrong: the message contains what, where and what would be right. `field` is
    /// empty if no single field is wrong.
    #[error("{message}")]
    Invalid { field: String, message: String },
    /// The credential is missing or wrong.
    #[error("{message}")]
    Unauthenticated { message: String },
    /// The caller is known but may not do this.
    #[error("{message}")]
    Forbidden { message: String },
    /// The project runs commands that no admin has confirmed.
    #[error("{message}")]
    Untrusted { message: String },
    /// `Run not found`, `Agent not found`, …
    #[error("{message}")]
    NotFound { message: String },
    /// The state of the object does not allow this: `Run is not awaiting input`. `what` names the
    /// object with its expected and its actual state, if that is a name or a version.
    #[error("{message}")]
    Conflict { message: String, what: Option<Box<Conflict>> },
    /// A bounded queue is full.
    #[error("{message}")]
    Busy { message: String },
    /// The server is draining, or its store cannot write now.
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

    /// A conflict with a message that is more helpful than that of `what`.
    pub fn conflict_of(what: Box<Conflict>, message: impl Into<String>) -> Self {
        Self::Conflict { message: message.into(), what: Some(what) }
    }

    /// Whether it is a conflict of this kind.
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
