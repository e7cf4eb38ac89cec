//! Calls under way, in a run's story: their output line by line, their progress.

use std::collections::HashMap;

use serde_json::Value;

use crate::output::clean;

/// Lines of one call that are told while it runs; what comes after is told at its end.
const LINES: usize = 40;
/// Steps whose beginning is remembered.
const STEPS: usize = 64;

/// What has been told of calls that have not ended.
#[derive(Debug, Default)]
pub struct Live {
    /// What steps are about, by their ids.
    steps: HashMap<String, String>,
    calls: HashMap<String, Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    epoch: u64,
    lines: usize,
    /// Not everything was told.
    part: bool,
}

/// How much of a call's output was told before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Nothing,
    Part,
    All,
}

impl Live {
    /// A step that calls a tool begins.
    pub fn begins(&mut self, step: String, what: String) {
        if self.steps.len() >= STEPS {
            self.steps.clear();
        }
        self.steps.insert(step, what);
    }

    /// A call has ended.
    pub fn ended(&mut self, call: &str) -> Told {
        match self.calls.remove(call) {
            None => Told::Nothing,
            Some(shown) if shown.part => Told::Part,
            Some(_) => Told::All,
        }
    }

    /// The lines for what a call says while it runs; `None` for events about something else.
    pub fn event(&mut self, kind: &str, payload: &Value, verbose: bool) -> Option<Vec<String>> {
        let said = match kind {
            "tool.output.delta" => output(payload),
            "tool.progress" => vec![progress(payload)],
            "tool.output.skipped" => Vec::new(),
            _ => return None,
        };
        let text = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default();
        let epoch = payload.get("epoch").and_then(Value::as_u64).unwrap_or(0);
        let mut told = Vec::new();
        let shown = self.calls.entry(text("call_id").to_owned()).or_default();
        if shown.epoch != epoch {
            *shown = Shown { epoch, ..Shown::default() };
            let what = self.steps.get(text("step_id")).map_or("a command", String::as_str);
            told.push(format!("▸ {what}, while it runs"));
        }
        let room = if verbose { usize::MAX } else { LINES.saturating_sub(shown.lines) };
        let more = said.len() > room || kind == "tool.output.skipped";
        shown.lines += said.len().min(room);
        told.extend(said.into_iter().take(room).map(|line| format!("│ {line}")));
        if more && !shown.part {
            shown.part = true;
            told.push("│ … goes on …".to_owned());
        }
        Some(told)
    }
}

/// The lines of a piece as a terminal would show them in the end: a carriage return begins the
/// line anew. Empty ones are left out.
fn output(payload: &Value) -> Vec<String> {
    let text = payload.get("text").and_then(Value::as_str).unwrap_or_default();
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
