//! Questions that a program asks people by a tool, and the rest of its budget.
//!
//! Our own session waits while it asks; a program continues and checks whether there is an answer.
//! So its question is an inbox item for which nobody waits: it is answered here, the first answer
//! counts, and it is withdrawn with the session if nobody has answered.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use overmind_core::ids::{EffectId, InboxId, SessionId};
use overmind_core::inbox::{InboxCursor, InboxFilter, InboxItem, InboxKind, InboxState};
use overmind_core::row::SessionRow;
use overmind_core::store::{Change, Commit, Guard, NewEvent, Page, Store, StoreError, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use crate::Engine;
use crate::caller::Caller;
use crate::cortex::lock;
use crate::error::EngineError;
use crate::inbox::closed;

/// Maximum number of open questions of one session.
const MAX_OPEN: usize = 20;
/// Longest question, in bytes.
const MAX_QUESTION: usize = 10_000;
/// Longest title, in characters.
const MAX_TITLE: usize = 200;
/// Marks such a question in the details of an item.
pub(crate) const MARK: &str = "asked_by_tool";
/// Items that are read at once.
const SCAN: u32 = 500;

/// The question to people of an item for which no session waits.
#[derive(Debug)]
pub(crate) enum Wants {
    Words,
    /// An increase of a limit.
    More {
        group: String,
        expires_at: Option<Timestamp>,
    },
}

/// Open questions, and requests to increase a limit.
#[derive(Debug, Default)]
pub(crate) struct Questions(Mutex<HashMap<SessionId, Vec<InboxId>>>);

impl Questions {
    pub(crate) async fn load(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut after: Option<InboxCursor> = None;
        loop {
            let filter = InboxFilter { state: Some(InboxState::Open), ..InboxFilter::default() };
            let page = store.inbox_list(filter, Page { limit: SCAN, after }).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.cursor());
            let mut open = lock(&self.0);
            for item in page.iter().filter(|item| is_unwaited(item)) {
                if let Some(session) = item.session {
                    open.entry(session).or_default().push(item.id);
                }
            }
        }
    }

    /// Takes the questions of an ending session, which then has none.
    pub(crate) fn take(&self, session: SessionId) -> Vec<InboxId> {
        lock(&self.0).remove(&session).unwrap_or_default()
    }

    fn put_back(&self, session: SessionId, ids: Vec<InboxId>) {
        if !ids.is_empty() {
            lock(&self.0).entry(session).or_default().extend(ids);
        }
    }
}

/// Whether no session waits for this item.
pub(crate) fn is_unwaited(item: &InboxItem) -> bool {
    item.details.get(MARK) == Some(&Value::Bool(true))
}

/// Whether no session waits for this question.
pub(crate) fn is_tools(item: &InboxItem) -> bool {
    item.kind == InboxKind::Question && is_unwaited(item)
}

fn title(question: &str) -> String {
    let line = question.trim().lines().next().unwrap_or_default();
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_TITLE).collect()
}

fn shown(item: &InboxItem) -> Value {
    json!({
        "question_id": item.id, "state": item.state.as_str(),
        "answered": item.state == InboxState::Answered, "answer": item.answer,
        "answered_by": item.answered_by,
    })
}

impl Engine {
    /// Adds a question to the inbox. A repeated call is the same question.
    pub(super) async fn ask_people(
        &self,
        session: SessionId,
        effect: EffectId,
        question: &str,
        wait: Duration,
    ) -> Result<Value, EngineError> {
        if question.trim().is_empty() || question.len() > MAX_QUESTION {
            let message = format!("question must have 1 to {MAX_QUESTION} bytes");
            return Err(EngineError::invalid("question", message));
        }
        let id = InboxId::from_u128(effect.as_u128());
        if self.cortex.store.inbox_fetch(id).await?.is_none() {
            self.put_question(session, id, question).await?;
        }
        self.read_answer(session, id, wait).await
    }

    async fn put_question(
        &self,
        session: SessionId,
        id: InboxId,
        question: &str,
    ) -> Result<(), EngineError> {
        let details = json!({"prompt": question, "reason": "asked by a tool", MARK: true});
        self.put_asked(session, id, details, Wants::Words).await
    }

    /// Adds an item without a waiting session; `details` contains a `prompt` and the mark.
    pub(crate) async fn put_asked(
        &self,
        session: SessionId,
        id: InboxId,
        mut details: Value,
        wants: Wants,
    ) -> Result<(), EngineError> {
        let (kind, group, expires_at) = match wants {
            Wants::Words => (InboxKind::Question, None, None),
            Wants::More { group, expires_at } => (InboxKind::Raise, Some(group), expires_at),
        };
        let row = self.find_session(session).await?;
        let agent = self.find_agent(&Caller::admin(), &row.agent.to_string()).await?;
        // The store redacts it, like everything that is written.
        self.cortex.store.redact(&mut details);
        let now = self.cortex.clock.now();
        let title = title(details["prompt"].as_str().unwrap_or_default());
        let item = InboxItem {
            session: Some(session),
            owner: row.owner,
            agent: Some(row.agent),
            agent_name: agent.spec.name.clone(),
            epoch: row.epoch,
            group,
            expires_at,
            ..InboxItem::open(id, row.colony, kind, title, details, now)
        };
        {
            let mut open = lock(&self.cortex.mesh.questions.0);
            let own = open.entry(session).or_default();
            if own.len() >= MAX_OPEN {
                let message = format!("{MAX_OPEN} questions wait for an answer; wait for one");
                return Err(EngineError::conflict(message));
            }
            own.push(id);
        }
        let event = NewEvent {
            stream: StreamId::Session(session),
            kind: "question.asked",
            ts: now,
            payload: json!({"run_id": session, "inbox_id": id, "title": item.title}),
        };
        // A session that ended meanwhile asks nothing any more.
        let guards = vec![Guard::SessionEpoch { session, epoch: row.epoch }];
        let changes = vec![Change::InboxPut(Box::new(item))];
        let done = self.cortex.store.commit(Commit { guards, events: vec![event], changes }).await;
        if let Err(err) = done {
            self.forget_question(session, id);
            return Err(err.into());
        }
        self.cortex.inbox_moved();
        Ok(())
    }

    pub(crate) fn forget_question(&self, session: SessionId, id: InboxId) {
        let mut open = lock(&self.cortex.mesh.questions.0);
        if let Some(own) = open.get_mut(&session) {
            own.retain(|known| *known != id);
            if own.is_empty() {
                open.remove(&session);
            }
        }
    }

    /// The state of a question of the session; waits for an answer up to the given time.
    pub(super) async fn read_answer(
        &self,
        session: SessionId,
        id: InboxId,
        wait: Duration,
    ) -> Result<Value, EngineError> {
        let mut changes = self.cortex.inbox.subscribe();
        let until = tokio::time::Instant::now() + wait;
        loop {
            changes.borrow_and_update();
            let item = self.cortex.store.inbox_fetch(id).await?;
            let item = item
                .filter(|item| item.session == Some(session) && is_tools(item))
                .ok_or_else(|| EngineError::not_found("Question"))?;
            let over = item.state != InboxState::Open;
            if over || tokio::time::timeout_at(until, changes.changed()).await.is_err() {
                return Ok(shown(&item));
            }
        }
    }

    /// Answers such a question: the first answer counts.
    pub(crate) async fn answer_question(
        &self,
        by: &Caller,
        id: InboxId,
        message: String,
    ) -> Result<InboxItem, EngineError> {
        self.can_be_told(&message)?;
        // Answers are handled one after the other. Otherwise such an item only changes when its
        // session ends, which the guard detects.
        let _turn = self.raises.lock().await;
        let item = self.find_item(id).await?;
        if item.state != InboxState::Open {
            return Err(closed(&item));
        }
        let session = item.session;
        let is_own = session.is_none() && item.agent_name == by.name;
        if is_own && !by.is_admin() {
            let message = format!(
                "this is about a call of `{}` itself: another key, or an admin, has to answer",
                by.name
            );
            return Err(EngineError::Forbidden { message });
        }
        // A call with a key has no session.
        let guards = match session {
            Some(session) => {
                let epoch = self.find_session(session).await?.epoch;
                vec![Guard::SessionEpoch { session, epoch }]
            }
            None => Vec::new(),
        };
        let now = self.cortex.clock.now();
        let event = NewEvent {
            stream: session.map_or(StreamId::System, StreamId::Session),
            kind: "question.answered",
            ts: now,
            payload: json!({"run_id": session, "inbox_id": id, "by": by.name, "message": message}),
        };
        let item = InboxItem {
            state: InboxState::Answered,
            answered_at: Some(now),
            answered_by: Some(by.name.clone()),
            answer: Some(message),
            ..item
        };
        let changes = vec![Change::InboxPut(Box::new(item))];
        self.cortex.store.commit(Commit { guards, events: vec![event], changes }).await?;
        if let Some(session) = session {
            self.forget_question(session, id);
        }
        self.cortex.inbox_moved();
        self.find_item(id).await
    }

    /// The session's remaining budget: each limit that applies, and what was spent.
    pub(super) async fn cost_left(&self, session: SessionId) -> Result<Value, EngineError> {
        let row: SessionRow = self.find_session(session).await?;
        let limits: Vec<Value> = self
            .budgets()
            .limits_of(&row)
            .await?
            .into_iter()
            .map(|view| {
                let (limit, window) = (&view.limit, view.window);
                let left = |most: Option<u64>, spent: u64, reserved: u64| {
                    most.map(|most| most.saturating_sub(spent.saturating_add(reserved)))
                };
                let (spent, reserved) = (window.spent, window.reserved);
                let (microusd, tokens) =
                    (limit.microusd_in(view.start), limit.tokens_in(view.start));
                json!({
                    "scope": limit.scope, "period": limit.period.as_str(),
                    "soft": limit.soft,
                    "limit_microusd": microusd, "used_microusd": spent.microusd,
                    "left_microusd": left(microusd, spent.microusd, reserved.microusd),
                    "limit_tokens": tokens, "used_tokens": spent.tokens,
                    "left_tokens": left(tokens, spent.tokens, reserved.tokens),
                    "resets_at": view.resets_at,
                })
            })
            .collect();
        let least = |key: &str| {
            let hard = limits.iter().filter(|limit| limit["soft"] == false);
            hard.filter_map(|limit| limit[key].as_u64()).min()
        };
        Ok(json!({
            "left_microusd": least("left_microusd"), "left_tokens": least("left_tokens"),
            "halted": self.budgets().halted().is_some(), "limits": limits,
        }))
    }
}

/// Handles the open requests of a session that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtEnd {
    WithdrawAll,
    /// It failed, and its conversation can be continued: a raised budget still helps it.
    KeepRaises,
}

impl Questions {
    /// The changes that withdraw an ended session's questions, for the commit of its end.
    pub(crate) async fn withdrawn(
        &self,
        store: &dyn Store,
        session: SessionId,
        at_end: AtEnd,
        now: Timestamp,
    ) -> Result<Vec<Change>, StoreError> {
        let (mut changes, mut kept) = (Vec::new(), Vec::new());
        for id in self.take(session) {
            let Some(item) = store.inbox_fetch(id).await? else { continue };
            if item.state != InboxState::Open {
                continue;
            }
            if at_end == AtEnd::KeepRaises && item.kind == InboxKind::Raise {
                kept.push(id);
                continue;
            }
            let item = InboxItem { state: InboxState::Withdrawn, answered_at: Some(now), ..item };
            changes.push(Change::InboxPut(Box::new(item)));
        }
        self.put_back(session, kept);
        Ok(changes)
    }
}
