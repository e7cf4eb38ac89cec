//! Parts that several pages share: states, money, summaries of calls.

use overmind_api::RunStatus;
use serde_json::Value;

use crate::clean;

/// The meaning of a part. The page decides how it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// No special meaning.
    Flat,
    /// At work.
    Busy,
    /// It waits for a person.
    Ask,
    Good,
    Bad,
}

impl Tone {
    /// Returns the name as a class of a style sheet.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Busy => "run",
            Self::Ask => "ask",
            Self::Good => "ok",
            Self::Bad => "bad",
        }
    }
}

/// A state with a tone and a shape, so that it is readable without colour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pill {
    pub tone: Tone,
    /// One character.
    pub shape: &'static str,
    pub text: String,
}

impl Pill {
    pub fn new(tone: Tone, shape: &'static str, text: impl Into<String>) -> Self {
        Self { tone, shape, text: text.into() }
    }
}

/// The state of a run.
pub fn status(status: RunStatus) -> Pill {
    let (tone, shape, text) = match status {
        RunStatus::Queued => (Tone::Flat, "◌", "queued"),
        RunStatus::Running => (Tone::Busy, "◐", "working"),
        RunStatus::AwaitingInput => (Tone::Ask, "?", "has a question"),
        RunStatus::AwaitingApproval => (Tone::Ask, "▲", "needs approval"),
        RunStatus::Idle => (Tone::Flat, "▢", "your turn"),
        RunStatus::Succeeded => (Tone::Good, "✓", "done"),
        RunStatus::Failed => (Tone::Bad, "✕", "failed"),
        RunStatus::Canceled => (Tone::Flat, "⊘", "stopped"),
    };
    Pill::new(tone, shape, text)
}

/// Formats US dollars: with cents from one cent on, and below that with all digits.
pub fn money(usd: f64) -> String {
    if usd == 0.0 || usd >= 0.01 { format!("${usd:.2}") } else { format!("${usd:.4}") }
}

/// Formats US dollars that may include an upper bound of a call's cost: `≤ $0.93`.
pub(crate) fn money_at_most(usd: f64, at_most: bool) -> String {
    if at_most { format!("≤ {}", money(usd)) } else { money(usd) }
}

/// Formats a number in groups of three digits: `12,480`.
pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the argument that describes a call best, on one line, or all arguments if there is none.
/// At most 400 characters.
pub fn headline(tool: &str, args: &Value) -> String {
    let text = match args.get(main_argument(tool)) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None if args.as_object().is_some_and(serde_json::Map::is_empty) => String::new(),
        None => args.to_string(),
    };
    clean::cut(&clean::line(text.trim()), 400).into_owned()
}

/// Returns the name of the argument that describes a call best, of built-in tools and of those of
/// Claude Code and Codex; empty if there is none.
pub fn main_argument(tool: &str) -> &'static str {
    if let Some(row) = overmind_api::tool_traits(tool) {
        return row.headline.unwrap_or_default();
    }
    match tool {
        "Bash" | "shell" => "command",
        "WebFetch" => "url",
        "LS" => "path",
        "Read" | "Write" | "Edit" | "MultiEdit" => "file_path",
        "NotebookEdit" => "notebook_path",
        "Grep" | "Glob" => "pattern",
        "Task" | "Agent" => "description",
        "Skill" => "skill",
        "web_search" | "WebSearch" => "query",
        _ => "",
    }
}

/// Returns the text of an error: its message, else its code, else its JSON.
pub fn error_text(error: &Value) -> String {
    let text = match error {
        Value::String(text) => text.clone(),
        other => match (other.get("message"), other.get("error"), other.get("code")) {
            (Some(Value::String(message)), _, _) => message.clone(),
            (_, Some(inner), _) => return error_text(inner),
            (_, _, Some(Value::String(code))) => code.clone(),
            _ => other.to_string(),
        },
    };
    clean::cut(&clean::line(&text), 400).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_state_has_its_own_symbol() {
        let pills: Vec<_> = RunStatus::ALL.iter().map(|one| status(*one)).collect();
        for (n, pill) in pills.iter().enumerate() {
            assert!(pills.iter().skip(n + 1).all(|other| other.shape != pill.shape), "{pill:?}");
        }
    }

    #[test]
    fn money_and_counts_are_shown_in_readable_units() {
        let cases = [(0.0, "$0.00"), (0.0012, "$0.0012"), (0.01, "$0.01"), (25.0, "$25.00")];
        for (usd, text) in cases {
            assert_eq!(money(usd), text);
        }
        for (count, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(count), text);
        }
    }

    #[test]
    fn a_headline_is_one_line_without_control_characters() {
        let args = json!({"command": "echo a\nb\u{1b}[2J"});
        assert_eq!(headline("run_shell", &args), "echo a⏎b\\u{1b}[2J");
        assert_eq!(headline("other", &json!({})), "");
        assert_eq!(headline("other", &json!({"x": 1})), r#"{"x":1}"#);
        let error = json!({"error": {"message": "no\u{7}"}});
        assert_eq!(error_text(&error), "no\\u{7}");
    }
}
