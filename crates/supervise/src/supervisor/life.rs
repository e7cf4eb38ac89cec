//! The daemon's side of one keeper: a connection, and the task that serves it.

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

/// For a keeper to answer: it has one thread, and never waits for anything.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What the driver is asked to pass on.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) what: What,
    /// `None`: the answer is of no interest.
    pub(crate) reply: Option<oneshot::Sender<Answer>>,
}

#[derive(Debug)]
pub(crate) enum What {
    Ask(Ask),
    Input(Vec<u8>),
}

/// Requests under way in one life, and no more: who asks waits.
pub(crate) const REQUESTS: usize = 32;

/// A connection on which whole frames come and go.
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

    /// The next message. Cancel safe: what was read stays.
    pub(crate) async fn hear(&mut self) -> io::Result<FromKeeper> {
        loop {
            match wire::take(&mut self.inbox)? {
                Some(Frame::Message(message)) => return Ok(message),
                // Of a newer keeper: nothing that we could need.
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

    /// Sends as much of the outbox as goes without waiting: a message of some bytes always does.
    pub(crate) fn flush_now(&mut self) {
        while let Ok(count @ 1..) = self.stream.try_write(&self.outbox) {
            self.outbox.drain(..count);
        }
    }

    /// Sends what is in the outbox. Cancel safe: what was not sent stays.
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

/// Why a keeper could not be reached.
#[derive(Debug)]
pub(crate) enum Unreached {
    /// There is none.
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

/// Finds the keeper of a life by its socket and says hello.
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

/// A path to something in an open directory, short whatever the directory's own is: the name of
/// a socket may have 107 bytes.
pub(crate) fn below(dir: &std::os::fd::OwnedFd, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", std::os::fd::AsRawFd::as_raw_fd(dir))
}

/// What is known of a life that runs.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) started: Started,
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) requests: Sender<Box<Request>>,
    /// Held by whoever writes: a keeper takes one piece of us at a time.
    pub(crate) input: tokio::sync::Mutex<()>,
}

/// Begins to serve a life whose keeper has said that it runs.
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
    /// The request that lets go of the end.
    acknowledging: Option<u64>,
    /// What the keeper was told last.
    watched: bool,
}

/// Why the driver stopped listening to a connection.
enum Stopped {
    Broken,
    /// The keeper has read all that it was told, and has closed its end.
    Closed,
    /// The supervisor is being closed, or the end was acknowledged.
    Done,
}

impl Driver {
    /// In its box: to be moved about it would be twice in the task.
    async fn run(mut self: Box<Self>) {
        loop {
            match self.listen().await {
                Stopped::Done => return,
                Stopped::Closed => self.is_acknowledged(),
                Stopped::Broken => {}
            }
            // Who waits for an answer of a keeper that is gone waits no longer.
            self.waiting.clear();
            self.watched = false;
            if self.has_ended() {
                return;
            }
            // Boxed, as the next: it is seldom, and there is a task for each life.
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
            // What changes from here on is heard of below.
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
                    // Who asked may have left.
                    let _ = reply.send(answer);
                }
            }
            FromKeeper::Exited(exit) => {
                // Whatever this is about, it is not this life.
                if ProcessKey::from(exit.key) == self.key {
                    self.ended(Ended::Exited(exit.into()));
                }
            }
            FromKeeper::Running(_) | FromKeeper::Refused { .. } => {}
        }
    }

    /// A keeper that was let go of answers by its end. One that ended before it read that it was
    /// breaks the connection instead.
    fn is_acknowledged(&mut self) {
        let sent = self.connection.outbox.is_empty();
        let asked = self.acknowledging.take().filter(|_| sent);
        if let Some(reply) = asked.and_then(|id| self.waiting.remove(&id)) {
            // Who asked may have left.
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

    /// The keeper is gone: it has left a record, or was killed.
    async fn find_end(&self) {
        let life = LostLife { key: self.key, dir: self.entry.dir.clone() };
        let ground = Arc::clone(&self.ground);
        let found = tokio::task::spawn_blocking(move || find_end(&ground, &life)).await;
        let reason = "the search for what it left was cut off".to_owned();
        self.ended(found.unwrap_or(Ended::Lost { reason, killed: 0 }));
    }
}

/// Blocking.
fn find_end(ground: &Ground, life: &LostLife) -> Ended {
    if let Some(ended) = recorded(&life.dir, life.key) {
        return ended;
    }
    let limits = ground.options.log.into();
    let killed = lost::clean(std::slice::from_ref(life), &ground.bases, limits);
    let killed = killed.get(&life.key).copied().unwrap_or(0);
    Ended::Lost { reason: lost::REASON.to_owned(), killed }
}

/// The end that a keeper wrote down.
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
    fn who_serves_a_life_for_days_holds_little() {
        let serving = size(Driver::run) + size_of::<Driver>();
        assert!(serving <= 800, "{serving} bytes, and there is one for each life");
    }
}
