//! Real client programs use the models of this server: official SDKs, Claude Code, Codex.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::process::Command;

use overmind_testkit::real::counterpart;
use overmind_testkit::upstream::{Answer, Received, Say, Script};
use serde_json::{Value, json};

use crate::gateway::{Gateway, KEY};
use crate::home::until;

/// What [`sdks.py`](sdks.py) is answered.
fn answer(request: &Received) -> Answer {
    let model = request.body["model"].as_str().unwrap_or_default();
    if request.path.ends_with("/embeddings") {
        let vector = |index: u32, vector: [f32; 2]| json!({"object": "embedding", "index": index, "embedding": vector});
        let all = json!({
            "object": "list", "model": model, "data": [vector(0, [0.5, 1.0]), vector(1, [0.25, 2.0])],
            "usage": {"prompt_tokens": 2, "total_tokens": 2},
        });
        return Answer::raw(200, "application/json", all.to_string());
    }
    match model {
        "slow" => Answer::status(429, "rate_limit_error", "slow down").header("retry-after", "7"),
        "with_tools" => Answer::say(
            Say::nothing().call("toolu_01", "look", &json!({"path": "a.txt"})).usage(100, 7),
        ),
        _ => Answer::say(Say::text("hello there").usage(100, 7)),
    }
}

#[test]
fn needs_python_sdks_of_openai_and_anthropic_work_with_the_gateway() {
    let Some(packages) = counterpart("PYTHON_SDKS") else { return };
    let gateway = Gateway::new(Script::by(answer).every_path());
    let done = Command::new("python3")
        .args(["-c", include_str!("sdks.py"), &gateway.url, gateway.admin()])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", gateway.home.path())
        .env("PYTHONPATH", packages)
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(out, "all of it\n", "{err}");
}

/// The output of an agent's program for a message.
fn agent(request: &Received) -> Answer {
    let text = request.body.to_string();
    let said = if text.contains("the magic word") { "Abracadabra." } else { "A title" };
    Answer::say(Say::text(said).usage(1000, 100))
}

fn settled(gateway: &Gateway, name: &str) -> Vec<Value> {
    let all = gateway.home.run(&["events", name, "--limit", "1000", "-o", "json"]).ok().json();
    let all = all.as_array().unwrap().iter();
    all.filter(|event| event["type"] == "budget.settled")
        .map(|event| event["payload_json"].clone())
        .collect()
}

/// A model that uses a tool of a namespace before any text.
fn uses_namespace(request: &Received) -> Answer {
    let body = &request.body;
    let is_tool = |message: &Value| {
        message["role"] == "tool" || message["content"][0]["type"] == "tool_result"
    };
    if body["messages"].as_array().is_some_and(|all| all.iter().any(is_tool)) {
        return Answer::say(Say::text("Abracadabra.").usage(1000, 100));
    }
    let name = |tool: &Value| {
        tool["name"].as_str().or(tool["function"]["name"].as_str()).map(str::to_owned)
    };
    let mut names = body["tools"].as_array().into_iter().flatten().filter_map(name);
    let close = names.find(|name| name.ends_with("__close_agent")).expect("a tool of a namespace");
    Answer::say(Say::nothing().call("call_1", &close, &json!({"target": "7"})).usage(1000, 100))
}

#[test]
fn needs_codex_its_tools_work_with_a_model_of_another_api() {
    let Some(bin) = counterpart("CODEX") else { return };
    let path = format!("{bin}:/usr/local/bin:/usr/bin:/bin");
    for model in ["openai-chat:small-1", "anthropic-messages:small-1"] {
        let gateway = Gateway::with(Script::by(uses_namespace), &[("PATH", &path)], "");
        one_shot(&gateway, &["--provider", "codex", "--model", model]);
        let mut last = gateway.last();
        // Known to servers of chat, if not to ours.
        last.violations.retain(|what| !what.contains("parallel_tool_calls"));
        assert_eq!(last.violations, Vec::<String>::new(), "{model}");
        let body = last.body.to_string();
        assert!(body.contains("__close_agent"), "the history names it as the tools do: {body}");
        assert!(!body.contains("unsupported call"), "Codex knew its tool again: {body}");
        let costs = gateway.send(gateway.get("/api/costs?by=model")).json();
        assert!(costs.to_string().contains(model), "{costs}");
    }
}

/// Runs an agent of this provider, which has a home without any login.
fn one_shot(gateway: &Gateway, flags: &[&str]) {
    let args = ["run", "--name", "shot"].iter().chain(flags).copied();
    let args: Vec<&str> = args.chain(["say the magic word"]).collect();
    gateway.home.run(&args).ok();
    let waited = gateway.home.run(&["wait", "shot"]);
    let log = gateway.home.run(&["logs", "shot"]);
    assert_eq!(waited.code, 0, "{} {} {}", waited.out, log.out, gateway.home.log());
    let runs = gateway.home.run(&["ps", "--all", "-o", "json"]).ok().json();
    let row = runs.as_array().unwrap().iter().find(|run| run["name"] == "shot").unwrap().clone();
    assert_eq!(row["final_answer"], "Abracadabra.", "{row}");
    let calls = until("its calls are told", || {
        Some(settled(gateway, "shot")).filter(|calls| !calls.is_empty())
    });
    for call in &calls {
        assert_eq!((&call["run_id"], &call["usage"]["output_tokens"]), (&row["id"], &json!(100)));
    }
    let asked = gateway.upstream.requests();
    assert!(!asked.is_empty());
    for request in &asked {
        let headers = format!("{:?}", request.headers);
        assert!(headers.contains(KEY) && !headers.contains("ovs_"), "{headers}");
    }
    assert!(!log.out.contains(KEY));
}

#[test]
fn needs_claude_code_it_calls_models_with_a_worthless_token_and_no_flag() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let path = format!("{bin}:/usr/local/bin:/usr/bin:/bin");
    let prices = tempfile::NamedTempFile::new().unwrap();
    // Those of a Sonnet, for whatever it asks.
    let sonnet = "input = 2.0\ncached_input = 0.2\ncache_write = 2.5\noutput = 10.0\n";
    let names = ["claude-sonnet-5", "claude-haiku-4-5"];
    let table = names.map(|name| format!("[models.\"{name}\"]\n{sonnet}")).concat();
    let text = format!("as_of = \"2026-11-22\"\nsource = \"a test\"\n{table}");
    std::fs::write(prices.path(), text).unwrap();
    let config = format!("[models]\nprices = \"{}\"\n", prices.path().display());
    let gateway = Gateway::with(Script::by(agent), &[("PATH", &path)], &config);
    gateway.home.run(&["budget", "set", "swarm", "--usd", "5", "--per", "day"]).ok();
    let quiet = "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1";
    one_shot(&gateway, &["--agent", "claude", "--model", "claude-sonnet-5", "--env", quiet]);
    // It may write as much as it requests, at 10 millionths a token; its input is the rest.
    let asked = gateway.upstream.requests();
    let output = asked.iter().filter_map(|request| request.body["max_tokens"].as_u64()).max();
    let output = output.unwrap() * 10;
    for call in settled(&gateway, "shot") {
        let most = call["reserved"]["microusd"].as_u64().unwrap();
        assert!((1..=output + 350_000).contains(&most), "a greeting costs little: {call}");
    }
}

#[test]
fn needs_codex_it_calls_models_with_a_worthless_token_and_no_flag() {
    let Some(bin) = counterpart("CODEX") else { return };
    let path = format!("{bin}:/usr/local/bin:/usr/bin:/bin");
    let gateway = Gateway::with(Script::by(agent), &[("PATH", &path)], "");
    one_shot(&gateway, &["--provider", "codex", "--model", "gpt-5"]);
}
