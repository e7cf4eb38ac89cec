//! Sandboxed runs with their own services and databases, whose only network is the mesh.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use overmind_testkit::real::counterpart;
use serde_json::{Value, json};

use crate::home::until;
use crate::worktrees::House;

const CONFIG: &str = "version: 1
services:
  db:
    strategy: database
    engine: postgres
    template: {files: [schema.sql], sql: [schema.sql]}
  web:
    strategy: process
    command: exec python3 server.py
    ports: [http]
    depends_on: [db]
    ready: {http: /}
    restart: {policy: always, backoff: 10ms}
env:
  DATABASE_URL: '${db.url}'
  WEB: '${web.url}'
";

const SCHEMA: &str = "CREATE TABLE posts (id serial PRIMARY KEY, title text);";

/// A service that returns the content of its database, and dies on request.
const SERVER: &str = r#"
import http.server, os, subprocess
class Posts(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(1)
        query = "SELECT coalesce(string_agg(title, ',' ORDER BY id), '') FROM posts"
        said = subprocess.run(["psql", "-At", os.environ["DATABASE_URL"], "-c", query], capture_output=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(said.stdout)
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Posts).serve_forever()
"#;

/// The actions of a run. `look.py` waits for the files `NAME.json` in its directory, one order
/// after the other.
const LOOK: &str = r#"
import json, os, socket, subprocess, sys, time, urllib.parse, urllib.request
url, web = os.environ["DATABASE_URL"], os.environ["WEB"]
me = os.environ["OVERMIND_SESSION_NAME"]

def sql(query, to=url):
    done = subprocess.run(["@PSQL@", "-X", "-q", "-At", to, "-c", query], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "failed: " + done.stderr.strip()

def page(path="/"):
    try:
        return urllib.request.urlopen(web + path, timeout=60).read().decode().strip()
    except OSError as err:
        return "failed: " + str(err)

def reaches(port, host="127.0.0.1"):
    try:
        socket.create_connection((host, port), timeout=60).close()
        return "reached"
    except OSError as err:
        return "late" if isinstance(err, TimeoutError) else "refused"

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)
    return json.load(open(name))

def show(*what):
    print(*what, flush=True)

show("put", sql(f"INSERT INTO posts (title) VALUES ('{me}'); SELECT 'done'"))
show("database", sql("SELECT string_agg(title, ',' ORDER BY id) FROM posts"))
show("service", page())
with open("mine.json.new", "w") as file:
    json.dump({"database": url, "web": urllib.parse.urlparse(web).port}, file)
os.rename("mine.json.new", "mine.json")

other = wait_for("other.json")
for name, port in other["ports"].items():
    show(name, reaches(port), reaches(port, "::1"))
show("metadata", reaches(80, "169.254.169.254"))
# The same server of databases: by its own name and password it gets into no other's.
theirs = url.rsplit("/", 1)[0] + "/" + other["database"].rsplit("/", 1)[1]
show("theirs", "denied" if "permission denied for database" in sql("SELECT 1", theirs) else sql("SELECT 1", theirs))
show("server", "denied" if "permission denied" in sql("SELECT 1", url.rsplit("/", 1)[0] + "/postgres") else "in")
show("become", sql("SET ROLE overmind").split("\n")[0])

# Its service dies and is started again: whoever connects next reaches it.
died = page("/die")
while page() != me:
    time.sleep(0.01)
show("again", page())

wait_for("alone.json")
show("alone", sql(f"INSERT INTO posts (title) VALUES ('{me} alone'); SELECT count(*) FROM posts"))
wait_for("go.json")
"#;

fn order(directory: &Path, name: &str, what: &Value) {
    let new = directory.join("order.new");
    std::fs::write(&new, what.to_string()).unwrap();
    std::fs::rename(new, directory.join(name)).unwrap();
}

#[test]
fn needs_postgres_two_sandboxed_runs_use_their_own_database_and_service_over_the_mesh_alone() {
    let Some(server) = counterpart("POSTGRES") else { return };
    // The program itself: distributions put a wrapper before it that looks for servers of the machine.
    let psql = Path::new(&server).with_file_name("psql");
    let mut house = House::new(Some(CONFIG));
    for (name, text) in [
        ("schema.sql", SCHEMA.to_owned()),
        ("server.py", SERVER.to_owned()),
        ("look.py", LOOK.replace("@PSQL@", psql.to_str().unwrap())),
        (".gitignore", "*.json\n".to_owned()),
    ] {
        std::fs::write(house.project.join(name), text).unwrap();
    }
    house.git(&["add", "-A"]);
    house.git(&["commit", "-qm", "application"]);
    let names = ["one", "two"];
    let runs = names.map(|name| {
        let run = house.start(name, &["--sandbox", "namespace"], "python3 look.py");
        (name, run)
    });
    let own = runs.clone().map(|(name, run)| {
        let file = House::directory(&run).join("mine.json");
        let wait = || match std::fs::read(&file) {
            Ok(text) => Some(text),
            Err(_) => {
                assert_ne!(house.home.named(name)["status"], "failed", "{}", house.log(name));
                None
            }
        };
        let text = until("it has used its own", wait);
        serde_json::from_slice::<Value>(&text).unwrap()
    });
    // A service of the host that belongs to no run.
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    for (n, (_, run)) in runs.iter().enumerate() {
        let other = &own[1 - n];
        let ports = json!({"other's service": other["web"], "host": port});
        let order_of = json!({"database": other["database"], "ports": ports});
        order(&House::directory(run), "other.json", &order_of);
    }
    for (name, run) in &runs {
        let log = house.home.says(name, &format!("again {name}"));
        let said: Vec<&str> = log.lines().filter(|line| !line.starts_with("---")).collect();
        let wanted = [
            "put done".to_owned(),
            format!("database {name}"),
            format!("service {name}"),
            "other's service refused refused".to_owned(),
            "host refused refused".to_owned(),
            "metadata refused".to_owned(),
            "theirs denied".to_owned(),
            "server denied".to_owned(),
            "become failed: ERROR:  permission denied to set role \"overmind\"".to_owned(),
            format!("again {name}"),
        ];
        assert_eq!(said, wanted, "{name}");
        // With the default network; the record lists what it reaches.
        assert_eq!(house.run(&["info", name, "-o", "json"]).ok().json()["network"], "mesh");
        let verified = house.run(&["sandbox", "verify", name]).ok();
        let mut ports = ["db", "web"].map(|service| own_port(run, service, &own, name));
        ports.sort_unstable();
        verified.shows("network mesh").shows(&format!("at ports {}, {};", ports[0], ports[1]));
    }
    assert_ne!(own[0]["web"], own[1]["web"]);
    host.set_nonblocking(true).unwrap();
    assert!(host.accept().is_err(), "nobody came to the host's port");

    // Without its server a run continues, and reaches its own services.
    house.home.0.kill();
    for (_, run) in &runs {
        order(&House::directory(run), "alone.json", &json!({}));
    }
    for own in &own {
        let url = own["database"].as_str().unwrap();
        let query = "SELECT count(*) FROM posts WHERE title LIKE '% alone'";
        until("it has written while no server was there", || {
            let counted =
                Command::new(&psql).args(["-X", "-At", url, "-c", query]).output().unwrap();
            (counted.stdout == b"1\n").then_some(())
        });
    }
    house.home.0.start(&["--listen", "none"], &[]);
    for (name, run) in &runs {
        house.home.says(name, "alone 2");
        order(&House::directory(run), "go.json", &json!({}));
        let ended = house.ended(name);
        assert_eq!(ended["status"], "succeeded", "{ended} {}", house.log(name));
        assert_eq!(
            (&ended["process"]["life"], &ended["room"]["phase"]),
            (&json!(1), &json!("closed"))
        );
        assert_eq!(ended["room"]["leaks"].as_array().map_or(0, Vec::len), 0, "{ended}");
    }
    house.run(&["down"]).ok();
    house.home.0.ended();
    house.home.0.start(&["--listen", "none"], &[]);
    house.check();
}

/// Answers like a Redis to a client that leases an index: ready, and empty.
fn redis(at: &str) -> u16 {
    let listener = TcpListener::bind((at, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut asked = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut asked) {
                    let sized = asked[..count].windows(6).any(|word| word == b"DBSIZE");
                    let answer: &[u8] = if sized { b":0\r\n" } else { b"+OK\r\n" };
                    if stream.write_all(answer).is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

#[test]
fn a_database_url_on_loopback_is_reachable_and_a_remote_one_is_reported() {
    let (near, far) = (redis("127.0.0.1"), redis("127.0.0.2"));
    let config = format!(
        "version: 1
services:
  near: {{strategy: database, engine: redis, server: 'redis://127.0.0.1:{near}'}}
  far: {{strategy: database, engine: redis, server: 'redis://127.0.0.2:{far}'}}
env: {{NEAR: '${{near.host}} ${{near.port}}', FAR: '${{far.host}} ${{far.port}}'}}
"
    );
    let mut house = House::new(Some(&config));
    let granted = format!("[rooms]\nservers = [\"127.0.0.1:{near}\", \"127.0.0.2:{far}\"]\n");
    let file = house.home.0.data().join("overmind.toml");
    std::fs::write(&file, granted).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    let look = "import os, socket
for name in ['NEAR', 'FAR']:
    try:
        one = socket.create_connection(os.environ[name].split())
        one.sendall(b'*1\\r\\n$4\\r\\nPING\\r\\n')
        print(name, one.recv(64))
    except ConnectionRefusedError:
        print(name, 'refused')
";
    std::fs::write(house.project.join("look.py"), look).unwrap();
    house.git(&["add", "-A"]);
    house.git(&["commit", "-qm", "look"]);
    let missed = format!("not reached over the mesh: far at 127.0.0.2:{far}");
    for (name, more, reached) in [("mesh", &[][..], false), ("host", &["--network", "host"], true)]
    {
        let more = [&["--sandbox", "namespace"], more].concat();
        house.start(name, &more, "python3 look.py");
        house.ended(name);
        let log = house.log(name);
        assert!(log.contains("NEAR b'+OK\\r\\n'"), "{log}");
        assert_eq!(log.contains("FAR refused"), !reached, "{log}");
        assert_eq!(log.contains(&missed), !reached, "{log}");
    }
    house.check();
}

/// The port of its service, and that of the server of databases.
fn own_port(run: &Value, service: &str, own: &[Value; 2], name: &str) -> u64 {
    match service {
        "web" => run["room"]["ports"]["web/http"].as_u64().unwrap(),
        _ => {
            let url = own[usize::from(name == "two")]["database"].as_str().unwrap();
            let (_, rest) = url.rsplit_once('@').unwrap();
            rest.split(['/', ':']).nth(1).unwrap().parse().unwrap()
        }
    }
}
