//! The settings: health and backup, the policy explained, tool servers, secrets, keys.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use reqwest::header::LOCATION;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Browser, csrf, key, up};

/// The pages for all readers, and those for admins.
const ALL: [&str; 3] = ["/settings", "/settings/policy", "/settings/tools"];
const OF_ADMINS: [&str; 2] = ["/settings/models", "/settings/keys"];

async fn explained(url: &str, secret: &str, body: Value) -> Response {
    let client = Browser::new(url).client;
    let asked = client.post(format!("{url}/api/policy/explain")).bearer_auth(secret);
    asked.json(&body).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_explained_over_http_with_its_agents_permissions() {
    let (home, url) = up();
    home.agent("sh", &["--sandbox", "none"]);
    home.agent("careful", &["--approvals", "run_shell", "--sandbox", "namespace"]);
    let reader = ["agent", "create", "--name", "reader", "--tools", "read_file"];
    home.run(&[&reader[..], &["--model", "deterministic"]].concat()).ok();
    let vera = key(&home, "vera", "viewer");
    let say = async |body: Value| -> Value {
        let answer = explained(&url, &vera, body).await;
        assert_eq!(answer.status(), StatusCode::OK);
        answer.json().await.unwrap()
    };
    let said = say(json!({"command": "env sh -c 'rm -rf src'"})).await;
    assert_eq!((&said["decision"], &said["sandbox"]), (&json!("ask"), &json!("namespace")));
    let actions = said["actions"].as_array().unwrap();
    let rm = actions.iter().find(|action| action["program"] == "rm").unwrap();
    assert_eq!(rm["touches"][0], json!({"kind": "delete", "target": "src"}));
    assert_eq!(rm["via"], json!(["env", "sh"]));
    // The command line prints the same for the same call.
    let line = ["policy", "explain", "--command", "env sh -c 'rm -rf src'", "-o", "json"];
    let other = home.run(&line).ok().json();
    for part in ["decision", "reason", "risk", "rule", "policy"] {
        assert_eq!(said[part], other["verdict"][part], "{part}");
    }
    // The definition of an agent counts as well: its sandbox, its approvals, its tools.
    assert_eq!(say(json!({"command": "ls", "agent": "sh"})).await["sandbox"], "none");
    assert_eq!(say(json!({"command": "ls"})).await["decision"], "allow");
    let asks = say(json!({"command": "ls", "agent": "careful"})).await;
    assert_eq!(
        (&asks["decision"], &asks["rule"]["place"]),
        (&json!("ask"), &json!("agent careful"))
    );
    let without = say(json!({"command": "ls", "agent": "reader"})).await;
    assert_eq!((&without["decision"], &without["rule"]["id"]), (&json!("deny"), &json!("tools")));
    let misfit = say(json!({"tool": "read_file", "args": {"path": 7}})).await;
    assert_eq!((&misfit["decision"], &misfit["rule"]["place"]), (&json!("deny"), &json!("schema")));
    // Untrusted text makes the same call stricter.
    let curl = json!({"command": "curl https://example.com", "untrusted": true, "private": true});
    assert_eq!(say(curl).await["decision"], "deny");

    let refused = async |body: Value| {
        let answer = explained(&url, &vera, body).await;
        (answer.status(), answer.text().await.unwrap())
    };
    let (status, text) = refused(json!({})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(text.contains("is required without `tool`"), "{text}");
    let (status, text) = refused(json!({"command": "ls", "tool": "x"})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");
    assert_eq!(refused(json!({"command": "ls", "agent": "nobody"})).await.0, StatusCode::NOT_FOUND);
    let runs = home.run(&["key", "create", "runs", "--scope", "runs", "-o", "json"]).ok().json();
    let runs = runs["secret"].as_str().unwrap();
    let answer = explained(&url, runs, json!({"command": "ls"})).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_explains_a_call_and_verifies_the_log_on_the_pages() {
    let (home, url) = up();
    home.agent("sh", &["--sandbox", "none"]);
    let mut vera = Browser::new(&url);
    vera.sign_in(&key(&home, "vera", "viewer")).await;
    let page = vera.text("/settings/policy").await;
    assert!(page.contains("policy.toml") && page.contains("No call is explained yet"), "{page}");
    let token = csrf(&page);
    let typed = [("csrf", token.as_str()), ("command", "sudo rm '<b>src</b>'"), ("agent", "sh")];
    let said = vera.post("/settings/policy", &typed).await.text().await.unwrap();
    for part in
        ["</span> denied</span>", "sh at none", "sudo → rm", "&#60;b&#62;src", "selected>sh"]
    {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
    assert!(!said.contains("<b>src"), "{said}");
    let wrong = [("csrf", token.as_str()), ("tool", "read_file"), ("args", "{path")];
    let wrong = vera.post("/settings/policy", &wrong).await;
    assert_eq!(wrong.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let kept = wrong.text().await.unwrap();
    assert!(
        kept.contains("the arguments are not JSON") && kept.contains("value=\"{path\""),
        "{kept}"
    );

    let health = vera.text("/settings").await;
    assert!(health.contains("events in") && !health.contains("Write the backup"), "{health}");
    assert!(!health.contains("have the right hashes"), "the log is read when somebody asks");
    let verified = vera.post("/settings/verify", &[("csrf", &token)]).await;
    assert!(verified.text().await.unwrap().contains("have the right hashes and signatures"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_no_settings_forms_and_each_change_is_refused() {
    let (home, url) = up();
    let mut vera = Browser::new(&url);
    vera.sign_in(&key(&home, "vera", "viewer")).await;
    let token = csrf(&vera.text("/settings").await);
    for path in ALL {
        let page = vera.text(path).await;
        for form in ["/settings/backup", "/settings/tools/", "/settings/models", "/settings/keys"] {
            assert!(!page.contains(form), "{path} offers {form}");
        }
    }
    for path in OF_ADMINS {
        assert_eq!(vera.get(path).await.status(), StatusCode::FORBIDDEN, "{path}");
    }
    let target = home.path().join("b.db");
    let path = target.to_str().unwrap();
    for (form, fields) in [
        ("backup", [("path", path), ("", "")]),
        ("tools/add", [("id", "x"), ("command", "true")]),
        ("tools/pin", [("id", "x"), ("", "")]),
        ("tools/remove", [("id", "x"), ("", "")]),
        ("models/set", [("name", "openai_api_key"), ("value", "sk-0123456789")]),
        ("models/remove", [("name", "openai_api_key"), ("", "")]),
        ("keys/create", [("name", "x"), ("role", "admin")]),
        ("keys/revoke", [("id", "key_00000000000000000000000000000001"), ("", "")]),
    ] {
        let sent = [&fields[..], &[("csrf", token.as_str())]].concat();
        let refused = vera.post(&format!("/settings/{form}"), &sent).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{form}");
    }
    assert!(!target.exists());
    assert_eq!(home.run(&["mcp", "list", "-o", "json"]).ok().json(), json!([]));
    // An operator cannot see the pages of admins either.
    let mut ann = Browser::new(&url);
    ann.sign_in(&key(&home, "ann", "operator")).await;
    assert_eq!(ann.get("/settings/keys").await.status(), StatusCode::FORBIDDEN);
    assert!(!ann.text("/settings").await.contains("Write the backup"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_creates_a_key_that_is_shown_once_and_revokes_it() {
    let (home, url) = up();
    let mut root = Browser::new(&url);
    root.sign_in(&key(&home, "root", "admin")).await;
    let page = root.text("/settings/keys").await;
    let token = csrf(&page);
    assert!(page.contains("Sign-ins in browsers") && page.contains("root@web-"), "{page}");
    let fields = [("csrf", token.as_str()), ("name", "ci <i>"), ("role", "viewer")];
    let made = root.post("/settings/keys/create", &fields).await;
    assert_eq!(made.status(), StatusCode::OK);
    let page = made.text().await.unwrap();
    assert!(page.contains("The key of ci &#60;i&#62;"), "{page}");
    let (_, rest) = page.split_once("<pre class=\"act\" tabindex=\"0\">").unwrap();
    let secret = rest.split('<').next().unwrap().to_owned();
    let mut theirs = Browser::new(&url);
    theirs.sign_in(&secret).await;
    assert!(theirs.text("/").await.contains("ci &#60;i&#62; · viewer"));
    let again = root.text("/settings/keys").await;
    assert!(!again.contains(&secret), "a secret is shown once");
    let taken = root.post("/settings/keys/create", &fields).await;
    assert_eq!(taken.status(), StatusCode::CONFLICT);
    let taken = taken.text().await.unwrap();
    assert!(taken.contains("That did not work.") && taken.contains("value=\"ci &#60;i&#62;\""));

    let at = again.find("Revoke ci &#60;i&#62;").unwrap();
    let (_, rest) = again[at..].split_once("name=\"id\" value=\"").unwrap();
    let id = rest.split('"').next().unwrap();
    let gone = root.post("/settings/keys/revoke", &[("csrf", &token), ("id", id)]).await;
    assert_eq!(gone.headers()[LOCATION], "/settings/keys?did=revoked");
    assert_eq!(theirs.get("/").await.status(), StatusCode::UNAUTHORIZED);
    assert!(!root.text("/settings/keys").await.contains("Revoke ci"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_sets_a_model_key_and_sees_its_last_four_characters() {
    let (home, url) = up();
    let mut root = Browser::new(&url);
    root.sign_in(&key(&home, "root", "admin")).await;
    let page = root.text("/settings/models?set=openai_api_key").await;
    let token = csrf(&page);
    assert!(page.contains("value=\"openai_api_key\"") && page.contains("not set"), "{page}");
    let value = "sk-test-0123456789abcdefWXYZ";
    let fields = [("csrf", token.as_str()), ("name", "openai_api_key"), ("value", value)];
    let short =
        root.post("/settings/models/set", &[&fields[..2], &[("value", "x7")]].concat()).await;
    assert_eq!(short.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let short = short.text().await.unwrap();
    assert!(short.contains("value=\"openai_api_key\"") && !short.contains("x7\""), "{short}");
    let set = root.post("/settings/models/set", &fields).await;
    assert_eq!(set.headers()[LOCATION], "/settings/models?did=set");
    let page = root.text("/settings/models").await;
    assert!(page.contains("<code>…WXYZ</code>"), "{page}");
    for part in ["sk-test", "0123456789abcdef", "sk-t"] {
        assert!(!page.contains(part), "the page shows `{part}` of a key");
    }
    assert!(page.contains("<td>root"), "{page}");
    let fields = [("csrf", token.as_str()), ("name", "openai_api_key")];
    let gone = root.post("/settings/models/remove", &fields).await;
    assert_eq!(gone.headers()[LOCATION], "/settings/models?did=removed");
    assert!(root.text("/settings/models").await.contains("The vault holds no secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_writes_a_backup_and_adds_and_removes_a_tool_server() {
    let (home, url) = up();
    let mut root = Browser::new(&url);
    root.sign_in(&key(&home, "root", "admin")).await;
    let token = csrf(&root.text("/settings").await);
    let backup = async |root: &mut Browser, path: &str| {
        let fields = [("csrf", token.as_str()), ("path", path)];
        let answer = root.post("/settings/backup", &fields).await;
        (answer.status(), answer.text().await.unwrap())
    };
    let (status, page) = backup(&mut root, "relative.db").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(page.contains("must be an absolute path") && page.contains("value=\"relative.db\""));
    let path = home.path().join("copy.db");
    let (status, page) = backup(&mut root, path.to_str().unwrap()).await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains(&format!("The backup is at {} on the server", path.display())), "{page}");
    assert!(path.metadata().unwrap().len() > 0);
    assert_eq!(backup(&mut root, path.to_str().unwrap()).await.0, StatusCode::CONFLICT);

    let page = root.text("/settings/tools").await;
    assert!(page.contains("No MCP server gives agents tools yet"), "{page}");
    let fields = [("csrf", token.as_str()), ("id", "gone"), ("command", "no-such-program")];
    let whole = [&fields[..], &[("args", "-a\nb c\n")]].concat();
    let added = root.post("/settings/tools/add", &whole).await;
    assert_eq!(added.headers()[LOCATION], "/settings/tools");
    let page = root.text("/settings/tools").await;
    assert!(page.contains("no-such-program -a b c") && page.contains("</span> failed"), "{page}");
    let bad = [("csrf", token.as_str()), ("id", "Bad Name"), ("command", "true")];
    let bad = root.post("/settings/tools/add", &bad).await;
    assert_eq!(bad.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(bad.text().await.unwrap().contains("value=\"Bad Name\""));
    let gone = root.post("/settings/tools/remove", &fields[..2]).await;
    assert_eq!(gone.headers()[LOCATION], "/settings/tools");
    assert!(!root.text("/settings/tools").await.contains("no-such-program"));
}
