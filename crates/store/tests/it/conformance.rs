use std::sync::Arc;

use overmind_core::store::Store;
use overmind_store::{Options, Sqlite};
use overmind_testkit::store_conformance;

#[tokio::test]
async fn sqlite_implements_the_store_port() {
    let dir = tempfile::tempdir().unwrap();
    let next = std::cell::Cell::new(0);
    store_conformance::all(&|| {
        next.set(next.get() + 1);
        let path = dir.path().join(format!("{}.db", next.get()));
        Arc::new(Sqlite::open(Options::new(path)).unwrap()) as Arc<dyn Store>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_implements_records_as_the_port_says() {
    let dir = tempfile::tempdir().unwrap();
    let next = std::cell::Cell::new(0);
    store_conformance::records::all(&|| {
        next.set(next.get() + 1);
        let path = dir.path().join(format!("r{}.db", next.get()));
        Arc::new(Sqlite::open(Options::new(path)).unwrap())
    })
    .await;
}

#[tokio::test]
async fn sqlite_implements_vault_rows_as_the_port_says() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(Options::new(dir.path().join("v.db"))).unwrap();
    store_conformance::vault::all(&store, &store).await;
    assert_eq!(store.audit().await.unwrap().findings, []);
}
