//! Language models behind the port [`overmind_core::model::Models`]: OpenAI Responses, OpenAI
//! Chat Completions and everything that speaks it (Ollama, vLLM, llama-server, DeepSeek),
//! Anthropic Messages, and `scripted:` cassettes that need no network at all.
//!
//! Start at [`Gateway`]. A call goes `route` (which provider, which wire format) → `wire` (the
//! neutral conversation becomes a request body) → `call` (send, stream, retry) → `wire` again
//! (events become deltas and one reply) → [`prices`].
//!
//! This crate refuses to:
//! * read the environment or a clock: [`Config`] passes everything in (only the age of a cassette's
//!   file is checked);
//! * send a key anywhere but to the base URL of its own provider: it follows no redirects, uses no
//!   proxy, and shows no key in errors, logs or `Debug`;
//! * run tools or judge arguments: a call of an unknown tool is passed on unchanged.
//!
//! Limits, on purpose: text in and out only (no images, no audio, no provider-side tools); no
//! conversation state at the provider (`store: false`); `<think>` tags that some small local
//! models write into their text stay text; a model's list of capabilities is not fetched — a
//! parameter that a model refuses is left out after its first refusal.

mod alias;
mod call;
mod cassette;
mod config;
mod conversation;
mod fail;
mod gateway;
pub mod prices;
mod relay;
mod retry;
mod route;
pub mod sse;
mod tapes;
pub mod translate;
mod wire;

pub use cassette::{
    Cassette, CassetteError, Expect, ScriptedCall, ScriptedFailure, ScriptedUsage, Turn,
};
pub use config::{Config, ConfigError, Format, Provider, RelayLimits, Rest, Secret};
pub use gateway::{Gateway, Unkeyed};
pub use retry::Retry;
