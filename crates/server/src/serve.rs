//! Accepting connections, and letting them go.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use overmind_engine::Engine;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::agents;
use crate::config::ServerConfig;
use crate::cx::Cx;
use crate::front::{Front, Peer, Source};
use crate::listen::{Kind, Listener, SocketFile, Tls};
use crate::places::{Full, Place, Places};
use crate::socket::Stalling;

/// Longest request line and headers together. No more is read at once.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// The pause after a failed accept (usually no file descriptors are left) before the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The response to a connection beyond the limits, without reading its request.
const NO_PLACE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n\
    Content-Type: application/problem+json\r\nContent-Length: 148\r\n\r\n\
    {\"type\":\"urn:overmind:problem:unavailable\",\"title\":\"The server cannot do this now\",\
    \"status\":503,\"ok\":false,\"error\":\"too many connections are open\"}\n";
/// The same to a client that has all that one may have.
const NO_MORE_FOR_ONE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n\
    Content-Type: application/problem+json\r\nContent-Length: 163\r\n\r\n\
    {\"type\":\"urn:overmind:problem:unavailable\",\"title\":\"The server cannot do this now\",\
    \"status\":503,\"ok\":false,\"error\":\"too many connections of this client are open\"}\n";

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Drained {
    /// Every request was answered to its end.
    All,
    /// The grace period is over; this many connections and changes were still open.
    TimedOut { left: usize },
}

/// The HTTP surface of one engine.
#[derive(Debug)]
pub struct Server {
    front: Arc<Front>,
    /// Cancelled when the grace period is over: open connections are closed.
    kill: CancellationToken,
}

impl Server {
    pub fn new(engine: Engine, config: ServerConfig) -> Self {
        let front = Arc::new(Front::new(Arc::new(Cx::new(engine, config))));
        Self { front, kill: CancellationToken::new() }
    }

    /// Answers on all `listeners` until `shutdown` is cancelled; then stops accepting, ends event
    /// streams with a comment, and waits at most `drain_grace` for open requests.
    ///
    /// The engine continues: drain it afterwards.
    pub async fn serve(self, listeners: Vec<Listener>, shutdown: CancellationToken) -> Drained {
        let cx = Arc::clone(&self.front.cx);
        for listener in listeners {
            let acceptor = Acceptor {
                front: Arc::clone(&self.front),
                places: Places::new(
                    cx.config.max_connections,
                    cx.config.max_connections_per_source,
                ),
                kill: self.kill.clone(),
            };
            tracing::info!(at = listener.at(), "listening");
            cx.tasks.spawn(acceptor.run(listener));
        }
        shutdown.cancelled().await;
        cx.stop.cancel();
        cx.tasks.close();
        if tokio::time::timeout(cx.config.drain_grace, cx.tasks.wait()).await.is_ok() {
            return Drained::All;
        }
        let left = cx.tasks.len();
        self.kill.cancel();
        Drained::TimedOut { left }
    }
}

#[derive(Clone)]
struct Acceptor {
    front: Arc<Front>,
    places: Places,
    kill: CancellationToken,
}

impl Acceptor {
    async fn run(self, listener: Listener) {
        match listener.kind {
            Kind::Tcp { listener, tls } => loop {
                let Some(accepted) = self.unless_stopped(listener.accept()).await else { return };
                match accepted {
                    Ok((stream, from)) => self.tcp(stream, from.ip(), tls.clone()),
                    Err(err) => self.pause(&err).await,
                }
            },
            Kind::Unix { listener, file, agents } => loop {
                let Some(accepted) = self.unless_stopped(listener.accept()).await else { return };
                match accepted {
                    Ok((stream, _)) => self.unix(stream, &file, agents),
                    Err(err) => self.pause(&err).await,
                }
            },
        }
    }

    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        // Accepting is cancel safe: a connection that was not handed out stays in the kernel.
        tokio::select! {
            () = self.front.cx.stop.cancelled() => None,
            done = work => Some(done),
        }
    }

    async fn pause(&self, err: &std::io::Error) {
        tracing::warn!(error = %err, "a connection could not be accepted");
        let _ = tokio::time::timeout(ACCEPT_PAUSE, self.front.cx.stop.cancelled()).await;
    }

    fn tcp(&self, stream: TcpStream, client: IpAddr, tls: Option<Tls>) {
        let cx = &self.front.cx;
        // Small answers must not wait for more to come.
        let _ = stream.set_nodelay(true);
        let Ok(local) = stream.local_addr() else { return }; // it has gone already
        let tcp = Some((client.to_canonical(), local.ip().to_canonical()));
        let peer = Peer { tcp, door_of: None, tls: tls.is_some() };
        let source = Source::of(client);
        let place = match self.places.take().and_then(|place| self.places.count(place, source)) {
            Ok(place) => place,
            Err(why) => {
                cx.metrics.connection_refused();
                if tls.is_none() {
                    refuse(stream, why);
                }
                return;
            }
        };
        let this = self.clone();
        match tls {
            None => drop(cx.tasks.spawn(this.connection(stream, peer, place))),
            Some(tls) => drop(cx.tasks.spawn(async move {
                let limit = this.front.cx.config.header_timeout;
                let shaken = tokio::time::timeout(limit, tls.acceptor().accept(stream));
                match this.unless_stopped(shaken).await {
                    Some(Ok(Ok(stream))) => this.connection(stream, peer, place).await,
                    Some(Ok(Err(err))) => {
                        tracing::debug!(error = %err, "a TLS handshake failed");
                    }
                    Some(Err(_)) | None => {}
                }
            })),
        }
    }

    fn unix(&self, stream: UnixStream, file: &SocketFile, agents: bool) {
        let cx = &self.front.cx;
        // The file's mode has the same effect; this applies even if the mode is changed.
        let ours = stream.peer_cred().is_ok_and(|who| who.uid() == file.uid || who.uid() == 0);
        if !ours {
            tracing::warn!("a connection of another user was refused");
            return;
        }
        let place = match self.places.take() {
            Ok(place) => place,
            Err(why) => {
                cx.metrics.connection_refused();
                refuse(stream, why);
                return;
            }
        };
        let this = self.clone();
        if !agents {
            let peer = Peer { tcp: None, door_of: None, tls: false };
            drop(cx.tasks.spawn(this.connection(stream, peer, place)));
            return;
        }
        drop(cx.tasks.spawn(async move {
            let mut stream = stream;
            let limit = this.front.cx.config.header_timeout;
            let told = tokio::time::timeout(limit, agents::whose(&mut stream));
            match this.unless_stopped(told).await {
                Some(Ok(Some(peer))) => {
                    let counted = match peer.source() {
                        Some(source) => this.places.count(place, source),
                        None => Ok(place),
                    };
                    match counted {
                        Ok(place) => this.connection(stream, peer, place).await,
                        Err(why) => {
                            this.front.cx.metrics.connection_refused();
                            refuse(stream, why);
                        }
                    }
                }
                Some(Ok(None)) => tracing::warn!("a connection said not whose door it came by"),
                Some(Err(_)) | None => {}
            }
        }));
    }

    async fn connection<Io>(self, io: Io, peer: Peer, place: Place)
    where
        Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { front, kill, .. } = self;
        let cx = Arc::clone(&front.cx);
        let _open = cx.metrics.connection();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let front = Arc::clone(&front);
            // In a box: the connection keeps the place of what it holds here for all its life, also
            // while an answer streams for an hour.
            Box::pin(async move {
                Ok::<_, Infallible>(front.handle(peer, request.map(Body::new)).await)
            })
        });
        let io = TokioIo::new(Stalling::new(io, cx.config.write_timeout));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(cx.config.header_timeout)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(io, service)
            .with_upgrades();
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = cx.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = kill.cancelled() => Ok(()),
                }
            }
        };
        if let Err(err) = ended {
            // Clients that leave are the client's business; what is no HTTP is counted.
            cx.metrics.connection_broken();
            tracing::debug!(error = %err, "a connection broke");
        }
        drop(place);
    }
}

/// Says that the server is full. At once or not at all: a slow client gets nothing more.
fn refuse(stream: impl AsyncWrite + Unpin, why: Full) {
    use futures_util::FutureExt;

    let mut stream = stream;
    let answer = match why {
        Full::Listener => NO_PLACE,
        Full::Source => NO_MORE_FOR_ONE,
    };
    let _ = stream.write_all(answer).now_or_never();
    let _ = stream.shutdown().now_or_never();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what a function answers, without calling it.
    fn size<A, B, C, D, F>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn serving_a_connection_takes_little_memory() {
        let serving = size(Acceptor::connection::<TcpStream>);
        assert!(serving <= 1_200, "{serving} bytes");
    }

    #[test]
    fn the_refusal_of_a_full_server_is_a_complete_response() {
        for answer in [NO_PLACE, NO_MORE_FOR_ONE] {
            let text = std::str::from_utf8(answer).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
            let problem: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!((&problem["status"], &problem["ok"]), (&503.into(), &false.into()));
        }
    }
}
