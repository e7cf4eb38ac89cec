//! The only module of this crate that may use `unsafe`; everything it exports is safe to call.
//!
//! The few system calls that neither `std` nor `rustix` offers safely: making a process, becoming
//! a program, signals as a descriptor.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::process::Pid;

/// The side of a fork that continues.
pub(crate) enum Fork {
    Child,
    Parent(Pid),
}

/// Duplicates this process.
///
/// Only the zygote calls it, which has one thread (it is a fresh program that starts none), so
/// the child may allocate and lock as usual: no other thread can hold a lock at the fork.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: `fork` itself has no memory precondition. What follows it is only dangerous when
    // another thread holds a lock at that moment; see above for why there is none.
    forked(unsafe { libc::fork() }.into())
}

/// Works as [`fork`], with the child created in the cgroup (version 2) whose directory is `group`.
///
/// A process that is moved into a group waits until every processor was idle once, which takes
/// milliseconds. Only the supervisor process calls this, which has one thread like the zygote. The
/// threading library does not notice this fork, so the child must make only system calls and then
/// become another program or end.
pub(crate) fn fork_into(group: BorrowedFd<'_>) -> io::Result<Fork> {
    let descriptor = u64::try_from(group.as_raw_fd()).expect("an open descriptor is not negative");
    // SAFETY: all zeroes is a valid `clone_args`. Without CLONE_VM and with no stack given this
    // call is a fork: the child goes on with a copy of the memory. `args` lives through the call.
    let pid = unsafe {
        let mut args: libc::clone_args = mem::zeroed();
        args.flags = CLONE_INTO_CGROUP;
        args.exit_signal = EXIT_SIGNAL;
        args.cgroup = descriptor;
        libc::syscall(libc::SYS_clone3, &raw mut args, mem::size_of::<libc::clone_args>())
    };
    forked(pid)
}

/// `CLONE_INTO_CGROUP`, Linux 5.7.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// `SIGCHLD`, as for any child.
const EXIT_SIGNAL: u64 = 17;

fn forked(pid: libc::c_long) -> io::Result<Fork> {
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            Ok(Fork::Parent(pid.expect("a fork returns a positive process number here")))
        }
    }
}

/// Ends this process at once, without the destructors and buffers of the runtime: after a fork the
/// child must not run the parent's exit handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` only ends the process.
    unsafe { libc::_exit(code) }
}

/// Arguments or environment in the form that [`exec`] needs.
pub(crate) struct CStrings {
    /// Owns the targets of `pointers`; never changed after construction.
    _owned: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl CStrings {
    pub(crate) fn new(owned: Vec<CString>) -> Self {
        // The bytes of a CString live on the heap, so moving the Vec moves none of them.
        let pointers =
            owned.iter().map(|text| text.as_ptr()).chain(std::iter::once(ptr::null())).collect();
        Self { _owned: owned, pointers }
    }
}

/// Replaces this program by `program`. Returns only if that failed.
pub(crate) fn exec(program: &CStr, argv: &CStrings, env: &CStrings) -> io::Error {
    // SAFETY: `program` is NUL-terminated; both arrays end with a null pointer, and every other
    // element points into a CString that `argv` and `env` own for the length of the call.
    unsafe {
        libc::execve(program.as_ptr(), argv.pointers.as_ptr(), env.pointers.as_ptr());
    }
    io::Error::last_os_error()
}

/// Closes every descriptor from 3 up: those with which the daemon itself was started.
///
/// Call it before this process has opened anything.
pub(crate) fn close_inherited() -> io::Result<()> {
    // SAFETY: called first thing in `main`, so no `OwnedFd` or `File` exists whose descriptor
    // would be closed under it; the standard streams are left out.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Blocks SIGCHLD and SIGTERM and returns a descriptor that is readable when one has arrived.
pub(crate) fn signals() -> io::Result<OwnedFd> {
    // SAFETY: `set` is written by sigemptyset before it is read; all calls get valid pointers,
    // and the returned descriptor is new, so nobody else owns it.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) == -1 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd == -1 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// The signals that have arrived, from the bytes read from [`signals`].
pub(crate) fn signal_numbers(read: &[u8]) -> impl Iterator<Item = u32> {
    let (records, _) = read.as_chunks::<{ mem::size_of::<libc::signalfd_siginfo>() }>();
    // The number is the first field, four bytes wide.
    records.iter().map(|record| u32::from_ne_bytes([record[0], record[1], record[2], record[3]]))
}

/// Sets every signal to its default action: the parent may have ignored some, and supervisor
/// processes and their commands would inherit that.
pub(crate) fn reset_signals() {
    // SAFETY: SIG_DFL installs no handler. Numbers that cannot be changed (SIGKILL, SIGSTOP, the
    // two of the threading library) are refused without effect, so errors are of no interest.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// The signals that supervisor processes ignore; the zygote also ignores SIGCHLD.
const IGNORED: [i32; 2] = [libc::SIGPIPE, libc::SIGHUP];

/// Ignores signals that must not end a supervisor process.
pub(crate) fn ignore_some() {
    IGNORED.into_iter().for_each(ignore);
}

/// Undoes [`ignore_some`] and [`signals`] in a child, as a new program expects: `execve` would keep
/// their effects.
pub(crate) fn restore_signals() {
    // SAFETY: SIG_DFL installs no handler, and the set is written by sigemptyset before it is read.
    unsafe {
        for signal in IGNORED {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Ignores a signal. An ignored SIGCHLD also means that children need not be waited for.
pub(crate) fn ignore(signal: i32) {
    // SAFETY: SIG_IGN installs no handler.
    unsafe {
        libc::signal(signal, libc::SIG_IGN);
    }
}

/// Sets SIGCHLD to its default action again, so that children can be reaped.
pub(crate) fn wait_for_children() {
    // SAFETY: SIG_DFL installs no handler.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// The resources that reaped children have used, and the largest memory of one in KiB.
pub(crate) struct ChildrenUsage {
    pub(crate) user_us: u64,
    pub(crate) system_us: u64,
    pub(crate) max_resident_kib: u64,
}

pub(crate) fn children_usage() -> ChildrenUsage {
    // SAFETY: all zeroes is a valid `rusage`, and the kernel writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000
            + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    ChildrenUsage {
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        max_resident_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
    }
}

/// Sends a signal by its number, including signals without a name here.
pub(crate) fn kill(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: `kill` has no memory precondition; the number of a signal is checked by the kernel.
    let done = unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a signal to a whole process group.
pub(crate) fn kill_group(group: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: as in `kill`.
    let done = unsafe { libc::kill(-group.as_raw_nonzero().get(), signal) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
