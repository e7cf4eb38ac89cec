//! The socket to which the relays of sandboxes lead.

use std::path::Path;

use overmind_core::enclosure::whose_door;
use overmind_core::ids::SessionId;
use overmind_server::Listener;
use overmind_testkit::ports::{FakeModels, FakeTools};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::world::{Response, World, exchange};

async fn at_the_door(path: &Path, whose: &str, target: &str, token: &str) -> Response {
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream.write_all(whose.as_bytes()).await.unwrap();
    let text =
        format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{token}\r\n");
    exchange(stream, &text).await
}

#[tokio::test]
async fn keys_do_not_work_at_endpoints_and_a_connection_names_its_owner_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agents.sock");
    let listener = Listener::agents(&path, None).await.unwrap();
    let world =
        World::whole(|_| (), FakeTools::ok(), FakeModels::new([]), |_| vec![listener]).await;
    let whose = whose_door(SessionId::from_u128(7));
    let admin = "Authorization: Bearer ova_test\r\n";
    at_the_door(&path, &whose, "/api/runs", "").await.problem(401);
    at_the_door(&path, &whose, "/api/runs", admin).await.problem(403);
    at_the_door(&path, &whose, "/api/keys", admin).await.problem(403);
    at_the_door(&path, &whose, "/metrics", "").await.problem(403);
    at_the_door(&path, &whose, "/api/services/any/v1", admin).await.problem(403);
    let models = at_the_door(&path, &whose, "/llm/openai/v1/models", admin).await;
    assert_eq!(models.status, 403);
    let models = at_the_door(&path, &whose, "/llm/openai/v1/models", "").await;
    assert_eq!(models.status, 401);
    assert_eq!(at_the_door(&path, &whose, "/health", "").await.status, 200);

    // Otherwise it is ignored.
    for odd in ["", "overmind door of nobody\n", &"x".repeat(500)] {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let text = format!("{odd}GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        // Unread data causes a broken connection.
        let _ = stream.read_to_end(&mut heard).await;
        assert_eq!(heard, b"", "{odd}");
    }
    let _ = world.stopped().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn requests_at_endpoints_count_only_against_their_own_limits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agents.sock");
    let listener = Listener::agents(&path, None).await.unwrap();
    let few = overmind_server::RateLimit { per_second: 1, burst: 3 };
    let world = World::whole(
        |config| config.address_rate = Some(few),
        FakeTools::ok(),
        FakeModels::new([]),
        |_| vec![listener],
    )
    .await;
    let whose = whose_door(SessionId::from_u128(7));
    let mut refused = 0;
    for _ in 0..12 {
        let answer = at_the_door(&path, &whose, "/api/runs", "").await;
        refused += usize::from(answer.status == 429);
    }
    assert!(refused > 0, "what comes by doors is counted");
    // Separately for each relay, at both kinds of path: wrong tokens of one slow no other.
    for n in 8..11 {
        let other = whose_door(SessionId::from_u128(n));
        at_the_door(&path, &other, "/api/runs", "").await.problem(401);
        assert_eq!(at_the_door(&path, &other, "/llm/openai/v1/models", "").await.status, 401);
    }
    let mut refused = 0;
    for _ in 0..12 {
        let answer = at_the_door(&path, &whose, "/llm/openai/v1/models", "").await;
        refused += usize::from(answer.status == 429);
    }
    assert!(refused > 0, "models are asked for by the same door");
    assert_eq!(world.get("/api/version").await.status, 200);
}
