//! What goes over the WebSocket of an attached terminal, beside the bytes.
//!
//! Binary frames are bytes of the terminal: from the server what the program writes, to the server
//! what is typed. Text frames are one of these words as JSON.

use overmind_core::process;
use serde::{Deserialize, Serialize};

/// The WebSocket protocol that both sides speak.
pub const ATTACH_PROTOCOL: &str = "overmind.attach.v1";
/// With a token behind it: the protocol by which a browser, which can set no header, tells it.
pub const ATTACH_TOKEN_PROTOCOL: &str = "overmind.token.";
/// Longest message to the server, in bytes.
pub const MAX_ATTACH_MESSAGE: usize = 64 << 10;

/// What a viewer may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttachMode {
    /// Type, and set the terminal's size.
    #[default]
    Write,
    /// Look.
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

/// Columns and rows of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TerminalSize {
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub columns: u16,
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub rows: u16,
}

impl TerminalSize {
    /// The largest in either direction: no person's is, and a program may draw all of it.
    pub const LARGEST: u16 = 1000;

    /// Whether a terminal may have this size.
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

/// To the server: `{"resize":{"columns":80,"rows":24}}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AttachWord {
    /// The viewer's size. Of those that may type, the one counts whose viewer said or typed
    /// something last.
    Resize(TerminalSize),
}

/// From the server. Newer servers may say more: what is not known is passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttachSaid {
    /// The first word.
    Began {
        /// The attempt that this is the terminal of; the connection ends with it.
        life: u32,
        mode: AttachMode,
    },
    /// The next binary frame clears the viewer's screen and draws on it what the program's terminal
    /// shows: at the beginning, and again when the viewer was too slow for `skipped` bytes.
    Screen { size: TerminalSize, skipped: u64 },
    /// What was typed was not taken, or not all of it.
    Refused { message: String },
    /// The attempt has ended; the connection is closed.
    Ended {
        exit_code: Option<i32>,
        signal: Option<i32>,
        /// Why nothing more is known, if the attempt was lost.
        reason: Option<String>,
    },
    /// The connection is closed by the server, and the terminal goes on: attach again.
    Away { reason: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_small_objects() {
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
