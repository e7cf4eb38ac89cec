//! The only module of this crate that may use `unsafe`; everything it exports is safe to call.
//!
//! It holds the few system calls that neither `std` nor `rustix` offers safely: `fork` and
//! `execve` for the init, `mount_setattr`, a signalfd, and the loopback's `ioctl`.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// The side of a [`fork`] that continues.
pub(crate) enum Fork {
    Child,
    Parent(Pid),
}

/// Duplicates this process.
///
/// Only the init calls it, and the init has one thread (it is a fresh program that starts none),
/// so the child may allocate and lock as usual: no other thread can hold a lock at the fork.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: `fork` itself has no memory precondition. What follows it is only dangerous when
    // another thread holds a lock at that moment; see above for why there is none.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(Pid::from_raw(pid).expect("fork returns a positive pid here"))),
    }
}

/// Ends this process at once, without the destructors and buffers of the runtime.
///
/// After a [`fork`] the child must not run the parent's exit handlers.
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
    /// `None` if one of `texts` contains a NUL byte.
    pub(crate) fn new(texts: impl IntoIterator<Item = String>) -> Option<Self> {
        let owned: Vec<CString> =
            texts.into_iter().map(CString::new).collect::<Result<_, _>>().ok()?;
        // The bytes of a CString live on the heap, so moving the Vec moves none of them.
        let pointers =
            owned.iter().map(|text| text.as_ptr()).chain(std::iter::once(ptr::null())).collect();
        Some(Self { _owned: owned, pointers })
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

/// Works as [`exec`], with the program as an open file.
pub(crate) fn exec_file(program: BorrowedFd<'_>, argv: &CStrings, env: &CStrings) -> io::Error {
    // SAFETY: as in `exec`; the path is empty and NUL-terminated, and the descriptor is open
    // for the length of the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.pointers.as_ptr(),
            env.pointers.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

/// Moves this process into new namespaces. Only the kernel checks whether that is allowed.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES), "descriptors stay shared");
    // SAFETY: the one danger is `FILES` (threads that see different descriptors), never passed.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Makes descriptor number `target` (0, 1 or 2) a copy of `source`, kept across `execve`.
pub(crate) fn replace_standard_stream(source: BorrowedFd<'_>, target: u8) -> io::Result<()> {
    debug_assert!(target <= 2, "only the standard streams may be replaced");
    // SAFETY: replacing 0, 1 or 2 invalidates no owned descriptor: the standard streams are
    // never owned by an `OwnedFd` in the init, which takes them as `Stdin`, `Stdout`, `Stderr`.
    let done = unsafe { libc::dup2(source.as_raw_fd(), c_int::from(target)) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
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

/// Marks every descriptor from 3 up to be closed by `execve`, whichever code opened it.
pub(crate) fn close_all_on_exec() -> io::Result<()> {
    // SAFETY: with CLOSE_RANGE_CLOEXEC nothing is closed now; descriptors only get a flag.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Attributes that [`mount_setattr`] sets.
pub(crate) const MOUNT_RDONLY: u64 = 0x1;
pub(crate) const MOUNT_NOSUID: u64 = 0x2;
pub(crate) const MOUNT_NODEV: u64 = 0x4;
pub(crate) const MOUNT_NOEXEC: u64 = 0x8;

/// Which mounts below the given one are changed too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    This,
    Recursive,
}

/// Sets attributes on the mount that `mount` is the root of (Linux 5.12).
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, depth: Depth, set: u64) -> io::Result<()> {
    /// `struct mount_attr` of the kernel, first version.
    #[repr(C)]
    struct MountAttr {
        attr_set: u64,
        attr_clr: u64,
        propagation: u64,
        userns_fd: u64,
    }
    let attr = MountAttr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = match depth {
        Depth::This => libc::AT_EMPTY_PATH,
        Depth::Recursive => libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
    };
    // SAFETY: the path is an empty NUL-terminated string, `attr` lives through the call and its
    // true size is passed; the kernel only reads it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            mem::size_of::<MountAttr>(),
        )
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Blocks SIGCHLD and returns a descriptor that is readable when a child has changed state.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    signals(&[libc::SIGCHLD])
}

/// Blocks these signals and returns a descriptor that is readable when one has arrived.
pub(crate) fn signals(which: &[c_int]) -> io::Result<OwnedFd> {
    // SAFETY: `set` is written by sigemptyset before it is read; both calls get valid pointers,
    // and the returned descriptor is new, so nobody else owns it.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in which {
            libc::sigaddset(&raw mut set, *signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) == -1 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The signals that have arrived, from the bytes read from [`signals`].
pub(crate) fn signal_numbers(read: &[u8]) -> impl Iterator<Item = u8> {
    let (records, _) = read.as_chunks::<{ mem::size_of::<libc::signalfd_siginfo>() }>();
    // The number is the first field, four bytes wide, and no more than 64.
    let number = |record: &[u8]| u32::from_ne_bytes([record[0], record[1], record[2], record[3]]);
    records.iter().filter_map(move |record| u8::try_from(number(record)).ok())
}

/// Ignores a signal until [`reset_signals`].
pub(crate) fn ignore(signal: c_int) {
    // SAFETY: SIG_IGN installs no handler.
    unsafe {
        libc::signal(signal, libc::SIG_IGN);
    }
}

/// Sends a signal to a whole process group.
pub(crate) fn kill_group(group: Pid, signal: c_int) -> io::Result<()> {
    // SAFETY: `kill` has no memory precondition; the number of a signal is checked by the kernel.
    let done = unsafe { libc::kill(-group.as_raw_nonzero().get(), signal) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a signal to this process. If the signal is fatal, this does not return.
pub(crate) fn end_by(signal: c_int) {
    // SAFETY: as in `kill_group`.
    unsafe {
        libc::kill(libc::getpid(), signal);
    }
}

/// Gives up the controlling terminal, if this process leads the terminal's session.
pub(crate) fn leave_terminal(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: this request takes no argument, so nothing is read or written through a pointer.
    let done = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets every signal to its default action and unblocks all, as a new program expects.
///
/// The Rust runtime ignores SIGPIPE, and the init blocks SIGCHLD; `execve` would keep both.
pub(crate) fn reset_signals() {
    // SAFETY: SIG_DFL installs no handler. Numbers that cannot be changed (SIGKILL, SIGSTOP, the
    // two of the threading library) are refused without effect, so errors are of no interest.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Brings up the loopback device of this network namespace.
pub(crate) fn loopback_up(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `ifreq` is plain data for which all zeroes is valid; the name fits with its NUL.
    // SIOCSIFFLAGS reads the name and the flags, which are the union member that is set.
    let done = unsafe {
        let mut request: libc::ifreq = mem::zeroed();
        request.ifr_name[0] = c_char::from_ne_bytes([b'l']);
        request.ifr_name[1] = c_char::from_ne_bytes([b'o']);
        request.ifr_ifru.ifru_flags = UP;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The state of a TCP socket, by the kernel's numbers.
pub(crate) fn tcp_state(socket: BorrowedFd<'_>) -> io::Result<u8> {
    let mut state = 0u8;
    let mut length: libc::socklen_t = 1;
    // SAFETY: the kernel writes at most `length` bytes, of which there is one: it is the first field
    // of `tcp_info`. Both pointers live through the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut state).cast(),
            &raw mut length,
        )
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(state) }
}

/// Makes the kernel mix the bytes last written to `random` (`/dev/urandom`) into its random numbers
/// at once instead of later.
pub(crate) fn reseed(random: BorrowedFd<'_>) -> io::Result<()> {
    /// `RNDRESEEDCRNG`.
    const RESEED: libc::c_ulong = 0x5207;
    // SAFETY: this request takes no argument, so nothing is read or written through a pointer.
    let done = unsafe { libc::ioctl(random.as_raw_fd(), RESEED) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `IFF_UP` in the width that `ifreq` stores it in.
const UP: i16 = 1;

/// The error number of a call's result; 0 for success.
fn errno_of(result: libc::c_long) -> i32 {
    if result == -1 { io::Error::last_os_error().raw_os_error().unwrap_or(-1) } else { 0 }
}

/// Makes calls that no command needs, with arguments that do nothing if the call is allowed, and
/// returns the result of each.
///
/// If nothing forbids them, they return success or an error about their arguments, except for calls
/// that check for a capability first.
pub(crate) fn try_dangerous_calls() -> Vec<(&'static str, i32)> {
    let null = 0usize;
    let none = -1 as libc::c_long;
    // SAFETY: every pointer argument is null or an empty NUL-terminated string, every
    // descriptor is -1 and every process number is 0 or -1, so no memory is read or written
    // and nothing but this process's own flags could change: `unshare(0)` names no namespace.
    let mut ended = unsafe {
        vec![
            ("unshare", errno_of(libc::syscall(libc::SYS_unshare, 0))),
            ("setns", errno_of(libc::syscall(libc::SYS_setns, none, 0))),
            ("mount", errno_of(libc::syscall(libc::SYS_mount, null, null, null, 0, null))),
            ("fsopen", errno_of(libc::syscall(libc::SYS_fsopen, null, 0xffff))),
            ("open_tree", errno_of(libc::syscall(libc::SYS_open_tree, none, null, 0xf000_0000u32))),
            (
                "open_by_handle_at",
                errno_of(libc::syscall(libc::SYS_open_by_handle_at, none, null, 0)),
            ),
            ("bpf", errno_of(libc::syscall(libc::SYS_bpf, 9999, null, 0))),
            (
                "perf_event_open",
                errno_of(libc::syscall(libc::SYS_perf_event_open, null, 0, none, none, 0)),
            ),
            ("userfaultfd", errno_of(libc::syscall(libc::SYS_userfaultfd, 0xffff))),
            ("io_uring_setup", errno_of(libc::syscall(libc::SYS_io_uring_setup, 0, null))),
            (
                "process_vm_readv",
                errno_of(libc::syscall(libc::SYS_process_vm_readv, none, null, 0, null, 0, 0)),
            ),
            ("ptrace", errno_of(libc::syscall(libc::SYS_ptrace, libc::PTRACE_ATTACH, none, 0, 0))),
            // None of our lists names this call, so it shows the allow-list's default answer.
            ("set_mempolicy", errno_of(libc::syscall(libc::SYS_set_mempolicy, 99, null, 0))),
            ("kexec_load", errno_of(libc::syscall(libc::SYS_kexec_load, 0, 0, null, 0xffff))),
            ("init_module", errno_of(libc::syscall(libc::SYS_init_module, null, 0, null))),
        ]
    };
    for (name, family) in [
        ("socket netlink", libc::AF_NETLINK),
        ("socket packet", libc::AF_PACKET),
        ("socket vsock", libc::AF_VSOCK),
        ("socket alg", libc::AF_ALG),
    ] {
        let kind = if family == libc::AF_ALG { libc::SOCK_SEQPACKET } else { libc::SOCK_RAW };
        // SAFETY: `socket` takes no memory; the new descriptor is closed at once by its owner.
        let made = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) };
        if made >= 0 {
            // SAFETY: just created, and not shared.
            drop(unsafe { OwnedFd::from_raw_fd(made) });
        }
        ended.push((name, errno_of(made.into())));
    }
    ended
}

/// Tries to use the key rings; returns the error numbers.
pub(crate) fn try_key_rings() -> Vec<(&'static str, i32)> {
    /// The session's key ring, which a child inherits from its parent.
    const SESSION: libc::c_long = -3;
    // SAFETY: asks for the number of a ring and does not make one; null pointers are not read.
    unsafe {
        vec![
            ("keyctl", errno_of(libc::syscall(libc::SYS_keyctl, 0, SESSION, 0))),
            ("add_key", errno_of(libc::syscall(libc::SYS_add_key, 0usize, 0usize, 0usize, 0, 0))),
            (
                "request_key",
                errno_of(libc::syscall(libc::SYS_request_key, 0usize, 0usize, 0usize, 0)),
            ),
        ]
    }
}

/// Tries to trace a process without stopping it; returns the error number. A trace that was allowed
/// ends with this process.
pub(crate) fn try_trace(pid: i32) -> i32 {
    /// `PTRACE_SEIZE`: unlike `PTRACE_ATTACH` it does not stop.
    const SEIZE: libc::c_long = 0x4206;
    // SAFETY: no memory of this process is read or written, and no option is set.
    errno_of(unsafe { libc::syscall(libc::SYS_ptrace, SEIZE, libc::c_long::from(pid), 0, 0) })
}

/// The kernel's version of Landlock, or 0.
pub(crate) fn landlock_abi() -> i32 {
    const VERSION: u32 = 1;
    // SAFETY: with the flag VERSION the pointer must be null and the size zero, as they are.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0usize, 0, VERSION) };
    i32::try_from(abi).unwrap_or(0).max(0)
}

/// Tries to make a block device with the number 0:0; returns the error number. Landlock is checked
/// before the capability, so `EACCES` is its answer and `EPERM` that of a kernel without its rules.
/// (A character device with this number would need no capability, but Linux 6.1 allows that one.)
pub(crate) fn try_numberless_device(path: &str) -> i32 {
    let Ok(path) = CString::new(path) else { return libc::EINVAL };
    // SAFETY: the path is NUL-terminated and lives through the call.
    errno_of(unsafe {
        libc::syscall(libc::SYS_mknodat, libc::AT_FDCWD, path.as_ptr(), libc::S_IFBLK | 0o600, 0)
    })
}
