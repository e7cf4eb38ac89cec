//! The session (a run in the CLI): one execution of an agent, as a pure state machine.
//!
//! [`Session::begin`] creates one from its [`Spec`], and [`Session::step`] applies one input. All
//! decisions follow from these alone: no clock is read and no id is drawn, so the recorded inputs
//! of a session lead to the same decisions again ([`crate::replay`]).
//!
//! The caller must commit a [`Step`] in this order: first the events and rows, durably, and only
//! then the effects. A session never blocks; it reports what it waits for.

mod act;
pub mod claims;
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

/// An event that a session decided on. The commit adds its stream and time.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub kind: &'static str,
    pub payload: Value,
}

/// The results of one input.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub events: Vec<Decision>,
    /// Steps that are new or changed.
    pub steps: Vec<StepRow>,
    /// Effects to start after the rest is durable.
    pub effects: Vec<Effect>,
    /// Effects to stop. Their results are ignored.
    pub aborted: Vec<EffectId>,
    /// Orders to running effects, sent after the effects above have started.
    pub orders: Vec<(EffectId, LifeOrder)>,
}

/// Why a session does not accept an input in its present state.
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
    /// The session does not wait for this result: it belongs to an older epoch, or was already
    /// given.
    #[error("the session does not wait for this result")]
    Stale,
    /// Its result is decided, and only its environment is still being removed.
    #[error("Run is ending already: its environment is being released")]
    Ending,
    #[error("the session does not wait for a verdict")]
    NotJudging,
    #[error("Run has no command to stop")]
    NoCommand,
    #[error("Run is working and accepts no message now: wait until it is idle, or stop it")]
    NotResting,
    /// The run has no conversation to continue: it is a script, or a program whose conversations
    /// the server cannot continue.
    #[error("Run has ended, and its program has no conversation to continue: start a new run")]
    NoConversation,
    /// The answer would be written to the log.
    #[error("Run asks for a secret, and an answer would be logged: send it as a secret")]
    SecretAsked,
}

/// One session in memory.
#[derive(Clone, Debug)]
pub struct Session {
    spec: Arc<Spec>,
    toolset: Arc<Toolset>,
    /// The tools that its model sees, computed at the first request.
    offer: Option<Arc<Offer>>,
    /// The agent. It differs from the spec's agent once a fork has reached its own part.
    agent: Arc<AgentSpec>,
    system: Arc<str>,
    row: SessionRow,
    phase: Phase,
    convo: Conversation,
    history: History,
    next_effect: u64,
    next_approval: u64,
    next_question: u64,
    /// The question to a human, while it waits for one.
    waiting: Option<Box<Waiting>>,
    turn: u32,
    failures: u32,
    /// Whether a call of the model's present decision failed.
    turn_failed: bool,
    last_error: String,
    /// Notes for the model before its next turn, sent after all results are in.
    notes: Vec<String>,
    /// Messages for a program that cannot receive any while it works.
    later: Vec<String>,
    nudged: bool,
    /// Whether the repeated part of a fork is over.
    forked: bool,
    /// Whether a policy judges each call before it starts.
    gated: bool,
    /// Labels of the data that it has read so far.
    labels: Labels,
    lives: Lives,
    /// When it started to run, and how long it ran before.
    running_since: Option<Timestamp>,
    ran: Duration,
}

impl Session {
    /// Creates the session that `spec` describes. Its event is `run.queued` with the spec.
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
            // A session that runs a command asks no model.
            system: match agent.command {
                Some(_) => Arc::default(),
                None => given::system(&agent, &spec),
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

    /// Records the measured isolation of its sandbox, to show it in the row.
    pub fn note_attestation(&mut self, attestation: AttestationRef) {
        self.row.attestation = Some(attestation);
    }

    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the agent that applies now.
    pub fn agent(&self) -> &Arc<AgentSpec> {
        &self.agent
    }

    pub fn status(&self) -> SessionStatus {
        self.row.status
    }

    /// Returns the question to a human, while it waits for one.
    pub fn waiting(&self) -> Option<&Waiting> {
        self.waiting.as_deref()
    }

    /// Returns the open item of the inbox while it waits.
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

    /// Returns when [`Input::TimeLimit`] is due, if it is running and has a limit.
    pub fn deadline(&self) -> Option<Timestamp> {
        let limit = self.agent.limits.wall_time()?;
        Some(self.running_since?.after(limit.saturating_sub(self.ran)))
    }

    /// Returns the next input that time alone causes, and when: its time limit while it runs and
    /// has one, or the next attempt of its command.
    pub fn due(&self) -> Option<(Timestamp, Input)> {
        match (self.next_life(), self.deadline()) {
            (Some(due), limit) if limit.is_none_or(|limit| due <= limit) => {
                Some((due, Input::Life(LifeInput::Due)))
            }
            (_, limit) => Some((limit?, Input::TimeLimit)),
        }
    }

    /// Returns whether its command runs or will run again. Such a session stays placed on its hive,
    /// whatever it waits for.
    pub fn is_alive(&self) -> bool {
        self.phase.living().is_some()
    }

    /// Returns whether a tool is running. Unlike a model call, it must not be cut off freely.
    pub fn is_acting(&self) -> bool {
        matches!(self.phase, Phase::Acting { .. }) && self.phase.running().next().is_some()
    }

    /// Returns the ids of the running effects.
    pub fn effects_under_way(&self) -> Vec<EffectId> {
        self.phase.running().map(|n| EffectId::derive(self.row.id, n)).collect()
    }

    /// Returns the number of the running effect with this id.
    pub fn effect_number(&self, id: EffectId) -> Option<u64> {
        self.phase.running().find(|n| EffectId::derive(self.row.id, *n) == id)
    }

    /// Returns the step of the running tool call with this effect id.
    pub fn step_of(&self, id: EffectId) -> Option<StepId> {
        let call = self.phase.call(self.effect_number(id)?)?;
        call.step.as_ref().map(|step| step.id)
    }

    /// Checks that `input` is valid in the present state.
    ///
    /// # Errors
    ///
    /// [`Refusal`], with the text for the user.
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

    /// Translates an input of the original session for this fork: ids that a session derives from
    /// its own name differ between the two. Call it before [`Self::accepts`] while a fork is made.
    /// Other inputs are returned unchanged.
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

    /// Returns the event that records `input`. Write it before the decisions of [`Self::step`].
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

    /// Applies an input and returns the next state with its results. An input that
    /// [`Self::accepts`] refuses changes nothing.
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
            // An idle session has nothing to stop except its idle state.
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

    /// Places the session on a hive: a new epoch starts, and its running time counts.
    fn place(&mut self, epoch: u32, hive: crate::ids::HiveId, now: Timestamp) {
        self.row.epoch = epoch;
        self.row.hive = Some(hive);
        self.row.status = SessionStatus::Running;
        self.row.prompt = None;
        self.row.approval = None;
        self.waiting = None;
        self.row.started_at.get_or_insert(now);
        // After a crash, the time since the last commit is unknown, and counts as not running.
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

    /// Ends the repeated part of a fork: from here on its own settings apply.
    fn forked(&mut self) {
        self.forked = true;
        self.phase.forget_grants();
        match &self.phase {
            // A fork at a question waits for its own answer, and an idle fork for its own next message.
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
        // The original session paid for the repeated part.
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
            self.system = given::system(agent, &self.spec);
        }
    }

    // --- steps

    /// Opens the next step, or ends the session if that would exceed its step limit.
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

    /// Waits for a human: the row contains the question, and the running time does not count.
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
