//! The operator's settings for the tools.

use std::sync::Arc;

use overmind_core::canary::Planter;

use crate::egress::{Egress, Resolve, SystemResolver};
use crate::file_labels::FileLabels;

/// The settings of the built-in tools. By default nothing is reachable and no bare command may run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What `http_request` and `web_fetch` may reach.
    pub egress: Egress,
    /// The resolver of names.
    pub resolver: Arc<dyn Resolve>,
    /// The programs that `run_command` may run.
    pub commands: Commands,
    /// Which files are private, and which are untrusted.
    pub files: FileLabels,
    /// Plants canaries in commands; with `None`, nothing is planted or searched.
    pub canaries: Option<Planter>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            egress: Egress::default(),
            resolver: Arc::new(SystemResolver),
            commands: Commands::default(),
            files: FileLabels::default(),
            canaries: None,
        }
    }
}

/// The commands that `run_command` may run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    allowed: Vec<String>,
    runner: Vec<String>,
}

/// Why a list of commands cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reading the name `{name}` of tools.commands: {why}")]
pub struct CommandNameError {
    name: String,
    why: &'static str,
}

impl Commands {
    /// Allows programs by their bare names, which are found in the fixed `PATH` of the sandbox. If
    /// there is a `runner`, its program and arguments precede every command.
    ///
    /// # Errors
    ///
    /// [`CommandNameError`] if a name contains a path or white space.
    pub fn new(allowed: Vec<String>, runner: Vec<String>) -> Result<Self, CommandNameError> {
        for name in &allowed {
            if let Err(why) = bare(name) {
                return Err(CommandNameError { name: name.clone(), why });
            }
        }
        Ok(Self { allowed, runner })
    }

    pub(crate) fn allows(&self, name: &str) -> bool {
        self.allowed.iter().any(|allowed| allowed == name)
    }

    pub(crate) fn allowed(&self) -> &[String] {
        &self.allowed
    }

    pub(crate) fn runner(&self) -> &[String] {
        &self.runner
    }
}

/// Whether a text is the bare name of a program.
pub(crate) fn bare(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > 64 {
        return Err("a name has 1 to 64 bytes");
    }
    if name.contains(['/', '\\']) {
        return Err("it must be a bare name without a path");
    }
    if name.starts_with('-') || name.chars().all(|c| c == '.') {
        return Err("it is not the name of a program");
    }
    if name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("it must not contain white space; arguments are given apart");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_names_can_be_allowed() {
        let list = |name: &str| Commands::new(vec![name.to_owned()], Vec::new());
        assert!(list("g++").unwrap().allows("g++"));
        assert!(!list("ls").unwrap().allows("LS"), "names are taken as they are");
        for (name, why) in [
            ("/bin/ls", "it must be a bare name without a path"),
            ("..\\ls", "it must be a bare name without a path"),
            ("ls -l", "it must not contain white space; arguments are given apart"),
            ("", "a name has 1 to 64 bytes"),
            ("..", "it is not the name of a program"),
            ("-c", "it is not the name of a program"),
        ] {
            let wanted = format!("reading the name `{name}` of tools.commands: {why}");
            assert_eq!(list(name).unwrap_err().to_string(), wanted);
        }
    }
}
