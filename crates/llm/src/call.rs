//! One call to one provider: send, stream, and try again while that can help.

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;
use overmind_core::budget::estimate;
use overmind_core::json;
use overmind_core::model::{DeltaSink, Message, ModelCall, ModelDelta, ModelFailure, ModelReply};
use overmind_core::trace::TRACEPARENT;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::config::{Format, Secret};
use crate::fail::{self, About, Fault, Said};
use crate::gateway::Gateway;
use crate::wire::{Broken, Call, Decoder, Deltas, Draft, Heard, Omit, anthropic};
use crate::{prices, retry, sse};

/// Maximum number of bytes of one reply, streamed or whole.
const MAX_REPLY: usize = 64 * 1024 * 1024;
/// Maximum number of bytes of an error's body that are read; at most 4 KiB of them are kept.
const MAX_ERROR: usize = 64 * 1024;

/// Makes the call, with all its attempts, within the request's `total_timeout`.
pub(crate) async fn complete(
    gateway: &Gateway,
    call: &Call<'_>,
    sink: DeltaSink<'_>,
) -> Result<ModelReply, ModelFailure> {
    // The last failure outlives the attempts, so that a timeout can tell what went before.
    let mut last: Option<ModelFailure> = None;
    let total = call.request.total_timeout;
    let attempts = Box::pin(attempts(gateway, call, sink, &mut last));
    match timeout(total, attempts).await {
        Ok(result) => result,
        Err(_) => {
            let before = last
                .map_or_else(String::new, |failure| format!("; before that: {}", failure.message));
            Err(fail::failure(
                fail::TIMEOUT,
                true,
                format!(
                    "asking {} for model `{}`: no whole answer came within {} s{before}; raise the \
                     total timeout or try again",
                    call.provider.name,
                    call.model,
                    total.as_secs_f64(),
                ),
            ))
        }
    }
}

async fn attempts(
    gateway: &Gateway,
    call: &Call<'_>,
    sink: DeltaSink<'_>,
    last: &mut Option<ModelFailure>,
) -> Result<ModelReply, ModelFailure> {
    let started = tokio::time::Instant::now();
    let retry = gateway.config.retry;
    let mut omit = gateway.learned(call);
    let mut attempt = 1;
    loop {
        let body = call.body(&omit);
        let mut fault = match once(gateway, call, &body, sink).await {
            Ok(draft) => return Ok(reply(gateway, call, draft)),
            Err(fault) => fault,
        };
        if attempt >= retry.max_attempts {
            return Err(fault.failure);
        }
        if let Some(refused) = refused_parameter(call, &fault.failure, &body, &omit) {
            // Leaving it out is part of finding out how to speak to this model: no wait.
            tracing::info!(
                provider = call.provider.name,
                model = call.model,
                omitted = ?refused,
                "model refuses a parameter; asking without it"
            );
            omit.insert(refused);
            if refused != Omit::State || call.format == Format::OpenAiChat {
                gateway.learn(call, refused);
            }
        } else if fault.retry {
            let wait = fault.wait.unwrap_or_else(|| retry.backoff(attempt, seed(call)));
            let left = call.request.total_timeout.saturating_sub(started.elapsed());
            if wait >= left {
                fault.failure.message.push_str(&format!(
                    "; the next attempt would be in {} s and only {} s are left",
                    wait.as_secs_f64(),
                    left.as_secs()
                ));
                return Err(fault.failure);
            }
            tracing::info!(
                provider = call.provider.name,
                model = call.model,
                attempt,
                code = fault.failure.code,
                wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                "model call failed; trying again"
            );
            *last = Some(fail::redact(fault.failure.clone(), &gateway.secrets()));
            sleep(wait).await;
        } else {
            return Err(fault.failure);
        }
        attempt += 1;
        let failure = fail::redact(fault.failure, &gateway.secrets());
        let (why, code) = (failure.message, failure.code);
        sink(ModelDelta::Restarted { attempt, why, code });
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "socket time: no decision of the engine depends on it"
)]
pub(crate) async fn sleep(wait: Duration) {
    tokio::time::sleep(wait).await;
}

/// Differs between calls and stays the same for the same call.
fn seed(call: &Call<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    call.model.hash(&mut hasher);
    call.request.messages.len().hash(&mut hasher);
    match call.request.messages.last() {
        Some(Message::User { text } | Message::Assistant { text, .. }) => text.hash(&mut hasher),
        Some(Message::Tool { call_id, content, .. }) => (call_id, content).hash(&mut hasher),
        None => {}
    }
    hasher.finish()
}

/// The part of `body` that the provider refuses, if its answer names one.
fn refused_parameter(
    call: &Call<'_>,
    failure: &ModelFailure,
    body: &Map<String, Value>,
    omit: &BTreeSet<Omit>,
) -> Option<Omit> {
    if failure.code != fail::BAD_REQUEST || !matches!(failure.status, Some(400 | 422)) {
        return None;
    }
    let said = Said::of(failure.body.as_deref().unwrap_or_default());
    let blamed = said.param.unwrap_or(said.message).to_lowercase();
    let sent = |key: &str| body.contains_key(key);
    let inner = |key: &str, field: &str| body.get(key).is_some_and(|v| v.get(field).is_some());
    let has_state = call
        .request
        .messages
        .iter()
        .any(|message| matches!(message, Message::Assistant { provider_state: Some(_), .. }));
    let candidates: [(&str, Omit, bool); 15] = [
        ("temperature", Omit::Temperature, sent("temperature")),
        ("stream_options", Omit::StreamOptions, sent("stream_options")),
        (
            "max_completion_tokens",
            Omit::MaxTokensName,
            sent("max_tokens") && call.format == Format::OpenAiChat,
        ),
        ("max_completion_tokens", Omit::MaxTokensName, sent("max_completion_tokens")),
        ("summary", Omit::Summary, inner("reasoning", "summary")),
        ("display", Omit::Summary, inner("thinking", "display")),
        ("signature", Omit::State, has_state),
        ("thinking block", Omit::State, has_state),
        ("reasoning_content", Omit::State, has_state),
        ("encrypted", Omit::Include, sent("include")),
        ("encrypted", Omit::State, has_state),
        ("include", Omit::Include, sent("include")),
        (
            "tool_choice",
            Omit::ToolChoice,
            call.request.tool_choice != overmind_core::model::ToolChoice::Auto,
        ),
        (
            "effort",
            Omit::Effort,
            sent("reasoning_effort") || inner("reasoning", "effort") || sent("output_config"),
        ),
        ("thinking", Omit::Effort, inner("thinking", "budget_tokens") || sent("output_config")),
    ];
    candidates
        .into_iter()
        .find(|(word, what, sent)| *sent && blamed.contains(word) && !omit.contains(what))
        .map(|(_, what, _)| what)
}

/// Adds the headers of the call's trace, if the call is traced.
fn traced(call: &Call<'_>, mut headers: HeaderMap) -> HeaderMap {
    let parent = call.request.traceparent.map(|parent| HeaderValue::from_str(&parent.to_string()));
    if let Some(Ok(parent)) = parent {
        headers.insert(TRACEPARENT, parent);
    }
    headers
}

/// Makes one attempt.
async fn once(
    gateway: &Gateway,
    call: &Call<'_>,
    body: &Map<String, Value>,
    sink: DeltaSink<'_>,
) -> Result<Draft, Fault> {
    let url = call.provider.url(call.format).expect("the route has checked the URL");
    let host = match (url.host_str().unwrap_or_default(), url.port()) {
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => host.to_owned(),
    };
    let about = About {
        provider: &call.provider.name,
        host: &host,
        model: call.model,
        key_hint: call.provider.key_hint.as_deref().unwrap_or("check the key of this provider"),
    };
    let client = gateway.client().map_err(|why| {
        fail::of_network(about, "could not be asked: there is no HTTP client", why)
    })?;
    let request = client
        .post(url)
        .headers(traced(call, headers(call).map_err(|why| fail::of_config(about, why))?))
        .body(serde_json::to_vec(body).expect("a map with text keys is JSON"));
    let idle = idle_timeout(call);
    let lost = |doing: &str, err: reqwest::Error| {
        fail::of_loss(about, doing, &fail::chain(&err.without_url()))
    };
    let response = match timeout(idle, request.send()).await {
        Err(_) => return Err(fail::of_silence(about, idle)),
        Ok(Err(err)) if err.is_connect() => {
            return Err(fail::of_network(
                about,
                "could not be reached",
                &fail::unconnected(&err.without_url()),
            ));
        }
        Ok(Err(err)) => return Err(lost("closed the connection before it answered", err)),
        Ok(Ok(response)) => response,
    };
    let status = response.status().as_u16();
    let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
    if status != 200 {
        let wait = retry::asked_wait(header);
        let never = header("x-should-retry").is_some_and(|text| text == "false");
        let body = error_body(response, idle).await;
        let mut fault = fail::of_status(about, status, &body, wait);
        fault.retry &= !never;
        return Err(fault);
    }
    let kind = header("content-type").unwrap_or_default().to_ascii_lowercase();
    if kind.starts_with("text/html") {
        let body = error_body(response, idle).await;
        return Err(fail::of_nonsense(about, "it is a web page", Some(body)));
    }
    let mut decoder = Decoder::new(call.format);
    let mut deltas = Deltas::new(&call.names);
    let mut sink = |heard| deltas.delta(heard).into_iter().for_each(sink);
    let result = if kind.starts_with("application/json") {
        whole(response, idle, &mut decoder, &mut sink).await
    } else {
        stream(response, idle, &mut decoder, &mut sink).await
    };
    let draft = result.and_then(|()| {
        let mut rest = Vec::new();
        let draft = decoder.finish(&mut rest).map_err(Stop::Broken)?;
        rest.into_iter().for_each(&mut sink);
        Ok(draft)
    });
    draft.map_err(|stop| match stop {
        Stop::Silent => fail::of_silence(about, idle),
        Stop::Lost(err) => lost("lost the connection in the middle of the reply", err),
        Stop::TooLarge => fail::of_nonsense(about, "it is too large", None),
        Stop::Broken(Broken::Said { said, raw }) => fail::of_event(about, &said, raw),
        Stop::Broken(Broken::Nonsense(why)) => {
            let why = if kind.starts_with("text/event-stream") {
                why
            } else {
                format!("{why} (content type `{kind}`)")
            };
            fail::of_nonsense(about, &why, None)
        }
        Stop::Broken(Broken::Cut) => fail::of_loss(about, "ended the reply too early", ""),
    })
}

/// Why reading a reply stopped before its end.
enum Stop {
    Silent,
    Lost(reqwest::Error),
    TooLarge,
    Broken(Broken),
}

async fn chunk(response: &mut reqwest::Response, idle: Duration) -> Result<Option<Bytes>, Stop> {
    match timeout(idle, response.chunk()).await {
        Err(_) => Err(Stop::Silent),
        Ok(Err(err)) => Err(Stop::Lost(err)),
        Ok(Ok(chunk)) => Ok(chunk),
    }
}

async fn stream(
    mut response: reqwest::Response,
    idle: Duration,
    decoder: &mut Decoder,
    sink: &mut (dyn FnMut(Heard) + Send),
) -> Result<(), Stop> {
    let mut parser = sse::Parser::default();
    let mut events = Vec::new();
    let mut heard = Vec::new();
    let mut read = 0;
    while let Some(bytes) = chunk(&mut response, idle).await? {
        read += bytes.len();
        if read > MAX_REPLY {
            return Err(Stop::TooLarge);
        }
        parser.push(&bytes, &mut events).map_err(|sse::TooLarge| Stop::TooLarge)?;
        for event in events.drain(..) {
            decoder.event(&event, &mut heard).map_err(Stop::Broken)?;
            heard.drain(..).for_each(&mut *sink);
        }
        if decoder.is_finished() {
            // The end of the body is usually here already. Reading it gives the connection back
            // to the pool; a server that keeps it open is not waited for.
            let _ = timeout(Duration::from_millis(50), response.chunk()).await;
            return Ok(());
        }
    }
    // An incomplete event at the end means that the stream was cut, which the decoder detects
    // itself.
    if let Ok(Some(event)) = parser.finish()
        && decoder.event(&event, &mut heard).is_ok()
    {
        heard.drain(..).for_each(sink);
    }
    Ok(())
}

async fn whole(
    mut response: reqwest::Response,
    idle: Duration,
    decoder: &mut Decoder,
    sink: &mut (dyn FnMut(Heard) + Send),
) -> Result<(), Stop> {
    let mut body = Vec::new();
    while let Some(bytes) = chunk(&mut response, idle).await? {
        if body.len() + bytes.len() > MAX_REPLY {
            return Err(Stop::TooLarge);
        }
        body.extend_from_slice(&bytes);
    }
    let mut heard = Vec::new();
    decoder.whole(&body, &mut heard).map_err(Stop::Broken)?;
    heard.into_iter().for_each(sink);
    Ok(())
}

/// Reads the body of a refusal. If the body is cut off, the part that arrived is returned.
async fn error_body(mut response: reqwest::Response, idle: Duration) -> String {
    let mut body = Vec::new();
    while body.len() < MAX_ERROR
        && let Ok(Ok(Some(bytes))) = timeout(idle, response.chunk()).await
    {
        body.extend_from_slice(&bytes);
    }
    body.truncate(MAX_ERROR);
    String::from_utf8_lossy(&body).into_owned()
}

fn idle_timeout(call: &Call<'_>) -> Duration {
    let provider = call.provider;
    let own = if call.reasoning || call.request.reasoning_effort.is_some() {
        provider.reasoning_idle_timeout.or(provider.idle_timeout)
    } else {
        provider.idle_timeout
    };
    own.unwrap_or(call.request.idle_timeout)
}

fn headers(call: &Call<'_>) -> Result<HeaderMap, &'static str> {
    let secret = |secret: &Secret, before: &str| -> Result<HeaderValue, &'static str> {
        let mut value = HeaderValue::from_str(&format!("{before}{}", secret.expose()))
            .map_err(|_| "the key or a header holds characters that HTTP does not allow")?;
        value.set_sensitive(true);
        Ok(value)
    };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
    match call.format {
        Format::OpenAiResponses | Format::OpenAiChat => {
            if let Some(key) = &call.provider.key {
                headers.insert(AUTHORIZATION, secret(key, "Bearer ")?);
            }
        }
        Format::AnthropicMessages => {
            let version = HeaderValue::from_static(anthropic::VERSION);
            headers.insert(HeaderName::from_static("anthropic-version"), version);
            if let Some(key) = &call.provider.key {
                headers.insert(HeaderName::from_static("x-api-key"), secret(key, "")?);
            }
        }
    }
    for (name, value) in &call.provider.headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| "the name of a configured header is not a header's name")?;
        headers.insert(name, secret(value, "")?);
    }
    Ok(headers)
}

/// Turns the draft into our reply: real tool names, unique ids, parsed arguments and the price.
fn reply(gateway: &Gateway, call: &Call<'_>, draft: Draft) -> ModelReply {
    let mut taken: HashSet<String> = call
        .request
        .messages
        .iter()
        .flat_map(|message| match message {
            Message::Assistant { calls, .. } => calls.as_slice(),
            Message::User { .. } | Message::Tool { .. } => &[],
        })
        .map(|made| made.id.clone())
        .collect();
    let args_bytes = draft.calls.iter().map(|call| call.args.len()).sum::<usize>();
    let said = draft.text.len() + draft.reasoning.len() + args_bytes;
    let prompt = || estimate::of_request(call.request);
    let usage = draft.usage.settled(prompt, said as u64);
    let calls = draft.calls.into_iter().map(|made| ModelCall {
        id: unique(made.id, call.request.messages.len(), &mut taken),
        name: call.names.real(&made.name).to_owned(),
        args: args(made.args),
    });
    let calls = calls.collect();
    let model = if draft.model.is_empty() { call.model.to_owned() } else { draft.model };
    let provider = &call.provider.name;
    // The requested name decides, because the model in the answer may have an internal name.
    let price = prices::price(&gateway.config.prices, provider, call.model)
        .or_else(|| prices::price(&gateway.config.prices, provider, &model));
    ModelReply {
        text: draft.text,
        reasoning: draft.reasoning,
        calls,
        usage,
        stop: draft.stop,
        model,
        provider: format!("{provider}/{}", call.format.as_str()),
        cost_microusd: price.map(|price| price.cost(&usage)),
        provider_state: call.state(draft.pieces),
    }
}

/// Makes an id unique: some servers give no ids, or the same ones in every reply.
fn unique(id: String, n_messages: usize, taken: &mut HashSet<String>) -> String {
    let stem = if id.is_empty() { format!("call_{n_messages}") } else { id };
    let mut id = stem.clone();
    let mut n = 2;
    while !taken.insert(id.clone()) {
        id = format!("{stem}_{n}");
        n += 1;
    }
    id
}

/// Parses arguments: an object if the text is one or is empty; any other text stays text.
fn args(text: String) -> Value {
    if text.trim().is_empty() {
        return Value::Object(Map::new());
    }
    match json::read(text.as_bytes()) {
        Ok(object @ Value::Object(_)) => object,
        Ok(_) | Err(_) => Value::String(text),
    }
}
