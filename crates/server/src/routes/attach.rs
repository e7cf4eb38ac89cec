//! Runs whose agent is a command: the terminal, and the resource use of all of them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use overmind_api::{
    ATTACH_PROTOCOL, AttachMode, ProblemKind, ProcessUsage, RunUsage, RunUsages, TerminalSize,
};
use overmind_core::process::{Activity, Usage};
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;

use crate::cx::Cx;
use crate::extract::{Query, RunPath, Who};
use crate::fault::Fault;
use crate::page::json as answer;
use crate::proof::Proof;
use crate::viewer;

/// The terminal of a run's command, as a WebSocket.
///
/// Binary frames are the terminal's bytes in both directions, text frames are words: `AttachWord` to
/// the server, `AttachSaid` from it. The first frames draw the screen as it is. A browser, which
/// cannot set a header, may give its token as a second protocol, `overmind.token.TOKEN`. When that
/// is worth nothing any more, the connection is closed with the word `away` and the code 1008.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/attach", tag = "runs",
    params(
        ("id" = String, Path),
        ("mode" = Option<AttachMode>, Query, description = "`write`, if not given; looking alone needs a lesser role"),
        ("columns" = Option<u16>, Query, description = "The viewer's size; with `rows`"),
        ("rows" = Option<u16>, Query),
    ),
    responses(
        (status = 101, description = "The WebSocket begins, with the protocol `overmind.attach.v1`"),
        (status = 400, description = "This is no handshake of a WebSocket"),
        (status = 404, description = "`Run not found`"),
        (status = 409, description = "The run has ended, has no process now, or no terminal"),
        (status = 422, description = "A parameter is wrong"),
        (status = 429, description = "The maximum number of viewers is attached"),
    )
))]
pub(crate) async fn run_attach(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    proof: Proof,
    RunPath(id): RunPath,
    mut query: Query,
    mut request: Request,
) -> Result<Response, Fault> {
    let mode = query.take_parsed("mode", "`write` or `read`", AttachMode::parse)?;
    let mode = mode.unwrap_or_default();
    let wanted = "a number from 1 to 1000";
    let length =
        |text: &str| text.parse().ok().filter(|n: &u16| (1..=TerminalSize::LARGEST).contains(n));
    let columns = query.take_parsed("columns", wanted, length)?;
    let rows = query.take_parsed("rows", wanted, length)?;
    query.finish()?;
    let size = match (columns, rows) {
        (Some(columns), Some(rows)) => Some(TerminalSize { columns, rows }.into()),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            return Err(Fault::invalid("columns", "give both columns and rows, or neither"));
        }
    };
    let mut response = create_response_with_body(&request, axum::body::Body::empty)
        .map_err(|err| not_a_handshake(&err.to_string()))?;
    if protocols(&request).any(|protocol| protocol == ATTACH_PROTOCOL) {
        let protocol = header::HeaderValue::from_static(ATTACH_PROTOCOL);
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let seat = cx.viewers.seat(id, &cx.config)?;
    let (engine, serving) = (cx.engine.clone(), Arc::clone(&cx));
    // Every admitted viewer is also deregistered, whatever the outcome of this request.
    cx.detached(async move {
        let attached = engine.session_attach(&caller, id, mode == AttachMode::Read, size).await?;
        let tasks = serving.tasks.clone();
        drop(tasks.spawn(viewer::serve(serving, proof, seat, attached, mode, upgrade)));
        Ok(())
    })
    .await?;
    Ok(response.into_response())
}

fn protocols(request: &Request) -> impl Iterator<Item = &str> {
    let all = request.headers().get_all(header::SEC_WEBSOCKET_PROTOCOL);
    all.iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .map(str::trim)
}

fn not_a_handshake(why: &str) -> Fault {
    let error = format!("attaching to a terminal takes a WebSocket: {why}");
    Fault::new(ProblemKind::BadRequest, error).with_hint("use `overmind attach RUN`")
}

pub(crate) fn usage_of(usage: &Usage, activity: &Activity) -> ProcessUsage {
    ProcessUsage {
        cpu_ms: u64::try_from(usage.cpu.as_millis()).unwrap_or(u64::MAX),
        resident_bytes: usage.resident_bytes,
        processes: usage.processes,
        log_bytes: activity.offset,
        last_output_at: activity.last_output_at,
    }
}

/// The resource use of all runs' processes: one measurement for all requests within half a
/// second, by one look at the machine.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/usage", tag = "runs",
    responses(
        (status = 200, body = RunUsages),
        (status = 503, description = "This server runs no commands"),
    )
))]
pub(crate) async fn run_usages(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    let usages = cx.engine.usages(&caller).await?;
    let sight = caller.sight();
    let shown = usages.lives.iter().filter(|life| sight.sees(life.row.colony));
    let runs = shown.map(|life| RunUsage {
        run_id: life.row.id,
        name: life.row.name.clone(),
        status: life.row.status.into(),
        life: life.life,
        pid: life.pid,
        restarts: life.row.command.as_ref().map_or(0, |command| command.restarts),
        prompt: life.row.prompt.clone(),
        usage: usage_of(&life.usage, &life.activity),
    });
    Ok(answer(&RunUsages { at: usages.at, runs: runs.collect(), more: usages.more }))
}
