//! A stream of a run's timeline that survives broken connections.

use overmind_api::{Done, Timeline};

use crate::calls::Client;
use crate::error::ClientError;
use crate::page::TargetPath;
use crate::stream::{From, Message, Reader, Said, Stream};

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Waits for new entries until the run ends.
    pub follow: bool,
    /// Starts after this item.
    pub after: Option<String>,
    /// Consecutive attempts to resume a broken stream, before its error is returned.
    pub max_resumes: u32,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { follow: false, after: None, max_resumes: 10 }
    }
}

/// An item of a replay.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplayItem {
    Entry {
        /// The id for resuming after this item: [`ReplayOptions::after`].
        id: String,
        entry: Box<Timeline>,
        /// The entry as the server sent it.
        json: String,
    },
    /// The run has ended, and no item follows.
    Done(Done),
}

/// A running replay. Reconnects automatically, and sends no item twice.
#[derive(Debug)]
pub struct Replay(Stream<Entries>);

#[derive(Debug)]
struct Entries;

impl Reader for Entries {
    type Item = ReplayItem;

    fn read(&self, message: Message) -> Result<Said<ReplayItem>, serde_json::Error> {
        match message {
            Message { event: Some(event), data, .. } if event == "done" => {
                Ok(Said::Last(ReplayItem::Done(serde_json::from_str(&data)?)))
            }
            Message { id: Some(id), event: None, data } => {
                let entry = Box::new(serde_json::from_str(&data)?);
                Ok(Said::Item(ReplayItem::Entry { id, entry, json: data }))
            }
            Message { .. } => Ok(Said::Unknown),
        }
    }
}

impl Replay {
    /// Connects at once, so that an unknown run is an error here and not at the first item.
    pub(crate) async fn open(
        client: Client,
        run: &str,
        options: ReplayOptions,
    ) -> Result<Self, ClientError> {
        let ReplayOptions { follow, after, max_resumes } = options;
        let target = TargetPath::new("/api/runs")
            .segment(run)
            .then("/replay")
            .query("follow", follow.then_some(1));
        let from = From {
            attempt: format!("replaying {run}"),
            target: target.as_str().to_owned(),
            last: after,
            max_resumes,
            ends: !follow,
        };
        Ok(Self(Stream::open(client, from, Entries).await?))
    }

    /// Returns the next item. Returns `None` after [`ReplayItem::Done`], and without `follow` at
    /// the end of the stored entries.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the stream broke and could not be resumed. The replay is then over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call continues.
    pub async fn next(&mut self) -> Option<Result<ReplayItem, ClientError>> {
        self.0.next().await
    }
}
