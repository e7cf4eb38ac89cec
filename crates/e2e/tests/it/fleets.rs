//! Fleets: runs that stay, through kills of theirs and of the server, changes and deletion.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::{Done, Home, until};
use crate::worktrees::House;

fn apply(home: &Home, spec: &Value) -> Done {
    let document = json!({
        "apiVersion": "overmind/v1", "kind": "Fleet", "metadata": {"name": "web"}, "spec": spec,
    });
    std::fs::write(home.work().join("fleet.json"), document.to_string()).unwrap();
    home.run(&["apply", "-f", "fleet.json"])
}

/// A program that stays, marked so that its revision is seen.
fn stays(word: &str) -> Value {
    json!({"command": ["sh", "-c", "echo $0; exec cat", word], "labels": {"app": "web"}})
}

fn fleet(home: &Home) -> Value {
    home.run(&["get", "fleet", "web", "-o", "json"]).ok().json()
}

/// Names and ids of the fleet's runs that have not ended.
fn runs(home: &Home) -> Vec<(String, String)> {
    let all = home.run(&["ps", "-l", "app=web", "-o", "json", "--limit", "1000"]).ok().json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut all: Vec<_> =
        all.as_array().unwrap().iter().map(|run| (text(&run["name"]), text(&run["id"]))).collect();
    all.sort();
    all
}

fn ready(home: &Home, wanted: u64) {
    until("the fleet is ready", || {
        let status = &fleet(home)["status"];
        let says = |kind: &str| {
            let all = status["conditions"].as_array()?;
            Some(all.iter().find(|one| one["type"] == kind)?["status"] == "True")
        };
        (status["ready"] == wanted && says("Ready") == Some(true)).then_some(())
    });
}

fn names(home: &Home) -> Vec<String> {
    runs(home).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn a_fleet_restores_sessions_is_scaled_and_survives_a_server_kill() {
    let mut home = Commands::up();
    home.run(&["run", "--once", "--wait", "--", "true"]).ok();
    apply(&home.0, &json!({"replicas": 3, "template": stays("one")}))
        .ok()
        .shows("fleet/web created");
    ready(&home.0, 3);
    assert_eq!(names(&home.0), ["web-0", "web-1", "web-2"]);
    home.run(&["get", "deployments"]).ok().shows("READY").shows("UP-TO-DATE").shows("3/3");

    // A killed run is restarted automatically under its name.
    let before = runs(&home.0);
    home.run(&["kill", "web-2"]).ok();
    until("it is back", || {
        let now = runs(&home.0);
        (now.len() == 3 && now[2].0 == "web-2" && now[2].1 != before[2].1).then_some(())
    });
    ready(&home.0, 3);
    assert_eq!(runs(&home.0)[..2], before[..2], "the others were left alone");

    // So does the server, without loss or duplication.
    let before = runs(&home.0);
    home.0.kill();
    home.0.start(&["--listen", "none"], &[]);
    ready(&home.0, 3);
    assert_eq!(runs(&home.0), before);

    home.run(&["scale", "fleet/web", "--replicas", "5"]).ok().shows("fleet/web scaled");
    ready(&home.0, 5);
    home.run(&["scale", "web", "--replicas", "1", "--current-replicas", "9"]).fails(5);
    home.run(&["scale", "web", "--replicas", "1"]).ok();
    until("the highest went", || (names(&home.0) == ["web-0"]).then_some(()));
    ready(&home.0, 1);

    let described = home.run(&["describe", "fleet", "web"]).ok();
    described.shows("OWNS").shows("session/web-0").shows("pack/web-r1").shows("Ready=True");
    home.run(&["delete", "fleet", "web"]).ok();
    until("its runs have ended", || runs(&home.0).is_empty().then_some(()));
    until("it is gone", || (home.run(&["get", "fleet", "web"]).code == 3).then_some(()));
    home.check();
}

#[test]
fn a_fleet_change_is_rolled_out_paused_undone_and_restarted() {
    let home = Commands::up();
    home.run(&["run", "--once", "--wait", "--", "true"]).ok();
    let spec = |word: &str| json!({"replicas": 2, "template": stays(word)});
    apply(&home.0, &spec("one")).ok();
    ready(&home.0, 2);
    let first: BTreeSet<_> = runs(&home.0).into_iter().map(|(_, id)| id).collect();

    apply(&home.0, &spec("two")).ok().shows("configured");
    let told = home.run(&["rollout", "status", "fleet/web", "--timeout", "1m"]).ok();
    told.shows("revision 2 is rolled out: 2 of 2 are available");
    let second: BTreeSet<_> = runs(&home.0).into_iter().map(|(_, id)| id).collect();
    assert!(first.is_disjoint(&second));

    // A paused change waits, and a killed run restarts with the earlier template.
    home.run(&["rollout", "pause", "web"]).ok().shows("paused");
    let mut third = spec("three");
    third["paused"] = json!(true);
    apply(&home.0, &third).ok();
    home.run(&["rollout", "status", "web", "--timeout", "1m"]).ok().shows("Paused");
    let one = names(&home.0)[0].clone();
    home.run(&["kill", &one]).ok();
    until("it is back", || {
        let now: BTreeSet<_> = runs(&home.0).into_iter().map(|(_, id)| id).collect();
        (now.len() == 2 && now != second).then_some(())
    });
    until("it says what the second revision says", || {
        home.run(&["logs", &one]).out.contains("two").then_some(())
    });
    home.run(&["rollout", "resume", "web"]).ok().shows("resumed");
    home.run(&["rollout", "status", "web", "--timeout", "1m"]).ok().shows("revision 3");

    home.run(&["rollout", "history", "web"]).ok().shows("REVISION").shows("web-r3");
    home.run(&["rollout", "undo", "web", "--to-revision", "1"]).ok().shows("revision 1");
    home.run(&["rollout", "status", "web", "--timeout", "1m"]).ok().shows("revision 4");
    until("it says what the first revision says", || {
        home.run(&["logs", &names(&home.0)[0]]).out.contains("one").then_some(())
    });
    home.run(&["rollout", "undo", "web", "--to-revision", "9"]).fails(3).says("it has 1, 2, 3, 4");
    home.run(&["rollout", "restart", "web"]).ok();
    home.run(&["rollout", "status", "web", "--timeout", "1m"]).ok().shows("revision 5");
    home.run(&["rollout", "status", "nobody"]).fails(3);
    home.run(&["rollout", "pause", "quest/x"]).fails(2).says("is not a fleet");
}

#[test]
fn a_program_that_exits_at_once_backs_off_and_a_missing_agent_is_a_condition() {
    let home = Commands::up();
    home.run(&["run", "--once", "--wait", "--", "true"]).ok();
    let spec = json!({"replicas": 2, "template": {"command": ["false"], "labels": {"app": "web"}}});
    apply(&home.0, &spec).ok();
    let says = |kind: &str, reason: &str| {
        until(reason, || {
            let all = fleet(&home.0)["status"]["conditions"].clone();
            let found = all.as_array()?.iter().find(|one| one["type"] == kind)?.clone();
            (found["reason"] == reason).then_some(found)
        })
    };
    says("Waiting", "BackOff");
    let all = home.run(&["ps", "-a", "-l", "app=web", "-o", "json"]).ok().json();
    assert!(all.as_array().unwrap().len() <= 8, "{all}");
    let spec = json!({"replicas": 1, "template": {"agent": "nobody", "labels": {"app": "web"}}});
    apply(&home.0, &spec).ok();
    says("Waiting", "NotFound");
    apply(&home.0, &json!({"replicas": 1, "template": stays("well")})).ok();
    ready(&home.0, 1);
    let bad = json!({"replicas": -1, "maxSurge": 0, "template": {"agnet": "x"}});
    apply(&home.0, &bad).fails(2).says("spec.replicas").says("spec.maxSurge").says("agnet");
    home.run(&["delete", "fleet", "web"]).ok();
    until("its runs have ended", || runs(&home.0).is_empty().then_some(()));
    home.check();
}

/// Undecided work: each run shows once why it ended, and stops asking after the decision.
#[test]
fn work_left_by_a_scale_down_a_rollout_or_a_deletion_has_a_reason() {
    let mut house = House::new(None);
    let write =
        json!({"calls": [{"name": "write_file", "args": {"path": "a.txt", "content": "a"}}]});
    house.home.0.scripted("writer", &json!([write, {"text": "Written."}]), &[]);
    let template = |task: &str| json!({"agent": "writer", "task": task, "project": house.project, "labels": {"app": "web"}});
    let (one, two) = (template("one"), template("two"));
    // A name that is still in use is waited for.
    let rests = |house: &House, name: &str| {
        until(&format!("{name} is at rest"), || {
            let done = house.run(&["info", name, "-o", "json"]);
            let run = (done.code == 0).then(|| done.json())?;
            (run["status"] == "idle" && run["final_answer"] == "Written.").then_some(run)
        })
    };
    let id = |run: &Value| run["id"].as_str().unwrap().to_owned();
    let asks = |house: &House| {
        let all = house.run(&["ps", "-a", "-l", "app=web", "-o", "json"]).ok().json();
        let all = all.as_array().unwrap().iter().filter(|run| run["room"]["undecided"] == true);
        all.map(id).collect::<BTreeSet<_>>()
    };
    let says = |house: &House, id: &str, why: &str| {
        until(why, || {
            let run = house.run(&["info", id, "-o", "json"]).ok().json();
            (run["status"] == "canceled" && run["room"]["undecided"] == true).then_some(())
        });
        house.run(&["info", id]).ok().shows("reason").shows(why);
        let told = house.run(&["events", id, "--limit", "1000", "-o", "json"]).ok().json();
        let told = told.as_array().unwrap().iter().filter(|event| event["type"] == "run.canceled");
        assert_eq!(told.count(), 1, "{id} was ended once");
    };

    apply(&house.home.0, &json!({"replicas": 2, "template": one})).ok();
    let (first, second) = (id(&rests(&house, "web-0")), id(&rests(&house, "web-1")));
    assert_eq!(asks(&house), BTreeSet::new());

    // The server is killed while it scales.
    house.run(&["scale", "fleet/web", "--replicas", "1"]).ok();
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    says(&house, &second, "scaled away by fleet/web");
    assert_eq!(asks(&house), BTreeSet::from([second.clone()]));

    apply(&house.home.0, &json!({"replicas": 1, "template": two})).ok();
    says(&house, &first, "replaced by revision 2 of fleet/web");
    ready(&house.home.0, 1);
    let all = house.run(&["ps", "-l", "app=web", "-o", "json"]).ok().json();
    let third = id(&all[0]);
    rests(&house, &third);
    house.run(&["delete", "fleet", "web"]).ok();
    says(&house, &third, "ended: fleet/web was deleted");

    // The inbox asks about each, once.
    assert_eq!(asks(&house).len(), 3);
    let items = |house: &House| {
        let all = house.run(&["inbox", "--kind", "work", "--flat", "-o", "json"]).ok().json();
        all.as_array().unwrap().clone()
    };
    let all = items(&house);
    assert_eq!(all.len(), 3, "{all:?}");
    let item = |run: &str| all.iter().find(|item| item["run_id"] == run).unwrap();
    assert_eq!(item(&second)["details"]["files"], 1);
    let owners: BTreeSet<&str> = all.iter().map(|item| item["owner"].as_str().unwrap()).collect();
    assert_eq!(owners.len(), 1);
    house.run(&["inbox"]).ok().shows("web-1 left 1 changed file");

    // Decided work does not ask any more, wherever it was decided.
    house.run(&["done", &first, "--merge"]).ok();
    let answered = item(&second)["id"].as_str().unwrap();
    house.run(&["answer", answered, "perhaps"]).fails(2).says("merge, keep or discard");
    house.run(&["approve", answered]).fails(5).says("discard");
    house.run(&["answer", answered, "discard"]).ok();
    assert_eq!(asks(&house), BTreeSet::from([third.clone()]));
    let left = items(&house);
    assert!(left.len() == 1 && left[0]["run_id"] == third.as_str(), "{left:?}");
    let seen = house.run(&["inbox", "show", answered, "-o", "json"]).ok().json();
    assert_eq!((&seen["state"], &seen["answer"]), (&json!("answered"), &json!("discard")));
    house.run(&["answer", left[0]["id"].as_str().unwrap(), "keep"]).ok();
    assert!(items(&house).is_empty() && asks(&house).is_empty());
}

#[test]
fn a_fleet_scales_with_waiting_messages_and_a_schedule() {
    let home = Commands::up();
    home.0.agent("worker", &[]);
    let keeps = json!({"on_message": "queue"});
    std::fs::write(home.0.work().join("acl.json"), keeps.to_string()).unwrap();
    home.run(&["acl", "set", "worker", "acl.json"]).ok();
    let spec = |scale: Value| json!({"replicas": 9, "scale": scale, "template": stays("one")});
    // A schedule that ticked a moment ago overrides `replicas`.
    let every = json!([{"at": "every 1s", "replicas": 1}]);
    let queue = json!({"agent": "worker", "perReplica": 2, "max": 3, "cooldown": "1s"});
    apply(&home.0, &spec(json!({"schedule": every, "queue": queue}))).ok();
    ready(&home.0, 1);
    home.run(&["scale", "fleet/web", "--replicas", "5"]).fails(2).says("spec.scale");

    let message = |text: &str| home.run(&["mail", "send", "worker", text]).ok();
    for text in ["a", "b", "c", "d", "e", "f", "g"] {
        message(text);
    }
    // Four would be wanted, and three are allowed.
    ready(&home.0, 3);
    home.run(&["get", "fleets"]).ok().shows("3/3");
    assert_eq!(names(&home.0).len(), 3);

    home.run(&["mail", "read", "--agent", "worker", "--ack"]).ok();
    until("fewer are enough", || (names(&home.0) == ["web-0"]).then_some(()));
    ready(&home.0, 1);

    let wrong =
        apply(&home.0, &spec(json!({"queue": {"agent": "worker", "perReplica": 0, "max": 3}})));
    wrong.fails(2).says("spec.scale.queue.perReplica").says("from 1 to 1000");
}
