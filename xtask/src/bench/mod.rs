//! `cargo xtask bench`: the figures we promise, each beside the floor it cannot go below.
//!
//! A figure alone says little on an unknown machine. So each stands with its *floor*, the same
//! work without our product, measured in the same run, and the ratio of the two; and the report
//! opens with the machine and how busy it was.
//!
//! Figures come from two places. What happens inside the product is measured by the program
//! `overmind-bench -o json` (`crates/bench`), which prints `{"figures": [ … ], "left_out": [ … ]}`
//! with [`Figure`]s and reasons. What concerns whole processes is measured here, around the release
//! binary. Floors that need nothing of ours are in [`floors`]; the engine and the images that
//! sandboxes are measured with come from [`sandboxes`].

pub mod floors;
pub mod machine;
pub mod process;
pub mod report;
pub mod sample;
pub mod sandboxes;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use serde::Deserialize;

use self::machine::Machine;
use self::report::{Figure, Report};
use crate::counterparts;
use crate::host::Host;
use crate::say;
use crate::steps::{output, succeed};

/// Measures, prints the report, and writes it to `docs/benchmarks.md`.
///
/// A goal that is missed is told in the report; it is not an error, for the figure is the honest
/// one either way.
///
/// # Errors
///
/// When something could not be measured or written.
pub fn command(host: &Host) -> Result<()> {
    say::note("==> building the release binary, and what measures it");
    let [binary, bench] = release_binaries(host)?;
    // Taken before we make the machine busy ourselves.
    let machine = Machine::look(host)?;
    say::note("==> measuring");
    let scratch = host.target.join("bench");
    std::fs::create_dir_all(&scratch).with_context(|| format!("making {}", scratch.display()))?;
    let fsync = floors::fsync(&scratch, 500)?;
    let spawn = floors::spawn("/bin/true", 300)?;
    let mut figures = vec![process::version(&binary, spawn)?];
    let Printed { figures: more, left_out } = from_product(host, &binary, &bench, &scratch)?;
    figures.extend(more);
    let report = Report { machine, fsync, spawn, figures, left_out };

    let text = report.markdown();
    let path = host.root.join("docs/benchmarks.md");
    std::fs::write(&path, &text).with_context(|| format!("writing {}", path.display()))?;
    say::out(&text);
    Ok(())
}

/// The product and the program that measures it. One after the other: built together, the product would
/// have what only the other asks of their libraries.
fn release_binaries(host: &Host) -> Result<[PathBuf; 2]> {
    let build = |package| -> Result<PathBuf> {
        succeed(host.cargo().args(["build", "--release", "--locked", "--package", package]))?;
        Ok(host.target.join("release").join(package))
    };
    Ok([build("overmind")?, build("overmind-bench")?])
}

#[derive(Deserialize)]
struct Printed {
    figures: Vec<Figure>,
    /// The measurements that were not possible here, and the reasons.
    left_out: Vec<String>,
}

/// The measurements that the product makes itself.
fn from_product(host: &Host, binary: &Path, bench: &Path, scratch: &Path) -> Result<Printed> {
    let (model, manual) = counterparts::of_memory(host)?;
    let sandboxes = sandboxes::prepare(host, binary, scratch)?;
    let mut command = sandboxes::product(bench, &sandboxes.config);
    command
        .current_dir(&host.root)
        .args(["-o", "json", "--embedding-model", &model, "--manual", &manual, "--program"])
        .arg(binary)
        // It says what it left out, and why.
        .stderr(Stdio::inherit());
    let beside = counterparts::of_litellm(host);
    if let Ok(packages) = &beside {
        command.args(["--litellm", packages]);
    }
    let json = output(&mut command)?;
    // Its engine must not end before.
    drop(sandboxes);
    let mut printed: Printed =
        serde_json::from_slice(&json).context("reading what `overmind-bench -o json` printed")?;
    if let Err(err) = beside {
        printed.left_out.push(format!("LiteLLM: {err:#}"));
    }
    Ok(printed)
}
