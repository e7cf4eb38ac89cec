//! Further pages of a run: its events, its artifacts, its steps one by one.

use overmind_api::{Artifact, Diff, Event, Step, StepType, Timestamp, VerifyReport};
use serde_json::Value;

use crate::clean;
use crate::parts::thousands;
use crate::when::{When, elapsed};

/// Longest value that is shown, in characters.
const MOST: usize = 16_000;

/// An event, as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRow {
    pub seq: u64,
    pub kind: String,
    pub at: When,
    /// The beginning of its hash, and the whole hash.
    pub short: String,
    pub hash: String,
    /// Its payload as JSON.
    pub payload: String,
}

impl LogRow {
    pub fn new(event: &Event, now: Timestamp) -> Self {
        Self {
            seq: event.seq,
            kind: clean::line(&event.kind).into_owned(),
            at: When::new(event.ts, now),
            short: event.hash.chars().take(12).collect(),
            hash: clean::line(&event.hash).into_owned(),
            payload: shown(&event.payload_json.value()),
        }
    }
}

/// Returns a value as indented JSON, without control characters.
fn shown(value: &Value) -> String {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    clean::cut(&clean::block(&text), MOST).into_owned()
}

/// The result of replaying a run's decisions from its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub ok: bool,
    pub text: String,
    /// For a divergence: the recorded decision and the present one.
    pub sides: Option<(String, String)>,
}

impl Verdict {
    pub fn new(report: &VerifyReport) -> Self {
        let (events, decided) = (thousands(report.events), thousands(report.decided));
        match &report.divergence {
            None => Self {
                ok: report.ok,
                text: format!(
                    "{events} events are chained; {decided} decisions were made again and are the same."
                ),
                sides: None,
            },
            Some(found) => Self {
                ok: false,
                text: format!(
                    "Event {} is not what is decided from the events before it.",
                    found.seq
                ),
                sides: Some((
                    clean::cut(&clean::block(&found.recorded), MOST).into_owned(),
                    clean::cut(&clean::block(&found.decided), MOST).into_owned(),
                )),
            },
        }
    }
}

/// A file that a run saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactRow {
    /// The exact name. It is encoded for a path.
    pub name: String,
    pub kind: String,
    pub size: String,
    pub version: u64,
    pub author: String,
    pub masked: bool,
    pub saved: When,
}

impl ArtifactRow {
    pub fn new(one: &Artifact, now: Timestamp) -> Self {
        Self {
            name: one.name.clone(),
            kind: clean::cut(&clean::line(&one.media_type), 80).into_owned(),
            size: bytes(one.size),
            version: one.version,
            author: clean::line(&one.author).into_owned(),
            masked: one.masked,
            saved: When::new(one.updated_at, now),
        }
    }

    /// Returns the name for people.
    pub fn shown(&self) -> String {
        clean::line(&self.name).into_owned()
    }
}

/// Returns a size in bytes for people: `812 B`, `4.1 KiB`, `18 MiB`.
pub fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let (mut whole, mut rest, mut unit) = (count, 0, "B");
    for next in units {
        if whole < 1024 {
            break;
        }
        (rest, whole, unit) = (whole % 1024, whole / 1024, next);
    }
    match unit {
        "B" => format!("{whole} B"),
        unit if whole < 10 => format!("{whole}.{} {unit}", rest * 10 / 1024),
        unit => format!("{whole} {unit}"),
    }
}

/// One step of a run with all details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepView {
    pub index: u32,
    pub what: String,
    pub took: String,
    pub turn: u32,
    pub input: String,
    pub output: String,
    pub error: Option<String>,
}

impl StepView {
    pub fn new(step: &Step) -> Self {
        let took = step.finished_at.map(|end| end.since(step.started_at).as_millis());
        let took = took.map(|ms| elapsed(u64::try_from(ms).unwrap_or(u64::MAX)));
        Self {
            index: step.idx,
            what: what(step),
            took: took.unwrap_or_default(),
            turn: step.turn,
            input: shown(&step.input_json),
            output: step.output_json.as_ref().map(shown).unwrap_or_default(),
            error: step
                .error
                .as_deref()
                .map(|text| clean::cut(&clean::line(text), 400).into_owned()),
        }
    }
}

fn what(step: &Step) -> String {
    let word = match step.kind {
        StepType::Plan => "plan",
        StepType::Tool => "tool",
        StepType::AskUser => "ask",
        StepType::Verify => "verify",
        StepType::Eval => "answer",
    };
    let tool = ["tool_name", "tool"].iter().find_map(|key| step.input_json.get(key)?.as_str());
    let text = tool.map_or_else(|| word.to_owned(), |tool| format!("{word} {tool}"));
    clean::cut(&clean::line(&text), 80).into_owned()
}

/// Two runs side by side, step by step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    pub a: String,
    pub b: String,
    /// The path `/runs/…` of the other run.
    pub link: String,
    pub common: u32,
    /// Number, whether both sides are equal, and each side.
    pub rows: Vec<(u32, bool, [Option<StepView>; 2])>,
}

impl Compared {
    pub fn new(diff: &Diff) -> Self {
        let rows = diff.rows.iter().take(500).map(|row| {
            let sides = [&row.a, &row.b].map(|side| side.as_ref().map(StepView::new));
            (row.idx, row.same, sides)
        });
        Self {
            a: clean::line(&diff.a.name).into_owned(),
            b: clean::line(&diff.b.name).into_owned(),
            link: format!("/runs/{}", diff.b.id),
            common: diff.common,
            rows: rows.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_shown_in_readable_units() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (18 << 20, "18 MiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn an_event_shows_its_payload_without_control_sequences() {
        let event: Event = serde_json::from_value(json!({
            "id": "ses_00000000000000000000000000000007.3", "run_id": "ses_00000000000000000000000000000007",
            "type": "agent.said\u{7}", "payload_json": {"text": "a\u{1b}[2Jb\u{202e}"},
            "ts": "2026-11-25T16:02:11+00:00", "seq": 3, "global": 9, "hash": "a5".repeat(32),
        })).unwrap();
        let row = LogRow::new(&event, Timestamp::default());
        assert_eq!((row.kind.as_str(), row.short.as_str()), ("agent.said\\u{7}", "a5a5a5a5a5a5"));
        assert!(!row.payload.contains(['\u{1b}', '\u{202e}']), "{}", row.payload);
    }

    #[test]
    fn a_failed_verification_names_the_differing_event() {
        let report = |value| Verdict::new(&serde_json::from_value(value).unwrap());
        let run = "ses_00000000000000000000000000000007";
        let good = report(
            json!({"ok": true, "run_id": run, "events": 1200, "decided": 30, "divergence": null}),
        );
        assert!(good.ok && good.text.starts_with("1,200 events"), "{good:?}");
        let bad = report(json!({"ok": false, "run_id": run, "events": 12, "decided": 3,
            "divergence": {"seq": 4, "recorded": "a", "decided": "b"}}));
        assert!(!bad.ok && bad.text.starts_with("Event 4") && bad.sides.is_some(), "{bad:?}");
    }
}
