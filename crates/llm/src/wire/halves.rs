//! Characters that a stream has cut in two.
//!
//! A server that cuts its text by UTF-16 puts the first half of a character at the end of one event
//! and the second at the beginning of the next. An event that ends so waits for the next one.

use overmind_core::json::{self, ESCAPE};
use serde_json::Value;

/// What is known between two events of one stream.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    /// An event that waits, and where in it the half stands.
    held: Option<(Vec<u8>, usize)>,
}

impl Halves {
    /// Appends the events that can be told now.
    ///
    /// # Errors
    ///
    /// This one is no JSON.
    pub(crate) fn read(&mut self, text: &[u8], out: &mut Vec<Value>) -> serde_json::Result<()> {
        if let Ok(value) = serde_json::from_slice::<Value>(text) {
            // A sign of life says nothing, and stands between two pieces of a text.
            if value["type"] != "ping" {
                out.extend(self.rest());
            }
            out.push(value);
            return Ok(());
        }
        let mut text = String::from_utf8_lossy(text).into_owned().into_bytes();
        if let Some((mut before, at)) = self.held.take() {
            let halves = json::halves(&text);
            let second =
                halves.iter().find(|half| !half.is_first && text[..half.at].ends_with(b"\""));
            if let Some(second) = second {
                let first: Vec<u8> = before.drain(at..at + ESCAPE).collect();
                text.splice(second.at..second.at, first);
            }
            out.extend(json::read::<Value>(&before).ok());
        }
        let value: Value = json::read(&text)?;
        let halves = json::halves(&text);
        let ends = |at: usize| text[at + ESCAPE..].starts_with(b"\"");
        match halves.iter().rfind(|half| half.is_first && ends(half.at)) {
            // One with a whole response is the last, or begins no text.
            Some(half) if value.get("response").is_none() => self.held = Some((text, half.at)),
            Some(_) | None => out.push(value),
        }
        Ok(())
    }

    /// The event that waits, when no other comes.
    pub(crate) fn rest(&mut self) -> Option<Value> {
        json::read(&self.held.take()?.0).ok()
    }
}
