//! The settings that the composition root gives the server. Nothing here is read from the environment.

use std::sync::Arc;
use std::time::Duration;

use overmind_core::telemetry::Exports;

/// Bounds and names of the HTTP surface. Every bound is finite on purpose.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Names by which clients may call this server, beside the loopback names and the address
    /// that they reached: `overmind.example.org`. Without port.
    pub hosts: Vec<String>,
    /// Concurrent connections, on each listener. Further ones get 503 and are closed.
    pub max_connections: usize,
    /// The share of one client address or one sandbox. Not counted on the unix socket.
    pub max_connections_per_source: usize,
    /// From the first byte (or the last response) to the end of the request's headers.
    pub header_timeout: Duration,
    /// From the headers to the end of the body.
    pub body_timeout: Duration,
    /// How long a handler may work before the client gets 504. What it began goes on.
    pub request_timeout: Duration,
    /// The same for requests that are long by nature: audit, backup, prune, tool calls.
    pub long_request_timeout: Duration,
    /// How long a client may leave what we send unread before its connection is closed.
    pub write_timeout: Duration,
    /// Largest body in bytes.
    pub max_body: usize,
    /// Largest body in bytes of memory items and tool calls.
    pub max_large_body: usize,
    /// Requests per caller; `None` is unlimited. Not counted on the Unix socket.
    pub caller_rate: Option<RateLimit>,
    /// Requests per client address, before authentication. Not counted on the Unix socket.
    pub address_rate: Option<RateLimit>,
    /// Between two signs of life on a silent event stream.
    pub keepalive: Duration,
    /// Attached terminals of all runs together. They are no longer HTTP connections, and count
    /// among `max_connections` only until they begin.
    pub max_viewers: usize,
    pub max_viewers_per_run: usize,
    /// The time that `serve` waits for open requests after it was told to stop.
    pub drain_grace: Duration,
    /// Which provider keys are set; shown, masked, under `/api/settings`.
    pub provider_keys: Vec<ProviderKey>,
    /// The program's version.
    pub version: &'static str,
    /// The state of the export to an OpenTelemetry collector, if there is one.
    pub exports: Option<Arc<dyn Exports>>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            max_connections: 4096,
            max_connections_per_source: 2048,
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(30),
            long_request_timeout: Duration::from_secs(3600),
            write_timeout: Duration::from_secs(60),
            max_body: 1 << 20,
            max_large_body: 2 << 20,
            caller_rate: Some(RateLimit { per_second: 2000, burst: 4000 }),
            address_rate: Some(RateLimit { per_second: 2000, burst: 4000 }),
            keepalive: Duration::from_secs(15),
            max_viewers: 256,
            max_viewers_per_run: 16,
            drain_grace: Duration::from_secs(30),
            provider_keys: Vec::new(),
            version: env!("CARGO_PKG_VERSION"),
            exports: None,
        }
    }
}

/// A token bucket: `burst` requests at once, refilled at `per_second`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// At least 1.
    pub per_second: u32,
    /// At least 1.
    pub burst: u32,
}

/// Whether a model provider's key is set. Holds the mask, never the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderKey {
    /// `openai`, `deepseek`, `anthropic`: served as `/api/settings/<provider>-key`.
    pub provider: &'static str,
    masked: String,
    source: String,
}

impl ProviderKey {
    /// `source` says where the key came from, for example `environment: OPENAI_API_KEY`.
    pub fn new(provider: &'static str, key: Option<&str>, source: &str) -> Self {
        let key = key.unwrap_or_default();
        let source = if key.is_empty() { String::new() } else { source.to_owned() };
        Self { provider, masked: mask(key), source }
    }

    pub(crate) fn view(&self) -> overmind_api::ProviderKeyView {
        overmind_api::ProviderKeyView {
            ok: true,
            configured: !self.masked.is_empty(),
            masked: self.masked.clone(),
            source: self.source.clone(),
        }
    }
}

/// First four characters, `...`, last four; as many stars as it has when eight or fewer; nothing
/// for nothing.
pub fn mask(secret: &str) -> String {
    let chars: Vec<char> = secret.chars().collect();
    if chars.len() <= 8 {
        return "*".repeat(chars.len());
    }
    let (head, tail) = (&chars[..4], &chars[chars.len() - 4..]);
    head.iter().chain(&['.', '.', '.']).chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_masked_except_its_ends_and_a_short_one_completely() {
        for (secret, masked) in [
            ("", ""),
            ("abc", "***"),
            ("12345678", "********"),
            ("123456789", "1234...6789"),
            ("sk-proj-abcdefghij", "sk-p...ghij"),
            ("äöüßäöüßä", "äöüß...öüßä"),
        ] {
            assert_eq!(mask(secret), masked);
        }
    }

    #[test]
    fn a_provider_key_never_prints_the_key() {
        let key = ProviderKey::new("openai", Some("sk-proj-abcdefghij"), "environment: KEY");
        assert!(!format!("{key:?}").contains("abcdefghij"));
        assert!(key.view().configured);
        let unset = ProviderKey::new("openai", None, "environment: KEY").view();
        assert_eq!(
            (unset.configured, unset.masked.as_str(), unset.source.as_str()),
            (false, "", "")
        );
    }
}
