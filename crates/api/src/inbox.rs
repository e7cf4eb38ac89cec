//! The inbox: everything that waits for a human, as one type.

use overmind_core::ids::{AgentId, ApprovalId, InboxId, RecordId, SessionId};
use overmind_core::inbox;
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::budget::InboxRaise;
use crate::problem::{FieldError, Problem, refuse_blank, refuse_long};
use crate::vocabulary::{InboxKind, InboxState};

/// Maximum number of items that one batch may answer.
pub const MAX_INBOX_BATCH: usize = 100;
/// Longest reason, in characters.
const MAX_REASON: usize = 2000;

/// A request or warning for a human.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InboxItem {
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "inb_4f1c02d3a9e18b57a6d2f3c4b5a69788"))]
    pub id: InboxId,
    pub kind: InboxKind,
    pub state: InboxState,
    /// A one-line summary.
    pub title: String,
    /// The risk of an approval under a policy: `low`, `medium`, `high` or `critical`.
    pub risk: Option<String>,
    /// The run that waits.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub run_id: Option<SessionId>,
    /// The uid of the resource, such as a fleet, for which the item was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub owner: Option<RecordId>,
    /// The id of the approval, the same as in the run and its events.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub approval_id: Option<ApprovalId>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub agent_id: Option<AgentId>,
    /// The agent's name at the time of the request.
    pub agent: String,
    /// The run's epoch at the time of the request.
    pub epoch: u32,
    /// Group key. Open items with the same key are alike and can be answered together.
    pub group: Option<String>,
    /// Fields that depend on the kind. Of an approval: `prompt`, `tool_name`, `args`,
    /// `action_hash`, `sandbox`, `workspace` and, under a policy, `reason`, `risk`, `rule`,
    /// `policy`, `actions` and `files`. With `args_cut`, the arguments were too long and are
    /// shortened; the run's `approval.requested` event has them in full. Of a question: `prompt`,
    /// `reason` and `step_id`. Of a budget request: `limit_id`, and `refusal` with `scope`,
    /// `period`, `unit`, `limit`, `used`, `reserved`, `asked` and `resets_at`. A warning that a
    /// soft limit was reached (`why` is `soft_limit`; no run waits) has the same fields about that
    /// limit. Of work to decide about: `prompt`, `run`, `branch`, `files`, and the possible
    /// `answers`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub details: Value,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub asked_at: Timestamp,
    /// Time after which an answer is too late and a new approval is requested.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub answered_at: Option<Timestamp>,
    /// Who closed the item: `admin`, or the name of an API key.
    pub answered_by: Option<String>,
    /// The text of the answer, or the reason given with a decision.
    pub answer: Option<String>,
    /// Number of the item's last change. It increases with every change of any item.
    pub changed: u64,
}

impl From<inbox::InboxItem> for InboxItem {
    fn from(item: inbox::InboxItem) -> Self {
        let approval = item.kind == inbox::InboxKind::Approval;
        Self {
            id: item.id,
            kind: item.kind.into(),
            state: item.state.into(),
            risk: item.detail("risk").map(str::to_owned),
            title: item.title,
            run_id: item.session,
            owner: item.owner,
            approval_id: approval.then(|| ApprovalId::from_u128(item.id.as_u128())),
            agent_id: item.agent,
            agent: item.agent_name,
            epoch: item.epoch,
            group: item.group,
            details: item.details,
            asked_at: item.asked_at,
            expires_at: item.expires_at,
            answered_at: item.answered_at,
            answered_by: item.answered_by,
            answer: item.answer,
            changed: item.changed,
        }
    }
}

/// A decision about an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum InboxDecision {
    /// For an approval: allows the action once, exactly as shown. For a budget request: increases
    /// the limit by the amounts in `raise`.
    Approve,
    /// For an approval: refuses the action, and the agent gets the `reason`. For a budget request:
    /// ends the run that waits. For a warning: dismisses it.
    Deny,
    /// For a question: answers with the `message`. For work to decide about: the message is
    /// `merge`, `keep` or `discard`.
    Answer,
}

/// Body of `POST /api/inbox/{id}/answer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InboxAnswer {
    pub decision: InboxDecision,
    /// The answer to a question. Not allowed for other items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The reason for an approval or denial, at most 2,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub reason: Option<String>,
    /// The amount to add when a budget request is approved. Not allowed for other items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raise: Option<InboxRaise>,
}

impl InboxAnswer {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = checked(self.decision, self.message.as_deref(), self.reason.as_deref());
        check_raise(&mut errors, self.decision, self.raise.as_ref());
        errors
    }
}

/// Body of `POST /api/inbox/answer`: one answer to several items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InboxBatch {
    /// The items to answer, 1 to 100, each once. No other item is answered, even one that was added
    /// since.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, min_items = 1, max_items = 100))]
    pub ids: Vec<InboxId>,
    /// Refuses items of any other group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    pub decision: InboxDecision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub reason: Option<String>,
    /// The amount to add when budget requests are approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raise: Option<InboxRaise>,
}

impl InboxBatch {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = checked(self.decision, self.message.as_deref(), self.reason.as_deref());
        check_raise(&mut errors, self.decision, self.raise.as_ref());
        if self.ids.is_empty() || self.ids.len() > MAX_INBOX_BATCH {
            let message = format!("must name 1 to {MAX_INBOX_BATCH} items");
            errors.push(FieldError::new("ids", message));
        }
        errors
    }
}

fn check_raise(errors: &mut Vec<FieldError>, decision: InboxDecision, raise: Option<&InboxRaise>) {
    match (decision, raise) {
        (_, None) => {}
        (InboxDecision::Approve, Some(raise)) => raise.check(errors),
        (InboxDecision::Deny | InboxDecision::Answer, Some(_)) => {
            errors.push(FieldError::new("raise", "is allowed only with the decision `approve`"));
        }
    }
}

fn checked(
    decision: InboxDecision,
    message: Option<&str>,
    reason: Option<&str>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match (decision, message) {
        (InboxDecision::Answer, Some(message)) => refuse_blank(&mut errors, "message", message),
        (InboxDecision::Answer, None) => {
            errors.push(FieldError::new("message", "is required to answer"));
        }
        (InboxDecision::Approve | InboxDecision::Deny, Some(_)) => {
            let text = "belongs to the decision answer; give a reason instead";
            errors.push(FieldError::new("message", text));
        }
        (InboxDecision::Approve | InboxDecision::Deny, None) => {}
    }
    match (decision, reason) {
        (InboxDecision::Answer, Some(_)) => {
            errors.push(FieldError::new("reason", "belongs to the decisions approve and deny"));
        }
        (_, Some(reason)) => refuse_long(&mut errors, "reason", reason, MAX_REASON),
        (_, None) => {}
    }
    errors
}

/// The results for the items of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InboxBatchDone {
    /// Whether all items were answered.
    pub ok: bool,
    /// The results, in the order of the request's `ids`.
    pub results: Vec<InboxResult>,
}

/// The result for one item: the current `item`, or the reason why it was not answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InboxResult {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: InboxId,
    pub ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<InboxItem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// Open items that are alike: they have the same tool, risk and deciding rule, and the same
/// programs with the same kinds of effects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InboxGroup {
    pub group: String,
    pub count: u32,
    /// The newest item.
    pub sample: InboxItem,
    /// The ids, newest first.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub ids: Vec<InboxId>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub oldest_at: Timestamp,
}

/// A proposed policy rule that would have answered these approvals. It applies only after somebody
/// adds it to the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InboxProposal {
    /// The rule as TOML for a policy file.
    pub rule: String,
    /// Number of equal approvals since the last denial.
    pub count: u32,
    /// The newest item.
    pub sample: InboxItem,
    /// The ids, newest first.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub ids: Vec<InboxId>,
}

/// `event: snapshot` of the stream: all open items have been sent, and changes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InboxSnapshot {
    /// Number of open items.
    pub open: u64,
    /// Number of the last change before the snapshot.
    pub changed: u64,
}

/// Query of `GET /api/inbox`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct InboxListQuery {
    /// Items per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The cursor of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Returns only items in this state; `all` returns all. Default: open items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[cfg_attr(feature = "openapi", param(inline))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<InboxKind>,
    /// Returns only items of this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Returns only items of this group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(decision: InboxDecision, message: Option<&str>, reason: Option<&str>) -> Vec<String> {
        let errors = checked(decision, message, reason);
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn each_kind_of_decision_has_its_own_words() {
        use InboxDecision::{Answer, Approve, Deny};
        assert!(wrong(Approve, None, None).is_empty());
        assert!(wrong(Deny, None, Some("no")).is_empty());
        assert!(wrong(Answer, Some("8080"), None).is_empty());
        assert_eq!(wrong(Answer, None, None), ["message"]);
        assert_eq!(wrong(Answer, Some(" "), Some("why")), ["message", "reason"]);
        assert_eq!(wrong(Approve, Some("yes"), None), ["message"]);
        assert_eq!(wrong(Deny, None, Some(&"x".repeat(2001))), ["reason"]);
    }
}
