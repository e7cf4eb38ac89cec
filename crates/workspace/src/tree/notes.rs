//! Records about a tree: the intent before it is created, and the notes afterwards.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::build::{Paths, Unit};
use super::error::{At, TreeError};
use super::gitdir::pattern;
use super::source::Source;
use super::{Lock, Trees, directories};
use crate::opener::Dir;

/// A path on this machine. Serializes as text, or as bytes if it is not valid UTF-8.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HostPath(PathBuf);

impl HostPath {
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Debug for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<PathBuf> for HostPath {
    fn from(path: PathBuf) -> Self {
        Self(path)
    }
}

impl AsRef<Path> for HostPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

impl Serialize for HostPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => Written::Text(text.to_owned()),
            None => Written::Bytes(self.0.as_os_str().as_bytes().to_vec()),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for HostPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Written::deserialize(deserializer)? {
            Written::Text(text) => text.into(),
            Written::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }))
    }
}

/// A planned tree, with all data that is needed to undo it in any state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeIntent {
    /// The session's name within its project, as directory and branch have it.
    pub session: String,
    /// The directory that contains all of it; its parent is the project's.
    pub place: HostPath,
    pub origin: Origin,
    /// The session's branch. For a copy of a directory: the name under which it is saved.
    pub branch: String,
    /// The commit at which the branch begins; `None` if there is none yet.
    pub base: Option<String>,
    /// The commit that the primary is made to keep as long as this tree lives: all that is borrowed
    /// belongs to it. Another than the base only for a session within a session, whose base is in no
    /// branch of the primary yet.
    pub anchor: Option<String>,
    /// The session's directory, relative to the top of its tree.
    pub subdir: HostPath,
    /// The owner, for the search for remains of sessions. Not part of any path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl TreeIntent {
    /// The session's working tree.
    pub fn tree(&self) -> PathBuf {
        self.place.0.join("tree")
    }

    pub(crate) fn half_made(&self) -> PathBuf {
        let name = format!("{}{}", super::HALF_MADE, self.session);
        self.home().join(name)
    }

    /// The directory of the project.
    pub(crate) fn home(&self) -> &Path {
        self.place.0.parent().unwrap_or(Path::new("/"))
    }

    pub(crate) fn source(&self) -> Option<Source> {
        self.origin.source()
    }
}

/// The parts from which a tree is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    Repository {
        /// The primary's working tree; `None` for a bare repository.
        top: Option<HostPath>,
        git_dir: HostPath,
        common: HostPath,
        /// `sha1` or `sha256`.
        format: String,
        /// The directories that must contain all of it; absent, if its caller may use all of the host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<Vec<HostPath>>,
    },
    /// Not in a repository: the directory is copied.
    Directory { from: HostPath },
}

impl Origin {
    pub(crate) fn of(source: &Source, format: &str) -> Self {
        let Source { top, git_dir, common, within } = source.clone();
        Self::Repository {
            top: top.map(Into::into),
            git_dir: git_dir.into(),
            common: common.into(),
            format: format.to_owned(),
            within: within.map(|all| all.into_iter().map(Into::into).collect()),
        }
    }

    pub(crate) fn source(&self) -> Option<Source> {
        match self {
            Self::Repository { top, git_dir, common, within, .. } => Some(Source {
                top: top.as_ref().map(|top| top.0.clone()),
                git_dir: git_dir.0.clone(),
                common: common.0.clone(),
                within: within.as_ref().map(|all| all.iter().map(|path| path.0.clone()).collect()),
            }),
            Self::Directory { .. } => None,
        }
    }
}

/// The decision about a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Ending {
    /// All work is in these references of the primary (or, for a copy, in this file).
    Parked { commit: String, saved_as: String },
    /// Stays until it is released.
    Kept,
    /// May be removed, with the losses that were shown to the user.
    Discarded { commit: String, saved_as: String },
}

/// The known facts about a finished tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Notes {
    pub(crate) intent: TreeIntent,
    pub(crate) units: Vec<Unit>,
    pub(crate) ending: Option<Ending>,
    /// How uncommitted files were called and dated when they were saved: the same files give the same
    /// commit again.
    pub(crate) stamp: Option<(String, i64)>,
    /// Branches of the primary that we made or moved, and where to.
    pub(crate) published: Vec<(String, String)>,
    /// Paths that are links to the primary's directories.
    pub(crate) shared: Vec<HostPath>,
}

impl Notes {
    pub(crate) fn write(&self, place: &Path) -> Result<(), TreeError> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| TreeError::Notes { place: place.to_owned(), source })?;
        let (half, path) = (place.join("notes.half"), place.join("notes"));
        std::fs::write(&half, text).at("writing", &half)?;
        std::fs::rename(&half, &path).at("writing", &path)
    }

    fn read(place: &Path) -> Result<Self, TreeError> {
        let path = place.join("notes");
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => {
                return Err(TreeError::Gone { place: place.to_owned() });
            }
            Err(err) => return Err(err).at("reading", &path),
        };
        serde_json::from_slice(&text)
            .map_err(|source| TreeError::Notes { place: place.to_owned(), source })
    }
}

/// A finished tree, held by one step at a time.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) notes: Notes,
    pub(crate) place: PathBuf,
    _lock: Lock,
}

impl Held {
    /// Takes the tree, unless another step has it.
    pub(crate) fn take(intent: &TreeIntent) -> Result<Self, TreeError> {
        let place = intent.place.0.clone();
        let path = place.join("lock");
        let lock = match Lock::take(&path) {
            Ok(Some(lock)) => lock,
            Ok(None) => return Err(TreeError::Busy { session: intent.session.clone() }),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => {
                return Err(TreeError::Gone { place });
            }
            Err(err) => return Err(err).at("opening", &path),
        };
        let notes = Notes::read(&place)?;
        Ok(Self { notes, place, _lock: lock })
    }

    /// Our git directory of a unit.
    pub(crate) fn ours(&self, unit: &Unit) -> PathBuf {
        self.place.join(unit.ours.as_path())
    }

    pub(crate) fn session(&self) -> &str {
        &self.notes.intent.session
    }

    pub(crate) fn write(&self) -> Result<(), TreeError> {
        self.notes.write(&self.place)
    }
}

/// A tree as it is found on disk.
#[derive(Clone, Debug)]
pub struct Listed {
    pub intent: TreeIntent,
    pub ending: Option<Ending>,
    /// Whether the tree's directory is still there.
    pub exists: bool,
}

impl Trees {
    /// The finished tree whose working tree is `worktree`; `None` if it does not exist (any more),
    /// or if the path is not one of ours.
    ///
    /// # Errors
    ///
    /// When its notes cannot be read.
    pub fn at(&self, worktree: &Path) -> Result<Option<Listed>, TreeError> {
        let place = worktree.parent().filter(|place| place.starts_with(self.root()));
        let Some(place) = place else { return Ok(None) };
        match Notes::read(place) {
            Ok(notes) => {
                let exists = notes.intent.tree().is_dir();
                Ok(Some(Listed { intent: notes.intent, ending: notes.ending, exists }))
            }
            Err(TreeError::Gone { .. }) => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// Whether the project's repository has the file, as far as its tree was made from it; `None` for a
    /// path that is in no tree of ours. Asked by a git directory that no session writes: a setting of
    /// theirs may name a program.
    ///
    /// # Errors
    ///
    /// When the tree's notes cannot be read, or git fails.
    pub fn is_tracked(&self, file: &Path) -> Result<Option<bool>, TreeError> {
        let Some((paths, relative)) = self.part_of(file)? else { return Ok(None) };
        let git = self.git().call("ask whether it has a file").repo(&paths.ours);
        let git =
            git.work(&paths.work, &paths.index).plain(&paths.top).args(["ls-files", "-z", "--"]);
        Ok(Some(git.arg(&relative).run()?.parts().next().is_some()))
    }

    /// Leaves a file that was put into a tree out of all that is saved of it, or (`false`) no longer;
    /// and out of what git in that tree shows, unless the session has changed its own list of that. Says
    /// whether the path is in a tree of ours.
    ///
    /// # Errors
    ///
    /// When the tree's notes or our list cannot be read, or the list not be written.
    pub fn leave_out(&self, file: &Path, out: bool) -> Result<bool, TreeError> {
        let Some((paths, relative)) = self.part_of(file)? else { return Ok(false) };
        let Some(line) = pattern(&relative) else { return Ok(true) };
        let list = Path::new("info/exclude");
        let edit = |git_dir: &Path| -> std::io::Result<()> {
            let dir = Dir::open(git_dir)?;
            let text = dir.read(list, 1 << 20)?.unwrap_or_default();
            let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
            lines.retain(|found| !found.is_empty() && *found != line.as_slice());
            if out {
                lines.push(&line);
            }
            let mut text = lines.join(&b'\n');
            text.push(b'\n');
            dir.replace(list, &text, 0o644)
        };
        edit(&paths.ours).at("writing", paths.ours.join(list))?;
        // Theirs may have any content by now. It only determines what they are shown.
        if let Err(err) = edit(&paths.theirs)
            .and_then(|()| crate::owner::give(&paths.work, &paths.theirs.join(list)))
        {
            tracing::debug!(path = %paths.theirs.display(), %err, "its list is not written");
        }
        Ok(true)
    }

    /// Has git in a tree take these files, where it knows them, for unchanged, whatever it sees there.
    /// Answers those that it knows.
    ///
    /// # Errors
    ///
    /// When the tree's notes cannot be read, or git fails.
    pub(crate) fn take_for_unchanged(
        &self,
        tree: &Path,
        files: &[PathBuf],
    ) -> Result<Vec<PathBuf>, TreeError> {
        let mut all = Vec::new();
        let mut units: Vec<(Paths, Vec<u8>)> = Vec::new();
        for file in files {
            let Some((paths, relative)) = self.part_of(&tree.join(file))? else { continue };
            let known = units.iter().position(|(known, _)| known.work == paths.work);
            let at = known.unwrap_or_else(|| {
                units.push((paths, Vec::new()));
                units.len() - 1
            });
            units[at].1.extend_from_slice(relative.as_os_str().as_bytes());
            units[at].1.push(0);
        }
        for (paths, names) in units {
            let index = paths.theirs.join("index");
            if !index.is_file() {
                continue;
            }
            let git = |doing: &str| {
                self.git()
                    .call(doing.to_owned())
                    .repo(&paths.ours)
                    .work(&paths.work, &index)
                    .plain(&paths.top)
            };
            let list = git("ask which secrets it has")
                .args(["--literal-pathspecs", "ls-files", "-z"])
                .arg("--");
            let list = names
                .split(|byte| *byte == 0)
                .filter(|name| !name.is_empty())
                .fold(list, |list, name| list.arg(std::ffi::OsStr::from_bytes(name)));
            let mut tracked = Vec::new();
            for part in list.run()?.parts() {
                let path = paths.work.join(std::ffi::OsStr::from_bytes(part));
                all.extend(path.strip_prefix(tree).map(Path::to_owned));
                tracked.extend_from_slice(part);
                tracked.push(0);
            }
            if !tracked.is_empty() {
                git("set its secrets apart")
                    .args(["update-index", "-z", "--skip-worktree", "--stdin"])
                    .input(tracked)
                    .run()?;
                crate::owner::give(&paths.work, &index).at("giving its index away", &index)?;
            }
        }
        Ok(all)
    }

    /// The unit of a tree that a path is in, and the path in it.
    fn part_of(&self, file: &Path) -> Result<Option<(Paths, PathBuf)>, TreeError> {
        // The outermost one: within a tree anything may look like another.
        let is_place = |dir: &&Path| {
            dir.starts_with(self.root())
                && file.starts_with(dir.join("tree"))
                && dir.join("notes").is_file()
        };
        let Some(place) = file.ancestors().filter(is_place).last() else { return Ok(None) };
        let notes = Notes::read(place)?;
        let path = file.strip_prefix(place.join("tree")).unwrap_or(file);
        let has = notes.units.iter().filter(|unit| path.starts_with(unit.at.as_path()));
        let deepest = has.max_by_key(|unit| unit.at.as_path().components().count());
        Ok(deepest.map(|unit| {
            let relative = path.strip_prefix(unit.at.as_path()).unwrap_or(path);
            (unit.paths(place), relative.to_owned())
        }))
    }

    /// Every finished tree on disk, for the comparison of a leak check.
    ///
    /// # Errors
    ///
    /// When a directory or a tree's notes cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, TreeError> {
        let mut all = Vec::new();
        for home in self.homes()? {
            for place in directories(&home)? {
                match Notes::read(&place) {
                    Ok(notes) => {
                        let exists = notes.intent.tree().is_dir();
                        all.push(Listed { intent: notes.intent, ending: notes.ending, exists });
                    }
                    Err(TreeError::Gone { .. }) => {}
                    Err(err) => return Err(err),
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_round_trips_with_any_bytes_in_its_paths() {
        let odd = HostPath(OsString::from_vec(b"/a/\xff\n\"b".to_vec()).into());
        let intent = TreeIntent {
            session: "s".to_owned(),
            place: odd.clone(),
            origin: Origin::Directory { from: odd },
            branch: "overmind/s".to_owned(),
            base: None,
            anchor: None,
            subdir: PathBuf::new().into(),
            owner: Some("ses_1".to_owned()),
        };
        let text = serde_json::to_string(&intent).unwrap();
        assert_eq!(serde_json::from_str::<TreeIntent>(&text).unwrap(), intent);
    }
}
