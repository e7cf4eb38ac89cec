//! The timeline of a run: turns, model calls with tokens, tool calls with results, restarts and
//! answers.

use overmind_api::{Event, ModelCall, Step, StepType, Timeline, TimelineData, Timestamp, ToolCall};
use serde_json::Value;

use crate::clean;
use crate::parts::{Tone, error_text, headline, thousands};
use crate::when::{When, elapsed};

/// Longest part of a result or answer that an entry shows, in characters.
const MOST: usize = 6000;

/// Length of the axis of a page.
const AXIS: i64 = 1000;
/// Shortest bar that can be seen.
const SHORTEST: i64 = 12;

/// The kind of an entry, as shape and tone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub tone: Tone,
    /// One character.
    pub shape: &'static str,
}

/// One line of the timeline.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Unique on the page and stable while the run grows.
    pub key: String,
    /// Whether a turn begins here, so that the entry is a heading.
    pub turn: bool,
    pub mark: Mark,
    /// The tool, the model, or the event.
    pub what: String,
    /// The object, such as a command or a file; may be empty.
    pub subject: String,
    /// A note: tokens, exit code, or a decision.
    pub note: String,
    /// Arguments, output or text in several lines, shown on demand.
    pub detail: String,
    /// Its duration.
    pub took: String,
    pub at: When,
    /// The time since the run was created: `+1.2 s`.
    pub since: String,
    /// The place of a call on the page's axis.
    pub bar: Option<Bar>,
}

/// The place of a call on an axis of 1,000 units.
///
/// The axis has only the times in which a call was in progress, so that a night of waiting for a
/// person does not make everything else invisible. Calls that ran at the same time overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Whether a model was called.
    pub model: bool,
    pub start: i64,
    /// At least [`SHORTEST`].
    pub length: i64,
}

impl Entry {
    /// Returns whether the detail is short enough to be shown at once.
    pub fn open(&self) -> bool {
        self.detail.lines().count() <= 4 && self.detail.chars().count() <= 400
    }

    /// Returns the length of the detail: `12 lines`.
    pub fn lines(&self) -> String {
        match self.detail.lines().count() {
            1 => "1 line".to_owned(),
            count => format!("{count} lines"),
        }
    }
}

/// A run's timeline.
#[derive(Clone, Debug, Default)]
pub struct Story {
    pub entries: Vec<Entry>,
}

/// Creates the story of a run that was created at `began` from timeline entries in their order.
pub fn story(items: &[Timeline], began: Timestamp, now: Timestamp) -> Story {
    let mut entries: Vec<Entry> = Vec::new();
    let mut calls: Vec<Option<(i64, i64)>> = Vec::new();
    let mut turn = None;
    for (n, item) in items.iter().enumerate() {
        let at = When::new(item.ts, now);
        let since = elapsed(u64::try_from(item.ts.since(began).as_millis()).unwrap_or(u64::MAX));
        let told = match &item.data {
            TimelineData::Event(event) => {
                of_event(event).map(|told| (format!("e{}", event.seq), told, 0))
            }
            TimelineData::Step(step) => {
                if turn != Some(step.turn) && step.turn > 0 {
                    let what = format!("Turn {}", step.turn.saturating_add(1));
                    let heading = Told::new(Tone::Flat, "", what);
                    entries.push(heading.entry(format!("turn{}", step.turn), at.clone(), 0, true));
                    calls.push(None);
                }
                turn = Some(step.turn);
                of_step(step).map(|told| (format!("s{}-{n}", step.idx), told, 0))
            }
            TimelineData::ToolCall(call) => {
                Some((format!("t{}", call.seq), of_tool(call), call.latency_ms))
            }
            TimelineData::ModelCall(call) => {
                Some((format!("m{}", call.seq), of_model(call), call.latency_ms))
            }
        };
        if let Some((key, told, ms)) = told {
            let model = matches!(item.data, TimelineData::ModelCall(_));
            let bar = (ms > 0).then_some(Bar { model, start: 0, length: 0 });
            let entry = told.entry(key, at, ms, false);
            entries.push(Entry { since: format!("+{since}"), bar, ..entry });
            let end = item.ts.as_micros();
            let length = i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1000);
            calls.push(bar.map(|_| (end.saturating_sub(length), end)));
        }
    }
    for (entry, (start, length)) in entries.iter_mut().zip(places(&calls)) {
        if let Some(bar) = &mut entry.bar {
            *bar = Bar { start, length, ..*bar };
        }
    }
    Story { entries }
}

/// The start and the length of each call on the axis; see [`Bar`]. A call is its start and its end
/// in microseconds.
fn places(calls: &[Option<(i64, i64)>]) -> Vec<(i64, i64)> {
    let mut sorted: Vec<_> = calls.iter().flatten().copied().collect();
    sorted.sort_unstable();
    // Start, end, and the length of everything before.
    let mut busy: Vec<(i64, i64, i64)> = Vec::new();
    for (start, end) in sorted {
        match busy.last_mut() {
            Some((_, last, _)) if start <= *last => *last = end.max(*last),
            earlier => {
                let before = earlier.map_or(0, |(start, end, before)| *before + *end - *start);
                busy.push((start, end, before));
            }
        }
    }
    let whole = busy.last().map_or(1, |(start, end, before)| before + end - start).max(1);
    let place = |at: i64| {
        let after = busy.partition_point(|(start, ..)| *start <= at);
        let (start, _, before) = busy[after.saturating_sub(1)];
        (before + at - start).saturating_mul(AXIS) / whole
    };
    let of_call = |call: &Option<(i64, i64)>| {
        let Some((start, end)) = *call else { return (0, 0) };
        let (start, end) = (place(start), place(end));
        (start.min(AXIS - SHORTEST), (end - start).max(SHORTEST))
    };
    calls.iter().map(of_call).collect()
}

struct Told {
    mark: Mark,
    what: String,
    subject: String,
    note: String,
    detail: String,
}

impl Told {
    fn new(tone: Tone, shape: &'static str, what: impl Into<String>) -> Self {
        let (subject, note, detail) = (String::new(), String::new(), String::new());
        Self { mark: Mark { tone, shape }, what: what.into(), subject, note, detail }
    }

    fn noted(mut self, note: impl AsRef<str>) -> Self {
        self.note = clean::cut(&clean::line(note.as_ref()), 300).into_owned();
        self
    }

    fn about(mut self, subject: impl AsRef<str>) -> Self {
        self.subject = clean::cut(&clean::line(subject.as_ref()), 300).into_owned();
        self
    }

    fn with(mut self, detail: &str) -> Self {
        // Sequences that control a terminal are left out; other unsafe characters become visible.
        let text = clean::passing(detail.trim_end(), false);
        self.detail = clean::cut(&text, MOST).into_owned();
        self
    }

    fn entry(self, key: String, at: When, ms: u64, turn: bool) -> Entry {
        let Self { mark, what, subject, note, detail } = self;
        let what = clean::cut(&clean::line(&what), 200).into_owned();
        let took = if ms > 0 { elapsed(ms) } else { String::new() };
        let since = String::new();
        Entry { key, turn, mark, what, subject, note, detail, took, at, since, bar: None }
    }
}

fn of_event(event: &Event) -> Option<Told> {
    let payload = event.payload_json.value();
    let text = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default();
    let by = || if text("by").is_empty() { "someone" } else { text("by") };
    let error = || error_text(payload.get("error").unwrap_or(&Value::Null));
    let number = |key: &str| payload.get(key).and_then(Value::as_i64);
    Some(match event.kind.as_str() {
        "run.queued" => Told::new(Tone::Flat, "◌", "queued"),
        "run.started" => Told::new(Tone::Busy, "▸", "started"),
        "run.recovered" => Told::new(Tone::Ask, "↻", "server restarted")
            .noted(format!("start {}", number("epoch").unwrap_or(2))),
        "effect.redone" => Told::new(Tone::Ask, "↻", "repeated")
            .about(text("tool_name"))
            .noted("its result was lost"),
        "run.idle" => Told::new(Tone::Flat, "▢", "your turn"),
        "run.succeeded" => Told::new(Tone::Good, "✓", "done"),
        "run.canceled" => Told::new(Tone::Flat, "⊘", "stopped").noted(match text("reason") {
            "" => format!("by {}", by()),
            reason => reason.to_owned(),
        }),
        "run.failed" => Told::new(Tone::Bad, "✕", "failed").noted(error()),
        "run.step_limit_reached" => Told::new(Tone::Bad, "✕", "step limit reached"),
        "run.time_limit_reached" => Told::new(Tone::Bad, "✕", "time limit reached"),
        "supervisor.stalled" => Told::new(Tone::Ask, "⟳", "repeats itself").noted(text("what")),
        "run.awaiting_input" => Told::new(Tone::Ask, "?", "asks").with(text("prompt")),
        "run.restored" => Told::new(Tone::Flat, "⟳", "brought back").noted(format!("by {}", by())),
        "run.input_received" | "run.told" => {
            Told::new(Tone::Busy, "›", format!("{} says", by())).with(text("message"))
        }
        "approval.requested" => {
            let args = payload.get("args").unwrap_or(&Value::Null);
            let what = format!("asks for approval: {}", text("tool_name"));
            Told::new(Tone::Ask, "▲", what)
                .about(headline(text("tool_name"), args))
                .noted(text("reason"))
        }
        "approval.answered" => {
            let yes = payload.get("approve").and_then(Value::as_bool).unwrap_or(false);
            let (tone, shape, word) =
                if yes { (Tone::Good, "✓", "approved") } else { (Tone::Bad, "✕", "denied") };
            Told::new(tone, shape, format!("{word} by {}", by())).noted(text("reason"))
        }
        "tool.retry" => Told::new(Tone::Ask, "↻", "tries again").noted(error()),
        "process.started" => Told::new(Tone::Busy, "▸", "command started")
            .noted(number("pid").map(|pid| format!("process {pid}")).unwrap_or_default()),
        "process.restarting" => Told::new(Tone::Ask, "↻", "command restarts"),
        "process.stop_asked" => {
            Told::new(Tone::Flat, "◒", "stop asked").noted(format!("by {}", by()))
        }
        "process.ended" => {
            let end = payload.get("end").unwrap_or(&Value::Null);
            let part = |key: &str| end.get(key).and_then(Value::as_i64);
            match (part("exit_code").or_else(|| part("code")), part("signal")) {
                (Some(0), _) => Told::new(Tone::Good, "✓", "command ended").noted("exit 0"),
                (Some(code), _) => {
                    Told::new(Tone::Bad, "✕", "command ended").noted(format!("exit {code}"))
                }
                (None, Some(signal)) => {
                    Told::new(Tone::Bad, "✕", "command ended").noted(format!("signal {signal}"))
                }
                (None, None) => Told::new(Tone::Flat, "■", "command ended"),
            }
        }
        "agent.said" => Told::new(Tone::Flat, "“", "says").with(text("text")),
        "agent.tool_use" => {
            let args = payload.get("args").unwrap_or(&Value::Null);
            Told::new(Tone::Flat, "▸", text("tool_name")).about(headline(text("tool_name"), args))
        }
        "model.unanswered" => Told::new(Tone::Bad, "!", "model calls fail").noted(text("message")),
        "agent.error" => Told::new(Tone::Bad, "!", "trouble").noted(text("message")),
        "room.ready" => {
            let made = |key: &str| payload.get("made")?.get(key)?.as_str();
            Told::new(Tone::Flat, "⎇", "worktree ready").about(made("branch").unwrap_or_default())
        }
        "room.failed" | "room.left" => {
            Told::new(Tone::Bad, "✕", "environment failed").noted(error())
        }
        "room.done" => {
            let said = payload.pointer("/decision/outcome/said").and_then(Value::as_str);
            Told::new(Tone::Good, "⤳", "work decided").noted(said.unwrap_or_default())
        }
        "canary.tripped" => {
            Told::new(Tone::Bad, "▲", "planted secret refused").about(text("tool_name"))
        }
        _ => return None,
    })
}

fn of_step(step: &Step) -> Option<Told> {
    step.finished_at?;
    match step.kind {
        StepType::Eval => {
            let answer = step.output_json.as_ref()?.get("final_answer")?.as_str()?;
            Some(Told::new(Tone::Good, "◆", "answer").with(answer))
        }
        StepType::Verify | StepType::Plan | StepType::Tool | StepType::AskUser => None,
    }
}

fn of_tool(call: &ToolCall) -> Told {
    let result = &call.result_json;
    let ok = result.get("ok").and_then(Value::as_bool).unwrap_or(false);
    let (tone, shape) = if ok { (Tone::Good, "✓") } else { (Tone::Bad, "✕") };
    let mut notes = Vec::new();
    if let Some(code) = result.get("exit_code").and_then(Value::as_i64) {
        notes.push(format!("exit {code}"));
    }
    if !call.allowed {
        notes.push("not allowed".to_owned());
    }
    if let Some(error) = result.get("error").filter(|error| !error.is_null()) {
        notes.push(error_text(error));
    }
    let mut detail = String::new();
    for key in ["stdout", "output", "stderr", "content", "text"] {
        if let Some(text) = result.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
        {
            detail.push_str(text.trim_end());
            detail.push('\n');
        }
    }
    if detail.is_empty() && ok {
        detail = serde_json::to_string_pretty(result).unwrap_or_default();
    }
    Told::new(tone, shape, call.tool_name.as_str())
        .about(headline(&call.tool_name, &call.args_json))
        .noted(notes.join(" · "))
        .with(&detail)
}

fn of_model(call: &ModelCall) -> Told {
    let count = |key: &str| call.usage_json.get(key).and_then(Value::as_u64).unwrap_or(0);
    let cached = match count("cached_input_tokens") {
        0 => String::new(),
        cached => format!(" ({} cached)", thousands(cached)),
    };
    let mut note = format!(
        "{} in{cached}, {} out",
        thousands(count("input_tokens")),
        thousands(count("output_tokens"))
    );
    let cost = call.usage_json.get("cost_usd").or_else(|| call.usage_json.get("cost"));
    if let Some(usd) = cost.and_then(Value::as_f64).filter(|usd| *usd > 0.0) {
        note.push_str(&format!(" · {}", crate::money(usd)));
    }
    let (tone, shape) = match &call.error {
        Some(error) => {
            note = error_text(error);
            (Tone::Bad, "✕")
        }
        None => (Tone::Busy, "◇"),
    };
    let words = call.response_json.get("text").and_then(Value::as_str).unwrap_or_default();
    Told::new(tone, shape, call.model.as_str()).noted(note).with(words)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn items(values: Value) -> Vec<Timeline> {
        serde_json::from_value(values).unwrap()
    }

    const RUN: &str = "ses_00000000000000000000000000000007";
    const AT: &str = "2026-11-25T16:02:11.000000+00:00";

    fn event(seq: u64, kind: &str, payload: Value) -> Value {
        json!({"kind": "event", "ts": AT, "data": {
            "id": format!("{RUN}.{seq}"), "run_id": RUN, "type": kind, "payload_json": payload,
            "ts": AT, "seq": seq, "global": seq, "hash": "a5".repeat(32),
        }})
    }

    #[test]
    fn restarts_answers_and_ends_are_shown_and_bookkeeping_is_hidden() {
        let told = story(
            &items(json!([
                event(1, "run.started", json!({"epoch": 1})),
                event(2, "run.recovered", json!({"epoch": 2})),
                event(
                    3,
                    "approval.answered",
                    json!({"approve": false, "by": "ann", "reason": "no"})
                ),
                event(4, "sandbox.attested", json!({})),
                event(5, "run.failed", json!({"error": {"message": "gave up"}})),
                event(6, "run.canceled", json!({"by": "ann"})),
                event(7, "run.canceled", json!({"by": "system", "reason": "scaled away"})),
            ])),
            Timestamp::from_micros(0),
            Timestamp::from_micros(0),
        );
        let line = |one: &Entry| format!("{} {}|{}", one.mark.shape, one.what, one.note);
        let lines: Vec<_> = told.entries.iter().map(line).collect();
        let want = [
            "▸ started|",
            "↻ server restarted|start 2",
            "✕ denied by ann|no",
            "✕ failed|gave up",
            "⊘ stopped|by ann",
            "⊘ stopped|scaled away",
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn tool_output_is_bounded_and_has_no_control_sequences() {
        let long = format!("\u{1b}]0;owned\u{7}<b>{}", "x".repeat(20_000));
        let told = story(
            &items(json!([{"kind": "tool_call", "ts": AT, "data": {
                "id": "eff_00000000000000000000000000000001", "run_id": RUN, "step_id": null,
                "tool_name": "run_shell", "args_json": {"command": "make"},
                "result_json": {"ok": false, "exit_code": 2, "stdout": long}, "allowed": true,
                "latency_ms": 1500, "created_at": AT, "seq": 4}}])),
            AT.parse::<Timestamp>().unwrap(),
            Timestamp::from_micros(0),
        );
        let entry = &told.entries[0];
        assert_eq!((entry.subject.as_str(), entry.note.as_str()), ("make", "exit 2"));
        let bar = Bar { model: false, start: 0, length: AXIS };
        assert_eq!(
            (entry.took.as_str(), entry.since.as_str(), entry.bar),
            ("1.5 s", "+0 ms", Some(bar))
        );
        assert!(entry.detail.starts_with("<b>xxx"), "{}", &entry.detail[..20]);
        assert_eq!(entry.detail.chars().count(), MOST);
    }

    #[test]
    fn calls_are_drawn_in_order_without_idle_time() {
        let hour = 3_600_000_000;
        // A model call, two tools at the same time, and an hour later another model call.
        let calls = [
            Some((0, 400_000)),
            None,
            Some((500_000, 700_000)),
            Some((600_000, 700_000)),
            Some((hour, hour + 400_000)),
        ];
        assert_eq!(places(&calls), [(0, 400), (0, 0), (400, 200), (500, 100), (600, 400)]);
    }

    #[test]
    fn short_calls_stay_visible_and_within_the_axis() {
        assert_eq!(places(&[]), []);
        assert_eq!(places(&[None]), [(0, 0)]);
        let placed = places(&[Some((0, 1_000_000)), Some((1_000_000, 1_000_001))]);
        assert_eq!(placed, [(0, 999), (AXIS - SHORTEST, SHORTEST)]);
    }
}
