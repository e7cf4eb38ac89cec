//! Placeholders: what a command gets in place of a key opens one service, here, for as long as its
//! run lives; the key itself is in no environment and no answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use overmind_testkit::real::counterpart;
use overmind_testkit::upstream::{Answer, Received, Script, Upstream};
use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::{Home, until};

const KEY: &str = "tracker-key-4711-abcdefghijkl";

/// A service that repeats its caller's key, as no service should.
struct Tracker {
    port: u16,
    /// The received requests, including headers.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Tracker {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let notes = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = head(&mut stream);
                let answer = match request.contains("/issues/moved") {
                    true => "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/steal\r\n\
                             content-length: 0\r\nconnection: close\r\n\r\n"
                        .to_owned(),
                    false => {
                        let body = format!("{{\"you_are\": \"{KEY}\"}}");
                        format!(
                            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-echo: {KEY}\r\n\
                             set-cookie: a=b\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                            body.len()
                        )
                    }
                };
                notes.lock().unwrap().push(request);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// The first lines of a request, in lower case except for the path.
fn head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 1024];
    while !bytes.windows(4).any(|part| part == b"\r\n\r\n") {
        let count = stream.read(&mut buffer).unwrap_or(0);
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One request, sent unchanged; returns the status and the rest.
fn ask(door: &str, line: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(door).unwrap();
    let request = format!("{line} HTTP/1.1\r\nHost: {door}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

fn environ(pid: &Value) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    bytes.split(|byte| *byte == 0).map(|one| String::from_utf8_lossy(one).into_owned()).collect()
}

#[test]
fn a_placeholder_opens_one_service_on_this_server_while_its_run_is_active() {
    let tracker = Tracker::start();
    let mut home = Home::new();
    let said = home.start(&["--listen", "127.0.0.1:0"], &[]);
    let door = said["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
    let home = Commands(home);
    home.0.set("tracker_token", KEY, &[]);
    let base = format!("http://127.0.0.1:{}/v2", tracker.port);
    for name in ["tracker", "other"] {
        let declare = ["vault", "declare", name, "--base-url", &base, "--auth", "header X-Token"];
        let more = ["--secret", "tracker_token", "--allow", "GET /issues/**"];
        home.run(&[&declare[..], &more].concat()).ok();
    }
    let agent = json!({
        "name": "caller", "role": "calls", "model": "command", "sandbox": "none",
        "command": {
            "argv": ["sh", "-c", "sleep 600"], "env_from": {"TRACKER_TOKEN": "service:tracker"},
        },
    });
    let file = home.0.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    home.run(&["run", "--agent", "caller", "--name", "without", ""]).fails(10);
    let refused = home.status("without", "failed");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("overmind vault grant 'caller' --service tracker"), "{message}");

    home.run(&["vault", "grant", "caller", "--service", "tracker"]).ok();
    home.run(&["run", "--agent", "caller", "--name", "with", ""]).ok();
    let environ = environ(&home.alive("with"));
    assert!(!environ.iter().any(|one| one.contains(KEY)), "the key is in the environment");
    let var = |name: &str| {
        let found = environ.iter().find_map(|one| one.strip_prefix(&format!("{name}=")));
        found.unwrap_or_else(|| panic!("no {name} in {environ:?}")).to_owned()
    };
    assert_eq!(var("TRACKER_BASE_URL"), format!("http://{door}/api/services/tracker"));
    let token = var("TRACKER_TOKEN");
    assert!(token.starts_with("sk-ovm-"), "{token}");

    // Like a client of the service, with attempts to reach other targets.
    let with = format!(
        "X-Token: {token}\r\nX-Forwarded-Host: evil.example\r\nCookie: a=b\r\nX-Ours: kept\r\n"
    );
    let (status, answer) = ask(&door, "GET /api/services/tracker/issues/7?x=1", &with);
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("{\"you_are\": \"[redacted:secret]\"}"), "{answer}");
    assert!(!answer.contains(KEY) && !answer.to_lowercase().contains("set-cookie"), "{answer}");
    let asked = tracker.asked();
    assert_eq!(asked.len(), 1);
    let seen = asked[0].to_lowercase();
    assert!(seen.starts_with("get /v2/issues/7?x=1 http/1.1\r\n"), "{seen}");
    assert!(seen.contains(&format!("x-token: {KEY}\r\n")), "{seen}");
    assert!(seen.contains(&format!("host: 127.0.0.1:{}\r\n", tracker.port)), "{seen}");
    assert!(seen.contains("x-ours: kept\r\n"), "{seen}");
    for gone in ["sk-ovm", "evil.example", "cookie"] {
        assert!(!seen.contains(gone), "{gone} in {seen}");
    }
    let leaked = home.0.told("vault.leaked");
    assert_eq!((leaked.len(), &leaked[0]["agent"]), (1, &json!("caller")));

    // An undeclared service, a missing grant and an invalid token reach no service.
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    for (line, headers, wanted) in [
        ("POST /api/services/tracker/issues/7", with.clone(), 422),
        ("GET /api/services/tracker/admin", with.clone(), 422),
        ("GET /api/services/tracker/issues/../admin", with.clone(), 422),
        ("GET /api/services/tracker/issues/%2e%2e/admin", with.clone(), 422),
        ("GET /api/services/tracker//evil.example/issues/7", with.clone(), 422),
        ("GET /api/services/tracker/issues/a%2fb", with.clone(), 422),
        ("GET /api/services/other/issues/7", with.clone(), 403),
        ("GET /api/services/none/issues/7", bearer(&token), 403),
        ("GET /api/services/tracker/issues/7", bearer(&format!("{token}0")), 401),
        ("GET /api/services/tracker/issues/7", bearer(&token.replace("-1-", "-2-")), 401),
        ("GET /api/services/tracker/issues/7", String::new(), 401),
        // It gives access to nothing else on this server.
        ("GET /api/status", bearer(&token), 401),
        ("GET /api/vault/secrets", bearer(&token), 401),
    ] {
        let (status, answer) = ask(&door, line, &headers);
        assert_eq!(status, wanted, "{line}: {answer}");
        assert!(!answer.contains(KEY), "{line}: {answer}");
    }
    assert_eq!(tracker.asked().len(), 1, "nothing of that arrived");
    // A redirect is not followed, and the key is sent nowhere else.
    let (status, answer) = ask(&door, "GET /api/services/tracker/issues/moved", &with);
    assert_eq!(status, 503, "{answer}");
    assert!(answer.contains("redirect"), "{answer}");

    // The run is over, and its placeholders are invalid.
    home.run(&["kill", "with"]).ok();
    home.until("with", "it is over", |run| {
        run["status"] == "canceled" || run["status"] == "failed"
    });
    let (status, _) = ask(&door, "GET /api/services/tracker/issues/7", &with);
    assert_eq!(status, 401);
    assert_eq!(tracker.asked().len(), 2);
    until("uses are told", || Some(()).filter(|()| !home.0.told("vault.used").is_empty()));
    home.0.keeps_none_of(&[KEY, &token]);
}

/// The answers in Gemini's own format, as a stream.
fn gemini(request: &Received) -> Answer {
    let said = json!({"candidates": [{
        "content": {"role": "model", "parts": [{"text": "Abracadabra."}]}, "finishReason": "STOP", "index": 0,
    }], "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}});
    match request.path.contains(":streamGenerateContent") {
        true => Answer::raw(200, "text/event-stream", format!("data: {said}\r\n\r\n")),
        false => Answer::raw(200, "application/json", said.to_string()),
    }
}

#[test]
fn needs_gemini_cli_it_calls_its_service_with_a_placeholder_and_no_flag() {
    let Some(bin) = counterpart("GEMINI_CLI") else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let script = Script::by(gemini).every_path().for_strangers();
    let upstream = runtime.block_on(Upstream::start(script));
    let mut home = Home::new();
    let file = home.path().join("overmind.toml");
    let base = upstream.base_url();
    std::fs::write(&file, format!("[services.gemini-native]\nbase_url = \"{base}\"\n")).unwrap();
    let vars = [("OVERMIND_CONFIG", file.to_str().unwrap())];
    home.start(&["--listen", "127.0.0.1:0"], &vars);
    let home = Commands(home);
    home.0.set("gemini_api_key", KEY, &[]);
    // Its own settings say that it uses a key.
    let own = home.0.path().join("gemini");
    std::fs::create_dir_all(own.join(".gemini")).unwrap();
    let settings = json!({"security": {"auth": {"selectedType": "gemini-api-key"}}});
    std::fs::write(own.join(".gemini/settings.json"), settings.to_string()).unwrap();
    let agent = json!({
        "name": "gem", "role": "answers", "model": "command", "sandbox": "none",
        "command": {
            "argv": ["gemini", "-p", "say the magic word", "-m", "gemini-2.5-flash"],
            "env": [
                format!("PATH={bin}:/usr/local/bin:/usr/bin:/bin"), format!("HOME={}", own.display()),
                "GEMINI_CLI_TRUST_WORKSPACE=true", "NO_COLOR=1",
            ],
            "env_from": {"GEMINI_API_KEY": "service:gemini-native"},
        },
    });
    let file = home.0.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    home.run(&["vault", "grant", "gem", "--service", "gemini-native"]).ok();
    home.run(&["run", "-d", "--agent", "gem", "--name", "shot", ""]).ok();
    let waited = home.run(&["wait", "shot"]);
    let log = home.run(&["logs", "shot"]).out;
    assert_eq!(waited.code, 0, "{log}");
    assert!(log.contains("Abracadabra.") && !log.contains(KEY), "{log}");
    let asked = upstream.requests();
    assert!(!asked.is_empty());
    for request in asked {
        assert!(request.path.starts_with("/v1beta/models/gemini-2.5-flash:"), "{}", request.path);
        assert_eq!(request.headers["x-goog-api-key"], KEY);
    }
}
