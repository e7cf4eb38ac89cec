//! The *measured* isolation of a sandbox: the record of a probe that runs inside it.
//!
//! An [`Attestation`] contains what a program inside the sandbox found when it looked for the host:
//! its homes, processes, network and sockets. It does not rely on what a driver claims. It is made
//! once for a driver, a configuration and a kernel, and is signed by the daemon. Sessions refer to
//! it by its [`digest`](Attestation::digest).
//!
//! This module contains only types: the `sandbox` crate runs the probe, and the signer is an
//! argument.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::sandbox::SandboxLevel;
use crate::time::Timestamp;

/// A check of the probe. The names are stored and shown, so they must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckName {
    /// Are the homes and private directories of the host visible?
    Homes,
    /// Can files of other sessions be read?
    OtherSessions,
    /// Can a file be created outside of the writable places?
    WriteOutside,
    /// Are there variables that the request did not set, or the host's variables in `/proc`?
    Environment,
    /// Are there open descriptors other than the standard streams?
    Descriptors,
    /// Are there network devices other than the loopback, or any routes?
    Network,
    /// Can services on the host's loopback be reached?
    HostServices,
    /// Is there a route to the metadata address where clouds provide credentials?
    MetadataService,
    /// Is the socket of a container engine or of the system bus visible?
    EngineSockets,
    /// Is the daemon, or any other process of the host, visible?
    HostProcesses,
    /// Can a process outside be traced, or process 1 inside be signalled?
    Trace,
    /// Which namespaces are shared with the host?
    Namespaces,
    /// Does it share the host's kernel?
    Kernel,
    /// Which user and groups does it have, and is one of them root?
    User,
    Capabilities,
    NoNewPrivileges,
    /// Would a set-user-id program take effect?
    SetUserId,
    /// Is a system call filter installed, and are the dangerous calls refused?
    SystemCalls,
    /// Do Landlock's rules hold, where the kernel has Landlock?
    Landlock,
    /// Are there files in `/proc` and `/sys` that change the machine or show its memory?
    ProcEscapes,
    /// Are there devices that contain state of the machine?
    Devices,
    /// Can keys in the host's key rings be used?
    KeyRings,
    /// Can files of the server be read or written, by their paths or inside of shown directories?
    ServerFiles,
}

impl CheckName {
    pub const ALL: &[Self] = &[
        Self::Homes,
        Self::OtherSessions,
        Self::WriteOutside,
        Self::Environment,
        Self::Descriptors,
        Self::Network,
        Self::HostServices,
        Self::MetadataService,
        Self::EngineSockets,
        Self::HostProcesses,
        Self::Trace,
        Self::Namespaces,
        Self::Kernel,
        Self::User,
        Self::Capabilities,
        Self::NoNewPrivileges,
        Self::SetUserId,
        Self::SystemCalls,
        Self::Landlock,
        Self::ProcEscapes,
        Self::Devices,
        Self::KeyRings,
        Self::ServerFiles,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Homes => "homes",
            Self::OtherSessions => "other_sessions",
            Self::WriteOutside => "write_outside",
            Self::Environment => "environment",
            Self::Descriptors => "descriptors",
            Self::Network => "network",
            Self::HostServices => "host_services",
            Self::MetadataService => "metadata_service",
            Self::EngineSockets => "engine_sockets",
            Self::HostProcesses => "host_processes",
            Self::Trace => "trace",
            Self::Namespaces => "namespaces",
            Self::Kernel => "kernel",
            Self::User => "user",
            Self::Capabilities => "capabilities",
            Self::NoNewPrivileges => "no_new_privileges",
            Self::SetUserId => "set_user_id",
            Self::SystemCalls => "system_calls",
            Self::Landlock => "landlock",
            Self::ProcEscapes => "proc_escapes",
            Self::Devices => "devices",
            Self::KeyRings => "key_rings",
            Self::ServerFiles => "server_files",
        }
    }
}

impl fmt::Display for CheckName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One check with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: CheckName,
    /// The result that the requested level promises, for people.
    pub expected: String,
    /// The measured result, for people: the first few findings and their number.
    pub measured: String,
    pub pass: bool,
}

/// A limit of [`SandboxLimits`](crate::sandbox::SandboxLimits), and whether it is enforced here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The name of the field, such as `memory_bytes`.
    pub limit: String,
    /// The mechanism and its scope: `cgroup v1, for the whole tree`. `None`: it is not enforced.
    pub enforced_by: Option<String>,
    /// Why it is not enforced, or not for all processes; otherwise empty.
    pub remark: String,
}

/// The measured isolation of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attestation {
    /// Version of this record; 1.
    pub version: u32,
    pub driver: String,
    /// The level that the driver promises.
    pub asked: SandboxLevel,
    /// `asked` if every check passed, and otherwise [`SandboxLevel::None`]. There is nothing in
    /// between.
    pub achieved: SandboxLevel,
    pub at: Timestamp,
    /// Duration of the measurement in microseconds.
    pub took_us: u64,
    /// Release and build of the host's kernel.
    pub kernel: String,
    /// Identifies this boot of the host's kernel, because a measurement is valid only until the
    /// next boot. Empty if the kernel does not provide it.
    #[serde(default)]
    pub boot: String,
    /// Hash of the driver's configuration and program. Another hash means another sandbox.
    pub config: String,
    pub checks: Vec<Check>,
    pub bounds: Vec<Bound>,
}

impl Attestation {
    pub const VERSION: u32 = 1;

    /// Returns the checks with a weaker result than the level promises.
    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.pass)
    }

    /// Returns the digest that is signed and that identifies the record: a BLAKE3 of its JSON with
    /// a prefix of its own, so that no other signed digest can be mistaken for one.
    pub fn digest(&self) -> [u8; 32] {
        let text = serde_json::to_vec(self).expect("plain data has a JSON form");
        blake3::derive_key("overmind sandbox attestation v1", &text)
    }
}

/// An attestation with the daemon's signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attested {
    pub attestation: Attestation,
    /// [`Attestation::digest`] in hexadecimal.
    pub digest: String,
    /// The signature; `None` if the driver was created without a [`Notary`], as by one-off
    /// commands.
    pub signature: Option<Signature>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// Fingerprint of the public key.
    pub signer: String,
    /// The signature in hexadecimal.
    pub signature: String,
}

/// Signs a digest.
pub type Sign = dyn Fn(&[u8; 32]) -> Vec<u8> + Send + Sync;

/// The signer of attestations. In the daemon, it uses the store's key for checkpoints.
#[derive(Clone)]
pub struct Notary {
    /// Fingerprint of the public key, as `audit verify` shows it.
    pub signer: String,
    /// Signs a digest. It must not block for long, because a command waits for it.
    pub sign: Arc<Sign>,
}

impl fmt::Debug for Notary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Notary").field(&self.signer).finish()
    }
}

impl Attested {
    pub fn new(attestation: Attestation, notary: Option<&Notary>) -> Self {
        let digest = attestation.digest();
        let signature = notary.map(|notary| Signature {
            signer: notary.signer.clone(),
            signature: hex(&(notary.sign)(&digest)),
        });
        Self { attestation, digest: hex(&digest), signature }
    }

    /// Returns the validity of the signature. `known` returns whether a signer is trusted, and
    /// `verify` whether that signer's key made the signature of a digest.
    pub fn seal(
        &self,
        known: impl FnOnce(&str) -> bool,
        verify: impl FnOnce(&str, &[u8; 32], &[u8]) -> bool,
    ) -> Seal {
        if self.digest != hex(&self.attestation.digest()) {
            return Seal::Broken;
        }
        match &self.signature {
            None => Seal::Unsigned,
            Some(signature) if !known(&signature.signer) => Seal::UnknownKey,
            Some(_) if self.holds(verify) => Seal::Holds,
            Some(_) => Seal::Broken,
        }
    }

    /// Returns whether the record is the one that was signed. `verify` gets signer, digest and
    /// signature, and returns whether that key made the signature.
    pub fn holds(&self, verify: impl FnOnce(&str, &[u8; 32], &[u8]) -> bool) -> bool {
        let digest = self.attestation.digest();
        let Some(signature) = &self.signature else { return false };
        let Some(bytes) = unhex(&signature.signature) else { return false };
        self.digest == hex(&digest) && verify(&signature.signer, &digest, &bytes)
    }
}

/// A session's reference to the measurement of its sandbox: the digest and a summary of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttestationRef {
    /// [`Attested::digest`].
    pub digest: String,
    /// The level that was requested.
    pub asked: SandboxLevel,
    /// The level that was proved. [`SandboxLevel::None`] means no isolation.
    pub achieved: SandboxLevel,
    pub at: Timestamp,
    /// Fingerprint of the key that signed the record; `None` if it is not signed.
    pub signer: Option<String>,
}

impl From<&Attested> for AttestationRef {
    fn from(attested: &Attested) -> Self {
        let Attestation { asked, achieved, at, .. } = attested.attestation;
        let signer = attested.signature.as_ref().map(|signature| signature.signer.clone());
        Self { digest: attested.digest.clone(), asked, achieved, at, signer }
    }
}

/// The validity of a stored record's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seal {
    /// A trusted key signed exactly this record.
    Holds,
    /// The record is not signed.
    Unsigned,
    /// The record is signed with a key that is not trusted.
    UnknownKey,
    /// The record, its digest or its signature was changed.
    Broken,
}

impl Seal {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Unsigned => "unsigned",
            Self::UnknownKey => "unknown_key",
            Self::Broken => "broken",
        }
    }
}

/// A stored record, and the validity of its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub attested: Attested,
    pub seal: Seal,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attestation() -> Attestation {
        Attestation {
            version: Attestation::VERSION,
            driver: "namespace".to_owned(),
            asked: SandboxLevel::Namespace,
            achieved: SandboxLevel::Namespace,
            at: Timestamp::from_micros(1),
            took_us: 2,
            kernel: "6.1".to_owned(),
            boot: "b".to_owned(),
            config: "c".to_owned(),
            checks: vec![Check {
                name: CheckName::Network,
                expected: "none".to_owned(),
                measured: "none".to_owned(),
                pass: true,
            }],
            bounds: Vec::new(),
        }
    }

    /// A test replacement for a key pair: the same key signs and verifies.
    fn notary() -> Notary {
        let sign = |digest: &[u8; 32]| blake3::keyed_hash(&[7; 32], digest).as_bytes().to_vec();
        Notary { signer: "seven".to_owned(), sign: Arc::new(sign) }
    }

    fn verify(signer: &str, digest: &[u8; 32], signature: &[u8]) -> bool {
        signer == "seven" && (notary().sign)(digest) == signature
    }

    #[test]
    fn a_signed_record_verifies_after_a_round_trip_and_not_after_a_change() {
        let signed = Attested::new(attestation(), Some(&notary()));
        assert!(signed.holds(verify));
        let text = serde_json::to_string(&signed).unwrap();
        let mut back: Attested = serde_json::from_str(&text).unwrap();
        assert_eq!(back, signed);
        assert!(back.holds(verify));
        back.attestation.checks[0].pass = false;
        assert!(!back.holds(verify), "the digest is another one");
        back.digest = hex(&back.attestation.digest());
        assert!(!back.holds(verify), "and nobody signed that one");
    }

    #[test]
    fn verification_distinguishes_an_unknown_key_a_changed_record_and_no_signature() {
        let known = |signer: &str| signer == "seven";
        let signed = Attested::new(attestation(), Some(&notary()));
        assert_eq!(signed.seal(known, verify), Seal::Holds);
        assert_eq!(signed.seal(|_| false, verify), Seal::UnknownKey);
        assert_eq!(Attested::new(attestation(), None).seal(known, verify), Seal::Unsigned);
        let mut changed = signed.clone();
        changed.attestation.achieved = SandboxLevel::Microvm;
        assert_eq!(changed.seal(known, verify), Seal::Broken);
        let mut renamed = signed.clone();
        renamed.digest = "0".repeat(64);
        assert_eq!(renamed.seal(known, verify), Seal::Broken);
        let mut forged = signed;
        forged.signature.as_mut().unwrap().signature = "00".repeat(64);
        assert_eq!(forged.seal(known, verify), Seal::Broken);
    }

    #[test]
    fn without_a_signing_key_no_record_verifies() {
        let unsigned = Attested::new(attestation(), None);
        assert!(!unsigned.holds(|_, _, _| true));
    }

    #[test]
    fn a_check_has_the_same_name_in_json_as_elsewhere() {
        for name in CheckName::ALL {
            assert_eq!(serde_json::to_string(name).unwrap(), format!("\"{}\"", name.as_str()));
        }
        assert_eq!(CheckName::ALL.len(), CheckName::ServerFiles as usize + 1, "all are listed");
    }

    #[test]
    fn an_invalid_signature_does_not_verify() {
        let mut signed = Attested::new(attestation(), Some(&notary()));
        for text in ["x", "zz", "ü1", ""] {
            signed.signature.as_mut().unwrap().signature = text.to_owned();
            assert!(!signed.holds(verify), "{text}");
        }
    }
}
