//! Tests whether KVM can run a processor here, by running one.
//!
//! It is not enough that the device can be opened. The sandbox around the emulator may hide it, a
//! user may lack the group, and emulator and kernel may disagree on a processor model. On machines
//! that are guests themselves, some KVMs interpret each instruction: a kernel then takes minutes to
//! boot, and emulation is faster. So a machine without a kernel is started like any other, in the
//! same sandbox and with the same processor model. Its firmware counts down and switches it off.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use overmind_core::sandbox::{Exit, SandboxError};

use crate::init::spec::{Kind, Program, Spec};
use crate::launch::Ended;
use crate::microvm::machine::{Accelerator, Size, TRIAL_CODE, trial};
use crate::microvm::{Acceleration, Microvm, bounds, environment, unavailable};

/// The time limit. A processor needs a fiftieth of it for the countdown, an emulated one a tenth.
const LONGEST: Duration = Duration::from_secs(5);
/// The time after which a failed test is repeated, so that changes of the machine take effect.
const FAILURE_HOLDS: Duration = Duration::from_secs(600);
/// The size of the test's machine.
const SIZE: Size = Size { memory_mib: 64, processors: 1 };
/// Maximum number of bytes of the emulator's error message that are shown.
const COMPLAINT: usize = 400;

/// The mechanism that runs the guests' instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Execution {
    /// The processor itself.
    Kvm,
    /// The emulator, and the reason why not the processor.
    Emulated { why: String },
}

impl std::fmt::Display for Execution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kvm => f.write_str("guests are run by the processor (KVM)"),
            Self::Emulated { why } => write!(f, "guests are EMULATED, which is slow: {why}"),
        }
    }
}

impl Execution {
    pub(super) fn accelerator(&self) -> Accelerator {
        match self {
            Self::Kvm => Accelerator::Kvm,
            Self::Emulated { .. } => Accelerator::Emulation,
        }
    }
}

/// The result of the last test.
#[derive(Debug)]
pub(super) struct Tried {
    /// The tested device; another device or other permissions are tested again.
    device: Device,
    at: Instant,
    /// The reason why KVM does not run guests.
    outcome: Result<(), String>,
}

/// A device with the properties that decide who may open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    inode: (u64, u64),
    number: u64,
    mode: u32,
    owner: (u32, u32),
    changed: (i64, i64),
}

impl Microvm {
    /// The mechanism that runs the guests of this driver; tested at the first call.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Unavailable`] if the options require KVM and it runs no guest here, or if
    /// there is no emulator.
    pub async fn execution(&self) -> Result<Execution, SandboxError> {
        if self.options.acceleration == Acceleration::Emulation {
            return Ok(Execution::Emulated { why: "the configuration asks for it".to_owned() });
        }
        match (self.try_kvm().await?, self.options.acceleration) {
            (Ok(()), _) => Ok(Execution::Kvm),
            (Err(why), Acceleration::KvmOrEmulation | Acceleration::Emulation) => {
                Ok(Execution::Emulated { why })
            }
            (Err(why), Acceleration::Kvm) => Err(unavailable(
                "kvm_unusable",
                format!("KVM cannot be used: {why}"),
                "let the user of commands open the device (group kvm, or its mode) on a machine \
                 whose processor KVM runs, or set sandbox.microvm_emulation to yes and accept \
                 that commands run much slower",
            )),
        }
    }

    /// Tests KVM. The outer result is for errors that have nothing to do with KVM.
    async fn try_kvm(&self) -> Result<Result<(), String>, SandboxError> {
        let path = &self.options.kvm;
        let device = match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_char_device() => Device {
                inode: (found.dev(), found.ino()),
                number: found.rdev(),
                mode: found.mode(),
                owner: (found.uid(), found.gid()),
                changed: (found.ctime(), found.ctime_nsec()),
            },
            Ok(_) => return Ok(Err(format!("{} is no device", path.display()))),
            Err(err) => return Ok(Err(format!("{}: {err}", path.display()))),
        };
        let mut tried = self.tried.lock().await;
        if let Some(tried) = tried.as_ref()
            && tried.device == device
            && (tried.outcome.is_ok() || tried.at.elapsed() < FAILURE_HOLDS)
        {
            return Ok(tried.outcome.clone());
        }
        let outcome = self.run_trial().await?;
        if let Err(why) = &outcome {
            tracing::warn!(why, "KVM runs no microvm here");
        }
        *tried = Some(Tried { device, at: Instant::now(), outcome: outcome.clone() });
        Ok(outcome)
    }

    async fn run_trial(&self) -> Result<Result<(), String>, SandboxError> {
        // A missing emulator is not an error of KVM.
        self.version().await?;
        let spec = Spec {
            kind: Kind::Namespace {
                read_only: self.outer.read_only.clone(),
                devices: self.devices(Accelerator::Kvm),
                program: Program::Command,
                living: None,
            },
            argv: trial(&self.options.program),
            env: environment(),
            home: Vec::new(),
            // This directory certainly exists; the test needs nothing in it.
            workspace: PathBuf::from("/usr"),
            writable: None,
            cwd: PathBuf::new(),
            private_home: None,
            also_at: None,
            masks: Vec::new(),
            secrets: Vec::new(),
            fixed: crate::repository::Fixed::default(),
            terminal: false,
            limits: bounds(SIZE, 1 << 20),
            #[cfg(feature = "mutations")]
            mutation: None,
        };
        let outcome = self.launch(&spec, &[], 16 << 10, None, LONGEST).await?;
        let words = complaint(&outcome.stderr.text);
        Ok(match outcome.ended {
            Ended::Exit(Exit::Code(TRIAL_CODE)) => Ok(()),
            Ended::Exit(Exit::TimedOut) => Err(format!(
                "{} does not run this processor's instructions at its speed: what takes a \
                 processor less than {} ms was not done in {} s",
                self.options.kvm.display(),
                LONGEST.as_millis() / 50,
                LONGEST.as_secs()
            )),
            Ended::Exit(exit) => {
                let how = match exit {
                    Exit::Code(code) => format!("code {code}"),
                    Exit::Signal(signal) => format!("signal {signal}"),
                    Exit::TimedOut => "the end of its time".to_owned(),
                };
                Err(format!("in its sandbox the emulator ended with {how}: {words}"))
            }
            Ended::BadConfig(message) => Err(message),
            // The sandbox itself cannot be made, with or without KVM.
            Ended::Refused { .. } | Ended::Silent => {
                return match crate::namespace::into_result(
                    outcome,
                    overmind_core::sandbox::SandboxLevel::Namespace,
                ) {
                    Err(err) => Err(err),
                    Ok(_) => Ok(Err("the emulator's sandbox gave no answer".to_owned())),
                };
            }
        })
    }
}

/// The emulator's last error output, on one line.
fn complaint(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut text = lines[lines.len().saturating_sub(3)..].join("; ");
    text.truncate(text.floor_char_boundary(COMPLAINT));
    if text.is_empty() { "without a word".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_is_the_last_lines_joined() {
        assert_eq!(complaint("a\n\n b \nc\nd\n"), "b; c; d");
        assert_eq!(complaint(" \n"), "without a word");
        assert!(complaint(&"ü".repeat(1000)).len() <= COMPLAINT);
    }
}
