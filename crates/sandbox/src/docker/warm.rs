//! Keeps containers that wait for their command.
//!
//! Making and starting a container is most of a command's cost at this level. So after a call the
//! driver makes the next container with the same configuration (image, user, mounts, limits, flags,
//! working directory; everything but the command, its variables and its input), with a
//! [waiter](super::waiter) inside. A container serves only one call.
//!
//! The number of waiting containers is limited ([`Options::waiting`]), and each ends [`IDLE`] after
//! it was made. They have the labels by which the sweep and the cleanup process find them. A
//! container is dropped if the image's name or a mounted path now refers to something else.

use std::collections::VecDeque;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bollard::Docker as Client;
use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{AttachContainerOptionsBuilder, CreateContainerOptionsBuilder};
use futures_util::{FutureExt, Stream, StreamExt};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::runtime::{Handle, Id};

use crate::Warmth;
use crate::docker::removal::{Outstanding, Removal};
use crate::docker::waiter::{BEGUN, EXCHANGED, Order, READY};

/// The longest time that a container waits.
const IDLE: Duration = Duration::from_secs(60);
/// The time limit until a container waits. An engine under load takes seconds.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit for starting the command.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;
pub(crate) type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// The properties that a waiting container must share with the one that the call needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    /// The request to the engine.
    pub(crate) body: ContainerCreateBody,
    /// The image to which the name refers.
    pub(crate) image: String,
    /// The identities of the mounted directories, because a path may come to refer to another one.
    sources: Vec<(u64, u64)>,
}

impl Key {
    /// `None` if a directory cannot be examined; the engine gives the better error.
    pub(crate) fn new(body: ContainerCreateBody, image: String) -> Option<Self> {
        let mounts = body.host_config.as_ref()?.mounts.iter().flatten();
        let sources = mounts
            .map(|mount| {
                let found = std::fs::metadata(mount.source.as_deref()?).ok()?;
                Some((found.dev(), found.ino()))
            })
            .collect::<Option<_>>()?;
        Some(Self { body, image, sources })
    }
}

/// Why no waiting container could be made.
#[derive(Debug)]
pub(crate) enum NotMade {
    Engine(Error),
    /// The container runs, but its process is no waiter.
    Silent(String),
}

impl fmt::Display for NotMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(err) => err.fmt(f),
            Self::Silent(why) => why.fmt(f),
        }
    }
}

/// Why a command was not started and will not be.
#[derive(Debug)]
pub(crate) enum NotBegun {
    /// The engine has mounted something other than the held directories.
    Exchanged,
    Failed(String),
}

/// A container that waits, or one whose command has started.
pub(crate) struct Warm {
    pub(crate) removal: Removal,
    pub(crate) output: Output,
    pub(crate) input: Input,
    /// Output that was read but not yet assigned to the command.
    pub(crate) left_over: Vec<u8>,
    /// The same for the error stream, which the engine may deliver before earlier output.
    pub(crate) errors: Vec<u8>,
}

impl Warm {
    /// Makes a container and returns when it waits. If dropped at any moment, it is removed.
    pub(crate) async fn make(
        client: &Client,
        removal: Removal,
        key: &Key,
    ) -> Result<Self, NotMade> {
        let named = CreateContainerOptionsBuilder::default().name(removal.name()).build();
        if let Err(err) = client.create_container(Some(named), key.body.clone()).await {
            if matches!(err, Error::DockerResponseServerError { .. }) {
                removal.disarm();
            }
            return Err(NotMade::Engine(err));
        }
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .build();
        let attached = client.attach_container(removal.name(), Some(options)).await;
        let AttachContainerResults { output, input } = attached.map_err(NotMade::Engine)?;
        let mut warm = Self { removal, output, input, left_over: Vec::new(), errors: Vec::new() };
        let started = client.start_container(warm.removal.name(), None).await;
        started.map_err(NotMade::Engine)?;
        warm.hears(READY).await.map_err(NotMade::Silent)?;
        Ok(warm)
    }

    /// Sends the command; returns when it has started.
    ///
    /// # Errors
    ///
    /// The command was not started and never will be: the container is removed when this returns.
    pub(crate) async fn begin(mut self, order: &Order) -> Result<Self, NotBegun> {
        let begun = async {
            self.input.write_all(&order.to_bytes()).await.map_err(|err| err.to_string())?;
            self.input.flush().await.map_err(|err| err.to_string())?;
            self.hears(BEGUN).await
        };
        let begun = tokio::time::timeout(BEGIN_TIMEOUT, begun).await;
        match begun.unwrap_or_else(|_elapsed| Err("it did not begin in time".to_owned())) {
            Ok(()) => Ok(self),
            Err(why) => {
                let exchanged = self.left_over.starts_with(EXCHANGED);
                self.removal.now().await;
                Err(if exchanged { NotBegun::Exchanged } else { NotBegun::Failed(why) })
            }
        }
    }

    /// Reads the text `words` from standard output.
    async fn hears(&mut self, words: &[u8]) -> Result<(), String> {
        while self.left_over.len() < words.len() {
            match self.output.next().await {
                Some(Ok(LogOutput::StdOut { message })) => self.left_over.extend(message),
                Some(Ok(LogOutput::StdErr { message })) => self.errors.extend(message),
                Some(Ok(other)) => return Err(format!("it said: {other}")),
                Some(Err(err)) => return Err(err.to_string()),
                None => {
                    let said = String::from_utf8_lossy(&self.errors);
                    return Err(format!("it has ended: {}", said.trim()));
                }
            }
        }
        if !self.left_over.starts_with(words) {
            return Err(format!("it said: {}", String::from_utf8_lossy(&self.left_over)));
        }
        self.left_over.drain(..words.len());
        Ok(())
    }

    /// Whether it is silent, as a waiting one is. Any output is lost.
    fn waits(&mut self) -> bool {
        self.output.next().now_or_never().is_none()
    }
}

/// The waiting containers of one driver, the oldest first.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Kept>,
    served: u64,
    /// The containers that are being made.
    coming: Vec<Key>,
    /// Whether a task is running that ends containers after their time.
    watched: bool,
    closed: bool,
}

struct Kept {
    key: Key,
    warm: Warm,
    since: Instant,
    /// The runtime to whose reactor its connection belongs.
    runtime: Id,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("waiting", &self.lock().waiting.len()).finish()
    }
}

impl Pool {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // No code panics while it holds the lock, and a list is valid after a panic elsewhere.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a waiting container that matches `key`.
    pub(crate) fn take(&self, key: &Key) -> Option<Warm> {
        let runtime = Handle::current().id();
        loop {
            let found = {
                let mut inner = self.lock();
                let at = inner.waiting.iter().position(|kept| kept.key == *key)?;
                inner.waiting.remove(at)?
            };
            let Kept { mut warm, runtime: of, .. } = found;
            if of == runtime && warm.waits() {
                self.lock().served += 1;
                return Some(warm);
            }
        }
    }

    /// Starts making one more container for `key`, unless one waits or is being made. The caller
    /// does not wait.
    pub(crate) fn refill(
        &self,
        client: &Client,
        name: String,
        outstanding: &Arc<Outstanding>,
        key: Key,
        most: usize,
    ) {
        {
            let mut inner = self.lock();
            let there = inner.waiting.iter().any(|kept| kept.key == key);
            if inner.closed || most == 0 || there || inner.coming.contains(&key) {
                return;
            }
            inner.coming.push(key.clone());
        }
        let (pool, client) = (self.clone(), client.clone());
        let removal = Removal::armed(client.clone(), name, Arc::clone(outstanding));
        let counted = outstanding.count();
        Handle::current().spawn(async move {
            let made = Warm::make(&client, removal, &key);
            let made = tokio::time::timeout(START_TIMEOUT, made).await;
            pool.lock().coming.retain(|coming| *coming != key);
            match made {
                Ok(Ok(warm)) => pool.keep(key, warm, most),
                // The next call creates its own container and reports the error.
                Ok(Err(why)) => tracing::debug!(%why, "no container waits"),
                Err(_elapsed) => tracing::debug!("a container that shall wait came too late"),
            }
            drop(counted);
        });
    }

    fn keep(&self, key: Key, warm: Warm, most: usize) {
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        let (since, runtime) = (Instant::now(), Handle::current().id());
        inner.waiting.push_back(Kept { key, warm, since, runtime });
        while inner.waiting.len() > most {
            inner.waiting.pop_front();
        }
        if !inner.watched {
            inner.watched = true;
            Handle::current().spawn(end_the_old(Arc::downgrade(&self.0)));
        }
    }

    pub(crate) fn warmth(&self) -> Warmth {
        let inner = self.lock();
        Warmth { waiting: inner.waiting.len(), served: inner.served }
    }

    /// Ends the waiting containers and keeps no new ones. The removals are counted as outstanding.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut inner = self.lock();
            inner.closed = true;
            std::mem::take(&mut inner.waiting)
        };
        drop(waiting);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "drivers have no clock, and nothing is decided by it"
)]
async fn end_the_old(pool: Weak<Mutex<Inner>>) {
    loop {
        let Some(strong) = pool.upgrade().map(Pool) else { return };
        let rest = {
            let mut inner = strong.lock();
            inner.waiting.retain(|kept| kept.since.elapsed() < IDLE);
            match inner.waiting.front() {
                Some(oldest) => IDLE.saturating_sub(oldest.since.elapsed()),
                None => {
                    inner.watched = false;
                    return;
                }
            }
        };
        drop(strong);
        tokio::time::sleep(rest).await;
    }
}
