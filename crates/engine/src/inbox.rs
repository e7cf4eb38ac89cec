//! The inbox: everything that waits for a human, answered once, from any client.
//!
//! An answer is a request to the waiting session, with the item that it answers. The session's
//! driver decides which answer was first. The resulting item is read back from the store, so that a
//! second caller learns who was first.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use overmind_core::Fut;
use overmind_core::gate::GateRequest;
use overmind_core::ids::{ApprovalId, InboxId};
use overmind_core::inbox::{
    InboxCounts, InboxCursor, InboxFilter, InboxItem, InboxKind, InboxState,
};
use overmind_core::row::Role;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::left;
use overmind_core::store::Page;
use serde_json::Value;
use tokio::sync::watch;

use crate::Engine;
use crate::budgets::Raise;
use crate::caller::Caller;
use crate::cortex::{Order, gate_request};
use crate::error::EngineError;
use crate::mesh::ask::is_tools;
use crate::request::{InboxAnswer, InboxBatch, InboxQuery};
use crate::sessions::is_closing;
use crate::view::{InboxGroup, InboxProposal};

/// Maximum number of items of one batch of answers.
pub const MAX_BATCH: usize = 100;
/// Maximum number of open items that grouping reads, and answered ones that proposals read.
const LOOKED_AT: u32 = 1000;
/// Longest reason, in bytes.
const REASON_BYTES: usize = 10_000;

impl Engine {
    /// The matching items, newest first.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn inbox_list(
        &self,
        by: &Caller,
        query: InboxQuery,
        page: Page<InboxCursor>,
    ) -> Result<Vec<InboxItem>, EngineError> {
        by.require(Role::Viewer)?;
        let InboxQuery { state, kind, session, group } = query;
        let colony = by.sight().only();
        let filter = InboxFilter { colony, state, kind, session, group };
        Ok(self.cortex.store.inbox_list(filter, page).await?)
    }

    /// One item.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if there is no such item.
    pub async fn inbox_fetch(&self, by: &Caller, id: InboxId) -> Result<InboxItem, EngineError> {
        by.require(Role::Viewer)?;
        self.find_item_for(by, id).await
    }

    /// Decides about the work of a run, like `done`.
    async fn work_answer(
        &self,
        by: &Caller,
        item: InboxItem,
        answer: InboxAnswer,
    ) -> Result<InboxItem, EngineError> {
        let InboxAnswer::Words { message } = answer else {
            let message = "this is about work that is left: the decision must be answer, with the \
                           message merge, keep or discard";
            return Err(EngineError::invalid("decision", message));
        };
        let Some(what) = left::decision(&message) else {
            let message = "the message must be merge, keep or discard";
            return Err(EngineError::invalid("message", message));
        };
        let Some(session) = item.session else {
            return Err(EngineError::conflict("no run has left this work"));
        };
        Box::pin(self.session_done(by, session, what, None, &[])).await?;
        self.find_item(item.id).await
    }

    async fn raise_answer(
        &self,
        by: &Caller,
        item: InboxItem,
        answer: InboxAnswer,
    ) -> Result<InboxItem, EngineError> {
        // Only an admin may change a limit, permanently or not.
        let for_good = matches!(&answer, InboxAnswer::Raise { raise, .. } if raise.for_good);
        by.require(if for_good { Role::Admin } else { Role::Operator })?;
        match answer {
            InboxAnswer::Raise { raise, reason } => self.raise(by, item, raise, reason).await,
            InboxAnswer::Approve { reason } => {
                let nothing = Raise { microusd: 0, tokens: 0, for_good: false };
                self.raise(by, item, nothing, reason).await
            }
            InboxAnswer::Deny { reason } => self.raise_deny(by, item, reason).await,
            InboxAnswer::Words { .. } => {
                let message = "this asks for more of a limit: the decision must be approve, with \
                               an amount, or deny";
                Err(EngineError::invalid("decision", message))
            }
        }
    }

    pub(crate) async fn find_item(&self, id: InboxId) -> Result<InboxItem, EngineError> {
        let found = self.cortex.store.inbox_fetch(id).await?;
        found.ok_or_else(|| EngineError::not_found("Inbox item"))
    }

    /// The item, if the caller reaches its colony.
    async fn find_item_for(&self, by: &Caller, id: InboxId) -> Result<InboxItem, EngineError> {
        let item = self.find_item(id).await?;
        if by.reaches(item.colony) { Ok(item) } else { Err(EngineError::not_found("Inbox item")) }
    }

    /// Answers an item. The first answer counts; returns the item after it.
    ///
    /// An approval that comes too late makes the item `expired` and asks again.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if it was answered before, or nobody waits for it any more;
    /// [`EngineError::Invalid`] if the answer does not fit the item's kind.
    pub async fn inbox_answer(
        &self,
        by: &Caller,
        id: InboxId,
        answer: InboxAnswer,
    ) -> Result<InboxItem, EngineError> {
        by.require(Role::Runs)?;
        let item = self.find_item_for(by, id).await?;
        match self.answer_item(by, item, answer.clone()).await {
            Err(err @ EngineError::Conflict { .. }) => match self.asked_anew(by, id).await? {
                Some(item) => self.answer_item(by, item, answer).await,
                None => Err(err),
            },
            answered => answered,
        }
    }

    /// The open item for a question that was asked again after a restart of the server.
    async fn asked_anew(&self, by: &Caller, id: InboxId) -> Result<Option<InboxItem>, EngineError> {
        let item = self.find_item(id).await?;
        let withdrawn = item.state == InboxState::Withdrawn && item.answered_by.is_none();
        if item.session.is_none() || item.kind != InboxKind::Question || !withdrawn {
            return Ok(None);
        }
        let (state, kind) = (Some(InboxState::Open), Some(InboxKind::Question));
        let query = InboxQuery { state, kind, session: item.session, group: None };
        let by = Caller { colony: item.colony, ..by.clone() };
        let open = self.inbox_list(&by, query, newest()).await?;
        let same =
            |other: &InboxItem| (&other.title, &other.details) == (&item.title, &item.details);
        Ok(open.into_iter().find(same))
    }

    async fn answer_item(
        &self,
        by: &Caller,
        item: InboxItem,
        answer: InboxAnswer,
    ) -> Result<InboxItem, EngineError> {
        if item.state != InboxState::Open {
            return Err(closed(&item));
        }
        match ANSWERERS.iter().find(|one| (one.fits)(&item)) {
            Some(answerer) => (answerer.answer)(self, by, item, answer).await,
            None => self.answer_session(by, item, answer).await,
        }
    }

    /// Answers a question that a program asked by a tool. The program continues meanwhile; such a
    /// question ends with its session.
    async fn tool_answer(
        &self,
        by: &Caller,
        item: InboxItem,
        answer: InboxAnswer,
    ) -> Result<InboxItem, EngineError> {
        let InboxAnswer::Words { message } = answer else {
            return self.answer_session(by, item, answer).await;
        };
        if let Some(session) = item.session {
            self.require_host_of(by, session).await?;
        }
        self.answer_question(by, item.id, message).await
    }

    /// Answers the waiting session.
    async fn answer_session(
        &self,
        by: &Caller,
        item: InboxItem,
        answer: InboxAnswer,
    ) -> Result<InboxItem, EngineError> {
        let id = item.id;
        // A text to a run needs the right to direct it; a refusal is open to all.
        if let Some(session) = item.session
            && !matches!(answer, InboxAnswer::Deny { .. })
        {
            self.require_host_of(by, session).await?;
        }
        let order = order_of(self, &item, answer, by)?;
        let Some(session) = item.session else {
            return Err(EngineError::conflict("nothing waits for this item"));
        };
        match self.cortex.order(session, order).await {
            Ok(row) => {
                // If the answer ends the session, its environment is removed before the caller gets
                // the result.
                if is_closing(&row) {
                    self.ended(row).await?;
                }
                self.find_item(id).await
            }
            Err(err @ EngineError::Conflict { .. }) => {
                let now = self.find_item(id).await?;
                match now.state {
                    InboxState::Open => Err(err),
                    InboxState::Approved
                    | InboxState::Denied
                    | InboxState::Answered
                    | InboxState::Expired
                    | InboxState::Withdrawn => Err(closed(&now)),
                }
            }
            Err(err) => Err(err),
        }
    }

    /// Answers several items in the same way, each separately: one that cannot be answered does not
    /// stop the others. With a group, only items of that group, and only named ones.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] for no item, more than [`MAX_BATCH`], or a repeated one.
    pub async fn inbox_answer_all(
        &self,
        by: &Caller,
        batch: InboxBatch,
    ) -> Result<Vec<(InboxId, Result<InboxItem, EngineError>)>, EngineError> {
        by.require(Role::Runs)?;
        let InboxBatch { ids, group, answer } = batch;
        if ids.is_empty() || ids.len() > MAX_BATCH {
            let message = format!("ids must name 1 to {MAX_BATCH} items");
            return Err(EngineError::invalid("ids", message));
        }
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        if distinct.len() != ids.len() {
            return Err(EngineError::invalid("ids", "ids must name each item once"));
        }
        let one = |id: InboxId| {
            let (answer, group) = (answer.clone(), group.as_deref());
            async move {
                let done = async {
                    if let Some(group) = group
                        && self.find_item_for(by, id).await?.group.as_deref() != Some(group)
                    {
                        return Err(EngineError::conflict(format!("it is not of group {group}")));
                    }
                    let raise = matches!(answer, InboxAnswer::Raise { .. });
                    match self.inbox_answer(by, id, answer).await {
                        // One increase continues all sessions that wait for the same limit, also
                        // those of this batch.
                        Err(err @ EngineError::Conflict { .. }) if raise => {
                            let now = self.find_item(id).await?;
                            let done = now.state == InboxState::Approved;
                            if done { Ok(now) } else { Err(err) }
                        }
                        answered => answered,
                    }
                };
                (id, done.await)
            }
        };
        // They run in parallel, so that their commits share disk writes.
        Ok(join_all(ids.into_iter().map(one)).await)
    }

    /// Groups of similar open items, the largest first. Reads the newest 1,000.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn inbox_groups(&self, by: &Caller) -> Result<Vec<InboxGroup>, EngineError> {
        let query = InboxQuery { state: Some(InboxState::Open), ..InboxQuery::default() };
        let items = self.inbox_list(by, query, newest()).await?;
        let mut groups: BTreeMap<String, Vec<InboxItem>> = BTreeMap::new();
        for item in items {
            if let Some(key) = item.group.clone() {
                groups.entry(key).or_default().push(item);
            }
        }
        let mut groups: Vec<InboxGroup> =
            groups.into_iter().map(|(key, items)| InboxGroup { key, items }).collect();
        groups.sort_by(|a, b| b.items.len().cmp(&a.items.len()).then_with(|| a.key.cmp(&b.key)));
        Ok(groups)
    }

    /// Proposes rules that would reduce questions: one for each action that was approved often
    /// enough, the same way each time, and not denied since. Reads the newest 1,000 approvals and
    /// as many denials. Actions that the policy in force allows now are omitted, and so are those
    /// that no narrow rule can cover.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] on a server without a policy.
    pub async fn inbox_proposals(&self, by: &Caller) -> Result<Vec<InboxProposal>, EngineError> {
        by.require(Role::Viewer)?;
        let Some(gate) = &self.cortex.gate else {
            return Err(EngineError::conflict("this server has no policy to propose rules for"));
        };
        let mut answered = Vec::new();
        for state in [InboxState::Approved, InboxState::Denied] {
            let (state, kind) = (Some(state), Some(InboxKind::Approval));
            let query = InboxQuery { state, kind, ..InboxQuery::default() };
            answered.extend(self.inbox_list(by, query, newest()).await?);
        }
        answered.sort_by_key(|item| std::cmp::Reverse((item.answered_at, item.id)));
        let mut alike: BTreeMap<String, Alike> = BTreeMap::new();
        for item in answered {
            let colony = self.colony_name(item.colony);
            let Some(request) = request_of(&item, colony) else { continue };
            let key = serde_json::to_string(&request).unwrap_or_default();
            let alike = alike.entry(key).or_default();
            if item.state == InboxState::Denied {
                alike.denied = true;
            } else if !alike.denied {
                alike.approved.push((item, request));
            }
        }
        let enough = usize::try_from(self.cortex.config.propose_after.max(2)).unwrap_or(usize::MAX);
        let mut proposals: Vec<InboxProposal> = alike
            .into_values()
            .filter(|alike| alike.approved.len() >= enough)
            .filter_map(|alike| {
                let (items, requests): (Vec<_>, Vec<_>) = alike.approved.into_iter().unzip();
                let rule = gate.propose(&requests).ok()?;
                Some(InboxProposal { rule, items })
            })
            .collect();
        proposals.sort_by_key(|proposal| std::cmp::Reverse(proposal.items.len()));
        Ok(proposals)
    }

    /// The number of open items, and the number of the last change of any.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn inbox_counts(&self, by: &Caller) -> Result<(InboxCounts, u64), EngineError> {
        by.require(Role::Viewer)?;
        Ok(self.cortex.store.inbox_counts(by.colony).await?)
    }

    /// Items that changed after the change `after`, in their current state.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn inbox_changes(
        &self,
        by: &Caller,
        after: u64,
        limit: u32,
    ) -> Result<Vec<InboxItem>, EngineError> {
        by.require(Role::Viewer)?;
        Ok(self.cortex.store.inbox_changes(by.colony, after, limit).await?)
    }

    /// A counter that changes with the inbox. Call [`Engine::inbox_changes`] again then.
    pub fn inbox_watch(&self) -> watch::Receiver<u64> {
        self.cortex.inbox.subscribe()
    }
}

/// The handler for answers to one kind of item. Other items are for the waiting session.
struct Answerer {
    fits: fn(&InboxItem) -> bool,
    answer: Answered,
}

type Answered = for<'a> fn(&'a Engine, &'a Caller, InboxItem, InboxAnswer) -> Fut<'a, Answer>;
type Answer = Result<InboxItem, EngineError>;

const ANSWERERS: [Answerer; 3] = [
    Answerer {
        fits: |item| item.kind == InboxKind::Raise,
        answer: |engine, by, item, answer| Box::pin(engine.raise_answer(by, item, answer)),
    },
    Answerer {
        fits: |item| item.kind == InboxKind::Work,
        answer: |engine, by, item, answer| Box::pin(engine.work_answer(by, item, answer)),
    },
    Answerer {
        fits: is_tools,
        answer: |engine, by, item, answer| Box::pin(engine.tool_answer(by, item, answer)),
    },
];

/// Answers to the same action, newest first.
#[derive(Default)]
struct Alike {
    /// The approvals since the last denial.
    approved: Vec<(InboxItem, GateRequest)>,
    denied: bool,
}

fn newest() -> Page<InboxCursor> {
    Page { limit: LOOKED_AT, after: None }
}

/// The request to the waiting session for an answer.
fn order_of(
    engine: &Engine,
    item: &InboxItem,
    answer: InboxAnswer,
    by: &Caller,
) -> Result<Order, EngineError> {
    let by = by.name.clone();
    let decide = |approve, reason: Option<String>, by| {
        let reason = reason.filter(|reason| !reason.trim().is_empty());
        if reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES) {
            let text = format!("reason must have at most {REASON_BYTES} bytes");
            return Err(EngineError::invalid("reason", text));
        }
        let approval = ApprovalId::from_u128(item.id.as_u128());
        Ok(Order::Decide { approval, approve, reason, by })
    };
    match (item.kind, answer) {
        (InboxKind::Approval, InboxAnswer::Approve { reason }) => decide(true, reason, by),
        (InboxKind::Approval, InboxAnswer::Deny { reason }) => decide(false, reason, by),
        (InboxKind::Question, InboxAnswer::Words { message }) => {
            engine.can_be_told(&message)?;
            Ok(Order::Answer { item: Some(item.id), message, by })
        }
        (InboxKind::Approval, InboxAnswer::Words { .. }) => {
            let message = "this asks for consent: the decision must be approve or deny";
            Err(EngineError::invalid("decision", message))
        }
        (InboxKind::Question, InboxAnswer::Approve { .. } | InboxAnswer::Deny { .. }) => {
            let message = "this is a question: the decision must be answer, with a message";
            Err(EngineError::invalid("decision", message))
        }
        (InboxKind::Approval | InboxKind::Question, InboxAnswer::Raise { .. }) => {
            let message = "only a raise is answered with an amount";
            Err(EngineError::invalid("decision", message))
        }
        (InboxKind::Raise | InboxKind::Work, _) => {
            Err(EngineError::conflict("nothing waits for this item"))
        }
    }
}

/// Why a closed item cannot be answered.
pub(crate) fn closed(item: &InboxItem) -> EngineError {
    let at = item.answered_at.map(|at| format!(" at {at}")).unwrap_or_default();
    let by = item.answered_by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    EngineError::conflict(match item.state {
        InboxState::Approved | InboxState::Denied | InboxState::Answered => {
            format!("this was already {}{by}{at}", item.state.as_str())
        }
        InboxState::Expired => {
            format!("this had expired when it was approved{by}{at}; it is asked anew")
        }
        // Somebody ended the run, or it no longer waits for this.
        InboxState::Withdrawn if item.answered_by.is_some() => {
            format!("this was withdrawn{by}{at}: the run has ended")
        }
        InboxState::Withdrawn => {
            format!("this was withdrawn{at}: the run does not wait for it any more")
        }
        InboxState::Open => "this is open".to_owned(),
    })
}

/// The call that was asked about; `None` if the item does not contain all of it.
fn request_of(item: &InboxItem, colony: String) -> Option<GateRequest> {
    if item.details.get("args_cut").is_some() {
        return None;
    }
    let sandbox = SandboxLevel::parse(item.detail("sandbox")?)?;
    Some(gate_request(
        colony,
        &item.agent_name,
        sandbox,
        item.detail("workspace")?,
        item.detail("tool_name")?,
        item.details.get("args").unwrap_or(&Value::Null),
    ))
}
