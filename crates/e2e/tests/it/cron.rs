//! `overmind cron`, `wait --for`, and objects that are only shown as resources, as a person uses them.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::Value;

use crate::home::{Home, until};

fn quests(home: &Home, ritual: &str) -> Vec<String> {
    let all = home.run(&["get", "quests", "-o", "name"]).ok().out;
    let of = format!("quest/{ritual}-");
    all.lines().filter(|line| line.starts_with(&of)).map(str::to_owned).collect()
}

#[test]
fn a_ritual_is_paused_started_by_hand_and_removed() {
    let home = Home::up();
    home.agent("sh", &["--on-unknown", "retry"]);
    let add = ["cron", "add", "tick", "every 1s", "--label", "app=web"];
    let added = home.run(&[&add[..], &["--", "run", "sh", "shell: true"]].concat()).ok();
    added.shows("every 1s").shows("(in ");
    home.run(&["cron", "list"]).ok().shows("SCHEDULE").shows("tick");
    let next = home.run(&["cron", "next", "tick", "-n", "4", "-o", "json"]).ok().json();
    assert_eq!(next.as_array().unwrap().len(), 4);

    let first = until("it fires", || quests(&home, "tick").first().cloned());
    let met = home.run(&["wait", "--for", "condition=Complete", &first, "--timeout", "1m"]).ok();
    met.shows("Complete=True met");
    home.run(&["cron", "pause", "tick"]).ok().shows("ritual/tick paused");
    home.run(&["cron", "pause", "tick"]).ok().shows("was paused already");
    home.run(&["cron", "next", "tick"]).ok().says("it is paused");
    home.run(&["get", "cronjobs"]).ok().shows("true");

    // A start by hand works also while it is paused, and belongs to the ritual.
    let quest = home.run(&["cron", "run", "tick", "-o", "name"]).ok().line().to_owned();
    home.run(&["wait", "--for", "condition=Complete", &quest, "--timeout", "1m"]).ok();
    let shown = home.run(&["get", &quest, "-o", "json"]).ok().json();
    let ritual = home.run(&["get", "ritual/tick", "-o", "json"]).ok().json();
    let owner = &shown["metadata"]["ownerReferences"][0]["uid"];
    assert_eq!(*owner, ritual["metadata"]["uid"], "{shown}");
    assert_eq!(shown["metadata"]["labels"]["app"], "web");

    // Its owned objects and its events.
    let described = home.run(&["describe", &quest]).ok();
    let session = format!("session/{}-0", quest.strip_prefix("quest/").unwrap());
    described.shows("OWNS").shows(&session).shows("succeeded");
    described.shows("EVENT").shows("record.put").shows("Complete=True Completed");
    let runs = home.run(&["get", "pods", "-o", "json"]).ok().json();
    let of =
        |one: &&Value| one["metadata"]["ownerReferences"][0]["uid"] == shown["metadata"]["uid"];
    assert_eq!(runs["items"].as_array().unwrap().iter().filter(of).count(), 1);
    home.run(&["describe", "ritual", "tick"]).ok().shows(&quest);

    home.run(&["cron", "resume", "tick"]).ok().shows("resumed");
    home.run(&["cron", "rm", "tick"]).ok().shows("ritual/tick deleted");
    until("its quests are gone", || quests(&home, "tick").is_empty().then_some(()));
    home.run(&["cron", "rm", "tick"]).fails(3);
    home.run(&["cron", "run", "tick"]).fails(3);
    home.run(&["audit", "verify"]).ok();
}

#[test]
fn invalid_schedules_are_refused_and_valid_ones_print_a_document() {
    let home = Home::up();
    let add = |more: &[&str]| home.run(&[&["cron", "add"], more].concat());
    add(&["x", "0 0 30 2 *", "--", "true"]).fails(2).says("no day 30 in month 2");
    add(&["x", "@daily", "--tz", "Mars/North", "--", "true"]).fails(2).says("Mars/North");
    add(&["x", "@daily", "--jitter", "soon", "--", "true"]).fails(2).says("jitter");
    add(&["x", "@daily", "--", "run", "nobody", "a task"]).fails(3).says("nobody");
    add(&["x", "@daily", "--", "run", "--follow", "sh", "a"]).fails(2).says("--follow");
    add(&["x", "@daily"]).fails(2);
    add(&["A_b", "@daily", "--", "true"]).fails(2).says("the name may have small letters");
    assert_eq!(home.run(&["get", "rituals", "-o", "name"]).ok().out, "");

    // The output of a dry run can be applied unchanged.
    let dry = ["daily", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--concurrency", "forbid"];
    let more = ["--missed", "all", "--dry-run", "--", "sh", "-c", "echo \"a: b\""];
    let printed = add(&[&dry[..], &more[..]].concat()).ok().out;
    assert_eq!(home.run(&["get", "rituals", "-o", "name"]).ok().out, "");
    std::fs::write(home.work().join("daily.yaml"), printed).unwrap();
    home.run(&["apply", "-f", "daily.yaml"]).ok().shows("ritual/daily created");
    let found = home.run(&["get", "ritual", "daily", "-o", "json"]).ok().json();
    let argv = &found["spec"]["template"]["command"];
    assert_eq!(*argv, serde_json::json!(["sh", "-c", "echo \"a: b\""]));
    assert_eq!(found["spec"]["missed"], "all");
    let again = add(&["daily", "@daily", "--", "true"]).fails(5);
    again.says("there is a ritual `daily` already").says("overmind cron rm daily");
}

#[test]
fn runs_agents_and_loops_are_read_only_resources() {
    let home = Home::up();
    home.agent("sh", &["--on-unknown", "retry"]);
    let run = ["run", "sh", "shell: true", "--once", "--label", "app=web", "--name", "one"];
    home.run(&[&run[..], &["--wait"]].concat()).ok();
    home.run(&["run", "sh", "shell: true", "--once", "--name", "two", "--wait"]).ok();

    // Labels find them, by either way.
    let pods = home.run(&["get", "pods", "-l", "app=web", "-o", "name"]).ok();
    assert_eq!(pods.line(), "session/one");
    home.run(&["ps", "-a", "-l", "app!=web"]).ok().shows("two");
    let ps = home.run(&["ps", "-a", "-l", "app=web", "-o", "json"]).ok().json();
    assert_eq!(ps.as_array().unwrap().len(), 1);
    home.run(&["ps", "-l", "app in ("]).fails(2).says("selector");
    home.run(&["run", "sh", "x", "--label", "a b=c"]).fails(2);

    let one = home.run(&["get", "session", "one", "-o", "json"]).ok().json();
    assert_eq!(one["kind"], "Session");
    assert_eq!(
        (&one["spec"]["agent"], &one["status"]["phase"]),
        (&"sh".into(), &"succeeded".into())
    );
    home.run(&["wait", "--for", "condition=Succeeded", "session/one", "session/two"]).ok();
    home.run(&["wait", "--for", "jsonpath={.status.phase}=succeeded", "run", "one"]).ok();
    let late = ["wait", "--for", "condition=Finished=False", "session/one", "--timeout", "500ms"];
    home.run(&late).fails(1).says("within 0.5 s");
    home.run(&["wait", "one", "two"]).ok();
    home.run(&["describe", "session", "one"]).ok().shows("run.queued").shows("run.succeeded");
    home.run(&["get", "agent", "sh", "-o", "jsonpath={.spec.role}"]).ok();

    home.run(&["vault", "set", "token", "--value", "0123456789abcdef"]);
    for (word, shows) in [
        ("nodes", "local"),
        ("namespaces", "default"),
        ("swarms", "local"),
        ("cortex", "ready"),
        ("weavers", "quests"),
        ("oracle", "CAPACITY"),
        ("akasha", "EVENTS"),
        ("agents", "sh"),
    ] {
        home.run(&["get", word]).ok().shows(shows);
    }
    // They have their own commands.
    let agent = "apiVersion: overmind/v1\nkind: Agent\nmetadata: {name: sh}\nspec: {}\n";
    std::fs::write(home.work().join("agent.yaml"), agent).unwrap();
    let refused = home.run(&["apply", "-f", "agent.yaml"]).fails(2);
    refused.says("agent is only shown here").says("overmind agent");
    home.run(&["delete", "pod", "one"]).fails(5).says("overmind run|stop|kill|done");
    home.run(&["label", "session", "one", "a=b"]).fails(5).says("only shown");
    home.run(&["get", "session", "nobody"]).fails(3).says("there is no session/nobody");
    home.run(&["explain", "session"]).ok().shows("session");
    home.run(&["api-resources"]).ok().shows("pods").shows("Session");
}
