//! `/api/runs/{id}/artifacts`: files that a run leaves behind.
//!
//! The content and the type of an artifact come from its author. It is never shown under this
//! server's name: headers tell browsers to save it as a file, not to guess its type, and to run
//! nothing in it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
#[cfg(feature = "openapi")]
use overmind_api::ListQuery;
use overmind_api::{Artifact, ArtifactSaved, MAX_ARTIFACT, Okay, ProblemKind};
use overmind_core::artifact::ArtifactContent;
use overmind_core::vault::resolve::percent;
use overmind_engine::{ArtifactDraft, ArtifactOpened};

use crate::bodies::{Unread, Whole};
use crate::cx::Cx;
use crate::extract::{ArtifactPath, Query, RunPath, Who, sender_of};
use crate::fault::Fault;
use crate::host::single;
use crate::page::{Window, json, list};

/// Bytes read at a time.
const PIECE: usize = 256 << 10;

/// Lists a run's artifacts, those saved last first.
///
/// Another run's token is shown those that its agent may read in the shared state, as
/// `artifacts/AGENT/NAME`.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/artifacts", tag = "artifacts",
    params(("id" = String, Path), ListQuery),
    responses(
        (status = 200, body = [Artifact]),
        (status = 403, description = "`Agent X cannot read artifacts/Y/`"),
        (status = 404, description = "`Run not found`"),
    )
))]
pub(crate) async fn artifact_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    uri: Uri,
    mut query: Query,
) -> Result<Response, Fault> {
    let window = Window::<u64>::take(&mut query)?;
    query.finish()?;
    let limit = window.limit;
    let rows = cx.engine.artifact_list(&caller, id, window.into()).await?;
    Ok(list(&uri, limit, rows, |row| row.place.to_string(), Artifact::from))
}

/// Downloads an artifact.
///
/// One `Range` is served; `If-None-Match` with the `ETag` answers 304. The content is always an
/// attachment, whatever its type.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/artifacts/{name}", tag = "artifacts",
    params(("id" = String, Path), ("name" = String, Path, description = "With its slashes"),
        ("Range" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)),
    responses(
        (status = 200, description = "The content", content_type = "application/octet-stream", body = String),
        (status = 206, description = "The part that `Range` asked for", content_type = "application/octet-stream", body = String),
        (status = 304, description = "It is still the one of `If-None-Match`"),
        (status = 403, description = "`Agent X cannot read artifacts/Y/NAME`"),
        (status = 404, description = "`Run not found` or `Artifact not found: NAME`"),
        (status = 416, description = "There is no such part"),
        (status = 422, description = "The name is invalid"),
    )
))]
pub(crate) async fn artifact_fetch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    ArtifactPath(name): ArtifactPath,
    headers: HeaderMap,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    let opened = cx.engine.artifact_open(&caller, id, &name).await?;
    answer(&opened, &headers)
}

fn answer(opened: &ArtifactOpened, asked: &HeaderMap) -> Result<Response, Fault> {
    let ArtifactOpened { artifact, content } = opened;
    let bytes = artifact.bytes;
    let tag = format!("\"{}\"", artifact.blake3());
    let known = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let same = |known: &str| known.trim().trim_start_matches("W/") == tag || known.trim() == "*";
    if known.is_some_and(|known| known.split(',').any(same)) {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        set(&mut response, header::ETAG, &tag);
        return Ok(response);
    }
    // A part of another content would be no part of what the client has.
    let if_range = asked.get(header::IF_RANGE).and_then(|value| value.to_str().ok());
    let range = match asked.get(header::RANGE).and_then(|value| value.to_str().ok()) {
        Some(range) if if_range.is_none_or(|wanted| wanted.trim() == tag) => part_of(range, bytes),
        Some(_) | None => Part::Whole,
    };
    let (status, from, to) = match range {
        Part::Whole => (StatusCode::OK, 0, bytes),
        Part::Of(part) => (StatusCode::PARTIAL_CONTENT, *part.start(), *part.end() + 1),
        Part::Nowhere => {
            let mut response = StatusCode::RANGE_NOT_SATISFIABLE.into_response();
            set(&mut response, header::CONTENT_RANGE, &format!("bytes */{bytes}"));
            return Ok(response);
        }
    };
    let mut response = Body::from_stream(pieces(Arc::clone(content), from, to)).into_response();
    *response.status_mut() = status;
    if status == StatusCode::PARTIAL_CONTENT {
        let part = format!("bytes {from}-{}/{bytes}", to.saturating_sub(1));
        set(&mut response, header::CONTENT_RANGE, &part);
    }
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(to - from));
    set(&mut response, header::CONTENT_TYPE, &artifact.media_type);
    set(&mut response, header::ETAG, &tag);
    set(&mut response, header::ACCEPT_RANGES, "bytes");
    let file = percent(artifact.name.file_name());
    let kept = format!("attachment; filename*=UTF-8''{file}");
    set(&mut response, header::CONTENT_DISPOSITION, &kept);
    set(&mut response, header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox");
    let policy = HeaderName::from_static("cross-origin-resource-policy");
    set(&mut response, policy, "same-origin");
    Ok(response)
}

fn set(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Which bytes are asked for.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Whole,
    Of(RangeInclusive<u64>),
    Nowhere,
}

/// Reads `bytes=0-99`, `bytes=100-` and `bytes=-100`. What is anything else, several parts among
/// it, asks for the whole.
fn part_of(range: &str, bytes: u64) -> Part {
    let Some((first, last)) = range.trim().strip_prefix("bytes=").and_then(|r| r.split_once('-'))
    else {
        return Part::Whole;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let part = match (first.trim(), last.trim()) {
        ("", last) => match number(last) {
            Some(0) => return Part::Nowhere,
            Some(last) => (bytes.saturating_sub(last), bytes.saturating_sub(1)),
            None => return Part::Whole,
        },
        (first, "") => match number(first) {
            Some(first) => (first, bytes.saturating_sub(1)),
            None => return Part::Whole,
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => {
                (first, last.min(bytes.saturating_sub(1)))
            }
            _ => return Part::Whole,
        },
    };
    if part.0 >= bytes { Part::Nowhere } else { Part::Of(part.0..=part.1) }
}

/// The bytes from `from` to before `to`, a piece at a time.
fn pieces(
    content: Arc<dyn ArtifactContent>,
    from: u64,
    to: u64,
) -> impl futures_util::Stream<Item = Result<Bytes, std::io::Error>> + Send {
    stream::unfold((content, from), move |(content, at)| async move {
        let left = to.saturating_sub(at);
        if left == 0 {
            return None;
        }
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        match content.read(at, most).await {
            Ok(piece) if piece.is_empty() => {
                // The length has been promised: the connection ends here.
                Some((Err(std::io::ErrorKind::UnexpectedEof.into()), (content, to)))
            }
            Ok(piece) => {
                let next = at + piece.len() as u64;
                Some((Ok(Bytes::from(piece)), (content, next)))
            }
            Err(err) => {
                tracing::error!(error = %err, "an artifact cannot be read on");
                Some((Err(std::io::Error::other(err.to_string())), (content, to)))
            }
        }
    })
}

/// Saves an artifact: the body is its content, at most 16 MiB.
///
/// Saving the same name again creates a new version and removes the earlier content. Secrets in a text are
/// masked before it is kept; what is no text and holds one is refused. An operator may, and the run
/// itself.
#[cfg_attr(feature = "openapi", utoipa::path(
    put, path = "/api/runs/{id}/artifacts/{name}", tag = "artifacts",
    params(("id" = String, Path), ("name" = String, Path, description = "With its slashes"),
        ("Content-Type" = Option<String>, Header, description = "Guessed without one")),
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = ArtifactSaved),
        (status = 404, description = "`Run not found`"),
        (status = 409, description = "The run has no room left, or has a name that differs only in case"),
        (status = 413, description = "It is larger than 16 MiB"),
        (status = 422, description = "The name, the type or the content is wrong"),
    )
))]
pub(crate) async fn artifact_put(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    ArtifactPath(name): ArtifactPath,
    query: Query,
    request: Request,
) -> Result<Response, Fault> {
    query.finish()?;
    // Before the body is read: a caller who may save nothing must not fill the memory either.
    cx.engine.artifact_may_save(&caller, id).await.map_err(|err| Fault::from(err).closing())?;
    let media_type = media_type(request.headers())?;
    let sender = sender_of(&request);
    let (parts, body) = request.into_parts();
    let within = cx.config.body_timeout;
    let read = cx.bodies.read(&parts.headers, body, sender, MAX_ARTIFACT, within).await;
    let Whole { bytes, lease } = read.map_err(|why| match why {
        Unread::TooLarge { max } => {
            let text = format!("the content is larger than {max} bytes, the most of one artifact");
            Fault::new(ProblemKind::TooLarge, text).closing()
        }
        other => other.into(),
    })?;
    let draft = ArtifactDraft { name, content: bytes.into(), media_type };
    let engine = cx.engine.clone();
    let save = async move {
        let saved = engine.artifact_save(&caller, id, draft).await;
        drop(lease);
        saved
    };
    let saved = cx.detached(save).await?;
    let (shared, not_shared) = match saved.shared {
        Ok(key) => (Some(key.to_string()), None),
        Err(why) => (None, Some(why)),
    };
    Ok(json(&ArtifactSaved { artifact: saved.artifact.into(), shared, not_shared }))
}

/// A default content type of clients counts as none.
fn media_type(headers: &HeaderMap) -> Result<Option<String>, Fault> {
    let said = single(headers, &header::CONTENT_TYPE)?;
    let said = said.filter(|said| !said.starts_with("application/x-www-form-urlencoded"));
    Ok(said.filter(|said| !said.trim().is_empty()).map(str::to_owned))
}

/// Deletes an artifact, and what the shared state tells of it.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/runs/{id}/artifacts/{name}", tag = "artifacts",
    params(("id" = String, Path), ("name" = String, Path, description = "With its slashes")),
    responses(
        (status = 200, body = Okay),
        (status = 403, description = "The caller is no operator"),
        (status = 404, description = "`Run not found` or `Artifact not found: NAME`"),
    )
))]
pub(crate) async fn artifact_delete(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    ArtifactPath(name): ArtifactPath,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    let engine = cx.engine.clone();
    cx.detached(async move { engine.artifact_delete(&caller, id, &name).await }).await?;
    Ok(json(&Okay { ok: true }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_is_a_part_of_the_content_or_all_of_it() {
        for (range, part) in [
            ("bytes=0-3", Part::Of(0..=3)),
            ("bytes=4-", Part::Of(4..=9)),
            ("bytes=-3", Part::Of(7..=9)),
            ("bytes=-99", Part::Of(0..=9)),
            ("bytes=2-99", Part::Of(2..=9)),
            ("bytes=9-9", Part::Of(9..=9)),
            ("bytes=10-", Part::Nowhere),
            ("bytes=10-12", Part::Nowhere),
            ("bytes=-0", Part::Nowhere),
            ("bytes=3-2", Part::Whole),
            ("bytes=0-1,4-5", Part::Whole),
            ("bytes=a-b", Part::Whole),
            ("lines=0-1", Part::Whole),
            ("bytes=-", Part::Whole),
        ] {
            assert_eq!(part_of(range, 10), part, "{range}");
        }
        assert_eq!(part_of("bytes=0-", 0), Part::Nowhere);
        assert_eq!(part_of("bytes=-5", 0), Part::Nowhere);
    }

    proptest! {
        #[test]
        fn no_range_exceeds_the_content(
            range in "(bytes=)?[0-9]{0,20}-?[0-9]{0,20}", bytes in 0..50_u64,
        ) {
            if let Part::Of(part) = part_of(&range, bytes) {
                prop_assert!(part.start() <= part.end() && *part.end() < bytes);
            }
        }
    }
}
