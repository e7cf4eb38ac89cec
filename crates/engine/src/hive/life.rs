//! Runs long-running commands: starts them, watches them, ends them, and finds them again after a
//! restart.
//!
//! A command's process is one long effect. Dropping its future does not end the process: a process
//! that outlives the daemon must outlive a drain too. Only an abort, an order, or a
//! [`ToHive::Keep`] that does not name it ends one.
//!
//! [`ToHive::Keep`]: overmind_core::bus::ToHive::Keep

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overmind_core::attest::Attested;
use overmind_core::bus::Assignment;
use overmind_core::command::{Launch, LifeEnded, LifeOrder, LifeWord, Notice, StopHow};
use overmind_core::enclosure::{
    DOOR_URL, Enclose, EnclosePlan, Enclosed, Lent, Network, Surroundings,
};
use overmind_core::ids::{ColonyId, EffectId, SessionId};
use overmind_core::process::prompt::{self, Judged, Provider};
use overmind_core::process::provider::launch;
use overmind_core::process::{
    Adopted, End, Ended, NoteKind, ProcessError, ProcessIo, ProcessKey, ProcessSpec, Processes,
    Started, StderrKind, StdinKind, TerminalSize,
};
use overmind_core::sandbox::{SandboxError, SandboxLevel};
use overmind_core::time::{Clock, Timestamp};
use overmind_core::trace::TRACEPARENT_VARIABLE;
use overmind_core::vault::placeholder::{SERVICE, base_url_variable};
use tokio::sync::{mpsc, oneshot, watch};

mod around;
mod found;
mod unrecorded;

use super::look::{JUDGED_AFTER, LOOK, Look, ticks};
use super::read::{self, Reading};
use super::rooms::Stays;
use crate::credentials::Credentials;
use crate::relay::{self, Door, GATEWAY, SERVER};
use crate::tasks::Tasks;

/// Rows of a screen that are examined.
const ROWS: u16 = 40;
/// How long a program may take to read typed text.
const TYPING: Duration = Duration::from_secs(10);
/// The same for its first text, while it is still starting.
const FIRST: Duration = Duration::from_secs(60);
/// How long to wait for processes that are being ended, before environments are handled.
const SETTLING: Duration = Duration::from_secs(30);
/// The share of processor time during a silence that shows activity, as a divisor.
const BUSY_SHARE: u32 = 20;

/// Sends reports about a process to the Cortex, in order.
pub(crate) type Say = Arc<dyn Fn(Said) + Send + Sync>;

/// A report about a running process.
#[derive(Debug)]
pub(crate) enum Said {
    /// The attestation of the sandbox in which it is about to start.
    Attested(Arc<Attested>),
    Word(LifeWord),
}

/// Processes that an earlier server left, and that no session has claimed.
type Found = Option<HashMap<ProcessKey, Adopted>>;

/// The ports that a hive needs to run commands.
#[derive(Debug)]
pub(crate) struct Lives {
    processes: Arc<dyn Processes>,
    /// Sandboxes for commands, if this hive has any.
    enclosures: Option<Arc<dyn Enclose>>,
    clock: Arc<dyn Clock>,
    /// The variables of every command's environment.
    environment: Vec<(String, String)>,
    /// The credentials that agents may name for their environments.
    credentials: Credentials,
    /// Provides further variables for commands of a session with an environment.
    stays: Option<Arc<Stays>>,
    tasks: Tasks,
    under_way: Mutex<HashMap<EffectId, UnderWay>>,
    /// The processes found at the start; `None` until the search has ended.
    found: watch::Sender<Found>,
    /// Starts and kills in progress, by session.
    busy: watch::Sender<HashMap<SessionId, usize>>,
    door: Door,
}

/// The data for starting a process.
#[derive(Debug)]
pub(crate) struct Birth {
    pub(crate) launch: Box<Launch>,
    /// The token of its session.
    pub(crate) token: Option<String>,
    /// The earliest start of its program.
    pub(crate) not_before: Option<Timestamp>,
}

/// The parts of a launch that are needed after the start; the rest is dropped.
#[derive(Clone, Copy, Debug)]
struct Kept {
    provider: Provider,
    read_from: Option<u64>,
    silence: Option<Duration>,
    input: launch::Input,
}

impl Kept {
    fn of(launch: &Launch) -> Self {
        let Launch { provider, read_from, silence, input, .. } = *launch;
        Self { provider, read_from, silence, input }
    }
}

/// While this exists, a process of the session is being started or killed.
pub(crate) struct Busy {
    lives: Arc<Lives>,
    session: SessionId,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.lives.busy.send_modify(|busy| {
            if let Some(count) = busy.get_mut(&self.session) {
                *count -= 1;
                if *count == 0 {
                    busy.remove(&self.session);
                }
            }
        });
    }
}

/// An effect that keeps a process, from the request on.
#[derive(Debug)]
struct UnderWay {
    key: ProcessKey,
    /// Orders for it, in sequence. They wait until the process has started or was found.
    orders: mpsc::UnboundedSender<LifeOrder>,
    /// For the task that watches the process; `None` once a task does.
    inbox: Option<mpsc::UnboundedReceiver<LifeOrder>>,
}

/// The level of a process: the stronger of its agent's and its project's.
fn level_of(assignment: &Assignment, launch: &Launch) -> SandboxLevel {
    assignment.sandbox.max(launch.sandbox.unwrap_or(SandboxLevel::None))
}

/// The network of a process. Outside of sandboxes that is the host's.
fn network_of(assignment: &Assignment, launch: &Launch) -> Network {
    match level_of(assignment, launch) {
        SandboxLevel::None => Network::Host,
        SandboxLevel::Namespace | SandboxLevel::Docker | SandboxLevel::Microvm => launch.network,
    }
}

impl Lives {
    pub(crate) fn new(
        processes: Arc<dyn Processes>,
        enclosures: Option<Arc<dyn Enclose>>,
        clock: Arc<dyn Clock>,
        environment: Vec<(String, String)>,
        credentials: Credentials,
        stays: Option<Arc<Stays>>,
        tasks: Tasks,
    ) -> Self {
        let (under_way, busy) = (Mutex::default(), watch::Sender::default());
        let found = watch::Sender::new(None);
        Self {
            processes,
            enclosures,
            clock,
            environment,
            credentials,
            stays,
            tasks,
            under_way,
            found,
            busy,
            door: Door::default(),
        }
    }

    /// Sets the proxy through which programs call this server for models.
    pub(crate) fn with_door(self, door: Door) -> Self {
        Self { door, ..self }
    }

    fn busy(self: &Arc<Self>, session: SessionId) -> Busy {
        self.busy.send_modify(|busy| *busy.entry(session).or_default() += 1);
        Busy { lives: Arc::clone(self), session }
    }

    /// Waits until earlier processes were searched and nothing of the session is being started or
    /// killed.
    pub(crate) async fn gone(&self, session: SessionId) {
        self.looked().await;
        let _ = self.busy.subscribe().wait_for(|busy| !busy.contains_key(&session)).await;
    }

    /// Waits, for a limited time, until earlier processes without a session have ended.
    pub(crate) async fn settled(&self) {
        let settled = async {
            self.looked().await;
            let _ = self.busy.subscribe().wait_for(HashMap::is_empty).await;
        };
        if tokio::time::timeout(SETTLING, settled).await.is_err() {
            tracing::warn!("processes of an earlier start are still being ended");
        }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<EffectId, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the start of an attempt: from now on it accepts orders, and an abort ends it. To be
    /// called before [`Self::live`], and before the next message is processed.
    pub(crate) fn expect(&self, session: SessionId, effect: EffectId, launch: &Launch) {
        let key = ProcessKey { session, epoch: launch.life };
        let (orders, inbox) = mpsc::unbounded_channel();
        let one = UnderWay { key, orders, inbox: Some(inbox) };
        self.under_way().insert(effect, one);
    }

    /// Runs a process: starts it unless it exists, watches it, and reports its exit.
    ///
    /// # Cancel safety
    ///
    /// If dropped, a process that has started continues.
    pub(crate) async fn live(
        self: &Arc<Self>,
        assignment: &Assignment,
        effect: EffectId,
        birth: Box<Birth>,
        say: &Say,
    ) -> LifeEnded {
        let inbox = self.under_way().get_mut(&effect).and_then(|one| one.inbox.take());
        // It was aborted before it began.
        let Some(mut orders) = inbox else {
            return self.told(Ended::Lost { reason: "it was canceled".to_owned(), killed: 0 });
        };
        let key = ProcessKey { session: assignment.session, epoch: birth.launch.life };
        let kept = Kept::of(&birth.launch);
        let reading = Reading::of(&birth.launch);
        // It is boxed, so that the memory for starting is freed afterwards.
        let begun = Box::pin(self.begin(assignment, effect, key, birth, say)).await;
        let ended = match begun {
            Ok(()) => self.watch(key, kept, reading, &mut orders, say).await,
            Err(ended) => ended,
        };
        self.under_way().remove(&effect);
        ended
    }

    /// Finds or starts a process. `Err` contains an exit from before it was watched.
    async fn begin(
        self: &Arc<Self>,
        assignment: &Assignment,
        effect: EffectId,
        key: ProcessKey,
        birth: Box<Birth>,
        say: &Say,
    ) -> Result<(), LifeEnded> {
        let Birth { launch, token, not_before } = *birth;
        let lost = |reason| Err(self.told(Ended::Lost { reason, killed: 0 }));
        let started = match self.found(key).await {
            Some(Adopted::Live(started)) => Ok(started),
            Some(Adopted::Ended(_, ended)) => {
                let mut reading = Reading::of(&launch);
                read::to_the_end(&*self.processes, key, &mut reading, say).await;
                return Err(self.told(ended));
            }
            Some(Adopted::Unreachable { reason, .. }) => return lost(reason),
            None => match self.processes.activity(key) {
                // It was assigned again while running: the same process is watched.
                Some(_) => return Ok(()),
                None => {
                    let (room, lent) = match self.around(assignment, &launch).await {
                        Ok(around) => around,
                        Err(reason) => return lost(reason),
                    };
                    let spec = match self.spec(assignment, key, &launch, room, token) {
                        Ok(spec) => ProcessSpec { not_before, ..spec },
                        Err(reason) => return lost(reason),
                    };
                    match self.enclosed(assignment, &launch, spec, lent, say).await {
                        Ok(spec) => self.start(effect, spec).await,
                        Err(refused) => return lost(refused.with_remedy()),
                    }
                }
            },
        };
        match started {
            Ok(started) => {
                if launch.answered {
                    // It was answered, but the task that had to close its input has ended.
                    read::answered(&*self.processes, key, launch.input).await;
                }
                if let Some(first) = &launch.first {
                    // This comes before the start is reported: until then a crash causes it to be
                    // typed again.
                    let bytes = first.as_bytes().to_vec();
                    if let Err(err) = self.processes.write(key, bytes, FIRST).await {
                        tracing::warn!(life = %key, error = %err, "its task could not be typed");
                    }
                }
                say(Said::Word(LifeWord::Started { pid: started.pid }));
                Ok(())
            }
            Err(err) => lost(err.to_string()),
        }
    }

    /// Starts a process in a separate task: if a shutdown drops the effect's future, the start
    /// continues; if the effect was aborted, the process is ended as soon as it has started.
    async fn start(
        self: &Arc<Self>,
        effect: EffectId,
        spec: ProcessSpec,
    ) -> Result<Started, ProcessError> {
        let (tell, told) = oneshot::channel();
        let (lives, key) = (Arc::clone(self), spec.key);
        let busy = self.busy(key.session);
        // The aborting task may have seen that nothing is being started.
        if !self.under_way().contains_key(&effect) {
            return Err(ProcessError::NotAlive(key));
        }
        self.tasks.spawn(move |_stop| async move {
            let started = lives.processes.start(spec).await;
            let wanted = lives.under_way().contains_key(&effect);
            if started.is_ok() && !wanted {
                lives.kill(key, "canceled").await;
            }
            drop(busy);
            let _ = tell.send(started);
        });
        told.await.unwrap_or(Err(ProcessError::NotAlive(key)))
    }

    fn spec(
        &self,
        assignment: &Assignment,
        key: ProcessKey,
        launch: &Launch,
        room: Vec<(String, String)>,
        token: Option<String>,
    ) -> Result<ProcessSpec, String> {
        let network = network_of(assignment, launch);
        let mut env = self.environment.clone();
        if network == Network::Mesh {
            // The addresses of the server are different inside of the sandbox.
            let known = |name: &str| [SERVER, GATEWAY].contains(&name);
            env.retain(|(name, _)| !known(name));
            env.extend([SERVER, GATEWAY].map(|name| (name.to_owned(), DOOR_URL.to_owned())));
        }
        let inside = (network == Network::Mesh).then_some(DOOR_URL);
        let mut set = |name: &str, value: String| {
            env.retain(|(known, _)| known != name);
            env.push((name.to_owned(), value));
        };
        // These must never be in its log.
        let mut secrets: Vec<String> = token.iter().cloned().collect();
        for (name, value) in assignment.given.iter() {
            set(name, value.clone());
        }
        for (name, value) in room {
            set(&name, value);
        }
        for (name, value) in &launch.env {
            set(name, value.clone());
        }
        if assignment.colony != ColonyId::DEFAULT && !launch.env_from.is_empty() {
            // Grants name agents, and names belong to a colony.
            return Err(
                "runs of other colonies than `default` get no secrets and services: leave \
                        `env_from` out"
                    .to_owned(),
            );
        }
        for (name, credential) in &launch.env_from {
            if let Some(service) = credential.strip_prefix(SERVICE) {
                let (agent, session) = (&assignment.agent_name, assignment.session);
                let given =
                    self.credentials.placeholder(service, agent, session, launch.life, inside);
                let (token, url, kind) = given.map_err(|why| format!("`{name}`: {why}"))?;
                secrets.push(token.clone());
                set(name, token);
                let variable = base_url_variable(name, kind);
                let own = |name: &String| launch.env.iter().any(|(known, _)| known == name);
                if let Some(variable) = variable.filter(|variable| !own(variable)) {
                    set(&variable, url);
                }
                continue;
            }
            let taken =
                self.credentials.take(credential, &assignment.agent_name, assignment.session);
            let value = taken.map_err(|why| format!("`{name}`: {why}"))?;
            secrets.push(value.to_string());
            set(name, value.to_string());
        }
        if let Some(conversation) = &launch.conversation {
            set("OVERMIND_CONVERSATION", conversation.clone());
        }
        // These are set last, so that no user variable replaces them.
        set("OVERMIND_SESSION_ID", assignment.session.to_string());
        set("OVERMIND_SESSION_NAME", assignment.name.clone());
        let door = self.door.of(launch, network)?;
        if let (Some(server), Some(token)) = (door, &token) {
            for (name, value) in relay::variables(launch, server, token) {
                set(name, value);
            }
        }
        if let Some(token) = token {
            set("OVERMIND_TOKEN", token);
        }
        if let Some(trail) = assignment.trail {
            set(TRACEPARENT_VARIABLE, trail.here.to_string());
        }
        let io = match launch.terminal {
            true => {
                set("TERM", "xterm-256color".to_owned());
                ProcessIo::Terminal(TerminalSize::default())
            }
            false => {
                let stdin = match launch.input {
                    launch::Input::Closed => StdinKind::Null,
                    launch::Input::UntilAnswer | launch::Input::Open => StdinKind::Open,
                };
                // Output that is parsed line by line must not have errors in the middle of a line.
                let stderr = match launch.read_from {
                    Some(_) => StderrKind::Tagged,
                    None => StderrKind::Merged,
                };
                ProcessIo::Pipes { stdin, stderr }
            }
        };
        let opening = match (key.epoch, network, launch.beyond.as_slice()) {
            (0 | 1, Network::Mesh, beyond @ [_, ..]) => {
                let text = format!(
                    "not reached over the mesh: {}; with the host's network, which an admin may \
                     grant, it is",
                    beyond.join(", ")
                );
                Some((NoteKind::Note, text))
            }
            (0 | 1, _, _) => None,
            (life, _, _) => {
                let text = format!("restart #{} at {}", life - 1, self.clock.now());
                Some((NoteKind::Restart, text))
            }
        };
        let directory = launch.directory.as_ref().unwrap_or(&assignment.workspace);
        let mut argv = launch.argv.clone();
        if let Some(server) = door {
            argv = relay::arguments(launch.provider, server, argv);
        }
        let spec = ProcessSpec::new(key, argv, directory.clone());
        Ok(ProcessSpec { env, secrets, io, opening, group: launch.limits.group(), ..spec })
    }

    /// Returns what is started instead of a command that runs in a sandbox. The sandbox was
    /// measured, and the Cortex was informed.
    async fn enclosed(
        &self,
        assignment: &Assignment,
        launch: &Launch,
        spec: ProcessSpec,
        lent: Vec<Lent>,
        say: &Say,
    ) -> Result<ProcessSpec, SandboxError> {
        let level = level_of(assignment, launch);
        if level == SandboxLevel::None {
            return Ok(spec);
        }
        let Some(enclosures) = &self.enclosures else {
            return Err(SandboxError::Unavailable {
                code: "no_enclosures".to_owned(),
                message: "this hive puts no sandbox around a command".to_owned(),
                reason: "no_enclosures".to_owned(),
                remedy: "ask for the sandbox `none`".to_owned(),
            });
        };
        let seen = Surroundings {
            workspace: launch.worktree.clone().unwrap_or_else(|| spec.cwd.clone()),
            borrowed: launch.borrowed.clone(),
            bounded: launch.bounded,
            reaches: launch.reaches.clone(),
        };
        let mut plan = EnclosePlan {
            argv: spec.argv,
            env: spec.env.clone(),
            cwd: spec.cwd,
            terminal: launch.terminal,
            write: launch.write.clone(),
            lent,
            network: launch.network,
            ports: launch.ports.clone(),
            server: true,
            ..seen.plan(assignment.session, level)
        };
        plan.read.extend(launch.read.iter().cloned());
        let is_claude = launch.provider == Provider::Claude;
        if launch.is_own {
            let path = self.environment.iter().find(|(name, _)| name == "PATH");
            plan.installed = path.map(|(_, path)| path.clone());
        }
        let Enclosed { argv, cwd, needs, tells, user, attested } = enclosures.enclose(plan).await?;
        say(Said::Attested(attested));
        let mut env = spec.env;
        // Values that its agent sets explicitly are kept.
        let own = |name: &str| launch.env.iter().any(|(known, _)| known == name);
        // The value from its environment is outside; inside, `/tmp` is its own.
        env.retain(|(name, _)| name != "TMPDIR" || own(name));
        let quiet = match launch.is_own && is_claude {
            // As root, it accepts `bypassPermissions` only if it knows of the sandbox; and its
            // telemetry has no network here.
            true => &["IS_SANDBOX", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"][..],
            false => &[],
        };
        let quiet = quiet.iter().map(|name| ((*name).to_owned(), "1".to_owned()));
        let tells = tells.into_iter().chain(quiet).filter(|(name, _)| !own(name));
        for (name, value) in tells.chain(needs) {
            env.retain(|(known, _)| *known != name);
            env.push((name, value));
        }
        Ok(ProcessSpec { argv, cwd, env, user, enclosed: true, ..spec })
    }

    /// Cleans up after a session has ended: the rest of its attempts is no longer needed.
    pub(crate) fn session_ended(&self, session: SessionId) {
        if let Some(enclosures) = self.enclosures.clone() {
            self.tasks.spawn(|_stop| async move { enclosures.ended(session).await });
        }
    }

    /// Watches a process until it ends.
    async fn watch(
        self: &Arc<Self>,
        key: ProcessKey,
        kept: Kept,
        mut reading: Reading,
        orders: &mut mpsc::UnboundedReceiver<LifeOrder>,
        say: &Say,
    ) -> LifeEnded {
        let mut look = Look::default();
        let mut pause = LOOK;
        let mut tick = ticks(pause);
        let mut ended = self.processes.ended(key);
        loop {
            tokio::select! {
                biased;
                ended = &mut ended => {
                    Box::pin(read::to_the_end(&*self.processes, key, &mut reading, say)).await;
                    return match ended {
                        Ok(ended) => self.told(ended),
                        Err(err) => self.told(Ended::Lost { reason: err.to_string(), killed: 0 }),
                    };
                }
                Some(order) = orders.recv() => Box::pin(self.obey(key, kept, order)).await,
                _ = tick.tick() => {
                    if Box::pin(read::on(&*self.processes, key, &mut reading, say)).await {
                        read::answered(&*self.processes, key, kept.input).await;
                    }
                    Box::pin(self.look(key, kept, &mut look, say)).await;
                    // While its output is parsed, it is checked as often as it may report
                    // something.
                    let next = if reading.is_open() { LOOK } else { look.pause() };
                    if next != pause {
                        pause = next;
                        tick = ticks(pause);
                    }
                }
            }
        }
    }

    async fn look(&self, key: ProcessKey, kept: Kept, look: &mut Look, say: &Say) {
        let Some(activity) = self.processes.activity(key) else { return };
        let now = self.clock.now();
        if activity.offset != look.offset {
            *look = Look { offset: activity.offset, asks: look.asks.take(), ..Look::default() };
        }
        let silence = now.since(activity.last_output_at);
        // A program with a protocol asks through that, and has no screen.
        if kept.read_from.is_none()
            && let Some(after) = JUDGED_AFTER.get(look.judged)
            && silence >= *after
        {
            look.judged += 1;
            // A program without output asks no question.
            if activity.offset > 0 {
                self.judge(key, kept.provider, silence, look, say).await;
            }
        }
        let Some(limit) = kept.silence else { return };
        if silence < limit || look.silent_until.is_some_and(|until| silence < until) {
            return;
        }
        // A program that uses the processor is not stuck, even without output.
        let cpu = self.processes.usage(key).await.map(|usage| usage.cpu).unwrap_or_default();
        let before = look.cpu.replace(cpu).unwrap_or_default();
        if cpu.saturating_sub(before) > limit / BUSY_SHARE {
            look.silent_until = Some(silence + limit);
            return;
        }
        say(Said::Word(LifeWord::Noticed(Notice::Silent { seconds: silence.as_secs() })));
        look.silent_until = Some(Duration::MAX);
    }

    async fn judge(
        &self,
        key: ProcessKey,
        provider: Provider,
        silence: Duration,
        look: &mut Look,
        say: &Say,
    ) {
        let Ok(screen) = self.processes.screen(key.session, ROWS).await else { return };
        match prompt::judge(&screen, provider, silence) {
            Judged::Waiting(question) => {
                if look.asks.as_deref() != Some(&question) {
                    look.asks = Some(Box::new(question.clone()));
                    say(Said::Word(LifeWord::Noticed(Notice::Waits(question))));
                }
            }
            Judged::Working | Judged::Unknown => {
                if look.asks.take().is_some() {
                    say(Said::Word(LifeWord::Noticed(Notice::GoesOn)));
                }
            }
        }
    }

    fn told(&self, ended: Ended) -> LifeEnded {
        match ended {
            Ended::Exited(exit) => {
                let (exit_code, signal) = match exit.status {
                    overmind_core::process::ExitStatus::Code(code) => (Some(code), None),
                    overmind_core::process::ExitStatus::Signal(signal) => (None, Some(signal)),
                };
                LifeEnded {
                    exit_code,
                    signal,
                    reason: None,
                    at: exit.ended_at,
                    leftovers: exit.leftovers,
                    survivors: exit.survivors,
                    by: exit.by,
                    log_removed: exit.log_removed,
                }
            }
            Ended::Lost { reason, killed } => {
                LifeEnded { leftovers: killed, ..LifeEnded::lost(reason, self.clock.now()) }
            }
        }
    }

    /// Sends an order to the task that watches the process, at once or as soon as there is one.
    pub(crate) fn order(&self, effect: EffectId, order: LifeOrder) {
        if let Some(one) = self.under_way().get(&effect) {
            // Nobody receives it if the process has already ended.
            let _ = one.orders.send(order);
        }
    }

    /// Executes an order. Typing runs in parallel: a program that does not read must not prevent
    /// its end.
    async fn obey(self: &Arc<Self>, key: ProcessKey, kept: Kept, order: LifeOrder) {
        let done = match order {
            LifeOrder::End { how, reason } => {
                let how = match how {
                    StopHow::Stop { grace_ms } => {
                        End::Stop { grace: Duration::from_millis(u64::from(grace_ms)) }
                    }
                    StopHow::Kill => End::Kill,
                };
                self.processes.end(key, how, Some(reason)).await
            }
            LifeOrder::Type { text, by: _, asked_at } => {
                let lives = Arc::clone(self);
                let provider = kept.read_from.map_or(Provider::Raw, |_| kept.provider);
                self.tasks.spawn(move |_stop| async move {
                    let typed = lives.type_line(key, provider, &text, asked_at);
                    if let Err(err) = typed.await {
                        tracing::warn!(life = %key, error = %err, "an answer could not be typed");
                    }
                });
                return;
            }
        };
        if let Err(err) = done {
            tracing::warn!(life = %key, error = %err, "a command could not be told to end");
        }
    }

    /// Types a person's line, and records in the log that a person wrote it.
    async fn type_line(
        &self,
        key: ProcessKey,
        provider: Provider,
        text: &str,
        asked_at: Option<u64>,
    ) -> Result<(), ProcessError> {
        self.processes.note(key.session, NoteKind::Human, text.to_owned()).await?;
        let line = match asked_at {
            None => launch::input(provider, text),
            Some(at) => {
                let asking = read::line_at(&*self.processes, key.session, at).await?;
                launch::answer(provider, &asking, text).ok_or_else(|| {
                    let reason = "the line that asked is not in the log any more".to_owned();
                    ProcessError::Log { session: key.session, reason }
                })?
            }
        };
        self.processes.write(key, line.into_bytes(), TYPING).await
    }

    /// Takes the process of an aborted effect, which is to be killed now; `None` if the effect has
    /// none.
    pub(crate) fn aborted(self: &Arc<Self>, effect: EffectId) -> Option<(ProcessKey, Busy)> {
        let key = self.under_way().remove(&effect)?.key;
        Some((key, self.busy(key.session)))
    }

    pub(crate) async fn kill(&self, key: ProcessKey, reason: &str) {
        // A process of an earlier server can be ended only after it was found.
        self.looked().await;
        match self.processes.end(key, End::Kill, Some(reason.to_owned())).await {
            Ok(()) => {
                if let Err(err) = self.processes.ended(key).await {
                    tracing::warn!(life = %key, error = %err, "whether a process ended is unknown");
                }
            }
            // It ended on its own, or will never be started.
            Err(ProcessError::NotAlive(_)) => {}
            Err(err) => tracing::error!(life = %key, error = %err, "a process cannot be ended"),
        }
        self.acknowledge(key).await;
    }

    pub(crate) async fn acknowledge(&self, key: ProcessKey) {
        match self.processes.acknowledge(key).await {
            Ok(()) | Err(ProcessError::NotAlive(_)) => {}
            Err(err) => tracing::warn!(life = %key, error = %err, "an end is not acknowledged"),
        }
    }
}
