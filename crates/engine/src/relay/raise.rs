//! Asks people when a budget stops a program's calls.
//!
//! Our own session waits for its limit. A program tries again by itself, or ends: so its request
//! for an increase is an inbox item for which nobody waits. It is closed by its answer, or together
//! with its run. If the run fails, the request stays open, and an increase continues the run.

use overmind_core::budget;
use overmind_core::ids::{InboxId, SessionId};
use overmind_core::inbox::{InboxFilter, InboxState};
use overmind_core::row::SessionStatus;
use overmind_core::store::Page;
use serde_json::{Value, json};

use crate::Engine;
use crate::budgets::group_of;
use crate::caller::Caller;
use crate::error::EngineError;
use crate::mesh::ask::{MARK, Wants};

/// The message to a run when it continues.
const RAISED: &str = "The budget was raised. Continue where you stopped.";

impl Engine {
    /// Records in the run that a budget has refused a call of its program, and asks people for an
    /// increase.
    pub(super) async fn ask_for_more(
        &self,
        session: SessionId,
        model: &str,
        refusal: &budget::Refusal,
    ) {
        let why = match refusal {
            budget::Refusal::Over { .. } if !refusal.is_temporary() => {
                if let Err(err) = self.put_raise(session, refusal).await {
                    tracing::warn!(%session, error = %err, "a budget request is not in the inbox");
                }
                format!("{}: see `overmind inbox`", refusal.message())
            }
            budget::Refusal::Over { .. }
            | budget::Refusal::UnknownPrice { .. }
            | budget::Refusal::Halted { .. } => refusal.message(),
        };
        self.call_failed(session, model, &why).await;
    }

    /// Continues the conversation of a run that failed while its budget request was open.
    pub(crate) async fn continue_failed(&self, by: &Caller, session: SessionId) {
        let told = async {
            if self.find_session(session).await?.status == SessionStatus::Failed {
                self.session_send(by, session, RAISED.to_owned(), false, false).await?;
            }
            Ok::<_, EngineError>(())
        };
        if let Err(err) = told.await {
            tracing::warn!(%session, error = %err, "its budget was raised, but it does not continue");
        }
    }

    /// Makes one request for a run and limit, unless one was denied in the same window.
    async fn put_raise(
        &self,
        session: SessionId,
        refusal: &budget::Refusal,
    ) -> Result<(), EngineError> {
        let budget::Refusal::Over { id, unit, resets_at, .. } = refusal else { return Ok(()) };
        let group = group_of(*id);
        // Calls that are refused at the same time cause one request.
        let _turn = self.raises.lock().await;
        let filter = InboxFilter {
            session: Some(session),
            group: Some(group.clone()),
            ..InboxFilter::default()
        };
        let before = self.cortex.store.inbox_list(filter, Page { limit: 1, after: None }).await?;
        let now = self.cortex.clock.now();
        let asked = before.first().is_some_and(|item| match item.state {
            InboxState::Open => true,
            InboxState::Denied => item.expires_at.is_none_or(|ends| now < ends),
            InboxState::Approved
            | InboxState::Answered
            | InboxState::Expired
            | InboxState::Withdrawn => false,
        });
        if asked {
            return Ok(());
        }
        let message = refusal.message();
        let details = json!({
            "prompt": message, "why": refusal.code(), "reason": "a call of its program was refused",
            "limit_id": id.to_string(), "unit": unit, "refusal": refusal, MARK: Value::Bool(true),
        });
        let wants = Wants::More { group, expires_at: *resets_at };
        self.put_asked(session, InboxId::mint(&*self.cortex.ids), details, wants).await
    }
}
