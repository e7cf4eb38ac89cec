//! Resolves a path of the host that a sandbox will show, once and without following links that a
//! command could have created.
//!
//! A directory that one command may write may be granted to another, or be its workspace. Between
//! the check of such a path and its mount the first command could create a link in it. So the init
//! opens every shown path without following links ([`crate::init::root`]), and the path that it
//! gets contains none, because its links were followed here. Only links that no command can create
//! are followed: see [`Follow::Hosts`].

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use overmind_core::sandbox::SandboxError;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::init::root::SYSTEM;
use crate::request::bad_config;

/// Maximum number of links that are followed, as in the kernel.
const MOST_LINKS: usize = 40;

/// Which links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    /// No links.
    Never,
    /// Links of the host: in the root directory; in system directories, which every sandbox shows
    /// and none can write; and, if commands run as another user, links that root owns.
    Hosts { commands_are_root: bool },
    /// All links: the path comes from the server's own settings.
    All,
}

impl Follow {
    fn follows(self, link: &Path, found: &Stat) -> bool {
        match self {
            Self::Never => false,
            Self::All => true,
            Self::Hosts { commands_are_root } => {
                let is_in_the_root = link.parent() == Some(Path::new("/"));
                let is_roots = !commands_are_root && found.st_uid == 0;
                is_in_the_root || is_of_the_system(link) || is_roots
            }
        }
    }
}

/// The path without links.
///
/// # Errors
///
/// Fails if nothing is there, or the path contains a link that must not be followed.
pub(crate) fn resolve(path: &Path, follow: Follow) -> Result<PathBuf, SandboxError> {
    let failed =
        |err: io::Error| bad_config(format!("a sandbox cannot show {}: {err}", path.display()));
    if !path.is_absolute() {
        return Err(failed(io::Error::other("it is not an absolute path")));
    }
    let mut rest: VecDeque<OsString> = parts(path);
    let mut real = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == OsStr::new("..") {
            real.pop();
            continue;
        }
        let next = real.join(&part);
        // The opened file is the one that is read, even if its path is replaced meanwhile.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::NO_MAGICLINKS;
        let opened = rustix::fs::openat2(CWD, &next, flags, Mode::empty(), how);
        let opened = opened.map_err(|err| failed(err.into()))?;
        let found = rustix::fs::fstat(&opened).map_err(|err| failed(err.into()))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            real = next;
            continue;
        }
        let target = rustix::fs::readlinkat(&opened, "", Vec::new());
        let target = PathBuf::from(OsString::from_vec(
            target.map_err(|err| failed(err.into()))?.into_bytes(),
        ));
        if !follow.follows(&next, &found) {
            return Err(leads(path, &next, &target));
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(failed(Errno::LOOP.into()));
        }
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        for part in parts(&target).into_iter().rev() {
            rest.push_front(part);
        }
    }
    Ok(real)
}

/// The error text that tells the user what to do.
fn leads(path: &Path, link: &Path, target: &Path) -> SandboxError {
    let on_the_way = match link == path {
        true => "it".to_owned(),
        false => link.display().to_string(),
    };
    bad_config(format!(
        "a sandbox cannot show {}: {on_the_way} is a link to {}, which a command could have put there; \
         name it by its real path",
        path.display(),
        target.display()
    ))
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

/// Whether every sandbox shows the path.
pub(crate) fn is_of_the_system(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && SYSTEM.iter().any(|name| path.starts_with(Path::new("/").join(name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_are_resolved_only_through_trusted_links() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("real/inner")).unwrap();
        for (target, link) in [
            ("real", "short"),
            ("short/inner", "far"),
            ("../real/./inner/..", "real/up"),
            ("round", "round"),
        ] {
            symlink(target, top.join(link)).unwrap();
        }
        symlink(top.join("short"), top.join("absolute")).unwrap();
        for (path, real) in [
            ("real/inner", "real/inner"),
            ("short/inner", "real/inner"),
            ("far", "real/inner"),
            ("absolute/up/inner", "real/inner"),
        ] {
            assert_eq!(resolve(&top.join(path), Follow::All).unwrap(), top.join(real), "{path}");
            assert_eq!(top.join(path).canonicalize().unwrap(), top.join(real), "{path}");
        }
        let refusal = |path: &str, follow| match resolve(&top.join(path), follow) {
            Err(SandboxError::BadConfig { message, .. }) => message,
            other => panic!("{path}: {other:?}"),
        };
        for path in ["short", "far", "absolute/inner", "real/up"] {
            let owners = Follow::Hosts { commands_are_root: true };
            for follow in [Follow::Never, owners] {
                let why = refusal(path, follow);
                assert!(why.contains("is a link to") && why.contains("real path"), "{why}");
            }
        }
        assert_eq!(
            resolve(&top.join("real/inner"), Follow::Never).unwrap(),
            top.join("real/inner")
        );
        assert!(refusal("round", Follow::All).contains("symbolic links"));
        assert!(refusal("missing", Follow::All).contains("No such file"));
    }

    #[test]
    fn links_of_the_host_are_followed() {
        let owners = Follow::Hosts { commands_are_root: true };
        for path in ["/bin/sh", "/usr/bin/sh", "/usr/bin/.."] {
            let path = Path::new(path);
            assert_eq!(resolve(path, owners).unwrap(), path.canonicalize().unwrap());
        }
    }
}
