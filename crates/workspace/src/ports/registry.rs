//! Leases small numbers that sessions of one machine share: ports, and indexes of a Redis server.
//!
//! There is one directory per family, and one file per leased number. The file's content names the
//! owner, which is alive as long as a path in it exists (the session's journal). Every read and
//! change of a file is done under an exclusive lock on that file, and a file that was removed
//! meanwhile is recognized by its link count, so nothing can happen between a check and a lease.
//!
//! The directory belongs to the machine and may be shared by users (mode 1777): files of others are
//! never written, never followed through links, and count as leased. Another user can at worst use
//! up numbers, as with ports themselves.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::is_there;

/// The owner of a number.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Owner {
    /// The id of the data directory.
    pub home: String,
    pub session: String,
    /// The lease is valid as long as this path exists.
    pub alive: PathBuf,
}

/// Why the registry cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("making the directory of leases {}", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{} is not a directory that users may share safely ({why}): remove it, or set another \
         directory for leases", path.display()
    )]
    Unsafe { path: PathBuf, why: &'static str },
    #[error("using the lease {}", path.display())]
    Use {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The default directory for all daemons of a machine.
pub fn default_dir() -> PathBuf {
    PathBuf::from("/tmp/overmind-leases")
}

/// A directory of leases.
#[derive(Clone, Debug)]
pub struct Registry {
    dir: PathBuf,
}

impl Registry {
    /// Uses `dir`, and makes it if it is missing.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Unsafe`] if other users could remove our files there.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, RegistryError> {
        let dir = dir.into();
        shared_dir(&dir)?;
        Ok(Self { dir })
    }

    fn family(&self, family: &str) -> Result<PathBuf, RegistryError> {
        let dir = self.dir.join(family);
        shared_dir(&dir)?;
        Ok(dir)
    }

    /// Leases the first of `numbers` that nobody holds and for which `probe` returns true.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be used; a number that cannot be leased is skipped.
    pub fn take(
        &self,
        family: &str,
        numbers: impl Iterator<Item = u16>,
        owner: &Owner,
        mut probe: impl FnMut(u16) -> bool,
    ) -> Result<Option<u16>, RegistryError> {
        let dir = self.family(family)?;
        for number in numbers {
            let path = dir.join(number.to_string());
            let mut claim = match Claim::begin(&path, Wait::No) {
                Ok(Some(claim)) => claim,
                Ok(None) => continue,
                Err(source) => return Err(RegistryError::Use { path, source }),
            };
            if claim.holder.as_ref().is_some_and(|holder| is_there(&holder.alive)) {
                continue;
            }
            if probe(number) {
                claim.write(owner).map_err(|source| RegistryError::Use { path, source })?;
                return Ok(Some(number));
            }
            claim.remove();
        }
        Ok(None)
    }

    /// Makes sure that `owner` holds `number`; returns `false` if somebody else does.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be used.
    pub fn hold(&self, family: &str, number: u16, owner: &Owner) -> Result<bool, RegistryError> {
        let path = self.family(family)?.join(number.to_string());
        let using = |source| RegistryError::Use { path: path.clone(), source };
        let Some(mut claim) = Claim::begin(&path, Wait::Yes).map_err(using)? else {
            return Ok(false);
        };
        match &claim.holder {
            Some(holder) if holder.is_of(owner) => Ok(true),
            Some(holder) if is_there(&holder.alive) => Ok(false),
            Some(_) | None => claim.write(owner).map(|()| true).map_err(using),
        }
    }

    /// Releases `number` if `owner` holds it.
    pub fn release(&self, family: &str, number: u16, owner: &Owner) -> bool {
        let path = self.dir.join(family).join(number.to_string());
        if !path.exists() {
            return false;
        }
        match Claim::begin(&path, Wait::Yes) {
            Ok(Some(claim)) if claim.holder.as_ref().is_some_and(|held| held.is_of(owner)) => {
                claim.remove();
                true
            }
            Ok(Some(claim)) => {
                if claim.holder.is_none() {
                    claim.remove();
                }
                false
            }
            Ok(None) => false,
            Err(err) => {
                tracing::warn!(path = %path.display(), %err, "a lease could not be given back");
                false
            }
        }
    }

    /// Releases everything of the family that `owner` holds; returns the number of leases.
    pub fn release_all(&self, family: &str, owner: &Owner) -> usize {
        let held = self.list(family).unwrap_or_default();
        held.iter()
            .filter(|(_, holder)| holder.is_of(owner))
            .filter(|(number, _)| self.release(family, *number, owner))
            .count()
    }

    /// Every readable lease of the family, by number.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be listed.
    pub fn list(&self, family: &str) -> Result<Vec<(u16, Owner)>, RegistryError> {
        let dir = self.dir.join(family);
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(RegistryError::Use { path: dir, source }),
        };
        let mut held = Vec::new();
        for entry in entries.flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse::<u16>().ok());
            let content = std::fs::read(entry.path()).ok();
            let owner = content.and_then(|bytes| serde_json::from_slice::<Owner>(&bytes).ok());
            held.extend(number.zip(owner));
        }
        held.sort_by_key(|(number, _)| *number);
        Ok(held)
    }

    /// The families that have a directory.
    pub(crate) fn families(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

impl Owner {
    fn is_of(&self, other: &Self) -> bool {
        self.home == other.home && self.session == other.session
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Yes,
    No,
}

/// A lease's file, locked by us and known to be the one at its path.
#[derive(Debug)]
struct Claim {
    file: File,
    path: PathBuf,
    holder: Option<Owner>,
}

impl Claim {
    /// `None` if the file belongs to another user, or is locked by a reader.
    fn begin(path: &Path, wait: Wait) -> io::Result<Option<Self>> {
        // Each round ends because a file was removed between two of our calls; that process made
        // progress, so this ends too.
        for _ in 0..1000 {
            let Some(mut file) = open(path)? else { return Ok(None) };
            match wait {
                Wait::Yes => file.lock()?,
                Wait::No => match file.try_lock() {
                    Ok(()) => {}
                    Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
                    Err(std::fs::TryLockError::Error(err)) => return Err(err),
                },
            }
            let found = file.metadata()?;
            if found.nlink() == 0 {
                continue;
            }
            let me = rustix::process::geteuid();
            if !found.is_file()
                || found.nlink() != 1
                || (found.uid() != me.as_raw() && !me.is_root())
            {
                return Ok(None);
            }
            let mut content = Vec::new();
            file.read_to_end(&mut content)?;
            // It is empty or incomplete: its process died before it had a lease.
            let holder = serde_json::from_slice(&content).ok();
            return Ok(Some(Self { file, path: path.to_owned(), holder }));
        }
        Ok(None)
    }

    fn write(&mut self, owner: &Owner) -> io::Result<()> {
        let content = serde_json::to_vec(owner).map_err(io::Error::other)?;
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&content)
    }

    /// Removes the file while the lock is held.
    fn remove(self) {
        if let Err(err) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %err, "a lease's file stays");
        }
    }
}

/// Opens the file, and makes it if it is missing. `None` if we may not open it.
///
/// `O_CREAT` is never used on an existing file, because the kernel forbids that in shared
/// directories.
fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    for _ in 0..1000 {
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        match rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, mode) {
            Ok(file) => return Ok(Some(file.into())),
            Err(rustix::io::Errno::EXIST) => {}
            Err(err) => return Err(err.into()),
        }
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => return Ok(Some(file.into())),
            // It was removed between the two calls, so this tries again.
            Err(rustix::io::Errno::NOENT) => {}
            Err(
                rustix::io::Errno::ACCESS
                | rustix::io::Errno::PERM
                | rustix::io::Errno::LOOP
                | rustix::io::Errno::ISDIR
                | rustix::io::Errno::NXIO,
            ) => return Ok(None),
            Err(err) => return Err(err.into()),
        }
    }
    Ok(None)
}

/// Makes the directory if it is missing, and refuses one in which others could remove our files.
fn shared_dir(dir: &Path) -> Result<(), RegistryError> {
    let make = |source| RegistryError::Make { path: dir.to_owned(), source };
    let refuse = |why| RegistryError::Unsafe { path: dir.to_owned(), why };
    match DirBuilder::new().mode(0o1777).create(dir) {
        // The mode is set again, because the umask has reduced it.
        Ok(()) => {
            std::fs::set_permissions(dir, Permissions::from_mode(0o1777)).map_err(make)?;
        }
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            // This is a user's own directory that does not exist yet.
            if let Some(parent) = dir.parent() {
                std::fs::create_dir_all(parent).map_err(make)?;
            }
            DirBuilder::new().mode(0o1777).create(dir).map_err(make)?;
            std::fs::set_permissions(dir, Permissions::from_mode(0o1777)).map_err(make)?;
        }
        Err(err) => return Err(make(err)),
    }
    let found = std::fs::symlink_metadata(dir).map_err(make)?;
    if !found.is_dir() {
        return Err(refuse("it is not a directory"));
    }
    let mode = found.mode();
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(refuse("others may write to it and it has no sticky bit"));
    }
    Ok(())
}
