//! Memory, tools, events, settings, keys, state, audit, backup, retention, the document.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::watch::Watch;
use crate::world::World;

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn memory_is_stored_and_searched_in_the_earlier_format() {
    let world = World::new().await;
    let stored = world
        .post("/api/memory/store", r#"{"collection":"","text":" kept as is ","metadata":{"a":1}}"#)
        .await
        .fine();
    assert_eq!(stored["ok"], true);
    let item = &stored["item"];
    assert_eq!(
        keys(item),
        BTreeSet::from([
            "id",
            "collection",
            "text",
            "embedding",
            "embedding_model",
            "dims",
            "metadata_json",
            "created_at",
            "source_run_id",
            "colony",
            "author",
            "trust",
        ])
    );
    assert_eq!((&item["text"], &item["dims"]), (&json!(" kept as is "), &json!(0)));
    let found = world.post("/api/memory/search", r#"{"collection":"","query":""}"#).await.fine();
    assert_eq!(found, json!({"ok": true, "results": []}));
    for (path, body, error) in [
        ("store", r#"{"text":"t"}"#, "collection: is required"),
        ("store", r#"{"collection":"c","text":7}"#, "text: must be a string, not integer `7`"),
        (
            "store",
            r#"{"collection":"c","text":"t","metadata":[]}"#,
            "metadata: must be an object, not an array",
        ),
        ("search", r#"{"collection":"c"}"#, "query: is required"),
        (
            "search",
            r#"{"collection":"c","query":"q","top_k":0}"#,
            "top_k: must be from 1 to 50, not 0",
        ),
        (
            "search",
            r#"{"collection":"c","query":"q","top_k":51}"#,
            "top_k: must be from 1 to 50, not 51",
        ),
        (
            "search",
            r#"{"collection":"c","query":"q","top_k":true}"#,
            "top_k: must be a whole number from 0 to 4294967295, not boolean `true`",
        ),
    ] {
        let answer = world.post(&format!("/api/memory/{path}"), body).await;
        assert_eq!(answer.problem(422), error, "{body}");
    }
    let given = r#"{"collection":"c","text":"t","key":"k","ttl_seconds":60,"trust":"tool",
        "source_event":"system.1","supersedes":"mem_00000000000000000000000000000001"}"#;
    let full = world.post("/api/memory/store", given).await.fine();
    let item = &full["item"];
    assert_eq!((&item["author"], &item["trust"]), (&json!("admin"), &json!("tool")));
    assert_eq!(item["source_event"], "system.1");
    assert_eq!(item["supersedes"], "mem_00000000000000000000000000000001");
    assert!(item["expires_at"].is_string());
    for (path, body, error) in [
        ("store", r#"{"collection":"c","text":"t","ttl_seconds":0}"#, "must be at least 1"),
        ("store", r#"{"collection":"c","text":"t","trust":"me"}"#, "user, agent, tool or"),
        ("search", r#"{"collection":"c","query":"q","filter":[]}"#, "must be an object"),
        ("search", r#"{"collection":"c","query":"q","filter":{"a":{"$ne":1}}}"#, "not one of eq"),
        ("reembed", r#"{"limit":501}"#, "must be from 1 to 500"),
    ] {
        let answer = world.post(&format!("/api/memory/{path}"), body).await;
        let said = answer.problem(422);
        assert!(said.contains(error), "{said}");
    }
    let filtered = r#"{"collection":"c","query":"q","filter":{"a":1},"history":true}"#;
    assert_eq!(world.post("/api/memory/search", filtered).await.fine()["results"], json!([]));
    let done = world.post("/api/memory/reembed", "{}").await.fine();
    assert_eq!(done, json!({"ok": true, "done": 0, "more": false}));
    for id in ["mem_00000000000000000000000000000000", "x"] {
        let answer = world.get(&format!("/api/memory/{id}")).await;
        assert_eq!(answer.problem(404), "Memory item not found");
        let answer = world.request("DELETE", &format!("/api/memory/{id}")).send().await;
        assert_eq!(answer.problem(404), "Memory item not found");
    }
    assert_eq!(world.get("/api/memory?collection=c&limit=5").await.fine(), json!([]));
}

#[tokio::test]
async fn tools_are_listed_with_their_schemas() {
    let world = World::new().await;
    let tools = world.get("/api/tools").await.fine();
    let shell = tools.as_array().unwrap().iter().find(|tool| tool["name"] == "run_shell").unwrap();
    assert_eq!(keys(shell), BTreeSet::from(["name", "description", "schema", "class", "internal"]));
    assert_eq!((&shell["class"], &shell["internal"]), (&json!("once"), &json!(false)));
}

#[tokio::test]
async fn global_events_are_newest_first() {
    let world = World::new().await;
    world.ended_run().await;
    let events = world.get("/api/events?limit=3").await;
    let rows = events.fine();
    let numbers: Vec<u64> =
        rows.as_array().unwrap().iter().map(|event| event["global"].as_u64().unwrap()).collect();
    assert!(numbers.len() == 3 && numbers.is_sorted_by(|a, b| a > b), "{numbers:?}");
    let next = format!("</api/events?limit=3&cursor={}>; rel=\"next\"", numbers[2]);
    assert_eq!(events.header("link"), Some(next.as_str()));
    let all = world.get("/api/events?limit=1000").await.fine();
    let first = all.as_array().unwrap().last().unwrap();
    assert_eq!((&first["global"], &first["run_id"]), (&json!(1), &Value::Null));
}

#[tokio::test]
async fn provider_keys_are_shown_masked_and_unknown_settings_are_404() {
    let world = World::new().await;
    let openai = world.get("/api/settings/openai-key").await.fine();
    assert_eq!(
        openai,
        json!({"ok": true, "configured": true, "masked": "sk-p...ijkl",
               "source": "environment: OPENAI_API_KEY"})
    );
    let deepseek = world.get("/api/settings/deepseek-key").await.fine();
    assert_eq!(deepseek, json!({"ok": true, "configured": false, "masked": "", "source": ""}));
    let short = world.get("/api/settings/anthropic-key").await.fine();
    assert_eq!(short["masked"], "*****");
    for name in ["openai", "mistral-key", "-key", "key"] {
        let answer = world.get(&format!("/api/settings/{name}")).await;
        assert_eq!(answer.problem(404), "Setting not found", "{name}");
    }
}

#[tokio::test]
async fn a_key_works_until_it_is_revoked_and_shows_its_secret_once() {
    let world = World::new().await;
    let made = world.post("/api/keys", r#"{"name":"ci","role":"viewer"}"#).await.fine();
    let secret = made["secret"].as_str().unwrap();
    assert!(secret.starts_with("ovk_"));
    let key = &made["key"];
    assert_eq!(
        keys(key),
        BTreeSet::from(["id", "name", "role", "created_at", "revoked_at", "colony"])
    );
    let ask = async || world.request("GET", "/api/agents").token(secret).send().await.status;
    assert_eq!(ask().await, 200);
    let listed = world.get("/api/keys").await;
    assert_eq!(listed.fine(), json!([key]));
    assert!(!listed.body.contains(secret));
    let id = key["id"].as_str().unwrap();
    let revoked = world.request("DELETE", &format!("/api/keys/{id}")).send().await.fine();
    assert!(revoked["revoked_at"].is_string());
    assert_eq!(ask().await, 401);
    for (body, status) in [
        (r#"{"name":"","role":"viewer"}"#, 422),
        (r#"{"name":"x","role":"root"}"#, 422),
        (r#"{"name":"x"}"#, 422),
    ] {
        world.post("/api/keys", body).await.problem(status);
    }
    for id in ["key_00000000000000000000000000000000", "x"] {
        let answer = world.request("DELETE", &format!("/api/keys/{id}")).send().await;
        assert_eq!(answer.problem(404), "Key not found", "{id}");
    }
    // The log knows the name, never the secret.
    let events = world.get("/api/events?limit=1000").await.body;
    assert!(events.contains("key.created") && !events.contains(secret));
}

#[tokio::test]
async fn events_with_key_names_are_shown_only_to_admins() {
    let world = World::new().await;
    let mut keys = Vec::new();
    for role in ["viewer", "operator"] {
        let body = json!({"name": format!("of-{role}"), "role": role}).to_string();
        keys.push(world.post("/api/keys", &body).await.fine()["secret"].clone());
    }
    world.agent("m").await;
    for n in 0..5 {
        let body = json!({"name": format!("secret-project-{n}"), "role": "model"}).to_string();
        world.post("/api/keys", &body).await.fine();
    }
    let newest = world.get("/api/events?limit=1").await.fine()[0].clone();
    assert_eq!(newest["type"], "key.created");
    for key in keys.iter().map(|key| key.as_str().unwrap()) {
        let all = world.request("GET", "/api/events?limit=1000").token(key).send().await;
        assert!(all.fine().as_array().unwrap().len() > 1);
        assert!(!all.body.contains("key.created") && !all.body.contains("secret-project"));
        // A page is filled with later items in place of those that are left out.
        let page = world.request("GET", "/api/events?limit=1").token(key).send().await;
        assert_eq!(page.fine()[0]["type"], "agent.created", "{}", page.body);
        assert!(page.header("link").is_some());
        let mut watch = Watch::open(&world, "/api/events/stream", key, Some(0)).await;
        world.agent("m").await;
        let last = world.get("/api/events?limit=1").await.fine()[0]["global"].to_string();
        loop {
            let message = watch.next().await.unwrap();
            assert_ne!(message.data["type"], "key.created", "{message:?}");
            if message.id.as_deref() == Some(last.as_str()) {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_new_key_does_not_repeat_requests_of_a_revoked_namesake() {
    let world = World::new().await;
    let agent = world.agent("m").await;
    let body = json!({"agent_id": agent, "task": "x"}).to_string();
    let mut made = Vec::new();
    for _ in 0..2 {
        let key = world.post("/api/keys", r#"{"name":"ci","role":"runs"}"#).await.fine();
        let secret = key["secret"].as_str().unwrap();
        let post = async || {
            let request = world.request("POST", "/api/runs").token(secret);
            let answer = request.json(&body).header("Idempotency-Key", "same").send().await;
            answer.json()["id"].as_str().unwrap().to_owned()
        };
        let id = post().await;
        assert_eq!(post().await, id, "its own is repeated");
        made.push(id);
        let at = format!("/api/keys/{}", key["key"]["id"].as_str().unwrap());
        assert_eq!(world.request("DELETE", &at).send().await.status, 200);
    }
    assert_ne!(made[0], made[1]);
}

#[tokio::test]
async fn admin_routes_report_verify_back_up_and_prune() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let status = world.get("/api/status").await.fine();
    assert_eq!(status["ready"]["state"], "ready");
    assert!(status["store"]["events"].as_u64().unwrap() > 0, "{status}");
    let version = world.get("/api/version").await.fine();
    assert_eq!((&version["name"], &version["version"]), (&json!("overmind"), &json!("0.1.0")));

    let audit = world.get("/api/audit/verify").await.fine();
    assert_eq!((&audit["ok"], &audit["findings"]), (&json!(true), &json!([])), "{audit}");

    let copy = world.dir.path().join("copy.db");
    let body = json!({"path": copy}).to_string();
    let done = world.post("/api/backup", &body).await.fine();
    assert_eq!(done["bytes"].as_u64().unwrap(), std::fs::metadata(&copy).unwrap().len());
    let again = world.post("/api/backup", &body).await;
    assert!(again.status >= 400 && again.status < 500, "{}", again.body);
    let answer = world.post("/api/backup", r#"{"path":"copy.db"}"#).await;
    assert_eq!(answer.problem(422), "path: must be an absolute path on the server");
    let nowhere = json!({"path": world.dir.path().join("no/such/copy.db")}).to_string();
    let answer = world.post("/api/backup", &nowhere).await;
    let error = answer.problem(422);
    assert!(error.contains("no/such on the server: make it first"), "{error}");

    let kept = world.post("/api/prune", r#"{"older_than_seconds":1000000}"#).await.fine();
    assert_eq!(kept["runs"], 0);
    let body = r#"{"older_than_seconds":0}"#;
    let pruned = world.post("/api/prune", body).await;
    if pruned.status == 200 {
        assert_eq!(pruned.fine()["runs"], 1);
        assert_eq!(world.get(&format!("/api/runs/{run}")).await.problem(404), "Run not found");
    } else {
        pruned.problem(422);
    }
    assert_eq!(
        world.post("/api/prune", "{}").await.problem(422),
        "older_than_seconds: is required"
    );
    world.post("/api/prune", r#"{"older_than_seconds":18446744073709551615}"#).await.fine();
}

#[tokio::test]
async fn metrics_name_routes_by_template_and_never_by_client_text() {
    let world = World::new().await;
    world.get("/api/agents/nobody-special").await;
    world.get("/some/path/never/served").await;
    let request = world.request("GET", "/metrics");
    let answer = request.header("Accept", "application/openmetrics-text").send().await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let text = answer.body;
    assert!(
        text.contains(
            "overmind_http_requests_total{method=\"GET\",route=\"/api/agents/{id}\",status=\"404\"} 1"
        ),
        "{text}"
    );
    assert!(text.contains("route=\"none\""), "{text}");
    assert!(!text.contains("nobody-special") && !text.contains("never/served"));
    assert!(text.ends_with("# EOF\n"));
    let of_engine = text.lines().filter(|line| line.starts_with("# HELP overmind_"));
    assert!(of_engine.count() > 8, "the engine's figures are there too: {text}");
    assert!(!text.contains("overmind_overmind"), "{text}");
    assert!(text.contains("# UNIT overmind_http_request_seconds seconds\n"), "{text}");
    told(&text, "_total");
    // The classic format, where a family of counters is called as its samples are.
    told(&world.get("/metrics").await.body, "");
}

/// Each sample is of a family with a help and a type before it. `of_counters` is what samples of
/// counters are called beyond their family.
fn told(exposition: &str, of_counters: &str) {
    let (mut help, mut kinds) = (BTreeSet::new(), std::collections::BTreeMap::new());
    for line in exposition.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(family), Some(_)) => drop(help.insert(family)),
            (Some("#"), Some("TYPE"), Some(family), Some(kind)) => {
                assert!(help.contains(family), "{family} has no help: {exposition}");
                kinds.insert(family, kind);
            }
            (Some("#"), Some("UNIT" | "EOF"), ..) => {}
            (Some(sample), ..) => {
                let name = sample.split('{').next().unwrap();
                let of = |suffix, kind| {
                    name.strip_suffix(suffix).is_some_and(|family| kinds.get(family) == Some(&kind))
                };
                let known = of("", "gauge")
                    || of(of_counters, "counter")
                    || ["_sum", "_count", "_bucket"].iter().any(|suffix| of(suffix, "histogram"));
                assert!(known, "{line} is of no family: {exposition}");
            }
            (None, ..) => {}
        }
    }
    assert!(kinds.len() > 10, "{exposition}");
}

#[tokio::test]
async fn the_openapi_document_is_served() {
    let world = World::new().await;
    let answer = world.get("/api/openapi.json").await;
    assert_eq!(answer.body, overmind_server::openapi());
}
