//! The inbox as server-sent events.
//!
//! As with a run's timeline the stream is level-triggered: it looks at what has changed since the
//! last change that it sent, sends it, and waits for word that there may be more. What it sends
//! is how an item stands, not how it came to.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use overmind_api::{InboxItem, InboxSnapshot};
use overmind_core::inbox::{self, InboxCursor, InboxState};
use overmind_core::store::Page;
use overmind_engine::request::InboxQuery;
use overmind_engine::{Caller, EngineError};
use tokio::sync::watch;

use crate::cx::Cx;
use crate::fault::Fault;
use crate::host::single;
use crate::metrics::Open;

/// Items read at once.
const PAGE: u32 = 100;

/// The number to resume after: the header `Last-Event-ID`, else the query's; `None` for the start.
pub(crate) fn resume_after(headers: &HeaderMap, query: Option<&str>) -> Result<Option<u64>, Fault> {
    const NAME: HeaderName = HeaderName::from_static("last-event-id");
    let text = match (single(headers, &NAME)?, query) {
        (Some(text), _) | (None, Some(text)) if !text.is_empty() => text,
        (Some(_) | None, _) => return Ok(None),
    };
    let number = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    number.map(Some).ok_or_else(|| {
        let shown: String = text.chars().take(60).collect();
        let message = format!("must be the `id:` of an event of this stream, not `{shown}`");
        Fault::invalid("Last-Event-ID", message)
    })
}

/// Where a stream stands.
enum At {
    /// Sending what is open; the cursor of the last one sent, and the snapshot that ends it.
    Snapshot(Option<InboxCursor>, InboxSnapshot),
    Following,
}

/// One stream under way.
pub(crate) struct InboxStream {
    cx: Arc<Cx>,
    caller: Caller,
    at: At,
    /// The last change sent.
    after: u64,
    watch: watch::Receiver<u64>,
    ready: VecDeque<Bytes>,
    ended: bool,
    _open: Open,
}

impl InboxStream {
    /// `open` and `changed` were read together, before anything is sent: a change that comes
    /// between is sent twice rather than not at all.
    pub(crate) fn new(
        cx: Arc<Cx>,
        caller: Caller,
        after: Option<u64>,
        open: u64,
        changed: u64,
    ) -> Self {
        let at = match after {
            Some(_) => At::Following,
            None => At::Snapshot(None, InboxSnapshot { open, changed }),
        };
        Self {
            caller,
            at,
            after: after.unwrap_or(changed),
            watch: cx.engine.inbox_watch(),
            ready: VecDeque::new(),
            ended: false,
            _open: cx.metrics.stream(),
            cx,
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            if self.cx.stop.is_cancelled() {
                self.ended = true;
                return Some(": the server is shutting down; resume with Last-Event-ID\n\n".into());
            }
            // Marked as seen before the look, so that what comes meanwhile wakes the wait below.
            self.watch.borrow_and_update();
            match self.look().await {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(bytes) = self.wait().await {
                        return Some(bytes);
                    }
                }
                Err(err) => {
                    self.ended = true;
                    let fault = Fault::from(err);
                    let problem = serde_json::to_string(fault.problem()).unwrap_or_default();
                    return Some(format!("event: error\ndata: {problem}\n\n").into());
                }
            }
        }
    }

    /// Reads what is next. False when there is nothing now.
    async fn look(&mut self) -> Result<bool, EngineError> {
        match &self.at {
            At::Snapshot(after, snapshot) => {
                let (page, snapshot) = (Page { limit: PAGE, after: *after }, *snapshot);
                let query = InboxQuery { state: Some(InboxState::Open), ..InboxQuery::default() };
                let items = self.cx.engine.inbox_list(&self.caller, query, page).await?;
                let mut text = String::new();
                for item in &items {
                    frame(&mut text, None, item);
                }
                match items.last() {
                    Some(last) => self.at = At::Snapshot(Some(last.cursor()), snapshot),
                    None => {
                        let data = serde_json::to_string(&snapshot).unwrap_or_default();
                        let id = snapshot.changed;
                        let _ = write!(text, "id: {id}\nevent: snapshot\ndata: {data}\n\n");
                        self.at = At::Following;
                    }
                }
                self.ready.push_back(text.into());
                Ok(true)
            }
            At::Following => {
                let items = self.cx.engine.inbox_changes(&self.caller, self.after, PAGE).await?;
                let mut text = String::new();
                for (n, item) in items.iter().enumerate() {
                    // Those of one commit share a number: only after the last of them is it
                    // true that everything up to it was sent.
                    let last = items.get(n + 1).is_none_or(|next| next.changed != item.changed);
                    frame(&mut text, last.then_some(item.changed), item);
                }
                let Some(last) = items.last() else { return Ok(false) };
                self.after = last.changed;
                self.ready.push_back(text.into());
                Ok(true)
            }
        }
    }

    /// Waits for more. Answers a sign of life when there was nothing for a while.
    async fn wait(&mut self) -> Option<Bytes> {
        let stop = self.cx.stop.clone();
        let changed = async {
            tokio::select! {
                () = stop.cancelled() => {}
                // Never closed while the engine is here, and `cx` has the engine.
                _ = self.watch.changed() => {}
            }
        };
        match tokio::time::timeout(self.cx.config.keepalive, changed).await {
            Ok(()) => None,
            Err(_) => Some(Bytes::from_static(b": keepalive\n\n")),
        }
    }

    pub(crate) fn into_response(self) -> Response {
        let bytes = stream::unfold(self, |mut inbox| async move {
            let bytes = inbox.next().await?;
            Some((Ok::<_, Infallible>(bytes), inbox))
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

/// One message. JSON that serde writes has no line breaks.
fn frame(out: &mut String, id: Option<u64>, item: &inbox::InboxItem) {
    let event = if item.state == InboxState::Open { "opened" } else { "closed" };
    let data = match serde_json::to_string(&InboxItem::from(item.clone())) {
        Ok(data) => data,
        Err(err) => return tracing::error!(error = %err, "an item could not be written"),
    };
    // Writing to a String cannot fail.
    if let Some(id) = id {
        let _ = writeln!(out, "id: {id}");
    }
    let _ = write!(out, "event: {event}\ndata: {data}\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_wins_over_the_query_and_nothing_means_the_start() {
        let mut headers = HeaderMap::new();
        assert_eq!(resume_after(&headers, None).unwrap(), None);
        assert_eq!(resume_after(&headers, Some("7")).unwrap(), Some(7));
        headers.insert("last-event-id", HeaderValue::from_static("9"));
        assert_eq!(resume_after(&headers, Some("7")).unwrap(), Some(9));
        for bad in ["nine", "-1", "1.0", "+1", "99999999999999999999999"] {
            headers.insert("last-event-id", HeaderValue::from_static(bad));
            assert_eq!(resume_after(&headers, None).unwrap_err().problem().status, 422, "{bad}");
        }
    }
}
