//! Commands as runs: how soon one runs and runs again, what its log takes, and two thousand at once.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Stdio};
use std::time::{Duration, Instant};

use overmind_api::{
    AgentCreate, AgentLimits, Command, CommandKind, Restart, RoomWhen, RoomWish, Run, RunCreate,
    RunListQuery, RunStatus, SandboxLevel,
};
use overmind_cli::demo::daemon::Daemon;
use overmind_cli::exit::Failure;
use overmind_client::{Client, LogOptions, Target};
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use overmind_node::config::{DataDir, Env};

use super::floors::Floors;
use super::process::{command, rss, times};
use super::process::{megabytes, mib};
use super::{Figure, Goal, Setting, ms, percentile, rate};

/// Lines of the long log, of 64 bytes each.
const LINES: u32 = 1_000_000;
/// Before the first restart, which the result excludes.
const BACKOFF: Duration = Duration::from_millis(20);
/// Runs that are asked for at the same time.
const AT_ONCE: u32 = 16;
/// How long anything may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(120);
const SETTLE: Duration = Duration::from_secs(3);
pub(super) const AGENT: &str = "bench";
const RUNS_OF_A_PAGE: u32 = 500;

pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) data: PathBuf,
    pub(super) client: Client,
    program: PathBuf,
    daemon: Daemon,
}

pub(super) async fn measure(setting: &Setting, floors: &Floors) -> Result<Vec<Figure>, Failure> {
    let place = Place::open(setting, "lives").await?;
    let rounds = setting.count(60).max(10);
    let mut figures = vec![place.starts(rounds, floors).await?, place.restarts(rounds / 2).await?];
    figures.extend(place.log(setting).await?);
    let (few, many) = (setting.count(500), setting.count(2000));
    figures.extend(place.crowd(few, many).await?);
    Ok(figures)
}

impl Place {
    pub(super) async fn open(setting: &Setting, name: &str) -> Result<Self, Failure> {
        let dir = setting.place(name)?;
        let work = setting.place(&format!("{name}-work"))?;
        let data = dir.join("data");
        let found = DataDir::locate(Some(&data), &Env::default(), &dir)?;
        found.prepare()?;
        let config = "[engine]\nmax_running = 10000\nmax_running_per_agent = 10000\n\
                      max_running_per_colony = 10000\n";
        std::fs::write(data.join("overmind.toml"), config)
            .map_err(|err| Failure::failed(format!("writing the settings: {err}")))?;
        let args = ["--listen", "127.0.0.1:0", "--workspace", &work.to_string_lossy()];
        let setup = setting.setup(&args);
        let daemon = Daemon::start(&data, &setup)?;
        let target: Target = format!("unix:{}", data.join("overmind.sock").display())
            .parse()
            .map_err(|err: overmind_client::TargetError| Failure::failed(err.to_string()))?;
        let token = found.admin_token()?;
        let client = Client::connect(target, Some(token.expose()))?;
        let agent = AgentCreate {
            name: AGENT.into(),
            role: "measure".into(),
            model: "command".into(),
            sandbox: Some(SandboxLevel::None),
            limits: Some(AgentLimits {
                max_seconds: 0,
                max_concurrent: 10_000,
                ..Default::default()
            }),
            command: Some(Command { argv: vec!["true".into()], ..Command::default() }),
            ..AgentCreate::default()
        };
        client.agent_create(&agent, None).await?;
        Ok(Self { dir: work, data, client, program: setting.program.clone(), daemon })
    }

    async fn run(&self, command: Command) -> Result<Run, Failure> {
        let run = RunCreate {
            agent_id: AGENT.into(),
            command: Some(command),
            workspace: Some(self.dir.to_string_lossy().into_owned()),
            room: Some(nowhere()),
            ..RunCreate::default()
        };
        Ok(self.client.run_create(&run, None).await?)
    }

    /// From asking for a run to the first thing that its program does: opening a pipe for writing.
    async fn starts(&self, rounds: u32, floors: &Floors) -> Result<Figure, Failure> {
        let mut took = Vec::new();
        let mut bare = Vec::new();
        for n in 0..rounds {
            let pipe = self.pipe("start", n)?;
            let opened = opening(pipe.clone());
            let began = Instant::now();
            let child =
                Program::new("tee").arg(&pipe).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
            let mut child = child.map_err(|err| Failure::failed(format!("starting tee: {err}")))?;
            bare.push(opened.await?.0.duration_since(began));
            let _ = child.wait();

            let opened = opening(pipe.clone());
            let began = Instant::now();
            let run = self.run(tee(&pipe, CommandKind::Task)).await?;
            took.push(opened.await?.0.duration_since(began));
            self.ended(&run).await?;
        }
        took.sort_unstable();
        bare.sort_unstable();
        let floor = percentile(&bare, 0.5) + floors.fsync;
        Ok(Figure::new("command to running", ms(percentile(&took, 0.5)), "ms")
            .floor("fsync, fork and exec of the same program", ms(floor))
            .goal(Goal::OverFloor(1.0))
            .note(format!(
                "from sending the request over the socket to the program's first deed; slowest \
                 tenth from {:.2} ms",
                ms(percentile(&took, 0.9))
            )))
    }

    /// From the kill of a program to the first thing that its next life does.
    async fn restarts(&self, rounds: u32) -> Result<Figure, Failure> {
        let mut took = Vec::new();
        for n in 0..rounds {
            let pipe = self.pipe("again", n)?;
            let opened = opening(pipe.clone());
            let run = self
                .run(Command {
                    restart: Restart::Always,
                    backoff_ms: u32::try_from(BACKOFF.as_millis()).unwrap_or_default(),
                    ..tee(&pipe, CommandKind::Session)
                })
                .await?;
            let (_, mut first) = opened.await?;
            let pid = self.pid_of(&run).await?;
            let began = Instant::now();
            kill(pid)?;
            let again = tokio::task::spawn_blocking(move || {
                // The end of the first life closes the pipe; only then does opening it wait again.
                first.read_to_end(&mut Vec::new())?;
                drop(first);
                std::fs::File::open(&pipe).map(|file| (Instant::now(), file))
            });
            let (at, _second) = joined(again.await)?;
            took.push(at.duration_since(began).saturating_sub(BACKOFF));
            self.stop(&run).await?;
        }
        took.sort_unstable();
        Ok(Figure::new("crash to next life", ms(percentile(&took, 0.5)), "ms")
            .goal(Goal::Most(3.0))
            .note("beyond its backoff of 20 ms; the exec of the program is in it"))
    }

    async fn log(&self, setting: &Setting) -> Result<Vec<Figure>, Failure> {
        let lines = setting.count(LINES);
        let before = rss(self.daemon.pid());
        let line = "x".repeat(63);
        let began = Instant::now();
        let run = self
            .run(Command {
                argv: ["sh", "-c", &format!("yes {line} 2>/dev/null | head -n {lines}")]
                    .map(str::to_owned)
                    .into(),
                ..Command::default()
            })
            .await?;
        self.ended(&run).await?;
        // The last line of the program, and behind it the mark of its end.
        let options = LogOptions { tail: Some(2), ..LogOptions::default() };
        let (last, _) = self.read(&run, &options).await?;
        let took = began.elapsed();
        if last <= 64 {
            return Err(Failure::failed(format!("the log's last lines have {last} bytes")));
        }
        let grown = rss(self.daemon.pid()).saturating_sub(before);

        let options = LogOptions { tail: Some(100), ..LogOptions::default() };
        let mut tails = Vec::new();
        for _ in 0..setting.count(50) {
            tails.push(self.read(&run, &options).await?.1);
        }
        tails.sort_unstable();
        let (bytes, fetching) = self.read(&run, &LogOptions::default()).await?;
        if bytes < u64::from(lines) * 64 {
            return Err(Failure::failed(format!("{bytes} bytes of {lines} lines were fetched")));
        }
        Ok(vec![
            Figure::new("log lines", rate(lines, took), "lines/s")
                .goal(Goal::Least(1_000_000.0))
                .note("64 bytes each, by a pipe: from asking for the run to reading its last line"),
            Figure::new("log growth", mib(grown), "MiB")
                .goal(Goal::Most(10.0))
                .note("of the server's resident memory by those lines"),
            Figure::new("log tail", ms(percentile(&tails, 0.5)), "ms")
                .goal(Goal::Most(5.0))
                .note("the last 100 lines, over the socket"),
            Figure::new("log fetch", megabytes(bytes) / fetching.as_secs_f64(), "MB/s")
                .goal(Goal::Least(200.0))
                .note("all of it, over the socket"),
        ])
    }

    /// Memory, `ps` and the end of many that live at once.
    async fn crowd(&self, few: u32, many: u32) -> Result<Vec<Figure>, Failure> {
        let program = &self.program;
        let data = self.data.to_string_lossy().into_owned();
        let ps = || times(20, || command(program, &["--data", &data, "ps", "-q"]));

        self.grow(0, few).await?;
        settled().await;
        let (rss_few, ps_few) = (rss(self.daemon.pid()), percentile(&ps()?, 0.5));
        self.grow(few, many).await?;
        settled().await;
        let (rss_many, ps_many) = (rss(self.daemon.pid()), percentile(&ps()?, 0.5));
        let busy = busy(self.daemon.pid()).await;

        let pids = self.pids().await?;
        if pids.len() < many as usize {
            let message = format!("{} of {many} commands are running", pids.len());
            return Err(Failure::failed(message));
        }
        let bare = tokio::task::spawn_blocking(move || bare_kill(2 * many)).await;
        let bare = bare.map_err(|err| Failure::failed(format!("killing programs: {err}")))??;
        let start = percentile(&times(20, || command(program, &["--version"]))?, 0.5);
        let began = Instant::now();
        let status = command(program, &["--data", &data, "-q", "kill", "--all"]).status();
        let killed_in = began.elapsed();
        if !status.is_ok_and(|status| status.success()) {
            return Err(Failure::failed("`overmind kill --all` failed".to_owned()));
        }
        let gone = self.none_left().await?;
        let survivors = pids.iter().filter(|pid| alive(**pid)).count();
        let survivors = u32::try_from(survivors).unwrap_or(u32::MAX);
        Ok(vec![
            Figure::new("rss of 500 lives", mib(rss_few), "MiB").goal(Goal::Most(25.0)),
            Figure::new("rss of 2000 lives", mib(rss_many), "MiB").goal(Goal::Most(60.0)),
            Figure::new("ps of 500 lives", ms(ps_few), "ms")
                .floor("the start and end of this program", ms(start))
                .goal(Goal::Most(3.0)),
            Figure::new("ps of 2000 lives", ms(ps_many), "ms")
                .floor("the start and end of this program", ms(start))
                .goal(Goal::Most(10.0)),
            Figure::new("idle cpu of 2000 lives", busy, "%")
                .note("of one processor, while all of them are silent"),
            Figure::new("kill of 2000 lives", ms(killed_in + gone), "ms")
                .floor("as many bare processes (4000), killed and waited for", ms(bare))
                .goal(Goal::Most(1000.0))
                .note("`overmind kill --all`, until the last run is told as ended"),
            Figure::new("survivors of 2000 lives", f64::from(survivors), "processes")
                .goal(Goal::Most(0.0)),
        ])
    }

    /// Starts commands until there are so many.
    pub(super) async fn grow(&self, from: u32, to: u32) -> Result<(), Failure> {
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..AT_ONCE {
            let client = self.client.clone();
            let workspace = self.dir.to_string_lossy().into_owned();
            let count = (from..to).filter(|n| n % AT_ONCE == worker).count();
            workers.spawn(async move {
                for _ in 0..count {
                    let argv = ["sleep", "100000"].map(str::to_owned).into();
                    let run = RunCreate {
                        agent_id: AGENT.into(),
                        command: Some(Command { argv, ..Command::default() }),
                        workspace: Some(workspace.clone()),
                        room: Some(nowhere()),
                        ..RunCreate::default()
                    };
                    client.run_create(&run, None).await?;
                }
                Ok::<(), overmind_client::ClientError>(())
            });
        }
        while let Some(done) = workers.join_next().await {
            done.map_err(|err| Failure::failed(format!("starting commands: {err}")))??;
        }
        let began = Instant::now();
        while self.pids().await?.len() < to as usize {
            self.patient(began, "commands to start")?;
            pause().await;
        }
        Ok(())
    }

    /// Main processes of all runs that have one.
    async fn pids(&self) -> Result<Vec<u32>, Failure> {
        let mut pids = Vec::new();
        let query = RunListQuery {
            status: vec![RunStatus::Running],
            limit: Some(RUNS_OF_A_PAGE),
            ..RunListQuery::default()
        };
        let mut page = self.client.run_list(&query).await?;
        loop {
            pids.extend(page.items.iter().filter_map(|run| run.process.as_ref()?.pid));
            match self.client.page_next(&page).await? {
                Some(next) => page = next,
                None => return Ok(pids),
            }
        }
    }

    /// Ends all runs: they would outlive the server.
    pub(super) async fn end(&self) -> Result<(), Failure> {
        let data = self.data.to_string_lossy().into_owned();
        let kill = command(&self.program, &["--data", &data, "-q", "kill", "--all"]).status();
        if !kill.is_ok_and(|status| status.success()) {
            return Err(Failure::failed("`overmind kill --all` failed".to_owned()));
        }
        self.none_left().await.map(drop)
    }

    /// How long it takes until no run is running any more.
    async fn none_left(&self) -> Result<Duration, Failure> {
        let began = Instant::now();
        let query = RunListQuery { status: vec![RunStatus::Running], ..RunListQuery::default() };
        while !self.client.run_list(&query).await?.items.is_empty() {
            self.patient(began, "commands to end")?;
            pause().await;
        }
        Ok(began.elapsed())
    }

    async fn ended(&self, run: &Run) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            let now = self.client.run_fetch(&run.id.to_string()).await?;
            match now.status {
                RunStatus::Queued | RunStatus::Running => self.patient(began, "a run to end")?,
                RunStatus::Succeeded => return Ok(()),
                other => return Err(Failure::failed(format!("a run ended as {other}"))),
            }
            pause().await;
        }
    }

    async fn pid_of(&self, run: &Run) -> Result<u32, Failure> {
        let began = Instant::now();
        loop {
            let now = self.client.run_fetch(&run.id.to_string()).await?;
            if let Some(pid) = now.process.and_then(|process| process.pid) {
                return Ok(pid);
            }
            self.patient(began, "a command to start")?;
            pause().await;
        }
    }

    async fn stop(&self, run: &Run) -> Result<(), Failure> {
        let kill = overmind_api::RunStop { kill: true, grace: None };
        self.client.run_stop(&run.id.to_string(), kill).await?;
        Ok(())
    }

    /// Bytes of a log, and how long reading them took.
    async fn read(&self, run: &Run, options: &LogOptions) -> Result<(u64, Duration), Failure> {
        let began = Instant::now();
        let mut log = self.client.run_log(&run.id.to_string(), options).await?;
        let mut bytes = 0;
        while let Some(piece) = log.next().await? {
            bytes += piece.len() as u64;
        }
        Ok((bytes, began.elapsed()))
    }

    fn pipe(&self, what: &str, n: u32) -> Result<PathBuf, Failure> {
        let path = self.dir.join(format!("{what}-{n}"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .map_err(|err| Failure::failed(format!("making the pipe {}: {err}", path.display())))?;
        Ok(path)
    }

    /// The server's process.
    pub(super) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// The address on which it listens for browsers.
    pub(super) fn url(&self) -> &str {
        self.daemon.server.url.as_deref().unwrap_or_default()
    }

    pub(super) fn patient(&self, began: Instant, what: &str) -> Result<(), Failure> {
        match began.elapsed() < PATIENCE {
            true => Ok(()),
            false => Err(Failure::failed(format!(
                "waited {} s for {what}; the server's log is {}",
                PATIENCE.as_secs(),
                self.data.join("overmind.log").display()
            ))),
        }
    }
}

/// These are figures of processes; rooms have their own.
fn nowhere() -> RoomWish {
    RoomWish { when: RoomWhen::Never, ..RoomWish::default() }
}

/// A program whose first deed is to open this pipe.
fn tee(pipe: &Path, kind: CommandKind) -> Command {
    let argv = vec!["tee".to_owned(), pipe.to_string_lossy().into_owned()];
    Command { argv, kind, ..Command::default() }
}

type Opened = (Instant, std::fs::File);

/// Waits, from now on, until somebody opens the pipe for writing.
fn opening(pipe: PathBuf) -> impl Future<Output = Result<Opened, Failure>> {
    let opened = tokio::task::spawn_blocking(move || {
        std::fs::File::open(&pipe).map(|file| (Instant::now(), file))
    });
    async move {
        match tokio::time::timeout(PATIENCE, opened).await {
            Ok(opened) => joined(opened),
            Err(_) => Err(Failure::failed("a program did not open its pipe".to_owned())),
        }
    }
}

fn joined(
    opened: Result<std::io::Result<Opened>, tokio::task::JoinError>,
) -> Result<Opened, Failure> {
    match opened {
        Ok(Ok(opened)) => Ok(opened),
        Ok(Err(err)) => Err(Failure::failed(format!("opening a pipe: {err}"))),
        Err(err) => Err(Failure::failed(format!("opening a pipe: {err}"))),
    }
}

/// From the first signal to the last end of so many processes that are killed and waited for.
fn bare_kill(count: u32) -> Result<Duration, Failure> {
    let mut children = Vec::new();
    let mut failed = None;
    for _ in 0..count {
        match Program::new("sleep").arg("100000").stdin(Stdio::null()).spawn() {
            Ok(child) => children.push(child),
            Err(err) => failed = Some(Failure::failed(format!("starting sleep: {err}"))),
        }
    }
    let began = Instant::now();
    for child in &mut children {
        if let Err(err) = child.kill() {
            failed = Some(Failure::failed(format!("killing sleep: {err}")));
        }
    }
    for child in &mut children {
        let _ = child.wait();
    }
    failed.map_or(Ok(began.elapsed()), Err)
}

fn kill(pid: u32) -> Result<(), Failure> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::failed("a process without a number".to_owned()))?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)
        .map_err(|err| Failure::failed(format!("killing a program: {err}")))
}

/// Whether a process exists; a process that ended and was not reaped counts as ended.
fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, Some('Z' | 'X')))
}

/// The share of one processor that a process takes, in percent.
async fn busy(pid: u32) -> f64 {
    let used = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> =
            stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
        // The 14th and 15th field of all: user and system time, in hundredths of a second.
        fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
    };
    let (before, began) = (used(), Instant::now());
    settled().await;
    (used() - before) / began.elapsed().as_secs_f64()
}

async fn settled() {
    SystemClock.sleep_until(SystemClock.now().after(SETTLE)).await;
}

pub(super) async fn pause() {
    SystemClock.sleep_until(SystemClock.now().after(Duration::from_millis(2))).await;
}
