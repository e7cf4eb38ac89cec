//! Stores secrets with envelope encryption, under a master key that this crate manages.
//!
//! [`Vault`] implements the port [`Sealer`](overmind_core::vault::Sealer). Each version of a secret
//! has its own data key (AES-256-GCM), which is encrypted under the newest master key. Both
//! ciphertexts are bound to the secret's name and version, so rows that somebody has swapped cannot
//! be decrypted. The master keys are in one file ([`Options::key_file`]) or in one entry of the
//! operating system's keyring ([`Keyring`]), either unencrypted and readable only by their owner,
//! or encrypted under a passphrase (Argon2id).
//!
//! It does not wipe copies of a key that the cryptographic library keeps while it is in use.

mod aead;
mod keyfile;
mod keyring;
mod keys;

pub use self::keyfile::Argon2;
pub use self::keyring::Keyring;
pub use self::keys::{Found, Kept, Options, Vault};
