//! The content of a session's tree: as a git tree object, created with our own git directory and index.
//!
//! Everything else follows from it without looking at the files again: whether anything is uncommitted,
//! what differs from the base, what a parked commit holds. Ignored files are not in it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use overmind_core::room::history::RoomChanges;

use super::adopt::{Adopted, Operation, adopt, called};
use super::build::{Paths, Unit};
use super::error::{At, TreeError};
use super::history::shortly;
use super::notes::{Ending, Held, Origin, TreeIntent};
use super::source::{OURS, References};
use super::{Trees, gitdir};
use crate::git::{Git, path_of};
use crate::opener::{Dir, Own};
use crate::secrets;

/// Bytes of new and changed files that a snapshot takes at most.
const MOST: u64 = 2 << 30;
/// How long counting changed lines may take.
const COUNTING: Duration = Duration::from_secs(5);

/// How a file differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
    /// A file became a link, or the other way round.
    Retyped,
}

/// A file that differs, from the top of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub path: PathBuf,
    pub kind: ChangeKind,
}

/// The state of a session's tree.
#[derive(Clone, Debug)]
pub struct Status {
    /// The commit that is checked out; `None` before the first.
    pub head: Option<String>,
    /// The branch that is checked out, without `refs/heads/`. `None`: a commit is.
    pub branch: Option<String>,
    /// Files that no commit contains, including untracked files, without ignored ones.
    pub uncommitted: Vec<Change>,
    /// Commits since the base.
    pub ahead: u64,
    /// Commits among them that no branch, remote or tag of the primary holds.
    pub unpublished: u64,
    /// Other branches, tags and stashes that the session made or moved.
    pub others: Vec<String>,
    /// Something that git is in the middle of: its conflicts may be unsolved.
    pub operation: Option<Operation>,
    /// Repositories that the session put into its tree. What is in them is not seen.
    pub nested: Vec<PathBuf>,
    /// Submodules with work in them.
    pub submodules: Vec<PathBuf>,
    /// Why the session's repository could not be read; its files could.
    pub unreadable: Option<String>,
    pub ending: Option<Ending>,
}

impl Status {
    /// Removing the tree would lose nothing.
    pub fn is_saved(&self) -> bool {
        self.uncommitted.is_empty()
            && self.unpublished == 0
            && self.others.is_empty()
            && self.nested.is_empty()
            && self.submodules.is_empty()
            && self.unreadable.is_none()
    }
}

/// One file of a comparison. `None`: not text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStat {
    pub path: PathBuf,
    pub added: Option<u64>,
    pub removed: Option<u64>,
}

/// The changes of a session since its base, committed or not.
#[derive(Clone, Debug)]
pub struct Diff {
    pub files: Vec<FileStat>,
    pub patch: Vec<u8>,
    /// The patch has more than was asked for.
    pub cut: bool,
}

/// The state of one unit.
#[derive(Debug)]
pub(crate) struct Shot {
    pub(crate) adopted: Adopted,
    /// All files, as a tree object in our git directory.
    pub(crate) tree: String,
    /// Whether that is something else than the head's.
    pub(crate) dirty: bool,
    /// A commit with that very tree: the head when nothing is uncommitted.
    pub(crate) tip: Option<String>,
    pub(crate) nested: Vec<PathBuf>,
}

/// How a commit of uncommitted files is called and dated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp<'a> {
    pub(crate) message: &'a str,
    /// Seconds since 1970.
    pub(crate) now: i64,
    /// Variables with the author; without them, the author is Overmind.
    pub(crate) by: &'a [(&'static str, String)],
}

/// Takes the state of every unit of a tree, submodules before what they are in.
pub(crate) fn shoot(git: &Git, held: &Held, stamp: Stamp<'_>) -> Result<Vec<Shot>, TreeError> {
    let units = &held.notes.units;
    let intent = &held.notes.intent;
    let tree = intent.tree();
    if !tree.is_dir() {
        return Err(TreeError::Gone { place: tree });
    }
    if let Some(source) = intent.source() {
        if !source.common.join("objects").exists() {
            return Err(TreeError::RepositoryGone { repo: source.common, tree });
        }
        source.check(&Own::default())?;
    }
    let mut shots: Vec<Option<Shot>> = units.iter().map(|_| None).collect();
    for (at, unit) in units.iter().enumerate().rev() {
        let paths = unit.paths(&held.place);
        let mut shot = shoot_one(git, held, unit, &paths)?;
        let links = units.iter().enumerate().filter(|(other, _)| parent(units, *other) == Some(at));
        let links = links.filter_map(|(other, child)| {
            let tip = shots[other].as_ref()?.tip.clone()?;
            let path = child.at.as_path().strip_prefix(unit.at.as_path()).ok()?;
            Some((path.to_owned(), tip))
        });
        let links: Vec<(PathBuf, String)> = links.collect();
        if !links.is_empty() {
            set_links(git, &paths, &links)?;
        }
        shot.tree = write_tree(git, &paths)?;
        let of_head = match &shot.adopted.head {
            Some(head) => tree_of(git, &paths.ours, head)?,
            None => empty_tree(format(intent)).to_owned(),
        };
        shot.dirty = shot.tree != of_head;
        shot.tip = if shot.dirty {
            let head: Vec<&str> = shot.adopted.head.as_deref().into_iter().collect();
            Some(commit(git, &paths.ours, &shot.tree, &head, stamp)?)
        } else {
            shot.adopted.head.clone()
        };
        shots[at] = Some(shot);
    }
    Ok(shots.into_iter().flatten().collect())
}

/// The unit that contains a submodule.
fn parent(units: &[Unit], of: usize) -> Option<usize> {
    let at = units[of].at.as_path();
    let above = units
        .iter()
        .enumerate()
        .filter(|(other, unit)| *other != of && at.starts_with(unit.at.as_path()));
    if units[of].is_submodule() {
        above.max_by_key(|(_, unit)| unit.at.as_path().components().count()).map(|(at, _)| at)
    } else {
        None
    }
}

fn shoot_one(git: &Git, held: &Held, unit: &Unit, paths: &Paths) -> Result<Shot, TreeError> {
    let is_copy = matches!(held.notes.intent.origin, Origin::Directory { .. });
    let mut nested = Vec::new();
    let adopted = if is_copy {
        // A copy had no repository. An existing one was created by the session.
        if paths.theirs.symlink_metadata().is_ok() {
            nested.push(PathBuf::from(".git"));
        }
        Adopted { head: unit.base.clone(), ..Adopted::default() }
    } else {
        adopt(git, &held.place, unit)?
    };
    if paths.work.is_dir() {
        let unsaved = unsaved_of(held, unit)?;
        let bound = Bound::all(MOST);
        let taken = add_all(git, paths, &unsaved, format(&held.notes.intent), bound)?;
        nested.extend(taken.nested);
    }
    Ok(Shot { adopted, tree: String::new(), dirty: false, tip: None, nested })
}

pub(super) fn format(intent: &TreeIntent) -> &str {
    match &intent.origin {
        Origin::Repository { format, .. } => format,
        Origin::Directory { .. } => "sha1",
    }
}

/// The content to take from new and changed files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    /// Bytes of all together; more is an error.
    pub(super) all: u64,
    /// Bytes of one file; a larger one is left out.
    pub(super) each: u64,
}

impl Bound {
    const fn all(bytes: u64) -> Self {
        Self { all: bytes, each: u64::MAX }
    }
}

/// The result of updating an index from the files.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Whether the index has something else than before.
    pub(super) changed: bool,
    /// Repositories found in them: their content is left out.
    pub(super) nested: Vec<PathBuf>,
    /// Files that are too large.
    pub(super) left_out: Vec<PathBuf>,
}

/// The files of a unit that are not to be saved.
pub(super) fn unsaved_of(held: &Held, unit: &Unit) -> Result<Vec<PathBuf>, TreeError> {
    let tree = held.notes.intent.tree();
    let unsaved = secrets::unsaved(&held.place, &tree).at("looking for secrets in", &tree)?;
    let beneath = |path: &PathBuf| path.strip_prefix(unit.at.as_path()).ok().map(Path::to_owned);
    Ok(unsaved.iter().filter_map(beneath).collect())
}

/// Brings an index of ours in line with the files, but for those that are not to be saved.
pub(super) fn add_all(
    git: &Git,
    paths: &Paths,
    unsaved: &[PathBuf],
    format: &str,
    bound: Bound,
) -> Result<Taken, TreeError> {
    let what = format!("compare {} with what is known of it", paths.work.display());
    let list = git
        .call(what)
        .repo(&paths.ours)
        .work(&paths.work, &paths.index)
        .env("GIT_OPTIONAL_LOCKS", "1")
        .args(["status", "--porcelain=v2", "-z", "--no-renames", "--untracked-files=all"])
        .arg("--ignore-submodules=all")
        .limit(512 << 20)
        .run()?;
    let work = Dir::open(&paths.work).at("opening", &paths.work)?;
    let zeros = "0".repeat(if format == "sha256" { 64 } else { 40 });
    let (mut taken, mut gone, mut changed) = (Taken::default(), Vec::new(), Vec::new());
    let (mut bytes, mut files, mut largest) = (0_u64, 0_usize, (0, PathBuf::new()));
    for part in list.parts().filter(|part| part.len() > 2) {
        let mut fields = part.split(|byte| *byte == b' ');
        let path = match part[0] {
            b'1' => {
                let (Some(state), Some(mode)) = (fields.nth(1), fields.nth(3)) else { continue };
                // The path is the ninth field, and may have spaces itself.
                let Some(path) = part.splitn(9, |byte| *byte == b' ').nth(8) else { continue };
                if state.ends_with(b".") {
                    continue;
                }
                if mode == b"000000" {
                    gone.extend_from_slice(format!("0 {zeros}\t").as_bytes());
                    gone.extend_from_slice(path);
                    gone.push(0);
                    continue;
                }
                path
            }
            b'?' => &part[2..],
            _ => continue,
        };
        if unsaved.iter().any(|secret| path_of(path).starts_with(secret)) {
            continue;
        }
        if let Some(dir) = path.strip_suffix(b"/") {
            taken.nested.push(path_of(dir));
            continue;
        }
        // Git listed the files, and may have followed a link out of the tree: files that cannot be
        // reached without a link are left out. Their content is read in a view without links,
        // below.
        let Some(found) = work.stat(&path_of(path)).ok().flatten() else { continue };
        let size = u64::try_from(found.st_size).unwrap_or(0);
        if size > bound.each {
            taken.left_out.push(path_of(path));
            continue;
        }
        bytes += size;
        files += 1;
        if size > largest.0 {
            largest = (size, path_of(path));
        }
        changed.extend_from_slice(path);
        changed.push(0);
    }
    if bytes > bound.all {
        let limit = bound.all;
        return Err(TreeError::TooLarge { bytes, files, limit, largest: largest.1 });
    }
    taken.changed = !gone.is_empty() || !changed.is_empty();
    for (args, input) in
        [(&["-z", "--index-info"][..], gone), (&["-z", "--add", "--remove", "--stdin"], changed)]
    {
        if !input.is_empty() {
            git.call(format!("take the changes of {}", paths.work.display()))
                .repo(&paths.ours)
                .work(&paths.work, &paths.index)
                .plain(&paths.top)
                .arg("update-index")
                .args(args)
                .input(input)
                .run()?;
        }
    }
    Ok(taken)
}

/// Says in the index at which commits submodules are.
fn set_links(git: &Git, paths: &Paths, links: &[(PathBuf, String)]) -> Result<(), TreeError> {
    let (mut info, mut names) = (Vec::new(), Vec::new());
    for (path, commit) in links {
        info.extend_from_slice(format!("160000 {commit} 0\t").as_bytes());
        for list in [&mut info, &mut names] {
            list.extend_from_slice(path.as_os_str().as_bytes());
            list.push(0);
        }
    }
    for (args, input) in
        [(["-z", "--index-info"].as_slice(), info), (&["-z", "--skip-worktree", "--stdin"], names)]
    {
        git.call("note its submodules")
            .repo(&paths.ours)
            .work(&paths.work, &paths.index)
            .plain(&paths.top)
            .arg("update-index")
            .args(args)
            .input(input)
            .run()?;
    }
    Ok(())
}

pub(super) fn write_tree(git: &Git, paths: &Paths) -> Result<String, TreeError> {
    let tree = git
        .call("write its files as a tree")
        .repo(&paths.ours)
        .work(&paths.ours, &paths.index)
        .arg("write-tree")
        .run()?;
    Ok(tree.line())
}

fn tree_of(git: &Git, git_dir: &Path, commit: &str) -> Result<String, TreeError> {
    let tree = git
        .call(format!("read {commit}"))
        .repo(git_dir)
        .args(["rev-parse", "--verify", "--end-of-options", &format!("{commit}^{{tree}}")])
        .run()?;
    Ok(tree.line())
}

/// The tree without files, which every repository knows.
pub(crate) fn empty_tree(format: &str) -> &'static str {
    if format == "sha256" {
        "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
    } else {
        "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    }
}

/// Writes a commit: no hook, no signature.
pub(crate) fn commit(
    git: &Git,
    git_dir: &Path,
    tree: &str,
    parents: &[&str],
    stamp: Stamp<'_>,
) -> Result<String, TreeError> {
    let date = format!("@{} +0000", stamp.now);
    let call = git
        .call("write a commit")
        .repo(git_dir)
        .env("GIT_AUTHOR_DATE", &date)
        .env("GIT_COMMITTER_DATE", &date)
        .args(["commit-tree", tree, "-F", "-"])
        .input(stamp.message);
    let call = stamp.by.iter().fold(call, |call, (name, value)| call.env(name, value));
    let call = parents.iter().fold(call, |call, parent| call.args(["-p", parent]));
    Ok(call.run()?.line())
}

/// Records the first state of a copied directory, to compare with later.
pub(crate) fn record(git: &Git, paths: &Paths) -> Result<String, TreeError> {
    add_all(git, paths, &[], "sha1", Bound::all(u64::MAX))?;
    let tree = write_tree(git, paths)?;
    let stamp = Stamp { message: "the directory as it was copied", now: 0, by: &[] };
    let id = commit(git, &paths.ours, &tree, &[], stamp)?;
    gitdir::set_head(&paths.ours, &id).at("writing the head of", &paths.ours)?;
    Ok(id)
}

/// A message that is not shown: the commit is not published.
pub(crate) const UNNAMED: Stamp<'_> = Stamp { message: "uncommitted", now: 0, by: &[] };

/// Reads ` 3 files changed, 41 insertions(+), 7 deletions(-)`, of which any part may be missing.
fn short_stat(said: &str) -> RoomChanges {
    let mut counted = RoomChanges::default();
    for part in said.split(',') {
        let Some((number, what)) = part.trim().split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        if what.starts_with("file") {
            counted.files = u32::try_from(number).unwrap_or(u32::MAX);
        } else if what.starts_with("insertion") {
            counted.added = number;
        } else if what.starts_with("deletion") {
            counted.removed = number;
        }
    }
    counted
}

impl Trees {
    /// The state of a session's tree. The session may be at work meanwhile.
    ///
    /// # Errors
    ///
    /// [`TreeError::Gone`], [`TreeError::RepositoryGone`], [`TreeError::Busy`], [`TreeError::TooLarge`];
    /// git and I/O errors.
    pub fn status(&self, intent: &TreeIntent) -> Result<Status, TreeError> {
        let held = shortly(intent)?;
        let shots = shoot(&self.git, &held, UNNAMED)?;
        self.status_of(&held, &shots)
    }

    pub(crate) fn status_of(&self, held: &Held, shots: &[Shot]) -> Result<Status, TreeError> {
        let units = &held.notes.units;
        let main = shots.first().ok_or_else(|| TreeError::Gone { place: held.place.clone() })?;
        let ours = held.place.join("ours");
        let base = held.notes.intent.base.as_deref();
        let head = main.adopted.head.as_deref();
        let (mut ahead, mut unpublished) = (0, 0);
        if let Some(head) = head.filter(|head| Some(*head) != base) {
            let base: Vec<String> = base.map(str::to_owned).into_iter().collect();
            ahead = self.count(&ours, head, &base)?;
            let mut known = base;
            if let Some(source) = held.notes.intent.source() {
                let refs = References::read(&self.git, &source)?;
                let public = refs.all.into_iter().filter(|r| !r.name.starts_with(OURS));
                known.extend(public.map(|r| r.id));
            }
            unpublished = self.count(&ours, head, &known)?;
        }
        let mut uncommitted = Vec::new();
        if main.dirty {
            let from = match head {
                Some(head) => head,
                None => empty_tree(format(&held.notes.intent)),
            };
            uncommitted = self.changes(&ours, from, &main.tree)?;
        }
        let mut others = Vec::new();
        let (mut nested, mut submodules) = (Vec::new(), Vec::new());
        for (unit, shot) in units.iter().zip(shots) {
            let at = called(unit);
            nested.extend(shot.nested.iter().map(|path| unit.at.as_path().join(path)));
            others.extend(shot.adopted.others.iter().map(|(name, _)| match unit.is_submodule() {
                true => format!("{}: {name}", at.display()),
                false => name.clone(),
            }));
            if unit.is_submodule() && shot.tip != unit.base {
                submodules.push(at);
            }
        }
        let unreadable = units.iter().zip(shots).find_map(|(unit, shot)| {
            let why = shot.adopted.unreadable.as_ref()?;
            Some(format!("{}: {why}", called(unit).display()))
        });
        let branch = main.adopted.branch.as_deref();
        Ok(Status {
            head: main.adopted.head.clone(),
            branch: branch.map(|name| name.trim_start_matches("refs/heads/").to_owned()),
            uncommitted,
            ahead,
            unpublished,
            others,
            operation: shots.iter().find_map(|shot| shot.adopted.operation),
            nested,
            submodules,
            unreadable,
            ending: held.notes.ending.clone(),
        })
    }

    /// The changes of a session since its base: committed, uncommitted and untracked, as numbers and as a
    /// patch of at most `patch_bytes`.
    ///
    /// # Errors
    ///
    /// See [`Trees::status`].
    pub fn diff(&self, intent: &TreeIntent, patch_bytes: u64) -> Result<Diff, TreeError> {
        self.work(intent, patch_bytes).map(|(diff, _)| diff)
    }

    /// The same, and how many commits the session made.
    ///
    /// # Errors
    ///
    /// See [`Trees::status`].
    pub fn work(&self, intent: &TreeIntent, patch_bytes: u64) -> Result<(Diff, u64), TreeError> {
        let held = shortly(intent)?;
        let shots = shoot(&self.git, &held, UNNAMED)?;
        let main = shots.first().ok_or_else(|| TreeError::Gone { place: held.place.clone() })?;
        let ours = held.place.join("ours");
        let base = held.notes.intent.base.as_deref();
        let commits = match main.adopted.head.as_deref().filter(|head| Some(*head) != base) {
            Some(head) => {
                let base: Vec<String> = base.map(str::to_owned).into_iter().collect();
                self.count(&ours, head, &base)?
            }
            None => 0,
        };
        let from = base.unwrap_or_else(|| empty_tree(format(&held.notes.intent)));
        Ok((self.difference(&ours, from, &main.tree, patch_bytes)?, commits))
    }

    /// How much a session changed since its base, committed or not; `None` when git could not say within
    /// [`COUNTING`]. The session may be at work meanwhile.
    pub(crate) fn changed(&self, intent: &TreeIntent) -> Option<RoomChanges> {
        let counted = Held::take(intent).and_then(|held| {
            let shots = shoot(&self.git, &held, UNNAMED)?;
            let main =
                shots.first().ok_or_else(|| TreeError::Gone { place: held.place.clone() })?;
            Ok(self.counted(&held, &main.tree))
        });
        counted.ok().flatten()
    }

    /// How much a state that a tree's git directory has differs from the tree's base.
    pub(super) fn counted(&self, held: &Held, tree: &str) -> Option<RoomChanges> {
        let intent = &held.notes.intent;
        let base = intent.base.as_deref().unwrap_or_else(|| empty_tree(format(intent)));
        let said = self
            .compare(&held.place.join("ours"), base, tree)
            .args(["--shortstat", "--no-renames"])
            .within(COUNTING)
            .run();
        match said {
            Ok(said) => Some(short_stat(&said.line())),
            Err(err) => {
                tracing::debug!(session = intent.session, %err, "its changes are not counted");
                None
            }
        }
    }

    /// The difference between two states in a git directory.
    pub(crate) fn difference(
        &self,
        git_dir: &Path,
        from: &str,
        to: &str,
        patch_bytes: u64,
    ) -> Result<Diff, TreeError> {
        let files = self
            .compare(git_dir, from, to)
            .args(["--numstat", "-z", "--no-renames"])
            .limit(256 << 20)
            .run()?;
        let files = files.parts().filter_map(|part| {
            let mut fields = part.splitn(3, |byte| *byte == b'\t');
            let mut number = || {
                let text = fields.next()?;
                std::str::from_utf8(text).ok()?.parse().ok()
            };
            let (added, removed) = (number(), number());
            Some(FileStat { path: path_of(fields.next()?), added, removed })
        });
        let files = files.collect();
        let patch = self
            .compare(git_dir, from, to)
            .args(["-p", "-M", "--no-color", "--no-ext-diff", "--no-textconv"])
            .cut_at(patch_bytes.max(1))
            .run()?;
        Ok(Diff { files, patch: patch.stdout, cut: patch.cut })
    }

    fn compare(&self, ours: &Path, from: &str, to: &str) -> crate::git::Call<'_> {
        // Said outright, so that git does not look into a session's `.gitmodules` for it.
        let links = "--ignore-submodules=none";
        self.git.call("compare").repo(ours).args(["diff-tree", "-r", links, from, to])
    }

    /// Which files differ between two states that a git directory has.
    pub(super) fn changes(
        &self,
        ours: &Path,
        from: &str,
        to: &str,
    ) -> Result<Vec<Change>, TreeError> {
        let list = self
            .compare(ours, from, to)
            .args(["--name-status", "-z", "--no-renames"])
            .limit(256 << 20)
            .run()?;
        let parts: Vec<&[u8]> = list.parts().collect();
        let changes = parts.chunks_exact(2).map(|pair| {
            let kind = match pair[0].first() {
                Some(b'A') => ChangeKind::Added,
                Some(b'D') => ChangeKind::Deleted,
                Some(b'T') => ChangeKind::Retyped,
                _ => ChangeKind::Modified,
            };
            Change { path: path_of(pair[1]), kind }
        });
        Ok(changes.collect())
    }

    /// How many commits lead to `head` and not to any of `known`. Those that are not there count as
    /// unknown.
    pub(crate) fn count(
        &self,
        ours: &Path,
        head: &str,
        known: &[String],
    ) -> Result<u64, TreeError> {
        let mut input = format!("{head}\n");
        for id in known {
            input.push('^');
            input.push_str(id);
            input.push('\n');
        }
        let count = self
            .git
            .call("count the session's commits")
            .repo(ours)
            .args(["rev-list", "--count", "--ignore-missing", "--stdin"])
            .input(input)
            .run()?;
        Ok(count.line().parse().unwrap_or(0))
    }
}
