//! Finds resources of ended sessions, reports them, and removes those that are certainly ours.
//!
//! Each kind of resource is searched at its own place, not only in the journal: processes by the
//! mark in their environment, ports in the registry, containers by label, databases by comment,
//! directories by their own mark. A resource is certainly ours if it contains this data directory's
//! id. Resources that only look like ours are reported and never changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::database::postgres::PostgresServer;
use crate::lease::{LeasePhase, State, Step, Workspace, chain, is_session};
use crate::ports::registry::Owner;
use crate::services::cgroup::Cgroups;
use crate::services::container::{Engine, Ours};
use crate::services::tree::{self, Belongs, LEASE_MARK, PROCESS_MARK};

/// The kind of a remaining resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakKind {
    Process,
    Cgroup,
    Port,
    Container,
    Volume,
    Network,
    Database,
    Role,
    RedisIndex,
    Server,
    Lease,
    Worktree,
    Branch,
    Mount,
    Socket,
    TempFiles,
    Disk,
    /// The place could not be searched, so nothing is known about it.
    Unchecked,
}

/// One remaining resource.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    pub kind: LeakKind,
    /// Its name: the number of a process or port, a path, a database.
    pub what: String,
    /// The session that it belonged to, if it contains that.
    pub session: Option<String>,
    /// A hint for the user.
    pub how: String,
    /// Whether [`Workspace::fix`] may remove it.
    pub fixable: bool,
    /// Its size, if that is known.
    pub bytes: Option<u64>,
}

/// Why a finding was not removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FixError {
    #[error("{what} may not belong to Overmind: {how}")]
    NotOurs { what: String, how: String },
    #[error("removing {what}: {why}")]
    Failed { what: String, why: String },
}

impl Finding {
    fn new(kind: LeakKind, what: impl Into<String>, session: &str, how: impl Into<String>) -> Self {
        let session = (!session.is_empty()).then(|| session.to_owned());
        Self { kind, what: what.into(), session, how: how.into(), fixable: true, bytes: None }
    }

    fn unchecked(what: impl Into<String>, how: impl Into<String>) -> Self {
        Self { fixable: false, ..Self::new(LeakKind::Unchecked, what, "", how) }
    }
}

const FIX: &str = "run `overmind doctor --fix`";

impl Workspace {
    /// Searches for all resources that belong to no running lease of this data directory.
    ///
    /// A partly ended lease counts as running here, and is reported as a finding of its own.
    pub async fn leaks(&self) -> Vec<Finding> {
        let mut live: BTreeSet<String> = BTreeSet::new();
        let mut found = Vec::new();
        for (session, phase) in self.lease_directories() {
            match phase {
                Some(LeasePhase::Ready | LeasePhase::Building) => {}
                Some(LeasePhase::Ending) => found.push(Finding::new(
                    LeakKind::Lease,
                    self.dir(&session).display().to_string(),
                    &session,
                    "its teardown was cut off: restart the daemon, or end the session again",
                )),
                None => found.push(Finding {
                    fixable: false,
                    ..Finding::new(
                        LeakKind::Lease,
                        self.dir(&session).display().to_string(),
                        &session,
                        "its journal cannot be read: look at it, then remove the directory",
                    )
                }),
            }
            live.insert(session);
        }
        found.extend(self.processes(&live));
        found.extend(self.cgroups(&live));
        found.extend(self.leased_numbers(&live));
        found.extend(self.docker_objects(&live).await);
        found.extend(self.databases(&live).await);
        found.extend(self.temp_directories(&live));
        found.extend(self.mounts_and_sockets(&live));
        if let Some(tree) = &self.options.tree {
            found.extend(tree.leaks(&live).await);
            found.extend(tree.references().await);
        }
        found.sort_by(|a, b| (a.kind, &a.what).cmp(&(b.kind, &b.what)));
        found
    }

    /// The remaining resources of one ended session, without processes: its teardown has just
    /// checked all processes of the machine.
    pub(crate) async fn leaks_of(&self, session: &str) -> Vec<Finding> {
        let mut live: BTreeSet<String> = BTreeSet::new();
        live.extend(self.lease_directories().into_iter().map(|(session, _)| session));
        live.remove(session);
        let mut found = self.cgroups(&live);
        found.extend(self.leased_numbers(&live));
        found.extend(self.docker_objects(&live).await);
        found.extend(self.databases(&live).await);
        found.extend(self.temp_directories(&live));
        found.extend(self.mounts_and_sockets(&live));
        if let Some(tree) = &self.options.tree {
            found.extend(tree.leaks(&live).await);
        }
        found.retain(|finding| finding.session.as_deref() == Some(session));
        found
    }

    /// The bytes on disk of each session's lease, worktree and temporary files, and of shared
    /// resources, by name.
    ///
    /// It walks every file, so do not call it in a request for which somebody waits.
    pub fn disk(&self) -> BTreeMap<String, u64> {
        let mut used = BTreeMap::new();
        for (session, _) in self.lease_directories() {
            let mut bytes = size(&self.dir(&session));
            if let Ok(state) = State::read(&self.dir(&session)) {
                bytes += state.tree().map_or(0, |tree| size(&tree.path));
                for noted in state.steps.values().filter(|noted| !noted.undone) {
                    if let Step::Temp { path } = &noted.step {
                        bytes += size(path);
                    }
                }
            }
            used.insert(session, bytes);
        }
        used.insert("(templates)".to_owned(), size(&self.options.home.join("templates")));
        used.insert("(database server)".to_owned(), size(&self.options.home.join("postgres")));
        used
    }

    /// Removes a finding that is certainly ours.
    ///
    /// It checks the finding again first: resources in use by a session are kept.
    ///
    /// # Errors
    ///
    /// [`FixError::NotOurs`] if only a person can judge it.
    pub async fn fix(&self, finding: &Finding) -> Result<(), FixError> {
        let failed = |why: String| FixError::Failed { what: finding.what.clone(), why };
        let refuse = || FixError::NotOurs { what: finding.what.clone(), how: finding.how.clone() };
        if !finding.fixable {
            return Err(refuse());
        }
        // The resources of a session that is running again are kept.
        if finding.kind != LeakKind::Lease
            && let Some(session) = &finding.session
            && self.dir(session).exists()
        {
            return Err(FixError::NotOurs {
                what: finding.what.clone(),
                how: format!("the session {session} has a lease: end it"),
            });
        }
        match finding.kind {
            LeakKind::Process => {
                let session = finding.session.as_deref().ok_or_else(refuse)?;
                let mark = Some((LEASE_MARK, self.mark(session)));
                let belongs = Belongs { mark, ..Belongs::default() };
                // A process with automatic restart would be started again.
                let kept: BTreeSet<String> = belongs
                    .members()
                    .into_iter()
                    .filter_map(|pid| tree::variable(pid, PROCESS_MARK))
                    .collect();
                for id in kept {
                    let stopped = self.options.runner.stop(&id, None, Duration::from_secs(1)).await;
                    stopped.map_err(|err| failed(chain(&err)))?;
                }
                let clock = &*self.options.clock;
                let left = belongs.end(Duration::from_secs(1), clock).await;
                match left.is_empty() {
                    true => Ok(()),
                    false => Err(failed(format!("{left:?} did not end"))),
                }
            }
            LeakKind::Cgroup => {
                let path = PathBuf::from(&finding.what);
                let belongs = Belongs { cgroups: vec![path.clone()], ..Belongs::default() };
                belongs.end(Duration::from_secs(1), &*self.options.clock).await;
                match path.exists() {
                    true => Err(failed("it is still in use".to_owned())),
                    false => Ok(()),
                }
            }
            LeakKind::Port | LeakKind::RedisIndex => {
                let (family, number) = match finding.what.rsplit_once('/') {
                    Some((family, number)) => (family.to_owned(), number),
                    None => (crate::ports::FAMILY.to_owned(), finding.what.as_str()),
                };
                let number = number.parse::<u16>().map_err(|err| failed(err.to_string()))?;
                let owner = self.owner(finding.session.as_deref().unwrap_or_default());
                match self.registry.release(&family, number, &owner) {
                    true => Ok(()),
                    false => Err(refuse()),
                }
            }
            LeakKind::Container => {
                let (engine, ours) = self.doctors_engine().await.map_err(failed)?;
                ours.containers
                    .iter()
                    .find(|(name, _)| *name == finding.what)
                    .ok_or_else(refuse)?;
                let removed = engine.remove_container(&finding.what).await;
                removed.map_err(|err| failed(chain(&err)))
            }
            LeakKind::Volume => {
                let (engine, ours) = self.doctors_engine().await.map_err(failed)?;
                ours.volumes.iter().find(|(name, _)| *name == finding.what).ok_or_else(refuse)?;
                engine.remove_volume(&finding.what).await.map_err(|err| failed(chain(&err)))
            }
            LeakKind::Network => {
                let (engine, ours) = self.doctors_engine().await.map_err(failed)?;
                ours.networks.iter().find(|(name, _)| *name == finding.what).ok_or_else(refuse)?;
                engine.remove_network(&finding.what).await.map_err(|err| failed(chain(&err)))
            }
            LeakKind::Database | LeakKind::Role => {
                let server = self.cluster.running().await.ok_or_else(refuse)?;
                // It was just found again, with our comment on it.
                let databases = server.ours(&self.home_id).await;
                let roles = server.our_roles(&self.home_id).await;
                let databases = databases.map_err(|err| failed(chain(&err)))?;
                let roles = roles.map_err(|err| failed(chain(&err)))?;
                let named = databases.iter().any(|one| one.name == finding.what)
                    || roles.iter().any(|(name, _)| *name == finding.what);
                if !named {
                    return Err(refuse());
                }
                server.drop_named(&finding.what).await.map_err(|err| failed(chain(&err)))
            }
            LeakKind::TempFiles => {
                let session = finding.session.as_deref().ok_or_else(refuse)?;
                let path = Path::new(&finding.what);
                crate::lease::remove_temp(path, &self.mark(session))
                    .map_err(|err| failed(chain(&err)))
            }
            LeakKind::Server => self.cluster.stop().await.map_err(|err| failed(chain(&err))),
            LeakKind::Lease => {
                let session = finding.session.as_deref().ok_or_else(refuse)?;
                self.teardown(session, crate::lease::TreeEnd::Park, &crate::lease::Quiet)
                    .await
                    .map(drop)
                    .map_err(|err| failed(chain(&err)))
            }
            LeakKind::Worktree | LeakKind::Branch | LeakKind::Disk => {
                let tree = self.options.tree.as_ref().ok_or_else(refuse)?;
                tree.fix(finding).await.map_err(failed)
            }
            LeakKind::Mount | LeakKind::Socket | LeakKind::Unchecked => Err(refuse()),
        }
    }

    /// The engine, and its resources with our id at this moment.
    async fn doctors_engine(&self) -> Result<(Engine, Ours), String> {
        let socket = self.options.docker.as_ref();
        let socket = socket.ok_or_else(|| "this daemon was given no Docker engine".to_owned())?;
        let engine = Engine::connect(socket, "doctor").await.map_err(|err| chain(&err))?;
        let ours = engine.ours(&self.home_id).await.map_err(|err| chain(&err))?;
        Ok((engine, ours))
    }

    /// Sessions with a directory, and their phases; `None` if a phase cannot be read.
    fn lease_directories(&self) -> Vec<(String, Option<LeasePhase>)> {
        let entries = std::fs::read_dir(self.leases()).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_session(name))
            .map(|name| {
                let phase = State::read(&self.dir(&name)).ok().map(|state| state.phase());
                (name, phase)
            })
            .collect()
    }

    fn session_of_mark<'a>(&self, mark: &'a str) -> Option<&'a str> {
        mark.strip_prefix(&self.home_id)?.strip_prefix(':')
    }

    fn processes(&self, live: &BTreeSet<String>) -> Vec<Finding> {
        let me = std::process::id();
        let one = |pid: u32| {
            let mark = tree::variable(pid, LEASE_MARK)?;
            let session = self.session_of_mark(&mark).filter(|session| !live.contains(*session))?;
            if pid == me || !tree::lives(pid) {
                return None;
            }
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).replace('\0', " ");
            let what = format!("{pid}");
            let how = format!("`{}`: {FIX}", words.trim().chars().take(120).collect::<String>());
            Some(Finding::new(LeakKind::Process, what, session, how))
        };
        tree::telling().filter_map(one).collect()
    }

    fn cgroups(&self, live: &BTreeSet<String>) -> Vec<Finding> {
        let groups = Cgroups::discover().named(&format!("{}.", self.home_id));
        let one = |(name, path): (String, PathBuf)| {
            let session = name.split('.').nth(1).unwrap_or_default().to_owned();
            (!live.contains(&session))
                .then(|| Finding::new(LeakKind::Cgroup, path.display().to_string(), &session, FIX))
        };
        groups.into_iter().filter_map(one).collect()
    }

    fn leased_numbers(&self, live: &BTreeSet<String>) -> Vec<Finding> {
        let mut found = Vec::new();
        for family in self.registry.families() {
            let held: Vec<(u16, Owner)> = match self.registry.list(&family) {
                Ok(held) => held,
                Err(err) => {
                    found.push(Finding::unchecked(family, err.to_string()));
                    continue;
                }
            };
            for (number, owner) in held {
                let ours = owner.home == self.home_id
                    && is_session(&owner.session)
                    && owner.alive.starts_with(self.leases());
                if !ours || live.contains(&owner.session) {
                    continue;
                }
                let finding = if family == crate::ports::FAMILY {
                    Finding::new(LeakKind::Port, number.to_string(), &owner.session, FIX)
                } else {
                    let what = format!("{family}/{number}");
                    Finding::new(LeakKind::RedisIndex, what, &owner.session, FIX)
                };
                found.push(finding);
            }
        }
        found
    }

    async fn docker_objects(&self, live: &BTreeSet<String>) -> Vec<Finding> {
        let Some(socket) = &self.options.docker else { return Vec::new() };
        let ours = match Engine::connect(socket, "doctor").await {
            Ok(engine) => engine.ours(&self.home_id).await,
            Err(err) => Err(err),
        };
        let ours = match ours {
            Ok(ours) => ours,
            Err(err) => {
                let err = chain(&err);
                let how = format!("{err}: containers, volumes and networks were not looked for");
                return vec![Finding::unchecked(socket.display().to_string(), how)];
            }
        };
        let kinds = [
            (LeakKind::Container, ours.containers),
            (LeakKind::Volume, ours.volumes),
            (LeakKind::Network, ours.networks),
        ];
        let mut found = Vec::new();
        for (kind, things) in kinds {
            let dead = things.into_iter().filter(|(_, session)| !live.contains(session));
            found.extend(dead.map(|(name, session)| Finding::new(kind, name, &session, FIX)));
        }
        found
    }

    async fn databases(&self, live: &BTreeSet<String>) -> Vec<Finding> {
        let mut servers: Vec<(String, PostgresServer, bool)> = Vec::new();
        if let Some(server) = self.cluster.running().await {
            servers.push(("our own server".to_owned(), server, true));
        }
        // Shared servers are known from running leases; a server that no lease names is not
        // searched.
        for (session, _) in self.lease_directories() {
            let Ok(state) = State::read(&self.dir(&session)) else { continue };
            for noted in state.steps.values() {
                if let Step::Postgres { url: Some(url), .. } = &noted.step
                    && let Ok(server) = PostgresServer::parse(url)
                {
                    let at = format!("{}:{}", server.host(), server.port());
                    if !servers.iter().any(|(known, _, _)| *known == at) {
                        servers.push((at, server, false));
                    }
                }
            }
        }
        let mut found = Vec::new();
        for (at, server, own) in servers {
            let looked = match server.ours(&self.home_id).await {
                Ok(databases) => server.our_roles(&self.home_id).await.map(|r| (databases, r)),
                Err(err) => Err(err),
            };
            let (databases, roles) = match looked {
                Ok(both) => both,
                Err(err) => {
                    found.push(Finding::unchecked(at, err.to_string()));
                    continue;
                }
            };
            let how = if own { FIX.to_owned() } else { format!("drop it by hand at {at}") };
            for database in databases {
                let Some(session) = database.session.filter(|one| !live.contains(one)) else {
                    continue;
                };
                let finding = Finding::new(LeakKind::Database, database.name, &session, &how);
                found.push(Finding { fixable: own, bytes: Some(database.bytes), ..finding });
            }
            for (name, session) in roles {
                let known = found.iter().any(|one| one.what == name);
                if !live.contains(&session) && !known {
                    let finding = Finding::new(LeakKind::Role, name, &session, &how);
                    found.push(Finding { fixable: own, ..finding });
                }
            }
        }
        found
    }

    fn temp_directories(&self, live: &BTreeSet<String>) -> Vec<Finding> {
        let entries = std::fs::read_dir(&self.options.temp).into_iter().flatten().flatten();
        let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("ovm-"));
        let one = |entry: std::fs::DirEntry| {
            let mark = std::fs::read_to_string(entry.path().join(crate::lease::TEMP_MARK)).ok()?;
            let session = self.session_of_mark(&mark).filter(|session| !live.contains(*session))?;
            let what = entry.path().display().to_string();
            let bytes = Some(size(&entry.path()));
            Some(Finding { bytes, ..Finding::new(LeakKind::TempFiles, what, session, FIX) })
        };
        ours.filter_map(one).collect()
    }

    /// Mounts below, and Unix sockets in, directories of ended sessions.
    fn mounts_and_sockets(&self, live: &BTreeSet<String>) -> Vec<Finding> {
        let leases = self.leases();
        let session_in = |path: &str| {
            let inside = Path::new(path).strip_prefix(&leases).ok()?;
            let session = inside.components().next()?.as_os_str().to_str()?.to_owned();
            (!live.contains(&session)).then_some(session)
        };
        let mut found = Vec::new();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            if let Some(session) = session_in(point) {
                let how = format!("unmount it: `umount {point}`");
                let finding = Finding::new(LeakKind::Mount, point, &session, how);
                found.push(Finding { fixable: false, ..finding });
            }
        }
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let mut paths: Vec<&str> =
            sockets.lines().filter_map(|line| line.split_whitespace().nth(7)).collect();
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            if let Some(session) = session_in(path) {
                let how = "a process listens on it: end that process";
                let finding = Finding::new(LeakKind::Socket, path, &session, how);
                found.push(Finding { fixable: false, ..finding });
            }
        }
        found
    }
}

/// The bytes that a directory takes on disk; links are not followed.
fn size(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(found) = std::fs::symlink_metadata(path) else { return 0 };
    let own = found.blocks() * 512;
    if !found.is_dir() {
        return own;
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    own + entries.map(|entry| size(&entry.path())).sum::<u64>()
}
