//! The process inside of a container that waits for its command and then becomes it.
//!
//! It is the daemon's own program, shown read-only in the container ([`crate::attest::Program`]).
//! It is started with the container's user, limits and filter already in force, so it has no
//! privilege that the command will not have, and only the standard streams as descriptors.
//!
//! It writes [`READY`], reads one [`Order`] from standard input, checks that the mounts are those
//! of the order, writes [`BEGUN`], and calls `execve`. The rest of standard input belongs to the
//! command. If standard input ends before an order, which happens when the daemon ends, the waiter
//! ends too.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use overmind_core::sandbox::{HOME, HomeFile};
use serde::{Deserialize, Serialize};

use crate::docker::place::Seen;
use crate::sys::{self, CStrings};

/// The first argument that makes the program a waiter.
pub(crate) const ARGUMENT: &str = "__docker-waiter";

/// The first output: the container is complete.
pub(crate) const READY: &[u8] = b"overmind: waiting for a command\n";
/// The next output: from here on the streams belong to the command.
pub(crate) const BEGUN: &[u8] = b"overmind: begun\n";
/// The alternative output: the mounts differ from those that were checked.
pub(crate) const EXCHANGED: &[u8] = b"overmind: exchanged\n";

/// The search path without a `PATH`, as in the C library.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// An order contains arguments and variables, which the kernel limits to less.
const MAX_ORDER_BYTES: u64 = 32 << 20;

/// A command for a container.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) argv: Vec<String>,
    /// Variables in addition to those of the engine and the image.
    pub(crate) env: Vec<(String, String)>,
    /// The mounts that the engine was asked for. If any differs, the command is not started.
    pub(crate) mounts: Vec<Seen>,
    /// Files that are written before the command starts.
    #[serde(default)]
    pub(crate) home: Vec<HomeFile>,
    /// Whether the rest of standard input belongs to the command; otherwise it gets none.
    pub(crate) stdin: bool,
}

impl Order {
    /// Serializes the order for [`read`].
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let text = serde_json::to_vec(self).expect("an order is plain data");
        let length = u64::try_from(text.len()).expect("memory is counted in 64 bits");
        [&length.to_le_bytes(), text.as_slice()].concat()
    }
}

/// Becomes the waiter and never returns.
pub(crate) fn become_waiter() -> ! {
    let code = match wait() {
        Ok(None) => 0,
        Ok(Some(failure)) => {
            let _ = writeln!(io::stderr(), "{}", failure.message);
            failure.code
        }
        Err(err) => {
            let _ = writeln!(io::stderr(), "waiting for a command: {err}");
            125
        }
    };
    sys::exit_now(code)
}

/// Why the command did not start, with the text and code of the engine's own init.
struct Failure {
    message: String,
    code: i32,
}

/// Waits for an order. Returns without a failure if none came.
fn wait() -> io::Result<Option<Failure>> {
    say(READY)?;
    // The buffer of `Stdin` is not used, because the bytes after the order belong to the command.
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(order) = read(&mut input)? else { return Ok(None) };
    if let Some(other) = order.mounts.iter().find(|mount| !mount.is_there()) {
        say(EXCHANGED)?;
        return Err(io::Error::other(format!("at {} is another directory", other.path.display())));
    }
    furnish(Path::new(HOME), &order.home)?;
    if !order.stdin {
        let nothing = File::open("/dev/null")?;
        sys::replace_standard_stream(nothing.as_fd(), 0)?;
    }
    say(BEGUN)?;
    sys::close_all_on_exec()?;
    sys::reset_signals();
    Ok(Some(exec(order)))
}

/// Writes files to the home, which is empty because it was made with the container.
fn furnish(home: &Path, files: &[HomeFile]) -> io::Result<()> {
    for HomeFile { path, content } in files {
        let path = home.join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        options.open(&path)?.write_all(content)?;
    }
    Ok(())
}

fn say(what: &[u8]) -> io::Result<()> {
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    out.write_all(what)
}

/// Reads an order; `None` if the input ends before the order is complete.
fn read(input: &mut impl Read) -> io::Result<Option<Order>> {
    let mut length = [0; 8];
    if let Err(err) = input.read_exact(&mut length) {
        return if err.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(err) };
    }
    let length = u64::from_le_bytes(length);
    if length > MAX_ORDER_BYTES {
        return Err(io::Error::other(format!("an order of {length} bytes is none")));
    }
    let mut text = Vec::new();
    input.take(length).read_to_end(&mut text)?;
    if text.len() as u64 != length {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Works as the C library's `execvp`. Returns only if nothing could be started.
fn exec(order: Order) -> Failure {
    let name = order.argv.first().cloned().unwrap_or_default();
    let mut env: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    env.extend(order.env);
    let path = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    let places: Vec<String> = if name.contains('/') {
        vec![name.clone()]
    } else {
        let beneath =
            |dir: &str| if dir.is_empty() { format!("./{name}") } else { format!("{dir}/{name}") };
        path.split(':').map(beneath).collect()
    };
    let env = CStrings::new(env.into_iter().map(|(name, value)| format!("{name}={value}")));
    let (Some(argv), Some(env)) = (CStrings::new(order.argv.clone()), env) else {
        let message = "an argument or variable contains a NUL byte".to_owned();
        return Failure { message, code: 127 };
    };
    let mut reason = io::Error::from_raw_os_error(libc::ENOENT);
    for place in places {
        let Ok(program) = CString::new(place.as_str()) else { continue };
        let err = sys::exec(&program, &argv, &env);
        match err.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            Some(libc::EACCES) => reason = err,
            // It is a script without an interpreter line.
            Some(libc::ENOEXEC) => {
                let script = ["/bin/sh".to_owned(), place].into_iter();
                let words = script.chain(order.argv.iter().skip(1).cloned());
                let Some(argv) = CStrings::new(words) else { break };
                reason = sys::exec(c"/bin/sh", &argv, &env);
                break;
            }
            _ => {
                reason = err;
                break;
            }
        }
    }
    let missing = reason.raw_os_error() == Some(libc::ENOENT);
    Failure {
        message: format!("exec {name} failed: {reason}"),
        code: if missing { 127 } else { 126 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        Order {
            argv: vec!["sh".to_owned(), "-c".to_owned(), "cat".to_owned()],
            env: vec![("A".to_owned(), "b\nc".to_owned())],
            mounts: Vec::new(),
            home: vec![HomeFile { path: "a/b".into(), content: b"\0x".to_vec() }],
            stdin: true,
        }
    }

    #[test]
    fn bytes_after_an_order_are_left_for_the_command() {
        let all = [order().to_bytes(), b"the command's".to_vec()].concat();
        let mut input = all.as_slice();
        assert_eq!(read(&mut input).unwrap(), Some(order()));
        assert_eq!(input, b"the command's");
    }

    #[test]
    fn truncated_orders_are_ignored() {
        let whole = order().to_bytes();
        for length in 0..whole.len() {
            assert_eq!(read(&mut &whole[..length]).unwrap(), None, "{length} bytes");
        }
    }

    #[test]
    fn an_invalid_order_is_an_error() {
        assert!(read(&mut u64::MAX.to_le_bytes().as_slice()).is_err());
        assert!(read(&mut [1, 0, 0, 0, 0, 0, 0, 0, b'x'].as_slice()).is_err());
    }
}
