//! Cuts chunks into lines, separately for each stream: a line of standard output that is
//! interrupted by an error or a note is still one line.

use overmind_core::process::{LogItem, LogKind, LogLine, LogPiece, NoteKind};
use overmind_core::time::Timestamp;
use regex::bytes::Regex;

use crate::log::reader::Chunk;
use crate::log::strip::strip;
use crate::log::{Record, length};

/// A longer line is returned in parts, each as a line of its own.
const MAX_LINE: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Cutter {
    pub(crate) grep: Option<Regex>,
    pub(crate) strip: bool,
    pub(crate) notes: bool,
    /// Where the next chunk should begin, and after how many lines, as far as that is known.
    expected: Option<(u64, Option<u64>)>,
    halves: [Option<Half>; 2],
}

/// A line that is not complete yet.
#[derive(Debug)]
struct Half {
    record: Record,
    text: Vec<u8>,
    next: u64,
}

impl Cutter {
    pub(crate) fn new(grep: Option<Regex>, strip: bool, notes: bool) -> Self {
        Self { grep, strip, notes, expected: None, halves: [None, None] }
    }

    /// Sets where reading begins; text that is missing there is reported, too.
    pub(crate) fn begins(&mut self, offset: u64, line: Option<u64>) {
        self.expected = Some((offset, line));
    }

    pub(crate) fn push(&mut self, chunk: Chunk, out: &mut Vec<LogItem>) {
        let Chunk { record, bytes } = chunk;
        match self.expected {
            Some((offset, line)) if offset != record.offset => {
                self.flush(out);
                let lines = line.and_then(|line| record.line.checked_sub(line));
                out.push(LogItem::Gap { from: offset, to: record.offset, lines });
            }
            None | Some(_) => {}
        }
        let end = record.offset + length(&bytes);
        let slot = match record.kind {
            LogKind::Output => 0,
            LogKind::Stderr => 1,
            LogKind::Note(note) => {
                // After a process has ended, its lines cannot be completed.
                if note == NoteKind::Ended {
                    self.flush(out);
                }
                self.expected = Some((end, Some(record.line + crate::log::newlines(&bytes))));
                if self.notes {
                    // A note that was written within a line begins with that line's end.
                    let text = bytes.trim_ascii_end();
                    let text = text.strip_prefix(b"\n").unwrap_or(text).to_vec();
                    self.emit(record, text, end, false, out);
                }
                return;
            }
        };
        if self.halves[slot].as_ref().is_some_and(|half| half.record.epoch != record.epoch) {
            self.flush_one(slot, out);
        }
        let mut at = 0;
        let mut line = record.line;
        for newline in memchr::memchr_iter(b'\n', &bytes) {
            let next = record.offset + length(&bytes[..=newline]);
            let piece = &bytes[at..newline];
            let begun = self.halves[slot].take();
            let (first, text) = match begun {
                Some(mut half) => {
                    half.text.extend_from_slice(piece);
                    (half.record, half.text)
                }
                None => (Record { line, ..record }, piece.to_vec()),
            };
            self.emit(Record { line, ..first }, text, next, false, out);
            line += 1;
            at = newline + 1;
        }
        let rest = &bytes[at..];
        if !rest.is_empty() {
            let half = self.halves[slot].get_or_insert_with(|| Half {
                record: Record { line, ..record },
                text: Vec::new(),
                next: end,
            });
            half.text.extend_from_slice(rest);
            half.next = end;
            if half.text.len() >= MAX_LINE {
                self.flush_one(slot, out);
            }
        }
        self.expected = Some((end, Some(line)));
    }

    /// Returns lines without a line end, because nothing more will come.
    pub(crate) fn flush(&mut self, out: &mut Vec<LogItem>) {
        // A reader that continues after the last of them gets nothing twice, although notes may
        // have come since.
        if let (Some((end, _)), Some(last)) =
            (self.expected, self.halves.iter_mut().flatten().last())
        {
            last.next = last.next.max(end);
        }
        for slot in 0..self.halves.len() {
            self.flush_one(slot, out);
        }
    }

    fn flush_one(&mut self, slot: usize, out: &mut Vec<LogItem>) {
        if let Some(Half { record, text, next }) = self.halves[slot].take() {
            self.emit(record, text, next, true, out);
        }
    }

    fn emit(
        &self,
        record: Record,
        text: Vec<u8>,
        next: u64,
        partial: bool,
        out: &mut Vec<LogItem>,
    ) {
        let Record { at_us, line: number, epoch, kind, .. } = record;
        let stripped = (self.strip || self.grep.is_some()).then(|| strip(&text));
        if let Some(grep) = &self.grep
            && !grep.is_match(stripped.as_deref().unwrap_or(&text))
        {
            return;
        }
        let mut text = match stripped {
            Some(stripped) if self.strip => stripped,
            Some(_) | None => text,
        };
        // A terminal ends lines with both characters.
        if text.last() == Some(&b'\r') {
            text.pop();
        }
        let at = Timestamp::from_micros(at_us);
        out.push(LogItem::Line(LogLine { next, number, at, epoch, kind, text, partial }));
    }
}

pub(crate) fn piece(chunk: Chunk) -> LogPiece {
    let Chunk { record: Record { at_us, offset, epoch, kind, .. }, bytes } = chunk;
    LogPiece { offset, at: Timestamp::from_micros(at_us), epoch, kind, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: LogKind = LogKind::Note(NoteKind::Human);

    /// Feeds pieces that follow each other and shows the lines as text.
    fn cut(mut cutter: Cutter, pieces: &[(LogKind, &str)]) -> Vec<String> {
        let mut out = Vec::new();
        let (mut offset, mut line) = (0, 0);
        for (kind, text) in pieces {
            let record = Record { at_us: 0, offset, line, epoch: 1, kind: *kind };
            cutter.push(Chunk { record, bytes: text.as_bytes().to_vec() }, &mut out);
            offset += length(text.as_bytes());
            line += crate::log::newlines(text.as_bytes());
        }
        cutter.flush(&mut out);
        out.into_iter()
            .map(|item| match item {
                LogItem::Line(line) => {
                    let text = String::from_utf8(line.text).unwrap();
                    format!("{}:{text}{}", line.number, if line.partial { "…" } else { "" })
                }
                LogItem::Gap { from, to, .. } => format!("gap {from}-{to}"),
            })
            .collect()
    }

    #[test]
    fn a_line_interrupted_by_a_marker_stays_one_line() {
        let pieces = [
            (LogKind::Output, "{\"a\":"),
            (LogKind::Stderr, "warning\n"),
            (NOTE, "\n[human] hi\n"),
            (LogKind::Output, "1}\nlast"),
        ];
        assert_eq!(
            cut(Cutter::new(None, false, true), &pieces),
            ["0:warning", "1:[human] hi", "3:{\"a\":1}", "4:last…"]
        );
        assert_eq!(
            cut(Cutter::new(None, false, false), &pieces),
            ["0:warning", "3:{\"a\":1}", "4:last…"]
        );
    }

    #[test]
    fn an_unfinished_last_line_precedes_the_end_marker() {
        let ended = LogKind::Note(NoteKind::Ended);
        let pieces = [(LogKind::Output, "one\ntwo"), (ended, "\n--- ended ---\n")];
        let lines = cut(Cutter::new(None, false, true), &pieces);
        assert_eq!(lines, ["0:one", "1:two…", "1:--- ended ---"]);
        assert_eq!(cut(Cutter::new(None, false, false), &pieces), ["0:one", "1:two…"]);
    }

    #[test]
    fn a_resumed_reader_repeats_no_line_after_a_partial_one() {
        let (mut cutter, mut out) = (Cutter::new(None, false, true), Vec::new());
        let record = Record { at_us: 0, offset: 0, line: 0, epoch: 1, kind: LogKind::Output };
        cutter.push(Chunk { record, bytes: b"half".to_vec() }, &mut out);
        let note = Record { offset: 4, kind: NOTE, ..record };
        cutter.push(Chunk { record: note, bytes: b"\n[human] hi\n".to_vec() }, &mut out);
        cutter.flush(&mut out);
        let nexts: Vec<_> = out
            .iter()
            .filter_map(|item| match item {
                LogItem::Line(line) => Some(line.next),
                LogItem::Gap { .. } => None,
            })
            .collect();
        assert_eq!(nexts, [16, 16]);
    }

    #[test]
    fn lines_are_searched_and_shown_without_colours() {
        let pieces = [(LogKind::Output, "\x1b[31mre\x1b[0md\r\ngreen\r\nred too\r\n")];
        let grep = Some(Regex::new("^red").unwrap());
        assert_eq!(cut(Cutter::new(grep.clone(), true, true), &pieces), ["0:red", "2:red too"]);
        assert_eq!(cut(Cutter::new(grep, false, true), &pieces)[0], "0:\x1b[31mre\x1b[0md");
    }

    #[test]
    fn gaps_are_reported_and_huge_lines_are_cut() {
        let mut cutter = Cutter::new(None, false, true);
        let mut out = Vec::new();
        let record = Record { at_us: 0, offset: 0, line: 0, epoch: 1, kind: LogKind::Output };
        cutter.push(Chunk { record, bytes: b"half".to_vec() }, &mut out);
        let later = Record { offset: 100, line: 9, ..record };
        cutter.push(Chunk { record: later, bytes: vec![b'x'; MAX_LINE + 5] }, &mut out);
        assert!(matches!(&out[0], LogItem::Line(line) if line.partial && line.text == b"half"));
        assert_eq!(out[1], LogItem::Gap { from: 4, to: 100, lines: Some(9) });
        assert!(matches!(&out[2], LogItem::Line(line) if line.partial));
    }
}
