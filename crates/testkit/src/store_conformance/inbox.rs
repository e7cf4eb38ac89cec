//! The inbox.

use overmind_core::ids::{AgentId, ColonyId, InboxId, RecordId, SessionId};
use overmind_core::inbox::{
    InboxCounts, InboxCursor, InboxFilter, InboxItem, InboxKind, InboxState,
};
use overmind_core::row::SessionStatus;
use overmind_core::store::{Change, Commit, Page, Store, StreamId};
use serde_json::json;

use super::{World, at, event, first, one_change};

fn item(world: &World, session: Option<SessionId>, seconds: i64) -> InboxItem {
    InboxItem {
        id: InboxId::mint(world.ids()),
        colony: ColonyId::DEFAULT,
        session,
        owner: None,
        agent: None,
        agent_name: String::new(),
        epoch: 0,
        kind: InboxKind::Approval,
        state: InboxState::Open,
        title: "run_shell: ls".into(),
        details: json!({}),
        group: None,
        asked_at: at(seconds),
        expires_at: None,
        answered_at: None,
        answered_by: None,
        answer: None,
        changed: 0,
    }
}

async fn put(store: &dyn Store, item: &InboxItem) {
    store.commit(one_change(Change::InboxPut(Box::new(item.clone())))).await.unwrap();
}

pub(super) async fn items_round_trip(store: &dyn Store, world: &World) {
    // Without a session, like a budget request may be.
    let plain = item(world, None, 1);
    let full = InboxItem {
        owner: Some(RecordId::mint(world.ids())),
        agent: Some(AgentId::mint(world.ids())),
        agent_name: "coder".into(),
        epoch: 3,
        kind: InboxKind::Question,
        state: InboxState::Answered,
        title: "Which \"one\" ☃?".into(),
        details: json!({"prompt": "Which?", "deep": [1, {"z": null}]}),
        group: Some("g".into()),
        expires_at: Some(at(9)),
        answered_at: Some(at(8)),
        answered_by: Some("ann".into()),
        answer: Some(String::new()),
        ..item(world, Some(world.session_id()), 2)
    };
    for item in [&plain, &full] {
        assert_eq!(store.inbox_fetch(item.id).await.unwrap(), None);
        put(store, item).await;
        assert_eq!(store.inbox_fetch(item.id).await.unwrap().as_ref(), Some(item));
    }
    // Each takes the other's values: every column is written by a change, and read again.
    let swapped =
        [InboxItem { id: plain.id, ..full.clone() }, InboxItem { id: full.id, ..plain.clone() }];
    for item in &swapped {
        put(store, item).await;
        assert_eq!(store.inbox_fetch(item.id).await.unwrap().as_ref(), Some(item));
    }
}

pub(super) async fn items_are_listed_newest_first_in_pages(store: &dyn Store, world: &World) {
    let (colony, session) = (ColonyId::mint(world.ids()), world.session_id());
    let mut items = Vec::new();
    for n in 0..24_i64 {
        // Several of one moment: the id decides then.
        let mut item = item(world, (n % 5 == 0).then_some(session), n / 3);
        if n % 2 == 0 {
            item.colony = colony;
        }
        if n % 3 == 0 {
            item.state = InboxState::Denied;
        }
        if n % 4 == 0 {
            item.kind = InboxKind::Question;
        }
        if n % 7 == 0 {
            item.group = Some("g".into());
        }
        put(store, &item).await;
        items.push(item);
    }
    items.sort_by_key(|item| std::cmp::Reverse(item.cursor()));
    let list = |filter: InboxFilter, page: Page<InboxCursor>| async move {
        store.inbox_list(filter, page).await.unwrap()
    };
    for by_colony in [None, Some(colony)] {
        for state in [None, Some(InboxState::Open), Some(InboxState::Denied)] {
            for kind in [None, Some(InboxKind::Question), Some(InboxKind::Raise)] {
                for by_session in [None, Some(session)] {
                    for group in [None, Some("g".to_owned()), Some("h".to_owned())] {
                        let filter = InboxFilter {
                            colony: by_colony,
                            state,
                            kind,
                            session: by_session,
                            group: group.clone(),
                        };
                        let fits = |item: &&InboxItem| {
                            by_colony.is_none_or(|colony| item.colony == colony)
                                && state.is_none_or(|state| item.state == state)
                                && kind.is_none_or(|kind| item.kind == kind)
                                && by_session.is_none_or(|id| item.session == Some(id))
                                && group
                                    .as_ref()
                                    .is_none_or(|group| item.group.as_ref() == Some(group))
                        };
                        let wanted: Vec<_> = items.iter().filter(fits).cloned().collect();
                        assert_eq!(list(filter.clone(), first(100)).await, wanted, "{filter:?}");
                    }
                }
            }
        }
    }
    let mut paged = Vec::new();
    let mut page = first(5);
    loop {
        let part = list(InboxFilter::default(), page).await;
        assert!(part.len() <= 5);
        let Some(last) = part.last() else { break };
        page.after = Some(last.cursor());
        paged.extend(part);
    }
    assert_eq!(paged, items);
}

pub(super) async fn changes_are_told_in_order_and_commits_stay_whole(
    store: &dyn Store,
    world: &World,
) {
    let colony = ColonyId::DEFAULT;
    assert_eq!(store.inbox_counts(colony).await.unwrap(), (InboxCounts::default(), 0));
    let stream = StreamId::Session(world.session_id());
    let mut items = Vec::new();
    // Two items in each commit, with events before them.
    for n in 0..4 {
        let pair = [item(world, None, 10 - n), item(world, None, 10 - n)];
        let changes = pair.iter().cloned().map(Box::new).map(Change::InboxPut).collect();
        let events = vec![event(stream, json!({})), event(stream, json!({}))];
        let done = store.commit(Commit { guards: vec![], events, changes }).await.unwrap();
        items.extend(pair.map(|item| InboxItem { changed: done.global, ..item }));
    }
    let mut elsewhere = item(world, None, 3);
    elsewhere.colony = ColonyId::mint(world.ids());
    put(store, &elsewhere).await;
    let ids = |items: &[InboxItem]| {
        let mut ids: Vec<_> = items.iter().map(|item| (item.changed, item.id)).collect();
        ids.sort();
        ids
    };
    let all = store.inbox_changes(colony, 0, 100).await.unwrap();
    assert_eq!(ids(&all), ids(&items));
    assert!(all.is_sorted_by_key(|item| item.changed));
    let (counts, head) = store.inbox_counts(colony).await.unwrap();
    assert_eq!((counts.approvals, counts.total()), (8, 8));
    assert!(head >= all[7].changed);
    // A page that would end inside a commit has all of that commit.
    let part = store.inbox_changes(colony, 0, 3).await.unwrap();
    assert_eq!(ids(&part), ids(&items[..4]));
    let rest = store.inbox_changes(colony, part[3].changed, 100).await.unwrap();
    assert_eq!(ids(&rest), ids(&items[4..]));
    // A changed item is listed again, once, at its new place.
    let closed = InboxItem { state: InboxState::Withdrawn, ..items[0].clone() };
    let events = vec![event(stream, json!({}))];
    let changes = vec![Change::InboxPut(Box::new(closed))];
    let done = store.commit(Commit { guards: vec![], events, changes }).await.unwrap();
    let after = store.inbox_changes(colony, all[7].changed, 100).await.unwrap();
    assert_eq!(ids(&after), [(done.global, items[0].id)]);
    assert_eq!(store.inbox_counts(colony).await.unwrap().0.approvals, 7);
    assert_eq!(store.inbox_changes(colony, done.global, 100).await.unwrap(), []);
}

pub(super) async fn sessions_that_wait_without_an_item_are_found(store: &dyn Store, world: &World) {
    let mut waiting = Vec::new();
    for status in SessionStatus::ALL {
        let mut row = world.session();
        row.status = status;
        store.commit(one_change(Change::SessionInsert(Box::new(row.clone())))).await.unwrap();
        if matches!(status, SessionStatus::AwaitingInput | SessionStatus::AwaitingApproval) {
            waiting.push(row.id);
        }
    }
    assert_eq!(store.inbox_missing(None, 100).await.unwrap(), waiting);
    assert_eq!(store.inbox_missing(None, 1).await.unwrap(), waiting[..1]);
    assert_eq!(store.inbox_missing(Some(waiting[0]), 100).await.unwrap(), waiting[1..]);
    put(store, &item(world, Some(waiting[0]), 1)).await;
    assert_eq!(store.inbox_missing(None, 100).await.unwrap(), waiting[1..]);
    // A closed item says nothing about the session's current wait.
    put(store, &InboxItem { state: InboxState::Answered, ..item(world, Some(waiting[1]), 1) })
        .await;
    assert_eq!(store.inbox_missing(None, 100).await.unwrap(), waiting[1..]);
}

pub(super) async fn retention_takes_the_items_of_a_session_along(store: &dyn Store, world: &World) {
    let mut row = world.session();
    row.status = SessionStatus::Canceled;
    row.finished_at = Some(at(5));
    let gone = item(world, Some(row.id), 1);
    let kept = [item(world, Some(world.session_id()), 1), item(world, None, 1)];
    store.commit(one_change(Change::SessionInsert(Box::new(row)))).await.unwrap();
    for item in kept.iter().chain([&gone]) {
        put(store, item).await;
    }
    assert_eq!(store.prune(at(6), at(7)).await.unwrap().sessions, 1);
    assert_eq!(store.inbox_fetch(gone.id).await.unwrap(), None);
    for item in kept {
        assert!(store.inbox_fetch(item.id).await.unwrap().is_some());
    }
}

pub(super) async fn secrets_never_come_to_rest_in_the_inbox(store: &dyn Store, world: &World) {
    // Put together here so that no scanner takes this file for a leak.
    let secret = format!("ghp_{}", "A1b2C3d4E5f6G7h8I9j0");
    let text = format!("push with {secret}");
    let item = InboxItem {
        title: text.clone(),
        agent_name: text.clone(),
        details: json!({"args": {"command": text}}),
        answered_by: Some(text.clone()),
        answer: Some(text.clone()),
        ..item(world, None, 1)
    };
    put(store, &item).await;
    let stored = format!("{:?}", store.inbox_fetch(item.id).await.unwrap().unwrap());
    assert!(!stored.contains(&secret), "{stored}");
    assert_eq!(stored.matches("[redacted:github-token]").count(), 5, "{stored}");
}
