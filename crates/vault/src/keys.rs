//! The master keys in memory, and the operations with them.

use std::fmt;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use overmind_core::vault::{Protection, SealError, Sealed, Sealer, Secret, SecretName};
use zeroize::Zeroizing;

use crate::aead::{self, Key, NoRandomness};
use crate::keyfile::{self, Argon2, Kek, KeyFile, Master, Wrong};
use crate::keyring::Keyring;

/// Where the master keys are stored, and how they are opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The key file, created with the first secret with mode 0600. Its directory must exist.
    pub key_file: PathBuf,
    /// Stores the keys instead of the file. An existing file is read until the keyring has an
    /// entry; the next write goes to the keyring.
    pub keyring: Option<Keyring>,
    /// Opens the file, if it is protected; a new file is protected with it.
    pub passphrase: Option<Secret>,
    /// The passphrase cost for files that are written. Existing files contain their own.
    pub argon2: Argon2,
}

impl Options {
    pub fn new(key_file: impl Into<PathBuf>) -> Self {
        let key_file = key_file.into();
        Self { key_file, keyring: None, passphrase: None, argon2: Argon2::default() }
    }

    /// Finds where the keys are now, without opening them. `None` if there are none yet.
    ///
    /// # Errors
    ///
    /// Tells people the position, the error, and the remedy.
    pub fn look(&self) -> Result<Option<Found>, String> {
        let Some((kept, file)) = self.read()? else { return Ok(None) };
        Ok(Some(Found { kept, passphrase: file.kdf.is_some() }))
    }

    fn read(&self) -> Result<Option<(Kept, KeyFile)>, String> {
        if let Some(keyring) = &self.keyring {
            let wrong = |why: Wrong| format!("{} {why}", self.place(Kept::Keyring));
            if let Some(text) = keyring.read().map_err(wrong)? {
                return Ok(Some((Kept::Keyring, KeyFile::parse(&text).map_err(wrong)?)));
            }
        }
        let wrong = |why: Wrong| format!("{} {why}", self.place(Kept::File));
        let file = KeyFile::read(&self.key_file).map_err(wrong)?;
        Ok(file.map(|file| (Kept::File, file)))
    }

    fn write(&self, keys: &[Master], kek: Option<&Kek>, new: bool) -> Result<Kept, Wrong> {
        let text = keyfile::document(keys, kek)?;
        match &self.keyring {
            Some(keyring) => keyring.write(&text).map(|()| Kept::Keyring),
            None => keyfile::write(&self.key_file, &text, new).map(|()| Kept::File),
        }
    }

    /// The place where new keys are written.
    fn kept(&self) -> Kept {
        if self.keyring.is_some() { Kept::Keyring } else { Kept::File }
    }

    fn place(&self, kept: Kept) -> String {
        match (kept, &self.keyring) {
            (Kept::Keyring, Some(keyring)) => {
                format!("the keyring's entry `{}`", keyring.entry)
            }
            (Kept::Keyring, None) | (Kept::File, _) => {
                format!("the key file {}", self.key_file.display())
            }
        }
    }
}

/// The two places for master keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    File,
    Keyring,
}

/// The result of [`Options::look`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub kept: Kept,
    /// Whether a passphrase is also needed.
    pub passphrase: bool,
}

/// Encrypts and decrypts secrets. It reads nothing before [`Sealer::unlock`].
pub struct Vault {
    options: Options,
    state: RwLock<State>,
}

enum State {
    Locked {
        reason: String,
    },
    /// There is no file, and no secret that needs one.
    Empty,
    Open(Open),
}

struct Open {
    /// The place from which they were read, or to which they were written last.
    kept: Kept,
    /// The key that protects the stored keys; `None` if they are not encrypted.
    kek: Option<Kek>,
    /// The keys, newest last; never empty.
    keys: Vec<Master>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &*self.read() {
            State::Locked { .. } => "locked",
            State::Empty => "empty",
            State::Open(_) => "open",
        };
        f.debug_struct("Vault")
            .field("key_file", &self.options.key_file)
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

impl Open {
    fn newest(&self) -> &Master {
        self.keys.last().expect("there is always one")
    }
}

/// Why a key file cannot be opened, in words.
enum Shut {
    /// None of the tried passphrases opens it.
    Wrong(String),
    Other(String),
}

impl Shut {
    fn reason(&self) -> &str {
        match self {
            Self::Wrong(reason) | Self::Other(reason) => reason,
        }
    }
}

impl From<String> for Shut {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

impl Vault {
    /// Makes a vault that is locked until [`Sealer::unlock`].
    pub fn new(options: Options) -> Self {
        let reason = "it was not opened yet".to_owned();
        Self { options, state: RwLock::new(State::Locked { reason }) }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads and opens the current file.
    fn opened(&self, needed: &[String], passphrase: Option<&Secret>) -> Result<State, Shut> {
        let Some((kept, file)) = self.options.read()? else {
            return match needed.is_empty() {
                true => Ok(State::Empty),
                false => Err(Shut::Other(format!(
                    "{} is missing, and secrets were encrypted with a key in it: bring it back from \
                     where you keep a copy, or remove those secrets with `overmind vault rm`",
                    self.options.place(self.options.kept())
                ))),
            };
        };
        let wrong = |why: Wrong| format!("{} {why}", self.options.place(kept));
        let Some(kdf) = &file.kdf else {
            let keys = file.open(None).map_err(wrong)?;
            return Ok(State::Open(Open { kept, kek: None, keys }));
        };
        let tries: Vec<&Secret> = passphrase.into_iter().chain(&self.options.passphrase).collect();
        if tries.is_empty() {
            return Err(wrong(
                "needs its passphrase: run `overmind vault unlock`, or set OVERMIND_VAULT_PASSPHRASE \
                 or vault.passphrase_file before the server starts"
                    .to_owned(),
            )
            .into());
        }
        let mut why = String::new();
        for passphrase in tries {
            let kek = Kek::of(passphrase, kdf.clone()).map_err(wrong)?;
            match file.open(Some(&kek)) {
                Ok(keys) => return Ok(State::Open(Open { kept, kek: Some(kek), keys })),
                Err(err) => why = err,
            }
        }
        Err(Shut::Wrong(wrong(why)))
    }

    /// Makes the first key, which is on disk when this returns.
    fn made(&self) -> Result<Open, SealError> {
        let place = self.options.place(self.options.kept());
        let failed = |reason: String| SealError::Failed {
            attempt: format!("making the vault's key in {place}"),
            reason,
        };
        let master = Master::new().map_err(|_| failed(randomless()))?;
        let kek = self.new_kek(self.options.passphrase.as_ref()).map_err(failed)?;
        let keys = vec![master];
        let kept = self.options.write(&keys, kek.as_ref(), true).map_err(failed)?;
        tracing::info!(place, "made the vault's key");
        Ok(Open { kept, kek, keys })
    }

    /// Replaces the stored keys.
    fn written(&self, keys: &[Master], kek: Option<&Kek>) -> Result<Kept, SealError> {
        self.options.write(keys, kek, false).map_err(|reason| SealError::Failed {
            attempt: format!(
                "writing the vault's keys to {}",
                self.options.place(self.options.kept())
            ),
            reason,
        })
    }

    fn new_kek(&self, passphrase: Option<&Secret>) -> Result<Option<Kek>, String> {
        passphrase.map(|passphrase| Kek::new(passphrase, self.options.argon2)).transpose()
    }
}

fn randomless() -> String {
    "the system gave no randomness".to_owned()
}

/// The context to which a data key is bound: its master key, and the secret's name and version.
fn about_key(master: &str, name: &SecretName, version: u32) -> Vec<u8> {
    let version = version.to_be_bytes();
    aead::about(
        "overmind vault data key 1",
        &[master.as_bytes(), name.as_str().as_bytes(), &version],
    )
}

fn about_body(name: &SecretName, version: u32) -> Vec<u8> {
    aead::about("overmind vault secret 1", &[name.as_str().as_bytes(), &version.to_be_bytes()])
}

fn sealing(name: &SecretName) -> impl Fn(NoRandomness) -> SealError + '_ {
    move |_| SealError::Failed {
        attempt: format!("encrypting the secret `{name}`"),
        reason: randomless(),
    }
}

impl Open {
    fn data_key(&self, name: &SecretName, version: u32, sealed: &Sealed) -> Result<Key, SealError> {
        let Some(master) = self.keys.iter().find(|master| master.id == sealed.master) else {
            return Err(SealError::Locked {
                reason: format!(
                    "`{name}` was encrypted with the master key {}, which the key file does not hold: \
                     bring the file back that belongs to this database",
                    sealed.master
                ),
            });
        };
        let about = about_key(&master.id, name, version);
        let opened = aead::open(&master.key, &about, &sealed.wrapped);
        let key = opened.and_then(|key| <[u8; 32]>::try_from(key.as_slice()).ok());
        key.map(Zeroizing::new).ok_or_else(|| damaged(name, version, "its data key does not open"))
    }
}

fn damaged(name: &SecretName, version: u32, reason: &str) -> SealError {
    SealError::Damaged { name: name.clone(), version, reason: reason.to_owned() }
}

fn locked(reason: &str) -> SealError {
    SealError::Locked { reason: reason.to_owned() }
}

impl Sealer for Vault {
    fn unlock(&self, needed: &[String], passphrase: Option<&Secret>) -> Result<(), SealError> {
        let mut state = self.write();
        match self.opened(needed, passphrase) {
            Ok(opened) => {
                *state = opened;
                Ok(())
            }
            Err(why) => {
                // An open vault stays open: a wrong passphrase must not lock others out.
                if !matches!(*state, State::Open(_)) {
                    *state = State::Locked { reason: why.reason().to_owned() };
                }
                Err(match (passphrase, why) {
                    (Some(_), Shut::Wrong(reason)) => SealError::WrongPassphrase { reason },
                    (_, Shut::Wrong(reason) | Shut::Other(reason)) => SealError::Locked { reason },
                })
            }
        }
    }

    fn protection(&self) -> Option<Protection> {
        match &*self.read() {
            State::Locked { .. } | State::Empty => None,
            State::Open(Open { kek: Some(_), .. }) => Some(Protection::Passphrase),
            State::Open(Open { kept: Kept::File, .. }) => Some(Protection::File),
            State::Open(Open { kept: Kept::Keyring, .. }) => Some(Protection::Keyring),
        }
    }

    fn seal(&self, name: &SecretName, version: u32, secret: &Secret) -> Result<Sealed, SealError> {
        let mut state = self.write();
        let open = match &mut *state {
            State::Locked { reason } => return Err(locked(reason)),
            State::Empty => {
                *state = State::Open(self.made()?);
                let State::Open(open) = &*state else { unreachable!("it was just set") };
                open
            }
            State::Open(open) => open,
        };
        let master = open.newest();
        let key = aead::new_key().map_err(sealing(name))?;
        let about = about_key(&master.id, name, version);
        let wrapped = aead::seal(&master.key, &about, key.as_ref()).map_err(sealing(name))?;
        let body = aead::seal(&key, &about_body(name, version), secret.expose().as_bytes())
            .map_err(sealing(name))?;
        Ok(Sealed { master: master.id.clone(), wrapped, body })
    }

    fn open(&self, name: &SecretName, version: u32, sealed: &Sealed) -> Result<Secret, SealError> {
        let state = self.read();
        let open = match &*state {
            State::Locked { reason } => return Err(locked(reason)),
            State::Empty => return Err(locked("it has no key yet")),
            State::Open(open) => open,
        };
        let key = open.data_key(name, version, sealed)?;
        let plain = aead::open(&key, &about_body(name, version), &sealed.body)
            .ok_or_else(|| damaged(name, version, "it does not open"))?;
        let text = std::str::from_utf8(&plain).ok().and_then(|text| Secret::new(text).ok());
        text.ok_or_else(|| damaged(name, version, "what comes out is not a secret"))
    }

    fn master_new(&self, passphrase: Option<&Secret>) -> Result<(), SealError> {
        let mut state = self.write();
        let open = match &mut *state {
            State::Locked { reason } => return Err(locked(reason)),
            State::Empty => {
                *state = State::Open(self.made()?);
                return Ok(());
            }
            State::Open(open) => open,
        };
        let failed = |reason: String| SealError::Failed {
            attempt: "making a new master key".to_owned(),
            reason,
        };
        let mut keys = open.keys.clone();
        keys.push(Master::new().map_err(|_| failed(randomless()))?);
        let kek = match (passphrase, &open.kek) {
            (Some(new), _) => self.new_kek(Some(new)).map_err(failed)?,
            (None, Some(kek)) => Some(kek.clone()),
            (None, None) => self.new_kek(self.options.passphrase.as_ref()).map_err(failed)?,
        };
        let kept = self.written(&keys, kek.as_ref())?;
        *open = Open { kept, kek, keys };
        Ok(())
    }

    fn rewrap(
        &self,
        name: &SecretName,
        version: u32,
        sealed: &Sealed,
    ) -> Result<Sealed, SealError> {
        let state = self.read();
        let open = match &*state {
            State::Locked { reason } => return Err(locked(reason)),
            State::Empty => return Err(locked("it has no key yet")),
            State::Open(open) => open,
        };
        let key = open.data_key(name, version, sealed)?;
        let master = open.newest();
        let about = about_key(&master.id, name, version);
        let wrapped = aead::seal(&master.key, &about, key.as_ref()).map_err(sealing(name))?;
        Ok(Sealed { master: master.id.clone(), wrapped, body: sealed.body.clone() })
    }

    fn master_forget_old(&self) -> Result<(), SealError> {
        let mut state = self.write();
        let State::Open(open) = &mut *state else { return Ok(()) };
        if open.keys.len() == 1 {
            return Ok(());
        }
        let newest = vec![open.newest().clone()];
        open.kept = self.written(&newest, open.kek.as_ref())?;
        open.keys = newest;
        Ok(())
    }
}
