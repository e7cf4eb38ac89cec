//! Items with lifetimes, replacements, filters, sources, and new vectors.

use std::sync::Arc;
use std::time::Duration;

use overmind_core::memory::{
    Memory, MemoryDraft, MemoryError, MemoryFilter, MemoryQuery, Provenance, Reembedded, Trust,
    named_key,
};
use overmind_core::store::{EventQuery, LogEvent, StoreError};
use overmind_core::time::{Clock, Timestamp};
use overmind_memory::{Embedder, MAX_PROVENANCE_BYTES};
use serde_json::json;

use crate::endpoint::{Endpoint, meaning};
use crate::support::{Bench, ask, draft, refused};

fn ends(text: &str, at: Timestamp) -> MemoryDraft {
    MemoryDraft { expires_at: Some(at), ..draft(text) }
}

async fn events(bench: &Bench, kinds: &'static [&'static str]) -> Vec<LogEvent> {
    bench.store.events(EventQuery { stream: None, after: 0, kinds, limit: 1000 }).await.unwrap()
}

#[tokio::test]
async fn expired_items_are_hidden_and_later_collected_with_an_event() {
    let bench = Bench::local();
    let now = bench.clock.now();
    let item =
        bench.memory.store(ends("bee soon", now.after(Duration::from_secs(60)))).await.unwrap();
    bench.add("bee always").await;
    assert_eq!(bench.texts("bee", 5).await.len(), 2);
    assert_eq!(bench.memory.collect(10).await.unwrap(), 0, "it is not time");
    bench.clock.advance(Duration::from_secs(60));
    for query in ["bee", "soon", ""] {
        assert!(!bench.texts(query, 5).await.contains(&"bee soon".into()), "{query}");
    }
    assert!(bench.store.memory_fetch(item.id).await.unwrap().is_some(), "not yet collected");
    assert_eq!(bench.memory.collect(10).await.unwrap(), 1);
    assert_eq!(bench.store.memory_fetch(item.id).await.unwrap(), None);
    assert_eq!(bench.memory.collect(10).await.unwrap(), 0);
    let told = events(&bench, &["memory.expired"]).await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].value()["item_ids"], json!([item.id]));
    let past = refused(bench.memory.store(ends("late", bench.clock.now())).await);
    assert_eq!(past, "expires_at must be later than now");
}

#[tokio::test]
async fn a_superseding_item_replaces_the_old_one_in_results() {
    let endpoint = Endpoint::start(meaning).await;
    for embedder in [None, Some(endpoint.embedder("m", None) as Arc<dyn Embedder>)] {
        let bench = Bench::new(embedder);
        let old = bench.add("the cat lives in Oslo").await;
        let next = MemoryDraft { supersedes: Some(old.id), ..draft("the cat lives in Rome") };
        let new = bench.memory.store(next.clone()).await.unwrap();
        assert_eq!(new.supersedes, Some(old.id));
        assert_eq!(bench.texts("cat", 5).await, ["the cat lives in Rome"]);
        assert_eq!(bench.texts("", 5).await, ["the cat lives in Rome"]);
        let all = MemoryQuery { history: true, ..ask("Oslo", 5) };
        let found = bench.memory.search(all).await.unwrap();
        assert_eq!(found[0].item.superseded_by, Some(new.id));
        let again = bench.memory.store(next).await.unwrap_err();
        assert!(matches!(again, MemoryError::Store(StoreError::Conflict { .. })), "{again:?}");
        let payload = bench.stored_events().await[1].value();
        assert_eq!(payload["supersedes"], json!(old.id));
    }
}

#[tokio::test]
async fn the_event_of_a_replaced_text_has_both_origins() {
    let bench = Bench::local();
    let of = |author: &str, trust, event: Option<&str>| Provenance {
        author: author.into(),
        trust,
        event: event.map(Into::into),
    };
    let web = of("fetch", Trust::Untrusted, Some("run_1.7"));
    let old = MemoryDraft { provenance: web, ..draft("the door code is 1") };
    let old = bench.memory.store(old).await.unwrap();
    let vouched = MemoryDraft {
        provenance: of("op", Trust::User, None),
        supersedes: Some(old.id),
        ..draft("the door code is 1")
    };
    bench.memory.store(vouched).await.unwrap();
    let told = bench.stored_events().await;
    let (first, second) = (told[0].value(), told[1].value());
    assert_eq!(first.get("was"), None, "{first}");
    assert_eq!((&second["author"], &second["trust"]), (&json!("op"), &json!("user")));
    let was = json!({"author": "fetch", "trust": "untrusted", "source_event": "run_1.7"});
    assert_eq!(second["was"], was);
}

#[tokio::test]
async fn a_filter_applies_to_every_result() {
    let endpoint = Endpoint::start(meaning).await;
    for embedder in [None, Some(endpoint.embedder("m", None) as Arc<dyn Embedder>)] {
        let bench = Bench::new(embedder);
        for n in 0..40 {
            let metadata = json!({"n": n, "lang": if n % 4 == 0 { "rust" } else { "c" }});
            let text = format!("a note about the cat, number {n}");
            bench.memory.store(MemoryDraft { metadata, ..draft(&text) }).await.unwrap();
        }
        let wanted = MemoryFilter::parse(&json!({"lang": "rust", "n": {"lt": 12}})).unwrap();
        for query in ["cat", "number 4", "", "' OR 1=1", "\" NEAR(*"] {
            let query = MemoryQuery { filter: wanted.clone(), ..ask(query, 10) };
            let words = query.query.clone();
            let found = bench.memory.search(query).await.unwrap();
            assert!(found.iter().all(|hit| wanted.holds(&hit.item.metadata)), "{words}");
            if !words.contains(['\'', '"']) {
                assert_eq!(found.len(), 3, "{words}");
            }
        }
    }
}

#[tokio::test]
async fn provenance_is_stored_returned_and_bounded() {
    let bench = Bench::local();
    let provenance = Provenance {
        author: "ada".into(),
        trust: Trust::Tool,
        event: Some("ses_1.7 hunter2-is-my-password".into()),
    };
    let given = MemoryDraft { provenance, ..draft("x") };
    let item = bench.memory.store(given.clone()).await.unwrap();
    let event = item.provenance.event.clone().unwrap();
    assert!(event.starts_with("ses_1.7 ") && !event.contains("hunter2"), "{event}");
    assert_eq!(bench.store.memory_fetch(item.id).await.unwrap(), Some(item));
    let payload = bench.stored_events().await[0].value();
    assert_eq!((&payload["author"], &payload["trust"]), (&json!("ada"), &json!("tool")));
    let long = "x".repeat(MAX_PROVENANCE_BYTES + 1);
    let provenance = Provenance { author: long, ..Provenance::default() };
    let why = refused(bench.memory.store(MemoryDraft { provenance, ..given }).await);
    assert_eq!(why, "author must be at most 200 bytes, got 201");
}

#[tokio::test]
async fn a_named_key_is_stored_once_per_collection() {
    let bench = Bench::local();
    let named = |text: &str| {
        let draft = draft(text);
        let key = Some(named_key(draft.colony, &draft.collection, "home city"));
        MemoryDraft { key, ..draft }
    };
    let first = bench.memory.store(named("Oslo")).await.unwrap();
    assert_eq!(bench.memory.store(named("Rome")).await.unwrap(), first);
    assert_eq!(bench.texts("", 5).await, ["Oslo"]);
}

#[tokio::test]
async fn a_named_key_is_free_again_when_its_item_has_expired() {
    let bench = Bench::local();
    let named = |text: &str, lives: Option<u64>| {
        let draft = draft(text);
        let key = Some(named_key(draft.colony, &draft.collection, "weather"));
        let expires_at = lives.map(|secs| bench.clock.now().after(Duration::from_secs(secs)));
        MemoryDraft { key, expires_at, ..draft }
    };
    let first = bench.memory.store(named("rain", Some(60))).await.unwrap();
    bench.clock.advance(Duration::from_secs(59));
    assert_eq!(bench.memory.store(named("sun", None)).await.unwrap(), first);
    bench.clock.advance(Duration::from_secs(1));
    let second = bench.memory.store(named("snow", Some(60))).await.unwrap();
    assert_eq!(second.text, "snow");
    // The same after it was removed for good.
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(bench.memory.collect(9).await.unwrap(), 2);
    let third = bench.memory.store(named("fog", None)).await.unwrap();
    assert_eq!(bench.memory.store(named("hail", None)).await.unwrap(), third);
    assert_eq!(bench.texts("", 5).await, ["fog"]);
}

#[tokio::test]
async fn reembedding_survives_a_crash_between_batches() {
    let bench = Bench::local();
    for text in ["our kitten", "a boat", "flour and an oven"] {
        bench.add(text).await;
    }
    assert!(refused(bench.memory.reembed(2).await).contains("no embedder is configured"));
    let endpoint = Endpoint::start(meaning).await;
    let first = bench.beside(Some(endpoint.embedder("model-a", None)));
    assert!(first.search(ask("puppy", 5)).await.unwrap().is_empty(), "no vectors yet");
    assert_eq!(first.reembed(2).await.unwrap(), Reembedded { done: 2, more: true });
    // The process ends here; another one without its state continues.
    drop(first);
    let second = bench.beside(Some(endpoint.embedder("model-a", None)));
    assert_eq!(second.reembed(2).await.unwrap(), Reembedded { done: 1, more: false });
    assert_eq!(second.reembed(2).await.unwrap(), Reembedded::default());
    let hits = second.search(ask("puppy", 5)).await.unwrap();
    assert_eq!(hits[0].item.text, "our kitten");
    assert_eq!(hits[0].item.embedding_model, "model-a");
    let told = events(&bench, &["memory.reembedded"]).await;
    let items: usize =
        told.iter().map(|event| event.value()["item_ids"].as_array().unwrap().len()).sum();
    assert_eq!((told.len(), items), (2, 3), "each batch in one commit with its event");
    // To another model: found by words all along, by meaning afterwards.
    let third = bench.beside(Some(endpoint.embedder("model-b", None)));
    assert_eq!(third.search(ask("kitten", 5)).await.unwrap()[0].item.text, "our kitten");
    assert_eq!(third.reembed(500).await.unwrap(), Reembedded { done: 3, more: false });
    assert_eq!(third.search(ask("puppy", 5)).await.unwrap()[0].item.text, "our kitten");
}
