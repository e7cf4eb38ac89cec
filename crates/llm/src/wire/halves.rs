//! Joins characters that a stream has cut in two.
//!
//! A server that cuts text by UTF-16 units puts the first half of a character at the end of one
//! event and the second half at the start of the next. Such an event is held until the next one
//! comes.

use overmind_core::json::{self, ESCAPE};
use serde_json::Value;

/// The state between two events of one stream.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    /// The held event, and the position of the half character in it.
    held: Option<(Vec<u8>, usize)>,
}

impl Halves {
    /// Appends the events that are complete.
    ///
    /// # Errors
    ///
    /// Fails if `text` is not JSON.
    pub(crate) fn read(&mut self, text: &[u8], out: &mut Vec<Value>) -> serde_json::Result<()> {
        if let Ok(value) = serde_json::from_slice::<Value>(text) {
            // A ping carries no text and may come between two pieces of a text.
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
            // An event with a whole response is the last one, or begins no text.
            Some(half) if value.get("response").is_none() => self.held = Some((text, half.at)),
            Some(_) | None => out.push(value),
        }
        Ok(())
    }

    /// Returns the held event if no other event comes.
    pub(crate) fn rest(&mut self) -> Option<Value> {
        json::read(&self.held.take()?.0).ok()
    }
}
