//! Resources for the measurements of sandboxes: an engine, and images that the bench builds itself.
//!
//! A machine that measures for the first time has none of them, so the figures of containers and
//! of virtual machines would be missing from the report. Here the same engine and kernel package
//! that the tests use are made ready, the release binary builds its images from them, and a
//! configuration file says where they are. What cannot be had is told, and its figures are left
//! out by the product.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::counterparts::{self, OfSandboxes};
use crate::host::Host;
use crate::say;
use crate::steps::output;

/// A configuration for `overmind-bench`; the engine that it names ends with it.
#[derive(Debug)]
pub struct Prepared {
    pub config: PathBuf,
    _counterparts: OfSandboxes,
}

/// Makes all of it. `scratch` is a directory of ours.
///
/// # Errors
///
/// When the configuration cannot be written. What is missing for a sandbox is no error.
pub fn prepare(host: &Host, binary: &Path, scratch: &Path) -> Result<Prepared> {
    let mut counterparts = counterparts::of_sandboxes(host);
    let config = scratch.join("sandboxes.toml");
    let mut lines = String::from("[sandbox]\nmicrovm_emulation = \"yes\"\n");
    if let Some(socket) = &counterparts.docker {
        line(&mut lines, "docker_host", &format!("unix://{socket}"));
        write(&config, &lines)?;
        match build(binary, &config, &["docker"]) {
            Ok(id) => line(&mut lines, "docker_image", &id),
            Err(err) => counterparts.missing.push(format!("an image for containers: {err:#}")),
        }
    }
    if let Some(dir) = &counterparts.microvm {
        line(&mut lines, "microvm_dir", dir);
        write(&config, &lines)?;
        let made = package(Path::new(dir)).and_then(|package| {
            let package = package.display().to_string();
            build(binary, &config, &["microvm", "--kernel-package", &package])
        });
        if let Err(err) = made {
            counterparts.missing.push(format!("an image for virtual machines: {err:#}"));
        }
    }
    write(&config, &lines)?;
    for missing in &counterparts.missing {
        say::note(&format!("    missing: {missing}"));
    }
    Ok(Prepared { config, _counterparts: counterparts })
}

/// The product or what measures it, with this configuration and nothing else that would say the same.
pub fn product(binary: &Path, config: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .arg("--config")
        .arg(config)
        .env_remove("DOCKER_HOST")
        .env_remove("OVERMIND_DOCKER_IMAGE")
        .stdin(Stdio::null());
    command
}

/// One setting. A path may have what TOML would take for an escape.
fn line(lines: &mut String, key: &str, value: &str) {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    writeln!(lines, "{key} = \"{value}\"").expect("writing to a text cannot fail");
}

fn write(config: &Path, lines: &str) -> Result<()> {
    std::fs::write(config, lines).with_context(|| format!("writing {}", config.display()))
}

/// Builds an image; its id.
fn build(binary: &Path, config: &Path, words: &[&str]) -> Result<String> {
    let mut command = product(binary, config);
    let id = output(command.args(["sandbox", "image", "build"]).args(words).args(["-o", "name"]))?;
    Ok(String::from_utf8_lossy(&id).trim().to_owned())
}

/// The kernel package that was fetched.
fn package(dir: &Path) -> Result<PathBuf> {
    let packages = dir.join("packages");
    let listed =
        std::fs::read_dir(&packages).with_context(|| format!("listing {}", packages.display()))?;
    let mut found: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "deb"));
    found.sort();
    found.pop().with_context(|| format!("there is no kernel package in {}", packages.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_toml() {
        let mut lines = String::new();
        line(&mut lines, "microvm_dir", r#"/a "b"\c"#);
        assert_eq!(lines, "microvm_dir = \"/a \\\"b\\\"\\\\c\"\n");
    }

    #[test]
    fn the_newest_package_is_selected_and_a_missing_one_reported() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let why = package(dir.path()).expect_err("there is none").to_string();
        assert!(why.contains("packages"), "{why}");
        let packages = dir.path().join("packages");
        std::fs::create_dir(&packages).expect("making a directory");
        for name in ["linux-1.deb", "linux-2.deb", "notes"] {
            std::fs::write(packages.join(name), "").expect("writing a file");
        }
        assert_eq!(package(dir.path()).expect("there are two"), packages.join("linux-2.deb"));
    }
}
