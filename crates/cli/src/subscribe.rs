//! `subscribe`: events as lines of JSON, for programs.

use overmind_api::Event;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::args_command::SubscribeArgs;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::remote::Remote;
use crate::{session, show, watch};

/// Streams until there is a reason to end: a signal, a reader that left, the end of the run, or
/// the newest event when no more is wanted.
///
/// # Errors
///
/// Returns an error if the events could not be read, also if the server does not come back.
pub async fn subscribe(cx: &Context, args: &SubscribeArgs) -> Outcome {
    let failed = |err: std::io::Error| Failure::failed(format!("listening for signals: {err}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    tokio::select! {
        done = stream(cx, args) => done,
        _ = interrupt.recv() => Ok(Exit::Done),
        _ = terminate.recv() => Ok(Exit::Done),
    }
}

async fn stream(cx: &Context, args: &SubscribeArgs) -> Outcome {
    let mut remote = Remote::connect(cx)?;
    let run = match args.id.as_ref().or(args.run.as_ref()) {
        Some(given) => Some(remote.find_run(given).await?),
        None => None,
    };
    let newest = remote.events(1).await?.first().map_or(0, |event| event.global);
    // The offset of an event is its place among all of them, which count from 1.
    let mut seen = args.from.map_or(newest, |from| from.saturating_sub(1));
    let mut until = args.no_follow.then_some(newest);
    let mut away = watch::Away::default();
    loop {
        if until.is_none() {
            match end_of(&remote, run.as_deref()).await {
                Ok(end) => until = end,
                Err(failure) => {
                    away.wait(cx, Some(failure)).await?;
                    remote = found_again(cx, remote);
                    continue;
                }
            }
        }
        if until.is_some_and(|until| seen >= until) {
            return Ok(Exit::Done);
        }
        let failure = match remote.watch_events(Some(seen)).await {
            Ok(mut stream) => loop {
                match stream.next().await {
                    Some(Ok(event)) => {
                        away.is_back();
                        seen = event.global;
                        let of_run = event.run_id.map(|id| id.to_string());
                        let wanted = run.is_none() || run == of_run;
                        if wanted && of_kind(&event, &args.kind) {
                            cx.out.line(&line(&event))?;
                        }
                        // Each run has such an event in the commit by which it ends.
                        if until.is_none() && wanted && event.kind.starts_with("run.") {
                            match end_of(&remote, run.as_deref()).await {
                                Ok(end) => until = end,
                                Err(failure) => break Some(failure),
                            }
                        }
                        if until.is_some_and(|until| seen >= until) {
                            return Ok(Exit::Done);
                        }
                    }
                    Some(Err(err)) => break Some(Failure::from(err)),
                    None => break None,
                }
            },
            Err(failure) => Some(failure),
        };
        away.wait(cx, failure).await?;
        remote = found_again(cx, remote);
    }
}

/// The next server, which may listen somewhere else.
fn found_again(cx: &Context, before: Remote) -> Remote {
    Remote::connect(cx).unwrap_or(before)
}

fn of_kind(event: &Event, kinds: &[String]) -> bool {
    kinds.is_empty() || kinds.iter().any(|kind| event.kind.starts_with(kind.as_str()))
}

/// The position to resume when the only watched run has ended: the read position may be behind it.
async fn end_of(remote: &Remote, run: Option<&str>) -> Result<Option<u64>, Failure> {
    let Some(id) = run else { return Ok(None) };
    if !session::ended(remote.run(id).await?.status) {
        return Ok(None);
    }
    Ok(remote.events(1).await?.first().map(|newest| newest.global))
}

/// The event on one line, its offset first.
fn line(event: &Event) -> String {
    let mut object = serde_json::Map::new();
    object.insert("offset".to_owned(), event.global.into());
    if let Value::Object(rest) = show::to_value(event) {
        object.extend(rest);
    }
    Value::Object(object).to_string()
}
