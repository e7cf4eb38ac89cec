//! Commands of whole sessions in the `docker` sandbox, against a real engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use overmind_testkit::real::counterpart;
use serde_json::{Value, json};

use crate::home::{Home, until};

const IMAGE: &str = "overmind-test-whole:1";
const NOBODY: u32 = 65534;

/// Asks the engine; the client library is no dependency of the product.
fn engine(socket: &str, method: &str, path: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let ask = format!("{method} {path} HTTP/1.0\r\nHost: docker\r\n\r\n");
    stream.write_all(ask.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// The containers, running or not, that show something beneath `dir`.
fn containers_of(socket: &str, dir: &Path) -> Vec<Value> {
    let (status, all) = engine(socket, "GET", "/containers/json?all=1");
    assert_eq!(status, 200);
    let shows = |container: &Value| {
        let mounts = container["Mounts"].as_array().unwrap();
        mounts.iter().any(|mount| Path::new(mount["Source"].as_str().unwrap()).starts_with(dir))
    };
    all.as_array().unwrap().iter().filter(|container| shows(container)).cloned().collect()
}

/// The product's own image, built without a registry.
fn ensure_image(home: &Home, host: &str) {
    let build = ["sandbox", "image", "build", "docker", "--name", IMAGE, "-o", "name"];
    let id = home.run_env(&[("DOCKER_HOST", host)], &build).ok().line().to_owned();
    assert!(id.starts_with("sha256:"), "{id}");
    home.run_env(&[("DOCKER_HOST", host)], &["sandbox", "image", "ls"]).ok().shows(IMAGE);
}

/// A server whose docker sandbox is the engine under test.
fn home(socket: &str) -> Home {
    let mut home = Home::new();
    let host = format!("unix://{socket}");
    ensure_image(&home, &host);
    home.start(&["--listen", "none"], &[("DOCKER_HOST", &host), ("OVERMIND_DOCKER_IMAGE", IMAGE)]);
    home
}

/// The user of the product's containers, if the workspace belongs to `owner`.
fn container_user(owner: u32) -> u32 {
    match (rustix::process::geteuid().as_raw(), owner) {
        (0, 0) => NOBODY,
        (0, owner) => owner,
        (own, _) => own,
    }
}

#[test]
fn needs_docker_a_session_reads_the_workspace_and_writes_its_own_directory() {
    let Some(socket) = counterpart("DOCKER") else { return };
    let mut home = home(&socket);
    let is_root = rustix::process::geteuid().is_root();
    // A workspace of root, and, if possible here, a workspace of another user.
    for owner in if is_root { vec![0, 4321] } else { vec![rustix::process::geteuid().as_raw()] } {
        chown(home.work(), Some(owner), Some(owner)).unwrap();
        std::fs::write(home.work().join("hello.txt"), "from the workspace\n").unwrap();
        let turns = json!([
            {"calls": [{"name": "run_shell", "args": {
                "command": "cat /workspace/hello.txt && id -u && pwd && echo made > made.txt \
                            && ! echo x 2>/dev/null > /workspace/elsewhere.txt",
                "allow_write": true,
            }}]},
            // A second call of the session finds the directory as the first left it.
            {"expect": {"last_tool_contains": "from the workspace"},
             "calls": [{"name": "run_shell", "args": {
                "command": "cat made.txt && echo more >> made.txt",
                "allow_write": true,
            }}]},
            {"expect": {"last_tool_contains": "made"},
             "calls": [{"name": "final_answer", "args": {"message": "written"}}]},
        ]);
        let name = format!("writer-{owner}");
        home.scripted(&name, &turns, &["--sandbox", "docker"]);
        let run = home.run(&["run", &name, "go", "--wait", "-o", "json"]).ok().json();
        assert_eq!(run["status"], "succeeded", "{run}");

        let id = run["id"].as_str().unwrap();
        let replay = home.run(&["replay", id, "-o", "json"]).ok().out;
        let user = container_user(owner);
        let own = format!(".overmind_runs/{id}");
        let said = format!("from the workspace\\n{user}\\n/workspace/{own}\\n");
        assert!(replay.contains(&said), "no `{said}` in {replay}");
        assert!(replay.contains("docker run --rm --network none --read-only"), "{replay}");

        let dir = home.work().join(&own);
        assert_eq!(std::fs::read_to_string(dir.join("made.txt")).unwrap(), "made\nmore\n");
        for path in [dir.clone(), dir.join("made.txt")] {
            let found = path.metadata().unwrap();
            assert_eq!((found.uid(), found.mode() & 0o7022), (user, 0), "{}", path.display());
        }
        // The files around it still belong to their owners.
        assert_eq!(home.work().metadata().unwrap().uid(), owner);
        assert!(!home.work().join("elsewhere.txt").exists());
        // The remaining container waits for the next call of the session and has served none.
        for left in containers_of(&socket, &home.work()) {
            let command = left["Command"].as_str().unwrap();
            assert!(command.ends_with(" __docker-waiter"), "{left}");
        }
    }
    home.run(&["down"]).ok();
    assert!(home.ended().success());
    assert_eq!(containers_of(&socket, &home.work()), [Value::Null; 0]);
}

#[test]
fn needs_docker_no_container_outlives_a_canceled_session_or_a_killed_server() {
    let Some(socket) = counterpart("DOCKER") else { return };
    let mut home = home(&socket);
    home.agent("sleeper", &["--sandbox", "docker"]);
    let running = |home: &Home| {
        until("its container runs", || {
            containers_of(&socket, &home.work()).pop().filter(|one| one["State"] == "running")
        })
    };
    let none = |home: &Home, what: &str| {
        until(what, || containers_of(&socket, &home.work()).is_empty().then_some(()));
    };
    let start = |home: &Home| {
        home.run(&["run", "sleeper", "shell: sleep 60", "-o", "name"]).ok().line().to_owned()
    };

    let id = start(&home);
    running(&home);
    home.run(&["cancel", &id]).ok();
    none(&home, "a canceled session's container is gone");

    start(&home);
    running(&home);
    home.kill();
    none(&home, "a killed server's container is gone");
}
