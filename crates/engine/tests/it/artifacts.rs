//! Artifacts: versions, bounds, readers, masking, and repeated calls.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use overmind_core::acl::{Permissions, PermissionsFile};
use overmind_core::artifact::{MAX_BYTES, MAX_COUNT};
use overmind_core::ids::{EffectId, SessionId};
use overmind_core::mesh::{ArtifactOf, Mesh, MeshAct, MeshError};
use overmind_core::row::{Role, SessionStatus};
use overmind_core::store::Page;
use overmind_engine::{ArtifactDraft, Caller, Engine, EngineError, MeshDoor, Rights};
use overmind_testkit::ports::{FakeModels, FakeTools, calls};
use serde_json::{Value, json};

use crate::world::World;

async fn world() -> World {
    let ask = || calls(&[("ask_user", json!({"message": "x?"}))]);
    World::new(FakeTools::ok(), FakeModels::new([ask(), ask(), ask()])).await
}

async fn permit(world: &World, agent: &str, read: &[&str], write: &[&str]) {
    let list = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
    let own = Permissions {
        blackboard_read: list(read),
        blackboard_write: list(write),
        ..Permissions::default()
    };
    let mut permissions = BTreeMap::from([(agent.to_owned(), own)]);
    permissions.insert(
        "ann".to_owned(),
        Permissions { blackboard_write: list(&["artifacts/ann/**"]), ..Permissions::default() },
    );
    world
        .engine
        .permissions_loaded(PermissionsFile { permissions }, "test")
        .await
        .expect("the matrix is sound");
}

async fn at_work(world: &World, name: &str) -> (SessionId, Caller) {
    let agent = world.agent("gpt-test", |draft| draft.name = name.to_owned()).await;
    let run = world.run(&agent, "work").await;
    world.until(run, &[SessionStatus::AwaitingInput]).await;
    (run, Caller::new(run.to_string(), Rights::Session { session: run, epoch: 1 }))
}

fn draft(name: &str, content: impl Into<Vec<u8>>) -> ArtifactDraft {
    ArtifactDraft { name: name.into(), content: content.into(), media_type: None }
}

async fn read(engine: &Engine, by: &Caller, run: SessionId, name: &str) -> Vec<u8> {
    let opened = engine.artifact_open(by, run, name).await.expect("it is there");
    opened.content.read(0, 1 << 20).await.expect("it can be read")
}

fn first(limit: u32) -> Page<u64> {
    Page { limit, after: None }
}

#[tokio::test]
async fn saving_a_name_again_creates_a_version_and_an_event() {
    let world = world().await;
    permit(&world, "bob", &[], &[]).await;
    let (run, ann) = at_work(&world, "ann").await;
    let engine = &world.engine;
    let one = engine.artifact_save(&ann, run, draft("out/a.md", "one")).await.unwrap();
    let row = &one.artifact;
    assert_eq!((row.version, row.bytes, row.author.as_str()), (1, 3, "ann"));
    assert_eq!(row.media_type, "text/markdown; charset=utf-8");
    assert_eq!(row.hash, *blake3::hash(b"one").as_bytes());
    let key = one.shared.unwrap();
    assert_eq!(key.as_str(), "artifacts/ann/out/a.md");
    let two = engine.artifact_save(&world.by, run, draft("out/a.md", "and two")).await.unwrap();
    assert_eq!((two.artifact.version, two.artifact.author.as_str()), (2, "admin"));
    assert_eq!(two.artifact.created_at, row.created_at);
    assert_eq!(read(engine, &ann, run, "out/a.md").await, b"and two");
    assert!(world.store.artifact_open(run, row.file).await.unwrap().is_none(), "the old is gone");
    let told = engine.board_get(&world.by, None, key.as_str()).await.unwrap();
    assert_eq!(
        told.value,
        json!({
            "run": run, "name": "out/a.md", "size": 7, "version": 2,
            "media_type": "text/markdown; charset=utf-8",
            "blake3": blake3::hash(b"and two").to_hex().as_str(),
        })
    );
    assert_eq!(told.written_by, "admin");
    let listed = engine.artifact_list(&ann, run, first(9)).await.unwrap();
    assert_eq!(listed, [two.artifact]);

    let kept = engine.artifact_delete(&ann, run, "out/a.md").await.unwrap_err();
    assert!(matches!(kept, EngineError::Forbidden { .. }), "{kept:?}");
    engine.artifact_delete(&world.by, run, "out/a.md").await.unwrap();
    let gone = engine.artifact_open(&ann, run, "out/a.md").await.unwrap_err();
    assert_eq!(gone.to_string(), "Artifact not found: out/a.md");
    assert!(engine.board_get(&world.by, None, key.as_str()).await.is_err(), "nor is it told of");
    engine.artifact_delete(&world.by, run, "out/a.md").await.unwrap_err();
    let kinds = world.kinds(run).await;
    let of_artifacts: Vec<_> = kinds.iter().filter(|kind| kind.starts_with("artifact.")).collect();
    assert_eq!(of_artifacts, ["artifact.saved", "artifact.saved", "artifact.deleted"]);
    engine.session_cancel(&world.by, run).await.unwrap();
    world.ended(run).await;
    // Also after its end: additions of people are no decisions of the run.
    engine.artifact_save(&world.by, run, draft("late", "x")).await.unwrap();
    world.check(&[run]).await;
}

#[tokio::test]
async fn callers_without_permission_are_refused_and_limits_are_named() {
    let world = world().await;
    permit(&world, "bob", &["artifacts/ann/shared/**"], &[]).await;
    let (run, ann) = at_work(&world, "ann").await;
    let (other, bob) = at_work(&world, "bob").await;
    let engine = &world.engine;
    for name in ["shared/a", "own"] {
        engine.artifact_save(&ann, run, draft(name, "x")).await.unwrap();
    }
    let viewer = Caller::new("v", Rights::Role(Role::Viewer));
    for by in [&bob, &viewer] {
        let err = engine.artifact_save(by, run, draft("b", "x")).await.unwrap_err();
        assert!(matches!(err, EngineError::Forbidden { .. }), "{err:?}");
    }
    assert_eq!(read(engine, &bob, run, "shared/a").await, b"x");
    let denied = engine.artifact_open(&bob, run, "own").await.unwrap_err().to_string();
    assert!(denied.starts_with("Agent bob cannot read artifacts/ann/own ("), "{denied}");
    let seen = engine.artifact_list(&bob, run, first(9)).await.unwrap();
    assert_eq!(seen.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["shared/a"]);
    let denied = engine.artifact_list(&ann, other, first(9)).await.unwrap_err().to_string();
    assert!(denied.starts_with("Agent ann cannot read artifacts/bob/ ("), "{denied}");
    assert_eq!(engine.artifact_list(&viewer, run, first(9)).await.unwrap().len(), 2);

    let refused = |draft| async { engine.artifact_save(&ann, run, draft).await.unwrap_err() };
    for name in ["../up", "/etc/passwd", "a/./b", "a\0b", "c:\\x", "", "x\u{202E}y"] {
        let err = refused(draft(name, "x")).await;
        assert!(matches!(&err, EngineError::Invalid { field, .. } if field == "name"), "{err:?}");
    }
    let case = refused(draft("OWN", "x")).await.to_string();
    assert_eq!(case, "an artifact whose name differs from `OWN` only in case exists already");
    let large = refused(draft("large", vec![b'x'; MAX_BYTES + 1])).await.to_string();
    assert_eq!(large, "the content has 16777217 bytes; 16777216 is the most of one artifact");
    let typed = ArtifactDraft { media_type: Some("a\r\nb".into()), ..draft("typed", "x") };
    assert!(refused(typed).await.to_string().starts_with("media_type must be like"));
    // A content that could not be saved left nothing.
    let (unshared, _) = at_work(&world, "carl").await;
    let saved = engine.artifact_save(&world.by, unshared, draft("a", "x")).await.unwrap();
    let why = saved.shared.unwrap_err();
    assert!(why.starts_with("Agent carl cannot write artifacts/carl/a ("), "{why}");
    assert_eq!(engine.artifact_list(&ann, run, first(9)).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_run_has_at_most_its_number_of_artifacts() {
    let world = world().await;
    permit(&world, "bob", &[], &[]).await;
    let (run, _) = at_work(&world, "bob").await;
    let engine = &world.engine;
    let saves =
        (0..MAX_COUNT).map(|n| engine.artifact_save(&world.by, run, draft(&format!("{n}"), "x")));
    for saved in join_all(saves).await {
        saved.unwrap();
    }
    let full = engine.artifact_save(&world.by, run, draft("more", "x")).await.unwrap_err();
    assert!(full.to_string().contains("1000 is the most"), "{full}");
    engine.artifact_save(&world.by, run, draft("7", "in its place")).await.unwrap();
    engine.artifact_delete(&world.by, run, "8").await.unwrap();
    engine.artifact_save(&world.by, run, draft("more", "x")).await.unwrap();
}

#[tokio::test]
async fn concurrent_saves_create_a_version_each() {
    let world = world().await;
    permit(&world, "bob", &[], &[]).await;
    let (run, ann) = at_work(&world, "ann").await;
    let engine = &world.engine;
    let saves =
        (0..20).map(|n| engine.artifact_save(&ann, run, draft("a", format!("content {n}"))));
    let saved = join_all(saves).await;
    let mut versions: Vec<u64> =
        saved.iter().map(|saved| saved.as_ref().unwrap().artifact.version).collect();
    versions.sort_unstable();
    assert_eq!(versions, (1..=20).collect::<Vec<_>>());
    let opened = engine.artifact_open(&ann, run, "a").await.unwrap();
    let content = opened.content.read(0, 99).await.unwrap();
    assert_eq!(*blake3::hash(&content).as_bytes(), opened.artifact.hash);
    let told = engine.board_get(&world.by, None, "artifacts/ann/a").await.unwrap();
    assert_eq!((&told.value["version"], told.version), (&json!(20), 20));
    assert_eq!(told.value["blake3"], opened.artifact.blake3());
}

#[tokio::test]
async fn secrets_are_masked_in_texts_and_refused_in_binary_content() {
    let world = world().await;
    permit(&world, "bob", &[], &[]).await;
    let (run, ann) = at_work(&world, "ann").await;
    let engine = &world.engine;
    // Put together here so that no scanner takes this file for a leak.
    let secret = format!("ghp_{}", "A1b2C3d4E5f6G7h8I9j0");
    let saved =
        engine.artifact_save(&ann, run, draft("a", format!("push with {secret}"))).await.unwrap();
    assert!(saved.artifact.is_masked);
    let kept = read(engine, &ann, run, "a").await;
    assert_eq!(kept, b"push with [redacted:github-token]");
    assert_eq!(saved.artifact.bytes, kept.len() as u64);
    assert_eq!(saved.artifact.hash, *blake3::hash(&kept).as_bytes());
    let mut bytes = vec![0xFF, 0];
    bytes.extend_from_slice(format!("push with {secret} please").as_bytes());
    let err = engine.artifact_save(&ann, run, draft("b", bytes)).await.unwrap_err().to_string();
    assert!(err.starts_with("the content is not text and holds what looks like a secret"), "{err}");
    let err = engine.artifact_save(&ann, run, draft(&secret, "x")).await.unwrap_err().to_string();
    assert!(err.contains("looks like a secret") && !err.contains(&secret), "{err}");
    let plain = engine.artifact_save(&ann, run, draft("c", vec![0xFF, 0, 1])).await.unwrap();
    assert!(!plain.artifact.is_text && !plain.artifact.is_masked);
    assert_eq!(plain.artifact.media_type, "application/octet-stream");
}

#[tokio::test]
async fn tools_save_once_and_read_only_what_the_matrix_allows() {
    let world = world().await;
    permit(&world, "bob", &["artifacts/ann/*"], &["artifacts/**"]).await;
    let (run, ann) = at_work(&world, "ann").await;
    let (other, _) = at_work(&world, "bob").await;
    let door = MeshDoor::default();
    door.open(world.engine.clone());
    let effect = |n| EffectId::from_u128(n);
    let save = |content: &str| MeshAct::SaveArtifact {
        name: "a.txt".into(),
        content: content.into(),
        media_type: None,
    };
    let one = door.act(run, effect(1), save("aé☃")).await.unwrap();
    assert_eq!(
        (&one["saved"], &one["version"], &one["size"]),
        (&json!(true), &json!(1), &json!(6))
    );
    assert_eq!(one["shared"], "artifacts/ann/a.txt");
    let again = door.act(run, effect(1), save("aé☃")).await.unwrap();
    assert_eq!(again, one, "done again after a crash");
    assert_eq!(world.kinds(run).await.iter().filter(|kind| *kind == "artifact.saved").count(), 1);
    let two = door.act(run, effect(2), save("two")).await.unwrap();
    assert_eq!(two["version"], 2);
    door.act(run, effect(3), save("aé☃")).await.unwrap();

    let read =
        |of, offset, base64| MeshAct::ReadArtifact { of, name: "a.txt".into(), offset, base64 };
    let shared = ArtifactOf::Agent("ann".into());
    for (session, of) in
        [(run, ArtifactOf::Own), (other, ArtifactOf::Run(run)), (other, shared.clone())]
    {
        let told = door.act(session, effect(4), read(of, 0, false)).await.unwrap();
        assert_eq!((&told["content"], &told["version"]), (&json!("aé☃"), &json!(3)));
        assert_eq!((&told["agent"], &told["next_offset"]), (&json!("ann"), &Value::Null));
    }
    let part = door.act(run, effect(5), read(ArtifactOf::Own, 2, false)).await.unwrap();
    assert_eq!((&part["content"], &part["offset"]), (&json!("☃"), &json!(3)));
    let part = door.act(run, effect(6), read(ArtifactOf::Own, 1, true)).await.unwrap();
    assert_eq!(part["content_base64"], "w6nimIM=");
    let beyond = door.act(run, effect(7), read(ArtifactOf::Own, 7, false)).await.unwrap_err();
    assert!(matches!(beyond, MeshError::Invalid(_)), "{beyond:?}");

    let list = |of| MeshAct::ListArtifacts { of, limit: 9, after: None };
    let own = door.act(run, effect(8), list(ArtifactOf::Own)).await.unwrap();
    assert_eq!((&own["count"], &own["artifacts"][0]["version"]), (&json!(1), &json!(3)));
    let all = door.act(other, effect(9), list(shared.clone())).await.unwrap();
    assert_eq!(all["artifacts"][0]["name"], "a.txt");
    assert_eq!(all["artifacts"][0]["run_id"], json!(run));
    let denied = door.act(run, effect(10), list(ArtifactOf::Run(other))).await.unwrap_err();
    assert!(matches!(denied, MeshError::Denied(_)), "{denied:?}");

    // A forged entry in the key of ann's artifacts leads nowhere.
    let forged = json!({"run": other, "name": "a.txt"});
    let write = MeshAct::Write {
        key: "artifacts/ann/a.txt".into(),
        value: forged,
        ttl: None,
        version: None,
    };
    door.act(other, effect(11), write).await.unwrap();
    door.act(other, effect(12), save("bob's")).await.unwrap();
    let err = door.act(other, effect(13), read(shared, 0, false)).await.unwrap_err();
    assert!(matches!(err, MeshError::NotFound(_)), "{err:?}");

    let bytes = MeshAct::SaveArtifact { name: "b".into(), content: vec![0xFF], media_type: None };
    door.act(run, effect(14), bytes).await.unwrap();
    let binary =
        MeshAct::ReadArtifact { of: ArtifactOf::Own, name: "b".into(), offset: 0, base64: false };
    let told = door.act(run, effect(15), binary).await.unwrap();
    assert_eq!((&told["binary"], &told["size"]), (&json!(true), &json!(1)));
    assert_eq!(told.get("content"), None);
    assert_eq!(world.engine.artifact_list(&ann, run, first(9)).await.unwrap().len(), 2);
}
