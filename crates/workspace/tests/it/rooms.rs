//! Whole rooms, through the engine's port: real repositories, processes and ports.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use overmind_core::ids::SessionId;
use overmind_core::room::history::RoomMark;
use overmind_core::room::trust::TrustGiven;
use overmind_core::room::{
    RoomClosed, RoomDone, RoomEnd, RoomError, RoomErrorKind, RoomMade, RoomOrder, RoomProgress,
    RoomReach, RoomSandbox, RoomSink, RoomWhen, RoomWish, Rooms,
};
use overmind_core::time::Timestamp;
use overmind_testkit::ports::WallClock;
use overmind_workspace::rooms::{LocalRooms, Options};

use crate::support::{marked, range, runs, variable};
use crate::tree_repo::{commit, git, read, try_git, write};

/// A project and the rooms of a data directory.
pub(crate) struct Yard {
    pub(crate) root: PathBuf,
    pub(crate) repo: PathBuf,
    pub(crate) told: Arc<Mutex<Vec<RoomProgress>>>,
    _dir: Option<tempfile::TempDir>,
}

impl Yard {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // The database server's user must be able to pass through.
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["home", "repo", "tmp"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let mut yard = Self::at(root);
        yard._dir = Some(dir);
        yard
    }

    /// An environment that another process created.
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { repo: root.join("repo"), root, told: Arc::default(), _dir: None }
    }

    /// With a repository of three files.
    pub(crate) fn with_git() -> Self {
        let yard = Self::new();
        git(&yard.repo, &["init", "-q", "-b", "main"]);
        write(&yard.repo, "a.txt", "one\n");
        write(&yard.repo, "app/index.html", "hello\n");
        write(&yard.repo, ".gitignore", "*.log\n.env*\n");
        commit(&yard.repo, "first");
        yard
    }

    /// The project's file, committed.
    pub(crate) fn file(&self, text: &str) {
        self.file_with_pool(0, text);
    }

    pub(crate) fn file_with_pool(&self, size: u32, text: &str) {
        let range = range(&self.root);
        let head = format!("version: 1\npool: {{size: {size}}}\nports:\n  range: {range}\n");
        write(&self.repo, ".overmind.yml", &format!("{head}{}", marked(text)));
        if self.repo.join(".git").exists() {
            commit(&self.repo, "the file");
        }
    }

    pub(crate) fn rooms(&self) -> LocalRooms {
        self.rooms_with(|_| {})
    }

    pub(crate) fn rooms_with(&self, change: impl FnOnce(&mut Options)) -> LocalRooms {
        let environment = ["PATH", "HOME", "LANG"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), variable(name)?)))
            .collect();
        let mut options = Options {
            registry: self.root.join("registry"),
            temp: self.root.join("tmp"),
            environment,
            ..Options::new(self.root.join("home"), Arc::new(WallClock))
        };
        change(&mut options);
        let rooms = LocalRooms::open(options);
        self.trust(&rooms);
        rooms
    }

    /// Confirms the current file of the project.
    pub(crate) fn trust(&self, rooms: &LocalRooms) {
        // Some tests put pipes and devices there.
        let file = self.repo.join(".overmind.yml");
        if !file.metadata().is_ok_and(|found| found.is_file() && found.len() < 1 << 20) {
            return;
        }
        let Ok(text) = std::fs::read(file) else { return };
        let given = TrustGiven {
            hash: blake3::hash(&text).to_hex().to_string(),
            setup_network: false,
            by: "test".to_owned(),
            at: Timestamp::from_micros(0),
        };
        rooms.trusted([(self.repo.clone(), given)].into());
    }

    pub(crate) fn order(&self, number: u128, name: &str) -> RoomOrder {
        RoomOrder {
            session: SessionId::from_u128(number),
            name: name.to_owned(),
            about: String::new(),
            agent: String::new(),
            project: self.repo.clone(),
            wish: RoomWish { reach: RoomReach::Any, ..RoomWish::default() },
            sandbox: RoomSandbox::default(),
            before: None,
        }
    }

    pub(crate) fn sink(&self) -> RoomSink {
        let told = Arc::clone(&self.told);
        Arc::new(move |progress| told.lock().unwrap().push(progress))
    }

    pub(crate) async fn prepare(&self, rooms: &LocalRooms, order: &RoomOrder) -> RoomMade {
        rooms.prepare(order.clone(), self.sink()).await.unwrap_or_else(|err| panic!("{err}"))
    }

    pub(crate) async fn close(
        &self,
        rooms: &LocalRooms,
        order: &RoomOrder,
        end: RoomEnd,
    ) -> RoomClosed {
        let closed = rooms.close(order.session, end, self.sink()).await;
        let closed = closed.unwrap_or_else(|err| panic!("{err}"));
        assert_eq!(closed.leaks, []);
        closed
    }

    pub(crate) fn listed(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(name)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    /// No remains of any session exist except in the repository.
    pub(crate) async fn assert_clean(&self, rooms: &LocalRooms) {
        assert_eq!(rooms.leaks().await, [], "left over");
        assert_eq!(self.listed("home/leases"), [""; 0]);
        assert_eq!(self.listed("tmp"), [""; 0]);
        let homes = self.listed("home/worktrees");
        for home in homes.iter().filter(|name| !name.starts_with('.')) {
            let trees = self.listed(&format!("home/worktrees/{home}"));
            let trees: Vec<&String> = trees.iter().filter(|name| !name.starts_with('.')).collect();
            assert!(trees.is_empty(), "{trees:?}");
        }
        assert_eq!(git_status(&self.repo), "");
    }

    pub(crate) fn branches(&self) -> Vec<String> {
        let all = git(&self.repo, &["for-each-ref", "--format=%(refname:short)", "refs/heads"]);
        all.lines().map(str::to_owned).collect()
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        if self._dir.is_none() {
            return;
        }
        // A failed test leaves its server running, which would hold the directory.
        let file = self.root.join("home/postgres/data/postmaster.pid");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if let Some(pid) = text.lines().next().and_then(|line| line.trim().parse().ok()) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        }
    }
}

pub(crate) fn git_status(repo: &Path) -> String {
    try_git(repo, &["status", "--porcelain"]).unwrap_or_default()
}

pub(crate) fn top(made: &RoomMade) -> &Path {
    made.worktree.as_deref().unwrap()
}

pub(crate) async fn environment(rooms: &LocalRooms, order: &RoomOrder) -> BTreeMap<String, String> {
    rooms.environment(order.session).await.unwrap().into_iter().collect()
}

/// The answer of a server to one request.
pub(crate) fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub(crate) const APP: &str = "
  names: [PORT, ADMIN_PORT]
services:
  web:
    strategy: process
    command: exec python3 -m http.server \"$PORT\" --bind 127.0.0.1 --directory app
    ports: [http]
    ready: {http: /index.html}
env: {WEB: '${web.url}/x'}
env_file: .env.session
setup: echo set up > setup.log
teardown: cp setup.log \"$OVERMIND_PROJECT/../torn-down\"
";

#[tokio::test]
async fn an_environment_releases_everything_except_the_work() {
    let yard = Yard::with_git();
    yard.file(APP);
    let base = git(&yard.repo, &["rev-parse", "HEAD"]);
    let rooms = yard.rooms();
    let mut order = yard.order(1, "fix login");
    order.project = yard.repo.join("app");
    let made = yard.prepare(&rooms, &order).await;
    assert_eq!(made.branch.as_deref(), Some("overmind/fix-login"));
    assert_eq!(made.base.as_ref(), Some(&base));
    assert_eq!(made.directory, top(&made).join("app"));
    assert_eq!(made.ports.keys().collect::<Vec<_>>(), ["ADMIN_PORT", "PORT", "web/http"]);
    let web = made.ports["web/http"];
    assert_eq!(made.urls["web"], format!("http://127.0.0.1:{web}"));
    assert_eq!(made.urls["PORT"], format!("http://127.0.0.1:{}", made.ports["PORT"]));
    assert!(get(web, "/index.html").ends_with("hello\n"));
    let env = environment(&rooms, &order).await;
    assert_eq!(env["WEB"], format!("http://127.0.0.1:{web}/x"));
    assert_eq!(env["PORT"], made.ports["PORT"].to_string());
    assert_eq!(env["OVERMIND_BRANCH"], "overmind/fix-login");
    assert_eq!(env["OVERMIND_PROJECT"], yard.repo.to_string_lossy());
    assert!(env.contains_key("GIT_CEILING_DIRECTORIES") && !env.contains_key("PATH"), "{env:?}");
    assert_eq!(read(&top(&made).join("setup.log")), "set up\n");
    // Asked for again, it is the same one.
    assert_eq!(yard.prepare(&rooms, &order).await, made);
    assert_eq!(git_status(&yard.repo), "");

    write(top(&made), "a.txt", "two\n");
    commit(top(&made), "by the session");
    write(top(&made), "new.txt", "not committed\n");
    let work = rooms.work(&order, &made, None).await.unwrap();
    assert_eq!((work.files, work.insertions, work.deletions, work.commits), (2, 2, 1, 1));
    assert!(work.diff.contains("+not committed") && !work.truncated);

    let closed = yard.close(&rooms, &order, RoomEnd::Park).await;
    assert_eq!(closed.branch.as_deref(), Some("overmind/fix-login"));
    assert!(closed.parked && closed.kept.is_none(), "{closed:?}");
    assert_eq!(
        git(&yard.repo, &["rev-parse", "overmind/fix-login"]),
        closed.commit.clone().unwrap()
    );
    assert_eq!(read(&yard.root.join("torn-down")), "set up\n");
    assert!(TcpStream::connect(("127.0.0.1", web)).is_err());
    assert_eq!(environment(&rooms, &order).await, BTreeMap::new());
    yard.assert_clean(&rooms).await;
    // A crash before its answer arrived: the same answer.
    rooms.shutdown().await;
    drop(rooms);
    let rooms = yard.rooms();
    assert_eq!(yard.close(&rooms, &order, RoomEnd::Park).await, closed);

    let again = rooms.work(&order, &made, Some(&closed)).await.unwrap();
    assert_eq!((again.files, again.insertions, again.commits), (2, 2, 2));
    let into = RoomDone::Merge { into: None };
    let outcome = rooms.done(&order, &made, Some(&closed), into).await.unwrap();
    assert_eq!(outcome.branch.as_deref(), Some("main"));
    assert_eq!(outcome.commit, closed.commit);
    assert_eq!(read(&yard.repo.join("new.txt")), "not committed\n");
    assert_eq!(yard.branches(), ["main"]);
    yard.assert_clean(&rooms).await;
}

#[tokio::test]
async fn a_reopened_tree_has_its_original_git_variables() {
    let yard = Yard::with_git();
    let rooms = yard.rooms();
    let mut order = yard.order(1, "fix login");
    let made = yard.prepare(&rooms, &order).await;
    let of_git = |env: BTreeMap<String, String>| -> BTreeMap<String, String> {
        env.into_iter().filter(|(name, _)| name.starts_with("GIT_")).collect()
    };
    let first = of_git(environment(&rooms, &order).await);
    assert!(first.contains_key("GIT_CEILING_DIRECTORIES"), "{first:?}");
    write(top(&made), "new.txt", "not committed\n");
    let closed = yard.close(&rooms, &order, RoomEnd::Decide).await;
    assert_eq!(closed.kept.as_deref(), Some(top(&made)));

    order.before = Some(Box::new(made.clone()));
    let again = yard.prepare(&rooms, &order).await;
    assert_eq!((&again.worktree, &again.directory), (&made.worktree, &made.directory));
    assert_eq!(of_git(environment(&rooms, &order).await), first);
    yard.close(&rooms, &order, RoomEnd::Discard).await;
    yard.assert_clean(&rooms).await;
}

#[tokio::test]
async fn a_session_without_work_leaves_no_branch() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    let order = yard.order(1, "idle");
    let made = yard.prepare(&rooms, &order).await;
    let closed = yard.close(&rooms, &order, RoomEnd::Park).await;
    assert_eq!(closed, RoomClosed::default());
    assert_eq!(yard.branches(), ["main"]);
    let work = rooms.work(&order, &made, Some(&closed)).await.unwrap();
    assert_eq!((work.files, work.commits, work.base), (0, 0, made.base.clone()));
    let merge = RoomDone::Merge { into: None };
    let outcome = rooms.done(&order, &made, Some(&closed), merge).await.unwrap();
    assert_eq!(outcome.said, "idle changed nothing: there was nothing to do.");
    let branch = RoomDone::PrBranch { name: None };
    let err = rooms.done(&order, &made, Some(&closed), branch).await.unwrap_err();
    assert_eq!(err.kind, RoomErrorKind::NotFound);
    yard.assert_clean(&rooms).await;
    // This one was never used.
    let nobody = yard.order(9, "nobody");
    assert_eq!(yard.close(&rooms, &nobody, RoomEnd::Park).await, RoomClosed::default());
    assert_eq!(environment(&rooms, &nobody).await, BTreeMap::new());
}

#[tokio::test]
async fn a_kept_tree_is_found_after_a_restart_and_removed_after_its_merge() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    let order = yard.order(1, "kept");
    let made = yard.prepare(&rooms, &order).await;
    write(top(&made), "a.txt", "two\n");
    let closed = yard.close(&rooms, &order, RoomEnd::Keep).await;
    assert_eq!(closed.kept.as_deref(), Some(top(&made)));
    assert_eq!(yard.branches(), ["main"]);
    rooms.shutdown().await;
    drop(rooms);
    let rooms = yard.rooms();
    rooms.keep(Vec::new()).await;
    assert_eq!(rooms.leaks().await, []);
    let work = rooms.work(&order, &made, Some(&closed)).await.unwrap();
    assert_eq!((work.files, work.commits), (1, 0));
    let stays = rooms.done(&order, &made, Some(&closed), RoomDone::Keep).await.unwrap();
    assert_eq!(stays.kept, closed.kept);
    let into = RoomDone::Merge { into: None };
    let outcome = rooms.done(&order, &made, Some(&closed), into.clone()).await.unwrap();
    assert_eq!((outcome.kept, outcome.warnings), (None, vec![]));
    assert_eq!(read(&yard.repo.join("a.txt")), "two\n");
    assert!(!top(&made).exists());
    yard.assert_clean(&rooms).await;
    let err = rooms.done(&order, &made, Some(&closed), into).await.unwrap_err();
    assert_eq!(err.kind, RoomErrorKind::NotFound);
    assert!(err.message.contains("is at"), "{err}");
}

#[tokio::test]
async fn a_repeated_step_starts_with_the_earlier_files_even_if_later_ones_were_saved() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    let order = yard.order(1, "again");
    let made = yard.prepare(&rooms, &order).await;
    let text = || read(&top(&made).join("a.txt"));
    let save = |step| rooms.snapshot(order.session, RoomMark::Before(step));
    save(1).await.unwrap();
    write(top(&made), "a.txt", "one step\n");
    save(2).await.unwrap();
    // Cut off in the middle of step 2, and then after its files were saved.
    for after_it in [false, true] {
        write(top(&made), "a.txt", "one step\nhalf of another\n");
        if after_it {
            save(3).await.unwrap();
        }
        let undone = rooms.restore(order.session, 2).await.unwrap().unwrap();
        assert_eq!(undone.to, "2");
        assert_eq!(text(), "one step\n");
        assert_eq!(rooms.restore(order.session, 2).await.unwrap(), None);
    }
    rooms.done(&order, &made, None, RoomDone::Discard).await.unwrap();
}

#[tokio::test]
async fn an_unsaved_state_is_saved_by_the_next_attempt() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    let order = yard.order(1, "short");
    let made = yard.prepare(&rooms, &order).await;
    let save = |step| rooms.snapshot(order.session, RoomMark::Before(step));
    save(1).await.unwrap();
    write(top(&made), "a.txt", "one step\n");
    save(2).await.unwrap();
    // The state can be counted, and not be named.
    let states = snapshots(&yard.root.join("home"));
    let aside = states.with_extension("aside");
    std::fs::rename(&states, &aside).unwrap();
    std::fs::write(&states, "").unwrap();
    write(top(&made), "a.txt", "another step\n");
    save(3).await.unwrap_err();
    std::fs::remove_file(&states).unwrap();
    std::fs::rename(&aside, &states).unwrap();
    assert!(save(3).await.unwrap().is_some(), "what was not saved is taken for saved");
    rooms.done(&order, &made, None, RoomDone::Discard).await.unwrap();
}

/// The directory of the references to saved states, of the one tree below `dir`.
fn snapshots(dir: &Path) -> PathBuf {
    let found = walk(dir).into_iter().find(|path| path.ends_with("refs/overmind/snapshots"));
    found.expect("a tree has states")
}

/// Every directory below `dir`.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    let mut next = 0;
    while next < all.len() {
        for entry in std::fs::read_dir(&all[next]).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                all.push(entry.path());
            }
        }
        next += 1;
    }
    all
}

#[tokio::test]
async fn discarded_work_can_be_restored_for_a_limited_time() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    // While the environment is open, from a kept tree, and from a branch.
    for (number, end) in [(1, None), (2, Some(RoomEnd::Keep)), (3, Some(RoomEnd::Park))] {
        let order = yard.order(number, "gone");
        let made = yard.prepare(&rooms, &order).await;
        write(top(&made), "a.txt", &format!("{number}\n"));
        let closed = match end {
            Some(end) => Some(yard.close(&rooms, &order, end).await),
            None => None,
        };
        let outcome = rooms.done(&order, &made, closed.as_ref(), RoomDone::Discard).await.unwrap();
        let last = outcome.commit.clone().unwrap();
        assert!(outcome.warnings[0].contains("refs/overmind/discarded/gone"), "{outcome:?}");
        assert_eq!(git(&yard.repo, &["show", &format!("{last}:a.txt")]), number.to_string());
        assert_eq!(yard.branches(), ["main"]);
        yard.assert_clean(&rooms).await;
        let err = rooms.work(&order, &made, closed.as_ref()).await.unwrap_err();
        assert!(err.message.contains("brings it back"), "{err}");
    }
    assert_eq!(git(&yard.repo, &["for-each-ref", "refs/overmind/discarded"]).lines().count(), 3);
}

#[tokio::test]
async fn a_conflict_lists_its_files_and_changes_nothing() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    for (number, end) in [(1, RoomEnd::Keep), (2, RoomEnd::Park)] {
        let order = yard.order(number, &format!("s{number}"));
        let made = yard.prepare(&rooms, &order).await;
        write(top(&made), "a.txt", "session\n");
        let closed = yard.close(&rooms, &order, end).await;
        write(&yard.repo, "a.txt", &format!("user {number}\n"));
        let head = commit(&yard.repo, "meanwhile");
        let into = RoomDone::Merge { into: None };
        let err = rooms.done(&order, &made, Some(&closed), into.clone()).await.unwrap_err();
        assert_eq!(err.kind, RoomErrorKind::Conflict);
        assert!(err.message.contains("a.txt") && err.message.contains("main"), "{err}");
        assert_eq!(git(&yard.repo, &["rev-parse", "HEAD"]), head);
        assert_eq!(git_status(&yard.repo), "");
        // A change of the user's in the way.
        git(&yard.repo, &["reset", "-q", "--hard", "HEAD~1"]);
        write(&yard.repo, "a.txt", "the user's\n");
        let err = rooms.done(&order, &made, Some(&closed), into.clone()).await.unwrap_err();
        assert_eq!(err.kind, RoomErrorKind::Conflict, "{err}");
        assert_eq!(read(&yard.repo.join("a.txt")), "the user's\n");
        git(&yard.repo, &["checkout", "-q", "a.txt"]);
        rooms.done(&order, &made, Some(&closed), RoomDone::Discard).await.unwrap();
        yard.assert_clean(&rooms).await;
    }
}

#[tokio::test]
async fn diverged_branches_are_merged() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    let order = yard.order(1, "joined");
    let made = yard.prepare(&rooms, &order).await;
    write(top(&made), "a.txt", "session\n");
    let closed = yard.close(&rooms, &order, RoomEnd::Park).await;
    write(&yard.repo, "b.txt", "user\n");
    let head = commit(&yard.repo, "meanwhile");
    let into = RoomDone::Merge { into: Some("main".to_owned()) };
    let outcome = rooms.done(&order, &made, Some(&closed), into).await.unwrap();
    let parents = git(&yard.repo, &["log", "-1", "--format=%P|%s"]);
    let tip = closed.commit.clone().unwrap();
    assert_eq!(parents, format!("{head} {tip}|Work of joined"));
    assert_eq!(outcome.commit, Some(git(&yard.repo, &["rev-parse", "HEAD"])));
    assert_eq!(
        (read(&yard.repo.join("a.txt")), git_status(&yard.repo)),
        ("session\n".into(), String::new())
    );
    let into = RoomDone::Merge { into: Some("nowhere".to_owned()) };
    let err = rooms.done(&order, &made, Some(&closed), into).await.unwrap_err();
    assert_eq!(err.kind, RoomErrorKind::Project);
    yard.assert_clean(&rooms).await;
}

#[tokio::test]
async fn a_branch_for_a_push_contains_all_work_while_the_session_continues() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    let order = yard.order(1, "feature");
    let made = yard.prepare(&rooms, &order).await;
    let named = |name: &str| RoomDone::PrBranch { name: Some(name.to_owned()) };
    let err = rooms.done(&order, &made, None, named("early")).await.unwrap_err();
    assert_eq!(err.kind, RoomErrorKind::NotFound, "{err}");
    write(top(&made), "a.txt", "two\n");
    let outcome = rooms.done(&order, &made, None, named("pr/one")).await.unwrap();
    assert_eq!(outcome.branch.as_deref(), Some("pr/one"));
    assert_eq!(git(&yard.repo, &["show", "pr/one:a.txt"]), "two");
    assert_eq!(git(top(&made), &["status", "--porcelain"]), " M a.txt");
    assert!(top(&made).exists());
    let closed = yard.close(&rooms, &order, RoomEnd::Park).await;
    let parked = closed.branch.clone().unwrap();
    // Under another name, at the same commit; then under the taken name.
    let outcome = rooms.done(&order, &made, Some(&closed), named("pr/two")).await.unwrap();
    assert_eq!(outcome.branch.as_deref(), Some("pr/two"));
    assert_eq!(outcome.commit, closed.commit);
    assert!(!yard.branches().contains(&parked), "{:?}", yard.branches());
    let err = rooms.done(&order, &made, Some(&closed), named("main")).await.unwrap_err();
    assert_eq!(err.kind, RoomErrorKind::Conflict, "{err}");
    assert!(err.message.contains("there is a branch main"), "{err}");
    let err = rooms.done(&order, &made, Some(&closed), named("a..b")).await.unwrap_err();
    assert_eq!(err.kind, RoomErrorKind::Project);
    // A kept tree is removed once its branch exists.
    let order = yard.order(2, "kept");
    let made = yard.prepare(&rooms, &order).await;
    write(top(&made), "b.txt", "b\n");
    let closed = yard.close(&rooms, &order, RoomEnd::Keep).await;
    let branch = RoomDone::PrBranch { name: None };
    let outcome = rooms.done(&order, &made, Some(&closed), branch).await.unwrap();
    assert_eq!((outcome.branch.as_deref(), outcome.kept), (Some("overmind/kept"), None));
    yard.assert_clean(&rooms).await;
}

#[tokio::test]
async fn the_env_file_is_on_no_branch_and_in_no_diff() {
    let yard = Yard::with_git();
    // Only this list ignores it; its content is complete only after the setup.
    yard.file(
        "
services:
  web:
    strategy: process
    start: after_setup
    command: exec python3 -m http.server \"$PORT\" --bind 127.0.0.1
    ports: [http]
env: {PASSWORD: 'secret-${web.http}'}
env_file: conf/vars
setup: mkdir -p conf && echo mine > conf/other
",
    );
    let rooms = yard.rooms();
    let order = yard.order(1, "feature");
    let made = yard.prepare(&rooms, &order).await;
    let vars = top(&made).join("conf/vars");
    assert!(read(&vars).contains(&format!("PASSWORD=secret-{}", made.ports["web/http"])));
    let mode = std::os::unix::fs::PermissionsExt::mode(&vars.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(git(top(&made), &["status", "--porcelain", "-uall"]), "?? conf/other");
    let work = rooms.work(&order, &made, None).await.unwrap();
    assert_eq!(work.files, 1, "{}", work.diff);
    // Whatever the session writes to its own list, and to its targets.
    let info = top(&made).join(".git/info");
    std::fs::remove_dir_all(&info).unwrap();
    std::os::unix::fs::symlink(yard.repo.join(".git/info"), &info).unwrap();
    let of_project = read(&yard.repo.join(".git/info/exclude"));
    let named = RoomDone::PrBranch { name: Some("pr/one".to_owned()) };
    rooms.done(&order, &made, None, named).await.unwrap();
    let listed = |branch: &str| git(&yard.repo, &["ls-tree", "-r", "--name-only", branch, "conf"]);
    assert_eq!(listed("pr/one"), "conf/other");
    let closed = yard.close(&rooms, &order, RoomEnd::Park).await;
    assert_eq!(listed(closed.branch.as_deref().unwrap()), "conf/other");
    assert_eq!(read(&yard.repo.join(".git/info/exclude")), of_project);
    yard.assert_clean(&rooms).await;
    // In a kept tree it is removed, and a new file of that name is work like any other.
    let order = yard.order(2, "kept");
    let made = yard.prepare(&rooms, &order).await;
    yard.close(&rooms, &order, RoomEnd::Keep).await;
    assert!(!top(&made).join("conf/vars").exists());
    write(top(&made), "conf/vars", "mine\n");
    let work = rooms.work(&order, &made, None).await.unwrap();
    assert_eq!(work.files, 2, "{}", work.diff);
}

#[tokio::test]
async fn uncommitted_changes_of_the_project_are_copied_only_on_request() {
    let yard = Yard::with_git();
    yard.file("");
    write(&yard.repo, "a.txt", "the user's\n");
    let rooms = yard.rooms();
    let order = yard.order(1, "clean");
    let made = yard.prepare(&rooms, &order).await;
    assert_eq!(read(&top(&made).join("a.txt")), "one\n");
    assert!(made.warnings[0].contains("are not in the worktree: 1 changed"), "{:?}", made.warnings);
    let told = yard.told.lock().unwrap().clone();
    assert!(told.contains(&RoomProgress::Warning(made.warnings[0].clone())), "{told:?}");
    let mut carried = yard.order(2, "carried");
    carried.wish.carry_changes = true;
    let made = yard.prepare(&rooms, &carried).await;
    assert_eq!(read(&top(&made).join("a.txt")), "the user's\n");
    yard.close(&rooms, &order, RoomEnd::Park).await;
    let closed = yard.close(&rooms, &carried, RoomEnd::Park).await;
    assert!(closed.parked);
    assert_eq!(git_status(&yard.repo), " M a.txt");
    git(&yard.repo, &["checkout", "-q", "a.txt"]);
    yard.assert_clean(&rooms).await;
}

#[tokio::test]
async fn outside_of_git_a_session_works_in_place_or_on_a_copy() {
    let yard = Yard::new();
    write(&yard.repo, "a.txt", "one\n");
    yard.file("  names: [PORT]\n");
    let rooms = yard.rooms();
    let order = yard.order(1, "plain");
    let made = yard.prepare(&rooms, &order).await;
    assert_eq!((&made.directory, &made.worktree), (&yard.repo, &None));
    assert!(made.ports.is_empty() && made.warnings[0].contains("no git repository"), "{made:?}");
    // Nothing was created for that, not even the directory of environments.
    assert_eq!(yard.listed("home"), [""; 0]);
    let closed = yard.close(&rooms, &order, RoomEnd::Park).await;
    assert_eq!(closed, RoomClosed::default());
    let err = rooms.work(&order, &made, Some(&closed)).await.unwrap_err();
    assert_eq!(err.kind, RoomErrorKind::NotFound);

    let mut copied = yard.order(2, "copied");
    copied.wish.when = RoomWhen::Always;
    let made = yard.prepare(&rooms, &copied).await;
    assert_eq!(read(&top(&made).join("a.txt")), "one\n");
    assert_eq!(made.ports.keys().collect::<Vec<_>>(), ["PORT"]);
    assert!(made.warnings[0].contains("works on a copy"), "{:?}", made.warnings);
    write(top(&made), "a.txt", "two\n");
    let work = rooms.work(&copied, &made, None).await.unwrap();
    assert_eq!((work.files, work.insertions), (1, 1));
    let closed = yard.close(&rooms, &copied, RoomEnd::Park).await;
    assert!(closed.branch.is_none() && closed.commit.is_some(), "{closed:?}");
    assert!(closed.warnings[0].contains(".bundle"), "{closed:?}");
    let err = rooms.work(&copied, &made, Some(&closed)).await.unwrap_err();
    assert!(err.message.contains(".bundle"), "{err}");
    assert_eq!(read(&yard.repo.join("a.txt")), "one\n");
    yard.assert_clean(&rooms).await;
}

#[tokio::test]
async fn a_project_replaced_by_a_link_since_the_run_was_created_is_refused() {
    // Like an agent in its own directory while another run waits in the queue.
    let yard = Yard::with_git();
    let rooms = yard.rooms();
    let own = yard.repo.parent().unwrap().join("own");
    std::fs::create_dir(&own).unwrap();
    for (number, name, when) in
        [(1, "a", RoomWhen::Auto), (2, "b", RoomWhen::Always), (3, "c", RoomWhen::Never)]
    {
        let mut order = yard.order(number, name);
        order.wish.when = when;
        order.project = own.join(name);
        std::os::unix::fs::symlink(&yard.repo, &order.project).unwrap();
        let err = rooms.prepare(order.clone(), yard.sink()).await.unwrap_err();
        assert_eq!(err.kind, RoomErrorKind::Project, "{err}");
        assert!(err.message.contains("symbolic link now"), "{err}");
        // Also on the way to it.
        order.project = order.project.join(".git");
        let err = rooms.prepare(order, yard.sink()).await.unwrap_err();
        assert!(err.message.contains("symbolic link now"), "{err}");
    }
}

#[tokio::test]
async fn a_run_without_an_environment_gets_none() {
    let yard = Yard::with_git();
    yard.file(APP);
    let rooms = yard.rooms();
    let mut order = yard.order(1, "inside");
    order.wish.when = RoomWhen::Never;
    let made = yard.prepare(&rooms, &order).await;
    assert_eq!(made, RoomMade { directory: yard.repo.clone(), ..RoomMade::default() });
    order.project = yard.repo.join("not-there");
    let err = rooms.prepare(order, yard.sink()).await.unwrap_err();
    assert_eq!(err.kind, RoomErrorKind::Project, "{err}");
}

async fn refused(yard: &Yard, rooms: &LocalRooms, order: RoomOrder) -> RoomError {
    let err = rooms.prepare(order, yard.sink()).await.unwrap_err();
    yard.assert_clean(rooms).await;
    err
}

#[tokio::test]
async fn all_mistakes_of_a_project_file_are_reported_with_their_lines() {
    let yard = Yard::with_git();
    write(&yard.repo, ".overmind.yml", "version: 1\nprots: [PORT]\npool: {sise: 3}\n");
    commit(&yard.repo, "mistakes");
    let rooms = yard.rooms();
    let err = refused(&yard, &rooms, yard.order(1, "s")).await;
    assert_eq!(err.kind, RoomErrorKind::Project);
    let file = yard.repo.join(".overmind.yml");
    for at in [2, 3] {
        assert!(err.message.contains(&format!("{}:{at}:", file.display())), "{err}");
    }
    assert!(
        err.message.contains("2 mistakes") && err.message.contains("did you mean `size`"),
        "{err}"
    );
    std::fs::remove_file(&file).unwrap();
    commit(&yard.repo, "none");
    let mut order = yard.order(2, "s");
    order.wish.base = Some("nowhere".to_owned());
    let err = refused(&yard, &rooms, order).await;
    assert_eq!(err.kind, RoomErrorKind::Project);
    assert!(err.message.contains("nowhere"), "{err}");
}

#[tokio::test]
async fn a_failed_setup_leaves_nothing_and_is_reported() {
    let yard = Yard::with_git();
    yard.file("services:\n  box: {strategy: process, command: exec sleep 86321, start: before_setup}\nsetup: echo not today >&2; exit 3\n");
    let rooms = yard.rooms();
    let err = refused(&yard, &rooms, yard.order(1, "s")).await;
    assert_eq!(err.kind, RoomErrorKind::Failed);
    assert!(err.message.contains("not today") && err.message.contains("exit status: 3"), "{err}");
    assert!(!runs("86321"));
    assert_eq!(yard.branches(), ["main"]);
}

#[tokio::test]
async fn two_sessions_with_one_name_share_nothing() {
    let yard = Yard::with_git();
    yard.file(APP);
    let rooms = yard.rooms();
    let (one, two) = (yard.order(1, "twin"), yard.order(2, "twin"));
    let (first, second) = tokio::join!(yard.prepare(&rooms, &one), yard.prepare(&rooms, &two));
    assert_ne!(first.worktree, second.worktree);
    assert_ne!(first.branch, second.branch);
    for (made, text) in [(&first, "first"), (&second, "second")] {
        write(top(made), "app/index.html", text);
    }
    assert!(get(first.ports["web/http"], "/index.html").ends_with("first"));
    assert!(get(second.ports["web/http"], "/index.html").ends_with("second"));
    let (first, second) = tokio::join!(
        yard.close(&rooms, &one, RoomEnd::Park),
        yard.close(&rooms, &two, RoomEnd::Park)
    );
    assert_ne!(first.commit, second.commit);
    assert_eq!(yard.branches(), ["main", "overmind/twin", "overmind/twin-2"]);
    yard.assert_clean(&rooms).await;
}
