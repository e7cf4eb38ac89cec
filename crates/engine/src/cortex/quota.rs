//! Quotas of running sessions.

use std::sync::Arc;

use overmind_core::ids::ColonyId;

use super::{Cortex, lock};

impl Cortex {
    /// Limits how many sessions of a colony run at the same time, and starts those that may run now.
    pub(crate) fn set_quota(self: &Arc<Self>, colony: ColonyId, most: Option<u32>) {
        lock(&self.queue).set_quota(colony, most);
        self.pump();
    }
}
