//! Stable names for what runs serve: `http://SERVICE.RUN.localhost:PORT/`.
//!
//! A connection belongs to the name that its first request asks for: the head is read to learn it,
//! and from then on bytes go to and fro as they are. So whatever HTTP/1.1 can do works, upgrades to
//! web sockets and endless answers included, and `Host` stays what the browser said. Browsers keep
//! a connection for each name.
//!
//! It listens on loopback alone and answers for names below `localhost` only: a page of another name
//! that resolves to this machine reaches nothing. Whoever can connect here can connect to the services
//! themselves, so it asks for no token.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::listen::ListenError;

/// The longest head of a request.
const HEAD: usize = 64 * 1024;
/// How long a client may take for it.
const HEAD_TIME: Duration = Duration::from_secs(10);
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Before the next attempt to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Concurrent connections; further ones must retry.
const CONNECTIONS: usize = 1024;
/// Names in a page of what there is.
const LISTED: usize = 50;

/// The addresses at which runs serve.
pub trait Backends: Send + Sync + fmt::Debug {
    /// Looks for a name. `run` and `service` are labels of a host's name, in lower case; see [`label`].
    fn find(&self, run: &str, service: Option<&str>) -> Found;
}

/// The target of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A port of this machine.
    Port(u16),
    /// There is no such run; these serve something.
    NoRun { there: Vec<String> },
    /// Several runs match: these, by their own names.
    SeveralRuns { there: Vec<String> },
    /// The run has no such service, or several and none was named; these.
    NoService { there: Vec<String> },
}

/// A name as a label of a host's name: lower case, and `-` for what may not stand there.
pub fn label(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(letter).collect()
}

/// A proxy that listens already.
#[derive(Debug)]
pub struct Proxy {
    listeners: Vec<TcpListener>,
    port: u16,
    backends: Arc<dyn Backends>,
}

impl Proxy {
    /// Listens at `address`, and at the other family's loopback where that can be had, for browsers
    /// differ in which they try. Port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// [`ListenError::Plain`] for an address beyond loopback, [`ListenError::Tcp`].
    pub async fn bind(
        address: SocketAddr,
        backends: Arc<dyn Backends>,
    ) -> Result<Self, ListenError> {
        if !address.ip().is_loopback() {
            return Err(ListenError::Plain { address });
        }
        let fail = |source| ListenError::Tcp { address, source };
        let first = TcpListener::bind(address).await.map_err(fail)?;
        let port = first.local_addr().map_err(fail)?.port();
        let other = match address.ip() {
            IpAddr::V4(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let mut listeners = vec![first];
        match TcpListener::bind(SocketAddr::new(other, port)).await {
            Ok(second) => listeners.push(second),
            // A machine without the family, or a port that is taken there.
            Err(err) => tracing::debug!(%other, port, %err, "names are served on one family"),
        }
        Ok(Self { listeners, port, backends })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Serves until `stop`; connections are cut then.
    pub async fn serve(self, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        for listener in self.listeners {
            let (stop, tasks_of, room) = (stop.clone(), tasks.clone(), Arc::clone(&room));
            let (backends, port) = (Arc::clone(&self.backends), self.port);
            tasks.spawn(async move {
                loop {
                    let accepted = tokio::select! {
                        () = stop.cancelled() => return,
                        accepted = listener.accept() => accepted,
                    };
                    let Ok((mut client, _)) = accepted else {
                        // Out of descriptors, most likely: others are about to end.
                        let _ = tokio::time::timeout(PAUSE, stop.cancelled()).await;
                        continue;
                    };
                    let place = Arc::clone(&room).try_acquire_owned();
                    let (stop, backends) = (stop.clone(), Arc::clone(&backends));
                    tasks_of.spawn(async move {
                        let through = async {
                            let done = match place {
                                Ok(_place) => pass(&mut client, &*backends, port).await,
                                Err(_) => {
                                    let text = "There are too many connections: try again.";
                                    refuse(&mut client, "503 Service Unavailable", text).await
                                }
                            };
                            if let Err(err) = done {
                                tracing::trace!(%err, "a connection through the proxy ended");
                            }
                        };
                        tokio::select! {
                            () = stop.cancelled() => {}
                            () = through => {}
                        }
                    });
                }
            });
        }
        tasks.close();
        tasks.wait().await;
    }
}

async fn pass(client: &mut TcpStream, backends: &dyn Backends, port: u16) -> io::Result<()> {
    let head = match tokio::time::timeout(HEAD_TIME, read_head(client)).await {
        Ok(Ok(Some(head))) => head,
        // It disconnected, or sent nothing: there is nobody to answer.
        Ok(Ok(None)) => return Ok(()),
        Ok(Err(err)) if err.kind() == io::ErrorKind::InvalidData => {
            let text = "The head of the request is too long.";
            return refuse(client, "431 Request Header Fields Too Large", text).await;
        }
        Ok(Err(err)) => return Err(err),
        Err(_) => return refuse(client, "408 Request Timeout", "The request took too long.").await,
    };
    let Some(host) = host_of(&head) else {
        let text = "The request names no host, or several.";
        return refuse(client, "400 Bad Request", text).await;
    };
    let Some((run, service)) = parts_of(&host) else {
        let text = format!(
            "{} is not a name of a run: http://RUN.localhost:{port}/ or \
             http://SERVICE.RUN.localhost:{port}/",
            escaped(&host)
        );
        return refuse(client, "404 Not Found", &text).await;
    };
    if is_foreign_socket(&head) {
        let text = "Pages of other sites may not open web sockets here.";
        return refuse(client, "403 Forbidden", text).await;
    }
    let at = match backends.find(&run, service.as_deref()) {
        Found::Port(at) => at,
        Found::NoRun { there } => {
            let text = format!("No run that is called {} serves anything.", escaped(&run));
            let names = there.iter().map(|run| format!("{run}.localhost:{port}"));
            return refuse(client, "404 Not Found", &listing(&text, names)).await;
        }
        Found::SeveralRuns { there } => {
            let named: Vec<_> = there.iter().map(|name| escaped(name)).collect();
            let text = format!(
                "Several runs are called {} here: {}. `overmind info RUN` shows the ports of each.",
                escaped(&run),
                named.join(", ")
            );
            return refuse(client, "409 Conflict", &text).await;
        }
        Found::NoService { there } => {
            let text = match &service {
                Some(service) => {
                    format!("{} has no service {}.", escaped(&run), escaped(service))
                }
                None => format!("{} has more than one service, or none.", escaped(&run)),
            };
            let names = there.iter().map(|service| format!("{service}.{run}.localhost:{port}"));
            return refuse(client, "404 Not Found", &listing(&text, names)).await;
        }
    };
    let mut upstream = match connect(at).await {
        Ok(upstream) => upstream,
        Err(err) => {
            let text = format!(
                "{} has port {at}, and nothing answers there: {}. `overmind logs` may say why.",
                escaped(&host),
                escaped(&err.to_string())
            );
            return refuse(client, "502 Bad Gateway", &text).await;
        }
    };
    upstream.write_all(&head).await?;
    tokio::io::copy_bidirectional(client, &mut upstream).await.map(drop)
}

/// Some development servers listen on one family only.
async fn connect(port: u16) -> io::Result<TcpStream> {
    let mut first = None;
    for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let trying = TcpStream::connect(SocketAddr::new(ip, port));
        match tokio::time::timeout(CONNECT_TIME, trying).await {
            Ok(Ok(stream)) => {
                // Forwarded responses were created by another server.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(err)) => drop(first.get_or_insert(err)),
            Err(_) => drop(first.get_or_insert(io::ErrorKind::TimedOut.into())),
        }
    }
    Err(first.unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into()))
}

/// Everything up to the end of the head, and what came with it. `None`: the client went away before.
async fn read_head(client: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::with_capacity(2048);
    loop {
        let seen = head.len().saturating_sub(3);
        if client.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
        if head[seen..].windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(Some(head));
        }
        if head.len() > HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// The values of a header, in their order; none of a head that is not UTF-8.
fn values<'a>(head: &'a [u8], wanted: &'a str) -> impl Iterator<Item = &'a str> {
    let end = head.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(0);
    let text = std::str::from_utf8(&head[..end]).unwrap_or_default();
    text.split("\r\n").skip(1).filter_map(move |line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}

/// Whether a page of another site opens a web socket: browsers let every page do that, with the
/// answers to read, and only say in `Origin` which page it is.
fn is_foreign_socket(head: &[u8]) -> bool {
    let upgrades = values(head, "upgrade").any(|value| {
        value.split(',').any(|protocol| protocol.trim().eq_ignore_ascii_case("websocket"))
    });
    upgrades && values(head, "origin").any(|origin| !is_local(origin))
}

/// Whether an origin is a page of this machine: of a name below `localhost`, or of a loopback address.
fn is_local(origin: &str) -> bool {
    let Some((_, host)) = origin.split_once("://") else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) | None => host,
    };
    let name = name.to_ascii_lowercase();
    let plain = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
    name == "localhost"
        || (name.ends_with(".localhost")
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)))
        || plain.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The one host that a head names.
fn host_of(head: &[u8]) -> Option<String> {
    let mut hosts = values(head, "host");
    let host = hosts.next().filter(|host| !host.is_empty() && host.len() <= 300)?;
    hosts.next().is_none().then(|| host.to_owned())
}

/// Run and service of `service.run.localhost:1234`.
fn parts_of(host: &str) -> Option<(String, Option<String>)> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) => return None,
        None => host,
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let name = name.strip_suffix(".localhost")?;
    let (service, run) = match name.split_once('.') {
        Some((service, run)) => (Some(service.to_owned()), run),
        None => (None, name),
    };
    let named = |part: &str| !part.is_empty() && !part.contains('.');
    (named(run) && service.as_deref().is_none_or(named)).then(|| (run.to_owned(), service))
}

fn listing(text: &str, names: impl Iterator<Item = String>) -> String {
    let mut page = format!("{text}<ul>");
    for name in names.take(LISTED) {
        let name = escaped(&name);
        page.push_str(&format!("<li><a href=\"http://{name}/\">{name}</a></li>"));
    }
    page.push_str("</ul>");
    page
}

fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
        out
    })
}

async fn refuse(client: &mut TcpStream, status: &str, text: &str) -> io::Result<()> {
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>{status}</title><h1>{status}</h1><p>{text}"
    );
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{page}",
        page.len()
    );
    client.write_all(answer.as_bytes()).await?;
    client.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_names_are_parsed_and_others_refused() {
        let two =
            |run: &str, service: Option<&str>| Some((run.to_owned(), service.map(str::to_owned)));
        for (host, wanted) in [
            ("shop.localhost:8421", two("shop", None)),
            ("Web.Shop.LOCALHOST", two("shop", Some("web"))),
            ("web.shop.localhost.:80", two("shop", Some("web"))),
            ("localhost:8421", None),
            ("a.web.shop.localhost", None),
            (".shop.localhost", None),
            ("shop.localhost.example.org", None),
            ("127.0.0.1:8421", None),
            ("[::1]:8421", None),
            ("shop.localhost:80a", None),
            ("web.shop.localhost@evil.example", None),
            ("shop.localhost:80:80", None),
            ("shop..localhost", None),
            ("shop.xn--localhost-x", None),
            ("shop.l\u{43e}calhost", None),
        ] {
            assert_eq!(parts_of(host), wanted, "{host}");
        }
        assert_eq!(label("Fix_login 7"), "fix-login-7");
    }

    #[test]
    fn a_head_names_one_host() {
        let host = |head: &str| host_of(head.as_bytes());
        assert_eq!(
            host("GET / HTTP/1.1\r\nhOST:  a.localhost\r\n\r\n"),
            Some("a.localhost".into())
        );
        assert_eq!(host("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), None);
        assert_eq!(host("GET / HTTP/1.1\r\nX: y\r\n\r\nHost: b\r\n\r\n"), None);
        // Spellings that another reader might take for the header, or for another host.
        for head in [
            "GET / HTTP/1.1\r\nHost : a.localhost\r\n\r\n",
            "GET / HTTP/1.1\r\nX: y\nHost: a.localhost\r\n\r\n",
            "GET http://b.localhost/ HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.localhost\r\nhost: a.localhost\r\n\r\n",
            "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        ] {
            assert_eq!(host(head), None, "{head}");
        }
    }

    #[test]
    fn origins_of_this_machine_are_told_from_others() {
        for origin in [
            "http://localhost:3000",
            "http://web.shop.localhost:8421",
            "https://Web.Shop.LOCALHOST",
            "http://127.0.0.1:5173",
            "http://[::1]:80",
        ] {
            assert!(is_local(origin), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://localhost.evil.example",
            "http://evillocalhost",
            "http://evil.example@x.localhost",
            "http://evil.example/.localhost",
            "http://127.0.0.1.evil.example",
            "http://10.0.0.1",
            "http://l\u{43e}calhost",
            "http://shop.l\u{43e}calhost",
        ] {
            assert!(!is_local(origin), "{origin}");
        }
    }
}
