//! `/api/runs`, also served as `/api/sessions`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use overmind_api::{
    ApprovalAnswer, AttestationRecord, Event, ForkRequest, PruneDone, Run, RunBasic, RunBudget,
    RunCreate, RunInput, RunStatus, RunView, Step, ToolCallRequest, microusd_of,
};
#[cfg(feature = "openapi")]
use overmind_api::{
    AttestationQuery, CancelQuery, Diff, DiffQuery, ListQuery, ModelCall, RemoveQuery, ReplayQuery,
    RunListQuery, ToolCall, VerifyReport,
};
use overmind_core::ids::SessionId;
use overmind_core::row::SessionRow;
use overmind_core::store::NameFilter;
use overmind_engine::request::{SessionBudget, SessionDraft, SessionQuery, ToolCallDraft};

use super::agents::mark_replayed;
use super::resources::selector_of;
use crate::convert;
use crate::cx::Cx;
use crate::extract::{ApprovalPath, Body, LargeBody, Query, RunPath, Who, parse_bool};
use crate::fault::Fault;
use crate::page::{Window, json, list};
use crate::proof::Proof;
use crate::sse::{self, Stream};
use crate::timeline_stream::{TimelineSource, is_done, parse_place};

/// Starts a run: it is queued at once, and starts as soon as a slot is free.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs", tag = "runs", request_body = RunCreate,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repeated request answer with the first one's run")),
    responses(
        (status = 200, body = Run),
        (status = 404, description = "`Agent not found`"),
        (status = 409, description = "`Agent is disabled`, or the Idempotency-Key was used with another body"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn run_create(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    headers: HeaderMap,
    body: Body<RunCreate>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let idempotency = body.idempotency(&headers)?;
    let RunCreate {
        agent_id,
        task,
        step_limit,
        workspace,
        name,
        parent,
        command,
        sandbox,
        room,
        conversation,
        labels,
        contexts,
        memory_claims,
        budget,
    } = body.value;
    let draft = SessionDraft {
        agent: agent_id,
        task,
        name,
        parent,
        command: command.map(Into::into),
        sandbox: sandbox.map(Into::into),
        room: room.map(Into::into),
        step_limit,
        workspace,
        conversation,
        labels,
        contexts,
        claims: memory_claims,
        budget: budget.map(|RunBudget { usd, tokens }| SessionBudget {
            microusd: usd.and_then(|usd| microusd_of(usd).ok()),
            tokens,
        }),
        owner: None,
        idempotency,
    };
    let engine = cx.engine.clone();
    let made = cx.detached(async move { engine.session_create(&caller, draft).await }).await?;
    Ok(mark_replayed(json(&Run::from(made.value)), made.replayed))
}

/// Lists runs, newest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs", tag = "runs", params(RunListQuery),
    responses((status = 200, description = "With `view=basic` each is a RunBasic", body = [Run]), (status = 404, description = "`Agent not found`, for `agent`"))
))]
pub(crate) async fn run_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    mut query: Query,
) -> Result<Response, Fault> {
    let window = Window::<SessionId>::take(&mut query)?;
    let wanted = format!(
        "one or more of {}, separated by commas",
        RunStatus::ALL.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(", ")
    );
    let statuses: Option<Vec<_>> = query.take_parsed("status", &wanted, |text| {
        text.split(',').map(|word| RunStatus::parse(word).map(Into::into)).collect()
    })?;
    let agent = query.take("agent");
    let parent = query.take_parsed("parent", "the id of a run", |text| text.parse().ok())?;
    let name = query.take("name").map(|name| match name.strip_suffix('*') {
        Some(beginning) => NameFilter::Begins(beginning.to_owned()),
        None => NameFilter::Is(name),
    });
    let view = query.take_parsed("view", "full or basic", RunView::parse)?.unwrap_or_default();
    let owner = query.take_parsed("owner", "the uid of a resource", |text| text.parse().ok())?;
    let selector = selector_of(&mut query)?;
    query.finish()?;
    let agent = match agent {
        Some(agent) => Some(cx.engine.agent_fetch(&caller, &agent).await?.id),
        None => None,
    };
    let filter = SessionQuery {
        statuses: statuses.unwrap_or_default(),
        agent,
        parent,
        name,
        owner,
        selector,
    };
    let limit = window.limit;
    let runs = cx.engine.session_list(&caller, filter, window.into()).await?;
    let agents: Vec<_> = runs.iter().map(|run| run.agent).collect();
    let names = cx.engine.agent_names(&agents).await?;
    let alarms = |run: &SessionRow| cx.engine.session_alarms(run.id);
    let trouble = |run: &SessionRow| trouble(&cx, run);
    let agent_name = |run: &SessionRow| names.get(&run.agent).cloned();
    let colony_name = |run: &SessionRow| cx.colony_name(run.colony);
    let cursor = |run: &SessionRow| run.id.to_string();
    Ok(match view {
        RunView::Full => list(&uri, limit, runs, cursor, |run| Run {
            alarms: alarms(&run),
            trouble: trouble(&run),
            agent_name: agent_name(&run),
            colony_name: colony_name(&run),
            ..run.into()
        }),
        RunView::Basic => list(&uri, limit, runs, cursor, |run| RunBasic {
            alarms: alarms(&run),
            trouble: trouble(&run),
            agent_name: agent_name(&run),
            colony_name: colony_name(&run),
            ..run.into()
        }),
    })
}

/// Fetches one run.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = Run), (status = 404, description = "`Run not found`"))
))]
pub(crate) async fn run_fetch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
) -> Result<Response, Fault> {
    let run = cx.engine.session_fetch(&caller, id).await?;
    let agent_name = cx.engine.agent_names(&[run.agent]).await?.remove(&run.agent);
    let (alarms, trouble) = (cx.engine.session_alarms(id), trouble(&cx, &run));
    let colony_name = cx.colony_name(run.colony);
    Ok(json(&Run { alarms, trouble, agent_name, colony_name, ..run.into() }))
}

/// Why its model calls fail, of a run that makes them.
fn trouble(cx: &Cx, run: &SessionRow) -> Option<String> {
    if run.status.is_terminal() { None } else { cx.engine.session_trouble(run.id) }
}

/// Cancels a run and stops what it is doing; with `cascade` also the runs that were started for it.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs/{id}/cancel", tag = "runs",
    params(("id" = String, Path), CancelQuery),
    responses(
        (status = 200, body = Run),
        (status = 404, description = "`Run not found`"),
        (status = 409, description = "The run has ended already"),
    )
))]
pub(crate) async fn run_cancel(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    mut query: Query,
) -> Result<Response, Fault> {
    let cascade = query.take_parsed("cascade", "true or false", parse_bool)?.unwrap_or(false);
    query.finish()?;
    let engine = cx.engine.clone();
    let run = cx.detached(async move {
        if cascade {
            engine.session_cancel_all(&caller, id).await
        } else {
            engine.session_cancel(&caller, id).await
        }
    });
    let run = run.await?;
    Ok(json(&Run::from(run)))
}

/// Removes a run that has ended, with its log and artifacts, as retention does; a record of it stays in the
/// log. Its children and forks stay.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/runs/{id}", tag = "runs",
    params(("id" = String, Path), RemoveQuery),
    responses(
        (status = 200, body = PruneDone),
        (status = 403, description = "The caller is no admin"),
        (status = 404, description = "`Run not found`"),
        (status = 409, description = "The run has not ended, its work is undecided, or its environment is not removed"),
    )
))]
pub(crate) async fn run_remove(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    mut query: Query,
) -> Result<Response, Fault> {
    let discard = query.take_parsed("discard", "true or false", parse_bool)?.unwrap_or(false);
    query.finish()?;
    let engine = cx.engine.clone();
    let removed = cx.detached(async move { engine.session_remove(&caller, id, discard).await });
    Ok(json(&PruneDone::from(removed.await?)))
}

/// Answers a run's question.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs/{id}/input", tag = "runs", request_body = RunInput,
    params(("id" = String, Path)),
    responses(
        (status = 200, body = Run),
        (status = 404, description = "`Run not found`"),
        (status = 409, description = "`Run is not awaiting input`"),
        (status = 422, description = "The message is blank"),
    )
))]
pub(crate) async fn run_input(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    body: Body<RunInput>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let engine = cx.engine.clone();
    let message = body.value.message;
    let run = cx.detached(async move { engine.session_input(&caller, id, message).await }).await?;
    Ok(json(&Run::from(run)))
}

/// Approves or denies an action that waits for it.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs/{id}/approvals/{approval_id}", tag = "runs",
    request_body = ApprovalAnswer,
    params(("id" = String, Path), ("approval_id" = String, Path)),
    responses(
        (status = 200, body = Run),
        (status = 404, description = "`Run not found` or `Approval not found`"),
        (status = 409, description = "The run does not wait for this approval"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn run_decide(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    ApprovalPath(approval): ApprovalPath,
    body: Body<ApprovalAnswer>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let decision = convert::decision(body.value.decision);
    let reason = body.value.reason;
    let engine = cx.engine.clone();
    let work = async move { engine.session_decide(&caller, id, approval, decision, reason).await };
    Ok(json(&Run::from(cx.detached(work).await?)))
}

/// The measurement of the sandbox of the run's commands, or of a program of its environment, as it was
/// signed.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/attestation", tag = "runs",
    params(("id" = String, Path), AttestationQuery),
    responses(
        (status = 200, body = AttestationRecord),
        (status = 404, description = "`Run not found`, or `Attestation not found` as long as no command of it ran in a sandbox, or no such program"),
    )
))]
pub(crate) async fn run_attestation(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    mut query: Query,
) -> Result<Response, Fault> {
    let of = query.take("of");
    query.finish()?;
    let kept = cx.engine.session_attestation(&caller, id, of.as_deref()).await?;
    Ok(json(&AttestationRecord::from(kept)))
}

/// Lists a run's steps by `idx`.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/steps", tag = "runs",
    params(("id" = String, Path), ListQuery),
    responses((status = 200, body = [Step]), (status = 404, description = "`Run not found`"))
))]
pub(crate) async fn run_steps(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    uri: Uri,
    window: Window<u32>,
) -> Result<Response, Fault> {
    let Window { limit, after } = window;
    let steps = cx.engine.session_steps(&caller, id, after, limit).await?;
    Ok(list(&uri, limit, steps, |step| step.idx.to_string(), Step::from))
}

/// Lists a run's tool calls, oldest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/tool-calls", tag = "runs",
    params(("id" = String, Path), ListQuery),
    responses((status = 200, body = [ToolCall]), (status = 404, description = "`Run not found`"))
))]
pub(crate) async fn run_tool_calls(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    uri: Uri,
    window: Window<u64>,
) -> Result<Response, Fault> {
    let Window { limit, after } = window;
    let calls = cx.engine.session_tool_calls(&caller, id, after.unwrap_or(0), limit).await?;
    Ok(list(&uri, limit, calls, |call| call.seq.to_string(), convert::tool_call))
}

/// Lists a run's model calls, oldest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/model-calls", tag = "runs",
    params(("id" = String, Path), ListQuery),
    responses((status = 200, body = [ModelCall]), (status = 404, description = "`Run not found`"))
))]
pub(crate) async fn run_model_calls(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    uri: Uri,
    window: Window<u64>,
) -> Result<Response, Fault> {
    let Window { limit, after } = window;
    let agent = cx.engine.session_fetch(&caller, id).await?.agent;
    let calls = cx.engine.session_model_calls(&caller, id, after.unwrap_or(0), limit).await?;
    let show = |call| convert::model_call(call, agent);
    Ok(list(&uri, limit, calls, |call| call.seq.to_string(), show))
}

/// Lists a run's events, oldest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/events", tag = "runs",
    params(("id" = String, Path), ListQuery),
    responses((status = 200, body = [Event]), (status = 404, description = "`Run not found`"))
))]
pub(crate) async fn run_events(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    uri: Uri,
    window: Window<u64>,
) -> Result<Response, Fault> {
    let Window { limit, after } = window;
    let events = cx.engine.session_events(&caller, id, after.unwrap_or(0), limit).await?;
    Ok(list(&uri, limit, events, |event| event.seq.to_string(), Event::from))
}

/// Streams a run's timeline as server-sent events.
///
/// Each item has an `id:` to resume after (`Last-Event-ID`) and `data:` with
/// `{"kind","ts","data"}`; a step comes again each time it changes. When the run has ended,
/// `event: done` with `{"run_id","status"}` closes the stream; resuming after its `id:` is answered
/// 204, by which an `EventSource` knows that nothing follows. It ends before, with
/// `event: error` and the problem, when its token is worth nothing any more.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/replay", tag = "runs",
    params(
        ("id" = String, Path),
        ReplayQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "Resume after this `id:`"),
    ),
    responses(
        (status = 200, description = "Each `data:` is a `Timeline`", body = String, content_type = "text/event-stream"),
        (status = 204, description = "The run has ended, and `Last-Event-ID` is that of its `done`"),
        (status = 404, description = "`Run not found`"),
        (status = 422, description = "A query parameter or the Last-Event-ID is wrong"),
    )
))]
pub(crate) async fn run_replay(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    proof: Proof,
    RunPath(id): RunPath,
    headers: HeaderMap,
    mut query: Query,
) -> Result<Response, Fault> {
    let follow = query.take_parsed("follow", "a truth value such as 1 or 0", parse_bool)?;
    query.take_parsed("poll_ms", "a whole number", |text| text.parse::<i64>().ok())?;
    let resume = query.take("last_event_id");
    query.finish()?;
    let after = sse::resume_after(&headers, resume.as_deref(), parse_place)?.unwrap_or((0, 0));
    // Asked before the stream begins, so that 403 and 404 are still a status.
    let run = cx.engine.session_fetch(&caller, id).await?;
    if is_done(after) && run.status.is_terminal() {
        // An EventSource connects again whenever a stream ends; 204 tells it to stop.
        let rest = cx.engine.session_timeline(&caller, id, after, 1).await?;
        if rest.items.is_empty() && !rest.more {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
    let timeline = TimelineSource::new(&run, after, follow.unwrap_or(false));
    Ok(Stream::new(cx, proof, timeline).into_response())
}

/// Calls a tool in the run's name. Always 200: a denied or failed call says so in its body.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs/{id}/tools/call", tag = "runs",
    request_body = ToolCallRequest, params(("id" = String, Path)),
    responses(
        (status = 200, description = "`{\"ok\":true,…}` or `{\"ok\":false,\"error\":{\"code\",\"message\"}}`", body = Value),
        (status = 404, description = "`Run not found` or `Agent not found`"),
        (status = 422, description = "The request itself is wrong; `errors` names the field"),
    )
))]
pub(crate) async fn run_tool_call(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    LargeBody(body): LargeBody<ToolCallRequest>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.check())?;
    let call = ToolCallDraft { tool: body.tool_name, args: body.args };
    let engine = cx.engine.clone();
    let outcome = cx.detached(async move { engine.tool_call(&caller, id, call).await }).await?;
    Ok(json(&outcome.result))
}

/// Decides the whole run again from its log and compares.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/verify", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = VerifyReport), (status = 404, description = "`Run not found`"))
))]
pub(crate) async fn run_verify(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
) -> Result<Response, Fault> {
    Ok(json(&convert::verify(cx.engine.session_verify(&caller, id).await?)))
}

/// Starts a new run that repeats this one up to a step and then goes its own way.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs/{id}/fork", tag = "runs", request_body = ForkRequest,
    params(("id" = String, Path)),
    responses(
        (status = 200, body = Run),
        (status = 404, description = "`Run not found`"),
        (status = 409, description = "The run cannot be forked there"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn run_fork(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    body: Body<ForkRequest>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let fork = convert::fork(body.value);
    let engine = cx.engine.clone();
    let run = cx.detached(async move { engine.session_fork(&caller, id, fork).await }).await?;
    Ok(json(&Run::from(run)))
}

/// Lays two runs side by side.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/diff", tag = "runs", params(DiffQuery),
    responses(
        (status = 200, body = Diff),
        (status = 404, description = "`Run not found`"),
        (status = 422, description = "`a` or `b` is not given"),
    )
))]
pub(crate) async fn run_diff(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    mut query: Query,
) -> Result<Response, Fault> {
    let mut side = |name| match query.take(name) {
        Some(text) => text.parse::<SessionId>().map_err(|_| Fault::not_found("Run")),
        None => Err(Fault::invalid(name, "is required")),
    };
    let (a, b) = (side("a")?, side("b")?);
    query.finish()?;
    Ok(json(&convert::diff(cx.engine.session_diff(&caller, a, b).await?)))
}
