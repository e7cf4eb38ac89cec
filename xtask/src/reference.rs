//! `docs/reference`: written from the code. A test of the command line compares, so that it cannot drift.

use std::process::Command;

use anyhow::{Context, Result};

use crate::host::Host;
use crate::steps::succeed;

/// Writes the pages.
///
/// # Errors
///
/// When what makes them does not build or run, or a page cannot be written.
pub fn write(host: &Host) -> Result<()> {
    let build = ["build", "--quiet", "--locked", "-p", "overmind-cli", "--example", "reference"];
    succeed(host.cargo().args(build)).context("building what makes the reference")?;
    let program = host.target.join("debug/examples/reference");
    succeed(Command::new(program).arg(host.root.join("docs/reference")))
        .context("writing the reference")
}
