//! The command line as people use it: its lists, the names it accepts, its completions.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::process::Command;

use crate::home::{Done, Home, done};
use crate::program::program;
use crate::worktrees::House;

#[test]
fn a_noun_without_a_verb_lists_the_resources() {
    let home = Home::up();
    home.agent("coder", &[]);
    for noun in ["agent", "agents"] {
        home.run(&[noun]).ok().shows("NAME").shows("coder");
    }
    assert_eq!(home.run(&["agents", "-o", "json"]).ok().json()[0]["name"], "coder");
    home.run(&["loop"]).ok().shows("checkpoints");
    home.run(&["tools"]).ok().shows("run_shell");
    for (noun, says) in [
        ("cron", "no rituals found"),
        ("vault", "no secrets"),
        ("keys", "no keys"),
        ("mcp", "no MCP servers"),
        ("memory", "there are no texts yet"),
        ("budget", "there are no limits"),
    ] {
        home.run(&[noun]).ok().says(says);
    }
    home.run(&["artifacts"]).fails(3).says("there are no runs yet");
    home.run(&["run", "--name", "one", "true"]).ok();
    home.run(&["artifacts"]).ok().says("of `one`, the newest run");
    home.run(&["agents", "lsit"]).fails(2).says("a similar subcommand exists: 'list'");
}

#[test]
fn commands_that_end_runs_require_whole_names_and_quote_the_typed_one() {
    let home = Home::up();
    home.run(&["run", "-d", "--name", "prt", "sleep 600"]).ok();
    for verb in ["stop", "kill", "cancel"] {
        let refused = home.run(&[verb, "pr"]).fails(3);
        refused.says("there is no run `pr`").says("did you mean `prt`?");
    }
    home.run(&["done", "pr", "--discard", "--yes"]).fails(3).says("did you mean `prt`?");
    home.run(&["info", "pr"]).ok().shows("prt");
    let ended = home.run(&["stop", "prt", "-o", "json"]).ok().json();
    assert_eq!((&ended["status"], &ended["process"]["signal"]), (&"canceled".into(), &15.into()));
    home.run(&["kill", "prt"]).fails(5).says("prt is already finished");
    home.run(&["run", "-d", "--name", "shot", "sleep 600"]).ok();
    home.run(&["kill", "shot"]).ok();
    assert_eq!(home.run(&["wait", "shot", "-o", "json"]).fails(137).json()["process"]["signal"], 9);
}

#[test]
fn several_runs_are_stopped_and_decided_with_one_command() {
    let house = House::new(None);
    for name in ["one", "two"] {
        house.start(name, &[], "echo more >> story.txt; exec sleep 600");
    }
    house.run(&["stop", "one", "two"]).ok().shows("one").shows("two");
    let named = house.run(&["done", "one", "two", "--pr-branch", "both"]).fails(2);
    named.says("`--pr-branch both` is one branch, and several runs are named");
    // An unknown item does not prevent decisions about the others.
    let some = house.run(&["done", "one", "nobody", "two", "--discard", "--yes"]).fails(3);
    some.says("there is no run `nobody`");
    for name in ["one", "two"] {
        let run = house.run(&["info", name, "-o", "json"]).ok().json();
        assert_eq!(run["room"]["done"]["action"], "discard", "{run}");
    }
    house.check();
}

#[test]
fn several_agents_are_disabled_and_enabled_with_one_command() {
    let home = Home::up();
    home.agent("a", &[]);
    home.agent("b", &[]);
    home.run(&["agent", "disable", "a", "b"]).ok().shows("a disabled").shows("b disabled");
    home.run(&["run", "a", "remember: x"]).fails(5).says("disabled");
    home.run(&["agent", "enable", "a", "b"]).ok().shows("a enabled").shows("b enabled");
    home.run(&["run", "a", "remember: x", "-d"]).ok();
}

#[test]
fn a_budget_is_removed_by_any_name_in_the_list() {
    let home = Home::up();
    home.agent("coder", &[]);
    let list = |format: &str| home.run(&["budget", "list", "-o", format]).ok().out;
    let word = |text: &str, at: usize| {
        let row = text.lines().nth(1).unwrap_or_default();
        row.split_whitespace().nth(at).unwrap_or_default().to_owned()
    };
    let set = || home.run(&["budget", "set", "agent:coder", "--usd", "5", "--per", "day"]).ok();
    for (format, at) in [("table", 0), ("table", 1), ("wide", 0), ("wide", 1)] {
        set();
        let given = word(&list(format), at);
        home.run(&["budget", "rm", &given]).ok().says("removed: ");
        home.run(&["budget", "list"]).ok().says("there are no limits");
    }
}

#[test]
fn an_ambiguous_bare_number_is_refused_with_a_request_for_a_unit() {
    let home = Home::new();
    home.run(&["wait", "x", "--timeout", "5000"]).fails(2).says("give the unit: 5000s or 5000ms?");
    let run = ["run", "--restart", "always", "--backoff", "500", "true"];
    home.run(&run).fails(2).says("give the unit: 500s or 500ms?");
}

#[test]
fn settings_are_read_and_written_individually() {
    let home = Home::new();
    home.run(&["config", "get", "log.level"]).ok().shows("info");
    home.run(&["config", "set", "log.level", "debug"]).ok().says("overmind.toml");
    assert_eq!(home.run(&["config", "get", "log.level"]).ok().line(), "debug");
    let shown = home.run(&["config", "get", "log.level", "-o", "json"]).ok().json();
    assert!(shown["source"].as_str().is_some_and(|source| source.contains("overmind.toml:")));
    home.run(&["config", "set", "log.levle", "x"]).fails(3).says("did you mean `log.level`?");
    home.run(&["config", "set", "server.drain_seconds", "soon"]).fails(1).says("whole number");
    assert_eq!(home.run(&["config", "get", "log.level"]).ok().line(), "debug", "nothing changed");
    home.run(&["config", "unset", "log.level"]).ok();
    home.run(&["config", "unset", "log.level"]).ok().says("log.level is not set");
    assert_eq!(home.run(&["config", "get", "log.level"]).ok().line(), "info");

    let edit = |script: &str| home.run_env(&[("EDITOR", script)], &["config", "edit"]);
    edit("sed -i 's/^\\[log\\]/[log]\\nlevel = \"warn\"/'").ok();
    assert_eq!(home.run(&["config", "get", "log.level"]).ok().line(), "warn");
    edit("sed -i 's/^level.*/level = 3/'").fails(1).says("your text is in");
    assert_eq!(home.run(&["config", "get", "log.level"]).ok().line(), "warn");
    edit("true").ok().says("nothing was changed");
    home.run(&["config", "sample"]).ok().shows("[server]").shows("#listen = \"127.0.0.1:8420\"");
}

#[test]
fn a_misspelt_model_gets_a_suggestion() {
    let home = Home::up();
    home.run(&["prices", "gpt-5-min"]).fails(3).says("did you mean `gpt-5-mini`?");
    let made = home.run(&["agent", "create", "--name", "x", "--model", "gpt-5-min"]).ok();
    made.says("did you mean the model `gpt-5-mini`?");
}

#[test]
fn a_new_agent_without_chosen_tools_says_which_it_has() {
    let home = Home::up();
    let made = home.run(&["agent", "create", "--name", "x", "--model", "gpt-5-mini"]).ok();
    let chosen =
        "tools: run_shell, read_file, write_file, edit_file, list_files (choose with --tools)";
    made.says(chosen);
    for (name, more) in
        [("y", ["--tools", "read_file"]), ("z", ["-o", "json"]), ("w", ["-o", "name"])]
    {
        let create = ["agent", "create", "--name", name, "--model", "gpt-5-mini"];
        let made = home.run(&[&create[..], &more].concat()).ok();
        assert!(!made.err.contains("tools:"), "{}", made.err);
    }
}

/// The completions that a shell's script offers for the words, the last of which is partial.
fn asked(home: &Home, shell: &str, words: &[&str]) -> Done {
    let index = (words.len() - 1).to_string();
    let mut command = home.command(&[&["--"], words].concat());
    command.env("_OVERMIND_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", index);
    done(command.env("_CLAP_IFS", "\n").output().unwrap())
}

#[test]
fn completions_know_runs_agents_models_kinds_and_names_of_resources() {
    let home = Home::up();
    home.agent("coder", &[]);
    home.run(&["run", "-d", "--name", "build", "sleep 600"]).ok();
    home.run(&["run", "--name", "before", "true"]).ok();
    for shell in ["bash", "zsh", "fish"] {
        let offers = |words: &[&str]| asked(&home, shell, words).ok().out;
        assert!(offers(&["overmind", "logs", "bui"]).contains("build"), "{shell}");
        let stop = offers(&["overmind", "stop", "b"]);
        assert!(stop.contains("build") && !stop.contains("before"), "{shell}: {stop}");
        assert!(offers(&["overmind", "run", "--agent", "co"]).contains("coder"), "{shell}");
        assert!(offers(&["overmind", "agent", "rm", "co"]).contains("coder"), "{shell}");
        let models = offers(&["overmind", "agent", "create", "--model", "gpt-5-m"]);
        assert!(models.contains("gpt-5-mini"), "{shell}: {models}");
        assert!(offers(&["overmind", "get", "agen"]).contains("agents"), "{shell}");
        assert!(offers(&["overmind", "get", "agents", "co"]).contains("coder"), "{shell}");
        assert!(offers(&["overmind", "describe", "agent/co"]).contains("agent/coder"), "{shell}");
        assert!(offers(&["overmind", "config", "get", "log."]).contains("log.level"), "{shell}");
        assert!(offers(&["overmind", "he"]).contains("help"), "{shell}");
    }
    // Without a server, completion offers commands and options, and is no error.
    let home = Home::new();
    assert_eq!(asked(&home, "bash", &["overmind", "logs", "bui"]).ok().out, "");
}

#[test]
fn printed_completion_scripts_work_in_installed_shells() {
    let home = Home::up();
    home.run(&["run", "-d", "--name", "build", "sleep 600"]).ok();
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(program(), bin.join("overmind")).unwrap();
    let bash = "eval \"$(overmind completions bash)\"; COMP_WORDS=(overmind logs bui); COMP_CWORD=2; \
                COMP_TYPE=9; _clap_complete_overmind overmind bui logs; echo \"${COMPREPLY[@]}\"";
    let fish = "overmind completions fish | source; complete -C 'overmind logs bui'";
    let zsh = "autoload -U compinit; compinit -u -D; eval \"$(overmind completions zsh)\"; \
               compadd() { :; }; _describe() { print -l -- ${(P)2}; }; words=(overmind logs bui); \
               CURRENT=3; _clap_dynamic_completer_overmind";
    for (shell, script) in [("bash", bash), ("fish", fish), ("zsh", zsh)] {
        if Command::new(shell).args(["-c", "true"]).output().is_err() {
            continue;
        }
        let ours = home.command(&[]);
        let mut command = Command::new(shell);
        for (name, value) in ours.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        let path = format!("{}:/usr/bin:/bin", bin.display());
        let said = command.args(["-c", script]).env("PATH", path).output().unwrap();
        done(said).ok().shows("build");
    }
}
