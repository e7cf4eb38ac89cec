//! Ticks of many rituals across kills: each scheduled tick got one quest, and the delays are printed.
//!
//! The expected ticks are computed here from the schedules and the creation times of the rituals;
//! the actual ticks are in the log of the store after the last kill. The log also contains deleted
//! objects, so a tick that fired twice is found.
//!
//! `OVERMIND_SEED` chooses when the server is killed (chance in the machine's timing remains).

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use overmind_core::schedule::jitter;
use overmind_core::store::{EventQuery, Store as _, StreamId};
use overmind_core::time::Timestamp;
use overmind_store::{Options, Sqlite};
use overmind_testkit::soak;
use serde_json::{Value, json};

use crate::crash::{rng::Rng, setting};
use crate::home::{Home, PATIENCE, until_within};

/// How large the test is, in every run of the tests and in one of `cargo xtask soak`.
const FEW: Size = Size { rituals: 20, kills: 3, period: 1, life: (100, 900), asserts_error: false };
const MANY: Size =
    Size { rituals: 10_000, kills: 50, period: 600, life: (3_000, 15_000), asserts_error: true };
/// Ticks of one second are spread over it.
const JITTER: Duration = Duration::from_secs(1);
/// How late a tick may be of a server that is there and has looked at all rituals.
const LATE: Duration = Duration::from_millis(50);
/// How long no server is there after the first kill; after the others one is started at once.
const DEAD: Duration = Duration::from_millis(700);
/// Documents of one request: it may have 2 MiB.
const AT_ONCE: usize = 2_500;

#[derive(Clone, Copy, Debug)]
struct Size {
    rituals: u32,
    kills: u32,
    /// Seconds between two ticks of a ritual: divides a minute, or is some minutes that divide an hour.
    period: u32,
    /// Milliseconds from ready to killed.
    life: (u64, u64),
    /// The small one shares the machine with other tests.
    asserts_error: bool,
}

impl Size {
    fn name(n: u32) -> String {
        format!("r{n}")
    }

    fn offset(self, n: u32) -> u32 {
        n % self.period
    }

    /// Six fields that tick whenever the time is the offset of the ritual, modulo the period.
    fn schedule(self, n: u32) -> String {
        let list = |first: u32, step: u32| {
            let all = (first..60).step_by(step as usize).map(|number| number.to_string());
            all.collect::<Vec<_>>().join(",")
        };
        let offset = self.offset(n);
        match self.period < 60 {
            true => format!("{} * * * * *", list(offset, self.period)),
            false => format!("{} {} * * * *", offset % 60, list(offset / 60, self.period / 60)),
        }
    }

    /// The seconds at which ticks of a ritual begin, after `created` and up to `end`.
    fn ticks(self, n: u32, created: Timestamp, end: Timestamp) -> Vec<(i64, Timestamp)> {
        let (name, period) = (Self::name(n), i64::from(self.period));
        let seconds = seconds(created) + 1..=seconds(end);
        let ticks = seconds.filter(|second| second % period == i64::from(self.offset(n)));
        let begins = |second| {
            let tick = Timestamp::from_micros(second * 1_000_000);
            (second, tick.after(jitter(&name, tick, JITTER)))
        };
        ticks.map(begins).filter(|(_, begins)| *begins <= end).collect()
    }
}

fn seconds(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000_000)
}

#[expect(clippy::disallowed_methods, reason = "the test lives in real time, as its server does")]
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap())
}

/// The content of the log.
#[derive(Debug, Default)]
struct Log {
    /// When the rituals were created, by name.
    rituals: BTreeMap<String, Timestamp>,
    /// When each quest was created, every time, by name.
    quests: BTreeMap<String, Vec<Timestamp>>,
}

#[tokio::main(flavor = "current_thread")]
async fn log(home: &Home) -> Log {
    let store = Sqlite::open(Options::new(home.data().join("overmind.db"))).unwrap();
    let (mut log, mut after) = (Log::default(), 0);
    loop {
        let (stream, kinds) = (Some(StreamId::Records), &["record.put"][..]);
        let page = store.events(EventQuery { stream, after, kinds, limit: 5000 }).await.unwrap();
        let Some(last) = page.last() else { return log };
        after = last.seq;
        for event in page {
            let put = event.value();
            let name = put["name"].as_str().unwrap().to_owned();
            match (put["kind"].as_str().unwrap(), put["version"].as_u64().unwrap()) {
                ("ritual", 1) => drop(log.rituals.insert(name, event.ts)),
                ("quest", 1) => log.quests.entry(name).or_default().push(event.ts),
                _ => {}
            }
        }
    }
}

fn apply(home: &Home, size: Size) {
    let document = |n| {
        let spec = json!({
            "schedule": size.schedule(n), "jitter": "1s", "missed": "all",
            "succeededHistory": 1000, "failedHistory": 1000,
            "template": {"agent": "says", "task": "hello"},
        });
        let (kind, name) = ("Ritual", Size::name(n));
        let metadata = json!({"name": name});
        json!({"apiVersion": "overmind/v1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let all: Vec<Value> = (0..size.rituals).map(document).collect();
    for some in all.chunks(AT_ONCE) {
        let text: Vec<String> = some.iter().map(Value::to_string).collect();
        std::fs::write(home.work().join("rituals.yaml"), text.join("\n---\n")).unwrap();
        home.run(&["apply", "-f", "rituals.yaml"]).ok();
    }
}

/// A pass that began after this was called has ended well.
fn passed(home: &Home) {
    let ran = || (home.run(&["loop", "run", "rituals"]).code == 0).then_some(());
    until_within(PATIENCE * 10, || format!("a pass; {}", home.log()), ran);
}

/// Whether a pass has ended since the server started.
fn has_looked(home: &Home) -> bool {
    let loops = home.run(&["loop", "list", "-o", "json"]).ok().json();
    let mut loops = loops.as_array().unwrap().iter();
    let rituals = loops.find(|one| one["name"] == "rituals").unwrap();
    rituals["passes"].as_u64().unwrap() > 0
}

/// Waits so long, and answers since when the server that has just started is on time.
fn live(home: &Home, life: Duration) -> Option<Timestamp> {
    let (end, mut looked) = (now().after(life), None);
    while now() < end {
        if looked.is_none() && has_looked(home) {
            looked = Some(now());
        } else {
            std::thread::sleep(end.since(now()).min(Duration::from_millis(10)));
        }
    }
    looked
}

#[test]
fn each_tick_of_many_rituals_creates_one_quest_across_kills() {
    let size = soak::count(FEW, MANY);
    let seed = setting("OVERMIND_SEED").unwrap_or_else(|| RandomState::new().hash_one("ticks"));
    eprintln!("ticks: OVERMIND_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut home = Home::up();
    home.agent("says", &[]);
    apply(&home, size);
    passed(&home);
    let (mut on_time, mut dead) = (vec![], vec![]);
    for kill in 0..size.kills {
        // The first server runs and stays dead long enough for ticks in both times; some are killed
        // while they still process missed ticks.
        let (least, most) = match kill {
            0 => (size.life.1, size.life.1 + 1),
            _ if rng.one_in(4) => (0, size.life.0),
            _ => size.life,
        };
        let looked = live(&home, rng.millis(least, most));
        home.kill();
        let killed = now();
        on_time.extend(looked.map(|looked| (looked, killed.before(LATE))));
        if kill == 0 {
            std::thread::sleep(DEAD);
        }
        home.start(&["--listen", "none"], &[]);
        dead.push((killed, now()));
    }
    let end = now();
    passed(&home);
    home.kill();
    check(size, &log(&home), end, &on_time, &dead);
}

fn check(
    size: Size,
    log: &Log,
    end: Timestamp,
    on_time: &[(Timestamp, Timestamp)],
    dead: &[(Timestamp, Timestamp)],
) {
    let among = |times: &[(Timestamp, Timestamp)], at: Timestamp| {
        times.iter().any(|(from, to)| (*from..=*to).contains(&at))
    };
    let (mut lost, mut doubled, mut early, mut made_up) = (vec![], vec![], vec![], 0);
    let mut errors: Vec<Duration> = vec![];
    let mut others = log.quests.clone();
    for n in 0..size.rituals {
        let name = Size::name(n);
        let created = log.rituals[&name];
        // Later ones may have fired, or not yet.
        let ticks = size.ticks(n, created, end.after(PATIENCE * 20));
        for (second, begins) in ticks {
            let quest = format!("{name}-{second}");
            match others.remove(&quest).as_deref() {
                None if begins <= end => lost.push(quest),
                None => {}
                Some([fired]) => {
                    if *fired < begins {
                        early.push(quest);
                    }
                    if among(on_time, begins) {
                        errors.push(fired.since(begins));
                    } else if among(dead, begins) {
                        made_up += 1;
                    }
                }
                Some(_) => doubled.push(quest),
            }
        }
    }
    errors.sort_unstable();
    let at =
        |share: usize| errors.get((errors.len() * share / 100).min(errors.len().saturating_sub(1)));
    eprintln!(
        "ticks: {} quests of {} rituals over {} kills: {} lost, {} doubled; {made_up} came while no \
         server was there; {} on time, late by {:?} (p50), {:?} (p99), {:?} (most)",
        log.quests.len(),
        size.rituals,
        size.kills,
        lost.len(),
        doubled.len(),
        errors.len(),
        at(50),
        at(99),
        errors.last(),
    );
    assert!(lost.is_empty(), "lost: {lost:?}");
    assert!(doubled.is_empty(), "fired twice: {doubled:?}");
    assert!(early.is_empty(), "too early: {early:?}");
    assert!(others.is_empty(), "no tick of any schedule: {others:?}");
    assert!(made_up > 0 && !errors.is_empty(), "some of both, or this has tested nothing");
    assert!(!size.asserts_error || *errors.last().unwrap() <= LATE, "late: {:?}", errors.last());
}

/// Makes the quests of a sound log others.
type Doctor<'a> = &'a dyn Fn(&mut BTreeMap<String, Vec<Timestamp>>);

#[test]
fn the_tick_check_finds_lost_doubled_early_and_unscheduled_ticks() {
    let size = Size { rituals: 1, ..FEW };
    let at = |second: i64| Timestamp::from_micros(second * 1_000_000);
    let (begun, killed, end) = (at(1_000), at(1_010), at(1_020));
    let (on_time, dead) = ([(begun, killed)], [(killed, end)]);
    let mut sound = Log::default();
    sound.rituals.insert(Size::name(0), begun);
    for (second, begins) in size.ticks(0, begun, end) {
        sound.quests.insert(format!("r0-{second}"), vec![begins]);
    }
    let objects = |doctor: Doctor<'_>| {
        let mut log = Log { rituals: sound.rituals.clone(), quests: sound.quests.clone() };
        doctor(&mut log.quests);
        let check = std::panic::AssertUnwindSafe(|| check(size, &log, end, &on_time, &dead));
        let said = std::panic::catch_unwind(check).err()?;
        said.downcast_ref::<String>().cloned()
    };
    assert_eq!(objects(&|_| ()), None);
    for (what, doctor) in [
        ("lost", &|quests: &mut BTreeMap<_, _>| drop(quests.remove("r0-1005"))),
        ("fired twice", &|quests: &mut BTreeMap<_, Vec<_>>| {
            quests.get_mut("r0-1015").unwrap().push(end)
        }),
        ("too early", &|quests: &mut BTreeMap<_, _>| {
            drop(quests.insert("r0-1005".to_owned(), vec![at(1_004)]));
        }),
        ("no tick of any schedule", &|quests: &mut BTreeMap<_, _>| {
            drop(quests.insert("r1-1005".to_owned(), vec![at(1_005)]));
        }),
    ] as [(&str, Doctor<'_>); 4]
    {
        let said = objects(doctor).unwrap_or_else(|| panic!("{what}: it does not object"));
        assert!(said.starts_with(what), "{said}");
    }
}
