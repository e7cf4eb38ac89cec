//! Commands of the project at the start and end of a session: `setup` and `teardown`.
//!
//! They run in the worktree with the session's environment. Their output is streamed, and they are
//! ended with all of their processes if they take too long. The project decides what a failure
//! means: a blocking `setup` hook ends the lease, a warning is reported and stored with it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::{CommandLine, Hook};
use crate::env::{TemplateError, Values};

/// The words of a command: rendered, or the shell with its line.
pub(crate) fn words(command: &CommandLine, values: &Values) -> Result<Vec<String>, TemplateError> {
    match command {
        CommandLine::Shell(line) => Ok(vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()]),
        CommandLine::Words(words) => words.iter().map(|word| word.render(values)).collect(),
    }
}

/// A hook in the form of the journal.
pub(crate) fn kept(
    hook: &Hook,
    worktree: &Path,
    values: &Values,
) -> Result<crate::lease::TeardownHook, TemplateError> {
    Ok(crate::lease::TeardownHook {
        name: hook.name.clone(),
        argv: words(&hook.command, values)?,
        cwd: hook.cwd.as_ref().map_or_else(|| worktree.to_owned(), |cwd| worktree.join(cwd)),
        timeout_ms: u64::try_from(hook.timeout.as_millis()).unwrap_or(u64::MAX),
        blocking: hook.on_failure == crate::config::OnFailure::Block,
    })
}

/// The variables that a session's command may inherit: none that names another session or
/// repository.
pub(crate) fn inherited(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let foreign = |name: &str| name.starts_with("OVERMIND_") || name.starts_with("GIT_");
    environment
        .iter()
        .filter(|(name, _)| !foreign(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
