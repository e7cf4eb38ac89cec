//! The `none` driver: the command runs as the daemon's user, with its network and its files.
//!
//! It is for agents that select it explicitly. It still guarantees that the environment contains
//! only the request's variables, and that output is limited; files, descriptors and memory are
//! limited per process. The whole tree ends with the command, the timeout, the dropped future or
//! the daemon, including children that forked twice. [`crate::init`]'s `unconfined` describes what
//! it cannot do: a malicious command can kill its own init.
//!
//! A workspace is never read-only here, and processes and processor time are not limited.
//!
//! It is measured like all levels, so that the record of a session lists what its commands could
//! reach. There are no guarantees, so nothing is refused; the probe checks permissions here instead
//! of creating files.

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

    /// Measures what a command at this level can reach.
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
            // The program is the init, which starts itself again.
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

/// The limits of a request that are enforced.
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

    /// Checks whether the init's program exists. Nothing else can be missing.
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
