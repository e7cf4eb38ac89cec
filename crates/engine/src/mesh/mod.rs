//! The mesh: shared state, topics and letters between agents, and who may do what there.
//!
//! Everything goes the same way: prove who asks ([`who`]), ask the matrix ([`acl`]), commit the
//! rows with the one event that explains them, tell those who wait. What stands in memory is a
//! copy of what the store holds, or a count of it; a restart loses nothing.

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
use overmind_core::ids::{AgentId, SessionId};
use overmind_core::mesh::{MAX_VALUE, Registration, Subscription};
use overmind_core::store::{Change, Commit, Guard, NewEvent, Store, StoreError, StreamId};
use overmind_core::time::Timestamp;
use serde_json::Value;

pub use self::acl::{AclEntry, Effective};
pub use self::artifacts::{ArtifactDraft, ArtifactOpened, ArtifactSaved};
pub use self::board::{BoardFound, BoardWrite};
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

/// Rows read at a time when the engine starts.
const SCAN: u32 = 1000;
/// Sessions whose line of agents is kept.
const KEPT_LINES: usize = 10_000;

/// The agents of a session, of the session above it, and so on.
type Line = Arc<[AgentId]>;

/// What the mesh keeps in memory.
#[derive(Debug, Default)]
pub(crate) struct MeshState {
    board: board::Board,
    acl: acl::Acl,
    mail: letters::Mailboxes,
    pub(crate) post: postmaster::Post,
    subscriptions: Mutex<BTreeMap<(AgentId, String), Arc<Subscription>>>,
    registrations: Mutex<BTreeMap<AgentId, Arc<Registration>>>,
    /// Neither a session's agent nor its parent ever changes.
    lines: Mutex<HashMap<SessionId, Line>>,
    /// Keys whose calls of tools are under way, by what stands for their session.
    pub(crate) seats: Mutex<HashMap<SessionId, Caller>>,
    pub(crate) questions: ask::Questions,
    saving: artifacts::Saving,
    /// Held over counting children and starting one.
    spawning: tokio::sync::Mutex<()>,
}

impl MeshState {
    /// Reads what earlier lives have left.
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

/// One event of the mesh's stream.
fn event(kind: &'static str, ts: Timestamp, payload: Value) -> NewEvent {
    NewEvent { stream: StreamId::Mesh, kind, ts, payload }
}

/// A commit of one event and what it explains.
fn explained(event: NewEvent, guards: Vec<Guard>, changes: Vec<Change>) -> Commit {
    Commit { guards, events: vec![event], changes }
}

impl Cortex {
    /// Masks secrets in a value as it will be written; answers its size as compact JSON.
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

/// What a caller is told whose wish is denied.
fn denied(what: String, verdict: &Verdict) -> EngineError {
    let ask = verdict.ask_for.as_ref().map(|ask| format!("; ask for {ask}")).unwrap_or_default();
    EngineError::Forbidden { message: format!("{what} ({}){ask}", verdict.rule) }
}

/// Seconds that something may live.
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
