//! A static model in a directory.

use std::path::Path;
use std::sync::Arc;

use overmind_core::budget::Behalf;
use overmind_core::memory::Memory;
use overmind_memory::{Embedder, FileEmbedder};
use serde_json::{Value, json};

use crate::support::{Bench, ask, draft};

const WORDS: [&str; 5] = ["[UNK]", "cat", "kitten", "boat", "the"];

fn tokenizer() -> Value {
    let vocab: serde_json::Map<String, Value> =
        WORDS.iter().enumerate().map(|(n, word)| ((*word).to_owned(), n.into())).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
    })
}

/// A safetensors file with one tensor.
fn weights(name: &str, dtype: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let header = json!({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, data.len()]}});
    let header = header.to_string();
    let mut file = u64::try_from(header.len()).unwrap().to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

fn rows() -> [[f32; 2]; 5] {
    [[9.0, 9.0], [1.0, 0.0], [0.5, 0.25], [0.0, -2.0], [0.0, 0.0]]
}

fn f32s() -> Vec<u8> {
    rows().as_flattened().iter().flat_map(|part| part.to_le_bytes()).collect()
}

fn model(dir: &Path, weights: &[u8]) -> Arc<FileEmbedder> {
    std::fs::write(dir.join("model.safetensors"), weights).unwrap();
    std::fs::write(dir.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    Arc::new(FileEmbedder::new(dir.to_owned()))
}

#[tokio::test]
async fn a_text_is_the_mean_of_its_known_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let table = model(dir.path(), &weights("embeddings", "F32", &[5, 2], &f32s()));
    assert_eq!(table.embed("Cat boat zeppelin", &Behalf::default()).await, Ok(vec![0.5, -1.0]));
    assert_eq!(table.embed("kitten", &Behalf::default()).await, Ok(vec![0.5, 0.25]));
    assert_eq!(
        table.embed("zeppelin", &Behalf::default()).await,
        Ok(vec![]),
        "nothing that it knows"
    );
}

#[tokio::test]
async fn two_byte_floats_have_the_same_values() {
    // 1, 0.5, 0.25, -2 and 9 are exact in all three formats; bits of half and of bfloat16.
    let half = |part: f32| -> u16 {
        match part {
            0.0 => 0,
            1.0 => 0x3c00,
            0.5 => 0x3800,
            0.25 => 0x3400,
            -2.0 => 0xc000,
            _ => 0x4880,
        }
    };
    let bf16 = |part: f32| u16::try_from(part.to_bits() >> 16).unwrap();
    let of = |bits: &dyn Fn(f32) -> u16| -> Vec<u8> {
        rows().as_flattened().iter().flat_map(|part| bits(*part).to_le_bytes()).collect()
    };
    for (format, data) in [("F16", of(&half)), ("BF16", of(&bf16))] {
        let dir = tempfile::tempdir().unwrap();
        let table = model(dir.path(), &weights("embedding.weight", format, &[5, 2], &data));
        assert_eq!(
            table.embed("cat boat", &Behalf::default()).await,
            Ok(vec![0.5, -1.0]),
            "{format}"
        );
        assert_eq!(
            table.embed("kitten", &Behalf::default()).await,
            Ok(vec![0.5, 0.25]),
            "{format}"
        );
    }
}

#[tokio::test]
async fn changed_model_files_are_another_model() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let same = weights("embeddings", "F32", &[5, 2], &f32s());
    let table = model(dirs[0].path(), &same);
    let name = table.model().await.unwrap();
    assert!(name.starts_with("static:"), "{name}");
    assert_eq!(FileEmbedder::new(dirs[0].path().into()).model().await.unwrap(), name);
    let mut other = f32s();
    other[0] ^= 1;
    let other = model(dirs[0].path(), &weights("embeddings", "F32", &[5, 2], &other));
    assert_ne!(other.model().await.unwrap(), name);
    assert_eq!(table.model().await.unwrap(), name, "what was read stays");
}

#[tokio::test]
async fn an_invalid_static_model_is_refused_by_name() {
    let data = f32s();
    for (file, wanted) in [
        (weights("layers.0.weight", "F32", &[5, 2], &data), "it holds layers.0.weight where"),
        (weights("embeddings", "F32", &[10], &data), "its shape is [10]"),
        (weights("embeddings", "I32", &[5, 2], &data), "its numbers are I32"),
        (b"not safetensors".to_vec(), "cannot be used"),
        (weights("embeddings", "F32", &[5, 2], &data[..8]), "cannot be used"),
        (weights("embeddings", "F32", &[1 << 40, 1 << 40], &data), "cannot be used"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let err = model(dir.path(), &file).embed("cat", &Behalf::default()).await.unwrap_err();
        assert!(!err.transient);
        assert!(err.message.contains(wanted), "{}", err.message);
        assert!(err.message.contains(&dir.path().display().to_string()), "{}", err.message);
    }
    let dir = tempfile::tempdir().unwrap();
    let nothing = FileEmbedder::new(dir.path().into());
    let text = nothing.embed("cat", &Behalf::default()).await.unwrap_err().message;
    assert!(text.ends_with("there is no model.safetensors"), "{text}");
    std::fs::write(dir.path().join("x.safetensors"), weights("embeddings", "F32", &[5, 2], &data))
        .unwrap();
    let text = nothing.embed("cat", &Behalf::default()).await.unwrap_err().message;
    assert!(text.contains("tokenizer.json cannot be read"), "{text}");
    std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    let text = nothing.embed("cat", &Behalf::default()).await.unwrap_err().message;
    assert!(text.contains("tokenizer.json cannot be used"), "{text}");
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer().to_string()).unwrap();
    assert_eq!(
        nothing.embed("cat", &Behalf::default()).await,
        Ok(vec![1.0, 0.0]),
        "once it is right, it is read"
    );
}

#[tokio::test]
async fn a_text_without_vector_is_found_by_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let table = model(dir.path(), &weights("embeddings", "F32", &[5, 2], &f32s()));
    let bench = Bench::new(Some(table));
    let item = bench.memory.store(draft("zeppelin")).await.unwrap();
    assert!(item.embedding.is_empty());
    bench.add("kitten").await;
    assert_eq!(bench.texts("zeppelin", 5).await, ["zeppelin"]);
    assert_eq!(bench.texts("cat", 5).await, ["kitten"]);
    assert_eq!(bench.memory.reembed(10).await.unwrap().done, 0, "there is nothing to be done");
}

#[tokio::test]
async fn needs_embedding_model_a_real_model_gives_the_same_vectors_as_python() {
    let Some(dir) = overmind_testkit::real::counterpart("EMBEDDING_MODEL") else { return };
    let table = Arc::new(FileEmbedder::new(dir.into()));
    // The first components, at unit length, as the tokenizers and numpy packages compute them.
    for (text, wanted) in [
        (
            "the staging database listens on port 5432",
            [-0.01201, -0.00134, -0.03397, 0.03205, 0.11777, 0.0581],
        ),
        (
            "Straße, naïve café: 日本語 🐝\n\ttabs",
            [-0.11068, 0.00208, 0.05245, -0.15076, 0.03309, -0.05221],
        ),
        ("a cat sleeps", [-0.01314, -0.07448, 0.07597, 0.06855, 0.01889, -0.04435]),
    ] {
        let vector = table.embed(text, &Behalf::default()).await.unwrap();
        assert_eq!(vector.len(), 256);
        let length = vector.iter().map(|part| part * part).sum::<f32>().sqrt();
        for (part, wanted) in vector.iter().zip(wanted) {
            assert!((part / length - wanted).abs() < 2e-5, "{text}: {} {wanted}", part / length);
        }
    }
    let bench = Bench::new(Some(table));
    for text in ["connection to postgres refused", "a kitten sleeps in the sun", "bake the bread"] {
        bench.add(text).await;
    }
    let hits = bench.memory.search(ask("database unreachable", 3)).await.unwrap();
    assert_eq!(hits[0].item.text, "connection to postgres refused");
}
