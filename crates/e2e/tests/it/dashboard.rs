//! The dashboard as a browser without JavaScript uses it: links, forms, cookies, redirects.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

mod chromium;
mod kinds;
mod pages;
mod scene;
mod settings;

use reqwest::header::{HOST, LOCATION, ORIGIN, SET_COOKIE};
use reqwest::{Client, Response, StatusCode, redirect};
use serde_json::{Value, json};

use crate::home::{Home, until};

/// A browser: it keeps one cookie and follows redirects only on request.
struct Browser {
    client: Client,
    base: String,
    cookie: String,
}

impl Browser {
    fn new(url: &str) -> Self {
        // A second browser of a test finds it installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().redirect(redirect::Policy::none()).build().unwrap();
        Self { client, base: url.to_owned(), cookie: String::new() }
    }

    async fn get(&mut self, path: &str) -> Response {
        let request = self.client.get(format!("{}{path}", self.base));
        let answer = request.header("cookie", &self.cookie).send().await.unwrap();
        self.keep(&answer);
        answer
    }

    async fn text(&mut self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        answer.text().await.unwrap()
    }

    async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Response {
        let mut body = String::new();
        for (name, value) in fields {
            let value: String = value.bytes().map(|byte| format!("%{byte:02x}")).collect();
            body.push_str(&format!("{name}={value}&"));
        }
        let request = self.client.post(format!("{}{path}", self.base)).body(body);
        let kind = "application/x-www-form-urlencoded";
        let request = request.header("content-type", kind).header(ORIGIN, &self.base);
        let answer = request.header("cookie", &self.cookie).send().await.unwrap();
        self.keep(&answer);
        answer
    }

    fn keep(&mut self, answer: &Response) {
        if let Some(set) = answer.headers().get(SET_COOKIE) {
            let set = set.to_str().unwrap();
            assert!(set.contains("; HttpOnly; SameSite=Strict; Path=/"), "{set}");
            self.cookie = set.split(';').next().unwrap().to_owned();
        }
    }

    async fn sign_in(&mut self, key: &str) {
        let answer = self.post("/login", &[("key", key), ("next", "/runs")]).await;
        assert_eq!(answer.status(), StatusCode::SEE_OTHER);
        assert_eq!(answer.headers()[LOCATION], "/runs");
    }
}

/// The token of the forms of a page.
fn csrf(page: &str) -> String {
    let (_, rest) = page.split_once("name=\"csrf\" value=\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

/// The action of the first form that contains `part`.
fn action(page: &str, part: &str) -> String {
    let at = page.find(part).unwrap_or_else(|| panic!("no `{part}` in {page}"));
    let (_, form) = page[..at].rsplit_once("action=\"").unwrap();
    form.split('"').next().unwrap().to_owned()
}

fn up() -> (Home, String) {
    let mut home = Home::new();
    let policy = home.path().join("policy.toml");
    std::fs::write(&policy, "version = 1\n").unwrap();
    let env = [("OVERMIND_POLICY", policy.to_str().unwrap())];
    let said = home.start(&["--listen", "127.0.0.1:0"], &env);
    let url = said["url"].as_str().unwrap().to_owned();
    (home, url)
}

fn key(home: &Home, name: &str, role: &str) -> String {
    let made = home.run(&["key", "create", name, "--role", role, "-o", "json"]).ok().json();
    made["secret"].as_str().unwrap().to_owned()
}

const HOSTILE: &str = "<script>alert('task')</script>\"'><img src=x onerror=alert(1)>";

fn asker(home: &Home) {
    let turns = json!([
        {"text": "<b>reading</b>", "calls": [{"name": "run_shell", "args":
            {"command": "printf '<script>alert(2)</script>\\033]0;owned\\007'"}}]},
        {"calls": [{"name": "ask_user", "args": {"message": "which? <script>alert(3)</script>"}}]},
        {"calls": [{"name": "final_answer", "args": {"message": "<svg onload=alert(4)> done"}}]},
    ]);
    home.scripted("asker", &turns, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_shows_only_the_sign_in_without_a_session() {
    let (home, url) = up();
    let mut browser = Browser::new(&url);
    for path in ["/", "/runs", "/agents", "/runs/new", "/live", "/runs/x/output"] {
        let answer = browser.get(path).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
        assert!(answer.text().await.unwrap().contains("overmind dash"), "{path}");
    }
    let wrong = browser.post("/login", &[("key", "ovk_wrong")]).await;
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
    assert!(wrong.text().await.unwrap().contains("the token is not valid"));
    // A key that is no sign-in is no cookie.
    let viewer = key(&home, "vera", "viewer");
    let port = url.rsplit(':').next().unwrap();
    browser.cookie = format!("overmind-{port}={viewer}");
    assert_eq!(browser.get("/").await.status(), StatusCode::UNAUTHORIZED);
    // The API accepts no cookie, and pages of other origins and names get nothing.
    browser.sign_in(&viewer).await;
    assert_eq!(browser.get("/api/runs").await.status(), StatusCode::UNAUTHORIZED);
    let foreign = browser.client.get(format!("{url}/")).header("cookie", &browser.cookie);
    let foreign = foreign.header(ORIGIN, "https://evil.example").send().await.unwrap();
    assert_eq!(foreign.status(), StatusCode::FORBIDDEN);
    let rebound = browser.client.get(format!("{url}/")).header("cookie", &browser.cookie);
    let rebound = rebound.header(HOST, "evil.example").send().await.unwrap();
    assert_eq!(rebound.status(), StatusCode::MISDIRECTED_REQUEST);
    let page = browser.get("/").await;
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
    assert!(!policy.contains("unsafe"), "{policy}");
    // Programs of tools cannot sign in.
    let made = home.run(&["key", "create", "tools", "--scope", "mcp", "-o", "json"]).ok().json();
    let tools = made["secret"].as_str().unwrap().to_owned();
    let answer = Browser::new(&url).post("/login", &[("key", &tools)]).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_link_works_once_and_revoking_its_key_ends_the_sign_ins() {
    let (mut home, url) = up();
    let link = home.run(&["dash", "-o", "json"]).ok().json()["url"].as_str().unwrap().to_owned();
    assert!(link.starts_with("http://overmind.localhost:"), "{link}");
    let path = &link[link.find("/login").unwrap()..];
    let mut browser = Browser::new(&url);
    // Opening another person's link signs nobody in, however often.
    for _ in 0..2 {
        let head = browser.client.head(format!("{url}{path}")).send().await.unwrap();
        assert_eq!((head.status(), head.headers().get(SET_COOKIE)), (StatusCode::OK, None));
    }
    let shown = browser.get(path).await;
    assert_eq!((shown.status(), browser.cookie.as_str()), (StatusCode::OK, ""));
    let shown = shown.text().await.unwrap();
    assert!(shown.contains("Sign in as admin</button>"), "{shown}");
    let (_, code) = path.split_once("?code=").unwrap();
    let code = [("code", code), ("next", "/runs")];
    assert_eq!(action(&shown, code[0].1), "/login");
    // Nor can it press the button instead of the person.
    let body = format!("code={}&next=/runs", code[0].1);
    let forged = browser.client.post(format!("{url}/login")).body(body);
    let forged = forged.header(ORIGIN, "http://evil.example").send().await.unwrap();
    assert_eq!(forged.status(), StatusCode::FORBIDDEN);
    let first = browser.post("/login", &code).await;
    assert_eq!(
        (first.status(), &first.headers()[LOCATION]),
        (StatusCode::SEE_OTHER, &"/runs".parse().unwrap())
    );
    assert!(browser.text("/").await.contains("admin · admin"));
    for again in
        [Browser::new(&url).get(path).await, Browser::new(&url).post("/login", &code).await]
    {
        assert_eq!(again.status(), StatusCode::UNAUTHORIZED);
        assert!(again.text().await.unwrap().contains("used before"));
    }

    let ann = key(&home, "ann", "operator");
    let mut anns = Browser::new(&url);
    anns.sign_in(&ann).await;
    assert!(anns.text("/").await.contains("ann · operator"));
    // A key of a sign-in cannot sign in: the new key would survive its revocation.
    let minted = anns.cookie.split_once('=').unwrap().1.to_owned();
    let renewed = Browser::new(&url).post("/login", &[("key", &minted), ("next", "/runs")]).await;
    assert_eq!(renewed.status(), StatusCode::FORBIDDEN);
    // A sign-in survives a restart of the server, which may listen elsewhere then.
    home.kill();
    let policy = home.path().join("policy.toml");
    let env = [("OVERMIND_POLICY", policy.to_str().unwrap())];
    let listen = url.trim_start_matches("http://").to_owned();
    home.start(&["--listen", &listen], &env);
    assert!(anns.text("/").await.contains("ann · operator"));
    let keys = home.run(&["key", "list", "-o", "json"]).ok().json();
    let id =
        keys.as_array().unwrap().iter().find(|key| key["name"] == "ann").unwrap()["id"].clone();
    home.run(&["key", "revoke", id.as_str().unwrap()]).ok();
    assert_eq!(anns.get("/").await.status(), StatusCode::UNAUTHORIZED);
    // Signing out ends the key, not the cookie alone.
    let token = csrf(&browser.text("/").await);
    let cookie = browser.cookie.clone();
    let out = browser.post("/logout", &[("csrf", &token)]).await;
    assert_eq!(out.status(), StatusCode::SEE_OTHER);
    browser.cookie = cookie;
    assert_eq!(browser.get("/").await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_started_answered_and_read_without_scripts_and_text_stays_text() {
    let (home, url) = up();
    asker(&home);
    let mut browser = Browser::new(&url);
    browser.sign_in(&key(&home, "ann", "operator")).await;
    let form = browser.text("/runs/new").await;
    let token = csrf(&form);
    let fields =
        [("csrf", token.as_str()), ("agent", "asker"), ("task", HOSTILE), ("name", "docs")];
    let bad = browser.post("/runs", &[&fields[..3], &[("name", "No Name")]].concat()).await;
    assert_eq!(bad.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let kept = bad.text().await.unwrap();
    assert!(kept.contains("value=\"No Name\"") && kept.contains("&#60;script&#62;alert(&#39;task"));
    let made = browser.post("/runs", &fields).await;
    assert_eq!(made.status(), StatusCode::SEE_OTHER);
    let run = made.headers()[LOCATION].to_str().unwrap().to_owned();
    home.wait_for(run.trim_start_matches("/runs/"), "awaiting_input");

    let now = browser.text("/").await;
    assert!(now.contains("<title>(1) Now") && now.contains("which? &#60;script&#62;"));
    let answer = action(&now, "name=\"message\"");
    // Without the token of this sign-in, a form is refused.
    let reply = [("decision", "answer"), ("message", "docs/http.md"), ("next", "/")];
    let forged = browser.post(&answer, &[&reply[..], &[("csrf", "0")]].concat()).await;
    assert_eq!(forged.status(), StatusCode::FORBIDDEN);
    let sent = [&reply[..], &[("csrf", &token)]].concat();
    assert_eq!(browser.post(&answer, &sent).await.status(), StatusCode::SEE_OTHER);
    home.wait_for(run.trim_start_matches("/runs/"), "succeeded");
    // The second of two answers is refused with a message, and keeps the typed text.
    let late = browser.post(&answer, &sent).await;
    assert_eq!(late.status(), StatusCode::CONFLICT);

    // A run is found by its name, too, and an unknown run gets an error page.
    for (asked, at) in
        [("/runs/docs", run.clone()), ("/runs/docs/replay?step=1", format!("{run}/replay?step=1"))]
    {
        assert_eq!(browser.get(asked).await.headers()[LOCATION].to_str().unwrap(), at);
    }
    let nowhere = browser.client.get(format!("{url}/nope")).header("accept", "text/html");
    let nowhere = nowhere.header("cookie", &browser.cookie).send().await.unwrap();
    assert_eq!(nowhere.status(), StatusCode::NOT_FOUND);
    assert!(nowhere.text().await.unwrap().contains("there is no such page"));
    assert_eq!(browser.get("/nope").await.status(), StatusCode::UNAUTHORIZED, "no browser asks");

    let page = browser.text(&run).await;
    for shown in
        ["ann says", "docs/http.md", "run_shell", "exit 0", "&#60;svg onload=alert(4)&#62; done"]
    {
        assert!(page.contains(shown), "no `{shown}` in {page}");
    }
    for page in [page, now, browser.text("/").await, browser.text("/runs?q=do").await] {
        for markup in ["<script>alert", "<img src=x", "<b>reading", "\u{1b}", "owned\u{7}"] {
            assert!(!page.contains(markup), "`{markup}` in {page}");
        }
        // The page's own icons have a class; the one in the answer has a handler.
        for drawing in page.split("<svg").skip(1) {
            assert!(drawing.starts_with(" class=\""), "`<svg{drawing:.40}` in {page}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_no_forms() {
    let (home, url) = up();
    home.agent("sh", &["--sandbox", "none"]);
    let push = "shell: curl -s http://127.0.0.1:9/hook";
    let run = home.run(&["run", "sh", push, "-o", "name"]).ok().line().to_owned();
    home.wait_for(&run, "awaiting_approval");
    let (mut ann, mut vera) = (Browser::new(&url), Browser::new(&url));
    ann.sign_in(&key(&home, "ann", "operator")).await;
    vera.sign_in(&key(&home, "vera", "viewer")).await;

    let seen = vera.text("/").await;
    assert!(
        seen.contains("curl -s http://127.0.0.1:9/hook") && !seen.contains("/inbox/"),
        "{seen}"
    );
    let now = ann.text("/").await;
    let deny = action(&now, "value=\"deny\"");
    let own = csrf(&seen);
    let fields = |token: &str, decision: &str| {
        [
            ("csrf", token.to_owned()),
            ("decision", decision.to_owned()),
            ("reason", "not here".into()),
        ]
    };
    let sent = fields(&own, "approve");
    let sent: Vec<(&str, &str)> =
        sent.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(vera.post(&deny, &sent).await.status(), StatusCode::FORBIDDEN);
    let sent = fields(&csrf(&now), "deny");
    let sent: Vec<(&str, &str)> =
        sent.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(ann.post(&deny, &sent).await.status(), StatusCode::SEE_OTHER);
    let ended: Value = until("the denial reaches the run", || {
        let run = home.fetch(&run);
        (run["status"] == "failed").then_some(run)
    });
    assert!(ended["error"].to_string().contains("not here"), "{ended}");
    assert!(ann.text(&format!("/runs/{run}")).await.contains("denied by ann"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_survives_an_expired_sign_in_and_is_sent_after_the_next() {
    let (home, url) = up();
    asker(&home);
    let ann = key(&home, "ann", "operator");
    let mut browser = Browser::new(&url);
    let typed = [("csrf", "old"), ("agent", "asker"), ("task", HOSTILE), ("name", "kept")];
    let asked = browser.post("/runs", &typed).await;
    assert_eq!(asked.status(), StatusCode::UNAUTHORIZED);
    let page = asked.text().await.unwrap();
    let kept = page.split_once("name=\"kept\" value=\"").unwrap().1.split('"').next().unwrap();
    let kept = kept.replace("&#38;", "&");
    let fields = [("key", ann.as_str()), ("kept_path", "/runs"), ("kept", kept.as_str())];
    let resumed = browser.post("/login", &fields).await;
    assert_eq!(resumed.status(), StatusCode::OK);
    let page = resumed.text().await.unwrap();
    assert!(page.contains("Send it now") && !page.contains("<script>alert"), "{page}");
    assert_eq!(action(&page, "Send it now</button>"), "/runs");
    let token = csrf(&page);
    let again = [&[("csrf", token.as_str())], &typed[1..]].concat();
    assert_eq!(browser.post("/runs", &again).await.status(), StatusCode::SEE_OTHER);
}
