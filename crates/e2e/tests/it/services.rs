//! Services and hooks of sandboxed runs: a run that rewrites them gets no further by them than it is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use overmind_testkit::real::counterpart;
use serde_json::{Value, json};

use crate::home::until;
use crate::worktrees::House;

/// The attempts of a program here, and their results.
const LOOK: &str = r#"
import json, os, socket, sqlite3, sys, urllib.request
paths = json.load(open("paths.json"))

def tries(what):
    try:
        return what() or "done"
    except Exception as err:
        return type(err).__name__

def connects(family, where):
    with socket.socket(family) as one:
        one.settimeout(20)
        one.connect(where)

def stores():
    with sqlite3.connect(os.environ["DATABASE"]) as db:
        db.execute("CREATE TABLE IF NOT EXISTS said (what)")
        db.execute("INSERT INTO said VALUES ('a')")

def lines():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as line:
                yield line.read()
        except (FileNotFoundError, ProcessLookupError):
            pass  # It has ended since it was listed.

def look():
    inet, inet6, unix = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX
    host = paths["port"]
    bad = {}
    for name in ["data", "home", "project", "other", "log"]:
        bad["read " + name] = tries(lambda: None if "a-canary" in open(paths[name]).read() else "other")
        # Where that comes to is seen outside: above the worktree lies an empty place of its own.
        tries(lambda: print("x", file=open(paths[name], "a")))
        tries(lambda: print("x", file=open(paths[name] + ".made", "a")))
    bad["api"] = tries(lambda: connects(unix, paths["api"]))
    bad["port"] = tries(lambda: connects(inet, ("127.0.0.1", host)))
    bad["processes"] = tries(lambda: None if any(paths["process"] in one for one in lines()) else "none")
    bad["signal"] = tries(lambda: os.kill(paths["pid"], 0))
    good = {
        "worktree": tries(lambda: print("x", file=open("written.txt", "a"))),
        "database": tries(stores),
        "back": tries(lambda: urllib.request.urlopen(os.environ["BACK"], timeout=20).read().decode()),
        "home": tries(lambda: print("x", file=open(os.path.expanduser("~/kept"), "a"))),
        "output": tries(lambda: print("by name", file=open("/dev/stdout", "w"))),
    }
    also = {
        "door": tries(lambda: connects(inet, ("127.0.0.1", 80))),
        "token": str("OVERMIND_TOKEN" in os.environ or "OVERMIND_SERVER" in os.environ),
        "metadata": tries(lambda: connects(inet, ("169.254.169.254", 80))),
        "port6": tries(lambda: connects(inet6, ("::1", host))),
    }
    return {"bad": bad, "good": good, "also": also}
"#;

/// Sends the configured answer, and dies on request.
const SERVER: &str = r#"
import http.server, os, secrets
me = secrets.token_hex(4)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(1)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"@SAYS@ {me}".encode() if self.path == "/me" else page())
    def log_message(self, *args):
        pass
def page():
    return b"@SAYS@"
if __name__ == "__main__":
    http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Page).serve_forever()
"#;

/// The code that the run writes over its service. It leaves a hidden process running, and records
/// how often it is asked to end.
const HOSTILE: &str = "
import http.server, json, os, server_of_old, signal, subprocess, threading, look
def told(*_):
    print(server_of_old.me, file=open('told.txt', 'a'))
    threading.Timer(0.3, os._exit, [0]).start()
signal.signal(signal.SIGTERM, told)
hidden = ['/bin/sleep', '600.' + str(look.paths['port'])]
subprocess.Popen(hidden, start_new_session=True, env={}, stdout=subprocess.DEVNULL)
server_of_old.page = lambda: json.dumps(look.look()).encode()
http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), server_of_old.Page).serve_forever()
";

const CONFIG: &str = "version: 1
services:
  local: {strategy: database, engine: sqlite, file: app.sqlite3}
  back:
    strategy: process
    command: exec python3 back.py
    ports: [http]
    ready: {command: exec python3 up.py}
  web:
    strategy: process
    command: [python3, server.py]
    ports: [http]
    depends_on: [back]
    ready: tcp
    restart: {policy: always, backoff: 10ms, max: 100}
env:
  DATABASE: '${local.file}'
  BACK: '${back.url}'
setup:
  - {name: first, command: [python3, hook.py, setup]}
teardown:
  - {name: last, command: [python3, hook.py, teardown], on_failure: warn}
";

const HOOK: &str = "
import json, look, sys
print(sys.argv[1], json.dumps(look.look()))
";

/// A house with these services, and with files around the project that no run may touch.
struct Prey {
    house: House,
    port: u16,
    neighbour: Child,
    _listener: TcpListener,
}

impl Prey {
    fn new() -> Self {
        let mut house = House::new(Some(CONFIG));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // A process of the host, identified by its arguments.
        let mark = format!("neighbour-of-{port}");
        let mut command = Command::new("python3");
        command.args(["-c", "import sys; sys.stdin.read()", &mark]).stdin(Stdio::piped());
        let neighbour = command.spawn().unwrap();
        // The server listens at a socket of its own choice.
        house.run(&["down"]).ok();
        house.home.0.ended();
        let listening = house.home.0.start(&["--listen", "none"], &[]);
        let home = house.home.0.path().join(".ssh");
        std::fs::create_dir(&home).unwrap();
        let other = house.home.0.path().join("elsewhere");
        let places = json!({
            "data": house.home.0.data().join("canary"),
            "home": home.join("id"),
            "project": house.project.join("canary"),
            "other": other,
            "log": house.home.0.data().join("leases/canary"),
            "api": listening["socket"],
            "port": port,
            "process": mark,
            "pid": neighbour.id(),
        });
        std::fs::create_dir_all(house.home.0.data().join("leases")).unwrap();
        for name in ["data", "home", "other", "log", "project"] {
            std::fs::write(places[name].as_str().unwrap(), "a-canary\n").unwrap();
        }
        let server = |says: &str| SERVER.replace("@SAYS@", says);
        for (name, text) in [
            ("look.py", LOOK.to_owned()),
            ("server.py", server("web")),
            ("server_of_old.py", server("old")),
            ("back.py", server("back")),
            ("up.py", "import os, urllib.request as u\nu.urlopen(os.environ['BACK'])\n".to_owned()),
            ("hook.py", HOOK.to_owned()),
            ("paths.json", places.to_string()),
            (".gitignore", "*.sqlite3\n__pycache__/\ncanary*\nwritten.txt\n".to_owned()),
        ] {
            std::fs::write(house.project.join(name), text).unwrap();
        }
        house.git(&["add", "-A"]);
        house.git(&["commit", "-qm", "application"]);
        Self { house, port, neighbour, _listener: listener }
    }

    /// The run, which has rewritten its service and a hook, and waits until it is stopped.
    fn run(&self, name: &str, more: &[&str]) -> Value {
        let hostile = format!("cat > server.py <<'END'\n{HOSTILE}END\necho rewritten; sleep 600");
        let run = self.house.start(name, more, &hostile);
        assert_eq!(run["room"]["phase"], "ready", "{run} {}", self.house.log(name));
        self.house.home.says(name, "rewritten");
        run
    }

    /// Whether anything runs that the service has hidden.
    fn hidden(&self) -> bool {
        let hidden = format!("/bin/sleep\0600.{}\0", self.port);
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines.into_iter().any(|line| line == hidden.as_bytes())
    }

    /// No protected file was written to.
    fn is_untouched(&self) -> bool {
        let data = self.house.home.0.data();
        [
            data.join("canary"),
            data.join("leases/canary"),
            self.house.home.0.path().join(".ssh/id"),
            self.house.home.0.path().join("elsewhere"),
            self.house.project.join("canary"),
        ]
        .iter()
        .all(|path| {
            let made = format!("{}.made", path.display());
            std::fs::read_to_string(path).unwrap() == "a-canary\n" && !Path::new(&made).exists()
        })
    }

    fn check(mut self) {
        for name in ["leases/canary", "leases/canary.made"] {
            drop(std::fs::remove_file(self.house.home.0.data().join(name)));
        }
        self.neighbour.kill().unwrap();
        self.neighbour.wait().unwrap();
        self.house.check();
    }
}

pub(crate) fn port_of(run: &Value, service: &str) -> u16 {
    let port = &run["room"]["ports"][format!("{service}/http")];
    u16::try_from(port.as_u64().unwrap_or_else(|| panic!("{run}"))).unwrap()
}

/// The answer at this port of the host; `None` if there was none.
pub(crate) fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

/// Restarts the service, and returns the answer of the new one.
fn reborn(port: u16) -> Value {
    get(port, "/die");
    let page = until("it is there again", || {
        get(port, "/").filter(|page| !page.is_empty() && page != "web")
    });
    serde_json::from_str(&page).unwrap_or_else(|err| panic!("{err}: {page}"))
}

/// The log of a hook.
fn said_by(log: &str, hook: &str) -> Value {
    let word = format!("{hook} {{");
    let line =
        log.lines().find_map(|line| line.split_once(&word)).unwrap_or_else(|| panic!("{log}"));
    serde_json::from_str(&format!("{{{}", line.1.split(" ---").next().unwrap())).unwrap()
}

fn assert_confined(said: &Value, back: &str) {
    for (what, came) in said["bad"].as_object().unwrap() {
        assert_ne!(came, "done", "{what}: {said}");
    }
    assert_eq!(said["bad"]["port"], "ConnectionRefusedError", "{said}");
    assert_eq!(said["bad"]["processes"], "none", "{said}");
    let also = json!({
        "door": "ConnectionRefusedError", "token": "False", "metadata": "OSError",
        "port6": "ConnectionRefusedError",
    });
    assert_eq!(said["also"], also, "{said}");
    assert_serves(said, back);
}

fn assert_serves(said: &Value, back: &str) {
    let good = json!({
        "worktree": "done", "database": "done", "back": back, "home": "done", "output": "done",
    });
    assert_eq!(said["good"], good, "{said}");
}

#[test]
fn changed_services_and_hooks_have_no_more_access_than_their_run_also_after_a_kill() {
    let mut prey = Prey::new();
    let run = prey.run("boxed", &["--sandbox", "namespace"]);
    let port = port_of(&run, "web");
    assert_eq!(get(port, "/").as_deref(), Some("web"), "as the project has it");
    prey.house.run(&["url", "boxed", "web"]).ok().shows(&format!("127.0.0.1:{port}"));
    assert_confined(&reborn(port), "back");

    // Both survive their server. The next server adopts the process that it has a record of, and
    // restarts the one that was restarted since.
    let back = port_of(&run, "back");
    let me = [back, port].map(|port| get(port, "/me").unwrap());
    assert!(me[0].starts_with("back ") && me[1].starts_with("old "), "{me:?}");
    prey.house.home.0.kill();
    assert_eq!([back, port].map(|port| get(port, "/me").unwrap()), me, "no server is there");
    assert_confined(&serde_json::from_str(&get(port, "/").unwrap()).unwrap(), "back");
    prey.house.home.0.start(&["--listen", "none"], &[]);
    until("it is another one", || get(port, "/me").filter(|now| !now.is_empty() && *now != me[1]));
    assert_confined(&reborn(port), "back");
    assert_eq!(get(back, "/me").as_ref(), Some(&me[0]));
    // It dies while no server can restart it.
    prey.house.home.0.kill();
    get(port, "/die");
    until("nobody is there", || get(port, "/").is_none().then_some(()));
    prey.house.home.0.start(&["--listen", "none"], &[]);
    let said = until("it is started by the next server", || get(port, "/"));
    assert_confined(&serde_json::from_str(&said).unwrap(), "back");

    assert!(prey.hidden(), "what it detached is there");
    prey.house.run(&["stop", "boxed"]).ok();
    let ended = prey.house.ended("boxed");
    assert_eq!(ended["room"]["phase"], "kept", "{ended}");
    assert!(!prey.hidden(), "what it detached is gone");
    // Each was recorded once, the last one before the end of its environment.
    let told = std::fs::read_to_string(House::directory(&ended).join("told.txt")).unwrap();
    let mut who: Vec<&str> = told.lines().collect();
    assert!(!who.is_empty(), "nobody was asked to end");
    who.sort_unstable();
    who.dedup();
    assert_eq!(who.len(), told.lines().count(), "{told}");
    let log = prey.house.log("boxed");
    assert_confined(&said_by(&log, "teardown"), "back");
    // Setup had the host's network before the run, no service, and no file of the host.
    let first = said_by(&log, "setup");
    for (what, came) in first["bad"].as_object().unwrap() {
        assert_eq!(came == "done", what == "port", "{what}: {first}");
    }
    assert_eq!(
        (&first["good"]["worktree"], &first["good"]["database"]),
        (&json!("done"), &json!("done"))
    );
    assert!(prey.is_untouched());
    prey.check();
}

/// Actions that other tests find refused are possible here.
#[test]
fn without_a_sandbox_the_same_services_and_hooks_have_full_access() {
    let prey = Prey::new();
    let run = prey.run("open", &["--sandbox", "none"]);
    let said = reborn(port_of(&run, "web"));
    for (what, came) in said["bad"].as_object().unwrap() {
        assert_eq!(came, "done", "{what}: {said}");
    }
    assert!(!prey.is_untouched());
    prey.house.run(&["stop", "open"]).ok();
    prey.house.ended("open");
    let last = said_by(&prey.house.log("open"), "teardown");
    assert!(last["bad"].as_object().unwrap().values().all(|came| came == "done"), "{last}");
    prey.check();
}

#[test]
fn a_service_has_the_network_of_its_run() {
    let prey = Prey::new();
    for (name, network) in [("wide", "host"), ("alone", "none")] {
        let run = prey.run(name, &["--sandbox", "namespace", "--network", network]);
        let said = reborn(port_of(&run, "web"));
        let reached = if network == "host" { "done" } else { "ConnectionRefusedError" };
        assert_eq!(said["bad"]["port"], reached, "{said}");
        for what in ["read data", "read home", "read log", "api", "signal", "read project"] {
            assert_ne!(said["bad"][what], "done", "{what}: {said}");
        }
        // Inbound connections are needed for its ready check; outbound ones are refused.
        let back = if network == "host" { "back" } else { "URLError" };
        assert_serves(&said, back);
        prey.house.run(&["stop", name]).ok();
        prey.house.ended(name);
    }
    assert!(prey.is_untouched());
    prey.check();
}

#[test]
fn an_environment_whose_services_cannot_be_sandboxed_is_refused() {
    let config = |level: &str| {
        format!(
            "version: 1\nisolation: {{sandbox: {level}}}\nservices:\n  web: {{strategy: process, \
             command: 'touch \"$OVERMIND_PROJECT\"/ran; sleep 600'}}\n"
        )
    };
    let house = House::new(Some(&config("docker")));
    for level in ["docker", "microvm"] {
        std::fs::write(house.project.join(".overmind.yml"), config(level)).unwrap();
        house.trust();
        house.run(&["run", "--name", level, "true"]).fails(10);
        let run = house.ended(level);
        assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("room")));
        let why = run["error"]["message"].as_str().unwrap();
        assert!(why.contains(&format!("runs in no `{level}`")), "{why}");
    }
    assert!(!house.project.join("ran").exists());
    std::fs::write(house.project.join(".overmind.yml"), config("docker")).unwrap();
    house.check();
}

#[test]
fn an_environment_is_refused_if_no_sandbox_can_be_created() {
    let config = "version: 1\nsetup: touch \"$OVERMIND_PROJECT\"/ran\n";
    let mut house = House::new(Some(config));
    house.run(&["down"]).ok();
    house.home.0.ended();
    let up = house.home.0.command(&["up", "-o", "json"]);
    let without = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", without, "sh"]);
    command.arg(up.get_program()).args(up.get_args()).env_clear();
    command.envs(up.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(house.home.0.work());
    house.home.0.start_by(command, &["--listen", "none"], &[]);
    house.run(&["run", "--name", "bare", "--sandbox", "namespace", "true"]).fails(10);
    let run = house.ended("bare");
    let why = run["error"]["message"].as_str().unwrap();
    assert!(why.contains("cannot be set up here") && why.contains("max_user_namespaces"), "{why}");
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("room")));
    assert!(!house.project.join("ran").exists(), "it ran unconfined");
    house.check();
}

#[test]
fn needs_postgres_a_template_command_and_a_service_in_a_sandbox_reach_their_database() {
    let Some(server) = counterpart("POSTGRES") else { return };
    // The program itself: distributions put a wrapper before it that looks for servers of the machine.
    let psql = Path::new(&server).with_file_name("psql");
    let psql = psql.to_str().unwrap();
    let config = format!(
        "version: 1
services:
  db:
    strategy: database
    engine: postgres
    template: {{files: [schema.sql], command: '{psql} -X -q -f schema.sql'}}
  file:
    strategy: database
    engine: sqlite
    file: own.sqlite3
    template: {{files: [fill.py], command: [python3, fill.py]}}
  web: {{strategy: process, command: [python3, posts.py], ports: [http], depends_on: [db, file], ready: {{http: /}}}}
env: {{DATABASE_URL: '${{db.url}}', FILE: '${{file.file}}'}}
"
    );
    let posts = "
import http.server, os, sqlite3, subprocess
class Posts(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        query = 'SELECT title FROM posts'
        said = subprocess.run(['@PSQL@', '-X', '-At', os.environ['DATABASE_URL'], '-c', query], capture_output=True)
        also = sqlite3.connect(os.environ['FILE']).execute('SELECT what FROM said').fetchall()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(said.stdout + repr(also).encode() + said.stderr)
    def log_message(self, *args):
        pass
http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), Posts).serve_forever()
";
    let fill = "
import os, sqlite3
with sqlite3.connect(os.environ['OVERMIND_DATABASE_FILE']) as db:
    db.execute('CREATE TABLE said (what)')
    db.execute(\"INSERT INTO said VALUES ('filled')\")
there = os.path.join(os.environ['OVERMIND_PROJECT'], 'story.txt')
assert not os.path.exists(there), 'the project is seen'
";
    let schema = "CREATE TABLE posts (title text); INSERT INTO posts VALUES ('seed');";
    let house = House::new(Some(&config));
    for (name, text) in [
        ("schema.sql", schema.to_owned()),
        ("posts.py", posts.replace("@PSQL@", psql)),
        ("fill.py", fill.to_owned()),
        (".gitignore", "*.sqlite3\n".to_owned()),
    ] {
        std::fs::write(house.project.join(name), text).unwrap();
    }
    house.git(&["add", "-A"]);
    house.git(&["commit", "-qm", "application"]);
    // The second one finds the templates filled.
    for name in ["one", "two"] {
        let run = house.start(name, &["--sandbox", "namespace"], "sleep 600");
        assert_eq!(run["room"]["phase"], "ready", "{run} {}", house.log(name));
        let page = get(port_of(&run, "web"), "/").unwrap();
        assert_eq!(page, "seed\n[('filled',)]");
    }
    house.run(&["kill", "--all"]).ok();
    for name in ["one", "two"] {
        house.ended(name);
    }
    house.check();
}

/// Writes to the Redis of its environment and saves it; returns that server's answer.
pub(crate) const ASKS_REDIS: &str = r"
import os, socket, urllib.parse
url = urllib.parse.urlparse(os.environ['CACHE'])
one = socket.create_connection((url.hostname, url.port)).makefile('rw', newline='')
def says(*words):
    print(*words, end='\r\n', file=one, flush=True)
    return one.readline().strip()
print(says('AUTH', url.password), says('SET', 'a', 'b'), says('SAVE'), flush=True)
";

#[test]
fn needs_redis_the_server_of_a_sandboxed_run_sees_only_its_own_directory() {
    let Some(_) = counterpart("REDIS") else { return };
    let config = "version: 1\nservices:\n  cache: {strategy: database, engine: redis}\n\
                  env: {CACHE: '${cache.url}', PORT_OF_IT: '${cache.port}'}\n";
    let house = House::new(Some(config));
    std::fs::write(house.project.join("ask.py"), ASKS_REDIS).unwrap();
    house.git(&["add", "-A"]);
    house.git(&["commit", "-qm", "ask"]);
    let canary = house.home.0.data().join("canary");
    std::fs::write(&canary, "").unwrap();
    for (level, seen) in [("namespace", false), ("none", true)] {
        let run = house.start(level, &["--sandbox", level], "python3 ask.py; sleep 600");
        house.home.says(level, "+OK +OK +OK");
        let port = run["room"]["ports"]["cache/port"].as_u64().unwrap_or_else(|| panic!("{run}"));
        let server = format!("redis-server 127.0.0.1:{port}");
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let mut roots = all.filter_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            String::from_utf8_lossy(&line).contains(&server).then(|| entry.path().join("root"))
        });
        let root = roots.next().unwrap_or_else(|| panic!("no {server}"));
        let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap()).exists();
        assert_eq!(inside(&canary), seen, "{level}: the server's data");
        assert_eq!(inside(&house.project.join("story.txt")), seen, "{level}: the project");
        assert_eq!(
            inside(&House::directory(&run).join("story.txt")),
            seen,
            "{level}: the worktree"
        );
        house.run(&["kill", level]).ok();
        house.ended(level);
    }
    house.check();
}
