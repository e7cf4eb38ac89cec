//! Providers that misbehave: forwarded data, and the recorded costs.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::time::Duration;

use overmind_testkit::upstream::{Answer, Say, Script};
use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::home::until;

/// Longest that any one answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The received stream: its pieces, and whether it was complete.
struct Came {
    pieces: usize,
    text: String,
    whole: bool,
}

/// A session's stream through the gateway.
fn stream(gateway: &Gateway, token: &str, path: &str, model: &str) -> Came {
    let body = json!({
        "model": model, "max_tokens": 64, "stream": true,
        "messages": [{"role": "user", "content": "hi"}],
    });
    let request = gateway.client.post(format!("{}/llm/{path}", gateway.url));
    let request = request.bearer_auth(token).json(&body);
    let reading = async {
        // One that breaks off at its first byte may have no head.
        let Ok(mut response) = request.send().await else {
            return Came { pieces: 0, text: String::new(), whole: false };
        };
        assert_eq!(response.status().as_u16(), 200);
        let (mut pieces, mut text) = (0, Vec::new());
        let whole = loop {
            match response.chunk().await {
                Ok(Some(piece)) => {
                    pieces += 1;
                    text.extend_from_slice(&piece);
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        Came { pieces, text: String::from_utf8(text).unwrap(), whole }
    };
    gateway
        .runtime
        .block_on(async { tokio::time::timeout(PATIENCE, reading).await })
        .expect("the stream ends")
}

fn tokens(told: &Value) -> (u64, u64) {
    let of = |name: &str| told["usage"][name].as_u64().unwrap();
    (of("input_tokens"), of("output_tokens"))
}

#[test]
fn a_slow_stream_passes_byte_by_byte_and_is_billed_by_its_usage() {
    let say = Say::text("one two three").usage(90, 30);
    let drip = Answer::say(say).pings().every_byte().drip(Duration::from_millis(1));
    let gateway = Gateway::new(Script::always(drip));
    let (_, token) = gateway.session("drip");
    let came = stream(&gateway, &token, "anthropic/v1/messages", "small-1");
    assert!(came.whole && came.text.contains("message_stop"), "{}", came.text);
    assert!(came.pieces > 50, "nothing is gathered on its way: {} pieces", came.pieces);
    let told = gateway.settled("drip");
    assert_eq!((&told["ended"], tokens(&told)), (&json!("completed"), (90, 30)), "{told}");
}

#[test]
fn invalid_stream_data_is_forwarded_and_billed_by_its_size() {
    let nonsense = "data: {\"choices\": [nonsense\n\nevent: what\ndata: 7\n\ndata\u{0}\n\n: \ndata: [DONE]\n\n";
    let raw = Answer::raw(200, "text/event-stream", nonsense);
    let gateway = Gateway::new(Script::always(raw));
    let (_, token) = gateway.session("odd");
    let came = stream(&gateway, &token, "openai/v1/chat/completions", "small-1");
    assert!(came.whole);
    assert_eq!(came.text, nonsense);
    let told = gateway.settled("odd");
    let (input, output) = tokens(&told);
    assert!(input > 0 && output > 0, "what nobody understands is not free: {told}");
}

#[test]
fn invalid_data_that_must_be_translated_breaks_the_stream() {
    let raw = Answer::raw(200, "text/event-stream", "data: {\"choices\": [nonsense\n\n");
    let gateway = Gateway::new(Script::always(raw));
    let (_, token) = gateway.session("odd");
    let came = stream(&gateway, &token, "anthropic/v1/messages", "openai-chat:small-1");
    assert!(!came.whole, "{}", came.text);
    assert_eq!(gateway.settled("odd")["ended"], "cut");
}

#[test]
fn a_truncated_stream_is_billed_by_its_reported_usage() {
    let say = Say::text("one two three four five six").usage(10, 6);
    let gateway = Gateway::new(Script::always(Answer::say(say).cut_after(5)));
    let (_, token) = gateway.session("cut");
    let came = stream(&gateway, &token, "anthropic/v1/messages", "small-1");
    assert!(!came.whole && came.text.contains("message_start"), "{}", came.text);
    let told = gateway.settled("cut");
    let (input, output) = tokens(&told);
    assert_eq!((&told["ended"], input), (&json!("cut"), 10), "{told}");
    assert!((1..100).contains(&output), "{told}");
}

#[test]
fn a_stream_closed_before_its_last_event_is_broken() {
    let say = Say::text("one two three four five six").usage(10, 6);
    let gateway = Gateway::new(Script::always(Answer::say(say).end_after(5)));
    for (name, path) in
        [("chat", "openai/v1/chat/completions"), ("messages", "anthropic/v1/messages")]
    {
        let (_, token) = gateway.session(name);
        let came = stream(&gateway, &token, path, "small-1");
        assert!(!came.whole && came.text.contains("one"), "{}", came.text);
        assert_eq!(gateway.settled(name)["ended"], "cut");
    }
}

#[test]
fn an_event_of_ten_megabytes_passes_whole() {
    let large = "x".repeat(10 << 20);
    let events = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{large}\"}}}}]}}\n\n\
         data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":10,\"completion_tokens\":7}}}}\n\n\
         data: [DONE]\n\n"
    );
    let raw = Answer::raw(200, "text/event-stream", events);
    let gateway = Gateway::new(Script::always(raw));
    let (_, token) = gateway.session("large");
    let came = stream(&gateway, &token, "openai/v1/chat/completions", "small-1");
    assert!(came.whole && came.text.ends_with("data: [DONE]\n\n"));
    assert!(came.text.len() > 10 << 20, "{}", came.text.len());
    assert!(!came.text.contains("prompt_tokens"), "it did not ask for them");
    assert_eq!(tokens(&gateway.settled("large")), (10, 7));
}

#[test]
fn a_providers_failure_is_forwarded_and_costs_nothing() {
    for (status, kind) in [(429, "rate_limit_error"), (500, "api_error")] {
        let failing = Answer::status(status, kind, "not now").header("x-should-retry", "false");
        let gateway = Gateway::new(Script::always(failing));
        let (_, token) = gateway.session("failing");
        let body = json!({"model": "small-1", "max_tokens": 8, "messages": [
            {"role": "user", "content": "hi"}]});
        let url = format!("{}/llm/anthropic/v1/messages", gateway.url);
        let request = gateway.client.post(url).bearer_auth(&token).json(&body);
        let (got, text) = gateway.runtime.block_on(async {
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        });
        assert_eq!(got, status, "{text}");
        assert!(text.contains("not now"), "{text}");
        let told = until("the call is in the session's log", || {
            let all = ["events", "failing", "--limit", "1000", "-o", "json"];
            let all = gateway.home.run(&all).ok().json();
            let mut all = all.as_array().unwrap().iter();
            let is_end = |event: &&Value| {
                matches!(event["type"].as_str(), Some("budget.released" | "budget.settled"))
            };
            all.find(is_end).cloned()
        });
        assert_eq!(told["type"], "budget.released", "nothing was billed: {told}");
        assert_eq!(told["payload_json"]["status"], status);
        assert_eq!(gateway.upstream.requests().len(), 1);
    }
}

#[test]
fn a_connection_lost_after_the_request_counts_the_maximum_cost() {
    for answer in [
        Answer::hang_up(),
        // The provider answered, so it bills, even if the answer is unreadable.
        Answer::raw(200, "application/json", "{\"choices\": [nonsense"),
    ] {
        let gateway = Gateway::new(Script::always(answer));
        let (_, token) = gateway.session("broken");
        let body = json!({"model": "openai-chat:small-1", "max_tokens": 77, "messages": [
            {"role": "user", "content": "hi"}]});
        let url = format!("{}/llm/anthropic/v1/messages", gateway.url);
        let request = gateway.client.post(url).bearer_auth(&token).json(&body);
        let status =
            gateway.runtime.block_on(async { request.send().await.unwrap().status().as_u16() });
        assert_eq!(status, 502);
        let told = gateway.settled("broken");
        assert_eq!(gateway.upstream.requests().len(), 1, "it is not asked twice: {told}");
        assert_eq!(told["ended"], "failed", "{told}");
        let sent = u64::try_from(body.to_string().len()).unwrap();
        let (input, output) = tokens(&told);
        assert!(input >= sent + 77 && output == 0, "{sent} bytes and 77 tokens: {told}");
    }
}
