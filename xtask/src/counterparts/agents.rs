//! Real agents from npm: Claude Code, Codex, Gemini CLI and opencode, at fixed versions, in the cache alone.
//!
//! Nothing runs here: the tests start them, with a home of their own, against a model of ours.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Started;
use super::mcp::installed;
use crate::host::Host;

const CLAUDE_CODE: &str = "@anthropic-ai/claude-code@2.1.197";
const CODEX: &str = "@openai/codex@0.169.0";
const GEMINI_CLI: &str = "@google/gemini-cli@0.61.0";
const OPENCODE: &str = "1.18.33";

/// The directory that the program `claude` is in: the package of this kind of machine. The link
/// that npm makes leads to a placeholder, which a script of the package would replace; no script
/// of a package is run here.
pub(super) fn claude_code(host: &Host) -> Result<Started> {
    let arch = arch("Claude Code")?;
    let bin = format!("node_modules/@anthropic-ai/claude-code-linux-{arch}");
    program(host, host.claude_code.as_ref(), "claude-code", CLAUDE_CODE, "claude", &bin)
}

/// The directory that the program `codex` is in.
pub(super) fn codex(host: &Host) -> Result<Started> {
    program(host, host.codex.as_ref(), "codex", CODEX, "codex", "node_modules/.bin")
}

/// The directory that the program `gemini` is in.
pub(super) fn gemini_cli(host: &Host) -> Result<Started> {
    let bin = "node_modules/.bin";
    program(host, host.gemini_cli.as_ref(), "gemini-cli", GEMINI_CLI, "gemini", bin)
}

/// The directory that the program `opencode` is in: of the package of this kind of machine alone,
/// since `opencode-ai` brings two of them and links to a placeholder.
pub(super) fn opencode(host: &Host) -> Result<Started> {
    let name = format!("opencode-linux-{}", arch("opencode")?);
    let bin = format!("node_modules/{name}/bin");
    let package = format!("{name}@{OPENCODE}");
    program(host, host.opencode.as_ref(), "opencode", &package, "opencode", &bin)
}

/// This kind of machine, as the packages of npm call it.
fn arch(of: &str) -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("x64"),
        "aarch64" => Ok("arm64"),
        other => bail!("there is no {of} for {other}"),
    }
}

fn program(
    host: &Host,
    brought: Option<&String>,
    name: &str,
    package: &str,
    program: &str,
    bin: &str,
) -> Result<Started> {
    let npm = host.which("npm").context("this needs node and npm")?;
    let started = installed(host, brought, name, package.to_owned(), |dir| {
        let mut command = Command::new(&npm);
        command
            .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
            .arg(dir)
            .arg(package);
        command
    })?;
    if brought.is_some() {
        return Ok(started);
    }
    let bin = Path::new(&started.address).join(bin);
    if !bin.join(program).exists() {
        bail!("{package} was installed, and {} is not there", bin.join(program).display());
    }
    Ok(Started { address: bin.display().to_string(), daemon: None })
}
