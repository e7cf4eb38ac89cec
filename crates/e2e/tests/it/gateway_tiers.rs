//! Calls with an option that may raise their price: the table has one price for each model.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use overmind_testkit::upstream::{Say, Script};
use serde_json::{Value, json};

use crate::gateway::{Gateway, chat, messages};

const PRICES: &str = "as_of = \"2026-11-01\"\nsource = \"the test\"\n[models.small-1]\ninput = 1000\noutput = 2000\n";

/// A gateway that knows the price of `small-1`.
fn priced() -> Gateway {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), PRICES).unwrap();
    let config = format!("[models]\nprices = \"{}\"\n", file.path().display());
    // The file is read at the start.
    Gateway::with(Script::always(Say::text("hello").usage(10, 2)), &[], &config)
}

/// The same question in each API.
fn bodies() -> [(&'static str, Value); 3] {
    [
        ("openai/v1/chat/completions", chat("hi")),
        (
            "openai/v1/responses",
            json!({"model": "small-1", "input": "hi", "max_output_tokens": 64}),
        ),
        ("anthropic/v1/messages", messages("hi")),
    ]
}

#[test]
fn a_dearer_tier_is_refused_under_a_limit_in_dollars_and_a_cheaper_one_counts_in_full() {
    let gateway = priced();
    gateway.home.run(&["budget", "set", "swarm", "--usd", "500", "--per", "total"]).ok();
    let ask = |path: &str, body: &Value| gateway.send(gateway.post(path, body));
    for (path, plain) in bodies() {
        for (option, value) in
            [("service_tier", "priority"), ("speed", "fast"), ("inference_geo", "us")]
        {
            let mut body = plain.clone();
            body[option] = value.into();
            let got = ask(path, &body);
            assert_eq!(got.status, 403, "{path} {option}: {}", got.body);
            let said = got.json()["error"]["message"].as_str().unwrap().to_owned();
            let named = format!("`small-1` with `{option}: \"{value}\"`");
            assert!(said.contains(&named) && said.contains("without that option"), "{said}");
        }
    }
    assert_eq!(gateway.upstream.requests().len(), 0, "nothing was sent");

    let spent = || {
        let costs = gateway.home.run(&["costs", "--by", "model", "-o", "json"]).ok().json();
        (costs[0]["microusd"].as_u64().unwrap(), costs[0]["unpriced_calls"].as_u64().unwrap())
    };
    let mut before = 0;
    for (path, plain) in bodies() {
        let (mut cheap, tier) = (plain.clone(), ["flex", "standard_only"]);
        cheap["service_tier"] = tier[usize::from(path.starts_with("anthropic"))].into();
        for body in [&plain, &cheap] {
            let got = ask(path, body);
            assert_eq!(got.status, 200, "{path}: {}", got.body);
            let (now, unpriced) = spent();
            assert!(now > before && unpriced == 0, "{path}: {before} {now} {unpriced}");
            before = now;
        }
    }
}

#[test]
fn a_dearer_tier_without_a_limit_is_a_call_without_a_price() {
    let gateway = priced();
    for (path, mut body) in bodies() {
        body["service_tier"] = "priority".into();
        let got = gateway.send(gateway.post(path, &body));
        assert_eq!((got.status, gateway.last().body), (200, body), "{path}: {}", got.body);
    }
    let costs = gateway.home.run(&["costs", "--by", "model", "-o", "json"]).ok().json();
    assert_eq!((&costs[0]["calls"], &costs[0]["unpriced_calls"]), (&json!(3), &json!(3)));
}
