//! State that a provider needs to get back: signed thinking, encrypted reasoning, reasoning text.
//!
//! The session's message holds a reply's text and calls. Only data that the provider alone
//! understands is stored beside it, with the order of all blocks. A tag names the origin, and the
//! state is sent back only there: thinking is bound to the model that made it, encrypted reasoning
//! to the account.

use overmind_core::model::ModelCall;
use serde_json::{Value, json};

use crate::config::Format;

/// The origin of stored state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag<'a> {
    pub(crate) format: Format,
    pub(crate) provider: &'a str,
    pub(crate) model: &'a str,
}

/// One block of a reply, in the order of the reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    /// Data that only the provider understands.
    Raw(Value),
    /// The next bytes of the reply's text, as many as given.
    Text(usize),
    /// The next of the reply's calls.
    Call,
}

/// All blocks of one reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pieces(pub(crate) Vec<Piece>);

/// A block to send again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Block<'a> {
    Raw(&'a Value),
    Text(&'a str),
    Call(&'a ModelCall),
}

impl Pieces {
    pub(crate) fn push_text(&mut self, bytes: usize) {
        if let Some(Piece::Text(len)) = self.0.last_mut() {
            *len += bytes;
        } else if bytes > 0 {
            self.0.push(Piece::Text(bytes));
        }
    }

    /// `None` if text and calls alone say everything.
    pub(crate) fn into_state(self, tag: &Tag<'_>) -> Option<Value> {
        if !self.0.iter().any(|piece| matches!(piece, Piece::Raw(_))) {
            return None;
        }
        let pieces: Vec<Value> = self
            .0
            .into_iter()
            .map(|piece| match piece {
                Piece::Raw(raw) => json!({ "raw": raw }),
                Piece::Text(bytes) => json!({ "text": bytes }),
                Piece::Call => json!("call"),
            })
            .collect();
        let format = tag.format.as_str();
        Some(json!({
            "format": format, "provider": tag.provider, "model": tag.model, "pieces": pieces,
        }))
    }

    /// `None` for the state of another provider or model, and for invalid state.
    pub(crate) fn from_state(state: &Value, tag: &Tag<'_>) -> Option<Self> {
        let is = |key: &str, want: &str| state.get(key).and_then(Value::as_str) == Some(want);
        // Reasoning text of the chat format is plain text, which any model of the provider can
        // read.
        let any_model = tag.format == Format::OpenAiChat;
        if !is("format", tag.format.as_str())
            || !is("provider", tag.provider)
            || !(any_model || is("model", tag.model))
        {
            return None;
        }
        let pieces = state.get("pieces")?.as_array()?.iter().map(|piece| {
            if let Some(raw) = piece.get("raw") {
                return Some(Piece::Raw(raw.clone()));
            }
            if piece.as_str() == Some("call") {
                return Some(Piece::Call);
            }
            let bytes = piece.get("text")?.as_u64()?;
            Some(Piece::Text(usize::try_from(bytes).ok()?))
        });
        Some(Self(pieces.collect::<Option<_>>()?))
    }

    /// Puts the reply together again. If text or calls have changed, the stored order is useless
    /// and the usual one is used: provider data, text, calls.
    pub(crate) fn blocks<'a>(&'a self, text: &'a str, calls: &'a [ModelCall]) -> Vec<Block<'a>> {
        self.exact(text, calls).unwrap_or_else(|| {
            let raws = self.0.iter().filter_map(|piece| match piece {
                Piece::Raw(raw) => Some(Block::Raw(raw)),
                Piece::Text(_) | Piece::Call => None,
            });
            raws.chain(plain(text, calls)).collect()
        })
    }

    fn exact<'a>(&'a self, text: &'a str, calls: &'a [ModelCall]) -> Option<Vec<Block<'a>>> {
        let mut text = text;
        let mut calls = calls.iter();
        let mut blocks = Vec::with_capacity(self.0.len());
        for piece in &self.0 {
            blocks.push(match piece {
                Piece::Raw(raw) => Block::Raw(raw),
                Piece::Call => Block::Call(calls.next()?),
                Piece::Text(bytes) => {
                    let (now, later) = text.split_at_checked(*bytes)?;
                    text = later;
                    Block::Text(now)
                }
            });
        }
        (text.is_empty() && calls.next().is_none()).then_some(blocks)
    }
}

/// The blocks of a message without state.
pub(crate) fn plain<'a>(text: &'a str, calls: &'a [ModelCall]) -> impl Iterator<Item = Block<'a>> {
    let text = Some(text).filter(|text| !text.is_empty()).map(Block::Text);
    text.into_iter().chain(calls.iter().map(Block::Call))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: Tag<'_> =
        Tag { format: Format::AnthropicMessages, provider: "anthropic", model: "claude-x" };

    fn call(id: &str) -> ModelCall {
        ModelCall { id: id.into(), name: "t".into(), args: json!({}) }
    }

    fn sample() -> Pieces {
        Pieces(vec![
            Piece::Raw(json!({"a": 1})),
            Piece::Text(3),
            Piece::Call,
            Piece::Raw(json!(2)),
            Piece::Call,
        ])
    }

    #[test]
    fn a_reply_is_assembled_in_the_order_of_its_parts() {
        let state = sample().into_state(&TAG).unwrap();
        let pieces = Pieces::from_state(&state, &TAG).unwrap();
        let calls = [call("1"), call("2")];
        assert_eq!(
            pieces.blocks("abc", &calls),
            [
                Block::Raw(&json!({"a": 1})),
                Block::Text("abc"),
                Block::Call(&calls[0]),
                Block::Raw(&json!(2)),
                Block::Call(&calls[1])
            ]
        );
    }

    #[test]
    fn a_changed_message_gets_the_standard_order() {
        let calls = [call("1")];
        for text in ["abc", "ab", "abcd", "äü"] {
            assert_eq!(
                sample().blocks(text, &calls),
                [
                    Block::Raw(&json!({"a": 1})),
                    Block::Raw(&json!(2)),
                    Block::Text(text),
                    Block::Call(&calls[0])
                ]
            );
        }
    }

    #[test]
    fn state_of_another_provider_format_or_model_is_dropped() {
        let state = sample().into_state(&TAG).unwrap();
        assert!(Pieces::from_state(&state, &Tag { provider: "custom", ..TAG }).is_none());
        assert!(Pieces::from_state(&state, &Tag { format: Format::OpenAiChat, ..TAG }).is_none());
        assert!(Pieces::from_state(&state, &Tag { model: "claude-y", ..TAG }).is_none());
        for nonsense in [json!(null), json!([]), json!({"format": "messages"})] {
            assert!(Pieces::from_state(&nonsense, &TAG).is_none());
        }
        let chat =
            Tag { format: Format::OpenAiChat, provider: "deepseek", model: "deepseek-flash" };
        let state = sample().into_state(&chat).unwrap();
        assert!(Pieces::from_state(&state, &Tag { model: "deepseek-v4-pro", ..chat }).is_some());
    }

    #[test]
    fn a_reply_without_provider_state_keeps_none() {
        assert_eq!(Pieces(vec![Piece::Text(3), Piece::Call]).into_state(&TAG), None);
    }
}
