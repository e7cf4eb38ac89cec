//! The data directory and the disk beneath it.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use overmind_node::config::DataDir;

use super::Finding;
use crate::output::when;

/// The free space that a server needs to continue; without it, SQLite refuses writes cleanly.
const LEAST_SPACE: u64 = 100 << 20;
const FAIR_SPACE: u64 = 1 << 30;
/// A sync slower than this is felt in every step of every agent.
const SLOW_SYNC: Duration = Duration::from_millis(25);
/// No disk does it faster: it does not sync at all.
const NO_SYNC: Duration = Duration::from_micros(5);
const SYNCS: usize = 20;
/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of statfs.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The directory in which the PostgreSQL server of this data directory stores the databases of runs.
pub(super) fn postgres(data: &DataDir) -> Option<Finding> {
    let place = overmind_workspace::database::files_of(data.path())?;
    let how = match place.join("data/postmaster.pid").exists() {
        true => "its server runs, also without ours",
        false => "its server does not run",
    };
    Some(Finding::fine(
        "postgresql",
        format!("databases of runs are in {}; {how}", place.display()),
    ))
}

/// The directory itself and what must be private in it.
pub(super) fn data(data: &DataDir) -> Vec<Finding> {
    const CHECK: &str = "data directory";
    let path = data.path();
    let Ok(meta) = std::fs::metadata(path) else {
        let parent = nearest(path);
        return vec![if writable(&parent) {
            Finding::fine(CHECK, format!("{}: created at the first start", path.display()))
        } else {
            Finding::broken(
                CHECK,
                format!(
                    "{} cannot be created: {} is not writable",
                    path.display(),
                    parent.display()
                ),
                "name another one with --data or OVERMIND_DATA",
            )
        }];
    };
    let mut findings = Vec::new();
    let mode = meta.permissions().mode() & 0o777;
    let me = rustix::process::geteuid().as_raw();
    findings.push(if !meta.is_dir() {
        Finding::broken(
            CHECK,
            format!("{} is not a directory", path.display()),
            "remove it, or name another one with --data",
        )
    } else if meta.uid() != me {
        Finding::broken(
            CHECK,
            format!("{} belongs to user {}, not to you ({me})", path.display(), meta.uid()),
            format!("run as that user, or: chown -R {me} {}", path.display()),
        )
    } else if mode & 0o077 != 0 {
        Finding::broken(
            CHECK,
            format!("{} has mode {mode:04o}: others can get in", path.display()),
            format!("chmod 700 {}", path.display()),
        )
    } else if !writable(path) {
        Finding::broken(
            CHECK,
            format!("{} is not writable", path.display()),
            format!("chmod u+rwx {}", path.display()),
        )
    } else {
        Finding::fine(CHECK, format!("{} is yours alone", path.display()))
    });
    for file in [data.admin_token_file(), data.token_key_file()] {
        let Ok(meta) = std::fs::metadata(&file) else { continue };
        let mode = meta.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            findings.push(Finding::broken(
                "secrets",
                format!("{} has mode {mode:04o}: others can read it", file.display()),
                format!(
                    "chmod 600 {0}; if someone may have read it, delete it: a new one is made",
                    file.display()
                ),
            ));
        }
    }
    findings
}

/// Free space where the data is.
pub(super) fn space(data: &DataDir) -> Vec<Finding> {
    const CHECK: &str = "disk space";
    let at = nearest(data.path());
    let Ok(fs) = rustix::fs::statvfs(&at) else { return Vec::new() };
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    let found = format!("{} free in {}", when::bytes(free), at.display());
    let mut findings = vec![if free < LEAST_SPACE {
        Finding::broken(CHECK, found, "free some, or move the data with --data")
    } else if free < FAIR_SPACE {
        Finding::warning(CHECK, found, "`store.retention_days` removes old sessions")
    } else {
        Finding::fine(CHECK, found)
    }];
    let memory = rustix::fs::statfs(&at)
        .is_ok_and(|fs| MEMORY_FILE_SYSTEMS.contains(&u64::try_from(fs.f_type).unwrap_or(0)));
    if memory {
        findings.push(Finding::warning(
            CHECK,
            format!("{} is in memory: nothing there survives a reboot", at.display()),
            "put the data on a disk with --data",
        ));
    }
    findings
}

/// The time until a small write is durable: the floor of every step of an agent.
pub(super) fn fsync(data: &DataDir) -> Finding {
    const CHECK: &str = "fsync";
    let at = nearest(data.path());
    let took = match sync_times(&at, SYNCS) {
        Ok(took) => took,
        Err(err) => {
            return Finding::broken(
                CHECK,
                format!("writing in {}: {err}", at.display()),
                "make it writable, or name another data directory",
            );
        }
    };
    let (middle, worst) = (took[took.len() / 2], took[took.len() - 1]);
    let found = format!(
        "median {:.2} ms, maximum {:.2} ms",
        middle.as_secs_f64() * 1000.0,
        worst.as_secs_f64() * 1000.0
    );
    if middle > SLOW_SYNC {
        Finding::warning(
            CHECK,
            found,
            "each step of an agent waits for one: a faster disk helps most",
        )
    } else if middle < NO_SYNC {
        Finding::warning(
            CHECK,
            format!("{found}: implausibly fast"),
            "this file system does not wait for its disk: a power cut may lose acknowledged data",
        )
    } else {
        Finding::fine(CHECK, found)
    }
}

/// Times of small durable appends in a directory, ascending.
///
/// # Errors
///
/// The properties that the file system reports.
pub(crate) fn sync_times(directory: &Path, count: usize) -> std::io::Result<Vec<Duration>> {
    let mut file = tempfile::Builder::new().prefix(".sync-").tempfile_in(directory)?;
    let mut took = Vec::with_capacity(count);
    for _ in 0..count.max(1) {
        let start = Instant::now();
        file.write_all(&[0x5a; 512])?;
        file.as_file().sync_data()?;
        took.push(start.elapsed());
    }
    took.sort_unstable();
    Ok(took)
}

/// The path itself, or the nearest parent that exists.
fn nearest(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

fn writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::doctor::Health;
    use overmind_node::config::Env;

    fn at(path: &Path) -> DataDir {
        DataDir::locate(Some(path), &Env::default(), Path::new("/")).unwrap()
    }

    #[test]
    fn a_directory_open_to_others_is_reported_with_a_fix() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        assert_eq!(data(&at(&path))[0].health, Health::Fine, "not there yet");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let found = data(&at(&path));
        assert_eq!(found[0].health, Health::Broken);
        assert_eq!(found[0].remedy, Some(format!("chmod 700 {}", path.display())));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(data(&at(&path))[0].health, Health::Fine);
        fs::write(path.join("admin.token"), "x").unwrap();
        fs::set_permissions(path.join("admin.token"), fs::Permissions::from_mode(0o644)).unwrap();
        let found = data(&at(&path));
        assert_eq!((found[1].check, found[1].health), ("secrets", Health::Broken));
    }

    #[test]
    fn syncs_are_timed_and_their_files_removed() {
        let dir = tempfile::tempdir().unwrap();
        let took = sync_times(dir.path(), 5).unwrap();
        assert_eq!(took.len(), 5);
        assert!(took.is_sorted());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(sync_times(Path::new("/proc"), 1).is_err());
    }
}
