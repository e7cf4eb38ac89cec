//! Drivers for the port [`overmind_core::sandbox::Sandbox`], which run one command isolated from
//! the host.
//!
//! There are four levels, each a driver: [`Namespace`] (the default), [`Docker`], [`Microvm`] and
//! [`Unconfined`] (`none`). [`Sandboxes`] holds one of each; the composition root makes it. No
//! driver ever uses a weaker level than its own: if a machine does not support it, the error
//! contains the reason and the remedy.
//!
//! A binary that makes one of these must first call [`init::main_if_requested`] in its `main`,
//! because all of them start the binary again.
//!
//! [`PipedLauncher`] starts processes that live longer than one command and talk through pipes (MCP
//! servers), with the same init, at the levels `namespace` and `none`.
//!
//! [`Enclosures`] tells what to start instead of a long-running command whose terminal or pipes
//! belong to another process: the same sandbox, at the level `namespace`.
//!
//! This crate does not decide who may use which level; policy above it does.

use std::sync::Arc;

use overmind_core::sandbox::{Sandbox, SandboxError, SandboxLevel};

pub mod attest;
pub mod docker;
pub mod init;
pub mod levels;
pub mod microvm;

mod called;
mod capture;
mod cgroup;
mod diagnosis;
mod enclosure;
mod hidden;
mod installed;
mod kernel;
mod launch;
mod namespace;
mod piped;
mod repository;
mod request;
mod sys;
mod unconfined;
mod warm;
mod way;

pub use docker::Docker;
pub use enclosure::Enclosures;
pub use hidden::appearances;
#[cfg(feature = "mutations")]
pub use init::mutation::{Layer, Mutation};
pub use installed::{Installed, find as find_installed};
pub use launch::RunAs;
pub use microvm::Microvm;
pub use namespace::{Namespace, Options};
pub use piped::PipedLauncher;
pub use unconfined::Unconfined;
pub use warm::Warmth;

/// One driver for each level.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    namespace: Arc<Namespace>,
    docker: Arc<Docker>,
    microvm: Arc<Microvm>,
    none: Arc<Unconfined>,
}

impl Sandboxes {
    /// Makes all four drivers, without starting or connecting anything yet.
    pub fn new(options: Options, docker: docker::Options, microvm: microvm::Options) -> Self {
        Self {
            namespace: Arc::new(Namespace::new(options.clone())),
            docker: Arc::new(Docker::new(docker)),
            microvm: Arc::new(Microvm::new(microvm, options.clone())),
            none: Arc::new(Unconfined::new(options)),
        }
    }

    pub fn get(&self, level: SandboxLevel) -> Arc<dyn Sandbox> {
        match level {
            SandboxLevel::None => Arc::clone(&self.none) as Arc<dyn Sandbox>,
            SandboxLevel::Namespace => Arc::clone(&self.namespace) as Arc<dyn Sandbox>,
            SandboxLevel::Docker => Arc::clone(&self.docker) as Arc<dyn Sandbox>,
            SandboxLevel::Microvm => Arc::clone(&self.microvm) as Arc<dyn Sandbox>,
        }
    }

    /// The driver of a level by its name in the configuration.
    ///
    /// # Errors
    ///
    /// [`SandboxError::BadConfig`] with the code `unsupported_backend` for an unknown name.
    pub fn by_name(&self, name: &str) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let level = SandboxLevel::parse(name).ok_or_else(|| SandboxError::BadConfig {
            code: "unsupported_backend".to_owned(),
            message: format!(
                "there is no sandbox `{}`: use namespace, docker, microvm or none",
                name.escape_debug()
            ),
        })?;
        Ok(self.get(level))
    }

    /// The levels that this machine supports, the strongest first. Runs probes that have not run
    /// yet.
    pub async fn levels(&self) -> Vec<levels::LevelReport> {
        let mut reports = Vec::new();
        for level in [
            SandboxLevel::Microvm,
            SandboxLevel::Docker,
            SandboxLevel::Namespace,
            SandboxLevel::None,
        ] {
            let driver = self.get(level);
            let answer = match driver.attest().await {
                // It is not measured, so at least check whether it could run.
                Ok(None) => driver.check().await.map(|()| None),
                answer => answer,
            };
            reports.push(levels::report(level, answer));
        }
        reports
    }

    /// The namespace driver itself, for [`Namespace::settled`].
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The docker driver itself, for [`Docker::sweep`] and [`Docker::settled`].
    pub fn docker(&self) -> &Docker {
        &self.docker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_name_has_a_driver() {
        let all = Sandboxes::new(
            Options::default(),
            docker::Options::default(),
            microvm::Options::default(),
        );
        for level in [
            SandboxLevel::None,
            SandboxLevel::Namespace,
            SandboxLevel::Docker,
            SandboxLevel::Microvm,
        ] {
            assert_eq!(all.get(level).level(), level);
            assert_eq!(all.by_name(level.as_str()).unwrap().level(), level);
        }
        match all.by_name("chroot") {
            Err(SandboxError::BadConfig { code, message }) => {
                assert_eq!(code, "unsupported_backend");
                assert_eq!(
                    message,
                    "there is no sandbox `chroot`: use namespace, docker, microvm or none"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}
