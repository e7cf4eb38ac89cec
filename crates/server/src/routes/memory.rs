//! `/api/memory`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use overmind_api::{
    MemoryFound, MemoryItem, MemoryListQuery, MemorySearch, MemoryStore, MemoryStored, Okay,
};
use overmind_core::ids::MemoryId;

use crate::cx::Cx;
use crate::extract::{Body, LargeBody, MemoryPath, Query, Who};
use crate::fault::Fault;
use crate::page::{Window, json, list};

/// Remembers a text.
#[utoipa::path(post, path = "/api/memory/store", tag = "memory", request_body = MemoryStore,
    responses(
        (status = 200, body = MemoryStored),
        (status = 422, description = "A field is wrong; `errors` names it"),
    ))]
pub(crate) async fn memory_store(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    LargeBody(body): LargeBody<MemoryStore>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.check())?;
    let engine = cx.engine.clone();
    let MemoryStore { collection, text, metadata } = body;
    let item = cx
        .detached(async move { engine.memory_store(&caller, collection, text, metadata).await })
        .await?;
    Ok(json(&MemoryStored { ok: true, item: item.into() }))
}

/// Finds texts, best first.
#[utoipa::path(post, path = "/api/memory/search", tag = "memory", request_body = MemorySearch,
    responses(
        (status = 200, body = MemoryFound),
        (status = 422, description = "A field is wrong; `errors` names it"),
    ))]
pub(crate) async fn memory_search(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<MemorySearch>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let MemorySearch { collection, query, top_k } = body.value;
    let hits = cx.engine.memory_search(&caller, collection, query, top_k).await?;
    Ok(json(&MemoryFound { ok: true, results: hits.into_iter().map(Into::into).collect() }))
}

/// Lists remembered texts, newest first.
#[utoipa::path(get, path = "/api/memory", tag = "memory", params(MemoryListQuery),
    responses((status = 200, body = [MemoryItem])))]
pub(crate) async fn memory_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    mut query: Query,
) -> Result<Response, Fault> {
    let window = Window::<MemoryId>::take(&mut query)?;
    let collection = query.take("collection");
    query.finish()?;
    let limit = window.limit;
    let items = cx.engine.memory_list(&caller, collection, window.into()).await?;
    Ok(list(&uri, limit, items, |item| item.id.to_string(), MemoryItem::from))
}

/// Forgets one text.
#[utoipa::path(delete, path = "/api/memory/{id}", tag = "memory",
    params(("id" = String, Path)),
    responses((status = 200, body = Okay), (status = 404, description = "`Memory item not found`")))]
pub(crate) async fn memory_delete(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    MemoryPath(id): MemoryPath,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    cx.detached(async move { engine.memory_delete(&caller, id).await }).await?;
    Ok(json(&Okay { ok: true }))
}
