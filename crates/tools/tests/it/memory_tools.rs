//! `store_memory` and `search_memory`, as far as they are the gateway's.

use overmind_core::ids::ColonyId;
use overmind_core::memory::MemoryError;
use overmind_core::store::StoreError;
use serde_json::json;

use crate::support::{Bench, EFFECT, SESSION, is};

#[tokio::test]
async fn a_stored_text_records_its_session_and_the_calls_key() {
    let bench = Bench::new();
    let args = json!({"text": " kept as it is ", "metadata": {"n": 1}});
    let result = bench.good("store_memory", args).await;
    assert_eq!(
        result,
        json!({"ok": true, "item": {
            "id": "mem_00000000000000000000000000000077",
            "collection": "default",
            "text": " kept as it is ",
            "embedding_model": "test-model",
            "dims": 2,
            "metadata_json": {"n": 1},
            "created_at": "1970-01-01T00:00:00.000000+00:00",
            "trust": "agent",
        }})
    );
    let drafts = bench.memory.drafts.lock().unwrap();
    assert_eq!(drafts[0].key, Some(EFFECT));
    assert_eq!(drafts[0].source, Some(SESSION));
    assert_eq!(drafts[0].colony, ColonyId::DEFAULT);
}

#[tokio::test]
async fn a_search_has_defaults_and_returns_scores() {
    let bench = Bench::new();
    bench.good("store_memory", json!({"text": "one", "collection": "c"})).await;
    let result = bench.good("search_memory", json!({"query": "one"})).await;
    assert_eq!(result["results"][0]["score"], json!(1.5));
    assert_eq!(result["results"][0]["text"], json!("one"));
    let queries = bench.memory.queries.lock().unwrap();
    assert_eq!((queries[0].collection.as_str(), queries[0].top_k), ("default", 5));
}

#[tokio::test]
async fn search_results_are_bounded() {
    let bench = Bench::new();
    for n in 0..50 {
        let text = "é".repeat(45_000);
        let metadata = if n == 0 { json!({"big": "m".repeat(5000)}) } else { json!({"n": n}) };
        bench.good("store_memory", json!({"text": text, "metadata": metadata})).await;
    }
    let result = bench.good("search_memory", json!({"query": "é", "top_k": 50})).await;
    assert!(result.to_string().len() < 150_000, "{} bytes", result.to_string().len());
    let first = &result["results"][0];
    assert_eq!(first["text_bytes"], json!(90_000));
    assert_eq!(first["metadata_json"], json!({}));
    assert_eq!(first["metadata_bytes"], json!(5010));
    assert_eq!(result["results"][1]["metadata_json"], json!({"n": 1}));
}

#[tokio::test]
async fn memory_errors_say_whether_to_retry() {
    let bench = Bench::new();
    let path = std::path::PathBuf::from("/d/o.db");
    for (err, wanted) in [
        (
            MemoryError::Embedding { message: "no answer".into(), transient: true },
            is("temporarily_unavailable", "embedding the text: no answer"),
        ),
        (
            MemoryError::Embedding { message: "bad key".into(), transient: false },
            is("tool_error", "embedding the text: bad key"),
        ),
        (MemoryError::Invalid { message: "text is long".into() }, is("bad_args", "text is long")),
        (
            MemoryError::Store(StoreError::Full { path, detail: "0 left".into() }),
            is(
                "temporarily_unavailable",
                "the disk holding /d/o.db is full: 0 left; free space and try again",
            ),
        ),
        (
            MemoryError::Store(StoreError::Closed { detail: "draining".into() }),
            is("tool_error", "the store is closed: draining"),
        ),
    ] {
        *bench.memory.down.lock().unwrap() = Some(err);
        assert_eq!(bench.bad("store_memory", json!({"text": "x"})).await, wanted);
    }
}
