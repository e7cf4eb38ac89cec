//! Searches outgoing calls for canaries, and masks canaries in results.
//!
//! Every call of a Hive goes through the gateway, so a check here stops every call with a canary.
//! If a policy judges, the Cortex has already refused such a call.

use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::canary::{self, Alarm, Canaries, Planter};
use overmind_core::live::{Live, LiveSink, MAX_BYTES};
use overmind_core::sandbox::OutputStream;
use overmind_core::tool::{Labels, ToolContext, ToolOutcome};
use serde_json::Value;

/// Maximum number of bytes of an incomplete line that is held back.
const MAX_LINE: usize = 16 << 10;

/// The canaries that are searched in one call.
pub(crate) struct Watch {
    canaries: Arc<Canaries>,
    live: Option<Arc<Tap>>,
}

impl Watch {
    /// Begins to watch a call, and returns the context in which it runs.
    pub(crate) fn begin(planter: &Planter, context: &ToolContext) -> (Self, ToolContext) {
        let canaries = planter.of(context.session);
        let mut context = context.clone();
        let live = context.live.is_heard().then(|| {
            let inner = std::mem::take(&mut context.live);
            let tap =
                Arc::new(Tap { inner, canaries: Arc::clone(&canaries), lines: Mutex::default() });
            let hearing = Arc::clone(&tap);
            context.live = LiveSink::new(move |what| hearing.hear(what));
            tap
        });
        (Self { canaries, live }, context)
    }

    /// The answer to a call that would send a canary out.
    pub(crate) fn refusal(&self, tool: &str, args: &Value) -> Option<ToolOutcome> {
        let carried = self.canaries.carried(tool, args);
        if carried.is_empty() {
            return None;
        }
        tracing::warn!(
            tool.name = tool,
            what = canary::in_words(&carried),
            "a canary was about to leave"
        );
        let refused = ToolOutcome::failure(canary::TRIPPED, canary::ADVICE);
        let mut outcome = ToolOutcome { allowed: false, ..refused };
        mark(&mut outcome.result, canary::tell(Alarm::Tripped, &carried));
        Some(outcome)
    }

    /// Ends the watch: masks canaries in the result, and reports them. A plain listing of the
    /// environment contains them unintentionally, so there they are only masked.
    pub(crate) fn end(self, mut outcome: ToolOutcome, tool: &str, args: &Value) -> ToolOutcome {
        if let Some(live) = self.live {
            live.flush();
        }
        // Only this code reports canaries.
        if let Some(fields) = outcome.result.as_object_mut() {
            fields.remove(canary::MEMBER);
        }
        let seen = self.canaries.mask(&mut outcome.result);
        if !seen.is_empty() && !canary::is_listing(tool, args, &seen) {
            mark(&mut outcome.result, canary::tell(Alarm::Seen, &seen));
        }
        outcome
    }
}

/// Labels the result of a session that has met a canary as private.
fn mark(result: &mut Value, told: Value) {
    if let Some(fields) = result.as_object_mut() {
        fields.insert(Labels::PRIVATE.into(), true.into());
        fields.insert(canary::MEMBER.into(), told);
    }
}

/// Masks canaries in a call's live output, line by line.
struct Tap {
    inner: LiveSink,
    canaries: Arc<Canaries>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// The number of bytes passed on. Beyond the limit of shown output nothing is checked.
    passed: usize,
}

impl Lines {
    fn of(&mut self, stream: OutputStream) -> &mut Vec<u8> {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }
}

impl Tap {
    fn hear(&self, what: Live<'_>) {
        match what {
            Live::Output { stream, bytes } => {
                let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.passed >= MAX_BYTES {
                    return self.inner.say(Live::Output { stream, bytes });
                }
                let waiting = lines.of(stream);
                waiting.extend_from_slice(bytes);
                let end = waiting.iter().rposition(|byte| matches!(byte, b'\n' | b'\r'));
                let end = match end {
                    Some(at) => at + 1,
                    // Longer lines are not shown.
                    None if waiting.len() > MAX_LINE => waiting.len(),
                    None => return,
                };
                let whole: Vec<u8> = waiting.drain(..end).collect();
                self.pass_on(&mut lines, stream, whole);
            }
            Live::Progress { progress, total, message } => {
                let mut message = message.map(str::to_owned);
                if let Some(text) = &mut message {
                    self.canaries.mask_text(text);
                }
                self.inner.say(Live::Progress { progress, total, message: message.as_deref() });
            }
        }
    }

    fn flush(&self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let rest = std::mem::take(lines.of(stream));
            if !rest.is_empty() {
                self.pass_on(&mut lines, stream, rest);
            }
        }
    }

    fn pass_on(&self, lines: &mut Lines, stream: OutputStream, bytes: Vec<u8>) {
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        let bytes = if self.canaries.mask_text(&mut text) { text.into_bytes() } else { bytes };
        lines.passed = lines.passed.saturating_add(bytes.len());
        self.inner.say(Live::Output { stream, bytes: &bytes });
    }
}

#[cfg(test)]
mod tests {
    use overmind_core::ids::SessionId;

    use super::*;

    #[test]
    fn a_canary_is_masked_in_live_output_across_any_cuts() {
        let planter = Planter::new(&[1; 32]);
        let session = SessionId::from_u128(3);
        let value = planter.variable(session);
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let inner = LiveSink::new(move |what| match what {
            Live::Output { bytes, .. } => heard.lock().unwrap().extend_from_slice(bytes),
            Live::Progress { message, .. } => {
                heard.lock().unwrap().extend_from_slice(message.unwrap_or_default().as_bytes());
            }
        });
        let tap = Tap { inner, canaries: planter.of(session), lines: Mutex::default() };
        let text = format!("before\nT={value}\nafter {value}");
        for piece in text.as_bytes().chunks(7) {
            tap.hear(Live::Output { stream: OutputStream::Stdout, bytes: piece });
        }
        tap.flush();
        let message = Some(value.as_str());
        tap.hear(Live::Progress { progress: 1.0, total: None, message });
        let mask = format!("ghp_{}", canary::MASK);
        let wanted = format!("before\nT={mask}\nafter {mask}{mask}");
        assert_eq!(String::from_utf8_lossy(&said.lock().unwrap()), wanted);
    }
}
