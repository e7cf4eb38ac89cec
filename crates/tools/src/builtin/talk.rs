//! `ask_user` and `final_answer`: an agent asks the human, or ends its turn.
//!
//! The engine acts on these calls: it pauses or ends the session. The tools themselves only return
//! the message, so that a call through the API is harmless.

use overmind_core::Fut;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use serde_json::{Value, json};

use crate::answer::{Answer, fields};
use crate::gateway::Tool;

#[derive(Debug)]
pub(crate) struct AskUser;

#[derive(Debug)]
pub(crate) struct FinalAnswer;

impl Tool for AskUser {
    fn spec(&self) -> ToolSpec {
        spec(
            "ask_user",
            "Ask the human one question and wait for the answer. Use it only when the task cannot \
             go on without something that you can neither find out nor decide yourself.",
            "The question, complete and understandable without your earlier steps.",
        )
    }

    fn call<'a>(&'a self, _: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(std::future::ready(echo(args)))
    }
}

impl Tool for FinalAnswer {
    fn spec(&self) -> ToolSpec {
        spec(
            "final_answer",
            "End the task with your answer. Call it once, when the task is done or cannot be \
             done; say what you did, how you checked it, and what is left.",
            "The answer to the human.",
        )
    }

    fn call<'a>(&'a self, _: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(std::future::ready(echo(args)))
    }
}

fn spec(name: &str, description: &str, message: &str) -> ToolSpec {
    ToolSpec {
        name: name.into(),
        description: description.into(),
        schema: json!({
            "type": "object",
            "properties": {
                "message": {"type": "string", "minLength": 1, "description": message},
            },
            "required": ["message"],
            "additionalProperties": false,
        }),
        class: EffectClass::Pure,
        internal: true,
    }
}

fn echo(args: &Value) -> Answer {
    Ok(fields(json!({"message": args["message"]})))
}
