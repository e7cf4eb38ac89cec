//! The guarantees of each level, and the check of the facts against them. It is pure except for two
//! questions about the host, with which the probe's answers are compared.

use std::time::Duration;

use overmind_core::attest::{Attestation, Bound, Check, CheckName};
use overmind_core::enclosure::Network;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::time::Timestamp;

use super::door::{WORDS, expected_listeners};
use super::facts::{Facts, Refused};
use super::probe::{NAMESPACES, boot_id, own_namespaces};
use super::words::{listed, measured};

/// The sandbox that was measured, and how.
#[derive(Clone, Debug)]
pub struct Subject {
    pub level: SandboxLevel,
    /// The sorted names of the variables that the probe was given.
    pub variables: Vec<String>,
    /// Devices with state that are given deliberately; no others are accepted.
    pub devices: Vec<String>,
    /// The network, if the sandbox is for long-running commands. Sharing the host's network is
    /// deliberate.
    pub living: Option<Network>,
    /// Whether the commands end with their tool call.
    pub called: bool,
    /// If the network is the mesh: whether there is a proxy to the server.
    pub door: bool,
    /// Whether a directory with a hidden file was shown.
    pub hides: bool,
    /// Ports of the host's loopback that are forwarded deliberately, to services of the same
    /// environment.
    pub reaches: Vec<u16>,
    pub at: Timestamp,
    pub took: Duration,
    /// Hash of the driver's configuration; see [`Attestation::config`].
    pub config: String,
    pub bounds: Vec<Bound>,
}

impl Subject {
    fn shares_network(&self) -> bool {
        self.living == Some(Network::Host)
    }

    /// Whether connections are forwarded between its network and the host's.
    fn has_way(&self) -> bool {
        self.living == Some(Network::Mesh)
    }

    /// A name that distinguishes several sandboxes of one level.
    fn driver(&self) -> String {
        let level = self.level.as_str();
        let whose = if self.called { "of a call in a room" } else { "of a command that lives" };
        match self.living {
            None => level.to_owned(),
            Some(Network::Mesh) if !self.door => format!("{level} {whose}, network of its room"),
            Some(network) => format!("{level} {whose}, network {}", network.as_str()),
        }
    }
}

/// The guarantees of a level besides those that all levels but `none` share.
struct Promise {
    /// Namespaces that must differ from the daemon's.
    namespaces: &'static [&'static str],
    /// Whether the kernel differs from the daemon's. Then its namespaces, devices and `/proc` are
    /// its own as well, and changes to them stay inside.
    own_kernel: bool,
    /// Maximum number of processes that may be visible: those of the sandbox itself.
    processes: u32,
    /// System calls that must be refused.
    calls: &'static [&'static str],
    /// Whether there may be no variables except the given ones.
    exact_environment: bool,
    /// Whether process 1 inside has privileges that the command lacks.
    guarded_process_one: bool,
    /// Whether every mount must have `nosuid`, besides no-new-privileges.
    nosuid_everywhere: bool,
    /// Mounts that need not be read-only although they are no writable places. None of them belongs
    /// to the host.
    open_mounts: &'static [&'static str],
    /// User 0 inside is allowed if it is mapped to another user outside.
    mapped_root: bool,
    landlock: bool,
}

const NAMESPACE_CALLS: &[&str] = &[
    "unshare",
    "setns",
    "mount",
    "fsopen",
    "open_tree",
    "open_by_handle_at",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "set_mempolicy",
    "io_uring_setup",
    "process_vm_readv",
    "ptrace",
    "kexec_load",
    "init_module",
    "socket netlink",
    "socket packet",
    "socket vsock",
    "socket alg",
];

/// System calls that the engine's own filter refuses in every supported version. Newer versions
/// refuse more (`io_uring`); tracing within the container is allowed.
const DOCKER_CALLS: &[&str] = &[
    "unshare",
    "setns",
    "mount",
    "fsopen",
    "open_tree",
    "open_by_handle_at",
    "bpf",
    "perf_event_open",
    "kexec_load",
    "init_module",
    "socket packet",
];

/// The guarantees of a level; `None` if it has none.
fn promise(level: SandboxLevel) -> Option<Promise> {
    match level {
        SandboxLevel::None => None,
        SandboxLevel::Namespace => Some(Promise {
            namespaces: NAMESPACES,
            own_kernel: false,
            processes: 2,
            calls: NAMESPACE_CALLS,
            exact_environment: true,
            guarded_process_one: true,
            nosuid_everywhere: true,
            open_mounts: &[],
            mapped_root: false,
            landlock: true,
        }),
        SandboxLevel::Docker => Some(Promise {
            // By default the engine shares the host's user namespace and, on machines with cgroup
            // v1, also its cgroup namespace.
            namespaces: &["mnt", "pid", "net", "ipc", "uts"],
            own_kernel: false,
            processes: 3,
            calls: DOCKER_CALLS,
            exact_environment: false,
            guarded_process_one: false,
            nosuid_everywhere: false,
            // The engine mounts these for each container, and protects parts of `/proc` one by one.
            open_mounts: &["/proc", "/dev", "/dev/pts", "/sys/fs/cgroup"],
            mapped_root: true,
            landlock: false,
        }),
        // The probe runs in the namespace sandbox inside of the guest.
        SandboxLevel::Microvm => Some(Promise {
            namespaces: NAMESPACES,
            own_kernel: true,
            processes: 2,
            calls: NAMESPACE_CALLS,
            exact_environment: true,
            guarded_process_one: true,
            nosuid_everywhere: true,
            open_mounts: &[],
            mapped_root: false,
            landlock: true,
        }),
    }
}

/// Compares the findings with the guarantees of the level.
pub fn judge(subject: Subject, facts: &Facts) -> Attestation {
    let checks: Vec<Check> = match promise(subject.level) {
        None => CheckName::ALL.iter().map(|name| unpromised(*name, facts)).collect(),
        Some(promise) => {
            CheckName::ALL.iter().map(|name| check(*name, &promise, &subject, facts)).collect()
        }
    };
    let kept = checks.iter().all(|check| check.pass);
    let uname = rustix::system::uname();
    Attestation {
        version: Attestation::VERSION,
        driver: subject.driver(),
        asked: subject.level,
        achieved: if kept { subject.level } else { SandboxLevel::None },
        at: subject.at,
        took_us: u64::try_from(subject.took.as_micros()).unwrap_or(u64::MAX),
        kernel: format!(
            "{} {}",
            uname.release().to_string_lossy(),
            uname.version().to_string_lossy()
        ),
        boot: boot_id(),
        config: subject.config,
        checks,
        bounds: subject.bounds,
    }
}

fn check(name: CheckName, promise: &Promise, subject: &Subject, facts: &Facts) -> Check {
    let (expected, pass) = expected(name, promise, subject, facts);
    Check { name, expected, measured: measured(name, facts), pass }
}

fn unpromised(name: CheckName, facts: &Facts) -> Check {
    let expected = "nothing is promised".to_owned();
    Check { name, expected, measured: measured(name, facts), pass: true }
}

/// Describes each guarantee and whether it was met.
fn expected(
    name: CheckName,
    promise: &Promise,
    subject: &Subject,
    facts: &Facts,
) -> (String, bool) {
    let hidden = |found: &[String]| ("none to be seen".to_owned(), found.is_empty());
    match name {
        CheckName::Homes => hidden(&facts.homes),
        CheckName::OtherSessions => hidden(&facts.trap_file_at),
        CheckName::WriteOutside => {
            let open = |place: &String| promise.open_mounts.contains(&place.as_str());
            let locked = facts.mounts_writable.iter().all(open);
            let shares = facts.machine.as_ref().is_none_or(|found| found.writable.is_empty());
            let pass = facts.writable.is_empty() && locked && shares;
            ("nowhere but in the writable places".to_owned(), pass)
        }
        CheckName::Environment => {
            let untrapped = facts.trap_variable_in.is_empty();
            if promise.exact_environment {
                let exact = facts.variables == subject.variables;
                (format!("only what was given: {}", listed(&subject.variables)), untrapped && exact)
            } else {
                ("nothing of the daemon's".to_owned(), untrapped)
            }
        }
        CheckName::Descriptors => {
            let known = !facts.unknown.iter().any(|text| text.starts_with("descriptors"));
            ("the standard streams only".to_owned(), known && facts.descriptors.is_empty())
        }
        CheckName::Network | CheckName::HostServices | CheckName::MetadataService
            if subject.shares_network() =>
        {
            ("the host's network, as its agent asks".to_owned(), true)
        }
        CheckName::Network => {
            // An empty list would prove nothing.
            let alone = |found: &[String]| {
                found.iter().any(|name| name == "lo") && found.iter().all(|name| is_idle(name))
            };
            let machine = match &facts.machine {
                Some(found) => alone(&found.interfaces),
                None => !promise.own_kernel,
            };
            let pass = alone(&facts.interfaces) && machine && facts.routes.is_empty();
            ("a loopback and no route".to_owned(), pass)
        }
        CheckName::HostServices if subject.has_way() => {
            let ways = subject.reaches.len() * WORDS;
            let at_door = if subject.door { WORDS } else { 0 };
            let kept = facts.door_kept == at_door && facts.door_lost == 0;
            let kept = kept && facts.reaches_kept == ways && facts.reaches_lost == 0;
            let listeners = expected_listeners(subject.door, &subject.reaches);
            let one_door = facts.listeners == listeners;
            let own: Vec<String> = subject.reaches.iter().map(u16::to_string).collect();
            let own =
                (!own.is_empty()).then(|| format!("its own services, at ports {}", own.join(", ")));
            let door = "the server, by one door that nothing moves".to_owned();
            let let_out: Vec<String> =
                subject.door.then_some(door).into_iter().chain(own).collect();
            let but = match let_out.as_slice() {
                [] => String::new(),
                some => format!(" but for {}", some.join(", and ")),
            };
            let words = format!("out of reach{but}; listening: {}", listeners.join(", "));
            (words, facts.host_services.is_empty() && one_door && kept)
        }
        CheckName::HostServices => ("out of reach".to_owned(), facts.host_services.is_empty()),
        CheckName::MetadataService => ("no route".to_owned(), facts.metadata_routes.is_empty()),
        CheckName::EngineSockets => hidden(&facts.sockets),
        CheckName::HostProcesses => {
            let few = promise.own_kernel || facts.visible_processes <= promise.processes;
            let words = if promise.own_kernel {
                "the daemon is not to be seen".to_owned()
            } else {
                format!("the daemon is not to be seen, and at most {} are", promise.processes)
            };
            (words, few && !facts.daemon_visible)
        }
        CheckName::Trace => {
            let guarded = |one: &Refused| {
                one.errno != 0 || (one.what == "process 1" && !promise.guarded_process_one)
            };
            ("refused".to_owned(), facts.traces.iter().all(guarded))
        }
        CheckName::Namespaces => {
            let host = own_namespaces();
            let own = |kind: &&str| match (facts.namespaces.get(*kind), host.get(*kind)) {
                (Some(inside), Some(outside)) => inside != outside,
                // A kernel without this kind of namespace could not have made it either.
                (None, _) | (_, None) => false,
            };
            let shared = |kind: &&&str| **kind == "net" && subject.shares_network();
            let promised: Vec<&str> =
                promise.namespaces.iter().filter(|kind| !shared(kind)).copied().collect();
            let pass = promise.own_kernel || promised.iter().all(own);
            if promise.own_kernel {
                ("those of another kernel".to_owned(), pass)
            } else {
                (format!("its own {}", promised.join(", ")), pass)
            }
        }
        CheckName::Kernel => {
            let own = !facts.boot_id.is_empty() && facts.boot_id != boot_id();
            let words = if promise.own_kernel { "its own" } else { "the host's is used" };
            (words.to_owned(), own || !promise.own_kernel)
        }
        CheckName::User => {
            let plain = facts.uid != 0 && facts.gid != 0 && !facts.groups.contains(&0);
            let outside = [facts.uid_outside, facts.gid_outside];
            let mapped = promise.mapped_root && outside.iter().all(|id| id.is_some_and(|n| n != 0));
            ("not root, in no group of root".to_owned(), plain || mapped)
        }
        CheckName::Capabilities => {
            let none =
                facts.capabilities.len() == 5 && facts.capabilities.values().all(|s| *s == 0);
            ("none in any set".to_owned(), none)
        }
        CheckName::NoNewPrivileges => ("set".to_owned(), facts.no_new_privileges),
        CheckName::SetUserId => {
            let words =
                if promise.nosuid_everywhere { "without effect, twice" } else { "without effect" };
            let nosuid = facts.mounts > 0 && facts.mounts_with_suid.is_empty();
            (words.to_owned(), facts.no_new_privileges && (nosuid || !promise.nosuid_everywhere))
        }
        CheckName::SystemCalls => {
            if promise.calls.is_empty() {
                return ("those of its own kernel".to_owned(), true);
            }
            let refused = |name: &&str| {
                facts.calls.iter().any(|one| one.what == **name && is_refusal(one.errno))
            };
            // A command with a network may ask for its addresses.
            let let_in = |name: &&&str| {
                **name == "socket netlink" && (subject.shares_network() || subject.has_way())
            };
            let calls: Vec<&str> =
                promise.calls.iter().filter(|name| !let_in(name)).copied().collect();
            let pass = facts.seccomp == 2 && calls.iter().all(refused);
            (format!("a filter, and {} calls refused", calls.len()), pass)
        }
        CheckName::Landlock => {
            if !promise.landlock {
                return ("not used".to_owned(), true);
            }
            if facts.landlock_abi == 0 {
                return ("used where the kernel has it".to_owned(), true);
            }
            ("rules in force".to_owned(), facts.landlock_effect == libc::EACCES)
        }
        CheckName::ProcEscapes => {
            ("none open".to_owned(), promise.own_kernel || facts.proc_escapes.is_empty())
        }
        CheckName::Devices => {
            let pass = match &facts.machine {
                // Devices of its own kernel are accepted; only the devices from the emulator count.
                Some(found) => found.devices.is_empty(),
                None => {
                    let given = |found: &String| subject.devices.contains(found);
                    !promise.own_kernel && facts.devices.iter().all(given)
                }
            };
            let words = match subject.devices.as_slice() {
                [] => "none with state".to_owned(),
                given => format!("none with state but {}", listed(given)),
            };
            (words, pass)
        }
        CheckName::KeyRings => {
            let refused = !facts.key_rings.is_empty()
                && facts.key_rings.iter().all(|one| is_refusal(one.errno));
            ("refused".to_owned(), promise.own_kernel || refused)
        }
        CheckName::ServerFiles => {
            let looked = facts.beside_hidden || !subject.hides;
            ("none can be read or written".to_owned(), looked && facts.server_files.is_empty())
        }
    }
}

/// Devices that a kernel makes in every new network, and that are useless until configured.
fn is_idle(name: &str) -> bool {
    const IDLE: &[&str] = &[
        "lo", "tunl0", "gre0", "gretap0", "erspan0", "sit0", "ip6tnl0", "ip6gre0", "ip_vti0",
        "ip6_vti0",
    ];
    IDLE.contains(&name)
}

/// Whether a system call itself was refused, instead of its arguments.
pub(super) fn is_refusal(errno: i32) -> bool {
    [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EAFNOSUPPORT].contains(&errno)
}

#[cfg(test)]
mod tests {
    use overmind_core::sandbox::SandboxError;

    use super::super::facts::MachineFacts;
    use super::super::refusal::{NOT_ATTESTED, refuse_unless_kept};
    use super::*;

    /// The answers of a good namespace sandbox.
    fn good() -> Facts {
        let refused = |what: &str| Refused { what: what.to_owned(), errno: libc::EPERM };
        Facts {
            uid: 1000,
            gid: 1000,
            capabilities: ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
                .map(|set| (set.to_owned(), 0))
                .into(),
            no_new_privileges: true,
            seccomp: 2,
            namespaces: NAMESPACES
                .iter()
                .map(|kind| ((*kind).to_owned(), format!("{kind}:[1]")))
                .collect(),
            boot_id: boot_id(),
            interfaces: vec!["lo".to_owned()],
            visible_processes: 2,
            variables: vec!["PATH".to_owned()],
            traces: vec![refused("process 1")],
            calls: NAMESPACE_CALLS.iter().map(|name| refused(name)).collect(),
            key_rings: vec![refused("keyctl")],
            mounts: 3,
            landlock_abi: 7,
            landlock_effect: libc::EACCES,
            ..Facts::default()
        }
    }

    fn subject(level: SandboxLevel) -> Subject {
        Subject {
            level,
            variables: vec!["PATH".to_owned()],
            devices: Vec::new(),
            living: None,
            called: false,
            door: false,
            hides: false,
            reaches: Vec::new(),
            at: Timestamp::from_micros(1),
            took: Duration::from_millis(1),
            config: String::new(),
            bounds: Vec::new(),
        }
    }

    /// The answers of a good virtual machine.
    fn good_machine() -> Facts {
        let machine = MachineFacts { interfaces: vec!["lo".to_owned()], ..Default::default() };
        Facts { boot_id: "another".to_owned(), machine: Some(machine), ..good() }
    }

    /// The answers of a good container.
    fn good_container() -> Facts {
        Facts {
            uid: 65534,
            gid: 65534,
            traces: Vec::new(),
            mounts_writable: vec!["/proc".to_owned(), "/dev".to_owned()],
            mounts_with_suid: vec!["/".to_owned()],
            landlock_effect: 0,
            ..good()
        }
    }

    #[test]
    fn a_virtual_machine_is_checked_from_inside_and_outside() {
        let level = SandboxLevel::Microvm;
        assert_eq!(failing(level, &good_machine()), []);
        let with = |change: fn(&mut MachineFacts)| {
            let mut facts = good_machine();
            change(facts.machine.as_mut().unwrap());
            facts
        };
        let broken = [
            (CheckName::Kernel, Facts { boot_id: boot_id(), ..good_machine() }),
            (CheckName::Network, with(|found| found.interfaces.push("eth0".to_owned()))),
            (CheckName::Devices, with(|found| found.devices.push("8086:100e".to_owned()))),
            (CheckName::WriteOutside, with(|found| found.writable.push("root".to_owned()))),
            (CheckName::Homes, Facts { homes: vec!["/root".to_owned()], ..good_machine() }),
        ];
        for (name, facts) in broken {
            assert_eq!(failing(level, &facts), [name], "{name}");
        }
        let silent = Facts { machine: None, ..good_machine() };
        assert_eq!(failing(level, &silent), [CheckName::Network, CheckName::Devices]);
    }

    #[test]
    fn container_root_is_accepted_only_if_rootless() {
        let level = SandboxLevel::Docker;
        assert_eq!(failing(level, &good_container()), []);
        let root = Facts { uid: 0, gid: 0, ..good_container() };
        let mapped = |id| Facts { uid_outside: Some(id), gid_outside: Some(id), ..root.clone() };
        assert_eq!(failing(level, &root), [CheckName::User]);
        assert_eq!(failing(level, &mapped(0)), [CheckName::User]);
        assert_eq!(failing(level, &mapped(1000)), []);
        let open = Facts { mounts_writable: vec!["/".to_owned()], ..good_container() };
        assert_eq!(failing(level, &open), [CheckName::WriteOutside]);
    }

    fn failing(level: SandboxLevel, facts: &Facts) -> Vec<CheckName> {
        judge(subject(level), facts).failed().map(|check| check.name).collect()
    }

    #[test]
    fn a_good_sandbox_passes_every_check() {
        let attestation = judge(subject(SandboxLevel::Namespace), &good());
        assert_eq!(attestation.failed().count(), 0, "{:?}", attestation.checks);
        assert_eq!(attestation.achieved, SandboxLevel::Namespace);
        assert_eq!(attestation.checks.len(), CheckName::ALL.len());
        assert_eq!(refuse_unless_kept(&attestation), Ok(()));
    }

    #[test]
    fn each_finding_fails_its_own_check() {
        let found = || vec!["x".to_owned()];
        let allowed = || vec![Refused { what: "process 1".to_owned(), errno: 0 }];
        let mut shared = good().namespaces;
        shared.insert("net".to_owned(), own_namespaces()["net"].clone());
        let facts = good;
        let broken = [
            (CheckName::Homes, Facts { homes: found(), ..facts() }),
            (CheckName::OtherSessions, Facts { trap_file_at: found(), ..facts() }),
            (CheckName::WriteOutside, Facts { writable: found(), ..facts() }),
            (CheckName::WriteOutside, Facts { mounts_writable: found(), ..facts() }),
            (CheckName::Environment, Facts { trap_variable_in: found(), ..facts() }),
            (CheckName::Environment, Facts { variables: found(), ..facts() }),
            (CheckName::Descriptors, Facts { descriptors: found(), ..facts() }),
            (CheckName::Network, Facts { interfaces: found(), ..facts() }),
            (CheckName::Network, Facts { interfaces: Vec::new(), ..facts() }),
            (CheckName::Network, Facts { routes: found(), ..facts() }),
            (CheckName::HostServices, Facts { host_services: found(), ..facts() }),
            (CheckName::MetadataService, Facts { metadata_routes: found(), ..facts() }),
            (CheckName::EngineSockets, Facts { sockets: found(), ..facts() }),
            (CheckName::HostProcesses, Facts { daemon_visible: true, ..facts() }),
            (CheckName::HostProcesses, Facts { visible_processes: 9, ..facts() }),
            (CheckName::Trace, Facts { traces: allowed(), ..facts() }),
            (CheckName::Namespaces, Facts { namespaces: shared, ..facts() }),
            (CheckName::Namespaces, Facts { namespaces: Default::default(), ..facts() }),
            (CheckName::User, Facts { uid: 0, ..facts() }),
            (CheckName::User, Facts { groups: vec![0], ..facts() }),
            (CheckName::Capabilities, Facts { capabilities: Default::default(), ..facts() }),
            (CheckName::SetUserId, Facts { mounts_with_suid: found(), ..facts() }),
            (CheckName::SystemCalls, Facts { seccomp: 0, ..facts() }),
            (CheckName::SystemCalls, Facts { calls: Vec::new(), ..facts() }),
            (CheckName::Landlock, Facts { landlock_effect: 0, ..facts() }),
            (CheckName::ProcEscapes, Facts { proc_escapes: found(), ..facts() }),
            (CheckName::Devices, Facts { devices: found(), ..facts() }),
            (CheckName::KeyRings, Facts { key_rings: allowed(), ..facts() }),
        ];
        for (name, facts) in broken {
            assert_eq!(failing(SandboxLevel::Namespace, &facts), [name], "{name}");
        }
        let privileged = Facts { no_new_privileges: false, ..good() };
        assert_eq!(
            failing(SandboxLevel::Namespace, &privileged),
            [CheckName::NoNewPrivileges, CheckName::SetUserId]
        );
    }

    #[test]
    fn an_empty_answer_passes_no_check_that_needs_evidence() {
        let failed = failing(SandboxLevel::Namespace, &Facts::default());
        for name in [
            CheckName::Network,
            CheckName::Namespaces,
            CheckName::User,
            CheckName::Capabilities,
            CheckName::NoNewPrivileges,
            CheckName::SystemCalls,
            CheckName::KeyRings,
        ] {
            assert!(failed.contains(&name), "{name}");
        }
    }

    #[test]
    fn only_the_granted_device_is_accepted() {
        let given = ["/dev/kvm".to_owned()];
        let subject = || Subject { devices: given.to_vec(), ..subject(SandboxLevel::Namespace) };
        let judged = |found: &[&str]| {
            let devices = found.iter().map(|path| (*path).to_owned()).collect();
            let attestation = judge(subject(), &Facts { devices, ..good() });
            let devices = attestation.checks.iter().find(|check| check.name == CheckName::Devices);
            (attestation.failed().count(), devices.expect("it is checked").clone())
        };
        for found in [&[][..], &["/dev/kvm"]] {
            let (failed, check) = judged(found);
            assert_eq!((failed, check.pass), (0, true));
            assert_eq!(check.expected, "none with state but /dev/kvm");
        }
        for found in [&["/dev/kvm", "/dev/kmsg"][..], &["/dev/kvm2"], &["and 3 more"]] {
            let (failed, check) = judged(found);
            assert_eq!((failed, check.pass), (1, false), "{found:?}");
        }
        let machine = Facts { devices: vec!["/dev/kvm".to_owned()], ..good_container() };
        assert_eq!(failing(SandboxLevel::Docker, &machine), [CheckName::Devices]);
    }

    #[test]
    fn the_mesh_is_one_relay_that_leads_only_to_the_server() {
        let room = || Subject { living: Some(Network::Mesh), ..subject(SandboxLevel::Namespace) };
        let mesh = || Subject { door: true, ..room() };
        let listeners = || expected_listeners(true, &[]);
        let facts = || Facts { listeners: listeners(), door_kept: WORDS, ..good() };
        let failed = |facts: &Facts| -> Vec<CheckName> {
            judge(mesh(), facts).failed().map(|check| check.name).collect()
        };
        assert_eq!(failed(&facts()), []);
        let more = [listeners(), vec!["tcp 127.0.0.1:8080".to_owned()]].concat();
        let mut shared = good().namespaces;
        shared.insert("net".to_owned(), own_namespaces()["net"].clone());
        for (name, facts) in [
            (CheckName::HostServices, good()),
            (CheckName::HostServices, Facts { door_kept: WORDS - 1, door_lost: 1, ..facts() }),
            (CheckName::HostServices, Facts { listeners: more, ..facts() }),
            (CheckName::HostServices, Facts { host_services: vec!["tcp".to_owned()], ..facts() }),
            (CheckName::Network, Facts { routes: vec!["198.51.100.1".to_owned()], ..facts() }),
            (CheckName::Network, Facts { interfaces: vec!["lo".into(), "eth0".into()], ..facts() }),
            (CheckName::MetadataService, Facts { metadata_routes: vec!["a".into()], ..facts() }),
            (CheckName::Namespaces, Facts { namespaces: shared, ..facts() }),
        ] {
            assert_eq!(failed(&facts), [name], "{facts:?}");
        }
        // With services: only those ports, each to its own target.
        let with = || Subject { reaches: vec![20_001, 443], ..mesh() };
        let failed = |facts: &Facts| judge(with(), facts).failed().count();
        let listeners = || expected_listeners(true, &[20_001, 443]);
        let own = || Facts { listeners: listeners(), reaches_kept: 2 * WORDS, ..facts() };
        assert_eq!(failed(&own()), 0);
        for broken in [
            facts(),
            Facts { listeners: expected_listeners(true, &[20_001]), ..own() },
            Facts { listeners: [listeners(), vec!["udp x".to_owned()]].concat(), ..own() },
            Facts { reaches_kept: 2 * WORDS - 1, ..own() },
            Facts { reaches_lost: 1, ..own() },
        ] {
            assert_eq!(failed(&broken), 1, "{broken:?}");
        }
        let record = judge(with(), &own());
        let services = record.checks.iter().find(|check| check.name == CheckName::HostServices);
        let expected = &services.expect("it is checked").expected;
        assert!(expected.contains("at ports 20001, 443; listening: "), "{expected}");
        let record = judge(mesh(), &facts());
        assert!(record.driver.ends_with("network mesh"), "{}", record.driver);
        let services = record.checks.iter().find(|check| check.name == CheckName::HostServices);
        let measured = &services.expect("it is checked").measured;
        assert!(measured.contains("tcp 127.0.0.1:80, udp 127.0.0.1:53"), "{measured}");
    }

    #[test]
    fn a_sandbox_without_server_access_has_no_relay() {
        let room = |reaches: &[u16]| Subject {
            living: Some(Network::Mesh),
            reaches: reaches.to_vec(),
            ..subject(SandboxLevel::Namespace)
        };
        let alone = Facts { listeners: expected_listeners(false, &[]), ..good() };
        assert_eq!(judge(room(&[]), &alone).failed().count(), 0);
        let reaches_kept = WORDS;
        let own = Facts { listeners: expected_listeners(false, &[443]), reaches_kept, ..good() };
        let record = judge(room(&[443]), &own);
        assert_eq!(record.failed().count(), 0);
        assert!(record.driver.ends_with("network of its room"), "{}", record.driver);
        for facts in [
            Facts { listeners: expected_listeners(true, &[]), ..alone.clone() },
            Facts { door_kept: WORDS, ..alone.clone() },
            own,
        ] {
            let failed: Vec<CheckName> =
                judge(room(&[]), &facts).failed().map(|check| check.name).collect();
            assert_eq!(failed, [CheckName::HostServices], "{facts:?}");
        }
    }

    #[test]
    fn a_kernel_without_landlock_passes_the_checks() {
        let facts = Facts { landlock_abi: 0, landlock_effect: 0, ..good() };
        assert_eq!(failing(SandboxLevel::Namespace, &facts), []);
    }

    #[test]
    fn a_refusal_names_the_checks_and_the_remedy() {
        let facts = Facts { routes: vec!["198.51.100.1".to_owned()], ..good() };
        match refuse_unless_kept(&judge(subject(SandboxLevel::Namespace), &facts)) {
            Err(SandboxError::Unavailable { code, message, reason, remedy }) => {
                assert_eq!(code, NOT_ATTESTED);
                assert_eq!(reason, "attestation_failed: network");
                assert!(message.contains("routes to 198.51.100.1"), "{message}");
                assert!(!remedy.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_level_none_is_reported_and_never_refused() {
        let facts = Facts { homes: vec!["/root".to_owned()], ..Facts::default() };
        let attestation = judge(subject(SandboxLevel::None), &facts);
        assert_eq!(attestation.failed().count(), 0);
        assert_eq!(attestation.achieved, SandboxLevel::None);
        assert_eq!(attestation.checks[0].measured, "/root");
    }
}
