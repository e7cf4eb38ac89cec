//! Keys that agents never see: names of secrets, where a key may go, and who may use it.
//!
//! A *secret* is a text under a [`SecretName`], encrypted at rest, with versions. A *service*
//! ([`service::Service`]) is a place that one secret opens: its URL, where the key stands in a
//! request, which methods and paths are allowed. A *grant* ([`grant::Grant`]) lets agents use a
//! secret or a service; without one they may use none. A *placeholder* ([`placeholder`]) is what
//! a command gets in place of a key.
//!
//! Everything here is pure. Who calls a service says method, path and query, and
//! [`service::Service::resolve`] makes the URL: no word of a caller reaches scheme, host, port or
//! the place where the key stands.

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
/// Longest secret, in bytes: a private key with its chain fits.
pub const MAX_SECRET: usize = 32 * 1024;
/// Shortest secret, in bytes: what is shorter cannot be masked in a text without hiding words.
pub const MIN_SECRET: usize = 8;
/// Most secrets of one vault.
pub const MAX_SECRETS: usize = 1000;
/// Most earlier versions of a secret that are kept.
pub const MAX_KEPT: u32 = 20;

/// The name of a secret: small letters, digits, `_`, `-` and `.`, 1 to [`MAX_NAME`] bytes, a letter
/// or digit first. Parsing makes capitals small: `OPENAI_API_KEY` is `openai_api_key`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretName(Arc<str>);

/// A text that is no name of a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name has 1 to {MAX_NAME} letters, digits, `_`, `-` and `.`, and begins with a letter or \
     digit{wrong}"
)]
pub struct NameError {
    /// What is out of place, and where.
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

/// A decrypted secret: never printed, and wiped from memory when its last clone is dropped.
///
/// Wiped is this copy. Whoever makes a `String` of [`Secret::expose`] has one that is not.
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
    /// White space around it is dropped: keys are pasted, and files end with a line break.
    ///
    /// # Errors
    ///
    /// [`SecretError`], which does not quote it.
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

    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// For what a secret is taken. What is known of it stands in the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Use {
    pub session: Option<SessionId>,
    /// The agent's name.
    pub agent: Option<String>,
    pub service: Option<String>,
    /// Where it goes: a host, or `environment` for a command's.
    pub host: Option<String>,
}

/// Where secrets are looked up, at the moment when they are needed. They change without a restart,
/// so nobody keeps what this answers for longer than one call.
pub trait Secrets: Send + Sync + fmt::Debug {
    /// The current version of a secret. Answers at once: what is unlocked lies in memory. `None`
    /// when there is none of that name, or the vault is locked.
    fn get(&self, name: &str) -> Option<Secret>;

    /// Whether [`Secrets::get`] would answer with one. Looking is no use.
    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The same, and it is written down for what.
    fn get_for(&self, name: &str, for_what: Use) -> Option<Secret> {
        let _ = for_what;
        self.get(name)
    }
}

/// An encrypted secret: its data key under a master key, and itself under the data key. Both are
/// bound to the secret's name and version, so that none can stand in another's place.
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

/// One version of a secret at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRow {
    pub name: SecretName,
    /// From 1.
    pub version: u32,
    pub sealed: Sealed,
    pub created_at: Timestamp,
    /// Who set it: `admin`, or the name of an API key.
    pub created_by: String,
}

/// What is counted of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretUses {
    pub name: SecretName,
    pub uses: u64,
    pub last_used_at: Timestamp,
}

/// Why the vault does not open, or does not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Nothing can be decrypted: what is missing and what to do, in words.
    #[error("the vault is locked: {reason}")]
    Locked { reason: String },
    /// It stays locked: the passphrase that was given does not open it.
    #[error("the vault is locked: {reason}")]
    WrongPassphrase { reason: String },
    /// This one secret cannot be.
    #[error("the secret `{name}` (version {version}) is damaged: {reason}")]
    Damaged { name: SecretName, version: u32, reason: String },
    #[error("{attempt}: {reason}")]
    Failed { attempt: String, reason: String },
}

/// How the master key is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// In a file that only its owner reads.
    File,
    /// In the keyring of the operating system.
    Keyring,
    /// In one of them, and a passphrase opens it.
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

/// Encrypts and decrypts secrets with a master key that it looks after. None of it waits for long
/// but [`Sealer::unlock`] with a passphrase, which is slow on purpose.
pub trait Sealer: Send + Sync + fmt::Debug {
    /// Opens the master keys. `needed`: ids of those that secrets at rest were sealed with; while it
    /// is empty there need not be a key yet, and one is made for the first secret. `passphrase`
    /// goes before the one that was configured.
    ///
    /// # Errors
    ///
    /// [`SealError::Locked`]: what is missing. It is asked again later.
    fn unlock(&self, needed: &[String], passphrase: Option<&Secret>) -> Result<(), SealError>;

    /// How the master key is kept; `None` while there is none or it is locked.
    fn protection(&self) -> Option<Protection>;

    /// Encrypts under the newest master key.
    ///
    /// # Errors
    ///
    /// [`SealError::Locked`]; [`SealError::Failed`] when the first key cannot be written.
    fn seal(&self, name: &SecretName, version: u32, secret: &Secret) -> Result<Sealed, SealError>;

    /// # Errors
    ///
    /// [`SealError::Damaged`]; [`SealError::Locked`] without the master key.
    fn open(&self, name: &SecretName, version: u32, sealed: &Sealed) -> Result<Secret, SealError>;

    /// Makes a new master key and keeps the old ones: they open what was sealed before. With
    /// `passphrase` all of them are under that one from now on. Durable when it returns.
    ///
    /// # Errors
    ///
    /// [`SealError`]; the old key goes on being used.
    fn master_new(&self, passphrase: Option<&Secret>) -> Result<(), SealError>;

    /// The same secret under the newest master key.
    ///
    /// # Errors
    ///
    /// As [`Sealer::open`].
    fn rewrap(&self, name: &SecretName, version: u32, sealed: &Sealed)
    -> Result<Sealed, SealError>;

    /// Forgets all master keys but the newest: nothing is sealed with them any more.
    ///
    /// # Errors
    ///
    /// [`SealError::Failed`] when the file cannot be written.
    fn master_forget_old(&self) -> Result<(), SealError>;
}
