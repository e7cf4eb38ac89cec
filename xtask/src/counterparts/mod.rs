//! What the tests talk to for real: a Docker engine, a small model behind a model server, MCP
//! servers, three agents of other people, a static embedding model on disk, manual pages to search in, a kernel package for
//! the microvm's guest, strace, git-lfs, the servers of PostgreSQL and Redis, and GNOME Keyring.
//!
//! [`start`] makes all ready in a thread of its own, so that downloads overlap with compiling.
//! The addresses reach the tests as `OVERMIND_TEST_DOCKER` (a socket's path), `OVERMIND_TEST_LLAMA`
//! (a base URL), and as directories in which nothing runs: `OVERMIND_TEST_MCP_NODE`,
//! `OVERMIND_TEST_MCP_PYTHON`, `OVERMIND_TEST_PYTHON_SDKS`, `OVERMIND_TEST_CLAUDE_CODE`, `OVERMIND_TEST_CODEX`,
//! `OVERMIND_TEST_GEMINI_CLI` and `OVERMIND_TEST_OPENCODE` (where their programs are),
//! `OVERMIND_TEST_CHROMIUM` (what drives the browser), `OVERMIND_TEST_EMBEDDING_MODEL`, `OVERMIND_TEST_MANUAL` and
//! `OVERMIND_TEST_MICROVM`; and
//! `OVERMIND_TEST_STRACE`, `OVERMIND_TEST_GIT_LFS`, `OVERMIND_TEST_POSTGRES`, `OVERMIND_TEST_REDIS`
//! and `OVERMIND_TEST_GNOME_KEYRING` (programs, the servers among which the tests start themselves).
//! Testkit's `counterpart` reads them. The two servers are ours
//! alone: own data directory, own socket or port, and they end with us in every case, because
//! the kernel ends them when the thread that started them is gone.
//!
//! Counterparts that the environment already names are used as they are and left running.

mod agents;
mod chromium;
mod daemon;
mod docker;
mod embedding;
mod llama;
mod manual;
mod mcp;
mod microvm;
mod packages;

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use self::daemon::Daemon;
use crate::host::Host;
use crate::say;

/// Counterparts that are starting, or run. Dropping it ends them.
#[derive(Debug)]
pub struct Counterparts {
    ready: mpsc::Receiver<Ready>,
    /// Dropped to say stop.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The result of the start.
#[derive(Clone, Debug, Default)]
pub struct Ready {
    /// Environment variables for the tests, name and value.
    pub variables: Vec<(&'static str, String)>,
    /// The missing counterpart, the reason, and the remedy.
    pub missing: Vec<String>,
}

/// A counterpart: where it listens, and the process when we started it.
#[derive(Debug)]
struct Started {
    address: String,
    daemon: Option<Daemon>,
}

/// Begins to install and start everything; returns at once.
pub fn start(host: &Host) -> Counterparts {
    let (ready_tx, ready) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let host = host.clone();
    let thread = std::thread::spawn(move || {
        // The servers die with this thread: it keeps them and waits for the end.
        let mut daemons = Vec::new();
        let mut outcome = Ready { missing: packages::ensure(&host), ..Ready::default() };
        type Start = fn(&Host) -> Result<Started>;
        let all: [(&'static str, Start); 20] = [
            ("OVERMIND_TEST_DOCKER", docker::start),
            ("OVERMIND_TEST_LLAMA", llama::start),
            ("OVERMIND_TEST_MCP_NODE", mcp::node),
            ("OVERMIND_TEST_MCP_PYTHON", mcp::python),
            ("OVERMIND_TEST_PYTHON_SDKS", mcp::python_sdks),
            ("OVERMIND_TEST_PYTHON_OTLP", mcp::python_otlp),
            ("OVERMIND_TEST_PROMTOOL", promtool),
            ("OVERMIND_TEST_CLAUDE_CODE", agents::claude_code),
            ("OVERMIND_TEST_CODEX", agents::codex),
            ("OVERMIND_TEST_GEMINI_CLI", agents::gemini_cli),
            ("OVERMIND_TEST_OPENCODE", agents::opencode),
            ("OVERMIND_TEST_CHROMIUM", chromium::start),
            ("OVERMIND_TEST_EMBEDDING_MODEL", embedding::start),
            ("OVERMIND_TEST_MANUAL", manual::start),
            ("OVERMIND_TEST_MICROVM", microvm::start),
            ("OVERMIND_TEST_STRACE", strace),
            ("OVERMIND_TEST_GIT_LFS", git_lfs),
            ("OVERMIND_TEST_POSTGRES", postgres),
            ("OVERMIND_TEST_REDIS", redis),
            ("OVERMIND_TEST_GNOME_KEYRING", gnome_keyring),
        ];
        for (variable, start) in all {
            let began = Instant::now();
            match start(&host) {
                Ok(Started { address, daemon }) => {
                    say::note(&format!(
                        "    {variable}={address} after {:.1} s",
                        began.elapsed().as_secs_f64()
                    ));
                    outcome.variables.push((variable, address));
                    daemons.extend(daemon);
                }
                Err(err) => outcome.missing.push(format!("{variable}: {err:#}")),
            }
        }
        // Whoever waited may have given up; then `stopped` says so at once.
        let _ = ready_tx.send(outcome);
        let _ = stopped.recv();
        drop(daemons);
    });
    Counterparts { ready, stop: Some(stop), thread: Some(thread) }
}

/// Data for the measurements of memory: a model's directory, and one of manual pages.
///
/// # Errors
///
/// When one is not there and cannot be fetched.
pub fn of_memory(host: &Host) -> Result<(String, String)> {
    let model = embedding::start(host).context("preparing the embedding model")?;
    let manual = manual::start(host).context("preparing the manual pages")?;
    Ok((model.address, manual.address))
}

/// The directory with LiteLLM's packages, which the gateway is measured beside.
///
/// # Errors
///
/// When they cannot be installed.
pub fn of_litellm(host: &Host) -> Result<String> {
    Ok(mcp::litellm(host).context("installing LiteLLM")?.address)
}

/// The directory with Schemathesis, which fuzzes the HTTP surface.
///
/// # Errors
///
/// When it cannot be installed.
pub fn of_schemathesis(host: &Host) -> Result<String> {
    Ok(mcp::schemathesis(host).context("installing Schemathesis")?.address)
}

/// The directory with the packages that drive Chromium.
///
/// # Errors
///
/// When Chromium or they cannot be installed.
pub fn of_chromium(host: &Host) -> Result<String> {
    Ok(chromium::start(host).context("installing what drives Chromium")?.address)
}

/// The directory with what generates a client in Python.
///
/// # Errors
///
/// When it cannot be installed.
pub fn of_python_client(host: &Host) -> Result<String> {
    Ok(mcp::python_client(host).context("installing openapi-python-client")?.address)
}

/// The directory with what generates and compiles a client in TypeScript.
///
/// # Errors
///
/// When it cannot be installed.
pub fn of_typescript_client(host: &Host) -> Result<String> {
    Ok(mcp::typescript_client(host).context("installing openapi-typescript")?.address)
}

/// The engine for the measurements of sandboxes. When it is dropped, the engine ends.
#[derive(Debug)]
pub struct OfSandboxes {
    /// The socket of a Docker engine.
    pub docker: Option<String>,
    /// A directory for images of virtual machines, with a kernel package below `packages`.
    pub microvm: Option<String>,
    /// The missing counterpart, the reason, and the remedy.
    pub missing: Vec<String>,
    _engine: Option<Daemon>,
}

/// Prepares what the figures of sandboxes are measured with, as far as this machine can give it.
///
/// The engine lives for as long as the calling thread does, at most.
pub fn of_sandboxes(host: &Host) -> OfSandboxes {
    let mut missing = packages::ensure(host);
    let mut or_missing = |what: &str, started: Result<Started>| match started {
        Ok(Started { address, daemon }) => (Some(address), daemon),
        Err(err) => {
            missing.push(format!("{what}: {err:#}"));
            (None, None)
        }
    };
    let (docker, engine) = or_missing("a Docker engine", docker::start(host));
    let (microvm, _) = or_missing("a kernel for virtual machines", microvm::start(host));
    OfSandboxes { docker, microvm, missing, _engine: engine }
}

/// The path of `strace`. The test that uses it makes namespaces of its own, which takes root.
fn strace(host: &Host) -> Result<Started> {
    if !host.is_root {
        bail!("tracing commands in namespaces of their own needs root");
    }
    let path = host.which("strace").context("strace is not installed")?;
    Ok(Started { address: path.display().to_string(), daemon: None })
}

/// The path of `promtool`.
fn promtool(host: &Host) -> Result<Started> {
    let path = host.which("promtool").context("promtool is not installed")?;
    Ok(Started { address: path.display().to_string(), daemon: None })
}

/// The path of `git-lfs`.
fn git_lfs(host: &Host) -> Result<Started> {
    let path = host.which("git-lfs").context("git-lfs is not installed")?;
    Ok(Started { address: path.display().to_string(), daemon: None })
}

/// The path of the newest `postgres`. A test starts its own server, and none as root.
fn postgres(host: &Host) -> Result<Started> {
    let path = postgres_program(host).context("PostgreSQL's server is not installed")?;
    Ok(Started { address: path.display().to_string(), daemon: None })
}

/// Debian keeps one directory per version, outside of the path.
fn postgres_program(host: &Host) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let programs = versions.map(|entry| entry.path().join("bin/postgres"));
    programs.filter(|path| path.is_file()).max().or_else(|| host.which("postgres"))
}

/// The path of `redis-server`.
fn redis(host: &Host) -> Result<Started> {
    let path = host.which("redis-server").context("redis-server is not installed")?;
    Ok(Started { address: path.display().to_string(), daemon: None })
}

/// The path of `gnome-keyring-daemon`. A test starts its own, on a bus of its own.
fn gnome_keyring(host: &Host) -> Result<Started> {
    for program in ["dbus-daemon", "secret-tool"] {
        host.which(program).with_context(|| format!("{program} is not installed"))?;
    }
    let path = host.which("gnome-keyring-daemon").context("gnome-keyring is not installed")?;
    Ok(Started { address: path.display().to_string(), daemon: None })
}

impl Counterparts {
    /// Waits until everything runs or is known to be missing.
    ///
    /// # Errors
    ///
    /// In `strict` mode, when anything is missing; and when the start itself broke.
    pub fn wait(&self, strict: bool) -> Result<Ready> {
        let ready =
            self.ready.recv().context("starting the tests' counterparts: the thread died")?;
        for missing in &ready.missing {
            say::note(&format!("    missing: {missing}"));
        }
        match ready.missing.len() {
            n if strict && n > 0 => {
                bail!("{n} thing(s) that the tests need are missing (strict mode): see above")
            }
            _ => Ok(ready),
        }
    }
}

impl Drop for Counterparts {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was already seen as a failed `wait`.
            let _ = thread.join();
        }
    }
}

/// `cargo xtask up`: the same servers, for tests run by hand or from an editor.
///
/// # Errors
///
/// When a counterpart is missing, or standard input is closed.
pub fn up(host: &Host) -> Result<()> {
    let counterparts = start(host);
    for (name, value) in counterparts.wait(true)?.variables {
        say::out(&format!("export {name}={value}\n"));
    }
    say::note("running; press Enter (or Ctrl-C) to end them");
    std::io::stdin().read_line(&mut String::new()).context("waiting for Enter")?;
    Ok(())
}
