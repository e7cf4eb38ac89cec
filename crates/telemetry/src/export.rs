//! Sends spans and metrics in batches, with bounded retries.
//!
//! A batch that a collector does not accept is sent again after growing pauses, or after its
//! `Retry-After`. Meanwhile new spans wait in the queue; if that is full, they are dropped where
//! they are made. So memory is bounded, and an unreachable collector costs only an occasional
//! attempt.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use overmind_core::telemetry::Span;
use overmind_core::telemetry::figures::Figures;
use overmind_core::time::{Clock, Timestamp};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Url};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{Config, ConfigError, Counts, wire};

/// Maximum number of spans of one request.
const BATCH: usize = 512;
/// Maximum number of attempts for one batch; then it is dropped in favour of newer ones.
const ATTEMPTS: u32 = 6;
/// The first pause between attempts; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Maximum number of bytes of an answer that are read. Its text is not used.
const MAX_ANSWER: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Exporter {
    client: Client,
    traces: Url,
    metrics: Url,
    headers: HeaderMap,
    resource: Vec<(String, String)>,
    every: Duration,
    metrics_every: Duration,
    timeout: Duration,
    clock: Arc<dyn Clock>,
    counts: Arc<Counts>,
    since: Timestamp,
}

/// The result of an attempt.
enum Sent {
    Taken,
    /// The collector will never accept it.
    Refused,
    /// The collector may accept it later, at the earliest after this time.
    Later(Option<Duration>),
}

impl Exporter {
    pub(crate) fn new(
        config: &Config,
        clock: Arc<dyn Clock>,
        counts: Arc<Counts>,
        since: Timestamp,
    ) -> Result<Self, ConfigError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &config.headers {
            let parsed = HeaderName::from_bytes(name.as_bytes());
            let parsed = parsed.ok().zip(HeaderValue::from_str(value).ok());
            let (header, mut value) = parsed.ok_or_else(|| {
                ConfigError(format!("the header `{name}` cannot be sent by HTTP"))
            })?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        // Other users of it have installed the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            // A key is sent only to its own collector.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(config.timeout)
            .timeout(config.timeout)
            .user_agent(concat!("overmind/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|err| ConfigError(format!("there is no HTTP client: {err}")))?;
        Ok(Self {
            client,
            traces: config.traces.clone(),
            metrics: config.metrics.clone(),
            headers,
            resource: config.resource.clone(),
            every: config.every,
            metrics_every: config.metrics_every,
            timeout: config.timeout,
            clock,
            counts,
            since,
        })
    }

    /// Sends until the queue is closed and empty. `give_up` ends pauses and requests.
    pub(crate) async fn run(
        self,
        mut spans: mpsc::Receiver<Span>,
        figures: watch::Receiver<Option<Figures>>,
        give_up: CancellationToken,
    ) {
        let mut figures_due = self.clock.now().after(self.metrics_every);
        let mut batch = Vec::new();
        loop {
            let full = self.gather(&mut spans, &mut batch, figures_due).await;
            if !batch.is_empty() {
                let body = wire::traces(&self.resource, &batch);
                let taken = self.send(&self.traces, body, spans.is_closed(), &give_up).await;
                let counter = match taken {
                    true => &self.counts.spans_sent,
                    false => &self.counts.spans_dropped,
                };
                Counts::add(counter, batch.len());
                batch.clear();
            }
            let over = spans.is_closed() && spans.is_empty();
            let now = self.clock.now();
            // Waiting spans are sent first, but not forever.
            if over || now >= figures_due {
                self.send_figures(&figures, over, &give_up).await;
                figures_due = now.after(self.metrics_every);
            }
            if over {
                return;
            }
            if give_up.is_cancelled() {
                Counts::add(&self.counts.spans_dropped, drain(&mut spans));
                return;
            }
            if !full {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Fills a batch until it is full, its time is over, or no more spans can come. Returns true if
    /// it is full.
    async fn gather(
        &self,
        spans: &mut mpsc::Receiver<Span>,
        batch: &mut Vec<Span>,
        figures_due: Timestamp,
    ) -> bool {
        // Without spans, only the next metrics end the wait.
        let mut until = figures_due;
        while batch.len() < BATCH {
            tokio::select! {
                biased;
                span = spans.recv() => match span {
                    Some(span) => {
                        if batch.is_empty() {
                            until = until.min(self.clock.now().after(self.every));
                        }
                        batch.push(span);
                    }
                    None => return false,
                },
                () = self.clock.sleep_until(until) => return false,
            }
        }
        true
    }

    async fn send_figures(
        &self,
        figures: &watch::Receiver<Option<Figures>>,
        last: bool,
        give_up: &CancellationToken,
    ) {
        let body = match &*figures.borrow() {
            Some(figures) => {
                wire::metrics(&self.resource, figures.all(), self.since, self.clock.now())
            }
            None => return,
        };
        // Later metrics contain these values too, so only the last ones are sent again.
        if last {
            self.send(&self.metrics, body, true, give_up).await;
        } else {
            let _ = self.attempt(&self.metrics, body.into()).await;
        }
    }

    /// Returns whether the collector accepted it in the end.
    async fn send(
        &self,
        url: &Url,
        body: Vec<u8>,
        last: bool,
        give_up: &CancellationToken,
    ) -> bool {
        let body = Bytes::from(body);
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS {
            let sent = tokio::select! {
                sent = self.attempt(url, body.clone()) => sent,
                () = give_up.cancelled() => return false,
            };
            let asked = match sent {
                Sent::Taken => return true,
                Sent::Refused => return false,
                Sent::Later(asked) => asked,
            };
            // At the end there is time for one more attempt, but not for long pauses.
            if attempt == ATTEMPTS || (last && attempt > 1) {
                return false;
            }
            let wait = asked.unwrap_or(pause).min(LONGEST_PAUSE);
            pause = (pause * 2).min(LONGEST_PAUSE);
            let until = self.clock.now().after(wait);
            tokio::select! {
                () = self.clock.sleep_until(until) => {}
                () = give_up.cancelled() => return false,
            }
        }
        false
    }

    async fn attempt(&self, url: &Url, body: Bytes) -> Sent {
        let request = self.client.post(url.clone()).headers(self.headers.clone()).body(body);
        let answered = tokio::time::timeout(self.timeout, request.send()).await;
        let mut response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(err)) => {
                Counts::add(&self.counts.failures, 1);
                tracing::debug!(error = %err.without_url(), "the collector was not reached");
                return Sent::Later(None);
            }
            Err(_) => {
                Counts::add(&self.counts.failures, 1);
                return Sent::Later(None);
            }
        };
        let status = response.status().as_u16();
        // The answer is read so that the connection can be used again, up to a limit.
        let mut read = 0;
        while let Ok(Some(piece)) = response.chunk().await {
            read += piece.len();
            if read > MAX_ANSWER {
                break;
            }
        }
        if (200..300).contains(&status) {
            return Sent::Taken;
        }
        Counts::add(&self.counts.failures, 1);
        tracing::debug!(status, "the collector refused");
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        match status {
            429 | 502 | 503 | 504 => Sent::Later(
                after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs),
            ),
            _ => Sent::Refused,
        }
    }
}

/// Drops the waiting spans and returns their number.
fn drain(spans: &mut mpsc::Receiver<Span>) -> usize {
    spans.close();
    let mut dropped = 0;
    while spans.try_recv().is_ok() {
        dropped += 1;
    }
    dropped
}
