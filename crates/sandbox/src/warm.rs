//! Inits of the `namespace` driver that wait for their command.
//!
//! Most of what a sandbox costs is the same for every command: the start of the program, the
//! namespaces, the root, the filter. So after each call the driver starts the next init, gives it
//! the ground ([`crate::init`]) and keeps it. A call takes one that waits, and starts one itself
//! when there is none.
//!
//! An init serves one call and no second one, and while it waits it knows nothing of any
//! session: no path, no variable, no limit. All of that comes with the order, is checked then, and
//! goes the same way in an init that did not wait.
//!
//! What it has looked at is a little older than the call, so it is let go of when it would now
//! find something else: another table of mounts ([`Table`]), other files of the system
//! ([`root::fingerprint`]), another program. And it is not kept when it is not needed: all end
//! [`IDLE`] after the last call.

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

/// What a driver keeps between calls, and what came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmth {
    /// How many inits or containers wait for a command now.
    pub waiting: usize,
    /// How many calls ran in one that had waited.
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
    /// When an init was last asked for.
    asked: Option<Instant>,
    /// A task ends them when nothing has asked for long.
    watched: bool,
    closed: bool,
}

#[derive(Debug)]
struct Kept {
    init: Init,
    config: String,
    table: Table,
    system: u64,
    /// Its descriptors belong to this runtime's reactor.
    runtime: Id,
}

impl Kept {
    fn start(
        options: &Options,
        cgroups: &Cgroups,
        config: String,
        ground: &Ground,
    ) -> io::Result<Self> {
        // Looked at before the init looks: what changes in between makes it stale.
        let (table, system) = (Table::look()?, fingerprint(ground));
        let group = Some(cgroups.make(None)?);
        let init = Init::start(&options.init_program, options.run_as, ground, None, group)?;
        Ok(Self { init, config, table, system, runtime: Handle::current().id() })
    }
}

impl Pool {
    /// An init that waits and would find everything as it is now.
    pub(crate) fn take(&self, config: &str, ground: &Ground) -> Option<Init> {
        let runtime = Handle::current().id();
        let mut inner = lock(&self.0);
        inner.asked = Some(Instant::now());
        if inner.waiting.is_empty() {
            return None;
        }
        let system = fingerprint(ground);
        // What is not taken here is stale, and ends by its drop.
        while let Some(kept) = inner.waiting.pop() {
            let same = kept.config == config && kept.system == system && kept.runtime == runtime;
            if same && !kept.table.changed() && kept.init.waits() {
                inner.served += 1;
                return Some(kept.init);
            }
        }
        None
    }

    /// Starts inits until as many wait as the options say, after the caller has gone on.
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
                    // The next call says what is wrong.
                    Err(_) => return,
                }
            }
        });
    }

    /// Ends what waits, and keeps nothing any more.
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
    // Nothing panics while it is held, and a list of inits is as good after a panic elsewhere.
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

/// What an init would copy or mount of the system now.
fn fingerprint(ground: &Ground) -> u64 {
    match &ground.kind {
        Kind::Namespace { .. } => root::fingerprint(&ground.kind),
        Kind::Unconfined => 0,
    }
}

/// This process's mounts, of which an init has a copy from its start on.
#[derive(Debug)]
struct Table(File);

impl Table {
    fn look() -> io::Result<Self> {
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_CLOEXEC).open("/proc/self/mountinfo")?;
        Ok(Self(file))
    }

    /// Whether anything was mounted or unmounted since the look.
    fn changed(&self) -> bool {
        let mut asked = [PollFd::new(&self.0, PollFlags::PRI)];
        let answered = poll(&mut asked, Some(&Timespec::default()));
        // The file is always readable; the kernel adds these two when the table is another one.
        answered.is_err() || asked[0].revents().intersects(PollFlags::PRI | PollFlags::ERR)
    }
}
