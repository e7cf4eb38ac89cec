//! The vault: secrets that agents never see, the services to which they may be sent, and the grants
//! to use them.
//!
//! A *secret* is a text with a [`SecretName`], encrypted at rest, with versions. A *service*
//! ([`service::Service`]) is an outside API that one secret gives access to: its URL, the place of
//! the key in a request, and the allowed methods and paths. A *grant* ([`grant::Grant`]) lets
//! agents use a secret or a service; without a grant they may use none. A *placeholder*
//! ([`placeholder`]) is given to a command in place of a key.
//!
//! Everything here is pure. A caller of a service passes method, path and query, and
//! [`service::Service::resolve`] makes the URL. No input of a caller can change scheme, host, port
//! or the place of the key.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::ids::SessionId;
use crate::time::Timestamp;

pub mod catalogue;
pub mod glob;
pub mod grant;
pub mod import;
pub mod outbound;
pub mod placeholder;
pub mod resolve;
pub mod rows;
pub mod service;
pub mod words;

#[cfg(test)]
mod tests;

/// Longest name of a secret or a service, in bytes.
pub const MAX_NAME: usize = 64;
/// Longest secret, in bytes; enough for a private key with its certificate chain.
pub const MAX_SECRET: usize = 32 * 1024;
/// Shortest secret, in bytes. Masking a shorter one would also hide ordinary words.
pub const MIN_SECRET: usize = 8;
/// Maximum number of secrets of one vault.
pub const MAX_SECRETS: usize = 1000;
/// Maximum number of earlier versions of a secret.
pub const MAX_KEPT: u32 = 20;

/// The name of a secret: small letters, digits, `_`, `-` and `.`, 1 to [`MAX_NAME`] bytes,
/// beginning with a letter or digit. Parsing converts capitals: `OPENAI_API_KEY` becomes
/// `openai_api_key`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretName(Arc<str>);

/// The error for a text that is not the name of a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name has 1 to {MAX_NAME} letters, digits, `_`, `-` and `.`, and begins with a letter or \
     digit{wrong}"
)]
pub struct NameError {
    /// The invalid part, and its position.
    wrong: String,
}

impl std::borrow::Borrow<str> for SecretName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl SecretName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SecretName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain =
            |at, c: char| c.is_ascii_alphanumeric() || (at > 0 && matches!(c, '_' | '-' | '.'));
        if let Some((at, c)) = text.chars().enumerate().find(|(at, c)| !plain(*at, *c)) {
            return Err(NameError { wrong: format!(", not {}", crate::name::shown(at, c)) });
        }
        if text.is_empty() || text.len() > MAX_NAME {
            return Err(NameError { wrong: format!("; this one has {} bytes", text.len()) });
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for SecretName {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SecretName {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A decrypted secret. It is never printed, and is wiped from memory when its last clone is
/// dropped.
///
/// Only this copy is wiped. A `String` made from [`Secret::expose`] is not.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<Zeroizing<String>>);

/// Why a text cannot be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("it is empty")]
    Empty,
    #[error("it has fewer than {MIN_SECRET} characters, so that it could not be masked in logs")]
    Short,
    #[error("it has more than {MAX_SECRET} bytes")]
    Long,
    #[error("it contains a NUL character")]
    Nul,
}

impl Secret {
    /// Creates a secret. White space around it is removed, because keys are pasted and files end
    /// with a line break.
    ///
    /// # Errors
    ///
    /// [`SecretError`], which does not contain the text.
    pub fn new(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        match text.len() {
            0 => Err(SecretError::Empty),
            _ if text.chars().nth(MIN_SECRET - 1).is_none() => Err(SecretError::Short),
            len if len > MAX_SECRET => Err(SecretError::Long),
            _ if text.contains('\0') => Err(SecretError::Nul),
            _ => Ok(Self(Arc::new(Zeroizing::new(text.to_owned())))),
        }
    }

    /// Returns the text itself. Use it only where the text is needed.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The use of a secret, as the audit log records it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Use {
    pub session: Option<SessionId>,
    /// The agent's name.
    pub agent: Option<String>,
    pub service: Option<String>,
    /// The destination: a host, or `environment` for a command's environment.
    pub host: Option<String>,
}

/// A source of secrets. Secrets change without a restart, so look one up when it is needed and do
/// not keep it for longer than one call.
pub trait Secrets: Send + Sync + fmt::Debug {
    /// Returns the current version of a secret, without waiting, because unlocked secrets are in
    /// memory. `None` if there is no secret of that name, or the vault is locked.
    fn get(&self, name: &str) -> Option<Secret>;

    /// Returns whether [`Secrets::get`] would return a secret. Does not count as a use.
    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns the secret as [`Secrets::get`] does, and records the use.
    fn get_for(&self, name: &str, for_what: Use) -> Option<Secret> {
        let _ = for_what;
        self.get(name)
    }
}

/// An encrypted secret: its data key is encrypted with a master key, and the secret with the data
/// key. Both are bound to the secret's name and version, so that one cannot be swapped for another.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Id of the master key.
    pub master: String,
    /// Nonce, encrypted data key, tag.
    pub wrapped: Vec<u8>,
    /// Nonce, encrypted text, tag.
    pub body: Vec<u8>,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("master", &self.master).finish_non_exhaustive()
    }
}

/// One version of a secret as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRow {
    pub name: SecretName,
    /// Version number, from 1.
    pub version: u32,
    pub sealed: Sealed,
    pub created_at: Timestamp,
    /// Who set it: `admin`, or the name of an API key.
    pub created_by: String,
}

/// Usage counts of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretUses {
    pub name: SecretName,
    pub uses: u64,
    pub last_used_at: Timestamp,
}

/// Why the vault cannot be unlocked, or an operation on it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Nothing can be decrypted. The text says what is missing and what to do.
    #[error("the vault is locked: {reason}")]
    Locked { reason: String },
    /// The given passphrase is wrong, so the vault stays locked.
    #[error("the vault is locked: {reason}")]
    WrongPassphrase { reason: String },
    /// This one secret cannot be decrypted.
    #[error("the secret `{name}` (version {version}) is damaged: {reason}")]
    Damaged { name: SecretName, version: u32, reason: String },
    #[error("{attempt}: {reason}")]
    Failed { attempt: String, reason: String },
}

/// How the master key is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// In a file that only its owner can read.
    File,
    /// In the keyring of the operating system.
    Keyring,
    /// In one of them, encrypted with a passphrase.
    Passphrase,
}

impl Protection {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "key_file",
            Self::Keyring => "keyring",
            Self::Passphrase => "passphrase",
        }
    }
}

/// Encrypts and decrypts secrets with a master key that it manages. Only [`Sealer::unlock`] with a
/// passphrase takes long, which is deliberate.
pub trait Sealer: Send + Sync + fmt::Debug {
    /// Unlocks the master keys. `needed` contains the ids of those with which stored secrets are
    /// encrypted. If it is empty, no key needs to exist, and one is created for the first secret.
    /// `passphrase` overrides the configured one.
    ///
    /// # Errors
    ///
    /// [`SealError::Locked`] with what is missing. The call may be repeated later.
    fn unlock(&self, needed: &[String], passphrase: Option<&Secret>) -> Result<(), SealError>;

    /// Returns how the master key is stored; `None` if there is none or it is locked.
    fn protection(&self) -> Option<Protection>;

    /// Encrypts a secret with the newest master key.
    ///
    /// # Errors
    ///
    /// [`SealError::Locked`]; [`SealError::Failed`] if the first key cannot be written.
    fn seal(&self, name: &SecretName, version: u32, secret: &Secret) -> Result<Sealed, SealError>;

    /// # Errors
    ///
    /// [`SealError::Damaged`]; [`SealError::Locked`] without the master key.
    fn open(&self, name: &SecretName, version: u32, sealed: &Sealed) -> Result<Secret, SealError>;

    /// Creates a new master key and keeps the old ones, which can still decrypt earlier secrets.
    /// With `passphrase`, all of them are then protected by it. Durable when it returns.
    ///
    /// # Errors
    ///
    /// [`SealError`]; the old key stays in use.
    fn master_new(&self, passphrase: Option<&Secret>) -> Result<(), SealError>;

    /// Encrypts a secret again with the newest master key.
    ///
    /// # Errors
    ///
    /// The same as [`Sealer::open`].
    fn rewrap(&self, name: &SecretName, version: u32, sealed: &Sealed)
    -> Result<Sealed, SealError>;

    /// Removes all master keys except the newest, after no secret is encrypted with them.
    ///
    /// # Errors
    ///
    /// [`SealError::Failed`] if the file cannot be written.
    fn master_forget_old(&self) -> Result<(), SealError>;
}
