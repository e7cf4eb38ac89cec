//! Builds the emulator's command line, without side effects.
//!
//! A restored machine must have exactly the devices of the one whose snapshot was taken, so both
//! use [`Machine::devices`]; only the targets of the ports differ.

use std::path::Path;

use overmind_core::sandbox::SandboxLimits;

use crate::microvm::image::Image;

/// The mechanism that executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    Kvm,
    Emulation,
}

pub(crate) struct Machine<'a> {
    pub(crate) program: &'a Path,
    pub(crate) accelerator: Accelerator,
    pub(crate) image: &'a Image,
    /// The path of the guest's first program, inside of the guest.
    pub(crate) agent: &'a Path,
    pub(crate) size: Size,
}

/// The size of a machine; machines of one size share a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Size {
    pub(crate) memory_mib: u64,
    pub(crate) processors: u32,
}

/// Memory that the guest's kernel and first program need besides the command.
const GUEST_MIB: u64 = 192;
const STEP_MIB: u64 = 128;
/// More processors would be emulated one after the other anyway.
const MOST_PROCESSORS: f64 = 8.0;
/// Memory for translated code. The emulator's own default is a gigabyte.
const TRANSLATED_MIB: u64 = 128;
/// Memory that the emulator needs besides the guest's memory and its translations.
const EMULATOR_MIB: u64 = 768;

impl Size {
    /// The size for the command, its `/tmp`, and the guest itself.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 8")]
    pub(crate) fn of(limits: &SandboxLimits) -> Self {
        let wanted = limits.memory_bytes.saturating_add(limits.tmp_bytes).div_ceil(1 << 20);
        let memory_mib = wanted.saturating_add(GUEST_MIB).min(1 << 30).next_multiple_of(STEP_MIB);
        let processors = limits.cpus.ceil().clamp(1.0, MOST_PROCESSORS) as u32;
        Self { memory_mib, processors }
    }

    /// The limit of the emulator's own memory.
    pub(crate) fn emulator_bytes(self) -> u64 {
        (self.memory_mib + TRANSLATED_MIB + EMULATOR_MIB) << 20
    }
}

/// Replaces a shell by the emulator, with descriptors instead of files that must be cleaned up or
/// paths that could be replaced: 5 takes answers, 6 the console.
const RUN: &str = r#"exec "$0" "$@" 5>&1 6>&2"#;
/// The same, with the snapshot at 7.
const RESTORE: &str = r#"picture=$1; shift; exec "$0" "$@" 5>&1 6>&2 7<"$picture""#;
/// Starts a machine, takes its snapshot while it waits for an order, and ends it.
const TAKE: &str = r#"
{
    until grep -q overmind-guest-ready /tmp/console 2>/dev/null; do
        [ -e /tmp/over ] && exit
        sleep 0.05
    done
    echo 'migrate_set_parameter max-bandwidth 100G'
    echo 'migrate "exec:cat > /workspace/picture"'
    echo 'info migrate'
    echo quit
} | {
    "$0" "$@"
    echo over >/tmp/over
    cat /tmp/console >&2
}"#;

/// Starts a machine whose firmware consists of its last sixteen bytes, where a processor begins: it
/// counts down from fifty million and writes to the port that ends the emulator. A real processor
/// needs some 20 ms for it.
const TRY: &str = r#"
{
    head -c 65520 /dev/zero
    printf '\146\271\200\360\372\002\146\111\165\374\260\020\346\364\353\376'
} >/tmp/firmware
exec "$0" "$@""#;
/// The exit code of the emulator when the firmware has finished: twice the written value plus one.
pub(crate) const TRIAL_CODE: i32 = 33;

/// The emulator's own filter: it cannot start programs or change its own privileges.
const FILTER: &str =
    "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// The options that all machines share.
const BARE: &str = "-nodefaults -no-user-config -no-reboot -display none -M pc,usb=off,vmport=off";

/// The command line that tests whether KVM runs a processor of the guests' model.
pub(crate) fn trial(program: &Path) -> Vec<String> {
    let (accelerator, processor) = Accelerator::Kvm.words();
    let more = "-m 64 -monitor none -bios /tmp/firmware \
                -device isa-debug-exit,iobase=0xf4,iosize=1";
    let texts = [BARE, "-accel", &accelerator, "-cpu", processor, more, FILTER];
    let words = texts.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned);
    begin(TRY, program).into_iter().chain(words).collect()
}

fn begin(script: &str, program: &Path) -> Vec<String> {
    ["/bin/sh", "-c", script, &program.display().to_string()].map(str::to_owned).to_vec()
}

impl Accelerator {
    /// The accelerator, and the model of the processor.
    fn words(self) -> (String, &'static str) {
        match self {
            // These features are disabled: nested virtual machines, which make a large part of the
            // host's kernel reachable; and a register of Intel's that kernels offer on AMD's
            // processors but then refuse to set.
            Self::Kvm => ("kvm".to_owned(), "host,-vmx,-svm,-arch-capabilities"),
            Self::Emulation => (format!("tcg,tb-size={TRANSLATED_MIB}"), "max"),
        }
    }
}

impl Machine<'_> {
    /// All options that must be equal for two machines to share a snapshot.
    fn devices(&self) -> Vec<String> {
        let (accelerator, processor) = self.accelerator.words();
        let append = format!(
            "console=ttyS0 quiet loglevel=3 panic=-1 reboot=k audit=0 mitigations=off \
             overmind.agent={} rdinit=/init",
            self.agent.display()
        );
        let texts = [
            BARE,
            "-accel",
            &accelerator,
            "-cpu",
            processor,
            "-m",
            &self.size.memory_mib.to_string(),
            "-smp",
            &self.size.processors.to_string(),
        ];
        let mut words: Vec<String> =
            texts.iter().flat_map(|text| text.split(' ')).map(str::to_owned).collect();
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("-kernel", self.image.kernel().display().to_string());
        option("-initrd", self.image.initrd().display().to_string());
        option("-append", append);
        for device in [
            "virtio-9p-pci,fsdev=root,mount_tag=root",
            "virtio-9p-pci,fsdev=workspace,mount_tag=workspace",
            "virtio-serial-pci,id=ports,max_ports=4",
            "virtserialport,bus=ports.0,chardev=in,name=overmind.in",
            "virtserialport,bus=ports.0,chardev=out,name=overmind.out",
        ] {
            option("-device", device.to_owned());
        }
        option("-serial", "chardev:console".to_owned());
        words
    }

    /// Distinguishes snapshots of different machines. `version` is the emulator's.
    pub(crate) fn fingerprint(&self, version: &str) -> String {
        // Under KVM a machine has the features of the host's processor and kernel.
        let host = match self.accelerator {
            Accelerator::Kvm => this_processor(),
            Accelerator::Emulation => String::new(),
        };
        let program = self.program.display();
        let text = format!("{version}\n{program}\n{}\n{host}", self.devices().join("\n"));
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }

    /// The command line for one order; it starts from a snapshot if there is one.
    pub(crate) fn run(&self, picture: Option<&Path>, writable: bool) -> Vec<String> {
        let mut words = begin(picture.map_or(RUN, |_| RESTORE), self.program);
        words.extend(picture.map(|path| path.display().to_string()));
        words.extend(self.devices());
        let workspace = if writable { "" } else { ",readonly=on" };
        let more = [
            "-monitor none",
            "-chardev stdio,id=in,signal=off",
            "-chardev file,id=out,path=/dev/fdset/5,append=on -add-fd fd=5,set=5",
            "-chardev file,id=console,path=/dev/fdset/6,append=on -add-fd fd=6,set=6",
            "-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
            &format!(
                "-fsdev local,id=workspace,path=/workspace,security_model=none,multidevs=remap\
                 {workspace}"
            ),
            FILTER,
            if picture.is_some() { "-incoming fd:7" } else { "" },
        ];
        words.extend(more.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned));
        words
    }

    /// The command line that takes the snapshot into the workspace.
    pub(crate) fn take_picture(&self) -> Vec<String> {
        let mut words = begin(TAKE, self.program);
        words.extend(self.devices());
        let more = "-monitor stdio -chardev null,id=in -chardev null,id=out \
                    -chardev file,id=console,path=/tmp/console \
                    -fsdev local,id=root,path=/tmp,security_model=none,readonly=on \
                    -fsdev local,id=workspace,path=/tmp,security_model=none,readonly=on";
        words.extend(more.split_whitespace().map(str::to_owned));
        words
    }

    /// A line for people that shows what runs, without paths that are not informative.
    pub(crate) fn shown(&self) -> String {
        let accelerator = match self.accelerator {
            Accelerator::Kvm => "kvm",
            Accelerator::Emulation => "tcg",
        };
        format!(
            "{} -M pc -accel {accelerator} -m {} -smp {} (kernel {}, no network) \
             '<redacted-command>'",
            self.program.file_name().unwrap_or_default().to_string_lossy(),
            self.size.memory_mib,
            self.size.processors,
            self.image.manifest.kernel
        )
    }
}

/// Identifies the host's processor and kernel, as far as a KVM guest can see them.
fn this_processor() -> String {
    let uname = rustix::system::uname();
    let kernel = uname.release().to_string_lossy().into_owned();
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = all.split("\n\n").next().unwrap_or_default();
    let telling = ["vendor_id", "cpu family", "model", "stepping", "microcode", "flags"];
    let lines = first.lines().filter(|line| {
        line.split_once(':').is_some_and(|(name, _)| telling.contains(&name.trim()))
    });
    lines.fold(kernel, |text, line| format!("{text}\n{line}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::microvm::image::Manifest;

    fn image() -> Image {
        let manifest =
            Manifest { hash: "h".into(), kernel: "6.1".into(), package: "p".into(), bytes: 1 };
        Image { dir: PathBuf::from("/i"), manifest }
    }

    fn machine<'a>(image: &'a Image, limits: &SandboxLimits) -> Machine<'a> {
        Machine {
            program: Path::new("/usr/bin/qemu"),
            accelerator: Accelerator::Emulation,
            image,
            agent: Path::new("/a"),
            size: Size::of(limits),
        }
    }

    #[test]
    fn a_virtual_machine_has_no_network_and_no_extra_devices() {
        let image = image();
        let machine = machine(&image, &SandboxLimits::default());
        for words in [machine.run(None, false), machine.run(Some(Path::new("/p")), true)] {
            let line = words.join(" ");
            for needed in ["-nodefaults", "-no-user-config", "-sandbox on,", "spawn=deny"] {
                assert!(line.contains(needed), "{needed} in {line}");
            }
            for unwanted in ["-net", "-nic", "virtio-net", "vsock", "-usb", "vnc", "-gdb"] {
                assert!(!line.contains(unwanted), "{unwanted} in {line}");
            }
        }
        assert!(
            machine
                .run(None, false)
                .join(" ")
                .contains("path=/workspace,security_model=none,multidevs=remap,readonly=on")
        );
        assert!(
            !machine
                .run(None, true)
                .join(" ")
                .contains("path=/workspace,security_model=none,multidevs=remap,readonly=on")
        );
    }

    #[test]
    fn machine_sizes_are_rounded_up_to_a_few_values() {
        let usual = SandboxLimits::default();
        assert_eq!(Size::of(&usual), Size { memory_mib: 512, processors: 1 });
        let more = SandboxLimits { memory_bytes: 1 << 30, cpus: 2.5, ..usual };
        assert_eq!(Size::of(&more), Size { memory_mib: 1280, processors: 3 });
        let silly = SandboxLimits { memory_bytes: u64::MAX, cpus: 1e9, ..usual };
        assert_eq!(Size::of(&silly).processors, 8);
    }

    #[test]
    fn snapshots_of_different_machines_have_different_names() {
        let image = image();
        let usual = machine(&image, &SandboxLimits::default());
        let more = SandboxLimits { memory_bytes: 1 << 30, ..SandboxLimits::default() };
        let names = [
            usual.fingerprint("7.2"),
            usual.fingerprint("8.0"),
            machine(&image, &more).fingerprint("7.2"),
            Machine { agent: Path::new("/b"), ..machine(&image, &more) }.fingerprint("7.2"),
        ];
        let different: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
    }
}
