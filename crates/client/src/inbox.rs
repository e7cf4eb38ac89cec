//! A stream of the inbox's changes that survives broken connections.

use overmind_api::{InboxItem, InboxSnapshot};

use crate::calls::Client;
use crate::error::ClientError;
use crate::stream::{From, Message, Reader, Said, Stream};

/// A message of the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum InboxNews {
    /// An item that is open.
    Opened(Box<InboxItem>),
    /// An item that was answered or withdrawn. It may never have been sent as open.
    Closed(Box<InboxItem>),
    /// All open items have been sent, and changes follow.
    Snapshot(InboxSnapshot),
}

/// Streams the changes of the inbox. Reconnects automatically; after that, an item may be sent
/// again in its present form.
#[derive(Debug)]
pub struct InboxWatch(Stream<News>);

#[derive(Debug)]
struct News;

impl Reader for News {
    type Item = InboxNews;

    fn read(&self, message: Message) -> Result<Said<InboxNews>, serde_json::Error> {
        let item = || serde_json::from_str(&message.data).map(Box::new);
        Ok(Said::Item(match message.event.as_deref() {
            Some("opened") => InboxNews::Opened(item()?),
            Some("closed") => InboxNews::Closed(item()?),
            Some("snapshot") => InboxNews::Snapshot(serde_json::from_str(&message.data)?),
            Some(_) | None => return Ok(Said::Unknown),
        }))
    }
}

impl InboxWatch {
    /// Connects at once, so that a refusal is an error here and not at the first item.
    pub(crate) async fn open(
        client: Client,
        after: Option<String>,
        max_resumes: u32,
    ) -> Result<Self, ClientError> {
        let from = From {
            attempt: "watching the inbox".to_owned(),
            target: "/api/inbox/events".to_owned(),
            last: after,
            max_resumes,
            ends: false,
        };
        Ok(Self(Stream::open(client, from, News).await?))
    }

    /// Returns the next message; `None` only after an error.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the stream broke and could not be resumed. It is then over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call continues.
    pub async fn next(&mut self) -> Option<Result<InboxNews, ClientError>> {
        self.0.next().await
    }
}
