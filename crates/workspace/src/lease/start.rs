//! Starts one service, by its strategy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use overmind_core::enclosure::Network;

mod granted;

use super::build::{Site, blocking};
use super::{BuildError, JournalError, Made, Step, search_path, which};
use crate::config::{
    ComposeService, ContainerService, DatabaseService, DatabaseTemplate, PostgresService,
    ProcessService, Ready, ReadyCheck, Restart, RestartPolicy, Server, Service, SqliteService,
    Strategy,
};
use crate::copy;
use crate::database::postgres::{self, Names, PostgresServer, TemplateNames};
use crate::database::redis::{INDEXES, RedisServer};
use crate::database::{
    ClusterError, PostgresError, RedisError, SqliteError, TemplateFilesError, password, short_hash,
    sqlite, template,
};
use crate::env::{TemplateError, Values};
use crate::hooks;
use crate::owner;
use crate::ports::RegistryError;
use crate::services::command::{self, CommandSpec};
use crate::services::compose::{self, ComposePlan, SEALED, judge};
use crate::services::confine::Confined;
use crate::services::container::{ContainerPlan, ContainerRun, Engine};
use crate::services::ready::{self, Looked};
use crate::services::runner::{ProcessSpec, ProcessState, RunnerError};
use crate::services::tree::LEASE_MARK;
use crate::services::{CommandError, ComposeError, ContainerError, ReadyError};

/// Why a service did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("recording the lease")]
    Journal(#[from] JournalError),
    #[error("the variables and arguments of the service")]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Build(Box<BuildError>),
    #[error(transparent)]
    Runner(#[from] RunnerError),
    #[error(transparent)]
    Ready(#[from] ReadyError),
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error(transparent)]
    Compose(#[from] ComposeError),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error(transparent)]
    Sqlite(#[from] SqliteError),
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error(transparent)]
    TemplateFiles(#[from] TemplateFilesError),
    #[error("leasing an index")]
    Registry(#[from] RegistryError),
    #[error("the variable {0} with the server's URL is not set in the daemon's environment")]
    NoUrl(String),
    #[error(
        "`server` names {address}, which is not granted to runs in a sandbox: an admin adds it to \
         `rooms.servers` of the server's configuration, or gives a URL by `url_env`"
    )]
    NotGranted { address: String },
    #[error("an embedded Redis needs `redis-server` or `valkey-server`, and neither is installed")]
    NoRedis,
    #[error(
        "with `sandbox.run_as` an embedded Redis keeps its files in the session's temporary \
         directory, and `isolation.tmp` is false"
    )]
    RedisPlace,
    #[error("the engine published port {inside} at {found:?} and not at {wanted}")]
    Published { inside: u16, wanted: u16, found: Option<u16> },
    #[error("{} leads out of the worktree", .0.display())]
    Outside(PathBuf),
    #[error("{} {why}", path.display())]
    Refused { path: PathBuf, why: String },
    #[error("writing {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl From<BuildError> for ServiceError {
    fn from(err: BuildError) -> Self {
        Self::Build(Box::new(err))
    }
}

impl Site<'_> {
    /// Starts the service and waits until it is ready; returns its values.
    pub(super) async fn start(&self, service: &Service) -> Result<Values, ServiceError> {
        match &service.strategy {
            Strategy::Process(process) => self.process(service, process).await,
            Strategy::Container(container) => Box::pin(self.container(service, container)).await,
            Strategy::Database(DatabaseService::Postgres(database)) => {
                Box::pin(self.postgres(service, database)).await
            }
            Strategy::Database(DatabaseService::Sqlite(database)) => {
                self.sqlite(service, database).await
            }
            Strategy::Database(DatabaseService::Redis { server: Server::Embedded }) => {
                self.redis_server(service).await
            }
            Strategy::Database(DatabaseService::Redis { server }) => {
                let url = self.url_of(server)?;
                self.granted(server, &[RedisServer::parse(&url)?.address()])?;
                self.redis_index(service, url).await
            }
            Strategy::Compose(compose) => Box::pin(self.compose(service, compose)).await,
        }
    }

    /// The environment of a service: the session's, its own variables, and its first port.
    fn service_env(
        &self,
        service: &Service,
        values: &Values,
    ) -> Result<BTreeMap<String, String>, ServiceError> {
        let mut env = self.environment(values)?;
        if let Some(port) = values.get(&service.name, "port") {
            env.insert("PORT".to_owned(), port.to_owned());
        }
        let seen = values.seen_by(&service.name);
        for (name, template) in &service.env {
            env.insert(name.clone(), template.render(&seen)?);
        }
        Ok(env)
    }

    async fn process(
        &self,
        service: &Service,
        process: &ProcessService,
    ) -> Result<Values, ServiceError> {
        let values = self.values();
        let seen = values.seen_by(&service.name);
        let argv = hooks::words(&process.command, &seen)?;
        let env = self.service_env(service, &values)?;
        let cwd = self.beneath(process.cwd.as_deref());
        let ready = service.ready.clone();
        let own: Vec<u16> = self.ports_of(&service.name).into_values().collect();
        let confined = self.confinement.as_ref();
        let confined = confined.map(|all| all.service(&own, &self.reached()));
        self.run(service, argv, env, cwd, confined, process.restart, process.grace, &ready).await?;
        Ok(Values::default())
    }

    /// Starts a process and waits until it is ready.
    #[expect(clippy::too_many_arguments, reason = "what a process is, said once")]
    async fn run(
        &self,
        service: &Service,
        argv: Vec<String>,
        env: BTreeMap<String, String>,
        cwd: PathBuf,
        confined: Option<Confined>,
        restart: Restart,
        grace: Duration,
        ready: &Ready,
    ) -> Result<(), ServiceError> {
        let id = self.workspace.process_id(&self.session, &service.name);
        let log = self.journal.dir().join(format!("{}.log", service.name));
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let step = Step::Process { service: service.name.clone(), id: id.clone(), grace_ms };
        let step = self.journal.intend(&step)?;
        let ports = self.ports_of(&service.name);
        let command = match &ready.check {
            ReadyCheck::Command(line) => {
                let seen = self.values().seen_by(&service.name);
                let own: Vec<u16> = ports.values().copied().collect();
                let (confined, mark) = (self.looks(&service.name, &own), format!("{id}.ready"));
                Some(CommandSpec {
                    cgroup: self.workspace.group_of(&mark, confined.as_ref()),
                    confined,
                    encloses: self.workspace.options.encloses.clone().once(),
                    label: format!("ready check of {}", service.name),
                    argv: hooks::words(line, &seen)?,
                    env: env.clone(),
                    cwd: self.worktree.clone(),
                    timeout: Duration::from_secs(5),
                    mark,
                })
            }
            ReadyCheck::Started
            | ReadyCheck::Tcp { .. }
            | ReadyCheck::Http { .. }
            | ReadyCheck::Log(_) => None,
        };
        let confined = confined.map(|one| one.of(format!("service {}", service.name)));
        // In that case the sandbox itself accepts connections, whichever program is inside.
        let through_proxy = confined.as_ref().is_some_and(|one| one.network != Network::Host);
        let log_file = log.clone();
        let spec = ProcessSpec { id: id.clone(), argv, env, cwd, log: log_file, restart, confined };
        let runner = &self.workspace.options.runner;
        let handle = runner.start(spec.clone()).await?;
        self.journal.made(step, Made::Process { spec: Box::new(spec), handle })?;
        self.log_of(&service.name, &log);
        let ended = || match runner.state(&id) {
            ProcessState::Ended { status } => Some(status),
            ProcessState::Running { .. }
            | ProcessState::Restarting { .. }
            | ProcessState::Unknown => None,
        };
        let looked = Looked {
            service: &service.name,
            ports: &ports,
            log: Some(&log),
            command,
            through_proxy,
            ended: &ended,
        };
        ready::wait(ready, &looked, &*self.workspace.options.clock).await?;
        Ok(())
    }

    /// The sandbox of the ready check of a service with these ports, if it has one.
    fn looks(&self, service: &str, own: &[u16]) -> Option<Confined> {
        let of = format!("ready check of {service}");
        self.confined(|all| all.look(own, &self.reached()).of(of))
    }

    fn log_of(&self, service: &str, log: &Path) {
        let mut logs = self.logs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        logs.insert(service.to_owned(), log.to_owned());
    }

    async fn container(
        &self,
        service: &Service,
        container: &ContainerService,
    ) -> Result<Values, ServiceError> {
        let socket = self.workspace.options.docker.clone();
        let socket = socket
            .ok_or_else(|| ContainerError::NotConfigured { service: service.name.clone() })?;
        let engine = Engine::connect(&socket, &service.name).await?;
        let short = short_hash(&self.workspace.mark(&self.session), 12);
        let name = format!("ovm-{short}-{}", service.name);
        let plan = ContainerPlan {
            home: self.workspace.home_id.clone(),
            session: self.session.clone(),
            service: service.name.clone(),
            network: format!("ovm-{short}"),
            container: name.clone(),
            volumes: container
                .volumes
                .iter()
                .enumerate()
                .map(|(n, path)| (format!("{name}-{n}"), path.clone()))
                .collect(),
            grace_secs: container.grace.as_secs(),
        };
        let values = self.values();
        let seen = values.seen_by(&service.name);
        let mut env = BTreeMap::new();
        for (name, template) in &service.env {
            env.insert(name.clone(), template.render(&seen)?);
        }
        let command = container.command.as_ref().map(|words| {
            words.iter().map(|word| word.render(&seen)).collect::<Result<Vec<_>, _>>()
        });
        let ports = self.ports_of(&service.name);
        let run = ContainerRun {
            image: container.image.clone(),
            pull: container.pull,
            command: command.transpose()?,
            entrypoint: container.entrypoint.clone(),
            user: container.user.clone(),
            env,
            ports: container
                .ports
                .iter()
                .filter_map(|(name, inside)| Some((*inside, *ports.get(name)?)))
                .collect(),
            mounts: self.mounts(service, container)?,
            memory_bytes: container.memory_bytes,
            cpu_millis: container.cpu_millis,
        };
        let step = {
            // The first service of the session creates the network.
            let _alone = self.workspace.network.lock().await;
            let network = Step::Network { name: plan.network.clone() };
            let step = self.journal.intend(&network)?;
            engine.network(&plan).await?;
            self.journal.made(step, Made::Known)?;
            self.journal.intend(&Step::Container { plan: plan.clone() })?
        };
        engine.make(&plan, &run, self.sink).await?;
        for (inside, wanted) in &run.ports {
            // A container that has ended has none, which the ready check reports better.
            let found = engine.published(&plan, *inside).await?;
            if found.is_some_and(|found| found != *wanted) {
                return Err(ServiceError::Published { inside: *inside, wanted: *wanted, found });
            }
        }
        self.journal.made(step, Made::Known)?;
        self.container_ready(service, &engine, &plan, &ports).await?;
        Ok(Values::default())
    }

    async fn container_ready(
        &self,
        service: &Service,
        engine: &Engine,
        plan: &ContainerPlan,
        ports: &BTreeMap<String, u16>,
    ) -> Result<(), ServiceError> {
        let clock = &*self.workspace.options.clock;
        let command = match &service.ready.check {
            ReadyCheck::Command(line) => {
                let values = self.values();
                let own: Vec<u16> = ports.values().copied().collect();
                let confined = self.looks(&service.name, &own);
                let mark = self.workspace.process_id(&self.session, &service.name);
                Some(CommandSpec {
                    cgroup: self.workspace.group_of(&mark, confined.as_ref()),
                    confined,
                    encloses: self.workspace.options.encloses.clone().once(),
                    label: format!("ready check of {}", service.name),
                    argv: hooks::words(line, &values.seen_by(&service.name))?,
                    env: self.service_env(service, &values)?,
                    cwd: self.worktree.clone(),
                    timeout: Duration::from_secs(5),
                    mark,
                })
            }
            ReadyCheck::Started
            | ReadyCheck::Tcp { .. }
            | ReadyCheck::Http { .. }
            | ReadyCheck::Log(_) => None,
        };
        let log = self.journal.dir().join(format!("{}.log", service.name));
        let wants_log = matches!(service.ready.check, ReadyCheck::Log(_));
        let looked = Looked {
            service: &service.name,
            ports,
            log: wants_log.then_some(log.as_path()),
            command,
            // The engine's proxy accepts connections before the program inside does.
            through_proxy: true,
            ended: &|| None,
        };
        let watch = async {
            loop {
                if let Some(status) = engine.ended(&plan.container).await {
                    return status;
                }
                if wants_log {
                    let _ = std::fs::write(&log, engine.tail(&plan.container).await.join("\n"));
                }
                clock.sleep_until(clock.now().after(Duration::from_millis(100))).await;
            }
        };
        tokio::select! {
            ready = ready::wait(&service.ready, &looked, clock) => match ready {
                Err(ReadyError::TooLong { service, timeout, last, .. }) => {
                    let tail = engine.tail(&plan.container).await;
                    Err(ReadyError::TooLong { service, timeout, last, tail }.into())
                }
                other => Ok(other?),
            },
            status = watch => {
                let tail = engine.tail(&plan.container).await;
                Err(ReadyError::Ended { service: service.name.clone(), status, tail }.into())
            }
        }
    }

    async fn compose(
        &self,
        service: &Service,
        config: &ComposeService,
    ) -> Result<Values, ServiceError> {
        let compose = self.workspace.compose().ok_or_else(|| ComposeError::Missing {
            service: service.name.clone(),
            why: "there is no program `docker`".to_owned(),
        })?;
        compose.check(&service.name).await?;
        let short = short_hash(&self.workspace.mark(&self.session), 12);
        let plan = ComposePlan {
            service: service.name.clone(),
            project: format!("ovm-{short}-{}", service.name.to_ascii_lowercase()),
            file: self.compose_file(&config.file).await?,
            ports_file: self.journal.dir().join(format!("{}.compose.{SEALED}", service.name)),
            profiles: config.profiles.clone(),
            services: config.services.clone(),
        };
        let env = self.service_env(service, &self.values())?;
        let config = self.compose_config(&compose, &plan, &env).await?;
        let published = compose::ports(&plan, &config)?;
        let names: Vec<String> =
            published.iter().map(|port| format!("{}/{}", service.name, port.field())).collect();
        let leased = self.take_ports(names.clone()).await?;
        let ports: Vec<_> = published
            .into_iter()
            .zip(names)
            .filter_map(|(port, name)| Some((port, *leased.get(&name)?)))
            .collect();
        let sealed = judge::sealed(config, &ports).to_string();
        std::fs::write(&plan.ports_file, sealed)
            .map_err(|source| ServiceError::File { path: plan.ports_file.clone(), source })?;
        let step = self.journal.intend(&Step::Compose { plan: plan.clone() })?;
        let mark = self.workspace.process_id(&self.session, &service.name);
        // The configuration is complete: variables of the session do not affect it any more.
        let mut up_env = compose.env.clone();
        up_env.extend(env.into_iter().filter(|(name, _)| name == LEASE_MARK));
        let spec = CommandSpec {
            label: format!("docker compose up ({})", service.name),
            argv: compose.up(&plan, service.ready.timeout),
            env: up_env,
            cwd: self.journal.dir().to_owned(),
            timeout: service.ready.timeout + Duration::from_secs(600),
            cgroup: self.workspace.group_of(&mark, None),
            mark,
            // The engine's own program needs no sandbox.
            confined: None,
            encloses: self.workspace.options.encloses.clone(),
        };
        command::run(&spec, self.sink, &*self.workspace.options.clock).await?;
        self.journal.made(step, Made::Known)?;
        let mut values = Values::default();
        values.set(&service.name, "host", "127.0.0.1");
        values.set(&service.name, "project", &plan.project);
        for (port, outside) in &ports {
            values.set(&service.name, &port.field(), outside.to_string());
        }
        Ok(values)
    }

    /// The URL that a project names, or the value of a variable of the daemon.
    fn url_of(&self, server: &Server) -> Result<String, ServiceError> {
        match server {
            Server::Embedded => Ok(String::new()),
            Server::Url(url) => Ok(url.clone()),
            Server::UrlFrom(name) => {
                let found = self.workspace.options.secrets.get(name).cloned();
                found.ok_or_else(|| ServiceError::NoUrl(name.clone()))
            }
        }
    }

    async fn postgres(
        &self,
        service: &Service,
        config: &PostgresService,
    ) -> Result<Values, ServiceError> {
        let (url, server) = match &config.server {
            Server::Embedded => (None, self.workspace.cluster.ensure().await?),
            Server::Url(_) | Server::UrlFrom(_) => {
                let url = self.url_of(&config.server)?;
                let server = PostgresServer::parse(&url)?;
                self.granted(&config.server, &server.addresses())?;
                (Some(url), server)
            }
        };
        let template = match &config.template {
            Some(template) => {
                Some(self.postgres_template(service, config, template, &server).await?)
            }
            None => None,
        };
        let names = Names::of(&self.workspace.home_id, &self.session, &service.name);
        let intent = Step::Postgres { service: service.name.clone(), url, names: names.clone() };
        let step = self.journal.intend(&intent)?;
        let password = password();
        server.create(&names, &password, &config.extensions, template.as_ref()).await?;
        self.journal.made(step, Made::Known)?;
        Ok(postgres_values(&service.name, &server, &names.database, &names.role, &password))
    }

    /// Makes sure that there is an up-to-date template.
    async fn postgres_template(
        &self,
        service: &Service,
        config: &PostgresService,
        template: &DatabaseTemplate,
        server: &PostgresServer,
    ) -> Result<TemplateNames, ServiceError> {
        let more = format!("postgres {} {}", server.version().await?, config.extensions.join(","));
        let (worktree, wanted) = (self.worktree.clone(), template.clone());
        let key = blocking("reading the template's files", move || {
            template::key(&worktree, &wanted, &more)
        });
        let key = key.await??;
        let names = TemplateNames::of(&self.workspace.home_id, &self.project, &service.name, &key);
        if server.has_template(&names).await? {
            return Ok(names);
        }
        let password = password();
        let Some(draft) = server.draft(&names, &password, &config.extensions).await? else {
            return Ok(names);
        };
        let filled = async {
            for (script, text) in self.scripts(template).await? {
                draft.script(&script, &text).await?;
            }
            let own =
                postgres_values(&service.name, server, &names.draft(), &names.name, &password);
            self.fill(service, template, &own).await
        };
        match filled.await {
            Ok(()) => draft.finish().await?,
            Err(err) => {
                if let Err(left) = draft.abandon().await {
                    tracing::warn!(%left, "a template that was not finished stays for now");
                }
                return Err(err);
            }
        }
        Ok(names)
    }

    /// Runs a template's command with the draft in place of the database.
    async fn fill(
        &self,
        service: &Service,
        template: &DatabaseTemplate,
        own: &Values,
    ) -> Result<(), ServiceError> {
        let Some(command) = &template.command else { return Ok(()) };
        let mut values = self.values();
        values.extend(own);
        let mut env = self.environment(&values)?;
        let field = |name: &str| own.get(&service.name, name).map(ToOwned::to_owned);
        for (variable, value) in [
            ("PGHOST", field("host")),
            ("PGPORT", field("port")),
            ("PGDATABASE", field("name")),
            ("PGUSER", field("user")),
            ("PGPASSWORD", field("password")),
            ("OVERMIND_DATABASE_URL", field("url")),
            ("OVERMIND_DATABASE_FILE", field("file")),
        ] {
            env.extend(value.map(|value| (variable.to_owned(), value)));
        }
        let mark = self.workspace.process_id(&self.session, &format!("{}-template", service.name));
        let label = format!("template of {}", service.name);
        let step = Step::Hook { name: label.clone(), mark: mark.clone() };
        let step = self.journal.intend(&step)?;
        let port = own.get(&service.name, "port").and_then(|port| port.parse().ok());
        let confined = self.prepares(label.clone(), port.as_slice());
        let spec = CommandSpec {
            cgroup: self.workspace.group_of(&mark, confined.as_ref()),
            confined,
            encloses: self.workspace.options.encloses.clone(),
            label,
            argv: hooks::words(command, &values.seen_by(&service.name))?,
            env,
            cwd: self.worktree.clone(),
            timeout: template.timeout,
            mark,
        };
        command::run(&spec, self.sink, &*self.workspace.options.clock).await?;
        self.journal.made(step, Made::Known)?;
        Ok(())
    }

    async fn sqlite(
        &self,
        service: &Service,
        config: &SqliteService,
    ) -> Result<Values, ServiceError> {
        let file = self.worktree.join(&config.file);
        let (tree, relative) = (self.worktree.clone(), config.file.clone());
        if self.is_tracked(&relative).await? {
            return Err(SqliteError::Tracked { path: file }.into());
        }
        let outside = blocking("looking where it leads", move || {
            let parent = tree.join(&relative);
            // The deepest existing directory must be in the worktree.
            let there = parent.ancestors().skip(1).find_map(|path| path.canonicalize().ok());
            !there.is_some_and(|there| there.starts_with(&tree))
        });
        let outside = outside.await?;
        if outside {
            return Err(ServiceError::Outside(file));
        }
        let source = match &config.source {
            Some(source) => self.source(source).await?,
            None => None,
        };
        let intent = Step::Sqlite { service: service.name.clone(), file: file.clone() };
        let step = self.journal.intend(&intent)?;
        let template = match &config.template {
            Some(template) => {
                Some(self.sqlite_template(service, template, source.as_deref(), &file).await?)
            }
            None => None,
        };
        let to = file.clone();
        let made = blocking("copying the database", move || match template.or(source) {
            Some(from) => sqlite::copy(&from, &to),
            None => sqlite::remove(&to).and_then(|()| sqlite::create(&to, &[])),
        });
        made.await??;
        self.give(&file)?;
        self.journal.made(step, Made::Known)?;
        Ok(sqlite_values(&service.name, &file))
    }

    /// Gives a file that was made in the worktree to the worktree's owner.
    fn give(&self, path: &Path) -> Result<(), ServiceError> {
        owner::give(&self.worktree, path)
            .map_err(|source| ServiceError::File { path: path.to_owned(), source })
    }

    async fn sqlite_template(
        &self,
        service: &Service,
        template: &DatabaseTemplate,
        source: Option<&Path>,
        own: &Path,
    ) -> Result<PathBuf, ServiceError> {
        let (worktree, wanted) = (self.worktree.clone(), template.clone());
        let mut more = format!("sqlite {} {}", self.project.display(), service.name);
        if let Some(source) = source {
            // A copy of another state of the source is another template.
            let when = std::fs::metadata(source).and_then(|found| found.modified());
            more.push_str(&format!(" {} {when:?}", source.display()));
        }
        let key = blocking("reading the template's files", move || {
            template::key(&worktree, &wanted, &more)
        });
        let key = key.await??;
        let dir = self.workspace.options.home.join("templates");
        let path = dir.join(format!("{key}.sqlite3"));
        let file = |source| ServiceError::File { path: path.clone(), source };
        std::fs::create_dir_all(&dir).map_err(file)?;
        let lock = std::fs::File::create(dir.join(format!("{key}.lock"))).map_err(file)?;
        let clock = &self.workspace.options.clock;
        while lock.try_lock().is_err() {
            clock.sleep_until(clock.now().after(Duration::from_millis(20))).await;
        }
        if path.exists() {
            return Ok(path);
        }
        // A sandbox shows none of our files, so the template is filled at the path of the session's
        // own.
        let draft = match (&self.confinement, &template.command) {
            (Some(_), Some(_)) => own.to_owned(),
            (None, _) | (_, None) => dir.join(format!("{key}.new")),
        };
        let scripts = self.scripts(template).await?;
        let (from, to) = (source.map(Path::to_owned), draft.clone());
        let begun = blocking("making the template", move || {
            sqlite::remove(&to)?;
            match from {
                Some(from) => sqlite::copy(&from, &to),
                None => sqlite::create(&to, &scripts),
            }
        });
        begun.await??;
        self.give(&draft)?;
        self.fill(service, template, &sqlite_values(&service.name, &draft)).await?;
        // It is copied with SQLite again, to include a log that the command left beside the file.
        let (from, to) = (draft.clone(), path.clone());
        let finished = blocking("finishing the template", move || {
            sqlite::copy(&from, &to)?;
            sqlite::remove(&from)
        });
        finished.await??;
        Ok(path)
    }

    async fn redis_index(&self, service: &Service, url: String) -> Result<Values, ServiceError> {
        let server = RedisServer::parse(&url)?;
        let intent = Step::RedisIndex { service: service.name.clone(), url };
        let step = self.journal.intend(&intent)?;
        let registry = self.workspace.registry.clone();
        let owner = self.workspace.owner(&self.session);
        let asked = server.clone();
        let index = blocking("leasing an index", move || {
            asked.ping()?;
            let family = asked.family();
            // An index with keys belongs to another program.
            let empty = |index| asked.keys(index).is_ok_and(|keys| keys == 0);
            let taken = registry.take(&family, INDEXES, &owner, empty)?;
            taken.ok_or_else(|| ServiceError::Redis(asked.none_free()))
        });
        let index = index.await??;
        self.journal.made(step, Made::RedisIndex { index })?;
        let mut values = Values::default();
        values.set(&service.name, "host", &server.host);
        values.set(&service.name, "port", server.port.to_string());
        values.set(&service.name, "index", index.to_string());
        values.set(&service.name, "url", server.url(index));
        Ok(values)
    }

    async fn redis_server(&self, service: &Service) -> Result<Values, ServiceError> {
        let search = search_path(&self.workspace.options.environment);
        let program =
            ["redis-server", "valkey-server"].iter().find_map(|name| which(&search, name));
        let program = program.ok_or(ServiceError::NoRedis)?;
        let port = self.ports_of(&service.name).get("port").copied().unwrap_or_default();
        let password = password();
        // The directory contains nothing else: in a sandbox the server sees only this.
        let name = format!("{}.redis", service.name);
        let user = self.confinement.as_ref().and(self.workspace.options.user);
        let dir = match (user, &self.temp) {
            (None, _) => self.journal.dir().join(name),
            // Another user cannot enter the data directory. This one is removed with the session's
            // temporary files.
            (Some(_), Some(temp)) => {
                let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
                std::fs::set_permissions(temp, open)
                    .map_err(|source| ServiceError::File { path: temp.clone(), source })?;
                temp.join(name)
            }
            (Some(_), None) => return Err(ServiceError::RedisPlace),
        };
        let config = dir.join("redis.conf");
        std::fs::create_dir_all(&dir)
            .map_err(|source| ServiceError::File { path: dir.clone(), source })?;
        let text = format!(
            "bind 127.0.0.1\nport {port}\ndaemonize no\nsave \"\"\nappendonly no\nrequirepass \
             {password}\ndir {}\n",
            serde_json::Value::from(dir.to_string_lossy())
        );
        std::fs::write(&config, text)
            .map_err(|source| ServiceError::File { path: config.clone(), source })?;
        if let Some(user) = user {
            copy::give_to(&dir, user.uid, user.gid)
                .map_err(|source| ServiceError::File { path: dir.clone(), source })?;
        }
        let argv =
            vec![program.to_string_lossy().into_owned(), config.to_string_lossy().into_owned()];
        let values = self.values();
        let env = self.service_env(service, &values)?;
        let restart = Restart { policy: RestartPolicy::OnFailure, backoff_ms: 200, max: 5 };
        let ready = Ready {
            check: ReadyCheck::Tcp { port: "port".to_owned() },
            timeout: Duration::from_secs(30),
            interval: Duration::from_millis(50),
        };
        let confined = self.confinement.as_ref().map(|all| Confined {
            workspace: dir.clone(),
            read: Vec::new(),
            ..all.service(&[port], &[])
        });
        let grace = Duration::from_secs(5);
        self.run(service, argv, env, dir, confined, restart, grace, &ready).await?;
        let url = format!("redis://:{password}@127.0.0.1:{port}/0");
        let server = RedisServer::parse(&url)?;
        blocking("asking Redis", move || server.ping()).await??;
        let mut values = Values::default();
        values.set(&service.name, "host", "127.0.0.1");
        values.set(&service.name, "port", port.to_string());
        values.set(&service.name, "index", "0");
        values.set(&service.name, "url", url);
        Ok(values)
    }
}

fn postgres_values(
    service: &str,
    server: &PostgresServer,
    database: &str,
    user: &str,
    password: &str,
) -> Values {
    let (host, port) = (server.host(), server.port());
    let mut values = Values::default();
    values.set(service, "url", postgres::url(user, password, &host, port, database));
    values.set(service, "host", host);
    values.set(service, "port", port.to_string());
    values.set(service, "name", database);
    values.set(service, "user", user);
    values.set(service, "password", password);
    values
}

fn sqlite_values(service: &str, file: &Path) -> Values {
    let mut values = Values::default();
    values.set(service, "file", file.to_string_lossy());
    values.set(service, "url", format!("sqlite://{}", file.display()));
    values
}
