//! Exports telemetry to an OpenTelemetry collector, if one is configured.

use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::store::{Page, Store, StoreError};
use overmind_core::time::Clock;
use overmind_engine::Engine;
use overmind_llm::Gateway;
use overmind_telemetry::{Parts, Telemetry};

use super::StartError;
use crate::config::Config;

/// The newest event at the start.
pub(super) async fn head(store: &dyn Store) -> Result<u64, StoreError> {
    let newest = store.events_newest(None, Page { limit: 1, after: None }).await?;
    Ok(newest.first().map_or(0, |event| event.global))
}

/// Starts to export events after the event `after`.
pub(super) fn start(
    config: &Config,
    store: &Arc<overmind_store::Sqlite>,
    engine: &Engine,
    clock: &Arc<dyn Clock>,
    after: u64,
    models: Arc<Gateway>,
) -> Result<Option<Telemetry>, StartError> {
    let Some(mut collector) = config.telemetry.clone() else { return Ok(None) };
    // Two servers on one machine get different ids; a restarted server keeps its id.
    let data = blake3::hash(config.data.path().as_os_str().as_encoded_bytes()).to_hex();
    if !collector.resource.iter().any(|(name, _)| name == "service.instance.id") {
        collector.describe("service.instance.id", &data[..32]);
    }
    Ok(Some(Telemetry::start(Parts {
        config: collector,
        store: Arc::clone(store) as Arc<dyn Store>,
        commits: engine.log_watch(),
        clock: Arc::clone(clock),
        addresses: Arc::new(move |provider| models.address(provider)),
        after,
    })?))
}

/// Exports the rest and ends, if that was not done yet.
pub(super) async fn stop(telemetry: &Mutex<Option<Telemetry>>) {
    let taken = telemetry.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(telemetry) = taken {
        telemetry.stop().await;
    }
}
