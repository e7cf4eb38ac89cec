//! The end of a session's work: saved as a branch, kept, discarded; and the removal of the tree,
//! which is refused while it contains unsaved work.

use std::path::{Path, PathBuf};

use super::Trees;
use super::adopt::called;
use super::build::Unit;
use super::error::{At, TreeError};
use super::gitdir;
use super::history::shortly;
use super::names;
use super::notes::{Ending, Held, TreeIntent};
use super::primary::Update;
use super::snapshot::{Shot, Stamp, UNNAMED, commit, shoot};
use super::source::{OURS, References, Source};
use crate::git::GitError;

/// Where discarded work is kept for a while, and what else belonged to it.
pub(crate) const DISCARDED: &str = "refs/overmind/discarded/";
pub(crate) const DISCARDED_MORE: &str = "refs/overmind/discarded-more/";
/// Other branches, tags and stashes of parked sessions.
const PARKED: &str = "refs/overmind/parked/";

/// Saved work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// The branch in the primary, without `refs/heads/`; for a copy of a directory the file, a bundle.
    /// `None`: there was nothing to save.
    pub saved_as: Option<String>,
    pub commit: Option<String>,
    /// Whether a commit was created from uncommitted files.
    pub wip: bool,
    /// The references to which other branches, tags and stashes of the session were moved.
    pub others: Vec<String>,
    /// Repositories within the tree: what is in them was not saved.
    pub nested: Vec<PathBuf>,
    /// Why the session's commits could not be read; its files were saved nevertheless.
    pub unreadable: Option<String>,
}

/// A session's branch, left in the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Without `refs/heads/`. To push it: `git push -u <remote> <branch>`.
    pub branch: String,
    pub commit: String,
    /// Uncommitted files, which are not on it.
    pub uncommitted: bool,
}

/// Discarded work, until it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// The reference in the primary that keeps it: `git branch NAME <this>` brings it back. For a copy
    /// of a directory: the bundle.
    pub saved_as: String,
    /// Repositories within the tree: they are lost.
    pub nested: Vec<PathBuf>,
}

/// The result of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    Removed,
    /// There was nothing (any more).
    AlreadyGone,
}

impl Trees {
    /// Saves everything in a session's tree on its branch in the primary: its commits, and a commit of
    /// what is uncommitted, untracked files included, ignored ones not. No hook runs and nothing is
    /// signed. The tree stays as it is. Saving again what was saved is no further commit.
    ///
    /// # Errors
    ///
    /// See [`Trees::status`].
    pub fn park(&self, intent: &TreeIntent, message: &str, now: i64) -> Result<Parked, TreeError> {
        let mut held = shortly(intent)?;
        // The same files under the stamp of the last time are the same commit.
        let (message, now) = held.notes.stamp.clone().unwrap_or_else(|| (message.to_owned(), now));
        let by = self.by(intent.source().as_ref());
        let stamp = Stamp { message: &message, now, by: &by };
        let shots = shoot(&self.git, &held, stamp)?;
        self.save(&mut held, &shots, stamp)
    }

    fn save(&self, held: &mut Held, shots: &[Shot], stamp: Stamp<'_>) -> Result<Parked, TreeError> {
        // First, so that what is saved now is known again after a crash.
        held.notes.stamp = Some((stamp.message.to_owned(), stamp.now));
        held.write()?;
        let branch = held.notes.intent.branch.clone();
        let others = self.save_others(held, shots, PARKED)?;
        self.save_submodules(held, shots, &branch)?;
        let main = shots.first().ok_or_else(|| TreeError::Gone { place: held.place.clone() })?;
        let mut parked = Parked {
            saved_as: None,
            commit: None,
            wip: main.dirty,
            others,
            nested: nested(held, shots),
            unreadable: unreadable(held, shots),
        };
        let Some(tip) = main.tip.clone().filter(|tip| Some(tip) != held.notes.intent.base.as_ref())
        else {
            return Ok(parked);
        };
        let saved_as = match held.notes.intent.source() {
            Some(source) => {
                let ours = held.place.join("ours");
                self.publish(held, (&ours, &source), &branch, &tip)?
            }
            None => self.bundle(held, &tip)?,
        };
        overmind_core::failpoint::point("tree.published");
        held.notes.ending =
            Some(Ending::Parked { commit: tip.clone(), saved_as: saved_as.clone() });
        held.write()?;
        overmind_core::failpoint::point("tree.parked");
        parked.saved_as = Some(saved_as);
        parked.commit = Some(tip);
        Ok(parked)
    }

    /// Saves work in submodules in the repositories they come from.
    pub(crate) fn save_submodules(
        &self,
        held: &mut Held,
        shots: &[Shot],
        branch: &str,
    ) -> Result<(), TreeError> {
        let units = held.notes.units.clone();
        for (unit, shot) in units.iter().zip(shots).filter(|(unit, _)| unit.is_submodule()) {
            let Some(tip) = shot.tip.as_ref().filter(|tip| Some(*tip) != unit.base.as_ref()) else {
                continue;
            };
            let source = of_unit(&held.notes.intent, unit);
            self.publish(held, (&held.ours(unit), &source), branch, tip)?;
        }
        Ok(())
    }

    /// Saves what a session made besides what is checked out: under names of ours, so that the list of
    /// branches stays the user's.
    fn save_others(
        &self,
        held: &Held,
        shots: &[Shot],
        beneath: &str,
    ) -> Result<Vec<String>, TreeError> {
        let mut saved = Vec::new();
        for (unit, shot) in held.notes.units.iter().zip(shots) {
            if shot.adopted.others.is_empty() || held.notes.intent.source().is_none() {
                continue;
            }
            let source = of_unit(&held.notes.intent, unit);
            let ids: Vec<&str> = shot.adopted.others.iter().map(|(_, id)| id.as_str()).collect();
            self.send(&held.ours(unit), &source, &ids)?;
            let refs = References::read(&self.git, &source)?;
            let mut updates = Vec::new();
            for (name, id) in &shot.adopted.others {
                let rest = name.strip_prefix("refs/").unwrap_or(name);
                let name = format!("{beneath}{}/{rest}", held.session());
                match refs.get(&name) {
                    Some(known) if known == id => {}
                    Some(known) => updates.push(Update::Move {
                        name: name.clone(),
                        to: id.clone(),
                        from: known.to_owned(),
                    }),
                    None => updates.push(Update::Create { name: name.clone(), to: id.clone() }),
                }
                saved.push(name);
            }
            if !updates.is_empty() {
                self.update(&source, "save a session's other branches", &updates)?;
            }
        }
        Ok(saved)
    }

    /// A file that holds a copy's first state and its last.
    fn bundle(&self, held: &Held, tip: &str) -> Result<String, TreeError> {
        let ours = held.place.join("ours");
        let name = format!("refs/heads/{}", held.notes.intent.branch);
        gitdir::set_reference(&ours, &name, tip).at("writing a branch in", &ours)?;
        let file = self.bundle_path(&held.notes.intent);
        let dir = file.parent().unwrap_or(&self.root);
        std::fs::create_dir_all(dir).at("making", dir)?;
        let half = file.with_extension("half");
        self.git
            .call(format!("write {}", file.display()))
            .repo(&ours)
            .args(["bundle", "create", "-q"])
            .arg(&half)
            .arg(&name)
            .run()?;
        std::fs::rename(&half, &file).at("writing", &file)?;
        Ok(file.to_string_lossy().into_owned())
    }

    fn bundle_path(&self, intent: &TreeIntent) -> PathBuf {
        let home = intent.home().file_name().unwrap_or_default().to_string_lossy();
        self.root.join(".parked").join(format!("{home}.{}.bundle", intent.session))
    }

    /// Leaves a session's commits on a branch in the primary, by this name or its own, ready to be pushed.
    /// At any time: the session may be at work. What is uncommitted is not on it.
    ///
    /// # Errors
    ///
    /// [`TreeError::BadBranch`], [`TreeError::BranchTaken`] for a name that is a branch of somebody else's,
    /// [`TreeError::NoRepository`]; otherwise as [`Trees::status`].
    pub fn pr_branch(
        &self,
        intent: &TreeIntent,
        name: Option<&str>,
    ) -> Result<Published, TreeError> {
        let mut held = shortly(intent)?;
        let given = name;
        let (source, name) = published_as(&held, given)?;
        let shots = shoot(&self.git, &held, UNNAMED)?;
        let main = shots.first().ok_or_else(|| TreeError::Gone { place: held.place.clone() })?;
        let Some(head) = main.adopted.head.clone() else {
            return Err(TreeError::Uncommitted { session: intent.session.clone() });
        };
        self.check_given(&held, &source, given, &head)?;
        let ours = held.place.join("ours");
        let branch = self.publish(&mut held, (&ours, &source), &name, &head)?;
        Ok(Published { branch, commit: head, uncommitted: main.dirty })
    }

    /// The same with everything on it: what is uncommitted becomes a commit, on that branch alone; the
    /// session's own stays where it is. `None`: there is nothing beyond the base.
    ///
    /// # Errors
    ///
    /// See [`Trees::pr_branch`].
    pub fn pr_branch_of_all(
        &self,
        intent: &TreeIntent,
        name: Option<&str>,
        (message, now): (&str, i64),
    ) -> Result<Option<Published>, TreeError> {
        let mut held = Held::take(intent)?;
        let given = name;
        let (source, name) = published_as(&held, given)?;
        let (message, now) = held.notes.stamp.clone().unwrap_or_else(|| (message.to_owned(), now));
        let by = self.by(Some(&source));
        let shots = shoot(&self.git, &held, Stamp { message: &message, now, by: &by })?;
        let main = shots.first().ok_or_else(|| TreeError::Gone { place: held.place.clone() })?;
        let Some(tip) = main.tip.clone().filter(|tip| Some(tip) != intent.base.as_ref()) else {
            return Ok(None);
        };
        self.check_given(&held, &source, given, &tip)?;
        // First, so that the same files are the same commit after a crash.
        held.notes.stamp = Some((message, now));
        held.write()?;
        let of_session = held.notes.intent.branch.clone();
        self.save_submodules(&mut held, &shots, &of_session)?;
        let ours = held.place.join("ours");
        let branch = self.publish(&mut held, (&ours, &source), &name, &tip)?;
        Ok(Some(Published { branch, commit: tip, uncommitted: false }))
    }

    /// Refuses a name that somebody gave and that is a branch with other commits, unless it was published for
    /// this session before: that one is moved, or the next gets a number.
    fn check_given(
        &self,
        held: &Held,
        source: &Source,
        given: Option<&str>,
        commit: &str,
    ) -> Result<(), TreeError> {
        let Some(branch) = given.filter(|given| *given != held.notes.intent.branch) else {
            return Ok(());
        };
        let name = format!("refs/heads/{branch}");
        let refs = References::read(&self.git, source)?;
        let own = held.notes.published.iter().any(|(known, _)| *known == name);
        match refs.get(&name) {
            Some(id) if id != commit && !own => Err(TreeError::BranchTaken {
                branch: branch.to_owned(),
                repo: source.common.clone(),
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Marks a tree to stay (`true`), or lets it go again.
    ///
    /// # Errors
    ///
    /// [`TreeError::Gone`], [`TreeError::Busy`]; I/O errors.
    pub fn keep(&self, intent: &TreeIntent, keep: bool) -> Result<(), TreeError> {
        let mut held = Held::take(intent)?;
        match (keep, &held.notes.ending) {
            (true, _) => held.notes.ending = Some(Ending::Kept),
            (false, Some(Ending::Kept)) => held.notes.ending = None,
            (false, _) => {}
        }
        held.write()
    }

    /// Gives a session's work up. Its last state, untracked files included, stays in the primary under a
    /// reference of ours until [`Trees::sweep`] finds it too old. Only on a human's request.
    ///
    /// # Errors
    ///
    /// See [`Trees::status`].
    pub fn discard(&self, intent: &TreeIntent, now: i64) -> Result<Discarded, TreeError> {
        let mut held = Held::take(intent)?;
        let message = format!("the last state of {}, which was discarded", held.session());
        let stamp = Stamp { message: &message, now, by: &[] };
        let shots = shoot(&self.git, &held, stamp)?;
        held.notes.stamp = Some((message.clone(), now));
        held.write()?;
        let nested = nested(&held, &shots);
        let main = shots.first().ok_or_else(|| TreeError::Gone { place: held.place.clone() })?;
        let ours = held.place.join("ours");
        // A separate commit even if everything was committed: its date starts the retention time.
        let parents: Vec<&str> = main.tip.as_deref().into_iter().collect();
        let last = commit(&self.git, &ours, &main.tree, &parents, stamp)?;
        let saved_as = match held.notes.intent.source() {
            None => self.bundle(&held, &last)?,
            Some(source) => match self.discard_into(&held, &shots, &source, &last) {
                // Work that the primary must not contain (by git's own checks) is saved in a file.
                Err(TreeError::Git(GitError::Failed { .. })) => self.bundle(&held, &last)?,
                done => done?,
            },
        };
        held.notes.ending = Some(Ending::Discarded { commit: last, saved_as: saved_as.clone() });
        held.write()?;
        Ok(Discarded { saved_as, nested })
    }

    /// Keeps discarded work under references of ours in the primary. Returns the one of its last state.
    fn discard_into(
        &self,
        held: &Held,
        shots: &[Shot],
        source: &Source,
        last: &str,
    ) -> Result<String, TreeError> {
        self.send(&held.place.join("ours"), source, &[last])?;
        let refs = References::read(&self.git, source)?;
        let mut free = (1..).map(|number| names::numbered(held.session(), number));
        let free = free.find(|name| refs.get(&format!("{DISCARDED}{name}")).is_none());
        let name = format!("{DISCARDED}{}", free.unwrap_or_default());
        let create = [Update::Create { name: name.clone(), to: last.to_owned() }];
        self.update(source, "keep a discarded session", &create)?;
        self.save_others(held, shots, DISCARDED_MORE)?;
        self.discard_submodules(held, shots, &name)?;
        Ok(name)
    }

    fn discard_submodules(&self, held: &Held, shots: &[Shot], name: &str) -> Result<(), TreeError> {
        for (unit, shot) in held.notes.units.iter().zip(shots) {
            let tip = shot.tip.as_ref().filter(|tip| Some(*tip) != unit.base.as_ref());
            let Some(tip) = tip.filter(|_| unit.is_submodule()) else { continue };
            let source = of_unit(&held.notes.intent, unit);
            self.send(&held.ours(unit), &source, &[tip])?;
            let refs = References::read(&self.git, &source)?;
            let name = name.to_owned();
            let update = match refs.get(&name) {
                Some(known) if known == tip => continue,
                Some(known) => Update::Move { name, to: tip.clone(), from: known.to_owned() },
                None => Update::Create { name, to: tip.clone() },
            };
            self.update(&source, "keep a discarded session", &[update])?;
        }
        Ok(())
    }

    /// Removes a session's tree. Refused while it holds work that exists only there, or is kept.
    /// Nothing there is fine, so that it can be called again after a crash.
    ///
    /// # Errors
    ///
    /// [`TreeError::Unsaved`] says what would be lost; [`TreeError::Kept`], [`TreeError::Busy`]; as
    /// [`Trees::status`].
    pub fn remove(&self, intent: &TreeIntent) -> Result<Removed, TreeError> {
        let mut held = match shortly(intent) {
            Ok(held) => held,
            Err(TreeError::Gone { place }) => {
                // Without notes it was never handed over, or its removal was cut short.
                self.throw_away(&place)?;
                return Ok(Removed::AlreadyGone);
            }
            Err(err) => return Err(err),
        };
        if held.notes.ending == Some(Ending::Kept) {
            return Err(TreeError::Kept { session: intent.session.clone() });
        }
        let unsaved = if intent.tree().is_dir() {
            self.unsaved(&held)?
        } else {
            // A user removed the directory on purpose; the known commits are saved.
            self.save_last_known(&mut held)?;
            Vec::new()
        };
        if !unsaved.is_empty() {
            return Err(TreeError::Unsaved { session: intent.session.clone(), unsaved });
        }
        if let Err(err) = self.retire_files(&held) {
            // The session's work is saved: only its earlier snapshots are removed.
            tracing::warn!(session = intent.session, %err, "keeping a session's snapshots");
        }
        self.throw_away(&held.place)?;
        if let Some(source) = intent.source().filter(|source| source.is_there()) {
            self.release_bases(intent.home(), &source)?;
        }
        Ok(Removed::Removed)
    }

    /// Undoes [`Trees::make`] in whatever state it was left. A tree that a session already worked in is
    /// treated as by [`Trees::remove`].
    ///
    /// # Errors
    ///
    /// See [`Trees::remove`].
    pub fn undo(&self, intent: &TreeIntent) -> Result<Removed, TreeError> {
        self.throw_away(&intent.half_made())?;
        self.remove(intent)
    }

    /// The work that would be lost.
    fn unsaved(&self, held: &Held) -> Result<Vec<String>, TreeError> {
        let stamp = held.notes.stamp.clone();
        // The same commit as the one that was saved: a discarded one was ours, and without a stamp none was.
        let by = match (&stamp, &held.notes.ending) {
            (None, _) | (_, Some(Ending::Discarded { .. })) => Vec::new(),
            (Some(_), Some(Ending::Parked { .. } | Ending::Kept) | None) => {
                self.by(held.notes.intent.source().as_ref())
            }
        };
        let stamp =
            stamp.as_ref().map_or(UNNAMED, |(message, now)| Stamp { message, now: *now, by: &by });
        let shots = shoot(&self.git, held, stamp)?;
        let discarded = matches!(held.notes.ending, Some(Ending::Discarded { .. }));
        let mut unsaved = Vec::new();
        for (unit, shot) in held.notes.units.iter().zip(&shots) {
            let at = called(unit);
            let mut ids: Vec<(&str, String)> = Vec::new();
            if let Some(tip) = &shot.tip
                && shot.tip != unit.base
            {
                let what = match shot.dirty {
                    true => format!("{} has changes that are in no commit", at.display()),
                    false => {
                        format!("commit {tip} of {} is on no branch of the primary", at.display())
                    }
                };
                ids.push((tip, what));
            }
            for (name, id) in &shot.adopted.others {
                ids.push((id, format!("{name} of {} exists only there", at.display())));
            }
            let bundle = self.bundle_path(&held.notes.intent);
            let bundled = match &held.notes.ending {
                Some(
                    Ending::Parked { commit, saved_as } | Ending::Discarded { commit, saved_as },
                ) => (Path::new(saved_as) == bundle && bundle.is_file()).then_some(commit),
                Some(Ending::Kept) | None => None,
            };
            let ours = held.ours(unit);
            for (id, what) in ids {
                let saved = match bundled {
                    // It does not contain other branches: the status listed them before.
                    Some(_) if discarded && Some(id) != shot.tip.as_deref() => true,
                    Some(commit) => self.is_ancestor(&ours, id, commit)?,
                    None if held.notes.intent.source().is_some() => {
                        self.is_reachable(&of_unit(&held.notes.intent, unit), id)?
                    }
                    None => false,
                };
                if !saved {
                    unsaved.push(what);
                }
            }
        }
        if !discarded {
            for path in nested(held, &shots) {
                unsaved.push(format!("{} is a repository within the tree", path.display()));
            }
            unsaved.extend(unreadable(held, &shots));
        }
        Ok(unsaved)
    }

    /// Whether a reference of the primary leads to a commit. Bases do not count: they go with us.
    fn is_reachable(&self, source: &Source, id: &str) -> Result<bool, TreeError> {
        if self.present(&source.common, &[id])?.is_empty() {
            return Ok(false);
        }
        let list = self
            .git
            .call("look for references that lead to a commit")
            .shared(source)
            .args(["for-each-ref", "--format=%(refname)", "--contains", id])
            .accept(&[0, 129])
            .run()?;
        let text = String::from_utf8_lossy(&list.stdout);
        let base = format!("{OURS}base/");
        if list.code == 0 && text.lines().any(|name| !name.starts_with(&base)) {
            return Ok(true);
        }
        // A tag of something else than a commit is contained in nothing, but may be named itself.
        let refs = References::read(&self.git, source)?;
        Ok(refs.all.iter().any(|r| r.id == id && !r.name.starts_with(&base)))
    }

    /// Saves the last known commit of a tree whose directory was removed.
    fn save_last_known(&self, held: &mut Held) -> Result<(), TreeError> {
        let Some(source) = held.notes.intent.source().filter(|s| s.is_there()) else {
            return Ok(());
        };
        let ours = held.place.join("ours");
        let last = std::fs::read_to_string(ours.join("refs/overmind/head")).unwrap_or_default();
        let last = last.trim().to_owned();
        let known = crate::git::is_id(&last) && Some(&last) != held.notes.intent.base.as_ref();
        if known && !self.is_reachable(&source, &last)? {
            let branch = held.notes.intent.branch.clone();
            self.publish(held, (&ours, &source), &branch, &last)?;
        }
        Ok(())
    }
}

/// The target of a session's work and its name: the requested one, or the session's own.
fn published_as(held: &Held, name: Option<&str>) -> Result<(Source, String), TreeError> {
    let Some(source) = held.notes.intent.source() else {
        return Err(TreeError::NoRepository { session: held.session().to_owned() });
    };
    let name = name.unwrap_or(&held.notes.intent.branch).to_owned();
    match names::is_reference(&format!("refs/heads/{name}")) {
        true => Ok((source, name)),
        false => Err(TreeError::BadBranch { name }),
    }
}

/// A unit's own repository in the primary.
fn of_unit(intent: &TreeIntent, unit: &Unit) -> Source {
    let git_dir = unit.source.as_path().to_owned();
    let within = intent.source().and_then(|source| source.within);
    Source { top: None, git_dir: git_dir.clone(), common: git_dir, within }
}

fn nested(held: &Held, shots: &[Shot]) -> Vec<PathBuf> {
    let units = held.notes.units.iter().zip(shots);
    units
        .flat_map(|(unit, shot)| {
            shot.nested.iter().map(|path| unit.at.as_path().join(path)).collect::<Vec<_>>()
        })
        .collect()
}

fn unreadable(held: &Held, shots: &[Shot]) -> Option<String> {
    held.notes.units.iter().zip(shots).find_map(|(unit, shot)| {
        let why = shot.adopted.unreadable.as_ref()?;
        Some(format!("the commits in {} cannot be read: {why}", called(unit).display()))
    })
}
