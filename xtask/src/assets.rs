//! Third-party files of the dashboard: copied from npm, embedded in the program, compared in CI.
//!
//! `crates/web/assets/vendor/package-lock.json` pins the version and the hash of each package; npm
//! refuses a package with another hash. Scripts of packages are not run. To update a package,
//! change its version in `package.json`, run `npm install --package-lock-only --ignore-scripts`
//! there, then `cargo xtask assets`, and review the diff.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::host::Host;
use crate::steps::output;

/// The directory of the files in the checkout.
const DIR: &str = "crates/web/assets/vendor";

/// Each file within `node_modules`, and its name in [`DIR`].
const FILES: &[(&str, &str)] = &[
    ("@xterm/xterm/lib/xterm.mjs", "xterm/xterm.mjs"),
    ("@xterm/xterm/css/xterm.css", "xterm/xterm.css"),
    ("@xterm/xterm/LICENSE", "xterm/LICENSE"),
    ("@xterm/addon-fit/lib/addon-fit.mjs", "xterm/addon-fit.mjs"),
];

/// Files and their bytes as npm has them.
fn from_npm(host: &Host) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let npm = host.which("npm").context("this needs node and npm")?;
    let dir = host.target.join("dashboard-assets");
    std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    for name in ["package.json", "package-lock.json"] {
        let from = host.root.join(DIR).join(name);
        std::fs::copy(&from, dir.join(name))
            .with_context(|| format!("copying {}", from.display()))?;
    }
    let mut install = Command::new(npm);
    install.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]).arg(&dir);
    output(&mut install).context("installing what package-lock.json names")?;
    let read = |(from, to): &(&str, &str)| {
        let from = dir.join("node_modules").join(from);
        let bytes = std::fs::read(&from).with_context(|| format!("reading {}", from.display()))?;
        Ok((host.root.join(DIR).join(to), bytes))
    };
    FILES.iter().map(read).collect()
}

/// Writes the files anew.
///
/// # Errors
///
/// When npm is missing, a package has another hash than the lock file says, or a file cannot be
/// written.
pub fn write(host: &Host) -> Result<()> {
    for (path, bytes) in from_npm(host)? {
        std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Compares the files with those of npm.
///
/// # Errors
///
/// When one differs, by its path.
pub fn check(host: &Host) -> Result<()> {
    for (path, bytes) in from_npm(host)? {
        if std::fs::read(&path).ok().as_ref() != Some(&bytes) {
            let path = path.display();
            bail!("{path} is not the file of its package: run `cargo xtask assets`");
        }
    }
    Ok(())
}
