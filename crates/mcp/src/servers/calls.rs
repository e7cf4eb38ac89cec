//! Calls of tools: chooses the connection, checks that the tool is still the approved one, and
//! converts the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::ids::SessionId;
use overmind_core::live::Live;
use overmind_core::time::Timestamp;
use overmind_core::tool::{ToolContext, ToolOutcome, ToolSpec};
use overmind_core::tool_source::{CHANGED, ToolSource};
use rmcp::model::ProgressNotificationParam;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{McpServers, ServerState, ToolState};
use crate::PREFIX;
use crate::config::{Scope, ServerConfig};
use crate::link::{CallError, Link};
use crate::result::{self, For};
use crate::vet::clean;

/// Maximum number of sessions that may have their own instance of a server at one time, for each
/// server.
const MAX_OWN: usize = 64;
/// Maximum number of bytes of the message in one progress report.
const MAX_PROGRESS_BYTES: usize = 1024;
const TRANSPORT: &str = "mcp_transport_error";

/// A session's own connection to a server.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// Locked while the connection is made.
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
    ended: CancellationToken,
    used_at: AtomicI64,
    in_use: AtomicUsize,
}

impl Own {
    /// Ends the connection and waits until its processes have ended.
    pub(super) async fn end(&self) {
        self.ended.cancel();
        let link = self.link.lock().await.take();
        if let Some(link) = link {
            link.close().await;
        }
    }
}

/// Counts a call while it exists.
struct InUse<'a>(&'a Own, &'a McpServers);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let now = self.1.parts.clock.now().as_micros();
        self.0.used_at.store(now, Ordering::SeqCst);
        self.0.in_use.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ToolSource for McpServers {
    fn prefix(&self) -> &str {
        PREFIX
    }

    fn specs(&self) -> Arc<[ToolSpec]> {
        self.specs_now()
    }

    fn call<'a>(
        &'a self,
        context: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
    ) -> Fut<'a, ToolOutcome> {
        Box::pin(self.answer(context, name, args))
    }

    fn session_ended(&self, session: SessionId) {
        let mut book = self.lock();
        for server in &mut book.servers {
            if let Some(own) = server.own.remove(&session) {
                server.tasks.spawn(async move { own.end().await });
            }
        }
    }
}

/// Why a call was not made.
struct Not {
    code: &'static str,
    why: String,
}

impl Not {
    fn transport(why: impl Into<String>) -> Self {
        Self { code: TRANSPORT, why: why.into() }
    }
}

impl McpServers {
    async fn answer(&self, context: &ToolContext, name: &str, args: &Value) -> ToolOutcome {
        let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.'));
        let Some((id, tool)) = parts else {
            return ToolOutcome {
                allowed: false,
                ..ToolOutcome::failure("tool_not_allowed", "not the name of an MCP tool")
            };
        };
        let config = self.lock().find(id).map(|server| Arc::clone(&server.config));
        let called = match &config {
            None => Err(Not::transport("the MCP server is not configured any more")),
            Some(config) => match config.scope {
                Scope::Shared => self.shared(config, tool, context, args).await,
                Scope::Session => self.own(config, tool, context, args).await,
            },
        };
        match (called, config) {
            (Ok(outcome), _) => outcome,
            (Err(Not { code, why }), Some(config)) => {
                result::failure(id, tool, code, self.masked(&config, why))
            }
            (Err(Not { code, why }), None) => result::failure(id, tool, code, why),
        }
    }

    async fn shared(
        &self,
        config: &Arc<ServerConfig>,
        tool: &str,
        context: &ToolContext,
        args: &Value,
    ) -> Result<ToolOutcome, Not> {
        let link = self.shared_link(config).await?;
        // An announced change is read before the tool is used.
        self.fresh(&link, config).await?;
        self.approved(&config.id, tool)?;
        self.through(&link, config, tool, context, args).await
    }

    /// The shared connection; waits while the server starts, and triggers its next attempt.
    async fn shared_link(&self, config: &ServerConfig) -> Result<Arc<Link>, Not> {
        let mut changes = self.changes.subscribe();
        let mut hurried = false;
        let wait = async {
            loop {
                {
                    let book = self.lock();
                    let Some(server) = book.find(&config.id) else {
                        return Err(Not::transport("the MCP server was removed"));
                    };
                    match (&server.state, &server.link) {
                        (_, Some(link)) if !link.is_closed() => return Ok(Arc::clone(link)),
                        (ServerState::Disabled, _) => {
                            return Err(Not::transport("the MCP server is disabled"));
                        }
                        (ServerState::Failed { reason, .. }, _) if hurried => {
                            return Err(Not::transport(format!("the MCP server failed: {reason}")));
                        }
                        (ServerState::Failed { .. }, _) => {
                            hurried = true;
                            server.wake.notify_one();
                        }
                        (ServerState::Starting | ServerState::Ready, _) => {}
                    }
                }
                if changes.changed().await.is_err() {
                    return Err(Not::transport("the daemon is shutting down"));
                }
            }
        };
        let bound = config.limits.start() + Duration::from_secs(1);
        tokio::time::timeout(bound, wait)
            .await
            .unwrap_or_else(|_elapsed| Err(Not::transport("the MCP server is not there in time")))
    }

    /// Waits until the list that the server announced was read.
    async fn fresh(&self, link: &Link, config: &ServerConfig) -> Result<(), Not> {
        let mut changes = self.changes.subscribe();
        let wait = async {
            while link.is_dirty() && !link.is_closed() {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(config.limits.start(), wait).await.map_err(|_elapsed| {
            Not::transport("the MCP server says that its tools changed, and does not list them")
        })
    }

    fn approved(&self, id: &str, tool: &str) -> Result<(), Not> {
        let state = self.lock().callable(id, tool, &self.parts.built_in);
        let why = match state {
            ToolState::Ready => return Ok(()),
            ToolState::Changed(_) => {
                "its definition is not the approved one any more; somebody has to look at the \
                 difference and pin it again"
                    .to_owned()
            }
            ToolState::New => "nobody has approved it yet".to_owned(),
            ToolState::Refused(why) => why,
            ToolState::Denied => "the server's allow or deny list leaves it out".to_owned(),
            ToolState::Gone => "the server does not offer it any more".to_owned(),
        };
        Err(Not {
            code: CHANGED,
            why: format!("the tool `{PREFIX}{id}.{tool}` is withdrawn: {why}"),
        })
    }

    async fn own(
        &self,
        config: &Arc<ServerConfig>,
        tool: &str,
        context: &ToolContext,
        args: &Value,
    ) -> Result<ToolOutcome, Not> {
        let (own, stop, tasks) = self.own_of(config, context)?;
        own.in_use.fetch_add(1, Ordering::SeqCst);
        let _in_use = InUse(&own, self);
        // All of it is raced, because the code that ends the session waits for this lock.
        let link = tokio::select! {
            () = own.ended.cancelled() => return Err(Not::transport("the session has ended")),
            link = self.own_link(config, &own, context, &stop, &tasks) => link?,
        };
        self.approved(&config.id, tool)?;
        tokio::select! {
            () = own.ended.cancelled() => Err(Not::transport("the session has ended")),
            outcome = self.through(&link, config, tool, context, args) => outcome,
        }
    }

    /// The session's connection, whose list of tools was read.
    async fn own_link(
        &self,
        config: &Arc<ServerConfig>,
        own: &Own,
        context: &ToolContext,
        stop: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<Arc<Link>, Not> {
        let mut made = own.link.lock().await;
        let known = made.as_ref().filter(|link| !link.is_closed()).map(Arc::clone);
        let (link, offered) = match known {
            Some(link) if !link.is_dirty() => return Ok(link),
            Some(link) => {
                let offered = tokio::time::timeout(config.limits.start(), link.tools()).await;
                let late = |_elapsed| Not::transport("it did not list its tools in time");
                (link, offered.map_err(late)?.map_err(Not::transport)?)
            }
            None => {
                let session = (context.session, context.workspace.as_path(), &context.off_limits);
                let target = self.target(config, Some(session)).map_err(Not::transport)?;
                self.connect(config, &target, tasks).await.map_err(Not::transport)?
            }
        };
        *made = Some(Arc::clone(&link));
        // If an instance offers something else, that counts as the server offering something else.
        let taken = self.accept(&config.id, config, &link, offered, stop).await;
        taken.map_err(Not::transport)?;
        Ok(link)
    }

    /// The session's entry, created if needed, with a task that ends it when it is idle.
    fn own_of(
        &self,
        config: &Arc<ServerConfig>,
        context: &ToolContext,
    ) -> Result<(Arc<Own>, CancellationToken, TaskTracker), Not> {
        let mut book = self.lock();
        let Some(server) = book.find_mut(&config.id) else {
            return Err(Not::transport("the MCP server was removed"));
        };
        if !server.config.enabled || self.stop.is_cancelled() {
            return Err(Not::transport("the MCP server is disabled"));
        }
        let (stop, tasks) = (server.stop.clone(), server.tasks.clone());
        if let Some(own) = server.own.get(&context.session) {
            return Ok((Arc::clone(own), stop, tasks));
        }
        if server.own.len() >= MAX_OWN {
            return Err(Not::transport(format!(
                "{MAX_OWN} sessions have a server of their own already; try again when one ends"
            )));
        }
        let own = Arc::new(Own::default());
        own.used_at.store(self.parts.clock.now().as_micros(), Ordering::SeqCst);
        server.own.insert(context.session, Arc::clone(&own));
        drop(book);
        if let Some(me) = self.me.upgrade() {
            let (config, session) = (Arc::clone(config), context.session);
            let (own, stop) = (Arc::clone(&own), stop.clone());
            tasks.spawn(async move { me.reap(&config, session, &own, &stop).await });
        }
        Ok((own, stop, tasks))
    }

    /// Ends a session's server when the session or its server ends, or when it was idle for too
    /// long.
    async fn reap(
        &self,
        config: &ServerConfig,
        session: SessionId,
        own: &Arc<Own>,
        stop: &CancellationToken,
    ) {
        loop {
            let used = Timestamp::from_micros(own.used_at.load(Ordering::SeqCst));
            let due = used.after(config.limits.idle());
            if own.in_use.load(Ordering::SeqCst) == 0 && due <= self.parts.clock.now() {
                break;
            }
            let due = due.max(self.parts.clock.now().after(Duration::from_millis(100)));
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.stop.cancelled() => break,
                () = own.ended.cancelled() => break,
                () = self.parts.clock.sleep_until(due) => {}
            }
        }
        if let Some(server) = self.lock().find_mut(&config.id)
            && server.own.get(&session).is_some_and(|known| Arc::ptr_eq(known, own))
        {
            server.own.remove(&session);
        }
        own.end().await;
        self.publish();
    }

    async fn through(
        &self,
        link: &Link,
        config: &Arc<ServerConfig>,
        tool: &str,
        context: &ToolContext,
        args: &Value,
    ) -> Result<ToolOutcome, Not> {
        let report = |report: &ProgressNotificationParam| {
            if !context.live.is_heard() {
                return;
            }
            let message = report.message.as_deref().map(|text| {
                let text = self.masked(config, clean(text).0);
                text[..text.floor_char_boundary(MAX_PROGRESS_BYTES)].to_owned()
            });
            let (progress, total) = (report.progress, report.total);
            context.live.say(Live::Progress { progress, total, message: message.as_deref() });
        };
        let called = link.call(tool, args, context.traceparent, &config.limits, &report).await;
        let answer = called.map_err(|err| match err {
            CallError::Transport(why) => Not::transport(why),
            CallError::Refused(why) => Not { code: "mcp_tool_error", why: clean(&why).0 },
            CallError::Timeout(bound) => Not {
                code: "timeout",
                why: format!(
                    "the tool gave no sign of life for {} ms and was cancelled",
                    bound.as_millis()
                ),
            },
        })?;
        // This writes files and copies megabytes, so it must not block an async thread.
        let (context, config, tool) = (context.clone(), Arc::clone(config), tool.to_owned());
        let secrets = self.hidden_texts(&config);
        let made = tokio::task::spawn_blocking(move || {
            let wanted = For {
                context: &context,
                server: &config.id,
                tool: &tool,
                text_bytes: config.limits.result_bytes,
                secrets: &secrets,
            };
            result::outcome(answer, &wanted)
        });
        made.await.map_err(|_| Not::transport("the answer could not be read"))
    }
}
