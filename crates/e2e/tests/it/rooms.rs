//! Environments on the command line, as far as possible without one: answers for a run without one.

use crate::home::{Home, until};

#[test]
fn a_run_without_an_environment_has_no_work_and_no_address() {
    let home = Home::up();
    home.run(&["run", "--here", "--name", "plain", "true"]).ok();
    home.run(&["wait", "plain"]).ok();
    let run = home.run(&["ps", "--all", "-o", "json"]).ok().json()[0].clone();
    assert_eq!((&run["name"], &run["room"]), (&"plain".into(), &serde_json::Value::Null));
    for (args, code) in [
        (&["work", "plain"][..], 5),
        (&["done", "plain", "--merge"], 5),
        (&["done", "plain", "--discard", "--yes"], 5),
        // No person can be asked.
        (&["done", "plain", "--discard"], 2),
        (&["url", "plain"], 3),
        (&["url", "nobody"], 3),
        (&["done", "plain"], 2),
        (&["done", "plain", "--merge", "--keep"], 2),
        (&["done", "plain", "--keep", "--into", "main"], 2),
        (&["run", "--here", "--room", "true"], 2),
    ] {
        let done = home.run(args);
        assert_eq!(done.code, code, "{args:?}: {}{}", done.out, done.err);
    }
    let told = home.run(&["work", "plain"]).err;
    assert!(told.contains("no environment"), "{told}");
    let wide = home.run(&["ps", "--all", "-o", "wide"]).ok().out;
    assert!(wide.contains("BRANCH") && wide.contains("ROOM"), "{wide}");
    until("it ends", || Some(home.run(&["ps"]).ok().out).filter(|out| !out.contains("plain")));
}

#[test]
fn a_built_in_agents_run_may_request_an_environment() {
    let home = Home::up();
    home.run(&["agent", "create", "--name", "thinker", "--model", "deterministic"]).ok();
    // A copy of the directory, for it is no repository.
    let run = home.run(&["run", "thinker", "remember: x", "--room", "--wait", "-o", "json"]);
    let run = run.json();
    let worktree = run["room"]["worktree"].as_str().unwrap_or_else(|| panic!("{run}"));
    assert!(!worktree.starts_with(home.work().to_str().unwrap()), "{worktree}");
}
