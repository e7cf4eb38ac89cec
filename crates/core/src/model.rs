//! The port to language models, in provider-neutral shapes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Fut;
use crate::relay::Upstreams;
use crate::trace::Traceparent;

/// One message of a conversation. The system prompt is not a message: it is in [`ModelRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    User {
        text: String,
    },
    Assistant {
        text: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ModelCall>,
        /// Data that the provider needs back unchanged: signed thinking blocks of Anthropic,
        /// reasoning items of OpenAI Responses, `reasoning_content` of DeepSeek. Opaque outside the
        /// `llm` crate, which tags it with the provider's format.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_state: Option<Value>,
    },
    /// The result of one tool call. Every call of an assistant message is followed by one.
    Tool {
        call_id: String,
        name: String,
        content: String,
        is_error: bool,
    },
}

/// A tool call that a model requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCall {
    /// The provider's id of the call, unique in the conversation.
    pub id: String,
    /// The tool's real name, after aliases were resolved.
    pub name: String,
    /// The arguments as the model wrote them: an object if they can be parsed. Otherwise the raw
    /// text as a JSON string, which the gateway refuses with a message that the model can read.
    pub args: Value,
}

/// A tool as a model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelTool {
    pub name: String,
    pub description: String,
    /// JSON Schema 2020-12 of the arguments, always of type object.
    pub schema: Value,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    #[default]
    Auto,
    /// The model must call a tool.
    Required,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelRequest {
    /// The model as the agent names it, for example `gpt-5`, `claude-sonnet-4-5`,
    /// `openai-chat:qwen3`.
    pub model: String,
    pub system: String,
    /// Shared with the session's own state, so that a conversation is never copied for a request.
    pub messages: Arc<Vec<Message>>,
    pub tools: Arc<Vec<ModelTool>>,
    pub tool_choice: ToolChoice,
    pub max_output_tokens: Option<u32>,
    pub temperature: Option<f64>,
    /// `low`, `medium`, `high`, or another value that the provider knows.
    pub reasoning_effort: Option<String>,
    /// Longest time without any byte from the provider.
    pub idle_timeout: Duration,
    /// Longest time of the whole call, including retries.
    pub total_timeout: Duration,
    /// The trace span of the call, for the provider.
    pub traceparent: Option<Traceparent>,
}

/// Tokens of one call. `input` counts all prompt tokens, including cached ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// The part of `input_tokens` that was read from the provider's cache.
    #[serde(default)]
    pub cached_input_tokens: u64,
    /// The part of `input_tokens` that was written to the provider's cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// The part of `output_tokens` that was used for reasoning.
    #[serde(default)]
    pub reasoning_tokens: u64,
}

impl Usage {
    /// Returns the difference to earlier figures; 0 where these are lower.
    #[must_use]
    pub fn beyond(self, before: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_sub(before.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(before.output_tokens),
            cached_input_tokens: self
                .cached_input_tokens
                .saturating_sub(before.cached_input_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_sub(before.cache_write_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_sub(before.reasoning_tokens),
        }
    }

    pub fn add(&mut self, other: Self) {
        // Saturating: the figures are a provider's word.
        let sum = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        sum(&mut self.input_tokens, other.input_tokens);
        sum(&mut self.output_tokens, other.output_tokens);
        sum(&mut self.cached_input_tokens, other.cached_input_tokens);
        sum(&mut self.cache_write_tokens, other.cache_write_tokens);
        sum(&mut self.reasoning_tokens, other.reasoning_tokens);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    End,
    ToolCalls,
    MaxTokens,
    /// The provider refused to answer.
    Refusal,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelReply {
    pub text: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ModelCall>,
    pub usage: Usage,
    pub stop: StopReason,
    /// The model that answered, as the provider names it.
    pub model: String,
    /// The provider and wire format that answered, for example `anthropic`.
    pub provider: String,
    /// Cost in millionths of a US dollar from the price table; `None` if the price is not known.
    #[serde(default)]
    pub cost_microusd: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_state: Option<Value>,
}

/// Why there is no reply. Useful retries were already made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ModelFailure {
    /// `model_unconfigured`, `model_unknown`, `auth`, `rate_limited`, `overloaded`, `timeout`,
    /// `network_error` (nothing was asked), `connection_lost` (after the request was sent),
    /// `bad_request`, `bad_response`, `context_length`, `cassette`.
    pub code: String,
    /// A text that says what was attempted, on which object, why it failed, and what the reader can
    /// do. Never contains a key.
    pub message: String,
    /// The HTTP status, if there was one.
    #[serde(default)]
    pub status: Option<u16>,
    /// The provider's error text, cut to 4 KiB.
    #[serde(default)]
    pub body: Option<String>,
    /// Whether a later attempt may succeed.
    pub transient: bool,
}

/// A piece of a reply while it streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelDelta {
    Text(String),
    Reasoning(String),
    /// A piece of a tool call's arguments, as raw JSON text.
    ToolArgs {
        name: String,
        text: String,
    },
    /// The attempt of these deltas failed and a new one starts: discard them.
    Restarted {
        attempt: u32,
        why: String,
        /// The error code, which determines whether the attempt may be billed.
        code: String,
    },
}

/// Called for each delta in order, on the task that waits for the reply. Must not block.
pub type DeltaSink<'a> = &'a (dyn Fn(ModelDelta) + Send + Sync);

/// All configured models as one port.
pub trait Models: Send + Sync + fmt::Debug {
    /// Sends one request and waits for the whole reply. Passes on deltas meanwhile.
    ///
    /// # Errors
    ///
    /// [`ModelFailure`], after the retries that the provider's answer allows.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection. The provider may still bill what it generated.
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: DeltaSink<'a>,
    ) -> Fut<'a, Result<ModelReply, ModelFailure>>;

    /// Checks that `model` could be called now: its provider is known and has its key. Does no I/O.
    ///
    /// # Errors
    ///
    /// The failure that `complete` would return.
    fn check(&self, model: &str) -> Result<(), ModelFailure>;

    /// Returns the same providers for calls that are passed on for others, if they support it.
    fn upstreams(&self) -> Option<&dyn Upstreams> {
        None
    }
}
