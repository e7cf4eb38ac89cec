//! Runs whose agent is a command: `stop`, `kill`, `send`, `wait`, and their part of `run` and `logs`.

use std::collections::HashMap;
use std::io::IsTerminal as _;

use futures_util::StreamExt as _;
use overmind_api::{
    AgentCreate, Command, CommandKind, CommandLimits, CommandNetwork, MAX_KILL_BATCH, Provider,
    Restart, Run, RunBasic, RunKilled, RunSend, RunStatus, RunStop, RunsKill, SandboxLevel,
    SessionId,
};
use overmind_client::{ClientError, LogOptions};
use overmind_core::room::stay::tells_of_making;
use overmind_core::time::{Clock as _, Timestamp};
use overmind_node::app::clock::SystemClock;
use serde_json::Value;

use crate::args::LogsArgs;
use crate::args_command::{
    CommandFlags, KillArgs, NetworkArg, ProviderArg, SendArgs, StopArgs, TypeArg, WaitArgs,
};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::clean;
use crate::progress::spin;
use crate::remote::Remote;
use crate::spoken::Spoken;
use crate::{duration, session, watch};

/// The default seconds between TERM and KILL.
const GRACE: u32 = 10;

/// Runs that are ended at the same time.
const AT_ONCE: usize = 64;

/// The agent for command lines, which the server has without creating it.
pub use overmind_core::agent::COMMANDS as AGENT;

/// The agents that are there without being made, and what runs of those whose output is not read.
/// In a sandbox that is another command line, see [`crate::programs::dressed`].
const BUILT_IN: [(&str, Provider, &[&str]); 4] = [
    ("claude", Provider::Claude, &[]),
    ("codex", Provider::Codex, &[]),
    ("gemini", Provider::Raw, &["gemini", "--approval-mode=auto_edit", "--prompt={task}"]),
    ("opencode", Provider::Raw, &["opencode", "run", "--", "{task}"]),
];

/// The built-in agent of this name, as it is created if it does not exist.
pub fn built_in(name: &str) -> Option<AgentCreate> {
    let (name, provider, argv) = BUILT_IN.into_iter().find(|(known, ..)| *known == name)?;
    let argv = argv.iter().map(|&arg| arg.to_owned()).collect();
    Some(AgentCreate {
        name: name.into(),
        role: format!("The program `{name}`."),
        model: AGENT.into(),
        sandbox: Some(SandboxLevel::None),
        limits: Some(overmind_api::AgentLimits { max_seconds: 0, ..Default::default() }),
        command: Some(Command { argv, provider, ..Command::default() }),
        ..AgentCreate::default()
    })
}

/// The names of the agents that exist without being created.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.into_iter().map(|(name, ..)| name)
}

impl ProviderArg {
    /// The agent that all words are the task of, where none is named.
    pub fn agent(self) -> Option<&'static str> {
        let of = Provider::from(self);
        let mut read = BUILT_IN.into_iter().filter(|(_, provider, _)| *provider != Provider::Raw);
        read.find(|(_, provider, _)| *provider == of).map(|(name, ..)| name)
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
    /// The changes to an agent's command; `None` if none are requested.
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
            memory,
            processes,
            cpus,
            env,
            env_from,
        } = self;
        let limits =
            CommandLimits { memory_mb: *memory, processes: *processes, cpu_percent: *cpus };
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
            || !limits.is_none()
            || !env.is_empty()
            || !env_from.is_empty();
        asked.then(|| Command {
            argv: Vec::new(),
            exact: false,
            provider: provider.map_or(agent.provider, Provider::from),
            model: model.clone().or(agent.model),
            kind: match kind {
                Some(TypeArg::Task) => CommandKind::Task,
                Some(TypeArg::Session) => CommandKind::Session,
                None => agent.kind,
            },
            // Logs that are read are no screen.
            terminal: agent.terminal && !pipes && matches!(provider, None | Some(ProviderArg::Raw)),
            env: [agent.env, env.clone()].concat(),
            env_from: agent.env_from.into_iter().chain(env_from.iter().cloned()).collect(),
            restart: restart.map_or(agent.restart, |restart| match restart {
                crate::args_command::RestartArg::Never => Restart::Never,
                crate::args_command::RestartArg::OnFailure => Restart::OnFailure,
                crate::args_command::RestartArg::Always => Restart::Always,
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
            // Settings of the agent that are not named here still apply.
            limits,
        })
    }
}

/// Ends the runs in parallel; continues after one that cannot be ended.
///
/// # Errors
///
/// Returns an error if a run could not be stopped; the last error counts.
pub async fn stop(cx: &Context, args: &StopArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let stop = RunStop { kill: false, grace: args.grace };
    let end = async |given: &String| {
        let id = remote.find_run_exactly(given).await?;
        let ending = match args.cascade {
            true => remote.run_cancel(&id, true).await,
            false => remote.run_stop(&id, stop).await,
        };
        let ending = ending.map_err(|failure| failure.of_run(given))?;
        if args.no_wait || ending.status.is_terminal() {
            return Ok(ending);
        }
        let grace = args.grace.unwrap_or(GRACE);
        let waits = format!("{given} was asked to stop; it is killed after {grace} s");
        Box::pin(spin(&cx.out, &waits, watch::ended(cx, &remote, &id))).await
    };
    let mut ending = futures_util::stream::iter(args.ids.iter().map(end)).buffered(AT_ONCE);
    let mut worst = Worst::default();
    while let Some(ended) = ending.next().await {
        worst.of(cx, ended.and_then(|run| session::show_run(cx, &run)));
    }
    worst.told()
}

/// Requests as many kills at once as one request accepts; continues after one that fails.
///
/// # Errors
///
/// Returns an error if a run could not be killed; the last error counts.
pub async fn kill(cx: &Context, args: &KillArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let mut worst = Worst::default();
    if args.all {
        let all = RunsKill { all: true, cascade: args.cascade, ..RunsKill::default() };
        let (mut ask, mut any) = (all.clone(), false);
        loop {
            let killed = remote.run_kill_all(&ask).await?;
            any |= !killed.results.is_empty();
            show_killed(cx, killed.results, &HashMap::new(), &mut worst);
            if killed.next.is_none() {
                break;
            }
            ask = RunsKill { after: killed.next, ..all.clone() };
        }
        if !any {
            cx.out.note("no commands are running");
        }
        tell_of_idle(cx, &remote).await?;
        return worst.told();
    }
    let find = async |given: &String| -> Result<SessionId, Failure> {
        let id = remote.find_run_exactly(given).await?;
        id.parse().map_err(|_| Failure::failed(format!("{id} is not the id of a run")))
    };
    let mut finding = futures_util::stream::iter(args.ids.iter().map(find)).buffered(AT_ONCE);
    let (mut ids, mut given): (Vec<SessionId>, _) = (Vec::new(), args.ids.iter());
    let mut names: HashMap<SessionId, &str> = HashMap::new();
    while let (Some(found), Some(given)) = (finding.next().await, given.next()) {
        match found {
            Ok(id) if ids.contains(&id) => {}
            Ok(id) => {
                ids.push(id);
                names.insert(id, given);
            }
            Err(failure) => worst.of(cx, Err(failure)),
        }
    }
    for ids in ids.chunks(MAX_KILL_BATCH) {
        let ask = RunsKill { ids: ids.to_vec(), cascade: args.cascade, ..RunsKill::default() };
        show_killed(cx, remote.run_kill_all(&ask).await?.results, &names, &mut worst);
    }
    worst.told()
}

/// Names the idle runs that `kill --all` has left alone.
async fn tell_of_idle(cx: &Context, remote: &Remote) -> Result<(), Failure> {
    const NAMED: usize = 3;
    let idle: Vec<RunBasic> = remote.runs(&[RunStatus::Idle], None, 1000).await?;
    if idle.is_empty() {
        return Ok(());
    }
    let mut names: Vec<&str> = idle.iter().take(NAMED).map(|run| run.name.as_str()).collect();
    if idle.len() > NAMED {
        names.push("…");
    }
    let names = names.join(", ");
    cx.out.note(&match idle.len() {
        1 => format!("1 idle run was left: {names}"),
        count => format!("{count} idle runs were left: {names}"),
    });
    cx.out.note("end one with `overmind stop NAME`");
    Ok(())
}

/// One as a single thing is shown; of several a line each for people, and each for itself for programs.
/// `names`: what the person called them.
fn show_killed(
    cx: &Context,
    results: Vec<RunKilled>,
    names: &HashMap<SessionId, &str>,
    worst: &mut Worst,
) {
    let (mut killed, mut failures) = (Vec::new(), Vec::new());
    for RunKilled { id, ok: _, run, problem } in results {
        match (run, problem) {
            (Some(run), _) => killed.push(run),
            (None, Some(problem)) => {
                let failure = Failure::from(ClientError::Refused(Box::new(problem)));
                failures.push(match names.get(&id) {
                    Some(name) => failure.of_run(name),
                    None => failure,
                });
            }
            (None, None) => failures.push(Failure::failed(format!("{id} was not killed"))),
        }
    }
    if cx.out.for_people() && killed.len() > 1 {
        worst.of(cx, session::list_ended(cx, &killed));
    } else {
        killed.iter().for_each(|run| worst.of(cx, session::show_run(cx, run)));
    }
    failures.into_iter().for_each(|failure| worst.of(cx, Err(failure)));
}

/// The last failure of many attempts; those before it are shown as they come.
#[derive(Default)]
pub(crate) struct Worst(Option<Failure>);

impl Worst {
    pub(crate) fn of(&mut self, cx: &Context, done: Result<(), Failure>) {
        if let Err(failure) = done
            && let Some(before) = self.0.replace(failure)
        {
            cx.out.error(&before.message, before.hint.as_deref());
        }
    }

    pub(crate) fn told(self) -> Outcome {
        match self.0 {
            Some(failure) => Err(failure),
            None => Ok(Exit::Done),
        }
    }
}

/// # Errors
///
/// Returns an error if the text could not be sent.
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
        if !watch::is_of_command(&remote, &remote.run(&id).await?).await? {
            return tell_and_watch(cx, &remote, (&id, &args.id), &send).await;
        }
        return crate::look::send_and_wait(cx, &remote, &id, &send, args.timeout)
            .await
            .map_err(|failure| failure.of_run(&args.id));
    }
    let person = std::io::stdout().is_terminal() && cx.out.for_people() && !cx.global.quiet;
    if args.follow || (person && !args.detach && !args.raw) {
        return Box::pin(send_and_follow(cx, &remote, (&id, &args.id), &send)).await;
    }
    let sent = remote.run_send(&id, &send).await;
    let run = sent.map_err(|failure| failure.of_run(&args.id))?;
    session::show_run(cx, &run)?;
    Ok(Exit::Done)
}

/// Sends a message, and shows the output as `run` does. `given`: the name that the person typed.
async fn send_and_follow(
    cx: &Context,
    remote: &Remote,
    (id, given): (&str, &str),
    send: &RunSend,
) -> Outcome {
    let is_command = watch::is_of_command(remote, &remote.run(id).await?).await?;
    let mut since = crate::run::Since::default();
    watch::until(cx, remote, id, watch::Until::Now, &mut since.place).await?;
    if is_command {
        since.offset = Some(crate::look::end_of_log(remote, id).await?);
    }
    let run = remote.run_send(id, send).await.map_err(|failure| failure.of_run(given))?;
    Box::pin(crate::run::follow_from(cx, remote, &run, is_command, since)).await
}

/// Sends a message to a built-in agent, and shows the output until it is idle, ends or asks.
async fn tell_and_watch(
    cx: &Context,
    remote: &Remote,
    (id, given): (&str, &str),
    send: &RunSend,
) -> Outcome {
    let mut place = watch::Place::None;
    watch::until(cx, remote, id, watch::Until::Now, &mut place).await?;
    remote.run_send(id, send).await.map_err(|failure| failure.of_run(given))?;
    let run = watch::tell(cx, remote, id, watch::Until::Settled, &mut place).await?;
    if cx.out.for_people() {
        watch::epilogue(cx, remote, &run).await;
    }
    Ok(watch::exit_of(run.status))
}

/// Waits until runs have ended or are idle, or resources reach a state. Exits with the exit code of
/// the command of the first run that failed, as a shell shows it.
///
/// # Errors
///
/// Returns an error if it does not end in time, or the server does not come back.
pub async fn wait(cx: &Context, args: &WaitArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let limit = args.timeout.map(std::time::Duration::from_secs_f64);
    if let Some(wanted) = &args.wanted {
        return Box::pin(crate::resource_wait::wait(cx, &remote, &args.ids, wanted, limit)).await;
    }
    let began = std::time::Instant::now();
    let mut exit = Exit::Done;
    for given in &args.ids {
        let id = remote.find_run(given).await?;
        let ended = watch::rested(cx, &remote, &id);
        let run = match limit {
            None => ended.await?,
            Some(limit) => {
                let left = limit.saturating_sub(began.elapsed());
                match tokio::time::timeout(left, ended).await {
                    Ok(run) => run?,
                    Err(_) => {
                        let seconds = limit.as_secs_f64();
                        let message = format!("{given} has not ended within {seconds} s");
                        return Err(Failure::failed(message));
                    }
                }
            }
        };
        session::show_run(cx, &run)?;
        // The first that went wrong says how.
        exit = if exit == Exit::Done { exit_of(&run) } else { exit };
    }
    Ok(exit)
}

/// The exit code of a run's command, where it has one. A run that has failed is no success, though its
/// command ended well: it was not finished.
pub fn exit_of(run: &Run) -> Exit {
    match &run.process {
        Some(process)
            if process.exit_code == Some(0) && run.status == overmind_api::RunStatus::Failed =>
        {
            Exit::RunFailed
        }
        Some(process) => match (process.exit_code, process.signal) {
            (Some(code), _) => Exit::of_command(code),
            (None, Some(signal)) => Exit::of_command(128 + signal),
            (None, None) => Exit::of_command(137),
        },
        None => watch::exit_of(run.status),
    }
}

/// The requested part of a log.
///
/// # Errors
///
/// When a time cannot be read.
pub fn options(cx: &Context, args: &LogsArgs) -> Result<LogOptions, Failure> {
    Ok(LogOptions {
        tail: args.tail,
        since: match &args.since {
            Some(since) => Some(since_of(since)?.to_string()),
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
/// Returns an error if the log cannot be read, or the server does not come back.
pub async fn logs(cx: &Context, remote: &Remote, run: &Run, args: &LogsArgs) -> Outcome {
    let id = run.id.to_string();
    let mut options = options(cx, args)?;
    let objects = !cx.out.for_people();
    let mut spoken = match objects || args.raw {
        true => None,
        false => Spoken::of(cx, remote, run).await?,
    };
    let mut away = watch::Away::default();
    if !args.follow && spoken.is_some() {
        options.objects = true;
        follow(cx, remote, &id, &mut options, objects, &mut away, &mut spoken).await?;
        return Ok(Exit::Done);
    }
    if !args.follow {
        options.objects = objects;
        let mut log = remote.run_log(&id, &options).await?;
        let mut lines = clean::Lines::default();
        while let Some(bytes) = log.next().await? {
            log_part(cx, objects, &lines.push(&bytes))?;
        }
        log_part(cx, objects, &lines.rest())?;
        return Ok(Exit::Done);
    }
    // Followed by objects, which contain the position to resume after a disconnect.
    options.follow = true;
    options.objects = true;
    let mut place = watch::Place::None;
    let rests = tokio::select! {
        biased;
        ended = follow_to_end(cx, remote, &id, &mut options, objects, &mut spoken) => {
            ended?;
            return Ok(Exit::Done);
        }
        run = watch::until(cx, remote, &id, watch::Until::Rested, &mut place) => run?,
    };
    // The run is idle: shows its last output, and that it is the person's turn.
    options.follow = false;
    follow(cx, remote, &id, &mut options, objects, &mut away, &mut spoken).await?;
    if session::ended(rests.status) {
        return Ok(Exit::Done);
    }
    if !objects {
        watch::epilogue(cx, remote, &rests).await;
    }
    Ok(Exit::Done)
}

/// Shows a log until its run has ended, over attempts and restarts of the server.
async fn follow_to_end(
    cx: &Context,
    remote: &Remote,
    id: &str,
    options: &mut LogOptions,
    objects: bool,
    spoken: &mut Option<Spoken>,
) -> Result<(), Failure> {
    let mut away = watch::Away::default();
    loop {
        let more = follow(cx, remote, id, options, objects, &mut away, spoken).await;
        let failure = match more {
            Ok(()) => match remote.run(id).await {
                Ok(run) if session::ended(run.status) => {
                    // Output between the end of its command and the end of the run.
                    return follow(cx, remote, id, options, objects, &mut away, spoken).await;
                }
                // Its environment is made or removed, or its command is started again soon.
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

/// A part of a log as the server gives it: lines, or objects.
fn log_part(cx: &Context, objects: bool, text: &str) -> std::io::Result<()> {
    match objects {
        true => cx.out.text(&clean::json(text)),
        false => cx.out.text(text),
    }
}

/// Shows a log to the end of its stream, and stores in `options` the position to resume.
async fn follow(
    cx: &Context,
    remote: &Remote,
    id: &str,
    options: &mut LogOptions,
    objects: bool,
    away: &mut watch::Away,
    spoken: &mut Option<Spoken>,
) -> Result<(), Failure> {
    each_line(remote, id, options, away, &mut |object| {
        match (objects, object["text"].as_str()) {
            (false, Some(text)) => cx.out.text(&said(object, text, spoken, true))?,
            (false, None) => cx.out.note("some lines are gone"),
            (true, _) => cx.out.streamed(object)?,
        }
        Ok(())
    })
    .await
}

/// The text of a log line for people, with its line breaks; `timed`: with the time of day.
pub fn said(object: &Value, text: &str, spoken: &mut Option<Spoken>, timed: bool) -> String {
    match spoken {
        Some(spoken) if object["kind"] == "output" => {
            let words = spoken.tell(text).text;
            if timed { spoken.timed(&words, object["at"].as_str()) } else { words }
        }
        Some(spoken) => match spoken.note(object["kind"].as_str(), text) {
            Some(words) if timed => spoken.timed(&words, object["at"].as_str()),
            Some(words) => format!("{words}\n"),
            None => String::new(),
        },
        None => format!("{text}\n"),
    }
}

/// Writes what a run's program writes, as it comes, from the place in `options` on: its output to
/// standard output, its errors and what else is said to standard error. Ends when the run has ended.
///
/// # Errors
///
/// Returns an error if the log cannot be read, or the server does not come back.
pub async fn output(
    cx: &Context,
    remote: &Remote,
    id: &str,
    options: &mut LogOptions,
    spoken: &mut Option<Spoken>,
) -> Result<(), Failure> {
    (options.follow, options.objects) = (true, true);
    let mut away = watch::Away::default();
    loop {
        let failure = match pass_on(cx, remote, id, options, &mut away, spoken).await {
            Ok(()) if session::ended(remote.run(id).await?.status) => {
                return pass_on(cx, remote, id, options, &mut away, spoken).await;
            }
            Ok(()) => {
                // Between two attempts, or its environment is being removed.
                watch::pause().await;
                continue;
            }
            Err(failure) => failure,
        };
        away.wait(cx, Some(failure)).await?;
    }
}

/// Writes what has been written so far and was not shown yet.
///
/// # Errors
///
/// See [`output`].
pub async fn so_far(
    cx: &Context,
    remote: &Remote,
    id: &str,
    options: &mut LogOptions,
    spoken: &mut Option<Spoken>,
) -> Result<(), Failure> {
    (options.follow, options.objects) = (false, true);
    pass_on(cx, remote, id, options, &mut watch::Away::default(), spoken).await
}

async fn pass_on(
    cx: &Context,
    remote: &Remote,
    id: &str,
    options: &mut LogOptions,
    away: &mut watch::Away,
    spoken: &mut Option<Spoken>,
) -> Result<(), Failure> {
    let plain = cx.out.for_people();
    each_line(remote, id, options, away, &mut |object| {
        let text = object["text"].as_str().unwrap_or("some lines are gone");
        match object["kind"].as_str() {
            _ if !plain => cx.out.streamed(object)?,
            Some("output") => cx.out.text(&said(object, text, spoken, true))?,
            Some("note") if tells_of_making(text) => cx.out.detail(text),
            kind => {
                let words = match spoken {
                    Some(spoken) => spoken.note(kind, text),
                    None => Some(text.to_owned()),
                };
                // The exit code contains the result, and the environment was described before.
                if let Some(words) = words.filter(|_| kind != Some("ended")) {
                    cx.out.note(&words);
                }
            }
        }
        Ok(())
    })
    .await
}

/// Reads a log to the end of its stream, and stores in `options` the position to resume.
async fn each_line(
    remote: &Remote,
    id: &str,
    options: &mut LogOptions,
    away: &mut watch::Away,
    show: &mut dyn FnMut(&Value) -> Result<(), Failure>,
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
            show(&object)?;
        }
    }
    Ok(())
}

/// A time, or how long ago: `500ms`, `90s`, `10m`, `2h`, `1d`.
///
/// # Errors
///
/// [`Exit::Usage`] for anything else.
pub fn since_of(text: &str) -> Result<Timestamp, Failure> {
    if let Ok(ago) = duration::parse(text) {
        let at = SystemClock.now().as_micros();
        let at = at.saturating_sub(i64::try_from(ago.as_micros()).unwrap_or(i64::MAX));
        return Ok(Timestamp::from_micros(at));
    }
    text.parse().map_err(|_| {
        Failure::usage(format!(
            "--since takes a time such as 2026-01-31T08:00:00Z, or 90s, 10m, 2h or 1d ago, not `{text}`"
        ))
    })
}
