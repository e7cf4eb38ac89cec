//! Environments across restarts of the daemon, and remains of removed ones.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use overmind_core::room::{
    RoomClosed, RoomDone, RoomEnd, RoomErrorKind, RoomOrder, RoomProgress, RoomSink, Rooms,
};
use overmind_testkit::real::counterpart;
use overmind_testkit::soak;
use overmind_workspace::rooms::LocalRooms;
use tokio::sync::Notify;

use crate::rooms::{APP, Yard, environment, get, top};
use crate::support::{runs, until};
use crate::tree_repo::{commit, git, read, write};

#[tokio::test]
async fn needed_environments_are_reopened_and_others_closed_with_their_work_saved() {
    let yard = Yard::with_git();
    yard.file(APP);
    let rooms = yard.rooms();
    let (wanted, other) = (yard.order(1, "wanted"), yard.order(2, "other"));
    let made = yard.prepare(&rooms, &wanted).await;
    let gone = yard.prepare(&rooms, &other).await;
    write(top(&gone), "a.txt", "the other's\n");
    let before = environment(&rooms, &wanted).await;
    let ports = (made.ports["web/http"], gone.ports["web/http"]);
    // As after a kill: its end is not announced.
    drop(rooms);
    let rooms = yard.rooms();
    rooms.keep(vec![wanted.session]).await;
    assert!(get(ports.0, "/index.html").ends_with("hello\n"));
    assert!(std::net::TcpStream::connect(("127.0.0.1", ports.1)).is_err());
    assert_eq!(environment(&rooms, &wanted).await, before);
    assert_eq!(yard.prepare(&rooms, &wanted).await, made);
    assert_eq!(rooms.leaks().await, []);
    assert_eq!(git(&yard.repo, &["show", "overmind/other:a.txt"]), "the other's");
    // A request for its end gets its outcome.
    let closed = yard.close(&rooms, &other, RoomEnd::Discard).await;
    assert_eq!(closed.branch.as_deref(), Some("overmind/other"));

    // A normal end leaves the service running, too; a service that died meanwhile is restarted.
    rooms.shutdown().await;
    drop(rooms);
    assert!(get(ports.0, "/index.html").ends_with("hello\n"));
    let pid = listener(ports.0);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    until("the service ended", || std::net::TcpStream::connect(("127.0.0.1", ports.0)).is_err())
        .await;
    let rooms = yard.rooms();
    rooms.keep(vec![wanted.session]).await;
    until("the service is back", || std::net::TcpStream::connect(("127.0.0.1", ports.0)).is_ok())
        .await;
    yard.close(&rooms, &wanted, RoomEnd::Park).await;
    yard.assert_clean(&rooms).await;
}

/// The process that has `port` among its words: python is started by a shell that it replaces.
fn listener(port: u16) -> rustix::process::Pid {
    let port = port.to_string();
    let found = std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let words = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).into_owned();
        let is = words.contains("http.server") && words.split('\0').any(|word| word == port);
        is.then(|| rustix::process::Pid::from_raw(pid)).flatten()
    });
    found.unwrap()
}

/// Counts progress, and reports the `n`-th event.
fn nth(n: usize) -> (RoomSink, Arc<Notify>) {
    let (seen, there) = (AtomicUsize::new(0), Arc::new(Notify::new()));
    let tell = Arc::clone(&there);
    let sink: RoomSink = Arc::new(move |progress| {
        if matches!(progress, RoomProgress::Step(_)) && seen.fetch_add(1, Ordering::SeqCst) + 1 == n
        {
            tell.notify_one();
        }
    });
    (sink, there)
}

/// Whether it came to its end before the `n`-th step.
async fn cut(work: impl Future<Output = ()>, there: &Notify) -> bool {
    tokio::select! {
        biased;
        () = there.notified() => false,
        () = work => true,
    }
}

/// A blocking step continues for a moment although the daemon was killed.
async fn let_go(yard: &Yard) {
    let path = yard.root.join("home/worktrees/.lock");
    until("the last step ended", || {
        use rustix::fs::{FlockOperation, flock};
        let Ok(file) = std::fs::File::open(&path) else { return true };
        flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
    .await;
}

const CUT: &str = "
services:
  db: {strategy: database, engine: sqlite, file: db/app.sqlite3}
  box: {strategy: process, command: exec sleep 86311, start: before_setup}
env: {DB: '${db.file}'}
env_file: .env.session
setup: (setsid sleep 86312 &); test -f \"$DB\"
teardown: 'true'
";

#[tokio::test]
async fn an_environment_interrupted_at_any_step_is_undone_at_the_next_start() {
    let yard = Yard::with_git();
    yard.file(CUT);
    // Every third step from a random one on; every one for `cargo xtask soak`.
    let stride = soak::count(3, 1);
    let first = 1 + usize::try_from(RandomState::new().hash_one("first")).unwrap() % stride;
    let mut steps = [0, 0];
    for n in (first..).step_by(stride) {
        let_go(&yard).await;
        let rooms = yard.rooms();
        let order = yard.order(1, "cut");
        let (sink, there) = nth(n);
        let whole = cut(async { drop(rooms.prepare(order.clone(), sink).await.unwrap()) }, &there);
        let whole = whole.await;
        // Half in the same life, half in the next.
        let rooms = if n % 2 == 0 && !whole {
            yard.close(&rooms, &order, RoomEnd::Park).await;
            rooms
        } else {
            drop(rooms);
            let_go(&yard).await;
            let rooms = yard.rooms();
            rooms.keep(if whole { Vec::new() } else { vec![order.session] }).await;
            rooms
        };
        yard.assert_clean(&rooms).await;
        assert!(!runs("86311") && !runs("86312"), "{n}");
        steps[0] = n;
        if whole {
            break;
        }
    }
    for n in (first..).step_by(stride) {
        let_go(&yard).await;
        let rooms = yard.rooms();
        let order = yard.order(2, "cut");
        let made = yard.prepare(&rooms, &order).await;
        write(top(&made), "a.txt", &format!("{n}\n"));
        let (sink, there) = nth(n);
        let close = async { drop(rooms.close(order.session, RoomEnd::Park, sink).await.unwrap()) };
        let whole = cut(close, &there).await;
        let rooms = if n % 2 == 0 {
            rooms
        } else {
            drop(rooms);
            let_go(&yard).await;
            let rooms = yard.rooms();
            rooms.keep(vec![order.session]).await;
            rooms
        };
        let closed = yard.close(&rooms, &order, RoomEnd::Park).await;
        let branch = closed.branch.clone().unwrap();
        assert_eq!(git(&yard.repo, &["show", &format!("{branch}:a.txt")]), n.to_string());
        yard.assert_clean(&rooms).await;
        rooms.done(&order, &made, Some(&closed), RoomDone::Discard).await.unwrap();
        steps[1] = n;
        if whole {
            break;
        }
    }
    assert!(steps[0] > 4 && steps[1] > 5, "{steps:?}");
}

#[tokio::test]
async fn an_abandoned_setup_ends_with_its_environment() {
    let yard = Yard::with_git();
    let mark = yard.root.join("began");
    yard.file(&format!("setup: touch {}; exec sleep 86313\n", mark.display()));
    let rooms = yard.rooms();
    let order = yard.order(1, "slow");
    tokio::select! {
        made = rooms.prepare(order.clone(), yard.sink()) => panic!("{made:?}"),
        () = until("the setup began", || mark.exists()) => {}
    }
    let err = rooms.environment(order.session).await.unwrap_err();
    assert_eq!(err.kind, RoomErrorKind::Conflict);
    yard.close(&rooms, &order, RoomEnd::Park).await;
    assert!(!runs("86313"));
    yard.assert_clean(&rooms).await;
}

#[tokio::test]
async fn work_of_a_lost_environment_is_found_and_saved() {
    let yard = Yard::with_git();
    yard.file(APP);
    let rooms = yard.rooms();
    let order = yard.order(1, "lost");
    let made = yard.prepare(&rooms, &order).await;
    write(top(&made), "a.txt", "precious\n");
    let session = order.session.to_string();
    std::fs::remove_dir_all(yard.root.join("home/leases").join(&session)).unwrap();
    let leaks = rooms.leaks().await;
    let mut kinds: Vec<&str> = leaks.iter().map(|leak| leak.kind.as_str()).collect();
    kinds.dedup();
    for kind in ["port", "process", "temp_files", "worktree"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    assert!(leaks.iter().all(|leak| leak.fixable && leak.session.as_deref() == Some(&session)));
    let tree = leaks.iter().find(|leak| leak.kind == "worktree").unwrap();
    assert!(tree.bytes.unwrap() > 4096, "{tree:?}");
    assert_eq!(rooms.fix().await, []);
    assert_eq!(git(&yard.repo, &["show", "overmind/lost:a.txt"]), "precious");
    std::fs::remove_file(yard.repo.join("x")).ok();
    yard.assert_clean(&rooms).await;
}

#[tokio::test]
async fn unused_base_references_are_removed() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    let (kept, gone) = (yard.order(1, "kept"), yard.order(2, "gone"));
    yard.prepare(&rooms, &kept).await;
    let base = git(&yard.repo, &["for-each-ref", "--format=%(refname)", "refs/overmind/base"]);
    let (ours, commit) = base.rsplit_once('/').unwrap();
    // The form after a kill of a daemon, and the names of an earlier version.
    let before = git(&yard.repo, &["rev-parse", "HEAD~1"]);
    for name in [format!("{ours}/{before}"), format!("refs/overmind/base/{before}")] {
        git(&yard.repo, &["update-ref", &name, &before]);
    }
    let strangers = format!("refs/overmind/base/0000beef/{before}");
    git(&yard.repo, &["update-ref", &strangers, &before]);
    let leaks = rooms.leaks().await;
    let what: Vec<_> = leaks.iter().map(|leak| (leak.kind.as_str(), leak.what.as_str())).collect();
    let repo = yard.repo.join(".git");
    let named = |name: &str| format!("{name} in {}", repo.display());
    let (mine, older) =
        (named(&format!("{ours}/{before}")), named(&format!("refs/overmind/base/{before}")));
    let mut wanted = vec![("branch", mine.as_str()), ("branch", older.as_str())];
    wanted.sort_unstable();
    assert_eq!(what, wanted);
    assert_eq!(rooms.fix().await, []);
    let left = git(&yard.repo, &["for-each-ref", "--format=%(refname)", "refs/overmind"]);
    let mut wanted = [format!("{ours}/{commit}"), strangers.clone()];
    wanted.sort_unstable();
    assert_eq!(left.lines().collect::<Vec<_>>(), wanted, "another daemon's is not touched");
    git(&yard.repo, &["update-ref", "-d", &strangers]);
    yard.prepare(&rooms, &gone).await;
    yard.close(&rooms, &gone, RoomEnd::Park).await;
    yard.close(&rooms, &kept, RoomEnd::Park).await;
    yard.assert_clean(&rooms).await;
    assert_eq!(git(&yard.repo, &["for-each-ref", "refs/overmind"]), "");
}

#[tokio::test]
async fn a_tree_with_unsavable_work_is_kept_and_reported() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    let order = yard.order(1, "nested");
    let made = yard.prepare(&rooms, &order).await;
    write(top(&made), "a.txt", "two\n");
    let inner = top(&made).join("inner");
    std::fs::create_dir(&inner).unwrap();
    git(&inner, &["init", "-q"]);
    write(&inner, "x", "x");
    commit(&inner, "of its own");
    let closed = yard.close(&rooms, &order, RoomEnd::Park).await;
    assert_eq!(closed.kept.as_deref(), Some(top(&made)));
    assert!(closed.warnings.iter().any(|text| text.contains("inner")), "{closed:?}");
    assert_eq!(git(&yard.repo, &["show", "overmind/nested:a.txt"]), "two");
    assert_eq!(yard.listed("home/leases"), [""; 0]);
    assert_eq!(read(&inner.join("x")), "x");
    // It is not removed silently, but on request.
    std::fs::remove_dir_all(&inner).unwrap();
    let into = RoomDone::Merge { into: None };
    let outcome = rooms.done(&order, &made, Some(&closed), into).await.unwrap();
    assert_eq!(outcome.kept, None);
    yard.assert_clean(&rooms).await;
}

#[tokio::test]
async fn trees_are_prepared_for_the_next_session_after_the_first() {
    let yard = Yard::with_git();
    let rooms = yard.rooms();
    let order = yard.order(1, "first");
    let made = yard.prepare(&rooms, &order).await;
    assert_eq!(made.ports.keys().collect::<Vec<_>>(), ["PORT"]);
    let home = top(&made).parent().unwrap().parent().unwrap().to_owned();
    until("two trees wait", || {
        ["0", "1"].iter().all(|name| home.join(".ready").join(name).join("template").exists())
    })
    .await;
    let second = yard.order(2, "second");
    let taken = yard.prepare(&rooms, &second).await;
    assert_eq!(read(&top(&taken).join("a.txt")), "one\n");
    for order in [&order, &second] {
        assert_eq!(yard.close(&rooms, order, RoomEnd::Park).await, RoomClosed::default());
    }
    rooms.shutdown().await;
    yard.assert_clean(&rooms).await;
}

const DATABASE: &str = "
services:
  db:
    strategy: database
    engine: postgres
    template: {sql: [schema.sql]}
  web:
    strategy: process
    command: exec python3 -m http.server \"$PORT\" --bind 127.0.0.1 --directory app
    ports: [http]
    depends_on: [db]
    ready: {http: /index.html}
env: {DATABASE_URL: '${db.url}'}
setup: psql -qAt \"$DATABASE_URL\" -c \"insert into notes values ('$OVERMIND_NAME')\"
";

fn ask(url: &str, sql: &str) -> String {
    let output =
        std::process::Command::new("psql").args(["-qAt", url, "-c", sql]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

async fn with_database(yard: &Yard, rooms: &LocalRooms, order: &RoomOrder) -> String {
    let made = yard.prepare(rooms, order).await;
    let shown = serde_json::to_string(&made).unwrap();
    let env = environment(rooms, order).await;
    let url = env["DATABASE_URL"].clone();
    let password = url.split(':').nth(2).unwrap().split('@').next().unwrap().to_owned();
    assert!(!shown.contains(&password), "{shown}");
    assert!(!made.urls.contains_key("db"), "{shown}");
    url
}

#[tokio::test]
async fn needs_postgres_sessions_keep_their_own_databases_across_restarts() {
    let Some(_) = counterpart("POSTGRES") else { return };
    let yard = Yard::with_git();
    write(&yard.repo, "schema.sql", "create table notes (text text);\n");
    yard.file(DATABASE);
    let rooms = yard.rooms();
    let (one, two) = (yard.order(1, "one"), yard.order(2, "two"));
    let (first, second) =
        tokio::join!(with_database(&yard, &rooms, &one), with_database(&yard, &rooms, &two));
    assert_ne!(first, second);
    assert_eq!(ask(&first, "select * from notes"), "one");
    assert_eq!(ask(&second, "select * from notes"), "two");
    yard.close(&rooms, &two, RoomEnd::Park).await;
    // The server keeps running while a session needs it.
    rooms.shutdown().await;
    drop(rooms);
    assert_eq!(ask(&first, "select * from notes"), "one");
    let rooms = yard.rooms();
    rooms.keep(vec![one.session]).await;
    assert_eq!(ask(&first, "select * from notes"), "one");
    yard.close(&rooms, &one, RoomEnd::Discard).await;
    yard.assert_clean(&rooms).await;
    let pid = yard.root.join("home/postgres/data/postmaster.pid");
    assert!(pid.exists());
    rooms.shutdown().await;
    assert!(!pid.exists(), "nobody needs the server any more");
}

#[tokio::test]
async fn a_machine_without_docker_reports_no_unchecked_leaks() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms_with(|options| options.docker = Some(yard.root.join("docker.sock")));
    let order = yard.order(1, "s");
    yard.prepare(&rooms, &order).await;
    assert_eq!(rooms.leaks().await, []);
    // An existing server that does not answer is reported.
    std::fs::write(yard.root.join("docker.sock"), "").unwrap();
    let leaks = rooms.leaks().await;
    assert_eq!((leaks.len(), leaks[0].kind.as_str(), leaks[0].fixable), (1, "unchecked", false));
    yard.close(&rooms, &order, RoomEnd::Park).await;
}

#[tokio::test]
async fn a_nested_session_starts_in_its_parents_directory_and_outlives_it() {
    let yard = Yard::with_git();
    yard.file("");
    let rooms = yard.rooms();
    let outer = yard.order(1, "outer");
    let made = yard.prepare(&rooms, &outer).await;
    write(top(&made), "a.txt", "outer\n");
    let head = commit(top(&made), "by the outer one");
    let mut inner = yard.order(2, "inner");
    inner.project = made.directory.clone();
    let within = yard.prepare(&rooms, &inner).await;
    assert_eq!(within.base, Some(head));
    write(top(&within), "b.txt", "inner\n");
    yard.close(&rooms, &outer, RoomEnd::Park).await;
    let closed = yard.close(&rooms, &inner, RoomEnd::Park).await;
    assert!(!inner.project.exists());
    let work = rooms.work(&inner, &within, Some(&closed)).await.unwrap();
    assert_eq!((work.files, work.commits), (1, 1));
    let into = RoomDone::Merge { into: None };
    rooms.done(&inner, &within, Some(&closed), into).await.unwrap();
    assert_eq!(read(&yard.repo.join("a.txt")), "outer\n");
    assert_eq!(read(&yard.repo.join("b.txt")), "inner\n");
    yard.assert_clean(&rooms).await;
}
