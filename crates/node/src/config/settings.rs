//! The table of all settings: the key in the file, the variable, the valid values, the meaning.
//!
//! This table is the source for the check of unknown keys in the file, the environment layer,
//! `config show` and the manual, so that they stay consistent.

use super::env;

/// The type of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// A text of any number of lines.
    Lines,
    /// A path. A relative one in the file refers to the file's directory, otherwise to the current
    /// one.
    Path,
    /// A path, or the word `none`.
    PathOrNone,
    Whole {
        min: u64,
        max: u64,
    },
    Choice(&'static [&'static str]),
    /// A number of seconds, with a fraction or without.
    Seconds,
    /// `host:port`, or the word `none`.
    Listen,
    /// `http://…` or `https://…`.
    Url,
    /// An array of texts in the file, otherwise separated by commas.
    List,
    /// A secret, which is shown masked, and refused in a file that others can read.
    Secret,
}

#[derive(Debug)]
pub struct Setting {
    pub key: &'static str,
    /// The variable that sets it, if there is one.
    pub env: Option<&'static str>,
    pub kind: Kind,
    /// The default as it would be written; `None` means unset. `<data>` is the data directory.
    pub default: Option<&'static str>,
    pub help: &'static str,
}

const fn setting(
    key: &'static str,
    env: Option<&'static str>,
    kind: Kind,
    default: Option<&'static str>,
    help: &'static str,
) -> Setting {
    Setting { key, env, kind, default, help }
}

pub const LISTEN: &str = "server.listen";
pub const SOCKET: &str = "server.socket";
pub const TLS_CERT: &str = "server.tls_cert";
pub const TLS_KEY: &str = "server.tls_key";
pub const ALLOWED_HOSTS: &str = "server.allowed_hosts";
pub const DRAIN_SECONDS: &str = "server.drain_seconds";
pub const REQUESTS_PER_SECOND: &str = "server.requests_per_second";
pub const REQUEST_BURST: &str = "server.request_burst";
pub const STORE_PATH: &str = "store.path";
pub const RETENTION_DAYS: &str = "store.retention_days";
pub const CHECKPOINT_SECONDS: &str = "store.checkpoint_seconds";
pub const ROOMS_PROXY: &str = "rooms.proxy";
pub const ROOMS_SERVERS: &str = "rooms.servers";
pub const ROOMS_WORKTREES: &str = "rooms.worktrees";
pub const WORKSPACE: &str = "engine.workspace";
pub const MAX_RUNNING: &str = "engine.max_running";
pub const MAX_PER_AGENT: &str = "engine.max_running_per_agent";
pub const MAX_PER_COLONY: &str = "engine.max_running_per_colony";
pub const OPENAI_API_KEY: &str = "models.openai_api_key";
pub const ANTHROPIC_API_KEY: &str = "models.anthropic_api_key";
pub const DEEPSEEK_API_KEY: &str = "models.deepseek_api_key";
pub const CASSETTES: &str = "models.cassettes";
pub const GATEWAY_CAPTURE: &str = "models.gateway_capture_bytes";
pub const GATEWAY_RECORD: &str = "models.gateway_record";
pub const GATEWAY_REPLAY: &str = "models.gateway_replay";
pub const EMBEDDING_PROVIDER: &str = "memory.embedding_provider";
pub const EMBEDDING_MODEL: &str = "memory.embedding_model";
pub const EMBEDDING_DIMS: &str = "memory.embedding_dims";
pub const EMBEDDING_PATH: &str = "memory.embedding_path";
pub const EMBEDDINGS_URL: &str = "memory.embeddings_url";
pub const SANDBOX_READ_ONLY: &str = "sandbox.read_only";
pub const SANDBOX_RUN_AS: &str = "sandbox.run_as";
pub const DOCKER_PINNED: &str = "sandbox.docker_pinned";
pub const DOCKER_HOST: &str = "sandbox.docker_host";
pub const DOCKER_IMAGE: &str = "sandbox.docker_image";
pub const MICROVM_DIR: &str = "sandbox.microvm_dir";
pub const MICROVM_EMULATION: &str = "sandbox.microvm_emulation";
pub const ALLOW_HOSTS: &str = "tools.allow_hosts";
pub const COMMANDS: &str = "tools.commands";
pub const RUNNER: &str = "tools.runner";
pub const PRIVATE_PATHS: &str = "tools.private_paths";
pub const UNTRUSTED_PATHS: &str = "tools.untrusted_paths";
pub const CANARIES: &str = "tools.canaries";
pub const POLICY_FILE: &str = "policy.file";
pub const REST_HOURS: &str = "engine.rest_hours";
pub const UNDECIDED_DAYS: &str = "engine.undecided_days";
pub const APPROVAL_HOURS: &str = "policy.approval_hours";
pub const PROPOSE_AFTER: &str = "policy.propose_after";
pub const VAULT_KEY_FILE: &str = "vault.key_file";
pub const VAULT_KEY: &str = "vault.key";
pub const VAULT_KEYRING_ENTRY: &str = "vault.keyring_entry";
pub const VAULT_PASSPHRASE: &str = "vault.passphrase";
pub const VAULT_PASSPHRASE_FILE: &str = "vault.passphrase_file";
pub const PRICES_FILE: &str = "models.prices";
pub const PERMISSIONS_FILE: &str = "permissions.file";
pub const OTLP: &str = "telemetry.otlp";
pub const OTLP_HEADERS: &str = "telemetry.headers";
pub const OTEL_SERVICE_NAME: &str = "telemetry.service_name";
pub const OTEL_RESOURCE: &str = "telemetry.resource";
pub const OTEL_CONTENT: &str = "telemetry.content";
pub const OTEL_SPANS_EVERY: &str = "telemetry.spans_ms";
pub const OTEL_METRICS_EVERY: &str = "telemetry.metrics_ms";
pub const OTEL_DISABLED: &str = "telemetry.disabled";
pub const LOG_LEVEL: &str = "log.level";
pub const LOG_FORMAT: &str = "log.format";

/// All settings, in the order of `config show`.
pub const SETTINGS: &[Setting] = &[
    setting(
        LISTEN,
        Some(env::LISTEN),
        Kind::Listen,
        Some("127.0.0.1:8420"),
        "TCP address; `none` for the unix socket alone. Beyond loopback it needs TLS",
    ),
    setting(
        SOCKET,
        Some(env::SOCKET),
        Kind::PathOrNone,
        Some("<data>/overmind.sock"),
        "unix socket that the commands on this machine use",
    ),
    setting(TLS_CERT, Some(env::TLS_CERT), Kind::Path, None, "certificate chain, PEM"),
    setting(TLS_KEY, Some(env::TLS_KEY), Kind::Path, None, "private key of the certificate, PEM"),
    setting(
        ALLOWED_HOSTS,
        Some(env::ALLOWED_HOSTS),
        Kind::List,
        Some(""),
        "names by which others reach this server, accepted in the Host header",
    ),
    setting(
        DRAIN_SECONDS,
        None,
        Kind::Whole { min: 0, max: 3600 },
        Some("10"),
        "how long a stop waits for current work",
    ),
    setting(
        REQUESTS_PER_SECOND,
        None,
        Kind::Whole { min: 0, max: 10_000_000 },
        Some("2000"),
        "requests per second of one caller or one address; 0 is no limit. The unix socket has no limit",
    ),
    setting(
        REQUEST_BURST,
        None,
        Kind::Whole { min: 1, max: 10_000_000 },
        Some("4000"),
        "burst of requests that is allowed above that rate",
    ),
    setting(
        STORE_PATH,
        Some(env::DB),
        Kind::Path,
        Some("<data>/overmind.db"),
        "the database: event log and current state",
    ),
    setting(
        RETENTION_DAYS,
        None,
        Kind::Whole { min: 0, max: 36_500 },
        Some("0"),
        "ended sessions older than this are removed; 0 keeps all",
    ),
    setting(
        CHECKPOINT_SECONDS,
        None,
        Kind::Whole { min: 1, max: 86_400 },
        Some("60"),
        "how often the heads of the log are signed, if it has grown",
    ),
    setting(
        WORKSPACE,
        Some(env::WORKSPACE),
        Kind::Path,
        None,
        "working directory of sessions that name none; unset is an empty private directory for each",
    ),
    setting(
        ROOMS_PROXY,
        None,
        Kind::Listen,
        Some("none"),
        "loopback address of the proxy for http://SERVICE.RUN.localhost:PORT/; `none` is no proxy",
    ),
    setting(
        ROOMS_SERVERS,
        None,
        Kind::List,
        Some(""),
        "database servers, HOST:PORT, that .overmind.yml of runs in a sandbox may name by URL",
    ),
    setting(
        ROOMS_WORKTREES,
        None,
        Kind::Path,
        None,
        "directory for worktrees of runs; unset is `worktrees` in the data directory, or with sandbox.run_as the data directory's name with -worktrees",
    ),
    setting(
        MAX_RUNNING,
        Some(env::MAX_RUNNING),
        Kind::Whole { min: 1, max: 100_000 },
        Some("64"),
        "sessions that run at once",
    ),
    setting(
        MAX_PER_AGENT,
        None,
        Kind::Whole { min: 1, max: 100_000 },
        Some("64"),
        "sessions of one agent that run at once, unless the agent says otherwise",
    ),
    setting(
        MAX_PER_COLONY,
        None,
        Kind::Whole { min: 1, max: 100_000 },
        Some("64"),
        "sessions of one colony that run at once",
    ),
    setting(OPENAI_API_KEY, Some(env::OPENAI_API_KEY), Kind::Secret, None, "key for OpenAI"),
    setting(
        "models.openai_responses_url",
        Some(env::OPENAI_RESPONSES_URL),
        Kind::Url,
        None,
        "complete URL of OpenAI's Responses; its other endpoints are expected beside it",
    ),
    setting(
        "models.openai_chat_url",
        Some(env::OPENAI_CHAT_URL),
        Kind::Url,
        None,
        "complete URL of OpenAI's Chat Completions; its other endpoints are expected beside it",
    ),
    setting(
        "models.openai_timeout_seconds",
        Some(env::OPENAI_TIMEOUT),
        Kind::Seconds,
        None,
        "timeout for silence in a call, except calls of Anthropic",
    ),
    setting(
        "models.openai_reasoning_effort",
        Some(env::OPENAI_EFFORT),
        Kind::Text,
        None,
        "effort of reasoning models if the agent sets none",
    ),
    setting(
        "models.reasoning_timeout_seconds",
        Some(env::REASONING_TIMEOUT),
        Kind::Seconds,
        None,
        "timeout for silence of reasoning models of every provider",
    ),
    setting(
        ANTHROPIC_API_KEY,
        Some(env::ANTHROPIC_API_KEY),
        Kind::Secret,
        None,
        "key for Anthropic",
    ),
    setting(
        "models.anthropic_url",
        Some(env::ANTHROPIC_URL),
        Kind::Url,
        None,
        "complete URL of Anthropic's Messages; its other endpoints are expected beside it",
    ),
    setting(DEEPSEEK_API_KEY, Some(env::DEEPSEEK_API_KEY), Kind::Secret, None, "key for DeepSeek"),
    setting(
        "models.deepseek_chat_url",
        Some(env::DEEPSEEK_CHAT_URL),
        Kind::Url,
        None,
        "complete URL of DeepSeek's Chat Completions",
    ),
    setting(
        "models.deepseek_reasoning_effort",
        Some(env::DEEPSEEK_EFFORT),
        Kind::Text,
        None,
        "effort of DeepSeek's reasoning models if the agent sets none",
    ),
    setting(
        "models.deepseek_thinking",
        Some(env::DEEPSEEK_THINKING),
        Kind::Choice(&["enabled", "disabled"]),
        None,
        "DeepSeek's option for thinking; unset sends no option",
    ),
    setting(
        "models.base_url",
        Some(env::MODEL_BASE_URL),
        Kind::Url,
        None,
        "any other server: Ollama, vLLM, llama-server, a proxy; it gets every model whose own provider has no key",
    ),
    setting(
        "models.api_key",
        Some(env::MODEL_API_KEY),
        Kind::Secret,
        None,
        "key for that server, if it wants one",
    ),
    setting(
        GATEWAY_CAPTURE,
        None,
        Kind::Whole { min: 0, max: 1 << 20 },
        Some("0"),
        "bytes of each request and answer of /llm that are kept with the record of the call; 0 is none",
    ),
    setting(
        GATEWAY_RECORD,
        None,
        Kind::Path,
        None,
        "file to which the answers to all calls of /llm are recorded",
    ),
    setting(
        GATEWAY_REPLAY,
        None,
        Kind::Path,
        None,
        "recorded file that answers all calls of /llm; no provider is asked",
    ),
    setting(
        CASSETTES,
        Some(env::CASSETTES),
        Kind::Path,
        Some("<data>/cassettes"),
        "directory of the files behind models named `scripted:NAME`",
    ),
    setting(
        EMBEDDING_PROVIDER,
        Some(env::EMBEDDING_PROVIDER),
        Kind::Text,
        Some("auto"),
        "auto (OpenAI if its key is set, otherwise words), openai or endpoint, file, or local or none (words)",
    ),
    setting(
        EMBEDDING_MODEL,
        Some(env::EMBEDDING_MODEL),
        Kind::Text,
        Some("text-embedding-3-small"),
        "model that turns memory into vectors",
    ),
    setting(
        EMBEDDING_DIMS,
        Some(env::EMBEDDING_DIMS),
        Kind::Whole { min: 1, max: 65_536 },
        None,
        "dimensions to ask the embedding model for; unset takes the model's own",
    ),
    setting(
        EMBEDDING_PATH,
        Some(env::EMBEDDING_PATH),
        Kind::Path,
        None,
        "for `file`: directory with a static model, model.safetensors and tokenizer.json",
    ),
    setting(
        EMBEDDINGS_URL,
        Some(env::EMBEDDINGS_URL),
        Kind::Url,
        None,
        "exact URL of the embeddings endpoint; unset is OpenAI's",
    ),
    setting(
        SANDBOX_READ_ONLY,
        None,
        Kind::List,
        Some(""),
        "further directories that the `namespace` sandbox shows read-only, such as a compiler's",
    ),
    setting(
        SANDBOX_RUN_AS,
        None,
        Kind::Text,
        None,
        "for a server that runs as root: user and group of commands, as uid:gid; unset is root",
    ),
    setting(
        DOCKER_HOST,
        Some(env::DOCKER_HOST),
        Kind::Text,
        None,
        "address of the Docker engine; unset is its usual socket",
    ),
    setting(
        DOCKER_IMAGE,
        Some(env::DOCKER_IMAGE),
        Kind::Text,
        Some("alpine:3.20"),
        "image of the `docker` sandbox",
    ),
    setting(
        DOCKER_PINNED,
        None,
        Kind::Choice(&["yes", "no"]),
        Some("no"),
        "yes refuses an image that is not named by its digest (…@sha256:…) or id (sha256:…)",
    ),
    setting(
        MICROVM_DIR,
        None,
        Kind::Path,
        None,
        "where images of the `microvm` sandbox are kept; unset is the data directory's microvm",
    ),
    setting(
        MICROVM_EMULATION,
        None,
        Kind::Choice(&["no", "yes", "always"]),
        Some("no"),
        "whether the `microvm` sandbox may emulate a processor where KVM is missing: much slower",
    ),
    setting(
        ALLOW_HOSTS,
        None,
        Kind::List,
        Some(""),
        "what http_request and web_fetch may reach: `[private] [METHOD|…] [scheme://]host[:port]`",
    ),
    setting(
        COMMANDS,
        None,
        Kind::List,
        Some(""),
        "programs that run_command may run, by their bare names",
    ),
    setting(
        RUNNER,
        None,
        Kind::List,
        Some(""),
        "a program and arguments that are prepended to every command of run_command",
    ),
    setting(
        PRIVATE_PATHS,
        None,
        Kind::List,
        None,
        "private files of a workspace, as globs; unset is keys and credentials by their usual names",
    ),
    setting(
        UNTRUSTED_PATHS,
        None,
        Kind::List,
        None,
        "untrusted files of a workspace, as globs; unset is files that MCP servers create",
    ),
    setting(
        CANARIES,
        None,
        Kind::Choice(&["on", "off"]),
        Some("on"),
        "whether fake secrets (canaries) are planted for commands and detected wherever data could leave",
    ),
    setting(
        POLICY_FILE,
        Some(env::POLICY),
        Kind::PathOrNone,
        Some("<data>/policy.toml"),
        "the policy file, read again when it changes; without it the built-in policy applies, and `none` turns the policy off",
    ),
    setting(
        PRICES_FILE,
        None,
        Kind::PathOrNone,
        Some("<data>/prices.toml"),
        "prices of models, which override the built-in table; `none` is no file",
    ),
    setting(
        APPROVAL_HOURS,
        None,
        Kind::Whole { min: 0, max: 8760 },
        Some("168"),
        "approvals that take longer expire and are asked again; 0 is never",
    ),
    setting(
        REST_HOURS,
        None,
        Kind::Whole { min: 0, max: 8760 },
        Some("24"),
        "idle runs whose program or services still run are ended after this time; `send` continues them; 0 is never",
    ),
    setting(
        UNDECIDED_DAYS,
        None,
        Kind::Whole { min: 0, max: 3650 },
        Some("14"),
        "undecided work of ended runs is saved on its branch after this time, and the worktree removed; 0 is never",
    ),
    setting(
        PROPOSE_AFTER,
        None,
        Kind::Whole { min: 2, max: 1000 },
        Some("3"),
        "number of identical approvals after which a rule is proposed",
    ),
    setting(
        VAULT_KEY_FILE,
        None,
        Kind::Path,
        Some("<data>/vault.key"),
        "file of the vault's master keys; created with the first secret",
    ),
    setting(
        VAULT_KEY,
        None,
        Kind::Choice(&["file", "keyring"]),
        Some("file"),
        "where the master keys are: in the key file, or in the keyring of the desktop (secret-tool)",
    ),
    setting(
        VAULT_KEYRING_ENTRY,
        None,
        Kind::Text,
        None,
        "name of the entry in the keyring; unset is the data directory",
    ),
    setting(
        VAULT_PASSPHRASE,
        Some(env::VAULT_PASSPHRASE),
        Kind::Secret,
        None,
        "passphrase of the vault's key file",
    ),
    setting(
        VAULT_PASSPHRASE_FILE,
        None,
        Kind::Path,
        None,
        "file with the passphrase; only its owner may read it",
    ),
    setting(
        PERMISSIONS_FILE,
        None,
        Kind::Path,
        Some("<data>/permissions.json"),
        "permissions of agents in the mesh, read again when the file changes; JSON, or TOML if the name ends in .toml; permissions.toml is also found",
    ),
    setting(
        OTLP,
        Some(env::OTLP_ENDPOINT),
        Kind::Url,
        None,
        "base URL of an OpenTelemetry collector that accepts OTLP over HTTP; unset exports nothing",
    ),
    setting(
        OTLP_HEADERS,
        Some(env::OTLP_HEADERS),
        Kind::Secret,
        None,
        "headers of requests to the collector, as NAME=VALUE,…",
    ),
    setting(
        OTEL_SERVICE_NAME,
        Some(env::OTEL_SERVICE_NAME),
        Kind::Text,
        None,
        "service name of this server in telemetry; unset is `overmind`",
    ),
    setting(
        OTEL_RESOURCE,
        Some(env::OTEL_RESOURCE),
        Kind::Text,
        None,
        "further resource attributes, as NAME=VALUE,…",
    ),
    setting(
        OTEL_CONTENT,
        Some(env::OTEL_CONTENT),
        Kind::Choice(&[
            "false",
            "true",
            "no_content",
            "span_only",
            "event_only",
            "span_and_event",
            "NO_CONTENT",
            "SPAN_ONLY",
            "EVENT_ONLY",
            "SPAN_AND_EVENT",
        ]),
        Some("false"),
        "whether spans contain content: tasks, replies, arguments and results",
    ),
    setting(
        OTEL_SPANS_EVERY,
        Some(env::OTEL_SPANS_EVERY),
        Kind::Whole { min: 1, max: 600_000 },
        Some("5000"),
        "milliseconds for which spans are collected before they are sent",
    ),
    setting(
        OTEL_METRICS_EVERY,
        Some(env::OTEL_METRICS_EVERY),
        Kind::Whole { min: 100, max: 86_400_000 },
        Some("60000"),
        "milliseconds between two reports of metrics",
    ),
    setting(
        OTEL_DISABLED,
        Some(env::OTEL_DISABLED),
        Kind::Choice(&["false", "true"]),
        Some("false"),
        "true exports nothing, whatever else is set",
    ),
    setting(
        LOG_LEVEL,
        Some(env::LOG),
        Kind::Text,
        Some("info"),
        "error, warn, info, debug, trace, or directives such as `info,overmind_engine=debug`",
    ),
    setting(
        LOG_FORMAT,
        Some(env::LOG_FORMAT),
        Kind::Choice(&["auto", "text", "json"]),
        Some("auto"),
        "auto is text on a terminal and json elsewhere",
    ),
];

/// Fields of `[providers.NAME]`, one table for each further model server.
pub const PROVIDER_FIELDS: &[Setting] = &[
    setting("base_url", None, Kind::Url, None, "base URL, for example http://127.0.0.1:11434/v1"),
    setting("api_key", None, Kind::Secret, None, "its key; it is sent nowhere else"),
    setting(
        "format",
        None,
        Kind::Choice(&["openai-chat", "openai-responses", "anthropic"]),
        Some("openai-chat"),
        "the wire format it speaks",
    ),
    setting(
        "models",
        None,
        Kind::List,
        Some(""),
        "names of its models, `*` at the end for all names with this beginning; NAME:MODEL works without",
    ),
    setting(
        "max_concurrent",
        None,
        Kind::Whole { min: 1, max: 100_000 },
        Some("2048"),
        "calls of /llm that it gets at once; further calls wait, and beyond a bound they are refused with `Retry-After`",
    ),
    setting(
        "max_per_minute",
        None,
        Kind::Whole { min: 1, max: 10_000_000 },
        None,
        "calls of /llm that it is given in a minute; unset is unlimited",
    ),
];

/// Fields of `[aliases.NAME]`, one table for each of our own names for models.
pub const ALIAS_FIELDS: &[Setting] = &[setting(
    "to",
    None,
    Kind::List,
    None,
    "models for calls of /llm with this name; if one fails, the next one is used",
)];

/// Fields of `[canaries.NAME]`, one table for each additional canary.
pub const CANARY_FIELDS: &[Setting] = &[
    setting("env", None, Kind::Text, None, "the variable of commands that contains the canary"),
    setting("file", None, Kind::Text, None, "the canary's file, relative to a sandbox's home"),
    setting(
        "credential",
        None,
        Kind::Text,
        None,
        "name of the secret that is its value, as in OVERMIND_CRED_NAME; unset creates a value for each session",
    ),
    setting("text", None, Kind::Lines, None, "content of the file, with {canary} for the value"),
];

/// Fields of `[services.NAME]`, one table for each external service that a secret of the vault
/// opens.
pub const SERVICE_FIELDS: &[Setting] = &[
    setting("base_url", None, Kind::Url, None, "base URL; paths of calls are below it"),
    setting(
        "auth",
        None,
        Kind::Text,
        None,
        "where the key is sent: bearer, header NAME, query NAME, basic USER or none",
    ),
    setting("secret", None, Kind::Text, None, "the secret of the vault that is its key"),
    setting("allow", None, Kind::List, None, "what may be called, as in `GET|POST /issues/**`"),
    setting(
        "key_optional",
        None,
        Kind::Choice(&["yes", "no"]),
        None,
        "whether the service may be called without a key",
    ),
    setting(
        "plaintext",
        None,
        Kind::Choice(&["yes", "no"]),
        None,
        "whether plain http to another machine is allowed",
    ),
    setting(
        "private",
        None,
        Kind::Choice(&["yes", "no"]),
        None,
        "whether the host name may resolve to a private address",
    ),
    setting(
        "kind",
        None,
        Kind::Choice(&["openai", "anthropic", "gemini"]),
        None,
        "the model API of the service, if it is a model server",
    ),
    setting(
        "request_bytes",
        None,
        Kind::Whole { min: 1, max: 64 << 20 },
        None,
        "maximum size of the body of a call",
    ),
    setting(
        "response_bytes",
        None,
        Kind::Whole { min: 1, max: 64 << 20 },
        None,
        "longest body of an answer",
    ),
    setting(
        "timeout_ms",
        None,
        Kind::Whole { min: 100, max: 3_600_000 },
        None,
        "longest time of a call",
    ),
    setting(
        "per_minute",
        None,
        Kind::Whole { min: 0, max: 1_000_000 },
        None,
        "calls within a minute, of all sessions together; 0 is no bound",
    ),
];

/// Named tables of which there may be several: the prefix of their keys, and their fields.
pub const FAMILIES: &[(&str, &[Setting])] = &[
    ("providers", PROVIDER_FIELDS),
    ("canaries", CANARY_FIELDS),
    ("services", SERVICE_FIELDS),
    ("aliases", ALIAS_FIELDS),
];

pub fn by_key(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_own_key_and_a_listed_variable() {
        let mut keys: Vec<_> = SETTINGS.iter().map(|setting| setting.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), SETTINGS.len());
        for setting in SETTINGS {
            assert!(setting.env.is_none_or(|name| env::NAMES.contains(&name)), "{}", setting.key);
        }
    }
}
