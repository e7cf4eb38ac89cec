//! Which records are due, by kind, and which have expired.

use overmind_core::ids::RecordId;
use overmind_core::record::decide::{self, Draft};
use overmind_core::record::rows::RecordRows;
use overmind_core::record::{Kind, Record};
use overmind_core::store::Store;
use overmind_core::time::Timestamp;
use serde_json::json;

use super::{Bench, NOTE, at, draft, key, names, other, stamp};

pub(super) async fn what_is_due_is_found_by_kind_in_its_order<S: Store + RecordRows>(
    bench: &Bench<S>,
) {
    let moved = async |record: &Record, next| {
        let write = decide::status(&NOTE, record, json!({ "next": next }), None, stamp(2));
        bench.write(write.unwrap().unwrap()).await;
    };
    for (name, next) in [("c", 30), ("a", 10), ("b", 10), ("d", 50)] {
        moved(&bench.put(draft(name, json!({}))).await, next).await;
    }
    bench.put(Draft { expires_at: Some(at(20)), ..draft("e", json!({})) }).await;
    bench.put(Draft { expires_at: Some(at(5)), ..draft("d", json!({})) }).await;
    bench.put(draft("never", json!({}))).await;
    // Of another kind: before all of them, at the time of two, and at that of the last.
    for (name, next) in [("x", 1), ("y", 10), ("z", 30)] {
        moved(&bench.put(other(name)).await, next).await;
    }
    let due_of = async |kind: &str, now: i64, after, limit| {
        let kind = Kind::parse(kind).unwrap();
        bench.store.record_due(kind, at(now), after, limit).await.unwrap()
    };
    let due = async |now, after, limit| due_of("note", now, after, limit).await;
    assert_eq!(names(&due(4, None, 10).await), [""; 0]);
    assert_eq!(names(&due(30, None, 10).await), ["d", "a", "b", "e", "c"]);
    assert_eq!(names(&due_of("other", 29, None, 10).await), ["x", "y"]);
    assert_eq!(names(&due_of("other", 30, None, 1).await), ["x"]);
    assert_eq!(names(&due_of("third", 30, None, 10).await), [""; 0]);
    let (mut seen, mut after): (Vec<Record>, Option<(Timestamp, RecordId)>) = (Vec::new(), None);
    loop {
        let page = due(30, after, 2).await;
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 2, "{page:?}");
        after = Some((last.wake().unwrap(), last.id));
        seen.extend(page);
    }
    assert_eq!(names(&seen), ["d", "a", "b", "e", "c"]);
    // The position to resume may be that of a deleted record, and of any kind.
    let behind = Some((at(10), RecordId::from_u128(u128::MAX)));
    assert_eq!(names(&due(30, behind, 10).await), ["e", "c"]);
    assert_eq!(names(&due_of("other", 30, behind, 10).await), ["z"]);
    // The caller advances it when it is done.
    let a = bench.fetch(&key("a")).await.unwrap();
    bench.write(decide::status(&NOTE, &a, json!({}), None, stamp(3)).unwrap().unwrap()).await;
    assert_eq!(names(&due(30, None, 10).await), ["d", "b", "e", "c"]);
}

pub(super) async fn what_has_expired_is_found_in_its_order<S: Store + RecordRows>(
    bench: &Bench<S>,
) {
    for (name, expires) in [("c", 30), ("a", 10), ("b", 10), ("late", 31)] {
        bench.put(Draft { expires_at: Some(at(expires)), ..draft(name, json!({})) }).await;
    }
    bench.put(Draft { expires_at: Some(at(20)), ..other("o") }).await;
    bench.put(draft("never", json!({}))).await;
    // Due before it expires, and due without an expiry.
    let write = |record: &Record| decide::status(&NOTE, record, json!({"next": 1}), None, stamp(2));
    let due = bench.put(draft("due", json!({}))).await;
    bench.write(write(&due).unwrap().unwrap()).await;
    let c = bench.fetch(&key("c")).await.unwrap();
    bench.write(write(&c).unwrap().unwrap()).await;
    let expired = async |now: i64, after, limit| {
        bench.store.record_expired(at(now), after, limit).await.unwrap()
    };
    assert_eq!(names(&expired(9, None, 10).await), [""; 0]);
    assert_eq!(names(&expired(30, None, 10).await), ["a", "b", "o", "c"]);
    let first = expired(30, None, 1).await;
    assert_eq!(names(&first), ["a"]);
    let after = Some((first[0].expires_at.unwrap(), first[0].id));
    assert_eq!(names(&expired(30, after, 2).await), ["b", "o"]);
    bench.delete("b").await;
    assert_eq!(names(&expired(30, None, 10).await), ["a", "o", "c"]);
}
