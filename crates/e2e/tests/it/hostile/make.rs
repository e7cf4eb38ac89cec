//! Random bad requests: from callers without a token, with the token of another caller or an
//! expired one; and from callers with a valid token who request more than their rights.

use crate::crash::rng::Rng;

use super::wire::{Case, Expect, Shape};

/// Tokens that open something, and those that opened something once.
pub(super) struct Tokens {
    pub(super) admin: String,
    pub(super) viewer: String,
    pub(super) ann: String,
    pub(super) bob: String,
    /// Ann's, for the service `tracker`.
    pub(super) placeholder: String,
    /// Of an ended run, of a revoked key, of another server.
    pub(super) dead: Vec<String>,
}

/// The knowledge of an attacker about the server.
pub(super) struct Known {
    /// `127.0.0.1:PORT`.
    pub(super) door: String,
    /// A port of this machine without a declaration.
    pub(super) elsewhere: u16,
    pub(super) tokens: Tokens,
    /// Ids of bob's run, and of a letter to bob.
    pub(super) bob: String,
    pub(super) letter: String,
}

/// A route: method, path, the API of its refusals, and a valid body.
type Place = (&'static str, &'static str, Shape, &'static str);

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
const MESSAGES: &str =
    r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}"#;
const RESPONSES: &str = r#"{"model":"m","input":"hi"}"#;
const RPC: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
const VALUE: &str = r#"{"value":"a-value-of-an-attacker"}"#;
const DECLARED: &str = r#"{"base_url":"http://127.0.0.1:1/v2","auth":"bearer","secret":"tracker_token","allow":[{"methods":["GET"],"path":"/**"}]}"#;
const GRANTED: &str = r#"{"agent":"ann","secret":"nobodys_token"}"#;
const BUDGET: &str = r#"{"scope":"swarm","per":"day","usd":1}"#;
const LETTER: &str = r#"{"to":"ann","payload":{"a":1}}"#;

const MODELS: &[Place] = &[
    ("POST", "/llm/openai/v1/chat/completions", Shape::OpenAi, CHAT),
    ("POST", "/llm/openai/v1/responses", Shape::OpenAi, RESPONSES),
    ("POST", "/llm/openai/v1/embeddings", Shape::OpenAi, RESPONSES),
    ("POST", "/llm/anthropic/v1/messages", Shape::Anthropic, MESSAGES),
    ("POST", "/llm/anthropic/v1/messages/count_tokens", Shape::Anthropic, MESSAGES),
];

const READ: &[Place] = &[
    ("GET", "/llm/openai/v1/models", Shape::OpenAi, ""),
    ("GET", "/llm/anthropic/v1/models", Shape::Anthropic, ""),
    ("GET", "/api/budgets", Shape::Problem, ""),
    ("GET", "/api/costs", Shape::Problem, ""),
    ("GET", "/api/halt", Shape::Problem, ""),
    ("GET", "/mesh/blackboard", Shape::Problem, ""),
    ("GET", "/mesh/blackboard/ann/x", Shape::Problem, ""),
    ("GET", "/mesh/watch?prefix=ann/", Shape::Problem, ""),
    ("GET", "/mesh/messages", Shape::Problem, ""),
    ("GET", "/mesh/subscriptions", Shape::Problem, ""),
    ("GET", "/mesh/agents", Shape::Problem, ""),
    ("GET", "/mesh/permissions", Shape::Problem, ""),
    ("GET", "/mesh/can?agent=ann&verb=read&object=ann/x", Shape::Problem, ""),
    ("GET", "/api/services/tracker/issues/7", Shape::Problem, ""),
    ("POST", "/api/services/tracker/issues/7", Shape::Problem, "{}"),
];

/// Paths of the vault, budgets and permissions: only for admins.
const ADMINS: &[Place] = &[
    ("GET", "/api/vault", Shape::Problem, ""),
    ("POST", "/api/vault/unlock", Shape::Problem, "{}"),
    ("POST", "/api/vault/rotate-master", Shape::Problem, "{}"),
    ("POST", "/api/vault/import", Shape::Problem, r#"{"secrets":{"x":"a-value-of-an-attacker"}}"#),
    ("GET", "/api/vault/secrets", Shape::Problem, ""),
    ("PUT", "/api/vault/secrets/tracker_token", Shape::Problem, VALUE),
    ("DELETE", "/api/vault/secrets/tracker_token", Shape::Problem, ""),
    ("POST", "/api/vault/secrets/tracker_token/rotate", Shape::Problem, VALUE),
    ("GET", "/api/vault/services", Shape::Problem, ""),
    ("PUT", "/api/vault/services/tracker", Shape::Problem, DECLARED),
    ("DELETE", "/api/vault/services/tracker", Shape::Problem, ""),
    ("GET", "/api/vault/grants", Shape::Problem, ""),
    ("POST", "/api/vault/grants", Shape::Problem, GRANTED),
    ("POST", "/api/vault/grants/revoke", Shape::Problem, r#"{"agent":"ann","service":"tracker"}"#),
    ("PUT", "/api/budgets", Shape::Problem, BUDGET),
    ("POST", "/api/halt", Shape::Problem, "{}"),
    ("POST", "/api/resume", Shape::Problem, "{}"),
    ("PUT", "/mesh/permissions/ann", Shape::Problem, r#"{"can_message":["*"]}"#),
    ("DELETE", "/mesh/permissions/ann", Shape::Problem, ""),
];

/// Requests that change the mesh, with objects as bodies.
const MESH: &[Place] = &[
    ("POST", "/mesh/message", Shape::Problem, LETTER),
    ("POST", "/mesh/messages/receive", Shape::Problem, "{}"),
    ("POST", "/mesh/messages/ack", Shape::Problem, r#"{"ids":[]}"#),
    ("POST", "/mesh/messages/requeue", Shape::Problem, r#"{"ids":[]}"#),
    ("POST", "/mesh/publish", Shape::Problem, r#"{"topic":"ann.x","payload":{}}"#),
    ("POST", "/mesh/register", Shape::Problem, r#"{"capabilities":["x"]}"#),
    ("POST", "/mesh/spawn", Shape::Problem, r#"{"agent":"ann","task":"x"}"#),
    ("POST", "/mesh/api", Shape::Problem, r#"{"service":"tracker","action":"x","params":{}}"#),
    ("PUT", "/mesh/blackboard/ann/x", Shape::Problem, "[1]"),
    ("POST", "/mesh/subscribe?topic=ann.x", Shape::Problem, ""),
    ("DELETE", "/mesh/subscribe?topic=ann.x", Shape::Problem, ""),
    ("POST", "/mcp", Shape::Rpc, RPC),
];

/// One request by chance.
pub(super) fn case(rng: &mut Rng, known: &Known) -> Case {
    match rng.below(100) {
        0..30 => token(rng, known),
        30..48 => body(rng, known),
        48..60 => not_his(rng, known),
        60..68 => path(rng, known),
        68..76 => host(rng, known),
        76..84 => wall(rng, known),
        84..92 => no_http(rng, known),
        _ => elsewhere(rng, known),
    }
}

fn any(rng: &mut Rng) -> Place {
    let all = [MODELS, READ, ADMINS, MESH];
    let group = rng.pick(&all);
    *rng.pick(group)
}

/// A request that is well-formed as long as its parts are.
struct Request {
    line: String,
    host: Option<String>,
    headers: Vec<Vec<u8>>,
    body: Vec<u8>,
    /// Its length and type are declared.
    framed: bool,
}

impl Request {
    fn new(known: &Known, (method, path, _, body): Place) -> Self {
        let (line, host) = (format!("{method} {path} HTTP/1.1"), Some(known.door.clone()));
        Self { line, host, headers: Vec::new(), body: body.as_bytes().to_vec(), framed: true }
    }

    fn bearer(mut self, token: &str) -> Self {
        self.headers.push(format!("Authorization: Bearer {token}").into_bytes());
        self
    }

    fn header(mut self, line: impl Into<Vec<u8>>) -> Self {
        self.headers.push(line.into());
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = format!("{}\r\n", self.line).into_bytes();
        if let Some(host) = &self.host {
            out.extend(format!("Host: {host}\r\n").into_bytes());
        }
        for header in &self.headers {
            out.extend_from_slice(header);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"Connection: close\r\n");
        if self.framed && !self.body.is_empty() {
            let length = self.body.len();
            let framing = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
            out.extend(framing.into_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body);
        out
    }

    fn case(&self, what: impl Into<String>, shape: Shape, expect: Expect) -> Case {
        Case { what: what.into(), bytes: self.bytes(), shape, expect, cut: false }
    }
}

fn word(rng: &mut Rng, most: u64) -> String {
    let length = 1 + rng.below(most);
    (0..length).map(|_| char::from(*rng.pick(b"abcdefghijklmnopqrstuvwxyz0123456789_-"))).collect()
}

/// The same token with one digit that is another.
fn bent(rng: &mut Rng, token: &str) -> String {
    let mut bytes = token.as_bytes().to_vec();
    let digits: Vec<usize> = (4..bytes.len()).filter(|at| bytes[*at].is_ascii_digit()).collect();
    let at = *rng.pick(&digits);
    bytes[at] = b'0' + (bytes[at] - b'0' + 1 + u8::try_from(rng.below(8)).expect("small")) % 10;
    String::from_utf8(bytes).expect("it was text")
}

/// A valid request with an invalid token.
fn token(rng: &mut Rng, known: &Known) -> Case {
    let place = any(rng);
    let (_, path, shape, _) = place;
    let mut request = Request::new(known, place);
    let tokens = &known.tokens;
    let live = [&tokens.admin, &tokens.ann, &tokens.bob, &tokens.viewer];
    let what = match rng.below(13) {
        0 => "no token",
        1 => {
            request = request.header("Authorization: Bearer ");
            "an empty token"
        }
        2 => {
            let kind = rng.pick(&["ovs_", "ovk_", "sk-ovm-", "sk-ant-ovm-", "sk-", "eyJ", ""]);
            let made = format!("{kind}{}", word(rng, 80));
            request = request.bearer(&made);
            "a token that somebody made up"
        }
        3 | 4 => {
            request = request.bearer(rng.pick::<String>(&tokens.dead));
            "a token that is over, or another server's"
        }
        5 | 6 => {
            let token = (*rng.pick(&live)).clone();
            let made = bent(rng, &token);
            request = request.bearer(&made);
            "a token with another digit"
        }
        7 => {
            let made = format!("x-api-key: {}", bent(rng, &tokens.ann));
            request = request.bearer(&tokens.ann).header(made);
            "two tokens"
        }
        8 => {
            request = request.header(format!("Authorization: Basic {}", word(rng, 40)));
            "another scheme"
        }
        9 => {
            request = request.bearer(&tokens.ann).bearer(&tokens.bob);
            "two heads with a token"
        }
        10 => {
            let mut line = b"Authorization: Bearer ".to_vec();
            line.extend((0..20).map(|_| 0x80 | u8::try_from(rng.below(0x80)).expect("small")));
            request = request.header(line);
            "a token of no letters"
        }
        11 => {
            request = request.bearer(&"x".repeat(600));
            "a token without an end"
        }
        _ => {
            let token = (*rng.pick(&live)).clone();
            let sign = if path.contains('?') { '&' } else { '?' };
            let (method, path, ..) = place;
            request.line = match rng.below(3) {
                0 => format!("{method} {path}{sign}api_key={token} HTTP/1.1"),
                1 => format!("{method} {path}{sign}access_token={token} HTTP/1.1"),
                // It would stand in the log, where paths do.
                _ => format!("GET /mesh/blackboard/{token}/{} HTTP/1.1", word(rng, 8)),
            };
            let own = request.line.contains("/mesh/blackboard/");
            request = request.header(format!("Cookie: token={token}"));
            let shape = if own { Shape::Problem } else { shape };
            return request.case("a token where none is read", shape, Expect::Refused);
        }
    };
    request.case(what, shape, Expect::Refused)
}

/// An authorized caller, and an unacceptable body.
fn body(rng: &mut Rng, known: &Known) -> Case {
    let calm: Vec<Place> = [MODELS, ADMINS, MESH]
        .concat()
        .into_iter()
        // Requests that stop everything are not tried with an authorized token.
        .filter(|(_, path, _, body)| {
            !body.is_empty() && !path.contains("halt") && !path.contains("resume")
        })
        .collect();
    let place = *rng.pick(&calm);
    let (_, path, shape, right) = place;
    let (model, rpc, value) =
        (path.starts_with("/llm"), path == "/mcp", path.starts_with("/mesh/blackboard"));
    let token = if model || rpc { &known.tokens.ann } else { &known.tokens.admin };
    let mut request = Request::new(known, place).bearer(token);
    let mut expect = Expect::Refused;
    let objects_only = !value && !rpc;
    let (what, body): (&str, Vec<u8>) = match rng.below(16) {
        0 => ("it breaks off", right.as_bytes()[..right.len() - 1].to_vec()),
        1 => {
            let mut bytes = right.as_bytes().to_vec();
            bytes.insert(rng.index(bytes.len()), 0xff);
            ("a byte that no text has", bytes)
        }
        2 => {
            let depth = 200 + rng.index(50_000);
            if model {
                // Unknown fields are forwarded unchanged at any depth.
                expect = Expect::Contained;
                let text =
                    format!(r#"{{"a":{}{},{}"#, "[".repeat(depth), "]".repeat(depth), &right[1..]);
                ("a deep field", text.into_bytes())
            } else {
                ("as deep as a well", format!("{{\"a\":{}", "[".repeat(depth)).into_bytes())
            }
        }
        3 => ("more after its end", format!("{right}{right}").into_bytes()),
        4 if objects_only => ("a list", format!("[{right}]").into_bytes()),
        5 if objects_only => ("nothing", b"null".to_vec()),
        6 if objects_only => ("a number", rng.next().to_string().into_bytes()),
        7 if objects_only && !model => {
            let more = if right == "{}" { "" } else { "," };
            let text = format!(r#"{{"{}x":{}{more}{}"#, word(rng, 20), rng.next(), &right[1..]);
            ("a field that nobody knows", text.into_bytes())
        }
        8 if model => {
            let text = format!(r#"{{"model":"other","Model":"third",{}"#, &right[1..]);
            ("two models", text.into_bytes())
        }
        9 if model => {
            let wrong = *rng.pick(&[
                r#"{"messages":[]}"#,
                r#"{"model":7}"#,
                r#"{"model":""}"#,
                r#"{"model":null}"#,
                r#"{"model":["m"]}"#,
                r#"{"model":"m","stream":"yes"}"#,
                r#"{"model":"m","max_tokens":-1}"#,
                r#"{"model":"m","max_tokens":1e999}"#,
                r#"{"model":"m","max_output_tokens":"9"}"#,
                r#"{"model":"m","n":-1}"#,
            ]);
            ("a wrong field", wrong.as_bytes().to_vec())
        }
        10 => {
            let mut bytes = b"\xef\xbb\xbf".to_vec();
            bytes.extend_from_slice(right.as_bytes());
            ("a mark of bytes before it", bytes)
        }
        11 => {
            let wide = right.encode_utf16().flat_map(u16::to_le_bytes).collect();
            ("letters of two bytes", wide)
        }
        12 => {
            let bytes = (0..1 + rng.below(300))
                .map(|_| 0x80 | u8::try_from(rng.below(128)).expect("small"));
            ("noise", bytes.collect())
        }
        13 if !model => {
            let kind =
                *rng.pick(&["text/plain", "application/xml", "multipart/form-data", "", "json"]);
            request.framed = false;
            let length = right.len();
            let framing = format!("Content-Type: {kind}\r\nContent-Length: {length}");
            request = request.header(framing);
            ("another type", right.as_bytes().to_vec())
        }
        14 => {
            request.framed = false;
            let length = 33_554_433 + rng.below(1 << 40);
            let framing = format!("Content-Type: application/json\r\nContent-Length: {length}");
            request = request.header(framing);
            ("more than anybody reads", Vec::new())
        }
        _ => {
            ("quotes of another language", right.replace('"', "'").replace('1', "NaN").into_bytes())
        }
    };
    request.body = body;
    // Neither has a quote or a digit to lose.
    if what.starts_with("quotes") && right == "{}" {
        request.body = b"{'':}".to_vec();
    }
    request.case(format!("{path}: {what}"), shape, expect)
}

/// A valid token, and an object of another caller.
fn not_his(rng: &mut Rng, known: &Known) -> Case {
    let Known { bob, letter, tokens, .. } = known;
    let own = Shape::Problem;
    if rng.one_in(4) {
        let place = *rng.pick(ADMINS);
        // Names, without values, are visible to readers.
        let looks = place.0 != "GET" && rng.one_in(2);
        let token = if looks { &tokens.viewer } else { &tokens.ann };
        return Request::new(known, place).bearer(token).case("an admin's", own, Expect::Refused);
    }
    if rng.one_in(6) {
        let writes = [MODELS, &MESH[..1], &MESH[6..10]].concat();
        let place = *rng.pick(&writes);
        let request = Request::new(known, place).bearer(&tokens.viewer);
        return request.case("one who may only look", place.2, Expect::Refused);
    }
    let run = format!("/api/runs/{bob}");
    let (line, body): (String, String) = match rng.below(34) {
        0 => ("PUT /mesh/blackboard/ann/x?agent_id=bob".into(), "1".into()),
        1 => ("PUT /mesh/blackboard/bob/secret".into(), "1".into()),
        2 => ("DELETE /mesh/blackboard/bob/secret".into(), String::new()),
        3 => ("GET /mesh/blackboard/bob/secret".into(), String::new()),
        4 => ("GET /mesh/blackboard/ann/x?agent_id=bob".into(), String::new()),
        5 => ("GET /mesh/blackboard?prefix=bob/".into(), String::new()),
        6 => ("GET /mesh/watch?prefix=bob/".into(), String::new()),
        7 => ("POST /mesh/message".into(), r#"{"to":"bob"}"#.into()),
        8 => ("POST /mesh/message".into(), r#"{"to":"ann","from_agent":"bob"}"#.into()),
        9 => ("POST /mesh/message".into(), r#"{"to":"ann","from_agent":"mesh"}"#.into()),
        10 => ("GET /mesh/messages?agent_id=bob".into(), String::new()),
        11 => ("POST /mesh/messages/receive".into(), r#"{"agent_id":"bob"}"#.into()),
        12 => ("POST /mesh/messages/ack".into(), format!(r#"{{"ids":["{letter}"]}}"#)),
        13 => (
            "POST /mesh/messages/ack".into(),
            format!(r#"{{"agent_id":"bob","ids":["{letter}"]}}"#),
        ),
        14 => ("POST /mesh/messages/requeue".into(), format!(r#"{{"ids":["{letter}"]}}"#)),
        15 => ("POST /mesh/publish".into(), r#"{"topic":"bob.x","payload":{}}"#.into()),
        16 => {
            ("POST /mesh/publish".into(), r#"{"topic":"ann.x","source":"bob","payload":{}}"#.into())
        }
        17 => ("POST /mesh/subscribe?topic=bob.**".into(), String::new()),
        18 => ("POST /mesh/subscribe?topic=ann.x&agent_id=bob".into(), String::new()),
        19 => ("POST /mesh/register".into(), r#"{"agent_id":"bob"}"#.into()),
        20 => ("POST /mesh/spawn".into(), r#"{"agent":"bob","task":"x"}"#.into()),
        21 => ("POST /mesh/spawn".into(), r#"{"agent":"ann","spawned_by":"bob"}"#.into()),
        22 => ("GET /mesh/agents/bob/history".into(), String::new()),
        23 => (format!("GET {run}"), String::new()),
        24 => (format!("POST {run}/cancel"), "{}".into()),
        25 => (format!("POST {run}/stop"), "{}".into()),
        26 => (format!("POST {run}/send"), r#"{"text":"x"}"#.into()),
        27 => (format!("POST {run}/input"), r#"{"input":"x"}"#.into()),
        28 => (format!("GET {run}/log"), String::new()),
        29 => (format!("GET {run}/events"), String::new()),
        30 => (format!("POST {run}/tools/call"), r#"{"tool":"run_shell","args":{}}"#.into()),
        31 => ("GET /api/services/openai/models".into(), String::new()),
        32 => (format!("DELETE /api/budgets/lim_{}", &bob[4..]), String::new()),
        _ => (format!("POST {run}/fork"), "{}".into()),
    };
    let mut request = Request::new(known, ("", "", own, "")).bearer(&tokens.ann);
    request.line = format!("{line} HTTP/1.1");
    // Foreign messages are left out of the answer, like deleted ones.
    let among = body.starts_with(r#"{"ids""#);
    request.body = body.into_bytes();
    let expect = if among { Expect::Contained } else { Expect::Refused };
    request.case("ann takes what is not hers", own, expect)
}

/// Paths, methods and queries without a meaning, or with another one elsewhere.
fn path(rng: &mut Rng, known: &Known) -> Case {
    let own = Shape::Problem;
    let noise = word(rng, 12);
    let (line, shape) = match rng.below(22) {
        0 => (format!("GET /mesh/blackboard/ann/../bob/{noise}"), own),
        1 => (format!("PUT /mesh/blackboard/%2e%2e/{noise}"), own),
        2 => (format!("GET /mesh/blackboard/ann//{noise}"), own),
        3 => (format!("GET /mesh/blackboard/{noise}%00"), own),
        4 => (format!("GET /mesh/blackboard/{noise}%ff%fe"), own),
        5 => (format!("GET /mesh/blackboard/{}", "a".repeat(600)), own),
        6 => (format!("DELETE /mesh/blackboard/{}", "a/".repeat(20)), own),
        7 => (format!("GET /mesh/blackboard/{noise}*"), own),
        8 => (format!("GET /mesh/blackboard/{noise}%5c{noise}"), own),
        9 => (
            format!(
                "GET /mesh/blackboard?limit={}",
                rng.pick(&["0", "-1", "1001", "x", "1e9", "%00"])
            ),
            own,
        ),
        10 => (format!("GET /mesh/messages?cursor={noise}x"), own),
        11 => (format!("GET /mesh/blackboard?prefix=a&prefix={noise}"), own),
        12 => (format!("GET /api/costs?by={noise}x"), own),
        13 => (format!("GET /mesh/watch?last_event_id={noise}x"), own),
        14 => (format!("GET /api/budgets/{noise}"), own),
        15 => (format!("GET /mesh/blackboard?{noise}x=1"), own),
        16 => {
            let (_, path, shape, _) = any(rng);
            let method =
                *rng.pick(&["BREW", "PROPFIND", "TRACE", "OPTIONS", "get", "LINK", "PURGE"]);
            (format!("{method} {path}"), shape)
        }
        17 => (format!("POST /llm/openai/v1/../../../api/vault/secrets/{noise}"), Shape::OpenAi),
        18 => (format!("POST /llm/anthropic/v1/messages/%2e%2e/{noise}"), Shape::Anthropic),
        19 => (format!("GET /llm/openai/v1/models/..%2f..%2f{noise}"), Shape::OpenAi),
        20 => (format!("GET //{noise}.example/llm/openai/v1/models"), own),
        _ => (format!("GET /api/vault/secrets/..%2f{noise}"), own),
    };
    let shape = if shape == Shape::Rpc { own } else { shape };
    let mut request = Request::new(known, ("", "", shape, "")).bearer(&known.tokens.admin);
    // Checks of services run only for callers who may call them.
    if line.contains("/mcp") {
        request = Request::new(known, ("", "", shape, "")).bearer(&known.tokens.ann);
    }
    request.line = format!("{line} HTTP/1.1");
    request.case("a path that leads nowhere", shape, Expect::Refused)
}

/// Whom the request means is not this server, or not clear.
fn host(rng: &mut Rng, known: &Known) -> Case {
    let place = any(rng);
    let (method, path, shape, _) = place;
    let mut request = Request::new(known, place).bearer(&known.tokens.ann);
    let evil = format!("{}.example", word(rng, 10));
    match rng.below(9) {
        0 => request.host = Some(evil),
        1 => request.host = None,
        2 => request = request.header(format!("Host: {evil}")),
        3 => request.host = Some(format!("{}@{evil}", known.door)),
        4 => request.host = Some(format!("{}/{evil}", known.door)),
        5 => request.line = format!("{method} http://{evil}{path} HTTP/1.1"),
        6 => request.line = format!("{method} http://127.0.0.1:{}{path} HTTP/1.1", known.elsewhere),
        7 => request = request.header(format!("Origin: https://{evil}")),
        _ => {
            request.line =
                format!("{method} http://{}@{}{path} HTTP/1.1", word(rng, 8), known.door);
        }
    }
    // Permissions are checked only after it is clear that this server is meant.
    let shape = if shape == Shape::Rpc { Shape::Problem } else { shape };
    request.case("another host", shape, Expect::Refused)
}

/// Requests that a service's declaration does not allow.
fn wall(rng: &mut Rng, known: &Known) -> Case {
    let tokens = &known.tokens;
    let noise = word(rng, 10);
    let there = format!("127.0.0.1:{}", known.elsewhere);
    let rest = match rng.below(20) {
        0 => format!("issues/../admin/{noise}"),
        1 => format!("issues/..%2f..%2fadmin/{noise}"),
        2 => format!("issues/%2e%2e/{noise}"),
        3 => format!("issues/%252e%252e%252f{noise}"),
        4 => format!("issues/..;/{noise}"),
        5 => format!("/{there}/issues/{noise}"),
        6 => format!("issues/\\..\\{noise}"),
        7 => format!("issues/%5c..%5c{noise}"),
        8 => format!("issues/%0d%0aHost:%20{there}%0d%0a{noise}"),
        9 => format!("issues/%00{noise}"),
        10 => format!("issues/{noise}%"),
        11 => format!("issues/%zz{noise}"),
        12 => format!("@{there}/issues/{noise}"),
        13 => format!(".{there}/issues/{noise}"),
        14 => format!("http://{there}/issues/{noise}"),
        15 => format!("admin/{noise}"),
        16 => format!("issues/%2f%2f{there}"),
        17 => format!("issues/{}", "a".repeat(2100)),
        18 => format!("issues/{noise}?{}", "a=b&".repeat(2100)),
        _ => format!("Issues/{noise}"),
    };
    let what = "beside what the service allows";
    let method = *rng.pick(&["GET", "POST"]);
    let mut request = Request::new(known, ("", "", Shape::Problem, ""));
    request = match rng.below(2) {
        0 => request.bearer(&tokens.ann),
        _ => request.header(format!("X-Token: {}", tokens.placeholder)),
    };
    request.line = format!("{method} /api/services/tracker/{rest} HTTP/1.1");
    match rng.below(8) {
        0 => {
            let method = *rng.pick(&["PUT", "PATCH", "DELETE"]);
            request.line = format!("{method} /api/services/tracker/issues/{noise} HTTP/1.1");
        }
        1 => {
            let name =
                rng.pick(&["tracker%00", "tracker@evil", "Tracker", "..", "%2e%2e", "openai"]);
            request.line = format!("GET /api/services/{name}/issues/{noise} HTTP/1.1");
        }
        2 => {
            request.line = "POST /api/services/tracker/issues/7 HTTP/1.1".to_owned();
            let length = 33_554_433 + rng.below(1 << 40);
            request = request.header(format!("Content-Length: {length}"));
        }
        _ => {}
    }
    request.case(what, Shape::Problem, Expect::Refused)
}

/// Requests that two HTTP parsers would read differently, and invalid ones.
fn no_http(rng: &mut Rng, known: &Known) -> Case {
    let place = *rng.pick(MODELS);
    let (_, path, shape, right) = place;
    let door = &known.door;
    let token = &known.tokens.ann;
    let hidden = format!(
        "GET /api/vault/secrets HTTP/1.1\r\nHost: {door}\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    let head = format!("POST {path} HTTP/1.1\r\nHost: {door}\r\nAuthorization: Bearer {token}\r\n");
    let with = |framing: &str, body: &str| format!("{head}{framing}\r\n\r\n{body}").into_bytes();
    let length = right.len();
    let (what, bytes) = match rng.below(20) {
        0 => {
            let other = length + 1 + rng.index(50);
            let framing = format!("Content-Length: {length}\r\nContent-Length: {other}");
            ("two lengths", with(&framing, &format!("{right}{hidden}")))
        }
        1 => {
            ("a list of lengths", with(&format!("Content-Length: {length}, {}", length + 1), right))
        }
        2 => {
            let wrong =
                *rng.pick(&["+5", "-1", "0x10", "1e3", "5 5", "18446744073709551616", "five"]);
            ("no length", with(&format!("Content-Length: {wrong}"), right))
        }
        3 => {
            let wrong = *rng.pick(&["xchunked", "gzip", "chunked, identity", "chunked, gzip"]);
            ("an unknown framing", with(&format!("Transfer-Encoding: {wrong}"), right))
        }
        4 => {
            let old =
                String::from_utf8(with("Transfer-Encoding: chunked", "0\r\n\r\n")).expect("text");
            ("pieces before there were any", old.replace("HTTP/1.1", "HTTP/1.0").into_bytes())
        }
        5 => {
            ("a piece without a size", with("Transfer-Encoding: chunked", "zz\r\nab\r\n0\r\n\r\n"))
        }
        6 => {
            let wrong = "ffffffffffffffffff\r\nab\r\n0\r\n\r\n";
            ("a piece without an end", with("Transfer-Encoding: chunked", wrong))
        }
        7 => {
            let framing = format!("Content-Length : {length}");
            ("a space before the colon", with(&framing, right))
        }
        8 => ("a folded line", with(&format!("X-A: b\r\n c\r\nContent-Length: {length}"), right)),
        9 => (
            "a line end in a value",
            with(&format!("X-A: b\rc\r\nContent-Length: {length}"), right),
        ),
        10 => ("a zero in a value", with(&format!("X-A: b\0c\r\nContent-Length: {length}"), right)),
        11 => {
            let long = format!("X-A: {}", "a".repeat(70_000 + rng.index(50_000)));
            ("a head without an end", with(&long, ""))
        }
        12 => {
            let many: Vec<String> =
                (0..150 + rng.below(500)).map(|n| format!("X-{n}: a")).collect();
            ("too many heads", with(&many.join("\r\n"), ""))
        }
        13 => {
            let line = format!("GET /{} HTTP/1.1\r\nHost: {door}\r\n\r\n", "a".repeat(70_000));
            ("a path without an end", line.into_bytes())
        }
        14 => ("another protocol", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        15 => ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcdefgh\r\n\r\n".to_vec()),
        16 => {
            let bytes =
                (0..1 + rng.below(2000)).map(|_| u8::try_from(rng.below(256)).expect("a byte"));
            // The first is not a valid start of a method.
            ("noise", [vec![0x01], bytes.collect()].concat())
        }
        17 => ("a version that never was", format!("GET {path} HTTP/9.9\r\n\r\n").into_bytes()),
        18 => ("half of it", with(&format!("Content-Length: {}", length + 50), right)),
        _ => {
            let line = format!("CONNECT {path} HTTP/1.1\r\nHost: {door}\r\n\r\n");
            ("a tunnel", line.into_bytes())
        }
    };
    Case { what: what.to_owned(), bytes, shape, expect: Expect::Broken, cut: true }
}

/// Text and headers that would redirect a call if they were evaluated.
fn elsewhere(rng: &mut Rng, known: &Known) -> Case {
    let there = format!("127.0.0.1:{}", known.elsewhere);
    let url = format!("http://{there}/v1");
    let heads = [
        format!("X-Forwarded-Host: {there}"),
        format!("Forwarded: host={there};proto=http"),
        format!("X-Original-URL: {url}"),
        format!("X-Rewrite-URL: {url}"),
        format!("X-Base-Url: {url}"),
        format!("X-Api-Base: {url}"),
        format!("X-Host: {there}"),
        format!("X-Upstream: {url}"),
        "X-HTTP-Method-Override: DELETE".to_owned(),
        format!("OpenAI-Organization: {}", word(rng, 9)),
        format!("Proxy-Authorization: Basic {}", word(rng, 9)),
        format!("Via: 1.1 {there}"),
    ];
    let tokens = &known.tokens;
    let mut request = if rng.one_in(3) {
        let mut request = Request::new(known, ("", "", Shape::Problem, ""));
        request.line = format!(
            "GET /api/services/tracker/issues/{}?base_url={url}&host={there} HTTP/1.1",
            word(rng, 9)
        );
        match rng.below(2) {
            0 => request.bearer(&tokens.ann),
            _ => request.header(format!("X-Token: {}", tokens.placeholder)),
        }
    } else {
        let place = *rng.pick(&MODELS[..4]);
        let mut request = Request::new(known, place).bearer(&tokens.ann);
        let field = *rng.pick(&[
            "api_base",
            "base_url",
            "api_url",
            "host",
            "endpoint",
            "url",
            "proxy",
            "provider",
            "api_key",
            "extra_headers",
            "extra_body",
            "model_url",
            "azure_endpoint",
            "organization",
        ]);
        let right = place.3;
        request.body = match rng.below(3) {
            0 => {
                let name = rng.pick(&[
                    "http://{}/v1",
                    "m@{}",
                    "//{}",
                    "../../{}",
                    "m?base={}",
                    "custom:http://{}",
                ]);
                right.replace(r#""m""#, &format!("\"{}\"", name.replace("{}", &there)))
            }
            1 => format!(r#"{{"{field}":{{"url":"{url}","Host":"{there}"}},{}"#, &right[1..]),
            _ => format!(r#"{{"{field}":"{url}",{}"#, &right[1..]),
        }
        .into_bytes();
        if rng.one_in(3) {
            request.line = format!("{} {}?api_base={url} HTTP/1.1", place.0, place.1);
        }
        request
    };
    for _ in 0..rng.below(4) {
        request = request.header(rng.pick(&heads).clone());
    }
    if rng.one_in(5) {
        // Loopback names mean this server, with any port.
        request.host = Some(there);
    }
    request.case("a word about where to go", Shape::Problem, Expect::Contained)
}
