//! Where a container's directories lie on the host, and as whom it runs.
//!
//! The engine takes paths, not descriptors. They are resolved here without following a link out
//! of the workspace, but whoever may write the workspace could exchange a directory between the
//! check and the engine's mount. The `namespace` driver has no such gap.

use std::fs::Metadata;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use overmind_core::sandbox::{SandboxError, SandboxRequest};

use crate::RunAs;
use crate::hidden::Hidden;
use crate::init::opened::{open_directory, open_working_directory, open_writable};
use crate::init::spec::Stop;
use crate::repository;
use crate::request::bad_config;

/// The user of containers when nothing says otherwise: nobody's.
const NOBODY: RunAs = RunAs { uid: 65534, gid: 65534 };

pub(crate) struct Place {
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
        Ok(Self { workspace: text(&root)?, writable, working_dir, user })
    }
}

/// What of a person's repository lies over itself within a writable directory of the workspace: on the
/// host, inside, and whether it is read-only. What lies elsewhere is not writable as it is.
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

/// The caller; for a caller that is root the owner of the workspace, and nobody rather than
/// root.
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

/// Refuses early what would only fail inside, with a text that nobody could explain.
fn may(user: RunAs, directory: &Path, wanted: u32, what: &str) -> Result<(), SandboxError> {
    let Ok(found) = std::fs::metadata(directory) else { return Ok(()) };
    // With an access control list the mode says little; then the container will tell.
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
        // In a rootless engine root is the caller, and the engine knows what it may.
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

/// The path of what was opened, whatever it was called in the request.
fn real_path(opened: &OwnedFd) -> Result<PathBuf, SandboxError> {
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    std::fs::read_link(link).map_err(|err| bad_config(format!("cannot read a path back: {err}")))
}

fn inside(root: &Path, host: &Path) -> Result<String, SandboxError> {
    let below = host
        .strip_prefix(root)
        .map_err(|_| bad_config(format!("{} has left the workspace", host.display())))?;
    // Joining nothing would leave a slash at the end.
    let below = if below.as_os_str().is_empty() { None } else { Some(below) };
    text(&below.map_or_else(|| PathBuf::from("/workspace"), |b| Path::new("/workspace").join(b)))
}

fn text(path: &Path) -> Result<String, SandboxError> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| bad_config(format!("the path {} is not UTF-8", path.display())))
}
