//! Parses the protocol messages of commands from their logs.
//!
//! The log is read by offset, and each report is recorded with the offset at which reading
//! continues. So nothing is reported twice or never, whatever is killed in between, and a program
//! that writes faster than it is read is not delayed.

use overmind_core::command::{Launch, LifeWord};
use overmind_core::ids::SessionId;
use overmind_core::process::provider::launch::Input;
use overmind_core::process::provider::{Fact, MAX_LINE, Reader};
use overmind_core::process::{PieceReader, ProcessError, ProcessKey, Processes};

use super::life::{Said, Say};

/// Most bytes that are read before their messages are reported.
const AT_ONCE: u64 = 512 << 10;

/// The offset up to which a log has been read. None for a command without a protocol.
#[derive(Debug)]
pub(super) struct Reading(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    reader: Reader,
    /// Opened at the first read.
    pieces: Option<Box<dyn PieceReader>>,
    facts: Vec<Fact>,
    /// Whether a failure was already logged.
    failed: bool,
}

impl Reading {
    pub(super) fn of(launch: &Launch) -> Self {
        let asked = || launch.asked.iter().cloned().collect();
        Self(launch.read_from.map(|from| {
            Box::new(Open {
                reader: Reader::new(launch.provider, from).after(asked()),
                pieces: None,
                facts: Vec::new(),
                failed: false,
            })
        }))
    }

    /// Whether there is anything to read.
    pub(super) fn is_open(&self) -> bool {
        self.0.is_some()
    }
}

/// Reads on, at most [`AT_ONCE`], and reports the messages. Returns whether a turn has ended in
/// them.
pub(super) async fn on(
    processes: &dyn Processes,
    key: ProcessKey,
    reading: &mut Reading,
    say: &Say,
) -> bool {
    let Some(open) = &mut reading.0 else { return false };
    open.more(processes, key).await;
    let over = open.facts.iter().any(|fact| matches!(fact, Fact::Result { .. }));
    open.tell(say);
    over
}

/// Called when its answer is there. A program whose input is open only for that ends when it is
/// closed.
pub(super) async fn answered(processes: &dyn Processes, key: ProcessKey, input: Input) {
    if input != Input::UntilAnswer {
        return;
    }
    match processes.close_input(key).await {
        // It was closed before, or the program has already ended.
        Ok(()) | Err(ProcessError::InputRefused { .. } | ProcessError::NotAlive(_)) => {}
        Err(err) => tracing::warn!(life = %key, error = %err, "its input could not be closed"),
    }
}

/// Reads the rest of an ended process's log.
pub(super) async fn to_the_end(
    processes: &dyn Processes,
    key: ProcessKey,
    reading: &mut Reading,
    say: &Say,
) {
    let Some(open) = &mut reading.0 else { return };
    while open.more(processes, key).await {
        open.tell(say);
    }
    open.reader.end(&mut open.facts);
    open.tell(say);
}

impl Open {
    /// Whether there may be more.
    async fn more(&mut self, processes: &dyn Processes, key: ProcessKey) -> bool {
        let until = self.reader.next() + AT_ONCE;
        while self.reader.next() < until {
            match self.pieces(processes, key).await {
                Ok(true) => {}
                Ok(false) => return false,
                Err(err) => {
                    if !self.failed {
                        tracing::warn!(life = %key, error = %err, "its output cannot be read");
                    }
                    self.failed = true;
                    self.pieces = None;
                    return false;
                }
            }
        }
        true
    }

    /// Takes the next pieces; false if none are left.
    async fn pieces(
        &mut self,
        processes: &dyn Processes,
        key: ProcessKey,
    ) -> Result<bool, ProcessError> {
        let pieces = match &mut self.pieces {
            Some(pieces) => pieces,
            None => {
                let opened = processes.pieces(key.session, self.reader.next(), false).await?;
                self.pieces.insert(opened)
            }
        };
        let next = pieces.next().await?;
        for piece in &next {
            self.reader.piece(piece, &mut self.facts);
        }
        Ok(!next.is_empty())
    }

    /// Lines without a message are not recorded: they are read again after a restart, which is
    /// cheap.
    fn tell(&mut self, say: &Say) {
        if !self.facts.is_empty() {
            let facts = std::mem::take(&mut self.facts);
            say(Said::Word(LifeWord::Read { upto: self.reader.upto(), facts }));
        }
    }
}

/// The line that begins at this offset of a log, as far as it exists.
pub(super) async fn line_at(
    processes: &dyn Processes,
    session: SessionId,
    at: u64,
) -> Result<Vec<u8>, ProcessError> {
    let mut pieces = processes.pieces(session, at, false).await?;
    let mut line = Vec::new();
    let mut begun = false;
    while line.len() < MAX_LINE {
        let next = pieces.next().await?;
        if next.is_empty() {
            break;
        }
        for piece in next {
            // If the log's limits removed it, the position contains other text.
            if !begun && piece.offset > at {
                return Ok(Vec::new());
            }
            begun = true;
            if piece.kind != overmind_core::process::LogKind::Output {
                continue;
            }
            let from = usize::try_from(at.saturating_sub(piece.offset)).unwrap_or(usize::MAX);
            let bytes = piece.bytes.get(from..).unwrap_or_default();
            match bytes.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    line.extend_from_slice(&bytes[..end]);
                    return Ok(line);
                }
                None => line.extend_from_slice(bytes),
            }
        }
    }
    Ok(line)
}
