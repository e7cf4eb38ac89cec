//! Environments over HTTP: a run's environment, its work, and the decision about it.

use overmind_core::room::Leak;
use serde_json::{Value, json};

use crate::world::{World, patiently};

async fn agent(world: &World) -> String {
    let body = json!({
        "name": "shell", "role": "r", "model": "command", "sandbox": "none",
        "command": {"argv": ["sh"]},
    });
    let made = world.post("/api/agents", &body.to_string()).await.fine();
    made["id"].as_str().expect("an id").to_owned()
}

async fn run(world: &World, room: Value) -> String {
    let agent = agent(world).await;
    let body = json!({"agent_id": agent, "task": "x", "name": "mend", "room": room});
    let made = world.post("/api/runs", &body.to_string()).await.fine();
    made["id"].as_str().expect("an id").to_owned()
}

async fn up(world: &World, run: &str) -> Value {
    let wait = async {
        loop {
            let row = world.get(&format!("/api/runs/{run}")).await.fine();
            if row["process"]["pid"].is_number() {
                return row;
            }
            tokio::task::yield_now().await;
        }
    };
    patiently("its command to run", wait).await
}

#[tokio::test]
async fn a_run_shows_its_environment_its_work_and_the_decision() {
    let world = World::new().await;
    let run = run(&world, json!({"base": "main", "end": "keep"})).await;
    let room = up(&world, &run).await["room"].clone();
    assert_eq!((&room["phase"], &room["branch"]), (&json!("ready"), &json!("overmind/mend")));
    assert_eq!(
        (&room["base"], &room["urls"]["web"]),
        (&json!("main"), &json!("http://127.0.0.1:20001"))
    );
    assert_eq!((&room["ports"]["PORT"], &room["commit"]), (&json!(20_001), &Value::Null));
    let work = world.get(&format!("/api/runs/{run}/work")).await.fine();
    assert_eq!((&work["files"], &work["diff"]), (&json!(1), &json!("+a\n+b\n")));
    let done = format!("/api/runs/{run}/done");
    let early = world.post(&done, r#"{"action":"merge"}"#).await.problem(409);
    assert!(early.contains("has not ended"), "{early}");
    assert!(world.processes.exits(0));
    let row = world.until(&run, "succeeded").await;
    assert_eq!((&row["room"]["phase"], &row["room"]["kept"]), (&json!("kept"), &json!("/kept")));
    let answer = world.post(&done, r#"{"action":"merge","into":"main"}"#).await.fine();
    assert_eq!(
        (&answer["decision"]["said"], &answer["decision"]["commit"]),
        (&json!("merged"), &json!("c0ffee"))
    );
    assert_eq!(answer["run"]["room"]["done"]["action"], "merge");
    let mut row = world.get(&format!("/api/sessions/{run}")).await.fine();
    assert_eq!(row["agent_name"].take(), "shell", "which only a run that is asked for says");
    assert_eq!(row, answer["run"]);
    assert!(!row.to_string().contains("hush"), "no variable is shown: {row}");
}

#[tokio::test]
async fn a_run_without_an_environment_reports_that() {
    let world = World::new().await;
    let run = run(&world, json!({"when": "never"})).await;
    let row = up(&world, &run).await;
    assert_eq!(row["room"], Value::Null);
    let none = world.get(&format!("/api/runs/{run}/work")).await.problem(409);
    assert!(none.contains("no environment"), "{none}");
}

#[tokio::test]
async fn mistakes_are_reported_with_their_field() {
    let world = World::new().await;
    let agent = agent(&world).await;
    for (room, field) in [
        (json!({"when": "sometimes"}), "room"),
        (json!({"base": "--output=x"}), "room.base"),
        (json!({"base": ""}), "room.base"),
        (json!({"branch": "x"}), "room"),
    ] {
        let body = json!({"agent_id": agent, "task": "x", "room": room}).to_string();
        let answer = world.post("/api/runs", &body).await;
        assert_eq!(answer.status, 422, "{}", answer.body);
        assert!(answer.body.contains(field), "{field}: {}", answer.body);
    }
    let run = world.ended_run().await;
    for body in [
        r#"{"action":"keep","into":"main"}"#,
        r#"{"action":"merge","name":"x"}"#,
        r#"{"action":"pr_branch","name":"-x"}"#,
        r#"{"action":"burn"}"#,
        "{}",
    ] {
        let answer = world.post(&format!("/api/runs/{run}/done"), body).await;
        assert_eq!(answer.status, 422, "{body}: {}", answer.body);
    }
}

#[tokio::test]
async fn leaks_are_listed_and_fixed() {
    let world = World::new().await;
    let leak = |what: &str, fixable| Leak {
        kind: "port".into(),
        what: what.into(),
        session: Some("mend".into()),
        how: "end what listens".into(),
        fixable,
        bytes: None,
    };
    *world.rooms.leaks.lock().unwrap() = vec![leak("20001", true), leak("20002", false)];
    let found = world.get("/api/rooms/leaks").await.fine();
    assert_eq!(found["leaks"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&found["leaks"][0]["what"], &found["leaks"][0]["fixable"]),
        (&json!("20001"), &json!(true))
    );
    let left = world.post("/api/rooms/fix", "").await.fine();
    assert_eq!(left["leaks"].as_array().unwrap().len(), 1);
    let body = r#"{"name":"watcher","role":"viewer"}"#;
    let key = world.post("/api/keys", body).await.fine()["secret"].as_str().unwrap().to_owned();
    world.request("GET", "/api/rooms/leaks").token(&key).send().await.problem(403);
    world.request("POST", "/api/rooms/fix").token(&key).send().await.problem(403);
}
