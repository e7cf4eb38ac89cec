//! The driver of one session: the only task that changes it.
//!
//! Each input is redacted, then passed to the pure step function, then committed, then its effects
//! are sent. An effect goes to its Hive only after its commit is durable; so do answers to callers.

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
use crate::caller::{Caller, Part};
use crate::error::EngineError;
use crate::homes::has_conversation;

/// How long before its start the next process of a command is recorded and prepared.
const AHEAD: Duration = Duration::from_millis(5);
/// The wait before a commit that the disk refused is tried again.
const DISK_RETRY: Duration = Duration::from_millis(500);

/// Why a driver stops before its session does.
enum Stop {
    /// A newer start of the session has replaced this one, or the log refuses it.
    Fenced,
    /// The process is shutting down.
    Shutdown,
    /// The commit that would have made the session was refused, so it does not exist.
    Unmade(Box<(Made, StoreError)>),
}

/// The caller that waits for a session to be made.
type Made = oneshot::Sender<Result<(), StoreError>>;

struct Driver {
    cortex: Arc<Cortex>,
    id: SessionId,
    /// Taken out only during a step, because a copy would need the whole conversation.
    held: Option<Box<Session>>,
    /// The stream of the current model call. It is boxed like the next ones: a driver of a command
    /// has none.
    streamed: Option<Box<streamed::Streamed>>,
    /// The reservation for the current model call.
    reserved: Option<Box<Held>>,
    /// A model call that waits for its budget.
    postponed: Option<Box<Postponed>>,
    /// Calls of the model's last reply in which canaries were masked.
    masked: Vec<Masked>,
    /// Output of running tool calls that waits for the ends of its lines.
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
    // Rarely awaited futures are boxed, here and below: a driver of a command waits for days, there
    // are thousands of them, and each would reserve memory for them.
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
        // An idle session can take a message.
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
            // This is last, because the caller may make the session under another name then.
            let (made, err) = *why;
            let _ = made.send(Err(err));
            return;
        }
    }
    match status {
        // It is still queued, or was interrupted by a shutdown: its place is kept.
        SessionStatus::Queued | SessionStatus::Running => {}
        SessionStatus::AwaitingInput
        | SessionStatus::AwaitingApproval
        | SessionStatus::Idle
        | SessionStatus::Succeeded
        | SessionStatus::Failed
        | SessionStatus::Canceled => cortex.left(id),
    }
}

/// The session to drive: just made, kept since then, or read from its log. `None` if there is none;
/// all waiting callers were informed then.
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

/// Ends a driver that cannot work; all waiting callers get the reason.
fn refuse(cortex: &Arc<Cortex>, id: SessionId, mailbox: &mut Mailbox, why: &EngineError) {
    // Mail is posted under this lock, and only to registered drivers.
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

    /// Advances the session by one step. The result becomes valid with the following commit; if
    /// that fails for good, the driver ends, and the next one reads the log.
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
                // Its sender is registered as long as this runs.
                Some(mail) = mailbox.recv() => mail,
                () = self.stop.cancelled() => return Err(Stop::Shutdown),
                () = self.may_try_again(), if self.postponed.is_some() => {
                    Box::pin(self.try_again()).await?;
                    continue;
                }
                () = self.due() => {
                    // Nothing has changed: only this task changes the session.
                    let Some((at, input)) = self.session().due() else { continue };
                    // An input that is recorded ahead has the time for which it is recorded.
                    let now = self.cortex.clock.now().max(at);
                    let input = match input {
                        Input::Life(LifeInput::Due) => Box::pin(self.starting(input)).await,
                        input => input,
                    };
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

    /// Waits until something is due by the clock, forever if nothing is.
    fn due(&self) -> Fut<'_, ()> {
        match self.session().due() {
            Some((at, input)) => {
                let ahead = matches!(input, Input::Life(LifeInput::Due));
                self.cortex.clock.sleep_until(if ahead { at.before(AHEAD) } else { at })
            }
            None => Box::pin(std::future::pending()),
        }
    }

    /// Unregisters the driver, unless mail came meanwhile. Returns whether it did.
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
                let started = Input::Started { epoch, hive, agent_active };
                let input = Box::pin(self.starting(started)).await;
                self.input(input).await?;
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
            // It is handled after the mail, as in all other cases.
            Mail::Drain => {}
        }
        Ok(())
    }

    /// The events for facts that a command reported in its protocol.
    fn said(&self, facts: &[Fact], now: Timestamp) -> Vec<NewEvent> {
        let command = self.session().row().command.clone().unwrap_or_default();
        let known = |fact: &&Fact| match fact {
            // It is reported again with every turn.
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
                    // The end is queued before the reply is written: after a crash in between, the
                    // call counts at its maximum, and never not at all.
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

    /// The guards for its next commit: no other task has changed it. An ended session that
    /// continues must still own its name.
    fn stands(&self) -> Vec<Guard> {
        let row = self.session().row();
        let (session, epoch, colony) = (self.id, row.epoch, row.colony);
        match row.status.is_terminal() {
            false => vec![Guard::SessionEpoch { session, epoch }],
            true => [
                Guard::SessionEnded { session, epoch },
                Guard::NameFree { colony, name: row.name.clone() },
            ]
            .into_iter()
            .chain(self.cortex.room_in(colony))
            .collect(),
        }
    }

    /// `input`, which starts a program that has waited, or the end of the session if its directory
    /// was withdrawn meanwhile.
    async fn starting(&self, input: Input) -> Input {
        let reason = match self.cortex.withdrawn(self.session().row()).await {
            Ok(None) => return input,
            Ok(Some(why)) => why,
            Err(err) => format!("the Projects cannot be read: {err}"),
        };
        Input::Canceled { by: Caller::system(Part::Reconcilers).name, reason: Some(reason) }
    }

    /// Processes one input, makes the result durable, and sends the effects.
    async fn input(&mut self, input: Input) -> Result<(), Stop> {
        let now = self.cortex.clock.now();
        self.input_after(Vec::new(), input, now).await
    }

    /// Works as [`Driver::input`], with observations before it in the log.
    async fn input_after(
        &mut self,
        ahead: Vec<NewEvent>,
        input: Input,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let commit = Commit { guards: self.stands(), events: ahead, changes: Vec::new() };
        Box::pin(self.input_in(commit, None, input, now)).await
    }

    /// Works as [`Driver::input`], in an existing commit. With `opening`, the commit makes the
    /// session and its maker is informed: it is tried once, and if it fails there is no session.
    async fn input_in(
        &mut self,
        mut commit: Commit,
        opening: Option<Made>,
        mut input: Input,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let (said, held) = self.cortex.mask_canaries(self.id, &mut input);
        self.cortex.redact(&mut input);
        // External values may be nested deeper than the log's parser allows.
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
        // Which of these repeated effects were begun by an earlier process.
        let begun = self.session().effects_under_way();
        let ended = matches!(input, Input::Life(LifeInput::Ended { .. }))
            .then(|| before.command.as_ref().map(|row| row.life))
            .flatten();
        let (mut effects, mut aborted, orders) = self.fed(&input, now, &mut commit);
        // Calls that need a verdict get it in the same commit, without a wait in between.
        while let Some(verdict) = self.verdict() {
            let mut input = Input::Judged { verdict: Box::new(verdict) };
            self.cortex.redact(&mut input);
            let (more, stopped, _) = self.fed(&input, now, &mut commit);
            for id in stopped {
                // An effect of this very commit is removed before it begins.
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
            inbox_moves |= self.cortex.withdraw_questions(self.session(), now, &mut commit).await;
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
            // The part that was streamed so far is charged.
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
        // Only now are its first effects on their way.
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

    /// Reports to the session that a model call was not made.
    async fn never_asked(&mut self, effect: u64, failure: ModelFailure) -> Result<(), Stop> {
        let reply = Err(failure);
        self.input(Input::ModelDone { effect, reply, latency_ms: 0 }).await
    }

    /// Makes one step and records its result.
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

    /// The policy's verdict about the call that the session wants to make, if any.
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
            // The log records who allowed it and under which policy; the reasons are not needed.
            verdict.actions = Vec::new();
            verdict.files = Vec::new();
            verdict.reason = String::new();
            verdict.advice = String::new();
        }
        Some(verdict)
    }

    /// Updates the queue, the Hive and the counters after a change of the row.
    async fn moved(&self, before: &SessionRow) {
        let row = self.session().row();
        // A command that waits for an answer keeps running and keeps its place.
        let running = row.status == SessionStatus::Running;
        let placed = row.epoch != before.epoch && (running || self.session().is_alive());
        if placed {
            self.tell(ToHive::Assign(assignment(self.session(), self.cortex.config.traced))).await;
        }
        // A command continues without a new start; so does one whose environment is being removed.
        let again = matches!(
            before.status,
            SessionStatus::AwaitingInput | SessionStatus::AwaitingApproval | SessionStatus::Idle
        );
        let had_left = before.command.as_ref().is_none_or(|command| command.pid.is_none());
        if running && again && !placed && (row.command.is_none() || had_left) {
            // It gave up its place while it waited for a person, and needs one again to remove its
            // environment.
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

    /// Works as [`Driver::commit`]; for the commit that makes the session, the store's answer goes
    /// to the waiting maker, at once if it refuses.
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

    /// Commits, and tries again while the disk refuses: the result exists nowhere else.
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

    /// Handles effects that were decided on during shutdown: they are not begun, and the log
    /// records that, so that the next start can begin them without doubt. Those in `begun` were
    /// begun once, with an unknown result: the next start repeats them under the same id.
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

    /// During a drain: a session that only waits for a model call is left at once, because the call
    /// is repeated; one with a running tool gets the remaining time.
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
        claims: session.spec().claims.clone().into(),
        trail: Trail::of_session(row.id, session.spec().trace, traced),
    }
}
