//! The journal of a lease: a directory with an append-only file of records.
//!
//! A record is a line of JSON. Intents, and records that change the phase of a lease, are on disk
//! before the action begins. Records of finished steps are written at once and synced with the next
//! of the others: a killed process loses none, and after a power cut the intent alone is enough to
//! undo. An incomplete last line is ignored.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::room::RoomSandbox;
use overmind_core::time::Timestamp;

use super::{Lease, LeasePhase, Made, MadeTree, Step, TreeEnd};
use crate::env::Values;

/// The file's name.
pub(crate) const FILE: &str = "journal.jsonl";
const VERSION: u32 = 1;

/// Why a journal could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("the session {session} has a lease already")]
    Exists { session: String },
    #[error("{what} the journal {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}:{line} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, line: usize, why: String },
    #[error("{} is of version {version}, and this program reads {VERSION}: use a newer Overmind", path.display())]
    Version { path: PathBuf, version: u32 },
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub(crate) enum Record {
    Opened {
        version: u32,
        at: Timestamp,
        session: String,
        name: String,
        project: PathBuf,
        place: Option<PathBuf>,
        /// The sandbox of its programs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox: Option<RoomSandbox>,
    },
    Intent {
        step: u32,
        what: Step,
    },
    Made {
        step: u32,
        what: Made,
    },
    /// The commands to run before anything is undone; known once the worktree exists.
    Hooks {
        hooks: Vec<TeardownHook>,
    },
    Ready {
        at: Timestamp,
        env: BTreeMap<String, String>,
        values: BTreeMap<String, BTreeMap<String, String>>,
        logs: BTreeMap<String, PathBuf>,
        warnings: Vec<String>,
    },
    Ending {
        at: Timestamp,
        tree: TreeEnd,
    },
    HooksRan,
    Undone {
        step: u32,
    },
}

/// A teardown hook with everything that it needs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct TeardownHook {
    pub(crate) name: String,
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: PathBuf,
    pub(crate) timeout_ms: u64,
    pub(crate) blocking: bool,
}

impl Record {
    /// Whether this must be on disk before the next action begins.
    fn is_promise(&self) -> bool {
        match self {
            Self::Opened { .. }
            | Self::Intent { .. }
            | Self::Ready { .. }
            | Self::Ending { .. }
            | Self::HooksRan => true,
            // Undoing a step twice is harmless.
            Self::Made { .. } | Self::Hooks { .. } | Self::Undone { .. } => false,
        }
    }
}

/// An open journal. Clones write to the same file.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    dir: PathBuf,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    next: u32,
}

fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::File { what, path, source }
}

/// Whether a lease's directory has no complete record yet: nothing was intended, and so nothing was
/// made.
pub(crate) fn unbegun(dir: &Path) -> bool {
    match std::fs::read(dir.join(FILE)) {
        Ok(text) => !text.contains(&b'\n'),
        Err(err) => err.kind() == io::ErrorKind::NotFound,
    }
}

impl Journal {
    /// Begins the journal of a new lease.
    pub(crate) fn create(dir: &Path, opened: &Record) -> Result<Self, JournalError> {
        let session = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = dir.join(FILE);
        match std::fs::DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => {}
            // Its writer died in between, or the disk was full.
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists && unbegun(dir) => {
                let _ = std::fs::remove_file(&path);
            }
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                return Err(JournalError::Exists { session });
            }
            Err(err) => return Err(file("making the directory of", &path)(err)),
        }
        let opened_file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
        let opened_file = match opened_file {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                return Err(JournalError::Exists { session });
            }
            other => other.map_err(file("making", &path))?,
        };
        let journal = Self {
            dir: dir.to_owned(),
            inner: Arc::new(Mutex::new(Inner { file: opened_file, next: 1 })),
        };
        let kept = journal.write(opened).and_then(|()| {
            // The names of the file and its directory must be on disk too.
            for dir in [Some(dir), dir.parent()].into_iter().flatten() {
                File::open(dir).and_then(|dir| dir.sync_all()).map_err(file("keeping", &path))?;
            }
            Ok(())
        });
        match kept {
            Ok(()) => Ok(journal),
            Err(err) => {
                // Nothing was intended, so nothing must be undone. The error that is returned is
                // the other one.
                let _ = std::fs::remove_dir_all(dir);
                Err(err)
            }
        }
    }

    /// Continues the journal of a lease.
    pub(crate) fn open(dir: &Path, state: &State) -> Result<Self, JournalError> {
        let path = dir.join(FILE);
        let mut opened =
            OpenOptions::new().append(true).open(&path).map_err(file("opening", &path))?;
        if state.torn {
            opened.write_all(b"\n").map_err(file("writing", &path))?;
        }
        let next = state.steps.keys().next_back().copied().unwrap_or(0) + 1;
        let inner = Arc::new(Mutex::new(Inner { file: opened, next }));
        Ok(Self { dir: dir.to_owned(), inner })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Appends a record; an intent is on disk when this returns.
    pub(crate) fn write(&self, record: &Record) -> Result<(), JournalError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.append(&mut inner, record)
    }

    fn append(&self, inner: &mut Inner, record: &Record) -> Result<(), JournalError> {
        let path = self.dir.join(FILE);
        let mut line = serde_json::to_vec(record)
            .map_err(|err| file("writing", &path)(io::Error::other(err)))?;
        line.push(b'\n');
        inner.file.write_all(&line).map_err(file("writing", &path))?;
        if record.is_promise() {
            inner.file.sync_data().map_err(file("keeping", &path))?;
        }
        Ok(())
    }

    /// Records a step that is about to be made; returns its number.
    pub(crate) fn intend(&self, what: &Step) -> Result<u32, JournalError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let step = inner.next;
        inner.next += 1;
        self.append(&mut inner, &Record::Intent { step, what: what.clone() })?;
        drop(inner);
        overmind_core::failpoint::point("workspace.intended");
        Ok(step)
    }

    pub(crate) fn made(&self, step: u32, what: Made) -> Result<(), JournalError> {
        overmind_core::failpoint::point("workspace.made");
        self.write(&Record::Made { step, what })?;
        overmind_core::failpoint::point("workspace.noted");
        Ok(())
    }

    pub(crate) fn undone(&self, step: u32) -> Result<(), JournalError> {
        overmind_core::failpoint::point("workspace.undone");
        self.write(&Record::Undone { step })?;
        overmind_core::failpoint::point("workspace.undone-noted");
        Ok(())
    }
}

/// The content of a journal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) session: String,
    pub(crate) name: String,
    pub(crate) project: PathBuf,
    /// The directory that is not ours, for a lease without a tree.
    pub(crate) place: Option<PathBuf>,
    pub(crate) sandbox: Option<RoomSandbox>,
    pub(crate) steps: BTreeMap<u32, Noted>,
    pub(crate) hooks: Vec<TeardownHook>,
    pub(crate) hooks_ran: bool,
    pub(crate) ready: Option<Ready>,
    pub(crate) ending: Option<TreeEnd>,
    torn: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Noted {
    pub(crate) step: Step,
    pub(crate) made: Option<Made>,
    pub(crate) undone: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ready {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) values: Values,
    pub(crate) logs: BTreeMap<String, PathBuf>,
    pub(crate) warnings: Vec<String>,
}

impl State {
    /// Reads the journal in `dir`.
    pub(crate) fn read(dir: &Path) -> Result<Self, JournalError> {
        let path = dir.join(FILE);
        let text = std::fs::read(&path).map_err(file("reading", &path))?;
        let text = String::from_utf8_lossy(&text);
        let torn = !text.is_empty() && !text.ends_with('\n');
        let mut state: Option<Self> = None;
        let lines: Vec<&str> = text.lines().collect();
        for (n, line) in lines.iter().enumerate() {
            let last = n + 1 == lines.len();
            let record: Record = match serde_json::from_str(line) {
                Ok(record) => record,
                // A power cut left an incomplete line, which was ended when the journal was
                // continued.
                Err(_) if (last && torn) || line.is_empty() => continue,
                Err(_) if !line.ends_with('}') => continue,
                Err(err) => {
                    let why = err.to_string();
                    return Err(JournalError::Damaged { path, line: n + 1, why });
                }
            };
            match (&mut state, record) {
                (None, Record::Opened { version, session, name, project, place, sandbox, .. }) => {
                    if version != VERSION {
                        return Err(JournalError::Version { path, version });
                    }
                    state = Some(Self {
                        session,
                        name,
                        project,
                        place,
                        sandbox,
                        steps: BTreeMap::new(),
                        hooks: Vec::new(),
                        hooks_ran: false,
                        ready: None,
                        ending: None,
                        torn,
                    });
                }
                (None, _) | (Some(_), Record::Opened { .. }) => {
                    let why = "it does not begin with its opening".to_owned();
                    return Err(JournalError::Damaged { path, line: n + 1, why });
                }
                (Some(state), record) => state.apply(record),
            }
        }
        state.ok_or_else(|| JournalError::Damaged { path, line: 1, why: "it is empty".to_owned() })
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::Opened { .. } => {}
            Record::Intent { step, what } => {
                self.steps.insert(step, Noted { step: what, made: None, undone: false });
            }
            Record::Made { step, what } => {
                if let Some(noted) = self.steps.get_mut(&step) {
                    noted.made = Some(what);
                }
            }
            Record::Hooks { hooks } => self.hooks = hooks,
            Record::Ready { env, values, logs, warnings, .. } => {
                let mut read = Values::default();
                for (service, fields) in values {
                    for (field, value) in fields {
                        read.set(&service, &field, value);
                    }
                }
                self.ready = Some(Ready { env, values: read, logs, warnings });
            }
            Record::Ending { tree, .. } => self.ending = Some(tree),
            Record::HooksRan => self.hooks_ran = true,
            Record::Undone { step } => {
                if let Some(noted) = self.steps.get_mut(&step) {
                    noted.undone = true;
                }
            }
        }
    }

    pub(crate) fn phase(&self) -> LeasePhase {
        match (&self.ending, &self.ready) {
            (Some(_), _) => LeasePhase::Ending,
            (None, Some(_)) => LeasePhase::Ready,
            (None, None) => LeasePhase::Building,
        }
    }

    pub(crate) fn tree(&self) -> Option<&MadeTree> {
        self.steps.values().find_map(|noted| noted.made.as_ref()?.tree())
    }

    pub(crate) fn ports(&self) -> BTreeMap<String, u16> {
        let mut ports = BTreeMap::new();
        for noted in self.steps.values().filter(|noted| !noted.undone) {
            if let Some(more) = noted.made.as_ref().and_then(Made::ports) {
                ports.extend(more.iter().map(|(name, port)| (name.clone(), *port)));
            }
        }
        ports
    }

    /// The lease, if it is complete.
    pub(crate) fn lease(&self) -> Option<Lease> {
        let ready = self.ready.as_ref().filter(|_| self.ending.is_none())?;
        let tree = self.tree();
        Some(Lease {
            session: self.session.clone(),
            name: self.name.clone(),
            project: self.project.clone(),
            worktree: tree.map(|tree| tree.path.clone()).or_else(|| self.place.clone())?,
            branch: tree.and_then(|tree| tree.branch.clone()),
            base: tree.and_then(|tree| tree.base.clone()),
            env: ready.env.clone(),
            ports: self.ports(),
            values: ready.values.clone(),
            logs: ready.logs.clone(),
            warnings: ready.warnings.clone(),
            details: tree.map(|tree| tree.details.clone()).unwrap_or_default(),
        })
    }

    pub(crate) fn opened(
        session: &str,
        name: &str,
        project: &Path,
        place: Option<&Path>,
        sandbox: Option<&RoomSandbox>,
        at: Timestamp,
    ) -> Record {
        Record::Opened {
            version: VERSION,
            at,
            session: session.to_owned(),
            name: name.to_owned(),
            project: project.to_owned(),
            place: place.map(Path::to_owned),
            sandbox: sandbox.cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_round_trips_and_ignores_a_torn_end() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("s1");
        let at = Timestamp::from_micros(1);
        let opened = State::opened("s1", "n", Path::new("/p"), None, None, at);
        let journal = Journal::create(&dir, &opened).unwrap();
        assert!(matches!(Journal::create(&dir, &opened), Err(JournalError::Exists { .. })));
        let temp = Step::Temp { path: PathBuf::from("/t") };
        let one = journal.intend(&temp).unwrap();
        journal.made(one, Made::Known).unwrap();
        let two = journal.intend(&temp).unwrap();
        {
            let mut raw = OpenOptions::new().append(true).open(dir.join(FILE)).unwrap();
            raw.write_all(b"{\"record\":\"made\",\"st").unwrap();
        }
        let state = State::read(&dir).unwrap();
        assert_eq!((one, two, state.steps.len()), (1, 2, 2));
        assert_eq!(state.phase(), LeasePhase::Building);
        // Gone on with, the torn line stays one line and hides nothing.
        let journal = Journal::open(&dir, &state).unwrap();
        assert_eq!(journal.intend(&temp).unwrap(), 3);
        journal.undone(one).unwrap();
        let state = State::read(&dir).unwrap();
        assert_eq!(state.steps.len(), 3);
        assert!(state.steps[&1].undone && !state.steps[&3].undone);
    }

    #[test]
    fn steps_that_never_began_are_started_again() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("s1");
        let at = Timestamp::from_micros(1);
        let opened = State::opened("s1", "n", Path::new("/p"), None, None, at);
        for torn in [None, Some(""), Some("{\"record\":\"ope")] {
            std::fs::create_dir(&dir).unwrap();
            if let Some(torn) = torn {
                std::fs::write(dir.join(FILE), torn).unwrap();
            }
            assert!(unbegun(&dir), "{torn:?}");
            Journal::create(&dir, &opened).unwrap();
            assert!(!unbegun(&dir));
            assert_eq!(State::read(&dir).unwrap().phase(), LeasePhase::Building);
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[test]
    fn a_damaged_line_is_reported_by_number() {
        let home = tempfile::tempdir().unwrap();
        let at = Timestamp::from_micros(1);
        let dir = home.path().join("s1");
        let opened = State::opened("s1", "n", Path::new("/p"), None, None, at);
        Journal::create(&dir, &opened).unwrap();
        let mut raw = OpenOptions::new().append(true).open(dir.join(FILE)).unwrap();
        raw.write_all(b"{\"record\":\"nonsense\"}\n").unwrap();
        let err = State::read(&dir).unwrap_err().to_string();
        assert!(err.contains("journal.jsonl:2 is damaged"), "{err}");
    }
}
