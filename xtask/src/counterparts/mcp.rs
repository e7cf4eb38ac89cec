//! Real MCP servers: two from npm, and what a server in Python needs; and SDKs in Python.
//!
//! Nothing runs here: the tests start the servers themselves, as the product would. The address
//! of each is the directory that it was installed into, in the cache, at fixed versions.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::Started;
use crate::host::Host;
use crate::steps::output;

/// The reference servers. Their versions are dates; a change of one here is a change of a test.
const NODE: &[&str] = &[
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
];
const PYTHON: &str = "mcp>=2,<3";
/// The official clients of the model providers.
const SDKS: &[&str] = &["openai==3.54.0", "anthropic==2.12.0"];

const LITELLM: &[&str] = &["litellm[proxy]==1.106.2"];

/// Programs that read an OpenAPI document: a fuzzer, and generators of clients.
const SCHEMATHESIS: &[&str] = &["schemathesis==4.32.5"];
const PYTHON_CLIENT: &[&str] = &["openapi-python-client==0.29.1"];
const TYPESCRIPT_CLIENT: &[&str] = &[
    "openapi-typescript@7.13.0",
    "openapi-fetch@0.17.0",
    "typescript@5.9.3",
    "@types/node@20.9.5",
];

/// The messages of OpenTelemetry's own protocol.
const OTLP: &[&str] = &["opentelemetry-proto==1.45.2"];

/// A directory with `node_modules`.
pub(super) fn node(host: &Host) -> Result<Started> {
    modules(host, host.mcp_node.as_ref(), "mcp-node", NODE)
}

/// A directory with `node_modules` of what makes a client in TypeScript.
pub(super) fn typescript_client(host: &Host) -> Result<Started> {
    modules(host, None, "typescript-client", TYPESCRIPT_CLIENT)
}

/// A directory with `node_modules` of these packages; no script of theirs is run.
pub(super) fn modules(
    host: &Host,
    brought: Option<&String>,
    name: &str,
    all: &[&str],
) -> Result<Started> {
    let npm = host.which("npm").context("this needs node and npm")?;
    installed(host, brought, name, all.join(" "), |dir| {
        let mut command = Command::new(&npm);
        command
            .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
            .arg(dir)
            .args(all);
        command
    })
}

/// A directory for `PYTHONPATH` with Schemathesis, its program in `bin`.
pub(super) fn schemathesis(host: &Host) -> Result<Started> {
    packages(host, None, "python-schemathesis", SCHEMATHESIS)
}

/// A directory for `PYTHONPATH` with what makes a client in Python, its program in `bin`.
pub(super) fn python_client(host: &Host) -> Result<Started> {
    packages(host, None, "python-client", PYTHON_CLIENT)
}

/// A directory for `PYTHONPATH`.
pub(super) fn python(host: &Host) -> Result<Started> {
    packages(host, host.mcp_python.as_ref(), "mcp-python", &[PYTHON])
}

/// A directory for `PYTHONPATH` with the SDKs of OpenAI and Anthropic.
pub(super) fn python_sdks(host: &Host) -> Result<Started> {
    packages(host, host.python_sdks.as_ref(), "python-sdks", SDKS)
}

/// A directory for `PYTHONPATH` with LiteLLM's proxy, to measure beside ours.
pub(super) fn litellm(host: &Host) -> Result<Started> {
    packages(host, None, "python-litellm", LITELLM)
}

/// A directory for `PYTHONPATH` with what reads OTLP.
pub(super) fn python_otlp(host: &Host) -> Result<Started> {
    packages(host, host.python_otlp.as_ref(), "python-otlp", OTLP)
}

fn packages(host: &Host, brought: Option<&String>, name: &str, all: &[&str]) -> Result<Started> {
    let python = host.which("python3").context("this needs python3 and pip")?;
    installed(host, brought, name, all.join(" "), |dir| {
        let mut command = Command::new(&python);
        command
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"])
            .arg("--target")
            .arg(dir)
            .args(all);
        command
    })
}

/// The directory that the person set, or one of ours that contains `what`.
pub(super) fn installed(
    host: &Host,
    brought: Option<&String>,
    name: &str,
    what: String,
    install: impl FnOnce(&Path) -> Command,
) -> Result<Started> {
    if let Some(address) = brought {
        return Ok(Started { address: address.to_owned(), daemon: None });
    }
    let dir: PathBuf = host.cache.join(name);
    std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    // Two checkouts may install at once: the second waits and then finds it done.
    let lock_path = host.cache.join(format!("{name}.lock"));
    let lock =
        File::create(&lock_path).with_context(|| format!("opening {}", lock_path.display()))?;
    lock.lock().with_context(|| format!("locking {}", lock_path.display()))?;
    let done = host.cache.join(format!("{name}.ok"));
    if std::fs::read_to_string(&done).ok().as_deref() != Some(&what) {
        output(install(&dir).stdin(Stdio::null()))
            .with_context(|| format!("installing {what} into {}", dir.display()))?;
        std::fs::write(&done, &what).with_context(|| format!("writing {}", done.display()))?;
    }
    Ok(Started { address: dir.display().to_string(), daemon: None })
}
