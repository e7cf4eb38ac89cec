//! Sessions, what their sandboxes were measured to give, steps, agents, keys, settings.

use std::sync::Arc;

use overmind_core::agent::{Agent, AgentStatus};
use overmind_core::attest::{AttestationRef, Attested, Kept, Seal};
use overmind_core::command::CommandRow;
use overmind_core::ids::{
    AgentId, ApiKeyId, ApprovalId, ColonyId, HiveId, RecordId, SessionId, StepId,
};
use overmind_core::model::Usage;
use overmind_core::record::Selector;
use overmind_core::room::history::RoomChanges;
use overmind_core::room::stay::{RoomAttested, RoomDecision, RoomPhase, RoomRow};
use overmind_core::room::{RoomClosed, RoomDone, RoomError, RoomErrorKind, RoomMade, RoomOutcome};
use overmind_core::row::{ApiKey, Role, SessionRow, SessionStatus, StepKind};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::{Change, IdempotentAnswer, NameFilter, Page, SessionFilter, Store};
use serde_json::{Value, json};

use super::{World, at, attestation, first, missing, one_change, refused};

/// Without a signer.
fn measured() -> Attested {
    Attested::new(attestation(), None)
}

pub(super) async fn attestations_are_kept_once_under_their_digest(store: &dyn Store, _: &World) {
    let attested = measured();
    assert_eq!(store.attestation_fetch(attested.digest.clone()).await.unwrap(), None);
    let mut other = attested.clone();
    other.attestation.took_us += 1;
    for attested in [attested.clone(), other] {
        // The second has the same name, and the first one stays.
        store.commit(one_change(Change::AttestationPut(Arc::new(attested)))).await.unwrap();
    }
    let kept = store.attestation_fetch(attested.digest.clone()).await.unwrap().unwrap();
    assert_eq!(kept, Kept { attested, seal: Seal::Unsigned });
}

/// A session with a value in every place.
fn full_session(world: &World) -> SessionRow {
    let mut row = world.session();
    row.colony = ColonyId::mint(world.ids());
    row.agent_version = 7;
    row.hive = Some(HiveId::LOCAL);
    row.epoch = 2;
    row.status = SessionStatus::AwaitingApproval;
    row.task = "do 'this'\nand \"that\" ☃".into();
    row.started_at = Some(at(5));
    row.finished_at = Some(at(6));
    row.prompt = Some("which?".into());
    row.approval = Some(ApprovalId::derive(row.id, 1));
    row.final_answer = Some(String::new());
    row.error = Some(json!({ "code": "step_limit", "message": "m", "n": 1.5 }));
    row.usage = Usage {
        input_tokens: 1,
        output_tokens: 2,
        cached_input_tokens: 3,
        cache_write_tokens: 4,
        reasoning_tokens: 1 << 40,
    };
    row.cost_microusd = None;
    row.model_calls = 9;
    row.steps = u32::MAX;
    row.sandbox = SandboxLevel::Docker;
    row.attestation = Some(AttestationRef::from(&measured()));
    row.forked_from = Some((world.session_id(), 4));
    row.created_by = "key one".into();
    row.owner = Some(RecordId::mint(world.ids()));
    row.labels = [("tier".into(), "gold".into()), ("example.com/a".into(), String::new())].into();
    row.parent = Some(world.session_id());
    row.command = Some(CommandRow {
        life: 3,
        pid: Some(4_194_304),
        restarts: 2,
        exit_code: Some(-1),
        signal: Some(9),
        restart_at: Some(at(9)),
        stopping: true,
        conversation: Some("c-1".into()),
        log_removed: true,
    });
    row.room = Some(Box::new(RoomRow {
        phase: RoomPhase::Kept,
        made: Some(RoomMade { directory: "/rooms/1".into(), ..RoomMade::default() }),
        closed: Some(RoomClosed { parked: true, ..RoomClosed::default() }),
        error: Some(RoomError::new(RoomErrorKind::Failed, "no port is free")),
        done: Some(RoomDecision {
            what: RoomDone::Merge { into: Some("main".into()) },
            by: "ann".into(),
            at: at(10),
            outcome: RoomOutcome { said: "merged".into(), ..RoomOutcome::default() },
        }),
        attested: vec![RoomAttested::new("service db".into(), &measured())],
        changes: Some(RoomChanges { files: 3, added: 41, removed: 7 }),
        rest_ended_by: Some("ann".into()),
    }));
    row
}

pub(super) async fn sessions_round_trip(store: &dyn Store, world: &World) {
    store.commit(one_change(Change::AttestationPut(Arc::new(measured())))).await.unwrap();
    let rows = [world.session(), full_session(world)];
    for row in &rows {
        store.commit(one_change(Change::SessionInsert(Box::new(row.clone())))).await.unwrap();
        assert_eq!(store.session_fetch(row.id).await.unwrap().as_ref(), Some(row));
        refused(store.commit(one_change(Change::SessionInsert(Box::new(row.clone())))).await);
    }
    // Each takes the other's values: every column is written by an update, and read again, but for
    // what a session has for its whole life.
    let [a, b] = rows;
    let swapped = [SessionRow { id: a.id, ..b.clone() }, SessionRow { id: b.id, ..a.clone() }];
    for (row, own) in swapped.into_iter().zip([a, b]) {
        store.commit(one_change(Change::SessionUpdate(Box::new(row.clone())))).await.unwrap();
        let SessionRow { name, parent, owner, labels, .. } = own;
        let row = SessionRow { name, parent, owner, labels, ..row };
        assert_eq!(store.session_fetch(row.id).await.unwrap(), Some(row.clone()));
        // The same again, and then without a change of status.
        let row = SessionRow { task: "another".into(), epoch: row.epoch + 1, ..row };
        store.commit(one_change(Change::SessionUpdate(Box::new(row.clone())))).await.unwrap();
        assert_eq!(store.session_fetch(row.id).await.unwrap(), Some(row));
    }
    let stranger = world.session();
    missing(store.commit(one_change(Change::SessionUpdate(Box::new(stranger.clone())))).await);
    assert_eq!(store.session_fetch(stranger.id).await.unwrap(), None);
}

pub(super) async fn sessions_are_listed_newest_first_in_pages(store: &dyn Store, world: &World) {
    let (agent, colony) = (AgentId::mint(world.ids()), ColonyId::mint(world.ids()));
    let mut rows: Vec<SessionRow> = Vec::new();
    for n in 0..12 {
        let mut row = world.session();
        if n % 2 == 0 {
            row.agent = agent;
        }
        if n % 3 == 0 {
            row.colony = colony;
        }
        row.name = format!("listed-{n}");
        if let Some(first) = rows.get(n % 2) {
            row.parent = Some(first.id);
        }
        if n % 4 == 0 {
            row.status = SessionStatus::Running;
            row.owner = Some(RecordId::from_u128(4));
        }
        if n % 3 == 0 {
            row.labels.insert("tier".into(), ["gold", "tin"][n % 2].into());
            row.labels.insert("n".into(), (n % 4).to_string());
            row.owner = Some(RecordId::from_u128(3));
        }
        store.commit(one_change(Change::SessionInsert(Box::new(row.clone())))).await.unwrap();
        rows.push(row);
    }
    let list = |filter: SessionFilter, page: Page<SessionId>| async move {
        let found = store.session_list(filter, page).await.unwrap();
        found.iter().map(|row| row.id).collect::<Vec<_>>()
    };
    let expect = |keep: &dyn Fn(&SessionRow) -> bool| {
        rows.iter().rev().filter(|row| keep(row)).map(|row| row.id).collect::<Vec<_>>()
    };
    let any = SessionFilter::default();
    assert_eq!(list(any.clone(), first(100)).await, expect(&|_| true));
    for by_agent in [None, Some(agent)] {
        for by_colony in [None, Some(colony)] {
            for statuses in [
                vec![],
                vec![SessionStatus::Running],
                vec![SessionStatus::Failed],
                vec![SessionStatus::Failed, SessionStatus::Running],
                vec![SessionStatus::Running, SessionStatus::Queued, SessionStatus::Running],
            ] {
                let filter = SessionFilter {
                    colony: by_colony,
                    agent: by_agent,
                    statuses: statuses.clone(),
                    ..SessionFilter::default()
                };
                let wanted = expect(&|row| {
                    by_agent.is_none_or(|agent| row.agent == agent)
                        && by_colony.is_none_or(|colony| row.colony == colony)
                        && (statuses.is_empty() || statuses.contains(&row.status))
                });
                for limit in [3, 100] {
                    let wanted = &wanted[..wanted.len().min(limit as usize)];
                    assert_eq!(list(filter.clone(), first(limit)).await, wanted, "{filter:?}");
                }
            }
        }
    }
    for parent in [rows[0].id, rows[1].id] {
        let filter = SessionFilter { parent: Some(parent), ..any.clone() };
        assert_eq!(list(filter, first(100)).await, expect(&|row| row.parent == Some(parent)));
    }
    // Each is below the first or the second, the second below the first where that is its parent.
    for top in [rows[0].id, rows[1].id, rows[2].id] {
        let mut family = std::collections::BTreeSet::from([top]);
        for row in &rows {
            if row.parent.is_some_and(|parent| family.contains(&parent)) {
                family.insert(row.id);
            }
        }
        let filter = SessionFilter { tree: Some(top), ..any.clone() };
        assert_eq!(list(filter.clone(), first(100)).await, expect(&|row| family.contains(&row.id)));
        let statuses = vec![SessionStatus::Running, SessionStatus::Failed];
        let filter = SessionFilter { statuses, ..filter };
        let running = |row: &SessionRow| row.status == SessionStatus::Running;
        let wanted = expect(&|row| family.contains(&row.id) && running(row));
        assert_eq!(list(filter, first(100)).await, wanted);
    }
    for owner in [RecordId::from_u128(3), RecordId::from_u128(4), RecordId::from_u128(9)] {
        let filter = SessionFilter { owner: Some(owner), ..any.clone() };
        assert_eq!(list(filter, first(100)).await, expect(&|row| row.owner == Some(owner)));
    }
    for text in
        ["tier=gold", "tier!=gold", "tier in (gold, tin)", "tier,n!=1", "!tier", "n=2,tier=gold"]
    {
        let selector = Selector::parse(text).expect("it is one");
        let wanted = expect(&|row| selector.matches(&row.labels));
        assert!(!wanted.is_empty(), "{text}");
        let statuses = vec![SessionStatus::Running, SessionStatus::Failed];
        let filter = SessionFilter { selector, ..any.clone() };
        assert_eq!(list(filter.clone(), first(100)).await, wanted, "{text}");
        let running = |row: &SessionRow| row.status == SessionStatus::Running;
        let wanted = expect(&|row| filter.selector.matches(&row.labels) && running(row));
        assert_eq!(
            list(SessionFilter { statuses, ..filter.clone() }, first(100)).await,
            wanted,
            "{text}"
        );
    }
    for (name, fits) in [
        (NameFilter::Is(rows[3].name.clone()), 1),
        (NameFilter::Is("nobody".into()), 0),
        (NameFilter::Begins("listed-1".into()), 0),
        (NameFilter::Begins("listed-".into()), rows.len()),
        (NameFilter::Begins("listed_".into()), 0),
        (NameFilter::Begins("listed-%".into()), 0),
    ] {
        let wanted = expect(&|row| match &name {
            NameFilter::Is(name) => row.name == *name,
            NameFilter::Begins(beginning) => row.name.starts_with(beginning.as_str()),
        });
        assert!(wanted.len() >= fits, "{name:?}");
        let filter = SessionFilter { name: Some(name.clone()), ..any.clone() };
        assert_eq!(list(filter, first(100)).await, wanted, "{name:?}");
    }
    let mut paged = Vec::new();
    let mut page = first(5);
    loop {
        let part = list(any.clone(), page).await;
        assert!(part.len() <= 5);
        let Some(last) = part.last() else { break };
        page.after = Some(*last);
        paged.extend(part);
    }
    assert_eq!(paged, expect(&|_| true));
    // The place after which a page begins need not exist.
    let between = SessionId::from_u128(rows[6].id.as_u128() - 1);
    let page = Page { limit: 1, after: Some(between) };
    assert_eq!(list(any, page).await, [rows[5].id]);

    let scan = |after, limit| async move {
        let found = store.session_scan(SessionStatus::Running, after, limit).await.unwrap();
        found.iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(scan(None, 2).await, [rows[0].id, rows[4].id]);
    assert_eq!(scan(Some(rows[4].id), 2).await, [rows[8].id]);
}

pub(super) async fn steps_round_trip(store: &dyn Store, world: &World) {
    let session = world.session();
    let mut step = world.step(session.id, 0);
    missing(store.commit(one_change(Change::StepPut(Box::new(step.clone())))).await);
    store.commit(one_change(Change::SessionInsert(Box::new(session.clone())))).await.unwrap();
    store.commit(one_change(Change::StepPut(Box::new(step.clone())))).await.unwrap();
    assert_eq!(store.step_fetch(step.id).await.unwrap(), Some(step.clone()));
    step.kind = StepKind::Verify;
    step.turn = 3;
    step.input = json!(["other"]);
    step.output = Some(json!({ "ok": true, "z": 1, "a": 2 }));
    step.finished_at = Some(at(9));
    step.error = Some("it broke".into());
    store.commit(one_change(Change::StepPut(Box::new(step.clone())))).await.unwrap();
    assert_eq!(store.step_fetch(step.id).await.unwrap(), Some(step.clone()));

    for idx in 1..10 {
        let step = world.step(session.id, idx);
        store.commit(one_change(Change::StepPut(Box::new(step)))).await.unwrap();
    }
    let list = |after, limit| async move {
        let found = store.step_list(session.id, after, limit).await.unwrap();
        found.iter().map(|step| step.idx).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 4).await, [0, 1, 2, 3]);
    assert_eq!(list(Some(0), 3).await, [1, 2, 3]);
    assert_eq!(list(Some(7), 100).await, [8, 9]);
    // One place, one step; one step, one place.
    let mut stranger = world.step(session.id, 0);
    stranger.id = StepId::derive(session.id, 77);
    refused(store.commit(one_change(Change::StepPut(Box::new(stranger)))).await);
    step.idx = 55;
    refused(store.commit(one_change(Change::StepPut(Box::new(step)))).await);
    assert_eq!(store.step_fetch(StepId::derive(session.id, 77)).await.unwrap(), None);
}

pub(super) async fn agents_keep_their_versions(store: &dyn Store, world: &World) {
    let mut agent = world.agent("mender");
    store.commit(one_change(Change::AgentPut(Box::new(agent.clone())))).await.unwrap();
    let v1 = agent.clone();
    agent.version = 2;
    agent.spec.limits.max_steps = 3;
    agent.spec.reasoning_effort = Some("low".into());
    agent.status = AgentStatus::Disabled;
    agent.updated_at = at(8);
    store.commit(one_change(Change::AgentPut(Box::new(agent.clone())))).await.unwrap();
    assert_eq!(store.agent_fetch(agent.id).await.unwrap(), Some(agent.clone()));
    let versions = store.agent_versions(agent.id, first(10)).await.unwrap();
    assert_eq!(versions, [agent.clone(), v1.clone()]);
    let page = Page { limit: 10, after: Some(2) };
    assert_eq!(store.agent_versions(agent.id, page).await.unwrap(), [v1]);

    let namesake = world.agent("mender");
    let elsewhere = Agent { colony: ColonyId::mint(world.ids()), ..world.agent("mender") };
    for agent in [&namesake, &elsewhere] {
        store.commit(one_change(Change::AgentPut(Box::new(agent.clone())))).await.unwrap();
    }
    let by_name = |colony, name: &str| store.agent_by_name(colony, name.into());
    assert_eq!(by_name(ColonyId::DEFAULT, "mender").await.unwrap(), Some(namesake.clone()));
    assert_eq!(by_name(elsewhere.colony, "mender").await.unwrap(), Some(elsewhere.clone()));
    assert_eq!(by_name(ColonyId::DEFAULT, "Mender").await.unwrap(), None);
    let list = store.agent_list(first(2)).await.unwrap();
    assert_eq!(list, [elsewhere, namesake.clone()]);
    let page = Page { limit: 2, after: Some(namesake.id) };
    assert_eq!(store.agent_list(page).await.unwrap(), [agent]);
}

pub(super) async fn names_of_api_keys_are_unique_until_revoked(store: &dyn Store, world: &World) {
    let key = |name: &str, hash: u8| ApiKey {
        id: ApiKeyId::mint(world.ids()),
        colony: ColonyId::DEFAULT,
        name: name.into(),
        role: Role::Operator,
        hash: [hash; 32],
        created_at: at(1),
        revoked_at: None,
    };
    let put = |key: &ApiKey| store.commit(one_change(Change::ApiKeyPut(Box::new(key.clone()))));
    let mut one = key("ci", 1);
    put(&one).await.unwrap();
    refused(put(&key("ci", 2)).await);
    refused(put(&key("other", 1)).await);
    assert_eq!(store.api_key_by_hash([1; 32]).await.unwrap(), Some(one.clone()));
    assert_eq!(store.api_key_by_hash([2; 32]).await.unwrap(), None);
    one.revoked_at = Some(at(2));
    one.role = Role::Viewer;
    put(&one).await.unwrap();
    let two = key("ci", 2);
    put(&two).await.unwrap();
    assert_eq!(store.api_key_list(first(9)).await.unwrap(), [two.clone(), one.clone()]);
    let page = Page { limit: 9, after: Some(two.id) };
    assert_eq!(store.api_key_list(page).await.unwrap(), [one]);
}

pub(super) async fn settings_round_trip(store: &dyn Store, _: &World) {
    let put = |value: Value| {
        store.commit(one_change(Change::SettingPut { key: "a.b".into(), value, at: at(1) }))
    };
    for value in [json!({ "x": [1, "2", null] }), json!("text"), json!(null)] {
        put(value.clone()).await.unwrap();
        assert_eq!(store.setting_fetch("a.b".into()).await.unwrap(), Some(value));
    }
    for _ in 0..2 {
        store.commit(one_change(Change::SettingDelete { key: "a.b".into() })).await.unwrap();
        assert_eq!(store.setting_fetch("a.b".into()).await.unwrap(), None);
    }
    for seen in [1, 2] {
        let hive = Change::HivePut { hive: HiveId::LOCAL, name: "here".into(), seen_at: at(seen) };
        store.commit(one_change(hive)).await.unwrap();
    }
}

pub(super) async fn idempotency_keys_are_taken_once(store: &dyn Store, _: &World) {
    let put = |scope: &str, key: &str, resource: &str| {
        let answer = IdempotentAnswer { fingerprint: [7; 32], resource: resource.into() };
        let (scope, key) = (scope.to_owned(), key.to_owned());
        store.commit(one_change(Change::IdempotencyPut { scope, key, answer, at: at(1) }))
    };
    put("admin", "k", "first").await.unwrap();
    refused(put("admin", "k", "second").await);
    put("other", "k", "third").await.unwrap();
    put("admi", "nk", "fourth").await.unwrap();
    let fetch = |scope: &str, key: &str| store.idempotency_fetch(scope.into(), key.into());
    let found = fetch("admin", "k").await.unwrap().unwrap();
    assert_eq!((found.fingerprint, &*found.resource), ([7; 32], "first"));
    assert_eq!(fetch("admi", "nk").await.unwrap().unwrap().resource, "fourth");
    assert_eq!(fetch("admin", "x").await.unwrap(), None);
}
