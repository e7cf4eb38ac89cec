//! The configuration of providers: their URLs, keys, formats and limits.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::relay::Endpoint;
use overmind_core::vault::{Secrets, Use};

use crate::cassette::Cassette;
use crate::prices::Price;
use crate::retry::Retry;

/// A text that `Debug` never shows. Clones share it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Drops white space around the text, because keys are pasted. `None` if nothing is left.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.into()))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// `POST …/responses`, without state at the provider.
    OpenAiResponses,
    /// `POST …/chat/completions`.
    OpenAiChat,
    /// `POST …/v1/messages`.
    AnthropicMessages,
}

impl Format {
    /// The name as it follows the provider's in `ModelReply::provider`: `openai/responses`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAiResponses => "responses",
            Self::OpenAiChat => "chat",
            Self::AnthropicMessages => "messages",
        }
    }
}

/// The key of a provider at this moment.
#[derive(Debug)]
pub(crate) enum Now<'a> {
    /// The provider's own key, if it has one.
    Own(Option<&'a Secret>),
    LookedUp(Secret),
}

impl Now<'_> {
    pub(crate) fn key(&self) -> Option<&Secret> {
        match self {
            Self::Own(key) => *key,
            Self::LookedUp(key) => Some(key),
        }
    }
}

/// The treatment of model names that match none of a provider's patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The provider refuses all other names.
    Refuse,
    /// The provider takes names that no provider claims.
    TakeUnclaimed,
    /// The provider also takes names whose own provider has no key: it can serve any model.
    TakeAll,
}

/// One provider: a base URL and everything that belongs to it.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Unique; the part before the colon in `provider:model`.
    pub name: String,
    /// The format for models whose name selects none.
    pub format: Format,
    /// All formats that the provider speaks.
    pub speaks: Vec<Format>,
    /// For example `https://api.openai.com/v1`. `/v1` is added where the path is empty. The key
    /// and the headers go to this URL and nowhere else.
    pub base_url: String,
    /// Whole URLs for single formats, used in place of the base URL and the format's path.
    pub endpoints: BTreeMap<Format, String>,
    pub key: Option<Secret>,
    /// The name of a secret of [`Config::secrets`]. While that secret exists, it is the key.
    pub secret: Option<String>,
    /// Tells the user what to set if the key is missing; `None` when no key is needed.
    pub key_hint: Option<String>,
    /// Headers sent with each request. Their values are treated as secrets.
    pub headers: Vec<(String, Secret)>,
    /// Names of the provider's models; a name that ends in `*` is a prefix. ASCII case does not
    /// matter.
    pub models: Vec<String>,
    pub rest: Rest,
    /// Replaces the request's `idle_timeout`.
    pub idle_timeout: Option<Duration>,
    /// Replaces `idle_timeout` for reasoning models, which may be silent for long.
    pub reasoning_idle_timeout: Option<Duration>,
    /// The effort for reasoning models when the request names none.
    pub reasoning_effort: Option<String>,
    /// `enabled` or `disabled`: the `thinking` switch of DeepSeek; not sent when absent.
    pub thinking: Option<String>,
    /// Maximum number of relayed calls at once; `None` takes the limit of [`RelayLimits`].
    pub max_concurrent: Option<usize>,
    /// Maximum number of relayed calls in a minute; `None` is unlimited.
    pub max_per_minute: Option<u32>,
}

/// Limits of the calls that are relayed for other programs; see [`overmind_core::relay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayLimits {
    /// Maximum number of calls at once, for each provider that has no limit of its own.
    pub max_concurrent: usize,
    /// Maximum number of calls that wait for a free slot, for each provider; further calls are
    /// refused and may retry later.
    pub max_queued: usize,
    /// The longest wait for a free slot.
    pub queue_wait: Duration,
    /// Longest silence in a stream.
    pub idle: Duration,
    /// The longest wait for the head of an answer.
    pub head: Duration,
    /// The longest duration of a call.
    pub total: Duration,
    /// Maximum number of attempts at one provider, the first one included.
    pub attempts: u32,
    /// How long a model that failed is skipped if there is another choice and its provider names no
    /// time.
    pub cool_down: Duration,
    /// The upper bound of the time for which a model is skipped.
    pub max_cool_down: Duration,
    /// Bytes of each request and answer that are stored with the record of a call. The default 0
    /// stores none.
    pub capture: usize,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self {
            max_concurrent: 2048,
            max_queued: 1024,
            queue_wait: Duration::from_secs(30),
            idle: Duration::from_secs(300),
            head: Duration::from_secs(600),
            total: Duration::from_secs(3600),
            attempts: 2,
            cool_down: Duration::from_secs(10),
            max_cool_down: Duration::from_secs(300),
            capture: 0,
        }
    }
}

impl Provider {
    /// Makes a provider without models. The fields are public, so that callers can fill them in.
    pub fn new(name: &str, format: Format, base_url: &str) -> Self {
        Self {
            name: name.to_owned(),
            format,
            speaks: vec![format],
            base_url: base_url.to_owned(),
            endpoints: BTreeMap::new(),
            key: None,
            secret: None,
            key_hint: None,
            headers: Vec::new(),
            models: Vec::new(),
            rest: Rest::Refuse,
            idle_timeout: None,
            reasoning_idle_timeout: None,
            reasoning_effort: None,
            thinking: None,
            max_concurrent: None,
            max_per_minute: None,
        }
    }

    /// OpenAI, called through the Responses API unless a model is named `openai-chat:…`. If no
    /// other server is configured, it also gets names that no provider claims.
    pub fn openai(key: Option<Secret>) -> Self {
        Self {
            speaks: vec![Format::OpenAiResponses, Format::OpenAiChat],
            key,
            secret: Some("openai_api_key".to_owned()),
            key_hint: Some(hint("OPENAI_API_KEY")),
            models: patterns(&[
                "gpt-*",
                "o1",
                "o1-*",
                "o3",
                "o3-*",
                "o4-*",
                "chatgpt-*",
                "codex-*",
            ]),
            rest: Rest::TakeUnclaimed,
            ..Self::new("openai", Format::OpenAiResponses, "https://api.openai.com/v1")
        }
    }

    pub fn anthropic(key: Option<Secret>) -> Self {
        Self {
            key,
            secret: Some("anthropic_api_key".to_owned()),
            key_hint: Some(hint("ANTHROPIC_API_KEY")),
            models: patterns(&["claude-*"]),
            ..Self::new("anthropic", Format::AnthropicMessages, "https://api.anthropic.com")
        }
    }

    pub fn deepseek(key: Option<Secret>) -> Self {
        Self {
            key,
            secret: Some("deepseek_api_key".to_owned()),
            key_hint: Some(hint("DEEPSEEK_API_KEY")),
            models: patterns(&["deepseek*"]),
            ..Self::new("deepseek", Format::OpenAiChat, "https://api.deepseek.com")
        }
    }

    /// A provider for any server that speaks one of the formats: Ollama, vLLM, llama-server, a
    /// proxy. It is named `custom` and gets every model whose own provider has no key.
    pub fn custom(base_url: &str, key: Option<Secret>) -> Self {
        Self {
            speaks: vec![Format::OpenAiChat, Format::OpenAiResponses, Format::AnthropicMessages],
            key,
            secret: Some("custom_api_key".to_owned()),
            rest: Rest::TakeAll,
            ..Self::new("custom", Format::OpenAiChat, base_url)
        }
    }

    /// The URL of `format`'s endpoint.
    ///
    /// # Errors
    ///
    /// Describes the error in the configured URL. The text omits the URL itself if it contains a
    /// password.
    pub(crate) fn url(&self, format: Format) -> Result<reqwest::Url, String> {
        if let Some(whole) = self.endpoints.get(&format) {
            return sound(whole);
        }
        if let Some(beside) = self.beside(path_of(format)) {
            return beside;
        }
        match format {
            Format::OpenAiResponses => self.below("responses"),
            Format::OpenAiChat => self.below("chat/completions"),
            Format::AnthropicMessages => self.below_anthropic("messages"),
        }
    }

    /// The URL of the endpoint for relayed calls.
    ///
    /// # Errors
    ///
    /// Fails as [`url`](Self::url) does.
    pub(crate) fn endpoint_url(&self, endpoint: Endpoint) -> Result<reqwest::Url, String> {
        match endpoint {
            Endpoint::Chat => self.url(Format::OpenAiChat),
            Endpoint::Responses => self.url(Format::OpenAiResponses),
            Endpoint::Messages => self.url(Format::AnthropicMessages),
            Endpoint::Embeddings => {
                let path = Endpoint::Embeddings.path();
                self.beside(path).unwrap_or_else(|| self.below(path))
            }
            Endpoint::CountTokens => {
                let path = Endpoint::CountTokens.path();
                self.beside(path).unwrap_or_else(|| self.below_anthropic(path))
            }
        }
    }

    /// The URL of another endpoint if whole URLs are configured: `path` on their server, which must
    /// be the same for all. A user who sets one URL wants no request or key sent to the
    /// provider's default server. `None` if no whole URL is configured.
    fn beside(&self, path: &str) -> Option<Result<reqwest::Url, String>> {
        let mut bases = self.endpoints.iter().map(|(format, whole)| {
            let url = sound(whole)?;
            let at = url.path().trim_end_matches('/');
            let base = at.strip_suffix(path_of(*format)).and_then(|at| at.strip_suffix('/'));
            let Some(base) = base.map(ToOwned::to_owned) else {
                return Err(format!(
                    "its configured URL `{url}` does not end in `/{}`, so nothing says where its \
                     `/{path}` is",
                    path_of(*format)
                ));
            };
            let mut url = url;
            url.set_path(&format!("{base}/{path}"));
            Ok(url)
        });
        let first = bases.next()?;
        let Ok(first) = first else { return Some(first) };
        for other in bases {
            match other {
                Ok(other) if other == first => {}
                Ok(_) => {
                    let message = format!(
                        "its configured URLs differ, so nothing says where its `/{path}` is"
                    );
                    return Some(Err(message));
                }
                Err(why) => return Some(Err(why)),
            }
        }
        Some(Ok(first))
    }

    fn below(&self, last: &str) -> Result<reqwest::Url, String> {
        let mut url = sound(&self.base_url)?;
        let base = url.path().trim_end_matches('/').to_owned();
        let base = if base.is_empty() { "/v1" } else { base.as_str() };
        url.set_path(&format!("{base}/{last}"));
        Ok(url)
    }

    fn below_anthropic(&self, last: &str) -> Result<reqwest::Url, String> {
        let mut url = sound(&self.base_url)?;
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{}/v1/{last}", base.strip_suffix("/v1").unwrap_or(&base)));
        Ok(url)
    }

    /// Whether one of [`models`](Self::models) names `model`.
    pub(crate) fn claims(&self, model: &str) -> bool {
        self.models.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => {
                let begins = model.as_bytes().get(..start.len());
                begins.is_some_and(|begins| begins.eq_ignore_ascii_case(start.as_bytes()))
            }
            None => model.eq_ignore_ascii_case(pattern),
        })
    }
}

/// The end of the URL path of a format's endpoint.
fn path_of(format: Format) -> &'static str {
    match format {
        Format::OpenAiResponses => "responses",
        Format::OpenAiChat => "chat/completions",
        Format::AnthropicMessages => "messages",
    }
}

fn hint(variable: &str) -> String {
    format!("set {variable}, or `overmind vault set {}`", variable.to_ascii_lowercase())
}

/// Parses a URL and checks that a key may be sent to it.
fn sound(text: &str) -> Result<reqwest::Url, String> {
    let url: reqwest::Url =
        text.trim().parse().map_err(|err| format!("its URL is not a URL: {err}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("its URL holds a user name or password; give a key instead".to_owned());
    }
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("its URL `{url}` is not an http or https URL"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("its URL has a query or a fragment".to_owned());
    }
    Ok(url)
}

fn patterns(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The configuration of a [`Gateway`](crate::Gateway). By default it has the three standard
/// providers without keys, so that errors can name a missing key; then only cassettes can run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The providers. If several would take a model, the earliest is used.
    pub providers: Vec<Provider>,
    /// Cassettes in memory, by the name after `scripted:`.
    pub cassettes: BTreeMap<String, Cassette>,
    /// The directory in which `scripted:NAME` finds `NAME.json`.
    pub cassette_dir: Option<PathBuf>,
    /// Whether `scripted:` may name any file of the host by its path. It is off by default, because
    /// anyone who may edit an agent chooses its model's name, and errors quote the file's content.
    pub any_cassette_path: bool,
    /// Prices by model name; they take precedence over the catalogue.
    pub prices: BTreeMap<String, Price>,
    /// Our own names for models of relayed calls, each with the models to try, first choice first.
    /// An entry of such a list is never an alias itself.
    pub aliases: BTreeMap<String, Vec<String>>,
    pub relay: RelayLimits,
    /// The tape to which relayed calls are recorded.
    pub record: Option<PathBuf>,
    /// The tape that answers all relayed calls; no provider is then called.
    pub replay: Option<PathBuf>,
    /// Date and source of the prices in `prices`.
    pub prices_from: (String, String),
    pub retry: Retry,
    /// Longest wait for a TCP and TLS connection.
    pub connect_timeout: Duration,
    /// The store in which keys are looked up at each call; it takes precedence over the providers'
    /// own keys.
    pub secrets: Option<Arc<dyn Secrets>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            providers: vec![
                Provider::openai(None),
                Provider::anthropic(None),
                Provider::deepseek(None),
            ],
            cassettes: BTreeMap::new(),
            cassette_dir: None,
            any_cassette_path: false,
            prices: BTreeMap::new(),
            aliases: BTreeMap::new(),
            relay: RelayLimits::default(),
            record: None,
            replay: None,
            prices_from: (String::new(), "configuration".to_owned()),
            retry: Retry::default(),
            connect_timeout: Duration::from_secs(10),
            secrets: None,
        }
    }
}

/// The error for a variable whose value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is `{value}`: {problem}")]
pub struct ConfigError {
    pub variable: &'static str,
    /// The value. It is never a key: only timeouts and switches are checked here.
    pub value: String,
    pub problem: &'static str,
}

impl Config {
    /// Reads the configuration from variables. `var` looks one up by its environment name; an empty
    /// value counts as unset.
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `OPENAI_API_KEY`, `ANTHROPIC_API_KEY`, `DEEPSEEK_API_KEY` | keys |
    /// | `OVERMIND_OPENAI_RESPONSES_URL`, `OVERMIND_OPENAI_CHAT_COMPLETIONS_URL`, `OVERMIND_ANTHROPIC_MESSAGES_URL`, `OVERMIND_DEEPSEEK_CHAT_COMPLETIONS_URL` | whole endpoint URLs |
    /// | `OVERMIND_MODEL_BASE_URL`, `OVERMIND_MODEL_API_KEY` | any other server, and its key if it wants one |
    /// | `OVERMIND_OPENAI_TIMEOUT_S` | seconds of silence allowed, for all but Anthropic |
    /// | `OVERMIND_REASONING_TIMEOUT_S` | the same for reasoning models of every provider |
    /// | `OVERMIND_OPENAI_REASONING_EFFORT`, `OVERMIND_DEEPSEEK_REASONING_EFFORT` | effort when the agent names none |
    /// | `OVERMIND_DEEPSEEK_THINKING_MODE` | `enabled` or `disabled` |
    /// | `OVERMIND_CASSETTE_DIR` | where `scripted:NAME` is found |
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the variable.
    pub fn from_vars(var: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let text = |name: &str| var(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let key = |name: &str| var(name).as_deref().and_then(Secret::new);
        let seconds = |variable: &'static str| match text(variable) {
            None => Ok(None),
            Some(value) => match value.parse::<f64>() {
                Ok(s) if (0.001..=86_400.0).contains(&s) => Ok(Some(Duration::from_secs_f64(s))),
                Ok(_) | Err(_) => Err(ConfigError {
                    variable,
                    value,
                    problem: "it must be a number of seconds, more than 0 and at most 86400",
                }),
            },
        };
        let timeout = seconds("OVERMIND_OPENAI_TIMEOUT_S")?;
        let reasoning_timeout = seconds("OVERMIND_REASONING_TIMEOUT_S")?;
        let thinking = text("OVERMIND_DEEPSEEK_THINKING_MODE");
        if let Some(value) =
            thinking.clone().filter(|v| !matches!(v.as_str(), "enabled" | "disabled"))
        {
            return Err(ConfigError {
                variable: "OVERMIND_DEEPSEEK_THINKING_MODE",
                value,
                problem: "it must be `enabled` or `disabled`",
            });
        }
        let endpoints = |pairs: &[(Format, &str)]| {
            pairs.iter().filter_map(|(format, name)| Some((*format, text(name)?))).collect()
        };
        let timed = |provider: Provider| Provider {
            idle_timeout: timeout,
            reasoning_idle_timeout: reasoning_timeout,
            ..provider
        };
        let mut providers = Vec::new();
        if let Some(url) = text("OVERMIND_MODEL_BASE_URL") {
            providers.push(timed(Provider::custom(&url, key("OVERMIND_MODEL_API_KEY"))));
        }
        providers.push(timed(Provider {
            endpoints: endpoints(&[
                (Format::OpenAiResponses, "OVERMIND_OPENAI_RESPONSES_URL"),
                (Format::OpenAiChat, "OVERMIND_OPENAI_CHAT_COMPLETIONS_URL"),
            ]),
            reasoning_effort: text("OVERMIND_OPENAI_REASONING_EFFORT"),
            ..Provider::openai(key("OPENAI_API_KEY"))
        }));
        providers.push(Provider {
            endpoints: endpoints(&[(Format::AnthropicMessages, "OVERMIND_ANTHROPIC_MESSAGES_URL")]),
            reasoning_idle_timeout: reasoning_timeout,
            ..Provider::anthropic(key("ANTHROPIC_API_KEY"))
        });
        providers.push(timed(Provider {
            endpoints: endpoints(&[(Format::OpenAiChat, "OVERMIND_DEEPSEEK_CHAT_COMPLETIONS_URL")]),
            reasoning_effort: text("OVERMIND_DEEPSEEK_REASONING_EFFORT"),
            thinking,
            ..Provider::deepseek(key("DEEPSEEK_API_KEY"))
        }));
        Ok(Self {
            providers,
            cassette_dir: text("OVERMIND_CASSETTE_DIR").map(PathBuf::from),
            ..Self::default()
        })
    }

    /// The providers that can be called now. A provider whose key must be looked up gets a
    /// placeholder key.
    pub(crate) fn providers_now(&self) -> Cow<'_, [Provider]> {
        let Some(secrets) = &self.secrets else { return Cow::Borrowed(&self.providers) };
        let there =
            |provider: &&Provider| provider.secret.as_ref().is_some_and(|name| secrets.has(name));
        if !self.providers.iter().any(|provider| there(&provider)) {
            return Cow::Borrowed(&self.providers);
        }
        let mut all = self.providers.clone();
        for provider in &mut all {
            if there(&&*provider) {
                provider.key = Some(Secret("looked up at the call".into()));
            }
        }
        Cow::Owned(all)
    }

    /// The providers as if each had a key: shows which one would be called if no key was missing.
    pub(crate) fn providers_keyed(&self) -> Vec<Provider> {
        let mut all = self.providers.clone();
        for provider in &mut all {
            let key = provider.key.take();
            provider.key = Some(key.unwrap_or_else(|| Secret("of nobody".into())));
        }
        all
    }

    /// The provider with its current key, and that key if it was looked up.
    pub(crate) fn with_key_now(&self, provider: &Provider) -> (Provider, Option<Secret>) {
        let mut provider = provider.clone();
        let own = self.providers.iter().find(|own| own.name == provider.name);
        match own.map_or(Now::Own(None), |own| self.key_now(own)) {
            Now::Own(key) => {
                provider.key = key.cloned();
                (provider, None)
            }
            Now::LookedUp(key) => {
                provider.key = Some(key.clone());
                (provider, Some(key))
            }
        }
    }

    /// The current key of one of [`providers`](Self::providers).
    pub(crate) fn key_now<'a>(&self, provider: &'a Provider) -> Now<'a> {
        let looked_up = self.secrets.as_ref().zip(provider.secret.as_deref());
        let found = looked_up.and_then(|(secrets, name)| {
            let host = provider.url(provider.format).ok();
            let for_what = Use {
                service: Some(provider.name.clone()),
                host: host.and_then(|url| Some(url.host_str()?.to_owned())),
                ..Use::default()
            };
            Secret::new(secrets.get_for(name, for_what)?.expose())
        });
        found.map_or(Now::Own(provider.key.as_ref()), Now::LookedUp)
    }

    /// Adds or replaces the provider that [`Provider::custom`] describes and puts it first. The
    /// option `--base-url` does this.
    #[must_use]
    pub fn with_base_url(mut self, base_url: &str, key: Option<Secret>) -> Self {
        self.providers.retain(|provider| provider.name != "custom");
        self.providers.insert(0, Provider::custom(base_url, key));
        self
    }

    /// Adds a cassette, which `scripted:NAME` plays by its own name.
    #[must_use]
    pub fn with_cassette(mut self, cassette: Cassette) -> Self {
        self.cassettes.insert(cassette.name().to_owned(), cassette);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(vars: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_vars(&|name| {
            vars.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn provider<'a>(config: &'a Config, name: &str) -> &'a Provider {
        config.providers.iter().find(|p| p.name == name).unwrap()
    }

    #[test]
    fn a_secret_is_never_printed() {
        let config = from(&[("OPENAI_API_KEY", " sk-very-secret\n")]).unwrap();
        assert_eq!(provider(&config, "openai").key.as_ref().unwrap().expose(), "sk-very-secret");
        assert!(!format!("{config:?}").contains("very"), "{config:?}");
        assert_eq!(Secret::new(" \n"), None);
    }

    #[test]
    fn each_variable_reaches_its_provider() {
        let config = from(&[
            ("OPENAI_API_KEY", "a-key"),
            ("ANTHROPIC_API_KEY", "b-key"),
            ("DEEPSEEK_API_KEY", "c-key"),
            ("OVERMIND_OPENAI_RESPONSES_URL", "http://127.0.0.1:1/r"),
            ("OVERMIND_DEEPSEEK_CHAT_COMPLETIONS_URL", "http://127.0.0.1:2/c"),
            ("OVERMIND_ANTHROPIC_MESSAGES_URL", "http://127.0.0.1:3/m"),
            ("OVERMIND_OPENAI_TIMEOUT_S", "7.5"),
            ("OVERMIND_REASONING_TIMEOUT_S", "90"),
            ("OVERMIND_OPENAI_REASONING_EFFORT", "high"),
            ("OVERMIND_DEEPSEEK_REASONING_EFFORT", "low"),
            ("OVERMIND_DEEPSEEK_THINKING_MODE", "disabled"),
            ("OVERMIND_MODEL_BASE_URL", "http://127.0.0.1:11434"),
            ("OVERMIND_CASSETTE_DIR", "tapes"),
        ])
        .unwrap();
        let names: Vec<&str> = config.providers.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["custom", "openai", "anthropic", "deepseek"]);
        let openai = provider(&config, "openai");
        assert_eq!(openai.url(Format::OpenAiResponses).unwrap().as_str(), "http://127.0.0.1:1/r");
        let err = openai.url(Format::OpenAiChat).unwrap_err();
        assert!(err.contains("`http://127.0.0.1:1/r` does not end in `/responses`"), "{err}");
        assert_eq!(openai.idle_timeout, Some(Duration::from_millis(7500)));
        assert_eq!(openai.reasoning_idle_timeout, Some(Duration::from_secs(90)));
        assert_eq!(openai.reasoning_effort.as_deref(), Some("high"));
        let anthropic = provider(&config, "anthropic");
        assert_eq!(
            anthropic.url(Format::AnthropicMessages).unwrap().as_str(),
            "http://127.0.0.1:3/m"
        );
        assert_eq!(anthropic.idle_timeout, None);
        assert_eq!(anthropic.reasoning_idle_timeout, Some(Duration::from_secs(90)));
        let deepseek = provider(&config, "deepseek");
        assert_eq!(deepseek.url(Format::OpenAiChat).unwrap().as_str(), "http://127.0.0.1:2/c");
        assert_eq!(deepseek.reasoning_effort.as_deref(), Some("low"));
        assert_eq!(deepseek.thinking.as_deref(), Some("disabled"));
        assert_eq!(provider(&config, "custom").key, None);
        assert_eq!(config.cassette_dir, Some(PathBuf::from("tapes")));
    }

    #[test]
    fn one_provider_url_sets_the_server_of_all_endpoints() {
        let of = |pairs: &[(&'static str, &'static str)], name: &str, endpoint: Endpoint| {
            provider(&from(pairs).unwrap(), name).endpoint_url(endpoint).map(|url| url.to_string())
        };
        let anthropic =
            [("OVERMIND_ANTHROPIC_MESSAGES_URL", "https://proxy.example/a/v1/messages")];
        let responses = ("OVERMIND_OPENAI_RESPONSES_URL", "https://proxy.example/v1/responses");
        let chat =
            ("OVERMIND_OPENAI_CHAT_COMPLETIONS_URL", "https://proxy.example/v1/chat/completions");
        let far =
            ("OVERMIND_OPENAI_CHAT_COMPLETIONS_URL", "https://far.example/v1/chat/completions");
        for (pairs, name, endpoint, wanted) in [
            (
                &anthropic[..],
                "anthropic",
                Endpoint::CountTokens,
                "https://proxy.example/a/v1/messages/count_tokens",
            ),
            (&[responses], "openai", Endpoint::Chat, "https://proxy.example/v1/chat/completions"),
            (
                &[responses, chat],
                "openai",
                Endpoint::Embeddings,
                "https://proxy.example/v1/embeddings",
            ),
            (&[chat], "openai", Endpoint::Responses, "https://proxy.example/v1/responses"),
            (
                &[far, responses],
                "openai",
                Endpoint::Chat,
                "https://far.example/v1/chat/completions",
            ),
            (&[], "openai", Endpoint::Embeddings, "https://api.openai.com/v1/embeddings"),
        ] {
            assert_eq!(of(pairs, name, endpoint).unwrap(), wanted);
        }
        let err = of(&[responses, far], "openai", Endpoint::Embeddings).unwrap_err();
        assert!(err.contains("its configured URLs differ"), "{err}");
    }

    #[test]
    fn a_value_that_cannot_be_used_names_its_variable() {
        for (name, value) in [
            ("OVERMIND_OPENAI_TIMEOUT_S", "soon"),
            ("OVERMIND_OPENAI_TIMEOUT_S", "0"),
            ("OVERMIND_REASONING_TIMEOUT_S", "-1"),
            ("OVERMIND_REASONING_TIMEOUT_S", "NaN"),
            ("OVERMIND_DEEPSEEK_THINKING_MODE", "maybe"),
        ] {
            let err = from(&[(name, value)]).unwrap_err();
            assert_eq!(err.variable, name);
            assert!(err.to_string().contains(value), "{err}");
        }
        assert!(from(&[("OVERMIND_OPENAI_TIMEOUT_S", " ")]).is_ok());
    }

    #[test]
    fn base_urls_are_completed_from_their_usual_spellings() {
        let url =
            |base: &str, format| Provider::custom(base, None).url(format).unwrap().to_string();
        for base in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            assert_eq!(url(base, Format::OpenAiChat), "http://h:1/v1/chat/completions");
            assert_eq!(url(base, Format::OpenAiResponses), "http://h:1/v1/responses");
            assert_eq!(url(base, Format::AnthropicMessages), "http://h:1/v1/messages");
        }
        assert_eq!(url("http://h/a/b", Format::OpenAiChat), "http://h/a/b/chat/completions");
        assert_eq!(
            url("http://h/anthropic", Format::AnthropicMessages),
            "http://h/anthropic/v1/messages"
        );
    }

    #[test]
    fn urls_that_would_leak_or_cannot_work_are_refused() {
        for (base, says) in [
            ("not a url", "not a URL"),
            ("ftp://h/x", "not an http"),
            ("http://user:pass-word@h/v1", "password"),
            ("http://h/v1?key=abc", "query"),
        ] {
            let err = Provider::custom(base, None).url(Format::OpenAiChat).unwrap_err();
            assert!(err.contains(says), "{base}: {err}");
            assert!(!err.contains("pass-word") && !err.contains("abc"), "{err}");
        }
    }
}
