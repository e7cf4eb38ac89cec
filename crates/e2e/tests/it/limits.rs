//! Bounds of commands: from the flag, through a restart of the server, to the kernel.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use serde_json::{Value, json};

use crate::home::Home;

fn command(name: &str, limits: &Value, argv: &Value) -> Value {
    json!({"name": name, "role": "works", "model": "command", "sandbox": "none",
           "command": {"argv": argv, "limits": limits}})
}

fn agent(home: &Home, agent: &Value) {
    let file = home.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
}

/// Allocates as many MiB as requested.
const TAKES: &str = "import sys; x = b'x' * (int(sys.argv[1]) << 20); print('took', len(x) >> 20)";

/// The same in words for a shell.
fn takes(mb: u32) -> String {
    format!("python3 -c \"{TAKES}\" {mb}")
}
/// Says how many of thirty children could be there at once.
const FORKS: &str = "n=0; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 \
                     26 27 28 29 30; do (sleep 2) & done 2>&1; wait; echo over";

#[test]
fn a_commands_limits_apply_with_and_without_a_sandbox() {
    let home = Home::up();
    for sandbox in ["none", "namespace"] {
        let run = |name: &str, flags: [&str; 2], words: &str| {
            let name = format!("{name}-{sandbox}");
            let args =
                [&["run", "--name", &name, "--sandbox", sandbox], &flags[..], &[words]].concat();
            home.run(&args);
            home.run(&["wait", &name]);
            let log = home.run(&["logs", &name]).out;
            (home.run(&["info", &name, "-o", "json"]).ok().json(), log)
        };
        let (row, log) = run("fits", ["--memory", "1G"], &takes(100));
        assert_eq!(row["status"], "succeeded", "{row} {log}");
        assert!(log.contains("took 100"), "{log}");
        let (row, log) = run("hog", ["--memory", "64M"], &takes(400));
        assert_eq!(row["status"], "failed", "{row} {log}");
        let told = "1 process was killed by the kernel for want of memory: the bound is 64 MiB";
        assert!(log.contains(told) && !log.contains("took"), "{log}");
        let (_, log) = run("forks", ["--processes", "16"], FORKS);
        assert!(log.to_lowercase().contains("fork"), "{log}");
    }
    for (flags, said) in [
        (["--memory", "64"], "give a whole number of M or G"),
        (["--memory", "1M"], "`memory_mb` from 16"),
        (["--processes", "1"], "`processes` from 8"),
        (["--cpus", "0"], "give a number from 0.01 to 1000"),
    ] {
        let refused = home.run(&[&["run"], &flags[..], &["--", "true"]].concat());
        assert!(refused.code != 0 && refused.err.contains(said), "{flags:?}: {}", refused.err);
    }
}

#[test]
fn an_agents_limits_apply_to_its_runs_and_only_admins_raise_them() {
    let mut home = Home::new();
    let started = home.start(&["--listen", "127.0.0.1:0"], &[]);
    let url = started["url"].as_str().unwrap();
    let limits = json!({"memory_mb": 64, "cpu_percent": 50});
    agent(&home, &command("small", &limits, &json!(["python3", "-c", TAKES, "{task}"])));
    let wait = |name: &str| {
        home.run(&["wait", name]);
        home.run(&["logs", name]).out
    };
    home.run(&["run", "--name", "as-it-is", "small", "400"]);
    assert!(wait("as-it-is").contains("the bound is 64 MiB"));
    // Another option is given: the limits still apply. A given limit overrides them.
    home.run(&["run", "--name", "other", "--activity-timeout", "60", "small", "400"]);
    assert!(wait("other").contains("the bound is 64 MiB"));
    home.run(&["run", "--name", "tighter", "--memory", "32M", "small", "50"]);
    assert!(wait("tighter").contains("the bound is 32 MiB"));
    home.run(&["run", "--name", "wider", "--memory", "1G", "small", "400"]).ok();
    assert!(wait("wider").contains("took 400"));
    let key = home.run(&["key", "create", "op", "--role", "operator", "-o", "name"]).ok();
    let token = [("OVERMIND_TOKEN", key.line())];
    let asks = |memory: &str| {
        home.run_env(
            &token,
            &[
                "--server",
                url,
                "run",
                "--sandbox",
                "namespace",
                "--memory",
                memory,
                "--detach",
                "small",
                "1",
            ],
        )
    };
    asks("1G").fails(6).says("admin");
    for memory in ["64M", "32M"] {
        asks(memory).ok();
    }
}
