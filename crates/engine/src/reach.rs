//! What a run's own token reaches: the run, and the tree of runs that began with it. And which runs keys
//! below admin may tell what to do: those that do nothing on the host, where they may have runs work.
//!
//! It reads all of its tree. Orders it gives only to what the tree has started itself: a run that
//! somebody else has put below it may have another sandbox, and is theirs. What lies outside is
//! for it as what is not there.

use std::path::Path;

use overmind_core::agent::AgentSpec;
use overmind_core::enclosure::Network;
use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::mesh::Letter;
use overmind_core::room::{RoomWhen, RoomWish};
use overmind_core::row::{Role, SessionRow};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::Spec;
use overmind_core::time::Timestamp;

use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::error::EngineError;
use crate::place::resolved;

/// What the sender of a message is refused.
const TELL: &str = "write to a run that has no sandbox, reaches beyond it, or works in a project's \
                    directory itself";
/// Who sent a message: a person or a program with a key, or an agent.
enum Sender {
    Key(Caller),
    Agent(Caller),
}

/// Most sessions above one another that are looked at.
const DEEPEST: usize = 64;

impl Engine {
    /// Lets a caller of this role read a session, and a session read itself and what is below it.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`]; [`EngineError::NotFound`] for a session that stands elsewhere.
    pub(crate) async fn reads(
        &self,
        by: &Caller,
        least: Role,
        id: SessionId,
    ) -> Result<(), EngineError> {
        match by.rights {
            Rights::Role(_) | Rights::System(_) => by.require(least),
            Rights::Session { session, .. } if session == id => Ok(()),
            Rights::Session { session, .. } => self.way_up(session, id).await.map(drop),
        }
    }

    /// Refuses whoever may not run programs on the host, where this session does, and whoever may not have
    /// one work where it works: by telling it what to do they would. Its own token may.
    pub(crate) async fn require_host_of(
        &self,
        by: &Caller,
        id: SessionId,
    ) -> Result<(), EngineError> {
        if has_all_places(by) {
            return Ok(());
        }
        let spec = self.spec_of(id).await?;
        let own = spec.created_by == by.name;
        if reaches_host(&spec.agent, spec.room.as_ref()) || (!own && self.works_in_itself(&spec)) {
            by.require_host(
                "say what a run does that has no sandbox, reaches beyond it, or works in a \
                 project's directory itself",
            )?;
        }
        self.may_work_in(by, &spec.workspace).await
    }

    /// Refuses a message to this session by whose sender it may not be told what to do, as
    /// [`Self::require_host_of`] does. Who may write to whom at all was looked at when it was sent.
    pub(crate) async fn may_be_told(
        &self,
        letter: &Letter,
        id: SessionId,
    ) -> Result<(), EngineError> {
        match self.sender_of(letter).await? {
            Sender::Key(by) => self.require_host_of(&by, id).await,
            Sender::Agent(by) => {
                let spec = self.spec_of(id).await?;
                let reaches = reaches_host(&spec.agent, spec.room.as_ref());
                if reaches || self.works_in_itself(&spec) { by.require_host(TELL) } else { Ok(()) }
            }
        }
    }

    /// Refuses a message that would start a session of an agent that reaches the host.
    pub(crate) async fn may_be_started_by(
        &self,
        letter: &Letter,
        agent: &AgentSpec,
    ) -> Result<(), EngineError> {
        let (Sender::Key(by) | Sender::Agent(by)) = self.sender_of(letter).await?;
        if reaches_host(agent, None) { by.require_host(TELL) } else { Ok(()) }
    }

    /// Who sent a message, with the rights that they have now. Whoever came under that name only after it
    /// was sent is somebody else.
    async fn sender_of(&self, letter: &Letter) -> Result<Sender, EngineError> {
        let name = letter.from.as_str();
        let sent_it = |since: Timestamp| since <= letter.sent_at;
        if name == Caller::admin().name {
            return Ok(Sender::Key(Caller::admin()));
        }
        if let Some(key) = self.key_named(name).await?.filter(|key| sent_it(key.created_at)) {
            return Ok(Sender::Key(Caller::new(name, Rights::Role(key.role))));
        }
        let agent = self.cortex.agent_named(ColonyId::DEFAULT, name).await?;
        match agent.filter(|agent| sent_it(agent.created_at)) {
            Some(agent) => {
                // Its runs are on the host anyway.
                let on_host = agent.spec.sandbox == SandboxLevel::None;
                let by = Caller::new(name, Rights::Role(Role::Operator));
                Ok(Sender::Agent(Caller { on_host, ..by }))
            }
            None => Err(EngineError::Forbidden {
                message: format!("`{name}`, who sent this message, no longer exists"),
            }),
        }
    }

    /// Whether a session has neither an environment nor a directory of its own: what it writes is there
    /// at once.
    fn works_in_itself(&self, spec: &Spec) -> bool {
        let home = resolved(&self.cortex.config.workspace);
        spec.room.is_none() && !Path::new(&spec.workspace).starts_with(home)
    }

    /// Refuses whoever may not have a run work where this session does: what becomes of its work there is
    /// not theirs to say.
    pub(crate) async fn require_place_of(
        &self,
        by: &Caller,
        id: SessionId,
    ) -> Result<(), EngineError> {
        if has_all_places(by) {
            return Ok(());
        }
        self.may_work_in(by, &self.find_session(id).await?.workspace).await
    }

    async fn may_work_in(&self, by: &Caller, workspace: &str) -> Result<(), EngineError> {
        // The server's own workspace, and what runs have for themselves in it.
        if Path::new(workspace).starts_with(resolved(&self.cortex.config.workspace)) {
            return Ok(());
        }
        self.workspace(by, Some(workspace)).await.map(drop)
    }

    /// Lets a caller of this role give orders to a session, and a session to what was started
    /// by it and below it.
    ///
    /// # Errors
    ///
    /// As [`Engine::reads`]; [`EngineError::Forbidden`] for itself, and for what others have put
    /// below it.
    pub(crate) async fn orders(
        &self,
        by: &Caller,
        least: Role,
        id: SessionId,
    ) -> Result<(), EngineError> {
        let own = match by.rights {
            Rights::Role(_) | Rights::System(_) => return by.require(least),
            Rights::Session { session, .. } => session,
        };
        let refused = |message: &str| Err(EngineError::Forbidden { message: message.into() });
        if own == id {
            return refused("a run's own token may control the runs below it, not the run itself");
        }
        let way = self.way_up(own, id).await?;
        let started = |row: &SessionRow| {
            row.parent.is_some_and(|parent| row.created_by == parent.to_string())
        };
        if way.iter().all(started) {
            return Ok(());
        }
        refused("somebody else started that run: only operators and admins may control it")
    }

    /// The rows from `id` up to the child of `top`.
    async fn way_up(&self, top: SessionId, id: SessionId) -> Result<Vec<SessionRow>, EngineError> {
        let (mut way, mut next) = (Vec::new(), Some(id));
        while let Some(id) = next
            && way.len() < DEEPEST
        {
            let row = self.find_session(id).await?;
            next = row.parent;
            way.push(row);
            if next == Some(top) {
                return Ok(way);
            }
        }
        Err(EngineError::not_found("Run"))
    }
}

/// Admins, and the tokens of runs: what those may do is bounded by the tree of their run.
fn has_all_places(by: &Caller) -> bool {
    by.is_admin() || matches!(by.rights, Rights::Session { .. })
}

/// Whether programs of a run reach what only an admin gives: all of the host, or a part of it.
pub(crate) fn reaches_host(agent: &AgentSpec, room: Option<&RoomWish>) -> bool {
    agent.sandbox == SandboxLevel::None
        || room.is_some_and(|room| room.when == RoomWhen::Never)
        || agent.command.as_ref().is_some_and(|command| {
            let is_granted = !command.read.is_empty() || !command.write.is_empty();
            is_granted || command.network == Some(Network::Host)
        })
}
