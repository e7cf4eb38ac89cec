//! Landlock enforces the same rules about files again, in another part of the kernel.
//!
//! All visible files may be read and executed. Writable are only `/tmp`, `/dev/shm`, the writable
//! directory, the stateless devices, the devices that the driver gives to this sandbox, and files
//! that are its output. Device nodes can be made nowhere. On kernels that support it (Linux 6.12)
//! signals and abstract sockets stay inside. Within the sandbox's own network nothing is forbidden.
//!
//! Rules apply to files by their identity and not by path, so they remain valid whatever is
//! mounted. On a kernel without Landlock, or with an older version, the available rules are used;
//! the attestation reports the version, and whether the rules are in force.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use crate::init::root::{HOME_OF_THE_LIVING, TERMINAL, TERMINALS, workspace_inside};
use crate::init::spec::{Doing, Kind, Spec, Step, Stop};

/// The newest version whose rights are used; the crate omits rights that the kernel lacks.
const VERSION: ABI = ABI::V6;

/// Devices that may be written, because they drop the data.
const SINKS: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Rules that are ready to be enforced.
#[derive(Debug)]
pub(crate) struct Rules(RulesetCreated);

impl Rules {
    /// Opens the files of the rules; call it inside of the new root. `program` is a file outside of
    /// it that may be executed as well.
    pub(crate) fn new(spec: &Spec, program: Option<&OwnedFd>) -> Result<Self, Stop> {
        let all = AccessFs::from_all(VERSION);
        let read = AccessFs::from_read(VERSION);
        let write = all & !(AccessFs::MakeChar | AccessFs::MakeBlock);

        let mut paths: Vec<(PathBuf, BitFlags<AccessFs>)> =
            vec![("/".into(), read), ("/tmp".into(), write), ("/dev/shm".into(), write)];
        if let Some(writable) = &spec.writable {
            paths.push((workspace_inside(spec).join(writable), write));
        }
        if let Some(living) = spec.kind.living() {
            let own = [HOME_OF_THE_LIVING, TERMINALS].map(PathBuf::from);
            paths.extend(own.into_iter().chain(living.writable.clone()).map(|path| (path, write)));
            if Path::new(TERMINAL).exists() {
                paths.push((TERMINAL.into(), write));
            }
        }
        let sink = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
        let given = match &spec.kind {
            Kind::Namespace { devices, .. } => devices.as_slice(),
            Kind::Unconfined => &[],
        };
        let devices = SINKS.iter().map(PathBuf::from).chain(given.iter().cloned());
        paths.extend(devices.map(|path| (path, sink | AccessFs::ReadFile)));

        let mut rules = Ruleset::default()
            .handle_access(all)
            .and_then(|rules| rules.scope(Scope::from_all(VERSION)))
            .and_then(Ruleset::create)
            .map_err(|err| refused(&err))?;
        for (path, access) in paths {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(CWD, &path, flags, Mode::empty())
                .doing(Step::Privileges, format_args!("Landlock, {}", path.display()))?;
            let found = rustix::fs::fstat(&opened).doing(Step::Privileges, path.display())?;
            let access = match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => access,
                // Most rights apply to the contents of a directory.
                _ => access & AccessFs::from_file(VERSION),
            };
            rules = rule(rules, opened.as_fd(), access)?;
        }
        for stream in [io::stdout().as_fd(), io::stderr().as_fd()] {
            // A service's output is a file of the host, which many programs open again as
            // `/dev/stdout`. Pipes and terminals need no rule.
            let found = rustix::fs::fstat(stream).doing(Step::Privileges, "its output")?;
            if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
                rules = rule(rules, stream, AccessFs::WriteFile | AccessFs::Truncate)?;
            }
        }
        if let Some(program) = program {
            rules = rule(rules, program.as_fd(), AccessFs::Execute | AccessFs::ReadFile)?;
        }
        Ok(Self(rules))
    }

    /// Enforces the rules for this process and all its descendants, permanently.
    pub(crate) fn enforce(self) -> Result<(), Stop> {
        self.0.restrict_self().map(drop).map_err(|err| refused(&err))
    }
}

fn rule(
    rules: RulesetCreated,
    file: BorrowedFd<'_>,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, Stop> {
    rules.add_rule(PathBeneath::new(file, access)).map_err(|err| refused(&err))
}

fn refused(err: &RulesetError) -> Stop {
    Stop::Refused { step: Step::Privileges, detail: format!("Landlock: {err}"), errno: 0 }
}
