//! Git actions of a session that must not reach the primary or this program.

use std::os::unix::fs::symlink;
use std::path::Path;

use overmind_core::room::RoomReach;
use overmind_workspace::pool::PoolSize;
use overmind_workspace::tree::{MergeInto, Merged, Options, Request, TreeError};

use crate::tree_repo::{
    World, commit, difference, everything, git, read, script, try_git, users_part, write,
};

const MERGE: MergeInto<'static> =
    MergeInto { branch: None, commit_rest: true, message: "merge", now: 9, home: None };

/// A mark that appears when something ran that must not.
fn trap(world: &World) -> (std::path::PathBuf, String) {
    let mark = world.dir.path().join("it-ran");
    let command = format!("touch {}; cat", mark.display());
    (mark, command)
}

#[test]
fn git_commands_of_a_session_never_change_the_primary() {
    let world = World::new();
    git(&world.repo, &["branch", "other"]);
    git(&world.repo, &["worktree", "add", "-q", "-b", "linked", "../linked"]);
    write(&world.repo, "a.txt", "uncommitted\n");
    git(&world.repo, &["stash", "-q"]);
    write(&world.repo, "a.txt", "uncommitted again\n");
    let made = world.prepare("hostile");
    let before = everything(&world.repo);
    let t = &made.path;
    for attempt in [
        &["branch", "-D", "main"][..],
        &["branch", "-f", "other", "HEAD~0"],
        &["update-ref", "-d", "refs/heads/main"],
        &["update-ref", "-d", "refs/heads/linked"],
        &["checkout", "-q", "main"],
        &["commit", "-q", "--allow-empty", "-m", "on main"],
        &["checkout", "-q", "-B", "other"],
        &["config", "core.hooksPath", "/evil"],
        &["config", "core.fsmonitor", "/evil"],
        &["config", "--worktree", "core.worktree", "/"],
        &["worktree", "list"],
        &["worktree", "remove", "--force", "../linked"],
        &["worktree", "prune", "--expire=now"],
        &["stash", "list"],
        &["stash", "clear"],
        &["reflog", "expire", "--expire=now", "--all"],
        &["gc", "-q", "--prune=now", "--aggressive"],
        &["repack", "-a", "-d", "-q"],
        &["prune", "--expire=now"],
        &["pack-refs", "--all"],
        &["tag", "v1"],
        &["notes", "add", "-m", "x"],
        &["replace", "HEAD", "HEAD~0"],
        &["remote", "add", "x", ".."],
        &["push", "-q", "x", ":main"],
        &["submodule", "deinit", "--all", "-f"],
        &["maintenance", "run"],
        &["clean", "-fdxq"],
        &["rm", "-rfq", "."],
        &["read-tree", "--empty"],
    ] {
        // Whether git does it or not is its affair.
        let _ = try_git(t, attempt);
    }
    std::fs::remove_dir_all(t.join(".git")).unwrap();
    for attempt in [&["add", "-A"][..], &["commit", "-m", "x"], &["config", "x.y", "z"]] {
        let mut command = std::process::Command::new("git");
        command.current_dir(t).args(attempt).envs(made.env.iter().map(|(k, v)| (k, v)));
        assert!(!command.output().unwrap().status.success(), "found a repository above its tree");
    }
    assert_eq!(difference(&before, &everything(&world.repo)), [] as [&Path; 0]);
    git(&world.repo, &["fsck", "--no-dangling"]);
    assert_eq!(git(&world.repo, &["stash", "list"]).lines().count(), 1);
}

/// Every way in which a repository can make git run a program.
fn arm(tree: &Path, git_dir: &Path, command: &str, mark: &Path) {
    let hooks = git_dir.join("hooks");
    for hook in [
        "post-checkout",
        "post-commit",
        "pre-commit",
        "post-merge",
        "pre-merge-commit",
        "reference-transaction",
        "post-index-change",
        "fsmonitor-watchman",
        "pre-auto-gc",
        "update",
        "post-update",
        "pre-receive",
        "commit-msg",
        "post-rewrite",
    ] {
        script(&hooks.join(hook), &format!("touch {}", mark.display()));
    }
    let text = read(&git_dir.join("config"));
    let command = command.replace('"', "\\\"");
    let evil = format!(
        "{text}\n[core]\n fsmonitor = \"{command}\"\n hooksPath = {hooks}\n sshCommand = \"{command}\"\n \
         pager = \"{command}\"\n editor = \"{command}\"\n alternateRefsCommand = \"{command}\"\n \
         attributesFile = {attributes}\n\
         [filter \"evil\"]\n clean = \"{command}\"\n smudge = \"{command}\"\n process = \"{command}\"\n required = true\n\
         [filter \"lfs\"]\n clean = \"{command}\"\n smudge = \"{command}\"\n process = \"{command}\"\n\
         [diff \"evil\"]\n textconv = \"{command}\"\n command = \"{command}\"\n\
         [diff]\n external = \"{command}\"\n\
         [merge \"evil\"]\n driver = \"{command}\"\n\
         [gpg]\n program = \"{command}\"\n[commit]\n gpgSign = true\n\
         [uploadpack]\n packObjectsHook = \"{command}\"\n\
         [credential]\n helper = \"!{command}\"\n[alias]\n status = \"!{command}\"\n\
         [submodule]\n recurse = true\n[extensions]\n worktreeConfig = true\n",
        hooks = hooks.display(),
        attributes = tree.join(".gitattributes").display(),
    );
    std::fs::write(git_dir.join("config"), &evil).unwrap();
    std::fs::write(git_dir.join("config.worktree"), &evil).unwrap();
    write(tree, ".gitattributes", "* filter=evil diff=evil merge=evil\n*.bin filter=lfs\n");
}

#[test]
fn the_server_runs_no_program_of_a_repository() {
    let world = World::new();
    let (mark, command) = trap(&world);
    // Git reads a submodule and a nested repository with their own configuration.
    let lib = world.dir.path().join("lib");
    std::fs::create_dir(&lib).unwrap();
    git(&lib, &["init", "-q", "-b", "main"]);
    write(&lib, "file", "lib");
    commit(&lib, "x");
    git(&world.repo, &["submodule", "add", "-q", lib.to_str().unwrap(), "libs/one"]);
    let attributes = "* filter=evil diff=evil merge=evil\n";
    write(&world.repo, ".gitattributes", attributes);
    commit(&world.repo, "with a submodule");
    // The primary's own hooks and programs do not run either, but for its filters where its own files
    // are written: so in this test it has none.
    let primary_mark = mark.clone();
    for hook in ["post-checkout", "reference-transaction", "post-merge", "post-index-change"] {
        script(
            &world.repo.join(".git/hooks").join(hook),
            &format!("touch {}", primary_mark.display()),
        );
    }
    git(&world.repo, &["config", "core.fsmonitor", &command]);
    git(&world.repo, &["config", "core.alternateRefsCommand", &command]);
    git(&world.repo, &["status"]);
    assert!(mark.exists(), "the trap does not work");
    std::fs::remove_file(&mark).unwrap();

    world
        .trees
        .fill(
            &world.repo,
            &RoomReach::Any,
            &Options::default(),
            PoolSize { trees: 1, bytes: 1 << 30 },
        )
        .unwrap();
    let made = world.prepare("hostile");
    write(&made.path, "a.txt", "changed by the session\n");
    git(&made.path, &["commit", "-qam", "work"]);
    arm(&made.path, &made.path.join(".git"), &command, &mark);
    let sub = made.path.join("libs/one");
    arm(&sub, &made.path.join(".git/modules/libs/one"), &command, &mark);
    write(&sub, "file", "changed");
    let nested = made.path.join("nested");
    std::fs::create_dir(&nested).unwrap();
    git(&nested, &["init", "-q"]);
    write(&nested, "file", "x");
    commit(&nested, "nested");
    arm(&nested, &nested.join(".git"), &command, &mark);
    write(&nested, "file", "changed");
    write(&made.path, "x.bin", "large");
    let modules = "[submodule \"libs/one\"]\n path = libs/one\n url = x\n ignore = none\n";
    write(&made.path, ".gitmodules", modules);
    write(&made.path, ".lfsconfig", "[lfs]\n url = ext::x\n");
    let _ = std::fs::remove_file(&mark);

    world.trees.status(&made.intent).unwrap();
    let diff = world.trees.diff(&made.intent, 1 << 20).unwrap();
    assert!(!diff.patch.is_empty());
    world.trees.pr_branch(&made.intent, Some("feature/x")).unwrap();
    world.trees.park(&made.intent, "wip", 5).unwrap();
    write(&made.path, "b.txt", "more");
    let merged = world.trees.merge(&made.intent, &MERGE).unwrap();
    assert!(matches!(merged, Merged::Forward { .. }), "{merged:?}");
    assert!(matches!(world.trees.remove(&made.intent), Err(TreeError::Unsaved { .. })));
    world.trees.discard(&made.intent, 10).unwrap();
    world.trees.remove(&made.intent).unwrap();
    world
        .trees
        .fill(
            &world.repo,
            &RoomReach::Any,
            &Options::default(),
            PoolSize { trees: 1, bytes: 1 << 30 },
        )
        .unwrap();
    world.trees.sweep(i64::MAX).unwrap();
    assert!(!mark.exists(), "something ran");
}

#[test]
fn objects_that_git_refuses_are_not_published_but_recoverable() {
    let world = World::new();
    let made = world.prepare("s");
    let modules = "[submodule \"x\"]\n path = x\n url = x\n update = !touch x\n";
    write(&made.path, ".gitmodules", modules);
    write(&made.path, "work.txt", "work");
    world.trees.diff(&made.intent, 1000).unwrap();
    let before = users_part(&world.repo);
    let err = world.trees.park(&made.intent, "wip", 5).unwrap_err();
    assert!(err.to_string().contains("disallowed submodule update"), "{err}");
    assert_eq!(difference(&before, &users_part(&world.repo)), [] as [&Path; 0]);
    assert!(matches!(world.trees.remove(&made.intent), Err(TreeError::Unsaved { .. })));
    let gone = world.trees.discard(&made.intent, 6).unwrap();
    world.trees.remove(&made.intent).unwrap();
    // A file that git can clone, but for the check.
    let heads = git(world.dir.path(), &["bundle", "list-heads", &gone.saved_as]);
    assert!(heads.ends_with("refs/heads/overmind/s"), "{heads}");
}

#[test]
fn a_repository_replaced_by_a_redirect_reaches_no_other_repository() {
    for how in ["file", "link", "objects", "reference", "alternates", "loose"] {
        let world = World::new();
        // Another project, whose contents this session must not read.
        let other = world.dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        git(&other, &["init", "-q", "-b", "main"]);
        write(&other, "secret", "of another project");
        let secret = commit(&other, "secret");
        let made = world.prepare("hostile");
        write(&made.path, "work.txt", "work");
        let theirs = made.path.join(".git");
        match how {
            "file" => {
                std::fs::remove_dir_all(&theirs).unwrap();
                std::fs::write(&theirs, format!("gitdir: {}/.git\n", world.repo.display()))
                    .unwrap();
            }
            "link" => {
                std::fs::remove_dir_all(&theirs).unwrap();
                symlink(other.join(".git"), &theirs).unwrap();
            }
            "objects" => {
                std::fs::remove_dir_all(theirs.join("objects")).unwrap();
                symlink(other.join(".git/objects"), theirs.join("objects")).unwrap();
                std::fs::write(theirs.join("HEAD"), format!("{secret}\n")).unwrap();
            }
            "reference" => {
                std::fs::remove_file(theirs.join("refs/heads/overmind/hostile")).unwrap();
                symlink(
                    other.join(".git/refs/heads/main"),
                    theirs.join("refs/heads/overmind/hostile"),
                )
                .unwrap();
            }
            "alternates" => {
                let text = format!("{}\n", other.join(".git/objects").display());
                std::fs::write(theirs.join("objects/info/alternates"), text).unwrap();
                std::fs::write(theirs.join("HEAD"), format!("{secret}\n")).unwrap();
            }
            _ => {
                let (dir, file) = secret.split_at(2);
                let from = other.join(".git/objects").join(dir);
                symlink(from, theirs.join("objects").join(dir)).unwrap();
                assert!(theirs.join("objects").join(dir).join(file).exists());
                std::fs::write(theirs.join("HEAD"), format!("{secret}\n")).unwrap();
            }
        }
        let before = (users_part(&world.repo), everything(&other));
        let status = world.trees.status(&made.intent).unwrap();
        assert!(status.unreadable.is_some(), "{how}");
        assert!(!status.is_saved());
        world.trees.diff(&made.intent, 1000).unwrap();
        // The files are saved nevertheless, on the last known commit.
        let parked = world.trees.park(&made.intent, "wip", 5).unwrap();
        assert!(parked.unreadable.is_some());
        assert_eq!(git(&world.repo, &["show", "overmind/hostile:work.txt"]), "work");
        let mut after = users_part(&world.repo);
        after.retain(|path, _| {
            let text = path.to_string_lossy();
            !text.contains("overmind")
        });
        assert_eq!(difference(&before.0, &after), [] as [&Path; 0], "{how}");
        assert_eq!(difference(&before.1, &everything(&other)), [] as [&Path; 0], "{how}");
        assert!(try_git(&world.repo, &["cat-file", "-e", &secret]).is_err(), "{how}");
        // Unreadable work is not removed unless a person gives it up.
        assert!(
            matches!(world.trees.remove(&made.intent), Err(TreeError::Unsaved { .. })),
            "{how}"
        );
        world.trees.discard(&made.intent, 6).unwrap();
        world.trees.remove(&made.intent).unwrap();
        assert!(other.join("secret").exists() && world.repo.join("a.txt").exists());
    }
}

#[test]
fn links_and_pipes_in_a_tree_are_saved_and_never_followed() {
    let world = World::new();
    let outside = world.dir.path().join("outside");
    write(&outside, "secret", "secret");
    let made = world.prepare("links");
    symlink(&outside, made.path.join("out")).unwrap();
    std::fs::remove_dir_all(made.path.join("src")).unwrap();
    symlink(&outside, made.path.join("src")).unwrap();
    write(&outside, "lib.rs", "of the outside");
    let pipe = made.path.join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(made.path.join("s")).unwrap();
    world.trees.park(&made.intent, "wip", 5).unwrap();
    let listed = git(&world.repo, &["ls-tree", "-r", "overmind/links"]);
    let modes: Vec<&str> = listed.lines().map(|line| &line[..6]).collect();
    assert_eq!(modes, ["100644", "100644", "120000", "120000"], "{listed}");
    world.trees.remove(&made.intent).unwrap();
    assert_eq!(read(&outside.join("secret")), "secret");
}

#[test]
fn a_link_swapped_in_during_a_read_leads_to_nothing_outside() {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags};

    let world = World::new();
    let outside = world.dir.path().join("outside");
    let secret = "the secret of another\n";
    write(&outside, "key", secret);
    let made = world.prepare("swap");
    let (dir, link) = (made.path.join("sub"), made.path.join("link"));
    symlink(&outside, &link).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u64.. {
                if over.load(Ordering::Acquire) {
                    break;
                }
                // Anew and as long as the other's, so that git reads it again.
                if number % 300 == 0 {
                    let _ = rustix::fs::renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE);
                    if dir.symlink_metadata().is_ok_and(|at| at.is_symlink()) {
                        let _ =
                            rustix::fs::renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE);
                    }
                    let own = format!("{number:>width$}\n", width = secret.len() - 1);
                    let _ = std::fs::create_dir(&dir);
                    let _ = std::fs::write(dir.join("key"), own);
                }
                let _ = rustix::fs::renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE);
            }
        });
        let patches: Vec<String> = (0..60)
            // It may be refused, for git notices most of them.
            .filter_map(|_| world.trees.diff(&made.intent, 1 << 20).ok())
            .map(|diff| String::from_utf8_lossy(&diff.patch).into_owned())
            .collect();
        over.store(true, Ordering::Release);
        let leaked = patches.iter().find(|patch| patch.contains(secret.trim()));
        assert_eq!(leaked, None, "of {} patches", patches.len());
    });
    assert_eq!(read(&outside.join("key")), secret);
}

#[test]
fn a_link_or_a_pipe_in_place_of_a_reference_or_its_log_is_refused() {
    for (at, pipe) in [
        (".git/logs/refs/heads/main", false),
        (".git/logs/refs/heads/main", true),
        (".git/refs/overmind", false),
        (".git/refs/heads/overmind", false),
        (".git/logs/refs/heads/overmind", false),
    ] {
        let world = World::new();
        let outside = world.dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        write(&outside, "log", "as it was\n");
        let path = world.repo.join(at);
        let _ = std::fs::remove_file(&path);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        if pipe {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        } else if at.ends_with("main") {
            symlink(outside.join("log"), &path).unwrap();
        } else {
            symlink(&outside, &path).unwrap();
        }
        let prepared = world.trees.prepare(&Request::new(&world.repo, "s"));
        let refused = prepared.map(drop).unwrap_err().to_string();
        assert!(refused.contains(at.trim_start_matches(".git/")), "{at}: {refused}");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "{at}");
        assert_eq!(read(&outside.join("log")), "as it was\n", "{at}");
    }
}

#[test]
fn a_program_with_a_non_utf8_name_is_not_run_in_the_users_checkout() {
    use std::io::Write as _;

    let world = World::new();
    let (mark, command) = trap(&world);
    std::fs::write(world.repo.join(".gitattributes"), b"* filter=\xff\xfe\n").unwrap();
    commit(&world.repo, "attributes");
    let made = world.prepare("s");
    write(&made.path, "new.txt", "new\n");
    let config = world.repo.join(".git/config");
    let mut config = std::fs::OpenOptions::new().append(true).open(config).unwrap();
    config.write_all(b"[filter \"\xff\xfe\"]\n").unwrap();
    config
        .write_all(format!("\tclean = \"{command}\"\n\tsmudge = \"{command}\"\n").as_bytes())
        .unwrap();
    drop(config);
    let refused = world.trees.merge(&made.intent, &MERGE).unwrap_err().to_string();
    assert!(refused.contains("a name that is not UTF-8"), "{refused}");
    assert!(!mark.exists());
}

#[test]
fn a_tree_without_write_permission_is_removed() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let made = world.prepare("locked");
    write(&made.path, "cache.log/deep/x", "x");
    for dir in ["cache.log/deep", "cache.log"] {
        std::fs::set_permissions(made.path.join(dir), PermissionsExt::from_mode(0o000)).unwrap();
    }
    world.trees.remove(&made.intent).unwrap();
    assert!(!made.intent.place.as_path().exists());
    let trash = world.trees.root().join(".trash");
    assert_eq!(std::fs::read_dir(trash).unwrap().count(), 0);
}

#[test]
fn a_tree_above_the_limit_is_reported_and_not_saved_partly() {
    let world = World::new();
    let made = world.prepare("large");
    let file = std::fs::File::create(made.path.join("huge.bin")).unwrap();
    file.set_len(3 << 30).unwrap();
    let err = world.trees.park(&made.intent, "wip", 5).unwrap_err();
    assert!(
        matches!(&err, TreeError::TooLarge { largest, .. } if largest == Path::new("huge.bin"))
    );
    write(&made.path, ".gitignore", "huge.bin\n");
    world.trees.park(&made.intent, "wip", 5).unwrap();
    world.trees.remove(&made.intent).unwrap();
}

#[test]
fn a_merge_runs_only_the_users_own_programs() {
    let world = World::new();
    let (mark, command) = trap(&world);
    let home = world.dir.path().join("home");
    let users = home.join("users-ran");
    // The user's own filter, from their configuration; and one of its name from the repository.
    let text = format!(
        "[filter \"users\"]\n smudge = \"touch {}; sed s/of-the-repository/as-the-user-sees-it/\"\n",
        users.display()
    );
    write(&home, ".gitconfig", &text);
    let attributes = "*.evil filter=evil\n*.users filter=users\n*.named filter=named.with.dots\n";
    write(&world.repo, ".gitattributes", attributes);
    commit(&world.repo, "attributes");
    let made = world.prepare("s");
    for name in ["a.evil", "b.users", "c.named"] {
        write(&made.path, name, "of-the-repository\n");
    }
    commit(&made.path, "work");
    // Settings as an agent in the checkout can write them; also in an included file.
    for key in ["clean", "smudge", "process"] {
        git(&world.repo, &["config", &format!("filter.evil.{key}"), &command]);
        git(&world.repo, &["config", &format!("filter.users.{key}"), &command]);
    }
    git(&world.repo, &["config", "--unset", "filter.users.process"]);
    git(&world.repo, &["config", "filter.evil.required", "true"]);
    let included = world.dir.path().join("included");
    let text =
        format!("[filter \"named.with.dots\"]\n smudge = \"{}\"\n", command.replace('"', "\\\""));
    std::fs::write(&included, text).unwrap();
    git(&world.repo, &["config", "include.path", included.to_str().unwrap()]);
    git(&world.repo, &["config", "core.fsmonitor", &command]);
    let into = MergeInto { home: Some(&home), ..MERGE };
    let merged = world.trees.merge(&made.intent, &into).unwrap();
    assert!(matches!(merged, Merged::Forward { .. }), "{merged:?}");
    assert!(!mark.exists(), "something of the repository's ran");
    assert!(users.exists(), "the user's own did not");
    assert_eq!(read(&world.repo.join("a.evil")), "of-the-repository\n");
    assert_eq!(read(&world.repo.join("b.users")), "as-the-user-sees-it\n");
    assert_eq!(read(&world.repo.join("c.named")), "of-the-repository\n");
}
