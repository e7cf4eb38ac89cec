//! Calls that are passed on while their token ends: of models, and of services.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use overmind_testkit::upstream::{Answer, Say, Script, Upstream};
use reqwest::Response;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::commands::Commands;
use crate::gateway::{Gateway, chat, messages};
use crate::home::{Home, until};

/// Longest that any one answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The path and the fields of a stream's error.
const APIS: [(&str, &str, &str); 3] = [
    ("openai/v1/chat/completions", "/error/code", "invalid_api_key"),
    ("openai/v1/responses", "/code", "invalid_api_key"),
    ("anthropic/v1/messages", "/error/type", "authentication_error"),
];

fn body(path: &str, stream: bool) -> Value {
    let mut body = match path.rsplit('/').next() {
        Some("messages") => messages("hi"),
        Some("responses") => json!({"model": "small-1", "input": "hi"}),
        _ => chat("hi"),
    };
    body["stream"] = stream.into();
    body
}

impl Gateway {
    fn key(&self, name: &str) -> String {
        let made = self.home.run(&["key", "create", name, "--role", "operator", "-o", "name"]);
        made.ok().line().to_owned()
    }

    /// Begins a call with a token; its head.
    async fn begin(&self, token: &str, path: &str, stream: bool) -> Response {
        let request = self.client.post(format!("{}/llm/{path}", self.url));
        request.bearer_auth(token).json(&body(path, stream)).send().await.unwrap()
    }

    fn revoke(&self, name: &str) {
        self.home.run(&["key", "revoke", name]).ok();
    }

    /// A call that is refused: status and body.
    fn refused(&self, token: &str, path: &str, body: &Value) -> (u16, Value) {
        let request = self.client.post(format!("{}/llm/{path}", self.url));
        let asking = async {
            let response = request.bearer_auth(token).json(body).send().await.unwrap();
            (response.status().as_u16(), response.json::<Value>().await.unwrap())
        };
        let asking = async { tokio::time::timeout(PATIENCE, asking).await };
        self.runtime.block_on(asking).expect("it ends")
    }

    /// Waits until no connection to the provider is open.
    fn left(&self) {
        let idle = async { tokio::time::timeout(PATIENCE, self.upstream.idle()).await };
        self.runtime.block_on(idle).expect("no connection stays");
    }

    /// The tokens that the one limit has reserved.
    fn reserved(&self) -> u64 {
        let all = self.home.run(&["budget", "list", "-o", "json"]).ok().json();
        all[0]["reserved"]["tokens"].as_u64().unwrap()
    }

    /// All ends of calls in the log, by call.
    fn ends(&self) -> BTreeMap<String, Vec<Value>> {
        let answer = self.send(self.get("/api/events?limit=1000"));
        let all: Value = serde_json::from_str(&answer.body).unwrap();
        let all = all.as_array().unwrap_or_else(|| panic!("{all}"));
        assert!(all.len() < 1000, "one page holds them");
        let mut ends: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for event in all {
            let kind = event["type"].as_str().unwrap();
            if matches!(kind, "budget.settled" | "budget.released") {
                let call = event["payload_json"]["call_id"].as_str().unwrap().to_owned();
                ends.entry(call).or_default().push(event.clone());
            }
        }
        ends
    }

    /// The end of the only call so far that matches `fits`.
    fn end(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        until(what, || {
            let ends = self.ends();
            ends.into_values().flatten().find(|event| fits(&event["payload_json"]))
        })
    }
}

/// The part of a stream until `what` was in it.
async fn heard(response: &mut Response, what: &str) -> String {
    let mut all = String::new();
    while !all.contains(what) {
        let piece = response.chunk().await.unwrap().expect("the stream goes on");
        all.push_str(std::str::from_utf8(&piece).unwrap());
    }
    all
}

/// The rest of the stream, and whether it ended normally.
async fn rest(mut response: Response) -> (String, bool) {
    let mut all = Vec::new();
    let whole = loop {
        match response.chunk().await {
            Ok(Some(piece)) => all.extend_from_slice(&piece),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    (String::from_utf8(all).unwrap(), whole)
}

/// The last event of a stream, whose data is JSON.
fn last(text: &str) -> Value {
    let data = text.trim_end().rsplit_once("data: ").unwrap_or_else(|| panic!("{text:?}")).1;
    serde_json::from_str(data).unwrap_or_else(|err| panic!("{err}: {text:?}"))
}

#[test]
fn a_stream_ends_with_its_key_with_an_api_error_and_is_settled_by_its_usage() {
    let say = Say::text("one two three four five six").usage(10, 6);
    let gateway = Gateway::new(Script::always(Answer::say(say).stall_after(5)));
    for (n, (path, place, code)) in APIS.into_iter().enumerate() {
        let name = format!("asks-{n}");
        let key = gateway.key(&name);
        let other = gateway.key(&format!("other-{n}"));
        let (stream, others) = gateway.runtime.block_on(async {
            let mut stream = gateway.begin(&key, path, true).await;
            assert_eq!(stream.status(), 200);
            heard(&mut stream, "one").await;
            (stream, gateway.begin(&other, path, true).await)
        });
        gateway.revoke(&name);
        let rest = async { tokio::time::timeout(PATIENCE, rest(stream)).await };
        let (text, whole) = gateway.runtime.block_on(rest).expect("it ends");
        drop(others);
        let error = last(&text);
        assert_eq!(error.pointer(place), Some(&json!(code)), "{path}: {text}");
        assert!(text.contains("no longer valid") && whole, "{path}: {text}");
        // The connection to one provider is closed; the other one closed on its own.
        gateway.left();
        let told = gateway.end("the call's end", |end| end["caller"] == name.as_str());
        let told = &told["payload_json"];
        assert_eq!(
            (&told["ended"], &told["error"]["type"]),
            (&json!("cut"), &json!("unauthenticated"))
        );
        assert!(told["usage"]["input_tokens"].as_u64().unwrap() >= 10, "{told}");
        let output = told["usage"]["output_tokens"].as_u64().unwrap();
        assert!((1..100).contains(&output), "by what was streamed: {told}");
        let told = gateway.end("the other's end", |end| end["caller"] == format!("other-{n}"));
        assert_eq!(told["payload_json"]["ended"], "cancelled", "it left by itself: {told}");
    }
    for (call, ends) in gateway.ends() {
        assert_eq!(ends.len(), 1, "{call}: {ends:?}");
    }
}

#[test]
fn an_unanswered_call_of_a_revoked_key_is_refused_and_counts_in_full() {
    let gateway = Gateway::new(Script::always(Answer::hang()));
    for (n, (path, place, code)) in APIS.into_iter().enumerate() {
        let name = format!("asks-{n}");
        let key = gateway.key(&name);
        let asked = gateway.upstream.requests().len();
        let (status, error) = std::thread::scope(|scope| {
            let call = scope.spawn(|| gateway.refused(&key, path, &body(path, n == 0)));
            until("it is asked", || (gateway.upstream.requests().len() > asked).then_some(()));
            gateway.revoke(&name);
            call.join().unwrap()
        });
        gateway.left();
        // Only the error of a Responses stream is sent alone.
        let place = if place == "/code" { "/error/code" } else { place };
        assert_eq!((status, error.pointer(place)), (401, Some(&json!(code))), "{path}: {error}");
        let told = gateway.end("the call's end", |end| end["caller"] == name.as_str());
        assert_eq!(told["type"], "budget.settled", "it was sent: {told}");
        let told = &told["payload_json"];
        let why = (&told["ended"], &told["error"]["type"]);
        assert_eq!(why, (&json!("cut"), &json!("unauthenticated")), "{told}");
        assert_eq!(told["spent"], told["reserved"], "nobody knows what it will be billed: {told}");
    }
}

#[test]
fn a_call_waiting_for_its_provider_is_refused_and_costs_nothing() {
    let runtime = Runtime::new().unwrap();
    let narrow = runtime.block_on(Upstream::start(Script::by(|_| Answer::hang())));
    let base = narrow.base_url();
    let config = format!("[providers.narrow]\nbase_url = \"{base}/v1\"\nmax_concurrent = 1\n");
    let gateway = Gateway::with(Script::default(), &[], &config);
    // With a limit, each reservation is on disk before its call continues.
    gateway.home.run(&["budget", "set", "swarm", "--tokens", "100000000", "--per", "total"]).ok();
    let (path, place, code) = APIS[0];
    let mut body = chat("hi");
    body["model"] = "narrow:small-1".into();
    let (first, second) = (gateway.key("first"), gateway.key("second"));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| gateway.refused(&first, path, &body));
        until("it is asked", || (!narrow.requests().is_empty()).then_some(()));
        let second = scope.spawn(|| gateway.refused(&second, path, &body));
        until("both are reserved for", || (gateway.reserved() > 2 * 128_000).then_some(()));
        gateway.revoke("second");
        let (status, error) = second.join().unwrap();
        assert_eq!((status, error.pointer(place)), (401, Some(&json!(code))), "{error}");
        gateway.revoke("first");
        assert_eq!(first.join().unwrap().0, 401);
    });
    assert_eq!(narrow.requests().len(), 1, "the second was never sent");
    let told = gateway.end("the second's end", |end| end["caller"] == "second");
    assert_eq!(
        (&told["type"], &told["payload_json"]["status"]),
        (&json!("budget.released"), &json!(401))
    );
    let told = gateway.end("the first's end", |end| end["caller"] == "first");
    assert_eq!(told["type"], "budget.settled", "{told}");
    until("nothing stays reserved", || (gateway.reserved() == 0).then_some(()));
}

#[test]
fn the_end_of_a_session_ends_only_its_own_calls() {
    let say = Say::text("one two three four five six").usage(10, 6);
    let gateway = Gateway::new(Script::always(Answer::say(say).stall_after(5)));
    let (path, place, code) = APIS[2];
    let (_, token) = gateway.session("ends");
    let (_, other) = gateway.session("goes-on");
    let (stream, others) = gateway.runtime.block_on(async {
        let mut stream = gateway.begin(&token, path, true).await;
        let mut others = gateway.begin(&other, path, true).await;
        heard(&mut stream, "one").await;
        heard(&mut others, "one").await;
        (stream, others)
    });
    gateway.home.run(&["kill", "ends"]).ok();
    let (text, whole) = gateway.runtime.block_on(rest(stream));
    assert!(whole && last(&text).pointer(place) == Some(&json!(code)), "{text}");
    let told = gateway.settled("ends");
    assert_eq!(
        (&told["ended"], &told["error"]["type"]),
        (&json!("cut"), &json!("unauthenticated"))
    );
    // An ended connection could not be closed again.
    drop(others);
    assert_eq!(gateway.settled("goes-on")["ended"], "cancelled");
}

#[test]
fn a_json_answer_in_progress_is_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    let config = format!("[providers.slow]\nbase_url = \"{base}\"\n");
    let gateway = Gateway::with(Script::default(), &[], &config);
    let key = gateway.key("asks");
    let mut body = chat("hi");
    body["model"] = "slow:m".into();
    let provider = std::thread::spawn(move || {
        let mut socket = listener.accept().unwrap().0;
        let _ = head(&mut socket);
        let begun =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"a";
        socket.write_all(begun.as_bytes()).unwrap();
        // Until the connection is closed.
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let response = gateway.runtime.block_on(async {
        let request = gateway.client.post(format!("{}/llm/{}", gateway.url, APIS[0].0));
        let mut response = request.bearer_auth(&key).json(&body).send().await.unwrap();
        assert_eq!(heard(&mut response, "{\"a").await, "{\"a");
        response
    });
    gateway.revoke("asks");
    let (text, whole) = gateway.runtime.block_on(rest(response));
    assert!(text.is_empty() && !whole, "{text}");
    provider.join().unwrap();
    let told = gateway.end("the call's end", |end| end["caller"] == "asks");
    assert_eq!(told["payload_json"]["error"]["type"], "unauthenticated", "{told}");
}

#[test]
fn a_call_is_settled_once_whenever_its_key_is_revoked() {
    let say = Say::text("one two three four five six").usage(90, 6);
    let gateway = Gateway::new(Script::always(Answer::say(say).drip(Duration::from_millis(1))));
    gateway.home.run(&["budget", "set", "swarm", "--tokens", "100000000", "--per", "total"]).ok();
    // After each number of pieces: before the first, and after the last.
    let moments = 0..14_usize;
    let mut came: BTreeMap<String, Option<u16>> = BTreeMap::new();
    for (moment, (path, ..)) in moments.flat_map(|n| APIS.map(|api| (n, api))) {
        let name = format!("{moment}-{}", path.rsplit('/').next().unwrap());
        let made = gateway.api("/api/keys").json(&json!({"name": name, "role": "operator"}));
        let made: Value = serde_json::from_str(&gateway.send(made).body).unwrap();
        let key = made["secret"].as_str().unwrap();
        let id = made["key"]["id"].as_str().unwrap();
        let revoke = async {
            let url = format!("{}/api/keys/{id}", gateway.url);
            let answer = gateway.client.delete(url).bearer_auth(gateway.admin()).send();
            assert_eq!(answer.await.unwrap().status(), 200);
        };
        let call = async {
            let request = gateway.client.post(format!("{}/llm/{path}", gateway.url));
            let call = request.bearer_auth(key).json(&body(path, true)).send();
            if moment == 0 {
                return tokio::join!(call, revoke).0.map(|response| response.status()).ok();
            }
            let mut response = call.await.unwrap();
            let mut pieces = 1;
            while pieces < moment && matches!(response.chunk().await, Ok(Some(_))) {
                pieces += 1;
            }
            let status = response.status();
            tokio::join!(rest(response), revoke);
            Some(status)
        };
        let status = gateway.runtime.block_on(async { tokio::time::timeout(PATIENCE, call).await });
        came.insert(name, status.expect("it ends").map(|status| status.as_u16()));
    }
    until("nothing stays reserved", || (gateway.reserved() == 0).then_some(()));
    let mut ends: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut spent = 0;
    for (call, told) in gateway.ends() {
        assert_eq!(told.len(), 1, "{call} ended more than once: {told:?}");
        let told = &told[0]["payload_json"];
        spent += told["spent"]["tokens"].as_u64().unwrap();
        ends.entry(told["caller"].as_str().unwrap().to_owned()).or_default().push(told.clone());
    }
    for (name, status) in &came {
        let ends = ends.get(name).map_or(0, Vec::len);
        match status {
            Some(200) => assert_eq!(ends, 1, "{name}"),
            other => assert!(ends <= 1, "{name}: {other:?}"),
        }
    }
    let all = gateway.home.run(&["budget", "list", "-o", "json"]).ok().json();
    assert_eq!(all[0]["used"]["tokens"], spent, "what is used is what ended");
    let cut = ends.values().flatten().filter(|told| told["ended"] == "cut").count();
    let whole = ends.values().flatten().filter(|told| told["ended"] == "completed").count();
    assert!(cut > 0 && whole > 0, "both ways were gone: {cut} cut, {whole} whole");
}

/// A request's head, as it came.
fn head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 1024];
    while !bytes.windows(4).any(|part| part == b"\r\n\r\n") {
        match stream.read(&mut buffer).unwrap_or(0) {
            0 => break,
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_service_call_ends_with_its_token_and_with_its_grant() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/v2", listener.local_addr().unwrap());
    let mut home = Home::new();
    let said = home.start(&["--listen", "127.0.0.1:0"], &[]);
    let door = said["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
    let home = Commands(home);
    let declare = ["vault", "declare", "slow", "--base-url", &base, "--auth", "header X-Token"];
    let more = ["--secret", "slow_token", "--allow", "GET /issues/**"];
    home.0.set("slow_token", "slow-key-4711-abcdefghijkl", &[]);
    home.run(&[&declare[..], &more].concat()).ok();
    home.run(&["run", "--name", "calls", "printf %s \"$OVERMIND_TOKEN\" > token; exec sleep 1000"])
        .ok();
    let token = until("the token", || {
        let read = std::fs::read_to_string(home.0.work().join("token"));
        read.ok().filter(|token| !token.is_empty())
    });
    let agent = home.named("calls")["agent_name"].as_str().unwrap_or_default().to_owned();
    home.run(&["vault", "grant", &agent, "--service", "slow"]).ok();
    let made = home.run(&["key", "create", "calls", "--role", "admin", "-o", "name"]);
    let key = made.ok().line().to_owned();
    let revoke = || home.run(&["key", "revoke", "calls"]).ok();
    let take_back = || home.run(&["vault", "revoke", &agent, "--service", "slow"]).ok();
    let kill = || home.run(&["kill", "calls"]).ok();
    let again = || {
        home.run(&["vault", "grant", &agent, "--service", "slow"]).ok();
    };
    for (token, end) in
        [(&key, &revoke as &dyn Fn() -> crate::home::Done), (&token, &take_back), (&token, &kill)]
    {
        again();
        let answer = std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let mut stream = TcpStream::connect(&door).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let request = format!(
                    "GET /api/services/slow/issues/1 HTTP/1.1\r\nHost: {door}\r\n\
                     Authorization: Bearer {token}\r\nConnection: close\r\n\r\n"
                );
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                answer
            });
            let mut asked = listener.accept().unwrap().0;
            assert!(head(&mut asked).starts_with("GET /v2/issues/1 "));
            end();
            // The connection to the service is closed.
            asked.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(asked.read(&mut [0; 1]).unwrap(), 0);
            call.join().unwrap()
        });
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("no longer valid"), "{answer}");
    }
}
