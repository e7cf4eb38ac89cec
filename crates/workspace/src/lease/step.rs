//! The parts of a lease, as they are recorded.
//!
//! A [`Step`] is an intent: it suffices to undo the resource whether or not it was ever made,
//! because the daemon may have died at any moment. A [`Made`] contains what became known when it
//! was made.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::MadeTree;
use crate::database::postgres::Names;
use crate::services::compose::ComposePlan;
use crate::services::container::ContainerPlan;
use crate::services::runner::{ProcessHandle, ProcessSpec};

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Step {
    Tree {
        intent: serde_json::Value,
    },
    /// A directory for temporary files.
    Temp {
        path: PathBuf,
    },
    Ports {
        names: Vec<String>,
        low: u16,
        high: u16,
    },
    RedisIndex {
        service: String,
        url: String,
    },
    /// A database in the server at `url`, or in our own.
    Postgres {
        service: String,
        url: Option<String>,
        names: Names,
    },
    Sqlite {
        service: String,
        file: PathBuf,
    },
    Network {
        name: String,
    },
    Container {
        plan: ContainerPlan,
    },
    Compose {
        plan: ComposePlan,
    },
    Process {
        service: String,
        id: String,
        grace_ms: u64,
    },
    EnvFile {
        worktree: PathBuf,
        relative: PathBuf,
        excluded: Option<PathBuf>,
    },
    /// A command of the project, which may leave processes running.
    Hook {
        name: String,
        mark: String,
    },
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Made {
    Tree {
        tree: MadeTree,
    },
    Ports {
        ports: BTreeMap<String, u16>,
    },
    RedisIndex {
        index: u16,
    },
    Process {
        spec: Box<ProcessSpec>,
        handle: ProcessHandle,
    },
    /// Only the intent.
    Known,
}

impl Made {
    pub(crate) fn tree(&self) -> Option<&MadeTree> {
        match self {
            Self::Tree { tree } => Some(tree),
            Self::Ports { .. } | Self::RedisIndex { .. } | Self::Process { .. } | Self::Known => {
                None
            }
        }
    }

    pub(crate) fn ports(&self) -> Option<&BTreeMap<String, u16>> {
        match self {
            Self::Ports { ports } => Some(ports),
            Self::Tree { .. } | Self::RedisIndex { .. } | Self::Process { .. } | Self::Known => {
                None
            }
        }
    }

    pub(crate) fn handle(&self) -> Option<&ProcessHandle> {
        match self {
            Self::Process { handle, .. } => Some(handle),
            Self::Tree { .. } | Self::Ports { .. } | Self::RedisIndex { .. } | Self::Known => None,
        }
    }
}

/// The order of undoing: smaller ranks come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Services,
    Networks,
    Ports,
    Databases,
    Files,
    Tree,
}

impl Step {
    pub(crate) fn rank(&self) -> Rank {
        match self {
            Self::Process { .. }
            | Self::Container { .. }
            | Self::Compose { .. }
            | Self::Hook { .. } => Rank::Services,
            Self::Network { .. } => Rank::Networks,
            Self::Ports { .. } => Rank::Ports,
            Self::RedisIndex { .. } | Self::Postgres { .. } | Self::Sqlite { .. } => {
                Rank::Databases
            }
            Self::Temp { .. } | Self::EnvFile { .. } => Rank::Files,
            Self::Tree { .. } => Rank::Tree,
        }
    }

    /// The text for messages.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Tree { .. } => "the worktree".to_owned(),
            Self::Temp { .. } => "the directory for temporary files".to_owned(),
            Self::Ports { names, .. } => format!("ports for {}", names.join(", ")),
            Self::RedisIndex { service, .. }
            | Self::Postgres { service, .. }
            | Self::Sqlite { service, .. } => format!("the database `{service}`"),
            Self::Network { .. } => "the network".to_owned(),
            Self::Container { plan } => format!("the container `{}`", plan.service),
            Self::Compose { plan } => format!("the compose project `{}`", plan.service),
            Self::Process { service, .. } => format!("the process `{service}`"),
            Self::EnvFile { relative, .. } => format!("the file {}", relative.display()),
            Self::Hook { name, .. } => format!("`{name}`"),
        }
    }
}
