//! The life of memory items: replaced, expired, filtered, embedded again.

use overmind_core::ids::{ColonyId, EffectId, MemoryId};
use overmind_core::memory::{MemoryFilter, MemoryItem, Provenance, Trust};
use overmind_core::store::{Change, Commit, MemoryScope, Store, StoreError};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use super::memory::words;
use super::{World, at, first, one_change, within};

async fn put(store: &dyn Store, item: &MemoryItem) {
    let change = Change::MemoryInsert { item: Box::new(item.clone()), key: None };
    store.commit(one_change(change)).await.unwrap();
}

fn with_vector(world: &World, collection: &str, text: &str, vector: &[f32]) -> MemoryItem {
    MemoryItem {
        embedding: vector.to_vec(),
        embedding_model: "m".into(),
        ..world.memory(collection, text)
    }
}

async fn matched(store: &dyn Store, scope: MemoryScope, term: &str) -> Vec<MemoryItem> {
    let found = store.memory_match(scope, vec![term.into()], 50).await.unwrap();
    found.into_iter().map(|hit| hit.item).collect()
}

async fn near(store: &dyn Store, scope: MemoryScope, vector: &[f32]) -> Vec<MemoryItem> {
    let found = store.memory_nearest(scope, "m".into(), vector.to_vec(), 50).await.unwrap();
    found.into_iter().map(|hit| hit.item).collect()
}

fn texts(items: &[MemoryItem]) -> Vec<&str> {
    items.iter().map(|item| item.text.as_str()).collect()
}

/// The results of the three ways to find items in collection `c`: by word, by vector, newest first.
/// All items contain the word and have the same direction.
async fn everywhere(store: &dyn Store, scope: &MemoryScope) -> [Vec<MemoryItem>; 3] {
    [
        matched(store, scope.clone(), "bee").await,
        near(store, scope.clone(), &[1.0, 0.0]).await,
        store.memory_list(scope.clone(), first(50)).await.unwrap(),
    ]
}

pub(super) async fn what_supersedes_takes_the_place_and_the_old_is_history(
    store: &dyn Store,
    world: &World,
) {
    let old = with_vector(world, "c", "old bee", &[1.0, 0.0]);
    put(store, &old).await;
    let mut new = with_vector(world, "c", "new bee", &[1.0, 0.0]);
    new.supersedes = Some(old.id);
    put(store, &new).await;

    let scope = within(Some("c"));
    for found in everywhere(store, &scope).await {
        assert_eq!(found, [new.clone()]);
    }
    let history = MemoryScope { history: true, ..scope };
    for found in everywhere(store, &history).await {
        assert_eq!(found.len(), 2);
        let old = found.iter().find(|item| item.id == old.id).unwrap();
        assert_eq!(old.superseded_by, Some(new.id));
    }
    // A second replacement, one of what is not there, and one from another collection.
    let other = with_vector(world, "other", "bee", &[1.0, 0.0]);
    put(store, &other).await;
    for wrong in [old.id, MemoryId::mint(world.ids()), other.id] {
        let mut third = world.memory("c", "third bee");
        third.supersedes = Some(wrong);
        let change = Change::MemoryInsert { item: Box::new(third.clone()), key: None };
        let refused = store.commit(one_change(change)).await.unwrap_err();
        assert!(matches!(refused, StoreError::Conflict { .. }), "{refused:?}");
        assert_eq!(store.memory_fetch(third.id).await.unwrap(), None, "nothing of it happened");
    }
    // The old one is not restored when the new one is removed.
    store.commit(one_change(Change::MemoryDelete(new.id))).await.unwrap();
    assert_eq!(words(store, "c", &["bee"], 9).await, [""; 0]);
}

pub(super) async fn what_has_expired_is_not_found(store: &dyn Store, world: &World) {
    let ends = |second: i64, text: &str| MemoryItem {
        expires_at: Some(at(second)),
        ..with_vector(world, "c", text, &[1.0, 0.0])
    };
    let (soon, later) = (ends(10, "bee soon"), ends(20, "bee later"));
    let always = with_vector(world, "c", "bee always", &[1.0, 0.0]);
    for item in [&soon, &later, &always] {
        put(store, item).await;
    }
    for (second, wanted) in [(9, 3), (10, 2), (19, 2), (20, 1)] {
        let scope = MemoryScope { now: at(second), ..within(Some("c")) };
        for found in everywhere(store, &scope).await {
            assert_eq!(found.len(), wanted, "{second} {:?}", texts(&found));
        }
    }
    let expired = async |second: i64, limit: u32| -> Vec<MemoryId> {
        let found = store.memory_expired(at(second), limit).await.unwrap();
        assert!(found.iter().all(|(_, colony, name)| *colony == ColonyId::DEFAULT && name == "c"));
        found.into_iter().map(|(id, _, _)| id).collect()
    };
    assert_eq!(expired(9, 9).await, []);
    assert_eq!(expired(20, 9).await, [soon.id, later.id]);
    assert_eq!(expired(20, 1).await, [soon.id]);
    store.commit(one_change(Change::MemoryDelete(soon.id))).await.unwrap();
    assert_eq!(expired(20, 9).await, [later.id]);
}

pub(super) async fn filters_narrow_every_search(store: &dyn Store, world: &World) {
    for n in 0..100 {
        let item = MemoryItem {
            metadata: json!({"n": n, "odd": n % 2 == 1, "tags": [format!("t{}", n % 10)]}),
            ..with_vector(world, "c", &format!("bee {n}"), &[1.0, 0.0])
        };
        put(store, &item).await;
    }
    let hostile = json!({"' OR 1=1; --": 1});
    for (filter, wanted) in [
        (json!({"n": 7}), 1),
        (json!({"n": {"gte": 90}}), 10),
        (json!({"n": {"gte": 90}, "odd": true}), 5),
        (json!({"tags": "t3"}), 10),
        (json!({"n": {"in": [1, 2, 200]}}), 2),
        (json!({"none": {"exists": true}}), 0),
        (hostile, 0),
    ] {
        let parsed = MemoryFilter::parse(&filter).unwrap();
        let scope = MemoryScope { filter: parsed, ..within(Some("c")) };
        for found in everywhere(store, &scope).await {
            assert_eq!(found.len(), wanted, "{filter}");
            assert!(found.iter().all(|item| scope.filter.holds(&item.metadata)), "{filter}");
        }
    }
    // A page of filtered items continues where the last one ended.
    let odd = MemoryFilter::parse(&json!({"odd": true})).unwrap();
    let scope = MemoryScope { filter: odd, ..within(Some("c")) };
    let mut page = first(7);
    let mut seen: Vec<Value> = Vec::new();
    loop {
        let found = store.memory_list(scope.clone(), page).await.unwrap();
        let Some(last) = found.last() else { break };
        page.after = Some(last.id);
        seen.extend(found.iter().map(|item| item.metadata["n"].clone()));
    }
    let wanted: Vec<Value> = (0..100).rev().filter(|n| n % 2 == 1).map(Value::from).collect();
    assert_eq!(seen, wanted);
}

pub(super) async fn provenance_and_dates_round_trip(store: &dyn Store, world: &World) {
    for trust in Trust::ALL {
        let item = MemoryItem {
            provenance: Provenance {
                author: "ada".into(),
                trust,
                event: Some(format!("{}.7", world.session_id())),
            },
            expires_at: Some(at(100)),
            source: Some(world.session_id()),
            ..world.memory("c", trust.as_str())
        };
        put(store, &item).await;
        assert_eq!(store.memory_fetch(item.id).await.unwrap(), Some(item));
    }
}

pub(super) async fn vectors_follow_every_change(store: &dyn Store, world: &World) {
    let scope = || within(Some("c"));
    let a = with_vector(world, "c", "a", &[1.0, 0.0]);
    let b = with_vector(world, "c", "b", &[0.8, 0.6]);
    put(store, &a).await;
    assert_eq!(texts(&near(store, scope(), &[1.0, 0.0]).await), ["a"]);
    put(store, &b).await;
    assert_eq!(texts(&near(store, scope(), &[1.0, 0.0]).await), ["a", "b"]);
    // Another vector for the same item.
    let turn = |id: MemoryId, model: &str, vector: Vec<f32>| {
        one_change(Change::MemoryEmbed { id, model: model.into(), vector })
    };
    store.commit(turn(a.id, "m", vec![0.0, 1.0])).await.unwrap();
    assert_eq!(texts(&near(store, scope(), &[1.0, 0.0]).await), ["b", "a"]);
    // The last one goes, and its row's number may be used again.
    store.commit(one_change(Change::MemoryDelete(b.id))).await.unwrap();
    assert_eq!(texts(&near(store, scope(), &[1.0, 0.0]).await), ["a"]);
    let d = with_vector(world, "c", "d", &[0.9, 0.1]);
    put(store, &d).await;
    store.commit(one_change(Change::MemoryDelete(d.id))).await.unwrap();
    let e = with_vector(world, "other", "e", &[1.0, 0.0]);
    put(store, &e).await;
    assert_eq!(texts(&near(store, scope(), &[1.0, 0.0]).await), ["a"]);
    assert_eq!(texts(&near(store, within(Some("other")), &[1.0, 0.0]).await), ["e"]);
    // To another model and back.
    store.commit(turn(a.id, "n", vec![1.0, 0.0, 0.0])).await.unwrap();
    assert_eq!(near(store, scope(), &[1.0, 0.0]).await, []);
    assert_eq!(store.memory_fetch(a.id).await.unwrap().unwrap().embedding_model, "n");
    store.commit(turn(a.id, "m", vec![1.0, 0.0])).await.unwrap();
    assert_eq!(texts(&near(store, scope(), &[1.0, 0.0]).await), ["a"]);
    // Deleted items stay deleted.
    store.commit(one_change(Change::MemoryDelete(a.id))).await.unwrap();
    store.commit(turn(a.id, "m", vec![1.0, 0.0])).await.unwrap();
    assert_eq!(near(store, scope(), &[1.0, 0.0]).await, []);
}

/// A number from 0 to 1 that looks like chance.
fn chance(seed: u64) -> f32 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    f32::from(u16::try_from((x >> 32) & 0xffff).unwrap()) / 65_535.0
}

pub(super) async fn the_nearest_are_exactly_the_nearest(store: &dyn Store, world: &World) {
    const DIMS: u64 = 24;
    let vector = |n: u64| -> Vec<f32> { (0..DIMS).map(|d| chance(n * DIMS + d) - 0.5).collect() };
    let mut items = Vec::new();
    for n in 0..1_500 {
        let item = with_vector(world, "c", &n.to_string(), &vector(n));
        items.push((item.id, item.embedding.clone()));
        let change = Change::MemoryInsert { item: Box::new(item), key: None };
        store.commit(one_change(change)).await.unwrap();
    }
    for query in [vector(5_000), vector(5_001), vector(3)] {
        let cosine = |other: &[f32]| -> f64 {
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            dot(&query, other) / (dot(&query, &query) * dot(other, other)).sqrt()
        };
        let mut wanted: Vec<(f64, MemoryId)> =
            items.iter().map(|(id, other)| (cosine(other), *id)).collect();
        wanted.sort_by(|a, b| b.0.total_cmp(&a.0));
        let found =
            store.memory_nearest(within(Some("c")), "m".into(), query.clone(), 20).await.unwrap();
        assert_eq!(found.len(), 20);
        for (hit, (cosine, id)) in found.iter().zip(&wanted) {
            assert!((hit.bm25 - cosine).abs() < 1e-5, "{} {cosine}", hit.bm25);
            assert_eq!(hit.item.id, *id);
        }
    }
}

pub(super) async fn items_of_another_model_are_listed_until_they_are_embedded_again(
    store: &dyn Store,
    world: &World,
) {
    let now = at(4);
    let without = world.memory("c", "words only");
    let good = with_vector(world, "c", "good", &[1.0, 0.0]);
    let long = with_vector(world, "c", "three", &[1.0, 0.0, 0.0]);
    let ended = MemoryItem { expires_at: Some(at(2)), ..world.memory("c", "ended") };
    for item in [&without, &good, &long, &ended] {
        put(store, item).await;
    }
    let stale = async |dims: Option<u32>, after: Option<MemoryId>, now: Timestamp| {
        let found = store.memory_stale("m".into(), dims, now, after, 10).await.unwrap();
        found.into_iter().map(|item| item.text).collect::<Vec<_>>()
    };
    assert_eq!(stale(None, None, now).await, ["words only"]);
    assert_eq!(stale(Some(2), None, now).await, ["words only", "three"]);
    assert_eq!(stale(Some(2), Some(without.id), now).await, ["three"]);
    let change = Change::MemoryEmbed { id: without.id, model: "m".into(), vector: vec![0.0, 1.0] };
    store.commit(one_change(change)).await.unwrap();
    assert_eq!(stale(Some(2), None, now).await, ["three"]);
    assert_eq!(words(store, "c", &["words"], 9).await, ["words only"]);
}

pub(super) async fn common_words_hide_no_rare_ones(store: &dyn Store, world: &World) {
    let texts: Vec<String> = (0..60).map(|n| format!("the common text {n}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    super::memory::store_texts(store, world, "large", &texts).await;
    super::memory::store_texts(store, world, "small", &["the zeppelin"]).await;
    // In a large part of the store and in a small one, the answer is the collection's own.
    let found = words(store, "large", &["the", "17", "zeppelin"], 3).await;
    assert_eq!(found[0], "the common text 17");
    assert!(found.iter().all(|text| text.starts_with("the common")), "{found:?}");
    assert_eq!(words(store, "small", &["the", "common"], 9).await, ["the zeppelin"]);
}

pub(super) async fn items_of_only_common_words_are_found(store: &dyn Store, world: &World) {
    // More than a search may score one by one: the words of most items are ignored here.
    const ITEMS: usize = 10_600;
    let mut texts: Vec<String> = (0..ITEMS)
        .map(|n| {
            let often = if n % 3 == 0 { " often" } else { "" };
            let much = if n % 4 < 2 { " much" } else { "" };
            let rare = if n % 5_000 == 7 { " rare" } else { "" };
            format!("the{often}{much}{rare}")
        })
        .collect();
    texts.push("a last word and the".into());
    for part in texts.chunks(1_000) {
        let changes = part.iter().map(|text| {
            let item = Box::new(world.memory("large", text));
            Change::MemoryInsert { item, key: None }
        });
        let commit = Commit { changes: changes.collect(), ..Commit::default() };
        store.commit(commit).await.unwrap();
    }
    for (terms, limit) in [
        (&["the"][..], 20),
        (&["rare", "the"], 20),
        (&["the", "much", "rare", "often"], 50),
        (&["much", "often"], 20),
        (&["last", "the"], 2),
        (&["nowhere", "the"], 1),
    ] {
        let found = words(store, "large", terms, limit).await;
        assert_eq!(found.len(), limit as usize, "{terms:?}");
        let holds = |text: &String| text.split(' ').any(|word| terms.contains(&word));
        assert!(found.iter().all(holds), "{terms:?}: {found:?}");
        if terms.contains(&"rare") {
            assert!(found[..3].iter().all(|text| text.ends_with(" rare")), "{found:?}");
            assert!(!found[3..].iter().any(|text| text.ends_with(" rare")), "each of them once");
        }
        if terms == ["last", "the"] {
            assert_eq!(found[0], "a last word and the");
        }
    }
}

pub(super) async fn a_key_is_free_again_when_its_item_has_expired(
    store: &dyn Store,
    world: &World,
) {
    let key = EffectId::derive(world.session_id(), 1);
    let put = |item: &MemoryItem| {
        one_change(Change::MemoryInsert { item: Box::new(item.clone()), key: Some(key) })
    };
    let item = |text: &str, created: i64, expires: Option<i64>| MemoryItem {
        created_at: at(created),
        expires_at: expires.map(at),
        ..world.memory("c", text)
    };
    let held = async || store.memory_by_key(key).await.unwrap().map(|item| item.text);
    store.commit(put(&item("first", 1, Some(10)))).await.unwrap();
    store.commit(put(&item("too early", 9, None))).await.unwrap();
    assert_eq!(held().await.as_deref(), Some("first"));
    // It is still there, and no longer counts.
    let second = item("second", 10, Some(20));
    store.commit(put(&second)).await.unwrap();
    assert_eq!(held().await.as_deref(), Some("second"));
    // Removed before its time: the key waits for that time.
    store.commit(one_change(Change::MemoryDelete(second.id))).await.unwrap();
    store.commit(put(&item("too early", 19, None))).await.unwrap();
    assert_eq!(held().await, None);
    // Removed, and its lifetime is over; the next one has no end, and neither has its key.
    store.commit(put(&item("third", 20, None))).await.unwrap();
    store.commit(put(&item("never", 1_000_000, None))).await.unwrap();
    assert_eq!(held().await.as_deref(), Some("third"));
    let all = MemoryScope { now: at(0), ..within(Some("c")) };
    let all = store.memory_list(all, first(9)).await.unwrap();
    assert_eq!(texts(&all), ["third", "first"]);
}
