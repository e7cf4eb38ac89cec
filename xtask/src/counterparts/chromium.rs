//! Debian's Chromium, with what drives it and what looks for faults in a page, from npm.
//!
//! Nothing runs here: the tests start the browser themselves. The address is the directory with
//! `node_modules`.

use anyhow::{Context, Result};

use super::Started;
use super::mcp::modules;
use crate::host::Host;

/// `playwright-core` brings no browser along and fetches none.
const PACKAGES: &[&str] = &["playwright-core@1.65.1", "axe-core@4.14.1"];

/// A directory with `node_modules`, on a machine that has `chromium`.
pub(super) fn start(host: &Host) -> Result<Started> {
    host.which("chromium").context("chromium is not installed")?;
    modules(host, host.chromium.as_ref(), "chromium-node", PACKAGES)
}
