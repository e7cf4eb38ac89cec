//! The whole product in this process, through the typed client: every operation of the API once
//! with real tools, memory and store, and what only the whole can show.
//!
//! Statuses and exact error texts are tested in the server's own crate.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::Duration;

use overmind_api::{
    AgentCreate, AgentPatch, ApprovalAnswer, BackupRequest, ForkRequest, KeyCreate, ListQuery,
    MemoryListQuery, MemorySearch, MemoryStore, PruneRequest, Role, Run, RunCreate, RunListQuery,
    RunStatus, TimelineData, ToolCallRequest, Verdict,
};
use overmind_client::{Client, ReplayItem, ReplayOptions, Target};
use overmind_node::app::App;
use overmind_node::config::{Config, Env, Flags};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

/// Directories that outlive a server.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        // A short path: a socket's has about a hundred bytes at most.
        let dir = tempfile::Builder::new().prefix("om-api-").tempdir_in("/tmp").unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    async fn start(&self) -> App {
        let text = |name| self.path(name).to_str().unwrap().to_owned();
        let (data, db, work) = (text("data"), text("elsewhere.db"), text("work"));
        let env = Env::from_pairs([
            ("OVERMIND_DATA", data.as_str()),
            ("OVERMIND_DB", &db),
            ("OVERMIND_WORKSPACE", &work),
            ("OVERMIND_LISTEN", "127.0.0.1:0"),
            ("OVERMIND_EMBEDDING_PROVIDER", "local"),
            ("OPENAI_API_KEY", "sk-proj-0123456789abcdef"),
        ]);
        let config = Config::load(&Flags::default(), &env, Path::new("/")).unwrap();
        App::start(config).await.unwrap()
    }

    fn token(&self) -> String {
        let token = std::fs::read_to_string(self.path("data/admin.token"));
        token.unwrap_or_else(|err| panic!("{err}: {:?}", std::fs::read_dir(self.path("data"))))
    }
}

fn tcp(app: &App) -> Target {
    app.server_file().url.as_deref().unwrap().parse().unwrap()
}

fn unix(app: &App) -> Target {
    Target::Unix(app.server_file().socket.clone().unwrap())
}

async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited for {what}"))
}

/// An agent of the rules. It runs no commands here: those need the program itself as their first
/// process, and this process is not it (the tests of the binary have them).
fn agent(name: &str) -> AgentCreate {
    AgentCreate {
        name: name.into(),
        role: "test".into(),
        model: "deterministic".into(),
        tools_allowed: ["read_file", "write_file", "store_memory", "search_memory"]
            .map(String::from)
            .into(),
        ..AgentCreate::default()
    }
}

fn run(agent: &str, task: &str) -> RunCreate {
    RunCreate { agent_id: agent.into(), task: task.into(), ..RunCreate::default() }
}

/// Follows a run to its end; ids of all items, and the last status.
async fn follow(client: &Client, run: &Run) -> (Vec<String>, RunStatus) {
    let options = ReplayOptions { follow: true, ..ReplayOptions::default() };
    let mut replay = client.run_replay(&run.id.to_string(), options).await.unwrap();
    let mut ids = Vec::new();
    let wait = async {
        loop {
            match replay.next().await.expect("a followed run ends with done").unwrap() {
                ReplayItem::Entry { id, .. } => ids.push(id),
                ReplayItem::Done(done) => return done.status,
            }
        }
    };
    let status = patiently("the run to end", wait).await;
    (ids, status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_and_runs_work_over_tcp_and_the_unix_socket() {
    let place = Place::new();
    let app = place.start().await;
    let token = place.token();
    for target in [unix(&app), tcp(&app)] {
        let client = Client::connect(target.clone(), Some(&token)).unwrap();
        assert!(client.health().await.unwrap().ok);
        assert!(client.ready().await.unwrap().ok);
        assert_eq!(client.version().await.unwrap().name, "overmind");

        let made = client.agent_create(&agent("worker"), Some("make")).await.unwrap();
        let id = made.id.to_string();
        assert_eq!(client.agent_create(&agent("worker"), Some("make")).await.unwrap().id, made.id);
        let patch = AgentPatch { role: Some(target.to_string()), ..AgentPatch::default() };
        let changed = client.agent_patch(&id, &patch, None).await.unwrap();
        let stale = client.agent_patch(&id, &patch, Some(made.version - 1)).await;
        assert_eq!(stale.unwrap_err().status(), Some(412));
        assert_eq!(client.agent_fetch(&id).await.unwrap(), changed);
        let versions = client.agent_versions(&id, &ListQuery::default()).await.unwrap().items;
        assert_eq!(versions.len(), usize::try_from(changed.version).unwrap());

        let started = client.run_create(&run(&id, "write: answer.txt: 42"), None).await.unwrap();
        let (_, status) = follow(&client, &started).await;
        let run_id = started.id.to_string();
        let ended = client.run_fetch(&run_id).await.unwrap();
        assert_eq!(
            (status, ended.status),
            (RunStatus::Succeeded, RunStatus::Succeeded),
            "{ended:?}"
        );
        let all = ListQuery::default();
        let calls = client.run_tool_calls(&run_id, &all).await.unwrap().items;
        assert_eq!(calls[0].tool_name, "write_file");
        assert_eq!(calls[0].result_json["ok"], true, "{:?}", calls[0]);
        let answer = std::fs::read_to_string(place.path("work/answer.txt")).unwrap();
        assert_eq!(answer, "42");
        assert!(!client.run_steps(&run_id, &all).await.unwrap().items.is_empty());
        assert_eq!(client.run_model_calls(&run_id, &all).await.unwrap().items, []);
        let events = client.run_events(&run_id, &all).await.unwrap().items;
        assert_eq!(events[0].kind, "run.queued");
        let verified = client.run_verify(&run_id).await.unwrap();
        assert!(verified.ok && verified.decided > 0, "{verified:?}");
        let cancel = client.run_cancel(&run_id).await.unwrap_err();
        assert_eq!(cancel.status(), Some(409));
    }
    assert_eq!(app.stop(pending()).await, 0);
    assert!(place.path("elsewhere.db").exists(), "OVERMIND_DB says where the state lies");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn direct_tool_calls_work_only_in_the_workspace() {
    let place = Place::new();
    let app = place.start().await;
    let client = Client::connect(unix(&app), Some(&place.token())).unwrap();
    client.agent_create(&agent("worker"), None).await.unwrap();
    let started =
        client.run_create(&run("worker", "write: a.txt: made by a run"), None).await.unwrap();
    follow(&client, &started).await;
    let id = started.id.to_string();
    let file = std::fs::read_to_string(place.path("work/a.txt")).unwrap();
    assert_eq!(file, "made by a run", "OVERMIND_WORKSPACE says where runs work");
    let call = async |tool_name: &str, args: Value| {
        let call = ToolCallRequest { tool_name: tool_name.into(), args };
        client.run_tool_call(&id, &call).await.unwrap()
    };
    let read = call("read_file", json!({"path": "a.txt"})).await;
    assert_eq!((&read["ok"], &read["content"]), (&json!(true), &json!("made by a run")), "{read}");
    let outside = call("read_file", json!({"path": "../elsewhere.db"})).await;
    assert_eq!(outside["ok"], false, "{outside}");
    let unknown = call("no_such_tool", json!({})).await;
    assert_eq!(
        (&unknown["error"]["code"], &unknown["error"]["message"]),
        (&json!("tool_not_allowed"), &json!("Tool 'no_such_tool' is not registered"))
    );
    let wrong = call("write_file", json!({"path": "b.txt", "content": true})).await;
    assert_eq!(wrong["ok"], false, "a boolean is no text: {wrong}");
    assert!(client.tool_list().await.unwrap().iter().any(|tool| tool.name == "write_file"));
    app.stop(pending()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_ranks_by_words_lists_and_deletes() {
    let place = Place::new();
    let app = place.start().await;
    let client = Client::connect(tcp(&app), Some(&place.token())).unwrap();
    for text in ["gardening in the rain", "python sqlite fastapi"] {
        let metadata = json!({"n": 1});
        let item = MemoryStore { metadata, ..MemoryStore::new("notes", text) };
        let stored = client.memory_store(&item).await.unwrap();
        assert!(stored.ok && stored.item.dims == 0);
        assert_eq!(stored.item.embedding_model, "fts5-bm25");
    }
    let search = async |query: &str, top_k| {
        client.memory_search(&MemorySearch::new("notes", query, top_k)).await.unwrap().results
    };
    let found = search("fastapi sqlite", 2).await;
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].item.text, "python sqlite fastapi");
    assert!(found[0].score > found[1].score);
    // Text that is syntax elsewhere is plain text here.
    for hostile in ["\"", "a OR", "NEAR(", "col:x", "*", "'; DROP TABLE memory_items; --"] {
        search(hostile, 5).await;
    }
    let listed = client.memory_list(&MemoryListQuery::default()).await.unwrap().items;
    assert_eq!(listed[0].text, "python sqlite fastapi", "newest first");
    client.memory_delete(&listed[0].id.to_string()).await.unwrap();
    assert_eq!(search("fastapi", 5).await.len(), 0);
    app.stop(pending()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_routes_show_metrics_keys_audits_backups_and_retention() {
    let place = Place::new();
    let app = place.start().await;
    let admin = Client::connect(tcp(&app), Some(&place.token())).unwrap();
    let made = admin
        .key_create(&KeyCreate { name: "ci".into(), role: Role::Operator, colony: None })
        .await
        .unwrap();
    let operator = Client::connect(tcp(&app), Some(&made.secret)).unwrap();
    operator.agent_create(&agent("worker"), None).await.unwrap();
    let started = operator.run_create(&run("worker", "write: c.txt: x"), None).await.unwrap();
    assert_eq!(started.created_by, "ci");
    follow(&operator, &started).await;
    assert_eq!(operator.key_list(&ListQuery::default()).await.unwrap_err().status(), Some(403));

    let key = admin.provider_key("openai").await.unwrap();
    assert_eq!((key.configured, key.masked.as_str()), (true, "sk-p...cdef"));
    assert!(key.source.contains("OPENAI_API_KEY"), "{}", key.source);
    let status = operator.status().await.unwrap();
    assert!(status.store.location.ends_with("elsewhere.db"), "{status:?}");
    assert!(operator.metrics().await.unwrap().contains("overmind_http_requests_total"));
    assert_eq!(operator.openapi().await.unwrap(), overmind_server::openapi());

    // From page to page through all events: each number once, downwards. Those that name keys are
    // shown to admins alone.
    let (mut all, mut shown) = (Vec::new(), Vec::new());
    for (by, numbers) in [(&admin, &mut all), (&operator, &mut shown)] {
        let three = ListQuery { limit: Some(3), cursor: None };
        let mut page = by.event_list(&three).await.unwrap();
        numbers.extend(page.items.iter().map(|event| (event.global, event.kind.clone())));
        while let Some(next) = by.page_next(&page).await.unwrap() {
            numbers.extend(next.items.iter().map(|event| (event.global, event.kind.clone())));
            page = next;
        }
    }
    let numbers: Vec<u64> = all.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=status.store.events).rev().collect::<Vec<_>>());
    let before = all.len();
    all.retain(|(_, kind)| kind != "key.created");
    assert_eq!((all.len(), shown), (before - 1, all));

    let audit = admin.audit_verify().await.unwrap();
    assert!(audit.ok, "{audit:?}");
    let path = place.path("copy.db").to_str().unwrap().to_owned();
    let done = admin.backup(&BackupRequest { path: path.clone() }).await.unwrap();
    assert_eq!(done.bytes, std::fs::metadata(path).unwrap().len());
    let pruned = admin.prune(&PruneRequest { older_than_seconds: 3600 }).await.unwrap();
    assert_eq!(pruned.runs, 0);

    let id = made.key.id.to_string();
    assert!(admin.key_revoke(&id).await.unwrap().revoked_at.is_some());
    let refused = operator.status().await.unwrap_err();
    assert_eq!(refused.status(), Some(401));
    assert!(refused.hint().is_some());
    app.stop(pending()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forks_diffs_and_filters_show_the_differences() {
    let place = Place::new();
    let app = place.start().await;
    let client = Client::connect(tcp(&app), Some(&place.token())).unwrap();
    client.agent_create(&agent("worker"), None).await.unwrap();
    let original = client.run_create(&run("worker", "write: b.txt: one"), None).await.unwrap();
    follow(&client, &original).await;
    let id = original.id.to_string();
    let fork = ForkRequest { at: 1, ..ForkRequest::default() };
    let fork = client.run_fork(&id, &fork).await.unwrap();
    follow(&client, &fork).await;
    assert_eq!(fork.forked_from.unwrap().run_id, original.id);
    let diff = client.run_diff(&id, &fork.id.to_string()).await.unwrap();
    assert!(diff.common >= 1 && !diff.rows.is_empty(), "{diff:?}");
    let query = RunListQuery {
        status: vec![RunStatus::Succeeded, RunStatus::Queued],
        agent: Some("worker".into()),
        ..RunListQuery::default()
    };
    let runs = client.run_list(&query).await.unwrap().items;
    assert_eq!(runs.iter().map(|run| run.id).collect::<Vec<_>>(), [fork.id, original.id]);
    client.agent_disable("worker").await.unwrap();
    let refused = client.run_create(&run("worker", "x"), None).await.unwrap_err();
    assert_eq!((refused.status(), refused.to_string().as_str()), (Some(409), "Agent is disabled"));
    app.stop(pending()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_resumes_after_a_restart_of_the_server() {
    let place = Place::new();
    let app = place.start().await;
    let client = Client::connect(unix(&app), Some(&place.token())).unwrap();
    let careful = AgentCreate { approvals: Some(vec!["*".into()]), ..agent("careful") };
    client.agent_create(&careful, None).await.unwrap();
    let started = client.run_create(&run("careful", "write: a.txt: yes"), None).await.unwrap();
    let id = started.id.to_string();
    let options = ReplayOptions { follow: true, max_resumes: 50, ..ReplayOptions::default() };
    let mut replay = client.run_replay(&id, options).await.unwrap();
    let mut ids = Vec::new();
    let asked = async {
        loop {
            let item = replay.next().await.unwrap().unwrap();
            let ReplayItem::Entry { id, entry, .. } = item else { panic!("{item:?}") };
            ids.push(id);
            if matches!(&entry.data, TimelineData::Event(event) if event.kind.contains("approval"))
            {
                return;
            }
        }
    };
    patiently("the approval to be asked for", asked).await;
    app.stop(pending()).await;

    let app = place.start().await;
    let wait = async {
        loop {
            let row = client.run_fetch(&id).await.unwrap();
            if let (RunStatus::AwaitingApproval, Some(approval)) = (row.status, row.approval_id) {
                return approval;
            }
            tokio::task::yield_now().await;
        }
    };
    let approval = patiently("the run to wait again", wait).await.to_string();
    let answer = ApprovalAnswer { decision: Verdict::Approve, reason: None };
    client.run_decide(&id, &approval, &answer).await.unwrap();
    let rest = async {
        loop {
            match replay.next().await.unwrap().unwrap() {
                ReplayItem::Entry { id, .. } => ids.push(id),
                ReplayItem::Done(done) => return done.status,
            }
        }
    };
    assert_eq!(patiently("the run to end", rest).await, RunStatus::Succeeded);
    let (stored, _) = follow(&client, &started).await;
    assert_eq!(ids, stored, "nothing was lost and nothing came twice");
    assert_eq!(std::fs::read_to_string(place.path("work/a.txt")).unwrap(), "yes");
    app.stop(pending()).await;
}
