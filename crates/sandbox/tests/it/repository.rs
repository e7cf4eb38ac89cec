//! A person's own repository, in whose checkout a command works: what decides about the person's next git
//! stays as it is, and git itself works.

use std::path::Path;
use std::process::Command;

use overmind_core::enclosure::Enclose as _;

use crate::enclosure::{Place, until};

fn git(at: &Path, args: &[&str]) -> String {
    let known = ["-c", "user.name=Ann", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"];
    let output = Command::new("git").args(known).args(args).current_dir(at).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A checkout with a submodule and a linked worktree.
fn checkout(place: &Place) {
    let (work, lib) = (place.at("work"), place.at("other"));
    for at in [&lib, &work] {
        git(at, &["init", "-q", "-b", "main"]);
        std::fs::write(at.join("a.txt"), "a\n").unwrap();
        git(at, &["add", "a.txt"]);
        git(at, &["commit", "-qm", "first"]);
    }
    git(&work, &["submodule", "add", "-q", lib.to_str().unwrap(), "libs/one"]);
    git(&work, &["commit", "-qm", "second"]);
    git(&work, &["worktree", "add", "-q", place.at("data").join("linked").to_str().unwrap()]);
}

/// Every file below a directory that affects git, with its text.
fn decides(dir: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if path.is_dir() && !["objects", "refs", "logs"].contains(&name.as_str()) {
            all.extend(decides(&path));
        } else if path.is_file()
            && !["index", "COMMIT_EDITMSG", "ORIG_HEAD"].contains(&name.as_str())
        {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            all.push((path.display().to_string(), text));
        }
    }
    all.sort();
    all
}

const TRIES: &str = r#"
git config filter.x.smudge 'touch /tmp/evil' && echo config
git -C libs/one config filter.x.smudge 'touch /tmp/evil' && echo config of a submodule
git checkout -q -b other && echo head
echo x > .git/HEAD
echo x > .git/config
echo x > .git/info/attributes && echo attributes
echo x > .git/modules/libs/one/info/attributes && echo attributes of a submodule
echo /tmp > .git/worktrees/linked/commondir && echo commondir
echo x > .git/hooks/post-checkout && echo hook
mkdir .git/hooks/y && echo hook
mv .git/hooks .git/hooks2 && echo moved hooks
rm -rf .git/hooks && echo removed hooks
mv .git .moved && echo moved
mv .git/config .git/other && echo moved config
rm -f .git/config && echo removed config
ln -f .git/config .git/linked && echo y >> .git/linked && echo linked
mv .git/modules .git/m2 && echo moved modules
mv .git/modules/libs .git/modules/l2 && echo moved modules
mkdir -p .git/modules/new && echo made a module
mv .git/worktrees .git/w2 && echo moved worktrees
mv .git/refs .git/r2 && echo moved refs
mv .git/objects .git/o2 && echo moved objects
mv .git/objects/info .git/objects/i2 && echo moved info
echo /tmp > .git/objects/info/alternates && echo alternates
printf ../evil > .git/commondir && echo commondir
printf ../evil > .git/modules/libs/one/commondir && echo commondir
rm -f libs/one/.git && echo removed a .git file
echo "gitdir: ../../evil" > libs/one/.git && echo wrote a .git file
mv libs/one libs/two && echo moved a checkout
mv libs others && echo moved a checkout
git submodule add -q ./libs/one libs/three && echo made a module
umount .git && echo unmounted
mount -o remount,bind,rw .git && echo mounted anew
unshare -rm sh -c 'umount .git || mount -o remount,bind,rw .git' && echo unshared
rm -f .git/logs/HEAD && ln -s /tmp/evil .git/logs/HEAD && echo linked the log
ln -s /tmp/evil .git/COMMIT_EDITMSG && echo linked a message
echo evil > .git/MERGE_MSG && echo wrote a message
ln -s /tmp/evil .git/refs/heads/evil && echo linked a branch
mv .git/index .git/i2 && ln -s /tmp/evil .git/index && echo linked the index
git branch topic && echo made a branch
git -c user.name=B -c user.email=b@c commit -q --allow-empty -m works && echo made a commit
true
"#;

#[tokio::test]
async fn sandboxed_commands_cannot_change_git_control_files() {
    let place = Place::new();
    checkout(&place);
    let git_dir = place.at("work/.git");
    let before = decides(&git_dir);
    assert!(before.len() > 8, "{before:?}");
    let script = "git status --porcelain; git -C libs/one log -1 --format=%s; echo b >> a.txt; \
                  git diff --stat; git checkout -q a.txt 2>/dev/null; git commit -qam b 2>&1";
    let (_, out) = place.run(place.plan(script)).await;
    assert!(out.starts_with("first\n a.txt | 1 +"), "{out}");
    assert!(out.contains("Read-only file system"), "{out}");
    git(&place.at("work"), &["checkout", "-q", "a.txt"]);
    assert_eq!(decides(&git_dir), before, "nothing is made for it");
    let (_, out) = place.run(place.plan(TRIES)).await;
    let done = [
        "config",
        "head",
        "attributes",
        "alternates",
        "made",
        "wrote",
        "commondir",
        "hook",
        "moved",
        "removed",
        "linked",
        "unmounted",
        "mounted anew",
        "unshared",
    ];
    let words: Vec<&str> =
        out.lines().filter(|line| done.iter().any(|d| line.starts_with(d))).collect();
    assert_eq!(words, Vec::<&str>::new(), "{out}");
    assert_eq!(decides(&git_dir), before, "{out}");

    // And the person's own git is unchanged, in submodules and linked worktrees too.
    for at in ["work", "work/libs/one", "data/linked"] {
        git(&place.at(at), &["status", "--porcelain"]);
        git(&place.at(at), &["fsck"]);
    }
    let (new, clone) = (place.at("other").join("new"), place.at("other").join("clone"));
    let work = place.at("work");
    git(&work, &["submodule", "update"]);
    git(&work, &["worktree", "add", "-q", new.to_str().unwrap()]);
    git(&work, &["clone", "-q", ".", clone.to_str().unwrap()]);
    git(&work, &["checkout", "-q", "-b", "topic"]);
    git(&work, &["commit", "-q", "--allow-empty", "-m", "third"]);
}

/// If `HEAD` is invalid, git looks for a repository in the checkout itself.
#[tokio::test]
async fn a_command_cannot_switch_branches_or_turn_the_checkout_into_a_repository() {
    let place = Place::new();
    checkout(&place);
    let work = place.at("work");
    let script = "git branch topic; git switch topic; git switch -c other; git checkout --detach; \
                  mkdir objects refs; cp .git/HEAD HEAD; printf '[core]\n\tworktree = \
                  .\n\tfsmonitor = touch /tmp/evil\n' > config; \
                  rm -rf .git/refs .git/HEAD .git/objects; true";
    let (_, out) = place.run(place.plan(script)).await;
    assert_eq!(std::fs::read_to_string(work.join(".git/HEAD")).unwrap(), "ref: refs/heads/main\n");
    let found = git(&work, &["rev-parse", "--absolute-git-dir"]);
    assert_eq!(found.trim(), work.join(".git").to_str().unwrap(), "{out}");
}

#[tokio::test]
async fn git_directories_elsewhere_in_the_workspace_are_protected() {
    let place = Place::new();
    let work = place.at("work");
    std::fs::create_dir(work.join("store")).unwrap();
    git(&work, &["init", "-q", "--separate-git-dir", "store/git"]);
    let script = "cd store/git && for f in config HEAD commondir objects/info/alternates \
                  info/attributes hooks/post-checkout; do echo x > $f && echo wrote $f; done; \
                  mv refs r2 && echo moved; mv $PWD/../git ../git2 && echo moved; \
                  mv ../../store ../../s2 && echo moved; true";
    let (_, out) = place.run(place.plan(script)).await;
    let done = out.lines().filter(|line| line.starts_with("wrote") || line.starts_with("moved"));
    assert_eq!(done.collect::<Vec<_>>(), Vec::<&str>::new(), "{out}");
    git(&work, &["rev-parse", "--git-dir"]);

    let place = Place::new();
    git(&place.at("work"), &["init", "-q", "--bare"]);
    let refused = place.enclosures.enclose(place.plan("true")).await.unwrap_err().to_string();
    assert!(refused.contains("is a bare repository"), "{refused}");
}

#[tokio::test]
async fn missing_submodule_directories_are_read_only() {
    let place = Place::new();
    let (work, lib) = (place.at("work"), place.at("other"));
    for at in [&lib, &work] {
        git(at, &["init", "-q", "-b", "main"]);
        git(at, &["commit", "-q", "--allow-empty", "-m", "first"]);
    }
    let head = git(&lib, &["rev-parse", "HEAD"]);
    for path in ["vendor/lib", "gone/lib", "own", "file"] {
        let entry = format!("160000,{},{path}", head.trim());
        git(&work, &["update-index", "--add", "--cacheinfo", &entry]);
    }
    git(&work, &["commit", "-qm", "submodules"]);
    std::fs::create_dir_all(work.join("vendor/lib")).unwrap();
    std::fs::write(work.join("file"), "x").unwrap();
    // The form that git wrote until 2012.
    git(&work, &["clone", "-q", lib.to_str().unwrap(), "own"]);
    let status = git(&work, &["status", "--short"]);
    let script = r#"
        evil='touch ../evil ../../evil; false'
        for dir in vendor/lib gone/lib own file; do
            rm -f $dir 2>/dev/null
            mv ${dir%/*} moved && echo moved ${dir%/*}
            mkdir -p $dir 2>/dev/null
            (cd $dir && git init -q . && echo init $dir)
            git -C $dir config core.fsmonitor "$evil" && echo config $dir
            (cd $dir && printf '[core]\n\tfsmonitor = %s\n' "$evil" > .git/config && echo wrote $dir)
        done 2>/dev/null
        rm -rf vendor gone own; ls -d vendor/lib gone/lib own file; echo done; :> new; git status --short
    "#;
    let (_, said) = place.run(place.plan(script)).await;
    assert!(said.starts_with("file\ngone/lib\nown\nvendor/lib\ndone\n"), "{said}");
    assert!(said.contains("?? new"), "{said}");
    assert!(work.join("new").exists() && !work.join("moved").exists());
    for again in ["status", "diff", "add"] {
        let args = if again == "add" { vec![again, "new"] } else { vec![again] };
        git(&work, &args);
        assert!(!work.join("evil").exists(), "{again}");
    }
    assert!(!work.join("vendor/evil").exists() && !work.join("gone/evil").exists());
    git(&work, &["rm", "-q", "--cached", "new"]);
    std::fs::remove_file(work.join("new")).unwrap();
    assert!(work.join("gone/lib").is_dir(), "made, as git makes it");
    let without = |status: &str| -> Vec<String> {
        status.lines().filter(|line| !line.contains("gone")).map(str::to_owned).collect()
    };
    assert_eq!(without(&git(&work, &["status", "--short"])), without(&status));
}

#[tokio::test]
async fn git_files_are_not_created_and_links_in_their_place_are_refused() {
    let place = Place::new();
    let work = place.at("work");
    git(&work, &["init", "-q", "--template="]);
    assert!(!work.join(".git/hooks").exists());
    let script = "mkdir .git/hooks .git/info; echo x > .git/hooks/post-checkout; echo x > .git/info/attributes";
    let (_, out) = place.run(place.plan(script)).await;
    assert!(!work.join(".git/hooks").exists() && !work.join(".git/info").exists(), "{out}");
    std::os::unix::fs::symlink(place.at("other"), work.join(".git/hooks")).unwrap();
    let refused = place.enclosures.enclose(place.plan("true")).await.unwrap_err().to_string();
    assert!(refused.contains(".git/hooks is a link"), "{refused}");
    assert_eq!(std::fs::read_dir(place.at("other")).unwrap().count(), 1, "only what was there");
}

#[tokio::test]
async fn a_reaper_lives_as_long_as_detached_processes() {
    let place = Place::new();
    let lasting = format!("1000.{}", std::process::id());
    let script = format!("(setsid env -i sleep {lasting} &); kill -USR1 $$");
    let argv = ["sh", "-c", &script].map(str::to_owned).into();
    let words = place.enclosures.reaped(argv).unwrap();
    let status = Command::new(&words[0]).args(&words[1..]).status().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(rustix::process::Signal::USR1.as_raw()));
    let reaper = |pid: u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        (line.contains("__reaper") && line.contains(&lasting)).then_some(pid)
    };
    let all = || std::fs::read_dir("/proc").unwrap().flatten();
    let pids = || all().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let reaper = until("the reaper", || pids().find_map(reaper));
    let detached = until("what was detached", || {
        let line = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        pids().find(|pid| line(pid) == format!("sleep\0{lasting}\0").into_bytes())
    });
    let stat = std::fs::read_to_string(format!("/proc/{detached}/stat")).unwrap();
    let parent = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap();
    assert_eq!(parent, reaper.to_string());
    let number = rustix::process::Pid::from_raw(i32::try_from(detached).unwrap()).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::KILL).unwrap();
    until("the reaper's end", || {
        let stat = std::fs::read_to_string(format!("/proc/{reaper}/stat"));
        // Nothing here waits for it.
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
    let nothing = place.enclosures.reaped(vec!["/no/such/program".to_owned()]).unwrap();
    let output = Command::new(&nothing[0]).args(&nothing[1..]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(127), "{said}");
    assert!(said.contains("/no/such/program"), "{said}");
}
