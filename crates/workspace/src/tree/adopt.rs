//! Imports the git actions of a session as data.
//!
//! The session's repository is in its tree, and the session controls every byte of it. Git would
//! follow links in it, read other repositories' objects through it and run programs from its
//! configuration. So git never runs in it: references are read here, as text, without following
//! links; objects are copied into a directory of ours, from which git packs and checks them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::build::{Paths, Unit};
use super::error::{At, TreeError};
use super::gitdir;
use super::names::is_reference;
use super::pack::{pack_into, taking, unpack_from};
use crate::copy::{self, Budget, Copied, copy_dir};
use crate::git::{Git, is_id, path_of};
use crate::opener::Dir;

/// The largest `packed-refs` and log of stashes.
const LARGE: u64 = 64 << 20;
/// The number of a session's references that are read.
const MOST: usize = 20_000;
/// The allowed content of a session's repository.
const OBJECTS: Budget = Budget { bytes: 8 << 30, files: 2_000_000 };
/// The file in our git directory with the session's last known head.
const LAST: &str = "refs/overmind/head";

/// Something that git is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Merge,
    Rebase,
    CherryPick,
    Revert,
    Bisect,
}

impl Operation {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Merge => "merge",
            Self::Rebase => "rebase",
            Self::CherryPick => "cherry-pick",
            Self::Revert => "revert",
            Self::Bisect => "bisect",
        }
    }

    /// The operation in progress in a git directory.
    pub(crate) fn of(git_dir: &Dir) -> Option<Self> {
        let is = |name: &str| git_dir.stat(Path::new(name)).is_ok_and(|stat| stat.is_some());
        [
            ("rebase-merge", Self::Rebase),
            ("rebase-apply", Self::Rebase),
            ("MERGE_HEAD", Self::Merge),
            ("CHERRY_PICK_HEAD", Self::CherryPick),
            ("REVERT_HEAD", Self::Revert),
            ("BISECT_LOG", Self::Bisect),
        ]
        .into_iter()
        .find_map(|(name, operation)| is(name).then_some(operation))
    }
}

/// The state of a session's repository, with all its objects in ours.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adopted {
    pub(crate) head: Option<String>,
    /// The branch that is checked out.
    pub(crate) branch: Option<String>,
    /// Other branches, tags and stashes that the session made or moved.
    pub(crate) others: Vec<(String, String)>,
    pub(crate) operation: Option<Operation>,
    /// Why some of it could not be taken over.
    pub(crate) unreadable: Option<String>,
}

/// Reads a unit's repository and takes over what is new in it.
pub(crate) fn adopt(git: &Git, place: &Path, unit: &Unit) -> Result<Adopted, TreeError> {
    let paths = unit.paths(place);
    let last = std::fs::read_to_string(paths.ours.join(LAST)).ok();
    let last = last.map(|text| text.trim().to_owned()).filter(|id| is_id(id));
    let fallback = last.or_else(|| unit.base.clone());
    let theirs = Dir::open(&place.join("tree")).and_then(|tree| tree.sub(unit.theirs.as_path()));
    let Ok(theirs) = theirs else {
        let unreadable = Some("its .git is gone or was replaced".to_owned());
        return Ok(Adopted { head: fallback, unreadable, ..Adopted::default() });
    };
    let mut adopted = match read(&theirs, &paths, unit) {
        Ok(adopted) => adopted,
        Err(why) => {
            return Ok(Adopted { head: fallback, unreadable: Some(why), ..Adopted::default() });
        }
    };
    if let Err(why) = fetch(git, &theirs, &paths, &mut adopted, unit)? {
        adopted.unreadable = Some(why);
        adopted.head = fallback;
        adopted.others.clear();
        return Ok(adopted);
    }
    if let Some(head) = &adopted.head {
        gitdir::set_reference(&paths.ours, LAST, head).at("noting the head in", &paths.ours)?;
    }
    Ok(adopted)
}

/// Tells a session's repository where a branch of the primary is now, so that the session can merge it:
/// the commit is among the objects that it borrows. `false`: the session is on that branch or has
/// moved it, and it stays as it is.
pub(crate) fn tell_branch(
    place: &Path,
    unit: &Unit,
    adopted: &Adopted,
    (name, id): (&str, &str),
) -> Result<bool, TreeError> {
    let its_own = adopted.branch.as_deref() == Some(name)
        || adopted.others.iter().any(|(other, _)| other == name);
    if its_own || adopted.unreadable.is_some() || !is_reference(name) {
        return Ok(false);
    }
    let paths = unit.paths(place);
    let theirs = Dir::open(&place.join("tree")).and_then(|tree| tree.sub(unit.theirs.as_path()));
    theirs
        .and_then(|theirs| theirs.replace(Path::new(name), format!("{id}\n").as_bytes(), 0o644))
        .at("writing a branch of", &paths.theirs)?;
    // The given commits were not created by the session.
    let file = paths.ours.join("given-refs");
    let mut given = std::fs::read(&file).at("reading", &file)?;
    let is_it = |line: &[u8]| line.split(|byte| *byte == b' ').nth(1) == Some(name.as_bytes());
    let mut lines: Vec<&[u8]> = given.split(|byte| *byte == b'\n').collect();
    lines.retain(|line| !line.is_empty() && !is_it(line));
    let line = format!("{id} {name}");
    lines.push(line.as_bytes());
    given = [lines.join(&b'\n'), b"\n".to_vec()].concat();
    std::fs::write(&file, given).at("writing", &file)?;
    Ok(true)
}

/// Reads the references. Any unexpected form is reported, and not guessed.
fn read(theirs: &Dir, paths: &Paths, unit: &Unit) -> Result<Adopted, String> {
    let said = |what: &str| {
        let what = what.to_owned();
        move |err: std::io::Error| format!("its {what} cannot be read: {err}")
    };
    let mut now = HashMap::new();
    let packed = theirs.read(Path::new("packed-refs"), LARGE).map_err(said("packed-refs"))?;
    parse_packed(&packed.unwrap_or_default(), &mut now);
    for (dir, name) in [("refs/heads", "branches"), ("refs/tags", "tags")] {
        loose(theirs, Path::new(dir), &mut now, 0).map_err(said(name))?;
    }
    if let Some(id) = one(theirs, Path::new("refs/stash")).map_err(said("stash"))? {
        now.insert("refs/stash".to_owned(), id);
    }
    let text = theirs.read(Path::new("HEAD"), 4096).map_err(said("HEAD"))?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    let (head, branch) = match text.strip_prefix("ref:").map(str::trim) {
        Some("refs/heads/.invalid") => return Err("it keeps its references in tables".to_owned()),
        Some(name) if is_reference(name) => (now.get(name).cloned(), Some(name.to_owned())),
        None if is_id(&text) => (Some(text), None),
        _ => return Err("its HEAD is damaged".to_owned()),
    };
    if head.is_none() && unit.base.is_some() {
        return Err("its HEAD names a branch without a commit".to_owned());
    }
    let mut given = HashMap::new();
    let packed = std::fs::read(paths.ours.join("given-refs")).unwrap_or_default();
    parse_packed(&packed, &mut given);
    let mut others: Vec<(String, String)> = now
        .into_iter()
        .filter(|(name, id)| {
            let ours = name.starts_with("refs/heads/")
                || name.starts_with("refs/tags/")
                || name == "refs/stash";
            ours && given.get(name) != Some(id) && branch.as_ref() != Some(name)
        })
        .collect();
    others.extend(stashes(theirs).map_err(said("stashes"))?);
    others.sort();
    if others.len() > MOST {
        return Err(format!("it has {} new references", others.len()));
    }
    Ok(Adopted { head, branch, others, operation: Operation::of(theirs), unreadable: None })
}

fn parse_packed(text: &[u8], into: &mut HashMap<String, String>) {
    for line in String::from_utf8_lossy(text).lines() {
        if let Some((id, name)) = line.split_once(' ')
            && is_id(id)
            && is_reference(name)
        {
            into.insert(name.to_owned(), id.to_owned());
        }
    }
}

fn one(theirs: &Dir, path: &Path) -> std::io::Result<Option<String>> {
    let text = theirs.read(path, 1024)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    Ok(is_id(&text).then_some(text))
}

fn loose(
    theirs: &Dir,
    dir: &Path,
    into: &mut HashMap<String, String>,
    depth: usize,
) -> std::io::Result<()> {
    if !theirs.has_dir(dir) || depth > 64 {
        return Ok(());
    }
    for entry in theirs.sub(dir)?.entries()? {
        let path = dir.join(&entry.name);
        if into.len() > 50 * MOST {
            return Err(std::io::Error::other("too many of them"));
        }
        match entry.kind {
            FileType::Directory => loose(theirs, &path, into, depth + 1)?,
            FileType::RegularFile => {
                if let (Some(name), Some(id)) = (path.to_str(), one(theirs, &path)?)
                    && is_reference(name)
                {
                    into.insert(name.to_owned(), id);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Older stashes: only the log names them.
fn stashes(theirs: &Dir) -> std::io::Result<Vec<(String, String)>> {
    let log = theirs.read(Path::new("logs/refs/stash"), LARGE)?.unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    let ids = log.lines().filter_map(|line| line.split(' ').nth(1)).filter(|id| is_id(id));
    let mut ids: Vec<String> = ids.map(str::to_owned).collect();
    // The last is the stash itself.
    ids.pop();
    let count = ids.len();
    Ok(ids
        .into_iter()
        .enumerate()
        .map(|(at, id)| (format!("refs/stash@{}", count - at), id))
        .collect())
}

/// Imports the missing objects. The inner error names the objects that the session's repository lacks.
fn fetch(
    git: &Git,
    theirs: &Dir,
    paths: &Paths,
    adopted: &mut Adopted,
    unit: &Unit,
) -> Result<Result<(), String>, TreeError> {
    let others = adopted.others.iter().map(|(_, id)| id.as_str());
    let wanted: Vec<&str> = adopted.head.as_deref().into_iter().chain(others).collect();
    let missing = missing(git, &paths.ours, &wanted)?;
    if missing.is_empty() {
        return Ok(Ok(()));
    }
    let incoming = paths.ours.join("incoming");
    copy::remove_all(&incoming).at("removing", &incoming)?;
    std::fs::create_dir_all(&incoming).at("making", &incoming)?;
    let taken = take_objects(theirs, &incoming);
    let done = match taken {
        Err(err) => Ok(Err(format!("its objects cannot be copied: {err}"))),
        Ok(_) => unpack(git, paths, &incoming, &missing, unit),
    };
    copy::remove_all(&incoming).at("removing", &incoming)?;
    done
}

fn missing(git: &Git, ours: &Path, wanted: &[&str]) -> Result<Vec<String>, TreeError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let list = git
        .call("look for the session's commits")
        .repo(ours)
        .args(["cat-file", "--batch-check=%(objectname)"])
        .input(wanted.join("\n") + "\n")
        .run()?;
    let text = String::from_utf8_lossy(&list.stdout);
    let missing = text.lines().filter_map(|line| line.strip_suffix(" missing"));
    Ok(missing.map(str::to_owned).collect())
}

/// Copies loose objects and packs, but no other files that git would trust (alternates, graphs,
/// bitmaps).
fn take_objects(theirs: &Dir, incoming: &Path) -> std::io::Result<Copied> {
    let from = theirs.sub(Path::new("objects"))?;
    let to = Dir::open(incoming)?;
    let mut budget = OBJECTS;
    let leave = |path: &Path, kind: FileType| {
        let mut parts = path.iter();
        let (dir, file) = (parts.next().unwrap_or_default(), parts.next());
        let pack = dir == "pack";
        match file {
            None => kind != FileType::Directory || (!pack && dir.len() != 2),
            Some(file) => {
                let file = Path::new(file);
                let of_a_pack = file.extension().is_some_and(|e| e == "pack" || e == "idx");
                // A link would be followed to another repository's objects.
                kind != FileType::RegularFile || (pack && !of_a_pack)
            }
        }
    };
    copy_dir(&from, &to, &mut budget, &leave)
}

fn unpack(
    git: &Git,
    paths: &Paths,
    incoming: &Path,
    missing: &[String],
    unit: &Unit,
) -> Result<Result<(), String>, TreeError> {
    let info = incoming.join("info");
    std::fs::create_dir_all(&info).at("making", &info)?;
    let borrowed = gitdir::alternates(&[paths.ours.join("objects")]);
    std::fs::write(info.join("alternates"), borrowed).at("writing", &info)?;
    let path = incoming.join("incoming.pack");
    let pack = std::fs::File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(&path)
        .at("making", &path)?;
    let last = std::fs::read_to_string(paths.ours.join(LAST)).unwrap_or_default();
    let last = Some(last.trim()).filter(|id| is_id(id));
    let known: Vec<&str> = unit.base.as_deref().into_iter().chain(last).collect();
    let wanted: Vec<&str> = missing.iter().map(String::as_str).collect();
    let call = git
        .call("collect the session's commits")
        .repo(&paths.ours)
        .env("GIT_OBJECT_DIRECTORY", incoming);
    let done = pack_into(call, &wanted, &known, &pack, &path)
        .and_then(|()| unpack_from(taking(git, &paths.ours).repo(&paths.ours), pack, &path));
    match done {
        Ok(()) => Ok(Ok(())),
        Err(TreeError::Git(err @ crate::git::GitError::Failed { .. })) => {
            Ok(Err(format!("its commits are damaged: {err}")))
        }
        Err(err) => Err(err),
    }
}

/// The path of a unit's working tree within the session's, for messages.
pub(crate) fn called(unit: &Unit) -> PathBuf {
    let at = unit.at.as_path();
    if at.as_os_str().is_empty() { path_of(b".") } else { at.to_owned() }
}
