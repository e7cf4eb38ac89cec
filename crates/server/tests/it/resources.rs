//! Declared things over HTTP: owners, finalizers, versions, pages, secrets, roles and the watch.

use serde_json::{Value, json};

use crate::watch::Watch;
use crate::world::{ADMIN, Response, World};

const SECRET: &str = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789";

fn path(name: &str) -> String {
    format!("/api/resources/contexts/{name}")
}

fn document(name: &str, metadata: Value) -> Value {
    let mut metadata = metadata;
    metadata["name"] = json!(name);
    json!({"apiVersion": "overmind/v1", "kind": "Context", "metadata": metadata,
        "spec": {"prompt": name}})
}

async fn put(world: &World, document: &Value) -> Response {
    let path = path(document["metadata"]["name"].as_str().unwrap());
    world.request("PUT", &path).json(&document.to_string()).send().await
}

/// Makes one; the resource.
async fn made(world: &World, name: &str, metadata: Value) -> Value {
    let answer = put(world, &document(name, metadata)).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    assert_eq!(answer.json()["outcome"], "created");
    answer.json()["resource"].clone()
}

/// An owner, and owned records that finalizers may hold.
async fn family(world: &World, child: Value) -> Value {
    let owner = made(world, "owner", json!({})).await;
    let mut metadata = child;
    metadata["ownerReferences"] = json!([{"uid": owner["metadata"]["uid"]}]);
    made(world, "child", metadata).await;
    owner
}

async fn delete(world: &World, name: &str, query: &str) -> Response {
    world.request("DELETE", &format!("{}{query}", path(name))).send().await
}

async fn there(world: &World, name: &str) -> bool {
    let answer = world.get(&path(name)).await;
    assert!(matches!(answer.status, 200 | 404), "{}", answer.body);
    answer.status == 200
}

#[tokio::test]
async fn owned_records_are_deleted_or_kept_as_requested() {
    let world = World::new().await;
    family(&world, json!({})).await;
    assert_eq!(delete(&world, "owner", "").await.fine(), json!({"gone": true}));
    assert!(!there(&world, "child").await, "background is the default");

    family(&world, json!({})).await;
    assert_eq!(delete(&world, "owner", "?cascade=orphan").await.fine(), json!({"gone": true}));
    let child = world.get(&path("child")).await.fine();
    assert_eq!(child["metadata"].get("ownerReferences"), None);
    delete(&world, "child", "").await.fine();

    // Deleted before it on request: at once if no finalizer holds it.
    family(&world, json!({})).await;
    assert_eq!(delete(&world, "owner", "?cascade=foreground").await.fine(), json!({"gone": true}));
    assert!(!there(&world, "child").await);

    family(&world, json!({"finalizers": ["test/held"]})).await;
    assert_eq!(delete(&world, "owner", "?cascade=foreground").await.fine(), json!({"gone": false}));
    let owner = world.get(&path("owner")).await.fine();
    assert_eq!(owner["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    assert!(owner["metadata"]["deletionTimestamp"].is_string());
    let again = put(&world, &document("owner", json!({"labels": {"a": "b"}}))).await;
    assert!(again.problem(409).contains("is being deleted"), "{}", again.body);
    // Removing the last finalizer of an owned record deletes both.
    let released = put(&world, &document("child", json!({"finalizers": []}))).await;
    assert_eq!(released.status, 200, "{}", released.body);
    assert!(!there(&world, "child").await);
    assert!(!there(&world, "owner").await);

    let wrong = delete(&world, "owner", "?cascade=sideways").await;
    assert!(wrong.problem(422).contains("background, foreground or orphan"), "{}", wrong.body);
    let nobody = json!({"ownerReferences": [{"uid": "rec_00000000000000000000000000"}]});
    let wrong = put(&world, &document("child", nobody)).await;
    assert!(wrong.problem(422).contains("metadata.ownerReferences[0].uid"), "{}", wrong.body);
}

/// The document and the server agree on the form of an owner.
#[tokio::test]
async fn an_owner_is_accepted_in_each_form_but_not_in_two() {
    let world = World::new().await;
    made(&world, "owner", json!({})).await;
    let owner = world.get(&path("owner")).await.fine();
    let uid = &owner["metadata"]["uid"];
    let known = json!({"uid": uid, "kind": "Context", "name": "owner"});
    let api: Value = serde_json::from_str(&overmind_server::openapi_from_code()).unwrap();
    let ways = api["components"]["schemas"]["OwnerReference"]["oneOf"].as_array().unwrap();
    let of = |way: &Value| -> Vec<String> {
        let names = way["required"].as_array().unwrap().iter();
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ways.iter().map(of).collect::<Vec<_>>(), [vec!["uid"], vec!["kind", "name"]]);
    for way in ways {
        let fields = of(way).into_iter().map(|name| (name.clone(), known[&name].clone()));
        let reference = Value::Object(fields.collect());
        let child = put(&world, &document("child", json!({"ownerReferences": [reference]}))).await;
        assert!([200, 201].contains(&child.status), "{reference}: {}", child.body);
        let child = &child.json()["resource"]["metadata"];
        assert_eq!(child["ownerReferences"], json!([{"uid": uid}]), "{reference}");
        assert_eq!(delete(&world, "child", "").await.fine(), json!({"gone": true}));
    }
    let wrong = put(&world, &document("child", json!({"ownerReferences": [known]}))).await;
    assert!(wrong.problem(422).contains("must be left out beside `uid`"), "{}", wrong.body);
}

#[tokio::test]
async fn a_finalizer_delays_deletion_until_it_is_removed() {
    let world = World::new().await;
    made(&world, "held", json!({"finalizers": ["test/a", "test/b"]})).await;
    assert_eq!(delete(&world, "held", "").await.fine(), json!({"gone": false}));
    let more = document("held", json!({"finalizers": ["test/a", "test/b", "test/c"]}));
    put(&world, &more).await.problem(409);
    let less = document("held", json!({"finalizers": ["test/b"]}));
    assert_eq!(put(&world, &less).await.status, 200);
    assert!(there(&world, "held").await);
    let none = document("held", json!({"finalizers": []}));
    assert_eq!(put(&world, &none).await.status, 200);
    assert!(!there(&world, "held").await);
}

#[tokio::test]
async fn a_change_of_another_version_is_a_conflict_of_its_own_type() {
    let world = World::new().await;
    let first = made(&world, "a", json!({})).await;
    let version = &first["metadata"]["resourceVersion"];
    let mine = document("a", json!({"resourceVersion": version, "labels": {"who": "me"}}));
    let theirs = document("a", json!({"resourceVersion": version, "labels": {"who": "they"}}));
    assert_eq!(put(&world, &theirs).await.json()["outcome"], "configured");
    let late = put(&world, &mine).await;
    assert!(late.problem(409).contains("it is at resource version"), "{}", late.body);
    assert_eq!(late.json()["type"], "urn:overmind:problem:conflict");
    assert_eq!(world.get(&path("a")).await.fine()["metadata"]["labels"]["who"], "they");
    let gone = format!("?resource_version={}", version.as_str().unwrap());
    delete(&world, "a", &gone).await.problem(409);
    assert!(there(&world, "a").await);
    // 0: only if it is not there.
    let anew = document("a", json!({"resourceVersion": "0"}));
    put(&world, &anew).await.problem(409);
}

#[tokio::test]
async fn a_secret_is_masked_in_a_spec_and_refused_in_a_label() {
    let world = World::new().await;
    let mut told = document("a", json!({"annotations": {"note": SECRET}}));
    told["spec"] = json!({"values": {"KEY": SECRET}});
    let answer = put(&world, &told).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    assert!(!answer.body.contains(SECRET), "{}", answer.body);
    assert!(!world.get(&path("a")).await.body.contains(SECRET));
    assert_eq!(put(&world, &told).await.json()["outcome"], "unchanged");
    let labels = document("b", json!({"labels": {"token": SECRET}}));
    let refused = put(&world, &labels).await;
    assert!(refused.problem(422).contains("metadata.labels"), "{}", refused.body);
    assert!(!refused.body.contains(SECRET), "{}", refused.body);
    let body = json!({"documents": [document("c", json!({})), labels]}).to_string();
    let refused = world.post("/api/resources", &body).await;
    assert!(refused.problem(422).contains("documents[1].metadata.labels"), "{}", refused.body);
    assert!(!there(&world, "c").await, "all or none");
}

#[tokio::test]
async fn viewers_read_operators_write_and_runs_do_neither() {
    let world = World::new().await;
    made(&world, "a", json!({})).await;
    let run = world.hanging_run().await;
    let row = world.get(&format!("/api/runs/{run}")).await.fine();
    let epoch = u32::try_from(row["epoch"].as_u64().unwrap()).unwrap();
    let own = world.engine.session_token(run.parse().unwrap(), epoch);
    let mut keys = vec![("run", own, false, false)];
    for (role, reads, writes) in
        [("viewer", true, false), ("operator", true, true), ("runs", false, false)]
    {
        let body = json!({"name": format!("{role} key"), "role": role}).to_string();
        let key = world.post("/api/keys", &body).await.fine();
        keys.push((role, key["secret"].as_str().unwrap().to_owned(), reads, writes));
    }
    let body = document("a", json!({"labels": {"by": "x"}})).to_string();
    let many = json!({"documents": [document("b", json!({}))]}).to_string();
    for (role, key, reads, writes) in keys {
        for at in
            ["/api/kinds", "/api/resources/contexts", &path("a"), "/api/resources/contexts/watch"]
        {
            let status = world.request("GET", at).token(&key).status().await;
            assert_eq!(status, if reads { 200 } else { 403 }, "{role} {at}");
        }
        let want = if writes { 200 } else { 403 };
        let done = world.request("PUT", &path("a")).token(&key).json(&body).send().await;
        assert_eq!(done.status, want, "{role}: {}", done.body);
        let done = world.request("POST", "/api/resources").token(&key).json(&many).send().await;
        assert_eq!(done.status, want, "{role}: {}", done.body);
        let done = world.request("DELETE", &path("b")).token(&key).send().await;
        assert_eq!(done.status, want, "{role}: {}", done.body);
    }
}

#[tokio::test]
async fn a_list_of_several_pages_is_complete_and_ordered() {
    let world = World::new().await;
    let documents: Vec<Value> =
        (0..1050).map(|n| document(&format!("c{n:04}"), json!({}))).collect();
    world.post("/api/resources", &json!({"documents": documents}).to_string()).await.fine();
    let mut at = "/api/resources/contexts?limit=1000".to_owned();
    let (mut names, mut pages) = (Vec::new(), 0);
    loop {
        let page = world.get(&at).await;
        let items = page.fine();
        let items = items.as_array().unwrap();
        names.extend(items.iter().map(|one| one["metadata"]["name"].as_str().unwrap().to_owned()));
        pages += 1;
        let Some(link) = page.header("link") else { break };
        at = link.split_once('<').unwrap().1.split_once('>').unwrap().0.to_owned();
    }
    assert_eq!(pages, 2);
    let wanted: Vec<String> = (0..1050).map(|n| format!("c{n:04}")).collect();
    assert_eq!(names, wanted);
    world.get("/api/resources/contexts?limit=1001").await.problem(422);
}

#[tokio::test]
async fn a_watch_sends_existing_records_then_changes_and_resumes() {
    let world = World::new().await;
    made(&world, "a", json!({"labels": {"app": "web"}})).await;
    made(&world, "b", json!({"labels": {"app": "db"}})).await;
    let web = "/api/resources/contexts/watch?selector=app%3Dweb";
    let mut watch = Watch::open(&world, web, ADMIN, None).await;
    let (event, _, data) = told(&mut watch).await;
    assert_eq!((event.as_str(), &data["metadata"]["name"]), ("put", &json!("a")));
    let (event, version, data) = told(&mut watch).await;
    assert_eq!(
        (event.as_str(), &data["resourceVersion"]),
        ("snapshot", &json!(version.to_string()))
    );
    made(&world, "c", json!({"labels": {"app": "web"}})).await;
    let (event, after, data) = told(&mut watch).await;
    assert_eq!((event.as_str(), &data["metadata"]["name"]), ("put", &json!("c")));
    drop(watch);
    // While the client is away, one leaves the selection and one is deleted.
    put(&world, &document("a", json!({"labels": {"app": "db"}}))).await;
    delete(&world, "c", "").await.fine();
    let mut watch = Watch::open(&world, web, ADMIN, Some(after)).await;
    for name in ["a", "c"] {
        let (event, _, data) = told(&mut watch).await;
        assert_eq!((event.as_str(), &data["name"]), ("deleted", &json!(name)));
    }
    // A position that this store has not reached cannot be resumed.
    let ahead = "/api/resources/contexts/watch?resource_version=999999";
    let gone = world.get(ahead).await;
    assert!(gone.problem(410).contains("list again and watch from there"), "{}", gone.body);
}

/// The next message with content: its name, number (0: none) and text.
async fn told(watch: &mut Watch) -> (String, u64, Value) {
    loop {
        let message = watch.next().await.expect("the stream goes on");
        if let Some(event) = message.event {
            let number = message.id.map_or(0, |id| id.parse().unwrap());
            return (event, number, message.data);
        }
    }
}
