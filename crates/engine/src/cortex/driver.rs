//! The driver of one session: the only task that changes it.
//!
//! Input → redact → step (pure) → commit → effects. An effect leaves for its Hive only after
//! the commit that says so is durable; an answer to a caller likewise.

mod attested;
mod live;
mod mail;
mod orders;
mod postponed;
mod rooms;
mod streamed;

use std::sync::Arc;
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::bus::{Assignment, ToHive};
use overmind_core::canary::Alarm;
use overmind_core::command::{LifeInput, LifeOrder, LifeWord, Notice};
use overmind_core::effect::{Effect, EffectAction, EffectResult};
use overmind_core::failpoint;
use overmind_core::gate::{self, GateVerdict};
use overmind_core::ids::{EffectId, SessionId};
use overmind_core::live::LivePiece;
use overmind_core::model::{ModelDelta, ModelFailure};
use overmind_core::process::provider::{Fact, Told};
use overmind_core::queue::Ticket;
use overmind_core::room::stay::RoomInput;
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::session::{Input, Refusal, Session, Step, given};
use overmind_core::store::{Change, Commit, Guard, NewEvent, StoreError, StreamId};
use overmind_core::time::Timestamp;
use overmind_core::trace::Trail;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub(crate) use self::mail::{Mail, Mailbox, Order, Slot};
use self::postponed::Postponed;
use super::gating::Masked;
use super::{Cortex, count, inbox, lock, shutting_down, tokens};
use crate::budgets::Held;
use crate::error::EngineError;
use crate::homes::has_conversation;

/// So long before it is due the next life of a command is written down and made ready.
const AHEAD: Duration = Duration::from_millis(5);
/// How long to wait before a commit that the disk refused is tried again.
const DISK_RETRY: Duration = Duration::from_millis(500);

/// Why a driver stops before its session does.
enum Stop {
    /// Another start of the session came first, or the log refuses it.
    Fenced,
    /// The process ends.
    Shutdown,
    /// The commit that would have made it was refused: there is no session.
    Unmade(Box<(Made, StoreError)>),
}

/// Who waits for a session to be made.
type Made = oneshot::Sender<Result<(), StoreError>>;

struct Driver {
    cortex: Arc<Cortex>,
    id: SessionId,
    /// Taken out only while a step is made of it: a copy would cost the whole conversation.
    held: Option<Box<Session>>,
    /// Of the model call under way. Boxed, as the next: who keeps a command has none.
    streamed: Option<Box<streamed::Streamed>>,
    /// What is reserved for it.
    reserved: Option<Box<Held>>,
    /// One that waits for its budget.
    postponed: Option<Box<Postponed>>,
    /// Calls of the model's last reply in which canaries were masked.
    masked: Vec<Masked>,
    /// Output of tool calls under way that waits for its lines to end.
    live: Vec<live::Output>,
    stop: CancellationToken,
}

pub(super) async fn drive(
    cortex: Arc<Cortex>,
    id: SessionId,
    fresh: Option<Box<Session>>,
    mut mailbox: Mailbox,
    stop: CancellationToken,
) {
    // Boxed, here and below, is what is awaited once or seldom: a driver of a command waits for
    // days, there are thousands of them, and each would keep room for it.
    let Some(session) = Box::pin(begin(&cortex, id, fresh, &mut mailbox)).await else { return };
    let mut driver = Driver {
        cortex: Arc::clone(&cortex),
        id,
        held: Some(session),
        streamed: None,
        reserved: None,
        postponed: None,
        masked: Vec::new(),
        live: Vec::new(),
        stop,
    };
    let outcome = driver.run(&mut mailbox).await;
    let status = driver.session().status();
    if matches!(status, SessionStatus::AwaitingInput | SessionStatus::Idle) {
        // At rest, it can take a letter.
        cortex.mesh.post.poke(driver.session().row().agent);
    }
    match outcome {
        Ok(()) => {}
        Err(Stop::Fenced) => {
            refuse(&cortex, id, &mut mailbox, &EngineError::conflict("Run was started elsewhere"));
        }
        Err(Stop::Shutdown) => refuse(&cortex, id, &mut mailbox, &shutting_down()),
        Err(Stop::Unmade(why)) => {
            refuse(&cortex, id, &mut mailbox, &EngineError::not_found("Run"));
            // Last: whoever hears it may make it under another name.
            let (made, err) = *why;
            let _ = made.send(Err(err));
            return;
        }
    }
    match status {
        // Still in its line, or cut off by a shutdown: its place stays as it is.
        SessionStatus::Queued | SessionStatus::Running => {}
        SessionStatus::AwaitingInput
        | SessionStatus::AwaitingApproval
        | SessionStatus::Idle
        | SessionStatus::Succeeded
        | SessionStatus::Failed
        | SessionStatus::Canceled => cortex.left(id),
    }
}

/// What is driven: just made, kept since it was, or read back from its log. `None` where there is
/// none; everyone who waits has been told then.
async fn begin(
    cortex: &Arc<Cortex>,
    id: SessionId,
    fresh: Option<Box<Session>>,
    mailbox: &mut Mailbox,
) -> Option<Box<Session>> {
    if let Some(session) = fresh.or_else(|| cortex.take_fresh(id)) {
        return Some(session);
    }
    match cortex.load(id).await {
        Ok(Some(session)) => return Some(Box::new(session)),
        Ok(None) => refuse(cortex, id, mailbox, &EngineError::not_found("Run")),
        Err(err) => {
            tracing::error!(session.id = %id, error = %err, "session cannot be rebuilt");
            refuse(cortex, id, mailbox, &err);
        }
    }
    None
}

/// Ends a driver that cannot work: everyone who waits is told why.
fn refuse(cortex: &Arc<Cortex>, id: SessionId, mailbox: &mut Mailbox, why: &EngineError) {
    // Mail is posted under this lock, and only to who is on the list.
    lock(&cortex.drivers).remove(&id);
    while let Ok(mail) = mailbox.try_recv() {
        if let Mail::Order { reply, .. } = *mail {
            let _ = reply.send(Err(why.clone()));
        }
    }
    cortex.left(id);
}

impl Driver {
    fn session(&self) -> &Session {
        self.held.as_ref().expect("a driver holds its session between steps")
    }

    /// Takes the session one step on. What it says becomes true with the commit that follows;
    /// when that fails for good the driver ends, and the next one reads the log.
    fn step(&mut self, input: &Input, now: Timestamp) -> Step {
        let session = self.held.take().expect("a driver holds its session between steps");
        let (next, step) = session.step(input, now);
        self.held = Some(Box::new(next));
        step
    }

    async fn run(&mut self, mailbox: &mut Mailbox) -> Result<(), Stop> {
        loop {
            let needed =
                self.session().status() == SessionStatus::Running || self.session().is_alive();
            if !needed && self.leave(mailbox) {
                return Ok(());
            }
            let mail = tokio::select! {
                biased;
                // Its sender is on the list for as long as this runs.
                Some(mail) = mailbox.recv() => mail,
                () = self.stop.cancelled() => return Err(Stop::Shutdown),
                () = self.may_try_again(), if self.postponed.is_some() => {
                    Box::pin(self.try_again()).await?;
                    continue;
                }
                () = self.due() => {
                    // As it was: nothing else changes the session.
                    let Some((at, input)) = self.session().due() else { continue };
                    // What is written ahead is told of the moment for which it is written.
                    let now = self.cortex.clock.now().max(at);
                    Box::pin(self.input_after(Vec::new(), input, now)).await?;
                    continue;
                }
            };
            Box::pin(self.mail(*mail)).await?;
            if self.cortex.draining() && self.may_leave_running(mailbox) {
                return Err(Stop::Shutdown);
            }
        }
    }

    /// Waits until something is due by the clock alone, for ever where nothing is.
    fn due(&self) -> Fut<'_, ()> {
        match self.session().due() {
            Some((at, input)) => {
                let ahead = matches!(input, Input::Life(LifeInput::Due));
                self.cortex.clock.sleep_until(if ahead { at.before(AHEAD) } else { at })
            }
            None => Box::pin(std::future::pending()),
        }
    }

    /// Takes itself off the list, unless mail came in meanwhile. True when it is off.
    fn leave(&self, mailbox: &Mailbox) -> bool {
        let mut drivers = lock(&self.cortex.drivers);
        if !mailbox.is_empty() {
            return false;
        }
        drivers.remove(&self.id);
        true
    }

    async fn mail(&mut self, mail: Mail) -> Result<(), Stop> {
        let (epoch, hive) = (self.session().row().epoch + 1, self.cortex.hive());
        match mail {
            Mail::Begin { opening, reply } => {
                let agent_active = self.cortex.agent_is_active(self.session().row().agent).await;
                let input = Input::Started { epoch, hive, agent_active };
                let now = self.cortex.clock.now();
                self.input_in(*opening, Some(reply), input, now).await?;
            }
            Mail::Start => {
                if self.session().status() != SessionStatus::Queued {
                    return Ok(());
                }
                let agent_active = self.cortex.agent_is_active(self.session().row().agent).await;
                self.input(Input::Started { epoch, hive, agent_active }).await?;
            }
            Mail::Recover => {
                if self.session().status() == SessionStatus::Running || self.session().is_alive() {
                    self.input(Input::Recovered { epoch, hive }).await?;
                }
            }
            Mail::Report { epoch, effect, result, streamed, live } => {
                self.report(epoch, effect, result, streamed, live).await?;
            }
            Mail::Live { epoch, effect, pieces } => {
                if epoch == self.session().row().epoch
                    && self.session().effect_number(effect).is_some()
                {
                    self.live(effect, pieces).await?;
                } else {
                    count(&self.cortex.counters.stale);
                }
            }
            Mail::Progress { epoch, effect, delta } => {
                if epoch == self.session().row().epoch
                    && self.session().effect_number(effect).is_some()
                {
                    if let Some(held) = self.reserved.as_mut().filter(|held| held.is_of(effect)) {
                        held.heard(&delta);
                    }
                    self.progress(effect, delta).await?;
                }
            }
            Mail::Life { epoch, effect, word } => {
                let number = self.session().effect_number(effect);
                let (Some(effect), true) = (number, epoch == self.session().row().epoch) else {
                    count(&self.cortex.counters.stale);
                    return Ok(());
                };
                let input = match word {
                    LifeWord::Started { pid } => LifeInput::Started { effect, pid },
                    LifeWord::Noticed(notice) => LifeInput::Noticed { effect, notice },
                    LifeWord::Read { upto, facts } => {
                        let now = self.cortex.clock.now();
                        let ahead = self.said(&facts, now);
                        let notice = Notice::Told(Box::new(Told::new(upto, &facts)));
                        let input = Input::Life(LifeInput::Noticed { effect, notice });
                        return self.input_after(ahead, input, now).await;
                    }
                };
                let begun = matches!(input, LifeInput::Started { .. });
                self.input(Input::Life(input)).await?;
                if begun {
                    self.cortex.mesh.post.poke(self.session().row().agent);
                }
            }
            Mail::Room { epoch, effect, word } => {
                let present = self.session().effect_number(effect).is_some();
                if present && epoch == self.session().row().epoch {
                    self.room_word(word).await?;
                }
            }
            Mail::RoomDone { decision, reply } => {
                let done = self.room_done(*decision).await;
                let row = done.is_ok().then(|| self.session().row().clone());
                let _ = reply.send(row.ok_or_else(shutting_down));
                done?;
            }
            Mail::RoomUndone { by, undone, reply } => {
                let done = self.room_undone(&by, &undone).await;
                let _ = reply.send(done.as_ref().copied().map_err(|_| shutting_down()));
                done?;
            }
            Mail::Attested { epoch, attested } => self.attested(epoch, attested).await?,
            Mail::RoomAttested { of, attested } => {
                Box::pin(self.room_attested(of, attested)).await?;
            }
            Mail::Order { order, reply } => self.ordered(order, reply).await?,
            // Handled after the mail, as for every other one.
            Mail::Drain => {}
        }
        Ok(())
    }

    /// The events that show what a command said in its protocol.
    fn said(&self, facts: &[Fact], now: Timestamp) -> Vec<NewEvent> {
        let command = self.session().row().command.clone().unwrap_or_default();
        let known = |fact: &&Fact| match fact {
            // Said again with every turn.
            Fact::Conversation { id, .. } => command.conversation.as_ref() != Some(id),
            _ => true,
        };
        let shown = facts.iter().filter(known).filter_map(Fact::event);
        let events = shown.map(|(kind, mut payload)| {
            payload.insert("run_id".to_owned(), json!(self.id));
            payload.insert("life".to_owned(), json!(command.life));
            let (stream, payload) = (StreamId::Session(self.id), Value::Object(payload));
            NewEvent { stream, kind, ts: now, payload }
        });
        events.collect()
    }

    async fn report(
        &mut self,
        epoch: u32,
        effect: EffectId,
        result: EffectResult,
        streamed: Vec<ModelDelta>,
        live: Vec<LivePiece>,
    ) -> Result<(), Stop> {
        let number = self.session().effect_number(effect);
        let (Some(number), true) = (number, epoch == self.session().row().epoch) else {
            count(&self.cortex.counters.stale);
            tracing::debug!(session.id = %self.id, epoch, "a result that nothing waits for");
            return Ok(());
        };
        let input = match result {
            EffectResult::Tool { outcome, latency_ms } => {
                Input::ToolDone { effect: number, outcome, latency_ms }
            }
            EffectResult::Model { reply, latency_ms } => {
                if let Some(mut held) = self.reserved.take_if(|held| held.is_of(effect)) {
                    streamed.iter().for_each(|delta| held.heard(delta));
                    // Queued before the reply is written: a crash in between counts it at its
                    // worst, and never not at all.
                    held.finish(reply.as_deref(), latency_ms);
                }
                Input::ModelDone { effect: number, reply, latency_ms }
            }
            EffectResult::Room(report) => Input::Room(RoomInput::of(number, report)),
            EffectResult::Lived(end) => Input::Life(LifeInput::Ended { effect: number, end }),
            EffectResult::Bound { hash } => {
                let ttl = self.cortex.config.approval_ttl;
                let expires_at = ttl.map(|ttl| self.cortex.clock.now().after(ttl));
                Input::Bound { effect: number, hash, expires_at }
            }
        };
        let now = self.cortex.clock.now();
        let mut ahead = Vec::new();
        for delta in streamed {
            self.streamed_events(effect, delta, now, &mut ahead);
        }
        ahead.extend(self.last_live_events(effect, live, now));
        self.input_after(ahead, input, now).await
    }

    /// What must hold for whatever it does next: nobody else has moved it meanwhile. One that has
    /// ended must have its name for itself when it goes on.
    fn stands(&self) -> Vec<Guard> {
        let row = self.session().row();
        let (session, epoch, colony) = (self.id, row.epoch, row.colony);
        match row.status.is_terminal() {
            false => vec![Guard::SessionEpoch { session, epoch }],
            true => vec![
                Guard::SessionEnded { session, epoch },
                Guard::NameFree { colony, name: row.name.clone() },
            ],
        }
    }

    /// Feeds one input, makes what follows durable, and sends the effects off.
    async fn input(&mut self, input: Input) -> Result<(), Stop> {
        let now = self.cortex.clock.now();
        self.input_after(Vec::new(), input, now).await
    }

    /// [`Driver::input`], with observations that stand before it in the log.
    async fn input_after(
        &mut self,
        ahead: Vec<NewEvent>,
        input: Input,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let commit = Commit { guards: self.stands(), events: ahead, changes: Vec::new() };
        Box::pin(self.input_in(commit, None, input, now)).await
    }

    /// [`Driver::input`], in a commit that has been begun. With `opening` it is the one that makes
    /// the session, of which its maker is told: tried once, and without it there is none.
    async fn input_in(
        &mut self,
        mut commit: Commit,
        opening: Option<Made>,
        mut input: Input,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let (said, held) = self.cortex.mask_canaries(self.id, &mut input);
        self.cortex.redact(&mut input);
        // Outside values may be nested deeper than the log's reader goes.
        input.flatten();
        if matches!(input, Input::ModelDone { .. }) {
            self.masked = Masked::of(&input, held);
            self.cortex.troubles.ended(self.id);
        }
        if let Err(refusal) = self.session().accepts(&input) {
            if refusal == Refusal::Stale {
                count(&self.cortex.counters.stale);
            }
            return Ok(());
        }
        if let (Input::ModelDone { .. }, Some(streamed)) = (&input, self.streamed.take()) {
            commit.events.push(streamed.completed(self.id, now));
        }
        let (row, model) = (self.session().row(), &self.session().agent().model);
        commit.events.extend(self.cortex.said_canaries(row, model, &said, now));
        let before = self.session().row().clone();
        let waited = self.session().inbox_item();
        // What of these is done again was begun in an earlier life.
        let begun = self.session().effects_under_way();
        let ended = matches!(input, Input::Life(LifeInput::Ended { .. }))
            .then(|| before.command.as_ref().map(|row| row.life))
            .flatten();
        let (mut effects, mut aborted, orders) = self.fed(&input, now, &mut commit);
        // What it wants judged is judged in the same commit: no wait, and nothing between.
        while let Some(verdict) = self.verdict() {
            let mut input = Input::Judged { verdict: Box::new(verdict) };
            self.cortex.redact(&mut input);
            let (more, stopped, _) = self.fed(&input, now, &mut commit);
            for id in stopped {
                // What this very commit would have begun never begins.
                match effects.iter().position(|effect| effect.id == id) {
                    Some(at) => drop(effects.remove(at)),
                    None => aborted.push(id),
                }
            }
            effects.extend(more);
        }
        if *self.session().row() != before {
            let row = Box::new(self.session().row().clone());
            let inserted = |change: &&mut Change| matches!(change, Change::SessionInsert(_));
            match commit.changes.iter_mut().find(inserted) {
                Some(change) => *change = Change::SessionInsert(row),
                None => commit.changes.push(Change::SessionUpdate(row)),
            }
        }
        let mut inbox_moves = inbox::follow(waited, self.session(), &input, now, &mut commit);
        if self.session().status().is_terminal() {
            inbox_moves |= self.cortex.withdraw_questions(self.id, now, &mut commit).await;
        }
        inbox_moves |= self.follow_work(&before, now, &mut commit).await;
        failpoint::point("driver.before_commit");
        let opening = self.commit_with(commit, opening).await?;
        failpoint::point("driver.after_commit");
        if inbox_moves {
            self.cortex.inbox_moved();
        }
        self.moved(&before).await;
        let epoch = self.session().row().epoch;
        let old = before.epoch;
        for effect in aborted {
            // What it streamed until here is counted.
            drop(self.reserved.take_if(|held| held.is_of(effect)));
            drop(self.postponed.take_if(|postponed| postponed.is_of(effect)));
            self.tell(ToHive::Abort { session: self.id, epoch: old, effect }).await;
        }
        if self.cortex.draining() && !effects.is_empty() {
            opening.map(|made| made.send(Ok(())));
            return self.keep_back(effects, &begun).await;
        }
        let session = self.id;
        let mut refused = None;
        for mut effect in effects {
            if matches!(input, Input::Life(LifeInput::Due)) {
                effect.not_before = Some(now);
            }
            match self.reserve(&mut effect).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(failure) => {
                    refused = self.session().effect_number(effect.id).zip(Some(failure));
                    continue;
                }
            }
            let token = match &effect.action {
                EffectAction::Live(launch) => Some(self.cortex.session_token(session, launch.life)),
                EffectAction::Tool { .. }
                | EffectAction::Model(_)
                | EffectAction::Bind { .. }
                | EffectAction::Room(_) => None,
            };
            self.tell(ToHive::Perform { session, epoch, effect, token }).await;
        }
        for (effect, order) in orders {
            self.tell(ToHive::Order { session, epoch, effect, order }).await;
        }
        // Only now: what it begins with is on its way.
        opening.map(|made| made.send(Ok(())));
        if let Some(life) = ended {
            self.tell(ToHive::Recorded { session, life }).await;
        }
        let status = self.session().status();
        let over = status.is_terminal();
        let left = status != SessionStatus::Running && before.status == SessionStatus::Running;
        if over || (left && !self.session().is_alive()) {
            let resumable = has_conversation(self.session().row());
            let session = self.id;
            self.tell(ToHive::Release { session, epoch: old, over, resumable }).await;
        }
        match refused {
            Some((effect, failure)) => Box::pin(self.never_asked(effect, failure)).await,
            None => Ok(()),
        }
    }

    /// A model was not asked; the session hears why, as it hears everything else.
    async fn never_asked(&mut self, effect: u64, failure: ModelFailure) -> Result<(), Stop> {
        let reply = Err(failure);
        self.input(Input::ModelDone { effect, reply, latency_ms: 0 }).await
    }

    /// Takes one step and writes down what it says.
    fn fed(
        &mut self,
        input: &Input,
        now: Timestamp,
        commit: &mut Commit,
    ) -> (Vec<Effect>, Vec<EffectId>, Vec<(EffectId, LifeOrder)>) {
        let stream = StreamId::Session(self.id);
        let (kind, payload) = self.session().record(input);
        commit.events.push(NewEvent { stream, kind, ts: now, payload });
        let Step { events, steps, effects, aborted, orders } = self.step(input, now);
        for event in &events {
            self.cortex.counters.of_event(event.kind);
            if event.kind == Alarm::Tripped.kind() {
                commit.changes.push(self.cortex.alarms.raise(self.id, now));
            }
        }
        commit.events.extend(events.into_iter().map(|event| NewEvent {
            stream,
            kind: event.kind,
            ts: now,
            payload: event.payload,
        }));
        for step in steps {
            // A step that opened and closed in one commit is written once.
            commit
                .changes
                .retain(|change| !matches!(change, Change::StepPut(other) if other.id == step.id));
            commit.changes.push(Change::StepPut(Box::new(step)));
        }
        (effects, aborted, orders)
    }

    /// What the policy says about the call that the session wants to begin, if it wants one.
    fn verdict(&self) -> Option<GateVerdict> {
        let session = self.session();
        let call = session.to_judge()?;
        if let Some(refused) = self.cortex.alarm(self.id, call.tool, call.args, &self.masked) {
            return Some(refused);
        }
        let (row, agent) = (session.row(), session.agent());
        if agent.tools_allowed.iter().any(|name| name == call.tool)
            && let Some(refused) = self.cortex.misfit(call.tool, call.args)
        {
            return Some(refused);
        }
        let asks = session.agent_asks(call.tool);
        let mut verdict = self.cortex.judge(row, agent, call.tool, call.args, call.labels, asks);
        if verdict.decision == gate::Decision::Allow && !asks {
            // The log keeps who allowed it and under which policy; nobody has to be told why.
            verdict.actions = Vec::new();
            verdict.files = Vec::new();
            verdict.reason = String::new();
            verdict.advice = String::new();
        }
        Some(verdict)
    }

    /// Keeps the queue, the Hive and the counters in step with a change of the row.
    async fn moved(&self, before: &SessionRow) {
        let row = self.session().row();
        // A command that waits for an answer lives on and has its place too.
        let running = row.status == SessionStatus::Running;
        let placed = row.epoch != before.epoch && (running || self.session().is_alive());
        if placed {
            self.tell(ToHive::Assign(assignment(self.session(), self.cortex.config.traced))).await;
        }
        // A command goes on without a new start; so does one whose room is to be given back.
        let again = matches!(
            before.status,
            SessionStatus::AwaitingInput | SessionStatus::AwaitingApproval | SessionStatus::Idle
        );
        let had_left = before.command.as_ref().is_none_or(|command| command.pid.is_none());
        if running && again && !placed && (row.command.is_none() || had_left) {
            // It left its place while it waited for a person, and has one again to give its room back.
            self.tell(ToHive::Assign(assignment(self.session(), self.cortex.config.traced))).await;
        }
        if running && (placed || again) {
            let agent_bound = self.session().agent().limits.max_concurrent;
            let ticket =
                Ticket { session: self.id, colony: row.colony, agent: row.agent, agent_bound };
            lock(&self.cortex.queue).run_now(ticket);
        }
        if row.status == before.status {
            return;
        }
        let counters = &self.cortex.counters;
        match row.status {
            SessionStatus::Succeeded => count(&counters.succeeded),
            SessionStatus::Failed => count(&counters.failed),
            SessionStatus::Canceled => count(&counters.canceled),
            SessionStatus::Queued
            | SessionStatus::Running
            | SessionStatus::AwaitingInput
            | SessionStatus::AwaitingApproval
            | SessionStatus::Idle => {}
        }
        if row.status != SessionStatus::Running {
            self.cortex.left(self.id);
        }
    }

    async fn tell(&self, message: ToHive) {
        if let Err(err) = self.cortex.bus.send(self.cortex.hive(), message).await {
            tracing::warn!(session.id = %self.id, error = %err, "the hive does not hear");
        }
    }

    /// [`Driver::commit`], or the one that makes the session: what the store says of that one goes
    /// to whoever waits for it, at once if it refuses.
    async fn commit_with(
        &self,
        commit: Commit,
        opening: Option<Made>,
    ) -> Result<Option<Made>, Stop> {
        let Some(made) = opening else {
            self.commit(commit).await?;
            return Ok(None);
        };
        if let Err(err) = self.cortex.store.commit(commit).await {
            return Err(Stop::Unmade(Box::new((made, err))));
        }
        count(&self.cortex.counters.commits);
        Ok(Some(made))
    }

    /// Commits, and tries again while the disk refuses: the result that is being written is
    /// nowhere else.
    async fn commit(&self, commit: Commit) -> Result<(), Stop> {
        let start = commit.changes.iter().find_map(|change| {
            let Change::SessionUpdate(row) = change else { return None };
            Some(tokens::start_of(row))
        });
        let _moving = start.map(|_| self.cortex.tokens.moving(self.id));
        loop {
            match self.cortex.store.commit(commit.clone()).await {
                Ok(_) => {
                    count(&self.cortex.counters.commits);
                    self.cortex.set_degraded(None);
                    if let Some(start) = start {
                        self.cortex.passes.moved(self.id, start);
                    }
                    return Ok(());
                }
                Err(StoreError::Conflict { what, .. }) => {
                    tracing::warn!(session.id = %self.id, %what, "fenced: another start came first");
                    return Err(Stop::Fenced);
                }
                Err(err) if err.is_transient() => {
                    count(&self.cortex.counters.store_errors);
                    tracing::error!(session.id = %self.id, error = %err, "the store refuses; will try again");
                    self.cortex.set_degraded(Some(err.to_string()));
                    let again = self.cortex.clock.now().after(DISK_RETRY);
                    tokio::select! {
                        () = self.stop.cancelled() => return Err(Stop::Shutdown),
                        () = self.cortex.clock.sleep_until(again) => {}
                    }
                }
                Err(err) => {
                    count(&self.cortex.counters.store_errors);
                    tracing::error!(session.id = %self.id, error = %err, "the store fails; the session stops here");
                    self.cortex.set_degraded(Some(err.to_string()));
                    return Err(Stop::Shutdown);
                }
            }
        }
    }

    /// Effects that were decided on while the engine shuts down: they are not begun, and the
    /// log says so, so that the next start begins them without doubt. Those in `begun` were begun
    /// once, whatever became of it: the next start does them again under the same id.
    async fn keep_back(&mut self, effects: Vec<Effect>, begun: &[EffectId]) -> Result<(), Stop> {
        let not_begun: Vec<u64> = effects
            .iter()
            .filter(|effect| matches!(effect.action, EffectAction::Tool { .. }))
            .filter(|effect| !begun.contains(&effect.id))
            .filter_map(|effect| self.session().effect_number(effect.id))
            .collect();
        let now = self.cortex.clock.now();
        let input = Input::HandedOver { not_begun };
        let (kind, payload) = self.session().record(&input);
        let guard = Guard::SessionEpoch { session: self.id, epoch: self.session().row().epoch };
        let event = NewEvent { stream: StreamId::Session(self.id), kind, ts: now, payload };
        self.commit(Commit { guards: vec![guard], events: vec![event], changes: Vec::new() })
            .await?;
        self.step(&input, now);
        Err(Stop::Shutdown)
    }

    /// While draining: a session that waits for a model call only is left at once, for that is
    /// done again; one with a tool under way gets the time that is left.
    fn may_leave_running(&self, mailbox: &Mailbox) -> bool {
        (self.session().status() == SessionStatus::Running || self.session().is_alive())
            && mailbox.is_empty()
            && !self.session().is_acting()
    }
}

fn assignment(session: &Session, traced: bool) -> Assignment {
    let row = session.row();
    Assignment {
        session: row.id,
        epoch: row.epoch,
        name: row.name.clone(),
        colony: row.colony,
        agent: row.agent,
        agent_name: session.agent().name.clone(),
        tools_allowed: session.agent().tools_allowed.clone().into(),
        sandbox: session.agent().sandbox,
        workspace: row.directory().to_owned(),
        room: row.surroundings().map(Arc::new),
        given: given::variables(&session.spec().contexts).into(),
        files: given::files(&session.spec().contexts).into(),
        trail: Trail::of_session(row.id, session.spec().trace, traced),
    }
}
