//! Listeners, TLS, the Unix socket, and the end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use overmind_server::{Drained, Listener, Server, ServerConfig, Tls};
use overmind_testkit::ports::{FakeModels, FakeTools};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::world::{World, exchange, patiently};

/// A certificate for `localhost` and its key, created for this test.
fn certificate(dir: &Path) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (chain, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (chain, key)
}

#[tokio::test]
async fn the_unix_socket_requires_the_token_and_is_removed_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let listener = Listener::unix(&path).await.unwrap();
    let world =
        World::whole(|_| (), FakeTools::ok(), FakeModels::new([]), |_| vec![listener]).await;
    let ask = async |token: &str| {
        let stream = UnixStream::connect(&path).await.unwrap();
        let text = format!(
            "GET /api/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{token}\r\n"
        );
        exchange(stream, &text).await
    };
    ask("").await.problem(401);
    assert_eq!(ask("Authorization: Bearer ova_test\r\n").await.status, 200);
    assert_eq!(world.stopped().await, Drained::All);
    assert!(!path.exists());
}

#[tokio::test]
async fn tls_serves_the_same_api_and_refuses_plain_text() {
    let dir = tempfile::tempdir().unwrap();
    let (chain, key) = certificate(dir.path());
    let tls = Tls::from_pem_files(&chain, &key).unwrap();
    // Beyond loopback is fine with TLS; the test still only speaks to loopback.
    let listener = Listener::tcp("0.0.0.0:0".parse().unwrap(), Some(tls)).unwrap();
    assert!(listener.at().starts_with("https://"));
    let port = listener.address().unwrap().port();
    let world =
        World::whole(|_| (), FakeTools::ok(), FakeModels::new([]), |_| vec![listener]).await;

    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&chain).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let text = format!(
        "GET /api/version HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: Bearer ova_test\r\n\
         Connection: close\r\n\r\n"
    );
    assert_eq!(exchange(stream, &text).await.status, 200);

    let mut plain = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    plain.write_all(text.as_bytes()).await.unwrap();
    let mut rest = Vec::new();
    let _ = patiently("the end", plain.read_to_end(&mut rest)).await;
    assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
    assert_eq!(world.stopped().await, Drained::All);
}

#[tokio::test]
async fn a_stop_waits_for_current_requests_and_refuses_new_ones() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}/tools/call");
    let ask = world.request("POST", &path).json(r#"{"tool_name":"hang"}"#).text();
    let mut under_way = world.connect().await;
    under_way.write_all(ask.as_bytes()).await.unwrap();
    let tools = Arc::clone(&world.tools);
    let begun = async {
        while tools.called("hang") == 0 {
            tokio::task::yield_now().await;
        }
    };
    patiently("the tool to begin", begun).await;
    // An idle kept connection does not delay the stop.
    let mut idle = world.connect().await;
    let hello = format!("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", world.address);
    idle.write_all(hello.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    patiently("an answer", idle.read_exact(&mut first)).await.unwrap();

    world.stop.cancel();
    let mut rest = Vec::new();
    patiently("the idle connection to end", idle.read_to_end(&mut rest)).await.unwrap();
    let refused = async {
        while TcpStream::connect(world.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    patiently("the listener to close", refused).await;
    assert!(!world.serving.is_finished(), "it waits for the tool");
    tools.let_go(1);
    let mut text = Vec::new();
    patiently("the answer", under_way.read_to_end(&mut text)).await.unwrap();
    assert!(text.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&text));
    assert_eq!(world.stopped().await, Drained::All);
}

#[tokio::test]
async fn a_stop_that_times_out_reports_the_rest() {
    let world = World::with(|config| config.drain_grace = Duration::from_millis(50)).await;
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}/tools/call");
    let ask = world.request("POST", &path).json(r#"{"tool_name":"hang"}"#).text();
    let mut under_way = world.connect().await;
    under_way.write_all(ask.as_bytes()).await.unwrap();
    let tools = Arc::clone(&world.tools);
    let begun = async {
        while tools.called("hang") == 0 {
            tokio::task::yield_now().await;
        }
    };
    patiently("the tool to begin", begun).await;
    // The connection and the work that outlives it.
    assert_eq!(world.stopped().await, Drained::TimedOut { left: 2 });
}

#[tokio::test]
async fn a_change_is_completed_after_its_client_disconnected() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}/tools/call");
    let ask = world.request("POST", &path).json(r#"{"tool_name":"hang"}"#).text();
    let mut stream = world.connect().await;
    stream.write_all(ask.as_bytes()).await.unwrap();
    let wait = async {
        while world.tools.called("hang") == 0 {
            tokio::task::yield_now().await;
        }
    };
    patiently("the tool to begin", wait).await;
    drop(stream);
    // The server notices the disconnect, and lets the tool continue nevertheless.
    let gone = async {
        loop {
            let figures = world.get("/metrics").await.body;
            if figures.contains("overmind_http_connections 1\n") {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    patiently("the connection to be gone", gone).await;
    assert_eq!(world.tools.dropped.load(Ordering::SeqCst), 0);
    world.tools.let_go(1);
    let recorded = async {
        loop {
            let calls = world.get(&format!("/api/runs/{run}/tool-calls")).await.fine();
            if calls.as_array().unwrap().iter().any(|call| call["tool_name"] == "hang") {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    patiently("the call to be recorded", recorded).await;
}

#[tokio::test]
async fn a_draining_server_reports_it_on_readyz() {
    let world = World::new().await;
    assert_eq!(world.get("/readyz").await.status, 200);
    // A kept connection can still send requests while another request delays the stop.
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}/tools/call");
    let ask = world.request("POST", &path).json(r#"{"tool_name":"hang"}"#).text();
    let mut under_way = world.connect().await;
    under_way.write_all(ask.as_bytes()).await.unwrap();
    let tools = Arc::clone(&world.tools);
    let begun = async {
        while tools.called("hang") == 0 {
            tokio::task::yield_now().await;
        }
    };
    patiently("the tool to begin", begun).await;
    let mut half = world.connect().await;
    half.write_all(b"GET /readyz HTTP/1.1\r\nHost: local").await.unwrap();
    // Once a later connection was answered, this one has been accepted too.
    assert_eq!(world.get("/health").await.status, 200);
    world.stop.cancel();
    half.write_all(b"host\r\n\r\n").await.unwrap();
    let mut text = Vec::new();
    patiently("the answer", half.read_to_end(&mut text)).await.unwrap();
    if !text.is_empty() {
        let answer = crate::world::Response::parse(&text);
        assert_eq!((answer.status, &answer.json()["state"]), (503, &"draining".into()));
    }
    tools.let_go(1);
    assert_eq!(world.stopped().await, Drained::All);
}

#[test]
fn a_server_can_be_made_and_sent_to_another_thread() {
    fn send<T: Send + 'static>() {}
    send::<Server>();
    send::<ServerConfig>();
    send::<Listener>();
}
