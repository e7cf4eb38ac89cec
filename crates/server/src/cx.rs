//! The context of every handler.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use overmind_core::ids::ColonyId;
use overmind_engine::{Caller, Engine, EngineError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::bodies::Bodies;
use crate::config::ServerConfig;
use crate::fault::Fault;
use crate::front::Source;
use crate::host::HostRules;
use crate::links::Links;
use crate::metrics::Metrics;
use crate::rate::Limiter;
use crate::viewer::Viewers;
use overmind_api::ProblemKind;

/// Bytes of request bodies in memory at once, by [`Bodies`].
const BODIES: usize = 512 << 20;
/// Those of one caller, or of one place.
const OF_ONE: usize = 64 << 20;
/// The same for forms, which are read before anybody proves who they are.
const FORMS: usize = 16 << 20;
const FORMS_OF_ONE: usize = 4 << 20;

/// The context of the whole server; one per [`crate::Server`].
#[derive(Debug)]
pub(crate) struct Cx {
    pub(crate) engine: Engine,
    pub(crate) config: ServerConfig,
    pub(crate) hosts: HostRules,
    pub(crate) metrics: Metrics,
    /// Everything that a drain waits for: connections, and work that outlives them.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the server is told to stop. Open streams end then.
    pub(crate) stop: CancellationToken,
    pub(crate) viewers: Arc<Viewers>,
    /// Bodies of authenticated requests, and of forms.
    pub(crate) bodies: Bodies,
    pub(crate) forms: Bodies,
    /// Links that sign in to the dashboard once.
    pub(crate) links: Links,
    by_source: Option<Limiter<Source>>,
    by_caller: Option<Limiter<String>>,
}

impl Cx {
    pub(crate) fn new(engine: Engine, config: ServerConfig) -> Self {
        Self {
            hosts: HostRules::new(&config.hosts),
            metrics: Metrics::new(engine.clone(), config.exports.clone()),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            viewers: Arc::default(),
            bodies: Bodies::new(BODIES, OF_ONE),
            forms: Bodies::new(FORMS, FORMS_OF_ONE),
            links: Links::default(),
            by_source: config.address_rate.map(Limiter::new),
            by_caller: config.caller_rate.map(Limiter::new),
            engine,
            config,
        }
    }

    /// The name of a colony, unless it is `default`.
    pub(crate) fn colony_name(&self, colony: ColonyId) -> Option<String> {
        (colony != ColonyId::DEFAULT).then(|| self.engine.colony_name(colony))
    }

    /// Counts one request of an address, or of a sandbox.
    pub(crate) fn admit_source(&self, source: Source) -> Result<(), Fault> {
        let Some(limiter) = &self.by_source else { return Ok(()) };
        let who = match source {
            Source::Address(_) => "this address",
            Source::Sandbox(_) => "this sandbox",
        };
        self.admitted(limiter.check(source, Instant::now()), who)
    }

    /// Counts one request of a caller.
    pub(crate) fn admit_caller(&self, caller: &Caller) -> Result<(), Fault> {
        let Some(limiter) = &self.by_caller else { return Ok(()) };
        self.admitted(limiter.check(caller.name.clone(), Instant::now()), "this caller")
    }

    fn admitted(&self, verdict: Result<(), std::time::Duration>, who: &str) -> Result<(), Fault> {
        verdict.map_err(|wait| {
            self.metrics.rate_limited();
            Fault::new(ProblemKind::RateLimited, format!("too many requests from {who}"))
                .retry_after(wait)
        })
    }

    /// Runs `work` to its end even when the client goes away: hyper drops the handler's future
    /// then, and a change cut in half is worse than a late one. A drain waits for it.
    pub(crate) async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
    ) -> Result<T, Fault> {
        match self.tasks.spawn(work.in_current_span()).await {
            Ok(done) => done.map_err(Fault::from),
            Err(err) => Err(Fault::internal("a request's work panicked", &err)),
        }
    }
}
