//! Reads the environment, once; no other code of the program does.
//!
//! [`NAMES`] lists every name that Overmind uses. The names of earlier versions keep their meaning.
//! A variable that begins with `OVERMIND_` and is not listed is reported by `doctor` and `config
//! show`, because it is probably a typing error.

use std::collections::BTreeMap;
use std::ffi::OsString;

use overmind_core::vault::import::PREFIXES;

use super::secret::Secret;

/// The program with which `overmind edit` opens a text; [`VISUAL`] takes precedence.
pub const EDITOR: &str = "EDITOR";
pub const VISUAL: &str = "VISUAL";
/// The data directory of one Overmind.
pub const DATA: &str = "OVERMIND_DATA";
/// The configuration file, instead of `<data>/overmind.toml`.
pub const CONFIG: &str = "OVERMIND_CONFIG";
/// The server's address for commands of the client.
pub const SERVER: &str = "OVERMIND_SERVER";
/// The colony of the client's commands.
pub const COLONY: &str = "OVERMIND_COLONY";
/// The token for commands of the client.
pub const TOKEN: &str = "OVERMIND_TOKEN";
/// Makes `run` end with the answer, as `--once` does, unless it is empty or `0`.
pub const ONCE: &str = "OVERMIND_ONCE";
/// The run, in a command that is a run's agent and in commands of its tools.
pub const SESSION_ID: &str = "OVERMIND_SESSION_ID";
pub const SESSION: &str = "OVERMIND_SESSION";
/// The PEM file with the roots that the client trusts instead of the machine's.
pub const CA_FILE: &str = "OVERMIND_CA_FILE";
/// The address to listen at. [`HOST`] and [`PORT`] are its two parts, for users who set only one.
pub const LISTEN: &str = "OVERMIND_LISTEN";
pub const HOST: &str = "OVERMIND_HOST";
pub const PORT: &str = "OVERMIND_PORT";
pub const SOCKET: &str = "OVERMIND_SOCKET";
pub const TLS_CERT: &str = "OVERMIND_TLS_CERT";
pub const TLS_KEY: &str = "OVERMIND_TLS_KEY";
pub const ALLOWED_HOSTS: &str = "OVERMIND_ALLOWED_HOSTS";
pub const DB: &str = "OVERMIND_DB";
pub const POLICY: &str = "OVERMIND_POLICY";
pub const WORKSPACE: &str = "OVERMIND_WORKSPACE";
pub const MAX_RUNNING: &str = "OVERMIND_MAX_RUNNING";
pub const EMBEDDING_PROVIDER: &str = "OVERMIND_EMBEDDING_PROVIDER";
pub const EMBEDDING_MODEL: &str = "OVERMIND_EMBEDDING_MODEL";
pub const EMBEDDING_DIMS: &str = "OVERMIND_EMBEDDING_DIMS";
pub const EMBEDDING_PATH: &str = "OVERMIND_EMBEDDING_PATH";
pub const EMBEDDINGS_URL: &str = "OVERMIND_OPENAI_EMBEDDINGS_URL";
pub const OPENAI_API_KEY: &str = "OPENAI_API_KEY";
pub const OPENAI_RESPONSES_URL: &str = "OVERMIND_OPENAI_RESPONSES_URL";
pub const OPENAI_CHAT_URL: &str = "OVERMIND_OPENAI_CHAT_COMPLETIONS_URL";
pub const OPENAI_TIMEOUT: &str = "OVERMIND_OPENAI_TIMEOUT_S";
pub const OPENAI_EFFORT: &str = "OVERMIND_OPENAI_REASONING_EFFORT";
pub const REASONING_TIMEOUT: &str = "OVERMIND_REASONING_TIMEOUT_S";
pub const ANTHROPIC_API_KEY: &str = "ANTHROPIC_API_KEY";
pub const ANTHROPIC_URL: &str = "OVERMIND_ANTHROPIC_MESSAGES_URL";
pub const DEEPSEEK_API_KEY: &str = "DEEPSEEK_API_KEY";
pub const DEEPSEEK_CHAT_URL: &str = "OVERMIND_DEEPSEEK_CHAT_COMPLETIONS_URL";
pub const DEEPSEEK_EFFORT: &str = "OVERMIND_DEEPSEEK_REASONING_EFFORT";
pub const DEEPSEEK_THINKING: &str = "OVERMIND_DEEPSEEK_THINKING_MODE";
pub const MODEL_BASE_URL: &str = "OVERMIND_MODEL_BASE_URL";
pub const MODEL_API_KEY: &str = "OVERMIND_MODEL_API_KEY";
pub const CASSETTES: &str = "OVERMIND_CASSETTE_DIR";
pub const DOCKER_HOST: &str = "DOCKER_HOST";
pub const DOCKER_IMAGE: &str = "OVERMIND_DOCKER_IMAGE";
/// The passphrase that opens the file of the vault's keys, or protects a new one.
pub const VAULT_PASSPHRASE: &str = "OVERMIND_VAULT_PASSPHRASE";
pub const LOG: &str = "OVERMIND_LOG";
pub const LOG_FORMAT: &str = "OVERMIND_LOG_FORMAT";
/// The standard names of OpenTelemetry.
pub const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
pub const OTLP_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
pub const OTEL_SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
pub const OTEL_RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";
pub const OTEL_CONTENT: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
pub const OTEL_SPANS_EVERY: &str = "OTEL_BSP_SCHEDULE_DELAY";
pub const OTEL_METRICS_EVERY: &str = "OTEL_METRIC_EXPORT_INTERVAL";
pub const OTEL_DISABLED: &str = "OTEL_SDK_DISABLED";
/// `name:n,…`: the process kills itself the n-th time the named point is passed. For crash tests
/// only.
pub const FAILPOINTS: &str = "OVERMIND_FAILPOINTS";
/// The span in which this program was started; commands of the client pass it on.
pub const TRACEPARENT: &str = "TRACEPARENT";
pub const NO_COLOR: &str = "NO_COLOR";
pub const CLICOLOR_FORCE: &str = "CLICOLOR_FORCE";
pub const TERM: &str = "TERM";
pub const HOME: &str = "HOME";
pub const XDG_DATA_HOME: &str = "XDG_DATA_HOME";
pub const PATH: &str = "PATH";
pub const USER: &str = "USER";
pub const LOGNAME: &str = "LOGNAME";
pub const SHELL: &str = "SHELL";
pub const LANG: &str = "LANG";
pub const LC_ALL: &str = "LC_ALL";
pub const TZ: &str = "TZ";

/// The server's variables that command agents inherit: who the user is and where programs are. None
/// of them can be a key.
pub const INHERITED: &[&str] = &[PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_ALL, TZ];

/// All of these names; no other variable is ever read.
pub const NAMES: &[&str] = &[
    EDITOR,
    VISUAL,
    DATA,
    CONFIG,
    SERVER,
    COLONY,
    TOKEN,
    SESSION_ID,
    ONCE,
    SESSION,
    CA_FILE,
    LISTEN,
    HOST,
    PORT,
    SOCKET,
    TLS_CERT,
    TLS_KEY,
    ALLOWED_HOSTS,
    DB,
    WORKSPACE,
    MAX_RUNNING,
    EMBEDDING_PROVIDER,
    EMBEDDING_MODEL,
    EMBEDDING_DIMS,
    EMBEDDING_PATH,
    POLICY,
    EMBEDDINGS_URL,
    OPENAI_API_KEY,
    OPENAI_RESPONSES_URL,
    OPENAI_CHAT_URL,
    OPENAI_TIMEOUT,
    OPENAI_EFFORT,
    REASONING_TIMEOUT,
    ANTHROPIC_API_KEY,
    ANTHROPIC_URL,
    DEEPSEEK_API_KEY,
    VAULT_PASSPHRASE,
    DEEPSEEK_CHAT_URL,
    DEEPSEEK_EFFORT,
    DEEPSEEK_THINKING,
    MODEL_BASE_URL,
    MODEL_API_KEY,
    CASSETTES,
    DOCKER_HOST,
    DOCKER_IMAGE,
    LOG,
    LOG_FORMAT,
    OTLP_ENDPOINT,
    OTLP_HEADERS,
    OTEL_SERVICE_NAME,
    OTEL_RESOURCE,
    OTEL_CONTENT,
    OTEL_SPANS_EVERY,
    OTEL_METRICS_EVERY,
    OTEL_DISABLED,
    TRACEPARENT,
    FAILPOINTS,
    NO_COLOR,
    CLICOLOR_FORCE,
    TERM,
    HOME,
    XDG_DATA_HOME,
    PATH,
    USER,
    LOGNAME,
    SHELL,
    LANG,
    LC_ALL,
    TZ,
];

/// The prefix of variables that contain secrets.
const CREDENTIAL: &str = "OVERMIND_CRED_";

/// A copy of the environment at one moment. Tests build theirs from pairs.
#[derive(Clone, Debug, Default)]
pub struct Env(BTreeMap<String, OsString>);

impl Env {
    /// Copies the variables in [`NAMES`] from the process's environment, and every other
    /// `OVERMIND_…` variable, so that [`Env::unknown`] can report it.
    pub fn of_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
                .filter(|(name, _)| {
                    let of_others = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
                    name.starts_with("OVERMIND_") || of_others || NAMES.contains(&name.as_str())
                })
                .collect(),
        )
    }

    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
    }

    /// The value of `name`; `None` if it is unset, empty or not UTF-8. Scripts unset a variable by
    /// making it empty.
    pub fn text(&self, name: &'static str) -> Option<&str> {
        debug_assert!(NAMES.contains(&name), "{name} is not listed");
        self.0.get(name)?.to_str().filter(|value| !value.is_empty())
    }

    /// Like [`Env::text`], for paths, which need not be UTF-8.
    pub fn path(&self, name: &'static str) -> Option<std::path::PathBuf> {
        debug_assert!(NAMES.contains(&name), "{name} is not listed");
        self.0.get(name).filter(|value| !value.is_empty()).map(std::path::PathBuf::from)
    }

    /// Names that begin with `OVERMIND_` and are not known. `OVERMIND_TEST_…` belongs to tests and
    /// is not reported.
    pub fn unknown(&self) -> Vec<&str> {
        self.0
            .keys()
            .map(String::as_str)
            .filter(|name| name.starts_with("OVERMIND_") && !name.starts_with("OVERMIND_TEST_"))
            .filter(|name| !NAMES.contains(name) && !name.starts_with(CREDENTIAL))
            .collect()
    }

    /// All variables that begin with one of these prefixes.
    pub fn beginning_with(&self, prefixes: &[&str]) -> Vec<(String, Secret)> {
        let all = self.0.iter().filter(|(name, _)| prefixes.iter().any(|p| name.starts_with(p)));
        all.filter_map(|(name, value)| Some((name.clone(), Secret::new(value.to_str()?)))).collect()
    }

    /// Secrets by name: `OVERMIND_CRED_NAME` contains the secret `NAME`.
    pub fn credentials(&self) -> BTreeMap<String, Secret> {
        let named = |(name, value): (&String, &OsString)| {
            let name = name.strip_prefix(CREDENTIAL).filter(|name| !name.is_empty())?;
            let value = value.to_str().filter(|value| !value.is_empty())?;
            Some((name.to_owned(), Secret::new(value)))
        };
        self.0.iter().filter_map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_is_unset_and_a_misspelt_one_is_reported() {
        let env = Env::from_pairs([(DB, ""), ("OVERMIND_DBB", "x"), ("OVERMIND_TEST_DOCKER", "y")]);
        assert_eq!(env.text(DB), None);
        assert_eq!(env.path(DB), None);
        assert_eq!(env.unknown(), ["OVERMIND_DBB"]);
    }

    #[test]
    fn credentials_are_named_by_the_text_after_the_prefix() {
        let env = Env::from_pairs([
            ("OVERMIND_CRED_WEB_KEY", "s3cret-text"),
            ("OVERMIND_CRED_", "nameless"),
            ("OVERMIND_CRED_EMPTY", ""),
        ]);
        let all = env.credentials();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["WEB_KEY"]);
        assert_eq!(all["WEB_KEY"].expose(), "s3cret-text");
        assert_eq!(env.unknown(), [""; 0]);
    }

    #[test]
    fn no_name_is_listed_twice() {
        let mut names = NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMES.len());
    }
}
