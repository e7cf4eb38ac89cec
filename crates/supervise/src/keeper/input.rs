//! Input for the command: a short queue, with at most one piece of each daemon at a time.
//!
//! A daemon sends its next piece after the last was accepted, so the queue holds at most one of
//! each daemon and does not grow if the program does not read.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{LocalModes, SpecialCodeIndex};

use crate::keeper::child::Streams;
use crate::keeper::peer::Peer;
use crate::wire::{Answer, FromKeeper};

/// Maximum number of bytes of one line that a terminal's driver accepts in line mode. The driver
/// drops the rest.
const MAX_LINE: usize = 4095;

#[derive(Debug)]
struct Piece {
    /// Identifies the connection, because connections come and go.
    peer: u64,
    id: u64,
    bytes: Vec<u8>,
    written: usize,
    closes: bool,
}

#[derive(Debug)]
pub(crate) struct Input {
    queue: VecDeque<Piece>,
    /// Whether the command has, or had, an input.
    possible: bool,
    /// Bytes sent to a terminal since the last line end.
    in_line: usize,
}

impl Input {
    pub(crate) fn new(streams: &Streams) -> Self {
        let possible = match streams {
            Streams::Terminal { .. } => true,
            Streams::Pipes { input, .. } => input.is_some(),
        };
        Self { queue: VecDeque::new(), possible, in_line: 0 }
    }

    pub(crate) fn has_more(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Queues a piece; `Err` contains the answer for the sender.
    pub(crate) fn push(
        &mut self,
        peer: &Peer,
        id: u64,
        bytes: Vec<u8>,
        streams: &Streams,
    ) -> Result<(), String> {
        let peer = peer.name;
        if !self.possible {
            return Err("it was started without input".to_owned());
        }
        if self.queue.iter().any(|piece| piece.peer == peer) {
            return Err("the piece before is not taken yet".to_owned());
        }
        match streams {
            Streams::Terminal { master, .. } => self.check_line(master, &bytes)?,
            Streams::Pipes { input: None, .. } => return Err("its input is closed".to_owned()),
            Streams::Pipes { input: Some(_), .. } => {}
        }
        self.queue.push_back(Piece { peer, id, bytes, written: 0, closes: false });
        Ok(())
    }

    /// Closes the input after the queued pieces.
    pub(crate) fn close(&mut self, peer: &Peer, id: u64, streams: &Streams) -> Result<(), String> {
        let bytes = match streams {
            Streams::Terminal { master, .. } => {
                let end = rustix::termios::tcgetattr(master)
                    .map(|modes| modes.special_codes[SpecialCodeIndex::VEOF]);
                vec![end.unwrap_or(4)]
            }
            Streams::Pipes { input: None, .. } if self.possible => {
                return Err("its input is closed".to_owned());
            }
            Streams::Pipes { .. } => Vec::new(),
        };
        if !self.possible {
            return Err("it was started without input".to_owned());
        }
        self.queue.push_back(Piece { peer: peer.name, id, bytes, written: 0, closes: true });
        Ok(())
    }

    /// Refuses bytes that the terminal would drop silently: in line mode it drops what does not fit
    /// in one line.
    fn check_line(&mut self, master: &OwnedFd, bytes: &[u8]) -> Result<(), String> {
        let edits = rustix::termios::tcgetattr(master)
            .is_ok_and(|modes| modes.local_modes.contains(LocalModes::ICANON));
        let mut in_line = if edits { self.in_line } else { 0 };
        for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r' | 4)) {
            in_line += part.len();
            if edits && in_line > MAX_LINE {
                return Err(format!(
                    "its terminal edits lines now and takes at most {MAX_LINE} bytes in one: \
                     send shorter lines, or start it with pipes"
                ));
            }
            if part.ends_with(b"\n") || part.ends_with(b"\r") || part.ends_with(&[4]) {
                in_line = 0;
            }
        }
        self.in_line = if edits { in_line } else { 0 };
        Ok(())
    }

    /// Cancels a piece and reports how much of it was accepted.
    pub(crate) fn cancel(&mut self, peers: &mut [Peer], peer: u64, id: u64) {
        let Some(at) = self.queue.iter().position(|piece| piece.peer == peer && piece.id == id)
        else {
            // It was accepted meanwhile, and answered.
            return;
        };
        let piece = self.queue.remove(at).expect("found above");
        tell(peers, &piece, Answer::Taken(u64::try_from(piece.written).unwrap_or(0)));
    }

    pub(crate) fn refuse_all(&mut self, peers: &mut [Peer], why: &str) {
        for piece in self.queue.drain(..) {
            tell(peers, &piece, Answer::Failed(why.to_owned()));
        }
    }

    /// Writes as much as the program accepts now.
    pub(crate) fn write(&mut self, streams: &mut Streams, peers: &mut [Peer]) {
        while let Some(piece) = self.queue.front_mut() {
            let fd = match &*streams {
                Streams::Terminal { master, .. } => Some(master.as_fd()),
                Streams::Pipes { input, .. } => input.as_ref().map(AsFd::as_fd),
            };
            let Some(fd) = fd else {
                self.refuse_all(peers, "its input is closed");
                return;
            };
            while piece.written < piece.bytes.len() {
                match rustix::io::write(fd, &piece.bytes[piece.written..]) {
                    Ok(count) => piece.written += count,
                    Err(rustix::io::Errno::AGAIN) => return,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => {
                        if let Streams::Pipes { input, .. } = streams {
                            *input = None;
                        }
                        self.refuse_all(peers, "the program has closed its input");
                        return;
                    }
                }
            }
            let piece = self.queue.pop_front().expect("looked at above");
            if piece.closes {
                if let Streams::Pipes { input, .. } = streams {
                    *input = None;
                }
                tell(peers, &piece, Answer::Ok);
            } else {
                tell(peers, &piece, Answer::Taken(u64::try_from(piece.written).unwrap_or(0)));
            }
        }
    }
}

fn tell(peers: &mut [Peer], piece: &Piece, answer: Answer) {
    if let Some(peer) = peers.iter_mut().find(|peer| peer.name == piece.peer) {
        peer.say(&FromKeeper::Done { id: piece.id, answer });
    }
}
