//! The end of a session's work.

use std::path::Path;

use overmind_workspace::git::{Git, GitError};
use overmind_workspace::tree::{ChangeKind, Ending, Operation, Removed, Request, TreeError, Trees};

use crate::tree_repo::{World, commit, difference, git, read, try_git, users_part, write};

fn unsaved(result: Result<Removed, TreeError>) -> Vec<String> {
    match result {
        Err(TreeError::Unsaved { unsaved, .. }) => unsaved,
        other => panic!("{other:?}"),
    }
}

#[test]
fn stale_git_locks_are_removed_at_the_next_start() {
    let World { dir, repo: _, trees } = World::new();
    let made = trees.prepare(&Request::new(dir.path().join("repo"), "s")).unwrap();
    write(&made.path, "a.txt", "two\n");
    let ours = made.path.parent().unwrap().join("ours");
    std::fs::write(ours.join("index.lock"), "").unwrap();
    std::fs::create_dir_all(ours.join("refs/heads/x")).unwrap();
    std::fs::write(ours.join("refs/heads/x/y.lock"), "").unwrap();
    assert!(trees.park(&made.intent, "WIP", 1).is_err());
    drop(trees);
    let trees = Trees::open(&dir.path().join("data"), Git::default()).unwrap();
    assert!(!ours.join("index.lock").exists() && !ours.join("refs/heads/x/y.lock").exists());
    assert!(trees.park(&made.intent, "WIP", 1).unwrap().saved_as.is_some());
}

#[test]
fn status_and_diff_show_all_changes_of_a_session() {
    let world = World::new();
    let made = world.prepare("s");
    assert!(world.trees.status(&made.intent).unwrap().is_saved());
    write(&made.path, "a.txt", "two\n");
    commit(&made.path, "work");
    write(&made.path, "src/lib.rs", "fn g() {}\n");
    write(&made.path, "new.txt", "n\n");
    write(&made.path, "noise.log", "ignored");
    let status = world.trees.status(&made.intent).unwrap();
    assert_eq!((status.ahead, status.unpublished), (1, 1));
    assert_eq!(status.branch.as_deref(), Some("overmind/s"));
    let changes: Vec<_> =
        status.uncommitted.iter().map(|c| (c.path.to_str().unwrap(), c.kind)).collect();
    assert_eq!(changes, [("new.txt", ChangeKind::Added), ("src/lib.rs", ChangeKind::Modified)]);

    let diff = world.trees.diff(&made.intent, 1 << 20).unwrap();
    let files: Vec<_> =
        diff.files.iter().map(|f| (f.path.to_str().unwrap(), f.added, f.removed)).collect();
    let one = Some(1);
    assert_eq!(files, [("a.txt", one, one), ("new.txt", one, Some(0)), ("src/lib.rs", one, one)]);
    let patch = String::from_utf8(diff.patch).unwrap();
    assert!(patch.contains("+fn g() {}") && patch.contains("+two") && !diff.cut);
    let short = world.trees.diff(&made.intent, 20).unwrap();
    assert!(short.cut && short.patch.len() <= 20);
    // We must not change the session's own index.
    assert_eq!(git(&made.path, &["status", "--porcelain"]), " M src/lib.rs\n?? new.txt");
}

#[test]
fn unsaved_work_in_a_tree_is_reported() {
    let world = World::new();
    let made = world.prepare("s");
    git(&made.path, &["checkout", "-q", "-b", "side"]);
    write(&made.path, "a.txt", "side\n");
    commit(&made.path, "side");
    git(&made.path, &["checkout", "-q", "overmind/s"]);
    write(&made.path, "a.txt", "stashed\n");
    git(&made.path, &["stash", "-q"]);
    write(&made.path, "a.txt", "stashed too\n");
    git(&made.path, &["stash", "-q"]);
    write(&made.path, "a.txt", "here\n");
    commit(&made.path, "here");
    assert!(try_git(&made.path, &["merge", "-q", "side"]).is_err());
    let status = world.trees.status(&made.intent).unwrap();
    assert_eq!(status.operation, Some(Operation::Merge));
    assert_eq!(status.others, ["refs/heads/side", "refs/stash", "refs/stash@1"]);

    let parked = world.trees.park(&made.intent, "wip", 5).unwrap();
    assert!(parked.wip);
    assert_eq!(parked.others.len(), 3);
    let show = |name: &str| git(&world.repo, &["show", &format!("{name}:a.txt")]);
    assert!(show("overmind/s").contains("<<<<"));
    assert_eq!(show("refs/overmind/parked/s/heads/side"), "side");
    assert_eq!(show("refs/overmind/parked/s/stash"), "stashed too");
    assert_eq!(show("refs/overmind/parked/s/stash@1"), "stashed");
    world.trees.remove(&made.intent).unwrap();

    let made = world.prepare("t");
    std::fs::create_dir(made.path.join("inner")).unwrap();
    git(&made.path.join("inner"), &["init", "-q"]);
    write(&made.path, "inner/x", "x");
    commit(&made.path.join("inner"), "x");
    let status = world.trees.status(&made.intent).unwrap();
    assert_eq!(status.nested, [Path::new("inner")]);
    world.trees.park(&made.intent, "wip", 5).unwrap();
    let why = unsaved(world.trees.remove(&made.intent));
    assert!(why[0].contains("inner"), "{why:?}");
}

#[test]
fn saving_stores_everything_once_and_changes_nothing_else() {
    let world = World::new();
    git(&world.repo, &["config", "commit.gpgSign", "true"]);
    git(&world.repo, &["config", "user.signingKey", "none"]);
    let made = world.prepare("s");
    write(&made.path, "a.txt", "two\n");
    let own = {
        git(&made.path, &["add", "-A"]);
        git(&made.path, &["-c", "commit.gpgSign=false", "commit", "-qm", "work"]);
        git(&made.path, &["rev-parse", "HEAD"])
    };
    write(&made.path, "new.txt", "n\n");
    write(&made.path, "noise.log", "ignored");
    std::fs::remove_file(made.path.join("src/lib.rs")).unwrap();
    let why = unsaved(world.trees.remove(&made.intent));
    assert!(why[0].contains("in no commit"), "{why:?}");

    let before = users_part(&world.repo);
    let parked = world.trees.park(&made.intent, "WIP of s", 1_700_000_000).unwrap();
    assert_eq!(parked.saved_as.as_deref(), Some("overmind/s"));
    let mut after = users_part(&world.repo);
    after.retain(|path, _| !path.to_string_lossy().contains("heads/overmind"));
    assert_eq!(difference(&before, &after), [] as [&Path; 0]);
    let show = |format: &str| git(&world.repo, &["log", "-1", format, "overmind/s"]);
    assert_eq!(
        show("--format=%an <%ae> %at %s"),
        "Overmind <overmind@localhost> 1700000000 WIP of s"
    );
    assert_eq!(show("--format=%P"), own);
    let files = git(&world.repo, &["ls-tree", "-r", "--name-only", "overmind/s"]);
    assert_eq!(files, ".gitignore\na.txt\nnew.txt");

    let again = world.trees.park(&made.intent, "another word", 1_800_000_000).unwrap();
    assert_eq!(again, parked);
    // Later changes are not saved by it.
    write(&made.path, "late.txt", "late");
    assert!(!unsaved(world.trees.remove(&made.intent)).is_empty());
    let later = world.trees.park(&made.intent, "x", 1).unwrap();
    assert_ne!(later.commit, parked.commit);
    assert_eq!(world.trees.remove(&made.intent).unwrap(), Removed::Removed);
    assert_eq!(world.trees.remove(&made.intent).unwrap(), Removed::AlreadyGone);
    assert!(!made.intent.place.as_path().exists());
}

#[test]
fn a_tree_without_work_is_removed_and_leaves_no_branch() {
    let world = World::new();
    let before = users_part(&world.repo);
    let made = world.prepare("s");
    write(&made.path, "noise.log", "ignored");
    let parked = world.trees.park(&made.intent, "wip", 5).unwrap();
    assert_eq!(parked.saved_as, None);
    assert_eq!(world.trees.remove(&made.intent).unwrap(), Removed::Removed);
    assert_eq!(difference(&before, &users_part(&world.repo)), [] as [&Path; 0]);
    assert_eq!(git(&world.repo, &["for-each-ref", "refs/overmind"]), "");
    world.trees.sweep(0).unwrap();
    let left = std::fs::read_dir(world.trees.root()).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".id", ".lock", ".mark", ".trash"]);
}

#[test]
fn a_published_branch_follows_the_session_and_never_overwrites_commits() {
    let world = World::new();
    let made = world.prepare("s");
    write(&made.path, "a.txt", "two\n");
    let first = commit(&made.path, "first");
    write(&made.path, "b.txt", "uncommitted");
    let published = world.trees.pr_branch(&made.intent, None).unwrap();
    assert_eq!((published.branch.as_str(), published.uncommitted), ("overmind/s", true));
    assert_eq!(git(&world.repo, &["rev-parse", "overmind/s"]), first);
    let second = commit(&made.path, "second");
    world.trees.pr_branch(&made.intent, None).unwrap();
    assert_eq!(git(&world.repo, &["rev-parse", "overmind/s"]), second);
    // The user works on it: it is theirs then.
    git(&world.repo, &["checkout", "-q", "overmind/s"]);
    write(&made.path, "b.txt", "third");
    let third = commit(&made.path, "third");
    let published = world.trees.pr_branch(&made.intent, None).unwrap();
    assert_eq!(published.branch, "overmind/s-2");
    let own = commit(&world.repo, "by the user");
    git(&world.repo, &["checkout", "-q", "main"]);
    assert_eq!(git(&world.repo, &["rev-parse", "overmind/s"]), own);
    assert_eq!(git(&world.repo, &["rev-parse", "overmind/s-2"]), third);
    let named = world.trees.pr_branch(&made.intent, Some("feature/x")).unwrap();
    assert_eq!(git(&world.repo, &["rev-parse", &named.branch]), third);
    for bad in ["", "a b", "../x", "x.lock", "-x/../y"] {
        let err = world.trees.pr_branch(&made.intent, Some(bad));
        assert!(matches!(err, Err(TreeError::BadBranch { .. })), "{bad:?}");
    }
    world.trees.remove(&made.intent).unwrap();
}

#[test]
fn history_packed_or_collected_by_the_session_is_restored_completely() {
    let world = World::new();
    let made = world.prepare("s");
    for number in 0..150 {
        write(&made.path, "a.txt", &format!("{number}\n"));
        git(&made.path, &["commit", "-qam", &number.to_string()]);
    }
    git(&made.path, &["gc", "-q", "--aggressive", "--prune=now"]);
    git(&made.path, &["repack", "-adq"]);
    git(&made.path, &["commit-graph", "write", "--reachable"]);
    git(&made.path, &["checkout", "-q", "--detach"]);
    let status = world.trees.status(&made.intent).unwrap();
    assert_eq!((status.ahead, status.branch), (150, None));
    world.trees.park(&made.intent, "wip", 5).unwrap();
    assert_eq!(git(&world.repo, &["rev-list", "--count", "main..overmind/s"]), "150");
    git(&world.repo, &["fsck", "--strict", "--no-dangling"]);
    world.trees.remove(&made.intent).unwrap();
}

#[test]
fn a_kept_tree_stays_and_a_discarded_one_is_recoverable_for_a_while() {
    let world = World::new();
    let made = world.prepare("s");
    world.trees.keep(&made.intent, true).unwrap();
    assert!(matches!(world.trees.remove(&made.intent), Err(TreeError::Kept { .. })));
    assert_eq!(world.trees.list().unwrap()[0].ending, Some(Ending::Kept));
    world.trees.keep(&made.intent, false).unwrap();

    write(&made.path, "a.txt", "committed\n");
    commit(&made.path, "work");
    git(&made.path, &["branch", "aside"]);
    write(&made.path, "u.txt", "untracked\n");
    let gone = world.trees.discard(&made.intent, 1_000_000).unwrap();
    assert_eq!(gone.saved_as, "refs/overmind/discarded/s");
    world.trees.remove(&made.intent).unwrap();
    assert_eq!(git(&world.repo, &["branch", "--list", "overmind/*"]), "");
    assert_eq!(git(&world.repo, &["show", "refs/overmind/discarded/s:u.txt"]), "untracked");
    assert_eq!(git(&world.repo, &["show", "refs/overmind/discarded/s:a.txt"]), "committed");
    // A second one of that name does not replace it.
    let second = world.prepare("s");
    let gone = world.trees.discard(&second.intent, 3_000_000).unwrap();
    assert_eq!(gone.saved_as, "refs/overmind/discarded/s-2");
    world.trees.remove(&second.intent).unwrap();
    assert_eq!(world.trees.sweep(1_000_000).unwrap().discarded, 0);
    assert_eq!(world.trees.sweep(2_000_000).unwrap().discarded, 1);
    let left = git(&world.repo, &["for-each-ref", "--format=%(refname)", "refs/overmind"]);
    assert_eq!(left, "refs/overmind/discarded/s-2");
    // The discarded work is that of its time; later work is separate.
    let third = world.prepare("s");
    write(&third.path, "x", "x");
    world.trees.discard(&third.intent, 1).unwrap();
    write(&third.path, "y", "y");
    assert!(!unsaved(world.trees.remove(&third.intent)).is_empty());
}

#[test]
fn a_directory_deleted_by_the_user_loses_no_known_commit() {
    let world = World::new();
    let made = world.prepare("s");
    write(&made.path, "a.txt", "two\n");
    let tip = commit(&made.path, "work");
    world.trees.status(&made.intent).unwrap();
    std::fs::remove_dir_all(&made.path).unwrap();
    assert!(matches!(world.trees.status(&made.intent), Err(TreeError::Gone { .. })));
    assert!(!world.trees.list().unwrap()[0].exists);
    assert_eq!(world.trees.remove(&made.intent).unwrap(), Removed::Removed);
    assert_eq!(git(&world.repo, &["rev-parse", "overmind/s"]), tip);
    std::fs::create_dir_all(made.intent.place.as_path()).unwrap();
    assert_eq!(world.trees.undo(&made.intent).unwrap(), Removed::AlreadyGone);
    assert!(!made.intent.place.as_path().exists());
}

#[test]
fn a_moved_repository_is_reported_and_found_again() {
    let world = World::new();
    let made = world.prepare("s");
    write(&made.path, "a.txt", "two\n");
    commit(&made.path, "work");
    let moved = world.dir.path().join("moved");
    std::fs::rename(&world.repo, &moved).unwrap();
    let err = world.trees.status(&made.intent).unwrap_err();
    assert!(matches!(err, TreeError::RepositoryGone { .. }), "{err}");
    assert!(matches!(world.trees.remove(&made.intent), Err(TreeError::RepositoryGone { .. })));
    assert!(try_git(&made.path, &["log", "main"]).is_err());
    let intent = world.trees.relink(&made.intent, &moved).unwrap();
    assert_eq!(git(&made.path, &["status", "--porcelain"]), "");
    // The old intent in a journal still refers to this tree.
    assert_eq!(world.trees.status(&made.intent).unwrap().ahead, 1);
    world.trees.park(&intent, "wip", 5).unwrap();
    assert_eq!(git(&moved, &["log", "-1", "--format=%s", "overmind/s"]), "work");
    world.trees.remove(&intent).unwrap();
}

#[test]
fn a_lock_of_another_git_is_reported_and_a_retry_works() {
    let world = World::new();
    let made = world.prepare("s");
    write(&made.path, "a.txt", "two\n");
    let ours = made.intent.place.as_path().join("ours/index.lock");
    std::fs::write(&ours, "").unwrap();
    let err = world.trees.park(&made.intent, "wip", 5).unwrap_err();
    assert!(
        matches!(&err, TreeError::Git(GitError::Locked { lock, .. }) if *lock == ours),
        "{err}"
    );
    std::fs::remove_file(&ours).unwrap();
    // The session's own lock does not affect us.
    std::fs::write(made.path.join(".git/index.lock"), "").unwrap();
    world.trees.park(&made.intent, "wip", 5).unwrap();
    world.trees.remove(&made.intent).unwrap();
}

#[test]
fn concurrent_steps_on_a_tree_are_refused() {
    let world = World::new();
    let made = world.prepare("s");
    let lock = std::fs::File::options()
        .create(true)
        .append(true)
        .open(made.intent.place.as_path().join("lock"))
        .unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(matches!(world.trees.remove(&made.intent), Err(TreeError::Busy { .. })));
    drop(lock);
    world.trees.remove(&made.intent).unwrap();
}

#[test]
fn files_that_become_directories_and_directories_that_become_files_are_saved() {
    let world = World::new();
    let made = world.prepare("s");
    std::fs::remove_file(made.path.join("a.txt")).unwrap();
    write(&made.path, "a.txt/inside", "1");
    std::fs::remove_dir_all(made.path.join("src")).unwrap();
    write(&made.path, "src", "now a file");
    world.trees.park(&made.intent, "wip", 5).unwrap();
    let files = git(&world.repo, &["ls-tree", "-r", "--name-only", "overmind/s"]);
    assert_eq!(files, ".gitignore\na.txt/inside\nsrc");
    assert_eq!(read(&made.path.join("src")), "now a file");
    world.trees.remove(&made.intent).unwrap();
}
