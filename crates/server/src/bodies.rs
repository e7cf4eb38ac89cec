//! Bodies of requests, read whole: each bounded in bytes and in time, and all of them in memory.
//!
//! A client can send a body slowly, in pieces of one byte, over many connections. So the pieces are
//! copied into one buffer, and the bytes of all buffers are counted together and by sender.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use overmind_api::ProblemKind;

use crate::fault::Fault;
use crate::front::Source;

/// The client whose bodies count together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sender {
    /// The origin of a request; `None` is the Unix socket.
    Place(Option<Source>),
    /// An authenticated caller, by name.
    Caller(String),
}

/// Bodies that are being read, and those that are kept in memory afterwards.
#[derive(Clone, Debug)]
pub(crate) struct Bodies {
    /// Bytes of all bodies, and of those of one sender.
    most: usize,
    most_of_one: usize,
    held: Arc<Mutex<Held>>,
}

/// Bytes that are held: all, and those of each sender.
#[derive(Debug, Default)]
struct Held {
    all: usize,
    by: HashMap<Sender, usize>,
}

/// A body, and its place in [`Bodies`].
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) bytes: Bytes,
    /// To be kept for as long as the bytes are.
    pub(crate) lease: Lease,
}

/// Bytes that are counted. Dropped, they no longer are.
#[derive(Debug)]
pub(crate) struct Lease {
    bodies: Bodies,
    sender: Sender,
    bytes: usize,
}

/// Why a body was not read to its end. The connection cannot be used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    TooLarge {
        max: usize,
    },
    /// Bodies of others, or of the same sender, fill the memory.
    Crowded,
    Broken,
    Slow {
        within: Duration,
    },
}

impl Bodies {
    /// `most` bytes in memory at once, and so many of one sender.
    pub(crate) fn new(most: usize, most_of_one: usize) -> Self {
        Self { most, most_of_one, held: Arc::default() }
    }

    /// Reads a body of at most `max` bytes, within a time.
    pub(crate) async fn read(
        &self,
        headers: &HeaderMap,
        mut body: Body,
        sender: Sender,
        max: usize,
        within: Duration,
    ) -> Result<Whole, Unread> {
        let length = headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > max) {
            return Err(Unread::TooLarge { max });
        }
        let mut lease = Lease { bodies: self.clone(), sender, bytes: 0 };
        let read = async {
            let mut whole = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let Ok(piece) = frame.map_err(|_| Unread::Broken)?.into_data() else { continue };
                if piece.len() > max - whole.len() {
                    return Err(Unread::TooLarge { max });
                }
                if !lease.grow(piece.len()) {
                    return Err(Unread::Crowded);
                }
                whole.extend_from_slice(&piece);
            }
            Ok(whole.freeze())
        };
        let bytes = tokio::time::timeout(within, read).await;
        let bytes = bytes.map_err(|_| Unread::Slow { within })??;
        Ok(Whole { bytes, lease })
    }
}

impl Lease {
    /// Counts more bytes, if there is space for them.
    fn grow(&mut self, more: usize) -> bool {
        // A panic while holding the lock leaves numbers, which are sound.
        let mut held = self.bodies.held.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = held.by.get(&self.sender).copied().unwrap_or(0);
        if held.all + more > self.bodies.most || of_one + more > self.bodies.most_of_one {
            return false;
        }
        held.all += more;
        self.bytes += more;
        match held.by.get_mut(&self.sender) {
            Some(bytes) => *bytes += more,
            None => drop(held.by.insert(self.sender.clone(), more)),
        }
        true
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut held = self.bodies.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.all -= self.bytes;
        if let Some(of_one) = held.by.get_mut(&self.sender) {
            *of_one -= self.bytes;
            if *of_one == 0 {
                held.by.remove(&self.sender);
            }
        }
    }
}

impl From<Unread> for Fault {
    fn from(why: Unread) -> Self {
        let kind = match why {
            Unread::TooLarge { .. } => ProblemKind::TooLarge,
            Unread::Crowded => ProblemKind::Unavailable,
            Unread::Broken => ProblemKind::BadRequest,
            Unread::Slow { .. } => ProblemKind::Timeout,
        };
        let fault = Self::new(kind, why.to_string()).closing();
        match why {
            Unread::Crowded => fault.retry_after(Duration::from_secs(1)),
            Unread::TooLarge { .. } | Unread::Broken | Unread::Slow { .. } => fault,
        }
    }
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge { max } => write!(f, "the body is larger than {max} bytes"),
            Self::Crowded => f.write_str("too many large requests are on their way: try again"),
            Self::Broken => f.write_str("the body broke off before its end"),
            Self::Slow { within } => write!(f, "the body did not arrive within {within:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::{IpAddr, Ipv4Addr};

    use futures_util::stream;

    use super::*;

    const ONE: Sender = Sender::Place(None);
    const OTHER: Sender = Sender::Place(Some(Source::Address(IpAddr::V4(Ipv4Addr::LOCALHOST))));
    const SOON: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_secs(60);

    /// So many pieces of so many bytes; with `open` it never ends.
    fn pieces(count: usize, bytes: usize, open: bool) -> Body {
        let pieces =
            stream::iter((0..count).map(move |_| vec![b'x'; bytes]).map(Ok::<_, Infallible>));
        let rest = stream::once(async move {
            if open {
                std::future::pending::<()>().await;
            }
            Ok(Vec::new())
        });
        Body::from_stream(futures_util::StreamExt::chain(pieces, rest))
    }

    async fn read(
        bodies: &Bodies,
        body: Body,
        from: Sender,
        within: Duration,
    ) -> Result<Whole, Unread> {
        bodies.read(&HeaderMap::new(), body, from, 100, within).await
    }

    #[tokio::test]
    async fn a_body_is_read_completely_or_refused_as_too_large_or_too_slow() {
        let bodies = Bodies::new(4_000, 1_000);
        let whole = read(&bodies, pieces(100, 1, false), ONE, LATE).await.unwrap();
        assert_eq!(whole.bytes.len(), 100);
        let large = read(&bodies, pieces(101, 1, false), ONE, LATE).await.unwrap_err();
        assert_eq!(large, Unread::TooLarge { max: 100 });
        let slow = read(&bodies, pieces(10, 1, true), ONE, SOON).await.unwrap_err();
        assert_eq!(slow, Unread::Slow { within: SOON });
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, "101".parse().unwrap());
        let told = bodies.read(&headers, pieces(0, 1, true), ONE, 100, LATE).await.unwrap_err();
        assert_eq!(told, Unread::TooLarge { max: 100 });
        drop(whole);
        let held = bodies.held.lock().unwrap();
        assert!(held.by.is_empty() && held.all == 0);
    }

    #[tokio::test]
    async fn buffered_bodies_leave_memory_for_other_senders() {
        let bodies = Bodies::new(400, 100);
        let first = read(&bodies, pieces(1, 90, false), ONE, LATE).await.unwrap();
        // A quarter is for one sender, also in bodies that never end.
        let second = read(&bodies, pieces(1, 20, true), ONE, LATE).await.unwrap_err();
        assert_eq!(second, Unread::Crowded);
        let others = read(&bodies, pieces(1, 90, false), OTHER, LATE).await.unwrap();
        drop((first, others));
        assert!(read(&bodies, pieces(1, 90, false), ONE, LATE).await.is_ok());
    }
}
