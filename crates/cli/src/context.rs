//! The context of every command: the flags, the environment, the terminal, the time.

use std::path::PathBuf;

use overmind_core::time::{Clock as _, Timestamp};
use overmind_node::app::clock::SystemClock;
use overmind_node::config::{Config, DataDir, Env, Flags, env as variables, settings};

use crate::args::{Global, UpArgs};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// The value of the colony's header that asks for all of them.
const ALL_COLONIES: &str = "*";

#[derive(Clone, Debug)]
pub struct Context {
    pub global: Global,
    pub env: Env,
    pub cwd: PathBuf,
    pub out: Output,
}

impl Context {
    /// # Errors
    ///
    /// When the current directory is gone.
    pub fn new(global: Global, env: Env) -> Result<Self, Failure> {
        let cwd = std::env::current_dir().map_err(|err| {
            Failure::failed(format!("finding the current directory: {err}"))
                .hint("it may have been removed: change to another one")
        })?;
        let out = Output::new(&global, &env);
        Ok(Self { global, env, cwd, out })
    }

    /// The colony that the flags or the environment name.
    pub fn colony(&self) -> Option<&str> {
        self.global.colony.as_deref().or_else(|| self.env.text(variables::COLONY))
    }

    /// The same, but lists contain every colony.
    #[must_use]
    pub fn in_all_colonies(&self) -> Self {
        let global = Global { colony: Some(ALL_COLONIES.to_owned()), ..self.global.clone() };
        Self { global, ..self.clone() }
    }

    /// The data directory that the flags and the environment name.
    ///
    /// # Errors
    ///
    /// When none is named and there is no home.
    pub fn data(&self) -> Result<DataDir, Failure> {
        Ok(DataDir::locate(self.global.data.as_deref(), &self.env, &self.cwd)?)
    }

    /// The whole configuration. `up` is the arguments of `overmind up`, if that is what runs.
    ///
    /// # Errors
    ///
    /// The problem.
    pub fn config(&self, up: Option<&UpArgs>) -> Result<Config, Failure> {
        let mut values = Vec::new();
        if let Some(up) = up {
            let given: [(&'static str, &'static str, &Option<String>); 6] = [
                (settings::LISTEN, "--listen", &up.listen),
                (settings::TLS_CERT, "--tls-cert", &up.tls_cert),
                (settings::TLS_KEY, "--tls-key", &up.tls_key),
                (settings::WORKSPACE, "--workspace", &up.workspace),
                (settings::LOG_LEVEL, "--log", &up.log),
                (settings::LOG_FORMAT, "--log-format", &up.log_format),
            ];
            for (key, flag, value) in given {
                if let Some(value) = value {
                    values.push((key, flag, value.clone()));
                }
            }
        }
        let flags = Flags {
            data: self.global.data.clone(),
            config: self.global.config.clone(),
            accept_loss: up.is_some_and(|up| up.accept_loss),
            without_keys: up.is_some_and(|up| up.force),
            values,
        };
        let config = Config::load(&flags, &self.env, &self.cwd).map_err(|err| {
            let mut failure = Failure::from(err);
            failure.exit = Exit::Failed;
            failure
        })?;
        for name in self.env.unknown() {
            self.out.warn(&format!("{name} is set, but this version does not know it"));
        }
        Ok(config)
    }

    pub fn now(&self) -> Timestamp {
        SystemClock.now()
    }
}
