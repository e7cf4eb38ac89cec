//! The storm: twenty commands at once, and at random everything that happens to them. They are
//! started, written to, stopped, killed; they fork, detach, crash; their keepers are killed, the
//! server is killed, the disk is full. In the end nothing of any of them is left, and the log
//! says of each life how it ended.
//!
//! `OVERMIND_SEED` chooses the schedule (chance in the machine's timing remains). `cargo xtask soak storm`
//! plays one that is long enough to come across everything.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use overmind_testkit::soak;
use serde_json::Value;

use crate::commands::Commands;
use crate::crash::rng::Rng;
use crate::crash::setting;
use crate::home::{Home, until};

/// In every run of the tests, and in one of `cargo xtask soak`.
const CYCLES: (u64, u64) = (24, 640);
const AT_ONCE: usize = 20;
/// The size of the disk with the storm's data, in MiB.
const DISK: u32 = 96;

/// Refusals that are no failure, because they are correct.
const TOO_LATE: &[&str] = &[
    "is ending already",
    "already finished",
    "has no process now",
    "no conversation to continue",
    "is not alive",
    "started without input",
    "its input is closed",
    "the program does not read",
    // For a kill on a full disk: it is done, and recorded later.
    "were told to end",
];

/// The action of a command of the storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Waits, with a child.
    Sleeps,
    /// Leaves its group, its session and its parent behind, again and again.
    Detaches,
    /// Answers lines.
    Reads,
    /// Fails, again and again.
    Fails,
    /// Kills itself.
    Shoots,
    /// Hears no TERM.
    Deaf,
    /// Ends well, soon.
    Short,
    /// Writes as fast as it can.
    Floods,
}

const KINDS: [Kind; 8] = [
    Kind::Sleeps,
    Kind::Detaches,
    Kind::Reads,
    Kind::Fails,
    Kind::Shoots,
    Kind::Deaf,
    Kind::Short,
    Kind::Floods,
];

impl Kind {
    fn line(self) -> &'static str {
        match self {
            Self::Sleeps => "sleep 600 & sleep 600",
            Self::Detaches => {
                "(setsid sh -c 'sleep 600 & sleep 600' &) ; (sleep 600 &) ; setsid sleep 600 & sleep 600"
            }
            Self::Reads => "while read line; do echo got $line; done",
            Self::Fails => "echo life; sleep 0.05; exit 3",
            Self::Shoots => "sleep 0.1; kill -9 $$",
            Self::Deaf => "trap '' TERM HUP; while :; do sleep 0.2; done",
            Self::Short => "echo one; sleep 0.2; echo two",
            Self::Floods => "yes storm | head -c 2000000; sleep 600",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Reads => &["--type", "session"],
            Self::Fails => &["--restart", "on-failure", "--max-restarts", "3", "--backoff", "20ms"],
            Self::Shoots => &["--restart", "always", "--backoff", "50ms", "--pipes"],
            Self::Floods | Self::Short => &["--pipes"],
            Self::Sleeps | Self::Detaches | Self::Deaf => &[],
        }
    }
}

/// The actions and their counts.
#[derive(Default)]
struct Done(BTreeMap<&'static str, u32>);

impl Done {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    fn of(&self, what: &str) -> u32 {
        self.0.get(what).copied().unwrap_or_default()
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (what, count) in &self.0 {
            write!(f, "{}{count} {what}", if first { "" } else { ", " })?;
            first = false;
        }
        Ok(())
    }
}

struct Storm {
    home: Commands,
    rng: Rng,
    done: Done,
    next: u32,
    /// Acknowledged names that had not ended at the last check.
    open: Vec<(String, Kind)>,
    /// A separate disk, if this user may mount one.
    disk: Option<Disk>,
    cycle: u64,
}

/// A small disk for the duration of the storm.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let size = format!("size={DISK}m,mode=0700");
        // Tests that count mounts recognise by the name that it is not theirs.
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "overmind-storm"])
            .arg(&at)
            .output();
        mount.is_ok_and(|mount| mount.status.success()).then(|| Self(at))
    }

    /// Writes until the disk is full.
    fn fill(&self) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        for size in [1 << 20, 4096] {
            let block = vec![0_u8; size];
            while file.write_all(&block).is_ok() {}
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

impl Storm {
    fn ps(&self) -> Vec<Value> {
        let all = self.home.run(&["ps", "--all", "-o", "json", "--limit", "5000"]).ok().json();
        all.as_array().expect("a list").clone()
    }

    fn look(&mut self) {
        let runs = self.ps();
        let open = |name: &str| {
            let run = runs.iter().find(|run| run["name"] == name);
            let run =
                run.unwrap_or_else(|| panic!("cycle {}: {name} was acknowledged", self.cycle));
            !ended(run)
        };
        self.open.retain(|(name, _)| open(name));
    }

    fn any(&mut self) -> Option<(String, Kind)> {
        if self.open.is_empty() {
            return None;
        }
        let at = self.rng.index(self.open.len());
        Some(self.open[at].clone())
    }

    fn start(&mut self) {
        let kind = *self.rng.pick(&KINDS);
        self.next += 1;
        let name = format!("storm-{}", self.next);
        let mut args = vec!["run", "--detach", "--name", &name];
        args.extend(kind.flags());
        // Half of them in their own worktrees.
        if self.rng.one_in(2) {
            args.push("--here");
        }
        let parent = self.any().filter(|_| self.rng.one_in(4)).map(|(parent, _)| parent);
        if let Some(parent) = &parent {
            args.extend(["--parent", parent]);
        }
        args.push(kind.line());
        let started = self.home.run(&args);
        match started.code {
            0 => {
                self.done.count("started");
                self.open.push((name, kind));
            }
            // Its parent has ended meanwhile.
            _ if parent.is_some() => self.done.count("orphans refused"),
            code => panic!("cycle {}: start failed with {code}: {}", self.cycle, started.err),
        }
    }

    /// Does something to one of them. That it has ended meanwhile is told, and is no failure.
    fn act(&mut self) {
        let Some((name, kind)) = self.any() else { return };
        let choice = self.rng.below(7);
        let pid = || {
            let runs = self.ps();
            let run = runs.iter().find(|run| run["name"] == name.as_str())?.clone();
            run["process"]["pid"].as_u64()
        };
        let (what, done): (_, Option<crate::home::Done>) = match choice {
            0 => ("written to", Some(self.home.run(&["send", &name, "hello"]))),
            1 => ("stopped", Some(self.home.run(&["stop", &name, "--grace", "1", "--no-wait"]))),
            2 => ("killed", Some(self.home.run(&["kill", &name]))),
            3 => ("killed with children", Some(self.home.run(&["kill", &name, "--cascade"]))),
            4 => ("canceled", Some(self.home.run(&["cancel", &name]))),
            5 => match pid() {
                Some(pid) => ("main processes shot", Some(shoot(pid))),
                None => return,
            },
            _ => match pid().and_then(keeper_of) {
                Some(keeper) => ("keepers shot", Some(shoot(keeper))),
                None => return,
            },
        };
        if let Some(done) = done {
            match done.code {
                0 => self.done.count(what),
                // It has ended meanwhile, or takes no input.
                _ if what.ends_with("shot")
                    || TOO_LATE.iter().any(|reason| done.err.contains(reason)) =>
                {
                    self.done.count("came too late");
                }
                code => {
                    panic!("cycle {}: {what} {name} ({kind:?}): {code}: {}", self.cycle, done.err)
                }
            }
        }
    }

    /// The server is killed, and another one starts.
    fn new_server(&mut self) {
        self.home.0.kill();
        self.home.0.start(&["--listen", "none"], &[]);
        self.done.count("servers killed");
    }

    /// The disk is full for a while: requests are refused with a reason, and nothing is lost.
    fn pressure(&mut self) {
        let Some(disk) = self.disk.take() else { return };
        disk.fill();
        let mut refused = 0;
        for n in 0..4 {
            let name = format!("squeezed-{}-{n}", self.cycle);
            let started = self.home.run(&[
                "run",
                "--detach",
                "--name",
                &name,
                "echo in; sleep 0.1; echo out",
            ]);
            match started.code {
                0 => self.open.push((name, Kind::Short)),
                _ => {
                    assert!(!started.err.contains("panicked"), "{}", started.err);
                    refused += 1;
                }
            }
        }
        // Its wish is written down as soon as there is room; until then its answer waits.
        let kill = self.any().map(|(name, _)| {
            let mut kill = self.home.0.command(&["kill", &name]);
            (name, kill.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
        });
        disk.empty();
        self.disk = Some(disk);
        if let Some((name, kill)) = kill {
            let done = kill.wait_with_output().unwrap();
            let err = String::from_utf8_lossy(&done.stderr).into_owned();
            let late = TOO_LATE.iter().any(|reason| err.contains(reason));
            assert!(done.status.success() || late, "cycle {}: kill {name}: {err}", self.cycle);
        }
        if refused > 0 {
            self.done.count("full disks told");
        }
        self.done.count("full disks");
        // It is complete again on its own.
        until("there is room again", || (self.home.run(&["ps"]).code == 0).then_some(()));
    }

    fn cycle(&mut self) {
        self.cycle += 1;
        let starts =
            self.open.len() < AT_ONCE && (self.open.len() < AT_ONCE / 2 || self.rng.one_in(2));
        match self.rng.below(40) {
            0 | 1 => self.new_server(),
            2 => self.pressure(),
            _ if starts => self.start(),
            _ => self.act(),
        }
        if self.open.len() >= AT_ONCE || self.cycle.is_multiple_of(5) {
            self.look();
        }
    }

    /// Ends all running commands, and looks for remains.
    fn end(mut self) {
        self.home.run(&["kill", "--all"]);
        until("all runs have ended", || {
            // Commands that were about to restart when the others were killed.
            let open: Vec<Value> = self.ps().into_iter().filter(|run| !ended(run)).collect();
            for run in &open {
                let _ = self.home.run(&["kill", run["id"].as_str().expect("an id")]);
            }
            open.is_empty().then_some(())
        });
        let runs = self.ps();
        let mut deaths = 0;
        for run in &runs {
            deaths += explained(&self.home, run);
        }
        // Environments that could not be released on the full disk are released on request.
        let full = self.done.of("full disks") > 0;
        let left: Vec<&Value> = runs
            .iter()
            .filter(|run| {
                let leaks = run["room"]["leaks"].as_array().is_some_and(|leaks| !leaks.is_empty());
                leaks || run["room"]["phase"] == "left"
            })
            .collect();
        assert!(full || left.is_empty(), "rooms that were not given back: {left:?}");
        let data = self.home.0.data();
        if !left.is_empty() {
            self.new_server();
            let leases = || directories(&data.join("leases"));
            until("what was left is given back", || leases().is_empty().then_some(()));
        }
        let records: Vec<PathBuf> = files(&data.join("processes"))
            .into_iter()
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                ["keeper-", "life-", "exit-"].iter().any(|start| name.starts_with(start))
            })
            .collect();
        assert_eq!(records, Vec::<PathBuf>::new(), "records of lives that are over");
        let trees: Vec<PathBuf> = directories(&data.join("worktrees"))
            .iter()
            .flat_map(|project| directories(project))
            .filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'))
            .collect();
        assert_eq!(trees, Vec::<PathBuf>::new(), "trees of runs that are over");
        let leases: Vec<String> = directories(&data.join("leases"))
            .iter()
            .map(|lease| {
                let id = lease.file_name().unwrap().to_string_lossy().into_owned();
                let run = runs.iter().find(|run| run["id"] == id.as_str());
                let files: Vec<(PathBuf, u64)> = files(lease)
                    .into_iter()
                    .map(|file| (file.clone(), file.metadata().map_or(0, |meta| meta.len())))
                    .collect();
                format!("{id}: {files:?}; {run:?}")
            })
            .collect();
        assert_eq!(leases, Vec::<String>::new(), "leases of runs that are over");
        let rooms = runs.iter().filter(|run| !run["room"]["worktree"].is_null()).count();
        assert!(rooms > 0, "no worktree was made");
        let with_disk = self.disk.is_some();
        let (cycle, done, runs, left) = (self.cycle, &self.done, runs.len(), left.len());
        eprintln!(
            "{cycle} cycles: {done}; {runs} runs, {rooms} worktrees ({left} were given back late), \
             {deaths} deaths"
        );
        self.home.check();
        drop(self.disk.take());
        if cycle < CYCLES.1 {
            return;
        }
        for what in ["started", "written to", "stopped", "killed", "canceled", "servers killed"] {
            assert!(self.done.of(what) > 0, "the storm never came to `{what}`: {}", self.done);
        }
        for what in ["main processes shot", "keepers shot", "killed with children"] {
            assert!(self.done.of(what) > 0, "the storm never came to `{what}`: {}", self.done);
        }
        if with_disk {
            assert!(self.done.of("full disks") > 0, "no disk was ever full: {}", self.done);
        }
    }
}

/// Each started attempt has an end with a reason in the log, and so has the run itself.
fn explained(home: &Commands, run: &Value) -> u32 {
    let id = run["id"].as_str().expect("an id");
    let told = home.run(&["events", id, "-o", "json"]).ok();
    let events = told.json();
    let events = events.as_array().expect("a list");
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let (begun, ends) = (of("process.starting"), of("process.ended"));
    // For a canceled run, the cancellation with its author ends the last attempt.
    let canceled = of("run.canceled").len();
    let told_of = (ends.len()..=ends.len() + canceled).contains(&begun.len());
    assert!(told_of, "{}: lives and their ends: {}", run["name"], told.out);
    for end in &ends {
        let end = &end["payload_json"]["end"];
        let why = ["exit_code", "signal", "reason"].iter().any(|key| !end[*key].is_null());
        assert!(why, "{}: an end without a reason: {end}", run["name"]);
        assert_eq!(end["survivors"].as_u64().unwrap_or_default(), 0, "{}: {end}", run["name"]);
    }
    let last = ["run.succeeded", "run.failed", "run.canceled", "run.stopped"];
    let last: usize = last.iter().map(|kind| of(kind).len()).sum();
    assert_eq!(last, 1, "{}: how it ended, once: {}", run["name"], told.out);
    u32::try_from(ends.len()).expect("few")
}

fn ended(run: &Value) -> bool {
    ["succeeded", "failed", "canceled"].iter().any(|status| run["status"] == *status)
}

fn shoot(pid: u64) -> crate::home::Done {
    let kill = Command::new("kill").args(["-9", &pid.to_string()]).output().unwrap();
    crate::home::Done {
        code: kill.status.code().unwrap_or(-1),
        out: String::new(),
        err: String::from_utf8_lossy(&kill.stderr).into_owned(),
    }
}

/// The process that keeps this one: its parent.
fn keeper_of(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    // An init that has adopted it is not its shim.
    (parent > 1).then_some(parent)
}

fn directories(dir: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn files(dir: &std::path::Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

#[test]
fn random_kills_of_twenty_commands_leave_nothing_and_every_end_has_a_reason() {
    let seed =
        setting("OVERMIND_SEED").unwrap_or_else(|| RandomState::new().hash_one(Instant::now()));
    let cycles = soak::count(CYCLES.0, CYCLES.1);
    eprintln!("OVERMIND_SEED={seed}, {cycles} cycles");
    let home = Home::new();
    let disk = Disk::mount(home.data());
    if disk.is_none() {
        eprintln!("no disk pressure: this user may not mount a small disk");
    }
    let mut home = Commands(home);
    for args in [
        &["init", "-q"][..],
        &[
            "-c",
            "user.name=a",
            "-c",
            "user.email=b",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "first",
        ],
    ] {
        let git = Command::new("git").args(args).current_dir(home.0.work()).output().unwrap();
        assert!(git.status.success(), "{}", String::from_utf8_lossy(&git.stderr));
    }
    home.0.start(&["--listen", "none"], &[]);
    let (rng, done) = (Rng::new(seed), Done::default());
    let mut storm = Storm { home, rng, done, next: 0, open: Vec::new(), disk, cycle: 0 };
    for _ in 0..cycles {
        storm.cycle();
    }
    storm.end();
}
