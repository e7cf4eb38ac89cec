//! Pictures of machines and copies of the guest's program that nobody uses any more.
//!
//! Each version of the program, of the emulator and each size of machine has its own. They are
//! removed when new ones are made: what was not used for [`MOST_AGE`], and beyond that the ones
//! unused for longest, until [`MOST_KEPT`] are left. Used within [`IN_USE`] is in use, perhaps by
//! another server on the same directory, and stays. Only entries with names of our making are
//! touched; a lock keeps two servers from doing it at once.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, Timespec, Timestamps};

/// Of pictures, and of programs.
const MOST_KEPT: usize = 8;
const MOST_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Longer than a machine that begins from it needs to begin, or a command in it runs.
const IN_USE: Duration = Duration::from_secs(24 * 3600);

/// Notes that a file is used now. False when it is not there.
pub(crate) fn mark_used(path: &Path) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    let flags = rustix::fs::AtFlags::empty();
    match rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags) {
        Ok(()) => true,
        // Whoever may only read them has them pruned by somebody else.
        Err(_) => path.exists(),
    }
}

/// Removes what is not used in `dir`; answers how many. Blocks.
///
/// # Errors
///
/// When something cannot be read or removed; what comes after it stays.
#[expect(
    clippy::disallowed_methods,
    reason = "compared with times of files; drivers have no clock"
)]
pub(crate) fn prune(dir: &Path) -> io::Result<usize> {
    prune_at(dir, SystemTime::now())
}

fn prune_at(dir: &Path, now: SystemTime) -> io::Result<usize> {
    let lock =
        File::options().create(true).truncate(false).write(true).open(dir.join("prune.lock"))?;
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        // Another server is at it.
        return Ok(0);
    }
    let mut removed = 0;
    for (kind, file) in [("pictures", "picture"), ("agents", "overmind")] {
        for path in unused(&entries(&dir.join(kind), file, now)?) {
            std::fs::remove_dir_all(&path).map_err(|err| {
                io::Error::new(err.kind(), format!("removing {}: {err}", path.display()))
            })?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// One of ours, and how long it has not been used.
struct Entry {
    path: PathBuf,
    unused: Duration,
    /// Being made, or left half made by a server that was killed.
    half: bool,
}

fn entries(dir: &Path, file: &str, now: SystemTime) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    let listed = match std::fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(err) => return Err(err),
    };
    for entry in listed {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let (stem, half) = match name.split_once(".half-") {
            Some((stem, _)) => (stem, true),
            None => (name, false),
        };
        let ours = stem.len() == 32 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !ours || !entry.file_type()?.is_dir() {
            continue;
        }
        let path = entry.path();
        // Without its file it is what a crash left; then its own time counts.
        let used = std::fs::metadata(path.join(file)).or_else(|_| entry.metadata())?.modified()?;
        let unused = now.duration_since(used).unwrap_or_default();
        found.push(Entry { path, unused, half });
    }
    Ok(found)
}

fn unused(entries: &[Entry]) -> Vec<PathBuf> {
    let mut whole: Vec<&Entry> = entries.iter().filter(|entry| !entry.half).collect();
    whole.sort_by_key(|entry| entry.unused);
    let surplus = whole
        .iter()
        .enumerate()
        .filter(|(at, entry)| {
            entry.unused > MOST_AGE || (*at >= MOST_KEPT && entry.unused > IN_USE)
        })
        .map(|(_, entry)| *entry);
    let halves = entries.iter().filter(|entry| entry.half && entry.unused > IN_USE);
    surplus.chain(halves).map(|entry| entry.path.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// A picture or program that was last used so long ago.
    fn make(dir: &Path, kind: &str, name: &str, unused: Duration) -> PathBuf {
        let file = if kind == "pictures" { "picture" } else { "overmind" };
        let home = dir.join(kind).join(name);
        std::fs::create_dir_all(&home).unwrap();
        let made = File::create(home.join(file)).unwrap();
        made.set_modified(SystemTime::UNIX_EPOCH + 1000 * DAY - unused).unwrap();
        home
    }

    fn at() -> SystemTime {
        SystemTime::UNIX_EPOCH + 1000 * DAY
    }

    #[test]
    fn what_is_old_or_too_much_goes_and_what_is_in_use_or_not_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        let name = |n: usize| format!("{n:032x}");
        let old = make(dir.path(), "pictures", &name(99), 31 * DAY);
        let strange = make(dir.path(), "pictures", "keep-me", 99 * DAY);
        let half = make(dir.path(), "pictures", &format!("{}.half-7", name(98)), 2 * DAY);
        let being_made = make(dir.path(), "pictures", &format!("{}.half-8", name(97)), DAY / 2);
        let agents: Vec<_> =
            (0..10).map(|n| make(dir.path(), "agents", &name(n), DAY / 2)).collect();
        let few: Vec<_> = (0..10)
            .map(|n| make(dir.path(), "pictures", &name(n), DAY * u32::try_from(n + 2).unwrap()))
            .collect();
        assert_eq!(prune_at(dir.path(), at()).unwrap(), 4);
        assert!(!old.exists() && !half.exists());
        assert!(strange.exists() && being_made.exists());
        assert!(agents.iter().all(|agent| agent.exists()), "all in use");
        let left: Vec<bool> = few.iter().map(|path| path.exists()).collect();
        assert_eq!(left, [vec![true; 8], vec![false; 2]].concat(), "the longest unused go");
        assert_eq!(prune_at(dir.path(), at()).unwrap(), 0);
    }

    #[test]
    fn two_servers_do_not_prune_at_once_and_nothing_to_prune_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(prune_at(dir.path(), at()).unwrap(), 0);
        make(dir.path(), "pictures", &format!("{:032x}", 1), 99 * DAY);
        let lock = File::open(dir.path().join("prune.lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        assert_eq!(prune_at(dir.path(), at()).unwrap(), 0);
        drop(lock);
        assert_eq!(prune_at(dir.path(), at()).unwrap(), 1);
    }

    #[test]
    fn a_use_is_noted_and_what_is_gone_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let home = make(dir.path(), "agents", &format!("{:032x}", 1), 99 * DAY);
        let file = home.join("overmind");
        let before = file.metadata().unwrap().modified().unwrap();
        assert!(mark_used(&file));
        assert!(file.metadata().unwrap().modified().unwrap() > before + 365 * DAY);
        assert!(!mark_used(&dir.path().join("nothing")));
    }
}
