//! `/api/resources`: declared things of every kind, by one family of routes.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use overmind_api::{
    Event, FieldError, KindView, Manifest, Problem, ProblemKind, Resource, ResourceApplied,
    ResourceApply, ResourceDeleted, ResourceOwned, ResourcesApplied, kind_of, kind_title,
};
#[cfg(feature = "openapi")]
use overmind_api::{ResourceDeleteQuery, ResourceListQuery, ResourceSnapshot};
use overmind_core::ids::SessionId;
use overmind_core::record::condition::{ConditionStatus, conditions};
use overmind_core::record::decide::Outcome;
use overmind_core::record::kinds::colony::is_of_swarm;
use overmind_core::record::kinds::shown::SESSION;
use overmind_core::record::{
    self, KINDS, Kind, KindInfo, Name, Owner, Record, RecordKey, Selector,
};
use overmind_core::store::Page;
use overmind_engine::request::SessionQuery;
use overmind_engine::{
    AllApplied, Applied, Caller, CascadeWish, MAX_APPLIED, RecordDeleted, RecordError,
    RecordFilter, RecordWish,
};
use serde_json::Value;

use crate::cx::Cx;
use crate::extract::{Body, LargeBody, Query, Who};
use crate::fault::Fault;
use crate::page::{Hex, Window, json, next_link};
use crate::proof::Proof;
use crate::sse::{self, number, resume_after};

mod sessions;
mod shown;
mod shown_stream;
mod stream;

use self::shown::Wish;
use self::shown_stream::ShownSource;
use self::stream::RecordSource;

/// Mistakes that an answer lists. Further ones are counted.
const MAX_MISTAKES: usize = 1_000;

/// Lists the kinds of resources, each with the JSON Schema of its spec.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/kinds", tag = "resources", responses((status = 200, body = [KindView]))
))]
pub(crate) async fn kind_list(Who(_): Who, query: Query) -> Result<Response, Fault> {
    query.finish()?;
    let kinds: Vec<KindView> = KINDS.iter().map(KindView::from).collect();
    Ok(json(&kinds))
}

/// Lists the resources of a kind, by name.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/resources/{kind}", tag = "resources",
    params(("kind" = String, Path, description = "Its name, plural or an alias"), ResourceListQuery),
    responses(
        (status = 200, body = [Resource]),
        (status = 404, description = "There is no such kind"),
        (status = 422, description = "The selector is wrong; `errors` says where"),
    )
))]
pub(crate) async fn resource_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    OfKind(info): OfKind,
    uri: Uri,
    mut query: Query,
) -> Result<Response, Fault> {
    let window = Window::<Hex>::take(&mut query)?;
    let selector = selector_of(&mut query)?;
    let wanted = "the uid of a resource or the id of a run";
    let owner = query.take_parsed("owner", wanted, |text| text.parse::<Owner>().ok())?;
    query.finish()?;
    let after = window.after.map(|Hex(text)| text);
    let (resources, next) = if info.changed_by.is_some() {
        let owner = match owner {
            Some(Owner::Record(id)) => Some(id),
            // Runs have parents, and no run for an owner.
            Some(Owner::Session(_)) => return Ok(json(&Vec::<Resource>::new())),
            None => None,
        };
        let wish = shown::Wish { selector: &selector, owner, after, limit: window.limit };
        shown::list(&cx, &caller, info, wish).await?
    } else {
        let after = after.map(|text| key_of(&caller, info, &text)).transpose()?;
        let filter = RecordFilter { selector, owner, after, limit: window.limit };
        let page = cx.engine.record_list(&caller, info, filter).await?;
        let next = page.records.last().filter(|_| page.more);
        let next = next.map(|record| format!("{}/{}", record.key.colony, record.key.name));
        let mut records = page.records;
        for record in &mut records {
            shown::trust(&cx, &caller, record).await;
        }
        (records.into_iter().map(|record| resource(&cx, record)).collect(), next)
    };
    let mut response = json(&resources);
    let next = next.map(|next| Hex(next).to_string());
    if let Some(link) = next.and_then(|cursor| next_link(&uri, &cursor)) {
        response.headers_mut().insert(header::LINK, link);
    }
    Ok(response)
}

/// Fetches a resource.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/resources/{kind}/{name}", tag = "resources",
    params(("kind" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Resource), (status = 404, description = "There is no such kind or resource"))
))]
pub(crate) async fn resource_fetch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    OfKind(info): OfKind,
    Path((_, name)): Path<(String, String)>,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    if info.changed_by.is_some() {
        return Ok(json(&shown::fetch(&cx, &caller, info, &name).await?));
    }
    let mut record = cx.engine.record_fetch(&caller, info, &named(info, &name)?).await?;
    shown::trust(&cx, &caller, &mut record).await;
    Ok(json(&resource(&cx, record)))
}

/// A record as it is shown.
fn resource(cx: &Cx, record: Record) -> Resource {
    let colony = cx.engine.colony_name(record.key.colony);
    Resource::of(record, colony)
}

/// The record after which a list continues: its colony's id and its name. Older cursors have the name
/// alone.
fn key_of(by: &Caller, info: &KindInfo, text: &str) -> Result<RecordKey, Fault> {
    let (colony, name) = match text.split_once('/') {
        Some((colony, name)) => (colony.parse().ok(), name),
        None => (Some(by.colony), text),
    };
    let name = Name::parse(name).map_err(|err| Fault::invalid("cursor", err.to_string()))?;
    match (Kind::parse(info.name), colony) {
        (Ok(kind), Some(colony)) => Ok(RecordKey { kind, colony, name }),
        (_, _) => Err(Fault::invalid("cursor", "is none that a list of this kind has answered")),
    }
}

/// The events of a resource, oldest first: the newest 200, of those that are among the
/// newest 5,000 of all resources. Of a run the first 200 of its log.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/resources/{kind}/{name}/events", tag = "resources",
    params(("kind" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = [Event]), (status = 404, description = "There is no such kind or resource"))
))]
pub(crate) async fn resource_events(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    OfKind(info): OfKind,
    Path((_, name)): Path<(String, String)>,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    let events = match info.changed_by {
        None => cx.engine.record_events(&caller, info, &named(info, &name)?).await?,
        Some(_) => {
            let one = shown::fetch(&cx, &caller, info, &name).await?;
            match one.metadata.uid.parse::<SessionId>() {
                Ok(id) => cx.engine.session_events(&caller, id, 0, 200).await?,
                // Other things that are only shown have no log of their own.
                Err(_) => Vec::new(),
            }
        }
    };
    Ok(json(&events.into_iter().map(Event::from).collect::<Vec<_>>()))
}

/// The objects that a resource owns, which are deleted with it: at most 500 resources and 500 runs.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/resources/{kind}/{name}/owned", tag = "resources",
    params(("kind" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = [ResourceOwned]), (status = 404, description = "There is no such kind or resource"))
))]
pub(crate) async fn resource_owned(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    OfKind(info): OfKind,
    Path((_, name)): Path<(String, String)>,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    if info.changed_by.is_some() {
        shown::fetch(&cx, &caller, info, &name).await?;
        return Ok(json(&Vec::<ResourceOwned>::new()));
    }
    let owned = cx.engine.record_owned(&caller, info, &named(info, &name)?).await?;
    let records = owned.records.into_iter().map(|record| ResourceOwned {
        kind: kind_title(record.key.kind.as_str()),
        name: record.key.name.as_str().to_owned(),
        uid: record.id.to_string(),
        phase: phase(&record),
        creation_timestamp: record.created_at,
    });
    let sessions = owned.sessions.into_iter().map(|row| ResourceOwned {
        kind: kind_title(SESSION.name),
        name: row.name,
        uid: row.id.to_string(),
        phase: Some(row.status.as_str().to_owned()),
        creation_timestamp: row.created_at,
    });
    Ok(json(&records.chain(sessions).collect::<Vec<_>>()))
}

/// The condition that says most: the first that is true.
fn phase(record: &Record) -> Option<String> {
    let all = conditions(&record.status);
    all.into_iter().find(|one| one.status == ConditionStatus::True).map(|one| one.kind)
}

/// Creates a resource or changes it to what the document says. With `metadata.resourceVersion` only
/// if it is still at that version.
#[cfg_attr(feature = "openapi", utoipa::path(
    put, path = "/api/resources/{kind}/{name}", tag = "resources", request_body = Resource,
    params(("kind" = String, Path), ("name" = String, Path)),
    responses(
        (status = 200, body = ResourceApplied),
        (status = 201, description = "It was created", body = ResourceApplied),
        (status = 404, description = "There is no such kind"),
        (status = 409, description = "It is at another version, or is being deleted"),
        (status = 422, description = "A field is wrong; `errors` names each"),
    )
))]
pub(crate) async fn resource_put(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    OneOf(info, name): OneOf,
    query: Query,
    body: Body<Value>,
) -> Result<Response, Fault> {
    query.finish()?;
    let manifest = Manifest::read(&body.value);
    let manifest = manifest.map_err(|wrong| mistakes(wrong.into_iter().map(|one| (None, one))))?;
    if manifest.info.name != info.name {
        return Err(Fault::invalid("kind", format!("must be {}, as in the path", info.name)));
    }
    if manifest.name != name {
        return Err(Fault::invalid("metadata.name", "must be the name in the path"));
    }
    if let Some(wrong) = foreign(&cx, &caller, &manifest) {
        return Err(mistakes([(None, wrong)]));
    }
    let applied = applied(&cx, caller, vec![wish(manifest)], None, false).await?;
    let applied = applied.map_err(|err| fault(err, |_| None))?;
    let Some(applied) = applied.applied.into_iter().next() else {
        return Err(Fault::internal("an apply answered nothing", &name));
    };
    let created = applied.outcome == Outcome::Created;
    let mut response = json(&shown(&cx, applied));
    if created {
        *response.status_mut() = StatusCode::CREATED;
    }
    Ok(response.into_response())
}

/// Creates, changes and prunes resources of any kinds: all of it or nothing.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/resources", tag = "resources", request_body = ResourceApply,
    responses(
        (status = 200, body = ResourcesApplied),
        (status = 409, description = "One is at another version, or is being deleted"),
        (status = 422, description = "`errors` names each mistake of each document: `documents[0].spec.…`"),
    )
))]
pub(crate) async fn resource_apply(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    LargeBody(body): LargeBody<ResourceApply>,
) -> Result<Response, Fault> {
    if body.documents.len() > MAX_APPLIED {
        let problem = format!("has {}; {MAX_APPLIED} is the most", body.documents.len());
        return Err(Fault::invalid("documents", problem));
    }
    let prune = match body.prune.as_deref() {
        Some("") => {
            let problem = "must have a label: it says what is to be deleted";
            return Err(Fault::invalid("prune", problem));
        }
        Some(text) => {
            let selector = Selector::parse(text);
            Some(selector.map_err(|err| Fault::invalid("prune", err.to_string()))?)
        }
        None => None,
    };
    let (mut wishes, mut places, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for (at, document) in body.documents.iter().enumerate() {
        match Manifest::read(document) {
            Ok(manifest) => {
                wrong.extend(foreign(&cx, &caller, &manifest).map(|one| (Some(at), one)));
                places.push(at);
                wishes.push(wish(manifest));
            }
            Err(mistakes) => wrong.extend(mistakes.into_iter().map(|one| (Some(at), one))),
        }
    }
    // Readable documents are checked in any case, so that all mistakes are reported together.
    let dry = body.dry_run || !wrong.is_empty();
    let place = |at: usize| places.get(at).copied();
    match applied(&cx, caller, wishes, prune, dry).await? {
        Ok(AllApplied { applied, pruned }) if wrong.is_empty() => Ok(json(&ResourcesApplied {
            results: applied.into_iter().map(|one| shown(&cx, one)).collect(),
            pruned: pruned.into_iter().map(|record| resource(&cx, record)).collect(),
        })),
        Err(RecordError::Invalid(more)) => {
            wrong.extend(more.into_iter().map(|(at, one)| (place(at), one)));
            wrong.sort_by_key(|(at, _)| *at);
            Err(mistakes(wrong))
        }
        Err(err) if wrong.is_empty() => Err(fault(err, place)),
        Ok(_) | Err(_) => Err(mistakes(wrong)),
    }
}

/// Deletes a resource, and by default what it owns.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/resources/{kind}/{name}", tag = "resources",
    params(("kind" = String, Path), ("name" = String, Path), ResourceDeleteQuery),
    responses(
        (status = 200, body = ResourceDeleted),
        (status = 404, description = "There is no such kind or resource"),
        (status = 409, description = "It is at another version"),
    )
))]
pub(crate) async fn resource_delete(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    OneOf(info, name): OneOf,
    mut query: Query,
) -> Result<Response, Fault> {
    let wanted = "background, foreground or orphan";
    let cascade = query.take_parsed("cascade", wanted, |text| match text {
        "background" => Some(CascadeWish::Background),
        "foreground" => Some(CascadeWish::Foreground),
        "orphan" => Some(CascadeWish::Orphan),
        _ => None,
    })?;
    let was = query.take_parsed("resource_version", "a resource version", number)?;
    query.finish()?;
    let cascade = cascade.unwrap_or(CascadeWish::Background);
    let engine = cx.engine.clone();
    let work = async move { Ok(engine.record_delete(&caller, info, &name, cascade, was).await) };
    let done = cx.detached(work).await?.map_err(|err| fault(err, |_| None))?;
    Ok(json(&ResourceDeleted { gone: done == RecordDeleted::Gone }))
}

/// The resources of a kind as they change, as server-sent events.
///
/// Without `resource_version` and `Last-Event-ID` it begins with what is there, each as `put`, and
/// says `snapshot`; then `put` and `deleted` follow as they happen.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/resources/{kind}/watch", tag = "resources",
    params(
        ("kind" = String, Path),
        ("selector" = Option<String>, Query, description = "A label selector"),
        ("resource_version" = Option<String>, Query, description = "Changes after this one"),
        ("Last-Event-ID" = Option<String>, Header),
    ),
    responses(
        (status = 200, description = "Events `put` (a Resource), `deleted` (a ResourceGone), \
            `snapshot` (a ResourceSnapshot), `error`", content_type = "text/event-stream", body = ResourceSnapshot),
        (status = 404, description = "There is no such kind"),
        (status = 410, description = "Changes after that version are no longer kept: begin again without it"),
    )
))]
pub(crate) async fn resource_watch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    proof: Proof,
    headers: HeaderMap,
    OfKind(info): OfKind,
    mut query: Query,
) -> Result<Response, Fault> {
    let selector = selector_of(&mut query)?;
    let version = query.take("resource_version");
    query.finish()?;
    let after = resume_after(&headers, version.as_deref(), number::<u64>)?;
    if info.name == SESSION.name {
        // A refusal is reported by the status, not in the stream.
        let one = Page { after: None, limit: 1 };
        cx.engine.session_list(&caller, SessionQuery::default(), one).await?;
        let source = sessions::SessionSource::new(selector, after);
        return Ok(sse::Stream::new(cx, proof, source).into_response());
    }
    if info.changed_by.is_some() {
        if after.is_some() {
            let text = format!("changes of {} are not kept", info.plural);
            let hint = "watch again without a resource version";
            return Err(Fault::new(ProblemKind::Gone, text).with_hint(hint));
        }
        let none = Selector::default();
        let one = Wish { selector: &none, owner: None, after: None, limit: 1 };
        shown::list(&cx, &caller, info, one).await?;
        let source = ShownSource::new(info, selector);
        return Ok(sse::Stream::new(cx, proof, source).into_response());
    }
    match after {
        // A refusal is reported by the status, not in the stream.
        Some(after) => drop(
            cx.engine
                .record_changes(&caller, info, after, 1)
                .await
                .map_err(|err| fault(err, |_| None))?,
        ),
        None => drop(
            cx.engine
                .record_list(&caller, info, RecordFilter { limit: 1, ..Default::default() })
                .await?,
        ),
    }
    let source = RecordSource::new(info, selector, after);
    Ok(sse::Stream::new(cx, proof, source).into_response())
}

/// `{kind}` of a path: any name or alias of a kind.
pub(crate) struct OfKind(&'static KindInfo);

/// `{kind}/{name}`.
pub(crate) struct OneOf(&'static KindInfo, Name);

impl<S: Send + Sync> FromRequestParts<S> for OfKind {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        // Also for a path with a name.
        let path = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let Path(parts) = path.map_err(|_| Fault::not_found("Kind"))?;
        known(parts.get("kind").map_or("", String::as_str)).map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for OneOf {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((kind, name)) = path.map_err(|_| Fault::not_found("Resource"))?;
        let info = known(&kind)?;
        if let Some(by) = info.changed_by {
            let text = format!("{} is only shown here", info.name);
            return Err(
                Fault::new(ProblemKind::Conflict, text).with_hint(format!("change it with {by}"))
            );
        }
        Ok(Self(info, named(info, &name)?))
    }
}

/// An invalid name is the name of no object.
fn named(info: &KindInfo, name: &str) -> Result<Name, Fault> {
    Name::parse(name).map_err(|err| {
        let shown: String = name.chars().take(60).collect();
        let text = format!("there is no {}/{shown}: a name {err}", info.name);
        Fault::new(ProblemKind::NotFound, text)
    })
}

fn known(word: &str) -> Result<&'static KindInfo, Fault> {
    kind_of(word).map_err(|unknown| {
        Fault::new(ProblemKind::NotFound, unknown.to_string())
            .with_hint("`overmind api-resources` lists all kinds")
    })
}

pub(crate) fn selector_of(query: &mut Query) -> Result<Selector, Fault> {
    let text = query.take("selector").unwrap_or_default();
    Selector::parse(&text).map_err(|err| Fault::invalid("selector", err.to_string()))
}

fn wish(manifest: Manifest) -> RecordWish {
    let Manifest { info, name, labels, annotations, finalizers, owner, .. } = manifest;
    let (resource_version, spec) = (manifest.resource_version, manifest.spec);
    RecordWish { info, name, labels, annotations, spec, finalizers, owner, was: resource_version }
}

/// Why a document is not for the request's colony.
fn foreign(cx: &Cx, by: &Caller, manifest: &Manifest) -> Option<record::FieldError> {
    let (said, own) = (manifest.colony.as_ref()?, cx.engine.colony_name(by.colony));
    if *said == own || is_of_swarm(manifest.info) {
        return None;
    }
    let problem = format!("is `{said}`, and the request is for the colony `{own}`");
    let error = record::FieldError::new("metadata.colony", problem);
    Some(error.hint(format!("apply it with `-n {said}`, or leave the field out")))
}

fn shown(cx: &Cx, applied: Applied) -> ResourceApplied {
    let outcome = applied.outcome.as_str().to_owned();
    ResourceApplied { outcome, resource: resource(cx, applied.record) }
}

async fn applied(
    cx: &Cx,
    caller: Caller,
    wishes: Vec<RecordWish>,
    prune: Option<Selector>,
    dry: bool,
) -> Result<Result<AllApplied, RecordError>, Fault> {
    let engine = cx.engine.clone();
    let work =
        async move { Ok(engine.record_apply_all(&caller, wishes, prune.as_ref(), dry).await) };
    cx.detached(work).await
}

fn mistakes(wrong: impl IntoIterator<Item = (Option<usize>, record::FieldError)>) -> Fault {
    let all: Vec<FieldError> = wrong
        .into_iter()
        .map(|(at, record::FieldError { path, problem, hint })| {
            let field = match at {
                Some(at) => format!("documents[{at}].{path}"),
                None => path,
            };
            let message = match hint {
                Some(hint) => format!("{problem}; {hint}"),
                None => problem,
            };
            FieldError::new(field, message)
        })
        .collect();
    let left = all.len().saturating_sub(MAX_MISTAKES);
    let mut all = all;
    all.truncate(MAX_MISTAKES);
    if left > 0 {
        all.push(FieldError::new("documents", format!("have {left} mistakes more")));
    }
    Problem::invalid(all).into()
}

/// `place`: which document a wish is, where there are several.
fn fault(err: RecordError, place: impl Fn(usize) -> Option<usize>) -> Fault {
    match err {
        RecordError::Invalid(wrong) => {
            mistakes(wrong.into_iter().map(|(at, one)| (place(at), one)))
        }
        RecordError::Changed { .. } => Fault::new(ProblemKind::Conflict, err.to_string())
            .with_hint("read it again and repeat the change"),
        RecordError::Contended(_) => Fault::new(ProblemKind::Conflict, err.to_string()),
        RecordError::Changes(_) => Fault::new(ProblemKind::Gone, err.to_string())
            .with_hint("watch again without a resource version"),
        RecordError::Engine(err) => err.into(),
    }
}
