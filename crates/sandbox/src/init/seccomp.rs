//! The system call filter of the `namespace` sandbox.
//!
//! There are two filters, and the stricter answer applies:
//!
//! 1. an **allow-list**. Every other call returns `ENOSYS`, as on an older kernel, so that programs
//!    use an alternative (`clone` for `clone3`, `openat` for `openat2`). A call that a future
//!    kernel adds is refused until somebody has checked what it does;
//! 2. **refusals by name or argument**, which return `EPERM`: the error that a person expects if
//!    something is forbidden instead of missing. If both filters refuse, the kernel uses the answer
//!    of the filter that was installed last, which is this one.
//!
//! The kernel kills programs with another calling convention (32-bit on a 64-bit machine) with
//! SIGSYS, because their call numbers have other meanings.

use std::collections::{BTreeMap, BTreeSet};

use overmind_core::enclosure::Network;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;

/// Both programs, in the order of installation.
pub(crate) fn programs(network: Network) -> Result<[BpfProgram; 2], BackendError> {
    Ok([allow_list(), refusals(network)?.try_into()?])
}

/// The filter is written by hand, not compiled like the other one: consecutive numbers become two
/// comparisons, so it is less than a third as long. The kernel checks and translates it for each
/// command, which took two thirds of a millisecond.
fn allow_list() -> BpfProgram {
    let numbers: BTreeSet<u32> = ALLOWED
        .iter()
        .chain(ALLOWED_HERE)
        .map(|number| u32::try_from(*number).expect("call numbers are small"))
        .collect();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            Some(_) | None => ranges.push((number, number)),
        }
    }
    let [kill, allow, deny] =
        [SeccompAction::KillProcess, SeccompAction::Allow, SeccompAction::Errno(ENOSYS)]
            .map(|action| step(RETURN, u32::from(action), 0, 0));
    let mut program = vec![
        step(LOAD, OFFSET_OF_ARCH, 0, 0),
        step(IF_EQUAL, AUDIT_ARCH, 1, 0),
        kill,
        step(LOAD, OFFSET_OF_NUMBER, 0, 0),
    ];
    // The ranges are ascending, so a number between two ranges is in none.
    for (first, last) in ranges {
        program.push(step(IF_ABOVE, last, 3, 0));
        program.push(step(IF_AT_LEAST, first, 0, 1));
        program.extend([allow.clone(), deny.clone()]);
    }
    program.push(deny);
    program
}

/// One instruction; `then` and `otherwise` are the numbers of following instructions to skip.
fn step(code: u16, k: u32, then: u8, otherwise: u8) -> sock_filter {
    sock_filter { code, jt: then, jf: otherwise, k }
}

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const IF_ABOVE: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
/// The offset in `struct seccomp_data`.
const OFFSET_OF_NUMBER: u32 = 0;
const OFFSET_OF_ARCH: u32 = 4;
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

const ENOSYS: u32 = libc::ENOSYS.unsigned_abs();
const EPERM: u32 = libc::EPERM.unsigned_abs();

fn refusals(network: Network) -> Result<SeccompFilter, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|number| (*number, vec![])).collect();

    // A new namespace gives back every capability inside of it, and with that most of the kernel.
    let namespaces = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ];
    let clones: Result<Vec<_>, _> =
        namespaces.into_iter().map(|flag| rule(&[has_bits(0, flag.unsigned_abs())?])).collect();
    rules.insert(libc::SYS_clone, clones?);

    let sockets = match network {
        Network::None => {
            let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
            vec![none_of(0, families.map(i32::unsigned_abs))?]
        }
        // With a network, programs ask for its addresses through one protocol of netlink. A change
        // there needs a capability that no process inside has.
        Network::Host | Network::Mesh => {
            let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
            let other_protocols = rule(&[
                is(0, libc::AF_NETLINK.unsigned_abs())?,
                is_not(2, libc::NETLINK_ROUTE.unsigned_abs())?,
            ])?;
            vec![none_of(0, families.map(i32::unsigned_abs))?, other_protocols]
        }
    };
    rules.insert(libc::SYS_socket, sockets);

    // The execution domains that only change the address layout; 0xffff_ffff only queries.
    let domains = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];
    rules.insert(libc::SYS_personality, vec![none_of(0, domains)?]);

    // Pushing input into a terminal is an escape from a sandbox that shares one.
    let pushes: Result<Vec<_>, _> =
        [TIOCSTI, TIOCLINUX].into_iter().map(|command| rule(&[is(1, command)?])).collect();
    rules.insert(libc::SYS_ioctl, pushes?);

    // The command's files belong to the caller outside. A set-user-id program in the workspace
    // would therefore be the caller's, and any user of the host could start it.
    for (number, mode_argument) in mode_calls() {
        rules.insert(number, set_id_rules(&[], mode_argument)?);
    }
    for (number, flags_argument) in open_calls() {
        let mut both = set_id_rules(&[has_bits(flags_argument, O_CREAT)?], flags_argument + 1)?;
        both.extend(set_id_rules(&[has_bits(flags_argument, O_TMPFILE)?], flags_argument + 1)?);
        rules.insert(number, both);
    }
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(EPERM), ARCH)
}

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
const O_CREAT: u32 = libc::O_CREAT.unsigned_abs();
/// The flag's own bit, without `O_DIRECTORY`, which the C library's constant includes.
const O_TMPFILE: u32 = (libc::O_TMPFILE & !libc::O_DIRECTORY).unsigned_abs();

/// Calls that set a mode, with the index of that argument.
fn mode_calls() -> Vec<(i64, u8)> {
    let mut calls = vec![
        (libc::SYS_fchmod, 1),
        (libc::SYS_fchmodat, 2),
        (libc::SYS_fchmodat2, 2),
        (libc::SYS_mknodat, 2),
    ];
    #[cfg(target_arch = "x86_64")]
    calls.extend([(libc::SYS_chmod, 1), (libc::SYS_creat, 1), (libc::SYS_mknod, 1)]);
    calls
}

/// Calls that open files, with the index of their flags; the mode follows.
fn open_calls() -> Vec<(i64, u8)> {
    let mut calls = vec![(libc::SYS_openat, 2)];
    #[cfg(target_arch = "x86_64")]
    calls.push((libc::SYS_open, 1));
    calls
}

/// Makes one rule for set-user-id and one for set-group-id.
fn set_id_rules(
    also: &[SeccompCondition],
    mode_argument: u8,
) -> Result<Vec<SeccompRule>, BackendError> {
    [libc::S_ISUID, libc::S_ISGID]
        .into_iter()
        .map(|bit| {
            let mut all = also.to_vec();
            all.push(has_bits(mode_argument, bit)?);
            rule(&all)
        })
        .collect()
}

fn rule(all: &[SeccompCondition]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(all.to_vec())
}

fn has_bits(argument: u8, bits: u32) -> Result<SeccompCondition, BackendError> {
    let bits = u64::from(bits);
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bits), bits)
}

fn is(argument: u8, value: u32) -> Result<SeccompCondition, BackendError> {
    let value = u64::from(value);
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn is_not(argument: u8, value: u32) -> Result<SeccompCondition, BackendError> {
    let value = u64::from(value);
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
}

fn none_of<const N: usize>(argument: u8, values: [u32; N]) -> Result<SeccompRule, BackendError> {
    let all: Result<Vec<_>, _> = values
        .into_iter()
        .map(|value| {
            let value = u64::from(value);
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
        })
        .collect();
    SeccompRule::new(all?)
}

macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// Calls that are refused by name. Most are not on the allow-list either; here they get the clearer
/// error.
const REFUSED: &[i64] = calls![
    // the mount family, and other roots
    SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_open_tree SYS_move_mount SYS_fsopen
    SYS_fsconfig SYS_fsmount SYS_fspick SYS_mount_setattr
    SYS_name_to_handle_at SYS_open_by_handle_at SYS_quotactl SYS_quotactl_fd
    // namespaces
    SYS_unshare SYS_setns
    // other processes' memory and descriptors
    SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_pidfd_getfd
    SYS_kcmp SYS_move_pages SYS_migrate_pages
    // large, young or rarely needed kernel surface
    SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_io_uring_setup SYS_io_uring_enter
    SYS_io_uring_register SYS_fanotify_init SYS_fanotify_mark SYS_vmsplice
    SYS_add_key SYS_request_key SYS_keyctl
    // the machine itself
    SYS_kexec_load SYS_kexec_file_load SYS_init_module SYS_finit_module SYS_delete_module
    SYS_reboot SYS_swapon SYS_swapoff SYS_acct SYS_syslog SYS_vhangup SYS_settimeofday
    SYS_clock_settime SYS_clock_adjtime SYS_adjtimex SYS_sethostname SYS_setdomainname
];

/// Calls of shells, compilers, interpreters and version control, on every architecture.
const ALLOWED: &[i64] = calls![
    // files
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev
    SYS_preadv2 SYS_pwritev2 SYS_openat SYS_close SYS_close_range SYS_lseek SYS_fstat
    SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_faccessat SYS_faccessat2 SYS_getdents64
    SYS_getcwd SYS_chdir SYS_fchdir SYS_renameat SYS_renameat2 SYS_mkdirat SYS_linkat
    SYS_symlinkat SYS_unlinkat SYS_readlinkat SYS_fchmod SYS_fchmodat SYS_fchmodat2 SYS_fchown
    SYS_fchownat SYS_umask SYS_utimensat SYS_truncate SYS_ftruncate SYS_fallocate SYS_fadvise64
    SYS_readahead SYS_sync SYS_syncfs SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_flock
    SYS_fcntl SYS_ioctl SYS_dup SYS_dup3 SYS_pipe2 SYS_sendfile SYS_splice SYS_tee
    SYS_copy_file_range SYS_mknodat SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_getxattr
    SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_removexattr
    SYS_lremovexattr SYS_fremovexattr SYS_memfd_create
    // waiting
    SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
    SYS_eventfd2 SYS_signalfd4 SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime
    SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch
    // memory
    SYS_mmap SYS_mprotect SYS_munmap SYS_mremap SYS_brk SYS_madvise SYS_mincore SYS_msync
    SYS_mlock SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_remap_file_pages
    SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_membarrier SYS_get_mempolicy
    // processes and threads
    SYS_clone SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_kill
    SYS_tkill SYS_tgkill SYS_pidfd_open SYS_pidfd_send_signal SYS_getpid SYS_getppid SYS_gettid
    SYS_set_tid_address SYS_set_robust_list SYS_get_robust_list SYS_rseq SYS_futex
    SYS_futex_waitv SYS_sched_yield SYS_sched_setparam SYS_sched_getparam
    SYS_sched_setscheduler SYS_sched_getscheduler SYS_sched_get_priority_max
    SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_sched_setaffinity
    SYS_sched_getaffinity SYS_sched_setattr SYS_sched_getattr SYS_getcpu SYS_getpriority
    SYS_setpriority SYS_ioprio_get SYS_ioprio_set SYS_setpgid SYS_getpgid SYS_setsid SYS_getsid
    SYS_prctl SYS_personality SYS_restart_syscall
    // signals and time
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending SYS_rt_sigtimedwait
    SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_rt_sigsuspend SYS_sigaltstack SYS_nanosleep
    SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_gettimeofday SYS_getitimer
    SYS_setitimer SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun
    SYS_timer_delete SYS_times
    // identity and limits: they can only be given up
    SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getgroups SYS_setgroups SYS_setuid
    SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_getresuid SYS_setresgid
    SYS_getresgid SYS_setfsuid SYS_setfsgid SYS_capget SYS_capset SYS_getrlimit SYS_setrlimit
    SYS_prlimit64 SYS_getrusage SYS_sysinfo SYS_uname SYS_getrandom
    // sandboxes inside the sandbox: they can only tighten it
    SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
    // sockets of the allowed families, in a network of its own
    SYS_socket SYS_socketpair SYS_connect SYS_accept SYS_accept4 SYS_bind SYS_listen
    SYS_getsockname SYS_getpeername SYS_setsockopt SYS_getsockopt SYS_shutdown SYS_sendto
    SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg
    // System V and POSIX IPC, in an IPC namespace of its own
    SYS_shmget SYS_shmat SYS_shmctl SYS_shmdt SYS_semget SYS_semop SYS_semctl SYS_semtimedop
    SYS_msgget SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_mq_open SYS_mq_unlink SYS_mq_timedsend
    SYS_mq_timedreceive SYS_mq_notify SYS_mq_getsetattr
];

/// Older calls that only x86-64 has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[i64] = calls![
    SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_pipe SYS_dup2 SYS_poll SYS_select
    SYS_rename SYS_mkdir SYS_rmdir SYS_link SYS_unlink SYS_symlink SYS_readlink SYS_chmod
    SYS_chown SYS_lchown SYS_mknod SYS_utime SYS_utimes SYS_futimesat SYS_getdents
    SYS_epoll_create SYS_epoll_wait SYS_inotify_init SYS_signalfd SYS_eventfd SYS_pause
    SYS_alarm SYS_fork SYS_vfork SYS_getpgrp SYS_time SYS_arch_prctl
];
#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[i64] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_compile_and_fit_the_kernels_bound() {
        for network in [Network::None, Network::Mesh, Network::Host] {
            for program in programs(network).unwrap() {
                assert!(!program.is_empty() && program.len() <= 4096, "{} steps", program.len());
            }
        }
    }

    /// The answer of the kernel: only the instructions that the programs use.
    fn answer(program: &BpfProgram, arch: u32, number: u32) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let skipped = |holds| usize::from(if holds { jt } else { jf });
            at += 1 + match code {
                LOAD => {
                    loaded = if k == OFFSET_OF_NUMBER { number } else { arch };
                    0
                }
                IF_EQUAL => skipped(loaded == k),
                IF_ABOVE => skipped(loaded > k),
                IF_AT_LEAST => skipped(loaded >= k),
                RETURN => return k,
                // Unconditional.
                0x05 => k as usize,
                other => panic!("no instruction of ours: {other:#x}"),
            };
        }
    }

    #[test]
    fn the_filter_matches_the_allow_list_for_each_number() {
        let rules = ALLOWED.iter().chain(ALLOWED_HERE).map(|number| (*number, vec![])).collect();
        let compiled: BpfProgram =
            SeccompFilter::new(rules, SeccompAction::Errno(ENOSYS), SeccompAction::Allow, ARCH)
                .unwrap()
                .try_into()
                .unwrap();
        let ours = allow_list();
        assert!(ours.len() * 3 < compiled.len(), "{} of {}", ours.len(), compiled.len());
        // The last ones with the bit of another calling convention.
        let numbers = (0..2000).chain([u32::MAX, 0x4000_0000, 0x4000_0001, 0x4000_003b]);
        for number in numbers {
            let listed = ALLOWED.iter().chain(ALLOWED_HERE).any(|one| *one == i64::from(number));
            let expected = if listed { SeccompAction::Allow } else { SeccompAction::Errno(ENOSYS) };
            assert_eq!(answer(&ours, AUDIT_ARCH, number), u32::from(expected), "{number}");
            assert_eq!(answer(&compiled, AUDIT_ARCH, number), answer(&ours, AUDIT_ARCH, number));
            let killed = u32::from(SeccompAction::KillProcess);
            assert_eq!(answer(&ours, 0x4000_0003, number), killed, "32-bit programs");
        }
    }

    #[test]
    fn refused_and_allowed_system_calls_are_disjoint() {
        for number in REFUSED {
            assert!(!ALLOWED.contains(number) && !ALLOWED_HERE.contains(number), "{number}");
        }
    }

    #[test]
    fn calls_with_a_library_fallback_are_in_no_list() {
        for number in [libc::SYS_clone3, libc::SYS_openat2] {
            assert!(!ALLOWED.contains(&number) && !REFUSED.contains(&number), "{number}");
        }
    }
}
