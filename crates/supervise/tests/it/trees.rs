//! No process survives, whatever it does.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use overmind_core::process::{
    End, Ended, EndedBy, ExitStatus, GroupLimits, GroupWish, ProcessError, ProcessSpec, Processes,
};
use overmind_core::time::Timestamp;
use rustix::process::Signal;

use crate::common::{
    PROGRAM, Place, TERMINAL, WISHES, ended, eventually, first, groups, kill, leftovers, lives,
    marked, parent, session, shell, with_words,
};

#[tokio::test]
async fn double_forks_new_sessions_and_unresponsive_children_are_all_killed() {
    let place = Place::new();
    for wish in WISHES {
        let key = first(session());
        // The environment of the last one does not show its origin either.
        let word = format!("sleep 1{}", key.session.as_u128() % 1_000_000_007);
        let script = format!(
            "(setsid sh -c '(trap \"\" TERM HUP INT; {word} & {word}) & exec {word}' &)\n\
             setsid sh -c 'trap \"\" TERM; while :; do sleep 0.01; done' &\n\
             env -i setsid {word} &\n\
             trap '' TERM HUP; echo ready; while :; do sleep 0.01; done"
        );
        place.supervisor.start(ProcessSpec { group: wish, ..shell(key, &script) }).await.unwrap();
        place.until_says(key.session, "ready").await;
        eventually("all have begun", async || with_words(&word).len() >= 4).await;
        place.supervisor.end(key, End::Kill, None).await.unwrap();
        let exit = place.exit(key).await;
        assert_eq!((exit.status, exit.survivors), (ExitStatus::Signal(9), 0));
        assert!(marked(key.session).is_empty(), "{wish:?}");
        assert!(with_words(&word).is_empty(), "{wish:?}");
        assert!(groups(key.session).is_empty());
    }
}

#[tokio::test]
async fn a_stop_reaches_processes_that_left_the_group() {
    let place = Place::new();
    for wish in WISHES {
        let key = first(session());
        let script = "setsid sh -c 'trap \"echo away; exit\" TERM; echo one; while :; do sleep 0.01; done' &\n\
                      trap 'echo main; exit 0' TERM; echo two; while :; do sleep 0.01; done";
        place.supervisor.start(ProcessSpec { group: wish, ..shell(key, script) }).await.unwrap();
        place.until_says(key.session, "one").await;
        place.until_says(key.session, "two").await;
        let grace = Duration::from_secs(20);
        place.supervisor.end(key, End::Stop { grace }, None).await.unwrap();
        let exit = place.exit(key).await;
        assert_eq!((exit.status, exit.by), (ExitStatus::Code(0), EndedBy::Stop));
        let text = place.text(key.session).await;
        assert!(text.contains("away") && text.contains("main"), "{wish:?}: {text}");
        assert!(marked(key.session).is_empty());
    }
}

#[tokio::test]
async fn a_chain_of_processes_that_replace_each_other_is_killed() {
    let place = Place::new();
    let script = place.dir.path().join("chain.sh");
    std::fs::write(&script, "setsid sh \"$0\" &\nexit 0\n").unwrap();
    for wish in WISHES {
        let key = first(session());
        let mut spec = ProcessSpec { group: wish, ..shell(key, "") };
        let path = script.display().to_string();
        spec.argv = vec!["sh".to_owned(), path.clone()];
        let exit = place.run(spec).await;
        assert_eq!((exit.status, exit.survivors), (ExitStatus::Code(0), 0), "{wish:?}");
        assert!(with_words(&path).is_empty(), "{wish:?}");
    }
}

#[tokio::test]
async fn a_fork_bomb_is_limited_and_killed() {
    let place = Place::new();
    let key = first(session());
    let limits = GroupLimits { pids: Some(150), ..GroupLimits::default() };
    let bomb = "f() { f & f & exec sleep 1000; }; f & exec sleep 1000";
    let spec = ProcessSpec { group: GroupWish::Bounded(limits), ..shell(key, bomb) };
    match place.supervisor.start(spec).await {
        Ok(_) => {}
        // A user who may not set limits gets an error, and nothing runs.
        Err(ProcessError::Refused { step: "its control group", reason, .. }) => {
            assert!(!rustix::process::geteuid().is_root(), "{reason}");
            return;
        }
        Err(err) => panic!("{err}"),
    }
    eventually("it has spread", async || marked(key.session).len() > 50).await;
    assert!(marked(key.session).len() <= 150);
    place.supervisor.end(key, End::Kill, None).await.unwrap();
    assert_eq!(place.exit(key).await.survivors, 0);
    assert!(marked(key.session).is_empty() && groups(key.session).is_empty());
}

#[tokio::test]
async fn a_process_over_its_memory_limit_is_killed_and_logged() {
    let place = Place::new();
    let limits = GroupLimits { memory_bytes: Some(64 << 20), ..GroupLimits::default() };
    for (takes, status) in [(1, ExitStatus::Code(0)), (400, ExitStatus::Signal(9))] {
        let key = first(session());
        let script = format!("exec python3 -c 'x = b\"x\" * ({takes} << 20)'");
        let spec = ProcessSpec { group: GroupWish::Bounded(limits), ..shell(key, &script) };
        match place.supervisor.start(spec).await {
            Ok(_) => {}
            // A user who may not set limits gets an error, and nothing runs.
            Err(ProcessError::Refused { step: "its control group", reason, .. }) => {
                assert!(!rustix::process::geteuid().is_root(), "{reason}");
                return;
            }
            Err(err) => panic!("{err}"),
        }
        assert_eq!(place.exit(key).await.status, status);
        let text = place.text(key.session).await;
        let told = "1 process was killed by the kernel for want of memory: the bound is 64 MiB";
        assert_eq!(text.contains(told), status == ExitStatus::Signal(9), "{text}");
        assert!(groups(key.session).is_empty());
    }
}

#[tokio::test]
async fn a_killed_shim_ends_its_tree_and_is_reported_as_lost() {
    let place = Place::new();
    for wish in WISHES {
        let key = first(session());
        let script = "setsid sh -c 'trap \"\" TERM HUP; echo apart; while :; do sleep 0.01; done' &\n\
                      echo main; while :; do sleep 0.01; done";
        let spec = ProcessSpec { group: wish, io: TERMINAL, ..shell(key, script) };
        let started = place.supervisor.start(spec).await.unwrap();
        place.until_says(key.session, "apart").await;
        place.until_says(key.session, "main").await;
        kill(parent(started.pid), Signal::KILL);
        match ended(&place.supervisor, key).await {
            Ended::Lost { reason, killed } => {
                assert!(reason.contains("keeper was killed") && killed >= 1, "{reason} {killed}");
            }
            Ended::Exited(exit) => panic!("{exit:?}"),
        }
        assert!(marked(key.session).is_empty() && groups(key.session).is_empty(), "{wish:?}");
        assert!(place.text(key.session).await.contains("--- lost: "));
        place.supervisor.acknowledge(key).await.unwrap();
        assert!(leftovers(place.dir.path(), key.session).is_empty());
    }
}

#[tokio::test]
async fn a_shim_that_is_asked_to_end_stops_its_tree_cleanly() {
    let place = Place::new();
    let key = first(session());
    let script = "trap 'echo leaving; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let started = place.supervisor.start(shell(key, script)).await.unwrap();
    place.until_says(key.session, "ready").await;
    kill(parent(started.pid), Signal::TERM);
    let exit = place.exit(key).await;
    assert_eq!((exit.status, exit.by), (ExitStatus::Code(3), EndedBy::Stop));
    assert!(place.text(key.session).await.contains("leaving"));
}

#[tokio::test]
async fn shims_do_not_depend_on_their_parent_process() {
    let place = Place::new();
    let key = first(session());
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let started = place.supervisor.start(shell(key, script)).await.unwrap();
    place.until_says(key.session, "ready").await;
    let keeper = parent(started.pid);
    let zygote = parent(u32::try_from(keeper).unwrap());
    kill(zygote, Signal::KILL);
    eventually("it is gone", async || !lives(zygote)).await;
    // The next start detects this and creates another.
    let other = first(session());
    assert_eq!(place.run(shell(other, "exit 6")).await.status, ExitStatus::Code(6));
    place.supervisor.end(key, End::Stop { grace: Duration::from_secs(20) }, None).await.unwrap();
    assert_eq!(place.exit(key).await.status, ExitStatus::Code(0));
}

/// Children of a process, by their names.
fn children(of: i32) -> Vec<(i32, String)> {
    let listed = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
    let pids = listed.unwrap_or_default();
    let pids = pids.split_whitespace().filter_map(|pid| pid.parse().ok());
    let called = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    pids.filter_map(|pid| Some((pid, called(pid).ok()?.trim().to_owned()))).collect()
}

#[tokio::test]
async fn a_spare_shim_is_replaced_when_used_and_ends_with_the_daemon() {
    let place = Place::new();
    let key = first(session());
    let started = place.supervisor.start(shell(key, "exec sleep 1000")).await.unwrap();
    let keeper = parent(started.pid);
    let zygote = parent(u32::try_from(keeper).unwrap());
    let waiting = || -> Vec<i32> {
        // A shim gets its own name when it gets an order.
        let all = children(zygote).into_iter();
        all.filter(|(_, name)| name == "overmind-zygote").map(|(pid, _)| pid).collect()
    };
    eventually("one waits to be given something", async || waiting().len() == 1).await;
    let before = waiting();
    // One that is killed is replaced like one that is used.
    kill(before[0], Signal::KILL);
    eventually("it is replaced", async || {
        let now = waiting();
        now.len() == 1 && now != before
    })
    .await;
    place.run(shell(first(session()), "exit 0")).await;
    eventually("one waits again", async || waiting().len() == 1).await;
    let last = waiting();
    place.supervisor.close().await;
    eventually("it is gone", async || last.iter().all(|pid| !lives(*pid))).await;
    assert!(lives(keeper), "who is needed stays");
}

#[tokio::test]
async fn concurrent_starts_all_run() {
    let place = Place::new();
    for _ in 0..3 {
        let starts = (0..8).map(|_| place.run(shell(first(session()), "echo here; exit 3")));
        for exit in futures_util::future::join_all(starts).await {
            assert_eq!((exit.status, exit.offset), (ExitStatus::Code(3), 5));
        }
    }
}

#[tokio::test]
async fn a_program_starts_only_when_it_is_ordered() {
    let place = Place::new();
    let key = first(session());
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let at = Timestamp::from_micros(now.tv_sec * 1_000_000 + now.tv_nsec / 1_000 + 20_000);
    let spec = ProcessSpec { not_before: Some(at), ..shell(key, "exit 4") };
    let started = place.supervisor.start(spec).await.unwrap();
    assert!(started.at >= at, "{} is before {at}", started.at);
    assert_eq!(place.exit(key).await.status, ExitStatus::Code(4));
}

#[tokio::test]
async fn a_command_cannot_talk_to_its_shim() {
    let place = Place::new();
    let key = first(session());
    let socket = place.dir.path().join(key.session.to_string()).join("keeper-1.sock");
    let mut spec = shell(key, "");
    let script = format!("{PROGRAM} knock {}", socket.display());
    spec.argv = ["sh", "-c", &script].map(str::to_owned).to_vec();
    let exit = place.run(spec).await;
    let text = place.text(key.session).await;
    assert_eq!(exit.status, ExitStatus::Code(2), "{text}");
    assert!(text.starts_with("turned away"), "{text}");
    // From outside, the same connection is answered.
    let other = first(session());
    place.supervisor.start(shell(other, "exec sleep 1000")).await.unwrap();
    let socket = place.dir.path().join(other.session.to_string()).join("keeper-1.sock");
    let knock = std::process::Command::new(PROGRAM).arg("knock").arg(socket).status().unwrap();
    assert!(knock.success());
    place.supervisor.end(other, End::Kill, None).await.unwrap();
    place.exit(other).await;
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_starts_and_kills_leave_nothing_behind() {
    let place = Place::new();
    let warm = first(session());
    place.run(shell(warm, "true")).await;
    place.supervisor.acknowledge(warm).await.unwrap();
    let before = descriptors();
    let mut keys = Vec::new();
    for round in 0..10 {
        let lives = (0..20).map(|n| {
            let io = if n % 2 == 0 { TERMINAL } else { crate::common::PIPES };
            let group = WISHES[round % 2];
            let spec = shell(first(session()), "setsid sleep 1000 & sleep 1000");
            ProcessSpec { io, group, ..spec }
        });
        let lives: Vec<ProcessSpec> = lives.collect();
        let round: Vec<_> = lives.iter().map(|spec| spec.key).collect();
        let starts = lives.into_iter().map(|spec| place.supervisor.start(spec));
        for started in futures_util::future::join_all(starts).await {
            started.unwrap();
        }
        let ends = round.iter().map(|key| place.supervisor.end(*key, End::Kill, None));
        for ended in futures_util::future::join_all(ends).await {
            ended.unwrap();
        }
        for key in round {
            assert_eq!(place.exit(key).await.survivors, 0);
            place.supervisor.acknowledge(key).await.unwrap();
            keys.push(key);
        }
    }
    let root = PathBuf::from(place.dir.path());
    eventually("the keepers are gone", async || {
        keys.iter().all(|key| leftovers(&root, key.session).is_empty())
    })
    .await;
    let ours: HashSet<String> = keys.iter().map(ToString::to_string).collect();
    assert!(!crate::common::all_marked().iter().any(|(_, life)| ours.contains(life)));
    assert!(keys.iter().all(|key| groups(key.session).is_empty()));
    eventually("descriptors are given back", async || descriptors() <= before).await;
}
