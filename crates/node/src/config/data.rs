//! The data directory: where it is, who may read it, and the two secrets that live in it.
//!
//! The directory has mode 0700 and its secrets 0600. A directory that others can write, or a
//! secret that others can read, is an error and never silently fixed: someone may have read it.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::env::{self, Env};
use super::error::ConfigError;
use super::secret::Secret;

/// What the name of a file begins with until it is whole and gets its own.
const DRAFT: &str = ".draft-";

/// What an admin token begins with.
pub const ADMIN_PREFIX: &str = "ova_";

/// A data directory that is known to exist or about to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir(PathBuf);

impl DataDir {
    /// The directory that `--data`, else OVERMIND_DATA, else the user's data home names.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NoHome`] when none of them is set.
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

    /// Holds the server's pid, and its lock while it runs.
    pub fn pid_file(&self) -> PathBuf {
        self.0.join("overmind.pid")
    }

    /// Says where the running server listens.
    pub fn server_file(&self) -> PathBuf {
        self.0.join("server.json")
    }

    /// Names the providers that had a key at the last start.
    pub fn keyed_file(&self) -> PathBuf {
        self.0.join("keyed.json")
    }

    /// Holds a directory for each run whose agent is a command: its log, and its shim's socket.
    pub fn processes(&self) -> PathBuf {
        self.0.join("processes")
    }

    /// Holds the home of each run whose agent is a command in a sandbox.
    pub fn homes(&self) -> PathBuf {
        self.0.join("homes")
    }

    /// Where worktrees of runs are made; `beside` the directory where programs of runs are another
    /// user's, who cannot come to what lies in it.
    pub fn worktrees(&self, beside: bool) -> PathBuf {
        if !beside {
            return self.0.join("worktrees");
        }
        let mut name = self.0.as_os_str().to_owned();
        name.push("-worktrees");
        name.into()
    }

    /// Holds the directories of runs that name no project.
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

    /// Makes the directory, its parents included, if it does not exist.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Data`], or [`ConfigError::OpenFile`] when others can read or write it.
    pub fn prepare(&self) -> Result<(), ConfigError> {
        let failed =
            |source| ConfigError::Data { attempt: "creating", path: self.0.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0).map_err(failed)?;
        only_owner(&self.0, 0o700)
    }

    /// A new file in the directory that will get its name when it is whole. Mode 0600 from its
    /// first moment; removed when it is dropped before.
    ///
    /// # Errors
    ///
    /// What creating it gives.
    pub fn draft(&self) -> io::Result<tempfile::NamedTempFile> {
        tempfile::Builder::new().prefix(DRAFT).tempfile_in(&self.0)
    }

    /// Removes the drafts of servers that were killed. Only for the one who holds the directory.
    pub fn remove_drafts(&self) {
        let entries = fs::read_dir(&self.0).into_iter().flatten();
        for entry in entries.filter_map(Result::ok) {
            if entry.file_name().as_encoded_bytes().starts_with(DRAFT.as_bytes()) {
                // One that stays takes a few bytes and is tried again at the next start.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The admin token, made at the first call.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when it cannot be read, written or is not one.
    pub fn admin_token(&self) -> Result<Secret, ConfigError> {
        let path = self.admin_token_file();
        let text = self.read_or_make(&path, || Ok(format!("{ADMIN_PREFIX}{}", random_hex()?)))?;
        check_admin_token(&path, &text)
    }

    /// The admin token if there is one; for commands that only talk to a server.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when it cannot be read or is not one.
    pub fn existing_admin_token(&self) -> Result<Option<Secret>, ConfigError> {
        let path = self.admin_token_file();
        match read_private(&path)? {
            Some(text) => check_admin_token(&path, &text).map(Some),
            None => Ok(None),
        }
    }

    /// The key that session tokens are made with; it outlives a restart.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when it cannot be read, written or is not one.
    pub fn token_key(&self) -> Result<[u8; 32], ConfigError> {
        let path = self.token_key_file();
        let text = self.read_or_make(&path, random_hex)?;
        from_hex(text.trim())
            .ok_or(ConfigError::BadToken { path, why: "does not hold 64 hexadecimal digits" })
    }

    /// Reads `path`, or makes it with what `make` gives. Those that race get the same text: the
    /// file appears whole and only where none is, and the one that comes second reads the first's.
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

/// Refuses what has more permissions than `wanted`.
///
/// # Errors
///
/// [`ConfigError::OpenFile`] or [`ConfigError::Data`].
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

/// 32 bytes from the operating system's generator, as 64 digits.
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
    fn the_directory_and_its_secrets_are_the_owners_alone_and_stay_the_same() {
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
    fn a_token_that_others_can_read_is_refused_with_the_remedy() {
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
    fn drafts_of_the_killed_are_removed_and_nothing_else() {
        let (_dir, data) = fresh();
        data.admin_token().unwrap();
        // What a kill leaves: nobody dropped it.
        data.draft().unwrap().keep().unwrap();
        data.remove_drafts();
        let left: Vec<_> = fs::read_dir(data.path()).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(left, [data.admin_token_file()]);
    }

    #[test]
    fn those_who_race_to_make_the_token_agree_on_one() {
        let (_dir, data) = fresh();
        let tokens: Vec<_> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8).map(|_| scope.spawn(|| data.admin_token())).collect();
            makers.into_iter().map(|maker| maker.join().unwrap().unwrap()).collect()
        });
        assert!(tokens.iter().all(|token| *token == tokens[0]));
    }

    #[test]
    fn the_place_is_the_flag_then_the_variable_then_the_data_home() {
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
