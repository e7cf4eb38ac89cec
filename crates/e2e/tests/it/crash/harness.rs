//! Rounds of start, load and kill; then one daemon that brings everything to its end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use overmind_api::ListQuery;
use overmind_client::Client;
use rustix::process::Signal;

use super::agents;
use super::daemon::{Daemon, Places, Setup, Start, assert_killed, leftovers, pause};
use super::evidence::{Evidence, Outside};
use super::ledger::View;
use super::load::{Appetite, World};
use super::rng::Rng;
use crate::program::program;

/// Longest time in which the last daemon ends all runs.
const SETTLE_PATIENCE: Duration = Duration::from_secs(90);
/// Longest a round waits for its failpoint; then it is an ordinary kill.
const POINT_PATIENCE: Duration = Duration::from_millis(800);
/// The same for points that are passed only when the write-ahead log has grown.
const WAL_PATIENCE: Duration = Duration::from_secs(12);

/// The result of the crash test.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) kills: u32,
    /// Kills that came before the daemon was ready.
    pub(crate) early: u32,
    /// Kills in the middle of a shutdown in good order.
    pub(crate) draining: u32,
    /// Deaths by each failpoint.
    pub(crate) fired: BTreeMap<String, u32>,
    /// Rounds in a row that waited for a failpoint in vain.
    pub(crate) missed: BTreeMap<String, u32>,
}

/// The planned end of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// At a random moment after the start.
    Kill(Duration),
    /// Before it is ready, most likely.
    Early(Duration),
    /// The time after the stop request.
    WhileDraining(Duration, Duration),
    /// The same, and it was asked while it was still starting: what it recovers is handed over
    /// again before anything of it has moved.
    WhileStarting(Duration, Duration),
    /// By the binary itself, when it passes the point for the n-th time.
    Failpoint(String, u64),
}

#[derive(Debug)]
pub(crate) struct Harness {
    pub(crate) world: World,
    pub(crate) tally: Tally,
}

impl Harness {
    pub(crate) fn new(seed: u64) -> Self {
        let places = Places::new();
        let mut rng = Rng::new(seed);
        let tag = format!("crash{:08x}", rng.next() >> 32);
        agents::write_cassettes(&places.cassettes(), &tag);
        let world = World {
            places,
            tag,
            rng: RefCell::new(rng),
            ledger: RefCell::default(),
            killed: RefCell::default(),
            rested: Cell::new(0),
        };
        let fired = failpoints().into_iter().map(|name| (name, 0)).collect();
        Self { world, tally: Tally { fired, ..Tally::default() } }
    }

    /// Makes the data directory and the agents, with crashes in between: what was not answered is
    /// asked for again.
    pub(crate) async fn prepare(&mut self) {
        for _ in 0..4 {
            let after = self.world.rng.borrow_mut().millis(0, 70);
            let mut daemon = self.spawn(None);
            pause(after).await;
            self.tally.early += 1;
            self.kill(&mut daemon).await;
        }
        let mut wanted: Vec<_> =
            agents::all(&self.world.tag).into_iter().map(|(agent, _)| agent).collect();
        while !wanted.is_empty() {
            let wait = self.world.rng.borrow_mut().millis(10, 60);
            let mut daemon = self.spawn(None);
            let Start::Ready(client) = daemon.ready(&self.world.places).await else {
                panic!("nobody killed it:\n{}", self.world.places.log_tail());
            };
            let create = async {
                while let Some(agent) = wanted.last() {
                    let key = format!("{}-{}", self.world.tag, agent.name);
                    if client.agent_create(agent, Some(&key)).await.is_ok() {
                        wanted.pop();
                    }
                }
            };
            let _ = tokio::time::timeout(wait, create).await;
            self.kill(&mut daemon).await;
        }
    }

    /// Which failpoint has not killed yet, if any.
    pub(crate) fn unfired(&self) -> Option<&str> {
        let (name, _) = self.tally.fired.iter().find(|(_, count)| **count == 0)?;
        Some(name)
    }

    /// Plans some runs of each agent, whatever chance has planned so far.
    pub(crate) fn plan_some_of_each(&self, each: usize) {
        let mut ledger = self.world.ledger.borrow_mut();
        for (agent, _) in agents::all(&self.world.tag) {
            for _ in 0..each {
                let number =
                    ledger.plan_for(&agent.name, &self.world.tag, &self.world.places.workspaces());
                agents::make_workspace(&self.world.places.workspace(number));
            }
        }
    }

    fn spawn(&self, failpoint: Option<String>) -> Daemon {
        let setup = {
            let mut rng = self.world.rng.borrow_mut();
            // Few enough that some always wait in the queue.
            let max_running = 2 + u32::try_from(rng.below(7)).expect("less than 7");
            Setup { failpoint, max_running, tcp: rng.one_in(2) }
        };
        Daemon::spawn(&self.world.places, &setup)
    }

    async fn kill(&mut self, daemon: &mut Daemon) {
        daemon.kill(&self.world.places).await;
        self.died(daemon.pid);
    }

    fn died(&mut self, pid: u32) {
        self.tally.kills += 1;
        self.world.killed.borrow_mut().push(pid);
    }

    /// One life of a daemon.
    pub(crate) async fn round(&mut self) {
        let end = self.how();
        let failpoint = match &end {
            End::Failpoint(name, count) => Some(format!("{name}:{count}")),
            End::Kill(_) | End::Early(_) | End::WhileDraining(..) | End::WhileStarting(..) => None,
        };
        let mut daemon = self.spawn(failpoint);
        if let End::Early(after) = end {
            pause(after).await;
            self.tally.early += 1;
            return self.kill(&mut daemon).await;
        }
        if let End::WhileStarting(after, then) = end {
            pause(after).await;
            daemon.ask_to_stop();
            pause(then).await;
            return self.stopped_or_killed(&mut daemon).await;
        }
        let client = match daemon.ready(&self.world.places).await {
            Start::Ready(client) => client,
            Start::Died(status) => {
                assert_killed(status, &self.world.places);
                let End::Failpoint(name, _) = &end else {
                    panic!("a daemon died that nobody killed:\n{}", self.world.places.log_tail());
                };
                self.fired(name);
                return self.died(daemon.pid);
            }
        };
        match end {
            End::Early(_) | End::WhileStarting(..) => {}
            End::Kill(after) => self.loaded(&client, &mut daemon, Appetite::Usual, after).await,
            End::WhileDraining(after, then) => {
                self.loaded(&client, &mut daemon, Appetite::Usual, after).await;
                daemon.ask_to_stop();
                self.loaded(&client, &mut daemon, Appetite::Usual, then).await;
                return self.stopped_or_killed(&mut daemon).await;
            }
            End::Failpoint(name, _) => {
                let (appetite, patience) = match is_of_wal(&name) {
                    true => (Appetite::Fat, WAL_PATIENCE),
                    false => (Appetite::Usual, POINT_PATIENCE),
                };
                self.loaded(&client, &mut daemon, appetite, patience).await;
                if let Some(status) = daemon.ended() {
                    assert_killed(status, &self.world.places);
                    self.fired(&name);
                } else {
                    *self.tally.missed.entry(name).or_default() += 1;
                }
            }
        }
        self.kill(&mut daemon).await;
    }

    /// Kills a daemon after a stop request, unless it has ended before.
    async fn stopped_or_killed(&mut self, daemon: &mut Daemon) {
        let status = daemon.kill_if_alive().await;
        if status.signal() == Some(Signal::KILL.as_raw()) {
            self.tally.draining += 1;
            return self.died(daemon.pid);
        }
        // A shutdown in good order, or an end before there was anything to put in order.
        let at_once = status.signal() == Some(Signal::TERM.as_raw());
        assert!(status.success() || at_once, "{status}:\n{}", self.world.places.log_tail());
        self.world.killed.borrow_mut().push(daemon.pid);
    }

    fn fired(&mut self, name: &str) {
        *self.tally.fired.entry(name.to_owned()).or_default() += 1;
        self.tally.missed.remove(name);
    }

    /// Half of the rounds end at a failpoint, those first that have killed the least: none has its
    /// second turn before each has had one. One that was not reached is waited for with fewer
    /// passings the next time, down to the first.
    fn how(&self) -> End {
        let mut rng = self.world.rng.borrow_mut();
        // A round that fills the write-ahead log takes seconds: two deaths of each are enough.
        let worth = |(name, count): &(&String, &u32)| !is_of_wal(name) || **count < 2;
        let points: Vec<_> = self.tally.fired.iter().filter(worth).collect();
        if !points.is_empty() && rng.one_in(2) {
            let least = points.iter().map(|(_, count)| **count).min().unwrap_or(0);
            let slack = u32::from(least > 0);
            let rare: Vec<_> =
                points.into_iter().filter(|(_, count)| **count <= least + slack).collect();
            let name = rng.pick(&rare).0.clone();
            let most: u64 = match name.split('.').next() {
                // Passed once in a start, or once in thousands of commits.
                Some("start") => 1,
                _ if is_of_wal(&name) => 1,
                Some("tools") => 3,
                Some("hive") => 12,
                _ => 25,
            };
            let missed = self.tally.missed.get(&name).copied().unwrap_or(0);
            let most = most.checked_shr(missed).unwrap_or(0).max(1);
            return End::Failpoint(name, 1 + rng.below(most));
        }
        let after = rng.millis(5, 150);
        match rng.below(9) {
            0 => End::Early(rng.millis(0, 120)),
            1 => End::WhileStarting(rng.millis(0, 60), rng.millis(0, 25)),
            2 => End::WhileDraining(after, rng.millis(0, 25)),
            _ => End::Kill(after),
        }
    }

    /// Loads the daemon for so long, or until it dies.
    async fn loaded(&self, client: &Client, daemon: &mut Daemon, what: Appetite, time: Duration) {
        tokio::select! {
            () = self.world.load(client, what) => {}
            _ = daemon.wait() => {}
            () = pause(time) => {}
        }
    }

    /// Starts a last daemon, lets every run come to its end, asks the API about each, stops it
    /// in good order, and gathers everything that is to be checked.
    pub(crate) async fn settle(&mut self) -> Evidence {
        let began = Instant::now();
        let mut daemon = self.spawn(None);
        let Start::Ready(client) = daemon.ready(&self.world.places).await else {
            panic!("nobody killed it:\n{}", self.world.places.log_tail());
        };
        let all_ended = async {
            loop {
                while !self.world.ledger.borrow().is_settled() {
                    pause(Duration::from_millis(10)).await;
                }
                // Unacknowledged forks are known only to the server.
                if self.world.find_all(&client).await && self.world.ledger.borrow().is_settled() {
                    return;
                }
            }
        };
        tokio::select! {
            () = all_ended => {}
            () = self.world.load(&client, Appetite::Settle) => {
                panic!("the last daemon stopped answering:\n{}", self.world.places.log_tail());
            }
            () = pause(SETTLE_PATIENCE) => self.say_who_is_stuck(),
        }
        self.view_all(&client).await;
        let (run, data) =
            (self.world.ledger.borrow().shown.keys().next().copied(), self.world.places.data());
        if let Some(run) = run {
            command(&data, &["replay", &run.to_string(), "--verify"]).await;
        }
        command(&data, &["audit", "verify"]).await;
        daemon.ask_to_stop();
        let status = tokio::time::timeout(Duration::from_secs(30), daemon.wait()).await;
        let status = status.expect("a daemon with nothing to do stops at once");
        assert!(status.success(), "{status}:\n{}", self.world.places.log_tail());
        eprintln!("crash test: settled in {:.1?}", began.elapsed());
        self.evidence(true).await
    }

    fn say_who_is_stuck(&self) {
        let ledger = self.world.ledger.borrow();
        let stuck: Vec<_> = ledger
            .live()
            .into_iter()
            .map(|id| (id, ledger.shown[&id], ledger.plan_of(id)))
            .collect();
        eprintln!("crash test: not ended: {stuck:?}; never answered: {:?}", ledger.pending);
    }

    /// The answer of the API about each run.
    async fn view_all(&self, client: &Client) {
        let ids: Vec<_> = self.world.ledger.borrow().shown.keys().copied().collect();
        for id in ids {
            let (run, all) = (id.to_string(), ListQuery { limit: Some(1000), cursor: None });
            let read = async {
                let verify = client.run_verify(&run).await?;
                let divergence = verify.divergence.map(|found| format!("{found:?}"));
                Ok::<_, overmind_client::ClientError>(View {
                    status: client.run_fetch(&run).await?.status,
                    tool_calls: client.run_tool_calls(&run, &all).await?.items.len(),
                    steps: client.run_steps(&run, &all).await?.items.len(),
                    verified: divergence.map_or(Ok(()), Err),
                })
            };
            let view = Box::pin(read).await.unwrap_or_else(|err| {
                panic!("reading {run}: {err:?}:\n{}", self.world.places.log_tail())
            });
            self.world.ledger.borrow_mut().views.insert(id, view);
        }
    }

    /// Everything there is to check, now that no daemon runs. `settled`: all runs should have
    /// ended; otherwise only what holds at every moment is asked for.
    pub(crate) async fn evidence(&self, settled: bool) -> Evidence {
        let tag = settled.then_some(self.world.tag.as_str());
        // A sandbox needs a moment to notice the end of its daemon; a longer time is a leak.
        let until = Instant::now() + Duration::from_secs(10);
        while !leftovers(&self.world.killed.borrow(), tag).is_empty() && Instant::now() < until {
            pause(Duration::from_millis(10)).await;
        }
        let processes = leftovers(&self.world.killed.borrow(), tag);
        let ledger = self.world.ledger.borrow().clone();
        let outside = Outside::look(&self.world.places, ledger, processes, settled);
        let copy = self.world.places.fresh();
        copy_store(&self.world.places.data(), copy.path());
        Evidence::read(copy, outside).await
    }
}

/// Copies the database, its log and its signing key. No daemon runs meanwhile.
pub(crate) fn copy_store(from: &Path, to: &Path) {
    for name in ["overmind.db", "overmind.db-wal", "checkpoint.key"] {
        if from.join(name).exists() {
            std::fs::copy(from.join(name), to.join(name)).expect("the store is copied");
        }
    }
}

/// Runs a command of the client against the daemon, which must succeed.
async fn command(data: &Path, args: &[&str]) {
    let output = tokio::process::Command::new(program())
        .args(["--color", "never", "--data"])
        .arg(data)
        .args(args)
        .env_clear()
        .output()
        .await
        .expect("the binary starts");
    assert!(
        output.status.success(),
        "overmind {args:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Whether a failpoint is passed only when the write-ahead log has grown.
fn is_of_wal(name: &str) -> bool {
    name.starts_with("store.wal")
}

/// The names of all failpoints, from the sources: a new one is crash-tested without a word.
pub(crate) fn failpoints() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate among crates");
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(crates)
        .expect("the sources lie beside this crate")
        // The server does not use environments here; separate tests cover their failpoints.
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name() != "workspace")
        .map(|entry| entry.path().join("src"))
        .collect();
    let mut names = Vec::new();
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source is text");
                let calls = text.split("failpoint::point(\"").skip(1);
                names.extend(calls.filter_map(|call| Some(call.split_once('"')?.0.to_owned())));
            }
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}
