//! Memory items: stored once, found by words and by vector.

use overmind_core::ids::{ColonyId, EffectId, MemoryId};
use overmind_core::memory::MemoryItem;
use overmind_core::store::{Change, MemoryScope, Page, Store};
use serde_json::json;

use super::{World, first, one_change, refused, within};

pub(super) async fn memory_is_stored_once_for_a_key(store: &dyn Store, world: &World) {
    let key = EffectId::derive(world.session_id(), 1);
    let put = |item: &MemoryItem| {
        one_change(Change::MemoryInsert { item: Box::new(item.clone()), key: Some(key) })
    };
    let mut original = world.memory("notes", "the bees dance");
    original.metadata = json!({ "source": "task", "n": [1, 2] });
    original.source = Some(world.session_id());
    original.embedding = vec![0.6, -0.8];
    original.embedding_model = "small".into();
    assert_eq!(store.memory_by_key(key).await.unwrap(), None);
    store.commit(put(&original)).await.unwrap();
    store.commit(put(&world.memory("notes", "a second try"))).await.unwrap();
    assert_eq!(store.memory_by_key(key).await.unwrap(), Some(original.clone()));
    assert_eq!(store.memory_fetch(original.id).await.unwrap(), Some(original.clone()));
    let all = store.memory_list(within(None), first(10)).await.unwrap();
    assert_eq!(all, [original.clone()]);
    // Seen stays seen: a redo after the item was deleted must not bring it back.
    store.commit(one_change(Change::MemoryDelete(original.id))).await.unwrap();
    store.commit(put(&original)).await.unwrap();
    assert_eq!(store.memory_by_key(key).await.unwrap(), None);
    // The same id without a key is a mistake.
    let again = one_change(Change::MemoryInsert { item: Box::new(original), key: None });
    store.commit(again.clone()).await.unwrap();
    refused(store.commit(again).await);
}

pub(super) async fn store_texts(
    store: &dyn Store,
    world: &World,
    collection: &str,
    texts: &[&str],
) {
    for text in texts {
        let item = Box::new(world.memory(collection, text));
        store.commit(one_change(Change::MemoryInsert { item, key: None })).await.unwrap();
    }
}

pub(super) async fn words(
    store: &dyn Store,
    collection: &str,
    terms: &[&str],
    limit: u32,
) -> Vec<String> {
    let terms = terms.iter().map(|term| (*term).to_owned()).collect();
    let found = store.memory_match(within(Some(collection)), terms, limit).await.unwrap();
    for pair in found.windows(2) {
        assert!(pair[0].bm25 >= pair[1].bm25, "best first");
    }
    assert!(found.iter().all(|hit| hit.bm25 > 0.0), "a match scores above zero");
    found.into_iter().map(|hit| hit.item.text).collect()
}

pub(super) async fn memory_is_found_by_words(store: &dyn Store, world: &World) {
    let texts = ["python sqlite fastapi", "rust tokio", "sqlite alone in a longer text of words"];
    store_texts(store, world, "notes", &texts).await;
    store_texts(store, world, "other", &["sqlite elsewhere"]).await;
    let mut foreign = world.memory("notes", "sqlite in another colony");
    foreign.colony = ColonyId::mint(world.ids());
    let foreign = Change::MemoryInsert { item: Box::new(foreign), key: None };
    store.commit(one_change(foreign)).await.unwrap();

    let found = words(store, "notes", &["fastapi", "sqlite"], 10).await;
    assert_eq!(found, [texts[0], texts[2]], "any of the terms, more of them is better");
    assert_eq!(words(store, "notes", &["sqlite"], 1).await.len(), 1);
    assert_eq!(words(store, "notes", &["SQLite", "sqlite"], 9).await.len(), 2, "case is nothing");
    assert_eq!(words(store, "notes", &["nowhere"], 9).await, [""; 0]);
    assert_eq!(words(store, "notes", &[], 9).await, [""; 0]);
    assert_eq!(words(store, "no such collection", &["sqlite"], 9).await, [""; 0]);
    assert_eq!(words(store, "other", &["sqlite"], 9).await, ["sqlite elsewhere"]);
}

pub(super) async fn hostile_terms_are_text(store: &dyn Store, world: &World) {
    let texts = ["select or not near text", "c1 scope AND", "quote \" star * (paren"];
    store_texts(store, world, "c", &texts).await;
    for term in [
        "\"",
        "\"\"",
        "*",
        "(",
        ")",
        "AND",
        "OR NOT",
        "NEAR(",
        "text:",
        "scope : c1",
        "-",
        "^",
        "{a b}:",
        "'; DROP TABLE memory_items; --",
        "\u{0}",
        "a\u{0}\"b",
        "\\",
        "%",
        "_",
        "",
        " ",
        "\u{202e}",
        "text : *",
        "c1",
    ] {
        // Whatever it finds, it is an answer and no error.
        words(store, "c", &[term], 10).await;
        words(store, "c", &[term, "near"], 10).await;
    }
    assert_eq!(words(store, "c", &["nothing\" OR text:near"], 9).await, [""; 0]);
    assert_eq!(words(store, "c", &["NEAR"], 9).await, [texts[0]], "an operator is a word");
    // Neither the name of a column nor a collection's own mark is a way to other texts.
    assert_eq!(words(store, "c", &["c1"], 9).await, [texts[1]]);
}

pub(super) async fn memory_is_found_by_vector(store: &dyn Store, world: &World) {
    let mut items = Vec::new();
    for (n, vector) in
        [vec![1.0, 0.0], vec![0.8, 0.6], vec![0.0, 1.0], vec![-1.0, 0.0]].into_iter().enumerate()
    {
        let mut item = world.memory("v", &format!("item {n}"));
        item.embedding = vector;
        item.embedding_model = "m".into();
        items.push(item);
    }
    let mut other_model = items[0].clone();
    other_model.id = MemoryId::mint(world.ids());
    other_model.embedding_model = "other".into();
    let mut other_size = world.memory("v", "three");
    other_size.embedding = vec![1.0, 0.0, 0.0];
    other_size.embedding_model = "m".into();
    let without = world.memory("v", "words only");
    for item in items.iter().chain([&other_model, &other_size, &without]) {
        let change = Change::MemoryInsert { item: Box::new(item.clone()), key: None };
        store.commit(one_change(change)).await.unwrap();
    }
    let near = |vector: Vec<f32>, limit| {
        store.memory_nearest(within(Some("v")), "m".into(), vector, limit)
    };
    let found = near(vec![2.0, 0.0], 3).await.unwrap();
    let ids: Vec<_> = found.iter().map(|hit| hit.item.id).collect();
    assert_eq!(ids, [items[0].id, items[1].id, items[2].id]);
    assert!((found[0].bm25 - 1.0).abs() < 1e-6 && (found[1].bm25 - 0.8).abs() < 1e-6);
    assert_eq!(found[1].item, items[1]);
    assert_eq!(near(vec![0.0, 0.0], 3).await.unwrap(), []);
    assert_eq!(near(vec![f32::NAN, 0.0], 3).await.unwrap(), []);
    assert_eq!(near(vec![1.0], 3).await.unwrap(), []);
}

pub(super) async fn memory_is_listed_and_deleted(store: &dyn Store, world: &World) {
    store_texts(store, world, "a", &["a one", "a two", "a three"]).await;
    store_texts(store, world, "b", &["b one"]).await;
    let list = |collection: Option<&str>, page: Page<MemoryId>| {
        store.memory_list(within(collection), page)
    };
    let texts = |items: &[MemoryItem]| -> Vec<String> {
        items.iter().map(|item| item.text.clone()).collect()
    };
    let all = list(None, first(10)).await.unwrap();
    assert_eq!(texts(&all), ["b one", "a three", "a two", "a one"]);
    let in_a = list(Some("a"), first(2)).await.unwrap();
    assert_eq!(texts(&in_a), ["a three", "a two"]);
    let rest = list(Some("a"), Page { limit: 2, after: Some(in_a[1].id) }).await.unwrap();
    assert_eq!(texts(&rest), ["a one"]);
    assert_eq!(texts(&list(Some("c"), first(2)).await.unwrap()), [""; 0]);
    let elsewhere = MemoryScope { colony: ColonyId::mint(world.ids()), ..within(None) };
    assert_eq!(store.memory_list(elsewhere, first(9)).await.unwrap(), []);

    store.commit(one_change(Change::MemoryDelete(in_a[0].id))).await.unwrap();
    // Deleting a deleted item succeeds.
    store.commit(one_change(Change::MemoryDelete(in_a[0].id))).await.unwrap();
    assert_eq!(words(store, "a", &["three"], 9).await, [""; 0]);
    assert_eq!(words(store, "a", &["two"], 9).await, ["a two"]);
    assert_eq!(store.memory_fetch(in_a[0].id).await.unwrap(), None);
}
