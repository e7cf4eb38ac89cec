//! Work whose tree was removed: a commit of the primary, on the branch of the saved work.
//!
//! Whatever has to be computed is computed in a git directory of ours that borrows the primary's
//! objects, as with a session's tree: no configuration, driver or filter of the repository runs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use overmind_core::room::RoomReach;

use super::error::{At, TreeError};
use super::finish::DISCARDED;
use super::gitdir;
use super::merge::{MergeInto, Merged};
use super::names;
use super::primary::Update;
use super::snapshot::{Diff, Stamp, commit, empty_tree};
use super::source::{self, References, Source};
use super::{TRASH, Trees};
use crate::copy;

/// The work that a session left.
#[derive(Clone, Copy, Debug)]
pub struct Left<'a> {
    /// Any directory of its project.
    pub project: &'a Path,
    /// Which repositories the project may lead to.
    pub reach: &'a RoomReach,
    /// Its branch in the primary, without `refs/heads/`.
    pub branch: &'a str,
    /// The commit that its work ended at.
    pub commit: &'a str,
    /// The commit that it began at; `None`: there was none yet.
    pub base: Option<&'a str>,
    /// Its branch stays when it is merged: it was requested.
    pub keep_branch: bool,
}

/// Left work, as it is found.
struct Found {
    source: Source,
    /// The branch in full.
    name: String,
    /// The current last commit of its work: a user may have added commits on its branch.
    tip: String,
    /// Whether the branch still exists and contains it.
    on_branch: bool,
    format: String,
}

/// A git directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It is in the trash: the rest of it is removed at the next start.
        let _ = copy::remove_all(&self.0);
    }
}

impl Trees {
    /// The changes, as numbers and as a patch of at most `patch_bytes`, and the number of commits.
    ///
    /// # Errors
    ///
    /// [`TreeError::WorkGone`], [`TreeError::NoRepository`]; git and I/O errors.
    pub fn left_work(&self, left: &Left<'_>, patch_bytes: u64) -> Result<(Diff, u64), TreeError> {
        let found = self.find_left(left)?;
        let scratch = self.scratch(&found)?;
        let base = left.base.unwrap_or_else(|| empty_tree(&found.format));
        let known: Vec<String> = left.base.map(str::to_owned).into_iter().collect();
        let commits = self.count(&scratch.0, &found.tip, &known)?;
        Ok((self.difference(&scratch.0, base, &found.tip, patch_bytes)?, commits))
    }

    /// Merges it into a branch of the primary, as [`Trees::merge`] does. Once all of it is there, its own
    /// branch goes, unless that is checked out.
    ///
    /// # Errors
    ///
    /// See [`Trees::merge`] and [`Trees::left_work`].
    pub fn left_merge(&self, left: &Left<'_>, into: &MergeInto<'_>) -> Result<Merged, TreeError> {
        let found = self.find_left(left)?;
        let turn = self.turn(&found.source);
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let target = self.target(&found.source, into)?;
        let scratch = self.scratch(&found)?;
        let merged = self.computed(&scratch.0, (&found.source, &target), &found.tip, into)?;
        match &merged {
            Merged::Conflicts { .. } => return Ok(merged),
            Merged::Nothing { .. } => {}
            Merged::Forward { commit, .. } | Merged::Joined { commit, .. } => {
                self.send(&scratch.0, &found.source, &[commit])?;
                self.set_branch(&found.source, &target, commit, into.home)?;
            }
        }
        let goes = found.on_branch && !left.keep_branch && found.name != target.name;
        if goes && self.checked_out_at(&found)?.is_none() {
            let gone = Update::Delete { name: found.name.clone(), from: found.tip.clone() };
            self.update(&found.source, "let go of a merged session", &[gone])?;
        }
        Ok(merged)
    }

    /// Sees that a project has a branch to merge into, though there is nothing to be merged.
    ///
    /// # Errors
    ///
    /// [`TreeError::NoSuchBranch`]; git and I/O errors.
    pub fn check_target(
        &self,
        project: &Path,
        reach: &RoomReach,
        into: &MergeInto<'_>,
    ) -> Result<(), TreeError> {
        match self.primary_of(project, reach)? {
            Some(source) => self.target(&source, into).map(drop),
            None => Ok(()),
        }
    }

    /// Calls its branch otherwise; with a number behind the name where that is its own and has moved. Without a name it
    /// stays what it is, and is made again where it was removed. Returns the name and the commit.
    ///
    /// # Errors
    ///
    /// [`TreeError::BadBranch`], [`TreeError::BranchTaken`], [`TreeError::CheckedOut`]; as
    /// [`Trees::left_work`].
    pub fn left_branch(
        &self,
        left: &Left<'_>,
        name: Option<&str>,
    ) -> Result<(String, String), TreeError> {
        let found = self.find_left(left)?;
        let wanted = name.unwrap_or(left.branch);
        if !names::is_reference(&format!("refs/heads/{wanted}")) {
            return Err(TreeError::BadBranch { name: wanted.to_owned() });
        }
        let refs = References::read(self.git(), &found.source)?;
        let there = refs.get(&format!("refs/heads/{wanted}"));
        if wanted != left.branch && there.is_some_and(|id| *id != found.tip) {
            let (branch, repo) = (wanted.to_owned(), found.source.common.clone());
            return Err(TreeError::BranchTaken { branch, repo });
        }
        let taken: HashSet<&str> = refs.all.iter().map(|r| r.name.as_str()).collect();
        for number in 1.. {
            let branch = names::numbered(wanted, number);
            let full = format!("refs/heads/{branch}");
            match refs.get(&full) {
                Some(id) if *id == found.tip => return Ok((branch, found.tip)),
                Some(_) => continue,
                None if !names::is_free(&branch, &taken) => continue,
                None => {}
            }
            let mut updates = vec![Update::Create { name: full, to: found.tip.clone() }];
            if found.on_branch {
                if let Some(top) = self.checked_out_at(&found)? {
                    return Err(TreeError::CheckedOut { branch: left.branch.to_owned(), top });
                }
                let (name, from) = (found.name.clone(), found.tip.clone());
                updates.push(Update::Delete { name, from });
            }
            self.update(&found.source, "name a session's branch", &updates)?;
            return Ok((branch, found.tip));
        }
        Err(TreeError::BadBranch { name: wanted.to_owned() })
    }

    /// Gives it up: its branch goes, and its last state stays under a reference of ours until
    /// [`Trees::sweep`] finds it too old. Returns that reference and its commit. Only on a human's request.
    ///
    /// # Errors
    ///
    /// [`TreeError::CheckedOut`]; as [`Trees::left_work`].
    pub fn left_discard(
        &self,
        left: &Left<'_>,
        session: &str,
        now: i64,
    ) -> Result<(String, String), TreeError> {
        let found = self.find_left(left)?;
        if found.on_branch
            && let Some(top) = self.checked_out_at(&found)?
        {
            return Err(TreeError::CheckedOut { branch: left.branch.to_owned(), top });
        }
        let scratch = self.scratch(&found)?;
        let tree = self
            .git()
            .call("find the files of a commit")
            .repo(&scratch.0)
            .args(["rev-parse", "--verify", "--quiet", "--end-of-options"])
            .arg(format!("{}^{{tree}}", found.tip))
            .run()?
            .line();
        let message = format!("the last state of {session}, which was discarded");
        let stamp = Stamp { message: &message, now, by: &[] };
        // A separate commit: its date starts the retention time.
        let last = commit(self.git(), &scratch.0, &tree, &[&found.tip], stamp)?;
        self.send(&scratch.0, &found.source, &[&last])?;
        let refs = References::read(self.git(), &found.source)?;
        let session = names::component(session);
        let mut free = (1..).map(|number| names::numbered(&session, number));
        let free = free.find(|name| refs.get(&format!("{DISCARDED}{name}")).is_none());
        let kept = format!("{DISCARDED}{}", free.unwrap_or_default());
        let mut updates = vec![Update::Create { name: kept.clone(), to: last.clone() }];
        if found.on_branch {
            updates.push(Update::Delete { name: found.name.clone(), from: found.tip.clone() });
        }
        self.update(&found.source, "discard a session", &updates)?;
        Ok((kept, last))
    }

    fn find_left(&self, left: &Left<'_>) -> Result<Found, TreeError> {
        let none = || TreeError::NoRepository { session: left.branch.to_owned() };
        let source = self.primary_of(left.project, left.reach)?.ok_or_else(none)?;
        let settings = self.settings(&source)?;
        let gone =
            || TreeError::WorkGone { commit: left.commit.to_owned(), repo: source.common.clone() };
        if self.present(&source.common, &[left.commit])?.is_empty() {
            return Err(gone());
        }
        let refs = References::read(self.git(), &source)?;
        let name = format!("refs/heads/{}", left.branch);
        let there = match refs.get(&name) {
            Some(id) if self.is_ancestor(&source.common, left.commit, id)? => Some(id.to_owned()),
            Some(_) | None => None,
        };
        Ok(Found {
            name,
            on_branch: there.is_some(),
            tip: there.unwrap_or_else(|| left.commit.to_owned()),
            format: settings.format().to_owned(),
            source,
        })
    }

    /// The repository that work of a project's sessions goes to: of a session within a session, the
    /// other's.
    fn primary_of(&self, project: &Path, reach: &RoomReach) -> Result<Option<Source>, TreeError> {
        let project = source::unlinked(project)?;
        if project.starts_with(self.root()) {
            let listed = self.list()?;
            let within = listed.into_iter().find(|one| project.starts_with(one.intent.tree()));
            return Ok(within.and_then(|one| one.intent.source()));
        }
        Ok(source::find_within(&project, reach)?.map(|(source, _)| source))
    }

    /// The worktree in which the branch is checked out, if there is one.
    fn checked_out_at(&self, found: &Found) -> Result<Option<PathBuf>, TreeError> {
        let out = self.checked_out(&found.source)?;
        Ok(out.into_iter().find(|(name, _)| *name == found.name).map(|(_, top)| top))
    }

    fn scratch(&self, found: &Found) -> Result<Scratch, TreeError> {
        let settings = self.settings(&found.source)?;
        let trash = self.root().join(TRASH);
        std::fs::create_dir_all(&trash).at("making", &trash)?;
        for number in 0_u32.. {
            let path = trash.join(format!("scratch-{number}"));
            match std::fs::create_dir(&path) {
                Ok(()) => {}
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(err) => return Err(err).at("making", &path),
            }
            let scratch = Scratch(path);
            let layout = gitdir::Layout {
                head: "refs/heads/none",
                settings: &settings.data(),
                borrow: &[found.source.objects()],
                shallow: settings.shallow.as_deref(),
                ..gitdir::Layout::default()
            };
            gitdir::write(&scratch.0, &layout).at("writing a git directory at", &scratch.0)?;
            return Ok(scratch);
        }
        Err(TreeError::Gone { place: trash })
    }
}
