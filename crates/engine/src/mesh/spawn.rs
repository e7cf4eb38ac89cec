//! Child sessions: an agent starts another, with no more rights than its own.

use overmind_core::acl::Verb;
use overmind_core::agent::{AgentLimits, AgentSpec};
use overmind_core::command::CommandSpec;
use overmind_core::enclosure::Network;
use overmind_core::ids::{EffectId, SessionId};
use overmind_core::mesh::{MAX_CHILDREN, MAX_SPAWN_DEPTH, MeshSpawn};
use overmind_core::room::RoomWish;
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::{Page, SessionFilter};

use super::Who;
use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::error::EngineError;
use crate::request::{AgentDraft, SessionDraft};
use crate::view::Created;

/// The default time limit of a new agent, in seconds.
const TTL: u64 = 3600;
/// Longest role of a new agent, in characters.
const ROLE_CHARS: usize = 200;

/// A started child.
#[derive(Clone, Debug, PartialEq)]
pub struct Spawned {
    /// The agent's name.
    pub agent: String,
    pub role: String,
    pub session: SessionRow,
    pub spawned_by: String,
    pub ttl: Option<u64>,
}

/// The caller that starts a session's children: an operator in its name. A session on the host may
/// start others on the host.
fn in_name_of(parent: &SessionRow) -> Caller {
    let mut caller = Caller::new(parent.id.to_string(), Rights::Role(Role::Operator));
    caller.on_host = level_of(parent) == SandboxLevel::None;
    caller.child_of = Some(parent.id);
    caller.within(parent.colony)
}

/// The level of a session: its agent's, or the stronger one that its project requires.
fn level_of(row: &SessionRow) -> SandboxLevel {
    let made = row.room.as_ref().and_then(|room| room.made.as_ref());
    row.sandbox.max(made.and_then(|made| made.sandbox).unwrap_or(SandboxLevel::None))
}

fn no_weaker(agent: &str, level: SandboxLevel, parent: &SessionRow) -> Result<(), EngineError> {
    let own = level_of(parent);
    if level >= own {
        return Ok(());
    }
    let message = format!(
        "Agent {agent} has the sandbox `{}`, which is weaker than the caller's `{}`; a child \
            cannot have a weaker sandbox",
        level.as_str(),
        own.as_str()
    );
    Err(EngineError::Forbidden { message })
}

/// Limits a child's command to its parent's rights: no weaker sandbox and, if the parent is a
/// command too, at most its network, granted paths, limits and models.
fn within_parents(
    agent: &AgentSpec,
    draft: &mut SessionDraft,
    parent: &SessionRow,
    above: Option<&CommandSpec>,
) -> Result<(), EngineError> {
    let Some(own) = &agent.command else {
        return no_weaker(&agent.name, agent.sandbox, parent);
    };
    let level = draft.sandbox.unwrap_or(agent.sandbox.max(level_of(parent)));
    no_weaker(&agent.name, level, parent)?;
    draft.sandbox = Some(level);
    let Some(above) = above else { return Ok(()) };
    let mut command = draft.command.take().unwrap_or_else(|| CommandSpec {
        argv: Vec::new(),
        exact: false,
        ..own.clone()
    });
    command.limits = command.limits.or(own.limits).or(above.limits);
    if command.models.is_empty() && own.models.is_empty() {
        command.models.clone_from(&above.models);
    }
    let mut most = CommandSpec { limits: above.limits, ..command.clone() };
    if level_of(parent) != SandboxLevel::None {
        let network = above.network.unwrap_or(Network::Mesh);
        command.network = command.network.or(own.network).or(Some(match network {
            Network::Host | Network::Mesh => Network::Mesh,
            Network::None => Network::None,
        }));
        most = CommandSpec { network: Some(network), ..above.clone() };
    }
    if command.grants_more_than(&most) {
        let message = format!(
            "a child cannot have more access to the host than its parent, and Agent {} would: by \
                its network, a granted path, or `limits`",
            agent.name
        );
        return Err(EngineError::Forbidden { message });
    }
    draft.command = Some(command);
    Ok(())
}

impl Engine {
    /// Starts a session below the caller's own, of an existing agent or of a new one derived from
    /// the caller's. With a key, it has no parent.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`], [`EngineError::Conflict`] if it has too many children or is
    /// nested too deep.
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
            if text.chars().count() > ROLE_CHARS || text.chars().any(char::is_control) {
                let message = format!("{field} has at most {ROLE_CHARS} printable characters");
                return Err(EngineError::invalid(field, message));
            }
        }
        if wish.agent.is_none() && wish.role.trim().is_empty() {
            return Err(EngineError::invalid("role", "name an `agent`, or a `role` for a new one"));
        }
        super::checked_ttl(wish.ttl)?;
        let there = match &wish.agent {
            Some(agent) => Some(self.agent_wanted(&who.looks(), agent).await?),
            None => None,
        };
        let object = there.as_ref().map_or(wish.role.as_str(), |agent| &agent.spec.name).to_owned();
        self.may_start(who, &object).await?;
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
        let mut as_operator = match &parent {
            Some(parent) => in_name_of(parent),
            None => Caller::new(name, Rights::Role(Role::Operator)),
        };
        as_operator.trace = wish.trace;
        as_operator.on_host |= who.role == Some(Role::Admin);
        let key = effect.map(|effect| (effect.to_string(), [0; 32]));
        let (agent, ttl) = match there {
            Some(agent) => (agent.id, None),
            None => {
                let ttl = wish.ttl.unwrap_or(TTL);
                let draft = self.after_parent(who, parent.as_ref(), &wish, ttl).await?;
                let made = self.agent_create(&as_operator, draft, key.clone()).await?;
                (made.value.agent.id, Some(ttl))
            }
        };
        let mut draft = SessionDraft {
            agent: agent.to_string(),
            task: wish.task,
            name: None,
            parent: parent.as_ref().map(|row| row.id.to_string()),
            command: None,
            sandbox: None,
            room: None,
            step_limit: None,
            workspace: parent.as_ref().and_then(|row| self.place_of_children(row)),
            // The parent waits for its answer.
            conversation: Some(false),
            idempotency: key,
            ..SessionDraft::default()
        };
        if let Some(parent) = &parent {
            let above = self.spec_of(parent.id).await?;
            let spec = self.find_agent(&as_operator, &draft.agent).await?.spec;
            within_parents(&spec, &mut draft, parent, above.agent.command.as_ref())?;
        }
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

    /// Checks whether the caller may start a child of the agent, or has the role.
    pub(crate) async fn may_start(&self, who: &Who, object: &str) -> Result<(), EngineError> {
        let what = || format!("Agent {} cannot spawn {object}", who.name);
        self.permit(who, Verb::Spawn, object, what).await
    }

    /// A session that another session's token requests: below it, of an agent that it may start,
    /// and with no more access to the host than it has itself.
    pub(crate) async fn child_create(
        &self,
        by: &Caller,
        session: SessionId,
        mut draft: SessionDraft,
    ) -> Result<Created<SessionRow>, EngineError> {
        let who = self.who_session(session).await?;
        let parent = self.find_session(session).await?;
        let own = [parent.id.to_string(), parent.name.clone()];
        if draft.parent.as_ref().is_some_and(|given| !own.contains(given)) {
            let message = "a run may start children of its own only: leave `parent` out";
            return Err(EngineError::Forbidden { message: message.into() });
        }
        let agent = self.agent_wanted(by, &draft.agent).await?.spec;
        self.may_start(&who, &agent.name).await?;
        // The set-up of an environment from a branch has the host's network, and a run may write a
        // branch itself.
        let chosen = |room: &RoomWish| room.base.is_some() || room.carry_changes;
        if level_of(&parent) != SandboxLevel::None && draft.room.as_ref().is_some_and(chosen) {
            let message = "children of a run in a sandbox begin at the project's own revision: leave \
                           `base` and `carry_changes` out";
            return Err(EngineError::Forbidden { message: message.into() });
        }
        let mut as_operator = in_name_of(&parent);
        as_operator.trace = by.trace;
        draft.parent = Some(parent.id.to_string());
        draft.workspace = draft.workspace.or_else(|| self.place_of_children(&parent));
        let above = self.spec_of(session).await?;
        within_parents(&agent, &mut draft, &parent, above.agent.command.as_ref())?;
        let _turn = self.cortex.mesh.spawning.lock().await;
        let scope = as_operator.repeats("runs");
        if self.made_before(&scope, draft.idempotency.as_ref()).await?.is_none() {
            self.has_room_for_children(&who, &parent).await?;
        }
        Box::pin(self.session_create(&as_operator, draft)).await
    }

    /// The workspace of children whose parent has no environment: `None` means a directory of their
    /// own and, with an environment, one of the same project.
    fn place_of_children(&self, parent: &SessionRow) -> Option<String> {
        let config = &self.cortex.config;
        let inside = std::path::Path::new(&parent.workspace).starts_with(&config.workspace);
        let shared = match &parent.command {
            Some(_) => !(config.is_private(parent.colony) && inside),
            None => !config.is_private(parent.colony) && inside,
        };
        (parent.room.is_none() && shared).then(|| parent.workspace.clone())
    }

    async fn has_room_for_children(&self, who: &Who, row: &SessionRow) -> Result<(), EngineError> {
        if who.line.len() > MAX_SPAWN_DEPTH {
            let message = format!(
                "this run has {} parents above it, so it cannot start a child: {MAX_SPAWN_DEPTH} \
                    is the limit",
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
                "this run has {children} unfinished children, which is the limit; wait for one to \
                    end"
            );
            return Err(EngineError::conflict(message));
        }
        Ok(())
    }

    /// A new agent, with no more rights than the one from which it is derived.
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
        // These are twelve of the random digits of an id.
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
            // Its cost is also charged to its parent's session.
            budget: own.as_ref().and_then(|own| own.budget),
        })
    }
}
