//! The daemon's side of the zygote: starts it, sends it requests, and starts another when it has
//! ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::zygote::{self, GIVEN};

#[derive(Debug)]
pub(crate) struct Nursery {
    program: PathBuf,
    zygote: Mutex<Option<Zygote>>,
}

#[derive(Debug)]
struct Zygote {
    socket: UnixStream,
    child: Child,
}

/// How long the zygote may take to accept a request: it does nothing else.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);

impl Zygote {
    fn start(program: &PathBuf) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_write_timeout(Some(TAKEN_WITHIN))?;
        let child = Command::new(program)
            .arg(zygote::ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { socket, child })
    }

    /// Ends it by closing its socket.
    fn end(mut self) {
        drop(self.socket);
        // It ends at once; an error means that it already has.
        let _ = self.child.wait();
    }
}

impl Nursery {
    /// Starts the zygote.
    pub(crate) fn open(program: PathBuf) -> io::Result<Self> {
        let zygote = Zygote::start(&program)?;
        Ok(Self { program, zygote: Mutex::new(Some(zygote)) })
    }

    /// Requests a supervisor process. Blocks while the message is sent.
    pub(crate) fn ask(&self, given: [BorrowedFd<'_>; GIVEN]) -> io::Result<()> {
        let mut slot = self.zygote.lock().unwrap_or_else(PoisonError::into_inner);
        // This is checked first: waiting supervisor processes have its socket, too, and end a
        // moment later.
        if let Some(zygote) = &mut *slot
            && matches!(zygote.child.try_wait(), Ok(None))
            && zygote::ask(zygote.socket.as_fd(), given).is_ok()
        {
            return Ok(());
        }
        // It was killed, or is not started yet.
        if let Some(old) = slot.take() {
            tracing::warn!("the process that keepers are born from has gone: starting another");
            let mut child = old.child;
            drop(old.socket);
            let _ = child.kill();
            let _ = child.wait();
        }
        let zygote = Zygote::start(&self.program)?;
        zygote::ask(zygote.socket.as_fd(), given)?;
        *slot = Some(zygote);
        Ok(())
    }

    /// Ends the zygote. Supervisor processes are not affected.
    pub(crate) fn close(&self) {
        let zygote = self.zygote.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(zygote) = zygote {
            zygote.end();
        }
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        self.close();
    }
}
