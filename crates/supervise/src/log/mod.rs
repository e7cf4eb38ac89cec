//! A session's log on disk: the output of its processes, in segments, with an index beside each.
//!
//! A segment is named by the offset of its first byte, in sixteen hexadecimal digits. `….log`
//! contains the bytes as written, with secrets masked, so `cat` can show a log. `….idx` contains a
//! [`Record`] for each *chunk*: bytes of one kind and one process, at most 50 ms or 64 KiB (plus
//! one read at the end). A record is written before its bytes, so a reader that first gets the
//! length of the data and then reads the records can classify every byte.
//!
//! Only the supervisor process writes; it holds a lock on the directory. Readers need no lock, and
//! a segment that is deleted stays readable while they have it open.
//!
//! A crash of the *machine* may leave a partial record, data without a record, or records without
//! data. The next writer repairs them, and readers skip them.

use overmind_core::process::{LogKind, NoteKind};

pub(crate) mod follow;
pub(crate) mod lines;
pub(crate) mod reader;
pub(crate) mod strip;
pub(crate) mod writer;

pub(crate) const RECORD_BYTES: usize = 32;
/// The same as a `u64`, for lengths of files.
pub(crate) const RECORD: u64 = 32;

/// The start of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) at_us: i64,
    pub(crate) offset: u64,
    /// The number of line ends before it, in the whole log.
    pub(crate) line: u64,
    pub(crate) epoch: u32,
    pub(crate) kind: LogKind,
}

const fn code(kind: LogKind) -> u8 {
    match kind {
        LogKind::Output => 1,
        LogKind::Stderr => 2,
        LogKind::Note(NoteKind::Human) => 16,
        LogKind::Note(NoteKind::Restart) => 17,
        LogKind::Note(NoteKind::Killed) => 18,
        LogKind::Note(NoteKind::Ended) => 19,
        LogKind::Note(NoteKind::Note) => 20,
    }
}

const fn kind(code: u8) -> Option<LogKind> {
    Some(match code {
        1 => LogKind::Output,
        2 => LogKind::Stderr,
        16 => LogKind::Note(NoteKind::Human),
        17 => LogKind::Note(NoteKind::Restart),
        18 => LogKind::Note(NoteKind::Killed),
        19 => LogKind::Note(NoteKind::Ended),
        // An unknown kind from a newer supervisor process is shown as a note instead of being lost.
        20.. => LogKind::Note(NoteKind::Note),
        0 | 3..=15 => return None,
    })
}

impl Record {
    pub(crate) fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.at_us.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.line.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[28] = code(self.kind);
        let check = check(&bytes[..30]);
        bytes[30..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// `None` for bytes that no writer wrote.
    pub(crate) fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let eight = |at: usize| bytes[at..at + 8].try_into().expect("eight bytes of a record");
        let four = bytes[24..28].try_into().expect("four bytes of a record");
        (check(&bytes[..30]).to_le_bytes() == bytes[30..]).then_some(())?;
        Some(Self {
            at_us: i64::from_le_bytes(eight(0)),
            offset: u64::from_le_bytes(eight(8)),
            line: u64::from_le_bytes(eight(16)),
            epoch: u32::from_le_bytes(four),
            kind: kind(bytes[28])?,
        })
    }
}

/// Fletcher's checksum with a start value other than zero, so that a record of zeroes is invalid.
fn check(bytes: &[u8]) -> u16 {
    let (mut a, mut b) = (0x5a_u16, 0x3c_u16);
    for byte in bytes {
        a = (a + u16::from(*byte)) % 255;
        b = (b + a) % 255;
    }
    b << 8 | a
}

pub(crate) fn data_name(start: u64) -> String {
    format!("{start:016x}.log")
}

pub(crate) fn index_name(start: u64) -> String {
    format!("{start:016x}.idx")
}

/// The start offset of the segment whose data file has this name.
pub(crate) fn start_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

/// The text of a note in the log, with its line end.
pub(crate) fn note_line(kind: NoteKind, text: &str) -> String {
    match kind {
        NoteKind::Human => format!("[human] {text}\n"),
        NoteKind::Restart | NoteKind::Killed | NoteKind::Ended | NoteKind::Note => {
            format!("--- {text} ---\n")
        }
    }
}

pub(crate) fn newlines(bytes: &[u8]) -> u64 {
    u64::try_from(memchr::memchr_iter(b'\n', bytes).count()).unwrap_or(u64::MAX)
}

pub(crate) fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_unknown_ones_are_refused() {
        let kinds = [
            LogKind::Output,
            LogKind::Stderr,
            LogKind::Note(NoteKind::Human),
            LogKind::Note(NoteKind::Restart),
            LogKind::Note(NoteKind::Killed),
            LogKind::Note(NoteKind::Ended),
            LogKind::Note(NoteKind::Note),
        ];
        for kind in kinds {
            let record = Record { at_us: -5, offset: u64::MAX, line: 77, epoch: 3, kind };
            let bytes = record.to_bytes();
            assert_eq!(Record::from_bytes(&bytes), Some(record));
            for at in 0..RECORD_BYTES {
                let mut torn = bytes;
                torn[at] ^= 0x40;
                assert_eq!(Record::from_bytes(&torn), None, "byte {at}");
            }
        }
        assert_eq!(Record::from_bytes(&[0; RECORD_BYTES]), None);
    }

    #[test]
    fn segments_are_named_by_their_offset() {
        assert_eq!(start_of(&data_name(0xabc)), Some(0xabc));
        for other in ["x.log", "0000000000000abc.idx", "abc.log", "exit-1"] {
            assert_eq!(start_of(other), None, "{other}");
        }
    }
}
