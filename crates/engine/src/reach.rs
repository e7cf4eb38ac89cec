//! Limits the access of a run's own token to the run and its tree, and decides which runs a key
//! below admin may direct: those that do nothing on the host, in directories where the key may
//! start runs.
//!
//! A token may read its whole tree. It may only direct runs that its tree has started itself: a run
//! that somebody else has put below it may have another sandbox. Everything outside of the tree
//! does not exist for it.

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

/// The refusal for the sender of a message.
const TELL: &str = "write to a run that has no sandbox, reaches beyond it, or works in a project's \
                    directory itself";
/// The sender of a message: a person or a program with a key, or an agent.
enum Sender {
    Key(Caller),
    Agent(Caller),
}

/// Maximum number of parent sessions that are checked.
const DEEPEST: usize = 64;

impl Engine {
    /// Allows a caller with this role to read a session, and a session to read itself and its
    /// descendants.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`]; [`EngineError::NotFound`] for a session outside of the tree.
    pub(crate) async fn reads(
        &self,
        by: &Caller,
        least: Role,
        id: SessionId,
    ) -> Result<(), EngineError> {
        match by.rights {
            Rights::Role(_) | Rights::System(_) => {
                by.require(least)?;
                self.session_within(by, id).await
            }
            Rights::Session { session, .. } if session == id => Ok(()),
            Rights::Session { session, .. } => self.way_up(session, id).await.map(drop),
        }
    }

    /// Refuses callers that may not run programs on the host if this session does, and callers that
    /// may not start a run in its directory: by directing the session they would. Its own token is
    /// allowed.
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

    /// Refuses a message to this session if its sender may not direct it, by the rules of
    /// [`Self::require_host_of`]. Whether the sender may write to the agent at all was checked when
    /// it was sent.
    pub(crate) async fn may_be_told(
        &self,
        letter: &Letter,
        id: SessionId,
    ) -> Result<(), EngineError> {
        // Messages to the agent are not for another caller's program.
        self.who_session(id).await?.agent()?;
        match self.sender_of(letter).await? {
            Sender::Key(by) => self.require_host_of(&by, id).await,
            Sender::Agent(by) => {
                let spec = self.spec_of(id).await?;
                let reaches = reaches_host(&spec.agent, spec.room.as_ref());
                if reaches || self.works_in_itself(&spec) {
                    by.require_host(TELL)?;
                }
                self.still_has_place(&self.find_session(id).await?).await
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

    /// The sender of a message, with the current rights. An owner of that name who came after the
    /// sending is somebody else.
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

    /// Whether a session has neither an environment nor a directory of its own, so that its writes
    /// take effect at once.
    fn works_in_itself(&self, spec: &Spec) -> bool {
        let home = resolved(&self.cortex.config.workspace);
        spec.room.is_none() && !Path::new(&spec.workspace).starts_with(home)
    }

    /// Refuses callers that may not start a run in this session's directory: they may not decide
    /// about its work there.
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
        // This is the server's own workspace, including the runs' private directories in it.
        if Path::new(workspace).starts_with(resolved(&self.cortex.config.workspace)) {
            return Ok(());
        }
        self.workspace(by, Some(workspace)).await.map(drop)
    }

    /// Refuses to start a program of this session if the Project that it needs was withdrawn.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub(crate) async fn still_has_place(&self, row: &SessionRow) -> Result<(), EngineError> {
        match self.cortex.withdrawn(row).await? {
            Some(message) => Err(EngineError::Forbidden { message }),
            None => Ok(()),
        }
    }

    /// Allows a caller with this role to direct a session, and a session to direct those that it or
    /// its descendants have started.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::reads`]; [`EngineError::Forbidden`] for the session itself, and
    /// for sessions that others have put below it.
    pub(crate) async fn orders(
        &self,
        by: &Caller,
        least: Role,
        id: SessionId,
    ) -> Result<(), EngineError> {
        let own = match by.rights {
            Rights::Role(_) | Rights::System(_) => {
                by.require(least)?;
                return self.session_within(by, id).await;
            }
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

/// Whether the caller is an admin or a run's token, which the tree of its run limits.
fn has_all_places(by: &Caller) -> bool {
    by.is_admin() || matches!(by.rights, Rights::Session { .. })
}

/// Whether a run's programs reach something that only an admin may give: all or a part of the host.
pub(crate) fn reaches_host(agent: &AgentSpec, room: Option<&RoomWish>) -> bool {
    agent.sandbox == SandboxLevel::None
        || room.is_some_and(|room| room.when == RoomWhen::Never)
        || agent.command.as_ref().is_some_and(|command| {
            let is_granted = !command.read.is_empty() || !command.write.is_empty();
            is_granted || command.network == Some(Network::Host)
        })
}
