//! Command lines and input of agents' programs: how they are started, continued and answered.

use crate::command::{CommandKind, CommandSpec};
use crate::process::prompt::Provider;

/// The message to the agent of a task whose last attempt was interrupted.
pub const GO_ON: &str = "You were interrupted. Go on with the task where you left off.";

/// The command line of an attempt, and its first input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub argv: Vec<String>,
    /// The first input in the provider's encoding, with its line end.
    pub first: Option<String>,
}

/// Returns whether the program is the provider's, because the command names none or only arguments.
pub fn is_own(command: &CommandSpec) -> bool {
    let has = match command.provider {
        Provider::Claude | Provider::Codex => true,
        Provider::Raw | Provider::Lines => false,
    };
    has && command.argv.first().is_none_or(|first| first.starts_with('-'))
}

/// Returns whether the program cannot receive messages while it works. They are then sent to a new
/// process, which continues the conversation.
pub fn hears_later(command: &CommandSpec) -> bool {
    is_own(command) && command.kind == CommandKind::Task
}

/// Returns whether the program's output is parsed. A screen is not.
pub fn is_read(command: &CommandSpec) -> bool {
    command.provider != Provider::Raw && !has_terminal(command)
}

/// Returns whether the program gets a terminal. Programs with a parsed output get none.
pub fn has_terminal(command: &CommandSpec) -> bool {
    command.terminal && !is_own(command)
}

/// How long a program's input stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The program has no input.
    Closed,
    /// The input is open until its answer: until then it may ask, and gets answers.
    UntilAnswer,
    /// The input is open while the program runs.
    Open,
}

/// Returns how long the input of a command stays open, in a sandbox or without one.
pub fn input_of(command: &CommandSpec, enclosed: bool) -> Input {
    match command.kind {
        CommandKind::Session => Input::Open,
        CommandKind::Task if asks(command, enclosed) => Input::UntilAnswer,
        CommandKind::Task => Input::Closed,
    }
}

/// Returns whether Claude Code asks a person before it does something that its permission mode does
/// not allow. In a sandbox a task asks nobody, because the sandbox enforces the limits. Options of
/// the agent that name a permission tool or another input format disable it.
fn asks(command: &CommandSpec, enclosed: bool) -> bool {
    is_own(command)
        && command.provider == Provider::Claude
        && (command.kind == CommandKind::Session || !enclosed)
        && !given(command, &["--permission-prompt-tool", "--input-format"])
}

/// Returns whether the agent's own options contain one of these.
fn given(command: &CommandSpec, names: &[&str]) -> bool {
    command.argv.iter().any(|arg| names.contains(&arg.split('=').next().unwrap_or_default()))
}

/// Returns whether a successful task must have reported an answer. Without one it counts as not
/// finished, whatever its exit code.
pub fn must_answer(command: &CommandSpec) -> bool {
    command.kind == CommandKind::Task
        && is_read(command)
        && matches!(command.provider, Provider::Claude | Provider::Codex)
}

/// Returns the command line for a task, or for continuing the conversation of an earlier attempt:
/// with the message `said`, or else from where it stopped. `enclosed`: it runs in a sandbox, so the
/// program's own prompts and its own sandbox are off. `instructions` (may be empty) are added to
/// the system prompt in each attempt, because a conversation does not keep them.
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

/// `fresh`: a program that waits for input gets the task as its first input.
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

/// Returns the agent's own options for Claude Code, with `instructions` in the system prompt, after
/// the text that the agent itself appends. They are joined because only the last of two such
/// options has an effect.
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
        // Its own sandbox cannot be created within another one.
        false if enclosed => argv.push(bypass.to_owned()),
        false => argv.extend(words(&["--sandbox", "workspace-write"])),
    }
    if let Some(model) = &command.model {
        argv.extend(words(&["--model", model]));
    }
    if !instructions.is_empty() {
        // Before the agent's own options, which take precedence.
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

/// Returns a basic string of TOML.
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

/// Returns the input for a person's message, with its line end.
pub fn input(provider: Provider, text: &str) -> String {
    let line = match provider {
        Provider::Claude => super::claude::input(text),
        Provider::Raw | Provider::Codex | Provider::Lines => text.to_owned(),
    };
    line + "\n"
}

/// Returns the input for a person's answer to the question in the line `asking`; `None` if that
/// line contains no question.
pub fn answer(provider: Provider, asking: &[u8], answer: &str) -> Option<String> {
    let line = match provider {
        Provider::Claude => super::claude::answer(asking, answer)?,
        Provider::Raw | Provider::Codex | Provider::Lines => answer.to_owned(),
    };
    Some(line + "\n")
}
