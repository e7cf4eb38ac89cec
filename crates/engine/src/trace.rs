//! Finds the trace of an action: that of its caller, otherwise the session's.

use http::{HeaderMap, HeaderValue};
use overmind_core::budget::Ask;
use overmind_core::ids::SessionId;
use overmind_core::trace::{SpanId, TRACEPARENT, TraceId, Traceparent, Trail};

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

impl Engine {
    /// The span in which a new session was requested: its caller's, otherwise that of its parent
    /// session.
    pub(crate) async fn trace_of_child(
        &self,
        by: &Caller,
        parent: Option<SessionId>,
    ) -> Result<Option<Traceparent>, EngineError> {
        match (by.trace, parent) {
            (Some(trace), _) => Ok(Some(trace)),
            (None, Some(parent)) => Ok(self.trail_of(parent).await?.map(|trail| trail.here)),
            (None, None) => Ok(None),
        }
    }

    /// The trail of a session's work.
    pub(crate) async fn trail_of(&self, id: SessionId) -> Result<Option<Trail>, EngineError> {
        let trace = self.spec_of(id).await?.trace;
        Ok(Trail::of_session(id, trace, self.cortex.config.traced))
    }

    /// The trail of a call from outside on behalf of a session.
    pub(crate) async fn trail_of_call(
        &self,
        by: &Caller,
        id: SessionId,
    ) -> Result<Option<Trail>, EngineError> {
        match by.trace {
            Some(here) => Ok(Some(Trail { here, recorded: self.cortex.config.traced })),
            None => self.trail_of(id).await,
        }
    }

    /// Sends the span of a relayed call to the provider, if it is recorded. Otherwise the caller's
    /// header is passed on unchanged.
    pub(crate) fn trace_call(
        &self,
        by: &Caller,
        trail: Option<Trail>,
        ask: &Ask,
        headers: &mut HeaderMap,
    ) {
        let span = SpanId::of_call(ask.call);
        let at = match (by.trace, trail, self.cortex.config.traced) {
            (Some(trace), _, true) => trace.at(span),
            (None, Some(trail), _) => trail.at(span),
            (None, None, true) => {
                Traceparent { trace: TraceId::of_call(ask.call), span, sampled: true }
            }
            (Some(_), _, false) | (None, None, false) => return,
        };
        let value = HeaderValue::from_str(&at.to_string());
        headers.insert(TRACEPARENT, value.expect("hexadecimal digits and dashes"));
    }
}
