//! The records of a run: events, tool calls, model calls, and the timeline that joins them.

use overmind_core::ids::{AgentId, EffectId, SessionId, StepId};
use overmind_core::store::{LogEvent, StreamId};
use overmind_core::time::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{RawJson, RunStatus, Step};

/// One event of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// The id of the event, `<stream>.<seq>`.
    pub id: String,
    /// The run; `null` for events of the system.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub run_id: Option<SessionId>,
    /// The kind, in lower case with dots: `run.queued`.
    #[serde(rename = "type")]
    pub kind: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub payload_json: RawJson,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub ts: Timestamp,
    /// Position in its stream, from 1, without gaps.
    pub seq: u64,
    /// Position in the order of all commits, from 1.
    pub global: u64,
    /// BLAKE3 of the event and the previous hash, in hexadecimal.
    #[cfg_attr(feature = "openapi", schema(min_length = 64, max_length = 64))]
    pub hash: String,
}

impl From<LogEvent> for Event {
    fn from(event: LogEvent) -> Self {
        Self {
            id: event.id(),
            run_id: match event.stream {
                StreamId::System | StreamId::Mesh | StreamId::Records => None,
                StreamId::Session(id) => Some(id),
            },
            payload_json: RawJson::from_text(&event.payload),
            kind: event.kind.into(),
            ts: event.ts,
            seq: event.seq,
            global: event.global,
            hash: hex(&event.hash),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [b >> 4, b & 15])
        .map(|nibble| char::from(DIGITS[usize::from(nibble)]))
        .collect()
}

/// One call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCall {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: EffectId,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
    /// The step; `null` for a direct call through the API.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub step_id: Option<StepId>,
    pub tool_name: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub args_json: Value,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub result_json: Value,
    /// Whether the call was allowed. False if the tool is not registered or not in the agent's
    /// allow-list.
    pub allowed: bool,
    pub latency_ms: u64,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    /// Sequence number of its event in the run's stream.
    pub seq: u64,
}

/// One call of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelCall {
    /// The id: `eff_…` for the run's own calls, `call_…` for calls that the gateway passed on for a
    /// program.
    pub id: String,
    /// The origin of the call: `engine` or `gateway`.
    pub via: String,
    /// The program's own id of its session: `x-claude-code-session-id`, or Codex' `session_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_session: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub run_id: Option<SessionId>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub agent_id: Option<AgentId>,
    pub model: String,
    /// `{kind, model, messages_total, new_messages, tools, request_hash}`. Messages that an earlier
    /// call of the run sent are not repeated.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub request_json: Value,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub response_json: Value,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub usage_json: Value,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub error: Option<Value>,
    pub latency_ms: u64,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    /// Sequence number of its event in the run's stream.
    pub seq: u64,
}

/// One entry of a run's timeline: `{"kind","ts","data"}`.
///
/// A step appears again with each change of its state.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timeline {
    /// The kind: `event`, `step`, `tool_call` or `model_call`.
    pub kind: &'static str,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub ts: Timestamp,
    /// The full row of this kind.
    pub data: TimelineData,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)] // written only; reading goes by `kind`, see below
pub enum TimelineData {
    Event(Event),
    Step(Step),
    ToolCall(ToolCall),
    ModelCall(ModelCall),
}

impl Timeline {
    pub fn new(ts: Timestamp, data: TimelineData) -> Self {
        let kind = match &data {
            TimelineData::Event(_) => "event",
            TimelineData::Step(_) => "step",
            TimelineData::ToolCall(_) => "tool_call",
            TimelineData::ModelCall(_) => "model_call",
        };
        Self { kind, ts, data }
    }
}

impl<'de> Deserialize<'de> for Timeline {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;

        #[derive(Deserialize)]
        struct Wire {
            kind: String,
            ts: Timestamp,
            data: Box<RawValue>,
        }
        let Wire { kind, ts, data } = Wire::deserialize(from)?;
        let data = data.get();
        let data = match kind.as_str() {
            "event" => serde_json::from_str(data).map(TimelineData::Event),
            "step" => serde_json::from_str(data).map(TimelineData::Step),
            "tool_call" => serde_json::from_str(data).map(TimelineData::ToolCall),
            "model_call" => serde_json::from_str(data).map(TimelineData::ModelCall),
            _ => {
                let known = &["event", "step", "tool_call", "model_call"];
                return Err(D::Error::unknown_variant(&kind, known));
            }
        };
        Ok(Self::new(ts, data.map_err(D::Error::custom)?))
    }
}

/// Data of the `done` event that ends a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Done {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
    pub status: RunStatus,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> LogEvent {
        LogEvent {
            global: 9,
            stream: StreamId::Session(SessionId::from_u128(7)),
            seq: 2,
            kind: "run.started".into(),
            ts: Timestamp::from_micros(0),
            payload: r#"{"epoch":1}"#.into(),
            hash: [0xa5; 32],
        }
    }

    #[test]
    fn a_timeline_entry_has_three_keys_and_can_be_deserialised() {
        let entry = Timeline::new(event().ts, TimelineData::Event(event().into()));
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"kind":"event","ts":"1970-01-01T00:00:00.000000+00:00","data":{"#,
                r#""id":"ses_00000000000000000000000000000007.2","#,
                r#""run_id":"ses_00000000000000000000000000000007","type":"run.started","#,
                r#""payload_json":{"epoch":1},"ts":"1970-01-01T00:00:00.000000+00:00","#,
                r#""seq":2,"global":9,"#,
                r#""hash":"a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5"}}"#
            )
        );
        assert_eq!(serde_json::from_str::<Timeline>(&text).unwrap(), entry);
        let other = text.replacen(r#""kind":"event""#, r#""kind":"noise""#, 1);
        let err = serde_json::from_str::<Timeline>(&other).unwrap_err().to_string();
        assert!(err.contains("unknown variant `noise`"), "{err}");
    }

    #[test]
    fn an_event_of_the_system_has_no_run() {
        let wire = Event::from(LogEvent { stream: StreamId::System, ..event() });
        assert_eq!((wire.run_id, wire.id.as_str()), (None, "system.2"));
    }
}
