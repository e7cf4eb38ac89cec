//! Turns errors such as "operation not permitted" into instructions for the user.

use std::io;
use std::path::Path;

use overmind_core::sandbox::{SandboxError, SandboxLevel};

use crate::init::spec::Step;

/// The code of every reason that makes the `namespace` level impossible on a machine.
pub(crate) const NAMESPACE_UNAVAILABLE: &str = "namespace_unavailable";

/// The settings that commonly forbid user namespaces; `None` if the kernel has no such setting.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    max_user_namespaces: Option<u64>,
    unprivileged_userns_clone: Option<u64>,
    apparmor_restrict_unprivileged_userns: Option<u64>,
}

impl Machine {
    pub(crate) fn read() -> Self {
        let number = |name: &str| {
            std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().parse().ok()
        };
        Self {
            max_user_namespaces: number("user/max_user_namespaces"),
            unprivileged_userns_clone: number("kernel/unprivileged_userns_clone"),
            apparmor_restrict_unprivileged_userns: number(
                "kernel/apparmor_restrict_unprivileged_userns",
            ),
        }
    }
}

/// Explains a refused step of the set-up.
pub(crate) fn refused(
    step: Step,
    detail: &str,
    errno: i32,
    level: SandboxLevel,
    machine: &Machine,
) -> SandboxError {
    let on = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
    let cause = match errno {
        0 => String::new(),
        errno => format!(": {}", io::Error::from_raw_os_error(errno)),
    };
    let what = format!("{step}{on}{cause}");
    match level {
        SandboxLevel::Namespace => {}
        SandboxLevel::None | SandboxLevel::Docker | SandboxLevel::Microvm => {
            return SandboxError::Failed { level: level.as_str(), message: what };
        }
    }
    match explain(step, errno, machine) {
        Some((reason, remedy)) => SandboxError::Unavailable {
            code: NAMESPACE_UNAVAILABLE.to_owned(),
            message: format!("the namespace sandbox cannot be set up here: {what}"),
            reason: reason.to_owned(),
            remedy: remedy.to_owned(),
        },
        None => SandboxError::Failed { level: level.as_str(), message: what },
    }
}

/// The reason, for programs, and the remedy, for people.
fn explain(step: Step, errno: i32, machine: &Machine) -> Option<(&'static str, &'static str)> {
    let denied = errno == libc::EPERM || errno == libc::EACCES;
    match step {
        Step::Unshare if machine.max_user_namespaces == Some(0) => Some((
            "user_namespaces_disabled",
            "allow user namespaces: sysctl -w user.max_user_namespaces=10000",
        )),
        Step::Unshare if errno == libc::ENOSPC => Some((
            "user_namespaces_exhausted",
            "raise the limit (sysctl user.max_user_namespaces and the other user.max_* values), \
             or end what holds the namespaces",
        )),
        Step::Unshare if denied && machine.unprivileged_userns_clone == Some(0) => Some((
            "user_namespaces_disabled",
            "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1",
        )),
        Step::Unshare | Step::MapUser | Step::Mount | Step::MountAttributes | Step::MountProc
            if denied && machine.apparmor_restrict_unprivileged_userns == Some(1) =>
        {
            Some((
                "apparmor_restricts_user_namespaces",
                "give the program an AppArmor profile with `userns,`, or: \
                 sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
            ))
        }
        Step::Unshare if denied => Some((
            "user_namespaces_denied",
            "a container, a chroot or a system call filter around the daemon forbids them: run \
             it outside, or start the container with a seccomp profile that allows unshare and \
             mount",
        )),
        Step::Unshare if errno == libc::EINVAL || errno == libc::ENOSYS => Some((
            "namespaces_missing",
            "the kernel is built without one of the user, mount, pid, net, ipc, uts or cgroup \
             namespaces; use a kernel that has them",
        )),
        Step::MapUser if denied => Some((
            "user_mapping_denied",
            "a system call filter or security module around the daemon forbids it: run it outside",
        )),
        Step::MountProc if denied => Some((
            "proc_masked",
            "parts of /proc are covered around the daemon (a container does that): run it \
             outside, or start the container with an unmasked /proc \
             (docker: --security-opt systempaths=unconfined)",
        )),
        Step::Mount | Step::MountAttributes | Step::MountProc if errno == libc::ENOSYS => {
            Some(("kernel_too_old", "the driver needs Linux 5.14 or newer"))
        }
        Step::Mount | Step::MountAttributes if denied => Some((
            "mount_denied",
            "a system call filter or security module around the daemon forbids mounting in a \
             namespace of its own: run it outside, or allow it there",
        )),
        Step::PivotRoot if errno == libc::EINVAL => Some((
            "root_is_initramfs",
            "the root file system cannot be changed (it is the initial ramfs, or a chroot): run \
             the daemon on a mounted root",
        )),
        Step::Filter => Some((
            "seccomp_missing",
            "the kernel is built without seccomp filters; use one that has CONFIG_SECCOMP_FILTER",
        )),
        Step::Handshake
        | Step::Unshare
        | Step::MapUser
        | Step::Mount
        | Step::MountAttributes
        | Step::MountProc
        | Step::PivotRoot
        | Step::Network
        | Step::Limits
        | Step::Privileges
        | Step::Start => None,
    }
}

/// The error if the init's program itself could not be started.
pub(crate) fn init_not_started(program: &Path, err: &io::Error) -> SandboxError {
    SandboxError::Unavailable {
        code: NAMESPACE_UNAVAILABLE.to_owned(),
        message: format!("cannot start the sandbox's init {}: {err}", program.display()),
        reason: "init_not_started".to_owned(),
        remedy: "install the program again, and see that the user may start it and has \
                 descriptors and processes left"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(step: Step, errno: i32, machine: Machine, expected: Option<&str>) {
        let reason = explain(step, errno, &machine).map(|(reason, _)| reason);
        assert_eq!(reason, expected);
    }

    #[test]
    fn common_refusals_have_a_specific_reason() {
        let any = Machine::default;
        check(Step::Unshare, libc::EPERM, any(), Some("user_namespaces_denied"));
        check(Step::Unshare, libc::ENOSPC, any(), Some("user_namespaces_exhausted"));
        check(Step::Unshare, libc::EINVAL, any(), Some("namespaces_missing"));
        check(Step::MountProc, libc::EPERM, any(), Some("proc_masked"));
        check(Step::MountAttributes, libc::ENOSYS, any(), Some("kernel_too_old"));
        check(Step::PivotRoot, libc::EINVAL, any(), Some("root_is_initramfs"));
        check(Step::Network, libc::EPERM, any(), None);

        let none = Machine { max_user_namespaces: Some(0), ..any() };
        check(Step::Unshare, libc::ENOSPC, none, Some("user_namespaces_disabled"));
        let debian = Machine { unprivileged_userns_clone: Some(0), ..any() };
        check(Step::Unshare, libc::EPERM, debian, Some("user_namespaces_disabled"));
        let ubuntu = Machine { apparmor_restrict_unprivileged_userns: Some(1), ..any() };
        check(Step::Mount, libc::EACCES, ubuntu, Some("apparmor_restricts_user_namespaces"));
    }

    #[test]
    fn a_refusal_names_the_step_the_object_and_the_cause() {
        let machine = Machine::default();
        let level = SandboxLevel::Namespace;
        match refused(Step::Mount, "/usr", libc::EPERM, level, &machine) {
            SandboxError::Unavailable { code, message, reason, remedy } => {
                assert_eq!(code, NAMESPACE_UNAVAILABLE);
                assert_eq!(
                    message,
                    "the namespace sandbox cannot be set up here: building the root (/usr): \
                     Operation not permitted (os error 1)"
                );
                assert_eq!(reason, "mount_denied");
                assert!(!remedy.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
}
