//! Calls in progress in a run's timeline: their output line by line, and their progress. A call is
//! shown the same way whether its output came live or with its result.

use std::collections::HashMap;

use serde_json::Value;

use crate::output::clean;

/// Lines of one call's output that are shown as they arrive. Of those after them the last ones are
/// shown, at its end.
const FIRST: usize = 20;
const LAST: usize = 8;
/// Steps whose beginning is remembered.
const STEPS: usize = 64;
/// The output of a call, in the order in which its streams are shown at its end.
const STREAMS: [&str; 2] = ["stdout", "stderr"];

/// The text shown so far for calls that have not ended.
#[derive(Debug, Default)]
pub struct Live {
    verbose: bool,
    /// The descriptions of steps, by their ids.
    steps: HashMap<String, String>,
    calls: HashMap<String, Shown>,
    /// The call whose output was shown last, without later output.
    last: Option<String>,
}

/// The output of a call, in the order in which it is shown.
#[derive(Debug, Default)]
pub struct Said {
    /// The call, where the lines do not follow on those before them.
    pub header: Option<String>,
    pub lines: Vec<String>,
}

#[derive(Debug, Default)]
struct Shown {
    epoch: u64,
    /// Lines shown of each stream, and of its progress.
    told: [usize; 3],
    /// Not everything was shown.
    part: bool,
}

impl Shown {
    /// The lines of further output that are shown at once, and their number.
    fn take(&mut self, of: usize, lines: &[String], verbose: bool) -> (Vec<String>, usize) {
        let told = self.told.iter().sum();
        let room = if verbose { usize::MAX } else { FIRST.saturating_sub(told) };
        let now = lines.len().min(room);
        self.told[of] += now;
        let mut told = lines[..now].to_vec();
        if now < lines.len() {
            told.extend(self.goes_on());
        }
        (told, now)
    }

    /// The lines at the end of an output that are shown: the first and the last ones.
    fn rest(&mut self, of: usize, lines: &[String], verbose: bool) -> Vec<String> {
        let (mut told, count) = self.take(of, lines, verbose);
        let rest = &lines[count..];
        told.extend_from_slice(&rest[rest.len().saturating_sub(LAST)..]);
        told
    }

    fn goes_on(&mut self) -> Option<String> {
        (!std::mem::replace(&mut self.part, true)).then(|| "… goes on …".to_owned())
    }
}

impl Live {
    pub fn new(verbose: bool) -> Self {
        Self { verbose, ..Self::default() }
    }

    /// A step that calls a tool begins.
    pub fn begins(&mut self, step: String, what: String) {
        if self.steps.len() >= STEPS {
            self.steps.clear();
        }
        self.steps.insert(step, what);
    }

    /// Something else is shown: what a call writes afterwards is shown with its name again.
    pub fn interrupted(&mut self) {
        self.last = None;
    }

    /// A call has ended: the lines of its result that were not shown yet, and whether those before
    /// them were shown last.
    pub fn ended(&mut self, call: &str, result: &Value) -> (Vec<String>, bool) {
        let is_last = self.last.take().is_some_and(|last| last == call);
        let mut shown = self.calls.remove(call).unwrap_or_default();
        let mut lines = Vec::new();
        for (of, stream) in STREAMS.into_iter().enumerate() {
            let all = output(result.get(stream).and_then(Value::as_str).unwrap_or_default());
            let rest = &all[shown.told[of].min(all.len())..];
            lines.extend(shown.rest(of, rest, self.verbose));
        }
        (lines, is_last)
    }

    /// The live output of a call; `None` for other events.
    pub fn event(&mut self, kind: &str, payload: &Value) -> Option<Said> {
        let text = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default();
        let (of, said) = match kind {
            "tool.output.delta" => {
                let of = STREAMS.iter().position(|stream| *stream == text("stream"));
                (of.unwrap_or(0), output(text("text")))
            }
            "tool.progress" => (STREAMS.len(), vec![progress(payload)]),
            "tool.output.skipped" => (0, Vec::new()),
            _ => return None,
        };
        let (call, epoch) =
            (text("call_id"), payload.get("epoch").and_then(Value::as_u64).unwrap_or(0));
        let shown = self.calls.entry(call.to_owned()).or_default();
        let again = shown.epoch != epoch;
        if again {
            *shown = Shown { epoch, ..Shown::default() };
        }
        let (mut lines, _) = shown.take(of, &said, self.verbose);
        if kind == "tool.output.skipped" {
            lines.extend(shown.goes_on());
        }
        let mut header = None;
        if !lines.is_empty() && (again || self.last.as_deref() != Some(call)) {
            let what = self.steps.get(text("step_id")).map_or("a command", String::as_str);
            header = Some(format!("▸ {what}"));
            self.last = Some(call.to_owned());
        }
        Some(Said { header, lines })
    }
}

/// The lines of a whole output that are shown: the first and the last ones, or all of them.
pub fn excerpt(text: &str, verbose: bool) -> Vec<String> {
    Shown::default().rest(0, &output(text), verbose)
}

/// The lines of an output as a terminal would show them in the end: a carriage return begins the
/// line again. Empty ones are left out.
fn output(text: &str) -> Vec<String> {
    let last = |line: &str| {
        let line = line.split('\r').rfind(|part| !part.trim().is_empty())?;
        Some(clean::cut(&clean::line(line), 160).into_owned())
    };
    text.split('\n').filter_map(last).collect()
}

fn progress(payload: &Value) -> String {
    let number = |key: &str| payload.get(key).and_then(Value::as_f64);
    let done = number("progress").unwrap_or(0.0);
    let how_far = match number("total").filter(|total| *total > 0.0) {
        Some(total) => format!("{:.0} %", (done / total * 100.0).clamp(0.0, 100.0)),
        None => format!("{done}"),
    };
    match payload.get("message").and_then(Value::as_str) {
        Some(message) => format!("{how_far}: {}", clean::cut(&clean::line(message), 140)),
        None => how_far,
    }
}
