//! Records of a kind as a [stream](crate::sse): existing ones, then changes.

use overmind_api::{ResourceGone, ResourceSnapshot, kind_title};
use overmind_core::ids::RecordId;
use overmind_core::record::rows::RecordNews;
use overmind_core::record::{KindInfo, RecordKey, Selector};
use overmind_engine::{Caller, EngineError, RecordError, RecordFilter};
use tokio::sync::watch;

use crate::cx::Cx;
use crate::sse::{Look, Source, say};

/// Records read at once.
const PAGE: u32 = 100;

/// The position of a stream.
enum At {
    /// Sends existing ones: after this record; the number of the first page, once it was read.
    Snapshot(Option<RecordKey>, Option<u64>),
    /// Sending what changes after this number.
    Following(u64),
}

pub(super) struct RecordSource {
    info: &'static KindInfo,
    selector: Selector,
    at: At,
}

impl RecordSource {
    pub(super) fn new(info: &'static KindInfo, selector: Selector, after: Option<u64>) -> Self {
        let at = after.map_or(At::Snapshot(None, None), At::Following);
        Self { info, selector, at }
    }

    fn gone(out: &mut String, number: u64, id: RecordId, key: &RecordKey) {
        let gone = ResourceGone {
            kind: kind_title(key.kind.as_str()),
            name: key.name.as_str().to_owned(),
            uid: id.to_string(),
            resource_version: number.to_string(),
        };
        say(out, Some(number), Some("deleted"), &gone);
    }
}

impl Source for RecordSource {
    async fn look(&mut self, cx: &Cx, by: &Caller) -> Result<Look, EngineError> {
        let mut text = String::new();
        match &self.at {
            At::Snapshot(after, first) => {
                let filter = RecordFilter {
                    selector: self.selector.clone(),
                    owner: None,
                    after: after.clone(),
                    limit: PAGE,
                };
                let page = cx.engine.record_list(by, self.info, filter).await?;
                let number = first.unwrap_or(page.at);
                let last = page.records.last().map(|record| record.key.clone());
                for record in page.records {
                    say(&mut text, None::<u64>, Some("put"), &super::resource(cx, record));
                }
                match last.filter(|_| page.more) {
                    Some(last) => self.at = At::Snapshot(Some(last), Some(number)),
                    None => {
                        let snapshot = ResourceSnapshot { resource_version: number.to_string() };
                        say(&mut text, Some(number), Some("snapshot"), &snapshot);
                        self.at = At::Following(number);
                    }
                }
                Ok(Look::More(text))
            }
            At::Following(after) => {
                let found = cx.engine.record_changes(by, self.info, *after, PAGE).await;
                let changes = match found {
                    Ok(changes) => changes,
                    Err(RecordError::Engine(err)) => return Err(err),
                    Err(err) => {
                        // Only a client that reads very slowly reaches this; a new one is refused at once.
                        let problem = super::fault(err, |_| None);
                        say(&mut text, None::<u64>, Some("error"), problem.problem());
                        return Ok(Look::Last(text));
                    }
                };
                if changes.at == *after {
                    return Ok(Look::Nothing);
                }
                for news in changes.news {
                    let number = news.changed();
                    match news {
                        RecordNews::Put(record) if self.selector.matches(&record.labels) => {
                            say(
                                &mut text,
                                Some(number),
                                Some("put"),
                                &super::resource(cx, *record),
                            );
                        }
                        RecordNews::Put(record) => {
                            Self::gone(&mut text, number, record.id, &record.key);
                        }
                        RecordNews::Gone(tombstone) => {
                            Self::gone(&mut text, number, tombstone.id, &tombstone.key);
                        }
                    }
                }
                self.at = At::Following(changes.at);
                if text.is_empty() {
                    // Other kinds changed: a resuming client need not read these changes again.
                    text = format!("id: {}\n\n", changes.at);
                }
                Ok(Look::More(text))
            }
        }
    }

    fn watch(&self, cx: &Cx) -> watch::Receiver<u64> {
        cx.engine.record_watch()
    }
}
