//! Large files of git-lfs: from the primary's own store, and back into it, without a network.

use std::collections::HashSet;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overmind_core::off_limits::{FileId, OffLimits, Own};
use overmind_testkit::real::counterpart;
use overmind_workspace::Trees;
use overmind_workspace::git::Git;
use overmind_workspace::tree::{MergeInto, Merged, Request, Warning};

use crate::tree_repo::{World, commit, git, read, write};

/// A repository whose `*.bin` are kept by git-lfs, and trees that know the program. The user's git has
/// the filters in its own configuration, as `git lfs install --local` writes them.
fn world() -> Option<(World, Trees)> {
    let program = PathBuf::from(counterpart("GIT_LFS")?);
    let beside = program.parent().unwrap().to_str().unwrap().to_owned();
    let world = World::new();
    for (key, value) in [
        ("filter.lfs.clean", "clean -- %f"),
        ("filter.lfs.smudge", "smudge -- %f"),
        ("filter.lfs.process", "filter-process"),
    ] {
        git(&world.repo, &["config", key, &format!("{} {value}", program.display())]);
    }
    git(&world.repo, &["config", "filter.lfs.required", "true"]);
    // Nothing listens there: a request to the server fails.
    git(&world.repo, &["config", "lfs.url", "http://127.0.0.1:9/none"]);
    write(&world.repo, ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    for number in 0..3 {
        write(
            &world.repo,
            &format!("data/{number}.bin"),
            &format!("large {number}\n").repeat(1000),
        );
    }
    commit(&world.repo, "large files");
    let git = Git::new(
        "git".into(),
        format!("{beside}:/usr/local/bin:/usr/bin:/bin").into(),
        Duration::from_mins(1),
    );
    let trees = Trees::open(&world.dir.path().join("data-lfs"), git).unwrap();
    Some((world, trees))
}

#[test]
fn needs_git_lfs_large_files_are_checked_out_and_saved_with_their_content() {
    let Some((world, trees)) = world() else { return };
    assert!(git(&world.repo, &["show", "HEAD:data/0.bin"]).starts_with("version https://git-lfs"));
    let made = trees.prepare(&Request::new(&world.repo, "s")).unwrap();
    assert_eq!(made.warnings, []);
    assert_eq!(read(&made.path.join("data/0.bin")), read(&world.repo.join("data/0.bin")));
    assert!(trees.status(&made.intent).unwrap().is_saved());
    let text = "changed\n".repeat(1000);
    write(&made.path, "data/0.bin", &text);
    write(&made.path, "new.bin", &text.repeat(2));
    trees.park(&made.intent, "wip", 5).unwrap();
    for file in ["data/0.bin", "new.bin"] {
        let pointer = git(&world.repo, &["show", &format!("overmind/s:{file}")]);
        assert!(pointer.starts_with("version https://git-lfs"), "{pointer}");
        let id = pointer.lines().find_map(|line| line.strip_prefix("oid sha256:")).unwrap();
        let stored = world.repo.join(".git/lfs/objects").join(&id[..2]).join(&id[2..4]).join(id);
        assert!(stored.is_file(), "{}", stored.display());
    }
    let into = MergeInto { branch: None, commit_rest: true, message: "merge", now: 9, home: None };
    let merged = trees.merge(&made.intent, &into).unwrap();
    assert!(matches!(merged, Merged::Forward { .. }));
    assert_eq!(read(&world.repo.join("data/0.bin")), text);
    assert_eq!(git(&world.repo, &["status", "--porcelain"]), "");
    trees.remove(&made.intent).unwrap();
}

#[test]
fn needs_git_lfs_missing_objects_stay_pointers_and_are_reported() {
    let Some((world, trees)) = world() else { return };
    std::fs::remove_dir_all(world.repo.join(".git/lfs/objects")).unwrap();
    let made = trees.prepare(&Request::new(&world.repo, "s")).unwrap();
    assert_eq!(made.warnings, [Warning::LargeFilesMissing { files: 3 }]);
    assert!(read(&made.path.join("data/1.bin")).starts_with("version https://git-lfs"));
    assert!(trees.status(&made.intent).unwrap().is_saved());
    trees.remove(&made.intent).unwrap();
}

/// A server with a single file of its own.
#[derive(Debug)]
struct Server(PathBuf);

impl Own for Server {
    fn refusal(&self, _: &Path) -> Option<String> {
        None
    }

    fn all(&self) -> HashSet<FileId> {
        let found = self.0.metadata().unwrap();
        [FileId { device: found.dev(), inode: found.ino() }].into()
    }

    fn withheld(&self, _: &Path) -> Result<Vec<PathBuf>, String> {
        Ok(Vec::new())
    }
}

#[test]
fn needs_git_lfs_a_foreign_or_wrong_object_store_is_not_used() {
    let Some((world, trees)) = world() else { return };
    let pointer = git(&world.repo, &["show", "HEAD:data/0.bin"]);
    let id = pointer.lines().find_map(|line| line.strip_prefix("oid sha256:")).unwrap().to_owned();
    let (lfs, elsewhere) = (world.repo.join(".git/lfs"), world.dir.path().join("elsewhere"));
    let object = lfs.join("objects").join(&id[..2]).join(&id[2..4]).join(&id);
    let key = world.dir.path().join("key");
    std::fs::copy(&object, &key).unwrap();
    let trees = trees.keeping_out(OffLimits::new(Arc::new(Server(key.clone()))));
    let others = |text: &str| world.dir.path().join(text);
    let said = |session: &str, unsound: usize| {
        let made = trees.prepare(&Request::new(&world.repo, session)).unwrap();
        assert_eq!(made.warnings, [Warning::LargeFilesUnsound { files: unsound }], "{session}");
        assert_eq!(read(&made.path.join("data/0.bin")).trim_end(), pointer.trim_end(), "{session}");
        assert!(trees.status(&made.intent).unwrap().is_saved(), "{session}");
        // Nor did git-lfs link it into our store: no sandbox runs if a server file has several names.
        let names = if session == "an-object-is-the-servers-own" { 2 } else { 1 };
        assert_eq!(key.metadata().unwrap().nlink(), names, "{session}");
        trees.remove(&made.intent).unwrap();
    };

    std::fs::rename(&lfs, &elsewhere).unwrap();
    symlink(&elsewhere, &lfs).unwrap();
    said("lfs-is-a-link", 3);
    std::fs::remove_file(&lfs).unwrap();
    std::fs::create_dir(&lfs).unwrap();
    symlink(elsewhere.join("objects"), lfs.join("objects")).unwrap();
    said("objects-is-a-link", 3);
    std::fs::remove_dir_all(&lfs).unwrap();
    std::fs::rename(&elsewhere, &lfs).unwrap();

    // The contents are the right ones each time, so it is the way to them that is refused.
    std::fs::rename(&object, others("object")).unwrap();
    symlink(others("object"), &object).unwrap();
    said("an-object-is-a-link", 1);
    std::fs::remove_file(&object).unwrap();
    std::fs::hard_link(&key, &object).unwrap();
    said("an-object-is-the-servers-own", 1);
    std::fs::remove_file(&object).unwrap();
    std::fs::write(&object, "another file\n").unwrap();
    said("an-object-is-another-file", 1);

    // And nothing of that is left.
    std::fs::remove_file(&object).unwrap();
    std::fs::rename(others("object"), &object).unwrap();
    let made = trees.prepare(&Request::new(&world.repo, "whole")).unwrap();
    assert_eq!(made.warnings, []);
    assert_eq!(read(&made.path.join("data/0.bin")), "large 0\n".repeat(1000));
    trees.remove(&made.intent).unwrap();
}

#[test]
fn needs_git_lfs_merged_work_does_not_change_the_users_lfs_server() {
    let Some((world, trees)) = world() else { return };
    git(&world.repo, &["config", "--unset", "lfs.url"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/stolen", listener.local_addr().unwrap());
    let made = trees.prepare(&Request::new(&world.repo, "s")).unwrap();
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 16\n",
        "07".repeat(32)
    );
    write(&made.path, ".lfsconfig", &format!("[lfs]\n\turl = {url}\n"));
    write(&made.path, "z.bin", &pointer);
    commit(&made.path, "large, and not there");
    let into = MergeInto { branch: None, commit_rest: true, message: "merge", now: 9, home: None };
    trees.merge(&made.intent, &into).unwrap();
    let asked = listener.accept().map(drop).unwrap_err();
    assert_eq!(asked.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(read(&world.repo.join("z.bin")), pointer);
    trees.remove(&made.intent).unwrap();
}

#[test]
fn without_git_lfs_large_files_are_saved_as_pointers() {
    let world = World::new();
    write(&world.repo, ".gitattributes", "*.bin filter=lfs -text\n");
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5\n",
        "ab".repeat(32)
    );
    write(&world.repo, "x.bin", &pointer);
    commit(&world.repo, "a pointer");
    let nowhere: PathBuf = world.dir.path().join("bin");
    std::fs::create_dir(&nowhere).unwrap();
    let program = ["/usr/local/bin/git", "/usr/bin/git", "/bin/git"].map(Path::new);
    let program = program.into_iter().find(|path| path.is_file()).unwrap();
    std::os::unix::fs::symlink(program, nowhere.join("git")).unwrap();
    let git_alone = Git::new(nowhere.join("git"), nowhere.clone().into(), Duration::from_mins(1));
    let trees = Trees::open(&world.dir.path().join("data-2"), git_alone).unwrap();
    let made = trees.prepare(&Request::new(&world.repo, "s")).unwrap();
    assert_eq!(made.warnings, [Warning::LargeFilesMissing { files: 1 }]);
    write(&made.path, "a.txt", "changed");
    trees.park(&made.intent, "wip", 5).unwrap();
    assert_eq!(git(&world.repo, &["show", "overmind/s:x.bin"]), pointer.trim_end());
}
