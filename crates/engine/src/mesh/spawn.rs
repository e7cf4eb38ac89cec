//! Child sessions: an agent starts another, beneath itself and never above.

use overmind_core::acl::Verb;
use overmind_core::agent::{AgentLimits, AgentSpec};
use overmind_core::ids::EffectId;
use overmind_core::mesh::{MAX_CHILDREN, MAX_SPAWN_DEPTH, MeshSpawn};
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::{Page, SessionFilter};

use super::Who;
use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::error::EngineError;
use crate::request::{AgentDraft, SessionDraft};

/// A new agent that names no time takes no longer than this, in seconds.
const TTL: u64 = 3600;
/// Longest role of a new agent, in bytes.
const ROLE_BYTES: usize = 200;

/// A child that was started.
#[derive(Clone, Debug, PartialEq)]
pub struct Spawned {
    /// The agent's name.
    pub agent: String,
    pub role: String,
    pub session: SessionRow,
    pub spawned_by: String,
    pub ttl: Option<u64>,
}

impl Engine {
    /// Starts a session beneath the caller's own, of an agent that is there or of a new one made
    /// after the caller's. With a key: beneath none.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`], [`EngineError::Conflict`] when it has too many children or
    /// stands too deep.
    pub async fn spawn(
        &self,
        by: &Caller,
        given: Option<&str>,
        wish: MeshSpawn,
    ) -> Result<Spawned, EngineError> {
        let who = self.who(by, given).await?;
        self.spawn_as(&who, wish, None).await
    }

    pub(super) async fn spawn_as(
        &self,
        who: &Who,
        wish: MeshSpawn,
        effect: Option<EffectId>,
    ) -> Result<Spawned, EngineError> {
        for (field, text) in
            [("role", &wish.role), ("agent", wish.agent.as_ref().unwrap_or(&wish.role))]
        {
            if text.len() > ROLE_BYTES || text.chars().any(char::is_control) {
                let message = format!("{field} has at most {ROLE_BYTES} printable bytes");
                return Err(EngineError::invalid(field, message));
            }
        }
        if wish.agent.is_none() && wish.role.trim().is_empty() {
            return Err(EngineError::invalid("role", "name an `agent`, or a `role` for a new one"));
        }
        let there = match &wish.agent {
            Some(agent) => Some(self.find_agent(agent).await?),
            None => None,
        };
        let object = there.as_ref().map_or(wish.role.as_str(), |agent| &agent.spec.name).to_owned();
        let what = || format!("Agent {} cannot spawn {object}", who.name);
        self.permit(who, Verb::Spawn, &object, what).await?;
        let _turn = self.cortex.mesh.spawning.lock().await;
        let parent = match who.session {
            Some(session) => {
                let row = self.find_session(session).await?;
                self.has_room_for_children(who, &row).await?;
                Some(row)
            }
            None => None,
        };
        let name = who.session.map_or_else(|| who.name.clone(), |id| id.to_string());
        let mut as_operator = Caller::new(name, Rights::Role(Role::Operator));
        as_operator.trace = wish.trace;
        // What runs on the host may start what runs there; see below for what is weaker.
        as_operator.on_host = match &parent {
            Some(parent) => parent.sandbox == SandboxLevel::None,
            None => who.role == Some(Role::Admin),
        };
        let key = effect.map(|effect| (effect.to_string(), [0; 32]));
        let (agent, ttl) = match there {
            Some(agent) => {
                if let Some(parent) = &parent
                    && agent.spec.sandbox < parent.sandbox
                {
                    let message = format!(
                        "Agent {object} has the sandbox `{}`, which is weaker than the caller's \
                         `{}`; a child gets none that is weaker",
                        agent.spec.sandbox.as_str(),
                        parent.sandbox.as_str()
                    );
                    return Err(EngineError::Forbidden { message });
                }
                (agent.id, None)
            }
            None => {
                let ttl = wish.ttl.unwrap_or(TTL);
                super::checked_ttl(Some(ttl))?;
                let draft = self.after_parent(who, parent.as_ref(), &wish, ttl).await?;
                let made = self.agent_create(&as_operator, draft, key.clone()).await?;
                (made.value.agent.id, Some(ttl))
            }
        };
        let draft = SessionDraft {
            agent: agent.to_string(),
            task: wish.task,
            name: None,
            parent: parent.as_ref().map(|row| row.id.to_string()),
            command: None,
            sandbox: None,
            room: None,
            step_limit: None,
            // In a room of the same project; without one, its parent's directory is its own where a
            // caller below admin may name it.
            workspace: parent
                .as_ref()
                .filter(|row| row.room.is_none() && row.command.is_none())
                .map(|row| row.workspace.clone())
                .filter(|path| {
                    let config = &self.cortex.config;
                    !config.private && std::path::Path::new(path).starts_with(&config.workspace)
                }),
            idempotency: key,
        };
        let session = Box::pin(self.session_create(&as_operator, draft)).await?.value;
        let name = self.cortex.agent(agent).await?.map(|agent| agent.spec.name.clone());
        Ok(Spawned {
            agent: name.unwrap_or_else(|| agent.to_string()),
            role: if wish.role.is_empty() { object } else { wish.role },
            session,
            spawned_by: who.name.clone(),
            ttl,
        })
    }

    async fn has_room_for_children(&self, who: &Who, row: &SessionRow) -> Result<(), EngineError> {
        if who.line.len() > MAX_SPAWN_DEPTH {
            let message = format!(
                "{} runs stand above this one, and a child would be one too many: \
                 {MAX_SPAWN_DEPTH} is the most",
                who.line.len() - 1
            );
            return Err(EngineError::conflict(message));
        }
        let statuses = SessionStatus::ALL.into_iter().filter(|status| !status.is_terminal());
        let filter = SessionFilter {
            parent: Some(row.id),
            statuses: statuses.collect(),
            ..SessionFilter::default()
        };
        let page = Page { limit: MAX_CHILDREN, after: None };
        let children = self.cortex.store.session_list(filter, page).await?.len();
        if children >= MAX_CHILDREN as usize {
            let message = format!(
                "this run has {children} children that have not ended, which is the most; wait \
                 for one to end"
            );
            return Err(EngineError::conflict(message));
        }
        Ok(())
    }

    /// A new agent: no wider than the one that it is made after.
    async fn after_parent(
        &self,
        who: &Who,
        parent: Option<&SessionRow>,
        wish: &MeshSpawn,
        ttl: u64,
    ) -> Result<AgentDraft, EngineError> {
        let own = match parent {
            Some(row) => self.cortex.agent(row.agent).await?.map(|agent| agent.spec.clone()),
            None => None,
        };
        let model = match (&wish.model, &own) {
            (Some(model), own) if own.as_ref().is_none_or(|own| own.model != *model) => {
                let what = || format!("Agent {} cannot use the model {model}", who.name);
                self.permit(who, Verb::Model, model, what).await?;
                model.clone()
            }
            (_, Some(AgentSpec { command: None, model, .. })) => model.clone(),
            (Some(model), _) => model.clone(),
            (None, _) => {
                let message = "name a `model` for the new agent, or an `agent` that is there: the \
                               caller has no model of its own";
                return Err(EngineError::invalid("model", message));
            }
        };
        // Twelve of the random digits of an id.
        let digits = format!("{:032x}", self.cortex.ids.next());
        let name = format!("spawn_{}", &digits[20..]);
        let role = match wish.system_prompt.is_empty() {
            true => format!("You are a '{}' agent.", wish.role),
            false => wish.system_prompt.clone(),
        };
        let own = own.filter(|own| own.command.is_none());
        let seconds = u32::try_from(ttl).unwrap_or(u32::MAX);
        let limits = own.as_ref().map_or_else(AgentLimits::default, |own| own.limits);
        let limits = AgentLimits {
            max_seconds: match limits.max_seconds {
                0 => seconds,
                most => most.min(seconds),
            },
            ..limits
        };
        Ok(AgentDraft {
            name,
            role,
            model,
            tools_allowed: own.as_ref().map(|own| own.tools_allowed.clone()).unwrap_or_default(),
            policy: None,
            sandbox: parent.map(|row| row.sandbox),
            limits: Some(limits),
            on_unknown: own.as_ref().map(|own| own.on_unknown),
            approvals: own.as_ref().map(|own| own.approvals.clone()),
            reasoning_effort: None,
            max_output_tokens: own.as_ref().and_then(|own| own.max_output_tokens),
            command: None,
            // What it costs counts for its parent's session, too.
            budget: own.as_ref().and_then(|own| own.budget),
        })
    }
}
