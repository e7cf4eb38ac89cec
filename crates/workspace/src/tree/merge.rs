//! Merging a session's work into a branch of the primary.
//!
//! The merge is computed in our own git directory, so that conflicts are known before anything of the
//! primary is touched. Only when the branch is checked out somewhere are files changed, and there git
//! first checks that nothing uncommitted is in the way, and then changes all or nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::adopt::{Operation, tell_branch};
use super::error::{At, TreeError};
use super::history::patiently;
use super::notes::TreeIntent;
use super::primary::Update;
use super::snapshot::{Stamp, commit, shoot};
use super::source::{self, Head, References, Source};
use super::{Trees, filters};
use crate::git::{Answer, GitError, path_of};
use crate::opener::Dir;

/// The longest name of a branch, in bytes.
const NAME: u64 = 4 << 10;
/// How long the index of a checkout may be another git's before a merge is refused.
const OTHERS: Duration = Duration::from_secs(2);

/// How to merge.
#[derive(Clone, Debug)]
pub struct MergeInto<'a> {
    /// The branch; without it the one that the primary has checked out.
    pub branch: Option<&'a str>,
    /// Commits what is uncommitted first, under `message`. Without it that is an error.
    pub commit_rest: bool,
    /// Of that commit, and of a merge commit if one is needed.
    pub message: &'a str,
    /// Seconds since 1970.
    pub now: i64,
    /// The home of the primary's user, whose configuration (above all filters) applies to their files.
    pub home: Option<&'a Path>,
}

/// How a merge ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merged {
    /// The branch had everything.
    Nothing { branch: String },
    /// The branch was moved forward to the session's last commit.
    Forward { branch: String, commit: String },
    /// A merge commit joins both.
    Joined { branch: String, commit: String },
    /// Both changed these files; nothing was done. `told`: the session's repository has the branch as it is
    /// now, so that the session can merge it and solve them.
    Conflicts { branch: String, files: Vec<PathBuf>, told: bool },
}

/// A branch of the primary, and the commit that it is at.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// In full.
    pub(crate) name: String,
    /// Without `refs/heads/`.
    pub(crate) branch: String,
    pub(crate) old: String,
}

/// The git directory with a rebase in progress that will move this branch.
fn rebased_in(source: &Source, name: &str) -> Option<PathBuf> {
    let worktrees = super::directories(&source.common.join("worktrees")).unwrap_or_default();
    let git_dirs = std::iter::once(source.common.clone()).chain(worktrees);
    let moves = |git_dir: &PathBuf| {
        ["rebase-merge/head-name", "rebase-apply/head-name"].iter().any(|file| {
            let text = source::read_small(&git_dir.join(file), NAME).ok().flatten();
            text.is_some_and(|text| text.trim_ascii_end() == name.as_bytes())
        })
    };
    git_dirs.filter(|dir| dir.is_dir()).find(moves)
}

impl Trees {
    /// Merges a session's commits into a branch of the primary.
    ///
    /// A conflict, a dirty file in the way, another git at work: nothing was changed then. After a crash
    /// between the files and the branch, merging again finishes it.
    ///
    /// # Errors
    ///
    /// [`TreeError::Uncommitted`], [`TreeError::PrimaryInTheWay`], [`TreeError::PrimaryBusy`],
    /// [`TreeError::NoBranch`], [`TreeError::NoSuchBranch`], [`TreeError::NoRepository`],
    /// [`GitError::Locked`]; otherwise as [`Trees::status`].
    pub fn merge(&self, intent: &TreeIntent, into: &MergeInto<'_>) -> Result<Merged, TreeError> {
        // A reader holds the tree only for a moment.
        let mut held = patiently(intent)?;
        let Some(source) = held.notes.intent.source() else {
            return Err(TreeError::NoRepository { session: intent.session.clone() });
        };
        let (message, now) =
            held.notes.stamp.clone().unwrap_or_else(|| (into.message.to_owned(), into.now));
        let by = self.by(Some(&source));
        let shots = shoot(&self.git, &held, Stamp { message: &message, now, by: &by })?;
        let main = shots.first().ok_or_else(|| TreeError::Gone { place: held.place.clone() })?;
        if main.dirty && !into.commit_rest {
            return Err(TreeError::Uncommitted { session: intent.session.clone() });
        }
        let turn = self.turn(&source);
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let target = self.target(&source, into)?;
        let ours = held.place.join("ours");
        let Some(tip) = main.tip.clone() else {
            return Ok(Merged::Nothing { branch: target.branch });
        };
        let merged = self.computed(&ours, (&source, &target), &tip, into)?;
        let new = match &merged {
            Merged::Nothing { .. } => return Ok(merged),
            Merged::Conflicts { branch, files, .. } => {
                let told = held.notes.units.first().map_or(Ok(false), |unit| {
                    let at = (target.name.as_str(), target.old.as_str());
                    tell_branch(&held.place, unit, &main.adopted, at)
                });
                let (branch, files) = (branch.clone(), files.clone());
                return Ok(Merged::Conflicts { branch, files, told: told? });
            }
            Merged::Forward { commit, .. } | Merged::Joined { commit, .. } => commit.clone(),
        };
        let before = held.notes.stamp.clone();
        if main.dirty {
            held.notes.stamp = Some((message, now));
            held.write()?;
        }
        let of_session = held.notes.intent.branch.clone();
        self.save_submodules(&mut held, &shots, &of_session)?;
        self.send(&ours, &source, &[&new])?;
        if let Err(err) = self.set_branch(&source, &target, &new, into.home) {
            // Nothing was changed: the next attempt may have another result.
            if matches!(err, TreeError::PrimaryInTheWay { .. } | TreeError::PrimaryBusy { .. }) {
                held.notes.stamp = before;
                held.write()?;
            }
            return Err(err);
        }
        Ok(merged)
    }

    /// The current target branch.
    pub(crate) fn target(
        &self,
        source: &Source,
        into: &MergeInto<'_>,
    ) -> Result<Target, TreeError> {
        let refs = References::read(&self.git, source)?;
        let repo = source.common.clone();
        let name = match (into.branch, &refs.head) {
            (Some(branch), _) => format!("refs/heads/{branch}"),
            (None, Head::Branch { name, .. }) => name.clone(),
            (None, Head::Detached { .. }) => return Err(TreeError::NoBranch { repo }),
        };
        let branch = name.trim_start_matches("refs/heads/").to_owned();
        match refs.get(&name).map(str::to_owned) {
            Some(old) => Ok(Target { name, branch, old }),
            None => Err(TreeError::NoSuchBranch { branch, repo }),
        }
    }

    /// The result of a merge, computed in a git directory of ours that has both sides. The primary
    /// is not changed.
    pub(crate) fn computed(
        &self,
        ours: &Path,
        (source, target): (&Source, &Target),
        tip: &str,
        into: &MergeInto<'_>,
    ) -> Result<Merged, TreeError> {
        let (branch, old) = (target.branch.clone(), target.old.as_str());
        if self.is_ancestor(ours, tip, old)? {
            return Ok(Merged::Nothing { branch });
        }
        if self.is_ancestor(ours, old, tip)? {
            return Ok(Merged::Forward { branch, commit: tip.to_owned() });
        }
        match self.join(ours, old, tip)? {
            Ok(tree) => {
                let by = self.by(Some(source));
                let stamp = Stamp { message: into.message, now: into.now, by: &by };
                let commit = commit(&self.git, ours, &tree, &[old, tip], stamp)?;
                Ok(Merged::Joined { branch, commit })
            }
            Err(files) => Ok(Merged::Conflicts { branch, files, told: false }),
        }
    }

    /// The tree of a merge, or the files that both sides changed.
    fn join(
        &self,
        ours: &Path,
        old: &str,
        tip: &str,
    ) -> Result<Result<String, Vec<PathBuf>>, TreeError> {
        let merged = self
            .git
            .call("merge the session's commits")
            .repo(ours)
            .args(["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", old, tip])
            .accept(&[0, 1])
            .run()?;
        let mut parts = merged.stdout.split(|byte| *byte == 0);
        let tree = String::from_utf8_lossy(parts.next().unwrap_or_default()).trim().to_owned();
        if merged.code == 0 {
            return Ok(Ok(tree));
        }
        Ok(Err(parts.take_while(|part| !part.is_empty()).map(path_of).collect()))
    }

    /// Moves a branch, and the files where it is checked out.
    pub(crate) fn set_branch(
        &self,
        source: &Source,
        target: &Target,
        new: &str,
        home: Option<&Path>,
    ) -> Result<(), TreeError> {
        let (name, old) = (target.name.as_str(), target.old.as_str());
        let update =
            [Update::Move { name: name.to_owned(), to: new.to_owned(), from: old.to_owned() }];
        let out = self.checked_out(source)?;
        let Some((_, top)) = out.into_iter().find(|(branch, _)| branch == name) else {
            if let Some(git_dir) = rebased_in(source, name) {
                return Err(TreeError::PrimaryBusy { what: "rebase of this branch", top: git_dir });
            }
            return self.update(source, "merge a session", &update);
        };
        // A worktree that git names is one of this repository, or belongs to another one.
        let found = source::find(&top)?.filter(|(at, _)| at.common == source.common);
        let Some((at, _)) = found else {
            return Err(TreeError::RepositoryGone { repo: top.clone(), tree: top });
        };
        // For a repository whose git directory is kept elsewhere, git names that instead of the tree.
        let ours = source.top.as_ref().filter(|_| at.git_dir == source.git_dir);
        let (at, top) = match (ours, &at.top) {
            (Some(top), _) => (source.clone(), top.clone()),
            (None, Some(top)) => (at.clone(), top.clone()),
            (None, None) => {
                let branch = target.branch.clone();
                return Err(TreeError::CheckoutUnknown { branch, git_dir: at.git_dir });
            }
        };
        let git_dir = Dir::open_plain(&at.git_dir).at("opening", &at.git_dir)?;
        if let Some(operation) = Operation::of(&git_dir) {
            return Err(TreeError::PrimaryBusy { what: operation.as_str(), top });
        }
        let settings = filters::of_user(&self.git, &at, home)?;
        let there = Checkout { source: &at, top: &top, home, settings };
        // Files that only look changed (another time, equal contents) must not prevent the merge.
        self.in_checkout(&there, &["update-index", "--refresh"], &[0, 1])?;
        self.in_checkout(&there, &["read-tree", "-m", "-u", old, new], &[0]).map_err(|err| {
            let branch = name.trim_start_matches("refs/heads/").to_owned();
            match err {
                GitError::Failed { said, .. } => {
                    // Git names one of them, in words of its own.
                    let files = self.in_the_way(&there, old, new).unwrap_or_default();
                    TreeError::PrimaryInTheWay { branch, top: top.clone(), files, said }
                }
                err => err.into(),
            }
        })?;
        if let Err(err) = self.update(source, "merge a session", &update) {
            // Somebody moved the branch in between: the files go back to where they were.
            self.in_checkout(&there, &["read-tree", "-m", "-u", new, old], &[0])?;
            return Err(err);
        }
        Ok(())
    }

    /// The files that a merge changes and that have in a checkout what no commit has.
    fn in_the_way(
        &self,
        there: &Checkout<'_>,
        old: &str,
        new: &str,
    ) -> Result<Vec<PathBuf>, GitError> {
        let names = ["-z", "--name-only", "--no-renames"];
        let listed = |args: &[&str]| -> Result<BTreeSet<PathBuf>, GitError> {
            let out =
                self.in_checkout_now(there, &[&args[..1], &names, &args[1..]].concat(), &[0])?;
            let parts = out.stdout.split(|byte| *byte == 0).filter(|part| !part.is_empty());
            Ok(parts.map(path_of).collect())
        };
        let merged = listed(&["diff-tree", "-r", old, new])?;
        let changed = listed(&["diff-index", old])?;
        let added = listed(&["diff-tree", "-r", "--diff-filter=A", old, new])?;
        let is_in_the_way = |file: &&PathBuf| {
            let untracked = || there.top.join(file).symlink_metadata().is_ok();
            changed.contains(*file) || (added.contains(*file) && untracked())
        };
        Ok(merged.iter().filter(is_in_the_way).cloned().collect())
    }

    /// Waits for a while for the user's own git, or their editor's, which has the index for a moment.
    fn in_checkout(
        &self,
        there: &Checkout<'_>,
        args: &[&str],
        accept: &[i32],
    ) -> Result<(), GitError> {
        let until = Instant::now() + OTHERS;
        loop {
            match self.in_checkout_now(there, args, accept) {
                Err(GitError::Locked { .. }) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                done => return done.map(drop),
            }
        }
    }

    fn in_checkout_now(
        &self,
        there: &Checkout<'_>,
        args: &[&str],
        accept: &[i32],
    ) -> Result<Answer, GitError> {
        self.git
            .call(format!("change the files of {}", there.top.display()))
            .source(there.source)
            .work(there.top, &there.source.git_dir.join("index"))
            .plain(there.top)
            .owner(there.source.owner())
            .finishes()
            .for_user(there.home)
            .settings(there.settings.clone())
            .args(args)
            .accept(accept)
            .run()
    }
}

/// A working tree of the primary.
struct Checkout<'a> {
    source: &'a Source,
    top: &'a Path,
    home: Option<&'a Path>,
    /// See [`filters::of_user`].
    settings: Vec<(String, String)>,
}
