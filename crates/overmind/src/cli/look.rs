//! `info`, `result` and `send --wait`: one run, looked at closely.

use std::time::Duration;

use overmind_api::{ProcessUsage, Run, RunBasic, RunSend, RunStatus};
use overmind_client::LogOptions;
use overmind_core::attest::Attestation;
use overmind_core::time::Clock as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::args_command::OneRunArgs;
use super::context::Context;
use super::exit::{Exit, Failure, Outcome};
use super::remote::Remote;
use super::show::{self, cell};
use super::{command, ids, sandbox, session, watch};
use crate::app::clock::SystemClock;
use crate::output::table::Tone;
use crate::output::{clean, when};

/// Most runs below one that are listed.
const BELOW: u32 = 100;
/// A program that wrote and then wrote nothing for so long has said what there was to say.
const SAID: Duration = Duration::from_secs(3);
/// The same for one that is known to ask.
const ASKED: Duration = Duration::from_millis(500);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// # Errors
///
/// What kept the run from being shown.
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
    let mut value = show::to_value(&run);
    value["process_usage"] = show::to_value(&usage);
    value["network"] = show::to_value(&network);
    value["children"] = below.iter().map(|run| json!(run.id)).collect();
    show::one(&cx.out, &value, &id, || {
        let mut lines = lines(cx, &run, usage.as_ref(), &below);
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

type Line = (&'static str, (String, Tone));

fn lines(cx: &Context, run: &Run, usage: Option<&ProcessUsage>, below: &[RunBasic]) -> Vec<Line> {
    let now = cx.now();
    let mut lines = watch::summary(run);
    lines.insert(1, ("name", cell(&run.name)));
    lines.push(("task", cell(&run.task)));
    lines.push(("agent", cell(format!("{} version {}", run.agent_id, run.agent_version))));
    lines.push(("workspace", cell(&run.workspace)));
    lines.push(("sandbox", cell(run.sandbox.to_string())));
    if let Some(room) = run.room.as_ref().filter(|room| !room.withheld.is_empty()) {
        lines.push(("withheld", cell(room.withheld.join(", "))));
    }
    for one in run.room.iter().flat_map(|room| &room.attested) {
        lines.push(("measured", sandbox::measured(one)));
    }
    lines.push(("created", cell(format!("{} by {}", run.created_at, run.created_by))));
    if let Some(parent) = run.parent_id {
        lines.push(("parent", cell(parent.to_string())));
    }
    for child in below {
        lines
            .push(("child", cell(format!("{} {}", ids::short(&child.id.to_string()), child.name))));
    }
    if let Some(process) = &run.process {
        lines.push(("life", cell(format!("{}, {} restarts", process.life, process.restarts))));
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
    }
    if let Some(usage) = usage {
        let cpu = when::precise(Duration::from_millis(usage.cpu_ms));
        let memory = when::bytes(usage.resident_bytes);
        let text = format!("{cpu} cpu, {memory}, {} processes", usage.processes);
        lines.push(("uses", cell(text)));
        let log = when::bytes(usage.log_bytes);
        let text = format!("{log}, the last {}", when::ago(usage.last_output_at, now));
        lines.push(("wrote", cell(text)));
    }
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
    if !session::ended(run.status) {
        let message = format!("{} has not ended: it is {}", run.name, run.status);
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
        return Ok(command::exit_of(&run));
    }
    match &run.final_answer {
        Some(answer) => cx.out.line(&clean::block(answer))?,
        None => {
            if let Some(error) = &run.error {
                cx.out.note(&super::story::error_text(error));
            }
            if process.is_some() {
                cx.out.note(&format!("what it wrote: overmind logs {}", run.name));
            }
        }
    }
    Ok(command::exit_of(&run))
}

/// What a program says after something was sent to it.
#[derive(Default)]
struct Heard {
    /// What was sent, as the terminal shows it again, until it has come by.
    echo: Option<String>,
    text: String,
    next: u64,
}

impl Heard {
    /// Reads what the log has more. Answers the new lines.
    async fn more(&mut self, remote: &Remote, id: &str) -> Result<String, Failure> {
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
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(object) = serde_json::from_slice::<Value>(line) else { continue };
            self.next = object["next"].as_u64().unwrap_or(self.next);
            let Some(text) = object["text"].as_str() else { continue };
            if !matches!(object["kind"].as_str(), Some("output" | "stderr")) {
                continue;
            }
            if self.echo.as_deref().is_some_and(|echo| text.trim_end().ends_with(echo)) {
                self.echo = None;
                continue;
            }
            fresh.push_str(text);
            fresh.push('\n');
        }
        self.text.push_str(&fresh);
        Ok(fresh)
    }
}

/// Where a run's log ends now.
async fn end_of_log(remote: &Remote, id: &str) -> Result<u64, Failure> {
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

/// Sends, and shows what the program says until it asks, ends, or is silent.
///
/// # Errors
///
/// When it says nothing in time.
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
    let mut heard = Heard { echo, text: String::new(), next: end_of_log(remote, id).await? };
    remote.run_send(id, send).await?;
    let mut silent_since = Instant::now();
    loop {
        let fresh = heard.more(remote, id).await?;
        if !fresh.is_empty() {
            silent_since = Instant::now();
            if cx.out.for_people() {
                cx.out.text(&clean::block(&fresh))?;
            }
        }
        let run = remote.run(id).await?;
        let asks = run.status == RunStatus::AwaitingInput;
        let silence = silent_since.elapsed();
        let said = !heard.text.is_empty() && silence >= if asks { ASKED } else { SAID };
        let ended = session::ended(run.status);
        if ended || said {
            if ended {
                // Its last words, which came between the looks.
                let last = heard.more(remote, id).await?;
                if cx.out.for_people() {
                    cx.out.text(&clean::block(&last))?;
                }
            }
            if !cx.out.for_people() {
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
                true => format!("{} said nothing within {seconds} s", run.name),
                false => format!("{} was still speaking after {seconds} s", run.name),
            };
            return Err(Failure::failed(message));
        }
        SystemClock.sleep_until(SystemClock.now().after(BETWEEN_LOOKS)).await;
    }
}
