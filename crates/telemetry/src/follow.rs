//! Follows the log: turns durable events into spans and metrics.
//!
//! The log is read a few times a second at most, in pages, and only events that matter for
//! telemetry; commits are not delayed by it. Attributes that a session's spans share are read from
//! its first event and cached for the most recent sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::budget::CallRecord;
use overmind_core::ids::{CallId, SessionId};
use overmind_core::store::{EventQuery, LogEvent, Page, Store, StoreError, StreamId};
use overmind_core::telemetry::figures::Figures;
use overmind_core::telemetry::{ENDS, Known, Lens, Span, TOLD, told};
use overmind_core::time::Clock;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{Addresses, Config, Counts};

/// Maximum number of events that are read at once.
const PAGE: u32 = 256;
/// The pause after the log was read to its end.
const PAUSE: Duration = Duration::from_millis(200);
/// The pause after a failed read.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Maximum number of sessions that are cached.
const MAX_KNOWN: usize = 2048;

/// The outgoing queue and counters.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) spans: mpsc::Sender<Span>,
    pub(crate) figures: watch::Sender<Option<Figures>>,
    pub(crate) counts: Arc<Counts>,
}

pub(crate) struct Follower {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    addresses: Addresses,
    content: bool,
    after: u64,
    known: HashMap<SessionId, Option<Arc<Known>>>,
    figures: Figures,
    out: Out,
}

impl Follower {
    pub(crate) fn new(
        config: &Config,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        addresses: Addresses,
        after: u64,
        out: Out,
    ) -> Self {
        Self {
            store,
            clock,
            addresses,
            content: config.content,
            after,
            known: HashMap::new(),
            figures: Figures::default(),
            out,
        }
    }

    /// Follows the log until `stop`, and then to the log's current end.
    pub(crate) async fn run(mut self, mut commits: watch::Receiver<u64>, stop: CancellationToken) {
        loop {
            let stopping = stop.is_cancelled();
            commits.borrow_and_update();
            let pause = match self.page().await {
                Ok(true) => continue,
                Ok(false) => PAUSE,
                Err(StoreError::Closed { .. }) => return,
                Err(err) => {
                    tracing::warn!(error = %err, "the log could not be read for telemetry");
                    AFTER_FAILURE
                }
            };
            if stopping {
                return;
            }
            let until = self.clock.now().after(pause);
            tokio::select! {
                () = async {
                    self.clock.sleep_until(until).await;
                    if commits.changed().await.is_err() {
                        // There are no more commits, so only `stop` can arrive.
                        std::future::pending::<()>().await;
                    }
                } => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Handles one page. Returns true if there is more.
    async fn page(&mut self) -> Result<bool, StoreError> {
        // This is read first: events before it that are not in the page do not matter, and must not
        // be skipped again with each read.
        let newest = self.store.events_newest(None, Page { limit: 1, after: None }).await?;
        let head = newest.first().map_or(0, |event| event.global);
        if head <= self.after {
            return Ok(false);
        }
        let query = EventQuery { stream: None, after: self.after, kinds: TOLD, limit: PAGE };
        let events = self.store.events(query).await?;
        let more = events.len() == PAGE as usize;
        let mut counted = false;
        for event in events {
            counted |= self.tell(&event).await?;
            self.after = event.global;
        }
        if !more {
            self.after = self.after.max(head);
        }
        if counted {
            self.out.figures.send_replace(Some(self.figures.clone()));
        }
        Ok(more)
    }

    /// Handles an event; returns whether a metric changed.
    async fn tell(&mut self, event: &LogEvent) -> Result<bool, StoreError> {
        let ends = ENDS.contains(&&*event.kind);
        let (mut known, mut above, mut row) = (None, None, None);
        if let StreamId::Session(session) = event.stream {
            known = self.known(session).await?;
            if ends {
                if let Some(parent) = known.as_ref().and_then(|known| known.parent) {
                    above = self.known(parent).await?;
                }
                row = self.store.session_fetch(session).await?;
            }
        }
        let call = match self.content {
            true => self.call(event).await?,
            false => None,
        };
        let lens = Lens {
            known: known.as_deref(),
            above: above.as_deref(),
            row: row.as_ref(),
            call: call.as_ref(),
            content: self.content,
            address: &*self.addresses,
        };
        let told = told(event, &lens);
        if let Some(span) = told.span
            && self.out.spans.try_send(span).is_err()
        {
            Counts::add(&self.out.counts.spans_dropped, 1);
        }
        if let Some(measured) = &told.measured {
            self.figures.count(measured);
        }
        Ok(told.measured.is_some())
    }

    /// The record of the call that an event ends, if the record contains more than the event.
    async fn call(&self, event: &LogEvent) -> Result<Option<CallRecord>, StoreError> {
        #[derive(Deserialize)]
        struct Payload {
            call_id: CallId,
            /// The digest of the request.
            request: Option<String>,
        }
        if !event.kind.starts_with("budget.") {
            return Ok(None);
        }
        let Ok(payload) = serde_json::from_str::<Payload>(&event.payload) else { return Ok(None) };
        if payload.request.is_none() {
            return Ok(None);
        }
        // The order is newest first, so the first one before the next id is this one.
        let after = payload.call_id.as_u128().checked_add(1).map(CallId::from_u128);
        let page = Page { limit: 1, after };
        let found = self.store.call_list(None, page).await?.into_iter().next();
        Ok(found.filter(|call| call.call == payload.call_id))
    }

    async fn known(&mut self, session: SessionId) -> Result<Option<Arc<Known>>, StoreError> {
        if let Some(known) = self.known.get(&session) {
            return Ok(known.clone());
        }
        let stream = Some(StreamId::Session(session));
        let query = EventQuery { stream, after: 0, kinds: Known::KINDS, limit: 2 };
        let events = self.store.events(query).await?;
        let known = Known::of(&events).map(Arc::new);
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(session, known.clone());
        Ok(known)
    }
}
