//! `overmind run`: what its words mean, and what the person at the terminal sees until the program
//! runs or has ended.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::Stdio;

use overmind_api::{Agent, Command, ProblemKind, Run, RunBudget, RunCreate, RunStatus};
use overmind_client::{ClientError, LogOptions};
use overmind_core::nearest::nearest;
use overmind_core::shell_word::shell_word;
use overmind_node::config::env;
use overmind_workspace::config::{Config, FILE};
use overmind_workspace::rooms::project_top;

use crate::args::{Format, RunArgs};
use crate::args_command::ProviderArg;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::clean;
use crate::remote::Remote;
use crate::show::{self, cell};
use crate::spoken::Spoken;
use crate::watch::{self, Place, Until};
use crate::{asked, command, ids, parse, programs, room, run_refused, session, story, trust};

/// The exit code after `^C`, as a shell shows it.
const INTERRUPTED: i32 = 130;
/// The server's refusal of a directory.
const OUTSIDE: &str = "only an admin may use a workspace outside";
/// The server's refusal of a name.
const TAKEN: &str = "another run that has not ended is called";
/// The number of agents that are searched for a suggestion.
const AGENTS: u32 = 1000;

/// Whether the current directory is a home or `/`, which is no project.
pub(crate) fn is_home(cx: &Context) -> bool {
    let home = cx.env.text(overmind_node::config::env::HOME).map(Path::new);
    cx.cwd.parent().is_none() || home.is_some_and(|home| home == cx.cwd)
}

/// # Errors
///
/// Returns an error if the run could not be made, started or watched.
pub async fn run(cx: &Context, args: RunArgs) -> Outcome {
    // Known without a server.
    if args.words.is_empty() && args.command.agent.is_none() && args.command.provider.is_none() {
        return Err(run_refused::nothing());
    }
    let remote = Remote::connect(cx)?;
    let workspace = place(cx, &remote, args.workspace.as_deref(), args.cwd.as_deref()).await?;
    // The directory in which a program with a relative path is searched.
    let dir = workspace.as_deref().map_or(cx.cwd.as_path(), Path::new);
    if let Some(name) = &args.name {
        run_refused::named(name)?;
    }
    let own = args.command.provider.and_then(ProviderArg::agent).map(str::to_owned);
    let named = args.command.agent.clone().or(own);
    let (agent, words) = match named {
        Some(name) => match agent_named(cx, &remote, &name, &args.command.env, dir).await? {
            Some(agent) => (Some(agent), args.words.clone()),
            None => (None, [&[name], args.words.as_slice()].concat()),
        },
        None => match args.words.split_first() {
            None => return Err(run_refused::nothing()),
            // It would be taken for a program of this name.
            Some((first, _)) if is_option(first) && !parse::after_dashes(&args.words) => {
                return Err(run_refused::no_option(first));
            }
            // `run -- PROGRAM …`: its own words, whatever agents are called.
            Some((first, _)) if parse::after_dashes(&args.words) && is_program(cx, first, dir) => {
                (None, args.words.clone())
            }
            Some((first, rest)) => match agent_of_word(cx, &remote, first, dir).await? {
                Some(agent) => (Some(agent), rest.to_vec()),
                None => {
                    let line = args.words.join(" ");
                    if is_line(first) && !is_program(cx, first, dir) {
                        is_command(cx, &remote, &line, dir).await?;
                    }
                    (None, args.words.clone())
                }
            },
        },
    };
    match agent {
        // A task is text: words in it that look like our options are parsed as options.
        Some(agent) if words.iter().any(|word| is_option(word)) => {
            let provider = agent.command.as_ref().map(|command| command.provider);
            let printing = words.first().filter(|word| is_print(provider, word));
            let (cx, args) = again(cx, printing)?;
            let named = &args.command;
            let named =
                named.agent.is_some() || named.provider.and_then(ProviderArg::agent).is_some();
            let skip = usize::from(!named);
            let words = args.words.iter().skip(skip).cloned().collect();
            Box::pin(begin(&cx, &remote, args, Some(agent), words)).await
        }
        agent => Box::pin(begin(cx, &remote, args, agent, words)).await,
    }
}

fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-')
}

/// The arguments of this process, with options of ours taken wherever they stand.
///
/// `without`: a word that is not ours and has no meaning.
fn again(cx: &Context, without: Option<&String>) -> Result<(Context, RunArgs), Failure> {
    let (global, args) = parse::interspersed(without.map(String::as_str)).map_err(|err| {
        use clap::error::{ContextKind, ContextValue, ErrorKind};
        if err.kind() == ErrorKind::UnknownArgument
            && let Some(ContextValue::String(given)) = err.get(ContextKind::InvalidArg)
        {
            return run_refused::no_option(given);
        }
        let text = err.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        Failure::usage(first).hint(run_refused::OPTIONS)
    })?;
    let out = crate::output::Output::new(&global, &cx.env);
    Ok((Context { global, env: cx.env.clone(), cwd: cx.cwd.clone(), out }, args))
}

/// Whether a word asks Claude Code for what it does here anyway: somebody who knows `claude -p TASK`
/// may type it.
fn is_print(provider: Option<overmind_api::Provider>, word: &str) -> bool {
    provider == Some(overmind_api::Provider::Claude) && matches!(word, "-p" | "--print")
}

/// The agent that `--agent` or `--provider` names; those that [`crate::command::built_in`] knows are
/// made where they are not there. `None` when it is a command.
///
/// # Errors
///
/// See [`agent_of_word`].
async fn agent_named(
    cx: &Context,
    remote: &Remote,
    name: &str,
    env: &[String],
    dir: &Path,
) -> Result<Option<Agent>, Failure> {
    match remote.find_agent(name).await {
        Err(failure) if failure.exit == Exit::NotFound => {
            if command::built_in(name).is_some() {
                programs::installed(cx, remote, name, env, dir)?;
            }
            match remote.built_in(name).await? {
                Some(agent) => Ok(Some(agent)),
                None => agent_of_word(cx, remote, name, dir).await,
            }
        }
        // Made by an earlier run.
        Ok(agent) if programs::is_built_in(&agent) => {
            programs::installed(cx, remote, name, env, dir)?;
            Ok(Some(agent))
        }
        found => found.map(Some),
    }
}

/// The agent that the first word names; `None` when it begins a command.
///
/// # Errors
///
/// [`Exit::NotFound`] when it is neither an agent nor a program.
pub(crate) async fn agent_of_word(
    cx: &Context,
    remote: &Remote,
    word: &str,
    dir: &Path,
) -> Result<Option<Agent>, Failure> {
    let missing = match remote.find_agent(word).await {
        Ok(agent) => return Ok(Some(agent)),
        Err(failure) if failure.exit == Exit::NotFound => failure,
        Err(failure) => return Err(failure),
    };
    if word.starts_with("agt_") {
        return Err(missing);
    }
    // Which programs another machine has is not known here.
    if is_line(word) || !remote.is_here() || is_program(cx, word, dir) {
        return Ok(None);
    }
    let message = format!("no agent and no program is called `{word}`; nothing was started");
    let failure = Failure::new(Exit::NotFound, message).hint(
        "`overmind agent list` lists agents; a program is found in PATH, or named by its path",
    );
    Err(near(remote, failure, word).await)
}

/// The error, with a suggested agent.
async fn near(remote: &Remote, failure: Failure, word: &str) -> Failure {
    let Ok(agents) = remote.agents(AGENTS).await else { return failure };
    match nearest(word, agents.iter().map(|agent| agent.name.as_str())) {
        Some(agent) => failure.hint(format!("did you mean the agent `{agent}`?")),
        None => failure,
    }
}

/// Refuses a line whose first word is no program: it is a task without an agent.
///
/// # Errors
///
/// [`Exit::NotFound`], with the agents that there are.
async fn is_command(cx: &Context, remote: &Remote, line: &str, dir: &Path) -> Result<(), Failure> {
    // Variables for the command precede it; if they are quoted, a shell parses them better.
    let is_set = |word: &&str| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| !name.is_empty() && name.chars().all(is_letter))
    };
    let is_quoted = |word: &str| word.contains(['\'', '"', '\\', '$', '`']);
    if line.split_whitespace().take_while(is_set).any(is_quoted) {
        return Ok(());
    }
    let mut words = line.split_whitespace().skip_while(is_set);
    let (first, more) = (words.next().unwrap_or_default(), words.next().is_some());
    let plain = !first.is_empty() && first.chars().all(|c| is_letter(c) || "-.,':".contains(c));
    if !more || !plain || BUILTINS.contains(&first) || !remote.is_here() {
        return Ok(());
    }
    if is_program(cx, first, dir) {
        return Ok(());
    }
    let agents = remote.agents(AGENTS).await.unwrap_or_default();
    let made = agents.into_iter().map(|agent| agent.name).filter(|name| *name != command::AGENT);
    let mut names: Vec<String> = made.collect();
    let installed = command::built_in_names().filter(|name| is_program(cx, name, dir));
    names.extend(installed.map(str::to_owned));
    names.sort_unstable();
    names.dedup();
    let claude = names.iter().find(|name| *name == "claude");
    let likely = claude.or(names.first()).map_or("claude", String::as_str);
    let mut hint = format!("did you mean overmind run --agent {likely} {}?", quoted(line));
    if names.len() > 1 {
        hint.push_str(&format!(" The agents are {}", names.join(", ")));
    }
    let message =
        format!("no program is called `{first}`, and no agent was named; nothing was started");
    Err(Failure::new(Exit::NotFound, message).hint(clean::line(&hint).into_owned()))
}

/// A word with a special meaning for a shell.
fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Words that a shell runs itself.
const BUILTINS: [&str; 48] = [
    ".", ":", "alias", "bg", "break", "case", "cd", "command", "continue", "echo", "eval", "exec",
    "exit", "export", "false", "dirs", "fg", "for", "function", "getopts", "hash", "if", "jobs",
    "kill", "local", "printf", "pwd", "read", "readonly", "return", "select", "set", "shift",
    "source", "test", "time", "times", "trap", "true", "type", "ulimit", "umask", "unalias",
    "unset", "until", "wait", "while", "declare",
];

/// Whether a program exits at once if it has no task: the built-in program agents do, and Claude
/// Code and Codex without a screen. A session gets its tasks later. `once`: the behaviour of an
/// agent's own command without a task is unknown here.
fn wants_task(agent: &Agent, command: &Command, once: bool) -> bool {
    use overmind_api::{CommandKind, Provider};

    let is_told = matches!(command.provider, Provider::Claude | Provider::Codex)
        && !command.terminal
        && command.argv.iter().any(|arg| arg.contains("{task}"));
    command.kind == CommandKind::Task && (programs::is_built_in(agent) || is_told && !once)
}

/// Whether one word is a line for a shell: a program's name has neither spaces nor what a shell
/// takes apart.
pub(crate) fn is_line(word: &str) -> bool {
    word.contains(|c: char| c.is_whitespace() || "|&;<>()$`\"'*?[]{}".contains(c))
}

/// Whether a word is a program, seen from the directory that the run begins in.
fn is_program(cx: &Context, word: &str, dir: &Path) -> bool {
    if word.contains('/') {
        return dir.join(word).is_file();
    }
    let path = cx.env.path(env::PATH).unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(word).is_file())
}

/// Makes the run and shows as much of it as was asked for. Without an agent the words are a command.
async fn begin(
    cx: &Context,
    remote: &Remote,
    args: RunArgs,
    agent: Option<Agent>,
    words: Vec<String>,
) -> Outcome {
    let mut draft = RunCreate {
        agent_id: String::new(),
        task: String::new(),
        step_limit: args.step_limit,
        workspace: place(cx, remote, args.workspace.as_deref(), args.cwd.as_deref()).await?,
        name: args.name,
        parent: match &args.parent {
            Some(parent) => Some(remote.find_run(parent).await?),
            None => None,
        },
        command: None,
        sandbox: args.command.sandbox.map(Into::into),
        room: args.room.wish(),
        conversation: None,
        labels: args.label.into_iter().collect(),
        contexts: args.context,
        memory_claims: args.claim,
        budget: (args.usd.is_some() || args.tokens.is_some())
            .then_some(RunBudget { usd: args.usd, tokens: args.tokens }),
    };
    let in_words = agent.is_none();
    let agent = match agent {
        Some(agent) => agent,
        None => remote.agent_of_commands().await?,
    };
    // A home is no project: the user must name one there. A child has the project of its parent,
    // and inside a run only the run's own directories are visible.
    let implied = draft.workspace.is_none() && remote.own().is_none();
    if implied && is_home(cx) {
        cx.out.note(
            "this directory is not a project: the run works in an empty directory of its own; \
                --project DIR selects another",
        );
    } else if implied && (agent.command.is_some() || draft.parent.is_none()) {
        // The current directory, as a shell reports it.
        let here = cx.cwd.to_str().map(str::to_owned);
        let odd = || Failure::usage(format!("{} is not UTF-8", cx.cwd.display()));
        draft.workspace = Some(here.ok_or_else(odd)?);
    }
    if let Some(own) = &agent.command {
        draft.command = args.command.over(own.clone());
        match (in_words, words.as_slice()) {
            (true, [line]) if is_line(line) => {
                cx.out.note(&format!("runs a shell command line: sh -c {}", quoted(line)));
                draft.task.clone_from(line);
            }
            (true, _) => {
                if let Some(program) = words.first().filter(|_| !args.room.here && !args.room.carry)
                {
                    uncommitted(cx, program, args.room.base.as_deref());
                }
                draft.task = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
                let over = draft.command.take().unwrap_or_else(|| own.clone());
                draft.command = Some(Command { argv: words, exact: true, ..over });
            }
            (false, _) => {
                let command = draft.command.as_ref().unwrap_or(own);
                if run_refused::is_blank(&words) && wants_task(&agent, command, args.once) {
                    return Err(run_refused::no_task(&agent));
                }
                draft.task = words.join(" ");
            }
        }
    } else {
        if run_refused::is_blank(&words) {
            return Err(run_refused::no_task(&agent));
        }
        if args.command.over(Command::default()).is_some() {
            let message =
                format!("{} is not a command: options for commands do not apply", agent.name);
            return Err(Failure::usage(message));
        }
        draft.task = words.join(" ");
        crate::agent::servable(cx, &agent)?;
    }
    if draft.sandbox.is_none() {
        let command = draft.command.as_ref();
        let chosen = programs::choose(cx, remote, &agent, command, args.room.here).await?;
        if let Some(note) = chosen.as_ref().and_then(|chosen| chosen.note.as_ref()) {
            cx.out.note(note);
        }
        draft.sandbox = chosen.map(|chosen| chosen.sandbox);
    }
    draft.command = programs::dressed(cx, &agent, draft.command.take(), draft.sandbox)?;
    // Whatever a run starts itself is to come to an end; so is a program.
    let alone = draft.parent.is_none() && remote.own().is_none();
    let once = args.once || cx.env.text(env::ONCE).is_some_and(|it| !it.is_empty() && it != "0");
    draft.conversation = (!in_words).then_some(alone && !once);
    draft.agent_id = agent.id.to_string();
    let key = args.idempotency_key.as_deref();
    if let Some(dir) = draft.workspace.as_deref().filter(|_| remote.is_here() && !args.room.here) {
        well_formed(Path::new(dir))?;
    }
    if let Some(dir) = &draft.workspace
        && args.trust_project
        && !args.room.here
    {
        trust::agreed(cx, remote, dir, true).await?;
    }
    let mut made = remote.client().run_create(&draft, key).await;
    if is_untrusted(&made) {
        let dir = draft.workspace.clone().unwrap_or_default();
        if trust::agreed(cx, remote, &dir, false).await? {
            made = remote.client().run_create(&draft, key).await;
        }
    }
    let untrusted = is_untrusted(&made);
    let made = match made.map_err(Failure::from) {
        // An empty directory in place of the repository would only cost tokens.
        Err(failure)
            if failure.exit == Exit::Denied
                && !untrusted
                && implied
                && failure.message.contains(OUTSIDE)
                && project_top(&cx.cwd).is_some() =>
        {
            let here = project_top(&cx.cwd).unwrap_or_else(|| cx.cwd.clone());
            let here = clean::line(&here.display().to_string()).into_owned();
            return Err(Failure::new(
                Exit::Denied,
                format!(
                    "this key may not use {here}: an admin can declare it (overmind apply -f \
                        project.yaml), or use --project NAME; nothing was started"
                ),
            )
            .hint("`overmind explain project` shows the fields of project.yaml"));
        }
        Err(failure) if failure.exit == Exit::Conflict && failure.message.contains(TAKEN) => {
            let name = draft.name.unwrap_or_default();
            return Err(failure.hint(format!(
                "overmind send {name} \"…\" continues that one; --name gives this one another name"
            )));
        }
        // A caller who may not choose a directory of the host works in none of it.
        Err(failure)
            if failure.exit == Exit::Denied
                && !untrusted
                && implied
                && draft.workspace.is_some() =>
        {
            draft.workspace = None;
            let made = remote.run_create(&draft, key).await?;
            cx.out.note(&format!(
                "{}; the run works in an empty directory of its own",
                failure.message.trim_start_matches("error: ")
            ));
            made
        }
        made => made?,
    };
    let id = made.id.to_string();
    let is_command = agent.command.is_some();
    if made.status == RunStatus::Queued
        && let Ok(state) = remote.client().halt_fetch().await
        && state.halted
    {
        let by = clean::line(state.by.as_deref().unwrap_or("somebody")).into_owned();
        cx.out.note(&format!("halted by {by}: it starts after `overmind resume`"));
    }
    if args.wait || (args.follow && cx.out.format == Format::Name) {
        let run = watch::until(cx, remote, &id, Until::Settled, &mut Place::None).await?;
        show::one(&cx.out, &run, &id, || watch::summary(&run))?;
        return Ok(exit_of(&run));
    }
    let at_terminal = std::io::stdout().is_terminal() && cx.out.for_people();
    if args.follow || (at_terminal && !args.detach && !cx.global.quiet) {
        if cx.out.for_people() {
            cx.out.note(&format!("run {} ({})", made.name, ids::short(&id)));
        }
        return Box::pin(follow(cx, remote, &made, is_command)).await;
    }
    if cx.global.quiet && cx.out.for_people() {
        cx.out.line(&id)?;
    } else {
        show::one(&cx.out, &made, &id, || vec![("run", cell(&id))])?;
    }
    if is_command && !args.detach {
        let run = watch::until(cx, remote, &id, Until::Begun, &mut Place::None).await?;
        started(&run)?;
        if cx.out.for_people() && !args.room.here {
            room::announce(cx, &run);
        }
    }
    if cx.out.for_people() {
        cx.out.note(&format!("watch it: overmind logs -f {}", made.name));
    }
    Ok(Exit::Done)
}

/// Refuses a project whose `.overmind.yml` has mistakes, before anything is started.
///
/// # Errors
///
/// [`Exit::Usage`] with every mistake, a line each.
fn well_formed(dir: &Path) -> Result<(), Failure> {
    let top = project_top(dir).unwrap_or_else(|| dir.to_owned());
    // A link, a pipe or a file without an end is the server's to refuse.
    let plain = top
        .join(FILE)
        .symlink_metadata()
        .is_ok_and(|found| found.is_file() && found.len() < 1 << 20);
    let Some(err) = plain.then(|| Config::load(&top).err()).flatten() else { return Ok(()) };
    let mistakes = match err.problems.len() {
        1 => "a mistake".to_owned(),
        n => format!("{n} mistakes"),
    };
    let lines: Vec<String> =
        err.to_string().lines().map(|line| format!("  {}", clean::line(line))).collect();
    let message =
        format!("the project's {FILE} has {mistakes}; nothing was started\n{}", lines.join("\n"));
    Err(Failure::usage(message).hint("docs/overmind-yml.md has the grammar"))
}

/// Whether a run was refused because an admin has to confirm what its project orders.
fn is_untrusted(made: &Result<Run, ClientError>) -> bool {
    let kind = ProblemKind::Untrusted;
    matches!(made, Err(ClientError::Refused(problem)) if problem.known_kind() == Some(kind))
}

/// Prints a note if a program is in the directory but not in the base commit of the worktree.
fn uncommitted(cx: &Context, program: &str, base: Option<&str>) {
    if !program.contains('/') || program.starts_with('/') || !cx.cwd.join(program).is_file() {
        return;
    }
    let base = base.unwrap_or("HEAD");
    let known = |object: &str| {
        let mut git = std::process::Command::new("git");
        // This repository is not confirmed: none of its commands runs, and missing objects are not fetched.
        git.args(["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]);
        git.args(["-c", "protocol.allow=never", "-c", "core.sshCommand=false"]);
        git.env("GIT_ALLOW_PROTOCOL", "none").env("GIT_NO_LAZY_FETCH", "1");
        git.args(["cat-file", "-e", object]).current_dir(&cx.cwd);
        git.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        git.status().is_ok_and(|status| status.success())
    };
    let path = program.trim_start_matches("./");
    if known(base) && !known(&format!("{base}:./{path}")) {
        let program = clean::line(program);
        cx.out.note(&format!(
            "{program} is not in {base}, so the run's worktree does not contain it unless the \
                project copies it: commit it, add --carry, or work in this directory with --here"
        ));
    }
}

/// Refuses a run whose program never ran.
fn started(run: &Run) -> Result<(), Failure> {
    let ran = run.process.as_ref().is_some_and(|process| {
        process.pid.is_some() || process.exit_code.is_some() || process.signal.is_some()
    });
    match &run.error {
        Some(error) if session::ended(run.status) && !ran => {
            let message = format!("{} was not started: {}", run.name, story::error_text(error));
            Err(Failure::new(Exit::RunFailed, message))
        }
        Some(_) | None => Ok(()),
    }
}

/// The exit code of the run's program, or the state of the run.
fn exit_of(run: &Run) -> Exit {
    let ran = run.process.as_ref().is_some_and(|process| process.exit_code.is_some());
    if session::ended(run.status) && ran {
        return command::exit_of(run);
    }
    watch::exit_of(run.status)
}

/// Shows a run until it is idle or ends, and asks its questions at the terminal. `^C` leaves it running.
///
/// # Errors
///
/// Returns an error if it could not be shown or answered.
pub async fn follow(cx: &Context, remote: &Remote, made: &Run, is_command: bool) -> Outcome {
    Box::pin(follow_from(cx, remote, made, is_command, Since::default())).await
}

/// The position from which a run is followed.
#[derive(Debug, Default)]
pub struct Since {
    /// The last entry of its timeline that is known.
    pub place: Place,
    /// For a started command: the position at which its log continues.
    pub offset: Option<u64>,
}

/// The same from a place on.
///
/// # Errors
///
/// See [`follow`].
pub async fn follow_from(
    cx: &Context,
    remote: &Remote,
    made: &Run,
    is_command: bool,
    since: Since,
) -> Outcome {
    let watched = async {
        match is_command {
            true => Box::pin(follow_command(cx, remote, made, since)).await,
            false => follow_agent(cx, remote, made, since.place).await,
        }
    };
    tokio::select! {
        biased;
        outcome = watched => outcome,
        _ = tokio::signal::ctrl_c() => {
            let name = &made.name;
            cx.out.note(&format!(
                "\n{name} continues; watch it: overmind logs -f {name}; end it: overmind stop \
                    {name}"
            ));
            Ok(Exit::of_command(INTERRUPTED))
        }
    }
}

async fn follow_agent(cx: &Context, remote: &Remote, made: &Run, mut place: Place) -> Outcome {
    let id = made.id.to_string();
    loop {
        let run = watch::tell(cx, remote, &id, Until::Settled, &mut place).await?;
        if watch::waits(run.status) && asked::in_place(cx, remote, &run).await? {
            continue;
        }
        if cx.out.for_people() {
            watch::epilogue(cx, remote, &run).await;
        }
        return Ok(watch::exit_of(run.status));
    }
}

async fn follow_command(cx: &Context, remote: &Remote, made: &Run, since: Since) -> Outcome {
    let id = made.id.to_string();
    let Since { mut place, offset } = since;
    let begun = match offset {
        Some(_) => remote.run(&id).await?,
        None => {
            let begun = watch::until(cx, remote, &id, Until::Begun, &mut place).await?;
            started(&begun)?;
            if cx.out.for_people() {
                room::announce(cx, &begun);
            }
            begun
        }
    };
    let mut options = LogOptions { strip: !cx.out.colour, offset, ..LogOptions::default() };
    let mut spoken = match cx.out.for_people() {
        true => Spoken::of(cx, remote, &begun).await?,
        false => None,
    };
    loop {
        let settled = watch::until(cx, remote, &id, Until::Settled, &mut place);
        let run = tokio::select! {
            biased;
            said = command::output(cx, remote, &id, &mut options, &mut spoken) => {
                said?;
                remote.run(&id).await?
            }
            run = settled => run?,
        };
        if session::ended(run.status) {
            // The last output may arrive after the event of the end.
            command::output(cx, remote, &id, &mut options, &mut spoken).await?;
            return Ok(exit_of(&run));
        }
        if run.status == RunStatus::Idle {
            command::so_far(cx, remote, &id, &mut options, &mut spoken).await?;
            watch::epilogue(cx, remote, &run).await;
            return Ok(Exit::Done);
        }
        if asked::in_place(cx, remote, &run).await? {
            continue;
        }
        if watch::waits(run.status) {
            watch::epilogue(cx, remote, &run).await;
            return Ok(Exit::RunWaits);
        }
    }
}

/// The directory that a run is to begin in: that of `--project`, which is a path or the name of a declared
/// Project. On another machine a path that is not here is the server's.
///
/// # Errors
///
/// See [`workspace`].
async fn place(
    cx: &Context,
    remote: &Remote,
    project: Option<&Path>,
    cwd: Option<&Path>,
) -> Result<Option<String>, Failure> {
    let there = |path: &&Path| !cx.cwd.join(path).exists();
    let Some(given) = project.filter(there) else { return workspace(cx, project, cwd) };
    if given.is_absolute() {
        let theirs = given.to_str().filter(|_| !remote.is_here() && cwd.is_none());
        return match theirs {
            Some(path) => Ok(Some(path.to_owned())),
            None => workspace(cx, project, cwd),
        };
    }
    let name = given.to_str().filter(|name| overmind_core::name::check(name).is_ok());
    let Some(name) = name else { return workspace(cx, project, cwd) };
    match remote.client().resource_fetch("project", name).await.map_err(Failure::from) {
        Ok(declared) => {
            let top = declared.spec["path"].as_str().map(Path::new);
            let top = top.map(|top| cwd.map_or_else(|| top.to_owned(), |cwd| top.join(cwd)));
            Ok(top.and_then(|top| top.to_str().map(str::to_owned)))
        }
        Err(failure) if failure.exit == Exit::Unreachable => Err(failure),
        Err(_) => {
            let message = format!("--project {name}: no directory and no Project has this name");
            Err(Failure::failed(message)
                .hint("`overmind get projects` lists what an admin has declared"))
        }
    }
}

/// The directory in which a run begins; `None` if none is given.
pub(crate) fn workspace(
    cx: &Context,
    project: Option<&Path>,
    cwd: Option<&Path>,
) -> Result<Option<String>, Failure> {
    // The server knows nothing of this shell's current directory.
    let (option, path) = match (project, cwd) {
        (None, None) => return Ok(None),
        (Some(project), None) => ("--workspace", cx.cwd.join(project)),
        (project, Some(cwd)) => ("--cwd", cx.cwd.join(project.unwrap_or(&cx.cwd)).join(cwd)),
    };
    let found = path
        .canonicalize()
        .map_err(|err| Failure::failed(format!("{option} {}: {err}", path.display())))?;
    let text = found.to_str().map(str::to_owned);
    text.map(Some)
        .ok_or_else(|| Failure::usage(format!("{option} {} is not UTF-8", found.display())))
}

/// A word of the command line, to be copied.
fn quoted(word: &str) -> String {
    shell_word(&clean::line(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_a_shell_would_split_is_a_command_line() {
        for line in ["echo hi", "a;b", "ls *.rs", "echo $HOME", "sleep 1&"] {
            assert!(is_line(line), "{line}");
        }
        for word in ["make", "./try.sh", "-x", "a-b_c.d", "C:x", "x=y"] {
            assert!(!is_line(word), "{word}");
        }
    }

    #[test]
    fn words_are_quoted_so_that_a_shell_reads_them_back() {
        let shown = ["rm", "my dir", "it's", ""].map(quoted).join(" ");
        assert_eq!(shown, "rm 'my dir' 'it'\\''s' ''");
    }
}
