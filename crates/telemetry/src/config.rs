//! The configuration: where to send, how to describe the service, how often.

use std::fmt;
use std::time::Duration;

use reqwest::Url;

/// The default name of the service.
pub const DEFAULT_SERVICE: &str = "overmind";

#[derive(Clone)]
pub struct Config {
    /// Whole URLs of the endpoints for spans and metrics.
    pub traces: Url,
    pub metrics: Url,
    /// Headers of each request; one is often a key.
    pub headers: Vec<(String, String)>,
    /// Attributes of all spans and metrics: `service.name` and others.
    pub resource: Vec<(String, String)>,
    /// Whether content such as prompts and answers is exported.
    pub content: bool,
    /// How long spans are collected before they are sent.
    pub every: Duration,
    /// How often metrics are sent.
    pub metrics_every: Duration,
    /// Longest wait for one answer of the collector.
    pub timeout: Duration,
    /// Longest wait for the last export when the server ends.
    pub flush: Duration,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The headers are omitted, because they contain keys.
        f.debug_struct("Config")
            .field("traces", &self.traces.as_str())
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// Why telemetry cannot start. It never contains a header's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub(crate) String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// A collector with its base URL, as in `OTEL_EXPORTER_OTLP_ENDPOINT`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the text is no HTTP URL.
    pub fn new(endpoint: &str) -> Result<Self, ConfigError> {
        let wrong =
            |why: &str| ConfigError(format!("`{endpoint}` is not a URL of a collector: {why}"));
        let base = Url::parse(endpoint).map_err(|err| wrong(&err.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(wrong("it begins with http:// or https:// and names a host"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong("a key belongs into OTEL_EXPORTER_OTLP_HEADERS"));
        }
        let below = |path: &str| {
            let mut url = base.clone();
            url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
            url
        };
        Ok(Self {
            traces: below("/v1/traces"),
            metrics: below("/v1/metrics"),
            headers: Vec::new(),
            resource: vec![("service.name".to_owned(), DEFAULT_SERVICE.to_owned())],
            content: false,
            every: Duration::from_secs(5),
            metrics_every: Duration::from_secs(60),
            timeout: Duration::from_secs(10),
            flush: Duration::from_secs(3),
        })
    }

    /// Sets an attribute of the service, and replaces an earlier value.
    pub fn describe(&mut self, name: &str, value: &str) {
        self.resource.retain(|(known, _)| known != name);
        self.resource.push((name.to_owned(), value.to_owned()));
    }
}

/// Parses `a=b,c=d` with percent-encoding, the format of `OTEL_RESOURCE_ATTRIBUTES` and
/// `OTEL_EXPORTER_OTLP_HEADERS`.
///
/// # Errors
///
/// [`ConfigError`] names the position but no value.
pub fn pairs(text: &str) -> Result<Vec<(String, String)>, ConfigError> {
    let mut all = Vec::new();
    for (n, pair) in text.split(',').map(str::trim).enumerate().filter(|(_, p)| !p.is_empty()) {
        let place = n + 1;
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| ConfigError(format!("entry {place} is not NAME=VALUE")))?;
        let name = name.trim();
        if name.is_empty() {
            return Err(ConfigError(format!("entry {place} has no name")));
        }
        let value = decoded(value.trim())
            .ok_or_else(|| ConfigError(format!("the value of `{name}` has a broken %XX")))?;
        all.push((name.to_owned(), value));
    }
    Ok(all)
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_base_url_gets_the_paths_of_both_signals() {
        for (base, traces) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            ("https://c.example/otlp/", "https://c.example/otlp/v1/traces"),
        ] {
            let config = Config::new(base).unwrap();
            assert_eq!(config.traces.as_str(), traces);
            assert!(config.metrics.as_str().ends_with("/v1/metrics"));
        }
        for bad in ["", "127.0.0.1:4318", "ftp://x", "http://", "http://u:p@c.example"] {
            assert!(Config::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pairs_are_parsed_as_the_specification_says() {
        let read = pairs(" a=b, authorization = Bearer%20x%3D ,,c=").unwrap();
        let wanted = [("a", "b"), ("authorization", "Bearer x="), ("c", "")];
        assert_eq!(read, wanted.map(|(a, b)| (a.to_owned(), b.to_owned())));
        for (bad, says) in [("a=b,c", "entry 2"), ("=secret", "no name"), ("k=%zz", "`k`")] {
            let err = pairs(bad).unwrap_err().to_string();
            assert!(err.contains(says) && !err.contains("secret"), "{err}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = pairs(&text);
            let _ = Config::new(&text);
        }
    }
}
