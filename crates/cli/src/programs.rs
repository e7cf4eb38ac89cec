//! What the agents that are there without being made run in: Claude Code and Codex.
//!
//! In a sandbox such a program asks nobody, and its key stays with the server. That takes a machine that
//! gives the sandbox, and a server that has a key. Where either is missing it runs on the host as it is
//! there, with its own prompts.

use overmind_api::{Agent, Command, Provider, SandboxLevel};
use overmind_node::app;
use overmind_sandbox::Sandboxes;

use crate::command;
use crate::context::Context;
use crate::exit::Failure;
use crate::remote::Remote;

/// Variables that begin so are a program's own way to a model.
const OWN: [&str; 3] = ["ANTHROPIC_", "OPENAI_", "CODEX_"];

/// The sandbox of a run for which nobody chose one, and what its person is to know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub sandbox: SandboxLevel,
    pub note: Option<String>,
}

/// Chooses for a run of one of these agents; `None` for those of others. `command`: with what the run
/// changes of it; `here`: it is to work in the directory itself.
///
/// # Errors
///
/// When the configuration cannot be read.
pub async fn choose(
    cx: &Context,
    remote: &Remote,
    agent: &Agent,
    command: Option<&Command>,
    here: bool,
) -> Result<Option<Chosen>, Failure> {
    // What somebody has made under this name they mean.
    let Some(built_in) = command::built_in(&agent.name).and_then(|agent| agent.command) else {
        return Ok(None);
    };
    if agent.sandbox != SandboxLevel::None || agent.command.as_ref() != Some(&built_in) {
        return Ok(None);
    }
    let command = command.unwrap_or(&built_in);
    let why = match without(cx, remote, command, here).await? {
        None => return Ok(Some(Chosen { sandbox: SandboxLevel::Namespace, note: None })),
        Some(why) => why,
    };
    Ok(Some(Chosen { sandbox: SandboxLevel::None, note: Some(told(command.provider, &why)) }))
}

/// Why it cannot be in a sandbox; `None`: it can.
async fn without(
    cx: &Context,
    remote: &Remote,
    command: &Command,
    here: bool,
) -> Result<Option<String>, Failure> {
    if here {
        return Ok(Some("it works in the directory itself".to_owned()));
    }
    if let Some(name) = own_key(command) {
        return Ok(Some(format!("{name} is set for it, which a sandbox does not serve")));
    }
    if !remote.is_here() {
        return Ok(Some("the server is on another machine".to_owned()));
    }
    let api = match command.provider {
        Provider::Codex => "openai",
        Provider::Claude | Provider::Raw | Provider::Lines => "anthropic",
    };
    match remote.status().await {
        Ok(status) if status.answers.iter().any(|one| one == api) => {}
        Ok(_) => {
            let why =
                format!("the server has no key for {api}, and a login here is not seen there");
            return Ok(Some(why));
        }
        Err(_) => return Ok(Some("what the server can do is not told to this key".to_owned())),
    }
    let config = cx.config(None)?;
    let sandboxes = Sandboxes::new(
        app::sandbox_options(&config),
        app::docker_options(&config, "looks"),
        app::microvm_options(&config),
    );
    let given = match sandboxes.by_name(SandboxLevel::Namespace.as_str()) {
        Ok(driver) => driver.check().await,
        Err(err) => Err(err),
    };
    Ok(given.err().map(|err| format!("this machine gives none: {}", err.with_remedy())))
}

/// A variable of its own way to a model.
fn own_key(command: &Command) -> Option<&str> {
    let set = command.env.iter().filter_map(|one| one.split('=').next());
    let mut names = set.chain(command.env_from.keys().map(String::as_str));
    names.find(|name| OWN.iter().any(|start| name.starts_with(start)))
}

fn told(provider: Provider, why: &str) -> String {
    let (name, so) = match provider {
        Provider::Codex => ("codex", "what its own sandbox holds back is refused"),
        Provider::Claude | Provider::Raw | Provider::Lines => {
            ("claude", "it asks before it runs commands: here, or in `overmind inbox`")
        }
    };
    format!("{name} runs without a sandbox, for {why}; {so}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_its_own_is_seen_wherever_it_comes_from() {
        let with = |env: &[&str], from: &[&str]| Command {
            env: env.iter().map(|one| (*one).to_owned()).collect(),
            env_from: from.iter().map(|name| ((*name).to_owned(), "X".to_owned())).collect(),
            ..Command::default()
        };
        assert_eq!(own_key(&with(&["A=OPENAI_API_KEY"], &["MY_KEY"])), None);
        let base = "ANTHROPIC_BASE_URL";
        assert_eq!(own_key(&with(&["A=b", "ANTHROPIC_BASE_URL=http://x"], &[])), Some(base));
        assert_eq!(own_key(&with(&[], &["OPENAI_API_KEY"])), Some("OPENAI_API_KEY"));
    }

    #[test]
    fn people_are_told_why_there_is_no_sandbox_and_what_follows() {
        let said = told(Provider::Claude, "this machine gives none");
        assert!(said.contains("for this machine gives none; it asks"), "{said}");
        assert!(told(Provider::Codex, "x").contains("is refused"));
    }
}
