//! The supervisor process, which owns one command: its terminal or pipes, its log, its process
//! tree, its exit.
//!
//! The zygote forks it; it is nobody's child and has its own session. It waits in one `poll` for
//! the command's output, for signals about its children, and for daemons: the one that started it,
//! and later ones that find its socket after a restart. It buffers only the piece that it has just
//! read, and writes output to the log before it informs anybody. Before that, the command's secrets
//! are masked ([`overmind_core::masking`]), so no file contains them.
//!
//! It ends when no process of the tree is left and either a daemon has acknowledged the exit or the
//! exit is recorded on disk. A TERM to it stops its tree gracefully.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use overmind_core::process::{ExitStatus, LogKind, NoteKind, ProcessKey};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::keeper::child::Streams;
use crate::keeper::input::Input;
use crate::keeper::output::Masks;
use crate::keeper::peer::Peer;
use crate::keeper::tree::{Reaped, Tree};
use crate::log::writer::Writer;
use crate::proc::Look;
use crate::record::{self, Kind};
use crate::sys;
use crate::wire::{Answer, By, Exit, FromKeeper, Running};
use crate::zygote::{GIVEN, Nest};

mod ask;
mod begin;
pub(crate) mod child;
mod input;
mod output;
mod peer;
pub(crate) mod tree;

pub(crate) use self::begin::prepare;

/// Maximum number of connections at the same time.
const MAX_PEERS: usize = 8;
/// Maximum number of bytes of one read of the command's output.
const READ_BYTES: usize = 64 << 10;
/// The intervals at which new output is reported: with a viewer, and without one.
const WATCHED: Duration = Duration::from_millis(1);
const UNWATCHED: Duration = Duration::from_secs(1);
/// The time between TERM to the command's own group and TERM to processes that left it.
const REST_AFTER: Duration = Duration::from_millis(100);
/// The time between a kill and the first check for remaining processes.
const KILL_LOOK: Duration = Duration::from_millis(5);
/// Rounds of killing, about 300 ms in total, in which the processes found so far may end.
const PATIENT_ROUNDS: u32 = 5;
/// After this time and number of rounds, remaining processes are reported as survivors.
const KILL_FOR: Duration = Duration::from_secs(10);
const KILL_ROUNDS: u32 = 20;
/// How long a daemon may take to record the exit before this process writes it to disk.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(5);
/// The time between two attempts to write if the disk is full.
const DISK_RETRY: Duration = Duration::from_millis(100);
/// How long the last output is kept if the disk is full and the command has ended.
const DISK_PATIENCE: Duration = Duration::from_secs(2);
/// The grace of a stop that comes as a TERM to this process.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// How long the start of a possible secret is held back to wait for its rest.
const PAUSE: Duration = Duration::from_millis(20);
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// The phases of a command's end.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    /// All processes were asked to end.
    Asked {
        by: By,
        kill_at: Instant,
        rest_at: Option<Instant>,
        grace: Duration,
    },
    Killing {
        by: By,
        since: Instant,
        again_at: Instant,
        rounds: u32,
    },
    /// No process of the tree is left.
    Over {
        exit: Exit,
        until: Instant,
    },
}

#[derive(Debug)]
struct MainEnd {
    status: ExitStatus,
    at_us: i64,
}

struct Keeper {
    key: ProcessKey,
    dir: OwnedFd,
    listener: OwnedFd,
    signals: OwnedFd,
    log: Writer,
    streams: Streams,
    input: Input,
    tree: Tree,
    peers: Vec<Peer>,
    next_peer: u64,
    phase: Phase,
    main_end: Option<MainEnd>,
    leftovers: u32,
    leftovers_grace: Option<Duration>,
    running: Running,
    /// Output that could not be written yet.
    held: Option<(LogKind, Vec<u8>)>,
    retry_at: Option<Instant>,
    prune_at: Instant,
    buffer: Vec<u8>,
    masks: Masks,
    enlarged: bool,
    acknowledged: bool,
    /// Why everything was killed, until the log contains it.
    unsaid: Option<String>,
    /// Nothing is sent until this time, because the exit is expected soon and is sent together.
    hold_until: Option<Instant>,
}

/// Runs the supervisor process from its first order to its end. Returns the exit code.
pub(crate) fn run(given: [OwnedFd; GIVEN], nest: Nest) -> i32 {
    let [connection, listener, dir] = given;
    match begin::begin(connection, listener, dir) {
        Ok(mut keeper) => {
            drop(nest);
            // If the loop itself fails (a failed poll), the tree must still be ended.
            let failed = keeper.serve().is_err();
            if failed {
                keeper.tree.kill_all(Look::All);
            }
            // Nothing is freed first, because the kernel frees everything in one step.
            sys::exit_now(i32::from(failed))
        }
        Err(_) => 1,
    }
}

/// Microseconds since the epoch. This process has no injected clock.
pub(crate) fn now_us() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000)
}

/// The result of `poll` for each descriptor.
#[derive(Default)]
struct Ready {
    signals: bool,
    listener: bool,
    output: bool,
    errors: bool,
    input: bool,
    /// Whether each connection is readable and writable.
    peers: Vec<(bool, bool)>,
}

impl Keeper {
    fn serve(&mut self) -> io::Result<()> {
        // Bytes that came with the order are already buffered, and no poll reports them.
        self.hear_peer(0);
        loop {
            let now = Instant::now();
            self.due(now);
            if let Phase::Over { exit, until } = self.phase
                && (now >= until || self.peers.is_empty())
            {
                // No daemon has acknowledged the exit, so it is recorded on disk.
                return self.leave_record(&exit);
            }
            self.flush(now);
            let ready = self.wait(now)?;
            if ready.signals {
                self.hear_signals();
            }
            if ready.output {
                self.read_output(LogKind::Output);
            }
            if ready.errors {
                self.read_output(LogKind::Stderr);
            }
            if ready.input {
                self.write_input();
            }
            for (n, (readable, writable)) in ready.peers.iter().enumerate() {
                if *writable {
                    self.peers[n].flush();
                }
                if *readable {
                    self.hear_peer(n);
                }
            }
            if ready.listener {
                self.accept();
            }
            self.drop_peers();
            if self.acknowledged {
                return Ok(());
            }
        }
    }

    /// Sends the messages of this turn.
    fn flush(&mut self, now: Instant) {
        if self.hold_until.is_some_and(|until| now < until) {
            return;
        }
        self.hold_until = None;
        for peer in &mut self.peers {
            peer.flush();
        }
    }

    /// Waits for the first event.
    fn wait(&mut self, now: Instant) -> io::Result<Ready> {
        let reading = self.held.is_none();
        let (output, errors, input) = match &self.streams {
            Streams::Terminal { master, slave: _ } => (Some(master), None, Some(master)),
            Streams::Pipes { input, output, errors } => {
                (output.as_ref(), errors.as_ref(), input.as_ref())
            }
        };
        let over = matches!(self.phase, Phase::Over { .. });
        let wants_out = |wanted: bool| if wanted { PollFlags::OUT } else { PollFlags::empty() };
        let mut asked = vec![
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        for peer in &self.peers {
            let more = peer.has_to_say() && self.hold_until.is_none();
            asked.push(PollFd::new(&peer.stream, PollFlags::IN | wants_out(more)));
        }
        let first_stream = asked.len();
        // Streams that are not needed now are omitted, because a hang-up would be reported anyway.
        let mut wanted = Vec::with_capacity(3);
        if let Some(fd) = output.filter(|_| reading && !over) {
            asked.push(PollFd::new(fd, PollFlags::IN));
            wanted.push(0);
        }
        if let Some(fd) = errors.filter(|_| reading && !over) {
            asked.push(PollFd::new(fd, PollFlags::IN));
            wanted.push(1);
        }
        if let Some(fd) = input.filter(|_| self.input.has_more() && !over) {
            asked.push(PollFd::new(fd, PollFlags::OUT));
            wanted.push(2);
        }
        let timeout = self.next_due(now).map(|at| at.saturating_duration_since(now));
        let timeout = timeout.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut asked, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
        let seen = |n: usize| asked[n].revents();
        let mut ready = Ready {
            signals: !seen(0).is_empty(),
            listener: !seen(1).is_empty(),
            peers: (0..self.peers.len())
                .map(|n| {
                    let seen = seen(2 + n);
                    (seen.intersects(!PollFlags::OUT), seen.contains(PollFlags::OUT))
                })
                .collect(),
            ..Ready::default()
        };
        for (n, which) in wanted.into_iter().enumerate() {
            let is = !seen(first_stream + n).is_empty();
            match which {
                0 => ready.output = is,
                1 => ready.errors = is,
                _ => ready.input = is,
            }
        }
        Ok(ready)
    }

    /// The time of the next action if no event comes.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Running => None,
            Phase::Asked { kill_at, rest_at, .. } => {
                Some(rest_at.map_or(kill_at, |at| at.min(kill_at)))
            }
            Phase::Killing { again_at, .. } => Some(again_at),
            Phase::Over { until, .. } => Some(until),
        };
        let peers = self.peers.iter().filter_map(|peer| peer.due(now)).min();
        let masks = self.masks.due().filter(|_| self.held.is_none());
        [phase, peers, masks, self.retry_at, Some(self.prune_at)].into_iter().flatten().min()
    }

    fn due(&mut self, now: Instant) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_held();
        }
        if self.masks.due().is_some_and(|at| at <= now) {
            self.show_held_back();
        }
        if self.prune_at <= now {
            self.prune_at = now + PRUNE_EVERY;
            if !matches!(self.phase, Phase::Over { .. }) {
                // Segments that cannot be dropped now are tried again.
                let _ = self.log.prune(now_us());
            }
        }
        match self.phase {
            Phase::Asked { by, kill_at, grace, .. } if kill_at <= now => {
                self.kill(by, now);
                let reason = format!("killed: it did not end within {grace:?}");
                self.note(NoteKind::Killed, &reason);
            }
            Phase::Asked { by, kill_at, rest_at: Some(at), grace } if at <= now => {
                self.tree.ask_rest();
                self.phase = Phase::Asked { by, kill_at, rest_at: None, grace };
            }
            Phase::Killing { by, since, again_at, rounds } if again_at <= now => {
                // Both are required: on a stalled machine time passes without any attempts.
                if now.duration_since(since) >= KILL_FOR && rounds >= KILL_ROUNDS {
                    self.finish(by, false);
                } else {
                    self.say_killed();
                    // Processes that were found end after some time. Only the ones left after that
                    // must be searched among all processes of the machine.
                    if rounds >= PATIENT_ROUNDS || self.tree.has_strays() {
                        // Most are young; others are found in a later round.
                        let young = Look::After(self.tree.main.as_raw_nonzero().get());
                        self.tree.kill_all(if rounds % 3 == 2 { Look::All } else { young });
                    } else {
                        self.tree.kill_known();
                    }
                    let again_at = now + Duration::from_millis(10 << rounds.min(5));
                    self.phase = Phase::Killing { by, since, again_at, rounds: rounds + 1 };
                    self.reap();
                }
            }
            Phase::Running | Phase::Asked { .. } | Phase::Killing { .. } | Phase::Over { .. } => {}
        }
        let (end, at_us) = (self.log.offset(), self.running.last_output_us);
        for peer in &mut self.peers {
            peer.tell_if_due(now, end, at_us);
        }
    }

    fn hear_signals(&mut self) {
        let mut bytes = [0; 1024];
        let mut terminated = false;
        // There are two signals, each pending at most once, so one read takes both.
        if let Ok(count @ 1..) = rustix::io::read(&self.signals, &mut bytes) {
            let term = u32::try_from(libc::SIGTERM).unwrap_or(15);
            terminated = sys::signal_numbers(&bytes[..count]).any(|number| number == term);
        }
        if terminated {
            let reason = Some("its keeper was asked to end".to_owned());
            self.end(Some(TERM_GRACE), reason);
        }
        self.reap();
    }

    /// Reaps ended processes and handles the consequences.
    fn reap(&mut self) {
        if matches!(self.phase, Phase::Over { .. }) {
            return;
        }
        let Reaped { main, empty } = self.tree.reap();
        if let Some(status) = main {
            self.main_end = Some(MainEnd { status, at_us: now_us() });
        }
        if empty {
            let by = match self.phase {
                Phase::Asked { by, .. } | Phase::Killing { by, .. } => by,
                Phase::Running | Phase::Over { .. } => By::Itself,
            };
            self.finish(by, true);
        } else if main.is_some()
            && let Phase::Killing { again_at, .. } = &mut self.phase
        {
            // Only now it is known whether processes outside of the main process's group are left.
            *again_at = Instant::now();
        } else if main.is_some() && matches!(self.phase, Phase::Running) {
            let left = self.tree.list();
            self.leftovers = u32::try_from(left.len()).unwrap_or(u32::MAX);
            if let Some(grace) = self.leftovers_grace {
                let text = format!("{} left behind and asked to end", processes(self.leftovers));
                self.note(NoteKind::Note, &text);
                self.tree.ask_rest();
                let kill_at = Instant::now() + grace;
                self.phase = Phase::Asked { by: By::Itself, kill_at, rest_at: None, grace };
            }
        }
    }

    /// Begins to end the tree; with a grace, gracefully.
    fn end(&mut self, grace: Option<Duration>, reason: Option<String>) {
        let now = Instant::now();
        match (grace, self.phase) {
            (Some(grace), Phase::Running) => {
                let reason = reason.map_or("stopped".to_owned(), |why| format!("stopped: {why}"));
                self.note(NoteKind::Killed, &reason);
                self.tree.ask_group(matches!(self.streams, Streams::Terminal { .. }));
                self.phase = Phase::Asked {
                    by: By::Stop,
                    kill_at: now + grace,
                    rest_at: Some(now + REST_AFTER.min(grace / 2)),
                    grace,
                };
            }
            (None, Phase::Running | Phase::Asked { .. }) => {
                // The note about the kill is written and reported together with the exit, unless
                // ending takes longer than usual.
                self.kill(By::Kill, now);
                let reason = reason.map_or("killed".to_owned(), |why| format!("killed: {why}"));
                self.unsaid = Some(reason);
                self.hold_until = Some(now + KILL_LOOK);
                // A signal reports its end.
                return;
            }
            // The tree was already asked to end, or is about to.
            (Some(_), Phase::Asked { .. }) | (_, Phase::Killing { .. } | Phase::Over { .. }) => {}
        }
        self.reap();
    }

    fn kill(&mut self, by: By, now: Instant) {
        self.tree.kill_first();
        let again_at = now + KILL_LOOK;
        self.phase = Phase::Killing { by, since: now, again_at, rounds: 0 };
    }

    /// Writes why everything was killed, if that is not in the log yet.
    fn say_killed(&mut self) {
        if let Some(reason) = self.unsaid.take() {
            self.note(NoteKind::Killed, &reason);
        }
    }

    /// Reports the exit when no process of the tree is left, or none that can be ended.
    fn finish(&mut self, by: By, mut empty: bool) {
        if !empty {
            let last = self.tree.reap();
            if let Some(status) = last.main {
                self.main_end = Some(MainEnd { status, at_us: now_us() });
            }
            empty = last.empty;
        }
        let survivors = if empty { 0 } else { self.tree.list().len() };
        let survivors = u32::try_from(survivors).unwrap_or(u32::MAX);
        self.drain();
        let MainEnd { status, at_us } = self
            .main_end
            .take()
            .unwrap_or(MainEnd { status: ExitStatus::Signal(libc::SIGKILL), at_us: now_us() });
        let usage = sys::children_usage();
        // The kernel's count for the group includes processes that nobody waited for. It is
        // collected from all processors, which is not worthwhile for a killed command.
        let counted = if by == By::Kill { None } else { self.tree.group.cpu() };
        let (user_us, system_us) = counted
            .map_or((usage.user_us, usage.system_us), |(user, system)| {
                (micros(user), micros(system))
            });
        let offset = self.log.offset();
        // If the disk is full the notes are lost, because output takes precedence.
        let ended = ended_text(status, survivors);
        let starved = self.tree.group.starved().map(|(killed, bound)| {
            let killed = processes(u32::try_from(killed).unwrap_or(u32::MAX));
            let bound = bound >> 20;
            format!("{killed} killed by the kernel for want of memory: the bound is {bound} MiB")
        });
        let killed = [starved, self.unsaid.take()];
        let killed = killed.iter().flatten().map(|reason| (NoteKind::Killed, reason.as_str()));
        let notes: Vec<(NoteKind, &str)> =
            killed.chain([(NoteKind::Ended, ended.as_str())]).collect();
        let _ = self.log.notes(&notes, now_us());
        let mut left = self.tree.group.remove();
        if !left.is_empty() {
            // The kernel takes a moment to remove the last process.
            std::thread::sleep(Duration::from_millis(2));
            left = self.tree.group.remove();
        }
        let (code, signal) = match status {
            ExitStatus::Code(code) => (Some(code), None),
            ExitStatus::Signal(signal) => (None, Some(signal)),
        };
        let exit = Exit {
            key: self.key.into(),
            code,
            signal,
            by,
            started_us: self.running.started_us,
            ended_us: at_us,
            user_us,
            system_us,
            max_resident_bytes: usage.max_resident_kib.saturating_mul(1024),
            leftovers: self.leftovers,
            survivors,
            offset,
            log_removed: self.log.was_removed(),
        };
        drop(left);
        self.streams = Streams::Pipes { input: None, output: None, errors: None };
        self.input.refuse_all(&mut self.peers, "the process has ended");
        // From here on the next process may write the log.
        let _ = rustix::fs::flock(&self.dir, rustix::fs::FlockOperation::Unlock);
        for peer in &mut self.peers {
            peer.say(&FromKeeper::Output {
                end: self.log.offset(),
                at_us: self.running.last_output_us,
            });
            peer.say(&FromKeeper::Exited(exit));
        }
        self.hold_until = None;
        self.phase = Phase::Over { exit, until: Instant::now() + ACKNOWLEDGED_WITHIN };
    }

    /// Records the exit on disk and removes the socket.
    ///
    /// If this fails, the next daemon finds no supervisor process and no record, and reports the
    /// command as lost. In that case the disk is the larger problem.
    fn leave_record(&self, exit: &Exit) -> io::Result<()> {
        let epoch = self.key.epoch;
        let kept = record::write(&self.dir, Kind::Exit, epoch, exit)
            .and_then(|()| record::sync(&self.dir, Kind::Exit, epoch));
        let _ = self.log.sync();
        record::remove(&self.dir, Kind::Socket, epoch)?;
        kept
    }

    /// Writes a note to the log. If the disk is full it is lost, because output takes precedence.
    fn note(&mut self, kind: NoteKind, text: &str) {
        self.show_held_back();
        let _ = self.log.note(kind, text, now_us());
        self.tell();
    }

    /// Informs connections that the log has grown.
    fn tell(&mut self) {
        let (now, end, at_us) = (Instant::now(), self.log.offset(), self.running.last_output_us);
        for peer in &mut self.peers {
            peer.news(now, end, at_us);
        }
    }

    fn answer(&mut self, peer: usize, id: u64, answer: Answer) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.say(&FromKeeper::Done { id, answer });
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn processes(count: u32) -> String {
    if count == 1 { "1 process was".to_owned() } else { format!("{count} processes were") }
}

fn ended_text(status: ExitStatus, survivors: u32) -> String {
    let how = match status {
        ExitStatus::Code(code) => format!("ended: exit code {code}"),
        ExitStatus::Signal(signal) => format!("ended: signal {signal}"),
    };
    match survivors {
        0 => how,
        left => format!("{how}; {left} of its processes could not be ended"),
    }
}
