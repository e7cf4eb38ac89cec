//! Replays across connections that break.

use overmind_client::{ClientError, ReplayItem, ReplayOptions};

use crate::peer::{Peer, Say};

const RUN: &str = "ses_00000000000000000000000000000007";

fn item(seq: u64) -> String {
    let hash = "0".repeat(64);
    format!(
        "id: {seq}.0\ndata: {{\"kind\":\"event\",\"ts\":\"1970-01-01T00:00:00.000000+00:00\",\
         \"data\":{{\"id\":\"{RUN}.{seq}\",\"run_id\":\"{RUN}\",\"type\":\"run.queued\",\
         \"payload_json\":{{}},\"ts\":\"1970-01-01T00:00:00.000000+00:00\",\"seq\":{seq},\
         \"global\":{seq},\"hash\":\"{hash}\"}}}}\n\n"
    )
}

fn done() -> String {
    format!("event: done\ndata: {{\"run_id\":\"{RUN}\",\"status\":\"succeeded\"}}\n\n")
}

async fn play(connections: Vec<Say>, options: ReplayOptions) -> (Vec<String>, Vec<String>) {
    let peer = Peer::new(connections.into_iter().map(|say| vec![say]).collect()).await;
    let mut replay = peer.client.run_replay(RUN, options).await.unwrap();
    let mut items = Vec::new();
    while let Some(next) = replay.next().await {
        items.push(match next {
            Ok(ReplayItem::Entry { id, .. }) => id,
            Ok(ReplayItem::Done(done)) => done.status.to_string(),
            Err(err) => format!("error: {err}"),
        });
    }
    (items, peer.so_far())
}

fn follow() -> ReplayOptions {
    ReplayOptions { follow: true, ..ReplayOptions::default() }
}

#[tokio::test]
async fn a_broken_stream_resumes_without_repeating_entries() {
    let (a, b, c) = (item(1), item(2), item(3));
    let half = &b[..b.len() / 2];
    let (items, requests) = play(
        vec![
            Say::stream(&[&a, half], false),
            Say::stream(&[&b, ": the server is shutting down; resume\n\n"], true),
            Say::stream(&[": keepalive\n\n", &c, &done()], true),
        ],
        follow(),
    )
    .await;
    assert_eq!(items, ["1.0", "2.0", "3.0", "succeeded"]);
    assert!(requests[0].contains("/replay?follow=1 HTTP/1.1"), "{}", requests[0]);
    assert!(!requests[0].contains("last-event-id"), "{}", requests[0]);
    assert!(requests[1].contains("last-event-id: 1.0\r\n"), "{}", requests[1]);
    assert!(requests[2].contains("last-event-id: 2.0\r\n"), "{}", requests[2]);
}

#[tokio::test]
async fn without_follow_a_complete_stream_ends_and_a_cut_stream_resumes() {
    let (items, requests) =
        play(vec![Say::stream(&[&item(1)], true)], ReplayOptions::default()).await;
    assert_eq!((items, requests.len()), (vec!["1.0".to_owned()], 1));

    let cut = [&item(1)[..], ": the server is shutting down; resume\n\n"];
    let connections = vec![Say::stream(&cut, true), Say::stream(&[&item(2)], true)];
    let (items, _) = play(connections, ReplayOptions::default()).await;
    assert_eq!(items, ["1.0", "2.0"]);
}

#[tokio::test]
async fn a_replay_can_begin_in_the_middle() {
    let options = ReplayOptions { after: Some("4.1".into()), ..follow() };
    let (items, requests) = play(vec![Say::stream(&[&item(5), &done()], true)], options).await;
    assert_eq!(items, ["5.0", "succeeded"]);
    assert!(requests[0].contains("last-event-id: 4.1\r\n"), "{}", requests[0]);
}

#[tokio::test]
async fn an_unknown_run_is_an_error_before_the_stream() {
    let problem = r#"{"type":"urn:overmind:problem:not_found","title":"t","status":404,
        "detail":"Run not found","ok":false,"error":"Run not found"}"#;
    let peer = Peer::new(vec![vec![Say::json(404, problem)]]).await;
    let err = peer.client.run_replay(RUN, follow()).await.unwrap_err();
    assert_eq!((err.status(), err.to_string().as_str()), (Some(404), "Run not found"));
}

#[tokio::test]
async fn a_failing_stream_ends_after_the_allowed_retries() {
    let options = ReplayOptions { max_resumes: 2, ..follow() };
    let broken = || Say::stream(&[], false);
    let (items, requests) = play(vec![broken(), broken(), broken()], options).await;
    assert_eq!(requests.len(), 3);
    assert_eq!(items.len(), 1);
    assert!(items[0].starts_with("error: the connection to"), "{items:?}");
}

#[tokio::test]
async fn an_unreadable_entry_ends_the_replay_with_the_reason() {
    let peer = Peer::new(vec![vec![Say::stream(&["id: 1.0\ndata: {\"kind\":7}\n\n"], true)]]).await;
    let mut replay = peer.client.run_replay(RUN, follow()).await.unwrap();
    let err = replay.next().await.unwrap().unwrap_err();
    assert!(matches!(err, ClientError::Unreadable { .. }), "{err}");
    assert!(replay.next().await.is_none());
}
