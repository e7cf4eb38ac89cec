//! The `namespace` driver: Linux namespaces, a separate root, no privileges, and a filter for
//! system calls. It needs no daemon, no image and no root.
//!
//! [`Namespace::new`] is the entry point. What a command gets:
//!
//! * its own user, mount, process, network, IPC, host name and cgroup namespaces; inside it is the
//!   plain user 1000, outside its files belong to the caller (or [`Options::run_as`]);
//! * a read-only root without homes, sockets or secrets, `/tmp` in memory, and `/workspace`;
//! * a loopback and no other network;
//! * no capability, no-new-privs, Landlock if the kernel has it, and an allow-list of system calls;
//! * limits on files, descriptors, processes, memory and processor time.
//!
//! Before the first command, and again when the kernel, the program or the options have changed, a
//! probe runs inside and looks for the host ([`crate::attest`]). If it finds anything, no command
//! runs. That takes some milliseconds, once.
//!
//! Limits: if the daemon may make cgroups (v1 or v2), **memory**, **processor share** and
//! **processes** are limited for the whole tree, and files in `/tmp` count as memory. Otherwise
//! memory is limited per process (by private writable pages) and the processor share is not
//! limited. Processes are then limited exactly from Linux 6.14 on; before that by RLIMIT_NPROC,
//! from which a root caller is exempt (there the driver warns once; [`Options::run_as`] avoids it).
//! [`Namespace::bounds`] tells which case applies. **Disk**: the size of each file is limited,
//! their sum in the writable directory is not. A unix socket in the workspace can be connected to.
//! There are no pseudo-terminals. 32-bit programs are killed.
//!
//! If a machine refuses a step, the result is [`SandboxError::Unavailable`] with the reason and the
//! remedy, and never a weaker sandbox.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::attest::{Attestation, Attested, Bound, Notary};
use overmind_core::off_limits::OffLimits;
use overmind_core::sandbox::{
    OutputSink, Sandbox, SandboxError, SandboxLevel, SandboxRequest, SandboxResult,
};

use crate::attest::{self, DoorTrap, Inquiry, Keeper};
use crate::cgroup::{Cgroups, Controller};
use crate::diagnosis::{self, Machine};
use crate::hidden::{self, Hidden};
use crate::init::root::{HOME_OF_THE_LIVING, TERMINALS};
use crate::init::spec::{Ground, Kind, Limits, Living, Program, Spec};
use crate::launch::{self, Ended, Launch, Outcome, RunAs};
use crate::repository::{self, Fixed};
use crate::warm::{Pool, Warmth};
use crate::{kernel, request};

/// The options of the `namespace` and the `none` driver: how they start their init, and what they
/// show.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that first calls [`crate::init::main_if_requested`] in its `main`.
    ///
    /// The default is the running program itself, which also works after its file was replaced.
    pub init_program: PathBuf,
    /// Further directories of the host that are shown read-only at the same path, for example a
    /// compiler in a home. They must be absolute and without links; everything in them is readable
    /// inside.
    pub read_only: Vec<PathBuf>,
    /// Character devices of the host, by absolute paths in `/dev`, that commands may open for
    /// reading and writing; any other file there makes the command fail. The node's own mode still
    /// decides whether the user of the commands may open it. The attestation accepts only these
    /// devices.
    pub devices: Vec<PathBuf>,
    /// For a daemon that is root: the user outside as which commands run. It must be able to enter
    /// the workspace, and to write where commands may write.
    pub run_as: Option<RunAs>,
    /// Directories that no sandbox may show, such as the daemon's data. If one is inside of a shown
    /// directory, it is hidden. The attestation looks for them, as it does for homes.
    pub private: Vec<PathBuf>,
    /// Files in other places that no sandbox may show, such as a configuration file.
    pub private_files: Vec<PathBuf>,
    /// Directories in the private ones that contain sessions' directories, which may be shown.
    pub rooms: Vec<PathBuf>,
    /// Decides which files of a workspace are withheld, because they are secrets of its repository.
    pub off_limits: OffLimits,
    /// Sockets that no sandbox may show, besides the usual ones of container engines.
    pub sockets: Vec<PathBuf>,
    /// How many inits of the `namespace` driver wait for a command, between calls and for half a
    /// minute after the last one; see [`Namespace::settled`]. With 0, each call starts its own.
    pub waiting: usize,
    /// The signer of attestations. With `None` they are made without a signature.
    pub notary: Option<Notary>,
}

impl Options {
    pub(crate) fn hidden(&self) -> Hidden<'_> {
        let Self { private, private_files: files, rooms, off_limits, .. } = self;
        Hidden { private, files, rooms, off_limits }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            init_program: PathBuf::from("/proc/self/exe"),
            read_only: Vec::new(),
            devices: Vec::new(),
            run_as: None,
            private: Vec::new(),
            private_files: Vec::new(),
            rooms: Vec::new(),
            off_limits: OffLimits::default(),
            sockets: Vec::new(),
            waiting: 0,
            notary: None,
        }
    }
}

/// The driver. It is cheap to make and examines the machine at its first use.
#[derive(Debug)]
pub struct Namespace {
    options: Options,
    /// Found when first needed.
    cgroups: Arc<OnceLock<Arc<Cgroups>>>,
    keeper: Keeper,
    /// Whether attestation is skipped, because another sandbox surrounds this one.
    unmeasured: bool,
    warned: AtomicBool,
    pool: Pool,
    /// The additions of the measured sandbox, if that is for long-running commands.
    living: Option<Living>,
    #[cfg(feature = "mutations")]
    mutation: Option<crate::init::mutation::Mutation>,
}

/// The writable places besides those that the request names.
pub(crate) const WRITABLE: &[&str] = &["/tmp", "/dev/shm"];

/// How long [`Namespace::settled`] waits for the trees of dropped calls to end.
const SETTLE: Duration = Duration::from_secs(10);

impl Namespace {
    pub fn new(options: Options) -> Self {
        Self {
            options,
            cgroups: Arc::default(),
            keeper: Keeper::default(),
            unmeasured: false,
            warned: AtomicBool::new(false),
            pool: Pool::default(),
            living: None,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    /// A driver for long-running commands, which it does not run itself, or for tool calls in an
    /// environment: it measures their sandbox. The caller that has `cgroups` makes the groups of
    /// tool calls.
    #[must_use]
    pub(crate) fn of_the_living(
        mut self,
        living: Living,
        cgroups: &Arc<OnceLock<Arc<Cgroups>>>,
    ) -> Self {
        self.options.waiting = 0;
        self.living = Some(living);
        self.cgroups = Arc::clone(cgroups);
        self
    }

    /// The kind of sandbox in which its commands are started.
    pub(crate) fn kind(&self, program: Program) -> Kind {
        let Options { read_only, devices, .. } = self.options.clone();
        Kind::Namespace { read_only, devices, program, living: self.living.clone() }
    }

    /// Skips the attestation: for the guest of a virtual machine, which has nothing of the host
    /// that could leak, and no place for the traps.
    #[must_use]
    pub(crate) fn unmeasured(mut self) -> Self {
        self.unmeasured = true;
        self
    }

    /// A driver whose sandbox lacks one layer, to test that it is refused.
    #[cfg(feature = "mutations")]
    pub fn broken(options: Options, mutation: crate::Mutation) -> Self {
        Self { mutation: Some(mutation), ..Self::new(options) }
    }

    /// The limits of a request: the mechanism that enforces each, or the reason why it is not
    /// enforced.
    pub fn bounds(&self) -> Vec<Bound> {
        if self.living.as_ref().is_some_and(|living| !living.called) {
            return self.bounds_of_the_living();
        }
        let cgroups = self.cgroups();
        let by = |limit: &str, text: &str, remark: String| Bound {
            limit: limit.to_owned(),
            enforced_by: Some(text.to_owned()),
            remark,
        };
        let memory = match cgroups.enforced(Controller::Memory) {
            Ok(text) => by("memory_bytes", text, "/tmp counts as memory".to_owned()),
            Err(why) => by(
                "memory_bytes",
                "rlimit, for each process",
                format!("NOT BOUNDED AS A WHOLE, and shared memory not at all; {}", no_group(why)),
            ),
        };
        let cpus = match cgroups.enforced(Controller::Cpu) {
            Ok(text) => by("cpus", text, String::new()),
            Err(why) => {
                Bound { limit: "cpus".to_owned(), enforced_by: None, remark: no_group(why) }
            }
        };
        let pids = match cgroups.enforced(Controller::Pids) {
            Ok(text) => by("pids", text, String::new()),
            Err(_) if kernel::has_namespaced_pid_max() => {
                by("pids", "process namespace, for the whole tree", String::new())
            }
            Err(why) if self.runs_as_root() => {
                Bound { limit: "pids".to_owned(), enforced_by: None, remark: no_group(why) }
            }
            Err(_) => by("pids", "rlimit, for the whole tree", String::new()),
        };
        let always = [
            ("tmp_bytes", "size of the file system in memory"),
            ("file_bytes", "rlimit, for each file"),
            ("open_files", "rlimit, for each process"),
            ("output_bytes", "the driver"),
            ("timeout", "the driver, for the whole tree"),
        ];
        let always = always.map(|(limit, text)| by(limit, text, String::new()));
        [memory, cpus, pids].into_iter().chain(always).collect()
    }

    /// The limits that the kernel enforces by itself, because no process watches long-running
    /// commands.
    fn bounds_of_the_living(&self) -> Vec<Bound> {
        let bound = |limit: &str, enforced_by: Option<&str>| Bound {
            limit: limit.to_owned(),
            enforced_by: enforced_by.map(str::to_owned),
            remark: String::new(),
        };
        let pids = match (kernel::has_namespaced_pid_max(), self.runs_as_root()) {
            (true, _) => Some("process namespace, for the whole tree"),
            (false, false) => Some("rlimit, for the whole tree"),
            (false, true) => None,
        };
        let mut limits = ["memory_bytes", "cpus", "file_bytes"].map(|limit| bound(limit, None));
        "as a whole by `limits` of its agent alone, where a cgroup can be made"
            .clone_into(&mut limits[0].remark);
        let more = [
            bound("pids", pids),
            bound("tmp_bytes", Some("size of the file system in memory")),
            bound("open_files", Some("rlimit, for each process")),
        ];
        limits.into_iter().chain(more).collect()
    }

    /// Ends the waiting inits, keeps no new ones, and waits until no process of dropped calls is
    /// left; after some seconds it gives up and warns.
    ///
    /// Blocks the thread; call it at the end of a daemon.
    pub fn settled(&self) {
        self.pool.close();
        // If no command ran, no process can be left.
        if let Some(cgroups) = self.cgroups.get()
            && !cgroups.settled(SETTLE)
        {
            tracing::warn!("cgroups of dropped commands are still there");
        }
    }

    /// What the driver keeps between calls ([`Options::waiting`]).
    pub fn warmth(&self) -> Warmth {
        self.pool.warmth()
    }

    fn cgroups(&self) -> &Arc<Cgroups> {
        self.cgroups.get_or_init(|| Arc::new(Cgroups::discover()))
    }

    async fn run_request(
        &self,
        request: SandboxRequest,
        sink: Option<OutputSink>,
    ) -> Result<SandboxResult, SandboxError> {
        request::check(&request)?;
        if !self.unmeasured {
            self.attested().await?;
        }
        self.warn_if_processes_are_unbounded();
        let spec = self.spec(&request, Program::Command)?;
        let outcome = self.launch(&request, &spec, None, sink).await?;
        into_result(outcome, SandboxLevel::Namespace)
    }

    /// Runs a command in a workspace that is at the host's path. `request` names directories
    /// relative to `within` in it; if `within` is writable as a whole, so is all of the workspace.
    pub(crate) async fn run_at(
        &self,
        workspace: &Path,
        within: &Path,
        request: &SandboxRequest,
        sink: Option<OutputSink>,
    ) -> Result<SandboxResult, SandboxError> {
        request::check(request)?;
        self.attested().await?;
        self.warn_if_processes_are_unbounded();
        let mut spec = to_spec(request, self.kind(Program::Command));
        let here = |path: &Path| path.components().all(|part| part == Component::CurDir);
        if let Some(writable) = spec.writable.take_if(|writable| !here(writable)) {
            spec.writable = Some(within.join(writable));
        }
        spec.cwd = within.join(&spec.cwd);
        workspace.clone_into(&mut spec.workspace);
        spec.also_at = Some(workspace.join(within));
        let spec = self.hiding(spec, &self.options.private)?;
        let outcome = self.launch(request, &spec, None, sink).await?;
        into_result(outcome, SandboxLevel::Namespace)
    }

    fn spec(&self, request: &SandboxRequest, program: Program) -> Result<Spec, SandboxError> {
        self.hiding(to_spec(request, self.kind(program)), &self.options.private)
    }

    fn hiding(&self, mut spec: Spec, private: &[PathBuf]) -> Result<Spec, SandboxError> {
        let hidden = Hidden { private, ..self.options.hidden() };
        spec.masks = hidden::masks(hidden, &[], &spec.kind, &spec.workspace)?;
        spec.secrets = hidden::secrets(hidden, &spec.kind, &spec.workspace)?;
        let writes = spec.writable.is_some();
        spec.fixed = repository::fixed(hidden, &spec.kind, &spec.workspace, writes)?;
        #[cfg(feature = "mutations")]
        {
            spec.mutation = self.mutation.clone();
        }
        Ok(spec)
    }

    async fn launch(
        &self,
        request: &SandboxRequest,
        spec: &Spec,
        variable: Option<(&str, &str)>,
        sink: Option<OutputSink>,
    ) -> Result<Outcome, SandboxError> {
        let Options { init_program, run_as, waiting, .. } = &self.options;
        // A probe never uses a waiting init: its init has a variable that others must not have.
        let config = (*waiting > 0 && variable.is_none()).then(|| self.config());
        let kept = config.as_ref().and_then(|config| self.pool.take(config, &Ground::of(spec)));
        let mut launch = Launch {
            program: init_program,
            run_as: *run_as,
            spec,
            variable,
            group: None,
            sink,
            stdin: &request.stdin,
            output_bytes: request.limits.output_bytes,
            timeout: request.timeout,
        };
        let outcome = match kept {
            // Otherwise it cannot be used; the group of a new init reports why.
            Some(init) if init.bound(&request.limits).is_ok() => {
                launch::run_in(init, &launch).await.transpose()
            }
            Some(_) | None => None,
        };
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => {
                launch.group = match &spec.kind {
                    // Joining a group may wait for every processor, and the probe's findings are
                    // the same without: its own memory and processes are limited by other means.
                    Kind::Namespace { program: Program::Probe, .. } => None,
                    Kind::Namespace { program: Program::Command, .. } | Kind::Unconfined => {
                        let made = self.cgroups().make(Some(&request.limits));
                        Some(made.map_err(|err| SandboxError::Failed {
                            level: SandboxLevel::Namespace.as_str(),
                            message: format!("making the command's cgroup: {err}"),
                        })?)
                    }
                };
                launch::run(launch).await
            }
        };
        if let Some(config) = config {
            self.pool.refill(&self.options, self.cgroups(), config, Ground::of(spec));
        }
        outcome.map_err(|err| diagnosis::init_not_started(init_program, &err))
    }

    /// The attestation of this driver on this kernel, or the refusal.
    pub(crate) async fn attested(&self) -> Result<Arc<Attested>, SandboxError> {
        let config = self.config();
        let notary = self.options.notary.as_ref();
        self.keeper.get(&config, notary, Box::pin(self.measure(config.clone()))).await
    }

    /// Identifies the measured configuration: with another kernel, program or option it is another
    /// sandbox.
    pub(crate) fn config(&self) -> String {
        let Options {
            init_program,
            read_only,
            devices,
            run_as,
            private,
            private_files,
            rooms,
            off_limits: _,
            sockets,
            waiting: _,
            notary: _,
        } = &self.options;
        let program = std::fs::metadata(init_program)
            .map(|meta| (meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
            .ok();
        let kernel = attest::this_kernel();
        let living = self.living.as_ref().map(|living| format!(" {living:?}")).unwrap_or_default();
        let all = format!(
            "{kernel:?} {init_program:?} {program:?} {read_only:?} {devices:?} {run_as:?} \
             {private:?} {private_files:?} {rooms:?} {sockets:?}{living}"
        );
        blake3::hash(all.as_bytes()).to_hex()[..32].to_owned()
    }

    /// Runs the probe inside and judges its answer.
    async fn measure(&self, config: String) -> Result<Attestation, SandboxError> {
        let Options { private, private_files, sockets, read_only, devices, run_as, .. } =
            &self.options;
        let granted =
            self.living.as_ref().map(|living| living.writable.clone()).unwrap_or_default();
        let mut writable = WRITABLE.to_vec();
        if self.living.is_some() {
            writable.extend([HOME_OF_THE_LIVING, TERMINALS]);
        }
        writable.extend(granted.iter().filter_map(|path| path.to_str()));
        let mut inquiry = Inquiry::begin(SandboxLevel::Namespace, private, sockets, &writable)?
            .with(|traps| traps.and_files(private_files).except(read_only).except(&granted))
            .accepting(devices);
        // Otherwise another user could not enter the directory that is shown for the test.
        if run_as.is_none() || open_to_others(&std::env::temp_dir()) {
            inquiry = inquiry.hiding(self.living.is_none())?;
        }
        if let Some(living) = &self.living {
            inquiry = inquiry.of_the_living(living.network, living.called);
        }
        // The measurement checks what the probe can reach, so the size of limits does not matter.
        inquiry.request.limits.cpus = 8.0;
        let kind = self.kind(Program::Probe);
        let result = match kind.has_way() {
            false => {
                let spec = self.spec_of_probe(&inquiry)?;
                let variable = Some(inquiry.traps.variable());
                let outcome = self.launch(&inquiry.request, &spec, variable, None).await?;
                into_result(outcome, SandboxLevel::Namespace)?
            }
            true => {
                let reaches = kind.reaches().iter().map(|reach| reach.port).collect();
                inquiry = inquiry.with(|traps| traps.at_the_way(kind.door().is_some(), reaches));
                let failed = |err: std::io::Error| {
                    attest::failed(SandboxLevel::Namespace, &format!("the end of the door: {err}"))
                };
                let trap = DoorTrap::set(inquiry.traps.questions()).map_err(failed)?;
                let mut spec = self.spec_of_probe(&inquiry)?;
                spec.kind = spec.kind.leading_to(trap.path(), &trap.ends().map_err(failed)?);
                let variable = Some(inquiry.traps.variable());
                let probe = self.launch(&inquiry.request, &spec, variable, None);
                into_result(trap.attend(probe).await?, SandboxLevel::Namespace)?
            }
        };
        inquiry.conclude(&result, None, config, self.bounds())
    }

    fn spec_of_probe(&self, inquiry: &Inquiry) -> Result<Spec, SandboxError> {
        let private = self.options.private.iter().cloned().chain(inquiry.traps.kept());
        let spec = to_spec(&inquiry.request, self.kind(Program::Probe));
        self.hiding(spec, &private.collect::<Vec<_>>())
    }

    /// Runs this program as the probe in a guest, as a command would run.
    pub(crate) async fn probe(
        &self,
        request: &SandboxRequest,
    ) -> Result<SandboxResult, SandboxError> {
        let spec = self.spec(request, Program::Probe)?;
        let outcome = self.launch(request, &spec, None, None).await?;
        into_result(outcome, SandboxLevel::Namespace)
    }

    fn runs_as_root(&self) -> bool {
        match self.options.run_as {
            Some(RunAs { uid, .. }) => uid == 0,
            None => rustix::process::geteuid().is_root(),
        }
    }

    fn warn_if_processes_are_unbounded(&self) {
        if self.runs_as_root()
            && !kernel::has_namespaced_pid_max()
            && self.cgroups().enforced(Controller::Pids).is_err()
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "the number of processes in a sandbox is not bounded: the daemon is root, may \
                 make no cgroup, and the kernel is older than 6.14; run the daemon as a plain \
                 user, or set run_as"
            );
        }
    }
}

/// Whether every user may enter a directory.
fn open_to_others(directory: &Path) -> bool {
    let mut all = directory.ancestors();
    all.all(|one| std::fs::metadata(one).is_ok_and(|meta| meta.mode() & 0o1 != 0))
}

fn no_group(why: &str) -> String {
    format!("no cgroup can be made: {why}")
}

impl Sandbox for Namespace {
    fn level(&self) -> SandboxLevel {
        SandboxLevel::Namespace
    }

    fn run(&self, request: SandboxRequest) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(self.run_request(request, None))
    }

    fn run_streaming(
        &self,
        request: SandboxRequest,
        sink: OutputSink,
    ) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(self.run_request(request, Some(sink)))
    }

    /// Measures again, whatever was found before.
    fn check(&self) -> Fut<'_, Result<(), SandboxError>> {
        Box::pin(async {
            let attestation = self.measure(self.config()).await?;
            attest::refuse_unless_kept(&attestation)
        })
    }

    fn attest(&self) -> Fut<'_, Result<Option<Arc<Attested>>, SandboxError>> {
        Box::pin(async { self.attested().await.map(Some) })
    }
}

pub(crate) fn to_spec(request: &SandboxRequest, kind: Kind) -> Spec {
    Spec {
        kind,
        argv: request.argv.clone(),
        env: request.env.clone(),
        home: request.home.clone(),
        workspace: request.workspace.clone(),
        writable: request.writable.clone(),
        cwd: request.cwd.clone(),
        private_home: None,
        also_at: None,
        masks: Vec::new(),
        secrets: Vec::new(),
        fixed: Fixed::default(),
        terminal: false,
        limits: Limits {
            memory_bytes: request.limits.memory_bytes,
            pids: request.limits.pids,
            tmp_bytes: request.limits.tmp_bytes,
            file_bytes: request.limits.file_bytes,
            open_files: request.limits.open_files,
        },
        #[cfg(feature = "mutations")]
        mutation: None,
    }
}

/// Converts the init's report to the port's answer.
pub(crate) fn into_result(
    outcome: Outcome,
    level: SandboxLevel,
) -> Result<SandboxResult, SandboxError> {
    let failed = |message| SandboxError::Failed { level: level.as_str(), message };
    match outcome.ended {
        Ended::Exit(exit) => Ok(SandboxResult {
            exit,
            stdout: outcome.stdout,
            stderr: outcome.stderr,
            elapsed: outcome.elapsed,
            level,
            shown_as: None,
        }),
        Ended::BadConfig(message) => Err(request::bad_config(message)),
        Ended::Refused { step, detail, errno } => {
            let machine = Machine::read();
            Err(diagnosis::refused(step, &detail, errno, level, &machine))
        }
        Ended::Silent => {
            // A panic of the init, or the loader's error about its program.
            let words = outcome.stderr.text.trim();
            let words = if words.is_empty() { "without a word" } else { words };
            Err(failed(format!("the init ended before the command ran: {words}")))
        }
    }
}
