//! Rules for every path: tokens, hosts, origins, bounds, and the shape of errors.

use std::time::Duration;

use overmind_server::RateLimit;
use overmind_testkit::ports::{FakeModels, FakeTools};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::world::{Response, World, patiently};

#[tokio::test]
async fn health_checks_need_no_token_and_all_other_requests_do() {
    let world = World::new().await;
    for path in ["/health", "/healthz"] {
        let answer = world.request("GET", path).without("Authorization").send().await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "{\"ok\":true}"), "{path}");
    }
    let ready = world.request("GET", "/readyz").without("Authorization").send().await;
    assert_eq!(ready.fine()["state"], "ready");
    for path in ["/metrics", "/api/agents", "/api/openapi.json", "/api/nothing", "/HEALTH"] {
        let answer = world.request("GET", path).without("Authorization").send().await;
        assert_eq!(answer.problem(401), "the request carries no token", "{path}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"overmind\""));
    }
    let answer = world.request("POST", "/health").without("Authorization").send().await;
    answer.problem(401);
}

#[tokio::test]
async fn every_wrong_token_gets_the_same_401() {
    let world = World::new().await;
    for token in ["x", "ovk_0", "ova_tesT", "ovs_x.1.y", &"y".repeat(500)] {
        let answer = world.request("GET", "/api/runs").token(token).send().await;
        assert_eq!(answer.problem(401), "the token is not valid", "{token}");
    }
    let answer =
        world.request("GET", "/api/runs").header("Authorization", "Basic eDp5").send().await;
    assert_eq!(answer.problem(401), "the Authorization header is not `Bearer` and a token");
    // A token in the query is no token: it would stand in logs.
    let path = "/api/runs?token=ova_test&access_token=ova_test";
    world.request("GET", path).without("Authorization").send().await.problem(401);
    let answer = world.request("GET", "/api/runs").without("Authorization");
    assert_eq!(answer.header("x-api-key", "ova_test").send().await.status, 200);
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused_on_every_path() {
    let world = World::with(|config| config.hosts = vec!["hive.example.org".into()]).await;
    for path in ["/health", "/readyz", "/api/runs", "/nothing"] {
        let answer = world.request("GET", path).header("Host", "evil.example").send().await;
        assert_eq!(
            answer.problem(421),
            "this server does not answer for the host `evil.example`",
            "{path}"
        );
        let answer = world.request("GET", path).without("Host").send().await;
        assert_eq!(answer.problem(400), "the request has no Host header", "{path}");
        let answer =
            world.request("GET", path).header("Origin", "http://evil.example").send().await;
        assert_eq!(
            answer.problem(403),
            "requests from `http://evil.example` are refused",
            "{path}"
        );
    }
    let named = world.request("GET", "/health").header("Host", "hive.example.org:443").send().await;
    assert_eq!(named.status, 200);
    let own = format!("http://{}", world.address);
    assert_eq!(world.request("GET", "/health").header("Origin", &own).send().await.status, 200);
    let two = format!(
        "GET /health HTTP/1.1\r\nHost: {0}\r\nHost: {0}\r\nConnection: close\r\n\r\n",
        world.address
    );
    world.raw(&two).await.problem(400);
}

#[tokio::test]
async fn unknown_paths_are_404_and_wrong_methods_405_with_allow() {
    let world = World::new().await;
    for path in ["/api", "/api/settings/mcp/server", "/static/style.css", "/api/agents/a/b/c"] {
        let answer = world.get(path).await;
        assert_eq!(answer.problem(404), format!("there is no GET {path} here"));
        assert_eq!(answer.json()["hint"], "GET /api/openapi.json lists every path");
    }
    for (method, path, allow) in [
        ("DELETE", "/api/agents", "POST,GET,HEAD"),
        ("PUT", "/api/runs", "POST,GET,HEAD"),
        ("GET", "/api/memory/store", "DELETE"),
        ("POST", "/health", "GET,HEAD"),
        ("OPTIONS", "/api/status", "GET,HEAD"),
    ] {
        let answer = world.request(method, path).send().await;
        let text = format!("{path} does not take {method}; the Allow header says what it takes");
        if path == "/api/memory/store" {
            // `store` could be an item's id: then only DELETE remains, or POST on the fixed path.
            assert_eq!(answer.status, 405, "{}", answer.body);
            continue;
        }
        assert_eq!(answer.problem(405), text);
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
    }
}

#[tokio::test]
async fn head_equals_get_without_a_body() {
    let world = World::new().await;
    for (path, status) in [("/health", 200), ("/api/agents", 200), ("/api/runs/x", 404)] {
        let answer = world.request("HEAD", path).send().await;
        assert_eq!((answer.status, answer.body.as_str()), (status, ""), "{path}");
        assert_ne!(answer.header("content-length"), Some("0"), "{path}");
    }
}

#[tokio::test]
async fn a_trailing_slash_is_redirected_and_never_to_another_server() {
    let world = World::new().await;
    let answer = world.request("GET", "/api/agents/?limit=3").without("Authorization").send().await;
    assert_eq!((answer.status, answer.header("location")), (307, Some("/api/agents?limit=3")));
    for path in ["//evil.example/", "//evil.example/api/", "/\\evil.example/"] {
        let answer = world.get(path).await;
        assert!(answer.header("location").is_none(), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn bodies_must_be_json_of_bounded_size() {
    let world = World::with(|config| config.max_body = 1000).await;
    let fine = r#"{"name":"a","role":"r","model":"m"}"#;
    let post =
        |kind: &str| world.request("POST", "/api/agents").json(fine).header("Content-Type", kind);
    let wrong = "the body must be JSON: send `Content-Type: application/json`";
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        assert_eq!(post(kind).send().await.problem(415), wrong, "{kind}");
    }
    let none = world.request("POST", "/api/agents").json(fine).without("Content-Type").send().await;
    assert_eq!(none.problem(415), wrong);
    assert_eq!(post("application/json; charset=utf-8").send().await.status, 200);

    let answer = world.post("/api/agents", "{\"name\": \"a\",\n\"role\" 1}").await;
    assert_eq!(answer.problem(422), "the body is not JSON: expected `:` at line 2 column 8");
    let answer = world.request("POST", "/api/agents").header("Content-Type", "application/json");
    assert_eq!(answer.send().await.problem(422), "the body is empty; send a JSON object");

    let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(1000));
    let answer = world.post("/api/agents", &large).await;
    assert_eq!(answer.problem(413), "the body is larger than 1000 bytes");
    assert_eq!(answer.header("connection"), Some("close"));
    // Without a length, the bytes themselves are counted.
    let chunk = "x".repeat(600);
    let chunked = format!(
        "POST /api/agents HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer ova_test\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
         258\r\n{chunk}\r\n258\r\n{chunk}\r\n0\r\n\r\n",
        world.address
    );
    assert_eq!(world.raw(&chunked).await.problem(413), "the body is larger than 1000 bytes");
    // Texts to remember may be larger.
    let item = format!(r#"{{"collection":"c","text":"{}"}}"#, "x".repeat(5000));
    assert_eq!(world.post("/api/memory/store", &item).await.status, 200);
}

#[tokio::test]
async fn a_slow_client_is_disconnected() {
    let world = World::with(|config| {
        config.header_timeout = Duration::from_millis(100);
        config.body_timeout = Duration::from_millis(100);
    })
    .await;
    // Headers that never end.
    let mut stream = world.connect().await;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: loc").await.unwrap();
    let mut rest = Vec::new();
    patiently("the slow connection to end", stream.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty() || Response::parse(&rest).status == 408, "{rest:?}");
    // A kept connection without further requests.
    let mut stream = world.connect().await;
    let ask = format!("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", world.address);
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut rest = Vec::new();
    patiently("the idle connection to end", stream.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(Response::parse(&rest).status, 200);
    // A body that never ends.
    let half = format!(
        "POST /api/agents HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer ova_test\r\n\
         Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{\"name\":",
        world.address
    );
    let answer = world.raw(&half).await;
    assert_eq!(answer.problem(408), "the body did not arrive within 100ms");
}

#[tokio::test]
async fn a_truncated_body_is_reported() {
    let world = World::new().await;
    let mut stream = world.connect().await;
    let half = format!(
        "POST /api/agents HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer ova_test\r\n\
         Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{\"name\":",
        world.address
    );
    stream.write_all(half.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    patiently("the answer", stream.read_to_end(&mut rest)).await.unwrap();
    // Hyper may notice the disconnect before the answer; an agent must not be created.
    assert!(rest.is_empty() || Response::parse(&rest).status == 400, "{rest:?}");
    assert_eq!(world.get("/api/agents").await.fine().as_array().unwrap().len(), 0);
}

#[tokio::test]
async fn too_many_requests_are_429_with_the_time_to_wait() {
    let limit = Some(RateLimit { per_second: 1, burst: 3 });
    let world = World::with(|config| config.caller_rate = limit).await;
    for _ in 0..3 {
        assert_eq!(world.get("/api/version").await.status, 200);
    }
    let answer = world.get("/api/version").await;
    assert_eq!(answer.problem(429), "too many requests from this caller");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(world.get("/health").await.status, 200, "life signs are not counted");

    // Before the token is checked, the address counts.
    let world = World::with(|config| config.address_rate = limit).await;
    for _ in 0..3 {
        world.request("GET", "/api/version").token("wrong").send().await.problem(401);
    }
    let answer = world.request("GET", "/api/version").token("wrong").send().await;
    assert_eq!(answer.problem(429), "too many requests from this address");
}

#[tokio::test]
async fn too_many_connections_get_503_and_are_closed() {
    let world = World::with(|config| config.max_connections = 2).await;
    let ask = format!("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", world.address);
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = world.connect().await;
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        patiently("an answer", stream.read_exact(&mut first)).await.unwrap();
        held.push(stream);
    }
    let mut third = world.connect().await;
    let mut text = Vec::new();
    let _ = patiently("the refusal", third.read_to_end(&mut text)).await;
    let answer = Response::parse(&text);
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"], "too many connections are open");
    drop(held);
    // As soon as a slot is free, requests are answered again.
    let wait = async {
        loop {
            let mut stream = world.connect().await;
            let _ = stream
                .write_all(ask.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").as_bytes())
                .await;
            let mut text = Vec::new();
            let _ = stream.read_to_end(&mut text).await;
            if text.starts_with(b"HTTP/1.1 200") {
                return;
            }
        }
    };
    patiently("room", wait).await;
}

/// Sends a request, and returns the whole answer; a truncated answer counts as none.
async fn alive(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let ask = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let _ = stream.write_all(ask.as_bytes()).await;
    let mut text = Vec::new();
    let _ = patiently("an answer", stream.read_to_end(&mut text)).await;
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn idle_tcp_connections_are_closed_and_do_not_block_the_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let unix = overmind_server::Listener::unix(&path).await.unwrap();
    let bounds = |config: &mut overmind_server::ServerConfig| {
        config.max_connections = 4;
        config.header_timeout = Duration::from_secs(2);
    };
    let world = World::whole(bounds, FakeTools::ok(), FakeModels::new([]), |_| vec![unix]).await;
    let mut idle = Vec::new();
    for part in ["", "", "G", "GET /health HTTP/1.1\r\nHost: localhost\r\n", "", ""] {
        let mut stream = world.connect().await;
        stream.write_all(part.as_bytes()).await.unwrap();
        idle.push(stream);
    }
    let stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let answer = alive(stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Only the server closes them.
    for mut stream in idle {
        let mut text = Vec::new();
        let _ = patiently("its end", stream.read_to_end(&mut text)).await;
    }
    let answer = alive(world.connect().await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn one_host_cannot_take_all_slots_with_many_loopback_addresses() {
    let bounds = |config: &mut overmind_server::ServerConfig| {
        config.max_connections = 4;
        config.max_connections_per_source = 2;
    };
    let world = World::with(bounds).await;
    let from = |client: &'static str| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(client.parse().unwrap()).unwrap();
        socket.connect(world.address)
    };
    let [first, second] = [from("127.0.0.1:0").await.unwrap(), from("127.0.0.2:0").await.unwrap()];
    for client in ["127.0.0.1:0", "127.0.0.3:0"] {
        let answer = alive(from(client).await.unwrap()).await;
        assert!(answer.contains("too many connections of this client are open"), "{answer}");
    }
    drop((first, second));
    let again = async {
        loop {
            let answer = alive(from("127.0.0.2:0").await.unwrap()).await;
            if answer.starts_with("HTTP/1.1 200") {
                return;
            }
        }
    };
    patiently("a place", again).await;
}

#[tokio::test]
async fn every_answer_has_a_request_id_and_is_not_cached_or_sniffed() {
    let world = World::new().await;
    for path in ["/health", "/api/agents", "/api/nothing"] {
        let answer = world.get(path).await;
        assert!(answer.header("x-request-id").unwrap().starts_with("req-"), "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert!(answer.header("access-control-allow-origin").is_none(), "{path}");
    }
    let given = world.request("GET", "/health").header("X-Request-Id", "trace-7").send().await;
    assert_eq!(given.header("x-request-id"), Some("trace-7"));
    let hostile = world.request("GET", "/health").header("X-Request-Id", "a b\tc").send().await;
    assert!(hostile.header("x-request-id").unwrap().starts_with("req-"));
}

#[tokio::test]
async fn invalid_http_affects_nobody() {
    let world = World::new().await;
    for bytes in [
        "\r\n\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "\u{16}\u{3}\u{1} this would be TLS\r\n\r\n",
        "GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /api/agents HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    ] {
        let mut stream = world.connect().await;
        let _ = stream.write_all(bytes.as_bytes()).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let _ = patiently("the end", stream.read_to_end(&mut rest)).await;
        assert!(!rest.starts_with(b"HTTP/1.1 5"), "{bytes:?}: {}", String::from_utf8_lossy(&rest));
    }
    let many: String = (0..200).map(|n| format!("X-{n}: y\r\n")).collect();
    let answer = world
        .raw(&format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{many}Connection: close\r\n\r\n"))
        .await;
    assert_eq!(answer.status, 431);
    assert_eq!(world.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_slow_handler_is_504_and_its_work_continues() {
    let world = World::whole(
        |config| config.long_request_timeout = Duration::from_millis(50),
        FakeTools::ok(),
        FakeModels::new([]),
        |_| vec![],
    )
    .await;
    let run = world.ended_run().await;
    let answer =
        world.post(&format!("/api/runs/{run}/tools/call"), r#"{"tool_name":"hang"}"#).await;
    assert_eq!(
        answer.problem(504),
        "the server did not finish within 50ms; the work continues in \
        the background"
    );
    assert_eq!(world.tools.dropped.load(std::sync::atomic::Ordering::SeqCst), 0);
    world.tools.let_go(1);
    let path = format!("/api/runs/{run}/tool-calls");
    let wait = async {
        loop {
            let calls = world.get(&path).await.fine();
            if calls.as_array().unwrap().iter().any(|call| call["tool_name"] == "hang") {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    patiently("the call to be recorded", wait).await;
}

#[tokio::test]
async fn roles_are_enforced_on_every_kind_of_path() {
    let world = World::new().await;
    let mut keys = std::collections::HashMap::new();
    for role in ["viewer", "operator", "admin"] {
        let body = format!(r#"{{"name":"{role} key","role":"{role}"}}"#);
        let made = world.post("/api/keys", &body).await.fine();
        keys.insert(role, made["secret"].as_str().unwrap().to_owned());
    }
    let agent = r#"{"name":"NAME","role":"r","model":"m"}"#;
    for (method, path, body, least) in [
        ("GET", "/api/agents", "", "viewer"),
        ("GET", "/api/runs", "", "viewer"),
        ("GET", "/api/events", "", "viewer"),
        ("GET", "/api/tools", "", "viewer"),
        ("GET", "/api/status", "", "viewer"),
        ("GET", "/metrics", "", "viewer"),
        ("POST", "/api/agents", agent, "operator"),
        ("POST", "/api/memory/store", r#"{"collection":"c","text":"t"}"#, "operator"),
        ("GET", "/api/settings/openai-key", "", "admin"),
        ("GET", "/api/keys", "", "admin"),
        ("POST", "/api/prune", r#"{"older_than_seconds":1000000}"#, "admin"),
    ] {
        let mut allowed = false;
        for role in ["viewer", "operator", "admin"] {
            allowed |= role == least;
            let request = world.request(method, path).token(&keys[role]);
            // A name is used once.
            let body = body.replace("NAME", &format!("by-{role}"));
            let request = if body.is_empty() { request } else { request.json(&body) };
            let answer = request.send().await;
            let want = if allowed { 200 } else { 403 };
            assert_eq!(answer.status, want, "{role} {method} {path}: {}", answer.body);
            if !allowed {
                let error = answer.problem(403);
                assert!(error.contains(least), "{error}");
            }
        }
    }
}

/// Each route by each role: what the table refuses is 403, and what it allows is anything else, as no
/// such thing is there or the body says nothing.
#[tokio::test]
async fn each_route_accepts_the_documented_roles_and_scopes() {
    let table = include_str!("../../../../docs/roles.md");
    assert_eq!(table, overmind_server::roles_document(), "docs/roles.md is not current");
    let world = World::new().await;
    let mut keys = Vec::new();
    for role in ["viewer", "operator", "admin", "model", "mcp", "runs"] {
        let body = format!(r#"{{"name":"{role} key","role":"{role}"}}"#);
        let made = world.post("/api/keys", &body).await.fine();
        keys.push((role, made["secret"].as_str().unwrap().to_owned()));
    }
    let run = world.hanging_run().await;
    let row = world.get(&format!("/api/runs/{run}")).await.fine();
    let epoch = u32::try_from(row["epoch"].as_u64().unwrap()).unwrap();
    keys.push(("a run", world.engine.session_token(run.parse().unwrap(), epoch)));
    let mut tried = 0;
    for line in table.lines().filter(|line| line.starts_with("| `") && line.contains(" /")) {
        let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
        let [route, allowed @ ..] = cells.as_slice() else { panic!("{line}") };
        let Some((method, path)) = route.trim_matches('`').split_once(' ') else { continue };
        // Routes that check the service that a body names, once they have read it.
        if path == "/mesh/api" {
            continue;
        }
        // Requests that end the runs of others, wait for an answer, or depend on more than the
        // role: only callers without the right are tried.
        let others = matches!(path, "/api/halt" | "/mcp") || path.starts_with("/api/services/");
        let at = filled(path);
        for ((role, key), allowed) in keys.iter().zip(allowed) {
            if others && *allowed != "–" {
                continue;
            }
            let request = world.request(method, &at).token(key);
            let request = if method == "GET" { request } else { request.json("{}") };
            let answer = request.status().await;
            let refused = answer == 403;
            // Whether its agent may is for other tests.
            let open = *allowed == "as its agent may" || (*allowed == "itself" && refused);
            assert!(open || refused == (*allowed == "–"), "{role} {method} {at}: {answer}");
            tried += 1;
        }
    }
    assert!(tried > 500, "{tried} were tried");
}

/// A path of the table with something in the place of its parameters.
fn filled(path: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { "nothing-like-it" } else { part }.to_owned();
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Answers whose status was misleading.
#[tokio::test]
async fn an_invalid_request_has_the_matching_status() {
    let world = World::new().await;
    let path = world.dir.path().join("copy").display().to_string();
    let body = format!(r#"{{"path":"{path}\u0000x"}}"#);
    let nul = world.post("/api/backup", &body).await.problem(422);
    assert!(nul.contains("NUL"), "{nul}");
    assert_eq!(
        std::fs::read_dir(world.dir.path())
            .unwrap()
            .filter(|entry| {
                entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("copy")
            })
            .count(),
        0
    );
    let agent = world.agent("stub").await;
    let ttl = json!({"agent": agent, "task": "x", "ttl": 31_622_401}).to_string();
    for (path, body, said) in [
        ("/mesh/spawn", ttl.as_str(), "ttl is 31622401; it is 1 to 31622400 seconds"),
        ("/api/vault/import", r#"{"secrets":{"":""}}"#, "secrets: ``: "),
        ("/api/vault/import", r#"{"secrets":{"a b":"a-value-of-12"}}"#, "secrets: `a b`: "),
        ("/api/vault/import", r#"{"secrets":{"token":" "}}"#, "`token` has no value: leave it out"),
    ] {
        let problem = world.post(path, body).await.problem(422);
        assert!(problem.contains(said), "{path} {body}: {problem}");
    }
    for path in ["/llm/openai/v1/nothing", "/llm/openai/v1/messages"] {
        let error = world.get(path).await;
        assert_eq!(error.status, 404);
        let error = &error.json()["error"];
        assert_eq!(error["code"], Value::Null, "no model was asked for: {error}");
        assert!(error["message"].as_str().unwrap().contains(path), "{error}");
    }
    let model = world.get("/llm/openai/v1/models/nothing").await;
    assert_eq!((model.status, &model.json()["error"]["code"]), (404, &json!("model_not_found")));
}

/// Each route that changes something, with a key: two honour it, calls of a service pass it on, and all
/// others say that they do not, and do nothing.
#[tokio::test]
async fn an_idempotency_key_is_honoured_or_refused_on_every_route() {
    let world = World::new().await;
    let table = include_str!("../../../../docs/roles.md");
    let (mut refused, mut taken) = (0, Vec::new());
    for line in table.lines().filter(|line| line.starts_with("| `") && line.contains(" /")) {
        let Some((route, _)) = line.trim_start_matches("| `").split_once('`') else { continue };
        let Some((method, path)) = route.split_once(' ') else { continue };
        if method == "GET" {
            continue; // a read can be repeated without a key
        }
        let request = world.request(method, &filled(path)).header("Idempotency-Key", "once");
        let answer = request.json("{}").send().await;
        if answer.body.contains("does not support an Idempotency-Key") {
            let error = answer.problem(400);
            assert!(error.starts_with(&format!("{method} {path} does not")), "{error}");
            refused += 1;
        } else {
            taken.push(route.to_owned());
        }
    }
    let read = world.request("GET", "/api/agents").header("Idempotency-Key", "once");
    assert_eq!(read.send().await.status, 200);
    let service = "/api/services/{service}/{*path}";
    let mut wanted: Vec<_> =
        ["POST", "PUT", "PATCH", "DELETE"].map(|method| format!("{method} {service}")).into();
    wanted.extend(["POST /api/agents".to_owned(), "POST /api/runs".to_owned()]);
    wanted.sort();
    taken.sort();
    assert_eq!(taken, wanted);
    assert!(refused > 60, "{refused}");
    // The alias of the same routes, and a refusal without effect.
    let post = world.request("POST", "/api/sessions/kill").header("Idempotency-Key", "once");
    let answer = post.json("{}").send().await;
    assert!(answer.json()["hint"].as_str().unwrap().contains("POST /api/runs"), "{}", answer.body);
    let put = world.request("PUT", "/mesh/blackboard/k").header("Idempotency-Key", "once");
    put.json(r#"{"value":1}"#).send().await.problem(400);
    assert_eq!(world.get("/mesh/blackboard/k").await.status, 404);
}

#[tokio::test]
async fn a_run_token_reaches_only_its_own_run() {
    let world = World::new().await;
    let run = world.hanging_run().await;
    let other = world.ended_run().await;
    let row = world.get(&format!("/api/runs/{run}")).await.fine();
    assert_eq!(row["status"], "running");
    let epoch = u32::try_from(row["epoch"].as_u64().unwrap()).unwrap();
    let token = world.engine.session_token(run.parse().unwrap(), epoch);
    let ask = async |path: &str| world.request("GET", path).token(&token).send().await.status;
    assert_eq!(ask(&format!("/api/runs/{run}")).await, 200);
    assert_eq!(ask(&format!("/api/runs/{run}/steps")).await, 200);
    assert_eq!(ask(&format!("/api/runs/{other}")).await, 404, "as one that is not there");
    for path in ["/api/keys", "/api/tools", "/api/events/stream", "/metrics", "/api/inbox"] {
        assert_eq!(ask(path).await, 403, "{path}");
    }
    let listed = world.request("GET", "/api/runs").token(&token).send().await.fine();
    let listed: Vec<_> = listed.as_array().unwrap().iter().map(|row| &row["id"]).collect();
    assert_eq!(listed, [&json!(run)], "and none of the others");
    let cancel = format!("/api/runs/{run}/cancel");
    assert_eq!(world.post(&cancel, "").await.status, 200);
    assert_eq!(ask(&format!("/api/runs/{run}")).await, 401, "the token ended with the run");
}
