//! The dashboard in a real Chromium: the findings of axe on every page, and the tasks of a person.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use overmind_testkit::real::counterpart;
use serde_json::{Value, json};

use super::pages::{project, ran};
use super::{asker, up};
use crate::home::{Home, done};

/// The script that drives the browser.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/dashboard/chromium.mjs");

/// Texts of agents that a browser would run, load or follow as markup.
const HOSTILE: [&str; 5] = [
    "<script>alert(1);document.title='owned'</script>",
    "\"'></textarea></pre><img src=x onerror=alert(2)>",
    "<meta http-equiv=refresh content=\"0;url=http://evil.example/\">",
    "<iframe src=\"javascript:alert(4)\"></iframe><base href=http://evil.example/>",
    "</title><svg onload=\"location='http://evil.example/'\"><a href=javascript:alert(5)>x</a>",
];

/// A run of an agent that waits or works; its id.
fn begun(home: &Home, words: &[&str], status: &str) -> String {
    let id = home.run(&[&["run", "-o", "name"], words].concat()).ok().line().to_owned();
    home.wait_for(&id, status);
    id
}

/// Runs in which each hostile text is a task, an answer, an output and the name of a file.
fn hostile(home: &Home, project: &Path) -> Vec<String> {
    let write = |text: &str| {
        let path = text.replace('/', "\u{2215}");
        json!({"calls": [{"name": "write_file", "args": {"path": path, "content": text}}]})
    };
    let mut turns: Vec<Value> = HOSTILE.iter().map(|text| write(text)).collect();
    turns.push(json!({"text": HOSTILE.join("\n")}));
    home.scripted("hostile", &json!(turns), &[]);
    let mut command = home.command(&["run", "-o", "name", "hostile", &HOSTILE.join(" ")]);
    let id = done(command.current_dir(project).output().unwrap()).ok().line().to_owned();
    home.wait_for(&id, "succeeded");
    // Output of a command is shown unchanged.
    let line = HOSTILE.map(|text| format!("echo '{}'", text.replace('\'', "'\\''"))).join("; ");
    vec![id, ran(home, project, "prints", &line)]
}

/// A program in a terminal that asks for nothing of the person's machine in vain: a title, the
/// clipboard, a link. Then it repeats what is typed, once it has said how wide its terminal is.
const TERMINAL: &str = "printf '\\033]0;owned\\007\\033]2;owned\\033\\\\\\033]52;c;b3duZWQ=\\007'; \
    printf '\\033]8;;http://evil.example/\\033\\\\a link\\033]8;;\\033\\\\ \\033[38;2;250;120;90mready\\033[0m\\n'; \
    while read -r line; do stty size | cut -d' ' -f2 | sed 's/^/columns: /'; echo \"heard <$line>\"; done";

/// The ids that the script needs.
fn prepare(home: &Home) -> (Value, Vec<String>) {
    let project = project(home);
    asker(home);
    home.agent("sh", &["--sandbox", "none"]);
    let turns = json!([{"text": "The first answer."}, {"text": "The second answer."}]);
    home.scripted("rests", &turns, &[]);
    let mut command = home.command(&["run", "-o", "name", "rests", "do it"]);
    let rests = done(command.env_remove("OVERMIND_ONCE").output().unwrap()).ok().line().to_owned();
    home.wait_for(&rests, "idle");
    let call = "shell: curl -s http://127.0.0.1:9/hook";
    // The file that the run on the page reads, so that it ends after the page has shown it at work.
    let work = home.work().join("piped");
    std::fs::create_dir(&work).unwrap();
    assert!(Command::new("mkfifo").arg(work.join("go")).status().unwrap().success());
    let ids = json!({
        "hook": begun(home, &["--name", "hook", "sh", call], "awaiting_approval"),
        "push": begun(home, &["--name", "push", "sh", call], "awaiting_approval"),
        "asks": begun(home, &["--name", "asks", "asker", "which file?"], "awaiting_input"),
        "rests": rests,
        "fix": ran(home, &project, "fix", "printf 'twice\\nupon\\n' > story.txt"),
        "terminal": begun(home, &["--name", "types", TERMINAL], "running"),
        "work": work,
    });
    // A run of no fleet yet, so that the fleet may run without a sandbox.
    super::kinds::apply(home, 2, "one");
    super::kinds::ready(home, 2);
    super::kinds::lineage(home, 4);
    home.run(&["memory", "add", "use tabs", "--collection", "notes"]).ok();
    home.run(&["mesh", "put", "build/api/status", "green"]).ok();
    let cron = ["cron", "add", "daily", "0 9 * * 1-5", "--", "run", "sh", "shell: echo report"];
    home.run(&cron).ok();
    (ids, hostile(home, &project))
}

/// Has the browser look over the pages, and do the errands with `runs` unless that is null. Nothing may be
/// wrong. Pictures are written where the variable OVERMIND_TEST_SHOTS says.
pub(super) fn drive(home: &Home, modules: &str, pages: &Value, runs: &Value) {
    let link = home.run(&["dash", "-o", "json"]).ok().json()["url"].clone();
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever wants pictures says where by a variable"
    )]
    let shots = std::env::var("OVERMIND_TEST_SHOTS").ok();
    let told =
        json!({"modules": modules, "link": link, "pages": pages, "runs": runs, "shots": shots});
    let path = "/usr/local/bin:/usr/bin:/bin";
    let mut node = Command::new("node");
    node.arg(SCRIPT).env_clear().env("PATH", path).env("HOME", home.path());
    let mut child =
        node.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(told.to_string().as_bytes()).unwrap();
    let said = done(child.wait_with_output().unwrap()).ok();
    assert_eq!(said.out.trim(), "", "{}", said.err);
    eprint!("{}", said.err);
}

#[test]
fn needs_chromium_every_page_is_accessible_and_a_person_does_their_errands() {
    let Some(modules) = counterpart("CHROMIUM") else { return };
    let (home, _) = up();
    let (ids, hostile) = prepare(&home);
    let run = |id: &Value, part: &str| format!("/runs/{}{part}", id.as_str().unwrap());
    let mut pages = json!({
        "now": "/", "sessions": "/runs", "agents": "/agents", "start": "/runs/new",
        "costs": "/costs", "memory": "/memory", "found": "/memory?q=tabs", "mesh": "/board",
        "history": "/board?history=build%2Fapi%2Fstatus",
        "may": "/board?agent=sh&verb=write&object=plan", "resources": "/resources", "kind": "/resources/ritual",
        "ritual": "/resources/ritual/daily", "session-kind": "/resources/session",
        "agent": "/agents/sh", "fleet": "/resources/fleet/web",
        "health": "/settings", "policy": "/settings/policy", "tool-servers": "/settings/tools",
        "models": "/settings/models", "users": "/settings/keys",
        "waits": run(&ids["hook"], ""), "rests": run(&ids["rests"], ""),
        "changes": run(&ids["fix"], "/changes"), "log": run(&ids["fix"], "/log"),
        "terminal": run(&ids["terminal"], "/terminal"), "ended": run(&ids["fix"], "/terminal"),
        "artifacts": run(&ids["fix"], "/artifacts"), "replay": run(&ids["hook"], "/replay"),
    });
    for (n, id) in hostile.iter().enumerate() {
        for part in ["", "/changes", "/log", "/replay"] {
            pages[format!("hostile-{n}{}", part.replace('/', "-"))] =
                json!(format!("/runs/{id}{part}"));
        }
    }
    drive(&home, &modules, &pages, &ids);

    // The browser showed the result.
    let run = |name: &str| home.fetch(ids[name].as_str().unwrap());
    let pushed = home.wait_for(ids["push"].as_str().unwrap(), "failed");
    assert!(pushed["error"].to_string().contains("not this host"), "{pushed}");
    assert_ne!(run("hook")["status"], "awaiting_approval");
    home.wait_for(ids["asks"].as_str().unwrap(), "succeeded");
    let story = std::fs::read_to_string(home.work().join("app/story.txt")).unwrap();
    assert_eq!(story, "twice\nupon\n", "the merge reached the project");
    let daily = home.run(&["get", "ritual/daily", "-o", "json"]).ok().json();
    assert_eq!(daily["spec"]["schedule"], "0 10 * * 1-5");
    assert_eq!(daily["spec"]["suspend"], true);
}
