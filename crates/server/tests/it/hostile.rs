//! Findings of ten thousand bad requests, one by one.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::world::{World, patiently};

#[tokio::test]
async fn a_foreign_host_is_refused_in_the_format_of_the_requested_api() {
    let world = World::new().await;
    let ask = async |path: &str, name: &str, value: &str| {
        let request = world.request("POST", path).header(name, value).json("{}");
        request.send().await
    };
    for (name, value, status) in
        [("Host", "evil.example", 400), ("Origin", "https://evil.example", 403)]
    {
        let openai = ask("/llm/openai/v1/chat/completions", name, value).await;
        assert_eq!(openai.status, status, "{}", openai.body);
        assert_eq!(openai.json()["error"]["type"], "invalid_request_error");
        let anthropic = ask("/llm/anthropic/v1/messages", name, value).await;
        assert_eq!((anthropic.status, &anthropic.json()["type"]), (status, &"error".into()));
        let text = anthropic.json()["error"]["message"].to_string();
        assert!(text.contains("evil.example"), "{text}");
    }
    ask("/mesh/message", "Host", "evil.example").await.problem(421);
}

#[tokio::test]
async fn a_body_announced_as_too_long_is_refused_at_once() {
    let world = World::new().await;
    let request = world.request("POST", "/api/services/openai/chat/completions");
    let answer = request.header("Content-Length", "99999999999").send().await;
    assert!(answer.problem(413).contains("is larger than"), "{}", answer.body);
    assert_eq!(answer.header("connection"), Some("close"));
}

#[tokio::test]
async fn callers_without_permission_learn_of_no_service_or_action() {
    let world = World::new().await;
    for service in ["openai", "hunter", "nowhere"] {
        let body = format!(r#"{{"service":"{service}","action":"nothing"}}"#);
        let answer = world.request("POST", "/mesh/api").token("ovs_x.1.y").json(&body).send().await;
        assert_eq!(answer.problem(401), "the token is not valid", "{service}");
        // Before its body is read: this one never arrives.
        for path in [format!("/api/services/{service}/x"), "/mesh/api".to_owned()] {
            let request = world.request("POST", &path).token("ovs_x.1.y");
            let answer = request.header("Content-Length", "1000").send().await;
            assert_eq!(answer.problem(401), "the token is not valid", "{path}");
        }
    }
    let body = r#"{"service":"hunter","action":"nothing"}"#;
    let answer = world.post("/mesh/api", body).await.fine();
    assert_eq!(answer["error"], "`hunter` has no action `nothing`");
    let wrong = world.post("/mesh/api?agent=x", body).await;
    assert_eq!(wrong.problem(422), "agent: is not a query parameter of this path");
    let other = world.post("/mesh/api?agent_id=nobody", body).await;
    assert!(other.problem(403).contains("only the token identifies the caller"), "{}", other.body);
}

#[tokio::test]
async fn invalid_http_is_counted() {
    let world = World::new().await;
    for bytes in ["\u{1}\u{2}\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "half of a"] {
        let mut stream = world.connect().await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        patiently("the end", stream.read_to_end(&mut answer)).await.unwrap();
    }
    let counted = async {
        loop {
            let text = world.get("/metrics").await.body;
            if text.contains("overmind_http_connections_broken_total 3") {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    patiently("three broken connections", counted).await;
}
