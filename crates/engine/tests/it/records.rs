//! Writes of reconcilers to records, and removals by the loop `garbage`.

use std::sync::Arc;
use std::time::Duration;

use overmind_core::budget::NoPrices;
use overmind_core::ids::RecordId;
use overmind_core::record::condition::{Condition, ConditionStatus, conditions};
use overmind_core::record::decide::{self, Outcome, RecordWrite, Stamp};
use overmind_core::record::{
    KINDS, Kind, KindInfo, Name, Owner, OwnerWish, Record, Selector, kind,
};
use overmind_core::row::Role;
use overmind_core::store::Commit;
use overmind_core::time::{Clock as _, Timestamp};
use overmind_engine::{
    AllApplied, Applied, Caller, CascadeWish, EngineError, Observed, RecordDeleted, RecordError,
    RecordWish, Rights,
};
use overmind_testkit::clock::ManualClock;
use overmind_testkit::ports::FakeModels;
use serde_json::{Map, Value, json};

use crate::world::World;

fn context() -> &'static KindInfo {
    kind::find(KINDS, "context").expect("the product has it")
}

fn name(text: &str) -> Name {
    Name::parse(text).expect("the stage of a test works")
}

fn fields(value: Value) -> Option<Map<String, Value>> {
    value.as_object().cloned()
}

struct Stage {
    world: World,
    clock: Arc<ManualClock>,
}

impl Stage {
    /// The first pass of the loop is over; the next begins when the clock is advanced.
    async fn new() -> Self {
        let dir = Arc::new(tempfile::tempdir().expect("the stage of a test works"));
        let clock = Arc::new(ManualClock::default());
        let money = (Arc::clone(&clock) as Arc<_>, Arc::new(NoPrices));
        let world = World::priced(dir, FakeModels::new([]), money.0, money.1).await;
        let stage = Self { world, clock };
        stage.collect().await;
        stage
    }

    async fn put(&self, called: &str, owner: Option<RecordId>, finalizers: &[&str]) -> Record {
        let wish = RecordWish {
            info: context(),
            name: name(called),
            labels: Default::default(),
            annotations: Default::default(),
            spec: json!({"prompt": called}),
            finalizers: Some(finalizers.iter().map(|&one| one.to_owned()).collect()),
            owner: owner.map(|id| OwnerWish::Is(Owner::Record(id))),
            was: None,
        };
        let applied = self.world.engine.record_apply(&self.world.by, vec![wish], false).await;
        applied.expect("it is valid").remove(0).record
    }

    async fn there(&self, called: &str) -> Option<Record> {
        match self.world.engine.record_fetch(&self.world.by, context(), &name(called)).await {
            Ok(record) => Some(record),
            Err(EngineError::NotFound { .. }) => None,
            Err(err) => panic!("{err}"),
        }
    }

    async fn delete(&self, called: &str, how: CascadeWish) -> RecordDeleted {
        let (by, called) = (&self.world.by, name(called));
        let done = self.world.engine.record_delete(by, context(), &called, how, None).await;
        done.expect("it is there")
    }

    async fn observe(&self, found: &Record, observed: Observed) -> Result<Record, RecordError> {
        self.world.engine.record_status(&self.world.by, context(), found, observed).await
    }

    /// One commit without the following ones, as after a crash.
    async fn only(&self, write: RecordWrite) {
        let mut commit = Commit { guards: vec![], events: vec![], changes: vec![] };
        write.join(&mut commit);
        self.world.store.commit(commit).await.expect("nobody else writes");
    }

    /// The result of one pass of the loop.
    async fn collect(&self) -> String {
        let status = self.world.engine.loop_run(&self.world.by, "garbage").await;
        let last = status.expect("it runs").last.expect("a pass was made");
        last.result.expect("the pass works")
    }
}

fn wish(info: &'static KindInfo, called: &str, spec: Value) -> RecordWish {
    RecordWish {
        info,
        name: name(called),
        labels: Default::default(),
        annotations: Default::default(),
        spec,
        finalizers: None,
        owner: None,
        was: None,
    }
}

#[tokio::test]
async fn an_operator_can_neither_own_records_by_an_admins_nor_block_its_deletion() {
    let stage = Stage::new().await;
    let (engine, admin) = (&stage.world.engine, &stage.world.by);
    let op = Caller::new("op", Rights::Role(Role::Operator));
    let project = kind::find(KINDS, "project").unwrap();
    let path = stage.world.dir.path().join("p");
    std::fs::create_dir(&path).unwrap();
    let path = path.canonicalize().unwrap();
    let declared = wish(project, "p", json!({"path": path}));
    engine.record_apply(admin, vec![declared.clone()], false).await.unwrap();
    let child = wish(context(), "child", json!({"prompt": "x"}));
    let of =
        |kind: &str, owner: &str| Some(OwnerWish::Named(Kind::parse(kind).unwrap(), name(owner)));

    let owned = RecordWish { owner: of("project", "p"), ..child.clone() };
    match engine.record_apply(&op, vec![owned.clone()], false).await {
        Err(RecordError::Engine(EngineError::Forbidden { message })) => {
            assert!(message.contains("names project/p, which you may not change"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    let held = RecordWish { finalizers: Some(vec!["evil.example/hold".into()]), ..child.clone() };
    match engine.record_apply(&op, vec![held.clone()], false).await {
        Err(RecordError::Invalid(wrong)) => {
            assert_eq!(wrong[0].1.path, "metadata.finalizers", "{wrong:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(stage.there("child").await.is_none());
    // An admin may, and settings of an admin stay when an operator changes others later.
    let both = RecordWish { finalizers: held.finalizers.clone(), ..owned };
    engine.record_apply(admin, vec![both.clone()], false).await.unwrap();
    let changed = RecordWish { spec: json!({"prompt": "y"}), ..both };
    engine.record_apply(&op, vec![changed], false).await.unwrap();

    // Nor are records that only an admin may delete removed with a record that an operator deletes.
    let fleet = wish(context(), "mine", json!({"prompt": "x"}));
    engine.record_apply(&op, vec![fleet], false).await.unwrap();
    let hung = RecordWish { owner: of("context", "mine"), ..declared };
    match engine.record_apply(admin, vec![hung], false).await {
        Err(RecordError::Engine(EngineError::Invalid { message, .. })) => {
            assert!(message.contains("a project is deleted by admin alone"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

fn stamp(now: Timestamp) -> Stamp<'static> {
    Stamp { now, by: "test" }
}

fn ready(status: ConditionStatus, at: Timestamp, message: &str) -> Condition {
    Condition {
        kind: "Ready".into(),
        status,
        reason: "Because".into(),
        message: message.into(),
        observed_generation: 1,
        last_transition: at,
    }
}

#[tokio::test]
async fn a_status_is_written_only_over_the_version_that_was_read() {
    let stage = Stage::new().await;
    let first = stage.put("a", None, &[]).await;
    let began = stage.clock.now();
    let seen = Observed {
        fields: fields(json!({"active": 2})),
        conditions: vec![ready(ConditionStatus::False, began, "waits")],
        expires_at: None,
    };
    let second = stage.observe(&first, seen.clone()).await.unwrap();
    assert_eq!((second.generation, second.version), (1, 2));
    assert_eq!(Some(second.clone()), stage.there("a").await, "the answer is what is kept");
    // A repeated status is no write; neither is a later time with the same state.
    stage.clock.advance(Duration::from_secs(5));
    let later = vec![ready(ConditionStatus::False, stage.clock.now(), "waits")];
    let same = stage.observe(&second, Observed { conditions: later, ..seen.clone() }).await;
    assert_eq!(same.unwrap(), second);
    // A caller who has not read the second version must read again.
    let late = Observed { fields: fields(json!({"active": 3})), ..Observed::default() };
    let refused = stage.observe(&first, late.clone()).await.unwrap_err();
    assert!(matches!(refused, RecordError::Changed { .. }), "{refused}");
    // Fields are replaced and conditions stay, each with the time of its last change.
    let third = stage.observe(&second, late).await.unwrap();
    assert_eq!(third.status["active"], 3);
    assert_eq!(conditions(&third.status), [ready(ConditionStatus::False, began, "waits")]);
    let done = vec![ready(ConditionStatus::True, stage.clock.now(), "done")];
    let fourth = Observed { conditions: done.clone(), ..Observed::default() };
    let fourth = stage.observe(&third, fourth).await.unwrap();
    assert_eq!((conditions(&fourth.status), &fourth.status["active"]), (done, &json!(3)));
    assert_eq!((fourth.generation, &fourth.spec), (1, &first.spec));
    let viewer = Caller::new("v", Rights::Role(Role::Viewer));
    let refused =
        stage.world.engine.record_status(&viewer, context(), &fourth, Observed::default()).await;
    assert!(matches!(refused, Err(RecordError::Engine(EngineError::Forbidden { .. }))));
}

#[tokio::test]
async fn a_secret_in_a_status_is_masked_and_a_repeated_status_is_no_change() {
    let stage = Stage::new().await;
    let first = stage.put("a", None, &[]).await;
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789";
    let seen = Observed {
        fields: fields(json!({"last": secret})),
        conditions: vec![ready(ConditionStatus::True, stage.clock.now(), secret)],
        expires_at: None,
    };
    let second = stage.observe(&first, seen.clone()).await.unwrap();
    assert!(!format!("{second:?}").contains(secret), "{second:?}");
    assert_eq!(Some(second.clone()), stage.there("a").await);
    assert_eq!(stage.observe(&second, seen).await.unwrap(), second);
}

#[tokio::test]
async fn the_last_finalizer_releases_a_record_and_its_owned_records() {
    let stage = Stage::new().await;
    let owner = stage.put("owner", None, &["a", "b"]).await;
    stage.put("child", Some(owner.id), &[]).await;
    assert_eq!(stage.delete("owner", CascadeWish::Background).await, RecordDeleted::Marked);
    let done = async |finalizer| {
        let (engine, by) = (&stage.world.engine, &stage.world.by);
        engine.record_finalize(by, context(), owner.id, finalizer).await.unwrap()
    };
    assert!(!done("a").await);
    assert!(!done("a").await, "twice is once");
    assert!(stage.there("child").await.is_some(), "its owner is there");
    assert!(done("b").await);
    assert!(done("b").await, "it is gone already");
    assert_eq!((stage.there("owner").await, stage.there("child").await), (None, None));
}

#[tokio::test]
async fn removing_a_finalizer_by_hand_deletes_owned_records_too() {
    let stage = Stage::new().await;
    let owner = stage.put("owner", None, &["a"]).await;
    stage.put("child", Some(owner.id), &[]).await;
    stage.delete("owner", CascadeWish::Background).await;
    stage.put("owner", None, &[]).await;
    assert_eq!((stage.there("owner").await, stage.there("child").await), (None, None));
}

#[tokio::test]
async fn deletions_interrupted_by_a_crash_are_completed() {
    let stage = Stage::new().await;
    let owner = stage.put("owner", None, &[]).await;
    let child = stage.put("child", Some(owner.id), &[]).await;
    stage.put("grandchild", Some(child.id), &[]).await;
    stage.put("held", Some(owner.id), &["a"]).await;
    stage.put("other", None, &[]).await;
    assert_eq!(stage.collect().await, "");
    let now = stage.clock.now();
    stage.only(decide::delete(&owner, stamp(now)).into_write().unwrap()).await;
    assert_eq!(stage.collect().await, "1 without their owner deleted");
    assert_eq!((stage.there("child").await, stage.there("grandchild").await), (None, None));
    let held = stage.there("held").await.unwrap();
    assert!(held.deleting.is_some(), "its finalizer holds it");
    assert!(stage.there("other").await.is_some());
    assert_eq!(stage.collect().await, "", "then it is silent");
    assert_eq!(stage.there("held").await, Some(held));
}

#[tokio::test]
async fn a_waiting_owner_is_deleted_even_after_a_crash() {
    let stage = Stage::new().await;
    let top = stage.put("top", None, &[]).await;
    let owner = stage.put("owner", Some(top.id), &[]).await;
    stage.put("child", Some(owner.id), &["a"]).await;
    assert_eq!(stage.delete("top", CascadeWish::Background).await, RecordDeleted::Gone);
    assert!(stage.there("owner").await.is_none(), "in the background owners do not wait");
    let owner = stage.put("owner", None, &[]).await;
    let child = stage.put("kid", Some(owner.id), &["a"]).await;
    assert_eq!(stage.delete("owner", CascadeWish::Foreground).await, RecordDeleted::Marked);
    assert_eq!(stage.collect().await, "", "what it owns is held");
    assert!(stage.there("owner").await.is_some());
    let marked = stage.there("kid").await.unwrap();
    assert!(marked.deleting.is_some() && marked.id == child.id);
    stage.only(decide::finalize(&marked, "a", stamp(stage.clock.now())).unwrap()).await;
    assert!(stage.there("owner").await.is_some(), "nobody released it");
    assert_eq!(stage.collect().await, "1 deleted after what they owned");
    assert!(stage.there("owner").await.is_none());
    assert_eq!(stage.collect().await, "");
}

#[tokio::test]
async fn a_record_is_deleted_at_its_expiry_and_not_before() {
    let stage = Stage::new().await;
    let record = stage.put("a", None, &[]).await;
    let minute = Duration::from_mins(1);
    let expires_at = Some(stage.clock.now().after(minute));
    let observed = Observed { expires_at, ..Observed::default() };
    let observed = stage.observe(&record, observed).await.unwrap();
    assert_eq!(observed.expires_at, expires_at);
    assert_eq!(stage.collect().await, "");
    assert!(stage.there("a").await.is_some());
    let mut changes = stage.world.engine.record_watch();
    // Only the clock starts the pass.
    stage.clock.advance(minute * 2);
    while stage.there("a").await.is_some() {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn a_change_starts_a_pass_after_a_delay() {
    let stage = Stage::new().await;
    let owner = stage.put("owner", None, &[]).await;
    stage.put("child", Some(owner.id), &[]).await;
    let mut changes = stage.world.engine.record_watch();
    let now = stage.clock.now();
    stage.only(decide::delete(&owner, stamp(now)).into_write().unwrap()).await;
    // Less than the period.
    stage.clock.advance(Duration::from_secs(11));
    while stage.there("child").await.is_some() {
        changes.changed().await.unwrap();
    }
}

impl Stage {
    fn wish(called: &str, owner: Option<&str>) -> RecordWish {
        let owner = owner
            .map(|owner| OwnerWish::Named(Kind::parse("context").expect("a kind"), name(owner)));
        RecordWish {
            info: context(),
            name: name(called),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            annotations: Default::default(),
            spec: json!({"prompt": called}),
            finalizers: None,
            owner,
            was: None,
        }
    }

    async fn apply_all(
        &self,
        wishes: Vec<RecordWish>,
        dry: bool,
    ) -> Result<AllApplied, RecordError> {
        let web = Selector::parse("app=web").expect("a selector");
        self.world.engine.record_apply_all(&self.world.by, wishes, Some(&web), dry).await
    }
}

#[tokio::test]
async fn apply_prunes_unlisted_records_in_its_own_commit_or_not_at_all() {
    let stage = Stage::new().await;
    let first = ["a", "b", "c"].map(|called| Stage::wish(called, None));
    stage
        .apply_all([first.to_vec(), vec![Stage::wish("of-c", Some("c"))]].concat(), false)
        .await
        .unwrap();
    stage.put("other", None, &[]).await;
    let before = stage.there("a").await.unwrap();
    let pruned = |all: &AllApplied| -> Vec<String> {
        all.pruned.iter().map(|record| record.key.name.as_str().to_owned()).collect()
    };
    // A dry-run or refused apply prunes nothing.
    let dry = stage.apply_all(vec![Stage::wish("a", None)], true).await.unwrap();
    assert_eq!(pruned(&dry), ["b", "c"], "what has an owner is its owner's");
    let wrong = RecordWish { spec: json!({"prompt": 7}), ..Stage::wish("a", None) };
    stage.apply_all(vec![wrong], false).await.unwrap_err();
    let under = vec![Stage::wish("a", None), Stage::wish("new", Some("b"))];
    let refused = stage.apply_all(under, false).await.unwrap_err();
    assert!(refused.to_string().contains("names what this apply prunes"), "{refused}");
    for called in ["b", "c", "of-c"] {
        assert!(stage.there(called).await.is_some(), "{called}");
    }
    // One commit: puts have the numbers before those of deletions.
    let changed = RecordWish { spec: json!({"prompt": "changed"}), ..Stage::wish("a", None) };
    let all = stage.apply_all(vec![changed], false).await.unwrap();
    assert_eq!(pruned(&all), ["b", "c"]);
    let after = stage.there("a").await.unwrap();
    assert_eq!(after.changed, all.applied[0].record.changed);
    assert!(after.changed > before.changed);
    for called in ["b", "c", "of-c"] {
        assert_eq!(stage.there(called).await, None, "{called}");
    }
    assert!(stage.there("other").await.is_some(), "it has no such label");
    // A held record is deleted with its last finalizer.
    let mut held = Stage::wish("held", None);
    held.finalizers = Some(vec!["test/held".into()]);
    stage.apply_all(vec![Stage::wish("a", None), held], false).await.unwrap();
    let all = stage.apply_all(vec![Stage::wish("a", None)], false).await.unwrap();
    assert_eq!(pruned(&all), ["held"]);
    assert!(stage.there("held").await.unwrap().deleting.is_some());
    assert_eq!(
        pruned(&stage.apply_all(vec![], false).await.unwrap()),
        ["a"],
        "it is not marked twice"
    );
}

#[tokio::test]
async fn one_apply_creates_owners_and_owned_records_in_any_order() {
    let stage = Stage::new().await;
    let both = vec![Stage::wish("child", Some("parent")), Stage::wish("parent", None)];
    let (by, engine) = (&stage.world.by, &stage.world.engine);
    let made = engine.record_apply(by, both.clone(), false).await.unwrap();
    assert_eq!(made[0].record.owner, Some(Owner::Record(made[1].record.id)));
    assert_eq!(stage.there("child").await, Some(made[0].record.clone()));
    // Applied again, it is unchanged, and an existing owner is found by its name.
    let again = engine.record_apply(by, both, false).await.unwrap();
    assert_eq!(again, [0, 1].map(|at| Applied { outcome: Outcome::Unchanged, ..made[at].clone() }));
    let third = engine.record_apply(by, vec![Stage::wish("third", Some("parent"))], false).await;
    assert_eq!(third.unwrap()[0].record.owner, made[0].record.owner);
    for (called, owner) in [("x", "nobody"), ("x", "x"), ("parent", "parent")] {
        let wrong = vec![Stage::wish(called, Some(owner))];
        let refused = engine.record_apply(by, wrong, false).await.unwrap_err().to_string();
        assert!(refused.contains("metadata.ownerReferences[0].name"), "{refused}");
    }
    assert_eq!(stage.delete("parent", CascadeWish::Background).await, RecordDeleted::Gone);
    for called in ["child", "third"] {
        assert_eq!(stage.there(called).await, None, "{called}");
    }
}
