//! Reads a log in chunks, from any position. It blocks; [`crate::log::follow`] provides the async
//! side.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use overmind_core::process::{LogFrom, LogKind};
use overmind_core::time::Timestamp;

use crate::log::writer::segments;
use crate::log::{RECORD, RECORD_BYTES, Record, data_name, index_name, length, newlines};

/// Bytes of one kind and process, with the line number at their start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) record: Record,
    pub(crate) bytes: Vec<u8>,
}

impl Chunk {
    pub(crate) fn end(&self) -> u64 {
        self.record.offset + length(&self.bytes)
    }
}

/// A position in a log, and the segment there.
#[derive(Debug)]
pub(crate) struct Cursor {
    dir: PathBuf,
    pub(crate) offset: u64,
    segment: Option<Segment>,
}

#[derive(Debug)]
struct Segment {
    start: u64,
    data: File,
    index: File,
    /// The record of the cursor's position, once it was searched.
    record: Option<u64>,
}

impl Segment {
    fn open(dir: &Path, start: u64) -> io::Result<Self> {
        Ok(Self {
            start,
            data: File::open(dir.join(data_name(start)))?,
            index: File::open(dir.join(index_name(start)))?,
            record: None,
        })
    }

    fn end(&self) -> io::Result<u64> {
        Ok(self.start + self.data.metadata()?.len())
    }

    fn records(&self) -> io::Result<u64> {
        Ok(self.index.metadata()?.len() / RECORD)
    }

    /// Reads a record. A damaged one counts as unowned, at the position of the one before.
    fn record(&self, n: u64) -> io::Result<Option<Record>> {
        let mut bytes = [0; RECORD_BYTES];
        match self.index.read_exact_at(&mut bytes, n * RECORD) {
            Ok(()) => Ok(Record::from_bytes(&bytes)),
            Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// The number of the last record for which `before` is true; it must be true for a prefix of
    /// the records.
    fn last_where(&self, before: impl Fn(&Record) -> bool) -> io::Result<Option<u64>> {
        let (mut low, mut high) = (0, self.records()?);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.record(middle)?.is_some_and(|record| before(&record)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low.checked_sub(1))
    }

    fn lines_between(&self, from: u64, to: u64) -> io::Result<u64> {
        let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(0)];
        let count = read_at(&self.data, &mut bytes, from - self.start)?;
        Ok(newlines(&bytes[..count]))
    }
}

/// Reads until `buffer` is full or the file ends.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let from = at + length(&buffer[..filled]);
        match file.read_at(&mut buffer[filled..], from) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(filled)
}

/// The segments of a log; none if there is no log.
fn all_segments(dir: &Path) -> io::Result<Vec<u64>> {
    match File::open(dir) {
        Ok(dir) => segments(dir),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(err) => Err(err),
    }
}

/// The start and the end of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

pub(crate) fn extent(dir: &Path) -> io::Result<Extent> {
    let all = all_segments(dir)?;
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return Ok(Extent::default()) };
    let data = std::fs::metadata(dir.join(data_name(*last)))?.len();
    Ok(Extent { from: *first, to: last + data })
}

impl Cursor {
    pub(crate) fn new(dir: PathBuf, offset: u64) -> Self {
        Self { dir, offset, segment: None }
    }

    /// Finds the position of a query.
    pub(crate) fn find(dir: PathBuf, from: LogFrom) -> io::Result<Self> {
        let offset = match from {
            LogFrom::Start => 0,
            LogFrom::Offset(offset) => offset,
            LogFrom::End => extent(&dir)?.to,
            LogFrom::Since(at) => since(&dir, at)?,
            LogFrom::Tail(lines) => tail(&dir, lines)?,
        };
        Ok(Self::new(dir, offset))
    }

    /// The next chunks, together about `max_bytes`, cut at the end of the segment; empty at the
    /// end. The first one may begin after the cursor's position if the text between was deleted.
    pub(crate) fn next(&mut self, max_bytes: usize) -> io::Result<Vec<Chunk>> {
        loop {
            if self.segment.is_none() && !self.enter()? {
                return Ok(Vec::new());
            }
            let segment = self.segment.as_mut().expect("entered above");
            let chunks = read_chunks(segment, self.offset, max_bytes)?;
            if let Some(last) = chunks.last() {
                self.offset = last.end();
                return Ok(chunks);
            }
            // The segment's end is reached. If another segment begins here, this one no longer
            // grows; but it may have grown between the read and this check.
            let start = segment.start;
            let all = all_segments(&self.dir)?;
            if all.last().is_none_or(|last| *last <= start) {
                return Ok(Vec::new());
            }
            let segment = self.segment.as_mut().expect("entered above");
            if self.offset < segment.end()? {
                continue;
            }
            self.segment = None;
            // This is the next segment or, if that was already deleted, the one after it.
            let next = all.iter().find(|one| **one > start).copied();
            self.offset = self.offset.max(next.unwrap_or(self.offset));
        }
    }

    /// Opens the segment that contains the offset; returns `false` if there is none.
    fn enter(&mut self) -> io::Result<bool> {
        // A segment may be deleted between listing and opening; then the next one is used.
        for _ in 0..100 {
            let all = all_segments(&self.dir)?;
            let Some(first) = all.first() else { return Ok(false) };
            let at = all.iter().rposition(|start| *start <= self.offset);
            let start = at.map_or(*first, |at| all[at]);
            match Segment::open(&self.dir, start) {
                Ok(segment) => {
                    self.offset = self.offset.max(start);
                    self.segment = Some(segment);
                    return Ok(true);
                }
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                Err(err) => return Err(err),
            }
        }
        Ok(false)
    }
}

fn read_chunks(segment: &mut Segment, from: u64, max_bytes: usize) -> io::Result<Vec<Chunk>> {
    // The length is read first, so that the records of all those bytes exist.
    let end = segment.end()?;
    if from >= end {
        return Ok(Vec::new());
    }
    let max = u64::try_from(max_bytes).unwrap_or(u64::MAX).max(1);
    let to = end.min(from.saturating_add(max));
    let mut number = match segment.record {
        Some(number) => number,
        None => segment.last_where(|record| record.offset <= from)?.unwrap_or(0),
    };
    let nobody =
        Record { at_us: 0, offset: segment.start, line: 0, epoch: 0, kind: LogKind::Output };
    let mut record = segment.record(number)?.unwrap_or(nobody);
    let mut buffer = vec![0; usize::try_from(to - from).unwrap_or(max_bytes)];
    let filled = read_at(&segment.data, &mut buffer, from - segment.start)?;
    buffer.truncate(filled);
    let to = from + length(&buffer);
    if record.offset < from {
        record.line += segment.lines_between(record.offset, from)?;
        record.offset = from;
    }
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut at = from;
    while at < to {
        // One record follows, or several at the same position, of which the last counts.
        let following = segment.record(number + 1)?;
        let chunk_end = following.map_or(to, |next| next.offset.clamp(at, to));
        if chunk_end > at {
            let slice = &buffer[place(at - from)..place(chunk_end - from)];
            let bytes = slice.to_vec();
            let lines = newlines(&bytes);
            chunks.push(Chunk { record, bytes });
            record.offset = chunk_end;
            record.line += lines;
            at = chunk_end;
        }
        if let Some(next) = following.filter(|next| next.offset <= at) {
            record = next;
            number += 1;
        }
    }
    segment.record = Some(number);
    Ok(chunks)
}

/// Converts a distance within a buffer.
fn place(distance: u64) -> usize {
    usize::try_from(distance).expect("within a buffer")
}

/// The first chunk that is not before `at`.
fn since(dir: &Path, at: Timestamp) -> io::Result<u64> {
    let us = at.as_micros();
    let all = all_segments(dir)?;
    for start in all.iter().rev() {
        let segment = Segment::open(dir, *start)?;
        if let Some(before) = segment.last_where(|record| record.at_us < us)? {
            return Ok(match segment.record(before + 1)? {
                Some(record) => record.offset,
                None => segment.end()?,
            });
        }
    }
    Ok(all.first().copied().unwrap_or(0))
}

/// The start of the last `lines` lines; an incomplete one counts.
fn tail(dir: &Path, lines: u64) -> io::Result<u64> {
    let all = all_segments(dir)?;
    let Some(last) = all.last() else { return Ok(0) };
    let segment = Segment::open(dir, *last)?;
    let end = segment.end()?;
    let (from, line) = match segment.last_where(|record| record.offset <= end)? {
        Some(n) => segment.record(n)?.map_or((*last, 0), |one| (one.offset, one.line)),
        None => (*last, 0),
    };
    let mut total = line + segment.lines_between(from, end)?;
    if end > segment.start {
        let mut byte = [0];
        segment.data.read_exact_at(&mut byte, end - segment.start - 1)?;
        total += u64::from(byte[0] != b'\n');
    }
    if lines == 0 {
        return Ok(end);
    }
    let wanted = total.saturating_sub(lines);
    for start in all.iter().rev() {
        let segment = Segment::open(dir, *start)?;
        let Some(n) = segment.last_where(|record| record.line <= wanted)? else { continue };
        let Some(record) = segment.record(n)? else { continue };
        return after_lines(&segment, record.offset, wanted - record.line);
    }
    Ok(all[0])
}

/// The position after the `lines`-th line end after `from`.
fn after_lines(segment: &Segment, from: u64, lines: u64) -> io::Result<u64> {
    let mut at = from;
    let mut left = lines;
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let filled = read_at(&segment.data, &mut buffer, at - segment.start)?;
        if filled == 0 {
            break;
        }
        for end in memchr::memchr_iter(b'\n', &buffer[..filled]) {
            left -= 1;
            if left == 0 {
                return Ok(at + length(&buffer[..=end]));
            }
        }
        at += length(&buffer[..filled]);
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use overmind_core::process::NoteKind;

    use super::*;
    use crate::log::writer::Writer;
    use crate::wire::Limits;

    fn writer(dir: &Path, segment_bytes: u64) -> Writer {
        let limits = Limits { total_bytes: 1 << 30, segment_bytes, max_age_s: 1 << 30 };
        let mut writer = Writer::open(File::open(dir).unwrap().into()).unwrap();
        writer.is_of(limits, 1);
        writer
    }

    /// 1000 lines of 10 bytes, one a millisecond, over several segments.
    fn sample() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), 1 << 11);
        for n in 0..1000_i64 {
            let line = format!("line {n:04}\n");
            writer.append(LogKind::Output, line.as_bytes(), 1_000_000 + n * 1000).1.unwrap();
        }
        dir
    }

    fn rest(dir: &Path, from: LogFrom, max: usize) -> (u64, String) {
        let mut cursor = Cursor::find(dir.to_owned(), from).unwrap();
        let start = cursor.offset;
        let mut all = Vec::new();
        loop {
            let chunks = cursor.next(max).unwrap();
            if chunks.is_empty() {
                break;
            }
            for chunk in chunks {
                assert_eq!(chunk.record.line, (start + length(&all)) / 10, "lines are counted");
                all.extend(chunk.bytes);
            }
        }
        (start, String::from_utf8(all).unwrap())
    }

    #[test]
    fn a_log_is_read_completely_in_steps_of_any_size() {
        let dir = sample();
        let all = rest(dir.path(), LogFrom::Start, 1 << 20).1;
        assert_eq!(all.lines().count(), 1000);
        assert_eq!(all.len(), 10_000);
        assert_eq!(rest(dir.path(), LogFrom::Start, 77 * 10).1, all);
        assert_eq!(rest(dir.path(), LogFrom::Offset(4990), 1 << 20).1, all[4990..]);
        assert_eq!(rest(dir.path(), LogFrom::End, 1 << 20).1, "");
    }

    #[test]
    fn the_last_lines_are_found_in_any_chunk_layout() {
        let dir = sample();
        for n in [1, 2, 204, 205, 206, 999, 1000, 5000] {
            let tail = rest(dir.path(), LogFrom::Tail(n), 1 << 20).1;
            assert_eq!(tail.lines().count(), usize::try_from(n).unwrap().min(1000), "{n}");
            assert!(tail.starts_with("line "), "{n}");
            assert!(tail.ends_with("line 0999\n"), "{n}");
        }
        assert_eq!(rest(dir.path(), LogFrom::Tail(0), 1 << 20).1, "");
        let mut writer = writer(dir.path(), 1 << 20);
        writer.append(LogKind::Output, b"prompt> ", 9_000_000).1.unwrap();
        let (start, text) = rest(dir.path(), LogFrom::Tail(2), 1 << 20);
        assert_eq!((start, text.as_str()), (9990, "line 0999\nprompt> "));
    }

    #[test]
    fn a_time_is_located_to_the_chunk() {
        let dir = sample();
        let at = |us| LogFrom::Since(Timestamp::from_micros(us));
        let (start, text) = rest(dir.path(), at(1_500_000), 1 << 20);
        assert_eq!(start % 10, 0);
        let first: i64 = text[5..9].parse().unwrap();
        assert!((500..=550).contains(&first), "{first}");
        assert_eq!(rest(dir.path(), at(0), 1 << 20).0, 0);
        assert_eq!(rest(dir.path(), at(99_000_000), 1 << 20).1, "");
    }

    #[test]
    fn kinds_are_distinguished_and_a_removed_start_is_a_gap() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), 64);
        for n in 0..20 {
            writer.append(LogKind::Output, format!("out {n}\n").as_bytes(), n).1.unwrap();
            writer.append(LogKind::Stderr, b"err\n", n).1.unwrap();
        }
        writer.note(NoteKind::Killed, "killed: why", 99).unwrap();
        let mut cursor = Cursor::new(dir.path().to_owned(), 0);
        let mut kinds = Vec::new();
        let mut open = None;
        loop {
            let chunks = cursor.next(1 << 20).unwrap();
            if chunks.is_empty() {
                break;
            }
            open.get_or_insert(chunks[0].record.offset);
            kinds.extend(chunks.into_iter().map(|c| (c.record.kind, c.bytes)));
        }
        assert_eq!(kinds.len(), 41);
        assert_eq!(kinds[39], (LogKind::Stderr, b"err\n".to_vec()));
        let marker = (LogKind::Note(NoteKind::Killed), b"--- killed: why ---\n".to_vec());
        assert_eq!(kinds[40], marker);
        while writer.make_room().unwrap() {}
        let mut cursor = Cursor::new(dir.path().to_owned(), 0);
        let first = cursor.next(1 << 20).unwrap().remove(0);
        assert!(first.record.offset > 0 && first.record.line > 0);
    }

    #[test]
    fn a_missing_log_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none");
        for from in [LogFrom::Start, LogFrom::End, LogFrom::Tail(3)] {
            assert!(Cursor::find(none.clone(), from).unwrap().next(10).unwrap().is_empty());
        }
    }
}
