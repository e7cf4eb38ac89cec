//! Reads and writes the file of master keys.
//!
//! It is JSON of version 1. Without `kdf` each `key` is 32 bytes in Base64; with it, `nonce ‖
//! ciphertext ‖ tag` under the key that Argon2id derives from the passphrase. The newest key is the
//! last one.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use overmind_core::vault::Secret;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use crate::aead::{self, Key};

/// Longest file that is read, in bytes.
const MAX_BYTES: u64 = 256 * 1024;

/// The cost of Argon2id. It is stored in the file, so that it can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argon2 {
    pub memory_kib: u32,
    pub passes: u32,
    pub lanes: u32,
}

impl Default for Argon2 {
    /// The second recommended option of RFC 9106.
    fn default() -> Self {
        Self { memory_kib: 64 * 1024, passes: 3, lanes: 4 }
    }
}

/// The parameters for deriving a key from a passphrase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kdf {
    pub(crate) argon2id: Argon2,
    /// 16 bytes in Base64.
    pub(crate) salt: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyFile {
    overmind_vault: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kdf: Option<Kdf>,
    pub(crate) keys: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) key: String,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// A master key.
#[derive(Clone)]
pub(crate) struct Master {
    /// 16 hexadecimal digits.
    pub(crate) id: String,
    pub(crate) key: Key,
}

/// A key that was derived from a passphrase, with the parameters to derive it again.
#[derive(Clone)]
pub(crate) struct Kek {
    pub(crate) kdf: Kdf,
    pub(crate) key: Key,
}

/// Why a file cannot be opened; the text follows "the key file PATH".
pub(crate) type Wrong = String;

impl Kek {
    /// Derives a new key, with a new salt.
    pub(crate) fn new(passphrase: &Secret, cost: Argon2) -> Result<Self, Wrong> {
        let salt: [u8; 16] =
            aead::random().map_err(|_| "cannot be made: the system gave no randomness")?;
        Self::of(passphrase, Kdf { argon2id: cost, salt: STANDARD.encode(salt) })
    }

    pub(crate) fn of(passphrase: &Secret, kdf: Kdf) -> Result<Self, Wrong> {
        let Argon2 { memory_kib, passes, lanes } = kdf.argon2id;
        // A damaged file must not use up all memory.
        if memory_kib > 1 << 20 || passes > 100 || lanes > 64 {
            return Err("asks for more work than any of ours would: it is damaged".to_owned());
        }
        let salt = STANDARD.decode(&kdf.salt).map_err(|_| "has a salt that is not Base64")?;
        let odd = |err: argon2::Error| format!("has parameters that Argon2 refuses: {err}");
        let params = argon2::Params::new(memory_kib, passes, lanes, Some(32)).map_err(odd)?;
        let hash = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let mut key = Zeroizing::new([0; 32]);
        hash.hash_password_into(passphrase.expose().as_bytes(), &salt, key.as_mut())
            .map_err(odd)?;
        Ok(Self { kdf, key })
    }
}

fn about(id: &str, kdf: &Kdf) -> Vec<u8> {
    let Argon2 { memory_kib, passes, lanes } = kdf.argon2id;
    let cost = [memory_kib, passes, lanes].map(u32::to_be_bytes).concat();
    aead::about("overmind vault master 1", &[id.as_bytes(), &cost, kdf.salt.as_bytes()])
}

impl KeyFile {
    /// Reads the file; `None` if there is none.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, Wrong> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(format!("cannot be read: {err}")),
        };
        let meta = file.metadata().map_err(|err| format!("cannot be looked at: {err}"))?;
        let mode = meta.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(format!(
                "has mode {mode:04o}, so that others can use it: `chmod 600` it, and if somebody may \
                 have copied it, run `overmind vault rotate --master` and set each secret anew"
            ));
        }
        let own = rustix::process::geteuid().as_raw();
        if meta.uid() != own {
            return Err(format!(
                "belongs to user {}, not to {own}: whoever owns it can read and replace it; `chown` \
                 it",
                meta.uid()
            ));
        }
        let mut text = Zeroizing::new(String::new());
        (&mut file)
            .take(MAX_BYTES)
            .read_to_string(&mut text)
            .map_err(|err| format!("cannot be read: {err}"))?;
        Self::parse(&text).map(Some)
    }

    /// Parses the same format from the keyring of an operating system.
    pub(crate) fn parse(text: &str) -> Result<Self, Wrong> {
        let this: Self = serde_json::from_str(text).map_err(|err| {
            // Only the position is shown, because the text around it may be a key.
            format!(
                "is damaged (line {}, column {}): bring it back from where you keep a copy",
                err.line(),
                err.column()
            )
        })?;
        if this.overmind_vault != 1 {
            return Err(format!(
                "has version {}, and this program knows 1: use the newer program",
                this.overmind_vault
            ));
        }
        if this.keys.is_empty() {
            return Err("holds no key: bring it back from where you keep a copy".to_owned());
        }
        Ok(this)
    }

    /// The master keys in the file, the newest last.
    pub(crate) fn open(&self, kek: Option<&Kek>) -> Result<Vec<Master>, Wrong> {
        let damaged = "is damaged: bring it back from where you keep a copy";
        self.keys
            .iter()
            .map(|Entry { id, key }| {
                let bytes = Zeroizing::new(STANDARD.decode(key.as_bytes()).map_err(|_| damaged)?);
                let plain = match kek {
                    None => bytes,
                    Some(kek) => aead::open(&kek.key, &about(id, &kek.kdf), &bytes)
                        .ok_or("does not open: the passphrase is wrong, or the file is damaged")?,
                };
                let key: [u8; 32] = plain.as_slice().try_into().map_err(|_| damaged)?;
                Ok(Master { id: id.clone(), key: Zeroizing::new(key) })
            })
            .collect()
    }
}

impl Master {
    pub(crate) fn new() -> Result<Self, aead::NoRandomness> {
        let id: [u8; 8] = aead::random()?;
        let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { id, key: aead::new_key()? })
    }
}

/// Serializes the keys.
pub(crate) fn document(keys: &[Master], kek: Option<&Kek>) -> Result<Zeroizing<String>, Wrong> {
    let randomless = |_| "cannot be written: the system gave no randomness".to_owned();
    let mut entries = Vec::with_capacity(keys.len());
    for Master { id, key } in keys {
        let text = match kek {
            None => STANDARD.encode(key.as_ref()),
            Some(kek) => STANDARD.encode(
                aead::seal(&kek.key, &about(id, &kek.kdf), key.as_ref()).map_err(randomless)?,
            ),
        };
        entries.push(Entry { id: id.clone(), key: text });
    }
    let file = KeyFile { overmind_vault: 1, kdf: kek.map(|kek| kek.kdf.clone()), keys: entries };
    Ok(Zeroizing::new(serde_json::to_string_pretty(&file).expect("texts and numbers")))
}

/// Writes a [`document`] to a temporary file and renames it, so that a crash leaves the old file or
/// the new one. With `new`, no file may exist yet.
pub(crate) fn write(path: &Path, text: &str, new: bool) -> Result<(), Wrong> {
    let at = path.parent().filter(|at| !at.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> io::Result<()> {
        // The name is that of every draft of the data directory, which removes drafts of killed
        // processes. The mode is 0600 from the start.
        let mut draft = tempfile::Builder::new().prefix(".draft-").tempfile_in(at)?;
        draft.write_all(text.as_bytes())?;
        draft.write_all(b"\n")?;
        draft.as_file().sync_all()?;
        match new {
            true => drop(draft.persist_noclobber(path)?),
            false => drop(draft.persist(path)?),
        }
        fs::File::open(at)?.sync_all()
    };
    write().map_err(|err| format!("cannot be written: {err}"))
}
