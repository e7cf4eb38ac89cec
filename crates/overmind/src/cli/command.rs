//! Runs whose agent is a command: `stop`, `kill`, `send`, `wait`, and their part of `run` and `logs`.

use std::io::Write as _;

use futures_util::StreamExt as _;
use overmind_api::{
    AgentCreate, Command, CommandKind, CommandNetwork, Provider, Restart, Run, RunSend, RunStop,
    SandboxLevel,
};
use overmind_client::LogOptions;
use overmind_core::time::Clock as _;
use serde_json::Value;

use super::args::LogsArgs;
use super::args_command::{
    CommandFlags, KillArgs, NetworkArg, ProviderArg, SendArgs, StopArgs, TypeArg, WaitArgs,
};
use super::context::Context;
use super::exit::{Exit, Failure, Outcome};
use super::remote::Remote;
use super::{session, watch};
use crate::app::clock::SystemClock;

/// Runs that are ended at the same time.
const AT_ONCE: usize = 64;

/// The agent of commands that are given in words.
pub const AGENT: &str = "command";

/// [`AGENT`], as it is made where there is none.
pub fn agent() -> AgentCreate {
    AgentCreate {
        name: AGENT.into(),
        role: "Commands that were given in words.".into(),
        model: AGENT.into(),
        sandbox: Some(SandboxLevel::None),
        limits: Some(overmind_api::AgentLimits { max_seconds: 0, ..Default::default() }),
        command: Some(Command {
            argv: ["sh", "-c", "{task}"].map(str::to_owned).into(),
            terminal: true,
            ..Command::default()
        }),
        ..AgentCreate::default()
    }
}

/// The agents that are there without being made: programs whose output is read.
const BUILT_IN: [(&str, Provider); 2] = [("claude", Provider::Claude), ("codex", Provider::Codex)];

/// The built-in agent of this name, as it is made where there is none.
pub fn built_in(name: &str) -> Option<AgentCreate> {
    let (name, provider) = BUILT_IN.into_iter().find(|(known, _)| *known == name)?;
    Some(AgentCreate {
        name: name.into(),
        role: format!("The program `{name}`."),
        model: AGENT.into(),
        sandbox: Some(SandboxLevel::None),
        limits: Some(overmind_api::AgentLimits { max_seconds: 0, ..Default::default() }),
        command: Some(Command { provider, ..Command::default() }),
        ..AgentCreate::default()
    })
}

impl ProviderArg {
    /// The agent that all words are the task of, where none is named.
    pub fn agent(self) -> Option<&'static str> {
        let of = Provider::from(self);
        BUILT_IN.into_iter().find(|(_, provider)| *provider == of).map(|(name, _)| name)
    }
}

impl From<ProviderArg> for Provider {
    fn from(arg: ProviderArg) -> Self {
        match arg {
            ProviderArg::Raw => Self::Raw,
            ProviderArg::Claude => Self::Claude,
            ProviderArg::Codex => Self::Codex,
            ProviderArg::Lines => Self::Lines,
        }
    }
}

impl CommandFlags {
    /// What of an agent's command these change; `None` when nothing is asked for.
    pub fn over(&self, agent: Command) -> Option<Command> {
        let Self {
            agent: _,
            // Asked for beside the command.
            sandbox: _,
            provider,
            model,
            kind,
            pipes,
            restart,
            max_restarts,
            max_seconds,
            backoff,
            activity_timeout,
            network,
            env,
            env_from,
        } = self;
        let asked = provider.is_some()
            || model.is_some()
            || kind.is_some()
            || *pipes
            || restart.is_some()
            || max_restarts.is_some()
            || max_seconds.is_some()
            || backoff.is_some()
            || activity_timeout.is_some()
            || network.is_some()
            || !env.is_empty()
            || !env_from.is_empty();
        asked.then(|| Command {
            argv: Vec::new(),
            provider: provider.map_or(agent.provider, Provider::from),
            model: model.clone().or(agent.model),
            kind: match kind {
                Some(TypeArg::Task) => CommandKind::Task,
                Some(TypeArg::Session) => CommandKind::Session,
                None => agent.kind,
            },
            // What is read is no screen.
            terminal: agent.terminal && !pipes && matches!(provider, None | Some(ProviderArg::Raw)),
            env: [agent.env, env.clone()].concat(),
            env_from: agent.env_from.into_iter().chain(env_from.iter().cloned()).collect(),
            restart: restart.map_or(agent.restart, |restart| match restart {
                super::args_command::RestartArg::Never => Restart::Never,
                super::args_command::RestartArg::OnFailure => Restart::OnFailure,
                super::args_command::RestartArg::Always => Restart::Always,
            }),
            max_restarts: max_restarts.unwrap_or(agent.max_restarts),
            max_seconds: max_seconds.unwrap_or(agent.max_seconds),
            backoff_ms: backoff.unwrap_or(agent.backoff_ms),
            activity_timeout: activity_timeout.unwrap_or(agent.activity_timeout),
            read: agent.read,
            write: agent.write,
            network: match network {
                Some(NetworkArg::Host) => Some(CommandNetwork::Host),
                Some(NetworkArg::Mesh) => Some(CommandNetwork::Mesh),
                Some(NetworkArg::None) => Some(CommandNetwork::None),
                None => agent.network,
            },
            models: agent.models,
            gateway: agent.gateway,
        })
    }
}

/// # Errors
///
/// What kept the last of those that failed from being stopped.
pub async fn stop(cx: &Context, args: &StopArgs) -> Outcome {
    let stop = RunStop { kill: false, grace: args.grace };
    each(cx, args.ids.iter().cloned().map(Given::named).collect(), stop, false).await
}

/// # Errors
///
/// What kept the last of those that failed from being killed.
pub async fn kill(cx: &Context, args: &KillArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let mut given: Vec<Given> = args.ids.iter().cloned().map(Given::named).collect();
    if args.all {
        let open: Vec<_> = overmind_api::RunStatus::ALL
            .iter()
            .copied()
            .filter(|status| !session::ended(*status))
            .collect();
        let runs = remote.runs(&open, None, 1_000_000).await?;
        given.extend(open_commands(&runs));
        if given.is_empty() {
            cx.out.note("no commands are running");
            return Ok(Exit::Done);
        }
    }
    each(cx, given, RunStop { kill: true, grace: None }, args.cascade).await
}

/// A run that is to be ended.
struct Given {
    /// Its id, its name or a part of one.
    words: String,
    /// Whether a command of it was seen: it is not asked for again then.
    has_command: bool,
}

impl Given {
    fn named(words: String) -> Self {
        Self { words, has_command: false }
    }
}

/// Runs whose command runs, or will; nothing more can be ended of one whose room is given back.
fn open_commands(runs: &[Run]) -> impl Iterator<Item = Given> + '_ {
    let closing = |run: &Run| {
        run.room.as_ref().is_some_and(|room| room.phase == overmind_api::RoomPhase::Closing)
    };
    runs.iter()
        .filter(move |run| (run.process.is_some() || run.room.is_some()) && !closing(run))
        .map(|run| Given { words: run.id.to_string(), has_command: run.process.is_some() })
}

/// Ends each, many at once; goes on after one that cannot be, and tells the worst of it at the end.
async fn each(cx: &Context, given: Vec<Given>, stop: RunStop, cascade: bool) -> Outcome {
    let remote = Remote::connect(cx)?;
    let end = async |given: &Given| {
        let id = remote.find_run(&given.words).await?;
        let ask = stop.kill && !given.has_command;
        // The children first, as `cancel --cascade` does it; what is no command is canceled.
        match cascade || (ask && remote.run(&id).await?.process.is_none()) {
            true => remote.run_cancel(&id, cascade).await,
            false => match remote.run_stop(&id, stop).await {
                // It was seen a moment ago, and has ended by itself since.
                Err(failure) if given.has_command && failure.exit == Exit::Conflict => {
                    let run = remote.run(&id).await?;
                    if session::ended(run.status) { Ok(run) } else { Err(failure) }
                }
                done => done,
            },
        }
    };
    let mut ending = futures_util::stream::iter(given.iter().map(end)).buffered(AT_ONCE);
    let mut failed: Option<Failure> = None;
    while let Some(ended) = ending.next().await {
        if let Err(failure) = ended.and_then(|run| session::show_run(cx, &run))
            && let Some(before) = failed.replace(failure)
        {
            cx.out.error(&before.message, before.hint.as_deref());
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None => Ok(Exit::Done),
    }
}

/// # Errors
///
/// What kept the words from being sent.
pub async fn send(cx: &Context, args: &SendArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(&args.id).await?;
    let mut text = args.words.join(" ");
    if args.secret {
        std::io::stdin()
            .read_line(&mut text)
            .map_err(|err| Failure::failed(format!("reading the secret: {err}")))?;
        text.truncate(text.trim_end_matches(['\n', '\r']).len());
    }
    let send = RunSend { text, raw: args.raw, secret: args.secret };
    if args.wait {
        return super::look::send_and_wait(cx, &remote, &id, &send, args.timeout).await;
    }
    let run = remote.run_send(&id, &send).await?;
    session::show_run(cx, &run)?;
    Ok(Exit::Done)
}

/// Waits until a run has ended. Exits with the exit code of its command, as a shell shows it.
///
/// # Errors
///
/// When it does not end in time, or the server stays away.
pub async fn wait(cx: &Context, args: &WaitArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(&args.id).await?;
    let ended = watch::ended(cx, &remote, &id);
    let run = match args.timeout {
        None => ended.await?,
        Some(seconds) => {
            let limit = std::time::Duration::from_secs_f64(seconds);
            match tokio::time::timeout(limit, ended).await {
                Ok(run) => run?,
                Err(_) => {
                    let message = format!("{} has not ended within {seconds} s", args.id);
                    return Err(Failure::failed(message));
                }
            }
        }
    };
    session::show_run(cx, &run)?;
    Ok(exit_of(&run))
}

/// The exit code of a run's command, where it has one.
pub fn exit_of(run: &Run) -> Exit {
    match &run.process {
        Some(process) => match (process.exit_code, process.signal) {
            (Some(code), _) => Exit::of_command(code),
            (None, Some(signal)) => Exit::of_command(128 + signal),
            (None, None) => Exit::of_command(137),
        },
        None => watch::exit_of(run.status),
    }
}

/// Which part of a log is meant.
///
/// # Errors
///
/// When a time cannot be read.
pub fn options(cx: &Context, args: &LogsArgs) -> Result<LogOptions, Failure> {
    Ok(LogOptions {
        tail: args.tail,
        since: match &args.since {
            Some(since) => Some(since_of(since)?),
            None => None,
        },
        grep: args.grep.clone(),
        strip: !cx.out.colour,
        ..LogOptions::default()
    })
}

/// Shows what a run's command has written.
///
/// # Errors
///
/// When the log cannot be read, or the server stays away.
pub async fn logs(cx: &Context, remote: &Remote, run: &Run, args: &LogsArgs) -> Outcome {
    let id = run.id.to_string();
    let mut options = options(cx, args)?;
    let objects = !cx.out.for_people();
    if !args.follow {
        options.objects = objects;
        let mut log = remote.run_log(&id, &options).await?;
        let mut out = std::io::stdout().lock();
        while let Some(bytes) = log.next().await? {
            if out.write_all(&bytes).is_err() {
                return Ok(Exit::Done);
            }
        }
        return Ok(Exit::Done);
    }
    // Followed by objects, which say where to go on when the server was away.
    options.follow = true;
    options.objects = true;
    let mut away = watch::Away::default();
    loop {
        let failure = match follow(cx, remote, &id, &mut options, objects, &mut away).await {
            Ok(()) => match remote.run(&id).await {
                Ok(run) if session::ended(run.status) => {
                    // What was written between the end of its command and its own.
                    follow(cx, remote, &id, &mut options, objects, &mut away).await?;
                    return Ok(Exit::Done);
                }
                // Its room is made or given back, or its command is started again soon.
                Ok(_) => {
                    away.is_back();
                    watch::pause().await;
                    continue;
                }
                Err(failure) => Some(failure),
            },
            Err(failure) => Some(failure),
        };
        away.wait(cx, failure).await?;
    }
}

/// Shows a log to the end of its stream, and keeps in `options` where to go on.
async fn follow(
    cx: &Context,
    remote: &Remote,
    id: &str,
    options: &mut LogOptions,
    objects: bool,
    away: &mut watch::Away,
) -> Result<(), Failure> {
    let mut log = remote.run_log(id, options).await?;
    let mut rest: Vec<u8> = Vec::new();
    while let Some(bytes) = log.next().await? {
        away.is_back();
        rest.extend_from_slice(&bytes);
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=at).collect();
            let Ok(object) = serde_json::from_slice::<Value>(&line) else { continue };
            if let Some(next) = object["next"].as_u64() {
                (options.offset, options.tail, options.since) = (Some(next), None, None);
            }
            match (objects, object["text"].as_str()) {
                (false, Some(text)) => cx.out.text(&format!("{text}\n"))?,
                (false, None) => cx.out.note("some lines are gone"),
                (true, _) => cx.out.streamed(&object)?,
            }
        }
    }
    Ok(())
}

/// A time, or how long ago: `90s`, `10m`, `2h`, `1d`.
fn since_of(text: &str) -> Result<String, Failure> {
    let (number, unit) = text.split_at(text.len().saturating_sub(1));
    let seconds = match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(86_400),
        _ => None,
    };
    if let (Ok(number), Some(seconds)) = (number.parse::<u32>(), seconds) {
        let ago = i64::from(number) * seconds * 1_000_000;
        let at = SystemClock.now().as_micros().saturating_sub(ago);
        return Ok(overmind_core::time::Timestamp::from_micros(at).to_string());
    }
    match text.parse::<overmind_core::time::Timestamp>() {
        Ok(at) => Ok(at.to_string()),
        Err(_) => Err(Failure::usage(format!(
            "--since takes a time such as 2026-01-31T08:00:00Z, or 90s, 10m, 2h or 1d ago, not `{text}`"
        ))),
    }
}
