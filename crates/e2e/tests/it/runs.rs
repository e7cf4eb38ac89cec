//! Runs, from the first word to the exit code.

use std::process::Stdio;

use serde_json::json;

use crate::home::{Home, until};
use crate::tty::Person;

#[test]
fn following_a_run_shows_its_steps_and_succeeds() {
    let home = Home::up();
    home.agent("sh", &[]);
    let done = home.run(&["run", "sh", "shell: echo from the sandbox; ls /opt/x", "--follow"]);
    // The command fails, for there is no such file; the agent's one action has failed.
    let done = done.fails(10);
    done.shows("▸ run_shell echo from the sandbox")
        .shows("│ from the sandbox")
        .shows("  ✗ exit ")
        .says("failed after");
    let done = home.run(&["run", "sh", "shell: echo hello", "--follow"]).ok();
    done.shows("started")
        .shows("  ▸ run_shell echo hello\n          │ hello\n          ✓ exit 0  ")
        .shows("done");
    assert!(!done.out.contains('\x1b'), "no colour into a pipe");
    let done = home.run(&["run", "sh", "shell: echo hello", "--follow", "--color", "always"]).ok();
    assert!(done.out.contains("\x1b[32m"), "colour when asked for");
}

#[test]
fn wait_returns_the_result_as_its_exit_code() {
    let home = Home::up();
    home.agent("sh", &[]);
    let run = |task: &str| home.run(&["run", "sh", task, "--wait", "-o", "json"]);
    let good = run("write: a.txt: x\n").ok().json();
    assert_eq!((good["status"].as_str(), good["epoch"].as_u64()), (Some("succeeded"), Some(1)));
    assert_eq!(std::fs::read_to_string(home.work().join("a.txt")).unwrap(), "x\n");
    let bad = run("shell: exit 3").fails(10).json();
    assert_eq!(bad["status"], "failed");
    let asks = run("curl the page for me").fails(12).json();
    assert_eq!(asks["prompt"], "Please provide the full URL to fetch.");
}

#[test]
fn a_question_is_answered_and_a_run_without_a_question_is_not() {
    let home = Home::up();
    let turns = json!([
        {"calls": [{"name": "ask_user", "args": {"message": "which file?"}}]},
        {"expect": {"last_tool_contains": "b.txt"},
         "calls": [{"name": "write_file", "args": {"path": "b.txt", "content": "y"}}]},
        {"calls": [{"name": "final_answer", "args": {"message": "written"}}]},
    ]);
    home.scripted("asker", &turns, &[]);
    let done = home.run(&["run", "asker", "write something", "--follow"]).fails(12);
    done.shows("asks: which file?").says("overmind answer ");
    let id = home.run(&["ps", "--status", "awaiting_input", "-o", "name"]).ok().line().to_owned();
    home.run(&["input", &id, "  "]).fails(2).says("must not be blank");
    home.run(&["input", &id, "b.txt, please"]).ok();
    home.run(&["logs", "-f", &id])
        .ok()
        .shows("admin answers: b.txt, please")
        .shows("answers: written");
    home.run(&["input", &id, "again"]).fails(5).says("not awaiting input");
    assert_eq!(std::fs::read_to_string(home.work().join("b.txt")).unwrap(), "y");
}

#[test]
fn an_action_waits_for_its_approval() {
    let home = Home::up();
    home.agent("careful", &["--approvals", "run_shell"]);
    let start = |what: &str| {
        let task = format!("shell: echo x > {what}");
        home.run(&["run", "careful", &task, "--wait", "-o", "json"]).fails(12).json()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (yes, no) = (start("yes"), start("no"));
    home.run(&["logs", &yes]).ok().shows("waits for approval: run_shell echo x > yes");
    home.run(&["approve", &yes, "--reason", "looked at it"]).ok();
    home.run(&["deny", &no, "--reason", "not today"]).ok();
    // The workspace is read-only for the command, so the approved one fails and the other is
    // never begun.
    home.run(&["logs", "-f", &yes])
        .ok()
        .shows("approved by admin: looked at it")
        .shows("run_shell");
    let story = home.run(&["logs", "-f", &no]).ok();
    story.shows("denied by admin: not today");
    home.run(&["approve", &yes]).fails(5).says("does not wait for approval");
}

#[test]
fn a_terminal_prompt_ends_when_another_person_answers_or_stops_the_run() {
    let home = Home::up();
    home.agent("careful", &["--approvals", "run_shell"]);
    let follow = |name: &str| {
        let args = ["run", "--name", name, "careful", "shell: echo x > y"];
        let person = Person::at(&home, 120, 40, &args);
        person.sees("allow it, this once?");
        person
    };
    let mut person = follow("elsewhere");
    home.run(&["approve", "elsewhere"]).ok();
    person.sees("admin has allowed it");
    person.leaves();
    let mut person = follow("stopped");
    home.run(&["cancel", "stopped"]).ok();
    person.sees("it no longer needs an answer");
    person.leaves();
    // Input that is typed there is still an answer.
    let mut person = follow("here");
    person.types("n\n");
    person.leaves();
    home.run(&["logs", "here"]).ok().shows("denied by admin");
}

#[test]
fn canceling_a_run_stops_its_command_and_is_reported() {
    let home = Home::up();
    home.agent("sh", &[]);
    let mut waiting = home
        .command(&["run", "sh", "shell: sleep 60", "--wait", "-o", "name"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let id = until("it runs", || {
        let ids = home.run(&["ps", "--status", "running", "-o", "name"]).ok().out;
        ids.lines().next().map(str::to_owned)
    });
    home.run(&["cancel", &id]).ok().shows("stopped");
    assert_eq!(waiting.wait().unwrap().code(), Some(11));
    home.run(&["cancel", &id]).fails(5);
    // One that cannot be does not keep the others from being canceled.
    let other = home.run(&["run", "sh", "shell: sleep 60", "-o", "name"]).ok().line().to_owned();
    let done = home.run(&["cancel", &id, &other]);
    assert_eq!(done.code, 5);
    home.wait_for(&other, "canceled");
}

#[test]
fn ps_lists_active_runs_and_all_runs_on_request() {
    let home = Home::up();
    let none = home.run(&["ps"]).ok();
    assert_eq!(none.out, "");
    none.says("no unfinished runs");
    home.run(&["ps", "--all"]).ok().says("start one: overmind run");
    assert_eq!(home.run(&["ps", "--all", "-o", "json"]).ok().json(), json!([]));
    home.agent("sh", &[]);
    home.agent("other", &[]);
    home.run(&["run", "sh", "shell: echo 1", "--wait"]).ok();
    home.run(&["run", "other", "shell: exit 1", "--wait"]).fails(10);
    home.run(&["ps"]).ok().says("no unfinished runs");
    let all = home.run(&["ps", "--all"]).ok();
    let lines: Vec<&str> = all.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", all.out);
    let words: Vec<&str> = lines[0].split_whitespace().collect();
    let columns = ["RUN", "AGENT", "STATE", "AGE", "COST", "BRANCH", "CHANGES", "EXIT", "TASK"];
    assert_eq!(words, columns);
    assert!(
        lines[1].contains("other") && lines[1].contains("failed"),
        "newest first: {}",
        lines[1]
    );
    assert!(lines[2].contains("sh") && lines[2].contains("done"));
    let by_agent = home.run(&["ps", "--all", "--agent", "sh", "-o", "json"]).ok().json();
    assert_eq!(by_agent.as_array().unwrap().len(), 1);
    let by_status = home.run(&["ps", "--status", "failed", "-o", "json"]).ok().json();
    assert_eq!(by_status[0]["task"], "shell: exit 1");
    assert_eq!(
        home.run(&["ps", "--all", "--limit", "1", "-o", "name"]).ok().out.lines().count(),
        1
    );
    let wide = home.run(&["ps", "--all", "-o", "wide"]).ok();
    wide.shows("ses_").shows("namespace").shows(&home.work().display().to_string());
}

#[test]
fn a_run_is_found_by_any_unique_part_of_its_id() {
    let home = Home::up();
    home.agent("sh", &[]);
    let id =
        home.run(&["run", "sh", "shell: echo 1", "--wait", "-o", "name"]).ok().line().to_owned();
    home.run(&["run", "sh", "shell: echo 2", "--wait"]).ok();
    for given in [id.as_str(), &id[4..], &id[id.len() - 8..]] {
        home.run(&["logs", given]).ok().shows("echo 1");
    }
    // Ids begin with the time, so both match.
    home.run(&["logs", &id[..9]]).fails(2).says("could be 2 runs").says(
        "give a longer part of \
        the id",
    );
    for missing in ["ses_00000000000000000000000000000000", "ffffffff", "nonsense", ""] {
        home.run(&["logs", missing]).fails(3);
    }
    home.run(&["logs"]).ok().shows("echo 2");
}

#[test]
fn the_same_idempotency_key_creates_one_run() {
    let home = Home::up();
    home.agent("sh", &[]);
    let run = |key: &str| {
        let args = ["run", "sh", "shell: echo 1", "--idempotency-key", key, "-o", "name"];
        home.run(&args).ok().line().to_owned()
    };
    let first = run("a");
    assert_eq!(run("a"), first);
    assert_ne!(run("b"), first);
}

#[test]
fn a_run_works_in_the_given_directory() {
    let home = Home::up();
    home.agent("sh", &[]);
    let place = home.path().join("elsewhere");
    std::fs::create_dir(&place).unwrap();
    let at = ["run", "sh", "write: here.txt: 1", "--workspace", "../elsewhere", "--wait"];
    home.run(&at).ok();
    assert!(place.join("here.txt").exists());
    let gone = ["run", "sh", "write: here.txt: 1", "--workspace", "../nowhere", "--wait"];
    home.run(&gone).fails(1).says("nowhere").says("No such file");
    let nobody = "agt_00000000000000000000000000000000";
    home.run(&["run", nobody, "x"]).fails(3).says("no agent").says("overmind agent list");
    for none in [&["run", "sh"][..], &["run", "sh", ""], &["run", "--agent", "sh", " ", "\n"]] {
        home.run(none).fails(2).says("a task is missing: tell `sh`");
    }
}

#[test]
fn a_recorded_run_is_replayed_verified_forked_and_compared() {
    let home = Home::up();
    let turns = json!([
        {"calls": [{"name": "write_file", "args": {"path": "a.txt", "content": "1"}}]},
        {"calls": [{"name": "read_file", "args": {"path": "a.txt"}}]},
        {"calls": [{"name": "final_answer", "args": {"message": "read"}}]},
    ]);
    home.scripted("writer", &turns, &[]);
    let id = home.run(&["run", "writer", "go", "--wait", "-o", "name"]).ok().line().to_owned();
    home.run(&["replay", &id]).ok().shows("✓ write_file a.txt").shows("answers: read");
    let entries = home.run(&["replay", &id, "-o", "json"]).ok();
    let kinds: Vec<String> = entries
        .out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|entry| entry["kind"].as_str().unwrap().to_owned())
        .collect();
    for kind in ["event", "step", "tool_call", "model_call"] {
        assert!(kinds.iter().any(|found| found == kind), "{kind} in {kinds:?}");
    }
    let report = home.run(&["replay", &id, "--verify", "-o", "json"]).ok().json();
    assert_eq!((report["ok"].as_bool(), report["divergence"].is_null()), (Some(true), true));
    home.run(&["replay", &id, "--verify"]).ok().shows("no difference");

    let fork = home.run(&["fork", &id, "--at", "2", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&fork, "succeeded");
    assert_eq!(home.fetch(&fork)["forked_from"]["run_id"], id);
    home.run(&["diff", &id, &fork]).ok().says("the runs took the same steps");
    let other = home.run(&["fork", &id, "--at", "1", "--model", "deterministic", "-o", "name"]);
    let other = other.ok().line().to_owned();
    until("it ends", || Some(home.fetch(&other)).filter(|run| run["finished_at"].is_string()));
    home.run(&["diff", &id, &other]).ok().shows("≠").says("later steps differ");
    home.run(&["fork", &id, "--at", "99"]).fails(2);
}

#[test]
fn events_are_listed_and_followed() {
    let home = Home::up();
    home.agent("sh", &[]);
    let id =
        home.run(&["run", "sh", "shell: echo 1", "--wait", "-o", "name"]).ok().line().to_owned();
    let events = home.run(&["events", &id, "-o", "json"]).ok().json();
    let kinds: Vec<&str> =
        events.as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], *kinds.last().unwrap()), ("run.queued", "run.succeeded"));
    let followed = home.run(&["events", &id, "-f", "-o", "json"]).ok();
    assert_eq!(followed.out.lines().count(), kinds.len(), "the same events, to the end");
    home.run(&["events"]).ok().shows("agent.created").shows("run.succeeded");
    let some = home.run(&["events", "--limit", "2", "-o", "name"]).ok();
    assert_eq!(some.out.lines().count(), 2);
}

#[test]
fn a_direct_tool_call_is_answered_and_recorded() {
    let home = Home::up();
    home.agent("sh", &[]);
    let id =
        home.run(&["run", "sh", "write: a.txt: x", "--wait", "-o", "name"]).ok().line().to_owned();
    home.run(&["tool", "list"]).ok().shows("run_shell").shows("once").shows("(always)");
    let call = |tool: &str, args: &str| home.run(&["tool", "call", &id, tool, args]);
    assert_eq!(call("read_file", "{\"path\":\"a.txt\"}").ok().json()["content"], "x");
    let bad = call("read_file", "{\"path\":\"../x\"}").fails(1).json();
    assert_eq!(bad["ok"], false);
    call("nonsense", "{}").fails(1).shows("tool_not_allowed");
    call("read_file", "{path}").fails(2).says("the arguments are not JSON");
    call("read_file", "[]").fails(2).says("must be an object");
}

#[test]
fn the_sandbox_of_a_command_is_measured_signed_and_shown_on_the_run() {
    let mut home = Home::up();
    home.agent("sh", &[]);
    home.agent("open", &["--sandbox", "none"]);
    let run =
        |agent: &str, task: &str| home.run(&["run", agent, task, "--wait", "-o", "json"]).json();
    let idle = run("sh", "write: a.txt: x\n");
    assert_eq!(idle["attestation"], json!(null), "no command ran");
    let closed = run("sh", "shell: echo hi");
    let found = &closed["attestation"];
    assert_eq!((&found["asked"], &found["achieved"]), (&json!("namespace"), &json!("namespace")));
    let open = run("open", "shell: echo hi");
    let said = &open["attestation"];
    assert_eq!((&said["asked"], &said["achieved"]), (&json!("none"), &json!("none")));

    let wide = home.run(&["ps", "--all", "-o", "wide"]).ok();
    wide.shows("ATTESTED").shows("namespace ✓ 20").shows("none: NOT ISOLATED");
    let id = closed["id"].as_str().unwrap().to_owned();
    home.run(&["sandbox", "verify", &id])
        .ok()
        .shows("host_processes")
        .shows("proved       namespace")
        .shows("signature    holds");
    let record = home.run(&["sandbox", "verify", &id, "-o", "json"]).ok().json();
    assert_eq!(record["digest"], found["digest"]);
    assert_eq!(record["signature"]["signer"], found["signer"]);
    home.run(&["sandbox", "verify", idle["id"].as_str().unwrap()]).fails(3);
    home.run(&["logs", open["id"].as_str().unwrap()]).ok().shows("NOT ISOLATED");
    home.run(&["audit", "verify"]).ok().shows("attestations    2");
    home.run(&["replay", &id, "--verify"]).ok();

    // A changed record is detected, with and without a server.
    let change = |home: &Home, from: &str, to: &str| {
        let conn = rusqlite::Connection::open(home.data().join("overmind.db")).unwrap();
        conn.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
        let sql = "UPDATE attestations SET record = replace(record, ?1, ?2)";
        assert!(conn.execute(sql, [from, to]).unwrap() > 0);
    };
    change(&home, "lo; no route", "lo; a route");
    home.run(&["sandbox", "verify", &id]).fails(1).shows("broken");
    home.run(&["audit", "verify"]).fails(1).says("it is not what was signed");
    home.kill();
    let found = home.run(&["audit", "verify"]).fails(1);
    found.says(record["digest"].as_str().unwrap()).says("it is not what was signed");
}

#[test]
fn runs_have_names_and_children_and_a_cascade_ends_all() {
    let home = Home::up();
    home.agent("asks", &[]);
    let task = "curl the page for me";
    let run = |more: &[&str]| {
        let args = [&["run", "asks", task, "--wait", "-o", "json"], more].concat();
        home.run(&args)
    };
    run(&["--name", "boss"]).fails(12);
    run(&["--name", "boss"])
        .fails(5)
        .says("another run that has not ended is called `boss`")
        .says("overmind send boss \"…\" continues that one");
    run(&["--name", "Bad Name"]).fails(2).says("small letters, digits and hyphens");
    run(&["--name", "worker-a", "--parent", "boss"]).fails(12);
    run(&["--name", "worker-b", "--parent", "bo"]).fails(12);
    let unnamed = run(&["--parent", "worker-a"]).fails(12).json();
    assert_eq!(unnamed["name"].as_str().unwrap().split('-').count(), 3);
    run(&["--parent", "nobody-here"]).fails(3).says("there is no run `nobody-here`");

    home.run(&["ps"]).ok().shows("RUN").shows("boss").shows("worker-b");
    let tree = home.run(&["ps", "--tree"]).ok();
    let unnamed = unnamed["name"].as_str().unwrap();
    tree.shows("├─ worker-b").shows("└─ worker-a").shows(&format!("   └─ {unnamed}"));
    let children = home.run(&["ps", "--children", "boss", "-o", "json"]).ok().json();
    let names: Vec<_> = children.as_array().unwrap().iter().map(|run| &run["name"]).collect();
    assert_eq!(names, ["worker-b", "worker-a"]);
    home.run(&["logs", "worker-b"]).ok().shows("asks");
    home.run(&["logs", "worker"]).fails(2).says("`worker` could be 2 runs");

    home.run(&["cancel", "boss", "--cascade"]).ok();
    home.run(&["ps"]).ok().says("no unfinished runs");
    home.run(&["cancel", "boss"]).fails(5).says("already finished");
}
