//! Records: compare-and-set, lists, changes with resume, tombstones, what is due.

mod due;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::{ColonyId, RecordId, SessionId};
use overmind_core::record::decide::{self, Cascade, Draft, Outcome, RecordWrite, Refusal, Stamp};
use overmind_core::record::rows::{
    ChangesError, ChangesQuery, MAX_TOMBSTONES, RecordNews, RecordQuery, RecordRows,
};
use overmind_core::record::{FieldError, Kind, KindInfo, Name, Owner, Record, RecordKey, Term};
use overmind_core::row::Role;
use overmind_core::store::{Change, Commit, EventQuery, Store, StoreError, StreamId};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::due::{
    what_has_expired_is_found_in_its_order, what_is_due_is_found_by_kind_in_its_order,
};
use super::{World, at, missing, of_stream, one_change, refused};

const COLONY: ColonyId = ColonyId::DEFAULT;

/// A kind for tests: `spec.agent` is its index term, `status.next` its due time in seconds.
pub const NOTE: KindInfo = KindInfo {
    name: "note",
    plural: "notes",
    aliases: &["memo"],
    check: |spec| match spec.get("agent") {
        None | Some(Value::String(_)) => Vec::new(),
        Some(_) => vec![FieldError::new("spec.agent", "must be a text")],
    },
    terms: |record| {
        let agent = record.spec.get("agent").and_then(Value::as_str);
        agent.map(|agent| Term::new("agent", agent)).into_iter().collect()
    },
    due: |record, _| record.status.get("next").and_then(Value::as_i64).map(at),
    role: |_| Role::Operator,
    changed_by: None,
    columns: &[],
    schema: || json!({ "type": "object" }),
};

/// A store of records, and the data for its records.
#[derive(Debug)]
struct Bench<S> {
    store: Arc<S>,
    world: World,
}

/// The key of a note in the default colony.
pub fn key(name: &str) -> RecordKey {
    RecordKey {
        kind: Kind::parse(NOTE.name).unwrap(),
        colony: COLONY,
        name: Name::parse(name).unwrap(),
    }
}

/// A note with nothing but a spec.
pub fn draft(name: &str, spec: Value) -> Draft {
    Draft {
        key: key(name),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        spec,
        owner: None,
        finalizers: None,
        expires_at: None,
    }
}

/// The same, of another kind.
fn other(name: &str) -> Draft {
    let key = RecordKey { kind: Kind::parse("other").unwrap(), ..key(name) };
    Draft { key, ..draft(name, json!({})) }
}

fn labels(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn stamp(seconds: i64) -> Stamp<'static> {
    Stamp { now: at(seconds), by: "ann" }
}

fn query() -> RecordQuery {
    RecordQuery { limit: 1000, ..RecordQuery::default() }
}

fn changes_after(after: u64, limit: u32) -> ChangesQuery {
    ChangesQuery { after, limit, ..ChangesQuery::default() }
}

fn names(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.key.name.as_str()).collect()
}

fn commit_of(writes: impl IntoIterator<Item = RecordWrite>) -> Commit {
    let mut commit = Commit::default();
    for write in writes {
        write.join(&mut commit);
    }
    commit
}

impl<S: Store + RecordRows> Bench<S> {
    fn id(&self) -> RecordId {
        RecordId::mint(self.world.ids())
    }

    async fn fetch(&self, key: &RecordKey) -> Option<Record> {
        self.store.record_fetch(key.clone()).await.unwrap()
    }

    async fn write(&self, write: RecordWrite) {
        self.store.commit(commit_of([write])).await.unwrap();
    }

    /// Writes a record, and returns the stored one.
    async fn put(&self, draft: Draft) -> Record {
        let key = draft.key.clone();
        let found = self.fetch(&key).await;
        let put = decide::put(&NOTE, found.as_ref(), draft, self.id(), stamp(1)).unwrap();
        if let Some(write) = put.write {
            self.write(write).await;
        }
        self.fetch(&key).await.unwrap()
    }

    async fn delete(&self, name: &str) {
        let found = self.fetch(&key(name)).await.unwrap();
        self.write(decide::delete(&found, stamp(9)).into_write().unwrap()).await;
    }

    async fn list(&self, query: RecordQuery) -> Vec<Record> {
        self.store.record_list(query).await.unwrap().records
    }
}

/// Runs every case on a store of its own and audits it.
///
/// # Panics
///
/// When a case does not hold.
pub async fn all<S: Store + RecordRows + 'static>(make: &dyn Fn() -> Arc<S>) {
    macro_rules! cases {
        ($($name:ident)*) => {$(
            eprintln!("conformance: records::{}", stringify!($name));
            let bench = Bench { store: make(), world: World::default() };
            $name(&bench).await;
            let report = bench.store.audit().await.unwrap();
            assert_eq!(report.findings, [], "audit after {}", stringify!($name));
            bench.store.close().await.unwrap();
        )*};
    }
    cases! {
        records_round_trip
        each_write_needs_what_it_was_decided_on
        each_change_has_its_own_event
        of_eight_writers_none_loses_a_write
        lists_find_what_the_selector_matches
        lists_are_paged_in_the_order_of_names
        a_page_of_large_records_ends_early
        changes_are_told_in_order_and_resumed
        a_follower_sees_what_writers_leave
        deletions_beyond_what_is_kept_are_told_as_gone
        what_is_due_is_found_by_kind_in_its_order
        what_has_expired_is_found_in_its_order
        what_an_owner_leaves_is_found
        what_is_being_deleted_is_found
        secrets_never_come_to_rest_in_records
    }
}

async fn records_round_trip<S: Store + RecordRows>(bench: &Bench<S>) {
    let mut draft = draft("full", json!({"agent": "x", "n": [1, null, 0.5, "☃\u{0}"], "o": {}}));
    draft.labels = labels(&[("app", "web"), ("x.io/tier", "")]);
    draft.annotations = labels(&[("why", "because\n☃")]);
    draft.owner = Some(Owner::Session(SessionId::mint(bench.world.ids())));
    draft.finalizers = Some(vec!["x.io/clean".into()]);
    draft.expires_at = Some(at(99));
    let put = decide::put(&NOTE, None, draft, bench.id(), stamp(1)).unwrap();
    bench.write(put.write.unwrap()).await;
    let head = bench.store.events_newest(None, super::first(1)).await.unwrap().remove(0);
    let want = Record { changed: head.global, ..put.record };
    assert_eq!(bench.fetch(&key("full")).await, Some(want.clone()));
    assert_eq!(bench.store.record_by_id(want.id).await.unwrap(), Some(want.clone()));
    assert_eq!((head.stream, &*head.kind), (StreamId::Records, decide::PUT));
    assert_eq!(head.value()["spec"], want.spec);

    let status = json!({"next": 30, "conditions": []});
    let write = decide::status(&NOTE, &want, status.clone(), None, stamp(2)).unwrap().unwrap();
    bench.write(write).await;
    let seen = bench.fetch(&key("full")).await.unwrap();
    assert!(seen.changed > want.changed);
    let want = Record {
        version: 2,
        status,
        due: Some(at(30)),
        updated_at: at(2),
        changed: seen.changed,
        ..want
    };
    assert_eq!(seen, want);

    let marked = decide::delete(&seen, stamp(3)).into_write().unwrap();
    bench.write(marked).await;
    let marked = bench.fetch(&key("full")).await.unwrap();
    assert_eq!((marked.version, marked.deleting), (3, Some(at(3))));
    bench.write(decide::finalize(&marked, "x.io/clean", stamp(4)).unwrap()).await;
    assert_eq!(bench.fetch(&key("full")).await, None);
    assert_eq!(bench.store.record_by_id(want.id).await.unwrap(), None);
    let kinds: Vec<_> = bench.store.events(of_stream(StreamId::Records, 0, 9)).await.unwrap();
    let kinds: Vec<_> = kinds.iter().map(|event| &*event.kind).collect();
    assert_eq!(kinds, [decide::PUT, decide::STATUS, decide::PUT, decide::DELETED]);
}

async fn each_write_needs_what_it_was_decided_on<S: Store + RecordRows>(bench: &Bench<S>) {
    let commit = async |write: RecordWrite| bench.store.commit(commit_of([write])).await;
    let put = |found: Option<&Record>, n: u32| {
        let draft = draft("a", json!({ "n": n }));
        decide::put(&NOTE, found, draft, bench.id(), stamp(1)).unwrap().write.unwrap()
    };
    commit(put(None, 1)).await.unwrap();
    let err = commit(put(None, 2)).await.unwrap_err();
    assert_eq!(err.to_string(), "note/a exists already");
    let first = bench.fetch(&key("a")).await.unwrap();
    commit(put(Some(&first), 3)).await.unwrap();
    let err = commit(put(Some(&first), 4)).await.unwrap_err();
    assert_eq!(err.to_string(), "note/a stands at version 2, not 1");
    refused(
        commit(decide::status(&NOTE, &first, json!({"a": 1}), None, stamp(1)).unwrap().unwrap())
            .await,
    );
    refused(commit(decide::delete(&first, stamp(1)).into_write().unwrap()).await);

    // A later record of the same name and version is not the one that was read.
    bench.delete("a").await;
    let err = commit(put(Some(&first), 4)).await.unwrap_err();
    assert_eq!(err.to_string(), "note/a does not exist");
    commit(put(None, 5)).await.unwrap();
    let second = bench.fetch(&key("a")).await.unwrap();
    assert_eq!(second.version, first.version);
    assert_ne!(second.id, first.id);
    refused(commit(put(Some(&first), 6)).await);
    missing(
        commit(decide::status(&NOTE, &first, json!({"a": 1}), None, stamp(1)).unwrap().unwrap())
            .await,
    );
    missing(commit(decide::delete(&first, stamp(1)).into_write().unwrap()).await);
    assert_eq!(bench.fetch(&key("a")).await, Some(second.clone()), "nothing of it happened");

    // One bad write of many undoes them all.
    let good = decide::put(&NOTE, None, draft("b", json!({})), bench.id(), stamp(1)).unwrap();
    let conflict = bench.store.commit(commit_of([good.write.unwrap(), put(None, 7)])).await;
    // The error says which of the guards it was.
    let (expected, found) = (Stands::Absent, Stands::Version(second.version));
    let what = Conflict::new(ConflictKind::Record, "note/a", expected, found);
    assert_eq!(conflict, Err(StoreError::Conflict { what, guard: Some(1) }));
    assert_eq!(bench.fetch(&key("b")).await, None);
}

async fn each_change_has_its_own_event<S: Store + RecordRows>(bench: &Bench<S>) {
    let write = |name: &str| {
        let put = decide::put(&NOTE, None, draft(name, json!({})), bench.id(), stamp(1)).unwrap();
        put.write.unwrap()
    };
    let RecordWrite { event, change, .. } = write("x");
    let lone = Commit { events: vec![event], ..Commit::default() };
    let silent = one_change(Change::Record(Box::new(change)));
    for commit in [lone, silent] {
        let err = bench.store.commit(commit).await.unwrap_err();
        assert!(matches!(err, StoreError::Other { .. }), "{err:?}");
    }
    // Events of other streams between them, and other changes, do not count.
    let mut commit = Commit::default();
    commit.events.push(super::event(StreamId::System, json!({})));
    write("a").join(&mut commit);
    commit.changes.push(Change::SettingDelete { key: "k".into() });
    commit.events.push(super::event(StreamId::System, json!({})));
    write("b").join(&mut commit);
    commit.events.push(super::event(StreamId::System, json!({})));
    let done = bench.store.commit(commit).await.unwrap();
    let records = bench.list(query()).await;
    assert_eq!(names(&records), ["a", "b"]);
    let changed: Vec<_> = records.iter().map(|record| record.changed).collect();
    assert_eq!(changed, [done.global - 3, done.global - 1]);
}

/// Reads, decides and commits until it is through; `false` when there was nothing to write.
async fn retried<S: Store + RecordRows>(
    store: &S,
    key: &RecordKey,
    decide: impl Fn(Option<&Record>) -> Option<RecordWrite>,
) -> bool {
    loop {
        let found = store.record_fetch(key.clone()).await.unwrap();
        let Some(write) = decide(found.as_ref()) else { return false };
        match store.commit(commit_of([write])).await {
            Ok(_) => return true,
            Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
            Err(err) => panic!("{err}"),
        }
    }
}

async fn of_eight_writers_none_loses_a_write<S: Store + RecordRows + 'static>(bench: &Bench<S>) {
    const EACH: u64 = 20;
    bench.put(draft("sum", json!({"n": 0}))).await;
    let mut writers = JoinSet::new();
    for writer in 0..8_u64 {
        let store = Arc::clone(&bench.store);
        writers.spawn(async move {
            for _ in 0..EACH {
                let add = |found: Option<&Record>| {
                    let found = found.unwrap();
                    let n = found.spec["n"].as_u64().unwrap() + 1;
                    let draft = draft("sum", json!({ "n": n, "last": writer }));
                    let put = decide::put(&NOTE, Some(found), draft, found.id, stamp(2)).unwrap();
                    assert_eq!(put.outcome, Outcome::Configured);
                    put.write
                };
                assert!(retried(&*store, &key("sum"), add).await);
            }
        });
    }
    writers.join_all().await;
    let sum = bench.fetch(&key("sum")).await.unwrap();
    assert_eq!(sum.spec["n"], 8 * EACH);
    assert_eq!((sum.version, sum.generation), (8 * EACH + 1, 8 * EACH + 1));
    // The history has every spec once and in order.
    let events = bench.store.events(of_stream(StreamId::Records, 0, 1000)).await.unwrap();
    let seen: Vec<_> =
        events.iter().map(|event| event.value()["spec"]["n"].as_u64().unwrap()).collect();
    assert_eq!(seen, (0..=8 * EACH).collect::<Vec<_>>());

    // One of eight concurrent creations of one name succeeds.
    let create = |n: u32| {
        let put = decide::put(&NOTE, None, draft("one", json!({ "n": n })), bench.id(), stamp(1));
        bench.store.commit(commit_of(put.unwrap().write))
    };
    let results = join_all((0..8).map(create)).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    results.into_iter().filter(Result::is_err).for_each(refused);
}

async fn lists_find_what_the_selector_matches<S: Store + RecordRows>(bench: &Bench<S>) {
    let apps = ["web", "db", "web", "", "cache"];
    let mut writes = Vec::new();
    for n in 0..60_usize {
        let mut draft = draft(&format!("n{n:02}"), json!({ "agent": format!("a{}", n % 4) }));
        if n % 5 != 4 {
            draft.labels.insert("app".into(), apps[n % 5].into());
        }
        if n % 3 == 0 {
            draft.labels.insert("x.io/tier".into(), "gold".into());
        }
        draft.owner = (n % 7 == 0).then_some(Owner::Record(RecordId::from_u128(5)));
        if n % 11 == 0 {
            draft.owner = Some(Owner::Session(SessionId::from_u128(5)));
        }
        if n % 2 == 0 {
            draft.key.colony = ColonyId::from_u128(9);
        }
        if n % 13 == 0 {
            draft.key.kind = Kind::parse("other").unwrap();
        }
        writes.extend(decide::put(&NOTE, None, draft, bench.id(), stamp(1)).unwrap().write);
    }
    bench.store.commit(commit_of(writes)).await.unwrap();
    // Labels that moved are found where they are now.
    let mut moved = draft("n01", json!({ "agent": "a9" }));
    moved.labels = labels(&[("app", "moved")]);
    bench.put(moved).await;
    bench.delete("n03").await;
    let all = bench.list(query()).await;
    assert_eq!(all.len(), 59);
    assert!(all.is_sorted_by_key(|record| record.key.clone()));

    let note = Kind::parse("note").unwrap();
    for text in [
        "",
        "app=web",
        "app!=web",
        "app=moved",
        "app in (db,web)",
        "app notin (db,web)",
        "app",
        "!app",
        "app=",
        "x.io/tier=gold,app!=db",
        "x.io/tier,!app",
        "none",
        "app=web,app=db",
        "agent=a1",
    ] {
        let selector = text.parse_selector();
        for kind in [None, Some(note.clone())] {
            for colony in [None, Some(COLONY)] {
                let fits = |record: &&Record| {
                    selector.matches(&record.labels)
                        && kind.as_ref().is_none_or(|kind| *kind == record.key.kind)
                        && colony.is_none_or(|colony| colony == record.key.colony)
                };
                let want: Vec<_> = all.iter().filter(fits).cloned().collect();
                let (selector, kind) = (selector.clone(), kind.clone());
                let found = bench.list(RecordQuery { selector, kind, colony, ..query() }).await;
                assert_eq!(found, want, "{text}");
            }
        }
    }
    let of_agent = |agent: &str| RecordQuery {
        kind: Some(note.clone()),
        term: Some(("agent".into(), agent.into())),
        ..query()
    };
    assert_eq!(names(&bench.list(of_agent("a9")).await), ["n01"]);
    assert!(
        !names(&bench.list(of_agent("a1")).await).contains(&"n01"),
        "it was found there before"
    );
    for owner in [Owner::Record(RecordId::from_u128(5)), Owner::Session(SessionId::from_u128(5))] {
        let want: Vec<_> =
            all.iter().filter(|record| record.owner == Some(owner)).cloned().collect();
        let found = bench.list(RecordQuery { owner: Some(owner), ..query() }).await;
        assert!(!want.is_empty() && found == want, "{owner}");
    }
    for (prefix, count) in [("n1", 10), ("n", 59), ("n1%", 0), ("1", 0), ("n10", 1)] {
        let found = bench.list(RecordQuery { prefix: prefix.into(), ..query() }).await;
        assert_eq!(found.len(), count, "{prefix}");
    }
}

/// So that tables of selectors are texts.
trait ParseSelector {
    fn parse_selector(&self) -> overmind_core::record::Selector;
}

impl ParseSelector for str {
    fn parse_selector(&self) -> overmind_core::record::Selector {
        overmind_core::record::Selector::parse(self).unwrap()
    }
}

async fn lists_are_paged_in_the_order_of_names<S: Store + RecordRows>(bench: &Bench<S>) {
    for name in ["b", "a", "c-d", "c.d", "c", "c0", "e", "f"] {
        let mut draft = draft(name, json!({ "agent": "x" }));
        draft.labels = labels(&[("all", "yes")]);
        for colony in [COLONY, ColonyId::from_u128(7)] {
            draft.key.colony = colony;
            bench.put(draft.clone()).await;
        }
    }
    let kind = Some(Kind::parse("note").unwrap());
    let term = Some(("agent".to_owned(), "x".to_owned()));
    for of in [
        query(),
        RecordQuery { kind: kind.clone(), ..query() },
        RecordQuery { kind: kind.clone(), colony: Some(COLONY), ..query() },
        RecordQuery { kind, term, selector: "all=yes".parse_selector(), ..query() },
    ] {
        let whole = bench.store.record_list(of.clone()).await.unwrap();
        assert!(!whole.more);
        for limit in [1, 3, 8] {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = RecordQuery { after, limit, ..of.clone() };
                let page = bench.store.record_list(page).await.unwrap();
                assert!(page.records.len() <= limit as usize);
                assert_eq!(page.at, whole.at);
                after = page.records.last().map(|record| record.key.clone());
                seen.extend(page.records);
                if !page.more {
                    break;
                }
            }
            assert_eq!(seen, whole.records);
        }
    }
    // The last item of a page may have been deleted meanwhile.
    bench.delete("b").await;
    let after = Some(key("b"));
    let page = RecordQuery { colony: Some(COLONY), after, limit: 2, ..query() };
    assert_eq!(names(&bench.list(page).await), ["c", "c-d"]);
}

async fn a_page_of_large_records_ends_early<S: Store + RecordRows>(bench: &Bench<S>) {
    let large = |n: u32| json!({ "n": n, "text": "x".repeat(250 << 10) });
    for n in 0..20 {
        bench.put(draft(&format!("l{n:02}"), large(n))).await;
    }
    bench.delete("l10").await;
    let page = bench.store.record_list(query()).await.unwrap();
    assert!(page.more && page.records.len() < 19, "{}", page.records.len());
    let (mut seen, mut after) = (Vec::new(), 0);
    loop {
        let page = bench.store.record_changes(changes_after(after, 1000)).await.unwrap();
        assert!(page.at > after, "it goes on");
        after = page.at;
        seen.extend(page.news);
        if !page.more {
            break;
        }
    }
    assert_eq!(seen.len(), 20, "each once");
    assert!(seen.is_sorted_by_key(RecordNews::changed));
    assert!(
        matches!(seen.last(), Some(RecordNews::Gone(tombstone)) if tombstone.key == key("l10"))
    );
}

async fn changes_are_told_in_order_and_resumed<S: Store + RecordRows>(bench: &Bench<S>) {
    let ask = async |query: ChangesQuery| bench.store.record_changes(query).await.unwrap();
    let none = ask(changes_after(0, 10)).await;
    assert_eq!((none.news.len(), none.more), (0, false));
    for name in ["a", "b", "c"] {
        bench.put(draft(name, json!({}))).await;
    }
    let start = bench.store.record_list(query()).await.unwrap().at;
    assert_eq!(ask(changes_after(start, 10)).await.news, []);
    bench.put(draft("a", json!({"n": 1}))).await;
    bench.put(draft("a", json!({"n": 2}))).await;
    bench.delete("b").await;
    let mut other = draft("d", json!({}));
    other.key.colony = ColonyId::from_u128(9);
    other.key.kind = Kind::parse("other").unwrap();
    bench.put(other).await;
    bench.put(draft("b", json!({"again": true}))).await;

    let told = ask(changes_after(start, 10)).await;
    assert!(!told.more);
    let seen: Vec<_> = told
        .news
        .iter()
        .map(|news| (news.key().name.to_string(), matches!(news, RecordNews::Put(_))))
        .collect();
    let want = [("a", true), ("b", false), ("d", true), ("b", true)];
    assert_eq!(seen, want.map(|(name, put)| (name.to_owned(), put)));
    let RecordNews::Put(a) = &told.news[0] else { panic!("a is there") };
    assert_eq!(a.spec["n"], 2, "as it stands now");
    let RecordNews::Gone(b) = &told.news[1] else { panic!("b was deleted") };
    assert_eq!((&b.key, b.at), (&key("b"), at(9)));

    // In pages of any size the same.
    for limit in 1..4 {
        let (mut news, mut after) = (Vec::new(), start);
        loop {
            let page = ask(changes_after(after, limit)).await;
            assert!(page.news.len() <= limit as usize);
            after = page.at;
            news.extend(page.news);
            if !page.more {
                break;
            }
        }
        assert_eq!((news, after), (told.news.clone(), told.at));
    }
    // Items that do not match are skipped, and the position moves on nevertheless.
    let kinds = vec![Kind::parse("other").unwrap()];
    let of_kind = ask(ChangesQuery { kinds, ..changes_after(start, 10) }).await;
    assert_eq!((of_kind.news.len(), of_kind.at), (1, told.at));
    let colony = Some(ColonyId::from_u128(3));
    let nothing = ask(ChangesQuery { colony, ..changes_after(start, 10) }).await;
    assert_eq!((nothing.news.len(), nothing.at), (0, told.at));
    // A place that this store has not reached is one of another store, or of one that was restored.
    let newest = bench.store.events_newest(None, super::first(1)).await.unwrap().remove(0).global;
    assert_eq!(ask(changes_after(newest, 10)).await.at, newest);
    let ahead = bench.store.record_changes(changes_after(newest + 1, 10)).await;
    assert_eq!(ahead, Err(ChangesError::Ahead { after: newest + 1, newest }));
}

async fn a_follower_sees_what_writers_leave<S: Store + RecordRows + 'static>(bench: &Bench<S>) {
    let mut writers = JoinSet::new();
    for writer in 0..4_u128 {
        let store = Arc::clone(&bench.store);
        writers.spawn(async move {
            for n in 0..30_u128 {
                let name = format!("r{}", (writer + n * n) % 7);
                let write = |found: Option<&Record>| match found {
                    Some(found) if n % 3 == 2 => decide::delete(found, stamp(5)).into_write(),
                    found => {
                        let id = RecordId::from_u128(1000 * (writer + 1) + n);
                        let draft =
                            draft(&name, json!({ "by": writer.to_string(), "n": n.to_string() }));
                        decide::put(&NOTE, found, draft, id, stamp(4)).unwrap().write
                    }
                };
                retried(&*store, &key(&name), write).await;
            }
        });
    }
    let mut world: BTreeMap<RecordKey, Record> = BTreeMap::new();
    let (mut after, mut ids) = (0, BTreeSet::new());
    loop {
        let through = writers.is_empty();
        let page = bench.store.record_changes(changes_after(after, 3)).await.unwrap();
        assert!(page.news.iter().all(|news| news.changed() > after && news.changed() <= page.at));
        after = page.at;
        for news in page.news {
            match news {
                RecordNews::Put(record) => {
                    ids.insert(record.id);
                    world.insert(record.key.clone(), *record);
                }
                RecordNews::Gone(tombstone) => {
                    world.remove(&tombstone.key);
                }
            }
        }
        if through && !page.more {
            break;
        }
        while let Some(done) = writers.try_join_next() {
            done.unwrap();
        }
        tokio::task::yield_now().await;
    }
    let left = bench.store.record_list(query()).await.unwrap();
    assert_eq!(world.into_values().collect::<Vec<_>>(), left.records);
    assert_eq!(after, left.at);
    assert!(!ids.is_empty());
}

async fn deletions_beyond_what_is_kept_are_told_as_gone<S: Store + RecordRows>(bench: &Bench<S>) {
    let ask = async |after| bench.store.record_changes(changes_after(after, 1000)).await;
    bench.put(draft("stays", json!({}))).await;
    let kept = MAX_TOMBSTONES as usize;
    let mut last = Vec::new();
    for part in 0..(kept + 3).div_ceil(500) {
        let names = (part * 500..(kept + 3).min(part * 500 + 500)).map(|n| format!("t{n}"));
        let puts = names.map(|name| {
            decide::put(&NOTE, None, draft(&name, json!({})), bench.id(), stamp(1)).unwrap()
        });
        let puts: Vec<_> = puts.collect();
        let made = commit_of(puts.iter().filter_map(|put| put.write.clone()));
        bench.store.commit(made).await.unwrap();
        let gone = puts.iter().filter_map(|put| decide::delete(&put.record, stamp(2)).into_write());
        let done = bench.store.commit(commit_of(gone)).await.unwrap();
        let first = done.global + 1 - puts.len() as u64;
        last.extend(first..=done.global);
    }
    // Three deletions are forgotten: from before the third nothing can be resumed.
    for after in [0, last[0], last[2] - 1] {
        let gone = ChangesError::Gone { after, oldest: last[2] };
        assert_eq!(ask(after).await, Err(gone));
    }
    let told = ask(last[2]).await.unwrap();
    assert!(matches!(&told.news[0], RecordNews::Gone(first) if first.changed == last[3]));
    let fresh = bench.store.record_list(query()).await.unwrap();
    assert_eq!(names(&fresh.records), ["stays"]);
    assert_eq!(ask(fresh.at).await.unwrap().news, []);
}

async fn what_an_owner_leaves_is_found<S: Store + RecordRows>(bench: &Bench<S>) {
    let session = bench.world.session();
    bench.store.commit(one_change(Change::SessionInsert(Box::new(session.clone())))).await.unwrap();
    let top = bench.put(draft("top", json!({}))).await;
    let nobody = Owner::Session(SessionId::mint(bench.world.ids()));
    for (name, owner) in [
        ("child", Owner::Record(top.id)),
        ("other", Owner::Record(top.id)),
        ("kept", Owner::Session(session.id)),
        ("lost", nobody),
    ] {
        bench.put(Draft { owner: Some(owner), ..draft(name, json!({})) }).await;
    }
    let orphans = async |after| bench.store.record_orphans(after, 10).await.unwrap();
    assert_eq!(names(&orphans(None).await), ["lost"]);
    // The state after a crash: the owner is deleted and its owned records are not.
    bench.delete("top").await;
    let left = orphans(None).await;
    assert_eq!(names(&left), ["child", "other", "lost"]);
    assert_eq!(names(&orphans(Some(left[0].id)).await), ["other", "lost"]);
    let gone = decide::cascade(Owner::Record(top.id), &left, Cascade::Background, stamp(7));
    bench.store.commit(commit_of(gone)).await.unwrap();
    let freed = decide::cascade(nobody, &left, Cascade::Orphan, stamp(7));
    bench.store.commit(commit_of(freed)).await.unwrap();
    assert_eq!(orphans(None).await, []);
    assert_eq!(names(&bench.list(query()).await), ["kept", "lost"]);
}

async fn what_is_being_deleted_is_found<S: Store + RecordRows>(bench: &Bench<S>) {
    let held = || Some(vec!["a".to_owned()]);
    for name in ["a", "b", "c"] {
        let record = bench.put(Draft { finalizers: held(), ..draft(name, json!({})) }).await;
        if name != "b" {
            bench.write(decide::delete(&record, stamp(2)).into_write().unwrap()).await;
        }
    }
    let deleting = async |after, limit| bench.store.record_deleting(after, limit).await.unwrap();
    let all = deleting(None, 10).await;
    assert_eq!(names(&all), ["a", "c"]);
    assert_eq!(names(&deleting(None, 1).await), ["a"]);
    assert_eq!(names(&deleting(Some(all[0].id), 10).await), ["c"]);
    bench.write(decide::finalize(&all[0], "a", stamp(3)).unwrap()).await;
    assert_eq!(names(&deleting(None, 10).await), ["c"]);
}

async fn secrets_never_come_to_rest_in_records<S: Store + RecordRows>(bench: &Bench<S>) {
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789";
    let mut told =
        draft("a", json!({ "agent": secret, "env": { "id": secret }, "deep": [secret] }));
    told.annotations = labels(&[("note", secret), ("some_id", secret)]);
    let record = bench.put(told).await;
    let status = json!({ "conditions": [{ "type": "Ready", "message": secret }] });
    let write = decide::status(&NOTE, &record, status, None, stamp(2)).unwrap().unwrap();
    bench.write(write).await;
    let record = bench.fetch(&key("a")).await.unwrap();
    assert!(!format!("{record:?}").contains(secret), "{record:?}");
    let all = EventQuery { stream: None, after: 0, kinds: &[], limit: 100 };
    let events = bench.store.events(all).await.unwrap();
    assert!(events.iter().all(|event| !event.payload.contains(secret)));
    let put = events.iter().find(|event| &*event.kind == decide::PUT).unwrap().value();
    assert_eq!(put["spec"], record.spec, "the history says what the row says");
    assert_eq!(put["annotations"], json!(record.annotations));
    // Masked first, the same draft changes nothing.
    let mut spec = json!({ "agent": secret, "env": { "id": secret }, "deep": [secret] });
    bench.store.redact_record(&mut spec);
    let again = Draft { annotations: record.annotations.clone(), ..draft("a", spec) };
    let again = decide::put(&NOTE, Some(&record), again, record.id, stamp(3)).unwrap();
    assert_eq!(again.outcome, Outcome::Unchanged);

    // Values that are compared or reused are refused, not changed.
    let name = format!("ghp-{}", "a1".repeat(18)).replace('-', "_");
    for (key, value) in [("k", name.as_str()), (name.as_str(), "v")] {
        let held = Draft { labels: labels(&[(key, value)]), ..draft("b", json!({})) };
        let put = decide::put(&NOTE, None, held, bench.id(), stamp(1)).unwrap();
        let err = bench.store.commit(commit_of(put.write)).await.unwrap_err().to_string();
        assert!(err.contains("holds a secret") && !err.contains(&name), "{err}");
    }
    assert_eq!(bench.fetch(&key("b")).await, None);
    let wrong = decide::put(&NOTE, None, draft("c", json!({"agent": 1})), bench.id(), stamp(1));
    assert!(matches!(wrong, Err(Refusal::Invalid { .. })), "{wrong:?}");
}
