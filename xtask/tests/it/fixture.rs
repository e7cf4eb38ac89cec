//! Small crates made on the spot, in a directory that cargo keeps between runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The checkout.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    Path::new(&manifest).parent().expect("xtask lies in the checkout").to_path_buf()
}

/// A place for the crate `name`. Its sources begin anew; its `target` stays, for speed.
pub(crate) fn dir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let src = dir.join("src");
    if src.exists() {
        std::fs::remove_dir_all(&src).expect("removing the sources of an earlier run");
    }
    std::fs::create_dir_all(&src).expect("making the crate's directory");
    dir
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|err| panic!("reading {}: {err}", path.display()))
}

pub(crate) fn write(path: &Path, text: &str) {
    let dir = path.parent().expect("a file lies in a directory");
    std::fs::create_dir_all(dir).expect("making the file's directory");
    std::fs::write(path, text).unwrap_or_else(|err| panic!("writing {}: {err}", path.display()));
}

/// Cargo on the crate in `dir`, with a target directory of its own and no flags of ours.
pub(crate) fn cargo(dir: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(dir).stdin(Stdio::null()).env("CARGO_TARGET_DIR", dir.join("target"));
    for leak in ["RUSTFLAGS", "CLIPPY_ARGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(leak);
    }
    cargo
}
