//! All configured servers: what people ask of them, and the tools that agents get.
//!
//! [`McpServers::begin`] reads the configuration and starts every enabled server at once; each has
//! a worker of its own (`worker.rs`), so a server that hangs delays nobody. `book.rs` keeps what
//! is known of each and decides which of their tools are offered; `calls.rs` calls them.

mod admin;
mod book;
mod calls;
mod worker;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use overmind_core::attest::AttestationRef;
use overmind_core::piped::Launcher;
use overmind_core::time::{Clock, Timestamp};
use overmind_core::tool::{EffectClass, ToolSpec};
use overmind_core::tool_source::Keeper;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{ConfigError, ServerConfig};
use crate::pins::{Difference, Pin};
use book::{Book, Server};

/// Finds a secret's text by its name.
pub type SecretLookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What the servers run with.
#[derive(Clone)]
pub struct Parts {
    pub launcher: Arc<dyn Launcher>,
    pub secrets: SecretLookup,
    pub clock: Arc<dyn Clock>,
    /// Directory of the daemon in which each shared server gets one of its own.
    pub scratch: PathBuf,
    /// Names of the built-in tools.
    pub built_in: Vec<String>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("scratch", &self.scratch).finish_non_exhaustive()
    }
}

/// Why a request about servers was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum McpError {
    /// The reference's words, which clients compare.
    #[error("MCP server not found")]
    NotFound,
    #[error("the MCP server's {0}")]
    Config(#[from] ConfigError),
    /// For example a tool to pin that is refused, or not there.
    #[error("{0}")]
    Refused(String),
    #[error("saving the MCP servers: {0}")]
    Settings(String),
    #[error("reading the saved MCP servers: {0}")]
    Damaged(String),
    #[error("the daemon is shutting down")]
    ShuttingDown,
}

/// How a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    Disabled,
    Starting,
    /// It has answered, and is there (or is started for each session).
    Ready,
    /// With the reason, and when the next attempt is made.
    Failed {
        reason: String,
        next_try: Option<Timestamp>,
    },
}

impl ServerState {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Failed { .. } => "failed",
        }
    }
}

/// How a tool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolState {
    /// Approved and offered.
    Ready,
    /// Never approved: pin it.
    New,
    /// Not what was approved: withdrawn until somebody pins it again.
    Changed(Box<Difference>),
    /// Cannot be approved as it is.
    Refused(String),
    /// Left out by the configuration's lists.
    Denied,
    /// Approved, but no longer offered by the server.
    Gone,
}

impl ToolState {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::New => "new",
            Self::Changed(_) => "changed",
            Self::Refused(_) => "refused",
            Self::Denied => "denied",
            Self::Gone => "gone",
        }
    }
}

/// One tool, for people. The texts are the server's: untrusted, but vetted.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolView {
    /// The server's own name, escaped.
    pub name: String,
    /// `mcp.<server>.<tool>`.
    pub full_name: String,
    pub state: ToolState,
    /// Empty when refused.
    pub description: String,
    /// `Null` when refused.
    pub schema: Value,
    pub class: EffectClass,
    /// Of what is offered now; empty when refused.
    pub hash: String,
    pub pinned_at: Option<Timestamp>,
}

/// One server, for people. Plain values of env and headers are masked.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerView {
    pub config: ServerConfig,
    pub state: ServerState,
    /// The protocol's version, once agreed on; empty before.
    pub protocol: String,
    /// Name and version that it gives itself.
    pub server_info: String,
    /// What its sandbox was measured to give before it was started last.
    pub attested: Option<AttestationRef>,
    pub tools: Vec<ToolView>,
    /// Sessions that have a server of their own now.
    pub sessions: usize,
}

impl ServerView {
    /// Whether somebody has to look: tools wait for approval.
    pub fn needs_approval(&self) -> bool {
        self.tools.iter().any(|tool| match tool.state {
            ToolState::New | ToolState::Changed(_) => true,
            ToolState::Ready | ToolState::Refused(_) | ToolState::Denied | ToolState::Gone => false,
        })
    }
}

/// The servers. Shared by `Arc`; the workers hold it weakly.
pub struct McpServers {
    parts: Parts,
    /// Where changes are saved, once it has begun.
    keeper: OnceLock<Arc<dyn Keeper>>,
    book: Mutex<Book>,
    /// Held over a change and its save: changes are made one after the other.
    changing: tokio::sync::Mutex<()>,
    /// Counts changes of anything that a view shows.
    changes: watch::Sender<u64>,
    stop: CancellationToken,
    me: std::sync::Weak<Self>,
}

impl fmt::Debug for McpServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServers").field("servers", &self.lock().servers.len()).finish()
    }
}

/// Most servers.
const MAX_SERVERS: usize = 64;
/// How long the last children may take to go at the end.
const DRAIN: Duration = Duration::from_secs(15);

impl McpServers {
    /// Without any server until [`begin`](Self::begin).
    pub fn new(parts: Parts) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            parts,
            keeper: OnceLock::new(),
            book: Mutex::new(Book::new(Vec::new())),
            changing: tokio::sync::Mutex::new(()),
            changes: watch::Sender::new(0),
            stop: CancellationToken::new(),
            me: me.clone(),
        })
    }

    /// Reads what was saved and starts every enabled server. Does not wait for them:
    /// [`McpServers::settled`] does.
    ///
    /// # Errors
    ///
    /// When what was saved cannot be read, and the second time. A server that cannot be started
    /// is no error.
    pub fn begin(&self, saved: Option<Value>, keeper: Arc<dyn Keeper>) -> Result<(), McpError> {
        let servers = match saved {
            Some(document) => book::read(document).map_err(McpError::Damaged)?,
            None => Vec::new(),
        };
        if self.keeper.set(keeper).is_err() {
            return Err(McpError::Refused("the MCP servers have begun already".to_owned()));
        }
        *self.lock() = Book::new(servers);
        let ids: Vec<String> = self.lock().servers.iter().map(|s| s.config.id.clone()).collect();
        ids.iter().for_each(|id| self.start_worker(id));
        self.publish();
        Ok(())
    }

    /// Waits until every server has answered once or has failed. Each has its own bound in
    /// time, so this ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn settled(&self) {
        let mut changes = self.changes.subscribe();
        loop {
            let starting = self.lock().servers.iter().any(|s| s.state == ServerState::Starting);
            if !starting || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Counts up whenever a server, a tool or a state changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// All servers, by id.
    pub fn list(&self) -> Vec<ServerView> {
        let mut all = self.lock().views(&self.parts.built_in);
        all.sort_by(|a, b| a.config.id.cmp(&b.config.id));
        all
    }

    /// # Errors
    ///
    /// [`McpError::NotFound`].
    pub fn get(&self, id: &str) -> Result<ServerView, McpError> {
        self.list().into_iter().find(|view| view.config.id == id).ok_or(McpError::NotFound)
    }

    /// Adds a server, or replaces the one with its id, whose pins stay. Waits for its first
    /// answer, which may be a failure: look at the view's state.
    ///
    /// # Errors
    ///
    /// [`McpError`]; nothing has changed then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before the answer leaves a server that is added or one that is not.
    pub async fn put(&self, mut config: ServerConfig) -> Result<ServerView, McpError> {
        let id = config.id.clone();
        {
            let _changing = self.changing.lock().await;
            self.not_stopping()?;
            let next = {
                let book = self.lock();
                let known = book.find(&id);
                if let Some(known) = known {
                    config.unmask(&known.config);
                }
                config.check()?;
                if known.is_none() {
                    if book.servers.len() >= MAX_SERVERS {
                        return Err(McpError::Refused(format!(
                            "at most {MAX_SERVERS} MCP servers"
                        )));
                    }
                    let alike =
                        |s: &&Server| crate::vet::fold(&s.config.id) == crate::vet::fold(&id);
                    if let Some(other) = book.servers.iter().find(alike) {
                        return Err(McpError::Refused(format!(
                            "the id `{id}` is too like `{}`: choose one that nobody confuses",
                            other.config.id
                        )));
                    }
                }
                let mut next = book.saved();
                next.retain(|server| server.config.id != id);
                let entry = match known {
                    Some(known) => book::Saved { config: config.clone(), ..known.saved() },
                    None => book::Saved::new(config.clone()),
                };
                // In place, so that it keeps its rank.
                let place = book.servers.iter().position(|s| s.config.id == id);
                next.insert(place.unwrap_or(next.len()), entry);
                next
            };
            let event = json!({"server": id, "enabled": config.enabled});
            self.save(&next, "mcp.server_put", event).await?;
            let old = self.lock().put(config);
            if let Some(old) = old {
                self.retire(old).await;
            }
            // Before anybody else may change it: what waits for a server's end relies on its
            // worker having been started.
            self.start_worker(&id);
        }
        self.publish();
        self.answered(&id).await;
        self.get(&id)
    }

    /// Forgets a server and its pins. Its processes are gone when this answers.
    ///
    /// # Errors
    ///
    /// [`McpError::NotFound`], or when it cannot be saved.
    pub async fn remove(&self, id: &str) -> Result<(), McpError> {
        let old = {
            let _changing = self.changing.lock().await;
            let next = {
                let book = self.lock();
                book.find(id).ok_or(McpError::NotFound)?;
                let mut next = book.saved();
                next.retain(|server| server.config.id != id);
                next
            };
            self.save(&next, "mcp.server_removed", json!({"server": id})).await?;
            self.lock().remove(id)
        };
        self.publish();
        if let Some(old) = old {
            self.retire(old).await;
        }
        Ok(())
    }

    /// Turns a server on or off.
    ///
    /// # Errors
    ///
    /// As [`McpServers::put`].
    pub async fn set_enabled(&self, id: &str, enabled: bool) -> Result<ServerView, McpError> {
        let config = self.lock().find(id).ok_or(McpError::NotFound)?.config.as_ref().clone();
        self.put(ServerConfig { enabled, ..config }).await
    }

    /// Ends a server and starts it again now, whatever it waits for.
    ///
    /// # Errors
    ///
    /// [`McpError::NotFound`].
    pub async fn restart(&self, id: &str) -> Result<ServerView, McpError> {
        {
            let _changing = self.changing.lock().await;
            self.not_stopping()?;
            let old = self.lock().renew(id).ok_or(McpError::NotFound)?;
            self.retire(old).await;
            self.start_worker(id);
        }
        self.answered(id).await;
        self.get(id)
    }

    /// Approves what the server offers now: one tool by the server's own name, or all that can
    /// be approved. `hash` is what the person saw: if the tool is another one by now, nothing is
    /// approved.
    ///
    /// # Errors
    ///
    /// [`McpError::NotFound`] for the server; [`McpError::Refused`] for a tool that is not there,
    /// refused, or not what was seen.
    pub async fn pin(
        &self,
        id: &str,
        tool: Option<&str>,
        hash: Option<&str>,
    ) -> Result<ServerView, McpError> {
        {
            let _changing = self.changing.lock().await;
            let at = self.parts.clock.now();
            let (next, names) = {
                let book = self.lock();
                book.find(id).ok_or(McpError::NotFound)?;
                let pins = book.to_pin(id, tool, hash, &self.parts.built_in, at)?;
                let names: Vec<String> = pins.keys().cloned().collect();
                (book.saved_with(id, &pins), names)
            };
            self.save(&next, "mcp.tools_pinned", json!({"server": id, "tools": names})).await?;
            self.lock().take_pins(id, &next);
        }
        self.publish();
        self.get(id)
    }

    /// Takes an approval back.
    ///
    /// # Errors
    ///
    /// [`McpError::NotFound`] for the server; [`McpError::Refused`] when the tool has no pin.
    pub async fn unpin(&self, id: &str, tool: &str) -> Result<ServerView, McpError> {
        {
            let _changing = self.changing.lock().await;
            let next = {
                let book = self.lock();
                let server = book.find(id).ok_or(McpError::NotFound)?;
                if !server.pins.contains_key(tool) {
                    return Err(McpError::Refused(format!(
                        "`{id}` has no approved tool of that name"
                    )));
                }
                let mut next = book.saved();
                for saved in next.iter_mut().filter(|saved| saved.config.id == id) {
                    saved.pins.remove(tool);
                }
                next
            };
            let event = json!({"server": id, "tools": [tool]});
            self.save(&next, "mcp.tools_unpinned", event).await?;
            self.lock().take_pins(id, &next);
        }
        self.publish();
        self.get(id)
    }

    /// Ends every server. All processes are gone when this answers; if not, after
    /// 15 s, the log says so.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        let all: Vec<_> = {
            let mut book = self.lock();
            let all = book.servers.iter_mut();
            all.map(|server| {
                server.stop.cancel();
                server.link = None;
                server.tasks.close();
                server.tasks.clone()
            })
            .collect()
        };
        let wait = async {
            for tasks in &all {
                tasks.wait().await;
            }
        };
        if tokio::time::timeout(DRAIN, wait).await.is_err() {
            let left: usize = all.iter().map(TaskTracker::len).sum();
            tracing::warn!(left, "MCP servers did not end in time");
        }
    }

    fn not_stopping(&self) -> Result<(), McpError> {
        if self.stop.is_cancelled() { Err(McpError::ShuttingDown) } else { Ok(()) }
    }

    /// Waits until the server is no longer starting.
    async fn answered(&self, id: &str) {
        let mut changes = self.changes.subscribe();
        loop {
            let starting =
                self.lock().find(id).is_some_and(|server| server.state == ServerState::Starting);
            if !starting || self.stop.is_cancelled() || changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn save(
        &self,
        servers: &[book::Saved],
        kind: &'static str,
        event: Value,
    ) -> Result<(), McpError> {
        let document = book::write(servers);
        let keeper = self.keeper.get();
        let keeper = keeper.ok_or_else(|| McpError::Settings("they have not begun".to_owned()))?;
        keeper.save(document, kind, event).await.map_err(McpError::Settings)
    }

    /// Approves what a server offers first, if its configuration says so.
    async fn pin_first(&self, id: &str) -> Result<(), String> {
        let _changing = self.changing.lock().await;
        let at = self.parts.clock.now();
        let next = {
            let book = self.lock();
            let Some(pins) = book.first_pins(id, &self.parts.built_in, at) else { return Ok(()) };
            book.saved_with(id, &pins)
        };
        let event = json!({"server": id, "first_use": true});
        self.save(&next, "mcp.tools_pinned", event).await.map_err(|err| err.to_string())?;
        self.lock().take_pins(id, &next);
        Ok(())
    }

    /// Works out again what is offered, and tells everybody.
    fn publish(&self) {
        self.lock().publish(&self.parts.built_in);
        self.changes.send_modify(|count| *count += 1);
    }

    fn specs_now(&self) -> Arc<[ToolSpec]> {
        Arc::clone(&self.lock().specs)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a pin is of this very definition.
fn pinned(pin: Option<&Pin>, hash: &str) -> bool {
    pin.is_some_and(|pin| pin.hash == hash)
}
