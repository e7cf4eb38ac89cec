//! Commands that are called in a session's environment: the suite, and special cases.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::enclosure::{Enclose as _, EnclosePlan, Network, Surroundings};
use overmind_core::ids::SessionId;
use overmind_core::sandbox::{
    Exit, HomeFile, OutputSink, Sandbox, SandboxError, SandboxLevel, SandboxRequest, SandboxResult,
};
use overmind_sandbox::{Enclosures, Options};
use tempfile::TempDir;

use crate::conformance::suite;
use crate::support::{
    NAMESPACE, Place, Subject, init_program, marker, pause, processes_with, until,
};

/// Each request in an environment whose worktree is its workspace.
#[derive(Debug)]
struct Rooms {
    enclosures: Arc<Enclosures>,
    reaches: Vec<u16>,
    borrowed: Vec<PathBuf>,
    /// The worktree, where the workspace is a directory of it.
    top: Option<PathBuf>,
    _homes: TempDir,
}

impl Rooms {
    fn new(reaches: Vec<u16>) -> Self {
        Self::with(reaches, Options { init_program: init_program(), ..Options::default() })
    }

    fn with(reaches: Vec<u16>, options: Options) -> Self {
        let homes = tempfile::tempdir().unwrap();
        let enclosures =
            Arc::new(Enclosures::new(options, homes.path().join("homes"), Vec::new(), None));
        Self { enclosures, reaches, borrowed: Vec::new(), top: None, _homes: homes }
    }

    fn plan(&self, request: &SandboxRequest) -> EnclosePlan {
        let (reaches, borrowed) = (self.reaches.clone(), self.borrowed.clone());
        let workspace = self.top.clone().unwrap_or_else(|| request.workspace.clone());
        let room = Surroundings { workspace, borrowed, bounded: false, reaches };
        room.plan(SessionId::from_u128(7), SandboxLevel::Namespace)
    }

    fn of(&self, request: &SandboxRequest) -> Arc<dyn Sandbox> {
        Arc::clone(&self.enclosures).sandbox(self.plan(request)).unwrap()
    }
}

impl Sandbox for Rooms {
    fn level(&self) -> SandboxLevel {
        SandboxLevel::Namespace
    }

    fn run(&self, request: SandboxRequest) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(async move { self.of(&request).run(request).await })
    }

    fn run_streaming(
        &self,
        request: SandboxRequest,
        sink: OutputSink,
    ) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(async move { self.of(&request).run_streaming(request, sink).await })
    }

    fn check(&self) -> Fut<'_, Result<(), SandboxError>> {
        Box::pin(async { self.of(&Place::new().sh("true")).check().await })
    }
}

fn with(reaches: Vec<u16>) -> Option<Subject> {
    let sandbox = Arc::new(Rooms::new(reaches));
    Some(Subject { sandbox, gives: NAMESPACE, inside: None, _keep: None, close: None })
}

async fn subject() -> Option<Subject> {
    with(Vec::new())
}

suite!(subject);

/// Each case where something is carried between its network and the host's.
mod that_reach_a_service {
    use super::*;

    async fn subject() -> Option<Subject> {
        // Nothing listens there.
        with(vec![1])
    }

    suite!(subject);
}

/// Sends a word to each connection.
fn service(word: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(word.as_bytes());
        }
    });
    port
}

#[tokio::test]
async fn a_call_sees_borrowed_objects_and_writes_only_its_directory() {
    let place = Place::new();
    let lent = tempfile::tempdir().unwrap();
    std::fs::write(lent.path().join("object"), "lent\n").unwrap();
    let lent_at = lent.path().canonicalize().unwrap();
    let rooms = Rooms { borrowed: vec![lent_at.clone()], ..Rooms::new(Vec::new()) };
    let script = format!(
        "pwd; cat {0}/object; for f in hello {0}/object out/made /tmp/made; do \
         echo x 2>/dev/null >> $f && echo wrote $f; done; cat /workspace/hello; ls /home/sandbox",
        lent_at.display()
    );
    let place_at = place.workspace().canonicalize().unwrap();
    let here = place_at.display();
    for (writable, wrote) in [
        (None, ""),
        (Some("out"), "wrote out/made\n"),
        (Some("."), "wrote hello\nwrote out/made\n"),
    ] {
        let request = SandboxRequest { writable: writable.map(Into::into), ..place.sh(&script) };
        let result = rooms.run(request).await.unwrap();
        let changed = if writable == Some(".") { "x\n" } else { "" };
        let wanted = format!("{here}\nlent\n{wrote}wrote /tmp/made\nhello\n{changed}");
        assert_eq!(result.stdout.text, wanted, "{writable:?}: {}", result.stderr.text);
    }
    assert_eq!(std::fs::read_to_string(lent.path().join("object")).unwrap(), "lent\n");
    // Without the grant it is not visible.
    let bare = Rooms::new(Vec::new());
    let result = bare.run(place.sh(&format!("cat {}/object", lent_at.display()))).await.unwrap();
    assert_eq!(result.exit, Exit::Code(1), "{result:?}");
}

#[tokio::test]
async fn a_session_in_a_subdirectory_sees_and_writes_its_whole_worktree() {
    let place = Place::new();
    let top = place.workspace();
    let rooms = Rooms { top: Some(top.clone()), ..Rooms::new(Vec::new()) };
    let deep = SandboxRequest { workspace: top.join("deep"), ..place.sh("pwd -P; cat ../hello") };
    let result = rooms.run(deep.clone()).await.unwrap();
    let at = top.canonicalize().unwrap().join("deep");
    assert_eq!(result.stdout.text, format!("{}\nhello\n", at.display()));
    let touch = |writable: &str| SandboxRequest {
        argv: ["sh", "-c", "touch ../top 2>/dev/null; touch er/low && cd /workspace && pwd -P"]
            .map(str::to_owned)
            .into(),
        writable: Some(writable.into()),
        ..deep.clone()
    };
    let result = rooms.run(touch("er")).await.unwrap();
    assert_eq!(result.stdout.text, format!("{}\n", at.display()), "{}", result.stderr.text);
    assert!(top.join("deep/er/low").exists() && !top.join("top").exists());
    rooms.run(touch(".")).await.unwrap();
    assert!(top.join("top").exists(), "as a command of the session could");
    // No other path belongs to this environment.
    let other = Place::new();
    let err = rooms.run(other.sh("true")).await.unwrap_err().to_string();
    assert!(err.contains("is not in"), "{err}");
}

#[tokio::test]
async fn only_services_of_the_environment_are_reachable() {
    let place = Place::new();
    let (mine, other) = (service("mine"), service("other"));
    let rooms = Rooms::new(vec![mine]);
    let ask = |port: u16| format!("exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3 || echo refused; ");
    let script = [ask(mine), ask(other), ask(80)].concat();
    let result = rooms.run(place.request(&["bash", "-c", &script])).await.unwrap();
    assert_eq!(result.stdout.text, "minerefused\nrefused\n", "{}", result.stderr.text);

    let attested = rooms.of(&place.sh("true")).attest().await.unwrap().unwrap();
    assert_eq!(attested.attestation.driver, "namespace of a call in a room, network of its room");
    let bound = |limit: &str| {
        let found = attested.attestation.bounds.iter().find(|bound| bound.limit == limit);
        found.is_some_and(|bound| bound.enforced_by.is_some())
    };
    assert!(bound("memory_bytes") && bound("file_bytes") && bound("timeout"));
}

#[tokio::test]
async fn a_call_gets_canaries_and_live_output_and_its_tree_ends() {
    let place = Place::new();
    let rooms = Rooms::new(vec![service("mine")]);
    let mark = marker();
    let heard = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&heard);
    let sink: OutputSink = Arc::new(move |_, bytes| {
        hears.fetch_or(bytes.starts_with(b"decoy"), Ordering::SeqCst);
    });
    let mut request =
        place.sh(&format!("cat $HOME/.a/key; setsid sh -c 'sleep 600; :' {mark} & sleep 600; :"));
    request.env.push(("HOME".to_owned(), "/tmp".to_owned()));
    request.home = vec![HomeFile { path: ".a/key".into(), content: b"decoy\n".to_vec() }];
    {
        let call = rooms.run_streaming(request.clone(), sink);
        tokio::pin!(call);
        let seen = async {
            while !heard.load(Ordering::SeqCst) || processes_with(&mark).is_empty() {
                pause(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            ended = &mut call => panic!("{ended:?}"),
            () = seen => {}
        }
    }
    until("they are gone", || processes_with(&mark).is_empty()).await;
    request.timeout = Duration::from_millis(700);
    assert_eq!(rooms.run(request).await.unwrap().exit, Exit::TimedOut);
    assert_eq!(processes_with(&mark).len(), 0);
}

#[tokio::test]
async fn server_files_are_in_no_environment() {
    let place = Place::new();
    let own = tempfile::tempdir().unwrap();
    let private = vec![own.path().to_owned()];
    let options = Options { init_program: init_program(), private, ..Options::default() };
    let rooms = Rooms { borrowed: vec![own.path().to_owned()], ..Rooms::with(Vec::new(), options) };
    let err = rooms.run(place.sh("true")).await.unwrap_err().to_string();
    assert!(err.contains("is the server's own"), "{err}");
    for level in [SandboxLevel::None, SandboxLevel::Docker, SandboxLevel::Microvm] {
        let plan = EnclosePlan { level, network: Network::None, ..rooms.plan(&place.sh("")) };
        assert!(Arc::clone(&rooms.enclosures).sandbox(plan).is_none());
    }
}
