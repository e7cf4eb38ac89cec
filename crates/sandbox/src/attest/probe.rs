//! The program that runs inside. It has one thread, sends no packet and leaves nothing behind.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::facts::{Facts, Refused};
use super::program::{LIST_FILES, own_files};
use super::questions::{Questions, started_in};
use crate::sys;

/// Maximum number of entries of a list; longer ones would only repeat that everything is open.
const MAX_FINDINGS: usize = 40;

/// Becomes the probe and never returns. `arguments` are those after [`super::ARGUMENT`].
pub(crate) fn become_probe(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> ! {
    let answer = if arguments.next().is_some_and(|first| first == LIST_FILES) {
        own_files().and_then(|files| Ok(serde_json::to_vec(&files)?))
    } else {
        answer()
    };
    let code = match answer.and_then(|text| io::stdout().write_all(&text)) {
        Ok(()) => 0,
        Err(err) => {
            let _ = writeln!(io::stderr(), "the sandbox probe: {err}");
            1
        }
    };
    let _ = io::stdout().flush();
    sys::exit_now(code)
}

fn answer() -> io::Result<Vec<u8>> {
    // This comes first, before this code opens a descriptor.
    let descriptors = descriptors();
    let mut text = Vec::new();
    io::stdin().take(1 << 20).read_to_end(&mut text)?;
    let questions: Questions = serde_json::from_slice(&text)?;
    let mut facts = facts(&questions);
    match descriptors {
        Ok(found) => facts.descriptors = found,
        Err(err) => facts.unknown.push(format!("descriptors: {err}")),
    }
    Ok(serde_json::to_vec(&facts)?)
}

fn facts(questions: &Questions) -> Facts {
    let mut facts = Facts { nonce: questions.nonce.clone(), ..Facts::default() };
    identity(&mut facts);
    namespaces(&mut facts);
    network(questions, &mut facts);
    super::door::look(questions, &mut facts);
    processes(questions, &mut facts);
    files(questions, &mut facts);
    own(questions, &mut facts);
    environment(questions, &mut facts);
    machine(&mut facts);
    calls(&mut facts);
    for list in [
        &mut facts.homes,
        &mut facts.listeners,
        &mut facts.variables,
        &mut facts.writable,
        &mut facts.devices,
        &mut facts.mounts_with_suid,
        &mut facts.mounts_writable,
        &mut facts.server_files,
        &mut facts.trap_file_at,
        &mut facts.trap_variable_in,
    ] {
        bounded(list);
    }
    facts
}

fn bounded(list: &mut Vec<String>) {
    let all = list.len();
    if all > MAX_FINDINGS {
        list.truncate(MAX_FINDINGS);
        list.push(format!("and {} more", all - MAX_FINDINGS));
    }
}

fn identity(facts: &mut Facts) {
    facts.uid = rustix::process::getuid().as_raw();
    facts.gid = rustix::process::getgid().as_raw();
    facts.groups =
        rustix::process::getgroups().unwrap_or_default().iter().map(|g| g.as_raw()).collect();
    facts.uid_outside = outside("/proc/self/uid_map", facts.uid);
    facts.gid_outside = outside("/proc/self/gid_map", facts.gid);
    let status = match std::fs::read_to_string("/proc/self/status") {
        Ok(status) => status,
        Err(err) => {
            facts.unknown.push(format!("/proc/self/status: {err}"));
            return;
        }
    };
    for line in status.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key {
            "CapInh" | "CapPrm" | "CapEff" | "CapBnd" | "CapAmb" => {
                let set = u64::from_str_radix(value, 16).unwrap_or(u64::MAX);
                facts.capabilities.insert(key.to_owned(), set);
            }
            "NoNewPrivs" => facts.no_new_privileges = value == "1",
            "Seccomp" => facts.seccomp = value.parse().unwrap_or_default(),
            _ => {}
        }
    }
}

/// The id that corresponds to `id` in the parent user namespace.
fn outside(map: &str, id: u32) -> Option<u32> {
    let text = std::fs::read_to_string(map).ok()?;
    text.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let (inside, outside, count) =
            (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let at = id.checked_sub(inside).filter(|at| *at < count)?;
        outside.checked_add(at)
    })
}

/// The kinds of namespaces that must not be shared. Time is omitted, because its offset reveals
/// nothing.
pub(super) const NAMESPACES: &[&str] = &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// The identity of each kind of namespace that the kernel has.
pub(super) fn own_namespaces() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for kind in NAMESPACES {
        if let Ok(target) = std::fs::read_link(format!("/proc/self/ns/{kind}")) {
            found.insert((*kind).to_owned(), target.to_string_lossy().into_owned());
        }
    }
    found
}

/// Identifies this boot of the running kernel.
pub(super) fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

fn namespaces(facts: &mut Facts) {
    facts.namespaces = own_namespaces();
    facts.boot_id = boot_id();
}

fn network(questions: &Questions, facts: &mut Facts) {
    match std::fs::read_to_string("/proc/self/net/dev") {
        Ok(text) => {
            let names = text.lines().skip(2).filter_map(|line| line.split(':').next());
            facts.interfaces = names.map(|name| name.trim().to_owned()).collect();
        }
        Err(err) => facts.unknown.push(format!("/proc/self/net/dev: {err}")),
    }
    // These are documentation addresses, which no host has.
    let anywhere = ["198.51.100.1", "203.0.113.1", "2001:db8::1"];
    let metadata = ["169.254.169.254", "169.254.170.2", "fd00:ec2::254"];
    facts.routes = routed(&anywhere);
    facts.metadata_routes = routed(&metadata);

    let traps = SocketAddr::from((Ipv4Addr::LOCALHOST, questions.tcp_port));
    if TcpStream::connect_timeout(&traps, Duration::from_millis(500)).is_ok() {
        facts.host_services.push(format!("tcp {traps}"));
    }
    let name = std::os::unix::net::SocketAddr::from_abstract_name(&questions.abstract_name);
    if name.and_then(|name| UnixStream::connect_addr(&name)).is_ok() {
        facts.host_services.push("abstract socket".to_owned());
    }
}

/// The addresses to which there is a route. Connecting a datagram socket looks up its route and
/// sends nothing.
fn routed(addresses: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for text in addresses {
        let address: IpAddr = text.parse().expect("a constant address");
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let connected = UdpSocket::bind(any).and_then(|socket| socket.connect((address, 9)));
        if connected.is_ok() {
            found.push((*text).to_owned());
        }
    }
    found
}

fn processes(questions: &Questions, facts: &mut Facts) {
    let visible = pids();
    facts.visible_processes = u32::try_from(visible.len()).unwrap_or(u32::MAX);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", questions.daemon.pid));
    facts.daemon_visible =
        stat.is_ok_and(|stat| started_in(&stat) == Some(questions.daemon.started));
    if facts.daemon_visible {
        // If the host's processes are visible, none of them is traced.
        facts.traces.push(Refused { what: "the daemon".to_owned(), errno: 0 });
        return;
    }
    if std::process::id() != 1 {
        facts.traces.push(Refused { what: "process 1".to_owned(), errno: sys::try_trace(1) });
    }
}

fn pids() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn files(questions: &Questions, facts: &mut Facts) {
    for home in &questions.homes {
        // Another kernel has other inode numbers, so there only the path counts.
        let there = std::fs::metadata(&home.path).is_ok_and(|meta| {
            questions.by_name || (meta.dev(), meta.ino()) == (home.device, home.inode)
        });
        if there {
            facts.homes.push(home.path.display().to_string());
        }
    }
    let trap = &questions.trap_file;
    let mut ways = vec![trap.clone()];
    for pid in pids() {
        for root in ["root", "cwd"] {
            let below = trap.strip_prefix("/").unwrap_or(trap);
            ways.push(Path::new("/proc").join(pid.to_string()).join(root).join(below));
        }
    }
    for way in ways {
        if std::fs::read(&way).is_ok_and(|text| text == questions.secret.as_bytes()) {
            facts.trap_file_at.push(way.display().to_string());
        }
    }
    for socket in &questions.sockets {
        if std::fs::metadata(socket).is_ok_and(|meta| meta.file_type().is_socket()) {
            facts.sockets.push(socket.display().to_string());
        }
    }
    writable(questions, facts);
}

/// Tries to open the server's files by their own paths, and through the root and working directory
/// of every process. Also tries files that are hidden in a shown directory.
fn own(questions: &Questions, facts: &mut Facts) {
    let roots: Vec<PathBuf> = ["root", "cwd"]
        .iter()
        .flat_map(|root| pids().into_iter().map(move |pid| format!("/proc/{pid}/{root}").into()))
        .chain([PathBuf::from("/")])
        .collect();
    for file in &questions.own {
        let below = file.path.strip_prefix("/").unwrap_or(&file.path);
        for way in roots.iter().map(|root| root.join(below)) {
            let same = std::fs::metadata(&way).is_ok_and(|meta| {
                questions.by_name || (meta.dev(), meta.ino()) == (file.device, file.inode)
            });
            let may = |access| rustix::fs::access(&way, access).is_ok();
            if same && (File::open(&way).is_ok() || may(rustix::fs::Access::WRITE_OK)) {
                facts.server_files.push(way.display().to_string());
            }
        }
    }
    let Some((seen, hidden)) = &questions.hidden else { return };
    let has =
        |path: &Path| std::fs::read(path).is_ok_and(|text| text == questions.secret.as_bytes());
    facts.beside_hidden = has(seen);
    if has(hidden) {
        facts.server_files.push(hidden.display().to_string());
    }
}

/// Checks every mount, and the places where programs commonly write.
fn writable(questions: &Questions, facts: &mut Facts) {
    let mountinfo = match std::fs::read_to_string("/proc/self/mountinfo") {
        Ok(text) => text,
        Err(err) => {
            facts.unknown.push(format!("/proc/self/mountinfo: {err}"));
            String::new()
        }
    };
    let mounts: Vec<Mount> = mountinfo.lines().filter_map(mount_of).collect();
    facts.mounts = u32::try_from(mounts.len()).unwrap_or(u32::MAX);
    let allowed = |place: &Path| questions.writable.iter().any(|one| place.starts_with(one));
    for Mount { place, nosuid, read_only } in &mounts {
        if !nosuid {
            facts.mounts_with_suid.push(place.display().to_string());
        }
        if !read_only && !allowed(place) && !is_null(place) {
            facts.mounts_writable.push(place.display().to_string());
        }
    }
    let usual = ["/", "/usr", "/etc", "/var", "/var/lib", "/home", "/root", "/opt", "/srv", "/run"];
    let more = ["/dev", "/sys", "/sys/fs/cgroup", "/proc", "/proc/sys", "/workspace", "/mnt", "."];
    let mut places: Vec<PathBuf> = usual.iter().chain(&more).map(PathBuf::from).collect();
    places.extend(questions.homes.iter().map(|home| home.path.clone()));
    places.extend(questions.trap_file.parent().map(Path::to_owned));
    places.extend(mounts.into_iter().map(|mount| mount.place));
    places.sort();
    places.dedup();
    for place in places {
        if !allowed(&place) && can_write(&place, questions) {
            facts.writable.push(place.display().to_string());
        }
    }
}

/// Whether it is the null device, which engines mount over hidden files; it stores nothing.
fn is_null(place: &Path) -> bool {
    let null = rustix::fs::makedev(1, 3);
    std::fs::metadata(place)
        .is_ok_and(|meta| meta.file_type().is_char_device() && meta.rdev() == null)
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    place: PathBuf,
    nosuid: bool,
    read_only: bool,
}

/// Parses one line of mountinfo. The options are the mount's own, not its file system's.
fn mount_of(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ');
    // The kernel writes a space as \040; other escapes do not occur in the relevant paths.
    let place = PathBuf::from(fields.nth(4)?.replace("\\040", " "));
    let options: Vec<&str> = fields.next()?.split(',').collect();
    let (nosuid, read_only) = (options.contains(&"nosuid"), options.contains(&"ro"));
    Some(Mount { place, nosuid, read_only })
}

/// Creates and removes a file in a directory, or opens a file for writing without changing it.
fn can_write(place: &Path, questions: &Questions) -> bool {
    if questions.only_look {
        return rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_ok();
    }
    let nonce = &questions.nonce;
    let Ok(meta) = std::fs::symlink_metadata(place) else { return false };
    if meta.is_dir() {
        let path = place.join(format!(".overmind-probe-{nonce}"));
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let removed = made.is_ok() && std::fs::remove_file(&path).is_ok();
        return removed || made.is_ok();
    }
    meta.is_file() && OpenOptions::new().write(true).open(place).is_ok()
}

fn environment(questions: &Questions, facts: &mut Facts) {
    for (key, value) in std::env::vars_os() {
        let key = key.to_string_lossy().into_owned();
        if value.to_string_lossy().contains(&questions.secret) {
            facts.trap_variable_in.push(format!("variable {key}"));
        }
        facts.variables.push(key);
    }
    facts.variables.sort();
    for pid in pids() {
        let path = format!("/proc/{pid}/environ");
        let Ok(text) = std::fs::read(&path) else { continue };
        if String::from_utf8_lossy(&text).contains(&questions.secret) {
            facts.trap_variable_in.push(path);
        }
    }
}

/// Files that control the machine: none may be writable.
const ACT: &[&str] = &[
    "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/irq/default_smp_affinity",
    "/proc/mtrr",
    "/proc/acpi/wakeup",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/power/state",
    "/sys/fs/cgroup/memory/release_agent",
    "/sys/fs/cgroup/cpu/release_agent",
    "/sys/fs/cgroup/pids/release_agent",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/memory/cgroup.procs",
];

/// Files that reveal the machine: none may have content.
const SHOW: &[&str] = &[
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/kmsg",
    "/proc/vmcore",
    "/sys/kernel/debug/fault_around_bytes",
    "/sys/firmware/dmi/tables/DMI",
];

/// Devices without state, and the terminal's.
const HARMLESS: &[&str] = &["null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"];

fn machine(facts: &mut Facts) {
    for path in ACT {
        if OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).is_ok() {
            facts.proc_escapes.push(format!("writable {path}"));
        }
    }
    for path in SHOW {
        if first_bytes(path).is_some_and(|bytes| !bytes.is_empty()) {
            facts.proc_escapes.push(format!("readable {path}"));
        }
    }
    // Addresses of the kernel, which are all zero without the privilege.
    let symbols = first_bytes("/proc/kallsyms").unwrap_or_default();
    let address = symbols.split(|byte| *byte == b' ').next().unwrap_or_default();
    if address.iter().any(|byte| *byte != b'0') {
        facts.proc_escapes.push("addresses in /proc/kallsyms".to_owned());
    }
    for (path, depth) in [("/dev", 0), ("/dev/mapper", 1), ("/dev/net", 1), ("/dev/dri", 1)] {
        devices(Path::new(path), depth, facts);
    }
}

fn first_bytes(path: &str) -> Option<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut bytes = [0u8; 16];
    let count = file.read(&mut bytes).ok()?;
    Some(bytes[..count].to_vec())
}

fn devices(directory: &Path, depth: u32, facts: &mut Facts) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        // The type in the directory entry would be that of the file below a mount.
        let Ok(meta) = std::fs::metadata(entry.path()) else { continue };
        let kind = meta.file_type();
        let name = entry.file_name();
        let harmless = depth == 0 && HARMLESS.iter().any(|one| name == *one);
        if harmless || !(kind.is_block_device() || kind.is_char_device()) {
            continue;
        }
        // Opening a tape or a watchdog has effects; checking access has none.
        let flags = rustix::fs::Access::READ_OK;
        if rustix::fs::access(entry.path(), flags).is_ok() {
            facts.devices.push(entry.path().display().to_string());
        }
    }
}

fn calls(facts: &mut Facts) {
    let refused = |(what, errno): (&str, i32)| Refused { what: what.to_owned(), errno };
    facts.calls = sys::try_dangerous_calls().into_iter().map(refused).collect();
    facts.key_rings = sys::try_key_rings().into_iter().map(refused).collect();
    facts.landlock_abi = sys::landlock_abi();
    let place = format!("/tmp/.overmind-probe-{}", facts.nonce);
    facts.landlock_effect = sys::try_numberless_device(&place);
    if facts.landlock_effect == 0 {
        let _ = std::fs::remove_file(place);
    }
}

/// The open descriptors besides the standard streams, without the one that lists them.
fn descriptors() -> io::Result<Vec<String>> {
    let own = File::open("/proc/self/fd")?;
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(&own)? {
        let entry = entry?;
        let Some(number) =
            entry.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let listing = |link: &Path| link.starts_with("/proc") && link.ends_with("fd");
        let link = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
        if number > 2 && !listing(&link) && !link.as_os_str().is_empty() {
            found.push(format!("{number} to {}", link.display()));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::questions::Traps;
    use super::*;

    /// On the host nothing is hidden, so everything that the traps can show must be found: this
    /// is the proof that the probe can see at all.
    #[test]
    fn the_probe_detects_the_traps_on_the_host() {
        let home = tempfile::tempdir().unwrap();
        let traps = Traps::set(&[home.path().to_owned()], &[], &[]).unwrap();
        let found = facts(traps.questions());
        assert!(found.daemon_visible);
        assert!(found.visible_processes > 1);
        assert_eq!(found.host_services.len(), 2, "{:?}", found.host_services);
        assert!(found.homes.contains(&home.path().display().to_string()));
        let direct = traps.questions().trap_file.display().to_string();
        assert!(found.trap_file_at.contains(&direct), "{:?}", found.trap_file_at);
        assert!(found.writable.contains(&std::env::temp_dir().display().to_string()));
        assert_eq!(found.namespaces, own_namespaces());
        assert!(!found.boot_id.is_empty());
        assert!(!found.no_new_privileges || found.seccomp > 0, "a plain test process");
        assert!(found.unknown.is_empty(), "{:?}", found.unknown);
    }

    #[test]
    fn mount_point_and_flags_are_parsed() {
        let line = "36 35 98:0 /mnt1 /mnt/a\\040b rw,nosuid,noatime master:1 - ext3 /dev/r rw";
        let place = PathBuf::from("/mnt/a b");
        assert_eq!(mount_of(line), Some(Mount { place, nosuid: true, read_only: false }));
        let line = "36 35 98:0 / / ro - ext3 /dev/r rw,nosuid";
        let root = Mount { place: "/".into(), nosuid: false, read_only: true };
        assert_eq!(mount_of(line), Some(root));
        assert_eq!(mount_of("x"), None);
    }

    #[test]
    fn long_lists_end_with_their_length() {
        let mut list: Vec<String> = (0..MAX_FINDINGS + 5).map(|n| n.to_string()).collect();
        bounded(&mut list);
        assert_eq!(list.last().unwrap(), "and 5 more");
    }
}
