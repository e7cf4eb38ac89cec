//! Whether KVM runs a processor here: found out by letting it.
//!
//! That a device can be opened says little. The sandbox around the emulator may keep it away, a
//! user may have lost the group on the way in, a processor's model may be one that the emulator
//! and the kernel do not agree on, and on machines that are guests themselves there are KVMs that
//! interpret each instruction: there a kernel needs minutes to boot, and emulation is faster. So a
//! machine without a kernel is started as every machine is, in the same sandbox and with the same
//! model of a processor. Its firmware counts down and switches it off.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use overmind_core::sandbox::{Exit, SandboxError};

use crate::init::spec::{Kind, Program, Spec};
use crate::launch::Ended;
use crate::microvm::machine::{Accelerator, Size, TRIAL_CODE, trial};
use crate::microvm::{Acceleration, Microvm, bounds, environment, unavailable};

/// A processor needs a fiftieth of it for the countdown, an emulated one a tenth.
const LONGEST: Duration = Duration::from_secs(5);
/// After a failure KVM is tried again: what a busy machine or a person changes takes effect.
const FAILURE_HOLDS: Duration = Duration::from_secs(600);
/// The machine of the trial.
const SIZE: Size = Size { memory_mib: 64, processors: 1 };
/// What is told of the emulator's complaint, in bytes.
const COMPLAINT: usize = 400;

/// What runs the guests' instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Execution {
    /// The processor itself.
    Kvm,
    /// The emulator, and why not the processor.
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

/// What came of the last trial.
#[derive(Debug)]
pub(super) struct Tried {
    /// The device that was there: another one, or other rights, are tried anew.
    device: Device,
    at: Instant,
    /// Why KVM does not run guests.
    outcome: Result<(), String>,
}

/// A device by what decides who may open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    inode: (u64, u64),
    number: u64,
    mode: u32,
    owner: (u32, u32),
    changed: (i64, i64),
}

impl Microvm {
    /// What runs the guests of this driver; tried when it is first asked.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Unavailable`] where the options want KVM and nothing else, and KVM runs no
    /// guest here; or where there is no emulator at all.
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

    /// The outer result is for what has nothing to do with KVM.
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
        // A missing emulator is no fault of KVM's.
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
            // One that is certainly there; nothing of it is needed.
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
            // The sandbox itself cannot be made, with KVM or without.
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

/// The emulator's last words on one line.
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
    fn a_complaint_is_its_last_lines_on_one() {
        assert_eq!(complaint("a\n\n b \nc\nd\n"), "b; c; d");
        assert_eq!(complaint(" \n"), "without a word");
        assert!(complaint(&"ü".repeat(1000)).len() <= COMPLAINT);
    }
}
