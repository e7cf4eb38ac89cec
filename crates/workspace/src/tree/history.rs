//! The files of a session's tree as they were: saved at the end of every step, and brought back.
//!
//! Each state is a commit in our own git directory, under `refs/overmind/snapshots/<label>`. No branch,
//! index or head is touched, neither the session's nor the primary's, and nothing is pushed or seen
//! there. A state that is equal to the last one is not saved again: what that costs is one `git status`
//! with an index of its own.
//!
//! A label is the number of the step before which the files were so, as `fork --at` counts, and a
//! second number where there are more states than one before a step: `3`, `3.1`, `3.2`. Labels only grow.
//!
//! Files are brought back through directories that are held open, never by git: a program of the session
//! may be at work meanwhile, and put a link where git would write.
//!
//! A killed call leaves unreferenced objects, and files in the directory of the private index,
//! which the next call removes. The tree's directory may be removed afterwards: its saved state is
//! kept beside it until [`Trees::sweep`] finds it too old.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overmind_core::room::history::RoomChanges;

use super::build::Paths;
use super::error::{At, TreeError};
use super::notes::{Ending, Held, TreeIntent};
use super::snapshot::{
    Bound, Change, ChangeKind, Stamp, add_all, commit, format, unsaved_of, write_tree,
};
use super::source::Source;
use super::{Trees, directories};
use crate::copy::{self, Budget, copy_one};
use crate::git::{Git, is_id};
use crate::opener::Dir;
use crate::owner;

/// The references in our own git directory.
const REFS: &str = "refs/overmind/snapshots";
/// The private index in our own git directory.
const PRIVATE: &str = "snapshots";
/// The remains of removed trees, in the project's directory.
const RETIRED: &str = ".snapshots";
/// The maximum number of states of one session; the oldest are removed first.
const MOST_KEPT: usize = 200;
/// New and changed files that one state takes.
const BOUND: Bound = Bound { all: 1 << 30, each: 64 << 20 };
/// How long another step on the same tree is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a decision waits for another step.
const DECIDED: Duration = Duration::from_secs(3);

/// Makes the names of indexes differ within this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A saved state of a tree's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesAt {
    /// The step before which the files were so.
    pub step: u32,
    /// Selects one of the states before a step.
    pub number: u32,
    pub commit: String,
    tree: String,
    /// The state that was brought back, where this is one.
    of: Option<String>,
}

impl FilesAt {
    /// `3`, `3.1`, …
    pub fn label(&self) -> String {
        match self.number {
            0 => self.step.to_string(),
            number => format!("{}.{number}", self.step),
        }
    }
}

impl fmt::Display for FilesAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label())
    }
}

/// The result of a save.
#[derive(Clone, Debug)]
pub struct SavedFiles {
    pub at: FilesAt,
    /// Whether it is new; otherwise the files are as they were.
    pub new: bool,
    /// Files that are larger than is saved.
    pub left_out: Vec<PathBuf>,
    /// The changes since the tree's base, if the state is new and they could be counted.
    pub changes: Option<RoomChanges>,
}

/// The result of an undo.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The state that the files are in now.
    pub to: FilesAt,
    /// The state that they were in.
    pub from: FilesAt,
    /// The files and their changes: `Added` was restored, `Deleted` was removed again.
    pub changes: Vec<Change>,
    /// Files that could not be brought back, with the reason.
    pub failed: Vec<(PathBuf, String)>,
    /// Files that are larger than is saved: they stay as they are.
    pub left_out: Vec<PathBuf>,
    /// The current changes since the tree's base, if they could be counted.
    pub beside_base: Option<RoomChanges>,
}

/// A private index, created from the last one, which it replaces when it is [kept](Self::keep).
struct Private {
    dir: PathBuf,
    paths: Paths,
}

impl Private {
    /// The caller holds the tree: other files there were left by a killed process.
    fn open(paths: &Paths) -> Result<Self, TreeError> {
        let dir = paths.ours.join(PRIVATE);
        std::fs::create_dir_all(&dir).at("making", &dir)?;
        for entry in std::fs::read_dir(&dir).at("listing", &dir)? {
            let entry = entry.at("listing", &dir)?;
            if entry.file_name() != "index" {
                copy::remove_all(&entry.path()).at("removing", entry.path())?;
            }
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Never a name that was used before: a git whose daemon was killed may still write to that.
        let index = dir.join(format!("index-{}-{number}", std::process::id()));
        let last = dir.join("index");
        let from = if last.is_file() { &last } else { &paths.index };
        if from.is_file() {
            std::fs::copy(from, &index).at("copying the index to", &index)?;
        }
        let Paths { top, work, ours, theirs, index: _ } = paths;
        let (top, work) = (top.clone(), work.clone());
        let (ours, theirs) = (ours.clone(), theirs.clone());
        Ok(Self { dir, paths: Paths { top, work, ours, theirs, index } })
    }

    fn keep(self) -> Result<(), TreeError> {
        let to = self.dir.join("index");
        match std::fs::rename(&self.paths.index, &to) {
            // No file is in it.
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done.at("writing", &to),
        }
    }
}

impl Trees {
    /// Saves the files of a tree as they are before step `step`; `None`: before the next step after
    /// the saved ones. Untracked files are saved, but not ignored ones or files in submodules. The
    /// session may be at work meanwhile.
    ///
    /// # Errors
    ///
    /// [`TreeError::Gone`], [`TreeError::Busy`], [`TreeError::TooLarge`]; git and I/O errors.
    pub fn save_files(
        &self,
        intent: &TreeIntent,
        step: Option<u32>,
        now: i64,
    ) -> Result<SavedFiles, TreeError> {
        let held = patiently(intent)?;
        let (saved, _) = self.save_held(&held, step, now)?;
        Ok(saved)
    }

    fn save_held(
        &self,
        held: &Held,
        step: Option<u32>,
        now: i64,
    ) -> Result<(SavedFiles, Vec<FilesAt>), TreeError> {
        let paths = main(held)?;
        if !paths.work.is_dir() {
            return Err(TreeError::Gone { place: paths.work });
        }
        let private = Private::open(&paths)?;
        let intent = &held.notes.intent;
        let gone = || TreeError::Gone { place: held.place.clone() };
        let unsaved = unsaved_of(held, held.notes.units.first().ok_or_else(gone)?)?;
        let taken = add_all(self.git(), &private.paths, &unsaved, format(intent), BOUND)?;
        let mut all = list(self.git(), &paths.ours)?;
        let left_out = taken.left_out;
        if let (false, Some(last)) = (taken.changed, all.last()) {
            let at = last.clone();
            private.keep()?;
            return Ok((SavedFiles { at, new: false, left_out, changes: None }, all));
        }
        let tree = write_tree(self.git(), &private.paths)?;
        if let Some(last) = all.last().filter(|last| last.tree == tree) {
            let at = last.clone();
            private.keep()?;
            return Ok((SavedFiles { at, new: false, left_out, changes: None }, all));
        }
        let (step, number) = next(all.last(), step);
        let at = FilesAt { step, number, commit: String::new(), tree, of: None };
        let at = self.put(held, &paths, at, now)?;
        // After its state, also across a kill: an unchanged state is the last one.
        private.keep()?;
        // An index that nothing has brought further yet is the base's.
        let changes = match all.is_empty() && !taken.changed {
            true => Some(RoomChanges::default()),
            false => self.counted(held, &at.tree),
        };
        all.push(at.clone());
        for old in all.iter().rev().skip(MOST_KEPT) {
            let path = paths.ours.join(REFS).join(old.label());
            std::fs::remove_file(&path).at("removing", &path)?;
        }
        Ok((SavedFiles { at, new: true, left_out, changes }, all))
    }

    /// Writes a state's commit and the reference to it.
    fn put(
        &self,
        held: &Held,
        paths: &Paths,
        mut at: FilesAt,
        now: i64,
    ) -> Result<FilesAt, TreeError> {
        let of = at.of.as_ref().map(|of| format!(" as {of}")).unwrap_or_default();
        let intent = &held.notes.intent;
        let message = format!("snapshot {at}{of}\n\nThe files of {}.\n", intent.session);
        let stamp = Stamp { message: &message, now, by: &[] };
        let parents: Vec<&str> = intent.base.as_deref().into_iter().collect();
        at.commit = commit(self.git(), &paths.ours, &at.tree, &parents, stamp)?;
        // Not in two writes: a reference that is half written would be in git's way.
        let half = paths.ours.join(PRIVATE).join("ref");
        std::fs::write(&half, format!("{}\n", at.commit)).at("writing", &half)?;
        let dir = paths.ours.join(REFS);
        std::fs::create_dir_all(&dir).at("making", &dir)?;
        let path = dir.join(at.label());
        std::fs::rename(&half, &path).at("writing", &path)?;
        Ok(at)
    }

    /// Brings the files of a tree back to a saved state: to that before step `to` (or by its whole
    /// label), else to the last one before the latest change. What they are now is saved first.
    ///
    /// # Errors
    ///
    /// [`TreeError::NoFilesAt`] when there is no such state; as [`Trees::save_files`].
    pub fn restore_files(
        &self,
        intent: &TreeIntent,
        to: Option<&str>,
        now: i64,
    ) -> Result<Restored, TreeError> {
        let held = patiently(intent)?;
        let (saved, all) = self.save_held(&held, Some(0), now)?;
        let target = match to {
            Some(label) => at_label(&all, label),
            None => before(&all),
        };
        let Some(target) = target.cloned() else {
            return Err(TreeError::NoFilesAt {
                session: intent.session.clone(),
                label: to.map(|to| to.strip_suffix(".0").unwrap_or(to).to_owned()),
                known: all.iter().map(FilesAt::label).collect(),
            });
        };
        self.bring_files_to(&held, saved, &all, target, now)
    }

    /// Brings the files of a tree back to the last state that was saved before `step`, after whatever that
    /// step changed was cut off. A state that was saved after it counts for nothing: the server may have
    /// been killed between that and the step's end. `None`: they are as they were then, or no state was
    /// saved before it.
    ///
    /// # Errors
    ///
    /// See [`Trees::save_files`].
    pub fn restore_before(
        &self,
        intent: &TreeIntent,
        step: u32,
        now: i64,
    ) -> Result<Option<Restored>, TreeError> {
        let held = patiently(intent)?;
        let (saved, all) = self.save_held(&held, Some(0), now)?;
        // The last one of all may be what they are now.
        let known = &all[..all.len() - usize::from(saved.new)];
        match at_label(known, &step.to_string()).filter(|at| at.step <= step).cloned() {
            Some(target) if target.tree != saved.at.tree => {
                self.bring_files_to(&held, saved, &all, target, now).map(Some)
            }
            Some(_) | None => Ok(None),
        }
    }

    fn bring_files_to(
        &self,
        held: &Held,
        saved: SavedFiles,
        all: &[FilesAt],
        target: FilesAt,
        now: i64,
    ) -> Result<Restored, TreeError> {
        let (from, left_out) = (saved.at, saved.left_out);
        let paths = main(held)?;
        let changes = self.changes(&paths.ours, &from.tree, &target.tree)?;
        let beside_base = self.counted(held, &target.tree);
        if changes.is_empty() {
            let failed = Vec::new();
            return Ok(Restored { to: target, from, changes, failed, left_out, beside_base });
        }
        let (failed, private) = self.bring_back(&paths, &target, &changes)?;
        let (step, number) = next(all.last(), Some(0));
        let of = Some(target.label());
        let (commit, tree) = (String::new(), target.tree.clone());
        self.put(held, &paths, FilesAt { step, number, commit, tree, of }, now)?;
        private.keep()?;
        Ok(Restored { to: target, from, changes, failed, left_out, beside_base })
    }

    /// Writes the files that differ: git lays them out where no session can write, and they are taken
    /// over from there. Which of them failed, and the index of what is there then, to be kept.
    fn bring_back(
        &self,
        paths: &Paths,
        target: &FilesAt,
        changes: &[Change],
    ) -> Result<(Vec<(PathBuf, String)>, Private), TreeError> {
        let private = Private::open(paths)?;
        let stage = private.dir.join("stage");
        std::fs::create_dir_all(&stage).at("making", &stage)?;
        self.git()
            .call("read a snapshot")
            .repo(&paths.ours)
            .work(&paths.work, &private.paths.index)
            .plain(&paths.top)
            .args(["read-tree", "-m", &target.tree])
            .run()?;
        let wanted = |change: &&Change| change.kind != ChangeKind::Deleted;
        let mut names = Vec::new();
        for change in changes.iter().filter(wanted) {
            use std::os::unix::ffi::OsStrExt as _;
            names.extend_from_slice(change.path.as_os_str().as_bytes());
            names.push(0);
        }
        self.git()
            .call("lay out the files of a snapshot")
            .repo(&paths.ours)
            .work(&stage, &private.paths.index)
            .args(["checkout-index", "-z", "-q", "--stdin"])
            .input(names)
            .run()?;
        let from = Dir::open(&stage).at("opening", &stage)?;
        let work = Dir::open(&paths.work).at("opening", &paths.work)?;
        let mut failed = Vec::new();
        // First what goes: it may be a file where a directory is to come, or the other way round.
        for change in changes.iter().filter(|change| !wanted(change)) {
            match work.remove(&change.path) {
                Ok(()) => work.remove_empty_above(&change.path),
                Err(err) => failed.push((change.path.clone(), err.to_string())),
            }
        }
        let mut budget = Budget { bytes: u64::MAX, files: u64::MAX };
        for change in changes.iter().filter(wanted) {
            let path = change.path.as_path();
            let done = copy_one(&from, path, &work, path, &mut budget)
                .and_then(|_| owner::give(&paths.work, &paths.work.join(path)));
            if let Err(err) = done {
                failed.push((path.to_owned(), err.to_string()));
            }
        }
        copy::remove_all(&stage).at("removing", &stage)?;
        Ok((failed, private))
    }

    /// The state of a tree's files before a step, also when the tree is gone: its commit is brought into
    /// the repository that the tree was made from, for another tree to begin at. `None`: nothing was
    /// saved, or not in a repository.
    ///
    /// # Errors
    ///
    /// Git and I/O errors.
    pub fn files_at(
        &self,
        worktree: &Path,
        owner: &str,
        step: u32,
    ) -> Result<Option<FilesAt>, TreeError> {
        let Some((ours, source)) = self.history_of(worktree, owner)? else { return Ok(None) };
        let all = list(self.git(), &ours)?;
        let Some(at) = at_label(&all, &step.to_string()).cloned() else { return Ok(None) };
        self.send(&ours, &source, &[&at.commit])?;
        Ok(Some(at))
    }

    /// The git directory that has what was saved of a tree, and the repository it borrows from.
    fn history_of(
        &self,
        worktree: &Path,
        owner: &str,
    ) -> Result<Option<(PathBuf, Source)>, TreeError> {
        let Some(place) = worktree.parent().filter(|place| place.starts_with(self.root())) else {
            return Ok(None);
        };
        let there = self.at(worktree)?;
        if let Some(one) = there.filter(|one| one.intent.owner.as_deref() == Some(owner)) {
            return Ok(one.intent.source().map(|source| (place.join("ours"), source)));
        }
        let Some(home) = place.parent() else { return Ok(None) };
        let kept = home.join(RETIRED).join(owner);
        let source = super::upkeep::project_of(home);
        Ok(source.filter(|_| kept.is_dir()).map(|source| (kept, source)))
    }

    /// Keeps what was saved of a tree that is about to be removed, unless its work was given up.
    pub(super) fn retire_files(&self, held: &Held) -> Result<(), TreeError> {
        let intent = &held.notes.intent;
        let ours = main(held)?.ours;
        let given_up = matches!(held.notes.ending, Some(Ending::Discarded { .. }));
        let Some(owner) = intent.owner.as_deref().filter(|_| intent.source().is_some()) else {
            return Ok(());
        };
        let states = std::fs::read_dir(ours.join(REFS)).map_or(0, Iterator::count);
        // One state is the first: nothing was changed.
        if given_up || states < 2 {
            return self.forget_files(intent.home(), owner);
        }
        let kept = intent.home().join(RETIRED);
        std::fs::create_dir_all(&kept).at("making", &kept)?;
        let (half, whole) = (kept.join(format!(".{owner}")), kept.join(owner));
        for old in [&half, &whole] {
            copy::remove_all(old).at("removing", old)?;
        }
        std::fs::create_dir_all(&half).at("making", &half)?;
        let (from, to) = (Dir::open(&ours).at("opening", &ours)?, Dir::open(&half));
        let to = to.at("opening", &half)?;
        let mut budget = Budget { bytes: u64::MAX, files: u64::MAX };
        let leave = |path: &Path, _| {
            let first = path.iter().next().unwrap_or_default();
            first == PRIVATE || first == "lfs" || path == Path::new("index")
        };
        copy::copy_dir(&from, &to, &mut budget, &leave).at("copying to", &half)?;
        std::fs::rename(&half, &whole).at("writing", &whole)
    }

    /// Releases the saved work of a removed tree.
    ///
    /// # Errors
    ///
    /// I/O errors.
    pub fn forget_files(&self, home: &Path, owner: &str) -> Result<(), TreeError> {
        let kept = home.join(RETIRED).join(owner);
        if kept.is_dir() { self.throw_away(&kept) } else { Ok(()) }
    }

    /// The same by where its working tree was.
    ///
    /// # Errors
    ///
    /// I/O errors.
    pub fn forget_files_of(&self, worktree: &Path, owner: &str) -> Result<(), TreeError> {
        match worktree.ancestors().nth(2).filter(|home| home.starts_with(self.root())) {
            Some(home) => self.forget_files(home, owner),
            None => Ok(()),
        }
    }

    /// Lets go of what was saved of trees that went before a time (seconds since 1970). Says how many of
    /// this project are left.
    pub(super) fn expire_files(&self, home: &Path, before: i64) -> Result<usize, TreeError> {
        let mut left = 0;
        for kept in directories(&home.join(RETIRED))? {
            let meta = std::fs::metadata(&kept).at("looking at", &kept)?;
            if std::os::unix::fs::MetadataExt::mtime(&meta) < before {
                self.throw_away(&kept)?;
            } else {
                left += 1;
            }
        }
        Ok(left)
    }
}

/// Takes the tree, and waits a while if another step has it.
pub(super) fn patiently(intent: &TreeIntent) -> Result<Held, TreeError> {
    within(intent, PATIENCE)
}

/// The same for a person's decision: a concurrent reader of the work finishes in a moment.
pub(super) fn shortly(intent: &TreeIntent) -> Result<Held, TreeError> {
    within(intent, DECIDED)
}

fn within(intent: &TreeIntent, patience: Duration) -> Result<Held, TreeError> {
    let until = Instant::now() + patience;
    loop {
        match Held::take(intent) {
            Err(TreeError::Busy { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// The session's own working tree, without submodules.
fn main(held: &Held) -> Result<Paths, TreeError> {
    let unit = held.notes.units.first();
    let unit = unit.ok_or_else(|| TreeError::Gone { place: held.place.clone() })?;
    Ok(unit.paths(&held.place))
}

/// Every state that was saved, oldest first.
fn list(git: &Git, ours: &Path) -> Result<Vec<FilesAt>, TreeError> {
    if !ours.join(REFS).is_dir() {
        return Ok(Vec::new());
    }
    let list = git
        .call("list snapshots")
        .repo(ours)
        .args(["for-each-ref", "--format=%(refname) %(objectname) %(tree) %(contents:subject)"])
        .arg(format!("{REFS}/"))
        .run()?;
    let text = String::from_utf8_lossy(&list.stdout);
    let mut all: Vec<FilesAt> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.splitn(4, ' ');
            let (name, commit, tree) = (words.next()?, words.next()?, words.next()?);
            let of = words.next()?.split_once(" as ").map(|(_, of)| of.to_owned());
            let (step, number) = parse(name.rsplit('/').next()?)?;
            let whole = is_id(commit) && is_id(tree);
            let (commit, tree) = (commit.to_owned(), tree.to_owned());
            whole.then_some(FilesAt { step, number, commit, tree, of })
        })
        .collect();
    all.sort_by_key(|at| (at.step, at.number));
    Ok(all)
}

fn parse(label: &str) -> Option<(u32, u32)> {
    match label.split_once('.') {
        Some((step, number)) => Some((step.parse().ok()?, number.parse().ok()?)),
        None => Some((label.parse().ok()?, 0)),
    }
}

/// The label after the last one, for the files before `step`.
fn next(last: Option<&FilesAt>, step: Option<u32>) -> (u32, u32) {
    match (last, step) {
        (None, step) => (step.unwrap_or(0), 0),
        (Some(last), None) => (last.step + 1, 0),
        (Some(last), Some(step)) if step > last.step => (step, 0),
        (Some(last), Some(_)) => (last.step, last.number + 1),
    }
}

/// The state with a label, exactly that where it has a dot. Where nothing was saved before a step, nothing had changed since the one
/// before. `None` for what is no label, or beyond the last.
fn at_label<'a>(all: &'a [FilesAt], label: &str) -> Option<&'a FilesAt> {
    let (step, number) = parse(label)?;
    if label.contains('.') {
        return all.iter().find(|at| (at.step, at.number) == (step, number));
    }
    let found = all.iter().rev().find(|at| (at.step, at.number) <= (step, 0));
    found.or(all.first())
}

/// The last state before the latest change. One that was brought back counts as the one it is: so undoing
/// again goes further back.
fn before(all: &[FilesAt]) -> Option<&FilesAt> {
    let mut at = all.len().checked_sub(1)?;
    while let Some(of) = &all[at].of {
        at = all[..at].iter().rposition(|one| one.label() == *of)?;
    }
    let now = &all.last()?.tree;
    all[..at].iter().rev().find(|one| one.tree != *now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(label: &str, tree: &str, of: Option<&str>) -> FilesAt {
        let (step, number) = parse(label).unwrap();
        let (commit, tree, of) = (tree.to_owned(), tree.to_owned(), of.map(str::to_owned));
        FilesAt { step, number, commit, tree, of }
    }

    #[test]
    fn repeated_undo_goes_further_back_and_later_steps_undo_to_the_restored_state() {
        let mut all = vec![at("0", "a", None), at("1", "b", None), at("3", "c", None)];
        assert_eq!(before(&all).unwrap().label(), "1");
        all.push(at("3.1", "b", Some("1")));
        assert_eq!(before(&all).unwrap().label(), "0");
        all.push(at("4", "d", None));
        assert_eq!(before(&all).unwrap().label(), "3.1");
        all.push(at("4.1", "b", Some("3.1")));
        assert_eq!(before(&all).unwrap().label(), "0");
        all.push(at("4.2", "a", Some("0")));
        assert_eq!(before(&all), None);
    }

    #[test]
    fn a_label_names_the_last_state_before_a_step() {
        let all = [at("1", "a", None), at("3", "b", None), at("3.1", "c", None)];
        let found = |label: &str| at_label(&all, label).map(FilesAt::label);
        assert_eq!(found("0").as_deref(), Some("1"), "nothing had changed before it");
        assert_eq!(found("2").as_deref(), Some("1"));
        assert_eq!(found("3").as_deref(), Some("3"));
        assert_eq!(found("3.1").as_deref(), Some("3.1"));
        assert_eq!(found("9").as_deref(), Some("3.1"));
        assert_eq!((found("3.2"), found("x")), (None, None));
    }

    #[test]
    fn labels_only_grow() {
        let last = at("3", "a", None);
        assert_eq!(next(None, None), (0, 0));
        assert_eq!(next(Some(&last), Some(5)), (5, 0));
        assert_eq!(next(Some(&last), Some(3)), (3, 1));
        assert_eq!(next(Some(&last), Some(0)), (3, 1));
        assert_eq!(next(Some(&last), None), (4, 0));
    }

    #[test]
    fn leftover_index_files_of_a_killed_server_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let paths = Paths {
            top: at("work"),
            work: at("work"),
            ours: at("ours"),
            theirs: at("theirs"),
            index: at("index"),
        };
        let dir = paths.ours.join(PRIVATE);
        std::fs::create_dir_all(dir.join("a-directory")).unwrap();
        for name in ["index", "index-7-1", "index-7-1.lock"] {
            std::fs::write(dir.join(name), name).unwrap();
        }
        let private = Private::open(&paths).unwrap();
        assert_eq!(std::fs::read(&private.paths.index).unwrap(), b"index");
        private.keep().unwrap();
        let left: Vec<_> =
            std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["index"]);
    }
}
