//! What contexts give a session: variables for its commands, and pieces of its prompt. They are copied
//! into the session's spec when it is made, so that a later change of a context changes no session, and
//! a replay decides on what the session had.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agent::AgentSpec;
use crate::policy::prompt;
use crate::sandbox::SandboxLevel;

/// Most contexts of one session.
pub const MAX_CONTEXTS: usize = 16;
/// Most bytes of all that they give.
pub const MAX_BYTES: usize = 256 << 10;
/// Names of variables that a context cannot give, and their beginnings: they decide what runs.
const KEPT: [&str; 6] = ["HOME", "IFS", "PATH", "SHELL", "TERM", "TMPDIR"];
const KEPT_BEGINNINGS: [&str; 3] = ["GIT_", "LD_", "OVERMIND_"];

/// The variable that has the pieces of the prompt, for commands.
pub const PROMPT_VARIABLE: &str = "OVERMIND_PROMPT";

/// A context as it was when the session was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenContext {
    pub name: String,
    pub generation: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prompt: String,
}

/// Whether a value of a context can be a variable of this name.
///
/// # Errors
///
/// Why not, in words that follow the name.
pub fn check_variable(name: &str) -> Result<(), &'static str> {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') || !name.chars().all(letter)
    {
        return Err("is no name of a variable: letters, digits and `_`");
    }
    if KEPT.contains(&name) || KEPT_BEGINNINGS.iter().any(|of| name.starts_with(of)) {
        return Err("decides what runs, and is not given by a context");
    }
    Ok(())
}

/// The variables of commands: those of a later context take the place of those of an earlier one.
pub fn variables(given: &[GivenContext]) -> Vec<(String, String)> {
    let mut all = BTreeMap::new();
    for context in given {
        let named = context.values.iter().filter(|(name, _)| check_variable(name).is_ok());
        all.extend(named.map(|(name, value)| (name.clone(), value.clone())));
    }
    let prompt = prompts(given);
    if !prompt.is_empty() {
        all.insert(PROMPT_VARIABLE.to_owned(), prompt);
    }
    all.into_iter().collect()
}

/// The pieces of the prompt, in the order of the contexts.
pub fn prompts(given: &[GivenContext]) -> String {
    let mut all = String::new();
    for context in given.iter().filter(|context| !context.prompt.trim().is_empty()) {
        let between = if all.is_empty() { "" } else { "\n\n" };
        let _ = write!(all, "{between}{}", context.prompt.trim());
    }
    all
}

/// What a model is told first: what its agent is, and what the session's contexts say.
pub(super) fn system(agent: &AgentSpec, given: &[GivenContext]) -> Arc<str> {
    let mut system = prompt::system(agent, agent.sandbox != SandboxLevel::None);
    let said = prompts(given);
    if !said.is_empty() {
        system.push_str("\n\n");
        system.push_str(&said);
    }
    system.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(name: &str, value: &str, prompt: &str) -> GivenContext {
        let values = [("LANG".to_owned(), value.to_owned()), ("LD_PRELOAD".into(), "x".into())];
        GivenContext {
            name: name.into(),
            generation: 1,
            values: values.into(),
            prompt: prompt.into(),
        }
    }

    #[test]
    fn a_later_context_wins_and_none_decides_what_runs() {
        let given = [
            context("a", "en", " Be brief.\n"),
            context("b", "de", ""),
            context("c", "fr", "Say why."),
        ];
        let all = variables(&given);
        let named =
            |name: &str| all.iter().find(|(known, _)| known == name).map(|(_, v)| v.as_str());
        assert_eq!(named("LANG"), Some("fr"));
        assert_eq!(named("LD_PRELOAD"), None);
        assert_eq!(named(PROMPT_VARIABLE), Some("Be brief.\n\nSay why."));
        for bad in ["", "1A", "A-B", "PATH", "GIT_DIR", "OVERMIND_TOKEN"] {
            assert!(check_variable(bad).is_err(), "{bad}");
        }
    }
}
