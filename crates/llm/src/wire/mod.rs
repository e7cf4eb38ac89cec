//! The wire formats: turn a request into a body, and a stream of events into deltas and one reply.
//!
//! There is one module per format, each with `body` (request) and a decoder (reply). They share
//! [`Call`], the decoder [`Decoder`], and [`Pieces`], which keeps what a provider needs to get
//! back.

pub(crate) mod anthropic;
pub(crate) mod chat;
mod decode;
mod halves;
mod pieces;
pub(crate) mod responses;
pub(crate) mod usage;

use std::collections::BTreeSet;

use overmind_core::model::{Message, ModelDelta, ModelRequest, ToolChoice};
use serde_json::{Map, Value};

use crate::alias::Aliases;
use crate::config::{Format, Provider};
use crate::conversation::{self, Part};

pub(crate) use decode::{Broken, Decoder, Draft, Heard, WireCall};
pub(crate) use pieces::{Piece, Pieces};

/// A part of a request that is omitted because the provider has refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Omit {
    Temperature,
    Effort,
    /// The readable summary of the reasoning.
    Summary,
    /// The `stream_options` of chat; without them there are no usage counts.
    StreamOptions,
    /// The value `reasoning.encrypted_content` of `include`, in Responses.
    Include,
    /// The value `required` of `tool_choice`; without it the model may answer in text.
    ToolChoice,
    /// The usual name of chat's output limit; the other name is sent instead.
    MaxTokensName,
    /// The provider's state from earlier replies.
    State,
}

/// One call, with what the formats need.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) provider: &'a Provider,
    pub(crate) format: Format,
    /// The model's name on the wire.
    pub(crate) model: &'a str,
    pub(crate) request: &'a ModelRequest,
    pub(crate) parts: Vec<Part<'a>>,
    pub(crate) names: Aliases,
    pub(crate) ids: Aliases,
    pub(crate) reasoning: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        provider: &'a Provider,
        format: Format,
        model: &'a str,
        request: &'a ModelRequest,
    ) -> Self {
        let calls = || {
            request.messages.iter().flat_map(|message| match message {
                Message::Assistant { calls, .. } => calls.as_slice(),
                Message::User { .. } | Message::Tool { .. } => &[],
            })
        };
        let tools = request.tools.iter().map(|tool| tool.name.as_str());
        Self {
            provider,
            format,
            model,
            request,
            parts: conversation::parts(&request.messages),
            names: Aliases::of(tools.chain(calls().map(|call| call.name.as_str()))),
            ids: Aliases::of(calls().map(|call| call.id.as_str())),
            reasoning: crate::route::is_reasoning(model)
                || anthropic::generation(model).is_some_and(|version| version >= (5, 0)),
        }
    }

    /// The request body.
    pub(crate) fn body(&self, omit: &BTreeSet<Omit>) -> Map<String, Value> {
        match self.format {
            Format::OpenAiResponses => responses::body(self, omit),
            Format::OpenAiChat => chat::body(self, omit),
            Format::AnthropicMessages => anthropic::body(self, omit),
        }
    }

    /// The effort to request, if any.
    fn effort(&self, omit: &BTreeSet<Omit>) -> Option<&str> {
        if omit.contains(&Omit::Effort) {
            return None;
        }
        let default = self.provider.reasoning_effort.as_deref().filter(|_| self.reasoning);
        self.request.reasoning_effort.as_deref().or(default)
    }

    /// The temperature: 0 unless the request sets it. A reasoning model gets none.
    fn temperature(&self, omit: &BTreeSet<Omit>) -> Option<f64> {
        let dropped = self.reasoning || omit.contains(&Omit::Temperature);
        (!dropped).then(|| self.request.temperature.unwrap_or(0.0))
    }

    fn must_call(&self, omit: &BTreeSet<Omit>) -> bool {
        self.request.tool_choice == ToolChoice::Required
            && !self.request.tools.is_empty()
            && !omit.contains(&Omit::ToolChoice)
    }

    /// The tag that marks the provider's stored state as its own.
    fn state_tag(&self) -> pieces::Tag<'_> {
        pieces::Tag { format: self.format, provider: &self.provider.name, model: self.model }
    }

    /// The pieces of an earlier reply, if this provider made it.
    fn pieces(&self, state: Option<&Value>, omit: &BTreeSet<Omit>) -> Option<Pieces> {
        if omit.contains(&Omit::State) {
            return None;
        }
        Pieces::from_state(state?, &self.state_tag())
    }

    /// The state to store with the reply.
    pub(crate) fn state(&self, pieces: Pieces) -> Option<Value> {
        pieces.into_state(&self.state_tag())
    }
}

/// Turns pieces into deltas, with the real tool names.
#[derive(Debug)]
pub(crate) struct Deltas<'a> {
    names: &'a Aliases,
    /// The names of the calls that have begun.
    calls: Vec<String>,
}

impl<'a> Deltas<'a> {
    pub(crate) fn new(names: &'a Aliases) -> Self {
        Self { names, calls: Vec::new() }
    }

    pub(crate) fn delta(&mut self, heard: Heard) -> Option<ModelDelta> {
        match heard {
            Heard::Text(text) => Some(ModelDelta::Text(text)),
            Heard::Reasoning(text) => Some(ModelDelta::Reasoning(text)),
            Heard::Call { n, id: _, name } => {
                self.calls.resize(self.calls.len().max(n + 1), String::new());
                self.names.real(&name).clone_into(&mut self.calls[n]);
                None
            }
            Heard::Args { n, text } => {
                let name = self.calls.get(n).cloned().unwrap_or_default();
                Some(ModelDelta::ToolArgs { name, text })
            }
        }
    }
}

/// Arguments as text, as the OpenAI formats carry them.
fn args_text(args: &Value) -> String {
    match args {
        // Text that did not parse goes back as the model wrote it.
        Value::String(raw) => raw.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            args.to_string()
        }
    }
}

/// A tool's schema; providers require `type: object` at its top.
fn schema(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(map) => map.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    };
    schema.entry("type").or_insert_with(|| "object".into());
    schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    Value::Object(schema)
}
