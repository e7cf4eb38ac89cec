//! The additions of a session besides the primary's commits: ignored files by an include list,
//! large directories by strategy, uncommitted changes on request; and the number of files that are
//! not copied.
//!
//! The primary is read with our own git directory and a copy of its index: its configuration has no
//! effect, and nothing in it is written.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::FileType;

use super::build::Paths;
use super::error::{At, TreeError};
use super::gitdir::{self, Layout};
use super::options::{BigDirectory, Options, Strategy};
use super::prepare::{LeftBehind, Warning};
use crate::copy::{Budget, Copied, contents, copy_dir, copy_one};
use crate::git::{Answer, Git, GitError, path_of};
use crate::opener::{self, Dir, Entry, Own};

/// The maximum bytes of the list of changed, untracked and ignored files; the rest is not read.
const LIST: u64 = 32 << 20;
/// Files within ignored directories that are compared with the include list.
const LOOKED_AT: usize = 20_000;
/// The largest `.worktreeinclude`.
const INCLUDE: u64 = 64 << 10;
/// Ignored directories with generated files. The include list does not reach into them.
const MADE_BY_TOOLS: &[&str] = &[
    "node_modules",
    "target",
    ".venv",
    "venv",
    "__pycache__",
    ".tox",
    ".gradle",
    ".next",
    ".cache",
    ".git",
    "vendor",
];

/// The primary's working tree.
#[derive(Debug)]
pub(crate) struct Primary<'a> {
    pub(crate) git: &'a Git,
    pub(crate) top: &'a Path,
    pub(crate) git_dir: &'a Path,
    /// The files that are not copied.
    pub(crate) own: Own,
    pub(crate) head: Option<&'a str>,
}

/// The files that were copied.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    pub(crate) left: Option<LeftBehind>,
    pub(crate) included: Vec<PathBuf>,
    pub(crate) shared: Vec<PathBuf>,
    pub(crate) copied: Copied,
    pub(crate) warnings: Vec<Warning>,
}

/// The output of git about the primary.
#[derive(Debug, Default)]
struct Seen {
    left: LeftBehind,
    /// Changed or untracked; `true`: not there any more.
    changes: Vec<(PathBuf, bool)>,
    /// Ignored files.
    files: Vec<PathBuf>,
    /// Ignored directories.
    dirs: Vec<PathBuf>,
}

pub(crate) fn bring(
    from: &Primary<'_>,
    half: &Path,
    paths: &Paths,
    options: &Options,
) -> Result<Brought, TreeError> {
    let mut brought = Brought::default();
    let seen = match from.look(half, paths) {
        Ok(seen) => seen,
        Err(err) => {
            // A session can start without this; a warning reports it.
            let path = from.top.to_string_lossy().into_owned();
            brought.warnings.push(Warning::CarryFailed { path, why: err.to_string() });
            return Ok(brought);
        }
    };
    brought.left = Some(seen.left);
    let dirs = (Dir::open_plain(from.top), Dir::open(&paths.work));
    let top = dirs.0.at("opening", from.top)?.without(&from.own);
    let tree = dirs.1.at("opening", &paths.work)?;
    if options.carry_changes {
        carry(from, &seen, paths, (&top, &tree), options, &mut brought)?;
    }
    let mut looked_into = Vec::new();
    let mut budget = Budget { bytes: options.clone_bytes, files: u64::MAX };
    for dir in &seen.dirs {
        match options.big.iter().find(|big| is_meant(big, dir)) {
            Some(big) => big_directory(big, dir, from, (&top, &tree), &mut budget, &mut brought),
            None => looked_into.push(dir.as_path()),
        }
    }
    ignore_links(&brought.shared, from.top, paths)?;
    include(from, half, &seen, &looked_into, (&top, &tree), options, &mut brought)?;
    Ok(brought)
}

impl Primary<'_> {
    fn look(&self, half: &Path, paths: &Paths) -> Result<Seen, TreeError> {
        let index = half.join("primary-index");
        let copied = self.copy_index(&index).is_ok();
        let head = self.head.unwrap_or("refs/heads/none");
        gitdir::set_head(&paths.ours, head).at("writing the head of", &paths.ours)?;
        let list = match self.list(paths, &index) {
            Ok(list) => list,
            Err(err) => {
                // An index that refers to files beside it cannot be read from elsewhere: a new one
                // has the same content, but every file must be read for it.
                let Some(head) = self.head.filter(|_| copied) else { return Err(err.into()) };
                std::fs::remove_file(&index).at("removing", &index)?;
                self.git
                    .call("read the primary's commit")
                    .repo(&paths.ours)
                    .work(self.top, &index)
                    .plain(self.top)
                    .args(["read-tree", head])
                    .run()?;
                self.list(paths, &index)?
            }
        };
        let _ = std::fs::remove_file(&index);
        Ok(parse(&list))
    }

    fn copy_index(&self, to: &Path) -> std::io::Result<()> {
        let from = Dir::open_plain(self.git_dir)?.file(Path::new("index"))?;
        let bytes = from.metadata()?.len();
        contents(&from, bytes, &std::fs::File::create(to)?).map(drop)
    }

    fn list(&self, paths: &Paths, index: &Path) -> Result<Answer, GitError> {
        self.git
            .call(format!("list what is changed in {}", self.top.display()))
            .repo(&paths.ours)
            .work(self.top, index)
            .args(["status", "--porcelain=v2", "-z", "--no-renames", "--ignored=matching"])
            .args(["--untracked-files=all", "--ignore-submodules=all"])
            .cut_at(LIST)
            .run()
    }
}

fn parse(list: &Answer) -> Seen {
    let mut seen = Seen::default();
    let whole = if list.cut {
        let end = list.stdout.iter().rposition(|byte| *byte == 0).unwrap_or(0);
        &list.stdout[..end]
    } else {
        &list.stdout
    };
    for part in whole.split(|byte| *byte == 0).filter(|part| part.len() > 2) {
        // The path is the text after so many fields, and may contain spaces itself.
        let path = |count: usize| part.splitn(count + 1, |byte| *byte == b' ').nth(count);
        match part[0] {
            b'1' => {
                let mode = part.split(|byte| *byte == b' ').nth(5);
                let (Some(path), Some(mode)) = (path(8), mode) else { continue };
                seen.left.changed += 1;
                seen.changes.push((path_of(path), mode == b"000000"));
            }
            b'u' => {
                seen.left.conflicted += 1;
                seen.changes.extend(path(10).map(|path| (path_of(path), false)));
            }
            b'?' => {
                seen.left.untracked += 1;
                seen.changes.push((path_of(&part[2..]), false));
            }
            b'!' => match part[2..].strip_suffix(b"/") {
                Some(dir) => seen.dirs.push(path_of(dir)),
                None => seen.files.push(path_of(&part[2..])),
            },
            _ => {}
        }
    }
    seen
}

/// Copies uncommitted changes and untracked files.
fn carry(
    from: &Primary<'_>,
    seen: &Seen,
    paths: &Paths,
    (top, tree): (&Dir, &Dir),
    options: &Options,
    brought: &mut Brought,
) -> Result<(), TreeError> {
    let base = std::fs::read_to_string(paths.theirs.join("HEAD")).unwrap_or_default();
    let branch = base.trim().strip_prefix("ref: ").unwrap_or_default();
    let base = std::fs::read_to_string(paths.theirs.join(branch)).unwrap_or_default();
    if from.head.unwrap_or_default() != base.trim() {
        brought.warnings.push(Warning::CarryFailed {
            path: from.top.to_string_lossy().into_owned(),
            why: "the session begins at another commit than the one that is checked out".to_owned(),
        });
        return Ok(());
    }
    let mut budget = Budget { bytes: options.clone_bytes, files: u64::MAX };
    for (path, gone) in &seen.changes {
        let done = if *gone {
            tree.remove(path)
        } else if path.as_os_str().as_bytes().ends_with(b"/") {
            Err(std::io::Error::other("a repository within the repository"))
        } else {
            copy_one(top, path, tree, path, &mut budget).map(|copied| brought.copied.add(copied))
        };
        if let Err(err) = done {
            let path = path.to_string_lossy().into_owned();
            brought.warnings.push(Warning::CarryFailed { path, why: opener::why(&err) });
        }
    }
    Ok(())
}

/// Whether a declaration means this ignored directory.
fn is_meant(big: &BigDirectory, dir: &Path) -> bool {
    let wanted = Path::new(big.path.trim_matches('/'));
    let one_name = wanted.components().count() == 1;
    dir == wanted || (one_name && dir.file_name() == Some(wanted.as_os_str()))
}

fn big_directory(
    big: &BigDirectory,
    dir: &Path,
    from: &Primary<'_>,
    (top, tree): (&Dir, &Dir),
    budget: &mut Budget,
    brought: &mut Brought,
) {
    let missing = |at: &Path| tree.stat(at).is_ok_and(|stat| stat.is_none());
    let done = match big.strategy {
        Strategy::Skip => Ok(()),
        _ if !missing(dir) => {
            Err(std::io::Error::other("the base commit has something of this name"))
        }
        Strategy::Share => top.sub(dir).and_then(|_| {
            let target = from.top.join(dir);
            tree.link(&target, dir).map(|()| brought.shared.push(target))
        }),
        Strategy::Clone => top.sub(dir).and_then(|source| {
            let target = tree.sub_made(dir)?;
            let copied = copy_dir(&source, &target, budget, &|_, _| false)?;
            brought.copied.add(copied);
            Ok(())
        }),
    };
    if let Err(err) = done {
        let path = dir.to_string_lossy().into_owned();
        brought.warnings.push(Warning::CloneSkipped { path, why: err.to_string() });
    }
}

/// A pattern for directories (`node_modules/`) does not mean a link of that name. So links are ignored
/// by name: they are no work of the session.
fn ignore_links(shared: &[PathBuf], top: &Path, paths: &Paths) -> Result<(), TreeError> {
    let mut lines = Vec::new();
    for path in shared {
        let Ok(path) = path.strip_prefix(top) else { continue };
        if let Some(line) = gitdir::pattern(path) {
            lines.extend(line);
            lines.push(b'\n');
        }
    }
    if lines.is_empty() {
        return Ok(());
    }
    for file in [paths.ours.join("info/exclude"), paths.theirs.join("info/exclude")] {
        let mut text = std::fs::read(&file).at("reading", &file)?;
        if !text.is_empty() && !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        text.extend_from_slice(&lines);
        std::fs::write(&file, text).at("writing", &file)?;
    }
    Ok(())
}

/// Copies ignored files that the include list names.
fn include(
    from: &Primary<'_>,
    half: &Path,
    seen: &Seen,
    dirs: &[&Path],
    (top, tree): (&Dir, &Dir),
    options: &Options,
    brought: &mut Brought,
) -> Result<(), TreeError> {
    let mut candidates = seen.files.clone();
    for dir in dirs {
        let made_by_tools =
            dir.file_name().is_some_and(|name| MADE_BY_TOOLS.iter().any(|known| name == *known));
        if !made_by_tools {
            collect(top, dir, &mut candidates, 0);
        }
    }
    if candidates.is_empty() {
        return Ok(());
    }
    let mut patterns = options.include.join("\n").into_bytes();
    patterns.push(b'\n');
    match top.read(Path::new(".worktreeinclude"), INCLUDE) {
        Ok(text) => patterns.extend(text.unwrap_or_default()),
        Err(err) => brought.warnings.push(Warning::IncludeSkipped {
            path: ".worktreeinclude".to_owned(),
            why: opener::why(&err),
        }),
    }
    let mut budget = Budget { bytes: options.include_bytes, files: options.include_files };
    for path in named(from.git, half, &patterns, &candidates)? {
        let done = match tree.stat(&path) {
            Ok(None) if leads_out(top, &path) => {
                Err(std::io::Error::other("a link that leads out of the repository"))
            }
            Ok(None) => copy_one(top, &path, tree, &path, &mut budget),
            Ok(Some(_)) => Err(std::io::Error::other("the base commit has a file of this name")),
            Err(err) => Err(err),
        };
        match done {
            Ok(copied) => {
                brought.copied.add(copied);
                brought.included.push(path);
            }
            Err(err) => brought.warnings.push(Warning::IncludeSkipped {
                path: path.to_string_lossy().into_owned(),
                why: err.to_string(),
            }),
        }
    }
    Ok(())
}

/// The files beneath an ignored directory, but not beneath those that tools made.
fn collect(top: &Dir, dir: &Path, into: &mut Vec<PathBuf>, depth: usize) {
    // An unreadable directory is no candidate: it is the user's own ignored directory.
    let Ok(entries) = top.sub(dir).and_then(|dir| dir.entries()) else { return };
    for Entry { name, kind } in entries {
        if into.len() >= LOOKED_AT {
            return;
        }
        let made_by_tools = MADE_BY_TOOLS.iter().any(|known| name == *known);
        match kind {
            FileType::Directory if made_by_tools || depth > 16 => {}
            FileType::Directory => collect(top, &dir.join(name), into, depth + 1),
            FileType::RegularFile | FileType::Symlink => into.push(dir.join(name)),
            _ => {}
        }
    }
}

/// The candidates that match the patterns. Git decides this, as if only these patterns ignored them.
fn named(
    git: &Git,
    half: &Path,
    patterns: &[u8],
    candidates: &[PathBuf],
) -> Result<Vec<PathBuf>, TreeError> {
    let scratch = half.join("scratch");
    let empty = half.join("scratch/empty");
    let layout = Layout { head: "refs/heads/none", exclude: patterns, ..Layout::default() };
    gitdir::write(&scratch, &layout).at("writing a git directory at", &scratch)?;
    std::fs::create_dir(&empty).at("making", &empty)?;
    let mut input = Vec::new();
    for path in candidates {
        // A name that begins with a colon would be more than a name.
        input.extend_from_slice(b"./");
        input.extend_from_slice(path.as_os_str().as_bytes());
        input.push(0);
    }
    let answer = git
        .call("compare ignored files with the include list")
        .repo(&scratch)
        .work(&empty, &scratch.join("index"))
        .env("GIT_LITERAL_PATHSPECS", "0")
        .args(["check-ignore", "--no-index", "-z", "-v", "--stdin"])
        .input(input)
        .accept(&[0, 1])
        .run()?;
    crate::copy::remove_all(&scratch).at("removing", &scratch)?;
    let parts: Vec<&[u8]> = answer.stdout.split(|byte| *byte == 0).collect();
    let matches = parts.chunks_exact(4).filter(|part| !part[2].starts_with(b"!"));
    let names = matches.filter_map(|part| part[3].strip_prefix(b"./"));
    Ok(names.map(path_of).collect())
}

/// Whether a path is a link whose target lies outside the repository.
fn leads_out(top: &Dir, path: &Path) -> bool {
    let is_link = top
        .stat(path)
        .ok()
        .flatten()
        .is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    if !is_link {
        return false;
    }
    let Ok(target) = top.target(path) else { return true };
    let mut depth = path.components().count().saturating_sub(1);
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    false
}
