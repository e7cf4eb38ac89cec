//! Providers that are called over TLS: only those whose certificate the machine trusts.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use reqwest::Client;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::home::Home;

const SAID: &str = r#"{"id":"c-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"safe"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;

/// The TLS configuration of a server of `localhost` with this protocol, and its certificate as PEM.
pub(crate) fn of_localhost(protocol: &[u8]) -> (Arc<rustls::ServerConfig>, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![protocol.to_vec()];
    (Arc::new(config), made.cert.pem())
}

/// A provider of `localhost` that answers one request of each connection; its port, and its
/// certificate as PEM.
fn provider() -> (u16, String) {
    let (config, certificate) = of_localhost(b"http/1.1");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut tls = rustls::StreamOwned::new(connection, stream.unwrap());
            let mut head = [0; 4096];
            if tls.read(&mut head).is_ok() {
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    SAID.len()
                );
                let _ = tls.write_all(head.as_bytes());
                let _ = tls.write_all(SAID.as_bytes());
                let _ = tls.flush();
            }
        }
    });
    (port, certificate)
}

/// The answer of a server to a client that trusts `roots`: status and body.
fn asked(port: u16, roots: &str) -> (u16, Value) {
    let mut home = Home::new();
    let file = home.path().join("roots.pem");
    std::fs::write(&file, roots).unwrap();
    let base = format!("https://localhost:{port}/v1");
    let vars =
        [("OVERMIND_MODEL_BASE_URL", base.as_str()), ("SSL_CERT_FILE", file.to_str().unwrap())];
    let said = home.start(&["--listen", "127.0.0.1:0"], &vars);
    let url = format!("{}/llm/openai/v1/chat/completions", said["url"].as_str().unwrap());
    let admin = std::fs::read_to_string(home.data().join("admin.token")).unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    Runtime::new().unwrap().block_on(async {
        let client = Client::builder().no_proxy().build().unwrap();
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        let got = client.post(url).bearer_auth(admin.trim()).json(&body).send().await.unwrap();
        (got.status().as_u16(), got.json().await.unwrap())
    })
}

#[test]
fn a_provider_is_called_over_tls_if_its_certificate_is_trusted() {
    let (port, certificate) = provider();
    let (status, said) = asked(port, &certificate);
    assert_eq!(
        (status, &said["choices"][0]["message"]["content"]),
        (200, &json!("safe")),
        "{said}"
    );
    // Another of the same name.
    let (_, stranger) = provider();
    let (status, said) = asked(port, &stranger);
    let why = said["error"]["message"].as_str().unwrap().to_lowercase();
    assert_eq!(status, 502, "{said}");
    assert!(why.contains("could not be asked") && why.contains("certificate"), "{why}");
}
