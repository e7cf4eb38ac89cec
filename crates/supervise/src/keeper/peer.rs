//! One connection to a supervisor process, from a daemon or a process that claims to be one.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::keeper::{UNWATCHED, WATCHED};
use crate::proc;
use crate::wire::{self, Frame, FromKeeper, ToKeeper};

/// Unsent bytes at which a daemon that does not read is disconnected; it may connect again.
const MAX_OUTBOX: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct Peer {
    /// A name that no other connection of this process ever has.
    pub(crate) name: u64,
    pub(crate) stream: OwnedFd,
    pub(crate) inbox: Vec<u8>,
    outbox: Vec<u8>,
    pub(crate) greeted: bool,
    pub(crate) watches: bool,
    pub(crate) gone: bool,
    told_at: Option<Instant>,
    /// Whether there is news that was not sent.
    news: bool,
}

/// The result of reading from a connection.
#[derive(Debug)]
pub(crate) enum Heard {
    Said(Frame<ToKeeper>),
    Nothing,
}

impl Peer {
    pub(crate) fn new(name: u64, stream: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        Ok(Self {
            name,
            stream,
            inbox: Vec::new(),
            outbox: Vec::new(),
            greeted: false,
            watches: false,
            gone: false,
            told_at: None,
            news: false,
        })
    }

    /// Whether the other end may be our daemon: it has the same user (or root), and is no process
    /// of the supervised tree.
    pub(crate) fn may_speak(stream: &OwnedFd) -> bool {
        let Ok(who) = rustix::net::sockopt::socket_peercred(stream) else { return false };
        let ours = rustix::process::geteuid();
        let own = rustix::process::getpid().as_raw_nonzero().get();
        (who.uid == ours || who.uid.is_root())
            && !proc::is_below(who.pid.as_raw_nonzero().get(), own)
    }

    pub(crate) fn has_to_say(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Queues a message for the next [`flush`](Self::flush): all messages of one turn are sent
    /// together.
    pub(crate) fn say(&mut self, message: &FromKeeper) {
        wire::put(&mut self.outbox, message);
        if self.outbox.len() > MAX_OUTBOX {
            self.gone = true;
        }
    }

    pub(crate) fn flush(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        while !self.outbox.is_empty() {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(&self.stream, &self.outbox, flags) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    self.gone = true;
                    return;
                }
            }
        }
        self.outbox = Vec::new();
    }

    /// Reads the available bytes.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) {
        match rustix::io::read(&self.stream, &mut *buffer) {
            Ok(0) => self.gone = true,
            Ok(count) => self.inbox.extend_from_slice(&buffer[..count]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => self.gone = true,
        }
    }

    /// The next frame of the read bytes.
    pub(crate) fn heard(&mut self) -> Heard {
        match wire::take(&mut self.inbox) {
            Ok(Some(frame)) => Heard::Said(frame),
            Ok(None) => Heard::Nothing,
            Err(_) => {
                self.gone = true;
                Heard::Nothing
            }
        }
    }

    fn pause(&self) -> std::time::Duration {
        if self.watches { WATCHED } else { UNWATCHED }
    }

    /// When delayed news must be sent.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        (self.news && self.greeted && self.outbox.is_empty())
            .then(|| self.told_at.map_or(now, |at| at + self.pause()))
    }

    /// Records news, to be sent at once or soon.
    pub(crate) fn news(&mut self, now: Instant, end: u64, at_us: i64) {
        self.news = true;
        self.tell_if_due(now, end, at_us);
    }

    pub(crate) fn tell_if_due(&mut self, now: Instant, end: u64, at_us: i64) {
        if self.due(now).is_some_and(|at| at <= now) {
            self.news = false;
            self.told_at = Some(now);
            self.say(&FromKeeper::Output { end, at_us });
        }
    }
}
