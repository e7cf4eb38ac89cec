//! The data directory: its place, its permissions, and its two secrets.
//!
//! The directory has mode 0700 and its secrets 0600. If others can write the directory or read a
//! secret, that is an error and never silently fixed, because someone may have read it.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::env::{self, Env};
use super::error::ConfigError;
use super::secret::Secret;

/// The prefix of a file's name until the file is complete.
const DRAFT: &str = ".draft-";

/// The prefix of an admin token.
pub const ADMIN_PREFIX: &str = "ova_";

/// A data directory that exists or will be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir(PathBuf);

impl DataDir {
    /// The directory from `--data`, OVERMIND_DATA or the user's data home, in this order.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NoHome`] if none of them is set.
    pub fn locate(flag: Option<&Path>, env: &Env, cwd: &Path) -> Result<Self, ConfigError> {
        let path = flag
            .map(Path::to_owned)
            .or_else(|| env.path(env::DATA))
            .or_else(|| env.path(env::XDG_DATA_HOME).map(|home| home.join("overmind")))
            .or_else(|| env.path(env::HOME).map(|home| home.join(".local/share/overmind")))
            .ok_or(ConfigError::NoHome)?;
        Ok(Self(cwd.join(path)))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn config_file(&self) -> PathBuf {
        self.0.join("overmind.toml")
    }

    /// The file with the server's pid, locked while the server runs.
    pub fn pid_file(&self) -> PathBuf {
        self.0.join("overmind.pid")
    }

    /// The file with the addresses of the running server.
    pub fn server_file(&self) -> PathBuf {
        self.0.join("server.json")
    }

    /// The file with the providers that had a key at the last start.
    pub fn keyed_file(&self) -> PathBuf {
        self.0.join("keyed.json")
    }

    /// The directory with a subdirectory for each run whose agent is a command: its log, and its
    /// shim's socket.
    pub fn processes(&self) -> PathBuf {
        self.0.join("processes")
    }

    /// The directory with the home of each run whose agent is a command in a sandbox.
    pub fn homes(&self) -> PathBuf {
        self.0.join("homes")
    }

    /// The directory in which worktrees of runs are made. With `beside` it is next to the data
    /// directory, for runs whose programs belong to another user, who cannot enter the data
    /// directory.
    pub fn worktrees(&self, beside: bool) -> PathBuf {
        if !beside {
            return self.0.join("worktrees");
        }
        let mut name = self.0.as_os_str().to_owned();
        name.push("-worktrees");
        name.into()
    }

    /// The directory with the directories of runs that name no project.
    pub fn workspaces(&self) -> PathBuf {
        self.0.join("workspaces")
    }

    pub fn log_file(&self) -> PathBuf {
        self.0.join("overmind.log")
    }

    pub fn admin_token_file(&self) -> PathBuf {
        self.0.join("admin.token")
    }

    pub fn token_key_file(&self) -> PathBuf {
        self.0.join("token.key")
    }

    /// Creates the directory, including its parents, if it does not exist.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Data`], or [`ConfigError::OpenFile`] if others can read or write it.
    pub fn prepare(&self) -> Result<(), ConfigError> {
        let failed =
            |source| ConfigError::Data { attempt: "creating", path: self.0.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0).map_err(failed)?;
        only_owner(&self.0, 0o700)
    }

    /// A new file in the directory that gets its name when it is complete. It has mode 0600 from
    /// the start, and is removed if it is dropped before.
    ///
    /// # Errors
    ///
    /// Returns the error of creating it.
    pub fn draft(&self) -> io::Result<tempfile::NamedTempFile> {
        tempfile::Builder::new().prefix(DRAFT).tempfile_in(&self.0)
    }

    /// Removes the drafts of servers that were killed. Only the holder of the directory may call
    /// it.
    pub fn remove_drafts(&self) {
        let entries = fs::read_dir(&self.0).into_iter().flatten();
        for entry in entries.filter_map(Result::ok) {
            if entry.file_name().as_encoded_bytes().starts_with(DRAFT.as_bytes()) {
                // A remaining file takes a few bytes and is tried again at the next start.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The admin token, which the first call creates.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if it cannot be read or written, or is invalid.
    pub fn admin_token(&self) -> Result<Secret, ConfigError> {
        let path = self.admin_token_file();
        let text = self.read_or_make(&path, || Ok(format!("{ADMIN_PREFIX}{}", random_hex()?)))?;
        check_admin_token(&path, &text)
    }

    /// The admin token if it exists; for commands that only talk to a server.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if it cannot be read or is invalid.
    pub fn existing_admin_token(&self) -> Result<Option<Secret>, ConfigError> {
        let path = self.admin_token_file();
        match read_private(&path)? {
            Some(text) => check_admin_token(&path, &text).map(Some),
            None => Ok(None),
        }
    }

    /// The key that signs session tokens; it is kept over restarts.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if it cannot be read or written, or is invalid.
    pub fn token_key(&self) -> Result<[u8; 32], ConfigError> {
        let path = self.token_key_file();
        let text = self.read_or_make(&path, random_hex)?;
        from_hex(text.trim())
            .ok_or(ConfigError::BadToken { path, why: "does not hold 64 hexadecimal digits" })
    }

    /// Reads `path`, or creates it with the result of `make`. Concurrent callers get the same text:
    /// the file appears complete and only if none exists, and the second caller reads the first
    /// one's.
    fn read_or_make(
        &self,
        path: &Path,
        make: impl FnOnce() -> io::Result<String>,
    ) -> Result<String, ConfigError> {
        if let Some(text) = read_private(path)? {
            return Ok(text);
        }
        let failed =
            |source| ConfigError::Data { attempt: "creating", path: path.to_owned(), source };
        let write = || -> io::Result<()> {
            let mut draft = self.draft()?;
            writeln!(draft, "{}", make()?)?;
            draft.as_file().sync_all()?;
            match draft.persist_noclobber(path) {
                Err(err) if err.error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(err.error);
                }
                Ok(_) | Err(_) => {}
            }
            fs::File::open(&self.0)?.sync_all()
        };
        write().map_err(failed)?;
        let gone = || failed(io::Error::new(io::ErrorKind::NotFound, "it vanished again"));
        read_private(path)?.ok_or_else(gone)
    }
}

fn check_admin_token(path: &Path, text: &str) -> Result<Secret, ConfigError> {
    let token = text.trim();
    match token.strip_prefix(ADMIN_PREFIX).and_then(from_hex) {
        Some(_) => Ok(Secret::new(token)),
        None => Err(ConfigError::BadToken {
            path: path.to_owned(),
            why: "does not hold `ova_` and 64 hexadecimal digits",
        }),
    }
}

/// Refuses a file with more permissions than `wanted`.
///
/// # Errors
///
/// [`ConfigError::OpenFile`], or [`ConfigError::Data`] if it cannot be checked.
pub fn only_owner(path: &Path, wanted: u32) -> Result<(), ConfigError> {
    let failed =
        |source| ConfigError::Data { attempt: "looking at", path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
    if mode & !wanted == 0 {
        Ok(())
    } else {
        Err(ConfigError::OpenFile { path: path.to_owned(), mode, wanted })
    }
}

fn read_private(path: &Path) -> Result<Option<String>, ConfigError> {
    match fs::read_to_string(path) {
        Ok(text) => {
            only_owner(path, 0o600)?;
            Ok(Some(text))
        }
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Data { attempt: "reading", path: path.to_owned(), source }),
    }
}

/// 32 bytes from the operating system's generator, as 64 hexadecimal digits.
fn random_hex() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0_u8; 32];
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (tempfile::TempDir, DataDir) {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir(dir.path().join("deep/data"));
        data.prepare().unwrap();
        (dir, data)
    }

    #[test]
    fn the_directory_and_its_secrets_are_private_and_stable() {
        let (_dir, data) = fresh();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(data.path()), 0o700);
        let token = data.admin_token().unwrap();
        assert_eq!(token.expose().len(), 4 + 64);
        assert_eq!(data.admin_token().unwrap(), token);
        assert_eq!(data.existing_admin_token().unwrap(), Some(token));
        assert_eq!(mode(&data.admin_token_file()), 0o600);
        assert_eq!(data.token_key().unwrap(), data.token_key().unwrap());
        assert_eq!(mode(&data.token_key_file()), 0o600);
        let names = fs::read_dir(data.path()).unwrap().count();
        assert_eq!(names, 2, "no drafts are left");
    }

    #[test]
    fn a_token_readable_by_others_is_refused_with_the_remedy() {
        let (_dir, data) = fresh();
        data.admin_token().unwrap();
        fs::set_permissions(data.admin_token_file(), fs::Permissions::from_mode(0o644)).unwrap();
        let err = data.admin_token().unwrap_err();
        assert!(err.to_string().ends_with("admin.token has mode 0644: others can read it"));
        assert!(err.hint().unwrap().starts_with("chmod 600 "));
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let (_dir, data) = fresh();
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let err = data.prepare().unwrap_err();
        assert!(matches!(err, ConfigError::OpenFile { mode: 0o755, wanted: 0o700, .. }));
    }

    #[test]
    fn a_token_file_with_other_text_is_refused_and_not_replaced() {
        let (_dir, data) = fresh();
        fs::write(data.admin_token_file(), "hunter2\n").unwrap();
        fs::set_permissions(data.admin_token_file(), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(data.admin_token(), Err(ConfigError::BadToken { .. })));
        assert_eq!(fs::read_to_string(data.admin_token_file()).unwrap(), "hunter2\n");
    }

    #[test]
    fn drafts_of_killed_processes_are_removed() {
        let (_dir, data) = fresh();
        data.admin_token().unwrap();
        // A file that a kill left, because it was not dropped.
        data.draft().unwrap().keep().unwrap();
        data.remove_drafts();
        let left: Vec<_> = fs::read_dir(data.path()).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(left, [data.admin_token_file()]);
    }

    #[test]
    fn concurrent_starts_agree_on_one_token() {
        let (_dir, data) = fresh();
        let tokens: Vec<_> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8).map(|_| scope.spawn(|| data.admin_token())).collect();
            makers.into_iter().map(|maker| maker.join().unwrap().unwrap()).collect()
        });
        assert!(tokens.iter().all(|token| *token == tokens[0]));
    }

    #[test]
    fn the_data_directory_is_the_flag_then_the_variable_then_the_data_home() {
        let cwd = Path::new("/cwd");
        let at = |flag: Option<&str>, pairs: &[(&'static str, &'static str)]| {
            let env = Env::from_pairs(pairs.iter().copied());
            DataDir::locate(flag.map(Path::new), &env, cwd).map(|data| data.0)
        };
        let all = [(env::DATA, "/d"), (env::XDG_DATA_HOME, "/x"), (env::HOME, "/h")];
        assert_eq!(at(Some("here"), &all).unwrap(), Path::new("/cwd/here"));
        assert_eq!(at(None, &all).unwrap(), Path::new("/d"));
        assert_eq!(at(None, &all[1..]).unwrap(), Path::new("/x/overmind"));
        assert_eq!(at(None, &all[2..]).unwrap(), Path::new("/h/.local/share/overmind"));
        assert!(matches!(at(None, &[]), Err(ConfigError::NoHome)));
    }
}
