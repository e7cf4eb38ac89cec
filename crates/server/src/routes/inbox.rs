//! `/api/inbox`: everything that waits for a human.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
#[cfg(feature = "openapi")]
use overmind_api::InboxListQuery;
use overmind_api::{
    InboxAnswer, InboxBatch, InboxBatchDone, InboxGroup, InboxItem, InboxKind, InboxProposal,
    InboxResult, InboxState,
};
use overmind_core::ids::SessionId;
use overmind_core::inbox::InboxCursor;
use overmind_engine::request::{InboxBatch as Batch, InboxQuery};

use crate::convert;
use crate::cx::Cx;
use crate::extract::{Body, InboxPath, Query, Who};
use crate::fault::Fault;
use crate::inbox_stream::InboxSource;
use crate::page::{Window, json, list};
use crate::proof::Proof;
use crate::sse::{self, Resume};

/// Lists items that wait for a person, newest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/inbox", tag = "inbox", params(InboxListQuery),
    responses((status = 200, body = [InboxItem]), (status = 404, description = "`Run not found`, for `run_id`"))
))]
pub(crate) async fn inbox_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    mut query: Query,
) -> Result<Response, Fault> {
    let window = Window::<InboxCursor>::take(&mut query)?;
    let words: Vec<_> = InboxState::ALL.iter().map(|state| state.as_str()).collect();
    let wanted = format!("all, or one of {}", words.join(", "));
    let state = query.take_parsed("state", &wanted, |text| match text {
        "all" => Some(None),
        other => InboxState::parse(other).map(Some),
    })?;
    let words: Vec<_> = InboxKind::ALL.iter().map(|kind| kind.as_str()).collect();
    let wanted = format!("one of {}", words.join(", "));
    let kind = query.take_parsed("kind", &wanted, InboxKind::parse)?;
    let session = match query.take("run_id") {
        Some(text) => Some(text.parse::<SessionId>().map_err(|_| Fault::not_found("Run"))?),
        None => None,
    };
    let group = query.take("group");
    query.finish()?;
    let state = state.unwrap_or(Some(InboxState::Open));
    let filter =
        InboxQuery { state: state.map(Into::into), kind: kind.map(Into::into), session, group };
    let limit = window.limit;
    let items = cx.engine.inbox_list(&caller, filter, window.into()).await?;
    Ok(list(&uri, limit, items, |item| item.cursor().to_string(), InboxItem::from))
}

/// Fetches one item, open or not.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/inbox/{id}", tag = "inbox", params(("id" = String, Path)),
    responses((status = 200, body = InboxItem), (status = 404, description = "`Inbox item not found`"))
))]
pub(crate) async fn inbox_fetch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    InboxPath(id): InboxPath,
) -> Result<Response, Fault> {
    Ok(json(&InboxItem::from(cx.engine.inbox_fetch(&caller, id).await?)))
}

/// Answers an item. The first answer counts; the second gets a conflict that names the first.
///
/// An approval that comes after `expires_at` leaves the item `expired`, and the same is asked
/// anew in another item.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/inbox/{id}/answer", tag = "inbox", request_body = InboxAnswer,
    params(("id" = String, Path)),
    responses(
        (status = 200, body = InboxItem),
        (status = 404, description = "`Inbox item not found`"),
        (status = 409, description = "It was answered before, or nobody waits for it any more"),
        (status = 422, description = "The decision is not one for its kind, or a field is wrong"),
    )
))]
pub(crate) async fn inbox_answer(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    InboxPath(id): InboxPath,
    body: Body<InboxAnswer>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let InboxAnswer { decision, message, reason, raise } = body.value;
    let answer = convert::inbox_answer(decision, message, reason, raise);
    let engine = cx.engine.clone();
    let work = async move { engine.inbox_answer(&caller, id, answer).await };
    Ok(json(&InboxItem::from(cx.detached(work).await?)))
}

/// Answers several items in the same way, each for itself.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/inbox/answer", tag = "inbox", request_body = InboxBatch,
    responses(
        (status = 200, description = "The result of each; `ok` if all were answered", body = InboxBatchDone),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn inbox_answer_all(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<InboxBatch>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let InboxBatch { ids, group, decision, message, reason, raise } = body.value;
    let answer = convert::inbox_answer(decision, message, reason, raise);
    let batch = Batch { ids, group, answer };
    let engine = cx.engine.clone();
    let done = cx.detached(async move { engine.inbox_answer_all(&caller, batch).await }).await?;
    let results: Vec<InboxResult> = done
        .into_iter()
        .map(|(id, result)| match result {
            Ok(item) => InboxResult { id, ok: true, item: Some(item.into()), problem: None },
            Err(err) => {
                let problem = Some(Fault::from(err).problem().clone());
                InboxResult { id, ok: false, item: None, problem }
            }
        })
        .collect();
    Ok(json(&InboxBatchDone { ok: results.iter().all(|result| result.ok), results }))
}

/// Lists open items that are alike, together: the largest group first.
///
/// Looks at the newest 1,000 open items.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/inbox/groups", tag = "inbox",
    responses((status = 200, body = [InboxGroup]))
))]
pub(crate) async fn inbox_groups(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    let groups = cx.engine.inbox_groups(&caller).await?;
    let groups: Vec<InboxGroup> = groups.into_iter().filter_map(convert::inbox_group).collect();
    Ok(json(&groups))
}

/// Lists rules that would spare questions: one for each action that was approved often enough.
///
/// Looks at the newest 1,000 approvals and as many denials.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/inbox/proposals", tag = "inbox",
    responses(
        (status = 200, body = [InboxProposal]),
        (status = 409, description = "The server has no policy"),
    )
))]
pub(crate) async fn inbox_proposals(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    let found = cx.engine.inbox_proposals(&caller).await?;
    let found: Vec<InboxProposal> = found.into_iter().filter_map(convert::inbox_proposal).collect();
    Ok(json(&found))
}

/// Streams the inbox as server-sent events.
///
/// First comes each open item as `event: opened`, then `event: snapshot`, then changes as they
/// happen: `event: opened` and `event: closed` with the item as it stands. An item that was
/// opened and closed between two looks comes as closed alone. Messages have an `id:` to resume
/// after (`Last-Event-ID`); a resumed stream has no snapshot. It ends, with `event: error` and the
/// problem, when its token is worth nothing any more.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/inbox/events", tag = "inbox",
    params(
        ("last_event_id" = Option<String>, Query, description = "As the header, for those who cannot set it"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resume after this `id:`"),
    ),
    responses(
        (status = 200, description = "Each `data:` is an `InboxItem`, that of `snapshot` an `InboxSnapshot`", body = InboxItem, content_type = "text/event-stream"),
        (status = 422, description = "The Last-Event-ID is wrong"),
    )
))]
pub(crate) async fn inbox_events(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    proof: Proof,
    Resume(after): Resume,
) -> Result<Response, Fault> {
    // Asked before the stream begins, so that 403 is still a status.
    let (counts, head) = cx.engine.inbox_counts(&caller).await?;
    let inbox = InboxSource::new(after, counts.total(), head);
    Ok(sse::Stream::new(cx, proof, inbox).into_response())
}
