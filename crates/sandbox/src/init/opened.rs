//! Opens files and directories of the host that a sandbox shows or works in: once, as a descriptor,
//! and without following a link that could have been created since the path was checked.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::init::spec::Stop;

/// Follows no link at all: one that exists now was created after the path was checked.
pub(crate) const PLAIN: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// Opens a path of the host that will be shown.
pub(crate) fn open_host(path: &Path, how: ResolveFlags) -> Result<OwnedFd, Stop> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), how).map_err(|err| {
        let why = match err {
            Errno::LOOP if how == PLAIN => "a link leads there; name it by its real path".into(),
            err => err.to_string(),
        };
        Stop::BadConfig(format!("cannot show {} in the sandbox: {why}", path.display()))
    })
}

/// Opens the workspace, which must be a directory that the caller may enter. Its path was checked
/// to be without links; one that was created since leads elsewhere.
pub(crate) fn open_directory(path: &Path) -> Result<OwnedFd, Stop> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), PLAIN).map_err(|err| {
        let path = path.display();
        Stop::BadConfig(match err {
            Errno::LOOP => format!(
                "cannot open the workspace {path}: a link leads there; name it by its real path"
            ),
            err => format!("cannot open the workspace {path}: {err}"),
        })
    })
}

/// Opens the directory that the command may write. No link in the path is followed, because another
/// command may have created it.
pub(crate) fn open_writable(workspace: &OwnedFd, path: &Path) -> Result<OwnedFd, Stop> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    open_beneath(workspace, path, how).map_err(|err| {
        Stop::BadConfig(match err {
            Errno::XDEV | Errno::LOOP => "write_subdir escapes workspace".to_owned(),
            err => format!("cannot open the writable directory {}: {err}", path.display()),
        })
    })
}

/// Opens the working directory of the command. Links are followed within the workspace.
pub(crate) fn open_working_directory(workspace: &OwnedFd, path: &Path) -> Result<OwnedFd, Stop> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    open_beneath(workspace, path, how).map_err(|err| {
        Stop::BadConfig(match err {
            Errno::XDEV | Errno::LOOP => "working directory escapes workspace".to_owned(),
            err => format!("cannot open the working directory {}: {err}", path.display()),
        })
    })
}

fn open_beneath(base: &OwnedFd, path: &Path, how: ResolveFlags) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(base, path, flags, Mode::empty(), how)
}
