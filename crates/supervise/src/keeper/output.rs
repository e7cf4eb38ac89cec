//! From the command's streams into the log.

use std::time::Instant;

use overmind_core::masking::StreamMask;
use overmind_core::process::LogKind;

use crate::keeper::child::Streams;
use crate::keeper::{DISK_PATIENCE, DISK_RETRY, Keeper, PAUSE, now_us};
use std::os::fd::{AsFd, OwnedFd};

/// What a pipe may hold once its command has shown that it writes much.
const ENLARGED: usize = 256 << 10;
/// Reads in a row before others get their turn.
const READS: usize = 8;

/// What one read gave.
enum Read {
    Some(usize),
    Later,
    End,
}

/// What masks the secrets of a command in what it writes: one for each of its streams.
pub(super) struct Masks {
    output: StreamMask,
    errors: StreamMask,
    room: Vec<u8>,
    /// When what is held back of an unfinished secret is shown.
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
    /// Reads what is there, but not for ever.
    pub(super) fn read_output(&mut self, kind: LogKind) {
        for _ in 0..READS {
            match self.read_once(kind) {
                Read::Some(count) => {
                    self.write_log(kind, count);
                    // Less than the buffer holds is all there was.
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
                    // Of a terminal: nobody has it open any more.
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

    /// A command that fills its pipe gets a larger one, once: fewer switches between the two.
    fn enlarge(&mut self, kind: LogKind) {
        if !std::mem::replace(&mut self.enlarged, true)
            && let Some(stream) = self.stream(kind)
        {
            // Refused for a terminal, and where this user has used up what pipes may hold.
            let _ = rustix::pipe::fcntl_setpipe_size(stream, ENLARGED);
        }
    }

    /// Writes the first `count` bytes of the buffer.
    fn write_log(&mut self, kind: LogKind, count: usize) {
        // What it wrote until it was killed stands behind that.
        self.say_killed();
        let now = now_us();
        self.running.last_output_us = now;
        let mut room = std::mem::take(&mut self.masks.room);
        let shown = self.masks.of(kind).feed(&self.buffer[..count], &mut room);
        let (written, result) = self.log.append(kind, shown, now);
        if result.is_err() {
            // The disk is full, most likely. The command waits until it is not: as if it wrote
            // to that disk itself, but for its output, which is not lost.
            self.held = Some((kind, shown[written..].to_vec()));
            self.retry_at = Some(Instant::now() + DISK_RETRY);
        }
        self.masks.room = room;
        let holds = self.masks.output.holds() || self.masks.errors.holds();
        self.masks.due = holds.then(|| Instant::now() + PAUSE);
        self.tell();
    }

    /// Shows what was held back because it may have been the beginning of a secret.
    pub(super) fn show_held_back(&mut self) {
        // What the disk did not take comes first.
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

    /// Tries again what the disk did not take.
    pub(super) fn retry_held(&mut self) {
        self.retry_at = None;
        let Some((kind, bytes)) = self.held.take() else { return };
        // Old output goes for new, as the log's limits would have it anyway.
        let _ = self.log.make_room();
        let (written, result) = self.log.append(kind, &bytes, now_us());
        if result.is_err() {
            self.held = Some((kind, bytes[written..].to_vec()));
            self.retry_at = Some(Instant::now() + DISK_RETRY);
        }
        self.tell();
    }

    /// Reads what is left when nobody writes any more.
    pub(super) fn drain(&mut self) {
        let until = Instant::now() + DISK_PATIENCE;
        // With the last one that has it open gone, a terminal ends after what it still holds.
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
                    // Of a survivor's pipe the end is not waited for.
                    Read::Later | Read::End => break,
                }
            }
        }
        self.show_held_back();
    }
}
