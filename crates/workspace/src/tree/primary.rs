//! Our writes to the primary repository: objects, our references, branches. Nothing else here
//! writes to it, and only [`super::merge`] changes its files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use super::build::Template;
use super::error::{At, TreeError};
use super::notes::{Held, Notes};
use super::pack::{taking, transfer};
use super::source::{OURS, Reference, References, Source};
use super::upkeep::project_of;
use super::{Trees, directories, names};
use crate::copy;
use crate::git::{GitError, path_of};
use crate::opener::Dir;

/// The prefix of references to borrowed commits, of all daemons.
const BASES: &str = "base/";

/// One change of a reference, if it has the expected value.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    Create { name: String, to: String },
    Move { name: String, to: String, from: String },
    Delete { name: String, from: String },
}

impl Trees {
    /// Keeps a commit that our sessions borrow from the primary's garbage collection. Another daemon
    /// has one of its own: neither lets go of what the other borrows.
    pub(crate) fn base_reference(&self, base: &str) -> String {
        format!("{OURS}{BASES}{}/{base}", self.id)
    }

    pub(crate) fn keep_base(&self, source: &Source, base: &str) -> Result<(), TreeError> {
        let name = self.base_reference(base);
        let set = [Update::Create { name: name.clone(), to: base.to_owned() }];
        match self.update(source, "keep a base", &set) {
            Ok(()) => Ok(()),
            // Another session may have been faster; then the reference has the intended value already.
            Err(err) => match References::read(&self.git, source)?.get(&name) {
                Some(id) if id == base => Ok(()),
                _ => Err(err),
            },
        }
    }

    /// Lets go of a base that no session and no waiting tree borrows from any more.
    pub(crate) fn release_bases(&self, home: &Path, source: &Source) -> Result<usize, TreeError> {
        self.with_unused_bases(home, source, |unused| {
            let updates: Vec<Update> = unused
                .iter()
                .map(|Reference { name, id, .. }| Update::Delete {
                    name: name.clone(),
                    from: id.clone(),
                })
                .collect();
            if !updates.is_empty() {
                self.update(source, "release a base", &updates)?;
            }
            Ok(updates.len())
        })
    }

    /// References to bases that no session and no waiting tree borrows from, in each project; with
    /// the repository that they are in.
    ///
    /// # Errors
    ///
    /// Returns an error if a project cannot be listed. One without its repository has none.
    pub fn unused_bases(&self) -> Result<Vec<(PathBuf, String)>, TreeError> {
        let mut all = Vec::new();
        for home in self.homes()? {
            let Some(source) = project_of(&home).filter(|source| source.is_there()) else {
                continue;
            };
            self.with_unused_bases(&home, &source, |unused| {
                let named = unused.into_iter().map(|one| (source.common.clone(), one.name));
                all.extend(named);
                Ok(())
            })?;
        }
        Ok(all)
    }

    /// Lets go of them, in all projects.
    ///
    /// # Errors
    ///
    /// See [`Trees::unused_bases`].
    pub fn release_unused_bases(&self) -> Result<(), TreeError> {
        for home in self.homes()? {
            if let Some(source) = project_of(&home).filter(|source| source.is_there()) {
                self.release_bases(&home, &source)?;
            }
        }
        Ok(())
    }

    fn with_unused_bases<T>(
        &self,
        home: &Path,
        source: &Source,
        work: impl FnOnce(Vec<Reference>) -> Result<T, TreeError>,
    ) -> Result<T, TreeError> {
        // Held until they are gone: a tree whose making begins meanwhile looks for its base afterwards.
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut used: HashSet<String> = wanted.iter().cloned().collect();
        for place in directories(home)? {
            if let Ok(text) = std::fs::read(place.join("notes"))
                && let Ok(notes) = serde_json::from_slice::<Notes>(&text)
            {
                used.extend(notes.intent.anchor);
            }
        }
        for place in directories(&home.join(crate::pool::READY))? {
            used.extend(Template::read(&place).and_then(|template| template.base));
        }
        let refs = References::read(&self.git, source)?;
        let ours = self.base_reference("");
        let before = format!("{OURS}{BASES}");
        let unused = refs.all.into_iter().filter(|reference| {
            let name = &reference.name;
            // Earlier versions put no daemon's id before the commit.
            let base = name
                .strip_prefix(&ours)
                .or_else(|| name.strip_prefix(&before).filter(|base| !base.contains('/')));
            base.is_some_and(|base| !used.contains(base))
        });
        let done = work(unused.collect());
        drop(wanted);
        done
    }

    /// Changes references, all or none.
    pub(crate) fn update(
        &self,
        source: &Source,
        why: &str,
        updates: &[Update],
    ) -> Result<(), TreeError> {
        let mut input = String::new();
        for update in updates {
            use std::fmt::Write as _;
            let _ = match update {
                Update::Create { name, to } => writeln!(input, "create {name} {to}"),
                Update::Move { name, to, from } => writeln!(input, "update {name} {to} {from}"),
                Update::Delete { name, from } => writeln!(input, "delete {name} {from}"),
            };
        }
        self.git
            .call(format!("{why} in {}", source.common.display()))
            .shared(source)
            .owner(source.owner())
            .finishes()
            .args(["update-ref", "--no-deref", "--stdin", "-m"])
            .arg(format!("overmind: {why}"))
            .input(input)
            .run()?;
        Ok(())
    }

    /// The objects that the repository has itself.
    pub(crate) fn present(
        &self,
        git_dir: &Path,
        ids: &[&str],
    ) -> Result<HashSet<String>, TreeError> {
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let list = self
            .git
            .call(format!("look for commits in {}", git_dir.display()))
            .repo(git_dir)
            .args(["cat-file", "--batch-check=%(objectname)"])
            .input(ids.join("\n") + "\n")
            .run()?;
        let text = String::from_utf8_lossy(&list.stdout);
        Ok(text.lines().filter(|line| !line.contains(' ')).map(str::to_owned).collect())
    }

    /// Brings commits from our git directory of a unit into the repository that it comes from.
    pub(crate) fn send(&self, ours: &Path, source: &Source, ids: &[&str]) -> Result<(), TreeError> {
        let there = self.present(&source.common, ids)?;
        let missing: Vec<&str> = ids.iter().copied().filter(|id| !there.contains(*id)).collect();
        if !missing.is_empty() {
            let refs = References::read(&self.git, source)?;
            let known = refs
                .all
                .iter()
                .filter(|r| r.name.starts_with("refs/heads/") || r.name.starts_with(OURS));
            let mut known: Vec<&str> = known.map(|r| r.id.as_str()).take(2000).collect();
            known.sort_unstable();
            known.dedup();
            let into = taking(&self.git, &source.common).shared(source).owner(source.owner());
            transfer(&self.git, ours, &missing, &known, into)?;
        }
        self.send_large_files(ours, source)
    }

    /// Large files (LFS) that the session's commits point to.
    fn send_large_files(&self, ours: &Path, source: &Source) -> Result<(), TreeError> {
        let from = ours.join("lfs/objects");
        if !from.is_dir() {
            return Ok(());
        }
        let (lfs, to) = (source.common.join("lfs"), source.common.join("lfs/objects"));
        let from_dir = Dir::open(&from).at("opening", &from)?;
        let common = Dir::open_plain(&source.common).at("opening", &source.common)?;
        let to_dir = common.sub_made(Path::new("lfs/objects")).at("making", &to)?;
        let mut budget = copy::Budget { bytes: u64::MAX, files: u64::MAX };
        // Links are to what the primary's store has already.
        let there = |path: &Path, _| {
            let at = from.join(path);
            std::fs::symlink_metadata(at).is_ok_and(|meta| meta.is_symlink())
                || to_dir.file(path).is_ok()
        };
        copy::copy_dir(&from_dir, &to_dir, &mut budget, &there).at("copying to", &to)?;
        if let Some((user, group)) = source.owner() {
            copy::give_to(&lfs, user, group).at("giving to its owner", &lfs)?;
        }
        Ok(())
    }

    /// The worktree of each branch.
    pub(crate) fn checked_out(&self, source: &Source) -> Result<Vec<(String, PathBuf)>, TreeError> {
        let list = self
            .git
            .call(format!("list the worktrees of {}", source.common.display()))
            .shared(source)
            .args(["worktree", "list", "--porcelain", "-z"])
            .run()?;
        let mut found = Vec::new();
        let mut at = PathBuf::new();
        for part in list.parts() {
            if let Some(path) = part.strip_prefix(b"worktree ") {
                at = path_of(path);
            } else if let Some(name) = part.strip_prefix(b"branch ") {
                found.push((String::from_utf8_lossy(name).into_owned(), at.clone()));
            }
        }
        Ok(found)
    }

    pub(crate) fn is_ancestor(
        &self,
        git_dir: &Path,
        older: &str,
        newer: &str,
    ) -> Result<bool, GitError> {
        let answer = self
            .git
            .call("compare two commits")
            .repo(git_dir)
            .args(["merge-base", "--is-ancestor", older, newer])
            .accept(&[0, 1])
            .run()?;
        Ok(answer.code == 0)
    }

    /// Leaves a commit on a branch in the primary: the wanted one, or one with a number behind it where
    /// that is taken by something else. A branch that is checked out, or has commits of its own, is
    /// never moved. Returns the branch's name.
    pub(crate) fn publish(
        &self,
        held: &mut Held,
        (ours, source): (&Path, &Source),
        wanted: &str,
        commit: &str,
    ) -> Result<String, TreeError> {
        self.send(ours, source, &[commit])?;
        let refs = References::read(&self.git, source)?;
        let taken: HashSet<&str> = refs.all.iter().map(|r| r.name.as_str()).collect();
        let mut busy = None;
        for number in 1.. {
            let branch = names::numbered(wanted, number);
            let name = format!("refs/heads/{branch}");
            let update = match refs.get(&name) {
                Some(id) if id == commit => None,
                Some(id) => {
                    let known = held.notes.published.iter().any(|(n, to)| *n == name && to == id);
                    if busy.is_none() {
                        busy = Some(self.checked_out(source)?);
                    }
                    let out = busy.iter().flatten().any(|(branch, _)| *branch == name);
                    if !known || out || !self.is_ancestor(ours, id, commit)? {
                        continue;
                    }
                    Some(Update::Move {
                        name: name.clone(),
                        to: commit.to_owned(),
                        from: id.to_owned(),
                    })
                }
                None if names::is_free(&branch, &taken) => {
                    Some(Update::Create { name: name.clone(), to: commit.to_owned() })
                }
                None => continue,
            };
            if let Some(update) = update {
                self.update(source, "publish a session's branch", &[update])?;
            }
            held.notes.published.retain(|(known, _)| *known != name);
            held.notes.published.push((name, commit.to_owned()));
            held.write()?;
            return Ok(branch);
        }
        Err(TreeError::BadBranch { name: wanted.to_owned() })
    }
}
