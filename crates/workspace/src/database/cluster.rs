//! Runs Overmind's own PostgreSQL server, for projects that name none.
//!
//! It is started at the first need from the machine's programs, once for the data directory, and
//! shared by all sessions: a database in it costs a tenth of a server. It listens on the loopback
//! address at a leased port and on a Unix socket in a private directory. Every connection needs a
//! password, including the administrator's, so a session that finds the port gains nothing.
//!
//! Like the sessions whose data it contains, it outlives the daemon, and is found again by its own
//! `postmaster.pid`. PostgreSQL refuses to run as root; then it runs as the user `postgres`, or
//! `nobody`, in a directory that this user can reach.

use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use overmind_core::process::ProcessUser;
use overmind_core::time::Clock;
use rustix::process::Signal;

use super::password;
use super::postgres::{PostgresError, PostgresServer};
use crate::owner::closed_to;
use crate::ports::{Owner, Ports};
use crate::services::tree::{self, stat};

/// The time limit until the server accepts connections, including recovery after a crash.
const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(20);
/// The name of the directory of its files.
pub(crate) const DIRECTORY: &str = "postgres";
/// The longest path of a socket's address, without the terminating byte.
const SOCKET_MAX: usize = 107;
/// The administrator's name.
const ADMIN: &str = "overmind";

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(
        "a database needs PostgreSQL, and `{0}` was not found on this machine: install PostgreSQL \
         13 or newer, or name a `server` in .overmind.yml"
    )]
    NoProgram(&'static str),
    #[error("PostgreSQL does not run as root, and there is no user `postgres` or `nobody` here")]
    NoUser,
    #[error("{what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("making the database server's files failed: {0}")]
    Initdb(String),
    #[error("the database server did not start: {why}; its log is {}", log.display())]
    Start { why: String, log: PathBuf },
    #[error("leasing a port for the database server")]
    Port(#[source] crate::ports::PortsError),
    #[error("leasing a port for the database server")]
    Registry(#[source] crate::ports::RegistryError),
    #[error("asking the database server")]
    Ask(#[source] PostgresError),
    #[error("the database server (process {pid}) did not end")]
    Stop { pid: u32 },
}

/// The stored data about the server: `server.json`, readable only by the daemon's user.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Kept {
    password: String,
    port: Option<u16>,
}

/// The server of one data directory.
#[derive(Debug)]
pub(crate) struct Cluster {
    home: String,
    dir: PathBuf,
    search: String,
    ports: Ports,
    range: std::ops::RangeInclusive<u16>,
    clock: Arc<dyn Clock>,
    /// Locked during a start; contains a server that has answered.
    running: tokio::sync::Mutex<Option<PostgresServer>>,
}

/// The directory of a data directory's own PostgreSQL, if it exists: it stays after the server has
/// ended, because saved runs have their data in it.
pub fn files_of(data: &Path) -> Option<PathBuf> {
    let home = std::fs::read_to_string(data.join("workspace-id")).ok()?;
    let place = place(&data.join(DIRECTORY), home.trim()).ok()?;
    place.join("data").exists().then_some(place)
}

/// The process of a data directory's own PostgreSQL server, if it runs: it outlives the daemon.
pub fn server_of(data: &Path) -> Option<u32> {
    pid_of(&files_of(data)?.join("data"))
}

/// The process in the `postmaster.pid` of a directory of data, if it really has that directory.
fn pid_of(data: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let pid: u32 = text.lines().next()?.trim().parse().ok()?;
    stat(pid).filter(|stat| !stat.zombie)?;
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let data = data.as_os_str().as_encoded_bytes();
    words.split(|byte| *byte == 0).any(|word| word == data).then_some(pid)
}

fn place(dir: &Path, home: &str) -> Result<PathBuf, ClusterError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(dir.to_owned());
    }
    let run_as = run_as()?.ok_or(ClusterError::NoUser)?;
    if reachable(dir, run_as) {
        return Ok(dir.to_owned());
    }
    Ok(PathBuf::from("/var/lib/overmind").join(home).join(DIRECTORY))
}

/// The user as which the server runs.
#[derive(Clone, Copy, Debug)]
struct RunAs {
    uid: u32,
    gid: u32,
}

impl Cluster {
    /// `dir` is the directory of its files unless the server's user cannot reach it; `search` is a
    /// `PATH`.
    pub(crate) fn new(
        home: String,
        dir: PathBuf,
        search: String,
        ports: Ports,
        range: std::ops::RangeInclusive<u16>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { home, dir, search, ports, range, clock, running: tokio::sync::Mutex::default() }
    }

    /// Whether its files exist.
    pub(crate) fn exists(&self) -> bool {
        self.place().is_ok_and(|place| place.join("data/PG_VERSION").exists())
    }

    /// Returns the server, and starts it if it does not run.
    pub(crate) async fn ensure(&self) -> Result<PostgresServer, ClusterError> {
        let mut running = self.running.lock().await;
        if let Some(server) = running.as_ref()
            && self.pid().is_some()
        {
            return Ok(server.clone());
        }
        let server = self.start().await?;
        *running = Some(server.clone());
        Ok(server)
    }

    /// Returns the server, if it runs.
    pub(crate) async fn running(&self) -> Option<PostgresServer> {
        let mut running = self.running.lock().await;
        if self.pid().is_none() {
            *running = None;
        } else if running.is_none()
            && let Some(kept) = self.kept()
            && let Some(port) = kept.port
            && let Ok(server) = server(&kept.password, port)
            && server.version().await.is_ok()
        {
            *running = Some(server);
        }
        running.clone()
    }

    /// Ends the server, if it runs. Its data stays.
    pub(crate) async fn stop(&self) -> Result<(), ClusterError> {
        let mut running = self.running.lock().await;
        *running = None;
        let Some(pid) = self.pid() else { return Ok(()) };
        // This is a fast shutdown: clients are disconnected, and committed data is kept.
        tree::signal(pid, Signal::INT);
        let deadline = self.clock.now().after(STOP);
        while self.pid().is_some() {
            if self.clock.now() >= deadline {
                return Err(ClusterError::Stop { pid });
            }
            self.clock.sleep_until(self.clock.now().after(Duration::from_millis(10))).await;
        }
        if let Some(port) = self.kept().and_then(|kept| kept.port)
            && let Ok(owner) = self.owner()
        {
            self.ports.release([port], &owner);
        }
        Ok(())
    }

    /// The process in `postmaster.pid`, if it is really ours.
    pub(crate) fn pid(&self) -> Option<u32> {
        pid_of(&self.place().ok()?.join("data"))
    }

    fn place(&self) -> Result<PathBuf, ClusterError> {
        place(&self.dir, &self.home)
    }

    fn owner(&self) -> Result<Owner, ClusterError> {
        Ok(Owner {
            home: self.home.clone(),
            session: "postgres".to_owned(),
            alive: self.place()?.join("server.json"),
        })
    }

    fn kept(&self) -> Option<Kept> {
        let text = std::fs::read(self.place().ok()?.join("server.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn keep(&self, kept: &Kept) -> Result<(), ClusterError> {
        let path = self.place()?.join("server.json");
        let partial = path.with_extension("partial");
        let write = || -> io::Result<()> {
            use io::Write;
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&partial)?;
            file.write_all(&serde_json::to_vec(kept).map_err(io::Error::other)?)?;
            file.sync_all()?;
            std::fs::rename(&partial, &path)
        };
        write().map_err(|source| ClusterError::File { what: "writing", path: path.clone(), source })
    }

    async fn start(&self) -> Result<PostgresServer, ClusterError> {
        let place = self.place()?;
        let run_as = run_as()?;
        let file = |what, path: &Path| {
            let path = path.to_owned();
            move |source| ClusterError::File { what, path, source }
        };
        std::fs::create_dir_all(&place).map_err(file("making", &place))?;
        // Other users may pass through to their own directory, but not list it.
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o711))
            .map_err(file("protecting", &place))?;
        // Two daemons of one data directory exclude each other elsewhere; this lock is for one that
        // is ending while the next begins.
        let lock_path = place.join("lock");
        let lock = std::fs::File::create(&lock_path).map_err(file("opening", &lock_path))?;
        while lock.try_lock().is_err() {
            self.clock.sleep_until(self.clock.now().after(Duration::from_millis(20))).await;
        }
        let mut kept = match self.kept() {
            Some(kept) => kept,
            None => {
                let kept = Kept { password: password(), port: None };
                self.keep(&kept)?;
                kept
            }
        };
        if let (Some(_), Some(port)) = (self.pid(), kept.port) {
            // It is already running, from an earlier daemon.
            let server = server(&kept.password, port)?;
            if self.answers(&server, None).await.is_ok() {
                return Ok(server);
            }
            return Err(ClusterError::Start {
                why: "it is running but does not answer".to_owned(),
                log: place.join("log"),
            });
        }
        let programs = Programs::find(&self.search)?;
        if !place.join("data/PG_VERSION").exists() {
            self.initdb(&place, &programs, run_as, &kept.password)?;
        }
        let port = self.port(kept.port)?;
        kept.port = Some(port);
        self.keep(&kept)?;
        let mut child = self.spawn(&place, &programs, run_as, port)?;
        let server = server(&kept.password, port)?;
        let answered = self.answers(&server, Some(&mut child)).await;
        // Nobody waits for the child until this process ends; then init does.
        reap(child);
        answered.map_err(|why| ClusterError::Start { why, log: place.join("log") })?;
        server.close_to_public().await.map_err(ClusterError::Ask)?;
        Ok(server)
    }

    /// The last port, if it is still free, because sessions have it in their environment.
    fn port(&self, last: Option<u16>) -> Result<u16, ClusterError> {
        let owner = self.owner()?;
        if let Some(port) = last {
            let held = self.ports.reassert([port], &owner).map_err(ClusterError::Registry)?;
            if held.is_empty() && crate::ports::is_free(port) {
                return Ok(port);
            }
            self.ports.release([port], &owner);
        }
        let taken = self.ports.take(&["postgres".to_owned()], &self.range, &owner);
        let taken = taken.map_err(ClusterError::Port)?;
        Ok(*taken.values().next().expect("one name gives one port"))
    }

    fn initdb(
        &self,
        place: &Path,
        programs: &Programs,
        run_as: Option<RunAs>,
        password: &str,
    ) -> Result<(), ClusterError> {
        let file = |what, path: &Path| {
            let path = path.to_owned();
            move |source| ClusterError::File { what, path, source }
        };
        // This removes the rest of a crash; the complete directory gets its name at the end.
        let (fresh, data) = (place.join("data.new"), place.join("data"));
        let _ = std::fs::remove_dir_all(&fresh);
        std::fs::create_dir(&fresh).map_err(file("making", &fresh))?;
        let secret = fresh.with_extension("secret");
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let opened = options.open(&secret).and_then(|mut to| {
            use io::Write;
            to.write_all(password.as_bytes())
        });
        opened.map_err(file("writing", &secret))?;
        if let Some(RunAs { uid, gid }) = run_as {
            for path in [&fresh, &secret] {
                std::os::unix::fs::chown(path, Some(uid), Some(gid))
                    .map_err(file("giving away", path))?;
            }
        }
        let run = |locale: &str| {
            let mut command = Command::new(&programs.initdb);
            command
                .arg("--pgdata")
                .arg(&fresh)
                .args(["--username", ADMIN, "--encoding", "UTF8", "--auth", "scram-sha-256"])
                .arg(locale)
                .arg(format!("--pwfile={}", secret.display()))
                .env_clear()
                .env("PATH", &self.search)
                .current_dir("/")
                .stdin(Stdio::null());
            drop_to(&mut command, run_as);
            command.output()
        };
        let mut output = run("--locale=C.UTF-8");
        if output.as_ref().is_ok_and(|output| !output.status.success()) {
            output = run("--no-locale");
        }
        let _ = std::fs::remove_file(&secret);
        let output = output.map_err(|err| ClusterError::Initdb(err.to_string()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(ClusterError::Initdb(said.trim().to_owned()));
        }
        std::fs::rename(&fresh, &data).map_err(file("putting in place", &data))
    }

    fn spawn(
        &self,
        place: &Path,
        programs: &Programs,
        run_as: Option<RunAs>,
        port: u16,
    ) -> Result<std::process::Child, ClusterError> {
        let file = |what, path: &Path| {
            let path = path.to_owned();
            move |source| ClusterError::File { what, path, source }
        };
        let log_path = place.join("log");
        if std::fs::metadata(&log_path).is_ok_and(|found| found.len() > 16 << 20) {
            let _ = std::fs::rename(&log_path, place.join("log.1"));
        }
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log_path)
            .map_err(file("opening", &log_path))?;
        let again = log.try_clone().map_err(file("opening", &log_path))?;
        let sockets = place.join("run");
        let mut directories = String::new();
        if sockets.as_os_str().len() + "/.s.PGSQL.65535".len() <= SOCKET_MAX {
            std::fs::create_dir_all(&sockets).map_err(file("making", &sockets))?;
            let mode = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(&sockets, mode).map_err(file("protecting", &sockets))?;
            if let Some(RunAs { uid, gid }) = run_as {
                std::os::unix::fs::chown(&sockets, Some(uid), Some(gid))
                    .map_err(file("giving away", &sockets))?;
            }
            directories = sockets.display().to_string();
        }
        let mut command = Command::new(&programs.postgres);
        command.arg("-D").arg(place.join("data"));
        for setting in [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            format!("unix_socket_directories={directories}"),
            "max_connections=400".to_owned(),
            "shared_buffers=64MB".to_owned(),
            // A power cut may lose the last moments but never damages the server's files, which is
            // right for disposable data.
            "synchronous_commit=off".to_owned(),
            "max_wal_size=256MB".to_owned(),
            "log_min_messages=warning".to_owned(),
        ] {
            command.arg("-c").arg(setting);
        }
        command
            .env_clear()
            .env("PATH", &self.search)
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(again)
            // It must not get signals for the daemon's own group.
            .process_group(0);
        drop_to(&mut command, run_as);
        command.spawn().map_err(|err| ClusterError::Start {
            why: format!("{}: {err}", programs.postgres.display()),
            log: log_path,
        })
    }

    async fn answers(
        &self,
        server: &PostgresServer,
        mut child: Option<&mut std::process::Child>,
    ) -> Result<(), String> {
        let deadline = self.clock.now().after(START);
        loop {
            let last = match server.version().await {
                Ok(_) => return Ok(()),
                Err(err) => err,
            };
            if let Some(child) = child.as_deref_mut()
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(format!("it ended with {status}"));
            }
            if self.clock.now() >= deadline {
                return Err(format!("it does not answer: {last}"));
            }
            self.clock.sleep_until(self.clock.now().after(Duration::from_millis(20))).await;
        }
    }
}

/// Waits for a child in a thread, so that it never stays as a zombie.
fn reap(mut child: std::process::Child) {
    let waits = std::thread::Builder::new().name("postgres-reaper".to_owned());
    // Without the thread, a zombie stays until this process ends, which is harmless.
    let _ = waits.spawn(move || child.wait());
}

fn server(password: &str, port: u16) -> Result<PostgresServer, ClusterError> {
    let url = format!("postgres://{ADMIN}:{password}@127.0.0.1:{port}/postgres");
    PostgresServer::parse(&url).map_err(ClusterError::Ask)
}

/// The server's programs, in the newest installed version.
struct Programs {
    postgres: PathBuf,
    initdb: PathBuf,
}

impl Programs {
    fn find(search: &str) -> Result<Self, ClusterError> {
        // Distributions put these outside of the path, in one directory per version.
        let mut versions: Vec<(u32, PathBuf)> = Vec::new();
        for base in ["/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt"] {
            for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
                let version = entry.file_name().to_str().and_then(|name| name.parse().ok());
                versions.extend(version.map(|version| (version, entry.path().join("bin"))));
            }
        }
        versions.sort();
        let directories: Vec<PathBuf> = versions.into_iter().rev().map(|(_, path)| path).collect();
        let find = |name: &'static str| {
            let beside = directories.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
            beside
                .or_else(|| crate::lease::which(search, name))
                .ok_or(ClusterError::NoProgram(name))
        };
        Ok(Self { postgres: find("postgres")?, initdb: find("initdb")? })
    }
}

fn drop_to(command: &mut Command, run_as: Option<RunAs>) {
    if let Some(RunAs { uid, gid }) = run_as {
        // Setting the user also drops root's supplementary groups.
        command.uid(uid).gid(gid);
    }
}

/// `None` if this process is not root, and so runs the server as itself.
fn run_as() -> Result<Option<RunAs>, ClusterError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let find = |wanted: &str| {
        users.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let (name, uid, gid) = (fields.first()?, fields.get(2)?, fields.get(3)?);
            let run_as = RunAs { uid: uid.parse().ok()?, gid: gid.parse().ok()? };
            (*name == wanted && run_as.uid != 0).then_some(run_as)
        })
    };
    find("postgres").or_else(|| find("nobody")).map(Some).ok_or(ClusterError::NoUser)
}

/// Whether the user may pass through every directory in `path`.
fn reachable(path: &Path, who: RunAs) -> bool {
    closed_to(path, ProcessUser { uid: who.uid, gid: who.gid }).is_none()
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn an_existing_database_server_is_reused() {
        let home = tempfile::tempdir().unwrap();
        // The server's user can enter it.
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(files_of(home.path()), None);
        std::fs::write(home.path().join("workspace-id"), "0badcafe").unwrap();
        assert_eq!(files_of(home.path()), None, "none was needed yet");
        std::fs::create_dir_all(home.path().join("postgres/data")).unwrap();
        assert_eq!(files_of(home.path()), Some(home.path().join("postgres")));
        let data = home.path().join("postgres/data");
        assert_eq!(server_of(home.path()), None, "it does not run");
        std::fs::write(data.join("postmaster.pid"), format!("{}\n", std::process::id())).unwrap();
        assert_eq!(server_of(home.path()), None, "the number is of another program");
        let mut other = Command::new("sh");
        other.args(["-c", "read line; :", "sh"]).arg(&data).stdin(Stdio::piped());
        let mut other = other.spawn().unwrap();
        std::fs::write(data.join("postmaster.pid"), format!("{}\n", other.id())).unwrap();
        assert_eq!(server_of(home.path()), Some(other.id()));
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(server_of(home.path()), None);
    }
}
