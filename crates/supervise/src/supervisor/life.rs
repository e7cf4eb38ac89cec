//! The daemon's side of one supervisor process: a connection, and the task that serves it.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::process::{Ended, ProcessError, ProcessKey, Started, TerminalSize};
use overmind_core::time::Timestamp;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use crate::record::{self, Kind};
use crate::supervisor::entry::Entry;
use crate::supervisor::lost::LostLife;
use crate::supervisor::pulse::{Pulse, State};
use crate::supervisor::queue::{Receiver, Sender, queue};
use crate::supervisor::{Ground, Shared, lost};
use crate::wire::{self, Answer, Ask, Frame, FromKeeper, OLDEST, PROTOCOL, Running, ToKeeper};

/// The time limit for an answer: a supervisor process has one thread and never waits.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A request that the driver passes on.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) what: What,
    /// With `None`, the answer is not needed.
    pub(crate) reply: Option<oneshot::Sender<Answer>>,
}

#[derive(Debug)]
pub(crate) enum What {
    Ask(Ask),
    Input(Vec<u8>),
}

/// Maximum number of requests in progress for one process; further callers wait.
pub(crate) const REQUESTS: usize = 32;

/// A connection that transfers whole frames.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    inbox: Vec<u8>,
    pub(crate) outbox: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, inbox: Vec::new(), outbox: Vec::new() }
    }

    /// The next message. Cancel safe: read bytes are kept.
    pub(crate) async fn hear(&mut self) -> io::Result<FromKeeper> {
        loop {
            match wire::take(&mut self.inbox)? {
                Some(Frame::Message(message)) => return Ok(message),
                // A message of a newer supervisor process, which this daemon does not need.
                Some(Frame::Unknown(_) | Frame::Input { .. }) => continue,
                None => {}
            }
            self.stream.readable().await?;
            let mut piece = [0; 4096];
            match self.stream.try_read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.inbox.extend_from_slice(&piece[..count]),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(err) => return Err(err),
            }
        }
    }

    /// Sends as much of the outbox as possible without waiting; a short message is always sent.
    pub(crate) fn flush_now(&mut self) {
        while let Ok(count @ 1..) = self.stream.try_write(&self.outbox) {
            self.outbox.drain(..count);
        }
    }

    /// Sends the outbox. Cancel safe: unsent bytes are kept.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        while !self.outbox.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(&self.outbox) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(err) => return Err(err),
            }
        }
        self.outbox = Vec::new();
        Ok(())
    }
}

/// Why a supervisor process could not be reached.
#[derive(Debug)]
pub(crate) enum Unreached {
    /// There is no such process.
    Gone,
    Protocol {
        theirs: u32,
        remedy: &'static str,
    },
    Other(String),
}

impl Unreached {
    pub(crate) fn into_error(self, key: ProcessKey) -> ProcessError {
        match self {
            Self::Gone => ProcessError::NotAlive(key),
            Self::Protocol { theirs, remedy } => {
                ProcessError::Protocol { key, theirs, ours: PROTOCOL, remedy }
            }
            Self::Other(reason) => {
                ProcessError::Keeper { key, what: "reaching the keeper", reason }
            }
        }
    }
}

/// Finds the supervisor process by its socket and says hello.
pub(crate) async fn reach(dir: &Path, key: ProcessKey) -> Result<(Connection, Running), Unreached> {
    let hello = async {
        let opened = record::open_dir(dir).map_err(|_| Unreached::Gone)?;
        let path = below(&opened, &Kind::Socket.name(key.epoch));
        let stream = match UnixStream::connect(path).await {
            Ok(stream) => stream,
            Err(err) => {
                return Err(match err.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Unreached::Gone,
                    _ => Unreached::Other(err.to_string()),
                });
            }
        };
        let broken = |err: io::Error| match err.kind() {
            // It ended between two lines.
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Unreached::Gone,
            _ => Unreached::Other(err.to_string()),
        };
        let mut connection = Connection::new(stream);
        wire::put(&mut connection.outbox, &ToKeeper::Hello { protocol: PROTOCOL });
        connection.flush().await.map_err(broken)?;
        match connection.hear().await.map_err(broken)? {
            FromKeeper::Running(running) => {
                let theirs = running.protocol;
                if ProcessKey::from(running.key) != key {
                    let other = ProcessKey::from(running.key);
                    return Err(Unreached::Other(format!("behind its socket is {other}")));
                }
                if theirs > PROTOCOL {
                    let remedy = "it was started by a newer version; run that one again";
                    return Err(Unreached::Protocol { theirs, remedy });
                }
                if theirs < OLDEST {
                    let remedy = "it is too old for this version; stop it with the version that \
                                  started it";
                    return Err(Unreached::Protocol { theirs, remedy });
                }
                Ok((connection, running))
            }
            other @ (FromKeeper::Refused { .. }
            | FromKeeper::Output { .. }
            | FromKeeper::Done { .. }
            | FromKeeper::Exited(_)) => {
                Err(Unreached::Other(format!("it answered a hello with {other:?}")))
            }
        }
    };
    match tokio::time::timeout(ANSWER_WITHIN, Box::pin(hello)).await {
        Ok(result) => result,
        Err(_) => Err(Unreached::Other("it does not answer: is it stopped?".to_owned())),
    }
}

/// A short path to a file in an open directory, whatever the directory's own path is: a socket's
/// path may have only 107 bytes.
pub(crate) fn below(dir: &std::os::fd::OwnedFd, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", std::os::fd::AsRawFd::as_raw_fd(dir))
}

/// The state of a running process.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) started: Started,
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) requests: Sender<Box<Request>>,
    /// Held by a writer: a supervisor process accepts one piece of a daemon at a time.
    pub(crate) input: tokio::sync::Mutex<()>,
}

/// Begins to serve a process whose supervisor process has reported that it runs.
pub(crate) fn serve(
    shared: &Arc<Shared>,
    entry: &Arc<Entry>,
    connection: Connection,
    running: &Running,
) {
    let (requests, receiver) = queue(REQUESTS);
    let started = running.started();
    let life = Life {
        started,
        terminal: running.terminal.map(TerminalSize::from),
        requests,
        input: tokio::sync::Mutex::default(),
    };
    entry.begin(life);
    entry.pulse.send_replace(Pulse {
        epoch: started.key.epoch,
        offset: running.end,
        last_output: Timestamp::from_micros(running.last_output_us),
        state: State::Live,
    });
    let driver = Box::new(Driver {
        connection,
        key: started.key,
        ground: Arc::clone(&shared.ground),
        entry: Arc::clone(entry),
        requests: receiver,
        waiting: HashMap::new(),
        acknowledging: None,
        watched: false,
    });
    shared.spawn(Box::pin(driver.run()));
}

struct Driver {
    connection: Connection,
    key: ProcessKey,
    ground: Arc<Ground>,
    entry: Arc<Entry>,
    requests: Receiver<Box<Request>>,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    /// The request that acknowledges the exit.
    acknowledging: Option<u64>,
    /// The last sent value of whether there is a viewer.
    watched: bool,
}

/// Why the driver stopped reading a connection.
enum Stopped {
    Broken,
    /// The supervisor process has read everything and closed its end.
    Closed,
    /// The supervisor is being closed, or the exit was acknowledged.
    Done,
}

impl Driver {
    /// It is boxed, because a move would put it twice into the task.
    async fn run(mut self: Box<Self>) {
        loop {
            match self.listen().await {
                Stopped::Done => return,
                Stopped::Closed => self.is_acknowledged(),
                Stopped::Broken => {}
            }
            // No caller waits for an answer after the supervisor process has ended.
            self.waiting.clear();
            self.watched = false;
            if self.has_ended() {
                return;
            }
            // It is boxed like the next one: it is rare, and there is one task for each process.
            match Box::pin(reach(&self.entry.dir, self.key)).await {
                Ok((again, running)) => {
                    self.heard_output(running.end, running.last_output_us);
                    self.connection = again;
                }
                Err(err) => {
                    if !matches!(err, Unreached::Gone) {
                        tracing::warn!(key = %self.key, ?err, "a keeper cannot be reached any more");
                    }
                    return Box::pin(self.find_end()).await;
                }
            }
        }
    }

    async fn listen(&mut self) -> Stopped {
        let entry = Arc::clone(&self.entry);
        loop {
            let mut changed = pin!(entry.watchers.changed());
            // Later changes are noticed below.
            changed.as_mut().enable();
            let wanted = self.entry.watchers.any();
            if wanted != self.watched && !self.has_ended() {
                self.watched = wanted;
                let id = self.entry.next_id();
                let ask = Ask::Watch(wanted);
                wire::put(&mut self.connection.outbox, &ToKeeper::Request { id, ask });
            }
            let sending = !self.connection.outbox.is_empty();
            if sending && self.connection.flush().await.is_err() {
                return Stopped::Broken;
            }
            tokio::select! {
                heard = self.connection.hear() => match heard {
                    Ok(message) => self.take(message),
                    Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => {
                        return Stopped::Closed;
                    }
                    Err(_) => return Stopped::Broken,
                },
                asked = self.requests.recv() => match asked {
                    None => return Stopped::Done,
                    Some(request) => {
                        let Request { id, what, reply } = *request;
                        match what {
                            What::Ask(ask) => {
                                if ask == Ask::Acknowledge {
                                    self.acknowledging = Some(id);
                                }
                                let request = ToKeeper::Request { id, ask };
                                wire::put(&mut self.connection.outbox, &request);
                            }
                            What::Input(bytes) => {
                                wire::put_input(&mut self.connection.outbox, id, &bytes);
                            }
                        }
                        if let Some(reply) = reply {
                            self.waiting.insert(id, reply);
                        }
                    }
                },
                () = changed => {}
            }
        }
    }

    fn take(&mut self, message: FromKeeper) {
        match message {
            FromKeeper::Output { end, at_us } => self.heard_output(end, at_us),
            FromKeeper::Done { id, answer } => {
                if let Some(reply) = self.waiting.remove(&id) {
                    // The caller may have stopped waiting.
                    let _ = reply.send(answer);
                }
            }
            FromKeeper::Exited(exit) => {
                // The message is about another process.
                if ProcessKey::from(exit.key) == self.key {
                    self.ended(Ended::Exited(exit.into()));
                }
            }
            FromKeeper::Running(_) | FromKeeper::Refused { .. } => {}
        }
    }

    /// Handles the end of the connection as the answer to an acknowledgement. If the supervisor
    /// process ended before it read the request, the connection breaks instead.
    fn is_acknowledged(&mut self) {
        let sent = self.connection.outbox.is_empty();
        let asked = self.acknowledging.take().filter(|_| sent);
        if let Some(reply) = asked.and_then(|id| self.waiting.remove(&id)) {
            // The caller may have stopped waiting.
            let _ = reply.send(Answer::Ok);
        }
    }

    fn heard_output(&self, end: u64, at_us: i64) {
        self.entry.pulse.send_if_modified(|pulse| {
            let newer = pulse.epoch == self.key.epoch && end > pulse.offset;
            if newer {
                pulse.offset = end;
                pulse.last_output = Timestamp::from_micros(at_us);
            }
            newer
        });
    }

    fn has_ended(&self) -> bool {
        let pulse = self.entry.pulse.borrow();
        pulse.epoch != self.key.epoch || !matches!(pulse.state, State::Live)
    }

    fn ended(&self, ended: Ended) {
        self.entry.end(self.key, ended);
    }

    /// Finds the exit after the supervisor process has ended: it left a record, or was killed.
    async fn find_end(&self) {
        let life = LostLife { key: self.key, dir: self.entry.dir.clone() };
        let ground = Arc::clone(&self.ground);
        let found = tokio::task::spawn_blocking(move || find_end(&ground, &life)).await;
        let reason = "the search for what it left was cut off".to_owned();
        self.ended(found.unwrap_or(Ended::Lost { reason, killed: 0 }));
    }
}

/// Blocks.
fn find_end(ground: &Ground, life: &LostLife) -> Ended {
    if let Some(ended) = recorded(&life.dir, life.key) {
        return ended;
    }
    let limits = ground.options.log.into();
    let killed = lost::clean(std::slice::from_ref(life), &ground.bases, limits);
    let killed = killed.get(&life.key).copied().unwrap_or(0);
    Ended::Lost { reason: lost::REASON.to_owned(), killed }
}

/// The exit that a supervisor process recorded.
pub(crate) fn recorded(dir: &Path, key: ProcessKey) -> Option<Ended> {
    let dir = record::open_dir(dir).ok()?;
    let exit: wire::Exit = record::read(dir, Kind::Exit, key.epoch)?;
    (ProcessKey::from(exit.key) == key).then(|| Ended::Exited(exit.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<A, F>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn serving_an_attempt_for_days_takes_little_memory() {
        let serving = size(Driver::run) + size_of::<Driver>();
        assert!(serving <= 800, "{serving} bytes, and there is one for each life");
    }
}
