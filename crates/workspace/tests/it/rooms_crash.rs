//! A server is killed while it creates and releases environments: at every named point, and at any
//! moment. The next one continues each session where it was, and at the end nothing is left.
//!
//! Only the server is killed. Its git and its setup live on, as they do for users: where the kernel tells
//! a git of its parent's death, and where it tells only the shell that git runs in.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use overmind_core::ids::SessionId;
use overmind_core::room::{RoomClosed, RoomEnd, RoomMade, RoomOrder, Rooms as _};
use overmind_testkit::soak;
use overmind_workspace::git::Git;
use overmind_workspace::rooms::LocalRooms;
use serde::{Deserialize, Serialize};

use crate::crash::die_at;
use crate::rooms::{Yard, top};
use crate::support::{processes_of, until, variable};
use crate::tree_repo::{commit, git, read, script, write};

/// The events of a session in the engine's log.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Stage {
    Preparing,
    Ready(RoomMade),
    Closing(RoomMade),
    Closed(RoomClosed),
}

/// The log of sessions 1, 2, 3, …; the last one may be open.
struct Log(PathBuf);

impl Log {
    fn write(&self, session: u128, stage: &Stage) {
        let half = self.0.join("half");
        std::fs::write(&half, serde_json::to_vec(stage).unwrap()).unwrap();
        std::fs::rename(half, self.0.join(session.to_string())).unwrap();
    }

    fn read(&self, session: u128) -> Option<Stage> {
        let text = std::fs::read(self.0.join(session.to_string())).ok()?;
        Some(serde_json::from_slice(&text).unwrap())
    }

    fn all(&self) -> Vec<(u128, Stage)> {
        (1..).map_while(|session| Some((session, self.read(session)?))).collect()
    }
}

/// A service's git without a message: the shell detects its parent's death.
fn git_in_a_shell(root: &Path) -> Git {
    Git::new(root.join("bin/git"), "/usr/local/bin:/usr/bin:/bin".into(), Duration::from_mins(1))
}

fn rooms(yard: &Yard) -> LocalRooms {
    yard.rooms_with(|options| {
        if yard.root.join("bin").is_dir() {
            options.git = git_in_a_shell(&yard.root);
        }
    })
}

async fn go_on(yard: &Yard, rooms: &LocalRooms, log: &Log, session: u128) {
    let order = RoomOrder { name: "killed".to_owned(), ..yard.order(session, "killed") };
    let stage = log.read(session).unwrap_or_else(|| {
        log.write(session, &Stage::Preparing);
        Stage::Preparing
    });
    let stage = match stage {
        Stage::Preparing => {
            let made = yard.prepare(rooms, &order).await;
            assert_eq!(git(top(&made), &["status", "--porcelain"]), "", "{session}");
            let wanted = read(&yard.root.join("files"));
            assert_eq!(git(top(&made), &["ls-files"]).lines().count().to_string(), wanted);
            let stage = Stage::Ready(made);
            log.write(session, &stage);
            stage
        }
        stage => stage,
    };
    let made = match stage {
        Stage::Ready(made) => {
            rooms.environment(order.session).await.unwrap();
            write(top(&made), "work.txt", &format!("{session}\n"));
            log.write(session, &Stage::Closing(made.clone()));
            made
        }
        Stage::Closing(made) => made,
        Stage::Preparing | Stage::Closed(_) => return,
    };
    let closed = yard.close(rooms, &order, RoomEnd::Park).await;
    let branch = closed.branch.clone().unwrap_or_else(|| panic!("{session}: {made:?} {closed:?}"));
    let work = git(&yard.repo, &["show", &format!("{branch}:work.txt")]);
    assert_eq!(work, session.to_string());
    log.write(session, &Stage::Closed(closed));
}

/// Continues the open session, then creates one more; and then waits to be killed, if requested.
#[tokio::test]
#[ignore = "the other half of the crash tests"]
async fn a_server_that_is_killed() {
    let Some(root) = variable("OVERMIND_TEST_DIR") else { return };
    let yard = Yard::at(PathBuf::from(root));
    let log = Log(yard.root.join("log"));
    if let Some(point) = variable("OVERMIND_TEST_POINT") {
        die_at(point.parse().unwrap());
    }
    let rooms = rooms(&yard);
    #[expect(clippy::print_stdout, reason = "the parent waits for it")]
    {
        println!("begun");
    }
    let all = log.all();
    let last = all.len() as u128;
    let open = all.iter().filter(|(_, stage)| !matches!(stage, Stage::Closed(_)));
    let open: Vec<u128> = open.map(|(session, _)| *session).collect();
    rooms.keep(open.iter().map(|session| SessionId::from_u128(*session)).collect()).await;
    for session in open.iter().copied().chain([last + 1]) {
        go_on(&yard, &rooms, &log, session).await;
    }
    if variable("OVERMIND_TEST_WAIT").is_some() {
        std::future::pending::<()>().await;
    }
    rooms.shutdown().await;
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Duration::from_nanos((z ^ (z >> 31)) % u64::try_from(n.as_nanos().max(1)).unwrap())
    }
}

/// A started server. Its output is read as long as it runs.
struct Server {
    child: Child,
    _lines: std::io::Lines<BufReader<ChildStdout>>,
}

/// The killed process, and its work.
struct Case {
    files: usize,
    /// Trees that wait.
    pool: u32,
    /// Its git runs in a shell.
    shell: bool,
    yard: Yard,
}

impl Case {
    fn new(files: usize, pool: u32, shell: bool) -> Self {
        let yard = Yard::new();
        let repo = &yard.repo;
        git(repo, &["init", "-q", "-b", "main"]);
        write(repo, ".gitignore", "*.log\n.env*\n");
        for file in 0..files {
            write(repo, &format!("{}/{file}.txt", file / 50), &format!("{file}\n"));
        }
        yard.file_with_pool(pool, "setup: (setsid sleep 86331 &); echo set up > setup.log\n");
        std::fs::create_dir(yard.root.join("log")).unwrap();
        if shell {
            script(&yard.root.join("bin/git"), "git \"$@\"\nexit $?");
        }
        let case = Self { files, pool, shell, yard };
        case.commit(0);
        case
    }

    fn name(&self) -> String {
        let shell = if self.shell { ", git in a shell" } else { "" };
        format!("{} files, {} trees wait{shell}", self.files, self.pool)
    }

    /// The user commits: waiting trees are at an earlier commit then.
    fn commit(&self, number: usize) {
        write(&self.yard.repo, "a.txt", &format!("{number}\n"));
        commit(&self.yard.repo, "more");
        let files = git(&self.yard.repo, &["ls-files"]).lines().count();
        write(&self.yard.root, "files", &files.to_string());
    }

    fn server(&self, settings: &[(&str, &str)]) -> Server {
        let stderr = std::fs::File::create(self.yard.root.join("stderr")).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rooms_crash::a_server_that_is_killed"])
            .args(["--ignored", "--nocapture"])
            .env("OVERMIND_TEST_DIR", &self.yard.root)
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.find(|line| line.as_ref().is_ok_and(|line| line.ends_with("begun")));
        Server { child, _lines: lines }
    }

    /// Whether it was killed. It must not have failed before.
    fn ended(&self, mut server: Server, when: &str) -> bool {
        let status = server.child.wait().unwrap();
        let killed = status.signal() == Some(9);
        if !killed && !status.success() {
            let said = read(&self.yard.root.join("stderr"));
            panic!("{}, {when}: {status}\n{said}", self.name());
        }
        killed
    }

    /// A life that is not killed; how long it took.
    fn whole(&self, when: &str) -> Duration {
        let begun = Instant::now();
        let server = self.server(&[]);
        assert!(!self.ended(server, when));
        begun.elapsed()
    }

    /// Nothing of any session is left except saved work.
    async fn assert_nothing_left(&self) {
        let Self { yard, .. } = self;
        for (session, stage) in Log(yard.root.join("log")).all() {
            assert!(matches!(stage, Stage::Closed(_)), "{}, {session}: {stage:?}", self.name());
        }
        let rooms = rooms(yard);
        rooms.keep(Vec::new()).await;
        // The sweep runs in the background.
        for _ in 0..1000 {
            if rooms.leaks().await.is_empty() {
                break;
            }
            tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_millis(10)).await;
        }
        yard.assert_clean(&rooms).await;
        rooms.shutdown().await;
        drop(rooms);
        until("all processes ended", || processes_of(&yard.root).is_empty()).await;
        let mut left = Vec::new();
        below(&yard.root.join("home"), &mut left);
        below(&yard.repo.join(".git"), &mut left);
        let odd = left.iter().filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.contains(".making-") || (name.ends_with(".lock") && name != ".lock")
        });
        assert_eq!(odd.collect::<Vec<_>>(), Vec::<&PathBuf>::new(), "{}", self.name());
        git(&yard.repo, &["fsck", "--strict", "--no-dangling"]);
    }
}

fn below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below(&path, found);
        }
        found.push(path);
    }
}

#[expect(clippy::disallowed_methods, reason = "the seed is printed")]
fn seed() -> u64 {
    let given = variable("OVERMIND_TEST_SEED").map(|seed| seed.parse().unwrap());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::try_from(now.unwrap().as_micros()).unwrap()
    })
}

/// Kills servers at any moment; every few rounds one is left alone.
async fn at_any_moment(kills: usize, files: usize, pool: u32, shell: bool) {
    let kills = soak::count(kills, kills * 40);
    let seed = seed();
    let mut rng = Rng(seed);
    let case = Case::new(files, pool, shell);
    let mut life = case.whole("the first");
    let mut killed = 0;
    let mut round = 0;
    while killed < kills {
        round += 1;
        if round % 8 == 0 {
            case.commit(round);
        }
        let when = format!("after {killed} kills, seed {seed}");
        if round % 16 == 0 {
            life = case.whole(&when);
            continue;
        }
        let mut server = case.server(&[("OVERMIND_TEST_WAIT", "1")]);
        std::thread::sleep(rng.below(life));
        server.child.kill().unwrap();
        killed += usize::from(case.ended(server, &when));
    }
    case.whole(&format!("at the end, seed {seed}"));
    case.assert_nothing_left().await;
    #[expect(clippy::print_stdout, reason = "what a run did is worth knowing when all is well")]
    {
        println!("{}: {killed} servers killed at any moment, seed {seed}", case.name());
    }
}

#[tokio::test]
async fn a_server_killed_at_any_moment_leaves_one_file_environments_complete_or_removed() {
    at_any_moment(3, 1, 0, false).await;
    at_any_moment(3, 1, 2, true).await;
}

#[tokio::test]
async fn a_server_killed_at_any_moment_leaves_300_file_environments_complete_or_removed() {
    at_any_moment(2, 300, 0, true).await;
    at_any_moment(2, 300, 1, false).await;
}

#[tokio::test]
async fn a_server_killed_at_any_moment_leaves_3000_file_environments_complete_or_removed() {
    at_any_moment(1, 3000, 1, true).await;
}

/// Kills it at the points that have a name: every tenth from a random one on, or at each one for `cargo xtask soak`.
async fn at_points(pool: u32) {
    let case = Case::new(1, pool, false);
    let step = soak::count(10_usize, 1);
    let first = 1 + usize::try_from(seed()).unwrap() % step;
    let mut killed = 0;
    for point in (first..).step_by(step) {
        let server = case.server(&[("OVERMIND_TEST_POINT", &point.to_string())]);
        if !case.ended(server, &format!("point {point}")) {
            break;
        }
        killed += 1;
        case.commit(killed);
        case.whole(&format!("after point {point}"));
    }
    case.assert_nothing_left().await;
    assert!(killed * step > 20, "only {killed} points were seen, each {step}");
    #[expect(clippy::print_stdout, reason = "what a run did is worth knowing when all is well")]
    {
        println!("{}: {killed} servers killed, each at another point", case.name());
    }
}

#[tokio::test]
async fn a_server_killed_at_failpoints_leaves_environments_complete_or_removed() {
    at_points(0).await;
}

#[tokio::test]
async fn a_server_killed_at_failpoints_leaves_prepared_trees_complete_or_removed() {
    at_points(1).await;
}
