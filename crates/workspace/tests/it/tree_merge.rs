//! Merging into the primary.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use overmind_workspace::git::GitError;
use overmind_workspace::tree::{MergeInto, Merged, TreeError};

use crate::tree_repo::{World, commit, difference, everything, git, read, try_git, write};

fn into(branch: Option<&str>) -> MergeInto<'_> {
    MergeInto { branch, commit_rest: false, message: "merge s", now: 9, home: None }
}

#[test]
fn a_session_is_merged_into_the_checked_out_branch_with_its_files() {
    let world = World::new();
    let made = world.prepare("s");
    write(&made.path, "a.txt", "two\n");
    write(&made.path, "new/file", "n");
    std::fs::remove_file(made.path.join("src/lib.rs")).unwrap();
    let tip = commit(&made.path, "work");
    write(&world.repo, "unrelated.txt", "the user's");
    write(&world.repo, ".gitignore", "the user's change\n");
    let merged = world.trees.merge(&made.intent, &into(None)).unwrap();
    assert_eq!(merged, Merged::Forward { branch: "main".to_owned(), commit: tip });
    assert_eq!(read(&world.repo.join("a.txt")), "two\n");
    assert_eq!(read(&world.repo.join("new/file")), "n");
    assert!(!world.repo.join("src/lib.rs").exists());
    assert_eq!(git(&world.repo, &["status", "--porcelain"]), " M .gitignore\n?? unrelated.txt");
    assert_eq!(read(&world.repo.join("unrelated.txt")), "the user's");
    let again = world.trees.merge(&made.intent, &into(None)).unwrap();
    assert_eq!(again, Merged::Nothing { branch: "main".to_owned() });
    assert!(world.trees.status(&made.intent).unwrap().is_saved());
    world.trees.remove(&made.intent).unwrap();
}

#[test]
fn diverged_branches_are_joined_by_a_merge_commit() {
    let world = World::new();
    let made = world.prepare("s");
    write(&made.path, "a.txt", "two\n");
    let theirs = commit(&made.path, "work");
    write(&world.repo, "src/lib.rs", "fn user() {}\n");
    let ours = commit(&world.repo, "meanwhile");
    let merged = world.trees.merge(&made.intent, &into(None)).unwrap();
    assert!(matches!(merged, Merged::Joined { .. }), "{merged:?}");
    let log = git(&world.repo, &["log", "-1", "--format=%P|%an|%s"]);
    assert_eq!(log, format!("{ours} {theirs}|Overmind|merge s"));
    assert_eq!(read(&world.repo.join("a.txt")), "two\n");
    assert_eq!(read(&world.repo.join("src/lib.rs")), "fn user() {}\n");
    assert_eq!(git(&world.repo, &["status", "--porcelain"]), "");
}

#[test]
fn eight_concurrent_merges_succeed_and_leave_nothing_in_the_checkout() {
    let world = World::new();
    let made: Vec<_> = (1..=8).map(|n| world.prepare(&format!("s{n}"))).collect();
    for (n, made) in made.iter().enumerate() {
        write(&made.path, &format!("of-{n}.txt"), "work\n");
        commit(&made.path, "work");
    }
    // A user whose editor requests the status all the time.
    let stop = AtomicBool::new(false);
    let merged = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                git(&world.repo, &["status", "--porcelain"]);
            }
        });
        let merges: Vec<_> = made
            .iter()
            .map(|made| scope.spawn(|| world.trees.merge(&made.intent, &into(None))))
            .collect();
        let merged: Vec<_> = merges.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        merged
    });
    for done in merged {
        let done = done.unwrap();
        assert!(matches!(done, Ok(Merged::Forward { .. } | Merged::Joined { .. })), "{done:?}");
    }
    assert_eq!(git(&world.repo, &["status", "--porcelain"]), "");
    for n in 0..8 {
        assert_eq!(read(&world.repo.join(format!("of-{n}.txt"))), "work\n");
    }
}

#[test]
fn a_conflict_is_reported_with_its_files_and_changes_nothing() {
    let world = World::new();
    let made = world.prepare("s");
    write(&made.path, "a.txt", "session\n");
    write(&made.path, "both new\n.txt", "session\n");
    commit(&made.path, "work");
    write(&world.repo, "a.txt", "user\n");
    write(&world.repo, "both new\n.txt", "user\n");
    commit(&world.repo, "meanwhile");
    let before = everything(&world.repo);
    let merged = world.trees.merge(&made.intent, &into(None)).unwrap();
    let files = vec![PathBuf::from("a.txt"), PathBuf::from("both new\n.txt")];
    let branch = "main".to_owned();
    assert_eq!(merged, Merged::Conflicts { branch, files, told: true });
    assert_eq!(difference(&before, &everything(&world.repo)), [] as [&Path; 0]);
}

#[test]
fn a_changed_or_untracked_file_in_the_way_refuses_the_merge() {
    for (file, text) in [("a.txt", "the user's change\n"), ("new.txt", "the user's new file\n")] {
        let world = World::new();
        let made = world.prepare("s");
        write(&made.path, "a.txt", "two\n");
        write(&made.path, "new.txt", "n\n");
        write(&made.path, "src/lib.rs", "fn s() {}\n");
        commit(&made.path, "work");
        write(&world.repo, file, text);
        // Git may record new times of files in the index; nothing else may change.
        git(&world.repo, &["update-index", "-q", "--refresh"]).clear();
        let strip = |mut all: std::collections::BTreeMap<_, _>| {
            all.retain(|path: &PathBuf, _| {
                let text = path.to_string_lossy();
                !text.contains("/.git/objects") && !text.ends_with("/.git/index")
            });
            all
        };
        let before = strip(everything(&world.repo));
        let err = world.trees.merge(&made.intent, &into(None)).unwrap_err();
        assert!(
            matches!(&err, TreeError::PrimaryInTheWay { files, .. } if *files == [PathBuf::from(file)]),
            "{err}"
        );
        let told = format!("uncommitted work in {}: {file}. Commit it there", world.repo.display());
        assert!(err.to_string().contains(&told), "{err}");
        assert_eq!(difference(&before, &strip(everything(&world.repo))), [] as [&Path; 0]);
        std::fs::remove_file(world.repo.join(file)).unwrap();
        git(&world.repo, &["checkout", "-q", "--", "."]);
        world.trees.merge(&made.intent, &into(None)).unwrap();
        assert_eq!(read(&world.repo.join("src/lib.rs")), "fn s() {}\n");
    }
}

#[test]
fn a_branch_that_is_not_checked_out_is_moved_without_changing_files() {
    let world = World::new();
    git(&world.repo, &["branch", "release"]);
    let made = world.prepare("s");
    write(&made.path, "a.txt", "two\n");
    write(&made.path, "u.txt", "uncommitted\n");
    let err = world.trees.merge(&made.intent, &into(Some("release"))).unwrap_err();
    assert!(matches!(err, TreeError::Uncommitted { .. }));
    let before = git(&world.repo, &["status", "--porcelain"]);
    let all = MergeInto { commit_rest: true, ..into(Some("release")) };
    let Merged::Forward { commit: tip, .. } = world.trees.merge(&made.intent, &all).unwrap() else {
        panic!("not forward")
    };
    assert_eq!(git(&world.repo, &["rev-parse", "release"]), tip);
    assert_eq!(git(&world.repo, &["show", "release:u.txt"]), "uncommitted");
    assert_eq!(git(&world.repo, &["status", "--porcelain"]), before);
    assert_eq!(read(&world.repo.join("a.txt")), "one\n");
    world.trees.remove(&made.intent).unwrap();

    let made = world.prepare("t");
    write(&made.path, "x", "x");
    commit(&made.path, "x");
    let err = world.trees.merge(&made.intent, &into(Some("no-such"))).unwrap_err();
    assert!(matches!(err, TreeError::NoSuchBranch { .. }));
    git(&world.repo, &["checkout", "-q", "--detach"]);
    let err = world.trees.merge(&made.intent, &into(None)).unwrap_err();
    assert!(matches!(err, TreeError::NoBranch { .. }));
}

#[test]
fn a_branch_that_is_checked_out_in_a_linked_worktree_is_merged_there() {
    let world = World::new();
    git(&world.repo, &["worktree", "add", "-q", "-b", "feature", "../linked"]);
    let linked = world.dir.path().join("linked");
    let made = world.prepare("s");
    write(&made.path, "a.txt", "two\n");
    commit(&made.path, "work");
    world.trees.merge(&made.intent, &into(Some("feature"))).unwrap();
    assert_eq!(read(&linked.join("a.txt")), "two\n");
    assert_eq!(git(&linked, &["status", "--porcelain"]), "");
    assert_eq!(read(&world.repo.join("a.txt")), "one\n");
}

#[test]
fn a_conflict_can_be_resolved_in_the_sessions_worktree() {
    let world = World::new();
    let made = world.prepare("s");
    write(&made.path, "a.txt", "session\n");
    commit(&made.path, "work");
    write(&world.repo, "a.txt", "user\n");
    let now = commit(&world.repo, "meanwhile");
    let merged = world.trees.merge(&made.intent, &into(None)).unwrap();
    assert!(matches!(merged, Merged::Conflicts { told: true, .. }), "{merged:?}");
    assert_eq!(git(&made.path, &["rev-parse", "main"]).trim(), now);
    assert!(try_git(&made.path, &["merge", "-q", "main"]).is_err());
    write(&made.path, "a.txt", "user and session\n");
    commit(&made.path, "both");
    // The given commit is no branch that it created.
    let status = world.trees.status(&made.intent).unwrap();
    assert!(!format!("{status:?}").contains("refs/heads/main"), "{status:?}");
    let merged = world.trees.merge(&made.intent, &into(None)).unwrap();
    assert!(matches!(merged, Merged::Forward { .. }), "{merged:?}");
    assert_eq!(read(&world.repo.join("a.txt")), "user and session\n");
    // A branch that the session moved itself stays where it put it.
    let made = world.prepare("own");
    write(&made.path, "a.txt", "session\n");
    commit(&made.path, "work");
    git(&made.path, &["branch", "-f", "main"]);
    write(&world.repo, "a.txt", "user again\n");
    commit(&world.repo, "later");
    let own = git(&made.path, &["rev-parse", "main"]);
    let merged = world.trees.merge(&made.intent, &into(None)).unwrap();
    assert!(matches!(merged, Merged::Conflicts { told: false, .. }), "{merged:?}");
    assert_eq!(git(&made.path, &["rev-parse", "main"]), own);
}

#[test]
fn a_retried_merge_takes_a_new_message() {
    let world = World::new();
    let made = world.prepare("s");
    write(&made.path, "a.txt", "session\n");
    write(&world.repo, "a.txt", "not committed\n");
    let first = MergeInto { message: "first words", commit_rest: true, ..into(None) };
    let err = world.trees.merge(&made.intent, &first).unwrap_err();
    assert!(matches!(err, TreeError::PrimaryInTheWay { .. }), "{err}");
    git(&world.repo, &["checkout", "-q", "a.txt"]);
    let second = MergeInto { message: "better words", commit_rest: true, ..into(None) };
    world.trees.merge(&made.intent, &second).unwrap();
    assert_eq!(git(&world.repo, &["log", "-1", "--format=%s"]).trim(), "better words");
}

#[test]
fn a_locked_index_refuses_a_merge_and_a_crash_within_one_is_completed() {
    let world = World::new();
    let made = world.prepare("s");
    write(&made.path, "a.txt", "two\n");
    let tip = commit(&made.path, "work");
    let lock = world.repo.join(".git/index.lock");
    std::fs::write(&lock, "").unwrap();
    let err = world.trees.merge(&made.intent, &into(None)).unwrap_err();
    assert!(
        matches!(&err, TreeError::Git(GitError::Locked { lock: at, .. }) if *at == lock),
        "{err}"
    );
    std::fs::remove_file(&lock).unwrap();
    assert_eq!(read(&world.repo.join("a.txt")), "one\n");

    git(&world.repo, &["checkout", "-q", "-b", "x"]);
    write(&world.repo, "a.txt", "x\n");
    commit(&world.repo, "x");
    git(&world.repo, &["checkout", "-q", "main"]);
    write(&world.repo, "a.txt", "y\n");
    commit(&world.repo, "y");
    assert!(try_git(&world.repo, &["merge", "-q", "x"]).is_err());
    git(&world.repo, &["branch", "other"]);
    let err = world.trees.merge(&made.intent, &into(None));
    assert!(
        matches!(err, Ok(Merged::Conflicts { .. }) | Err(TreeError::PrimaryBusy { .. })),
        "{err:?}"
    );
    git(&world.repo, &["merge", "--abort"]);
    git(&world.repo, &["reset", "-q", "--hard", "HEAD~1"]);

    // The state after a crash: the files exist, the branch does not.
    let main = git(&world.repo, &["rev-parse", "main"]);
    git(
        &world.repo,
        &["read-tree", "-m", "-u", &main, &{
            world.trees.pr_branch(&made.intent, Some("tmp")).unwrap().commit
        }],
    );
    assert_eq!(git(&world.repo, &["status", "--porcelain"]), "M  a.txt");
    let merged = world.trees.merge(&made.intent, &into(None)).unwrap();
    assert_eq!(merged, Merged::Forward { branch: "main".to_owned(), commit: tip });
    assert_eq!(git(&world.repo, &["status", "--porcelain"]), "");
}
