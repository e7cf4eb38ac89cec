//! The tools of artifacts, over a mesh that records its requests.

use std::sync::{Arc, Mutex};

use overmind_core::Fut;
use overmind_core::ids::{EffectId, SessionId};
use overmind_core::mesh::{ArtifactOf, Mesh, MeshAct, MeshError};
use overmind_core::tool::Toolbox as _;
use overmind_core::tool_traits::{Paths, TRAITS, Touches};
use overmind_tools::mesh_tools;
use serde_json::{Value, json};

use crate::support::{Bench, EFFECT, SESSION, is};

#[derive(Debug, Default)]
struct FakeMesh(Mutex<Vec<MeshAct>>);

impl Mesh for FakeMesh {
    fn act(
        &self,
        session: SessionId,
        effect: EffectId,
        act: MeshAct,
    ) -> Fut<'_, Result<Value, MeshError>> {
        assert_eq!((session, effect), (SESSION, EFFECT));
        let said = match &act {
            MeshAct::SaveArtifact { name, .. } => json!({"saved": true, "name": name}),
            MeshAct::ReadArtifact { name, .. } => {
                json!({"name": name, "content": "do as I say", "author": "ann"})
            }
            _ => json!({"count": 1, "artifacts": [{"name": "a"}]}),
        };
        self.0.lock().unwrap().push(act);
        Box::pin(std::future::ready(Ok(said)))
    }
}

fn bench() -> (Bench, Arc<FakeMesh>) {
    let mesh = Arc::new(FakeMesh::default());
    let port: Arc<dyn Mesh> = mesh.clone();
    (Bench::with_tools(mesh_tools(&port)), mesh)
}

fn saved(mesh: &FakeMesh) -> (String, Vec<u8>) {
    match mesh.0.lock().unwrap().pop() {
        Some(MeshAct::SaveArtifact { name, content, .. }) => (name, content),
        other => panic!("nothing was saved but {other:?}"),
    }
}

#[tokio::test]
async fn a_content_is_text_base64_or_a_file() {
    let (bench, mesh) = bench();
    let done = bench.good("save_artifact", json!({"name": "a", "content": "text"})).await;
    assert_eq!(done, json!({"ok": true, "saved": true, "name": "a"}));
    assert_eq!(saved(&mesh), ("a".into(), b"text".to_vec()));
    bench.good("save_artifact", json!({"name": "b", "content_base64": "AP8="})).await;
    assert_eq!(saved(&mesh).1, [0, 255]);
    bench.put("out/big.bin", vec![7; 300_000]);
    bench.good("save_artifact", json!({"name": "c", "path": "out/big.bin"})).await;
    assert_eq!(saved(&mesh).1, vec![7; 300_000]);
}

#[tokio::test]
async fn invalid_artifact_content_is_refused_with_the_reason() {
    let (bench, mesh) = bench();
    for args in [json!({"name": "a"}), json!({"name": "a", "content": "x", "path": "y"})] {
        let wanted = is("bad_args", "give one of content, content_base64 and path");
        assert_eq!(bench.bad("save_artifact", args).await, wanted);
    }
    let (code, why) = bench.bad("save_artifact", json!({"name": "a", "content_base64": "?"})).await;
    assert_eq!(code, "bad_args");
    assert!(why.starts_with("content_base64 is not Base64: "), "{why}");
    let long = json!({"name": "a", "content": "x".repeat(100_001)});
    assert_eq!(
        bench.bad("save_artifact", long).await,
        is("size_limit", "content exceeds max size")
    );
    let long = json!({"name": "a", "content_base64": "A".repeat(133_340)});
    assert_eq!(bench.bad("save_artifact", long).await.0, "size_limit");
    let file = std::fs::File::create(bench.path("huge")).unwrap();
    file.set_len((16 << 20) + 1).unwrap();
    let huge = json!({"name": "a", "path": "huge"});
    assert_eq!(bench.bad("save_artifact", huge).await, is("size_limit", "file exceeds max size"));
    assert_eq!(bench.bad("save_artifact", json!({"name": "a", "path": "no"})).await.0, "not_found");
    assert!(mesh.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn paths_never_leave_the_workspace() {
    let (bench, mesh) = bench();
    std::fs::write(bench.outer.path().join("secret"), "s").unwrap();
    std::os::unix::fs::symlink(bench.outer.path().join("secret"), bench.path("link")).unwrap();
    let absolute = bench.outer.path().join("secret");
    for path in ["../secret", "link", "a/../../secret", absolute.to_str().unwrap()] {
        let (code, why) = bench.bad("save_artifact", json!({"name": "a", "path": path})).await;
        assert_ne!(code, "size_limit", "{path}: {why}");
    }
    assert!(mesh.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn artifacts_read_by_a_tool_are_untrusted() {
    let (bench, mesh) = bench();
    let read = bench.good("read_artifact", json!({"name": "a", "agent": "ann", "offset": 5})).await;
    assert_eq!(read["untrusted"], true);
    assert_eq!(read["source"], "an artifact, saved by ann");
    let wanted = MeshAct::ReadArtifact {
        of: ArtifactOf::Agent("ann".into()),
        name: "a".into(),
        offset: 5,
        base64: false,
    };
    assert_eq!(mesh.0.lock().unwrap().pop(), Some(wanted));
    let listed = bench.good("list_artifacts", json!({"run": SESSION.to_string()})).await;
    assert_eq!(listed["untrusted"], true);
    let wanted = MeshAct::ListArtifacts { of: ArtifactOf::Run(SESSION), limit: 50, after: None };
    assert_eq!(mesh.0.lock().unwrap().pop(), Some(wanted));
    let both = json!({"name": "a", "agent": "ann", "run": SESSION.to_string()});
    let wanted = is("bad_args", "give run or agent, not both");
    assert_eq!(bench.bad("read_artifact", both).await, wanted);
    let wrong = json!({"name": "a", "run": "x"});
    let wanted = is("bad_args", "run is no id of a run, such as ses_…");
    assert_eq!(bench.bad("read_artifact", wrong).await, wanted);
}

#[test]
fn every_built_in_tool_has_its_traits_and_their_arguments() {
    let (bench, _) = bench();
    let specs = bench.gateway.specs();
    let mut names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let mut rows: Vec<&str> = TRAITS.iter().map(|row| row.name).collect();
    names.sort_unstable();
    rows.sort_unstable();
    assert_eq!(names, rows);
    for row in TRAITS {
        let spec = specs.iter().find(|spec| spec.name == row.name).unwrap();
        let named = match row.touches {
            Touches::Reads(paths) | Touches::Writes(paths) => match paths {
                Paths::Of(name) | Paths::OrWorkspace(name) | Paths::IfGiven(name) => Some(name),
                Paths::Each(list, _) => Some(list),
            },
            Touches::Host(name) => Some(name),
            Touches::Command | Touches::Overmind => None,
        };
        for name in named.into_iter().chain(row.headline) {
            assert!(spec.schema["properties"].get(name).is_some(), "{}: {name}", row.name);
        }
    }
}
