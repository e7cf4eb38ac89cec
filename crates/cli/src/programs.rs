//! The sandboxes of agents that exist without being created: Claude Code, Codex, Gemini CLI and
//! opencode.
//!
//! In a sandbox such a program asks nobody, and its key stays with the server. That takes a machine that
//! gives the sandbox, and a server that has a key. Where either is missing it runs on the host as it is
//! there, with its own prompts.

use std::ffi::OsStr;
use std::path::Path;

use overmind_api::{Agent, Command, Provider, SandboxLevel};
use overmind_core::vault::grant::{self, Grant, GrantKind};
use overmind_node::app;
use overmind_node::config::env;
use overmind_sandbox::{Installed, Sandboxes, find_installed};
use overmind_workspace::config::Config;
use overmind_workspace::rooms::project_top;
use serde_json::json;

use crate::command;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::remote::Remote;

/// The prefixes of variables with which a program configures its own way to a model.
const OWN: [&str; 6] =
    ["ANTHROPIC_", "OPENAI_", "CODEX_", GEMINI_KEY, "GOOGLE_", "OPENCODE_CONFIG"];
const GEMINI: &str = "gemini";
const OPENCODE: &str = "opencode";
/// The variable of Gemini CLI's key, and the service for which it gets a placeholder: the server's
/// `/llm` supports no API of Gemini.
const GEMINI_KEY: &str = "GEMINI_API_KEY";
const GEMINI_SERVICE: &str = "gemini-native";
/// The prefix with which `env_from` names a service, whose key stays with the server.
const SERVICE: &str = "service:";
/// The default model of opencode.
const OPENCODE_MODEL: &str = "gpt-5.5";
/// Gemini CLI uses a key only if its settings say so; its home in the sandbox is the run's own.
const GEMINI_START: &str = "mkdir -p \"$HOME/.gemini\" && printf %s \
    '{\"security\":{\"auth\":{\"selectedType\":\"gemini-api-key\"}}}' >\"$HOME/.gemini/settings.json\" \
    && exec \"$0\" \"$@\"";

/// How their makers say that these are installed.
const INSTALL: [(&str, &str); 4] = [
    ("claude", "npm install -g @anthropic-ai/claude-code"),
    ("codex", "npm install -g @openai/codex"),
    (GEMINI, "npm install -g @google/gemini-cli"),
    (OPENCODE, "npm install -g opencode-ai"),
];

/// The default sandbox of a run, and the note for its person.
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
    // An agent that somebody created under this name has precedence.
    let Some(built_in) = command::built_in(&agent.name).and_then(|agent| agent.command) else {
        return Ok(None);
    };
    if !is_chosen(agent) {
        return Ok(None);
    }
    let command = command.unwrap_or(&built_in);
    let why = match without(cx, remote, &agent.name, command, here).await? {
        None => return Ok(Some(Chosen { sandbox: SandboxLevel::Namespace, note: None })),
        Some(why) => why,
    };
    Ok(Some(Chosen { sandbox: SandboxLevel::None, note: Some(told(&agent.name, &why)) }))
}

/// Whether the sandbox of an agent's runs is chosen when they start, as [`choose`] does.
pub fn is_chosen(agent: &Agent) -> bool {
    agent.sandbox == SandboxLevel::None && is_built_in(agent)
}

/// Whether an agent is one of these as it was made.
pub fn is_built_in(agent: &Agent) -> bool {
    let own = command::built_in(&agent.name).and_then(|agent| agent.command);
    own.is_some() && own == agent.command
}

/// Refuses a program that the server does not find, before anything is made or started. Where it cannot
/// be known here what the server finds, nothing is refused. `set`: what the run sets; `dir`: where it
/// begins.
///
/// # Errors
///
/// [`Exit::NotFound`], with the way to install it.
pub fn installed(
    cx: &Context,
    remote: &Remote,
    name: &str,
    set: &[String],
    dir: &Path,
) -> Result<(), Failure> {
    let sets = |name: &str| name == env::PATH;
    let by_project = || {
        let top = project_top(dir).unwrap_or_else(|| dir.to_owned());
        Config::load(&top).is_ok_and(|config| config.env.iter().any(|(name, _)| sets(name)))
    };
    let set = set.iter().filter_map(|one| one.split('=').next()).any(sets);
    let Some(path) = remote.path_of_server(cx).filter(|_| !set) else { return Ok(()) };
    let on = |path: &OsStr| std::env::split_paths(path).any(|dir| dir.join(name).is_file());
    if on(&path) || by_project() {
        return Ok(());
    }
    let message =
        format!("{name} is not installed on this machine (not on the PATH): nothing was started");
    let failure = Failure::new(Exit::NotFound, message);
    if cx.env.path(env::PATH).is_some_and(|path| on(path.as_os_str())) {
        return Err(failure.hint(
            "it is on your PATH, but not on the server's PATH; restart the server from this \
                shell: overmind down; overmind up -d",
        ));
    }
    Err(match INSTALL.iter().find(|(known, _)| *known == name) {
        Some((_, how)) => failure.hint(format!("to install it: {how}; then run this again")),
        None => failure,
    })
}

/// The command of a run, with what Gemini CLI and opencode are given in its sandbox, or without one;
/// that of any other agent as it is.
///
/// # Errors
///
/// When the configuration cannot be read.
pub fn dressed(
    cx: &Context,
    agent: &Agent,
    command: Option<Command>,
    sandbox: Option<SandboxLevel>,
) -> Result<Option<Command>, Failure> {
    let built_in = command::built_in(&agent.name).and_then(|agent| agent.command);
    let Some(built_in) = built_in.filter(|own| own.provider == Provider::Raw) else {
        return Ok(command);
    };
    let over = command.as_ref().is_none_or(|over| over.provider == Provider::Raw);
    if agent.command.as_ref() != Some(&built_in) || !over {
        return Ok(command);
    }
    let boxed = sandbox.is_some_and(|level| level != SandboxLevel::None);
    if !boxed && command.as_ref().is_none_or(|over| over.model.is_none()) {
        return Ok(command);
    }
    let command = command.unwrap_or_else(|| built_in.clone());
    if !boxed {
        return Ok(Some(with_model(command, built_in.argv)));
    }
    let config = cx.config(None)?;
    let path = config.environment.iter().find(|(name, _)| name == "PATH");
    let installed = path.and_then(|(_, path)| find_installed(path, &agent.name));
    Ok(Some(match agent.name == GEMINI {
        true => gemini(command, installed),
        false => opencode(command, installed),
    }))
}

/// On the host: the installed program, with the requested model.
fn with_model(command: Command, mut argv: Vec<String>) -> Command {
    let model = command.model.iter().map(|model| format!("--model={model}"));
    // Before the task, which opencode reads as words.
    let at = argv.iter().position(|arg| arg == "--").unwrap_or(argv.len());
    argv.splice(at..at, model);
    Command { argv, ..command }
}

/// In a sandbox: it asks no questions, and its key is a placeholder unless the run names one.
fn gemini(mut command: Command, installed: Option<Installed>) -> Command {
    let program = shown(&mut command, installed, GEMINI);
    let words = ["sh", "-c", GEMINI_START, &program, "--approval-mode=yolo", "--prompt={task}"];
    set(&mut command, &[("GEMINI_CLI_TRUST_WORKSPACE", "true".to_owned())]);
    if !names(&command).any(|name| name == GEMINI_KEY) {
        command.env_from.insert(GEMINI_KEY.to_owned(), format!("{SERVICE}{GEMINI_SERVICE}"));
    }
    with_model(command, words.map(str::to_owned).into())
}

/// In a sandbox: it asks no questions, and uses the server's model unless the run configures another.
fn opencode(mut command: Command, installed: Option<Installed>) -> Command {
    let program = shown(&mut command, installed, OPENCODE);
    let mut config = json!({"autoupdate": false, "share": "disabled", "permission": "allow"});
    if own_key(&command).is_none() {
        let model = command.model.take().unwrap_or_else(|| OPENCODE_MODEL.to_owned());
        config["provider"] = json!({"overmind": {
            "npm": "@ai-sdk/openai-compatible", "name": "Overmind", "models": {&model: {}},
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
        }});
        command.model = Some(format!("overmind/{model}"));
        command.gateway = Some(true);
    }
    let variables = [
        ("OPENCODE_CONFIG_CONTENT", config.to_string()),
        // None of these can be reached from there.
        ("OPENCODE_DISABLE_MODELS_FETCH", "1".to_owned()),
        ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1".to_owned()),
    ];
    set(&mut command, &variables);
    with_model(command, [&program, "run", "--", "{task}"].map(str::to_owned).into())
}

/// Grants what the program needs of this machine, and says where it is. Without it there the server
/// looks for it, and says what is missing.
fn shown(command: &mut Command, installed: Option<Installed>, name: &str) -> String {
    let Some(Installed { program, needs }) = installed else { return name.to_owned() };
    // A sandbox shows the system anyway.
    let hidden = |path: &&std::path::PathBuf| {
        !["/usr", "/bin", "/lib"].iter().any(|system| path.starts_with(system))
    };
    command.read.extend(needs.iter().filter(hidden).map(|path| path.display().to_string()));
    program.display().to_string()
}

/// Sets variables, but those that the run sets itself.
fn set(command: &mut Command, variables: &[(&str, String)]) {
    for (name, value) in variables {
        if !names(command).any(|known| known == *name) {
            command.env.push(format!("{name}={value}"));
        }
    }
}

/// Why it cannot be in a sandbox; `None`: it can.
async fn without(
    cx: &Context,
    remote: &Remote,
    name: &str,
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
    let why = match name == GEMINI {
        true if command.env_from.contains_key(GEMINI_KEY) => None,
        true => no_service(remote).await,
        false if command.provider == Provider::Codex || name == OPENCODE => {
            no_answer(remote, "openai").await
        }
        false => no_answer(remote, "anthropic").await,
    };
    if why.is_some() {
        return Ok(why);
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
    Ok(given
        .err()
        .map(|err| format!("a sandbox is not available on this machine: {}", err.with_remedy())))
}

/// Why the server does not answer in this API.
async fn no_answer(remote: &Remote, api: &str) -> Option<String> {
    match remote.status().await {
        Ok(status) if status.answers.iter().any(|one| one == api) => None,
        Ok(_) => {
            let key = format!("`overmind vault set {api}_api_key` gives it one, and a sandbox");
            Some(format!(
                "the server has no key for {api}, and a sandbox cannot use your login ({key})"
            ))
        }
        Err(_) => Some("this key may not read which sandboxes and keys the server has".to_owned()),
    }
}

/// Why Gemini CLI gets no placeholder.
async fn no_service(remote: &Remote) -> Option<String> {
    let Ok(grants) = remote.grants().await else {
        return Some("this key may not read the grants of the agent".to_owned());
    };
    let covers =
        |info: overmind_api::GrantInfo| {
            info.kind == "service"
                && Grant { agent: info.agent, kind: GrantKind::Service, object: info.object }
                    .covers(GEMINI, GrantKind::Service, GEMINI_SERVICE)
        };
    (!grants.into_iter().any(covers)).then(|| {
        format!(
            "it is granted no key, and a sandbox cannot use your login (to do: `overmind vault \
                set gemini_api_key`, `{}`)",
            grant::remedy(GEMINI, GrantKind::Service, GEMINI_SERVICE)
        )
    })
}

/// A variable that configures another way to a model. A placeholder for Gemini's key does not count.
fn own_key(command: &Command) -> Option<&str> {
    let placeholder = command.env_from.get(GEMINI_KEY).is_some_and(|it| it.starts_with(SERVICE));
    let mut names = names(command).filter(|name| !placeholder || *name != GEMINI_KEY);
    names.find(|name| OWN.iter().any(|start| name.starts_with(start)))
}

/// The variables that a command sets.
fn names(command: &Command) -> impl Iterator<Item = &str> {
    let set = command.env.iter().filter_map(|one| one.split('=').next());
    set.chain(command.env_from.keys().map(String::as_str))
}

fn told(name: &str, why: &str) -> String {
    let so = match name {
        "codex" => "actions that its own sandbox does not allow are refused",
        GEMINI => "it may edit files, and runs no commands",
        OPENCODE => "its own settings decide which commands it runs",
        _ => "it asks before it runs commands: here, or in `overmind inbox`",
    };
    format!("{name} runs on this machine without a sandbox, because {why}; {so}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_own_key_is_detected_in_every_source() {
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
    fn people_are_shown_why_there_is_no_sandbox_and_the_consequence() {
        let said = told("claude", "this machine has none");
        assert!(said.contains("because this machine has none; it asks"), "{said}");
        assert!(told("codex", "x").contains("are refused"));
        assert!(told("gemini", "x").contains("runs no commands"));
    }

    fn somewhere() -> Option<Installed> {
        Some(Installed {
            program: "/home/me/n/node_modules/a/cli".into(),
            needs: vec!["/home/me/n/node_modules".into(), "/usr/bin/node".into()],
        })
    }

    #[test]
    fn gemini_in_a_sandbox_has_a_placeholder_key_unless_a_key_is_named() {
        let command = gemini(Command::default(), somewhere());
        assert_eq!(
            command.argv[3..],
            ["/home/me/n/node_modules/a/cli", "--approval-mode=yolo", "--prompt={task}"]
        );
        assert_eq!(command.read, ["/home/me/n/node_modules"]);
        assert_eq!(command.env_from["GEMINI_API_KEY"], "service:gemini-native");
        assert_eq!(own_key(&command), None);
        let mut named = Command { model: Some("m".to_owned()), ..Command::default() };
        named.env_from.insert(GEMINI_KEY.to_owned(), "MINE".to_owned());
        let named = gemini(named, None);
        assert_eq!(
            (&named.argv[3], &named.env_from[GEMINI_KEY]),
            (&"gemini".into(), &"MINE".into())
        );
        assert_eq!(named.argv.last().map(String::as_str), Some("--model=m"));
        assert_eq!(own_key(&named), Some(GEMINI_KEY));
    }

    #[test]
    fn opencode_in_a_sandbox_uses_the_server_unless_it_is_configured_otherwise() {
        let config = |command: &Command| -> serde_json::Value {
            let (_, text) = command.env[command.env.len() - 3].split_once('=').unwrap();
            serde_json::from_str(text).unwrap()
        };
        let command = opencode(Command::default(), somewhere());
        let words = ["run", "--model=overmind/gpt-5.5", "--", "{task}"];
        assert_eq!(
            (&command.argv[1..], command.gateway),
            (&words.map(String::from)[..], Some(true))
        );
        let told = config(&command);
        assert_eq!(told["permission"], "allow");
        assert_eq!(told["provider"]["overmind"]["models"], json!({"gpt-5.5": {}}));
        let own = Command { env: vec!["OPENAI_API_KEY=x".to_owned()], ..Command::default() };
        let own = opencode(own, None);
        assert_eq!((&own.argv[0], own.argv.len(), own.gateway), (&"opencode".into(), 4, None));
        let told = config(&own);
        assert_eq!((&told["permission"], &told["provider"]), (&json!("allow"), &json!(null)));
    }

    #[test]
    fn programs_on_the_host_get_the_model_before_the_task() {
        let with = |name: &str| {
            let built_in = command::built_in(name).and_then(|agent| agent.command).unwrap();
            let argv = built_in.argv.clone();
            with_model(Command { model: Some("m".to_owned()), ..built_in }, argv).argv
        };
        assert_eq!(with("opencode"), ["opencode", "run", "--model=m", "--", "{task}"]);
        assert_eq!(
            with("gemini")[1..],
            ["--approval-mode=auto_edit", "--prompt={task}", "--model=m"]
        );
    }
}
