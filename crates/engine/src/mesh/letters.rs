//! Messages: sending, reading, acknowledging, and dead ones.
//!
//! Operations on one agent's messages are done one after the other; agents do not wait for each
//! other. A mailbox has a limit: a sender to a full one gets an error.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overmind_core::acl::Verb;
use overmind_core::agent::Agent;
use overmind_core::ids::{AgentId, ColonyId, EffectId, LetterId, SessionId};
use overmind_core::mesh::{
    Dead, Letter, LetterFilter, LetterMark, MAX_DEAD, MAX_WAITING, Priority,
};
use overmind_core::name::check_visible;
use overmind_core::row::Role;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::{Change, Guard, Store, StoreError};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::postmaster::Post;
use super::who::mesh_looks;
use super::{SCAN, Who, checked_ttl, event, explained};
use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::cortex::{Cortex, lock};
use crate::error::EngineError;

/// Longest kind of a message, and of other small fields, in characters.
const FIELD_CHARS: usize = 200;
/// Maximum number of messages that one call reads, acknowledges or moves.
pub(super) const MAX_BATCH: u32 = 100;
/// Longest wait of one call.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The interval of checks by a call that waits while all messages are held.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The counters and notifications of one agent's messages.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) waiting: AtomicU32,
    dead: AtomicU32,
    /// Notified when there may be something to read.
    bell: watch::Sender<u64>,
    /// Locked while messages are read and changed.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// The number of calls that wait for a message: pushing one would take it from them.
    pub(super) readers: AtomicU32,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            waiting: AtomicU32::new(0),
            dead: AtomicU32::new(0),
            bell: watch::Sender::new(0),
            turn: tokio::sync::Mutex::default(),
            readers: AtomicU32::new(0),
        }
    }
}

impl Mailbox {
    /// Reserves a place for a message; false if all are taken.
    pub(super) fn reserve(&self) -> bool {
        let more = |waiting| (waiting < MAX_WAITING).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    pub(super) fn release(&self, letters: u32) {
        let less = |waiting: u32| Some(waiting.saturating_sub(letters));
        let _ = self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    pub(super) fn ring(&self) {
        self.bell.send_modify(|rung| *rung += 1);
    }
}

#[derive(Debug, Default)]
pub(super) struct Mailboxes {
    all: Mutex<HashMap<AgentId, Arc<Mailbox>>>,
}

impl Mailboxes {
    pub(super) fn of(&self, agent: AgentId) -> Arc<Mailbox> {
        Arc::clone(lock(&self.all).entry(agent).or_default())
    }

    pub(super) async fn load(&self, store: &dyn Store, post: &Post) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = store.mailbox_list(after, SCAN).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(*last);
            for (agent, counts) in page {
                let mailbox = self.of(agent);
                mailbox.waiting.store(counts.waiting, Ordering::Release);
                mailbox.dead.store(counts.dead, Ordering::Release);
                if counts.waiting > 0 {
                    post.poke(agent);
                }
            }
        }
    }
}

/// A message to send.
#[derive(Clone, Debug, Default)]
pub struct LetterDraft {
    /// An agent's name or id, or `capability:` and a capability, for the agent that registered it
    /// first.
    pub to: String,
    pub kind: String,
    pub payload: Value,
    pub workflow: Option<String>,
    pub reply_to: Option<String>,
    pub priority: Priority,
    /// The lifetime in seconds; `None` means forever.
    pub ttl: Option<u64>,
    /// The sending call; if it is repeated, the message has the same id.
    pub effect: Option<EffectId>,
}

/// A sent message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterSent {
    pub id: LetterId,
    /// The name of the receiving agent.
    pub to: String,
    pub from: String,
    pub kind: String,
}

impl Engine {
    /// Sends a message to an agent. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`], [`EngineError::NotFound`] for the agent, and
    /// [`EngineError::Busy`] if its mailbox is full.
    pub async fn letter_send(
        &self,
        by: &Caller,
        given: Option<&str>,
        draft: LetterDraft,
    ) -> Result<LetterSent, EngineError> {
        let who = self.who(by, given).await?;
        self.letter_send_as(&who, draft).await
    }

    pub(super) async fn letter_send_as(
        &self,
        who: &Who,
        mut draft: LetterDraft,
    ) -> Result<LetterSent, EngineError> {
        for (field, text) in [
            ("to", Some(&draft.to)),
            ("type", Some(&draft.kind)),
            ("workflow_id", draft.workflow.as_ref()),
            ("reply_to", draft.reply_to.as_ref()),
        ] {
            if text.is_some_and(|text| {
                text.chars().count() > FIELD_CHARS || check_visible(text).is_err()
            }) {
                let message = format!("{field} has at most {FIELD_CHARS} printable characters");
                return Err(EngineError::invalid(field, message));
            }
        }
        let ttl = checked_ttl(draft.ttl)?;
        let found = self.addressed(&draft.to).await?;
        let object = found.as_ref().map_or(draft.to.as_str(), |agent| &agent.spec.name).to_owned();
        let what = || format!("{} cannot message {}", who.name, draft.to);
        self.permit(who, Verb::Message, &object, what).await?;
        if let (Some(agent), Some(role)) = (&found, who.role)
            && agent.spec.sandbox == SandboxLevel::None
            && role < Role::Admin
        {
            let by = Caller::new(who.name.clone(), Rights::Role(role));
            by.require_host("send letters to an agent without a sandbox")?;
        }
        let Some(agent) = found else {
            let message = format!("No agent found for target: {}", draft.to);
            return Err(EngineError::NotFound { message });
        };
        let bytes = self.cortex.measured("payload", &mut draft.payload)?;
        let now = self.cortex.clock.now();
        let id = match draft.effect {
            Some(effect) => LetterId::from_u128(effect.as_u128()),
            None => LetterId::mint(&*self.cortex.ids),
        };
        let letter = Letter {
            id,
            colony: ColonyId::DEFAULT,
            to: agent.id,
            from: who.name.clone(),
            topic: None,
            kind: draft.kind,
            payload: draft.payload,
            workflow: draft.workflow,
            reply_to: draft.reply_to,
            priority: draft.priority,
            sent_at: now,
            expires_at: ttl.map(|ttl| now.after(ttl)),
            mark: LetterMark::fresh(now),
            place: 0,
        };
        let sent = LetterSent {
            id,
            to: agent.spec.name.clone(),
            from: who.name.clone(),
            kind: letter.kind.clone(),
        };
        let again =
            draft.effect.is_some() && self.cortex.store.letter_fetch(agent.id, id).await?.is_some();
        if again {
            return Ok(sent);
        }
        let payload = json!({
            "id": id, "from": who.name, "run_id": who.session, "to": agent.spec.name,
            "agent_id": agent.id, "type": letter.kind, "bytes": bytes,
        });
        let commit = explained(
            event("mail.sent", now, payload),
            vec![],
            vec![Change::LetterInsert(Box::new(letter))],
        );
        let mailbox = self.cortex.mesh.mail.of(agent.id);
        if !mailbox.reserve() {
            let message = format!(
                "the mailbox of `{}` is full: {MAX_WAITING} letters wait in it; send again when \
                 it has read some",
                agent.spec.name
            );
            return Err(EngineError::Busy { message });
        }
        let cortex = Arc::clone(&self.cortex);
        let to = agent.id;
        self.whole(async move {
            match cortex.store.commit(commit).await {
                Ok(_) => {
                    mailbox.ring();
                    cortex.mesh.post.poke(to);
                    Ok(())
                }
                Err(err) => {
                    mailbox.release(1);
                    Err(err.into())
                }
            }
        })
        .await?;
        Ok(sent)
    }

    /// The agent of an address.
    async fn addressed(&self, to: &str) -> Result<Option<Agent>, EngineError> {
        if let Some(capability) = to.strip_prefix(super::inform::ADDRESS) {
            let first = {
                let all = lock(&self.cortex.mesh.registrations);
                let able =
                    all.values().filter(|one| one.capabilities.iter().any(|c| c == capability));
                able.min_by_key(|one| (one.registered_at, one.agent)).map(|one| one.agent)
            };
            let Some(first) = first else { return Ok(None) };
            return Ok(self.cortex.agent(first).await?.map(Arc::unwrap_or_clone));
        }
        match self.find_agent(&mesh_looks(), to).await {
            Ok(agent) => Ok(Some(agent)),
            Err(EngineError::NotFound { .. }) => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// Returns readable messages, oldest first. Each is held for some time; without an
    /// acknowledgement it becomes readable again. Waits up to `wait` for the first one.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] for a caller that is no agent and names none.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, returned messages become readable again.
    pub async fn letters_receive(
        &self,
        by: &Caller,
        agent: Option<&str>,
        limit: u32,
        wait: Duration,
    ) -> Result<Vec<Letter>, EngineError> {
        let (who, agent) = self.mailbox_of(by, agent, Role::Operator).await?;
        self.receive(agent, &who.name, (None, who.session), limit, wait).await
    }

    /// `holder` is the reading call and its session. Messages that the session holds from earlier
    /// calls are acknowledged; those that this same call has read before are returned again.
    pub(super) async fn receive(
        &self,
        agent: AgentId,
        by: &str,
        holder: (Option<EffectId>, Option<SessionId>),
        limit: u32,
        wait: Duration,
    ) -> Result<Vec<Letter>, EngineError> {
        let limit = limit.clamp(1, MAX_BATCH);
        let mailbox = self.cortex.mesh.mail.of(agent);
        let until = self.cortex.clock.now().after(wait.min(LONGEST_WAIT));
        let _reader = Reader::new(&self.cortex, &mailbox, agent);
        let mut bell = mailbox.bell.subscribe();
        loop {
            bell.borrow_and_update();
            let (letters, next) = self.receive_now(&mailbox, agent, by, holder, limit).await?;
            let now = self.cortex.clock.now();
            if !letters.is_empty() || now >= until {
                return Ok(letters);
            }
            let wake = next.map_or(until, |next| next.min(until));
            tokio::select! {
                () = self.cortex.clock.sleep_until(wake) => {}
                _ = bell.changed() => {}
                () = self.tasks.stopping().cancelled() => return Ok(Vec::new()),
            }
        }
    }

    /// Also returns when to check again.
    async fn receive_now(
        &self,
        mailbox: &Arc<Mailbox>,
        agent: AgentId,
        by: &str,
        (holder, session): (Option<EffectId>, Option<SessionId>),
        limit: u32,
    ) -> Result<(Vec<Letter>, Option<Timestamp>), EngineError> {
        if mailbox.waiting.load(Ordering::Acquire) == 0 {
            return Ok((Vec::new(), None));
        }
        let _turn = mailbox.turn.lock().await;
        let now = self.cortex.clock.now();
        if let (Some(call), Some(session)) = (holder, session) {
            let held = LetterFilter::HeldBy(session);
            let held = self.cortex.store.letter_list(agent, held, 0, MAX_BATCH).await?;
            let (same, earlier): (Vec<Letter>, Vec<Letter>) =
                held.into_iter().partition(|letter| letter.mark.holder == Some(call));
            // Messages that it read in another way are acknowledged in that way.
            let by_calls = earlier.iter().filter(|letter| letter.mark.holder.is_some());
            let done: Vec<LetterId> = by_calls.map(|letter| letter.id).collect();
            if !done.is_empty() {
                self.acknowledge(mailbox, agent, by, done).await?;
            }
            if !same.is_empty() {
                return Ok((same, None));
            }
        }
        let readable = LetterFilter::Readable(now);
        let mut letters = self.cortex.store.letter_list(agent, readable, 0, limit).await?;
        letters.retain(|letter| letter.fate(now).is_none());
        if letters.is_empty() {
            // All existing messages are held; one may become readable by time alone.
            return Ok((letters, Some(now.after(LOOK_AGAIN))));
        }
        let mut guards = Vec::with_capacity(letters.len());
        let mut changes = Vec::with_capacity(letters.len());
        for letter in &mut letters {
            let (to, id) = (letter.to, letter.id);
            guards.push(Guard::LetterAt { to, id, attempts: letter.mark.attempts, dead: false });
            letter.mark = letter.mark.read(now, holder, session);
            let (mark, expires_at) = (letter.mark, letter.expires_at);
            changes.push(Change::LetterMark { to, id, mark, expires_at });
        }
        let ids: Vec<LetterId> = letters.iter().map(|letter| letter.id).collect();
        let attempts: Vec<u32> = letters.iter().map(|letter| letter.mark.attempts).collect();
        let payload = json!({
            "agent_id": agent, "by": by, "run_id": session, "ids": ids, "attempts": attempts,
        });
        let commit = explained(event("mail.delivered", now, payload), guards, changes);
        self.cortex.store.commit(commit).await?;
        Ok((letters, None))
    }

    /// An agent's messages, either dead or not, in the order of arrival, after the place `after`.
    /// They are not held by that.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::letters_receive`].
    pub async fn letters_list(
        &self,
        by: &Caller,
        agent: Option<&str>,
        dead: bool,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Letter>, EngineError> {
        let (_, agent) = self.mailbox_of(by, agent, Role::Viewer).await?;
        let filter = if dead { LetterFilter::Dead } else { LetterFilter::Living };
        Ok(self.cortex.store.letter_list(agent, filter, after, limit).await?)
    }

    /// Acknowledges messages, which removes them. Returns those that existed.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::letters_receive`].
    pub async fn letters_acknowledge(
        &self,
        by: &Caller,
        agent: Option<&str>,
        ids: Vec<LetterId>,
    ) -> Result<Vec<LetterId>, EngineError> {
        let (who, agent) = self.mailbox_of(by, agent, Role::Operator).await?;
        self.acknowledge_all(agent, who.name, ids).await
    }

    pub(super) async fn acknowledge_all(
        &self,
        agent: AgentId,
        by: String,
        ids: Vec<LetterId>,
    ) -> Result<Vec<LetterId>, EngineError> {
        check_batch(&ids)?;
        let engine = self.clone();
        self.whole(async move {
            let mailbox = engine.cortex.mesh.mail.of(agent);
            let _turn = mailbox.turn.lock().await;
            engine.acknowledge(&mailbox, agent, &by, ids).await
        })
        .await
    }

    /// The caller must hold the mailbox's lock.
    pub(super) async fn acknowledge(
        &self,
        mailbox: &Mailbox,
        agent: AgentId,
        by: &str,
        ids: Vec<LetterId>,
    ) -> Result<Vec<LetterId>, EngineError> {
        let (mut known, mut living, mut dead) = (Vec::new(), 0, 0);
        for id in ids {
            let Some(letter) = self.cortex.store.letter_fetch(agent, id).await? else { continue };
            known.push(id);
            match letter.mark.dead {
                Some(_) => dead += 1,
                None => living += 1,
            }
        }
        if known.is_empty() {
            return Ok(known);
        }
        let now = self.cortex.clock.now();
        let payload = json!({"agent_id": agent, "by": by, "ids": known});
        let changes = known.iter().map(|id| Change::LetterDelete { to: agent, id: *id }).collect();
        self.cortex
            .store
            .commit(explained(event("mail.acknowledged", now, payload), vec![], changes))
            .await?;
        mailbox.release(living);
        mailbox.dead.fetch_sub(dead, Ordering::AcqRel);
        Ok(known)
    }

    /// Makes messages readable again, also dead ones, which become like unread ones. Returns those
    /// that existed.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::letters_receive`]; [`EngineError::Busy`] if there is no place for
    /// dead ones.
    pub async fn letters_requeue(
        &self,
        by: &Caller,
        agent: Option<&str>,
        ids: Vec<LetterId>,
    ) -> Result<Vec<LetterId>, EngineError> {
        let (who, agent) = self.mailbox_of(by, agent, Role::Operator).await?;
        check_batch(&ids)?;
        let engine = self.clone();
        self.whole(async move { engine.requeue(agent, &who.name, ids).await }).await
    }

    async fn requeue(
        &self,
        agent: AgentId,
        by: &str,
        ids: Vec<LetterId>,
    ) -> Result<Vec<LetterId>, EngineError> {
        let mailbox = self.cortex.mesh.mail.of(agent);
        let _turn = mailbox.turn.lock().await;
        let now = self.cortex.clock.now();
        let (mut known, mut changes, mut risen) = (Vec::new(), Vec::new(), 0);
        for id in ids {
            let Some(letter) = self.cortex.store.letter_fetch(agent, id).await? else { continue };
            let mark = match letter.mark.dead {
                Some(_) if !mailbox.reserve() => {
                    mailbox.release(risen);
                    let message = format!("the mailbox is full: {MAX_WAITING} letters wait in it");
                    return Err(EngineError::Busy { message });
                }
                Some(_) => {
                    risen += 1;
                    LetterMark::fresh(now)
                }
                None => letter.mark.given_back(now, Duration::ZERO),
            };
            // An expired message does not expire again.
            let expires_at = letter.expires_at.filter(|at| *at > now);
            known.push(id);
            changes.push(Change::LetterMark { to: agent, id, mark, expires_at });
        }
        if known.is_empty() {
            return Ok(known);
        }
        let payload = json!({"agent_id": agent, "by": by, "ids": known});
        let commit = explained(event("mail.requeued", now, payload), vec![], changes);
        if let Err(err) = self.cortex.store.commit(commit).await {
            mailbox.release(risen);
            return Err(err.into());
        }
        mailbox.dead.fetch_sub(risen, Ordering::AcqRel);
        mailbox.ring();
        self.cortex.mesh.post.poke(agent);
        Ok(known)
    }

    /// Moves at most `limit` expired messages to the dead ones; returns their number.
    pub(super) async fn letters_sweep(&self, limit: u32) -> Result<u32, EngineError> {
        let now = self.cortex.clock.now();
        let due = self.cortex.store.letter_due(now, limit).await?;
        let mut buried = 0;
        for letter in due {
            let mailbox = self.cortex.mesh.mail.of(letter.to);
            let Ok(_turn) = mailbox.turn.try_lock() else { continue };
            let Some(why) = letter.fate(now) else { continue };
            if self.bury(&mailbox, &letter, why, now).await? {
                buried += 1;
            }
        }
        Ok(buried)
    }

    /// The caller must hold the mailbox's lock.
    async fn bury(
        &self,
        mailbox: &Mailbox,
        letter: &Letter,
        why: Dead,
        now: Timestamp,
    ) -> Result<bool, EngineError> {
        let (to, id) = (letter.to, letter.id);
        let mark = LetterMark { dead: Some(why), holder: None, session: None, ..letter.mark };
        let guard = Guard::LetterAt { to, id, attempts: letter.mark.attempts, dead: false };
        let mut changes = vec![Change::LetterMark { to, id, mark, expires_at: letter.expires_at }];
        let mut dropped = None;
        if mailbox.dead.load(Ordering::Acquire) >= MAX_DEAD {
            let oldest = self.cortex.store.letter_list(to, LetterFilter::Dead, 0, 1).await?;
            dropped = oldest.first().map(|letter| letter.id);
            changes.extend(dropped.map(|id| Change::LetterDelete { to, id }));
        }
        let payload = json!({
            "agent_id": to, "id": id, "why": why.as_str(), "attempts": letter.mark.attempts,
            "from": letter.from, "topic": letter.topic, "dropped": dropped,
        });
        match self
            .cortex
            .store
            .commit(explained(event("mail.dead", now, payload), vec![guard], changes))
            .await
        {
            Ok(_) => {}
            Err(StoreError::Conflict { .. }) => return Ok(false),
            Err(err) => return Err(err.into()),
        }
        mailbox.release(1);
        if dropped.is_none() {
            mailbox.dead.fetch_add(1, Ordering::AcqRel);
        }
        Ok(true)
    }
}

/// Counts a call that waits for a message. When it ends, messages may be delivered.
struct Reader {
    cortex: Arc<Cortex>,
    mailbox: Arc<Mailbox>,
    agent: AgentId,
}

impl Reader {
    fn new(cortex: &Arc<Cortex>, mailbox: &Arc<Mailbox>, agent: AgentId) -> Self {
        mailbox.readers.fetch_add(1, Ordering::AcqRel);
        Self { cortex: Arc::clone(cortex), mailbox: Arc::clone(mailbox), agent }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.mailbox.readers.fetch_sub(1, Ordering::AcqRel);
        if self.mailbox.waiting.load(Ordering::Acquire) > 0 {
            self.cortex.mesh.post.poke(self.agent);
        }
    }
}

fn check_batch(ids: &[LetterId]) -> Result<(), EngineError> {
    if ids.is_empty() || ids.len() > MAX_BATCH as usize {
        return Err(EngineError::invalid("ids", format!("ids must name 1 to {MAX_BATCH} letters")));
    }
    Ok(())
}
