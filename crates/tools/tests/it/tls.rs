//! TLS: an untrusted certificate is refused, one that the settings trust is accepted.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use overmind_tools::Options;
use overmind_tools::egress::Egress;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;

use crate::site::{LOOPBACK, Names};
use crate::support::Bench;

/// Answers two connections at most; returns the port and the certificate.
fn site_with_tls() -> (u16, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["tls.test".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let connection = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut tls = rustls::StreamOwned::new(connection, stream.unwrap());
            let mut head = [0; 2048];
            if tls.read(&mut head).is_ok() {
                let _ = tls.write_all(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\nsafe",
                );
                let _ = tls.flush();
            }
        }
    });
    (port, certificate)
}

#[tokio::test]
async fn only_trusted_certificates_are_accepted() {
    let (port, certificate) = site_with_tls();
    let bench = |roots: Vec<CertificateDer<'static>>| {
        let rule = format!("private https://tls.test:{port}");
        let egress = Egress { extra_roots: roots, ..Egress::allowing(&[rule]).unwrap() };
        let resolver = Arc::new(Names::none().with("tls.test", &[LOOPBACK]));
        Bench::with(Options { egress, resolver, ..Options::default() }, Vec::new())
    };
    let args = json!({"url": format!("https://tls.test:{port}/")});
    let (code, message) = bench(Vec::new()).bad("http_request", args.clone()).await;
    assert_eq!(code, "network_error");
    assert!(message.to_lowercase().contains("certificate"), "{message}");
    let result = bench(vec![certificate]).good("http_request", args).await;
    assert_eq!(result["body"], "safe");
}
