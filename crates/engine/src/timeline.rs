//! The timeline of a session: its events in order, each with the step, tool call or model call that
//! it changed. Every change of a step is an item of its own.

use std::collections::HashMap;

use overmind_core::ids::{EffectId, SessionId, StepId};
use overmind_core::row::{Role, StepRow};
use overmind_core::store::{EventQuery, LogEvent, StreamId};
use serde_json::Value;

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;
use crate::view::{ModelCallView, TimelineData, TimelineItem, TimelinePage, ToolCallView};

/// Kinds of events about a tool call.
const TOOL_CALLS: &[&str] = &["tool.called", "tool.denied", "tool.refused"];
/// Kinds of events about a model call.
const MODEL_CALLS: &[&str] = &["model.infer.completed", "model.infer.failed"];
/// The same kinds, and those about relayed calls. For the engine's own calls these are in the
/// system's stream, so each call of a session occurs once.
const ALL_MODEL_CALLS: &[&str] =
    &["model.infer.completed", "model.infer.failed", "budget.settled", "budget.released"];

impl Engine {
    /// Part of the timeline: items after `after`, about `limit` of them.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] for the session.
    pub async fn session_timeline(
        &self,
        by: &Caller,
        id: SessionId,
        after: (u64, u8),
        limit: u32,
    ) -> Result<TimelinePage, EngineError> {
        self.reads(by, Role::Viewer, id).await?;
        // It is read before the events, so that the status "ended" means that all events are there.
        let status = self.find_session(id).await?.status;
        let (seq, part) = after;
        // The last event is read again if only a part of its items was returned.
        let from = seq.saturating_sub(1);
        let stream = Some(StreamId::Session(id));
        let query = EventQuery { stream, after: from, kinds: &[], limit: limit.saturating_add(1) };
        let events = self.cortex.store.events(query).await?;
        let more = events.len() > limit as usize;
        let steps = self.steps_of(id, &events).await?;
        let mut items = Vec::with_capacity(events.len() * 2);
        for event in events.into_iter().take(limit as usize + 1) {
            let at = event.ts;
            let place = event.seq;
            let extra = extra(&event, &steps);
            items.push(TimelineItem { place: (place, 0), at, data: TimelineData::Event(event) });
            items.extend(extra.map(|data| TimelineItem { place: (place, 1), at, data }));
        }
        items.retain(|item| item.place > (seq, part));
        Ok(TimelinePage { items, more, status })
    }

    /// The rows of the steps that these events name.
    async fn steps_of(
        &self,
        id: SessionId,
        events: &[LogEvent],
    ) -> Result<HashMap<StepId, StepRow>, EngineError> {
        let indices = events
            .iter()
            .filter(|event| event.kind.starts_with("step."))
            .filter_map(|event| event.value().get("idx").and_then(Value::as_u64))
            .filter_map(|idx| u32::try_from(idx).ok());
        let (mut first, mut last) = (u32::MAX, 0);
        for idx in indices {
            (first, last) = (first.min(idx), last.max(idx));
        }
        if first > last {
            return Ok(HashMap::new());
        }
        let rows = self.cortex.store.step_list(id, first.checked_sub(1), last - first + 1).await?;
        Ok(rows.into_iter().map(|row| (row.id, row)).collect())
    }

    /// Tool calls in ascending order, those after sequence number `after`.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] for the session.
    pub async fn session_tool_calls(
        &self,
        by: &Caller,
        id: SessionId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<ToolCallView>, EngineError> {
        let events = self.kinds(by, id, after, limit, TOOL_CALLS).await?;
        Ok(events.iter().map(|event| tool_call(event, &event.value())).collect())
    }

    /// Model calls in ascending order after sequence number `after`: the engine's own and relayed
    /// ones.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] for the session.
    pub async fn session_model_calls(
        &self,
        by: &Caller,
        id: SessionId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<ModelCallView>, EngineError> {
        let events = self.kinds(by, id, after, limit, ALL_MODEL_CALLS).await?;
        let shown = |event: &LogEvent| match &*event.kind {
            "budget.settled" | "budget.released" => passed_on(event, &event.value()),
            _ => model_call(event, &event.value()),
        };
        Ok(events.iter().map(shown).collect())
    }

    async fn kinds(
        &self,
        by: &Caller,
        id: SessionId,
        after: u64,
        limit: u32,
        kinds: &'static [&'static str],
    ) -> Result<Vec<LogEvent>, EngineError> {
        self.reads(by, Role::Viewer, id).await?;
        self.find_session(id).await?;
        let stream = Some(StreamId::Session(id));
        Ok(self.cortex.store.events(EventQuery { stream, after, kinds, limit }).await?)
    }
}

fn extra(event: &LogEvent, steps: &HashMap<StepId, StepRow>) -> Option<TimelineData> {
    match &*event.kind {
        "step.started" | "step.finished" => {
            let id = event.value().get("step_id")?.as_str()?.parse().ok()?;
            let mut row = steps.get(&id)?.clone();
            if &*event.kind == "step.started" {
                // This is the state at that time; the current row may have ended since.
                row.output = None;
                row.finished_at = None;
                row.error = None;
            }
            Some(TimelineData::Step(row))
        }
        kind if TOOL_CALLS.contains(&kind) => {
            Some(TimelineData::ToolCall(tool_call(event, &event.value())))
        }
        kind if MODEL_CALLS.contains(&kind) => {
            Some(TimelineData::ModelCall(model_call(event, &event.value())))
        }
        _ => None,
    }
}

fn session_of(event: &LogEvent) -> SessionId {
    match event.stream {
        StreamId::Session(id) => id,
        // Calls are only in sessions' streams; a system event would be a damaged row.
        StreamId::System | StreamId::Mesh | StreamId::Records => SessionId::from_u128(0),
    }
}

/// The call's id: given for calls from outside, derived for the session's own.
fn call_id(session: SessionId, payload: &Value) -> EffectId {
    let given = payload.get("call_id").and_then(Value::as_str).and_then(|id| id.parse().ok());
    let number = payload.get("effect").and_then(Value::as_u64).unwrap_or(u64::MAX);
    given.unwrap_or_else(|| EffectId::derive(session, number))
}

fn field(payload: &Value, key: &str) -> Value {
    payload.get(key).cloned().unwrap_or(Value::Null)
}

fn tool_call(event: &LogEvent, payload: &Value) -> ToolCallView {
    let session = session_of(event);
    ToolCallView {
        id: call_id(session, payload),
        session,
        step: payload.get("step_id").and_then(Value::as_str).and_then(|id| id.parse().ok()),
        tool: payload.get("tool_name").and_then(Value::as_str).unwrap_or("").to_owned(),
        args: field(payload, "args"),
        result: field(payload, "result"),
        allowed: payload.get("allowed").and_then(Value::as_bool).unwrap_or(false),
        latency_ms: payload.get("latency_ms").and_then(Value::as_u64).unwrap_or(0),
        at: event.ts,
        seq: event.seq,
    }
}

fn model_call(event: &LogEvent, payload: &Value) -> ModelCallView {
    let session = session_of(event);
    let (request, response) = (field(payload, "request"), field(payload, "reply"));
    let model = request.get("model").and_then(Value::as_str).unwrap_or("").to_owned();
    ModelCallView {
        id: call_id(session, payload).to_string(),
        via: "engine",
        client_session: None,
        session,
        model,
        usage: field(&response, "usage"),
        request,
        response,
        error: payload.get("error").filter(|error| !error.is_null()).cloned(),
        latency_ms: payload.get("latency_ms").and_then(Value::as_u64).unwrap_or(0),
        at: event.ts,
        seq: event.seq,
    }
}

/// A relayed call: its texts are not recorded, or only the captured part.
fn passed_on(event: &LogEvent, payload: &Value) -> ModelCallView {
    let text = |key: &str| payload.get(key).and_then(Value::as_str).map(str::to_owned);
    let some = |keys: &[&str]| -> Value {
        let there =
            keys.iter().filter_map(|key| Some(((*key).to_owned(), payload.get(*key)?.clone())));
        Value::Object(there.filter(|(_, value)| !value.is_null()).collect())
    };
    let answered = text("model").unwrap_or_default();
    let model = text("requested_model").unwrap_or_else(|| answered.clone());
    let mut request = some(&["caller", "provider", "format", "client_session", "traceparent"]);
    request["model"] = model.clone().into();
    let digest = |key: &str| payload.get(key).cloned();
    if let Some(digest) = digest("request") {
        request["digest"] = digest;
    }
    let mut response = some(&[
        "provider",
        "status",
        "ended",
        "first_byte_ms",
        "spent",
        "response_id",
        "finish_reasons",
    ]);
    response["model"] = answered.into();
    if let Some(digest) = digest("response") {
        response["digest"] = digest;
    }
    let ended = text("ended").unwrap_or_default();
    let told = payload.get("error").filter(|error| error.is_object());
    let error = (ended != "completed" || told.is_some()).then(|| {
        let mut error = serde_json::json!({"code": ended, "status": field(payload, "status")});
        for name in ["type", "message"] {
            if let Some(text) = told.and_then(|told| told.get(name)) {
                error[name] = text.clone();
            }
        }
        error
    });
    ModelCallView {
        id: text("call_id").unwrap_or_default(),
        via: "gateway",
        client_session: text("client_session"),
        session: session_of(event),
        model,
        usage: field(payload, "usage"),
        request,
        response,
        error,
        latency_ms: payload.get("total_ms").and_then(Value::as_u64).unwrap_or(0),
        at: event.ts,
        seq: event.seq,
    }
}
