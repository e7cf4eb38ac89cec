//! Commands that live: started, looked after, ended; found again after a restart.
//!
//! The life of a command is one long effect. Dropping its future leaves the process alone: what
//! outlives the daemon must outlive a drain too. Only an abort, an order, or a [`ToHive::Keep`]
//! that does not name it ends one.
//!
//! [`ToHive::Keep`]: overmind_core::bus::ToHive::Keep

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overmind_core::attest::Attested;
use overmind_core::bus::Assignment;
use overmind_core::command::{Launch, LifeEnded, LifeOrder, LifeWord, Notice, StopHow};
use overmind_core::enclosure::{DOOR_URL, Enclose, EnclosePlan, Enclosed, Network, Surroundings};
use overmind_core::ids::{EffectId, SessionId};
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

/// Rows of a screen that are looked at.
const ROWS: u16 = 40;
/// How long a program may take to read what is typed.
const TYPING: Duration = Duration::from_secs(10);
/// The same of what it is told first, while it is still starting.
const FIRST: Duration = Duration::from_secs(60);
/// How long processes that nobody wants are waited for before the rooms are looked after.
const SETTLING: Duration = Duration::from_secs(30);
/// Processor time within a silence that tells that something is worked on.
const BUSY_SHARE: u32 = 20;

/// Sends what is said of a life to the Cortex, in its order.
pub(crate) type Say = Arc<dyn Fn(Said) + Send + Sync>;

/// What is said of a life while it goes on.
#[derive(Debug)]
pub(crate) enum Said {
    /// What the sandbox that it is about to begin in was measured to give.
    Attested(Arc<Attested>),
    Word(LifeWord),
}

/// Processes that an earlier server left, and that nobody has asked for again.
type Found = Option<HashMap<ProcessKey, Adopted>>;

/// What a hive needs to run commands.
#[derive(Debug)]
pub(crate) struct Lives {
    processes: Arc<dyn Processes>,
    /// Sandboxes, if this hive can put any around a command.
    enclosures: Option<Arc<dyn Enclose>>,
    clock: Arc<dyn Clock>,
    /// What every command's environment has.
    environment: Vec<(String, String)>,
    /// What agents may name for theirs.
    credentials: Credentials,
    /// Says what else the commands of a session with a room have.
    stays: Option<Arc<Stays>>,
    tasks: Tasks,
    under_way: Mutex<HashMap<EffectId, UnderWay>>,
    /// What was found at the start; `None` until it has been looked for.
    found: watch::Sender<Found>,
    /// Starts and kills under way, by session.
    busy: watch::Sender<HashMap<SessionId, usize>>,
    door: Door,
}

/// What a life begins with.
#[derive(Debug)]
pub(crate) struct Birth {
    pub(crate) launch: Box<Launch>,
    /// Its session's own.
    pub(crate) token: Option<String>,
    /// When its program is to begin.
    pub(crate) not_before: Option<Timestamp>,
}

/// What of a launch is needed after the start: the rest of it goes then.
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

/// As long as it is there, a process of the session is being started or killed.
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

/// An effect that keeps a life, from when it was asked for.
#[derive(Debug)]
struct UnderWay {
    key: ProcessKey,
    /// What is wanted of it, in its order. It waits until the life has begun or was found.
    orders: mpsc::UnboundedSender<LifeOrder>,
    /// For whoever looks after the life; `None` when somebody does already.
    inbox: Option<mpsc::UnboundedReceiver<LifeOrder>>,
}

/// What a life runs in: the stronger of its agent's and its project's.
fn level_of(assignment: &Assignment, launch: &Launch) -> SandboxLevel {
    assignment.sandbox.max(launch.sandbox.unwrap_or(SandboxLevel::None))
}

/// What a life reaches. Outside of sandboxes that is the host's network.
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

    /// How programs that ask this server for models find it.
    pub(crate) fn with_door(self, door: Door) -> Self {
        Self { door, ..self }
    }

    fn busy(self: &Arc<Self>, session: SessionId) -> Busy {
        self.busy.send_modify(|busy| *busy.entry(session).or_default() += 1);
        Busy { lives: Arc::clone(self), session }
    }

    /// Waits until it is known what an earlier process left, and nothing of the session is being
    /// started or killed.
    pub(crate) async fn gone(&self, session: SessionId) {
        let _ = self.found.subscribe().wait_for(Option::is_some).await;
        let _ = self.busy.subscribe().wait_for(|busy| !busy.contains_key(&session)).await;
    }

    /// Waits, not for ever, until what nobody wants of an earlier process is gone.
    pub(crate) async fn settled(&self) {
        let settled = async {
            let _ = self.found.subscribe().wait_for(Option::is_some).await;
            let _ = self.busy.subscribe().wait_for(HashMap::is_empty).await;
        };
        if tokio::time::timeout(SETTLING, settled).await.is_err() {
            tracing::warn!("processes of an earlier start are still being ended");
        }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<EffectId, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a life was asked for: from now on it takes orders, and an abort ends it. To be
    /// called before [`Self::live`], and before the next message is heard.
    pub(crate) fn expect(&self, session: SessionId, effect: EffectId, launch: &Launch) {
        let key = ProcessKey { session, epoch: launch.life };
        let (orders, inbox) = mpsc::unbounded_channel();
        let one = UnderWay { key, orders, inbox: Some(inbox) };
        self.under_way().insert(effect, one);
    }

    /// Lives a life: starts it unless it is there, looks after it, and tells how it ended.
    ///
    /// # Cancel safety
    ///
    /// Dropped, a life that has begun goes on.
    pub(crate) async fn live(
        self: &Arc<Self>,
        assignment: &Assignment,
        effect: EffectId,
        birth: Box<Birth>,
        say: &Say,
    ) -> LifeEnded {
        let inbox = self.under_way().get_mut(&effect).and_then(|one| one.inbox.take());
        // Aborted before it began.
        let Some(mut orders) = inbox else {
            return self.told(Ended::Lost { reason: "it was canceled".to_owned(), killed: 0 });
        };
        let key = ProcessKey { session: assignment.session, epoch: birth.launch.life };
        let kept = Kept::of(&birth.launch);
        // Boxed: what a life needs until it has begun is given back then.
        let begun = Box::pin(self.begin(assignment, effect, key, birth, say)).await;
        let ended = match begun {
            Ok(()) => self.watch(key, kept, &mut orders, say).await,
            Err(ended) => ended,
        };
        self.under_way().remove(&effect);
        ended
    }

    /// Finds or starts a life. `Err` is how it ended before anybody looked after it.
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
                let mut reading = Reading::of(launch.provider, launch.read_from);
                read::to_the_end(&*self.processes, key, &mut reading, say).await;
                return Err(self.told(ended));
            }
            Some(Adopted::Unreachable { reason, .. }) => return lost(reason),
            None => match self.processes.activity(key) {
                // Placed anew while it lives: the same process is looked after.
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
                    // It was answered before whoever was to close its input went.
                    read::answered(&*self.processes, key, launch.input).await;
                }
                if let Some(first) = &launch.first {
                    // Before its start is told: until then it is typed again after a crash.
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

    /// Starts a life in a task of its own: when the effect's future is dropped by a shutdown, what
    /// is being started goes on; when it was aborted, it is ended as soon as it has begun.
    async fn start(
        self: &Arc<Self>,
        effect: EffectId,
        spec: ProcessSpec,
    ) -> Result<Started, ProcessError> {
        let (tell, told) = oneshot::channel();
        let (lives, key) = (Arc::clone(self), spec.key);
        let busy = self.busy(key.session);
        // Whoever aborted it before may have seen that nothing is being started.
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
            // Wherever the server is outside: inside it is here.
            let known = |name: &str| [SERVER, GATEWAY].contains(&name);
            env.retain(|(name, _)| !known(name));
            env.extend([SERVER, GATEWAY].map(|name| (name.to_owned(), DOOR_URL.to_owned())));
        }
        let inside = (network == Network::Mesh).then_some(DOOR_URL);
        let mut set = |name: &str, value: String| {
            env.retain(|(known, _)| known != name);
            env.push((name.to_owned(), value));
        };
        // What its log never has.
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
        // Last: nothing that a user writes stands for these.
        set("OVERMIND_SESSION_ID", assignment.session.to_string());
        set("OVERMIND_SESSION_NAME", assignment.name.clone());
        let door = self.door.of(launch, network)?;
        if let (Some(server), Some(token)) = (door, &token) {
            for (name, value) in relay::variables(launch.provider, server, token) {
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
                // What is read line by line must not have errors in the middle of one.
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

    /// What is started in place of a command that its agent wants in a sandbox. The sandbox was
    /// measured then, and the Cortex was told.
    async fn enclosed(
        &self,
        assignment: &Assignment,
        launch: &Launch,
        spec: ProcessSpec,
        lent: Option<PathBuf>,
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
        // What its agent says of these, it means.
        let own = |name: &str| launch.env.iter().any(|(known, _)| known == name);
        // That of its room is outside; inside, `/tmp` is its own.
        env.retain(|(name, _)| name != "TMPDIR" || own(name));
        let quiet = match launch.is_own && is_claude {
            // As root it takes `bypassPermissions` only where it is told of the sandbox; what it sends
            // elsewhere reaches nobody from here.
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

    /// The session is over, and what its attempts left behind is not needed any more.
    pub(crate) fn session_ended(&self, session: SessionId) {
        if let Some(enclosures) = self.enclosures.clone() {
            self.tasks.spawn(|_stop| async move { enclosures.ended(session).await });
        }
    }

    /// Looks after a life until it ends.
    async fn watch(
        self: &Arc<Self>,
        key: ProcessKey,
        kept: Kept,
        orders: &mut mpsc::UnboundedReceiver<LifeOrder>,
        say: &Say,
    ) -> LifeEnded {
        let mut look = Look::default();
        let mut reading = Reading::of(kept.provider, kept.read_from);
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
                    // Whose words are read is looked at as often as it may say some.
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
        // Who speaks a protocol asks in it, and shows no screen.
        if kept.read_from.is_none()
            && let Some(after) = JUDGED_AFTER.get(look.judged)
            && silence >= *after
        {
            look.judged += 1;
            // Where nothing was ever written, nothing asks.
            if activity.offset > 0 {
                self.judge(key, kept.provider, silence, look, say).await;
            }
        }
        let Some(limit) = kept.silence else { return };
        if silence < limit || look.silent_until.is_some_and(|until| silence < until) {
            return;
        }
        // Working hard without a word is no standstill.
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

    /// Hands an order to whoever looks after the life, at once or as soon as somebody does.
    pub(crate) fn order(&self, effect: EffectId, order: LifeOrder) {
        if let Some(one) = self.under_way().get(&effect) {
            // Nobody reads when the life is over already.
            let _ = one.orders.send(order);
        }
    }

    /// Does what is wanted of a life. Typing is done beside: a program that does not read must not
    /// keep it from being ended.
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

    /// Types a person's line, and notes in the log that a person did.
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

    /// What an effect kept alive, which is to be killed now; `None` when it is none of this kind.
    pub(crate) fn aborted(self: &Arc<Self>, effect: EffectId) -> Option<(ProcessKey, Busy)> {
        let key = self.under_way().remove(&effect)?.key;
        Some((key, self.busy(key.session)))
    }

    pub(crate) async fn kill(&self, key: ProcessKey, reason: &str) {
        match self.processes.end(key, End::Kill, Some(reason.to_owned())).await {
            Ok(()) => {
                if let Err(err) = self.processes.ended(key).await {
                    tracing::warn!(life = %key, error = %err, "whether a process ended is unknown");
                }
            }
            // It ended by itself, or was being started and never will be.
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
