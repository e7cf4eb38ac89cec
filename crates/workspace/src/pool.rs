//! Trees that wait for a session, so that a session does not wait for git.
//!
//! A waiting tree is checked out at the primary's head with both its git directories. Handing it out is
//! one rename and a few small files: neither the files' inodes nor their times change, so the index
//! that was made with them stays right. When the head moves, a waiting tree is brought to it by git's
//! two-tree update, which writes only what differs.
//!
//! Fill the pool when nobody waits ([`Trees::fill`]): after a session was made, and now and then. A crash
//! leaves whole trees or, under another name, half-made ones, which the next start removes.

use std::path::{Path, PathBuf};

use overmind_core::failpoint::point;
use overmind_core::room::RoomReach;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::copy;
use crate::tree::{At, Ground, References, Warmth, find_within};
use crate::tree::{Options, Taken, Template, TreeError, Trees, directories};

/// The directory of waiting trees within a project's.
pub(crate) const READY: &str = ".ready";

/// How many trees wait, and how much they may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    pub trees: usize,
    /// Bytes of all files of all waiting trees of a project.
    pub bytes: u64,
}

impl Default for PoolSize {
    /// Two trees, at most 4 GiB.
    fn default() -> Self {
        Self { trees: 2, bytes: 4 << 30 }
    }
}

/// The result of filling the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Trees that wait now.
    pub ready: usize,
    pub made: usize,
    /// Brought to where the head is now.
    pub updated: usize,
    pub removed: usize,
    pub bytes: u64,
}

impl Trees {
    /// Takes a waiting tree, if there is one, by moving it to `half`.
    pub(crate) fn take_ready(
        &self,
        ground: &Ground<'_>,
        home: &Path,
        half: &Path,
    ) -> Result<Option<(Template, Taken)>, TreeError> {
        let fingerprint = ground.fingerprint();
        let mut others = Vec::new();
        for place in directories(&home.join(READY))? {
            let Some(template) = Template::read(&place) else { continue };
            if template.fingerprint != fingerprint {
                continue;
            }
            if template.base.as_deref() != ground.base {
                others.push((place, template));
            } else if claim(&place, half)? {
                return Ok(Some((template, Taken::Ready)));
            }
        }
        for (place, mut template) in others {
            if !claim(&place, half)? {
                continue;
            }
            match self.bring_to(ground, half, &mut template) {
                Ok(true) => return Ok(Some((template, Taken::Updated))),
                Ok(false) => {}
                // Another one is created; the defect of this one is not the session's fault.
                Err(err) => {
                    tracing::warn!(tree = %place.display(), %err, "updating a waiting tree")
                }
            }
            self.throw_away(half)?;
        }
        Ok(None)
    }

    /// Brings a waiting tree to another commit. `false`: it cannot be used.
    fn bring_to(
        &self,
        ground: &Ground<'_>,
        place: &Path,
        template: &mut Template,
    ) -> Result<bool, TreeError> {
        let warmth = ground.update(place, template)?;
        match warmth {
            Warmth::Same | Warmth::Updated => {
                template.write(place)?;
                Ok(true)
            }
            Warmth::Cold => Ok(false),
        }
    }

    /// Fills a project's pool up, brings every waiting tree to where the head is now, and removes those
    /// that cannot be used or are too many. Takes as long as `git worktree add` for each new one.
    ///
    /// Outside a repository there is nothing to fill.
    ///
    /// # Errors
    ///
    /// See [`Trees::prepare`]. Trees that were prepared before are kept.
    pub fn fill(
        &self,
        project: &Path,
        reach: &RoomReach,
        options: &Options,
        size: PoolSize,
    ) -> Result<Filled, TreeError> {
        let mut filled = Filled::default();
        let Some((source, _)) = find_within(project, reach)? else { return Ok(filled) };
        if source.common.starts_with(self.root()) {
            return Ok(filled);
        }
        let settings = self.settings(&source)?;
        let refs = References::read(self.git(), &source)?;
        let Some(base) = refs.head.commit() else { return Ok(filled) };
        let ignored = crate::tree::ignored_everywhere(options.excludes_file.as_deref())?;
        let ground = Ground {
            git: self.git(),
            cache: self.cache(),
            source: &source,
            settings: &settings,
            base: Some(base),
            ignored: &ignored,
            identity: options.identity.as_ref(),
            lender: None,
            anchor: Some(base),
            own: &self.own(),
        };
        let home = self.home(&source.common, source.top.as_deref());
        let _making = self.making_in(&home);
        let ready = home.join(READY);
        std::fs::create_dir_all(&ready).at("making", &ready)?;
        crate::tree::note_project_of(&home, &source, &settings)?;
        let wanted = self.want_base(&source, base)?;
        let fingerprint = ground.fingerprint();
        for place in directories(&ready)? {
            let half = half_made(&place);
            let template = Template::read(&place).filter(|t| t.fingerprint == fingerprint);
            let Some(mut template) = template.filter(|_| filled.ready < size.trees) else {
                self.throw_away(&place)?;
                filled.removed += 1;
                continue;
            };
            let same = template.base.as_deref() == Some(base);
            if !same {
                if !claim(&place, &half)? {
                    continue;
                }
                if !self.bring_to(&ground, &half, &mut template)? {
                    self.throw_away(&half)?;
                    filled.removed += 1;
                    continue;
                }
                point("pool.updated");
                std::fs::rename(&half, &place).at("putting in its place", &place)?;
                filled.updated += 1;
            }
            filled.bytes += template.bytes;
            filled.ready += 1;
        }
        let mut one = 0;
        while filled.ready < size.trees && filled.bytes + one <= size.bytes {
            let Some((place, half)) = free(&ready)? else { continue };
            point("pool.claimed");
            let template = match ground.build(&half) {
                Ok(template) => template,
                Err(err) => {
                    let _ = self.throw_away(&half);
                    return Err(err);
                }
            };
            one = template.bytes;
            if filled.bytes + one > size.bytes {
                // The first one says how large they are, and even it is too large.
                self.throw_away(&half)?;
                break;
            }
            point("pool.built");
            std::fs::rename(&half, &place).at("putting in its place", &place)?;
            point("pool.placed");
            filled.bytes += one;
            filled.ready += 1;
            filled.made += 1;
        }
        drop(wanted);
        self.release_bases(&home, &source)?;
        Ok(filled)
    }
}

fn half_made(place: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".making-");
    name.push(place.file_name().unwrap_or_default());
    place.with_file_name(name)
}

/// A free number in the pool, claimed by the directory in which the tree is made.
fn free(ready: &Path) -> Result<Option<(PathBuf, PathBuf)>, TreeError> {
    for number in 0_u32.. {
        let place = ready.join(number.to_string());
        let half = half_made(&place);
        if place.exists() {
            continue;
        }
        match std::fs::create_dir(&half) {
            Ok(()) if place.exists() => {
                copy::remove_all(&half).at("removing", &half)?;
                return Ok(None);
            }
            Ok(()) => return Ok(Some((place, half))),
            Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(err) => return Err(err).at("making", &half),
        }
    }
    Ok(None)
}

/// Moves a prepared tree out of the pool; `false` if another caller was faster.
fn claim(place: &Path, half: &Path) -> Result<bool, TreeError> {
    match renameat_with(CWD, place, CWD, half, RenameFlags::NOREPLACE) {
        Ok(()) => {
            point("pool.taken");
            Ok(true)
        }
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(rustix::io::Errno::EXIST) => {
            let name = half.file_name().unwrap_or_default().to_string_lossy();
            let session = name.trim_start_matches(".making-").to_owned();
            Err(TreeError::NameTaken { session })
        }
        Err(errno) => Err(errno.into()).at("taking a waiting tree", place),
    }
}
