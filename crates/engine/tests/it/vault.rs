//! The vault inside the engine: invariants after any order of changes, restarts and rotations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::store::{EventQuery, StreamId};
use overmind_core::vault::grant::{Grant, GrantKind};
use overmind_core::vault::{Secret, Secrets as _, Use};
use overmind_engine::{Caller, EngineError, Rights};

use overmind_testkit::ports::{FakeModels, FakeTools};

use crate::world::World;

fn secret(text: &str) -> Secret {
    Secret::new(text).expect("the test gives a sound one")
}

async fn world() -> World {
    World::new(FakeTools::ok(), FakeModels::new([])).await
}

/// The same data directory after a shutdown in good order.
async fn restarted(world: World) -> World {
    world.engine.drain(Duration::ZERO).await;
    let dir = Arc::clone(&world.dir);
    drop(world);
    World::at(dir, FakeTools::ok(), FakeModels::new([]), 64).await
}

/// A small generator: the same seed, the same story.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Values by version, the newest last.
type Model = BTreeMap<String, Vec<(u32, String)>>;

#[tokio::test]
async fn the_newest_secret_value_survives_every_sequence_of_changes_and_restarts() {
    for seed in 0..6 {
        let mut dice = Dice(seed);
        let mut world = world().await;
        let mut model = Model::new();
        for step in 0..60 {
            let name = format!("s{}", dice.roll(3));
            let keep = u32::try_from(dice.roll(4)).unwrap();
            let by = world.by.clone();
            match dice.roll(10) {
                0..=4 => {
                    let value = format!("value-{seed}-{step}");
                    let set = world.engine.secret_set(&by, &name, secret(&value), keep, false);
                    let view = set.await.unwrap();
                    let versions = model.entry(name.clone()).or_default();
                    let next = versions.last().map_or(1, |(version, _)| version + 1);
                    assert_eq!(view.version, next, "seed {seed}, step {step}");
                    versions.push((next, value));
                    let surplus = versions.len().saturating_sub(keep as usize + 1);
                    versions.drain(..surplus);
                }
                5 => {
                    let removed = world.engine.secret_remove(&by, &name).await;
                    assert_eq!(removed.is_ok(), model.remove(&name).is_some(), "{removed:?}");
                }
                6 | 7 => {
                    let Some(versions) = model.get_mut(&name) else { continue };
                    let at = usize::try_from(dice.roll(versions.len() as u64)).unwrap();
                    let (version, value) = versions[at].clone();
                    world.engine.secret_restore(&by, &name, version).await.unwrap();
                    // The same value again is no new version.
                    let (newest, current) = versions.last().unwrap().clone();
                    if current != value {
                        versions.push((newest + 1, value));
                    }
                }
                8 => drop(world.engine.vault_rotate_master(&by, None).await.unwrap()),
                _ => world = restarted(world).await,
            }
            let vault = world.engine.vault();
            for n in 0..3 {
                let name = format!("s{n}");
                let wanted = model.get(&name).map(|all| all.last().unwrap().1.as_str());
                let got = vault.get(&name);
                let got = got.as_ref().map(Secret::expose);
                assert_eq!(got, wanted, "seed {seed}, step {step}, {name}");
                assert_eq!(vault.has(&name), wanted.is_some());
            }
            let shown = world.engine.secret_list(&by, None, 10).unwrap();
            let shown: Vec<Vec<u32>> = shown.into_iter().map(|view| view.versions).collect();
            let known = model.values().map(|all| all.iter().rev().map(|(n, _)| *n).collect());
            assert_eq!(shown, known.collect::<Vec<Vec<u32>>>(), "seed {seed}, step {step}");
        }
    }
}

#[tokio::test]
async fn uses_of_secrets_are_reported_once_a_minute_with_their_count() {
    let world = world().await;
    world.engine.secret_set(&world.by, "key", secret("value-0001"), 0, false).await.unwrap();
    let vault = Arc::clone(world.engine.vault());
    let mine = || Use { agent: Some("a".into()), host: Some("h".into()), ..Use::default() };
    for _ in 0..500 {
        assert!(vault.get_for("KEY", mine()).is_some());
    }
    assert!(vault.get_for("other", mine()).is_none());
    let told = || async {
        let query = EventQuery {
            stream: Some(StreamId::System),
            after: 0,
            kinds: &["vault.used"],
            limit: 100,
        };
        world.store.events(query).await.unwrap()
    };
    let waited = async {
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        while told().await.is_empty() {
            tick.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waited).await.expect("a use is told");
    let view = world.engine.secret_list(&world.by, None, 10).unwrap().remove(0);
    assert_eq!(view.uses, 500);
    let events = told().await;
    // One at once; one more for each minute that ends while this runs.
    assert!(events.len() <= 3, "{} events", events.len());
    assert_eq!(events[0].value()["agent"], "a");
}

#[tokio::test]
async fn only_admins_change_or_list_the_vault() {
    let world = world().await;
    let by = Caller::new("op", Rights::Role(overmind_core::row::Role::Operator));
    let engine = &world.engine;
    let forbidden =
        |err: EngineError| assert!(matches!(err, EngineError::Forbidden { .. }), "{err}");
    forbidden(engine.secret_set(&by, "k", secret("value-0001"), 0, false).await.unwrap_err());
    forbidden(engine.secret_remove(&by, "k").await.unwrap_err());
    forbidden(engine.secret_list(&by, None, 1).unwrap_err());
    forbidden(engine.secret_import(&by, Vec::new()).await.unwrap_err());
    forbidden(engine.vault_rotate_master(&by, None).await.unwrap_err());
    forbidden(engine.vault_unlock(&by, None).await.unwrap_err());
    let grant = Grant { agent: "*".into(), kind: GrantKind::Service, object: "openai".into() };
    forbidden(engine.grant_put(&by, grant.clone()).await.unwrap_err());
    forbidden(engine.grant_remove(&by, &grant).await.unwrap_err());
    let service = engine.vault().service("openai").unwrap();
    forbidden(engine.service_put(&by, (*service).clone()).await.unwrap_err());
    forbidden(engine.service_remove(&by, "openai").await.unwrap_err());
    assert!(engine.vault_status(&by).is_ok() && engine.service_list(&by, None, 5).is_ok());
    assert!(!engine.vault().may_call("anyone", "openai"));
    engine.grant_put(&world.by, grant.clone()).await.unwrap();
    assert!(engine.vault().may_call("anyone", "openai"));
    engine.grant_remove(&world.by, &grant).await.unwrap();
    assert!(!engine.vault().may_call("anyone", "openai"));
}
