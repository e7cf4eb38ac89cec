//! A real model behind a real server: SmolLM2 on llama-server, through all three formats.

use std::time::Duration;

use overmind_core::model::{Message, ModelRequest, StopReason};
use overmind_llm::Provider;
use overmind_testkit::real::counterpart;
use overmind_testkit::upstream::Wire;
use serde_json::json;

use crate::support::{
    ask_with_tools, assistant, complete, failure, gateway_of, model, reply, result, streamed, user,
};

/// A machine that also compiles may be slow to think.
fn ask(model: &str, messages: Vec<Message>) -> ModelRequest {
    patient(crate::support::ask(model, messages))
}

fn patient(request: ModelRequest) -> ModelRequest {
    let minute = Duration::from_secs(60);
    ModelRequest { idle_timeout: minute, total_timeout: 2 * minute, ..request }
}

#[tokio::test]
async fn needs_llama_all_three_formats_stream_a_real_answer_with_usage() {
    let Some(url) = counterpart("LLAMA") else { return };
    let gateway = gateway_of(Provider::custom(&url, None));
    for wire in Wire::ALL {
        let request = ModelRequest {
            max_output_tokens: Some(8),
            ..ask(model(wire), vec![user("Write one sentence about the sea.")])
        };
        let (result, deltas) = complete(&gateway, &request).await;
        let reply = result.unwrap_or_else(|failure| panic!("{wire:?}: {failure:?}"));
        assert!(reply.text.trim().len() > 3, "{wire:?}: {reply:?}");
        assert_eq!(streamed(&deltas).0, reply.text, "{wire:?}");
        assert!(deltas.len() > 3, "{wire:?} came in {} pieces", deltas.len());
        assert!((1..=8).contains(&reply.usage.output_tokens), "{wire:?}: {:?}", reply.usage);
        assert!(reply.usage.input_tokens > 5, "{wire:?}: {:?}", reply.usage);
        assert!(reply.usage.cached_input_tokens <= reply.usage.input_tokens, "{wire:?}");
        assert!(reply.model.contains("SmolLM2"), "{wire:?}: {}", reply.model);
    }
}

#[tokio::test]
async fn needs_llama_a_conversation_with_tools_is_accepted_in_all_three_formats() {
    let Some(url) = counterpart("LLAMA") else { return };
    let gateway = gateway_of(Provider::custom(&url, None));
    for wire in Wire::ALL {
        let history = vec![
            user("What is in a.txt?"),
            assistant("I look.", &[("c1", "read_file", json!({ "path": "a.txt" }))]),
            result("c1", "hello"),
            user("Say it in one word."),
        ];
        let request = ModelRequest {
            max_output_tokens: Some(4),
            ..patient(ask_with_tools(model(wire), history, &["read_file", "mcp.files.list"]))
        };
        let reply = reply(&gateway, &request).await;
        assert!(reply.usage.input_tokens > 20, "{wire:?}: {reply:?}");
    }
}

#[tokio::test]
async fn needs_llama_a_reply_cut_by_its_limit_is_reported() {
    let Some(url) = counterpart("LLAMA") else { return };
    let gateway = gateway_of(Provider::custom(&url, None));
    for wire in Wire::ALL {
        let request = ModelRequest {
            max_output_tokens: Some(4),
            ..ask(model(wire), vec![user("Count from one to one hundred in words.")])
        };
        let reply = reply(&gateway, &request).await;
        // This server's Responses API calls every reply completed.
        let want = if wire == Wire::Responses { StopReason::End } else { StopReason::MaxTokens };
        assert_eq!((reply.stop, reply.usage.output_tokens), (want, 4), "{wire:?}");
    }
}

#[tokio::test]
async fn needs_llama_a_too_long_conversation_is_reported() {
    let Some(url) = counterpart("LLAMA") else { return };
    let gateway = gateway_of(Provider::custom(&url, None));
    for wire in Wire::ALL {
        let failure =
            failure(&gateway, &ask(model(wire), vec![user(&"word ".repeat(40_000))])).await;
        assert_eq!(failure.code, "context_length", "{wire:?}: {failure:?}");
    }
}
