//! Ends of lives that no order of the log wants yet.

use overmind_core::command::{LifeOrder, StopHow};
use overmind_core::ids::SessionId;

use super::Lives;

impl Lives {
    /// Has all lives of a session end.
    pub(crate) fn end_all(&self, session: SessionId, how: StopHow, reason: &str) {
        for one in self.under_way().values().filter(|one| one.key.session == session) {
            // Nobody reads when the life is over already.
            let _ = one.orders.send(LifeOrder::End { how, reason: reason.to_owned() });
        }
    }
}
