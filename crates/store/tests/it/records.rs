//! Records over what a process lives through: an end, a kill, a backup; and what a secret of the
//! vault may change of them.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use overmind_core::ids::RecordId;
use overmind_core::record::decide::{self, Draft, Put, Stamp};
use overmind_core::record::rows::{ChangesError, ChangesQuery, RecordQuery, RecordRows};
use overmind_core::record::{Owner, Record};
use overmind_core::store::{Commit, EventQuery, Store, StoreError, StreamId};
use overmind_core::vault::rows::VaultRows;
use overmind_store::{Replace, Sqlite, restore};
use overmind_testkit::store_conformance::at;
use overmind_testkit::store_conformance::records::{NOTE, draft, key};
use serde_json::{Value, json};

use crate::crash::{DIR, told, watch};
use crate::open;

fn stamp() -> Stamp<'static> {
    Stamp { now: at(1), by: "ann" }
}

fn decided(found: Option<&Record>, draft: Draft, id: u128) -> Put {
    decide::put(&NOTE, found, draft, RecordId::from_u128(id), stamp()).unwrap()
}

fn commit_of(writes: impl IntoIterator<Item = decide::RecordWrite>) -> Commit {
    let mut commit = Commit::default();
    writes.into_iter().for_each(|write| write.join(&mut commit));
    commit
}

async fn put(store: &Sqlite, draft: Draft, id: u128) -> Result<(), StoreError> {
    let found = store.record_fetch(draft.key.clone()).await.unwrap();
    let write = decided(found.as_ref(), draft, id).write;
    store.commit(commit_of(write)).await.map(drop)
}

async fn all(store: &Sqlite) -> Vec<Record> {
    let query = RecordQuery { limit: 1000, ..RecordQuery::default() };
    store.record_list(query).await.unwrap().records
}

#[tokio::test]
async fn records_survive_a_restart_and_are_in_a_backup() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 0..5 {
        put(&store, draft(&format!("n{n}"), json!({ "n": n })), n).await.unwrap();
    }
    let gone = store.record_fetch(key("n4")).await.unwrap().unwrap();
    store.commit(commit_of(decide::delete(&gone, stamp()).into_write())).await.unwrap();
    let before = all(&store).await;
    let copy = dir.path().join("copy.db");
    store.backup(copy.clone()).await.unwrap();
    let query = |after| ChangesQuery { after, limit: 100, ..ChangesQuery::default() };
    let told = store.record_changes(query(0)).await.unwrap();
    drop(store);

    let store = open(dir.path());
    assert_eq!(all(&store).await, before);
    assert_eq!(store.record_changes(query(0)).await.unwrap(), told);
    put(&store, draft("n9", json!({})), 9).await.unwrap();
    let later = store.record_changes(query(told.at)).await.unwrap();
    assert_eq!(later.news.len(), 1, "the numbers go on");
    store.checkpoint(at(2)).await.unwrap();
    assert_eq!(store.audit().await.unwrap().findings, []);
    drop(store);

    let fresh = tempfile::tempdir().unwrap();
    restore(&copy, &fresh.path().join("s.db"), Replace::Never).unwrap();
    let store = open(fresh.path());
    assert_eq!(all(&store).await, before);
    // A watcher of the replaced store does not wait forever.
    let ahead = store.record_changes(query(later.at)).await.unwrap_err();
    assert!(matches!(ahead, ChangesError::Ahead { .. }), "{ahead:?}");
}

/// Puts, sets the status of and deletes records without end from four tasks, and says
/// `<writer> <n>` when the n-th round is acknowledged. A record that counts the rounds changes in the
/// same commit.
#[test]
#[ignore = "the crash test runs it in processes of its own"]
fn the_child_that_puts_until_it_dies() {
    let Some(dir) = told(DIR) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(open(Path::new(&dir)));
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..4_u128 {
            let store = Arc::clone(&store);
            writers.spawn(async move { write_for_ever(&store, writer).await });
        }
        writers.join_all().await;
    });
}

async fn write_for_ever(store: &Sqlite, writer: u128) {
    let counter = format!("w{writer}");
    loop {
        let found = store.record_fetch(key(&counter)).await.unwrap();
        let n = found.as_ref().map_or(0, |found| found.spec["n"].as_u64().unwrap()) + 1;
        let mut counts = draft(&counter, json!({ "n": n, "agent": format!("a{}", n % 2) }));
        counts.labels.insert("odd".into(), (n % 2).to_string());
        let put = decided(found.as_ref(), counts, writer + 1);
        let child = format!("w{writer}-{}", n.div_ceil(2));
        let of_child = match store.record_fetch(key(&child)).await.unwrap() {
            Some(found) => decide::delete(&found, stamp()).into_write(),
            None => {
                let owner = Some(Owner::Record(put.record.id));
                let id = (writer + 1) << 64 | u128::from(n);
                decided(
                    None,
                    Draft { owner, ..draft(&child, json!({ "text": "x".repeat(3_000) })) },
                    id,
                )
                .write
            }
        };
        store.commit(commit_of(put.write.into_iter().chain(of_child))).await.unwrap();
        let mut out = std::io::stdout().lock();
        out.write_all(format!("{writer} {n}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn a_kill_keeps_every_acknowledged_record_its_index_and_its_history() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = HashMap::new();
    for kill_after in [1, 17, 60, 5] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "records::the_child_that_puts_until_it_dies",
                "--ignored",
                "--nocapture",
            ])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        watch(child, kill_after, &mut acknowledged);
        tokio::runtime::Runtime::new().unwrap().block_on(check(dir.path(), &acknowledged));
    }
    assert!(!acknowledged.is_empty());
}

async fn check(dir: &Path, acknowledged: &HashMap<u64, u64>) {
    let store = open(dir);
    assert_eq!(store.audit().await.unwrap().findings, []);
    let records = all(&store).await;
    for (writer, least) in acknowledged {
        let counter = store.record_fetch(key(&format!("w{writer}"))).await.unwrap().unwrap();
        let n = counter.spec["n"].as_u64().unwrap();
        assert!(n >= *least && counter.version == n, "{least} was acknowledged, {n} is there");
        // A child is created in one round and deleted in the next: at most one exists.
        let owner = Some(Owner::Record(counter.id));
        let owned: Vec<_> = records.iter().filter(|record| record.owner == owner).collect();
        assert_eq!(owned.len(), usize::from(n % 2 == 1), "round {n}: {owned:?}");
        let (odd, agent) = (format!("odd={}", n % 2), format!("a{}", n % 2));
        for (selector, term, there) in [
            (odd.as_str(), None, true),
            ("odd", Some(("agent".to_owned(), agent)), true),
            ("odd", Some(("agent".to_owned(), format!("a{}", (n + 1) % 2))), false),
        ] {
            let query = RecordQuery {
                kind: Some(counter.key.kind.clone()),
                selector: overmind_core::record::Selector::parse(selector).unwrap(),
                term,
                limit: 100,
                ..RecordQuery::default()
            };
            let found = store.record_list(query).await.unwrap().records;
            assert_eq!(found.contains(&counter), there, "the index says what the record says");
        }
    }
    // The last event of each record agrees with its row.
    let mut last: HashMap<String, Value> = HashMap::new();
    let mut after = 0;
    loop {
        let stream = Some(StreamId::Records);
        let query = EventQuery { stream, after, kinds: &[], limit: 10_000 };
        let events = store.events(query).await.unwrap();
        let Some(newest) = events.last() else { break };
        after = newest.seq;
        for event in &events {
            let value = event.value();
            let id = value["id"].as_str().unwrap().to_owned();
            let spec =
                if &*event.kind == decide::DELETED { Value::Null } else { value["spec"].clone() };
            last.insert(id, spec);
        }
    }
    last.retain(|_, spec| !spec.is_null());
    let rows = records.into_iter().map(|record| (record.id.to_string(), record.spec)).collect();
    assert_eq!(last, rows);
}

#[tokio::test]
async fn a_vault_secret_changes_no_name_and_is_in_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let secret = "zanzibar-quartz-42";
    assert!(VaultRows::learn(&store, &[secret]));
    let said =
        json!({ "agent": secret, "prompt": format!("say {secret}"), "env": { "id": secret } });
    put(&store, draft("a", said), 1).await.unwrap();
    let record = store.record_fetch(key("a")).await.unwrap().unwrap();
    let want = json!({
        "agent": secret,
        "prompt": "say [redacted:secret]",
        "env": { "id": "[redacted:secret]" },
    });
    assert_eq!(record.spec, want, "what an agent is called stays, by the rule of events");
    let page = overmind_core::store::Page { limit: 1, after: None };
    let event = store.events_newest(None, page).await.unwrap().remove(0).value();
    assert_eq!(event["spec"], want);
    let err = put(&store, draft(secret, json!({})), 2).await.unwrap_err().to_string();
    assert!(err.contains("its name holds a secret") && !err.contains(secret), "{err}");
    let mut held = draft("b", json!({}));
    held.finalizers = Some(vec![secret.into()]);
    assert!(put(&store, held, 3).await.unwrap_err().to_string().contains("a finalizer holds"));
}
