//! A stream of the whole log that survives broken connections.

use overmind_api::Event;

use crate::calls::Client;
use crate::error::ClientError;
use crate::stream::{From, Message, Reader, Said, Stream};

/// Streams the events of all runs and of the system. Reconnects automatically; every event is sent
/// exactly once.
#[derive(Debug)]
pub struct LogWatch(Stream<Events>);

#[derive(Debug)]
struct Events;

impl Reader for Events {
    type Item = Event;

    fn read(&self, message: Message) -> Result<Said<Event>, serde_json::Error> {
        match message.event {
            None => serde_json::from_str(&message.data).map(Said::Item),
            Some(_) => Ok(Said::Unknown),
        }
    }
}

impl LogWatch {
    /// Connects at once, so that a refusal is an error here and not at the first event.
    pub(crate) async fn open(
        client: Client,
        after: Option<u64>,
        max_resumes: u32,
    ) -> Result<Self, ClientError> {
        let from = From {
            attempt: "watching the log".to_owned(),
            target: "/api/events/stream".to_owned(),
            last: after.map(|number| number.to_string()),
            max_resumes,
            ends: false,
        };
        Ok(Self(Stream::open(client, from, Events).await?))
    }

    /// Returns the next event; `None` only after an error.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the stream broke and could not be resumed. It is then over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call continues.
    pub async fn next(&mut self) -> Option<Result<Event, ClientError>> {
        self.0.next().await
    }
}
