//! Figures, each beside its floor in the same run. `--run-ignored only`, in a release build.

use std::io::Write;
use std::time::{Duration, Instant};

use overmind_core::process::{
    AttachOptions, End, GroupWish, LogFrom, LogQuery, ProcessKey, ProcessSpec, Processes, Seen,
};

use crate::common::{PIPES, Place, TERMINAL, first, numbers_of_keepers, session, shell};

fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn median(mut all: Vec<Duration>) -> (Duration, Duration) {
    all.sort();
    (all[all.len() / 2], all[all.len() * 99 / 100])
}

fn resident(pid: i32) -> (u64, u64) {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let of = |name: &str| -> u64 {
        rollup
            .lines()
            .filter(|line| line.starts_with(name))
            .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
            .sum()
    };
    (of("Private_Dirty:") + of("Private_Clean:"), of("Pss:"))
}

fn own_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn starts_echo_and_memory() {
    let place = Place::new();
    let mut floor = Vec::new();
    for _ in 0..100 {
        let before = Instant::now();
        let mut child = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        floor.push(before.elapsed());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let (half, most) = median(floor);
    say(&format!("fork+exec by std (floor): p50 {half:?} p99 {most:?}"));
    let mut with_fsync = Vec::new();
    for n in 0..50 {
        let before = Instant::now();
        let mut file = std::fs::File::create(place.dir.path().join(format!("sync{n}"))).unwrap();
        file.write_all(b"x").unwrap();
        file.sync_all().unwrap();
        with_fsync.push(before.elapsed());
    }
    let (half, most) = median(with_fsync);
    say(&format!("one fsync here: p50 {half:?} p99 {most:?}"));
    for (name, io, group) in [
        ("pipes, group", PIPES, GroupWish::IfPossible),
        ("terminal, group", TERMINAL, GroupWish::IfPossible),
        ("pipes, no group", PIPES, GroupWish::Never),
    ] {
        let (mut starts, mut kills, mut restarts) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..100 {
            let key = first(session());
            let mut spec = ProcessSpec { io, group, ..shell(key, "") };
            spec.argv = ["/bin/sleep", "1000"].map(str::to_owned).to_vec();
            let again = ProcessSpec { key: ProcessKey { epoch: 2, ..key }, ..spec.clone() };
            let before = Instant::now();
            place.supervisor.start(spec).await.unwrap();
            starts.push(before.elapsed());
            let before = Instant::now();
            place.supervisor.end(key, End::Kill, None).await.unwrap();
            place.exit(key).await;
            kills.push(before.elapsed());
            let before = Instant::now();
            place.supervisor.start(again.clone()).await.unwrap();
            restarts.push(before.elapsed());
            place.supervisor.acknowledge(key).await.unwrap();
            place.supervisor.end(again.key, End::Kill, None).await.unwrap();
            place.exit(again.key).await;
            place.supervisor.acknowledge(again.key).await.unwrap();
        }
        for (what, all) in [("start", starts), ("kill to exit", kills), ("next life", restarts)] {
            let (half, most) = median(all);
            say(&format!("{name}: {what} p50 {half:?} p99 {most:?}"));
        }
    }
    let key = first(session());
    let script = "stty -echo; echo ready; exec cat";
    place.supervisor.start(ProcessSpec { io: TERMINAL, ..shell(key, script) }).await.unwrap();
    place.until_says(key.session, "ready").await;
    let options = AttachOptions { replay_bytes: 0, ..AttachOptions::default() };
    let mut viewer = place.supervisor.attach(key, options).await.unwrap();
    let mut echoes = Vec::new();
    for _ in 0..300 {
        let before = Instant::now();
        viewer.write(b"x\n".to_vec(), Duration::from_secs(5)).await.unwrap();
        assert!(matches!(viewer.next().await.unwrap(), Seen::Output(_)));
        echoes.push(before.elapsed());
    }
    let (half, most) = median(echoes);
    say(&format!("echo through an attached terminal: p50 {half:?} p99 {most:?}"));
    drop(viewer);
    place.supervisor.end(key, End::Kill, None).await.unwrap();
    place.exit(key).await;

    for count in [500_usize, 2000] {
        let before_kib = own_kib();
        let keys: Vec<ProcessKey> = (0..count).map(|_| first(session())).collect();
        let before = Instant::now();
        for some in keys.chunks(32) {
            let starts = some.iter().map(|key| {
                let mut spec = shell(*key, "");
                spec.argv = ["/bin/sleep", "1000"].map(str::to_owned).to_vec();
                place.supervisor.start(spec)
            });
            for started in futures_util::future::join_all(starts).await {
                started.unwrap();
            }
        }
        let took = before.elapsed();
        let keepers = numbers_of_keepers(place.dir.path());
        let (mut private, mut shared) = (0, 0);
        for pid in &keepers {
            let (one, pss) = resident(*pid);
            private += one;
            shared += pss;
        }
        let n = u64::try_from(keepers.len().max(1)).unwrap();
        say(&format!(
            "{count} lives in {took:?}; daemon +{} KiB; {n} keepers: private {} KiB, pss {} KiB each",
            own_kib().saturating_sub(before_kib),
            private / n,
            shared / n
        ));
        // The resources that a restarted daemon needs.
        let before = Instant::now();
        let other = Place::supervisor(place.dir.path());
        let adopted = other.adopt_all().await.unwrap().len();
        say(&format!("adopting {adopted}: {:?}", before.elapsed()));
        drop(other);
        let before = Instant::now();
        let ends = keys.iter().map(|key| place.supervisor.end(*key, End::Kill, None));
        for ended in futures_util::future::join_all(ends).await {
            ended.unwrap();
        }
        for key in &keys {
            place.exit(*key).await;
        }
        say(&format!("killing all {count}: {:?}", before.elapsed()));
        for key in keys {
            place.supervisor.acknowledge(key).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn a_million_lines() {
    let place = Place::new();
    let command =
        "seq -f 'line %10.0f of a log that is as long as the lines of logs are' 1 1000000";
    let file = place.dir.path().join("floor");
    let before = Instant::now();
    let floor = std::process::Command::new("sh")
        .args(["-c", &format!("{command} | cat > {}", file.display())])
        .status()
        .unwrap();
    assert!(floor.success());
    let bytes = std::fs::metadata(&file).unwrap().len();
    say(&format!("seq | cat > file (floor): {:?}, {bytes} bytes", before.elapsed()));
    for (name, io) in [("pipes", PIPES), ("terminal", TERMINAL)] {
        let key = first(session());
        let before = Instant::now();
        let started =
            place.supervisor.start(ProcessSpec { io, ..shell(key, command) }).await.unwrap();
        let keeper = crate::common::parent(started.pid);
        place.exit(key).await;
        say(&format!("{name}: written and ended: {:?}", before.elapsed()));
        say(&format!("{name}: keeper private {} KiB", resident(keeper).0));
        let kib = own_kib();
        let before = Instant::now();
        let mut reader = place.supervisor.log(key.session, LogQuery::default()).await.unwrap();
        let mut lines = 0;
        loop {
            let items = reader.next().await.unwrap();
            if items.is_empty() {
                break;
            }
            lines += items.len();
        }
        let took = before.elapsed();
        say(&format!(
            "{name}: {lines} lines read in {took:?}, growth {} KiB",
            own_kib().saturating_sub(kib)
        ));
        let before = Instant::now();
        let mut pieces = place.supervisor.pieces(key.session, 0, false).await.unwrap();
        let mut bytes = 0;
        loop {
            let some = pieces.next().await.unwrap();
            if some.is_empty() {
                break;
            }
            bytes += some.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        }
        let took = before.elapsed();
        say(&format!("{name}: {bytes} bytes fetched in {took:?}"));
        let mut tails = Vec::new();
        for _ in 0..50 {
            let before = Instant::now();
            let query = LogQuery { from: LogFrom::Tail(100), ..LogQuery::default() };
            let mut reader = place.supervisor.log(key.session, query).await.unwrap();
            assert_eq!(reader.next().await.unwrap().len(), 100);
            tails.push(before.elapsed());
        }
        let (half, most) = median(tails);
        say(&format!("{name}: tail of 100: p50 {half:?} p99 {most:?}"));
        let before = Instant::now();
        place.supervisor.screen(key.session, 24).await.unwrap();
        say(&format!("{name}: screen {:?}", before.elapsed()));
        place.supervisor.acknowledge(key).await.unwrap();
    }
}
