//! Drivers for the port [`overmind_core::sandbox::Sandbox`]: run one command, apart from the
//! host.
//!
//! Four levels, each a driver: [`Namespace`] (the default), [`Docker`], [`Microvm`] and
//! [`Unconfined`] (`none`). [`Sandboxes`] holds one of each and is what the composition root makes. No driver
//! ever answers with a weaker level than its own: what a machine cannot give is an error that
//! says why and what to do.
//!
//! The binary that makes one of these must call [`init::main_if_requested`] first thing in its
//! `main`: all of them start the binary again.
//!
//! [`PipedLauncher`] starts what lives longer than one command and is talked to meanwhile (MCP
//! servers), by the same init, at the levels `namespace` and `none`.
//!
//! [`Enclosures`] answers what to start in place of a command that lives, in a terminal or behind
//! pipes that are somebody else's: the same sandbox again, at the level `namespace`.
//!
//! This crate does not decide who may use which level; that is policy, and lives above.

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
    /// Makes all four. Nothing is started or connected yet.
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

    /// The driver of a level by its name in configuration.
    ///
    /// # Errors
    ///
    /// [`SandboxError::BadConfig`] with the code `unsupported_backend` for any other name.
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

    /// What this machine can give, the strongest first. Runs the probes that were not run yet.
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
                // Not measured: then at least whether it could run.
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
    fn each_level_has_its_driver_and_no_other_name_has_one() {
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
