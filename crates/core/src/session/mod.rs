//! The session: one agent at work, as a pure state machine.
//!
//! [`Session::begin`] makes one from its [`Spec`]; [`Session::step`] takes it from input to
//! input. Everything it decides follows from these alone: no clock is read, no id is drawn, so
//! the recorded inputs of a session lead to the same decisions again ([`crate::replay`]).
//!
//! The caller commits what [`Step`] says, in this order of trust: first the events and rows,
//! durably; only then the effects. A session never waits: it says what it waits for.

mod act;
mod convo;
mod end;
mod gating;
pub mod given;
mod input;
pub mod left;
mod life;
mod model_turn;
mod phase;
mod rest;
mod room;
pub mod supervise;
mod toolset;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use self::convo::Conversation;
pub use self::gating::{STALE_APPROVAL, ToJudge};
use self::input::About;
pub use self::input::{DecodeError, ForkOf, Input, REBUILT_FROM, Recorded, SANDBOX_ATTESTED, Spec};
use self::life::Lives;
pub use self::life::STOP_GRACE_MS;
use self::phase::{Phase, Question};
pub use self::room::{ROOM_DONE, ROOM_FORKED, ROOM_SNAPSHOT, ROOM_UNDONE};
use self::supervise::History;
use self::toolset::Offer;
pub use self::toolset::Toolset;
use crate::agent::{AgentSpec, PolicyKind};
use crate::attest::AttestationRef;
use crate::command::{LifeInput, LifeOrder, StopHow};
use crate::effect::Effect;
use crate::gate::Labels;
use crate::ids::{ApprovalId, EffectId, InboxId, StepId};
use crate::inbox::{InboxItem, InboxKind, Waiting, title};
use crate::model::Usage;
use crate::name;
use crate::row::{SessionRow, SessionStatus, StepKind, StepRow};
use crate::time::Timestamp;

/// An event that a session decided on. Its stream and time are the commit's.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub kind: &'static str,
    pub payload: Value,
}

/// What one input led to.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub events: Vec<Decision>,
    /// Steps that are new or changed.
    pub steps: Vec<StepRow>,
    /// To be begun once the rest is durable.
    pub effects: Vec<Effect>,
    /// To be stopped; their results mean nothing any more.
    pub aborted: Vec<EffectId>,
    /// What is wanted of effects under way, after those above have begun.
    pub orders: Vec<(EffectId, LifeOrder)>,
}

/// Why an input means nothing to a session as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("Run is already finished")]
    Finished,
    #[error("Run is not awaiting input")]
    NotAwaitingInput,
    #[error("Run is not awaiting this approval")]
    NotAwaitingApproval,
    #[error("Run was already started")]
    NotQueued,
    #[error("Run is not running")]
    NotRunning,
    /// A result that nothing waits for: of an older epoch, or given twice.
    #[error("nothing waits for this result")]
    Stale,
    /// How it ends is decided; only its room is still given back.
    #[error("Run is ending already: what it worked in is given back")]
    Ending,
    #[error("nothing waits for a verdict")]
    NotJudging,
    #[error("Run has no command to stop")]
    NoCommand,
    #[error("Run works, and cannot be told anything now: wait until it rests, or stop it")]
    NotResting,
    /// A script, or a program whose conversations nothing here goes on with.
    #[error("Run has ended, and what it ran has no conversation to go on with: start it again")]
    NoConversation,
    /// An answer would stand in the log.
    #[error("Run asks for a secret, which an answer would write into the log: send it as one")]
    SecretAsked,
}

/// One session in memory.
#[derive(Clone, Debug)]
pub struct Session {
    spec: Arc<Spec>,
    toolset: Arc<Toolset>,
    /// Made at the first request.
    offer: Option<Arc<Offer>>,
    /// Differs from the spec's agent once a fork is on its own.
    agent: Arc<AgentSpec>,
    system: Arc<str>,
    row: SessionRow,
    phase: Phase,
    convo: Conversation,
    history: History,
    next_effect: u64,
    next_approval: u64,
    next_question: u64,
    /// There while it waits for a human, and only then.
    waiting: Option<Box<Waiting>>,
    turn: u32,
    failures: u32,
    /// Some call of the model's present decision failed.
    turn_failed: bool,
    last_error: String,
    /// To be said to the model before its next turn, once all results are in.
    notes: Vec<String>,
    /// What was said to a program that hears nothing while it works.
    later: Vec<String>,
    nudged: bool,
    /// The repeated part of a fork is over.
    forked: bool,
    /// A policy judges each call before it begins.
    gated: bool,
    /// What it has read so far.
    labels: Labels,
    lives: Lives,
    /// Since when it runs, and how long it ran before.
    running_since: Option<Timestamp>,
    ran: Duration,
}

impl Session {
    /// Makes the session that `spec` describes. Its event is `run.queued` with the spec.
    pub fn begin(spec: Spec, toolset: Arc<Toolset>, now: Timestamp) -> Self {
        let agent = Arc::clone(&spec.agent);
        let gated = spec.gated;
        let row = SessionRow {
            id: spec.run_id,
            colony: spec.colony,
            name: match &*spec.name {
                "" => name::of_old(spec.run_id),
                given => given.to_owned(),
            },
            parent: spec.parent,
            agent: spec.agent_id,
            agent_version: spec.agent_version,
            hive: None,
            epoch: 0,
            status: SessionStatus::Queued,
            task: spec.task.clone(),
            step_limit: spec.step_limit,
            created_at: now,
            started_at: None,
            finished_at: None,
            prompt: None,
            approval: None,
            final_answer: None,
            error: None,
            usage: Usage::default(),
            cost_microusd: Some(0),
            cost_at_most: false,
            model_calls: 0,
            steps: 0,
            sandbox: agent.sandbox,
            attestation: None,
            command: None,
            room: None,
            workspace: spec.workspace.clone(),
            forked_from: spec.fork.as_ref().map(|fork| (fork.from, fork.at)),
            created_by: spec.created_by.clone(),
            owner: spec.owner,
            labels: spec.labels.clone(),
        };
        Self {
            // Who runs a command asks no model.
            system: match agent.command {
                Some(_) => Arc::default(),
                None => given::system(&agent, &spec.contexts),
            },
            spec: Arc::new(spec),
            toolset,
            offer: None,
            agent,
            row,
            phase: Phase::Fresh,
            convo: Conversation::default(),
            history: History::default(),
            next_effect: 0,
            next_approval: 0,
            next_question: 0,
            waiting: None,
            turn: 0,
            failures: 0,
            turn_failed: false,
            last_error: String::new(),
            notes: Vec::new(),
            later: Vec::new(),
            nudged: false,
            forked: false,
            gated,
            labels: Labels::default(),
            lives: Lives::default(),
            running_since: None,
            ran: Duration::ZERO,
        }
    }

    pub fn row(&self) -> &SessionRow {
        &self.row
    }

    /// Notes what its sandbox was measured to give, for whoever looks at the row.
    pub fn note_attestation(&mut self, attestation: AttestationRef) {
        self.row.attestation = Some(attestation);
    }

    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The agent as it is in force now.
    pub fn agent(&self) -> &Arc<AgentSpec> {
        &self.agent
    }

    pub fn status(&self) -> SessionStatus {
        self.row.status
    }

    /// What it waits for a human to say, while it does.
    pub fn waiting(&self) -> Option<&Waiting> {
        self.waiting.as_deref()
    }

    /// The open item that stands in the inbox while it waits.
    pub fn inbox_item(&self) -> Option<InboxItem> {
        let waiting = self.waiting()?.clone();
        let Waiting { id, kind, title, details, group, asked_at, expires_at } = waiting;
        Some(InboxItem {
            session: Some(self.row.id),
            owner: self.row.owner,
            agent: Some(self.row.agent),
            agent_name: self.agent.name.clone(),
            epoch: self.row.epoch,
            group,
            expires_at,
            ..InboxItem::open(id, self.row.colony, kind, title, details, asked_at)
        })
    }

    /// When [`Input::TimeLimit`] is due, if it is running and has a limit.
    pub fn deadline(&self) -> Option<Timestamp> {
        let limit = self.agent.limits.wall_time()?;
        Some(self.running_since?.after(limit.saturating_sub(self.ran)))
    }

    /// What is due next by the clock alone, and when: the end of its time while it runs and has a
    /// limit, or the next life of its command.
    pub fn due(&self) -> Option<(Timestamp, Input)> {
        match (self.next_life(), self.deadline()) {
            (Some(due), limit) if limit.is_none_or(|limit| due <= limit) => {
                Some((due, Input::Life(LifeInput::Due)))
            }
            (_, limit) => Some((limit?, Input::TimeLimit)),
        }
    }

    /// Whether its command lives or will live again: it is not left alone then, whatever it waits
    /// for.
    pub fn is_alive(&self) -> bool {
        self.phase.living().is_some()
    }

    /// Whether a tool is under way: unlike a model call it may not be cut off freely.
    pub fn is_acting(&self) -> bool {
        matches!(self.phase, Phase::Acting { .. }) && self.phase.running().next().is_some()
    }

    /// Ids of the effects under way.
    pub fn effects_under_way(&self) -> Vec<EffectId> {
        self.phase.running().map(|n| EffectId::derive(self.row.id, n)).collect()
    }

    /// Number of the effect with this id, if one is under way.
    pub fn effect_number(&self, id: EffectId) -> Option<u64> {
        self.phase.running().find(|n| EffectId::derive(self.row.id, *n) == id)
    }

    /// The step of the tool call that this effect is, if it is one and under way.
    pub fn step_of(&self, id: EffectId) -> Option<StepId> {
        let call = self.phase.call(self.effect_number(id)?)?;
        call.step.as_ref().map(|step| step.id)
    }

    /// Whether `input` means anything now.
    ///
    /// # Errors
    ///
    /// [`Refusal`], in the words that a user sees.
    pub fn accepts(&self, input: &Input) -> Result<(), Refusal> {
        use SessionStatus::{AwaitingApproval, AwaitingInput, Idle, Queued, Running};
        if self.row.status.is_terminal() {
            return Err(match input {
                Input::Answered { .. } => Refusal::NotAwaitingInput,
                Input::Told { .. } => return self.may_be_told(input),
                Input::Restored { epoch, .. } if *epoch > self.row.epoch => return Ok(()),
                Input::Restored { .. } => Refusal::Stale,
                Input::Decided { .. } => Refusal::NotAwaitingApproval,
                Input::ToolDone { .. } | Input::ModelDone { .. } | Input::Bound { .. } => {
                    Refusal::Stale
                }
                Input::Life(life) => match life {
                    LifeInput::StopAsked { .. } => Refusal::Finished,
                    LifeInput::Started { .. }
                    | LifeInput::Ended { .. }
                    | LifeInput::Noticed { .. }
                    | LifeInput::Due => Refusal::Stale,
                },
                Input::Room(_) => Refusal::Stale,
                Input::Judged { .. } => Refusal::NotJudging,
                Input::Started { .. }
                | Input::Recovered { .. }
                | Input::Canceled { .. }
                | Input::TimeLimit
                | Input::Forked
                | Input::HandedOver { .. } => Refusal::Finished,
            });
        }
        let status = self.row.status;
        let ok = |fits: bool, otherwise| if fits { Ok(()) } else { Err(otherwise) };
        match input {
            Input::Started { epoch, .. } => {
                ok(status == Queued && *epoch > self.row.epoch, Refusal::NotQueued)
            }
            Input::Recovered { epoch, .. } => {
                let waits = matches!(status, AwaitingInput | Idle);
                let placed = status == Running || (waits && self.is_alive());
                ok(placed && *epoch > self.row.epoch, Refusal::NotRunning)
            }
            Input::Canceled { .. }
            | Input::TimeLimit
            | Input::Life(LifeInput::StopAsked { .. })
                if self.is_closing() =>
            {
                Err(Refusal::Ending)
            }
            Input::Life(LifeInput::StopAsked { .. })
                if self.is_preparing() || self.is_resting() =>
            {
                Ok(())
            }
            Input::Life(life @ LifeInput::StopAsked { .. }) => {
                ok(self.is_alive(), Refusal::NoCommand)?;
                ok(self.life_fits(life), Refusal::Stale)
            }
            Input::Life(life) => ok(self.life_fits(life), Refusal::Stale),
            Input::Room(room) => ok(self.room_fits(room), Refusal::Stale),
            Input::ToolDone { effect, .. } => {
                ok(status == Running && self.phase.call(*effect).is_some(), Refusal::Stale)
            }
            Input::ModelDone { effect, .. } => {
                let deciding =
                    matches!(self.phase, Phase::Deciding { effect: n, .. } if n == *effect);
                ok(status == Running && deciding, Refusal::Stale)
            }
            Input::Bound { effect, .. } => {
                ok(status == Running && self.phase.binds(*effect), Refusal::Stale)
            }
            Input::Judged { .. } => {
                ok(status == Running && self.to_judge().is_some(), Refusal::NotJudging)
            }
            Input::Answered { .. } if self.is_alive() => {
                ok(status == AwaitingInput, Refusal::NotAwaitingInput)?;
                ok(!self.asks_for_secret(), Refusal::SecretAsked)
            }
            Input::Answered { epoch, .. } => {
                ok(status == AwaitingInput && *epoch > self.row.epoch, Refusal::NotAwaitingInput)
            }
            Input::Told { .. } => self.may_be_told(input),
            Input::Restored { .. } => Err(Refusal::Stale),
            Input::Decided { approval, epoch, .. } => ok(
                status == AwaitingApproval
                    && self.row.approval == Some(*approval)
                    && *epoch > self.row.epoch,
                Refusal::NotAwaitingApproval,
            ),
            Input::Canceled { .. } => Ok(()),
            Input::TimeLimit | Input::HandedOver { .. } => {
                ok(status == Running, Refusal::NotRunning)
            }
            Input::Forked => ok(self.spec.fork.is_some() && !self.forked, Refusal::NotRunning),
        }
    }

    /// An input of the session that this one repeats, in terms of this one: ids that a session
    /// derives from its own name differ between the two. To be used before [`Self::accepts`]
    /// while a fork is made; other inputs are returned as they are.
    #[must_use]
    pub fn adopt(&self, input: Input) -> Input {
        let (Some(fork), Some(asked), false) = (&self.spec.fork, self.row.approval, self.forked)
        else {
            return input;
        };
        let theirs = ApprovalId::derive(fork.from, self.next_approval.saturating_sub(1));
        match input {
            Input::Decided { approval, approve, reason, by, epoch, hive } if approval == theirs => {
                Input::Decided { approval: asked, approve, reason, by, epoch, hive }
            }
            same @ (Input::Started { .. }
            | Input::Recovered { .. }
            | Input::ToolDone { .. }
            | Input::ModelDone { .. }
            | Input::Judged { .. }
            | Input::Bound { .. }
            | Input::Answered { .. }
            | Input::Told { .. }
            | Input::Restored { .. }
            | Input::Decided { .. }
            | Input::Canceled { .. }
            | Input::TimeLimit
            | Input::Life(_)
            | Input::Room(_)
            | Input::Forked
            | Input::HandedOver { .. }) => same,
        }
    }

    /// The event that records `input`: to be written before what [`Self::step`] decides.
    pub fn record(&self, input: &Input) -> (&'static str, Value) {
        let about = match input {
            Input::ToolDone { effect, .. } => {
                self.phase.call(*effect).map_or_else(About::default, |call| About {
                    step: call.step.as_ref().map(|step| step.id),
                    tool: call.name.clone(),
                    args: call.args.clone(),
                    request: Value::Null,
                })
            }
            Input::ModelDone { .. } => match &self.phase {
                Phase::Deciding { request, .. } => {
                    About { request: request.clone(), ..About::default() }
                }
                Phase::Fresh
                | Phase::Acting { .. }
                | Phase::Asking { .. }
                | Phase::Approving { .. }
                | Phase::Resting
                | Phase::Waking { .. }
                | Phase::Forked { .. }
                | Phase::Preparing { .. }
                | Phase::Living(_)
                | Phase::Closing(_)
                | Phase::Ended => About::default(),
            },
            Input::Judged { .. } | Input::Bound { .. } => {
                self.phase.being_cleared().map_or_else(About::default, |call| About {
                    step: call.step.as_ref().map(|step| step.id),
                    tool: call.name.clone(),
                    args: call.args.clone(),
                    request: Value::Null,
                })
            }
            Input::Started { .. }
            | Input::Recovered { .. }
            | Input::Answered { .. }
            | Input::Told { .. }
            | Input::Restored { .. }
            | Input::Decided { .. }
            | Input::Canceled { .. }
            | Input::TimeLimit
            | Input::Life(_)
            | Input::Room(_)
            | Input::Forked
            | Input::HandedOver { .. } => About::default(),
        };
        input.record(self.row.id, self.row.agent, about)
    }

    /// Takes the next state and says what follows. An input that [`Self::accepts`] refuses
    /// changes nothing.
    #[must_use]
    pub fn step(mut self, input: &Input, now: Timestamp) -> (Self, Step) {
        let mut out = Step::default();
        if self.accepts(input).is_ok() {
            self.take(input, now, &mut out);
        }
        (self, out)
    }

    fn take(&mut self, input: &Input, now: Timestamp, out: &mut Step) {
        match input {
            Input::Started { epoch, hive, agent_active } => {
                self.place(*epoch, *hive, now);
                if !agent_active {
                    let error =
                        json!({"code": "agent_disabled", "message": "the agent is disabled"});
                    return self.fail(error, now, out);
                }
                self.start(now, out);
            }
            Input::Recovered { epoch, hive } => {
                self.place(*epoch, *hive, now);
                self.recover(now, out);
            }
            Input::ToolDone { effect, outcome, latency_ms: _ } => {
                self.tool_done(*effect, outcome, now, out);
            }
            Input::ModelDone { effect: _, reply, latency_ms: _ } => {
                self.model_done(reply, now, out);
            }
            Input::Judged { verdict } => self.judged(verdict, now, out),
            Input::Bound { effect, hash, expires_at } => {
                self.bound(*effect, hash, *expires_at, now, out);
            }
            // Its command never left its place.
            Input::Answered { message, by, .. } if self.is_alive() => {
                self.answer_life(message, by, now, out);
            }
            Input::Told { message, by, epoch, hive } => {
                if self.is_resting() || self.row.status.is_terminal() {
                    self.place(*epoch, *hive, now);
                }
                self.told_more(message, by, now, out);
            }
            Input::Restored { epoch, hive, .. } => self.restored(*epoch, *hive, now, out),
            Input::Answered { message, by: _, epoch, hive } => {
                self.place(*epoch, *hive, now);
                self.answered(message, now, out);
                self.room_of_fork(out);
            }
            Input::Decided { approval: _, approve, reason, by, epoch, hive } => {
                self.place(*epoch, *hive, now);
                self.decided(*approve, reason.as_deref(), by, now, out);
                self.room_of_fork(out);
            }
            Input::Canceled { by: _, reason } => self.canceled(reason.as_deref(), now, out),
            Input::TimeLimit => {
                let seconds = self.agent.limits.max_seconds;
                let message = format!("the session ran for its limit of {seconds} s");
                self.fail(json!({"code": "time_limit", "message": message}), now, out);
            }
            // What rests has nothing to be stopped but its rest.
            Input::Life(LifeInput::StopAsked { how: StopHow::Stop { .. }, by })
                if self.is_resting() =>
            {
                self.end_rest(by, now, out);
            }
            Input::Life(life) => self.life(life, now, out),
            Input::Room(room) => self.room_said(room, now, out),
            Input::Forked => self.forked(),
            Input::HandedOver { not_begun } => {
                self.stop_clock(now);
                self.hand_over(not_begun);
            }
        }
    }

    /// Takes a place on a hive: a new epoch begins, and time runs.
    fn place(&mut self, epoch: u32, hive: crate::ids::HiveId, now: Timestamp) {
        self.row.epoch = epoch;
        self.row.hive = Some(hive);
        self.row.status = SessionStatus::Running;
        self.row.prompt = None;
        self.row.approval = None;
        self.waiting = None;
        self.row.started_at.get_or_insert(now);
        // After a crash the time since the last commit is not known; it counts as not run.
        self.running_since = Some(now);
    }

    fn start(&mut self, now: Timestamp, out: &mut Step) {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Forked { then } => {
                // The room that was being made is that of the session which it repeats.
                let then = match *then {
                    Phase::Preparing { then, .. } => then,
                    then => Box::new(then),
                };
                if self.room_wish().is_some() {
                    return self.prepare_room(then, out);
                }
                self.phase = *then;
                self.recover_forked(now, out);
            }
            Phase::Fresh if self.room_wish().is_some() && self.row.room.is_none() => {
                self.prepare_room(Box::new(Phase::Fresh), out);
            }
            Phase::Fresh if self.command().is_some() => self.begin_life(now, out),
            Phase::Fresh => {
                let rules = self.policy() == PolicyKind::Deterministic;
                let input = json!({
                    "task": self.row.task, "agent_id": self.row.agent, "run_id": self.row.id,
                });
                let Some(step) = self.open_step(StepKind::Plan, input, now, out) else { return };
                let note = if rules { "no tool" } else { "planned" };
                self.close_step(step, json!({"ok": true, "note": note}), None, now, out);
                if rules {
                    let task = self.row.task.clone();
                    self.decide_by_rules(&task, now, out);
                } else {
                    self.ask_model(now, out);
                }
            }
            other @ (Phase::Deciding { .. }
            | Phase::Acting { .. }
            | Phase::Asking { .. }
            | Phase::Approving { .. }
            | Phase::Resting
            | Phase::Waking { .. }
            | Phase::Preparing { .. }
            | Phase::Living(_)
            | Phase::Closing(_)
            | Phase::Ended) => self.phase = other,
        }
    }

    fn policy(&self) -> PolicyKind {
        self.agent.policy.resolve(&self.agent.model)
    }

    /// Turns the session into its own: the overrides of the fork count from here on.
    fn forked(&mut self) {
        self.forked = true;
        self.phase.forget_grants();
        match &self.phase {
            // A fork at a question waits for its own answer, and one at rest for its own next word.
            Phase::Asking { .. } | Phase::Approving { .. } | Phase::Resting => {}
            Phase::Fresh
            | Phase::Deciding { .. }
            | Phase::Acting { .. }
            | Phase::Waking { .. }
            | Phase::Forked { .. }
            | Phase::Preparing { .. }
            | Phase::Living(_)
            | Phase::Closing(_)
            | Phase::Ended => {
                let phase = std::mem::replace(&mut self.phase, Phase::Ended);
                self.phase = Phase::Forked { then: Box::new(phase) };
                self.row.status = SessionStatus::Queued;
            }
        }
        self.row.started_at = None;
        self.row.room = None;
        self.running_since = None;
        self.ran = Duration::ZERO;
        // What the repeated part cost was paid by the session it comes from.
        self.row.usage = Usage::default();
        self.row.cost_microusd = Some(0);
        self.row.model_calls = 0;
        if let Some(fork) = &self.spec.fork {
            let agent = Arc::make_mut(&mut self.agent);
            if let Some(model) = &fork.model {
                agent.model.clone_from(model);
            }
            if let Some(prompt) = &fork.prompt {
                agent.role.clone_from(prompt);
            }
            self.gated = fork.gated;
            self.system = given::system(agent, &self.spec.contexts);
        }
    }

    // --- steps

    /// Opens the next step, or ends the session when that would pass its step limit.
    fn open_step(
        &mut self,
        kind: StepKind,
        input: Value,
        now: Timestamp,
        out: &mut Step,
    ) -> Option<StepRow> {
        let (idx, limit) = (self.row.steps, self.row.step_limit);
        if limit > 0 && idx >= limit {
            out.events.push(Decision {
                kind: "run.step_limit_reached",
                payload: json!({"run_id": self.row.id, "step_limit": limit}),
            });
            let message = format!("the session reached its limit of {limit} steps");
            self.fail(json!({"code": "step_limit", "message": message}), now, out);
            return None;
        }
        self.row.steps += 1;
        let step = StepRow {
            id: StepId::derive(self.row.id, u64::from(idx)),
            session: self.row.id,
            idx,
            turn: self.turn,
            kind,
            input,
            output: None,
            started_at: now,
            finished_at: None,
            error: None,
        };
        out.events.push(Decision {
            kind: "step.started",
            payload: json!({
                "step_id": step.id, "idx": idx, "type": kind.as_str(), "input": step.input,
            }),
        });
        out.steps.push(step.clone());
        Some(step)
    }

    fn close_step(
        &mut self,
        mut step: StepRow,
        output: Value,
        error: Option<String>,
        now: Timestamp,
        out: &mut Step,
    ) {
        out.events.push(Decision {
            kind: "step.finished",
            payload: json!({"step_id": step.id, "idx": step.idx, "ok": error.is_none()}),
        });
        step.output = Some(output);
        step.error = error;
        step.finished_at = Some(now);
        // A step that opened and closed in one commit is written once.
        out.steps.retain(|other| other.id != step.id);
        out.steps.push(step);
    }

    /// Waits for a human: the question is in the row, time does not run.
    fn ask(
        &mut self,
        question: Question,
        prompt: String,
        step: Option<StepId>,
        now: Timestamp,
        out: &mut Step,
    ) {
        self.stop_clock(now);
        out.events.push(Decision {
            kind: "run.awaiting_input",
            payload: json!({
                "run_id": self.row.id, "step_id": step, "prompt": prompt,
                "reason": question.reason(),
            }),
        });
        let id = InboxId::derive(self.row.id, self.next_question);
        self.next_question += 1;
        self.waiting = Some(Box::new(Waiting {
            id,
            kind: InboxKind::Question,
            title: title(&prompt),
            details: json!({"prompt": prompt, "reason": question.reason(), "step_id": step}),
            group: None,
            asked_at: now,
            expires_at: None,
        }));
        self.row.status = SessionStatus::AwaitingInput;
        self.row.prompt = Some(prompt);
        self.phase = Phase::Asking { question };
    }

    fn stop_clock(&mut self, now: Timestamp) {
        if let Some(since) = self.running_since.take() {
            self.ran += now.since(since);
        }
    }

    fn steps_left(&self) -> Option<u32> {
        (self.row.step_limit > 0).then(|| self.row.step_limit.saturating_sub(self.row.steps))
    }

    fn new_effect(&mut self) -> (u64, EffectId) {
        let n = self.next_effect;
        self.next_effect += 1;
        (n, EffectId::derive(self.row.id, n))
    }
}
