//! A Docker engine of our own, next to whatever runs on the machine.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Started;
use super::daemon::{Daemon, free_slot};
use crate::host::Host;
use crate::say;

/// How long the engine may take to answer. A cold start on a busy machine takes some seconds.
const START: Duration = Duration::from_secs(60);

/// How long it may take to end its containers.
const GRACE: Duration = Duration::from_secs(20);

/// The longest path that fits a socket's address, with the terminating zero left out.
const SOCKET_PATH_MAX: usize = 107;

/// The engine the environment names, or a new one, which needs root.
pub(super) fn start(host: &Host) -> Result<Started> {
    if let Some(address) = &host.docker {
        if !answers(Path::new(address)) {
            bail!("no Docker engine answers at {address}, which OVERMIND_TEST_DOCKER names");
        }
        return Ok(Started { address: address.clone(), daemon: None });
    }
    if !host.is_root {
        bail!(
            "starting a Docker engine needs root: run this as root, or set OVERMIND_TEST_DOCKER to \
             the path of a socket that you may use"
        );
    }
    // The default driver for this kernel first; vfs works on any file system but copies.
    match with_driver(host, None) {
        Ok(started) => Ok(started),
        Err(first) => {
            say::note(&format!("    docker: {first:#}; trying the vfs storage driver"));
            with_driver(host, Some("vfs"))
        }
    }
}

fn with_driver(host: &Host, driver: Option<&str>) -> Result<Started> {
    let dockerd = host.which("dockerd").context("dockerd (package docker.io) is not installed")?;
    let (log, log_path) = free_slot(&host.cache.join("docker"), "engine")?;
    // Data is kept from run to run, so that images are; the rest begins anew.
    let data = log_path.with_extension("data");
    let run = log_path.with_extension("run");
    let _ = std::fs::remove_dir_all(&run);
    std::fs::create_dir_all(&run).with_context(|| format!("making {}", run.display()))?;
    let socket = run.join("docker.sock");
    if socket.as_os_str().len() > SOCKET_PATH_MAX {
        bail!(
            "{} is too long for a socket: set XDG_CACHE_HOME to a shorter path",
            socket.display()
        );
    }

    let mut command = Command::new(dockerd);
    command
        .arg("--data-root")
        .arg(&data)
        .arg("--exec-root")
        .arg(run.join("exec"))
        .arg("--pidfile")
        .arg(run.join("pid"))
        .arg(format!("--host=unix://{}", socket.display()))
        // Nothing of the machine's network is touched; containers have none.
        .args(["--iptables=false", "--ip-forward=false", "--bridge=none"]);
    if let Some(driver) = driver {
        command.arg("--storage-driver").arg(driver);
    }
    let mut daemon = Daemon::start(host, &command, log, log_path, GRACE)?;
    daemon
        .wait_until(START, |_| answers(&socket).then_some(()))
        .context("starting the Docker engine")?;
    remove_containers(host, &socket);
    Ok(Started { address: socket.display().to_string(), daemon: Some(daemon) })
}

fn answers(socket: &Path) -> bool {
    let ping = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ping().is_ok_and(|answer| answer.starts_with("HTTP/1.") && answer.contains(" 200 "))
}

/// Removes what a killed run left in the data directory, so that it does not grow.
fn remove_containers(host: &Host, socket: &Path) {
    let Some(docker) = host.which("docker") else { return };
    let at = format!("unix://{}", socket.display());
    let listed = Command::new(&docker).args(["-H", &at, "ps", "--all", "--quiet"]).output();
    let Ok(listed) = listed else { return };
    let ids = String::from_utf8_lossy(&listed.stdout);
    let ids: Vec<&str> = ids.split_whitespace().collect();
    if !ids.is_empty() {
        // A leftover costs disk and nothing else: the tests name their containers anew.
        let _ = Command::new(docker)
            .args(["-H", &at, "rm", "--force"])
            .args(ids)
            .stdout(Stdio::null())
            .status();
    }
}
