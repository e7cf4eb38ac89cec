//! The agent that `overmind init` proposes beside `.overmind.yml`, with a model by
//! the keys that it finds.

use overmind_node::config::{Config, env};

/// The tools of an agent that works on a project's files.
pub const TOOLS: &str = "run_shell,read_file,write_file,edit_file,list_files";
/// The programs that are agents without being made, see `overmind run --help`.
const PROGRAMS: [&str; 4] = ["claude", "codex", "gemini", "opencode"];

/// Providers, and the variables of their keys: the first that has one is proposed.
pub const KEYS: [(&str, &str); 3] = [
    ("anthropic", env::ANTHROPIC_API_KEY),
    ("openai", env::OPENAI_API_KEY),
    ("deepseek", env::DEEPSEEK_API_KEY),
];

/// The known facts about the models and programs of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Variables that hold a key: `ANTHROPIC_API_KEY`.
    pub keys: Vec<&'static str>,
    /// The keys are those of the server, wherever it has them from.
    pub of_server: bool,
    /// Models of the servers that the configuration names: `ollama:qwen3`.
    pub configured: Vec<String>,
    /// Programs of agents that are in `PATH`: `claude`.
    pub programs: Vec<&'static str>,
}

/// A proposal: how to make the agent and how to use it, each a command to copy, and why.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Proposed {
    pub why: String,
    pub commands: Vec<String>,
}

impl Found {
    pub fn of(config: &Config) -> Self {
        let set = |name: &&str| config.var(name).is_some();
        let models = |provider: &overmind_node::config::Provider| {
            let first = provider.models.first();
            first.map(|model| format!("{}:{model}", provider.name))
        };
        let path = config.environment.iter().find(|(name, _)| name == "PATH");
        let dirs: Vec<_> =
            path.map(|(_, path)| std::env::split_paths(path).collect()).unwrap_or_default();
        let there = |program: &&str| dirs.iter().any(|dir| dir.join(program).is_file());
        Self {
            keys: KEYS.into_iter().map(|(_, key)| key).filter(set).collect(),
            of_server: false,
            configured: config.providers.iter().filter_map(models).collect(),
            programs: PROGRAMS.into_iter().filter(there).collect(),
        }
    }

    /// A model that can be called here, and why it is this one.
    pub fn model(&self) -> Option<(String, String)> {
        let by_key = |key: &&'static str| match *key {
            env::ANTHROPIC_API_KEY => "claude-sonnet-5-5",
            env::OPENAI_API_KEY => "gpt-5.5",
            _ => "deepseek-v4-pro",
        };
        match (self.keys.first(), self.configured.first()) {
            (Some(key), _) => {
                let provider = KEYS.iter().find(|(_, of)| of == key).map(|(name, _)| *name);
                let why = match provider.filter(|_| self.of_server) {
                    Some(provider) => format!("the server has a key of {provider}"),
                    None => format!("{key} is set"),
                };
                Some((by_key(key).to_owned(), why))
            }
            (None, Some(model)) => {
                Some((model.clone(), "the configuration names its server".to_owned()))
            }
            (None, None) => None,
        }
    }

    /// The agent for a project; the same for the same findings.
    pub fn propose(&self) -> Proposed {
        if let Some((model, why)) = self.model() {
            let create = format!(
                "overmind agent create --name coder --role \"Works on this project, with tests\" \
                 --model {model}"
            );
            let run = "overmind run coder \"say what this project is and how its tests are run\"";
            return Proposed {
                why: format!("an agent with the model {model}, because {why}"),
                commands: vec![create, run.to_owned()],
            };
        }
        if let Some(program) = self.programs.first() {
            return Proposed {
                why: format!(
                    "the program `{program}` is installed and can be used as an agent \
                    without setup"
                ),
                commands: vec![format!(
                    "overmind run --agent {program} \"say what this project is\""
                )],
            };
        }
        Proposed {
            why: "no agent: no key of a model provider is set, and none of claude, codex, gemini \
                and opencode is installed. Set ANTHROPIC_API_KEY, OPENAI_API_KEY or \
                DEEPSEEK_API_KEY, or configure a model server, before you start the server"
                .to_owned(),
            commands: vec!["overmind config show -o wide".to_owned()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_proposes_an_agent_for_the_available_keys() {
        let propose = |keys: &[&'static str], configured: &[&str], programs: &[&'static str]| {
            let configured = configured.iter().map(|name| (*name).to_owned()).collect();
            Found { keys: keys.into(), of_server: false, configured, programs: programs.into() }
                .propose()
        };
        for (proposed, wanted) in [
            (propose(&["ANTHROPIC_API_KEY", "OPENAI_API_KEY"], &[], &[]), "claude-sonnet-5-5"),
            (propose(&["OPENAI_API_KEY"], &["local:x"], &["claude"]), "--model gpt-5.5"),
            (propose(&["DEEPSEEK_API_KEY"], &[], &[]), "--model deepseek-v4-pro"),
            (propose(&[], &["local:x"], &["claude"]), "--model local:x"),
            (propose(&[], &[], &["codex"]), "overmind run --agent codex"),
            (propose(&[], &[], &[]), "overmind config show"),
        ] {
            assert!(proposed.commands[0].contains(wanted), "{proposed:?}");
        }
    }

    #[test]
    fn every_proposed_model_has_a_price() {
        let none = std::collections::BTreeMap::new();
        for (provider, model) in [
            ("anthropic", "claude-sonnet-5-5"),
            ("openai", "gpt-5.5"),
            ("deepseek", "deepseek-v4-pro"),
        ] {
            assert!(overmind_llm::prices::price(&none, provider, model).is_some(), "{model}");
        }
    }
}
