//! Fleets and agents on their pages, and the fields of the start form.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use reqwest::StatusCode;
use reqwest::header::LOCATION;
use serde_json::{Value, json};

use super::{Browser, csrf, key, up};
use crate::home::{Home, until};

fn fleet(home: &Home) -> Value {
    home.run(&["get", "fleet", "web", "-o", "json"]).ok().json()
}

pub(super) fn ready(home: &Home, wanted: u64) {
    until("the fleet is ready", || {
        // And those that were replaced have ended.
        let fleet = fleet(home);
        let status = &fleet["status"];
        let slots = status["slots"].as_array().map_or(0, |slots| slots.len() as u64);
        let seen = status["observedGeneration"] == fleet["metadata"]["generation"];
        (status["ready"] == wanted && slots == wanted && seen).then_some(())
    });
}

pub(super) fn apply(home: &Home, replicas: u64, word: &str) {
    let template = json!({"command": ["sh", "-c", "echo $0; exec cat", word]});
    let document = json!({"apiVersion": "overmind/v1", "kind": "Fleet", "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "template": template}});
    std::fs::write(home.work().join("fleet.json"), document.to_string()).unwrap();
    home.run(&["apply", "-f", "fleet.json"]).ok();
}

/// A lineage `db` with as many runs at work.
pub(super) fn lineage(home: &Home, replicas: u64) {
    let document = json!({"apiVersion": "overmind/v1", "kind": "Lineage", "metadata": {"name": "db"},
        "spec": {"replicas": replicas, "template": {"command": ["sh", "-c", "echo up; exec cat"]}}});
    std::fs::write(home.work().join("lineage.json"), document.to_string()).unwrap();
    home.run(&["apply", "-f", "lineage.json"]).ok();
    home.run(&["rollout", "status", "lineage/db", "--timeout", "1m"]).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_scaled_paused_restarted_and_rolled_back_on_its_page() {
    let (home, url) = up();
    home.run(&["run", "--once", "--wait", "--", "true"]).ok();
    apply(&home, 2, "one");
    ready(&home, 2);
    let mut root = Browser::new(&url);
    root.sign_in(&key(&home, "root", "admin")).await;
    let page = root.text("/resources/fleet/web").await;
    assert!(page.contains("2 of 2 available"), "{page}");
    let token = csrf(&page);
    let mut act = async |verb: &str, field: (&str, &str)| {
        root.post(&format!("/resources/fleet/web/{verb}"), &[("csrf", &token), field]).await
    };
    for wrong in ["many", "-1", "100000000"] {
        let refused = act("scale", ("replicas", wrong)).await;
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY, "{wrong}");
        let page = refused.text().await.unwrap();
        assert!(page.contains("That did not work.") && page.contains("2 of 2"), "{page}");
    }
    assert_eq!(act("scale", ("replicas", "4")).await.status(), StatusCode::SEE_OTHER);
    ready(&home, 4);
    act("pause", ("", "")).await;
    assert_eq!(fleet(&home)["spec"]["paused"], true);
    act("resume", ("", "")).await;
    assert_eq!(fleet(&home)["spec"].get("paused"), None);
    apply(&home, 4, "two");
    until("the second revision", || (fleet(&home)["status"]["revision"] == 2).then_some(()));
    let none = act("undo", ("revision", "9")).await;
    assert_eq!(none.status(), StatusCode::NOT_FOUND);
    assert_eq!(act("undo", ("revision", "1")).await.status(), StatusCode::SEE_OTHER);
    assert_eq!(fleet(&home)["spec"]["template"]["command"][3], "one");
    act("restart", ("", "")).await;
    assert!(fleet(&home)["spec"]["template"]["restartedAt"].is_string());
    ready(&home, 4);

    let now = root.text("/").await;
    assert!(
        now.contains("<summary>4 runs") && now.contains("href=\"/resources/fleet/web\""),
        "{now}"
    );
    // Those of a lineage are one line, too, with a link to the lineage.
    lineage(&home, 4);
    let now = root.text("/").await;
    assert_eq!(now.matches("<summary>4 runs").count(), 2, "{now}");
    let line = "href=\"/resources/lineage/db\" data-open><strong>db</strong></a>";
    assert!(now.contains(line) && now.contains("<span class=\"who\">lineage</span>"), "{now}");
    let mut vera = Browser::new(&url);
    vera.sign_in(&key(&home, "vera", "viewer")).await;
    let seen = vera.text("/resources/fleet/web").await;
    assert!(seen.contains("4 of 4 available") && !seen.contains("/scale\""), "{seen}");
    let own = csrf(&seen);
    let refused =
        vera.post("/resources/fleet/web/scale", &[("csrf", &own), ("replicas", "0")]).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    assert_eq!(fleet(&home)["spec"]["replicas"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_created_changed_disabled_and_removed_on_its_page() {
    let (home, url) = up();
    let mut ann = Browser::new(&url);
    ann.sign_in(&key(&home, "ann", "operator")).await;
    let token = csrf(&ann.text("/agents/new").await);
    let named =
        |name: &'static str| [("csrf", token.as_str()), ("name", name), ("role", "fix <b>")];
    let refused = ann.post("/agents", &[&named("fixer")[..], &[("model", "")]].concat()).await;
    assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let page = refused.text().await.unwrap();
    assert!(page.contains("role=\"alert\"") && page.contains("model"), "{page}");
    assert!(page.contains("value=\"fixer\"") && page.contains("fix &#60;b&#62;"), "{page}");
    let model = ("model", "deterministic");
    let made = ann.post("/agents", &[&named("fixer")[..], &[model]].concat()).await;
    assert_eq!(made.status(), StatusCode::SEE_OTHER);
    let path = made.headers()[LOCATION].to_str().unwrap().to_owned();
    let more = [model, ("tools", "read_file"), ("sandbox", "namespace")];
    let changed = ann.post(&path, &[&named("fixer")[..], &more].concat()).await;
    assert_eq!(changed.headers()[LOCATION].to_str().unwrap(), path);
    let page = ann.text(&path).await;
    assert!(page.contains("tools allowed before") && page.contains("read_file"), "{page}");
    let sent = [("csrf", token.as_str())];
    let state = || home.run(&["agent", "get", "fixer", "-o", "json"]).ok().json()["status"].clone();
    ann.post(&format!("{path}/disable"), &sent).await;
    assert_eq!(state(), "disabled");
    ann.post(&format!("{path}/enable"), &sent).await;
    assert_eq!(state(), "active");
    // A viewer sees no form, and the request is refused.
    let mut vera = Browser::new(&url);
    vera.sign_in(&key(&home, "vera", "viewer")).await;
    let seen = vera.text(&path).await;
    assert!(seen.contains("fixer") && !seen.contains("/remove\""), "{seen}");
    let own = csrf(&seen);
    let refused = vera.post(&format!("{path}/remove"), &[("csrf", &own)]).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    let gone = ann.post(&format!("{path}/remove"), &sent).await;
    assert_eq!(gone.headers()[LOCATION], "/agents");
    assert!(!ann.text("/agents").await.contains("fixer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_started_in_a_project_with_labels_and_counted_while_it_waits() {
    let (home, url) = up();
    home.agent("sh", &["--sandbox", "none"]);
    let dir = home.work().join("shop");
    std::fs::create_dir(&dir).unwrap();
    let document = json!({"apiVersion": "overmind/v1", "kind": "Project",
        "metadata": {"name": "shop"}, "spec": {"path": dir}});
    std::fs::write(home.work().join("project.json"), document.to_string()).unwrap();
    home.run(&["apply", "-f", "project.json"]).ok();
    let mut root = Browser::new(&url);
    root.sign_in(&key(&home, "root", "admin")).await;
    let form = root.text("/runs/new").await;
    let dir = dir.to_str().unwrap();
    assert!(form.contains(&format!("<option value=\"{dir}\">shop</option>")), "{form}");
    let token = csrf(&form);
    let task = "shell: curl -s http://127.0.0.1:9/hook";
    let fields = [("csrf", token.as_str()), ("agent", "sh"), ("task", task), ("project", dir)];
    let bad = root.post("/runs", &[&fields[..], &[("labels", "app")]].concat()).await;
    assert_eq!(bad.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(bad.text().await.unwrap().contains("`app` is not a label"));
    assert_eq!(root.text("/inbox/count").await, "{\"items\":[]}");
    let made = root.post("/runs", &[&fields[..], &[("labels", "app=web")]].concat()).await;
    let id = made.headers()[LOCATION].to_str().unwrap().trim_start_matches("/runs/").to_owned();
    let run = home.wait_for(&id, "awaiting_approval");
    assert_eq!((&run["workspace"], &run["labels"]), (&json!(dir), &json!({"app": "web"})));
    let count: Value = serde_json::from_str(&root.text("/inbox/count").await).unwrap();
    assert_eq!(count["items"].as_array().unwrap().len(), 1, "{count}");
}
