//! The last steps, in the process that becomes the command.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};
use seccompiler::BpfProgram;

use crate::init::landlock::Rules;
use crate::init::mutation::{Layer, skips};
use crate::init::spec::{Doing, Limits, Report, Spec, Step, Stop};
use crate::sys::{self, CStrings, Fork};

/// A command that is ready to start: every step that can fail because of the request is done.
pub(crate) struct Prepared<'a> {
    /// The paths at which the program may be, in search order.
    candidates: Vec<CString>,
    /// The program to start, regardless of `candidates`.
    program: Option<&'a OwnedFd>,
    argv: CStrings,
    env: CStrings,
    /// The program's name, for messages.
    name: String,
    searched: Option<String>,
    stdin: OwnedFd,
    /// Whether its standard input is a terminal, which becomes its controlling terminal.
    terminal: bool,
}

/// The restrictions that the process applies to itself before it becomes the command.
pub(crate) struct Confinement {
    pub(crate) filters: [BpfProgram; 2],
    pub(crate) rules: Rules,
}

/// The search path for programs if the request's environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

impl<'a> Prepared<'a> {
    pub(crate) fn new(
        spec: &Spec,
        program: Option<&'a OwnedFd>,
        stdin: OwnedFd,
    ) -> Result<Self, Stop> {
        let nul = || Stop::BadConfig("an argument or variable contains a NUL byte".to_owned());
        let name = spec.argv.first().cloned().unwrap_or_default();
        let (places, searched) = if name.contains('/') {
            (vec![name.clone()], None)
        } else {
            let path = spec.env.iter().find(|(key, _)| key == "PATH");
            let path = path.map_or(DEFAULT_PATH, |(_, value)| value.as_str());
            let places = path.split(':').map(|dir| match dir {
                "" => format!("./{name}"),
                dir => format!("{dir}/{name}"),
            });
            (places.collect(), Some(path.to_owned()))
        };
        let candidates: Result<Vec<_>, _> = places.into_iter().map(CString::new).collect();
        let mut env: Vec<String> =
            spec.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if skips(Layer::CleanEnvironment) {
            env.extend(std::env::vars().map(|(key, value)| format!("{key}={value}")));
        }
        Ok(Self {
            candidates: candidates.map_err(|_| nul())?,
            program,
            argv: CStrings::new(spec.argv.iter().cloned()).ok_or_else(nul)?,
            env: CStrings::new(env).ok_or_else(nul)?,
            name,
            searched,
            stdin,
            terminal: spec.terminal,
        })
    }

    /// Starts the command in `cwd` and returns once its program runs.
    ///
    /// # Errors
    ///
    /// [`Stop::BadConfig`] if there is no such program; [`Stop::Refused`] if the machine refuses a
    /// step. No process remains then.
    pub(crate) fn start(self, cwd: &OwnedFd, limits: &Limits) -> Result<Pid, Stop> {
        // A successful `execve` closes this pipe; otherwise it carries the reason.
        let (failed, fail) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).doing(Step::Start, "")?;
        match sys::fork().doing(Step::Start, "")? {
            Fork::Child => {
                let stop = self.become_command(cwd, limits, None);
                let text = serde_json::to_vec(&stop.into_report()).expect("plain data");
                let _ = std::fs::File::from(fail).write_all(&text);
                sys::exit_now(127)
            }
            Fork::Parent(pid) => {
                drop(fail);
                let mut text = Vec::new();
                std::fs::File::from(failed).read_to_end(&mut text).doing(Step::Start, "")?;
                if text.is_empty() { Ok(pid) } else { Err(failure(&text)) }
            }
        }
    }

    /// Runs in the child; returns only with the reason why the command does not run.
    pub(crate) fn become_command(
        &self,
        cwd: &OwnedFd,
        limits: &Limits,
        confinement: Option<Confinement>,
    ) -> Stop {
        match self.try_become(cwd, limits, confinement) {
            Ok(never) => match never {},
            Err(stop) => stop,
        }
    }

    fn try_become(
        &self,
        cwd: &OwnedFd,
        limits: &Limits,
        confinement: Option<Confinement>,
    ) -> Result<std::convert::Infallible, Stop> {
        rustix::process::setsid().doing(Step::Start, "setsid")?;
        if self.terminal {
            rustix::process::ioctl_tiocsctty(&self.stdin).doing(Step::Start, "its terminal")?;
        }
        sys::replace_standard_stream(self.stdin.as_fd(), 0).doing(Step::Start, "stdin")?;
        rustix::process::fchdir(cwd).doing(Step::Start, "chdir")?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        // This includes the error's pipe, which a successful `execve` closes.
        sys::close_all_on_exec().doing(Step::Start, "close_range")?;
        if skips(Layer::CloseOnExec) {
            let flags = rustix::fs::OFlags::RDONLY;
            let left = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty());
            std::mem::forget(left.doing(Step::Start, "a descriptor that stays open")?);
        }
        apply(limits, confinement.is_some())?;
        sys::reset_signals();
        if let Some(confinement) = confinement {
            confine(confinement)?;
        }
        // From here on the filter is active; only `execve`, `write` and `exit_group` are used.
        Err(self.exec())
    }

    /// Tries each path in turn, as a shell does.
    fn exec(&self) -> Stop {
        if let Some(program) = self.program {
            let err = sys::exec_file(program.as_fd(), &self.argv, &self.env);
            return Stop::Refused {
                step: Step::Start,
                detail: "the probe".to_owned(),
                errno: err.raw_os_error().unwrap_or(0),
            };
        }
        let mut reason = None;
        for candidate in &self.candidates {
            let err = sys::exec(candidate, &self.argv, &self.env);
            match err.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {}
                io::ErrorKind::PermissionDenied => reason = Some(err),
                _ => {
                    reason = Some(err);
                    break;
                }
            }
        }
        let name = &self.name;
        let reason = reason.map_or_else(|| "no such program".to_owned(), |err| err.to_string());
        Stop::BadConfig(match &self.searched {
            Some(path) => format!("cannot start `{name}`: {reason} (searched in {path})"),
            None => format!("cannot start `{name}`: {reason}"),
        })
    }
}

/// Parses the message of a process that could not become the command.
pub(crate) fn failure(text: &[u8]) -> Stop {
    match serde_json::from_slice(text) {
        Ok(Report::BadConfig(message)) => Stop::BadConfig(message),
        Ok(Report::Refused { step, detail, errno }) => Stop::Refused { step, detail, errno },
        Ok(Report::Started | Report::Exited(_) | Report::Signaled(_)) | Err(_) => Stop::Refused {
            step: Step::Start,
            detail: "its process ended during the set-up".to_owned(),
            errno: 0,
        },
    }
}

/// Sets the limits of the command. If a lower limit is already in force, it is kept.
fn apply(limits: &Limits, confined: bool) -> Result<(), Stop> {
    let mut bounds = vec![
        (Resource::Core, 0),
        (Resource::Fsize, limits.file_bytes),
        (Resource::Nofile, u64::from(limits.open_files)),
        // RLIMIT_AS is not used, because it counts address space, of which runtimes with a garbage
        // collector reserve a hundred times of what they use. RLIMIT_DATA counts private writable
        // pages.
        (Resource::Data, limits.memory_bytes),
    ];
    if confined {
        // This is counted within the sandbox's user namespace, which also contains init and
        // launcher. Outside of such a namespace it would count all processes of the user on the
        // machine.
        bounds.push((Resource::Nproc, u64::from(limits.pids) + 2));
    }
    for (resource, wanted) in bounds {
        let bound = getrlimit(resource).maximum.map_or(wanted, |most| most.min(wanted));
        let both = Rlimit { current: Some(bound), maximum: Some(bound) };
        setrlimit(resource, both).doing(Step::Limits, format_args!("{resource:?}"))?;
    }
    Ok(())
}

/// Applies all restrictions, in an order in which each is still permitted.
fn confine(confinement: Confinement) -> Result<(), Stop> {
    if !skips(Layer::Capabilities) {
        drop_privileges()?;
    }
    if skips(Layer::NoNewPrivileges) {
        return Ok(());
    }
    rustix::thread::set_no_new_privs(true).doing(Step::Privileges, "no-new-privs")?;
    if !skips(Layer::Landlock) {
        confinement.rules.enforce()?;
    }
    let [allow_list, refusals] = &confinement.filters;
    for (filter, layer) in [(allow_list, Layer::AllowList), (refusals, Layer::Refusals)] {
        if !skips(Layer::Filter) && !skips(layer) {
            seccompiler::apply_filter(filter).map_err(io::Error::other).doing(Step::Filter, "")?;
        }
    }
    Ok(())
}

/// Drops all capabilities and every way to regain them.
fn drop_privileges() -> Result<(), Stop> {
    let step = Step::Privileges;
    for bit in 0..u64::BITS {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(
            1 << bit,
        )) {
            Ok(()) => {}
            // This is the first number that the kernel does not know.
            Err(rustix::io::Errno::INVAL) => break,
            Err(err) => return Err(err).doing(step, "bounding set"),
        }
    }
    rustix::thread::set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED,
    )
    .doing(step, "secure bits")?;
    rustix::thread::clear_ambient_capability_set().doing(step, "ambient set")?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).doing(step, "capabilities")
}
