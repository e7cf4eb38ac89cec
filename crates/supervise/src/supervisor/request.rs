//! Sends requests to a supervisor process and waits for the answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overmind_core::process::{NoteKind, ProcessError, ProcessKey, TerminalSize, Usage};
use tokio::sync::oneshot;

use crate::record::{self, Kind};
use crate::supervisor::entry::Entry;
use crate::supervisor::life::{self, ANSWER_WITHIN, Life, Request, Unreached, What};
use crate::supervisor::pulse::State;
use crate::supervisor::{Shared, lost};
use crate::wire::{Answer, Ask, MAX_INPUT};

fn broken(key: ProcessKey, what: &'static str, reason: impl ToString) -> ProcessError {
    ProcessError::Keeper { key, what, reason: reason.to_string() }
}

async fn send(
    entry: &Entry,
    life: &Life,
    what: What,
) -> Result<(u64, oneshot::Receiver<Answer>), ProcessError> {
    let (reply, answer) = oneshot::channel();
    let id = entry.next_id();
    let request = Box::new(Request { id, what, reply: Some(reply) });
    match life.requests.send(request).await {
        Ok(()) => Ok((id, answer)),
        Err(_) => Err(ProcessError::NotAlive(life.started.key)),
    }
}

/// Sends a request and returns the answer.
pub(crate) async fn ask(
    entry: &Entry,
    life: &Life,
    what: &'static str,
    ask: Ask,
) -> Result<Answer, ProcessError> {
    let key = life.started.key;
    let work = async {
        let (_, answer) = send(entry, life, What::Ask(ask)).await?;
        answer.await.map_err(|_| ProcessError::NotAlive(key))
    };
    match tokio::time::timeout(ANSWER_WITHIN, work).await {
        Ok(Ok(Answer::Failed(reason))) => Err(broken(key, what, reason)),
        Ok(answered) => answered,
        Err(_) => Err(broken(key, what, "its keeper does not answer")),
    }
}

pub(crate) async fn usage(entry: &Entry, life: &Life) -> Result<Usage, ProcessError> {
    match ask(entry, life, "usage", Ask::Usage).await? {
        Answer::Usage { cpu_us, resident_bytes, processes } => {
            Ok(Usage { cpu: Duration::from_micros(cpu_us), resident_bytes, processes })
        }
        other @ (Answer::Ok | Answer::Taken(_) | Answer::Failed(_)) => {
            Err(broken(life.started.key, "usage", format!("{other:?}")))
        }
    }
}

pub(crate) async fn resize(
    entry: &Entry,
    life: &Life,
    size: TerminalSize,
    redraw: bool,
) -> Result<(), ProcessError> {
    ask(entry, life, "resizing the terminal", Ask::Resize { size: size.into(), redraw }).await?;
    entry.lock().terminal = Some(size);
    Ok(())
}

/// Cancels a piece of input when its writer stops waiting.
struct InFlight<'a> {
    life: &'a Life,
    entry: &'a Entry,
    id: Option<u64>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let what = What::Ask(Ask::CancelInput { id });
            let request = Box::new(Request { id: self.entry.next_id(), what, reply: None });
            // If the queue is full, the input is accepted or refused without the cancellation.
            let _ = self.life.requests.try_send(request);
        }
    }
}

pub(crate) async fn write(
    entry: &Entry,
    life: &Life,
    bytes: &[u8],
    limit: Duration,
) -> Result<(), ProcessError> {
    let key = life.started.key;
    let until = Instant::now() + limit;
    let left = || until.saturating_duration_since(Instant::now());
    let full = |taken: usize| ProcessError::InputFull { key, taken, given: bytes.len() };
    let Ok(_turn) = tokio::time::timeout(limit, life.input.lock()).await else {
        return Err(full(0));
    };
    let mut taken = 0;
    for piece in bytes.chunks(MAX_INPUT) {
        let sent = tokio::time::timeout(left(), send(entry, life, What::Input(piece.to_vec())));
        let Ok(sent) = sent.await else { return Err(full(taken)) };
        let (id, mut answer) = sent?;
        let mut flight = InFlight { life, entry, id: Some(id) };
        let answered = match tokio::time::timeout(left(), &mut answer).await {
            Ok(answered) => {
                flight.id = None;
                answered
            }
            Err(_) => {
                // This cancels the rest; the answer tells how much was accepted.
                drop(flight);
                let answered = tokio::time::timeout(ANSWER_WITHIN, answer).await;
                answered.map_err(|_| broken(key, "input", "its keeper does not answer"))?
            }
        };
        match answered.map_err(|_| ProcessError::NotAlive(key))? {
            Answer::Taken(count) => {
                let count = usize::try_from(count).unwrap_or(0);
                taken += count;
                if count < piece.len() {
                    return Err(full(taken));
                }
            }
            Answer::Failed(reason) => return Err(ProcessError::InputRefused { key, reason }),
            other @ (Answer::Ok | Answer::Usage { .. }) => {
                return Err(broken(key, "input", format!("{other:?}")));
            }
        }
    }
    Ok(())
}

/// Acknowledges an exit that is recorded elsewhere.
pub(crate) async fn acknowledge(shared: &Arc<Shared>, key: ProcessKey) -> Result<(), ProcessError> {
    let entry = shared.entry(key.session);
    if let Some(entry) = &entry {
        let pulse = entry.pulse.borrow().clone();
        if pulse.epoch == key.epoch {
            match pulse.state {
                State::Live => return Err(broken(key, "acknowledging the end", "it is alive")),
                State::Idle | State::Ended(_) => {}
            }
            let life = entry.lock().life.clone();
            if let Some(life) = life.filter(|life| life.started.key == key) {
                let asked = ask(entry, &life, "acknowledging the end", Ask::Acknowledge).await;
                // The next process may have started meanwhile; its messages are received as long as
                // it is stored here.
                entry.lock().life.take_if(|life| life.started.key == key);
                if asked.is_ok() {
                    // The supervisor process has removed the files itself.
                    let _ = shared.forget(key.session, true);
                    return Ok(());
                }
                // If it has ended meanwhile, it has left a record.
            }
        }
    }
    let dir = shared.dir(key.session);
    if entry.is_none_or(|entry| entry.lock().newest < key.epoch) {
        // This daemon neither started nor adopted the process. Only its socket shows whether it
        // runs, and without the socket nobody could end it.
        match life::reach(&dir, key).await {
            Ok(_) => return Err(broken(key, "acknowledging the end", "it is alive")),
            Err(Unreached::Gone) => {}
            Err(other) => return Err(other.into_error(key)),
        }
    }
    // The data of an idle session is on disk. A running one is kept.
    let _ = shared.forget(key.session, true);
    let removed = tokio::task::spawn_blocking(move || -> std::io::Result<()> {
        let Ok(dir) = record::open_dir(&dir) else { return Ok(()) };
        for kind in Kind::ALL {
            record::remove(&dir, kind, key.epoch)?;
        }
        Ok(())
    });
    match removed.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(err)) => Err(broken(key, "removing its records", err)),
        Err(err) => Err(broken(key, "removing its records", err)),
    }
}

/// Writes a note: through the supervisor process that holds the log, or else here.
pub(crate) async fn note(
    shared: &Arc<Shared>,
    session: overmind_core::ids::SessionId,
    kind: NoteKind,
    text: String,
) -> Result<(), ProcessError> {
    if let Some(entry) = shared.entry(session) {
        let life = entry.lock().life.clone();
        let live = matches!(entry.pulse.borrow().state, State::Live);
        if let Some(life) = life.filter(|_| live) {
            let by = Ask::Note { kind: kind.into(), text: text.clone() };
            if ask(&entry, &life, "writing a marker", by).await.is_ok() {
                return Ok(());
            }
        }
    }
    let dir = shared.dir(session);
    let limits = shared.ground.options.log.into();
    crate::log::follow::blocking(session, move || {
        // There may be something to write before the session's first process.
        super::make_private(&dir)?;
        lost::write_note(&dir, limits, 0, kind, &text)
    })
    .await
}
