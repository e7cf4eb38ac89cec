//! Arguments that several tools share: their schemas, defaults and limits.

use serde_json::{Value, json};

/// The longest time of one call.
pub(super) const MAX_SECONDS: u64 = 120;

/// The default time limit of a command and of a network exchange, in seconds.
pub(super) fn command_timeout() -> u64 {
    20
}

pub(super) fn exchange_timeout() -> u64 {
    30
}

/// The property `timeout_s` of a tool whose work is killed after that time.
pub(super) fn timeout(default: u64, what: &str) -> Value {
    seconds(default, &format!("Seconds after which the {what} is killed."))
}

/// The property `timeout_s` of an exchange.
pub(super) fn for_exchange() -> Value {
    seconds(exchange_timeout(), "Seconds for the whole exchange.")
}

fn seconds(default: u64, description: &str) -> Value {
    json!({
        "type": "integer", "minimum": 1, "maximum": MAX_SECONDS, "default": default,
        "description": description,
    })
}

pub(super) fn allow_write(what: &str) -> Value {
    json!({
        "type": "boolean",
        "description": format!("Let the {what} write to write_subdir. Default: true in a worktree of \
                                the run's own, else false."),
    })
}

pub(super) fn write_subdir() -> Value {
    json!({
        "type": ["string", "null"], "default": null,
        "description": "Directory to write to, relative to the workspace; . is all of it. Created \
                        if missing. Default: all of it in a worktree of the run's own, else a \
                        directory of this session's own.",
    })
}

pub(super) fn url() -> Value {
    json!({
        "type": "string", "minLength": 1,
        "description": "http:// or https://, without credentials.",
    })
}

/// The property that limits the bytes of an answer.
pub(super) fn max_bytes(least: u64, default: u64, description: &str) -> Value {
    json!({
        "type": "integer", "minimum": least, "maximum": crate::MAX_TEXT_BYTES,
        "default": default, "description": description,
    })
}
