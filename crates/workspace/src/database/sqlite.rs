//! A SQLite file of the session's own.

use std::path::{Path, PathBuf};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

/// Why a copy could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SqliteError {
    #[error("copying the database {} to {}", from.display(), to.display())]
    Copy {
        from: PathBuf,
        to: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("copying the database {}: another program keeps it locked", from.display())]
    Busy { from: PathBuf },
    #[error("running {} on {}", script.display(), to.display())]
    Script {
        script: PathBuf,
        to: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("{what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is a tracked file of the repository: name another `file` for the database", path.display())]
    Tracked { path: PathBuf },
}

/// Copies a database with SQLite's backup, so that a concurrent writer cannot damage it, including
/// its write-ahead log. The copy gets its name when it is complete.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), SqliteError> {
    let failed = |source| SqliteError::Copy { from: from.to_owned(), to: to.to_owned(), source };
    let file = |what, path: &Path| {
        let path = path.to_owned();
        move |source| SqliteError::File { what, path, source }
    };
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).map_err(file("making the directory", parent))?;
    }
    let partial = beside(to, ".overmind-partial");
    remove(&partial)?;
    // The path was checked before: a link that was created since may lead elsewhere.
    let plain = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let source = Connection::open_with_flags(from, plain);
    let source = source.map_err(failed)?;
    let mut target = Connection::open(&partial).map_err(failed)?;
    {
        let backup = Backup::new(&source, &mut target).map_err(failed)?;
        let mut busy = 0;
        loop {
            match backup.step(2000).map_err(failed)? {
                StepResult::Done => break,
                StepResult::More => busy = 0,
                // Another process is writing, so this tries again. (The enum belongs to another
                // crate.)
                _ => {
                    busy += 1;
                    if busy > 200 {
                        return Err(SqliteError::Busy { from: from.to_owned() });
                    }
                    std::thread::sleep(std::time::Duration::from_millis(25));
                }
            }
        }
    }
    drop(target);
    std::fs::rename(&partial, to).map_err(file("putting the copy at", to))?;
    Ok(())
}

/// Makes an empty database and runs the scripts on it, each a path with its content. They can
/// access no other file.
pub(crate) fn create(to: &Path, scripts: &[(PathBuf, String)]) -> Result<(), SqliteError> {
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).map_err(|source| SqliteError::File {
            what: "making the directory",
            path: parent.to_owned(),
            source,
        })?;
    }
    let failed = |script: &Path, source| SqliteError::Script {
        script: script.to_owned(),
        to: to.to_owned(),
        source,
    };
    let database = Connection::open(to).map_err(|source| failed(to, source))?;
    // A script runs in this process, and could attach a database, or write one, anywhere.
    let attached = Limit::SQLITE_LIMIT_ATTACHED;
    let most = database.limit(attached).map_err(|source| failed(to, source))?;
    database.set_limit(attached, 0).map_err(|source| failed(to, source))?;
    for (script, text) in scripts {
        database.execute_batch(text).map_err(|source| failed(script, source))?;
    }
    database.set_limit(attached, most).map_err(|source| failed(to, source))?;
    // This writes the header, so that the file exists and is a database.
    database.execute_batch("PRAGMA user_version = 0; VACUUM;").map_err(|e| failed(to, e))
}

/// Removes a database and SQLite's files beside it. Missing ones are no error.
pub(crate) fn remove(path: &Path) -> Result<(), SqliteError> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let path = beside(path, suffix);
        match std::fs::remove_file(&path) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                return Err(SqliteError::File { what: "removing", path, source: err });
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_an_open_database_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a.db"), dir.path().join("deep/b.db"));
        let writer = Connection::open(&from).unwrap();
        writer
            .execute_batch(
                "PRAGMA journal_mode = WAL; CREATE TABLE t (n); INSERT INTO t VALUES (7);",
            )
            .unwrap();
        // Not yet in the file itself, only in the log beside it.
        copy(&from, &to).unwrap();
        let copied = Connection::open(&to).unwrap();
        let n: i64 = copied.query_row("SELECT n FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(n, 7);
        copied.execute_batch("INSERT INTO t VALUES (8)").unwrap();
        let count: i64 = writer.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(count, 1, "the copy is another database");
        drop(copied);
        remove(&to).unwrap();
        remove(&to).unwrap();
        assert!(!to.exists());
    }

    #[test]
    fn scripts_create_an_empty_database() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("schema.sql");
        let with = |to: &str, text: &str| {
            create(&dir.path().join(to), &[(script.clone(), text.to_owned())])
        };
        with("x.db", "CREATE TABLE t (n); INSERT INTO t VALUES (1);").unwrap();
        let err = with("y.db", "CREATE TABEL u (n);").unwrap_err();
        assert!(err.to_string().contains("schema.sql"));
        // Which would be read, and written, as the server's user.
        let other = dir.path().join("x.db").display().to_string();
        let err =
            with("z.db", &format!("ATTACH '{other}' AS x; CREATE TABLE u AS SELECT * FROM x.t"));
        assert!(err.is_err());
        let out = dir.path().join("out.db");
        assert!(with("z.db", &format!("VACUUM INTO '{}'", out.display())).is_err());
        assert!(!out.exists());
    }
}
