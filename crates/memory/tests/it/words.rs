//! Storing, and finding by words.

use std::sync::Arc;

use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::memory::{Memory, MemoryDraft, MemoryQuery};
use overmind_core::store::{Change, Commit, StreamId};
use overmind_memory::{LOCAL_MODEL, MAX_TEXT_BYTES};
use serde_json::{Value, json};

use crate::support::{Bench, ask, draft, from_session, keyed, refused};

#[tokio::test]
async fn the_best_match_is_first_and_recent_texts_fill_the_rest() {
    let bench = Bench::local();
    bench.add("python sqlite fastapi").await;
    bench.add("a recipe for bread").await;
    let hits = bench.find("fastapi sqlite", 5).await;
    assert_eq!(hits.len(), 2);
    assert_eq!(hits[0].item.text, "python sqlite fastapi");
    assert!(hits[0].score > 0.0, "a real score");
    assert_eq!(hits[1].item.text, "a recipe for bread");
    assert_eq!(hits[1].score, 0.0, "recent, not a match");
}

#[tokio::test]
async fn scores_are_real_numbers_and_rare_words_count_more() {
    let bench = Bench::local();
    for n in 0..20 {
        bench.add(&format!("server note {n}")).await;
    }
    bench.add("server with a zeppelin").await;
    let hits = bench.find("server zeppelin", 10).await;
    assert_eq!(hits.len(), 10);
    assert_eq!(hits[0].item.text, "server with a zeppelin");
    assert!(hits[0].score > 2.0 * hits[1].score, "{} {}", hits[0].score, hits[1].score);
    assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
    assert!(hits.iter().all(|hit| hit.score > 0.0), "all of them match");
}

#[tokio::test]
async fn one_matching_word_is_enough() {
    let bench = Bench::local();
    bench.add("alpha").await;
    bench.add("beta").await;
    bench.add("gamma").await;
    assert_eq!(bench.texts("beta alpha nothing", 2).await.len(), 2);
    assert!(!bench.texts("beta alpha nothing", 2).await.contains(&"gamma".to_owned()));
}

#[tokio::test]
async fn without_a_match_the_result_is_empty() {
    let bench = Bench::local();
    assert!(bench.find("anything", 5).await.is_empty());
    bench.add("something").await;
    assert!(bench.find("anything", 5).await.is_empty());
    assert!(bench.find("?!*", 5).await.is_empty());
}

#[tokio::test]
async fn a_blank_query_returns_the_newest_items() {
    let bench = Bench::local();
    for text in ["one", "two", "three"] {
        bench.add(text).await;
    }
    for blank in ["", "  ", "\n\t"] {
        assert_eq!(bench.texts(blank, 2).await, ["three", "two"]);
    }
    assert!(bench.find("", 2).await.iter().all(|hit| hit.score == 0.0));
}

#[tokio::test]
async fn hostile_queries_are_plain_text() {
    let bench = Bench::local();
    bench.add("the drop table of title and quote").await;
    bench.add("unrelated").await;
    for query in [
        r#"title:"drop" table"#,
        "drop*",
        "\"drop",
        "drop AND NOT table OR",
        "NEAR(drop table, 2)",
        "-drop ^table {quote}",
        "'; DROP TABLE memory_items; --",
        "drop\u{0}table",
        "(((drop",
        "DROP",
    ] {
        let hits = bench.find(query, 1).await;
        assert_eq!(hits.len(), 1, "{query}");
        assert!(hits[0].score > 0.0, "{query}");
        assert!(hits[0].item.text.contains("drop table"), "{query}");
    }
    // A prefix is not a match, nor is a column's name a filter.
    assert!(bench.find("dro*", 5).await.is_empty());
    assert!(bench.find("text:nothing", 5).await.is_empty());
    let long = "drop ".repeat(20_000);
    assert_eq!(bench.find(&long, 1).await.len(), 1);
}

#[tokio::test]
async fn words_match_in_any_case_and_with_accents_in_either_form() {
    let bench = Bench::local();
    bench.add("Straße zum Café").await;
    for query in ["café", "CAFÉ", "cafe\u{301}", "straße"] {
        assert_eq!(bench.find(query, 1).await.len(), 1, "{query}");
    }
}

#[tokio::test]
async fn collections_and_colonies_are_separate() {
    let bench = Bench::local();
    bench.add("shared word").await;
    let other = MemoryDraft { collection: "other".into(), ..draft("shared word elsewhere") };
    bench.memory.store(other).await.unwrap();
    let foreign = MemoryDraft { colony: ColonyId::from_u128(99), ..draft("shared word abroad") };
    bench.memory.store(foreign).await.unwrap();
    assert_eq!(bench.texts("shared", 50).await, ["shared word"]);
    assert_eq!(bench.texts("", 50).await, ["shared word"]);
    let query = MemoryQuery { colony: ColonyId::from_u128(99), ..ask("word", 5) };
    let hits = bench.memory.search(query).await.unwrap();
    assert_eq!(hits[0].item.text, "shared word abroad");
    assert_eq!(hits.len(), 1);
}

#[tokio::test]
async fn an_item_is_stored_unchanged_with_its_event() {
    let bench = Bench::local();
    let text = "  not trimmed \n";
    let given = MemoryDraft { metadata: json!({"k": [1]}), ..draft(text) };
    let item = bench.memory.store(given).await.unwrap();
    assert_eq!(item.text, text);
    assert_eq!(item.metadata, json!({"k": [1]}));
    assert_eq!((item.embedding_model.as_str(), item.embedding.len()), (LOCAL_MODEL, 0));
    assert_eq!(bench.store.memory_fetch(item.id).await.unwrap(), Some(item.clone()));
    let events = bench.stored_events().await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].stream, StreamId::System);
    let payload = events[0].value();
    assert_eq!(payload["item_id"], json!(item.id));
    assert_eq!(payload["bytes"], json!(text.len()));
}

#[tokio::test]
async fn memory_events_of_a_session_are_in_its_own_stream() {
    let bench = Bench::local();
    let session = SessionId::from_u128(5);
    let item = bench.memory.store(from_session("mine", session)).await.unwrap();
    assert_eq!(item.source, Some(session));
    assert_eq!(bench.stored_events().await[0].stream, StreamId::Session(session));
}

#[tokio::test]
async fn the_same_key_stores_once_and_returns_the_first_item() {
    let bench = Bench::local();
    let first = bench.memory.store(keyed("first", 7)).await.unwrap();
    let again = bench.memory.store(keyed("second, ignored", 7)).await.unwrap();
    assert_eq!(first, again);
    let other = bench.memory.store(keyed("other", 8)).await.unwrap();
    assert_ne!(first.id, other.id);
    assert_eq!(bench.texts("", 50).await, ["other", "first"]);
    assert_eq!(bench.stored_events().await.len(), 2);
    // Without a key, the same text is stored once per call.
    assert_ne!(bench.add("twice").await.id, bench.add("twice").await.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_stores_with_one_key_create_one_item_and_one_event() {
    let bench = Arc::new(Bench::local());
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..32 {
        let bench = bench.clone();
        tasks.spawn(async move { bench.memory.store(keyed(&format!("text {n}"), 9)).await });
    }
    let items = tasks.join_all().await;
    let first = items[0].as_ref().unwrap();
    assert!(items.iter().all(|item| item.as_ref().unwrap() == first));
    assert_eq!(bench.texts("", 50).await.len(), 1);
    assert_eq!(bench.stored_events().await.len(), 1);
}

#[tokio::test]
async fn a_repeated_call_whose_item_was_deleted_does_not_report_it_as_stored() {
    let bench = Bench::local();
    let item = bench.memory.store(keyed("gone", 7)).await.unwrap();
    let delete = Commit { changes: vec![Change::MemoryDelete(item.id)], ..Commit::default() };
    bench.store.commit(delete).await.unwrap();
    let message = refused(bench.memory.store(keyed("gone", 7)).await);
    assert_eq!(message, "this call stored its text before, and the item was deleted since");
    assert!(bench.find("", 5).await.is_empty());
}

#[tokio::test]
async fn a_secret_is_masked_before_it_is_stored_and_returned() {
    let bench = Bench::local();
    let given = MemoryDraft {
        metadata: json!({"note": "hunter2-is-my-password"}),
        ..draft("the word is hunter2-is-my-password, remember")
    };
    let item = bench.memory.store(given).await.unwrap();
    assert!(!item.text.contains("hunter2"), "{}", item.text);
    assert!(item.text.contains("remember"));
    assert!(!item.metadata.to_string().contains("hunter2"));
    assert_eq!(bench.store.memory_fetch(item.id).await.unwrap(), Some(item));
}

#[tokio::test]
async fn values_out_of_bounds_are_refused_by_name() {
    let bench = Bench::local();
    let store = async |change: fn(&mut MemoryDraft)| {
        let mut given = draft("x");
        change(&mut given);
        bench.memory.store(given).await
    };
    store(|d| d.text = "x".repeat(MAX_TEXT_BYTES)).await.unwrap();
    store(|d| d.collection = "é".repeat(200)).await.unwrap();
    for (change, wanted) in [
        (
            (|d| d.text = "x".repeat(100_001)) as fn(&mut MemoryDraft),
            "text must be at most 100000 bytes, got 100001",
        ),
        (|d| d.collection = "é".repeat(201), "collection must be at most 200 characters"),
        (|d| d.metadata = Value::Null, "metadata must be an object"),
        (
            |d| d.metadata = json!({"k": "x".repeat(16_384)}),
            "metadata must be at most 16384 bytes of JSON, got 16392",
        ),
    ] {
        assert_eq!(refused(store(change).await), wanted);
    }
    for (top_k, wanted) in [(0, "top_k must be >= 1"), (51, "top_k must be <= 50")] {
        assert_eq!(refused(bench.memory.search(ask("x", top_k)).await), wanted);
    }
    let long = "x".repeat(100_001);
    let wanted = "query must be at most 100000 bytes, got 100001";
    assert_eq!(refused(bench.memory.search(ask(&long, 1)).await), wanted);
}
