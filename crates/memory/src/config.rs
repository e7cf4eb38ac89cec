//! The user's settings for embeddings.

use std::fmt;
use std::path::PathBuf;

use reqwest::Url;

/// The default embeddings endpoint.
pub const DEFAULT_URL: &str = "https://api.openai.com/v1/embeddings";
/// The default embedding model.
pub const DEFAULT_MODEL: &str = "text-embedding-3-small";
/// More dimensions than any model has.
const MAX_DIMS: u32 = 65_536;

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: String) -> Self {
        Self(value)
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

/// How memory searches texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Config {
    /// By words only.
    Local,
    /// By words and by meaning, with a server that makes the vectors.
    OpenAi(HttpConfig),
    /// By words and by meaning, with the static model in this directory.
    File(PathBuf),
}

/// An endpoint that speaks OpenAI's embeddings format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// The whole URL, including `/embeddings`.
    pub url: Url,
    pub model: String,
    /// The requested `dimensions`, which the answer must have; `None` takes the model's default.
    pub dims: Option<u32>,
    /// Sent only to `url`; redirects are not followed.
    pub key: Secret,
}

/// The error for a setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "OVERMIND_EMBEDDING_PROVIDER is `openai` but OPENAI_API_KEY is not set: set the key (any \
         text for a server that needs none), or set the provider to `local` or `auto`"
    )]
    NoKey,
    #[error(
        "OVERMIND_EMBEDDING_PROVIDER is `file` but OVERMIND_EMBEDDING_PATH is not set: set it to \
         a directory with model.safetensors and tokenizer.json"
    )]
    NoPath,
    #[error(
        "OVERMIND_EMBEDDING_PROVIDER is `file` but this program was built without support for \
         model files: add the support (`cargo install --path crates/overmind --features \
         model-files`), or set the provider to `openai` and OVERMIND_OPENAI_EMBEDDINGS_URL to a \
         server that speaks OpenAI's embeddings format"
    )]
    NoModelFiles,
    #[error(
        "OVERMIND_EMBEDDING_PROVIDER is `{given}`: it must be auto, openai (or endpoint), file, \
         or local (or none)"
    )]
    Provider { given: String },
    #[error(
        "OVERMIND_EMBEDDING_PROVIDER is `openai`, and the embeddings server cannot be \
         derived from OpenAI's other URLs: set OVERMIND_OPENAI_EMBEDDINGS_URL"
    )]
    Beside,
    #[error("OVERMIND_OPENAI_EMBEDDINGS_URL is not usable: {why}")]
    Url { why: String },
    #[error("OVERMIND_EMBEDDING_DIMS is `{given}`: it must be a number from 1 to 65536")]
    Dims { given: String },
}

impl Config {
    /// Reads the settings through `var`, which returns the value of an environment variable or of
    /// its replacement. Blank values count as not set.
    ///
    /// `OVERMIND_EMBEDDING_PROVIDER` is `auto` (the default: `openai` if `OPENAI_API_KEY` is set,
    /// else `local`), `openai` (also: `endpoint`), `file` or `local` (also: `none`).
    /// `OVERMIND_OPENAI_EMBEDDINGS_URL`, `OVERMIND_EMBEDDING_MODEL` and `OVERMIND_EMBEDDING_DIMS`
    /// apply to `openai`, `OVERMIND_EMBEDDING_PATH` applies to `file`; they are read and checked
    /// only then. `file` needs the feature `model-files`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the variable.
    pub fn from_vars(var: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Self::read(var, cfg!(feature = "model-files"))
    }

    /// Reads the settings for a build that can read model files or cannot.
    fn read(var: &dyn Fn(&str) -> Option<String>, model_files: bool) -> Result<Self, ConfigError> {
        let set = |name| var(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let provider = set("OVERMIND_EMBEDDING_PROVIDER").unwrap_or_else(|| "auto".into());
        let key = set("OPENAI_API_KEY");
        let key = match (provider.to_ascii_lowercase().as_str(), key) {
            ("local" | "none", _) | ("auto", None) => return Ok(Self::Local),
            ("file", _) if !model_files => return Err(ConfigError::NoModelFiles),
            ("file", _) => {
                let path = set("OVERMIND_EMBEDDING_PATH").ok_or(ConfigError::NoPath)?;
                return Ok(Self::File(path.into()));
            }
            ("auto" | "openai" | "endpoint", Some(key)) => Secret(key),
            ("openai" | "endpoint", None) => return Err(ConfigError::NoKey),
            _ => return Err(ConfigError::Provider { given: provider.chars().take(64).collect() }),
        };
        let url = match set("OVERMIND_OPENAI_EMBEDDINGS_URL") {
            Some(url) => url,
            None => match beside(&set) {
                None => DEFAULT_URL.into(),
                Some(Some(url)) => url,
                // No embeddings were configured: memory is searched by words only, and nothing is
                // sent elsewhere.
                Some(None) if provider.eq_ignore_ascii_case("auto") => return Ok(Self::Local),
                Some(None) => return Err(ConfigError::Beside),
            },
        };
        let dims = match set("OVERMIND_EMBEDDING_DIMS") {
            None => None,
            Some(given) => match given.parse() {
                Ok(dims @ 1..=MAX_DIMS) => Some(dims),
                Ok(_) | Err(_) => {
                    return Err(ConfigError::Dims { given: given.chars().take(64).collect() });
                }
            },
        };
        Ok(Self::OpenAi(HttpConfig {
            url: endpoint(&url)?,
            model: set("OVERMIND_EMBEDDING_MODEL").unwrap_or_else(|| DEFAULT_MODEL.into()),
            dims,
            key,
        }))
    }
}

/// The embeddings endpoint of the server that OpenAI's other URLs name: a user who sends those to a
/// proxy does not want texts and the key to bypass it. `None` if no such URL is set, `Some(None)`
/// if the endpoint cannot be derived from them.
fn beside(set: &dyn Fn(&'static str) -> Option<String>) -> Option<Option<String>> {
    const OTHERS: [(&str, &str); 2] = [
        ("OVERMIND_OPENAI_RESPONSES_URL", "/responses"),
        ("OVERMIND_OPENAI_CHAT_COMPLETIONS_URL", "/chat/completions"),
    ];
    let mut bases = OTHERS.iter().filter_map(|(name, path)| {
        let url = set(name)?;
        Some(url.trim_end_matches('/').strip_suffix(path).map(ToOwned::to_owned))
    });
    let first = bases.next()?;
    let same = bases.all(|other| other == first);
    Some(first.filter(|_| same).map(|base| format!("{base}/embeddings")))
}

fn endpoint(text: &str) -> Result<Url, ConfigError> {
    // The text itself is not repeated, because it may contain a password.
    let url = Url::parse(text).map_err(|err| ConfigError::Url { why: err.to_string() })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(ConfigError::Url { why: "it must begin with http:// or https://".into() });
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(ConfigError::Url {
            why: "it must not carry a user name or password; the key goes into OPENAI_API_KEY"
                .into(),
        });
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(model_files: bool, vars: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let var = |name: &str| {
            vars.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        };
        Config::read(&var, model_files)
    }

    fn config(vars: &[(&str, &str)]) -> Result<Config, ConfigError> {
        built(true, vars)
    }

    #[test]
    fn a_build_without_model_files_reports_that_with_the_remedy() {
        let file = [("OVERMIND_EMBEDDING_PROVIDER", "file"), ("OVERMIND_EMBEDDING_PATH", "/m")];
        let text = built(false, &file).expect_err("it cannot be read").to_string();
        for wanted in ["`file`", "--features model-files", "OVERMIND_OPENAI_EMBEDDINGS_URL"] {
            assert!(text.contains(wanted), "{text}");
        }
        assert_eq!(built(false, &[]), Ok(Config::Local));
        let key = [("OPENAI_API_KEY", "k")];
        assert_eq!(built(false, &key), built(true, &key));
    }

    #[test]
    fn auto_selects_openai_with_a_key_and_local_without() {
        assert_eq!(config(&[]), Ok(Config::Local));
        assert_eq!(config(&[("OPENAI_API_KEY", "  ")]), Ok(Config::Local));
        let Ok(Config::OpenAi(found)) = config(&[("OPENAI_API_KEY", "sk-test")]) else {
            panic!("a key means openai");
        };
        assert_eq!(found.url.as_str(), DEFAULT_URL);
        assert_eq!(found.model, "text-embedding-3-small");
        assert_eq!(found.dims, None);
        assert!(!format!("{found:?}").contains("sk-test"), "the key never prints itself");
        let local = [("OPENAI_API_KEY", "k"), ("OVERMIND_EMBEDDING_PROVIDER", "local")];
        assert_eq!(config(&local), Ok(Config::Local));
        let none = [("OPENAI_API_KEY", "k"), ("OVERMIND_EMBEDDING_PROVIDER", "none")];
        assert_eq!(config(&none), Ok(Config::Local));
        let file = [("OVERMIND_EMBEDDING_PROVIDER", "file"), ("OVERMIND_EMBEDDING_PATH", "/m")];
        assert_eq!(config(&file), Ok(Config::File("/m".into())));
    }

    #[test]
    fn embeddings_use_openais_configured_url_and_no_other() {
        let key = ("OPENAI_API_KEY", "k");
        let proxy = ("OVERMIND_OPENAI_RESPONSES_URL", "http://proxy.example/v1/responses");
        let Ok(Config::OpenAi(found)) = config(&[key, proxy]) else { panic!("it is known") };
        assert_eq!(found.url.as_str(), "http://proxy.example/v1/embeddings");
        let odd = ("OVERMIND_OPENAI_CHAT_COMPLETIONS_URL", "http://other.example/chat");
        for vars in [&[key, odd][..], &[key, proxy, odd]] {
            assert_eq!(config(vars), Ok(Config::Local), "{vars:?}");
            let openai = [vars, &[("OVERMIND_EMBEDDING_PROVIDER", "openai")]].concat();
            assert_eq!(config(&openai), Err(ConfigError::Beside), "{vars:?}");
        }
    }

    #[test]
    fn all_settings_are_read() {
        let Ok(Config::OpenAi(found)) = config(&[
            ("OPENAI_API_KEY", "k"),
            ("OVERMIND_EMBEDDING_PROVIDER", "OpenAI"),
            ("OVERMIND_EMBEDDING_MODEL", "nomic"),
            ("OVERMIND_OPENAI_EMBEDDINGS_URL", "http://127.0.0.1:11434/v1/embeddings"),
            ("OVERMIND_EMBEDDING_DIMS", "256"),
        ]) else {
            panic!("these settings are good");
        };
        assert_eq!(found.url.as_str(), "http://127.0.0.1:11434/v1/embeddings");
        assert_eq!((found.model.as_str(), found.dims), ("nomic", Some(256)));
    }

    #[test]
    fn international_host_names_are_read_as_dns_names() {
        for (given, wanted) in [
            ("http://bücher.example/v1", "http://xn--bcher-kva.example/v1"),
            ("http://BÜCHER.example/v1", "http://xn--bcher-kva.example/v1"),
            ("http://straße.example/v1", "http://xn--strae-oqa.example/v1"),
            ("http://例え.example/v1", "http://xn--r8jz45g.example/v1"),
            ("http://مثال.example/v1", "http://xn--mgbh0fb.example/v1"),
        ] {
            assert_eq!(endpoint(given).map(String::from), Ok(wanted.to_owned()));
        }
    }

    #[test]
    fn an_invalid_setting_is_reported_by_name() {
        let key = ("OPENAI_API_KEY", "k");
        for (vars, wanted) in [
            (vec![("OVERMIND_EMBEDDING_PROVIDER", "openai")], "OPENAI_API_KEY is not set"),
            (
                vec![("OVERMIND_EMBEDDING_PROVIDER", "opnai")],
                "`opnai`: it must be auto, openai (or endpoint), file, or local (or none)",
            ),
            (vec![("OVERMIND_EMBEDDING_PROVIDER", "file")], "OVERMIND_EMBEDDING_PATH is not set"),
            (vec![("OVERMIND_EMBEDDING_PROVIDER", "endpoint")], "OPENAI_API_KEY is not set"),
            (
                vec![key, ("OVERMIND_OPENAI_EMBEDDINGS_URL", "nonsense")],
                "OVERMIND_OPENAI_EMBEDDINGS_URL",
            ),
            (vec![key, ("OVERMIND_OPENAI_EMBEDDINGS_URL", "ftp://x/y")], "http:// or https://"),
            (
                vec![key, ("OVERMIND_OPENAI_EMBEDDINGS_URL", "http://u:hunter2@x/y")],
                "must not carry",
            ),
            (vec![key, ("OVERMIND_EMBEDDING_DIMS", "0")], "from 1 to 65536"),
            (vec![key, ("OVERMIND_EMBEDDING_DIMS", "many")], "`many`"),
        ] {
            let text = config(&vars).expect_err(wanted).to_string();
            assert!(text.contains(wanted), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
