//! The state of each server, and decisions based on it. Nothing here waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use overmind_core::attest::AttestationRef;
use overmind_core::ids::SessionId;
use overmind_core::time::Timestamp;
use overmind_core::tool::{EffectClass, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::calls::Own;
use super::{McpError, ServerState, ServerView, ToolState, ToolView, pinned};
use crate::PREFIX;
use crate::config::{Approve, SameNames, ServerConfig};
use crate::link::Link;
use crate::pins::{Pin, Pins, difference};
use crate::vet::{Verdict, Vetted, fold, speaks_of_others};

/// The state of a server that survives a restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    pub(super) config: ServerConfig,
    #[serde(default)]
    pub(super) pins: Pins,
    /// Whether the first answer has been approved: later tools are not approved automatically.
    #[serde(default)]
    pub(super) met: bool,
}

impl Saved {
    pub(super) fn new(config: ServerConfig) -> Self {
        Self { config, pins: Pins::new(), met: false }
    }
}

const VERSION: u64 = 1;

pub(super) fn write(servers: &[Saved]) -> Value {
    json!({"version": VERSION, "servers": servers})
}

pub(super) fn read(document: Value) -> Result<Vec<Saved>, String> {
    #[derive(Deserialize)]
    struct Document {
        version: u64,
        servers: Vec<Saved>,
    }
    let document: Document = serde_json::from_value(document).map_err(|err| err.to_string())?;
    if document.version != VERSION {
        return Err(format!("format {} is not known, only {VERSION}", document.version));
    }
    Ok(document.servers)
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) config: Arc<ServerConfig>,
    pub(super) pins: Pins,
    pub(super) met: bool,
    pub(super) state: ServerState,
    /// The tools of its last answer; `None` before the first one.
    pub(super) seen: Option<Vec<Verdict>>,
    pub(super) protocol: String,
    pub(super) server_info: String,
    pub(super) attested: Option<AttestationRef>,
    /// The shared connection, if there is one.
    pub(super) link: Option<Arc<Link>>,
    pub(super) own: HashMap<SessionId, Arc<Own>>,
    /// Ends the worker and everything that it started.
    pub(super) stop: CancellationToken,
    /// The worker and all tasks of all connections; empty when no process is left.
    pub(super) tasks: TaskTracker,
    /// Ends the wait before the next attempt.
    pub(super) wake: Arc<Notify>,
}

/// A replaced server that must end before its place is free.
#[derive(Debug)]
pub(super) struct Retired {
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
    pub(super) link: Option<Arc<Link>>,
    pub(super) own: Vec<Arc<Own>>,
}

impl Server {
    fn new(saved: Saved) -> Self {
        let state =
            if saved.config.enabled { ServerState::Starting } else { ServerState::Disabled };
        Self {
            config: Arc::new(saved.config),
            pins: saved.pins,
            met: saved.met,
            state,
            seen: None,
            protocol: String::new(),
            server_info: String::new(),
            attested: None,
            link: None,
            own: HashMap::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            wake: Arc::new(Notify::new()),
        }
    }

    pub(super) fn saved(&self) -> Saved {
        Saved { config: self.config.as_ref().clone(), pins: self.pins.clone(), met: self.met }
    }
}

/// All servers, in the order they were added: if two tools have one name, the older server's is
/// used.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) servers: Vec<Server>,
    pub(super) specs: Arc<[ToolSpec]>,
}

impl Book {
    pub(super) fn new(servers: Vec<Saved>) -> Self {
        Self { servers: servers.into_iter().map(Server::new).collect(), specs: Arc::from([]) }
    }

    pub(super) fn find(&self, id: &str) -> Option<&Server> {
        self.servers.iter().find(|server| server.config.id == id)
    }

    pub(super) fn find_mut(&mut self, id: &str) -> Option<&mut Server> {
        self.servers.iter_mut().find(|server| server.config.id == id)
    }

    pub(super) fn saved(&self) -> Vec<Saved> {
        self.servers.iter().map(Server::saved).collect()
    }

    /// The state that would be saved if these were approved as well.
    pub(super) fn saved_with(&self, id: &str, pins: &Pins) -> Vec<Saved> {
        let mut next = self.saved();
        for saved in next.iter_mut().filter(|saved| saved.config.id == id) {
            saved.pins.extend(pins.clone());
            saved.met = true;
        }
        next
    }

    /// Restores a server's pins from the saved state.
    pub(super) fn take_pins(&mut self, id: &str, saved: &[Saved]) {
        let Some(saved) = saved.iter().find(|saved| saved.config.id == id) else { return };
        if let Some(server) = self.find_mut(id) {
            server.pins.clone_from(&saved.pins);
            server.met = saved.met;
        }
    }

    /// Stores a configuration; returns the old server, which has to end.
    pub(super) fn put(&mut self, config: ServerConfig) -> Option<Retired> {
        let place = self.servers.iter().position(|server| server.config.id == config.id);
        let Some(place) = place else {
            self.servers.push(Server::new(Saved::new(config)));
            return None;
        };
        let old = &self.servers[place];
        let (pins, met) = (old.pins.clone(), old.met);
        let new = Server::new(Saved { config, pins, met });
        Some(retire(std::mem::replace(&mut self.servers[place], new)))
    }

    /// Replaces a server by a new start of itself.
    pub(super) fn renew(&mut self, id: &str) -> Option<Retired> {
        let config = self.find(id)?.config.as_ref().clone();
        self.put(config)
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Retired> {
        let place = self.servers.iter().position(|server| server.config.id == id)?;
        Some(retire(self.servers.remove(place)))
    }

    /// The states of all tools of all servers, in order.
    fn judged(&self, built_in: &[String]) -> Vec<Vec<(String, ToolState, Option<&Vetted>)>> {
        let mut taken: BTreeMap<String, String> =
            built_in.iter().map(|name| (fold(name), "the program".to_owned())).collect();
        let mut all = Vec::new();
        for server in &self.servers {
            let config = &server.config;
            let seen = server.seen.as_deref().unwrap_or_default();
            let own: Vec<&str> = seen.iter().map(|verdict| verdict.name.as_str()).collect();
            let mut tools = Vec::new();
            for verdict in seen {
                let (state, tool) = match &verdict.tool {
                    Err(why) => (ToolState::Refused(why.clone()), None),
                    Ok(tool) => (self.judge(server, tool, &own, built_in, &taken), Some(tool)),
                };
                tools.push((verdict.name.clone(), state, tool));
            }
            for name in server.pins.keys().filter(|name| !own.contains(&name.as_str())) {
                if server.seen.is_some() {
                    tools.push((name.clone(), ToolState::Gone, None));
                }
            }
            // An approved tool keeps its name even if its server is away.
            if config.enabled {
                for name in server.pins.keys() {
                    taken.entry(fold(name)).or_insert_with(|| format!("`{}`", config.id));
                }
            }
            all.push(tools);
        }
        all
    }

    fn judge(
        &self,
        server: &Server,
        tool: &Vetted,
        own: &[&str],
        built_in: &[String],
        taken: &BTreeMap<String, String>,
    ) -> ToolState {
        let config = &server.config;
        if !config.lists(&tool.name) {
            return ToolState::Denied;
        }
        if config.same_names == SameNames::Refuse
            && let Some(owner) = taken.get(&fold(&tool.name))
        {
            return ToolState::Refused(format!(
                "{owner} has a tool of the same or a similar name; set same_names = accept if \
                 agents may have both"
            ));
        }
        let texts = format!("{} {}", tool.description, tool.schema);
        if let Some(other) = speaks_of_others(&texts, &config.id, own, built_in) {
            return ToolState::Refused(format!(
                "its texts name a tool that does not belong to its server: {other}"
            ));
        }
        match server.pins.get(&tool.name) {
            None => ToolState::New,
            Some(pin) if pin.hash == tool.hash => ToolState::Ready,
            Some(pin) => ToolState::Changed(Box::new(difference(pin, tool))),
        }
    }

    pub(super) fn views(&self, built_in: &[String]) -> Vec<ServerView> {
        let judged = self.judged(built_in);
        self.servers
            .iter()
            .zip(judged)
            .map(|(server, tools)| ServerView {
                config: server.config.masked(),
                state: server.state.clone(),
                protocol: server.protocol.clone(),
                server_info: server.server_info.clone(),
                attested: server.attested.clone(),
                sessions: server.own.len(),
                tools: tools.into_iter().map(|tool| view(server, tool)).collect(),
            })
            .collect()
    }

    /// Computes which tools are offered. Tools of a server that is away for the moment stay: calls
    /// report the problem, and no session loses a tool because of a restart.
    pub(super) fn publish(&mut self, built_in: &[String]) {
        let mut specs = Vec::new();
        for (server, tools) in self.servers.iter().zip(self.judged(built_in)) {
            for (_, state, tool) in tools {
                if let (true, ToolState::Ready, Some(tool)) = (server.config.enabled, state, tool) {
                    specs.push(ToolSpec {
                        name: format!("{PREFIX}{}.{}", server.config.id, tool.name),
                        description: tool.description.clone(),
                        schema: tool.schema.clone(),
                        class: tool.class,
                        internal: false,
                    });
                }
            }
        }
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        // An unchanged list stays the same `Arc`, so its holders need not compare it.
        if *self.specs != *specs {
            self.specs = specs.into();
        }
    }

    /// The definition under which a tool may be called now.
    pub(super) fn callable(&self, id: &str, tool: &str, built_in: &[String]) -> ToolState {
        let judged = self.judged(built_in);
        let found = self.servers.iter().zip(judged).find(|(server, _)| server.config.id == id);
        let state = found.and_then(|(_, tools)| {
            tools.into_iter().find(|(name, _, _)| name == tool).map(|(_, state, _)| state)
        });
        state.unwrap_or(ToolState::Gone)
    }

    /// The tools that [`super::McpServers::pin`] approves.
    pub(super) fn to_pin(
        &self,
        id: &str,
        wanted: Option<&str>,
        hash: Option<&str>,
        built_in: &[String],
        at: Timestamp,
    ) -> Result<Pins, McpError> {
        let judged = self.judged(built_in);
        let tools = self.servers.iter().zip(judged).find(|(server, _)| server.config.id == id);
        let Some((server, tools)) = tools else { return Err(McpError::NotFound) };
        if server.seen.is_none() {
            return Err(McpError::Refused(format!(
                "`{id}` has not answered yet ({}): there is nothing to approve",
                server.state.as_str()
            )));
        }
        let mut pins = Pins::new();
        for (name, state, tool) in tools {
            if wanted.is_some_and(|wanted| wanted != name) {
                continue;
            }
            match (state, tool) {
                (ToolState::Ready | ToolState::New | ToolState::Changed(_), Some(tool)) => {
                    if hash.is_some_and(|hash| hash != tool.hash) {
                        return Err(McpError::Refused(format!(
                            "`{name}` has changed since you reviewed it: review it again"
                        )));
                    }
                    pins.insert(name, Pin::new(tool, at));
                }
                (ToolState::Refused(why), _) if wanted.is_some() => {
                    return Err(McpError::Refused(format!("`{name}` cannot be approved: {why}")));
                }
                (ToolState::Denied, _) if wanted.is_some() => {
                    return Err(McpError::Refused(format!(
                        "`{name}` is left out by the server's allow or deny list"
                    )));
                }
                (
                    ToolState::Refused(_)
                    | ToolState::Denied
                    | ToolState::Gone
                    | ToolState::Ready
                    | ToolState::New
                    | ToolState::Changed(_),
                    _,
                ) => {}
            }
        }
        if let (Some(wanted), true) = (wanted, pins.is_empty()) {
            return Err(McpError::Refused(format!(
                "`{id}` offers no tool `{}`",
                wanted.chars().take(80).collect::<String>().escape_debug()
            )));
        }
        Ok(pins)
    }

    /// The pins for a server's first answer, if it is the first and the configuration approves it.
    pub(super) fn first_pins(&self, id: &str, built_in: &[String], at: Timestamp) -> Option<Pins> {
        let server = self.find(id)?;
        if server.met || server.config.approve != Approve::FirstUse {
            return None;
        }
        self.to_pin(id, None, None, built_in, at).ok()
    }
}

fn retire(server: Server) -> Retired {
    server.stop.cancel();
    Retired {
        stop: server.stop,
        tasks: server.tasks,
        link: server.link,
        own: server.own.into_values().collect(),
    }
}

fn view(server: &Server, (name, state, tool): (String, ToolState, Option<&Vetted>)) -> ToolView {
    let pin = server.pins.get(&name);
    // A refused text is not shown, because the text may be the reason for the refusal.
    let shown = tool.filter(|_| !matches!(state, ToolState::Refused(_)));
    debug_assert!(
        state != ToolState::Ready || tool.is_some_and(|tool| pinned(pin, &tool.hash)),
        "only what is pinned is ready"
    );
    ToolView {
        full_name: format!("{PREFIX}{}.{name}", server.config.id),
        description: shown.map(|tool| tool.description.clone()).unwrap_or_default(),
        schema: shown.map(|tool| tool.schema.clone()).unwrap_or_default(),
        class: shown.map_or(EffectClass::Once, |tool| tool.class),
        hash: shown.map(|tool| tool.hash.clone()).unwrap_or_default(),
        pinned_at: pin.map(|pin| pin.at),
        name,
        state,
    }
}
