//! Protects the server's own files: no session gets them as a workspace, a project or a grant, and
//! no tool opens them.
//!
//! In the data directory, only the environments that the server itself makes for sessions are
//! exempt, each by itself. Everything is compared by device and inode.

use std::collections::HashSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overmind_core::off_limits::{FileId, OffLimits, Own};
use overmind_workspace::secrets;

use crate::config::{Config, PolicyChoice};

/// System directories that cannot be projects.
const SYSTEM: &[&str] = &[
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root",
    "/run", "/sbin", "/srv", "/sys", "/usr", "/var",
];
/// Directories whose contents are protected, too.
const WHOLLY: &[&str] = &["/boot", "/dev", "/etc", "/proc", "/sys"];

/// The remedy in every refusal.
const INSTEAD: &str = "use the directory of a project: `cd` there, or name it with `--project`";

/// The existing files of the configuration that are outside of the data directory.
pub(crate) fn files(config: &Config) -> Vec<PathBuf> {
    let store = &config.store_path;
    let beside = |suffix: &str| {
        let mut name = store.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let policy = match &config.policy {
        PolicyChoice::Usual(path) | PolicyChoice::File(path) => Some(path.clone()),
        PolicyChoice::Off { .. } => None,
    };
    let tls_key = config.tls.as_ref().map(|(_, key)| key.clone());
    let all =
        [store.clone(), beside("-wal"), beside("-shm"), beside(".witness"), config.file.clone()]
            .into_iter()
            .chain([config.vault_key_file.clone()])
            .chain(config.vault_passphrase_file.clone())
            .chain(policy)
            .chain(tls_key)
            .chain(config.permissions.files.iter().cloned());
    all.filter(|path| path.is_file() && !path.starts_with(config.data.path())).collect()
}

/// The rules for this configuration.
pub(crate) fn of(config: &Config) -> OffLimits {
    let user = rustix::process::geteuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = config.environment.iter().find(|(name, _)| name == "HOME");
    let homes = home_of(&passwd, user).into_iter().chain(named.map(|(_, home)| home.into()));
    OffLimits::new(Arc::new(Server {
        data: config.data.path().to_owned(),
        rooms: vec![config.rooms_worktrees.clone(), config.data.workspaces()],
        worktrees: config.rooms_worktrees.clone(),
        empty: config.data.workspaces(),
        homes: homes.filter(|home: &PathBuf| home.components().count() > 1).collect(),
        files: files(config),
    }))
}

fn home_of(passwd: &str, user: u32) -> Option<PathBuf> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let uid: u32 = fields.next()?.parse().ok()?;
        (uid == user).then(|| fields.nth(2).map(PathBuf::from)).flatten()
    })
}

#[derive(Debug)]
struct Server {
    data: PathBuf,
    /// The directories in which the server makes sessions' directories.
    rooms: Vec<PathBuf>,
    /// Two kinds of these: the worktrees of environments, and directories that were empty at the
    /// start.
    worktrees: PathBuf,
    empty: PathBuf,
    /// The homes of the user that the server runs as.
    homes: Vec<PathBuf>,
    /// See [`files`].
    files: Vec<PathBuf>,
}

fn id_of(found: &Metadata) -> FileId {
    FileId { device: found.dev(), inode: found.ino() }
}

fn id(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().as_ref().map(id_of)
}

/// A path without links; its last components may not exist yet.
fn resolved(path: &Path) -> PathBuf {
    let missing = |above: &Path| path.strip_prefix(above).map(Path::to_owned).unwrap_or_default();
    path.ancestors()
        .find_map(|above| Some(above.canonicalize().ok()?.join(missing(above))))
        .unwrap_or_else(|| path.to_owned())
}

/// A directory and all its parents.
fn chain(path: &Path) -> HashSet<FileId> {
    path.ancestors().filter_map(id).collect()
}

impl Own for Server {
    fn refusal(&self, path: &Path) -> Option<String> {
        let real = resolved(path);
        let shown = path.display();
        if SYSTEM.iter().any(|one| real == Path::new(one))
            || WHOLLY.iter().any(|one| real.starts_with(one))
        {
            return Some(format!(
                "{shown} is a system directory, in which no session may work: {INSTEAD}"
            ));
        }
        let (own, above) = (id(&real), chain(&real));
        let holds = |inner: &Path| {
            own.is_some_and(|own| chain(&resolved(inner)).contains(&own))
                || overmind_sandbox::appearances(inner).iter().any(|one| one.starts_with(&real))
        };
        if let Some(home) = self.homes.iter().find(|home| holds(home)) {
            return Some(format!(
                "{shown} is or contains the home directory {}, with keys and settings that no \
                    session may read: {INSTEAD}",
                home.display()
            ));
        }
        let data = self.data.display();
        if holds(&self.data) {
            return Some(format!(
                "{shown} is or contains the server's data directory {data}, with its keys: \
                    {INSTEAD}, or move the data with `--data`"
            ));
        }
        let in_a_room = self
            .rooms
            .iter()
            .filter_map(|room| id(room))
            .any(|room| own != Some(room) && above.contains(&room));
        let lies_in = id(&self.data).is_some_and(|data| above.contains(&data));
        (lies_in && !in_a_room)
            .then(|| format!("{shown} is in the server's data directory {data}: {INSTEAD}"))
    }

    fn all(&self) -> HashSet<FileId> {
        // An entry there may be a hard link to a file with another name elsewhere.
        let entries = std::fs::read_dir(&self.data).into_iter().flatten();
        let entries = entries.filter_map(|entry| Some(id_of(&entry.ok()?.metadata().ok()?)));
        let rooms: Vec<_> = self.rooms.iter().filter_map(|room| id(room)).collect();
        let inner = entries.filter(|found| !rooms.contains(found));
        let outer = self.files.iter().filter_map(|own| id(own));
        id(&self.data).into_iter().chain(outer).chain(inner).collect()
    }

    fn withheld(&self, workspace: &Path) -> Result<Vec<PathBuf>, String> {
        // Everything in it was made by its session.
        if resolved(workspace).starts_with(resolved(&self.empty)) {
            return Ok(Vec::new());
        }
        secrets::withheld(&self.worktrees, workspace).map_err(|err| err.to_string())
    }

    fn withholds(&self, workspace: &Path, path: &Path) -> Result<bool, String> {
        if resolved(workspace).starts_with(resolved(&self.empty)) {
            return Ok(false);
        }
        secrets::withholds(&self.worktrees, workspace, path).map_err(|err| err.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(dir: &Path) -> Server {
        for made in ["home/data/worktrees/one", "home/project", "work"] {
            std::fs::create_dir_all(dir.join(made)).unwrap();
        }
        std::fs::write(dir.join("home/data/admin.token"), "t").unwrap();
        std::fs::write(dir.join("work/policy.toml"), "").unwrap();
        Server {
            data: dir.join("home/data"),
            rooms: vec![dir.join("home/data/worktrees")],
            worktrees: dir.join("home/data/worktrees"),
            empty: dir.join("home/data/workspaces"),
            homes: vec![dir.join("home")],
            files: vec![dir.join("work/policy.toml")],
        }
    }

    #[test]
    fn paths_that_contain_or_are_inside_server_directories_are_refused_under_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, own) = (dir.path(), at(dir.path()));
        std::os::unix::fs::symlink(dir.join("home"), dir.join("link")).unwrap();
        for (path, wanted) in [
            ("home", "is or contains the home directory"),
            ("link", "is or contains the home directory"),
            ("link/../home/.", "is or contains the home directory"),
            ("", "is or contains the home directory"),
            ("home/data", "is or contains the server's data directory"),
            ("link/data", "is or contains the server's data directory"),
            ("home/data/worktrees", "is in the server's data directory"),
            ("home/data/not/there", "is in the server's data directory"),
        ] {
            let refusal = own.refusal(&dir.join(path)).unwrap_or_else(|| panic!("{path}"));
            assert!(refusal.contains(wanted) && refusal.contains("--project"), "{refusal}");
        }
        for path in ["work", "home/project", "link/project", "home/data/worktrees/one", "new"] {
            assert_eq!(own.refusal(&dir.join(path)), None, "{path}");
        }
        for path in ["/", "//", "/etc", "/etc/ssh", "/proc/self", "/usr", "/home"] {
            assert!(own.refusal(Path::new(path)).is_some(), "{path}");
        }
        assert_eq!(own.refusal(Path::new("/usr/src/project")), None);
    }

    #[test]
    fn a_file_is_identified_by_its_inode() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, own) = (dir.path(), at(dir.path()));
        std::fs::hard_link(dir.join("home/data/admin.token"), dir.join("work/notes")).unwrap();
        for path in ["work/notes", "home/data", "work/policy.toml", "home/data/admin.token"] {
            assert!(own.is_own(id(&dir.join(path)).unwrap()), "{path}");
        }
        for path in ["work", "home", "home/data/worktrees", "home/data/worktrees/one"] {
            assert!(!own.is_own(id(&dir.join(path)).unwrap()), "{path}");
        }
    }

    #[test]
    fn a_users_home_is_read_from_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(home_of(passwd, 1000), Some("/home/ann".into()));
        assert_eq!(home_of(passwd, 7), None);
    }
}
