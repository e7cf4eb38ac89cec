//! The schema: forward-only migrations, one file each, and the connections to the database.

use std::path::Path;
use std::time::Duration;

use overmind_core::store::StoreError;
use rusqlite::{Connection, OpenFlags};

use crate::error::{Fault, Outcome};
use crate::files::{Header, read_header};

/// The migrations in order; a file's version is the number of migrations it has had. Released
/// migrations are never edited: a change is a new migration.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_initial.sql"),
    include_str!("../migrations/0002_memory.sql"),
    include_str!("../migrations/0003_attestation.sql"),
    include_str!("../migrations/0004_inbox.sql"),
    include_str!("../migrations/0005_memory_keys.sql"),
    include_str!("../migrations/0006_names.sql"),
    include_str!("../migrations/0007_commands.sql"),
    include_str!("../migrations/0008_rooms.sql"),
    include_str!("../migrations/0009_vault.sql"),
    include_str!("../migrations/0010_budgets.sql"),
    include_str!("../migrations/0011_mesh.sql"),
    include_str!("../migrations/0012_board_past.sql"),
    include_str!("../migrations/0013_artifacts.sql"),
    include_str!("../migrations/0014_records.sql"),
    include_str!("../migrations/0015_deleting.sql"),
    include_str!("../migrations/0016_session_owners.sql"),
    include_str!("../migrations/0017_agent_author.sql"),
    include_str!("../migrations/0018_inbox_owner.sql"),
    include_str!("../migrations/0019_costs_at_most.sql"),
    include_str!("../migrations/0020_due.sql"),
];

/// Marks a SQLite file as ours, so that another program's database is never migrated.
pub(crate) const APPLICATION_ID: i32 = 0x4f56_4d44;

/// The schema version that this program writes.
pub(crate) fn known_version() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("there are few migrations")
}

/// Checks, without changing data, whether a file may be opened for writing. If a process was killed
/// before its first commit, a rollback journal is beside the file. It is applied here, because
/// until then nobody can read the file.
///
/// # Errors
///
/// [`StoreError::TooNew`] for a newer schema, [`StoreError::Other`] for another program's database.
pub(crate) fn inspect(path: &Path) -> Result<(), StoreError> {
    match read_header(path)? {
        Header::Fresh => return Ok(()),
        Header::Sqlite => {}
    }
    let look = |conn: &Connection| -> Outcome<(u32, i32, bool)> {
        let version = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let application = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        let empty =
            conn.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))?;
        Ok((version, application, empty))
    };
    let looked = match open_reader(path).and_then(|conn| look(&conn)) {
        Err(fault) if fault.is_hot_journal() => open_to_undo(path).and_then(|conn| look(&conn)),
        other => other,
    };
    let (version, application, empty) =
        looked.map_err(|fault| fault.explain(path, "looking at the store"))?;
    if application != APPLICATION_ID && !(empty && application == 0) {
        return Err(StoreError::Other {
            attempt: format!("opening the store {}", path.display()),
            detail: "it is a SQLite database of another program; choose another path".into(),
        });
    }
    let known = known_version();
    if version > known {
        return Err(StoreError::TooNew { path: path.to_owned(), found: version, known });
    }
    Ok(())
}

/// Migrates the file to this program's schema, each step in its own transaction.
pub(crate) fn migrate(conn: &mut Connection) -> Outcome<()> {
    let found: u32 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    for (version, sql) in (1_u32..).zip(MIGRATIONS).filter(|(version, _)| *version > found) {
        let step = conn.transaction()?;
        step.execute_batch(sql)?;
        step.pragma_update(None, "user_version", version)?;
        step.commit()?;
        tracing::info!(schema = version, "migrated the store");
    }
    Ok(())
}

/// Opens the connection that writes. There is only one, besides the one that copies the write-ahead
/// log back (see [`crate::wal`]).
pub(crate) fn open_writer(path: &Path, max_bytes: Option<u64>) -> Outcome<Connection> {
    let conn = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    conn.busy_timeout(Duration::from_secs(1))?;
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(Fault::Refused(StoreError::Other {
            attempt: format!("opening the store {}", path.display()),
            detail: format!(
                "its file system cannot keep a write-ahead log (SQLite chose {mode}); choose a \
                 local disk"
            ),
        }));
    }
    // FULL means one fsync at every commit, before it is answered. Automatic checkpoints are off,
    // because they would run inside of a commit; see `wal`. The log file keeps its size, because
    // overwriting is cheaper than growing. Writes go to the newest pages of each table and index: 4
    // MiB of cache hold these, and more would only hold pages that are not used again.
    conn.execute_batch(
        "PRAGMA synchronous = FULL;
         PRAGMA foreign_keys = ON;
         PRAGMA trusted_schema = OFF;
         PRAGMA cell_size_check = ON;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA cache_size = -4096;",
    )?;
    if let Some(bytes) = max_bytes {
        let page: u32 = conn.query_row("PRAGMA page_size", [], |row| row.get(0))?;
        let pages = (bytes / u64::from(page.max(1))).clamp(1, u64::from(u32::MAX - 1));
        conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    }
    conn.set_prepared_statement_cache_capacity(96);
    Ok(conn)
}

/// Keeps the rollback journal of `conn` in memory. From here on it only makes commits, so the
/// journal has at most the pages of one commit and need not be written to a file that nobody reads.
pub(crate) fn undo_in_memory(conn: &Connection) -> Outcome<()> {
    Ok(conn.execute_batch("PRAGMA temp_store = MEMORY;")?)
}

/// Opens a connection that lets SQLite undo an unfinished transaction after a crash, which happens
/// at the first read. It changes nothing else.
fn open_to_undo(path: &Path) -> Outcome<Connection> {
    let conn = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    conn.busy_timeout(Duration::from_secs(1))?;
    conn.execute_batch("PRAGMA query_only = ON; PRAGMA trusted_schema = OFF;")?;
    Ok(conn)
}

/// A connection that only reads.
pub(crate) fn open_reader(path: &Path) -> Outcome<Connection> {
    let conn = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    conn.busy_timeout(Duration::from_secs(5))?;
    conn.execute_batch(
        "PRAGMA query_only = ON; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;",
    )?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        std::fs::write(&path, "").unwrap();
        let mut conn = open_writer(&path, None).unwrap();
        migrate(&mut conn).unwrap();
        (dir, conn)
    }

    #[test]
    fn a_file_with_the_journal_of_a_killed_process_is_rolled_back_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let (live, copy) = (dir.path().join("live.db"), dir.path().join("copy.db"));
        let conn = Connection::open(&live).unwrap();
        // A cache of a few pages: the transaction reaches the file before it is committed.
        conn.execute_batch(
            "PRAGMA cache_size = 2; PRAGMA application_id = 0x4f564d44; CREATE TABLE t (x);
             BEGIN; PRAGMA user_version = 999;
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50)
             INSERT INTO t SELECT randomblob(5000) FROM n;",
        )
        .unwrap();
        // The state after a kill at this moment: the files, without a lock holder.
        for suffix in ["", "-journal"] {
            let from = dir.path().join(format!("live.db{suffix}"));
            std::fs::copy(from, dir.path().join(format!("copy.db{suffix}"))).unwrap();
        }
        drop(conn);
        let refused = open_reader(&copy).and_then(|conn| {
            Ok(conn.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0))?)
        });
        assert!(refused.unwrap_err().is_hot_journal(), "a reader alone cannot undo it");
        inspect(&copy).unwrap();
        assert!(!dir.path().join("copy.db-journal").exists());
        let conn = open_reader(&copy).unwrap();
        assert_eq!(pragma(&conn, "user_version"), "0", "what was not committed never was");
    }

    fn pragma(conn: &Connection, name: &str) -> String {
        let sql = format!("SELECT CAST({name} AS TEXT) FROM pragma_{name}");
        conn.query_row(&sql, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn the_writer_syncs_every_commit_and_never_checkpoints_within_one() {
        let (_dir, conn) = fresh();
        assert_eq!(pragma(&conn, "synchronous"), "2");
        assert_eq!(pragma(&conn, "journal_mode"), "wal");
        let auto: i64 = conn.query_row("PRAGMA wal_autocheckpoint", [], |row| row.get(0)).unwrap();
        assert_eq!(auto, 0);
        assert_eq!(pragma(&conn, "foreign_keys"), "1");
        assert_eq!(pragma(&conn, "user_version"), known_version().to_string());
        assert_eq!(pragma(&conn, "application_id"), APPLICATION_ID.to_string());
    }

    #[test]
    fn migrating_is_idempotent() {
        let (_dir, mut conn) = fresh();
        migrate(&mut conn).unwrap();
        assert_eq!(pragma(&conn, "user_version"), known_version().to_string());
    }

    #[test]
    fn every_resource_has_its_colony_and_every_session_its_hive() {
        let (_dir, conn) = fresh();
        for table in [
            "agents",
            "agent_versions",
            "sessions",
            "inbox",
            "memory_items",
            "api_keys",
            "board",
            "letters",
            "subscriptions",
            "registrations",
            "artifacts",
            "records",
            "record_tombs",
        ] {
            let sql = format!("SELECT colony FROM {table}");
            assert!(conn.prepare(&sql).is_ok(), "{table}");
        }
        assert!(conn.prepare("SELECT hive FROM sessions").is_ok());
        let named = |sql: &str| -> (Vec<u8>, String) {
            conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
        };
        let (colony, name) = named("SELECT id, name FROM colonies");
        let default = overmind_core::ids::ColonyId::DEFAULT.as_u128().to_be_bytes();
        assert_eq!((colony.as_slice(), name.as_str()), (default.as_slice(), "default"));
        let (hive, name) = named("SELECT id, name FROM hives");
        let local = overmind_core::ids::HiveId::LOCAL.as_u128().to_be_bytes();
        assert_eq!((hive.as_slice(), name.as_str()), (local.as_slice(), "local"));
    }
}
