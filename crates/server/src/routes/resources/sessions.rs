//! Sessions as a [stream](crate::sse) of resources: existing ones, then changes.

use overmind_api::ResourceSnapshot;
use overmind_core::ids::SessionId;
use overmind_core::record::kinds::shown::SESSION;
use overmind_core::record::{KindInfo, Selector};
use overmind_core::store::Page;
use overmind_engine::request::SessionQuery;
use overmind_engine::{Caller, EngineError, RecordFilter};
use tokio::sync::watch;

use super::shown::{gone, sessions};
use crate::cx::Cx;
use crate::sse::{Look, Source, say};

/// Sessions read at once.
const PAGE: u32 = 100;
/// Events of the log that are read at once.
const EVENTS: u32 = 1_000;

enum At {
    /// Sends existing ones: after this one; the number of the log before the first.
    Snapshot(Option<SessionId>, Option<u64>),
    /// Sending what changes after this number.
    Following(u64),
}

pub(super) struct SessionSource {
    selector: Selector,
    at: At,
}

impl SessionSource {
    pub(super) fn new(selector: Selector, after: Option<u64>) -> Self {
        Self { selector, at: after.map_or(At::Snapshot(None, None), At::Following) }
    }

    /// The number of the log now.
    async fn now(cx: &Cx, by: &Caller) -> Result<u64, EngineError> {
        let kind: &KindInfo = &SESSION;
        let filter = RecordFilter { limit: 1, ..RecordFilter::default() };
        Ok(cx.engine.record_list(by, kind, filter).await?.at)
    }
}

impl Source for SessionSource {
    async fn look(&mut self, cx: &Cx, by: &Caller) -> Result<Look, EngineError> {
        let mut text = String::new();
        match &self.at {
            At::Snapshot(after, first) => {
                let number = match first {
                    Some(number) => *number,
                    None => Self::now(cx, by).await?,
                };
                let selector = self.selector.clone();
                let query = SessionQuery { selector, ..SessionQuery::default() };
                let page = Page { after: *after, limit: PAGE };
                let rows = cx.engine.session_list(by, query, page).await?;
                let last = rows.last().map(|row| row.id);
                for one in sessions(cx, rows).await? {
                    say(&mut text, None::<u64>, Some("put"), &one);
                }
                self.at = match last {
                    Some(last) => At::Snapshot(Some(last), Some(number)),
                    None => {
                        let snapshot = ResourceSnapshot { resource_version: number.to_string() };
                        say(&mut text, Some(number), Some("snapshot"), &snapshot);
                        At::Following(number)
                    }
                };
                Ok(Look::More(text))
            }
            At::Following(after) => {
                let changes = cx.engine.session_changes(by, *after, EVENTS).await?;
                if changes.at == *after {
                    return Ok(Look::Nothing);
                }
                let at = changes.at;
                let mut rows = changes.rows;
                rows.retain(|row| self.selector.matches(&row.labels));
                for one in sessions(cx, rows).await? {
                    say(&mut text, None::<u64>, Some("put"), &one);
                }
                for id in changes.gone {
                    say(&mut text, None::<u64>, Some("deleted"), &gone(&SESSION, id, at));
                }
                self.at = At::Following(at);
                // Only now was everything up to here sent.
                text.push_str(&format!("id: {at}\n\n"));
                Ok(Look::More(text))
            }
        }
    }

    fn watch(&self, cx: &Cx) -> watch::Receiver<u64> {
        cx.engine.log_watch()
    }
}
