//! The `none` driver: the command runs as the daemon's user, with its network and its files.
//!
//! For agents that ask for it by name. What it does keep: the environment is the request's and
//! nothing else, output is bounded, files, descriptors and memory are bounded per process, and
//! the whole tree ends with the command, the timeout, the dropped future or the daemon, children
//! that forked twice included. What it cannot do is in [`crate::init`]'s `unconfined`: a command
//! that is out to break things can kill its own init.
//!
//! A workspace is never read-only here and processes and processor time are not bounded.

use overmind_core::Fut;
use overmind_core::sandbox::{
    OutputSink, Sandbox, SandboxError, SandboxLevel, SandboxRequest, SandboxResult,
};

use crate::init::spec::Kind;
use crate::launch::{self, Launch};
use crate::namespace::{Options, into_result, to_spec};
use crate::{diagnosis, request};

/// The driver. Of the [`Options`] it uses the init's program and the user.
#[derive(Debug)]
pub struct Unconfined {
    options: Options,
}

impl Unconfined {
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    async fn run_request(
        &self,
        request: SandboxRequest,
        sink: Option<OutputSink>,
    ) -> Result<SandboxResult, SandboxError> {
        request::check(&request)?;
        let spec = to_spec(&request, Kind::Unconfined);
        let outcome = launch::run(Launch {
            program: &self.options.init_program,
            run_as: self.options.run_as,
            spec: &spec,
            variable: None,
            group: None,
            sink,
            stdin: &request.stdin,
            output_bytes: request.limits.output_bytes,
            timeout: request.timeout,
        })
        .await
        .map_err(|err| SandboxError::Failed {
            level: SandboxLevel::None.as_str(),
            message: format!(
                "cannot start the init {}: {err}",
                self.options.init_program.display()
            ),
        })?;
        into_result(outcome, SandboxLevel::None)
    }
}

impl Sandbox for Unconfined {
    fn level(&self) -> SandboxLevel {
        SandboxLevel::None
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

    /// Whether the init's program is there. Nothing else can be missing.
    fn check(&self) -> Fut<'_, Result<(), SandboxError>> {
        Box::pin(async {
            std::fs::metadata(&self.options.init_program)
                .map(drop)
                .map_err(|err| diagnosis::init_not_started(&self.options.init_program, &err))
        })
    }
}
