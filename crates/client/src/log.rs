//! The whole log as it grows, across broken connections.

use overmind_api::Event;

use crate::calls::Client;
use crate::error::ClientError;
use crate::stream::{From, Message, Reader, Said, Stream};

/// The events of all runs and of the system as they come. Resumes by itself where the connection
/// broke; nothing comes twice and nothing is left out.
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
    /// Connects, so that a refusal is an error here and not at the first event.
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

    /// The next event; `None` only after an error.
    ///
    /// # Errors
    ///
    /// [`ClientError`] when the stream broke and could not be resumed; it is over then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call goes on.
    pub async fn next(&mut self) -> Option<Result<Event, ClientError>> {
        self.0.next().await
    }
}
