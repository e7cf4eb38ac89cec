//! Runs whose agent is a command: `stop`, `send`, `log`, `usage`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body as HttpBody, Bytes};
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
#[cfg(feature = "openapi")]
use overmind_api::ProcessUsage;
use overmind_api::{Run, RunSend, RunStop};
use overmind_core::command::StopHow;
use overmind_core::process::{LogFrom, LogItem, LogKind, LogQuery, LogReader, NoteKind};
use overmind_core::session::STOP_GRACE_MS;
use overmind_core::time::Timestamp;
use serde_json::json;

use crate::cx::Cx;
use crate::extract::{Body, Query, RunPath, Who, parse_bool};
use crate::fault::Fault;
use crate::page::json as answer;
use crate::proof::Proof;

/// Ends a run's command: TERM to all of its processes and KILL after the grace, or KILL at once.
/// Answers at once; the run has ended when its processes have.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs/{id}/stop", tag = "runs", request_body = RunStop,
    params(("id" = String, Path)),
    responses(
        (status = 200, body = Run),
        (status = 404, description = "`Run not found`"),
        (status = 409, description = "The run has ended, has no command, or is being stopped"),
    )
))]
pub(crate) async fn run_stop(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    body: Body<RunStop>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let RunStop { kill, grace } = body.value;
    let grace_ms = grace.map_or(STOP_GRACE_MS, |seconds| seconds.saturating_mul(1000));
    let how = if kill { StopHow::Kill } else { StopHow::Stop { grace_ms } };
    let engine = cx.engine.clone();
    let run = cx.detached(async move { engine.session_stop(&caller, id, how).await }).await?;
    Ok(answer(&Run::from(run)))
}

/// Writes to the input of a run's command.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs/{id}/send", tag = "runs", request_body = RunSend,
    params(("id" = String, Path)),
    responses(
        (status = 200, body = Run),
        (status = 404, description = "`Run not found`"),
        (status = 409, description = "The run has no process now, or it does not read"),
    )
))]
pub(crate) async fn run_send(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    body: Body<RunSend>,
) -> Result<Response, Fault> {
    let RunSend { text, raw, secret } = body.value;
    let engine = cx.engine.clone();
    let run = cx
        .detached(async move { engine.session_send(&caller, id, text, raw, secret).await })
        .await?;
    Ok(answer(&Run::from(run)))
}

/// The current resource use of a run's processes.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/usage", tag = "runs", params(("id" = String, Path)),
    responses(
        (status = 200, body = ProcessUsage),
        (status = 404, description = "`Run not found`"),
        (status = 409, description = "The run has no process now"),
    )
))]
pub(crate) async fn run_usage(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
) -> Result<Response, Fault> {
    let (usage, activity) = cx.engine.session_usage(&caller, id).await?;
    Ok(answer(&super::attach::usage_of(&usage, &activity)))
}

/// What a run's command has written, over all its lives: plain text as it was written, or with
/// `format=ndjson` one object a line, `{"next","number","at","life","kind","text"}`.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/log", tag = "runs",
    params(
        ("id" = String, Path),
        ("tail" = Option<u64>, Query, description = "Only the last so many lines"),
        ("since" = Option<String>, Query, description = "Only lines written since this time"),
        ("offset" = Option<u64>, Query, description = "From this place on: `next` of a line"),
        ("follow" = Option<bool>, Query, description = "Go on until the run ends"),
        ("grep" = Option<String>, Query, description = "Only lines in which this regular expression is found"),
        ("strip" = Option<bool>, Query, description = "Without colours and other control sequences"),
        ("notes" = Option<bool>, Query, description = "With markers of restarts, people and ends; true if not given"),
        ("format" = Option<String>, Query, description = "`text` or `ndjson`"),
    ),
    responses(
        (status = 200, description = "The log", content_type = "text/plain"),
        (status = 404, description = "`Run not found`"),
        (status = 422, description = "A parameter is wrong"),
    )
))]
pub(crate) async fn run_log(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    proof: Proof,
    RunPath(id): RunPath,
    mut query: Query,
) -> Result<Response, Fault> {
    let number = |text: &str| text.parse::<u64>().ok();
    let tail = query.take_parsed("tail", "a number of lines", number)?;
    let since = query.take_parsed("since", "a time such as 2026-01-31T08:00:00Z", |text| {
        text.parse::<Timestamp>().ok()
    })?;
    let offset = query.take_parsed("offset", "a place in the log", number)?;
    let flag = |query: &mut Query, name: &str| query.take_parsed(name, "true or false", parse_bool);
    let follow = flag(&mut query, "follow")?.unwrap_or(false);
    let strip = flag(&mut query, "strip")?.unwrap_or(false);
    let notes = flag(&mut query, "notes")?.unwrap_or(true);
    let grep = query.take("grep");
    let objects = query.take_parsed("format", "`text` or `ndjson`", |text| match text {
        "text" => Some(false),
        "ndjson" => Some(true),
        _ => None,
    })?;
    query.finish()?;
    let from = match (offset, tail, since) {
        (Some(offset), None, None) => LogFrom::Offset(offset),
        (None, Some(lines), None) => LogFrom::Tail(lines),
        (None, None, Some(since)) => LogFrom::Since(since),
        (None, None, None) => LogFrom::Start,
        _ => {
            let message = "give one of offset, tail and since";
            return Err(Fault::invalid("offset", message.to_owned()));
        }
    };
    let log = LogQuery { from, follow, grep, strip, notes };
    let reader = cx.engine.session_log(&caller, id, log).await?;
    Ok(stream_log(cx, proof, reader, objects.unwrap_or(false)))
}

fn stream_log(cx: Arc<Cx>, proof: Proof, reader: Box<dyn LogReader>, objects: bool) -> Response {
    let bytes = stream::unfold(Some((cx, proof, reader)), move |state| async move {
        let (cx, proof, mut reader) = state?;
        match read_on(&cx, &proof, &mut *reader).await {
            Ok(items) if items.is_empty() => None,
            Ok(items) => {
                let mut text = Vec::new();
                for item in items {
                    write_item(&mut text, item, objects);
                }
                Some((Ok::<_, Infallible>(Bytes::from(text)), Some((cx, proof, reader))))
            }
            Err(why) => {
                // The status was sent already, so the error is reported within the log.
                let text = format!("--- the log cannot be read on: {why} ---\n");
                Some((Ok(Bytes::from(text)), None))
            }
        }
    });
    let mut response = HttpBody::from_stream(bytes).into_response();
    let kind = if objects { "application/x-ndjson" } else { "text/plain; charset=utf-8" };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The next part of a log, if the caller may still read it.
async fn read_on(
    cx: &Cx,
    proof: &Proof,
    reader: &mut dyn LogReader,
) -> Result<Vec<LogItem>, String> {
    loop {
        let read = tokio::time::timeout(cx.config.keepalive, reader.next()).await;
        proof.again(cx).await.map_err(|err| err.to_string())?;
        match read {
            Ok(Ok(items)) => return Ok(items),
            Ok(Err(err)) => {
                tracing::warn!(error = %err, "a log cannot be read on");
                return Err(err.to_string());
            }
            // No output for the interval after which other streams send a ping.
            Err(_) => {}
        }
    }
}

fn write_item(text: &mut Vec<u8>, item: LogItem, objects: bool) {
    match (item, objects) {
        (LogItem::Line(line), false) => {
            text.extend_from_slice(&line.text);
            text.push(b'\n');
        }
        (LogItem::Line(line), true) => {
            let kind = match line.kind {
                LogKind::Output => "output",
                LogKind::Stderr => "stderr",
                LogKind::Note(note) => match note {
                    NoteKind::Human => "human",
                    NoteKind::Restart => "restart",
                    NoteKind::Killed => "killed",
                    NoteKind::Ended => "ended",
                    NoteKind::Note => "note",
                },
            };
            let object = json!({
                "next": line.next, "number": line.number, "at": line.at, "life": line.epoch,
                "kind": kind, "text": String::from_utf8_lossy(&line.text),
            });
            text.extend_from_slice(object.to_string().as_bytes());
            text.push(b'\n');
        }
        (LogItem::Gap { from, to, lines }, objects) => {
            let gone = to.saturating_sub(from);
            let said = match (objects, lines) {
                (true, lines) => json!({"gap": gone, "lines": lines, "next": to}).to_string(),
                (false, Some(lines)) => format!("--- {lines} lines ({gone} bytes) are gone ---"),
                (false, None) => format!("--- {gone} bytes are gone ---"),
            };
            text.extend_from_slice(said.as_bytes());
            text.push(b'\n');
        }
    }
}
