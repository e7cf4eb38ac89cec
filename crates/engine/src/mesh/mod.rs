//! The mesh: shared state, topics and messages between agents, and their permissions.
//!
//! Every operation has the same steps: identify the caller ([`who`]), check the matrix ([`acl`]),
//! commit the rows with the event that explains them, notify waiting callers. The state in memory
//! is a copy or a count of the store's, so a restart loses nothing.

mod acl;
mod artifacts;
pub(crate) mod ask;
mod board;
mod door;
mod inform;
mod letters;
mod postmaster;
mod spawn;
mod topics;
mod who;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use overmind_core::acl::Verdict;
use overmind_core::ids::{AgentId, ColonyId, SessionId};
use overmind_core::mesh::{MAX_VALUE, Registration, Subscription};
use overmind_core::store::{Change, Commit, Guard, NewEvent, Store, StoreError, StreamId};
use overmind_core::time::Timestamp;
use serde_json::Value;

pub use self::acl::{AclEntry, Effective};
pub use self::artifacts::{ArtifactDraft, ArtifactOpened, ArtifactSaved};
pub use self::board::{BoardChange, BoardFound, BoardPast, BoardWrite};
pub use self::door::MeshDoor;
pub use self::inform::MeshAgent;
pub use self::letters::{LetterDraft, LetterSent};
pub(crate) use self::postmaster::Dispatcher;
pub use self::spawn::Spawned;
pub use self::topics::Published;
pub(crate) use self::who::Who;
use crate::caller::Caller;
use crate::cortex::{Cortex, lock};
use crate::error::EngineError;

/// Rows that are read at once when the engine starts.
const SCAN: u32 = 1000;
/// Maximum number of sessions whose line of agents is cached.
const KEPT_LINES: usize = 10_000;

/// The agents of a session, of its parent session, and so on.
type Line = Arc<[Link]>;

/// One session of a [`Line`].
#[derive(Clone, Copy, Debug)]
struct Link {
    agent: AgentId,
    /// It runs a program of a caller who may not use the mesh, and not the agent's program.
    stranger: bool,
    colony: ColonyId,
}

/// The mesh's state in memory.
#[derive(Debug, Default)]
pub(crate) struct MeshState {
    board: board::Board,
    acl: acl::Acl,
    mail: letters::Mailboxes,
    pub(crate) post: postmaster::Post,
    subscriptions: Mutex<BTreeMap<(AgentId, String), Arc<Subscription>>>,
    registrations: Mutex<BTreeMap<AgentId, Arc<Registration>>>,
    /// A session's agent and parent never change.
    lines: Mutex<HashMap<SessionId, Line>>,
    /// The keys with tool calls in progress, by the id that represents their session.
    pub(crate) seats: Mutex<HashMap<SessionId, Caller>>,
    pub(crate) questions: ask::Questions,
    saving: artifacts::Saving,
    /// Locked while children are counted and one is started.
    spawning: tokio::sync::Mutex<()>,
}

impl MeshState {
    /// Reads the state that earlier processes have left.
    pub(crate) async fn load(&self, store: &dyn Store) -> Result<(), StoreError> {
        self.acl.load(store).await?;
        self.questions.load(store).await?;
        self.mail.load(store, &self.post).await?;
        let mut after = None;
        loop {
            let page = store.subscription_list(after, SCAN).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            let mut all = lock(&self.subscriptions);
            for one in page {
                all.insert((one.agent, one.pattern.to_string()), Arc::new(one));
            }
        }
        let mut after = None;
        loop {
            let page = store.registration_list(after, SCAN).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.agent);
            let mut all = lock(&self.registrations);
            all.extend(page.into_iter().map(|one| (one.agent, Arc::new(one))));
        }
        Ok(())
    }
}

/// An event of the mesh's stream.
fn event(kind: &'static str, ts: Timestamp, payload: Value) -> NewEvent {
    NewEvent { stream: StreamId::Mesh, kind, ts, payload }
}

/// A commit with one event and the changes that it explains.
fn explained(event: NewEvent, guards: Vec<Guard>, changes: Vec<Change>) -> Commit {
    Commit { guards, events: vec![event], changes }
}

impl Cortex {
    /// Masks secrets in a value as it will be written; returns its size as compact JSON.
    fn measured(&self, field: &str, value: &mut Value) -> Result<usize, EngineError> {
        self.store.redact(value);
        let bytes = value.to_string().len();
        if bytes > MAX_VALUE {
            let message = format!(
                "{field} has {bytes} bytes as JSON; {MAX_VALUE} is the most: store a file's path instead"
            );
            return Err(EngineError::invalid(field, message));
        }
        Ok(bytes)
    }
}

/// The error for a denied request.
fn denied(what: String, verdict: &Verdict) -> EngineError {
    let ask = verdict.ask_for.as_ref().map(|ask| format!("; ask for {ask}")).unwrap_or_default();
    EngineError::Forbidden { message: format!("{what} ({}){ask}", verdict.rule) }
}

/// Checks a lifetime in seconds.
fn checked_ttl(ttl: Option<u64>) -> Result<Option<std::time::Duration>, EngineError> {
    use overmind_core::mesh::MAX_TTL;
    match ttl {
        None => Ok(None),
        Some(ttl) if (1..=MAX_TTL).contains(&ttl) => Ok(Some(std::time::Duration::from_secs(ttl))),
        Some(ttl) => {
            let message = format!("ttl is {ttl}; it is 1 to {MAX_TTL} seconds");
            Err(EngineError::invalid("ttl", message))
        }
    }
}
