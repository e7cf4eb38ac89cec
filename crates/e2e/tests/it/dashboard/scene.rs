//! A morning with a handful of agents, as the pictures of the documentation show it.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::path::{Path, PathBuf};

use overmind_testkit::real::counterpart;
use serde_json::{Value, json};

use super::chromium::drive;
use super::pages::git;
use super::{kinds, up};
use crate::home::{Home, done};

const LOGIN: &str = "def session_for(user, now):\n    token = sign(user.id)\n    return Session(token, \
    expires=now + 3600)\n\n\ndef is_valid(session, now):\n    return session.expires > now\n";
const FIXED: &str = "def session_for(user, now):\n    if user.disabled:\n        raise Disabled(user.name)\n    \
    token = sign(user.id)\n    return Session(token, expires=now + LIFETIME)\n\n\ndef is_valid(session, now):\n    \
    return session.expires > now and not session.revoked\n";

/// A small shop with its tests.
fn shop(home: &Home) -> PathBuf {
    let shop = home.work().join("shop");
    std::fs::create_dir_all(shop.join("src")).unwrap();
    std::fs::write(shop.join("src/login.py"), LOGIN).unwrap();
    std::fs::write(shop.join("README.md"), "# Shop\n").unwrap();
    git(&shop, &["init", "-q", "-b", "main"]);
    git(&shop, &["add", "-A"]);
    git(&shop, &["commit", "-qm", "a shop"]);
    shop
}

/// Starts a run of a scripted agent, or of a program, and waits for `status`; returns its id.
fn run(home: &Home, at: &Path, words: &[&str], status: &str) -> String {
    let mut command = home.command(&[&["run", "-o", "name"], words].concat());
    let output = command.current_dir(at).env_remove("OVERMIND_ONCE").output().unwrap();
    let id = done(output).ok().line().to_owned();
    home.wait_for(&id, status);
    id
}

fn call(name: &str, args: &Value) -> Value {
    json!({"calls": [{"name": name, "args": args}]})
}

#[test]
fn needs_chromium_the_pages_of_a_busy_morning_are_accessible() {
    let Some(modules) = counterpart("CHROMIUM") else { return };
    let (home, _) = up();
    let shop = shop(&home);
    let turns = json!([
        call("read_file", &json!({"path": "src/login.py"})),
        call("write_file", &json!({"path": "src/login.py", "content": FIXED})),
        call("run_shell", &json!({"command": "git diff --stat"})),
        {"text": "A disabled user gets no session any more, and a revoked session is not valid."},
    ]);
    home.scripted("coder", &turns, &[]);
    let push = json!([call("run_shell", &json!({"command": "git push origin release-2.4"}))]);
    home.scripted("release", &push, &["--sandbox", "none"]);
    let question = "Two migrations touch `orders`. Which one goes first?";
    home.scripted("planner", &json!([call("ask_user", &json!({"message": question}))]), &[]);
    let text = "README.md has a section on local development now. Shall I translate it, too?";
    home.scripted("writer", &json!([{"text": text}]), &[]);
    let start = |words: &[&str], status: &str| run(&home, &shop, words, status);
    start(&["--name", "docs", "writer", "document local development"], "idle");
    let fix =
        start(&["--once", "--name", "login", "coder", "disabled users can log in"], "succeeded");
    start(&["--once", "--name", "count-lines", "wc -l src/*.py"], "succeeded");
    let tests = "i=0; while [ $i -lt 41 ]; do i=$((i+1)); done; echo 'tests/test_cart.py: 41 passed'; sleep 600";
    start(&["--name", "cart-tests", tests], "running");
    start(&["--name", "migrate", "planner", "order the open migrations"], "awaiting_input");
    let waits = start(&["--name", "ship", "release", "release 2.4"], "awaiting_approval");
    kinds::apply(&home, 2, "waiting for pull requests");
    kinds::ready(&home, 2);
    home.run(&["cron", "add", "nightly", "0 3 * * *", "--", "run", "coder", "update"]).ok();
    let pages = json!({
        "now": "/", "sessions": "/runs", "approval": format!("/runs/{waits}"),
        "timeline": format!("/runs/{fix}"), "changes": format!("/runs/{fix}/changes"),
        "fleet": "/resources/fleet/web", "resources": "/resources", "costs": "/costs",
    });
    drive(&home, &modules, &pages, &Value::Null);
}
