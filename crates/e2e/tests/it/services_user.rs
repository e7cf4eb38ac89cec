//! Environments of a root server whose programs run as another user.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use overmind_testkit::real::counterpart;
use serde_json::{Value, json};

use crate::home::until;
use crate::services::{ASKS_REDIS, get, port_of};
use crate::worktrees::House;

const USER: u32 = 54321;

/// A house whose server runs programs in sandboxes as that user, who can enter the project. `None`
/// if the test is not run as root, which cannot use another user.
fn house(config: &str) -> Option<House> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let mut house = House::new(Some(config));
    house.run(&["down"]).ok();
    house.home.0.ended();
    open(house.home.0.path());
    // Other users may not be able to enter the directory of this test's program.
    let program = house.home.0.path().join("overmind");
    std::fs::copy(crate::program::program(), &program).unwrap();
    let settings = house.home.0.path().join("settings.toml");
    std::fs::write(&settings, format!("[sandbox]\nrun_as = \"{USER}:{USER}\"\n")).unwrap();
    up(&mut house);
    Some(house)
}

/// Starts its server, again or for the first time.
fn up(house: &mut House) {
    let usual = house.home.0.command(&["up", "-o", "json"]);
    let mut command = Command::new(house.home.0.path().join("overmind"));
    command.args(usual.get_args()).env_clear();
    command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("OVERMIND_CONFIG", house.home.0.path().join("settings.toml"));
    command.current_dir(house.home.0.work());
    house.home.0.start_by(command, &["--listen", "none"], &[]);
}

fn open(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// All files in a directory, including itself.
fn everything(top: &Path) -> Vec<PathBuf> {
    let mut all = vec![top.to_owned()];
    let mut next = 0;
    while let Some(path) = all.get(next).cloned() {
        next += 1;
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            all.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    all
}

/// The files in the tree that do not belong to the user.
fn of_others(tree: &Path) -> Vec<PathBuf> {
    let mut all = everything(tree);
    all.retain(|path| path.symlink_metadata().is_ok_and(|found| found.uid() != USER));
    all
}

const CONFIG: &str = "version: 1
services:
  file:
    strategy: database
    engine: sqlite
    file: storage/own.sqlite3
    template: {files: [fill.py], command: [python3, fill.py]}
  web:
    strategy: process
    command: [python3, server.py]
    ports: [http]
    ready: {command: 'test -e up'}
    restart: {policy: always, backoff: 10ms, max: 100}
env: {DATABASE: '${file.file}'}
env_file: conf/.env.local
setup: ['id -u > set-up.txt; mkdir volume']
teardown: [{command: 'id -u > torn-down.txt; cp volume/said torn-down-said.txt', on_failure: block}]
";

const FILL: &str = "
import os, sqlite3
with sqlite3.connect(os.environ['OVERMIND_DATABASE_FILE']) as db:
    db.execute('CREATE TABLE said (what)')
    db.execute(\"INSERT INTO said VALUES ('filled')\")
";

const SERVER: &str = "
import http.server, json, os, sqlite3, subprocess
def says(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()
def look():
    with sqlite3.connect(os.environ['DATABASE']) as db:
        db.execute(\"INSERT INTO said VALUES ('more')\")
        rows = db.execute('SELECT count(*) FROM said').fetchone()[0]
    print('a line', file=open('volume/said', 'a'))
    print('kept', file=open(os.path.expanduser('~/kept'), 'a'))
    return {'user': os.getuid(), 'rows': rows, 'env': 'DATABASE' in open('conf/.env.local').read(),
            'git': says('git', 'status', '--porcelain'), 'other': says('cat', '/etc/shadow')[:4],
            'outside': says('cat', os.environ['OVERMIND_PROJECT'] + '/story.txt')[:4]}
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == '/die':
            os._exit(1)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(look()).encode())
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), Page)
print('up', file=open('up', 'w'))
server.serve_forever()
";

/// The answer of the service, which counts its requests.
fn says(port: u16, rows: u64) {
    let page = until("it answers", || get(port, "/").filter(|page| !page.is_empty()));
    let said: Value = serde_json::from_str(&page).unwrap_or_else(|err| panic!("{err}: {page}"));
    let wanted = json!({
        "user": 1000, "rows": rows, "env": true, "git": "", "other": "cat:", "outside": "cat:",
    });
    assert_eq!(said, wanted);
}

#[test]
fn an_environment_with_programs_of_another_user_works_and_is_released() {
    let Some(mut house) = house(CONFIG) else { return };
    for (name, text) in
        [("fill.py", FILL), ("server.py", SERVER), (".gitignore", "volume/\nup\ngo\n*.sqlite3\n")]
    {
        std::fs::write(house.project.join(name), text).unwrap();
    }
    house.git(&["add", "-A"]);
    house.git(&["commit", "-qm", "application"]);
    let line = "set -e; git config user.name Bo; git config user.email bo@localhost; \
                id -u > who.txt; git add -A; git commit -qm one; echo one done; \
                while [ ! -e go ]; do sleep 0.05; done; \
                echo two >> story.txt; git commit -qam two; echo two done; sleep 600";
    let run = house.start("other", &["--sandbox", "namespace"], line);
    assert_eq!(run["room"]["phase"], "ready", "{run} {}", house.log("other"));
    let tree = House::directory(&run);
    let port = port_of(&run, "web");
    house.home.says("other", "one done");
    assert_eq!(of_others(&tree), Vec::<PathBuf>::new());
    let secret = std::fs::metadata(tree.join("conf/.env.local")).unwrap();
    assert_eq!((secret.uid(), secret.mode() & 0o777), (USER, 0o600));
    // Our own files beside it stay ours.
    let ours = tree.parent().unwrap().join("ours").symlink_metadata().unwrap();
    assert_eq!((ours.uid(), ours.mode() & 0o77), (0, 0));
    says(port, 2);

    // A decision about its work meanwhile leaves no obstacle; nor does another server.
    house.run(&["done", "other", "--pr-branch"]).ok();
    assert_eq!(of_others(&tree), Vec::<PathBuf>::new());
    house.home.0.kill();
    up(&mut house);
    get(port, "/die");
    says(port, 3);
    std::fs::write(tree.join("go"), "").unwrap();
    house.home.says("other", "two done");
    std::fs::remove_file(tree.join("go")).unwrap();
    assert_eq!(of_others(&tree), Vec::<PathBuf>::new());

    house.run(&["stop", "other"]).ok();
    let ended = house.ended("other");
    assert_eq!((&ended["room"]["phase"], &ended["room"]["leaks"]), (&json!("kept"), &json!([])));
    assert_eq!(ended["room"]["warnings"], json!([]), "{ended}");
    // A user worked on the branch of that decision: the rest of the work gets another branch.
    house.run(&["done", "other", "--park"]).ok();
    let decided = house.home.named("other");
    let branch = decided["room"]["done"]["branch"].as_str().unwrap();
    let show = |file: &str| house.git(&["show", &format!("{branch}:{file}")]);
    for file in ["who.txt", "set-up.txt", "torn-down.txt"] {
        assert_eq!(show(file), "1000\n", "{file}: {}", house.log("other"));
    }
    assert_eq!(show("torn-down-said.txt"), "a line\na line\n");
    assert_eq!(show("story.txt"), "once\ntwo\n");
    // The user owns nothing here any more, and root owns the whole project.
    let trees = house.home.0.path().join("data-worktrees");
    assert!(trees.exists() && !tree.exists());
    for place in [house.home.0.data(), trees, house.project.clone()] {
        let mut all = everything(&place);
        all.retain(|path| path.symlink_metadata().is_ok_and(|found| found.uid() == USER));
        assert_eq!(all, Vec::<PathBuf>::new());
    }
    house.check();
}

#[test]
fn a_user_without_access_to_the_worktree_is_reported_before_a_start() {
    let Some(house) = house("version: 1\nsetup: touch \"$OVERMIND_PROJECT\"/ran\n") else { return };
    let close = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(house.home.0.path(), mode).unwrap();
    };
    close(0o700);
    house.run(&["run", "--name", "shut", "--sandbox", "namespace", "true"]).fails(10);
    let run = house.ended("shut");
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("room")));
    let why = run["error"]["message"].as_str().unwrap();
    assert!(why.contains("54321") && why.contains("rooms.worktrees"), "{why}");
    assert!(!house.project.join("ran").exists());
    // Without a sandbox, root is responsible.
    house.run(&["run", "--name", "bare", "--sandbox", "none", "test -O .git"]).ok();
    assert_eq!(house.ended("bare")["status"], "succeeded", "{}", house.log("bare"));
    assert!(house.project.join("ran").exists());
    std::fs::remove_file(house.project.join("ran")).unwrap();
    close(0o755);
    house.check();
}

#[test]
fn needs_redis_a_server_of_an_environment_runs_as_the_other_user() {
    let Some(_) = counterpart("REDIS") else { return };
    let config = "version: 1\nservices:\n  cache: {strategy: database, engine: redis}\n\
                  env: {CACHE: '${cache.url}'}\n";
    let Some(house) = house(config) else { return };
    std::fs::write(house.project.join("ask.py"), ASKS_REDIS).unwrap();
    house.git(&["add", "-A"]);
    house.git(&["commit", "-qm", "ask"]);
    let run = house.start("cached", &["--sandbox", "namespace"], "python3 ask.py; sleep 600");
    assert_eq!(run["room"]["phase"], "ready", "{run} {}", house.log("cached"));
    house.home.says("cached", "+OK +OK +OK");
    house.run(&["kill", "cached"]).ok();
    let ended = house.ended("cached");
    assert_eq!(ended["room"]["leaks"], json!([]));
    house.check();
}
