//! What keys below admin cannot get by way of what an admin has made.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::json;

use crate::home::{Done, Home, until};

/// A home with the keys of an operator and of one who only starts runs.
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

    /// An agent that is a program, made by who has the key.
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

    /// Starts a run of this agent over HTTP, with a program of the caller's; the status of the answer.
    fn runs_of(&self, key: &str, agent: &str, command: &serde_json::Value) -> (String, String) {
        let agents = self.home.run(&["agents", "-o", "json"]).ok().json();
        let found = agents.as_array().unwrap().iter().find(|one| one["name"] == agent).unwrap();
        let body = json!({"agent_id": found["id"], "task": "x", "command": command});
        let output = std::process::Command::new("curl")
            .args(["-s", "-w", "\\n%{http_code}", "--unix-socket"])
            .arg(self.home.data().join("overmind.sock"))
            .args(["-H", &format!("Authorization: Bearer {key}")])
            .args(["-H", "Content-Type: application/json", "-d", &body.to_string()])
            .arg("http://localhost/api/runs")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.to_owned(), body.to_owned())
    }

    fn author(&self, kind: &str, name: &str) -> String {
        let got = self.home.run(&["get", kind, name, "-o", "json"]).ok().json();
        got["status"]["author"]["name"].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn a_run_that_reaches_the_host_is_answered_by_admins_alone() {
    let keys = Keys::new();
    let home = &keys.home;
    home.agent("host", &["--sandbox", "none"]);
    let asked = home.run(&["run", "host", "shell: git push origin main", "-o", "name"]).ok();
    let asked = asked.line().to_owned();
    home.wait_for(&asked, "awaiting_approval");
    for key in [&keys.op, &keys.runs] {
        let yes = home.run_env(&[("OVERMIND_TOKEN", key)], &["approve", &asked]);
        yes.fails(6).says("only an admin may say what a run without a sandbox does");
    }
    assert_eq!(home.fetch(&asked)["status"], "awaiting_approval");
    // To say no needs no such rights.
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
fn a_parent_lends_nobody_its_project_and_a_runs_directory_is_nobody_elses() {
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
    // Nor is it told, repeated, or decided about by who may not have one work there.
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
fn what_is_granted_to_an_agent_is_not_anothers_of_that_name_nor_another_programs() {
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

    // A path of the host is granted to a program, and not to whoever names it.
    keys.program(None, "writer", &granted).ok();
    let mine = json!({"argv": ["sh", "-c", "id"], "exact": true, "write": ["/srv"]});
    for key in [&keys.op, &keys.runs] {
        assert_eq!(keys.runs_of(key, "writer", &mine).0, "403");
    }
    let (status, body) = keys.runs_of(&keys.op, "mine", &own);
    assert_eq!(status, "200", "{body}");
}

#[test]
fn an_agent_is_not_called_as_somebody_who_acts() {
    let keys = Keys::new();
    for name in ["admin", "System", "postmaster", "ses_1"] {
        keys.program(None, name, &json!({})).fails(2).says("the log calls others so");
    }
    keys.program(Some(&keys.op), "ci", &json!({})).fails(5).says("the name of a key");
    keys.program(Some(&keys.op), "mine", &json!({})).ok();
    keys.op(&["agent", "edit", "mine", "--name", "ci"]).fails(5);
}

#[test]
fn who_steers_what_another_wrote_lends_them_no_rights() {
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
    // Whoever says what is started answers for it.
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
