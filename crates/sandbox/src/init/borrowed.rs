//! Opens directories that a sandbox shows because a repository names them: its shared objects, for
//! example.

use std::os::fd::OwnedFd;
use std::path::Path;

use overmind_core::objects::{Is, belongs};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::init::opened::{PLAIN, open_host};
use crate::init::spec::Stop;

/// Opens a path that a repository named, as it is now. Through a link only a directory of objects
/// is shown, because the link may come from the repository and lead to sockets and settings of the
/// host.
pub(crate) fn open(path: &Path) -> Result<OwnedFd, Stop> {
    if let Ok(opened) = open_host(path, PLAIN) {
        return Ok(opened);
    }
    let opened = open_host(path, ResolveFlags::NO_MAGICLINKS)?;
    match holds_objects(&opened) {
        Ok(true) => Ok(opened),
        Ok(false) => Err(Stop::BadConfig(format!(
            "cannot show {} in the sandbox: it is a link, but not to a directory of a git repository's \
             objects; name the repository by its real path",
            path.display()
        ))),
        Err(err) => Err(Stop::BadConfig(format!(
            "cannot show {} in the sandbox: reading it: {err}",
            path.display()
        ))),
    }
}

fn holds_objects(directory: &OwnedFd) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    let mut is_one = false;
    for entry in rustix::fs::Dir::new(listed)? {
        let entry = entry?;
        let name = entry.file_name();
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(found.st_mode)
            }
            known => known,
        };
        let is = match kind {
            FileType::Directory => Is::Directory,
            FileType::RegularFile => Is::File,
            _ => Is::Else,
        };
        let name = name.to_bytes();
        if !matches!(name, b"." | b"..") && !belongs(name, is) {
            return Ok(false);
        }
        is_one |= matches!(name, b"pack" | b"info");
    }
    Ok(is_one)
}
