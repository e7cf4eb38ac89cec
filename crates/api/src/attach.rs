//! The protocol of the WebSocket of an attached terminal.
//!
//! Binary frames are bytes of the terminal: the program's output from the server, and the typed
//! input to the server. Text frames contain one of the messages below as JSON.

use overmind_core::process;
use serde::{Deserialize, Serialize};

/// The name of the WebSocket protocol.
pub const ATTACH_PROTOCOL: &str = "overmind.attach.v1";
/// The prefix of a protocol name that ends with a token. Browsers send their token in it, because
/// they cannot set a header.
pub const ATTACH_TOKEN_PROTOCOL: &str = "overmind.token.";
/// Longest WebSocket message to the server, in bytes.
pub const MAX_ATTACH_MESSAGE: usize = 64 << 10;

/// The access of a viewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttachMode {
    /// The viewer may type and set the terminal's size.
    #[default]
    Write,
    /// The viewer may only look.
    Read,
}

impl AttachMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Write, Self::Read].into_iter().find(|mode| mode.as_str() == text)
    }
}

/// Size of a terminal in columns and rows of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TerminalSize {
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub columns: u16,
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub rows: u16,
}

impl TerminalSize {
    /// Largest columns or rows. No person's terminal is larger, and a program may fill the whole
    /// screen.
    pub const LARGEST: u16 = 1000;

    /// Returns whether a terminal may have this size.
    pub fn is_sound(self) -> bool {
        (1..=Self::LARGEST).contains(&self.columns) && (1..=Self::LARGEST).contains(&self.rows)
    }
}

impl From<TerminalSize> for process::TerminalSize {
    fn from(size: TerminalSize) -> Self {
        Self { columns: size.columns, rows: size.rows }
    }
}

impl From<process::TerminalSize> for TerminalSize {
    fn from(size: process::TerminalSize) -> Self {
        Self { columns: size.columns, rows: size.rows }
    }
}

/// A message to the server, such as `{"resize":{"columns":80,"rows":24}}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AttachWord {
    /// Sets the viewer's size. The terminal takes the size of the viewer with write access that
    /// resized or typed last.
    Resize(TerminalSize),
}

/// A message from the server. Newer servers may send others; clients ignore those that they do not
/// know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttachSaid {
    /// The first message.
    Began {
        /// The attempt to which this terminal belongs. The connection ends with it.
        life: u32,
        mode: AttachMode,
    },
    /// Announces a full screen: the viewer clears its screen and draws the next binary frame. Sent
    /// at the beginning, and again if the viewer was too slow and missed `skipped` bytes.
    Screen { size: TerminalSize, skipped: u64 },
    /// The input was not accepted, or only partly.
    Refused { message: String },
    /// The attempt has ended, and the server closes the connection.
    Ended {
        exit_code: Option<i32>,
        signal: Option<i32>,
        /// Why the result is unknown, if the attempt was lost.
        reason: Option<String>,
    },
    /// The server closes the connection while the terminal continues. The client may attach again.
    Away { reason: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attach_messages_are_small_json_objects() {
        let word = AttachWord::Resize(TerminalSize { columns: 80, rows: 24 });
        let json = r#"{"resize":{"columns":80,"rows":24}}"#;
        assert_eq!(serde_json::to_string(&word).unwrap(), json);
        assert_eq!(serde_json::from_str::<AttachWord>(json).unwrap(), word);
        assert!(serde_json::from_str::<AttachWord>(r#"{"shrink":{}}"#).is_err());
        let said = AttachSaid::Ended { exit_code: Some(3), signal: None, reason: None };
        let json = r#"{"ended":{"exit_code":3,"signal":null,"reason":null}}"#;
        assert_eq!(serde_json::to_string(&said).unwrap(), json);
        for mode in [AttachMode::Write, AttachMode::Read] {
            assert_eq!(AttachMode::parse(mode.as_str()), Some(mode));
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.as_str());
        }
        let largest = TerminalSize { columns: 1000, rows: 1 };
        assert!(largest.is_sound() && !TerminalSize { rows: 0, ..largest }.is_sound());
    }
}
