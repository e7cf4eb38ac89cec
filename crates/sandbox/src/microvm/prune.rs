//! Removes unused images, snapshots of machines and copies of the guest's program.
//!
//! They are removed when new ones are made. A file that was used within [`IN_USE`] may be in use by
//! another server on the same directory, and stays. Otherwise:
//!
//! * **Images** that are not the current one are removed, and so are kernel packages that were
//!   fetched for them and the remains of a build that was killed.
//! * **Snapshots and programs** exist for each version of the program and the emulator and each
//!   size of machine. They are removed if they were not used for [`MOST_AGE`]; of the others, the
//!   least recently used are removed until [`MOST_KEPT`] are left.
//!
//! Only entries with names in our own forms are touched; a lock keeps two servers from doing it at
//! once.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, Timespec, Timestamps};

use crate::microvm::image;

/// Maximum number of snapshots that are kept, and of programs.
const MOST_KEPT: usize = 8;
const MOST_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Longer than a machine needs to start from a snapshot, or a command in it runs.
const IN_USE: Duration = Duration::from_secs(24 * 3600);

/// Records that a file is used now. Returns false if it does not exist.
pub(crate) fn mark_used(path: &Path) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    let flags = rustix::fs::AtFlags::empty();
    match rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags) {
        Ok(()) => true,
        // A server that may only read the files leaves the removal to another.
        Err(_) => path.exists(),
    }
}

/// Removes unused files in `dir` and returns their number. Blocks.
///
/// # Errors
///
/// Fails if something cannot be read or removed; the remaining files are not removed then.
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
        // Another server is doing it.
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
    Ok(removed + prune_images(dir, now)?)
}

/// Removes the files of images that are not in use. Without a current image it is unknown which
/// these are, and all stay.
fn prune_images(dir: &Path, now: SystemTime) -> io::Result<usize> {
    let Some(current) = image::current(dir) else { return Ok(0) };
    let mut unused = Vec::new();
    for Entry { path, unused: time, half: _ } in entries(dir, image::MANIFEST, now)? {
        if path != current.dir && time > IN_USE {
            unused.push(path);
        }
    }
    for (path, time) in leftovers(dir, "building-", "", now)? {
        if time > IN_USE {
            unused.push(path);
        }
    }
    for (path, time) in leftovers(&dir.join("packages"), "linux-image-", ".deb", now)? {
        let its_own = path.file_name().is_some_and(|name| *name == *current.manifest.package);
        if !its_own && time > IN_USE {
            unused.push(path);
        }
    }
    for path in &unused {
        let is_dir = path.symlink_metadata().is_ok_and(|found| found.is_dir());
        let removed =
            if is_dir { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        removed.map_err(|err| {
            io::Error::new(err.kind(), format!("removing {}: {err}", path.display()))
        })?;
    }
    Ok(unused.len())
}

/// Entries whose names have such a form, with the time since their last change.
fn leftovers(
    dir: &Path,
    begin: &str,
    end: &str,
    now: SystemTime,
) -> io::Result<Vec<(PathBuf, Duration)>> {
    let mut found = Vec::new();
    let listed = match std::fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(err) => return Err(err),
    };
    for entry in listed {
        let entry = entry?;
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| name.starts_with(begin) && name.ends_with(end)) {
            continue;
        }
        let meta = entry.metadata()?;
        // A fetched package has the modification time of its making; its creation time is when it
        // came.
        let came = meta.created().ok().filter(|created| *created <= now);
        let last = came.into_iter().fold(meta.modified()?, SystemTime::max);
        found.push((entry.path(), now.duration_since(last).unwrap_or_default()));
    }
    Ok(found)
}

/// One of our entries, with the time since its last use.
struct Entry {
    path: PathBuf,
    unused: Duration,
    /// Whether it is being made, or was left incomplete by a server that was killed.
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
        // Without its file it was left by a crash; then its own time counts.
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
    fn prune_removes_old_snapshots_and_keeps_used_and_foreign_files() {
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

    #[expect(clippy::disallowed_methods, reason = "files are made now, whatever a test would like")]
    fn clock() -> SystemTime {
        SystemTime::now()
    }

    /// An image that was last used so long ago, with all that [`image::current`] asks for.
    fn make_image(dir: &Path, name: &str, package: &str, unused: Duration) -> PathBuf {
        let home = dir.join(name);
        std::fs::create_dir_all(&home).unwrap();
        let text = format!(r#"{{"hash":"{name}","kernel":"6","package":"{package}","bytes":1}}"#);
        for (file, content) in
            [("vmlinux", ""), ("initrd.cpio", ""), (image::MANIFEST, text.as_str())]
        {
            std::fs::write(home.join(file), content).unwrap();
        }
        let manifest = File::options().write(true).open(home.join(image::MANIFEST)).unwrap();
        manifest.set_modified(clock() - unused).unwrap();
        home
    }

    #[test]
    fn prune_removes_old_images_with_their_packages() {
        let dir = tempfile::tempdir().unwrap();
        let name = |n: usize| format!("{n:032x}");
        let current = make_image(dir.path(), &name(1), "linux-image-2_amd64.deb", 99 * DAY);
        let old = make_image(dir.path(), &name(2), "linux-image-1_amd64.deb", 2 * DAY);
        let used = make_image(dir.path(), &name(3), "linux-image-0_amd64.deb", DAY / 2);
        let strange = make_image(dir.path(), "not-ours", "", 99 * DAY);
        let packages = dir.path().join("packages");
        std::fs::create_dir_all(&packages).unwrap();
        let kept = packages.join("linux-image-2_amd64.deb");
        let gone = packages.join("linux-image-1_amd64.deb");
        let left = dir.path().join("building-7");
        for file in [&kept, &gone, &packages.join("notes")] {
            std::fs::write(file, "").unwrap();
        }
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join("half"), "").unwrap();

        // No configuration says which one is in use.
        assert_eq!(prune_images(dir.path(), clock()).unwrap(), 0);
        std::fs::write(dir.path().join("current"), name(1)).unwrap();
        assert_eq!(prune_images(dir.path(), clock()).unwrap(), 1);
        assert!(!old.exists() && current.exists() && used.exists() && strange.exists());
        assert!(gone.exists() && left.exists(), "they came just now");

        let later = clock() + 3 * DAY;
        assert_eq!(prune_images(dir.path(), later).unwrap(), 3);
        assert!(!used.exists() && !gone.exists() && !left.exists());
        assert!(current.exists() && kept.exists() && strange.exists());
        assert!(packages.join("notes").exists());
        assert!(image::current(dir.path()).is_some(), "what is in use stays whatever its age");
    }

    #[test]
    fn two_servers_do_not_prune_concurrently_and_an_empty_prune_succeeds() {
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
    fn uses_are_recorded_and_removed_files_are_missing() {
        let dir = tempfile::tempdir().unwrap();
        let home = make(dir.path(), "agents", &format!("{:032x}", 1), 99 * DAY);
        let file = home.join("overmind");
        let before = file.metadata().unwrap().modified().unwrap();
        assert!(mark_used(&file));
        assert!(file.metadata().unwrap().modified().unwrap() > before + 365 * DAY);
        assert!(!mark_used(&dir.path().join("nothing")));
    }
}
