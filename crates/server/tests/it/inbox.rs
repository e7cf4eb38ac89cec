//! `/api/inbox`: shapes, statuses, texts, and the stream.

use std::collections::BTreeSet;

use overmind_testkit::ports::{FakeModels, FakeTools, calls, says};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{World, patiently};

/// Each run asks once and ends then.
async fn asking(runs: usize) -> World {
    let ask = |n: usize| calls(&[("ask_user", json!({"message": format!("Which {n}?")}))]);
    let models = FakeModels::new((0..runs).map(ask).chain((0..runs).map(|_| says("end"))));
    World::whole(|_| (), FakeTools::ok(), models, |_| vec![]).await
}

/// A run that waits for an answer, and its item.
async fn waiting(world: &World) -> (String, Value) {
    let agent = world.agent("gpt-test").await;
    let run = world.run(&agent, "go").await;
    world.until(&run, "awaiting_input").await;
    let items = world.get(&format!("/api/inbox?run_id={run}")).await.fine();
    assert_eq!(items.as_array().unwrap().len(), 1, "{items}");
    (run, items[0].clone())
}

async fn answer(world: &World, item: &Value, body: Value) -> crate::world::Response {
    let path = format!("/api/inbox/{}/answer", item["id"].as_str().unwrap());
    world.post(&path, &body.to_string()).await
}

fn words(message: &str) -> Value {
    json!({"decision": "answer", "message": message})
}

#[tokio::test]
async fn an_item_has_the_exact_keys_and_is_answered_once() {
    let world = asking(1).await;
    let (run, item) = waiting(&world).await;
    let keys: BTreeSet<&str> = item.as_object().unwrap().keys().map(String::as_str).collect();
    let wanted = [
        "id",
        "kind",
        "state",
        "title",
        "risk",
        "run_id",
        "approval_id",
        "agent_id",
        "agent",
        "epoch",
        "group",
        "details",
        "asked_at",
        "expires_at",
        "answered_at",
        "answered_by",
        "answer",
        "changed",
    ];
    assert_eq!(keys, BTreeSet::from(wanted));
    assert_eq!((&item["kind"], &item["state"]), (&json!("question"), &json!("open")));
    assert_eq!((&item["title"], &item["run_id"]), (&json!("Which 0?"), &json!(run)));
    assert!(item["id"].as_str().unwrap().starts_with("inb_"));
    let path = format!("/api/inbox/{}", item["id"].as_str().unwrap());
    assert_eq!(world.get(&path).await.fine(), item);

    let done = answer(&world, &item, words("this")).await.fine();
    assert_eq!((&done["state"], &done["answer"]), (&json!("answered"), &json!("this")));
    assert_eq!(done["answered_by"], "admin");
    let again = answer(&world, &item, words("that")).await.problem(409);
    assert!(again.starts_with("this was already answered by admin at 20"), "{again}");
    assert_eq!(world.get("/api/inbox").await.fine(), json!([]));
    assert_eq!(world.get("/api/inbox?state=answered&kind=question").await.fine(), json!([done]));
    assert_eq!(world.get("/api/inbox?state=all").await.fine(), json!([done]));
    assert_eq!(world.get("/api/inbox?state=all&kind=approval").await.fine(), json!([]));
}

#[tokio::test]
async fn an_approval_can_be_answered_in_the_inbox_or_at_its_run() {
    let shell = || calls(&[("run_shell", json!({"command": "deploy"}))]);
    let models = FakeModels::new([shell(), shell(), says("end")]);
    let world = World::whole(|_| (), FakeTools::ok(), models, |_| vec![]).await;
    let agent = json!({"name": "careful", "role": "r", "model": "gpt-test",
        "tools_allowed": ["run_shell"], "approvals": ["run_shell"]});
    world.post("/api/agents", &agent.to_string()).await.fine();
    let run = world.run("careful", "go").await;
    let row = world.until(&run, "awaiting_approval").await;
    let item = world.get("/api/inbox").await.fine()[0].clone();
    assert_eq!((&item["approval_id"], &item["agent"]), (&row["approval_id"], &json!("careful")));
    let wrong = answer(&world, &item, words("yes")).await.problem(422);
    assert_eq!(wrong, "this asks for consent: the decision must be approve or deny");
    answer(&world, &item, json!({"decision": "approve", "reason": "ok"})).await.fine();
    let row = world.until(&run, "awaiting_approval").await;
    assert_ne!(row["approval_id"], item["approval_id"]);
    let path = format!("/api/runs/{run}/approvals/{}", row["approval_id"].as_str().unwrap());
    world.post(&path, r#"{"decision":"deny","reason":"no"}"#).await.fine();
    let all = world.get("/api/inbox?state=all").await.fine();
    let states: Vec<_> = all.as_array().unwrap().iter().map(|item| &item["state"]).collect();
    assert_eq!(states, ["denied", "approved"], "asked last first");
    assert_eq!(world.get("/api/inbox/groups").await.fine(), json!([]), "no policy, no groups");
    let none = world.get("/api/inbox/proposals").await.problem(409);
    assert_eq!(none, "this server has no policy to propose rules for");
}

#[tokio::test]
async fn an_invalid_answer_has_its_status_and_message() {
    let world = asking(1).await;
    let (_, item) = waiting(&world).await;
    for (body, error) in [
        (json!({"decision": "answer"}), "message: is required to answer"),
        (words(" "), "message: must not be blank"),
        (
            json!({"decision": "approve", "message": "yes"}),
            "message: belongs to the decision answer; give a reason instead",
        ),
        (
            json!({"decision": "answer", "message": "x", "reason": "y"}),
            "reason: belongs to the decisions approve and deny",
        ),
        (
            json!({"decision": "approve"}),
            "this is a question: the decision must be answer, with a message",
        ),
        (json!({}), "decision: is required"),
    ] {
        assert_eq!(answer(&world, &item, body.clone()).await.problem(422), error, "{body}");
    }
    for id in ["inb_00000000000000000000000000000000", "x", "ses_zz"] {
        let nobody = json!({"id": id});
        assert_eq!(answer(&world, &nobody, words("x")).await.problem(404), "Inbox item not found");
        let path = format!("/api/inbox/{id}");
        assert_eq!(world.get(&path).await.problem(404), "Inbox item not found");
    }
    for (query, error) in [
        ("state=closed", "state: must be all, or one of open, approved"),
        ("kind=x", "kind: must be one of approval, question, raise, work, not `x`"),
        ("cursor=7", "cursor: must be the cursor of an earlier page's Link header"),
        ("limit=0", "limit: must be a whole number from 1 to 1000"),
        ("stat=open", "stat: "),
    ] {
        let told = world.get(&format!("/api/inbox?{query}")).await.problem(422);
        assert!(told.starts_with(error), "{told}");
    }
    assert_eq!(world.get("/api/inbox?run_id=x").await.problem(404), "Run not found");
}

#[tokio::test]
async fn pages_are_linked_and_each_item_of_a_batch_has_its_own_result() {
    let world = asking(5).await;
    let mut items = Vec::new();
    for _ in 0..5 {
        items.push(waiting(&world).await.1);
    }
    items.reverse();
    let mut found = Vec::new();
    let mut path = "/api/inbox?limit=2".to_owned();
    loop {
        let page = world.get(&path).await;
        found.extend(page.fine().as_array().unwrap().clone());
        let Some(link) = page.header("link") else { break };
        path = link.trim_start_matches('<').split('>').next().unwrap().to_owned();
    }
    assert_eq!(found, items);

    answer(&world, &items[0], words("first")).await.fine();
    let ids: Vec<_> = items[..3].iter().map(|item| item["id"].clone()).collect();
    let batch = json!({"ids": ids, "decision": "answer", "message": "all"}).to_string();
    let done = world.post("/api/inbox/answer", &batch).await.fine();
    assert_eq!(done["ok"], false);
    let results = done["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|it| it["ok"].clone()).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(results[0]["problem"]["status"], 409);
    assert_eq!((&results[1]["id"], &results[1]["item"]["answer"]), (&ids[1], &json!("all")));
    assert_eq!(world.get("/api/inbox").await.fine(), json!(items[3..]));
    for ids in [json!([]), json!([ids[0], ids[0]]), json!(["x"])] {
        let batch = json!({"ids": ids, "decision": "answer", "message": "x"}).to_string();
        let wrong = world.post("/api/inbox/answer", &batch).await.problem(422);
        assert!(wrong.starts_with("ids"), "{wrong}");
    }
}

#[tokio::test]
async fn a_viewer_can_read_and_not_answer() {
    let world = asking(1).await;
    let (_, item) = waiting(&world).await;
    let key = json!({"name": "v", "role": "viewer"}).to_string();
    let key = world.post("/api/keys", &key).await.fine()["secret"].as_str().map(str::to_owned);
    let key = key.expect("a new key shows its secret");
    let path = format!("/api/inbox/{}", item["id"].as_str().unwrap());
    let looked = world.request("GET", &path).token(&key).send().await.fine();
    assert_eq!(looked, item);
    let body = words("x").to_string();
    let refused = world.request("POST", &format!("{path}/answer")).token(&key).json(&body);
    refused.send().await.problem(403);
    let batch = json!({"ids": [item["id"]], "decision": "answer", "message": "x"}).to_string();
    let refused = world.request("POST", "/api/inbox/answer").token(&key).json(&batch);
    refused.send().await.problem(403);
    world.request("GET", "/api/inbox").without("Authorization").send().await.problem(401);
}

/// An open stream of changes.
struct News {
    stream: TcpStream,
    text: String,
}

impl News {
    async fn open(world: &World, after: Option<&str>) -> Self {
        let mut request = world.request("GET", "/api/inbox/events");
        if let Some(after) = after {
            request = request.header("Last-Event-ID", after);
        }
        let mut stream = world.connect().await;
        stream.write_all(request.text().as_bytes()).await.unwrap();
        Self { stream, text: String::new() }
    }

    /// Reads until `ready` likes the messages so far.
    async fn until(&mut self, ready: impl Fn(&[Message]) -> bool) -> Vec<Message> {
        let wait = async {
            let mut buf = [0; 4096];
            loop {
                let messages = messages(&self.text);
                if ready(&messages) {
                    return messages;
                }
                let n = self.stream.read(&mut buf).await.unwrap();
                assert_ne!(n, 0, "the stream ended: {}", self.text);
                self.text.push_str(std::str::from_utf8(&buf[..n]).unwrap());
            }
        };
        patiently("news", wait).await
    }
}

#[derive(Clone, Debug)]
struct Message {
    id: Option<String>,
    event: String,
    data: Value,
}

/// Whole messages; chunk sizes are between them on separate lines and are no fields.
fn messages(text: &str) -> Vec<Message> {
    let Some((_, whole)) = text.rsplit_once("\n\n").map(|(whole, rest)| (rest, whole)) else {
        return Vec::new();
    };
    let field = |block: &str, name: &str| {
        block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
    };
    whole
        .split("\n\n")
        .filter_map(|block| {
            let data = serde_json::from_str(&field(block, "data: ")?).ok()?;
            Some(Message { id: field(block, "id: "), event: field(block, "event: ")?, data })
        })
        .collect()
}

#[tokio::test]
async fn the_stream_sends_open_items_then_changes_and_resumes_without_loss() {
    let ask = |n: usize| calls(&[("ask_user", json!({"message": format!("Which {n}?")}))]);
    let models = FakeModels::new([ask(0), ask(1), says("end"), ask(2), says("end")]);
    let world = World::whole(|_| (), FakeTools::ok(), models, |_| vec![]).await;
    let (first_run, first) = waiting(&world).await;
    let mut news = News::open(&world, None).await;
    let told = news.until(|told| told.iter().any(|it| it.event == "snapshot")).await;
    assert_eq!(told.len(), 2);
    assert_eq!((told[0].event.as_str(), &told[0].data), ("opened", &first));
    assert_eq!(told[0].id, None, "nothing to resume after before the snapshot is whole");
    assert_eq!(told[1].data, json!({"open": 1, "changed": first["changed"]}));
    let snapshot = told[1].id.clone().expect("a place to resume after");

    let (_, second) = waiting(&world).await;
    answer(&world, &first, words("x")).await.fine();
    let told = news.until(|told| told.iter().any(|it| it.event == "closed")).await;
    let what: Vec<_> =
        told[2..].iter().map(|it| (it.event.as_str(), it.data["id"].clone())).collect();
    assert_eq!(what, [("opened", second["id"].clone()), ("closed", first["id"].clone())]);
    let place = told[2].id.clone().expect("each change has a place");
    drop(news);
    // It has received its model's reply before the next run requests one.
    world.until(&first_run, "succeeded").await;

    // Changes that nobody received.
    let (_, third) = waiting(&world).await;
    answer(&world, &second, words("x")).await.fine();
    let mut resumed = News::open(&world, Some(&place)).await;
    let told = resumed.until(|told| told.len() >= 3).await;
    let what: Vec<_> = told.iter().map(|it| (it.event.as_str(), it.data["id"].clone())).collect();
    let wanted = [
        ("closed", first["id"].clone()),
        ("opened", third["id"].clone()),
        ("closed", second["id"].clone()),
    ];
    assert_eq!(what, wanted);
    let places: Vec<u64> = told.iter().map(|it| it.id.as_ref().unwrap().parse().unwrap()).collect();
    assert!(places.is_sorted() && places[0] > place.parse().unwrap(), "{places:?}");
    // From the snapshot on: an item that was opened and closed meanwhile arrives as closed.
    let mut resumed = News::open(&world, Some(&snapshot)).await;
    let told = resumed.until(|told| told.len() >= 3).await;
    let states: Vec<_> = told.iter().map(|it| it.data["state"].clone()).collect();
    assert_eq!(states, ["answered", "open", "answered"]);

    let wrong = world.request("GET", "/api/inbox/events").header("Last-Event-ID", "x");
    let told = wrong.send().await.problem(422);
    assert!(told.starts_with("Last-Event-ID: must be the `id:`"), "{told}");
}
