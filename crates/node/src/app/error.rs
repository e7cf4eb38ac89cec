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

impl StartError {
    /// What the reader can do.
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
                Some("`overmind doctor` looks who holds it".into())
            }
            Self::Store(StoreError::Lost { .. }) => {
                Some("`overmind audit verify` lists what is gone, `overmind restore FILE --force` brings a backup back, and `overmind up --accept-loss` goes on without it and records that".into())
            }
            Self::Store(_) | Self::Mcp(_) | Self::Processes(_) | Self::Engine(_) => None,
            Self::Workspace { .. } => Some("`overmind config show` says where it comes from".into()),
            Self::Prices(_) => Some("`overmind prices` checks the file without a server".into()),
            Self::Policy(_) => Some("`overmind policy show --policy FILE` checks one without a server".into()),
            Self::Models(_) | Self::Memory(_) | Self::Hosts(_) | Self::Commands(_) | Self::Telemetry(_) => Some("`overmind config show` says where it comes from".into()),
        }
    }
}

/// An error and each of its sources once, on one line.
pub fn chain(err: &dyn Error) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(source) = next {
        let more = source.to_string();
        // Transparent errors show their source's text as their own.
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = source.source();
    }
    text
}
