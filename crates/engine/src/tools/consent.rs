//! Asks a person to approve one call through `/mcp`.
//!
//! A program that calls a tool waits for an answer of its HTTP request, and no session's state
//! machine waits with it. So a call that needs an approval makes an inbox item and waits a while.
//! If nobody has answered, the caller gets the item's id and repeats the call. The item belongs to
//! exactly that call: caller, tool as it is offered now, arguments and policy. An approval is used
//! once.

use std::time::Duration;

use overmind_core::ids::InboxId;
use overmind_core::inbox::{InboxFilter, InboxItem, InboxKind, InboxState};
use overmind_core::row::SessionRow;
use overmind_core::store::{Change, Commit, Guard, NewEvent, Page, StreamId};
use overmind_core::tool::ToolOutcome;
use serde_json::{Value, json};

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;
use crate::mesh::ask::{MARK, Wants};

/// How long a call waits for an answer before its caller is asked to try again.
const WAIT: Duration = Duration::from_secs(25);
/// Maximum number of calls of one key that wait at once.
const MAX_OPEN: usize = 20;
/// How often the same call can be asked about.
const MAX_TIMES: u32 = 1_000;
/// Maximum number of bytes of arguments that a person sees.
const MAX_SHOWN: usize = 8_000;
/// Marks an item whose answer was used, in its details.
const USED: &str = "used";

/// The caller that asks.
#[derive(Clone, Copy)]
pub(super) enum Asker<'a> {
    Run(&'a SessionRow),
    Key(&'a Caller),
}

fn agrees(answer: &str) -> bool {
    let answer = answer.trim().to_lowercase();
    matches!(answer.as_str(), "yes" | "y" | "ok" | "allow" | "approve" | "approved")
}

impl Engine {
    /// `None` if a person approved exactly this call and the approval was not used yet; it is used
    /// now. Otherwise the message for the caller.
    pub(super) async fn consented(
        &self,
        asker: Asker<'_>,
        tool: &str,
        args: &Value,
    ) -> Result<Option<ToolOutcome>, EngineError> {
        let shown = args.to_string();
        if shown.len() > MAX_SHOWN {
            let text = format!(
                "the arguments have {} bytes, and a person has to read them: send at \
                                most {MAX_SHOWN}",
                shown.len()
            );
            return Ok(Some(ToolOutcome::failure("bad_args", text)));
        }
        let call = self.name_of(asker, tool, args);
        let until = tokio::time::Instant::now() + WAIT;
        let mut changes = self.cortex.inbox.subscribe();
        let mut times = 0;
        while times < MAX_TIMES {
            changes.borrow_and_update();
            let id = id_of(&call, times);
            let Some(item) = self.cortex.store.inbox_fetch(id).await? else {
                self.put_consent(asker, id, tool, &shown).await?;
                continue;
            };
            match item.state {
                InboxState::Open => {
                    if tokio::time::timeout_at(until, changes.changed()).await.is_err() {
                        return Ok(Some(pending(id, tool)));
                    }
                }
                InboxState::Answered if item.details.get(USED) != Some(&Value::Bool(true)) => {
                    if let Asker::Key(by) = asker {
                        self.still_may_call(by).await?;
                    }
                    let answer = item.answer.clone().unwrap_or_default();
                    if !self.use_up(item).await? {
                        continue; // another call was quicker
                    }
                    return Ok((!agrees(&answer)).then(|| {
                        let text = format!("a person refused `{tool}`: {answer}");
                        ToolOutcome { allowed: false, ..ToolOutcome::failure("denied", text) }
                    }));
                }
                InboxState::Answered
                | InboxState::Approved
                | InboxState::Denied
                | InboxState::Expired
                | InboxState::Withdrawn => times += 1,
            }
        }
        Err(EngineError::conflict(format!(
            "`{tool}` was asked about {MAX_TIMES} times: change the call"
        )))
    }

    /// Refuses a caller whose key was revoked while its call waited.
    async fn still_may_call(&self, by: &Caller) -> Result<(), EngineError> {
        if by.is_admin() || self.key_named(&by.name).await?.is_some() {
            return Ok(());
        }
        let message = format!("the key `{}` was revoked while its call waited", by.name);
        Err(EngineError::Forbidden { message })
    }

    /// A hash of the exact call that is asked about.
    fn name_of(&self, asker: Asker<'_>, tool: &str, args: &Value) -> blake3::Hash {
        let specs = self.tools.specs();
        let spec = specs.iter().find(|spec| spec.name == tool);
        let offered = spec.map(|spec| json!([spec.description, spec.schema])).unwrap_or_default();
        let policy = self.cortex.gate.as_ref().map(|gate| gate.version().0);
        let who = match asker {
            Asker::Run(row) => json!(["run", row.id, row.epoch]),
            Asker::Key(by) => json!(["key", by.name]),
        };
        let whole = json!([who, tool, args, offered, policy]).to_string();
        let mut hash = blake3::Hasher::new_derive_key("overmind 2026 consent to a call v1");
        hash.update(whole.as_bytes()).finalize()
    }

    async fn put_consent(
        &self,
        asker: Asker<'_>,
        id: InboxId,
        tool: &str,
        args: &str,
    ) -> Result<(), EngineError> {
        let prompt = format!("Allow one call of `{tool}`? Answer yes, or why not.\n{args}");
        let mut details = json!({"prompt": prompt, "reason": "a call needs an approval", "tool": tool, MARK: true});
        let by = match asker {
            Asker::Run(row) => return self.put_asked(row.id, id, details, Wants::Words).await,
            Asker::Key(by) => by,
        };
        let filter = InboxFilter {
            state: Some(InboxState::Open),
            kind: Some(InboxKind::Question),
            ..InboxFilter::default()
        };
        let open = self.cortex.store.inbox_list(filter, Page { limit: 500, after: None }).await?;
        let of_key = |item: &&InboxItem| item.session.is_none() && item.agent_name == by.name;
        if open.iter().filter(of_key).count() >= MAX_OPEN {
            let text =
                format!("{MAX_OPEN} calls of `{}` wait for an approval; wait for one", by.name);
            return Err(EngineError::conflict(text));
        }
        self.cortex.store.redact(&mut details);
        let title: String = format!("Allow one call of `{tool}`?").chars().take(200).collect();
        let now = self.cortex.clock.now();
        let item = InboxItem {
            agent_name: by.name.clone(),
            ..InboxItem::open(id, by.colony, InboxKind::Question, title, details, now)
        };
        let event = NewEvent {
            stream: StreamId::System,
            kind: "question.asked",
            ts: now,
            payload: json!({"inbox_id": id, "by": by.name, "title": item.title}),
        };
        let changes = vec![Change::InboxPut(Box::new(item))];
        self.cortex
            .store
            .commit(Commit { guards: Vec::new(), events: vec![event], changes })
            .await?;
        self.cortex.inbox_moved();
        Ok(())
    }

    /// Marks an answer as used; false if it already was.
    async fn use_up(&self, item: InboxItem) -> Result<bool, EngineError> {
        let _turn = self.raises.lock().await;
        let mut item = self.find_item(item.id).await?;
        if item.details.get(USED) == Some(&Value::Bool(true)) {
            return Ok(false);
        }
        item.details[USED] = Value::Bool(true);
        let guards = match item.session {
            Some(session) => vec![Guard::SessionEpoch { session, epoch: item.epoch }],
            None => Vec::new(),
        };
        let changes = vec![Change::InboxPut(Box::new(item))];
        self.cortex.store.commit(Commit { guards, events: Vec::new(), changes }).await?;
        self.cortex.inbox_moved();
        Ok(true)
    }
}

fn id_of(call: &blake3::Hash, times: u32) -> InboxId {
    let mut hash = blake3::Hasher::new_keyed(call.as_bytes());
    hash.update(&times.to_be_bytes());
    let mut bytes = [0; 16];
    hash.finalize_xof().fill(&mut bytes);
    InboxId::from_u128(u128::from_be_bytes(bytes))
}

fn pending(id: InboxId, tool: &str) -> ToolOutcome {
    let text = format!(
        "`{tool}` waits for a person: item {id} of the inbox. Call it again with the same arguments \
         to wait on; it runs once when the answer is yes"
    );
    let mut outcome =
        ToolOutcome { allowed: false, ..ToolOutcome::failure("approval_pending", text) };
    outcome.result["inbox_id"] = json!(id);
    outcome
}
