//! What the microvm tests start: a kernel package of the distribution's, fetched once and never
//! installed. The tests build the guest from it, beside it.

use std::fs::File;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Started;
use crate::host::Host;
use crate::steps::output;

/// The kernel that the guest is made from; it names the package that has the files.
const KERNEL: &str = "linux-image-amd64";

/// The directory that the environment names, or ours with the package in it.
pub(super) fn start(host: &Host) -> Result<Started> {
    if let Some(address) = &host.microvm {
        return Ok(Started { address: address.clone(), daemon: None });
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("the microvm sandbox is for Linux on x86-64 only");
    }
    let dir = host.cache.join("microvm");
    let packages = dir.join("packages");
    std::fs::create_dir_all(&packages).with_context(|| format!("making {}", packages.display()))?;
    // Two checkouts may fetch at once: the second waits and then finds it done.
    let lock_path = dir.join("lock");
    let lock =
        File::create(&lock_path).with_context(|| format!("opening {}", lock_path.display()))?;
    lock.lock().with_context(|| format!("locking {}", lock_path.display()))?;
    let there = std::fs::read_dir(&packages)
        .with_context(|| format!("listing {}", packages.display()))?
        .next()
        .is_some();
    if !there {
        let listed = output(Command::new("apt-cache").args(["depends", KERNEL]))?;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let name = listed
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: "))
            .with_context(|| format!("apt-cache names no kernel for {KERNEL}: apt-get update"))?;
        output(Command::new("apt-get").args(["-qq", "download", name]).current_dir(&packages))
            .with_context(|| format!("fetching {name}"))?;
    }
    Ok(Started { address: dir.display().to_string(), daemon: None })
}
