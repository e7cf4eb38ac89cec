//! One connection to one server: starts it, lists and calls its tools, and ends it with everything
//! that belongs to it.
//!
//! A [`Link`] owns the connection's tasks and, for a program, its process tree. Dropping or closing
//! it ends both; [`Link::closed`] returns when they have ended.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overmind_core::attest::AttestationRef;
use overmind_core::piped::{Launcher, Piped, PipedRequest};
use overmind_core::sandbox::{Exit, SandboxLevel, SandboxLimits};
use overmind_core::trace::{TRACEPARENT, Traceparent};
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig,
    ClientRequest, Implementation, JsonObject, PaginatedRequestParams, ProgressNotificationParam,
    ProgressToken, ProtocolVersion, RequestMetaObject, ServerResult, SubscriptionFilter,
};
use rmcp::service::{
    ClientCacheConfig, ClientLifecycleMode, NotificationContext, Peer, PeerRequestOptions,
    RequestHandle, RoleClient, RunningService, ServiceError, serve_client_with_lifecycle_and_ct,
};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
};
use rmcp::{ClientHandler, transport::IntoTransport};
use serde_json::Value as Json;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Limits, Protocol};
use crate::guard::{Guarded, MAX_MESSAGE_BYTES, Reason, Tail};
use crate::traced::Traced;
use crate::vet::{MAX_TOOLS, Offered};

/// Maximum number of calls at one time; further calls wait.
const MAX_CALLS: usize = 16;
/// Maximum number of pages of one list of tools.
const MAX_PAGES: usize = 64;
/// How long a server may take to end by itself after its input was closed.
const END_GRACE: Duration = Duration::from_secs(2);
const CLOSE_GRACE: Duration = Duration::from_secs(5);
/// Maximum number of unread progress reports of a call; further ones are dropped.
const PROGRESS_WAITING: usize = 64;

/// The target of a connection, with secrets resolved.
#[derive(Clone)]
pub(crate) enum Target {
    Program {
        argv: Vec<String>,
        env: Vec<(String, String)>,
        level: SandboxLevel,
        workspace: PathBuf,
        writable: Option<PathBuf>,
        cwd: PathBuf,
        read_only: Vec<PathBuf>,
    },
    Http {
        url: String,
        headers: Vec<(String, String)>,
    },
}

/// Why a call ended without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// `mcp_transport_error`.
    Transport(String),
    /// `mcp_tool_error`: the server answered with a protocol error.
    Refused(String),
    /// `timeout`.
    Timeout(Duration),
}

pub(crate) struct Link {
    peer: Peer<RoleClient>,
    shared: Arc<Shared>,
    stop: CancellationToken,
    closed: CancellationToken,
    calls: Semaphore,
    tracker: TaskTracker,
    pub(crate) protocol: String,
    pub(crate) server_info: String,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

/// State that the connection's tasks and its users share.
#[derive(Debug, Default)]
struct Shared {
    /// Counts the announcements of a changed list of tools. `asked` is the count at the last query,
    /// and `taken` the count whose answer is in use everywhere.
    announced: Arc<AtomicU64>,
    asked: AtomicU64,
    taken: AtomicU64,
    changed: Notify,
    progress: Mutex<Progress>,
    tail: Mutex<Tail>,
    /// Why we ended the connection, if we did.
    reason: Reason,
    exit: Mutex<Option<Exit>>,
    /// The attestation of its process's sandbox.
    attested: Mutex<Option<AttestationRef>>,
}

impl Shared {
    fn list_changed(&self) {
        self.announced.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_one();
    }
}

/// The receivers of progress reports.
#[derive(Debug, Default)]
struct Progress {
    waiting: HashMap<ProgressToken, mpsc::Sender<ProgressNotificationParam>>,
    /// Reports whose call is not known yet: its token is only known when it is sent, and a server
    /// may answer faster. At most [`PROGRESS_WAITING`] are kept; the oldest are dropped.
    early: VecDeque<ProgressNotificationParam>,
}

impl Progress {
    fn heard(&mut self, report: ProgressNotificationParam) {
        if let Some(waiting) = self.waiting.get(&report.progress_token) {
            // If it is full, the call uses a later report.
            let _ = waiting.try_send(report);
            return;
        }
        if self.early.len() >= PROGRESS_WAITING {
            self.early.pop_front();
        }
        self.early.push_back(report);
    }

    fn listen(&mut self, token: ProgressToken, waiting: mpsc::Sender<ProgressNotificationParam>) {
        for report in std::mem::take(&mut self.early) {
            if report.progress_token == token {
                let _ = waiting.try_send(report);
            } else {
                self.early.push_back(report);
            }
        }
        self.waiting.insert(token, waiting);
    }
}

/// Our side of the protocol. It offers a server nothing: no sampling, no roots, no elicitation.
#[derive(Debug)]
struct Handler(Arc<Shared>);

impl ClientHandler for Handler {
    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        lock(&self.0.progress).heard(params);
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.0.list_changed();
    }

    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("overmind", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), us)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

impl Link {
    /// The attestation of the server's sandbox; `None` if it has no process here, or no sandbox.
    pub(crate) fn attested(&self) -> Option<AttestationRef> {
        lock(&self.shared.attested).clone()
    }

    /// Connects, without a time limit, because the caller has one.
    ///
    /// # Errors
    ///
    /// Returns a text for people, with the server's last error output.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends what was started.
    pub(crate) async fn open(
        target: &Target,
        launcher: &Arc<dyn Launcher>,
        protocol: Protocol,
        limits: &Limits,
        tracker: &TaskTracker,
    ) -> Result<Arc<Self>, String> {
        match Self::open_once(target, launcher, protocol, limits, tracker).await {
            // A server with the old protocol may end when it gets the new query.
            Err(Failed::Handshake(_)) if protocol == Protocol::Auto => {
                Self::open_once(target, launcher, Protocol::Handshake, limits, tracker).await
            }
            other => other,
        }
        .map_err(|failed| match failed {
            Failed::Start(why) | Failed::Handshake(why) => why,
        })
    }

    async fn open_once(
        target: &Target,
        launcher: &Arc<dyn Launcher>,
        protocol: Protocol,
        limits: &Limits,
        tracker: &TaskTracker,
    ) -> Result<Arc<Self>, Failed> {
        let shared = Arc::new(Shared::default());
        match target {
            Target::Program { argv, env, level, workspace, writable, cwd, read_only } => {
                let request = PipedRequest {
                    level: *level,
                    argv: argv.clone(),
                    workspace: workspace.clone(),
                    writable: writable.clone(),
                    cwd: cwd.clone(),
                    read_only: read_only.clone(),
                    env: env.clone(),
                    limits: SandboxLimits {
                        memory_bytes: limits.memory_bytes,
                        pids: limits.pids,
                        ..SandboxLimits::default()
                    },
                };
                let (tell, told) = oneshot::channel();
                let tree = TreeEnd::default();
                // It kills the process if this future is dropped before the link owns it.
                let guard = tree.stop.clone().drop_guard();
                tracker.spawn(own(
                    Arc::clone(launcher),
                    request,
                    tell,
                    tree.clone(),
                    Arc::clone(&shared),
                ));
                let [stdin, stdout, stderr] = told
                    .await
                    .unwrap_or_else(|_| Err("whoever starts it has ended".into()))
                    .map_err(Failed::Start)?;
                let pipe = |err: std::io::Error| Failed::Start(format!("its pipes: {err}"));
                let stdin = pipe::Sender::from_owned_fd(stdin).map_err(pipe)?;
                let stdout = pipe::Receiver::from_owned_fd(stdout).map_err(pipe)?;
                let stderr = pipe::Receiver::from_owned_fd(stderr).map_err(pipe)?;
                tracker.spawn(drain(stderr, Arc::clone(&shared)));
                let reason = Arc::clone(&shared.reason);
                let guarded = Guarded::new(stdout, reason, Arc::clone(&shared.announced));
                let transport = AsyncRwTransport::<RoleClient, _, _>::new_client(guarded, stdin)
                    .with_max_line_length(2 * MAX_MESSAGE_BYTES);
                let link = Self::shake(transport, Some(tree), shared, protocol, tracker).await?;
                let _stop = guard.disarm();
                Ok(link)
            }
            Target::Http { url, headers } => {
                let transport = http(url, headers).map_err(Failed::Start)?;
                Self::shake(transport, None, shared, protocol, tracker).await
            }
        }
    }

    async fn shake<T, E, A>(
        transport: T,
        tree: Option<TreeEnd>,
        shared: Arc<Shared>,
        protocol: Protocol,
        tracker: &TaskTracker,
    ) -> Result<Arc<Self>, Failed>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let lifecycle = match protocol {
            Protocol::Auto => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
            },
            Protocol::Handshake => ClientLifecycleMode::Initialize,
        };
        let stop = CancellationToken::new();
        let handler = Handler(Arc::clone(&shared));
        let serving =
            serve_client_with_lifecycle_and_ct(handler, transport, lifecycle, stop.clone());
        let service = match Box::pin(serving).await {
            Ok(service) => service,
            Err(err) => {
                if let Some(tree) = tree {
                    // Usually the process has ended; its exit status is more informative than a
                    // closed pipe.
                    tree.end().await;
                }
                let err = err.to_string();
                let err: String = err.chars().take(300).collect();
                return Err(Failed::Handshake(
                    shared.why(&format!("it did not agree on a protocol: {}", err.escape_debug())),
                ));
            }
        };
        let peer = service.peer().clone();
        // A requested list must come from the server and not from a cache.
        peer.set_response_cache_config(ClientCacheConfig::disabled()).await;
        let info = peer.peer_info();
        let plain =
            |text: &str| text.chars().take(100).collect::<String>().escape_debug().to_string();
        let version = info.as_ref().map(|info| info.protocol_version.clone());
        let listens = version.as_ref().is_some_and(|version| !version.has_initialize())
            && info.as_ref().is_some_and(|info| {
                info.capabilities.tools.as_ref().and_then(|tools| tools.list_changed) == Some(true)
            });
        let server_info = info.and_then(|info| info.server_info.clone());
        let link = Arc::new(Self {
            protocol: version.map(|version| plain(version.as_str())).unwrap_or_default(),
            server_info: server_info
                .map(|info| format!("{} {}", plain(&info.name), plain(&info.version)))
                .unwrap_or_default(),
            peer: peer.clone(),
            shared: Arc::clone(&shared),
            stop: stop.clone(),
            closed: CancellationToken::new(),
            calls: Semaphore::new(MAX_CALLS),
            tracker: tracker.clone(),
        });
        tracker.spawn(end(service, tree, link.closed.clone()));
        if listens {
            tracker.spawn(listen(peer, shared, stop));
        }
        Ok(link)
    }

    /// Lists the server's tools, as it describes them.
    ///
    /// # Errors
    ///
    /// Returns a text for people.
    pub(crate) async fn tools(&self) -> Result<Vec<Offered>, String> {
        // This comes before the query: changes during the answer cause another query.
        self.shared.asked.store(self.shared.announced.load(Ordering::SeqCst), Ordering::SeqCst);
        let mut all = Vec::new();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let params = PaginatedRequestParams::default().with_cursor(cursor);
            let page = self.peer.list_tools(Some(params)).await.map_err(|err| {
                self.shared.why(&format!("it did not list its tools: {}", service_words(&err)))
            })?;
            for tool in page.tools {
                let hint = tool.annotations.unwrap_or_default();
                all.push(Offered {
                    name: tool.name.into_owned(),
                    description: tool.description.map(|d| d.into_owned()).unwrap_or_default(),
                    schema: Json::Object(tool.input_schema.as_ref().clone()),
                    read_only: hint.read_only_hint.unwrap_or(false),
                    idempotent: hint.idempotent_hint.unwrap_or(false),
                });
            }
            if all.len() > MAX_TOOLS {
                return Err(format!("it has more than {MAX_TOOLS} tools"));
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(all);
            }
        }
        Err(format!("its list of tools has more than {MAX_PAGES} pages"))
    }

    /// Marks the last answer of [`Link::tools`] as in use everywhere.
    pub(crate) fn taken(&self) {
        self.shared.taken.store(self.shared.asked.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Whether the server announced another list that is not in use everywhere yet.
    pub(crate) fn is_dirty(&self) -> bool {
        let announced = self.shared.announced.load(Ordering::SeqCst);
        announced != self.shared.taken.load(Ordering::SeqCst)
    }

    /// Waits for such an announcement. Cancel safe.
    pub(crate) async fn changed(&self) {
        while !self.is_dirty() {
            self.shared.changed.notified().await;
        }
    }

    /// Calls one tool by the server's own name. `progress` receives the server's progress reports.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future informs the server that no caller waits any more.
    pub(crate) async fn call(
        &self,
        tool: &str,
        args: &Json,
        traceparent: Option<Traceparent>,
        limits: &Limits,
        progress: &(dyn Fn(&ProgressNotificationParam) + Send + Sync),
    ) -> Result<CallToolResult, CallError> {
        let closed = || CallError::Transport(self.why_closed());
        let total = tokio::time::Instant::now() + limits.call_total();
        let turn = tokio::time::timeout_at(total, self.calls.acquire()).await;
        let _turn = turn
            .map_err(|_elapsed| CallError::Timeout(limits.call_total()))?
            .expect("the semaphore is never closed");
        let mut params = CallToolRequestParams::new(tool.to_owned());
        if let Json::Object(args) = args {
            params = params.with_arguments(args.clone());
        }
        if let Some(parent) = traceparent {
            let meta = [(TRACEPARENT.to_owned(), Json::from(parent.to_string()))];
            params.meta = Some(RequestMetaObject::from(JsonObject::from_iter(meta)));
        }
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let options = PeerRequestOptions::no_options();
        let handle = self
            .peer
            .send_cancellable_request(request, options)
            .await
            .map_err(|err| CallError::Transport(service_words(&err)))?;
        let (report, mut reports) = mpsc::channel(PROGRESS_WAITING);
        let token = handle.progress_token.clone();
        lock(&self.shared.progress).listen(token.clone(), report);
        let mut asked = Asked { handle: Some(handle), token, link: self };
        let mut quiet = tokio::time::Instant::now() + limits.call();
        loop {
            let handle = asked.handle.as_mut().expect("taken only where the loop ends");
            let deadline = quiet.min(total);
            let answer = tokio::select! {
                biased;
                answer = &mut handle.rx => answer,
                Some(report) = reports.recv() => {
                    progress(&report);
                    quiet = tokio::time::Instant::now() + limits.call();
                    continue;
                }
                () = tokio::time::sleep_until(deadline) => {
                    // Dropping `asked` informs the server.
                    let bound = if deadline == total { limits.call_total() } else { limits.call() };
                    return Err(CallError::Timeout(bound));
                }
            };
            asked.handle = None;
            // Reports that came before the answer are handled in tasks of their own, each of which
            // needs only one turn.
            for _ in 0..PROGRESS_WAITING {
                tokio::task::yield_now().await;
            }
            while let Ok(report) = reports.try_recv() {
                progress(&report);
            }
            return match answer {
                Err(_) | Ok(Err(ServiceError::TransportClosed)) => {
                    // The exit status of the process is known a moment later.
                    let _ = tokio::time::timeout(CLOSE_GRACE, self.closed()).await;
                    Err(closed())
                }
                Ok(Err(ServiceError::McpError(error))) => {
                    let text: String = error.message.chars().take(2000).collect();
                    Err(CallError::Refused(format!("{} (code {})", text, error.code.0)))
                }
                Ok(Err(err)) => Err(CallError::Transport(service_words(&err))),
                Ok(Ok(ServerResult::CallToolResult(result))) => Ok(result),
                Ok(Ok(ServerResult::InputRequiredResult(_))) => Err(CallError::Refused(
                    "the tool asks its caller for input, which is not given here".into(),
                )),
                Ok(Ok(_)) => {
                    Err(CallError::Refused("the answer is not the result of a tool".into()))
                }
            };
        }
    }

    /// Waits until connection and processes have ended. Cancel safe.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled() || self.peer.is_transport_closed()
    }

    /// Ends everything and waits until it has ended.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.closed().await;
    }

    /// Why the connection has ended.
    pub(crate) fn why_closed(&self) -> String {
        self.shared.why("the connection ended")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

enum Failed {
    /// There is no server to talk to.
    Start(String),
    Handshake(String),
}

impl Shared {
    /// `what`, or a better known reason, with the exit status of the process and its last error
    /// output.
    fn why(&self, what: &str) -> String {
        let mut why = lock(&self.reason).clone().unwrap_or_else(|| what.to_owned());
        match *lock(&self.exit) {
            Some(Exit::Code(code)) => why.push_str(&format!("; it exited with code {code}")),
            Some(Exit::Signal(signal)) => why.push_str(&format!("; signal {signal} ended it")),
            Some(Exit::TimedOut) | None => {}
        }
        if let Some(words) = lock(&self.tail).words() {
            why.push_str(&format!("; its last words: {words}"));
        }
        why
    }
}

/// A request in progress. Dropping it tells the server to stop.
struct Asked<'a> {
    handle: Option<RequestHandle<RoleClient>>,
    token: ProgressToken,
    link: &'a Link,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        lock(&self.link.shared.progress).waiting.remove(&self.token);
        if let (Some(handle), Ok(_runtime)) =
            (self.handle.take(), tokio::runtime::Handle::try_current())
        {
            self.link.tracker.spawn(async move {
                let cancel = handle.cancel(Some("nobody waits for the result".into()));
                // A server that does not read is ended elsewhere.
                let _ = tokio::time::timeout(END_GRACE, cancel).await;
            });
        }
    }
}

fn service_words(err: &ServiceError) -> String {
    let text: String = err.to_string().chars().take(500).collect();
    text.escape_debug().to_string()
}

/// Signals to end a process tree, and that it has ended.
#[derive(Clone, Debug, Default)]
struct TreeEnd {
    stop: CancellationToken,
    gone: CancellationToken,
}

impl TreeEnd {
    async fn end(&self) {
        self.stop.cancel();
        self.gone.cancelled().await;
    }
}

/// Starts a process tree and owns it until it has ended. It is a separate task, so that waiting for
/// the server's tasks also waits for its processes, however the connection ended.
async fn own(
    launcher: Arc<dyn Launcher>,
    request: PipedRequest,
    tell: oneshot::Sender<Result<[OwnedFd; 3], String>>,
    end: TreeEnd,
    shared: Arc<Shared>,
) {
    let _gone = end.gone.drop_guard();
    let Piped { stdin, stdout, stderr, mut tree, attested } = match launcher.launch(request).await {
        Ok(piped) => piped,
        Err(err) => {
            // The receiver may be gone.
            let _ = tell.send(Err(err.to_string()));
            return;
        }
    };
    *lock(&shared.attested) = attested.as_deref().map(AttestationRef::from);
    let heard = tell.send(Ok([stdin, stdout, stderr])).is_ok();
    let exit = tokio::select! {
        exit = tree.ended() => Some(exit),
        () = end.stop.cancelled(), if heard => {
            // Its input is closed, or soon will be, which asks it to end.
            tokio::time::timeout(END_GRACE, tree.ended()).await.ok()
        }
        () = std::future::ready(()), if !heard => None,
    };
    if let Some(exit) = exit {
        *lock(&shared.exit) = Some(exit);
    }
    tree.kill().await;
}

/// Waits for the end of a connection, then removes all its remains.
async fn end(
    service: RunningService<RoleClient, Handler>,
    tree: Option<TreeEnd>,
    closed: CancellationToken,
) {
    let _closed = closed.drop_guard();
    let token = service.cancellation_token();
    let waiting = service.waiting();
    let Some(tree) = tree else {
        let _ = waiting.await;
        return;
    };
    tokio::pin!(waiting);
    tokio::select! {
        _ = &mut waiting => {}
        () = tree.gone.cancelled() => {
            // Its last output may still be in the pipe.
            if tokio::time::timeout(CLOSE_GRACE, &mut waiting).await.is_err() {
                token.cancel();
            }
        }
    }
    tree.end().await;
}

/// Reads standard error until it is closed.
async fn drain(mut stderr: pipe::Receiver, shared: Arc<Shared>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count) = stderr.read(&mut buffer).await
        && count > 0
    {
        lock(&shared.tail).push(&buffer[..count]);
    }
}

/// From 2026-07-28 on a server reports changes only to subscribers.
async fn listen(peer: Peer<RoleClient>, shared: Arc<Shared>, stop: CancellationToken) {
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    let hear = async {
        let Ok(mut subscription) = peer.listen(filter).await else { return };
        while let Ok(Some(_)) = subscription.next().await {
            shared.list_changed();
        }
    };
    tokio::select! {
        () = hear => {}
        () = stop.cancelled() => {}
    }
}

fn http(
    url: &str,
    headers: &[(String, String)],
) -> Result<StreamableHttpClientTransport<Traced>, String> {
    let client = reqwest::Client::builder()
        // A redirect could lead anywhere, with all headers.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(10))
        .no_proxy()
        .build()
        .map_err(|err| format!("the HTTP client: {err}"))?;
    let mut custom = HashMap::new();
    for (name, value) in headers {
        let bad = |_| format!("the header `{name}` has a value that cannot be sent");
        let mut value = reqwest::header::HeaderValue::from_str(value).map_err(bad)?;
        value.set_sensitive(true);
        let name = reqwest::header::HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("`{name}` cannot be a header"))?;
        custom.insert(name, value);
    }
    let config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(custom)
        .max_concurrent_requests(MAX_CALLS)
        .max_sse_event_size(MAX_MESSAGE_BYTES);
    Ok(StreamableHttpClientTransport::with_client(Traced(client), config))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
