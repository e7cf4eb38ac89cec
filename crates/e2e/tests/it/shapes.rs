//! Repositories in every shape that people have them: git works in a run's tree, and what is done with
//! its work leaves the user's checkout as git itself would.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::commands::Commands;
use crate::home::{Done, Home};

/// Shapes that are tried at once.
const AT_ONCE: usize = 4;
/// The owner of the other repository.
const OTHER: u32 = 4242;

/// Of all that git reads of a user: whose repositories it may look into. Said on the command line it is
/// not passed on to the other side of a fetch.
fn config() -> &'static Path {
    static FILE: OnceLock<tempfile::NamedTempFile> = OnceLock::new();
    let made = FILE.get_or_init(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[safe]\ndirectory = *\n").unwrap();
        file
    });
    made.path()
}

/// Git as a user runs it, with a fixed time: the same commands make the same commits.
fn try_git(dir: &Path, args: &[&str]) -> Result<String, String> {
    let date = "@1767225600 +0000";
    let output = Command::new("git")
        .args(["-c", "user.name=Ann", "-c", "user.email=ann@localhost"])
        .args(["-c", "protocol.file.allow=always", "-c", "diff.autoRefreshIndex=false"])
        .env("GIT_OPTIONAL_LOCKS", "0")
        .args(args)
        .envs([("GIT_AUTHOR_DATE", date), ("GIT_COMMITTER_DATE", date)])
        .envs([("GIT_SEQUENCE_EDITOR", "sed -i s/^pick/edit/"), ("GIT_EDITOR", "true")])
        .envs([("GIT_CONFIG_GLOBAL", config()), ("GIT_CONFIG_NOSYSTEM", Path::new("1"))])
        .current_dir(dir)
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap().trim_end().to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn git(dir: &Path, args: &[&str]) -> String {
    try_git(dir, args).unwrap_or_else(|err| panic!("git {args:?} in {}: {err}", dir.display()))
}

fn write(dir: &Path, path: &str, text: &str) {
    let path = dir.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn commit(dir: &Path, message: &str) {
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-qm", message]);
}

/// A repository with two commits; `attributes` are those of its files.
fn plain(world: &Path, name: &str, attributes: &str) -> PathBuf {
    let dir = world.join(name);
    std::fs::create_dir(&dir).unwrap();
    git(&dir, &["init", "-q", "-b", "main"]);
    write(&dir, "story.txt", "once\n");
    write(&dir, "src/deep/lib.rs", "fn f() {}\n");
    write(&dir, "docs/page.md", "words\n");
    if !attributes.is_empty() {
        write(&dir, ".gitattributes", attributes);
    }
    commit(&dir, "first");
    write(&dir, "story.txt", "once upon\n");
    commit(&dir, "second");
    dir
}

/// A clone of a repository beside it, whose upstream belongs to another user.
fn clone(world: &Path, args: &[&str]) -> PathBuf {
    let upstream = plain(world, "upstream", "");
    git(&upstream, &["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", upstream.display());
    let from = if args.contains(&"--shared") { "upstream" } else { &url };
    git(world, &[&["clone", "-q"], args, &[from, "app"]].concat());
    world.join("app")
}

fn linked(world: &Path) -> PathBuf {
    let main = plain(world, "main", "");
    git(&main, &["worktree", "add", "-q", "-b", "side", "../app"]);
    world.join("app")
}

fn sparse(world: &Path) -> PathBuf {
    let app = plain(world, "app", "");
    git(&app, &["sparse-checkout", "set", "--cone", "src"]);
    assert!(!app.join("docs").exists());
    app
}

fn submodules(world: &Path) -> PathBuf {
    let (lib, app) = (plain(world, "lib", ""), plain(world, "app", ""));
    // The commit is equal wherever it was created.
    git(&app, &["-c", "core.symlinks=true", "submodule", "add", "-q", "../lib", "vendor/lib"]);
    assert!(lib.exists() && app.join("vendor/lib/story.txt").exists());
    commit(&app, "a submodule");
    app
}

/// A pointer, and no program that reads it.
fn lfs(world: &Path) -> PathBuf {
    let app = plain(world, "app", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:\
                   4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    write(&app, "large.bin", pointer);
    commit(&app, "a large file");
    app
}

/// Like the refusal of such a repository: it names its working tree.
fn named(app: &Path) {
    git(app, &["config", "core.worktree", app.to_str().unwrap()]);
}

fn symlinked(world: &Path) -> PathBuf {
    let app = plain(world, "app", "");
    std::fs::rename(app.join(".git"), world.join("elsewhere.git")).unwrap();
    std::os::unix::fs::symlink("../elsewhere.git", app.join(".git")).unwrap();
    named(&app);
    app
}

fn separate(world: &Path) -> PathBuf {
    let app = plain(world, "app", "");
    let dir = world.join("kept.git");
    git(&app, &["init", "-q", "--separate-git-dir", dir.to_str().unwrap()]);
    named(&app);
    assert!(app.join(".git").is_file());
    app
}

fn line_ends(world: &Path) -> PathBuf {
    let app = plain(world, "app", "* text=auto eol=crlf\n");
    for file in ["story.txt", "docs/page.md", "src/deep/lib.rs"] {
        std::fs::remove_file(app.join(file)).unwrap();
    }
    git(&app, &["checkout", "-q", "--", "."]);
    assert!(std::fs::read_to_string(app.join("story.txt")).unwrap().ends_with("upon\r\n"));
    app
}

fn detached(world: &Path) -> PathBuf {
    let app = plain(world, "app", "");
    git(&app, &["checkout", "-q", "--detach"]);
    app
}

/// It has stopped after its first commit, and continues with `git rebase --continue`.
fn rebasing(world: &Path) -> PathBuf {
    let app = plain(world, "app", "");
    git(&app, &["checkout", "-q", "-b", "topic"]);
    for number in ["one", "two"] {
        write(&app, number, number);
        commit(&app, number);
    }
    git(&app, &["rebase", "-q", "-i", "HEAD~2"]);
    assert!(git(&app, &["status"]).contains("rebase in progress"));
    app
}

/// Owned by another user, if this process may change owners.
fn others(world: &Path) -> PathBuf {
    let app = plain(world, "app", "");
    if rustix::process::geteuid().is_root() {
        give(&app);
    }
    app
}

fn give(path: &Path) {
    std::os::unix::fs::lchown(path, Some(OTHER), Some(OTHER)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        for entry in std::fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

/// Why a merge into the checked-out branch is refused; empty if it succeeded.
type Refused = &'static str;

type Shape = (&'static str, fn(&Path) -> PathBuf, Refused);

const SHAPES: &[Shape] = &[
    ("plain", |world| plain(world, "app", ""), ""),
    ("linked", linked, ""),
    ("reference", |world| clone(world, &["--reference", "upstream"]), ""),
    ("shared", |world| clone(world, &["--shared"]), ""),
    ("shallow", |world| clone(world, &["--depth=1"]), ""),
    ("partial", |world| clone(world, &["--filter=blob:none"]), ""),
    ("sparse", sparse, ""),
    ("submodules", submodules, ""),
    ("lfs", lfs, ""),
    ("symlinked", symlinked, ""),
    ("separate", separate, ""),
    ("line-ends", line_ends, ""),
    ("detached", detached, "no branch checked out"),
    ("rebasing", rebasing, "no branch checked out"),
    ("others", others, ""),
];

/// The checkout as a user sees it, with git and without it.
fn seen(dir: &Path) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let head = try_git(dir, &["symbolic-ref", "-q", "HEAD"]).unwrap_or_default();
    seen.insert("[head]".to_owned(), head);
    for args in [
        &["rev-parse", "HEAD"][..],
        &["status", "--porcelain=v2", "--ignored"],
        &["ls-files", "-s", "-t"],
        &["stash", "list"],
        &["diff", "HEAD"],
    ] {
        seen.insert(format!("[{}]", args.join(" ")), git(dir, args));
    }
    files(dir, dir, &mut seen);
    seen
}

fn files(top: &Path, dir: &Path, seen: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() == ".git" {
            continue;
        }
        if path.is_dir() {
            files(top, &path, seen);
            continue;
        }
        let mode = path.metadata().unwrap().mode();
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        let name = path.strip_prefix(top).unwrap().display().to_string();
        seen.insert(name, format!("{mode:o} {text}"));
    }
}

const WORK: &str = "git status --porcelain && git log -1 --format=%s && echo more >> story.txt && \
                    git diff HEAD --stat && git add story.txt && git commit -qm 'in the run' && \
                    echo git-$((6*7))-works";

struct Case<'a> {
    home: &'a Commands,
    name: &'a str,
    app: PathBuf,
    /// The same once more, for git alone.
    twin: PathBuf,
}

impl Case<'_> {
    fn run(&self, args: &[&str]) -> Done {
        crate::home::done(self.home.0.command(args).current_dir(&self.app).output().unwrap())
    }

    /// A run does its work with git; the same in a built-in agent and in a command.
    fn works(&self, run: &str, args: &[&str]) -> PathBuf {
        let started = self.run(&[&["run", "--name", run, "--wait"], args].concat());
        let log = self.run(&["logs", run]).out;
        assert!(log.contains("git-42-works"), "{run}: {log}\n{}{}", started.out, started.err);
        let made = self.home.named(run);
        let changes = &made["room"]["changes"];
        assert_eq!(changes["files"], json!(2), "{run}: {made}");
        let work = self.run(&["work", run]).ok();
        assert!(work.out.contains("+more") && work.out.contains("new.txt"), "{run}: {}", work.out);
        made["room"]["worktree"].as_str().unwrap().into()
    }

    fn check(&self, refused: Refused) {
        let before = seen(&self.app);
        assert_eq!(before, seen(&self.twin), "{}: made the same twice", self.name);
        let (agent, command) = (format!("a-{}", self.name), format!("c-{}", self.name));
        let tree = self.works(&agent, &["coder", "go"]);
        let line = format!("{WORK} && echo new > new.txt");
        self.works(&command, &["--sandbox", "namespace", &line]);
        assert_eq!(before, seen(&self.app), "{}: the checkout is as it was", self.name);

        let new = tree.join("new.txt");
        assert!(new.exists());
        let undone = self.run(&["undo", &agent, "-o", "json"]).ok().json();
        assert!(!new.exists(), "{}: {undone}", self.name);
        self.run(&["undo", &agent, "--to", undone["saved"].as_str().unwrap()]).ok();
        assert!(new.exists(), "{}", self.name);

        let branch = format!("pr-{}", self.name);
        self.run(&["done", &command, "--pr-branch", &branch]).ok();
        assert_eq!(before, seen(&self.app), "{}: a branch changes no file", self.name);
        assert_eq!(
            git(&self.app, &["log", "--format=%s", "-1", &format!("{branch}~1")]),
            "in the run"
        );
        assert_eq!(git(&self.app, &["show", &format!("{branch}:new.txt")]), "new");

        if refused.is_empty() {
            self.run(&["done", &agent, "--merge"]).ok();
            let from = self.app.to_str().unwrap();
            git(&self.twin, &["fetch", "-q", "--no-tags", from, "HEAD"]);
            git(&self.twin, &["merge", "-q", "--ff-only", "FETCH_HEAD"]);
        } else {
            let said = self.run(&["done", &agent, "--merge"]).fails(5);
            assert!(said.err.contains(refused), "{}: {}", self.name, said.err);
            if self.name == "rebasing" {
                // The rebase will move it.
                let said = self.run(&["done", &agent, "--merge", "--into", "topic"]).fails(5);
                said.says("a rebase of this branch is in progress");
            }
            self.run(&["done", &agent, "--pr-branch", &format!("{branch}-2")]).ok();
        }
        assert_eq!(seen(&self.app), seen(&self.twin), "{}: as git would", self.name);
        let git_dir = git(&self.app, &["rev-parse", "--absolute-git-dir"]);
        git(Path::new(&git_dir), &["fsck", "--connectivity-only", "--no-dangling"]);
    }
}

fn owners(path: &Path, found: &mut Vec<PathBuf>) {
    if path.symlink_metadata().unwrap().uid() != OTHER {
        found.push(path.to_owned());
    }
    if path.is_dir() && !path.is_symlink() {
        for entry in std::fs::read_dir(path).unwrap() {
            owners(&entry.unwrap().path(), found);
        }
    }
}

fn check(home: &Commands, (name, make, refused): &Shape) {
    let worlds = [home.0.work().join(name), home.0.work().join(format!("{name}-twin"))];
    let [app, twin] = worlds.map(|world| {
        std::fs::create_dir(&world).unwrap();
        make(&world)
    });
    let case = Case { home, name, app, twin };
    case.check(refused);
    if *name == "others" && rustix::process::geteuid().is_root() {
        let mut found = Vec::new();
        owners(&case.app, &mut found);
        assert_eq!(found, [] as [&Path; 0], "what is written there is the owner's");
    }
}

#[test]
fn git_works_in_runs_and_checkouts_are_unchanged_in_every_shape_of_repository() {
    let mut home = Commands(Home::new());
    let identity = "[user]\nname = Ann\nemail = ann@localhost\n";
    std::fs::write(home.0.path().join(".gitconfig"), identity).unwrap();
    home.0.start(&["--listen", "none"], &[]);
    let turns = json!([
        {"calls": [{"name": "run_shell", "args": {"command": WORK, "allow_write": true, "write_subdir": "."}}]},
        {"calls": [{"name": "write_file", "args": {"path": "new.txt", "content": "new\n"}}]},
        {"text": "done"},
    ]);
    home.0.scripted("coder", &turns, &[]);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(shape) = SHAPES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(&home, shape);
                }
            });
        }
    });
    home.run(&["prune"]).ok();
    home.check();
}
