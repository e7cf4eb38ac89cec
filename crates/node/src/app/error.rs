//! Why the server did not start.

use std::error::Error;
use std::path::PathBuf;

use overmind_core::store::StoreError;
use overmind_engine::EngineError;
use overmind_server::ListenError;

use crate::config::ConfigError;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("a server already runs on {} (pid {pid})", data.display())]
    AlreadyRunning { pid: u32, data: PathBuf },
    #[error("the setting engine.workspace: {why}")]
    Workspace { why: String },
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{}", missing(_0))]
    Keys(Vec<MissingKey>),
    #[error("{0}")]
    Prices(String),
    #[error("the configuration of models: {0}")]
    Models(#[from] overmind_llm::ConfigError),
    #[error("the configuration of memory: {0}")]
    Memory(#[from] overmind_memory::ConfigError),
    #[error(transparent)]
    Hosts(#[from] overmind_tools::egress::RuleError),
    #[error(transparent)]
    Commands(#[from] overmind_tools::CommandNameError),
    #[error(transparent)]
    Policy(#[from] overmind_policy::PolicyError),
    #[error(transparent)]
    Mcp(#[from] overmind_mcp::McpError),
    #[error("the configuration of telemetry: {0}")]
    Telemetry(#[from] overmind_telemetry::ConfigError),
    #[error(transparent)]
    Processes(#[from] overmind_core::process::ProcessError),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A provider that had a key at the last start and has none now, and the runs that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKey {
    pub provider: String,
    /// Names of the open runs.
    pub runs: Vec<String>,
    pub what_to_do: String,
}

/// Maximum number of runs of one provider that are named.
const NAMED: usize = 10;

fn missing(keys: &[MissingKey]) -> String {
    let one = |MissingKey { provider, runs, .. }: &MissingKey| {
        let named = runs.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = match runs.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let uses = if runs.len() == 1 { "an open run uses it" } else { "open runs use it" };
        format!(
            "the server had a key of {provider} at its last start and has none now, and {uses}: \
             {named}{more}"
        )
    };
    keys.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl StartError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config(err) => err.hint(),
            Self::AlreadyRunning { .. } => {
                Some("`overmind status` shows it, `overmind down` stops it; another one needs its own --data".into())
            }
            Self::Listen(ListenError::Tcp { address, .. }) => Some(format!(
                "if something else listens on {address}, choose another address with --listen, \
                 or --listen 127.0.0.1:0 for any free port"
            )),
            Self::Listen(ListenError::Unix { .. }) => {
                Some("a socket's path has about 100 bytes at most; set `server.socket` to a shorter one".into())
            }
            Self::Listen(_) => None,
            Self::Store(StoreError::Locked { .. }) => {
                Some("`overmind doctor` shows which process holds it".into())
            }
            Self::Store(StoreError::Lost { .. }) => {
                Some("`overmind audit verify` lists the lost events, `overmind restore FILE --force` restores a backup, and `overmind up --accept-loss` continues without them and records that".into())
            }
            Self::Keys(keys) => {
                let each: Vec<&str> = keys.iter().map(|key| key.what_to_do.as_str()).collect();
                Some(format!(
                    "{}; or start without it: `overmind up --force`, also to put it into the vault",
                    each.join("; ")
                ))
            }
            Self::Store(_) | Self::Mcp(_) | Self::Processes(_) | Self::Engine(_) => None,
            Self::Workspace { .. } => Some("`overmind config show` says where it comes from".into()),
            Self::Prices(_) => Some("`overmind prices` checks the file without a server".into()),
            Self::Policy(_) => Some("`overmind policy show --policy FILE` checks one without a server".into()),
            Self::Models(_) | Self::Memory(_) | Self::Hosts(_) | Self::Commands(_) | Self::Telemetry(_) => Some("`overmind config show` says where it comes from".into()),
        }
    }
}

/// Joins an error and each of its sources, once, on one line.
pub fn chain(err: &dyn Error) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(source) = next {
        let more = source.to_string();
        // Transparent errors repeat their source's text.
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = source.source();
    }
    text
}
