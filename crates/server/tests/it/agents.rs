//! `/api/agents`: shapes, statuses and texts.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::world::World;

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn an_agent_is_created_with_200_and_the_exact_keys() {
    let world = World::new().await;
    let body = r#"{"name":"fixer","role":"mend","model":"deterministic","tools_allowed":["look"]}"#;
    let answer = world.post("/api/agents", body).await;
    assert_eq!(answer.header("etag"), Some("\"1\""));
    let agent = answer.fine();
    assert_eq!(
        keys(&agent),
        BTreeSet::from([
            // of the earlier control planes
            "id",
            "name",
            "role",
            "model",
            "tools_allowed",
            "status",
            "created_at",
            "updated_at",
            "version",
            // ours
            "policy",
            "sandbox",
            "limits",
            "on_unknown",
            "approvals",
            "reasoning_effort",
            "max_output_tokens",
            "command",
            "budget",
            "colony",
        ])
    );
    assert_eq!(
        (&agent["name"], &agent["tools_allowed"], &agent["status"], &agent["version"]),
        (&json!("fixer"), &json!(["look"]), &json!("active"), &json!(1))
    );
    let at = agent["created_at"].as_str().unwrap();
    assert!(at.len() == 32 && at.ends_with("+00:00") && at.as_bytes()[19] == b'.', "{at}");
    let fetched = world.get(&format!("/api/agents/{}", agent["id"].as_str().unwrap())).await;
    assert_eq!(fetched.fine(), agent);
    assert_eq!(world.get("/api/agents/fixer").await.fine(), agent, "by name");
}

#[tokio::test]
async fn an_invalid_agent_is_422_with_every_field() {
    let world = World::new().await;
    for (body, error) in [
        ("{}", "name: is required"),
        (r#"{"name":"a","role":"r"}"#, "model: is required"),
        (
            r#"{"name":" ","role":"\t","model":""}"#,
            "name: must not be blank; role: must not be blank; model: must not be blank",
        ),
        (
            r#"{"name":"a","role":"r","model":"m","tools_allowed":"look"}"#,
            "tools_allowed: must be a list, not string \"look\"",
        ),
        (
            r#"{"name":"a","role":"r","model":"m","tools_allowed":[1]}"#,
            "tools_allowed: must be a string, not integer `1`",
        ),
        (r#"{"name":1,"role":"r","model":"m"}"#, "name: must be a string, not integer `1`"),
        (
            r#"{"name":"a","role":"r","model":"m","policy":"free"}"#,
            "policy: must be one of `auto`, `deterministic`, `model`, not `free`",
        ),
        (r#"[]"#, "the body must be a JSON object, not sequence"),
    ] {
        let answer = world.post("/api/agents", body).await;
        assert_eq!(answer.problem(422), error, "{body}");
    }
    let answer =
        world.post("/api/agents", r#"{"name":"a","role":"r","model":"m","rolle":"x"}"#).await;
    assert!(
        answer.problem(422).starts_with("rolle: is not known here; known is one of name, role")
    );
    assert_eq!(answer.json()["errors"][0]["field"], "rolle");
    let answer = world.post("/api/agents", r#"{"name":" ","role":"","model":"m"}"#).await;
    assert_eq!(answer.json()["errors"].as_array().unwrap().len(), 2);
    assert_eq!(world.get("/api/agents").await.fine(), json!([]));
}

#[tokio::test]
async fn unknown_tools_are_a_warning_and_not_an_error() {
    let world = World::new().await;
    let body = r#"{"name":"a","role":"r","model":"m","tools_allowed":["lok"]}"#;
    let agent = world.post("/api/agents", body).await.fine();
    assert!(agent["warnings"][0].as_str().unwrap().contains("lok"), "{agent}");
}

#[tokio::test]
async fn unknown_agents_are_404_on_every_path() {
    let world = World::new().await;
    for id in ["agt_00000000000000000000000000000000", "nobody", "a%2Fb", "%FF", "../x"] {
        for (method, rest, body) in [
            ("GET", "", ""),
            ("PATCH", "", "{}"),
            ("POST", "/disable", ""),
            ("GET", "/versions", ""),
        ] {
            let path = format!("/api/agents/{id}{rest}");
            let request = world.request(method, &path);
            let request = if body.is_empty() { request } else { request.json(body) };
            let answer = request.send().await;
            if id == "../x" {
                // Paths are not normalised: this names no route.
                answer.problem(404);
            } else {
                assert_eq!(answer.problem(404), "Agent not found", "{method} {path}");
            }
        }
    }
}

#[tokio::test]
async fn a_patch_changes_what_it_names_and_raises_the_version_once() {
    let world = World::new().await;
    let id = world.agent("deterministic").await;
    let path = format!("/api/agents/{id}");
    let patch = async |body: &str| world.request("PATCH", &path).json(body).send().await;
    let changed = patch(r#"{"role":"new","name":null}"#).await;
    assert_eq!(changed.header("etag"), Some("\"2\""));
    let changed = changed.fine();
    assert_eq!((&changed["role"], &changed["version"]), (&json!("new"), &json!(2)));
    assert_eq!(patch("{}").await.fine()["version"], 2, "nothing changed, so no new version");
    for (body, error) in [
        (r#"{"name":""}"#, "name: must not be blank"),
        (r#"{"model":"  "}"#, "model: must not be blank"),
        (
            r#"{"status":"gone"}"#,
            "status: must be one of `active`, `disabled`, `removed`, not `gone`",
        ),
        (r#"{"version":7}"#, "version: is not known here"),
    ] {
        let error_seen = patch(body).await.problem(422);
        assert!(error_seen.starts_with(error), "{body}: {error_seen}");
    }
    let disabled = patch(r#"{"status":"disabled"}"#).await.fine();
    assert_eq!((&disabled["status"], &disabled["version"]), (&json!("disabled"), &json!(3)));
    let versions = world.get(&format!("{path}/versions")).await.fine();
    let versions: Vec<_> =
        versions.as_array().unwrap().iter().map(|row| row["version"].as_u64().unwrap()).collect();
    assert_eq!(versions, [3, 2, 1]);
}

#[tokio::test]
async fn an_agents_name_is_taken_until_it_is_removed() {
    let world = World::new().await;
    let body = r#"{"name":"coder","role":"r","model":"m"}"#;
    let first = world.post("/api/agents", body).await.fine();
    let other = world.post("/api/agents", &body.replace("coder", "other")).await.fine();
    let refused = "there is an agent `coder` already; change it, remove it, or choose another name";
    assert_eq!(world.post("/api/agents", body).await.problem(409), refused);
    let path = format!("/api/agents/{}", other["id"].as_str().unwrap());
    let rename = world.request("PATCH", &path).json(r#"{"name":"coder"}"#).send().await;
    assert_eq!(rename.problem(409), refused);
    let removed = world.request("DELETE", "/api/agents/coder").send().await.fine();
    assert_eq!(removed["status"], "removed");
    assert_eq!(world.get("/api/agents").await.fine().as_array().unwrap().len(), 1);
    world.get("/api/agents/coder").await.problem(404);
    // Its id still identifies the agent of its runs, and nothing changes it any more.
    let by_id = format!("/api/agents/{}", first["id"].as_str().unwrap());
    assert_eq!(world.get(&by_id).await.fine()["name"], "coder");
    let change = world.request("PATCH", &by_id).json(r#"{"role":"new"}"#).send().await;
    assert!(change.problem(409).contains("is removed"));
    let again = world.post("/api/agents", body).await.fine();
    assert_ne!(again["id"], first["id"]);
    let rename = world.request("PATCH", &path).json(r#"{"name":"third"}"#).send().await;
    assert_eq!(rename.fine()["name"], "third");
}

#[tokio::test]
async fn a_change_of_another_version_is_412_without_effect() {
    let world = World::new().await;
    let id = world.agent("deterministic").await;
    let path = format!("/api/agents/{id}");
    let patch = |tag: &str| {
        world.request("PATCH", &path).json(r#"{"role":"mine"}"#).header("If-Match", tag)
    };
    let answer = patch("\"7\"").send().await;
    answer.problem(412);
    assert_eq!(answer.json()["type"], "urn:overmind:problem:stale");
    assert_eq!(
        patch("latest").send().await.problem(422),
        "If-Match: must be the ETag of one version, such as \"3\""
    );
    assert_eq!(world.get(&path).await.fine()["version"], 1);
    assert_eq!(patch("\"1\"").send().await.fine()["version"], 2);
    assert_eq!(patch("*").send().await.status, 200);
    let fetch = |tag: &str| world.request("GET", &path).header("If-None-Match", tag);
    let unchanged = fetch("\"2\"").send().await;
    assert_eq!((unchanged.status, unchanged.body.as_str()), (304, ""));
    assert_eq!(unchanged.header("etag"), Some("\"2\""));
    assert_eq!(fetch("\"1\"").send().await.status, 200);
}

#[tokio::test]
async fn disabling_a_disabled_agent_succeeds() {
    let world = World::new().await;
    let id = world.agent("deterministic").await;
    let path = format!("/api/agents/{id}/disable");
    for _ in 0..2 {
        let agent = world.request("POST", &path).send().await.fine();
        assert_eq!(agent["status"], "disabled");
    }
}

#[tokio::test]
async fn a_repeated_create_with_the_same_key_creates_one_agent() {
    let world = World::new().await;
    let body = r#"{"name":"once","role":"r","model":"m"}"#;
    let post = |key: &str, body: &str| {
        world.request("POST", "/api/agents").json(body).header("Idempotency-Key", key)
    };
    let first = post("k1", body).send().await;
    assert!(first.header("idempotency-replayed").is_none());
    let second = post("k1", body).send().await;
    assert_eq!(second.header("idempotency-replayed"), Some("true"));
    assert_eq!(first.fine()["id"], second.fine()["id"]);
    let other = post("k1", &body.replace("once", "twice")).send().await;
    assert!(other.problem(409).contains("Idempotency-Key"));
    // Another key is another request, and the name is taken.
    assert!(post("k2", body).send().await.problem(409).contains("once"));
    for bad in ["", "a b", &"x".repeat(256)] {
        assert_eq!(
            post(bad, body).send().await.problem(422),
            "Idempotency-Key: must be 1 to 255 visible ASCII characters without spaces"
        );
    }
}

#[tokio::test]
async fn lists_are_newest_first_with_links_between_pages() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(world.agent("deterministic").await);
    }
    ids.reverse();
    let mut seen = Vec::new();
    let mut path = "/api/agents?limit=2".to_owned();
    loop {
        let page = world.get(&path).await;
        let rows = page.fine();
        seen.extend(
            rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()),
        );
        let Some(link) = page.header("link") else { break };
        let (target, rel) = link.split_once("; ").unwrap();
        assert_eq!(rel, "rel=\"next\"");
        path = target.trim_matches(['<', '>']).to_owned();
        assert!(path.starts_with("/api/agents?limit=2&cursor=agt_"), "{path}");
    }
    assert_eq!(seen, ids);
    assert_eq!(
        world.get("/api/agents?limit=0").await.problem(422),
        "limit: must be a whole number from 1 to 1000, not `0`"
    );
    assert!(world.get("/api/agents?cursor=x").await.problem(422).starts_with("cursor: must be"));
    assert_eq!(
        world.get("/api/agents?limi=5").await.problem(422),
        "limi: is not a query parameter of this path"
    );
}
