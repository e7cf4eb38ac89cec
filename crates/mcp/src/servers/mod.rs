//! All configured servers: administration, and the tools for agents.
//!
//! [`McpServers::begin`] reads the configuration and starts every enabled server at once; each has
//! its own worker (`worker.rs`), so a server that hangs delays no other. `book.rs` holds the state
//! of each and decides which tools are offered; `calls.rs` calls them.

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

/// The dependencies of the servers.
#[derive(Clone)]
pub struct Parts {
    pub launcher: Arc<dyn Launcher>,
    pub secrets: SecretLookup,
    pub clock: Arc<dyn Clock>,
    /// The daemon's directory in which each shared server gets its own.
    pub scratch: PathBuf,
    /// Names of the built-in tools.
    pub built_in: Vec<String>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("scratch", &self.scratch).finish_non_exhaustive()
    }
}

/// Why a request about servers failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum McpError {
    /// The text is that of the reference implementation, because clients compare it.
    #[error("MCP server not found")]
    NotFound,
    #[error("the MCP server's {0}")]
    Config(#[from] ConfigError),
    /// For example, a tool to pin is refused or missing.
    #[error("{0}")]
    Refused(String),
    #[error("saving the MCP servers: {0}")]
    Settings(String),
    #[error("reading the saved MCP servers: {0}")]
    Damaged(String),
    #[error("the daemon is shutting down")]
    ShuttingDown,
}

/// The state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    Disabled,
    Starting,
    /// It has answered and is running (or is started for each session).
    Ready,
    /// It failed, for this reason; the next attempt is at the given time.
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

/// The state of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolState {
    /// Approved and offered.
    Ready,
    /// It was never approved and must be pinned.
    New,
    /// It differs from the approved one and is withdrawn until it is pinned again.
    Changed(Box<Difference>),
    /// It cannot be approved as it is.
    Refused(String),
    /// The configuration's lists exclude it.
    Denied,
    /// It was approved, but the server no longer offers it.
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

/// One tool, for people. The texts come from the server: untrusted, but checked.
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
    /// The hash of the current definition; empty when refused.
    pub hash: String,
    pub pinned_at: Option<Timestamp>,
}

/// One server, for people. Plain values of env and headers are masked.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerView {
    pub config: ServerConfig,
    pub state: ServerState,
    /// The version of the protocol, empty before it is negotiated.
    pub protocol: String,
    /// The server's own name and version.
    pub server_info: String,
    /// The attestation of its sandbox before its last start.
    pub attested: Option<AttestationRef>,
    pub tools: Vec<ToolView>,
    /// The number of sessions that have their own instance now.
    pub sessions: usize,
}

impl ServerView {
    /// Whether a person has to act, because tools wait for approval.
    pub fn needs_approval(&self) -> bool {
        self.tools.iter().any(|tool| match tool.state {
            ToolState::New | ToolState::Changed(_) => true,
            ToolState::Ready | ToolState::Refused(_) | ToolState::Denied | ToolState::Gone => false,
        })
    }
}

/// All servers. Shared by `Arc`; the workers hold weak references.
pub struct McpServers {
    parts: Parts,
    /// Saves changes, once [`begin`](Self::begin) was called.
    keeper: OnceLock<Arc<dyn Keeper>>,
    book: Mutex<Book>,
    /// Locked during a change and its save, so that changes are made one after the other.
    changing: tokio::sync::Mutex<()>,
    /// Incremented by every change that a view shows.
    changes: watch::Sender<u64>,
    stop: CancellationToken,
    me: std::sync::Weak<Self>,
}

impl fmt::Debug for McpServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServers").field("servers", &self.lock().servers.len()).finish()
    }
}

/// Maximum number of servers.
const MAX_SERVERS: usize = 64;
/// How long the last children may take to end at shutdown.
const DRAIN: Duration = Duration::from_secs(15);

impl McpServers {
    /// Creates an instance without servers, until [`begin`](Self::begin) was called.
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

    /// Reads the saved state and starts every enabled server. Does not wait for them;
    /// [`McpServers::settled`] does.
    ///
    /// # Errors
    ///
    /// Fails if the saved state cannot be read, and at a second call. It is no error if a server
    /// cannot be started.
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

    /// Waits until every server has answered once or has failed. Each has its own time limit, so
    /// this ends.
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

    /// A counter that is incremented whenever a server, a tool or a state changes.
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
    /// [`McpError::NotFound`] if there is no such server.
    pub fn get(&self, id: &str) -> Result<ServerView, McpError> {
        self.list().into_iter().find(|view| view.config.id == id).ok_or(McpError::NotFound)
    }

    /// Adds a server, or replaces the one with its id, whose pins stay. Waits for its first answer,
    /// which may be a failure: check the state of the returned view.
    ///
    /// # Errors
    ///
    /// [`McpError`]; nothing is changed then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before the answer, the server may or may not have been added.
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
                            "the id `{id}` is too similar to `{}`: choose a different one",
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
                // It is replaced in place, so that it keeps its rank.
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
            // This comes before any other change: waiting for a server's end requires that its
            // worker was started.
            self.start_worker(&id);
        }
        self.publish();
        self.answered(&id).await;
        self.get(&id)
    }

    /// Deletes a server and its pins. Its processes have ended when this returns.
    ///
    /// # Errors
    ///
    /// [`McpError::NotFound`], or an error if the change cannot be saved.
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

    /// Enables or disables a server.
    ///
    /// # Errors
    ///
    /// The same as for [`McpServers::put`].
    pub async fn set_enabled(&self, id: &str, enabled: bool) -> Result<ServerView, McpError> {
        let config = self.lock().find(id).ok_or(McpError::NotFound)?.config.as_ref().clone();
        self.put(ServerConfig { enabled, ..config }).await
    }

    /// Restarts a server now, whatever it waits for.
    ///
    /// # Errors
    ///
    /// [`McpError::NotFound`] if there is no such server.
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

    /// Approves the tools that the server offers now: one tool by the server's own name, or all
    /// that can be approved. `hash` is the definition that the person saw: if the tool has changed
    /// since, nothing is approved.
    ///
    /// # Errors
    ///
    /// [`McpError::NotFound`] if there is no such server; [`McpError::Refused`] for a tool that is
    /// missing, refused, or different from the one seen.
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

    /// Withdraws an approval.
    ///
    /// # Errors
    ///
    /// [`McpError::NotFound`] if there is no such server; [`McpError::Refused`] if the tool has no
    /// pin.
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

    /// Ends every server. All processes have ended when this returns; after 15 s it gives up and
    /// logs that.
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

    /// Approves the first tools of a server, if its configuration says so.
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

    /// Computes which tools are offered, and notifies everybody.
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

/// Whether a pin is for exactly this definition.
fn pinned(pin: Option<&Pin>, hash: &str) -> bool {
    pin.is_some_and(|pin| pin.hash == hash)
}
