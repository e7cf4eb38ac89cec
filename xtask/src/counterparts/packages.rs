//! Debian packages that the tests need: installed when we are root, named when we are not.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::host::Host;
use crate::say;
use crate::steps::output;

/// How to see whether a package is there, and its name.
const PACKAGES: &[(Probe, &str)] = &[
    (Probe::StaticProgram("busybox"), "busybox-static"),
    (Probe::Program("chromium"), "chromium"),
    (Probe::Program("dbus-daemon"), "dbus"),
    (Probe::Program("dockerd"), "docker.io"),
    (Probe::Program("git"), "git"),
    (Probe::Program("git-lfs"), "git-lfs"),
    (Probe::Program("gnome-keyring-daemon"), "gnome-keyring"),
    (Probe::Program("node"), "nodejs"),
    (Probe::Program("npm"), "npm"),
    (Probe::Program("python3"), "python3"),
    (Probe::PythonModule("pip"), "python3-pip"),
    (Probe::DatabaseServer, "postgresql"),
    (Probe::Program("promtool"), "prometheus"),
    (Probe::Program("qemu-system-x86_64"), "qemu-system-x86"),
    (Probe::Program("redis-server"), "redis-server"),
    (Probe::Program("secret-tool"), "libsecret-tools"),
    (Probe::Program("setpriv"), "util-linux"),
    (Probe::Program("sqlite3"), "sqlite3"),
    (Probe::Program("xz"), "xz-utils"),
    (Probe::Program("strace"), "strace"),
];

#[derive(Clone, Copy, Debug)]
enum Probe {
    Program(&'static str),
    PythonModule(&'static str),
    /// One that needs no library, so that it runs in an image with nothing else.
    StaticProgram(&'static str),
    /// PostgreSQL, whose server Debian keeps out of the path.
    DatabaseServer,
}

impl Probe {
    fn found(self, host: &Host) -> bool {
        match self {
            Self::Program(name) => host.which(name).is_some(),
            Self::StaticProgram(name) => host.which(name).is_some_and(|path| is_static(&path)),
            Self::DatabaseServer => super::postgres_program(host).is_some(),
            Self::PythonModule(name) => host.which("python3").is_some_and(|python| {
                let mut command = Command::new(python);
                command.args(["-c", &format!("import {name}")]);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                command.status().is_ok_and(|status| status.success())
            }),
        }
    }
}

/// Whether the program names no dynamic loader, which it would do near its beginning.
fn is_static(program: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(program).and_then(|file| file.take(4096).read_to_end(&mut head));
    let names_loader =
        |word: &[u8]| word.starts_with(b"/ld-linux") || word.starts_with(b"/ld-musl");
    read.is_ok() && !head.windows(9).any(names_loader)
}

fn absent(host: &Host) -> Vec<&'static str> {
    PACKAGES.iter().filter(|(probe, _)| !probe.found(host)).map(|&(_, package)| package).collect()
}

/// Installs what is absent, if it may. Returns what is still missing, one line each.
pub(super) fn ensure(host: &Host) -> Vec<String> {
    let packages = absent(host);
    if packages.is_empty() {
        return Vec::new();
    }
    let names = packages.join(" ");
    let Some(apt_get) = host.which("apt-get") else {
        return vec![format!("install with your package manager what Debian calls: {names}")];
    };
    if !host.is_root {
        return vec![format!("not root, so run: sudo apt-get install {names}")];
    }
    say::note(&format!("    installing {names}"));
    let apt_get = |args: &[&str]| {
        output(
            Command::new(&apt_get)
                .env("DEBIAN_FRONTEND", "noninteractive")
                // Another apt may be at work: wait for it.
                .args(["-qq", "-o", "DPkg::Lock::Timeout=600"])
                .args(args)
                .stdin(Stdio::null()),
        )
    };
    let install = [&["install", "--yes", "--no-install-recommends"], packages.as_slice()].concat();
    // The lists of a new machine are empty or old; they are fetched only when needed.
    let installed = apt_get(&install).or_else(|_| {
        apt_get(&["update"])?;
        apt_get(&install)
    });
    match installed {
        Ok(_) => absent(host)
            .iter()
            .map(|package| {
                format!("{package} was installed, but what it should bring is not there")
            })
            .collect(),
        Err(err) => vec![format!("installing {names}: {err:#}")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_needs_the_loader_is_not_static() {
        assert!(!is_static(Path::new("/bin/sh")));
        assert!(!is_static(Path::new("/nowhere")), "what cannot be read is not there");
    }
}
