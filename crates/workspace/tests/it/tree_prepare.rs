//! Making trees, from every kind of repository.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use overmind_workspace::Trees;
use overmind_workspace::git::Git;
use overmind_workspace::tree::{
    BigDirectory, LeftBehind, Options, Request, Strategy, Taken, TreeError, Warning,
};

use crate::tree_repo::{
    World, commit, difference, everything, git, read, try_git, users_part, write,
};

fn with(world: &World, name: &str, options: Options) -> overmind_workspace::tree::Prepared {
    world.trees.prepare(&Request { options, ..Request::new(&world.repo, name) }).unwrap()
}

#[test]
fn a_tree_has_its_own_branch_and_the_primary_is_unchanged() {
    let world = World::new();
    git(&world.repo, &["branch", "other"]);
    git(&world.repo, &["tag", "v1"]);
    let head = git(&world.repo, &["rev-parse", "HEAD"]);
    let before = users_part(&world.repo);
    let status = git(&world.repo, &["status", "--porcelain", "--ignored"]);
    let made = world.prepare("fix login");

    assert_eq!(made.taken, Taken::CheckedOut);
    assert_eq!(made.intent.branch, "overmind/fix-login");
    assert_eq!(made.intent.base.as_deref(), Some(head.as_str()));
    assert_eq!(made.warnings, []);
    assert_eq!(git(&made.path, &["branch", "--show-current"]), "overmind/fix-login");
    assert_eq!(git(&made.path, &["status", "--porcelain"]), "");
    assert_eq!(read(&made.path.join("src/lib.rs")), "fn f() {}\n");
    // The session sees the primary's branches and tags, and can work with them.
    assert_eq!(git(&made.path, &["rev-parse", "main", "other", "v1"]), [&*head; 3].join("\n"));
    write(&made.path, "new.txt", "x");
    commit(&made.path, "work");
    assert_eq!(git(&made.path, &["log", "--format=%s", "main..HEAD"]), "work");
    assert_eq!(git(&made.path, &["fsck", "--no-dangling"]), "");

    assert_eq!(difference(&before, &users_part(&world.repo)), [] as [&Path; 0]);
    assert_eq!(git(&world.repo, &["status", "--porcelain", "--ignored"]), status);
    assert_eq!(
        git(&world.repo, &["branch", "--format=%(refname)"]),
        "refs/heads/main\nrefs/heads/other"
    );
    assert!(made.path.starts_with(world.trees.root()));
}

#[test]
fn a_session_starts_in_the_same_subdirectory() {
    let world = World::new();
    let made = world.trees.prepare(&Request::new(world.repo.join("src"), "s")).unwrap();
    assert_eq!(made.cwd, made.path.join("src"));
    std::fs::create_dir_all(world.repo.join("src/new/deep")).unwrap();
    let made = world.trees.prepare(&Request::new(world.repo.join("src/new/deep"), "s")).unwrap();
    assert_eq!(made.cwd, made.path.join("src"));
    assert!(matches!(&made.warnings[..], [Warning::NoSuchDirectory { used, .. }] if used == "src"));
}

#[test]
fn a_taken_branch_name_gets_a_number() {
    let world = World::new();
    git(&world.repo, &["branch", "overmind/b"]);
    assert_eq!(world.prepare("a").intent.branch, "overmind/a");
    assert_eq!(world.prepare("a").intent.branch, "overmind/a-2");
    assert_eq!(world.prepare("b").intent.branch, "overmind/b-2");
    git(&world.repo, &["branch", "-m", "overmind/b", "overmind"]);
    assert_eq!(world.prepare("c").intent.branch, "overmind-c");
    let options = Options { branch_prefix: "x..".to_owned(), ..Options::default() };
    let err = world.trees.prepare(&Request { options, ..Request::new(&world.repo, "n") });
    assert!(matches!(err, Err(TreeError::BadBranch { .. })));
}

#[test]
fn concurrent_sessions_with_one_name_get_distinct_trees() {
    let world = World::new();
    let mut branches: Vec<String> = std::thread::scope(|scope| {
        let makers: Vec<_> =
            (0..6).map(|_| scope.spawn(|| world.prepare("same").intent.branch)).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    branches.sort();
    branches.dedup();
    assert_eq!(branches.len(), 6, "{branches:?}");
}

#[test]
fn the_base_can_only_be_a_branch_a_tag_or_a_commit() {
    let world = World::new();
    let first = git(&world.repo, &["rev-parse", "HEAD"]);
    git(&world.repo, &["tag", "-a", "v1", "-m", "v1"]);
    write(&world.repo, "a.txt", "two\n");
    commit(&world.repo, "second");
    for base in ["v1", &first, "main~1"] {
        let base = Some(base.to_owned());
        let made = with(&world, "s", Options { base, ..Options::default() });
        assert_eq!(made.intent.base.as_deref(), Some(first.as_str()));
        assert_eq!(read(&made.path.join("a.txt")), "one\n");
    }
    for bad in ["nothing", "--upload-pack=x", "HEAD:a.txt", ""] {
        let options = Options { base: Some(bad.to_owned()), ..Options::default() };
        let err = world.trees.prepare(&Request { options, ..Request::new(&world.repo, "s") });
        assert!(matches!(err, Err(TreeError::NoSuchBase { .. })), "{bad}");
    }
}

#[test]
fn uncommitted_files_are_counted_or_copied_on_request() {
    let world = World::new();
    write(&world.repo, "a.txt", "changed\n");
    write(&world.repo, "staged.txt", "s");
    git(&world.repo, &["add", "staged.txt"]);
    write(&world.repo, "dir/untracked\nodd.txt", "u");
    std::fs::remove_file(world.repo.join("src/lib.rs")).unwrap();
    let before = everything(&world.repo.join(".git"));
    let made = world.prepare("s");
    let left = LeftBehind { changed: 3, untracked: 1, conflicted: 0 };
    assert_eq!(made.left_behind, Some(left));
    assert_eq!(made.warnings, [Warning::LeftBehind { left }]);
    assert_eq!(read(&made.path.join("a.txt")), "one\n");
    let index = world.repo.join(".git/index");
    assert_eq!(before[&index].1, std::fs::read(&index).unwrap(), "the primary's index was written");

    let made = with(&world, "s", Options { carry_changes: true, ..Options::default() });
    assert_eq!(made.warnings, []);
    assert_eq!(read(&made.path.join("a.txt")), "changed\n");
    assert_eq!(read(&made.path.join("staged.txt")), "s");
    assert_eq!(read(&made.path.join("dir/untracked\nodd.txt")), "u");
    assert!(!made.path.join("src/lib.rs").exists());
    assert_eq!(git(&made.path, &["rev-parse", "HEAD"]), git(&world.repo, &["rev-parse", "HEAD"]));
}

#[test]
fn detached_and_unborn_heads_and_bare_repositories_work() {
    let world = World::new();
    let first = git(&world.repo, &["rev-parse", "HEAD"]);
    commit(&world.repo, "second");
    git(&world.repo, &["checkout", "-q", &first]);
    assert_eq!(world.prepare("detached").intent.base.as_deref(), Some(first.as_str()));

    let bare = world.dir.path().join("bare.git");
    git(world.dir.path(), &["clone", "-q", "--bare", "repo", "bare.git"]);
    let made = world.trees.prepare(&Request::new(&bare, "in-bare")).unwrap();
    assert_eq!(read(&made.path.join("a.txt")), "one\n");
    assert_eq!(made.left_behind, None);

    let unborn = world.dir.path().join("unborn");
    std::fs::create_dir(&unborn).unwrap();
    git(&unborn, &["init", "-q"]);
    write(&unborn, "a.txt", "one");
    let made = world.trees.prepare(&Request::new(&unborn, "first")).unwrap();
    assert_eq!(made.intent.base, None);
    assert!(made.warnings.contains(&Warning::NoCommitYet));
    assert_eq!(made.left_behind.unwrap().untracked, 1);
    write(&made.path, "b.txt", "b");
    let parked = world.trees.park(&made.intent, "wip", 1_000).unwrap();
    assert_eq!(parked.saved_as.as_deref(), Some("overmind/first"));
    assert_eq!(git(&unborn, &["ls-tree", "--name-only", "overmind/first"]), "b.txt");
    world.trees.remove(&made.intent).unwrap();
}

#[test]
fn linked_worktrees_and_separate_git_directories_work_as_projects() {
    let world = World::new();
    git(&world.repo, &["worktree", "add", "-q", "-b", "feature", "../linked"]);
    let linked = world.dir.path().join("linked");
    write(&linked, "a.txt", "of the feature\n");
    let tip = commit(&linked, "feature");
    let made = world.trees.prepare(&Request::new(&linked, "s")).unwrap();
    assert_eq!(made.intent.base, Some(tip));

    git(world.dir.path(), &["init", "-q", "--separate-git-dir=kept", "apart"]);
    let apart = world.dir.path().join("apart");
    write(&apart, "x", "x");
    commit(&apart, "x");
    // Git itself does not record it; otherwise anybody with write access could redirect it.
    git(&apart, &["config", "core.worktree", apart.to_str().unwrap()]);
    let made = world.trees.prepare(&Request::new(&apart, "s")).unwrap();
    assert_eq!(read(&made.path.join("x")), "x");

    let linked = world.dir.path().join("by-link");
    std::fs::create_dir(&linked).unwrap();
    symlink(world.repo.join(".git"), linked.join(".git")).unwrap();
    let led = world.trees.prepare(&Request::new(&linked, "s"));
    assert!(matches!(led, Err(TreeError::NotOurs { .. })), "{led:?}");
    git(&world.repo, &["config", "core.worktree", linked.to_str().unwrap()]);
    let made = world.trees.prepare(&Request::new(&linked, "s")).unwrap();
    assert_eq!(read(&made.path.join("a.txt")), "one\n");

    let broken = world.dir.path().join("broken");
    write(&broken, ".git", "gitdir: /nowhere/at/all\n");
    let err = world.trees.prepare(&Request::new(&broken, "s"));
    assert!(matches!(err, Err(TreeError::BrokenRedirect { .. })));
}

#[test]
fn unusual_names_of_repositories_and_files_work() {
    for name in ["with space", "new\nline", "ümläut", "quo\"te'", "-dash", "#hash"] {
        let world = World::called(name);
        write(&world.repo, "odd \"name\"\n\t*.txt", "x");
        let mut long = "d/".repeat(40);
        long.push_str(&"f".repeat(200));
        write(&world.repo, &long, "x");
        let not_text = world.repo.join(OsStr::from_bytes(b"\xff\xfe"));
        std::fs::write(&not_text, "x").unwrap();
        commit(&world.repo, "odd");
        let made = world.prepare(name);
        assert_eq!(git(&made.path, &["status", "--porcelain"]), "", "{name:?}");
        assert!(made.path.join(OsStr::from_bytes(b"\xff\xfe")).exists());
        assert!(made.path.join(&long).exists());
        write(&made.path, "more\n.txt", "y");
        let status = world.trees.status(&made.intent).unwrap();
        assert_eq!(status.uncommitted.len(), 1);
        let text = serde_json::to_string(&made.intent).unwrap();
        assert_eq!(
            serde_json::from_str::<overmind_workspace::tree::TreeIntent>(&text).unwrap(),
            made.intent
        );
        world.trees.park(&made.intent, "wip", 5).unwrap();
        world.trees.remove(&made.intent).unwrap();
    }
}

#[test]
fn ignored_files_are_copied_by_the_include_list_and_never_over_tracked_ones() {
    let world = World::new();
    write(&world.repo, ".env", "KEY=1");
    write(&world.repo, ".env.local", "KEY=2");
    write(&world.repo, "sub/.env", "KEY=3");
    write(&world.repo, "debug.log", "noise");
    write(&world.repo, "private/keys/dev.pem", "pem");
    write(&world.repo, "private/notes.txt", "no");
    write(&world.repo, "node_modules/pkg/.env", "no");
    write(&world.repo, ".env.tracked", "of the commit");
    git(&world.repo, &["add", "-f", ".env.tracked"]);
    write(&world.repo, ".worktreeinclude", "# ours\n/private/**/*.pem\n!.env.local\n");
    commit(&world.repo, "with an include list");
    write(&world.repo, ".env.tracked", "changed");
    std::fs::set_permissions(world.repo.join(".env"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(world.dir.path().join("outside"), "secret").unwrap();
    symlink("../outside", world.repo.join(".env.out")).unwrap();
    symlink(".env", world.repo.join(".env.in")).unwrap();

    let made = world.prepare("s");
    let mut included: Vec<_> = made.included.iter().map(|p| p.to_str().unwrap()).collect();
    included.sort_unstable();
    assert_eq!(included, [".env", ".env.in", "private/keys/dev.pem", "sub/.env"]);
    let mode = std::fs::metadata(made.path.join(".env")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(read(&made.path.join(".env.tracked")), "of the commit");
    for absent in [".env.local", ".env.out", "debug.log", "private/notes.txt", "node_modules"] {
        assert!(std::fs::symlink_metadata(made.path.join(absent)).is_err(), "{absent}");
    }
    assert!(
        made.warnings
            .iter()
            .any(|w| matches!(w, Warning::IncludeSkipped { path, .. } if path == ".env.out"))
    );
    assert_eq!(git(&made.path, &["status", "--porcelain"]), "");
    // A copy: the session's changes in it stay in the session.
    std::fs::write(made.path.join(".env"), "KEY=9").unwrap();
    assert_eq!(read(&world.repo.join(".env")), "KEY=1");
}

#[test]
fn an_include_never_follows_a_committed_link_out_of_the_tree() {
    let world = World::new();
    let outside = world.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    symlink("../outside", world.repo.join("conf")).unwrap();
    let linked = commit(&world.repo, "a link");
    std::fs::remove_file(world.repo.join("conf")).unwrap();
    write(&world.repo, "conf/.env", "KEY=1");
    let options = Options { base: Some(linked), ..Options::default() };
    let made = with(&world, "s", options);
    assert!(!outside.join(".env").exists());
    assert!(made.warnings.iter().any(|w| matches!(w, Warning::IncludeSkipped { .. })));
}

#[test]
fn too_many_or_too_large_includes_are_skipped_and_reported() {
    let world = World::new();
    write(&world.repo, ".env", &"x".repeat(5000));
    let made = with(&world, "s", Options { include_bytes: 1000, ..Options::default() });
    assert!(made.included.is_empty());
    assert!(matches!(&made.warnings[..], [Warning::IncludeSkipped { .. }]));
}

#[test]
fn large_directories_are_shared_cloned_or_skipped_as_declared() {
    let world = World::new();
    write(&world.repo, ".gitignore", "node_modules/\n/target/\n/.venv/\n.env*\n");
    commit(&world.repo, "ignore");
    write(&world.repo, "node_modules/a/index.js", "1");
    write(&world.repo, "packages/p/node_modules/b/index.js", "2");
    write(&world.repo, "target/debug/app", "3");
    write(&world.repo, ".venv/bin/python", "4");
    let big = |path: &str, strategy| BigDirectory { path: path.to_owned(), strategy };
    let options = Options {
        big: vec![
            big("node_modules", Strategy::Share),
            big("target", Strategy::Clone),
            big(".venv", Strategy::Skip),
        ],
        ..Options::default()
    };
    let made = with(&world, "s", options);
    assert_eq!(made.warnings, []);
    assert_eq!(
        std::fs::read_link(made.path.join("node_modules")).unwrap(),
        world.repo.join("node_modules")
    );
    assert_eq!(read(&made.path.join("packages/p/node_modules/b/index.js")), "2");
    assert_eq!(made.shared.len(), 2);
    write(&made.path, "target/debug/app", "changed");
    assert_eq!(read(&world.repo.join("target/debug/app")), "3");
    assert!(!made.path.join(".venv").exists());
    // The links are not work: not for the session's git and not for ours.
    assert_eq!(git(&made.path, &["status", "--porcelain"]), "");
    assert!(world.trees.status(&made.intent).unwrap().is_saved());
    world.trees.remove(&made.intent).unwrap();
    assert_eq!(read(&world.repo.join("node_modules/a/index.js")), "1");
}

#[test]
fn submodules_are_checked_out_from_the_primary_without_a_network() {
    let world = World::new();
    let lib = world.dir.path().join("lib");
    let deep = world.dir.path().join("deep");
    for (dir, text) in [(&deep, "deep"), (&lib, "lib")] {
        std::fs::create_dir(dir).unwrap();
        git(dir, &["init", "-q", "-b", "main"]);
        write(dir, "file", text);
        commit(dir, "x");
    }
    git(&lib, &["submodule", "add", "-q", deep.to_str().unwrap(), "vendor/deep"]);
    commit(&lib, "deep");
    git(&world.repo, &["submodule", "add", "-q", lib.to_str().unwrap(), "libs/one"]);
    git(&world.repo, &["submodule", "add", "-q", lib.to_str().unwrap(), "libs/two"]);
    git(&world.repo, &["submodule", "update", "-q", "--init", "--recursive"]);
    commit(&world.repo, "submodules");
    git(&world.repo, &["submodule", "deinit", "-q", "-f", "libs/two"]);
    std::fs::remove_dir_all(world.repo.join(".git/modules/libs/two")).unwrap();
    std::fs::rename(&lib, world.dir.path().join("gone")).unwrap();

    let made = world.prepare("s");
    assert_eq!(read(&made.path.join("libs/one/file")), "lib");
    assert_eq!(read(&made.path.join("libs/one/vendor/deep/file")), "deep");
    assert_eq!(made.warnings, [Warning::SubmoduleNotLocal { path: "libs/two".to_owned() }]);
    assert_eq!(git(&made.path, &["status", "--porcelain"]), "");
    let status = git(&made.path, &["submodule", "status", "--recursive"]);
    let status: Vec<&str> = status.lines().map(|line| &line[..1]).collect();
    assert_eq!(status, [" ", " ", "-"]);

    // Work in one of them is seen, saved where it came from, and not lost.
    let sub = made.path.join("libs/one");
    write(&sub, "file", "changed");
    write(&sub, "vendor/deep/file", "changed deep");
    let status = world.trees.status(&made.intent).unwrap();
    assert_eq!(status.submodules.len(), 2, "{status:?}");
    assert!(matches!(world.trees.remove(&made.intent), Err(TreeError::Unsaved { .. })));
    let before = users_part(&world.repo.join("libs"));
    world.trees.park(&made.intent, "wip", 7).unwrap();
    assert_eq!(difference(&before, &users_part(&world.repo.join("libs"))), [] as [&Path; 0]);
    let store = world.repo.join(".git/modules/libs/one");
    assert_eq!(git(&store, &["show", "overmind/s:file"]), "changed");
    let link = git(&world.repo, &["rev-parse", "overmind/s:libs/one"]);
    assert_eq!(link, git(&store, &["rev-parse", "overmind/s"]));
    let store = store.join("modules/vendor/deep");
    assert_eq!(git(&store, &["show", "overmind/s:file"]), "changed deep");
    world.trees.remove(&made.intent).unwrap();
}

#[test]
fn sparse_checkouts_stay_sparse_and_saving_keeps_files_outside() {
    let world = World::new();
    for dir in ["in", "out"] {
        write(&world.repo, &format!("{dir}/file"), dir);
    }
    commit(&world.repo, "dirs");
    git(&world.repo, &["sparse-checkout", "set", "--cone", "in"]);
    assert!(!world.repo.join("out").exists());
    let made = world.prepare("s");
    assert!(made.path.join("in/file").exists());
    assert!(!made.path.join("out").exists());
    assert_eq!(git(&made.path, &["sparse-checkout", "list"]), "in");
    assert_eq!(git(&made.path, &["status", "--porcelain"]), "");
    write(&made.path, "in/new", "n");
    write(&made.path, "elsewhere/new", "n");
    world.trees.park(&made.intent, "wip", 7).unwrap();
    let files = git(&world.repo, &["diff", "--name-status", "main", "overmind/s"]);
    assert_eq!(files, "A\telsewhere/new\nA\tin/new");
}

#[test]
fn shallow_and_reference_clones_and_sha256_work() {
    let world = World::new();
    commit(&world.repo, "second");
    let url = format!("file://{}", world.repo.display());
    git(world.dir.path(), &["clone", "-q", "--depth=1", &url, "shallow"]);
    git(world.dir.path(), &["clone", "-q", "--shared", "repo", "shared"]);
    git(world.dir.path(), &["init", "-q", "--object-format=sha256", "sha256"]);
    write(&world.dir.path().join("sha256"), "a", "a");
    commit(&world.dir.path().join("sha256"), "x");
    for name in ["shallow", "shared", "sha256"] {
        let repo = world.dir.path().join(name);
        let made = world.trees.prepare(&Request::new(&repo, "s")).unwrap();
        assert_eq!(git(&made.path, &["status", "--porcelain"]), "", "{name}");
        assert_eq!(git(&made.path, &["log", "--format=%s"]), git(&repo, &["log", "--format=%s"]));
        write(&made.path, "n", "n");
        std::fs::remove_file(made.path.join(git(&repo, &["ls-files"]).lines().last().unwrap()))
            .unwrap();
        commit(&made.path, "work");
        write(&made.path, "wip", "n");
        world.trees.park(&made.intent, "wip", 7).unwrap();
        assert_eq!(git(&repo, &["log", "--format=%s", "HEAD..overmind/s"]), "wip\nwork", "{name}");
        git(&repo, &["fsck", "--no-dangling"]);
        world.trees.remove(&made.intent).unwrap();
    }
}

#[test]
fn outside_a_repository_a_copy_is_created_and_reported() {
    let world = World::new();
    let plain = world.dir.path().join("plain");
    write(&plain, "a.txt", "one");
    write(&plain, "sub/b.txt", "two");
    symlink("a.txt", plain.join("link")).unwrap();
    let made = world.trees.prepare(&Request::new(&plain, "copy")).unwrap();
    assert_eq!(made.taken, Taken::Copied);
    assert!(matches!(made.warnings[..], [Warning::NotARepository { files: 3, .. }]));
    write(&made.path, "a.txt", "changed");
    write(&made.path, "c.txt", "new");
    assert_eq!(read(&plain.join("a.txt")), "one");
    assert_eq!(world.trees.diff(&made.intent, 1 << 20).unwrap().files.len(), 2);
    assert!(matches!(world.trees.remove(&made.intent), Err(TreeError::Unsaved { .. })));
    let parked = world.trees.park(&made.intent, "wip", 7).unwrap();
    let bundle = parked.saved_as.unwrap();
    world.trees.remove(&made.intent).unwrap();
    assert!(!made.path.exists());
    // The file brings all of it back.
    git(world.dir.path(), &["clone", "-q", "-b", "overmind/copy", &bundle, "back"]);
    assert_eq!(read(&world.dir.path().join("back/c.txt")), "new");
    assert_eq!(read(&world.dir.path().join("back/sub/b.txt")), "two");

    let err = world.trees.prepare(&Request::new(world.dir.path(), "all"));
    assert!(matches!(err, Err(TreeError::ContainsUs { .. })));
}

#[test]
fn a_nested_session_starts_in_its_parents_directory_and_has_the_same_primary() {
    let world = World::new();
    let parent = world.prepare("parent");
    write(&parent.path, "p.txt", "p");
    let tip = commit(&parent.path, "of the parent");
    let before = users_part(&world.repo);
    let child = world.trees.prepare(&Request::new(parent.path.join("src"), "child")).unwrap();
    assert_eq!(child.intent.base.as_deref(), Some(tip.as_str()));
    assert_eq!(child.cwd, child.path.join("src"));
    assert_eq!(read(&child.path.join("p.txt")), "p");
    assert_eq!(difference(&before, &users_part(&world.repo)), [] as [&Path; 0]);
    world.trees.park(&parent.intent, "wip", 1).unwrap();
    world.trees.remove(&parent.intent).unwrap();
    // It depends neither on the parent's objects nor on those that the primary removes.
    git(&world.repo, &["checkout", "-q", "--orphan", "empty"]);
    git(&world.repo, &["commit", "-qm", "afresh"]);
    git(&world.repo, &["branch", "-q", "-D", "main", "overmind/parent"]);
    git(&world.repo, &["reflog", "expire", "--expire=now", "--all"]);
    git(&world.repo, &["gc", "-q", "--prune=now"]);
    git(&child.path, &["fsck", "--no-dangling"]);
    write(&child.path, "c.txt", "c");
    commit(&child.path, "of the child");
    world.trees.park(&child.intent, "wip", 1).unwrap();
    let log = git(&world.repo, &["log", "--format=%s", "overmind/child"]);
    assert_eq!(log, "of the child\nof the parent\nfirst");
}

#[test]
fn a_failed_creation_leaves_nothing_and_a_crash_is_cleaned_up_at_the_next_start() {
    let world = World::new();
    let object = git(&world.repo, &["rev-parse", "HEAD:a.txt"]);
    let object = world.repo.join(".git/objects").join(&object[..2]).join(&object[2..]);
    let kept = std::fs::read(&object).unwrap();
    std::fs::remove_file(&object).unwrap();
    assert!(world.trees.prepare(&Request::new(&world.repo, "s")).is_err());
    assert!(world.trees.list().unwrap().is_empty());
    std::fs::write(&object, kept).unwrap();

    let plan = world.trees.plan(&Request::new(&world.repo, "s")).unwrap();
    let place = plan.intent().place.as_path();
    let half = place.with_file_name(".making-s");
    assert!(!half.exists(), "left behind");
    write(&half, "tree/a.txt", "half");
    // Undone from the intent alone, twice, and by a start.
    world.trees.undo(plan.intent()).unwrap();
    world.trees.undo(plan.intent()).unwrap();
    assert!(!half.exists());
    write(&half, "tree/a.txt", "half");
    let World { dir, trees, repo } = world;
    assert!(matches!(
        Trees::open(&dir.path().join("data"), Git::default()),
        Err(TreeError::InUse { .. })
    ));
    drop(trees);
    let trees = Trees::open(&dir.path().join("data"), Git::default()).unwrap();
    assert!(!half.exists());
    assert_eq!(trees.prepare(&Request::new(&repo, "s")).unwrap().intent, *plan.intent());
}

#[test]
fn passwords_in_urls_are_not_given_to_a_session() {
    let world = World::new();
    git(&world.repo, &["remote", "add", "origin", "https://me:s3cret@localhost/x.git"]);
    let made = world.prepare("s");
    assert_eq!(git(&made.path, &["remote", "get-url", "origin"]), "https://me@localhost/x.git");
    assert_eq!(made.warnings, [Warning::PasswordLeftBehind]);
    let found = everything(made.intent.place.as_path())
        .into_iter()
        .find(|(_, (_, text))| text.windows(6).any(|part| part == b"s3cret"));
    assert_eq!(found, None);
}

#[test]
fn garbage_collection_of_the_primary_keeps_a_sessions_base() {
    let world = World::new();
    write(&world.repo, "lost.txt", "only in the amended commit\n");
    commit(&world.repo, "to be amended");
    let made = world.prepare("s");
    git(&world.repo, &["reset", "-q", "--hard", "HEAD~1"]);
    git(&world.repo, &["reflog", "expire", "--expire=now", "--all"]);
    git(&world.repo, &["gc", "-q", "--prune=now"]);
    git(&made.path, &["checkout", "-q", "HEAD", "--", "lost.txt"]);
    git(&made.path, &["fsck", "--no-dangling"]);
    // Once nobody borrows it, it may be removed.
    world.trees.remove(&made.intent).unwrap();
    assert_eq!(git(&world.repo, &["for-each-ref", "refs/overmind"]), "");
    git(&world.repo, &["gc", "-q", "--prune=now"]);
    let base = made.intent.base.unwrap();
    assert!(try_git(&world.repo, &["cat-file", "-e", &base]).is_err());
}

#[test]
fn two_daemons_with_one_base_commit_release_it_separately() {
    let world = World::new();
    write(&world.repo, "lost.txt", "only in the amended commit\n");
    commit(&world.repo, "to be amended");
    let made = world.prepare("s");
    let other = Trees::open(&world.dir.path().join("other"), Git::default()).unwrap();
    let theirs = other.prepare(&Request::new(&world.repo, "s")).unwrap();
    git(&world.repo, &["reset", "-q", "--hard", "HEAD~1"]);
    assert_eq!(git(&world.repo, &["for-each-ref", "refs/overmind/base"]).lines().count(), 2);
    world.trees.remove(&made.intent).unwrap();
    world.trees.sweep(0).unwrap();
    git(&world.repo, &["reflog", "expire", "--expire=now", "--all"]);
    git(&world.repo, &["gc", "-q", "--prune=now"]);
    git(&theirs.path, &["fsck", "--no-dangling"]);
    assert_eq!(other.unused_bases().unwrap(), []);
    other.remove(&theirs.intent).unwrap();
    assert_eq!(git(&world.repo, &["for-each-ref", "refs/overmind"]), "");
}
