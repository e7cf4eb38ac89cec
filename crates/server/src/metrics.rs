//! Figures of the HTTP surface and, on each scrape, of the engine.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use overmind_core::telemetry::Exports;
use overmind_engine::Engine;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Labels have few values: methods are a closed set and routes are templates, so that no client
/// can make the process remember what it sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: &'static str,
    route: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRoute {
    route: &'static str,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Request, Counter>,
    seconds: Family<OfRoute, Histogram, fn() -> Histogram>,
    connections: Gauge,
    refused: Counter,
    broken: Counter,
    limited: Counter,
    streams: Gauge,
    viewers: Gauge,
}

/// Counts one thing as open until it is dropped.
#[derive(Debug)]
pub(crate) struct Open(Gauge);

impl Open {
    fn one_more(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn new(engine: Engine, exports: Option<Arc<dyn Exports>>) -> Self {
        let new_histogram: fn() -> Histogram =
            || Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 30.0]);
        let metrics = Self {
            registry: Registry::with_prefix("overmind"),
            requests: Family::default(),
            seconds: Family::new_with_constructor(new_histogram),
            connections: Gauge::default(),
            refused: Counter::default(),
            broken: Counter::default(),
            limited: Counter::default(),
            streams: Gauge::default(),
            viewers: Gauge::default(),
        };
        metrics.registered(engine, exports)
    }

    fn registered(mut self, engine: Engine, exports: Option<Arc<dyn Exports>>) -> Self {
        let all = &mut self.registry;
        all.register("http_requests", "Requests answered", self.requests.clone());
        let help = "Seconds until a response began, by route";
        all.register_with_unit("http_request", help, Unit::Seconds, self.seconds.clone());
        all.register("http_connections", "Connections open now", self.connections.clone());
        let help = "Connections refused because too many were open";
        all.register("http_connections_refused", help, self.refused.clone());
        let help = "Connections closed because what came was not HTTP, or broke off";
        all.register("http_connections_broken", help, self.broken.clone());
        all.register("http_rate_limited", "Requests answered 429", self.limited.clone());
        all.register("http_streams", "Event streams open now", self.streams.clone());
        all.register("http_viewers", "Terminals attached now", self.viewers.clone());
        all.register_collector(Box::new(OfEngine(engine)));
        if let Some(exports) = exports {
            all.register_collector(Box::new(OfExports(exports)));
        }
        self
    }

    pub(crate) fn answered(
        &self,
        method: &Method,
        route: &'static str,
        status: u16,
        took: Duration,
    ) {
        self.seconds.get_or_create(&OfRoute { route }).observe(took.as_secs_f64());
        self.requests.get_or_create(&Request { method: known(method), route, status }).inc();
    }

    pub(crate) fn connection(&self) -> Open {
        Open::one_more(&self.connections)
    }

    pub(crate) fn stream(&self) -> Open {
        Open::one_more(&self.streams)
    }

    pub(crate) fn viewer(&self) -> Open {
        Open::one_more(&self.viewers)
    }

    pub(crate) fn connection_refused(&self) {
        self.refused.inc();
    }

    pub(crate) fn connection_broken(&self) {
        self.broken.inc();
    }

    pub(crate) fn rate_limited(&self) {
        self.limited.inc();
    }

    /// Everything in the OpenMetrics text format.
    pub(crate) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// The counters of the export to an OpenTelemetry collector.
#[derive(Debug)]
struct OfExports(Arc<dyn Exports>);

impl Collector for OfExports {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for (name, help, count) in [
            ("otlp_spans_sent", "Spans that the collector took", self.0.spans_sent()),
            ("otlp_spans_dropped", "Spans that nobody will see", self.0.spans_dropped()),
            ("otlp_failures", "Requests to the collector that failed", self.0.failures()),
        ] {
            let metric = ConstCounter::new(count);
            let to = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode(to)?;
        }
        Ok(())
    }
}

/// The same in Prometheus' text format 0.0.4, where a counter's family is called as its sample is.
pub(crate) fn classic(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 256);
    let mut help: Option<&str> = None;
    for line in text.lines() {
        if let Some(said) = line.strip_prefix("# HELP ") {
            help = Some(said);
            continue;
        }
        let Some(family) = line.strip_prefix("# TYPE ") else {
            if line != "# EOF" && !line.starts_with("# UNIT ") {
                out.push_str(line);
                out.push('\n');
            }
            continue;
        };
        let (name, kind) = family.split_once(' ').unwrap_or((family, "untyped"));
        let suffix = if kind == "counter" { "_total" } else { "" };
        if let Some((_, said)) = help.take().and_then(|said| said.split_once(' ')) {
            out.push_str(&format!("# HELP {name}{suffix} {said}\n"));
        }
        out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
    }
    out
}

fn known(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PATCH" => "PATCH",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

/// The engine's own figures. A name that ends in `_total` is a counter, any other a gauge.
struct OfEngine(Engine);

impl std::fmt::Debug for OfEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OfEngine")
    }
}

impl Collector for OfEngine {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, value) in self.0.metrics() {
            // The registry puts the prefix in front of every name.
            let name = name.strip_prefix("overmind_").unwrap_or(name);
            match name.strip_suffix("_total") {
                Some(name) => {
                    let line = to.encode_descriptor(name, help, None, MetricType::Counter)?;
                    ConstCounter::new(value).encode(line)?;
                }
                None => {
                    let line = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
                    let value = i64::try_from(value).unwrap_or(i64::MAX);
                    ConstGauge::new(value).encode(line)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_has_the_sample_name_in_the_older_format() {
        let open = "# HELP a_b Things.\n# TYPE a_b counter\n# UNIT a_b s\na_b_total{x=\"1\"} 2\n\
                    # HELP g Now.\n# TYPE g gauge\ng 1\n# EOF\n";
        let wanted = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total{x=\"1\"} 2\n\
                      # HELP g Now.\n# TYPE g gauge\ng 1\n";
        assert_eq!(classic(open), wanted);
    }
}
