//! Estimates how many tokens a call can use at most, before it starts.
//!
//! Every token of text has at least one byte, so the number of bytes sent is an upper bound of the
//! input tokens for any tokeniser. For plain prose it is several times too high. The settlement
//! releases the excess a moment later, and no limit is exceeded because of a wrong estimate.
//! Pictures and files that are given by URL have no bytes here: only for them can a provider report
//! more than was reserved.

use std::fmt::{self, Write as _};

use crate::model::{Message, ModelRequest};

/// Upper bound of the tokens that providers add to each message.
const PER_MESSAGE: u64 = 16;
/// Tokens that providers add once: instructions for tools, the format of the conversation.
const ONCE: u64 = 1_000;

/// Output limit for the engine's own requests that set none, used if a budget limit applies.
pub const OUTPUT: u32 = 32_000;

/// Returns the most input tokens of a request with this many bytes and messages.
pub fn input_tokens(bytes: u64, messages: u64) -> u64 {
    bytes.saturating_add(messages.saturating_mul(PER_MESSAGE)).saturating_add(ONCE)
}

/// Returns the most input tokens of one of the engine's own requests.
pub fn of_request(request: &ModelRequest) -> u64 {
    let mut bytes = len(&request.system);
    for message in request.messages.iter() {
        bytes = bytes.saturating_add(match message {
            Message::User { text } => len(text),
            Message::Assistant { text, calls, provider_state } => {
                let calls: u64 =
                    calls.iter().map(|call| len(&call.name) + json(&call.args) + 64).sum();
                len(text) + calls + provider_state.as_ref().map_or(0, json)
            }
            Message::Tool { call_id, name, content, is_error: _ } => {
                len(call_id) + len(name) + len(content)
            }
        });
    }
    for tool in request.tools.iter() {
        let tool = len(&tool.name) + len(&tool.description) + json(&tool.schema) + 64;
        bytes = bytes.saturating_add(tool);
    }
    input_tokens(bytes, request.messages.len() as u64)
}

fn len(text: &str) -> u64 {
    text.len() as u64
}

/// Returns the bytes of a value as JSON. They are only counted, because a long conversation is
/// measured with every call.
fn json(value: &serde_json::Value) -> u64 {
    struct Count(u64);
    impl fmt::Write for Count {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 = self.0.saturating_add(len(text));
            Ok(())
        }
    }
    let mut count = Count(0);
    // Neither a value nor a counter can fail.
    let _ = write!(count, "{value}");
    count.0
}

/// Returns the tokens of streamed text for a call without reported usage: at most one for each
/// byte, and at least the usual number.
pub fn streamed_tokens(bytes: u64) -> u64 {
    bytes
}
