//! A session's conversation with its model: the messages, a running hash of them, and their limits.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::model::{Message, ModelCall};

/// Bytes of text above which old tool results are left out.
const BOUND: usize = 400_000;
/// Bytes of text that remain after that. The gap keeps it from happening in every turn.
const AFTER: usize = BOUND * 7 / 10;
/// Results shorter than this, in bytes, are never left out: the note in their place would be as
/// long.
const SHORT: usize = 400;

#[derive(Clone, Debug, Default)]
pub(super) struct Conversation {
    messages: Arc<Vec<Message>>,
    bytes: usize,
    /// Number of messages in the last request.
    sent: usize,
    hash: [u8; 32],
}

impl Conversation {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn user(&mut self, text: String) {
        self.push(Message::User { text });
    }

    pub(super) fn assistant(&mut self, text: String, calls: Vec<ModelCall>, state: Option<Value>) {
        self.push(Message::Assistant { text, calls, provider_state: state });
    }

    pub(super) fn tool(&mut self, call: &str, name: &str, content: String, is_error: bool) {
        let (call_id, name) = (call.to_owned(), name.to_owned());
        self.push(Message::Tool { call_id, name, content, is_error });
    }

    /// Adds `result` for each call of the last decision that has no result. Providers require all
    /// results before any other message.
    pub(super) fn close_calls(&mut self, result: &str) {
        let (mut open, mut answered) = (Vec::new(), Vec::new());
        for message in self.messages.iter().rev() {
            match message {
                Message::Tool { call_id, .. } => answered.push(call_id.clone()),
                Message::Assistant { calls, .. } => {
                    open = calls.iter().map(|call| (call.id.clone(), call.name.clone())).collect();
                    break;
                }
                Message::User { .. } => break,
            }
        }
        for (id, name) in open.into_iter().filter(|(id, _)| !answered.contains(id)) {
            self.tool(&id, &name, result.to_owned(), false);
        }
    }

    pub(super) fn messages(&self) -> Arc<Vec<Message>> {
        Arc::clone(&self.messages)
    }

    /// Removes the oldest tool results until the conversation is within its limit, and returns a
    /// summary of the next request. The summary's hash covers all that is sent.
    pub(super) fn prepare(&mut self, model: &str, system: &str, tools_hash: &str) -> Value {
        let left_out = self.shorten();
        let mut hash = blake3::Hasher::new();
        hash.update(&self.hash);
        for part in [model, system, tools_hash] {
            hash.update(&(part.len() as u64).to_be_bytes()).update(part.as_bytes());
        }
        let new = self.messages.len() - self.sent;
        self.sent = self.messages.len();
        let mut summary = json!({
            "model": model,
            "messages_total": self.messages.len(),
            "messages_new": new,
            "bytes": self.bytes,
            "request_hash": hash.finalize().to_hex()[..32],
        });
        if left_out > 0 {
            summary["results_left_out"] = json!(left_out);
        }
        summary
    }

    fn push(&mut self, message: Message) {
        let text = serde_json::to_string(&message).expect("a message is plain data");
        self.bytes += text.len();
        self.mix(text.as_bytes());
        Arc::make_mut(&mut self.messages).push(message);
    }

    fn mix(&mut self, bytes: &[u8]) {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.hash).update(bytes);
        self.hash = *hash.finalize().as_bytes();
    }

    fn shorten(&mut self) -> usize {
        if self.bytes <= BOUND {
            return 0;
        }
        let mut left_out = Vec::new();
        // The newest four messages stay whole: the model is working on them.
        let old = self.messages.len().saturating_sub(4);
        for (n, message) in Arc::make_mut(&mut self.messages)[..old].iter_mut().enumerate() {
            if self.bytes <= AFTER {
                break;
            }
            if let Message::Tool { content, .. } = message
                && content.len() > SHORT
            {
                let note = format!("[{} bytes of an old result left out]", content.len());
                self.bytes -= content.len() - note.len();
                *content = note;
                left_out.push(n);
            }
        }
        for n in &left_out {
            self.mix(&(*n as u64).to_be_bytes());
        }
        left_out.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_conversations_drop_old_results_first() {
        let mut convo = Conversation::default();
        convo.user("task".into());
        for n in 0..10 {
            convo.tool(&n.to_string(), "read_file", "x".repeat(60_000), false);
        }
        let before = convo.hash;
        let summary = convo.prepare("m", "s", "t");
        assert!(summary["results_left_out"].as_u64() >= Some(4), "{summary}");
        assert!(convo.bytes <= AFTER);
        assert_ne!(convo.hash, before, "what was left out is part of the hash");
        let Message::Tool { content, .. } = &convo.messages[10] else { panic!("a tool result") };
        assert_eq!(content.len(), 60_000);
        assert_eq!(convo.prepare("m", "s", "t")["messages_new"], 0);
    }

    #[test]
    fn the_request_hash_depends_on_every_part() {
        let hash = |text: &str, model: &str, system: &str, tools: &str| {
            let mut convo = Conversation::default();
            convo.user(text.into());
            convo.prepare(model, system, tools)["request_hash"].clone()
        };
        let base = hash("a", "m", "s", "t");
        assert_eq!(base, hash("a", "m", "s", "t"));
        for other in [
            hash("b", "m", "s", "t"),
            hash("a", "n", "s", "t"),
            hash("a", "m", "u", "t"),
            hash("a", "m", "s", "v"),
        ] {
            assert_ne!(base, other);
        }
    }
}
