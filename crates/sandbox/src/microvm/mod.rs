//! The `microvm` driver: one virtual machine per command, with a kernel of its own.
//!
//! [`Microvm::new`] is the entry point, and [`image::build`] makes the guest that it starts. Four
//! barriers separate a command from the host:
//!
//! 1. inside the guest it runs in the `namespace` sandbox: no privileges, a filter for system
//!    calls, limits, the same root as in that driver;
//! 2. the guest's own kernel;
//! 3. the emulator (QEMU: no network, no device but two shared directories, two ports and a
//!    console; its own filter is on, so it can start no program);
//! 4. the `namespace` sandbox of the host around the emulator, with KVM's device if it is used, and
//!    the workspace read-only except for the directory that the request names. A timeout, a dropped
//!    call and the end of the daemon end the machine as they end any command there, and nothing is
//!    left.
//!
//! The guest sees the host's programs as that outer sandbox shows them, so every level offers the
//! same tools, and the image contains only a kernel.
//!
//! Booting takes seconds. So the first machine of each size is stopped while it waits for an order,
//! and its snapshot is stored beside the image; later machines start from it. A snapshot contains
//! nothing of a command, because it was taken before there was one. A machine that starts from it
//! gets the current time and new randomness; its kernel's address layout is that of the snapshot.
//! If a machine does not start from its snapshot, machines of that size boot instead.
//!
//! Before the first command, and again when image, emulator, kernel or options have changed, a
//! machine is started whose command is the probe ([`crate::attest`]), and whose first process
//! reports the devices and shares that it was given. The sandbox around the emulator is measured
//! separately.
//!
//! Unused images, and snapshots and copies of the guest's program that were not used for a long
//! time, are removed when new ones are made.
//!
//! Limits: **acceleration** is KVM, tested before it is used ([`Execution`]); emulation is five to
//! fifty times slower and is used only if [`Options::acceleration`] allows it. **Processor share**
//! is whole processors, rounded up. **Memory** is limited per process and, by the machine's size,
//! in total. **Disk** is limited as in the `namespace` driver. `machine` is QEMU's `pc`: its
//! `microvm` type gives the distribution's kernel no clock under emulation, and no virtio devices
//! without ACPI. Only x86-64 is supported.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::attest::Attested;
use overmind_core::sandbox::{
    Exit, OutputSink, Sandbox, SandboxError, SandboxLevel, SandboxLimits, SandboxRequest,
    SandboxResult,
};
use tokio::sync::{Mutex, OnceCell, Semaphore};

use crate::init::spec::{Kind, Limits, Program, Spec};
use crate::launch::{self, Ended, Launch, Outcome};
use crate::microvm::guest::{Answer, What, message};
use crate::microvm::image::Image;
use crate::microvm::machine::{Accelerator, Machine, Size};
use crate::microvm::port::{Ear, Heard};
use crate::microvm::trial::Tried;
use crate::namespace::{self, into_result};
use crate::{diagnosis, hidden, repository, request};

mod attest;
mod cpio;
mod given;
pub(crate) mod guest;
pub mod image;
mod machine;
mod picture;
mod port;
mod prune;
mod trial;

#[cfg(feature = "mutations")]
pub use attest::Mutation;
pub use trial::Execution;

/// The allowed mechanisms for executing the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acceleration {
    /// Only the processor, through KVM.
    #[default]
    Kvm,
    /// KVM if a test shows that it runs guests, otherwise emulation.
    KvmOrEmulation,
    /// Emulation, even if KVM could be used.
    Emulation,
}

/// The configuration of the driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory for images, snapshots and the guest's program. The users of commands must be
    /// able to read it (see [`crate::Options::run_as`]).
    pub dir: PathBuf,
    /// The emulator.
    pub program: PathBuf,
    pub acceleration: Acceleration,
    /// The device of KVM.
    pub kvm: PathBuf,
    /// Whether machines start from snapshots; otherwise every machine boots.
    pub pictures: bool,
    /// Maximum number of machines that run at once; others wait.
    pub machines: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("/var/lib/overmind/microvm"),
            program: PathBuf::from("/usr/bin/qemu-system-x86_64"),
            acceleration: Acceleration::default(),
            kvm: PathBuf::from("/dev/kvm"),
            pictures: true,
            machines: 4,
        }
    }
}

/// The driver. It looks for its image at each call, so one that is built later is found.
#[derive(Debug)]
pub struct Microvm {
    options: Options,
    /// The options of the sandbox around the emulator.
    outer: namespace::Options,
    /// That sandbox as a driver of its own, for measurements: as emulation needs it, and with KVM's
    /// device.
    around: namespace::Namespace,
    around_kvm: namespace::Namespace,
    tried: Mutex<Option<Tried>>,
    version: OnceCell<String>,
    attestations: crate::attest::Keeper,
    #[cfg(feature = "mutations")]
    mutation: Option<Mutation>,
    places: Semaphore,
    prepared: OnceCell<Prepared>,
    /// Snapshots by name; `None` for one that could not be taken.
    pictures: Mutex<HashMap<String, Option<PathBuf>>>,
}

/// Values that are determined once.
#[derive(Clone, Debug)]
struct Prepared {
    /// The emulator's version, as it reports it.
    version: String,
    agent: PathBuf,
}

/// How long a guest may take to start: on the processor, and emulated on a busy machine.
const BOOT_KVM: Duration = Duration::from_secs(20);
const BOOT_EMULATED: Duration = Duration::from_secs(90);
/// The kept bytes of the guest's console, which shows why it did not start.
const WORDS: usize = 64 << 10;
/// How long the guest may take to report the result of a command that has ended.
const ANSWER: Duration = Duration::from_secs(10);

const UNAVAILABLE: &str = "microvm_unavailable";

fn unavailable(reason: &str, message: String, remedy: &str) -> SandboxError {
    SandboxError::Unavailable {
        code: UNAVAILABLE.to_owned(),
        message,
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    }
}

fn failed(message: String) -> SandboxError {
    SandboxError::Failed { level: SandboxLevel::Microvm.as_str(), message }
}

impl Microvm {
    /// `outer` are the options of the sandbox around the emulator; the guest shows what that shows.
    pub fn new(options: Options, outer: namespace::Options) -> Self {
        let mut with_kvm = outer.clone();
        with_kvm.devices.push(options.kvm.clone());
        Self {
            places: Semaphore::new(options.machines.max(1)),
            options,
            around: namespace::Namespace::new(outer.clone()),
            around_kvm: namespace::Namespace::new(with_kvm),
            tried: Mutex::new(None),
            version: OnceCell::new(),
            outer,
            attestations: crate::attest::Keeper::default(),
            #[cfg(feature = "mutations")]
            mutation: None,
            prepared: OnceCell::new(),
            pictures: Mutex::new(HashMap::new()),
        }
    }

    fn image(&self) -> Result<Image, SandboxError> {
        image::current(&self.options.dir).ok_or_else(|| {
            unavailable(
                "image_missing",
                format!("there is no microvm image in {}", self.options.dir.display()),
                "overmind sandbox image build microvm",
            )
        })
    }

    /// The emulator's version, as it reports it.
    async fn version(&self) -> Result<&str, SandboxError> {
        let version = self.version.get_or_try_init(|| async {
            version_of(&self.options.program).await.map_err(|err| {
                unavailable(
                    "qemu_missing",
                    format!("cannot start {}: {err}", self.options.program.display()),
                    "apt-get install qemu-system-x86",
                )
            })
        });
        version.await.map(String::as_str)
    }

    async fn prepared(&self) -> Result<&Prepared, SandboxError> {
        self.prepared
            .get_or_try_init(|| async {
                let version = self.version().await?.to_owned();
                let (dir, program) = (self.options.dir.clone(), self.outer.init_program.clone());
                let agent = tokio::task::spawn_blocking(move || image::place_agent(&dir, &program))
                    .await
                    .map_err(|err| failed(format!("placing the guest's program: {err}")))?
                    .map_err(|err| {
                        failed(format!(
                            "placing the guest's program in {}: {err}",
                            self.options.dir.display()
                        ))
                    })?;
                Ok(Prepared { version, agent })
            })
            .await
    }

    async fn run_request(
        &self,
        request: SandboxRequest,
        sink: Option<OutputSink>,
    ) -> Result<SandboxResult, SandboxError> {
        request::check(&request)?;
        self.attested().await?;
        let ran = self.run_order(&request, What::Command, sink).await?;
        judge(ran, request.limits.output_bytes)
    }

    /// Starts a machine with one order.
    async fn run_order(
        &self,
        request: &SandboxRequest,
        what: What,
        sink: Option<OutputSink>,
    ) -> Result<Ran, SandboxError> {
        let accelerator = self.execution().await?.accelerator();
        let image = self.image()?;
        let Prepared { version, agent } = self.prepared().await?;
        prune::mark_used(&image.dir.join(image::MANIFEST));
        self.keep_agent(agent).await?;
        let machine = Machine {
            program: &self.options.program,
            accelerator,
            image: &image,
            agent,
            size: Size::of(&request.limits),
        };
        let _place = self.places.acquire().await.expect("it is never closed");
        let mut picture = match self.options.pictures {
            true => self.picture(&machine, version).await,
            false => None,
        };
        let live = sink.is_some();
        // A character takes six bytes if JSON escapes it as a number, and there are two streams.
        let longest = request.limits.output_bytes.saturating_mul(12).saturating_add(64 << 10);
        let message = message(request, what, live)
            .map_err(|err| failed(format!("drawing the guest's random numbers: {err}")))?;
        loop {
            let ear = Ear::new(longest, sink.clone());
            let outcome =
                self.boot_and_run(&machine, picture.as_deref(), request, &message, &ear).await?;
            let heard = ear.heard();
            // The command has not run at all then, so it can run in a machine that boots.
            if let Ended::Exit(exit) = outcome.ended
                && !heard.begun()
                && picture.take().is_some()
            {
                self.distrust(&machine, version, outcome.stderr.text.trim()).await;
                if exit != Exit::TimedOut {
                    continue;
                }
            }
            return Ok(Ran { outcome, heard, shown: machine.shown() });
        }
    }

    async fn boot_and_run(
        &self,
        machine: &Machine<'_>,
        picture: Option<&Path>,
        request: &SandboxRequest,
        message: &[u8],
        ear: &Ear,
    ) -> Result<Outcome, SandboxError> {
        let mut limits = bounds(machine.size, request.limits.file_bytes);
        limits.tmp_bytes = 1 << 20;
        let kind = self.kind(machine.accelerator, Program::Command);
        let own = std::slice::from_ref(&self.options.dir);
        let masks = hidden::masks(self.outer.hidden(), own, &kind, &request.workspace)?;
        let secrets = hidden::secrets(self.outer.hidden(), &kind, &request.workspace)?;
        let (hidden, writes) = (self.outer.hidden(), request.writable.is_some());
        let fixed = repository::fixed(hidden, &kind, &request.workspace, writes)?;
        let spec = Spec {
            kind,
            argv: self.emulator(machine, picture, request.writable.is_some()),
            env: environment(),
            home: Vec::new(),
            workspace: request.workspace.clone(),
            writable: request.writable.clone(),
            // The guest opens the command's own working directory.
            cwd: PathBuf::new(),
            private_home: None,
            also_at: None,
            masks,
            secrets,
            fixed,
            terminal: false,
            limits,
            #[cfg(feature = "mutations")]
            mutation: None,
        };
        let time = request.timeout.saturating_add(boot_time(machine.accelerator) + ANSWER);
        self.launch(&spec, message, WORDS, Some(ear.sink()), time).await
    }

    async fn launch(
        &self,
        spec: &Spec,
        stdin: &[u8],
        output_bytes: usize,
        sink: Option<OutputSink>,
        timeout: Duration,
    ) -> Result<Outcome, SandboxError> {
        let program = &self.outer.init_program;
        launch::run(Launch {
            program,
            run_as: self.outer.run_as,
            spec,
            variable: None,
            // The machine's size limits the command and the emulator's own share.
            group: None,
            stdin,
            output_bytes,
            sink,
            timeout,
        })
        .await
        .map_err(|err| diagnosis::init_not_started(program, &err))
    }

    /// The sandbox around the emulator, with the host files that it needs besides the system's
    /// programs. The guest's command sees none of them, except what the configuration shows to
    /// every command.
    fn kind(&self, accelerator: Accelerator, program: Program) -> Kind {
        let mut read_only = self.outer.read_only.clone();
        read_only.push(self.options.dir.clone());
        Kind::Namespace { read_only, devices: self.devices(accelerator), program, living: None }
    }

    fn devices(&self, accelerator: Accelerator) -> Vec<PathBuf> {
        let mut devices = self.outer.devices.clone();
        match accelerator {
            Accelerator::Kvm => devices.push(self.options.kvm.clone()),
            Accelerator::Emulation => {}
        }
        devices
    }

    /// That sandbox as a driver, for measurements.
    fn around(&self, accelerator: Accelerator) -> &namespace::Namespace {
        match accelerator {
            Accelerator::Kvm => &self.around_kvm,
            Accelerator::Emulation => &self.around,
        }
    }

    async fn check_all(&self) -> Result<(), SandboxError> {
        let accelerator = self.execution().await?.accelerator();
        self.image()?;
        self.prepared().await?;
        // Checks the sandbox around the emulator; the guest's sandbox uses the same features.
        self.around(accelerator).check().await
    }
}

/// The result of one order.
struct Ran {
    outcome: Outcome,
    heard: Heard,
    /// A command line for people.
    shown: String,
}

fn judge(ran: Ran, output_bytes: usize) -> Result<SandboxResult, SandboxError> {
    let Ran { outcome, heard, shown } = ran;
    let result = |exit, stdout, stderr| SandboxResult {
        exit,
        stdout,
        stderr,
        elapsed: outcome.elapsed,
        level: SandboxLevel::Microvm,
        shown_as: Some(shown.clone()),
    };
    match heard.answer {
        Some(Answer::Ended { end, stdout, stderr }) => {
            // The guest cut them, but a compromised guest may not have.
            let bounded = |stream: guest::Stream| {
                let mut captured = overmind_core::sandbox::Captured::from(stream);
                if captured.text.len() > output_bytes {
                    let end = captured.text.floor_char_boundary(output_bytes);
                    captured.text.truncate(end);
                    captured.truncated = true;
                }
                captured
            };
            Ok(result(end.into(), bounded(stdout), bounded(stderr)))
        }
        Some(Answer::BadConfig { code, message }) => Err(SandboxError::BadConfig { code, message }),
        Some(Answer::Failed(message)) => Err(failed(message)),
        Some(Answer::Probed { .. }) => {
            Err(failed("the guest answered what it was not asked".to_owned()))
        }
        None if heard.started => {
            let exit = match outcome.ended {
                Ended::Exit(Exit::TimedOut) => Exit::TimedOut,
                // The machine has ended, and the command with it.
                Ended::Exit(Exit::Code(_) | Exit::Signal(_))
                | Ended::BadConfig(_)
                | Ended::Refused { .. }
                | Ended::Silent => Exit::Signal(libc::SIGKILL),
            };
            Ok(result(exit, Default::default(), Default::default()))
        }
        None => Err(not_booted(outcome)),
    }
}

/// The error if the guest did not start its command.
fn not_booted(outcome: Outcome) -> SandboxError {
    match outcome.ended {
        Ended::Exit(Exit::TimedOut) => unavailable(
            "guest_silent",
            format!("the guest did not start in time: {}", outcome.stderr.text.trim()),
            "see whether the machine is overloaded; where KVM is broken, set \
             sandbox.microvm_emulation to always",
        ),
        Ended::Exit(exit) => failed(format!(
            "the emulator ended before the command ran ({exit:?}): {}",
            outcome.stderr.text.trim()
        )),
        Ended::BadConfig(_) | Ended::Refused { .. } | Ended::Silent => {
            match into_result(outcome, SandboxLevel::Namespace) {
                Err(err) => err,
                Ok(_) => failed("the emulator's sandbox gave no answer".to_owned()),
            }
        }
    }
}

fn boot_time(accelerator: Accelerator) -> Duration {
    match accelerator {
        Accelerator::Kvm => BOOT_KVM,
        Accelerator::Emulation => BOOT_EMULATED,
    }
}

/// The limits of the emulator. The guest's own limits are tighter.
fn bounds(size: Size, file_bytes: u64) -> Limits {
    Limits {
        memory_bytes: size.emulator_bytes(),
        // These are threads: processors, and those that serve files.
        pids: 128 + size.processors,
        tmp_bytes: 16 << 20,
        // The kernel takes a limit above the largest offset for a negative one.
        file_bytes: file_bytes.min(1 << 60).saturating_add(1 << 20),
        // The emulator opens one file for each open file of the guest.
        open_files: SandboxLimits::default().open_files.saturating_mul(64),
    }
}

fn environment() -> Vec<(String, String)> {
    vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned()), ("LC_ALL".to_owned(), "C".to_owned())]
}

async fn version_of(program: &Path) -> io::Result<String> {
    let output = tokio::process::Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    if !output.status.success() {
        return Err(io::Error::other(format!("it ended with {}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Sandbox for Microvm {
    fn level(&self) -> SandboxLevel {
        SandboxLevel::Microvm
    }

    fn run(&self, request: SandboxRequest) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(self.run_request(request, None))
    }

    /// The guest sends each piece through its port, before its answer.
    fn run_streaming(
        &self,
        request: SandboxRequest,
        sink: OutputSink,
    ) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(self.run_request(request, Some(sink)))
    }

    /// Checks whether image, emulator and the sandboxes around and in the guest are available. No
    /// machine is started, because that takes seconds.
    fn check(&self) -> Fut<'_, Result<(), SandboxError>> {
        Box::pin(self.check_all())
    }

    fn attest(&self) -> Fut<'_, Result<Option<Arc<Attested>>, SandboxError>> {
        Box::pin(async { self.attested().await.map(Some) })
    }
}
