//! Streams of server-sent events: what all of them share.
//!
//! Level-triggered: a stream reads the existing messages, sends them, and only then waits for a
//! notification of more. Nothing is kept in memory for a slow client: the next page is read when
//! the client has taken the last one.
//!
//! The content of a stream comes from its [`Source`]; token checks, pings, the end of the server,
//! errors and resuming are the same for all.

use std::convert::Infallible;
use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use overmind_engine::{Caller, EngineError};
use serde::Serialize;
use tokio::sync::watch;

use crate::cx::Cx;
use crate::extract::Query;
use crate::fault::Fault;
use crate::host::single;
use crate::metrics::Open;
use crate::proof::Proof;

/// The pause between two attempts after the engine dropped a watch.
const RESUBSCRIBE: Duration = Duration::from_millis(500);

/// The subject of a stream.
pub(crate) trait Source: Send + 'static {
    /// Reads the next messages, as far as `by` may: at most a page, as messages of [`message`].
    fn look(
        &mut self,
        cx: &Cx,
        by: &Caller,
    ) -> impl Future<Output = Result<Look, EngineError>> + Send;

    /// Changes whenever another look may find something.
    fn watch(&self, cx: &Cx) -> watch::Receiver<u64>;
}

/// The result of a look.
pub(crate) enum Look {
    /// There may be more at once.
    More(String),
    /// There is nothing to send now.
    Nothing,
    /// The last message, which may be empty.
    Last(String),
}

/// One open stream.
pub(crate) struct Stream<S> {
    cx: Arc<Cx>,
    /// Looked at again with each page: a stream lives longer than some tokens are worth anything.
    proof: Proof,
    source: S,
    watch: watch::Receiver<u64>,
    ended: bool,
    _open: Open,
}

impl<S: Source> Stream<S> {
    pub(crate) fn new(cx: Arc<Cx>, proof: Proof, source: S) -> Self {
        let (watch, open) = (source.watch(&cx), cx.metrics.stream());
        Self { cx, proof, source, watch, ended: false, _open: open }
    }

    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.ended {
            if self.cx.stop.is_cancelled() {
                self.ended = true;
                return Some(": the server is shutting down; resume with Last-Event-ID\n\n".into());
            }
            // Marked as seen before the read, so that later changes wake the wait below.
            self.watch.borrow_and_update();
            match self.looked().await {
                Ok(Look::More(text)) => return Some(text.into()),
                Ok(Look::Nothing) => {
                    if let Some(bytes) = self.wait().await {
                        return Some(bytes);
                    }
                }
                Ok(Look::Last(text)) => {
                    self.ended = true;
                    return (!text.is_empty()).then(|| text.into());
                }
                Err(err) => {
                    self.ended = true;
                    let fault = Fault::from(err);
                    let mut text = String::new();
                    say(&mut text, None::<u64>, Some("error"), fault.problem());
                    return Some(text.into());
                }
            }
        }
        None
    }

    /// The next messages, if the token may still read them. The token is checked before and after
    /// the look: the events found may include the end of this token.
    async fn looked(&mut self) -> Result<Look, EngineError> {
        let by = self.proof.again(&self.cx).await?;
        let look = self.source.look(&self.cx, &by).await?;
        match look {
            Look::Nothing => {}
            Look::More(_) | Look::Last(_) => drop(self.proof.again(&self.cx).await?),
        }
        Ok(look)
    }

    /// Waits for more. Answers a sign of life when there was nothing for a while.
    async fn wait(&mut self) -> Option<Bytes> {
        let stop = self.cx.stop.clone();
        let changed = async {
            tokio::select! {
                () = stop.cancelled() => true,
                changed = self.watch.changed() => changed.is_ok(),
            }
        };
        match tokio::time::timeout(self.cx.config.keepalive, changed).await {
            Ok(true) => None,
            Ok(false) => {
                // The engine has dropped the watch. The log contains the messages; a pause prevents
                // a busy loop.
                let _ = tokio::time::timeout(RESUBSCRIBE, stop.cancelled()).await;
                self.watch = self.source.watch(&self.cx);
                None
            }
            Err(_) => Some(Bytes::from_static(b": keepalive\n\n")),
        }
    }

    pub(crate) fn into_response(self) -> Response {
        let bytes = stream::unfold(self, |mut stream| async move {
            let bytes = stream.next().await?;
            Some((Ok::<_, Infallible>(bytes), stream))
        });
        let mut response = Body::from_stream(bytes).into_response();
        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        // For proxies that would otherwise collect the stream.
        response
            .headers_mut()
            .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        response
    }
}

/// Where to resume: the header `Last-Event-ID`, else the query's `last_event_id`, as `read` reads
/// it; `None` without either.
pub(crate) fn resume_after<T>(
    headers: &HeaderMap,
    query: Option<&str>,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Fault> {
    const NAME: HeaderName = HeaderName::from_static("last-event-id");
    let text = match (single(headers, &NAME)?, query) {
        (Some(text), _) | (None, Some(text)) if !text.is_empty() => text,
        (Some(_) | None, _) => return Ok(None),
    };
    read(text).map(Some).ok_or_else(|| {
        let shown: String = text.chars().take(60).collect();
        let message = format!("must be the `id:` of an event of this stream, not `{shown}`");
        Fault::invalid("Last-Event-ID", message)
    })
}

/// The number to resume after, of a stream without filters.
pub(crate) struct Resume(pub(crate) Option<u64>);

impl<S: Send + Sync> FromRequestParts<S> for Resume {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let mut query = Query::parse(parts.uri.query().unwrap_or_default())?;
        let last = query.take("last_event_id");
        query.finish()?;
        resume_after(&parts.headers, last.as_deref(), number).map(Self)
    }
}

/// A number in digits alone.
pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Appends a message whose data is `what` as JSON. What cannot be written is left out, and logged.
pub(crate) fn say(
    out: &mut String,
    id: Option<impl Display>,
    event: Option<&str>,
    what: &impl Serialize,
) {
    match serde_json::to_string(what) {
        Ok(data) => message(out, id, event, &data),
        Err(err) => tracing::error!(error = %err, "a message of a stream could not be written"),
    }
}

/// One message. A payload of the log is shown as it was hashed, and might hold line breaks
/// between its tokens: each line gets its own `data:`, as the format wants.
fn message(out: &mut String, id: Option<impl Display>, event: Option<&str>, json: &str) {
    // Writing to a String cannot fail.
    if let Some(id) = id {
        let _ = writeln!(out, "id: {id}");
    }
    if let Some(event) = event {
        let _ = writeln!(out, "event: {event}");
    }
    for line in json.split(['\n', '\r']) {
        out.push_str("data: ");
        out.push_str(line);
        out.push('\n');
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_header_overrides_the_query_and_without_both_the_stream_starts() {
        let mut headers = HeaderMap::new();
        let after = |headers: &HeaderMap, query| resume_after(headers, query, number::<u64>);
        assert_eq!(after(&headers, None).unwrap(), None);
        assert_eq!(after(&headers, Some("")).unwrap(), None);
        assert_eq!(after(&headers, Some("7")).unwrap(), Some(7));
        headers.insert("last-event-id", HeaderValue::from_static("9"));
        assert_eq!(after(&headers, Some("7")).unwrap(), Some(9));
        for bad in ["nine", "-1", "1.0", "+1", "99999999999999999999999"] {
            headers.insert("last-event-id", HeaderValue::from_static(bad));
            assert_eq!(after(&headers, None).unwrap_err().problem().status, 422, "{bad}");
        }
    }

    #[test]
    fn an_sse_message_has_id_event_data_lines_and_an_empty_line() {
        let mut out = String::new();
        message(&mut out, Some("4.1"), None, "{\"a\":\n1}");
        assert_eq!(out, "id: 4.1\ndata: {\"a\":\ndata: 1}\n\n");
        out.clear();
        message(&mut out, None::<u64>, Some("done"), "{}");
        assert_eq!(out, "event: done\ndata: {}\n\n");
    }

    proptest! {
        #[test]
        fn any_content_is_one_sse_message(json in "[ -~\n\r]{0,60}") {
            let mut out = String::new();
            message(&mut out, Some(1), None, &json);
            prop_assert!(out.ends_with("\n\n"));
            prop_assert!(!out[..out.len() - 2].contains("\n\n"));
            prop_assert!(!out.contains('\r'));
        }
    }
}
