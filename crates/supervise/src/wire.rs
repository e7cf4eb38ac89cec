//! The messages between daemon and supervisor process, and their frames.
//!
//! A frame consists of its length (four bytes, little-endian, without itself), one byte for its
//! kind, and the body: JSON, or bytes for the command's input. Fields may be added without a new
//! [`PROTOCOL`]: unknown ones are ignored, missing ones have defaults. A supervisor process answers
//! an unknown request with an error and changes nothing. The number is increased when a meaning
//! changes; [`OLDEST`] is the oldest one that this daemon understands.

use std::io;
use std::path::PathBuf;

use overmind_core::ids::SessionId;
use overmind_core::process::{
    End, EndedBy, ExitStatus, Leftovers, LogLimits, NoteKind, ProcessExit, ProcessIo, ProcessKey,
    ProcessSpec, ProcessUser, Started, StderrKind, StdinKind, TerminalSize,
};
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::group::Plan;

/// The protocol version of this program.
pub(crate) const PROTOCOL: u32 = 1;
/// The oldest version of a supervisor process with which this program can work.
pub(crate) const OLDEST: u32 = 1;

/// Maximum number of bytes of a frame; an order with a long environment is the largest message.
pub(crate) const MAX_FRAME: usize = 4 << 20;
/// Maximum number of bytes of one piece of input.
pub(crate) const MAX_INPUT: usize = 16 << 10;

const JSON: u8 = 0;
const INPUT: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) session: SessionId,
    pub(crate) epoch: u32,
}

impl From<ProcessKey> for Key {
    fn from(ProcessKey { session, epoch }: ProcessKey) -> Self {
        Self { session, epoch }
    }
}

impl From<Key> for ProcessKey {
    fn from(Key { session, epoch }: Key) -> Self {
        Self { session, epoch }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Size {
    pub(crate) columns: u16,
    pub(crate) rows: u16,
}

impl From<TerminalSize> for Size {
    fn from(TerminalSize { columns, rows }: TerminalSize) -> Self {
        Self { columns, rows }
    }
}

impl From<Size> for TerminalSize {
    fn from(Size { columns, rows }: Size) -> Self {
        Self { columns, rows }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Io {
    Terminal(Size),
    Pipes { input: bool, tagged: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    Human,
    Restart,
    Killed,
    Ended,
    #[serde(rename = "Note")]
    Other,
}

impl From<NoteKind> for Note {
    fn from(kind: NoteKind) -> Self {
        match kind {
            NoteKind::Human => Self::Human,
            NoteKind::Restart => Self::Restart,
            NoteKind::Killed => Self::Killed,
            NoteKind::Ended => Self::Ended,
            NoteKind::Note => Self::Other,
        }
    }
}

impl From<Note> for NoteKind {
    fn from(kind: Note) -> Self {
        match kind {
            Note::Human => Self::Human,
            Note::Restart => Self::Restart,
            Note::Killed => Self::Killed,
            Note::Ended => Self::Ended,
            Note::Other => Self::Note,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub(crate) total_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) max_age_s: u64,
}

impl From<LogLimits> for Limits {
    fn from(limits: LogLimits) -> Self {
        Self {
            total_bytes: limits.total_bytes,
            segment_bytes: limits.segment_bytes,
            max_age_s: limits.max_age.as_secs(),
        }
    }
}

/// The first frame on a new supervisor process's socket, with all data that it needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) protocol: u32,
    pub(crate) key: Key,
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: PathBuf,
    pub(crate) env: Vec<(String, String)>,
    /// Secrets that are masked in the log. Like the environment, they are only in the process's
    /// memory.
    #[serde(default)]
    pub(crate) secrets: Vec<String>,
    pub(crate) io: Io,
    pub(crate) log: Limits,
    pub(crate) opening: Option<(Note, String)>,
    /// The grace for remaining processes; with `None` they may stay.
    pub(crate) leftovers_grace_ms: Option<u64>,
    pub(crate) group: Plan,
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) enclosed: bool,
    /// The earliest start, in microseconds since the epoch.
    #[serde(default)]
    pub(crate) not_before_us: Option<i64>,
}

impl Order {
    pub(crate) fn new(spec: ProcessSpec, group: Plan) -> Self {
        Self {
            protocol: PROTOCOL,
            key: spec.key.into(),
            argv: spec.argv,
            cwd: spec.cwd,
            env: spec.env,
            secrets: spec.secrets,
            io: match spec.io {
                ProcessIo::Terminal(size) => Io::Terminal(size.into()),
                ProcessIo::Pipes { stdin, stderr } => Io::Pipes {
                    input: match stdin {
                        StdinKind::Open => true,
                        StdinKind::Null => false,
                    },
                    tagged: match stderr {
                        StderrKind::Tagged => true,
                        StderrKind::Merged => false,
                    },
                },
            },
            log: spec.log.into(),
            opening: spec.opening.map(|(kind, text)| (kind.into(), text)),
            leftovers_grace_ms: match spec.leftovers {
                Leftovers::Keep => None,
                Leftovers::End { grace } => Some(millis(grace)),
            },
            group,
            user: spec.user.map(|ProcessUser { uid, gid }| (uid, gid)),
            enclosed: spec.enclosed,
            not_before_us: spec.not_before.map(Timestamp::as_micros),
        }
    }
}

pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Sends TERM, and KILL after the grace; with `None`, only KILL.
    End {
        grace_ms: Option<u64>,
        reason: Option<String>,
    },
    Signal(i32),
    /// With `redraw` the program is signalled even if the size is unchanged.
    Resize {
        size: Size,
        redraw: bool,
    },
    CloseInput,
    /// Cancels the rest of this input, because its sender no longer waits.
    CancelInput {
        id: u64,
    },
    Note {
        kind: Note,
        text: String,
    },
    /// Whether every new output is reported, or only occasionally that there was some.
    Watch(bool),
    Usage,
    /// The daemon has recorded the exit.
    Acknowledge,
}

impl Ask {
    pub(crate) fn end(how: &End, reason: Option<String>) -> Self {
        match how {
            End::Stop { grace } => Self::End { grace_ms: Some(millis(*grace)), reason },
            End::Kill => Self::End { grace_ms: None, reason },
        }
    }
}

/// A message from the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToKeeper {
    Start(Box<Order>),
    /// The first message of a later daemon.
    Hello {
        protocol: u32,
    },
    Request {
        id: u64,
        ask: Ask,
    },
}

/// A running process, as its supervisor process describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) protocol: u32,
    pub(crate) key: Key,
    pub(crate) pid: u32,
    pub(crate) started_us: i64,
    /// The offset at which its output begins.
    pub(crate) offset: u64,
    /// The current end of the log.
    pub(crate) end: u64,
    pub(crate) last_output_us: i64,
    pub(crate) terminal: Option<Size>,
}

impl Running {
    pub(crate) fn started(&self) -> Started {
        Started {
            key: self.key.into(),
            pid: self.pid,
            at: Timestamp::from_micros(self.started_us),
            offset: self.offset,
        }
    }
}

/// A message from the supervisor process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FromKeeper {
    /// The answer to `Start` and to `Hello`.
    Running(Running),
    /// The answer to `Start` if nothing runs.
    Refused {
        step: String,
        reason: String,
    },
    /// The log ends at this offset; `at` is the time of the last output.
    Output {
        end: u64,
        at_us: i64,
    },
    Done {
        id: u64,
        answer: Answer,
    },
    Exited(Exit),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Ok,
    Failed(String),
    /// The number of input bytes that were accepted.
    Taken(u64),
    Usage {
        cpu_us: u64,
        resident_bytes: u64,
        processes: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum By {
    Itself,
    Stop,
    Kill,
}

/// The exit of a process, on the wire and in its `exit` record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exit {
    pub(crate) key: Key,
    /// Either this or the signal is set.
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) by: By,
    pub(crate) started_us: i64,
    pub(crate) ended_us: i64,
    pub(crate) user_us: u64,
    pub(crate) system_us: u64,
    pub(crate) max_resident_bytes: u64,
    pub(crate) leftovers: u32,
    pub(crate) survivors: u32,
    pub(crate) offset: u64,
    /// Missing in messages of earlier versions.
    #[serde(default)]
    pub(crate) log_removed: bool,
}

impl From<Exit> for ProcessExit {
    fn from(exit: Exit) -> Self {
        Self {
            status: match (exit.code, exit.signal) {
                (_, Some(signal)) => ExitStatus::Signal(signal),
                (code, None) => ExitStatus::Code(code.unwrap_or(-1)),
            },
            by: match exit.by {
                By::Itself => EndedBy::Itself,
                By::Stop => EndedBy::Stop,
                By::Kill => EndedBy::Kill,
            },
            started_at: Timestamp::from_micros(exit.started_us),
            ended_at: Timestamp::from_micros(exit.ended_us),
            user: std::time::Duration::from_micros(exit.user_us),
            system: std::time::Duration::from_micros(exit.system_us),
            max_resident_bytes: exit.max_resident_bytes,
            leftovers: exit.leftovers,
            survivors: exit.survivors,
            offset: exit.offset,
            log_removed: exit.log_removed,
        }
    }
}

/// Adds one frame with a message to `out`.
pub(crate) fn put(out: &mut Vec<u8>, message: &impl Serialize) {
    let at = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, JSON]);
    serde_json::to_writer(&mut *out, message).expect("messages are plain data, written to memory");
    seal(out, at);
}

/// Adds one frame with input to `out`.
pub(crate) fn put_input(out: &mut Vec<u8>, id: u64, bytes: &[u8]) {
    let at = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, INPUT]);
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(bytes);
    seal(out, at);
}

fn seal(out: &mut [u8], at: usize) {
    let length = u32::try_from(out.len() - at - 4).expect("frames are far below 4 GiB");
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

/// One received frame.
#[derive(Debug)]
pub(crate) enum Frame<T> {
    Message(T),
    Input {
        id: u64,
        bytes: Vec<u8>,
    },
    /// A message of a newer program.
    Unknown(Vec<u8>),
}

/// Takes the first complete frame out of `buffer`; `None` if there is none yet.
///
/// # Errors
///
/// Fails if the bytes do not follow this protocol.
pub(crate) fn take<T: for<'de> Deserialize<'de>>(
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Frame<T>>> {
    let Some((head, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
    if length == 0 || length > MAX_FRAME {
        return Err(bad(format!("a frame of {length} bytes")));
    }
    let Some(frame) = rest.get(..length) else { return Ok(None) };
    let (kind, body) = (frame[0], &frame[1..]);
    let taken = match kind {
        JSON => match serde_json::from_slice(body) {
            Ok(message) => Frame::Message(message),
            Err(_) => Frame::Unknown(body.to_vec()),
        },
        INPUT => match body.split_first_chunk::<8>() {
            Some((id, bytes)) if bytes.len() <= MAX_INPUT => {
                Frame::Input { id: u64::from_le_bytes(*id), bytes: bytes.to_vec() }
            }
            Some(_) | None => return Err(bad("input of a wrong length".to_owned())),
        },
        kind => return Err(bad(format!("a frame of kind {kind}"))),
    };
    buffer.drain(..4 + length);
    if buffer.is_empty() {
        // An order may have been large, and most connections are idle.
        *buffer = Vec::new();
    }
    Ok(Some(taken))
}

fn bad(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_across_any_cuts() {
        let mut all = Vec::new();
        put(&mut all, &ToKeeper::Hello { protocol: 1 });
        put_input(&mut all, 9, b"\0raw\xff");
        put(&mut all, &ToKeeper::Hello { protocol: 1 });
        let mut buffer = Vec::new();
        let mut seen = Vec::new();
        for byte in all {
            buffer.push(byte);
            while let Some(frame) = take::<ToKeeper>(&mut buffer).unwrap() {
                seen.push(format!("{frame:?}"));
            }
        }
        assert_eq!(seen.len(), 3);
        assert!(seen[0].contains("Hello") && seen[2].contains("Hello"), "{seen:?}");
        assert!(seen[1].contains("id: 9"), "{seen:?}");
    }

    #[test]
    fn messages_of_newer_versions_are_skipped_and_invalid_ones_refused() {
        let mut buffer = Vec::new();
        put(&mut buffer, &serde_json::json!({"Dance": {"slowly": true}}));
        assert!(matches!(take::<ToKeeper>(&mut buffer), Ok(Some(Frame::Unknown(_)))));
        let mut added = Vec::new();
        put(&mut added, &serde_json::json!({"Hello": {"protocol": 1, "colour": "red"}}));
        assert!(matches!(
            take::<ToKeeper>(&mut added),
            Ok(Some(Frame::Message(ToKeeper::Hello { protocol: 1 })))
        ));
        assert!(take::<ToKeeper>(&mut b"GET / HTTP/1.1\r\n".to_vec()).is_err());
        assert!(take::<ToKeeper>(&mut vec![1, 0, 0, 0, 77]).is_err());
    }
}
