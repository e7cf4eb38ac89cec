//! An approval: one question to a human, from the request to its use. It applies to one exact
//! action, is answered once and used once.

use serde_json::Value;

use crate::ids::ApprovalId;
use crate::time::Timestamp;

/// Returns the hash of an action: the tool and the arguments with which it would be executed.
pub fn action_hash(tool: &str, args: &Value) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(&(tool.len() as u64).to_be_bytes()).update(tool.as_bytes());
    hash.update(args.to_string().as_bytes());
    hash.finalize().to_hex().to_string()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    pub id: ApprovalId,
    /// The [`action_hash`] of the action that the human saw.
    pub action: String,
    /// Time after which an approval is too late.
    pub expires_at: Option<Timestamp>,
    pub state: ApprovalState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalState {
    Pending,
    Granted {
        by: String,
    },
    Denied {
        by: String,
        reason: Option<String>,
    },
    /// It was approved and the action was started. It cannot be used again.
    Used,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalEvent {
    Grant {
        by: String,
    },
    Deny {
        by: String,
        reason: Option<String>,
    },
    /// The action with this hash is about to start.
    Use {
        action: String,
    },
}

impl Approval {
    pub fn ask(id: ApprovalId, action: String, expires_at: Option<Timestamp>) -> Self {
        Self { id, action, expires_at, state: ApprovalState::Pending }
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| now >= at)
    }

    /// Returns the next state, and whether the event was accepted. The first answer counts. An
    /// approval can be used only by exactly the action that was shown, and only once.
    pub fn step(self, event: ApprovalEvent) -> (Self, bool) {
        use ApprovalEvent::{Deny, Grant, Use};
        use ApprovalState::{Denied, Granted, Pending, Used};
        let Self { id, action, expires_at, state } = self;
        let (state, meant) = match (state, event) {
            (Pending, Grant { by }) => (Granted { by }, true),
            (Pending, Deny { by, reason }) => (Denied { by, reason }, true),
            (Granted { .. }, Use { action: used }) if used == action => (Used, true),
            (same @ (Pending | Granted { .. } | Denied { .. } | Used), _) => (same, false),
        };
        (Self { id, action, expires_at, state }, meant)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask() -> Approval {
        let action = action_hash("run_shell", &json!({"command": "ls"}));
        Approval::ask(ApprovalId::from_u128(1), action, None)
    }

    #[test]
    fn only_the_first_answer_counts() {
        let (granted, meant) = ask().step(ApprovalEvent::Grant { by: "ann".into() });
        assert!(meant);
        let (still, meant) =
            granted.clone().step(ApprovalEvent::Deny { by: "bob".into(), reason: None });
        assert!(!meant);
        assert_eq!(still, granted);
    }

    #[test]
    fn a_grant_is_used_once_and_only_for_the_action_that_was_shown() {
        let (granted, _) = ask().step(ApprovalEvent::Grant { by: "ann".into() });
        let other = action_hash("run_shell", &json!({"command": "rm -rf /"}));
        assert!(!granted.clone().step(ApprovalEvent::Use { action: other }).1);
        let shown = granted.action.clone();
        let (used, meant) = granted.step(ApprovalEvent::Use { action: shown.clone() });
        assert!(meant);
        assert!(!used.step(ApprovalEvent::Use { action: shown }).1);
        assert!(!ask().step(ApprovalEvent::Use { action: ask().action }).1, "not granted yet");
    }
}
