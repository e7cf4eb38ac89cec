//! Repositories and callers that put links, pipes and devices in place of files that the server
//! reads: no content of the host is shown, nothing is written there, and the server continues.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::{Value, json};

use crate::home::{Done, Home};
use crate::worktrees::{House, git_in};

/// A run that must fail before it starts, and all its messages.
fn refused(house: &House, name: &str, more: &[&str]) -> String {
    let args = [&["run", "--name", name, "--wait"], more, &["cat story.txt"]].concat();
    let done = house.run(&args);
    assert_ne!(done.code, 0, "{name}: {done:?}");
    let run = house.home.named(name);
    assert_eq!(run["status"], "failed", "{run}");
    let events = house.run(&["events", name, "-o", "json", "--limit", "1000"]).out;
    [done.out, done.err, run.to_string(), events].concat()
}

fn works(house: &House, name: &str) {
    house.run(&["run", "--name", name, "--wait", "cat story.txt"]).ok();
    house.run(&["done", name, "--discard", "--yes"]).ok();
}

/// `run` tells whether the commit has a program, and a repository may say how what it lacks is fetched.
#[test]
fn missing_objects_are_fetched_by_no_command_of_the_repository() {
    let house = House::new(None);
    let mark = house.home.0.path().join("fetched");
    std::fs::write(house.project.join("try.sh"), "#!/bin/sh\necho ran\n").unwrap();
    house.git(&["add", "-A"]);
    house.git(&["commit", "-qm", "a program"]);
    let tree = house.git(&["rev-parse", "HEAD^{tree}"]);
    let (dir, file) = tree.trim().split_at(2);
    std::fs::remove_file(house.project.join(".git/objects").join(dir).join(file)).unwrap();
    let command = format!("touch {}; false", mark.display());
    for (key, value) in [
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "evil"),
        ("remote.evil.promisor", "true"),
        ("remote.evil.url", house.project.to_str().unwrap()),
        ("remote.evil.uploadpack", &command),
    ] {
        house.git(&["config", key, value]);
    }
    let run =
        house.run(&["run", "--name", "lacks", "--wait", "--sandbox", "namespace", "./try.sh"]);
    assert_ne!(run.code, 0, "{run:?}");
    assert!(!mark.exists(), "{run:?}");
}

#[test]
fn objects_in_a_directory_of_the_host_are_shown_to_no_sandbox() {
    let house = House::new(None);
    let host = house.home.0.path().join("run");
    std::fs::create_dir_all(host.join("pack")).unwrap();
    let listener = UnixListener::bind(host.join("engine.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let objects = house.project.join(".git/objects");
    let before = house.project.join(".git/before");
    std::fs::rename(&objects, &before).unwrap();
    // As a link, and as a list of borrowed objects.
    symlink(&host, &objects).unwrap();
    let said = refused(&house, "linked", &["--sandbox", "namespace"]);
    assert!(said.contains("objects") && said.contains("link"), "{said}");
    std::fs::remove_file(&objects).unwrap();
    std::fs::rename(&before, &objects).unwrap();
    let lent = host.join("objects");
    symlink(&host, &lent).unwrap();
    for named in [&host, &lent] {
        std::fs::write(objects.join("info/alternates"), format!("{}\n", named.display())).unwrap();
        let line =
            format!("sh -c 'test ! -e {0}/engine.sock && test ! -e {0}/pack'", named.display());
        let args = ["run", "--name", "lists", "--wait", "--sandbox", "namespace", &line];
        house.run(&args).ok();
        house.run(&["done", "lists", "--discard", "--yes"]).ok();
    }
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nobody came");
    std::fs::remove_file(objects.join("info/alternates")).unwrap();
    works(&house, "honest");
}

#[test]
fn objects_in_the_data_directory_are_shown_to_no_sandbox() {
    let house = House::new(None);
    let home = &house.home.0;
    home.agent("probe", &[]);
    let secret = key(home, "op", &["--role", "operator"]);
    let args = ["run", "probe", "write: a.txt: mine", "--wait", "-o", "json"];
    let run = home.run_env(&[("OVERMIND_TOKEN", &secret)], &args).ok().json();
    let own = Path::new(run["workspace"].as_str().unwrap()).canonicalize().unwrap();
    let beside = home.path().join("beside");
    std::fs::create_dir(&beside).unwrap();
    let list = house.project.join(".git/objects/info/alternates");
    let sees = |name: &str, repository: &Path| {
        git_in(repository, &["init", "-q", "."]);
        let objects = repository.canonicalize().unwrap().join(".git/objects");
        std::fs::write(&list, format!("{}\n", objects.display())).unwrap();
        let line = format!("test -e {}/pack", objects.display());
        let run = ["run", "--name", name, "--wait", "--sandbox", "namespace", &line];
        let seen = house.run(&run).code == 0;
        house.run(&["done", name, "--discard", "--yes"]).ok();
        seen
    };
    assert!(sees("borrows", &beside), "a repository of the same user is borrowed from");
    assert!(!sees("takes", &own), "what another's run keeps is shown");
}

/// The secret of a new key.
fn key(home: &Home, name: &str, more: &[&str]) -> String {
    let args = [&["key", "create", name, "-o", "name"], more].concat();
    home.run(&args).ok().line().to_owned()
}

/// The API's answer to the start of a run.
fn start(home: &Home, secret: &str, body: &Value) -> String {
    let output = std::process::Command::new("curl")
        .args(["--silent", "--unix-socket"])
        .arg(home.data().join("overmind.sock"))
        .args(["-H", &format!("Authorization: Bearer {secret}"), "--json", &body.to_string()])
        .arg("http://localhost/api/runs")
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_link_in_a_workspace_does_not_let_a_run_work_elsewhere() {
    let home = Home::up();
    home.agent("probe", &[]);
    let outside = home.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), "before").unwrap();
    for (name, more) in [("op", ["--role", "operator"]), ("starts", ["--scope", "runs"])] {
        let secret = key(&home, name, &more);
        let by = |args: &[&str]| -> Done { home.run_env(&[("OVERMIND_TOKEN", &secret)], args) };
        let made = by(&["run", "probe", "write: a.txt: mine", "--wait", "-o", "json"]).ok();
        let run: Value = serde_json::from_str(&made.out).unwrap();
        let own = run["workspace"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned();
        symlink(&outside, Path::new(&own).join("link")).unwrap();
        std::fs::create_dir(outside.join("deep")).ok();
        // As a program sends it: the command line resolves its paths itself.
        for way in ["link", "link/deep", "link/new", "."] {
            let workspace = Path::new(&own).join(way).to_string_lossy().replace("/.", "");
            let body =
                json!({"agent_id": "probe", "task": "write: taken: x", "workspace": workspace});
            let answer = start(&home, &secret, &body);
            let refused = answer.contains("only an admin may use a workspace outside");
            assert_eq!(refused, way != ".", "{name} {way}: {answer}");
        }
    }
    let left = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
    assert_eq!((left(&outside), left(&outside.join("deep"))), (2, 0));
    assert_eq!(std::fs::read_to_string(outside.join("kept")).unwrap(), "before");
}

#[test]
fn a_database_of_the_server_cannot_be_a_template() {
    let house = House::new(Some(
        "version: 1\nservices:\n  db: {strategy: database, engine: sqlite, source: dev.sqlite3, file: \
         own.sqlite3}\n",
    ));
    let data = house.home.0.data();
    let files = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path());
    let store = files.filter(|path| path.extension().is_some_and(|end| end == "db"));
    let store = store.into_iter().next().expect("the server's database");
    let source = house.project.join("dev.sqlite3");
    symlink(&store, &source).unwrap();
    let said = refused(&house, "linked", &[]);
    assert!(said.contains("dev.sqlite3") && said.contains("leads out"), "{said}");
    std::fs::remove_file(&source).unwrap();
    std::fs::hard_link(&store, &source).unwrap();
    let said = refused(&house, "other-name", &[]);
    assert!(said.contains("the server's own"), "{said}");
    std::fs::remove_file(&source).unwrap();
    works(&house, "honest");
}

#[test]
fn a_data_directory_in_the_repository_is_never_copied_into_a_worktree() {
    let house = House::new(None);
    let home = house.home.0.path().to_owned();
    // The repository with the data directory begins above the current directory.
    std::fs::rename(house.project.join(".git"), home.join(".git")).unwrap();
    let list = "version: 1\nworktree: {include: ['*'], directories: {data: copy}}\n";
    std::fs::write(home.join(".overmind.yml"), list).unwrap();
    for (name, more) in [("plain", &[][..]), ("carries", &["--carry"])] {
        let args =
            [&["run", "--name", name, "--wait"], more, &["find / -name admin.token"]].concat();
        let done = house.run(&args);
        assert_ne!(done.code, 0, "{done:?}");
        let run = house.home.named(name).to_string();
        assert!(run.contains("begins at"), "{run}");
    }
    let token = std::fs::read(house.home.0.data().join("admin.token")).unwrap();
    let worktrees = house.home.0.data().join("worktrees");
    let output = std::process::Command::new("grep")
        .args(["-rFl", "-e", String::from_utf8(token).unwrap().trim()])
        .arg(&worktrees)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
}

#[test]
fn an_endless_project_file_fails_only_its_run() {
    let mut house = House::new(None);
    let file = house.project.join(".overmind.yml");
    symlink("/dev/zero", &file).unwrap();
    let said = refused(&house, "endless", &[]);
    assert!(said.contains(".overmind.yml") && said.contains("leads out"), "{said}");
    std::fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    let said = refused(&house, "waits", &[]);
    assert!(said.contains(".overmind.yml") && said.contains("a pipe"), "{said}");
    std::fs::remove_file(&file).unwrap();
    let large = std::fs::File::create(&file).unwrap();
    large.set_len(10 << 30).unwrap();
    assert!(refused(&house, "large", &[]).contains("is longer than"));
    // The next start finds them as they ended.
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    for name in ["endless", "waits", "large"] {
        assert_eq!(house.home.named(name)["status"], "failed");
    }
    std::fs::remove_file(&file).unwrap();
    works(&house, "honest");
}

#[test]
fn an_error_quotes_no_file_of_the_host() {
    let house = House::new(None);
    let host = house.home.0.path().join("shadow");
    std::fs::write(&host, "root:$6$never-to-be-told:1:0:99999:7:::\n- [broken\n").unwrap();
    let file = house.project.join(".overmind.yml");
    for (name, target) in [("its-own", host.as_path()), ("the-hosts", Path::new("/etc/shadow"))] {
        symlink(target, &file).unwrap();
        let said = refused(&house, name, &[]);
        let lines = std::fs::read_to_string(target).unwrap_or_default();
        let told = lines.lines().filter(|line| line.len() > 8 && said.contains(line)).count();
        assert_eq!(told, 0, "{said}");
        assert!(!said.contains("never-to-be-told"), "{said}");
        std::fs::remove_file(&file).unwrap();
    }
    for name in ["commondir", "HEAD", "config", "packed-refs"] {
        let at = house.project.join(".git").join(name);
        let before = std::fs::read(&at).ok();
        std::fs::remove_file(&at).ok();
        symlink(&host, &at).unwrap();
        let said = refused(&house, &format!("git-{}", name.to_lowercase()), &[]);
        assert!(!said.contains("never-to-be-told"), "{said}");
        std::fs::remove_file(&at).unwrap();
        if let Some(before) = before {
            std::fs::write(&at, before).unwrap();
        }
    }
    works(&house, "honest");
}

/// A run leads to a repository of the host by what it writes into a directory of its own, where its caller
/// starts the next one.
#[test]
fn a_repository_that_a_run_points_to_is_closed_to_other_runs_of_its_caller() {
    let house = House::new(None);
    let home = &house.home.0;
    program(home, "sh", &json!({"argv": ["sh"]}));
    let git = house.project.join(".git");
    for (name, more) in [("op", ["--role", "operator"]), ("starts", ["--scope", "runs"])] {
        let secret = key(home, name, &more);
        let run = |script: &str, more: Value| -> Value {
            let mut body = json!({
                "agent_id": "sh", "task": "", "command": {"argv": ["sh", "-c", script], "exact": true},
            });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let started: Value = serde_json::from_str(&start(home, &secret, &body)).unwrap();
            let id = started["id"].as_str().unwrap_or_else(|| panic!("{started}")).to_owned();
            home.run(&["wait", &id]);
            house.home.named(started["name"].as_str().unwrap())
        };
        let leads = format!(
            "for way in file link objects; do mkdir $way; echo own > $way/own.txt; done; echo gitdir: {0} > \
             file/.git; ln -s {0} link/.git; cd objects; git init -q .; echo {0}/objects > \
             .git/objects/info/alternates",
            git.display()
        );
        let first = run(&leads, json!({}));
        assert_eq!(first["status"], "succeeded", "{first}");
        let own = first["workspace"].as_str().unwrap();
        for way in ["file", "link", "objects"] {
            for when in ["always", "auto"] {
                let more = json!({"workspace": format!("{own}/{way}"), "room": {"when": when}});
                let shows =
                    "ls; cat story.txt; git log -p; git cat-file --batch-all-objects --batch; pwd";
                let next = run(shows, more);
                let log = home.run(&["logs", next["name"].as_str().unwrap()]).out;
                assert!(log.contains("own.txt"), "{name} {way} {when}: {log}");
                let told = log.lines().any(|line| line.trim_start_matches('+') == "once");
                assert!(!told, "{name} {way} {when}: {log}");
            }
        }
    }
}

const LOOKS: &str = "cat story.txt; git log -p; echo looked";

/// All messages of the server's ended runs, except those of this name.
fn said_by_others(home: &Home, name: &str) -> String {
    let rows = home.run(&["ps", "-a", "-o", "json"]).ok().json();
    let rows = rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned());
    let others = rows.map(|id| home.fetch(&id)).filter(|row| row["name"] != name);
    let said = others.map(|row| {
        let id = row["id"].as_str().unwrap();
        home.run(&["wait", id]);
        home.run(&["logs", id]).out
    });
    said.collect()
}

/// A run redirects its own directory to a repository of the host, and starts a child there with its token.
#[test]
fn a_repository_that_a_run_points_to_is_closed_to_its_children() {
    let mut home = Home::new();
    let victim = victim(&home, json!({"default": {"spawn": ["*"]}}));
    home.start(&["--listen", "127.0.0.1:0"], &[]);
    program(&home, "sh", &json!({"argv": ["sh"]}));
    let body = json!({
        "agent_id": "sh", "task": "", "room": {"when": "always"},
        "command": {"argv": ["sh", "-c", LOOKS], "exact": true},
    });
    let script = format!(
        "echo gitdir: {} > .git; echo '{body}' | sed \"s|^{{|{{\\\"workspace\\\":\\\"$PWD\\\",|\" > body; curl \
         --silent -H \"Authorization: Bearer $OVERMIND_TOKEN\" --json @body $OVERMIND_SERVER/api/runs",
        victim.display()
    );
    let secret = key(&home, "op", &["--role", "operator"]);
    for token in [None, Some(secret.as_str())] {
        let name = if token.is_some() { "an-operators" } else { "an-admins" };
        let body = json!({
            "agent_id": "sh", "task": "", "name": name,
            "command": {"argv": ["sh", "-c", script], "exact": true},
        });
        let admin = std::fs::read_to_string(home.data().join("admin.token")).unwrap();
        start(&home, token.unwrap_or(admin.trim()), &body);
        home.run(&["wait", name]);
        let own = home.run(&["logs", name]).out;
        assert!(own.contains("queued"), "{name}: {own}");
        let said = said_by_others(&home, name);
        assert!(said.contains("looked"), "{name}: {said}");
        assert!(!said.contains("of the victim"), "{name}: {said}");
    }
}

/// In a workspace that all runs share, a run leads to a repository of the host, and a message starts
/// another one there.
#[test]
fn a_repository_that_a_run_points_to_is_closed_to_runs_started_by_messages() {
    let mut home = Home::new();
    let victim = victim(&home, json!({"reader": {"on_message": "start"}}));
    let shared = home.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let shared = shared.to_str().unwrap();
    home.start(&["--listen", "none"], &[("OVERMIND_WORKSPACE", shared)]);
    program(&home, "writer", &json!({"argv": ["sh"]}));
    program(&home, "reader", &json!({"argv": ["sh", "-c", LOOKS], "exact": true}));
    let secret = key(&home, "op", &["--role", "operator"]);
    let by = |args: &[&str]| home.run_env(&[("OVERMIND_TOKEN", &secret)], args);
    let script = format!("echo gitdir: {} > .git", victim.display());
    let body = json!({
        "agent_id": "writer", "task": "", "name": "writes",
        "command": {"argv": ["sh", "-c", script], "exact": true},
    });
    start(&home, &secret, &body);
    home.run(&["wait", "writes"]);
    assert!(Path::new(shared).join(".git").exists(), "{}", home.run(&["logs", "writes"]).out);
    by(&["mail", "send", "reader", "hello"]).ok();
    let started = crate::home::until("a run that the message starts", || {
        let rows = home.run(&["ps", "-a", "-o", "json"]).ok().json();
        let rows = rows.as_array().unwrap().iter();
        let others: Vec<String> = rows
            .filter_map(|row| row["name"].as_str().filter(|name| *name != "writes"))
            .map(str::to_owned)
            .collect();
        others.first().cloned()
    });
    home.run(&["wait", &started]);
    let row = home.run(&["info", &started, "-o", "json"]).out;
    let said = said_by_others(&home, "writes");
    assert!(!said.contains("of the victim"), "{row} {said}");
    assert!(row.contains("declare it for others"), "it is refused, and says why: {row} {said}");
}

/// An ended run worked in a directory that was no repository. Another caller redirects the
/// directory to one, and sends the run a message.
#[test]
fn a_directory_redirected_to_a_repository_later_is_not_used_by_a_continued_run() {
    let mut home = Home::new();
    let victim = victim(&home, json!({}));
    home.start(&["--listen", "none"], &[]);
    program(&home, "sh", &json!({"argv": ["sh"]}));
    home.agent("talks", &["--sandbox", "namespace"]);
    let secret = key(&home, "op", &["--role", "operator"]);
    let admin = std::fs::read_to_string(home.data().join("admin.token")).unwrap();
    for (when, name) in [("auto", "worked-in-it"), ("always", "had-a-copy")] {
        let project = home.path().join(name);
        std::fs::create_dir(&project).unwrap();
        let document = json!({
            "apiVersion": "overmind/v1", "kind": "Project", "metadata": {"name": name},
            "spec": {"path": project},
        });
        std::fs::write(home.work().join("project.json"), document.to_string()).unwrap();
        home.run(&["apply", "-f", "project.json"]).ok();
        let body = json!({
            "agent_id": "talks", "task": "shell: ls", "name": name, "workspace": project,
            "room": {"when": when, "end": "discard"},
        });
        start(&home, admin.trim(), &body);
        home.run(&["wait", name]).ok();
        let leads = format!("echo gitdir: {} > .git; echo done", victim.display());
        let body = json!({
            "agent_id": "sh", "task": "", "workspace": project,
            "command": {"argv": ["sh", "-c", leads], "exact": true},
        });
        let led: Value = serde_json::from_str(&start(&home, &secret, &body)).unwrap();
        home.run(&["wait", led["id"].as_str().unwrap()]).ok();
        assert!(project.join(".git").is_file());
        let by = [("OVERMIND_TOKEN", secret.as_str())];
        let sent = home.run_env(&by, &["send", name, "shell: cat story.txt", "--wait"]);
        let said =
            format!("{sent:?}{}", home.run(&["events", name, "-o", "json", "--limit", "1000"]).out);
        assert!(said.contains("No such file"), "{name}: it went on where it was: {said}");
        assert!(!said.contains("of the victim"), "{name}: {said}");
        // Nor does a new run of an admin follow it, in a directory that others may use.
        let body = json!({
            "agent_id": "sh", "task": "", "workspace": project, "room": {"when": when},
            "command": {"argv": ["sh", "-c", LOOKS], "exact": true},
        });
        let led: Value = serde_json::from_str(&start(&home, admin.trim(), &body)).unwrap();
        let id = led["id"].as_str().unwrap_or_else(|| panic!("{led}"));
        home.run(&["wait", id]);
        let row = home.fetch(id).to_string();
        let said = home.run(&["logs", id]).out;
        assert!(row.contains("declare it for others"), "{name}: {row} {said}");
        assert!(!said.contains("of the victim"), "{name}: {said}");
    }
}

/// A repository of the host beside a server's home, with the permissions that its agents have.
fn victim(home: &Home, permissions: Value) -> std::path::PathBuf {
    let victim = home.path().join("victim");
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("story.txt"), "of the victim\n").unwrap();
    for args in [
        &["init", "--quiet", "--initial-branch", "main"][..],
        &["add", "--all"],
        &["-c", "user.name=v", "-c", "user.email=v@v", "commit", "--quiet", "--message", "first"],
    ] {
        let done = std::process::Command::new("git").current_dir(&victim).args(args).status();
        assert!(done.unwrap().success());
    }
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .create(home.data())
        .unwrap();
    let document = json!({ "permissions": permissions });
    std::fs::write(home.data().join("permissions.json"), document.to_string()).unwrap();
    victim.join(".git")
}

/// An agent that is a program, in a sandbox.
fn program(home: &Home, name: &str, command: &Value) {
    let agent = json!({
        "name": name, "role": "r", "model": "command", "sandbox": "namespace", "command": command,
    });
    let file = home.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
}
