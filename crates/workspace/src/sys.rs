//! The only module of this crate that may use `unsafe`; everything it exports is safe to call.
//!
//! It starts a program with a view of the file system in which links within a directory are not
//! followed.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Gid, Mode, OFlags, StatVfsMountFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

/// Makes the program follow no symbolic link within `tops`, whichever process changes their
/// contents meanwhile: it can read and make links, but following one is an error (`ELOOP`). It is
/// started in `cwd`, as the user and group of `ids`, which needs root, or as this process's.
///
/// It gets its own mounts for this and, as a plain user, a user namespace in which it has the same
/// user.
///
/// # Errors
///
/// Fails if one of `tops`, parents first, does not exist. If the machine allows no such mounts, the
/// start fails.
pub(crate) fn follow_no_links(
    command: &mut Command,
    tops: &[PathBuf],
    cwd: &Path,
    ids: Option<(u32, u32)>,
) -> io::Result<()> {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    let mount = |top: &PathBuf| {
        let is = rustix::fs::statvfs(top)?.f_flag;
        Ok::<_, io::Error>((text(top)?, kept(is) | MountFlags::BIND | MountFlags::NOSYMFOLLOW))
    };
    let mounts = tops.iter().map(mount).collect::<io::Result<Vec<_>>>()?;
    let cwd = text(cwd)?;
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let maps = (format!("{0} {0} 1", own.0), format!("{0} {0} 1", own.1));
    let enter = move || {
        own_mounts(&maps)?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change(c"/", private)?;
        for (top, flags) in &mounts {
            rustix::mount::mount_bind_recursive(top.as_c_str(), top.as_c_str())?;
            rustix::mount::mount_remount(top.as_c_str(), *flags, c"")?;
        }
        // Its working directory was covered by the new mount.
        rustix::process::chdir(cwd.as_c_str())?;
        if let Some((user, group)) = ids {
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_gid(Gid::from_raw(group))?;
            rustix::thread::set_thread_uid(Uid::from_raw(user))?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls on memory that was made before, and nothing
    // else: no allocation, no lock.
    unsafe {
        command.pre_exec(enter);
    }
    Ok(())
}

/// The flags of a mount that a process cannot remove unless it owns the mount.
fn kept(flags: StatVfsMountFlags) -> MountFlags {
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ];
    let set = pairs.iter().filter(|(is, _)| flags.contains(*is)).map(|(_, flag)| *flag);
    set.fold(MountFlags::empty(), |all, flag| all | flag)
}

/// Gives this process its own mounts.
fn own_mounts((users, groups): &(String, String)) -> io::Result<()> {
    // SAFETY: the child of a fork has one thread, and no descriptors or memory are unshared.
    match unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) } {
        Ok(()) => return Ok(()),
        Err(Errno::PERM) => {}
        Err(err) => return Err(err.into()),
    }
    // SAFETY: as above.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)? };
    for (file, map) in [
        (c"/proc/self/setgroups", "deny"),
        (c"/proc/self/uid_map", users.as_str()),
        (c"/proc/self/gid_map", groups.as_str()),
    ] {
        let file = rustix::fs::openat(CWD, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, map.as_bytes())?;
    }
    Ok(())
}
