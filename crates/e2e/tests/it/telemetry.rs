//! The export to an OpenTelemetry collector, read with OpenTelemetry's own messages.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use overmind_testkit::real::counterpart;
use overmind_testkit::upstream::{Answer, Received, Say, Script};
use serde_json::{Value, json};

use crate::gateway::{Gateway, chat, messages};
use crate::home::{Home, until};

pub(crate) const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
pub(crate) const SPAN: &str = "00f067aa0ba902b7";

/// [`otlp.py`](otlp.py) at work, and what it was sent.
pub(crate) struct Collector {
    process: Child,
    pub(crate) url: String,
    told: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    /// `answers` as that file explains; `None` where its package is not there.
    pub(crate) fn start(answers: &str) -> Option<Self> {
        let packages = counterpart("PYTHON_OTLP")?;
        let mut process = Command::new("python3")
            .args(["-c", include_str!("otlp.py"), answers])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("PYTHONPATH", packages)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap();
        let told = Arc::<Mutex<Vec<Value>>>::default();
        let heard = Arc::clone(&told);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Some(Self { process, url: format!("http://127.0.0.1:{port}"), told })
    }

    pub(crate) fn told(&self) -> Vec<Value> {
        let told = self.told.lock().unwrap().clone();
        let broken = told.iter().find(|one| one.get("broken").is_some());
        assert!(broken.is_none(), "{broken:?}");
        told
    }

    /// Spans of accepted requests.
    pub(crate) fn spans(&self) -> Vec<Value> {
        let told = self.told();
        let taken = told.iter().filter(|one| one["answer"] == "200");
        taken.filter_map(|one| one["spans"].as_array()).flatten().cloned().collect()
    }

    pub(crate) fn span(&self, name: &str) -> Value {
        until("the span is told", || self.spans().into_iter().find(|span| span["name"] == name))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Calls a tool first, and then answers.
fn agent(request: &Received) -> Answer {
    let text = request.body.to_string();
    match text.contains("tool_call") {
        false => Answer::say(
            Say::nothing().call("c1", "list_files", &json!({"path": "."})).usage(100, 7),
        ),
        true => Answer::say(Say::text("It is done.").usage(200, 9)),
    }
}

pub(crate) fn vars(collector: &str) -> Vec<(&str, &str)> {
    vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=one%20two,authorization=Bearer%20otlp-key-4711"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=other"),
        ("OTEL_SERVICE_NAME", "mine"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "200"),
    ]
}

pub(crate) fn started(gateway: &Gateway, agent: &str, task: &str, parent: Option<&str>) -> String {
    let body = json!({"agent_id": agent, "task": task});
    let mut request = gateway.api("/api/runs").json(&body);
    if let Some(parent) = parent {
        request = request.header("traceparent", parent);
    }
    let got = gateway.send(request);
    assert!((200..300).contains(&got.status), "{}", got.body);
    let made: Value = serde_json::from_str(&got.body).unwrap();
    made["id"].as_str().unwrap().to_owned()
}

/// An agent whose model requests files; its id.
fn worker(gateway: &Gateway) -> String {
    let create = ["agent", "create", "--name", "worker", "--model", "m-1"];
    let rest = ["--tools", "list_files", "-o", "name"];
    gateway.home.run(&[&create[..], &rest[..]].concat()).ok().line().to_owned()
}

#[test]
fn needs_python_otlp_a_session_is_one_trace_under_its_caller() {
    let Some(collector) = Collector::start("") else { return };
    let gateway = Gateway::with(Script::by(agent), &vars(&collector.url), "");
    let worker = worker(&gateway);
    let id = started(&gateway, &worker, "the secret task", Some(PARENT));
    gateway.home.run(&["wait", &id]).ok();
    let whole = collector.span("invoke_agent worker");
    assert_eq!((&whole["trace"], &whole["parent"]), (&json!(TRACE), &json!(SPAN)));
    assert_eq!(whole["attrs"]["gen_ai.conversation.id"], json!(id));
    assert_eq!(whole["attrs"]["gen_ai.usage.input_tokens"], 300);
    assert_eq!(whole["resource"]["service.name"], "mine");
    assert_eq!(whole["resource"]["deployment.environment.name"], "test");
    let tool = collector.span("execute_tool list_files");
    let chats: Vec<Value> =
        collector.spans().into_iter().filter(|span| span["name"] == "chat m-1").collect();
    assert_eq!(chats.len(), 2, "{chats:?}");
    for inner in chats.iter().chain([&tool]) {
        assert_eq!((&inner["trace"], &inner["parent"]), (&whole["trace"], &whole["span"]));
        assert_eq!(inner["attrs"]["gen_ai.agent.name"], "worker");
    }
    let first = &chats[0]["attrs"];
    assert_eq!(chats[0]["kind"], 3);
    assert_eq!(first["gen_ai.operation.name"], "chat");
    assert_eq!(first["gen_ai.response.finish_reasons"], json!(["tool_call"]));
    assert_eq!(
        (&first["gen_ai.usage.input_tokens"], &first["gen_ai.usage.output_tokens"]),
        (&json!(100), &json!(7))
    );
    assert_eq!(first["server.address"], "127.0.0.1");
    // The provider gets the ids of these spans.
    let sent: Vec<String> = gateway.upstream.requests().iter().map(parent_of).collect();
    let wanted: Vec<String> = chats
        .iter()
        .map(|chat| format!("00-{TRACE}-{}-01", chat["span"].as_str().unwrap()))
        .collect();
    assert_eq!(sent, wanted);
    let all = collector.told();
    assert_eq!(all[0]["headers"]["x-tenant"], "one two");
    let text = serde_json::to_string(&collector.spans()).unwrap();
    assert!(!text.contains("secret task") && !text.contains("It is done"), "{text}");
    // They are exported repeatedly, also between the two calls.
    let is_input = |point: &&Value| point["attrs"]["gen_ai.token.type"] == "input";
    let points = until("the metrics of both calls are told", || {
        let told = collector.told();
        let all: Vec<Value> = told.iter().rev().find_map(|one| one["points"].as_array())?.clone();
        all.iter().find(is_input).is_some_and(|input| input["count"] == 2).then_some(all)
    });
    let input = points.iter().find(is_input).unwrap();
    assert_eq!(input["name"], "gen_ai.client.token.usage");
    assert_eq!(input["sum"], json!(300.0));
    assert!(points.iter().any(|point| point["name"] == "gen_ai.client.operation.duration"));
    assert!(!gateway.home.log().contains("otlp-key-4711"));
}

/// The span that a provider was given for the call.
pub(crate) fn parent_of(request: &Received) -> String {
    request.headers.get("traceparent").cloned().unwrap_or_default()
}

#[test]
fn needs_python_otlp_a_gateway_call_is_a_child_of_its_caller_or_session() {
    let Some(collector) = Collector::start("") else { return };
    let script = Script::always(Say::text("hello").usage(10, 2));
    let gateway = Gateway::with(script, &vars(&collector.url), "");
    let (id, token) = gateway.session("one");
    let post = |path: &str, body: &Value| gateway.post(path, body);
    let request = post("anthropic/v1/messages", &messages("hi"))
        .bearer_auth(&token)
        .header("x-claude-code-session-id", "0f-claude-1");
    assert_eq!(gateway.send(with_token(request, &token)).status, 200);
    let plain = collector.span("chat small-1");
    assert_eq!(plain["attrs"]["gen_ai.conversation.id"], json!(id));
    assert_eq!(plain["attrs"]["overmind.client.session"], "0f-claude-1");
    let sent = parent_of(&gateway.last());
    assert_eq!(
        sent,
        format!("00-{}-{}-01", plain["trace"].as_str().unwrap(), plain["span"].as_str().unwrap())
    );
    // The session's own trace, which its command gets.
    let environ = gateway.home.work().join("environ");
    let script = format!("printf %s \"$TRACEPARENT\" > {}; exec sleep 1000", environ.display());
    gateway.home.run(&["run", "--name", "two", &script]).ok();
    let told = until("its variable", || {
        std::fs::read_to_string(&environ).ok().filter(|text| !text.is_empty())
    });
    assert_eq!(told.len(), PARENT.len(), "{told}");
    // A caller's own trace has precedence over the session's.
    let request = post("openai/v1/chat/completions", &chat("hi")).header("traceparent", PARENT);
    assert_eq!(gateway.send(request).status, 200);
    let under = until("the span under its caller", || {
        collector.spans().into_iter().find(|span| span["trace"] == TRACE)
    });
    assert_eq!(under["parent"], SPAN);
    assert_eq!(under["attrs"]["overmind.caller"], "admin");
    // Both kinds of calls are listed once, with the program's own session id.
    gateway.settled("one");
    let listed = gateway.send(gateway.get(&format!("/api/runs/{id}/model-calls")));
    let listed: Value = serde_json::from_str(&listed.body).unwrap();
    let calls = listed.as_array().unwrap();
    assert_eq!(calls.len(), 1, "{listed}");
    assert_eq!(calls[0]["via"], "gateway");
    assert_eq!(calls[0]["client_session"], "0f-claude-1");
    assert_eq!(calls[0]["usage_json"]["output_tokens"], 2);
    for name in ["one", "two"] {
        gateway.home.run(&["kill", name]).ok();
    }
}

pub(crate) fn with_token(request: reqwest::RequestBuilder, token: &str) -> reqwest::RequestBuilder {
    let (client, request) = request.build_split();
    let mut request = request.unwrap();
    let value = format!("Bearer {token}").parse().unwrap();
    request.headers_mut().insert("authorization", value);
    reqwest::RequestBuilder::from_parts(client, request)
}

fn count(gateway: &Gateway, name: &str) -> u64 {
    let text = gateway.send(gateway.get("/metrics")).body;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("overmind_{name}_total ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
}

#[test]
fn needs_python_otlp_a_busy_collector_is_retried_after_its_delay() {
    let Some(collector) = Collector::start("429:1,503") else { return };
    let script = Script::always(Say::text("hello").usage(10, 2));
    let mut vars = vars(&collector.url);
    // No figures in between: the answers are for the spans.
    vars.retain(|(name, _)| *name != "OTEL_METRIC_EXPORT_INTERVAL");
    let gateway = Gateway::with(script, &vars, "");
    assert_eq!(gateway.send(gateway.post("openai/v1/chat/completions", &chat("hi"))).status, 200);
    let span = collector.span("chat small-1");
    let told = collector.told();
    let ids: Vec<&Value> = told.iter().map(|one| &one["spans"][0]["span"]).collect();
    assert_eq!(ids, [&span["span"]; 3], "the same three times: {told:?}");
    let at = |n: usize| told[n]["at"].as_f64().unwrap();
    assert!(at(1) - at(0) >= 0.95, "it waited as long as it was told to");
    until("it is counted", || (count(&gateway, "otlp_spans_sent") == 1).then_some(()));
    assert_eq!((count(&gateway, "otlp_spans_dropped"), count(&gateway, "otlp_failures")), (0, 2));
}

#[test]
fn needs_python_otlp_refused_spans_are_dropped_and_counted() {
    let Some(collector) = Collector::start("400") else { return };
    let script = Script::always(Say::text("hello").usage(10, 2));
    let gateway = Gateway::with(script, &vars(&collector.url), "");
    let ask = || gateway.send(gateway.post("openai/v1/chat/completions", &chat("hi"))).status;
    assert_eq!(ask(), 200);
    until("it is dropped", || (count(&gateway, "otlp_spans_dropped") == 1).then_some(()));
    assert_eq!(ask(), 200);
    collector.span("chat small-1");
}

#[test]
fn needs_python_otlp_a_stopping_server_exports_the_rest() {
    let Some(collector) = Collector::start("") else { return };
    let script = Script::always(Say::text("hello").usage(10, 2));
    let mut vars = vars(&collector.url);
    vars.retain(|(name, _)| {
        !matches!(*name, "OTEL_BSP_SCHEDULE_DELAY" | "OTEL_METRIC_EXPORT_INTERVAL")
    });
    vars.push(("OTEL_BSP_SCHEDULE_DELAY", "600000"));
    let mut gateway = Gateway::with(script, &vars, "");
    assert_eq!(gateway.send(gateway.post("openai/v1/chat/completions", &chat("hi"))).status, 200);
    gateway.home.run(&["down"]).ok();
    gateway.home.ended();
    let told = collector.told();
    assert_eq!(collector.spans().len(), 1, "{told:?}");
    assert!(told.iter().any(|one| one.get("points").is_some()), "{told:?}");
}

#[test]
fn a_missing_or_silent_collector_delays_nothing() {
    // Takes connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let script = Script::always(Say::text("hello").usage(10, 2));
    let mut gateway = Gateway::with(script, &vars(&url), "");
    for _ in 0..20 {
        let asked = gateway.send(gateway.post("openai/v1/chat/completions", &chat("hi")));
        assert_eq!(asked.status, 200);
    }
    assert_eq!(count(&gateway, "otlp_spans_sent"), 0);
    gateway.home.run(&["down"]).ok();
    gateway.home.ended();
    assert!(gateway.home.log().contains("spans were dropped"), "{}", gateway.home.log());
}

#[test]
fn an_invalid_telemetry_setting_is_refused_at_the_start_without_its_secret() {
    let home = Home::new();
    for (var, value, says) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "telemetry.otlp"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "otlp-key-4711", "telemetry.headers"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=%zz", "telemetry.resource"),
    ] {
        let mut env = vec![("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")];
        env.retain(|(name, _)| *name != var);
        env.push((var, value));
        let done = home.run_env(&env, &["up", "--listen", "none"]);
        assert_ne!(done.code, 0);
        done.says(says);
        assert!(!done.err.contains("otlp-key-4711"), "{}", done.err);
    }
}

#[test]
fn needs_promtool_the_metrics_of_a_busy_server_are_valid() {
    use std::io::Write as _;
    let Some(promtool) = counterpart("PROMTOOL") else { return };
    let script = Script::by(agent);
    let gateway =
        Gateway::with(script, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")], "");
    let worker = worker(&gateway);
    let id = started(&gateway, &worker, "busy", None);
    gateway.home.run(&["wait", &id]).ok();
    // No label contains text of callers.
    for n in 0..50 {
        let mut body = chat("hi");
        body["model"] = format!("model-of-a-caller-{n}").into();
        gateway.send(gateway.post("openai/v1/chat/completions", &body));
        gateway.send(gateway.get(&format!("/api/runs/{id}/events?limit=1&x{n}=1")));
        gateway.send(gateway.get(&format!("/nowhere/{n}")));
    }
    let figures = gateway.send(gateway.get("/metrics"));
    assert!(figures.header("content-type").starts_with("text/plain"));
    let mut check = Command::new(promtool)
        .args(["check", "metrics"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(figures.body.as_bytes()).unwrap();
    let done = check.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && said.is_empty(), "{said}");
    for (name, text) in
        [("a run", id.as_str()), ("a model", "model-of-a-caller"), ("a path", "nowhere/")]
    {
        assert!(!figures.body.contains(text), "{name} is in a label: {}", figures.body);
    }
    let open =
        gateway.send(gateway.get("/metrics").header("accept", "application/openmetrics-text"));
    assert!(open.body.ends_with("# EOF\n"), "{}", open.body);
}
