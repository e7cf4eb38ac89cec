//! A Hive: executes effects. It knows no store and decides nothing.
//!
//! It receives [`ToHive`] and sends [`ToCortex`]. Work for an older epoch is dropped. An aborted
//! effect's future is dropped, which kills what it started.

pub(crate) mod life;
mod look;
mod read;
pub(crate) mod rooms;

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use overmind_core::Fut;
use overmind_core::bus::{Assignment, BUS_VERSION, HiveBus, ToCortex, ToHive};
use overmind_core::command::{LifeEnded, LifeWord};
use overmind_core::effect::{Bound, Effect, EffectAction, EffectResult};
use overmind_core::enclosure::{Enclose, EnclosePlan, Lent, Surroundings};
use overmind_core::failpoint;
use overmind_core::gate::Gate;
use overmind_core::ids::{EffectId, SessionId};
use overmind_core::live::{LivePiece, LiveSink};
use overmind_core::model::{ModelDelta, ModelFailure, ModelReply, ModelRequest, Models};
use overmind_core::off_limits::OffLimits;
use overmind_core::process::ProcessKey;
use overmind_core::process::provider::Fact;
use overmind_core::room::RoomMade;
use overmind_core::room::history::RoomMark;
use overmind_core::room::stay::RoomReport;
use overmind_core::sandbox::{Sandbox, SandboxLimits};
use overmind_core::session::STALE_APPROVAL;
use overmind_core::time::{Clock, Timestamp};
use overmind_core::tool::{EffectClass, ToolContext, ToolOutcome, Toolbox};
use overmind_core::trace::SpanId;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::life::{Birth, Lives, Said, Say};
use self::rooms::{Given, Stays, Turn};
use crate::live::{self, Gathered as LiveGathered};
use crate::tasks::Tasks;

/// The interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long streamed pieces are collected before they are sent.
const GATHER: Duration = Duration::from_millis(50);
/// More bytes than this are sent without waiting for the end of a word.
const GATHER_BYTES: usize = 2048;

/// The dependencies of a hive.
#[derive(Debug)]
pub(crate) struct Hive {
    pub(crate) bus: Arc<dyn HiveBus>,
    pub(crate) tools: Arc<dyn Toolbox>,
    pub(crate) models: Arc<dyn Models>,
    pub(crate) gate: Option<Arc<dyn Gate>>,
    /// Runs commands, if this hive can.
    pub(crate) lives: Option<Arc<Lives>>,
    /// Makes environments, if this hive can.
    pub(crate) stays: Option<Arc<Stays>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: Tasks,
    /// Makes sandboxes that show an environment's files, if this hive can.
    pub(crate) enclosures: Option<Arc<dyn Enclose>>,
    pub(crate) off_limits: OffLimits,
    /// The directory for sessions that name no project.
    pub(crate) private: Option<PathBuf>,
}

/// The result of an effect, with the last part of its output.
struct Done {
    result: EffectResult,
    streamed: Vec<ModelDelta>,
    live: Vec<LivePiece>,
}

impl Done {
    /// The result of an effect without output.
    fn of(result: EffectResult) -> Self {
        Self { result, streamed: Vec::new(), live: Vec::new() }
    }
}

/// A tool call.
struct Call {
    name: String,
    args: Value,
    bound: Option<Bound>,
    definition: Option<String>,
}

#[derive(Debug)]
struct Placed {
    assignment: Arc<Assignment>,
    /// The attestation that was already sent to the Cortex.
    attested: Option<String>,
    effects: HashMap<EffectId, CancellationToken>,
}

type Sessions = Arc<Mutex<HashMap<SessionId, Placed>>>;

impl Hive {
    /// Works until the bus closes or `stop` is cancelled; then all actions in progress are dropped.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let sessions = Sessions::default();
        let mut beat = self.clock.now().after(HEARTBEAT);
        loop {
            let message = tokio::select! {
                () = stop.cancelled() => break,
                () = self.clock.sleep_until(beat) => {
                    let at = self.clock.now();
                    beat = at.after(HEARTBEAT);
                    let (placed, effects) = {
                        let sessions = lock(&sessions);
                        (sessions.len(), sessions.values().map(|p| p.effects.len()).sum::<usize>())
                    };
                    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
                    let (sessions, effects) = (count(placed), count(effects));
                    self.say(ToCortex::Heartbeat { at, sessions, effects }).await;
                    continue;
                }
                message = self.bus.receive() => match message {
                    Some(message) => message,
                    None => break,
                },
            };
            if message.version != BUS_VERSION {
                tracing::warn!(version = message.version, "message of an unknown version dropped");
                continue;
            }
            self.take(message.body, &sessions).await;
        }
        for placed in lock(&sessions).values() {
            placed.effects.values().for_each(CancellationToken::cancel);
        }
    }

    async fn take(self: &Arc<Self>, message: ToHive, sessions: &Sessions) {
        match message {
            ToHive::Assign(assignment) => {
                let (session, epoch) = (assignment.session, assignment.epoch);
                let accepted = place(sessions, assignment);
                self.say(ToCortex::Acknowledge { session, epoch, accepted }).await;
            }
            ToHive::Perform { session, epoch, effect, token } => {
                self.perform(session, epoch, effect, token, sessions);
            }
            ToHive::Order { session, epoch, effect, order } => {
                let here = lock(sessions)
                    .get(&session)
                    .is_some_and(|placed| placed.assignment.epoch == epoch);
                if let (true, Some(lives)) = (here, self.lives.clone()) {
                    lives.order(effect, order);
                }
            }
            ToHive::EndUnrecorded { session, how, reason } => {
                if let Some(lives) = self.lives.clone() {
                    lives.end_all(session, how, &reason);
                }
            }
            ToHive::Recorded { session, life } => {
                if let Some(lives) = self.lives.clone() {
                    lives.recorded(ProcessKey { session, epoch: life });
                }
            }
            ToHive::Keep { lives: wanted, rooms } => {
                let living = wanted.iter().map(|(session, _)| *session).collect();
                if let Some(lives) = self.lives.clone() {
                    self.tasks.spawn(|_stop| async move { lives.keep(wanted).await });
                }
                let (lives, stays) = (self.lives.clone(), self.stays.clone());
                self.tasks.spawn(|_stop| async move {
                    // No directory is removed while a process that uses it is being ended.
                    if let Some(lives) = lives {
                        lives.settled().await;
                    }
                    if let Some(stays) = stays {
                        stays.keep(rooms, living).await;
                    }
                });
            }
            ToHive::Abort { session, epoch, effect } => {
                if let Some(placed) = lock(sessions).get_mut(&session)
                    && placed.assignment.epoch == epoch
                    && let Some(stop) = placed.effects.remove(&effect)
                {
                    stop.cancel();
                }
                if let Some(lives) = self.lives.clone()
                    && let Some((key, busy)) = lives.aborted(effect)
                {
                    self.tasks.spawn(|_stop| async move {
                        lives.kill(key, "canceled").await;
                        drop(busy);
                    });
                }
            }
            ToHive::Release { session, epoch, over, resumable } => {
                release(sessions, session, epoch);
                if over {
                    if let Some(base) = &self.private {
                        // Only an empty directory is removed; files of a session stay.
                        let _ = std::fs::remove_dir(base.join(session.to_string()));
                    }
                    self.tools.session_ended(session);
                    if let Some(lives) = &self.lives {
                        lives.end_unclaimed(session);
                    }
                    if let Some(lives) = self.lives.as_ref().filter(|_| !resumable) {
                        lives.session_ended(session);
                    }
                    if let Some(stays) = &self.stays {
                        stays.forget(session);
                        stays.returned(session).await;
                    }
                }
            }
            ToHive::CallTool { call, assignment, name, args } => {
                let hive = Arc::clone(self);
                self.tasks.spawn(|stop| async move {
                    let context = hive.context(&assignment, call, LiveSink::default()).await;
                    let began = Instant::now();
                    let work = async {
                        let attested = hive.tools.attested(&context, &name).await;
                        (hive.tools.call(&context, &name, &args).await, attested)
                    };
                    let (outcome, attested) = tokio::select! {
                        () = stop.cancelled() => return,
                        done = work => done,
                    };
                    let latency_ms = millis(began.elapsed());
                    hive.say(ToCortex::Called { call, outcome, latency_ms, attested }).await;
                });
            }
        }
    }

    async fn say(&self, body: ToCortex) {
        if let Err(err) = self.bus.send(body).await {
            tracing::debug!(error = %err, "the Cortex does not hear");
        }
    }

    fn perform(
        self: &Arc<Self>,
        session: SessionId,
        epoch: u32,
        effect: Effect,
        token: Option<String>,
        sessions: &Sessions,
    ) {
        let stop = self.tasks.stopping().child_token();
        let assignment = {
            let mut sessions = lock(sessions);
            let Some(placed) = sessions.get_mut(&session) else {
                tracing::debug!(session.id = %session, "work for a session that is not here");
                return;
            };
            if placed.assignment.epoch != epoch {
                tracing::debug!(session.id = %session, epoch, "work of another epoch dropped");
                return;
            }
            placed.effects.insert(effect.id, stop.clone());
            Arc::clone(&placed.assignment)
        };
        if let (EffectAction::Live(launch), Some(lives)) = (&effect.action, &self.lives) {
            lives.expect(session, effect.id, launch);
        }
        let about_room = matches!(effect.action, EffectAction::Room(_));
        let stays = self.stays.as_ref().filter(|_| about_room);
        let turn = stays.map(|stays| Arc::new(stays.turn(session)));
        let (hive, sessions, id) = (Arc::clone(self), Arc::clone(sessions), effect.id);
        let work = self.act(assignment, effect, token, turn.clone(), &sessions);
        self.tasks.spawn(|_shutdown| async move {
            // A shutdown cancels it, too.
            let result = stop.run_until_cancelled(work).await;
            // Only now may another action on the environment begin, because the dropped one is
            // over.
            drop(turn);
            if let Some(placed) = lock(&sessions).get_mut(&session)
                && placed.assignment.epoch == epoch
            {
                placed.effects.remove(&id);
            }
            if let Some(Done { result, streamed, live }) = result {
                failpoint::point("hive.before_report");
                let effect = id;
                let report = ToCortex::Report { session, epoch, effect, result, streamed, live };
                hive.say(report).await;
            }
        });
    }

    /// Executes one effect. Each kind has its own future, so that a long-running command does not
    /// reserve memory for a call.
    fn act(
        self: &Arc<Self>,
        assignment: Arc<Assignment>,
        effect: Effect,
        token: Option<String>,
        turn: Option<Arc<Turn>>,
        sessions: &Sessions,
    ) -> Fut<'static, Done> {
        let (hive, Effect { id, step: _, not_before, action }) = (Arc::clone(self), effect);
        match action {
            // A process is prepared before its start time.
            EffectAction::Live(launch) => {
                let birth = Box::new(Birth { launch, token, not_before });
                Box::pin(async move { hive.live(&assignment, id, birth).await })
            }
            EffectAction::Tool { name, args, class, bound, definition, step, restore } => {
                let sessions = Arc::clone(sessions);
                Box::pin(async move {
                    hive.due(not_before).await;
                    let call = Call { name, args, bound, definition };
                    if class == EffectClass::Pure {
                        return hive.call(&assignment, id, call, &sessions).await;
                    }
                    if restore && let Err(err) = hive.take_back(&assignment, id, step).await {
                        return err;
                    }
                    // Services and people may have changed files since the last step.
                    hive.save_files(&assignment, id, RoomMark::Before(step)).await;
                    let done = hive.call(&assignment, id, call, &sessions).await;
                    hive.save_files(&assignment, id, RoomMark::Before(step + 1)).await;
                    done
                })
            }
            EffectAction::Model(mut request) => Box::pin(async move {
                hive.due(not_before).await;
                let began = Instant::now();
                request.traceparent = assignment.trail.map(|trail| trail.at(SpanId::of_effect(id)));
                let (reply, streamed) = hive.ask(&assignment, id, &request).await;
                let result = EffectResult::Model { reply, latency_ms: millis(began.elapsed()) };
                Done { result, streamed, live: Vec::new() }
            }),
            EffectAction::Room(act) => {
                let sessions = Arc::clone(sessions);
                Box::pin(async move {
                    hive.due(not_before).await;
                    let report = hive.room(&assignment, id, act, turn.as_deref()).await;
                    if let RoomReport::Prepared(Ok(made)) = &report {
                        moves_in(&sessions, &assignment, made);
                    }
                    Done::of(EffectResult::Room(report))
                })
            }
            EffectAction::Bind { name, args, files, policy } => Box::pin(async move {
                hive.due(not_before).await;
                let context = hive.context(&assignment, id, LiveSink::default()).await;
                let hash = hive.tools.bind(&context, &name, &args, &files, &policy).await;
                Done::of(EffectResult::Bound { hash })
            }),
        }
    }

    /// The context of a tool call from its session.
    async fn context(
        &self,
        assignment: &Assignment,
        effect: EffectId,
        live: LiveSink,
    ) -> ToolContext {
        self.make_private(assignment.session, &assignment.workspace);
        let variables = match &self.stays {
            Some(stays) if assignment.room.is_some() => {
                stays.environment(assignment.session).await.unwrap_or_else(|err| {
                    let session = assignment.session;
                    tracing::warn!(session.id = %session, %err, "a room's variables are missing");
                    Vec::new()
                })
            }
            Some(_) | None => Vec::new(),
        };
        let Given { variables: named, lent } = match &self.stays {
            Some(stays) => stays.given(assignment).await.unwrap_or_else(|err| {
                let session = assignment.session;
                tracing::warn!(session.id = %session, %err, "a run's files are missing");
                Given::default()
            }),
            None => Given::default(),
        };
        // Variables of the environment take precedence over those of a context.
        let own = |name: &String| variables.iter().any(|(known, _)| known == name);
        let given: Vec<_> =
            assignment.given.iter().filter(|(name, _)| !own(name)).cloned().collect();
        let variables: Vec<_> = variables.into_iter().chain(given).chain(named).collect();
        ToolContext {
            variables: variables.into(),
            colony: assignment.colony,
            session: assignment.session,
            agent: assignment.agent,
            effect,
            allowed: Arc::clone(&assignment.tools_allowed),
            workspace: assignment.workspace.clone(),
            off_limits: self.off_limits.clone(),
            sandbox: assignment.sandbox,
            driver: self.driver(assignment, lent),
            limits: SandboxLimits::default(),
            claims: Arc::clone(&assignment.claims),
            live,
            traceparent: assignment.trail.map(|trail| trail.at(SpanId::of_effect(effect))),
        }
    }

    /// The driver for commands of a session with its own worktree, if they may see all of it, and
    /// of a session with context files or memory claims.
    fn driver(&self, assignment: &Assignment, lent: Vec<Lent>) -> Option<Arc<dyn Sandbox>> {
        let Assignment { session, sandbox, .. } = *assignment;
        let room = match &assignment.room {
            Some(room) => Surroundings::clone(room),
            None if !lent.is_empty() => {
                Surroundings { workspace: assignment.workspace.clone(), ..Surroundings::default() }
            }
            None => return None,
        };
        let plan = EnclosePlan { lent, ..room.plan(session, sandbox) };
        Arc::clone(self.enclosures.as_ref()?).sandbox(plan)
    }

    /// Makes the directory of a session that names no project, when it is first needed. In a shared
    /// workspace, sessions of other colonies than `default` have one, too.
    fn make_private(&self, session: SessionId, workspace: &Path) {
        let is_private = self.private.as_ref().is_some_and(|base| workspace.starts_with(base));
        if !is_private && !workspace.ends_with(session.to_string()) {
            return;
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(workspace);
        if let Err(err) = made {
            tracing::warn!(path = %workspace.display(), %err, "making a directory for a run");
        }
    }

    /// Waits until an effect may begin.
    async fn due(&self, not_before: Option<Timestamp>) {
        if let Some(at) = not_before {
            self.clock.sleep_until(at).await;
        }
        failpoint::point("hive.before_effect");
    }

    /// Calls a tool, unless the call differs from what a human approved.
    async fn call(
        &self,
        assignment: &Assignment,
        effect: EffectId,
        call: Call,
        sessions: &Sessions,
    ) -> Done {
        let Call { name, args, bound, definition } = call;
        let began = Instant::now();
        let gathered = Arc::new(LiveGathered::default());
        let context = self.context(assignment, effect, gathered.sink()).await;
        let outcome = match self.still_agreed(&context, &name, &args, bound).await {
            Ok(()) => {
                self.attest(assignment, &context, &name, sessions).await;
                let call = match &definition {
                    Some(known) => self.tools.call_defined(&context, &name, &args, known),
                    None => self.tools.call(&context, &name, &args),
                };
                self.listening(assignment, effect, &gathered, call).await
            }
            Err(stale) => stale,
        };
        let result = EffectResult::Tool { outcome, latency_ms: millis(began.elapsed()) };
        Done { result, streamed: Vec::new(), live: gathered.rest() }
    }

    /// Runs a command, and forwards reports about it.
    async fn live(&self, assignment: &Assignment, effect: EffectId, birth: Box<Birth>) -> Done {
        failpoint::point("hive.before_effect");
        self.make_private(assignment.session, &assignment.workspace);
        let Some(lives) = &self.lives else {
            let reason = "this hive runs no commands".to_owned();
            let end = LifeEnded::lost(reason, self.clock.now());
            return Done::of(EffectResult::Lived(end));
        };
        Box::pin(self.save_files(assignment, effect, RoomMark::Again)).await;
        // Reports are sent in order, and all of them before the report of the exit.
        let (words, mut said) = mpsc::unbounded_channel();
        // It receives until the process has ended.
        let say: Say = Arc::new(move |word| drop(words.send(word)));
        let life = lives.live(assignment, effect, birth, &say);
        tokio::pin!(life);
        loop {
            tokio::select! {
                biased;
                Some(word) = said.recv() => Box::pin(self.pass_on(assignment, effect, word)).await,
                end = &mut life => {
                    while let Ok(word) = said.try_recv() {
                        Box::pin(self.pass_on(assignment, effect, word)).await;
                    }
                    Box::pin(self.save_files(assignment, effect, RoomMark::Turn)).await;
                    return Done::of(EffectResult::Lived(end));
                }
            }
        }
    }

    async fn pass_on(&self, assignment: &Assignment, effect: EffectId, said: Said) {
        let (session, epoch) = (assignment.session, assignment.epoch);
        match said {
            Said::Word(word) => {
                let mark = match &word {
                    LifeWord::Read { facts, .. } => turn_in(facts),
                    LifeWord::Started { .. } | LifeWord::Noticed(_) => None,
                };
                self.say(ToCortex::Life { session, epoch, effect, word }).await;
                if let Some(mark) = mark {
                    self.save_files(assignment, effect, mark).await;
                }
            }
            Said::Attested(attested) => {
                self.say(ToCortex::Attested { session, epoch, attested }).await;
            }
        }
    }

    /// Waits for a call, and forwards its live output.
    async fn listening(
        &self,
        assignment: &Assignment,
        effect: EffectId,
        gathered: &LiveGathered,
        mut call: Fut<'_, ToolOutcome>,
    ) -> ToolOutcome {
        let mut tick =
            tokio::time::interval_at(tokio::time::Instant::now() + live::TICK, live::TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (session, epoch) = (assignment.session, assignment.epoch);
        loop {
            tokio::select! {
                biased;
                outcome = &mut call => return outcome,
                _ = tick.tick() => {
                    let pieces = gathered.due();
                    if !pieces.is_empty() {
                        self.say(ToCortex::Live { session, epoch, effect, pieces }).await;
                    }
                }
            }
        }
    }

    /// Sends the attestation of this call's sandbox to the Cortex before anything runs in it,
    /// unless that was sent already. If the measurement fails, the call itself returns the error.
    async fn attest(
        &self,
        assignment: &Assignment,
        context: &ToolContext,
        name: &str,
        sessions: &Sessions,
    ) {
        let Some(attested) = self.tools.attested(context, name).await else { return };
        let Assignment { session, epoch, .. } = *assignment;
        {
            let mut sessions = lock(sessions);
            let Some(placed) = sessions.get_mut(&session) else { return };
            if placed.assignment.epoch != epoch
                || placed.attested.as_deref() == Some(attested.digest.as_str())
            {
                return;
            }
            placed.attested = Some(attested.digest.clone());
        }
        self.say(ToCortex::Attested { session, epoch, attested }).await;
    }

    /// Whether a call is still what a human approved, checked directly before it begins.
    async fn still_agreed(
        &self,
        context: &ToolContext,
        name: &str,
        args: &Value,
        bound: Option<Bound>,
    ) -> Result<(), ToolOutcome> {
        let Some(Bound { hash, files, policy }) = bound else { return Ok(()) };
        let now = self.gate.as_ref().map_or(policy, |gate| gate.version());
        if self.tools.bind(context, name, args, &files, &now).await == hash {
            return Ok(());
        }
        let message = "what was approved is not what would run now: the command's files, its \
                       environment or the policy have changed; nothing was done";
        Err(ToolOutcome::failure(STALE_APPROVAL, message))
    }

    /// Calls the model, and forwards its stream in collected pieces. The last piece comes with the
    /// reply.
    async fn ask(
        &self,
        assignment: &Assignment,
        effect: EffectId,
        request: &ModelRequest,
    ) -> (Result<Box<ModelReply>, ModelFailure>, Vec<ModelDelta>) {
        let gathered = Mutex::new(Gathered::default());
        let sink = |delta| gathered.lock().unwrap_or_else(PoisonError::into_inner).push(delta);
        let mut reply = self.models.complete(request, &sink);
        let mut tick = tokio::time::interval(GATHER);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (session, epoch) = (assignment.session, assignment.epoch);
        let reply = loop {
            tokio::select! {
                biased;
                reply = &mut reply => break reply,
                _ = tick.tick() => {
                    let ready = gathered.lock().unwrap_or_else(PoisonError::into_inner).ready();
                    for delta in ready {
                        self.say(ToCortex::Progress { session, epoch, effect, delta }).await;
                    }
                }
            }
        };
        let rest = gathered.lock().unwrap_or_else(PoisonError::into_inner).rest();
        (reply.map(Box::new), rest)
    }
}

/// Streamed pieces that wait to be sent. A piece ends at white space: otherwise a secret that a
/// model repeats would be cut in two, and neither half would be redacted.
#[derive(Debug, Default)]
struct Gathered {
    waiting: Vec<ModelDelta>,
}

impl Gathered {
    fn push(&mut self, delta: ModelDelta) {
        match (self.waiting.last_mut(), delta) {
            (Some(ModelDelta::Text(have)), ModelDelta::Text(more))
            | (Some(ModelDelta::Reasoning(have)), ModelDelta::Reasoning(more)) => {
                have.push_str(&more);
            }
            (
                Some(ModelDelta::ToolArgs { name: have_name, text: have }),
                ModelDelta::ToolArgs { name, text },
            ) if *have_name == name => have.push_str(&text),
            (_, delta) => self.waiting.push(delta),
        }
    }

    /// All text but the unfinished last word.
    fn ready(&mut self) -> Vec<ModelDelta> {
        let mut ready = std::mem::take(&mut self.waiting);
        if let Some(last) = ready.pop() {
            let (now, later) = match last {
                ModelDelta::Text(text) => {
                    let (now, later) = at_white_space(text);
                    (now.map(ModelDelta::Text), later.map(ModelDelta::Text))
                }
                ModelDelta::Reasoning(text) => {
                    let (now, later) = at_white_space(text);
                    (now.map(ModelDelta::Reasoning), later.map(ModelDelta::Reasoning))
                }
                ModelDelta::ToolArgs { name, text } => {
                    let (now, later) = at_white_space(text);
                    (
                        now.map(|text| ModelDelta::ToolArgs { name: name.clone(), text }),
                        later.map(|text| ModelDelta::ToolArgs { name, text }),
                    )
                }
                restarted @ ModelDelta::Restarted { .. } => (Some(restarted), None),
            };
            ready.extend(now);
            self.waiting.extend(later);
        }
        ready
    }

    fn rest(&mut self) -> Vec<ModelDelta> {
        std::mem::take(&mut self.waiting)
    }
}

fn at_white_space(mut text: String) -> (Option<String>, Option<String>) {
    if text.len() > GATHER_BYTES {
        return (Some(text), None);
    }
    match text.char_indices().rev().find(|(_, c)| c.is_whitespace()) {
        Some((at, c)) => {
            let later = text.split_off(at + c.len_utf8());
            (Some(text), (!later.is_empty()).then_some(later))
        }
        None => (None, (!text.is_empty()).then_some(text)),
    }
}

fn place(sessions: &Sessions, assignment: Assignment) -> bool {
    let mut sessions = lock(sessions);
    if let Some(known) = sessions.get(&assignment.session)
        && known.assignment.epoch > assignment.epoch
    {
        return false;
    }
    let session = assignment.session;
    let placed =
        Placed { assignment: Arc::new(assignment), attested: None, effects: HashMap::new() };
    if let Some(old) = sessions.insert(session, placed) {
        old.effects.values().for_each(CancellationToken::cancel);
    }
    true
}

/// Makes the session's later work use its environment.
fn moves_in(sessions: &Sessions, assignment: &Assignment, made: &RoomMade) {
    if let Some(placed) = lock(sessions).get_mut(&assignment.session)
        && placed.assignment.epoch == assignment.epoch
    {
        let placed = Arc::make_mut(&mut placed.assignment);
        placed.workspace.clone_from(&made.directory);
        placed.room = Surroundings::of(made).map(Arc::new);
    }
}

/// The file state to save after a command's protocol message: a turn has ended, or the command is
/// about to do something that a person is asked about.
fn turn_in(facts: &[Fact]) -> Option<RoomMark> {
    let ended = facts.iter().any(|fact| matches!(fact, Fact::Result { .. }));
    let asks = facts.iter().any(|fact| matches!(fact, Fact::Asks(_)));
    ended.then_some(RoomMark::Turn).or_else(|| asks.then_some(RoomMark::Again))
}

fn release(sessions: &Sessions, session: SessionId, epoch: u32) {
    let mut sessions = lock(sessions);
    if sessions.get(&session).is_some_and(|placed| placed.assignment.epoch <= epoch)
        && let Some(placed) = sessions.remove(&session)
    {
        placed.effects.values().for_each(CancellationToken::cancel);
    }
}

fn lock(sessions: &Sessions) -> std::sync::MutexGuard<'_, HashMap<SessionId, Placed>> {
    sessions.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<A, B, C, D, F>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn supervising_an_attempt_for_days_takes_little_memory() {
        // There are thousands of them; what is awaited once or seldom is boxed.
        let living = size(
            |hive: Arc<Hive>, of: Arc<Assignment>, id: EffectId, birth: Box<Birth>| async move {
                hive.live(&of, id, birth).await
            },
        );
        assert!(living <= 1200, "{living} bytes");
    }

    #[test]
    fn chunks_are_joined_and_cut_at_whitespace() {
        let mut gathered = Gathered::default();
        for piece in ["the key is sk-ant-", "api03", "-xyz and", " so"] {
            gathered.push(ModelDelta::Text(piece.into()));
        }
        assert_eq!(gathered.ready(), [ModelDelta::Text("the key is sk-ant-api03-xyz and ".into())]);
        assert_eq!(gathered.ready(), []);
        assert_eq!(gathered.rest(), [ModelDelta::Text("so".into())]);
    }

    #[test]
    fn chunks_of_different_kinds_keep_their_order() {
        let mut gathered = Gathered::default();
        gathered.push(ModelDelta::Reasoning("hm".into()));
        gathered.push(ModelDelta::Text("a b".into()));
        assert_eq!(
            gathered.ready(),
            [ModelDelta::Reasoning("hm".into()), ModelDelta::Text("a ".into())]
        );
        assert_eq!(gathered.rest(), [ModelDelta::Text("b".into())]);
    }
}
