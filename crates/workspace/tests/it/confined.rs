//! Nothing of a lease with a sandbox starts without one. The sandbox itself is tested elsewhere:
//! here it is a mark, or a refusal.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use overmind_core::Fut;
use overmind_core::attest::{Attestation, Attested};
use overmind_core::enclosure::{Enclose, EnclosePlan, Enclosed, Network};
use overmind_core::ids::SessionId;
use overmind_core::room::{RoomSandbox, RoomWitness};
use overmind_core::sandbox::{SandboxError, SandboxLevel};
use overmind_core::time::Timestamp;
use overmind_testkit::ports::WallClock;
use overmind_workspace::lease::{Lease, LeaseRequest, Quiet, Resumed, TreeEnd, Workspace};
use overmind_workspace::services::confine::Encloses;
use overmind_workspace::services::runner::{OwnProcesses, ProcessState};

use crate::support::{Bench, chain, until};

/// Marks its requests in a variable that the program can print, or refuses.
#[derive(Debug, Default)]
struct Marks {
    asked: Mutex<Vec<EnclosePlan>>,
    /// The measurements that it was given.
    told: Mutex<Vec<String>>,
    ended: Mutex<Vec<SessionId>>,
    refuses: AtomicBool,
}

impl Marks {
    /// Plans of programs whose arguments contain this.
    fn asked(&self, word: &str) -> Vec<EnclosePlan> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|plan| plan.argv.join(" ").contains(word)).cloned().collect()
    }

    /// The number of calls.
    fn told(&self, what: &str) -> usize {
        self.told.lock().unwrap().iter().filter(|told| *told == what).count()
    }

    fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }
}

impl Enclose for Marks {
    fn enclose(&self, plan: EnclosePlan) -> Fut<'_, Result<Enclosed, SandboxError>> {
        self.asked.lock().unwrap().push(plan.clone());
        let refused = self.refuses.load(Ordering::SeqCst);
        Box::pin(async move {
            if refused {
                let message = "no sandbox today".to_owned();
                return Err(SandboxError::Failed { level: "namespace", message });
            }
            let attestation = Attestation {
                version: Attestation::VERSION,
                driver: "marks".to_owned(),
                asked: plan.level,
                achieved: plan.level,
                at: Timestamp::from_micros(1),
                took_us: 1,
                kernel: String::new(),
                boot: String::new(),
                config: String::new(),
                checks: Vec::new(),
                bounds: Vec::new(),
            };
            let attested = Arc::new(Attested::new(attestation, None));
            let needs = vec![("ENCLOSED".to_owned(), "yes".to_owned())];
            let tells = vec![("HOME".to_owned(), "/home/inside".to_owned())];
            Ok(Enclosed { argv: plan.argv, cwd: plan.cwd, needs, tells, user: None, attested })
        })
    }

    fn ended(&self, session: SessionId) -> Fut<'_, ()> {
        self.ended.lock().unwrap().push(session);
        Box::pin(async {})
    }

    fn kept(&self) -> Fut<'_, Vec<SessionId>> {
        Box::pin(async { Vec::new() })
    }
}

impl RoomWitness for Marks {
    fn attested(&self, of: SessionId, what: String, attested: Arc<Attested>) -> Fut<'_, ()> {
        assert_eq!((of, attested.attestation.driver.as_str()), (session(), "marks"));
        self.told.lock().unwrap().push(what);
        Box::pin(async {})
    }
}

fn open(bench: &Bench, marks: &Arc<Marks>) -> Workspace {
    let mut options = bench.options();
    let encloses = Encloses::by(Arc::clone(marks) as Arc<dyn Enclose>);
    encloses.tell(Arc::clone(marks) as Arc<dyn RoomWitness>);
    options.runner = Arc::new(OwnProcesses::new(Arc::new(WallClock)).enclosed_by(encloses.clone()));
    options.encloses = encloses;
    Workspace::open(options).unwrap()
}

fn session() -> SessionId {
    SessionId::from_u128(0xabc)
}

fn request(bench: &Bench, level: SandboxLevel) -> LeaseRequest {
    let request = bench.request_with(&session().to_string(), APP, FILES);
    let read = vec!["/opt/tools".into()];
    let sandbox = Some(RoomSandbox { level, network: Network::Mesh, read });
    LeaseRequest { sandbox, ..request }
}

/// Everything that a lease starts, each of which records its name and whether it was sandboxed.
const APP: &str = "
  names: [PORT]
services:
  file:
    strategy: database
    engine: sqlite
    file: own.sqlite3
    template: {files: [note.sh], command: sh note.sh template}
  back: {strategy: process, command: sh note.sh back; exec sleep 600, ports: [http], ready: started}
  web:
    strategy: process
    command: sh note.sh web; while [ ! -e die ]; do sleep 0.02; done; rm die; exit 1
    ports: [http]
    depends_on: [back]
    restart: {policy: always, backoff: 5ms, max: 9}
    ready: {command: 'sh note.sh ready; test $(grep -c ready noted) -ge 3', interval: 5ms}
setup: [sh note.sh setup]
teardown: [{command: sh note.sh teardown; cp noted \"$OVERMIND_PROJECT\"/noted, on_failure: warn}]
";

const FILES: &[(&str, &str)] =
    &[("note.sh", "echo \"$1 ${ENCLOSED:-no} $HOME ${TMPDIR:-none}\" >> noted\n")];

/// How often each noted something, enclosed or not.
fn noted(path: &Path) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        *found.entry(line.to_owned()).or_default() += 1;
    }
    found
}

fn marked(which: &str) -> String {
    format!("{which} yes /home/inside none")
}

async fn built(bench: &Bench, workspace: &Workspace) -> Lease {
    let request = request(bench, SandboxLevel::Namespace);
    workspace.build(request, &bench.told).await.unwrap_or_else(|err| panic!("{}", chain(&err)))
}

#[tokio::test]
async fn setup_has_the_hosts_network_only_if_granted() {
    let bench = Bench::new();
    let marks = Arc::new(Marks::default());
    let workspace = open(&bench, &marks);
    let request = LeaseRequest { setup_network: true, ..request(&bench, SandboxLevel::Namespace) };
    let built = workspace.build(request, &bench.told).await;
    let lease = built.unwrap_or_else(|err| panic!("{}", chain(&err)));
    for word in ["note.sh template", "note.sh setup"] {
        let plan = marks.asked(word).pop().unwrap();
        assert_eq!((plan.network, plan.reaches.len()), (Network::Host, 0), "{word}");
    }
    let web = marks.asked("note.sh web").pop().unwrap();
    assert_eq!(web.network, Network::Mesh);
    // Its services would stay otherwise.
    workspace.teardown(&lease.session, TreeEnd::Park, &bench.told).await.unwrap();
}

#[tokio::test]
async fn everything_that_a_lease_starts_is_sandboxed_at_every_start() {
    let bench = Bench::new();
    let marks = Arc::new(Marks::default());
    let workspace = open(&bench, &marks);
    let lease = built(&bench, &workspace).await;
    let file = lease.worktree.join("noted");
    let said = "step services and hooks in the sandbox `namespace`, network mesh";
    assert!(bench.told.lines().iter().any(|line| line == said), "{:?}", bench.told.lines());
    let all = noted(&file);
    for which in ["template", "setup", "back", "web", "ready"] {
        assert!(all.contains_key(&marked(which)), "{which}: {all:?}");
    }
    assert!(all.keys().all(|line| line.contains(" yes ")), "{all:?}");
    let (back, web) = (lease.ports["back/http"], lease.ports["web/http"]);
    // Programs without a service reach them in the order of their numbers.
    let both = vec![back.min(web), back.max(web)];
    let one = |word: &str| marks.asked(word).pop().unwrap_or_else(|| panic!("nobody asked {word}"));
    for (word, network, ports, reaches) in [
        ("note.sh template", Network::Mesh, vec![], both.clone()),
        ("note.sh setup", Network::Mesh, vec![], both),
        ("note.sh back", Network::Mesh, vec![back], vec![web]),
        ("note.sh web", Network::Mesh, vec![web], vec![back]),
        ("note.sh ready", Network::Mesh, vec![], vec![web, back]),
    ] {
        let plan = one(word);
        assert_eq!(
            (plan.network, &plan.ports, &plan.reaches),
            (network, &ports, &reaches),
            "{word}"
        );
        assert_eq!((plan.session, plan.level), (session(), SandboxLevel::Namespace));
        assert_eq!((&plan.workspace, plan.server, plan.detached), (&lease.worktree, false, true));
        assert_eq!((plan.read, plan.write), (vec!["/opt/tools".into()], vec![]), "{word}");
    }

    // Each is reported once, also one that was checked three times.
    assert!(all[&marked("ready")] >= 3, "{all:?}");
    for of in [
        "template of file",
        "setup: sh note.sh setup",
        "service back",
        "service web",
        "ready check of web",
    ] {
        assert_eq!(marks.told(of), 1, "{of}: {:?}", marks.told);
    }
    assert_eq!(marks.told.lock().unwrap().len(), 5, "{:?}", marks.told);

    // Started again by this daemon.
    let die = || std::fs::write(lease.worktree.join("die"), "").unwrap();
    die();
    until("it is started again", || noted(&file).get(&marked("web")) == Some(&2)).await;
    // And by the next one: it ended while no daemon ran.
    drop(workspace);
    die();
    until("it ended", || !lease.worktree.join("die").exists()).await;
    let workspace = open(&bench, &marks);
    let resumed = workspace.resume(&Quiet).await;
    let [Resumed::Kept { warnings, .. }] = resumed.as_slice() else { panic!("{resumed:?}") };
    assert_eq!(warnings, &[""; 0]);
    until("it is started by the next daemon", || noted(&file)[&marked("web")] == 3).await;
    die();
    until("and again by that one", || noted(&file)[&marked("web")] == 4).await;
    assert_eq!(marks.asked("note.sh web").len(), 4, "asked for anew at each start");
    assert_eq!((marks.told("service web"), marks.told("service back")), (4, 1), "and told");

    let report = workspace.teardown(&lease.session, TreeEnd::Park, &bench.told).await.unwrap();
    assert_eq!((report.warnings, report.leaks), (vec![], vec![]));
    let all = noted(&bench.path("project").join("noted"));
    assert_eq!(all[&marked("teardown")], 1);
    assert!(all.keys().all(|line| line.contains(" yes ")), "{all:?}");
    let told = marks.told.lock().unwrap().last().cloned().unwrap();
    assert!(told.starts_with("teardown: sh note.sh teardown"), "{told}");
    let last = one("note.sh teardown");
    assert_eq!(last.network, Network::Mesh);
    assert_eq!(last.reaches, [back.min(web), back.max(web)]);
    assert_eq!(*marks.ended.lock().unwrap(), [], "its home is the engine's: see `homes_sweep`");
    std::fs::remove_file(bench.path("project").join("noted")).unwrap();
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn services_without_an_available_sandbox_do_not_start() {
    let bench = Bench::new();
    let marks = Arc::new(Marks::default());
    let workspace = open(&bench, &marks);
    // Not at all: nothing ran, and everything is undone.
    marks.refuse(true);
    let request = || request(&bench, SandboxLevel::Namespace);
    let err = workspace.build(request(), &bench.told).await.unwrap_err();
    assert!(chain(&err).contains("is not started: ") && chain(&err).contains("no sandbox today"));
    // Without a request, the result is the same.
    let without = bench.workspace();
    let err = without.build(request(), &bench.told).await.unwrap_err();
    assert!(chain(&err).contains("puts no sandbox around"), "{}", chain(&err));
    assert!(marks.told.lock().unwrap().is_empty(), "nothing was measured");
    bench.assert_nothing_left(&workspace).await;
    marks.refuse(false);
    let lease = built(&bench, &workspace).await;
    let file = lease.worktree.join("noted");

    // Not again.
    marks.refuse(true);
    std::fs::write(lease.worktree.join("die"), "").unwrap();
    let ended = || match workspace.process_state(&lease.session, "web") {
        ProcessState::Ended { status } => Some(status),
        ProcessState::Running { .. } | ProcessState::Restarting { .. } | ProcessState::Unknown => {
            None
        }
    };
    until("it stays ended", || ended().is_some()).await;
    assert!(ended().unwrap().contains("no sandbox today"));
    assert_eq!(noted(&file)[&marked("web")], 1);
    // Not by the next daemon either, which adopts the running programs.
    drop(workspace);
    let workspace = open(&bench, &marks);
    let resumed = workspace.resume(&Quiet).await;
    let [Resumed::Kept { warnings, .. }] = resumed.as_slice() else { panic!("{resumed:?}") };
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(warning.contains("no sandbox today"), "{warning}");
    assert_eq!(noted(&file)[&marked("web")], 1);
    let state = workspace.process_state(&lease.session, "back");
    assert!(matches!(state, ProcessState::Running { .. }), "{state:?}");
    // And no hook.
    let report = workspace.teardown(&lease.session, TreeEnd::Park, &bench.told).await.unwrap();
    let [warning] = report.warnings.as_slice() else { panic!("{report:?}") };
    assert!(warning.contains("is not started: ") && warning.contains("no sandbox today"));
    assert!(!bench.path("project").join("noted").exists());
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn the_level_none_needs_no_sandbox() {
    let bench = Bench::new();
    let marks = Arc::new(Marks::default());
    let workspace = open(&bench, &marks);
    let request = request(&bench, SandboxLevel::None);
    let lease = workspace.build(request, &bench.told).await.unwrap();
    let file = lease.worktree.join("noted");
    until("each has said what it sees", || noted(&file).len() >= 5).await;
    let all = noted(&file);
    assert!(all.keys().all(|line| line.contains(" no ")), "{all:?}");
    workspace.teardown(&lease.session, TreeEnd::Park, &bench.told).await.unwrap();
    assert!(marks.asked("").is_empty());
    std::fs::remove_file(bench.path("project").join("noted")).unwrap();
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn a_link_in_place_of_a_session_directory_is_not_followed_at_the_end() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let text = "services:\n  file: {strategy: database, engine: sqlite, file: storage/own.sqlite3}\n\
                env_file: storage/env\n";
    let lease = workspace.build(bench.request("s1", text), &bench.told).await.unwrap();
    let (storage, other) = (lease.worktree.join("storage"), bench.path("project"));
    let names = ["own.sqlite3", "own.sqlite3-wal", "env"];
    for name in names {
        // The file of variables would be known for ours by its text.
        let text = std::fs::read(storage.join(name)).unwrap_or_default();
        std::fs::write(other.join(name), text).unwrap();
    }
    std::fs::remove_dir_all(&storage).unwrap();
    std::os::unix::fs::symlink(&other, &storage).unwrap();
    let report = workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    assert_eq!(report.leaks, []);
    for name in names {
        assert!(other.join(name).exists(), "{name} is somebody else's");
        std::fs::remove_file(other.join(name)).unwrap();
    }
    bench.assert_nothing_left(&workspace).await;
}
