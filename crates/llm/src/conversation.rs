//! Puts a conversation into the one order that every provider accepts.
//!
//! The session's messages may come from a fork of another provider's conversation, or from a
//! session that ended between a call and its result. Providers refuse such histories. So every call
//! is followed by exactly its results, in the order of the calls, with a text in place of a missing
//! result. A result without a call becomes user text, adjacent messages of one role become one, and
//! the user's side always has something to answer.

use std::borrow::Cow;
use std::collections::HashMap;

use overmind_core::model::{Message, ModelCall};
use serde_json::Value;

/// The result of a call, or the text that replaces a lost one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallResult<'a> {
    pub(crate) call_id: &'a str,
    pub(crate) content: Cow<'a, str>,
    pub(crate) is_error: bool,
}

/// One message in provider-neutral order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part<'a> {
    User(Cow<'a, str>),
    /// At least one of text and calls is present.
    Assistant {
        text: Cow<'a, str>,
        calls: &'a [ModelCall],
        state: Option<&'a Value>,
    },
    /// One result for each call of the assistant message before it, in the same order.
    Results(Vec<CallResult<'a>>),
}

/// Replaces the result of a call if that result was lost.
const LOST: &str = "There is no result of this call: it was interrupted before it was recorded.";

/// Puts `messages` in order.
pub(crate) fn parts(messages: &[Message]) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    let mut at = 0;
    while let Some(message) = messages.get(at) {
        at += 1;
        match message {
            Message::User { text } => push_user(&mut parts, Cow::Borrowed(text)),
            Message::Assistant { text, calls, provider_state } => {
                let replies = messages[at..]
                    .iter()
                    .take_while(|message| matches!(message, Message::Tool { .. }))
                    .count();
                push_assistant(&mut parts, text, calls, provider_state.as_ref());
                push_results(&mut parts, calls, &messages[at..at + replies]);
                at += replies;
            }
            Message::Tool { .. } => push_results(&mut parts, &[], std::slice::from_ref(message)),
        }
    }
    if !matches!(parts.first(), Some(Part::User(_))) {
        let first = parts.is_empty();
        let text = if first { "(There is no input.)" } else { "(The conversation so far:)" };
        parts.insert(0, Part::User(text.into()));
    }
    parts
}

fn push_user<'a>(parts: &mut Vec<Part<'a>>, text: Cow<'a, str>) {
    if let Some(Part::User(before)) = parts.last_mut() {
        before.to_mut().push_str("\n\n");
        before.to_mut().push_str(&text);
    } else {
        parts.push(Part::User(text));
    }
}

fn push_assistant<'a>(
    parts: &mut Vec<Part<'a>>,
    text: &'a str,
    calls: &'a [ModelCall],
    state: Option<&'a Value>,
) {
    if text.is_empty() && calls.is_empty() {
        return;
    }
    if let Some(Part::Assistant { text: before, calls: none, state: old }) = parts.last_mut()
        && none.is_empty()
    {
        if !text.is_empty() {
            before.to_mut().push_str("\n\n");
            before.to_mut().push_str(text);
        }
        *none = calls;
        // The older reasoning belongs to a message that was merged into this one.
        *old = state;
        return;
    }
    parts.push(Part::Assistant { text: text.into(), calls, state });
}

fn push_results<'a>(parts: &mut Vec<Part<'a>>, calls: &'a [ModelCall], tools: &'a [Message]) {
    let mut found: HashMap<&str, CallResult<'a>> = HashMap::new();
    let mut orphans = Vec::new();
    for tool in tools {
        let Message::Tool { call_id, name, content, is_error } = tool else { continue };
        let wanted = calls.iter().any(|call| call.id == *call_id);
        if wanted && !found.contains_key(call_id.as_str()) {
            let result =
                CallResult { call_id, content: Cow::Borrowed(content), is_error: *is_error };
            found.insert(call_id, result);
        } else {
            orphans.push(format!("Result of the tool {name}:\n{content}"));
        }
    }
    if !calls.is_empty() {
        let results = calls.iter().map(|call| {
            found.remove(call.id.as_str()).unwrap_or(CallResult {
                call_id: &call.id,
                content: LOST.into(),
                is_error: true,
            })
        });
        parts.push(Part::Results(results.collect()));
    }
    for orphan in orphans {
        push_user(parts, orphan.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn user(text: &str) -> Message {
        Message::User { text: text.into() }
    }

    fn assistant(text: &str, calls: &[&str]) -> Message {
        let calls = calls
            .iter()
            .map(|id| ModelCall { id: (*id).into(), name: "t".into(), args: json!({}) })
            .collect();
        Message::Assistant { text: text.into(), calls, provider_state: None }
    }

    fn tool(id: &str, content: &str) -> Message {
        Message::Tool {
            call_id: id.into(),
            name: "t".into(),
            content: content.into(),
            is_error: false,
        }
    }

    /// A short form: `u:text`, `a:text[ids]`, `r:id=content`.
    fn shown(messages: &[Message]) -> Vec<String> {
        parts(messages)
            .iter()
            .map(|part| match part {
                Part::User(text) => format!("u:{text}"),
                Part::Assistant { text, calls, .. } => {
                    let ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
                    format!("a:{text}{ids:?}")
                }
                Part::Results(results) => results
                    .iter()
                    .map(|r| {
                        format!(
                            "r:{}={}{}",
                            r.call_id,
                            r.content,
                            if r.is_error { "!" } else { "" }
                        )
                    })
                    .collect::<Vec<_>>()
                    .join(" "),
            })
            .collect()
    }

    #[test]
    fn an_ordered_conversation_is_unchanged() {
        let messages = [
            user("do"),
            assistant("on it", &["1", "2"]),
            tool("1", "a"),
            tool("2", "b"),
            assistant("done", &[]),
        ];
        assert_eq!(shown(&messages), ["u:do", r#"a:on it["1", "2"]"#, "r:1=a r:2=b", "a:done[]"]);
    }

    #[test]
    fn results_are_in_call_order_and_lost_ones_are_marked() {
        let messages = [
            user("do"),
            assistant("", &["1", "2", "3"]),
            tool("3", "c"),
            tool("1", "a"),
            user("go on"),
        ];
        let lost = format!("r:1=a r:2={LOST}! r:3=c");
        assert_eq!(shown(&messages), ["u:do", r#"a:["1", "2", "3"]"#, lost.as_str(), "u:go on"]);
    }

    #[test]
    fn a_result_without_a_call_becomes_text() {
        let messages =
            [tool("9", "x"), user("hm"), assistant("", &["1"]), tool("1", "a"), tool("1", "again")];
        assert_eq!(
            shown(&messages),
            [
                "u:Result of the tool t:\nx\n\nhm",
                r#"a:["1"]"#,
                "r:1=a",
                "u:Result of the tool t:\nagain"
            ]
        );
    }

    #[test]
    fn neighbouring_messages_of_one_role_are_joined_and_empty_ones_dropped() {
        let messages = [
            user("a"),
            user("b"),
            assistant("c", &[]),
            assistant("", &[]),
            assistant("d", &["1"]),
            tool("1", "e"),
        ];
        assert_eq!(shown(&messages), ["u:a\n\nb", "a:c\n\nd[\"1\"]", "r:1=e"]);
    }

    #[test]
    fn the_first_message_is_the_users() {
        assert_eq!(shown(&[]), ["u:(There is no input.)"]);
        assert_eq!(shown(&[assistant("hi", &[])]), ["u:(The conversation so far:)", "a:hi[]"]);
    }
}
