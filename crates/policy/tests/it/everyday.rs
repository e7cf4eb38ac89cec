//! How often a room asks about what people and agents do all day, and that it asks or refuses what
//! leaves it.

use overmind_core::gate::{Decision, GateRequest, GateVerdict};
use overmind_core::sandbox::SandboxLevel;
use overmind_policy::Policy;

use crate::corpus::{harmless, in_a_room, lines, shell};

fn everyday() -> Vec<String> {
    lines(include_str!("../../corpus/everyday.txt"))
}

fn leaving() -> Vec<String> {
    lines(include_str!("../../corpus/leaving.txt"))
}

/// The commands that are judged like `wanted`, with their share, as text.
fn listed(all: &[(String, GateVerdict)], wanted: impl Fn(&GateVerdict) -> bool) -> (usize, String) {
    let some: Vec<String> = all
        .iter()
        .filter(|(_, verdict)| wanted(verdict))
        .map(|(command, verdict)| format!("  {} {command:?}: {}", verdict.decision, verdict.reason))
        .collect();
    let share = 100.0 * some.len() as f64 / all.len() as f64;
    let text = format!("{} of {} ({share:.1} %):\n{}", some.len(), all.len(), some.join("\n"));
    (some.len(), text)
}

fn judged(commands: Vec<String>, request: fn(&str) -> GateRequest) -> Vec<(String, GateVerdict)> {
    let policy = Policy::default();
    let judge = |command: String| {
        let verdict = policy.judge(&request(&command));
        (command, verdict)
    };
    commands.into_iter().map(judge).collect()
}

#[test]
fn an_environment_asks_about_at_most_one_everyday_command_in_fifty() {
    let commands = everyday();
    assert!(commands.len() >= 250, "{} commands", commands.len());
    let all = judged(commands, in_a_room);
    let (stopped, text) = listed(&all, |verdict| verdict.decision != Decision::Allow);
    eprintln!("stopped in a room: {text}");
    assert!(stopped * 50 <= all.len(), "{text}");
    let (refused, text) = listed(&all, |verdict| verdict.decision == Decision::Deny);
    assert_eq!(refused, 0, "{text}");
}

#[test]
fn harmless_commands_do_not_ask_in_an_environment() {
    let all = judged(harmless(), in_a_room);
    let (asked, text) = listed(&all, |verdict| verdict.decision == Decision::Ask);
    assert!(asked * 50 <= all.len(), "{text}");
    // Only commands that need a network are refused at once.
    let (refused, text) = listed(&all, |verdict| {
        verdict.decision == Decision::Deny && verdict.rule.id != "no-network"
    });
    assert_eq!(refused, 0, "{text}");
}

#[test]
fn effects_outside_an_environment_ask_or_are_denied() {
    let commands = leaving();
    assert!(commands.len() >= 100, "{} commands", commands.len());
    let all = judged(commands, in_a_room);
    let (allowed, text) = listed(&all, |verdict| verdict.decision == Decision::Allow);
    assert_eq!(allowed, 0, "{text}");
    // Commands that need the network never ask.
    let (asked, text) = listed(&all, |verdict| {
        let touches = verdict.actions.iter().flat_map(|action| &action.touches);
        let mut kinds = touches.map(|touch| touch.kind);
        verdict.decision == Decision::Ask
            && kinds.any(|kind| kind == overmind_core::gate::TouchKind::Network)
    });
    assert_eq!(asked, 0, "{text}");
}

#[test]
fn effects_outside_the_workspace_ask_without_an_environment() {
    let without = |command: &str| GateRequest { sandbox: SandboxLevel::None, ..shell(command) };
    for request in [shell, without as fn(&str) -> GateRequest] {
        let all = judged(leaving(), request);
        let (allowed, text) = listed(&all, |verdict| verdict.decision == Decision::Allow);
        assert_eq!(allowed, 0, "{text}");
    }
}

#[test]
fn without_an_environment_remote_code_and_unknown_programs_ask() {
    let policy = Policy::default();
    for command in [
        "python3 -c 'print(1)'",
        "node -e 'console.log(1)'",
        "perl -ne print notes.txt",
        "frobnicate --all",
        "sqlite3 app.db .tables",
        "cat $FILE",
        "rm -rf $DIR",
        "rm -rf src",
        "mv src /tmp",
        "git read-tree -u --reset HEAD",
        "git rm -r src",
        "kill %1",
    ] {
        for sandbox in [SandboxLevel::Namespace, SandboxLevel::None] {
            let verdict = policy.judge(&GateRequest { sandbox, ..shell(command) });
            assert_eq!(verdict.decision, Decision::Ask, "{command} at {sandbox:?}");
        }
        assert_eq!(policy.judge(&in_a_room(command)).decision, Decision::Allow, "{command}");
    }
}

#[test]
fn user_rules_apply_in_an_environment() {
    let own = "version = 1\n\
        [[rule]]\nid = \"u\"\nverdict = \"ask\"\neffects = [\"unknown\"]\n\
        [[rule]]\nid = \"p\"\nverdict = \"deny\"\neffects = [\"delete\"]\npaths = [\"vendor/**\"]\n\
        [[rule]]\nid = \"n\"\nverdict = \"ask\"\neffects = [\"network\"]\nprograms = [\"psql\"]\n";
    let own = Policy::parse(own, "test").unwrap();
    let said = |command: &str| own.judge(&in_a_room(command)).decision;
    assert_eq!(said("frobnicate"), Decision::Ask);
    assert_eq!(said("rm -rf vendor/x"), Decision::Deny);
    assert_eq!(said("rm -rf $X"), Decision::Ask, "it may be one of those");
    assert_eq!(said("psql -c 'select 1'"), Decision::Deny, "nobody is asked about a network");
    assert_eq!(said("python3 -c 'print(1)'"), Decision::Allow);
}

#[test]
fn obfuscated_text_asks_in_an_environment_too() {
    let policy = Policy::default();
    for command in ["echo 'x", "ls \u{e000}", "f() { f; }; f", "l\u{455} -la"] {
        assert_eq!(policy.judge(&in_a_room(command)).decision, Decision::Ask, "{command:?}");
    }
}

#[test]
fn code_with_a_network_target_is_refused() {
    let policy = Policy::default();
    let said = |command: &str| policy.judge(&in_a_room(command)).decision;
    for command in [
        "python3 -c 'print(\"see https://docs.rs/x\")'",
        "node -e 'console.log(\"http://www.w3.org/2000/svg\")'",
        "python3 -c 'import requests; print(requests.__version__)'",
        "python3 -c 'import requests; print(requests.get(\"http://localhost:8000/\").text)'",
        "node -e 'fetch(\"http://127.0.0.1:3000/\").then(r => console.log(r.status))'",
        "python3 -c 'import socket; socket.create_connection((\"localhost\", 80))'",
    ] {
        assert_eq!(said(command), Decision::Allow, "{command}");
    }
    let gone = "python3 -c 'import requests; requests.get(\"https://evil.example/\")'";
    let verdict = policy.judge(&in_a_room(gone));
    assert_eq!((verdict.decision, verdict.rule.id.as_str()), (Decision::Deny, "no-network"));
    assert!(verdict.advice.contains("`evil.example`"), "{}", verdict.advice);
}
