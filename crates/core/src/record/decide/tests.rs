use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::ids::{ColonyId, SessionId};
use crate::record::{Kind, Name, Term};
use crate::row::Role;

/// Ticks when its spec says so, and is found by its agent.
const TICK: KindInfo = KindInfo {
    name: "tick",
    plural: "ticks",
    aliases: &[],
    check: |spec| match spec.get("agent") {
        None | Some(Value::String(_)) => Vec::new(),
        Some(_) => vec![FieldError::new("spec.agent", "must be a text")],
    },
    terms: |record| {
        let agent = record.spec.get("agent").and_then(Value::as_str);
        agent.map(|agent| Term::new("agent", agent)).into_iter().collect()
    },
    due: |record, _| {
        let at = record.status.get("next").and_then(Value::as_i64);
        at.map(Timestamp::from_micros)
    },
    role: |_| Role::Operator,
    columns: &[],
    schema: || json!({}),
    changed_by: None,
};

const ID: RecordId = RecordId::from_u128(1);

fn at(micros: i64) -> Stamp<'static> {
    Stamp { now: Timestamp::from_micros(micros), by: "ann" }
}

fn draft(spec: Value) -> Draft {
    let key = RecordKey {
        kind: Kind::parse("tick").unwrap(),
        colony: ColonyId::DEFAULT,
        name: Name::parse("a").unwrap(),
    };
    Draft {
        key,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        spec,
        owner: None,
        finalizers: None,
        expires_at: None,
    }
}

fn made(draft: Draft) -> Record {
    put(&TICK, None, draft, ID, at(1)).unwrap().record
}

/// The record that a store keeps after a write.
fn after(found: Option<&Record>, write: &RecordWrite) -> Option<Record> {
    let expected = Guard::RecordVersion {
        key: draft(json!({})).key,
        version: found.map(|record| record.version),
    };
    assert_eq!(write.guard, expected, "a write is guarded by what it was decided on");
    match &write.change {
        RecordChange::Put(record) => Some((**record).clone()),
        RecordChange::Status(change) => {
            let mut record = found.unwrap().clone();
            assert_eq!(record.id, change.id);
            record.version = change.version;
            record.status = change.status.clone();
            record.terms = change.terms.clone();
            record.due = change.due;
            record.expires_at = change.expires_at;
            record.updated_at = change.updated_at;
            record.written_by = change.written_by.clone();
            Some(record)
        }
        RecordChange::Delete { id, .. } => {
            assert_eq!(Some(*id), found.map(|record| record.id));
            None
        }
    }
}

#[test]
fn a_put_creates_changes_or_leaves_a_record_unchanged() {
    let first = put(&TICK, None, draft(json!({"agent": "x"})), ID, at(1)).unwrap();
    assert_eq!(
        (first.outcome, first.record.version, first.record.generation),
        (Outcome::Created, 1, 1)
    );
    assert_eq!(first.record.terms, [Term::new("agent", "x")]);
    let write = first.write.unwrap();
    assert_eq!(write.event.payload["spec"], json!({"agent": "x"}));
    assert_eq!((write.event.kind, write.event.stream), (PUT, StreamId::Records));

    let found = first.record;
    let other = RecordId::from_u128(2);
    let same = put(&TICK, Some(&found), draft(found.spec.clone()), other, at(2)).unwrap();
    assert_eq!((same.outcome, same.write), (Outcome::Unchanged, None));
    assert_eq!(same.record, found);

    let mut labelled = draft(found.spec.clone());
    labelled.labels.insert("a".into(), "b".into());
    let second = put(&TICK, Some(&found), labelled, other, at(2)).unwrap();
    assert_eq!(second.outcome, Outcome::Configured);
    let record = second.record;
    assert_eq!((record.id, record.version, record.generation), (ID, 2, 1), "the spec stayed");
    assert_eq!((record.created_at, record.updated_at), (at(1).now, at(2).now));

    let third = put(&TICK, Some(&record), draft(json!({})), other, at(3)).unwrap().record;
    assert_eq!((third.version, third.generation), (3, 2));
    assert_eq!((third.terms, third.labels), (vec![], BTreeMap::new()));
}

#[test]
fn fields_missing_in_a_draft_are_kept() {
    let owner = Owner::Session(SessionId::from_u128(9));
    let held = Draft {
        owner: Some(owner),
        finalizers: Some(vec!["f".into()]),
        expires_at: Some(at(99).now),
        ..draft(json!({}))
    };
    let found = made(held);
    let again = put(&TICK, Some(&found), draft(json!({})), ID, at(2)).unwrap();
    assert_eq!(again.outcome, Outcome::Unchanged);
    let none = Draft { finalizers: Some(vec![]), ..draft(json!({})) };
    let freed = put(&TICK, Some(&found), none, ID, at(2)).unwrap().record;
    assert_eq!((freed.owner, freed.finalizers.len()), (Some(owner), 0));
}

#[test]
fn all_mistakes_of_a_draft_are_reported_together() {
    let mut wrong = draft(json!({"agent": 7}));
    wrong.labels.insert("a b".into(), "c d".into());
    wrong.finalizers = Some(vec![" ".into()]);
    let err = put(&TICK, None, wrong, ID, at(1)).unwrap_err();
    let Refusal::Invalid { wrong, .. } = &err else { panic!("{err:?}") };
    let paths: Vec<_> = wrong.iter().map(|one| one.path.as_str()).collect();
    let labels = "metadata.labels.a b";
    assert_eq!(paths, [labels, labels, "metadata.finalizers[0]", "spec.agent"]);
    assert!(
        err.to_string().starts_with("tick/a is not valid: metadata.labels.a b is not a label key")
    );
    let err = put(&TICK, None, draft(json!(7)), ID, at(1)).unwrap_err();
    assert_eq!(err.to_string(), "tick/a is not valid: spec must be an object");
}

#[test]
fn a_status_change_moves_the_due_time_but_not_the_generation() {
    let found = made(draft(json!({})));
    let write = status(&TICK, &found, json!({"next": 50}), None, at(2)).unwrap().unwrap();
    assert!(write.event.payload.get("spec").is_none());
    let record = after(Some(&found), &write).unwrap();
    assert_eq!((record.version, record.generation, record.due), (2, 1, Some(at(50).now)));
    assert_eq!(status(&TICK, &record, json!({"next": 50}), None, at(3)).unwrap(), None);
    let expiring = status(&TICK, &record, json!({"next": 50}), Some(at(40).now), at(3));
    let record = after(Some(&record), &expiring.unwrap().unwrap()).unwrap();
    assert_eq!(record.wake(), Some(at(40).now));
    assert!(status(&TICK, &record, json!("x"), None, at(4)).is_err());
}

#[test]
fn finalizers_delay_a_deletion() {
    let held = Draft { finalizers: Some(vec!["f".into(), "g".into()]), ..draft(json!({})) };
    let found = made(held);
    let Deletion::Marked(write) = delete(&found, at(2)) else { panic!("it is held") };
    let marked = after(Some(&found), &write).unwrap();
    assert_eq!((marked.deleting, marked.generation), (Some(at(2).now), 1));
    assert_eq!(delete(&marked, at(3)), Deletion::Pending);
    let refused = put(&TICK, Some(&marked), draft(json!({"agent": "y"})), ID, at(3)).unwrap_err();
    assert!(matches!(refused, Refusal::Deleting { since, .. } if since == at(2).now));

    assert_eq!(finalize(&marked, "other", at(3)), None);
    let one = after(Some(&marked), &finalize(&marked, "f", at(3)).unwrap()).unwrap();
    assert_eq!(one.finalizers, ["g"]);
    let last = finalize(&one, "g", at(4)).unwrap();
    assert_eq!((last.event.kind, after(Some(&one), &last)), (DELETED, None));
    // Without a deletion, the last finalizer removes nothing.
    let alive = finalize(&Record { deleting: None, ..one.clone() }, "g", at(4)).unwrap();
    assert!(matches!(alive.change, RecordChange::Put(_)));
    assert!(matches!(delete(&made(draft(json!({}))), at(2)), Deletion::Gone(_)));
}

#[test]
fn owned_records_are_deleted_or_released_with_their_owner() {
    let owned = |name: &str, owner: Option<Owner>, held: bool| {
        let finalizers = held.then(|| vec!["f".to_owned()]);
        let mut draft = Draft { owner, finalizers, ..draft(json!({})) };
        draft.key.name = Name::parse(name).unwrap();
        made(draft)
    };
    let gone = Owner::Record(ID);
    let other = Owner::Session(SessionId::from_u128(1));
    let all = [
        owned("mine", Some(gone), false),
        owned("held", Some(gone), true),
        owned("other", Some(other), false),
        owned("free", None, false),
    ];
    let told = |how| {
        cascade(gone, &all, how, at(2))
            .into_iter()
            .map(|write| match write.change {
                RecordChange::Put(record) => {
                    (record.key.name.to_string(), Some((record.owner, record.deleting.is_some())))
                }
                RecordChange::Delete { key, .. } => (key.name.to_string(), None),
                RecordChange::Status(_) => panic!("no status changes"),
            })
            .collect::<Vec<_>>()
    };
    let named = |name: &str, left| (name.to_owned(), left);
    assert_eq!(
        told(Cascade::Background),
        [named("mine", None), named("held", Some((Some(gone), true)))]
    );
    assert_eq!(
        told(Cascade::Orphan),
        [named("mine", Some((None, false))), named("held", Some((None, false)))]
    );
}

#[derive(Clone, Debug)]
enum Act {
    Put { agent: u8, label: u8, finalizers: Option<Vec<String>> },
    Status(u8),
    Delete,
    Finalize(String),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let finalizers = || proptest::sample::subsequence(vec!["f".to_owned(), "g".to_owned()], 0..=2);
    let act = prop_oneof![
        3 => (0..3_u8, 0..2_u8, proptest::option::of(finalizers()))
            .prop_map(|(agent, label, finalizers)| Act::Put { agent, label, finalizers }),
        2 => (0..3_u8).prop_map(Act::Status),
        1 => Just(Act::Delete),
        2 => "[fg]".prop_map(Act::Finalize),
    ];
    proptest::collection::vec(act, 1..30)
}

proptest! {
    #[test]
    fn any_sequence_of_writes_keeps_the_invariants(acts in acts()) {
        let mut world: Option<Record> = None;
        let mut next = 10;
        for (now, act) in (1..).zip(acts) {
            let before = world.clone();
            let write = match (act, &before) {
                (Act::Put { agent, label, finalizers }, _) => {
                    let mut draft = draft(json!({ "agent": agent.to_string() }));
                    draft.labels.insert("l".into(), label.to_string());
                    draft.finalizers = finalizers;
                    next += 1;
                    let id = RecordId::from_u128(next);
                    let done = put(&TICK, before.as_ref(), draft.clone(), id, at(now));
                    let deleting = before.as_ref().is_some_and(|old| old.deleting.is_some());
                    prop_assert_eq!(done.is_err(), deleting);
                    let Ok(done) = done else { continue };
                    prop_assert_eq!(done.write.is_none(), done.outcome == Outcome::Unchanged);
                    let again = put(&TICK, Some(&done.record), draft, id, at(now + 1)).unwrap();
                    prop_assert_eq!(again.outcome, Outcome::Unchanged, "put twice");
                    done.write
                }
                (_, None) => None,
                (Act::Status(n), Some(old)) => {
                    status(&TICK, old, json!({ "next": n }), None, at(now)).unwrap()
                }
                (Act::Delete, Some(old)) => delete(old, at(now)).into_write(),
                (Act::Finalize(name), Some(old)) => finalize(old, &name, at(now)),
            };
            let Some(write) = write else { continue };
            world = after(before.as_ref(), &write);
            match (&before, &world) {
                (None, Some(new)) => prop_assert_eq!((new.version, new.generation), (1, 1)),
                (Some(old), Some(new)) => {
                    prop_assert_eq!(new.version, old.version + 1);
                    let grown = u64::from(new.spec != old.spec);
                    prop_assert_eq!(new.generation, old.generation + grown);
                    prop_assert_eq!(new.id, old.id);
                    prop_assert!(old.deleting.is_none() || new.deleting == old.deleting);
                    prop_assert!(new.deleting.is_none() || !new.finalizers.is_empty());
                }
                (Some(old), None) => {
                    let left = old.finalizers.len();
                    prop_assert!(left == 0 || (left == 1 && old.deleting.is_some()));
                }
                (None, None) => prop_assert!(false, "a write of nothing"),
            }
        }
    }
}
