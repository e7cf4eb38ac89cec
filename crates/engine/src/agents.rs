//! The agent registry: versioned definitions, all of which are kept.

use std::sync::Arc;

use overmind_core::acl::Verb;
use overmind_core::agent::{Agent, AgentLimits, AgentSpec, AgentStatus, COMMANDS, default_sandbox};
use overmind_core::budget::unknown_model;
use overmind_core::command::CommandSpec;
use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::{AgentId, ColonyId};
use overmind_core::name;
use overmind_core::quest::Author;
use overmind_core::row::{Role, SessionStatus};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::{
    Change, Commit, Guard, IdempotentAnswer, NewEvent, Page, SessionFilter, StoreError, StreamId,
};
use serde_json::json;

use crate::Engine;
use crate::caller::{Caller, Part, Rights};
use crate::error::EngineError;
use crate::request::{AgentDraft, AgentPatch};
use crate::sessions::may_name_credentials;
use crate::view::{AgentView, Created};

/// An action that needs an admin.
const NO_SANDBOX: &str = "say what an agent without a sandbox is";

/// How often a change is tried again if another caller changed the agent meanwhile.
const TRIES: usize = 5;

impl Engine {
    /// Makes an agent. With an Idempotency-Key that was used before, returns the agent made then.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] names the field; [`EngineError::Conflict`] if the key was used with
    /// another body.
    pub async fn agent_create(
        &self,
        by: &Caller,
        draft: AgentDraft,
        idempotency: Option<(String, [u8; 32])>,
    ) -> Result<Created<AgentView>, EngineError> {
        by.require(Role::Operator)?;
        let spec = AgentSpec {
            name: draft.name,
            role: draft.role,
            model: draft.model,
            tools_allowed: draft.tools_allowed,
            policy: draft.policy.unwrap_or_default(),
            sandbox: draft.sandbox.unwrap_or_else(default_sandbox),
            limits: draft.limits.unwrap_or_default(),
            on_unknown: draft.on_unknown.unwrap_or_default(),
            approvals: draft.approvals.unwrap_or_default(),
            reasoning_effort: draft.reasoning_effort,
            max_output_tokens: draft.max_output_tokens,
            command: draft.command,
            budget: draft.budget,
        };
        check(&spec)?;
        self.agent_as_said(&spec)?;
        self.no_secret("name", &spec.name)?;
        if has_credentials(&spec) {
            may_name_credentials(by)?;
        }
        granted_by(by, &CommandSpec::default(), spec.command.as_ref())?;
        self.may_hold_secrets(by.colony, &spec)?;
        if by.colony == ColonyId::DEFAULT {
            self.may_write_granted(by, &spec.name)?;
        }
        self.may_be_called(by, &spec.name).await?;
        if spec.sandbox == SandboxLevel::None {
            by.require_host(NO_SANDBOX)?;
        }
        let scope = by.repeats("agents");
        if let Some(agent) = self.agent_made_before(&scope, idempotency.as_ref()).await? {
            return Ok(Created { value: self.agent_view(agent), replayed: true });
        }
        let agent = self.first_version(by, spec);
        let mut commit = agent_commit("agent.created", by, &agent);
        commit.guards.push(name_free(&agent));
        if let Some((key, fingerprint)) = &idempotency {
            commit.changes.push(Change::IdempotencyPut {
                scope: scope.clone(),
                key: key.clone(),
                answer: IdempotentAnswer {
                    fingerprint: *fingerprint,
                    resource: agent.id.to_string(),
                },
                at: agent.created_at,
            });
        }
        match self.cortex.store.commit(commit).await {
            Ok(_) => {}
            Err(err @ StoreError::Conflict { .. }) => {
                // Another request with the same key was faster.
                if let Some(agent) = self.agent_made_before(&scope, idempotency.as_ref()).await? {
                    return Ok(Created { value: self.agent_view(agent), replayed: true });
                }
                let err = EngineError::from(err);
                let is_taken = err.is_conflict_of(ConflictKind::AgentName);
                return Err(if is_taken { name_taken(&agent.spec.name) } else { err });
            }
            Err(err) => return Err(err.into()),
        }
        self.cortex.budgets.follow(&agent, &by.name).await?;
        let agent = Arc::new(agent);
        self.cortex.keep_agent(&agent);
        Ok(Created { value: self.agent_view(Arc::unwrap_or_clone(agent)), replayed: false })
    }

    async fn agent_made_before(
        &self,
        scope: &str,
        idempotency: Option<&(String, [u8; 32])>,
    ) -> Result<Option<Agent>, EngineError> {
        let Some(resource) = self.made_before(scope, idempotency).await? else { return Ok(None) };
        let id = resource.parse().map_err(|_| EngineError::not_found("Agent"))?;
        Ok(self.cortex.store.agent_fetch(id).await?)
    }

    /// The result of an earlier request with this Idempotency-Key.
    pub(crate) async fn made_before(
        &self,
        scope: &str,
        idempotency: Option<&(String, [u8; 32])>,
    ) -> Result<Option<String>, EngineError> {
        let Some((key, fingerprint)) = idempotency else { return Ok(None) };
        let known = self.cortex.store.idempotency_fetch(scope.to_owned(), key.clone()).await?;
        match known {
            Some(answer) if answer.fingerprint == *fingerprint => Ok(Some(answer.resource)),
            Some(_) => Err(EngineError::conflict(
                "this Idempotency-Key was used with another body; use a new key for a new request",
            )),
            None => Ok(None),
        }
    }

    /// Agents, newest first; a session sees its own agent and those that it may start.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`], or the store's error.
    pub async fn agent_list(
        &self,
        by: &Caller,
        page: Page<AgentId>,
    ) -> Result<Vec<Agent>, EngineError> {
        let Rights::Session { session, .. } = by.rights else {
            by.require(Role::Viewer)?;
            let sight = by.sight();
            return self.agents_of(page, |agent| sight.sees(agent.colony)).await;
        };
        let who = self.who_session(session).await?;
        let matrix = self.permissions();
        let shown = |agent: &Agent| {
            who.agent == Some(agent.id)
                || (by.reaches(agent.colony)
                    && matrix.may_in_line(&who.line, Verb::Spawn, &agent.spec.name).allowed)
        };
        self.agents_of(page, shown).await
    }

    /// A page of the agents that `shown` selects.
    async fn agents_of(
        &self,
        page: Page<AgentId>,
        shown: impl Fn(&Agent) -> bool,
    ) -> Result<Vec<Agent>, EngineError> {
        let (mut found, mut after) = (Vec::new(), page.after);
        loop {
            let rows = self.cortex.store.agent_list(Page { limit: page.limit, after }).await?;
            let whole = rows.len() < page.limit as usize;
            let Some(last) = rows.last() else { return Ok(found) };
            after = Some(last.id);
            found.extend(rows.into_iter().filter(|agent| shown(agent)));
            if whole || found.len() >= page.limit as usize {
                found.truncate(page.limit as usize);
                return Ok(found);
            }
        }
    }

    /// One agent, by id or exact name; a session finds its own and those that it may start.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`].
    pub async fn agent_fetch(&self, by: &Caller, agent: &str) -> Result<Agent, EngineError> {
        let Rights::Session { session, .. } = by.rights else {
            by.require(Role::Viewer)?;
            return self.agent_wanted(by, agent).await;
        };
        let found = self.agent_wanted(by, agent).await?;
        let who = self.who_session(session).await?;
        if who.agent != Some(found.id) {
            self.may_start(&who, &found.spec.name).await?;
        }
        Ok(found)
    }

    /// Refuses a name that contains a known secret, or a text that looks like one: names appear
    /// unmasked in lists, URLs and logs.
    pub(crate) fn no_secret(&self, field: &str, name: &str) -> Result<(), EngineError> {
        let mut masked = serde_json::Value::String(name.to_owned());
        self.cortex.store.redact(&mut masked);
        if masked.as_str() == Some(name) {
            return Ok(());
        }
        let message = format!("{field} must not hold a secret: it is shown in lists and logs");
        Err(EngineError::invalid(field, message))
    }

    /// The agent with this id that the caller reaches, or with this name in the caller's colony.
    pub(crate) async fn find_agent(&self, by: &Caller, agent: &str) -> Result<Agent, EngineError> {
        let found = match agent.parse::<AgentId>() {
            Ok(id) => self.cortex.agent(id).await?.filter(|agent| by.reaches(agent.colony)),
            Err(_) => self.cortex.agent_named(by.colony, agent).await?,
        };
        found.map(Arc::unwrap_or_clone).ok_or_else(|| EngineError::not_found("Agent"))
    }

    /// The agent that a caller reads, changes or starts. The agent of commands always exists for
    /// callers that name it: it is made if it is missing. To only look a name up, call
    /// [`Self::find_agent`].
    pub(crate) async fn agent_wanted(
        &self,
        by: &Caller,
        agent: &str,
    ) -> Result<Agent, EngineError> {
        match self.find_agent(by, agent).await {
            Err(EngineError::NotFound { .. }) if agent == COMMANDS => {
                self.agent_of_commands(by.colony).await
            }
            found => found,
        }
    }

    /// Makes the agent of commands. It belongs to the server itself: its definition does not limit
    /// what the author of a record may run.
    async fn agent_of_commands(&self, colony: ColonyId) -> Result<Agent, EngineError> {
        if self.key_named(COMMANDS).await?.is_some() {
            let message = format!(
                "a key is called `{COMMANDS}`, which is the name of the agent of commands: revoke it and \
                 give it another name"
            );
            return Err(EngineError::conflict(message));
        }
        let by = Caller::system(Part::Reconcilers).within(colony);
        let agent = self.first_version(&by, AgentSpec::of_commands());
        let mut commit = agent_commit("agent.created", &by, &agent);
        commit.guards.push(name_free(&agent));
        match self.cortex.store.commit(commit).await {
            Ok(_) => {
                let agent = Arc::new(agent);
                self.cortex.keep_agent(&agent);
                Ok(Arc::unwrap_or_clone(agent))
            }
            // Another caller has just named it, too.
            Err(StoreError::Conflict { .. }) => self.find_agent(&by, COMMANDS).await,
            Err(err) => Err(err.into()),
        }
    }

    fn first_version(&self, by: &Caller, spec: AgentSpec) -> Agent {
        let now = self.cortex.clock.now();
        Agent {
            id: AgentId::mint(&*self.cortex.ids),
            colony: by.colony,
            spec,
            status: AgentStatus::Active,
            version: 1,
            created_at: now,
            updated_at: now,
            author: author(by),
        }
    }

    /// Changes an agent. A patch without changes creates no new version.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if the agent's version is not `if_version`.
    pub async fn agent_patch(
        &self,
        by: &Caller,
        agent: &str,
        patch: AgentPatch,
    ) -> Result<AgentView, EngineError> {
        by.require(Role::Operator)?;
        for _ in 0..TRIES {
            let old = self.agent_wanted(by, agent).await?;
            if let Some(wanted) = patch.if_version
                && wanted != old.version
            {
                let [expected, found] =
                    [wanted, old.version].map(|version| Stands::Version(version.into()));
                let message =
                    format!("the agent is at version {}, not {wanted}; read it again", old.version);
                let what = Conflict::new(ConflictKind::Agent, old.id, expected, found);
                return Err(EngineError::conflict_of(what, message));
            }
            let mut new = old.clone();
            if old.status == AgentStatus::Removed {
                return Err(EngineError::conflict("the agent is removed; make a new one"));
            }
            let writes = apply(&mut new, patch.clone());
            if writes && (new.spec != old.spec || lends_more(by, &old)) {
                new.author = author(by);
            }
            if new.status == AgentStatus::Removed && !self.has_ended(new.id).await? {
                let message = "runs of the agent are under way; stop them first";
                return Err(EngineError::conflict(message));
            }
            check(&new.spec)?;
            self.agent_as_said(&new.spec)?;
            self.no_secret("name", &new.spec.name)?;
            if new.spec.command != old.spec.command
                && (has_credentials(&new.spec) || has_credentials(&old.spec))
            {
                may_name_credentials(by)?;
            }
            let before = old.spec.command.clone().unwrap_or_default();
            granted_by(by, &before, new.spec.command.as_ref())?;
            if new.spec.name != old.spec.name {
                self.may_be_called(by, &new.spec.name).await?;
            }
            if new.spec != old.spec {
                self.may_hold_secrets(old.colony, &new.spec)?;
                if old.colony == ColonyId::DEFAULT {
                    self.may_write_granted(by, &old.spec.name)?;
                    self.may_write_granted(by, &new.spec.name)?;
                }
            }
            if new.spec.sandbox == SandboxLevel::None && new.spec != old.spec {
                by.require_host(NO_SANDBOX)?;
            }
            if new == old {
                return Ok(self.agent_view(old));
            }
            new.version += 1;
            new.updated_at = self.cortex.clock.now();
            let mut commit = agent_commit("agent.updated", by, &new);
            commit.guards.push(Guard::AgentVersion { agent: old.id, version: old.version });
            if new.spec.name != old.spec.name {
                commit.guards.push(name_free(&new));
            }
            match self.cortex.store.commit(commit).await {
                Ok(_) => {
                    self.cortex.budgets.follow(&new, &by.name).await?;
                    let new = Arc::new(new);
                    self.cortex.keep_agent(&new);
                    return Ok(self.agent_view(Arc::unwrap_or_clone(new)));
                }
                Err(StoreError::Conflict { what, .. }) if what.kind == ConflictKind::AgentName => {
                    return Err(name_taken(&new.spec.name));
                }
                // Another caller was faster: read it again and decide again.
                Err(StoreError::Conflict { .. }) => {
                    if let Some(fresh) = self.cortex.store.agent_fetch(old.id).await? {
                        self.cortex.keep_agent(&Arc::new(fresh));
                    }
                }
                Err(err) => return Err(err.into()),
            }
        }
        Err(EngineError::conflict("the agent is being changed by many at once; try again"))
    }

    /// Disables an agent: running sessions continue, new ones are refused.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if there is no such agent.
    pub async fn agent_disable(&self, by: &Caller, agent: &str) -> Result<Agent, EngineError> {
        let patch = AgentPatch { status: Some(AgentStatus::Disabled), ..AgentPatch::default() };
        Ok(self.agent_patch(by, agent, patch).await?.agent)
    }

    /// Removes an agent: it is in no list any more, and its name is free. Its id still finds it,
    /// for its earlier runs.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`]; [`EngineError::Conflict`] while one of its runs has not ended.
    pub async fn agent_remove(&self, by: &Caller, agent: &str) -> Result<Agent, EngineError> {
        let patch = AgentPatch { status: Some(AgentStatus::Removed), ..AgentPatch::default() };
        Ok(self.agent_patch(by, agent, patch).await?.agent)
    }

    /// Refuses credentials for agents of other colonies than `default`: grants name agents, and names
    /// belong to a colony.
    fn may_hold_secrets(&self, colony: ColonyId, spec: &AgentSpec) -> Result<(), EngineError> {
        if colony == ColonyId::DEFAULT || !has_credentials(spec) {
            return Ok(());
        }
        let message = format!(
            "agents of the colony `{}` get no secrets and services: the vault's grants are for agents \
             of the colony `default` alone. Leave `env_from` out",
            self.colony_name(colony)
        );
        Err(EngineError::invalid("command.env_from", message))
    }

    /// Refuses callers other than admins to define an agent of this name if the vault grants
    /// something to agents of that name, because the caller's agent would get it. A grant to all
    /// (`*`) is meant for such agents, too.
    pub(crate) fn may_write_granted(&self, by: &Caller, name: &str) -> Result<(), EngineError> {
        if by.is_admin() || by.on_host {
            return Ok(());
        }
        match self.vault.granted_by_name(name) {
            None => Ok(()),
            Some(grant) => {
                let message = format!(
                    "only an admin may say what the agent `{name}` runs: the vault grants `{}` the {} \
                     `{}`. Give the agent another name",
                    grant.agent,
                    grant.kind.as_str(),
                    grant.object
                );
                Err(EngineError::Forbidden { message })
            }
        }
    }

    /// Refuses callers other than admins to give an agent the name of a key: on the mesh its runs
    /// would be taken for the key's owner.
    async fn may_be_called(&self, by: &Caller, name: &str) -> Result<(), EngineError> {
        if by.is_admin() || self.key_named(name).await?.is_none() {
            return Ok(());
        }
        let message = format!("`{name}` is the name of a key: give the agent another one");
        Err(EngineError::conflict(message))
    }

    /// Whether no run of the agent is unfinished.
    async fn has_ended(&self, agent: AgentId) -> Result<bool, EngineError> {
        let filter = SessionFilter {
            agent: Some(agent),
            statuses: SessionStatus::ALL.into_iter().filter(|one| !one.is_terminal()).collect(),
            ..SessionFilter::default()
        };
        let page = Page { after: None, limit: 1 };
        Ok(self.cortex.store.session_list(filter, page).await?.is_empty())
    }

    /// All versions of an agent, newest first.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`].
    pub async fn agent_versions(
        &self,
        by: &Caller,
        agent: &str,
        page: Page<u32>,
    ) -> Result<Vec<Agent>, EngineError> {
        by.require(Role::Viewer)?;
        let agent = self.find_agent(by, agent).await?;
        Ok(self.cortex.store.agent_versions(agent.id, page).await?)
    }

    /// An agent with its problems: missing tools, and a model that no provider serves now.
    pub fn agent_view(&self, agent: Agent) -> AgentView {
        let tools = self.tools.specs();
        let mut warnings: Vec<String> = agent
            .spec
            .tools_allowed
            .iter()
            .filter(|name| tools.iter().all(|tool| tool.name != **name))
            .map(|name| format!("no tool is called `{name}` here; calls of it will be denied"))
            .collect();
        if agent.spec.command.is_none()
            && agent.spec.policy.resolve(&agent.spec.model)
                == overmind_core::agent::PolicyKind::Model
        {
            match self.models.check(&agent.spec.model) {
                Err(failure) => warnings.push(failure.message),
                Ok(()) => {
                    let prices = self.budgets().prices();
                    let quote = prices.quote(&agent.spec.model);
                    warnings.extend(unknown_model(&quote, &prices.table()));
                }
            }
        }
        AgentView { agent, warnings }
    }
}

/// Returns whether the patch changes the spec, and not only whether the agent is enabled.
fn apply(agent: &mut Agent, patch: AgentPatch) -> bool {
    fn set<T>(field: &mut T, value: Option<T>) {
        if let Some(value) = value {
            *field = value;
        }
    }
    let status = patch.status;
    let says = AgentPatch { status: None, if_version: None, ..patch.clone() };
    let writes = says != AgentPatch::default();
    let spec = &mut agent.spec;
    set(&mut spec.name, patch.name);
    set(&mut spec.role, patch.role);
    set(&mut spec.model, patch.model);
    set(&mut spec.tools_allowed, patch.tools_allowed);
    set(&mut spec.policy, patch.policy);
    set(&mut spec.sandbox, patch.sandbox);
    set(&mut spec.limits, patch.limits);
    set(&mut spec.on_unknown, patch.on_unknown);
    set(&mut spec.approvals, patch.approvals);
    set(&mut spec.reasoning_effort, patch.reasoning_effort.map(Some));
    set(&mut spec.max_output_tokens, patch.max_output_tokens.map(Some));
    set(&mut spec.command, patch.command.map(Some));
    set(&mut spec.budget, patch.budget);
    set(&mut agent.status, status);
    writes
}

fn author(by: &Caller) -> Option<Author> {
    by.role().map(|role| Author { name: by.name.clone(), role })
}

/// Whether `by` has more rights than the agent's last author: an admin who writes the same
/// definition again takes responsibility for it.
fn lends_more(by: &Caller, agent: &Agent) -> bool {
    author(by).is_some_and(|new| agent.author.as_ref().is_none_or(|old| old.role < new.role))
}

fn name_free(agent: &Agent) -> Guard {
    let (colony, name) = (agent.colony, agent.spec.name.clone());
    Guard::AgentNameFree { colony, name, except: Some(agent.id) }
}

fn name_taken(name: &str) -> EngineError {
    EngineError::conflict_of(
        Conflict::taken(ConflictKind::AgentName, name),
        format!("there is an agent `{name}` already; change it, remove it, or choose another name"),
    )
}

fn agent_commit(kind: &'static str, by: &Caller, agent: &Agent) -> Commit {
    let event = NewEvent {
        stream: StreamId::System,
        kind,
        ts: agent.updated_at,
        payload: json!({
            "by": by.name, "agent_id": agent.id, "version": agent.version, "status": agent.status,
            "spec": agent.spec,
        }),
    };
    let changes = vec![Change::AgentPut(Box::new(agent.clone()))];
    Commit { guards: Vec::new(), events: vec![event], changes }
}

/// Refuses a definition that could not work, and names the field.
fn check(spec: &AgentSpec) -> Result<(), EngineError> {
    let text = |field: &str, value: &str, max: usize| {
        if value.trim().is_empty() {
            return Err(EngineError::invalid(field, format!("{field} must be a non-empty string")));
        }
        if value.chars().count() > max {
            let message = format!("{field} must have at most {max} characters");
            return Err(EngineError::invalid(field, message));
        }
        Ok(())
    };
    text("name", &spec.name, 200)?;
    name::check_readable(&spec.name)
        .map_err(|why| EngineError::invalid("name", format!("name {why}")))?;
    if spec.name.trim() != spec.name {
        let message = "name must not begin or end with a blank: leave it out";
        return Err(EngineError::invalid("name", message));
    }
    if spec.name.starts_with("agt_") {
        return Err(EngineError::invalid("name", "name must not look like an id (`agt_…`)"));
    }
    if let Some(message) = crate::keys::reserved(&spec.name) {
        return Err(EngineError::invalid("name", message));
    }
    text("role", &spec.role, 50_000)?;
    match &spec.command {
        Some(command) => check_command(spec, command)?,
        None => text("model", &spec.model, 200)?,
    }
    for (field, names) in [("tools_allowed", &spec.tools_allowed), ("approvals", &spec.approvals)] {
        if names.len() > 200 {
            return Err(EngineError::invalid(field, format!("{field} holds at most 200 names")));
        }
        for name in names {
            text(field, name, 200)?;
        }
    }
    let AgentLimits {
        failure_budget,
        max_attempts,
        max_steps: _,
        max_seconds: _,
        max_concurrent: _,
    } = spec.limits;
    if !(1..=20).contains(&failure_budget) {
        return Err(EngineError::invalid(
            "limits.failure_budget",
            "failure_budget must be 1 to 20",
        ));
    }
    if !(1..=10).contains(&max_attempts) {
        return Err(EngineError::invalid("limits.max_attempts", "max_attempts must be 1 to 10"));
    }
    if spec.max_output_tokens == Some(0) {
        return Err(EngineError::invalid("max_output_tokens", "max_output_tokens must be >= 1"));
    }
    Ok(())
}

fn has_credentials(spec: &AgentSpec) -> bool {
    spec.command.as_ref().is_some_and(|command| !command.env_from.is_empty())
}

/// Checks the settings that a command agent must not have.
fn check_command(spec: &AgentSpec, command: &CommandSpec) -> Result<(), EngineError> {
    command.check().map_err(|err| EngineError::invalid("command", err.to_string()))?;
    if !spec.approvals.is_empty() {
        let message = "an agent that is a command calls tools by `/mcp`, where nobody can be asked: \
                       leave `approvals` empty";
        return Err(EngineError::invalid("approvals", message));
    }
    sandbox_of_commands(spec.sandbox)
}

/// Refuses a level that cannot be used for a long-running command, instead of silently using less.
pub(crate) fn sandbox_of_commands(level: SandboxLevel) -> Result<(), EngineError> {
    match level {
        SandboxLevel::None | SandboxLevel::Namespace => Ok(()),
        SandboxLevel::Docker | SandboxLevel::Microvm => {
            let message = format!(
                "commands run in the sandbox `namespace`, or in `none`; `{}` cannot be given",
                level.as_str()
            );
            Err(EngineError::invalid("sandbox", message))
        }
    }
}

/// Only an admin may show a command more of the host than its own files.
pub(crate) fn granted_by(
    by: &Caller,
    before: &CommandSpec,
    command: Option<&CommandSpec>,
) -> Result<(), EngineError> {
    match command {
        Some(command) if command.grants_more_than(before) => by.require(Role::Admin),
        Some(_) | None => Ok(()),
    }
}
