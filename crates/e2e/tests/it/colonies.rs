//! Colonies with the real program: what a team's key sees, quotas under starts at the same time, and
//! owned runs, over kills of the server.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::{Done, Home, until};

/// Two teams on one server, and a key for the first.
struct Teams {
    home: Commands,
    key: String,
}

impl Teams {
    fn new() -> Self {
        let home = Commands::up();
        home.run(&["create", "colony", "team-a"]).ok().shows("colony/team-a created");
        home.run(&["create", "namespace", "team-b"]).ok();
        let create = ["key", "create", "bob", "--role", "operator", "--colony", "team-a"];
        let made = home.run(&[&create[..], &["-o", "name"]].concat()).ok();
        let key = made.line().to_owned();
        Self { home, key }
    }

    /// As Bob, whose key is bound to `team-a`.
    fn bob(&self, args: &[&str]) -> Done {
        self.home.0.run_env(&[("OVERMIND_TOKEN", &self.key)], args)
    }

    /// As the admin, in a colony.
    fn within(&self, colony: &str, args: &[&str]) -> Done {
        self.home.run(&[&["-n", colony], args].concat())
    }

    /// Starts a program that stays, in a colony, as the admin.
    fn stays(&self, colony: &str, name: &str) -> String {
        let run =
            ["run", "--name", name, "-o", "name", "--", "sh", "-c", "echo up; exec sleep 600"];
        self.within(colony, &run).ok().line().to_owned()
    }
}

fn agent(done: impl Fn(&[&str]) -> Done, name: &str) {
    let make = ["agent", "create", "--name", name, "--model", "deterministic"];
    done(&[&make[..], &["--tools", "run_shell"]].concat()).ok();
}

fn names(done: &Done) -> Vec<String> {
    let all = done.json();
    let name = |run: &Value| run["name"].as_str().unwrap().to_owned();
    all.as_array().unwrap().iter().map(name).collect()
}

/// What docs/colonies.md shows.
#[test]
fn two_teams_work_on_one_server_and_see_nothing_of_each_other() {
    let teams = Teams::new();
    teams.home.run(&["get", "colonies"]).ok().shows("RUNS").shows("team-a").shows("default");
    agent(|args| teams.bob(args), "build");
    teams.bob(&["run", "build", "--name", "nightly", "shell:echo hello", "--wait"]).ok();
    agent(|args| teams.within("team-b", args), "build");
    let other = ["run", "build", "--name", "nightly", "-o", "name", "shell:echo of-b", "--wait"];
    let other = teams.within("team-b", &other).ok().line().to_owned();
    let secret = teams.stays("team-b", "secret");
    teams.stays("team-b", "other");

    // Lists, names, logs, events and the inbox.
    for args in [&["ps", "--all", "-o", "json"][..], &["ps", "--all", "-A", "-o", "json"]] {
        assert_eq!(names(&teams.bob(args).ok()), ["nightly"], "{args:?}");
    }
    let log = teams.bob(&["logs", "nightly"]).ok();
    assert!(log.out.contains("hello") && !log.out.contains("of-b"), "{}", log.out);
    for name in ["secret", &secret, &other] {
        for verb in ["logs", "info", "stop", "result", "events"] {
            teams.bob(&[verb, name]).fails(3);
        }
    }
    let error = teams.bob(&["-n", "team-b", "ps"]).fails(3);
    error.says("there is no colony `team-b` here: this token belongs to the colony `team-a`");
    let error = teams.bob(&["get", "ns", "team-b"]);
    assert_eq!(error.code, 3, "{}", error.err);
    let colonies = teams.bob(&["get", "colonies", "-o", "name"]).ok();
    assert_eq!(colonies.out.trim(), "colony/team-a");
    assert_eq!(teams.bob(&["get", "agents", "-o", "name"]).ok().out.trim(), "agent/build");
    assert_eq!(teams.bob(&["inbox", "-o", "json"]).ok().json(), json!([]));
    teams.bob(&["costs"]).fails(6).says("bound to the colony `team-a`");
    teams.bob(&["create", "colony", "more"]).fails(6);

    // The admin names the colony, by each way to say it.
    let listed = |done: Done| names(&done.ok());
    let ps = ["ps", "-o", "json"];
    assert_eq!(listed(teams.home.run(&ps)), [] as [&str; 0]);
    assert_eq!(listed(teams.within("team-b", &ps)), ["other", "secret"]);
    let last = ["ps", "--namespace", "team-b", "-o", "json"];
    assert_eq!(listed(teams.home.run(&last)), ["other", "secret"]);
    let by_variable = teams.home.0.run_env(&[("OVERMIND_COLONY", "team-b")], &ps);
    assert_eq!(listed(by_variable), ["other", "secret"]);
    let all = teams.home.run(&["ps", "--all", "-A"]).ok();
    all.shows("COLONY").shows("team-a").shows("team-b").shows("nightly");
    teams.home.run(&["get", "sessions", "-A"]).ok().shows("COLONY").shows("team-b");
    teams.home.run(&["-n", "team-x", "ps"]).fails(3).says("overmind create colony team-x");
    teams.home.run(&["logs", "secret"]).fails(3);
    teams.within("team-b", &["logs", "secret"]).ok().shows("up");
    teams.within("team-b", &["kill", "secret", "other"]).ok();
    teams.home.check();
}

#[test]
fn a_kill_of_the_server_keeps_the_wall_and_what_is_behind_it() {
    let mut teams = Teams::new();
    let run = teams.stays("team-b", "stays");
    teams.home.0.run(&["-n", "team-a", "ps"]).ok();
    teams.home.0.kill();
    teams.home.0.start(&["--listen", "none"], &[]);
    teams.bob(&["info", &run]).fails(3);
    teams.bob(&["-n", "team-b", "ps"]).fails(3);
    assert_eq!(names(&teams.bob(&["ps", "-A", "-o", "json"]).ok()), [] as [&str; 0]);
    assert_eq!(names(&teams.within("team-b", &["ps", "-o", "json"]).ok()), ["stays"]);
    teams.within("team-b", &["logs", "stays"]).ok().shows("up");

    // It cannot go while something is in it.
    let error = teams.home.run(&["delete", "colony", "team-b"]).fails(5);
    error.says("the colony `team-b` is not empty: there is a run in it");
    teams.within("team-b", &["kill", "stays"]).ok();
    until("it has ended", || {
        let left = names(&teams.within("team-b", &["ps", "-o", "json"]).ok());
        left.is_empty().then_some(())
    });
    teams.within("team-b", &["rm", "stays", "--yes"]).ok();
    teams.home.run(&["delete", "colony", "team-b"]).fails(5).says("there is an agent in it");
    teams.within("team-b", &["agent", "rm", "command"]).ok();
    teams.home.run(&["delete", "colony", "team-b"]).ok();
    teams.within("team-b", &["ps"]).fails(3);
    teams.home.check();
}

#[test]
fn eight_starts_at_once_stay_within_the_quota() {
    let teams = Teams::new();
    teams.home.run(&["create", "colony", "small", "--runs", "3"]).ok();
    teams.home.run(&["create", "colony", "small"]).fails(5).says("there is a colony/small already");
    // The agent of commands exists before.
    teams.within("small", &["run", "--wait", "--", "true"]).ok();
    let start = |n: usize| {
        let name = format!("s{n}");
        let run = ["-n", "small", "run", "--name", &name, "-o", "name", "--", "sleep", "600"];
        teams.home.0.command(&run).output().unwrap().status.code()
    };
    let codes: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|n| scope.spawn(move || start(n))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let started = codes.iter().filter(|code| **code == Some(0)).count();
    let refused = codes.iter().filter(|code| **code == Some(5)).count();
    assert_eq!((started, refused), (3, 5), "{codes:?}");
    teams.home.run(&["get", "colony", "small"]).ok().shows("3/3");
    let more = teams.within("small", &["run", "--", "true"]).fails(5);
    more.says("the colony `small` has 3 runs that have not ended, and its quota is 3");
    teams.within("small", &["kill", "--all"]).ok();
    teams.home.check();
}

#[test]
fn runs_beyond_the_quota_of_running_ones_wait_in_the_queue() {
    let teams = Teams::new();
    teams.home.run(&["create", "colony", "narrow", "--running", "1"]).ok();
    teams.stays("narrow", "one");
    // `run` waits until its program has begun.
    let run = ["-n", "narrow", "run", "--name", "two", "--", "sleep", "600"];
    let mut second = teams.home.0.command(&run).spawn().unwrap();
    let states = || {
        let all = teams.within("narrow", &["ps", "-o", "json"]).ok().json();
        let of = |run: &Value| format!("{} {}", run["name"], run["status"]).replace('"', "");
        let mut states: Vec<_> = all.as_array().unwrap().iter().map(of).collect();
        states.sort();
        states
    };
    until("one runs", || (states() == ["one running", "two queued"]).then_some(()));
    teams.home.run(&["get", "colony", "narrow"]).ok().shows("1/1");
    teams.stays("team-b", "elsewhere");
    teams.within("narrow", &["kill", "one"]).ok();
    until("the other runs", || (states() == ["two running"]).then_some(()));
    assert!(second.wait().unwrap().success());
    teams.within("narrow", &["kill", "two"]).ok();
    teams.within("team-b", &["kill", "elsewhere"]).ok();
    teams.home.check();
}

/// What a fleet and a quest start belongs to their colony and counts for its quota; what does not fit
/// is a condition, and no storm.
#[test]
fn owned_runs_are_in_the_colony_of_their_resource() {
    let teams = Teams::new();
    teams.home.run(&["create", "colony", "small", "--runs", "2"]).ok();
    teams.within("small", &["run", "--wait", "--", "true"]).ok();
    let apply = |kind: &str, name: &str, spec: Value| {
        let document = json!({
            "apiVersion": "overmind/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        let file = format!("{name}.json");
        std::fs::write(teams.home.0.work().join(&file), document.to_string()).unwrap();
        teams.within("small", &["apply", "-f", &file])
    };
    let stays = json!({"command": ["sh", "-c", "exec cat"]});
    apply("Fleet", "web", json!({"replicas": 2, "template": stays})).ok();
    let runs = || {
        let mut names = names(&teams.within("small", &["ps", "-o", "json"]).ok());
        names.sort();
        names
    };
    until("the fleet is there", || (runs() == ["web-0", "web-1"]).then_some(()));
    assert_eq!(names(&teams.home.run(&["ps", "-o", "json"]).ok()), [] as [&str; 0]);
    teams.home.run(&["get", "fleet", "web"]).fails(3);
    teams.bob(&["get", "fleet", "web"]).fails(3);

    apply("Quest", "once", json!({"command": ["true"]})).ok();
    let quest = || teams.within("small", &["get", "quest", "once", "-o", "json"]).ok().json();
    let told = until("the quota is told", || {
        let text = quest()["status"].to_string();
        text.contains("QuotaReached").then_some(text)
    });
    assert!(told.contains("its quota is 2"), "{told}");
    // What makes room lets it go on.
    teams.within("small", &["scale", "fleet/web", "--replicas", "1"]).ok();
    until("it is complete", || (quest()["status"]["succeeded"] == 1).then_some(()));
    assert_eq!(runs(), ["web-0"]);
    teams.within("small", &["delete", "fleet", "web"]).ok();
    until("nothing runs", || runs().is_empty().then_some(()));
    teams.home.check();
}

#[test]
fn a_weaker_sandbox_than_the_colonys_is_refused() {
    let teams = Teams::new();
    teams.home.run(&["create", "colony", "safe", "--sandbox", "namespace"]).ok();
    let refused = teams.within("safe", &["run", "--", "true"]).fails(6);
    refused.says("the colony `safe` requires the sandbox `namespace` or a stronger one");
    let run = ["run", "--sandbox", "namespace", "--wait", "--", "true"];
    teams.within("safe", &run).ok();
    teams.home.check();
}

/// A run's own token acts in its colony: what it starts is there, and the mesh is closed to it.
#[test]
fn a_runs_token_stays_in_its_colony() {
    let teams = Teams::new();
    let run = teams.stays("team-a", "inside");
    let token = teams.home.0.run(&["-n", "team-a", "info", &run, "-o", "json"]).ok().json();
    assert_eq!(token["colony_name"], "team-a");
    let pid = until("it runs", || {
        let run = teams.within("team-a", &["info", "inside", "-o", "json"]).ok().json();
        run["process"]["pid"].as_u64()
    });
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environ = String::from_utf8(environ).unwrap();
    let token = environ.split('\0').find_map(|one| one.strip_prefix("OVERMIND_TOKEN=")).unwrap();
    let own = |args: &[&str]| teams.home.0.run_env(&[("OVERMIND_TOKEN", token)], args);
    assert_eq!(names(&own(&["ps", "-o", "json"]).ok()), ["inside"]);
    own(&["-n", "default", "ps"]).fails(3);
    own(&["mesh", "get", "tasks/1"]).fails(6).says("exists in the colony `default` alone");
    teams.within("team-a", &["kill", "inside"]).ok();
    teams.home.check();
}

#[test]
fn a_colonys_budget_is_a_limit_that_goes_with_it() {
    let home = Home::up();
    home.run(&["create", "colony", "poor", "--usd", "2", "--per", "day"]).ok();
    let limits = || home.run(&["budget", "list", "-o", "json"]).ok().json();
    let all = limits();
    assert_eq!((&all[0]["per"], &all[0]["microusd"]), (&json!("day"), &json!(2_000_000)), "{all}");
    assert_eq!(all[0]["scope_name"], "colony:poor", "{all}");
    home.run(&["get", "colony", "poor"]).ok().shows("$0.00/$2.00 per day");
    home.run(&["delete", "colony", "poor"]).ok();
    assert_eq!(limits(), json!([]));
}

/// A Project is for its colony: the key of another one gains nothing by it, and the server's own
/// workspace is not shared either.
#[test]
fn a_bound_key_works_in_projects_of_its_colony_alone() {
    let teams = Teams::new();
    agent(|args| teams.bob(args), "sh");
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    let place = |name: &str| {
        let place = top.join(name);
        std::fs::create_dir(&place).unwrap();
        place
    };
    let (all, own) = (place("all"), place("own"));
    let declare = |colony: &str, path: &std::path::Path| {
        let text = format!(
            "apiVersion: overmind/v1\nkind: Project\nmetadata: {{name: web}}\nspec: {{path: {}}}\n",
            path.display()
        );
        std::fs::write(teams.home.0.work().join("project.yaml"), text).unwrap();
        teams.within(colony, &["apply", "-f", "project.yaml"]).ok();
    };
    declare("default", &all);
    declare("team-a", &own);
    let runs = |path: &std::path::Path| {
        let path = path.to_str().unwrap();
        teams.bob(&["run", "sh", "shell: true", "--once", "--wait", "--project", path])
    };
    runs(&own).ok();
    runs(&all).fails(6).says("only an admin may use a workspace outside");
    let shared = teams.home.0.data().join("workspace");
    std::fs::create_dir_all(&shared).unwrap();
    let shared = shared.canonicalize().unwrap().join("notes");
    std::fs::create_dir_all(&shared).unwrap();
    runs(&shared).fails(6);
    let projects = teams.bob(&["get", "projects", "-o", "json"]).ok().json();
    assert_eq!(projects["items"].as_array().unwrap().len(), 1, "{projects}");
    assert_eq!(projects["items"][0]["spec"]["path"], own.to_str().unwrap());
}
