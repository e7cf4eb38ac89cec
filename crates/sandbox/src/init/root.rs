//! The file system that a confined command sees: built from nothing, and read-only except for
//! `/tmp`, `/dev/shm` and the one directory that the request names.
//!
//! ```text
//! /usr /bin /lib …   the host's programs and libraries, read-only
//! /etc               a few harmless files of the host, and a generated passwd
//! /proc              fresh, of the sandbox's own processes, read-only
//! /dev               null zero full random urandom, links to the standard streams, and the
//!                    character devices that the driver gives to this sandbox
//! /tmp /dev/shm      memory, bounded together
//! /workspace         the workspace, read-only; the writable directory on top
//! ```
//!
//! A long-running command ([`Living`]) sees its workspace at the host's path instead, all of it
//! writable (for a tool call only the requested part). It also sees its granted paths at the host's
//! paths; a home; `/dev/tty` and its own terminals in `/dev/pts`; and, with the host's network, the
//! files for looking up host names.
//!
//! All mounts are made from descriptors that were opened without following links, so the mounted
//! file is the checked one. Directories of the host that are not listed do not exist inside: no
//! home, no `/root`, no `/var`, no `/run` with its sockets, no data directory of the daemon.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use overmind_core::enclosure::Network;
use overmind_core::sandbox::{HOME, HomeFile};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

use crate::init::borrowed;
use crate::init::confined::{INSIDE_ID, bound_processes};
use crate::init::fixed;
use crate::init::mutation::{Layer, skips};
use crate::init::opened::{PLAIN, open_directory, open_host, open_writable};
use crate::init::spec::{Doing, Kind, Living, Spec, Step, Stop};
use crate::sys::{self, Depth, MOUNT_NODEV, MOUNT_NOEXEC, MOUNT_NOSUID, MOUNT_RDONLY};

/// Programs and libraries. Links are kept, for systems where `/bin` is `/usr/bin`.
pub(crate) const SYSTEM: &[&str] =
    &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store"];

/// The files in `/etc` that programs use and any user may read. Deliberately missing are shadow,
/// ssh, sudoers, private keys (of `ssl` and `pki` only the public parts are shown), machine-id,
/// resolv.conf (a sandbox with a network gets its own), gitconfig, and system files of other tools
/// that may contain credentials.
const ETC: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "crypto-policies",
    "debian_version",
    "fonts",
    "host.conf",
    "inputrc",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "lsb-release",
    "magic",
    "mime.types",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];

/// Files of `/proc` that reveal data of the host instead of the sandbox.
const MASKED: &[&str] = &["kcore", "keys", "key-users", "timer_list", "sched_debug", "kallsyms"];

/// Devices that hold no state of the machine.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom"];

/// The home of a long-running command.
pub(crate) const HOME_OF_THE_LIVING: &str = "/home/sandbox";

/// The controlling terminal, and the directory in which the sandbox's own terminals appear.
pub(crate) const TERMINAL: &str = "/dev/tty";
pub(crate) const TERMINALS: &str = "/dev/pts";

/// The files for looking up host names, shown if the network is the host's.
const LOOKUP: &[&str] = &["hosts", "resolv.conf", "gai.conf"];

/// The text that replaces a secret of the repository. Most programs that read such a file treat it
/// as a comment.
const WITHHELD: &str = "# Withheld: this file is a secret of the repository. Who runs the agent grants \
                        it with `secrets` in the project's .overmind.yml.\n";
const NOTE: &str = "note";

/// Bytes for the root's own directories and copied files.
const ROOT_BYTES: u64 = 8 << 20;

/// A value that changes if a file that [`prepare`] copies or shows was replaced: a link, a
/// directory, or the content of a copied file of `/etc`.
pub(crate) fn fingerprint(kind: &Kind) -> u64 {
    let (read_only, devices) = given(kind);
    let system = SYSTEM.iter().map(|name| Path::new("/").join(name));
    let etc = ETC.iter().map(|name| Path::new("/etc").join(name));
    let mut hasher = DefaultHasher::new();
    let given = read_only.iter().chain(devices).cloned();
    debug_assert!(kind.living().is_none(), "nothing waits for a command that lives");
    for path in system.chain(etc).chain(given) {
        let found = rustix::fs::lstat(&path).ok().map(|found| {
            let directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
            // Changes within a directory are visible through the mount.
            let changed = if directory { (0, 0) } else { (found.st_ctime, found.st_ctime_nsec) };
            (found.st_dev, found.st_ino, found.st_mode, changed)
        });
        found.hash(&mut hasher);
    }
    hasher.finish()
}

/// A root that lacks only what the order determines: the workspace and the limits. This process is
/// still in the old root.
pub(crate) struct Site {
    root: OwnedFd,
    /// `/proc`, which is still writable; `None` if it is the host's.
    proc: Option<OwnedFd>,
    /// The file system of `/tmp` and `/dev/shm`.
    temporary: OwnedFd,
}

/// `None` if a test omits the root.
pub(crate) struct Prepared(Option<Site>);

/// The directories and devices of the host that are shown in addition to the usual ones.
fn given(kind: &Kind) -> (&[PathBuf], &[PathBuf]) {
    match kind {
        Kind::Namespace { read_only, devices, .. } => (read_only, devices),
        Kind::Unconfined => (&[], &[]),
    }
}

/// Builds everything that is independent of the order.
pub(crate) fn prepare(kind: &Kind) -> Result<Prepared, Stop> {
    let (read_only, given_devices) = given(kind);
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .doing(Step::Mount, "making the mounts private")?;
    if skips(Layer::OwnRoot) {
        return Ok(Prepared(None));
    }

    let root = tmpfs(&[("size", &ROOT_BYTES.to_string()), ("mode", "0755")])?;
    // It must be attached before other mounts can be attached below it. /proc exists on every
    // system, and this covers it in this mount namespace only.
    let covered = open_path("/proc")?;
    let hosts_proc = match skips(Layer::FreshProc) || skips(Layer::ProcessNamespace) {
        true => Some(clone_tree(&covered, Path::new(""))?),
        false => None,
    };
    attach(&root, &covered).doing(Step::Mount, "attaching the root")?;

    let living = kind.living();
    system(&root)?;
    etc(&root, living)?;
    devices(&root)?;
    if living.is_some() {
        terminals(&root)?;
    }
    let temporary = temporary(&root, living)?;
    // This comes after mounts that would cover them: a data directory may be in the host's /tmp.
    match living {
        None => {
            for extra in read_only {
                show(&root, extra, extra.strip_prefix("/").unwrap_or(extra))?;
            }
        }
        Some(living) => granted(&root, read_only, living)?,
    }
    for path in given_devices {
        given_device(&root, path)?;
    }
    let proc = proc(&root, hosts_proc.as_ref())?;
    if living.is_none() {
        make_directory(&root, Path::new("workspace"))?;
    }
    Ok(Prepared(Some(Site { root, proc, temporary })))
}

impl Prepared {
    /// Sets the order's limits, shows its workspace, moves into the new root and detaches the old
    /// one, for this process and all that share its mounts and its root.
    pub(crate) fn finish(self, spec: &Spec) -> Result<(), Stop> {
        let Some(Site { root, proc, temporary }) = self.0 else { return Ok(()) };
        bound_temporary(&temporary, spec.limits.tmp_bytes)?;
        if let Some(proc) = proc {
            bound_processes(&proc, spec.limits.pids).doing(Step::Limits, "pid_max")?;
            if !skips(Layer::ReadOnlyProc) {
                sys::mount_setattr(proc.as_fd(), Depth::This, MOUNT_RDONLY)
                    .doing(Step::MountAttributes, "/proc")?;
            }
        }
        match spec.kind.living() {
            None => workspace(&root, spec)?,
            Some(_) => {
                if let Some(home) = &spec.private_home {
                    show_as(&root, home, Path::new(&HOME_OF_THE_LIVING[1..]), WRITABLE)?;
                }
                // This is last, because it may be inside of a granted path.
                at_its_path(&root, spec)?;
            }
        }
        if !skips(Layer::Masks) {
            for place in &spec.masks {
                mask(&root, place)?;
            }
            withhold(&root, &spec.secrets)?;
        }
        fixed::lay(&root, &spec.fixed)?;
        home(&root, &spec.home)?;
        #[cfg(feature = "mutations")]
        if let Some(path) = crate::init::mutation::shown() {
            show_for_a_test(&root, path)?;
        }
        enter(&root)
    }
}

/// The path of the workspace as the command sees it.
pub(crate) fn workspace_inside(spec: &Spec) -> PathBuf {
    if skips(Layer::OwnRoot) || spec.kind.living().is_some() {
        spec.workspace.clone()
    } else {
        PathBuf::from("/workspace")
    }
}

fn enter(root: &OwnedFd) -> Result<(), Stop> {
    rustix::process::fchdir(root).doing(Step::PivotRoot, "chdir")?;
    // New and old root are at the same path: the old one is then on top and can be detached, and
    // needs no directory to hold it.
    rustix::process::pivot_root(".", ".").doing(Step::PivotRoot, "pivot_root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).doing(Step::PivotRoot, "old root")?;
    rustix::process::chdir("/").doing(Step::PivotRoot, "chdir /")?;
    if !skips(Layer::ReadOnlyRoot) {
        sys::mount_setattr(root.as_fd(), Depth::This, MOUNT_RDONLY)
            .doing(Step::MountAttributes, "/")?;
    }
    Ok(())
}

fn system(root: &OwnedFd) -> Result<(), Stop> {
    for name in SYSTEM {
        let host = Path::new("/").join(name);
        match host.symlink_metadata() {
            Err(_) => {}
            Ok(found) if found.is_symlink() => link_as_on_host(root, &host, Path::new(name))?,
            Ok(_) => show(root, &host, Path::new(name))?,
        }
    }
    Ok(())
}

fn etc(root: &OwnedFd, living: Option<&Living>) -> Result<(), Stop> {
    make_directory(root, Path::new("etc"))?;
    let home = if living.is_some() { HOME_OF_THE_LIVING } else { HOME };
    let hosts_network = living.is_some_and(|living| living.network == Network::Host);
    for name in ETC {
        let host = Path::new("/etc").join(name);
        let inside = Path::new("etc").join(name);
        match host.symlink_metadata() {
            Err(_) => {}
            Ok(found) if found.is_symlink() => link_as_on_host(root, &host, &inside)?,
            Ok(found) if found.is_dir() => show(root, &host, &inside)?,
            // A copy costs less than a mount. Unreadable files are not for other users.
            Ok(found) if found.is_file() => {
                if let Ok(content) = std::fs::read(&host) {
                    write_file(root, &inside, &content)?;
                }
            }
            Ok(_) => {}
        }
    }
    let id = INSIDE_ID;
    let passwd = format!(
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
         sandbox:x:{id}:{id}:sandbox:{home}:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    );
    let group = format!("root:x:0:\nsandbox:x:{id}:\nnogroup:x:65534:\n");
    for (name, content) in [
        ("etc/passwd", passwd.as_str()),
        ("etc/group", group.as_str()),
        ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
        ("etc/hostname", "sandbox\n"),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ] {
        write_file(root, Path::new(name), content.as_bytes())?;
    }
    if living.is_some_and(|living| living.network == Network::Mesh) {
        // This is for programs that ignore `nsswitch.conf`.
        let text = b"nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";
        write_file(root, Path::new("etc/resolv.conf"), text)?;
        // The proxy and the forwarded ports listen only on this address, and some programs do not
        // try a second one.
        let text = b"127.0.0.1 localhost sandbox\n::1 ip6-localhost\n";
        write_file(root, Path::new("etc/hosts"), text)?;
    }
    if hosts_network {
        let text = b"passwd: files\ngroup: files\nhosts: files dns\n";
        write_file(root, Path::new("etc/nsswitch.conf"), text)?;
        for name in LOOKUP {
            // The file may be a link into `/run`, as on many systems.
            if let Ok(content) = std::fs::read(Path::new("/etc").join(name)) {
                write_file(root, &Path::new("etc").join(name), &content)?;
            }
        }
    }
    Ok(())
}

/// Shows the controlling terminal by its name, and a directory for terminals that the command
/// makes.
fn terminals(root: &OwnedFd) -> Result<(), Stop> {
    // A machine without it has no terminals to open through it.
    if Path::new(TERMINAL).exists() {
        device(root, Path::new(TERMINAL))?;
    }
    let make = || -> io::Result<OwnedFd> {
        let context = rustix::mount::fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in [("ptmxmode", "0666"), ("mode", "0600")] {
            rustix::mount::fsconfig_set_string(&context, key, value)?;
        }
        rustix::mount::fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
    };
    let tree = make().doing(Step::Mount, "devpts")?;
    let inside = Path::new(&TERMINALS[1..]);
    make_directory(root, inside)?;
    put(root, &tree, Depth::This, MOUNT_NOSUID | MOUNT_NOEXEC, inside)?;
    rustix::fs::symlinkat("pts/ptmx", root, "dev/ptmx").doing(Step::Mount, "dev/ptmx")
}

/// The mount attributes of shown host paths.
const WRITABLE: u64 = MOUNT_NOSUID | MOUNT_NODEV;
const READ_ONLY: u64 = WRITABLE | MOUNT_RDONLY;

/// Mounts the granted paths of a long-running command, outer directories first.
fn granted(root: &OwnedFd, read_only: &[PathBuf], living: &Living) -> Result<(), Stop> {
    let mut all: Vec<(&PathBuf, u64)> = read_only.iter().map(|path| (path, READ_ONLY)).collect();
    all.extend(living.writable.iter().map(|path| (path, WRITABLE)));
    // The sort is stable: of a path in both lists the writable one is on top.
    all.sort_by_key(|(path, _)| path.components().count());
    for (path, attributes) in all {
        let host = match living.borrowed.contains(path) {
            true => borrowed::open(path)?,
            false => open_host(living.on_the_host(path), PLAIN)?,
        };
        show_opened(root, &host, beneath_root(path), attributes)?;
    }
    let shared = living.network == Network::Host;
    for socket in living.sockets.iter().filter(|socket| shared && socket.exists()) {
        show_as(root, socket, beneath_root(socket), READ_ONLY)?;
    }
    Ok(())
}

fn beneath_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Shows a file or directory of the host, and everything that is mounted in it.
fn show_as(root: &OwnedFd, host: &Path, inside: &Path, attributes: u64) -> Result<(), Stop> {
    let tree = open_host(host, ResolveFlags::empty())?;
    show_opened(root, &tree, inside, attributes)
}

fn show_opened(
    root: &OwnedFd,
    opened: &OwnedFd,
    inside: &Path,
    attributes: u64,
) -> Result<(), Stop> {
    let found = rustix::fs::fstat(opened).doing(Step::Mount, inside.display())?;
    let place = open_beneath_root(root, inside);
    match (place, FileType::from_raw_mode(found.st_mode) == FileType::Directory) {
        // It exists already, as a part of something else that is shown.
        (Ok(_), _) => {}
        (Err(_), true) => make_directory(root, inside)?,
        (Err(_), false) => write_file(root, inside, b"")?,
    }
    let tree = clone_tree(opened, Path::new(""))?;
    put(root, &tree, Depth::Recursive, attributes, inside)
}

pub(crate) fn open_beneath_root(root: &OwnedFd, inside: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, inside, flags, Mode::empty(), how)
}

fn devices(root: &OwnedFd) -> Result<(), Stop> {
    make_directory(root, Path::new("dev"))?;
    for name in DEVICES {
        device(root, &Path::new("/dev").join(name))?;
    }
    for (name, target) in [
        ("dev/fd", "/proc/self/fd"),
        ("dev/stdin", "/proc/self/fd/0"),
        ("dev/stdout", "/proc/self/fd/1"),
        ("dev/stderr", "/proc/self/fd/2"),
    ] {
        rustix::fs::symlinkat(target, root, name).doing(Step::Mount, name)?;
    }
    Ok(())
}

/// Shows a device that the driver names. It must be in `/dev` and be a character device; the
/// checked node is the mounted one.
fn given_device(root: &OwnedFd, host: &Path) -> Result<(), Stop> {
    let refused = |why: &str| {
        Stop::BadConfig(format!("cannot give the device {} to a sandbox: {why}", host.display()))
    };
    let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !host.starts_with("/dev") || !host.components().all(plain) {
        return Err(refused("it is not an absolute path in /dev"));
    }
    let node = match clone_tree(CWD, host) {
        Err(Stop::Refused { errno: libc::ENOENT, .. }) => return Err(refused("there is none")),
        node => node?,
    };
    let found = rustix::fs::fstat(&node).doing(Step::Mount, host.display())?;
    if FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice {
        return Err(refused("it is not a character device"));
    }
    mount_device(root, host, &node)
}

fn device(root: &OwnedFd, host: &Path) -> Result<(), Stop> {
    mount_device(root, host, &clone_tree(CWD, host)?)
}

fn mount_device(root: &OwnedFd, host: &Path, node: &OwnedFd) -> Result<(), Stop> {
    let inside = host.strip_prefix("/").unwrap_or(host);
    write_file(root, inside, b"")?;
    // Read-only applies to the node (its mode must not be changed, because it is the host's), not
    // to what is written through it.
    put(root, node, Depth::This, MOUNT_RDONLY | MOUNT_NOSUID | MOUNT_NOEXEC, inside)
}

/// The size of `/tmp` and `/dev/shm` in bytes until the order sets it.
const TEMPORARY_BYTES: u64 = 1 << 20;

/// The number of inodes: a file's entry costs the kernel about a kilobyte, whatever the file
/// contains.
fn inodes(bytes: u64) -> u64 {
    (bytes / 1024).max(1024)
}

/// Makes `/tmp` and `/dev/shm` on one file system, so that the limit applies to both together.
fn temporary(root: &OwnedFd, living: Option<&Living>) -> Result<OwnedFd, Stop> {
    let both = tmpfs(&[
        ("size", &TEMPORARY_BYTES.to_string()),
        ("nr_inodes", &inodes(TEMPORARY_BYTES).to_string()),
        ("mode", "0755"),
    ])?;
    // Before Linux 6.15 only an attached mount can be cloned; the clone of its `tmp` covers it.
    make_directory(root, Path::new("tmp"))?;
    put(root, &both, Depth::This, MOUNT_NOSUID | MOUNT_NODEV, Path::new("tmp"))?;
    for (name, inside) in [("shm", "dev/shm"), ("tmp", "tmp")] {
        rustix::fs::mkdirat(&both, name, Mode::from_raw_mode(0o777)).doing(Step::Mount, name)?;
        // Some umasks remove the sticky bit.
        rustix::fs::chmodat(&both, name, Mode::from_raw_mode(0o1777), rustix::fs::AtFlags::empty())
            .doing(Step::Mount, name)?;
        make_directory(root, Path::new(inside))?;
        let tree = clone_tree(&both, Path::new(name))?;
        put(root, &tree, Depth::This, MOUNT_NOSUID | MOUNT_NODEV, Path::new(inside))?;
    }
    if living.is_some() {
        rustix::fs::mkdirat(&both, "home", Mode::from_raw_mode(0o700))
            .doing(Step::Mount, "home")?;
        let inside = Path::new(&HOME_OF_THE_LIVING[1..]);
        make_directory(root, inside)?;
        let tree = clone_tree(&both, Path::new("home"))?;
        put(root, &tree, Depth::This, MOUNT_NOSUID | MOUNT_NODEV, inside)?;
    }
    make_directory(root, Path::new("var"))?;
    rustix::fs::symlinkat("/tmp", root, "var/tmp").doing(Step::Mount, "var/tmp")?;
    Ok(both)
}

/// Sets the size of the file system of `/tmp` to the order's.
fn bound_temporary(both: &OwnedFd, bytes: u64) -> Result<(), Stop> {
    let change = || -> io::Result<()> {
        let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
        let context = rustix::mount::fspick(both, "", flags)?;
        rustix::mount::fsconfig_set_string(&context, "size", bytes.to_string())?;
        rustix::mount::fsconfig_set_string(&context, "nr_inodes", inodes(bytes).to_string())?;
        Ok(rustix::mount::fsconfig_reconfigure(&context)?)
    };
    change().doing(Step::Mount, "the size of /tmp")
}

/// Mounts a new `/proc`, read-only as a whole: some files outside of the processes' directories
/// control the machine, and check only whether the writer is the host's root, which a root caller
/// still is inside.
///
/// It becomes read-only with the order, which must be written into it first.
fn proc(root: &OwnedFd, hosts: Option<&OwnedFd>) -> Result<Option<OwnedFd>, Stop> {
    let step = Step::MountProc;
    make_directory(root, Path::new("proc"))?;
    if let Some(hosts) = hosts {
        put(root, hosts, Depth::Recursive, MOUNT_NOSUID | MOUNT_NODEV, Path::new("proc"))?;
        return Ok(None);
    }
    let context = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).doing(step, "")?;
    rustix::mount::fsconfig_create(&context).doing(step, "")?;
    let tree = rustix::mount::fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )
    .doing(step, "")?;
    put(root, &tree, Depth::This, 0, Path::new("proc"))?;
    for name in MASKED {
        let inside = Path::new("proc").join(name);
        if rustix::fs::statat(root, &inside, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            let null = clone_tree(CWD, Path::new("/dev/null"))?;
            put(root, &null, Depth::This, MOUNT_RDONLY | MOUNT_NOSUID | MOUNT_NOEXEC, &inside)?;
        }
    }
    Ok(Some(tree))
}

fn workspace(root: &OwnedFd, spec: &Spec) -> Result<(), Stop> {
    let workspace = open_directory(&spec.workspace)?;
    let writable = match &spec.writable {
        Some(path) => Some((path, open_writable(&workspace, path)?)),
        None => None,
    };
    let harmless = MOUNT_NOSUID | MOUNT_NODEV;
    let tree = clone_tree(&workspace, Path::new(""))?;
    put(root, &tree, Depth::Recursive, harmless | MOUNT_RDONLY, Path::new("workspace"))?;
    let Some((path, writable)) = writable else { return Ok(()) };
    let tree = clone_tree(&writable, Path::new(""))?;
    put(root, &tree, Depth::Recursive, harmless, &Path::new("workspace").join(path))
}

/// Shows the workspace at the host's path, and its writable parts.
fn at_its_path(root: &OwnedFd, spec: &Spec) -> Result<(), Stop> {
    let inside = beneath_root(&spec.workspace);
    let all = |path: &Path| path.components().all(|part| part == Component::CurDir);
    let whole = spec.writable.as_deref().is_some_and(all);
    let workspace = open_directory(&spec.workspace)?;
    show_opened(root, &workspace, inside, if whole { WRITABLE } else { READ_ONLY })?;
    if let Some(target) = &spec.also_at {
        rustix::fs::symlinkat(target, root, "workspace").doing(Step::Mount, "workspace")?;
    }
    let Some(part) = spec.writable.as_deref().filter(|_| !whole) else { return Ok(()) };
    let writable = open_writable(&workspace, part)?;
    let tree = clone_tree(&writable, Path::new(""))?;
    put(root, &tree, Depth::Recursive, WRITABLE, &inside.join(part))
}

/// Mounts something empty over a file or directory of the server. The path must exist: a file that
/// was just moved could be seen at its new path.
fn mask(root: &OwnedFd, inside: &Path) -> Result<(), Stop> {
    let place = open_beneath_root(root, inside).doing(Step::Mount, inside.display())?;
    let found = rustix::fs::fstat(&place).doing(Step::Mount, inside.display())?;
    let nothing = match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => tmpfs(&[("size", "4096"), ("mode", "0555")])?,
        _ => clone_tree(CWD, Path::new("/dev/null"))?,
    };
    let set = MOUNT_RDONLY | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC;
    put(root, &nothing, Depth::This, set, inside)
}

/// Mounts a note over each secret of the repository, and something empty over a directory of
/// secrets. As with [`mask`], the paths must exist.
fn withhold(root: &OwnedFd, secrets: &[PathBuf]) -> Result<(), Stop> {
    if secrets.is_empty() {
        return Ok(());
    }
    let note = tmpfs(&[("size", "4096"), ("mode", "0755")])?;
    write_file(&note, Path::new(NOTE), WITHHELD.as_bytes())?;
    for inside in secrets {
        let place = open_beneath_root(root, inside).doing(Step::Mount, inside.display())?;
        let found = rustix::fs::fstat(&place).doing(Step::Mount, inside.display())?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            mask(root, inside)?;
        } else {
            let set = MOUNT_RDONLY | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC;
            put(root, &clone_tree(&note, Path::new(NOTE))?, Depth::This, set, inside)?;
        }
    }
    Ok(())
}

/// Writes the command's own files to `/tmp`, which is its home.
fn home(root: &OwnedFd, files: &[HomeFile]) -> Result<(), Stop> {
    let home = Path::new(HOME.trim_start_matches('/'));
    for HomeFile { path, content } in files {
        let inside = home.join(path);
        write_file(root, &inside, content)?;
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::chmodat(root, &inside, mode, rustix::fs::AtFlags::empty())
            .doing(Step::Mount, inside.display())?;
    }
    Ok(())
}

/// Makes a new file system in memory that is not attached yet.
fn tmpfs(options: &[(&str, &str)]) -> Result<OwnedFd, Stop> {
    let make = || -> io::Result<OwnedFd> {
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            rustix::mount::fsconfig_set_string(&context, *key, *value)?;
        }
        rustix::mount::fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
    };
    make().doing(Step::Mount, "tmpfs")
}

/// Shows a directory of the host, and everything that is mounted in it, read-only.
fn show(root: &OwnedFd, host: &Path, inside: &Path) -> Result<(), Stop> {
    make_directory(root, inside)?;
    let tree = clone_tree(CWD, host)?;
    put(root, &tree, Depth::Recursive, MOUNT_RDONLY | MOUNT_NOSUID | MOUNT_NODEV, inside)
}

/// Works as [`show`], for any kind of file, and on top of an existing one.
#[cfg(feature = "mutations")]
fn show_for_a_test(root: &OwnedFd, host: &Path) -> Result<(), Stop> {
    let inside = host.strip_prefix("/").unwrap_or(host);
    if host.is_dir() {
        make_directory(root, inside)?;
    } else {
        write_file(root, inside, b"")?;
    }
    let tree = clone_tree(CWD, host)?;
    put(root, &tree, Depth::Recursive, MOUNT_RDONLY | MOUNT_NOSUID, inside)
}

/// Clones the mounts at `path` (of the directory itself if empty), not attached yet.
///
/// Mounts below are always included: the kernel lets nobody uncover what a mount of a more
/// privileged namespace covers.
pub(crate) fn clone_tree(base: impl AsFd, path: &Path) -> Result<OwnedFd, Stop> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(base, path, flags).doing(Step::Mount, path.display())
}

/// Sets the attributes of a detached tree and then attaches it, so that it is never visible without
/// them.
pub(crate) fn put(
    root: &OwnedFd,
    tree: &OwnedFd,
    depth: Depth,
    set: u64,
    inside: &Path,
) -> Result<(), Stop> {
    let set = if skips(Layer::NoSuidMounts) { set & !MOUNT_NOSUID } else { set };
    sys::mount_setattr(tree.as_fd(), depth, set).doing(Step::MountAttributes, inside.display())?;
    let place = open_beneath_root(root, inside).doing(Step::Mount, inside.display())?;
    attach(tree, &place).doing(Step::Mount, inside.display())
}

fn attach(tree: &OwnedFd, place: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", place, "", flags)
}

fn open_path(path: &str) -> Result<OwnedFd, Stop> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).doing(Step::Mount, path)
}

/// Makes a directory of the new root, with its parents.
fn make_directory(root: &OwnedFd, inside: &Path) -> Result<(), Stop> {
    let mut so_far = PathBuf::new();
    for component in inside.components() {
        let Component::Normal(name) = component else { continue };
        so_far.push(name);
        match rustix::fs::mkdirat(root, &so_far, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(err) => return Err(err).doing(Step::Mount, so_far.display()),
        }
    }
    Ok(())
}

fn make_parent(root: &OwnedFd, inside: &Path) -> Result<(), Stop> {
    inside.parent().map_or(Ok(()), |parent| make_directory(root, parent))
}

fn write_file(root: &OwnedFd, inside: &Path, content: &[u8]) -> Result<(), Stop> {
    make_parent(root, inside)?;
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, inside, flags, Mode::from_raw_mode(0o644))
        .doing(Step::Mount, inside.display())?;
    io::Write::write_all(&mut std::fs::File::from(file), content)
        .doing(Step::Mount, inside.display())
}

fn link_as_on_host(root: &OwnedFd, host: &Path, inside: &Path) -> Result<(), Stop> {
    make_parent(root, inside)?;
    let target = std::fs::read_link(host).doing(Step::Mount, host.display())?;
    rustix::fs::symlinkat(&target, root, inside).doing(Step::Mount, inside.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_files_of_etc_are_not_in_the_list() {
        for secret in
            ["shadow", "gshadow", "ssh", "sudoers", "ssl", "ssl/private", "pki", "pki/tls"]
        {
            assert!(!ETC.contains(&secret), "{secret}");
        }
    }

    #[test]
    fn only_devices_without_state_are_shown() {
        for device in DEVICES {
            let kind = rustix::fs::stat(Path::new("/dev").join(device)).unwrap().st_mode;
            assert_eq!(FileType::from_raw_mode(kind), FileType::CharacterDevice, "{device}");
        }
    }
}
