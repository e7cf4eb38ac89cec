//! Embeddings from a model file on disk: a vector for each token, and their mean for a text.
//!
//! Such static models (WordLlama, model2vec) consist of a table and a tokenizer, a few megabytes
//! each. They ignore word order, but run in microseconds on this machine, without another program.
//! [`FileEmbedder`] reads a directory with
//!
//! * one `*.safetensors` file (`model.safetensors` when there are several) that holds one tensor,
//!   `embeddings` or `embedding.weight`: tokens × dimensions, in F32, F16 or BF16;
//! * `tokenizer.json` in the format of Hugging Face's tokenizers.
//!
//! Nothing is read before the first text. Models that need more (a second tensor of weights or of
//! mappings) are refused by name, because their vectors would be wrong. The content of the files
//! identifies the model, so changed files are another model.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::Fut;
use overmind_core::budget::Behalf;
use safetensors::{Dtype, SafeTensors};
use tokenizers::Tokenizer;

use crate::embed::{EmbedError, Embedder};

/// Larger files are no static models and are refused.
const MAX_FILE_BYTES: u64 = 2 << 30;
const TENSORS: [&str; 2] = ["embeddings", "embedding.weight"];

/// A static model in a directory.
#[derive(Debug)]
pub struct FileEmbedder {
    dir: PathBuf,
    loaded: Arc<Mutex<Option<Arc<Model>>>>,
}

/// The model in memory, about as large as its files.
struct Model {
    /// `static:<directory>@<hash of the files>`.
    name: Arc<str>,
    tokenizer: Tokenizer,
    /// The id of unknown tokens, which have no meaning.
    unknown: Option<u32>,
    file: Vec<u8>,
    /// The range of the tensor in `file`.
    at: std::ops::Range<usize>,
    format: Format,
    tokens: usize,
    dims: usize,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug)]
enum Format {
    F32,
    F16,
    Bf16,
}

impl FileEmbedder {
    /// An embedder for the model in `dir`, which is not read yet.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, loaded: Arc::default() }
    }

    /// Runs `work` with the model on a thread that may block. The first call reads the model; if
    /// that fails, the next call tries again.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Model) -> Result<T, String> + Send + 'static,
    ) -> Result<T, EmbedError> {
        let (dir, loaded) = (self.dir.clone(), Arc::clone(&self.loaded));
        let done = tokio::task::spawn_blocking(move || {
            let model = {
                let mut held = loaded.lock().unwrap_or_else(PoisonError::into_inner);
                match &*held {
                    Some(model) => Arc::clone(model),
                    None => Arc::clone(held.insert(Arc::new(Model::read(&dir)?))),
                }
            };
            work(&model)
        });
        let error = |why: String| EmbedError {
            message: format!("the embedding model in {}: {why}", self.dir.display()),
            transient: false,
        };
        match done.await {
            Ok(done) => done.map_err(error),
            Err(_) => Err(error("computing the vector panicked".into())),
        }
    }
}

impl Embedder for FileEmbedder {
    fn model(&self) -> Fut<'_, Result<Arc<str>, EmbedError>> {
        Box::pin(self.with(|model| Ok(Arc::clone(&model.name))))
    }

    fn embed<'a>(&'a self, text: &'a str, _: &'a Behalf) -> Fut<'a, Result<Vec<f32>, EmbedError>> {
        let text = text.to_owned();
        Box::pin(self.with(move |model| model.embed(&text)))
    }
}

impl Model {
    fn read(dir: &Path) -> Result<Self, String> {
        let weights = weights_in(dir)?;
        let file = read(&weights)?;
        let json = read(&dir.join("tokenizer.json"))?;
        let mut hash = blake3::Hasher::new();
        hash.update(&(file.len() as u64).to_be_bytes()).update(&file).update(&json);
        let hash = hash.finalize().to_hex();
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("static:{name}@{}", &hash.as_str()[..12]).into();

        let mut tokenizer = Tokenizer::from_bytes(&json)
            .map_err(|err| format!("tokenizer.json cannot be used: {err}"))?;
        // The whole text is used, without added tokens.
        tokenizer
            .with_truncation(None)
            .map_err(|err| format!("tokenizer.json cannot be used: {err}"))?
            .with_padding(None);
        let unknown = unknown(&json, &tokenizer);
        let (at, format, tokens, dims) =
            table(&file).map_err(|why| format!("{} cannot be used: {why}", weights.display()))?;
        Ok(Self { name, tokenizer, unknown, file, at, format, tokens, dims })
    }

    /// The mean of the tokens' vectors; empty if the model knows none of them.
    fn embed(&self, text: &str) -> Result<Vec<f32>, String> {
        let tokens = self
            .tokenizer
            .encode_fast(text, false)
            .map_err(|err| format!("the text cannot be cut into tokens: {err}"))?;
        let mut sum = vec![0.0_f32; self.dims];
        let mut count = 0_u16;
        for id in tokens.get_ids().iter().filter(|id| Some(**id) != self.unknown) {
            let row = usize::try_from(*id).unwrap_or(usize::MAX);
            if row >= self.tokens {
                continue;
            }
            self.add(row, &mut sum);
            count = count.saturating_add(1);
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        for part in &mut sum {
            *part /= f32::from(count);
        }
        Ok(sum)
    }

    fn add(&self, row: usize, sum: &mut [f32]) {
        let table = &self.file[self.at.clone()];
        match self.format {
            Format::F32 => {
                let row = &table.as_chunks::<4>().0[row * self.dims..][..self.dims];
                sum.iter_mut().zip(row).for_each(|(sum, part)| *sum += f32::from_le_bytes(*part));
            }
            Format::F16 => {
                let row = &table.as_chunks::<2>().0[row * self.dims..][..self.dims];
                let parts = row.iter().map(|part| half(u16::from_le_bytes(*part)));
                sum.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
            }
            Format::Bf16 => {
                let row = &table.as_chunks::<2>().0[row * self.dims..][..self.dims];
                let parts = row
                    .iter()
                    .map(|part| f32::from_bits(u32::from(u16::from_le_bytes(*part)) << 16));
                sum.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
            }
        }
    }
}

/// The file of weights in a directory.
fn weights_in(dir: &Path) -> Result<PathBuf, String> {
    let usual = dir.join("model.safetensors");
    if usual.is_file() {
        return Ok(usual);
    }
    let entries = fs::read_dir(dir).map_err(|err| format!("it cannot be read: {err}"))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "safetensors"))
        .collect();
    match (found.pop(), found.pop()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err("there is no model.safetensors".into()),
        (Some(_), Some(_)) => {
            Err("there are several *.safetensors and none is model.safetensors".into())
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |err: std::io::Error| format!("{} cannot be read: {err}", path.display());
    let size = fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!("{} is larger than {MAX_FILE_BYTES} bytes", path.display()));
    }
    fs::read(path).map_err(unreadable)
}

/// The range, format, tokens and dimensions of the table in a safetensors file.
fn table(file: &[u8]) -> Result<(std::ops::Range<usize>, Format, usize, usize), String> {
    let tensors = SafeTensors::deserialize(file).map_err(|err| err.to_string())?;
    let names = tensors.names();
    let known = names.iter().find(|name| TENSORS.contains(name));
    let Some(known) = known.filter(|_| names.len() == 1) else {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).take(8).collect();
        return Err(format!(
            "it holds {} where a static model has `{}` or `{}` alone",
            names.join(", "),
            TENSORS[0],
            TENSORS[1]
        ));
    };
    let tensor = tensors.tensor(known).map_err(|err| err.to_string())?;
    let format = match tensor.dtype() {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::Bf16,
        other => return Err(format!("its numbers are {other:?}, not F32, F16 or BF16")),
    };
    let (tokens, dims) = match tensor.shape() {
        [tokens, dims] if *tokens > 0 && *dims > 0 => (*tokens, *dims),
        shape => return Err(format!("its shape is {shape:?}, not tokens × dimensions")),
    };
    // The data is the last part of the file.
    let length = tensor.data().len();
    Ok((file.len() - length..file.len(), format, tokens, dims))
}

/// The id of the unknown token, which tokenizer.json names by text or by number.
fn unknown(json: &[u8], tokenizer: &Tokenizer) -> Option<u32> {
    let json: serde_json::Value = serde_json::from_slice(json).ok()?;
    let model = json.get("model")?;
    if let Some(text) = model.get("unk_token").and_then(serde_json::Value::as_str) {
        return tokenizer.token_to_id(text);
    }
    let id = model.get("unk_id").and_then(serde_json::Value::as_u64)?;
    u32::try_from(id).ok()
}

/// Converts a half-precision number.
fn half(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits & 0x3ff);
    let number = match (exponent, fraction) {
        // It is a subnormal number: fraction · 2⁻²⁴.
        (0, _) => return f32::from_bits(sign | 0x3380_0000) * f32::from(bits & 0x3ff),
        (0x1f, _) => 0x7f80_0000 | (fraction << 13),
        _ => ((exponent + 112) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_read_as_it_is_written() {
        for (bits, wanted) in [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7bff, 65_504.0),
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0x8001, -5.960_464_5e-8),
            (0x0400, 6.103_515_6e-5),
        ] {
            assert_eq!(half(bits), wanted, "{bits:#x}");
        }
        assert_eq!(half(0x7c00), f32::INFINITY);
        assert!(half(0x7e00).is_nan());
    }
}
