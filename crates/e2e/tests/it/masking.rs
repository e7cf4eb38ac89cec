//! Masking from outside: printed secrets of a command are stored nowhere, a task runs unchanged or
//! not at all, and no secret makes a run unreadable.

use serde_json::{Value, json};

use crate::commands::Commands;

const VALUE: &str = "supersecretvalue123";

fn made(home: &Commands, agent: &Value) {
    let file = home.0.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).expect("the home can be written");
    home.run(&["agent", "create", "--file", file.to_str().expect("a path")]).ok();
}

fn printer(name: &str, script: &str, terminal: bool) -> Value {
    json!({
        "name": name, "role": "prints", "model": "command", "sandbox": "none",
        "command": {
            "argv": ["sh", "-c", script], "env_from": {"KEY": "db_pass"}, "terminal": terminal,
        },
    })
}

#[test]
fn secrets_that_a_command_prints_are_stored_nowhere() {
    let home = Commands::up();
    home.0.set("db_pass", VALUE, &[]);
    // Unchanged, in two pieces, encoded, in the errors, and the run's own token.
    let script = "test \"$KEY\" = \"$(cat expected)\" && echo as it is; \
                  echo one $KEY two; printf supersecret; sleep 0.2; echo value123; \
                  printf %s $KEY | base64; echo $KEY >&2; echo token $OVERMIND_TOKEN; read line";
    std::fs::write(home.0.work().join("expected"), VALUE).expect("the home can be written");
    for (name, terminal) in [("pipes", false), ("screen", true)] {
        made(&home, &printer(name, script, terminal));
        home.run(&["vault", "grant", name, "--secret", "db_pass"]).ok();
        home.run(&["run", "--agent", name, "--name", name, ""]).ok();
        let token = match terminal {
            true => home.variable(name, "OVERMIND_TOKEN"),
            false => String::from("ovs_"),
        };
        home.says(name, "token [redacted:secret]");
        for args in [&["logs", name][..], &["logs", name, "--raw"], &["events", name, "-o", "json"]]
        {
            let said = home.run(args).ok().out;
            assert!(!said.contains(VALUE) && !said.contains(&token), "{args:?}: {said}");
        }
        let log = home.run(&["logs", name]).ok().out;
        assert!(log.contains("as it is\n"), "the command has its value: {log}");
        assert!(log.contains("one [redacted:secret] two\n"), "{log}");
        assert_eq!(log.matches("[redacted:secret]").count(), 5, "{log}");
        if terminal {
            home.run(&["stop", name]).ok();
        }
        home.run(&["wait", name]);
        let (_, mac) = token.rsplit_once('.').unwrap_or(("", "supersecretvalue"));
        home.0.keeps_none_of(&[VALUE, mac]);
    }
    let backup = home.0.path().join("backup.db");
    home.run(&["backup", backup.to_str().expect("a path")]).ok();
    let bytes = std::fs::read(&backup).expect("it was made");
    assert!(!bytes.windows(VALUE.len()).any(|part| part == VALUE.as_bytes()));
    home.run(&["audit", "verify"]).ok();
    home.check();
}

#[test]
fn a_run_with_a_secret_in_its_task_or_command_is_refused() {
    let home = Commands::up();
    home.0.set("db_pass", VALUE, &[]);
    let count = format!("printf %s {VALUE} | wc -c > counted");
    let refused = |args: &[&str], text: &str| {
        let done = home.run(args).fails(2);
        done.says("vault's secret `db_pass`").says(text).says("env_from");
        let (_, error) = done.err.split_once("error: ").expect("it says why");
        assert!(!error.contains(VALUE) && !done.out.contains(VALUE), "{done:?}");
    };
    refused(
        &["run", "--name", "one", "--", "sh", "-c", &count],
        "the run would not do what you \
        wrote",
    );
    refused(&["run", "--name", "two", &count], "the run would not do what you wrote");
    home.0.agent("worker", &[]);
    refused(&["run", "worker", &format!("shell: echo {VALUE}")], "the task contains");
    assert!(!home.0.work().join("counted").exists());
    assert_eq!(home.run(&["ps", "-a", "-o", "json"]).ok().json(), json!([]));
    // An agent is refused when it is created, and an earlier one when it is to run.
    let mut agent = printer("late", &format!("echo {}", "another-value-4711"), false);
    agent["command"]["env_from"] = json!({});
    made(&home, &agent);
    home.0.set("other", "another-value-4711", &[]);
    home.run(&["run", "--agent", "late", ""]).fails(2).says("vault's secret `other`");
    agent["name"] = json!("later");
    let file = home.0.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).expect("the home can be written");
    let create = ["agent", "create", "--file", file.to_str().expect("a path")];
    home.run(&create).fails(2).says("the command contains");
    // Text that only looks like a secret would be masked as well.
    let key = format!("echo ghp_{}", "A1b2C3d4E5f6G7h8I9j0");
    home.run(&["run", "--", "sh", "-c", &key]).fails(2).says("github-token");
    home.0.keeps_none_of(&[VALUE]);
    home.run(&["audit", "verify"]).ok();
}

#[test]
fn no_secret_value_makes_a_run_unreadable() {
    let home = Commands::up();
    for (value, why) in [
        ("postgres", "own records"),
        ("namespace", "own records"),
        ("run.queued", "own records"),
        ("00000000", "four different characters"),
        ("20261125", "only digits"),
        ("deadbeef", "only digits"),
        ("2026-11-25", "only digits"),
        ("short", "8"),
    ] {
        let args = ["vault", "set", "web_key", "--from-stdin"];
        let done = home.0.fed(value, &args).fails(2);
        done.says(why);
        assert!(!done.err.contains(&format!("`{value}`")), "{done:?}");
    }
    // Values that are parts of a directory, of a run's name and of an agent's.
    let work = home.0.work().join("directory-of-mine-7");
    std::fs::create_dir(&work).expect("the home can be written");
    made(
        &home,
        &json!({
            "name": "agent-of-mine-7", "role": "prints", "model": "command", "sandbox": "none",
            "command": {"argv": ["sh", "-c", "pwd"]},
        }),
    );
    let run = |name: &str| {
        let args = ["run", "--agent", "agent-of-mine-7", "--name", name, ""];
        let made = home.0.command(&args).current_dir(&work).output().expect("it runs");
        assert!(made.status.success(), "{made:?}");
        home.status(name, "succeeded");
        home.run(&["logs", name]).ok().out
    };
    assert!(run("run-of-mine-71").contains("directory-of-mine-7"));
    for (name, value) in
        [("a", "directory-of-mine-7"), ("b", "run-of-mine-7"), ("c", "agent-of-mine-7")]
    {
        home.0.set(name, value, &[]);
    }
    run("other-72");
    let before = home.named("run-of-mine-71");
    assert_eq!(before["agent_name"], "agent-of-mine-7");
    home.run(&["replay", "run-of-mine-71", "--verify"]).ok();
    home.run(&["replay", "other-72", "--verify"]).ok();
    home.run(&["audit", "verify"]).ok();
    home.check();
}

#[test]
fn a_call_or_an_answer_with_a_secret_is_refused_unchanged() {
    let home = Commands::up();
    home.0.set("db_pass", VALUE, &[]);
    let write = |content: &str| {
        json!({"calls": [{"name": "write_file",
            "args": {"path": "settings.txt", "content": content}}]})
    };
    let turns = json!([
        write(&format!("password={VALUE}\n")),
        {"calls": [{"name": "run_shell", "args": {"command": format!("echo {VALUE} > shell.txt")}}]},
        {"calls": [{"name": "ask_user", "args": {"message": "Which host?"}}]},
        write("password=$DB_PASS\n"),
        {"text": "done"},
    ]);
    home.0.scripted("writer", &turns, &["--tools", "run_shell,write_file,ask_user"]);
    let id = home.run(&["run", "writer", "go", "-o", "name"]).ok().line().to_owned();
    home.0.wait_for(&id, "awaiting_input");
    let events = home.run(&["events", &id, "-o", "json"]).ok().json();
    let events = events.as_array().expect("a list");
    let failed = events.iter().filter(|event| event["type"] == "tool.failed");
    assert_eq!(failed.clone().count(), 2, "{events:?}");
    for event in failed {
        let error = event["payload_json"]["error"].to_string();
        assert!(error.contains("bad_args") && error.contains("[redacted:secret]"), "{error}");
    }
    let answer = ["send", &id, &format!("the host of {VALUE}")];
    home.run(&answer).fails(2).says("the message contains").says("`db_pass`");
    assert_eq!(home.0.fetch(&id)["status"], "awaiting_input", "it still waits");
    home.run(&["send", &id, "localhost"]).ok();
    let row = home.0.wait_for(&id, "succeeded");
    let made = std::path::Path::new(row["workspace"].as_str().expect("a directory"));
    let kept = std::fs::read_to_string(made.join("settings.txt")).expect("it was written");
    assert_eq!(kept, "password=$DB_PASS\n");
    assert!(!made.join("shell.txt").exists());
    // The text of the model comes from the test.
    std::fs::remove_dir_all(home.0.data().join("cassettes")).expect("it is there");
    home.0.keeps_none_of(&[VALUE]);
    home.run(&["replay", &id, "--verify"]).ok();
}
