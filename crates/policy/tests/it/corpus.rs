//! Commands of attackers, and everyday commands.

use overmind_core::gate::{Decision, GateRequest, TouchKind};
use overmind_core::sandbox::SandboxLevel;
use overmind_policy::{Policy, request};

/// The lines of a corpus file with its marks replaced.
pub(crate) fn lines(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(unmark).collect()
}

fn unmark(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find('‹') {
        out.push_str(&rest[..at]);
        let inner = &rest[at + '‹'.len_utf8()..];
        let end = inner.find('›').expect("a mark is closed");
        let code = u32::from_str_radix(&inner[..end], 16).expect("a mark is a hexadecimal number");
        out.push(char::from_u32(code).expect("a mark is a character"));
        rest = &inner[end + '›'.len_utf8()..];
    }
    out.push_str(rest);
    out.replace('⏎', "\n").replace('␀', "\0").replace('␛', "\u{1b}").replace('␍', "\r")
}

pub(crate) fn bypasses() -> Vec<(String, String)> {
    let all = lines(include_str!("../../corpus/bypass.txt"));
    all.iter()
        .map(|line| {
            let (effect, command) = line.split_once('\t').expect("an effect, a tab, a command");
            (effect.to_owned(), command.to_owned())
        })
        .collect()
}

pub(crate) fn harmless() -> Vec<String> {
    lines(include_str!("../../corpus/harmless.txt"))
}

pub(crate) fn shell(command: &str) -> GateRequest {
    request("run_shell", serde_json::json!({ "command": command }))
}

#[test]
fn every_bypass_shows_its_effect_and_is_asked_or_denied() {
    let policy = Policy::default();
    let all = bypasses();
    assert!(all.len() >= 700, "{} attempts", all.len());
    let mut problems = Vec::new();
    for (effect, command) in all {
        let kind = TouchKind::parse(&effect).unwrap_or_else(|| panic!("{effect} is an effect"));
        let verdict = policy.judge(&shell(&command));
        let touches: Vec<_> = verdict.actions.iter().flat_map(|action| &action.touches).collect();
        let seen =
            touches.iter().any(|touch| touch.kind == kind || touch.kind == TouchKind::Unknown);
        if !seen || verdict.decision == Decision::Allow {
            problems.push(format!("{command:?}: {} {touches:?}", verdict.decision));
        }
    }
    assert!(problems.is_empty(), "{} got through:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn harmless_commands_raise_at_most_one_false_alarm_in_twenty() {
    let policy = Policy::default();
    let all = harmless();
    assert!(all.len() >= 400, "{} commands", all.len());
    let mut alarms = Vec::new();
    for command in &all {
        let verdict = policy.judge(&shell(command));
        if verdict.decision != Decision::Allow {
            alarms.push(format!("{command:?}: {}", verdict.reason));
        }
    }
    eprintln!(
        "{} false alarms in {} harmless commands:\n{}",
        alarms.len(),
        all.len(),
        alarms.join("\n")
    );
    assert!(
        alarms.len() * 20 <= all.len(),
        "{} of {}:\n{}",
        alarms.len(),
        all.len(),
        alarms.join("\n")
    );
}

pub(crate) fn in_a_room(command: &str) -> GateRequest {
    GateRequest { room: true, ..shell(command) }
}

#[test]
fn an_environment_asks_about_outside_effects_and_autorun_files() {
    let policy = Policy::default();
    for command in
        ["echo x > .git/hooks/pre-commit", "echo x > .envrc", "crontab -", "echo 'x", "rm -rf /etc"]
    {
        assert_eq!(policy.judge(&in_a_room(command)).decision, Decision::Ask, "{command}");
    }
    for command in
        ["cat ~/.ssh/id_rsa", "sudo ls", "cat /etc/shadow", "docker ps", "echo x > /dev/sda"]
    {
        assert_eq!(policy.judge(&in_a_room(command)).decision, Decision::Deny, "{command}");
    }
    let tool = |name: &str| GateRequest {
        room: true,
        ..request(name, serde_json::json!({"url": "http://127.0.0.1:1/"}))
    };
    assert_eq!(policy.judge(&tool("http_request")).decision, Decision::Ask, "it is the host's");
    assert_eq!(policy.judge(&tool("mcp.files.rm")).decision, Decision::Ask);
}

#[test]
fn network_commands_without_network_are_refused_with_a_hint() {
    let policy = Policy::default();
    for command in [
        "curl https://example.com/",
        "git push origin main",
        "npm install left-pad",
        "make && wget -q https://example.com/a.tar.gz",
        "curl -L --max-time 20 'https://example.com/docs'",
    ] {
        for room in [false, true] {
            let verdict = policy.judge(&GateRequest { room, ..shell(command) });
            assert_eq!(verdict.decision, Decision::Deny, "{command}");
            assert_eq!(verdict.rule.id, "no-network", "{command}");
            assert!(verdict.advice.contains("--network host"), "{}", verdict.advice);
        }
        let open = GateRequest { sandbox: SandboxLevel::None, ..shell(command) };
        assert_eq!(policy.judge(&open).decision, Decision::Ask, "{command}: the host has one");
    }
    // A rule that allows a host applies, and a denial stays a denial.
    let allows = "version = 1\n[[rule]]\nid = \"api\"\nverdict = \"allow\"\neffects = [\"network\"]\nhosts = [\"api.example.com\"]\n";
    let allows = Policy::parse(allows, "test").unwrap();
    assert_eq!(allows.judge(&shell("curl https://api.example.com/")).decision, Decision::Allow);
    let metadata = policy.judge(&shell("curl http://169.254.169.254/"));
    assert_eq!(
        (metadata.decision, metadata.rule.id.as_str()),
        (Decision::Deny, "metadata-service")
    );
}

#[test]
fn changes_without_a_sandbox_ask() {
    let policy = Policy::default();
    for command in ["cargo test", "touch x", "./run.sh", "sed -i s/a/b/ f", "rm -rf target"] {
        let request = GateRequest { sandbox: SandboxLevel::None, ..shell(command) };
        assert_eq!(policy.judge(&request).decision, Decision::Ask, "{command}");
    }
    let request =
        GateRequest { sandbox: SandboxLevel::None, ..shell("git status && cat README.md") };
    assert_eq!(policy.judge(&request).decision, Decision::Allow);
}

#[test]
fn the_most_dangerous_commands_are_denied_and_not_only_asked() {
    let policy = Policy::default();
    for command in [
        "sudo ls",
        "cat /etc/shadow",
        "cat ~/.ssh/id_rsa",
        "env sh -c 'sudo id'",
        "docker ps",
        "cat .env",
        "chmod u+s x",
        "curl http://169.254.169.254/latest",
        "cat /proc/self/environ",
        "dd if=/dev/zero of=/dev/sda",
        "cd /etc && cat shadow",
        "ls | xargs -I{} su -c 'cat {}'",
    ] {
        assert_eq!(policy.judge(&shell(command)).decision, Decision::Deny, "{command}");
    }
}
