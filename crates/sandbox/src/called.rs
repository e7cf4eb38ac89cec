//! Commands that a built-in agent calls in a session's room: run to their end in the sandbox that a
//! command that lives would have there.
//!
//! Such a command sees its workspace at the host's path, because a worktree names what it borrows of
//! its project by paths of the host, and reaches the services of its room. What it shares with any
//! other call is everything else: its bounds, its output while it comes, a home in `/tmp` that is
//! forgotten, a workspace that is writable only as far as the call asks, and that all of it ends when
//! the call does. `/workspace` leads to its directory, for whoever knows that one by this name.
//!
//! No init waits for it: what it shows is of one project, and what it reaches of one session.

use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::attest::Attested;
use overmind_core::enclosure::EnclosePlan;
use overmind_core::sandbox::{
    OutputSink, Sandbox, SandboxError, SandboxLevel, SandboxRequest, SandboxResult,
};

use crate::enclosure::Enclosures;
use crate::request::bad_config;

/// The sandbox of one session's room.
#[derive(Debug)]
pub(crate) struct Called {
    by: Arc<Enclosures>,
    plan: EnclosePlan,
}

impl Called {
    pub(crate) fn new(by: Arc<Enclosures>, plan: EnclosePlan) -> Self {
        Self { by, plan }
    }

    async fn run_request(
        &self,
        request: SandboxRequest,
        sink: Option<OutputSink>,
    ) -> Result<SandboxResult, SandboxError> {
        let found = request.workspace.canonicalize().map_err(|err| {
            let place = request.workspace.display();
            bad_config(format!("cannot open the workspace {place}: {err}"))
        })?;
        let (driver, workspace) = self.by.called(&self.plan)?;
        let within = found.strip_prefix(&workspace).map_err(|_| {
            bad_config(format!("{} is not in {}", found.display(), workspace.display()))
        })?;
        driver.run_at(&workspace, within, &request, sink).await
    }
}

impl Sandbox for Called {
    fn level(&self) -> SandboxLevel {
        SandboxLevel::Namespace
    }

    fn run(&self, request: SandboxRequest) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(self.run_request(request, None))
    }

    fn run_streaming(
        &self,
        request: SandboxRequest,
        sink: OutputSink,
    ) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(self.run_request(request, Some(sink)))
    }

    fn check(&self) -> Fut<'_, Result<(), SandboxError>> {
        Box::pin(async { self.by.called(&self.plan)?.0.check().await })
    }

    fn attest(&self) -> Fut<'_, Result<Option<Arc<Attested>>, SandboxError>> {
        Box::pin(async { self.by.called(&self.plan)?.0.attest().await })
    }
}
