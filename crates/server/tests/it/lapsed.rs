//! Streams and their tokens: a stream without a valid token ends with an error.

use std::time::Duration;

use serde_json::json;

use crate::watch::{Message, Watch};
use crate::world::World;

/// The rest of a stream, which must end.
async fn rest(watch: &mut Watch) -> Vec<Message> {
    let mut all = Vec::new();
    while let Some(message) = watch.next().await {
        all.push(message);
    }
    all
}

/// Whether a stream ends as it does for an invalid token.
#[track_caller]
fn refused(path: &str, last: Option<&Message>) {
    let last = last.unwrap_or_else(|| panic!("{path} ended without a word"));
    let said = (last.event.as_deref(), &last.data["status"]);
    assert_eq!(said, (Some("error"), &json!(401)), "{path}: {last:?}");
    let error = last.data["error"].as_str().unwrap();
    assert!(error.contains("no longer valid"), "{path}: {error}");
    assert_eq!(last.data["type"], "urn:overmind:problem:unauthenticated", "{path}");
}

async fn world() -> World {
    World::with(|config| config.keepalive = Duration::from_millis(100)).await
}

#[tokio::test]
async fn every_stream_of_a_revoked_key_ends() {
    let world = world().await;
    let run = world.hanging_run().await;
    let paths = [
        "/api/events/stream".to_owned(),
        "/api/inbox/events".to_owned(),
        format!("/api/runs/{run}/replay?follow=1"),
        "/mesh/watch".to_owned(),
    ];
    for (n, path) in paths.iter().enumerate() {
        let body = json!({"name": format!("looks {n}"), "role": "viewer"}).to_string();
        let made = world.post("/api/keys", &body).await.fine();
        let key = made["secret"].as_str().unwrap().to_owned();
        let mut watch = Watch::open(&world, path, &key, None).await;
        // Another stream that continues: the key ends the first one.
        let mut other = Watch::open(&world, path, crate::world::ADMIN, None).await;
        let key = format!("/api/keys/{}", made["key"]["id"].as_str().unwrap());
        assert_eq!(world.request("DELETE", &key).send().await.status, 200);
        // From here on, it may receive nothing.
        let after = format!("/mesh/blackboard/after/{n}");
        let put = world.request("PUT", &after).json("\"nobody is told\"").send().await;
        assert_eq!(put.status, 200, "{}", put.body);
        let all = rest(&mut watch).await;
        refused(path, all.last());
        let told = format!("{all:?}");
        for later in ["key.revoked", &format!("after/{n}"), "nobody is told"] {
            assert!(!told.contains(later), "{path}: {later} in {told}");
        }
        if path.starts_with("/mesh") {
            assert_eq!(other.next().await.unwrap().data["key"], format!("after/{n}"));
        }
    }
}

#[tokio::test]
async fn every_stream_of_an_ended_runs_token_ends() {
    let world = world().await;
    let run = world.hanging_run().await;
    let token = world.engine.session_token(run.parse().unwrap(), 1);
    let path = format!("/api/runs/{run}/replay?follow=1");
    let mut own = Watch::open(&world, &path, &token, None).await;
    assert_eq!(own.next().await.unwrap().event, None, "its own timeline is for it");
    let mut admins = Watch::open(&world, &path, crate::world::ADMIN, None).await;
    let canceled = world.post(&format!("/api/runs/{run}/cancel"), "{}").await;
    assert_eq!(canceled.status, 200, "{}", canceled.body);
    world.until(&run, "canceled").await;
    let all = rest(&mut own).await;
    refused(&path, all.last());
    assert!(!format!("{all:?}").contains("run.canceled"), "{all:?}");
    let all = rest(&mut admins).await;
    assert_eq!(all.last().unwrap().event.as_deref(), Some("done"));
}

#[tokio::test]
async fn an_idle_stream_of_a_revoked_key_ends_with_the_next_ping() {
    let world = world().await;
    let made = world.post("/api/keys", r#"{"name":"looks","role":"viewer"}"#).await.fine();
    let mut watch =
        Watch::open(&world, "/api/inbox/events", made["secret"].as_str().unwrap(), None).await;
    let snapshot = watch.next().await.unwrap();
    assert_eq!(snapshot.event.as_deref(), Some("snapshot"));
    let key = format!("/api/keys/{}", made["key"]["id"].as_str().unwrap());
    assert_eq!(world.request("DELETE", &key).send().await.status, 200);
    let all = rest(&mut watch).await;
    assert_eq!(all.len(), 1, "{all:?}");
    refused("/api/inbox/events", all.last());
}
