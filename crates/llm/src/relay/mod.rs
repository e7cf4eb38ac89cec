//! Relays calls of other programs: implements [`overmind_core::relay::Upstreams`] with the same
//! providers and keys as our own calls.
//!
//! Start at [`Gateway::open`](Upstreams::open). It tries one hop after the other, with the retries
//! that can help, until one answers. From then on the caller gets the answer's bytes as they
//! arrive.

mod body;
mod carrier;
mod document;
mod lanes;
mod scan;
mod scripted;
mod tape;
mod upstream;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use memchr::memmem;
use overmind_core::Fut;
use overmind_core::json;
use overmind_core::model::Usage;
use overmind_core::relay::{
    Answer, Call, CallError, Dialect, Ending, Endpoint, Hop, Offered, Refusal, RefusalKind,
    Upstreams, Worst, head,
};
use serde_json::Value;

use self::body::{Body, Shape, Swallow};
pub(crate) use self::lanes::Lanes;
use self::scan::Meter;
pub(crate) use self::tape::{Player, Recorder};
use self::upstream::AnswerBody;
pub(crate) use self::upstream::{POOL_IDLE, POOL_SIZE, Upstream};
use crate::config::{Format, Now, Provider, Rest, Secret};
use crate::gateway::{Gateway, SHORTEST_KEY};
use crate::route::{Route, format_named, routed};
use crate::translate::{self, Back, Stream};
use crate::wire::anthropic;
use crate::{fail, prices, retry, sse};

/// The provider name of a hop that is a cassette.
const SCRIPTED: &str = "scripted";
/// The provider name of every hop while a tape is played.
const TAPE: &str = "tape";
/// Maximum number of bytes of an error that are read before it is passed on.
const MAX_ERROR: usize = 1 << 20;
/// Maximum number of bytes of an answer that is translated.
pub(crate) const MAX_TRANSLATED: usize = 64 << 20;
/// If a provider asks for a longer wait, the caller must wait and retry itself.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// The header of an answer that names the tools that its provider did not get.
const LEFT_OUT: HeaderName = HeaderName::from_static("x-overmind-tools-left-out");

/// How a request was changed.
enum Put {
    AsItIs,
    /// The request asks for usage.
    WithUsage,
    Translated(Box<Back>),
}

/// Why one attempt has no answer to pass on.
enum Miss {
    /// The call is not allowed, or there was no answer.
    Refused { refusal: Refusal, again: bool },
    /// The provider answered with an error that another attempt or hop may avoid.
    Failed { answer: Answer, again: bool, wait: Option<Duration> },
}

impl Upstreams for Gateway {
    fn plan(&self, endpoint: Endpoint, model: &str) -> Result<Vec<Hop>, Refusal> {
        let name = model.trim();
        if self.player.is_some() {
            return Ok(vec![Hop { provider: TAPE.to_owned(), endpoint, model: name.to_owned() }]);
        }
        let Some(chain) = self.config.aliases.get(name) else {
            return Ok(vec![self.hop(endpoint, name)?]);
        };
        let mut hops = Vec::with_capacity(chain.len());
        let mut first = None;
        for name in chain {
            match self.hop(endpoint, name) {
                Ok(hop) => hops.push(hop),
                Err(refusal) => drop(first.get_or_insert(refusal)),
            }
        }
        match first {
            Some(refusal) if hops.is_empty() => Err(refusal),
            _ if hops.is_empty() => {
                let text = format!("`{name}` names no model, because [aliases.{name}] is empty");
                Err(Refusal::new(RefusalKind::NotFound, text))
            }
            _ => Ok(hops),
        }
    }

    fn cost(&self, hop: &Hop, usage: &Usage) -> Option<u64> {
        if matches!(hop.provider.as_str(), SCRIPTED | TAPE) {
            return Some(0);
        }
        let price = prices::price(&self.config.prices, &hop.provider, &hop.model)?;
        Some(price.cost(usage))
    }

    fn worst(&self, hop: &Hop, usage: &Usage) -> Worst {
        if matches!(hop.provider.as_str(), SCRIPTED | TAPE) {
            return Worst::Costs(0);
        }
        match prices::price(&self.config.prices, &hop.provider, &hop.model) {
            None => Worst::Unknown,
            Some(price) => Worst::Costs(price.worst(usage.input_tokens, usage.output_tokens)),
        }
    }

    fn open<'a>(&'a self, call: &'a Call, hops: &'a [Hop]) -> Fut<'a, Result<Answer, Refusal>> {
        Box::pin(async move {
            let answer = match &self.player {
                Some(player) => played(player, call)?,
                None => self.ask(call, hops).await?,
            };
            Ok(match &self.recorder {
                Some(recorder) => recorder.listen(call, answer),
                None => answer,
            })
        })
    }

    fn offered(&self, dialect: Dialect) -> Vec<Offered> {
        let aliases = self
            .config
            .aliases
            .keys()
            .map(|name| Offered { name: name.clone(), provider: "overmind".to_owned() });
        let speaks = |provider: &&Provider| {
            ready(provider)
                && (dialect == Dialect::OpenAi
                    || provider.speaks.contains(&Format::AnthropicMessages)
                    || provider.speaks.contains(&Format::OpenAiChat))
        };
        let providers = self.config.providers_now();
        let listed = providers.iter().filter(speaks).flat_map(|provider| {
            let whole = provider.models.iter().filter(|name| !name.ends_with('*'));
            let priced = prices::of_provider(&provider.name).map(str::to_owned);
            whole
                .cloned()
                .chain(priced)
                .map(|name| Offered { name, provider: provider.name.clone() })
        });
        let cassettes = self.config.cassettes.keys().map(|name| Offered {
            name: format!("{SCRIPTED}:{name}"),
            provider: SCRIPTED.to_owned(),
        });
        aliases.chain(listed).chain(cassettes).collect()
    }

    fn is_ready(&self, dialect: Dialect) -> bool {
        if self.player.is_some() {
            return true;
        }
        let of_dialect = |provider: &&Provider| match dialect {
            Dialect::OpenAi => {
                provider.name == "openai"
                    || (provider.rest == Rest::TakeAll
                        && provider.speaks.contains(&Format::OpenAiChat))
            }
            Dialect::Anthropic => {
                provider.name == "anthropic"
                    || (provider.rest == Rest::TakeAll
                        && provider.speaks.contains(&Format::AnthropicMessages))
            }
        };
        self.config.providers_now().iter().filter(of_dialect).any(ready)
    }

    fn capture(&self) -> usize {
        self.config.relay.capture
    }
}

/// Takes an answer from a tape.
fn played(player: &Player, call: &Call) -> Result<Answer, Refusal> {
    let (status, headers, bytes, meter) = player.play(call)?;
    let body = Body {
        response: None,
        ready: VecDeque::from([bytes]),
        shape: Shape::AsItIs,
        meter,
        idle: Duration::ZERO,
        until: Instant::now(),
        provider: TAPE.to_owned(),
        _place: None,
    };
    Ok(Answer { hop: 0, status, headers, body: Box::new(body) })
}

fn ready(provider: &Provider) -> bool {
    provider.key.is_some() || provider.key_hint.is_none()
}

/// The endpoint of a provider that speaks `format`.
fn endpoint_of(format: Format) -> Endpoint {
    match format {
        Format::OpenAiResponses => Endpoint::Responses,
        Format::OpenAiChat => Endpoint::Chat,
        Format::AnthropicMessages => Endpoint::Messages,
    }
}

/// The format of an endpoint.
pub(crate) fn format_of(endpoint: Endpoint) -> Format {
    match endpoint {
        Endpoint::Responses => Format::OpenAiResponses,
        Endpoint::Chat | Endpoint::Embeddings => Format::OpenAiChat,
        Endpoint::Messages | Endpoint::CountTokens => Format::AnthropicMessages,
    }
}

impl Gateway {
    /// The hop for a name that is no alias.
    fn hop(&self, endpoint: Endpoint, name: &str) -> Result<Hop, Refusal> {
        let providers = self.config.providers_now();
        let sound = |provider: &Provider, format| {
            self.target(&provider.name, endpoint_of(format)).map(drop).map_err(str::to_owned)
        };
        let found = routed(&providers, name, &sound).map_err(|failure| {
            Refusal::new(RefusalKind::NotFound, fail::redact(failure, &self.secrets()).message)
        })?;
        let (provider, model) = match found {
            Route::Cassette { .. } => {
                return Ok(Hop { provider: SCRIPTED.to_owned(), endpoint, model: name.to_owned() });
            }
            Route::Http { provider, model, .. } => (provider, model),
        };
        let speaks = |format| provider.speaks.contains(&format);
        let forced = name.split_once(':').and_then(|(head, _)| format_named(head));
        let as_asked = match endpoint {
            Endpoint::Chat => speaks(Format::OpenAiChat),
            Endpoint::Responses => speaks(Format::OpenAiResponses),
            Endpoint::Messages | Endpoint::CountTokens => speaks(Format::AnthropicMessages),
            Endpoint::Embeddings => speaks(Format::OpenAiChat) || speaks(Format::OpenAiResponses),
        };
        let there = match (forced, endpoint) {
            (Some(format), Endpoint::Chat | Endpoint::Responses | Endpoint::Messages) => {
                Some(endpoint_of(format))
            }
            _ if as_asked => Some(endpoint),
            (_, Endpoint::Embeddings | Endpoint::CountTokens) => None,
            _ if speaks(Format::OpenAiChat) => Some(Endpoint::Chat),
            _ if speaks(Format::AnthropicMessages) => Some(Endpoint::Messages),
            _ => None,
        };
        let there = there.filter(|there| translate::is_known(endpoint, *there));
        let Some(there) = there else {
            let text = format!(
                "provider {} does not have {} for model `{model}`, and it cannot be put into what it \
                 has",
                provider.name,
                endpoint.path()
            );
            return Err(Refusal::new(RefusalKind::NotFound, text));
        };
        Ok(Hop { provider: provider.name.clone(), endpoint: there, model: model.to_owned() })
    }

    async fn ask(&self, call: &Call, hops: &[Hop]) -> Result<Answer, Refusal> {
        let until = Instant::now() + self.config.relay.total;
        let awake = |hop: &&(usize, &Hop)| !self.lanes.is_resting(&hop.1.provider, &hop.1.model);
        let all: Vec<(usize, &Hop)> = hops.iter().enumerate().collect();
        let mut order: Vec<(usize, &Hop)> = all.iter().filter(awake).copied().collect();
        if order.is_empty() {
            // All of them are paused. They are tried anyway, because there is no better choice.
            order = all;
        }
        let mut last: Option<Result<Answer, Refusal>> = None;
        for (place, (at, hop)) in order.iter().enumerate() {
            let others = place + 1 < order.len();
            let mut attempt = 1;
            loop {
                match Box::pin(self.once(call, *at, hop, until)).await {
                    Ok(answer) => return Ok(answer),
                    Err(miss) => {
                        let (result, again, wait) = match miss {
                            Miss::Refused { refusal, again } => (Err(refusal), again, None),
                            Miss::Failed { answer, again, wait } => (Ok(answer), again, wait),
                        };
                        let more = again && !others && attempt < self.config.relay.attempts;
                        let pause = wait.unwrap_or_else(|| {
                            let seed = u64::try_from(call.body.len()).unwrap_or(0);
                            self.config.retry.backoff(attempt, seed).min(MAX_WAIT)
                        });
                        if more && pause <= MAX_WAIT {
                            attempt += 1;
                            crate::call::sleep(pause).await;
                            continue;
                        }
                        if hops.len() > 1 {
                            self.lanes.rest(&hop.provider, &hop.model, wait);
                        }
                        let why = match &result {
                            Ok(answer) => answer.status.to_string(),
                            Err(refusal) => refusal.message.clone(),
                        };
                        tracing::info!(
                            provider = hop.provider,
                            model = hop.model,
                            why,
                            others,
                            "a call could not be passed on"
                        );
                        // A provider's answer is more useful than our own error about another hop.
                        if result.is_ok() || !matches!(last, Some(Ok(_))) {
                            last = Some(result);
                        }
                        break;
                    }
                }
            }
        }
        last.unwrap_or_else(|| {
            Err(Refusal::new(RefusalKind::Internal, "no provider was available for the call"))
        })
    }

    /// Makes one attempt at one hop.
    async fn once(
        &self,
        call: &Call,
        at: usize,
        hop: &Hop,
        until: Instant,
    ) -> Result<Answer, Miss> {
        if hop.provider == SCRIPTED {
            return scripted::answer(self, call, at, hop)
                .await
                .map_err(|refusal| Miss::Refused { refusal, again: false });
        }
        let never = |refusal| Miss::Refused { refusal, again: false };
        let provider = self.config.providers.iter().find(|p| p.name == hop.provider);
        let provider = provider.ok_or_else(|| {
            never(Refusal::new(RefusalKind::Internal, "the call's provider is not there"))
        })?;
        let key = self.config.key_now(provider);
        if let Now::LookedUp(key) = &key {
            self.remember(key.clone());
        }
        let place = self.lanes.enter(&hop.provider).await.map_err(never)?;
        let translated = hop.endpoint != call.endpoint;
        let query = call.query.as_deref().filter(|query| !translated && !query.is_empty());
        let to = self
            .addressed(&hop.provider, hop.endpoint, query)
            .map_err(|why| never(Refusal::new(RefusalKind::Internal, why)))?;
        let mut put = Put::AsItIs;
        let body = if translated {
            let (body, mut back) =
                translate::request(call.endpoint, hop.endpoint, &call.body, &hop.model)
                    .map_err(|why| never(Refusal::bad_request(why.to_string())))?;
            back.created = call.at.as_micros() / 1_000_000;
            put = Put::Translated(Box::new(back));
            body
        } else if hop.endpoint == Endpoint::Chat
            && call.peek.stream
            && !call.peek.include_usage
            && self.takes_stream_options(hop)
        {
            put = Put::WithUsage;
            call.peek.with_usage(&call.body, &hop.model)
        } else {
            call.peek.with_model(&call.body, &hop.model)
        };
        let headers = headers(call, hop, provider, key.key(), translated)
            .map_err(|why| never(Refusal::new(RefusalKind::Internal, why)))?;
        call.sent.mark();
        let sending = self.upstream().post(&to, headers, body);
        let left = until.saturating_duration_since(Instant::now());
        let response = match tokio::time::timeout(self.config.relay.head.min(left), sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(err)) => {
                // The connection broke later: there is no answer, but the work may have been done
                // and billed. Only a request that never arrived is sent again.
                let again = err.is_connect;
                if !again && !err.is_sent_back {
                    call.sent.lose(at);
                }
                let why = match again {
                    true => {
                        let place = to.path().trim_end_matches(hop.endpoint.path());
                        let host = to.authority().map_or("", |authority| authority.as_str());
                        let at = format!("{host}{}", place.trim_end_matches('/'));
                        let scheme = to.scheme_str().unwrap_or("http");
                        format!("connect to {scheme}://{at}: {}", fail::unconnected(&*err.err))
                    }
                    false => fail::chain(&*err.err),
                };
                let text = format!("provider {} could not be asked: {why}", hop.provider);
                let refusal = Refusal::new(RefusalKind::Unreachable, text);
                return Err(Miss::Refused { refusal, again });
            }
            Err(_) => {
                call.sent.lose(at);
                let text = format!("provider {} did not answer in time", hop.provider);
                return Err(never(Refusal::new(RefusalKind::Silent, text)));
            }
        };
        let status = response.status().as_u16();
        if (300..400).contains(&status) {
            let text = format!(
                "provider {} answered with a redirection ({status}), which is not followed, lest the \
                 key goes elsewhere",
                hop.provider
            );
            return Err(never(Refusal::new(RefusalKind::Unreachable, text)));
        }
        let idle = provider.idle_timeout.unwrap_or(self.config.relay.idle);
        let body = Body {
            response: None,
            ready: VecDeque::new(),
            shape: Shape::AsItIs,
            meter: Meter::Blind(Box::default()),
            idle,
            until,
            provider: hop.provider.clone(),
            _place: place,
        };
        if status >= 400 {
            let injected = matches!(put, Put::WithUsage);
            return self.failed(call, at, hop, response, body, injected).await;
        }
        self.passed(call, at, hop, response, body, put).await
    }

    /// Passes on an answer that is no error.
    async fn passed(
        &self,
        call: &Call,
        at: usize,
        hop: &Hop,
        response: Response<AnswerBody>,
        mut body: Body,
        put: Put,
    ) -> Result<Answer, Miss> {
        let translated = matches!(put, Put::Translated(_));
        let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let is_stream =
            kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with(b"text/event-stream"));
        let packed = response.headers().get(http::header::CONTENT_ENCODING);
        let packed = packed.is_some_and(|e| !e.as_bytes().eq_ignore_ascii_case(b"identity"));
        // The length of a stream is unknown; a broken stream is recognized by its connection.
        let as_it_is = !translated && (packed || !is_stream);
        let mut headers = self.headers_back(response.headers(), as_it_is);
        let status = response.status().as_u16();
        if packed {
            if translated {
                call.sent.lose(at);
                let text = format!("provider {} packed its answer, unasked", hop.provider);
                let refusal = Refusal::new(RefusalKind::Unreachable, text);
                return Err(Miss::Refused { refusal, again: false });
            }
        } else {
            body.meter = Meter::new(hop.endpoint, is_stream);
        }
        let back = match put {
            Put::AsItIs | Put::WithUsage => {
                if is_stream && matches!(put, Put::WithUsage) {
                    body.shape = Shape::Swallow(Swallow::default());
                }
                body.response = Some(response.into_body());
                return Ok(Answer { hop: at, status, headers, body: Box::new(body) });
            }
            Put::Translated(back) => *back,
        };
        let left_out = back.names.left_out().join(", ");
        if !left_out.is_empty() {
            tracing::info!(
                provider = hop.provider,
                model = hop.model,
                tools = left_out,
                "tools that only the caller's own provider has were left out of a call"
            );
            if let Ok(value) = HeaderValue::from_str(&left_out) {
                headers.insert(LEFT_OUT, value);
            }
        }
        if is_stream {
            let include = call.peek.include_usage;
            let stream = Stream::new(call.endpoint, hop.endpoint, &call.peek.model, include, back);
            body.shape =
                Shape::Translated { parser: sse::Parser::default(), stream: Box::new(stream) };
            body.response = Some(response.into_body());
            return Ok(Answer { hop: at, status, headers, body: Box::new(body) });
        }
        // The provider answered, so it bills the call, although the answer cannot be used.
        let no = |why: String| {
            call.sent.lose(at);
            let text = format!("provider {}: {why}", hop.provider);
            Miss::Refused { refusal: Refusal::new(RefusalKind::Unreachable, text), again: false }
        };
        let bytes = collect(response.into_body(), body.idle, MAX_TRANSLATED).await.map_err(no)?;
        body.meter.feed(&bytes);
        let whole: Value =
            json::read(&bytes).map_err(|err| no(format!("its answer is not JSON: {err}")))?;
        let text = translate::reply(call.endpoint, hop.endpoint, &whole, &back).map_err(no)?;
        body.ready.push_back(text.into());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Answer { hop: at, status, headers, body: Box::new(body) })
    }

    /// The headers that are passed back, without those in which a provider quotes a key.
    fn headers_back(&self, headers: &HeaderMap, as_it_is: bool) -> HeaderMap {
        let mut back = head::response(headers, as_it_is);
        let quoting = back.iter().filter(|(_, value)| self.has_key_in(value.as_bytes()));
        let quoting: Vec<HeaderName> = quoting.map(|(name, _)| name.clone()).collect();
        for name in quoting {
            back.remove(name);
        }
        back
    }

    /// Reads an error of a provider completely, since keys are searched in it; errors are small.
    async fn failed(
        &self,
        call: &Call,
        at: usize,
        hop: &Hop,
        response: Response<AnswerBody>,
        mut body: Body,
        injected: bool,
    ) -> Result<Answer, Miss> {
        let status = response.status().as_u16();
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        let wait = retry::asked_wait(header);
        let may_again = header("x-should-retry").is_none_or(|text| text != "false");
        let mut headers = self.headers_back(response.headers(), false);
        let bytes = match collect(response.into_body(), body.idle, MAX_ERROR).await {
            Ok(bytes) => bytes,
            Err(why) => {
                let text = format!("provider {} answered {status}, and {why}", hop.provider);
                let refusal = Refusal::new(RefusalKind::Unreachable, text);
                return Err(Miss::Refused { refusal, again: false });
            }
        };
        if injected
            && matches!(status, 400 | 422)
            && memmem::find(&bytes, b"stream_options").is_some()
        {
            self.never_stream_options(hop);
            let refusal = Refusal::new(RefusalKind::Unreachable, "it takes no stream_options");
            return Err(Miss::Refused { refusal, again: true });
        }
        let mut bytes = without_keys(bytes, &self.secrets());
        let ending = Ending { error: CallError::read(&bytes), ..Ending::default() };
        body.meter = Meter::Blind(Box::new(ending));
        if hop.endpoint.dialect() != call.endpoint.dialect() {
            bytes = translate::error(call.endpoint.dialect(), status, &bytes).into();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        body.ready.push_back(bytes);
        let again = matches!(status, 408 | 500 | 502..=504 | 529) && may_again;
        let answer = Answer { hop: at, status, headers, body: Box::new(body) };
        // A wrong request is wrong at every provider.
        let elsewhere = matches!(status, 401..=403 | 408 | 409 | 425 | 429 | 500..);
        if elsewhere { Err(Miss::Failed { answer, again, wait }) } else { Ok(answer) }
    }
}

/// Reads a whole body.
async fn collect(mut body: AnswerBody, idle: Duration, most: usize) -> Result<Bytes, String> {
    let mut all: Vec<u8> = Vec::new();
    loop {
        match tokio::time::timeout(idle, upstream::chunk(&mut body)).await {
            Err(_) => return Err(format!("it sent nothing for {} s", idle.as_secs_f64())),
            Ok(Err(err)) => {
                return Err(format!("the connection was lost: {}", fail::chain(&err)));
            }
            Ok(Ok(None)) => return Ok(all.into()),
            Ok(Ok(Some(bytes))) => {
                if all.len() + bytes.len() > most {
                    return Err(format!("its answer has more than {most} bytes"));
                }
                all.extend_from_slice(&bytes);
            }
        }
    }
}

/// Removes keys from a body: some providers quote the key that they refuse.
fn without_keys(bytes: Bytes, secrets: &[Secret]) -> Bytes {
    let mut out = bytes;
    for secret in secrets {
        let key = secret.expose().as_bytes();
        if key.len() < SHORTEST_KEY || memmem::find(&out, key).is_none() {
            continue;
        }
        let mut clean = Vec::with_capacity(out.len());
        let mut from = 0;
        for at in memmem::find_iter(&out, key) {
            clean.extend_from_slice(&out[from..at]);
            clean.extend_from_slice(b"[redacted]");
            from = at + key.len();
        }
        clean.extend_from_slice(&out[from..]);
        out = clean.into();
    }
    out
}

/// The request headers: the caller's own, with the provider's key in place of the caller's.
fn headers(
    call: &Call,
    hop: &Hop,
    provider: &Provider,
    key: Option<&Secret>,
    translated: bool,
) -> Result<HeaderMap, String> {
    let secret = |secret: &Secret, before: &str| -> Result<HeaderValue, String> {
        let value = HeaderValue::from_str(&format!("{before}{}", secret.expose()));
        let mut value =
            value.map_err(|_| "the key or a header holds characters that HTTP does not allow")?;
        value.set_sensitive(true);
        Ok(value)
    };
    let mut headers = match translated {
        false => call.headers.clone(),
        // Headers of one provider mean nothing, or something else, to another.
        true => {
            let mut some = HeaderMap::new();
            for name in ["user-agent", "traceparent", "tracestate", "accept-encoding"] {
                if let Some(value) = call.headers.get(name) {
                    some.insert(HeaderName::from_static(name), value.clone());
                }
            }
            some.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
            some
        }
    };
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    match hop.endpoint.dialect() {
        Dialect::OpenAi => {
            if let Some(key) = key {
                headers.insert(AUTHORIZATION, secret(key, "Bearer ")?);
            }
        }
        Dialect::Anthropic => {
            headers
                .entry(HeaderName::from_static("anthropic-version"))
                .or_insert(HeaderValue::from_static(anthropic::VERSION));
            if let Some(key) = key {
                headers.insert(HeaderName::from_static("x-api-key"), secret(key, "")?);
            }
        }
    }
    for (name, value) in &provider.headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| "the name of a configured header is not a header's name")?;
        headers.insert(name, secret(value, "")?);
    }
    Ok(headers)
}
