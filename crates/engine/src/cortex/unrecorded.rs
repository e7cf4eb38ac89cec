//! Ends that are done before they are written down: while the store refuses, most often because its
//! disk is full, and what fills it may be the very command that is to end.

use std::time::Duration;

use overmind_core::bus::ToHive;
use overmind_core::command::StopHow;
use overmind_core::ids::SessionId;
use overmind_core::row::SessionRow;
use tokio::sync::oneshot;

use super::{Cortex, shutting_down};
use crate::error::EngineError;

/// For the record, once the processes were told to end. After that the caller hears that it is late.
const PATIENCE: Duration = Duration::from_secs(1);

impl Cortex {
    /// Waits for the answer to an order to end a session. Where the store refuses, its commands are
    /// told to end without a record; that follows when there is room.
    ///
    /// # Errors
    ///
    /// Those of the order; [`EngineError::Unavailable`] when it is done and not recorded.
    pub(super) async fn ended_by(
        &self,
        session: SessionId,
        how: StopHow,
        by: &str,
        mut answer: oneshot::Receiver<Result<SessionRow, EngineError>>,
    ) -> Result<SessionRow, EngineError> {
        let mut degraded = self.degraded.subscribe();
        tokio::select! {
            biased;
            answer = &mut answer => return answer.unwrap_or_else(|_| Err(shutting_down())),
            _ = degraded.wait_for(Option::is_some) => {}
        }
        let reason = match how {
            StopHow::Kill => format!("killed by {by}"),
            StopHow::Stop { .. } => format!("stopped by {by}"),
        };
        let end = ToHive::EndUnrecorded { session, how, reason };
        if let Err(err) = self.bus.send(self.hive(), end).await {
            tracing::warn!(session.id = %session, error = %err, "the hive does not hear");
        }
        let until = self.clock.now().after(PATIENCE);
        tokio::select! {
            biased;
            answer = &mut answer => return answer.unwrap_or_else(|_| Err(shutting_down())),
            () = self.clock.sleep_until(until) => {}
        }
        let why = degraded.borrow().clone().unwrap_or_else(|| "the store is slow".to_owned());
        let message = format!(
            "the processes of this run were told to end; the log says so as soon as it can be \
             written: {why}"
        );
        Err(EngineError::Unavailable { message })
    }
}
