//! `info`, `result` and `send --wait`: one run in detail.

use std::time::Duration;

use overmind_api::{ProcessUsage, Room, Run, RunBasic, RunSend, RunStatus};
use overmind_client::LogOptions;
use overmind_core::attest::Attestation;
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::args_command::OneRunArgs;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::Tone;
use crate::output::{clean, when};
use crate::remote::Remote;
use crate::show::{self, cell};
use crate::spoken::Spoken;
use crate::{command, ids, room, sandbox, session, watch};

/// Maximum number of runs below one that are listed.
const BELOW: u32 = 100;
/// A program without a protocol that wrote nothing for so long has finished its answer.
const SAID: Duration = Duration::from_secs(3);
/// The same for a program that is known to ask a question, or to be idle.
const ASKED: Duration = Duration::from_millis(500);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// # Errors
///
/// Returns an error if the run could not be shown.
pub async fn info(cx: &Context, args: &OneRunArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(&args.id).await?;
    let run = remote.run(&id).await?;
    let usage = match run.process.as_ref().and_then(|process| process.pid) {
        Some(_) => remote.usage(&id).await?,
        None => None,
    };
    let below: Vec<RunBasic> = remote.runs_below(&id, BELOW).await?;
    let network = network(&remote, &run).await;
    let command = command_of(&remote, &run).await?;
    let mut value = show::to_value(&run);
    value["process_usage"] = show::to_value(&usage);
    value["network"] = show::to_value(&network);
    value["children"] = below.iter().map(|run| json!(run.id)).collect();
    show::one(&cx.out, &value, &id, || {
        let mut lines = lines(cx, &run, command.as_ref(), usage.as_ref(), &below);
        if let Some(network) = network {
            let after = lines.iter().position(|(name, _)| *name == "sandbox");
            lines.insert(after.map_or(0, |at| at + 1), ("network", cell(network)));
        }
        lines
    })?;
    Ok(Exit::Done)
}

/// The network of a command in a sandbox, as it was measured: `host`, `mesh` or `none`.
async fn network(remote: &Remote, run: &Run) -> Option<String> {
    run.process.as_ref().and(run.attestation.as_ref())?;
    let record = remote.run_attestation(&run.id.to_string(), None).await.ok()?;
    let measured: Attestation = serde_json::from_str(record.attestation.as_str()).ok()?;
    let (_, network) = measured.driver.rsplit_once(", network ")?;
    Some(network.to_owned())
}

/// The command as its first event records it: the agent may have changed since.
pub(super) async fn command_of(remote: &Remote, run: &Run) -> Result<Option<Value>, Failure> {
    let queued = remote.run_events(&run.id.to_string(), 1).await?;
    let queued = queued
        .first()
        .and_then(|event| serde_json::from_str::<Value>(event.payload_json.as_str()).ok());
    let command = queued.map(|queued| queued["agent"]["command"].clone());
    Ok(command.filter(|command| !command.is_null()))
}

type Line = (&'static str, (String, Tone));

fn lines(
    cx: &Context,
    run: &Run,
    command: Option<&Value>,
    usage: Option<&ProcessUsage>,
    below: &[RunBasic],
) -> Vec<Line> {
    let now = cx.now();
    let mut lines = watch::summary(run);
    lines.insert(1, ("name", cell(&run.name)));
    lines.push(("task", cell(&run.task)));
    let agent = run.agent_name.clone().unwrap_or_else(|| run.agent_id.to_string());
    lines.push(("agent", cell(format!("{agent} version {}", run.agent_version))));
    let kind = command.map_or("built-in agent".to_owned(), kind_of);
    lines.push(("type", cell(kind)));
    lines.push(("workspace", cell(&run.workspace)));
    lines.push(("sandbox", cell(run.sandbox.to_string())));
    lines.extend(run.room.iter().flat_map(room_lines));
    lines.push(("created", cell(format!("{} by {}", run.created_at, run.created_by))));
    if let Some(parent) = run.parent_id {
        lines.push(("parent", cell(parent.to_string())));
    }
    for child in below {
        lines
            .push(("child", cell(format!("{} {}", ids::short(&child.id.to_string()), child.name))));
    }
    if let Some(process) = &run.process {
        let policy = command.and_then(|command| command["restart"]["when"].as_str());
        let life =
            format!("{}, {}", process.life, when::counted(process.restarts.into(), "restart"));
        lines.push(("life", cell(life)));
        lines.push(("restart", cell(policy.unwrap_or("never"))));
        if let Some(pid) = process.pid {
            lines.push(("pid", cell(pid.to_string())));
        }
        match (process.exit_code, process.signal) {
            (Some(code), _) => lines.push(("ended with", cell(format!("exit code {code}")))),
            (None, Some(signal)) => lines.push(("ended with", cell(format!("signal {signal}")))),
            (None, None) => {}
        }
        if let Some(at) = process.restart_at {
            lines.push(("starts again", cell(at.to_string())));
        }
        if let Some(conversation) = &process.conversation {
            lines.push(("conversation", cell(conversation)));
        }
        if process.log_removed {
            let text = "a part of the log was removed while the command ran: it does not contain all \
                    output";
            lines.push(("log", (text.to_owned(), Tone::Bad)));
        }
    }
    if let Some(usage) = usage {
        let cpu = when::precise(Duration::from_millis(usage.cpu_ms));
        let memory = when::bytes(usage.resident_bytes);
        let text =
            format!("{cpu} cpu, {memory}, {}", when::counted(usage.processes.into(), "process"));
        lines.push(("uses", cell(text)));
        let log = when::bytes(usage.log_bytes);
        let text = format!("{log}, the last {}", when::ago(usage.last_output_at, now));
        lines.push(("wrote", cell(text)));
    }
    lines
}

/// The kind of a command: a task or a session, parsed as a provider's output or not at all.
fn kind_of(command: &Value) -> String {
    let kind = command["kind"].as_str().unwrap_or("task");
    match command["provider"].as_str() {
        None | Some("raw") => format!("command, {kind}"),
        Some(provider) => format!("command, {kind}, {provider}"),
    }
}

/// The resources of a run.
fn room_lines(room: &Room) -> Vec<Line> {
    let mut lines = Vec::new();
    for (name, value) in [("worktree", &room.worktree), ("branch", &room.branch)] {
        if let Some(value) = value {
            lines.push((name, cell(value)));
        }
    }
    if let Some(by) = &room.rest_ended_by {
        lines.push(("rest ended by", cell(by)));
    }
    if let Some(changes) = room.changes {
        lines.push(("changes", cell(room::said_changes(changes))));
    }
    if !room.ports.is_empty() {
        let ports: Vec<String> =
            room.ports.iter().map(|(name, port)| format!("{name}={port}")).collect();
        lines.push(("ports", cell(ports.join(", "))));
    }
    for (service, url) in room::services(room) {
        lines.push(("url", cell(format!("{service} {url}"))));
    }
    if !room.withheld.is_empty() {
        lines.push(("withheld", cell(room.withheld.join(", "))));
    }
    lines.extend(room.attested.iter().map(|one| ("measured", sandbox::measured(one))));
    lines
}

/// Shows what a run came to.
///
/// # Errors
///
/// When it has not ended.
pub async fn result(cx: &Context, args: &OneRunArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(&args.id).await?;
    let run = remote.run(&id).await?;
    let rests = run.status == RunStatus::Idle;
    if !session::ended(run.status) && !rests {
        let message = format!("{} has not ended: it is {}", run.name, session::state(run.status));
        let hint = format!("overmind wait {} waits for it", run.name);
        return Err(Failure::new(Exit::Conflict, message).hint(hint));
    }
    let process = run.process.as_ref();
    if !cx.out.for_people() {
        cx.out.value(&json!({
            "id": run.id, "name": run.name, "status": run.status, "result": run.final_answer,
            "error": run.error, "exit_code": process.and_then(|process| process.exit_code),
            "signal": process.and_then(|process| process.signal),
        }))?;
        return Ok(if rests { Exit::Done } else { command::exit_of(&run) });
    }
    match &run.final_answer {
        Some(answer) => cx.out.line(&clean::block(answer))?,
        None => {
            if let Some(error) = &run.error {
                cx.out.note(&crate::story::error_text(error));
            }
            if process.is_some() {
                cx.out.note(&format!("its output: overmind logs {}", run.name));
            }
        }
    }
    Ok(if rests { Exit::Done } else { command::exit_of(&run) })
}

/// The output of a program after a message was sent to it.
struct Heard {
    /// The sent text, as the terminal echoes it, until the echo was seen.
    echo: Option<String>,
    /// Output of a program whose protocol is parsed: its lines in words.
    spoken: Option<Spoken>,
    text: String,
    next: u64,
    /// Its answer exists, so its turn is over.
    answered: bool,
}

impl Heard {
    /// Reads the rest of the log; `last`: the log is complete. Returns the new part.
    async fn more(&mut self, remote: &Remote, id: &str, last: bool) -> Result<String, Failure> {
        let options = LogOptions {
            offset: Some(self.next),
            strip: true,
            objects: true,
            ..LogOptions::default()
        };
        let mut log = remote.run_log(id, &options).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = log.next().await? {
            bytes.extend_from_slice(&piece);
        }
        let mut fresh = String::new();
        let lines = bytes.split(|byte| *byte == b'\n');
        let mut objects =
            lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok()).peekable();
        while let Some(object) = objects.next() {
            let (text, kind) = (object["text"].as_str(), object["kind"].as_str());
            // The rest of the last line has not arrived yet.
            let half = self.spoken.is_some() && kind == Some("output") && !last;
            if half && objects.peek().is_none() && text.is_some_and(Spoken::is_half) {
                break;
            }
            self.next = object["next"].as_u64().unwrap_or(self.next);
            let Some(text) = text else { continue };
            if !matches!(kind, Some("output" | "stderr")) {
                continue;
            }
            if self.echo.as_deref().is_some_and(|echo| text.trim_end().ends_with(echo)) {
                self.echo = None;
                continue;
            }
            match &mut self.spoken {
                Some(spoken) if kind == Some("output") => {
                    let words = spoken.tell(text);
                    self.answered |= words.over;
                    fresh.push_str(&words.text);
                }
                Some(_) | None => {
                    fresh.push_str(text);
                    fresh.push('\n');
                }
            }
        }
        self.text.push_str(&fresh);
        Ok(fresh)
    }
}

/// Whether the processes of a run have worked since the last look.
#[derive(Default)]
struct Work(Option<u64>);

impl Work {
    async fn rests(&mut self, remote: &Remote, id: &str) -> Result<bool, Failure> {
        let now = remote.usage(id).await?.map(|usage| usage.cpu_ms);
        let before = std::mem::replace(&mut self.0, now);
        Ok(before.is_some() && before == now)
    }
}

/// The position at which a run's log ends now.
pub(super) async fn end_of_log(remote: &Remote, id: &str) -> Result<u64, Failure> {
    let options = LogOptions { tail: Some(1), objects: true, ..LogOptions::default() };
    let mut log = remote.run_log(id, &options).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = log.next().await? {
        bytes.extend_from_slice(&piece);
    }
    let objects = bytes.split(|byte| *byte == b'\n');
    let objects = objects.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    Ok(objects.filter_map(|object| object["next"].as_u64()).max().unwrap_or(0))
}

/// Sends a message, and shows the output until the answer is complete: the end of the turn, a
/// question, or the end of the program; for a program without these events, output followed by
/// silence.
///
/// # Errors
///
/// If it prints nothing in time.
pub async fn send_and_wait(
    cx: &Context,
    remote: &Remote,
    id: &str,
    send: &RunSend,
    seconds: f64,
) -> Outcome {
    let began = Instant::now();
    // A secret is not shown again by a program that asked for it well.
    let echo = send.text.lines().last().map(str::trim_end).filter(|line| !line.is_empty());
    let echo = echo.filter(|_| !send.secret).map(str::to_owned);
    let spoken = Spoken::of(cx, remote, &remote.run(id).await?).await?;
    let turns = spoken.as_ref().is_some_and(|spoken| spoken.tells_turns);
    let next = end_of_log(remote, id).await?;
    let mut heard = Heard { echo, spoken, text: String::new(), next, answered: false };
    remote.run_send(id, send).await?;
    let (mut silent_since, mut work) = (Instant::now(), Work::default());
    loop {
        let fresh = heard.more(remote, id, false).await?;
        if !fresh.is_empty() {
            (silent_since, work) = (Instant::now(), Work::default());
            if cx.out.for_people() {
                cx.out.text(&clean::block(&fresh))?;
            }
        }
        let run = remote.run(id).await?;
        let asks = run.status == RunStatus::AwaitingInput;
        let silence = silent_since.elapsed();
        let silent = !turns && silence >= ASKED && work.rests(remote, id).await?;
        let quiet = asks && silence >= ASKED || silent || !turns && silence >= SAID;
        let rests = run.status == RunStatus::Idle;
        let said = heard.answered || rests || quiet && !heard.text.is_empty();
        let ended = session::ended(run.status);
        if ended || said {
            // Output between two polls: its last words or its question.
            let last = heard.more(remote, id, ended).await?;
            if cx.out.for_people() {
                cx.out.text(&clean::block(&last))?;
            } else {
                let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                let value = json!({
                    "id": run.id, "name": run.name, "status": run.status, "prompt": run.prompt,
                    "text": heard.text, "duration_ms": took,
                });
                cx.out.value(&value)?;
            }
            return Ok(if ended { command::exit_of(&run) } else { Exit::Done });
        }
        if began.elapsed().as_secs_f64() > seconds {
            let message = match heard.text.is_empty() {
                true => format!("{} wrote nothing within {seconds} s", run.name),
                false => format!("{} was still writing after {seconds} s", run.name),
            };
            return Err(Failure::failed(message));
        }
        SystemClock.sleep_until(SystemClock.now().after(BETWEEN_LOOKS)).await;
    }
}
