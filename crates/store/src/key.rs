//! The key that signs checkpoints: Ed25519, in a file that only its owner reads.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use overmind_core::store::StoreError;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::error::explain_io;
use crate::files::sync_dir;
use crate::options::{beside, parent};

/// A key pair; only the public half is ever shown.
pub(crate) struct SigningKey {
    pair: Ed25519KeyPair,
    public: [u8; 32],
    /// A derived key for checks that only this store makes, and often: a signature takes a hundred
    /// times as long.
    witness: [u8; 32],
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SigningKey").field(&fingerprint(&self.public)).finish()
    }
}

impl SigningKey {
    /// Reads the key at `path`, or makes one if there is none.
    ///
    /// # Errors
    ///
    /// Fails if other users can read the file, if it is no key, or if it can neither be read nor
    /// made.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        match File::open(path) {
            Ok(file) => Self::read(file, path),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Self::make(path),
            Err(err) => Err(explain_io(&err, path, "reading the key that signs checkpoints")),
        }
    }

    fn read(mut file: File, path: &Path) -> Result<Self, StoreError> {
        let wrong =
            |err: &io::Error| explain_io(err, path, "reading the key that signs checkpoints");
        let mode = file.metadata().map_err(|err| wrong(&err))?.mode();
        if mode & 0o077 != 0 {
            return Err(StoreError::Other {
                attempt: format!("reading the key that signs checkpoints, {}", path.display()),
                detail: format!(
                    "others can read it (mode {:04o}): `chmod 600` it, and if someone may have \
                     copied it, move it away so that a new one is made",
                    mode & 0o7777
                ),
            });
        }
        let mut document = Vec::new();
        Read::by_ref(&mut file).take(1024).read_to_end(&mut document).map_err(|err| wrong(&err))?;
        Self::parse(&document).ok_or_else(|| StoreError::Corrupt {
            path: path.to_owned(),
            detail: "it is not an Ed25519 key in PKCS#8; bring it back from a backup, or move it \
                     away so that a new one is made"
                .into(),
        })
    }

    fn parse(document: &[u8]) -> Option<Self> {
        let pair = Ed25519KeyPair::from_pkcs8(document).ok()?;
        let public = pair.public_key().as_ref().try_into().ok()?;
        let witness =
            blake3::derive_key("overmind 2026 witness of what was acknowledged", document);
        Some(Self { pair, public, witness })
    }

    /// Writes the key to a temporary file and renames it, so that a crash leaves no partial key.
    fn make(path: &Path) -> Result<Self, StoreError> {
        let document =
            Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).map_err(|_| {
                StoreError::Other {
                    attempt: "making the key that signs checkpoints".into(),
                    detail: "the system gave no randomness".into(),
                }
            })?;
        let part = beside(path, ".new");
        let write = || -> io::Result<()> {
            match std::fs::remove_file(&part) {
                Ok(()) => {}
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                Err(err) => return Err(err),
            }
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
            file.write_all(document.as_ref())?;
            file.sync_all()?;
            std::fs::rename(&part, path)?;
            sync_dir(parent(path))
        };
        write().map_err(|err| explain_io(&err, path, "making the key that signs checkpoints"))?;
        tracing::info!(path = %path.display(), "made the key that signs checkpoints");
        Ok(Self::parse(document.as_ref()).expect("a document that was just made parses"))
    }

    pub(crate) fn public(&self) -> &[u8; 32] {
        &self.public
    }

    /// The key that authenticates the witness, see [`crate::witness`].
    pub(crate) fn witness(&self) -> &[u8; 32] {
        &self.witness
    }

    /// Signs the digest of an attestation. A prefix is signed with it, so that a caller cannot get
    /// a checkpoint signed this way.
    pub(crate) fn sign_attestation(&self, digest: &[u8; 32]) -> Vec<u8> {
        self.pair.sign(&attestation_message(digest)).as_ref().to_vec()
    }

    pub(crate) fn sign(&self, digest: &[u8; 32]) -> Vec<u8> {
        self.pair.sign(digest).as_ref().to_vec()
    }
}

/// Whether the owner of `public` signed `digest`.
pub(crate) fn verify(public: &[u8], digest: &[u8; 32], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public).verify(digest, signature).is_ok()
}

fn attestation_message(digest: &[u8; 32]) -> Vec<u8> {
    [b"overmind attestation 1\0".as_slice(), digest].concat()
}

/// Whether the owner of `public` signed the attestation with this digest.
pub(crate) fn verify_attestation(public: &[u8], digest: &[u8; 32], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public).verify(&attestation_message(digest), signature).is_ok()
}

/// A short name for a public key: the first 16 bytes of its BLAKE3 in hexadecimal.
pub(crate) fn fingerprint(public: &[u8]) -> String {
    hex(&blake3::hash(public).as_bytes()[..16])
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_created_once_and_read_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        let first = SigningKey::open(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        let second = SigningKey::open(&path).unwrap();
        assert_eq!(first.public(), second.public());
        let digest = [7; 32];
        let signature = second.sign(&digest);
        assert!(verify(first.public(), &digest, &signature));
        assert!(!verify(first.public(), &[8; 32], &signature));
        assert_eq!(fingerprint(first.public()).len(), 32);
    }

    #[test]
    fn a_signature_of_an_attestation_is_not_valid_for_a_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let key = SigningKey::open(&dir.path().join("k")).unwrap();
        let digest = [7; 32];
        let attestation = key.sign_attestation(&digest);
        assert!(verify_attestation(key.public(), &digest, &attestation));
        assert!(!verify_attestation(key.public(), &[8; 32], &attestation));
        assert!(!verify(key.public(), &digest, &attestation));
        assert!(!verify_attestation(key.public(), &digest, &key.sign(&digest)));
    }

    #[test]
    fn readable_and_invalid_key_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        SigningKey::open(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let err = SigningKey::open(&path).unwrap_err().to_string();
        assert!(err.contains("mode 0640") && err.contains("chmod 600"), "{err}");
        std::fs::write(&path, "not a key").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(matches!(SigningKey::open(&path), Err(StoreError::Corrupt { .. })));
    }
}
