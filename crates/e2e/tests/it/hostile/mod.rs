//! Thousands of bad requests against a real server: each is refused in the format of its API, none
//! hangs or breaks anything, none is forwarded, and no secret is returned.
//!
//! `OVERMIND_SEED` chooses the requests; `cargo xtask soak hostile` sends many more.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod make;
mod wire;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use overmind_testkit::soak;
use overmind_testkit::upstream::{Say, Script, Upstream};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::commands::Commands;
use crate::crash::{rng::Rng, setting};
use crate::home::{Home, until};
use make::{Known, Tokens};
use wire::{Answer, Case, Expect, Got, Shape};

/// Values that only the provider, only the service, and nobody may ever see.
const MODEL_KEY: &str = "model-key-4711-hostile-abcdefgh";
const SERVICE_KEY: &str = "tracker-key-0815-hostile-ijklmnop";
const CANARY: &str = "canary-value-2342-hostile-qrstuvwx";
/// In every run of the tests, and in one of `cargo xtask soak`.
const REQUESTS: (u64, u64) = (1_500, 20_000);
const HANDS: usize = 8;
/// The memory by which the server may grow: bodies in progress, and blocks that the allocator keeps.
const GROWTH_KIB: u64 = 160 << 10;
/// Rates are tested elsewhere; here each refusal must have its own reason.
const CONFIG: &str = "[server]\nrequests_per_second = 0\n";

/// A listener that records all received data.
struct Ear {
    port: u16,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Ear {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let notes = Arc::clone(&heard);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let notes = Arc::clone(&notes);
                std::thread::spawn(move || notes.lock().unwrap().push(answered(stream)));
            }
        });
        Self { port, heard }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

/// The head of a request, after an answer to it.
fn answered(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while !bytes.windows(4).any(|part| part == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&buffer[..count]),
            Ok(_) | Err(_) => break,
        }
    }
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\
                  connection: close\r\n\r\n{\"ok\": true}";
    let _ = stream.write_all(answer.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A server with a provider, a service and two sessions behind it, and a place that it must never
/// reach.
struct World {
    home: Commands,
    upstream: Upstream,
    service: Ear,
    elsewhere: Ear,
    known: Known,
    _runtime: Runtime,
}

fn permissions() -> Value {
    json!({"permissions": {
        "ann": {"can_message": ["ann"], "blackboard_write": ["ann/**"], "blackboard_read": ["ann/**"],
                "can_publish": ["ann.*"], "can_subscribe": ["ann.*"], "allowed_apis": ["tracker"],
                "models": ["**"], "on_message": "queue"},
        "bob": {"can_message": ["bob"], "blackboard_write": ["bob/**"], "blackboard_read": ["bob/**"],
                "on_message": "queue"},
    }})
}

/// Starts a session that writes its token and placeholder to a file, and returns both with its id.
fn session(home: &Commands, name: &str) -> (String, String, String) {
    let file = home.0.work().join(format!("{name}.tokens"));
    let words = format!(
        "umask 077; echo \"$OVERMIND_TOKEN $TRACKER_TOKEN .\" > {0}.new; mv {0}.new {0}; sleep 600",
        file.display()
    );
    let mut command = json!({"argv": ["sh", "-c", words], "kind": "session"});
    if name != "bob" {
        command["env_from"] = json!({"TRACKER_TOKEN": "service:tracker"});
    }
    let agent = json!({
        "name": name, "role": "talks", "model": "command", "sandbox": "none", "command": command,
    });
    let path = home.0.path().join("agent.json");
    std::fs::write(&path, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", path.to_str().unwrap()]).ok();
    home.run(&["vault", "grant", name, "--service", "tracker"]).ok();
    home.run(&["run", "--agent", name, "--name", name, ""]).ok();
    let text = until("it has told its tokens", || std::fs::read_to_string(&file).ok());
    let mut words = text.split(' ').map(str::to_owned);
    let mut next = || words.next().unwrap();
    (home.named(name)["id"].as_str().unwrap().to_owned(), next(), next())
}

/// Tokens of another server, which no longer exists.
fn foreign() -> Vec<String> {
    let home = Commands(Home::up());
    let key = home.run(&["key", "create", "theirs", "--role", "admin", "-o", "name"]).ok();
    let admin = std::fs::read_to_string(home.0.data().join("admin.token")).unwrap();
    let file = home.0.work().join("token");
    let words =
        format!("echo $OVERMIND_TOKEN > {0}.new; mv {0}.new {0}; sleep 600", file.display());
    home.run(&["run", "--name", "theirs", &words]).ok();
    let session = until("its token", || std::fs::read_to_string(&file).ok());
    home.run(&["kill", "theirs"]).ok();
    [key.line(), &admin, &session].map(|text| text.trim().to_owned()).to_vec()
}

impl World {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let script = Script::always(Say::text("good day").usage(10, 2));
        let upstream = runtime.block_on(Upstream::start(script.key(MODEL_KEY).for_strangers()));
        let (service, elsewhere) = (Ear::open(), Ear::open());
        let mut home = Home::new();
        let file = home.path().join("overmind.toml");
        std::fs::write(&file, CONFIG).unwrap();
        let base = upstream.base_url();
        std::fs::DirBuilder::new().mode(0o700).create(home.data()).unwrap();
        std::fs::write(home.data().join("permissions.json"), permissions().to_string()).unwrap();
        let said = home.start(
            &["--listen", "127.0.0.1:0", "--config", file.to_str().unwrap()],
            &[("OVERMIND_MODEL_BASE_URL", base.as_str()), ("OVERMIND_MODEL_API_KEY", MODEL_KEY)],
        );
        let door = said["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        let home = Commands(home);
        home.0.set("tracker_token", SERVICE_KEY, &[]);
        home.0.set("nobodys_token", CANARY, &[]);
        let at = format!("http://127.0.0.1:{}/v2", service.port);
        let declare =
            ["vault", "declare", "tracker", "--base-url", &at, "--auth", "header X-Token"];
        let more = ["--secret", "tracker_token", "--allow", "GET|POST /issues/**"];
        home.run(&[&declare[..], &more].concat()).ok();
        let key = |name: &str, role: &str| {
            let args = ["key", "create", name, "--role", role, "-o", "name"];
            home.run(&args).ok().line().to_owned()
        };
        let (viewer, revoked) = (key("looks", "viewer"), key("gone", "admin"));
        let keys = home.run(&["key", "list", "-o", "json"]).ok().json();
        let mut keys = keys.as_array().unwrap().iter();
        let id = keys.find(|key| key["name"] == "gone").unwrap()["id"].as_str().unwrap();
        home.run(&["key", "revoke", id]).ok();
        let (_, ann, placeholder) = session(&home, "ann");
        let (bob_id, bob, _) = session(&home, "bob");
        let (_, ended, ended_placeholder) = session(&home, "eve");
        home.run(&["kill", "eve"]).ok();
        home.until("eve", "it is over", |run| {
            run["status"] == "canceled" || run["status"] == "failed"
        });
        let letter = home.run(&["mail", "send", "bob", "for bob alone", "-o", "json"]).ok().json();
        home.run(&["mesh", "put", "bob/secret", "1"]).ok();
        let admin = std::fs::read_to_string(home.0.data().join("admin.token")).unwrap();
        let tokens = Tokens {
            admin: admin.trim().to_owned(),
            viewer,
            ann,
            bob,
            placeholder,
            dead: [vec![ended, ended_placeholder, revoked], foreign()].concat(),
        };
        let known = Known {
            door,
            elsewhere: elsewhere.port,
            tokens,
            bob: bob_id,
            letter: letter["id"].as_str().unwrap().to_owned(),
        };
        Self { home, upstream, service, elsewhere, known, _runtime: runtime }
    }

    fn ask(&self, token: &str, line: &str, body: Option<&Value>) -> Answer {
        let mut head = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n",
            self.known.door
        );
        let body = body.map(Value::to_string).unwrap_or_default();
        if !body.is_empty() {
            let more =
                format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
            head.push_str(&more);
        }
        let bytes = format!("{head}\r\n{body}").into_bytes();
        let what = line.to_owned();
        let (shape, expect) = (Shape::Problem, Expect::Contained);
        match wire::send(&self.known.door, &Case { what, bytes, shape, expect, cut: false }) {
            Got::Answer(answer) => answer,
            other => panic!("{line}: {other:?}"),
        }
    }

    /// Values that must never be in anything that is sent or stored.
    fn secrets(&self) -> Vec<&str> {
        let tokens = &self.known.tokens;
        let mut all = vec![MODEL_KEY, SERVICE_KEY, CANARY, &tokens.ann, &tokens.bob];
        all.extend([tokens.placeholder.as_str(), &tokens.viewer]);
        all.extend(tokens.dead.iter().map(String::as_str));
        all
    }

    /// The figure of a metric, all its labels that fit together.
    fn metric(&self, name: &str, fits: impl Fn(&str) -> bool) -> u64 {
        let answer = self.ask(&self.known.tokens.admin, "GET /metrics", None);
        let text = String::from_utf8(answer.body).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines
            .filter(|rest| fits(rest))
            .filter_map(|rest| rest.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    fn refused(&self) -> u64 {
        self.metric("overmind_http_requests_total{", |labels| labels.contains("status=\"4"))
    }

    fn broken(&self) -> u64 {
        self.metric("overmind_http_connections_broken_total", |_| true)
    }

    /// The maximum memory of the server, in KiB.
    fn peak(&mut self) -> u64 {
        let status = format!("/proc/{}/status", self.home.0.server().id());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }

    /// The servers behind it received only their own requests, with their own key.
    fn nobody_heard_of_it(&self) {
        assert_eq!(self.elsewhere.heard(), [""; 0], "a place that nobody declared was called");
        let secrets = self.secrets();
        let foreign = |text: &str, own: &str| {
            secrets.iter().any(|secret| *secret != own && text.contains(secret))
        };
        for call in self.service.heard() {
            let low = call.to_lowercase();
            let mut lines = low.split("\r\n");
            let line = lines.next().unwrap();
            assert!(line.contains(" /v2/issues/"), "{call}");
            let host = format!("host: 127.0.0.1:{}", self.service.port);
            assert_eq!(lines.clone().filter(|line| line.starts_with("host:")).count(), 1, "{call}");
            assert!(lines.any(|line| line == host), "{call}");
            assert!(call.contains(SERVICE_KEY) && !foreign(&call, SERVICE_KEY), "{call}");
        }
        for call in self.upstream.requests() {
            let path = call.path.split('?').next().unwrap().to_owned();
            let own = [
                "/chat/completions",
                "/responses",
                "/messages",
                "/embeddings",
                "/messages/count_tokens",
            ];
            assert!(own.iter().any(|own| path == *own || path == format!("/v1{own}")), "{call:?}");
            let shown = format!("{:?} {}", call.headers, call.body);
            assert!(shown.contains(MODEL_KEY) && !foreign(&shown, MODEL_KEY), "{shown}");
            let port = self.upstream.base_url();
            assert_eq!(call.headers["host"], port.trim_start_matches("http://"), "{shown}");
        }
    }

    /// Valid requests still work.
    fn is_well(&self) {
        let tokens = &self.known.tokens;
        let (calls, served) = (self.upstream.requests().len(), self.service.heard().len());
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        let done = self.ask(&tokens.ann, "POST /llm/openai/v1/chat/completions", Some(&chat));
        let said = String::from_utf8_lossy(&done.body).into_owned();
        assert_eq!((done.status, self.upstream.requests().len()), (200, calls + 1), "{said}");
        let done = self.ask(&tokens.ann, "GET /api/services/tracker/issues/7", None);
        assert_eq!((done.status, self.service.heard().len()), (200, served + 1));
        let done = self.ask(&tokens.ann, "PUT /mesh/blackboard/ann/x", Some(&json!([1])));
        assert_eq!(done.status, 200);
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
        let done = self.ask(&tokens.ann, "POST /mcp", Some(&list));
        assert!(done.json()["result"]["tools"].is_array());
        let held = self.ask(&tokens.bob, "GET /mesh/messages", None).json();
        assert_eq!(held[0]["id"], self.known.letter, "bob's letter waits for bob");
        let secrets = self.ask(&tokens.admin, "GET /api/vault/secrets", None).json();
        let names: Vec<&str> =
            secrets.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["nobodys_token", "tracker_token"], "no secret came or went");
        assert_eq!(self.ask(&tokens.admin, "GET /api/budgets", None).json(), json!([]));
    }
}

/// The results of all requests.
#[derive(Default)]
struct Tally {
    wrong: Mutex<Vec<String>>,
    /// Refusals that the server itself wrote, by status.
    refused: Mutex<BTreeMap<u16, u64>>,
    broken: AtomicU64,
    contained: AtomicU64,
}

impl Tally {
    fn note(&self, case: &Case, got: &Got, secrets: &[&str]) {
        if let Some(fault) = wire::judged(case, got) {
            self.wrong.lock().unwrap().push(fault);
        }
        let Got::Answer(answer) = got else {
            self.broken.fetch_add(1, Ordering::Relaxed);
            return;
        };
        for secret in secrets {
            if answer.raw.windows(secret.len()).any(|part| part == secret.as_bytes()) {
                let text = format!("{}: a secret is in the answer", case.what);
                self.wrong.lock().unwrap().push(text);
            }
        }
        match (answer.status, answer.body.is_empty()) {
            // Said before there was a request, where no route and no shape is known.
            (400..500, true) => self.broken.fetch_add(1, Ordering::Relaxed),
            (400..500, false) => {
                *self.refused.lock().unwrap().entry(answer.status).or_default() += 1;
                0
            }
            _ => self.contained.fetch_add(1, Ordering::Relaxed),
        };
    }
}

#[test]
fn bad_requests_are_refused_and_counted_and_nothing_leaks() {
    let seed = setting("OVERMIND_SEED").unwrap_or_else(|| RandomState::new().hash_one("hostile"));
    let count = soak::count(REQUESTS.0, REQUESTS.1);
    eprintln!("bad requests: OVERMIND_SEED={seed}");
    let mut world = World::new();
    world.is_well();
    let (peak, refused, broken) = (world.peak(), world.refused(), world.broken());
    // Some send an incomplete request all the time.
    let idlers: Vec<TcpStream> = (0..50)
        .map(|n| {
            let mut idler = TcpStream::connect(&world.known.door).unwrap();
            idler
                .write_all(&b"POST /llm/openai/v1/chat/completions HTTP/1.1\r\nHost: x"[..n])
                .unwrap();
            idler
        })
        .collect();

    let mut rng = Rng::new(seed);
    let seeds: Vec<u64> = (0..HANDS).map(|_| rng.next()).collect();
    let (tally, done) = (Tally::default(), AtomicUsize::new(0));
    let secrets = world.secrets();
    std::thread::scope(|scope| {
        for seed in seeds {
            let (known, tally, done, secrets) = (&world.known, &tally, &done, &secrets);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while u64::try_from(done.fetch_add(1, Ordering::Relaxed)).unwrap() < count {
                    let case = make::case(&mut rng, known);
                    let got = wire::send(&known.door, &case);
                    tally.note(&case, &got, secrets);
                }
            });
        }
    });
    drop(idlers);

    let wrong = tally.wrong.into_inner().unwrap();
    let shown: Vec<&String> = wrong.iter().take(12).collect();
    assert!(wrong.is_empty(), "seed {seed}, {} are wrong:\n{shown:#?}", wrong.len());
    let by_status = tally.refused.into_inner().unwrap();
    let ours: u64 = by_status.values().sum();
    let (bare, contained) = (tally.broken.into_inner(), tally.contained.into_inner());
    eprintln!("bad requests: {by_status:?}, no HTTP {bare}, contained {contained}");
    // A generator of a single kind would prove little.
    for status in [400, 401, 403, 404, 405, 413, 421, 422] {
        assert!(by_status.contains_key(&status), "no request was refused with {status}");
    }
    assert!(ours > count / 2 && bare > count / 50 && contained > count / 50);

    world.nobody_heard_of_it();
    assert_eq!(world.refused(), refused + ours, "each refusal is counted");
    until("all broken connections are counted", || (world.broken() >= broken + bare).then_some(()));
    let grown = world.peak() - peak;
    assert!(grown < GROWTH_KIB, "the server grew by {grown} KiB");
    world.is_well();
    let log = world.home.0.log();
    assert!(!log.contains("panic"), "{log}");
    let lines =
        log.lines().filter(|line| line.contains("answered") && line.contains("\"status\":4"));
    assert!(u64::try_from(lines.count()).unwrap() >= ours, "each refusal is in the log");
    assert_eq!(log.matches("\"level\":\"ERROR\"").count(), 0, "{log}");
    world.home.run(&["kill", "ann", "bob"]).ok();
    // No file of the data directory, rows and events among them, and no line of the log.
    world.home.0.keeps_none_of(&world.secrets());
    world.home.check();
}
