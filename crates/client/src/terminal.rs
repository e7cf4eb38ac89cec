//! A run's terminal, over a WebSocket.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::Method;
use hyper::header::{self, HeaderName};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use overmind_api::{
    ATTACH_PROTOCOL, AttachMode, AttachSaid, AttachWord, MAX_ATTACH_MESSAGE, TerminalSize,
};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::calls::Client;
use crate::connection::{Call, Patience};
use crate::error::ClientError;
use crate::page::TargetPath;

/// Time without data after which the server counts as lost. It sends a heartbeat every 15 seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// Largest message that is accepted, in bytes: the largest screen with colours in every cell.
const MAX_MESSAGE: usize = 64 << 20;
const ATTEMPT: &str = "looking at a terminal";

/// A message from a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminalNews {
    /// Bytes to write to the viewer's own terminal.
    Bytes(Bytes),
    Said(AttachSaid),
}

/// The terminal of a run's command. It belongs to one attempt and cannot be resumed.
#[derive(Debug)]
pub struct Terminal {
    socket: WebSocketStream<TokioIo<Upgraded>>,
    target: String,
}

impl Terminal {
    pub(crate) async fn open(
        client: &Client,
        run: &str,
        mode: AttachMode,
        size: Option<TerminalSize>,
    ) -> Result<Self, ClientError> {
        let path = TargetPath::new("/api/runs")
            .segment(run)
            .then("/attach")
            .query("mode", Some(mode.as_str()))
            .query("columns", size.map(|size| size.columns))
            .query("rows", size.map(|size| size.rows));
        let key = generate_key();
        let plain = |name: HeaderName, value: &str| (name, value.to_owned());
        let call = Call {
            method: Method::GET,
            target: path.as_str(),
            headers: vec![
                plain(header::CONNECTION, "Upgrade"),
                plain(header::UPGRADE, "websocket"),
                plain(header::SEC_WEBSOCKET_VERSION, "13"),
                plain(header::SEC_WEBSOCKET_KEY, &key),
                plain(header::SEC_WEBSOCKET_PROTOCOL, ATTACH_PROTOCOL),
            ],
            body: None,
            patience: Patience::Quick,
            also_fine: &[],
        };
        let connections = client.connections();
        let (upgraded, headers) = Box::pin(connections.upgrade(&call)).await?;
        let says = |name: HeaderName, wanted: &str| {
            headers.get(name).is_some_and(|value| value.as_bytes() == wanted.as_bytes())
        };
        if !says(header::SEC_WEBSOCKET_ACCEPT, &derive_accept_key(key.as_bytes()))
            || !says(header::SEC_WEBSOCKET_PROTOCOL, ATTACH_PROTOCOL)
        {
            let why = "the server speaks another protocol".to_owned();
            return Err(ClientError::Unreadable { attempt: ATTEMPT.to_owned(), why });
        }
        let config = WebSocketConfig::default()
            .write_buffer_size(0)
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE));
        let io = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(io, Role::Client, Some(config)).await;
        Ok(Self { socket, target: client.target().to_string() })
    }

    /// Returns the next message; `None` after the server has closed the connection cleanly.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the connection broke, or the server sent nothing for a minute.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<TerminalNews>, ClientError> {
        loop {
            let frame = match tokio::time::timeout(SILENCE, self.socket.next()).await {
                Err(_) => {
                    let target = self.target.clone();
                    return Err(ClientError::Timeout { target, after: SILENCE });
                }
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => frame.map_err(|err| self.broken(err))?,
            };
            match frame {
                Message::Binary(bytes) => return Ok(Some(TerminalNews::Bytes(bytes))),
                // A word of a newer server is passed over.
                Message::Text(text) => {
                    if let Ok(said) = serde_json::from_str(text.as_str()) {
                        return Ok(Some(TerminalNews::Said(said)));
                    }
                }
                Message::Close(_) => return Ok(None),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    /// Sends typed input. The server reports refused input with [`AttachSaid::Refused`].
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the connection broke.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        for piece in bytes.chunks(MAX_ATTACH_MESSAGE) {
            let sent = self.socket.send(Message::Binary(Bytes::copy_from_slice(piece))).await;
            sent.map_err(|err| self.broken(err))?;
        }
        Ok(())
    }

    /// Sends the viewer's size.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the connection broke.
    pub async fn resize(&mut self, size: TerminalSize) -> Result<(), ClientError> {
        let word = serde_json::to_string(&AttachWord::Resize(size));
        let word = word.map_err(|err| ClientError::Unreadable {
            attempt: ATTEMPT.to_owned(),
            why: err.to_string(),
        })?;
        self.socket.send(Message::Text(word.into())).await.map_err(|err| self.broken(err))
    }

    /// Closes the connection, cleanly if the server responds.
    pub async fn close(mut self) {
        let farewell = async {
            if self.socket.close(None).await.is_ok() {
                while let Some(Ok(_)) = self.socket.next().await {}
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), farewell).await;
    }

    fn broken(&self, source: tokio_tungstenite::tungstenite::Error) -> ClientError {
        let (target, source) = (self.target.clone(), Box::new(source));
        ClientError::Broken { target, attempt: ATTEMPT.to_owned(), source }
    }
}
