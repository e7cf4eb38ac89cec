//! Environments of sessions as callers see them: the work in one, and decisions about it.

mod removal;
mod rest;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overmind_core::command::StopHow;
use overmind_core::ids::SessionId;
use overmind_core::room::history::{RoomSnapshot, RoomUndone};
use overmind_core::room::stay::{RoomDecision, RoomPhase};
use overmind_core::room::{
    Leak, RoomClosed, RoomDone, RoomError, RoomErrorKind, RoomMade, RoomOrder, RoomOutcome,
    RoomSandbox, RoomWhen, RoomWish, RoomWork, Rooms, about,
};
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::session::{Recorded, STOP_GRACE_MS, Spec};
use overmind_core::store::{EventQuery, StreamId};
use overmind_core::time::Timestamp;

use crate::Engine;
use crate::caller::Caller;
use crate::cortex::Order;
use crate::error::EngineError;

/// Longest name of a revision or branch, in bytes.
const NAME_BYTES: usize = 250;
/// How long a cancel waits for the removal of an environment before it returns anyway.
const GIVING_BACK: Duration = Duration::from_secs(10);

impl From<RoomError> for EngineError {
    fn from(err: RoomError) -> Self {
        let RoomError { kind, message } = err;
        match kind {
            RoomErrorKind::Project => Self::invalid("", message),
            RoomErrorKind::Failed => Self::Unavailable { message },
            RoomErrorKind::NotFound => Self::NotFound { message },
            RoomErrorKind::Conflict => Self::conflict(message),
            RoomErrorKind::Untrusted => Self::Untrusted { message },
        }
    }
}

/// Sessions whose work is being decided on.
#[derive(Debug, Default)]
pub(crate) struct Decisions(Mutex<HashSet<SessionId>>);

impl Decisions {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<SessionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One decision in progress; another one about the same work is refused until this is dropped.
struct Deciding {
    decisions: Arc<Decisions>,
    session: SessionId,
}

impl Deciding {
    fn begin(decisions: &Arc<Decisions>, session: SessionId) -> Result<Self, EngineError> {
        if !decisions.lock().insert(session) {
            let message = "another decision over this run's work is being carried out";
            return Err(EngineError::conflict(message));
        }
        Ok(Self { decisions: Arc::clone(decisions), session })
    }
}

impl Drop for Deciding {
    fn drop(&mut self) {
        self.decisions.lock().remove(&self.session);
    }
}

/// A session's environment, in the form of the port.
struct Stay {
    order: RoomOrder,
    made: RoomMade,
    closed: Option<RoomClosed>,
}

impl Engine {
    pub(crate) fn rooms(&self) -> Result<&Arc<dyn Rooms>, EngineError> {
        let message = "this server makes no rooms";
        self.rooms.as_ref().ok_or_else(|| EngineError::Unavailable { message: message.into() })
    }

    /// The environment request of a new session; `None` means that it gets no environment. A
    /// session without a project cannot have one.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if the request cannot be met.
    pub(crate) fn room_wish(
        &self,
        wish: Option<RoomWish>,
        project: bool,
    ) -> Result<Option<RoomWish>, EngineError> {
        let special = wish.as_ref().is_some_and(|wish| {
            wish.when == RoomWhen::Always || wish.base.is_some() || wish.carry_changes
        });
        if !project {
            let message =
                "an environment is made for a project: name its directory with `workspace`";
            return if special { Err(EngineError::invalid("room", message)) } else { Ok(None) };
        }
        let wish = wish.unwrap_or_default();
        if let Some(base) = &wish.base {
            check_name("room.base", base)?;
        }
        match (&self.rooms, wish.when) {
            (_, RoomWhen::Never) => Ok(None),
            (Some(_), RoomWhen::Auto | RoomWhen::Always) => Ok(Some(wish)),
            (None, RoomWhen::Auto) if !special => Ok(None),
            (None, RoomWhen::Auto | RoomWhen::Always) => {
                let message =
                    "this server makes no environments: its runs work where they are started";
                Err(EngineError::invalid("room", message))
            }
        }
    }

    /// A session's current or former environment.
    async fn stay(&self, row: &SessionRow) -> Result<Stay, EngineError> {
        let room = row.room.as_ref().ok_or_else(|| {
            let message =
                format!("Run has no environment of its own: it works in {} itself", row.workspace);
            EngineError::conflict(message)
        })?;
        let made = room.made.clone().ok_or_else(|| {
            EngineError::conflict(match room.phase {
                RoomPhase::Preparing => "the environment of the run is still being made",
                RoomPhase::Ready
                | RoomPhase::Closing
                | RoomPhase::Closed
                | RoomPhase::Kept
                | RoomPhase::Failed
                | RoomPhase::Left => {
                    "the environment of the run was never made, so nothing was done in it"
                }
            })
        })?;
        let spec = self.spec_of(row.id).await?;
        let (wish, about) = (spec.room.unwrap_or_default(), about(&spec.task));
        let (session, name, project) = (row.id, row.name.clone(), row.workspace.clone().into());
        let sandbox = RoomSandbox::default();
        let agent = spec.agent.name.clone();
        let order = RoomOrder { session, name, about, agent, project, wish, sandbox, before: None };
        Ok(Stay { order, made, closed: room.closed.clone() })
    }

    pub(crate) async fn spec_of(&self, id: SessionId) -> Result<Spec, EngineError> {
        let stream = Some(StreamId::Session(id));
        let query = EventQuery { stream, after: 0, kinds: &["run.queued"], limit: 1 };
        let first = self.cortex.store.events(query).await?.pop();
        match first.map(|first| Recorded::decode(&first.kind, &first.payload)) {
            Some(Ok(Recorded::Queued(spec))) => Ok(*spec),
            Some(_) | None => Err(EngineError::not_found("Run")),
        }
    }

    /// The work of a session in its worktree, compared with its first commit.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if it has no environment, none that was made, or its work is
    /// merged; [`EngineError::NotFound`] if nothing of its work is left.
    pub async fn session_work(&self, by: &Caller, id: SessionId) -> Result<RoomWork, EngineError> {
        self.reads(by, Role::Viewer, id).await?;
        let row = self.find_session(id).await?;
        let Stay { order, made, closed } = self.stay(&row).await?;
        let work = self.rooms()?.work(&order, &made, closed.as_ref()).await;
        if work.as_ref().map_or(true, |work| work.files == 0 && work.commits == 0) {
            // The location is more useful than the message that no work is left to decide.
            merged_already(&row)?;
        }
        Ok(work?)
    }

    /// Executes a decision about a session's work, and records it; `message` is the message of a
    /// commit that is made for it. An idle session is ended first. A merge that changes files which
    /// other programs run by themselves is refused unless all of them are in `accept`. Only
    /// [`RoomDone::PrBranch`] is possible while the session is working.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] while its command runs or its environment is being removed, if it
    /// has no environment, if another decision is being executed, and for a merge with conflicts.
    pub async fn session_done(
        &self,
        by: &Caller,
        id: SessionId,
        what: RoomDone,
        message: Option<String>,
        accept: &[String],
    ) -> Result<(SessionRow, RoomDecision), EngineError> {
        by.require(Role::Operator)?;
        self.require_place_of(by, id).await?;
        match &what {
            RoomDone::Merge { into: Some(name) } => check_name("merge.into", name)?,
            RoomDone::PrBranch { name: Some(name) } => check_name("pr_branch.name", name)?,
            RoomDone::Merge { into: None }
            | RoomDone::PrBranch { name: None }
            | RoomDone::Keep
            | RoomDone::Park
            | RoomDone::Discard => {}
        }
        let _deciding = Deciding::begin(&self.decisions, id)?;
        let row = self.find_session(id).await?;
        let mut merged = None;
        let row = match (row.status, &what) {
            (SessionStatus::Idle, RoomDone::PrBranch { .. }) => row,
            (SessionStatus::Idle, RoomDone::Merge { .. }) => {
                // The merge comes before the end: if it fails, the session continues, to solve the
                // conflicts.
                merged = Some(self.carried_out(&row, &what, message.as_deref(), accept).await?);
                self.concluded(row, by).await?
            }
            (SessionStatus::Idle, _) => self.concluded(row, by).await?,
            _ => row,
        };
        merged_already(&row)?;
        if let Some(outcome) = nothing_done(&row, &what) {
            let (by, at) = (by.name.clone(), self.cortex.clock.now());
            let decision = RoomDecision { what, by, at, outcome };
            let row = self.cortex.room_done(id, decision.clone()).await?;
            return Ok((row, decision));
        }
        if !row.status.is_terminal() {
            let phase = row.room.as_ref().map(|room| room.phase);
            if phase == Some(RoomPhase::Closing) {
                let message =
                    "Run is ending: its environment is being released; try again when it has ended";
                return Err(EngineError::conflict(message));
            }
            if !matches!(what, RoomDone::PrBranch { .. }) {
                let message = "Run has not ended: stop it first, or wait for it";
                return Err(EngineError::conflict(message));
            }
        }
        let mut outcome = self.carried_out(&row, &what, message.as_deref(), accept).await?;
        if let Some(merged) = merged.filter(|_| outcome.commit.is_none()) {
            // All of it was merged before the end, which is what is reported.
            let RoomOutcome { kept, warnings, .. } = outcome;
            outcome = RoomOutcome { kept, warnings, ..merged };
        }
        let (by, at) = (by.name.clone(), self.cortex.clock.now());
        let decision = RoomDecision { what, by, at, outcome };
        let row = self.cortex.room_done(id, decision.clone()).await?;
        Ok((row, decision))
    }

    /// Executes a decision about a session's work, whether its environment still exists or not.
    async fn carried_out(
        &self,
        row: &SessionRow,
        what: &RoomDone,
        message: Option<&str>,
        accept: &[String],
    ) -> Result<RoomOutcome, EngineError> {
        let Stay { mut order, made, closed } = self.stay(row).await?;
        if let Some(message) = message {
            self.no_secret("message", message)?;
            message.trim().clone_into(&mut order.about);
        }
        if matches!(what, RoomDone::Merge { .. }) {
            let work = self.rooms()?.work(&order, &made, closed.as_ref()).await?;
            check_accepted(&work, accept)?;
        }
        Ok(self.rooms()?.done(&order, &made, closed.as_ref(), what.clone()).await?)
    }

    /// Saves undecided work of sessions that ended before `before` on their branches. Returns how
    /// many there were; a failure is logged, and that work stays.
    ///
    /// # Errors
    ///
    /// Fails if the worktrees or the sessions cannot be listed.
    pub async fn park_undecided(&self, by: &Caller, before: Timestamp) -> Result<u32, EngineError> {
        let Some(rooms) = &self.rooms else { return Ok(0) };
        let mut parked = 0;
        for id in rooms.kept().await? {
            let Some(row) = self.cortex.store.session_fetch(id).await? else { continue };
            let old = row.finished_at.is_some_and(|at| at < before);
            if !old || !row.room.as_ref().is_some_and(|room| room.is_undecided()) {
                continue;
            }
            match self.session_done(by, id, RoomDone::Park, None, &[]).await {
                Ok(_) => parked += 1,
                Err(err) => {
                    tracing::warn!(session.id = %id, error = %err, "its worktree stays undecided");
                }
            }
        }
        Ok(parked)
    }

    /// Restores the files of a session's worktree from a snapshot: that before step `to`, or with
    /// that whole label; without it, the last one before the latest change.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] while it works, if it has no worktree (any more), if nothing was
    /// changed, and while its work is being decided on; [`EngineError::Invalid`] if there is no
    /// such snapshot.
    pub async fn session_undo(
        &self,
        by: &Caller,
        id: SessionId,
        to: Option<String>,
    ) -> Result<RoomUndone, EngineError> {
        by.require(Role::Operator)?;
        self.require_place_of(by, id).await?;
        let _deciding = Deciding::begin(&self.decisions, id)?;
        let row = self.find_session(id).await?;
        let Stay { order, made, closed } = self.stay(&row).await?;
        let name = &row.name;
        match row.status {
            SessionStatus::Queued | SessionStatus::Running => {
                let message = format!(
                    "{name} is working: its files are brought back only while nothing changes them. \
                     Try again when it waits for an answer or has ended; a run that was started with \
                     --keep keeps its files then"
                );
                return Err(EngineError::conflict(message));
            }
            SessionStatus::AwaitingInput
            | SessionStatus::AwaitingApproval
            | SessionStatus::Idle
            | SessionStatus::Succeeded
            | SessionStatus::Failed
            | SessionStatus::Canceled => {}
        }
        let rooms = self.rooms()?;
        // A number after its last step is the name of a snapshot, or nothing.
        let beyond = |to: &String| to.parse::<u32>().is_ok_and(|step| step > row.steps);
        let to = to.map(|to| if beyond(&to) { format!("{to}.0") } else { to });
        let undone = rooms.undo(&order, &made, closed.as_ref(), to.as_deref()).await;
        let undone = undone.map_err(|err| match err.kind {
            RoomErrorKind::Project => EngineError::invalid("to", err.message),
            RoomErrorKind::Failed
            | RoomErrorKind::NotFound
            | RoomErrorKind::Conflict
            | RoomErrorKind::Untrusted => err.into(),
        })?;
        self.cortex.room_undone(id, by.name.clone(), undone.clone()).await?;
        Ok(undone)
    }

    /// The files of a session's worktree before a step, as the start of a fork. `None` if it had no
    /// worktree, or they were not saved.
    pub(crate) async fn files_before(
        &self,
        row: &SessionRow,
        step: u32,
    ) -> Result<Option<RoomSnapshot>, EngineError> {
        let Ok(Stay { order, made, closed: _ }) = self.stay(row).await else { return Ok(None) };
        Ok(self.rooms()?.files_at(&order, &made, step).await?)
    }

    /// Everything on the machine that belongs to no running session.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unavailable`] if this server makes no environments.
    pub async fn rooms_leaks(&self, by: &Caller) -> Result<Vec<Leak>, EngineError> {
        by.require(Role::Operator)?;
        Ok(self.rooms()?.leaks().await)
    }

    /// Removes what certainly belongs to this server, and returns the rest.
    ///
    /// # Errors
    ///
    /// The same as for [`Self::rooms_leaks`].
    pub async fn rooms_fix(&self, by: &Caller) -> Result<Vec<Leak>, EngineError> {
        by.require(Role::Admin)?;
        Ok(self.rooms()?.fix().await)
    }

    /// Ends an idle session, and waits until it has ended.
    async fn concluded(&self, row: SessionRow, by: &Caller) -> Result<SessionRow, EngineError> {
        let how = StopHow::Stop { grace_ms: STOP_GRACE_MS };
        let row = self.cortex.order(row.id, Order::Stop { how, by: by.name.clone() }).await?;
        let longest = GIVING_BACK + Duration::from_millis(u64::from(STOP_GRACE_MS));
        self.ended_within(row, longest).await
    }

    /// Waits, for a short time, until an ending session has ended.
    pub(crate) async fn ended(&self, row: SessionRow) -> Result<SessionRow, EngineError> {
        self.ended_within(row, GIVING_BACK).await
    }

    async fn ended_within(
        &self,
        row: SessionRow,
        longest: Duration,
    ) -> Result<SessionRow, EngineError> {
        let id = row.id;
        if row.status.is_terminal() {
            return Ok(row);
        }
        let mut watch = self.session_watch(id);
        let wait = async {
            loop {
                watch.borrow_and_update();
                let row = self.find_session(id).await?;
                if row.status.is_terminal() || watch.changed().await.is_err() {
                    return Ok(row);
                }
            }
        };
        match tokio::time::timeout(longest, wait).await {
            Ok(row) => row,
            Err(_) => self.find_session(id).await,
        }
    }
}

/// Refuses work that changes files which other programs run by themselves, unless they were
/// accepted.
fn check_accepted(work: &RoomWork, accept: &[String]) -> Result<(), EngineError> {
    let unseen: Vec<String> = work
        .runs_later
        .iter()
        .filter(|(path, _)| !accept.contains(path))
        .map(|(path, why)| format!("{path}: {why}"))
        .collect();
    if unseen.is_empty() {
        return Ok(());
    }
    Err(EngineError::conflict(format!(
        "nothing was merged: the work changes files that run by themselves later. Look at them with \
         `overmind work`, then accept them (`done --merge --yes`):\n{}",
        unseen.join("\n")
    )))
}

/// Checks that `name` can be a revision or a branch, and is never an option of git.
fn check_name(field: &str, name: &str) -> Result<(), EngineError> {
    let odd = name.is_empty() || name.starts_with('-') || name.contains(char::is_control);
    if odd || name.len() > NAME_BYTES {
        let message = format!(
            "must be 1 to {NAME_BYTES} bytes without control characters, and not begin with `-`"
        );
        return Err(EngineError::invalid(field, message));
    }
    Ok(())
}

/// Refuses a decision about work that was completely merged and not continued.
fn merged_already(row: &SessionRow) -> Result<(), EngineError> {
    let done = row.room.as_ref().and_then(|room| room.done.as_ref());
    let Some(done) = done.filter(|_| row.status.is_terminal()) else { return Ok(()) };
    let RoomOutcome { branch, commit, kept, .. } = &done.outcome;
    match (&done.what, branch, commit, kept) {
        (RoomDone::Merge { .. }, Some(branch), Some(commit), None) => {
            let name = &row.name;
            let message = format!("{name} is merged already: {branch} has its work at {commit}");
            Err(EngineError::conflict(message))
        }
        _ => Ok(()),
    }
}

/// The result of a decision about a run that ended before its environment was made: it has no work.
/// `None` if there may be some, and for decisions that need some.
fn nothing_done(row: &SessionRow, what: &RoomDone) -> Option<RoomOutcome> {
    let room = row.room.as_ref().filter(|room| room.made.is_none())?;
    let ended = row.status.is_terminal() && room.phase != RoomPhase::Preparing;
    match what {
        RoomDone::Merge { .. } | RoomDone::Discard | RoomDone::Park if ended => Some(RoomOutcome {
            said: format!("{} ended before it began to work: there was nothing to do.", row.name),
            ..RoomOutcome::default()
        }),
        _ => None,
    }
}
