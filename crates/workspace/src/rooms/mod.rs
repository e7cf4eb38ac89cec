//! Rooms of sessions: the engine's port over leases, trees and pools.
//!
//! Start with [`LocalRooms::open`], which only stores the configuration: directories are read when
//! the first environment is requested, or when an earlier daemon left environments.
//!
//! * A room in a repository is a lease whose worktree is a [tree](crate::tree). Outside of one it is
//!   a lease on a copy, if that was asked for; otherwise the session works in its directory, which is
//!   no room at all: no ports, no services, nothing to give back.
//! * All steps of one session come one after the other. A step that nobody waits for any more still
//!   ends before the next begins.
//! * Services and the database server outlive the daemon, like the sessions that they are of. The
//!   database server is ended with the daemon when no session has a room.
//!
//! Modules: `maker` creates and ends trees, `project` reads a project's settings, `work` handles a
//! session's work at its end, `history` restores its files, `filling` prepares trees.

mod claims;
mod filling;
mod history;
mod lent;
mod maker;
mod project;
pub(crate) mod reached;
mod say;
mod trust;
mod work;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::Fut;
use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::off_limits::OffLimits;
use overmind_core::process::ProcessUser;
use overmind_core::record::Name;
use overmind_core::room::history::{RoomMark, RoomSnapshot, RoomUndone};
use overmind_core::room::trust::{RoomTrust, TrustedProjects};
use overmind_core::room::{
    Leak, RoomClosed, RoomDone, RoomEnd, RoomError, RoomErrorKind, RoomMade, RoomOrder, RoomOrigin,
    RoomOutcome, RoomReach, RoomSandbox, RoomSink, RoomWhen, RoomWitness, RoomWork, Rooms,
};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::time::Clock;
use tokio::sync::OwnedMutexGuard;

use self::filling::Pools;
use self::maker::{Details, Maker, Whose};
use self::project::Ground;
pub use self::project::project_top;
use self::reached::Reached;
use self::say::Teller;
use self::trust::Trusted;
use crate::git::Git;
use crate::leaks::LeakKind;
use crate::lease::{
    self, Lease, LeasePhase, LeaseRequest, Place, Quiet, Resumed, TreeEnd, Workspace, chain,
};
use crate::services::confine::Encloses;
use crate::services::runner::{OwnProcesses, Runner};
use crate::tree::Trees;

/// Discarded work is kept for so long.
const DISCARDED_SECS: i64 = 14 * 24 * 3600;

/// The dependencies of rooms.
#[derive(Clone)]
pub struct Options {
    /// The daemon's data directory.
    pub home: PathBuf,
    /// The directory of worktrees.
    pub worktrees: PathBuf,
    /// See [`lease::Options::registry`].
    pub registry: PathBuf,
    /// See [`lease::Options::temp`].
    pub temp: PathBuf,
    /// See [`lease::Options::docker`].
    pub docker: Option<PathBuf>,
    /// See [`lease::Options::environment`].
    pub environment: BTreeMap<String, String>,
    /// See [`lease::Options::secrets`].
    pub secrets: BTreeMap<String, String>,
    /// See [`lease::Options::servers`].
    pub servers: Vec<String>,
    pub clock: Arc<dyn Clock>,
    /// A file of patterns that this user ignores everywhere (`core.excludesFile`).
    pub excludes_file: Option<PathBuf>,
    pub git: Git,
    /// The supervisor of the processes of services; our own if absent.
    pub runner: Option<Arc<dyn Runner>>,
    /// The port for sandboxes of services and hooks. Without it, an environment that needs them is
    /// refused.
    pub encloses: Encloses,
    /// Whom these run as, if that is not the daemon's own user: worktrees with sandboxes are given to
    /// this one, who must be able to come to [`Options::worktrees`].
    pub user: Option<ProcessUser>,
    /// Files of the server, which are not copied into an environment.
    pub off_limits: OffLimits,
}

impl Options {
    /// Everything beneath one data directory.
    pub fn new(home: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Self {
        let home = home.into();
        Self {
            worktrees: home.join("worktrees"),
            home,
            registry: crate::ports::default_dir(),
            temp: PathBuf::from("/tmp"),
            docker: None,
            environment: BTreeMap::new(),
            secrets: BTreeMap::new(),
            servers: Vec::new(),
            clock,
            excludes_file: None,
            git: Git::default(),
            runner: None,
            encloses: Encloses::default(),
            user: None,
            off_limits: OffLimits::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of variables are not for logs.
        f.debug_struct("Options")
            .field("home", &self.home)
            .field("worktrees", &self.worktrees)
            .field("registry", &self.registry)
            .field("temp", &self.temp)
            .field("docker", &self.docker)
            .finish_non_exhaustive()
    }
}

/// The rooms of one data directory. One per daemon.
#[derive(Debug)]
pub struct LocalRooms {
    options: Options,
    core: tokio::sync::OnceCell<Arc<Core>>,
    /// Held for writing while environments of an earlier daemon are reopened.
    gate: tokio::sync::RwLock<()>,
    /// One step of a session at a time.
    steps: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    pools: Arc<Pools>,
    /// Open rooms, by session.
    serving: Mutex<BTreeMap<String, Serving>>,
    /// Projects whose orders may be run.
    trusted: Trusted,
}

/// The services of a session on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// The name of the session.
    pub name: String,
    /// The port of each service that speaks HTTP.
    pub services: BTreeMap<String, u16>,
    /// Its own `PORT`, if it has one.
    pub port: Option<u16>,
}

impl Serving {
    /// The port that the session itself is known by: of its one service, or `PORT`.
    pub fn main(&self) -> Option<u16> {
        match self.services.len() {
            1 => self.services.values().next().copied(),
            _ => self.port,
        }
    }
}

/// Resources that are opened when they are first needed.
#[derive(Debug)]
struct Core {
    workspace: Workspace,
    maker: Maker,
    clock: Arc<dyn Clock>,
}

impl Drop for LocalRooms {
    fn drop(&mut self) {
        self.pools.cancel();
    }
}

impl LocalRooms {
    /// Stores the locations. Nothing is read or created before it is needed.
    pub fn open(options: Options) -> Self {
        Self {
            options,
            core: tokio::sync::OnceCell::new(),
            gate: tokio::sync::RwLock::new(()),
            steps: Mutex::default(),
            pools: Arc::default(),
            serving: Mutex::default(),
            trusted: Trusted::default(),
        }
    }

    /// The services of sessions with open environments.
    pub fn serving(&self) -> Vec<Serving> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn serves(&self, lease: &Lease) {
        let mut services = BTreeMap::new();
        for (service, port) in http_services(lease) {
            services.insert(service.to_owned(), port);
        }
        let port = lease.ports.get("PORT").copied();
        let serving = Serving { name: lease.name.clone(), services, port };
        let mut all = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(lease.session.clone(), serving);
    }

    /// Releases the data directory. Services of sessions continue, and the next daemon adopts them;
    /// the database server is stopped if no session has an environment.
    pub async fn shutdown(&self) {
        self.pools.end().await;
        // Never requested by this daemon or an earlier one.
        if self.core.get().is_none() && !self.was_used() {
            return;
        }
        if has_entries(&self.options.home.join("leases")) {
            return;
        }
        let core = match self.core().await {
            Ok(core) => core,
            Err(err) => {
                tracing::warn!(%err, "looking for a database server that nobody needs");
                return;
            }
        };
        if let Err(err) = core.workspace.stop_database_server().await {
            tracing::warn!(err = %chain(&err), "ending the database server");
        }
    }

    async fn core(&self) -> Result<Arc<Core>, RoomError> {
        let opened = self.core.get_or_try_init(|| async {
            let options = self.options.clone();
            let opened = tokio::task::spawn_blocking(move || Core::open(options)).await;
            opened.unwrap_or_else(|err| Err(say::failed(format!("opening rooms: {err}"))))
        });
        opened.await.cloned()
    }

    /// Whether any room was ever made in this data directory.
    fn was_used(&self) -> bool {
        self.options.home.join("workspace-id").exists()
    }

    fn lease_dir(&self, session: &str) -> PathBuf {
        self.options.home.join("leases").join(session)
    }

    /// Waits until no other step of the session is in progress.
    async fn alone(&self, session: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            steps.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(steps.entry(session.to_owned()).or_default())
        };
        lock.lock_owned().await
    }

    async fn make(&self, mut order: RoomOrder, sink: RoomSink) -> Result<RoomMade, RoomError> {
        // A project without a repository stays one for this session: a later writer could name any
        // repository there.
        if order.before.as_ref().is_some_and(|before| had_no_repository(before)) {
            order.wish.reach = RoomReach::Nothing;
        }
        let _waits = self.pools.waits();
        let _gate = self.gate.read().await;
        let session = order.session.to_string();
        let alone = Arc::new(self.alone(&session).await);
        if self.lease_dir(&session).exists() {
            let core = self.core().await?;
            if let Some(lease) = core.lease(&session).await? {
                return Ok(made(&lease));
            }
            // Partly created, or partly released: a crash interrupted it.
            let undone = core.workspace.teardown(&session, TreeEnd::Park, &Quiet);
            let undone = Box::pin(undone).await;
            undone.map_err(|err| say::of_teardown(&err))?;
        }
        let (at, reach) = (order.project.clone(), order.wish.reach.clone());
        let looked = tokio::task::spawn_blocking(move || project::ground(&at, &reach)).await;
        let ground = looked.map_err(|err| say::failed(err.to_string()))??;
        match (order.wish.when, ground) {
            (RoomWhen::Never, _) => return Ok(in_place(&order.project, Vec::new())),
            (RoomWhen::Auto, Ground::Directory) => {
                let text = format!(
                    "{} is in no git repository: the session works in it directly, without \
                     ports and services of its own",
                    order.project.display()
                );
                return Ok(in_place(&order.project, vec![text]));
            }
            (RoomWhen::Auto, Ground::Repository) | (RoomWhen::Always, _) => {}
        }
        let core = self.core().await?;
        core.maker.forget_ended(&session);
        let excludes = self.options.excludes_file.clone();
        let (maker, at, user) = (core.maker.clone(), order.clone(), self.options.user);
        let trusted = self.trusted.clone();
        let planned = tokio::task::spawn_blocking(move || {
            let (reach, base) = (&at.wish.reach, at.wish.base.as_deref());
            let found = project::read(maker.trees(), &at.project, reach, base)?;
            let was = at.before.as_ref().and_then(|before| before.origin.as_ref());
            project::same(&found, was)?;
            let setup_network = trusted.check(&found)?;
            let request = project::request(&at, &found, excludes.as_deref())?;
            let sandbox = found.config.isolation.sandbox;
            let level = at.sandbox.level.max(sandbox.unwrap_or(SandboxLevel::None));
            let user = user.filter(|_| level != SandboxLevel::None);
            let session = at.session.to_string();
            let RoomOrder { name, about, agent, .. } = at.clone();
            let whose = Whose { name, about, agent };
            if let Some(before) = &at.before
                && let Some(again) =
                    maker.again(&session, &whose, user, before).map_err(|err| say::of_tree(&err))?
            {
                let (intent, promise) = again;
                return Ok((found, setup_network, intent, promise));
            }
            let secrets = Some(found.config.secrets.as_slice());
            let secrets = secrets.filter(|_| level != SandboxLevel::None);
            let planned = maker.plan((&session, &whose), sandbox, user, secrets, request);
            let (intent, promise) = planned.map_err(|err| say::of_tree(&err))?;
            Ok::<_, RoomError>((found, setup_network, intent, promise))
        });
        let planned = planned.await.map_err(|err| say::failed(err.to_string()))?;
        let (found, setup_network, intent, promise) = planned?;
        let asked = found.config.isolation.sandbox.unwrap_or(SandboxLevel::None);
        let level = order.sandbox.level.max(asked);
        let request = LeaseRequest {
            sandbox: Some(RoomSandbox { level, ..order.sandbox.clone() }),
            session: session.clone(),
            name: order.name.clone(),
            project: found.top.clone(),
            config: found.config.clone(),
            setup_network,
            place: Place::Tree(intent),
        };
        let teller = Teller(sink);
        for text in &found.warnings {
            lease::Sink::tell(&teller, lease::Progress::Warning { text });
        }
        let kept = Kept { promise: Some(promise), lease: self.lease_dir(&session) };
        let hold: Arc<dyn Send + Sync> = alone.clone();
        let built = Box::pin(core.workspace.build_holding(request, Some(hold), &teller)).await;
        let lease = built.map_err(|err| say::of_build(&err))?;
        drop(kept);
        self.serves(&lease);
        self.pools.see_to(&core, &session, &found, self.options.excludes_file.as_deref());
        let mut room = made(&lease);
        room.warnings.splice(0..0, found.warnings);
        Ok(room)
    }

    async fn end(
        &self,
        session: SessionId,
        end: RoomEnd,
        sink: RoomSink,
    ) -> Result<RoomClosed, RoomError> {
        let _gate = self.gate.read().await;
        let session = session.to_string();
        let _alone = self.alone(&session).await;
        self.end_alone(&session, end, sink).await
    }

    /// The caller has the session.
    async fn end_alone(
        &self,
        session: &str,
        end: RoomEnd,
        sink: RoomSink,
    ) -> Result<RoomClosed, RoomError> {
        if !self.was_used() {
            return Ok(RoomClosed::default());
        }
        let has_lease = self.lease_dir(session).exists();
        let core = self.core().await?;
        if !has_lease {
            return Ok(core.maker.ended(session).map(|known| known.closed).unwrap_or_default());
        }
        let tree = match end {
            RoomEnd::Decide => TreeEnd::Decide,
            RoomEnd::Park => TreeEnd::Park,
            RoomEnd::Keep => TreeEnd::Keep,
            RoomEnd::Discard => TreeEnd::Discard,
        };
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
        let report = Box::pin(core.workspace.teardown(session, tree, &Teller(sink))).await;
        let report = report.map_err(|err| say::of_teardown(&err))?;
        self.pools.closed(session);
        let known = core.maker.ended(session);
        let mut closed = known.map(|known| known.closed).unwrap_or_default();
        closed.warnings.extend(report.warnings);
        closed.leaks = report.leaks.into_iter().map(say::leak).collect();
        if let Err(err) = core.maker.note_ended(session, &closed) {
            // Asked for again after a crash, it would say less.
            tracing::warn!(%err, session, "writing down how a room ended");
        }
        Ok(closed)
    }

    async fn take_up(&self, wanted: Vec<SessionId>) {
        let _gate = self.gate.write().await;
        if !has_entries(&self.options.home.join("leases")) && !self.options.worktrees.exists() {
            return;
        }
        let core = match self.core().await {
            Ok(core) => core,
            Err(err) => {
                tracing::error!(%err, "rooms of earlier sessions cannot be taken up");
                return;
            }
        };
        let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        for (session, phase) in core.workspace.sessions() {
            if phase == LeasePhase::Ready && !wanted.contains(&session) {
                tracing::info!(session, "closing the room of a session that is gone");
                let ended = Box::pin(core.workspace.teardown(&session, TreeEnd::Park, &Quiet));
                if let Err(err) = ended.await {
                    tracing::warn!(session, err = %chain(&err), "the room did not end");
                }
            }
        }
        for resumed in Box::pin(core.workspace.resume(&Quiet)).await {
            match resumed {
                Resumed::Kept { session, lease, warnings } => {
                    self.serves(&lease);
                    tracing::info!(session, ?warnings, "took up a room");
                }
                Resumed::Ended { session, report } => {
                    tracing::info!(session, leaks = ?report.leaks, "undid a half-made room");
                }
                Resumed::Failed { session, error } => {
                    tracing::warn!(session, err = %chain(&error), "a room is in the way");
                }
            }
        }
        let maker = core.maker.clone();
        self.pools.behind(async move {
            let swept = tokio::task::spawn_blocking(move || {
                maker.forget_old();
                maker.trees().sweep(maker.now() - DISCARDED_SECS)
            });
            match swept.await {
                Ok(Ok(swept)) => tracing::debug!(?swept, "swept worktrees"),
                Ok(Err(err)) => tracing::warn!(err = %chain(&err), "sweeping worktrees"),
                Err(err) => tracing::warn!(%err, "sweeping worktrees was cut off"),
            }
        });
    }

    async fn find_leaks(&self) -> Vec<Leak> {
        if !self.was_used() {
            return Vec::new();
        }
        match self.core().await {
            Ok(core) => {
                let mut found = Box::pin(core.workspace.leaks()).await;
                // Without an engine there are no containers: use the usual place of the socket.
                let docker = self.options.docker.as_deref().filter(|socket| !socket.exists());
                found.retain(|one| {
                    one.kind != LeakKind::Unchecked || docker != Some(Path::new(&one.what))
                });
                found.into_iter().map(say::leak).collect()
            }
            Err(err) => vec![self.unchecked(&err)],
        }
    }

    async fn fix_leaks(&self) -> Vec<Leak> {
        let _gate = self.gate.read().await;
        if !self.was_used() {
            return Vec::new();
        }
        let core = match self.core().await {
            Ok(core) => core,
            Err(err) => return vec![self.unchecked(&err)],
        };
        for finding in Box::pin(core.workspace.leaks()).await {
            if finding.fixable
                && let Err(err) = Box::pin(core.workspace.fix(&finding)).await
            {
                tracing::warn!(%err, "a leak stays");
            }
        }
        self.find_leaks().await
    }

    fn unchecked(&self, err: &RoomError) -> Leak {
        Leak {
            kind: "unchecked".to_owned(),
            what: self.options.home.display().to_string(),
            session: None,
            how: err.message.clone(),
            fixable: false,
            bytes: None,
        }
    }
}

impl Core {
    fn open(options: Options) -> Result<Arc<Self>, RoomError> {
        let trees = Trees::open(&options.worktrees, options.git.clone());
        let trees = trees.map_err(|err| say::of_tree(&err))?.of_user(options.environment.clone());
        let trees = trees.keeping_out(options.off_limits.clone());
        let endings = options.home.join("rooms");
        let maker = Maker::new(trees, endings, Arc::clone(&options.clock));
        let clock = Arc::clone(&options.clock);
        let runner = options.runner.clone();
        let runner = runner.unwrap_or_else(|| {
            let own = OwnProcesses::new(Arc::clone(&clock));
            Arc::new(own.enclosed_by(options.encloses.clone()))
        });
        let workspace = Workspace::open(lease::Options {
            home: options.home,
            registry: options.registry,
            temp: options.temp,
            docker: options.docker,
            environment: options.environment,
            secrets: options.secrets,
            servers: options.servers,
            clock: Arc::clone(&clock),
            runner,
            encloses: options.encloses,
            user: options.user,
            off_limits: options.off_limits,
            tree: Some(Arc::new(maker.clone())),
        });
        let workspace = workspace.map_err(|err| say::failed(chain(&err)))?;
        Ok(Arc::new(Self { workspace, maker, clock }))
    }

    async fn lease(self: &Arc<Self>, session: &str) -> Result<Option<Lease>, RoomError> {
        let (core, session) = (Arc::clone(self), session.to_owned());
        let read = tokio::task::spawn_blocking(move || core.workspace.lease(&session)).await;
        let read = read.map_err(|err| say::failed(err.to_string()))?;
        read.map_err(|err| say::failed(chain(&err)))
    }
}

/// Releases a promised place unless a journal has it: then undoing does, now or later.
struct Kept {
    promise: Option<maker::Promise>,
    lease: PathBuf,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(promise) = self.promise.take()
            && self.lease.exists()
        {
            promise.used();
        }
    }
}

/// A session that works in its project's directory.
fn in_place(project: &Path, warnings: Vec<String>) -> RoomMade {
    RoomMade { directory: project.to_owned(), warnings, ..RoomMade::default() }
}

/// Whether an earlier environment of a session was made without a repository.
fn had_no_repository(before: &RoomMade) -> bool {
    before.worktree.is_none() || before.origin == Some(RoomOrigin::Directory)
}

/// A lease, as the log may show it: no value of a database.
fn made(lease: &Lease) -> RoomMade {
    let details: Option<Details> = serde_json::from_value(lease.details.clone()).ok();
    let mut warnings = details.as_ref().map(|known| known.warnings.clone()).unwrap_or_default();
    warnings.extend(lease.warnings.iter().cloned());
    let own = lease.ports.iter().filter(|(name, _)| !name.contains('/'));
    let own = own.map(|(name, port)| (name.as_str(), *port));
    let urls = own.chain(http_services(lease));
    let urls = urls.map(|(name, port)| (name.to_owned(), format!("http://127.0.0.1:{port}")));
    let Reached { ports: reaches, beyond } = Reached::of(&lease.ports, &lease.values);
    RoomMade {
        directory: details.as_ref().map_or_else(|| lease.worktree.clone(), |it| it.cwd.clone()),
        worktree: Some(lease.worktree.clone()),
        branch: lease.branch.clone(),
        base: lease.base.clone(),
        ports: lease.ports.clone(),
        urls: urls.collect(),
        borrowed: details.as_ref().map(|known| known.borrowed.clone()).unwrap_or_default(),
        bounded: details.as_ref().is_some_and(|known| known.bounded),
        origin: details.as_ref().and_then(|known| known.origin.clone()),
        sandbox: details.as_ref().and_then(|known| known.sandbox),
        withheld: details.map(|known| known.withheld).unwrap_or_default(),
        reaches,
        beyond,
        serves: false,
        warnings,
    }
}

/// Services whose first port uses HTTP, according to the project's file: processes and containers.
fn http_services(lease: &Lease) -> impl Iterator<Item = (&str, u16)> {
    lease.ports.keys().filter_map(|name| {
        let (service, _) = name.split_once('/')?;
        lease.values.get(service, "url").filter(|url| url.starts_with("http://"))?;
        Some((service, lease.values.get(service, "port")?.parse().ok()?))
    })
}

fn has_entries(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

impl Rooms for LocalRooms {
    fn witness(&self, witness: Arc<dyn RoomWitness>) {
        self.options.encloses.tell(witness);
    }

    fn trusted(&self, projects: TrustedProjects) {
        self.trusted.set(projects);
    }

    fn trust_of(
        &self,
        project: PathBuf,
        reach: RoomReach,
    ) -> Fut<'_, Result<RoomTrust, RoomError>> {
        Box::pin(self.look_at(project, reach))
    }

    fn keep(&self, wanted: Vec<SessionId>) -> Fut<'_, ()> {
        Box::pin(self.take_up(wanted))
    }

    fn prepare(&self, order: RoomOrder, sink: RoomSink) -> Fut<'_, Result<RoomMade, RoomError>> {
        Box::pin(self.make(order, sink))
    }

    fn environment(&self, session: SessionId) -> Fut<'_, Result<Vec<(String, String)>, RoomError>> {
        Box::pin(async move {
            let session = session.to_string();
            if !self.lease_dir(&session).exists() {
                return Ok(Vec::new());
            }
            let lease = self.core().await?.lease(&session).await?;
            let lease = lease.ok_or_else(|| {
                let text = format!("the room of {session} is being made or closed");
                RoomError::new(RoomErrorKind::Conflict, text)
            })?;
            Ok(lease.env.into_iter().collect())
        })
    }

    fn close(
        &self,
        session: SessionId,
        end: RoomEnd,
        sink: RoomSink,
    ) -> Fut<'_, Result<RoomClosed, RoomError>> {
        Box::pin(self.end(session, end, sink))
    }

    fn work<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        closed: Option<&'a RoomClosed>,
    ) -> Fut<'a, Result<RoomWork, RoomError>> {
        Box::pin(self.work_of(order, made, closed))
    }

    fn done<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        closed: Option<&'a RoomClosed>,
        done: RoomDone,
    ) -> Fut<'a, Result<RoomOutcome, RoomError>> {
        Box::pin(self.decide(order, made, closed, done))
    }

    fn snapshot(
        &self,
        session: SessionId,
        mark: RoomMark,
    ) -> Fut<'_, Result<Option<RoomSnapshot>, RoomError>> {
        Box::pin(self.save_files(session, mark))
    }

    fn kept(&self) -> Fut<'_, Result<Vec<SessionId>, RoomError>> {
        Box::pin(self.kept_trees())
    }

    fn restore(
        &self,
        session: SessionId,
        step: u32,
    ) -> Fut<'_, Result<Option<RoomUndone>, RoomError>> {
        Box::pin(self.take_back(session, step))
    }

    fn undo<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        closed: Option<&'a RoomClosed>,
        to: Option<&'a str>,
    ) -> Fut<'a, Result<RoomUndone, RoomError>> {
        Box::pin(self.bring_back(order, made, closed, to))
    }

    fn files_at<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        step: u32,
    ) -> Fut<'a, Result<Option<RoomSnapshot>, RoomError>> {
        Box::pin(self.saved_files(order, made, step))
    }

    fn lend(
        &self,
        session: SessionId,
        files: Vec<(String, String)>,
    ) -> Fut<'_, Result<PathBuf, RoomError>> {
        Box::pin(lent::lend(self.options.home.join(lent::LENT), session, files))
    }

    fn claim(&self, colony: ColonyId, name: Name) -> Fut<'_, Result<PathBuf, RoomError>> {
        Box::pin(claims::directory(self.options.home.join(claims::CLAIMS), colony, name))
    }

    fn keep_lent(&self, wanted: Vec<SessionId>) -> Fut<'_, ()> {
        Box::pin(lent::keep(self.options.home.join(lent::LENT), wanted))
    }

    fn returned(&self, session: SessionId) -> Fut<'_, ()> {
        Box::pin(lent::returned(self.options.home.join(lent::LENT), session))
    }

    fn leaks(&self) -> Fut<'_, Vec<Leak>> {
        Box::pin(self.find_leaks())
    }

    fn fix(&self) -> Fut<'_, Vec<Leak>> {
        Box::pin(self.fix_leaks())
    }
}
