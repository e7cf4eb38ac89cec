//! The `none` driver: the command runs as the daemon's user, with its network and its files.
//!
//! For agents that ask for it by name. What it does keep: the environment is the request's and
//! nothing else, output is bounded, files, descriptors and memory are bounded per process, and
//! the whole tree ends with the command, the timeout, the dropped future or the daemon, children
//! that forked twice included. What it cannot do is in [`crate::init`]'s `unconfined`: a command
//! that is out to break things can kill its own init.
//!
//! A workspace is never read-only here and processes and processor time are not bounded.
//!
//! It is measured as all levels are, so that the record on a session says in so many words what
//! its commands could reach. Nothing is promised, so nothing is refused; the probe asks for
//! rights here instead of making files.

use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::attest::{Attested, Bound};
use overmind_core::sandbox::{
    OutputSink, Sandbox, SandboxError, SandboxLevel, SandboxRequest, SandboxResult,
};

use crate::attest::{self, Inquiry, Keeper, Traps};
use crate::init::spec::Kind;
use crate::launch::{self, Launch};
use crate::namespace::{Options, into_result, to_spec};
use crate::{diagnosis, request};

/// The driver. Of the [`Options`] it uses the init's program and the user.
#[derive(Debug)]
pub struct Unconfined {
    options: Options,
    keeper: Keeper,
}

impl Unconfined {
    pub fn new(options: Options) -> Self {
        Self { options, keeper: Keeper::default() }
    }

    /// What a command at this level reaches.
    async fn attested(&self) -> Result<Arc<Attested>, SandboxError> {
        let Options { init_program, run_as, private, private_files, sockets, notary, .. } =
            &self.options;
        let kernel = attest::this_kernel();
        let all = format!("none {kernel:?} {init_program:?} {run_as:?} {private:?} {sockets:?}");
        let config = blake3::hash(all.as_bytes()).to_hex()[..32].to_owned();
        let measure = async {
            let mut inquiry =
                Inquiry::begin(SandboxLevel::None, private, sockets, &[])?.with(Traps::only_look);
            inquiry = inquiry.with(|traps| traps.and_files(private_files));
            // The init is the program, and starts it again.
            inquiry.request.argv[0] = "/proc/self/exe".to_owned();
            let result = self.run_request(inquiry.request.clone(), None).await?;
            inquiry.conclude(&result, None, config.clone(), bounds())
        };
        self.keeper.get(&config, notary.as_ref(), measure).await
    }

    async fn run_request(
        &self,
        request: SandboxRequest,
        sink: Option<OutputSink>,
    ) -> Result<SandboxResult, SandboxError> {
        request::check(&request)?;
        if !request.home.is_empty() {
            return Err(request::bad_config("the level none has no home of its own for files"));
        }
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

/// Which limits of a request are enforced.
fn bounds() -> Vec<Bound> {
    let by = |limit: &str, text: &str| Bound {
        limit: limit.to_owned(),
        enforced_by: Some(text.to_owned()),
        remark: String::new(),
    };
    let not = |limit: &str| Bound {
        limit: limit.to_owned(),
        enforced_by: None,
        remark: "the level none does not bound it".to_owned(),
    };
    vec![
        by("memory_bytes", "rlimit, for each process"),
        not("cpus"),
        not("pids"),
        not("tmp_bytes"),
        by("file_bytes", "rlimit, for each file"),
        by("open_files", "rlimit, for each process"),
        by("output_bytes", "the driver"),
        by("timeout", "the driver, for the whole tree"),
    ]
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

    fn attest(&self) -> Fut<'_, Result<Option<Arc<Attested>>, SandboxError>> {
        Box::pin(async { self.attested().await.map(Some) })
    }
}
