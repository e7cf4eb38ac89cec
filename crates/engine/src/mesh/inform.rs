//! The agents of the mesh: registrations, the list, and an agent's recent history.

use std::sync::Arc;

use overmind_core::acl::Verb;
use overmind_core::agent::AgentStatus;
use overmind_core::ids::{AgentId, ColonyId};
use overmind_core::mesh::{MAX_CAPABILITIES, MAX_CAPABILITY, Registration, TopicPattern};
use overmind_core::name::check_visible;
use overmind_core::row::{Role, SessionStatus};
use overmind_core::store::{Change, Page, SessionFilter};
use serde_json::json;

use super::{Who, event, explained};
use crate::Engine;
use crate::caller::Caller;
use crate::cortex::lock;
use crate::error::EngineError;

/// The beginning of an address that names a capability, and of the permission to register it.
pub(super) const ADDRESS: &str = "capability:";
/// Maximum number of agents in a list.
const AGENTS: u32 = 1000;
/// Maximum number of sessions in a history.
const SESSIONS: u32 = 20;
/// Maximum number of characters of a task and of an answer in a history.
const TOLD: usize = 500;

/// An agent as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshAgent {
    pub id: AgentId,
    pub name: String,
    pub capabilities: Vec<String>,
    pub registered: bool,
    pub waiting: u32,
}

impl Engine {
    /// Stores an agent's capabilities, and subscribes it to each topic that its permissions name
    /// without a wildcard. A run needs the permission to subscribe to `capability:NAME`, except for
    /// what its agent has registered already.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] for too many capabilities, [`EngineError::Forbidden`] for one that
    /// the agent may not register.
    pub async fn mesh_register(
        &self,
        by: &Caller,
        agent: Option<&str>,
        capabilities: Vec<String>,
    ) -> Result<(), EngineError> {
        let (who, id) = self.mailbox_of(by, agent, Role::Operator).await?;
        let sound = |one: &String| {
            !one.is_empty() && one.len() <= MAX_CAPABILITY && check_visible(one).is_ok()
        };
        if capabilities.len() > MAX_CAPABILITIES || !capabilities.iter().all(sound) {
            let message = format!(
                "capabilities has at most {MAX_CAPABILITIES} texts of 1 to {MAX_CAPABILITY} bytes, \
                 without characters that cannot be seen"
            );
            return Err(EngineError::invalid("capabilities", message));
        }
        let before = lock(&self.cortex.mesh.registrations).get(&id).cloned();
        let had = before.as_ref().map(|one| one.capabilities.as_slice()).unwrap_or_default();
        for capability in capabilities.iter().filter(|one| !had.contains(one)) {
            let what = || format!("{} cannot register the capability {capability}", who.name);
            self.permit(&who, Verb::Subscribe, &format!("{ADDRESS}{capability}"), what).await?;
        }
        let now = self.cortex.clock.now();
        let first = before.map(|one| one.registered_at);
        let registration = Arc::new(Registration {
            colony: ColonyId::DEFAULT,
            agent: id,
            capabilities,
            registered_at: first.unwrap_or(now),
        });
        let payload = json!({
            "agent_id": id, "by": who.name, "run_id": who.session,
            "capabilities": registration.capabilities,
        });
        let change = Change::RegistrationPut(Box::new(Registration::clone(&registration)));
        let commit = explained(event("agent.registered", now, payload), vec![], vec![change]);
        let cortex = Arc::clone(&self.cortex);
        self.whole(async move {
            cortex.store.commit(commit).await?;
            lock(&cortex.mesh.registrations).insert(id, registration);
            Ok(())
        })
        .await?;
        let Some(name) = self.cortex.agent(id).await?.map(|agent| agent.spec.name.clone()) else {
            return Ok(());
        };
        let topics = self.permissions().layer(&name).permissions.can_subscribe;
        for topic in topics.into_iter().filter(|topic| !topic.starts_with(ADDRESS)) {
            let plain = TopicPattern::parse(&topic).is_ok_and(|pattern| pattern.is_topic());
            if plain {
                match self.topic_subscribe_as(&who, id, &topic).await {
                    // A parent's permissions may be narrower.
                    Ok(_) | Err(EngineError::Forbidden { .. }) => {}
                    Err(err) => return Err(err),
                }
            }
        }
        Ok(())
    }

    /// Enabled agents, newest first.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn mesh_agents(&self, by: &Caller) -> Result<Vec<MeshAgent>, EngineError> {
        let who = self.who(by, None).await?;
        if who.agent.is_none() {
            by.require(Role::Viewer)?;
        }
        self.mesh_agents_all().await
    }

    pub(super) async fn mesh_agents_all(&self) -> Result<Vec<MeshAgent>, EngineError> {
        let agents = self.cortex.store.agent_list(Page { limit: AGENTS, after: None }).await?;
        let all = lock(&self.cortex.mesh.registrations);
        let active = agents.into_iter().filter(|agent| agent.status == AgentStatus::Active);
        let shown = active.map(|agent| {
            let registration = all.get(&agent.id);
            MeshAgent {
                id: agent.id,
                capabilities: registration.map(|one| one.capabilities.clone()).unwrap_or_default(),
                registered: registration.is_some(),
                waiting: self.letters_waiting(agent.id),
                name: agent.spec.name,
            }
        });
        Ok(shown.collect())
    }

    /// An agent's recent history: name, role, lines.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] for an agent that may not message it.
    pub async fn mesh_history(
        &self,
        by: &Caller,
        given: Option<&str>,
        agent: &str,
    ) -> Result<(String, String, String), EngineError> {
        let who = self.who(by, given).await?;
        if who.agent.is_none() {
            by.require(Role::Viewer)?;
        }
        self.mesh_history_as(&who, agent).await
    }

    pub(super) async fn mesh_history_as(
        &self,
        who: &Who,
        agent: &str,
    ) -> Result<(String, String, String), EngineError> {
        let found = match self.find_agent(&who.looks(), agent).await {
            Ok(found) => Some(found),
            Err(EngineError::NotFound { .. }) => None,
            Err(err) => return Err(err),
        };
        let name = found.as_ref().map_or(agent, |agent| &agent.spec.name).to_owned();
        if who.agent.is_some() && found.as_ref().map(|agent| agent.id) != who.agent {
            let what = || format!("Agent {} cannot read the history of {name}", who.name);
            self.permit(who, Verb::Message, &name, what).await?;
        }
        let Some(found) = found else {
            return Err(EngineError::NotFound { message: format!("Agent not found: {agent}") });
        };
        let filter = SessionFilter { agent: Some(found.id), ..SessionFilter::default() };
        let page = Page { limit: SESSIONS, after: None };
        let rows = self.cortex.store.session_list(filter, page).await?;
        let mut lines: Vec<String> = Vec::new();
        for row in rows.iter().rev() {
            let task = cut(&row.task);
            let end = match (&row.final_answer, row.status) {
                (Some(answer), _) => format!(" → {}", cut(answer)),
                (None, SessionStatus::Failed) => " → failed".to_owned(),
                (None, _) => String::new(),
            };
            lines.push(format!(
                "{} {} ({}) {task}{end}",
                row.created_at,
                row.name,
                row.status.as_str()
            ));
        }
        Ok((name, found.spec.role, lines.join("\n")))
    }
}

fn cut(text: &str) -> String {
    let line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TOLD).collect();
    if text.chars().count() > TOLD { line + "…" } else { line }
}
