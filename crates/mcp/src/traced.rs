//! Sends the span of a call also as a header, for servers over HTTP.
//!
//! Every server gets it in `_meta.traceparent`, as the protocol defines. Software around a server
//! over HTTP (its framework, a proxy) reads the header `traceparent`, so both have the same value.
//!
//! Events with half a character, which strict JSON parsers refuse, are repaired here.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use futures_util::stream::{BoxStream, StreamExt as _};
use overmind_core::json;
use overmind_core::trace::TRACEPARENT;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, GetMeta, JsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::Sse;

/// An HTTP client that adds the span of a tool call.
#[derive(Clone, Debug)]
pub(crate) struct Traced(pub(crate) reqwest::Client);

type Failed = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

/// The headers of a message, with its span.
fn with_span(mut headers: Headers, message: &ClientJsonRpcMessage) -> Headers {
    if let JsonRpcMessage::Request(request) = message
        && let ClientRequest::CallToolRequest(call) = &request.request
    {
        let given = call.params.meta.as_ref().and_then(|meta| meta.get(TRACEPARENT));
        let span = given.or_else(|| request.request.get_meta().get(TRACEPARENT));
        let value = span.and_then(|span| HeaderValue::from_str(span.as_str()?).ok());
        headers.extend(value.map(|value| (HeaderName::from_static(TRACEPARENT), value)));
    }
    headers
}

fn mended(events: Events) -> Events {
    let mend = |mut event: Sse| {
        if let Some(data) = &mut event.data
            && let Cow::Owned(mended) = json::mended(data.as_bytes())
        {
            *data = String::from_utf8_lossy(&mended).into_owned();
        }
        event
    };
    events.map(move |event| event.map(mend)).boxed()
}

fn mended_post(answer: StreamableHttpPostResponse) -> StreamableHttpPostResponse {
    match answer {
        StreamableHttpPostResponse::Sse(events, session) => {
            StreamableHttpPostResponse::Sse(mended(events), session)
        }
        other => other,
    }
}

impl StreamableHttpClient for Traced {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let headers = with_span(headers, &message);
        self.0.post_message(uri, message, session, auth, headers).await.map(mended_post)
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
        most: usize,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let headers = with_span(headers, &message);
        let post =
            self.0.post_message_with_max_sse_event_size(uri, message, session, auth, headers, most);
        post.await.map(mended_post)
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<(), Failed> {
        self.0.delete_session(uri, session, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<Events, Failed> {
        self.0.get_stream(uri, session, last, auth, headers).await.map(mended)
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        auth: Option<String>,
        headers: Headers,
        most: usize,
    ) -> Result<Events, Failed> {
        let get =
            self.0.get_stream_with_max_sse_event_size(uri, session, last, auth, headers, most);
        get.await.map(mended)
    }
}
