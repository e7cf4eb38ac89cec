//! Removes a daemon's containers when the daemon has ended.
//!
//! The engine keeps a container running even if the process that started it has ended. So each
//! daemon that has started a container gets a cleanup process: the daemon's own program again, in
//! its own session, with one end of a pipe. It waits for the pipe to close, which happens however
//! the daemon ends. Then it removes all containers with the labels of this start of the daemon, and
//! ends.
//!
//! It has no secrets and no descriptors but the pipe, and changes nothing else.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Read;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bollard::query_parameters::ListContainersOptionsBuilder;
use bollard::{API_DEFAULT_VERSION, Docker as Client};
use tokio::process::{Child, Command};

use crate::docker::Options;
use crate::docker::plan::{LABEL_INSTANCE, LABEL_OWNER};
use crate::docker::removal::remove;
use crate::sys;

/// The first argument that makes the program the cleanup process; socket, owner and instance
/// follow.
pub(crate) const ARGUMENT: &str = "__docker-keeper";

/// The daemon's side, which holds the pipe.
#[derive(Debug, Default)]
pub(crate) struct Keeper(Mutex<Option<Child>>);

impl Keeper {
    /// Starts the cleanup process unless it runs, also if it was killed.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started.
    pub(crate) fn ensure(&self, options: &Options) -> std::io::Result<()> {
        // No code panics while it holds the lock, and the child is valid after a panic elsewhere.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(child) = kept.as_mut()
            && child.try_wait()?.is_none()
        {
            return Ok(());
        }
        let child = Command::new(&options.init_program)
            .arg(ARGUMENT)
            .arg(&options.socket)
            .arg(&options.owner)
            .arg(&options.instance)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Dropping the handle closes the pipe, which ends the process.
            .kill_on_drop(false)
            .spawn()?;
        *kept = Some(child);
        Ok(())
    }
}

/// The interval of its checks, and how long no container must be found: the engine may still be
/// making one that the daemon requested in its last moment.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);
const QUIET: Duration = Duration::from_secs(3);
/// After this time it stops waiting for an engine that does not answer; the next daemon cleans up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Becomes the cleanup process and never returns.
pub(crate) fn become_keeper(arguments: impl Iterator<Item = OsString>) -> ! {
    let code = match arguments.map(OsString::into_string).collect::<Result<Vec<_>, _>>() {
        Ok(words) => match words.as_slice() {
            [socket, owner, instance] => keep(socket, owner, instance),
            _ => 2,
        },
        Err(_) => 2,
    };
    sys::exit_now(code)
}

fn keep(socket: &str, owner: &str, instance: &str) -> i32 {
    // Leaves the daemon's terminal and process group, so that it is not ended with them. This fails
    // only for the leader of a group, which this process never is.
    let _ = rustix::process::setsid();
    if sys::close_inherited().is_err() {
        return 1;
    }
    // Nothing is ever written: this returns when the last holder of the other end has ended.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());

    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return 1;
    };
    runtime.block_on(sweep(socket, owner, instance))
}

#[expect(clippy::disallowed_methods, reason = "waits for an engine, which has no other clock")]
async fn sweep(socket: &str, owner: &str, instance: &str) -> i32 {
    let begun = Instant::now();
    let mut quiet_since = Instant::now();
    while begun.elapsed() < PATIENCE {
        match look(socket, owner, instance).await {
            Ok(0) if quiet_since.elapsed() >= QUIET => return 0,
            Ok(0) => {}
            Ok(_) | Err(_) => quiet_since = Instant::now(),
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    1
}

/// Removes the existing containers, and returns how many there were.
async fn look(socket: &str, owner: &str, instance: &str) -> Result<usize, bollard::errors::Error> {
    let client = Client::connect_with_unix(socket, 30, API_DEFAULT_VERSION)?;
    let client = client.negotiate_version().await?;
    let labels = vec![format!("{LABEL_OWNER}={owner}"), format!("{LABEL_INSTANCE}={instance}")];
    let options = ListContainersOptionsBuilder::default()
        .all(true)
        .filters(&HashMap::from([("label", labels)]))
        .build();
    let found = client.list_containers(Some(options)).await?;
    for id in found.iter().filter_map(|container| container.id.as_deref()) {
        // While a container is listed, another attempt follows.
        let _ = remove(&client, id).await;
    }
    Ok(found.len())
}
