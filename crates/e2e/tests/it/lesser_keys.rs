//! Rights that keys below admin cannot get through objects that an admin created.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::process::Command;

use serde_json::json;

use crate::home::{Done, Home, until};

/// A home with the keys of an operator and of a key with the scope `runs`.
struct Keys {
    home: Home,
    op: String,
    runs: String,
}

impl Keys {
    fn new() -> Self {
        let home = Home::up();
        let key = |name: &str, how: [&str; 2]| {
            let made = home.run(&["key", "create", name, how[0], how[1], "-o", "name"]).ok();
            made.line().to_owned()
        };
        let (op, runs) = (key("op", ["--role", "operator"]), key("ci", ["--scope", "runs"]));
        Self { home, op, runs }
    }

    fn op(&self, args: &[&str]) -> Done {
        self.home.run_env(&[("OVERMIND_TOKEN", &self.op)], args)
    }

    /// An agent that is a program, created by the owner of the key.
    fn program(&self, key: Option<&str>, name: &str, more: &serde_json::Value) -> Done {
        let mut agent = json!({
            "name": name, "role": "runs", "model": "command", "sandbox": "namespace",
            "command": {"argv": ["sh", "-c", "true"], "exact": true},
        });
        for (field, value) in more.as_object().unwrap() {
            agent[field] = value.clone();
        }
        let file = self.home.path().join(format!("{name}.json"));
        std::fs::write(&file, agent.to_string()).unwrap();
        let args = ["agent", "create", "--file", file.to_str().unwrap()];
        match key {
            None => self.home.run(&args),
            Some(key) => self.home.run_env(&[("OVERMIND_TOKEN", key)], &args),
        }
    }

    fn apply(&self, key: Option<&str>, document: &serde_json::Value) -> Done {
        let file = self.home.work().join("document.json");
        std::fs::write(file, document.to_string()).unwrap();
        let args = ["apply", "-f", "document.json"];
        match key {
            None => self.home.run(&args),
            Some(key) => self.home.run_env(&[("OVERMIND_TOKEN", key)], &args),
        }
    }

    /// A request with a key, or as the admin: the status of the answer, and its body.
    fn http(
        &self,
        key: Option<&str>,
        method: &str,
        path: &str,
        body: &serde_json::Value,
    ) -> (String, String) {
        let admin = std::fs::read_to_string(self.home.data().join("admin.token")).unwrap();
        let key = key.unwrap_or(admin.trim());
        let output = Command::new("curl")
            .args(["-s", "-w", "\\n%{http_code}", "--unix-socket"])
            .arg(self.home.data().join("overmind.sock"))
            .args(["-X", method, "-H", &format!("Authorization: Bearer {key}")])
            .args(["-H", "Content-Type: application/json", "-d", &body.to_string()])
            .arg(format!("http://localhost{path}"))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.to_owned(), body.to_owned())
    }

    fn id_of(&self, agent: &str) -> serde_json::Value {
        let agents = self.home.run(&["agents", "-o", "json"]).ok().json();
        let found = agents.as_array().unwrap().iter().find(|one| one["name"] == agent).unwrap();
        found["id"].clone()
    }

    /// Starts a run of this agent over HTTP, with a program of the caller's; the status of the answer.
    fn runs_of(&self, key: &str, agent: &str, command: &serde_json::Value) -> (String, String) {
        let body = json!({"agent_id": self.id_of(agent), "task": "x", "command": command});
        self.http(Some(key), "POST", "/api/runs", &body)
    }

    /// A repository in a project that an admin has declared for all.
    fn declared(&self, name: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap().to_str().unwrap().to_owned();
        std::fs::write(dir.path().join("a.txt"), "as it was\n").unwrap();
        for words in
            [&["init", "-q", "-b", "main"][..], &["add", "."], &["commit", "-q", "-m", "x"]]
        {
            let git = Command::new("git")
                .args(["-c", "user.name=t", "-c", "user.email=t@localhost"])
                .args(words)
                .current_dir(&at)
                .status();
            assert!(git.unwrap().success());
        }
        let project = json!({
            "apiVersion": "overmind/v1", "kind": "Project", "metadata": {"name": name},
            "spec": {"path": at},
        });
        self.apply(None, &project).ok();
        (dir, at)
    }

    fn author(&self, kind: &str, name: &str) -> String {
        let got = self.home.run(&["get", kind, name, "-o", "json"]).ok().json();
        got["status"]["author"]["name"].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn only_admins_answer_a_run_that_reaches_the_host() {
    let keys = Keys::new();
    let home = &keys.home;
    home.agent("host", &["--sandbox", "none"]);
    let asked = home.run(&["run", "host", "shell: git push origin main", "-o", "name"]).ok();
    let asked = asked.line().to_owned();
    home.wait_for(&asked, "awaiting_approval");
    for key in [&keys.op, &keys.runs] {
        let yes = home.run_env(&[("OVERMIND_TOKEN", key)], &["approve", &asked]);
        yes.fails(6).says("only an admin may say what a run does that has no sandbox");
    }
    assert_eq!(home.fetch(&asked)["status"], "awaiting_approval");
    // A denial needs no such rights.
    keys.op(&["deny", &asked]).ok();
    home.scripted(
        "curious",
        &json!([{"calls": [{"name": "ask_user", "args": {"message": "which?"}}]}]),
        &["--sandbox", "none"],
    );
    let asks = home.run(&["run", "curious", "go", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&asks, "awaiting_input");
    keys.op(&["answer", &asks, "rm -rf /"]).fails(6);
    home.run(&["answer", &asks, "this one"]).ok();
}

#[test]
fn a_parent_gives_no_access_to_its_project_or_to_the_directory_of_a_run() {
    let keys = Keys::new();
    let home = &keys.home;
    keys.program(None, "worker", &json!({"command": {"argv": ["sleep", "600"], "exact": true}}))
        .ok();
    let other = tempfile::tempdir().unwrap();
    let other = other.path().canonicalize().unwrap();
    std::fs::write(other.join("secret.txt"), "an admin's").unwrap();
    let other = other.to_str().unwrap();
    let run =
        ["run", "-d", "worker", "--name", "theirs", "--project", other, "--room", "-o", "name"];
    let theirs = home.run(&run).ok().line().to_owned();
    home.wait_for(&theirs, "running");
    for key in [&keys.op, &keys.runs] {
        let child = ["run", "-d", "worker", "--parent", "theirs"];
        let refused = home.run_env(&[("OVERMIND_TOKEN", key)], &child);
        refused.fails(6).says("only an admin may use a workspace outside");
    }
    // A caller without rights in its project cannot message, fork, or decide about it either.
    for words in [
        &["send", "theirs", "go on"][..],
        &["fork", "theirs", "--at", "0"],
        &["undo", "theirs"],
        &["done", "theirs", "--discard", "--yes"],
    ] {
        keys.op(words).fails(6).says("only an admin may use a workspace outside");
    }
    home.run(&["run", "-d", "worker", "--parent", "theirs", "--name", "child"]).ok();
    // The directory that a run got for itself.
    home.agent("sh", &["--on-unknown", "retry"]);
    let id = home.run(&["run", "sh", "shell: pwd", "--once", "--wait", "-o", "name"]).ok();
    let own = home.fetch(id.line())["workspace"].as_str().unwrap().to_owned();
    if own.contains("ses_") {
        keys.op(&["run", "sh", "shell: pwd", "--once", "--wait", "--project", &own]).fails(6);
    }
    home.run(&["kill", "child"]).ok();
    home.run(&["kill", "theirs"]).ok();
}

#[test]
fn a_grant_to_an_agent_does_not_apply_to_a_namesake_or_another_program() {
    let keys = Keys::new();
    let home = &keys.home;
    let granted = json!({"command": {
        "argv": ["sh", "-c", "true"], "exact": true, "write": ["/srv"],
    }});
    keys.program(None, "deployer", &json!({})).ok();
    home.run(&["vault", "grant", "deploy*", "--secret", "deploy_key"]).ok();
    home.run(&["vault", "grant", "*", "--secret", "common_key"]).ok();
    let refused = "only an admin may say what the agent";
    keys.op(&["agent", "edit", "deployer", "--role", "is mine"]).fails(6).says(refused);
    let own = json!({"argv": ["sh", "-c", "id"], "exact": true});
    for key in [&keys.op, &keys.runs] {
        let (status, body) = keys.runs_of(key, "deployer", &own);
        assert!(status == "403" && body.contains(refused), "{status} {body}");
    }
    keys.op(&["agent", "rm", "deployer"]).ok();
    keys.program(Some(&keys.op), "deployer", &json!({})).fails(6).says(refused);
    keys.program(Some(&keys.op), "deploy-2", &json!({})).fails(6);
    keys.program(Some(&keys.op), "mine", &json!({})).ok();

    // A path of the host is granted to a program, not to every caller who names it.
    keys.program(None, "writer", &granted).ok();
    let mine = json!({"argv": ["sh", "-c", "id"], "exact": true, "write": ["/srv"]});
    for key in [&keys.op, &keys.runs] {
        assert_eq!(keys.runs_of(key, "writer", &mine).0, "403");
    }
    let (status, body) = keys.runs_of(&keys.op, "mine", &own);
    assert_eq!(status, "200", "{body}");
}

#[test]
fn an_agent_cannot_have_the_name_of_a_caller() {
    let keys = Keys::new();
    for name in ["admin", "System", "postmaster", "ses_1"] {
        keys.program(None, name, &json!({})).fails(2).says("the log calls others so");
    }
    keys.program(Some(&keys.op), "ci", &json!({})).fails(5).says("the name of a key");
    keys.program(Some(&keys.op), "mine", &json!({})).ok();
    keys.op(&["agent", "edit", "mine", "--name", "ci"]).fails(5);
}

#[test]
fn changing_another_authors_quest_gives_it_no_rights() {
    let keys = Keys::new();
    let home = &keys.home;
    keys.program(None, "bare", &json!({"sandbox": "none"})).ok();
    let op = keys.op.clone();
    let ritual = json!({
        "apiVersion": "overmind/v1", "kind": "Ritual", "metadata": {"name": "sly"},
        "spec": {"schedule": "0 0 29 2 *", "template": {"agent": "bare"}},
    });
    keys.apply(Some(&op), &ritual).ok();
    home.run(&["cron", "pause", "sly"]).ok();
    home.run(&["cron", "resume", "sly"]).ok();
    assert_eq!(keys.author("ritual", "sly"), "op");
    let quest = home.run(&["cron", "run", "sly", "-o", "name"]).ok().line().to_owned();
    let quest = quest.rsplit('/').next().unwrap().to_owned();
    assert_eq!(keys.author("quest", &quest), "op");
    until("it is refused", || {
        let got = home.run(&["get", "quest", &quest, "-o", "json"]).ok().json();
        got["status"]["conditions"].to_string().contains("Forbidden").then_some(())
    });
    let fleet = json!({
        "apiVersion": "overmind/v1", "kind": "Fleet", "metadata": {"name": "web"},
        "spec": {"replicas": 0, "template": {"agent": "bare"}},
    });
    keys.apply(Some(&op), &fleet).ok();
    home.run(&["scale", "fleet/web", "--replicas", "1"]).ok();
    assert_eq!(keys.author("fleet", "web"), "op");
    // The author of a run's definition is responsible for it.
    let mut mine = ritual;
    mine["spec"]["template"]["task"] = json!("mine now");
    keys.apply(None, &mine).ok();
    assert_eq!(keys.author("ritual", "sly"), "admin");
    keys.apply(Some(&op), &mine).ok();
    assert_eq!(keys.author("ritual", "sly"), "admin");
    mine["spec"]["suspend"] = json!(true);
    keys.apply(Some(&op), &mine).ok();
    assert_eq!(keys.author("ritual", "sly"), "op");
}

#[test]
fn only_admins_message_a_run_in_a_checkout_also_in_a_declared_project() {
    let keys = Keys::new();
    let home = &keys.home;
    let (_dir, at) = keys.declared("shop");
    keys.program(None, "shell", &json!({"command": {"argv": ["sh"], "kind": "session"}})).ok();
    let here = ["run", "-d", "shell", "--here", "--project", &at, "--name", "here", "-o", "name"];
    let run = home.run(&here).ok().line().to_owned();
    home.wait_for(&run, "running");
    for key in [&keys.op, &keys.runs] {
        for words in [&["send", "here", "echo evil >> a.txt"][..], &["fork", "here", "--at", "0"]] {
            home.run_env(&[("OVERMIND_TOKEN", key)], words).fails(6).says("only an admin may");
        }
    }
    until("its program runs", || (!home.fetch(&run)["process"]["pid"].is_null()).then_some(()));
    home.run(&["send", "here", "echo mine >> a.txt"]).ok();
    let text = until("the admin is heard", || {
        let text = std::fs::read_to_string(format!("{at}/a.txt")).unwrap();
        text.contains("mine").then_some(text)
    });
    assert_eq!(text, "as it was\nmine\n");
    home.run(&["kill", "here"]).ok();
}

#[test]
fn only_admins_and_unsandboxed_runs_message_a_program_on_the_host() {
    let keys = Keys::new();
    let home = &keys.home;
    keys.program(
        None,
        "host",
        &json!({"sandbox": "none", "command": {"argv": ["sh"], "kind": "session"}}),
    )
    .ok();
    let all = json!({"can_message": ["*"], "can_subscribe": ["**"], "can_publish": ["**"]});
    let (status, body) = keys.http(None, "PUT", "/mesh/permissions/default", &all);
    assert_eq!(status, "200", "{body}");
    let run = home.run(&["run", "-d", "host", "--name", "target", "-o", "name"]).ok();
    let run = run.line().to_owned();
    home.wait_for(&run, "running");
    let written = |name: &str| home.path().join(name).exists();
    let payload =
        |name: &str| json!({"x": format!("$(id > {})", home.path().join(name).display())});
    // A message that an operator publishes to a topic, and one from a run in a sandbox.
    let join = json!({"agent_id": "host", "topic": "news.x"});
    keys.http(None, "POST", "/mesh/subscribe", &join);
    let news = json!({"topic": "news.x", "payload": payload("by-topic")});
    let (status, body) = keys.http(Some(&keys.op), "POST", "/mesh/publish", &news);
    assert_eq!(status, "200", "{body}");
    let letter = json!({"to": "host", "type": "t", "payload": payload("by-run")}).to_string();
    let script = "curl -s -XPOST \"$OVERMIND_SERVER/mesh/message\" \
                  -H \"Authorization: Bearer $OVERMIND_TOKEN\" -H 'content-type: application/json' \
                  -d \"$0\"";
    keys.program(
        Some(&keys.op),
        "inside",
        &json!({"command": {"argv": ["sh", "-c", script, letter], "exact": true}}),
    )
    .ok();
    let sent = keys.op(&["run", "inside", "--wait", "-o", "name"]).ok().line().to_owned();
    home.run(&["logs", &sent]).ok().shows("\"received\":true");
    // One of the admin's, sent after them, is typed in. Each agent gets its messages in order.
    let mine = json!({"to": "host", "type": "t", "payload": payload("by-admin")});
    let (status, body) = keys.http(None, "POST", "/mesh/message", &mine);
    assert_eq!(status, "200", "{body}");
    until("the admin's is typed in", || written("by-admin").then_some(()));
    assert!(!written("by-topic") && !written("by-run"));
    // Nor if their senders were removed, or others have their names by then.
    home.run(&["key", "revoke", "op"]).ok();
    home.run(&["agent", "rm", "inside"]).ok();
    keys.program(None, "inside", &json!({"sandbox": "none"})).ok();
    let later = json!({"to": "host", "type": "t", "payload": payload("by-admin-later")});
    let (status, body) = keys.http(None, "POST", "/mesh/message", &later);
    assert_eq!(status, "200", "{body}");
    until("the later one is typed in", || written("by-admin-later").then_some(()));
    assert!(!written("by-topic") && !written("by-run"));
    home.run(&["kill", "target"]).ok();
}

#[test]
fn a_program_with_secrets_does_not_run_on_files_of_a_lesser_key() {
    let keys = Keys::new();
    let home = &keys.home;
    let make = json!({"command": {
        "argv": ["sh", "-c", "./build"], "exact": true, "write": [home.path()],
    }});
    keys.program(None, "maker", &make).ok();
    keys.program(
        Some(&keys.op),
        "mine",
        &json!({"command": {"argv": ["sh", "-c", "echo id > build; chmod +x build"], "exact": true}}),
    )
    .ok();
    let run = keys.op(&["run", "mine", "--wait", "-o", "name"]).ok().line().to_owned();
    let own = home.fetch(&run)["workspace"].as_str().unwrap().to_owned();
    let body = json!({"agent_id": keys.id_of("maker"), "task": "x", "workspace": own});
    let (status, said) = keys.http(Some(&keys.op), "POST", "/api/runs", &body);
    assert!(status == "403" && said.contains("not on files of their own"), "{status} {said}");
    // In a declared project the files are the project's.
    let (_dir, at) = keys.declared("shop");
    let body = json!({"agent_id": keys.id_of("maker"), "task": "x", "workspace": at});
    let (status, said) = keys.http(Some(&keys.op), "POST", "/api/runs", &body);
    assert_eq!(status, "200", "{said}");
}

#[test]
fn an_operators_agent_gets_no_host_access_when_an_admin_runs_it() {
    let keys = Keys::new();
    let home = &keys.home;
    let (_dir, at) = keys.declared("shop");
    let evil = json!({"command": {"argv": ["sh", "-c", "echo evil >> a.txt"], "exact": true}});
    keys.program(Some(&keys.op), "helper", &evil).ok();
    let here = ["run", "helper", "--here", "--project", &at, "--wait"];
    home.run(&here).fails(6).says("was last written by `op` (operator)");
    assert_eq!(std::fs::read_to_string(format!("{at}/a.txt")).unwrap(), "as it was\n");
    // It may run in its own worktree and sandbox.
    home.run(&["run", "helper", "--project", &at, "--wait"]).ok();
    // An admin who writes it again answers for it.
    home.run(&["agent", "edit", "helper", "--role", "read by me"]).ok();
    home.run(&here).ok();
    assert_eq!(std::fs::read_to_string(format!("{at}/a.txt")).unwrap(), "as it was\nevil\n");
}

#[test]
fn rolling_a_fleet_back_to_another_authors_template_gives_no_rights() {
    let keys = Keys::new();
    let home = &keys.home;
    keys.program(None, "box", &json!({"command": {"argv": ["sleep", "600"], "exact": true}})).ok();
    let fleet = |task: &str| {
        json!({
            "apiVersion": "overmind/v1", "kind": "Fleet", "metadata": {"name": "web"},
            "spec": {"replicas": 1, "template": {"agent": "box", "task": task}},
        })
    };
    keys.apply(Some(&keys.op), &fleet("the operator's")).ok();
    home.run(&["rollout", "status", "web", "--timeout", "1m"]).ok();
    keys.apply(None, &fleet("the admin's")).ok();
    assert_eq!(keys.author("fleet", "web"), "admin");
    home.run(&["rollout", "status", "web", "--timeout", "1m"]).ok();
    home.run(&["rollout", "undo", "web", "--to-revision", "1"]).ok();
    assert_eq!(keys.author("fleet", "web"), "op");
    home.run(&["delete", "fleet", "web"]).ok();
}
