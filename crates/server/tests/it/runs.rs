//! `/api/runs`: shapes, statuses and texts.

use std::collections::BTreeSet;

use overmind_testkit::ports::{FakeModels, FakeTools, calls, says};
use serde_json::{Value, json};

use crate::world::World;

const NOBODY: &str = "ses_00000000000000000000000000000000";

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

async fn with_models(models: std::sync::Arc<FakeModels>) -> World {
    World::whole(|_| (), FakeTools::ok(), models, |_| vec![]).await
}

#[tokio::test]
async fn a_run_is_queued_with_200_and_the_exact_keys() {
    let world = World::new().await;
    let agent = world.agent("deterministic").await;
    let body = json!({"agent_id": agent, "task": "", "step_limit": 7}).to_string();
    let run = world.post("/api/runs", &body).await.fine();
    assert_eq!(
        keys(&run),
        BTreeSet::from([
            // of the earlier control planes
            "id",
            "agent_id",
            "task",
            "status",
            "step_limit",
            "created_at",
            "started_at",
            "finished_at",
            // ours
            "name",
            "parent_id",
            "agent_name",
            "agent_version",
            "epoch",
            "hive",
            "prompt",
            "approval_id",
            "final_answer",
            "error",
            "usage",
            "cost_usd",
            "step_count",
            "alarms",
            "model_call_count",
            "sandbox",
            "attestation",
            "process",
            "room",
            "workspace",
            "forked_from",
            "created_by",
            "colony",
        ])
    );
    assert_eq!(
        (&run["status"], &run["step_limit"], &run["task"], &run["agent_id"], &run["created_by"]),
        (&json!("queued"), &json!(7), &json!(""), &json!(agent), &json!("admin"))
    );
}

#[tokio::test]
async fn an_invalid_run_has_its_status_and_message() {
    let world = World::new().await;
    let agent = world.agent("deterministic").await;
    let post = async |body: Value| world.post("/api/runs", &body.to_string()).await;
    let nobody = json!({"agent_id": "nobody", "task": "x"});
    assert_eq!(post(nobody).await.problem(404), "Agent not found");
    let unknown = json!({"agent_id": "agt_00000000000000000000000000000000", "task": "x"});
    assert_eq!(post(unknown).await.problem(404), "Agent not found");
    for (body, error) in [
        (json!({"agent_id": agent}), "task: is required"),
        (json!({"task": "x"}), "agent_id: is required"),
        (json!({"agent_id": " ", "task": "x"}), "agent_id: must not be blank"),
        (
            json!({"agent_id": agent, "task": "x", "step_limit": "7"}),
            "step_limit: must be a whole number from 0 to 4294967295, not string \"7\"",
        ),
        (
            json!({"agent_id": agent, "task": "x", "step_limit": -1}),
            "step_limit: must be a whole number from 0 to 4294967295, not integer `-1`",
        ),
        (
            json!({"agent_id": agent, "task": "x", "step_limit": 1.5}),
            "step_limit: must be a whole number from 0 to 4294967295, not floating point `1.5`",
        ),
        (
            json!({"agent_id": agent, "task": "x", "workspace": "src"}),
            "workspace: must be an absolute path",
        ),
    ] {
        assert_eq!(post(body.clone()).await.problem(422), error, "{body}");
    }
    world.request("POST", &format!("/api/agents/{agent}/disable")).send().await.fine();
    let body = json!({"agent_id": agent, "task": "x"});
    assert_eq!(post(body).await.problem(409), "Agent is disabled");
    assert_eq!(world.get("/api/runs").await.fine(), json!([]));
}

#[tokio::test]
async fn unknown_runs_are_404_on_every_path_also_under_the_alias() {
    let world = World::new().await;
    let agent = world.agent("deterministic").await;
    for base in ["/api/runs", "/api/sessions"] {
        for id in [NOBODY, "x", &agent, "ses_zz", "%00"] {
            for (method, rest, body) in [
                ("GET", "", ""),
                ("GET", "/steps", ""),
                ("GET", "/tool-calls", ""),
                ("GET", "/model-calls", ""),
                ("GET", "/events", ""),
                ("GET", "/replay", ""),
                ("GET", "/replay?follow=1", ""),
                ("GET", "/verify", ""),
                ("POST", "/cancel", ""),
                ("POST", "/input", r#"{"message":"x"}"#),
                ("POST", "/fork", r#"{"at":0}"#),
                ("POST", "/tools/call", r#"{"tool_name":"look"}"#),
                (
                    "POST",
                    "/approvals/apr_00000000000000000000000000000000",
                    r#"{"decision":"deny"}"#,
                ),
            ] {
                let path = format!("{base}/{id}{rest}");
                let request = world.request(method, &path);
                let request = if body.is_empty() { request } else { request.json(body) };
                assert_eq!(request.send().await.problem(404), "Run not found", "{method} {path}");
            }
        }
    }
    let path = format!("/api/diff?a={NOBODY}&b={NOBODY}");
    assert_eq!(world.get(&path).await.problem(404), "Run not found");
    assert_eq!(world.get("/api/diff?a=x").await.problem(404), "Run not found");
    let path = format!("/api/diff?a={NOBODY}");
    assert_eq!(world.get(&path).await.problem(422), "b: is required");
}

#[tokio::test]
async fn an_ended_run_shows_its_timeline_with_the_exact_keys() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}");
    let row = world.get(&path).await.fine();
    assert_eq!(row["status"], "succeeded", "{row}");
    assert_eq!(world.get(&format!("/api/sessions/{run}")).await.fine(), row);

    let steps = world.get(&format!("{path}/steps")).await.fine();
    let steps = steps.as_array().unwrap();
    assert!(!steps.is_empty());
    for (at, step) in steps.iter().enumerate() {
        assert_eq!(
            keys(step),
            BTreeSet::from([
                "id",
                "run_id",
                "idx",
                "type",
                "input_json",
                "output_json",
                "started_at",
                "finished_at",
                "error",
                "turn",
            ])
        );
        assert_eq!((&step["idx"], &step["run_id"]), (&json!(at), &json!(run)));
    }
    let tool_calls = world.get(&format!("{path}/tool-calls")).await.fine();
    let call = &tool_calls[0];
    assert_eq!(
        keys(call),
        BTreeSet::from([
            "id",
            "run_id",
            "step_id",
            "tool_name",
            "args_json",
            "result_json",
            "allowed",
            "latency_ms",
            "created_at",
            "seq",
        ])
    );
    assert_eq!((&call["tool_name"], &call["allowed"]), (&json!("run_shell"), &json!(true)));
    let events = world.get(&format!("{path}/events")).await.fine();
    let events = events.as_array().unwrap();
    assert_eq!(
        keys(&events[0]),
        BTreeSet::from(["id", "run_id", "type", "payload_json", "ts", "seq", "global", "hash"])
    );
    assert_eq!(events[0]["type"], "run.queued");
    let numbers: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());

    // Pages of a run's lists are ascending.
    let first = world.get(&format!("{path}/events?limit=2")).await;
    assert_eq!(first.fine(), json!(events[..2]));
    let link = first.header("link").unwrap();
    assert_eq!(link, format!("<{path}/events?limit=2&cursor=2>; rel=\"next\""));
    let second = world.get(&format!("{path}/events?limit=2&cursor=2")).await.fine();
    assert_eq!(second, json!(events[2..4]));
    let rest = world.get(&format!("{path}/steps?cursor=0")).await.fine();
    assert_eq!(rest, json!(steps[1..]));

    let verified = world.get(&format!("{path}/verify")).await.fine();
    assert_eq!(
        (&verified["ok"], &verified["run_id"], &verified["divergence"]),
        (&json!(true), &json!(run), &Value::Null),
        "{verified}"
    );
}

#[tokio::test]
async fn a_model_call_has_the_exact_keys_and_names_its_agent() {
    let world = with_models(FakeModels::new([says("hello")])).await;
    let agent = world.agent("gpt-test").await;
    let run = world.run(&agent, "greet").await;
    world.until(&run, "succeeded").await;
    let calls = world.get(&format!("/api/runs/{run}/model-calls")).await.fine();
    let call = &calls[0];
    assert_eq!(
        keys(call),
        BTreeSet::from([
            "id",
            "run_id",
            "agent_id",
            "model",
            "request_json",
            "response_json",
            "usage_json",
            "error",
            "latency_ms",
            "created_at",
            "seq",
            "via",
        ])
    );
    assert_eq!((&call["agent_id"], &call["run_id"]), (&json!(agent), &json!(run)));
    assert_eq!((&call["usage_json"]["input_tokens"], &call["via"]), (&json!(10), &json!("engine")));
    let row = world.get(&format!("/api/runs/{run}")).await.fine();
    assert_eq!((&row["usage"]["output_tokens"], &row["cost_usd"]), (&json!(5), &json!(7e-6)));
    assert_eq!(row["final_answer"], "hello");
}

#[tokio::test]
async fn cancel_succeeds_once_and_never_after_the_end() {
    let world = World::new().await;
    let ended = world.ended_run().await;
    let before = world.get(&format!("/api/runs/{ended}")).await.fine();
    let cancel =
        async |run: &str| world.request("POST", &format!("/api/runs/{run}/cancel")).send().await;
    let answer = cancel(&ended).await;
    assert_eq!(answer.problem(409), "Run is already finished");
    assert_eq!(world.get(&format!("/api/runs/{ended}")).await.fine(), before);

    let run = world.hanging_run().await;
    let canceled = cancel(&run).await.fine();
    assert_eq!(canceled["status"], "canceled");
    assert!(canceled["finished_at"].is_string());
    cancel(&run).await.problem(409);
}

#[tokio::test]
async fn input_is_accepted_once_and_only_on_request() {
    let world = with_models(FakeModels::new([
        calls(&[("ask_user", json!({"message": "which port?"}))]),
        says("ok"),
    ]))
    .await;
    let agent = world.agent("gpt-test").await;
    let run = world.run(&agent, "serve").await;
    let row = world.until(&run, "awaiting_input").await;
    assert_eq!(row["prompt"], "which port?");
    let path = format!("/api/runs/{run}/input");
    for (body, error) in [
        (r#"{"message":""}"#, "message: must not be blank"),
        (r#"{"message":" \n"}"#, "message: must not be blank"),
        (r"{}", "message: is required"),
        (r#"{"message":7}"#, "message: must be a string, not integer `7`"),
    ] {
        assert_eq!(world.post(&path, body).await.problem(422), error, "{body}");
    }
    let row = world.post(&path, r#"{"message":"8080"}"#).await.fine();
    assert_eq!(row["task"], "serve\n\nUser input: 8080");
    world.until(&run, "succeeded").await;
    let answer = world.post(&path, r#"{"message":"9"}"#).await;
    assert_eq!(answer.problem(409), "Run is not awaiting input");
}

#[tokio::test]
async fn an_approval_is_decided_once_by_its_id() {
    let world = with_models(FakeModels::new([
        calls(&[("run_shell", json!({"command": "deploy"}))]),
        says("done"),
    ]))
    .await;
    let body = json!({
        "name": "careful", "role": "r", "model": "gpt-test", "tools_allowed": ["run_shell"],
        "approvals": ["run_shell"],
    });
    world.post("/api/agents", &body.to_string()).await.fine();
    let run = world.run("careful", "deploy").await;
    let row = world.until(&run, "awaiting_approval").await;
    let approval = row["approval_id"].as_str().unwrap();
    let path = format!("/api/runs/{run}/approvals/{approval}");
    assert_eq!(
        world.post(&path, r#"{"decision":"maybe"}"#).await.problem(422),
        "decision: must be `approve` or `deny`, not `maybe`"
    );
    let malformed = format!("/api/runs/{run}/approvals/x");
    let answer = world.post(&malformed, r#"{"decision":"approve"}"#).await;
    assert_eq!(answer.problem(404), "Approval not found");
    let answer = world.post(&path, r#"{"decision":"approve","reason":"fine"}"#).await;
    assert_eq!(answer.fine()["id"], json!(run));
    world.until(&run, "succeeded").await;
    world.post(&path, r#"{"decision":"approve"}"#).await.problem(409);
}

#[tokio::test]
async fn a_tool_call_is_always_200_with_the_gateways_envelope() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}/tools/call");
    let denied = world.post(&path, r#"{"tool_name":"rm_rf","args":{}}"#).await.fine();
    assert_eq!(
        (&denied["ok"], &denied["error"]["code"]),
        (&json!(false), &json!("tool_not_allowed"))
    );
    let fine = world.post(&path, r#"{"tool_name":"look"}"#).await.fine();
    assert_eq!(fine, json!({"ok": true}));
    for (body, error) in [
        (r#"{"args":{}}"#, "tool_name: is required"),
        (r#"{"tool_name":"look","args":[1]}"#, "args: must be an object, not an array"),
        (r#"{"tool_name":"look","args":null}"#, "args: must be an object, not null"),
    ] {
        assert_eq!(world.post(&path, body).await.problem(422), error, "{body}");
    }
    let calls = world.get(&format!("/api/runs/{run}/tool-calls")).await.fine();
    let direct: Vec<_> = calls
        .as_array()
        .unwrap()
        .iter()
        .filter(|call| call["step_id"].is_null())
        .map(|call| (call["tool_name"].as_str().unwrap(), call["allowed"].as_bool().unwrap()))
        .collect();
    assert_eq!(direct, [("rm_rf", false), ("look", true)]);
}

#[tokio::test]
async fn runs_are_listed_newest_first_and_filtered() {
    let world = World::new().await;
    let ended = world.ended_run().await;
    let hanging = world.hanging_run().await;
    let ids = async |query: &str| {
        let rows = world.get(&format!("/api/runs{query}")).await.fine();
        let id = |row: &Value| row["id"].as_str().unwrap().to_owned();
        rows.as_array().unwrap().iter().map(id).collect::<Vec<_>>()
    };
    assert_eq!(ids("").await, [hanging.clone(), ended.clone()]);
    assert_eq!(ids("?status=running,succeeded").await, [hanging.clone(), ended.clone()]);
    assert_eq!(ids("?status=running,succeeded&limit=1").await, std::slice::from_ref(&hanging));
    assert_eq!(ids("?status=succeeded").await, [ended]);
    let row = world.get(&format!("/api/runs/{hanging}")).await.fine();
    let agent = row["agent_id"].as_str().unwrap();
    assert_eq!(ids(&format!("?agent={agent}")).await, std::slice::from_ref(&hanging));
    assert_eq!(ids("?limit=1").await, [hanging]);
    let answer = world.get("/api/runs?status=done").await;
    assert_eq!(
        answer.problem(422),
        "status: must be one or more of queued, running, awaiting_input, awaiting_approval, \
         idle, succeeded, failed, canceled, separated by commas, not `done`"
    );
    assert_eq!(world.get("/api/runs?agent=nobody").await.problem(404), "Agent not found");
}

#[tokio::test]
async fn a_list_contains_the_requested_detail_of_each_run() {
    let world = World::new().await;
    world.hanging_run().await;
    let ended = world.ended_run().await;
    let full = world.get("/api/runs?view=full").await.fine();
    assert_eq!(full, world.get("/api/runs").await.fine());
    let one = world.get(&format!("/api/runs/{ended}")).await.fine();
    assert_eq!(full[0], one);
    let basic = world.get("/api/runs?view=basic&limit=1").await.fine();
    let [row] = basic.as_array().unwrap().as_slice() else { panic!("{basic}") };
    let fields: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
    let known = [
        "id",
        "name",
        "parent_id",
        "agent_id",
        "agent_name",
        "task",
        "status",
        "created_at",
        "started_at",
        "finished_at",
        "step_count",
        "alarms",
        "cost_usd",
    ];
    assert_eq!(fields, known);
    for field in fields {
        assert_eq!(row[field], one[field], "{field}");
    }
    let wrong = world.get("/api/runs?view=most").await.problem(422);
    assert_eq!(wrong, "view: must be full or basic, not `most`");
}

#[tokio::test]
async fn a_run_shows_the_current_name_of_its_agent() {
    let world = World::new().await;
    let run = world.hanging_run().await;
    let row = world.get(&format!("/api/runs/{run}")).await.fine();
    let agent =
        world.get(&format!("/api/agents/{}", row["agent_id"].as_str().unwrap())).await.fine();
    assert_eq!(row["agent_name"], agent["name"]);
    let renamed = json!({"name": "renamed-since"}).to_string();
    let path = format!("/api/agents/{}", row["agent_id"].as_str().unwrap());
    world.request("PATCH", &path).json(&renamed).send().await.fine();
    assert_eq!(world.get("/api/runs").await.fine()[0]["agent_name"], "renamed-since");
    let row = world.get(&format!("/api/runs/{run}")).await.fine();
    assert_eq!(row["agent_name"], "renamed-since");
}

#[tokio::test]
async fn a_repeated_start_with_the_same_key_creates_one_run() {
    let world = World::new().await;
    let agent = world.agent("deterministic").await;
    let body = json!({"agent_id": agent, "task": "shell:true"}).to_string();
    let post = |body: &str| {
        world.request("POST", "/api/runs").json(body).header("Idempotency-Key", "once-please")
    };
    let first = post(&body).send().await.fine();
    let second = post(&body).send().await;
    assert_eq!(second.header("idempotency-replayed"), Some("true"));
    assert_eq!(second.fine()["id"], first["id"]);
    let other = json!({"agent_id": agent, "task": "shell:false"}).to_string();
    assert!(post(&other).send().await.problem(409).contains("Idempotency-Key"));
    assert_eq!(world.get("/api/runs").await.fine().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_fork_repeats_the_start_and_a_diff_compares_both() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}/fork");
    let fork = world.post(&path, r#"{"at":1}"#).await.fine();
    assert_eq!(fork["forked_from"], json!({"run_id": run, "step": 1}));
    let fork = fork["id"].as_str().unwrap();
    world.until(fork, "succeeded").await;
    let diff = world.get(&format!("/api/diff?a={run}&b={fork}")).await.fine();
    assert_eq!((&diff["a"]["id"], &diff["b"]["id"]), (&json!(run), &json!(fork)));
    assert!(diff["common"].as_u64().unwrap() >= 1, "{diff}");
    assert_eq!(keys(&diff["rows"][0]), BTreeSet::from(["idx", "a", "b", "same"]));
    for (body, error) in
        [("{}", "at: is required"), (r#"{"at":0,"model":" "}"#, "model: must not be blank")]
    {
        assert_eq!(world.post(&path, body).await.problem(422), error, "{body}");
    }
    world.post(&path, r#"{"at":9999}"#).await.problem(422);
}
