//! The daemon's side of the zygote: starts it, asks it, starts another when it has gone.

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

/// A zygote does nothing but take what is sent: one that does not within this long never will.
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

    /// Its end of the socket closes, so it ends.
    fn end(mut self) {
        drop(self.socket);
        // It has nothing to do but to end; an error means that it has.
        let _ = self.child.wait();
    }
}

impl Nursery {
    /// Starts the zygote.
    pub(crate) fn open(program: PathBuf) -> io::Result<Self> {
        let zygote = Zygote::start(&program)?;
        Ok(Self { program, zygote: Mutex::new(Some(zygote)) })
    }

    /// Asks for a keeper. Blocks for as long as a message to a process takes.
    pub(crate) fn ask(&self, given: [BorrowedFd<'_>; GIVEN]) -> io::Result<()> {
        let mut slot = self.zygote.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at first: keepers that wait have its socket, too, and end a moment after it.
        if let Some(zygote) = &mut *slot
            && matches!(zygote.child.try_wait(), Ok(None))
            && zygote::ask(zygote.socket.as_fd(), given).is_ok()
        {
            return Ok(());
        }
        // Killed by somebody, or not started yet.
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

    /// Ends the zygote. Keepers do not notice.
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
