//! Runs programs of a lease in a sandbox: services, hooks, ready checks, template commands.
//!
//! What a program may see and reach is decided once (`Confinement`) and stored with it
//! ([`Confined`]). The sandbox itself is made at each start (`launch`), by the daemon's current
//! build, which also measures it. A program that has a sandbox is started in it or not at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::attest::Attested;
use overmind_core::enclosure::{
    Enclose, EnclosePlan, Enclosed, MAX_REACHED, Network, may_be_reached,
};
use overmind_core::ids::SessionId;
use overmind_core::process::ProcessUser;
use overmind_core::room::stay::MAX_OF;
use overmind_core::room::{RoomSandbox, RoomWitness};
use overmind_core::sandbox::SandboxLevel;

/// Makes sandboxes for programs, if that is possible, and reports their attestations. Clones share
/// both.
#[derive(Clone, Debug, Default)]
pub struct Encloses {
    by: Option<Arc<dyn Enclose>>,
    witness: Arc<Mutex<Option<Arc<dyn RoomWitness>>>>,
    /// The last report, if an equal one must not be repeated.
    told: Option<Arc<Mutex<String>>>,
}

impl Encloses {
    pub fn by(encloses: Arc<dyn Enclose>) -> Self {
        Self { by: Some(encloses), ..Self::default() }
    }

    /// Sets the receiver of reports.
    pub fn tell(&self, witness: Arc<dyn RoomWitness>) {
        *self.witness.lock().unwrap_or_else(PoisonError::into_inner) = Some(witness);
    }

    /// For repeated commands: each attestation is reported once.
    pub(crate) fn once(self) -> Self {
        Self { told: Some(Arc::default()), ..self }
    }

    async fn told(&self, confined: &Confined, attested: &Arc<Attested>) {
        let witness = self.witness.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(witness) = witness else { return };
        if let Some(told) = &self.told {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            if *told == attested.digest {
                return;
            }
            told.clone_from(&attested.digest);
        }
        let mut of = confined.of.clone();
        of.truncate(of.floor_char_boundary(MAX_OF));
        witness.attested(confined.session, of, Arc::clone(attested)).await;
    }
}

/// The sandbox of one program.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Confined {
    /// The name of the program, for people: see [`RoomWitness::attested`].
    #[serde(default = "of_before")]
    pub of: String,
    pub session: SessionId,
    pub level: SandboxLevel,
    pub network: Network,
    /// The only directory that it may write.
    pub workspace: PathBuf,
    pub read: Vec<PathBuf>,
    /// See [`EnclosePlan::borrowed`].
    #[serde(default)]
    pub borrowed: Vec<PathBuf>,
    /// Ports on this machine's loopback for incoming and outgoing connections, if the network is
    /// the mesh.
    pub ports: Vec<u16>,
    pub reaches: Vec<u16>,
}

/// The default for services that were recorded before their name was.
fn of_before() -> String {
    "a service".to_owned()
}

impl Confined {
    /// The kind of the program.
    #[must_use]
    pub(crate) fn of(self, of: String) -> Self {
        Self { of, ..self }
    }
}

/// The sandboxes of a lease.
#[derive(Clone, Debug)]
pub(crate) struct Confinement {
    pub(crate) session: SessionId,
    pub(crate) sandbox: RoomSandbox,
    pub(crate) worktree: PathBuf,
    /// The project's paths that the worktree needs, read-only; and whether they are reached without
    /// links.
    pub(crate) borrowed: Vec<PathBuf>,
    pub(crate) bounded: bool,
}

impl Confinement {
    /// The sandboxes of a lease; `None` if nothing in it is confined.
    ///
    /// # Errors
    ///
    /// Fails if the session's name is no session id.
    pub(crate) fn of(
        session: &str,
        sandbox: Option<&RoomSandbox>,
        worktree: &Path,
        (borrowed, bounded): (&[PathBuf], bool),
    ) -> Result<Option<Self>, String> {
        let Some(sandbox) = sandbox.filter(|sandbox| sandbox.level != SandboxLevel::None) else {
            return Ok(None);
        };
        let session =
            session.parse().map_err(|_| format!("`{session}` is not the id of a session"))?;
        let (worktree, borrowed) = (worktree.to_owned(), borrowed.to_vec());
        Ok(Some(Self { session, sandbox: sandbox.clone(), worktree, borrowed, bounded }))
    }

    /// The text for people.
    pub(crate) fn shown(&self) -> String {
        let RoomSandbox { level, network, .. } = &self.sandbox;
        format!(
            "services and hooks in the sandbox `{}`, network {}",
            level.as_str(),
            network.as_str()
        )
    }

    fn with(&self, network: Network, ports: Vec<u16>, reaches: Vec<u16>) -> Confined {
        Confined {
            of: String::new(),
            session: self.session,
            level: self.sandbox.level,
            network,
            workspace: self.worktree.clone(),
            read: [self.sandbox.read.as_slice(), &self.borrowed].concat(),
            borrowed: if self.bounded { Vec::new() } else { self.borrowed.clone() },
            ports,
            reaches,
        }
    }

    /// The sandbox in the run's network, as far as incoming and outgoing connections are possible.
    fn in_network(&self, ports: Vec<u16>, reaches: Vec<u16>) -> Confined {
        match self.sandbox.network {
            Network::Host => self.with(Network::Host, Vec::new(), Vec::new()),
            Network::Mesh | Network::None if ports.is_empty() && reaches.is_empty() => {
                self.with(Network::None, Vec::new(), Vec::new())
            }
            Network::Mesh | Network::None => self.with(Network::Mesh, ports, reaches),
        }
    }

    /// The sandbox with the host's network, if an admin granted that: `setup` installs packages
    /// from there.
    pub(crate) fn granted(&self) -> Confined {
        self.with(Network::Host, Vec::new(), Vec::new())
    }

    /// The sandbox of a service: connections come in at its `own` ports and go out to the
    /// environment's others.
    pub(crate) fn service(&self, own: &[u16], room: &[u16]) -> Confined {
        let others = room.iter().filter(|port| !own.contains(port)).copied().collect();
        self.in_network(own.to_vec(), self.let_out(others))
    }

    /// The sandbox of the ready check of a service with these ports, which it reaches whatever the
    /// network is.
    pub(crate) fn look(&self, own: &[u16], room: &[u16]) -> Confined {
        let others = room.iter().filter(|port| !own.contains(port)).copied().collect();
        let all = own.iter().copied().chain(self.let_out(others));
        let reaches = all.filter(|port| may_be_reached(*port)).take(MAX_REACHED).collect();
        self.in_network(Vec::new(), reaches)
    }

    /// The sandbox of a hook that runs after the session's command.
    pub(crate) fn after(&self, room: &[u16]) -> Confined {
        self.in_network(Vec::new(), self.let_out(room.to_vec()))
    }

    fn let_out(&self, ports: Vec<u16>) -> Vec<u16> {
        match self.sandbox.network {
            Network::Mesh => ports,
            Network::Host | Network::None => Vec::new(),
        }
    }
}

/// The program to start, and its role.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: PathBuf,
    pub(crate) user: Option<ProcessUser>,
    /// Whether it represents the program, which runs below it.
    pub(crate) enclosed: bool,
}

impl Launch {
    pub(crate) fn bare(argv: &[String], env: &BTreeMap<String, String>, cwd: &Path) -> Self {
        let (argv, env, cwd) = (argv.to_vec(), env.clone(), cwd.to_owned());
        Self { argv, env, cwd, user: None, enclosed: false }
    }
}

/// The program to start instead of `bare`. A confined one starts in a sandbox, whose attestation is
/// reported first, inside of `group`, the directory of a cgroup, if there is one. An unconfined one
/// joins the group in another way, or is started below a reaper.
///
/// # Errors
///
/// Explains why there is no such sandbox, and what to do. Then nothing may be started.
pub(crate) async fn launch(
    encloses: &Encloses,
    confined: Option<&Confined>,
    bare: Launch,
    group: Option<&Path>,
) -> Result<Launch, String> {
    let Some(confined) = confined else {
        // All of its processes stay in its group; without a group it is started below a reaper.
        let by = encloses.by.as_ref().filter(|_| group.is_none() && !bare.argv.is_empty());
        let below = by.and_then(|by| by.reaped(bare.argv.clone()));
        return Ok(Launch { argv: below.unwrap_or(bare.argv), ..bare });
    };
    let Some(by) = &encloses.by else {
        return Err("this daemon puts no sandbox around programs of a session".to_owned());
    };
    let plan = EnclosePlan {
        lent: Vec::new(),
        session: confined.session,
        level: confined.level,
        argv: bare.argv,
        installed: None,
        env: bare.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        workspace: confined.workspace.clone(),
        cwd: bare.cwd,
        terminal: false,
        read: confined.read.clone(),
        borrowed: confined.borrowed.clone(),
        write: Vec::new(),
        network: confined.network,
        ports: confined.ports.clone(),
        reaches: confined.reaches.clone(),
        server: false,
        detached: true,
        group: group.map(Path::to_owned),
    };
    let Enclosed { argv, cwd, needs, tells, user, attested } =
        by.enclose(plan).await.map_err(|err| err.with_remedy())?;
    encloses.told(confined, &attested).await;
    let mut env = bare.env;
    let inside = |path: &str| Path::new(path).starts_with(&confined.workspace);
    // The environment's directory is outside; inside, `/tmp` is the program's own.
    if env.get("TMPDIR").is_some_and(|path| !inside(path)) {
        env.remove("TMPDIR");
    }
    // Directories that the project puts into its worktree are kept.
    let tells = tells
        .into_iter()
        .filter(|(name, _)| name != "HOME" || !env.get(name).is_some_and(|path| inside(path)));
    let tells: Vec<(String, String)> = tells.collect();
    env.extend(tells.into_iter().chain(needs));
    Ok(Launch { argv, env, cwd, user, enclosed: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(network: Network) -> Confinement {
        let read = vec!["/opt/node".into()];
        let sandbox = RoomSandbox { level: SandboxLevel::Namespace, network, read };
        let id = SessionId::from_u128(7).to_string();
        let borrowed = ["/srv/objects".into()];
        let found = Confinement::of(&id, Some(&sandbox), Path::new("/tree"), (&borrowed, false));
        found.unwrap().unwrap()
    }

    fn seen(confined: Confined) -> (Network, Vec<u16>, Vec<u16>) {
        assert_eq!(confined.read, [Path::new("/opt/node"), Path::new("/srv/objects")]);
        assert_eq!(
            (confined.workspace.as_path(), confined.level),
            (Path::new("/tree"), SandboxLevel::Namespace,)
        );
        (confined.network, confined.ports, confined.reaches)
    }

    #[test]
    fn the_mesh_connects_a_program_to_its_services() {
        let mesh = of(Network::Mesh);
        let room = [1001, 1002, 1003];
        assert_eq!(
            seen(mesh.service(&[1002], &room)),
            (Network::Mesh, vec![1002], vec![1001, 1003],)
        );
        let own_first = vec![1002, 1001, 1003];
        assert_eq!(seen(mesh.look(&[1002], &room)), (Network::Mesh, vec![], own_first));
        let many: Vec<u16> = (2000..2040).collect();
        let (_, _, reaches) = seen(mesh.look(&[1002, 80], &many));
        assert_eq!((reaches.len(), reaches[0], reaches[1]), (MAX_REACHED, 1002, 2000));
        assert_eq!(seen(mesh.after(&room)), (Network::Mesh, vec![], room.to_vec()));
        // Without files to carry, nothing is done.
        assert_eq!(seen(mesh.service(&[], &[])), (Network::None, vec![], vec![]));
        assert_eq!(seen(mesh.after(&[])), (Network::None, vec![], vec![]));
    }

    #[test]
    fn without_a_network_a_service_accepts_connections_and_opens_none() {
        let none = of(Network::None);
        let room = [1001, 1002];
        assert_eq!(seen(none.service(&[1002], &room)), (Network::Mesh, vec![1002], vec![]));
        assert_eq!(seen(none.look(&[1002], &room)), (Network::Mesh, vec![], vec![1002]));
        assert_eq!(seen(none.after(&room)), (Network::None, vec![], vec![]));
    }

    #[test]
    fn the_hosts_network_is_available_if_the_run_has_it_or_it_was_granted() {
        for network in [Network::Host, Network::Mesh, Network::None] {
            assert_eq!(seen(of(network).granted()), (Network::Host, vec![], vec![]));
        }
        let host = of(Network::Host);
        let shared = (Network::Host, vec![], vec![]);
        assert_eq!(seen(host.service(&[1], &[1, 2])), shared);
        assert_eq!(seen(host.look(&[1], &[1, 2])), shared);
        assert_eq!(seen(host.after(&[1, 2])), shared);
    }

    #[test]
    fn without_a_level_nothing_is_confined_and_without_an_id_nothing_is_created() {
        let none = RoomSandbox::default();
        let tree = Path::new("/tree");
        assert!(Confinement::of("s1", Some(&none), tree, (&[], false)).unwrap().is_none());
        assert!(Confinement::of("s1", None, tree, (&[], false)).unwrap().is_none());
        let some = RoomSandbox { level: SandboxLevel::Namespace, ..none };
        assert!(
            Confinement::of("s1", Some(&some), tree, (&[], false)).unwrap_err().contains("`s1`")
        );
    }

    #[tokio::test]
    async fn confined_services_do_not_start_without_a_sandbox() {
        let bare = Launch::bare(&["true".to_owned()], &BTreeMap::new(), Path::new("/"));
        let confined = of(Network::None).after(&[]);
        let none = Encloses::default();
        assert!(launch(&none, Some(&confined), bare.clone(), None).await.is_err());
        assert!(!launch(&none, None, bare, None).await.unwrap().enclosed);
    }
}
