//! Records a tool call's live output in the log.
//!
//! The pieces become observations: `tool.output.delta`, `tool.output.skipped`, `tool.progress`. The
//! log's masking sees one event at a time, so text is written only as far as no secret can extend
//! from it into later text ([`Store::settled`](overmind_core::store::Store::settled)): whole lines,
//! and a private key in one piece.

use overmind_core::ids::EffectId;
use overmind_core::live::LivePiece;
use overmind_core::sandbox::OutputStream;
use overmind_core::store::{Commit, Guard, NewEvent, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use super::{Driver, Stop};

/// Maximum number of bytes that wait for the end of their line. A stream with longer lines is not
/// shown live.
const MAX_WAITING: usize = 16 << 10;

/// The output of one call that is not written yet.
#[derive(Debug)]
pub(super) struct Output {
    effect: EffectId,
    stdout: Waiting,
    stderr: Waiting,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The offset of `bytes` in the stream.
    offset: u64,
    bytes: Vec<u8>,
    /// Whether nothing more of it is shown.
    closed: bool,
}

/// How much of the waiting output can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upto {
    Settled,
    /// Everything, because the stream has ended.
    All,
}

impl Driver {
    /// Records what a call has written so far.
    pub(super) async fn live(
        &mut self,
        effect: EffectId,
        pieces: Vec<LivePiece>,
    ) -> Result<(), Stop> {
        let events = self.live_events(effect, pieces, self.cortex.clock.now());
        if events.is_empty() {
            return Ok(());
        }
        let guard = Guard::SessionEpoch { session: self.id, epoch: self.session().row().epoch };
        self.commit(Commit { guards: vec![guard], events, changes: Vec::new() }).await
    }

    /// The events for the last part of a call's live output.
    pub(super) fn last_live_events(
        &mut self,
        effect: EffectId,
        pieces: Vec<LivePiece>,
        now: Timestamp,
    ) -> Vec<NewEvent> {
        let mut events = self.live_events(effect, pieces, now);
        if let Some(at) = self.live.iter().position(|output| output.effect == effect) {
            let mut output = self.live.remove(at);
            for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                let written = self.written(output.side(stream), Upto::All);
                events.extend(written.map(|text| self.delta(effect, stream, text, now)));
            }
        }
        events
    }

    fn live_events(
        &mut self,
        effect: EffectId,
        pieces: Vec<LivePiece>,
        now: Timestamp,
    ) -> Vec<NewEvent> {
        if pieces.is_empty() {
            return Vec::new();
        }
        // Calls that were aborted leave theirs behind.
        let session = self.held.as_ref().expect("a driver holds its session between steps");
        self.live.retain(|output| session.effect_number(output.effect).is_some());
        let mut output = match self.live.iter().position(|output| output.effect == effect) {
            Some(at) => self.live.remove(at),
            None => Output { effect, stdout: Waiting::default(), stderr: Waiting::default() },
        };
        let mut events = Vec::new();
        for piece in pieces {
            events.extend(self.piece(&mut output, piece, now));
        }
        self.live.push(output);
        events
    }

    fn piece(&self, output: &mut Output, piece: LivePiece, now: Timestamp) -> Option<NewEvent> {
        let effect = output.effect;
        match piece {
            LivePiece::Output { stream, offset, bytes } => {
                let side = output.side(stream);
                side.take(offset, &bytes);
                let written = self.written(side, Upto::Settled);
                if side.bytes.len() > MAX_WAITING {
                    side.close();
                    return Some(self.skipped(effect, "line_too_long", output.seen(), now));
                }
                written.map(|text| self.delta(effect, stream, text, now))
            }
            LivePiece::Capped { stdout_bytes, stderr_bytes } => {
                // The rest may be half a line that is never completed.
                output.stdout.close();
                output.stderr.close();
                Some(self.skipped(effect, "limit", (stdout_bytes, stderr_bytes), now))
            }
            LivePiece::Progress { progress, total, message } => {
                let more = json!({"progress": progress, "total": total, "message": message});
                Some(self.about(effect, "tool.progress", more, now))
            }
        }
    }

    /// Takes the output that can be written now, with its offset in the stream.
    fn written(&self, side: &mut Waiting, upto: Upto) -> Option<(u64, String)> {
        let end = match upto {
            Upto::All => side.bytes.len(),
            Upto::Settled => side.settled(|text| self.cortex.store.settled(text)),
        };
        (end > 0).then(|| {
            let offset = side.offset;
            let bytes: Vec<u8> = side.bytes.drain(..end).collect();
            side.offset += bytes.len() as u64;
            (offset, String::from_utf8_lossy(&bytes).into_owned())
        })
    }

    fn delta(
        &self,
        effect: EffectId,
        stream: OutputStream,
        (offset, text): (u64, String),
        now: Timestamp,
    ) -> NewEvent {
        let more = json!({"stream": stream.as_str(), "offset": offset, "text": text});
        self.about(effect, "tool.output.delta", more, now)
    }

    fn skipped(
        &self,
        effect: EffectId,
        why: &str,
        (stdout, stderr): (u64, u64),
        now: Timestamp,
    ) -> NewEvent {
        let more = json!({"why": why, "stdout_bytes": stdout, "stderr_bytes": stderr});
        self.about(effect, "tool.output.skipped", more, now)
    }

    fn about(&self, effect: EffectId, kind: &'static str, more: Value, now: Timestamp) -> NewEvent {
        let session = self.session();
        let mut payload = json!({
            "run_id": self.id, "step_id": session.step_of(effect),
            "effect": session.effect_number(effect), "call_id": effect,
            "epoch": session.row().epoch,
        });
        if let (Some(payload), Value::Object(more)) = (payload.as_object_mut(), more) {
            payload.extend(more);
        }
        NewEvent { stream: StreamId::Session(self.id), kind, ts: now, payload }
    }
}

impl Output {
    fn side(&mut self, stream: OutputStream) -> &mut Waiting {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    /// Bytes of both streams that were received.
    fn seen(&self) -> (u64, u64) {
        (self.stdout.end(), self.stderr.end())
    }
}

impl Waiting {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    fn take(&mut self, offset: u64, bytes: &[u8]) {
        if offset != self.end() {
            // A repeated call starts from the beginning.
            self.offset = offset;
            self.bytes.clear();
            self.closed &= offset > 0;
        }
        if self.closed {
            self.offset += bytes.len() as u64;
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn close(&mut self) {
        self.offset = self.end();
        self.bytes.clear();
        self.closed = true;
    }

    /// Converts `settled` for text to bytes: in text, an invalid byte has become three.
    fn settled(&self, settled: impl Fn(&str) -> usize) -> usize {
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let Some(last) = self.bytes.iter().rposition(is_end) else { return 0 };
        let whole = &self.bytes[..=last];
        let text = String::from_utf8_lossy(whole);
        let lines = text.as_bytes()[..settled(&text)].iter().filter(|byte| is_end(byte)).count();
        let ends = whole.iter().enumerate().filter(|(_, byte)| is_end(byte));
        lines.checked_sub(1).and_then(|n| ends.map(|(at, _)| at).nth(n)).map_or(0, |at| at + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_lines_are_counted_in_bytes_for_any_bytes() {
        let mut waiting = Waiting::default();
        waiting.take(0, b"a\xff\xff\nb\n");
        waiting.take(6, b"c");
        let all = |text: &str| text.len();
        assert_eq!(waiting.settled(all), 6);
        assert_eq!(waiting.settled(|text| text.find('\n').unwrap() + 1), 4);
        assert_eq!(waiting.settled(|_| 0), 0);
        assert_eq!(Waiting::default().settled(all), 0);
    }

    #[test]
    fn a_restarted_stream_is_read_from_its_beginning() {
        let mut waiting = Waiting::default();
        waiting.take(0, b"half of a li");
        waiting.take(0, b"new");
        assert_eq!((waiting.offset, &*waiting.bytes), (0, &b"new"[..]));
        waiting.close();
        waiting.take(3, b"more");
        assert_eq!((waiting.end(), waiting.bytes.len()), (7, 0), "closed stays closed");
        waiting.take(0, b"anew");
        assert_eq!(&*waiting.bytes, b"anew");
    }
}
