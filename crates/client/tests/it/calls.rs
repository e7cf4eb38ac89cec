//! Plain calls: requests, retries, and failures.

use std::time::Duration;

use overmind_api::{AgentPatch, ListQuery, RunCreate};
use overmind_client::{Client, ClientError, Options, Target};

use crate::peer::{Peer, Say};

fn okay() -> Say {
    Say::json(200, "{\"ok\":true}")
}

#[tokio::test]
async fn requests_carry_the_token_and_share_one_connection() {
    let peer = Peer::new(vec![vec![okay(), okay()]]).await;
    peer.client.health().await.unwrap();
    peer.client.health().await.unwrap();
    let requests = peer.requests().await;
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert!(request.starts_with("GET /health HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("authorization: Bearer ovk_test\r\n"), "{request}");
    }
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_replaced() {
    let peer = Peer::new(vec![vec![okay().then_close()], vec![okay()]]).await;
    peer.client.health().await.unwrap();
    peer.client.health().await.unwrap();
    assert_eq!(peer.requests().await.len(), 2);
}

#[tokio::test]
async fn a_change_that_may_have_been_made_is_not_sent_twice() {
    // The second request is received on the kept connection and never answered.
    let silent = Say { bytes: String::new(), close: true };
    let peer = Peer::new(vec![vec![okay(), silent]]).await;
    peer.client.health().await.unwrap();
    let run = RunCreate { agent_id: "a".into(), task: "t".into(), ..RunCreate::default() };
    let err = peer.client.run_create(&run, None).await.unwrap_err();
    assert!(matches!(&err, ClientError::Broken { attempt, .. } if attempt == "POST /api/runs"));
    let requests = peer.requests().await;
    let posts = requests.iter().filter(|request| request.starts_with("POST")).count();
    assert_eq!(posts, 1);
}

#[tokio::test]
async fn bodies_and_preconditions_are_sent_as_the_api_expects() {
    let problem = r#"{"type":"urn:overmind:problem:stale","title":"t","status":412,"detail":"d",
        "ok":false,"error":"agent is at version 4"}"#;
    let peer = Peer::new(vec![vec![Say::json(412, problem)]]).await;
    let patch = AgentPatch { model: Some("m".into()), ..AgentPatch::default() };
    let err = peer.client.agent_patch("a b/c", &patch, Some(3)).await.unwrap_err();
    assert_eq!((err.status(), err.to_string().as_str()), (Some(412), "agent is at version 4"));
    let request = peer.requests().await.remove(0);
    assert!(request.starts_with("PATCH /api/agents/a%20b%2Fc HTTP/1.1"), "{request}");
    assert!(request.contains("if-match: \"3\"\r\n"), "{request}");
    assert!(request.contains("content-type: application/json\r\n"), "{request}");
    assert!(request.ends_with("{\"model\":\"m\"}"), "{request}");
}

#[tokio::test]
async fn foreign_servers_and_redirects_are_reported_without_a_second_request() {
    let moved = Say::with(302, "location: http://127.0.0.1:1/steal\r\n", "go away");
    let peer = Peer::new(vec![vec![moved]]).await;
    let err = peer.client.status().await.unwrap_err();
    match err {
        ClientError::Foreign { status, body, .. } => {
            assert_eq!((status, body.as_str()), (302, "go away"));
        }
        other => panic!("{other}"),
    }
    assert_eq!(peer.requests().await.len(), 1);
}

#[tokio::test]
async fn a_response_of_another_shape_is_an_error_that_names_the_request() {
    let peer = Peer::new(vec![vec![Say::json(200, "[1,2")]]).await;
    let err = peer.client.status().await.unwrap_err();
    assert!(err.to_string().contains("GET /api/status"), "{err}");
    assert!(matches!(err, ClientError::Unreadable { .. }));
}

#[tokio::test]
async fn a_server_that_is_not_ready_is_reported_as_such() {
    let body = format!(
        r#"{{"ok":false,"state":"degraded","reason":"{}"}}"#,
        "the disk is full; ".repeat(30)
    );
    let peer = Peer::new(vec![vec![Say::json(503, &body)]]).await;
    let ready = peer.client.ready().await.unwrap();
    assert_eq!((ready.ok, ready.state.as_str()), (false, "degraded"));
}

#[tokio::test]
async fn pages_lead_to_the_next_one() {
    let link = "link: </api/tools?cursor=9>; rel=\"next\"\r\n";
    let peer = Peer::new(vec![vec![Say::with(200, link, "[]"), Say::json(200, "[]")]]).await;
    let query = ListQuery { limit: Some(2), cursor: Some("x".into()) };
    let first = peer.client.key_list(&query).await.unwrap();
    let second = peer.client.page_next(&first).await.unwrap().unwrap();
    assert_eq!(peer.client.page_next(&second).await.unwrap(), None);
    let requests = peer.requests().await;
    assert!(requests[0].starts_with("GET /api/keys?limit=2&cursor=x HTTP/1.1"), "{}", requests[0]);
    assert!(requests[1].starts_with("GET /api/tools?cursor=9 HTTP/1.1"), "{}", requests[1]);
}

#[tokio::test]
async fn requests_to_silent_or_missing_servers_time_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let target: Target = format!("http://{address}").parse().unwrap();
    let options = Options { request_timeout: Duration::from_millis(50), ..Options::default() };
    let client = Client::with_options(target.clone(), None, options).unwrap();
    let err = client.health().await.unwrap_err();
    assert!(matches!(err, ClientError::Timeout { .. }), "{err}");
    drop(listener);
    let err = Client::connect(target, None).unwrap().health().await.unwrap_err();
    assert!(matches!(err, ClientError::Connect { .. }), "{err}");
    assert!(err.hint().unwrap().contains("overmind up"));
}

#[tokio::test]
async fn invalid_arguments_are_refused_before_a_request() {
    let target: Target = "unix:/nonexistent.sock".parse().unwrap();
    let client = Client::connect(target.clone(), Some(" ovk_x\n")).unwrap();
    let err = client.run_fetch("").await.unwrap_err();
    assert_eq!(err.to_string(), "the run: it is empty");
    assert!(Client::connect(target, Some("a\nb")).is_err());
    assert!(!format!("{client:?}").contains("ovk_x"));
}
