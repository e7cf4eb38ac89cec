//! Secrets at rest: envelope encryption under a master key that this crate looks after.
//!
//! [`Vault`] is the port [`Sealer`](overmind_core::vault::Sealer). Each version of a secret has a
//! data key of its own (AES-256-GCM); the data key is encrypted under the newest master key. Both
//! ciphertexts are bound to the secret's name and version, so that rows which somebody swapped
//! open nothing. The master keys stand in one file ([`Options::key_file`]) or one entry of the
//! operating system's keyring ([`Keyring`]), in the clear for its owner alone or encrypted under a
//! passphrase (Argon2id).
//!
//! What it does not do: wipe what the cryptographic library keeps of a key while it is used.

mod aead;
mod keyfile;
mod keyring;
mod keys;

pub use self::keyfile::Argon2;
pub use self::keyring::Keyring;
pub use self::keys::{Found, Kept, Options, Vault};
