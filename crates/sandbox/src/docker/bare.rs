//! Runs a container without the driver's work around it, to measure the cost of the engine alone.

use std::time::{Duration, Instant};

use bollard::query_parameters::CreateContainerOptionsBuilder;
use overmind_core::sandbox::{SandboxError, SandboxRequest};

use super::place::Place;
use super::plan::Plan;
use super::removal::Removal;
use super::{Docker, exit_of};

impl Docker {
    /// Makes the container that [`run`](overmind_core::sandbox::Sandbox::run) would make for the
    /// request, starts it, waits for its end and removes it. Returns how long that took.
    ///
    /// Nothing is attached, so the command's input and output are lost. It is for benchmarks.
    ///
    /// # Errors
    ///
    /// The same as for `run`.
    ///
    /// # Cancel safety
    ///
    /// The same as for `run`.
    pub async fn bare(&self, request: &SandboxRequest) -> Result<Duration, SandboxError> {
        let Place { workspace, writable, working_dir, user, .. } =
            Place::resolve(request, self.options.user)?;
        let client = self.client().await?;
        let secrets = Vec::new();
        let plan = Plan {
            options: &self.options,
            request,
            workspace,
            writable,
            working_dir,
            user,
            secrets,
            fixed: Vec::new(),
        };
        let outstanding = std::sync::Arc::clone(&self.outstanding);
        let removal = Removal::armed(client.clone(), self.next_name(), outstanding);
        let begun = Instant::now();
        let options = CreateContainerOptionsBuilder::default().name(removal.name()).build();
        let made = client.create_container(Some(options), plan.container()).await;
        made.map_err(|err| self.before_start(err))?;
        let started = client.start_container(removal.name(), None).await;
        started.map_err(|err| self.before_start(err))?;
        exit_of(&client, removal.name()).await;
        removal.now().await;
        Ok(begun.elapsed())
    }
}
