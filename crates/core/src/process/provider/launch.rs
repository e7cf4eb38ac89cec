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

/// Whether the program works on one thing at a time and takes what is said meanwhile afterwards, in a
/// program of its own that goes on with the conversation.
pub fn hears_later(command: &CommandSpec) -> bool {
    is_own(command) && command.kind == CommandKind::Task
}

/// Whether what the program writes is read: a screen is not.
pub fn is_read(command: &CommandSpec) -> bool {
    command.provider != Provider::Raw && !has_terminal(command)
}

/// Whether the program gets a terminal. Those that print lines for us get none.
pub fn has_terminal(command: &CommandSpec) -> bool {
    command.terminal && !is_own(command)
}

/// How long a program's input stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// It gets none.
    Closed,
    /// Until its answer is there: until then it asks, and is answered.
    UntilAnswer,
    /// As long as it lives.
    Open,
}

/// The input of a command, in a sandbox or in none.
pub fn input_of(command: &CommandSpec, enclosed: bool) -> Input {
    match command.kind {
        CommandKind::Session => Input::Open,
        CommandKind::Task if asks(command, enclosed) => Input::UntilAnswer,
        CommandKind::Task => Input::Closed,
    }
}

/// Whether Claude Code asks a person before it does what its mode of permission does not allow. In a
/// sandbox a task asks nobody, for the sandbox holds back what nobody may do. Who names a tool that is
/// asked in our place, or another input, means it.
fn asks(command: &CommandSpec, enclosed: bool) -> bool {
    is_own(command)
        && command.provider == Provider::Claude
        && (command.kind == CommandKind::Session || !enclosed)
        && !given(command, &["--permission-prompt-tool", "--input-format"])
}

/// Whether the agent's own options have one of these.
fn given(command: &CommandSpec, names: &[&str]) -> bool {
    command.argv.iter().any(|arg| names.contains(&arg.split('=').next().unwrap_or_default()))
}

/// Whether a task that ends well has said so: without an answer it was not finished, whatever its exit
/// code.
pub fn must_answer(command: &CommandSpec) -> bool {
    command.kind == CommandKind::Task
        && is_read(command)
        && matches!(command.provider, Provider::Claude | Provider::Codex)
}

/// The command line for a task, or for going on with a conversation of an earlier life: with what was
/// `said` since, or else where it left off. `enclosed`: in a sandbox, where the program's own prompts
/// and its own sandbox are off. `instructions` (may be empty) are added to what the program tells its
/// model first, in each life: a conversation does not keep them.
pub fn line(
    command: &CommandSpec,
    enclosed: bool,
    instructions: &str,
    task: &str,
    conversation: Option<&str>,
    said: Option<&str>,
) -> Line {
    if !is_own(command) {
        return Line { argv: command.line(task), first: None };
    }
    let fresh = conversation.is_none() || said.is_some();
    let task = match (conversation, said) {
        (Some(_), said) => said.unwrap_or(GO_ON).to_owned(),
        (None, None) => task.to_owned(),
        // The conversation is lost; what it was about is not.
        (None, Some(said)) => format!("{task}\n\n{said}"),
    };
    match command.provider {
        Provider::Codex => {
            Line { argv: codex(command, enclosed, instructions, &task, conversation), first: None }
        }
        Provider::Claude | Provider::Raw | Provider::Lines => {
            claude(command, enclosed, instructions, &task, conversation, fresh)
        }
    }
}

/// `fresh`: a program that waits for input is told the task, and not only what it was started for.
fn claude(
    command: &CommandSpec,
    enclosed: bool,
    instructions: &str,
    task: &str,
    conversation: Option<&str>,
    fresh: bool,
) -> Line {
    let session = command.kind == CommandKind::Session;
    let asks = asks(command, enclosed);
    let typed = asks || session;
    let mut argv = words(&["claude", "-p"]);
    if typed {
        argv.extend(words(&["--input-format", "stream-json"]));
    }
    argv.extend(words(&["--output-format", "stream-json", "--verbose"]));
    if !given(command, &["--permission-mode", "--dangerously-skip-permissions"]) {
        let mode = if enclosed { "bypassPermissions" } else { "acceptEdits" };
        argv.extend(words(&["--permission-mode", mode]));
    }
    if asks {
        argv.extend(words(&["--permission-prompt-tool", "stdio"]));
    }
    if let Some(model) = &command.model {
        argv.extend(words(&["--model", model]));
    }
    if let Some(conversation) = conversation {
        argv.extend(words(&["--resume", conversation]));
    }
    argv.extend(with_appended(&command.argv, instructions));
    if session {
        let told = fresh && !task.is_empty();
        return Line { argv, first: told.then(|| input(Provider::Claude, task)) };
    }
    if typed {
        return Line { argv, first: Some(input(Provider::Claude, task)) };
    }
    // Whatever the task begins with, it is no option.
    argv.extend(words(&["--", task]));
    Line { argv, first: None }
}

/// The agent's own options for Claude Code, with `instructions` in its system prompt: after what the
/// agent itself appends there, for of two such options only the last one counts.
fn with_appended(own: &[String], instructions: &str) -> Vec<String> {
    const APPEND: &str = "--append-system-prompt";
    let mut argv = own.to_vec();
    if instructions.is_empty() {
        return argv;
    }
    let value = argv.iter().position(|arg| arg == APPEND).map(|at| at + 1);
    let joined = argv.iter().position(|arg| arg.starts_with(&format!("{APPEND}=")));
    match value.filter(|at| *at < argv.len()).or(joined) {
        Some(at) => argv[at] = format!("{}\n\n{instructions}", argv[at]),
        None => argv.extend(words(&[APPEND, instructions])),
    }
    argv
}

fn codex(
    command: &CommandSpec,
    enclosed: bool,
    instructions: &str,
    task: &str,
    conversation: Option<&str>,
) -> Vec<String> {
    let mut argv = words(&["codex", "exec", "--json", "--skip-git-repo-check"]);
    let bypass = "--dangerously-bypass-approvals-and-sandbox";
    match given(command, &["-s", "--sandbox", bypass]) {
        true => {}
        // Its own sandbox cannot be made within another one.
        false if enclosed => argv.push(bypass.to_owned()),
        false => argv.extend(words(&["--sandbox", "workspace-write"])),
    }
    if let Some(model) = &command.model {
        argv.extend(words(&["--model", model]));
    }
    if !instructions.is_empty() {
        // Before the agent's own options: what it sets itself counts.
        let text = toml_text(instructions);
        argv.extend(words(&["-c", &format!("developer_instructions={text}")]));
    }
    argv.extend(command.argv.iter().cloned());
    if let Some(conversation) = conversation {
        argv.extend(words(&["resume", conversation]));
    }
    argv.extend(words(&["--", task]));
    argv
}

/// A basic string of TOML.
fn toml_text(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
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
