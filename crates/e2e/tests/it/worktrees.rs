//! Runs in rooms of their own, whole: real repositories, real services, real kills, and nothing
//! left of any of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use overmind_testkit::real::counterpart;
use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::until;

/// A person's machine with a repository, whose files are checked at the end.
pub(crate) struct House {
    pub(crate) home: Commands,
    pub(crate) project: PathBuf,
}

impl House {
    /// The owner has confirmed the commands in its file.
    pub(crate) fn new(config: Option<&str>) -> Self {
        let house = Self::unconfirmed(config);
        if config.is_some() {
            house.trust();
        }
        house
    }

    /// Its owner confirms the current commands of its file.
    pub(crate) fn trust(&self) {
        self.run(&["trust", "--yes", "--setup-network"]).ok();
    }

    pub(crate) fn unconfirmed(config: Option<&str>) -> Self {
        let home = Commands::up();
        let project = home.0.work().join("app");
        std::fs::create_dir(&project).unwrap();
        let house = Self { home, project };
        house.git(&["init", "-q", "-b", "main"]);
        std::fs::write(house.project.join("story.txt"), "once\n").unwrap();
        if let Some(config) = config {
            std::fs::write(house.project.join(".overmind.yml"), config).unwrap();
        }
        house.git(&["add", "-A"]);
        house.git(&["commit", "-qm", "first"]);
        house
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        git_in(&self.project, args)
    }

    /// A command of the person, in the project.
    pub(crate) fn run(&self, args: &[&str]) -> crate::home::Done {
        let output = self.home.0.command(args).current_dir(&self.project).output().unwrap();
        crate::home::Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Starts it, and waits until its room is ready.
    pub(crate) fn start(&self, name: &str, more: &[&str], line: &str) -> Value {
        let args = [&["run", "--name", name], more, &[line]].concat();
        self.run(&args).ok();
        self.home.until(name, "its room is ready", |run| {
            run["room"]["phase"] != "preparing" && !run["room"].is_null()
        })
    }

    pub(crate) fn log(&self, name: &str) -> String {
        self.run(&["logs", name]).out
    }

    pub(crate) fn ended(&self, name: &str) -> Value {
        self.run(&["wait", name]);
        self.home.named(name)
    }

    /// The answer of the run's service `web`.
    fn fetch(&self, name: &str, path: &str) -> String {
        let url = self.run(&["url", name, "web"]).ok().line().to_owned();
        let code = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode(), end='')";
        let url = format!("{url}/{path}");
        let output = Command::new("python3").args(["-c", code, &url]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn directory(run: &Value) -> PathBuf {
        run["room"]["directory"].as_str().unwrap_or_else(|| panic!("no room: {run}")).into()
    }

    /// Nothing is left of any run, on the machine or in the repository, but work that nobody decided:
    /// that is put on its branch.
    pub(crate) fn check(self) {
        self.run(&["prune"]).ok();
        assert_eq!(self.git(&["status", "--porcelain"]), "", "the primary is as it was");
        let doctor = self.run(&["doctor", "-o", "json"]);
        assert!(!doctor.out.contains("\"kind\": \"worktree\""), "{}", doctor.out);
        let leaks = self.run(&["doctor", "--fix"]);
        assert!(leaks.code == 0 || !leaks.out.contains("left"), "{}{}", leaks.out, leaks.err);
        let trees = self.home.0.data().join("worktrees");
        let trees = std::fs::read_dir(trees).into_iter().flatten().flatten();
        let left: Vec<PathBuf> = trees
            .flat_map(|project| std::fs::read_dir(project.path()).into_iter().flatten().flatten())
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                path.is_dir() && !name.starts_with('.')
            })
            .collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "trees of runs that are over");
        self.home.check();
    }
}

pub(crate) fn git_in(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=Ann", "-c", "user.email=ann@localhost"])
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn two_runs_of_a_project_are_isolated_and_their_work_is_merged() {
    let house = House::new(None);
    let work = "pwd; git branch --show-current; echo $PORT; echo by $OVERMIND_SESSION_NAME >> $0.txt; \
                echo more >> story.txt; ls; while [ ! -e go ]; do sleep 0.05; done; rm go";
    let line = |file: &str| format!("sh -c '{work}' {file}");
    let one = house.start("one", &[], &line("one"));
    let two = house.start("two", &[], &line("two"));
    assert_eq!(one["room"]["branch"], "overmind/one", "{one}");
    assert_eq!(two["room"]["branch"], "overmind/two");
    assert_ne!(House::directory(&one), House::directory(&two));
    assert_ne!(one["room"]["ports"]["PORT"], two["room"]["ports"]["PORT"]);
    let port = one["room"]["ports"]["PORT"].as_u64().unwrap();
    let log = house.home.says("one", "story.txt");
    let place = format!("{}\novermind/one\n", House::directory(&one).display());
    assert!(log.contains(&place) && log.contains(&port.to_string()), "{log}");
    assert!(!log.contains("two.txt"), "{log}");
    house.run(&["url", "one"]).ok().shows(&format!("http://127.0.0.1:{port}"));
    // While it runs: its changes are shown, and no decision is made.
    house.run(&["work", "one"]).ok().shows("+by one");
    house.run(&["done", "one", "--merge"]).fails(5);
    assert_eq!(house.git(&["status", "--porcelain"]), "");
    for run in [&one, &two] {
        std::fs::write(House::directory(run).join("go"), "").unwrap();
    }
    let one = house.ended("one");
    assert_eq!((&one["status"], &one["room"]["phase"]), (&json!("succeeded"), &json!("kept")));
    house.ended("two");
    let trees = [House::directory(&one), House::directory(&two)];
    assert!(trees.iter().all(|tree| tree.exists()), "they stay until somebody decides");
    house.run(&["done", "one", "--park"]).ok().shows("overmind/one");
    house.run(&["prune", "--dry-run", "-o", "json"]).ok().shows("\"two\"");
    house.run(&["prune", "--older-than", "1h"]).ok();
    assert!(!trees[0].exists() && trees[1].exists(), "one was decided, the other is not old");
    let branches = house.git(&["branch", "--list", "overmind/*", "--format=%(refname:short)"]);
    assert_eq!(branches, "overmind/one\n");
    house.run(&["work", "one", "--stat"]).ok().shows("2 files");
    house.run(&["done", "one", "--merge"]).ok();
    assert_eq!(std::fs::read_to_string(house.project.join("one.txt")).unwrap(), "by one\n");
    // Both added a line at the same place: nothing is changed, and the file is named.
    std::fs::write(house.project.join("story.txt"), "once\nother\n").unwrap();
    house.git(&["commit", "-qam", "mine"]);
    let refused = house.run(&["done", "two", "--merge"]).fails(5);
    refused.says("story.txt");
    assert_eq!(house.git(&["status", "--porcelain"]), "");
    house.run(&["done", "two", "--discard", "--yes"]).ok();
    assert_eq!(house.git(&["branch", "--list", "overmind/*"]), "");
    house.check();
}

#[test]
fn an_environment_survives_the_server_and_is_released_by_the_next_one() {
    let mut house = House::new(Some(
        "version: 1\nports: [PORT, SECOND]\nsetup:\n  - echo made > made.txt; sleep 0.2\n",
    ));
    // Killed during the creation.
    house.run(&["run", "--name", "early", "cat made.txt; sleep 0.2"]).ok();
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    let early = house.ended("early");
    assert_eq!(early["status"], "succeeded", "{early}");
    house.run(&["logs", "early"]).ok().shows("made");

    // Killed while it is used: the same room, the same ports, the same process.
    let before = house.start("long", &[], "echo $PORT > ports.txt; sleep 600");
    house.home.alive("long");
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    let after = house.home.status("long", "running");
    assert_eq!(before["room"], after["room"]);
    let directory = House::directory(&after);
    until("it wrote its port", || directory.join("ports.txt").exists().then_some(()));

    // Killed during the release.
    house.run(&["stop", "long", "--no-wait"]).ok();
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    let long = house.home.status("long", "canceled");
    assert_eq!(long["room"]["phase"], "kept", "{long}");
    assert!(directory.join("ports.txt").exists());
    house.run(&["done", "long", "--discard", "--yes"]).ok();
    assert!(!directory.exists());
    house.run(&["done", "early", "--discard", "--yes"]).ok();
    house.check();
}

#[test]
fn concurrent_merges_of_runs_all_succeed() {
    let house = House::new(None);
    let names: Vec<String> = (1..=8).map(|n| format!("part-{n}")).collect();
    for name in &names {
        house.run(&["run", "--name", name, &format!("echo work > {name}.txt")]).ok();
    }
    names.iter().for_each(|name| assert_eq!(house.ended(name)["status"], "succeeded"));
    std::thread::scope(|scope| {
        let house = &house;
        for name in &names {
            scope.spawn(move || house.run(&["done", name, "--merge"]).ok());
        }
    });
    assert_eq!(house.git(&["status", "--porcelain"]), "");
    for name in &names {
        assert_eq!(house.git(&["show", &format!("main:{name}.txt")]), "work\n");
    }
    house.check();
}

#[test]
fn uncommitted_work_of_a_run_becomes_a_commit_named_after_its_task() {
    let house = House::new(None);
    let who = "[user]\n\tname = Ann of the house\n\temail = ann@house\n";
    std::fs::write(house.home.0.path().join(".gitconfig"), who).unwrap();
    let shown = "%an <%ae>|%cn|%s|%(trailers:key=Overmind-Run,valueonly,separator=)|%(trailers:key=Overmind-Agent,valueonly)";
    let last = |branch: &str| {
        let log = house.git(&["log", "-1", &format!("--format={shown}"), branch]);
        log.trim().to_owned()
    };
    let by = "Ann of the house <ann@house>|Ann of the house";
    house.run(&["run", "--name", "fix", "echo twice > story.txt"]).ok();
    house.ended("fix");
    house.run(&["done", "fix", "--park"]).ok();
    assert_eq!(last("overmind/fix"), format!("{by}|echo twice > story.txt|fix|command"));
    // Beside a commit of the user's, so that a merge commit joins both.
    std::fs::write(house.project.join("other.txt"), "mine\n").unwrap();
    house.git(&["add", "other.txt"]);
    house.git(&["commit", "-qm", "mine"]);
    house.run(&["done", "fix", "--merge"]).ok();
    assert_eq!(last("main"), format!("{by}|echo twice > story.txt|fix|command"));
    // In the person's own words.
    house.run(&["run", "--name", "more", "echo more > more.txt"]).ok();
    house.ended("more");
    house.run(&["done", "more", "--discard", "-m", "x"]).fails(2);
    house.run(&["done", "more", "--merge", "-m", "Add more"]).ok();
    assert_eq!(last("main"), format!("{by}|Add more|more|command"));
    assert_eq!(house.git(&["show", "main:story.txt"]), "twice\n");
    house.check();
}

#[test]
fn a_stopped_run_can_be_decided_at_once_and_a_requested_branch_stays() {
    let house = House::new(None);
    let write = "echo half > half.txt; echo ready; sleep 600";
    for (name, how) in [("merged", "--merge"), ("gone", "--discard")] {
        house.start(name, &[], write);
        house.home.says(name, "ready");
        house.run(&["stop", name]).ok().shows("stopped");
        house.run(&["done", name, how, "--yes"]).ok();
    }
    assert_eq!(house.git(&["show", "main:half.txt"]), "half\n");

    house.start("fix", &[], "echo fixed > fix.txt");
    house.ended("fix");
    house.run(&["done", "fix", "--pr-branch", "fix-add"]).ok().shows("fix-add");
    house.run(&["done", "fix", "--discard", "--yes"]).fails(5).says("git branch -D fix-add");
    assert_eq!(house.git(&["show", "fix-add:fix.txt"]), "fixed\n");
    house.run(&["done", "fix", "--merge"]).ok();
    assert_eq!(house.git(&["show", "main:fix.txt"]), "fixed\n");
    assert_eq!(house.git(&["branch", "--list", "fix-add"]).trim(), "fix-add");
    house.check();
}

#[test]
fn a_failed_environment_fails_its_run_with_the_reason() {
    let house = House::new(Some("version: 1\nsetup: echo no luck; exit 3\n"));
    house.run(&["run", "--name", "bad", "true"]).fails(10).says("was not started");
    let bad = house.ended("bad");
    assert_eq!((&bad["status"], &bad["error"]["code"]), (&json!("failed"), &json!("room")));
    house.run(&["logs", "bad"]).ok().shows("no luck");
    std::fs::write(house.project.join(".overmind.yml"), "version: 1\nprots: [A]\n").unwrap();
    house.run(&["run", "--name", "typo", "true"]).fails(2).says("prots");
    let there = house.run(&["ps", "--all", "-o", "json"]).ok().out;
    assert!(!there.contains("typo"), "nothing was started: {there}");
    // Stopped during its setup.
    std::fs::write(house.project.join(".overmind.yml"), "version: 1\nsetup: sleep 600\n").unwrap();
    house.trust();
    house.run(&["run", "--detach", "--name", "slow", "true"]).ok();
    house.home.until("slow", "its room is made", |run| run["room"]["phase"] == "preparing");
    house.run(&["kill", "slow"]).ok();
    assert_eq!(house.ended("slow")["status"], "canceled");
    house.git(&["checkout", "-q", ".overmind.yml"]);
    house.trust();
    house.check();
}

#[test]
fn a_service_of_an_environment_answers_at_its_own_address() {
    let config = "version: 1\nservices:\n  web:\n    strategy: process\n    \
                  command: exec python3 -m http.server \"$PORT\" --bind 127.0.0.1\n    ports: [http]\n    \
                  ready: {http: /story.txt}\nenv: {WEB: \"${web.url}\"}\n";
    let house = House::new(Some(config));
    let one = house.start("one", &[], "echo $WEB; sleep 600");
    let two = house.start("two", &[], "sleep 600");
    std::fs::write(House::directory(&two).join("story.txt"), "twice\n").unwrap();
    let fetch = |name: &str| house.fetch(name, "story.txt");
    assert_eq!((fetch("one"), fetch("two")), ("once\n".to_owned(), "twice\n".to_owned()));
    house.home.says("one", one["room"]["urls"]["web"].as_str().unwrap());
    house.run(&["kill", "--all"]).ok();
    // Without changes, there is nothing to decide.
    for (name, phase) in [("one", "closed"), ("two", "kept")] {
        assert_eq!(house.ended(name)["room"]["phase"], phase);
    }
    house.run(&["done", "two", "--discard", "--yes"]).ok();
    house.check();
}

#[test]
fn a_sandboxed_run_sees_only_its_own_environment() {
    let house = House::new(None);
    let other = house.start("other", &[], "sleep 600");
    let look = format!(
        "git log --oneline | grep -c first; echo new > new.txt; git add new.txt; \
         git -c user.name=a -c user.email=b commit -qm inside && echo committed; \
         ls {} && echo seen; cat {}/story.txt && echo project; ls {} && echo data; true",
        House::directory(&other).display(),
        house.project.display(),
        house.home.0.data().join("overmind.db").display(),
    );
    house.start("boxed", &["--sandbox", "namespace"], &look);
    let boxed = house.ended("boxed");
    assert_eq!(boxed["status"], "succeeded", "{boxed}");
    let log = house.run(&["logs", "boxed"]).ok().out;
    assert!(log.contains("1\n") && log.contains("committed"), "{log}");
    for hidden in ["seen", "project", "data"] {
        assert!(!log.lines().any(|line| line == hidden), "{hidden}: {log}");
    }
    let tree = House::directory(&boxed);
    assert_eq!(git_in(&tree, &["show", "HEAD:new.txt"]), "new\n");
    house.run(&["kill", "other"]).ok();
    house.ended("other");
    house.run(&["done", "boxed", "--discard", "--yes"]).ok();
    house.check();
}

/// A small application of the kind that people have: migrations, a seed, a server that asks its
/// database.
fn application(server: &str) -> String {
    format!(
        "version: 1
services:
  db: {{strategy: database, engine: postgres}}
  web:
    strategy: process
    command: {server}
    ports: [http]
    depends_on: [db]
    ready: {{http: /}}
env:
  DATABASE_URL: '${{db.url}}'
setup:
  - psql -v ON_ERROR_STOP=1 -q \"$DATABASE_URL\" -f migrate.sql
"
    )
}

const MIGRATION: &str = "
CREATE TABLE versions (n int PRIMARY KEY);
CREATE TABLE posts (id serial PRIMARY KEY, title text);
SELECT pg_sleep(0.5);
INSERT INTO versions VALUES (1);
INSERT INTO posts (title) VALUES ('seed');
";

const PYTHON: &str = r#"
import http.server, os, subprocess
class Posts(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        query = "SELECT string_agg(title, ',' ORDER BY id) FROM posts"
        said = subprocess.run(["psql", "-At", os.environ["DATABASE_URL"], "-c", query], capture_output=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(said.stdout)
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Posts).serve_forever()
"#;

const NODE: &str = r#"
const { execFile } = require("node:child_process");
require("node:http").createServer((request, response) => {
  const query = "SELECT string_agg(title, ',' ORDER BY id) FROM posts";
  execFile("psql", ["-At", process.env.DATABASE_URL, "-c", query], (error, out) => response.end(out));
}).listen(Number(process.env.PORT), "127.0.0.1");
"#;

#[test]
fn needs_postgres_two_runs_of_two_applications_migrate_at_once_and_serve_their_own() {
    let Some(_) = counterpart("POSTGRES") else { return };
    let rails = House::new(Some(&application("exec python3 server.py")));
    let node = rails.home.0.work().join("node-app");
    std::fs::create_dir(&node).unwrap();
    std::fs::write(node.join(".overmind.yml"), application("exec node server.js")).unwrap();
    std::fs::write(node.join("server.js"), NODE).unwrap();
    std::fs::write(rails.project.join("server.py"), PYTHON).unwrap();
    git_in(&node, &["init", "-q", "-b", "main"]);
    for project in [&rails.project, &node] {
        std::fs::write(project.join("migrate.sql"), MIGRATION).unwrap();
        git_in(project, &["add", "-A"]);
        git_in(project, &["commit", "-qm", "application"]);
    }
    rails.run(&["trust", "--yes", &node.display().to_string()]).ok();
    // All four are requested before any of them exists.
    let names = ["rails-one", "rails-two", "node-one", "node-two"];
    for name in names {
        let project = if name.starts_with("rails") { &rails.project } else { &node };
        let insert = format!(
            "psql -q \"$DATABASE_URL\" -c \"INSERT INTO posts (title) VALUES ('{name}')\" && echo told; sleep 600"
        );
        let project = project.display().to_string();
        let args = ["run", "--name", name, "--workspace", &project, &insert];
        rails.run(&args).ok();
    }
    let mut ports = std::collections::BTreeSet::new();
    for name in names {
        rails.home.says(name, "told");
        let run = rails.home.named(name);
        ports.extend(run["room"]["ports"].as_object().unwrap().values().map(ToString::to_string));
        assert_eq!(rails.fetch(name, "").trim_end(), format!("seed,{name}"));
    }
    assert_eq!(ports.len(), 4, "each has a port of its own: {ports:?}");
    rails.run(&["kill", "--all"]).ok();
    for name in names {
        let run = rails.ended(name);
        assert_eq!(run["room"]["phase"], "closed", "{run}");
        assert_eq!(run["room"]["leaks"].as_array().map_or(0, Vec::len), 0, "{run}");
    }
    assert_eq!(git_in(&node, &["status", "--porcelain"]), "");
    rails.run(&["down"]).ok();
    let mut rails = rails;
    rails.home.0.ended();
    // A normal stop ends the database server, too, because no session needs it.
    let left =
        Command::new("pgrep").args(["-f", &rails.home.0.data().display().to_string()]).output();
    assert_eq!(String::from_utf8(left.unwrap().stdout).unwrap(), "", "the database server is gone");
    rails.home.0.start(&["--listen", "none"], &[]);
    rails.check();
}

#[test]
fn a_sandboxed_run_accepts_connections_on_its_ports_and_reaches_its_services() {
    let house = House::new(None);
    let serve =
        "cd /tmp; echo inside > page; exec python3 -m http.server \"$PORT\" --bind 127.0.0.1";
    let run = house.start("serves", &["--sandbox", "namespace"], serve);
    let port = run["room"]["ports"]["PORT"].as_u64().unwrap_or_else(|| panic!("{run}"));
    let code =
        "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode(), end='')";
    let url = format!("http://127.0.0.1:{port}/page");
    let page = until("it serves", || {
        let output = Command::new("python3").args(["-c", code, &url]).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    });
    assert_eq!(page, "inside\n");
    let network =
        |name: &str| house.run(&["info", name, "-o", "json"]).ok().json()["network"].clone();
    assert_eq!(network("serves"), "mesh");
    let branch = run["room"]["branch"].as_str().unwrap();
    let told = house.run(&["info", "serves"]).ok();
    told.shows(branch).shows(&format!("PORT={port}")).shows("worktree ");
    house.run(&["kill", "serves"]).ok();
    house.ended("serves");
    house.check();

    let config = "version: 1\nservices:\n  web:\n    strategy: process\n    \
                  command: exec python3 -m http.server \"$PORT\" --bind 127.0.0.1\n    ports: [http]\n    \
                  ready: {http: /story.txt}\nenv: {WEB: \"${web.url}\"}\n";
    let house = House::new(Some(config));
    let network =
        |name: &str| house.run(&["info", name, "-o", "json"]).ok().json()["network"].clone();
    let ask = format!("python3 -c \"{code}\" $WEB/story.txt");
    // Over the mesh, the default; on the host's network; and not without a network.
    for (name, more, on, answer) in [
        ("near", &[][..], "mesh", true),
        ("wide", &["--network", "host"], "host", true),
        ("alone", &["--network", "none"], "none", false),
    ] {
        let more = [&["--sandbox", "namespace"], more].concat();
        house.start(name, &more, &ask);
        let ended = house.ended(name);
        assert_eq!(ended["status"] == "succeeded", answer, "{ended}");
        assert_eq!(network(name), on);
    }
    house.check();
}
