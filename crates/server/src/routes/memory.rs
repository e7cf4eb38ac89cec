//! `/api/memory`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
#[cfg(feature = "openapi")]
use overmind_api::MemoryListQuery;
use overmind_api::{
    MemoryFound, MemoryItem, MemoryReembed, MemoryReembedded, MemorySearch, MemoryStore,
    MemoryStored, Okay,
};
use overmind_core::ids::MemoryId;
use overmind_core::memory::MemoryFilter;
use overmind_engine::MemoryNew;

use crate::cx::Cx;
use crate::extract::{Body, LargeBody, MemoryPath, Query, Who};
use crate::fault::Fault;
use crate::page::{Window, json, list};

/// Remembers a text.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/memory/store", tag = "memory", request_body = MemoryStore,
    responses(
        (status = 200, body = MemoryStored),
        (status = 409, description = "The item that it supersedes does not exist, or was replaced before"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn memory_store(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    LargeBody(body): LargeBody<MemoryStore>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.check())?;
    let engine = cx.engine.clone();
    let (supersedes, trust) = (body.supersedes_id(), body.trust_label());
    let MemoryStore { collection, text, metadata, key, ttl_seconds, source_event, .. } = body;
    let ttl = ttl_seconds.map(Duration::from_secs);
    let new = MemoryNew { collection, text, metadata, key, ttl, supersedes, trust, source_event };
    let item = cx.detached(async move { engine.memory_store(&caller, new).await }).await?;
    Ok(json(&MemoryStored { ok: true, item: item.into() }))
}

/// Finds texts, best first.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/memory/search", tag = "memory", request_body = MemorySearch,
    responses(
        (status = 200, body = MemoryFound),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn memory_search(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<MemorySearch>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let MemorySearch { collection, query, top_k, filter, history } = body.value;
    let filter = MemoryFilter::parse(&filter)
        .map_err(|err| overmind_engine::EngineError::invalid("filter", err.to_string()))?;
    let found = cx.engine.memory_search(&caller, collection, query, top_k, filter, history);
    let hits = found.await?;
    Ok(json(&MemoryFound { ok: true, results: hits.into_iter().map(Into::into).collect() }))
}

/// Lists remembered texts, newest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/memory", tag = "memory", params(MemoryListQuery),
    responses((status = 200, body = [MemoryItem]))
))]
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

/// One remembered text, replaced or not.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/memory/{id}", tag = "memory",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = MemoryItem),
        (status = 404, description = "`Memory item not found`"),
    )
))]
pub(crate) async fn memory_fetch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    MemoryPath(id): MemoryPath,
) -> Result<Response, Fault> {
    Ok(json(&MemoryItem::from(cx.engine.memory_fetch(&caller, id).await?)))
}

/// Gives a batch of texts vectors of the configured model. Ask again while there is `more`.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/memory/reembed", tag = "memory", request_body = MemoryReembed,
    responses(
        (status = 200, body = MemoryReembedded),
        (status = 422, description = "A field is wrong, or no embedder is configured"),
    )
))]
pub(crate) async fn memory_reembed(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<MemoryReembed>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let (engine, limit) = (cx.engine.clone(), body.value.limit);
    let done = cx.detached(async move { engine.memory_reembed(&caller, limit).await }).await?;
    Ok(json(&MemoryReembedded { ok: true, done: done.done, more: done.more }))
}

/// Forgets one text.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/memory/{id}", tag = "memory",
    params(("id" = String, Path)),
    responses((status = 200, body = Okay), (status = 404, description = "`Memory item not found`"))
))]
pub(crate) async fn memory_delete(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    MemoryPath(id): MemoryPath,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    cx.detached(async move { engine.memory_delete(&caller, id).await }).await?;
    Ok(json(&Okay { ok: true }))
}
