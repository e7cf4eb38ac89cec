//! Parses the protocols of agents' programs: lines in, facts out.
//!
//! A [`Reader`] takes the pieces of a log and returns the facts in their lines: `claude` for Claude
//! Code's `stream-json`, `codex` for `codex exec --json`, `lines` for any program that prints
//! `{"overmind": {…}}`. Each line is parsed alone, so a reader stores only the present incomplete
//! line. A new reader that starts at [`Reader::upto`] finds exactly the facts that the old one has
//! not returned. Lines that are not JSON, and unknown events, are ignored. A line that was meant as
//! an event and cannot be parsed is reported as trouble, or as a failure if it was the result.
//! [`launch`] contains the command lines of these programs and their input.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::prompt::{Provider, Question};
use super::{LogKind, LogPiece};
use crate::json as outside;
use crate::model::Usage;

mod claude;
mod codex;
pub mod launch;
mod lines;

/// Longest line that is parsed. Of a longer one, only the beginning is examined.
pub const MAX_LINE: usize = 4 << 20;
/// Length of the beginning of an invalid line in which its intended type is searched.
const HEAD: usize = 256;
/// Longest text of a fact, in bytes. A result may be four times as long.
pub const MAX_TEXT: usize = 16 << 10;
/// Longest text in the arguments of a tool, in bytes.
const MAX_ARG: usize = 2 << 10;
/// Longest arguments of a tool, in bytes of JSON. Longer ones become shortened text.
const MAX_ARGS: usize = 8 << 10;
/// Longest accepted id or name.
const MAX_ID: usize = 200;
/// Deepest nesting of arguments that is kept unchanged. JSON readers stop at 128.
const DEEPEST: u32 = 32;

/// A fact that an agent's program reported.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The provider's own id of the conversation, for resuming it.
    Conversation {
        id: String,
        model: Option<String>,
    },
    /// Text of the agent. `within`: the tool call of the sub-agent that wrote it.
    Said {
        text: String,
        within: Option<String>,
    },
    /// A tool call started. Its arguments are bounded.
    ToolUse {
        id: String,
        name: String,
        args: Value,
    },
    /// A tool call ended.
    ToolResult {
        id: String,
        name: Option<String>,
        ok: bool,
        output: String,
    },
    Spent(Spent),
    /// The program waits for a person.
    Asks(Ask),
    /// The question with this id needs no answer any more.
    AskGone {
        id: String,
    },
    /// An error from which the program continues.
    Trouble {
        message: String,
    },
    /// The answer so far; the last one counts.
    Answer {
        text: String,
    },
    /// A turn ended.
    Result {
        text: String,
        is_error: bool,
    },
}

/// The cost of a turn, an attempt or a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    pub scope: Scope,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_microusd: Option<u64>,
    /// Number of model calls, or of turns if the provider does not report calls.
    #[serde(default)]
    pub calls: u32,
}

/// The period that a [`Spent`] covers. All except `Turn` replace earlier values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Since the last turn.
    #[default]
    Turn,
    /// Since the program was started.
    Life,
    /// The whole conversation, including earlier attempts.
    Conversation,
}

/// A question that the program asks in its protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    pub id: String,
    pub question: Question,
    /// Offset in the log of the line with the question, from which the answer is made.
    pub at: u64,
    /// The tool call for which permission is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use: Option<String>,
}

/// Most tool calls for which a reader remembers that a person was asked. Older ones are forgotten.
pub const MOST_ASKED: usize = 256;

/// The tool calls of an attempt for which a person was asked, whatever the answer: the last
/// [`MOST_ASKED`]. If a person denied one of them, that is no failure of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked(VecDeque<String>);

impl Asked {
    pub fn iter(&self) -> impl Iterator<Item = &String> {
        self.0.iter()
    }

    fn contains(&self, id: &str) -> bool {
        self.0.iter().any(|known| known == id)
    }
}

impl FromIterator<String> for Asked {
    fn from_iter<T: IntoIterator<Item = String>>(ids: T) -> Self {
        let mut asked = Self::default();
        asked.extend(ids);
        asked
    }
}

impl Extend<String> for Asked {
    fn extend<T: IntoIterator<Item = String>>(&mut self, ids: T) {
        for id in ids {
            if !self.contains(&id) {
                self.0.push_back(id);
            }
            if self.0.len() > MOST_ASKED {
                self.0.pop_front();
            }
        }
    }
}

/// The facts on which a session's state depends, and the position up to which they were read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Offset in the session's log at which to continue.
    pub upto: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spent: Vec<Spent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<Ask>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
    /// Whether the last known turn has ended (true) or is running (false); `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_over: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub text: String,
    pub is_error: bool,
}

impl Told {
    pub fn new(upto: u64, facts: &[Fact]) -> Self {
        let mut told = Self { upto, ..Self::default() };
        for fact in facts {
            match fact {
                Fact::Conversation { id, .. } => told.conversation = Some(id.clone()),
                Fact::Spent(spent) => told.spent.push(*spent),
                Fact::Asks(ask) => told.asks.push(ask.clone()),
                Fact::AskGone { id } => {
                    told.asks.retain(|ask| ask.id != *id);
                    told.gone.push(id.clone());
                }
                Fact::Answer { text } => {
                    told.answer = Some(Answer { text: text.clone(), is_error: false });
                }
                Fact::Result { text, is_error } => {
                    // Some turns end without a word of their own.
                    let before = told.answer.take().filter(|_| text.is_empty() && !is_error);
                    let answer = Answer { text: text.clone(), is_error: *is_error };
                    told.answer = Some(before.unwrap_or(answer));
                    told.turn_over = Some(true);
                }
                Fact::Said { .. } | Fact::ToolUse { .. } | Fact::ToolResult { .. } => {
                    told.turn_over = Some(false);
                }
                Fact::Trouble { .. } => {}
            }
        }
        told
    }
}

/// The kinds of events for facts.
pub const EVENTS: &[&str] = &[
    "agent.conversation",
    "agent.said",
    "agent.tool_use",
    "agent.tool_result",
    "agent.usage",
    "agent.error",
    "agent.result",
];

impl Fact {
    /// Returns the event that shows this fact in the run's log; `None` if the run's decisions show
    /// it.
    pub fn event(&self) -> Option<(&'static str, Map<String, Value>)> {
        let (kind, payload) = match self {
            Self::Conversation { id, model } => {
                ("agent.conversation", json!({"conversation": id, "model": model}))
            }
            Self::Said { text, within } => ("agent.said", json!({"text": text, "within": within})),
            Self::ToolUse { id, name, args } => {
                ("agent.tool_use", json!({"tool_use_id": id, "tool_name": name, "args": args}))
            }
            Self::ToolResult { id, name, ok, output } => (
                "agent.tool_result",
                json!({"tool_use_id": id, "tool_name": name, "ok": ok, "output": output}),
            ),
            Self::Spent(spent) => ("agent.usage", json!(spent)),
            Self::Trouble { message } => ("agent.error", json!({"message": message})),
            Self::Result { text, is_error } => {
                ("agent.result", json!({"text": text, "is_error": is_error}))
            }
            Self::Asks(_) | Self::AskGone { .. } | Self::Answer { .. } => return None,
        };
        let Value::Object(payload) = payload else { return None };
        Some((kind, payload))
    }
}

/// Converts pieces of a log to facts.
#[derive(Debug)]
pub struct Reader {
    provider: Provider,
    /// Offset of the next byte of the log.
    next: u64,
    life: u32,
    line: Vec<u8>,
    /// Offset at which `line` begins.
    began: u64,
    /// Whether the line is too long, so that the rest of it is skipped.
    too_long: bool,
    asked: Asked,
}

impl Reader {
    /// Creates a reader that starts at `from`, which must be the beginning of a line.
    pub fn new(provider: Provider, from: u64) -> Self {
        Self {
            provider,
            next: from,
            life: 0,
            line: Vec::new(),
            began: from,
            too_long: false,
            asked: Asked::default(),
        }
    }

    /// Sets the tool calls for which a person was asked before the reader's start.
    #[must_use]
    pub fn after(self, asked: Asked) -> Self {
        Self { asked, ..self }
    }

    /// Returns the offset from which another reader would find the facts that this one has not
    /// returned yet.
    pub fn upto(&self) -> u64 {
        if self.line.is_empty() || self.too_long { self.next } else { self.began }
    }

    /// Returns the offset of the next piece.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Handles the next piece. Missing bytes between two pieces produce no facts.
    pub fn piece(&mut self, piece: &LogPiece, facts: &mut Vec<Fact>) {
        // A piece may begin before the requested position, and be read twice.
        let seen = self.next.saturating_sub(piece.offset);
        let Some(bytes) = usize::try_from(seen).ok().and_then(|seen| piece.bytes.get(seen..))
        else {
            return;
        };
        let offset = piece.offset.max(self.next);
        if offset != self.next || piece.epoch != self.life {
            // A new attempt, or a gap in the log: unfinished calls never end.
            self.end(facts);
            self.life = piece.epoch;
        }
        self.next = offset + bytes.len() as u64;
        // Errors have a pipe of their own, and notes are ours.
        if piece.kind != LogKind::Output {
            return;
        }
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            let after = self.next - (rest.len() - at - 1) as u64;
            self.take(&rest[..at], after - 1 - at as u64);
            self.end(facts);
            rest = &rest[at + 1..];
        }
        if !rest.is_empty() {
            self.take(rest, self.next - rest.len() as u64);
        }
    }

    fn take(&mut self, bytes: &[u8], at: u64) {
        if self.line.is_empty() && !self.too_long {
            self.began = at;
        }
        if self.line.len() + bytes.len() > MAX_LINE {
            self.too_long = true;
            self.line.truncate(HEAD);
            self.line.shrink_to_fit();
        }
        if !self.too_long {
            self.line.extend_from_slice(bytes);
        }
    }

    /// Handles the end of a line that will not get any more bytes.
    pub fn end(&mut self, facts: &mut Vec<Fact>) {
        match self.too_long {
            false => line(self.provider, &self.line, self.began, &mut self.asked, facts),
            true => {
                let why = format!("it has more than {MAX_LINE} bytes");
                unreadable(self.provider, &self.line, &why, facts);
            }
        }
        self.line.clear();
        self.too_long = false;
    }
}

/// Appends the facts of one line. `at`: its offset in the log. `asked`: the tool calls for which
/// earlier lines asked a person; those of this line are added.
pub fn line(provider: Provider, line: &[u8], at: u64, asked: &mut Asked, facts: &mut Vec<Fact>) {
    let line = line.trim_ascii();
    if line.first() != Some(&b'{') {
        return;
    }
    let event: Map<String, Value> = match outside::read(line) {
        Ok(event) => event,
        Err(err) => return unreadable(provider, line, &err.to_string(), facts),
    };
    match provider {
        Provider::Raw => {}
        Provider::Claude => claude::facts(&event, at, asked, facts),
        Provider::Codex => codex::facts(&event, facts),
        Provider::Lines => lines::facts(&event, at, facts),
    }
}

/// Reports a line that was meant as JSON and is not. Any other text is ordinary output.
fn unreadable(provider: Provider, line: &[u8], why: &str, facts: &mut Vec<Fact>) {
    let has = |part: &[u8], word: &str| part.windows(word.len()).any(|at| at == word.as_bytes());
    let head = &line[..line.len().min(HEAD)];
    let (is_event, is_result) = match provider {
        Provider::Raw => (false, false),
        Provider::Claude => (head.starts_with(br#"{"type":""#), has(head, r#""type":"result""#)),
        Provider::Codex => (
            head.starts_with(br#"{"type":""#),
            has(head, r#""turn."#) || has(head, r#""type":"agent_message""#),
        ),
        Provider::Lines => (has(head, r#""overmind""#), has(line, r#""result""#)),
    };
    if is_event {
        let begins = String::from_utf8_lossy(&head[..head.len().min(80)]);
        let message =
            format!("a line of the agent's program cannot be read, {why}; it begins {begins}");
        if is_result {
            facts.push(Fact::Result { text: message.clone(), is_error: true });
        }
        facts.push(Fact::Trouble { message });
    }
}

/// Returns the text at `name`, shortened if needed.
fn text(object: &Map<String, Value>, name: &str) -> Option<String> {
    object.get(name)?.as_str().map(|text| cut(text, MAX_TEXT))
}

/// Returns the id or name at `name`: one line, not empty.
fn id(object: &Map<String, Value>, name: &str) -> Option<String> {
    let id = object.get(name)?.as_str()?;
    let plain = !id.is_empty() && id.len() <= MAX_ID && !id.contains(char::is_control);
    plain.then(|| id.to_owned())
}

fn object<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Map<String, Value>> {
    object.get(name)?.as_object()
}

fn number(object: &Map<String, Value>, name: &str) -> u64 {
    object.get(name).and_then(outside::count).unwrap_or(0)
}

/// Converts dollars to millionths, rounded; `None` if the value is not a price.
fn microusd(value: Option<&Value>) -> Option<u64> {
    let dollars = value?.as_f64().filter(|dollars| (0.0..1e9).contains(dollars))?;
    let rounded = (dollars * 1e6).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded by the line above"
    )]
    Some(rounded as u64)
}

/// Returns at most this many bytes. Nothing is appended, because masking recognizes a partial
/// secret only at a text's end.
fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

/// Returns arguments with bounded length and depth.
fn bounded(args: &Value) -> Value {
    fn shorten(value: &Value, left: u32) -> Value {
        match value {
            Value::String(text) => Value::String(cut(text, MAX_ARG)),
            Value::Array(_) | Value::Object(_) if left == 0 => Value::String("…".to_owned()),
            Value::Array(items) => items.iter().map(|item| shorten(item, left - 1)).collect(),
            Value::Object(fields) => {
                let short = |(name, field): (&String, &Value)| {
                    (cut(name, MAX_ID), shorten(field, left - 1))
                };
                Value::Object(fields.iter().map(short).collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }
    let short = shorten(args, DEEPEST);
    let text = short.to_string();
    if text.len() > MAX_ARGS { Value::String(cut(&text, MAX_ARGS)) } else { short }
}

#[cfg(test)]
mod tests;
