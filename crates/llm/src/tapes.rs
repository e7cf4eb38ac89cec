//! Caches cassette files that have not changed since they were read.
//!
//! A scripted session needs one turn at a time. Reading the whole file for each turn would make a
//! session's cost grow with the square of its length.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::cassette::{Cassette, CassetteError, MAX_BYTES};

/// Maximum number of files that are cached. The least recently used one is evicted.
const MAX_KEPT: usize = 8;
/// A file younger than this is read each time: it may change again without a change of its times,
/// which the kernel keeps in steps of some milliseconds.
const SETTLED: Duration = Duration::from_secs(1);

/// Identifies one state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    dev: u64,
    ino: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self {
            dev: file.dev(),
            ino: file.ino(),
            bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

#[derive(Debug)]
struct Kept {
    path: PathBuf,
    stamp: Stamp,
    cassette: Arc<Cassette>,
}

/// A cache of at most [`MAX_KEPT`] cassettes of at most 4 MiB of JSON each.
#[derive(Debug, Default)]
pub(crate) struct Tapes {
    kept: Mutex<VecDeque<Kept>>,
}

impl Tapes {
    /// The current cassette at `path`.
    ///
    /// Each call reads the file's times on the caller's thread, which takes microseconds. If the
    /// file must be read, that happens on the blocking pool.
    ///
    /// # Errors
    ///
    /// Fails with [`CassetteError`]; failures are not cached.
    pub(crate) async fn get(&self, path: PathBuf) -> Result<Arc<Cassette>, CassetteError> {
        let now = std::fs::metadata(&path).map(|file| Stamp::of(&file)).ok();
        if let Some(cassette) = now.and_then(|stamp| self.find(&path, stamp)) {
            return Ok(cassette);
        }
        let from = path.clone();
        let (cassette, stamp) = match tokio::task::spawn_blocking(move || read(&from)).await {
            Ok(read) => read?,
            Err(err) => {
                let from = path.display().to_string();
                return Err(CassetteError::Read { from, source: std::io::Error::other(err) });
            }
        };
        let cassette = Arc::new(cassette);
        if let Some(stamp) = stamp {
            self.keep(Kept { path, stamp, cassette: Arc::clone(&cassette) });
        }
        Ok(cassette)
    }

    fn find(&self, path: &Path, stamp: Stamp) -> Option<Arc<Cassette>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|one| one.path == path && one.stamp == stamp)?;
        let found = kept.remove(at)?;
        let cassette = Arc::clone(&found.cassette);
        kept.push_front(found);
        Some(cassette)
    }

    fn keep(&self, new: Kept) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|one| one.path != new.path);
        kept.push_front(new);
        kept.truncate(MAX_KEPT);
    }
}

/// Reads a file. The stamp is `None` if the file must not be cached.
fn read(path: &Path) -> Result<(Cassette, Option<Stamp>), CassetteError> {
    let from = || path.display().to_string();
    let wrong = |source| CassetteError::Read { from: from(), source };
    let file = File::open(path).map_err(wrong)?;
    // The times are taken before the first byte is read, so a later write changes them.
    let known = file.metadata().map_err(wrong)?;
    let age = known.modified().ok().and_then(|at| at.elapsed().ok());
    let mut json = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut json).map_err(wrong)?;
    if json.len() as u64 > MAX_BYTES {
        return Err(CassetteError::TooLarge { from: from() });
    }
    let settled = age.is_some_and(|age| age > SETTLED);
    Ok((Cassette::parse(&from(), &json)?, settled.then(|| Stamp::of(&known))))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn write(path: &Path, text: &str, age: Duration) {
        let json = format!(r#"{{"name":"t","turns":[{{"text":"{text}"}}]}}"#);
        std::fs::write(path, json).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the file's time is the system's")]
        let then = SystemTime::now() - age;
        File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
    }

    async fn said(tapes: &Tapes, path: &Path) -> String {
        tapes.get(path.to_owned()).await.unwrap().turns()[0].text.clone()
    }

    #[tokio::test]
    async fn a_file_is_read_once_and_again_when_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.json");
        let tapes = Tapes::default();
        let old = Duration::from_secs(60);
        write(&path, "one", old);
        let first = tapes.get(path.clone()).await.unwrap();
        let again = tapes.get(path.clone()).await.unwrap();
        assert!(Arc::ptr_eq(&first, &again), "the same file is parsed twice");
        // The same length and age: only the time of the change differs.
        write(&path, "two", old);
        assert_eq!(said(&tapes, &path).await, "two");
        std::fs::remove_file(&path).unwrap();
        assert!(tapes.get(path.clone()).await.is_err(), "a file that is gone still plays");
    }

    #[tokio::test]
    async fn the_cache_keeps_at_most_eight_old_files() {
        let dir = tempfile::tempdir().unwrap();
        let tapes = Tapes::default();
        let young = dir.path().join("young.json");
        write(&young, "one", Duration::ZERO);
        assert_eq!(said(&tapes, &young).await, "one");
        assert!(tapes.kept.lock().unwrap().is_empty());
        for n in 0..20 {
            let path = dir.path().join(format!("{n}.json"));
            write(&path, "one", Duration::from_secs(60));
            said(&tapes, &path).await;
        }
        assert_eq!(tapes.kept.lock().unwrap().len(), MAX_KEPT);
    }
}
