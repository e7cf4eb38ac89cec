//! Puts long-running commands into sandboxes of the level `namespace`: returns the program to start
//! in place of such a command.
//!
//! The sandbox is built by the same steps as that of tool calls ([`crate::init`]);
//! [`overmind_core::enclosure`] explains why nothing is started here. The differences:
//!
//! * the workspace is at the host's path and writable, and so are granted paths;
//! * the home is a directory below the driver's own and outlives the process. If commands run as
//!   another user, the home is in memory and lost with the process;
//! * the network is as planned: the host's, where programs may also ask for its addresses; or a
//!   separate one with a proxy to the server (for commands that may reach it) and forwarded ports
//!   to the session's own services; or none;
//! * terminals can be made;
//! * the limits are those that the kernel enforces by itself, and they are wide: [`LIMITS`].
//!
//! Tool calls in an environment use such a sandbox as well ([`crate::called`]).
//!
//! Each set of granted paths, with each network and each set of reachable services, is a sandbox of
//! its own and is measured as one.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use overmind_core::Fut;
use overmind_core::enclosure::{
    Enclose, EnclosePlan, Enclosed, Lent, MAX_REACHED, Network, may_be_reached, whose_door,
};
use overmind_core::ids::SessionId;
use overmind_core::process::ProcessUser;
use overmind_core::sandbox::{Sandbox, SandboxError, SandboxLevel};

use crate::called::Called;
use crate::cgroup::Cgroups;
use crate::init::enclosed::{ARGUMENT, PLAN, Plan};
use crate::init::outward::Reach;
use crate::init::reaper;
use crate::init::root::HOME_OF_THE_LIVING;
use crate::init::spec::{Limits, Living, Program};
use crate::namespace::{Namespace, Options};
use crate::request::bad_config;
use crate::way::{self, Follow, is_of_the_system};
use crate::{attest, hidden, installed, repository};

/// Limits of a long-running command. Its memory and processor time are not limited.
const LIMITS: Limits = Limits {
    memory_bytes: u64::MAX,
    pids: 4096,
    tmp_bytes: 1 << 30,
    file_bytes: u64::MAX,
    open_files: 65_536,
};

/// Maximum number of sets of grants that are remembered as measured.
const MEASURED: usize = 256;

/// No shown path may be below these: they belong to the sandbox or to the machine itself.
const NEVER: &[&str] = &["/proc", "/sys", "/dev"];

/// The properties that differ between commands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Granted {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    /// The read-only paths that are borrowed from a repository.
    borrowed: Vec<PathBuf>,
    /// The targets of paths that lead through a link.
    leads: Vec<(PathBuf, PathBuf)>,
    network: Network,
    /// Reachable ports, sorted. Used only if the network is the mesh.
    reaches: Vec<u16>,
    /// Whether the command reaches the server.
    server: bool,
    /// Whether the command ends with its tool call.
    called: bool,
}

/// The driver.
#[derive(Debug)]
pub struct Enclosures {
    options: Options,
    homes: PathBuf,
    sockets: Vec<PathBuf>,
    door: Option<PathBuf>,
    /// The groups for tool calls.
    cgroups: Arc<OnceLock<Arc<Cgroups>>>,
    #[cfg(feature = "mutations")]
    mutation: Option<crate::Mutation>,
    measured: Mutex<HashMap<Granted, Arc<Namespace>>>,
}

impl Enclosures {
    /// `homes` is a directory that only this driver uses; it is made when first needed. `sockets`
    /// are shown to every command with the host's network, such as the socket of the daemon's own
    /// API. `door` is the socket that a command with the mesh network reaches, and the only one. It
    /// may be created again, as long as its directory stays.
    pub fn new(
        options: Options,
        homes: PathBuf,
        sockets: Vec<PathBuf>,
        door: Option<PathBuf>,
    ) -> Self {
        Self {
            options,
            homes,
            sockets,
            door,
            cgroups: Arc::default(),
            #[cfg(feature = "mutations")]
            mutation: None,
            measured: Mutex::default(),
        }
    }

    /// A driver whose sandboxes lack something, to test that they are refused.
    #[cfg(feature = "mutations")]
    #[must_use]
    pub fn broken(self, mutation: crate::Mutation) -> Self {
        Self { mutation: Some(mutation), ..self }
    }

    async fn answer(&self, mut plan: EnclosePlan) -> Result<Enclosed, SandboxError> {
        match plan.level {
            SandboxLevel::Namespace => {}
            SandboxLevel::None | SandboxLevel::Docker | SandboxLevel::Microvm => {
                return Err(bad_config(format!(
                    "a command that lives runs in no `{}`: ask for `namespace`, or for `none`",
                    plan.level.as_str()
                )));
            }
        }
        if plan.network == Network::Mesh && plan.server && self.door.is_none() {
            return Err(bad_config(
                "the mesh is to be its network, and this server has no socket for agents: see \
                 why in its log, or ask for `\"network\": \"none\"` or `\"host\"`",
            ));
        }
        let mut needed = Vec::new();
        if let (Some(path), Some(program)) = (&plan.installed, plan.argv.first())
            && let Some(found) = installed::find(path, program)
        {
            plan.argv[0] = text(found.program.into_os_string())?;
            needed = found.needs;
        }
        let (workspace, cwd) = self.workspace(&plan)?;
        let granted = self.granted(&plan, &needed)?;
        self.find_program(&plan, &workspace, &granted)?;
        let driver = self.measuring(&granted);
        let attested = driver.attested().await?;
        let relative = cwd.strip_prefix(&workspace).map_err(|_| {
            bad_config(format!("{} is not in {}", cwd.display(), workspace.display()))
        })?;
        let kind = driver.kind(Program::Command);
        let order = Plan {
            masks: hidden::masks(self.options.hidden(), &[], &kind, &workspace)?,
            secrets: hidden::secrets(self.options.hidden(), &kind, &workspace)?,
            fixed: repository::fixed(self.options.hidden(), &kind, &workspace, true)?,
            kind,
            cwd: relative.to_owned(),
            workspace,
            private_home: self.home(plan.session)?,
            terminal: plan.terminal,
            limits: LIMITS,
            whose: whose_door(plan.session),
            ports: plan.ports,
            detached: plan.detached,
            group: plan.group,
            withheld: plan.env.into_iter().filter(|(name, _)| is_for_the_loader(name)).collect(),
        };
        let mut needs: Vec<(String, String)> =
            order.withheld.iter().map(|(name, _)| (name.clone(), String::new())).collect();
        let order = serde_json::to_string(&order).map_err(|_| bad_config("a path is not UTF-8"))?;
        needs.push((PLAN.to_owned(), order));
        let program = text(self.options.init_program.clone().into_os_string())?;
        let argv = [program, ARGUMENT.to_owned()].into_iter().chain(plan.argv).collect();
        let tells = [("HOME", HOME_OF_THE_LIVING), ("USER", "sandbox"), ("LOGNAME", "sandbox")];
        Ok(Enclosed {
            argv,
            cwd,
            needs,
            tells: tells.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            user: self.options.run_as.map(|user| ProcessUser { uid: user.uid, gid: user.gid }),
            attested,
        })
    }

    /// Returns the sandbox that runs tool calls for this plan, and its workspace.
    pub(crate) fn called(
        &self,
        plan: &EnclosePlan,
    ) -> Result<(Arc<Namespace>, PathBuf), SandboxError> {
        let (workspace, _) = self.workspace(plan)?;
        let granted = Granted { called: true, ..self.granted(plan, &[])? };
        Ok((self.measuring(&granted), workspace))
    }

    /// The driver for the exact sandbox of these grants.
    fn measuring(&self, granted: &Granted) -> Arc<Namespace> {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = measured.get(granted) {
            return Arc::clone(driver);
        }
        if measured.len() >= MEASURED {
            // Ports belong to one session, and no other session has the same ones.
            measured.retain(|granted, _| granted.reaches.is_empty());
        }
        if measured.len() >= MEASURED {
            measured.clear();
        }
        let Granted { read, write, borrowed, leads, network, reaches, server, called } =
            granted.clone();
        let read_only = self.options.read_only.iter().cloned().chain(read).collect();
        let options = Options { read_only, ..self.options.clone() };
        let (sockets, door) = match server {
            true => (self.sockets.clone(), self.door.clone()),
            false => (Vec::new(), None),
        };
        let reaches = reaches.into_iter().map(|port| Reach { port, leads_to: port }).collect();
        let leads = leads.into_boxed_slice();
        let living =
            Living { network, writable: write, borrowed, leads, sockets, door, reaches, called };
        #[cfg(feature = "mutations")]
        let driver = match self.mutation.clone() {
            Some(mutation) => Namespace::broken(options, mutation),
            None => Namespace::new(options),
        };
        #[cfg(not(feature = "mutations"))]
        let driver = Namespace::new(options);
        let driver = Arc::new(driver.of_the_living(living, &self.cgroups));
        measured.insert(granted.clone(), Arc::clone(&driver));
        driver
    }

    /// The session's directory, whose path may contain no link, and the working directory of the
    /// command.
    fn workspace(&self, plan: &EnclosePlan) -> Result<(PathBuf, PathBuf), SandboxError> {
        let workspace = way::resolve(&plan.workspace, Follow::Never)?;
        if let Some(private) = self.private().find(|private| private.starts_with(&workspace)) {
            return Err(bad_config(format!(
                "the directory {} holds {}, which no sandbox may show: work in a directory of the \
                 project",
                workspace.display(),
                private.display()
            )));
        }
        let homes = attest::homes(&[]).into_iter().map(|home| home.path);
        if let Some(home) = homes
            .into_iter()
            .find(|home| home.canonicalize().is_ok_and(|h| h.starts_with(&workspace)))
        {
            return Err(bad_config(format!(
                "the directory {} is or holds the home {}, which a sandbox does not show: work in \
                 a directory of the project",
                workspace.display(),
                home.display()
            )));
        }
        never(&workspace)?;
        Ok((workspace, really(&plan.cwd)?))
    }

    /// The paths of the plan's grants and of its program that are shown besides the system.
    fn granted(&self, plan: &EnclosePlan, needed: &[PathBuf]) -> Result<Granted, SandboxError> {
        let commands_are_root = match self.options.run_as {
            Some(user) => user.uid == 0,
            None => rustix::process::geteuid().is_root(),
        };
        let hosts = Follow::Hosts { commands_are_root };
        let mut leads = Vec::new();
        let mut may_be_shown = |path: &PathBuf, follow: Follow| {
            // A path that a repository named is opened in a special way.
            let found = match plan.borrowed.contains(path) {
                true => really(path)?,
                false => way::resolve(path, follow)?,
            };
            never(&found)?;
            let near =
                |private: &PathBuf| private.starts_with(&found) || found.starts_with(private);
            let home = attest::homes(&[])
                .into_iter()
                .map(|home| home.path)
                .find(|home| home.canonicalize().is_ok_and(|home| home.starts_with(&found)));
            if let Some(home) = home {
                return Err(bad_config(format!(
                    "{} cannot be granted to a command: it is, or holds, the home {}: grant the \
                     directory in it that is needed",
                    path.display(),
                    home.display()
                )));
            }
            if let Some(private) = self.private().find(near) {
                return Err(bad_config(format!(
                    "{} cannot be granted to a command: {} is the server's own",
                    path.display(),
                    private.display()
                )));
            }
            // The path may lead through a link of the root, which exists inside as well.
            if is_of_the_system(path) {
                return Ok(found);
            }
            if found != *path {
                leads.push((path.clone(), found));
            }
            Ok(path.clone())
        };
        let mut list = |paths: &[PathBuf], follow| -> Result<Vec<PathBuf>, SandboxError> {
            let mut list: Vec<PathBuf> =
                paths.iter().map(|path| may_be_shown(path, follow)).collect::<Result<_, _>>()?;
            list.sort();
            list.dedup();
            Ok(list)
        };
        let mut read = list(&plan.read, hosts)?;
        read.extend(list(needed, Follow::All)?);
        read.sort();
        read.dedup();
        let mut write = list(&plan.write, hosts)?;
        for Lent { path, read_only } in &plan.lent {
            let found = really(path)?;
            let rooms = self.options.rooms.iter().filter_map(|room| room.canonicalize().ok());
            if !rooms.into_iter().any(|room| found.starts_with(&room) && found != room) {
                return Err(bad_config(format!(
                    "{} is not a directory that this server makes for sessions",
                    path.display()
                )));
            }
            if *read_only { &mut read } else { &mut write }.push(found);
        }
        read.sort();
        write.sort();
        // The system is shown already.
        read.retain(|path| !is_of_the_system(path));
        let reaches = match plan.network {
            Network::Mesh => reached(&plan.reaches)?,
            Network::Host | Network::None => Vec::new(),
        };
        let (network, server) = (plan.network, plan.server);
        let mut borrowed = plan.borrowed.clone();
        borrowed.retain(|path| read.contains(path));
        for path in &self.options.read_only {
            let found = way::resolve(path, hosts)?;
            if found != *path {
                leads.push((path.clone(), found));
            }
        }
        leads.sort();
        leads.dedup();
        Ok(Granted { read, write, borrowed, leads, network, reaches, server, called: false })
    }

    fn private(&self) -> impl Iterator<Item = PathBuf> {
        self.options.private.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()))
    }

    /// Explains how to fix it if a program is on the host but not visible inside. Whether it can be
    /// executed shows when it is started.
    fn find_program(
        &self,
        plan: &EnclosePlan,
        workspace: &Path,
        granted: &Granted,
    ) -> Result<(), SandboxError> {
        let Some(name) = plan.argv.first().filter(|name| !name.is_empty()) else {
            return Err(bad_config("the command is empty"));
        };
        let path = plan.env.iter().rev().find(|(name, _)| name == "PATH");
        let path = path.map_or("/usr/local/bin:/usr/bin:/bin", |(_, path)| path.as_str());
        let places: Vec<PathBuf> = match name.contains('/') {
            true => vec![PathBuf::from(name)],
            false => path.split(':').map(|dir| Path::new(dir).join(name)).collect(),
        };
        // A relative place is below the working directory, which belongs to the session.
        if places.iter().any(|place| place.is_relative()) {
            return Ok(());
        }
        let shown = |path: &Path| {
            let lists = [&self.options.read_only, &granted.read, &granted.write];
            is_of_the_system(path)
                || path.starts_with(workspace)
                || lists.into_iter().flatten().any(|shown| path.starts_with(shown))
        };
        let mut hidden = None;
        for place in places.iter().filter(|place| is_program(place)) {
            let Ok(target) = place.canonicalize() else { continue };
            if shown(place) && shown(&target) {
                return Ok(());
            }
            hidden.get_or_insert((place.clone(), target));
        }
        Err(bad_config(match hidden {
            Some((place, target)) => {
                let which = if shown(&place) { target } else { place };
                let grant = which.parent().and_then(Path::parent).unwrap_or(&which);
                format!(
                    "`{name}` is {} here, which a sandbox does not show: grant the directory that \
                     it was installed into, such as \"read\": [\"{}\"] in the agent's command",
                    which.display(),
                    grant.display()
                )
            }
            None => format!("there is no `{name}`: searched in {path}"),
        }))
    }

    /// The session's home; `None` if it is in memory.
    fn home(&self, session: SessionId) -> Result<Option<PathBuf>, SandboxError> {
        // Another user could not enter the daemon's directory.
        if self.options.run_as.is_some() {
            return Ok(None);
        }
        let home = self.homes.join(session.to_string());
        let make = || -> io::Result<()> {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(&home)
        };
        make().map_err(|err| SandboxError::Failed {
            level: SandboxLevel::Namespace.as_str(),
            message: format!("making the command's home {}: {err}", home.display()),
        })?;
        Ok(Some(home))
    }
}

impl Enclose for Enclosures {
    fn enclose(&self, plan: EnclosePlan) -> Fut<'_, Result<Enclosed, SandboxError>> {
        Box::pin(self.answer(plan))
    }

    fn sandbox(self: Arc<Self>, plan: EnclosePlan) -> Option<Arc<dyn Sandbox>> {
        match plan.level {
            SandboxLevel::Namespace => Some(Arc::new(Called::new(self, plan))),
            SandboxLevel::None | SandboxLevel::Docker | SandboxLevel::Microvm => None,
        }
    }

    fn reaped(&self, argv: Vec<String>) -> Option<Vec<String>> {
        let program = self.options.init_program.to_str()?;
        Some(reaper::words(program.to_owned(), argv))
    }

    fn ended(&self, session: SessionId) -> Fut<'_, ()> {
        let home = self.homes.join(session.to_string());
        Box::pin(async move {
            // Most sessions have none. The check takes a microsecond; using another thread would
            // take fifty.
            if home.symlink_metadata().is_err_and(|err| err.kind() == io::ErrorKind::NotFound) {
                return;
            }
            let _ = tokio::task::spawn_blocking(move || remove(&home)).await;
        })
    }

    fn kept(&self) -> Fut<'_, Vec<SessionId>> {
        let homes = self.homes.clone();
        Box::pin(async move {
            let listed = tokio::task::spawn_blocking(move || {
                let entries = std::fs::read_dir(&homes).into_iter().flatten().flatten();
                entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
            });
            listed.await.unwrap_or_default()
        })
    }
}

/// Removes a home, whatever files and modes a command left in it.
fn remove(home: &Path) {
    let gone = |done: &io::Result<()>| match done {
        Ok(()) => true,
        Err(err) => err.kind() == io::ErrorKind::NotFound,
    };
    if gone(&std::fs::remove_dir_all(home)) {
        return;
    }
    // Directories without access for their owner (a cache of modules, for example) block removal.
    open_up(home);
    let again = std::fs::remove_dir_all(home);
    if !gone(&again) {
        tracing::warn!(home = %home.display(), error = ?again, "the home of a command stays behind");
    }
}

fn open_up(directory: &Path) {
    let open = std::fs::Permissions::from_mode(0o700);
    let _ = std::fs::set_permissions(directory, open);
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        // This is the entry's own type; a link is not followed.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

fn really(path: &Path) -> Result<PathBuf, SandboxError> {
    path.canonicalize()
        .map_err(|err| bad_config(format!("a sandbox cannot show {}: {err}", path.display())))
}

/// The forwarded ports, without duplicates.
fn reached(ports: &[u16]) -> Result<Vec<u16>, SandboxError> {
    let mut ports = ports.to_vec();
    ports.sort_unstable();
    ports.dedup();
    if let Some(port) = ports.iter().find(|port| !may_be_reached(**port)) {
        return Err(bad_config(format!(
            "port {port} of a service cannot be reached over the mesh, which has its own there: ask \
             for `\"network\": \"host\"`"
        )));
    }
    if ports.len() > MAX_REACHED {
        return Err(bad_config(format!(
            "{} ports of services are more than the mesh lets out ({MAX_REACHED}): ask for \
             `\"network\": \"host\"`",
            ports.len()
        )));
    }
    Ok(ports)
}

fn never(path: &Path) -> Result<(), SandboxError> {
    match NEVER.iter().find(|never| path.starts_with(never)) {
        Some(never) => Err(bad_config(format!(
            "{} cannot be shown in a sandbox, which has a {never} of its own",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Whether a variable makes the loader load a file into a program. The file may be in the workspace
/// and so be the command's own; the launcher, which is outside of the sandbox, must not load it.
fn is_for_the_loader(name: &str) -> bool {
    name.starts_with("LD_") || name == "GLIBC_TUNABLES"
}

pub(crate) fn is_program(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn text(text: OsString) -> Result<String, SandboxError> {
    text.into_string().map_err(|_| bad_config("a path is not UTF-8"))
}
