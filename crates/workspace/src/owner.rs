//! Supports sessions whose programs run as another user than the daemon, which is root then.
//!
//! Their worktree is given to that user when it is made, at a path that the user can reach. Files
//! that the daemon makes in it later are given to the worktree's owner, so that no caller needs to
//! know the user. By then programs of the session write in it, so a path through a link is refused.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use overmind_core::process::ProcessUser;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fstat, openat2,
};

use crate::copy;

/// Why a worktree could not be given to the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandOverError {
    #[error(
        "programs of the session run as the user {uid} (`sandbox.run_as`), which cannot enter \
         {}, a parent directory of {}: open it (`chmod o+x`){}", closed.display(), to.display(),
        if *tree { ", or name another place for worktrees with `rooms.worktrees`" } else { "" }
    )]
    Closed { uid: u32, closed: PathBuf, to: PathBuf, tree: bool },
    #[error("giving {} to the user {uid} (`sandbox.run_as`)", path.display())]
    Give {
        path: PathBuf,
        uid: u32,
        #[source]
        source: io::Error,
    },
}

/// Gives an unused worktree to the user, and lets them pass to it from `root`, which is ours like
/// everything in between. `borrowed` are the project's paths that the worktree needs; they are only
/// checked.
pub(crate) fn hand_over(
    root: &Path,
    tree: &Path,
    borrowed: &[PathBuf],
    user: ProcessUser,
) -> Result<(), HandOverError> {
    let uid = user.uid;
    let way = tree.ancestors().skip(1).take_while(|part| part.starts_with(root));
    for part in way {
        let give = |source| HandOverError::Give { path: part.to_owned(), uid, source };
        let mode = std::fs::metadata(part).map_err(give)?.mode() & 0o7777;
        let open = std::fs::Permissions::from_mode(mode | 0o011);
        std::fs::set_permissions(part, open).map_err(give)?;
    }
    let places = [tree].into_iter().chain(borrowed.iter().map(PathBuf::as_path));
    for to in places {
        let parent = to.parent().unwrap_or(to);
        if let Some(closed) = closed_to(parent, user) {
            return Err(HandOverError::Closed { uid, closed, to: to.to_owned(), tree: to == tree });
        }
    }
    copy::give_to(tree, uid, user.gid).map_err(|source| HandOverError::Give {
        path: tree.to_owned(),
        uid,
        source,
    })
}

/// The first directory in `path`, including itself, through which the user may not pass.
pub(crate) fn closed_to(path: &Path, user: ProcessUser) -> Option<PathBuf> {
    let mut way: Vec<&Path> = path.ancestors().collect();
    way.reverse();
    let open = |part: &&Path| {
        let Ok(found) = std::fs::metadata(part) else { return true };
        let mode = found.mode();
        // The first matching class decides.
        if found.uid() == user.uid {
            mode & 0o100 != 0
        } else if found.gid() == user.gid {
            mode & 0o010 != 0
        } else {
            mode & 0o001 != 0
        }
    };
    way.into_iter().find(|part| !open(part)).map(Path::to_owned)
}

/// The owner of the worktree, if we are root and do not own it.
pub(crate) fn of(tree: &Path) -> Option<ProcessUser> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let found = std::fs::metadata(tree).ok()?;
    (found.uid() != 0).then(|| ProcessUser { uid: found.uid(), gid: found.gid() })
}

/// Gives a file that we have made at `path` in the worktree, with the parent directories that we
/// have made, to the worktree's owner. A path outside of the worktree, or a missing one, is not
/// changed.
pub(crate) fn give(tree: &Path, path: &Path) -> io::Result<()> {
    let (Some(user), Ok(within)) = (of(tree), path.strip_prefix(tree)) else { return Ok(()) };
    let top = File::open(tree)?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let never = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut way: Vec<&Path> = within.ancestors().collect();
    // The last one is the worktree itself.
    way.pop();
    for part in way.into_iter().rev() {
        let there = match openat2(&top, part, how, Mode::empty(), never) {
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            there => there?,
        };
        let found = fstat(&there)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        // Another hard link of a file may be anywhere.
        let alone = kind == FileType::Directory || found.st_nlink == 1;
        if found.st_uid == 0 && alone && kind != FileType::Symlink {
            chownat(&there, OsStr::new(""), Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    const USER: ProcessUser = ProcessUser { uid: 54321, gid: 54322 };

    fn owner(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().uid()
    }

    #[test]
    fn directories_that_a_user_cannot_enter_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(dir.path(), 0o711);
        assert_eq!(closed_to(&deep, USER), None);
        mode(&dir.path().join("a"), 0o770);
        assert_eq!(closed_to(&deep, USER), Some(dir.path().join("a")));
        mode(dir.path(), 0o700);
        assert_eq!(closed_to(&deep, USER), Some(dir.path().to_owned()));
        let found = std::fs::metadata(dir.path()).unwrap();
        let own = ProcessUser { uid: found.uid(), gid: found.gid() };
        assert_eq!(closed_to(&deep, own), None);
    }

    /// An ordinary user cannot give files to another user.
    #[test]
    fn files_that_root_creates_in_a_users_tree_belong_to_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, other) = (dir.path().join("tree"), dir.path().join("other"));
        std::fs::create_dir_all(tree.join("made/deep")).unwrap();
        std::fs::create_dir(&other).unwrap();
        for path in [tree.join("made/deep/file"), other.join("file")] {
            std::fs::write(path, "").unwrap();
        }
        symlink(&other, tree.join("link")).unwrap();
        symlink(other.join("file"), tree.join("straight")).unwrap();
        std::fs::hard_link(other.join("file"), tree.join("hard")).unwrap();
        if !rustix::process::geteuid().is_root() {
            assert_eq!(of(&tree), None);
            return give(&tree, &tree.join("made/deep/file")).unwrap();
        }
        assert_eq!(of(&tree), None, "it is ours");
        chown(&tree, Some(USER.uid), Some(USER.gid)).unwrap();
        assert_eq!(of(&tree), Some(USER));
        give(&tree, &tree.join("made/deep/file")).unwrap();
        for path in ["made", "made/deep", "made/deep/file"] {
            assert_eq!(owner(&tree.join(path)), USER.uid, "{path}");
        }
        give(&tree, &tree.join("link/file")).unwrap_err();
        give(&tree, &tree.join("../other/file")).unwrap_err();
        for quiet in ["straight", "hard", "none"] {
            give(&tree, &tree.join(quiet)).ok();
        }
        give(&tree, &other.join("file")).unwrap();
        assert_eq!((owner(&other), owner(&other.join("file"))), (0, 0));
    }

    #[test]
    fn a_tree_is_given_to_its_user_or_the_closed_directory_is_reported() {
        if !rustix::process::geteuid().is_root() {
            return; // Only root can give anything away.
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("worktrees");
        let tree = root.join("app/one/tree");
        std::fs::create_dir_all(tree.join(".git")).unwrap();
        let secret = root.join("app/one/ours");
        std::fs::create_dir(&secret).unwrap();
        for shut in [&root, &dir.path().to_owned()] {
            std::fs::set_permissions(shut, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        let err = hand_over(&root, &tree, &[], USER).unwrap_err().to_string();
        assert!(
            err.contains(&dir.path().display().to_string()) && err.contains("rooms.worktrees"),
            "{err}"
        );
        assert_eq!(owner(&tree), 0);
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        hand_over(&root, &tree, &[], USER).unwrap();
        for (path, uid) in
            [(&tree, USER.uid), (&tree.join(".git"), USER.uid), (&secret, 0), (&root, 0)]
        {
            assert_eq!(owner(path), uid, "{}", path.display());
        }
        assert_eq!(closed_to(&tree, USER), None);
        // The user must be able to reach the borrowed objects as well.
        let project = dir.path().join("project");
        std::fs::create_dir_all(project.join("objects")).unwrap();
        std::fs::set_permissions(&project, std::fs::Permissions::from_mode(0o700)).unwrap();
        let err =
            hand_over(&root, &tree, &[project.join("objects")], USER).unwrap_err().to_string();
        assert!(err.contains("project") && !err.contains("rooms.worktrees"), "{err}");
    }
}
