//! Converts events to spans.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::figures::Labels;
use super::{Attr, Attrs, Known, Span, SpanKind, said};
use crate::budget::{CallRecord, Ended, Spend};
use crate::ids::{CallId, EffectId, SessionId};
use crate::model::{ModelFailure, ModelReply, StopReason, Usage};
use crate::relay::CallError;
use crate::row::SessionRow;
use crate::store::{LogEvent, StreamId};
use crate::time::Timestamp;
use crate::trace::{SpanId, TraceId, Traceparent};

/// The exporter's context for an event.
pub struct Lens<'a> {
    /// The session of the event's stream.
    pub known: Option<&'a Known>,
    /// The parent session.
    pub above: Option<&'a Known>,
    /// The session's row, when the event ends it.
    pub row: Option<&'a SessionRow>,
    /// The record of the model call that the event ends, with the stored parts of its texts.
    pub call: Option<&'a CallRecord>,
    /// Whether texts of requests and answers are exported.
    pub content: bool,
    /// Returns host and port of a provider by its name here.
    pub address: &'a dyn Fn(&str) -> Option<(String, u16)>,
}

impl std::fmt::Debug for Lens<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lens").field("known", &self.known).finish_non_exhaustive()
    }
}

/// One model call, for the histograms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    pub labels: Labels,
    pub error: Option<String>,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub took_ms: u64,
}

/// The results for one event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// The span; also `None` if the origin of the trace does not want it recorded.
    pub span: Option<Span>,
    pub measured: Option<Measured>,
}

/// The kinds of events from which [`told`] creates something.
pub const TOLD: &[&str] = &[
    "budget.released",
    "budget.settled",
    "model.infer.completed",
    "model.infer.failed",
    "run.canceled",
    "run.failed",
    "run.stopped",
    "run.succeeded",
    "tool.called",
    "tool.denied",
];

/// The kinds among them that end a session; each session has exactly one. A stopped command ends
/// with `run.stopped`.
pub const ENDS: &[&str] = &["run.canceled", "run.failed", "run.stopped", "run.succeeded"];

/// Converts an event to the span that it ends. An unreadable event, or a copy, gives none.
pub fn told(event: &LogEvent, lens: &Lens<'_>) -> Told {
    let copy = lens.known.is_some_and(|known| event.seq <= known.copied);
    if copy || !TOLD.contains(&&*event.kind) {
        return Told::default();
    }
    match &*event.kind {
        kind if ENDS.contains(&kind) => {
            Told { span: lens.known.and_then(|known| ended(event, known, lens)), measured: None }
        }
        "tool.called" | "tool.denied" => {
            Told { span: lens.known.and_then(|known| tool(event, known, lens)), measured: None }
        }
        "model.infer.completed" | "model.infer.failed" => {
            lens.known.and_then(|known| native(event, known, lens)).unwrap_or_default()
        }
        _ => relayed(event, lens).unwrap_or_default(),
    }
}

fn before(end: Timestamp, ms: u64) -> Timestamp {
    let micros = i64::try_from(ms.saturating_mul(1000)).unwrap_or(i64::MAX);
    Timestamp::from_micros(end.as_micros().saturating_sub(micros))
}

/// Returns the span if the trace is recorded.
fn kept(span: Span, sampled: bool) -> Option<Span> {
    sampled.then_some(span)
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Adds the attributes that every span of a session has.
fn of_session(known: &Known, attrs: &mut Attrs) {
    attrs.push(("gen_ai.conversation.id", known.session.to_string().into()));
    attrs.push(("gen_ai.agent.id", known.agent.to_string().into()));
    attrs.push(("gen_ai.agent.name", known.agent_name.as_str().into()));
}

fn ended(event: &LogEvent, known: &Known, lens: &Lens<'_>) -> Option<Span> {
    #[derive(Deserialize)]
    struct Payload {
        #[serde(default)]
        final_answer: Option<String>,
        #[serde(default)]
        error: Value,
    }
    let payload: Payload = serde_json::from_str(&event.payload).ok()?;
    let mut attrs: Attrs = vec![("gen_ai.operation.name", "invoke_agent".into())];
    of_session(known, &mut attrs);
    attrs.push(("gen_ai.agent.version", known.agent_version.to_string().into()));
    attrs.push(("overmind.run.name", known.name.as_str().into()));
    if !known.model.is_empty() {
        attrs.push(("gen_ai.request.model", known.model.as_str().into()));
    }
    if let Some(row) = lens.row {
        usage(&row.usage, &mut attrs);
        cost(row.cost_microusd, &mut attrs);
        attrs.push(("overmind.run.epochs", u64::from(row.epoch).into()));
    }
    let error = match &*event.kind {
        "run.failed" => {
            let code = payload.error.get("code").and_then(Value::as_str).unwrap_or("failed");
            attrs.push(("error.type", code.into()));
            let message = payload.error.get("message").and_then(Value::as_str).unwrap_or(code);
            // A message may quote content.
            Some(if lens.content { message.to_owned() } else { code.to_owned() })
        }
        "run.canceled" | "run.stopped" => {
            attrs.push(("error.type", "canceled".into()));
            None
        }
        _ => None,
    };
    if lens.content {
        attrs.push(("gen_ai.input.messages", said("user", &known.task, &[], None)));
        if let Some(answer) = &payload.final_answer {
            attrs.push(("gen_ai.output.messages", said("assistant", answer, &[], Some("stop"))));
        }
    }
    let given = known.given;
    // The starter of a run is shown beside the parent span, if they differ.
    let above = lens.above.map(|above| above.here);
    let links =
        above.into_iter().filter(|above| given.is_none_or(|given| given.span != above.span));
    let span = Span {
        trace: known.here.trace,
        id: known.here.span,
        parent: given.map(|given| given.span),
        links: links.collect(),
        name: format!("invoke_agent {}", known.agent_name),
        kind: SpanKind::Internal,
        start: known.queued_at.min(event.ts),
        end: event.ts,
        attrs,
        error,
    };
    kept(span, known.here.sampled)
}

/// The parent of a call: the span of its request, or else the session's own.
struct Place {
    trace: TraceId,
    parent: Option<SpanId>,
    links: Vec<Traceparent>,
    sampled: bool,
}

fn place(known: Option<&Known>, asked: Option<Traceparent>, own: TraceId) -> Place {
    match (asked, known) {
        (Some(asked), known) => Place {
            trace: asked.trace,
            parent: Some(asked.span),
            // In a trace of the caller's own, the session is not lost.
            links: known
                .map(|known| known.here)
                .filter(|here| here.trace != asked.trace)
                .into_iter()
                .collect(),
            sampled: asked.sampled,
        },
        (None, Some(known)) => Place {
            trace: known.here.trace,
            parent: Some(known.here.span),
            links: Vec::new(),
            sampled: known.here.sampled,
        },
        (None, None) => Place { trace: own, parent: None, links: Vec::new(), sampled: true },
    }
}

fn tool(event: &LogEvent, known: &Known, lens: &Lens<'_>) -> Option<Span> {
    #[derive(Deserialize)]
    struct Payload {
        effect: Option<u64>,
        call_id: Option<EffectId>,
        tool_name: String,
        #[serde(default)]
        args: Value,
        ok: bool,
        allowed: bool,
        latency_ms: u64,
        #[serde(default)]
        result: Value,
        #[serde(default)]
        traceparent: Option<Traceparent>,
    }
    let payload: Payload = serde_json::from_str(&event.payload).ok()?;
    let id = match (payload.call_id, payload.effect) {
        (Some(id), _) => id,
        (None, Some(number)) => EffectId::derive(known.session, number),
        (None, None) => return None,
    };
    let at = place(Some(known), payload.traceparent, known.here.trace);
    let mut attrs: Attrs = vec![
        ("gen_ai.operation.name", "execute_tool".into()),
        ("gen_ai.tool.name", payload.tool_name.as_str().into()),
        ("gen_ai.tool.type", "function".into()),
        ("gen_ai.tool.call.id", id.to_string().into()),
    ];
    of_session(known, &mut attrs);
    let error = (!payload.ok).then(|| {
        let error = payload.result.get("error");
        let code = error.and_then(|error| error.get("code")).and_then(Value::as_str);
        let code = match (payload.allowed, code) {
            (_, Some(code)) => code.to_owned(),
            (false, None) => "denied".to_owned(),
            (true, None) => match payload.result.get("exit_code") {
                Some(code) => format!("exit_code_{code}"),
                None => "failed".to_owned(),
            },
        };
        attrs.push(("error.type", code.as_str().into()));
        code
    });
    if lens.content {
        attrs.push(("gen_ai.tool.call.arguments", text_of(&payload.args).into()));
        attrs.push(("gen_ai.tool.call.result", text_of(&payload.result).into()));
    }
    let span = Span {
        trace: at.trace,
        id: SpanId::of_effect(id),
        parent: at.parent,
        links: at.links,
        name: format!("execute_tool {}", payload.tool_name),
        kind: SpanKind::Internal,
        start: before(event.ts, payload.latency_ms),
        end: event.ts,
        attrs,
        error,
    };
    kept(span, at.sampled)
}

/// Returns the conventions' name of a provider, if they have one.
fn provider_name(ours: &str) -> &str {
    match ours {
        "xai" => "x_ai",
        "mistral" => "mistral_ai",
        "gemini" => "gcp.gemini",
        ours => ours,
    }
}

fn usage(usage: &Usage, attrs: &mut Attrs) {
    attrs.push(("gen_ai.usage.input_tokens", usage.input_tokens.into()));
    attrs.push(("gen_ai.usage.output_tokens", usage.output_tokens.into()));
    for (name, tokens) in [
        ("gen_ai.usage.cache_read.input_tokens", usage.cached_input_tokens),
        ("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_tokens),
        ("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens),
    ] {
        if tokens > 0 {
            attrs.push((name, tokens.into()));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "millionths of a dollar are far below 2^52")]
fn cost(microusd: Option<u64>, attrs: &mut Attrs) {
    if let Some(microusd) = microusd {
        attrs.push(("overmind.cost.usd", Attr::Float(microusd as f64 / 1e6)));
    }
}

/// Returns one message in the form of the conventions.
fn said(role: &str, text: &str, calls: &[Value], finish: Option<&str>) -> Attr {
    let text = &text[..text.floor_char_boundary(super::MAX_TEXT / 2)];
    let mut parts = Vec::new();
    if !text.is_empty() {
        parts.push(json!({"type": "text", "content": text}));
    }
    parts.extend(calls.iter().cloned());
    let mut message = json!({"role": role, "parts": parts});
    if let Some(finish) = finish {
        message["finish_reason"] = finish.into();
    }
    json!([message]).to_string().into()
}

/// One model call, from any of the events that report one.
struct Chat<'a> {
    span: SpanId,
    at: Place,
    operation: &'static str,
    /// Ours.
    provider: &'a str,
    asked: &'a str,
    answered: Option<&'a str>,
    usage: Usage,
    microusd: Option<u64>,
    start: Timestamp,
    took_ms: u64,
    error: Option<String>,
    /// An explanation, if it adds something.
    why: Option<String>,
    attrs: Attrs,
}

fn chat(call: Chat<'_>, known: Option<&Known>, lens: &Lens<'_>) -> Told {
    let Chat { operation, asked, answered, took_ms, start, error, .. } = call;
    let provider = provider_name(call.provider);
    let mut labels: Labels = vec![("gen_ai.operation.name", operation.to_owned())];
    let mut attrs: Attrs = vec![("gen_ai.operation.name", operation.into())];
    if !provider.is_empty() {
        labels.push(("gen_ai.provider.name", provider.to_owned()));
        attrs.push(("gen_ai.provider.name", provider.into()));
    }
    labels.push(("gen_ai.request.model", asked.to_owned()));
    attrs.push(("gen_ai.request.model", asked.into()));
    if let Some(answered) = answered {
        labels.push(("gen_ai.response.model", answered.to_owned()));
        attrs.push(("gen_ai.response.model", answered.into()));
    }
    if let Some((host, port)) = (lens.address)(call.provider) {
        attrs.push(("server.address", host.into()));
        attrs.push(("server.port", u64::from(port).into()));
    }
    usage(&call.usage, &mut attrs);
    cost(call.microusd, &mut attrs);
    if let Some(known) = known {
        of_session(known, &mut attrs);
    }
    if let Some(error) = &error {
        attrs.push(("error.type", error.as_str().into()));
    }
    attrs.extend(call.attrs);
    let measured = Measured {
        labels,
        error: error.clone(),
        input_tokens: call.usage.input_tokens,
        output_tokens: call.usage.output_tokens,
        took_ms,
    };
    let span = Span {
        trace: call.at.trace,
        id: call.span,
        parent: call.at.parent,
        links: call.at.links,
        name: format!("{operation} {asked}"),
        kind: SpanKind::Client,
        start,
        end: start.after(Duration::from_millis(took_ms)),
        attrs,
        error: error.map(|error| call.why.unwrap_or(error)),
    };
    Told { span: kept(span, call.at.sampled), measured: Some(measured) }
}

fn native(event: &LogEvent, known: &Known, lens: &Lens<'_>) -> Option<Told> {
    #[derive(Deserialize)]
    struct Request {
        model: String,
    }
    #[derive(Deserialize)]
    struct Payload {
        effect: u64,
        request: Request,
        latency_ms: u64,
        reply: Option<ModelReply>,
        error: Option<ModelFailure>,
    }
    let payload: Payload = serde_json::from_str(&event.payload).ok()?;
    let id = EffectId::derive(known.session, payload.effect);
    let mut call = Chat {
        span: SpanId::of_effect(id),
        at: place(Some(known), None, known.here.trace),
        operation: "chat",
        provider: "",
        asked: &payload.request.model,
        answered: None,
        usage: Usage::default(),
        microusd: None,
        start: before(event.ts, payload.latency_ms),
        took_ms: payload.latency_ms,
        error: None,
        why: None,
        attrs: Vec::new(),
    };
    match (&payload.reply, payload.error) {
        (Some(reply), _) => {
            call.provider = reply.provider.split('/').next().unwrap_or_default();
            call.answered = Some(&reply.model);
            (call.usage, call.microusd) = (reply.usage, reply.cost_microusd);
            let finish = match reply.stop {
                StopReason::End => "stop",
                StopReason::ToolCalls => "tool_call",
                StopReason::MaxTokens => "length",
                StopReason::Refusal => "content_filter",
            };
            let finished = Attr::Texts(vec![finish.to_owned()]);
            call.attrs.push(("gen_ai.response.finish_reasons", finished));
            if lens.content {
                let calls: Vec<Value> = reply
                    .calls
                    .iter()
                    .map(|call| {
                        json!({
                            "type": "tool_call", "id": call.id, "name": call.name,
                            "arguments": call.args,
                        })
                    })
                    .collect();
                let message = said("assistant", &reply.text, &calls, Some(finish));
                call.attrs.push(("gen_ai.output.messages", message));
            }
        }
        (None, Some(failure)) => {
            call.error = Some(failure.code);
            call.why = lens.content.then_some(failure.message);
        }
        (None, None) => return None,
    }
    Some(chat(call, Some(known), lens))
}

/// Returns the conventions' operation for a format; `None` if they have none.
fn operation(format: &str) -> Option<&'static str> {
    match format {
        "embeddings" => Some("embeddings"),
        "count_tokens" => None,
        _ => Some("chat"),
    }
}

fn relayed(event: &LogEvent, lens: &Lens<'_>) -> Option<Told> {
    #[derive(Deserialize)]
    struct Payload {
        call_id: CallId,
        run_id: Option<SessionId>,
        #[serde(default)]
        caller: String,
        provider: String,
        model: String,
        #[serde(default)]
        requested_model: Option<String>,
        #[serde(default)]
        format: String,
        spent: Spend,
        usage: Usage,
        ended: Ended,
        status: u16,
        first_byte_ms: Option<u64>,
        total_ms: u64,
        #[serde(default)]
        client_session: Option<String>,
        #[serde(default)]
        traceparent: Option<Traceparent>,
        #[serde(default)]
        response_id: Option<String>,
        #[serde(default)]
        finish_reasons: Vec<String>,
        #[serde(default)]
        error: Option<CallError>,
    }
    let payload: Payload = serde_json::from_str(&event.payload).ok()?;
    // The session itself exports the engine's own calls, which are in the system's stream.
    let own = matches!(event.stream, StreamId::System | StreamId::Mesh) && payload.run_id.is_some();
    if own {
        return None;
    }
    let operation = operation(&payload.format)?;
    let (kind, why) = payload.error.map(|told| (told.kind, told.message)).unzip();
    let ended = match payload.ended {
        Ended::Completed => None,
        Ended::Failed if payload.status > 0 => Some(payload.status.to_string()),
        Ended::Failed | Ended::Cut | Ended::Cancelled | Ended::Unknown => {
            Some(payload.ended.as_str().to_owned())
        }
    };
    // The provider's own name is more precise; it may also arrive within the answer.
    let error = kind.or(ended);
    let mut attrs: Attrs = vec![("overmind.call.id", payload.call_id.to_string().into())];
    if lens.known.is_none() {
        attrs.push(("overmind.caller", payload.caller.into()));
    }
    if let Some(session) = payload.client_session {
        attrs.push(("overmind.client.session", session.into()));
    }
    if let Some(first) = payload.first_byte_ms {
        attrs.push(("overmind.first_byte_ms", first.into()));
    }
    if payload.status > 0 {
        attrs.push(("http.response.status_code", u64::from(payload.status).into()));
    }
    if let Some(id) = payload.response_id {
        attrs.push(("gen_ai.response.id", id.into()));
    }
    if lens.content
        && operation == "chat"
        && let Some(call) = lens.call.filter(|call| call.call == payload.call_id)
    {
        said::of_call(call, &payload.finish_reasons, &mut attrs);
    }
    if !payload.finish_reasons.is_empty() {
        let reasons = Attr::Texts(payload.finish_reasons);
        attrs.push(("gen_ai.response.finish_reasons", reasons));
    }
    let answered = (payload.ended != Ended::Failed).then_some(&*payload.model);
    let call = Chat {
        span: SpanId::of_call(payload.call_id),
        at: place(lens.known, payload.traceparent, TraceId::of_call(payload.call_id)),
        operation,
        provider: &payload.provider,
        asked: payload.requested_model.as_deref().unwrap_or(&payload.model),
        answered,
        usage: payload.usage,
        microusd: payload.spent.microusd,
        start: before(event.ts, payload.total_ms),
        took_ms: payload.total_ms,
        error,
        why: why.filter(|why| lens.content && !why.is_empty()),
        attrs,
    };
    Some(chat(call, lens.known, lens))
}
