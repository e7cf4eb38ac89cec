//! Converts the driver's errors to the port's. Only this module knows SQLite's error codes.

use std::io;
use std::path::Path;

use overmind_core::conflict::Conflict;
use overmind_core::store::StoreError;
use rusqlite::ErrorCode;
use rusqlite::ffi;

/// An internal error, before the file's path is added.
#[derive(Debug)]
pub(crate) enum Fault {
    Sql(rusqlite::Error),
    /// A stored value is invalid.
    Row {
        at: String,
        why: String,
    },
    /// The error is already the port's.
    Refused(StoreError),
}

pub(crate) type Outcome<T> = Result<T, Fault>;

impl From<rusqlite::Error> for Fault {
    fn from(err: rusqlite::Error) -> Self {
        Self::Sql(err)
    }
}

impl From<StoreError> for Fault {
    fn from(err: StoreError) -> Self {
        Self::Refused(err)
    }
}

/// How much an error affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only this commit failed; the others of its group are not affected.
    Commit,
    /// The transaction is lost, with every commit in it. The store continues.
    Group,
    /// The state of the disk is unknown. The writer must end.
    Store,
}

impl Fault {
    pub(crate) fn conflict(what: Box<Conflict>) -> Self {
        Self::Refused(StoreError::Conflict { what, guard: None })
    }

    /// Sets the index of the guard in the error, if it is a conflict.
    pub(crate) fn of_guard(mut self, at: u32) -> Self {
        if let Self::Refused(StoreError::Conflict { guard, .. }) = &mut self {
            *guard = Some(at);
        }
        self
    }

    pub(crate) fn missing(what: impl Into<String>) -> Self {
        Self::Refused(StoreError::NotFound { what: what.into() })
    }

    pub(crate) fn reach(&self) -> Reach {
        match self {
            Self::Refused(_) => Reach::Commit,
            Self::Row { .. } => Reach::Commit,
            Self::Sql(rusqlite::Error::SqliteFailure(err, _)) => reach_of(*err),
            // All others are mistakes in binding or reading one statement's values.
            Self::Sql(_) => Reach::Commit,
        }
    }

    /// Whether a uniqueness rule was violated.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(
            self.extended(),
            Some(ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY)
        )
    }

    /// Whether a reference has no target.
    pub(crate) fn is_dangling(&self) -> bool {
        self.extended() == Some(ffi::SQLITE_CONSTRAINT_FOREIGNKEY)
    }

    /// Whether a killed process left a transaction; only a writable connection can undo it.
    pub(crate) fn is_hot_journal(&self) -> bool {
        self.extended() == Some(ffi::SQLITE_READONLY_ROLLBACK)
    }

    fn extended(&self) -> Option<i32> {
        match self {
            Self::Sql(rusqlite::Error::SqliteFailure(err, _)) => Some(err.extended_code),
            Self::Sql(_) | Self::Row { .. } | Self::Refused(_) => None,
        }
    }

    /// Converts to the port's error. `attempt` names the operation: "reading the session".
    pub(crate) fn explain(self, path: &Path, attempt: &str) -> StoreError {
        match self {
            Self::Refused(err) => err,
            Self::Row { at, why } => {
                StoreError::Corrupt { path: path.to_owned(), detail: format!("{at}: {why}") }
            }
            Self::Sql(err) => explain_sql(&err, path, attempt),
        }
    }
}

fn reach_of(err: ffi::Error) -> Reach {
    match err.extended_code {
        // After a failed fsync the kernel may have dropped the pages and cleared the error, so
        // nothing written before can be relied on.
        ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC => return Reach::Store,
        _ => {}
    }
    match err.code {
        ErrorCode::ConstraintViolation
        | ErrorCode::TooBig
        | ErrorCode::TypeMismatch
        | ErrorCode::ParameterOutOfRange
        | ErrorCode::Unknown => Reach::Commit,
        _ => Reach::Group,
    }
}

fn explain_sql(err: &rusqlite::Error, path: &Path, attempt: &str) -> StoreError {
    let path = path.to_owned();
    let detail = format!("{attempt}: {err}");
    match err {
        rusqlite::Error::SqliteFailure(code, _) => match (code.code, code.extended_code) {
            // The shared-memory file could not grow, which also means that the disk is full.
            (ErrorCode::DiskFull, _) | (_, ffi::SQLITE_IOERR_SHMSIZE) => {
                StoreError::Full { path, detail }
            }
            (ErrorCode::ReadOnly | ErrorCode::PermissionDenied, _) => {
                StoreError::ReadOnly { path, detail }
            }
            (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => {
                StoreError::Locked { path, detail }
            }
            (ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase, _) => {
                StoreError::Corrupt { path, detail }
            }
            _ => StoreError::Other {
                attempt: format!("{attempt} in {}", path.display()),
                detail: err.to_string(),
            },
        },
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..) => StoreError::Corrupt { path, detail },
        _ => StoreError::Other {
            attempt: format!("{attempt} in {}", path.display()),
            detail: err.to_string(),
        },
    }
}

/// Converts an error of the file system to the port's.
pub(crate) fn explain_io(err: &io::Error, path: &Path, attempt: &str) -> StoreError {
    let path = path.to_owned();
    let detail = format!("{attempt}: {err}");
    match err.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StoreError::Full { path, detail }
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly { path, detail }
        }
        io::ErrorKind::NotFound => {
            StoreError::NotFound { what: format!("{} ({attempt})", path.display()) }
        }
        _ => StoreError::Other {
            attempt: format!("{attempt} {}", path.display()),
            detail: err.to_string(),
        },
    }
}

/// The error for a store that was closed normally.
pub(crate) fn closed() -> StoreError {
    StoreError::Closed { detail: "it was asked to close".into() }
}

#[cfg(test)]
mod tests {
    use overmind_core::conflict::ConflictKind;

    use super::*;

    fn sql(code: i32) -> Fault {
        Fault::Sql(rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("text".into())))
    }

    #[test]
    fn each_disk_failure_has_its_own_error() {
        let path = Path::new("/data/x.db");
        let name = |code| sql(code).explain(path, "committing");
        assert!(matches!(name(ffi::SQLITE_FULL), StoreError::Full { .. }));
        assert!(matches!(name(ffi::SQLITE_IOERR_SHMSIZE), StoreError::Full { .. }));
        assert!(matches!(name(ffi::SQLITE_READONLY), StoreError::ReadOnly { .. }));
        assert!(matches!(name(ffi::SQLITE_BUSY), StoreError::Locked { .. }));
        assert!(matches!(name(ffi::SQLITE_LOCKED), StoreError::Locked { .. }));
        assert!(matches!(name(ffi::SQLITE_CORRUPT), StoreError::Corrupt { .. }));
        assert!(matches!(name(ffi::SQLITE_NOTADB), StoreError::Corrupt { .. }));
        let StoreError::Other { attempt, detail } = name(ffi::SQLITE_IOERR_READ) else {
            panic!("a read error is none of the above")
        };
        assert_eq!(attempt, "committing in /data/x.db");
        assert_eq!(detail, "text");
    }

    #[test]
    fn a_failed_fsync_stops_the_writer_and_a_full_disk_does_not() {
        assert_eq!(sql(ffi::SQLITE_IOERR_FSYNC).reach(), Reach::Store);
        assert_eq!(sql(ffi::SQLITE_IOERR_WRITE).reach(), Reach::Group);
        assert_eq!(sql(ffi::SQLITE_FULL).reach(), Reach::Group);
        assert_eq!(sql(ffi::SQLITE_CONSTRAINT_UNIQUE).reach(), Reach::Commit);
        let taken = Conflict::taken(ConflictKind::Session, "x");
        assert_eq!(Fault::conflict(taken).reach(), Reach::Commit);
    }
}
