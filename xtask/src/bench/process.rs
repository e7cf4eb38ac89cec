//! Figures of the whole program, measured from outside.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::floors;
use super::report::{Figure, Floor};
use super::sample::Samples;

/// How long the least that it does takes. `spawn` is the floor of any process.
///
/// # Errors
///
/// When the binary is not there or does not run.
pub fn version(binary: &Path, spawn: Samples) -> Result<Figure> {
    let mut version = floors::quiet(Command::new(binary));
    version.arg("--version");
    let version = floors::command(&mut version, 100)?;
    Ok(Figure {
        name: "`overmind --version`, whole process, p50".into(),
        unit: "ms".into(),
        value: version.p50_ms(),
        floor: Some(Floor { name: "/bin/true".into(), value: spawn.p50_ms() }),
        goal: None,
        note: None,
    })
}
