//! Identifies callers in the mesh, and checks the matrix for them.
//!
//! An agent is identified only by its session's token. Earlier clients also send an `agent_id`: a
//! correct one is accepted, any other is refused.

use std::sync::Arc;

use overmind_core::acl::{DEFAULT, Verb, Verdict};
use overmind_core::ids::{AgentId, ColonyId, SessionId};
use overmind_core::row::{Role, SessionRow};
use overmind_core::store::Page;
use serde_json::json;

use super::{KEPT_LINES, Line, Link, denied, event, explained};
use crate::Engine;
use crate::caller::{Caller, Part, Rights};
use crate::cortex::lock;
use crate::error::EngineError;

/// Maximum number of nested parent sessions.
const DEEPEST: usize = 64;

/// An identity in the mesh.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// The agent's name, or the key's.
    pub(crate) name: String,
    pub(crate) agent: Option<AgentId>,
    pub(crate) session: Option<SessionId>,
    /// Names of the agents whose permissions apply. Empty for a key.
    pub(crate) line: Vec<String>,
    pub(super) role: Option<Role>,
    /// A run with a program of a caller who may not use the mesh: it has no letters and
    /// subscriptions, and the permissions of an agent without an entry.
    pub(crate) stranger: bool,
    /// The colony of its run, or that a key's request is for.
    pub(crate) colony: ColonyId,
}

impl Who {
    /// A caller that looks up names in the same colony, and has no rights.
    pub(crate) fn looks(&self) -> Caller {
        Caller::new(self.name.clone(), Rights::Role(Role::Viewer)).within(self.colony)
    }

    /// Refuses runs of other colonies than `default`: the mesh is there alone.
    pub(crate) fn in_mesh(&self) -> Result<(), EngineError> {
        if self.colony == ColonyId::DEFAULT {
            return Ok(());
        }
        let message = "shared state, topics, messages and shared artifacts exist in the colony \
                       `default` alone, and this run belongs to another";
        Err(EngineError::Forbidden { message: message.into() })
    }

    /// The same rights, with another name in the log.
    pub(super) fn in_name_of(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// Refuses callers that are no agent, and runs with a program that is not their agent's.
    pub(crate) fn agent(&self) -> Result<AgentId, EngineError> {
        self.in_mesh()?;
        if self.stranger {
            let message = format!(
                "this run has a program of its own, and was started by a key that may not use the \
                 mesh: it has no letters and subscriptions of `{}`. Start the agent without a \
                 command, or as an operator",
                self.name
            );
            return Err(EngineError::Forbidden { message });
        }
        self.agent.ok_or_else(|| {
            let message = format!(
                "`{}` is not an agent and has no letters or subscriptions of its own; name an agent",
                self.name
            );
            EngineError::invalid("agent_id", message)
        })
    }
}

/// The caller that looks up the agents of the mesh, which are those of the colony `default`.
pub(super) fn mesh_looks() -> Caller {
    Caller::admin().within(ColonyId::DEFAULT)
}

impl Engine {
    /// Identifies a caller in the mesh. `given` is the identity in the request, if any.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] if that is a different one.
    pub(crate) async fn who(&self, by: &Caller, given: Option<&str>) -> Result<Who, EngineError> {
        let who = match &by.rights {
            Rights::Role(_) | Rights::System(_) => Who {
                name: by.name.clone(),
                agent: None,
                session: None,
                line: Vec::new(),
                role: by.role(),
                stranger: false,
                colony: by.colony,
            },
            Rights::Session { session, .. } => self.who_session(*session).await?,
        };
        let Some(given) = given else { return Ok(who) };
        let own = given == who.name
            || who.agent.is_some_and(|id| id.to_string() == given)
            || who.session.is_some_and(|id| id.to_string() == given);
        if own {
            return Ok(who);
        }
        let given: String = given.chars().take(100).collect();
        let message = format!(
            "the token belongs to `{}`, but the request states the identity `{given}`: only the \
                token identifies the caller; leave it out",
            who.name
        );
        Err(EngineError::Forbidden { message })
    }

    /// The identity of a session.
    pub(crate) async fn who_session(&self, session: SessionId) -> Result<Who, EngineError> {
        let line = self.line(session).await?;
        let mut names = Vec::with_capacity(line.len());
        let mut own = None;
        for link in line.iter() {
            let agent = self.cortex.agent(link.agent).await?;
            let agent = agent.ok_or_else(|| EngineError::not_found("Agent"))?;
            own.get_or_insert_with(|| agent.spec.name.clone());
            names.push(if link.stranger { DEFAULT.to_owned() } else { agent.spec.name.clone() });
        }
        let first = line.first();
        Ok(Who {
            name: own.unwrap_or_default(),
            agent: first.map(|link| link.agent),
            session: Some(session),
            line: names,
            role: None,
            stranger: first.is_some_and(|link| link.stranger),
            colony: first.map_or(ColonyId::DEFAULT, |link| link.colony),
        })
    }

    async fn line(&self, session: SessionId) -> Result<Line, EngineError> {
        let lines = &self.cortex.mesh.lines;
        if let Some(line) = lock(lines).get(&session) {
            return Ok(Arc::clone(line));
        }
        let (mut rows, mut next) = (Vec::new(), Some(session));
        while let Some(id) = next {
            if rows.len() == DEEPEST {
                // It is refused, because otherwise a parent's restrictions could be missed.
                let message = format!("this run has more than {DEEPEST} levels of parent runs");
                return Err(EngineError::Forbidden { message });
            }
            let row = self.find_session(id).await?;
            next = row.parent;
            rows.push(row);
        }
        let (mut links, mut stranger) = (Vec::with_capacity(rows.len()), false);
        for row in rows.iter().rev() {
            // Permissions name agents, and names belong to a colony.
            stranger = row.colony != ColonyId::DEFAULT || self.is_stranger(row, stranger).await?;
            links.push(Link { agent: row.agent, stranger, colony: row.colony });
        }
        links.reverse();
        let line: Line = links.into();
        let mut lines = lock(lines);
        if lines.len() >= KEPT_LINES {
            lines.clear();
        }
        lines.insert(session, Arc::clone(&line));
        Ok(line)
    }

    /// Whether a session runs another program than its agent's, for somebody who may not use the
    /// mesh. What such a run starts is judged as `above`, the run itself.
    async fn is_stranger(&self, row: &SessionRow, above: bool) -> Result<bool, EngineError> {
        let by = row.created_by.as_str();
        let parts = [Part::Reconcilers.name(), Part::Dispatcher.name()];
        if by == Caller::admin().name || parts.contains(&by) {
            return Ok(false);
        }
        let trusted = match by.parse::<SessionId>() {
            Ok(_) => !above,
            Err(_) => self.role_then(row).await?.is_some_and(|role| role >= Role::Operator),
        };
        if trusted {
            return Ok(false);
        }
        let Some(command) = self.spec_of(row.id).await?.agent.command.clone() else {
            return Ok(false);
        };
        let own = self.agent_at(row).await?.command;
        Ok(!own.is_some_and(|own| command.runs_as(&own)))
    }

    /// The role of the key that made a session, also if it was revoked since. A later key of that
    /// name is somebody else's.
    async fn role_then(&self, row: &SessionRow) -> Result<Option<Role>, EngineError> {
        let (mut after, mut found) = (None, None);
        loop {
            let keys = self.cortex.store.api_key_list(Page { after, limit: 500 }).await?;
            let Some(last) = keys.last() else { break };
            after = Some(last.id);
            for key in keys.into_iter().filter(|key| key.name == row.created_by) {
                let newer = found.is_none_or(|(at, _)| key.created_at > at);
                if key.created_at <= row.created_at && newer {
                    found = Some((key.created_at, key.role));
                }
            }
        }
        Ok(found.map(|(_, role)| role))
    }

    /// Checks the matrix for agents, and the role for keys. `what` describes the action in words.
    pub(crate) async fn permit(
        &self,
        who: &Who,
        verb: Verb,
        object: &str,
        what: impl FnOnce() -> String,
    ) -> Result<(), EngineError> {
        let verdict = self.cortex.mesh.acl.matrix().may_in_line(&who.line, verb, object);
        self.permitted(who, verb, object, verdict, what).await
    }

    /// Checks the matrix about actions that other rules also decide (models, services): it applies
    /// once it has any entry.
    pub(crate) async fn permit_beside(
        &self,
        session: SessionId,
        verb: Verb,
        object: &str,
        what: &str,
    ) -> Result<(), EngineError> {
        if self.permissions().is_empty() {
            return Ok(());
        }
        let who = self.who_session(session).await?;
        let denied = || format!("Agent {} {what} {object}", who.name);
        self.permit(&who, verb, object, denied).await
    }

    /// Works as [`Engine::permit`], and returns the matrix's verdict.
    pub(crate) async fn permitted(
        &self,
        who: &Who,
        verb: Verb,
        object: &str,
        verdict: Verdict,
        what: impl FnOnce() -> String,
    ) -> Result<(), EngineError> {
        match verb {
            Verb::Model | Verb::Spawn => {}
            Verb::Read
            | Verb::Message
            | Verb::Publish
            | Verb::Subscribe
            | Verb::Write
            | Verb::Api => who.in_mesh()?,
        }
        if let Some(role) = who.role {
            let least = match verb {
                Verb::Read => Role::Viewer,
                Verb::Message
                | Verb::Publish
                | Verb::Subscribe
                | Verb::Write
                | Verb::Api
                | Verb::Model
                | Verb::Spawn => Role::Operator,
            };
            return Caller::new(who.name.clone(), Rights::Role(role)).require(least);
        }
        if verdict.allowed {
            return Ok(());
        }
        let now = self.cortex.clock.now();
        let payload = json!({
            "agent": who.name, "run_id": who.session, "verb": verb, "object": object,
            "rule": verdict.rule, "ask_for": verdict.ask_for,
        });
        let told = explained(event("acl.denied", now, payload), vec![], vec![]);
        if let Err(err) = self.cortex.store.commit(told).await {
            tracing::warn!(error = %err, "a denial is not in the log");
        }
        Err(denied(what(), &verdict))
    }

    /// The agent that a caller may read: its own or, with a role, any.
    pub(crate) async fn mailbox_of(
        &self,
        by: &Caller,
        agent: Option<&str>,
        least: Role,
    ) -> Result<(Who, AgentId), EngineError> {
        match &by.rights {
            Rights::Session { .. } => {
                let who = self.who(by, agent).await?;
                let agent = who.agent()?;
                Ok((who, agent))
            }
            Rights::Role(_) | Rights::System(_) => {
                by.require(least)?;
                let who = self.who(by, None).await?;
                let Some(agent) = agent else {
                    return Err(EngineError::invalid("agent_id", "agent_id must name an agent"));
                };
                Ok((who, self.find_agent(by, agent).await?.id))
            }
        }
    }
}
