//! The port to language models, in provider-neutral shapes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Fut;
use crate::relay::Upstreams;
use crate::trace::Traceparent;

/// One message of a conversation. The system prompt is not one: it stands in [`ModelRequest`].
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
        /// What the provider wants to see again, word for word: signed thinking blocks of
        /// Anthropic, reasoning items of OpenAI Responses, `reasoning_content` of DeepSeek.
        /// Opaque outside the `llm` crate; tagged there with the provider's format.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_state: Option<Value>,
    },
    /// The result of one tool call; every call of an assistant message is followed by one.
    Tool {
        call_id: String,
        name: String,
        content: String,
        is_error: bool,
    },
}

/// A tool call that a model asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCall {
    /// The provider's id of the call; unique in the conversation.
    pub id: String,
    /// The tool's real name, with aliases already undone.
    pub name: String,
    /// Arguments as the model wrote them. An object when they parse; otherwise the raw text as
    /// a JSON string, which the gateway refuses with a message the model can read.
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
    /// The model must call some tool.
    Required,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelRequest {
    /// As the agent names it, for example `gpt-5`, `claude-sonnet-4-5`, `openai-chat:qwen3`.
    pub model: String,
    pub system: String,
    /// Shared with the session's own state: a conversation is never copied to be sent.
    pub messages: Arc<Vec<Message>>,
    pub tools: Arc<Vec<ModelTool>>,
    pub tool_choice: ToolChoice,
    pub max_output_tokens: Option<u32>,
    pub temperature: Option<f64>,
    /// `low`, `medium`, `high`, or what the provider knows.
    pub reasoning_effort: Option<String>,
    /// Longest time without a single byte from the provider.
    pub idle_timeout: Duration,
    /// Longest time for the whole call, retries included.
    pub total_timeout: Duration,
    /// The span of the call, for the provider.
    pub traceparent: Option<Traceparent>,
}

/// Tokens of one call. `input` counts all prompt tokens, cached ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Part of `input_tokens` that the provider read from its cache.
    #[serde(default)]
    pub cached_input_tokens: u64,
    /// Part of `input_tokens` that the provider wrote to its cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// Part of `output_tokens` spent on reasoning.
    #[serde(default)]
    pub reasoning_tokens: u64,
}

impl Usage {
    /// What these figures have more than those; nothing where they have less.
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
    /// The model that answered, in the provider's words.
    pub model: String,
    /// Which provider and wire format answered, for example `anthropic`.
    pub provider: String,
    /// Millionths of a US dollar by the price catalogue; `None` when the price is not known.
    #[serde(default)]
    pub cost_microusd: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_state: Option<Value>,
}

/// Why there is no reply. Retries that could help have been made already.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ModelFailure {
    /// `model_unconfigured`, `model_unknown`, `auth`, `rate_limited`, `overloaded`, `timeout`,
    /// `network_error` (nothing was asked), `connection_lost` (after the request was sent),
    /// `bad_request`, `bad_response`, `context_length`, `cassette`.
    pub code: String,
    /// What was attempted, on what, why it failed, what the reader can do. Never holds a key.
    pub message: String,
    /// HTTP status, when there was one.
    #[serde(default)]
    pub status: Option<u16>,
    /// The provider's own words, cut to 4 KiB.
    #[serde(default)]
    pub body: Option<String>,
    /// Another try later may succeed.
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
    /// The attempt that these deltas belonged to failed and a new one begins: forget them.
    Restarted {
        attempt: u32,
        why: String,
        /// The code of that failure: whether the attempt may be billed follows from it.
        code: String,
    },
}

/// Called for each delta, in order, on the task that waits for the reply. Must not block.
pub type DeltaSink<'a> = &'a (dyn Fn(ModelDelta) + Send + Sync);

/// All configured models behind one door.
pub trait Models: Send + Sync + fmt::Debug {
    /// Sends one request and waits for the whole reply, handing out deltas on the way.
    ///
    /// # Errors
    ///
    /// [`ModelFailure`], after the retries that the provider's answer allows.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection; the provider may still bill what it made.
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: DeltaSink<'a>,
    ) -> Fut<'a, Result<ModelReply, ModelFailure>>;

    /// Whether `model` could be called now: a provider is chosen and has its key. Without I/O.
    ///
    /// # Errors
    ///
    /// The failure that `complete` would give.
    fn check(&self, model: &str) -> Result<(), ModelFailure>;

    /// The same providers for calls that others make, if they can be had so.
    fn upstreams(&self) -> Option<&dyn Upstreams> {
        None
    }
}
