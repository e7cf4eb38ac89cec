//! Removes containers with the call that made them, also if the call is dropped.

use std::sync::Arc;
use std::time::Duration;

use bollard::Docker as Client;
use bollard::errors::Error;
use bollard::query_parameters::RemoveContainerOptionsBuilder;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Counts the removals that run after their call has ended.
#[derive(Debug)]
pub(crate) struct Outstanding(watch::Sender<usize>);

impl Outstanding {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(0)))
    }

    /// Counts work that may still make a container, until the returned value is dropped.
    pub(crate) fn count(self: &Arc<Self>) -> Counted {
        self.0.send_modify(|count| *count += 1);
        Counted(Arc::clone(self))
    }

    pub(crate) async fn none_left(&self) {
        // The sender is `self`, so waiting ends only when the count is 0.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// One unit of the count of [`Outstanding`].
pub(crate) struct Counted(Arc<Outstanding>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// Removes one container, at the latest when this is dropped.
pub(crate) struct Removal {
    client: Client,
    name: String,
    outstanding: Arc<Outstanding>,
    armed: bool,
}

/// A requested container may appear after the request was cut off, so removal is tried several
/// times.
const ATTEMPTS: u32 = 10;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(300);

impl Removal {
    /// Call it before the engine is asked for the container.
    pub(crate) fn armed(client: Client, name: String, outstanding: Arc<Outstanding>) -> Self {
        Self { client, name, outstanding, armed: true }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Cancels the removal: the engine refused to make the container.
    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }

    /// Kills the processes in the container and removes it; returns when both are done.
    ///
    /// If the engine fails, removal is tried again after this returns.
    pub(crate) async fn now(mut self) {
        match remove(&self.client, &self.name).await {
            Ok(()) => self.armed = false,
            Err(err) => {
                tracing::warn!(container = self.name, error = %err, "container not removed yet");
            }
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            // The runtime has ended, and this start of the daemon with it: the next start cleans
            // up.
            return;
        };
        let (client, name) = (self.client.clone(), std::mem::take(&mut self.name));
        let counted = self.outstanding.count();
        // Removal is a separate task because a destructor cannot wait; it is counted so that the
        // daemon can.
        runtime.spawn(async move {
            if let Err(err) = persist(&client, &name).await {
                tracing::warn!(container = name, error = %err, "container not removed");
            }
            drop(counted);
        });
    }
}

#[expect(clippy::disallowed_methods, reason = "waits for an engine, which has no other clock")]
async fn persist(client: &Client, name: &str) -> Result<(), Error> {
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        result = remove(client, name).await;
        if result.is_ok() {
            break;
        }
        tokio::time::sleep(BETWEEN_ATTEMPTS).await;
    }
    match result {
        // The container has not appeared, or another attempt was first.
        Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(()),
        other => other,
    }
}

/// Kills and removes a container, and waits until both are done.
pub(crate) async fn remove(client: &Client, name: &str) -> Result<(), Error> {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    client.remove_container(name, Some(options)).await
}
