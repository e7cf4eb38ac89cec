//! Environments: created before a command begins, removed when no process of its session is left.
//!
//! Actions on one session's environment are done in the order of the requests, each after the one
//! before has ended or was dropped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::attest::Attested;
use overmind_core::bus::{Assignment, HiveBus, ToCortex};
use overmind_core::effect::EffectResult;
use overmind_core::enclosure::Lent;
use overmind_core::ids::{EffectId, SessionId};
use overmind_core::process::{NoteKind, Processes};
use overmind_core::record::Name;
use overmind_core::room::history::RoomMark;
use overmind_core::room::stay::{RoomAct, RoomReport, RoomWord};
use overmind_core::room::{
    RoomClosed, RoomEnd, RoomError, RoomErrorKind, RoomProgress, RoomSink, RoomWitness, Rooms,
};
use overmind_core::session::given::FILES_VARIABLE;
use overmind_core::tool::ToolOutcome;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Done, Hive};

/// Most steps and warnings of one action that are reported.
const MOST_WORDS: u32 = 200;
/// Most lines of output of one action that go to the session's log.
const MOST_LINES: u32 = 2_000;
/// How long the last lines of an action's output may take to be written.
const LAST_LINES: Duration = Duration::from_secs(5);
/// A step of a removal that is faster is not recorded in the session's log.
const QUICK: Duration = Duration::from_secs(1);
/// How long to wait for killed processes before their environment is removed.
const GONE: Duration = Duration::from_secs(60);
/// The time limit of a removal. Its hooks and services have their own limits.
const CLOSING: Duration = Duration::from_secs(15 * 60);

/// Directories that the server has made for a session's commands, and the variables that name them.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) lent: Vec<Lent>,
}

impl Given {
    fn add(&mut self, variable: String, lent: Lent) {
        self.variables.push((variable, lent.path.display().to_string()));
        self.lent.push(lent);
    }
}

/// The environments of this hive.
#[derive(Debug)]
pub(crate) struct Stays {
    rooms: Arc<dyn Rooms>,
    /// Holds the logs of sessions.
    processes: Option<Arc<dyn Processes>>,
    /// Whether environments of an earlier daemon have been checked.
    kept: watch::Sender<bool>,
    /// The end of the last requested action, by session.
    turns: Mutex<HashMap<SessionId, CancellationToken>>,
}

/// A place in the sequence of actions on one environment. Dropping it lets the next begin.
#[derive(Debug)]
pub(crate) struct Turn {
    before: Option<CancellationToken>,
    _over: DropGuard,
}

type Progress = mpsc::UnboundedSender<Option<RoomProgress>>;

/// Forwards attestations of environments' sandboxes. It waits for capacity of the bus, so that a
/// report is sent before all later ones. Environments may outlive the hive; then nobody receives
/// it.
#[derive(Debug)]
struct Witness(Weak<dyn HiveBus>);

impl RoomWitness for Witness {
    fn attested(&self, session: SessionId, of: String, attested: Arc<Attested>) -> Fut<'_, ()> {
        Box::pin(async move {
            let Some(bus) = self.0.upgrade() else { return };
            if let Err(err) = bus.send(ToCortex::RoomAttested { session, of, attested }).await {
                tracing::debug!(error = %err, "the Cortex does not hear");
            }
        })
    }
}

impl Stays {
    pub(crate) fn new(
        rooms: Arc<dyn Rooms>,
        processes: Option<Arc<dyn Processes>>,
        bus: &Arc<dyn HiveBus>,
    ) -> Self {
        rooms.witness(Arc::new(Witness(Arc::downgrade(bus))));
        Self { rooms, processes, kept: watch::Sender::new(false), turns: Mutex::default() }
    }

    fn turns(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, CancellationToken>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take it when an action is requested, before the next message is handled.
    pub(crate) fn turn(&self, session: SessionId) -> Turn {
        let over = CancellationToken::new();
        let before = self.turns().insert(session, over.clone());
        Turn { before, _over: over.drop_guard() }
    }

    /// Forgets a session that has ended.
    pub(crate) fn forget(&self, session: SessionId) {
        self.turns().remove(&session);
    }

    /// Keeps the environments that are still needed, and removes all others. `living` are sessions
    /// with running commands, which read their context files.
    pub(crate) async fn keep(&self, wanted: Vec<SessionId>, living: Vec<SessionId>) {
        self.rooms.keep_lent(wanted.iter().copied().chain(living).collect()).await;
        self.rooms.keep(wanted).await;
        self.kept.send_replace(true);
    }

    async fn kept(&self) {
        // The sender exists as long as this value.
        let _ = self.kept.subscribe().wait_for(|kept| *kept).await;
    }

    /// The variables of a session's environment.
    ///
    /// # Errors
    ///
    /// The same as for [`Rooms::environment`].
    pub(crate) async fn environment(
        &self,
        session: SessionId,
    ) -> Result<Vec<(String, String)>, RoomError> {
        self.kept().await;
        self.rooms.environment(session).await
    }

    /// Additional settings of the server for a session's commands, besides its environment.
    ///
    /// # Errors
    ///
    /// The same as for [`Rooms::lend`] and [`Rooms::claim`].
    pub(crate) async fn given(&self, assignment: &Assignment) -> Result<Given, RoomError> {
        let mut given = Given::default();
        if !assignment.files.is_empty() {
            self.kept().await;
            let files = assignment.files.to_vec();
            let path = self.rooms.lend(assignment.session, files).await?;
            given.add(FILES_VARIABLE.to_owned(), Lent { path, read_only: true });
        }
        for claim in assignment.claims.iter().filter(|claim| claim.directory) {
            let failed = |err| RoomError::new(RoomErrorKind::Failed, format!("{err}"));
            let name = Name::parse(&claim.name).map_err(failed)?;
            let path = self.rooms.claim(assignment.colony, name).await?;
            given.add(claim.variable(), Lent { path, read_only: claim.read_only });
        }
        Ok(given)
    }

    /// Removes a session's context files; they are made again if needed.
    pub(crate) async fn returned(&self, session: SessionId) {
        self.rooms.returned(session).await;
    }

    async fn note(&self, session: SessionId, text: &str) {
        let Some(processes) = &self.processes else { return };
        for line in text.lines() {
            let done = processes.note(session, NoteKind::Note, line.to_owned()).await;
            if let Err(err) = done {
                tracing::warn!(session.id = %session, error = %err, "a line is not in the log");
                return;
            }
        }
    }
}

/// Forwards messages up to the limits; further ones are counted and dropped.
fn sink(said: Progress) -> RoomSink {
    let (words, lines) = (AtomicU32::new(0), AtomicU32::new(0));
    Arc::new(move |progress| {
        let (count, most) = match &progress {
            RoomProgress::Step(_) | RoomProgress::Warning(_) => (&words, MOST_WORDS),
            RoomProgress::Line { .. } => (&lines, MOST_LINES),
        };
        let before = count.fetch_add(1, Ordering::Relaxed);
        if before < most {
            // Nobody receives it: the action was dropped.
            let _ = said.send(Some(progress));
        } else if before == most {
            let text = "there is more, which is left out".to_owned();
            let _ = said
                .send(Some(RoomProgress::Line { source: "environment".to_owned(), line: text }));
        }
    })
}

impl Hive {
    /// Makes or removes a session's environment, and reports the progress.
    ///
    /// # Cancel safety
    ///
    /// If dropped, an environment is partly made or removed: [`RoomAct::Close`] continues from
    /// there.
    pub(super) async fn room(
        &self,
        assignment: &Assignment,
        effect: EffectId,
        act: RoomAct,
        turn: Option<&Turn>,
    ) -> RoomReport {
        let session = assignment.session;
        let (Some(stays), Some(turn)) = (&self.stays, turn) else {
            let message = "this server makes no rooms: it was started without them";
            let none = RoomError::new(RoomErrorKind::Failed, message);
            return match act {
                RoomAct::Prepare(_) => RoomReport::Prepared(Err(none)),
                RoomAct::Close { .. } => RoomReport::Closed(Err(none)),
            };
        };
        if let Some(before) = &turn.before {
            before.cancelled().await;
        }
        stays.kept().await;
        let (said, mut heard) = mpsc::unbounded_channel();
        let sink = sink(said.clone());
        let closing = matches!(act, RoomAct::Close { .. });
        let work = async {
            let report = match act {
                RoomAct::Prepare(order) => {
                    let made = stays.rooms.prepare(*order, sink).await;
                    RoomReport::Prepared(made.map(Box::new))
                }
                RoomAct::Close { end } => {
                    self.nothing_lives(session).await;
                    RoomReport::Closed(close(stays, session, end, sink).await.map(Box::new))
                }
            };
            let _ = said.send(None);
            report
        };
        let tell = async {
            // A step of the removal is routine, so it is only reported if it takes long.
            let mut held: Option<String> = None;
            loop {
                let next = match held.is_some() {
                    false => heard.recv().await,
                    true => match tokio::time::timeout(QUICK, heard.recv()).await {
                        Ok(next) => next,
                        Err(_) => {
                            let line = held.take().unwrap_or_default();
                            stays.note(session, &format!("takes a while: {line}")).await;
                            continue;
                        }
                    },
                };
                let Some(Some(progress)) = next else { break };
                let line = told(&progress, closing);
                match &progress {
                    RoomProgress::Step(_) if closing => held = Some(line),
                    RoomProgress::Step(_)
                    | RoomProgress::Warning(_)
                    | RoomProgress::Line { .. } => {
                        held = None;
                        stays.note(session, &line).await;
                    }
                }
                if let Some(word) = RoomWord::of(&progress) {
                    let epoch = assignment.epoch;
                    self.say(ToCortex::Room { session, epoch, effect, word }).await;
                }
            }
        };
        tokio::pin!(work, tell);
        let report = tokio::select! {
            biased;
            report = &mut work => report,
            // It ends only after the work has sent its last message.
            () = &mut tell => return work.await,
        };
        if tokio::time::timeout(LAST_LINES, tell).await.is_err() {
            tracing::warn!(session.id = %session, "the last lines about a room are lost");
        }
        if let RoomReport::Prepared(Err(err)) | RoomReport::Closed(Err(err)) = &report {
            stays.note(session, &format!("the environment failed: {err}")).await;
        }
        report
    }

    /// Saves the files of a session's environment for `overmind undo`, and reports what was saved.
    /// A failure is reported and does not stop anything.
    ///
    /// # Cancel safety
    ///
    /// If dropped, they may or may not be saved.
    pub(super) async fn save_files(
        &self,
        assignment: &Assignment,
        effect: EffectId,
        mark: RoomMark,
    ) {
        let (session, epoch) = (assignment.session, assignment.epoch);
        let Some(stays) = self.stays.as_ref().filter(|_| assignment.room.is_some()) else { return };
        stays.kept().await;
        let word = match stays.rooms.snapshot(session, mark).await {
            Ok(None) => return,
            Ok(Some(snapshot)) => RoomWord::Saved(snapshot),
            Err(err) => RoomWord::Warning(format!(
                "the files as they are now were not saved, so `overmind undo` cannot come back to \
                 them: {err}"
            )),
        };
        self.say(ToCortex::Room { session, epoch, effect, word }).await;
    }

    /// Restores the files of a session's environment to their state before a call, at `step`, that
    /// was interrupted.
    ///
    /// # Errors
    ///
    /// The result of the call if they could not be restored: it is unknown whether the call was
    /// done.
    ///
    /// # Cancel safety
    ///
    /// If dropped, some files are restored.
    pub(super) async fn take_back(
        &self,
        assignment: &Assignment,
        effect: EffectId,
        step: u32,
    ) -> Result<(), Done> {
        let (session, epoch) = (assignment.session, assignment.epoch);
        let Some(stays) = self.stays.as_ref().filter(|_| assignment.room.is_some()) else {
            return Ok(());
        };
        stays.kept().await;
        let failed = match stays.rooms.restore(session, step).await {
            Ok(None) => return Ok(()),
            Ok(Some(undone)) if undone.failed.is_empty() => {
                let text = format!("the files are as they were at snapshot {} again", undone.to);
                let word = RoomWord::Step(text);
                self.say(ToCortex::Room { session, epoch, effect, word }).await;
                return Ok(());
            }
            Ok(Some(undone)) => undone.failed.join("; "),
            Err(err) => err.to_string(),
        };
        let message = format!(
            "the server stopped while this ran, and the files that it may have changed could not be \
             brought back: {failed}; look at them before it is done again"
        );
        let result = json!({"ok": false, "error": {"code": "unknown_outcome", "message": message}});
        let outcome = ToolOutcome { allowed: true, result };
        Err(Done::of(EffectResult::Tool { outcome, latency_ms: 0 }))
    }

    /// Waits, for a limited time, until no process of the session is running.
    async fn nothing_lives(&self, session: SessionId) {
        let Some(lives) = &self.lives else { return };
        if tokio::time::timeout(GONE, lives.gone(session)).await.is_err() {
            tracing::warn!(
                session.id = %session, "its room is given back while a process of it may live"
            );
        }
    }
}

/// A report about an environment as a line of its session's log.
fn told(progress: &RoomProgress, closing: bool) -> String {
    match progress {
        RoomProgress::Step(step) => format!("the environment: {step}"),
        RoomProgress::Warning(warning) if closing => format!("warning: {warning}"),
        RoomProgress::Warning(warning) => format!("the environment: warning: {warning}"),
        RoomProgress::Line { source, line } => format!("{source}: {line}"),
    }
}

async fn close(
    stays: &Stays,
    session: SessionId,
    end: RoomEnd,
    sink: RoomSink,
) -> Result<RoomClosed, RoomError> {
    let closing = stays.rooms.close(session, end, sink);
    tokio::time::timeout(CLOSING, closing).await.unwrap_or_else(|_| {
        let message = format!(
            "giving it back took longer than {} minutes and was left: `overmind doctor` says what \
             is left of it",
            CLOSING.as_secs() / 60
        );
        Err(RoomError::new(RoomErrorKind::Failed, message))
    })
}
