//! The providers' APIs under `/llm`: forwarded and refused requests, and their costs.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::time::Duration;

use overmind_testkit::upstream::{Answer, Received, Say, Script, Upstream, Wire};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::home::{Home, until};

/// The key of the upstream: only the server may see it.
pub(crate) const KEY: &str = "model-key-0815-abcdefgh";

/// A server with one upstream for all models, and a client.
pub(crate) struct Gateway {
    pub(crate) home: Home,
    pub(crate) upstream: Upstream,
    pub(crate) url: String,
    admin: String,
    pub(crate) client: Client,
    // The upstream and the client live on it.
    pub(crate) runtime: Runtime,
}

impl Gateway {
    pub(crate) fn new(script: impl Into<Script>) -> Self {
        Self::with(script, &[], "")
    }

    pub(crate) fn with(script: impl Into<Script>, env: &[(&str, &str)], config: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let script: Script = script.into();
        let upstream = runtime.block_on(Upstream::start(script.key(KEY).for_strangers()));
        let mut home = Home::new();
        let base = upstream.base_url();
        let file = home.path().join("overmind.toml");
        std::fs::write(&file, config).unwrap();
        let mut vars = vec![
            ("OVERMIND_MODEL_BASE_URL", base.as_str()),
            ("OVERMIND_MODEL_API_KEY", KEY),
            ("OVERMIND_CONFIG", file.to_str().unwrap()),
        ];
        vars.extend(env);
        let said = home.start(&["--listen", "127.0.0.1:0"], &vars);
        let url = said["url"].as_str().unwrap_or_else(|| panic!("{said}")).to_owned();
        let admin = std::fs::read_to_string(home.data().join("admin.token")).unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().no_proxy().build().unwrap();
        Self { home, upstream, url, admin: admin.trim().to_owned(), client, runtime }
    }

    pub(crate) fn admin(&self) -> &str {
        &self.admin
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        let url = format!("{}/llm/{path}", self.url);
        self.client.post(url).bearer_auth(&self.admin).json(body)
    }

    /// To the server's own API.
    pub(crate) fn api(&self, path: &str) -> RequestBuilder {
        self.client.post(format!("{}{path}", self.url)).bearer_auth(&self.admin)
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.url)).bearer_auth(&self.admin)
    }

    pub(crate) fn send(&self, request: RequestBuilder) -> Got {
        self.runtime.block_on(async { Got::of(request.send().await.unwrap()).await })
    }

    fn ask(&self, path: &str, body: &Value) -> Got {
        self.send(self.post(path, body))
    }

    pub(crate) fn last(&self) -> Received {
        self.upstream.requests().pop().expect("the upstream was asked")
    }

    /// A command that sleeps, and its token.
    pub(crate) fn session(&self, name: &str) -> (String, String) {
        let file = self.home.work().join(format!("{name}.token"));
        let script = format!("printf %s \"$OVERMIND_TOKEN\" > {}; exec sleep 1000", file.display());
        self.home.run(&["run", "--name", name, &script]).ok();
        let token = until("the token", || {
            std::fs::read_to_string(&file).ok().filter(|token| !token.is_empty())
        });
        let rows = self.home.run(&["ps", "--all", "-o", "json"]).ok().json();
        let row = rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        (row["id"].as_str().unwrap().to_owned(), token)
    }

    /// The record of a session's last call in its log.
    pub(crate) fn settled(&self, name: &str) -> Value {
        until("the call is in the session's log", || {
            let all = self.home.run(&["events", name, "--limit", "1000", "-o", "json"]).ok().json();
            let mut all = all.as_array().unwrap().iter();
            all.find(|event| event["type"] == "budget.settled")
                .map(|event| event["payload_json"].clone())
        })
    }
}

pub(crate) struct Got {
    pub(crate) status: u16,
    headers: reqwest::header::HeaderMap,
    pub(crate) body: String,
}

impl Got {
    pub(crate) async fn of(response: Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, body: response.text().await.unwrap() }
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|err| panic!("{err}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }
}

pub(crate) fn chat(text: &str) -> Value {
    json!({"model": "small-1", "messages": [{"role": "user", "content": text}]})
}

pub(crate) fn messages(text: &str) -> Value {
    json!({"model": "small-1", "max_tokens": 64, "messages": [{"role": "user", "content": text}]})
}

#[test]
fn each_api_forwards_calls_whole_and_streamed_with_the_servers_key() {
    let gateway = Gateway::new(Script::always(Say::text("hello").usage(10, 2)));
    for (path, mut body) in [
        ("openai/v1/chat/completions", chat("hi")),
        ("openai/v1/responses/", json!({"model": "small-1", "input": "hi"})),
        ("anthropic/v1/messages?beta=true", messages("hi")),
    ] {
        let got = gateway.ask(path, &body);
        assert_eq!(got.status, 200, "{path}: {}", got.body);
        assert!(got.body.contains("hello"), "{path}: {}", got.body);
        assert_eq!(gateway.last().body, body, "{path}: the body is as it was sent");
        body["stream"] = true.into();
        let got = gateway.ask(path, &body);
        assert!(got.header("content-type").starts_with("text/event-stream"), "{path}");
        assert!(got.body.contains("data:") && got.body.contains("hell"), "{path}: {}", got.body);
        let sent = gateway.last();
        assert_eq!(sent.body["stream"], true);
        let headers = format!("{:?}", sent.headers);
        assert!(!headers.contains("ova_"), "{path}: our token went on: {headers}");
    }
}

#[test]
fn usage_is_requested_of_a_chat_stream_and_hidden_from_callers_that_did_not_ask() {
    let gateway = Gateway::new(Script::always(Say::text("hello there").usage(1000, 20)));
    let mut body = chat("hi");
    body["stream"] = true.into();
    let got = gateway.ask("openai/v1/chat/completions", &body);
    assert_eq!(gateway.last().body["stream_options"], json!({"include_usage": true}));
    assert!(!got.body.contains("\"prompt_tokens\""), "{}", got.body);
    assert!(got.body.trim_end().ends_with("data: [DONE]"), "{}", got.body);
    body["stream_options"] = json!({"include_usage": true});
    let got = gateway.ask("openai/v1/chat/completions", &body);
    assert!(got.body.contains("\"prompt_tokens\":1000"), "{}", got.body);
}

#[test]
fn provider_errors_are_forwarded_without_the_key() {
    let quoted = format!("{{\"error\":{{\"message\":\"bad key {KEY}\"}}}}");
    let gateway = Gateway::new(Script::new([
        Answer::raw(429, "application/json", "{\"error\":  \"slow\"}")
            .header("retry-after", "7")
            .header("request-id", "req_up_1")
            .header("x-request-id", "req_up_2")
            .header("anthropic-ratelimit-requests-remaining", "0")
            .header("set-cookie", "a=b"),
        Answer::raw(401, "application/json", quoted),
        Answer::redirect(307, "http://127.0.0.1:9/elsewhere"),
    ]));
    let got = gateway.ask("anthropic/v1/messages", &messages("hi"));
    assert_eq!((got.status, got.body.as_str()), (429, "{\"error\":  \"slow\"}"));
    for (name, value) in [
        ("retry-after", "7"),
        ("request-id", "req_up_1"),
        ("x-request-id", "req_up_2"),
        ("anthropic-ratelimit-requests-remaining", "0"),
        ("set-cookie", ""),
    ] {
        assert_eq!(got.header(name), value, "{name}");
    }
    let got = gateway.ask("openai/v1/chat/completions", &chat("hi"));
    assert_eq!(got.status, 401);
    assert!(got.body.contains("bad key [redacted]") && !got.body.contains(KEY), "{}", got.body);
    let got = gateway.ask("openai/v1/chat/completions", &chat("hi"));
    assert_eq!(got.status, 502, "a redirection is not followed, and not passed on");
    assert_eq!(got.header("location"), "");
}

#[test]
fn refusals_of_the_gateway_have_the_providers_format() {
    let gateway = Gateway::new(Script::always(Say::text("never")));
    let bare = |path: &str, token: &str| {
        let url = format!("{}/llm/{path}", gateway.url);
        gateway.send(gateway.client.post(url).header("x-api-key", token).json(&chat("hi")))
    };
    for token in ["ovk_wrong", "ovs_wrong", "sk-real-looking"] {
        let got = bare("openai/v1/chat/completions", token);
        assert_eq!((got.status, &got.json()["error"]["code"]), (401, &json!("invalid_api_key")));
        let got = bare("anthropic/v1/messages", token);
        assert_eq!(got.status, 401);
        assert_eq!(got.json()["error"]["type"], "authentication_error");
    }
    let got = gateway.ask("openai/v1/nothing", &chat("hi"));
    assert_eq!((got.status, &got.json()["error"]["type"]), (404, &json!("invalid_request_error")));
    let twice = "{\"model\":\"a\",\"model\":\"b\"}";
    let url = format!("{}/llm/openai/v1/chat/completions", gateway.url);
    let request = gateway.client.post(url).bearer_auth(&gateway.admin).body(twice);
    let got = gateway.send(request);
    assert_eq!(got.status, 400);
    assert!(got.body.contains("duplicate field"), "{}", got.body);
    let hello = gateway.client.head(format!("{}/llm/anthropic/api/hello", gateway.url));
    assert_eq!(gateway.send(hello).status, 200);
    assert_eq!(gateway.upstream.requests().len(), 0, "nothing was asked of the provider");
}

#[test]
fn a_websocket_attempt_gets_the_hint_to_use_http() {
    let gateway = Gateway::new(Script::always(Say::text("hello")));
    let socket = gateway.get("/llm/openai/v1/responses").header("upgrade", "websocket");
    let got = gateway.send(socket);
    assert_eq!((got.status, &got.json()["error"]["code"]), (426, &json!("upgrade_required")));
    // A token in the header of Google's clients is one too.
    let url = format!("{}/llm/openai/v1/models", gateway.url);
    let google = gateway.client.get(url).header("x-goog-api-key", gateway.admin());
    assert_eq!(gateway.send(google).status, 200);
    assert!(gateway.upstream.requests().is_empty(), "the provider was not asked");
}

#[test]
fn no_request_of_a_caller_changes_the_target_of_the_key() {
    let gateway = Gateway::new(Script::always(Say::text("hello")));
    let mut body = chat("hi");
    for key in ["api_base", "base_url", "api_key", "custom_llm_provider"] {
        body[key] = "http://127.0.0.1:9/evil".into();
    }
    let request = gateway
        .post("openai/v1/chat/completions?api_base=http://127.0.0.1:9/evil", &body)
        .header("x-base-url", "http://127.0.0.1:9/evil")
        .header("x-forwarded-host", "evil.example")
        .header("cookie", "a=b")
        .header("openai-organization", "org-other");
    let got = gateway.send(request);
    assert_eq!(got.status, 200, "{}", got.body);
    let sent = gateway.last();
    assert_eq!(sent.body, body, "they are bytes like any others");
    for name in ["x-forwarded-host", "cookie", "openai-organization", "x-api-key"] {
        assert!(!sent.headers.contains_key(name), "{name}");
    }
    assert_eq!(sent.headers["x-base-url"], "http://127.0.0.1:9/evil");
    assert_eq!(sent.headers["authorization"], format!("Bearer {KEY}"));
}

#[test]
fn a_session_token_works_at_the_gateway_while_its_session_runs() {
    let gateway = Gateway::new(Script::always(Say::text("hello").usage(100, 10)));
    let (id, token) = gateway.session("one");
    let as_session = |token: &str| {
        let url = format!("{}/llm/anthropic/v1/messages", gateway.url);
        let request = gateway.client.post(url).header("x-api-key", token).json(&messages("hi"));
        gateway.send(request)
    };
    let got = as_session(&token);
    assert_eq!(got.status, 200, "{}", got.body);
    let told = gateway.settled("one");
    assert_eq!((&told["run_id"], &told["format"]), (&json!(id), &json!("messages")), "{told}");
    assert_eq!(
        (&told["usage"]["input_tokens"], &told["ended"]),
        (&json!(100), &json!("completed"))
    );
    // Another session's name with this session's code is invalid.
    let (other, _) = gateway.session("two");
    let forged = token.replace(id.trim_start_matches("ses_"), other.trim_start_matches("ses_"));
    assert_ne!(forged, token);
    assert_eq!(as_session(&forged).status, 401);
    gateway.home.run(&["stop", "one"]).ok();
    gateway.home.wait_for(&id, "canceled");
    let got = as_session(&token);
    assert_eq!((got.status, &got.json()["error"]["type"]), (401, &json!("authentication_error")));
}

#[test]
fn a_stopping_run_makes_no_more_calls() {
    let gateway = Gateway::new(Script::always(Say::text("hello")));
    let file = gateway.home.work().join("lasts.token");
    // It survives its stop request for a while, like an agent whose tool was ended by the request.
    let script = format!(
        "trap 'echo asked; while :; do sleep 0.1; done' TERM; printf %s \"$OVERMIND_TOKEN\" > {0}.new; \
         mv {0}.new {0}; while :; do sleep 0.1; done",
        file.display()
    );
    let args = ["run", "-d", "--name", "lasts", "--sandbox", "none", "--", "sh", "-c", &script];
    gateway.home.run(&args).ok();
    let token = until("it has its token", || std::fs::read_to_string(&file).ok());
    let call = || {
        let url = format!("{}/llm/anthropic/v1/messages", gateway.url);
        let request = gateway.client.post(url).header("x-api-key", &token).json(&messages("hi"));
        gateway.send(request)
    };
    assert_eq!(call().status, 200);
    gateway.home.run(&["stop", "lasts", "--grace", "60s", "--no-wait"]).ok();
    until("it was asked", || {
        gateway.home.run(&["logs", "lasts"]).ok().out.contains("asked").then_some(())
    });
    let got = call();
    assert_eq!((got.status, got.json()["error"]["type"].as_str()), (403, Some("permission_error")));
    assert!(got.body.contains("being stopped"), "{}", got.body);
    assert_eq!(gateway.upstream.requests().len(), 1, "no provider was asked");
    gateway.home.run(&["kill", "lasts"]).ok();
}

#[test]
fn an_agents_model_list_applies_to_each_call() {
    let gateway = Gateway::new(Script::always(Say::text("hello")));
    let file = gateway.home.work().join("listed.token");
    let script = format!("printf %s \"$OVERMIND_TOKEN\" > {}; exec sleep 1000", file.display());
    let agent = json!({
        "name": "listed", "role": "r", "model": "command", "sandbox": "none",
        "command": {"argv": ["sh", "-c", script], "models": ["small-*"]},
    });
    let spec = gateway.home.path().join("listed.json");
    std::fs::write(&spec, agent.to_string()).unwrap();
    gateway.home.run(&["agent", "create", "--file", spec.to_str().unwrap()]).ok();
    gateway.home.run(&["run", "--agent", "listed", "--name", "listed", ""]).ok();
    let token = until("the token", || {
        std::fs::read_to_string(&file).ok().filter(|token| !token.is_empty())
    });
    let ask = |model: &str| {
        let mut body = chat("hi");
        body["model"] = model.into();
        let url = format!("{}/llm/openai/v1/chat/completions", gateway.url);
        gateway.send(gateway.client.post(url).bearer_auth(&token).json(&body))
    };
    assert_eq!(ask("small-1").status, 200);
    for model in ["large-1", "custom:large-1", "SMALL", "scripted:x"] {
        let got = ask(model);
        assert_eq!(got.status, 403, "{model}: {}", got.body);
        assert_eq!(got.json()["error"]["code"], "permission_denied");
    }
    assert_eq!(gateway.upstream.requests().len(), 1);
}

#[test]
fn a_chat_is_translated_to_messages_and_back() {
    let say = Say::text("hello").call("t1", "get", &json!({"a": 1})).usage(10, 2);
    let gateway = Gateway::new(Script::always(say));
    let mut body = chat("hi");
    body["model"] = "anthropic-messages:small-1".into();
    body["tools"] = json!([{"type": "function", "function": {
        "name": "get", "parameters": {"type": "object"}}}]);
    let got = gateway.ask("openai/v1/chat/completions", &body).json();
    let message = &got["choices"][0]["message"];
    assert_eq!(message["content"], "hello", "{got}");
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
    assert_eq!(got["usage"]["prompt_tokens"], 10);
    assert_eq!(gateway.last().wire, Some(Wire::Messages));
    assert!(gateway.last().violations.is_empty(), "{:?}", gateway.last().violations);
    body["stream"] = true.into();
    let got = gateway.ask("openai/v1/chat/completions", &body);
    assert!(got.body.contains("\"tool_calls\"") && got.body.ends_with("data: [DONE]\n\n"));
    // And the other way round.
    let mut body = messages("hi");
    body["model"] = "openai-chat:small-1".into();
    body["stream"] = true.into();
    let got = gateway.ask("anthropic/v1/messages", &body);
    assert!(got.body.contains("event: message_start"), "{}", got.body);
    assert!(got.body.contains("\"stop_reason\":\"tool_use\""), "{}", got.body);
    assert_eq!(gateway.last().wire, Some(Wire::Chat));
    body["top_k"] = 5.into();
    let got = gateway.ask("anthropic/v1/messages", &body);
    assert_eq!(got.status, 400);
    assert!(got.json()["error"]["message"].as_str().unwrap().contains("`top_k`"));
}

#[test]
fn a_client_disconnect_closes_the_providers_connection() {
    let long = Say::text(&"word ".repeat(200)).usage(10, 200);
    let gateway = Gateway::new(Script::always(Answer::say(long).stall_after(20)));
    let mut body = messages("hi");
    body["stream"] = true.into();
    let (_, token) = gateway.session("leaver");
    gateway.runtime.block_on(async {
        let url = format!("{}/llm/anthropic/v1/messages", gateway.url);
        let request = gateway.client.post(url).bearer_auth(token).json(&body);
        let mut response = request.send().await.unwrap();
        let mut seen = String::new();
        while !seen.contains("word") {
            let bytes = response.chunk().await.unwrap().expect("the stream goes on");
            seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        drop(response);
        tokio::time::timeout(Duration::from_secs(20), gateway.upstream.idle())
            .await
            .expect("the provider is let go of");
    });
    let told = gateway.settled("leaver");
    assert_eq!((&told["ended"], &told["usage"]["input_tokens"]), (&json!("cancelled"), &json!(10)));
    let said = told["usage"]["output_tokens"].as_u64().unwrap();
    assert!((1..200).contains(&said), "what was streamed: {told}");
}

#[test]
fn a_broken_provider_stream_breaks_the_callers_stream() {
    let say = Say::text("one two three four").usage(10, 4);
    let gateway = Gateway::new(Script::always(Answer::say(say).cut_after(3)));
    let mut body = messages("hi");
    body["stream"] = true.into();
    gateway.runtime.block_on(async {
        let response = gateway.post("anthropic/v1/messages", &body).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        response.text().await.expect_err("a cut stream is no whole one");
    });
}

#[test]
fn ten_megabytes_pass_in_both_directions_and_more_than_the_limit_does_not() {
    let big = "x".repeat(10 << 20);
    let whole = json!({"id": "r", "choices": [], "pad": big, "usage": {"prompt_tokens": 3}});
    let answer = Answer::raw(200, "application/json", whole.to_string());
    let gateway = Gateway::new(Script::always(answer));
    let got = gateway.ask("openai/v1/chat/completions", &chat(&big));
    assert_eq!((got.status, got.body.len()), (200, whole.to_string().len()));
    let body = gateway.last().body;
    assert_eq!(body["messages"][0]["content"].as_str().unwrap().len(), big.len());
    let url = format!("{}/llm/openai/v1/chat/completions", gateway.url);
    let head = gateway.client.post(url).bearer_auth(&gateway.admin);
    let status = gateway.runtime.block_on(async {
        // Refused by its length; the body may have been read before.
        let sent = head.body(vec![b' '; (32 << 20) + 1]).send().await;
        sent.map_or(413, |response| response.status().as_u16())
    });
    assert_eq!(status, 413);
}

#[test]
fn a_cassette_serves_any_program_without_a_provider() {
    let gateway = Gateway::new(Script::always(Say::text("never")));
    let dir = gateway.home.data().join("cassettes");
    std::fs::create_dir_all(&dir).unwrap();
    let turns = json!([
        {"text": "Let me look.", "calls": [{"name": "ls", "args": {"path": "."}}]},
        {"expect": {"last_tool_contains": "a.txt"}, "text": "There is a.txt."},
    ]);
    let cassette = json!({"name": "tape", "turns": turns});
    std::fs::write(dir.join("tape.json"), cassette.to_string()).unwrap();
    let mut body = messages("what is here?");
    body["model"] = "scripted:tape".into();
    let got = gateway.ask("anthropic/v1/messages", &body).json();
    assert_eq!(got["stop_reason"], "tool_use", "{got}");
    let call = got["content"][1].clone();
    assert_eq!((&call["name"], &call["input"]), (&json!("ls"), &json!({"path": "."})));
    let result = json!([{"type": "tool_result", "tool_use_id": call["id"], "content": "a.txt"}]);
    body["messages"] = json!([
        {"role": "user", "content": "what is here?"},
        {"role": "assistant", "content": got["content"]},
        {"role": "user", "content": result},
    ]);
    body["stream"] = true.into();
    let got = gateway.ask("anthropic/v1/messages", &body);
    assert!(got.body.contains("There is a.txt.") && got.body.contains("event: message_stop"));
    assert!(gateway.upstream.requests().is_empty());
}

#[test]
fn models_are_listed_in_both_formats() {
    let gateway = Gateway::new(Script::always(Say::text("never")));
    let get = |path: &str| {
        let url = format!("{}/llm/{path}", gateway.url);
        gateway.send(gateway.client.get(url).bearer_auth(&gateway.admin)).json()
    };
    assert_eq!(get("openai/v1/models")["object"], "list");
    assert_eq!(get("anthropic/v1/models")["has_more"], false);
}

#[test]
fn a_spent_budget_refuses_in_the_providers_format_without_a_call() {
    let gateway = Gateway::new(Script::always(Say::text("hello").usage(10, 2)));
    let set = |args: &[&str]| {
        let args: Vec<&str> = ["budget", "set", "swarm"].iter().chain(args).copied().collect();
        gateway.home.run(&args).ok();
    };
    set(&["--tokens", "100000", "--per", "total"]);
    assert_eq!(gateway.ask("anthropic/v1/messages", &messages("hi")).status, 200);
    set(&["--tokens", "1000", "--per", "total"]);
    let got = gateway.ask("anthropic/v1/messages", &messages("hi"));
    assert_eq!((got.status, &got.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    assert_eq!(got.header("x-should-retry"), "false");
    let got = gateway.ask("openai/v1/chat/completions", &chat("hi"));
    assert_eq!((got.status, &got.json()["error"]["type"]), (429, &json!("insufficient_quota")));
    // Counting tokens is free, and is forwarded nevertheless.
    assert_eq!(gateway.ask("anthropic/v1/messages/count_tokens", &messages("hi")).status, 404);
    set(&["--usd", "5", "--no-tokens", "--per", "total"]);
    let got = gateway.ask("openai/v1/chat/completions", &chat("hi"));
    assert_eq!((got.status, &got.json()["error"]["code"]), (403, &json!("price_unknown")));
    gateway.home.run(&["halt", "--reason", "a loop"]).ok();
    let got = gateway.ask("anthropic/v1/messages", &messages("hi"));
    assert_eq!(got.status, 429);
    assert!(got.body.contains("a loop"), "{}", got.body);
    let asked = gateway.upstream.requests();
    let paid = asked.iter().filter(|request| request.wire.is_some()).count();
    assert_eq!(paid, 1, "one call was made before the limit");
}

#[test]
fn calls_blocked_only_by_reservations_wait_for_their_turn() {
    let say = Say::text("hello").usage(10, 2);
    let gateway =
        Gateway::new(Script::by(move |_| Answer::say(say.clone()).drip(Duration::from_millis(50))));
    // One of them may use some 6,100 tokens: two do not fit together.
    gateway.home.run(&["budget", "set", "swarm", "--tokens", "10000", "--per", "day"]).ok();
    let body = json!({"model": "small-1", "max_tokens": 4000, "stream": true,
        "messages": [{"role": "user", "content": "hi"}]});
    let all = (0..5).map(|_| gateway.post("openai/v1/chat/completions", &body).send());
    let all = gateway.runtime.block_on(futures_util::future::join_all(all));
    for one in all {
        let one = gateway.runtime.block_on(Got::of(one.unwrap()));
        assert_eq!(one.status, 200, "{}", one.body);
    }
    // No such call is left.
    gateway.home.run(&["budget", "set", "swarm", "--tokens", "4000", "--per", "day"]).ok();
    let got = gateway.ask("openai/v1/chat/completions", &body);
    assert_eq!((got.status, &got.json()["error"]["code"]), (429, &json!("budget_exhausted")));
}

#[test]
fn an_alias_routes_to_its_models_and_is_listed() {
    let config = "[aliases.fast]\nto = [\"small-1\", \"small-2\"]\n";
    let busy = Answer::status(529, "overloaded_error", "busy");
    let script = Script::by(move |request: &Received| match request.body["model"].as_str() {
        Some("small-1") => busy.clone(),
        _ => Say::text("hello").into(),
    });
    let gateway = Gateway::with(script, &[], config);
    let mut body = messages("hi");
    body["model"] = "fast".into();
    let got = gateway.ask("anthropic/v1/messages", &body);
    assert_eq!(got.status, 200, "{}", got.body);
    assert_eq!(gateway.last().body["model"], "small-2");
    let url = format!("{}/llm/openai/v1/models/fast", gateway.url);
    let got = gateway.send(gateway.client.get(url).bearer_auth(gateway.admin()));
    assert_eq!(got.json()["id"], "fast");
}

#[test]
fn a_call_cut_off_by_a_kill_is_recorded_even_without_a_limit() {
    let said = Say::text("it begins well, and then there is nothing more of it").usage(10, 9);
    let mut gateway = Gateway::new(Script::always(Answer::say(said).stall_after(3)));
    let (_, token) = gateway.session("talks");
    let mut body = chat("go on");
    body["stream"] = true.into();
    let request = gateway.client.post(format!("{}/llm/openai/v1/chat/completions", gateway.url));
    let request = request.bearer_auth(&token).json(&body);
    let answer = gateway.runtime.block_on(async {
        let mut answer = request.send().await.unwrap();
        assert!(answer.chunk().await.unwrap().is_some(), "it streams");
        answer
    });
    // Its write to disk started before the model was called.
    until("the reservation is on disk", || {
        let all = gateway.home.run(&["events", "--limit", "1000", "-o", "json"]).ok().json();
        all.as_array().unwrap().iter().any(|one| one["type"] == "budget.reserved").then_some(())
    });
    gateway.home.kill();
    drop(answer);
    gateway.home.start(&["--listen", "none"], &[]);
    let settled = gateway.settled("talks");
    assert_eq!((&settled["recovered"], &settled["ended"]), (&true.into(), &"unknown".into()));
    let costs = gateway.home.run(&["costs", "--by", "session", "-o", "json"]).ok().json();
    assert_eq!(costs[0]["calls"], 1, "{costs}");
    gateway.home.run(&["kill", "talks"]).ok();
}
