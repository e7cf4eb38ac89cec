//! Texts that the program prints about itself.

use crate::home::Home;

#[test]
fn the_help_of_the_whole_stays_as_it_is() {
    let home = Home::new();
    insta::assert_snapshot!(home.run(&["--help"]).ok().out);
}

#[test]
fn the_help_of_a_command_has_examples() {
    let home = Home::new();
    insta::assert_snapshot!(home.run(&["run", "--help"]).ok().out);
    for command in ["up", "down", "ps", "logs", "fork", "bench", "demo", "restore"] {
        let help = home.run(&[command, "--help"]).ok();
        assert!(help.out.contains("Example"), "{command}: {}", help.out);
    }
}

#[test]
fn wrong_usage_is_reported_on_standard_error_with_code_2() {
    let home = Home::new();
    for (args, says) in [
        (&["frobnicate"][..], "unrecognized subcommand 'frobnicate'"),
        (&["stauts"], "a similar subcommand exists: 'status'"),
        (&["rnu", "coder"], "a similar subcommand exists: 'run'"),
        (&["agent", "crate"], "a similar subcommand exists: 'create'"),
        (&["help", "enviroments"], "did you mean `environments`?"),
        (&["help", "frobnicate"], "topics are environments, approvals"),
        (&["ps", "--limit", "0"], "0 is not in 1..=1000000"),
        (&["ps", "--status", "finished"], "[possible values: queued, working"),
        (&["-o", "xml", "ps"], "[possible values: table, wide, json, yaml, name]"),
        (&["run"], "for example: overmind run --agent claude \""),
        (&["done", "x"], "for example: overmind done fix --merge"),
        (&["up", "--tls-cert", "x"], "--tls-key"),
        (&["replay", "x", "--verify", "--follow"], "cannot be used with"),
        (&["-q", "-v", "ps"], "cannot be used with"),
        (&[], "Usage: overmind"),
    ] {
        let done = home.run(args).fails(2);
        assert_eq!(done.out, "", "{args:?}");
        done.says(says);
    }
}

#[test]
fn the_help_of_a_group_lists_its_commands() {
    let home = Home::new();
    for (group, command) in [
        ("runs", "stop "),
        ("declare", "cron "),
        ("agents", "mcp "),
        ("keys", "vault "),
        ("spending", "costs "),
        ("setup", "doctor "),
    ] {
        let listed = home.run(&["help", group]).ok();
        listed.shows(&format!("\n  {command}"));
        assert!(!home.run(&["--help"]).ok().out.contains(&format!("\n  {command}")), "{command}");
    }
    home.run(&["help", "cron"]).ok().shows("overmind cron add");
    home.run(&["help", "frobnicate"]).fails(2).says("groups are runs, declare");
}

#[test]
fn the_version_is_the_version_of_the_package() {
    let done = Home::new().run(&["--version"]).ok();
    assert_eq!(done.line(), concat!("overmind ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_of_every_shell_call_the_program() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = home.run(&["completions", shell]).ok().out;
        assert!(script.contains("_OVERMIND_COMPLETE"), "{shell}");
    }
    home.run(&["completions", "tcsh"]).fails(2);
}

#[test]
fn manual_pages_are_printed_or_written_for_every_command() {
    let home = Home::new();
    home.run(&["man"]).ok().shows(".TH overmind 1");
    home.run(&["man", "run"]).ok().shows(".TH overmind-run 1");
    home.run(&["man", "agent", "create"]).ok().shows(".TH overmind-agent-create 1");
    home.run(&["man", "rnu"]).fails(2).says("did you mean `run`?");
    home.run(&["man", "pages"]).fails(2).says("overmind man ./pages");
    let written = home.run(&["man", "pages/man1"]).ok();
    written.says(&home.work().join("pages/man1").display().to_string());
    let dir = home.work().join("pages/man1");
    for page in ["overmind.1", "overmind-run.1", "overmind-agent-create.1"] {
        let text = std::fs::read_to_string(dir.join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
}

#[test]
fn the_hidden_command_prints_the_openapi_document() {
    let done = Home::new().run(&["openapi"]).ok();
    assert!(done.json()["openapi"].as_str().unwrap().starts_with("3.1"));
}
