//! Rooms: made before a command begins, given back when nothing of its session lives any more.
//!
//! Whatever is done about one session's room is done in the order in which it was asked for, each
//! after the one before has ended or was dropped.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::attest::Attested;
use overmind_core::bus::{Assignment, HiveBus, ToCortex};
use overmind_core::effect::EffectResult;
use overmind_core::ids::{EffectId, SessionId};
use overmind_core::process::{NoteKind, Processes};
use overmind_core::room::history::RoomMark;
use overmind_core::room::stay::{RoomAct, RoomReport, RoomWord};
use overmind_core::room::{
    RoomClosed, RoomEnd, RoomError, RoomErrorKind, RoomProgress, RoomSink, RoomWitness, Rooms,
};
use overmind_core::tool::ToolOutcome;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Done, Hive};

/// Steps and warnings that are told of one act on a room.
const MOST_WORDS: u32 = 200;
/// Lines of output of one act that go into the session's log.
const MOST_LINES: u32 = 2_000;
/// How long the last of an act's output may take to be written.
const LAST_LINES: Duration = Duration::from_secs(5);
/// A step of giving a room back that takes no longer is not told in the session's log.
const QUICK: Duration = Duration::from_secs(1);
/// How long processes that are being killed are waited for before their room is given back.
const GONE: Duration = Duration::from_secs(60);
/// How long giving a room back may take. Its hooks and services have bounds of their own.
const CLOSING: Duration = Duration::from_secs(15 * 60);

/// The rooms of this hive.
#[derive(Debug)]
pub(crate) struct Stays {
    rooms: Arc<dyn Rooms>,
    /// Keeps the logs of sessions.
    processes: Option<Arc<dyn Processes>>,
    /// Whether what an earlier process left has been judged.
    kept: watch::Sender<bool>,
    /// The end of what was last asked for, by session.
    turns: Mutex<HashMap<SessionId, CancellationToken>>,
}

/// A place in the order of what is done about one room. Dropped, the next one begins.
#[derive(Debug)]
pub(crate) struct Turn {
    before: Option<CancellationToken>,
    _over: DropGuard,
}

type Progress = mpsc::UnboundedSender<Option<RoomProgress>>;

/// Passes on what sandboxes of rooms were measured to give. It waits for room on the bus, so what it
/// was told of leaves before anything that is said later. Rooms may outlive the hive: then nobody
/// hears it.
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

    /// To be taken when an act is asked for, before the next message is heard.
    pub(crate) fn turn(&self, session: SessionId) -> Turn {
        let over = CancellationToken::new();
        let before = self.turns().insert(session, over.clone());
        Turn { before, _over: over.drop_guard() }
    }

    /// The session has ended.
    pub(crate) fn forget(&self, session: SessionId) {
        self.turns().remove(&session);
    }

    /// Takes up the rooms that are still wanted, and gives all others back.
    /// `living`: sessions whose commands live, which read what they were lent.
    pub(crate) async fn keep(&self, wanted: Vec<SessionId>, living: Vec<SessionId>) {
        self.rooms.keep_lent(wanted.iter().copied().chain(living).collect()).await;
        self.rooms.keep(wanted).await;
        self.kept.send_replace(true);
    }

    async fn kept(&self) {
        // The sender lives as long as this does.
        let _ = self.kept.subscribe().wait_for(|kept| *kept).await;
    }

    /// The variables of a session's room.
    ///
    /// # Errors
    ///
    /// As [`Rooms::environment`].
    pub(crate) async fn environment(
        &self,
        session: SessionId,
    ) -> Result<Vec<(String, String)>, RoomError> {
        self.kept().await;
        self.rooms.environment(session).await
    }

    /// Where the files lie that a session is given by its contexts; `None`: it is given none.
    ///
    /// # Errors
    ///
    /// As [`Rooms::lend`].
    pub(crate) async fn lent(&self, assignment: &Assignment) -> Result<Option<PathBuf>, RoomError> {
        if assignment.files.is_empty() {
            return Ok(None);
        }
        self.kept().await;
        self.rooms.lend(assignment.session, assignment.files.to_vec()).await.map(Some)
    }

    /// What a session was lent is not needed any more, or made anew if it is.
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

/// Hands on what is said, up to the bounds; what comes after them is counted and left out.
fn sink(said: Progress) -> RoomSink {
    let (words, lines) = (AtomicU32::new(0), AtomicU32::new(0));
    Arc::new(move |progress| {
        let (count, most) = match &progress {
            RoomProgress::Step(_) | RoomProgress::Warning(_) => (&words, MOST_WORDS),
            RoomProgress::Line { .. } => (&lines, MOST_LINES),
        };
        let before = count.fetch_add(1, Ordering::Relaxed);
        if before < most {
            // Nobody hears any more: the act was dropped.
            let _ = said.send(Some(progress));
        } else if before == most {
            let text = "there is more, which is left out".to_owned();
            let _ = said
                .send(Some(RoomProgress::Line { source: "environment".to_owned(), line: text }));
        }
    })
}

impl Hive {
    /// Makes a session's room, or gives it back, and tells how it goes meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Dropped, a room is half made or half given back: [`RoomAct::Close`] goes on from there.
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
            // A step of giving it back is routine: it is told when it takes long.
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
            // It ends only after the work has said its last.
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

    /// Saves the files of a session's room for `overmind undo`, and tells what was saved. That it did
    /// not work is told, and keeps nothing from going on.
    ///
    /// # Cancel safety
    ///
    /// Dropped, they are saved or not.
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

    /// Brings the files of a session's room back to what they were before a call, at `step`, that was cut
    /// off.
    ///
    /// # Errors
    ///
    /// What becomes of the call when they could not be brought back: whether it was done is not known.
    ///
    /// # Cancel safety
    ///
    /// Dropped, some files are brought back.
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

    /// Waits, not for ever, until no process of the session lives.
    async fn nothing_lives(&self, session: SessionId) {
        let Some(lives) = &self.lives else { return };
        if tokio::time::timeout(GONE, lives.gone(session)).await.is_err() {
            tracing::warn!(
                session.id = %session, "its room is given back while a process of it may live"
            );
        }
    }
}

/// What is said of a room, as a line of its session's log.
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
