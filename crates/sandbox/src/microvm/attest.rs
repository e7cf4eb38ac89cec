//! Measures a virtual machine with the probe.
//!
//! The record combines two measurements: the sandbox around the emulator must meet the guarantees
//! of the level `namespace` on the host, and a machine is started in which the probe runs as a
//! command would. The machine's first process adds the devices that the emulator gave to it
//! ([`super::given`]).

use std::path::Path;
use std::sync::Arc;

use overmind_core::attest::{Attestation, Attested, Bound};
use overmind_core::sandbox::{Captured, SandboxError, SandboxLevel, SandboxResult};

use crate::attest::{Inquiry, Traps};
use crate::microvm::guest::{Answer, What};
use crate::microvm::machine::Machine;
use crate::microvm::{Execution, Microvm, Prepared, Ran, failed, not_booted};
use crate::namespace::WRITABLE;

/// A defect of a machine, made by a test.
#[cfg(feature = "mutations")]
#[derive(Clone, Debug)]
pub enum Mutation {
    /// The emulator gets a network card, a disk and one more directory of the host.
    MoreDevices,
    /// The shared root is writable.
    WritableRoot,
    /// The sandbox in the guest lacks a layer.
    Inside(crate::Mutation),
    /// The sandbox around the emulator lacks a layer.
    Around(crate::Mutation),
}

impl Microvm {
    /// A driver whose machines lack one layer, to test that it is refused.
    #[cfg(feature = "mutations")]
    pub fn broken(options: super::Options, outer: crate::Options, mutation: Mutation) -> Self {
        let mut driver = Self::new(options, outer.clone());
        if let Mutation::Around(layer) = &mutation {
            let mut with_kvm = outer.clone();
            with_kvm.devices.push(driver.options.kvm.clone());
            driver.around = crate::Namespace::broken(outer, layer.clone());
            driver.around_kvm = crate::Namespace::broken(with_kvm, layer.clone());
        }
        Self { mutation: Some(mutation), ..driver }
    }

    /// The attestation of this driver, or the refusal.
    pub(super) async fn attested(&self) -> Result<Arc<Attested>, SandboxError> {
        let execution = self.execution().await?;
        let image = self.image()?;
        let Prepared { version, agent } = self.prepared().await?;
        let all = format!(
            "{} {} {version:?} {execution:?} {agent:?} {:?}",
            self.around(execution.accelerator()).config(),
            image.manifest.hash,
            self.options.program
        );
        let config = blake3::hash(all.as_bytes()).to_hex()[..32].to_owned();
        let notary = self.outer.notary.as_ref();
        self.attestations
            .get(&config, notary, Box::pin(self.measure(config.clone(), &execution)))
            .await
    }

    async fn measure(
        &self,
        config: String,
        execution: &Execution,
    ) -> Result<Attestation, SandboxError> {
        self.around(execution.accelerator()).attested().await?;
        let crate::Options { private, private_files, sockets, read_only, .. } = &self.outer;
        let inquiry = Inquiry::begin(SandboxLevel::Microvm, private, sockets, WRITABLE)?
            .with(|traps| traps.and_files(private_files).except(read_only))
            .with(Traps::by_name);
        let Ran { outcome, heard, shown: _ } =
            self.run_order(&inquiry.request, self.what(), None).await?;
        let (end, stdout, stderr, machine) = match heard.answer {
            Some(Answer::Probed { end, stdout, stderr, machine }) => (end, stdout, stderr, machine),
            Some(Answer::BadConfig { code, message }) => {
                return Err(SandboxError::BadConfig { code, message });
            }
            Some(Answer::Failed(message)) => return Err(failed(message)),
            Some(Answer::Ended { .. }) => {
                return Err(failed("the guest did not say what it was given".to_owned()));
            }
            None => return Err(not_booted(outcome)),
        };
        let result = SandboxResult {
            exit: end.into(),
            stdout: Captured::from(stdout),
            stderr: Captured::from(stderr),
            elapsed: outcome.elapsed,
            level: SandboxLevel::Microvm,
            shown_as: None,
        };
        inquiry.conclude(&result, Some(machine), config, bounds(execution))
    }

    /// The emulator's command line, as configured in the driver.
    pub(super) fn emulator(
        &self,
        machine: &Machine<'_>,
        picture: Option<&Path>,
        writable: bool,
    ) -> Vec<String> {
        #[cfg_attr(not(feature = "mutations"), expect(unused_mut, reason = "tests add to it"))]
        let mut words = machine.run(picture, writable);
        #[cfg(feature = "mutations")]
        self.mutate(&mut words);
        words
    }

    #[cfg(not(feature = "mutations"))]
    #[expect(clippy::unused_self, reason = "what stands here in tests uses it")]
    fn what(&self) -> What {
        What::Probe {}
    }

    #[cfg(feature = "mutations")]
    fn what(&self) -> What {
        let mutation = match &self.mutation {
            Some(Mutation::Inside(mutation)) => Some(mutation.clone()),
            Some(Mutation::MoreDevices | Mutation::WritableRoot | Mutation::Around(_)) | None => {
                None
            }
        };
        What::Probe { mutation }
    }

    #[cfg(feature = "mutations")]
    fn mutate(&self, words: &mut Vec<String>) {
        let more = match &self.mutation {
            Some(Mutation::MoreDevices) => {
                "-nic user,model=e1000,restrict=on \
                 -drive if=none,id=more,format=raw,file=/etc/passwd,readonly=on \
                 -device virtio-blk-pci,drive=more \
                 -fsdev local,id=more,path=/etc,security_model=none,readonly=on \
                 -device virtio-9p-pci,fsdev=more,mount_tag=more"
            }
            Some(Mutation::WritableRoot) => {
                for word in words.iter_mut().filter(|word| word.contains("id=root,path=/")) {
                    *word = word.replace(",readonly=on", "");
                }
                return;
            }
            Some(Mutation::Inside(_) | Mutation::Around(_)) | None => return,
        };
        words.extend(more.split_whitespace().map(str::to_owned));
    }
}

/// The limits of a request that are enforced, with the mechanism of each.
fn bounds(execution: &Execution) -> Vec<Bound> {
    let by = |limit: &str, text: &str, remark: &str| Bound {
        limit: limit.to_owned(),
        enforced_by: Some(text.to_owned()),
        remark: remark.to_owned(),
    };
    vec![
        by("memory_bytes", "rlimit, for each process", "and the machine's size, for all of them"),
        by("cpus", "the machine's processors", &format!("whole ones, rounded up; {execution}")),
        by("pids", "rlimit, for the whole tree", ""),
        by("tmp_bytes", "size of the file system in memory", ""),
        by("file_bytes", "rlimit, for each file", ""),
        by("open_files", "rlimit, for each process", ""),
        by("output_bytes", "the driver", ""),
        by("timeout", "the driver, for the whole machine", ""),
    ]
}
