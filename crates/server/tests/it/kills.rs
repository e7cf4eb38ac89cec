//! `POST /api/runs/kill`.

use serde_json::json;

use crate::world::World;

const PATH: &str = "/api/runs/kill";

#[tokio::test]
async fn each_kill_has_its_own_result_and_an_ended_run_is_a_problem() {
    let world = World::new().await;
    let (hangs, ended) = (world.hanging_run().await, world.ended_run().await);
    let nobody = "ses_00000000000000000000000000000000";
    let body = json!({"ids": [hangs, ended, nobody]}).to_string();
    let killed = world.post(PATH, &body).await.fine();
    assert_eq!((&killed["ok"], killed.get("next")), (&json!(false), None));
    let results = killed["results"].as_array().unwrap();
    assert_eq!(
        (&results[0]["ok"], &results[0]["run"]["status"]),
        (&json!(true), &json!("canceled"))
    );
    assert_eq!(results[0].get("problem"), None);
    for (result, id, status, error) in [
        (&results[1], ended.as_str(), 409, "Run is already finished"),
        (&results[2], nobody, 404, "Run not found"),
    ] {
        assert_eq!((&result["id"], &result["ok"]), (&json!(id), &json!(false)));
        assert_eq!(result["problem"]["status"], status);
        assert_eq!(result["problem"]["error"], error);
        assert_eq!(result.get("run"), None);
    }
    // None of the other runs is a command.
    let all = world.post(PATH, r#"{"all": true}"#).await.fine();
    assert_eq!(all, json!({"ok": true, "results": []}));
}

#[tokio::test]
async fn an_invalid_kill_body_is_reported() {
    let world = World::new().await;
    let one = "ses_00000000000000000000000000000001";
    for (body, error) in [
        (json!({}), "ids: must name 1 to 1000 runs, unless all is given"),
        (json!({"ids": [one], "all": true}), "ids: give ids or all, not both"),
        (json!({"ids": [one], "after": one}), "after: belongs to all"),
        (json!({"ids": [one, one]}), "ids must name each run once"),
    ] {
        assert_eq!(world.post(PATH, &body.to_string()).await.problem(422), error, "{body}");
    }
    world.post(PATH, r#"{"ids": ["nobody"]}"#).await.problem(422);
    world.post(PATH, r#"{"every": true}"#).await.problem(422);
}

#[tokio::test]
async fn viewers_and_run_tokens_cannot_kill() {
    let world = World::new().await;
    let run = world.hanging_run().await;
    let key = world.post("/api/keys", r#"{"name":"looks","role":"viewer"}"#).await.fine();
    let viewer = key["secret"].as_str().unwrap().to_owned();
    let own = world.engine.session_token(run.parse().unwrap(), 1);
    let kill = async |token: &str, body: serde_json::Value| {
        world.request("POST", PATH).token(token).json(&body.to_string()).send().await
    };
    for body in [json!({"ids": [run]}), json!({"all": true})] {
        kill(&viewer, body).await.problem(403);
    }
    // A run may end its own children, but neither itself nor others.
    assert_eq!(kill(&own, json!({"all": true})).await.fine()["results"], json!([]));
    let itself = kill(&own, json!({"ids": [run]})).await.fine();
    assert_eq!(itself["results"][0]["problem"]["status"], 403, "{itself}");
    let row = world.get(&format!("/api/runs/{run}")).await.fine();
    assert_eq!(row["status"], "running");
}
