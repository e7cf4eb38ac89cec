//! `run_command`: bare names from a list, arguments as they are, no shell.

use overmind_core::sandbox::Exit;
use overmind_tools::{Commands, Options};
use serde_json::json;

use crate::support::{Bench, is};

fn bench() -> Bench {
    let commands = Commands::new(vec!["rg".into(), "git".into()], Vec::new()).unwrap();
    Bench::with(Options { commands, ..Options::default() }, Vec::new())
}

#[tokio::test]
async fn a_listed_program_gets_its_arguments_unchanged() {
    let bench = bench();
    let args = json!({"program": "rg", "args": ["$(id)", "a b", ";", "-n"], "stdin": "in"});
    let result = bench.good("run_command", args).await;
    assert_eq!(result["program"], "rg");
    assert_eq!(result["exit_code"], 0);
    assert_eq!(result["stdout"], "out\n");
    let asked = bench.shell.last();
    assert_eq!(asked.argv, ["rg", "$(id)", "a b", ";", "-n"]);
    assert_eq!(asked.stdin, b"in");
    assert_eq!(asked.writable, None);
    assert_eq!(asked.timeout.as_secs(), 20);
}

#[tokio::test]
async fn unlisted_commands_do_not_run() {
    let none = Bench::new();
    let refused = none.bad("run_command", json!({"program": "ls"})).await;
    let wanted = "`ls` is not allowed: tools.commands is empty, so no program can be run this way";
    assert_eq!(refused, is("permission_denied", wanted));
    let bench = bench();
    let refused = bench.bad("run_command", json!({"program": "ls"})).await;
    assert_eq!(
        refused,
        is("permission_denied", "`ls` is not allowed: tools.commands allows rg, git")
    );
    for (program, why) in [
        ("/usr/bin/rg", "it must be a bare name without a path"),
        ("./rg", "it must be a bare name without a path"),
        ("rg -n", "it must not contain white space; arguments are given apart"),
        ("rg\u{0}", "it must not contain white space; arguments are given apart"),
    ] {
        let refused = bench.bad("run_command", json!({"program": program})).await;
        assert_eq!(refused, is("bad_args", &format!("program: {why}")));
    }
    let refused = bench.bad("run_command", json!({"program": "rg", "args": ["a\u{0}b"]})).await;
    assert_eq!(refused, is("bad_args", "args/0 must not contain a NUL character"));
    let long = "a".repeat(8193);
    let refused = bench.bad("run_command", json!({"program": "rg", "args": ["", long]})).await;
    assert_eq!(refused, is("bad_args", "args/1 must not exceed 8192 bytes"));
    assert!(bench.shell.asked.lock().unwrap().is_empty(), "nothing ran");
}

#[tokio::test]
async fn the_directory_is_inside_the_workspace_after_resolving_links() {
    let bench = bench();
    bench.put("sub/dir/f", "x");
    std::os::unix::fs::symlink("sub/dir", bench.path("link")).unwrap();
    std::os::unix::fs::symlink("/etc", bench.path("out")).unwrap();
    bench.good("run_command", json!({"program": "git", "cwd": "link"})).await;
    assert_eq!(bench.shell.last().cwd.to_str(), Some("sub/dir"));
    bench.good("run_command", json!({"program": "git", "cwd": "/workspace"})).await;
    assert_eq!(bench.shell.last().cwd.to_str(), Some("."));
    let args = json!({"program": "git", "cwd": "sub", "allow_write": true, "write_subdir": "sub"});
    bench.good("run_command", args).await;
    assert_eq!(bench.shell.last().writable.unwrap().to_str(), Some("sub"));
    for (cwd, code, why) in [
        ("..", "tool_error", "Path escapes workspace"),
        ("/etc", "tool_error", "Path escapes workspace"),
        ("out", "tool_error", "Path escapes workspace"),
        ("nowhere", "not_found", "cwd not found"),
        ("sub/dir/f", "invalid_path", "sub/dir/f is not a directory"),
    ] {
        let refused = bench.bad("run_command", json!({"program": "git", "cwd": cwd})).await;
        assert_eq!(refused, is(code, why), "{cwd}");
    }
}

#[tokio::test]
async fn the_runner_is_prepended_to_every_command() {
    let runner = vec!["nice".into(), "-n5".into()];
    let commands = Commands::new(vec!["rg".into()], runner).unwrap();
    let bench = Bench::with(Options { commands, ..Options::default() }, Vec::new());
    bench.shell.change(|done| done.exit = Exit::TimedOut);
    let refused = bench.bad("run_command", json!({"program": "rg", "timeout_s": 3})).await;
    assert_eq!(refused, is("timeout", "Command timed out after 3s; `timeout_s` can be up to 120"));
    assert_eq!(bench.shell.last().argv, ["nice", "-n5", "rg"]);
}
