//! The host's side: the questions for the probe, and the traps that make them meaningful.

use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The questions for the probe, sent as JSON on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Questions {
    pub nonce: String,
    /// A file on the host that contains the trap's secret.
    pub(crate) trap_file: PathBuf,
    /// The content of the file and the variable. The probe compares it and never prints it.
    pub(crate) secret: String,
    pub(crate) homes: Vec<Place>,
    pub(crate) daemon: Process,
    pub(crate) tcp_port: u16,
    pub(crate) abstract_name: String,
    pub(crate) sockets: Vec<PathBuf>,
    /// The writable places, as paths inside.
    pub(crate) writable: Vec<PathBuf>,
    /// Files of the server.
    pub(crate) own: Vec<Place>,
    /// A file with the secret in a directory that is shown, and one beside it that is hidden.
    pub(crate) hidden: Option<(PathBuf, PathBuf)>,
    /// Whether homes are recognized by their path only.
    pub(crate) by_name: bool,
    /// Whether connections are forwarded between its network and the host's.
    pub(crate) way: bool,
    /// Whether there is a proxy to the server, with a listener behind it.
    pub(crate) door: bool,
    /// The forwarded ports, each with a listener behind it.
    pub(crate) reaches: Vec<u16>,
    /// Whether the probe runs on the host itself: then it checks permissions and creates no file.
    pub(crate) only_look: bool,
}

/// A directory by its identity, because the same path may be another directory inside.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// A process by its identity, because the same number may be another process inside.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The start time in ticks since the boot.
    pub(crate) started: u64,
}

/// Things on the host that the probe must not find. Dropping it removes all of them.
#[derive(Debug)]
pub struct Traps {
    questions: Questions,
    /// The directory that is shown while a file in it is hidden.
    shown: Option<PathBuf>,
    _tcp: TcpListener,
    _abstract: UnixListener,
}

/// The variable that the driver adds to the daemon's own variables.
pub const TRAP_VARIABLE: &str = "OVERMIND_PROBE_TRAP";

/// Sockets that control a machine.
const SOCKETS: &[&str] = &[
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/libvirt/libvirt-sock",
];

/// The visible file of a directory that is shown for a test, and the hidden file in it.
const SEEN: &str = "seen";
const KEPT: &str = "kept";
const SECRET: &str = "secret";

/// Maximum number of files of the server that are checked one by one.
const MAX_OWN: usize = 128;
/// Maximum number of homes that are checked one by one.
const MAX_HOMES: usize = 32;
/// The prefix of a trap file's name; the daemon's process number follows.
const PREFIX: &str = "overmind-probe-";

/// Removes the trap files of daemons that were killed while they measured.
fn clear_away_the_deads() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'))
            .and_then(|(pid, _)| rustix::process::Pid::from_raw(pid.parse().ok()?));
        let gone = |pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
        if owner.is_some_and(gone) {
            // A file of another user is not removed and does no harm.
            let path = entry.path();
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
        }
    }
}

impl Traps {
    /// Sets the traps. `private` are directories of the host that no sandbox may show (the daemon's
    /// data), besides the homes; `sockets` are further sockets; `writable` are the places where a
    /// command may write, as paths inside.
    ///
    /// # Errors
    ///
    /// Fails if the traps cannot be created: the temporary directory is full, or no descriptor is
    /// left.
    pub fn set(private: &[PathBuf], sockets: &[PathBuf], writable: &[PathBuf]) -> io::Result<Self> {
        clear_away_the_deads();
        let nonce = random_hex()?;
        let secret = random_hex()?;
        // Like the workspaces of other sessions, it is outside of this one's and readable by the
        // same user.
        let trap_file =
            std::env::temp_dir().join(format!("{PREFIX}{}-{nonce}", std::process::id()));
        let tcp = TcpListener::bind(("127.0.0.1", 0))?;
        let abstract_name = format!("overmind-probe-{nonce}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name)?)?;
        let questions = Questions {
            trap_file,
            homes: homes(private),
            own: own(private),
            hidden: None,
            daemon: this_process()?,
            tcp_port: tcp.local_addr()?.port(),
            abstract_name,
            sockets: SOCKETS.iter().map(PathBuf::from).chain(sockets.iter().cloned()).collect(),
            writable: writable.to_vec(),
            by_name: false,
            way: false,
            door: false,
            reaches: Vec::new(),
            only_look: false,
            nonce,
            secret,
        };
        // A probe that runs as another user must be able to read it, otherwise hiding it proves
        // nothing.
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&questions.trap_file)?;
        let traps = Self { _tcp: tcp, _abstract: listener, questions, shown: None };
        io::Write::write_all(&mut file, traps.questions.secret.as_bytes())?;
        Ok(traps)
    }

    /// Removes homes that are in directories which the operator has chosen to show.
    #[must_use]
    pub fn except(mut self, shown: &[PathBuf]) -> Self {
        let homes = &mut self.questions.homes;
        homes.retain(|home| !shown.iter().any(|shown| home.path.starts_with(shown)));
        self
    }

    /// Adds files of the server that are in other places.
    #[must_use]
    pub(crate) fn and_files(mut self, files: &[PathBuf]) -> Self {
        self.questions.own.extend(files.iter().filter_map(|path| place(path, false)));
        self
    }

    /// Makes a directory to be shown, at `/workspace` or at its own path, in which [`Traps::kept`]
    /// must be hidden. Returns its path.
    pub(crate) fn hide(&mut self, at_workspace: bool) -> io::Result<PathBuf> {
        let Questions { trap_file, secret, hidden, .. } = &mut self.questions;
        let shown = trap_file.with_added_extension("shown");
        self.shown = Some(shown.clone());
        let open = |path: &Path| {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::create_dir(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        };
        open(&shown)?;
        open(&shown.join(KEPT))?;
        std::fs::write(shown.join(SEEN), &*secret)?;
        std::fs::write(shown.join(KEPT).join(SECRET), &*secret)?;
        let inside = if at_workspace { PathBuf::from("/workspace") } else { shown.clone() };
        *hidden = Some((inside.join(SEEN), inside.join(KEPT).join(SECRET)));
        Ok(shown)
    }

    /// The file that must be hidden in the directory of [`Traps::hide`].
    pub(crate) fn kept(&self) -> Option<PathBuf> {
        Some(self.shown.as_ref()?.join(KEPT))
    }

    /// Prepares a probe under another kernel, where the host's files have other inode numbers.
    #[must_use]
    pub(crate) fn by_name(mut self) -> Self {
        self.questions.by_name = true;
        self
    }

    /// Prepares a probe for a sandbox with these forwarded ports and, if `door`, a proxy to the
    /// server.
    #[must_use]
    pub(crate) fn at_the_way(mut self, door: bool, reaches: Vec<u16>) -> Self {
        self.questions.way = true;
        self.questions.door = door;
        self.questions.reaches = reaches;
        self
    }

    /// Prepares a probe that runs on the host itself.
    #[must_use]
    pub(crate) fn only_look(mut self) -> Self {
        self.questions.only_look = true;
        self
    }

    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// A variable that the daemon has and the command must not have. The driver sets it on every
    /// process that it starts on the host.
    pub fn variable(&self) -> (&'static str, &str) {
        (TRAP_VARIABLE, &self.questions.secret)
    }

    /// The questions as the probe's standard input.
    pub fn stdin(&self) -> Vec<u8> {
        serde_json::to_vec(&self.questions).expect("plain data with UTF-8 paths")
    }
}

impl Drop for Traps {
    fn drop(&mut self) {
        if let Err(err) = std::fs::remove_file(&self.questions.trap_file) {
            tracing::warn!(path = %self.questions.trap_file.display(), error = %err,
                "the trap of a sandbox probe stays behind");
        }
        if let Some(shown) = &self.shown {
            // The next measurement removes files that remain.
            let _ = std::fs::remove_dir_all(shown);
        }
    }
}

/// The homes of users and of root, and the private directories.
pub(crate) fn homes(private: &[PathBuf]) -> Vec<Place> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let people = passwd.lines().filter_map(home_of_a_person).map(PathBuf::from);
    let mut found: Vec<Place> = Vec::new();
    for path in private.iter().cloned().chain(["/home".into(), "/root".into()]).chain(people) {
        let Some(place) = place(&path, true) else { continue };
        let id = |place: &Place| (place.device, place.inode);
        if found.iter().all(|one| id(one) != id(&place)) && found.len() < MAX_HOMES {
            found.push(place);
        }
    }
    found
}

/// The files directly in the private directories.
fn own(private: &[PathBuf]) -> Vec<Place> {
    let entries = private.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter_map(|path| place(&path, false)).take(MAX_OWN).collect()
}

fn place(path: &Path, directory: bool) -> Option<Place> {
    let meta = std::fs::metadata(path).ok()?;
    let kind = if directory { meta.is_dir() } else { meta.is_file() };
    let plain = kind && path.to_str().is_some();
    plain.then(|| Place { path: path.to_owned(), device: meta.dev(), inode: meta.ino() })
}

/// The home in a line of `passwd`, except a service's, which is often a system directory.
fn home_of_a_person(line: &str) -> Option<&str> {
    let mut fields = line.split(':');
    let uid: u32 = fields.nth(2)?.parse().ok()?;
    let home = fields.nth(2)?;
    let person = uid == 0 || (1000..60_000).contains(&uid);
    (person && Path::new(home).components().count() > 1).then_some(home)
}

fn this_process() -> io::Result<Process> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let started = started_in(&stat)
        .ok_or_else(|| io::Error::other("/proc/self/stat does not say when it started"))?;
    Ok(Process { pid: std::process::id(), started })
}

/// The start time in a process's `stat`; `init::unconfined` explains the parentheses.
pub(super) fn started_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn random_hex() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_directories_of_people_are_checked_and_those_of_services_are_not() {
        assert_eq!(home_of_a_person("root:x:0:0:root:/root:/bin/sh"), Some("/root"));
        assert_eq!(home_of_a_person("ann:x:1000:1000::/home/ann:/bin/sh"), Some("/home/ann"));
        assert_eq!(home_of_a_person("bin:x:2:2:bin:/bin:/usr/sbin/nologin"), None);
        assert_eq!(home_of_a_person("nobody:x:65534:65534::/nonexistent:/x"), None);
        assert_eq!(home_of_a_person("odd:x:1000:1000::/:/bin/sh"), None, "the root is everywhere");
        assert_eq!(home_of_a_person("nonsense"), None);
    }

    #[test]
    fn traps_exist_only_while_they_are_held() {
        let traps = Traps::set(&[], &[], &[]).unwrap();
        let (path, port) = (traps.questions.trap_file.clone(), traps.questions.tcp_port);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), traps.questions.secret);
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        drop(traps);
        assert!(!path.exists());
    }

    #[test]
    fn a_home_that_is_shown_on_purpose_is_not_checked_and_its_parent_is() {
        let home = tempfile::tempdir().unwrap();
        let inner = home.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let private = [home.path().to_owned(), inner.clone()];
        let traps = Traps::set(&private, &[], &[]).unwrap().except(std::slice::from_ref(&inner));
        let looked_for = |path: &Path| traps.questions.homes.iter().any(|one| one.path == path);
        assert!(looked_for(home.path()));
        assert!(!looked_for(&inner));
    }

    #[test]
    fn this_process_is_identified_by_its_start_time() {
        let own = this_process().unwrap();
        assert_eq!(own.pid, std::process::id());
        assert!(own.started > 0);
        assert_eq!(
            started_in("1 (a b) c) S 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 77"),
            Some(77)
        );
    }
}
