//! A terminal over a WebSocket: bytes in both directions, and small words beside them.
//!
//! The process writes into its log and is never blocked: a viewer reads at its own pace, gets the
//! current screen if it was too slow, and is disconnected if it reads nothing at all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use overmind_api::{AttachMode, AttachSaid, AttachWord, MAX_ATTACH_MESSAGE, ProblemKind};
use overmind_core::ids::SessionId;
use overmind_core::process::{Ended, ExitStatus, ProcessError, Seen, TerminalSize};
use overmind_engine::Attached;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::config::ServerConfig;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::proof::Proof;

/// How long a program may take to read typed text. Nothing is shown meanwhile.
const TYPING: Duration = Duration::from_secs(2);
/// From our answer to the client's first frame.
const UPGRADE: Duration = Duration::from_secs(10);
/// How long a client may take to answer our farewell.
const FAREWELL: Duration = Duration::from_secs(1);
/// Signs of life that a client may leave unanswered.
const MISSED: u32 = 3;

/// The number of viewers of each run.
#[derive(Debug, Default)]
pub(crate) struct Viewers(Mutex<HashMap<SessionId, usize>>);

/// One viewer, for as long as it looks.
#[derive(Debug)]
pub(crate) struct Seat {
    viewers: Arc<Viewers>,
    run: SessionId,
}

impl Viewers {
    /// # Errors
    ///
    /// 429 when as many look as may.
    pub(crate) fn seat(
        self: &Arc<Self>,
        run: SessionId,
        config: &ServerConfig,
    ) -> Result<Seat, Fault> {
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here = seats.get(&run).copied().unwrap_or(0);
        let full = if here >= config.max_viewers_per_run {
            Some(format!("{here} viewers are attached to this run"))
        } else if seats.values().sum::<usize>() >= config.max_viewers {
            Some("too many terminals are attached".to_owned())
        } else {
            None
        };
        if let Some(why) = full {
            let hint = "try again after one of them has detached";
            return Err(Fault::new(ProblemKind::RateLimited, why).with_hint(hint));
        }
        seats.insert(run, here + 1);
        Ok(Seat { viewers: Arc::clone(self), run })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.viewers.0.lock().unwrap_or_else(PoisonError::into_inner);
        match seats.get_mut(&self.run) {
            Some(here) if *here > 1 => *here -= 1,
            Some(_) | None => drop(seats.remove(&self.run)),
        }
    }
}

/// Why a viewer is disconnected.
enum Over {
    /// It left, or its connection broke.
    Left,
    /// The attempt has ended; the viewer was informed.
    Ended,
    /// It continues without this viewer, for this reason.
    Away(String),
    /// The same: the viewer may not look any more.
    Lapsed(String),
}

/// One viewer's connection.
struct Viewer {
    socket: WebSocketStream<TokioIo<Upgraded>>,
    read_only: bool,
    proof: Proof,
}

/// Serves a viewer from the upgrade of its connection until it leaves, and records that it has.
pub(crate) async fn serve(
    cx: Arc<Cx>,
    proof: Proof,
    seat: Seat,
    mut attached: Attached,
    mode: AttachMode,
    upgrade: OnUpgrade,
) {
    let _open = cx.metrics.viewer();
    if let Ok(Ok(upgraded)) = tokio::time::timeout(UPGRADE, upgrade).await {
        let config = WebSocketConfig::default()
            .read_buffer_size(4 << 10)
            .write_buffer_size(0)
            .max_write_buffer_size(256 << 10)
            .max_message_size(Some(MAX_ATTACH_MESSAGE))
            .max_frame_size(Some(MAX_ATTACH_MESSAGE));
        let io = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let mut viewer = Viewer { socket, read_only: mode == AttachMode::Read, proof };
        let over = match viewer.look(&cx, &mut attached, mode).await {
            Ok(over) => over,
            Err(err) => {
                tracing::debug!(error = %err, "a viewer's connection broke");
                Over::Left
            }
        };
        viewer.farewell(over).await;
    }
    drop(seat);
    if let Err(err) = cx.engine.session_detach(attached).await {
        tracing::warn!(error = %err, "that a viewer has left was not recorded");
    }
}

impl Viewer {
    async fn look(
        &mut self,
        cx: &Cx,
        attached: &mut Attached,
        mode: AttachMode,
    ) -> Result<Over, Error> {
        self.say(&AttachSaid::Began { life: attached.life(), mode }).await?;
        let mut signs = tokio::time::interval(cx.config.keepalive);
        signs.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut missed = 0;
        loop {
            // Dropping this loses nothing: a partly read frame stays in the socket, output stays in
            // the log.
            tokio::select! {
                () = cx.stop.cancelled() => {
                    return Ok(Over::Away("the server is shutting down".to_owned()));
                }
                frame = self.socket.next() => {
                    missed = 0;
                    match frame {
                        None => return Ok(Over::Left),
                        Some(frame) => {
                            let frame = frame?;
                            if let Some(over) = self.lapsed(cx).await {
                                return Ok(over);
                            }
                            if let Some(over) = self.hear(frame, attached).await? {
                                return Ok(over);
                            }
                        }
                    }
                }
                seen = attached.view.next() => {
                    if let Some(over) = self.lapsed(cx).await {
                        return Ok(over);
                    }
                    if let Some(over) = self.show(seen).await? {
                        return Ok(over);
                    }
                }
                _ = signs.tick() => {
                    if let Some(over) = self.lapsed(cx).await {
                        return Ok(over);
                    }
                    if missed == MISSED {
                        return Ok(Over::Left);
                    }
                    missed += 1;
                    self.socket.send(Message::Ping(Default::default())).await?;
                }
            }
        }
    }

    /// Why it may not look any more, if so. Asked before anything is shown or typed.
    async fn lapsed(&mut self, cx: &Cx) -> Option<Over> {
        self.proof.again(cx).await.err().map(|err| Over::Lapsed(err.to_string()))
    }

    async fn show(&mut self, seen: Result<Seen, ProcessError>) -> Result<Option<Over>, Error> {
        match seen {
            Ok(Seen::Output(bytes)) => self.socket.send(Message::Binary(bytes.into())).await?,
            Ok(Seen::Screen(painted)) => {
                let size = painted.size.into();
                self.say(&AttachSaid::Screen { size, skipped: painted.skipped }).await?;
                self.socket.send(Message::Binary(painted.bytes.into())).await?;
            }
            // Only for viewers that want no screens.
            Ok(Seen::Skipped(_)) => {}
            Ok(Seen::Ended(ended)) => {
                let (exit_code, signal, reason) = match ended {
                    Ended::Exited(exit) => match exit.status {
                        ExitStatus::Code(code) => (Some(code), None, None),
                        ExitStatus::Signal(signal) => (None, Some(signal), None),
                    },
                    Ended::Lost { reason, killed: _ } => (None, None, Some(reason)),
                };
                self.say(&AttachSaid::Ended { exit_code, signal, reason }).await?;
                return Ok(Some(Over::Ended));
            }
            Err(err) => return Ok(Some(Over::Away(err.to_string()))),
        }
        Ok(None)
    }

    async fn hear(
        &mut self,
        frame: Message,
        attached: &mut Attached,
    ) -> Result<Option<Over>, Error> {
        let typed = match frame {
            Message::Binary(bytes) if !self.read_only && !bytes.is_empty() => {
                attached.view.write(bytes.into(), TYPING).await
            }
            Message::Text(text) => match serde_json::from_str(text.as_str()) {
                Ok(AttachWord::Resize(size)) if size.is_sound() => {
                    attached.view.resize(TerminalSize::from(size)).await
                }
                Ok(AttachWord::Resize(size)) => {
                    let message = format!("no terminal is {} by {}", size.columns, size.rows);
                    self.say(&AttachSaid::Refused { message }).await?;
                    return Ok(None);
                }
                Err(err) => {
                    let message = format!("this message is not valid: {err}");
                    self.say(&AttachSaid::Refused { message }).await?;
                    return Ok(None);
                }
            },
            Message::Close(_) => return Ok(Some(Over::Left)),
            Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {
                return Ok(None);
            }
        };
        match typed {
            // The end is reported in its place among the output.
            Ok(()) | Err(ProcessError::NotAlive(_)) => {}
            Err(err) => self.say(&AttachSaid::Refused { message: err.to_string() }).await?,
        }
        Ok(None)
    }

    async fn say(&mut self, said: &AttachSaid) -> Result<(), Error> {
        let text = serde_json::to_string(said).expect("a word is texts and numbers");
        self.socket.send(Message::Text(text.into())).await
    }

    /// Closes in good order, as far as the client goes along.
    async fn farewell(mut self, over: Over) {
        let code = match over {
            Over::Left | Over::Ended => CloseCode::Normal,
            Over::Away(reason) => {
                let _ = self.say(&AttachSaid::Away { reason }).await;
                CloseCode::Away
            }
            Over::Lapsed(reason) => {
                let _ = self.say(&AttachSaid::Away { reason }).await;
                CloseCode::Policy
            }
        };
        let close = async {
            let frame = CloseFrame { code, reason: Default::default() };
            if self.socket.close(Some(frame)).await.is_ok() {
                while let Some(Ok(_)) = self.socket.next().await {}
            }
        };
        let _ = tokio::time::timeout(FAREWELL, close).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn viewers_are_counted_per_run_and_in_total() {
        let config =
            ServerConfig { max_viewers: 3, max_viewers_per_run: 2, ..ServerConfig::default() };
        let viewers = Arc::new(Viewers::default());
        let run = SessionId::from_u128;
        let seat = |n| viewers.seat(run(n), &config).map_err(|fault| fault.problem().status);
        let one = seat(1).unwrap();
        let two = seat(1).unwrap();
        assert_eq!(seat(1).unwrap_err(), 429);
        let three = seat(2).unwrap();
        assert_eq!(seat(3).unwrap_err(), 429, "in all");
        drop(one);
        let four = seat(3).unwrap();
        drop((two, three, four));
        assert!(viewers.0.lock().unwrap().is_empty());
    }
}
