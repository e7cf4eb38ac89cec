//! The messages for a person while the model calls of a run fail.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::net::TcpListener;

use overmind_testkit::upstream::{Answer, Say, Script};
use serde_json::{Value, json};

use crate::gateway::{Gateway, Got, chat, messages};
use crate::home::until;

/// An address without a listener.
fn nowhere() -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("http://127.0.0.1:{port}/v1")
}

impl Gateway {
    fn ask_by(&self, token: &str, path: &str, body: &Value) -> Got {
        let url = format!("{}/llm/{path}", self.url);
        self.send(self.client.post(url).bearer_auth(token).json(body))
    }

    fn events_of(&self, name: &str, kind: &str) -> Vec<Value> {
        let all = self.home.run(&["events", name, "--limit", "1000", "-o", "json"]).ok().json();
        let events = all.as_array().unwrap().iter();
        events.filter(|event| event["type"] == kind).cloned().collect()
    }
}

#[test]
fn an_unreachable_provider_is_reported_to_the_program_in_its_log_and_in_ps() {
    let dead = nowhere();
    let env = [("OVERMIND_MODEL_BASE_URL", dead.as_str())];
    let gateway = Gateway::with(Script::always(Say::text("nobody asks")), &env, "");
    let (_, token) = gateway.session("stuck");
    let why = format!("connect to {dead}: connection refused");
    for (path, body) in
        [("anthropic/v1/messages", messages("hi")), ("openai/v1/chat/completions", chat("hi"))]
    {
        let got = gateway.ask_by(&token, path, &body);
        assert_eq!(got.status, 502, "{}", got.body);
        let said = got.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(said.ends_with(&why), "{said}");
    }
    let ps = gateway.home.run(&["ps"]).ok();
    ps.shows("working, no model").says("stuck: model calls fail: ").says(&why);
    let row = gateway.home.run(&["ps", "-o", "json"]).ok().json()[0].clone();
    assert!(row["trouble"].as_str().unwrap().ends_with(&why), "{row}");
    let told = gateway.home.run(&["logs", "stuck"]).ok().out;
    assert_eq!(told.matches(&why).count(), 1, "once for a cause: {told}");
    assert_eq!(gateway.events_of("stuck", "model.unanswered").len(), 1);
    assert_eq!(gateway.events_of("stuck", "budget.released").len(), 2);
    gateway.home.run(&["kill", "stuck"]).ok();
    let row = until("it has ended", || {
        let row = gateway.home.run(&["ps", "-a", "-o", "json"]).ok().json()[0].clone();
        (!row["finished_at"].is_null()).then_some(row)
    });
    assert_eq!(row["trouble"], Value::Null, "what has ended tries nothing");
}

#[test]
fn a_providers_refusals_are_shown_until_it_answers_again() {
    let busy =
        Answer::status(529, "overloaded_error", "try later").header("x-should-retry", "false");
    let asked = std::sync::atomic::AtomicU32::new(0);
    let gateway = Gateway::new(Script::by(move |_| {
        match asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => busy.clone(),
            _ => Answer::say(Say::text("hello").usage(10, 2)),
        }
    }));
    let (_, token) = gateway.session("slow");
    let ask = || gateway.ask_by(&token, "anthropic/v1/messages", &messages("hi")).status;
    assert_eq!(ask(), 529);
    gateway
        .home
        .run(&["ps"])
        .ok()
        .says("slow: model calls fail: provider custom answers 529: try later");
    assert_eq!(ask(), 200);
    let ps = gateway.home.run(&["ps"]).ok();
    assert!(!ps.err.contains("fail") && !ps.out.contains("no model"), "{ps:?}");
    gateway.home.run(&["logs", "slow"]).ok().shows("its model calls are answered again");
}

#[test]
fn an_unknown_model_is_reported_with_a_hint() {
    let gateway =
        Gateway::new(Script::by(|_| Answer::status(404, "not_found_error", "model: m-0")));
    let (_, token) = gateway.session("lost");
    let got = gateway.ask_by(&token, "anthropic/v1/messages", &messages("hi"));
    assert_eq!(got.status, 404, "{}", got.body);
    let model = messages("hi")["model"].as_str().unwrap().to_owned();
    let ps = gateway.home.run(&["ps"]).ok();
    ps.says("lost: model calls fail: provider custom answers 404 to messages for model `");
    ps.says(&model).says(": model: m-0; check the model's name").says("overmind doctor");
    gateway.home.run(&["logs", "lost"]).ok().shows("answers 404").shows("base_url");
}

#[test]
fn a_program_with_a_spent_budget_requests_more() {
    let gateway = Gateway::new(Script::always(Say::text("hello").usage(10, 2)));
    let (id, token) = gateway.session("thirsty");
    gateway.home.run(&["budget", "set", "swarm", "--tokens", "1000", "--per", "total"]).ok();
    let ask = || gateway.ask_by(&token, "anthropic/v1/messages", &messages("hi")).status;
    assert_eq!((ask(), ask()), (429, 429));
    let open = || gateway.home.run(&["inbox", "--flat", "-o", "json"]).ok().json();
    let asked = open();
    assert_eq!(asked.as_array().unwrap().len(), 1, "once for a limit: {asked}");
    assert_eq!((&asked[0]["kind"], &asked[0]["run_id"]), (&json!("raise"), &json!(id)));
    let ps = gateway.home.run(&["ps"]).ok();
    ps.shows("over budget").says("thirsty: model calls fail: the budget of swarm is exhausted");
    ps.says("overmind inbox");
    gateway.home.run(&["logs", "thirsty"]).ok().shows("the budget of swarm is exhausted");
    let id = asked[0]["id"].as_str().unwrap();
    gateway.home.run(&["approve", id, "--tokens", "1000000"]).ok();
    assert_eq!(open(), json!([]));
    assert_eq!(ask(), 200);
    let ps = gateway.home.run(&["ps"]).ok();
    assert!(!ps.out.contains("over budget") && !ps.err.contains("fail"), "{ps:?}");
}

#[test]
fn a_programs_budget_request_is_denied_once_and_removed_with_its_run() {
    let gateway = Gateway::new(Script::always(Say::text("hello").usage(10, 2)));
    let (one, first) = gateway.session("one");
    let (_, second) = gateway.session("two");
    gateway.home.run(&["budget", "set", "swarm", "--tokens", "1000", "--per", "total"]).ok();
    let ask = |token: &str| gateway.ask_by(token, "anthropic/v1/messages", &messages("hi")).status;
    assert_eq!((ask(&first), ask(&second)), (429, 429));
    let open = || {
        let open = gateway.home.run(&["inbox", "--flat", "-o", "json"]).ok().json();
        open.as_array().unwrap().clone()
    };
    let of_one = || open().into_iter().find(|item| item["run_id"] == one.as_str());
    let id = of_one().unwrap()["id"].as_str().unwrap().to_owned();
    gateway.home.run(&["deny", &id]).ok();
    assert_eq!(ask(&first), 429);
    assert_eq!(of_one(), None, "who said no is not asked again");
    gateway.home.run(&["kill", "two"]).ok();
    until("the request goes with its run", || open().is_empty().then_some(()));
}

/// A repository with one file.
fn repository(home: &crate::home::Home, name: &str) -> std::path::PathBuf {
    let dir = home.work().join(name);
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("a.txt"), "one\n").unwrap();
    for args in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-qm", "first"]] {
        crate::worktrees::git_in(&dir, args);
    }
    dir
}

#[test]
fn ps_distinguishes_runs_of_several_projects_and_quiet_output_has_only_names() {
    let home = crate::home::Home::up();
    let run = |dir: &std::path::Path, name: &str| {
        let mut command = home.command(&["run", "-d", "--name", name, "sleep 1000"]);
        crate::home::done(command.current_dir(dir).output().unwrap()).ok();
    };
    let (shop, site) = (repository(&home, "shop"), repository(&home, "site"));
    run(&shop, "one");
    let ps = home.run(&["ps"]).ok();
    assert!(!ps.out.contains("PROJECT"), "{}", ps.out);
    assert!(home.run(&["ps", "-o", "wide"]).ok().out.contains(" PROJECT "));
    run(&site, "two");
    let ps = home.run(&["ps"]).ok().out;
    let line = |name: &str| ps.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(ps.contains(" PROJECT "), "{ps}");
    assert!(line("one").contains(" shop ") && line("two").contains(" site "), "{ps}");
    let quiet = home.run(&["ps", "-q"]).ok();
    let mut names: Vec<&str> = quiet.out.lines().collect();
    names.sort_unstable();
    assert_eq!((names, quiet.err.as_str()), (vec!["one", "two"], ""));
    home.run(&["kill", "one", "two"]).ok();
}

#[test]
fn claude_code_without_a_key_reports_that_it_has_no_sandbox_and_the_remedy() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut home = crate::home::Home::new();
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let claude = bin.join("claude");
    std::fs::write(&claude, "#!/bin/sh\necho '{\"type\":\"result\",\"result\":\"Done.\"}'\n")
        .unwrap();
    std::fs::set_permissions(&claude, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display());
    home.start(&["--listen", "none"], &[("PATH", &path)]);
    let shop = repository(&home, "shop");
    let mut command = home.command(&["run", "--agent", "claude", "--wait", "do it"]);
    let run = command.env("PATH", &path).current_dir(shop).output().unwrap();
    let run = crate::home::done(run).ok();
    run.says("claude runs on this machine without a sandbox")
        .says("`overmind vault set anthropic_api_key` gives it one, and a sandbox")
        .says("it asks before it runs commands");
}

#[test]
fn an_unavailable_model_is_reported_with_a_suggestion() {
    let mut home = crate::home::Home::up();
    home.set("openai_api_key", "sk-proj-4711-of-the-vault", &[]);
    // The provider is not called.
    home.run(&["halt"]).ok();
    let create = ["agent", "create", "--role", "x", "--model", "gtp-5.5", "--name", "typo"];
    let told = "model `gtp-5.5` is not among the known models of openai";
    home.run(&create).ok().says(told).says("Did you mean `gpt-5.5`");
    home.run(&["run", "-d", "typo", "do it"]).ok().says(told);
    let right = ["agent", "create", "--role", "x", "--model", "gpt-5.5", "--name", "right"];
    let right = home.run(&right).ok();
    assert!(!right.err.contains("known models"), "{}", right.err);
    home.kill();
    let mut home = crate::home::Home::new();
    let env = [("OVERMIND_MODEL_BASE_URL", nowhere())];
    home.start(&["--listen", "none"], &[(env[0].0, env[0].1.as_str())]);
    let local = home.run(&create).ok();
    assert!(!local.err.contains("known models"), "it takes any name: {}", local.err);
}
