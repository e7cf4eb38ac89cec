//! Finds a container's directories on the host, and its user.
//!
//! The engine accepts paths instead of descriptors, and follows links. The paths are resolved here
//! without following any link, but another process with write access could replace a directory
//! before the engine uses it. So each directory is held open ([`Held`]), and the
//! [waiter](super::waiter) in the container compares the mounts with the held directories before
//! the command starts.

use std::fs::Metadata;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use overmind_core::sandbox::{SandboxError, SandboxRequest};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};

use crate::RunAs;
use crate::hidden::Hidden;
use crate::init::opened::{PLAIN, open_directory, open_working_directory, open_writable};
use crate::init::spec::Stop;
use crate::repository;
use crate::request::bad_config;

/// The default user of containers: nobody.
const NOBODY: RunAs = RunAs { uid: 65534, gid: 65534 };

pub(crate) struct Place {
    /// The workspace, opened.
    pub(crate) opened: OwnedFd,
    pub(crate) workspace: String,
    pub(crate) writable: Option<(String, String)>,
    pub(crate) working_dir: String,
    pub(crate) user: RunAs,
}

impl Place {
    pub(crate) fn resolve(
        request: &SandboxRequest,
        user: Option<RunAs>,
    ) -> Result<Self, SandboxError> {
        let stopped = |stop| match stop {
            Stop::BadConfig(message) => bad_config(message),
            Stop::Refused { step, detail, .. } => bad_config(format!("{step} ({detail})")),
        };
        let workspace = open_directory(&request.workspace).map_err(stopped)?;
        let root = real_path(&workspace)?;
        let user = user.unwrap_or_else(|| default_user(&root));

        may(user, &root, READ | ENTER, "read")?;
        let writable = match &request.writable {
            None => None,
            Some(path) => {
                let opened = open_writable(&workspace, path).map_err(stopped)?;
                let host = real_path(&opened)?;
                may(user, &host, READ | WRITE | ENTER, "write")?;
                let inside = inside(&root, &host)?;
                Some((text(&host)?, inside))
            }
        };
        let cwd = open_working_directory(&workspace, &request.cwd).map_err(stopped)?;
        let working_dir = inside(&root, &real_path(&cwd)?)?;
        Ok(Self { opened: workspace, workspace: text(&root)?, writable, working_dir, user })
    }
}

/// The identity of a file or directory that is mounted in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// The path inside.
    pub(crate) path: PathBuf,
    device: u64,
    inode: u64,
}

impl Seen {
    /// Whether the path still has that identity.
    pub(crate) fn is_there(&self) -> bool {
        std::fs::metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode))
    }
}

/// All directories and files that a container shows of the host, held open, so that no other can
/// get their identity.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) seen: Vec<Seen>,
    _opened: Vec<OwnedFd>,
}

impl Held {
    /// Opens `mounts`, which are host paths with their paths inside. `opened` is the workspace.
    pub(crate) fn hold<'a>(
        opened: &OwnedFd,
        workspace: &Path,
        mounts: impl Iterator<Item = (&'a Path, &'a Path)>,
    ) -> Result<Self, SandboxError> {
        let mut held = Self { seen: Vec::new(), _opened: Vec::new() };
        for (host, inside) in mounts {
            let (flags, none) = (OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            let one = match host.strip_prefix(workspace) {
                Ok(path) if path.as_os_str().is_empty() => {
                    rustix::io::fcntl_dupfd_cloexec(opened, 0)
                }
                Ok(path) => {
                    rustix::fs::openat2(opened, path, flags, none, PLAIN | ResolveFlags::BENEATH)
                }
                Err(_) => rustix::fs::openat2(CWD, host, flags, none, PLAIN),
            };
            let found = one.and_then(|one| Ok((rustix::fs::fstat(&one)?, one)));
            let (found, one) = found.map_err(|err| {
                bad_config(format!("{} cannot be shown in a container: {err}", host.display()))
            })?;
            let (device, inode) = (found.st_dev, found.st_ino);
            held.seen.push(Seen { path: inside.to_owned(), device, inode });
            held._opened.push(one);
        }
        Ok(held)
    }
}

/// The parts of a user's repository within a writable directory of the workspace that are mounted
/// over themselves: path on the host, path inside, and whether it is read-only. Other parts are not
/// writable anyway.
pub(crate) fn fixed_in(
    hidden: Hidden<'_>,
    workspace: &Path,
    writable: &Path,
) -> Result<Vec<(String, String, bool)>, SandboxError> {
    let fixed = repository::of(hidden, workspace)?;
    let all = fixed.all().into_iter().map(|(path, read_only)| (workspace.join(path), read_only));
    let within = all.filter(|(host, _)| host.starts_with(writable) && host != writable);
    within
        .map(|(host, read_only)| Ok((text(&host)?, inside(workspace, &host)?, read_only)))
        .collect()
}

/// The default user: the caller or, if the caller is root, the owner of the workspace, and nobody
/// instead of root.
fn default_user(workspace: &Path) -> RunAs {
    let uid = rustix::process::geteuid().as_raw();
    if uid != 0 {
        return RunAs { uid, gid: rustix::process::getegid().as_raw() };
    }
    match std::fs::metadata(workspace) {
        Ok(found) if found.uid() != 0 => {
            RunAs { uid: found.uid(), gid: if found.gid() == 0 { 65534 } else { found.gid() } }
        }
        Ok(_) | Err(_) => NOBODY,
    }
}

const READ: u32 = 4;
const WRITE: u32 = 2;
const ENTER: u32 = 1;

/// Checks permissions early: a failure inside would give a message that nobody could explain.
fn may(user: RunAs, directory: &Path, wanted: u32, what: &str) -> Result<(), SandboxError> {
    let Ok(found) = std::fs::metadata(directory) else { return Ok(()) };
    // With an access control list the mode shows little; then an error appears in the container.
    let mut no_room: [u8; 0] = [];
    let listed = rustix::fs::getxattr(directory, "system.posix_acl_access", &mut no_room).is_ok();
    if listed || allows(&found, user, wanted) {
        return Ok(());
    }
    Err(bad_config(format!(
        "the container's user {}:{} cannot {what} {} (owner {}:{}, mode {:o}): run the daemon as a \
         plain user that owns it, set the docker sandbox's user, or change its owner",
        user.uid,
        user.gid,
        directory.display(),
        found.uid(),
        found.gid(),
        found.mode() & 0o7777
    )))
}

fn allows(found: &Metadata, user: RunAs, wanted: u32) -> bool {
    let granted = if user.uid == 0 {
        // In a rootless engine root is the caller, and the engine checks permissions itself.
        READ | WRITE | ENTER
    } else if found.uid() == user.uid {
        found.mode() >> 6
    } else if found.gid() == user.gid {
        found.mode() >> 3
    } else {
        found.mode()
    };
    granted & wanted == wanted
}

/// The real path of an opened directory, whatever the request called it.
fn real_path(opened: &OwnedFd) -> Result<PathBuf, SandboxError> {
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    std::fs::read_link(link).map_err(|err| bad_config(format!("cannot read a path back: {err}")))
}

fn inside(root: &Path, host: &Path) -> Result<String, SandboxError> {
    let below = host
        .strip_prefix(root)
        .map_err(|_| bad_config(format!("{} has left the workspace", host.display())))?;
    // Joining an empty path would leave a slash at the end.
    let below = if below.as_os_str().is_empty() { None } else { Some(below) };
    text(&below.map_or_else(|| PathBuf::from("/workspace"), |b| Path::new("/workspace").join(b)))
}

fn text(path: &Path) -> Result<String, SandboxError> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| bad_config(format!("the path {} is not UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_identified_by_inode_not_by_path() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let (work, host) = (top.join("work"), top.join("host"));
        for made in ["work/out", "host/out"] {
            std::fs::create_dir_all(top.join(made)).unwrap();
        }
        std::os::unix::fs::symlink(&host, work.join("link")).unwrap();
        let opened = open_directory(&work).unwrap();
        let hold = |path: &Path| {
            Held::hold(&opened, &work, [(path, path)].into_iter()).map(|held| held.seen[0].clone())
        };
        let seen = [hold(&work).unwrap(), hold(&work.join("out")).unwrap()];
        assert!(seen.iter().all(Seen::is_there));
        assert!(hold(Path::new("/dev/null")).unwrap().is_there());
        for path in [work.join("link"), work.join("link/out"), work.join("../host")] {
            assert!(hold(&path).is_err(), "{}", path.display());
        }
        std::fs::rename(&work, top.join("before")).unwrap();
        std::os::unix::fs::symlink(&host, &work).unwrap();
        assert!(!seen.iter().any(Seen::is_there));
        // The directory that was opened is still the one that is held.
        assert_eq!(hold(&work.join("out")).unwrap(), seen[1]);
    }
}
