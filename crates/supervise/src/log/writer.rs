//! Appends to a session's log: in the supervisor process, and in the daemon if no process runs.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use overmind_core::process::{LogKind, NoteKind};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};

use crate::log::{
    RECORD, RECORD_BYTES, Record, data_name, index_name, length, newlines, note_line, start_of,
};
use crate::wire::Limits;

/// A chunk is closed after this time, or this many bytes.
const CHUNK_US: i64 = 50_000;
const CHUNK_BYTES: u64 = 64 << 10;
/// A longer line is cut in two by the end of a segment.
const LONG_LINE: u64 = 1 << 20;
/// The text at a place where another program has removed a part of the log.
const REMOVED: &str =
    "the file of this log was removed while the command ran: what stood here is gone";

#[derive(Debug)]
pub(crate) struct Writer {
    dir: OwnedFd,
    limits: Limits,
    epoch: u32,
    segment: Segment,
    /// The offset of the log's end.
    offset: u64,
    /// The number of line ends before it.
    line: u64,
    /// Whether the last byte is no line end.
    mid_line: bool,
    chunk: Option<Record>,
    /// The epoch of the process that wrote last, before this one.
    last_epoch: u32,
    /// Whether another program has removed a part of the log during this writer's time.
    removed: bool,
}

#[derive(Debug)]
struct Segment {
    start: u64,
    data: File,
    index: File,
}

impl Segment {
    fn open(dir: &OwnedFd, start: u64) -> io::Result<Self> {
        let open = |name: String| -> io::Result<File> {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
            Ok(File::from(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?))
        };
        // The index is created first, because readers find segments by their data.
        let index = open(index_name(start))?;
        Ok(Self { start, data: open(data_name(start))?, index })
    }

    /// Whether one of its files was removed, so that nobody can see what is written to it.
    fn is_gone(&self) -> bool {
        [&self.data, &self.index]
            .into_iter()
            .any(|file| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0))
    }
}

/// The start offsets of all segments in a directory, in order.
pub(crate) fn segments(dir: impl AsFd) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        if let Some(start) = entry?.file_name().to_str().ok().and_then(start_of) {
            found.push(start);
        }
    }
    found.sort_unstable();
    Ok(found)
}

impl Writer {
    /// Continues at the end of the log, and repairs the rest of a crash.
    ///
    /// The caller holds the lock on the directory. Without a call of [`is_of`](Self::is_of) it
    /// writes for the process that wrote last, and deletes nothing.
    pub(crate) fn open(dir: OwnedFd) -> io::Result<Self> {
        let start = segments(&dir)?.last().copied().unwrap_or(0);
        let segment = Segment::open(&dir, start)?;
        let mut this = Self {
            dir,
            limits: Limits { total_bytes: u64::MAX, segment_bytes: u64::MAX, max_age_s: u64::MAX },
            epoch: 0,
            segment,
            offset: start,
            line: 0,
            mid_line: false,
            chunk: None,
            last_epoch: 0,
            removed: false,
        };
        this.repair()?;
        Ok(this)
    }

    /// Finds the end of the log. Removes invalid records, and records of missing data.
    fn repair(&mut self) -> io::Result<()> {
        let Segment { start, data, index } = &self.segment;
        let data_bytes = data.metadata()?.len();
        let end = start + data_bytes;
        let index_bytes = index.metadata()?.len();
        let mut records = index_bytes / RECORD;
        let last = loop {
            if records == 0 {
                break None;
            }
            let mut bytes = [0; RECORD_BYTES];
            index.read_exact_at(&mut bytes, (records - 1) * RECORD)?;
            match Record::from_bytes(&bytes) {
                Some(record) if record.offset <= end && record.offset >= *start => {
                    break Some(record);
                }
                Some(_) | None => records -= 1,
            }
        };
        if records * RECORD != index_bytes {
            index.set_len(records * RECORD)?;
        }
        let (from, line) = match last {
            Some(record) => (record.offset, record.line),
            // For data without any record, its lines count, and its process is unknown.
            None => (*start, self.line_before(*start)?),
        };
        self.last_epoch = last.map_or(0, |record| record.epoch);
        self.epoch = self.last_epoch;
        self.offset = end;
        self.line = line + if from < end { count_lines(data, from - start)? } else { 0 };
        self.mid_line = data_bytes > 0 && {
            let mut byte = [0];
            data.read_exact_at(&mut byte, data_bytes - 1)?;
            byte[0] != b'\n'
        };
        if last.is_none() && data_bytes > 0 {
            let kind = LogKind::Output;
            let record = Record { at_us: 0, offset: *start, line, epoch: 0, kind };
            (&self.segment.index).write_all(&record.to_bytes())?;
        }
        Ok(())
    }

    /// The number of line ends before a segment without records, computed from the segment before
    /// it.
    fn line_before(&self, start: u64) -> io::Result<u64> {
        let all = segments(&self.dir)?;
        let Some(before) = all.iter().rev().find(|one| **one < start) else { return Ok(0) };
        let segment = Segment::open(&self.dir, *before)?;
        let records = segment.index.metadata()?.len() / RECORD;
        let mut bytes = [0; RECORD_BYTES];
        let last = (0..records).rev().find_map(|n| {
            segment.index.read_exact_at(&mut bytes, n * RECORD).ok()?;
            Record::from_bytes(&bytes)
        });
        let (from, line) = last.map_or((*before, 0), |record| (record.offset, record.line));
        Ok(line + count_lines(&segment.data, from - before)?)
    }

    /// Sets the limits, and the process that writes from here on.
    pub(crate) fn is_of(&mut self, limits: Limits, epoch: u32) {
        self.limits = limits;
        // A writer for no particular process writes for the last one.
        self.epoch = epoch.max(self.last_epoch);
    }

    pub(crate) fn last_epoch(&self) -> u32 {
        self.last_epoch
    }

    /// The end of the log.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether another program has removed a part of the log while this writer was active.
    pub(crate) fn was_removed(&self) -> bool {
        self.removed
    }

    /// Appends bytes of one kind; returns how many were written, and the error that stopped it.
    ///
    /// The log stays consistent: a record comes before its bytes, and no byte is written twice.
    pub(crate) fn append(
        &mut self,
        kind: LogKind,
        bytes: &[u8],
        now_us: i64,
    ) -> (usize, io::Result<()>) {
        if bytes.is_empty() {
            return (0, Ok(()));
        }
        if let Err(err) = self.rotate(now_us).and_then(|()| self.begin_chunk(kind, now_us)) {
            return (0, Err(err));
        }
        self.write(bytes)
    }

    /// Writes at the end of the data; returns how much was written, and the error that stopped it.
    fn write(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut written = 0;
        let mut result = Ok(());
        while written < bytes.len() {
            match rustix::io::write(&self.segment.data, &bytes[written..]) {
                Ok(0) => {
                    result = Err(io::ErrorKind::WriteZero.into());
                    break;
                }
                Ok(count) => written += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(err) => {
                    result = Err(err.into());
                    break;
                }
            }
        }
        let done = &bytes[..written];
        self.offset += length(done);
        self.line += newlines(done);
        self.mid_line = done.last().map_or(self.mid_line, |byte| *byte != b'\n');
        (written, result)
    }

    /// Writes a note as a line of its own.
    pub(crate) fn note(&mut self, kind: NoteKind, text: &str, now_us: i64) -> io::Result<()> {
        self.notes(&[(kind, text)], now_us)
    }

    /// Writes several notes, each as a line of its own, in one step.
    pub(crate) fn notes(&mut self, notes: &[(NoteKind, &str)], now_us: i64) -> io::Result<()> {
        self.rotate(now_us)?;
        // A note is a chunk of its own, so that readers find it complete.
        self.chunk = None;
        let (mut text, mut records) = (String::new(), Vec::new());
        for (kind, what) in notes {
            let offset = self.offset + length(text.as_bytes());
            let line = self.line + newlines(text.as_bytes());
            let (epoch, kind, what) = (self.epoch, *kind, note_line(*kind, what));
            let kind = LogKind::Note(kind);
            records.push(Record { at_us: now_us, offset, line, epoch, kind });
            if text.is_empty() && self.mid_line {
                text.push('\n');
            }
            text.push_str(&what);
        }
        let bytes: Vec<u8> = records.iter().flat_map(|record| record.to_bytes()).collect();
        self.write_index(&bytes)?;
        let (_, result) = self.write(text.as_bytes());
        if result.is_err() {
            // Records without any written data would apply to the next bytes.
            let lost = records.iter().filter(|record| record.offset >= self.offset).count();
            self.forget_index(lost * RECORD_BYTES)?;
        }
        result
    }

    /// Writes records, all of them or none.
    fn write_index(&self, records: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < records.len() {
            let failed = match rustix::io::write(&self.segment.index, &records[written..]) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    written += count;
                    continue;
                }
                Err(rustix::io::Errno::INTR) => continue,
                Err(err) => io::Error::from(err),
            };
            // A part of them would shift all that follow.
            self.forget_index(written)?;
            return Err(failed);
        }
        Ok(())
    }

    /// Removes the last bytes of the index.
    fn forget_index(&self, bytes: usize) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let bytes = u64::try_from(bytes).unwrap_or(0);
        let length = self.segment.index.metadata()?.len();
        self.segment.index.set_len(length.saturating_sub(bytes))
    }

    fn begin_chunk(&mut self, kind: LogKind, now_us: i64) -> io::Result<()> {
        let goes_on = self.chunk.is_some_and(|chunk| {
            chunk.kind == kind
                && (0..CHUNK_US).contains(&(now_us - chunk.at_us))
                && self.offset - chunk.offset < CHUNK_BYTES
        });
        if goes_on {
            return Ok(());
        }
        let record =
            Record { at_us: now_us, offset: self.offset, line: self.line, epoch: self.epoch, kind };
        self.write_index(&record.to_bytes())?;
        self.chunk = Some(record);
        Ok(())
    }

    /// Begins the next segment if this one is full or was removed.
    fn rotate(&mut self, now_us: i64) -> io::Result<()> {
        if self.segment.is_gone() {
            return self.begin_again(now_us);
        }
        let filled = self.offset - self.segment.start;
        let full = filled >= self.limits.segment_bytes.max(1)
            && (!self.mid_line || filled >= self.limits.segment_bytes + LONG_LINE);
        if full {
            self.segment = Segment::open(&self.dir, self.offset)?;
            self.chunk = None;
            self.prune(now_us)?;
        }
        Ok(())
    }

    /// Continues in a new segment, with a note that the one before was removed. If the whole
    /// directory was removed, further output is lost, and the exit reports that.
    fn begin_again(&mut self, now_us: i64) -> io::Result<()> {
        self.removed = true;
        self.segment = match Segment::open(&self.dir, self.offset) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        (self.chunk, self.mid_line) = (None, false);
        self.note(NoteKind::Note, REMOVED, now_us)
    }

    /// Deletes the oldest segments until the limits are met; never the last two.
    pub(crate) fn prune(&mut self, now_us: i64) -> io::Result<()> {
        prune(&self.dir, &self.limits, now_us)
    }

    /// Deletes the oldest segment, if there are more than two, because the disk is full.
    pub(crate) fn make_room(&mut self) -> io::Result<bool> {
        let all = segments(&self.dir)?;
        if all.len() <= 2 {
            return Ok(false);
        }
        drop_segment(&self.dir, all[0])?;
        Ok(true)
    }

    /// Syncs everything to the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.segment.data.sync_data()?;
        self.segment.index.sync_data()
    }
}

/// The number of line ends in a file from an offset on.
fn count_lines(data: &File, mut from: u64) -> io::Result<u64> {
    let mut buffer = vec![0; 64 << 10];
    let mut lines = 0;
    loop {
        match data.read_at(&mut buffer, from)? {
            0 => return Ok(lines),
            count => {
                lines += newlines(&buffer[..count]);
                from += length(&buffer[..count]);
            }
        }
    }
}

fn drop_segment(dir: &OwnedFd, start: u64) -> io::Result<()> {
    // The data is deleted first: an index without data is harmless, data without an index is not.
    rustix::fs::unlinkat(dir, data_name(start), AtFlags::empty())?;
    match rustix::fs::unlinkat(dir, index_name(start), AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

fn prune(dir: &OwnedFd, limits: &Limits, now_us: i64) -> io::Result<()> {
    let all = segments(dir)?;
    let size = |name: String| -> (u64, i64) {
        rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_or((0, now_us), |stat| {
            (u64::try_from(stat.st_size).unwrap_or(0), stat.st_mtime.saturating_mul(1_000_000))
        })
    };
    let sizes: Vec<(u64, u64, i64)> = all
        .iter()
        .map(|start| {
            let (data, at_us) = size(data_name(*start));
            (*start, data + size(index_name(*start)).0, at_us)
        })
        .collect();
    let mut total: u64 = sizes.iter().map(|(_, bytes, _)| bytes).sum();
    let oldest_us =
        now_us - i64::try_from(limits.max_age_s).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    for (start, bytes, at_us) in sizes.iter().take(sizes.len().saturating_sub(2)) {
        if total <= limits.total_bytes && *at_us >= oldest_us {
            break;
        }
        drop_segment(dir, *start)?;
        total -= bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const LIMITS: Limits = Limits { total_bytes: 1 << 20, segment_bytes: 1 << 10, max_age_s: 3600 };

    fn open(dir: &Path, epoch: u32) -> Writer {
        let dir = File::open(dir).unwrap();
        let mut writer = Writer::open(dir.into()).unwrap();
        writer.is_of(LIMITS, epoch);
        writer
    }

    fn put(writer: &mut Writer, bytes: &[u8], now_us: i64) {
        let (written, result) = writer.append(LogKind::Output, bytes, now_us);
        result.unwrap();
        assert_eq!(written, bytes.len());
    }

    fn records(dir: &Path, start: u64) -> Vec<Record> {
        let bytes = std::fs::read(dir.join(index_name(start))).unwrap();
        let (all, rest) = bytes.as_chunks::<RECORD_BYTES>();
        assert!(rest.is_empty());
        all.iter().map(|one| Record::from_bytes(one).unwrap()).collect()
    }

    #[test]
    fn a_chunk_ends_if_its_kind_its_time_or_its_size_requires_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = open(dir.path(), 1);
        put(&mut writer, b"a\nb", 1000);
        put(&mut writer, b"c\n", 1001);
        put(&mut writer, b"d", 100_000);
        writer.note(NoteKind::Human, "hello", 100_001).unwrap();
        put(&mut writer, b"e\n", 100_002);
        let found: Vec<(u64, u64)> =
            records(dir.path(), 0).iter().map(|one| (one.offset, one.line)).collect();
        assert_eq!(found, [(0, 0), (5, 2), (6, 2), (21, 4)]);
        let text = std::fs::read_to_string(dir.path().join(data_name(0))).unwrap();
        assert_eq!(text, "a\nbc\nd\n[human] hello\ne\n", "a marker is a line of its own");
    }

    #[test]
    fn markers_written_together_are_separate_chunks() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = open(dir.path(), 1);
        put(&mut writer, b"a\nb", 1000);
        let both = [(NoteKind::Killed, "killed: why"), (NoteKind::Ended, "ended: signal 9")];
        writer.notes(&both, 1001).unwrap();
        put(&mut writer, b"c\n", 1002);
        let text = std::fs::read_to_string(dir.path().join(data_name(0))).unwrap();
        assert_eq!(text, "a\nb\n--- killed: why ---\n--- ended: signal 9 ---\nc\n");
        let found: Vec<(u64, u64, LogKind)> =
            records(dir.path(), 0).iter().map(|one| (one.offset, one.line, one.kind)).collect();
        let at = |what: &str| length(text.split_once(what).unwrap().0.as_bytes());
        assert_eq!(
            found,
            [
                (0, 0, LogKind::Output),
                // The line end that closes an open line belongs to the marker.
                (3, 1, LogKind::Note(NoteKind::Killed)),
                (at("--- ended"), 3, LogKind::Note(NoteKind::Ended)),
                (at("c\n"), 4, LogKind::Output),
            ]
        );
    }

    #[test]
    fn segments_end_at_lines_and_the_oldest_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = open(dir.path(), 1);
        writer.limits.total_bytes = 6 << 10;
        for n in 0..400 {
            put(&mut writer, format!("this is line {n:05}\n").as_bytes(), n);
        }
        let starts = segments(File::open(dir.path()).unwrap()).unwrap();
        assert!(starts[0] > 0 && starts.len() >= 4, "{starts:?}");
        assert!(starts.iter().all(|start| start % 19 == 0), "{starts:?}");
        let first = records(dir.path(), starts[0])[0];
        assert_eq!((first.offset, first.line), (starts[0], starts[0] / 19));
        writer.limits.max_age_s = 1;
        let later = i64::MAX / 2;
        writer.prune(later).unwrap();
        assert_eq!(segments(File::open(dir.path()).unwrap()).unwrap().len(), 2);
    }

    #[test]
    fn a_removed_log_is_recreated_with_a_marker() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = open(dir.path(), 1);
        put(&mut writer, b"one\ntwo\nthr", 1);
        assert!(!writer.was_removed());
        std::fs::remove_file(dir.path().join(data_name(0))).unwrap();
        put(&mut writer, b"ee\nfour\n", 2);
        writer.note(NoteKind::Ended, "ended: exit code 0", 3).unwrap();
        assert!(writer.was_removed());
        let text = std::fs::read_to_string(dir.path().join(data_name(11))).unwrap();
        assert_eq!(text, format!("--- {REMOVED} ---\nee\nfour\n--- ended: exit code 0 ---\n"));
        assert_eq!(records(dir.path(), 11)[0].line, 2, "lines are counted on");
        // With no file left to write to, the command is not blocked.
        let gone = dir.path().to_owned();
        dir.close().unwrap();
        put(&mut writer, b"to nobody\n", 4);
        assert!(!gone.exists());
    }

    #[test]
    fn a_torn_end_is_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = open(dir.path(), 1);
        put(&mut writer, b"one\ntwo\n", 1);
        put(&mut writer, b"three\nfo", 90_000);
        drop(writer);
        let index = dir.path().join(index_name(0));
        let whole = std::fs::read(&index).unwrap();
        assert_eq!(whole.len(), 64);
        let beyond = Record { at_us: 9, offset: 999, line: 50, epoch: 1, kind: LogKind::Output };
        for damaged in [
            [&whole[..], &[7; 13]].concat(),
            [&whole[..], &[0; 64]].concat(),
            [&whole[..], &beyond.to_bytes()].concat(),
            whole[..40].to_vec(),
            Vec::new(),
        ] {
            std::fs::write(&index, &damaged).unwrap();
            let writer = open(dir.path(), 2);
            assert_eq!((writer.offset, writer.line, writer.mid_line), (16, 3, true));
            assert!(!records(dir.path(), 0).is_empty());
            std::fs::write(&index, &whole).unwrap();
        }
    }

    #[test]
    fn a_log_continues_across_attempts() {
        let dir = tempfile::tempdir().unwrap();
        put(&mut open(dir.path(), 1), b"first", 1);
        let mut second = open(dir.path(), 2);
        second.note(NoteKind::Restart, "restart #1 at noon", 2).unwrap();
        put(&mut second, b"second\n", 3);
        let text = std::fs::read_to_string(dir.path().join(data_name(0))).unwrap();
        assert_eq!(text, "first\n--- restart #1 at noon ---\nsecond\n");
        let epochs: Vec<u32> = records(dir.path(), 0).iter().map(|one| one.epoch).collect();
        assert_eq!(epochs, [1, 2, 2]);
    }
}
