//! Trees that wait, and how long a session waits.

use std::path::Path;
use std::time::{Duration, Instant};

use overmind_core::room::RoomReach;
use overmind_workspace::Trees;
use overmind_workspace::git::Git;
use overmind_workspace::pool::{Filled, PoolSize};
use overmind_workspace::tree::{BigDirectory, Options, Request, Strategy, Taken};

use crate::tree_repo::{World, commit, difference, git, read, try_git, users_part, write};

const TWO: PoolSize = PoolSize { trees: 2, bytes: 1 << 30 };

fn fill(world: &World, size: PoolSize) -> Filled {
    world.trees.fill(&world.repo, &RoomReach::Any, &Options::default(), size).unwrap()
}

#[test]
fn a_prepared_tree_equals_a_new_one() {
    let world = World::new();
    let before = users_part(&world.repo);
    let filled = fill(&world, TWO);
    assert_eq!((filled.ready, filled.made), (2, 2));
    assert_eq!(difference(&before, &users_part(&world.repo)), [] as [&Path; 0]);
    assert!(world.trees.list().unwrap().is_empty());
    // Later branches are visible in the session nevertheless.
    git(&world.repo, &["branch", "later"]);
    let made = world.prepare("s");
    assert_eq!(made.taken, Taken::Ready);
    assert_eq!(git(&made.path, &["branch", "--show-current"]), "overmind/s");
    git(&made.path, &["rev-parse", "later"]);
    assert_eq!(git(&made.path, &["status", "--porcelain"]), "");
    // Its index knows the files, so none is read again.
    assert_eq!(git(&made.path, &["diff-files", "--name-only"]), "");
    assert!(world.trees.status(&made.intent).unwrap().is_saved());
    write(&made.path, "a.txt", "two\n");
    commit(&made.path, "work");
    world.trees.park(&made.intent, "wip", 5).unwrap();
    world.trees.remove(&made.intent).unwrap();
    assert_eq!(fill(&world, TWO), Filled { made: 1, ..filled });
}

#[test]
fn a_prepared_tree_is_updated_in_the_background_or_when_it_is_taken() {
    let world = World::new();
    fill(&world, TWO);
    write(&world.repo, "a.txt", "two\n");
    write(&world.repo, "more/file", "m");
    std::fs::remove_file(world.repo.join("src/lib.rs")).unwrap();
    let second = commit(&world.repo, "second");
    let made = world.prepare("s");
    assert_eq!(made.taken, Taken::Updated);
    assert_eq!(git(&made.path, &["rev-parse", "HEAD"]), second);
    assert_eq!(git(&made.path, &["status", "--porcelain"]), "");
    assert_eq!(read(&made.path.join("more/file")), "m");
    assert!(!made.path.join("src").exists());
    let filled = fill(&world, TWO);
    assert_eq!((filled.updated, filled.made, filled.ready), (1, 1, 2));
    assert_eq!(world.prepare("t").taken, Taken::Ready);
    // Even if the old head is removed permanently.
    git(&world.repo, &["reset", "-q", "--hard", "HEAD~1"]);
    let filled = fill(&world, TWO);
    assert_eq!((filled.updated, filled.ready), (1, 2));
    let made = world.prepare("u");
    assert_eq!(read(&made.path.join("a.txt")), "one\n");
    assert_eq!(git(&made.path, &["status", "--porcelain"]), "");
}

#[test]
fn a_tree_prepared_with_other_settings_is_not_used() {
    let world = World::new();
    fill(&world, TWO);
    git(&world.repo, &["config", "core.autocrlf", "true"]);
    let made = world.prepare("s");
    assert_eq!(made.taken, Taken::CheckedOut);
    assert_eq!(read(&made.path.join("a.txt")), "one\r\n");
    let filled = fill(&world, TWO);
    assert_eq!((filled.removed, filled.made), (2, 2));
}

#[test]
fn count_and_bytes_of_prepared_trees_are_limited() {
    let world = World::new();
    let big = world.repo.join("big.bin");
    std::fs::write(&big, vec![7; 100_000]).unwrap();
    commit(&world.repo, "big");
    let filled = fill(&world, PoolSize { trees: 5, bytes: 250_000 });
    assert_eq!(filled.ready, 2);
    assert!(filled.bytes <= 250_000);
    let filled = fill(&world, PoolSize { trees: 1, bytes: 250_000 });
    assert_eq!((filled.ready, filled.removed), (1, 1));
    let filled = fill(&world, PoolSize { trees: 0, bytes: 250_000 });
    assert_eq!((filled.ready, filled.removed), (0, 1));
    assert_eq!(fill(&world, PoolSize { trees: 1, bytes: 50_000 }).ready, 0);
    assert_eq!(git(&world.repo, &["for-each-ref", "refs/overmind"]), "");
}

#[test]
fn two_sessions_never_get_the_same_tree() {
    let world = World::new();
    fill(&world, PoolSize { trees: 4, bytes: 1 << 30 });
    let taken: Vec<Taken> = std::thread::scope(|scope| {
        let world = &world;
        let makers: Vec<_> =
            (0..6).map(|n| scope.spawn(move || world.prepare(&format!("s{n}")).taken)).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    assert_eq!(taken.iter().filter(|taken| **taken == Taken::Ready).count(), 4, "{taken:?}");
    assert_eq!(world.trees.list().unwrap().len(), 6);
}

#[test]
fn prepared_trees_are_complete_or_removed_after_a_crash() {
    let world = World::new();
    fill(&world, TWO);
    let home = std::fs::read_dir(world.trees.root())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.join(".ready").is_dir())
        .unwrap();
    let half = home.join(".ready/.making-7");
    write(&half, "tree/x", "half");
    let damaged = home.join(".ready/0/template");
    std::fs::write(&damaged, "{").unwrap();
    let World { dir, repo, trees } = world;
    drop(trees);
    let trees = Trees::open(&dir.path().join("data"), Git::default()).unwrap();
    assert!(!half.exists());
    assert_eq!(trees.prepare(&Request::new(&repo, "s")).unwrap().taken, Taken::Ready);
    assert_eq!(trees.prepare(&Request::new(&repo, "t")).unwrap().taken, Taken::CheckedOut);
    let filled = trees.fill(&repo, &RoomReach::Any, &Options::default(), TWO).unwrap();
    assert_eq!((filled.removed, filled.made), (1, 2));
}

/// Like a project of some size: 2,200 files in 55 directories.
fn large() -> World {
    let world = World::new();
    for number in 0..2200 {
        let text = format!("// {number}\n{}", "fn x() {}\n".repeat(20 + number % 150));
        write(&world.repo, &format!("src/m{}/f{number}.rs", number / 40), &text);
    }
    write(&world.repo, ".env", "KEY=1");
    commit(&world.repo, "large");
    git(&world.repo, &["gc", "-q"]);
    world
}

#[test]
fn two_thousand_files_are_handed_out_unchanged() {
    let world = large();
    fill(&world, TWO);
    for name in ["warm", "warm too", "cold"] {
        let made = world.prepare(name);
        assert_eq!(made.included, [Path::new(".env")]);
        assert_eq!(git(&made.path, &["status", "--porcelain"]), "");
        assert_eq!(git(&made.path, &["ls-files"]).lines().count(), 2203);
        write(&made.path, "src/m0/f0.rs", "changed");
        let parked = world.trees.park(&made.intent, "wip", 5).unwrap();
        assert!(parked.wip);
        world.trees.remove(&made.intent).unwrap();
    }
}

fn middle(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1000.0
}

fn timed<T>(times: &mut Vec<Duration>, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    times.push(begun.elapsed());
    done
}

#[test]
#[ignore = "prints figures"]
fn figures_of_a_session_tree_against_a_plain_worktree() {
    let world = large();
    let rounds = 7;
    let mut t: [Vec<Duration>; 12] = Default::default();
    for round in 0..rounds {
        let plain = format!("../plain{round}");
        timed(&mut t[0], || {
            git(&world.repo, &["worktree", "add", "-q", "-b", &format!("p{round}"), &plain])
        });
        timed(&mut t[1], || git(&world.repo, &["worktree", "remove", "--force", &plain]));
        let shared = world.dir.path().join(format!("shared{round}"));
        timed(&mut t[2], || {
            git(world.dir.path(), &["clone", "-q", "--shared", "repo", shared.to_str().unwrap()])
        });
        std::fs::remove_dir_all(&shared).unwrap();
        let cold = timed(&mut t[3], || world.prepare("cold"));
        assert_eq!(cold.taken, Taken::CheckedOut);
        timed(&mut t[4], || fill(&world, PoolSize { trees: 2, bytes: 1 << 30 }));
        let warm = timed(&mut t[5], || world.prepare("warm"));
        assert_eq!(warm.taken, Taken::Ready);
        let options = Options { look_at_primary: false, ..Options::default() };
        let request = Request { options, ..Request::new(&world.repo, "bare") };
        let bare = timed(&mut t[6], || world.trees.prepare(&request).unwrap());
        assert_eq!(bare.taken, Taken::Ready);
        fill(&world, PoolSize { trees: 1, bytes: 1 << 30 });
        write(&world.repo, "src/m0/f0.rs", &format!("// {round}"));
        commit(&world.repo, "moved");
        let updated = timed(&mut t[7], || world.prepare("updated"));
        assert_eq!(updated.taken, Taken::Updated);
        timed(&mut t[8], || world.trees.status(&warm.intent).unwrap());
        write(&warm.path, "src/m1/f41.rs", "changed");
        timed(&mut t[9], || world.trees.park(&warm.intent, "wip", 5).unwrap());
        timed(&mut t[10], || world.trees.remove(&warm.intent).unwrap());
        timed(&mut t[11], || git(&updated.path, &["status", "--porcelain"]));
        for intent in [&cold.intent, &bare.intent, &updated.intent] {
            world.trees.remove(intent).unwrap();
        }
        let _ = try_git(&world.repo, &["branch", "-D", "overmind/warm"]);
    }
    let names = [
        "git worktree add",
        "git worktree remove",
        "git clone --shared",
        "prepare, nothing waiting",
        "fill: two trees",
        "prepare, a tree waiting",
        "  the same, without looking at the primary",
        "prepare, a tree waiting at another commit",
        "status of an untouched tree",
        "park one changed file",
        "remove",
        "the session's first git status",
    ];
    for (name, times) in names.iter().zip(t) {
        eprintln!("{:>8.1} ms  {name}", middle(times));
    }
}

#[test]
#[ignore = "prints figures"]
fn figures_of_cloning_an_ignored_directory() {
    let world = large();
    for number in 0..2200 {
        let text = "x".repeat(1000 + number % 4000);
        write(&world.repo, &format!("node_modules/m{}/f{number}.js", number / 40), &text);
    }
    let clone = BigDirectory { path: "node_modules".to_owned(), strategy: Strategy::Clone };
    let options = Options { big: vec![clone], ..Options::default() };
    let (mut with, mut without, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    let mut shared = 0;
    for round in 0..7 {
        fill(&world, TWO);
        let request = Request { options: options.clone(), ..Request::new(&world.repo, "with") };
        let made = timed(&mut with, || world.trees.prepare(&request).unwrap());
        shared = made.copied.shared;
        let bare = timed(&mut without, || world.prepare("without"));
        let target = world.dir.path().join(format!("copy{round}"));
        timed(&mut plain, || {
            let from = world.repo.join("node_modules");
            let done = std::process::Command::new("cp").arg("-a").args([&from, &target]).status();
            assert!(done.unwrap().success());
        });
        world.trees.remove(&made.intent).unwrap();
        world.trees.remove(&bare.intent).unwrap();
    }
    eprintln!(
        "{:>8.1} ms  prepare, with 2,200 ignored files cloned ({shared} share blocks)",
        middle(with)
    );
    eprintln!("{:>8.1} ms  prepare, without", middle(without));
    eprintln!("{:>8.1} ms  cp -a of the same files", middle(plain));
}
