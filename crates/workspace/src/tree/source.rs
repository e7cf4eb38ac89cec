//! The repository that contains a project: its location, its settings, its references.
//!
//! A repository's configuration can name programs. So none of it is used: this module reads the file as
//! data and picks what is known to be data ([`Settings::data`]).

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use overmind_core::room::RoomReach;
use rustix::fs::FileType;

use super::error::{At, TreeError};
use super::gitdir::{self, Setting};
use super::names;
use crate::git::{Git, is_id};
use crate::opener::{self, Dir, Entry, Own};

/// The largest `.git` file, `HEAD` or `commondir`.
const SMALL: u64 = 4 << 10;
/// The largest of the files that are taken over as they are (exclude, sparse patterns, shallow).
const PATTERNS: u64 = 8 << 20;

/// The largest of those that git reads as a whole.
const WHOLE: u64 = 1 << 30;

/// Files of a repository that git writes to, or reads completely. A link in their place redirects
/// the server's own access as the host's user.
const DIRECTORIES: &[&str] = &["refs", "logs", "info"];
/// Of all worktrees, and of one. `HEAD` may be a link to a branch.
const FILES: &[&str] =
    &["HEAD", "config", "packed-refs", "shallow", "info/exclude", "objects/info/alternates"];
const OF_ONE: &[&str] =
    &["HEAD", "index", "commondir", "config.worktree", "info/sparse-checkout", "logs/HEAD"];

/// Directories in which git writes whatever a reference is called.
const WRITTEN: &[&str] = &["refs", "logs"];
/// The number of entries that are read, and the depth.
const MOST: usize = 500_000;
const DEEPEST: usize = 64;

/// Whether a directory contains only files and directories. Git follows a link there when it writes
/// a reference or a line of its log, and waits for a pipe.
fn plain_below(
    top: &Dir,
    at: &Path,
    depth: usize,
    left: &mut usize,
) -> Result<(), (PathBuf, String)> {
    let wrong = |why: String| (at.to_owned(), why);
    let unreadable = |err: io::Error| wrong(opener::why(&err));
    let Some(dir) = opener::absent(top.sub(at)).map_err(unreadable)? else { return Ok(()) };
    for Entry { name, kind } in dir.entries().map_err(unreadable)? {
        let path = at.join(&name);
        *left = left
            .checked_sub(1)
            .ok_or_else(|| wrong(format!("holds more than {MOST} files: `git pack-refs --all`")))?;
        match kind {
            FileType::RegularFile => {}
            FileType::Directory if depth < DEEPEST => plain_below(top, &path, depth + 1, left)?,
            FileType::Directory => return Err((path, "is nested too deeply".to_owned())),
            _ => {
                let why = "is a link, a pipe or a device where git writes: remove it";
                return Err((path, why.to_owned()));
            }
        }
    }
    Ok(())
}

/// The location of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The working tree; `None` for a bare repository.
    pub(crate) top: Option<PathBuf>,
    /// The files of this working tree alone: `HEAD`, index.
    pub(crate) git_dir: PathBuf,
    /// The files that all its working trees share: objects, references, configuration.
    pub(crate) common: PathBuf,
    /// The directories that must contain all of it, if its caller may not use all of the host; in
    /// these directories, git follows no link.
    pub(crate) within: Option<Vec<PathBuf>>,
}

impl Source {
    /// Whether its caller may see the content.
    pub(crate) fn reaches(&self, path: &Path) -> bool {
        self.within.as_ref().is_none_or(|roots| roots.iter().any(|root| path.starts_with(root)))
    }

    /// The caller's directories that contain it.
    pub(crate) fn places(&self) -> Vec<&Path> {
        let holds = |root: &&PathBuf| {
            self.git_dir.starts_with(root)
                || self.common.starts_with(root)
                || self.top.as_ref().is_some_and(|top| top.starts_with(root))
        };
        self.within.iter().flatten().filter(holds).map(PathBuf::as_path).collect()
    }

    /// Bounds it to what its caller may use.
    fn bound(&mut self, project: &Path, roots: &[PathBuf], above: bool) -> Result<(), TreeError> {
        let top = self.top.as_ref().unwrap_or(&self.common);
        // A project may be a part of its repository.
        let whole =
            roots.first().filter(|root| above && root.starts_with(top)).map(|_| top.clone());
        self.within = Some(whole.into_iter().chain(roots.iter().cloned()).collect());
        let objects = self.objects();
        let Some(stores) = gitdir::stores(&objects) else {
            let why = "borrows from more places than are looked at".to_owned();
            return Err(TreeError::Unsound { path: objects, why });
        };
        let all = [&self.git_dir, &self.common, &objects].into_iter().chain(&stores);
        match all.into_iter().find(|path| !self.reaches(path)) {
            None => Ok(()),
            Some(path) => {
                Err(TreeError::Beyond { project: project.to_owned(), path: repository_of(path) })
            }
        }
    }

    /// Refuses a repository elsewhere that does not name `dir` as one of its working trees. Everybody who
    /// may write to `dir` can lead git to any repository from there, but cannot write to that repository.
    fn is_of(&self, dir: &Path) -> Result<(), TreeError> {
        let is_linked = self.git_dir != self.common;
        let names = match is_linked {
            false if self.git_dir.starts_with(dir) => return Ok(()),
            false => worktrees_of(&self.git_dir)?,
            true if self.git_dir.parent() == Some(&self.common.join("worktrees")) => {
                let file = self.git_dir.join("gitdir");
                let text = read_small(&file, SMALL).at("reading", &file)?.unwrap_or_default();
                let named = crate::git::path_of(text.trim_ascii_end());
                named.parent().map(Path::to_owned).into_iter().collect()
            }
            true => Vec::new(),
        };
        let mut named = names.iter().filter_map(|name| self.git_dir.join(name).canonicalize().ok());
        if named.any(|named| named == dir) {
            return Ok(());
        }
        let (dir, repository) = (dir.to_owned(), repository_of(&self.common));
        Err(TreeError::NotOurs { dir, repository, is_linked })
    }

    pub(crate) fn objects(&self) -> PathBuf {
        self.common.join("objects")
    }

    /// Whether it is where it was, and as sound as then.
    pub(crate) fn is_there(&self) -> bool {
        self.check(&Own::default()).is_ok()
    }

    /// Whether all of its parts are inside it: the server reads them and writes them as the host's
    /// user, so it would follow a link and wait for a pipe. No part may belong to the server
    /// itself.
    pub(crate) fn check(&self, own: &Own) -> Result<(), TreeError> {
        let unsound = |path: PathBuf| {
            move |err: io::Error| TreeError::Unsound { path, why: opener::why(&err) }
        };
        let open = |path: &Path| {
            let opened = Dir::open_plain(path).at("opening the repository", path);
            opened.map(|dir| dir.without(own))
        };
        let common = open(&self.common)?;
        opener::check_objects(&common).map_err(unsound(self.objects()))?;
        let of_one = if self.git_dir == self.common { None } else { Some(open(&self.git_dir)?) };
        let one = of_one.as_ref().unwrap_or(&common);
        for (at, dir, files) in [(&self.common, &common, FILES), (&self.git_dir, one, OF_ONE)] {
            for name in DIRECTORIES {
                dir.directory(Path::new(name)).map_err(unsound(at.join(name)))?;
            }
            for name in files {
                dir.regular(Path::new(name), WHOLE).map_err(unsound(at.join(name)))?;
            }
            let mut left = MOST;
            for name in WRITTEN {
                plain_below(dir, Path::new(name), 0, &mut left)
                    .map_err(|(path, why)| TreeError::Unsound { path: at.join(path), why })?;
            }
        }
        Ok(())
    }

    /// The user whose repository this is, when root works for somebody else: what is written into it
    /// must be theirs.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let meta = std::fs::metadata(&self.common).ok()?;
        (meta.uid() != 0).then(|| (meta.uid(), meta.gid()))
    }
}

/// The working tree that a separate repository names, as written.
fn worktrees_of(git_dir: &Path) -> Result<Vec<PathBuf>, TreeError> {
    let mut all = Vec::new();
    for file in ["config", "config.worktree"] {
        let settings = list(&Git::default(), &git_dir.join(file), &[])?;
        let named = settings.into_iter().filter(|setting| {
            setting.section == "core" && setting.sub.is_none() && setting.key == "worktree"
        });
        all.extend(named.map(|setting| PathBuf::from(setting.value)));
    }
    Ok(all)
}

/// The directory to declare for a part of a repository: its checkout, if it has one.
fn repository_of(part: &Path) -> PathBuf {
    let git_dir = part.ancestors().find(|above| above.ends_with(".git"));
    git_dir.and_then(Path::parent).unwrap_or(part).to_owned()
}

/// The path of a run's project, which has no link: one that was put there since the run was made is not
/// followed.
pub(crate) fn unlinked(project: &Path) -> Result<PathBuf, TreeError> {
    let real = std::fs::canonicalize(project).at("finding the project", project)?;
    if real != project {
        return Err(TreeError::Led { path: project.to_owned() });
    }
    Ok(real)
}

/// Finds the repository that contains a path, as git would, and the path's place within its tree.
/// `None`: no repository contains it.
pub(crate) fn find(path: &Path) -> Result<Option<(Source, PathBuf)>, TreeError> {
    find_within(path, &RoomReach::Any)
}

/// The same for a caller with access to its target: any other target is refused.
pub(crate) fn find_within(
    path: &Path,
    reach: &RoomReach,
) -> Result<Option<(Source, PathBuf)>, TreeError> {
    let bounds = match reach {
        RoomReach::Any => None,
        RoomReach::Nothing => return Ok(None),
        RoomReach::Within { roots, above } => Some((roots.as_slice(), *above)),
    };
    let path = match bounds {
        None => std::fs::canonicalize(path).at("finding the project", path)?,
        Some(_) => unlinked(path)?,
    };
    let device = std::fs::metadata(&path).at("finding the project", &path)?.dev();
    for dir in path.ancestors() {
        if let Some((roots, false)) = bounds
            && !roots.iter().any(|root| dir.starts_with(root))
        {
            return Ok(None);
        }
        // Like git: what is mounted within a repository does not belong to it.
        if std::fs::metadata(dir).is_ok_and(|meta| meta.dev() != device) {
            return Ok(None);
        }
        let dot_git = dir.join(".git");
        let git_dir = match std::fs::metadata(&dot_git) {
            Ok(meta) if meta.is_file() => Some(redirected(dir, &dot_git)?),
            Ok(meta) if meta.is_dir() && is_git_dir(&dot_git) => Some(dot_git),
            _ => None,
        };
        let (top, git_dir) = match git_dir {
            Some(git_dir) => (Some(dir), git_dir),
            None if is_git_dir(dir) && dir.ends_with(".git") => (dir.parent(), dir.to_owned()),
            None if is_git_dir(dir) => (None, dir.to_owned()),
            None => continue,
        };
        let git_dir = std::fs::canonicalize(&git_dir).at("finding the repository", &git_dir)?;
        let subdir = top.and_then(|top| path.strip_prefix(top).ok()).unwrap_or(Path::new(""));
        let named = git_dir.join("commondir");
        let common = match read_small(&named, SMALL).at("reading", &named)? {
            Some(text) => {
                let text = text.trim_ascii_end();
                let at = git_dir.join(crate::git::path_of(text));
                // The content may belong to another file.
                std::fs::canonicalize(&at).at("finding the repository that is named in", &named)?
            }
            None => git_dir.clone(),
        };
        let top = top.map(Path::to_owned);
        let mut source = Source { top, git_dir, common, within: None };
        match bounds {
            Some((roots, above)) => source.bound(&path, roots, above)?,
            None => source.is_of(dir)?,
        }
        source.check(&Own::default())?;
        return Ok(Some((source, subdir.to_owned())));
    }
    Ok(None)
}

fn is_git_dir(dir: &Path) -> bool {
    let shared = dir.join("objects").is_dir() && dir.join("refs").is_dir();
    std::fs::symlink_metadata(dir.join("HEAD")).is_ok()
        && (shared || dir.join("commondir").is_file())
}

/// Follows a `.git` file: a linked worktree, a submodule, a repository kept elsewhere.
fn redirected(dir: &Path, file: &Path) -> Result<PathBuf, TreeError> {
    let text = read_small(file, SMALL).at("reading", file)?.unwrap_or_default();
    let target = text.strip_prefix(b"gitdir:").map(<[u8]>::trim_ascii);
    let target = target.filter(|target| !target.is_empty()).map(crate::git::path_of);
    let git_dir = target.map(|target| dir.join(target));
    git_dir
        .filter(|git_dir| is_git_dir(git_dir))
        .ok_or_else(|| TreeError::BrokenRedirect { file: file.to_owned() })
}

/// The contents of a file that is imported as data; `None` if it does not exist. Links to it stay
/// within its directory.
pub(crate) fn read_small(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let Some(dir) = opener::absent(Dir::open_plain(dir))? else { return Ok(None) };
    dir.read_within(Path::new(name), limit)
        .map_err(|err| io::Error::new(err.kind(), format!("it {}", opener::why(&err))))
}

/// A repository's settings, and the files beside them that shape a checkout.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    all: Vec<Setting>,
    pub(crate) sparse: Option<Vec<u8>>,
    pub(crate) shallow: Option<Vec<u8>>,
    pub(crate) exclude: Vec<u8>,
}

/// Keys that are data: they affect what is checked out, compared or shown, and run nothing.
const DATA: &[(&str, &[&str])] = &[
    (
        "core",
        &[
            "autocrlf",
            "eol",
            "safecrlf",
            "filemode",
            "symlinks",
            "ignorecase",
            "precomposeunicode",
            "sparsecheckout",
            "sparsecheckoutcone",
            "bigfilethreshold",
            "abbrev",
            "quotepath",
        ],
    ),
    ("extensions", &["objectformat"]),
    ("i18n", &["commitencoding", "logoutputencoding"]),
    ("merge", &["conflictstyle", "renames"]),
    ("diff", &["renames", "algorithm"]),
    ("pull", &["rebase", "ff"]),
    ("user", &["name", "email"]),
];

/// The same for keys with a subsection. They are the session's business, not ours.
const DATA_OF: &[(&str, &[&str])] = &[
    ("remote", &["url", "pushurl", "fetch", "tagopt", "promisor", "partialclonefilter"]),
    ("branch", &["remote", "merge", "rebase"]),
    ("submodule", &["url", "branch", "active"]),
];

impl Settings {
    pub(crate) fn get(&self, section: &str, key: &str) -> Option<&str> {
        let mut named = self.all.iter().rev();
        let found = named.find(|s| s.section == section && s.sub.is_none() && s.key == key)?;
        Some(&found.value)
    }

    pub(crate) fn is_on(&self, section: &str, key: &str) -> bool {
        self.get(section, key).is_some_and(|value| {
            matches!(value.to_ascii_lowercase().as_str(), "true" | "yes" | "on" | "1")
        })
    }

    /// `sha1` or `sha256`.
    pub(crate) fn format(&self) -> &str {
        self.get("extensions", "objectformat").unwrap_or("sha1")
    }

    /// The settings that affect a checkout, for both of a tree's git directories.
    pub(crate) fn data(&self) -> Vec<Setting> {
        let version = if self.format() == "sha1" { "0" } else { "1" };
        let mut data = vec![
            Setting::new("core", None, "repositoryformatversion", version),
            Setting::new("core", None, "bare", "false"),
            Setting::new("gc", None, "auto", "0"),
        ];
        let known = |s: &&Setting| {
            s.sub.is_none()
                && DATA
                    .iter()
                    .any(|(section, keys)| s.section == *section && keys.contains(&s.key.as_str()))
        };
        data.extend(self.all.iter().filter(known).cloned());
        data
    }

    /// Additional settings of a session's repository: remotes and tracking branches. Passwords in
    /// addresses are removed; `true` if there was one. Relative paths become absolute from `top`.
    pub(crate) fn theirs(&self, top: &Path) -> (Vec<Setting>, bool) {
        let mut without_password = false;
        let known = self.all.iter().filter(|s| {
            s.sub.is_some()
                && DATA_OF
                    .iter()
                    .any(|(section, keys)| s.section == *section && keys.contains(&s.key.as_str()))
        });
        let mut settings: Vec<Setting> = known.cloned().collect();
        for setting in &mut settings {
            if setting.key.ends_with("url") {
                let (address, changed) = address(&setting.value, top);
                setting.value = address;
                without_password |= changed;
            }
        }
        (settings, without_password)
    }
}

/// An address without its password, and absolute where it is a path.
fn address(text: &str, top: &Path) -> (String, bool) {
    if let Some((scheme, rest)) = text.split_once("://") {
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let Some((user, host)) = host.rsplit_once('@') else { return (text.to_owned(), false) };
        let Some((name, _)) = user.split_once(':') else { return (text.to_owned(), false) };
        return (format!("{scheme}://{name}@{host}/{path}"), true);
    }
    let is_path = text.starts_with('.')
        || !text.split('/').next().unwrap_or_default().contains(':') && !text.starts_with('/');
    match top.join(text).to_str() {
        Some(absolute) if is_path => (absolute.to_owned(), false),
        _ => (text.to_owned(), false),
    }
}

/// The time of a file's last change, as far as it is known without reading the file.
type Stamp = Option<(u64, u64, SystemTime)>;

fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.ino(), meta.len(), meta.modified().ok()?))
}

/// Settings, with the state of the files they came from.
type Known = (Vec<Stamp>, Arc<Settings>);

/// Settings already read, by the git directory.
#[derive(Debug, Default)]
pub(crate) struct SettingsCache(Mutex<HashMap<PathBuf, Known>>);

impl SettingsCache {
    /// The repository's settings, read again when a file changed.
    pub(crate) fn get(&self, git: &Git, source: &Source) -> Result<Arc<Settings>, TreeError> {
        let files = [
            source.common.join("config"),
            source.git_dir.join("config.worktree"),
            source.git_dir.join("info/sparse-checkout"),
            source.common.join("info/exclude"),
            source.common.join("shallow"),
        ];
        let stamps: Vec<Stamp> = files.iter().map(|file| stamp(file)).collect();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((seen, settings)) = known.get(&source.git_dir)
            && *seen == stamps
        {
            return Ok(Arc::clone(settings));
        }
        let [config, of_worktree, sparse, exclude, shallow] = &files;
        let list = |file: &Path| list(git, file, &source.places());
        let mut settings = Settings { all: list(config)?, ..Settings::default() };
        if settings.is_on("extensions", "worktreeconfig") && of_worktree.is_file() {
            settings.all.extend(list(of_worktree)?);
        }
        if settings.is_on("core", "sparsecheckout") {
            settings.sparse = read_small(sparse, PATTERNS).at("reading", sparse)?;
        }
        settings.exclude =
            read_small(exclude, PATTERNS).at("reading", exclude)?.unwrap_or_default();
        settings.shallow = read_small(shallow, PATTERNS).at("reading", shallow)?;
        let settings = Arc::new(settings);
        // A daemon serves few repositories; after thousands of them, it clears its notes.
        if known.len() > 1000 {
            known.clear();
        }
        known.insert(source.git_dir.clone(), (stamps, Arc::clone(&settings)));
        Ok(settings)
    }
}

/// A configuration file's settings, without what it includes; no link in `plain` is followed.
pub(crate) fn list(git: &Git, file: &Path, plain: &[&Path]) -> Result<Vec<Setting>, TreeError> {
    if !file.is_file() {
        return Ok(Vec::new());
    }
    let what = format!("read the settings in {}", file.display());
    let list = git
        .call(what)
        .args(["config", "--no-includes", "-z", "--list", "--file"])
        .arg(file)
        .plain_in(plain)
        .run()?;
    let settings = list.parts().filter_map(|part| {
        let text = String::from_utf8_lossy(part);
        let (key, value) = text.split_once('\n').unwrap_or((&text, "true"));
        Setting::parse(key, value)
    });
    Ok(settings.collect())
}

/// The value of `HEAD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Branch { name: String, commit: Option<String> },
    Detached { commit: String },
}

impl Head {
    pub(crate) fn commit(&self) -> Option<&str> {
        match self {
            Self::Branch { commit, .. } => commit.as_deref(),
            Self::Detached { commit } => Some(commit),
        }
    }
}

/// A reference: its name, what it names, and, for one that only points to another, the other's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) points: Option<String>,
}

/// Every reference of a repository, and its head.
#[derive(Clone, Debug)]
pub(crate) struct References {
    pub(crate) all: Vec<Reference>,
    pub(crate) head: Head,
}

/// The prefix of our own references. Sessions see none of them.
pub(crate) const OURS: &str = "refs/overmind/";

impl References {
    pub(crate) fn read(git: &Git, source: &Source) -> Result<Self, TreeError> {
        let what = format!("list the references of {}", source.common.display());
        let format = "--format=%(objectname) %(refname) %(symref)";
        let list = git.call(what).source(source).args(["for-each-ref", format]).run()?;
        let text = String::from_utf8_lossy(&list.stdout);
        let all: Vec<Reference> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                let (id, name) = (words.next()?, words.next()?);
                let points = words.next().filter(|points| names::is_reference(points));
                (is_id(id) && names::is_reference(name)).then(|| Reference {
                    name: name.to_owned(),
                    id: id.to_owned(),
                    points: points.map(str::to_owned),
                })
            })
            .collect();
        let head = Self::head(git, source, &all)?;
        Ok(Self { all, head })
    }

    fn head(git: &Git, source: &Source, all: &[Reference]) -> Result<Head, TreeError> {
        let path = source.git_dir.join("HEAD");
        let text = read_small(&path, SMALL).at("reading", &path)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        if is_id(&text) {
            return Ok(Head::Detached { commit: text });
        }
        let find = |name: &str| {
            all.iter().find(|reference| reference.name == name).map(|found| found.id.clone())
        };
        match text.strip_prefix("ref:").map(str::trim) {
            // With references in tables, the file contains nothing.
            Some("refs/heads/.invalid") | None => {
                let what = format!("read the head of {}", source.git_dir.display());
                let name = git
                    .call(what.clone())
                    .source(source)
                    .args(["symbolic-ref", "--quiet", "HEAD"])
                    .accept(&[0, 1])
                    .run()?;
                if name.code == 0 {
                    let name = name.line();
                    return Ok(Head::Branch { commit: find(&name), name });
                }
                let commit = git
                    .call(what)
                    .source(source)
                    .args(["rev-parse", "--verify", "HEAD^{commit}"])
                    .run()?;
                Ok(Head::Detached { commit: commit.line() })
            }
            Some(name) => Ok(Head::Branch { name: name.to_owned(), commit: find(name) }),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.all.iter().find(|reference| reference.name == name)?;
        Some(&found.id)
    }

    /// The references that a session gets, as the text of `packed-refs`.
    pub(crate) fn packed(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::from("# pack-refs with: sorted \n");
        for Reference { name, id, points } in &self.all {
            if points.is_none() && !name.starts_with(OURS) && name != "refs/stash" {
                let _ = writeln!(text, "{id} {name}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_removed_from_urls_and_paths_become_absolute() {
        let top = Path::new("/p/q");
        for (text, wanted, changed) in [
            ("https://me:token@host/a/b.git", "https://me@host/a/b.git", true),
            ("https://host/a/b.git", "https://host/a/b.git", false),
            ("ssh://git@host:22/a", "ssh://git@host:22/a", false),
            ("git@host:a/b.git", "git@host:a/b.git", false),
            ("/srv/x.git", "/srv/x.git", false),
            ("../x.git", "/p/q/../x.git", false),
            ("x.git", "/p/q/x.git", false),
        ] {
            assert_eq!(address(text, top), (wanted.to_owned(), changed));
        }
    }

    #[test]
    fn settings_that_name_programs_are_never_copied() {
        let lines = [
            ("core.fsmonitor", "touch x"),
            ("core.hookspath", "/evil"),
            ("core.sshcommand", "touch x"),
            ("core.worktree", "/home"),
            ("core.pager", "touch x"),
            ("core.autocrlf", "input"),
            ("filter.lfs.clean", "touch x"),
            ("filter.x.y.smudge", "touch x"),
            ("diff.x.textconv", "touch x"),
            ("merge.x.driver", "touch x"),
            ("remote.origin.url", "/srv/x"),
            ("remote.origin.uploadpack", "touch x"),
            ("remote.origin.vcs", "ext"),
            ("submodule.a.update", "!touch x"),
            ("include.path", "/evil"),
            ("includeif.gitdir:/.path", "/evil"),
            ("alias.x", "!touch x"),
            ("extensions.worktreeconfig", "true"),
            ("uploadpack.packobjectshook", "touch x"),
        ];
        let all = lines.iter().filter_map(|(key, value)| Setting::parse(key, value)).collect();
        let settings = Settings { all, ..Settings::default() };
        let mut taken = settings.data();
        taken.extend(settings.theirs(Path::new("/")).0);
        let keys: Vec<String> = taken.iter().map(|s| format!("{}.{}", s.section, s.key)).collect();
        assert_eq!(
            keys,
            ["core.repositoryformatversion", "core.bare", "gc.auto", "core.autocrlf", "remote.url"]
        );
    }
}
