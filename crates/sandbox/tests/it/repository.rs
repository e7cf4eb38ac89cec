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

/// Every file below a directory that decides about what git does, with its text.
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
umount .git/config && echo unmounted
mount -o remount,bind,rw .git/config && echo mounted anew
unshare -rm sh -c 'umount .git/config || mount -o remount,bind,rw .git/config' && echo unshared
true
"#;

#[tokio::test]
async fn what_decides_about_a_persons_git_stays_and_git_works() {
    let place = Place::new();
    checkout(&place);
    let git_dir = place.at("work/.git");
    let before = decides(&git_dir);
    assert!(before.len() > 8, "{before:?}");
    let (_, out) = place.run(place.plan(TRIES)).await;
    let done = [
        "config",
        "head",
        "attributes",
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

    let work = "git -c user.name=B -c user.email=b@c commit -q --allow-empty -m works && \
                git branch topic && git status --porcelain && git log --format=%s -1";
    let (status, out) = place.run(place.plan(work)).await;
    assert_eq!((status.code(), out.as_str()), (Some(0), "works\n"));
    assert_eq!(git(&place.at("work"), &["log", "--format=%s", "-1"]), "works\n");
    git(&place.at("work"), &["rev-parse", "--verify", "topic"]);
}

#[tokio::test]
async fn what_git_would_make_is_there_and_a_link_in_its_place_is_refused() {
    let place = Place::new();
    let work = place.at("work");
    git(&work, &["init", "-q", "--template="]);
    assert!(!work.join(".git/hooks").exists());
    let script =
        "echo x > .git/hooks/post-checkout; echo x > .git/info/attributes; ls .git/hooks .git/info";
    let (_, out) = place.run(place.plan(script)).await;
    assert!(
        work.join(".git/hooks").is_dir() && !work.join(".git/hooks/post-checkout").exists(),
        "{out}"
    );
    assert!(!work.join(".git/info/attributes").exists(), "{out}");
    std::fs::remove_dir(work.join(".git/hooks")).unwrap();
    std::os::unix::fs::symlink(place.at("other"), work.join(".git/hooks")).unwrap();
    let refused = place.enclosures.enclose(place.plan("true")).await.unwrap_err().to_string();
    assert!(refused.contains(".git/hooks is a link"), "{refused}");
    assert_eq!(std::fs::read_dir(place.at("other")).unwrap().count(), 1, "only what was there");
}

#[tokio::test]
async fn a_reaper_ends_as_its_command_and_lives_as_long_as_what_was_detached() {
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
        // Nobody here waits for it.
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
    let nothing = place.enclosures.reaped(vec!["/no/such/program".to_owned()]).unwrap();
    let output = Command::new(&nothing[0]).args(&nothing[1..]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(127), "{said}");
    assert!(said.contains("/no/such/program"), "{said}");
}
