//! Records a model's reply while it streams.

use std::collections::HashMap;

use overmind_core::ids::{EffectId, SessionId};
use overmind_core::model::ModelDelta;
use overmind_core::store::{Commit, Guard, NewEvent, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use super::{Driver, Stop};

/// Bytes of shown text that are remembered, to find a canary that comes in pieces.
const TAIL: usize = 512;

/// The stream of one model call.
#[derive(Debug)]
pub(super) struct Streamed {
    effect: EffectId,
    chars: u64,
    /// The last part of each channel's text.
    tails: HashMap<&'static str, String>,
}

impl Streamed {
    /// The event for the end of the stream.
    pub(super) fn completed(self, run: SessionId, now: Timestamp) -> NewEvent {
        NewEvent {
            stream: StreamId::Session(run),
            kind: "model.output.completed",
            ts: now,
            payload: json!({
                "run_id": run, "stream_id": self.effect, "total_chars": self.chars,
            }),
        }
    }

    /// Returns the last part of the channel, and appends `text` to it.
    fn go_on(&mut self, channel: &'static str, text: &str) -> String {
        let tail = self.tails.entry(channel).or_default();
        let before = tail.clone();
        tail.push_str(text);
        if tail.len() > TAIL {
            let cut = tail.ceil_char_boundary(tail.len() - TAIL);
            tail.drain(..cut);
        }
        before
    }
}

impl Driver {
    /// Records a piece of a model's reply while it streams.
    pub(super) async fn progress(
        &mut self,
        effect: EffectId,
        delta: ModelDelta,
    ) -> Result<(), Stop> {
        let now = self.cortex.clock.now();
        let mut events = Vec::new();
        self.streamed_events(effect, delta, now, &mut events);
        let guard = Guard::SessionEpoch { session: self.id, epoch: self.session().row().epoch };
        self.commit(Commit { guards: vec![guard], events, changes: Vec::new() }).await
    }

    pub(super) fn streamed_events(
        &mut self,
        effect: EffectId,
        delta: ModelDelta,
        now: Timestamp,
        events: &mut Vec<NewEvent>,
    ) {
        let (run, stream) = (self.id, StreamId::Session(self.id));
        let event = |kind, payload| NewEvent { stream, kind, ts: now, payload };
        let model = self.session().agent().model.clone();
        let canaries = self.cortex.config.canaries.as_ref().map(|planter| planter.of(run));
        let streamed = match &mut self.streamed {
            Some(streamed) if streamed.effect == effect => streamed,
            other => {
                events.push(event(
                    "model.output.started",
                    json!({"run_id": run, "stream_id": effect, "kind": "action", "model": model}),
                ));
                other.insert(Box::new(Streamed { effect, chars: 0, tails: HashMap::new() }))
            }
        };
        let (channel, tool, mut text) = match delta {
            ModelDelta::Text(text) => ("assistant", None, text),
            ModelDelta::Reasoning(text) => ("reasoning", None, text),
            ModelDelta::ToolArgs { name, text } => ("decision", Some(name), text),
            ModelDelta::Restarted { attempt, why, .. } => {
                streamed.chars = 0;
                streamed.tails.clear();
                let mut shown = Value::String(why);
                self.cortex.store.redact(&mut shown);
                let why = shown.as_str().unwrap_or_default();
                self.cortex.troubles.began(run, why, now);
                let payload = json!({
                    "run_id": run, "stream_id": effect, "channel": "restarted",
                    "attempt": attempt, "why": why,
                });
                return events.push(event("model.output.restarted", payload));
            }
        };
        let before = streamed.go_on(channel, &text);
        if let Some(canaries) = canaries {
            canaries.mask_after(&before, &mut text);
        }
        streamed.chars += text.chars().count() as u64;
        let mut payload = json!({"run_id": run, "stream_id": effect, "channel": channel});
        if let Some(tool) = tool {
            payload["tool_name"] = json!(tool);
        }
        payload["delta"] = Value::String(text);
        events.push(event("model.output.delta", payload));
    }
}
