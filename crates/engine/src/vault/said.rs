//! Refuses requests that contain a secret: it would be masked in the log, and the logged request is
//! what runs.

use overmind_core::agent::AgentSpec;
use overmind_core::command::CommandSpec;
use overmind_core::masking::masks;
use overmind_core::vault::MIN_SECRET;
use serde_json::Value;

use crate::Engine;
use crate::error::EngineError;

impl Engine {
    /// A masked text for places where no store masks it, such as the server's own log.
    pub fn masked(&self, text: &str) -> String {
        let mut masked = Value::from(text);
        self.cortex.store.redact(&mut masked);
        match masked {
            Value::String(masked) => masked,
            _ => String::new(),
        }
    }

    /// Refuses a task, or a program with its arguments and variables, in which something would be
    /// masked: otherwise the executed request would differ from the given one.
    pub(crate) fn runs_as_said(&self, task: &str, agent: &AgentSpec) -> Result<(), EngineError> {
        // For a command that is run unchanged, the task is only its title.
        self.agent_as_said(agent)?;
        self.as_said("task", "the task", task)
    }

    /// Checks an agent alone in the same way, before it is stored.
    pub(crate) fn agent_as_said(&self, agent: &AgentSpec) -> Result<(), EngineError> {
        self.as_said("role", "the agent's role", &agent.role)?;
        let Some(CommandSpec { argv, env, .. }) = &agent.command else { return Ok(()) };
        for word in argv {
            self.as_said("command", "the command", word)?;
        }
        for (name, value) in env {
            self.as_said("command.env", &format!("the variable `{name}`"), value)?;
        }
        Ok(())
    }

    /// Refuses a text in which something would be masked. `what` describes the text.
    pub(crate) fn as_said(&self, field: &str, what: &str, text: &str) -> Result<(), EngineError> {
        let masked = self.masked(text);
        if masked == text {
            return Ok(());
        }
        let way = "give the program its value with `env_from` and a grant \
                   (`overmind vault grant AGENT --secret NAME`), and name the variable here";
        let message = match self.vault.name_in(text) {
            Some(name) => format!(
                "{what} contains the value of the vault's secret `{name}`, which is masked \
                    wherever it is stored: the run would not do what you wrote. To do: {way}"
            ),
            None => {
                let kind = kind_of(text, &masked);
                format!(
                    "{what} contains something that looks like a secret ({kind}), which is masked \
                        wherever it is stored: the run would not do what you wrote. To do: put it \
                        into the vault (`overmind vault set NAME`), {way}"
                )
            }
        };
        Err(EngineError::invalid(field, message))
    }
}

impl super::Vault {
    /// The secret whose value, of any version in memory, occurs in a text.
    fn name_in(&self, text: &str) -> Option<String> {
        let state = self.state();
        let holds = |held: &super::Held| {
            let value = held.current.as_ref().ok().map(|secret| secret.expose().trim());
            value.is_some_and(|value| value.len() >= MIN_SECRET && text.contains(value))
        };
        let mut found = state.secrets.iter().filter(|(_, held)| holds(held));
        found.next().map(|(name, _)| name.to_string())
    }
}

/// The kind of the first mask, if the text itself does not contain it.
fn kind_of<'a>(text: &str, masked: &'a str) -> &'a str {
    let mut new = masks(masked)
        .filter(|(at, _)| !text.is_char_boundary(*at) || !text[*at..].starts_with("[redacted:"));
    new.next().map_or("a secret", |(_, kind)| kind)
}
