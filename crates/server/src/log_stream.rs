//! The whole log as a [stream](crate::sse): each event of each run and of the system, by its number.

use overmind_api::Event;
use overmind_engine::{Caller, EngineError};
use tokio::sync::watch;

use crate::cx::Cx;
use crate::sse::{Look, Source, say};

/// Events read at once.
const PAGE: u32 = 128;

pub(crate) struct LogSource {
    /// Number of the last event sent.
    after: u64,
}

impl LogSource {
    pub(crate) fn new(after: u64) -> Self {
        Self { after }
    }
}

impl Source for LogSource {
    async fn look(&mut self, cx: &Cx, by: &Caller) -> Result<Look, EngineError> {
        let events = cx.engine.events_after(by, self.after, PAGE).await?;
        let Some(last) = events.last() else { return Ok(Look::Nothing) };
        self.after = last.global;
        let mut text = String::with_capacity(events.len() * 512);
        for event in events {
            let number = event.global;
            say(&mut text, Some(number), None, &Event::from(event));
        }
        Ok(Look::More(text))
    }

    fn watch(&self, cx: &Cx) -> watch::Receiver<u64> {
        cx.engine.log_watch()
    }
}
