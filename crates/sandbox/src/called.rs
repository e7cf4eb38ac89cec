//! Runs commands of a built-in agent's tool calls inside of a session's environment: to their end,
//! in the same kind of sandbox that a long-running command would have there.
//!
//! Such a command sees its workspace at the host's path, because a worktree refers to its project
//! by host paths, and it reaches the services of its environment. In all else it is like any other
//! tool call: it has the same limits, its output is passed on as it comes, its home is in `/tmp`
//! and is dropped, its workspace is writable only as far as the call asks, and everything ends with
//! the call. `/workspace` is a link to its directory, for programs that know it by this name.
//!
//! No pre-started init is kept for it, because its mounts belong to one project and its network to
//! one session.

use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::attest::Attested;
use overmind_core::enclosure::EnclosePlan;
use overmind_core::sandbox::{
    OutputSink, Sandbox, SandboxError, SandboxLevel, SandboxRequest, SandboxResult,
};

use crate::enclosure::Enclosures;
use crate::request::bad_config;

/// The sandbox of one session's environment.
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
