//! The configuration: file < environment < flags, checked once, here.
//!
//! [`Config::load`] is the entry point. Unknown keys in the file are errors, because a typing error
//! must not silently select a default. Each value remembers its source, for `overmind config show`.
//! No code outside of this module reads the environment; other crates get values.

mod canaries;
pub mod data;
pub mod env;
pub mod error;
pub mod file;
pub mod layers;
pub mod secret;
mod services;
pub mod settings;
mod telemetry;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use overmind_core::canary::Declared;
use overmind_core::vault::service::Service;
use overmind_sandbox::microvm::Acceleration;

use crate::app::permissions::PermissionsPlace;
use canaries::DeclaredCanary;
pub use data::DataDir;
pub use env::Env;
pub use error::ConfigError;
use layers::{Layers, Source};
pub use secret::Secret;
use settings as key;

/// All settings of the server, checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub data: DataDir,
    /// The file that was read, whether or not it exists.
    pub file: PathBuf,
    pub listen: Option<SocketAddr>,
    pub socket: Option<PathBuf>,
    /// Certificate chain and key; both or neither are set.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub allowed_hosts: Vec<String>,
    pub drain: Duration,
    /// Requests per second and the burst; `None` is no limit.
    pub request_rate: Option<(u32, u32)>,
    pub store_path: PathBuf,
    pub retention: Option<Duration>,
    pub checkpoint_every: Duration,
    pub workspace: PathBuf,
    /// The address of the proxy for the names of runs' services.
    pub rooms_proxy: Option<SocketAddr>,
    /// Database servers, `host:port`, that projects of runs in a sandbox may name.
    pub rooms_servers: Vec<String>,
    /// The directory in which worktrees of runs are made.
    pub rooms_worktrees: PathBuf,
    pub max_running: u32,
    pub max_running_per_agent: u32,
    pub max_running_per_colony: u32,
    /// Model servers in addition to the built-in ones.
    pub providers: Vec<Provider>,
    /// `[aliases.NAME]`: models by our own names, first choice first.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// Absolute directories that the namespace sandbox shows in addition to the system's.
    pub sandbox_read_only: Vec<PathBuf>,
    /// The user and group as which a root server runs commands.
    pub sandbox_run_as: Option<(u32, u32)>,
    pub docker_pinned: bool,
    pub docker_host: Option<String>,
    pub docker_image: String,
    pub microvm_dir: PathBuf,
    pub microvm_acceleration: Acceleration,
    /// The limits of the tools; see the settings of the same names.
    pub allow_hosts: Vec<String>,
    pub commands: Vec<String>,
    pub runner: Vec<String>,
    pub private_paths: Option<Vec<String>>,
    pub untrusted_paths: Option<Vec<String>>,
    /// The server's variables that command agents inherit.
    pub environment: Vec<(String, String)>,
    /// Whether canaries are planted and searched.
    pub canaries: bool,
    /// Canaries in addition to those of every session.
    declared_canaries: Vec<DeclaredCanary>,
    pub policy: PolicyChoice,
    /// The file of the user's own prices, which may be missing.
    pub prices: Option<PathBuf>,
    pub permissions: PermissionsPlace,
    pub approval_ttl: Option<Duration>,
    /// How long an idle session may keep a program or services; `None` means forever.
    pub rest: Option<Duration>,
    /// How long worktrees wait for a decision; `None` means forever.
    pub undecided: Option<Duration>,
    pub propose_after: u32,
    /// The target of spans and metrics; `None` means nowhere.
    pub telemetry: Option<overmind_telemetry::Config>,
    pub log_level: String,
    pub log_format: LogFormat,
    /// The file of the vault's master keys.
    pub vault_key_file: PathBuf,
    /// The keyring entry that holds them instead of the file.
    pub vault_keyring: Option<String>,
    pub vault_passphrase: Option<Secret>,
    pub vault_passphrase_file: Option<PathBuf>,
    /// Services that the file declares.
    pub services: Vec<Service>,
    /// Secrets by name, from `OVERMIND_CRED_…`.
    pub credentials: BTreeMap<String, Secret>,
    /// Whether the server continues with a store that lost acknowledged data.
    pub accept_loss: bool,
    /// Whether the server starts without a key that open runs use.
    pub without_keys: bool,
    pub layers: Layers,
}

/// One `[providers.NAME]` table.
#[derive(Clone, Debug)]
pub struct Provider {
    pub name: String,
    pub base_url: String,
    pub key: Option<Secret>,
    /// The secret of the vault that is its key, while that secret exists.
    pub secret: String,
    pub format: String,
    /// Names of its models in addition to those of the form `NAME:MODEL`.
    pub models: Vec<String>,
    /// Maximum number of calls of `/llm` at once, and in a minute; `None` selects the default.
    pub max_concurrent: Option<usize>,
    pub max_per_minute: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Auto,
    Text,
    Json,
}

/// The configuration from the command line.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    pub data: Option<PathBuf>,
    pub config: Option<PathBuf>,
    /// See [`Config::accept_loss`].
    pub accept_loss: bool,
    /// See [`Config::without_keys`].
    pub without_keys: bool,
    /// `(key, flag's name, value)`.
    pub values: Vec<(&'static str, &'static str, String)>,
}

impl Config {
    /// Reads and checks all layers. Creates nothing on disk.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] describes the first problem.
    pub fn load(flags: &Flags, env: &Env, cwd: &Path) -> Result<Self, ConfigError> {
        let data = DataDir::locate(flags.data.as_deref(), env, cwd)?;
        let file = match flags.config.clone().or_else(|| env.path(env::CONFIG)) {
            Some(path) => {
                let path = cwd.join(path);
                // A named file must exist; the default one may be missing.
                std::fs::metadata(&path)
                    .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
                path
            }
            None => data.config_file(),
        };
        let layers = Layers::collect(data.path(), &file, env, &flags.values, cwd)?;
        let checked = Self::checked(data, file, layers, cwd)?;
        let inherited = env::INHERITED.iter();
        let environment = inherited
            .filter_map(|name| Some(((*name).to_owned(), env.text(name)?.to_owned())))
            .collect();
        let Flags { accept_loss, without_keys, .. } = *flags;
        let credentials = env.credentials();
        Ok(Self { credentials, environment, accept_loss, without_keys, ..checked })
    }

    fn checked(
        data: DataDir,
        file: PathBuf,
        layers: Layers,
        cwd: &Path,
    ) -> Result<Self, ConfigError> {
        let text = |key: &str| layers.text_of(key).map(str::to_owned);
        let path = |key: &str| layers.text_of(key).map(PathBuf::from);
        let whole = |key: &str| layers.whole_of(key).expect("the table gives it a default");
        let some_list = |key: &str| layers.get(key).map(|_| layers.list_of(key));
        let count = |key: &str| u32::try_from(whole(key)).expect("the table bounds it");

        let tls = match (path(key::TLS_CERT), path(key::TLS_KEY)) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(ConfigError::Together {
                    message: format!(
                        "`{}` and `{}` belong together and only one is set",
                        key::TLS_CERT,
                        key::TLS_KEY
                    ),
                    hint: "set both, or neither".into(),
                });
            }
        };
        let listen = layers.text_of(key::LISTEN).and_then(layers::listen_address);
        if let Some(address) = listen
            && !address.ip().is_loopback()
            && tls.is_none()
        {
            return Err(ConfigError::Together {
                message: format!(
                    "listening on {address} would let others reach this server without TLS"
                ),
                hint: "give --tls-cert and --tls-key, or listen on 127.0.0.1 and put a proxy or \
                       an SSH tunnel before it"
                    .into(),
            });
        }
        let rooms_proxy = layers.text_of(key::ROOMS_PROXY).and_then(layers::listen_address);
        if let Some(address) = rooms_proxy.filter(|address| !address.ip().is_loopback()) {
            return Err(ConfigError::Together {
                message: format!(
                    "`{}` at {address} would let other machines reach the services of runs",
                    key::ROOMS_PROXY
                ),
                hint: "name a port of 127.0.0.1".into(),
            });
        }
        let socket = path(key::SOCKET).filter(|path| path != Path::new("none"));
        if listen.is_none() && socket.is_none() {
            return Err(ConfigError::Together {
                message: format!("`{}` and `{}` are both `none`", key::LISTEN, key::SOCKET),
                hint: "nobody could reach such a server: set one of them".into(),
            });
        }
        let format = match layers.text_of(key::LOG_FORMAT) {
            Some("text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some(_) | None => LogFormat::Auto,
        };
        let day = Duration::from_secs(86_400);
        let retention_days = count(key::RETENTION_DAYS);
        Ok(Self {
            accept_loss: false,
            without_keys: false,
            listen,
            rooms_proxy,
            rooms_servers: layers.list_of(key::ROOMS_SERVERS),
            rooms_worktrees: path(key::ROOMS_WORKTREES)
                .unwrap_or_else(|| data.worktrees(layers.get(key::SANDBOX_RUN_AS).is_some())),
            socket,
            tls,
            allowed_hosts: layers.list_of(key::ALLOWED_HOSTS),
            drain: Duration::from_secs(whole(key::DRAIN_SECONDS)),
            request_rate: match count(key::REQUESTS_PER_SECOND) {
                0 => None,
                per_second => Some((per_second, count(key::REQUEST_BURST))),
            },
            store_path: path(key::STORE_PATH).expect("the table gives it a default"),
            retention: (retention_days > 0).then(|| day * retention_days),
            checkpoint_every: Duration::from_secs(whole(key::CHECKPOINT_SECONDS)),
            workspace: path(key::WORKSPACE).unwrap_or_else(|| cwd.to_owned()),
            max_running: count(key::MAX_RUNNING),
            max_running_per_agent: count(key::MAX_PER_AGENT),
            max_running_per_colony: count(key::MAX_PER_COLONY),
            providers: providers(&layers)?,
            aliases: aliases(&layers)?,
            sandbox_read_only: read_only(&layers)?,
            sandbox_run_as: run_as(&layers)?,
            docker_pinned: layers.text_of(key::DOCKER_PINNED) == Some("yes"),
            docker_host: text(key::DOCKER_HOST),
            docker_image: text(key::DOCKER_IMAGE).expect("the table gives it a default"),
            microvm_dir: path(key::MICROVM_DIR).unwrap_or_else(|| data.path().join("microvm")),
            microvm_acceleration: match layers.text_of(key::MICROVM_EMULATION) {
                Some("yes") => Acceleration::KvmOrEmulation,
                Some("always") => Acceleration::Emulation,
                _ => Acceleration::Kvm,
            },
            allow_hosts: layers.list_of(key::ALLOW_HOSTS),
            commands: layers.list_of(key::COMMANDS),
            runner: layers.list_of(key::RUNNER),
            private_paths: some_list(key::PRIVATE_PATHS),
            untrusted_paths: some_list(key::UNTRUSTED_PATHS),
            environment: Vec::new(),
            canaries: layers.text_of(key::CANARIES) != Some("off"),
            declared_canaries: canaries::declared(&layers)?,
            policy: policy(&layers),
            prices: layers
                .text_of(key::PRICES_FILE)
                .filter(|text| *text != "none")
                .map(PathBuf::from),
            permissions: permissions(&layers),
            approval_ttl: match count(key::APPROVAL_HOURS) {
                0 => None,
                hours => Some(Duration::from_secs(3600) * hours),
            },
            rest: match count(key::REST_HOURS) {
                0 => None,
                hours => Some(Duration::from_secs(3600) * hours),
            },
            undecided: match count(key::UNDECIDED_DAYS) {
                0 => None,
                days => Some(Duration::from_secs(24 * 3600) * days),
            },
            propose_after: count(key::PROPOSE_AFTER),
            telemetry: telemetry::declared(&layers)?,
            log_level: text(key::LOG_LEVEL).expect("the table gives it a default"),
            log_format: format,
            vault_key_file: path(key::VAULT_KEY_FILE).expect("the table gives it a default"),
            vault_keyring: text(key::VAULT_KEY).is_some_and(|kept| kept == "keyring").then(|| {
                text(key::VAULT_KEYRING_ENTRY).unwrap_or_else(|| data.path().display().to_string())
            }),
            vault_passphrase: text(key::VAULT_PASSPHRASE).map(Secret::new),
            vault_passphrase_file: path(key::VAULT_PASSPHRASE_FILE),
            services: services::declared(&layers)?,
            credentials: BTreeMap::new(),
            data,
            file,
            layers,
        })
    }
}

/// The policy that judges the calls of agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyChoice {
    /// No policy was named: the file at its default place if it exists, otherwise the built-in
    /// policy.
    Usual(PathBuf),
    /// This file, which must exist.
    File(PathBuf),
    /// No policy. `said` is the place of that setting.
    Off { said: String },
}

fn policy(layers: &Layers) -> PolicyChoice {
    let placed = layers.0.get(key::POLICY_FILE).expect("the table gives it a default");
    let path = placed.value.to_string();
    match &placed.source {
        _ if path == "none" => PolicyChoice::Off { said: placed.source.to_string() },
        Source::Default => PolicyChoice::Usual(path.into()),
        Source::File { .. } | Source::Env(_) | Source::Flag(_) => PolicyChoice::File(path.into()),
    }
}

fn permissions(layers: &Layers) -> PermissionsPlace {
    let placed = layers.0.get(key::PERMISSIONS_FILE).expect("the table gives it a default");
    let path = PathBuf::from(placed.value.to_string());
    match &placed.source {
        Source::Default => {
            PermissionsPlace { files: vec![path.clone(), path.with_extension("toml")], must: false }
        }
        Source::File { .. } | Source::Env(_) | Source::Flag(_) => {
            PermissionsPlace { files: vec![path], must: true }
        }
    }
}

impl Config {
    /// The value of the setting for the variable `name`, whatever its source: for crates whose
    /// configuration uses those names. `None` for other names.
    pub fn var(&self, name: &str) -> Option<String> {
        let setting = settings::SETTINGS.iter().find(|setting| setting.env == Some(name))?;
        self.layers.get(setting.key).map(ToString::to_string)
    }

    /// The declared canaries with their values, for the server, which has the secrets.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if a secret is missing, or ordinary text could contain it.
    pub fn declared_canaries(&self) -> Result<Vec<Declared>, ConfigError> {
        canaries::resolved(&self.declared_canaries, &self.credentials)
    }

    /// The value of a setting as text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.layers.text_of(key)
    }
}

fn run_as(layers: &Layers) -> Result<Option<(u32, u32)>, ConfigError> {
    let Some(text) = layers.text_of(key::SANDBOX_RUN_AS) else { return Ok(None) };
    let numbers =
        text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    match numbers {
        Some(both) => Ok(Some(both)),
        None => Err(ConfigError::Together {
            message: format!("`{}` is `{text}`", key::SANDBOX_RUN_AS),
            hint: "give a user and a group as numbers, for example 1000:1000".into(),
        }),
    }
}

fn read_only(layers: &Layers) -> Result<Vec<PathBuf>, ConfigError> {
    let paths: Vec<PathBuf> =
        layers.list_of(key::SANDBOX_READ_ONLY).into_iter().map(PathBuf::from).collect();
    match paths.iter().find(|path| !path.is_absolute()) {
        None => Ok(paths),
        Some(path) => Err(ConfigError::Together {
            message: format!("`{}` holds {}", key::SANDBOX_READ_ONLY, path.display()),
            hint: "its directories are absolute paths".into(),
        }),
    }
}

/// Built-in providers, with the settings that name their servers. A table of the same name would
/// not replace them: calls and the key would still go to the built-in host.
const BUILT_IN: [(&str, &str); 4] = [
    ("anthropic", "models.anthropic_url"),
    ("custom", "models.base_url"),
    ("deepseek", "models.deepseek_chat_url"),
    ("openai", "models.openai_responses_url"),
];

fn providers(layers: &Layers) -> Result<Vec<Provider>, ConfigError> {
    let mut names: Vec<&str> = layers
        .0
        .keys()
        .filter_map(|key| key.strip_prefix("providers.")?.split_once('.').map(|(name, _)| name))
        .collect();
    names.dedup(); // the map is sorted
    names
        .into_iter()
        .map(|name| {
            if let Some((_, setting)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
                return Err(ConfigError::Together {
                    message: format!("[providers.{name}] has the name of a built-in provider"),
                    hint: format!(
                        "set {setting} to send its calls to another server, or choose another name"
                    ),
                });
            }
            let field = |field: &str| layers.text_of(&format!("providers.{name}.{field}"));
            let base_url = field("base_url").ok_or_else(|| ConfigError::Together {
                message: format!("[providers.{name}] has no `base_url`"),
                hint: "for example base_url = \"http://127.0.0.1:11434/v1\"".into(),
            })?;
            let (key, secret) = match field("api_key").map(|key| (key, key.strip_prefix("vault:")))
            {
                Some((_, Some(secret))) => (None, secret.to_owned()),
                Some((key, None)) => (Some(key), format!("{name}_api_key")),
                None => (None, format!("{name}_api_key")),
            };
            Ok(Provider {
                name: name.to_owned(),
                base_url: base_url.to_owned(),
                key: key.map(Secret::new),
                secret,
                format: field("format").unwrap_or("openai-chat").to_owned(),
                models: layers.list_of(&format!("providers.{name}.models")),
                max_concurrent: whole(layers, name, "max_concurrent"),
                max_per_minute: whole(layers, name, "max_per_minute"),
            })
        })
        .collect()
}

fn whole<N: TryFrom<u64>>(layers: &Layers, provider: &str, field: &str) -> Option<N> {
    layers.whole_of(&format!("providers.{provider}.{field}")).and_then(|n| N::try_from(n).ok())
}

/// Our own names for models.
fn aliases(layers: &Layers) -> Result<BTreeMap<String, Vec<String>>, ConfigError> {
    let names = layers
        .0
        .keys()
        .filter_map(|key| key.strip_prefix("aliases.")?.split_once('.').map(|(name, _)| name));
    let read = names.map(|name| {
        let to = layers.list_of(&format!("aliases.{name}.to"));
        if to.is_empty() || to.len() > 16 {
            return Err(ConfigError::Together {
                message: format!("[aliases.{name}] names no model, or more than 16"),
                hint: "for example to = [\"gpt-5-mini\", \"claude-haiku-4-5\"]".into(),
            });
        }
        Ok((name.to_owned(), to))
    });
    read.collect()
}

#[cfg(test)]
mod tests;
