//! The refusal if a sandbox does not meet the guarantees of its level, with instructions.

use overmind_core::attest::{Attestation, Check, CheckName};
use overmind_core::sandbox::SandboxError;

/// The code of a refusal because of a measurement.
pub const NOT_ATTESTED: &str = "sandbox_not_attested";

/// Turns a broken guarantee into the refusal that `run` and `attest` return.
///
/// # Errors
///
/// [`SandboxError::Unavailable`] names each failed check with the expected and the found state.
pub fn refuse_unless_kept(attestation: &Attestation) -> Result<(), SandboxError> {
    let failed: Vec<&Check> = attestation.failed().collect();
    let Some(first) = failed.first() else { return Ok(()) };
    let told: Vec<String> = failed
        .iter()
        .map(|c| format!("{} (expected: {}; found: {})", c.name, c.expected, c.measured))
        .collect();
    let names: Vec<&str> = failed.iter().map(|check| check.name.as_str()).collect();
    Err(SandboxError::Unavailable {
        code: NOT_ATTESTED.to_owned(),
        message: format!(
            "the {} sandbox does not pass its checks on this machine: {}",
            attestation.driver,
            told.join("; ")
        ),
        reason: format!("attestation_failed: {}", names.join(", ")),
        remedy: remedy(first.name).to_owned(),
    })
}

/// Tells the user what to check after a failure.
pub fn remedy(name: CheckName) -> &'static str {
    match name {
        CheckName::Homes | CheckName::OtherSessions => {
            "see which directory is shown: the sandbox's read_only list, or an engine that mounts \
             more than it is asked to"
        }
        CheckName::WriteOutside => {
            "see which mount is writable in there, and report it: each is meant to be read-only"
        }
        CheckName::Environment => {
            "see what stands between the daemon and the sandbox and adds variables (a wrapper \
             around the program, a proxy setting of the engine)"
        }
        CheckName::ServerFiles => {
            "see which directory shows the server's files: the sandbox's read_only list, an engine \
             that mounts more than it is asked to, or a bind mount of the data directory; report \
             it if there is none"
        }
        CheckName::Descriptors => {
            "see what opened it in the daemon without close-on-exec (a preloaded library?)"
        }
        CheckName::Network | CheckName::HostServices | CheckName::MetadataService => {
            "see whether the kernel has network namespaces, and whether the engine adds a network \
             to every container"
        }
        CheckName::EngineSockets => "take the socket out of what is shown",
        CheckName::HostProcesses | CheckName::Trace | CheckName::Namespaces => {
            "see whether the kernel has all namespaces, and whether the engine is told to share \
             the host's (userns-remap, pid=host)"
        }
        CheckName::Kernel => "see whether the machine really started a guest",
        CheckName::User => "give a user that is not root: run_as, or the docker sandbox's user",
        CheckName::Capabilities | CheckName::NoNewPrivileges | CheckName::SetUserId => {
            "see whether the engine is told to add privileges to every container"
        }
        CheckName::SystemCalls | CheckName::KeyRings => {
            "see whether the kernel has CONFIG_SECCOMP_FILTER and the engine its default profile"
        }
        CheckName::Landlock => {
            "see whether the boot option lsm= leaves landlock out although the kernel has it"
        }
        CheckName::ProcEscapes | CheckName::Devices => {
            "see whether the engine runs containers privileged or with systempaths=unconfined"
        }
    }
}
