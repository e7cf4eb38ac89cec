//! Copies the command's output to the log.

use std::time::Instant;

use overmind_core::masking::StreamMask;
use overmind_core::process::LogKind;

use crate::keeper::child::Streams;
use crate::keeper::{DISK_PATIENCE, DISK_RETRY, Keeper, PAUSE, now_us};
use std::os::fd::{AsFd, OwnedFd};

/// The capacity of a pipe once its command has produced much output.
const ENLARGED: usize = 256 << 10;
/// Maximum number of consecutive reads before other work gets its turn.
const READS: usize = 8;

/// The result of one read.
enum Read {
    Some(usize),
    Later,
    End,
}

/// The masks for a command's secrets, one for each of its output streams.
pub(super) struct Masks {
    output: StreamMask,
    errors: StreamMask,
    room: Vec<u8>,
    /// The time at which the held-back start of a possible secret is shown.
    due: Option<Instant>,
}

impl Masks {
    pub(super) fn new(secrets: &[String]) -> Self {
        let output = StreamMask::new(secrets);
        Self { errors: output.clone(), output, room: Vec::new(), due: None }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    fn of(&mut self, kind: LogKind) -> &mut StreamMask {
        match kind {
            LogKind::Stderr => &mut self.errors,
            LogKind::Output | LogKind::Note(_) => &mut self.output,
        }
    }
}

impl Keeper {
    /// Reads the available output, for a limited time.
    pub(super) fn read_output(&mut self, kind: LogKind) {
        for _ in 0..READS {
            match self.read_once(kind) {
                Read::Some(count) => {
                    self.write_log(kind, count);
                    // A read that does not fill the buffer took everything there was.
                    if self.held.is_some() || count < self.buffer.len() {
                        return;
                    }
                    self.enlarge(kind);
                }
                Read::Later => return,
                Read::End => {
                    self.close_output(kind);
                    return;
                }
            }
        }
    }

    fn stream(&self, kind: LogKind) -> Option<&OwnedFd> {
        match (&self.streams, kind) {
            (Streams::Terminal { master, .. }, LogKind::Output) => Some(master),
            (Streams::Pipes { output, .. }, LogKind::Output) => output.as_ref(),
            (Streams::Pipes { errors, .. }, LogKind::Stderr) => errors.as_ref(),
            (Streams::Terminal { .. }, LogKind::Stderr)
            | (Streams::Terminal { .. } | Streams::Pipes { .. }, LogKind::Note(_)) => None,
        }
    }

    fn read_once(&mut self, kind: LogKind) -> Read {
        let mut buffer = std::mem::take(&mut self.buffer);
        let read = match self.stream(kind) {
            None => Read::Later,
            Some(stream) => loop {
                match rustix::io::read(stream.as_fd(), &mut buffer[..]) {
                    Ok(0) => break Read::End,
                    Ok(count) => break Read::Some(count),
                    Err(rustix::io::Errno::AGAIN) => break Read::Later,
                    Err(rustix::io::Errno::INTR) => {}
                    // For a terminal this means that no process has it open any more.
                    Err(_) => break Read::End,
                }
            },
        };
        self.buffer = buffer;
        read
    }

    fn close_output(&mut self, kind: LogKind) {
        if let Streams::Pipes { output, errors, .. } = &mut self.streams {
            match kind {
                LogKind::Output => *output = None,
                LogKind::Stderr => *errors = None,
                LogKind::Note(_) => {}
            }
        }
    }

    /// Enlarges the pipe of a command that fills it, once, for fewer context switches.
    fn enlarge(&mut self, kind: LogKind) {
        if !std::mem::replace(&mut self.enlarged, true)
            && let Some(stream) = self.stream(kind)
        {
            // This fails for a terminal, and if the user's limit for pipes is reached.
            let _ = rustix::pipe::fcntl_setpipe_size(stream, ENLARGED);
        }
    }

    /// Writes the first `count` bytes of the buffer.
    fn write_log(&mut self, kind: LogKind, count: usize) {
        // Output from before the kill comes after the note.
        self.say_killed();
        let now = now_us();
        self.running.last_output_us = now;
        let mut room = std::mem::take(&mut self.masks.room);
        let shown = self.masks.of(kind).feed(&self.buffer[..count], &mut room);
        let (written, result) = self.log.append(kind, shown, now);
        if result.is_err() {
            // The disk is probably full. The command waits until there is space, as if it wrote to
            // that disk itself, but its output is not lost.
            self.held = Some((kind, shown[written..].to_vec()));
            self.retry_at = Some(Instant::now() + DISK_RETRY);
        }
        self.masks.room = room;
        let holds = self.masks.output.holds() || self.masks.errors.holds();
        self.masks.due = holds.then(|| Instant::now() + PAUSE);
        self.tell();
    }

    /// Shows bytes that were held back as a possible start of a secret.
    pub(super) fn show_held_back(&mut self) {
        // Earlier output that could not be written comes first.
        if self.masks.due.is_none() || self.held.is_some() {
            return;
        }
        self.masks.due = None;
        for kind in [LogKind::Output, LogKind::Stderr] {
            let mut shown = Vec::new();
            self.masks.of(kind).pause(&mut shown);
            let (written, result) = self.log.append(kind, &shown, now_us());
            if result.is_err() {
                let (_, held) = self.held.get_or_insert_with(|| (kind, Vec::new()));
                held.extend_from_slice(&shown[written..]);
                self.retry_at = Some(Instant::now() + DISK_RETRY);
            }
        }
        self.tell();
    }

    /// Tries again to write output that could not be written.
    pub(super) fn retry_held(&mut self) {
        self.retry_at = None;
        let Some((kind, bytes)) = self.held.take() else { return };
        // Old output is dropped for new output, as the log's limits would do anyway.
        let _ = self.log.make_room();
        let (written, result) = self.log.append(kind, &bytes, now_us());
        if result.is_err() {
            self.held = Some((kind, bytes[written..].to_vec()));
            self.retry_at = Some(Instant::now() + DISK_RETRY);
        }
        self.tell();
    }

    /// Reads the remaining output after the last writer has ended.
    pub(super) fn drain(&mut self) {
        let until = Instant::now() + DISK_PATIENCE;
        // A terminal reaches its end after its last holder has closed it and its buffer is read.
        if let Streams::Terminal { slave, .. } = &mut self.streams {
            *slave = None;
        }
        for kind in [LogKind::Output, LogKind::Stderr] {
            loop {
                while self.held.is_some() && Instant::now() < until {
                    std::thread::sleep(DISK_RETRY / 4);
                    self.retry_held();
                }
                if self.held.take().is_some() {
                    return;
                }
                match self.read_once(kind) {
                    Read::Some(count) => self.write_log(kind, count),
                    // A survivor may hold the pipe open, so its end is not awaited.
                    Read::Later | Read::End => break,
                }
            }
        }
        self.show_held_back();
    }
}
