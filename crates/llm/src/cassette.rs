//! `scripted:` models: their replies come from a cassette, which is a JSON file or a value in
//! memory.
//!
//! ```json
//! {
//!   "name": "greet",
//!   "turns": [
//!     { "reasoning": "Look first.", "text": "Let me look.",
//!       "calls": [{ "name": "read_file", "args": { "path": "a.txt" } }] },
//!     { "expect": { "last_tool_contains": "hello" }, "text": "It says hello.",
//!       "usage": { "input_tokens": 10, "output_tokens": 5 }, "delay_ms": 200 },
//!     { "fail": { "code": "overloaded", "message": "busy", "transient": true } }
//!   ]
//! }
//! ```
//!
//! Only the number of assistant messages in the request chooses the turn. So a session continues
//! with the right turn after a restart, and a replay gets the same replies. For the same reason a
//! turn with `fail` fails each time. Unknown keys are errors. Without `usage`, each word counts as
//! a token.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overmind_core::model::{
    DeltaSink, Message, ModelCall, ModelDelta, ModelFailure, ModelReply, ModelRequest, StopReason,
    Usage,
};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::call::sleep;
use crate::config::Config;
use crate::fail::{CASSETTE, TIMEOUT, failure};
use crate::tapes::Tapes;

/// Largest cassette file, in bytes.
pub(crate) const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// Longest `delay_ms`.
const MAX_DELAY_MS: u64 = 600_000;

/// A scripted model's replies, turn by turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Cassette {
    name: String,
    turns: Vec<Turn>,
}

/// One reply of a scripted model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Turn {
    pub text: String,
    pub reasoning: String,
    pub calls: Vec<ScriptedCall>,
    pub usage: Option<ScriptedUsage>,
    /// How long the reply takes, spread over its words; at most ten minutes.
    pub delay_ms: u64,
    pub fail: Option<ScriptedFailure>,
    pub expect: Expect,
}

/// One tool call of a turn; its id is made from the numbers of turn and call.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    pub name: String,
    /// An object, or a text for arguments that do not parse.
    pub args: Value,
}

/// The tokens that a turn reports as used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptedUsage {
    pub input_tokens: u32,
    pub output_tokens: u32,
    pub cached_input_tokens: u32,
    pub cache_write_tokens: u32,
    pub reasoning_tokens: u32,
}

/// The failure that ends a turn.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedFailure {
    pub code: String,
    pub message: String,
    #[serde(default)]
    pub status: Option<u16>,
    #[serde(default)]
    pub body: Option<String>,
    #[serde(default)]
    pub transient: bool,
}

/// Conditions on the request; if one is not met, the call fails with code `cassette`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Part of the last tool result.
    pub last_tool_contains: Option<String>,
    /// Part of the last message of the user.
    pub last_user_contains: Option<String>,
}

/// The problem with a cassette.
#[derive(Debug, thiserror::Error)]
pub enum CassetteError {
    #[error("cassette {from} is not JSON of the right shape")]
    Shape {
        from: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("cassette {from}: turn {turn} is not of the right shape")]
    Turn {
        from: String,
        /// Counted from 1.
        turn: usize,
        #[source]
        source: serde_json::Error,
    },
    #[error("cassette {from}: turn {turn} {problem}")]
    Meaning { from: String, turn: usize, problem: &'static str },
    #[error("cassette {from} has no name")]
    Nameless { from: String },
    #[error("reading cassette {from}")]
    Read {
        from: String,
        #[source]
        source: std::io::Error,
    },
    #[error("cassette {from} is larger than {MAX_BYTES} bytes")]
    TooLarge { from: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    turns: Vec<Box<RawValue>>,
}

impl Cassette {
    /// Makes a cassette from turns that a program built.
    pub fn new(name: &str, turns: Vec<Turn>) -> Self {
        Self { name: name.to_owned(), turns }
    }

    /// Reads a cassette's JSON; `from` names it in errors.
    ///
    /// # Errors
    ///
    /// [`CassetteError`] names the turn that is wrong and the reason.
    pub fn parse(from: &str, json: &[u8]) -> Result<Self, CassetteError> {
        let from = || from.to_owned();
        let file: File = serde_json::from_slice(json)
            .map_err(|source| CassetteError::Shape { from: from(), source })?;
        if file.name.trim().is_empty() {
            return Err(CassetteError::Nameless { from: from() });
        }
        let turns = (1..).zip(file.turns).map(|(number, raw)| {
            let turn: Turn = serde_json::from_str(raw.get())
                .map_err(|source| CassetteError::Turn { from: from(), turn: number, source })?;
            match turn.problem() {
                Some(problem) => {
                    Err(CassetteError::Meaning { from: from(), turn: number, problem })
                }
                None => Ok(turn),
            }
        });
        Ok(Self { name: file.name, turns: turns.collect::<Result<_, _>>()? })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }
}

impl Turn {
    fn problem(&self) -> Option<&'static str> {
        let says = !self.text.is_empty() || !self.calls.is_empty();
        if says && self.fail.is_some() {
            return Some("both says something and fails");
        }
        if !says && self.fail.is_none() {
            return Some("says nothing: it needs `text`, `calls` or `fail`");
        }
        if self.calls.iter().any(|call| call.name.is_empty()) {
            return Some("has a call without a name");
        }
        if self.calls.iter().any(|call| !(call.args.is_object() || call.args.is_string())) {
            return Some("has a call whose `args` are neither an object nor text");
        }
        (self.delay_ms > MAX_DELAY_MS).then_some("has a `delay_ms` of more than ten minutes")
    }
}

/// Checks, without I/O, whether `scripted:name` can be found; files are read only when played.
pub(crate) fn check(config: &Config, name: &str) -> Result<(), ModelFailure> {
    match config.cassettes.get(name) {
        Some(_) => Ok(()),
        None => path_of(config, name).map(|_| ()),
    }
}

fn path_of(config: &Config, name: &str) -> Result<PathBuf, ModelFailure> {
    let wrong = |why: &str| {
        let known: Vec<&str> = config.cassettes.keys().map(String::as_str).collect();
        failure(CASSETTE, false, format!("cassette `{name}`: {why}; loaded are {known:?}"))
    };
    let path = Path::new(name);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() {
        return Err(wrong("write `scripted:` and its name"));
    }
    if config.any_cassette_path && (path.is_absolute() || path.extension().is_some()) {
        return Ok(path.to_owned());
    }
    if !plain {
        return Err(wrong("a cassette is named by a path beneath the cassette directory"));
    }
    let Some(dir) = &config.cassette_dir else {
        return Err(wrong("no cassette of that name is loaded, and no cassette directory is set"));
    };
    Ok(dir.join(if path.extension().is_some() { name.to_owned() } else { format!("{name}.json") }))
}

async fn load(config: &Config, tapes: &Tapes, name: &str) -> Result<Arc<Cassette>, ModelFailure> {
    let read = tapes.get(path_of(config, name)?).await;
    read.map_err(|err| failure(CASSETTE, false, crate::fail::chain(&err)))
}

/// Plays the turn that comes next in the request's conversation.
pub(crate) async fn play(
    config: &Config,
    tapes: &Tapes,
    name: &str,
    request: &ModelRequest,
    sink: DeltaSink<'_>,
) -> Result<ModelReply, ModelFailure> {
    let loaded;
    let cassette = match config.cassettes.get(name) {
        Some(cassette) => cassette,
        None => {
            loaded = load(config, tapes, name).await?;
            &loaded
        }
    };
    let said = request.messages.iter().filter(|m| matches!(m, Message::Assistant { .. })).count();
    let number = said + 1;
    let wrong =
        |why: String| failure(CASSETTE, false, format!("cassette `{name}`, turn {number}: {why}"));
    let Some(turn) = cassette.turns.get(said) else {
        let has = cassette.turns.len();
        return Err(wrong(format!(
            "the cassette has only {has} turns; add one or end the session before"
        )));
    };
    turn.expect.check(&request.messages).map_err(wrong)?;
    let saying = Box::pin(turn.say(sink));
    tokio::time::timeout(request.total_timeout, saying).await.map_err(|_| {
        let seconds = request.total_timeout.as_secs_f64();
        failure(
            TIMEOUT,
            true,
            format!("cassette `{name}`, turn {number}: not done within {seconds} s"),
        )
    })?;
    if let Some(fail) = &turn.fail {
        return Err(ModelFailure {
            code: fail.code.clone(),
            message: fail.message.clone(),
            status: fail.status,
            body: fail.body.clone(),
            transient: fail.transient,
        });
    }
    let calls = (1..).zip(&turn.calls).map(|(n, call)| ModelCall {
        id: format!("call_{number}_{n}"),
        name: call.name.clone(),
        args: call.args.clone(),
    });
    let calls: Vec<ModelCall> = calls.collect();
    Ok(ModelReply {
        text: turn.text.clone(),
        reasoning: turn.reasoning.clone(),
        usage: turn.usage.map_or_else(|| turn.counted(request), ScriptedUsage::into_usage),
        stop: if calls.is_empty() { StopReason::End } else { StopReason::ToolCalls },
        calls,
        model: request.model.clone(),
        provider: "scripted".to_owned(),
        cost_microusd: Some(0),
        provider_state: None,
    })
}

impl Expect {
    fn check(&self, messages: &[Message]) -> Result<(), String> {
        let tool = messages.iter().rev().find_map(|message| match message {
            Message::Tool { content, .. } => Some(content),
            Message::User { .. } | Message::Assistant { .. } => None,
        });
        let user = messages.iter().rev().find_map(|message| match message {
            Message::User { text } => Some(text),
            Message::Tool { .. } | Message::Assistant { .. } => None,
        });
        for (what, want, is) in [
            ("tool result", &self.last_tool_contains, tool),
            ("message of the user", &self.last_user_contains, user),
        ] {
            let Some(want) = want else { continue };
            match is {
                None => return Err(format!("it expects a {what} and there is none")),
                Some(text) if !text.contains(want.as_str()) => {
                    let start: String = text.chars().take(300).collect();
                    return Err(format!(
                        "it expects the last {what} to contain `{want}`, and it is `{start}`"
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

impl Turn {
    /// Streams the turn word by word.
    async fn say(&self, sink: DeltaSink<'_>) {
        let mut deltas = Vec::new();
        deltas.extend(words(&self.reasoning).map(|word| ModelDelta::Reasoning(word.to_owned())));
        deltas.extend(words(&self.text).map(|word| ModelDelta::Text(word.to_owned())));
        for call in &self.calls {
            let args = match &call.args {
                Value::String(raw) => raw.clone(),
                other => other.to_string(),
            };
            let pieces = words(&args).map(|piece| ModelDelta::ToolArgs {
                name: call.name.clone(),
                text: piece.to_owned(),
            });
            deltas.extend(pieces);
        }
        let steps = u32::try_from(deltas.len().max(1)).unwrap_or(u32::MAX);
        let pause = Duration::from_millis(self.delay_ms) / steps;
        if deltas.is_empty() && !pause.is_zero() {
            sleep(pause).await;
        }
        for delta in deltas {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            sink(delta);
        }
    }

    fn counted(&self, request: &ModelRequest) -> Usage {
        let count = |text: &str| text.split_whitespace().count() as u64;
        let input: u64 = request
            .messages
            .iter()
            .map(|message| match message {
                Message::User { text } | Message::Assistant { text, .. } => count(text),
                Message::Tool { content, .. } => count(content),
            })
            .sum();
        let calls: u64 = self.calls.iter().map(|call| count(&call.args.to_string()) + 1).sum();
        let reasoning = count(&self.reasoning);
        Usage {
            input_tokens: (count(&request.system) + input).max(1),
            output_tokens: (count(&self.text) + reasoning + calls).max(1),
            reasoning_tokens: reasoning,
            ..Usage::default()
        }
    }
}

impl ScriptedUsage {
    fn into_usage(self) -> Usage {
        Usage {
            input_tokens: self.input_tokens.into(),
            output_tokens: self.output_tokens.into(),
            cached_input_tokens: self.cached_input_tokens.into(),
            cache_write_tokens: self.cache_write_tokens.into(),
            reasoning_tokens: self.reasoning_tokens.into(),
        }
    }
}

/// Splits a text into words, each with the white space after it; joined, they are the text again.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(char::is_whitespace)
}
