//! How many tokens a call may take, known before it begins.
//!
//! A token of text is at least one byte, so the bytes of what is sent bound the tokens of what is
//! read, whatever the tokeniser. That is several times too many for plain prose; what is too much
//! is given back at the settlement a moment later, and a limit is never passed by a wrong guess.
//! Pictures and files that are named by a URL have no bytes here: they are the one case in which
//! a provider can say more than was reserved.

use std::fmt::{self, Write as _};

use crate::model::{Message, ModelRequest};

/// Tokens that providers put around each message, and more than that.
const PER_MESSAGE: u64 = 16;
/// Tokens that providers add once: instructions for tools, the shape of the conversation.
const ONCE: u64 = 1_000;

/// The output of a request of the engine's own that names no bound, where a limit applies: it is sent
/// with this bound then.
pub const OUTPUT: u32 = 32_000;

/// The most input tokens of a request of so many bytes in so many messages.
pub fn input_tokens(bytes: u64, messages: u64) -> u64 {
    bytes.saturating_add(messages.saturating_mul(PER_MESSAGE)).saturating_add(ONCE)
}

/// The most input tokens of a request of the engine's own.
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

/// Bytes of a value as JSON: counted, for a long conversation is measured with every call.
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

/// Tokens of text that was streamed, for a call of which nobody says the usage: at most one for
/// each byte, at least what is usual.
pub fn streamed_tokens(bytes: u64) -> u64 {
    bytes
}
