//! Keeps inits of the `namespace` driver that wait for their command.
//!
//! Most of a sandbox's cost is the same for every command: the start of the program, the
//! namespaces, the root, the filter. So after each call the driver starts the next init, sends it
//! the ground ([`crate::init`]) and keeps it. A call takes a waiting init, or starts one itself if
//! there is none.
//!
//! An init serves only one call, and while it waits it knows nothing of any session: no path, no
//! variable, no limit. All of that comes with the order, is checked then, and is handled as in an
//! init that did not wait.
//!
//! The state that it has read is a little older than the call. So it is dropped if the state has
//! changed: another table of mounts ([`Table`]), other files of the system ([`root::fingerprint`]),
//! or another program. Inits that are not needed are not kept: all end [`IDLE`] after the last
//! call.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::runtime::{Handle, Id};

use crate::cgroup::Cgroups;
use crate::init::root;
use crate::init::spec::{Ground, Kind};
use crate::launch::Init;
use crate::namespace::Options;

/// What a driver keeps between calls, and how it was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmth {
    /// How many inits or containers wait for a command now.
    pub waiting: usize,
    /// How many calls used one that had waited.
    pub served: u64,
}

/// How long inits wait after the last call.
const IDLE: Duration = Duration::from_secs(30);

/// The inits of one driver.
#[derive(Debug, Default)]
pub(crate) struct Pool(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    waiting: Vec<Kept>,
    served: u64,
    /// When an init was last requested.
    asked: Option<Instant>,
    /// Whether a task is running that ends the inits after a time without requests.
    watched: bool,
    closed: bool,
}

#[derive(Debug)]
struct Kept {
    init: Init,
    config: String,
    table: Table,
    system: u64,
    /// The runtime to whose reactor its descriptors belong.
    runtime: Id,
}

impl Kept {
    fn start(
        options: &Options,
        cgroups: &Cgroups,
        config: String,
        ground: &Ground,
    ) -> io::Result<Self> {
        // These are read before the init starts, so that a later change makes it stale.
        let (table, system) = (Table::look()?, fingerprint(ground));
        let group = Some(cgroups.make(None)?);
        let init = Init::start(&options.init_program, options.run_as, ground, None, group)?;
        Ok(Self { init, config, table, system, runtime: Handle::current().id() })
    }
}

impl Pool {
    /// Takes a waiting init whose view of the system is still current.
    pub(crate) fn take(&self, config: &str, ground: &Ground) -> Option<Init> {
        let runtime = Handle::current().id();
        let mut inner = lock(&self.0);
        inner.asked = Some(Instant::now());
        if inner.waiting.is_empty() {
            return None;
        }
        let system = fingerprint(ground);
        // Inits that are not returned here are stale, and end when they are dropped.
        while let Some(kept) = inner.waiting.pop() {
            let same = kept.config == config && kept.system == system && kept.runtime == runtime;
            if same && !kept.table.changed() && kept.init.waits() {
                inner.served += 1;
                return Some(kept.init);
            }
        }
        None
    }

    /// Starts inits until the configured number waits. The caller does not wait for it.
    pub(crate) fn refill(
        &self,
        options: &Options,
        cgroups: &Arc<Cgroups>,
        config: String,
        ground: Ground,
    ) {
        if lock(&self.0).waiting.len() >= options.waiting {
            return;
        }
        let (pool, options) = (Arc::clone(&self.0), options.clone());
        let cgroups = Arc::clone(cgroups);
        Handle::current().spawn(async move {
            while missing(&pool, options.waiting) {
                match Kept::start(&options, &cgroups, config.clone(), &ground) {
                    Ok(kept) => keep(&pool, kept, options.waiting),
                    // The next call reports the error.
                    Err(_) => return,
                }
            }
        });
    }

    /// Ends the waiting inits and keeps no new ones.
    pub(crate) fn close(&self) {
        let mut inner = lock(&self.0);
        inner.closed = true;
        inner.waiting.clear();
    }

    pub(crate) fn warmth(&self) -> Warmth {
        let inner = lock(&self.0);
        Warmth { waiting: inner.waiting.len(), served: inner.served }
    }
}

fn lock(pool: &Mutex<Inner>) -> std::sync::MutexGuard<'_, Inner> {
    // No code panics while it holds the lock, and a list of inits is valid after a panic elsewhere.
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

fn missing(pool: &Mutex<Inner>, wanted: usize) -> bool {
    let inner = lock(pool);
    !inner.closed && inner.waiting.len() < wanted
}

fn keep(pool: &Arc<Mutex<Inner>>, kept: Kept, wanted: usize) {
    let mut inner = lock(pool);
    // Another call may have refilled meanwhile.
    if inner.closed || inner.waiting.len() >= wanted {
        return;
    }
    inner.waiting.push(kept);
    if !inner.watched {
        inner.watched = true;
        Handle::current().spawn(end_when_idle(Arc::downgrade(pool)));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "drivers have no clock, and nothing is decided by it"
)]
async fn end_when_idle(pool: Weak<Mutex<Inner>>) {
    let mut rest = IDLE;
    loop {
        tokio::time::sleep(rest).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut inner = lock(&pool);
        rest = IDLE.saturating_sub(inner.asked.map_or(IDLE, |asked| asked.elapsed()));
        if rest.is_zero() || inner.waiting.is_empty() {
            inner.waiting.clear();
            inner.watched = false;
            return;
        }
    }
}

/// Identifies the files of the system that an init would copy or mount now.
fn fingerprint(ground: &Ground) -> u64 {
    match &ground.kind {
        Kind::Namespace { .. } => root::fingerprint(&ground.kind),
        Kind::Unconfined => 0,
    }
}

/// This process's mounts, which an init copies at its start.
#[derive(Debug)]
struct Table(File);

impl Table {
    fn look() -> io::Result<Self> {
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_CLOEXEC).open("/proc/self/mountinfo")?;
        Ok(Self(file))
    }

    /// Whether anything was mounted or unmounted since then.
    fn changed(&self) -> bool {
        let mut asked = [PollFd::new(&self.0, PollFlags::PRI)];
        let answered = poll(&mut asked, Some(&Timespec::default()));
        // The file is always readable; the kernel adds these two flags when the table has changed.
        answered.is_err() || asked[0].revents().intersects(PollFlags::PRI | PollFlags::ERR)
    }
}
