//! The shared state, letters, subscriptions, registrations.

use overmind_core::ids::{AgentId, ColonyId, EffectId, LetterId, SubscriptionId};
use overmind_core::mesh::{
    BoardEntry, Dead, Key, Letter, LetterFilter, LetterMark, MailboxCounts, Priority, Registration,
    Subscription, TopicPattern,
};
use overmind_core::store::{Change, Commit, Guard, Store, StreamId};
use serde_json::{Value, json};

use super::{World, at, event, one_change, refused};

const COLONY: ColonyId = ColonyId::DEFAULT;

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn entry(text: &str, version: u64, value: Value) -> BoardEntry {
    BoardEntry {
        colony: COLONY,
        key: key(text),
        value,
        version,
        written_by: "ann".into(),
        workflow: None,
        created_at: at(1),
        updated_at: at(2),
        ttl: None,
        expires_at: None,
        effect: None,
    }
}

fn put(entry: BoardEntry) -> Commit {
    one_change(Change::BoardPut(Box::new(entry)))
}

pub(super) async fn entries_round_trip_and_are_replaced(store: &dyn Store, world: &World) {
    let mut first = entry("tasks/1", 1, json!({"b": [1, null, "☃"], "a": 0.1}));
    first.workflow = Some("wf_1".into());
    first.ttl = Some(60);
    first.expires_at = Some(at(62));
    first.effect = Some(EffectId::mint(world.ids()));
    store.commit(put(first.clone())).await.unwrap();
    assert_eq!(store.board_fetch(COLONY, key("tasks/1")).await.unwrap(), Some(first));
    for value in [json!(7), json!("x"), Value::Null, json!([])] {
        let next = entry("tasks/1", 2, value);
        store.commit(put(next.clone())).await.unwrap();
        assert_eq!(store.board_fetch(COLONY, key("tasks/1")).await.unwrap(), Some(next));
    }
    assert_eq!(store.board_fetch(COLONY, key("tasks/2")).await.unwrap(), None);
    let other = ColonyId::from_u128(9);
    assert_eq!(store.board_fetch(other, key("tasks/1")).await.unwrap(), None);
    let delete = || one_change(Change::BoardDelete { colony: COLONY, key: key("tasks/1") });
    store.commit(delete()).await.unwrap();
    store.commit(delete()).await.unwrap();
    assert_eq!(store.board_fetch(COLONY, key("tasks/1")).await.unwrap(), None);
}

pub(super) async fn versions_of_what_was_deleted_are_remembered(store: &dyn Store, _: &World) {
    let past = async |text: &str| store.board_past(COLONY, key(text)).await.unwrap();
    let delete = |text: &str| one_change(Change::BoardDelete { colony: COLONY, key: key(text) });
    assert_eq!(past("a").await, 0);
    store.commit(put(entry("a", 7, json!(1)))).await.unwrap();
    assert_eq!(past("a").await, 0, "it is there");
    store.commit(delete("a")).await.unwrap();
    assert_eq!(past("a").await, 7);
    store.commit(delete("a")).await.unwrap();
    assert_eq!(past("a").await, 7, "there was nothing to delete");
    // A shorter life after it takes nothing back.
    store.commit(put(entry("a", 3, json!(1)))).await.unwrap();
    store.commit(delete("a")).await.unwrap();
    assert_eq!(past("a").await, 7);
    let other = (0..).map(|n| format!("k{n}")).find(|text| key(text).bucket() != key("a").bucket());
    assert_eq!(past(&other.unwrap()).await, 0, "other keys are not moved");
    let elsewhere = store.board_past(ColonyId::from_u128(9), key("a")).await.unwrap();
    assert_eq!(elsewhere, 0, "nor are other colonies");
}

pub(super) async fn a_prefix_is_text_and_pages_follow_each_other(store: &dyn Store, _: &World) {
    let keys = ["CONTEXT/a", "context/a", "context/aXb", "context/a_b", "context/a/1", "context/b"];
    for text in keys.iter().chain(&["context/%", "z", "context/\u{10FFFD}"]) {
        store.commit(put(entry(text, 1, json!(1)))).await.unwrap();
    }
    let list = async |prefix: &str, after: Option<&str>, limit| {
        let after = after.map(str::to_owned);
        let found = store.board_list(COLONY, prefix.to_owned(), after, limit).await.unwrap();
        found.into_iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list("context/a_", None, 10).await, ["context/a_b"], "`_` is no wildcard");
    assert_eq!(list("context/%", None, 10).await, ["context/%"], "nor is `%`");
    assert_eq!(list("CON", None, 10).await, ["CONTEXT/a"], "case counts");
    let all = list("context/", None, 100).await;
    assert_eq!(all.len(), 7);
    let mut sorted = all.clone();
    sorted.sort();
    assert_eq!(all, sorted);
    let mut paged = Vec::new();
    loop {
        let page = list("context/", paged.last().map(String::as_str), 2).await;
        assert!(page.len() <= 2);
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, all);
    assert_eq!(list("", None, 100).await.len(), 9);
}

pub(super) async fn a_page_of_large_values_ends_early(store: &dyn Store, world: &World) {
    let large = json!("x".repeat(1 << 20));
    let to = AgentId::mint(world.ids());
    for n in 0..6 {
        store.commit(put(entry(&format!("large/{n}"), 1, large.clone()))).await.unwrap();
        store
            .commit(insert(&Letter { payload: large.clone(), ..letter(world, to, n) }))
            .await
            .unwrap();
    }
    let page = store.board_list(COLONY, "large/".into(), None, 100).await.unwrap();
    assert!((1..6).contains(&page.len()), "{}", page.len());
    let after = page.last().map(|entry| entry.key.to_string());
    let rest = store.board_list(COLONY, "large/".into(), after, 100).await.unwrap();
    assert_eq!(page.len() + rest.len(), 6);
    let letters = store.letter_list(to, LetterFilter::Living, 0, 100).await.unwrap();
    assert!((1..6).contains(&letters.len()), "{}", letters.len());
}

pub(super) async fn what_has_expired_is_found_by_the_sweep(store: &dyn Store, _: &World) {
    for (text, expires) in [("c", Some(30)), ("a", Some(10)), ("b", Some(20)), ("d", None)] {
        let entry = BoardEntry { expires_at: expires.map(at), ..entry(text, 3, json!(1)) };
        store.commit(put(entry)).await.unwrap();
    }
    let found = store.board_expired(at(20), 10).await.unwrap();
    assert_eq!(found, [(COLONY, key("a"), 3), (COLONY, key("b"), 3)]);
    assert_eq!(store.board_expired(at(99), 1).await.unwrap().len(), 1);
}

pub(super) async fn of_many_writers_at_one_version_one_wins(store: &dyn Store, _: &World) {
    let guarded = |version: Option<u64>, entry: BoardEntry| Commit {
        guards: vec![Guard::BoardVersion { colony: COLONY, key: entry.key.clone(), version }],
        events: vec![event(StreamId::Mesh, json!({"version": entry.version}))],
        changes: vec![Change::BoardPut(Box::new(entry))],
    };
    for version in 0..5_u64 {
        let before = (version > 0).then_some(version);
        let writers =
            (0..8).map(|n| store.commit(guarded(before, entry("x", version + 1, json!(n)))));
        let results = futures_util::future::join_all(writers).await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        refused(results.into_iter().find(Result::is_err).expect("seven were refused"));
    }
    assert_eq!(store.board_fetch(COLONY, key("x")).await.unwrap().unwrap().version, 5);
    // The stream of the mesh has no gap, whatever was refused.
    let events = store.events(super::of_stream(StreamId::Mesh, 0, 100)).await.unwrap();
    let seen: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seen, [1, 2, 3, 4, 5]);
}

fn letter(world: &World, to: AgentId, n: i64) -> Letter {
    Letter {
        id: LetterId::mint(world.ids()),
        colony: COLONY,
        to,
        from: "ann".into(),
        topic: None,
        kind: "query".into(),
        payload: json!({"n": n}),
        workflow: None,
        reply_to: None,
        priority: Priority::Normal,
        sent_at: at(n),
        expires_at: None,
        mark: LetterMark::fresh(at(n)),
        place: 0,
    }
}

fn insert(letter: &Letter) -> Commit {
    one_change(Change::LetterInsert(Box::new(letter.clone())))
}

pub(super) async fn letters_round_trip_once_and_in_order(store: &dyn Store, world: &World) {
    let (to, other) = (AgentId::mint(world.ids()), AgentId::mint(world.ids()));
    let mut all = Vec::new();
    for n in 0..5 {
        all.push(letter(world, to, n));
    }
    all[1].topic = Some("news.eu".into());
    all[1].workflow = Some("wf".into());
    all[1].reply_to = Some("msg_1".into());
    all[1].priority = Priority::Urgent;
    all[1].expires_at = Some(at(100));
    for letter in &all {
        store.commit(insert(letter)).await.unwrap();
        store.commit(insert(letter)).await.unwrap();
    }
    // The same event goes to another agent, too.
    store.commit(insert(&Letter { to: other, ..all[1].clone() })).await.unwrap();
    let found = store.letter_list(to, LetterFilter::Living, 0, 10).await.unwrap();
    assert!(found.windows(2).all(|pair| pair[0].place < pair[1].place));
    let (second, third) = (found[1].place, found[2].place);
    let bare: Vec<Letter> = found.into_iter().map(|letter| Letter { place: 0, ..letter }).collect();
    assert_eq!(bare, all);
    let page = store.letter_list(to, LetterFilter::Living, second, 1).await.unwrap();
    assert_eq!(page[0].place, third);
    let counts = |waiting, dead| MailboxCounts { waiting, dead };
    let mut boxes = vec![(to, counts(5, 0)), (other, counts(1, 0))];
    boxes.sort_by_key(|(agent, _)| *agent);
    assert_eq!(store.mailbox_list(None, 10).await.unwrap(), boxes);
    assert_eq!(store.mailbox_list(Some(boxes[0].0), 10).await.unwrap(), boxes[1..]);
    let id = all[0].id;
    store.commit(one_change(Change::LetterDelete { to, id })).await.unwrap();
    assert_eq!(store.letter_fetch(to, id).await.unwrap(), None);
    // A place is never used again.
    let last = letter(world, to, 9);
    store.commit(insert(&last)).await.unwrap();
    let newest = store.letter_fetch(to, last.id).await.unwrap().unwrap();
    assert!(newest.place > third + 2, "{}", newest.place);
}

pub(super) async fn letters_are_marked_and_die(store: &dyn Store, world: &World) {
    let to = AgentId::mint(world.ids());
    let sent = letter(world, to, 0);
    store.commit(insert(&sent)).await.unwrap();
    let readable = async |now| {
        store.letter_list(to, LetterFilter::Readable(at(now)), 0, 9).await.unwrap().len()
    };
    assert_eq!(readable(0).await, 1);
    let holder = Some(EffectId::mint(world.ids()));
    let held = sent.mark.read(at(1), holder, Some(world.session_id()));
    let mark = |mark| Change::LetterMark { to, id: sent.id, mark, expires_at: None };
    let guarded = |attempts, change| Commit {
        guards: vec![Guard::LetterAt { to, id: sent.id, attempts, dead: false }],
        ..one_change(change)
    };
    store.commit(guarded(0, mark(held))).await.unwrap();
    refused(store.commit(guarded(0, mark(held))).await);
    assert_eq!(store.letter_fetch(to, sent.id).await.unwrap().unwrap().mark, held);
    assert_eq!((readable(30).await, readable(31).await), (0, 1));
    let held_by = async |session| {
        store.letter_list(to, LetterFilter::HeldBy(session), 0, 9).await.unwrap().len()
    };
    assert_eq!(held_by(held.session.unwrap()).await, 1);
    assert_eq!(held_by(world.session_id()).await, 0);
    assert_eq!(store.letter_due(at(99_999), 9).await.unwrap(), [], "it has tries left");
    let spent = LetterMark { attempts: 5, ..held };
    store.commit(one_change(mark(spent))).await.unwrap();
    assert_eq!(store.letter_due(at(30), 9).await.unwrap(), []);
    assert_eq!(store.letter_due(at(31), 9).await.unwrap().len(), 1);
    let dead = LetterMark { dead: Some(Dead::Unacknowledged), ..spent };
    store.commit(guarded(5, mark(dead))).await.unwrap();
    refused(store.commit(guarded(5, mark(dead))).await);
    assert_eq!(store.letter_due(at(31), 9).await.unwrap(), []);
    assert_eq!(readable(99).await, 0);
    let all = store.letter_list(to, LetterFilter::Dead, 0, 9).await.unwrap();
    assert_eq!(all[0].mark.dead, Some(Dead::Unacknowledged));
    let counts = MailboxCounts { waiting: 0, dead: 1 };
    assert_eq!(store.mailbox_list(None, 9).await.unwrap(), [(to, counts)]);
    // Deleted keys stay deleted.
    store.commit(one_change(Change::LetterDelete { to, id: sent.id })).await.unwrap();
    store.commit(one_change(mark(held))).await.unwrap();
    assert_eq!(store.letter_fetch(to, sent.id).await.unwrap(), None);
}

pub(super) async fn subscriptions_and_registrations_round_trip(store: &dyn Store, world: &World) {
    let agent = AgentId::mint(world.ids());
    let wish = |pattern: &str| Subscription {
        id: SubscriptionId::mint(world.ids()),
        colony: COLONY,
        agent,
        pattern: TopicPattern::parse(pattern).unwrap(),
        line: vec!["child".into(), "parent".into()],
        created_at: at(1),
        created_by: "ann".into(),
    };
    let (first, second) = (wish("a.*"), wish("b.**"));
    for wish in [&first, &second] {
        store.commit(one_change(Change::SubscriptionPut(Box::new(wish.clone())))).await.unwrap();
    }
    assert_eq!(store.subscription_list(None, 9).await.unwrap(), [first.clone(), second.clone()]);
    assert_eq!(
        store.subscription_list(Some(first.id), 9).await.unwrap(),
        std::slice::from_ref(&second)
    );
    let again = wish("b.**");
    store.commit(one_change(Change::SubscriptionPut(Box::new(again.clone())))).await.unwrap();
    assert_eq!(store.subscription_list(None, 9).await.unwrap(), [first.clone(), again.clone()]);
    store.commit(one_change(Change::SubscriptionDelete(first.id))).await.unwrap();
    assert_eq!(store.subscription_list(None, 9).await.unwrap(), [again]);
    let mut registration = Registration {
        colony: COLONY,
        agent,
        capabilities: vec!["search".into()],
        registered_at: at(3),
    };
    for capabilities in [vec!["search".into()], vec![]] {
        registration.capabilities = capabilities;
        let change = Change::RegistrationPut(Box::new(registration.clone()));
        store.commit(one_change(change)).await.unwrap();
        assert_eq!(
            store.registration_list(None, 9).await.unwrap(),
            std::slice::from_ref(&registration)
        );
    }
    assert_eq!(store.registration_list(Some(agent), 9).await.unwrap(), []);
}

pub(super) async fn secrets_never_come_to_rest_in_the_mesh(store: &dyn Store, world: &World) {
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789";
    store.commit(put(entry("a", 1, json!({"key": secret})))).await.unwrap();
    let to = AgentId::mint(world.ids());
    let sent = Letter { payload: json!([secret]), ..letter(world, to, 1) };
    store.commit(insert(&sent)).await.unwrap();
    let value = store.board_fetch(COLONY, key("a")).await.unwrap().unwrap().value;
    assert!(!value.to_string().contains(secret), "{value}");
    let payload = store.letter_fetch(to, sent.id).await.unwrap().unwrap().payload;
    assert!(!payload.to_string().contains(secret), "{payload}");
}
