//! Processes that a session's setup detached in every possible way: none of them survives the
//! session, whenever the server was killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::path::Path;
use std::process::Command;

use crate::home::until;
use crate::worktrees::House;

/// Each process of the machine that has `word` in one of its arguments.
fn with(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let words = |pid: &str| std::fs::read(Path::new("/proc").join(pid).join("cmdline"));
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|pid| Some(format!("{pid} {}", String::from_utf8_lossy(&words(&pid).ok()?))))
        .map(|found| found.replace('\0', " "))
        .filter(|found| found.contains(word))
        .collect()
}

/// A house whose setup detaches processes and then waits to be killed; only its first time. `word` is in
/// the arguments of all that it detaches.
fn house(word: &str) -> House {
    let house = House::new(Some("version: 1\n"));
    let first = house.home.0.path().join("first");
    let script = format!(
        "mkdir {first} || exit 0
# Its own session, its own group, no environment, and no parent.
(setsid env -i sh -c 'sleep 600; :' {word} &)
# The same, and a new process every few milliseconds, each without a parent.
(setsid env -i sh -c 'while :; do (sh -c \"sleep 0.03; :\" {word} &); sleep 0.01; done' {word} &)
# In its group, deaf.
(trap '' TERM; sh -c 'sleep 600; :' {word} &)
touch {first}/began
sleep 600
",
        first = first.display(),
    );
    // The setup runs in the worktree, wherever that is.
    let path = house.home.0.path().join("detach.sh");
    std::fs::write(&path, script).unwrap();
    let orders = format!("version: 1\nsetup: ['sh {}']\n", path.display());
    std::fs::write(house.project.join(".overmind.yml"), orders).unwrap();
    house.git(&["commit", "-qam", "setup"]);
    house
}

fn killed_in_its_setup(mut house: House, word: &str, start: impl Fn(&mut House)) {
    let first = house.home.0.path().join("first/began");
    // The commands in its file are confirmed before they run.
    let _ = house.run(&["trust", "--yes"]);
    house.run(&["run", "-d", "--name", "cut", "--sandbox", "none", "cat story.txt"]).ok();
    until("the setup has begun", || first.exists().then_some(()));
    until("all is detached", || (with(word).len() >= 3).then_some(()));
    house.home.0.kill();
    assert!(!with(word).is_empty(), "or there is nothing to find");
    start(&mut house);
    house.run(&["wait", "cut"]).ok();
    assert_eq!(with(word), Vec::<String>::new());
    house.run(&["done", "cut", "--discard", "--yes"]).ok();
}

#[test]
fn processes_detached_by_a_setup_end_after_a_server_kill() {
    let word = format!("outlives-{}", std::process::id());
    killed_in_its_setup(house(&word), &word, |house| {
        house.home.0.start(&["--listen", "none"], &[]);
    });
}

/// The server of a machine on which it cannot create control groups.
fn without_groups(house: &mut House) {
    let usual = house.home.0.command(&["up", "-o", "json", "--listen", "none"]);
    let mut command = Command::new("unshare");
    let hidden = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";
    command
        .args(["--mount", "sh", "-c", hidden, "sh"])
        .arg(usual.get_program())
        .args(usual.get_args());
    command.env_clear();
    command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(house.home.0.work());
    house.home.0.start_by(command, &[], &[]);
}

#[test]
fn processes_detached_by_a_setup_end_without_control_groups() {
    if !rustix::process::geteuid().is_root() {
        // Only root can hide them.
        return;
    }
    let word = format!("ungrouped-{}", std::process::id());
    let mut house = house(&word);
    house.run(&["down"]).ok();
    house.home.0.ended();
    without_groups(&mut house);
    killed_in_its_setup(house, &word, |house| {
        assert!(with("detach.sh").iter().any(|found| found.contains("__reaper")), "that was meant");
        without_groups(house);
    });
}
