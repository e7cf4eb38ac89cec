//! Limits that are too small for the bound on a call's input, and large enough for the provider's count.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use overmind_testkit::upstream::{Answer, Received, Say, Script};
use serde_json::{Value, json};

use crate::gateway::{Gateway, Got, KEY, chat, messages};
use crate::home::until;

/// A provider that answers questions for the number of tokens.
fn counting(count: impl Fn(&Received) -> Answer + Send + 'static) -> Script {
    let say = Say::text("hello").usage(900, 2);
    Script::by(move |request| match request.is_count() {
        true => count(request),
        false => say.clone().into(),
    })
    .every_path()
}

fn limit(gateway: &Gateway, tokens: u64) {
    let tokens = tokens.to_string();
    gateway.home.run(&["budget", "set", "swarm", "--tokens", &tokens, "--per", "total"]).ok();
}

/// A call of 30 kB, which no tokenizer splits into 30,000 tokens.
fn long() -> Value {
    let mut body = messages(&"hi ".repeat(10_000));
    body["metadata"] = json!({"user_id": "u"});
    body["temperature"] = 0.into();
    body["system"] = "Be brief.".into();
    body
}

fn ask(gateway: &Gateway) -> Got {
    gateway.send(gateway.post("anthropic/v1/messages?beta=true", &long()))
}

fn counts(gateway: &Gateway) -> usize {
    gateway.upstream.requests().iter().filter(|request| request.is_count()).count()
}

fn events(gateway: &Gateway, kind: &str) -> Vec<Value> {
    let all = gateway.home.run(&["events", "--limit", "1000", "-o", "json"]).ok().json();
    let all = all.as_array().unwrap().iter().filter(|event| event["type"] == kind);
    all.map(|event| event["payload_json"].clone()).collect()
}

#[test]
fn a_limit_that_fits_the_providers_count_allows_the_call() {
    let gateway = Gateway::new(counting(|request| Answer::count(request, 1_000)));
    limit(&gateway, 10_000);
    let got = ask(&gateway);
    assert_eq!(got.status, 200, "{}", got.body);
    let asked = gateway.upstream.requests();
    let paths: Vec<&str> = asked.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths, ["/v1/messages/count_tokens", "/v1/messages"]);
    let (count, call) = (&asked[0], &asked[1]);
    assert_eq!(count.headers["x-api-key"], KEY);
    assert_eq!(call.body, long(), "the call itself is as its caller made it");
    let wanted = json!({
        "model": "small-1", "messages": long()["messages"], "system": "Be brief.",
    });
    assert_eq!(count.body, wanted);

    // The counted tokens and a margin, the uncounted fields, and the output.
    let left_out = r#","max_tokens":64,"metadata":{"user_id":"u"},"temperature":0"#.len();
    let reserved = events(&gateway, "budget.reserved");
    let calls = reserved[0]["calls"].as_array().unwrap();
    assert_eq!((reserved.len(), calls.len()), (1, 1), "{reserved:?}");
    assert_eq!(calls[0]["worst"]["tokens"], 1_000 + 100 + 500 + left_out + 64, "{reserved:?}");
    assert_eq!(events(&gateway, "budget.refused"), [json!(null); 0]);
    let costs = gateway.home.run(&["costs", "--by", "model", "-o", "json"]).ok().json();
    assert_eq!((&costs[0]["calls"], &costs[0]["input_tokens"]), (&json!(1), &json!(900)));

    // A call that fits without a count does not request one.
    let got = gateway.send(gateway.post("anthropic/v1/messages", &messages("hi")));
    assert_eq!((got.status, counts(&gateway)), (200, 1), "{}", got.body);
}

#[test]
fn a_provider_without_counting_changes_no_refusal() {
    let number =
        |body: String| move |_: &Received| Answer::raw(200, "application/json", body.clone());
    let padded = format!("{}{{\"input_tokens\":1}}", " ".repeat(65 << 10));
    for script in [
        counting(|_| Answer::status(404, "not_found_error", "no such endpoint")),
        counting(|_| Answer::status(400, "invalid_request_error", "no")),
        counting(|_| Answer::hang_up()),
        counting(|_| Answer::hang()),
        counting(number("{}".to_owned())),
        counting(number("{\"input_tokens\":0}".to_owned())),
        counting(number("<html>".to_owned())),
        counting(number(padded)),
        // More than any model takes.
        counting(|request| Answer::count(request, 10_000_000)),
    ] {
        let gateway = Gateway::new(script);
        limit(&gateway, 10_000);
        let got = ask(&gateway);
        assert_eq!((got.status, got.header("x-should-retry")), (429, "false"), "{}", got.body);
        let error = got.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["type"], "rate_limit_error");
        assert!(message.starts_with("the budget of swarm is exhausted: 10000 tokens"), "{message}");
        assert!(message.ends_with("; ask an admin to raise it"), "{message}");
        assert!(!message.contains("counts"), "{message}");
        let asked = gateway.upstream.requests();
        assert!(!asked.is_empty() && asked.iter().all(Received::is_count), "nothing was paid for");
        let refused = until("the refusal is written down", || {
            Some(events(&gateway, "budget.refused")).filter(|refused| !refused.is_empty())
        });
        assert_eq!((refused.len(), &refused[0]["times"]), (1, &json!(1)), "{refused:?}");
        assert_eq!(events(&gateway, "budget.reserved"), [json!(null); 0]);
    }
}

#[test]
fn a_count_over_the_limit_is_reported_and_requested_only_if_useful() {
    let config = "[aliases.fast]\nto = [\"small-1\", \"small-2\"]\n";
    let gateway = Gateway::with(counting(|request| Answer::count(request, 12_345)), &[], config);
    limit(&gateway, 10_000);
    let (_, token) = gateway.session("talks");
    let url = format!("{}/llm/anthropic/v1/messages", gateway.url);
    let got = gateway.send(gateway.client.post(url).bearer_auth(&token).json(&long()));
    assert_eq!(got.status, 429, "{}", got.body);
    let says = "(its provider counts 12345 input tokens)";
    assert!(got.body.contains(says), "{}", got.body);
    let item = until("people are asked", || {
        let items = gateway.home.run(&["inbox", "--flat", "-o", "json"]).ok().json();
        items.as_array().unwrap().first().cloned()
    });
    assert!(item.to_string().contains(says), "{item}");
    assert_eq!(counts(&gateway), 1);

    // Another API, several models, and an output that is too large alone.
    let mut chain = long();
    chain["model"] = "fast".into();
    let mut output = long();
    output["max_tokens"] = 10_001.into();
    for (path, body) in [
        ("openai/v1/chat/completions", chat(&"hi ".repeat(10_000))),
        ("anthropic/v1/messages", chain),
        ("anthropic/v1/messages", output),
    ] {
        let got = gateway.send(gateway.post(path, &body));
        assert_eq!(got.status, 429, "{}", got.body);
        assert!(!got.body.contains("counts"), "{}", got.body);
    }
    assert_eq!(gateway.upstream.requests().len(), 1, "nobody else was asked");
    gateway.home.run(&["kill", "talks"]).ok();
}

#[test]
fn a_count_request_ends_with_its_callers_token() {
    let gateway = Gateway::new(counting(|_| Answer::hang()));
    limit(&gateway, 10_000);
    let (_, token) = gateway.session("talks");
    let url = format!("{}/llm/anthropic/v1/messages", gateway.url);
    let request = gateway.client.post(url).bearer_auth(&token).json(&long());
    let call = gateway.runtime.spawn(request.send());
    until("the provider counts", || (counts(&gateway) == 1).then_some(()));
    gateway.home.run(&["kill", "talks"]).ok();
    let got = gateway.runtime.block_on(async { Got::of(call.await.unwrap().unwrap()).await });
    assert_eq!(got.status, 401, "{}", got.body);
    gateway.runtime.block_on(gateway.upstream.idle());
    assert_eq!(events(&gateway, "budget.reserved"), [json!(null); 0]);
    assert_eq!(events(&gateway, "budget.settled"), [json!(null); 0]);
}
