//! The documentation in this repository.

use std::path::{Path, PathBuf};

/// Lines that a backslash continues are one.
pub(crate) fn joined(text: &str) -> String {
    let mut lines = text.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |all, next| format!("{} {}", all.trim_end(), next.trim_start()))
}

pub(crate) fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    here.canonicalize().expect("the checkout is where it was built")
}
