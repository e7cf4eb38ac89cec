//! Starts a process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream as StdUnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::process::{ProcessError, ProcessKey, ProcessSpec, Started};
use tokio::net::UnixStream;

use crate::record::{self, Kind};
use crate::supervisor::entry::Entry;
use crate::supervisor::life::{self, Connection};
use crate::supervisor::pulse::State;
use crate::supervisor::{Shared, make_private};
use crate::wire::{self, Ask, FromKeeper, MAX_FRAME, Order, ToKeeper};

/// The time limit until the command runs. Most of it is the program's own start; a sleeping disk
/// takes longest.
const RUNS_WITHIN: Duration = Duration::from_secs(30);

/// While it exists, no other start of this session begins.
struct Starting(Arc<Entry>);

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.lock().starting = false;
    }
}

/// Reserves a session for a start. The table is locked, so that it cannot be forgotten meanwhile.
fn claim(shared: &Shared, key: ProcessKey) -> Result<Starting, ProcessError> {
    shared.with_entry(key.session, |entry| {
        let mut inner = entry.lock();
        if let Some(life) = &inner.life
            && matches!(entry.pulse.borrow().state, State::Live)
        {
            return Err(ProcessError::AlreadyLive { live: life.started.key });
        }
        if inner.starting {
            return Err(ProcessError::AlreadyLive { live: key });
        }
        if key.epoch <= inner.newest {
            return Err(ProcessError::Stale { asked: key, newest: inner.newest });
        }
        inner.starting = true;
        Ok(Starting(Arc::clone(entry)))
    })
}

/// Checks everything that needs no action.
fn check(spec: &ProcessSpec) -> Result<(), ProcessError> {
    let refuse = |step, reason: &str| {
        let program = spec.argv.first().cloned().unwrap_or_default();
        Err(ProcessError::Refused { program, step, reason: reason.to_owned() })
    };
    if spec.argv.first().is_none_or(String::is_empty) {
        return refuse("the program", "no command was given");
    }
    if !spec.cwd.is_absolute() || spec.cwd.to_str().is_none() {
        return refuse("its directory", "the path must be absolute, and text");
    }
    let bad_name = |(name, _): &(String, String)| name.is_empty() || name.contains('=');
    if spec.env.iter().any(bad_name) {
        return refuse("a variable", "its name is empty or contains `=`");
    }
    let texts = spec.argv.iter().map(String::len).sum::<usize>()
        + spec.env.iter().map(|(name, value)| name.len() + value.len() + 16).sum::<usize>();
    if texts > MAX_FRAME / 2 {
        return refuse("its arguments", "more than 2 MiB with the environment: use standard input");
    }
    Ok(())
}

pub(crate) async fn start(
    shared: &Arc<Shared>,
    spec: ProcessSpec,
) -> Result<Started, ProcessError> {
    check(&spec)?;
    let key = spec.key;
    let program = spec.argv[0].clone();
    let refused = |step: &'static str, reason: String| ProcessError::Refused {
        program: program.clone(),
        step,
        reason,
    };
    let starting = claim(shared, key)?;
    let entry = &starting.0;
    let plan = shared
        .ground
        .bases
        .plan(key, &spec.group)
        .map_err(|reason| refused("its control group", reason))?;
    let _permit = shared.starts.acquire().await.expect("nobody closes it");
    let failed = |err: &dyn std::fmt::Display| refused("its keeper", err.to_string());
    let (of, dir) = (Arc::clone(shared), entry.dir.clone());
    let asked = tokio::task::spawn_blocking(move || ask(&of, &dir, key)).await;
    let stream = asked.map_err(|err| failed(&err))?.map_err(|err| failed(&err))?;
    let stream = UnixStream::from_std(stream).map_err(|err| failed(&err))?;
    let mut unheard = Unheard(Some(Connection::new(stream)));
    let connection = unheard.0.as_mut().expect("just made");
    wire::put(&mut connection.outbox, &ToKeeper::Start(Box::new(Order::new(spec, plan))));
    let answered = async {
        connection.flush().await?;
        connection.hear().await
    };
    let answer = match tokio::time::timeout(RUNS_WITHIN, answered).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(err)) if err.kind() == io::ErrorKind::UnexpectedEof => {
            let reason = "it could not be made: has this user too many processes, or the machine \
                          no memory left?";
            return Err(refused("its keeper", reason.to_owned()));
        }
        Ok(Err(err)) => return Err(failed(&err)),
        Err(_) => {
            return Err(refused("its keeper", format!("no answer within {RUNS_WITHIN:?}")));
        }
    };
    match answer {
        FromKeeper::Running(running) => {
            let connection = unheard.0.take().expect("only this takes it");
            life::serve(shared, entry, connection, &running);
            Ok(running.started())
        }
        FromKeeper::Refused { step, reason } => Err(refused(known_step(&step), reason)),
        other @ (FromKeeper::Output { .. } | FromKeeper::Done { .. } | FromKeeper::Exited(_)) => {
            Err(refused("its keeper", format!("it answered an order with {other:?}")))
        }
    }
}

/// A requested process that nobody knows of yet. Dropping it cancels the process; a killed daemon
/// drops nothing, and the next one finds the process.
struct Unheard(Option<Connection>);

impl Drop for Unheard {
    fn drop(&mut self) {
        let Some(connection) = &mut self.0 else { return };
        // A partly sent order starts nothing, and nothing may follow it.
        if connection.outbox.is_empty() {
            let reason = Some("it was not wanted any more before it had begun".to_owned());
            let ask = Ask::End { grace_ms: None, reason };
            wire::put(&mut connection.outbox, &ToKeeper::Request { id: 0, ask });
            connection.flush_now();
        }
    }
}

/// The supervisor process has the same version, so its words are known here.
fn known_step(step: &str) -> &'static str {
    const KNOWN: [&str; 13] = [
        "the program",
        "its directory",
        "an argument",
        "a variable",
        "its streams",
        "its control group",
        "its user",
        "its own session",
        "its keeper",
        "its log",
        "its record",
        "a process",
        "a pipe",
    ];
    KNOWN.into_iter().find(|one| *one == step).unwrap_or("its start")
}

/// Prepares the descriptors and requests a supervisor process. Blocks for well under a millisecond.
fn ask(shared: &Shared, dir: &Path, key: ProcessKey) -> io::Result<StdUnixStream> {
    if !dir.exists() {
        make_private(dir)?;
    }
    let opened: OwnedFd = record::open_dir(dir)?;
    // A start that failed halfway left it: it has no listener, because this process is new.
    record::remove(&opened, Kind::Socket, key.epoch)?;
    // It is bound here and not by the supervisor process, so that from now on others see that one
    // is coming.
    let listener = UnixListener::bind(life::below(&opened, &Kind::Socket.name(key.epoch)))?;
    listener.set_nonblocking(true)?;
    let (ours, theirs) = StdUnixStream::pair()?;
    let asked = shared.nursery.ask([theirs.as_fd(), listener.as_fd(), opened.as_fd()]);
    if let Err(err) = asked {
        record::remove(&opened, Kind::Socket, key.epoch)?;
        return Err(err);
    }
    ours.set_nonblocking(true)?;
    Ok(ours)
}
