//! The Hive's part of a tool call's live output: collected, limited, sent a few times a second.
//!
//! A command may write gigabytes a second, but people watch it. So the first [`MAX_BYTES`] of a
//! call are forwarded and the rest is only counted, at most [`PER_TICK`] of a stream at a time. A
//! call that ends before the first tick sends no live output, because its result is there. The tool
//! itself is never delayed: its output is put into memory, and dropped beyond these limits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overmind_core::live::{Live, LivePiece, LiveSink, MAX_BYTES};
use overmind_core::sandbox::OutputStream;

/// The interval at which a call's pieces are sent. Each time is one commit.
pub(crate) const TICK: Duration = Duration::from_millis(200);
/// Maximum number of bytes of one stream in one message.
const PER_TICK: usize = 16 << 10;
/// Ticks between two progress reports, and between two counts.
const PROGRESS_TICKS: u32 = 5;
const COUNT_TICKS: u32 = 25;
/// Maximum number of progress reports of one call, because a server decides how many it sends.
const MAX_REPORTS: u32 = 1000;

/// The output of one call that was not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Gathered(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    stdout: Side,
    stderr: Side,
    /// The number of accepted bytes of both streams.
    taken: usize,
    capped: bool,
    /// The values of the last count.
    counted: (u64, u64),
    progress: Option<LivePiece>,
    reports: u32,
    /// Ticks until the next report, and until the next count.
    report_in: u32,
    count_in: u32,
    /// Whether anything was sent: then the last part is sent as well.
    said: bool,
}

#[derive(Debug, Default)]
struct Side {
    total: u64,
    /// The offset of `waiting` in the stream.
    offset: u64,
    waiting: Vec<u8>,
}

impl Gathered {
    /// The sink for a tool's output.
    pub(crate) fn sink(self: &Arc<Self>) -> LiveSink {
        let this = Arc::clone(self);
        LiveSink::new(move |what| this.hear(what))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, what: Live<'_>) {
        let mut inner = self.lock();
        match what {
            Live::Output { stream, bytes } => inner.output(stream, bytes),
            Live::Progress { progress, total, message } => {
                let message = message.map(str::to_owned);
                // If reports come faster than they are sent, only the last one counts.
                inner.progress = Some(LivePiece::Progress { progress, total, message });
            }
        }
    }

    /// The pieces to send at a tick.
    pub(crate) fn due(&self) -> Vec<LivePiece> {
        let mut inner = self.lock();
        let mut pieces = inner.pieces(PER_TICK);
        inner.report_in = inner.report_in.saturating_sub(1);
        inner.count_in = inner.count_in.saturating_sub(1);
        if inner.report_in == 0 {
            pieces.extend(inner.report());
        }
        if inner.count_in == 0 && inner.is_sent() {
            pieces.extend(inner.count());
        }
        inner.said |= !pieces.is_empty();
        pieces
    }

    /// The last part of the output, if any of it has been sent.
    pub(crate) fn rest(&self) -> Vec<LivePiece> {
        let mut inner = self.lock();
        if !inner.said {
            return Vec::new();
        }
        let mut pieces = Vec::new();
        while !inner.is_sent() {
            pieces.extend(inner.pieces(PER_TICK));
        }
        pieces.extend(inner.report());
        pieces.extend(inner.count());
        pieces
    }
}

impl Inner {
    fn output(&mut self, stream: OutputStream, bytes: &[u8]) {
        let room = if self.capped { 0 } else { MAX_BYTES - self.taken };
        let taken = &bytes[..bytes.len().min(room)];
        self.taken += taken.len();
        self.capped |= taken.len() < bytes.len();
        let side = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        side.total += bytes.len() as u64;
        side.waiting.extend_from_slice(taken);
    }

    fn is_sent(&self) -> bool {
        self.stdout.waiting.is_empty() && self.stderr.waiting.is_empty()
    }

    fn pieces(&mut self, most: usize) -> Vec<LivePiece> {
        let sides =
            [(OutputStream::Stdout, &mut self.stdout), (OutputStream::Stderr, &mut self.stderr)];
        sides.into_iter().filter_map(|(stream, side)| side.piece(stream, most)).collect()
    }

    fn report(&mut self) -> Option<LivePiece> {
        let report = self.progress.take().filter(|_| self.reports < MAX_REPORTS)?;
        self.reports += 1;
        self.report_in = PROGRESS_TICKS;
        Some(report)
    }

    fn count(&mut self) -> Option<LivePiece> {
        let now = (self.stdout.total, self.stderr.total);
        if !self.capped || now == self.counted {
            return None;
        }
        self.counted = now;
        self.count_in = COUNT_TICKS;
        Some(LivePiece::Capped { stdout_bytes: now.0, stderr_bytes: now.1 })
    }
}

impl Side {
    fn piece(&mut self, stream: OutputStream, most: usize) -> Option<LivePiece> {
        if self.waiting.is_empty() {
            return None;
        }
        let later = self.waiting.split_off(self.waiting.len().min(most));
        let bytes = std::mem::replace(&mut self.waiting, later);
        let offset = self.offset;
        self.offset += bytes.len() as u64;
        Some(LivePiece::Output { stream, offset, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(offset: u64, bytes: &[u8]) -> LivePiece {
        LivePiece::Output { stream: OutputStream::Stdout, offset, bytes: bytes.into() }
    }

    fn write(sink: &LiveSink, bytes: &[u8]) {
        sink.say(Live::Output { stream: OutputStream::Stdout, bytes });
    }

    #[test]
    fn a_call_that_ends_before_the_first_tick_sends_no_live_output() {
        let gathered = Arc::new(Gathered::default());
        write(&gathered.sink(), b"hi\n");
        assert_eq!(gathered.rest(), []);
    }

    #[test]
    fn started_output_is_sent_completely_and_once() {
        let gathered = Arc::new(Gathered::default());
        let sink = gathered.sink();
        write(&sink, b"ab");
        write(&sink, b"c");
        assert_eq!(gathered.due(), [out(0, b"abc")]);
        assert_eq!(gathered.due(), []);
        write(&sink, b"d");
        assert_eq!(gathered.rest(), [out(3, b"d")]);
        assert_eq!(gathered.rest(), []);
    }

    #[test]
    fn a_flood_is_forwarded_in_chunks_up_to_a_limit_and_then_counted() {
        let gathered = Arc::new(Gathered::default());
        let sink = gathered.sink();
        for _ in 0..1000 {
            write(&sink, &[b'x'; 1000]);
        }
        let mut bytes = 0;
        let mut counts = Vec::new();
        for _ in 0..40 {
            for piece in gathered.due() {
                match piece {
                    LivePiece::Output { bytes: more, offset, .. } => {
                        assert!(more.len() <= PER_TICK && offset == bytes);
                        bytes += more.len() as u64;
                    }
                    LivePiece::Capped { stdout_bytes, stderr_bytes } => {
                        counts.push((stdout_bytes, stderr_bytes));
                    }
                    LivePiece::Progress { .. } => panic!("nobody reported"),
                }
            }
        }
        assert_eq!(bytes, MAX_BYTES as u64);
        assert_eq!(counts, [(1_000_000, 0)], "a count that did not change is not told again");
        write(&sink, b"more");
        let last = LivePiece::Capped { stdout_bytes: 1_000_004, stderr_bytes: 0 };
        assert_eq!(gathered.rest(), [last]);
    }

    #[test]
    fn progress_reports_are_sent_once_a_second_and_the_last_one_wins() {
        let gathered = Arc::new(Gathered::default());
        let sink = gathered.sink();
        let mut sent = Vec::new();
        for n in 1..=10_u32 {
            sink.say(Live::Progress { progress: f64::from(n), total: None, message: None });
            sent.extend(gathered.due());
        }
        let report = |n| LivePiece::Progress { progress: n, total: None, message: None };
        assert_eq!(sent, [report(1.0), report(6.0)]);
        assert_eq!(gathered.rest(), [report(10.0)]);
    }
}
