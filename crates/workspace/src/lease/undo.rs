//! Ends a lease, from its journal alone.
//!
//! The order is: the project's teardown hooks, then services, networks, ports, databases, files,
//! and finally the worktree. Everything in the journal is undone, made or not. A missing resource
//! is no error, so an interrupted teardown can be repeated.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::build::{TEMP_MARK, blocking, chain};
use super::journal::{Noted, Record};
use super::step::Rank;
use super::{
    Journal, JournalError, Lease, LeasePhase, Made, Progress, Sink, State, Step, TreeEnd,
    Workspace, is_session,
};
use crate::database::postgres::PostgresServer;
use crate::database::redis::RedisServer;
use crate::database::sqlite;
use crate::env::file;
use crate::hooks;
use crate::leaks::Finding;
use crate::rooms::reached::Reached;
use crate::services::command::{self, CommandSpec};
use crate::services::confine::Confinement;
use crate::services::container::Engine;
use crate::services::tree::{Belongs, LEASE_MARK};

/// Why a lease did not end. The rest stays in the journal; call it again.
#[derive(Debug, thiserror::Error)]
pub enum TeardownError {
    #[error("the session {0} is being changed by another call")]
    Busy(String),
    #[error("reading the lease")]
    Journal(#[from] JournalError),
    #[error("the lease of {session} did not end: {}", left.join("; "))]
    Left { session: String, left: Vec<String> },
    #[error("a teardown hook failed: {0}")]
    Hook(String),
}

/// The result of a teardown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TeardownReport {
    /// The undone steps, in order.
    pub undone: Vec<String>,
    pub warnings: Vec<String>,
    /// The findings of the leak check for this session afterwards.
    pub leaks: Vec<Finding>,
}

/// The result for a session's lease at the start of the daemon.
#[derive(Debug)]
pub enum Resumed {
    /// It was complete; its services are running.
    Kept { session: String, lease: Box<Lease>, warnings: Vec<String> },
    /// It was partly built or partly ended, and was removed.
    Ended { session: String, report: TeardownReport },
    /// It could not be ended or not be read.
    Failed { session: String, error: TeardownError },
}

impl Workspace {
    /// Ends a session's lease and checks for leaks. Without a lease there is nothing to do, which
    /// is no error.
    ///
    /// # Errors
    ///
    /// [`TeardownError::Left`] names what could not be undone. [`TeardownError::Hook`] if a
    /// blocking hook failed: nothing was undone yet, and the next call continues without the hook.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, the lease is partly ended: call it again, or [`Workspace::resume`].
    pub async fn teardown(
        &self,
        session: &str,
        tree: TreeEnd,
        sink: &dyn Sink,
    ) -> Result<TeardownReport, TeardownError> {
        let _busy = self.claim(session).ok_or_else(|| TeardownError::Busy(session.to_owned()))?;
        let mut report = Box::pin(self.undo_all(session, tree, sink)).await?;
        report.leaks = Box::pin(self.leaks_of(session)).await;
        Ok(report)
    }

    /// Continues every lease of an earlier process of the daemon.
    pub async fn resume(&self, sink: &dyn Sink) -> Vec<Resumed> {
        let entries = std::fs::read_dir(self.leases()).into_iter().flatten().flatten();
        let mut sessions: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        sessions.sort();
        let mut resumed = Vec::new();
        for session in sessions {
            let Some(_busy) = self.claim(&session) else { continue };
            let dir = self.dir(&session);
            if is_session(&session) && super::journal::unbegun(&dir) {
                // Its process died before anything was intended.
                let _ = std::fs::remove_dir_all(&dir);
                continue;
            }
            let state = match State::read(&dir) {
                Ok(state) => state,
                Err(error) => {
                    let error = TeardownError::Journal(error);
                    resumed.push(Resumed::Failed { session, error });
                    continue;
                }
            };
            match (state.phase(), state.lease()) {
                (LeasePhase::Ready, Some(lease)) => {
                    let warnings = Box::pin(self.take_up(&state)).await;
                    resumed.push(Resumed::Kept { session, lease: Box::new(lease), warnings });
                }
                (LeasePhase::Building | LeasePhase::Ending | LeasePhase::Ready, _) => {
                    let tree = state.ending.unwrap_or(TreeEnd::Park);
                    match Box::pin(self.undo_all(&session, tree, sink)).await {
                        Ok(mut report) => {
                            report.leaks = Box::pin(self.leaks_of(&session)).await;
                            resumed.push(Resumed::Ended { session, report });
                        }
                        Err(error) => resumed.push(Resumed::Failed { session, error }),
                    }
                }
            }
        }
        resumed
    }

    /// Restores a complete lease's ports, processes and containers.
    async fn take_up(&self, state: &State) -> Vec<String> {
        let mut warnings = Vec::new();
        let owner = self.owner(&state.session);
        match self.ports.reassert(state.ports().into_values(), &owner) {
            Ok(lost) => {
                warnings
                    .extend(lost.iter().map(|port| format!("the port {port} is another's now")));
            }
            Err(err) => warnings.push(chain(&err)),
        }
        for noted in state.steps.values().filter(|noted| !noted.undone) {
            match (&noted.step, &noted.made) {
                (Step::Postgres { url: None, .. }, _) => {
                    if let Err(err) = self.cluster.ensure().await {
                        warnings.push(chain(&err));
                    }
                }
                (Step::Process { .. }, Some(Made::Process { spec, handle })) => {
                    let adopted = self.options.runner.adopt((**spec).clone(), handle.clone()).await;
                    match adopted {
                        Ok(now) if now != *handle => self.note_process(state, noted, now),
                        Ok(_) => {}
                        Err(err) => warnings.push(chain(&err)),
                    }
                }
                (Step::Container { plan }, _) => {
                    let started = match &self.options.docker {
                        Some(socket) => match Engine::connect(socket, &plan.service).await {
                            Ok(engine) => engine.start_again(&plan.container).await,
                            Err(err) => Err(err),
                        },
                        None => Ok(false),
                    };
                    match started {
                        Ok(true) => {}
                        Ok(false) => {
                            warnings.push(format!("the container `{}` is gone", plan.service))
                        }
                        Err(err) => warnings.push(chain(&err)),
                    }
                }
                (
                    Step::Tree { .. }
                    | Step::Temp { .. }
                    | Step::Ports { .. }
                    | Step::RedisIndex { .. }
                    | Step::Postgres { .. }
                    | Step::Sqlite { .. }
                    | Step::Network { .. }
                    | Step::Compose { .. }
                    | Step::Process { .. }
                    | Step::EnvFile { .. }
                    | Step::Hook { .. },
                    _,
                ) => {}
            }
        }
        warnings
    }

    /// Records the current process of a service.
    fn note_process(
        &self,
        state: &State,
        noted: &Noted,
        handle: crate::services::runner::ProcessHandle,
    ) {
        let step = state.steps.iter().find(|(_, other)| *other == noted).map(|(step, _)| *step);
        let Some(Made::Process { spec, .. }) = &noted.made else { return };
        let made = Made::Process { spec: spec.clone(), handle };
        let written = Journal::open(&self.dir(&state.session), state)
            .and_then(|journal| step.map_or(Ok(()), |step| journal.made(step, made)));
        if let Err(err) = written {
            tracing::warn!(err = %chain(&err), "a restarted process was not written down");
        }
    }

    /// Undoes everything; the caller must hold the session.
    pub(super) async fn undo_all(
        &self,
        session: &str,
        tree: TreeEnd,
        sink: &dyn Sink,
    ) -> Result<TeardownReport, TeardownError> {
        let dir = self.dir(session);
        if !is_session(session) || !dir.exists() {
            return Ok(TeardownReport::default());
        }
        if super::journal::unbegun(&dir) {
            // The caller holds the session, so nobody is about to start it.
            let _ = std::fs::remove_dir_all(&dir);
            return Ok(TeardownReport::default());
        }
        let mut report = TeardownReport::default();
        let state = State::read(&dir)?;
        let journal = Journal::open(&dir, &state)?;
        let was_ready = state.ready.is_some();
        let tree = match state.ending {
            // The first request applies, because it may be partly done.
            Some(tree) => tree,
            None => {
                journal.write(&Record::Ending { at: self.options.clock.now(), tree })?;
                tree
            }
        };
        overmind_core::failpoint::point("workspace.ending");
        if was_ready && !state.hooks_ran {
            // This comes first: a hook that kills the daemon must not run again forever.
            journal.write(&Record::HooksRan)?;
            self.run_hooks(&state, sink, &mut report).await?;
        }
        let mut left = Vec::new();
        let mut order: Vec<(Rank, std::cmp::Reverse<u32>)> = state
            .steps
            .iter()
            .filter(|(_, noted)| !noted.undone)
            .map(|(step, noted)| (noted.step.rank(), std::cmp::Reverse(*step)))
            .collect();
        order.sort();
        let mut marked_ended = false;
        for (rank, std::cmp::Reverse(step)) in order {
            if rank > Rank::Services && !marked_ended {
                // Services are stopped by name; other processes of the session have its mark.
                self.end_marked(session, &mut left).await;
                marked_ended = true;
            }
            // A process that still runs would use resources that are about to be removed.
            let services_left = !left.is_empty() && rank > Rank::Services;
            let Some(noted) = state.steps.get(&step) else { continue };
            if services_left && matches!(rank, Rank::Ports | Rank::Tree) {
                left.push(format!("{} was not touched, because of the above", noted.step.shown()));
                continue;
            }
            sink.tell(Progress::Step { what: &format!("ending {}", noted.step.shown()) });
            match Box::pin(self.undo_one(&state, noted, tree)).await {
                Ok(()) => {
                    journal.undone(step)?;
                    report.undone.push(noted.step.shown());
                }
                Err(why) => left.push(format!("{}: {why}", noted.step.shown())),
            }
        }
        if !marked_ended {
            self.end_marked(session, &mut left).await;
        }
        if !left.is_empty() {
            return Err(TeardownError::Left { session: session.to_owned(), left });
        }
        // This is the end of the lease, which releases everything that it holds.
        if let Err(err) = std::fs::remove_dir_all(&dir) {
            let left = vec![format!("removing {}: {err}", dir.display())];
            return Err(TeardownError::Left { session: session.to_owned(), left });
        }
        overmind_core::failpoint::point("workspace.closed");
        Ok(report)
    }

    async fn run_hooks(
        &self,
        state: &State,
        sink: &dyn Sink,
        report: &mut TeardownReport,
    ) -> Result<(), TeardownError> {
        let refused = |why| TeardownError::Hook(format!("the sandbox of its hooks: {why}"));
        let tree = state.tree();
        let worktree = tree.map(|tree| tree.path.as_path()).or(state.place.as_deref());
        let borrowed =
            tree.map(|tree| (tree.borrowed.as_slice(), tree.bounded)).unwrap_or_default();
        let confinement = Confinement::of(
            &state.session,
            state.sandbox.as_ref(),
            worktree.unwrap_or(Path::new("/")),
            borrowed,
        );
        let confinement = confinement.map_err(refused)?;
        let values = state.ready.as_ref().map(|ready| ready.values.clone()).unwrap_or_default();
        let reached = Reached::of(&state.ports(), &values).ports;
        let mut env = hooks::inherited(&self.options.environment);
        env.extend(state.ready.iter().flat_map(|ready| ready.env.clone()));
        env.insert(LEASE_MARK.to_owned(), self.mark(&state.session));
        for (n, hook) in state.hooks.iter().enumerate() {
            sink.tell(Progress::Step { what: &hook.name });
            let mark = self.process_id(&state.session, &format!("teardown-{n}"));
            let confined = confinement
                .as_ref()
                .map(|all| all.after(&reached).of(format!("teardown: {}", hook.name)));
            let spec = CommandSpec {
                label: hook.name.clone(),
                argv: hook.argv.clone(),
                env: env.clone(),
                cwd: hook.cwd.clone(),
                timeout: Duration::from_millis(hook.timeout_ms),
                cgroup: self.group_of(&mark, confined.as_ref()),
                mark,
                confined,
                encloses: self.options.encloses.clone(),
            };
            if let Err(err) = command::run(&spec, sink, &*self.options.clock).await {
                if hook.blocking {
                    return Err(TeardownError::Hook(err.to_string()));
                }
                let text = format!("teardown: {err}");
                sink.tell(Progress::Warning { text: &text });
                report.warnings.push(text);
            }
        }
        Ok(())
    }

    /// Ends every process that is in a cgroup of the session, has its mark, or descends from one
    /// that does.
    async fn end_marked(&self, session: &str, left: &mut Vec<String>) {
        let (grace, clock) = (Duration::from_millis(500), &*self.options.clock);
        let groups = self.cgroups.named(&self.process_id(session, ""));
        let cgroups = groups.into_iter().map(|(_, path)| path).collect();
        let grouped = Belongs { cgroups, ..Belongs::default() };
        let marked = Belongs { mark: Some((LEASE_MARK, self.mark(session))), ..Belongs::default() };
        let mut survivors = grouped.end(grace, clock).await;
        survivors.extend(marked.end(grace, clock).await);
        if !survivors.is_empty() {
            left.push(format!("the processes {survivors:?} did not end"));
        }
    }

    async fn undo_one(&self, state: &State, noted: &Noted, tree: TreeEnd) -> Result<(), String> {
        let session = state.session.as_str();
        match &noted.step {
            Step::Tree { intent } => {
                let maker = self.options.tree.as_ref();
                let maker =
                    maker.ok_or_else(|| "this daemon cannot create worktrees".to_owned())?;
                maker.undo(intent, noted.made.as_ref().and_then(Made::tree), tree).await
            }
            Step::Temp { path } => {
                let (path, mark) = (path.clone(), self.mark(session));
                run("removing files", move || {
                    remove_temp(&path, &mark).map_err(|err| format!("{}: {err}", path.display()))
                })
                .await
            }
            Step::Ports { .. } => {
                let (ports, owner) = (self.ports.clone(), self.owner(session));
                let known = noted.made.as_ref().and_then(Made::ports);
                let known = known.map(|ports| ports.values().copied().collect::<Vec<_>>());
                run("giving ports back", move || {
                    match known {
                        Some(known) => ports.release(known, &owner),
                        // It was never recorded: everything with our name is removed.
                        None => {
                            ports.release_all(&owner);
                        }
                    }
                    Ok(())
                })
                .await
            }
            Step::RedisIndex { url, .. } => {
                let (url, owner) = (url.clone(), self.owner(session));
                let registry = self.registry.clone();
                run("giving the index back", move || {
                    let server = RedisServer::parse(&url).map_err(|err| chain(&err))?;
                    let family = server.family();
                    let held = registry.list(&family).map_err(|err| chain(&err))?;
                    // Only indexes that the registry lists as ours are flushed.
                    for (index, holder) in held {
                        if holder == owner {
                            server.flush(index).map_err(|err| chain(&err))?;
                            registry.release(&family, index, &owner);
                        }
                    }
                    Ok(())
                })
                .await
            }
            Step::Postgres { url, names, .. } => {
                let server = match url {
                    Some(url) => PostgresServer::parse(url).map_err(|err| chain(&err))?,
                    None if !self.cluster.exists() => return Ok(()),
                    None => self.cluster.ensure().await.map_err(|err| chain(&err))?,
                };
                server.drop(names).await.map_err(|err| chain(&err))
            }
            Step::Sqlite { file, .. } => {
                // If the worktree is removed, the file is removed with it.
                let stays = matches!(tree, TreeEnd::Keep | TreeEnd::Decide);
                if stays || !is_inside(state, file) {
                    return Ok(());
                }
                let file = file.clone();
                run("removing the database", move || {
                    sqlite::remove(&file).map_err(|err| chain(&err))
                })
                .await
            }
            Step::Network { name } => {
                let engine = self.engine("network").await?;
                engine.remove_network(name).await.map_err(|err| chain(&err))
            }
            Step::Container { plan } => {
                let engine = self.engine(&plan.service).await?;
                engine.undo(plan).await.map_err(|err| chain(&err))
            }
            Step::Compose { plan } => {
                let compose = self.compose();
                let compose = compose.ok_or_else(|| "there is no program `docker`".to_owned())?;
                compose.down(plan).await.map_err(|err| chain(&err))
            }
            Step::Process { id, grace_ms, .. } => {
                let handle = noted.made.as_ref().and_then(Made::handle);
                let grace = Duration::from_millis(*grace_ms);
                let stopped = self.options.runner.stop(id, handle, grace).await;
                stopped.map_err(|err| chain(&err))
            }
            Step::EnvFile { worktree, relative, excluded } => {
                let shared = excluded
                    .as_ref()
                    .is_some_and(|list| self.others_exclude(session, list, relative));
                let (worktree, relative) = (worktree.clone(), relative.clone());
                let list = excluded.clone().filter(|_| !shared);
                let path = worktree.join(&relative);
                let inside = is_inside(state, &path);
                run("removing the file of variables", move || {
                    if inside {
                        file::remove(&worktree, &relative).map_err(|err| chain(&err))?;
                    }
                    match list {
                        Some(list) => file::include(&list, &relative).map_err(|err| chain(&err)),
                        None => Ok(()),
                    }
                })
                .await?;
                // A new file of that name is the user's work, and is saved.
                match &self.options.tree {
                    Some(tree) => tree.leave_out(&path, false).await.map(drop),
                    None => Ok(()),
                }
            }
            // Its remaining processes have the session's mark and are ended with all others.
            Step::Hook { .. } => Ok(()),
        }
    }

    async fn engine(&self, service: &str) -> Result<Engine, String> {
        let socket = self.options.docker.as_ref();
        let socket = socket.ok_or_else(|| "this daemon was given no Docker engine".to_owned())?;
        Engine::connect(socket, service).await.map_err(|err| chain(&err))
    }

    /// Whether another session of this data directory needs the same line in the same list.
    fn others_exclude(&self, session: &str, list: &Path, relative: &Path) -> bool {
        self.sessions().iter().filter(|(other, _)| other != session).any(|(other, _)| {
            State::read(&self.dir(other)).is_ok_and(|state| {
                state.steps.values().filter(|noted| !noted.undone).any(|noted| {
                    matches!(
                        &noted.step,
                        Step::EnvFile { relative: file, excluded: Some(other), .. }
                            if file == relative && other == list
                    )
                })
            })
        })
    }
}

/// Whether the directory of this file still exists in the worktree: the session may have replaced
/// it by a link. No process of the session is running now.
fn is_inside(state: &State, file: &Path) -> bool {
    let top = state.tree().map(|tree| tree.path.as_path()).or(state.place.as_deref());
    let real = |path: Option<&Path>| path.and_then(|path| path.canonicalize().ok());
    match (real(top), real(file.parent())) {
        (Some(top), Some(parent)) => parent.starts_with(top),
        (None, _) | (_, None) => false,
    }
}

async fn run(
    task: &'static str,
    work: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Result<(), String> {
    match blocking(task, work).await {
        Ok(done) => done,
        Err(err) => Err(err.to_string()),
    }
}

/// Removes a directory for temporary files if its mark says that it is this session's, or if it
/// is empty: its maker died before it could mark it. A mark of which only the beginning is there was
/// written by a maker that died meanwhile.
pub(crate) fn remove_temp(path: &Path, mark: &str) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(err),
    };
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it is not a directory of ours"));
    }
    match std::fs::read_to_string(path.join(TEMP_MARK)) {
        Ok(read) if mark.starts_with(&read) => gone(empty(path))?,
        Ok(_) => return Err(io::Error::other("it is another session's")),
        Err(_) => {}
    }
    gone(std::fs::remove_dir(path))
}

/// Removes the contents, the mark last, so that an interrupted removal can be continued. The
/// interrupted task may still be active when the next begins.
fn empty(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == TEMP_MARK {
            continue;
        }
        let (path, kind) = (entry.path(), gone_or(entry.file_type())?);
        match kind {
            None => {}
            Some(kind) if kind.is_dir() => gone(std::fs::remove_dir_all(path))?,
            Some(_) => gone(std::fs::remove_file(path))?,
        }
    }
    gone(std::fs::remove_file(dir.join(TEMP_MARK)))
}

/// It is no error if the path does not exist any more.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    gone_or(removed).map(drop)
}

fn gone_or<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_removed_even_if_its_marker_was_written_partly() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("ovm-1");
        for (mark, is_ours) in [
            (None, true),
            (Some(""), true),
            (Some("the ma"), true),
            (Some("the mark"), true),
            (Some("the mark of another"), false),
            (Some("another"), false),
        ] {
            std::fs::create_dir(&path).unwrap();
            if let Some(mark) = mark {
                std::fs::write(path.join(TEMP_MARK), mark).unwrap();
            }
            assert_eq!(remove_temp(&path, "the mark").is_ok(), is_ours, "{mark:?}");
            assert_eq!(path.exists(), !is_ours, "{mark:?}");
            if path.exists() {
                std::fs::remove_dir_all(&path).unwrap();
            }
        }
    }
}
