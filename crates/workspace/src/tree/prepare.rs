//! Planning a tree and making it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overmind_core::failpoint::point;
use overmind_core::room::RoomReach;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use super::build::{Ground, Template, Unit, give, ignored_everywhere};
use super::error::{At, TreeError};
use super::gitdir;
use super::names;
use super::notes::{HostPath, Notes, Origin, TreeIntent};
use super::options::{Options, Request};
use super::source::{self, References, Settings, Source};
use super::{Trees, adopt};
use crate::copy::{self, Budget, Copied};
use crate::git::Call;
use crate::opener::Dir;

/// A decided tree. Nothing was changed yet.
#[derive(Debug)]
pub struct Plan {
    pub(crate) intent: TreeIntent,
    options: Options,
    seen: Option<Seen>,
}

impl Plan {
    /// The record to write before [`Trees::make`].
    pub fn intent(&self) -> &TreeIntent {
        &self.intent
    }

    /// Says whose the tree will be.
    #[must_use]
    pub fn owned_by(mut self, owner: impl Into<String>) -> Self {
        self.intent.owner = Some(owner.into());
        self
    }
}

/// The observed state of the repository while planning.
#[derive(Debug)]
struct Seen {
    source: Source,
    settings: Arc<Settings>,
    refs: References,
    lender: Option<Lender>,
}

/// The session that another one begins in.
#[derive(Debug)]
struct Lender {
    ours: PathBuf,
    anchor: Option<String>,
}

/// The origin of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Taken {
    /// One that waited, at this very commit.
    Ready,
    /// One that waited at another commit and was brought to this one.
    Updated,
    /// Checked out now.
    CheckedOut,
    /// Copied: the project is in no repository.
    Copied,
}

/// Uncommitted work of the primary that the session does not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftBehind {
    /// Tracked files with changes, staged or not.
    pub changed: usize,
    /// Untracked files that are not ignored.
    pub untracked: usize,
    /// Files with conflicts.
    pub conflicted: usize,
}

/// Something that the user should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Warning {
    NotARepository { files: u64, bytes: u64, skipped: u64 },
    NotRecorded { bytes: u64 },
    NoCommitYet,
    LeftBehind { left: LeftBehind },
    CarryFailed { path: String, why: String },
    NoSuchDirectory { wanted: String, used: String },
    SubmoduleNotLocal { path: String },
    LargeFilesMissing { files: usize },
    LargeFilesUnsound { files: usize },
    IncludeSkipped { path: String, why: String },
    CloneSkipped { path: String, why: String },
    PasswordLeftBehind,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotARepository { files, bytes, skipped } => {
                write!(
                    f,
                    "the project is in no git repository, so the session works on a copy: {files} files, \
                     {bytes} bytes"
                )?;
                if *skipped > 0 {
                    write!(f, "; {skipped} sockets, pipes and devices were not copied")?;
                }
                Ok(())
            }
            Self::NotRecorded { bytes } => write!(
                f,
                "the copy's first state was not recorded ({bytes} bytes are too many), so what the session \
                 changes cannot be listed or saved"
            ),
            Self::NoCommitYet => {
                f.write_str("the repository has no commit yet, so the session begins with no files")
            }
            Self::LeftBehind { left: LeftBehind { changed, untracked, conflicted } } => {
                let counts = [
                    (changed, "changed"),
                    (untracked, "untracked"),
                    (conflicted, "in conflict"),
                ];
                let counts: Vec<_> = counts
                    .iter()
                    .filter(|(count, _)| **count > 0)
                    .map(|(count, what)| format!("{count} {what}"))
                    .collect();
                let counts = counts.join(", ");
                write!(f, "uncommitted files of your checkout are not in the worktree: {counts}; --carry takes them along")
            }
            Self::CarryFailed { path, why } => write!(f, "{path} was not taken along: {why}"),
            Self::NoSuchDirectory { wanted, used } => {
                let used = if used.is_empty() { "the top of its tree" } else { used };
                write!(f, "{wanted} is not in the base commit; the session begins in {used}")
            }
            Self::SubmoduleNotLocal { path } => write!(
                f,
                "the submodule {path} is empty: its commit is not on this machine (`git submodule update` \
                 in the primary fetches it)"
            ),
            Self::LargeFilesMissing { files } => write!(
                f,
                "{files} large files (LFS) are pointers: their contents, or git-lfs, are not on this machine"
            ),
            Self::LargeFilesUnsound { files } => write!(
                f,
                "{files} large files (LFS) are pointers: what .git/lfs/objects has in their place is a link, a \
                 file of the server, or not what its name says (`git lfs fsck` in the primary names it)"
            ),
            Self::IncludeSkipped { path, why } => write!(f, "{path} was not included: {why}"),
            Self::CloneSkipped { path, why } => write!(f, "{path} was not cloned: {why}"),
            Self::PasswordLeftBehind => f.write_str(
                "an address of a remote has a password in it; the session was given the address without it",
            ),
        }
    }
}

/// A tree that is ready for its session.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub intent: TreeIntent,
    /// The working tree.
    pub path: PathBuf,
    /// The session's directory: the project's place within the tree.
    pub cwd: PathBuf,
    pub taken: Taken,
    /// Variables that keep the session's git within its tree.
    pub env: Vec<(String, OsString)>,
    /// Directories outside the tree that the session must be able to read, and must not be able to write:
    /// the objects that its repository borrows. They must be seen at the same paths.
    pub borrowed: Vec<PathBuf>,
    /// Whether they must be opened through no link: see [`RoomMade`](overmind_core::room::RoomMade).
    pub bounded: bool,
    /// The primary's directories that the tree links to on request.
    pub shared: Vec<PathBuf>,
    /// Ignored files that were copied from the primary, from the top of the tree.
    pub included: Vec<PathBuf>,
    /// `None` if it was not counted.
    pub left_behind: Option<LeftBehind>,
    pub copied: Copied,
    pub warnings: Vec<Warning>,
}

impl Trees {
    /// Plans and makes a tree. Where another session took the name meanwhile, plans again.
    ///
    /// # Errors
    ///
    /// See [`Trees::plan`] and [`Trees::make`].
    pub fn prepare(&self, request: &Request) -> Result<Prepared, TreeError> {
        for _ in 0..16 {
            match self.make(&self.plan(request)?) {
                Err(TreeError::NameTaken { .. }) => {}
                done => return done,
            }
        }
        Err(TreeError::NameTaken { session: request.name.clone() })
    }

    /// Decides where the tree will be, on which branch, from which commit. Changes nothing.
    ///
    /// # Errors
    ///
    /// The project is not there, its repository is broken, the base names no commit.
    pub fn plan(&self, request: &Request) -> Result<Plan, TreeError> {
        let Request { project, name, options, reach } = request;
        let name = names::component(name);
        if let Some(plan) = self.plan_within(project, &name, options)? {
            return Ok(plan);
        }
        let found = source::find_within(project, reach)?;
        let Some((mut source, subdir)) = found else {
            return self.plan_copy(project, &name, options);
        };
        self.may_be_given(project, &source)?;
        let settings = self.settings.get(&self.git, &source)?;
        if source.git_dir == source.common && settings.is_on("core", "bare") {
            source.top = None;
        }
        let refs = References::read(&self.git, &source)?;
        let base = match &options.base {
            Some(base) => Some(self.resolve_in(&source, base)?),
            None => refs.head.commit().map(str::to_owned),
        };
        self.planned(name, base, subdir, options, Seen { source, settings, refs, lender: None })
    }

    /// A project within a session's tree: the new session begins where the other one is, and belongs to
    /// the same primary. The other's repository is not asked.
    fn plan_within(
        &self,
        project: &Path,
        name: &str,
        options: &Options,
    ) -> Result<Option<Plan>, TreeError> {
        let project = source::unlinked(project)?;
        let Ok(inside) = project.strip_prefix(&self.root) else { return Ok(None) };
        let listed = self.list()?;
        let Some(parent) = listed.into_iter().find(|l| project.starts_with(l.intent.tree())) else {
            return Err(TreeError::Gone { place: self.root.join(inside) });
        };
        let Some(source) = parent.intent.source() else { return Ok(None) };
        let tree = parent.intent.tree();
        let subdir = project.strip_prefix(&tree).unwrap_or(Path::new("")).to_owned();
        let held = super::notes::Held::take(&parent.intent)?;
        let ours = held.place.join("ours");
        let main = held.notes.units.first().ok_or(TreeError::Gone { place: project.clone() })?;
        let adopted = adopt::adopt(&self.git, &held.place, main)?;
        let base = match &options.base {
            // A name is one of the primary's; a commit may be one that only the other session has.
            Some(base) => match self.resolve_in(&source, base) {
                Err(TreeError::NoSuchBase { .. }) => {
                    let call = self.git.call(format!("find {base:?}")).repo(&ours);
                    Some(Self::resolve(call, base, &tree)?)
                }
                found => Some(found?),
            },
            None => adopted.head,
        };
        let settings = self.settings.get(&self.git, &source)?;
        let mut refs = References::read(&self.git, &source)?;
        if let Some(base) = &base {
            refs.head = source::Head::Detached { commit: base.clone() };
        }
        let lender = Some(Lender { ours, anchor: parent.intent.anchor });
        let seen = Seen { source, settings, refs, lender };
        self.planned(name.to_owned(), base, subdir, options, seen).map(Some)
    }

    fn planned(
        &self,
        name: String,
        base: Option<String>,
        subdir: PathBuf,
        options: &Options,
        seen: Seen,
    ) -> Result<Plan, TreeError> {
        let home = self.home(&seen.source.common, seen.source.top.as_deref());
        let (session, branch) = {
            let taken: HashSet<&str> = seen.refs.all.iter().map(|r| r.name.as_str()).collect();
            // A branch called like the prefix itself leaves no room for a directory of branches.
            let prefix = options.branch_prefix.trim_end_matches('/');
            let prefix = match taken.contains(format!("refs/heads/{prefix}").as_str()) {
                true => format!("{prefix}-"),
                false => options.branch_prefix.clone(),
            };
            if !names::is_reference(&format!("refs/heads/{prefix}{name}")) {
                return Err(TreeError::BadBranch { name: format!("{prefix}{name}") });
            }
            let free = (1..).map(|number| names::numbered(&name, number)).find(|session| {
                names::is_free(&format!("{prefix}{session}"), &taken)
                    && self.is_unused(&home, session)
            });
            let session = free.ok_or_else(|| TreeError::NameTaken { session: name.clone() })?;
            let branch = format!("{prefix}{session}");
            (session, branch)
        };
        let intent = TreeIntent {
            place: home.join(&session).into(),
            session,
            origin: Origin::of(&seen.source, seen.settings.format()),
            branch,
            anchor: seen
                .lender
                .as_ref()
                .map_or_else(|| base.clone(), |lender| lender.anchor.clone()),
            base,
            subdir: subdir.into(),
            owner: None,
        };
        Ok(Plan { intent, options: options.clone(), seen: Some(seen) })
    }

    fn plan_copy(&self, project: &Path, name: &str, options: &Options) -> Result<Plan, TreeError> {
        let project = source::unlinked(project)?;
        if self.root.starts_with(&project) {
            return Err(TreeError::ContainsUs { project, root: self.root.clone() });
        }
        let home = self.home(&project, Some(&project));
        let session = (1..).map(|number| names::numbered(name, number));
        let session = session.into_iter().find(|session| self.is_unused(&home, session));
        let session = session.ok_or_else(|| TreeError::NameTaken { session: name.to_owned() })?;
        let intent = TreeIntent {
            place: home.join(&session).into(),
            branch: format!("{}{session}", options.branch_prefix),
            session,
            origin: Origin::Directory { from: project.into() },
            base: None,
            anchor: None,
            subdir: PathBuf::new().into(),
            owner: None,
        };
        Ok(Plan { intent, options: options.clone(), seen: None })
    }

    /// A file in a revision of a repository without a working tree; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`TreeError::NoSuchBase`]; [`GitError::TooMuch`](crate::git::GitError::TooMuch) beyond `limit`.
    pub(crate) fn file_of(
        &self,
        source: &Source,
        revision: Option<&str>,
        path: &str,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, TreeError> {
        let commit = match revision {
            Some(revision) => self.resolve_in(source, revision)?,
            None => match References::read(&self.git, source)?.head.commit() {
                Some(commit) => commit.to_owned(),
                None => return Ok(None),
            },
        };
        let found = self
            .git
            .call(format!("read {path} of {commit}"))
            .source(source)
            .args(["cat-file", "blob"])
            .arg(format!("{commit}:{path}"))
            .limit(limit)
            .accept(&[0, 128])
            .run()?;
        Ok((found.code == 0).then_some(found.stdout))
    }

    /// The repository that contains a project, as [`Trees::plan`] sees it; `None` outside of any.
    pub(crate) fn source_of(
        &self,
        project: &Path,
        reach: &RoomReach,
    ) -> Result<Option<Source>, TreeError> {
        let found = source::find_within(&source::unlinked(project)?, reach)?;
        let Some((mut source, _)) = found else { return Ok(None) };
        if !project.canonicalize().is_ok_and(|project| project.starts_with(&self.root)) {
            self.may_be_given(project, &source)?;
        }
        let settings = self.settings.get(&self.git, &source)?;
        if source.git_dir == source.common && settings.is_on("core", "bare") {
            source.top = None;
        }
        Ok(Some(source))
    }

    fn is_unused(&self, home: &Path, session: &str) -> bool {
        let half = format!("{}{session}", super::HALF_MADE);
        !home.join(session).exists() && !home.join(half).exists()
    }

    /// The directory of a project: readable, and its own whatever the project is called.
    pub(crate) fn home(&self, common: &Path, top: Option<&Path>) -> PathBuf {
        let hash = blake3::hash(common.as_os_str().as_bytes()).to_hex();
        let named = top.or(Some(common)).and_then(Path::file_name).unwrap_or_default();
        let mut named = names::component(&named.to_string_lossy());
        while named.len() > 24 {
            named.pop();
        }
        self.root.join(format!("{}-{named}", &hash[..10]))
    }

    fn resolve_in(&self, source: &Source, base: &str) -> Result<String, TreeError> {
        let call = self.git.call(format!("find {base:?}")).source(source);
        Self::resolve(call, base, &source.common)
    }

    fn resolve(call: Call<'_>, base: &str, repo: &Path) -> Result<String, TreeError> {
        let found = call
            .args(["rev-parse", "--verify", "--quiet", "--end-of-options"])
            .arg(format!("{base}^{{commit}}"))
            .accept(&[0, 1, 128])
            .run()?;
        let id = found.line();
        if found.code == 0 && crate::git::is_id(&id) {
            return Ok(id);
        }
        Err(TreeError::NoSuchBase { base: base.to_owned(), repo: repo.to_owned() })
    }

    /// Creates a planned tree. It appears in one step, finished; a failure removes the partial tree.
    ///
    /// # Errors
    ///
    /// [`TreeError::NameTaken`] when another session took the name since the plan; git and I/O errors.
    pub fn make(&self, plan: &Plan) -> Result<Prepared, TreeError> {
        let half = plan.intent.half_made();
        let home = plan.intent.home();
        let _making = self.making_in(home);
        std::fs::create_dir_all(home).at("making", home)?;
        super::upkeep::note_project(home, &plan.intent.origin)?;
        point("tree.begun");
        let made = match &plan.seen {
            Some(seen) => self.make_tree(plan, seen, &half),
            None => self.make_copy(plan, &half),
        };
        if made.is_err() && !matches!(made, Err(TreeError::NameTaken { .. })) {
            // Its error is more important than a failure of the cleanup.
            let _ = self.throw_away(&half);
        }
        made
    }

    /// Lets a finished tree appear, in one step.
    fn put_in_place(&self, intent: &TreeIntent, half: &Path) -> Result<(), TreeError> {
        let place = intent.place.as_path();
        match renameat_with(CWD, half, CWD, place, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::EXIST) => {
                self.throw_away(half)?;
                Err(TreeError::NameTaken { session: intent.session.clone() })
            }
            Err(errno) => Err(errno.into()).at("putting in its place", place),
        }
    }

    /// Claims the directory in which a tree is built. The second of two callers gets an error.
    fn claim(&self, plan: &Plan, half: &Path) -> Result<(), TreeError> {
        match std::fs::create_dir(half) {
            Ok(()) => Ok(()),
            Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(TreeError::NameTaken { session: plan.intent.session.clone() })
            }
            Err(err) => Err(err).at("making", half),
        }
    }

    fn make_tree(&self, plan: &Plan, seen: &Seen, half: &Path) -> Result<Prepared, TreeError> {
        let Plan { intent, options, .. } = plan;
        let ignored = ignored_everywhere(options.excludes_file.as_deref())?;
        let ground = Ground {
            git: &self.git,
            cache: &self.settings,
            source: &seen.source,
            settings: &seen.settings,
            base: intent.base.as_deref(),
            ignored: &ignored,
            identity: options.identity.as_ref(),
            lender: seen.lender.as_ref().map(|lender| lender.ours.as_path()),
            anchor: intent.anchor.as_deref(),
            own: &self.own(),
        };
        let kept = match &intent.anchor {
            Some(anchor) => Some(self.want_base(&seen.source, anchor)?),
            None => None,
        };
        point("tree.kept-base");
        let ready = match &seen.lender {
            None => self.take_ready(&ground, intent.home(), half)?,
            Some(_) => None,
        };
        let (template, taken) = match ready {
            Some(ready) => ready,
            None => {
                self.claim(plan, half)?;
                point("tree.claimed");
                (ground.build(half)?, Taken::CheckedOut)
            }
        };
        point("tree.built");
        let prepared = self.hand_out(plan, seen, half, template, taken)?;
        point("tree.handed-out");
        self.put_in_place(intent, half)?;
        point("tree.placed");
        drop(kept);
        Ok(prepared)
    }

    /// Makes a built tree this session's own.
    fn hand_out(
        &self,
        plan: &Plan,
        seen: &Seen,
        half: &Path,
        template: Template,
        taken: Taken,
    ) -> Result<Prepared, TreeError> {
        let Plan { intent, options, .. } = plan;
        let mut warnings = template.warnings;
        let main = template.units.first().ok_or(TreeError::Gone { place: half.to_owned() })?;
        let paths = main.paths(half);
        let branch = format!("refs/heads/{}", intent.branch);
        give(&paths.ours, &paths.theirs, &seen.refs)?;
        gitdir::set_head(&paths.theirs, &branch).at("writing the head of", &paths.theirs)?;
        if let Some(base) = &intent.base {
            gitdir::set_reference(&paths.theirs, &branch, base)
                .at("writing the branch of", &paths.theirs)?;
        } else {
            warnings.push(Warning::NoCommitYet);
        }
        if seen.settings.theirs(Path::new("/")).1 {
            warnings.push(Warning::PasswordLeftBehind);
        }
        let mut brought = super::carry::Brought::default();
        if options.look_at_primary
            && let Some(top) = &seen.source.top
        {
            let from = super::carry::Primary {
                git: &self.git,
                top,
                git_dir: &seen.source.git_dir,
                own: self.own(),
                head: seen.refs.head.commit(),
            };
            brought = super::carry::bring(&from, half, &paths, options)?;
            if let Some(base) = &intent.base {
                gitdir::set_head(&paths.ours, base).at("writing the head of", &paths.ours)?;
            }
        }
        if let Some(left) = brought.left.filter(|left| *left != LeftBehind::default())
            && !options.carry_changes
        {
            warnings.push(Warning::LeftBehind { left });
        }
        warnings.append(&mut brought.warnings);

        let (subdir, missing) = existing(&half.join("tree"), intent.subdir.as_path());
        if missing {
            warnings.push(Warning::NoSuchDirectory {
                wanted: intent.subdir.as_path().to_string_lossy().into_owned(),
                used: subdir.to_string_lossy().into_owned(),
            });
        }
        let borrowed = template.units.iter().map(|unit| unit.source.as_path().join("objects"));
        let borrowed = self.shown(&seen.source, borrowed.collect());
        let notes = Notes {
            intent: intent.clone(),
            units: template.units,
            ending: None,
            stamp: None,
            published: Vec::new(),
            shared: brought.shared.iter().cloned().map(HostPath::from).collect(),
        };
        notes.write(half)?;
        let path = intent.tree();
        Ok(Prepared {
            // To join nothing would leave a slash at the end.
            cwd: if subdir.as_os_str().is_empty() { path.clone() } else { path.join(subdir) },
            env: session_env(intent),
            path,
            intent: intent.clone(),
            taken,
            borrowed,
            bounded: seen.source.within.is_some(),
            shared: brought.shared,
            included: brought.included,
            left_behind: brought.left,
            copied: brought.copied,
            warnings,
        })
    }

    /// Copies a directory that is in no repository.
    fn make_copy(&self, plan: &Plan, half: &Path) -> Result<Prepared, TreeError> {
        let Plan { intent, options, .. } = plan;
        let Origin::Directory { from } = &intent.origin else {
            return Err(TreeError::Gone { place: half.to_owned() });
        };
        self.claim(plan, half)?;
        let tree = half.join("tree");
        std::fs::create_dir(&tree).at("making", &tree)?;
        let dirs = (Dir::open_plain(from.as_path()), Dir::open(&tree));
        let (from, to) = (dirs.0.at("opening", from)?, dirs.1.at("opening", &tree)?);
        let from = from.without(&self.own());
        let mut budget = Budget { bytes: options.copy_bytes, files: options.copy_files };
        let copied =
            copy::copy_dir(&from, &to, &mut budget, &|_, _| false).at("copying into", &tree)?;
        let mut warnings = vec![Warning::NotARepository {
            files: copied.files,
            bytes: copied.bytes,
            skipped: copied.skipped,
        }];
        let mut unit = Unit {
            at: PathBuf::new().into(),
            ours: PathBuf::from("ours").into(),
            theirs: PathBuf::from(".git").into(),
            source: half.join("nowhere").into(),
            base: None,
        };
        let ignored = ignored_everywhere(options.excludes_file.as_deref())?;
        let settings = Settings::default().data();
        let layout = gitdir::Layout {
            head: "refs/heads/main",
            settings: &settings,
            exclude: &ignored,
            ..gitdir::Layout::default()
        };
        let paths = unit.paths(half);
        gitdir::write(&paths.ours, &layout).at("writing a git directory at", &paths.ours)?;
        if copied.bytes <= options.record_bytes {
            unit.base = Some(super::snapshot::record(&self.git, &paths)?);
        } else {
            warnings.push(Warning::NotRecorded { bytes: copied.bytes });
        }
        let mut intent = intent.clone();
        intent.base.clone_from(&unit.base);
        let notes = Notes {
            intent: intent.clone(),
            units: vec![unit],
            ending: None,
            stamp: None,
            published: Vec::new(),
            shared: Vec::new(),
        };
        notes.write(half)?;
        self.put_in_place(&intent, half)?;
        let path = intent.tree();
        Ok(Prepared {
            cwd: path.clone(),
            path,
            env: session_env(&intent),
            intent,
            taken: Taken::Copied,
            borrowed: Vec::new(),
            bounded: false,
            shared: Vec::new(),
            included: Vec::new(),
            left_behind: None,
            copied,
            warnings,
        })
    }
}

/// What keeps a session's git from looking for a repository above its tree, and from the network.
pub(crate) fn session_env(intent: &TreeIntent) -> Vec<(String, OsString)> {
    vec![
        ("GIT_CEILING_DIRECTORIES".to_owned(), intent.place.as_path().into()),
        ("GIT_LFS_SKIP_SMUDGE".to_owned(), "1".into()),
    ]
}

/// The directory, or the nearest one above it that exists; `true` when it is another.
fn existing(tree: &Path, subdir: &Path) -> (PathBuf, bool) {
    let open = Dir::open(tree);
    let found = subdir
        .ancestors()
        .find(|dir| dir.as_os_str().is_empty() || open.as_ref().is_ok_and(|tree| tree.has_dir(dir)))
        .unwrap_or(Path::new(""));
    (found.to_owned(), found != subdir)
}
