//! The wall of a colony: what a key that is bound to one reaches, on every route.

use serde_json::{Value, json};

use crate::world::{Response, World, patiently};

/// Of the other colony. None of these may be in any answer.
const AGENT: &str = "agent-of-b";
const RUN: &str = "run-of-b";
const TEXT: &str = "text-of-b";

async fn colony(world: &World, name: &str, spec: Value) -> Response {
    let document = json!({
        "apiVersion": "overmind/v1", "kind": "Colony", "metadata": {"name": name}, "spec": spec,
    });
    let path = format!("/api/resources/colony/{name}");
    world.request("PUT", &path).json(&document.to_string()).send().await
}

async fn made(world: &World, name: &str, spec: Value) {
    let answer = colony(world, name, spec).await;
    assert!([200, 201].contains(&answer.status), "{}", answer.body);
}

async fn key(world: &World, name: &str, role: &str, colony: &str) -> String {
    let body = json!({"name": name, "role": role, "colony": colony}).to_string();
    let made = world.post("/api/keys", &body).await.fine();
    made["secret"].as_str().unwrap().to_owned()
}

/// As the admin, in a colony.
async fn within(world: &World, colony: &str, method: &str, path: &str, body: &Value) -> Response {
    let request = world.request(method, path).header("overmind-colony", colony);
    match body {
        Value::Null => request.send().await,
        body => request.json(&body.to_string()).send().await,
    }
}

async fn agent(world: &World, colony: &str, name: &str) -> String {
    let body = json!({
        "name": name, "role": "r", "model": "gpt-test", "tools_allowed": ["hang"],
    });
    let made = within(world, colony, "POST", "/api/agents", &body).await.fine();
    made["id"].as_str().unwrap().to_owned()
}

/// A run whose tool hangs.
async fn hanging(world: &World, colony: &str, agent: &str, name: &str) -> String {
    let before = world.tools.called("hang");
    let body = json!({"agent_id": agent, "task": "hang", "name": name});
    let made = within(world, colony, "POST", "/api/runs", &body).await.fine();
    let begun = async {
        while world.tools.called("hang") == before {
            tokio::task::yield_now().await;
        }
    };
    patiently("the tool to begin", begun).await;
    made["id"].as_str().unwrap().to_owned()
}

/// What is in the other colony.
struct Other {
    colony: String,
    agent: String,
    run: String,
    memory: String,
    record: &'static str,
}

impl Other {
    async fn new(world: &World) -> Self {
        made(world, "team-b", json!({})).await;
        let agent = agent(world, "team-b", AGENT).await;
        let run = hanging(world, "team-b", AGENT, RUN).await;
        // The memory of these tests stores nothing: it answers with an item all the same.
        let body = json!({"collection": "c", "text": TEXT});
        let memory = within(world, "team-b", "POST", "/api/memory/store", &body).await.fine();
        let memory = memory.to_string();
        let memory = memory.find("mem_").map_or("mem_00000000000000000000000000000001", |at| {
            &memory[at..at + "mem_".len() + 32]
        });
        let memory = memory.to_owned();
        let context = json!({
            "apiVersion": "overmind/v1", "kind": "Context", "metadata": {"name": "context-of-b"},
            "spec": {"prompt": "p"},
        });
        let path = "/api/resources/context/context-of-b";
        let put = within(world, "team-b", "PUT", path, &context).await;
        assert_eq!(put.status, 201, "{}", put.body);
        let row = world.get(&format!("/api/runs/{run}")).await.fine();
        Self {
            colony: row["colony"].as_str().unwrap().to_owned(),
            agent,
            run,
            memory,
            record: "context-of-b",
        }
    }

    /// A path of the table with the ids of this colony in the place of its parameters.
    fn filled(&self, path: &str) -> String {
        let id = match path.split('/').nth(2) {
            Some("agents") => &self.agent,
            Some("memory") => &self.memory,
            _ => &self.run,
        };
        let part = |part: &str| match part {
            "{id}" => id.clone(),
            "{kind}" => "context".to_owned(),
            "{name}" | "{*name}" => self.record.to_owned(),
            part if part.starts_with('{') => "nothing-like-it".to_owned(),
            part => part.to_owned(),
        };
        path.split('/').map(part).collect::<Vec<_>>().join("/")
    }

    /// Whether a text tells of this colony.
    fn is_told(&self, text: &str) -> Option<String> {
        let own = [&self.colony, &self.agent, &self.run].map(String::as_str);
        let words = [AGENT, RUN, TEXT, self.record, "team-b"];
        own.into_iter().chain(words).find(|word| text.contains(word)).map(str::to_owned)
    }
}

/// The routes of the table, each with whether it is open to bound keys.
fn routes() -> Vec<(String, String, bool)> {
    let table = overmind_server::roles_document();
    let lines = table.lines().filter(|line| line.starts_with("| `") && line.contains(" /"));
    let route = |line: &str| {
        let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
        let (method, path) = cells.first()?.trim_matches('`').split_once(' ')?;
        Some((method.to_owned(), path.to_owned(), *cells.last()? != "–"))
    };
    lines.filter_map(route).collect()
}

/// Each route with ids of another colony: what is open to bound keys answers 404 or nothing of it,
/// and all else 403.
#[tokio::test]
async fn a_bound_key_reaches_nothing_of_another_colony_on_any_route() {
    let world = World::new().await;
    made(&world, "team-a", json!({})).await;
    let other = Other::new(&world).await;
    let mut tried = 0;
    for role in ["operator", "viewer", "runs"] {
        let key = key(&world, &format!("bound {role}"), role, "team-a").await;
        for (method, path, open) in routes() {
            let at = other.filled(&path);
            let request = world.request(&method, &at).token(&key);
            let request = if method == "GET" { request } else { request.json("{}") };
            // Nobody needs a token for these; the last one finds it itself, and takes admins alone.
            if matches!(path.as_str(), "/health" | "/healthz" | "/readyz" | "/mesh/api") {
                continue;
            }
            let streams = path.ends_with("/stream")
                || path.ends_with("/watch")
                || path.ends_with("/events") && path != "/api/events"
                || path.ends_with("/log")
                || path.ends_with("/replay");
            tried += 1;
            if streams {
                let status = request.status().await;
                let is_feed = !path.contains("{id}") && open;
                assert!(
                    [403, 404].contains(&status) || (is_feed && status == 200),
                    "{role} {method} {at}: {status}"
                );
                continue;
            }
            let answer = request.send().await;
            if !open {
                assert_eq!(answer.status, 403, "{role} {method} {at}: {}", answer.body);
                continue;
            }
            if path.contains("{id}") {
                let refused = [403, 404].contains(&answer.status)
                    // A body that says nothing is refused before anything is looked up.
                    || (answer.status == 422 && path.starts_with("/api/inbox"));
                assert!(refused, "{role} {method} {at}: {} {}", answer.status, answer.body);
            }
            if method == "GET" && !path.contains('{') {
                let told = other.is_told(&answer.body);
                assert_eq!(told, None, "{role} {method} {at}: {}", answer.body);
            }
        }
    }
    assert!(tried > 400, "{tried} were tried");
    let row = world.get(&format!("/api/runs/{}", other.run)).await.fine();
    assert_eq!(row["status"], "running", "nothing was done to it");
}

#[tokio::test]
async fn names_lists_and_watches_are_of_one_colony() {
    let world = World::new().await;
    made(&world, "team-a", json!({})).await;
    let other = Other::new(&world).await;
    let key = key(&world, "bob", "operator", "team-a").await;
    let own = agent(&world, "team-a", AGENT).await;
    let run = hanging(&world, "team-a", AGENT, RUN).await;
    assert_ne!((&own, &run), (&other.agent, &other.run), "the same names, and other things");

    // The key alone says where it works; the header may say it too, and nothing else.
    let ask = async |path: &str, colony: Option<&str>| {
        let request = world.request("GET", path).token(&key);
        let request = match colony {
            Some(colony) => request.header("overmind-colony", colony),
            None => request,
        };
        request.send().await
    };
    for colony in [None, Some("team-a"), Some("*")] {
        let runs = ask("/api/runs", colony).await.fine();
        assert_eq!(runs[0]["id"], json!(run), "{colony:?}");
        assert_eq!(runs.as_array().unwrap().len(), 1, "{colony:?}");
        assert_eq!(runs[0]["colony_name"], "team-a");
        let agents = ask("/api/resources/agents", colony).await.fine();
        assert_eq!(agents[0]["metadata"]["uid"], json!(own));
        assert_eq!(agents[0]["metadata"]["colony"], "team-a");
        assert_eq!(agents.as_array().unwrap().len(), 1);
        let colonies = ask("/api/resources/colony", colony).await.fine();
        assert_eq!(colonies.as_array().unwrap().len(), 1, "{colonies}");
        assert_eq!(colonies[0]["metadata"]["name"], "team-a");
        assert_eq!(colonies[0]["status"]["runs"], 1);
    }
    for colony in ["team-b", "default", "nowhere"] {
        let error = ask("/api/runs", Some(colony)).await.problem(404);
        let want = format!("there is no colony `{colony}` here: this token belongs to");
        assert!(error.starts_with(&want), "{error}");
    }
    ask("/api/resources/colony/team-b", None).await.problem(404);
    ask("/api/resources/colony/default", None).await.problem(404);
    assert_eq!(ask(&format!("/api/agents/{AGENT}"), None).await.fine()["id"], json!(own));

    // An admin sees one colony, or all.
    let runs = async |colony: &str| {
        let listed = within(&world, colony, "GET", "/api/runs", &Value::Null).await.fine();
        listed.as_array().unwrap().len()
    };
    assert_eq!(world.get("/api/runs").await.fine(), json!([]));
    assert_eq!((runs("default").await, runs("team-b").await, runs("*").await), (0, 1, 2));
    let error = within(&world, "team-c", "GET", "/api/runs", &Value::Null).await.problem(404);
    assert!(
        error.contains("(did you mean `team-") && error.contains("overmind create colony team-c"),
        "{error}"
    );
}

#[tokio::test]
async fn a_bound_key_makes_things_in_its_colony_and_starts_no_agent_of_another() {
    let world = World::new().await;
    made(&world, "team-a", json!({})).await;
    let other = Other::new(&world).await;
    let key = key(&world, "bob", "operator", "team-a").await;
    let post = async |path: &str, body: Value| {
        world.request("POST", path).token(&key).json(&body.to_string()).send().await
    };
    let start = json!({"agent_id": other.agent, "task": "hang"});
    post("/api/runs", start).await.problem(404);
    post("/api/runs", json!({"agent_id": AGENT, "task": "hang"})).await.problem(404);
    let own = json!({"name": "own", "role": "r", "model": "gpt-test", "tools_allowed": ["hang"]});
    let made = post("/api/agents", own).await.fine();
    assert_ne!(made["colony"], json!(other.colony));
    let below = json!({"agent_id": "own", "task": "hang", "parent_id": other.run});
    let refused = post("/api/runs", below).await;
    assert!([404, 422].contains(&refused.status), "{}", refused.body);
    let started = post("/api/runs", json!({"agent_id": "own", "task": "hang"})).await.fine();
    assert_eq!(started["colony"], made["colony"]);
    // Killing all ends those of the colony alone.
    let killed = post("/api/runs/kill", json!({"all": true})).await;
    assert_eq!(killed.status, 200, "{}", killed.body);
    assert_eq!(other.is_told(&killed.body), None);
    let named = post("/api/runs/kill", json!({"ids": [other.run]})).await.fine();
    assert!(named.to_string().contains("not found"), "{named}");
    let row = world.get(&format!("/api/runs/{}", other.run)).await.fine();
    assert_eq!(row["status"], "running");
}

#[tokio::test]
async fn keys_are_bound_to_colonies_that_exist_and_never_as_admins() {
    let world = World::new().await;
    made(&world, "team-a", json!({})).await;
    let create = async |role: &str, colony: &str| {
        let body = json!({"name": "k", "role": role, "colony": colony}).to_string();
        world.post("/api/keys", &body).await
    };
    let error = create("admin", "team-a").await.problem(422);
    assert!(error.contains("operator or less for a key with a colony"), "{error}");
    assert!(create("mcp", "team-a").await.problem(422).contains("role must not be mcp"));
    assert!(create("viewer", "default").await.problem(422).contains("must not be `default`"));
    assert!(create("viewer", "team-x").await.problem(404).contains("no colony `team-x`"));
    let made = create("viewer", "team-a").await.fine();
    assert_eq!(made["key"]["colony_name"], "team-a");
    let keys = world.get("/api/keys").await.fine();
    assert_eq!(keys[0]["colony_name"], "team-a");
    let secret = made["secret"].as_str().unwrap();
    let link = world.request("POST", "/api/sign-in/links").token(secret).json("{}").send().await;
    link.problem(403);
}

#[tokio::test]
async fn a_quota_is_kept_by_starts_at_the_same_time_and_a_weak_sandbox_is_refused() {
    let world = World::new().await;
    made(&world, "team-a", json!({"quota": {"runs": 3}})).await;
    agent(&world, "team-a", "own").await;
    let body = json!({"agent_id": "own", "task": "hang"});
    let start = || within(&world, "team-a", "POST", "/api/runs", &body);
    let all = futures_util::future::join_all((0..8).map(|_| start())).await;
    let started = all.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(started, 3, "{all:?}");
    for refused in all.iter().filter(|answer| answer.status != 200) {
        let error = refused.problem(409);
        let want = "the colony `team-a` has 3 runs that have not ended, and its quota is 3";
        assert!(error.starts_with(want), "{error}");
    }
    // A raised quota lets more start at once; the others were not touched by it.
    made(&world, "team-a", json!({"quota": {"runs": 4}})).await;
    assert_eq!(start().await.status, 200);
    start().await.problem(409);

    made(&world, "team-a", json!({"sandbox": "docker"})).await;
    let error = start().await.problem(403);
    assert!(error.contains("requires the sandbox `docker` or a stronger one"), "{error}");
}

#[tokio::test]
async fn a_colony_is_deleted_when_nothing_is_in_it_and_its_name_is_another_then() {
    let world = World::new().await;
    made(&world, "team-a", json!({})).await;
    let delete = async || world.request("DELETE", "/api/resources/colony/team-a").send().await;
    let agent = agent(&world, "team-a", "own").await;
    let error = delete().await.problem(409);
    assert!(error.contains("not empty: there is an agent in it"), "{error}");
    let path = format!("/api/agents/{agent}");
    assert_eq!(world.request("DELETE", &path).send().await.status, 200);
    let bound = key(&world, "bob", "viewer", "team-a").await;
    assert!(delete().await.problem(409).contains("there is a key in it"));
    let keys = world.get("/api/keys").await.fine();
    let path = format!("/api/keys/{}", keys[0]["id"].as_str().unwrap());
    assert_eq!(world.request("DELETE", &path).send().await.status, 200);
    delete().await.fine();
    assert_eq!(world.request("GET", "/api/runs").token(&bound).send().await.status, 401);
    within(&world, "team-a", "GET", "/api/runs", &Value::Null).await.problem(404);
    // The default one stays.
    let error = world.request("DELETE", "/api/resources/colony/default").send().await.problem(409);
    assert!(error.contains("always exists"), "{error}");
    let colonies = world.get("/api/resources/colonies").await.fine();
    assert_eq!(colonies[0]["metadata"]["name"], "default");
}

/// A run's own token acts in its colony, and the mesh is closed to it.
#[tokio::test]
async fn a_runs_token_stays_in_its_colony() {
    let world = World::new().await;
    made(&world, "team-a", json!({})).await;
    agent(&world, "team-a", "own").await;
    let run = hanging(&world, "team-a", "own", "mine").await;
    let row = world.get(&format!("/api/runs/{run}")).await.fine();
    let epoch = u32::try_from(row["epoch"].as_u64().unwrap()).unwrap();
    let token = world.engine.session_token(run.parse().unwrap(), epoch);
    let ask = async |path: &str, colony: &str| {
        let request = world.request("GET", path).token(&token);
        request.header("overmind-colony", colony).send().await
    };
    let runs = ask("/api/runs", "team-a").await.fine();
    assert_eq!(runs[0]["id"], json!(run));
    ask("/api/runs", "default").await.problem(404);
    for path in ["/mesh/blackboard", "/mesh/messages", "/mesh/agents", "/mesh/subscriptions"] {
        let error = ask(path, "team-a").await.problem(403);
        assert!(error.contains("exists in the colony `default` alone"), "{path}: {error}");
    }
}
