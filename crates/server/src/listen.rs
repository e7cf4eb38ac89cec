//! The addresses on which the server listens, and those that it refuses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overmind_core::failpoint;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

/// Connections that the kernel holds until we accept them.
const BACKLOG: u32 = 1024;

/// Why a listener did not come to be.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "listening on {address} is refused without TLS: it can be reached from other machines, \
         and tokens would cross the network in clear; give a certificate and a key, or listen on \
         127.0.0.1"
    )]
    Plain { address: SocketAddr },
    #[error("listening on {address}")]
    Tcp {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("listening on the socket {}", path.display())]
    Unix {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another server answers on {}; `overmind down` stops it", path.display())]
    InUse { path: PathBuf },
    #[error("{} is not a socket and is not replaced: give another path", path.display())]
    NotASocket { path: PathBuf },
    #[error("reading {what} from {}: {why}", path.display())]
    Tls { what: &'static str, path: PathBuf, why: String },
}

/// A certificate with its key, ready to serve.
#[derive(Clone)]
pub struct Tls(Arc<rustls::ServerConfig>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(…)")
    }
}

impl Tls {
    /// Reads a PEM chain (leaf first) and a PEM key, and checks that they belong together.
    ///
    /// # Errors
    ///
    /// [`ListenError::Tls`], which names the file.
    pub fn from_pem_files(chain: &Path, key: &Path) -> Result<Self, ListenError> {
        let fail =
            |what, path: &Path, why: String| ListenError::Tls { what, path: path.into(), why };
        let certs = CertificateDer::pem_file_iter(chain)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|err| fail("the certificate chain", chain, err.to_string()))?;
        if certs.is_empty() {
            return Err(fail("the certificate chain", chain, "it holds no certificate".into()));
        }
        let secret = PrivateKeyDer::from_pem_file(key)
            .map_err(|err| fail("the private key", key, err.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|err| fail("the certificate chain", chain, err.to_string()))?
            .with_no_client_auth()
            .with_single_cert(certs, secret)
            .map_err(|err| fail("the private key", key, err.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0))
    }
}

/// A bound listener. Connections wait in the kernel until [`crate::Server::serve`] takes it.
#[derive(Debug)]
pub struct Listener {
    pub(crate) kind: Kind,
    at: String,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Tcp {
        listener: TcpListener,
        tls: Option<Tls>,
    },
    /// `agents`: connections come from inside a sandbox; see [`crate::agents`].
    Unix {
        listener: UnixListener,
        file: SocketFile,
        agents: bool,
    },
}

impl Listener {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// [`ListenError::Plain`] when `address` can be reached from other machines and `tls` is
    /// `None`; [`ListenError::Tcp`] when the address is taken or not ours.
    pub fn tcp(address: SocketAddr, tls: Option<Tls>) -> Result<Self, ListenError> {
        if !is_loopback(address.ip()) && tls.is_none() {
            return Err(ListenError::Plain { address });
        }
        let bind = || {
            let socket =
                if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Otherwise a restart within a minute finds its own old connections in the way.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        };
        let listener = bind().map_err(|source| ListenError::Tcp { address, source })?;
        let local = listener.local_addr().map_err(|source| ListenError::Tcp { address, source })?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        Ok(Self { at: format!("{scheme}://{local}"), kind: Kind::Tcp { listener, tls } })
    }

    /// Listens on a Unix socket that only this user may open (mode 0600). A socket that a dead
    /// server left is replaced; the file is removed when the listener is dropped.
    ///
    /// # Errors
    ///
    /// [`ListenError::InUse`] when another server answers there, [`ListenError::NotASocket`],
    /// and [`ListenError::Unix`] (for example a path of more than about 100 bytes).
    pub async fn unix(path: &Path) -> Result<Self, ListenError> {
        Self::socket(path, None, false).await
    }

    /// Listens on the socket that the doors of sandboxes lead to. What comes by it is trusted no
    /// more than a client over TCP: it needs the token of a run, reaches what runs may use, and
    /// counts against the limits. `owner` is the user that sandboxed commands run as, if they run
    /// as another one; then this process must be root.
    ///
    /// # Errors
    ///
    /// See [`Listener::unix`].
    pub async fn agents(path: &Path, owner: Option<u32>) -> Result<Self, ListenError> {
        Self::socket(path, owner, true).await
    }

    async fn socket(path: &Path, owner: Option<u32>, agents: bool) -> Result<Self, ListenError> {
        let fail = |source| ListenError::Unix { path: path.into(), source };
        match std::fs::symlink_metadata(path) {
            Ok(found) if !FileTypeExt::is_socket(&found.file_type()) => {
                return Err(ListenError::NotASocket { path: path.into() });
            }
            Ok(_) if UnixStream::connect(path).await.is_ok() => {
                return Err(ListenError::InUse { path: path.into() });
            }
            Ok(_) => {}
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(fail(err)),
        }
        // Bound under another name, closed to others, and only then moved to its place: nobody
        // can open it in between, and an old socket is replaced in one step.
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(new);
        let _ = std::fs::remove_file(&new);
        remove_drafts(path).await;
        let listener = UnixListener::bind(&new).map_err(fail)?;
        let place = || {
            std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
            if owner.is_some() {
                std::os::unix::fs::chown(&new, owner, None)?;
            }
            let found = std::fs::symlink_metadata(&new)?;
            failpoint::point("start.before_socket");
            std::fs::rename(&new, path)?;
            Ok((found.ino(), found.dev(), found.uid()))
        };
        let (ino, dev, uid) = place().map_err(|err| {
            let _ = std::fs::remove_file(&new);
            fail(err)
        })?;
        let file = SocketFile { path: path.into(), ino, dev, uid };
        let at = format!("unix:{}", path.display());
        Ok(Self { kind: Kind::Unix { listener, file, agents }, at })
    }

    /// The address for clients: `http://127.0.0.1:8420`, `unix:/path`.
    pub fn at(&self) -> &str {
        &self.at
    }

    /// The bound address, on TCP.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Tcp { listener, .. } => listener.local_addr().ok(),
            Kind::Unix { .. } => None,
        }
    }
}

/// Removes sockets that servers left which were killed before theirs was in its place: those
/// named `<path>.<number>` where nobody answers.
async fn remove_drafts(path: &Path) {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    for draft in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let number = draft
            .file_name()
            .and_then(|draft| draft.as_encoded_bytes().strip_prefix(name.as_encoded_bytes()))
            .and_then(|rest| rest.strip_prefix(b"."));
        let ours = number.is_some_and(|n| !n.is_empty() && n.iter().all(u8::is_ascii_digit));
        let socket = ours
            && std::fs::symlink_metadata(&draft)
                .is_ok_and(|found| FileTypeExt::is_socket(&found.file_type()));
        // One that answers belongs to a server that starts at this very moment.
        if socket && UnixStream::connect(&draft).await.is_err() {
            let _ = std::fs::remove_file(&draft);
        }
    }
}

/// Loopback, also when written as an IPv4 address in IPv6.
fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// The file of a Unix socket; removed on drop if it is still ours.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    ino: u64,
    dev: u64,
    /// The owner: the user of this process, or of sandboxed commands.
    pub(crate) uid: u32,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A server that started since then may have put its own socket there.
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| found.ino() == self.ino && found.dev() == self.dev);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_beyond_loopback_is_refused_without_tls() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
            let err = Listener::tcp(address.parse().unwrap(), None).unwrap_err();
            assert!(matches!(err, ListenError::Plain { .. }), "{address}: {err}");
            assert!(err.to_string().contains("refused without TLS"), "{err}");
        }
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let port = listener.address().unwrap().port();
        assert_eq!(listener.at(), format!("http://127.0.0.1:{port}"));
    }

    #[tokio::test]
    async fn an_address_in_use_is_named_separately_from_the_cause() {
        let first = Listener::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let address = first.address().unwrap();
        let err = Listener::tcp(address, None).unwrap_err();
        assert_eq!(err.to_string(), format!("listening on {address}"));
        assert!(std::error::Error::source(&err).is_some());
    }

    #[tokio::test]
    async fn a_socket_is_private_replaces_a_dead_one_and_is_removed_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        // A dead server's, and that of one that died a moment before it had its place.
        for dead in [path.clone(), dir.path().join("api.sock.4242")] {
            drop(std::os::unix::net::UnixListener::bind(dead).unwrap());
        }
        let listener = Listener::unix(&path).await.unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let err = Listener::unix(&path).await.unwrap_err();
        assert!(matches!(err, ListenError::InUse { .. }), "{err}");
        drop(listener);
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        std::fs::write(&path, "dear diary").unwrap();
        let err = Listener::unix(&path).await.unwrap_err();
        assert!(matches!(err, ListenError::NotASocket { .. }), "{err}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear diary");
    }

    #[test]
    fn tls_errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (chain, key) = (dir.path().join("chain.pem"), dir.path().join("key.pem"));
        let err = Tls::from_pem_files(&chain, &key).unwrap_err().to_string();
        assert!(err.contains("chain.pem"), "{err}");
        std::fs::write(&chain, "not a certificate").unwrap();
        let err = Tls::from_pem_files(&chain, &key).unwrap_err().to_string();
        assert!(err.contains("chain.pem"), "{err}");
    }
}
