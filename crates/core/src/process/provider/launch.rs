//! How an agent's program is started, gone on with, and spoken to.

use crate::command::{CommandKind, CommandSpec};
use crate::process::prompt::Provider;

/// Said to a task's agent whose last life ended in the middle.
pub const GO_ON: &str = "You were interrupted. Go on with the task where you left off.";

/// What a life runs, and what is typed to it first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub argv: Vec<String>,
    /// In the provider's own encoding, with its line end.
    pub first: Option<String>,
}

/// Whether an agent's command leaves the program to us: it names none, or only more arguments.
pub fn is_own(command: &CommandSpec) -> bool {
    let has = match command.provider {
        Provider::Claude | Provider::Codex => true,
        Provider::Raw | Provider::Lines => false,
    };
    has && command.argv.first().is_none_or(|first| first.starts_with('-'))
}

/// Whether what the program writes is read: a screen is not.
pub fn is_read(command: &CommandSpec) -> bool {
    command.provider != Provider::Raw && !has_terminal(command)
}

/// Whether the program gets a terminal. Those that print lines for us get none.
pub fn has_terminal(command: &CommandSpec) -> bool {
    command.terminal && !is_own(command)
}

/// The command line for a task, or for going on with a conversation of an earlier life.
pub fn line(command: &CommandSpec, task: &str, conversation: Option<&str>) -> Line {
    if !is_own(command) {
        return Line { argv: command.line(task), first: None };
    }
    match command.provider {
        Provider::Codex => Line { argv: codex(command, task, conversation), first: None },
        Provider::Claude | Provider::Raw | Provider::Lines => claude(command, task, conversation),
    }
}

fn claude(command: &CommandSpec, task: &str, conversation: Option<&str>) -> Line {
    let session = command.kind == CommandKind::Session;
    let mut argv = words(&["claude", "-p"]);
    if session {
        argv.extend(words(&["--input-format", "stream-json"]));
    }
    argv.extend(words(&["--output-format", "stream-json", "--verbose"]));
    let given = |name: &str| command.argv.iter().any(|arg| arg.split('=').next() == Some(name));
    if !given("--permission-mode") && !given("--dangerously-skip-permissions") {
        argv.extend(words(&["--permission-mode", "acceptEdits"]));
    }
    if session && !given("--permission-prompt-tool") {
        argv.extend(words(&["--permission-prompt-tool", "stdio"]));
    }
    if let Some(model) = &command.model {
        argv.extend(words(&["--model", model]));
    }
    if let Some(conversation) = conversation {
        argv.extend(words(&["--resume", conversation]));
    }
    argv.extend(command.argv.iter().cloned());
    if session {
        let fresh = conversation.is_none() && !task.is_empty();
        return Line { argv, first: fresh.then(|| input(Provider::Claude, task)) };
    }
    // Whatever the task begins with, it is no option.
    argv.extend(words(&["--", conversation.map_or(task, |_| GO_ON)]));
    Line { argv, first: None }
}

fn codex(command: &CommandSpec, task: &str, conversation: Option<&str>) -> Vec<String> {
    let mut argv = words(&["codex", "exec", "--json", "--skip-git-repo-check"]);
    let given = |names: &[&str]| {
        command.argv.iter().any(|arg| names.contains(&arg.split('=').next().unwrap_or_default()))
    };
    if !given(&["-s", "--sandbox", "--dangerously-bypass-approvals-and-sandbox"]) {
        argv.extend(words(&["--sandbox", "workspace-write"]));
    }
    if let Some(model) = &command.model {
        argv.extend(words(&["--model", model]));
    }
    argv.extend(command.argv.iter().cloned());
    if let Some(conversation) = conversation {
        argv.extend(words(&["resume", conversation]));
    }
    argv.extend(words(&["--", conversation.map_or(task, |_| GO_ON)]));
    argv
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// What is typed for a person's words, with its line end.
pub fn input(provider: Provider, text: &str) -> String {
    let line = match provider {
        Provider::Claude => super::claude::input(text),
        Provider::Raw | Provider::Codex | Provider::Lines => text.to_owned(),
    };
    line + "\n"
}

/// What is typed for a person's answer to what the line `asking` asked; `None` if that line asks
/// nothing.
pub fn answer(provider: Provider, asking: &[u8], answer: &str) -> Option<String> {
    let line = match provider {
        Provider::Claude => super::claude::answer(asking, answer)?,
        Provider::Raw | Provider::Codex | Provider::Lines => answer.to_owned(),
    };
    Some(line + "\n")
}
