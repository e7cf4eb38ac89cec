//! The steps from the order to the running command.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use overmind_core::process::ProcessKey;
use rustix::fs::{FlockOperation, Mode};
use rustix::process::DumpableBehavior;

use crate::group::Group;
use crate::keeper::child::{self, Refusal};
use crate::keeper::input::Input;
use crate::keeper::output::Masks;
use crate::keeper::peer::Peer;
use crate::keeper::tree::Tree;
use crate::keeper::{Keeper, PRUNE_EVERY, Phase, READ_BYTES, now_us};
use crate::log::writer::Writer;
use crate::proc::{Look, Stat};
use crate::record::{self, Kind, Life};
use crate::sys;
use crate::wire::{self, Frame, FromKeeper, Io, Order, PROTOCOL, Running, ToKeeper};

/// The longest delay before the program is started.
const WAITS: Duration = Duration::from_millis(50);
/// How long the supervisor process of the previous attempt may take to release the log.
const LOCK_WITHIN: Duration = Duration::from_secs(2);

/// The set-up of a supervisor process before it knows its session.
pub(crate) fn prepare() -> io::Result<()> {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // Commands of the same user can then neither trace this process nor read its memory.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Receives the order and executes it. On failure the daemon is informed, and nothing is left.
pub(super) fn begin(connection: OwnedFd, listener: OwnedFd, dir: OwnedFd) -> io::Result<Keeper> {
    let mut connection = UnixStream::from(connection);
    let (order, more) = take_order(&mut connection)?;
    let epoch = order.key.epoch;
    match carry_out(&dir, order, more, &connection, listener) {
        Ok(keeper) => Ok(keeper),
        Err(Refusal { step, reason }) => {
            let mut out = Vec::new();
            let message = FromKeeper::Refused { step: step.to_owned(), reason: reason.clone() };
            wire::put(&mut out, &message);
            record::remove(&dir, Kind::Life, epoch)?;
            record::remove(&dir, Kind::Socket, epoch)?;
            connection.write_all(&out)?;
            Err(io::Error::other(reason))
        }
    }
}

/// Reads the order and the bytes after it, which may already cancel it.
fn take_order(connection: &mut UnixStream) -> io::Result<(Order, Vec<u8>)> {
    let mut inbox = Vec::new();
    let mut piece = vec![0; 16 << 10];
    loop {
        match wire::take::<ToKeeper>(&mut inbox)? {
            Some(Frame::Message(ToKeeper::Start(order))) => return Ok((*order, inbox)),
            Some(other) => {
                return Err(io::Error::other(format!("no order but {other:?}")));
            }
            None => {}
        }
        match connection.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => inbox.extend_from_slice(&piece[..count]),
        }
    }
}

fn carry_out(
    dir: &OwnedFd,
    order: Order,
    mut more: Vec<u8>,
    connection: &UnixStream,
    listener: OwnedFd,
) -> Result<Keeper, Refusal> {
    let key: ProcessKey = order.key.into();
    let refused = |step: &'static str| move |err: io::Error| Refusal::new(step, err);
    let own_dir = child::reopened(dir).map_err(refused("the session's directory"))?;
    lock(&own_dir)?;
    let log_dir = own_dir.try_clone().map_err(refused("its log"))?;
    let mut log = Writer::open(log_dir).map_err(refused("its log"))?;
    log.is_of(order.log, key.epoch);
    if log.last_epoch() >= key.epoch {
        let newest = log.last_epoch();
        return Err(Refusal::new("its log", format!("the session is in life {newest} already")));
    }
    let signals = sys::signals().map_err(refused("signals"))?;
    let group = Group::make(order.group.clone()).map_err(|(path, err)| {
        Refusal::new("its control group", format!("{}: {err}", path.display()))
    })?;
    wait_until(order.not_before_us);
    let mut life = Life::about_to_start(order.key, group.directories());
    let spawned = record::write(&own_dir, Kind::Life, key.epoch, &life)
        .map_err(refused("its record"))
        .and_then(|()| child::spawn(&order, &group));
    let (main, streams) = match spawned {
        Ok(begun) => begun,
        Err(refusal) => {
            group.remove();
            return Err(refusal);
        }
    };
    let mut tree = Tree::new(main, group, order.enclosed);
    let pid = main.as_raw_nonzero().get();
    (life.pid, life.started_ticks) = (pid, Stat::of(pid).map_or(0, |stat| stat.started));
    let started_us = now_us();
    let running = Running {
        protocol: PROTOCOL,
        key: order.key,
        pid: pid.unsigned_abs(),
        started_us,
        offset: log.offset(),
        end: log.offset(),
        last_output_us: started_us,
        terminal: match &order.io {
            Io::Terminal(size) => Some(*size),
            Io::Pipes { .. } => None,
        },
    };
    let mut ready = || -> io::Result<Peer> {
        // It is written once the program runs, and before any of its output is read.
        if let Some((kind, text)) = &order.opening {
            log.note((*kind).into(), text, started_us)?;
        }
        record::write(&own_dir, Kind::Life, key.epoch, &life)?;
        let mut first = Peer::new(0, connection.try_clone()?.into())?;
        first.greeted = true;
        first.inbox = std::mem::take(&mut more);
        first.say(&FromKeeper::Running(running.clone()));
        first.flush();
        Ok(first)
    };
    let first = match ready() {
        Ok(first) => first,
        Err(err) => {
            end_unborn(&mut tree);
            return Err(Refusal::new("its record", err));
        }
    };
    Ok(Keeper {
        key,
        dir: own_dir,
        listener,
        signals,
        log,
        input: Input::new(&streams),
        streams,
        tree,
        peers: vec![first],
        next_peer: 1,
        phase: Phase::Running,
        main_end: None,
        leftovers: 0,
        leftovers_grace: order.leftovers_grace_ms.map(Duration::from_millis),
        running,
        held: None,
        retry_at: None,
        prune_at: Instant::now() + PRUNE_EVERY,
        buffer: vec![0; READ_BYTES],
        masks: Masks::new(&order.secrets),
        enlarged: false,
        acknowledged: false,
        unsaid: None,
        hold_until: None,
    })
}

/// Waits until the program may start. The wait is short, because no message is handled meanwhile.
fn wait_until(at_us: Option<i64>) {
    let left = at_us.map_or(0, |at| at.saturating_sub(now_us()));
    let left = Duration::from_micros(u64::try_from(left).unwrap_or(0));
    if !left.is_zero() {
        std::thread::sleep(left.min(WAITS));
    }
}

/// Ends a command whose start could not be reported.
fn end_unborn(tree: &mut Tree) {
    let until = Instant::now() + Duration::from_secs(5);
    while !tree.reap().empty && Instant::now() < until {
        tree.kill_all(Look::All);
        std::thread::sleep(Duration::from_millis(5));
    }
    tree.group.remove();
}

/// Locks the session: only one process may write its log.
fn lock(dir: &OwnedFd) -> Result<(), Refusal> {
    let until = Instant::now() + LOCK_WITHIN;
    loop {
        match rustix::fs::flock(dir.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR)
                if Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(Refusal::new(
                    "its log",
                    "an earlier life of this session still runs: end it first",
                ));
            }
            Err(err) => return Err(Refusal::new("its log", err)),
        }
    }
}
