//! Building a tree: both git directories, the files of the base commit, submodules, large files.
//!
//! A tree that is built here belongs to no session yet, so the pool can prepare such trees.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use rustix::fs::renameat;
use serde::{Deserialize, Serialize};

use super::error::{At, TreeError};
use super::gitdir::{self, Layout, Setting};
use super::notes::HostPath;
use super::pack::{taking, transfer};
use super::prepare::Warning;
use super::source::{References, Settings, SettingsCache, Source, read_small};
use super::submodule;
use crate::copy::{Budget, copy_one};
use crate::git::{Git, is_id, path_of};
use crate::opener::{Dir, Own};

/// Raised when trees built before cannot be used any more.
const VERSION: u32 = 3;
/// Submodules within submodules.
const DEEPEST: usize = 5;
/// The largest pointer file of LFS.
const POINTER: u64 = 1024;
/// The temporary name of a large file until it is verified.
const ARRIVING: &str = "arriving";

/// A working tree with its two git directories: the session's own, and each submodule in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Unit {
    /// Its working tree, from the top of the session's.
    pub(crate) at: HostPath,
    /// Our git directory, from the place.
    pub(crate) ours: HostPath,
    /// The session's git directory, from the top of the tree.
    pub(crate) theirs: HostPath,
    /// The repository from which it was created, which contains its objects and receives its work.
    pub(crate) source: HostPath,
    pub(crate) base: Option<String>,
}

/// A built tree without an owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Template {
    version: u32,
    pub(crate) base: Option<String>,
    /// The options of the build besides the commit.
    pub(crate) fingerprint: String,
    pub(crate) units: Vec<Unit>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl Template {
    pub(crate) fn write(&self, place: &Path) -> Result<(), TreeError> {
        let path = place.join("template");
        let text = serde_json::to_vec(self)
            .map_err(|source| TreeError::Notes { place: place.to_owned(), source })?;
        std::fs::write(&path, text).at("writing", &path)
    }

    /// `None` if it does not exist, or has another version.
    pub(crate) fn read(place: &Path) -> Option<Self> {
        let text = std::fs::read(place.join("template")).ok()?;
        let template: Self = serde_json::from_slice(&text).ok()?;
        (template.version == VERSION).then_some(template)
    }
}

/// The result for a built tree that was to be brought to another commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warmth {
    Same,
    Updated,
    /// It must be built again.
    Cold,
}

/// The parts from which a tree is built.
#[derive(Debug)]
pub(crate) struct Ground<'a> {
    pub(crate) git: &'a Git,
    pub(crate) cache: &'a SettingsCache,
    pub(crate) source: &'a Source,
    pub(crate) settings: &'a Settings,
    pub(crate) base: Option<&'a str>,
    /// The global ignore patterns of this user.
    pub(crate) ignored: &'a [u8],
    pub(crate) identity: Option<&'a (String, String)>,
    /// A git directory that has the base, when the source does not: a session within a session.
    pub(crate) lender: Option<&'a Path>,
    /// The commit that the source has and keeps.
    pub(crate) anchor: Option<&'a str>,
    /// Files of the server are not copied into a tree.
    pub(crate) own: &'a Own,
}

impl Ground<'_> {
    /// Differs where a tree built from this would differ, other than by the commit.
    pub(crate) fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{VERSION} {:?} {:?}", self.settings.data(), self.identity).as_bytes());
        let top = self.source.top.as_deref().unwrap_or(&self.source.git_dir);
        hash.update(format!("{:?} {:?}", self.settings.theirs(top), self.lfs()).as_bytes());
        for file in [&self.settings.sparse, &self.settings.shallow] {
            hash.update(format!("{file:?}").as_bytes());
        }
        hash.update(&self.settings.exclude).update(self.ignored);
        hash.finalize().to_hex().to_string()
    }

    fn lfs(&self) -> Option<PathBuf> {
        self.git.program_beside("git-lfs")
    }

    /// Builds a tree in an empty directory.
    pub(crate) fn build(&self, place: &Path) -> Result<Template, TreeError> {
        let tree = place.join("tree");
        std::fs::create_dir_all(&tree).at("making", &tree)?;
        let mut template = Template {
            version: VERSION,
            base: self.base.map(str::to_owned),
            fingerprint: self.fingerprint(),
            units: Vec::new(),
            warnings: Vec::new(),
            files: 0,
            bytes: 0,
        };
        self.unit(place, Path::new(""), Path::new(".git"), self.base, &mut template, 0)?;
        template.write(place)?;
        Ok(template)
    }

    fn unit(
        &self,
        place: &Path,
        at: &Path,
        theirs: &Path,
        base: Option<&str>,
        template: &mut Template,
        depth: usize,
    ) -> Result<(), TreeError> {
        let number = template.units.len();
        let unit = Unit {
            at: at.to_owned().into(),
            ours: PathBuf::from(if number == 0 { "ours".into() } else { format!("ours-{number}") })
                .into(),
            theirs: theirs.to_owned().into(),
            source: self.source.common.clone().into(),
            base: base.map(str::to_owned),
        };
        let paths = unit.paths(place);
        self.lay(&paths, &unit)?;
        template.units.push(unit);
        let Some(base) = base else { return Ok(()) };
        self.git
            .call(format!("check {base} out into {}", paths.work.display()))
            .repo(&paths.ours)
            .work(&paths.work, &paths.index)
            .settings(as_pointers())
            .args(["read-tree", "-m", "-u", base])
            .run()?;
        overmind_core::failpoint::point("tree.checked-out");
        let (from, to) = (&paths.index, paths.theirs.join("index"));
        std::fs::copy(from, &to).at("copying the index to", &to)?;

        let listed = Listed::read(self.git, &paths)?;
        template.files += listed.files;
        template.bytes += listed.bytes;
        self.large_files(&paths, template)?;
        if listed.links.is_empty() {
            return Ok(());
        }
        // Git would read a submodule with the configuration in it. So our index never does that:
        // the commit of a submodule is determined by our own code.
        let mut input = Vec::new();
        for (path, _) in &listed.links {
            input.extend_from_slice(path.as_os_str().as_bytes());
            input.push(0);
        }
        self.git
            .call("set its submodules apart")
            .repo(&paths.ours)
            .work(&paths.work, &paths.index)
            .args(["update-index", "-z", "--skip-worktree", "--stdin"])
            .input(input)
            .run()?;
        for (path, commit) in &listed.links {
            let found = submodule::locate(self.git, self.source, &paths.work, path)?;
            let deep = depth + 1 >= DEEPEST;
            match found.filter(|found| !deep && found.has(self.git, commit)) {
                Some(found) if paths.work.join(path).is_dir() => {
                    let settings = self.cache.get(self.git, &found.source)?;
                    let within = Ground {
                        source: &found.source,
                        settings: &settings,
                        lender: None,
                        anchor: None,
                        ..*self
                    };
                    let theirs = theirs.join("modules").join(&found.name);
                    within.unit(
                        place,
                        &at.join(path),
                        &theirs,
                        Some(commit),
                        template,
                        depth + 1,
                    )?;
                }
                Some(_) => {}
                None => template.warnings.push(Warning::SubmoduleNotLocal {
                    path: at.join(path).to_string_lossy().into_owned(),
                }),
            }
        }
        Ok(())
    }

    /// Switches an unused built tree to this base.
    pub(crate) fn update(
        &self,
        place: &Path,
        template: &mut Template,
    ) -> Result<Warmth, TreeError> {
        if template.base.as_deref() == self.base {
            return Ok(Warmth::Same);
        }
        let (Some(old), Some(new), [unit]) =
            (template.base.clone(), self.base, template.units.as_mut_slice())
        else {
            // A submodule's own tree would have to follow.
            return Ok(Warmth::Cold);
        };
        unit.base = Some(new.to_owned());
        let paths = unit.paths(place);
        let updated = self
            .git
            .call(format!("bring a waiting tree to {new}"))
            .repo(&paths.ours)
            .work(&paths.work, &paths.index)
            .settings(as_pointers())
            .args(["read-tree", "-m", "-u", &old, new])
            .run();
        overmind_core::failpoint::point("tree.updated");
        if updated.is_err() {
            // Its old base may be gone with the primary's garbage; a new tree needs it not.
            return Ok(Warmth::Cold);
        }
        let listed = Listed::read(self.git, &paths)?;
        if !listed.links.is_empty() {
            return Ok(Warmth::Cold);
        }
        template.base = Some(new.to_owned());
        (template.files, template.bytes) = (listed.files, listed.bytes);
        template.warnings.clear();
        for dir in [&paths.ours, &paths.theirs] {
            gitdir::set_head(dir, new).at("writing the head of", dir)?;
        }
        let (from, to) = (&paths.index, paths.theirs.join("index"));
        std::fs::copy(from, &to).at("copying the index to", &to)?;
        self.large_files(&paths, template)?;
        Ok(Warmth::Updated)
    }

    /// Writes both git directories.
    fn lay(&self, paths: &Paths, unit: &Unit) -> Result<(), TreeError> {
        let data = self.settings.data();
        let borrow = [self.source.objects()];
        let mut exclude = self.settings.exclude.clone();
        if !exclude.is_empty() && !exclude.ends_with(b"\n") {
            exclude.push(b'\n');
        }
        exclude.extend_from_slice(self.ignored);
        let base = unit.base.as_deref().unwrap_or("refs/heads/main");
        let layout = Layout {
            head: base,
            settings: &[],
            borrow: &borrow,
            exclude: &exclude,
            sparse: self.settings.sparse.as_deref(),
            shallow: self.settings.shallow.as_deref(),
        };
        let lfs = self.lfs();
        let mut ours = data.clone();
        ours.push(Setting::new("core", None, "logallrefupdates", "false"));
        if let Some(program) = lfs.as_ref().and_then(|program| program.to_str()) {
            // `--skip`: pointers stay pointers on the way out, so nothing is ever fetched.
            let process = format!("'{program}' filter-process --skip");
            ours.push(Setting::new("filter", Some("lfs"), "process", &process));
            let clean = format!("'{program}' clean -- %f");
            ours.push(Setting::new("filter", Some("lfs"), "clean", &clean));
        }
        gitdir::write(&paths.ours, &Layout { settings: &ours, ..layout })
            .at("writing a git directory at", &paths.ours)?;

        let top = self.source.top.as_deref().unwrap_or(&self.source.git_dir);
        let mut theirs = data;
        theirs.push(Setting::new("core", None, "logallrefupdates", "true"));
        if let Some((name, email)) = self.identity
            && self.settings.get("user", "email").is_none()
        {
            theirs.push(Setting::new("user", None, "name", name));
            theirs.push(Setting::new("user", None, "email", email));
        }
        if lfs.is_some() {
            for (key, value) in [
                ("clean", "git-lfs clean -- %f"),
                ("smudge", "git-lfs smudge -- %f"),
                ("process", "git-lfs filter-process"),
                ("required", "true"),
            ] {
                theirs.push(Setting::new("filter", Some("lfs"), key, value));
            }
        }
        theirs.extend(self.settings.theirs(top).0);
        let (at, inside) = (unit.at.as_path(), unit.theirs.as_path());
        let is_submodule = !at.as_os_str().is_empty();
        if is_submodule {
            let up = |path: &Path| "../".repeat(path.components().count());
            let tree = format!("{}{}", up(inside), at.to_string_lossy());
            theirs.push(Setting::new("core", None, "worktree", &tree));
            let file = paths.work.join(".git");
            let text = format!("gitdir: {}{}\n", up(at), inside.to_string_lossy());
            std::fs::write(&file, text).at("writing", &file)?;
        }
        gitdir::write(&paths.theirs, &Layout { settings: &theirs, ..layout })
            .at("writing a git directory at", &paths.theirs)?;
        if is_submodule {
            let refs = References::read(self.git, self.source)?;
            give(&paths.ours, &paths.theirs, &refs)?;
        }
        if let (Some(lender), Some(base)) = (self.lender, unit.base.as_deref()) {
            for to in [&paths.ours, &paths.theirs] {
                let known: Vec<&str> = self.anchor.into_iter().collect();
                transfer(self.git, lender, &[base], &known, taking(self.git, to).repo(to))?;
            }
        }
        Ok(())
    }

    /// Puts the contents of large files in the place of their pointers, from the primary's own store.
    fn large_files(&self, paths: &Paths, template: &mut Template) -> Result<(), TreeError> {
        let listed = self
            .git
            .call("list its large files")
            .repo(&paths.ours)
            .work(&paths.work, &paths.index)
            .env("GIT_LITERAL_PATHSPECS", "0")
            .args(["ls-files", "-z", "--", ":(top,attr:filter=lfs)"])
            .run()?;
        let pointers: Vec<PathBuf> = listed.parts().map(path_of).collect();
        if pointers.is_empty() {
            return Ok(());
        }
        let work = Dir::open(&paths.work).at("opening", &paths.work)?;
        let ours = Dir::open(&paths.ours).at("opening", &paths.ours)?;
        let store = match self.lfs() {
            Some(_) => self.store()?,
            None => Store::Missing,
        };
        let (mut missing, mut unsound) = (0, 0);
        for path in &pointers {
            let Some(object) = read_pointer(&work, path) else { continue };
            let got = match &store {
                Store::There(store) => arrive(store, &object, &ours)
                    .at("copying a large file to", paths.work.join(path))?,
                Store::Missing => Arrived::Missing,
                Store::Unsound => Arrived::Unsound,
            };
            match got {
                Arrived::Whole => {}
                Arrived::Missing => {
                    missing += 1;
                    continue;
                }
                Arrived::Unsound => {
                    unsound += 1;
                    continue;
                }
            }
            put(&ours, &work, path).at("copying a large file to", paths.work.join(path))?;
            // Known to git-lfs already, so that it does not store it again when it is compared.
            let known = paths.ours.join("lfs/objects").join(&object);
            let dir = known.parent().unwrap_or(&paths.ours);
            std::fs::create_dir_all(dir).at("making", dir)?;
            let target = self.source.common.join(STORE).join(&object);
            let _ = std::os::unix::fs::symlink(target, known);
        }
        if missing > 0 {
            template.warnings.push(Warning::LargeFilesMissing { files: missing });
        }
        if unsound > 0 {
            template.warnings.push(Warning::LargeFilesUnsound { files: unsound });
        }
        if missing + unsound < pointers.len() {
            self.git
                .call("compare its large files")
                .repo(&paths.ours)
                .work(&paths.work, &paths.index)
                .args(["update-index", "--refresh"])
                .accept(&[0, 1])
                .run()?;
            let (from, to) = (&paths.index, paths.theirs.join("index"));
            std::fs::copy(from, &to).at("copying the index to", &to)?;
        }
        Ok(())
    }

    /// The primary's store of large files, if it is in the repository itself: the author of the
    /// repository could redirect it to foreign directories with a link.
    fn store(&self) -> Result<Store, TreeError> {
        let common = &self.source.common;
        let common = Dir::open_plain(common).at("opening", common)?.without(self.own);
        let there = |path: &str| common.stat(Path::new(path)).ok().flatten().is_some();
        Ok(match common.sub(Path::new(STORE)) {
            Ok(store) => Store::There(store),
            Err(_) if !there("lfs") => Store::Missing,
            Err(_) if common.has_dir(Path::new("lfs")) && !there(STORE) => Store::Missing,
            Err(_) => Store::Unsound,
        })
    }
}

/// Large files are checked out as pointers, by no program: git-lfs would hard-link what it finds beside the
/// borrowed objects into our store, whatever that is.
fn as_pointers() -> Vec<(String, String)> {
    ["filter.lfs.process", "filter.lfs.smudge"].map(|key| (key.to_owned(), String::new())).into()
}

/// The directory of large files in a repository, relative to its git directory.
const STORE: &str = "lfs/objects";

enum Store {
    There(Dir),
    Missing,
    Unsound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrived {
    Whole,
    Missing,
    /// It is no file, belongs to the server, or its content does not match its name.
    Unsound,
}

/// Copies an object of a store of large files beside the tree, and compares the copy with its name: the
/// store may be changed meanwhile.
fn arrive(store: &Dir, object: &Path, ours: &Dir) -> io::Result<Arrived> {
    match store.stat(object) {
        Ok(None) => return Ok(Arrived::Missing),
        Ok(Some(_)) if store.file(object).is_ok() => {}
        Ok(Some(_)) | Err(_) => return Ok(Arrived::Unsound),
    }
    let mut budget = Budget { bytes: u64::MAX, files: u64::MAX };
    copy_one(store, object, ours, Path::new(ARRIVING), &mut budget)?;
    let wanted = object.file_name().unwrap_or_default();
    let found = ours.file(Path::new(ARRIVING)).and_then(sha256);
    if found.is_ok_and(|found| wanted == found.as_str()) {
        return Ok(Arrived::Whole);
    }
    ours.remove(Path::new(ARRIVING))?;
    Ok(Arrived::Unsound)
}

/// Puts what arrived in the place of its pointer.
fn put(ours: &Dir, work: &Dir, path: &Path) -> io::Result<()> {
    let executable = work.stat(path)?.is_some_and(|found| found.st_mode & 0o100 != 0);
    let mode = if executable { 0o755 } else { 0o644 };
    let file = ours.file(Path::new(ARRIVING))?;
    file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    let (dir, name) = work.parent(path, false)?;
    Ok(renameat(&ours.fd, ARRIVING, &dir.fd, name)?)
}

fn sha256(mut file: std::fs::File) -> io::Result<String> {
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 256 << 10];
    loop {
        match io::Read::read(&mut file, &mut buffer) {
            Ok(0) => break,
            Ok(read) => context.update(&buffer[..read]),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The path of a pointer's contents within a store, if the file is a pointer.
fn read_pointer(work: &Dir, path: &Path) -> Option<PathBuf> {
    let text = String::from_utf8(work.read(path, POINTER).ok()??).ok()?;
    let mut lines = text.lines();
    lines.next().filter(|line| line.starts_with("version https://git-lfs.github.com/spec/"))?;
    let id = lines.find_map(|line| line.strip_prefix("oid sha256:"))?;
    (id.len() == 64 && is_id(id)).then(|| Path::new(&id[..2]).join(&id[2..4]).join(id))
}

/// Tells a session's repository of the primary's references, and notes which they were.
pub(crate) fn give(ours: &Path, theirs: &Path, refs: &References) -> Result<(), TreeError> {
    let packed = refs.packed();
    for path in [theirs.join("packed-refs"), ours.join("given-refs")] {
        std::fs::write(&path, &packed).at("writing", &path)?;
    }
    for reference in &refs.all {
        // Only those of remotes (`origin/HEAD`): others may point to what the session does not have.
        if let Some(points) = &reference.points
            && reference.name.starts_with("refs/remotes/")
            && points.starts_with("refs/remotes/")
        {
            let path = theirs.join(&reference.name);
            let dir = path.parent().unwrap_or(theirs);
            std::fs::create_dir_all(dir).at("making", dir)?;
            std::fs::write(&path, format!("ref: {points}\n")).at("writing", &path)?;
        }
    }
    Ok(())
}

/// The paths of a unit.
#[derive(Debug)]
pub(crate) struct Paths {
    /// The whole tree, that of submodules too.
    pub(crate) top: PathBuf,
    pub(crate) work: PathBuf,
    pub(crate) ours: PathBuf,
    pub(crate) theirs: PathBuf,
    pub(crate) index: PathBuf,
}

impl Unit {
    pub(crate) fn paths(&self, place: &Path) -> Paths {
        let tree = place.join("tree");
        let ours = place.join(self.ours.as_path());
        Paths {
            work: tree.join(self.at.as_path()),
            index: ours.join("index"),
            theirs: tree.join(self.theirs.as_path()),
            top: tree,
            ours,
        }
    }

    pub(crate) fn is_submodule(&self) -> bool {
        !self.at.as_path().as_os_str().is_empty()
    }
}

/// The content of an index.
struct Listed {
    files: u64,
    bytes: u64,
    /// Submodules: where, and at which commit.
    links: Vec<(PathBuf, String)>,
}

impl Listed {
    fn read(git: &Git, paths: &Paths) -> Result<Self, TreeError> {
        let list = git
            .call("list its files")
            .repo(&paths.ours)
            .work(&paths.work, &paths.index)
            .args(["ls-files", "-s", "-z"])
            .limit(1 << 30)
            .run()?;
        let mut listed = Self { files: 0, bytes: 0, links: Vec::new() };
        for part in list.parts() {
            let Some(tab) = part.iter().position(|byte| *byte == b'\t') else { continue };
            let (facts, path) = (String::from_utf8_lossy(&part[..tab]), path_of(&part[tab + 1..]));
            let mut words = facts.split(' ');
            if words.next() == Some("160000") {
                listed.links.push((path, words.next().unwrap_or_default().to_owned()));
                continue;
            }
            if let Ok(meta) = std::fs::symlink_metadata(paths.work.join(path)) {
                listed.files += 1;
                listed.bytes += meta.len();
            }
        }
        Ok(listed)
    }
}

/// The patterns of what this user ignores everywhere.
pub(crate) fn ignored_everywhere(file: Option<&Path>) -> Result<Vec<u8>, TreeError> {
    match file {
        Some(file) => Ok(read_small(file, 1 << 20).at("reading", file)?.unwrap_or_default()),
        None => Ok(Vec::new()),
    }
}
