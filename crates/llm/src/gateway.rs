//! The gateway to all configured models.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use http::Uri;
use memchr::memmem;
use overmind_core::Fut;
use overmind_core::budget::{Price, PriceRow, Prices, Quote};
use overmind_core::model::{DeltaSink, ModelFailure, ModelReply, ModelRequest, Models};
use overmind_core::relay::{Endpoint, Hop, Upstreams};

use crate::config::{Config, Format, Provider, Secret};
use crate::fail;
use crate::relay::{Lanes, POOL_IDLE, POOL_SIZE, Player, Recorder, Upstream};
use crate::route::{Route, route};
use crate::tapes::Tapes;
use crate::wire::{Call, Omit};
use crate::{call, cassette, prices};

/// Maximum number of pairs of provider and model for which refused parameters are remembered.
const MAX_LEARNED: usize = 256;
/// Maximum number of looked-up keys that are remembered for redaction, including rotated ones that
/// calls still use.
const MAX_LOOKED_UP: usize = 64;
/// Shorter keys are not searched for, in bytes.
pub(crate) const SHORTEST_KEY: usize = 6;

/// Sends each model call to the provider that the model's name selects. A `Gateway` is cheap to
/// make: the first real call makes the HTTP client, with its TLS roots and its connections.
pub struct Gateway {
    pub(crate) config: Config,
    client: OnceLock<Result<reqwest::Client, String>>,
    /// The HTTP client for relayed calls.
    upstream: OnceLock<Upstream>,
    /// The URL of each provider's endpoints, in the order of the providers and of
    /// [`Endpoint::ALL`]. Each is computed at its first use.
    targets: Vec<[OnceLock<Result<Uri, String>>; Endpoint::ALL.len()]>,
    /// Every key and secret header value; they are redacted in texts.
    secrets: Vec<Secret>,
    /// The looked-up keys, newest last; they are redacted, too.
    looked_up: Mutex<Vec<Secret>>,
    /// Parameters that a provider has refused for a model; later requests omit them.
    learned: Mutex<HashMap<(String, Format, String), BTreeSet<Omit>>>,
    pub(crate) tapes: Tapes,
    pub(crate) lanes: Lanes,
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) player: Option<Player>,
}

/// A provider that has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unkeyed {
    pub provider: String,
    /// The secret of the vault that would be its key.
    pub secret: Option<String>,
    /// Tells the user how to give it a key.
    pub what_to_do: String,
}

impl Gateway {
    pub fn new(config: Config) -> Self {
        let secrets = config
            .providers
            .iter()
            .flat_map(|provider| provider.key.iter().chain(provider.headers.iter().map(|(_, v)| v)))
            .cloned()
            .collect();
        Self {
            lanes: Lanes::new(&config.providers, config.relay),
            recorder: config.record.as_deref().map(|path| Arc::new(Recorder::new(path))),
            player: config.replay.as_deref().map(Player::new),
            targets: config.providers.iter().map(|_| Default::default()).collect(),
            config,
            client: OnceLock::new(),
            upstream: OnceLock::new(),
            secrets,
            looked_up: Mutex::default(),
            learned: Mutex::default(),
            tapes: Tapes::default(),
        }
    }

    /// Host and port of the provider of that name, if there is one.
    pub fn address(&self, provider: &str) -> Option<(String, u16)> {
        let provider = self.config.providers.iter().find(|known| known.name == provider)?;
        let url = provider.url(provider.format).ok()?;
        Some((url.host_str()?.to_owned(), url.port_or_known_default()?))
    }

    /// Names of the providers that have a key now, of their own or from the vault.
    pub fn keyed(&self) -> Vec<String> {
        let now = self.config.providers_now();
        let has = now.iter().filter(|provider| provider.key.is_some());
        has.map(|provider| provider.name.clone()).collect()
    }

    /// The providers that have no key now.
    pub fn unkeyed(&self) -> Vec<Unkeyed> {
        let now = self.config.providers_now();
        let lacks = now.iter().filter(|provider| provider.key.is_none());
        lacks
            .map(|provider| Unkeyed {
                provider: provider.name.clone(),
                secret: provider.secret.clone(),
                what_to_do: provider
                    .key_hint
                    .clone()
                    .unwrap_or_else(|| format!("set providers.{}.api_key", provider.name)),
            })
            .collect()
    }

    /// The provider that would be called for a model if those in `keyed` also had a key. `None` if
    /// there is none.
    pub fn provider_with(&self, model: &str, keyed: &BTreeSet<String>) -> Option<String> {
        let mut providers = self.config.providers_keyed();
        for provider in self.config.providers_now().iter() {
            let Some(all) = providers.iter_mut().find(|all| all.name == provider.name) else {
                continue;
            };
            if provider.key.is_none() && !keyed.contains(&provider.name) {
                all.key = None;
            }
        }
        match route(&providers, model).ok()? {
            Route::Http { provider, .. } => Some(provider.name.clone()),
            Route::Cassette { .. } => None,
        }
    }

    /// The HTTP client. It follows no redirects, so a request goes to its provider's host only. It
    /// uses no proxy, so the environment does not decide who sees the traffic.
    pub(crate) fn client(&self) -> Result<&reqwest::Client, &str> {
        let made = self.client.get_or_init(|| {
            // The server's binary has done this already; tests and other programs may not have.
            let _ = rustls::crypto::ring::default_provider().install_default();
            reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .connect_timeout(self.config.connect_timeout)
                .pool_idle_timeout(POOL_IDLE)
                .pool_max_idle_per_host(POOL_SIZE)
                .tcp_nodelay(true)
                .user_agent(concat!("overmind/", env!("CARGO_PKG_VERSION")))
                .build()
                .map_err(|err| fail::chain(&err))
        });
        made.as_ref().map_err(String::as_str)
    }

    /// The HTTP client for relayed calls.
    pub(crate) fn upstream(&self) -> &Upstream {
        self.upstream.get_or_init(|| Upstream::new(self.config.connect_timeout))
    }

    /// The URL of a provider's endpoint.
    ///
    /// # Errors
    ///
    /// Describes the error in its URL, as [`Provider::url`](crate::Provider) does.
    pub(crate) fn target(&self, provider: &str, endpoint: Endpoint) -> Result<&Uri, &str> {
        let at = self.config.providers.iter().position(|known| known.name == provider);
        let place = Endpoint::ALL.iter().position(|known| *known == endpoint);
        let (Some(at), Some(place)) = (at, place) else {
            return Err("there is no such provider");
        };
        let target = self.targets[at][place].get_or_init(|| {
            let url = self.config.providers[at].endpoint_url(endpoint)?;
            url.as_str().parse().map_err(|err| format!("its URL is not a URL: {err}"))
        });
        target.as_ref().map_err(String::as_str)
    }

    /// The URL of a provider's endpoint with the query of a call.
    pub(crate) fn addressed(
        &self,
        provider: &str,
        endpoint: Endpoint,
        query: Option<&str>,
    ) -> Result<Uri, String> {
        let target = self.target(provider, endpoint)?;
        let Some(query) = query else { return Ok(target.clone()) };
        let mut parts = target.clone().into_parts();
        let whole = format!("{}?{query}", target.path());
        let whole =
            whole.parse().map_err(|err| format!("the call's query cannot be sent: {err}"))?;
        parts.path_and_query = Some(whole);
        Uri::from_parts(parts).map_err(|err| format!("the call's query cannot be sent: {err}"))
    }

    /// The secrets that are redacted in every text.
    pub(crate) fn secrets(&self) -> Vec<Secret> {
        let looked_up = self.looked_up.lock().unwrap_or_else(PoisonError::into_inner);
        [self.secrets.as_slice(), &looked_up].concat()
    }

    /// Whether a text contains one of the keys that this gateway has used.
    pub(crate) fn has_key_in(&self, text: &[u8]) -> bool {
        let looked_up = self.looked_up.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = self.secrets.iter().chain(looked_up.iter());
        keys.map(|secret| secret.expose().as_bytes())
            .any(|key| key.len() >= SHORTEST_KEY && memmem::find(text, key).is_some())
    }

    pub(crate) fn remember(&self, key: Secret) {
        let mut looked_up = self.looked_up.lock().unwrap_or_else(PoisonError::into_inner);
        if !looked_up.contains(&key) {
            looked_up.push(key);
            let surplus = looked_up.len().saturating_sub(MAX_LOOKED_UP);
            looked_up.drain(..surplus);
        }
    }

    pub(crate) fn learned(&self, call: &Call<'_>) -> BTreeSet<Omit> {
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        learned.get(&key(call)).cloned().unwrap_or_default()
    }

    pub(crate) fn learn(&self, call: &Call<'_>, omit: Omit) {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        if learned.len() < MAX_LEARNED || learned.contains_key(&key(call)) {
            learned.entry(key(call)).or_default().insert(omit);
        }
    }

    /// Whether a chat stream of the model may be asked to report its usage.
    pub(crate) fn takes_stream_options(&self, hop: &Hop) -> bool {
        let key = (hop.provider.clone(), Format::OpenAiChat, hop.model.clone());
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        !learned.get(&key).is_some_and(|omit| omit.contains(&Omit::StreamOptions))
    }

    pub(crate) fn never_stream_options(&self, hop: &Hop) {
        let key = (hop.provider.clone(), Format::OpenAiChat, hop.model.clone());
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        if learned.len() < MAX_LEARNED || learned.contains_key(&key) {
            learned.entry(key).or_default().insert(Omit::StreamOptions);
        }
    }
}

fn key(call: &Call<'_>) -> (String, Format, String) {
    (call.provider.name.clone(), call.format, call.model.to_owned())
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.config.providers.iter().map(|p| p.name.as_str()).collect();
        f.debug_struct("Gateway").field("providers", &names).finish_non_exhaustive()
    }
}

impl Models for Gateway {
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: DeltaSink<'a>,
    ) -> Fut<'a, Result<ModelReply, ModelFailure>> {
        Box::pin(async move {
            let started = std::time::Instant::now();
            let providers = self.config.providers_now();
            let result = match route(&providers, &request.model) {
                Err(failure) => Err(failure),
                Ok(Route::Cassette { name }) => {
                    cassette::play(&self.config, &self.tapes, name, request, sink).await
                }
                Ok(Route::Http { provider, format, model }) => {
                    let (provider, key) = self.config.with_key_now(provider);
                    if let Some(key) = key {
                        self.remember(key);
                    }
                    let call = Call::new(&provider, format, model, request);
                    call::complete(self, &call, sink).await
                }
            };
            let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            let model = request.model.as_str();
            match &result {
                Ok(reply) => tracing::debug!(
                    model,
                    provider = reply.provider,
                    elapsed_ms,
                    input_tokens = reply.usage.input_tokens,
                    output_tokens = reply.usage.output_tokens,
                    "model answered"
                ),
                Err(failure) => tracing::debug!(
                    model,
                    elapsed_ms,
                    code = failure.code,
                    error = failure.message,
                    "model call failed"
                ),
            }
            result.map_err(|failure| fail::redact(failure, &self.secrets()))
        })
    }

    fn check(&self, model: &str) -> Result<(), ModelFailure> {
        match route(&self.config.providers_now(), model) {
            Ok(Route::Http { .. }) => Ok(()),
            Ok(Route::Cassette { name }) => cassette::check(&self.config, name),
            Err(failure) => Err(failure),
        }
        .map_err(|failure| fail::redact(failure, &self.secrets()))
    }

    fn upstreams(&self) -> Option<&dyn Upstreams> {
        Some(self)
    }
}

impl Gateway {
    /// The quote of the provider that would be called among `providers`; `None` if there is none.
    fn quoted(&self, providers: &[Provider], model: &str) -> Option<Quote> {
        Some(match route(providers, model).ok()? {
            // An answer from a file costs nothing.
            Route::Cassette { name } => Quote {
                provider: "scripted".to_owned(),
                model: name.to_owned(),
                price: Some(Price::FREE),
            },
            Route::Http { provider, format: _, model } => Quote {
                provider: provider.name.clone(),
                model: model.to_owned(),
                price: prices::price(&self.config.prices, &provider.name, model),
            },
        })
    }
}

impl Prices for Gateway {
    fn quote(&self, model: &str) -> Quote {
        // If a key is missing, the call fails before anything is sent, and that error names the
        // key. The price of the model is known anyway.
        self.quoted(&self.config.providers_now(), model)
            .or_else(|| self.quoted(&self.config.providers_keyed(), model))
            .unwrap_or_else(|| Quote {
                provider: String::new(),
                model: model.to_owned(),
                price: None,
            })
    }

    fn price(&self, provider: &str, model: &str) -> Option<Price> {
        prices::price(&self.config.prices, provider, model)
    }

    fn table(&self) -> Vec<PriceRow> {
        prices::table(&self.config.prices, &self.config.prices_from)
    }
}

#[cfg(test)]
mod tests {
    use overmind_core::vault::Secrets;

    use super::*;

    /// A vault with one key.
    #[derive(Debug)]
    struct Anthropic;

    impl Secrets for Anthropic {
        fn get(&self, name: &str) -> Option<overmind_core::vault::Secret> {
            (name == "anthropic_api_key")
                .then(|| overmind_core::vault::Secret::new("sk-ant-a-key-of-the-vault").unwrap())
        }
    }

    #[test]
    fn a_price_is_known_whether_the_key_is_in_the_environment_in_the_vault_or_missing() {
        let keyed = |names: &[&str]| {
            let mut config = Config::default();
            for provider in &mut config.providers {
                if names.contains(&provider.name.as_str()) {
                    provider.key = crate::config::Secret::new("a-key");
                }
            }
            config
        };
        let vault = || Config { secrets: Some(Arc::new(Anthropic)), ..Config::default() };
        let of = |config: Config, model: &str| {
            let Quote { provider, model, price } = Gateway::new(config).quote(model);
            (provider, model, price.is_some())
        };
        let known = ("anthropic".to_owned(), "claude-sonnet-5-5".to_owned(), true);
        for model in
            ["claude-sonnet-5-5", "anthropic:claude-sonnet-5-5", "anthropic/claude-sonnet-5-5"]
        {
            assert_eq!(of(keyed(&["anthropic"]), model), known, "{model}, in the environment");
            assert_eq!(of(vault(), model), known, "{model}, in the vault");
        }
        // The error then names the missing key, and not the unknown price.
        assert_eq!(of(Config::default(), "claude-sonnet-5-5"), known);
        assert!(!of(vault(), "unheard-of").2);
        // The server for all models without a key is called, and not the provider of that name.
        let custom = Config::default().with_base_url("http://127.0.0.1:1", None);
        assert_eq!(of(custom, "claude-sonnet-5-5").0, "custom");
    }

    #[test]
    fn a_gateway_has_no_http_client_until_a_call_needs_one() {
        let gateway = Gateway::new(Config::default().with_base_url("http://127.0.0.1:1", None));
        assert_eq!(gateway.check("m"), Ok(()));
        assert!(gateway.client.get().is_none());
        assert!(gateway.client().is_ok());
        assert!(gateway.client.get().is_some());
    }
}
