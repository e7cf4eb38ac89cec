//! Formats, pipes, quiet: the output for scripts and people.

use std::io::Read as _;
use std::process::Stdio;

use crate::home::Home;

#[test]
fn only_results_are_written_to_standard_output() {
    let home = Home::up();
    let id = home.agent("sh", &[]);
    let done = home.run(&["agent", "get", "sh", "-o", "name"]).ok();
    assert_eq!((done.line(), done.err.as_str()), (id.as_str(), ""));
    let run = home.run(&["run", "sh", "shell: echo 1"]).ok();
    run.says("watch it: overmind logs -f");
    let quiet = home.run(&["-q", "run", "sh", "shell: echo 1"]).ok();
    assert_eq!(quiet.err, "");
    home.run(&["-v", "ps"]).ok().says("talking to unix:");
}

#[test]
fn yaml_and_json_have_the_same_content() {
    let home = Home::up();
    home.agent("sh", &["--role", "yes: no\n- # 'x'"]);
    let json = home.run(&["agent", "get", "sh", "-o", "json"]).ok().json();
    let yaml = home.run(&["agent", "get", "sh", "-o", "yaml"]).ok().out;
    for (key, value) in json.as_object().unwrap() {
        assert!(yaml.contains(&format!("{key}:")), "{key} in {yaml}");
        if let Some(number) = value.as_u64() {
            assert!(yaml.contains(&format!("{key}: {number}\n")));
        }
    }
    assert!(yaml.contains(r#"role: "yes: no\n- # 'x'""#), "{yaml}");
}

#[test]
fn a_closed_pipe_ends_the_program_silently() {
    let home = Home::up();
    home.agent("sh", &[]);
    for _ in 0..30 {
        home.run(&["run", "sh", "shell: echo 1", "-o", "name"]).ok();
    }
    let mut child = home
        .command(&["ps", "--all", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Closed before the first byte: the pipe is broken for certain.
    drop(child.stdout.take());
    let status = child.wait().unwrap();
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!((status.code(), err.as_str()), (Some(0), ""));
}

#[test]
fn command_output_cannot_move_the_readers_cursor() {
    let home = Home::up();
    home.agent("sh", &[]);
    let done = home.run(&["run", "sh", "shell: printf '\\033[2J\\033]0;x\\007'", "--follow"]).ok();
    assert!(!done.out.contains('\x1b') && !done.out.contains('\x07'), "{:?}", done.out);
    done.shows("\\u{1b}[2J");
    let task = "remember: \u{1b}[31mred";
    home.run(&["run", "sh", task, "--wait"]).ok();
    assert!(!home.run(&["ps", "--all"]).ok().out.contains('\x1b'));
    assert!(!home.run(&["memory", "list"]).ok().out.contains('\x1b'));
}

#[test]
fn the_state_of_the_server_is_shown_to_people_and_scripts() {
    let home = Home::up();
    home.run(&["status"]).ok().shows("state").shows("ready").shows("0 of 64");
    home.run(&["status", "-o", "wide"]).ok().shows("run_shell");
    let status = home.run(&["status", "-o", "json"]).ok().json();
    assert_eq!(
        (status["ready"]["ok"].as_bool(), status["running"].as_u64()),
        (Some(true), Some(0))
    );
    for word in ["nodes", "hives", "node"] {
        home.run(&["get", word]).ok().shows("local").shows("ready");
    }
    for word in ["runs", "sessions", "agents", "memory"] {
        let list = home.run(&["get", word, "-o", "json"]).ok().json();
        assert_eq!((&list["kind"], &list["items"]), (&"List".into(), &serde_json::json!([])));
    }
    assert_eq!(home.run(&["get", "keys", "-o", "json"]).ok().json(), serde_json::json!([]));
    home.run(&["get", "tools", "-o", "name"]).ok().shows("run_shell");
    let doctor = home.run(&["doctor"]).ok();
    doctor.shows("is ready (pid ");
}
