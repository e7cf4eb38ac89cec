//! Situations of a new user at the command line: options after the task, forgotten agents, unknown
//! steps, taken names, files with mistakes, and words for states.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::home::{Done, Home, done, until};
use crate::tty::Person;
use crate::worktrees::House;

/// A project, an agent that is a program, and one that writes a file without a question.
fn house() -> House {
    let house = House::new(None);
    let file = house.home.0.path().join("helper.toml");
    let helper = "name = \"helper\"\nmodel = \"command\"\nsandbox = \"none\"\n\n[command]\n\
                  argv = [\"sh\", \"-c\", \"echo does: {task}\"]\n";
    std::fs::write(&file, helper).unwrap();
    house.home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    house.home.0.scripted("coder", &turns(), &[]);
    house
}

fn turns() -> serde_json::Value {
    let write = |path: &str| json!({"calls": [{"name": "write_file", "args": {"path": path, "content": path}}]});
    json!([write("fix.txt"), {"text": "It is mended."}, write("more.txt"), {"text": "More of it."}])
}

/// A command of a person who did not request an end after the answer.
fn person(house: &House, args: &[&str]) -> Done {
    let mut command = house.home.0.command(args);
    done(command.env_remove("OVERMIND_ONCE").current_dir(&house.project).output().unwrap())
}

fn at_terminal(house: &House, args: &[&str]) -> Person {
    let mut command = house.home.0.command(args);
    command.env_remove("OVERMIND_ONCE").current_dir(&house.project);
    Person::with(command, 120, 40)
}

#[test]
fn options_after_the_task_belong_to_overmind_unless_the_agent_is_a_program() {
    let house = house();
    house.run(&["run", "-d", "--agent", "helper", "one task", "--name", "first"]).ok();
    house.run(&["run", "helper", "another task", "--name", "second", "--wait"]).ok();
    house.run(&["run", "helper", "--name", "third", "--wait", "--", "a", "--name", "b"]).ok();
    house.run(&["wait", "first"]).ok();
    for (name, task) in [("first", "one task"), ("second", "another task"), ("third", "a --name b")]
    {
        assert_eq!(house.home.named(name)["task"], task);
        assert!(house.log(name).contains(&format!("does: {task}")), "{}", house.log(name));
    }
    let wrong = house.run(&["run", "--agent", "helper", "a task", "--nmae", "x"]).fails(2);
    wrong.says("unexpected argument `--nmae`; did you mean `--name`?").says("after `--`");
    for before in [&["run", "--nmae", "x", "helper", "a task"][..], &["run", "--nmae=x", "true"]] {
        house.run(before).fails(2).says("unexpected argument `--nmae`; did you mean `--name`?");
    }
    house.run(&["run"]).fails(2).says("overmind run --agent claude \"fix the failing test\"");
    // A program's own arguments, also if an agent has the program's name.
    house.run(&["run", "--name", "own", "--wait", "--", "echo", "--name", "x"]).ok();
    assert!(house.log("own").contains("--name x"), "{}", house.log("own"));
    house.home.0.scripted("echo", &json!([{"text": "no"}]), &[]);
    house.run(&["run", "--name", "dashes", "--wait", "--", "echo", "-n", "said"]).ok();
    assert!(house.log("dashes").contains("said"), "{}", house.log("dashes"));
    house.check();
}

#[test]
fn a_task_without_an_agent_is_refused_with_the_list_of_agents() {
    let house = house();
    for task in ["fix the failing test", "Fix it, please", "X=1 fix the test"] {
        let refused = house.run(&["run", task]).fails(3);
        refused
            .says("no agent was named; nothing was started")
            .says("did you mean overmind run --agent");
        refused.says("helper").says("coder");
    }
    assert_eq!(house.run(&["ps", "--all", "-o", "json"]).ok().json(), json!([]));
    // Shell command lines run: keywords, variables before commands, and programs of the PATH.
    for line in ["true && echo ran", "X=1 true", "for i in 1 2; do true; done", "(true)"] {
        house.run(&["run", "--wait", line]).ok();
    }
    house.check();
}

#[test]
fn following_ends_when_a_run_is_idle_and_names_the_next_step() {
    let house = house();
    person(&house, &["run", "--name", "fix", "--wait", "coder", "fix the failing test"]).ok();
    let followed = house.run(&["logs", "-f", "fix"]).ok();
    followed.shows("It is mended.").says("fix: your turn after ").says("overmind send fix");
    house.run(&["approve", "fix"]).fails(5).says("overmind send fix \"…\" continues it");
    // A part of a built-in agent's output, followed or not.
    let all = house.run(&["logs", "fix"]).ok().out;
    let tail = house.run(&["logs", "fix", "--tail", "2"]).ok().out;
    assert_eq!(tail.lines().count(), 2, "{tail}");
    assert!(all.ends_with(&tail), "{all}\n{tail}");
    let followed = house.run(&["logs", "-f", "fix", "-n", "2"]).ok();
    assert_eq!(followed.says("fix: your turn after ").out, tail);
    let said = house.run(&["logs", "fix", "--grep", "is mend[a-z]+"]).ok().out;
    assert_eq!((said.lines().count(), said.contains("It is mended.")), (1, true), "{said}");
    assert_eq!(house.run(&["logs", "fix", "--since", "1h"]).ok().out, all);
    assert_eq!(house.run(&["logs", "fix", "--since", "2999-01-01T00:00:00Z"]).ok().out, "");
    let entries = house.run(&["logs", "fix", "--tail", "1", "-o", "json"]).ok();
    assert_eq!(entries.json()["data"]["type"], "run.idle", "{}", entries.out);
    house.run(&["logs", "fix", "--grep", "("]).fails(2).says("is not a regular expression");
    house.run(&["logs", "fix", "--since", "soon"]).fails(2).says("--since takes");
    house.run(&["ps", "--status", "your turn"]).ok().shows("fix");
    house.run(&["ps", "--status", "idle,done"]).ok().shows("fix");
    house.run(&["info", "fix"]).ok().shows("your turn");

    // At a terminal, `send` follows like `run`.
    let mut sends = at_terminal(&house, &["send", "fix", "and more"]);
    let screen = sends.sees("your turn: overmind send fix");
    assert_eq!(sends.leaves(), 0, "{screen}");
    assert!(screen.contains("More of it.") && !screen.contains("It is mended."), "{screen}");

    house.run(&["stop", "fix"]).ok().shows("done");
    house.run(&["done", "fix", "--merge"]).ok().shows("done").shows("on main");
    house.run(&["ps", "--status", "merged"]).ok().shows("fix").shows("merged");
    house.run(&["ps", "--status", "discarded"]).ok().says("no such runs");
    house.check();
}

#[test]
fn following_ends_when_a_program_is_idle() {
    let house = House::new(None);
    let file = house.home.0.path().join("talker.toml");
    let program = house.project.join("talk.sh");
    let lines = "#!/bin/sh\nwhile read -r line; do\n  echo '{\"overmind\":{\"result\":\"heard it\"}}'\ndone\n";
    std::fs::write(&program, lines).unwrap();
    house.git(&["add", "-A"]);
    house.git(&["commit", "-qm", "talk"]);
    let talker = "name = \"talker\"\nmodel = \"command\"\nsandbox = \"none\"\n\n[command]\n\
                  argv = [\"sh\", \"talk.sh\"]\nkind = \"session\"\nprovider = \"lines\"\nterminal = false\n";
    std::fs::write(&file, talker).unwrap();
    house.home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    person(&house, &["run", "-d", "--name", "talk", "talker"]).ok();
    house.home.alive("talk");
    let sent = house.run(&["send", "--follow", "talk", "hello"]).ok();
    sent.shows("heard it").says("talk: your turn");
    assert!(!sent.err.contains("0 steps"), "{}", sent.err);
    let followed = house.run(&["logs", "-f", "talk"]).ok();
    followed.shows("heard it").says("talk: your turn");
    // Following ends, too, once it has printed whose turn it is.
    let mut watch = at_terminal(&house, &["monitor", "talk"]);
    let screen = watch.sees("talk: your turn");
    assert_eq!(watch.leaves(), 0, "{screen}");
    house.run(&["stop", "talk"]).ok();
    // Releasing the environment is routine: the log does not contain it.
    assert!(!house.log("talk").contains("ending"), "{}", house.log("talk"));
    house.check();
}

#[test]
fn unknown_and_foreign_objects_are_refused_by_name() {
    let house = house();
    person(&house, &["run", "--name", "fix", "--wait", "coder", "fix it"]).ok();
    let refused = house.run(&["undo", "fix", "--to", "99"]).fails(2);
    refused.says("there is no snapshot 99").says("; there are ");
    house.run(&["fork", "fix", "--at", "99"]).fails(2).says("steps: give 0, its beginning, to ");
    house.git(&["branch", "mine"]);
    for branch in ["main", "mine"] {
        let taken = house.run(&["done", "fix", "--pr-branch", branch]).fails(5);
        taken.says(&format!("there is a branch {branch}")).says("name another one");
    }
    assert_eq!(house.git(&["branch", "--list", "main-2", "mine-2"]), "");
    house.run(&["done", "fix", "--pr-branch", "feature"]).ok().shows("feature");
    house
        .run(&["done", "fix", "--merge", "--into", "nosuch"])
        .fails(2)
        .says("nosuch does not exist");

    house.run(&["run", "--name", "idle", "--wait", "true"]).ok();
    house
        .run(&["done", "idle", "--merge", "--into", "nosuch"])
        .fails(2)
        .says("nosuch does not exist");
    house.run(&["done", "idle", "--merge", "--into", "main"]).ok();
    house.run(&["done", "fix", "--discard", "--yes"]);
    house.check();
}

#[test]
fn a_file_with_mistakes_is_refused_with_their_lines_before_a_start() {
    let house = House::new(None);
    std::fs::write(house.project.join(".overmind.yml"), "setp: x\nports: nine\n").unwrap();
    let refused = house.run(&["run", "--name", "x", "true"]).fails(2);
    refused.says("has 2 mistakes; nothing was started");
    let lines = refused.err.lines().filter(|line| line.contains(".overmind.yml:")).count();
    assert_eq!(lines, 2, "{}", refused.err);
    assert!(!refused.err.contains('⏎'), "{}", refused.err);
    assert_eq!(house.run(&["ps", "--all", "-o", "json"]).ok().json(), json!([]));
    let again = house.run(&["init"]).fails(5);
    again.says("already exists and is not changed").says("--force");
    assert_eq!(again.out, "", "nothing else is printed");
}

#[test]
fn idle_runs_without_changes_are_listed_last_and_folded() {
    let house = house();
    house.home.0.scripted("thinker", &json!([{"text": "I thought about it."}]), &[]);
    person(&house, &["run", "--name", "work", "--wait", "coder", "fix it"]).ok();
    for n in 0..10 {
        person(&house, &["run", "--name", &format!("idle-{n}"), "--wait", "thinker", "think"]).ok();
    }
    let listed = house.run(&["ps"]).ok();
    let rows: Vec<&str> = listed.out.lines().skip(1).collect();
    assert_eq!(rows.len(), 9, "{}", listed.out);
    assert!(rows[0].starts_with("work "), "{}", listed.out);
    listed.says("2 more rest without changes: overmind ps --all");
    assert_eq!(house.run(&["ps", "--all"]).ok().out.lines().count(), 12);
}

#[test]
fn runs_without_work_and_existing_objects_are_reported_once_with_a_hint() {
    let house = house();
    // Outside of the repository.
    house.home.run(&["run", "--name", "plain", "--wait", "--", "true"]).ok();
    let none = house.home.run(&["done", "plain", "--merge"]).fails(3);
    assert_eq!(none.err.matches("works directly in").count(), 1, "{}", none.err);
    let again = ["agent", "create", "--name", "helper", "--model", "deterministic"];
    let twice = house.run(&again).fails(5);
    twice.says("there is an agent `helper` already").says("overmind agent edit helper");
}

#[test]
fn a_list_is_complete_for_programs_and_a_shortened_table_says_so() {
    let home = Home::up();
    // Queued runs are listed as others are.
    home.run(&["halt"]).ok();
    for n in 0..55 {
        home.run(&["run", "-d", "--name", &format!("r{n}"), "--", "true"]).ok();
    }
    let all = home.run(&["ps", "--all", "-o", "json"]).ok().json();
    let names: Vec<&str> =
        all.as_array().unwrap().iter().map(|run| run["name"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names[0], names[54]), (55, "r54", "r0"));
    assert_eq!(home.run(&["ps", "-q"]).ok().out.lines().collect::<Vec<_>>(), names);
    let ids = home.run(&["ps", "-o", "name"]).ok().out;
    assert_eq!((ids.lines().count(), ids.matches("ses_").count()), (55, 55), "{ids}");
    let yaml = home.run(&["ps", "-o", "yaml"]).ok().out;
    assert_eq!(yaml.lines().filter(|line| line.starts_with("- ")).count(), 55, "{yaml}");
    let table = home.run(&["ps", "--all"]).ok();
    assert_eq!(table.out.lines().count(), 56, "{}", table.out);
    assert!(!table.err.contains("are listed"), "{}", table.err);

    let cut = home.run(&["ps", "--limit", "5"]).ok();
    assert_eq!(cut.out.lines().count(), 6, "{}", cut.out);
    cut.says("only the newest 5 are listed; --limit 50 lists more");
    assert_eq!(
        home.run(&["ps", "--limit", "5", "-o", "json"]).ok().json().as_array().unwrap().len(),
        5
    );
    let none = home.run(&["ps", "--status", "failed", "-o", "json"]).ok().out;
    assert_eq!(none, "[]\n");
}

#[test]
fn an_approved_action_is_named_and_high_risk_is_confirmed_at_a_terminal() {
    let mut home = Home::new();
    let file = home.path().join("policy.toml");
    std::fs::write(&file, "version = 1\n").unwrap();
    home.start(&["--listen", "none"], &[("OVERMIND_POLICY", file.to_str().unwrap())]);
    home.agent("sh", &["--sandbox", "none"]);
    let line = "shell: rm -rf /tmp/overmind-none-such/there";
    let ask = |name: &str| {
        let id =
            home.run(&["run", "--name", name, "sh", line, "-o", "name"]).ok().line().to_owned();
        home.wait_for(&id, "awaiting_approval");
        home.run(&["inbox", "-o", "json"]).ok().json()[0].clone()
    };
    let item = ask("clean");
    home.run(&["inbox"]).ok().shows("clean");
    let mut asked = Person::at(&home, 120, 40, &["approve", "clean"]);
    if matches!(item["risk"].as_str(), Some("high" | "critical")) {
        asked.sees("allow it, this once? [y]es, [N]o:");
        asked.types("n\r");
        asked.sees("nothing was answered");
        assert_eq!(asked.leaves(), 0);
    } else {
        panic!("not of high risk: {item}");
    }
    let approved = home.run(&["approve", "clean"]).ok();
    approved.shows("approved").shows("rm -rf /tmp/overmind-none-such/there");
    until("it is over", || {
        let all = home.run(&["ps", "--all", "-o", "json"]).ok().json();
        (all[0]["status"] != "awaiting_approval").then_some(())
    });
}

#[test]
fn settings_before_the_first_start_are_in_a_private_directory() {
    let mut home = Home::new();
    home.run(&["config", "set", "log.level", "debug"]).ok();
    let mode = std::fs::metadata(home.data()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700, "{mode:o}");
    home.start(&["--listen", "none"], &[]);
    let refused = home.run(&["config", "set", "server.listen", "banana"]).fails(1);
    refused.says("`server.listen` cannot be `banana`").says("overmind.toml is as it was");
    assert!(!refused.err.contains(".toml:"), "{}", refused.err);
}

#[test]
fn an_invalid_command_is_reported_in_the_users_words() {
    let house = house();
    house.run(&["run", "--here", "--name", "plain", "--wait", "true"]).ok();
    house.run(&["work", "plain"]).fails(5).says("plain has no environment of its own");
    house.run(&["undo", "plain"]).fails(5).says("error: plain ");
    for args in [&["attach", "--read-only", "plain"][..], &["send", "plain", "x"]] {
        let refused = house.run(args);
        assert!(refused.code != 0 && refused.err.contains("plain "), "{}", refused.err);
        assert!(!refused.err.contains("Run "), "{}", refused.err);
    }
    let name = house.run(&["run", "--name", "a b", "true"]).fails(2);
    name.says("no space").says("--name a-b");
    let tools = ["agent", "create", "--name", "t", "--model", "deterministic", "--tools", "shell"];
    house.run(&tools).fails(2).says("`shell` (did you mean `run_shell`?)");
    assert!(!house.run(&["agent", "list"]).ok().out.contains("t "), "no agent was made");
    house.run(&["describe", "quest"]).ok().says("no quests found");
    let nope = house.run(&["help", "nope"]).fails(2);
    assert!(!nope.err.contains("done"), "{}", nope.err);
}

#[test]
fn a_missing_agent_program_starts_and_creates_nothing() {
    let mut home = Home::new();
    let empty = home.path().join("bin");
    std::fs::create_dir(&empty).unwrap();
    let path = format!("{}:/usr/bin:/bin", empty.display());
    home.start(&["--listen", "none"], &[("PATH", &path)]);
    let opencode = empty.join("opencode");
    let refused = home.run(&["run", "--agent", "opencode", "fix it"]).fails(3);
    refused
        .says("opencode is not installed on this machine (not on the PATH): nothing was started")
        .says("npm install -g opencode-ai");
    assert_eq!(home.run(&["ps", "--all", "-o", "json"]).ok().json(), json!([]));
    assert!(!home.run(&["agent", "list"]).ok().out.contains("opencode"));
    // If the run sets another PATH, the server searches there.
    let set = format!("PATH={}:/usr/bin:/bin", empty.display());
    home.run(&["run", "--agent", "opencode", "--env", &set, "fix it"]).fails(10);
    std::fs::write(&opencode, "#!/bin/sh\necho here I am\n").unwrap();
    std::fs::set_permissions(&opencode, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ran = home.run(&["run", "--agent", "opencode", "--follow", "fix it"]).ok();
    ran.shows("here I am");
    // The defaults of a start, and their values here.
    let agents = home.run(&["agents"]).ok();
    let row = agents.out.lines().find(|line| line.starts_with("opencode")).unwrap();
    assert!(row.split_whitespace().any(|cell| cell == "auto"), "{row}");
    assert!(row.contains("auto (none)"), "{row}");
    home.run(&["agent", "get", "opencode"]).ok().shows("auto (none)");
}

#[test]
fn an_operator_cannot_start_runs_in_an_undeclared_repository() {
    let house = house();
    house.home.0.agent("sh", &["--on-unknown", "retry", "--sandbox", "namespace"]);
    let home = &house.home.0;
    let key = home.run(&["key", "create", "op", "--role", "operator", "-o", "name"]).ok();
    let operator = |args: &[&str]| {
        let mut command = home.command(args);
        command.env("OVERMIND_TOKEN", key.line()).current_dir(&house.project);
        done(command.output().unwrap())
    };
    let refused = operator(&["run", "sh", "shell: true"]).fails(6);
    refused.says("app: an admin can declare it").says("nothing was started");
    assert_eq!(home.run(&["ps", "--all", "-o", "json"]).ok().json(), json!([]));
    operator(&["run", "--project", "shop", "sh", "shell: true"]).fails(1).says("no Project");
    let text = format!(
        "apiVersion: overmind/v1\nkind: Project\nmetadata: {{name: shop}}\nspec: {{path: {}}}\n",
        house.project.canonicalize().unwrap().display()
    );
    let file = home.path().join("project.yaml");
    std::fs::write(&file, text).unwrap();
    home.run(&["apply", "-f", file.to_str().unwrap()]).ok();
    operator(&["run", "--wait", "--once", "sh", "shell: true"]).ok();
    let named = ["run", "--wait", "--once", "--name", "named", "--project", "shop"];
    operator(&[&named[..], &["sh", "shell: true"]].concat()).ok();
    let own = house.home.named("named")["workspace"].as_str().unwrap().to_owned();
    assert!(own.ends_with("/app"), "{own}");
    // A key that starts runs may not list agents, and does not need to.
    let ci = home.run(&["key", "create", "ci", "--scope", "runs", "-o", "name"]).ok();
    let env = [("OVERMIND_TOKEN", ci.line())];
    let refused = home.run_env(&env, &["run", "-d", "--", "true"]);
    refused.says("only an admin may run programs without a sandbox");
    let boxed = ["run", "--wait", "--sandbox", "namespace", "--", "true"];
    home.run_env(&env, &boxed).ok();
}

/// A stand-in for Claude Code, which prints one message in its protocol and is idle.
fn teller(house: &House) {
    let said = json!({"type": "assistant", "message": {"content": [{"type": "text", "text": "It is told."}]}});
    let end = json!({"type": "result", "result": "It is told."});
    let agent = json!({
        "name": "teller", "role": "tells", "model": "command", "sandbox": "none",
        "command": {"provider": "claude", "argv": ["sh", "-c", format!("echo '{said}'; echo '{end}'; : {{task}}")]},
    });
    let file = house.home.0.path().join("teller.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    house.home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
}

#[test]
fn a_program_without_its_task_is_not_started_and_its_output_is_shown_in_words() {
    let house = house();
    teller(&house);
    person(&house, &["run", "--agent", "teller", "--name", "none"])
        .fails(2)
        .says("a task is missing: tell `teller` what to do")
        .says("overmind run --agent teller \"");
    assert_eq!(house.run(&["ps", "--all", "-o", "json"]).ok().json(), json!([]));

    person(&house, &["run", "--agent", "teller", "--name", "tells", "--wait", "a task"]).ok();
    let log = house.run(&["logs", "tells"]).ok().out;
    assert!(log.contains("It is told.") && !log.contains("ended: exit code"), "{log}");
    let once = house.run(&["monitor", "tells", "--once"]).ok().out;
    assert!(once.contains("It is told.") && !once.contains("{\"type\""), "{once}");
    house.run(&["done", "tells", "--discard", "--yes"]).ok();
    house.check();
}

#[test]
fn the_log_of_claude_code_shows_sent_messages_in_order() {
    let mut home = Home::new();
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let lines = [
        json!({"type": "system", "subtype": "init", "session_id": "c-1"}),
        json!({"type": "assistant", "message": {"content": [{"type": "text", "text": "It is told."}]}}),
        json!({"type": "result", "result": "It is told."}),
    ];
    let says: String = lines.iter().map(|line| format!("echo '{line}'\n")).collect();
    std::fs::write(bin.join("claude"), format!("#!/bin/sh\n{says}")).unwrap();
    std::fs::set_permissions(bin.join("claude"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    home.start(&["--listen", "none"], &[("PATH", &path)]);
    let person =
        |args: &[&str]| done(home.command(args).env_remove("OVERMIND_ONCE").output().unwrap()).ok();
    for none in [
        &["run", "--agent", "claude"][..],
        &["run", "claude", "--name", "x"],
        &["run", "claude", ""],
        &["run", "--agent", "claude", " \t"],
    ] {
        let refused = home.run(none).fails(2);
        refused.says("a task is missing").says("overmind run --agent claude \"fix the failing");
    }
    person(&["run", "--agent", "claude", "--name", "fix", "--wait", "fix it"]);
    person(&["send", "--wait", "fix", "and add\na test"]);
    let log = home.run(&["logs", "-f", "fix"]).ok().out;
    let sent = log.find("--- you: and add⏎a test\n").unwrap_or_else(|| panic!("{log}"));
    let (first, second) = (log.find("It is told."), log.rfind("It is told."));
    assert!(first < Some(sent) && Some(sent) < second, "{log}");
    assert!(!log.contains("goes on") && !log.contains("restart"), "{log}");
    home.run(&["logs", "--raw", "fix"]).ok().shows("[human] admin: and add");
}

#[test]
fn a_new_agent_uses_a_model_whose_key_the_server_has() {
    let house = house();
    let create = ["agent", "create", "--name", "plain", "--role", "x"];
    house.run(&create).fails(2).says("no key of a provider is set").says("overmind vault set");
    house.home.0.set("openai_api_key", "sk-proj-4711-of-the-vault", &[]);
    house.run(&create).ok().says("because the server has a key of openai");
    house.check();
}
