//! Makes a lease: each step is recorded, then executed; all are undone if one fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::journal::Record;
use super::{
    Journal, JournalError, Lease, LeaseRequest, Made, MadeTree, Place, Progress, ServiceError,
    Sink, State, Step, TreeEnd, Workspace, is_session,
};
use crate::config::{Config, OnFailure, Phase, Service, Strategy};
use crate::database::short_hash;
use crate::env::file::{self, EnvFileError};
use crate::env::{TemplateError, Values};
use crate::hooks;
use crate::ports::PortsError;
use crate::rooms::reached::Reached;
use crate::services::CommandError;
use crate::services::command::{self, CommandSpec};
use crate::services::confine::{Confined, Confinement};
use crate::services::tree::LEASE_MARK;

/// Why a session got no lease. Its finished steps were undone.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("`{0}` cannot be a session's id: letters, digits, `-` and `_`, at most 64")]
    Session(String),
    #[error("the session {0} is being changed by another call")]
    Busy(String),
    #[error("recording the lease")]
    Journal(#[from] JournalError),
    #[error("this daemon cannot create worktrees")]
    NoTree,
    #[error("making the worktree: {0}")]
    Tree(String),
    #[error("{} is not a directory to work in", .0.display())]
    NotADirectory(PathBuf),
    #[error("making the directory for temporary files {}", path.display())]
    Temp {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the sandbox of the session's programs: {0}")]
    Sandbox(String),
    #[error("leasing ports")]
    Ports(#[source] PortsError),
    #[error("starting `{service}`")]
    Service {
        service: String,
        #[source]
        source: Box<ServiceError>,
    },
    #[error("the variable {name}")]
    Env {
        name: String,
        #[source]
        source: TemplateError,
    },
    #[error("writing the `env_file`")]
    EnvFile(#[source] EnvFileError),
    #[error("the setup")]
    Setup(#[source] CommandError),
    #[error("the setup")]
    SetupWords(#[source] TemplateError),
    #[error("{task} was interrupted: {why}")]
    Task { task: &'static str, why: String },
}

/// The known data of a session while its lease is built.
pub(crate) struct Site<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) journal: Journal,
    pub(crate) session: String,
    pub(crate) name: String,
    pub(crate) project: PathBuf,
    pub(crate) worktree: PathBuf,
    pub(crate) branch: Option<String>,
    pub(crate) base: Option<String>,
    /// Variables that the tree itself needs.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) details: serde_json::Value,
    pub(crate) temp: Option<PathBuf>,
    /// The sandbox of its programs; `None` if they run in none.
    pub(crate) confinement: Option<Confinement>,
    /// Whether `setup` in a sandbox has the host's network.
    pub(crate) setup_network: bool,
    pub(crate) config: &'a Config,
    pub(crate) sink: &'a dyn Sink,
    pub(crate) ports: Mutex<BTreeMap<String, u16>>,
    pub(crate) values: Mutex<Values>,
    pub(crate) logs: Mutex<BTreeMap<String, PathBuf>>,
    pub(crate) warnings: Mutex<Vec<String>>,
}

impl Workspace {
    /// Makes the resources for a session that its project's file requests.
    ///
    /// On failure, all finished steps are undone before this returns, in the order of a teardown.
    /// Steps that could not be undone stay in the journal for [`Workspace::resume`].
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the step.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease stays partly built: call [`Workspace::teardown`].
    pub async fn build(&self, request: LeaseRequest, sink: &dyn Sink) -> Result<Lease, BuildError> {
        self.build_holding(request, None, sink).await
    }

    /// Works as [`Workspace::build`], with a guard that delays the session's next step. If dropped
    /// midway, the guard is held until the journal exists or never will, so that a teardown finds
    /// everything to undo.
    ///
    /// # Errors
    ///
    /// The same as for [`Workspace::build`].
    pub async fn build_holding(
        &self,
        request: LeaseRequest,
        hold: Option<Arc<dyn Send + Sync>>,
        sink: &dyn Sink,
    ) -> Result<Lease, BuildError> {
        if !is_session(&request.session) {
            return Err(BuildError::Session(request.session.chars().take(80).collect()));
        }
        let _busy =
            self.claim(&request.session).ok_or(BuildError::Busy(request.session.clone()))?;
        let dir = self.dir(&request.session);
        let place = match &request.place {
            Place::Directory(path) if path.is_dir() => Some(path.clone()),
            Place::Directory(path) => return Err(BuildError::NotADirectory(path.clone())),
            Place::Tree(_) => None,
        };
        let now = self.options.clock.now();
        let LeaseRequest { session, name, project, .. } = &request;
        let sandbox = request.sandbox.as_ref();
        let opened = State::opened(session, name, project, place.as_deref(), sandbox, now);
        let journal = {
            let dir = dir.clone();
            blocking("opening the journal", move || {
                let created = Journal::create(&dir, &opened);
                drop(hold);
                created
            })
            .await??
        };
        let built = Box::pin(self.build_steps(&request, journal, sink)).await;
        if built.is_err() {
            // A session that never began has no work; but uncommitted changes in the tree, perhaps
            // of a hook, are saved as always.
            let undone = Box::pin(self.undo_all(&request.session, TreeEnd::Park, sink)).await;
            if let Err(err) = undone {
                let text = format!("what was made could not all be undone: {}", chain(&err));
                sink.tell(Progress::Warning { text: &text });
            }
        }
        built
    }

    async fn build_steps(
        &self,
        request: &LeaseRequest,
        journal: Journal,
        sink: &dyn Sink,
    ) -> Result<Lease, BuildError> {
        let tree = self.make_tree(&request.place, &journal, sink).await?;
        let worktree = tree.path.canonicalize().unwrap_or(tree.path);
        let (session, sandbox) = (&request.session, request.sandbox.as_ref());
        let confinement =
            Confinement::of(session, sandbox, &worktree, (&tree.borrowed, tree.bounded));
        let mut site = Site {
            workspace: self,
            journal,
            session: request.session.clone(),
            name: request.name.clone(),
            project: request.project.clone(),
            worktree,
            branch: tree.branch,
            base: tree.base,
            env: tree.env,
            details: tree.details,
            temp: None,
            confinement: confinement.map_err(BuildError::Sandbox)?,
            setup_network: request.setup_network,
            config: &request.config,
            sink,
            ports: Mutex::default(),
            values: Mutex::default(),
            logs: Mutex::default(),
            warnings: Mutex::default(),
        };
        let Config { services, setup, teardown, .. } = &request.config;
        if let Some(confinement) = &site.confinement
            && !(services.is_empty() && setup.is_empty() && teardown.is_empty())
        {
            sink.tell(Progress::Step { what: &confinement.shown() });
        }
        if request.config.isolation.tmp {
            site.temp = Some(site.make_temp()?);
        }
        site.lease_ports().await?;
        site.know_beforehand();
        site.keep_hooks(&request.config)?;

        site.services(Phase::BeforeSetup).await?;
        let mut written = site.write_env_file(None).await?;
        site.setup().await?;
        site.services(Phase::AfterSetup).await?;
        site.complete()?;
        if let Some((step, before)) = written.take() {
            site.write_env_file(Some((step, before))).await?;
        }
        // This is done again, with the data that became known since.
        site.keep_hooks(&request.config)?;
        site.ready().await
    }

    async fn make_tree(
        &self,
        place: &Place,
        journal: &Journal,
        sink: &dyn Sink,
    ) -> Result<MadeTree, BuildError> {
        match place {
            Place::Directory(path) => Ok(MadeTree {
                path: path.clone(),
                branch: None,
                base: None,
                env: BTreeMap::new(),
                borrowed: Vec::new(),
                bounded: false,
                details: serde_json::Value::Null,
            }),
            Place::Tree(intent) => {
                let maker = self.options.tree.as_ref().ok_or(BuildError::NoTree)?;
                sink.tell(Progress::Step { what: "the worktree" });
                let step = journal.intend(&Step::Tree { intent: intent.clone() })?;
                let tree = maker.make(intent, sink).await.map_err(BuildError::Tree)?;
                journal.made(step, Made::Tree { tree: tree.clone() })?;
                Ok(tree)
            }
        }
    }
}

impl Site<'_> {
    pub(crate) fn values(&self) -> Values {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn know(&self, values: &Values) {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).extend(values);
    }

    fn warn(&self, text: String) {
        self.sink.tell(Progress::Warning { text: &text });
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    fn make_temp(&self) -> Result<PathBuf, BuildError> {
        let mark = self.workspace.mark(&self.session);
        let name = format!("ovm-{}", short_hash(&mark, 12));
        let path = self.workspace.options.temp.join(name);
        let step = self.journal.intend(&Step::Temp { path: path.clone() })?;
        let failed = |source| BuildError::Temp { path: path.clone(), source };
        super::undo::remove_temp(&path, &mark).map_err(failed)?;
        {
            use std::os::unix::fs::DirBuilderExt;
            // It must be new: another user's directory of this name is not used.
            std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        }
        std::fs::write(path.join(TEMP_MARK), &mark).map_err(failed)?;
        self.journal.made(step, Made::Known)?;
        Ok(path)
    }

    async fn lease_ports(&self) -> Result<(), BuildError> {
        let mut names = self.config.ports.names.clone();
        for service in &self.config.services {
            names.extend(service.ports().iter().map(|port| format!("{}/{port}", service.name)));
        }
        self.take_ports(names).await.map(drop)
    }

    /// Leases one port for each name.
    pub(crate) async fn take_ports(
        &self,
        names: Vec<String>,
    ) -> Result<BTreeMap<String, u16>, BuildError> {
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let range = self.config.ports.range.clone();
        let step = Step::Ports { names: names.clone(), low: *range.start(), high: *range.end() };
        let step = self.journal.intend(&step)?;
        let (ports, owner) = (self.workspace.ports.clone(), self.workspace.owner(&self.session));
        let taken = blocking("leasing ports", move || ports.take(&names, &range, &owner)).await?;
        let taken = taken.map_err(BuildError::Ports)?;
        self.journal.made(step, Made::Ports { ports: taken.clone() })?;
        let mut all = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(taken.iter().map(|(name, port)| (name.clone(), *port)));
        Ok(taken)
    }

    /// The ports of one service, by name.
    pub(crate) fn ports_of(&self, service: &str) -> BTreeMap<String, u16> {
        let all = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let prefix = format!("{service}/");
        let own = all
            .iter()
            .filter_map(|(name, port)| Some((name.strip_prefix(&prefix)?.to_owned(), *port)));
        own.collect()
    }

    /// The values that templates may refer to before anything runs.
    fn know_beforehand(&self) {
        let mut values = Values::default();
        values.set("session", "id", &self.session);
        values.set("session", "name", &self.name);
        values.set("session", "project", self.project.to_string_lossy());
        values.set("session", "worktree", self.worktree.to_string_lossy());
        values.set("session", "branch", self.branch.clone().unwrap_or_default());
        values.set("session", "base", self.base.clone().unwrap_or_default());
        let temp = self.temp.as_ref().map(|temp| temp.to_string_lossy().into_owned());
        values.set("session", "tmp", temp.unwrap_or_else(|| "/tmp".to_owned()));
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for name in &self.config.ports.names {
            if let Some(port) = ports.get(name) {
                values.set("ports", name, port.to_string());
            }
        }
        for service in &self.config.services {
            if !matches!(service.strategy, Strategy::Process(_) | Strategy::Container(_)) {
                continue;
            }
            values.set(&service.name, "host", "127.0.0.1");
            for (n, name) in service.ports().iter().enumerate() {
                let Some(port) = ports.get(&format!("{}/{name}", service.name)) else { continue };
                values.set(&service.name, name, port.to_string());
                if n == 0 {
                    values.set(&service.name, "port", port.to_string());
                    values.set(&service.name, "url", format!("http://127.0.0.1:{port}"));
                }
            }
        }
        self.know(&values);
    }

    /// The variables of the session that are known so far: its general data, its ports, and those
    /// of `env` whose services have values.
    pub(crate) fn variables(&self, values: &Values) -> Result<Vec<(String, String)>, BuildError> {
        let of_tree = self.env.iter().map(|(name, value)| (name.clone(), value.clone()));
        let mut variables: Vec<(String, String)> = of_tree.collect();
        variables.extend(self.declared(values)?);
        let about = [
            ("OVERMIND_SESSION_ID", self.session.clone()),
            ("OVERMIND_NAME", self.name.clone()),
            ("OVERMIND_PROJECT", self.project.to_string_lossy().into_owned()),
            ("OVERMIND_WORKTREE", self.worktree.to_string_lossy().into_owned()),
            ("OVERMIND_BRANCH", self.branch.clone().unwrap_or_default()),
            ("OVERMIND_BASE", self.base.clone().unwrap_or_default()),
            (LEASE_MARK, self.workspace.mark(&self.session)),
        ];
        variables.extend(about.map(|(name, value)| (name.to_owned(), value)));
        if let Some(temp) = &self.temp {
            variables.push(("TMPDIR".to_owned(), temp.to_string_lossy().into_owned()));
        }
        Ok(variables)
    }

    /// The project's declarations: its ports and its `env`.
    fn declared(&self, values: &Values) -> Result<Vec<(String, String)>, BuildError> {
        let mut variables: Vec<(String, String)> =
            values.fields("ports").map(|(name, port)| (name.to_owned(), port.to_owned())).collect();
        for (name, template) in &self.config.env {
            if !template.is_answered_by(values) {
                continue;
            }
            let value = template
                .render(values)
                .map_err(|source| BuildError::Env { name: name.clone(), source })?;
            variables.push((name.clone(), value));
        }
        Ok(variables)
    }

    /// The whole environment of a session's command.
    pub(crate) fn environment(
        &self,
        values: &Values,
    ) -> Result<BTreeMap<String, String>, BuildError> {
        let mut environment = hooks::inherited(&self.workspace.options.environment);
        environment.extend(self.variables(values)?);
        Ok(environment)
    }

    fn keep_hooks(&self, config: &Config) -> Result<(), BuildError> {
        if config.teardown.is_empty() {
            return Ok(());
        }
        let values = self.values();
        let hooks = config
            .teardown
            .iter()
            .filter_map(|hook| hooks::kept(hook, &self.worktree, &values).ok())
            .collect();
        Ok(self.journal.write(&Record::Hooks { hooks })?)
    }

    /// Starts the services of one phase: each when its dependencies are ready, and others in
    /// parallel.
    async fn services(&self, phase: Phase) -> Result<(), BuildError> {
        let mut waiting: Vec<&Service> =
            self.config.services.iter().filter(|service| service.phase == phase).collect();
        let mut done: BTreeSet<&str> = self
            .config
            .services
            .iter()
            .filter(|service| service.phase < phase)
            .map(|service| service.name.as_str())
            .collect();
        let mut running = FuturesUnordered::new();
        let mut failed = None;
        loop {
            if failed.is_none() {
                let able = |service: &&Service| {
                    service.depends_on.iter().all(|name| done.contains(name.as_str()))
                };
                let (now, later): (Vec<&Service>, Vec<&Service>) =
                    waiting.into_iter().partition(able);
                waiting = later;
                for service in now {
                    self.sink.tell(Progress::Step { what: &service.name });
                    running.push(Box::pin(async move { (service, self.start(service).await) }));
                }
            }
            // Starting services are waited for after a failure too, because a resource that is made
            // during the undo would remain.
            match running.next().await {
                Some((service, Ok(values))) => {
                    self.know(&values);
                    done.insert(&service.name);
                }
                Some((service, Err(source))) => {
                    let (service, source) = (service.name.clone(), Box::new(source));
                    failed.get_or_insert(BuildError::Service { service, source });
                }
                None => break,
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes the file of variables that are known now; again if that differs from `before`.
    async fn write_env_file(
        &self,
        before: Option<(u32, Vec<(String, String)>)>,
    ) -> Result<Option<(u32, Vec<(String, String)>)>, BuildError> {
        let Some(wanted) = &self.config.env_file else { return Ok(None) };
        let variables = self.declared(&self.values())?;
        if let Some((step, written)) = &before
            && *written == variables
        {
            return Ok(Some((*step, variables)));
        }
        let (worktree, relative) = (self.worktree.clone(), wanted.path.clone());
        let path = worktree.join(&relative);
        if self.is_tracked(&relative).await? {
            return Err(BuildError::EnvFile(EnvFileError::Tracked { path }));
        }
        // This comes first: once the file exists, somebody may save the directory's files.
        let left_out = match &self.workspace.options.tree {
            Some(tree) => tree.leave_out(&path, true).await.map_err(BuildError::Tree)?,
            None => false,
        };
        let step = match &before {
            Some((step, _)) => *step,
            None => {
                let tree = worktree.clone();
                let excluded = blocking("looking for the exclude file", move || {
                    if left_out { None } else { file::exclude_file(&tree) }
                });
                self.journal.intend(&Step::EnvFile {
                    worktree: worktree.clone(),
                    relative: relative.clone(),
                    excluded: excluded.await?,
                })?
            }
        };
        let (session, content) = (self.session.clone(), variables.clone());
        let write = blocking("writing the `env_file`", move || {
            file::write(&worktree, &relative, &session, &content)?;
            if left_out { Ok(()) } else { file::exclude(&worktree, &relative).map(drop) }
        });
        write.await?.map_err(BuildError::EnvFile)?;
        self.journal.made(step, Made::Known)?;
        Ok(Some((step, variables)))
    }

    /// Whether the project tracks a file of the worktree.
    pub(crate) async fn is_tracked(&self, relative: &Path) -> Result<bool, BuildError> {
        let path = self.worktree.join(relative);
        if let Some(tree) = &self.workspace.options.tree
            && let Some(tracked) = tree.is_tracked(&path).await.map_err(BuildError::Tree)?
        {
            return Ok(tracked);
        }
        // The directory is no worktree of ours, so its own git is asked.
        let (tree, relative) = (self.worktree.clone(), relative.to_owned());
        blocking("asking git", move || file::is_tracked(&tree, &relative)).await
    }

    async fn setup(&self) -> Result<(), BuildError> {
        for (n, hook) in self.config.setup.iter().enumerate() {
            self.sink.tell(Progress::Step { what: &hook.name });
            let values = self.values();
            let mark = self.workspace.process_id(&self.session, &format!("setup-{n}"));
            let confined = self.prepares(format!("setup: {}", hook.name), &[]);
            let step = Step::Hook { name: hook.name.clone(), mark: mark.clone() };
            let step = self.journal.intend(&step)?;
            let spec = CommandSpec {
                label: hook.name.clone(),
                argv: hooks::words(&hook.command, &values).map_err(BuildError::SetupWords)?,
                env: self.environment(&values)?,
                cwd: self.beneath(hook.cwd.as_deref()),
                timeout: hook.timeout,
                cgroup: self.workspace.group_of(&mark, confined.as_ref()),
                mark,
                confined,
                encloses: self.workspace.options.encloses.clone(),
            };
            match command::run(&spec, self.sink, &*self.workspace.options.clock).await {
                Ok(()) => {}
                Err(err) => match hook.on_failure {
                    OnFailure::Block => return Err(BuildError::Setup(err)),
                    OnFailure::Warn => self.warn(format!("setup: {err}")),
                },
            }
            self.journal.made(step, Made::Known)?;
        }
        Ok(())
    }

    /// The sandbox of a command, if it has one.
    pub(crate) fn confined(
        &self,
        which: impl FnOnce(&Confinement) -> Confined,
    ) -> Option<Confined> {
        self.confinement.as_ref().map(which)
    }

    /// The sandbox of `setup` and of template commands: it reaches the session's services, and
    /// `own` whatever the network is; the host's whole network if that was granted.
    pub(crate) fn prepares(&self, of: String, own: &[u16]) -> Option<Confined> {
        self.confined(|all| {
            let confined = match self.setup_network {
                true => all.granted(),
                false => all.look(own, &self.reached()),
            };
            confined.of(of)
        })
    }

    /// Ports on this machine's loopback at which services and databases of the session listen, as
    /// far as known.
    pub(crate) fn reached(&self) -> Vec<u16> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Reached::of(&ports, &self.values()).ports
    }

    /// A directory of the worktree.
    pub(crate) fn beneath(&self, relative: Option<&Path>) -> PathBuf {
        relative.map_or_else(|| self.worktree.clone(), |path| self.worktree.join(path))
    }

    /// Checks that every variable is known by now.
    fn complete(&self) -> Result<(), BuildError> {
        let values = self.values();
        for (name, template) in &self.config.env {
            template
                .render(&values)
                .map_err(|source| BuildError::Env { name: name.clone(), source })?;
        }
        Ok(())
    }

    async fn ready(self) -> Result<Lease, BuildError> {
        let values = self.values();
        let env: BTreeMap<String, String> = self.variables(&values)?.into_iter().collect();
        let record = Record::Ready {
            at: self.workspace.options.clock.now(),
            env: env.clone(),
            values: values.all().clone(),
            logs: self.logs.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            warnings: self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        let journal = self.journal.clone();
        blocking("writing the journal", move || journal.write(&record)).await??;
        overmind_core::failpoint::point("workspace.ready");
        let into = |mutex: Mutex<_>| mutex.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Lease {
            session: self.session,
            name: self.name,
            project: self.project,
            worktree: self.worktree,
            branch: self.branch,
            base: self.base,
            env,
            ports: self.ports.into_inner().unwrap_or_else(PoisonError::into_inner),
            values,
            logs: into(self.logs),
            warnings: self.warnings.into_inner().unwrap_or_else(PoisonError::into_inner),
            details: self.details,
        })
    }
}

/// The file in a session's temporary directory that names its owner.
pub(crate) const TEMP_MARK: &str = ".overmind-lease";

/// Runs blocking work on a thread where that is allowed.
pub(crate) async fn blocking<T: Send + 'static>(
    task: &'static str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BuildError> {
    let done = tokio::task::spawn_blocking(run).await;
    done.map_err(|err| BuildError::Task { task, why: err.to_string() })
}

/// Joins an error and its causes on one line.
pub(crate) fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        // Some libraries already include their cause.
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}
