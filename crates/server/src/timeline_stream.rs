//! A run's timeline as a [stream](crate::sse).

use overmind_api::{Done, RunStatus};
use overmind_core::ids::{AgentId, SessionId};
use overmind_core::row::SessionRow;
use overmind_engine::view::TimelineItem;
use overmind_engine::{Caller, EngineError};
use tokio::sync::watch;

use crate::convert;
use crate::cx::Cx;
use crate::sse::{Look, Source, number, say};

/// Items read at once. A page is the most that one stream holds in memory.
const PAGE: u32 = 128;

/// `(seq, part)` of a timeline item; the SSE id is `seq.part`.
pub(crate) type Place = (u64, u8);

/// The part of `event: done`, after every item: a client that resumes after it has everything.
const DONE: u8 = u8::MAX;

/// Whether a client that resumes here already got `done`, if the run has ended.
pub(crate) fn is_done(place: Place) -> bool {
    place.1 == DONE
}

pub(crate) fn parse_place(text: &str) -> Option<Place> {
    let (seq, part) = text.split_once('.')?;
    Some((number(seq)?, number(part)?))
}

/// The timeline of one run, from a position on: to its end, or to the stored items.
pub(crate) struct TimelineSource {
    run: SessionId,
    agent: AgentId,
    after: Place,
    follow: bool,
}

impl TimelineSource {
    pub(crate) fn new(run: &SessionRow, after: Place, follow: bool) -> Self {
        Self { run: run.id, agent: run.agent, after, follow }
    }

    fn write(&mut self, items: Vec<TimelineItem>) -> String {
        let mut text = String::with_capacity(items.len() * 512);
        for item in items {
            let (seq, part) = item.place;
            self.after = item.place;
            let entry = convert::timeline(item, self.agent);
            say(&mut text, Some(format_args!("{seq}.{part}")), None, &entry);
        }
        text
    }
}

impl Source for TimelineSource {
    async fn look(&mut self, cx: &Cx, by: &Caller) -> Result<Look, EngineError> {
        let page = cx.engine.session_timeline(by, self.run, self.after, PAGE).await?;
        let over = !page.more && page.status.is_terminal();
        let nothing_new = page.items.is_empty();
        let mut text = self.write(page.items);
        if over {
            let done = Done { run_id: self.run, status: RunStatus::from(page.status) };
            let (seq, _) = self.after;
            say(&mut text, Some(format_args!("{seq}.{DONE}")), Some("done"), &done);
            return Ok(Look::Last(text));
        }
        if !self.follow && (nothing_new || !page.more) {
            return Ok(Look::Last(text));
        }
        Ok(if nothing_new { Look::Nothing } else { Look::More(text) })
    }

    fn watch(&self, cx: &Cx) -> watch::Receiver<u64> {
        cx.engine.session_watch(self.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_position_is_two_numbers() {
        assert_eq!(parse_place("17.3"), Some((17, 3)));
        assert_eq!(parse_place("18446744073709551615.255"), Some((u64::MAX, 255)));
        for bad in ["", "17", "17.", ".3", "17.256", "+1.0", "1.-0", "1.0.0", "a.b", "1 .0"] {
            assert_eq!(parse_place(bad), None, "{bad}");
        }
    }
}
