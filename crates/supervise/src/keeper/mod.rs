//! The process that owns one life: its terminal or pipes, its log, its tree, its end.
//!
//! Born of the zygote, child of nobody, in a session of its own. It waits in one `poll` for the
//! command's output, for signals about its children, and for daemons: the one that started it,
//! those that find its socket after a restart. It buffers nothing but the piece it has just read;
//! what the command writes is in the log before anybody is told. Secrets that it was started with
//! are masked before that ([`overmind_core::masking`]): no file has them.
//!
//! It ends when nothing of the tree is left and a daemon has acknowledged that, or when the end
//! stands on the disk. A TERM to the keeper itself stops its tree in good order.

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

/// Daemons, and what asks to be one, at the same time.
const MAX_PEERS: usize = 8;
/// One read of the command's output.
const READ_BYTES: usize = 64 << 10;
/// How often an output is told while somebody watches, and while nobody does.
const WATCHED: Duration = Duration::from_millis(1);
const UNWATCHED: Duration = Duration::from_secs(1);
/// Between TERM to the command's own group and TERM to whoever left it.
const REST_AFTER: Duration = Duration::from_millis(100);
/// Between a kill and the first look at what it has left.
const KILL_LOOK: Duration = Duration::from_millis(5);
/// Rounds of killing, about 300 ms, in which those that were found cheaply may die.
const PATIENT_ROUNDS: u32 = 5;
/// After this long, and as many tries, what is still there counts as a survivor.
const KILL_FOR: Duration = Duration::from_secs(10);
const KILL_ROUNDS: u32 = 20;
/// For the daemon to record the end, before the disk has to.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(5);
/// Between two tries to write where the disk is full.
const DISK_RETRY: Duration = Duration::from_millis(100);
/// For the last output, when the disk is full and the life is over.
const DISK_PATIENCE: Duration = Duration::from_secs(2);
/// Of a stop that comes as a TERM to the keeper.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// For the rest of what may be a secret, before its beginning is shown.
const PAUSE: Duration = Duration::from_millis(20);
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// Where a life is on its way to the end.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    /// Everybody was asked to end.
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
    /// Nothing of the tree is left.
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
    /// Output that the disk did not take yet.
    held: Option<(LogKind, Vec<u8>)>,
    retry_at: Option<Instant>,
    prune_at: Instant,
    buffer: Vec<u8>,
    masks: Masks,
    enlarged: bool,
    acknowledged: bool,
    /// Why everything was killed, as long as the log does not say so.
    unsaid: Option<String>,
    /// Until then nothing is sent: the end comes any moment, and goes with it.
    hold_until: Option<Instant>,
}

/// Is the keeper, from its first order to its end. Answers the exit code.
pub(crate) fn run(given: [OwnedFd; GIVEN], nest: Nest) -> i32 {
    let [connection, listener, dir] = given;
    match begin::begin(connection, listener, dir) {
        Ok(mut keeper) => {
            drop(nest);
            // Whatever goes wrong in the loop itself (a poll that fails), the tree must not stay
            // behind without anybody to end it.
            let failed = keeper.serve().is_err();
            if failed {
                keeper.tree.kill_all(Look::All);
            }
            // Without giving back anything first: the kernel takes it all in one go.
            sys::exit_now(i32::from(failed))
        }
        Err(_) => 1,
    }
}

/// Microseconds since the epoch: the keeper has no clock that somebody gave it.
pub(crate) fn now_us() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000)
}

/// What `poll` said of each thing that was asked.
#[derive(Default)]
struct Ready {
    signals: bool,
    listener: bool,
    output: bool,
    errors: bool,
    input: bool,
    /// Readable and writable.
    peers: Vec<(bool, bool)>,
}

impl Keeper {
    fn serve(&mut self) -> io::Result<()> {
        // What came with the order is here already, and no poll tells of it.
        self.hear_peer(0);
        loop {
            let now = Instant::now();
            self.due(now);
            if let Phase::Over { exit, until } = self.phase
                && (now >= until || self.peers.is_empty())
            {
                // Nobody has taken note of the end: the disk does.
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

    /// Sends what was said since the last turn.
    fn flush(&mut self, now: Instant) {
        if self.hold_until.is_some_and(|until| now < until) {
            return;
        }
        self.hold_until = None;
        for peer in &mut self.peers {
            peer.flush();
        }
    }

    /// Waits for whatever comes first.
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
        // A stream that we do not want to hear of is left out: its hang-up would come unasked.
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

    /// When something must be done even if nothing comes.
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
                // What cannot be dropped now is tried again.
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
                // Both: on a machine that stands still, time passes and nothing was tried.
                if now.duration_since(since) >= KILL_FOR && rounds >= KILL_ROUNDS {
                    self.finish(by, false);
                } else {
                    self.say_killed();
                    // Who was found cheaply dies by itself, in its time. Only what is left when
                    // that is over must be looked for among all processes of the machine.
                    if rounds >= PATIENT_ROUNDS || self.tree.has_strays() {
                        // Most are young; whoever is not found so is found later.
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
        // Two signals there are, and each waits once at most: one read takes them.
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

    /// Takes note of who has ended, and of what follows from that.
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
            // Whoever left the main process's group is known to be left only now.
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

    /// Asks for the end; with a grace politely.
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
                // The marker is written with that of the end, and told with it, unless that
                // takes longer than ends do.
                self.kill(By::Kill, now);
                let reason = reason.map_or("killed".to_owned(), |why| format!("killed: {why}"));
                self.unsaid = Some(reason);
                self.hold_until = Some(now + KILL_LOOK);
                // Its end is heard of by a signal.
                return;
            }
            // Asked already, or about to be gone.
            (Some(_), Phase::Asked { .. }) | (_, Phase::Killing { .. } | Phase::Over { .. }) => {}
        }
        self.reap();
    }

    fn kill(&mut self, by: By, now: Instant) {
        self.tree.kill_first();
        let again_at = now + KILL_LOOK;
        self.phase = Phase::Killing { by, since: now, again_at, rounds: 0 };
    }

    /// Writes why everything was killed, if that has not been written yet.
    fn say_killed(&mut self) {
        if let Some(reason) = self.unsaid.take() {
            self.note(NoteKind::Killed, &reason);
        }
    }

    /// Nothing of the tree is left, or nothing that can be ended: says so.
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
        // The kernel's count of the group has also those whom nobody waited for. It gathers it from
        // all processors, which of one that was killed is worth nobody's while.
        let counted = if by == By::Kill { None } else { self.tree.group.cpu() };
        let (user_us, system_us) = counted
            .map_or((usage.user_us, usage.system_us), |(user, system)| {
                (micros(user), micros(system))
            });
        let offset = self.log.offset();
        // On a full disk they are lost: output has the right of way.
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
            // The kernel takes a moment to forget the last process.
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
        // From here on the next life may write the log.
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

    /// Puts the end on the disk; the socket goes.
    ///
    /// If this fails, the next daemon finds a keeper that is gone without a word, which is told as
    /// lost: the disk is then worse off than this life.
    fn leave_record(&self, exit: &Exit) -> io::Result<()> {
        let epoch = self.key.epoch;
        let kept = record::write(&self.dir, Kind::Exit, epoch, exit)
            .and_then(|()| record::sync(&self.dir, Kind::Exit, epoch));
        let _ = self.log.sync();
        record::remove(&self.dir, Kind::Socket, epoch)?;
        kept
    }

    /// Writes a marker. On a full disk it is lost: output has the right of way.
    fn note(&mut self, kind: NoteKind, text: &str) {
        self.show_held_back();
        let _ = self.log.note(kind, text, now_us());
        self.tell();
    }

    /// There is something new in the log.
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
