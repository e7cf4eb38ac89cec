//! Requests of callers: ends, answers, decisions, and further texts.

use overmind_core::command::{LifeInput, StopHow};
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::session::{Input, Refusal, STOP_GRACE_MS};
use tokio::sync::oneshot;

use super::{Driver, Order, Stop};
use crate::cortex::shutting_down;
use crate::error::EngineError;

impl Driver {
    /// Executes a request, and answers with the resulting row.
    pub(super) async fn ordered(
        &mut self,
        order: Order,
        reply: oneshot::Sender<Result<SessionRow, EngineError>>,
    ) -> Result<(), Stop> {
        let (epoch, hive) = (self.session().row().epoch + 1, self.cortex.hive());
        let another = match &order {
            Order::Answer { item: Some(item), .. } => {
                self.session().waiting().is_none_or(|waiting| waiting.id != *item)
            }
            Order::Answer { item: None, .. }
            | Order::Cancel { .. }
            | Order::Stop { .. }
            | Order::EndRest { .. }
            | Order::Kill { .. }
            | Order::Tell { .. }
            | Order::Restore { .. }
            | Order::Decide { .. } => false,
        };
        if another {
            let _ = reply.send(Err(EngineError::conflict("Run waits for another answer")));
            return Ok(());
        }
        let input = match order {
            Order::Cancel { by, reason } => Input::Canceled { by, reason },
            Order::Stop { how, by } => match self.session().row().command {
                _ if self.session().status() == SessionStatus::Idle => {
                    Input::Life(LifeInput::StopAsked { how, by })
                }
                Some(_) => Input::Life(LifeInput::StopAsked { how, by }),
                None => Input::Canceled { by, reason: None },
            },
            Order::EndRest { .. } if self.session().status() != SessionStatus::Idle => {
                let _ = reply.send(Err(EngineError::conflict("Run does not rest any more")));
                return Ok(());
            }
            Order::EndRest { by } => {
                let how = StopHow::Stop { grace_ms: STOP_GRACE_MS };
                Input::Life(LifeInput::StopAsked { how, by })
            }
            Order::Kill { by } => match self.session().row().command {
                Some(_) => Input::Life(LifeInput::StopAsked { how: StopHow::Kill, by }),
                None => Input::Canceled { by, reason: None },
            },
            Order::Answer { item: _, message, by } => Input::Answered { message, by, epoch, hive },
            Order::Tell { message, by } => Input::Told { message, by, epoch, hive },
            // It applies to this end, and to no later one.
            Order::Restore { ended, by } => Input::Restored { by, epoch: ended + 1, hive },
            Order::Decide { approval, approve, reason, by } => {
                Input::Decided { approval, approve, reason, by, epoch, hive }
            }
        };
        let answer = match self.session().accepts(&input) {
            // It is already being ended, at least as forcefully.
            Err(Refusal::Stale) if matches!(input, Input::Life(LifeInput::StopAsked { .. })) => {
                Ok(self.session().row().clone())
            }
            Err(refusal) => Err(EngineError::conflict(refusal.to_string())),
            Ok(()) => match self.input(input).await {
                Ok(()) => Ok(self.session().row().clone()),
                Err(stop) => {
                    let _ = reply.send(Err(shutting_down()));
                    return Err(stop);
                }
            },
        };
        let _ = reply.send(answer);
        Ok(())
    }
}
