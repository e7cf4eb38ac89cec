//! Artifacts in the whole product: agents that save and read, people, kills, backups.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::home::{Done, Home, until};

const TOOLS: &str = "write_file,save_artifact,read_artifact,list_artifacts";

fn permit(home: &Home, permissions: &Value) {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut dir = std::fs::DirBuilder::new();
    dir.recursive(true).mode(0o700).create(home.data()).expect("the data directory");
    let file = home.data().join("permissions.json");
    std::fs::write(file, json!({"permissions": permissions}).to_string()).expect("it is written");
}

fn call(name: &str, args: &Value) -> Value {
    json!({"calls": [{"name": name, "args": args}]})
}

fn run(home: &Home, agent: &str) -> String {
    home.run(&["run", agent, "work", "-o", "name"]).ok().line().to_owned()
}

/// The results of a run's calls of a tool.
fn results(home: &Home, id: &str, tool: &str) -> Vec<Value> {
    let steps = home.run(&["events", id, "--limit", "1000", "-o", "json"]).ok().json();
    let called = steps.as_array().expect("a list").iter().filter(|event| {
        event["type"] == "tool.called" && event["payload_json"]["tool_name"] == tool
    });
    called.map(|event| event["payload_json"]["result"].clone()).collect()
}

fn save(home: &Home, args: &[&str], content: &[u8]) -> Done {
    let mut child = home
        .command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    child.stdin.take().expect("piped").write_all(content).expect("it reads");
    let out = child.wait_with_output().expect("it ends");
    Done {
        code: out.status.code().unwrap_or(-1),
        out: String::from_utf8(out.stdout).expect("text"),
        err: String::from_utf8(out.stderr).expect("text"),
    }
}

#[test]
fn artifacts_are_shared_between_agents_and_fetched_listed_and_removed_by_people() {
    let mut home = Home::new();
    permit(
        &home,
        &json!({
            "writer": {"blackboard_write": ["artifacts/writer/**"]},
            "reader": {"blackboard_read": ["artifacts/writer/**"]},
            "stranger": {"blackboard_read": ["context/**"]},
        }),
    );
    home.start(&["--listen", "none"], &[]);
    let more = ["--tools", TOOLS];
    let turns = json!([
        call("write_file", &json!({"path": "out/report.md", "content": "# Findings\n"})),
        call("save_artifact", &json!({"name": "report.md", "path": "out/report.md"})),
        call("save_artifact", &json!({"name": "report.md", "content": "# Findings, again\n"})),
        call("save_artifact", &json!({"name": "../../up", "content": "x"})),
        call("list_artifacts", &json!({})),
        {"text": "Saved."},
    ]);
    home.scripted("writer", &turns, &more);
    let written = run(&home, "writer");
    home.wait_for(&written, "succeeded");
    let saved = results(&home, &written, "save_artifact");
    assert_eq!((&saved[0]["version"], &saved[1]["version"]), (&json!(1), &json!(2)), "{saved:?}");
    assert_eq!(saved[1]["shared"], "artifacts/writer/report.md");
    assert_eq!(saved[2]["error"]["code"], "bad_args");
    assert_eq!(results(&home, &written, "list_artifacts")[0]["count"], 1);
    home.run(&["replay", &written, "--verify"]).ok();

    let read = |name: &str| {
        let turns = json!([
            call("read_artifact", &json!({"name": "report.md", "agent": "writer"})),
            call("read_artifact", &json!({"name": "report.md", "run": written})),
            {"text": "Read."},
        ]);
        home.scripted(name, &turns, &more);
        let id = run(&home, name);
        home.wait_for(&id, "succeeded");
        home.run(&["replay", &id, "--verify"]).ok();
        results(&home, &id, "read_artifact")
    };
    for told in read("reader") {
        assert_eq!(told["content"], "# Findings, again\n", "{told}");
        assert_eq!((&told["untrusted"], &told["author"]), (&json!(true), &json!("writer")));
    }
    for told in read("stranger") {
        assert_eq!(told["error"]["code"], "denied", "{told}");
    }

    // People, by the command line.
    let listed = home.run(&["artifact", "list", &written, "-o", "json"]).ok().json();
    assert_eq!((&listed[0]["name"], &listed[0]["size"]), (&json!("report.md"), &json!(18)));
    home.run(&["artifacts", "ls", &written]).ok().shows("report.md");
    let got = home.run(&["artifact", "get", &written, "report.md"]).ok();
    assert_eq!(got.out, "# Findings, again\n");
    let file = home.work().join("report.md");
    let to = file.to_str().expect("a path");
    home.run(&["artifact", "get", &written, "report.md", "--file", to]).ok();
    assert_eq!(std::fs::read(&file).expect("it is there"), b"# Findings, again\n");
    home.run(&["artifact", "get", &written, "report.md", "--file", to]).fails(5).says("--force");
    let stdin = save(&home, &["artifact", "save", &written, "notes.txt"], b"by a person\n").ok();
    stdin.shows("artifacts/writer/notes.txt");
    home.run(&["artifact", "save", &written, "copy.md", "--file", to, "-o", "json"]).ok();
    let secret = format!("ghp_{}", "A1b2C3d4E5f6G7h8I9j0");
    save(&home, &["artifact", "save", &written, "key.txt"], secret.as_bytes()).ok().shows("masked");
    let kept = home.run(&["artifact", "get", &written, "key.txt"]).ok();
    assert_eq!(kept.out, "[redacted:github-token]");
    home.run(&["artifact", "rm", &written, "notes.txt"]).ok();
    home.run(&["artifact", "get", &written, "notes.txt"]).fails(3).says("Artifact not found");
    home.run(&["artifact", "get", "notes.txt"]).fails(2).says("no run is given");
    home.run(&["replay", &written, "--verify"]).ok();
    home.run(&["audit", "verify"]).ok();
}

#[test]
fn a_run_token_reads_and_writes_only_artifacts_of_its_run() {
    let mut home = crate::commands::Commands(Home::new());
    permit(&home.0, &json!({"ann": {"blackboard_write": ["artifacts/ann/**"]}}));
    home.0.start(&["--listen", "none"], &[]);
    for name in ["ann", "bob"] {
        let script = "read line";
        let command = json!({"provider": "raw", "argv": ["sh", "-c", script], "kind": "session"});
        let agent = json!({
            "name": name, "role": "r", "model": "command", "sandbox": "none", "command": command,
        });
        let file = home.0.path().join("agent.json");
        std::fs::write(&file, agent.to_string()).expect("the home can be written");
        home.run(&["agent", "create", "--file", file.to_str().expect("a path")]).ok();
        home.run(&["run", "--name", name, name]).ok();
        home.alive(name);
    }
    let token = |name: &str| home.variable(name, "OVERMIND_TOKEN");
    let (ann, run) = (token("ann"), home.variable("ann", "OVERMIND_SESSION_ID"));
    let bob = token("bob");
    let as_run = |token: &str, args: &[&str]| {
        home.0.run_env(&[("OVERMIND_TOKEN", token), ("OVERMIND_SESSION_ID", &run)], args)
    };
    let file = home.0.work().join("a.txt");
    std::fs::write(&file, "ann's own\n").expect("the home can be written");
    let path = file.to_str().expect("a path");
    // In a run no run need be named.
    as_run(&ann, &["artifact", "save", "a.txt", "--file", path]).ok();
    as_run(&ann, &["artifact", "list"]).ok().shows("a.txt");
    assert_eq!(as_run(&ann, &["artifact", "get", "a.txt"]).ok().out, "ann's own\n");
    as_run(&ann, &["artifact", "rm", "a.txt"]).fails(6);
    as_run(&bob, &["artifact", "get", &run, "a.txt"]).fails(6).says("bob cannot read");
    as_run(&bob, &["artifact", "list", &run]).fails(6).says("bob cannot read artifacts/ann/");
    as_run(&bob, &["artifact", "save", &run, "a.txt", "--file", path]).fails(6);
    home.run(&["acl", "allow", "bob", "read", "artifacts/ann/*"]).ok();
    assert_eq!(as_run(&bob, &["artifact", "get", &run, "a.txt"]).ok().out, "ann's own\n");
    home.run(&["kill", "ann", "bob"]).ok();
    home.check();
}

/// Files below the directory of artifacts.
fn kept(home: &Home) -> Vec<std::path::PathBuf> {
    let below = |dir: &std::path::Path| -> Vec<std::path::PathBuf> {
        let all = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
        all.map(|entry| entry.path()).collect()
    };
    below(&home.data().join("overmind.db.artifacts")).iter().flat_map(|dir| below(dir)).collect()
}

#[test]
fn a_kill_between_file_and_commit_leaves_no_partial_artifact() {
    for (point, left) in [("artifact.written", 1), ("artifact.kept", 1)] {
        let mut home = Home::new();
        home.start(&["--listen", "none"], &[("OVERMIND_FAILPOINTS", &format!("{point}:1"))]);
        let turns = json!([
            call("save_artifact", &json!({"name": "a.txt", "content": "whole\n"})),
            {"text": "Saved."},
        ]);
        home.scripted("writer", &turns, &["--tools", TOOLS]);
        let id = run(&home, "writer");
        home.ended();
        assert_eq!(kept(&home).len(), left, "{point}");
        home.start(&["--listen", "none"], &[]);
        // The call is repeated and counts as the same one.
        home.wait_for(&id, "succeeded");
        let saved = results(&home, &id, "save_artifact");
        assert_eq!((saved.len(), &saved[0]["version"]), (1, &json!(1)), "{point}");
        let got = home.run(&["artifact", "get", &id, "a.txt"]).ok();
        assert_eq!(got.out, "whole\n", "{point}");
        until("one file is left", || (kept(&home).len() == 1).then_some(()));
        home.run(&["replay", &id, "--verify"]).ok();
    }
    // An upload whose connection was cut is not retried: its bytes are removed.
    let mut home = Home::up();
    home.agent("plain", &[]);
    let id = home.run(&["run", "plain", "remember: x", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&id, "succeeded");
    home.kill();
    home.start(&["--listen", "none"], &[("OVERMIND_FAILPOINTS", "artifact.kept:1")]);
    let cut = save(&home, &["artifact", "save", &id, "a.txt"], b"cut off");
    assert_ne!(cut.code, 0, "{cut:?}");
    home.ended();
    assert_eq!(kept(&home).len(), 1);
    home.start(&["--listen", "none"], &[]);
    until("the sweep has passed", || kept(&home).is_empty().then_some(()));
    home.run(&["artifact", "get", &id, "a.txt"]).fails(3);
}

#[test]
fn a_backup_contains_artifacts_and_a_restore_restores_them() {
    let mut home = Home::up();
    home.agent("plain", &[]);
    let id = home.run(&["run", "plain", "remember: x", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&id, "succeeded");
    save(&home, &["artifact", "save", &id, "a.txt"], b"backed up\n").ok();
    let copy = home.path().join("copy.db");
    let copy = copy.to_str().expect("a path");
    home.run(&["backup", copy]).ok();
    save(&home, &["artifact", "save", &id, "a.txt"], b"later\n").ok();
    home.run(&["down"]).ok();
    home.ended();
    home.run(&["restore", copy, "--force"]).ok();
    home.start(&["--listen", "none"], &[]);
    assert_eq!(home.run(&["artifact", "get", &id, "a.txt"]).ok().out, "backed up\n");
    home.run(&["audit", "verify"]).ok();
}

#[test]
fn curl_uploads_and_downloads_artifacts_by_name() {
    let mut home = Home::up();
    home.agent("plain", &[]);
    let id = home.run(&["run", "plain", "remember: x", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&id, "succeeded");
    let token = std::fs::read_to_string(home.data().join("admin.token")).expect("a token");
    let socket = home.data().join("overmind.sock");
    let curl = |args: &[&str], path: &str| {
        let out = Command::new("curl")
            .args(["-s", "--max-time", "20", "--path-as-is", "--unix-socket"])
            .arg(&socket)
            .args(["-H", &format!("Authorization: Bearer {}", token.trim())])
            .args(args)
            .arg(format!("http://localhost/api/runs/{id}/artifacts/{path}"))
            .output()
            .expect("curl runs");
        String::from_utf8(out.stdout).expect("text")
    };
    let saved = curl(&["-X", "PUT", "--data-binary", "a,b\n1,2\n"], "out/t.csv");
    let saved: Value = serde_json::from_str(&saved).expect("JSON");
    assert_eq!(saved["media_type"], "text/csv; charset=utf-8", "{saved}");
    assert_eq!(curl(&[], "out/t.csv"), "a,b\n1,2\n");
    let up = curl(&["-X", "PUT", "--data-binary", "x"], "../../../up");
    assert!(!up.contains("\"version\""), "{up}");
    assert!(curl(&["-X", "PUT", "--data-binary", "x"], "%2e%2e/up").contains("segment"));
    home.run(&["down"]).ok();
    home.ended();
}
