//! Starts that are half done before anybody asks: a directory with a socket in it, and a keeper
//! that has opened both and waits for its order.
//!
//! What is left to do when the first life of a session begins is to give the directory its name.
//! A keeper that waits so ends with the connection; its directory is removed by whoever made it, or
//! else by the next supervisor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{CWD, RenameFlags};
use rustix::net::RecvFlags;

use crate::record::{self, Kind};
use crate::supervisor::life;
use crate::supervisor::nursery::Nursery;

/// So many are made ahead.
const AHEAD: usize = 2;
/// The life that is begun in one: the first of a session that has no directory yet.
pub(crate) const EPOCH: u32 = 1;
/// What their directories are called until they are needed: no session is.
const PREFIX: &str = "next-";

/// Those that wait to be needed.
#[derive(Debug, Default)]
pub(crate) struct Cradles(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: Vec<Cradle>,
    /// Being made now.
    making: usize,
    closed: bool,
}

#[derive(Debug)]
struct Cradle {
    dir: Nameless,
    /// To its keeper, which ends with it.
    stream: UnixStream,
}

/// A directory that is removed unless it gets another name.
#[derive(Debug)]
struct Nameless(Option<PathBuf>);

impl Drop for Nameless {
    fn drop(&mut self) {
        if let Some(dir) = &self.0 {
            // What stays is removed by the next supervisor.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

impl Cradle {
    /// Makes one and asks for its keeper. Blocking, for well under a millisecond.
    fn make(root: &Path, nursery: &Nursery) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = root.join(format!("{PREFIX}{}-{n}", std::process::id()));
        // What another process of this number left.
        let _ = std::fs::remove_dir_all(&dir);
        super::make_private(&dir)?;
        let (stream, theirs) = UnixStream::pair()?;
        let opened: OwnedFd = record::open_dir(&dir)?;
        let dir = Nameless(Some(dir));
        let listener = UnixListener::bind(life::below(&opened, &Kind::Socket.name(EPOCH)))?;
        listener.set_nonblocking(true)?;
        nursery.ask([theirs.as_fd(), listener.as_fd(), opened.as_fd()])?;
        stream.set_nonblocking(true)?;
        Ok(Self { dir, stream })
    }

    /// `None`: its keeper is not there yet. `Some(false)`: it has gone.
    fn is_ready(&self) -> Option<bool> {
        // It has said that it is ready, and nothing after that.
        let mut said = [0; 64];
        let heard = |said: &mut [u8]| rustix::net::recv(&self.stream, said, RecvFlags::PEEK);
        match heard(&mut said) {
            Ok((0, _)) => Some(false),
            Err(rustix::io::Errno::AGAIN) => None,
            Err(_) => Some(false),
            // With nobody at the other end it could not be written to.
            Ok(_) => {
                let mut asked =
                    [rustix::event::PollFd::new(&self.stream, rustix::event::PollFlags::OUT)];
                let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
                let polled = rustix::event::poll(&mut asked, Some(&now));
                let gone = asked[0]
                    .revents()
                    .intersects(rustix::event::PollFlags::HUP | rustix::event::PollFlags::ERR);
                Some(polled.is_ok() && !gone)
            }
        }
    }
}

impl Inner {
    /// Whether some are missing.
    fn wants(&self) -> bool {
        !self.closed && self.waiting.len() + self.making < AHEAD
    }

    /// Has it wait; gives it back where none is wanted, to be removed when nobody holds the lock.
    fn put(&mut self, cradle: Cradle) -> Option<Cradle> {
        if !self.wants() {
            return Some(cradle);
        }
        self.waiting.push(cradle);
        None
    }

    /// One whose keeper waits. Those on the way there whose keepers have gone are dropped.
    fn take_ready(&mut self) -> Option<Cradle> {
        let mut at = 0;
        while let Some(one) = self.waiting.get(at) {
            match one.is_ready() {
                Some(true) => return Some(self.waiting.remove(at)),
                Some(false) => drop(self.waiting.remove(at)),
                None => at += 1,
            }
        }
        None
    }
}

impl Cradles {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to a keeper whose directory is called `dir` from now on; `None` if none is
    /// ready or there is such a directory already.
    pub(crate) fn take(&self, dir: &Path) -> Option<UnixStream> {
        let mut cradle = self.lock().take_ready()?;
        let Some(old) = &cradle.dir.0 else { return None };
        if rustix::fs::renameat_with(CWD, old, CWD, dir, RenameFlags::NOREPLACE).is_err() {
            // It is not for this session, but it is for another one.
            let over = self.lock().put(cradle);
            drop(over);
            return None;
        }
        cradle.dir.0 = None;
        Some(cradle.stream)
    }

    /// Whether some are missing.
    pub(crate) fn wants(&self) -> bool {
        self.lock().wants()
    }

    /// Makes those that are missing. Blocking.
    pub(crate) fn fill(&self, root: &Path, nursery: &Nursery) {
        loop {
            {
                let mut inner = self.lock();
                inner.waiting.retain(|one| one.is_ready() != Some(false));
                if !inner.wants() {
                    return;
                }
                inner.making += 1;
            }
            let made = Cradle::make(root, nursery);
            let mut inner = self.lock();
            // In one step with what is put: another one who fills would make one too many.
            inner.making -= 1;
            match made {
                Ok(cradle) => {
                    let over = inner.put(cradle);
                    drop(inner);
                    drop(over);
                }
                Err(err) => {
                    drop(inner);
                    // Whoever is started next does it all at once, and says what is wrong.
                    tracing::debug!(error = %err, "nothing can be made ahead");
                    return;
                }
            }
        }
    }

    /// Makes none any more, and removes those that wait. Blocking.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut inner = self.lock();
            inner.closed = true;
            std::mem::take(&mut inner.waiting)
        };
        drop(waiting);
    }
}

/// Removes what supervisors of processes that are gone left. Blocking.
pub(crate) fn sweep(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let maker = rest.split('-').next().and_then(|pid| pid.parse::<i32>().ok());
        if maker.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // What cannot be removed now is tried again by the next one.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
