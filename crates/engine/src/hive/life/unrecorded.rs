//! Ends processes although no order in the log requests it yet.

use overmind_core::command::{LifeOrder, StopHow};
use overmind_core::ids::SessionId;

use super::Lives;

impl Lives {
    /// Ends all processes of a session.
    pub(crate) fn end_all(&self, session: SessionId, how: StopHow, reason: &str) {
        for one in self.under_way().values().filter(|one| one.key.session == session) {
            // Nobody receives it if the process has already ended.
            let _ = one.orders.send(LifeOrder::End { how, reason: reason.to_owned() });
        }
    }
}
