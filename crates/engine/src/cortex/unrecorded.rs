//! Ends commands before that is recorded, while the store refuses writes. Usually its disk is full,
//! and the command to end may be what fills it.

use std::time::Duration;

use overmind_core::bus::ToHive;
use overmind_core::command::StopHow;
use overmind_core::ids::SessionId;
use overmind_core::row::SessionRow;
use tokio::sync::oneshot;

use super::{Cortex, shutting_down};
use crate::error::EngineError;

/// How long to wait for the record after the processes were asked to end. Then the caller is told
/// that it is late.
const PATIENCE: Duration = Duration::from_secs(1);

impl Cortex {
    /// Waits for the answer to a request to end a session. If the store refuses, its commands are
    /// ended without a record, which follows when there is space.
    ///
    /// # Errors
    ///
    /// The request's errors; [`EngineError::Unavailable`] if it is done but not recorded.
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
