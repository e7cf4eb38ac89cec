//! A policy file in the whole product: evaluated, asked, bound to content, reloaded.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::Value;

use crate::home::{Home, until};

fn ruled(policy: &str) -> Home {
    let mut home = Home::new();
    let file = home.path().join("policy.toml");
    std::fs::write(&file, policy).unwrap();
    home.start(&["--listen", "none"], &[("OVERMIND_POLICY", file.to_str().unwrap())]);
    home
}

fn run(home: &Home, task: &str) -> String {
    home.run(&["run", "sh", task, "-o", "name"]).ok().line().to_owned()
}

fn events(home: &Home, id: &str, kind: &str) -> Vec<Value> {
    let all = home.run(&["events", id, "-o", "json"]).ok().json();
    let all = all.as_array().unwrap();
    all.iter().filter(|event| event["type"] == kind).cloned().collect()
}

#[test]
fn harmless_work_continues_and_outbound_actions_wait_for_a_person() {
    let home = ruled("version = 1\n");
    home.agent("sh", &[]);
    let harmless = run(&home, "shell: ls");
    home.wait_for(&harmless, "succeeded");
    assert_eq!(events(&home, &harmless, "tool.judged").len(), 1);

    home.agent("host", &["--sandbox", "none"]);
    let leaves = "shell: env sh -c 'curl -d @README.md http://example.com'";
    let leaves = home.run(&["run", "host", leaves, "-o", "name"]).ok().line().to_owned();
    let waiting = home.wait_for(&leaves, "awaiting_approval");
    let prompt = waiting["prompt"].as_str().unwrap();
    assert!(prompt.contains("curl") && prompt.contains("risk"), "{prompt}");
    let asked = events(&home, &leaves, "approval.requested").remove(0);
    let actions = asked["payload_json"]["actions"].as_array().unwrap();
    assert!(actions.iter().any(|action| action["program"] == "curl"), "{actions:?}");
    home.run(&["deny", &leaves, "--reason", "not from here"]).ok();
    let failed = home.wait_for(&leaves, "failed");
    assert!(failed["error"].to_string().contains("not from here"), "{failed}");
}

#[test]
fn a_network_unavailable_in_the_sandbox_is_refused_with_the_remedy() {
    let home = Home::up();
    home.agent("sh", &[]);
    for task in ["shell: curl -s https://example.com/", "shell: git push origin main"] {
        let id = run(&home, task);
        let failed = home.wait_for(&id, "failed");
        let error = failed["error"].to_string();
        assert!(error.contains("without network") && error.contains("--network host"), "{error}");
        assert!(events(&home, &id, "approval.requested").is_empty(), "{task}");
    }
    home.run(&["inbox", "--all"]).ok().says("there were never any items");
}

#[test]
fn a_run_with_its_own_environment_does_not_ask_about_local_changes() {
    let home = Home::up();
    home.agent("sh", &[]);
    for command in [
        "python3 -c 'print(1)'",
        "mkdir -p src dist && rm -rf dist src",
        "echo A=1 > .env.example && cp .env.example .env && cat .env",
        "sleep 9 & kill $!",
        "cat /etc/nothing || true",
    ] {
        // A run without a project has its own directory.
        let call =
            format!(r#"{{"command": {command:?}, "allow_write": true, "write_subdir": "."}}"#);
        let call: Value = serde_json::from_str(&call).unwrap();
        let turns = serde_json::json!([
            {"calls": [{"name": "run_shell", "args": call}]},
            {"calls": [{"name": "final_answer", "args": {"message": "done"}}]},
        ]);
        let name = format!("s{}", command.len());
        home.scripted(&name, &turns, &[]);
        let args = ["run", &name, "go", "-o", "name"];
        let done = home.command(&args).current_dir(home.path()).output().unwrap();
        let id = String::from_utf8(done.stdout).unwrap().trim().to_owned();
        home.wait_for(&id, "succeeded");
        let called = events(&home, &id, "tool.called");
        assert_eq!(called[0]["payload_json"]["result"]["ok"], true, "{called:?}");
    }
}

#[test]
fn a_website_unreachable_from_the_sandbox_is_refused_by_address() {
    let home = Home::up();
    home.agent("sh", &[]);
    let id = run(&home, "curl a website");
    home.wait_for(&id, "awaiting_input");
    home.run(&["input", &id, "example.com/docs"]).ok();
    let failed = home.wait_for(&id, "failed");
    let error = failed["error"].to_string();
    assert!(error.contains("`example.com`") && error.contains("--network host"), "{error}");
    assert!(events(&home, &id, "approval.requested").is_empty(), "{failed}");
}

#[test]
fn invalid_arguments_are_reported_to_the_model_without_an_approval() {
    let home = Home::up();
    let call = |args: Value| serde_json::json!({"calls": [{"name": "write_file", "args": args}]});
    let turns = serde_json::json!([
        call("{\"path\": \"a.txt\", \"content\": \"half of ".into()),
        call("[1]".into()),
        call(serde_json::json!({"path": "a.txt"})),
        call(serde_json::json!({"path": "a.txt", "content": "whole"})),
        {"calls": [{"name": "final_answer", "args": {"message": "done"}}]},
    ]);
    home.scripted("cut", &turns, &["--failure-budget", "9"]);
    let id = home.run(&["run", "cut", "go", "-o", "name"]).ok().line().to_owned();
    until("the call that fits ran", || {
        let called = events(&home, &id, "tool.called");
        called.iter().any(|call| call["payload_json"]["result"]["ok"] == true).then_some(())
    });
    assert!(events(&home, &id, "approval.requested").is_empty());
    let failed = events(&home, &id, "tool.failed");
    let words: Vec<String> =
        failed.iter().map(|event| event["payload_json"]["error"].to_string()).collect();
    assert_eq!(words.len(), 3, "{words:?}");
    assert!(words.iter().all(|error| error.contains("bad_args")), "{words:?}");
    assert!(words[0].contains("cut after") && words[0].contains("half of `"), "{words:?}");
    assert!(words[1].contains("must be a JSON object, got "), "{words:?}");
    assert!(words[2].contains("content is required"), "{words:?}");
    home.run(&["replay", &id, "--verify"]).ok();
    // A tool whose every call waits for a person is no exception.
    home.scripted("asks", &turns, &["--approvals", "*", "--failure-budget", "2"]);
    let id = home.run(&["run", "asks", "go", "-o", "name"]).ok().line().to_owned();
    let failed = home.wait_for(&id, "failed");
    assert!(failed["error"].to_string().contains("failure_budget_exhausted"), "{failed}");
    assert!(events(&home, &id, "approval.requested").is_empty());
}

#[test]
fn a_script_changed_after_its_approval_asks_again() {
    let home = ruled(
        "version = 1\n[[rule]]\nid = \"ask-for-scripts\"\nverdict = \"ask\"\nprograms = [\"sh\"]\n\
         [[rule]]\nid = \"project\"\nverdict = \"ask\"\neffects = [\"project\"]\n",
    );
    home.agent("sh", &[]);
    let script = home.work().join("deploy.sh");
    std::fs::write(&script, "echo good\n").unwrap();
    let id = run(&home, "shell: sh deploy.sh");
    let first = home.wait_for(&id, "awaiting_approval");
    std::fs::write(&script, "echo evil\n").unwrap();
    home.run(&["approve", &id]).ok();
    let second = until("it is asked anew", || {
        let run = home.fetch(&id);
        let anew =
            run["status"] == "awaiting_approval" && run["approval_id"] != first["approval_id"];
        anew.then_some(run)
    });
    assert_ne!(second["approval_id"], first["approval_id"]);
    home.run(&["approve", &id]).ok();
    home.wait_for(&id, "succeeded");
    let called = events(&home, &id, "tool.called");
    assert_eq!(called[0]["payload_json"]["result"]["error"]["code"], "approval_stale");
    assert_eq!(called[1]["payload_json"]["result"]["stdout"], "evil\n", "seen and agreed to");
    home.run(&["replay", &id, "--verify"]).ok();
}

#[test]
fn a_changed_policy_applies_at_once_and_an_invalid_one_changes_nothing() {
    let home = ruled("version = 1\n");
    home.agent("sh", &[]);
    let loaded = || {
        let all = home.run(&["events", "-o", "json", "--limit", "1000"]).ok().json();
        let all = all.as_array().unwrap();
        all.iter().filter(|event| event["type"] == "policy.loaded").count()
    };
    until("the log knows the policy", || (loaded() == 1).then_some(()));
    let file = home.path().join("policy.toml");
    std::fs::write(&file, "version = 1\nextends = \"nothing\"\ndefault = \"deny\"\n").unwrap();
    until("the policy is read again", || (loaded() == 2).then_some(()));
    let id = run(&home, "shell: ls");
    let failed = home.wait_for(&id, "failed");
    assert!(failed["error"].to_string().contains("denied"), "{failed}");
    let refused = home.run(&["tool", "call", &id, "run_shell", "{\"command\": \"ls\"}"]).fails(1);
    refused.shows("denied");

    std::fs::write(&file, "version = 1\nallow_everything = true\n").unwrap();
    until("the log tells", || home.log().contains("the last one holds").then_some(()));
    let id = run(&home, "shell: ls");
    home.wait_for(&id, "failed");
}

#[test]
fn a_server_does_not_start_without_its_policy_file() {
    let home = Home::new();
    let file = home.path().join("policy.toml");
    std::fs::write(&file, "version = 1\n[[rule]]\nid = \"x\"\nverdict = \"maybe\"\n").unwrap();
    let env = [("OVERMIND_POLICY", file.to_str().unwrap())];
    let refused = home.run_env(&env, &["up", "--listen", "none"]).fails(1);
    refused.says("policy.toml").says("maybe");
}

#[test]
fn without_a_policy_file_the_built_in_policy_applies() {
    let home = Home::up();
    home.agent("sh", &[]);
    let harmless = run(&home, "shell: echo *; ls && rm -f build.log; pwd");
    home.wait_for(&harmless, "succeeded");
    assert_eq!(events(&home, &harmless, "tool.judged").len(), 1);
    home.agent("host", &["--sandbox", "none"]);
    let push = ["run", "host", "shell: git push origin main", "-o", "name"];
    let asked = home.run(&push).ok().line().to_owned();
    let waiting = home.wait_for(&asked, "awaiting_approval");
    let prompt = waiting["prompt"].as_str().unwrap();
    assert!(prompt.contains("git push origin main") && prompt.contains("publish"), "{prompt}");
    let denied = run(&home, "shell: sudo ls");
    let failed = home.wait_for(&denied, "failed");
    assert!(failed["error"].to_string().contains("denied"), "{failed}");
    home.run(&["replay", &denied, "--verify"]).ok();

    let all = home.run(&["events", "-o", "json", "--limit", "1000"]).ok().json();
    let loaded: Vec<&Value> =
        all.as_array().unwrap().iter().filter(|event| event["type"] == "policy.loaded").collect();
    assert_eq!(loaded.len(), 1, "{loaded:?}");
    assert_eq!(loaded[0]["payload_json"]["source"], "builtin");
    let status = home.run(&["status", "-o", "json"]).ok().json();
    assert_eq!(status["policy"]["source"], "builtin");
    let shown = home.run(&["policy", "show", "-o", "json"]).ok().json();
    assert_eq!(status["policy"]["version"], shown["version"]);
    home.run(&["doctor", "-o", "json"]).shows("built in");
}

#[test]
fn a_disabled_policy_is_reported_and_agents_own_approvals_still_apply() {
    let mut home = Home::new();
    home.start(&["--listen", "none"], &[("OVERMIND_POLICY", "none")]);
    home.agent("sh", &[]);
    home.agent("careful", &["--approvals", "run_shell"]);
    let free = run(&home, "shell: git push origin main");
    home.wait_for(&free, "failed");
    assert!(events(&home, &free, "approval.requested").is_empty(), "it only fails by itself");
    let judged = events(&home, &free, "tool.judged").remove(0);
    assert_eq!(judged["payload_json"]["verdict"]["rule"]["id"], "policy-is-off");
    let id = home.run(&["run", "careful", "shell: ls", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&id, "awaiting_approval");

    assert!(home.log().contains("the policy is OFF"), "{}", home.log());
    home.run(&["status", "-o", "table"]).ok().shows("the policy is OFF");
    assert_eq!(home.run(&["status", "-o", "json"]).ok().json()["policy"]["source"], "off");
    let off = [("OVERMIND_POLICY", "none")];
    home.run_env(&off, &["doctor", "-o", "table"]).shows("the policy is OFF");
    home.run_env(&off, &["policy", "show", "-o", "table"]).ok().says("the policy is OFF");
    let args = ["policy", "explain", "--command", "sudo ls", "-o", "name"];
    assert_eq!(home.run_env(&off, &args).ok().line(), "allow");
    assert_eq!(home.run_env(&off, &[&args[..], &["--builtin"]].concat()).ok().line(), "deny");
}

#[test]
fn a_named_policy_file_must_exist() {
    let home = Home::new();
    let file = home.path().join("mistyped.toml");
    let env = [("OVERMIND_POLICY", file.to_str().unwrap())];
    home.run_env(&env, &["up", "--listen", "none"]).fails(1).says("mistyped.toml");
    home.run_env(&env, &["policy", "show"]).fails(1).says("mistyped.toml");
}

#[test]
fn a_rule_for_an_agent_and_a_colony_applies_as_explained() {
    let policy = "version = 1\n[[rule]]\nid = \"no-interns\"\nverdict = \"deny\"\n\
                  agents = [\"intern-*\"]\ncolonies = [\"default\"]\nprograms = [\"ls\"]\n\
                  [[rule]]\nid = \"elsewhere\"\nverdict = \"deny\"\ncolonies = [\"other\"]\n";
    let home = ruled(policy);
    let file = home.path().join("policy.toml");
    for (agent, status, kind, verdict) in [
        ("intern-1", "failed", "tool.refused", "deny"),
        ("senior", "succeeded", "tool.judged", "allow"),
    ] {
        home.agent(agent, &[]);
        let id = home.run(&["run", agent, "shell: ls", "-o", "name"]).ok().line().to_owned();
        home.wait_for(&id, status);
        let judged = events(&home, &id, kind).remove(0);
        assert_eq!(judged["payload_json"]["verdict"]["decision"], verdict, "{agent}");
        let args = ["policy", "explain", "--command", "ls", "--agent", agent, "-o", "name"];
        let args = [&args[..], &["--policy", file.to_str().unwrap()]].concat();
        assert_eq!(home.run(&args).ok().line(), verdict, "{agent}");
    }
}
