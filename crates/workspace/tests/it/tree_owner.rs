//! A daemon that runs as root, for another user.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use overmind_workspace::tree::{MergeInto, Merged};

use crate::tree_repo::{World, commit, everything, git, read, write};

fn give(dir: &Path, user: u32) {
    std::os::unix::fs::lchown(dir, Some(user), Some(user)).unwrap();
    for path in everything(dir).into_keys() {
        std::os::unix::fs::lchown(path, Some(user), Some(user)).unwrap();
    }
}

/// For an ordinary user this is their own repository, and the same rules apply.
#[test]
fn files_in_a_users_repository_belong_to_the_user() {
    let world = World::new();
    let root = rustix::process::geteuid().is_root();
    let user = if root { 4242 } else { rustix::process::geteuid().as_raw() };
    if root {
        give(&world.repo, user);
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(world.dir.path(), open).unwrap();
    }
    let made = world.prepare("s");
    for number in 0..150 {
        write(&made.path, &format!("many/{number}"), &number.to_string());
    }
    commit(&made.path, "more than a few objects");
    write(&made.path, "a.txt", "two\n");
    git(&made.path, &["stash", "-q"]);
    write(&made.path, "a.txt", "three\n");
    world.trees.park(&made.intent, "wip", 5).unwrap();
    world.trees.pr_branch(&made.intent, Some("feature/x")).unwrap();
    let into = MergeInto { branch: None, commit_rest: true, message: "merge", now: 9, home: None };
    let merged = world.trees.merge(&made.intent, &into).unwrap();
    assert!(matches!(merged, Merged::Forward { .. }));
    assert_eq!(read(&world.repo.join("a.txt")), "three\n");
    world.trees.discard(&made.intent, 10).unwrap();
    world.trees.remove(&made.intent).unwrap();
    world.trees.sweep(i64::MAX).unwrap();
    let others: Vec<_> = everything(&world.repo)
        .into_keys()
        .filter(|path| std::fs::symlink_metadata(path).unwrap().uid() != user)
        .collect();
    assert_eq!(others, [] as [&Path; 0]);
}
