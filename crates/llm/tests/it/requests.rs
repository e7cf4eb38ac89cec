//! Requests: bodies, headers, roles, aliases, and the reasoning that a provider gets back.

use overmind_core::model::{Message, ModelRequest, ToolChoice};
use overmind_llm::{Format, Provider, Secret};
use overmind_testkit::upstream::{Answer, Say, Script, Upstream, Wire};
use serde_json::{Value, json};

use crate::support::{
    KEY, ask, ask_with_tools, assistant, config_of, gateway, gateway_of, model, reply, result,
    said, user,
};

/// The body of the only request.
async fn sent(request: &ModelRequest, provider: impl FnOnce(&str) -> Provider) -> Value {
    let upstream = Upstream::start(Say::text("ok")).await;
    reply(&gateway_of(provider(&upstream.base_url())), request).await;
    upstream.assert_clean();
    upstream.requests().remove(0).body
}

async fn sent_as(wire: Wire, messages: Vec<Message>) -> Value {
    sent(&ask_with_tools(model(wire), messages, &["read_file"]), |url| Provider::custom(url, None))
        .await
}

#[tokio::test]
async fn the_key_is_only_in_the_header_of_its_format() {
    for wire in Wire::ALL {
        let upstream = Upstream::start(Script::always(Say::text("ok")).key(KEY)).await;
        reply(&gateway(&upstream), &ask(model(wire), vec![user("hi")])).await;
        let request = upstream.requests().remove(0);
        let holding: Vec<_> = request
            .headers
            .iter()
            .filter(|(_, value)| value.contains(KEY))
            .map(|(name, _)| name.as_str())
            .collect();
        let want = if wire == Wire::Messages { "x-api-key" } else { "authorization" };
        assert_eq!(holding, [want], "{wire:?}");
        assert!(!request.body.to_string().contains(KEY) && !request.path.contains(KEY));
        upstream.assert_clean();
    }
}

#[tokio::test]
async fn configured_headers_are_sent() {
    let upstream = Upstream::start(Say::text("ok")).await;
    let mut provider = Provider::custom(&upstream.base_url(), None);
    provider.headers.push(("X-Team".to_owned(), Secret::new("blue").unwrap()));
    reply(&gateway_of(provider), &ask("m", vec![user("hi")])).await;
    assert_eq!(upstream.requests()[0].headers["x-team"], "blue");
}

#[tokio::test]
async fn a_plain_chat_request_has_exactly_this_body() {
    let request = ModelRequest {
        max_output_tokens: Some(99),
        ..ask_with_tools("m", vec![user("hi")], &["read_file"])
    };
    let body = sent(&request, |url| Provider::custom(url, None)).await;
    assert_eq!(
        body,
        json!({
            "model": "m",
            "messages": [{ "role": "system", "content": "be brief" }, { "role": "user", "content": "hi" }],
            "stream": true,
            "stream_options": { "include_usage": true },
            "tools": [{ "type": "function", "function": {
                "name": "read_file", "description": "does read_file",
                "parameters": { "type": "object", "properties": { "path": { "type": "string" } } },
            } }],
            "tool_choice": "auto",
            "max_tokens": 99,
            "temperature": 0.0,
        })
    );
}

#[tokio::test]
async fn a_plain_responses_request_has_exactly_this_body() {
    let request = ModelRequest {
        max_output_tokens: Some(99),
        ..ask_with_tools("openai-responses:m", vec![user("hi")], &["read_file"])
    };
    let body = sent(&request, |url| Provider::custom(url, None)).await;
    assert_eq!(
        body,
        json!({
            "model": "m",
            "instructions": "be brief",
            "input": [{ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hi" }] }],
            "stream": true,
            "store": false,
            "tools": [{
                "type": "function", "name": "read_file", "description": "does read_file",
                "parameters": { "type": "object", "properties": { "path": { "type": "string" } } }, "strict": false,
            }],
            "tool_choice": "auto",
            "max_output_tokens": 99,
            "temperature": 0.0,
        })
    );
}

#[tokio::test]
async fn a_plain_messages_request_has_exactly_this_body() {
    let request = ModelRequest {
        max_output_tokens: Some(99),
        ..ask_with_tools("anthropic-messages:m", vec![user("hi")], &["read_file"])
    };
    let body = sent(&request, |url| Provider::custom(url, None)).await;
    let cache = json!({ "type": "ephemeral" });
    assert_eq!(
        body,
        json!({
            "model": "m",
            "max_tokens": 99,
            "stream": true,
            "system": [{ "type": "text", "text": "be brief", "cache_control": cache }],
            "messages": [{ "role": "user", "content": [{ "type": "text", "text": "hi", "cache_control": cache }] }],
            "tools": [{
                "name": "read_file", "description": "does read_file",
                "input_schema": { "type": "object", "properties": { "path": { "type": "string" } } },
            }],
            "tool_choice": { "type": "auto" },
            "temperature": 0.0,
        })
    );
}

#[tokio::test]
async fn openai_gets_its_own_parameters() {
    let openai = |url: &str| Provider {
        base_url: format!("{url}/v1"),
        ..Provider::openai(Secret::new(KEY))
    };
    let base = ModelRequest {
        max_output_tokens: Some(9),
        temperature: Some(0.5),
        ..ask("gpt-4o", vec![user("hi")])
    };
    let body = sent(&base, openai).await;
    assert_eq!(
        (&body["temperature"], &body["reasoning"], &body["include"]),
        (&json!(0.5), &Value::Null, &Value::Null)
    );

    let chat = ModelRequest { model: "openai-chat:gpt-4o".into(), ..base.clone() };
    let body = sent(&chat, openai).await;
    assert_eq!((&body["max_completion_tokens"], &body["max_tokens"]), (&json!(9), &Value::Null));

    // A reasoning model: no temperature, but an effort, a summary, and reasoning to keep.
    let thinker = ModelRequest {
        model: "gpt-5".into(),
        reasoning_effort: Some("low".into()),
        ..base.clone()
    };
    let body = sent(&thinker, openai).await;
    assert_eq!(body["temperature"], Value::Null);
    assert_eq!(body["reasoning"], json!({ "effort": "low", "summary": "auto" }));
    assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));

    let chat = ModelRequest { model: "openai-chat:o3".into(), ..thinker };
    let body = sent(&chat, openai).await;
    assert_eq!((&body["reasoning_effort"], &body["temperature"]), (&json!("low"), &Value::Null));

    // The configured effort is for reasoning models without their own setting.
    let configured = |url: &str| Provider { reasoning_effort: Some("high".into()), ..openai(url) };
    let body = sent(&ModelRequest { model: "gpt-5".into(), ..base.clone() }, configured).await;
    assert_eq!(body["reasoning"]["effort"], "high");
    let body = sent(&base, configured).await;
    assert_eq!(body["reasoning"], Value::Null);
}

#[tokio::test]
async fn anthropic_thinking_is_requested_as_the_model_generation_expects() {
    let anthropic =
        |url: &str| Provider { base_url: url.to_owned(), ..Provider::anthropic(Secret::new(KEY)) };
    for (name, effort, thinking, config) in [
        ("claude-opus-4-5", None, Value::Null, Value::Null),
        (
            "claude-opus-4-5",
            Some("medium"),
            json!({ "type": "enabled", "budget_tokens": 8192 }),
            Value::Null,
        ),
        ("claude-opus-4-6", None, Value::Null, Value::Null),
        (
            "claude-opus-4-6",
            Some("high"),
            json!({ "type": "adaptive", "display": "summarized" }),
            json!({ "effort": "high" }),
        ),
        (
            "claude-sonnet-5-5",
            None,
            json!({ "type": "adaptive", "display": "summarized" }),
            Value::Null,
        ),
        (
            "claude-sonnet-5-5",
            Some("none"),
            json!({ "type": "adaptive", "display": "summarized" }),
            json!({ "effort": "low" }),
        ),
    ] {
        let request = ModelRequest {
            reasoning_effort: effort.map(str::to_owned),
            tool_choice: ToolChoice::Required,
            ..ask_with_tools(name, vec![user("hi")], &["t"])
        };
        let body = sent(&request, anthropic).await;
        assert_eq!(
            (&body["thinking"], &body["output_config"]),
            (&thinking, &config),
            "{name} {effort:?}"
        );
        // Neither can be combined with thinking.
        let want = if thinking.is_null() { "any" } else { "auto" };
        assert_eq!(body["tool_choice"]["type"], want, "{name}");
        assert_eq!(body["temperature"].is_null(), !thinking.is_null(), "{name}");
    }
}

#[tokio::test]
async fn deepseek_gets_its_thinking_switch() {
    let request = ask("deepseek-v4-pro", vec![user("hi")]);
    let body = sent(&request, |url| Provider {
        base_url: url.to_owned(),
        thinking: Some("disabled".into()),
        ..Provider::deepseek(Secret::new(KEY))
    })
    .await;
    assert_eq!(body["thinking"], json!({ "type": "disabled" }));
}

#[tokio::test]
async fn a_tool_call_can_be_required_if_there_are_tools() {
    for (wire, path, want) in [
        (Wire::Chat, "/tool_choice", json!("required")),
        (Wire::Responses, "/tool_choice", json!("required")),
        (Wire::Messages, "/tool_choice/type", json!("any")),
    ] {
        let request = ModelRequest {
            tool_choice: ToolChoice::Required,
            ..ask_with_tools(model(wire), vec![user("hi")], &["t"])
        };
        let body = sent(&request, |url| Provider::custom(url, None)).await;
        assert_eq!(body.pointer(path), Some(&want), "{wire:?}");
        let request = ModelRequest {
            tool_choice: ToolChoice::Required,
            ..ask(model(wire), vec![user("hi")])
        };
        let body = sent(&request, |url| Provider::custom(url, None)).await;
        assert_eq!(body.get("tool_choice"), None, "{wire:?}");
    }
}

#[tokio::test]
async fn every_disordered_conversation_is_ordered_for_every_provider() {
    // The upstream refuses everything that a provider would refuse; `assert_clean` is the test.
    let odd =
        "weird id/with:chars and far more than sixty-four characters in it, which nobody takes";
    let disorders: Vec<Vec<Message>> = vec![
        vec![],
        vec![user("")],
        vec![user("a"), user("b")],
        vec![assistant("I speak first", &[])],
        vec![user("a"), assistant("", &[])],
        vec![user("a"), assistant("b", &[]), assistant("c", &[])],
        vec![user("a"), assistant(" ", &[("1", "t", json!({}))]), result("1", "")],
        vec![
            user("a"),
            assistant("", &[("1", "t", json!({})), ("2", "t", json!({}))]),
            result("2", "r"),
        ],
        vec![user("a"), assistant("", &[("1", "t", json!({}))]), user("wait")],
        vec![user("a"), assistant("", &[("1", "t", json!({}))])],
        vec![result("9", "orphan"), user("a")],
        vec![
            user("a"),
            assistant("", &[("1", "t", json!({}))]),
            result("1", "r"),
            result("1", "again"),
            result("7", "orphan"),
        ],
        vec![
            user("a"),
            assistant("", &[(odd, "mcp.files.read", json!("not an object"))]),
            result(odd, "r"),
        ],
        vec![
            user("a"),
            assistant("b", &[("1", "gone.tool", json!({}))]),
            result("1", "r"),
            user("c"),
            assistant("d", &[]),
        ],
    ];
    for wire in Wire::ALL {
        for disorder in &disorders {
            sent_as(wire, disorder.clone()).await;
        }
    }
}

#[tokio::test]
async fn anthropic_gets_tool_results_and_the_users_text_in_one_message() {
    let body = sent_as(
        Wire::Messages,
        vec![
            user("a"),
            assistant("b", &[("1", "t", json!({ "x": 1 })), ("2", "t", json!("raw"))]),
            result("1", "one"),
            result("2", "two"),
            user("now"),
        ],
    )
    .await;
    assert_eq!(
        body["messages"],
        json!([
            { "role": "user", "content": [{ "type": "text", "text": "a" }] },
            { "role": "assistant", "content": [
                { "type": "text", "text": "b" },
                { "type": "tool_use", "id": "1", "name": "t", "input": { "x": 1 } },
                { "type": "tool_use", "id": "2", "name": "t", "input": { "unparsed": "raw" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "1", "content": "one" },
                { "type": "tool_result", "tool_use_id": "2", "content": "two" },
                { "type": "text", "text": "now", "cache_control": { "type": "ephemeral" } },
            ] },
        ])
    );
}

#[tokio::test]
async fn a_failed_tool_call_is_marked_if_the_format_allows_it() {
    let failed = Message::Tool {
        call_id: "1".into(),
        name: "t".into(),
        content: "no such file".into(),
        is_error: true,
    };
    let messages = vec![user("a"), assistant("", &[("1", "t", json!({}))]), failed];
    let body = sent_as(Wire::Messages, messages.clone()).await;
    assert_eq!(body["messages"][2]["content"][0]["is_error"], true);
    let body = sent_as(Wire::Chat, messages).await;
    assert_eq!(body["messages"][3]["content"], "no such file");
}

#[tokio::test]
async fn tool_names_are_aliased_on_the_wire_and_original_in_the_reply() {
    let names = ["mcp.files.read", "mcp_files_read", "größe"];
    for wire in Wire::ALL {
        let upstream = Upstream::start(Script::by(|request| {
            // The model calls every tool by the name that it was shown.
            let names = request.body["tools"].as_array().unwrap().iter().map(|tool| {
                let name = if tool.get("function").is_some() {
                    &tool["function"]["name"]
                } else {
                    &tool["name"]
                };
                name.as_str().unwrap().to_owned()
            });
            let say = names.fold(Say::nothing(), |say, name| {
                say.call(&format!("id_{name}"), &name, &json!({}))
            });
            Answer::say(say)
        }))
        .await;
        let (result, deltas) = crate::support::complete(
            &gateway(&upstream),
            &ask_with_tools(model(wire), vec![user("?")], &names),
        )
        .await;
        let reply = result.unwrap();
        let called: Vec<&str> = reply.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(called, names, "{wire:?}");
        let streamed: Vec<String> =
            crate::support::streamed(&deltas).2.into_iter().map(|(name, _)| name).collect();
        assert_eq!(streamed, names, "{wire:?}");
        upstream.assert_clean();
    }
}

/// The reply of a thinking model, and the request that follows it.
async fn next_body(first: Wire, second: Wire, second_name: &str) -> Value {
    let upstream = Upstream::start([
        Answer::say(Say::text("I look.").reasoning("deep thought").call(
            "c1",
            "t",
            &json!({ "a": 1 }),
        )),
        Answer::say(Say::text("done")),
    ])
    .await;
    let gateway = gateway(&upstream);
    let question = ask_with_tools(model(first), vec![user("?")], &["t"]);
    let thought = reply(&gateway, &question).await;
    // Through the log and back, as after a restart.
    let message = serde_json::from_str(&serde_json::to_string(&said(&thought)).unwrap()).unwrap();
    let name = model(second).replace("small-1", second_name);
    reply(&gateway, &ask_with_tools(&name, vec![user("?"), message, result("c1", "r")], &["t"]))
        .await;
    upstream.assert_clean();
    upstream.requests().remove(1).body
}

#[tokio::test]
async fn a_provider_gets_its_own_reasoning_back_unchanged() {
    let body = next_body(Wire::Messages, Wire::Messages, "small-1").await;
    assert_eq!(
        body["messages"][1]["content"],
        json!([
            { "type": "thinking", "thinking": "deep thought", "signature": "c2VhbGVk+/=" },
            { "type": "text", "text": "I look." },
            { "type": "tool_use", "id": "c1", "name": "t", "input": { "a": 1 } },
        ])
    );
    let body = next_body(Wire::Responses, Wire::Responses, "small-1").await;
    assert_eq!(
        body["input"].as_array().unwrap()[1..4],
        [
            json!({
                "id": "rs_1", "type": "reasoning", "encrypted_content": "c2VhbGVk+/=",
                "summary": [{ "type": "summary_text", "text": "deep thought" }],
            }),
            json!({
                "type": "message", "role": "assistant",
                "content": [{ "type": "output_text", "text": "I look." }],
            }),
            json!({
                "type": "function_call", "call_id": "c1", "name": "t", "arguments": "{\"a\":1}",
            }),
        ]
    );
    let body = next_body(Wire::Chat, Wire::Chat, "small-1").await;
    assert_eq!(body["messages"][2]["reasoning_content"], "deep thought");
    // It is plain text, which the provider's other models read too.
    let body = next_body(Wire::Chat, Wire::Chat, "small-2").await;
    assert_eq!(body["messages"][2]["reasoning_content"], "deep thought");
}

#[tokio::test]
async fn reasoning_is_not_passed_to_other_formats_or_models() {
    for first in Wire::ALL {
        for second in Wire::ALL.into_iter().filter(|wire| *wire != first) {
            let body = next_body(first, second, "small-1").await.to_string();
            assert!(
                !body.contains("deep thought") && !body.contains("c2VhbGVk"),
                "{first:?} to {second:?}: {body}"
            );
            assert!(body.contains("I look."), "{first:?} to {second:?}");
        }
    }
    for wire in [Wire::Responses, Wire::Messages] {
        let body = next_body(wire, wire, "small-2").await.to_string();
        assert!(!body.contains("c2VhbGVk"), "{wire:?}: thinking is bound to its model");
    }
}

#[tokio::test]
async fn a_conversation_without_signed_thinking_is_continued_without_thinking() {
    // Budgeted thinking requires that the last message with calls begins with it.
    let request = ModelRequest {
        reasoning_effort: Some("high".into()),
        ..ask_with_tools(
            "claude-opus-4-5",
            vec![user("?"), assistant("", &[("1", "t", json!({}))]), result("1", "r")],
            &["t"],
        )
    };
    let body = sent(&request, |url| Provider {
        base_url: url.to_owned(),
        ..Provider::anthropic(Secret::new(KEY))
    })
    .await;
    assert_eq!(body.get("thinking"), None);
}

#[tokio::test]
async fn a_complete_endpoint_url_is_used_unchanged() {
    let upstream = Upstream::start(Say::text("ok")).await;
    let mut provider = Provider::openai(Secret::new(KEY));
    provider
        .endpoints
        .insert(Format::OpenAiResponses, format!("{}/odd/path/responses", upstream.base_url()));
    reply(&gateway_of(provider), &ask("gpt-4o", vec![user("hi")])).await;
    assert_eq!(upstream.requests()[0].path, "/odd/path/responses");
}

#[tokio::test]
async fn the_price_depends_on_the_provider_and_the_users_own_list() {
    let upstream = Upstream::start(Script::always(Say::text("ok").usage(1_000_000, 100_000))).await;
    let openai = Provider {
        base_url: format!("{}/v1", upstream.base_url()),
        ..Provider::openai(Secret::new(KEY))
    };
    let mut config = config_of(openai);
    let cost = |config| {
        let gateway = overmind_llm::Gateway::new(config);
        async move { reply(&gateway, &ask("gpt-4.1", vec![user("hi")])).await }
    };
    let answer = cost(config.clone()).await;
    assert_eq!(answer.cost_microusd, Some(2_000_000 + 800_000));
    assert_eq!(answer.provider, "openai/responses");
    let own = serde_json::from_value(
        json!({ "input": 1, "cached_input": 1, "cache_write": 1, "output": 10 }),
    )
    .unwrap();
    config.prices.insert("gpt-4.1".into(), own);
    assert_eq!(cost(config).await.cost_microusd, Some(1 + 1));
}
