//! A run's timeline as server-sent events.
//!
//! Level-triggered: the stream looks at what is there, sends it, and only then waits for word
//! that there may be more. No event is kept in memory for a client that reads slowly: the next
//! page is read when the client has taken the last one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use overmind_api::{Done, RunStatus};
use overmind_core::ids::{AgentId, SessionId};
use overmind_core::row::SessionRow;
use overmind_engine::Caller;
use overmind_engine::view::TimelineItem;
use tokio::sync::watch;

use crate::convert;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::host::single;
use crate::metrics::Open;

/// Items read at once. A page is the most that one stream holds in memory.
const PAGE: u32 = 128;
/// Between two tries when the engine has let go of a session's watch.
const RESUBSCRIBE: Duration = Duration::from_millis(500);

/// `(seq, part)` of a timeline item; the SSE id is `seq.part`.
pub(crate) type Place = (u64, u8);

/// Where to resume: the header `Last-Event-ID`, else the query's `last_event_id`, else the start.
pub(crate) fn resume_place(headers: &HeaderMap, query: Option<&str>) -> Result<Place, Fault> {
    const NAME: HeaderName = HeaderName::from_static("last-event-id");
    let header = single(headers, &NAME)?;
    let text = match (header, query) {
        (Some(text), _) | (None, Some(text)) if !text.is_empty() => text,
        (Some(_) | None, _) => return Ok((0, 0)),
    };
    parse_place(text).ok_or_else(|| {
        let shown: String = text.chars().take(60).collect();
        let message = format!("must be the `id:` of an event of this stream, not `{shown}`");
        Fault::invalid("Last-Event-ID", message)
    })
}

fn parse_place(text: &str) -> Option<Place> {
    let (seq, part) = text.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(seq) || !digits(part) {
        return None;
    }
    Some((seq.parse().ok()?, part.parse().ok()?))
}

/// One stream under way.
pub(crate) struct Replay {
    cx: Arc<Cx>,
    caller: Caller,
    run: SessionId,
    agent: AgentId,
    after: Place,
    follow: bool,
    watch: watch::Receiver<u64>,
    /// What is left to say before the end.
    ready: VecDeque<Bytes>,
    ended: bool,
    _open: Open,
}

impl Replay {
    pub(crate) fn new(
        cx: Arc<Cx>,
        caller: Caller,
        run: &SessionRow,
        after: Place,
        follow: bool,
    ) -> Self {
        let watch = cx.engine.session_watch(run.id);
        let open = cx.metrics.stream();
        Self {
            caller,
            run: run.id,
            agent: run.agent,
            after,
            follow,
            watch,
            ready: VecDeque::new(),
            ended: false,
            _open: open,
            cx,
        }
    }

    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            if self.cx.stop.is_cancelled() {
                return Some(
                    self.end(": the server is shutting down; resume with Last-Event-ID\n\n"),
                );
            }
            // Marked as seen before the look, so that what comes meanwhile wakes the wait below.
            self.watch.borrow_and_update();
            let look = self.cx.engine.session_timeline(&self.caller, self.run, self.after, PAGE);
            let page = match look.await {
                Ok(page) => page,
                Err(err) => {
                    let fault = Fault::from(err);
                    let problem = serde_json::to_string(fault.problem()).unwrap_or_default();
                    return Some(self.end(format!("event: error\ndata: {problem}\n\n")));
                }
            };
            let over = !page.more && page.status.is_terminal();
            let nothing_new = page.items.is_empty();
            if !nothing_new {
                let text = self.write(page.items);
                self.ready.push_back(text);
            }
            if over {
                let done = Done { run_id: self.run, status: RunStatus::from(page.status) };
                let done = serde_json::to_string(&done).unwrap_or_default();
                let last = self.end(format!("event: done\ndata: {done}\n\n"));
                self.ready.push_back(last);
            } else if !self.follow && (nothing_new || !page.more) {
                self.ended = true;
            } else if nothing_new && let Some(bytes) = self.wait().await {
                return Some(bytes);
            }
        }
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
                // The engine has let go of the watch. The log says what there is to say; a pause
                // keeps this from spinning.
                let _ = tokio::time::timeout(RESUBSCRIBE, stop.cancelled()).await;
                self.watch = self.cx.engine.session_watch(self.run);
                None
            }
            Err(_) => Some(Bytes::from_static(b": keepalive\n\n")),
        }
    }

    fn write(&mut self, items: Vec<TimelineItem>) -> Bytes {
        let mut text = String::with_capacity(items.len() * 512);
        for item in items {
            self.after = item.place;
            let entry = convert::timeline(item, self.agent);
            match serde_json::to_string(&entry) {
                Ok(json) => frame(&mut text, self.after, &json),
                Err(err) => tracing::error!(error = %err, "a timeline item could not be written"),
            }
        }
        text.into()
    }

    fn end(&mut self, last: impl Into<Bytes>) -> Bytes {
        self.ended = true;
        last.into()
    }

    pub(crate) fn into_response(self) -> Response {
        let bytes = stream::unfold(self, |mut replay| async move {
            let bytes = replay.next().await?;
            Some((Ok::<_, Infallible>(bytes), replay))
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

/// One message. A payload of the log is shown as it was hashed, and might hold line breaks
/// between its tokens: each line gets its own `data:`, as the format wants.
fn frame(out: &mut String, (seq, part): Place, json: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "id: {seq}.{part}");
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
    fn a_place_is_two_numbers_and_nothing_else() {
        assert_eq!(parse_place("17.3"), Some((17, 3)));
        assert_eq!(parse_place("18446744073709551615.255"), Some((u64::MAX, 255)));
        for bad in ["", "17", "17.", ".3", "17.256", "+1.0", "1.-0", "1.0.0", "a.b", "1 .0"] {
            assert_eq!(parse_place(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_header_wins_over_the_query_and_nothing_means_the_start() {
        let mut headers = HeaderMap::new();
        assert_eq!(resume_place(&headers, None).unwrap(), (0, 0));
        assert_eq!(resume_place(&headers, Some("2.1")).unwrap(), (2, 1));
        headers.insert("last-event-id", HeaderValue::from_static("9.0"));
        assert_eq!(resume_place(&headers, Some("2.1")).unwrap(), (9, 0));
        headers.insert("last-event-id", HeaderValue::from_static("nine"));
        assert_eq!(resume_place(&headers, None).unwrap_err().problem().status, 422);
    }

    #[test]
    fn a_frame_has_an_id_one_data_line_per_line_and_an_empty_line() {
        let mut out = String::new();
        frame(&mut out, (4, 1), "{\"a\":\n1}");
        assert_eq!(out, "id: 4.1\ndata: {\"a\":\ndata: 1}\n\n");
    }

    proptest! {
        #[test]
        fn a_frame_is_one_message_whatever_it_carries(json in "[ -~\n\r]{0,60}") {
            let mut out = String::new();
            frame(&mut out, (1, 0), &json);
            prop_assert!(out.ends_with("\n\n"));
            prop_assert!(!out[..out.len() - 2].contains("\n\n"));
            prop_assert!(!out.contains('\r'));
        }
    }
}
