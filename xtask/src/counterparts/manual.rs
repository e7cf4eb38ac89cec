//! A corpus for searching in: the manual pages of some Debian packages.
//!
//! The packages are downloaded and unpacked, not installed: a machine's own pages depend on what
//! is on it, and containers often have none. 50 MB, once, outside the repository; the pages are
//! 14 MB of it, and only they stay.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::Started;
use crate::host::Host;
use crate::steps::output;

/// What is on most servers, and the system calls and the C library. The questions that are asked
/// stand beside `overmind-bench`'s code.
const PACKAGES: &str = "acl apt at bash bind9-dnsutils binutils-common bsdextrautils bsdutils \
    bzip2 coreutils cpio cron curl diffutils dpkg e2fsprogs fdisk file findutils gdb git-man gpg \
    grep gzip iproute2 iptables iputils-ping jq kmod less libcap2-bin login logrotate lsof make \
    man-db manpages manpages-dev mount netcat-openbsd openssh-client openssh-server openssl \
    parted passwd patch procps psmisc rsync screen sed socat sqlite3 strace sudo systemd tar \
    tcpdump tmux traceroute udev unzip util-linux wget xz-utils zip";
/// Fewer packages than that many bring pages where a download went wrong.
const LEAST_SECTIONS: usize = 6;

/// The directory that the environment names, or one in the cache.
pub(super) fn start(host: &Host) -> Result<Started> {
    if let Some(address) = &host.manual {
        return Ok(Started { address: address.clone(), daemon: None });
    }
    let dir = host.cache.join("manual");
    std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    // Two checkouts may prepare at once: the second waits and then finds it done.
    let lock_path = dir.join("lock");
    let lock =
        File::create(&lock_path).with_context(|| format!("opening {}", lock_path.display()))?;
    lock.lock().with_context(|| format!("locking {}", lock_path.display()))?;
    let (pages, done) = (dir.join("root/usr/share/man"), dir.join("packages"));
    // Other packages than last time are another corpus.
    if std::fs::read_to_string(&done).ok().as_deref() != Some(PACKAGES) {
        fetch(host, &dir).context("fetching manual pages")?;
        let sections = std::fs::read_dir(&pages).map_or(0, Iterator::count);
        ensure!(sections >= LEAST_SECTIONS, "the packages brought {sections} sections of pages");
        std::fs::write(&done, PACKAGES).with_context(|| format!("writing {}", done.display()))?;
    }
    Ok(Started { address: pages.to_string_lossy().into_owned(), daemon: None })
}

fn fetch(host: &Host, dir: &Path) -> Result<()> {
    let apt_get = host.which("apt-get").context("apt-get is not installed")?;
    let debs = dir.join("debs");
    for old in [&debs, &dir.join("root")] {
        if old.exists() {
            std::fs::remove_dir_all(old).with_context(|| format!("removing {}", old.display()))?;
        }
        std::fs::create_dir(old).with_context(|| format!("making {}", old.display()))?;
    }
    let run = |args: &[&str]| {
        let mut command = Command::new(&apt_get);
        output(command.arg("-qq").args(args).current_dir(&debs).stdin(Stdio::null()))
    };
    let download: Vec<&str> = std::iter::once("download").chain(PACKAGES.split(' ')).collect();
    // The lists of a new machine are empty or old; they are fetched only when needed.
    run(&download).or_else(|_| {
        run(&["update"])?;
        run(&download)
    })?;
    let entries = std::fs::read_dir(&debs).context("listing the packages")?;
    for package in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let archive = output(
            Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&package).stdin(Stdio::null()),
        )?;
        unpack(dir, &archive).with_context(|| format!("unpacking {}", package.display()))?;
    }
    std::fs::remove_dir_all(&debs).with_context(|| format!("removing {}", debs.display()))
}

/// Takes the English pages out of a package's archive; one without any is no error.
fn unpack(dir: &Path, archive: &[u8]) -> Result<()> {
    let path = dir.join("package.tar");
    std::fs::write(&path, archive).with_context(|| format!("writing {}", path.display()))?;
    let list = output(Command::new("tar").arg("-tf").arg(&path).stdin(Stdio::null()))?;
    let list = String::from_utf8_lossy(&list);
    let pages = "./usr/share/man/man";
    if list.lines().any(|name| name.starts_with(pages)) {
        output(
            Command::new("tar")
                .arg("-xf")
                .arg(&path)
                .args(["-C", "root", "--no-same-owner", "--wildcards", "./usr/share/man/man*"])
                .current_dir(dir)
                .stdin(Stdio::null()),
        )?;
    }
    std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))
}
