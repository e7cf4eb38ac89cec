//! `logs --all`: what all commands write, each line with the name of its run.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use overmind_api::Run;
use overmind_client::LogOptions;
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::args::LogsArgs;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::paint;
use crate::output::table::Tone;
use crate::remote::Remote;
use crate::spoken::Spoken;
use crate::{command, session, watch};

/// Maximum number of runs that are looked through, newest first.
const MOST: u32 = 1000;
/// How often runs that have begun are looked for.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Lines that wait to be shown.
const WAITING: usize = 256;

/// # Errors
///
/// Returns an error if the logs could not be read, also if the server does not come back.
pub async fn all(cx: &Context, remote: &Remote, args: &LogsArgs) -> Outcome {
    let options = LogOptions { objects: true, ..command::options(cx, args)? };
    let mut runs: Vec<Run> = remote.runs(&[], None, MOST).await?;
    runs.retain(|run| run.process.is_some());
    // In the order of their start.
    runs.reverse();
    if !args.follow {
        for run in &runs {
            let mut log = remote.run_log(&run.id.to_string(), &options).await?;
            let mut spoken = voice(cx, remote, run, args.raw).await?;
            let mut cut = Cut::default();
            while let Some(bytes) = log.next().await? {
                for object in cut.lines(&bytes) {
                    show(cx, &run.name, &object, &mut spoken)?;
                }
            }
        }
        if runs.is_empty() {
            cx.out.note("no commands yet; start one: overmind run make");
        }
        return Ok(Exit::Done);
    }
    follow(cx, remote, runs, options, args.raw).await
}

/// Prints the lines of a run in words, if they follow a protocol and `--raw` is not set.
async fn voice(
    cx: &Context,
    remote: &Remote,
    run: &Run,
    raw: bool,
) -> Result<Option<Spoken>, Failure> {
    match raw || !cx.out.for_people() {
        true => Ok(None),
        false => Spoken::of(cx, remote, run).await,
    }
}

/// Follows running commands, and those that start later.
async fn follow(
    cx: &Context,
    remote: &Remote,
    mut runs: Vec<Run>,
    options: LogOptions,
    raw: bool,
) -> Outcome {
    let mut voices = HashMap::new();
    let (tell, mut told) = mpsc::channel::<(String, Value)>(WAITING);
    let mut followed = HashSet::new();
    let mut tasks = JoinSet::new();
    let mut away = watch::Away::default();
    let mut remote = remote.clone();
    loop {
        for run in runs.drain(..) {
            if session::ended(run.status) || !followed.insert(run.id) {
                continue;
            }
            voices.insert(run.name.clone(), voice(cx, &remote, &run, raw).await?);
            let options = LogOptions { follow: true, ..options.clone() };
            tasks.spawn(one(remote.clone(), run, options, tell.clone()));
        }
        let until = SystemClock.now().after(BETWEEN_LOOKS);
        let pause = SystemClock.sleep_until(until);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                line = told.recv() => {
                    // `tell` is kept here, so there is always a next one.
                    let Some((name, object)) = line else { continue };
                    show(cx, &name, &object, voices.entry(name.clone()).or_default())?;
                }
                () = &mut pause => break,
            }
        }
        // Runs that ended without a request.
        while tasks.try_join_next().is_some() {}
        match remote.runs(&[], None, MOST).await {
            Ok(found) => {
                away.is_back();
                runs = found;
                runs.retain(|run| run.process.is_some());
                runs.reverse();
            }
            Err(failure) => {
                away.wait(cx, Some(failure)).await?;
                if let Ok(next) = Remote::connect(cx) {
                    remote = next;
                }
            }
        }
    }
}

/// Follows one log to its end, through restarts of the server.
async fn one(
    remote: Remote,
    run: Run,
    mut options: LogOptions,
    tell: mpsc::Sender<(String, Value)>,
) {
    let id = run.id.to_string();
    loop {
        if let Ok(mut log) = remote.run_log(&id, &options).await {
            let mut cut = Cut::default();
            while let Ok(Some(bytes)) = log.next().await {
                for object in cut.lines(&bytes) {
                    if let Some(next) = object["next"].as_u64() {
                        (options.offset, options.tail, options.since) = (Some(next), None, None);
                    }
                    if tell.send((run.name.clone(), object)).await.is_err() {
                        return;
                    }
                }
            }
        }
        if remote.run(&id).await.is_ok_and(|run| session::ended(run.status)) {
            return;
        }
        SystemClock.sleep_until(SystemClock.now().after(BETWEEN_LOOKS / 4)).await;
    }
}

/// Cuts bytes into objects of one line each.
#[derive(Default)]
struct Cut(Vec<u8>);

impl Cut {
    fn lines(&mut self, bytes: &[u8]) -> Vec<Value> {
        self.0.extend_from_slice(bytes);
        let mut found = Vec::new();
        while let Some(at) = self.0.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=at).collect();
            found.extend(serde_json::from_slice(&line).ok());
        }
        found
    }
}

fn show(
    cx: &Context,
    name: &str,
    object: &Value,
    spoken: &mut Option<Spoken>,
) -> Result<(), Failure> {
    if !cx.out.for_people() {
        let mut named = serde_json::Map::new();
        named.insert("run".to_owned(), name.into());
        if let Value::Object(object) = object {
            named.extend(object.clone());
        }
        return Ok(cx.out.streamed(&Value::Object(named))?);
    }
    let name = paint(name, Tone::Busy, cx.out.colour);
    match object["text"].as_str() {
        Some(text) => {
            for line in command::said(object, text, spoken, false).lines() {
                cx.out.line(&format!("{name} | {line}"))?;
            }
        }
        None => cx.out.line(&format!("{name} | --- some lines are gone ---"))?,
    }
    Ok(())
}
