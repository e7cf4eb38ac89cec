//! The configuration of one server, and its checks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use overmind_core::sandbox::SandboxLevel;
use serde::{Deserialize, Serialize};

/// One MCP server. It is stored as JSON and never contains a secret's text (see [`Value`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// `a-z`, digits, `-` and `_`, beginning with a letter, at most 32 characters: the middle part
    /// of `mcp.<server>.<tool>`.
    pub id: String,
    #[serde(default = "yes")]
    pub enabled: bool,
    pub transport: Transport,
    #[serde(default)]
    pub scope: Scope,
    #[serde(default)]
    pub approve: Approve,
    #[serde(default)]
    pub same_names: SameNames,
    #[serde(default)]
    pub protocol: Protocol,
    /// Whether to trust `readOnlyHint` and `idempotentHint`. Otherwise every tool is called at most
    /// once.
    #[serde(default)]
    pub trust_annotations: bool,
    /// The only allowed tools, by the server's own names; if empty, all are allowed.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Tools that are never allowed.
    #[serde(default)]
    pub deny: Vec<String>,
    #[serde(default)]
    pub limits: Limits,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Transport {
    /// A program on this machine that talks through its standard streams.
    Stdio {
        command: String,
        #[serde(default)]
        args: Vec<String>,
        /// All of its variables besides `PATH`, `HOME`, `LANG` and `TMPDIR`.
        #[serde(default)]
        env: BTreeMap<String, Value>,
        #[serde(default = "namespace")]
        sandbox: SandboxLevel,
        /// Directories of the host that it may read, at the same path. At the level `none` it can
        /// read everything that the daemon's user can.
        #[serde(default)]
        read_only: Vec<PathBuf>,
        /// Whether it may write the whole workspace of its session, and not only its own directory
        /// there. Only for [`Scope::Session`].
        #[serde(default)]
        writes_workspace: bool,
    },
    /// A server with the transport Streamable HTTP.
    Http {
        url: String,
        #[serde(default)]
        headers: BTreeMap<String, Value>,
    },
}

/// A setting whose value may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields, untagged)]
pub enum Value {
    Plain(String),
    /// The name of a secret, which the daemon looks up each time it is needed.
    Secret {
        secret: String,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One process or connection serves all sessions.
    #[default]
    Shared,
    /// Each session has its own, which ends with it; its working directory is in the session's
    /// workspace.
    Session,
}

/// How the first tools of the server are approved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approve {
    /// Adding the server approves the tools of its first answer, but no later ones.
    #[default]
    FirstUse,
    /// No tool is used before it is pinned.
    Manual,
}

/// How to handle a tool whose name another server or a built-in tool also has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SameNames {
    #[default]
    Refuse,
    Accept,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// 2026-07-28 if the server supports it, otherwise the version that the handshake of 2025-11-25
    /// negotiates.
    #[default]
    Auto,
    /// Only the handshake, for a server that fails when it is asked.
    Handshake,
}

/// Limits of one server. Zero is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The time from its start to the list of its tools.
    pub start_ms: u64,
    /// The time between signs of activity (progress, or the answer) of one call.
    pub call_ms: u64,
    /// The total time of one call, whatever progress it reports.
    pub call_total_ms: u64,
    /// The time without calls after which a session's own server is ended.
    pub idle_ms: u64,
    /// The bytes of text of one result that are forwarded; the rest is only counted.
    pub result_bytes: usize,
    pub memory_bytes: u64,
    pub pids: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start_ms: 30_000,
            call_ms: 60_000,
            call_total_ms: 600_000,
            idle_ms: 600_000,
            result_bytes: 100_000,
            memory_bytes: 1 << 30,
            pids: 128,
        }
    }
}

impl Limits {
    pub(crate) fn start(&self) -> Duration {
        Duration::from_millis(self.start_ms)
    }
    pub(crate) fn call(&self) -> Duration {
        Duration::from_millis(self.call_ms)
    }
    pub(crate) fn call_total(&self) -> Duration {
        Duration::from_millis(self.call_total_ms)
    }
    pub(crate) fn idle(&self) -> Duration {
        Duration::from_millis(self.idle_ms)
    }
}

/// The problem with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {why}")]
pub struct ConfigError {
    /// The name of the field, for example `command`.
    pub field: String,
    pub why: String,
}

fn wrong<T>(field: &str, why: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError { field: field.to_owned(), why: why.into() })
}

fn yes() -> bool {
    true
}

fn namespace() -> SandboxLevel {
    SandboxLevel::Namespace
}

/// Longest server id.
pub(crate) const MAX_ID_BYTES: usize = 32;
const MAX_ITEMS: usize = 256;
const MAX_TEXT_BYTES: usize = 8 << 10;
/// The longest time of any limit: a day.
const MAX_MS: u64 = 24 * 60 * 60 * 1000;

impl ServerConfig {
    /// A server with default values for everything else.
    pub fn new(id: impl Into<String>, transport: Transport) -> Self {
        Self {
            id: id.into(),
            enabled: true,
            transport,
            scope: Scope::default(),
            approve: Approve::default(),
            same_names: SameNames::default(),
            protocol: Protocol::default(),
            trust_annotations: false,
            allow: Vec::new(),
            deny: Vec::new(),
            limits: Limits::default(),
        }
    }

    /// # Errors
    ///
    /// [`ConfigError`] names the first invalid field.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut letters = self.id.bytes();
        let sound = letters.next().is_some_and(|first| first.is_ascii_lowercase())
            && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b))
            && self.id.len() <= MAX_ID_BYTES;
        if !sound {
            return wrong(
                "id",
                "must be a-z, 0-9, `-` and `_`, begin with a letter and have at most 32 characters",
            );
        }
        match &self.transport {
            Transport::Stdio { command, args, env, sandbox, read_only, writes_workspace } => {
                plain("command", command)?;
                if command.trim().is_empty() {
                    return wrong("command", "must not be empty");
                }
                if args.len() > MAX_ITEMS || env.len() > MAX_ITEMS || read_only.len() > MAX_ITEMS {
                    return wrong("args", "and env and read_only have at most 256 items each");
                }
                check_args(args)?;
                for (name, value) in env {
                    variable(name)?;
                    value.check("env")?;
                }
                if matches!(sandbox, SandboxLevel::Docker | SandboxLevel::Microvm) {
                    return wrong("sandbox", "must be namespace or none: a server needs its pipes");
                }
                if let Some(path) = read_only.iter().find(|path| !path.is_absolute()) {
                    return wrong("read_only", format!("has {}: not absolute", path.display()));
                }
                if *writes_workspace && self.scope != Scope::Session {
                    return wrong(
                        "writes_workspace",
                        "needs scope = session: a shared server has no workspace",
                    );
                }
            }
            Transport::Http { url, headers } => {
                check_url(url, headers)?;
                for (name, value) in headers {
                    let token = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
                    let reserved =
                        ["host", "content-length", "content-type", "accept", "connection"];
                    let lower = name.to_ascii_lowercase();
                    if name.is_empty()
                        || !name.bytes().all(token)
                        || lower.starts_with("mcp-")
                        || reserved.contains(&lower.as_str())
                    {
                        return wrong("headers", format!("must not set `{}`", name.escape_debug()));
                    }
                    value.check("headers")?;
                }
            }
        }
        let bounds = [
            ("limits.start_ms", self.limits.start_ms),
            ("limits.call_ms", self.limits.call_ms),
            ("limits.call_total_ms", self.limits.call_total_ms),
            ("limits.idle_ms", self.limits.idle_ms),
        ];
        if let Some((field, _)) = bounds.iter().find(|(_, ms)| *ms == 0 || *ms > MAX_MS) {
            return wrong(field, "must be from 1 ms to a day");
        }
        if self.limits.result_bytes == 0 || self.limits.result_bytes > 4 << 20 {
            return wrong("limits.result_bytes", "must be from 1 to 4 MiB");
        }
        if self.limits.memory_bytes == 0 || self.limits.pids == 0 {
            return wrong("limits", "of memory and processes must be above 0");
        }
        if self.allow.len() > MAX_ITEMS || self.deny.len() > MAX_ITEMS {
            return wrong("allow", "and deny have at most 256 names each");
        }
        Ok(())
    }

    /// Whether the lists allow this tool, by the server's own name.
    pub(crate) fn lists(&self, tool: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == tool);
        !named(&self.deny) && (self.allow.is_empty() || named(&self.allow))
    }

    /// A copy for display, with every plain value of env and headers hidden.
    pub fn masked(&self) -> Self {
        let mut shown = self.clone();
        let values = match &mut shown.transport {
            Transport::Stdio { env, .. } => env,
            Transport::Http { headers, .. } => headers,
        };
        for value in values.values_mut() {
            if let Value::Plain(text) = value {
                "***".clone_into(text);
            }
        }
        shown
    }

    /// Restores plain values that came back masked, from `old`: a user can edit the displayed
    /// configuration without knowing them.
    pub(crate) fn unmask(&mut self, old: &Self) {
        let (new, old) = match (&mut self.transport, &old.transport) {
            (Transport::Stdio { env: new, .. }, Transport::Stdio { env: old, .. })
            | (Transport::Http { headers: new, .. }, Transport::Http { headers: old, .. }) => {
                (new, old)
            }
            (Transport::Stdio { .. } | Transport::Http { .. }, _) => return,
        };
        for (name, value) in new {
            if matches!(value, Value::Plain(text) if text == "***")
                && let Some(known) = old.get(name)
            {
                value.clone_from(known);
            }
        }
    }
}

impl Value {
    fn check(&self, field: &str) -> Result<(), ConfigError> {
        match self {
            Self::Plain(text) => {
                plain(field, text)?;
                if looks_secret(text) {
                    return wrong(
                        field,
                        "has a value that looks like a key: keep it as a secret and name it here, as {\"secret\": NAME}",
                    );
                }
                Ok(())
            }
            Self::Secret { secret } => variable(secret),
        }
    }
}

/// The forms of well-known keys. The store would mask such a value, which would then be useless
/// after a restart, so it is refused here.
fn looks_secret(text: &str) -> bool {
    let bare = text.strip_prefix("Bearer ").unwrap_or(text);
    let starts = ["sk-", "ghp_", "gho_", "ghs_", "github_pat_", "xoxb-", "xoxp-", "AKIA", "glpat-"];
    bare.len() >= 16 && starts.iter().any(|start| bare.starts_with(start))
        || bare.len() < text.len()
}

/// Arguments are shown to everybody who may read the configuration, so they hold no secret: no text
/// in the form of a key, and no value of an option that is named for one.
fn check_args(args: &[String]) -> Result<(), ConfigError> {
    let mut named = None;
    for arg in args {
        plain("args", arg)?;
        let (option, value) = match arg.split_once('=') {
            Some((option, value)) => (Some(option), value),
            None => (None, arg.as_str()),
        };
        let of = option.or(named.filter(|_| !arg.starts_with('-')));
        let guarded = of.filter(|of| names_secret(of) && !is_path(value));
        let option = guarded.filter(|_| value.len() >= SHORTEST_SECRET);
        if looks_secret(value) || looks_secret(arg) || option.is_some() {
            let of = option.map(|option| format!(" (`{}`)", option.escape_debug()));
            return wrong(
                "args",
                format!(
                    "has a value that looks like a key{}: keep it as a secret and name it in env, as \
                     {{\"secret\": NAME}}",
                    of.unwrap_or_default()
                ),
            );
        }
        named = arg.starts_with('-').then_some(arg.as_str());
    }
    Ok(())
}

/// Shorter values of options are not taken for secrets.
const SHORTEST_SECRET: usize = 8;

/// Whether an option or a variable is one for a secret: `--api-key`, `DB_PASSWORD`. Not what only
/// speaks of one: `--token-file`, `--max-tokens`.
fn names_secret(option: &str) -> bool {
    let small = option.to_ascii_lowercase();
    let mut words = small.split(|c: char| !c.is_ascii_alphanumeric()).rev();
    let (last, before) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    ["password", "passwd", "passphrase", "secret", "token", "apikey", "credential", "credentials"]
        .contains(&last)
        || last == "key" && ["api", "access", "secret", "auth"].contains(&before)
}

/// Whether a value names a file, such as one with a secret in it.
fn is_path(value: &str) -> bool {
    ["/", "./", "../", "~/"].iter().any(|start| value.starts_with(start))
}

fn plain(field: &str, text: &str) -> Result<(), ConfigError> {
    if text.len() > MAX_TEXT_BYTES || text.chars().any(char::is_control) {
        return wrong(field, "must have at most 8 KiB and no control characters");
    }
    Ok(())
}

fn variable(name: &str) -> Result<(), ConfigError> {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !first || !bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') || name.len() > 128 {
        return wrong("env", format!("has a name that is none: `{}`", name.escape_debug()));
    }
    // These make the loader or an interpreter run code that was not configured.
    let loads = name.starts_with("LD_")
        || ["NODE_OPTIONS", "PYTHONSTARTUP", "BASH_ENV", "ENV", "PERL5OPT", "RUBYOPT"]
            .contains(&name);
    if loads {
        return wrong("env", format!("must not set {name}: it loads code; name the code in args"));
    }
    Ok(())
}

fn check_url(url: &str, headers: &BTreeMap<String, Value>) -> Result<(), ConfigError> {
    plain("url", url)?;
    let Ok(parsed) = reqwest::Url::parse(url) else {
        return wrong("url", "is not a URL");
    };
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return wrong("url", "must not hold credentials: name them as a secret in headers");
    }
    if parsed.fragment().is_some() {
        return wrong("url", "must not have a fragment");
    }
    let local = match parsed.host_str() {
        None => return wrong("url", "names no host"),
        Some(host) => {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            host == "localhost"
                || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    };
    match parsed.scheme() {
        "https" => Ok(()),
        "http" if local || headers.is_empty() => Ok(()),
        "http" => wrong("url", "must be https: its headers would cross the network in clear"),
        _ => wrong("url", "must be http or https"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stdio() -> ServerConfig {
        ServerConfig::new(
            "files",
            Transport::Stdio {
                command: "node".into(),
                args: vec!["server.js".into()],
                env: BTreeMap::from([
                    ("MODE".into(), Value::Plain("quiet".into())),
                    ("KEY".into(), Value::Secret { secret: "FILES_KEY".into() }),
                ]),
                sandbox: SandboxLevel::Namespace,
                read_only: vec!["/opt/server".into()],
                writes_workspace: false,
            },
        )
    }

    #[test]
    fn a_configuration_round_trips() {
        let config = stdio();
        assert_eq!(config.check(), Ok(()));
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<ServerConfig>(&text).unwrap(), config);
        let short = r#"{"id":"a","transport":{"kind":"stdio","command":"x"}}"#;
        let read: ServerConfig = serde_json::from_str(short).unwrap();
        assert!(matches!(
            read.transport,
            Transport::Stdio { sandbox: SandboxLevel::Namespace, .. }
        ));
        assert!(serde_json::from_str::<ServerConfig>(r#"{"id":"a","tranport":1}"#).is_err());
    }

    #[test]
    fn secret_values_are_shown_masked_and_masked_values_are_accepted() {
        let config = stdio();
        let mut shown = config.masked();
        assert!(!serde_json::to_string(&shown).unwrap().contains("quiet"));
        shown.unmask(&config);
        assert_eq!(shown, config);
    }

    #[test]
    fn arguments_that_look_like_secrets_are_refused() {
        let given = |args: &[&str]| {
            let mut config = stdio();
            if let Transport::Stdio { args: own, .. } = &mut config.transport {
                *own = args.iter().map(|&arg| arg.to_owned()).collect();
            }
            config.check()
        };
        for secret in [
            &["--password=URLPASS-55aa77cc99"][..],
            &["--token", "argsecret-abc123456"],
            &["run", "--api-key", "0123456789ab"],
            &["DB_PASSWORD=correct-horse"],
            &["ghp_abcdefghijklmnopqrst"],
            &["--header=Bearer abc"],
            &["--use=ghp_abcdefghijklmnopqrst"],
        ] {
            let err = given(secret).unwrap_err();
            assert_eq!(err.field, "args", "{secret:?}");
            assert!(err.to_string().contains("keep it as a secret"), "{err}");
            let value = secret.last().unwrap().rsplit('=').next().unwrap();
            assert!(!err.to_string().contains(value), "the value is not quoted: {err}");
        }
        for plain in [
            &["--token-file=/run/secrets/token"][..],
            &["--token", "/run/secrets/token"],
            &["--max-tokens=100000000"],
            &["--token", "--verbose-output"],
            &["--password=x"],
            &["server.js", "--key", "some-plain-word"],
            &["https://host.example/?q=long-enough"],
        ] {
            assert_eq!(given(plain), Ok(()), "{plain:?}");
        }
    }

    #[test]
    fn invalid_configurations_are_refused_by_field() {
        let refused = |change: &dyn Fn(&mut ServerConfig), field: &str| {
            let mut config = stdio();
            change(&mut config);
            assert_eq!(config.check().unwrap_err().field, field);
        };
        for id in ["", "A", "1a", "a.b", "аdmin", "a b", &"a".repeat(33)] {
            refused(&|c| c.id = id.to_owned(), "id");
        }
        let env = |name: &str, text: &str| {
            let (name, text) = (name.to_owned(), text.to_owned());
            move |c: &mut ServerConfig| {
                if let Transport::Stdio { env, .. } = &mut c.transport {
                    env.insert(name.clone(), Value::Plain(text.clone()));
                }
            }
        };
        refused(&env("LD_PRELOAD", "x.so"), "env");
        refused(&env("A=B", ""), "env");
        refused(&env("TOKEN", "ghp_abcdefghijklmnopqrst"), "env");
        refused(&|c| c.limits.call_ms = 0, "limits.call_ms");
        let http = |url: &str, secret: bool| {
            let headers =
                secret.then(|| ("Authorization".to_owned(), Value::Secret { secret: "T".into() }));
            let transport =
                Transport::Http { url: url.into(), headers: headers.into_iter().collect() };
            ServerConfig::new("web", transport).check().map_err(|err| err.field)
        };
        assert_eq!(http("https://example.com/mcp", true), Ok(()));
        assert_eq!(http("http://127.0.0.1:1/mcp", true), Ok(()));
        assert_eq!(http("http://example.com/mcp", true), Err("url".into()));
        assert_eq!(http("https://u:p@example.com/mcp", false), Err("url".into()));
        assert_eq!(http("file:///etc/passwd", false), Err("url".into()));
    }
}
