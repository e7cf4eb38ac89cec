//! The `docker` driver: one hardened container per command, over the engine's socket.
//!
//! [`Docker::new`] is the entry point. Call [`Docker::sweep`] at the daemon's start and
//! [`Docker::settled`] at its end. A container has no network, a read-only root, no capabilities,
//! no-new-privileges, limits on memory (without swap), processor time, processes, files and `/tmp`,
//! and a user that is not root. The workspace is at `/workspace`, read-only except for the
//! directory that the request names.
//!
//! Differences to the other drivers:
//!
//! * a **signal** is reported as exit code 128 + n, as the engine does, and a **missing program**
//!   as 127 with the init's message on the error stream;
//! * the **environment** contains the request's variables and those that the engine adds: PATH and
//!   HOME unless given, HOSTNAME, and the image's own variables;
//! * the **user** is [`Options::user`], else the daemon's own, else (if the daemon is root) the
//!   workspace's owner, else 65534. Files that a command writes belong to that user. If it could
//!   not use a directory, the request is refused before anything starts;
//! * images are **never downloaded** here, because that can take minutes in the middle of a
//!   command;
//! * file systems that are mounted *inside* of the workspace are not shown, because the engine
//!   would leave them writable;
//! * the engine must see the same file system as the daemon;
//! * containers of a **killed** daemon are removed by a cleanup process, which only waits for the
//!   daemon's end. If both are killed at the same moment, the containers run on, within their
//!   limits, until the next start of the daemon removes them.
//!
//! Before the first command, and again if the engine was restarted or the image or the options
//! changed, a probe runs in such a container and looks for the host ([`crate::attest`]). If an
//! engine's settings open a container to the host, the probe finds that, and no command runs.
//!
//! A process that may use the engine's socket is effectively root on its machine. The driver never
//! shows a container the socket, or any path but the workspace.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, ListContainersOptionsBuilder, WaitContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker as Client};
use futures_util::StreamExt;
use overmind_core::Fut;
use overmind_core::attest::{Attested, Notary};
use overmind_core::off_limits::OffLimits;
use overmind_core::sandbox::{
    Captured, Exit, OutputSink, OutputStream, Sandbox, SandboxError, SandboxLevel, SandboxRequest,
    SandboxResult,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::OnceCell;

use crate::attest::Program;
use crate::capture::Capture;
use crate::docker::errors::{Reason, after_start, before_start, unavailable};
use crate::docker::keeper::Keeper;
use crate::docker::place::{Held, Place, fixed_in};
use crate::docker::plan::{LABEL_INSTANCE, LABEL_OWNER, Plan};
use crate::docker::removal::{Outstanding, Removal, remove};
use crate::docker::waiter::Order;
use crate::docker::warm::{Key, NotBegun, NotMade, Pool, Warm};
use crate::hidden::{self, Hidden};
use crate::request::bad_config;
use crate::{RunAs, Warmth, request};

mod attest;
mod bare;
mod errors;
pub mod image;
mod keeper;
mod place;
mod plan;
mod removal;
mod tar;
mod waiter;
mod warm;

#[cfg(feature = "mutations")]
pub use attest::Mutation;
pub(crate) use keeper::{ARGUMENT as KEEPER_ARGUMENT, become_keeper};
pub(crate) use waiter::{ARGUMENT as WAITER_ARGUMENT, become_waiter};

/// The connection to the engine, and the properties of its containers.
#[derive(Clone, Debug)]
pub struct Options {
    /// The engine's unix socket.
    pub socket: PathBuf,
    pub image: String,
    /// Whether to refuse an [`image`](Self::image) that is not named by its digest (`…@sha256:…`)
    /// or id (`sha256:…`).
    pub enforce_pinned_image: bool,
    /// The user that runs commands; the module describes the default. For a rootless engine use
    /// 0:0, which is the daemon's own user there.
    pub user: Option<RunAs>,
    /// Runs the engine's init as process 1, so that signals and orphans work as usual.
    pub init: bool,
    /// Identifies the owner of the containers: the same after a restart of the daemon on the same
    /// data, different for every other daemon that uses the engine.
    pub owner: String,
    /// The program of the cleanup process; see [`crate::Options::init_program`].
    pub init_program: PathBuf,
    /// Maximum number of containers that wait for a command, each for at most a minute after a call
    /// with the
    /// same configuration (and so the same workspace). With 0, each call makes its own. It has an
    /// effect only with [`init`](Self::init), which reports ends as usual whatever process 2 is.
    pub waiting: usize,
    /// Identifies this start of the owner and is never reused. Letters, digits, `_`, `.` and `-`.
    pub instance: String,
    /// See [`crate::Options::private`].
    pub private: Vec<PathBuf>,
    /// See [`crate::Options::private_files`].
    pub private_files: Vec<PathBuf>,
    /// See [`crate::Options::rooms`].
    pub rooms: Vec<PathBuf>,
    /// See [`crate::Options::off_limits`].
    pub off_limits: OffLimits,
    /// See [`crate::Options::notary`].
    pub notary: Option<Notary>,
}

impl Default for Options {
    /// The standard socket and image, for a program that runs once and alone.
    fn default() -> Self {
        Self {
            socket: PathBuf::from("/var/run/docker.sock"),
            image: "alpine:3.20".to_owned(),
            enforce_pinned_image: false,
            user: None,
            init: true,
            owner: "default".to_owned(),
            init_program: PathBuf::from("/proc/self/exe"),
            waiting: 0,
            instance: format!("pid-{}", std::process::id()),
            private: Vec::new(),
            private_files: Vec::new(),
            rooms: Vec::new(),
            off_limits: OffLimits::default(),
            notary: None,
        }
    }
}

/// The driver. It connects at its first use, and stays usable when the engine restarts.
#[derive(Debug)]
pub struct Docker {
    options: Options,
    client: OnceCell<Client>,
    next: AtomicU64,
    outstanding: Arc<Outstanding>,
    keeper: Keeper,
    attestations: crate::attest::Keeper,
    #[cfg(feature = "mutations")]
    mutation: Option<Mutation>,
    pool: Pool,
    /// The program and files of the waiter in a container; found once.
    waiter: OnceCell<Program>,
}

/// The time limit for the engine's answer to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// The time limit for the beginning of an answer.
const ANSWER_TIMEOUT_S: u64 = 120;
/// How long output is still read after the container has ended or was killed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

impl Docker {
    pub fn new(options: Options) -> Self {
        Self {
            options,
            client: OnceCell::new(),
            next: AtomicU64::new(0),
            outstanding: Outstanding::new(),
            keeper: Keeper::default(),
            attestations: crate::attest::Keeper::default(),
            #[cfg(feature = "mutations")]
            mutation: None,
            pool: Pool::default(),
            waiter: OnceCell::new(),
        }
    }

    /// Removes containers that an earlier start of the same owner left behind, running or not, and
    /// returns their number. Call it before the first command.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Unavailable`] if there is no engine, without which nothing can be removed.
    pub async fn sweep(&self) -> Result<usize, SandboxError> {
        let client = self.client().await?;
        let label = format!("{LABEL_OWNER}={}", self.options.owner);
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&std::collections::HashMap::from([("label", vec![label])]))
            .build();
        let found =
            client.list_containers(Some(options)).await.map_err(|err| self.before_start(err))?;
        let mut swept = 0;
        for container in found {
            let instance = container.labels.as_ref().and_then(|all| all.get(LABEL_INSTANCE));
            let Some(id) = container.id else { continue };
            if instance == Some(&self.options.instance) {
                continue;
            }
            match remove(&client, &id).await {
                Ok(()) => swept += 1,
                Err(err) => {
                    tracing::warn!(container = id, error = %err, "left-over container stays");
                }
            }
        }
        Ok(swept)
    }

    /// What the driver keeps between calls ([`Options::waiting`]).
    pub fn warmth(&self) -> Warmth {
        self.pool.warmth()
    }

    /// Ends the waiting containers, keeps no new ones, and waits until they and those of dropped
    /// calls are removed.
    pub async fn settled(&self) {
        self.pool.close();
        self.outstanding.none_left().await;
    }

    /// A connected client that speaks the engine's version.
    ///
    /// The engine is asked each time. It answers in a millisecond, and so an unreachable engine is
    /// distinguished from a failure in the middle of a call.
    async fn client(&self) -> Result<Client, SandboxError> {
        let socket = &self.options.socket;
        if !socket.exists() {
            return Err(unavailable(Reason::SocketMissing, socket, "there is no such file"));
        }
        let connect = async {
            let client = self
                .client
                .get_or_try_init(|| async {
                    let path = socket.to_string_lossy();
                    let client =
                        Client::connect_with_unix(&path, ANSWER_TIMEOUT_S, API_DEFAULT_VERSION)?;
                    client.negotiate_version().await
                })
                .await?;
            client.ping().await?;
            Ok::<_, bollard::errors::Error>(client.clone())
        };
        match tokio::time::timeout(PING_TIMEOUT, connect).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(err)) => Err(unavailable(Reason::PingFailed, socket, &chain(&err))),
            Err(_elapsed) => Err(unavailable(Reason::PingTimedOut, socket, "no answer in 3 s")),
        }
    }

    fn before_start(&self, err: bollard::errors::Error) -> SandboxError {
        before_start(err, &self.options)
    }

    fn check_image_name(&self) -> Result<(), SandboxError> {
        let image = &self.options.image;
        // An image's own id is a digest too, and pins an image that was built here.
        let pinned = image.contains("@sha256:") || image.starts_with("sha256:");
        if self.options.enforce_pinned_image && !pinned {
            return Err(SandboxError::BadConfig {
                code: "image_not_pinned".to_owned(),
                message: format!("the image {image} is not named by its digest (@sha256:…)"),
            });
        }
        Ok(())
    }

    async fn run_request(
        &self,
        request: SandboxRequest,
        sink: Option<OutputSink>,
    ) -> Result<SandboxResult, SandboxError> {
        request::check(&request)?;
        self.check_image_name()?;
        self.attested().await?;
        let Place { opened, workspace, writable, working_dir, user } =
            Place::resolve(&request, self.options.user)?;
        let Options { private, private_files: files, rooms, off_limits, .. } = &self.options;
        let hidden = Hidden { private, files, rooms, off_limits };
        hidden::refuse_any(hidden, Path::new(&workspace))?;
        let secrets = hidden::withheld_of(hidden, Path::new(&workspace))?;
        let secrets = secrets.into_iter().map(|path| {
            let directory = Path::new(&workspace).join(&path).is_dir();
            (format!("/workspace/{}", path.to_string_lossy()), directory)
        });
        let secrets = secrets.collect();
        let fixed = match &writable {
            Some((host, _)) => fixed_in(hidden, Path::new(&workspace), Path::new(host))?,
            None => Vec::new(),
        };
        let client = self.client().await?;
        let plan = Plan {
            options: &self.options,
            request: &request,
            workspace,
            writable,
            working_dir,
            user,
            secrets,
            fixed,
        };

        let started = Instant::now();
        // The cleanup process starts before there is a container.
        self.keeper.ensure(&self.options).map_err(|err| SandboxError::Failed {
            level: SandboxLevel::Docker.as_str(),
            message: format!(
                "cannot start the watchdog {}: {err}",
                self.options.init_program.display()
            ),
        })?;
        // The mounts are held open until the command has begun.
        let mounts = plan.mounts();
        let mounts = mounts.iter().filter_map(|mount| {
            Some((Path::new(mount.source.as_deref()?), Path::new(mount.target.as_deref()?)))
        });
        let held = Held::hold(&opened, Path::new(&plan.workspace), mounts)?;
        let key = self.with_waiter(&client, &plan).await?;
        let keeps = self.options.waiting > 0 && self.options.init;
        let kept = if keeps { self.pool.take(&key) } else { None };
        let ran = match kept {
            Some(warm) => self.run_in(&client, warm, &held, &request, sink.as_ref()).await.ok(),
            None => None,
        };
        let ran = match ran {
            Some(ran) => ran,
            None => self.run_new(&client, &key, &held, &request, sink.as_ref()).await?,
        };
        drop(held);
        let key = keeps.then_some(key);
        if let Some(key) = key {
            let (pool, most) = (&self.pool, self.options.waiting);
            pool.refill(&client, self.next_name(), &self.outstanding, key, most);
        }
        let Ran { exit, stdout, stderr } = ran;
        Ok(SandboxResult {
            exit,
            stdout: stdout.finish(),
            stderr: stderr.finish(),
            elapsed: started.elapsed(),
            level: SandboxLevel::Docker,
            shown_as: Some(plan.shown()),
        })
    }

    fn next_name(&self) -> String {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        format!("overmind-{}-{next}", self.options.instance)
    }

    /// Returns the container of this command with a waiter in it.
    async fn with_waiter(&self, client: &Client, plan: &Plan<'_>) -> Result<Key, SandboxError> {
        let program = &self.options.init_program;
        let found = self.waiter.get_or_try_init(|| Program::find(program)).await;
        let waiter = found.map_err(|err| {
            failed(format!("what begins a command in a container cannot be shown there: {err}"))
        })?;
        let image = client.inspect_image(&self.options.image).await;
        let image = image.map_err(|err| self.before_start(err))?.id.unwrap_or_default();
        Key::new(plan.waiting(waiter), image)
            .ok_or_else(|| bad_config("a directory that a container is shown is gone"))
    }

    /// Runs the command in a waiting container.
    async fn run_in(
        &self,
        client: &Client,
        warm: Warm,
        held: &Held,
        request: &SandboxRequest,
        sink: Option<&OutputSink>,
    ) -> Result<Ran, SandboxError> {
        let order = Order {
            argv: request.argv.clone(),
            env: request.env.clone(),
            mounts: held.seen.clone(),
            home: request.home.clone(),
            stdin: !request.stdin.is_empty(),
        };
        let Warm { removal, output, input, left_over, errors } =
            warm.begin(&order).await.map_err(|why| match why {
                NotBegun::Exchanged => bad_config(format!(
                    "the container was shown another directory than {}: a link, or something else, was \
                     put in its place while it started, so nothing ran",
                    request.workspace.display()
                )),
                NotBegun::Failed(why) => failed(format!("the command did not begin: {why}")),
            })?;
        let mut ran = Ran::new(request, sink);
        ran.stdout.push(&left_over);
        ran.stderr.push(&errors);
        let attached = AttachContainerResults { output, input };
        ran.follow(client, removal.name(), request, attached).await;
        // This happens in every case and before the answer: no container remains when this returns.
        removal.now().await;
        Ok(ran)
    }

    /// Runs the command in a new container of its own.
    async fn run_new(
        &self,
        client: &Client,
        key: &Key,
        held: &Held,
        request: &SandboxRequest,
        sink: Option<&OutputSink>,
    ) -> Result<Ran, SandboxError> {
        let (name, outstanding) = (self.next_name(), Arc::clone(&self.outstanding));
        let removal = Removal::armed(client.clone(), name, outstanding);
        let made = Warm::make(client, removal, key);
        let made = tokio::time::timeout(warm::START_TIMEOUT, made).await;
        let warm = match made {
            Ok(Ok(warm)) => warm,
            Ok(Err(NotMade::Engine(err))) => return Err(self.before_start(err)),
            Ok(Err(NotMade::Silent(why))) => {
                return Err(failed(format!("the container did not wait for its command: {why}")));
            }
            Err(_elapsed) => return Err(failed("the container did not start in time".to_owned())),
        };
        self.run_in(client, warm, held, request, sink).await
    }

    /// Runs the command for which a container was made, without a waiter: only for the driver's own
    /// commands.
    async fn run_created(
        &self,
        client: &Client,
        name: &str,
        request: &SandboxRequest,
        sink: Option<&OutputSink>,
    ) -> Result<Ran, SandboxError> {
        // Attaching comes before the start, so that the first byte is not missed.
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(!request.stdin.is_empty())
            .stdout(true)
            .stderr(true)
            .build();
        let attached = client
            .attach_container(name, Some(options))
            .await
            .map_err(|err| self.before_start(err))?;
        client.start_container(name, None).await.map_err(|err| self.before_start(err))?;
        let mut ran = Ran::new(request, sink);
        ran.follow(client, name, request, attached).await;
        Ok(ran)
    }
}

fn failed(message: String) -> SandboxError {
    SandboxError::Failed { level: SandboxLevel::Docker.as_str(), message }
}

struct Ran {
    exit: Exit,
    stdout: Side,
    stderr: Side,
}

/// One stream of a command: the kept part, and the sink that gets all of it.
struct Side {
    stream: OutputStream,
    kept: Capture,
    sink: Option<OutputSink>,
}

/// Longest piece that is passed to a sink, in bytes.
const PIECE: usize = 64 << 10;

impl Side {
    fn new(stream: OutputStream, limit: usize, sink: Option<&OutputSink>) -> Self {
        Self { stream, kept: Capture::new(limit), sink: sink.cloned() }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.kept.push(bytes);
        if let Some(sink) = &self.sink {
            bytes.chunks(PIECE).for_each(|piece| sink(self.stream, piece));
        }
    }

    fn finish(self) -> Captured {
        self.kept.finish()
    }
}

impl Ran {
    fn new(request: &SandboxRequest, sink: Option<&OutputSink>) -> Self {
        let side = |stream| Side::new(stream, request.limits.output_bytes, sink);
        let (stdout, stderr) = (side(OutputStream::Stdout), side(OutputStream::Stderr));
        Self { exit: Exit::TimedOut, stdout, stderr }
    }

    /// Feeds a running command, and collects its output and exit.
    async fn follow(
        &mut self,
        client: &Client,
        name: &str,
        request: &SandboxRequest,
        mut attached: AttachContainerResults,
    ) {
        let mut feed = std::pin::pin!(async {
            let given = attached.input.write_all(&request.stdin).await;
            // It is no failure if a command ends without reading its input.
            if given.is_ok() && !request.stdin.is_empty() {
                let _ = attached.input.shutdown().await;
            }
            std::future::pending::<std::convert::Infallible>().await
        });
        let end = {
            let output = pump(&mut attached.output, &mut self.stdout, &mut self.stderr);
            let mut both = std::pin::pin!(async {
                tokio::select! {
                    () = output => std::future::pending().await,
                    never = &mut feed => match never {},
                }
            });
            tokio::select! {
                biased;
                end = tokio::time::timeout(request.timeout, exit_of(client, name)) => end,
                () = &mut both => unreachable!("it waits for ever when the output has ended"),
            }
        };
        match end {
            Ok(exit) => self.exit = exit,
            // The container is killed here, before its removal, so that its output ends.
            Err(_elapsed) => {
                if let Err(err) = client.kill_container(name, None).await {
                    tracing::debug!(container = name, error = %err, "not killed, to be removed");
                }
            }
        }
        let rest = pump(&mut attached.output, &mut self.stdout, &mut self.stderr);
        if tokio::time::timeout(DRAIN_TIMEOUT, rest).await.is_err() {
            tracing::warn!(container = name, "the engine did not end the output");
        }
    }
}

/// Reads output until it ends. Cancel safe: what was read is in the captures.
async fn pump(
    output: &mut (impl futures_util::Stream<Item = Result<LogOutput, bollard::errors::Error>> + Unpin),
    stdout: &mut Side,
    stderr: &mut Side,
) {
    // An error ends the loop too; the container's exit is found elsewhere.
    while let Some(Ok(piece)) = output.next().await {
        match piece {
            LogOutput::StdOut { message } | LogOutput::Console { message } => stdout.push(&message),
            LogOutput::StdErr { message } => stderr.push(&message),
            LogOutput::StdIn { .. } => {}
        }
    }
}

/// Waits for the exit, if necessary over restarts of the engine: the command has begun, so the
/// answer must be its exit or a timeout.
#[expect(clippy::disallowed_methods, reason = "waits for an engine, which has no other clock")]
async fn exit_of(client: &Client, name: &str) -> Exit {
    loop {
        let options = WaitContainerOptionsBuilder::default().condition("not-running").build();
        let answer = client.wait_container(name, Some(options)).next().await;
        match after_start(answer) {
            Some(exit) => return exit,
            None => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Joins an error and its sources, each once: the client's own text tells only where it failed.
fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

impl Sandbox for Docker {
    fn level(&self) -> SandboxLevel {
        SandboxLevel::Docker
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

    /// Checks whether the engine answers and has the image.
    fn check(&self) -> Fut<'_, Result<(), SandboxError>> {
        Box::pin(async {
            self.check_image_name()?;
            let client = self.client().await?;
            let image = client.inspect_image(&self.options.image).await;
            image.map(drop).map_err(|err| self.before_start(err))
        })
    }

    fn attest(&self) -> Fut<'_, Result<Option<Arc<Attested>>, SandboxError>> {
        Box::pin(async {
            self.check_image_name()?;
            self.attested().await.map(Some)
        })
    }
}
