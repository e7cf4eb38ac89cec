//! The messages from guest to host, over the guest's second port: frames with a kind, a length and
//! bytes.
//!
//! If requested, output comes piece by piece while the command runs; the answer comes last. The
//! host trusts it no more than necessary: a compromised guest can lie about its own command, and
//! the host limits how much it keeps.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::sandbox::{OutputSink, OutputStream};

use crate::microvm::guest::Answer;

/// Longest piece of output in a frame, equal to the limit of the drivers' port.
pub(crate) const PIECE: usize = 64 << 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An empty frame that flushes earlier ones.
    Nothing,
    /// The command is about to run; later errors are not start errors.
    Started,
    Output(OutputStream),
    /// The answer, as JSON.
    Answer,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Nothing => b'.',
            Self::Started => b's',
            Self::Output(OutputStream::Stdout) => b'o',
            Self::Output(OutputStream::Stderr) => b'e',
            Self::Answer => b'a',
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        match byte {
            b'.' => Some(Self::Nothing),
            b's' => Some(Self::Started),
            b'o' => Some(Self::Output(OutputStream::Stdout)),
            b'e' => Some(Self::Output(OutputStream::Stderr)),
            b'a' => Some(Self::Answer),
            _ => None,
        }
    }
}

/// The number of bytes of kind and length.
const HEAD: usize = 5;

/// Builds one frame. Data longer than four bytes can count is cut, which no caller sends.
pub(crate) fn frame(kind: Kind, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(HEAD + bytes.len());
    frame.push(kind.byte());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(bytes);
    frame
}

/// Everything that was received.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) started: bool,
    pub(crate) answer: Option<Answer>,
}

impl Heard {
    /// Whether the guest has received its order and begun with it.
    pub(crate) fn begun(&self) -> bool {
        self.started || self.answer.is_some()
    }
}

/// The host's receiver: parses the port's bytes as they come.
pub(crate) struct Listener {
    /// The frame that is being received, with its head.
    frame: Vec<u8>,
    /// The longest accepted answer, in bytes.
    longest: usize,
    sink: Option<OutputSink>,
    heard: Heard,
    /// Whether an invalid or too long frame came; nothing after it can be parsed.
    lost: bool,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("heard", &self.heard).finish_non_exhaustive()
    }
}

impl Listener {
    /// Keeps an answer of at most `longest` bytes. `sink` is called with output while bytes are
    /// parsed.
    pub(crate) fn new(longest: usize, sink: Option<OutputSink>) -> Self {
        Self { frame: Vec::new(), longest, sink, heard: Heard::default(), lost: false }
    }

    pub(crate) fn hear(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.lost {
            let wanted = match self.wanted() {
                Some(wanted) => wanted,
                None => {
                    self.lost = true;
                    return;
                }
            };
            let missing = (wanted - self.frame.len()).min(bytes.len());
            self.frame.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            // A head may announce a frame without bytes.
            if self.frame.len() >= HEAD && self.wanted() == Some(self.frame.len()) {
                self.take();
            }
        }
    }

    /// The length of the frame, if its head is known; `None` if it is invalid.
    fn wanted(&self) -> Option<usize> {
        let Some((head, _)) = self.frame.split_at_checked(HEAD) else { return Some(HEAD) };
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        let length = usize::try_from(length).ok()?;
        let most = match Kind::of(head[0])? {
            Kind::Nothing | Kind::Started => 0,
            Kind::Output(_) => PIECE,
            Kind::Answer => self.longest,
        };
        (length <= most).then_some(HEAD + length)
    }

    fn take(&mut self) {
        let bytes = &self.frame[HEAD..];
        match Kind::of(self.frame[0]) {
            Some(Kind::Started) => self.heard.started = true,
            Some(Kind::Output(stream)) if !bytes.is_empty() => {
                if let Some(sink) = &self.sink {
                    sink(stream, bytes);
                }
            }
            Some(Kind::Answer) => self.heard.answer = serde_json::from_slice(bytes).ok(),
            Some(Kind::Nothing | Kind::Output(_)) | None => {}
        }
        self.frame.clear();
    }
}

/// A listener as the sink of the emulator's output; [`Ear::heard`] returns what it received.
#[derive(Clone, Debug)]
pub(crate) struct Ear(Arc<Mutex<Listener>>);

impl Ear {
    pub(crate) fn new(longest: usize, sink: Option<OutputSink>) -> Self {
        Self(Arc::new(Mutex::new(Listener::new(longest, sink))))
    }

    /// The sink for the emulator's standard output, which is the port.
    pub(crate) fn sink(&self) -> OutputSink {
        let listener = Arc::clone(&self.0);
        Arc::new(move |stream, bytes| match stream {
            OutputStream::Stdout => {
                listener.lock().unwrap_or_else(PoisonError::into_inner).hear(bytes);
            }
            OutputStream::Stderr => {}
        })
    }

    pub(crate) fn heard(&self) -> Heard {
        let mut listener = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut listener.heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pieces = Arc<Mutex<Vec<(OutputStream, Vec<u8>)>>>;

    fn listening(longest: usize) -> (Listener, Pieces) {
        let pieces = Pieces::default();
        let into = Arc::clone(&pieces);
        let sink: OutputSink = Arc::new(move |stream, bytes| {
            into.lock().unwrap().push((stream, bytes.to_vec()));
        });
        (Listener::new(longest, Some(sink)), pieces)
    }

    fn answer() -> Vec<u8> {
        serde_json::to_vec(&Answer::Failed("why".to_owned())).unwrap()
    }

    #[test]
    fn frames_are_parsed_in_order_across_any_cuts() {
        let (out, err) = (OutputStream::Stdout, OutputStream::Stderr);
        let all = [
            frame(Kind::Started, b""),
            frame(Kind::Output(out), "aü".as_bytes()),
            frame(Kind::Output(err), b"e"),
            frame(Kind::Output(out), &[b'x'; PIECE]),
            frame(Kind::Output(out), b""),
            frame(Kind::Answer, &answer()),
            frame(Kind::Nothing, b""),
        ]
        .concat();
        for step in [1, 3, 7, 4096, all.len()] {
            let (mut listener, pieces) = listening(1000);
            all.chunks(step).for_each(|bytes| listener.hear(bytes));
            assert!(listener.heard.started && !listener.lost);
            assert!(matches!(&listener.heard.answer, Some(Answer::Failed(why)) if why == "why"));
            let expected = vec![
                (out, "aü".as_bytes().to_vec()),
                (err, b"e".to_vec()),
                (out, vec![b'x'; PIECE]),
            ];
            assert_eq!(*pieces.lock().unwrap(), expected, "in steps of {step}");
        }
    }

    #[test]
    fn invalid_and_oversized_frames_end_the_parser() {
        let out = OutputStream::Stdout;
        for wrong in [
            b"kernel panic".to_vec(),
            frame(Kind::Answer, &[b' '; 1001]),
            frame(Kind::Output(out), &[b'x'; PIECE + 1]),
            frame(Kind::Started, b"x"),
        ] {
            let (mut listener, pieces) = listening(1000);
            listener.hear(&wrong);
            listener.hear(&frame(Kind::Answer, &answer()));
            assert!(listener.lost && listener.heard.answer.is_none());
            assert!(listener.frame.len() <= HEAD, "nothing of it is kept");
            assert!(pieces.lock().unwrap().is_empty());
        }
    }

    #[test]
    fn truncated_answers_are_ignored() {
        let (mut listener, _) = listening(1000);
        let whole = frame(Kind::Answer, &answer());
        listener.hear(&whole[..whole.len() - 1]);
        assert!(listener.heard.answer.is_none());
        listener.hear(&whole[whole.len() - 1..]);
        assert!(listener.heard.answer.is_some());
    }
}
