//! Further pages: a run's changes, files, log and steps; resources; costs.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::path::{Path, PathBuf};
use std::process::Command;

use reqwest::StatusCode;
use reqwest::header::LOCATION;

use super::{Browser, csrf, key, up};
use crate::home::Home;

const ODD: &str = "<b onclick=x>bold.txt";

pub(super) fn git(project: &Path, args: &[&str]) -> String {
    let who = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
    let output = Command::new("git").current_dir(project).args(who).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(super) fn project(home: &Home) -> PathBuf {
    let project = home.work().join("app");
    std::fs::create_dir(&project).unwrap();
    git(&project, &["init", "-q", "-b", "main"]);
    std::fs::write(project.join("story.txt"), "once\nupon\n").unwrap();
    git(&project, &["add", "-A"]);
    git(&project, &["commit", "-qm", "first"]);
    crate::projects::declare(home, &project);
    project
}

/// A command that ran in a worktree of the project; its id.
pub(super) fn ran(home: &Home, project: &Path, name: &str, line: &str) -> String {
    let run = |args: &[&str]| {
        let output = home.command(args).current_dir(project).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let id = run(&["run", "--name", name, "-o", "name", line]);
    run(&["wait", name]);
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_shown_merged_and_discarded_on_its_page() {
    let (home, url) = up();
    let project = project(&home);
    let line = format!("printf 'twice\\nupon\\n' > story.txt; echo '<script>x' > '{ODD}'");
    let fix = ran(&home, &project, "fix", &line);
    let clash = ran(&home, &project, "clash", "printf 'never\\nupon\\n' > story.txt");
    let mut ann = Browser::new(&url);
    ann.sign_in(&key(&home, "ann", "operator")).await;
    let now = ann.text("/").await;
    assert!(now.contains(&format!("action=\"/runs/{fix}/done\"")), "{now}");
    let page = ann.text(&format!("/runs/{fix}/changes")).await;
    for part in
        ["story.txt", "<td class=\"del\">once</td>", "<td class=\"add\">twice</td>", "2 files"]
    {
        assert!(page.contains(part), "no `{part}` in {page}");
    }
    assert!(
        page.contains("&#60;b onclick=x&#62;bold")
            && !page.contains("<b onclick")
            && !page.contains("<script>x")
    );
    let token = csrf(&page);
    let decide = |action| [("csrf", token.as_str()), ("action", action)];
    // A viewer sees no form, and the request is refused.
    let mut vera = Browser::new(&url);
    vera.sign_in(&key(&home, "vera", "viewer")).await;
    let seen = vera.text(&format!("/runs/{fix}/changes")).await;
    assert!(seen.contains("twice") && !seen.contains("/done\""));
    let own = csrf(&seen);
    let sent = [("csrf", own.as_str()), ("action", "discard")];
    let refused = vera.post(&format!("/runs/{fix}/done"), &sent).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);

    let merged = ann.post(&format!("/runs/{fix}/done"), &decide("merge")).await;
    assert_eq!(merged.headers()[LOCATION].to_str().unwrap(), format!("/runs/{fix}/changes"));
    assert_eq!(std::fs::read_to_string(project.join("story.txt")).unwrap(), "twice\nupon\n");
    assert!(ann.text(&format!("/runs/{fix}/changes")).await.contains(", by ann."));
    // The other run changed the same line: its merge is refused with the file, and it stays.
    let sent = [&decide("merge")[..], &[("next", "/")]].concat();
    let refused = ann.post(&format!("/runs/{clash}/done"), &sent).await;
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let page = refused.text().await.unwrap();
    assert!(page.contains("That did not work.") && page.contains("story.txt"), "{page}");
    assert!(page.contains("<td class=\"add\">never</td>"), "{page}");
    let sent = [&decide("discard")[..], &[("next", "/")]].concat();
    let gone = ann.post(&format!("/runs/{clash}/done"), &sent).await;
    assert_eq!(gone.headers()[LOCATION], "/");
    assert!(!ann.text("/").await.contains(&format!("/runs/{clash}/done")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_verifies_a_log_and_serves_artifacts_only_as_files() {
    let (home, url) = up();
    home.agent("sh", &["--sandbox", "none"]);
    let id = home.run(&["run", "sh", "shell: echo hi", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&id, "succeeded");
    let mut ann = Browser::new(&url);
    let secret = key(&home, "ann", "operator");
    ann.sign_in(&secret).await;
    let log = ann.text(&format!("/runs/{id}/log")).await;
    assert!(log.contains("run.queued") && log.contains("run.succeeded"), "{log}");
    let token = csrf(&log);
    let verified = ann.post(&format!("/runs/{id}/verify"), &[("csrf", &token)]).await;
    assert!(verified.text().await.unwrap().contains("✓ It holds."));
    let steps = ann.text(&format!("/runs/{id}/replay?at=0")).await;
    assert!(steps.contains("step 0 of") && steps.contains("Fork before step 0"), "{steps}");
    let sent = [("csrf", token.as_str()), ("at", "0")];
    // Without a sandbox, only an admin can run something; the page says so.
    let refused = ann.post(&format!("/runs/{id}/fork"), &sent).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    assert!(refused.text().await.unwrap().contains("That did not work."));
    let mut root = Browser::new(&url);
    root.sign_in(&key(&home, "root", "admin")).await;
    let own = csrf(&root.text("/").await);
    let fork = root.post(&format!("/runs/{id}/fork"), &[("csrf", &own), ("at", "0")]).await;
    assert_eq!(fork.status(), StatusCode::SEE_OTHER);
    let fork = fork.headers()[LOCATION].to_str().unwrap().trim_start_matches("/runs/").to_owned();
    home.wait_for(&fork, "succeeded");
    let beside = ann.text(&format!("/runs/{id}/replay?with={fork}")).await;
    assert!(beside.contains("steps are the same"), "{beside}");

    let name = "out/%3Cimg%20src=x%3E.html";
    let put = ann.client.put(format!("{url}/api/runs/{id}/artifacts/{name}")).bearer_auth(&secret);
    let put = put.header("content-type", "text/html").body("<script>alert(1)</script>");
    assert!(put.send().await.unwrap().status().is_success());
    let list = ann.text(&format!("/runs/{id}/artifacts")).await;
    assert!(list.contains("&#60;img src=x&#62;.html") && !list.contains("<img"), "{list}");
    let (_, rest) = list.split_once(&format!("href=\"/runs/{id}/artifacts/")).unwrap();
    let path = rest.split('"').next().unwrap();
    let file = ann.get(&format!("/runs/{id}/artifacts/{path}")).await;
    assert_eq!(file.status(), StatusCode::OK);
    let header = |name: &str| file.headers()[name].to_str().unwrap().to_owned();
    assert!(header("content-disposition").starts_with("attachment;"));
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert!(header("content-security-policy").contains("sandbox"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_is_validated_created_paused_started_and_deleted_on_its_page() {
    let (home, url) = up();
    home.agent("sh", &["--on-unknown", "retry"]);
    let mut ann = Browser::new(&url);
    ann.sign_in(&key(&home, "ann", "operator")).await;
    assert!(ann.text("/resources").await.contains("href=\"/resources/ritual\""));
    let form = ann.text("/resources/rituals").await;
    let token = csrf(&form);
    let document = |schedule: &str| {
        format!(
            "apiVersion: overmind/v1\nkind: Ritual\nmetadata:\n  name: daily\nspec:\n  schedule: {schedule}\n  template:\n    agent: sh\n    task: \"shell: true\"\n"
        )
    };
    let (bad, good) = (document("\"99 9 * * *\""), document("\"0 9 * * *\""));
    let sent = |text: &'static str, what: &str| {
        [("csrf", token.clone()), ("document", what.to_owned()), ("do", text.to_owned())]
    };
    let post = async |ann: &mut Browser, path: &str, fields: [(&str, String); 3]| {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        ann.post(path, &fields).await
    };
    let wrong = post(&mut ann, "/resources/ritual", sent("apply", &bad)).await;
    assert_eq!(wrong.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let page = wrong.text().await.unwrap();
    assert!(page.contains("line 6: spec.schedule") && page.contains("99 9 * * *"), "{page}");
    let checked = post(&mut ann, "/resources/ritual", sent("check", &good)).await;
    let page = checked.text().await.unwrap();
    assert!(page.contains("This is right: it would be created."), "{page}");
    home.run(&["get", "ritual/daily"]).fails(3);
    let made = post(&mut ann, "/resources/ritual", sent("apply", &good)).await;
    assert_eq!(made.headers()[LOCATION], "/resources/ritual/daily");
    let page = ann.text("/resources/ritual/daily").await;
    assert!(page.contains("0 9 * * *") && page.contains("09:00:00 UTC"), "{page}");
    let fields = [("csrf", token.as_str())];
    let act = async |ann: &mut Browser, verb: &str| {
        ann.post(&format!("/resources/ritual/daily/{verb}"), &fields).await
    };
    assert_eq!(act(&mut ann, "pause").await.status(), StatusCode::SEE_OTHER);
    assert!(ann.text("/resources/ritual/daily").await.contains("paused"));
    let begun = act(&mut ann, "run").await;
    let quest = begun.headers()[LOCATION].to_str().unwrap().to_owned();
    assert!(quest.starts_with("/resources/quest/daily-manual-"), "{quest}");
    assert!(ann.text("/resources/ritual/daily").await.contains("daily-manual-"));
    assert_eq!(act(&mut ann, "resume").await.status(), StatusCode::SEE_OTHER);
    assert_eq!(act(&mut ann, "delete").await.status(), StatusCode::SEE_OTHER);
    home.run(&["get", "ritual/daily"]).fails(3);
    // Every kind has its table, whatever it is.
    for kind in ["agent", "session", "hive", "context", "quest", "weaver"] {
        let page = ann.text(&format!("/resources/{kind}")).await;
        assert!(page.contains("<h1>"), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_sets_a_budget_halts_and_resumes_everything() {
    let (home, url) = up();
    let (mut root, mut vera) = (Browser::new(&url), Browser::new(&url));
    root.sign_in(&key(&home, "root", "admin")).await;
    vera.sign_in(&key(&home, "vera", "viewer")).await;
    let token = csrf(&root.text("/costs").await);
    let fields = [("csrf", token.as_str()), ("scope", "swarm"), ("per", "day")];
    let bad = root.post("/costs/budget", &[&fields[..], &[("usd", "much")]].concat()).await;
    assert_eq!(bad.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let set = root.post("/costs/budget", &[&fields[..], &[("usd", "2.5")]].concat()).await;
    assert_eq!(set.status(), StatusCode::SEE_OTHER);
    let page = vera.text("/costs").await;
    assert!(page.contains("$2.50") && !page.contains("action=\"/costs"), "{page}");
    let halt = [("csrf", token.as_str()), ("mode", "pause"), ("reason", "<i>stop</i>")];
    assert_eq!(root.post("/costs/halt", &halt).await.status(), StatusCode::SEE_OTHER);
    let page = vera.text("/costs").await;
    assert!(page.contains("&#60;i&#62;stop") && page.contains("by root"), "{page}");
    assert_eq!(root.post("/costs/resume", &halt[..1]).await.status(), StatusCode::SEE_OTHER);
    assert!(!vera.text("/costs").await.contains("Everything is halted"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_shown_without_scripts_and_opened_only_by_its_own_page() {
    let (home, url) = up();
    let line = "printf '\\033]0;owned\\007<b>ready</b>\\n'; read -r line; echo \"heard $line\"";
    let id = home.run(&["run", "--name", "types", "-o", "name", line]).ok().line().to_owned();
    home.wait_for(&id, "running");
    let (mut ann, mut olga) = (Browser::new(&url), Browser::new(&url));
    let mut vera = Browser::new(&url);
    ann.sign_in(&key(&home, "ann", "admin")).await;
    olga.sign_in(&key(&home, "olga", "operator")).await;
    vera.sign_in(&key(&home, "vera", "viewer")).await;
    let path = format!("/runs/{id}/terminal");
    let mut page = ann.text(&path).await;
    while !page.contains("&#60;b&#62;ready") {
        page = ann.text(&path).await;
    }
    assert!(!page.contains("<b>ready") && !page.contains('\u{1b}'), "{page}");
    assert!(page.contains("Take over") && page.contains("/assets/terminal.js"));
    let seen = vera.text(&path).await;
    assert!(seen.contains("Your role cannot type here") && !seen.contains("Take over"), "{seen}");

    let opens = async |who: &Browser, mode: &str, origin: Option<&str>| {
        let address = format!("{url}{path}/socket?mode={mode}");
        let mut request = who.client.get(address).header("cookie", &who.cookie);
        request = request.header("connection", "upgrade").header("upgrade", "websocket");
        request = request.header("sec-websocket-version", "13");
        request = request.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.send().await.unwrap().status()
    };
    assert_eq!(opens(&ann, "write", Some(&url)).await, StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(opens(&vera, "read", Some(&url)).await, StatusCode::SWITCHING_PROTOCOLS);
    // The program has no sandbox: typing is running commands on the host itself.
    assert!(olga.text(&path).await.contains("Only admins type"));
    assert_eq!(opens(&olga, "write", Some(&url)).await, StatusCode::FORBIDDEN);
    assert_eq!(opens(&vera, "write", Some(&url)).await, StatusCode::FORBIDDEN);
    assert_eq!(opens(&ann, "write", Some("http://evil.example")).await, StatusCode::FORBIDDEN);
    assert_eq!(opens(&ann, "write", None).await, StatusCode::FORBIDDEN);
    let nobody = Browser::new(&url);
    assert_eq!(opens(&nobody, "read", Some(&url)).await, StatusCode::UNAUTHORIZED);

    home.run(&["send", "types", "bye"]).ok();
    home.wait_for(&id, "succeeded");
    let ended = ann.text(&path).await;
    assert!(ended.contains("heard bye") && ended.contains("The run has ended"), "{ended}");
    assert!(!ended.contains("Take over"), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_searched_extended_and_deleted_and_the_mesh_shown_without_scripts() {
    let (home, url) = up();
    home.agent("sh", &["--sandbox", "none"]);
    home.run(&["mesh", "put", "build/api/status", "<b>green</b>"]).ok();
    let (mut ann, mut vera) = (Browser::new(&url), Browser::new(&url));
    ann.sign_in(&key(&home, "ann", "operator")).await;
    vera.sign_in(&key(&home, "vera", "viewer")).await;
    let token = csrf(&ann.text("/memory").await);
    let text = "the staging port is 8080 <script>alert(1)</script>";
    let typed = [("csrf", token.as_str()), ("into", "notes"), ("text", text), ("trust", "tool")];
    let bad = ann.post("/memory", &[&typed[..], &[("ttl", "soon")]].concat()).await;
    assert_eq!(bad.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(bad.text().await.unwrap().contains("the staging port is 8080 &#60;script"));
    let added = ann.post("/memory", &typed).await;
    assert_eq!(added.headers()[LOCATION], "/memory?did=added&collection=notes");
    let found = ann.text("/memory?collection=notes&q=staging+port").await;
    assert!(found.contains("8080 &#60;script&#62;") && found.contains("by ann"), "{found}");
    assert!(found.contains("</span> tool</span>") && !found.contains("<script>alert"), "{found}");
    assert!(ann.text("/memory?collection=other").await.contains("Nothing is remembered yet"));

    let seen = vera.text("/memory").await;
    assert!(seen.contains("8080") && !seen.contains("/forget") && !seen.contains("Add it"));
    let (_, rest) = found.split_once("action=\"/memory/").unwrap();
    let forget = format!("/memory/{}", rest.split('"').next().unwrap());
    let own = csrf(&seen);
    let refused = vera.post(&forget, &[("csrf", &own)]).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    let gone = ann.post(&forget, &[("csrf", &token)]).await;
    assert_eq!(gone.headers()[LOCATION], "/memory?did=forgotten");
    assert!(!ann.text("/memory").await.contains("8080"));

    let board = vera.text("/board?prefix=build/").await;
    for part in ["build/</span>", "api/</span>", "<strong>status</strong>", "&#60;b&#62;green"] {
        assert!(board.contains(part), "no `{part}` in {board}");
    }
    assert!(board.contains("history=build%2Fapi%2Fstatus#history"), "{board}");
    let past = "/board?prefix=build/&history=build%2Fapi%2Fstatus";
    let shown = vera.text(past).await;
    for part in ["1 change, newest first", "version 1</span>", "</span> written</span>", "by admin"]
    {
        assert!(shown.contains(part), "no `{part}` in {shown}");
    }
    home.run(&["mesh", "rm", "build/api/status"]).ok();
    let shown = vera.text(past).await;
    let card = "<strong>build/api/status</strong>";
    assert!(shown.contains(card) && shown.contains("</span> deleted</span>"), "{shown}");
    let none = vera.get("/board?history=nobody%2Fwrote").await;
    assert_eq!(none.status(), StatusCode::NOT_FOUND);
    assert!(none.text().await.unwrap().contains("Key not found: nobody/wrote"));
    assert!(vera.text("/board?prefix=other/").await.contains("No key begins with"));
    let asked = vera.text("/board?agent=sh&verb=write&object=plan").await;
    let can = home.run(&["acl", "can", "sh", "write", "plan", "-o", "json"]);
    let rule = can.json()["rule"].as_str().unwrap().to_owned();
    assert!(asked.contains("sh write plan") && asked.contains(&rule), "{rule}: {asked}");
    let agents = home.run(&["agent", "list", "-o", "json"]).ok().json();
    let id = agents[0]["id"].as_str().unwrap().to_owned();
    home.run(&["mail", "send", "sh", "look here"]).ok();
    let mailbox = vera.text(&format!("/board?of={id}")).await;
    assert!(mailbox.contains("Messages of sh") && mailbox.contains("look here"), "{mailbox}");
}
