//! Reads `[telemetry]`, and OpenTelemetry's own variables.

use std::time::Duration;

use overmind_telemetry::{Config, ConfigError as Wrong, pairs};

use super::layers::Layers;
use super::{ConfigError, key};

/// The telemetry settings; `None` if nothing is exported.
pub(super) fn declared(layers: &Layers) -> Result<Option<Config>, ConfigError> {
    let text = |key: &str| layers.text_of(key).filter(|text| !text.is_empty());
    let Some(endpoint) = text(key::OTLP).filter(|_| text(key::OTEL_DISABLED) != Some("true"))
    else {
        return Ok(None);
    };
    let wrong = |setting: &str| {
        let setting = setting.to_owned();
        move |why: Wrong| ConfigError::Together {
            message: format!("`{setting}`: {why}"),
            hint: "docs/telemetry.md has examples".into(),
        }
    };
    let mut config = Config::new(endpoint).map_err(wrong(key::OTLP))?;
    if let Some(text) = text(key::OTLP_HEADERS) {
        config.headers = pairs(text).map_err(wrong(key::OTLP_HEADERS))?;
    }
    config.describe("service.version", env!("CARGO_PKG_VERSION"));
    if let Some(text) = text(key::OTEL_RESOURCE) {
        for (name, value) in pairs(text).map_err(wrong(key::OTEL_RESOURCE))? {
            config.describe(&name, &value);
        }
    }
    // This variable takes precedence over the same attribute in other variables.
    if let Some(name) = text(key::OTEL_SERVICE_NAME) {
        config.describe("service.name", name);
    }
    config.content = text(key::OTEL_CONTENT).is_some_and(|how| {
        ["true", "span_only", "span_and_event"].iter().any(|on| how.eq_ignore_ascii_case(on))
    });
    let millis = |key: &str| layers.whole_of(key).map(Duration::from_millis);
    config.every = millis(key::OTEL_SPANS_EVERY).unwrap_or(config.every);
    config.metrics_every = millis(key::OTEL_METRICS_EVERY).unwrap_or(config.metrics_every);
    Ok(Some(config))
}
