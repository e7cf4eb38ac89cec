//! The root certificates that TLS connections trust.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Files in which Linux distributions and BSDs keep the machine's root certificates.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Performs the handshake. `ca_file` replaces the machine's root certificates.
pub(crate) async fn handshake(
    stream: TcpStream,
    host: &str,
    ca_file: Option<&Path>,
) -> Result<TlsStream<TcpStream>, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|err| err.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|err| err.to_string())?
        .with_root_certificates(roots(ca_file)?)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.map_err(|err| err.to_string())
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let file = match ca_file {
        Some(file) => file.to_owned(),
        None => SYSTEM_ROOTS
            .iter()
            .map(PathBuf::from)
            .find(|path| path.exists())
            .ok_or("this machine has no list of trusted roots; name a CA file")?,
    };
    let fail =
        |why: &dyn std::fmt::Display| format!("reading roots from {}: {why}", file.display());
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_file_iter(&file).map_err(|err| fail(&err))? {
        // Single roots that rustls does not take (odd encodings) must not hide the rest.
        let _ = roots.add(cert.map_err(|err| fail(&err))?);
    }
    if roots.is_empty() { Err(fail(&"it holds no certificate")) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_file_that_cannot_be_used_is_named() {
        let err = roots(Some(Path::new("/nonexistent/ca.pem"))).unwrap_err();
        assert!(err.contains("/nonexistent/ca.pem"), "{err}");
    }
}
