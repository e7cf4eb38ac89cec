//! Commands of the project around a session's life: `setup` and `teardown`.
//!
//! Run in the worktree with the session's environment, streamed while they run, ended with all
//! that they started when they take too long. What a failure means, the project says: a blocking
//! hook of `setup` ends the lease, a warning is said aloud and kept with it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::{CommandLine, Hook};
use crate::env::{TemplateError, Values};

/// The words of a command: rendered, or the shell and its line.
pub(crate) fn words(command: &CommandLine, values: &Values) -> Result<Vec<String>, TemplateError> {
    match command {
        CommandLine::Shell(line) => Ok(vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()]),
        CommandLine::Words(words) => words.iter().map(|word| word.render(values)).collect(),
    }
}

/// A hook as the journal keeps it.
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

/// What a command of a session may inherit: nothing that names another session or repository.
pub(crate) fn inherited(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let foreign = |name: &str| name.starts_with("OVERMIND_") || name.starts_with("GIT_");
    environment
        .iter()
        .filter(|(name, _)| !foreign(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
