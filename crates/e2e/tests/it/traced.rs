//! One trace contains everything that a run starts: its tools' commands, tool servers, its own
//! runs, and the model calls that it makes through the gateway. Each gets the same span that the
//! collector gets.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::process::Command;

use overmind_testkit::upstream::{Answer, Received, Say, Script};
use serde_json::{Value, json};

use crate::gateway::{Gateway, messages};
use crate::home::until;
use crate::program::program;
use crate::telemetry::{Collector, PARENT, SPAN, TRACE, parent_of, started, vars, with_token};

/// A tool server that returns the metadata that it got beside the arguments.
const SERVER: &str = r#"
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params", {})
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        answer["result"] = {
            "protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
            "serverInfo": {"name": "tele", "version": "1"}}
    elif method == "tools/list":
        answer["result"] = {"tools": [
            {"name": "meta", "description": "Looks.", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        text = json.dumps(params.get("_meta", {}))
        answer["result"] = {"content": [{"type": "text", "text": text}]}
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
"#;

/// Prints the span that a command got.
const SHOW: &str = "printf 'span=%s' \"$TRACEPARENT\"";

/// The name by which a request offers a tool.
fn offered(body: &Value, part: &str) -> Option<String> {
    match body {
        Value::Object(fields) => {
            let name = fields.get("name").and_then(Value::as_str).filter(|n| n.contains(part));
            name.map(str::to_owned).or_else(|| fields.values().find_map(|v| offered(v, part)))
        }
        Value::Array(all) => all.iter().find_map(|value| offered(value, part)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Calls one tool after the other, and then answers.
fn turns(request: &Received) -> Answer {
    let text = request.body.to_string();
    let call = |id: &str, tool: &str, args: &Value| {
        let name = offered(&request.body["tools"], tool).unwrap_or_else(|| panic!("{text}"));
        Answer::say(Say::nothing().call(id, &name, args).usage(10, 2))
    };
    match ["call-1", "call-2", "call-3"].iter().filter(|id| text.contains(**id)).count() {
        0 => call("call-1", "run_shell", &json!({"command": SHOW})),
        1 => call("call-2", "meta", &json!({})),
        2 => {
            let task = format!("shell:{SHOW}");
            call("call-3", "spawn_agent", &json!({"agent": "child", "task": task}))
        }
        _ => Answer::say(Say::text("It is done.").usage(10, 2)),
    }
}

fn permit(gateway: &Gateway) {
    for verb in ["spawn", "model"] {
        gateway.home.run(&["acl", "allow", "default", verb, "*"]).ok();
    }
}

fn add_server(gateway: &Gateway) {
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let python = String::from_utf8(found.unwrap().stdout).unwrap();
    let script = gateway.home.path().join("server.py");
    std::fs::write(&script, SERVER).unwrap();
    let config = json!({"id": "tele", "transport": {
        "kind": "stdio", "command": python.trim(), "args": [script], "sandbox": "none"}});
    let file = gateway.home.path().join("tele.json");
    std::fs::write(&file, config.to_string()).unwrap();
    gateway.home.run(&["mcp", "add", "--file", file.to_str().unwrap()]).ok();
}

/// The result of the run's tool call, once it exists. A person who is asked answers yes.
fn result(gateway: &Gateway, run: &str, tool: &str) -> Value {
    until(tool, || {
        if gateway.home.fetch(run)["status"] == "awaiting_approval" {
            gateway.home.run(&["approve", run]);
        }
        let all = gateway.home.run(&["events", run, "--limit", "1000", "-o", "json"]).ok().json();
        let mut called = all.as_array().unwrap().iter().filter(|e| e["type"] == "tool.called");
        let found = called.find(|event| event["payload_json"]["tool_name"] == tool)?;
        Some(found["payload_json"]["result"].clone())
    })
}

/// `00-TRACE-SPAN-01` of a span that the collector got.
fn header(span: &Value) -> String {
    format!("00-{}-{}-01", span["trace"].as_str().unwrap(), span["span"].as_str().unwrap())
}

fn of_run(collector: &Collector, run: &str, name: &str) -> Value {
    until(name, || {
        let mut all = collector.spans().into_iter().filter(|span| span["name"] == name);
        all.find(|span| span["attrs"]["gen_ai.conversation.id"] == run)
    })
}

#[test]
fn needs_python_otlp_processes_of_tools_get_the_span_of_their_call() {
    let Some(collector) = Collector::start("") else { return };
    let gateway = Gateway::with(Script::by(turns), &vars(&collector.url), "");
    permit(&gateway);
    add_server(&gateway);
    gateway.home.agent("child", &[]);
    let create = ["agent", "create", "--name", "worker", "--model", "m-1"];
    let rest = ["--tools", "run_shell,mcp.tele.meta,spawn_agent", "-o", "name"];
    let worker = gateway.home.run(&[&create[..], &rest[..]].concat()).ok().line().to_owned();
    let run = started(&gateway, &worker, "look", Some(PARENT));

    let shell = result(&gateway, &run, "run_shell");
    let meta = result(&gateway, &run, "mcp.tele.meta");
    let spawned = result(&gateway, &run, "spawn_agent");
    gateway.home.wait_for(&run, "succeeded");
    let whole = of_run(&collector, &run, "invoke_agent worker");
    assert_eq!((&whole["trace"], &whole["parent"]), (&json!(TRACE), &json!(SPAN)));
    let call = |tool: &str| {
        let span = of_run(&collector, &run, &format!("execute_tool {tool}"));
        assert_eq!((&span["trace"], &span["parent"]), (&whole["trace"], &whole["span"]), "{tool}");
        span
    };
    // A command in a sandbox.
    assert_eq!(shell["stdout"], format!("span={}", header(&call("run_shell"))), "{shell}");
    // A server of tools.
    let text = meta["mcp"]["result"]["content"][0]["text"].as_str().unwrap_or_default();
    let meta: Value = serde_json::from_str(text).unwrap_or_else(|err| panic!("{err}: {meta}"));
    assert_eq!(meta["traceparent"], header(&call("mcp.tele.meta")));
    // A run, and the processes that it starts.
    let child = spawned["run_id"].as_str().unwrap_or_else(|| panic!("{spawned}"));
    let below = result(&gateway, child, "run_shell");
    gateway.home.wait_for(child, "succeeded");
    let told = of_run(&collector, child, "invoke_agent child");
    let spawn = call("spawn_agent");
    assert_eq!((&told["trace"], &told["parent"]), (&json!(TRACE), &spawn["span"]));
    let inner = of_run(&collector, child, "execute_tool run_shell");
    assert_eq!((&inner["trace"], &inner["parent"]), (&json!(TRACE), &told["span"]));
    assert_eq!(below["stdout"], format!("span={}", header(&inner)), "{below}");
}

#[test]
fn needs_python_otlp_spans_of_a_command_are_children_of_its_run_or_its_parent() {
    let Some(collector) = Collector::start("") else { return };
    let script = Script::always(Say::text("hello").usage(10, 2));
    let gateway = Gateway::with(script, &vars(&collector.url), "");
    permit(&gateway);
    gateway.home.agent("child", &[]);
    let key = gateway.home.run(&["key", "create", "ops", "--role", "operator", "-o", "name"]);
    // In a file, because a key in a command line is masked.
    let file = gateway.home.path().join("ops.key");
    std::fs::write(&file, key.ok().line()).unwrap();
    let (environ, token) =
        (gateway.home.work().join("environ"), gateway.home.work().join("one.token"));
    let script = format!(
        "printf %s \"$OVERMIND_TOKEN\" > {token}; \
         OVERMIND_TOKEN=$(cat {key}) {program} run --name below --sandbox namespace true || exit 1; \
         printf %s \"$TRACEPARENT\" > {environ}; exec sleep 1000",
        token = token.display(),
        environ = environ.display(),
        program = program(),
        key = file.display(),
    );
    gateway.home.run(&["run", "--name", "one", &script]).ok();
    let read = |file: &std::path::Path| {
        until("what it says", || std::fs::read_to_string(file).ok().filter(|text| !text.is_empty()))
    };
    let (here, token) = (read(&environ), read(&token));
    let parts: Vec<&str> = here.split('-').collect();
    let (trace, span) = (json!(parts[1]), json!(parts[2]));

    // A run that it started by the program itself, with a key.
    let below = until("the run below", || {
        let mut all = collector.spans().into_iter();
        all.find(|span| span["attrs"]["overmind.run.name"] == "below")
    });
    assert_eq!((&below["trace"], &below["parent"]), (&trace, &span));

    // A model call that it passes through here, in its span.
    let request = gateway.post("anthropic/v1/messages", &messages("hi"));
    let request = with_token(request.header("traceparent", &here), &token);
    assert_eq!(gateway.send(request).status, 200);
    let chat = collector.span("chat small-1");
    assert_eq!((&chat["trace"], &chat["parent"]), (&trace, &span));
    assert_eq!(parent_of(&gateway.last()), header(&chat));

    // A tool call through its MCP endpoint in a separate trace, and the run that this starts.
    let arguments = json!({"agent": "child", "task": "shell:true"});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "spawn_agent", "arguments": arguments, "_meta": {"traceparent": PARENT}}});
    let done = until("it may", || {
        let got = gateway.send(with_token(gateway.api("/mcp").json(&call), &token));
        let said: Value = serde_json::from_str(&got.body).unwrap();
        (said["result"]["isError"] != true).then_some(said)
    });
    let child = done["result"]["structuredContent"]["run_id"].as_str();
    let child = child.unwrap_or_else(|| panic!("{done}"));
    gateway.home.wait_for(child, "succeeded");
    let told = of_run(&collector, child, "invoke_agent child");
    let spawn = until("the call that was allowed", || {
        let mut all = collector.spans().into_iter();
        all.find(|one| one["name"] == "execute_tool spawn_agent" && one["span"] == told["parent"])
    });
    assert_eq!((&told["trace"], &told["parent"]), (&json!(TRACE), &spawn["span"]));
    assert_eq!((&spawn["trace"], &spawn["parent"]), (&json!(TRACE), &json!(SPAN)));
    let one = gateway.home.run(&["ps", "--all", "-o", "json"]).ok().json();
    let one = one.as_array().unwrap().iter().find(|run| run["name"] == "one").unwrap().clone();
    gateway.home.run(&["kill", "one"]).ok();
    let whole = until("its own span", || {
        let mut all = collector.spans().into_iter();
        all.find(|span| {
            span["attrs"]["gen_ai.conversation.id"] == one["id"]
                && span["attrs"]["gen_ai.operation.name"] == "invoke_agent"
        })
    });
    assert_eq!(header(&whole), here, "what its program was told is the span of its run");
}

/// One answer in each API, whole and streamed, and failures.
fn answers() -> Script {
    let hello = || Say::text("hello there").usage(100, 7).usage_details(60, 0, 0);
    let call = hello().call("call-1", "get", &json!({"a": 1}));
    Script::new([
        Answer::say(hello()),
        Answer::say(call),
        Answer::say(hello().stop(overmind_core::model::StopReason::MaxTokens)),
        Answer::status(429, "rate_limit_error", "slow down, friend"),
        Answer::say(hello()).error_after(2, "overloaded_error", "too busy, friend"),
    ])
}

fn chats(collector: &Collector, count: usize) -> Vec<Value> {
    until("all of them", || {
        let mut all = collector.spans();
        all.retain(|span| span["name"] == "chat small-1");
        (all.len() >= count).then_some(all)
    })
}

fn ask_all(gateway: &Gateway, token: &str) {
    let body = |more: Value| {
        let mut body = messages("the question");
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (path, body, status) in [
        ("openai/v1/chat/completions", body(json!({"stream": true})), 200),
        ("anthropic/v1/messages", body(json!({"stream": true, "system": "be brief"})), 200),
        ("openai/v1/responses", json!({"model": "small-1", "input": "the question"}), 200),
        ("openai/v1/chat/completions", body(json!({})), 429),
        ("anthropic/v1/messages", body(json!({"stream": true})), 200),
    ] {
        let got = gateway.send(with_token(gateway.post(path, &body), token));
        assert_eq!(got.status, status, "{path}: {}", got.body);
    }
}

#[test]
fn needs_python_otlp_gateway_spans_have_finish_reasons_and_no_content() {
    let Some(collector) = Collector::start("") else { return };
    let gateway = Gateway::with(answers(), &vars(&collector.url), "");
    let (id, token) = gateway.session("one");
    ask_all(&gateway, &token);
    let spans = chats(&collector, 5);
    let attr = |n: usize, name: &str| spans[n]["attrs"][name].clone();
    let reasons: Vec<Value> = (0..5).map(|n| attr(n, "gen_ai.response.finish_reasons")).collect();
    let wanted = [json!(["stop"]), json!(["tool_call"]), json!(["length"]), json!(null)];
    assert_eq!(reasons[..4], wanted);
    for (n, id) in ["chatcmpl-1", "msg_1", "resp_1"].iter().enumerate() {
        assert_eq!(attr(n, "gen_ai.response.id"), *id);
        assert_eq!(attr(n, "gen_ai.usage.cache_read.input_tokens"), 60);
        assert_eq!(attr(n, "error.type"), json!(null));
    }
    assert_eq!(attr(3, "error.type"), "rate_limit_error");
    assert_eq!(spans[3]["status"], json!([2, "rate_limit_error"]));
    assert_eq!(attr(4, "error.type"), "overloaded_error", "in the middle of an answer");
    let text = serde_json::to_string(&collector.told()).unwrap();
    for said in ["the question", "hello there", "be brief", "friend"] {
        assert!(!text.contains(said), "{said}: {text}");
    }
    // The run's list of calls contains the same, with the error messages.
    let calls = until("all calls are listed", || {
        let listed = gateway.send(gateway.get(&format!("/api/runs/{id}/model-calls")));
        let listed: Value = serde_json::from_str(&listed.body).unwrap();
        listed.as_array().filter(|all| all.len() == 5).cloned()
    });
    let reason = |n: usize| calls[n]["response_json"]["finish_reasons"].clone();
    assert_eq!((0..4).map(reason).collect::<Vec<_>>(), wanted);
    assert_eq!(calls[0]["response_json"]["response_id"], "chatcmpl-1", "{}", calls[0]);
    let error = calls[3].to_string();
    assert!(error.contains("rate_limit_error") && error.contains("slow down, friend"), "{error}");
    gateway.home.run(&["kill", "one"]).ok();
}

#[test]
fn needs_python_otlp_content_is_exported_only_where_it_is_enabled() {
    let Some(collector) = Collector::start("") else { return };
    let mut vars = vars(&collector.url);
    vars.push(("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true"));
    let gateway = Gateway::with(answers(), &vars, "[models]\ngateway_capture_bytes = 65536\n");
    let (_, token) = gateway.session("one");
    ask_all(&gateway, &token);
    let spans = chats(&collector, 5);
    let json = |n: usize, name: &str| -> Value {
        let text = spans[n]["attrs"][name].as_str().unwrap_or_else(|| panic!("{}", spans[n]));
        serde_json::from_str(text).unwrap_or_else(|err| panic!("{err}: {text}"))
    };
    let asked = json!([{"role": "user", "parts": [{"type": "text", "content": "the question"}]}]);
    let text = json!({"type": "text", "content": "hello there"});
    for n in 0..5 {
        assert_eq!(json(n, "gen_ai.input.messages"), asked, "{n}");
    }
    let brief = json!([{"type": "text", "content": "be brief"}]);
    assert_eq!(json(1, "gen_ai.system_instructions"), brief);
    let answer = |parts: Value, finish: &str| json!([{"role": "assistant", "parts": parts, "finish_reason": finish}]);
    let call = json!({"type": "tool_call", "id": "call-1", "name": "get", "arguments": {"a": 1}});
    let output = "gen_ai.output.messages";
    assert_eq!(json(0, output), answer(json!([text]), "stop"));
    assert_eq!(json(1, output), answer(json!([text, call]), "tool_call"));
    assert_eq!(json(2, output), answer(json!([text]), "length"));
    assert_eq!(spans[3]["attrs"][output], json!(null));
    assert_eq!(spans[3]["status"], json!([2, "slow down, friend"]));
    assert_eq!(spans[4]["status"], json!([2, "too busy, friend"]));
    gateway.home.run(&["kill", "one"]).ok();
}
