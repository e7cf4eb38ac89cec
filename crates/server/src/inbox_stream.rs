//! The inbox as a [stream](crate::sse): what is open, then how items stand whenever one changes, not
//! how they came to.

use overmind_api::{InboxItem, InboxSnapshot};
use overmind_core::inbox::{self, InboxCursor, InboxState};
use overmind_core::store::Page;
use overmind_engine::request::InboxQuery;
use overmind_engine::{Caller, EngineError};
use tokio::sync::watch;

use crate::cx::Cx;
use crate::sse::{Look, Source, say};

/// Items read at once.
const PAGE: u32 = 100;

/// The position of a stream.
enum At {
    /// Sending what is open; the cursor of the last one sent, and the snapshot that ends it.
    Snapshot(Option<InboxCursor>, InboxSnapshot),
    Following,
}

pub(crate) struct InboxSource {
    at: At,
    /// The last change sent.
    after: u64,
}

impl InboxSource {
    /// `open` and `changed` were read together, before anything is sent: a change that comes
    /// between is sent twice rather than not at all.
    pub(crate) fn new(after: Option<u64>, open: u64, changed: u64) -> Self {
        let at = match after {
            Some(_) => At::Following,
            None => At::Snapshot(None, InboxSnapshot { open, changed }),
        };
        Self { at, after: after.unwrap_or(changed) }
    }
}

impl Source for InboxSource {
    async fn look(&mut self, cx: &Cx, by: &Caller) -> Result<Look, EngineError> {
        let mut text = String::new();
        match &self.at {
            At::Snapshot(after, snapshot) => {
                let (page, snapshot) = (Page { limit: PAGE, after: *after }, *snapshot);
                let query = InboxQuery { state: Some(InboxState::Open), ..InboxQuery::default() };
                let items = cx.engine.inbox_list(by, query, page).await?;
                for item in &items {
                    told(&mut text, None, item);
                }
                match items.last() {
                    Some(last) => self.at = At::Snapshot(Some(last.cursor()), snapshot),
                    None => {
                        say(&mut text, Some(snapshot.changed), Some("snapshot"), &snapshot);
                        self.at = At::Following;
                    }
                }
                Ok(Look::More(text))
            }
            At::Following => {
                let items = cx.engine.inbox_changes(by, self.after, PAGE).await?;
                for (n, item) in items.iter().enumerate() {
                    // Those of one commit share a number: only after the last of them is it
                    // true that everything up to it was sent.
                    let last = items.get(n + 1).is_none_or(|next| next.changed != item.changed);
                    told(&mut text, last.then_some(item.changed), item);
                }
                let Some(last) = items.last() else { return Ok(Look::Nothing) };
                self.after = last.changed;
                Ok(Look::More(text))
            }
        }
    }

    fn watch(&self, cx: &Cx) -> watch::Receiver<u64> {
        cx.engine.inbox_watch()
    }
}

fn told(out: &mut String, id: Option<u64>, item: &inbox::InboxItem) {
    let event = if item.state == InboxState::Open { "opened" } else { "closed" };
    say(out, id, Some(event), &InboxItem::from(item.clone()));
}
