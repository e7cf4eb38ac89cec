//! Secrets at rest: envelope encryption under a master key that this crate looks after.
//!
//! [`Vault`] is the port [`Sealer`](overmind_core::vault::Sealer). Each version of a secret has a
//! data key of its own (AES-256-GCM); the data key is encrypted under the newest master key. Both
//! ciphertexts are bound to the secret's name and version, so that rows which somebody swapped
//! open nothing. The master keys stand in one file ([`Options::key_file`]), in the clear for its
//! owner alone or encrypted under a passphrase (Argon2id).
//!
//! What it does not do: keep anything in the keyring of an operating system; wipe what the
//! cryptographic library keeps of a key while it is used.

mod aead;
mod keyfile;
mod keys;

pub use self::keyfile::Argon2;
pub use self::keys::{Options, Vault};
