//! Shared parts of all tests of the gateway.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use overmind_core::model::{
    Message, ModelCall, ModelDelta, ModelFailure, ModelReply, ModelRequest, ModelTool, Models,
    ToolChoice,
};
use overmind_llm::{Config, Gateway, Provider, Retry, Secret};
use overmind_testkit::upstream::{Upstream, Wire};
use serde_json::{Value, json};

/// A key that is found wherever it leaks.
pub(crate) const KEY: &str = "sk-test-0123456789abcdef";

/// The name of a model that is sent to the upstream in this format.
pub(crate) fn model(wire: Wire) -> &'static str {
    match wire {
        Wire::Chat => "openai-chat:small-1",
        Wire::Responses => "openai-responses:small-1",
        Wire::Messages => "anthropic-messages:small-1",
    }
}

/// A gateway that knows the upstream only, and does not wait long between attempts.
pub(crate) fn gateway(upstream: &Upstream) -> Gateway {
    gateway_of(Provider::custom(&upstream.base_url(), Secret::new(KEY)))
}

pub(crate) fn gateway_of(provider: Provider) -> Gateway {
    Gateway::new(config_of(provider))
}

pub(crate) fn config_of(provider: Provider) -> Config {
    let millis = Duration::from_millis;
    Config {
        providers: vec![provider],
        retry: Retry { max_attempts: 4, base: millis(2), cap: millis(10) },
        ..Config::default()
    }
}

pub(crate) fn user(text: &str) -> Message {
    Message::User { text: text.into() }
}

pub(crate) fn assistant(text: &str, calls: &[(&str, &str, Value)]) -> Message {
    let calls = calls.iter().map(|(id, name, args)| ModelCall {
        id: (*id).into(),
        name: (*name).into(),
        args: args.clone(),
    });
    Message::Assistant { text: text.into(), calls: calls.collect(), provider_state: None }
}

pub(crate) fn result(id: &str, content: &str) -> Message {
    Message::Tool { call_id: id.into(), name: "t".into(), content: content.into(), is_error: false }
}

/// The reply as the next request's message, as the engine keeps it.
pub(crate) fn said(reply: &ModelReply) -> Message {
    Message::Assistant {
        text: reply.text.clone(),
        calls: reply.calls.clone(),
        provider_state: reply.provider_state.clone(),
    }
}

pub(crate) fn tool(name: &str) -> ModelTool {
    ModelTool {
        name: name.into(),
        description: format!("does {name}"),
        schema: json!({ "type": "object", "properties": { "path": { "type": "string" } } }),
    }
}

pub(crate) fn ask(model: &str, messages: Vec<Message>) -> ModelRequest {
    ModelRequest {
        model: model.into(),
        system: "be brief".into(),
        messages: Arc::new(messages),
        tools: Arc::default(),
        tool_choice: ToolChoice::Auto,
        max_output_tokens: None,
        temperature: None,
        reasoning_effort: None,
        idle_timeout: Duration::from_secs(20),
        total_timeout: Duration::from_secs(40),
        traceparent: None,
    }
}

pub(crate) fn ask_with_tools(model: &str, messages: Vec<Message>, tools: &[&str]) -> ModelRequest {
    let tools = tools.iter().map(|name| tool(name)).collect();
    ModelRequest { tools: Arc::new(tools), ..ask(model, messages) }
}

/// The result of a call and everything that was streamed on the way.
pub(crate) async fn complete(
    gateway: &Gateway,
    request: &ModelRequest,
) -> (Result<ModelReply, ModelFailure>, Vec<ModelDelta>) {
    let deltas = Mutex::new(Vec::new());
    let sink = |delta| deltas.lock().unwrap().push(delta);
    let result = gateway.complete(request, &sink).await;
    (result, deltas.into_inner().unwrap())
}

pub(crate) async fn reply(gateway: &Gateway, request: &ModelRequest) -> ModelReply {
    complete(gateway, request).await.0.unwrap()
}

pub(crate) async fn failure(gateway: &Gateway, request: &ModelRequest) -> ModelFailure {
    complete(gateway, request).await.0.unwrap_err()
}

/// Text, reasoning and arguments (by tool) of the deltas since the last restart.
pub(crate) fn streamed(deltas: &[ModelDelta]) -> (String, String, Vec<(String, String)>) {
    let mut text = String::new();
    let mut reasoning = String::new();
    let mut args: Vec<(String, String)> = Vec::new();
    for delta in deltas {
        match delta {
            ModelDelta::Text(piece) => text.push_str(piece),
            ModelDelta::Reasoning(piece) => reasoning.push_str(piece),
            ModelDelta::ToolArgs { name, text } => match args.iter_mut().find(|(n, _)| n == name) {
                Some((_, all)) => all.push_str(text),
                None => args.push((name.clone(), text.clone())),
            },
            ModelDelta::Restarted { .. } => {
                text.clear();
                reasoning.clear();
                args.clear();
            }
        }
    }
    (text, reasoning, args)
}
