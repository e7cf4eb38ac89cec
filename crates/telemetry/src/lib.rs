//! Exports the server's activity to an OpenTelemetry collector: OTLP over HTTP, in protobuf.
//!
//! The log is the source: `follow` reads events once they are durable, and
//! [`overmind_core::telemetry`] converts them to spans. `export` sends those in batches. The engine
//! calls nothing here and waits for nothing. A bounded queue connects the two parts; spans that do
//! not fit are dropped and counted in [`Counts`].
//!
//! The messages are few and stable, so `wire` encodes them by hand; the tests decode them with
//! OpenTelemetry's own package.

mod config;
mod export;
mod follow;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use overmind_core::store::Store;
use overmind_core::telemetry::Exports;
use overmind_core::time::{Clock, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::config::{Config, ConfigError, DEFAULT_SERVICE, pairs};
use self::export::Exporter;
use self::follow::Follower;

/// Maximum number of spans that wait to be sent. Further ones are dropped.
pub const QUEUE: usize = 8192;

/// Returns host and port of a provider by its configured name.
pub type Addresses = Arc<dyn Fn(&str) -> Option<(String, u16)> + Send + Sync>;

/// Counters of what happened since the start.
#[derive(Debug, Default)]
pub struct Counts {
    spans_sent: AtomicU64,
    spans_dropped: AtomicU64,
    failures: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, more: usize) {
        counter.fetch_add(more as u64, Ordering::Relaxed);
    }
}

impl Exports for Counts {
    fn spans_sent(&self) -> u64 {
        self.spans_sent.load(Ordering::Relaxed)
    }

    fn spans_dropped(&self) -> u64 {
        // Dropped spans: the queue was full, or the collector refused them or did not accept them
        // in time.
        self.spans_dropped.load(Ordering::Relaxed)
    }

    fn failures(&self) -> u64 {
        // Each failed attempt is counted.
        self.failures.load(Ordering::Relaxed)
    }
}

/// The parts that the composition root passes in.
pub struct Parts {
    pub config: Config,
    pub store: Arc<dyn Store>,
    /// Changes with each commit.
    pub commits: watch::Receiver<u64>,
    pub clock: Arc<dyn Clock>,
    pub addresses: Addresses,
    /// The global number of the last event that is not exported: earlier ones are from before the
    /// start.
    pub after: u64,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The running export, until [`Telemetry::stop`].
#[derive(Debug)]
pub struct Telemetry {
    counts: Arc<Counts>,
    stop: CancellationToken,
    following: JoinHandle<()>,
    exporting: JoinHandle<()>,
    flush: Duration,
    /// Cancelled when waiting for the rest is no longer worthwhile.
    give_up: CancellationToken,
}

impl Telemetry {
    /// Starts to follow the log and to send.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if no client can be made for this collector.
    pub fn start(parts: Parts) -> Result<Self, ConfigError> {
        let Parts { config, store, commits, clock, addresses, after } = parts;
        let counts = Arc::new(Counts::default());
        let (stop, give_up) = (CancellationToken::new(), CancellationToken::new());
        let (spans, waiting) = mpsc::channel(QUEUE);
        let (figures, latest) = watch::channel(None);
        let started: Timestamp = clock.now();
        let flush = config.flush;
        let exporter = Exporter::new(&config, Arc::clone(&clock), Arc::clone(&counts), started)?;
        let follower = Follower::new(
            &config,
            store,
            clock,
            addresses,
            after,
            follow::Out { spans, figures, counts: Arc::clone(&counts) },
        );
        let stopping = stop.clone();
        #[expect(clippy::disallowed_methods, reason = "its handle is awaited in `stop`")]
        let following = tokio::spawn(async move { follower.run(commits, stopping).await });
        let giving_up = give_up.clone();
        #[expect(clippy::disallowed_methods, reason = "its handle is awaited in `stop`")]
        let exporting = tokio::spawn(async move { exporter.run(waiting, latest, giving_up).await });
        Ok(Self { counts, stop, following, exporting, flush, give_up })
    }

    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Reads the rest of the log, sends waiting spans, and ends, all within the time limit of the
    /// configuration. Call it before the store is closed.
    pub async fn stop(self) {
        let Self { counts, stop, following, exporting, flush, give_up } = self;
        stop.cancel();
        let until = tokio::time::Instant::now() + flush;
        // The follower ends by itself and closes its end of the queue.
        let in_time = tokio::time::timeout_at(until, async {
            let _ = following.await;
        });
        if in_time.await.is_err() {
            tracing::warn!("the log was not told to its end in time");
        }
        let mut exporting = exporting;
        if tokio::time::timeout_at(until, &mut exporting).await.is_err() {
            give_up.cancel();
            let _ = exporting.await;
        }
        let dropped = counts.spans_dropped();
        if dropped > 0 {
            tracing::warn!(dropped, sent = counts.spans_sent(), "spans were dropped");
        }
    }
}
