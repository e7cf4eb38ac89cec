//! Sessions as callers see them: create, read, direct.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use overmind_core::agent::{AgentSpec, AgentStatus};
use overmind_core::attest::Kept;
use overmind_core::budget::CostRow;
use overmind_core::command::{CommandKind, CommandSpec, MAX_ARGUMENT, StopHow};
use overmind_core::conflict::ConflictKind;
use overmind_core::ids::{AgentId, ApprovalId, ColonyId, SessionId};
use overmind_core::name;
use overmind_core::record::bounds::check_labels;
use overmind_core::room::stay::RoomPhase;
use overmind_core::room::{RoomWhen, RoomWish};
use overmind_core::row::{Role, SessionRow, SessionStatus, StepRow};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::{Session, Spec, Toolset};
use overmind_core::store::{
    Change, Commit, EventQuery, Guard, IdempotentAnswer, LogEvent, NameFilter, NewEvent, Page,
    SessionFilter, StoreError, StreamId,
};
use tokio::sync::watch;

use crate::Engine;
use crate::agents::{granted_by, sandbox_of_commands};
use crate::caller::{Caller, Part, Rights};
use crate::cortex::{Order, count, shutting_down};
use crate::error::EngineError;
use crate::given;
use crate::place::Place;
use crate::quests;
use crate::reach::reaches_host;
use crate::request::{Decision, SessionDraft, SessionQuery};
use crate::view::Created;

/// Longest task, in bytes.
const TASK_BYTES: usize = 200_000;
/// How often a generated name may be taken before the caller gets an error.
const NAME_ATTEMPTS: u32 = 5;
/// Maximum number of nested sessions, including the lowest.
const DEEPEST: u32 = 16;

/// The statuses of sessions that have not ended.
pub(crate) fn open_statuses() -> Vec<SessionStatus> {
    SessionStatus::ALL.into_iter().filter(|status| !status.is_terminal()).collect()
}

impl Engine {
    /// The names of these agents, without removed ones. Reads the store only for agents that are
    /// not cached.
    ///
    /// # Errors
    ///
    /// [`EngineError::Store`] if they cannot be read.
    pub async fn agent_names(
        &self,
        agents: &[AgentId],
    ) -> Result<HashMap<AgentId, String>, EngineError> {
        let mut names = HashMap::new();
        for id in agents.iter().copied() {
            if !names.contains_key(&id)
                && let Some(agent) = self.cortex.agent(id).await?
            {
                names.insert(id, agent.spec.name.clone());
            }
        }
        Ok(names)
    }

    /// The number of the session's alarms; 0 for an unknown one.
    pub fn session_alarms(&self, id: SessionId) -> u32 {
        self.cortex.alarms.of(id)
    }

    /// Makes a session and queues it; if there is capacity, it has begun when this returns. Returns
    /// the session as it was made. A session's own token makes one below that session, with its
    /// agent's rights.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] for the agent; [`EngineError::Conflict`] if it is disabled.
    pub async fn session_create(
        &self,
        by: &Caller,
        draft: SessionDraft,
    ) -> Result<Created<SessionRow>, EngineError> {
        if let Rights::Session { session, .. } = by.rights {
            return Box::pin(self.child_create(by, session, draft)).await;
        }
        by.require(Role::Runs)?;
        if self.cortex.draining() {
            return Err(shutting_down());
        }
        if draft.task.len() > TASK_BYTES {
            let message = format!("task must have at most {TASK_BYTES} bytes");
            return Err(EngineError::invalid("task", message));
        }
        let agent = self.agent_wanted(by, &draft.agent).await?;
        if agent.colony != by.colony {
            // Its id was named, and it belongs to another colony.
            return Err(EngineError::not_found("Agent"));
        }
        // It is for exactly the version that is started.
        let lent = draft.owner.map(|_| quests::lent(by, &agent));
        let by = lent.as_ref().unwrap_or(by);
        let scope = by.repeats("runs");
        if let Some(row) = self.session_made_before(&scope, draft.idempotency.as_ref()).await? {
            return Ok(Created { value: row, replayed: true });
        }
        match agent.status {
            AgentStatus::Active => {}
            AgentStatus::Disabled => return Err(EngineError::conflict("Agent is disabled")),
            AgentStatus::Removed => return Err(EngineError::conflict("Agent is removed")),
        }
        if let Some(name) = &draft.name {
            name::check(name).map_err(|why| EngineError::invalid("name", format!("name {why}")))?;
            self.no_secret("name", name)?;
        }
        self.labels_as_said(&draft.labels)?;
        let (contexts, foreign) = self.contexts_given(by, &draft.contexts).await?;
        let claims = self.claims_given(by, &draft.claims).await?;
        let parent_row = match &draft.parent {
            Some(parent) => Some(self.find_parent(by, parent).await?),
            None => None,
        };
        let parent = parent_row.as_ref().map(|row| row.id);
        let id = SessionId::mint(&*self.cortex.ids);
        let Place { workspace, project, reach } =
            self.place(by, id, draft.workspace.as_deref(), parent_row.as_ref()).await?;
        let writer = quests::lent_less(by, &agent).filter(|_| draft.owner.is_none() && !by.on_host);
        let own = agent.spec.command.clone();
        let agent_spec = with_command(by, agent.spec, draft.command.clone())?;
        let is_default = by.colony == ColonyId::DEFAULT;
        let both = own.zip(agent_spec.command.as_ref());
        if is_default && both.is_some_and(|(own, now)| !now.runs_as(&own)) {
            self.may_write_granted(by, &agent_spec.name)?;
        }
        let agent_spec = with_sandbox(agent_spec, draft.sandbox)?;
        given::check_shown(&agent_spec, &contexts)?;
        given::check_claimed(&agent_spec, &claims)?;
        if agent_spec.command.as_ref().is_some_and(|command| !command.takes(&draft.task)) {
            let message = format!(
                "a program gets its task as an argument, which may have {MAX_ARGUMENT} bytes at most: \
                 put the text into a file of the project, and name the file in the task"
            );
            return Err(EngineError::invalid("task", message));
        }
        let here = draft.room.as_ref().is_some_and(|room| room.when == RoomWhen::Never);
        for (asked, what) in [
            (agent_spec.sandbox == SandboxLevel::None, "run programs without a sandbox"),
            (here, "have a run work in a directory itself (`--here`)"),
        ] {
            if asked {
                by.require_host(what)?;
                if let Some(why) = writer {
                    return Err(EngineError::Forbidden {
                        message: format!("you may {what}, but {why}"),
                    });
                }
            }
        }
        let trusted = reaches_host(&agent_spec, draft.room.as_ref())
            || agent_spec.command.as_ref().is_some_and(|command| !command.env_from.is_empty())
            || (is_default && self.vault.granted_by_name(&agent_spec.name).is_some());
        if let Some(name) = foreign.filter(|_| trusted) {
            let message = format!(
                "context {name} was written by somebody who is no admin, and its variables decide what a \
                 program does: a run that reaches the host beyond its sandbox, or that is given secrets, is \
                 not given it. Delete it, and have an admin apply it"
            );
            return Err(EngineError::Forbidden { message });
        }
        if trusted && agent_spec.command.is_some() {
            self.brings_no_files(by, id, &agent_spec.name, &workspace).await?;
        }
        let room = {
            let private = self.cortex.config.is_private(by.colony);
            let project = project || (agent_spec.command.is_some() && !private);
            let wish = self.room_wish(draft.room.clone(), project)?;
            wish.map(|wish| RoomWish { reach, ..wish })
        };
        if let Some(wish) = &room {
            self.may_have_run(&workspace, wish).await?;
        }
        let command = agent_spec.command.as_ref();
        let takes_more = command.is_some_and(|command| command.kind == CommandKind::Session);
        let trace = self.trace_of_child(by, parent).await?;
        let toolset = self.cortex.current_toolset().await?;
        let spec = Spec {
            run_id: id,
            colony: agent.colony,
            agent_id: agent.id,
            agent_version: agent.version,
            step_limit: draft.step_limit.unwrap_or(agent_spec.limits.max_steps),
            agent: Arc::new(agent_spec),
            task: draft.task.clone(),
            name: String::new(),
            parent,
            workspace,
            created_by: by.name.clone(),
            toolset: toolset.hash().to_owned(),
            gated: self.cortex.gate.is_some(),
            fork: None,
            room,
            trace,
            conversation: draft.conversation.unwrap_or(takes_more),
            owner: draft.owner,
            labels: draft.labels.clone(),
            contexts,
            claims,
        };
        self.runs_as_said(&spec.task, &spec.agent)?;
        // The budget is in force before the first model call.
        if let Some(budget) = draft.budget {
            self.budgets().bind(id, budget, &by.name).await?;
        }
        let made = self.session_named(spec, &draft, &toolset, &scope).await;
        if draft.budget.is_some() && !made.as_ref().is_ok_and(|made| !made.replayed) {
            self.budgets().unbind(id, &by.name).await?;
        }
        made
    }

    /// Makes a session with the draft's name, or with a free generated one.
    async fn session_named(
        &self,
        spec: Spec,
        draft: &SessionDraft,
        toolset: &Arc<Toolset>,
        scope: &str,
    ) -> Result<Created<SessionRow>, EngineError> {
        let id = spec.run_id;
        for attempt in 0.. {
            let name = draft.name.clone().unwrap_or_else(|| name::generate(id, attempt));
            let spec = Spec { name, ..spec.clone() };
            let key = draft.idempotency.as_ref().map(|key| (scope, key));
            let (session, mut commit) = self.beginning(spec, toolset, key);
            let row = session.row().clone();
            self.cortex.admit(&row, &mut commit)?;
            match self.cortex.make(session, commit).await {
                Ok(()) => {
                    count(&self.cortex.counters.created);
                    return Ok(Created { value: row, replayed: false });
                }
                Err(err @ StoreError::Conflict { .. }) => {
                    // Another request with the same key was faster.
                    let made = self.session_made_before(scope, draft.idempotency.as_ref()).await?;
                    if let Some(row) = made {
                        return Ok(Created { value: row, replayed: true });
                    }
                    // It may also be that the generated name was taken.
                    let err = self.cortex.explained(row.colony, err.into());
                    if err.is_conflict_of(ConflictKind::Record) && attempt < NAME_ATTEMPTS {
                        // The colony was changed at the same time.
                        self.cortex.colonies_load(Part::Reconcilers.name()).await?;
                        continue;
                    }
                    let again = draft.name.is_none() && attempt < NAME_ATTEMPTS;
                    if !again || !err.is_conflict_of(ConflictKind::SessionName) {
                        return Err(err);
                    }
                }
                Err(err) => return Err(err.into()),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Checks that labels are valid and contain no secret: they are compared, and cannot be masked.
    fn labels_as_said(&self, labels: &BTreeMap<String, String>) -> Result<(), EngineError> {
        if let Some(wrong) = check_labels(labels).into_iter().next() {
            return Err(EngineError::invalid("labels", wrong.to_string()));
        }
        labels
            .iter()
            .flat_map(|(key, value)| [key, value])
            .try_for_each(|text| self.no_secret("labels", text))
    }

    /// A new session, and the commit that makes it.
    fn beginning(
        &self,
        mut spec: Spec,
        toolset: &Arc<Toolset>,
        idempotency: Option<(&str, &(String, [u8; 32]))>,
    ) -> (Session, Commit) {
        let mut payload = serde_json::to_value(&spec).expect("a spec is plain data");
        // Decisions use the task as it is recorded.
        self.cortex.store.redact_record(&mut payload);
        if let Ok(masked) = serde_json::from_value(payload.clone()) {
            spec = masked;
        }
        let now = self.cortex.clock.now();
        let session = Session::begin(spec, Arc::clone(toolset), now);
        let row = session.row().clone();
        let stream = StreamId::Session(row.id);
        let mut commit = Commit {
            guards: vec![Guard::NameFree { colony: row.colony, name: row.name.clone() }],
            events: vec![NewEvent { stream, kind: "run.queued", ts: now, payload }],
            changes: vec![Change::SessionInsert(Box::new(row.clone()))],
        };
        if let Some((scope, (key, fingerprint))) = idempotency {
            let resource = row.id.to_string();
            let answer = IdempotentAnswer { fingerprint: *fingerprint, resource };
            let (scope, key) = (scope.to_owned(), key.clone());
            commit.changes.push(Change::IdempotencyPut { scope, key, answer, at: now });
        }
        (session, commit)
    }

    /// The parent of a new session: by its id, or by its name while it has not ended.
    async fn find_parent(&self, by: &Caller, given: &str) -> Result<SessionRow, EngineError> {
        let found = match given.parse::<SessionId>() {
            Ok(id) => self.cortex.store.session_fetch(id).await?,
            Err(_) => {
                let filter = SessionFilter {
                    colony: Some(by.colony),
                    name: Some(NameFilter::Is(given.to_owned())),
                    statuses: open_statuses(),
                    ..SessionFilter::default()
                };
                let page = Page { after: None, limit: 1 };
                self.cortex.store.session_list(filter, page).await?.pop()
            }
        };
        let parent = found.filter(|row| row.colony == by.colony);
        let parent = parent.ok_or_else(|| EngineError::not_found("Parent"))?;
        if parent.status.is_terminal() || is_closing(&parent) {
            return Err(EngineError::conflict("Parent is already finished"));
        }
        let mut above = parent.parent;
        for _ in 1..DEEPEST {
            let Some(id) = above else { return Ok(parent) };
            above = self.cortex.store.session_fetch(id).await?.and_then(|row| row.parent);
        }
        let message = format!("parent has {DEEPEST} runs above it, which is the most there may be");
        Err(EngineError::invalid("parent", message))
    }

    /// The attestation of the sandbox of a run's commands: the whole record, and whether its
    /// signature is valid.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] for the run, and as long as none of its commands ran in a sandbox.
    pub async fn session_attestation(
        &self,
        by: &Caller,
        id: SessionId,
        of: Option<&str>,
    ) -> Result<Kept, EngineError> {
        let row = self.session_fetch(by, id).await?;
        let missing = || EngineError::not_found("Attestation");
        let named = match of {
            None => row.attestation,
            Some(of) => {
                let mut all = row.room.into_iter().flat_map(|room| room.attested);
                all.find(|one| one.of == of).map(|one| one.attestation)
            }
        };
        let named = named.ok_or_else(missing)?;
        self.cortex.store.attestation_fetch(named.digest).await?.ok_or_else(missing)
    }

    async fn session_made_before(
        &self,
        scope: &str,
        idempotency: Option<&(String, [u8; 32])>,
    ) -> Result<Option<SessionRow>, EngineError> {
        let Some(resource) = self.made_before(scope, idempotency).await? else { return Ok(None) };
        let id = resource.parse().map_err(|_| EngineError::not_found("Run"))?;
        Ok(self.cortex.store.session_fetch(id).await?)
    }

    /// Sessions, newest first; a session sees itself and those below it.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn session_list(
        &self,
        by: &Caller,
        query: SessionQuery,
        page: Page<SessionId>,
    ) -> Result<Vec<SessionRow>, EngineError> {
        let tree = match by.rights {
            Rights::Role(_) | Rights::System(_) => {
                by.require(Role::Viewer)?;
                None
            }
            Rights::Session { session, .. } => Some(session),
        };
        let SessionQuery { statuses, agent, parent, name, owner, selector } = query;
        let colony = by.sight().only();
        let filter = SessionFilter { colony, agent, statuses, parent, tree, name, owner, selector };
        self.settled(self.cortex.store.session_list(filter, page).await?).await
    }

    /// Rows for display: the cost of a session's calls is what was settled for it, and not what it
    /// was told. A program that bypasses the gateway reports its own spending; the cost of memory's
    /// embeddings is added.
    pub(crate) async fn settled(
        &self,
        mut rows: Vec<SessionRow>,
    ) -> Result<Vec<SessionRow>, EngineError> {
        // The writes of free calls may be delayed briefly, and the session knows that.
        let free = |row: &SessionRow| row.cost_microusd == Some(0);
        if !rows.iter().all(free) {
            self.budgets().flush().await;
        }
        let ids = rows.iter().map(|row| row.id).collect();
        let costs = self.cortex.store.session_costs(ids).await?;
        let costs: HashMap<String, CostRow> =
            costs.into_iter().map(|cost| (cost.key.clone(), cost)).collect();
        for row in &mut rows {
            let Some(cost) = costs.get(&row.id.to_string()) else { continue };
            let known = (cost.unpriced == 0).then_some(cost.microusd);
            if free(row) && known == Some(0) {
                continue;
            }
            row.cost_at_most = known.is_some() && cost.at_most > 0;
            if row.command.is_some() && cost.usage.output_tokens == 0 {
                row.usage.add(cost.usage);
                row.cost_microusd = row.cost_microusd.zip(known).map(|(a, b)| a.saturating_add(b));
            } else {
                (row.usage, row.cost_microusd) = (cost.usage, known);
            }
        }
        Ok(rows)
    }

    /// One session.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if there is no such session.
    pub async fn session_fetch(
        &self,
        by: &Caller,
        id: SessionId,
    ) -> Result<SessionRow, EngineError> {
        self.reads(by, Role::Viewer, id).await?;
        let row = self.find_session(id).await?;
        self.settled(vec![row]).await?.pop().ok_or_else(|| EngineError::not_found("Run"))
    }

    pub(crate) async fn find_session(&self, id: SessionId) -> Result<SessionRow, EngineError> {
        self.cortex.store.session_fetch(id).await?.ok_or_else(|| EngineError::not_found("Run"))
    }

    /// Checks that a session exists; an active one need not be looked up.
    pub(crate) async fn is_there(&self, id: SessionId) -> Result<(), EngineError> {
        if self.cortex.moves(id) { Ok(()) } else { self.find_session(id).await.map(drop) }
    }

    /// Cancels a session that has not ended. When this returns, nothing of it runs: its environment
    /// was removed too, unless that takes more than some seconds.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if it has ended.
    pub async fn session_cancel(
        &self,
        by: &Caller,
        id: SessionId,
    ) -> Result<SessionRow, EngineError> {
        self.orders(by, Role::Runs, id).await?;
        self.is_there(id).await?;
        let row =
            self.cortex.order(id, Order::Cancel { by: by.name.clone(), reason: None }).await?;
        self.ended(row).await
    }

    /// Ends the command of a session: TERM to all of its processes and KILL after the grace, or
    /// KILL at once. Returns when that is requested; the session ends when its processes have.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if it has none, has ended, or is already being ended like this.
    pub async fn session_stop(
        &self,
        by: &Caller,
        id: SessionId,
        how: StopHow,
    ) -> Result<SessionRow, EngineError> {
        self.orders(by, Role::Runs, id).await?;
        self.is_there(id).await?;
        let row = self.cortex.order(id, Order::Stop { how, by: by.name.clone() }).await?;
        // Between two processes there is nothing to end first.
        if is_closing(&row) { self.ended(row).await } else { Ok(row) }
    }

    /// Answers the question for which a session waits. The first answer counts.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if it waits for none.
    pub async fn session_input(
        &self,
        by: &Caller,
        id: SessionId,
        message: String,
    ) -> Result<SessionRow, EngineError> {
        by.require(Role::Runs)?;
        self.find_session(id).await?;
        self.require_host_of(by, id).await?;
        self.can_be_told(&message)?;
        let order = Order::Answer { item: None, message, by: by.name.clone() };
        let row = self.cortex.order(id, order).await?;
        if is_closing(&row) { self.ended(row).await } else { Ok(row) }
    }

    /// Decides about an approval. The first decision counts.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if the session does not wait for this approval.
    pub async fn session_decide(
        &self,
        by: &Caller,
        id: SessionId,
        approval: ApprovalId,
        decision: Decision,
        reason: Option<String>,
    ) -> Result<SessionRow, EngineError> {
        by.require(Role::Runs)?;
        self.find_session(id).await?;
        let approve = decision == Decision::Approve;
        if approve {
            self.require_host_of(by, id).await?;
        }
        let by = by.name.clone();
        let row = self.cortex.order(id, Order::Decide { approval, approve, reason, by }).await?;
        if is_closing(&row) { self.ended(row).await } else { Ok(row) }
    }

    /// Steps in ascending order, those after `after`.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] for the session.
    pub async fn session_steps(
        &self,
        by: &Caller,
        id: SessionId,
        after: Option<u32>,
        limit: u32,
    ) -> Result<Vec<StepRow>, EngineError> {
        self.reads(by, Role::Viewer, id).await?;
        self.find_session(id).await?;
        Ok(self.cortex.store.step_list(id, after, limit).await?)
    }

    /// Events in ascending order, those after sequence number `after`.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] for the session.
    pub async fn session_events(
        &self,
        by: &Caller,
        id: SessionId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<LogEvent>, EngineError> {
        self.reads(by, Role::Viewer, id).await?;
        self.find_session(id).await?;
        let stream = Some(StreamId::Session(id));
        Ok(self.cortex.store.events(EventQuery { stream, after, kinds: &[], limit }).await?)
    }

    /// A counter that changes whenever the session's stream grows. Read the timeline again then.
    pub fn session_watch(&self, id: SessionId) -> watch::Receiver<u64> {
        self.cortex.watchers.watch(StreamId::Session(id))
    }
}

/// Only an admin may decide which of the server's credentials agents get.
pub(crate) fn may_name_credentials(by: &Caller) -> Result<(), EngineError> {
    if by.is_admin() {
        return Ok(());
    }
    let message = "only an admin may say which credentials a command gets, or change what is run \
                   with them";
    Err(EngineError::Forbidden { message: message.into() })
}

/// Whether only its environment is still being removed.
pub(crate) fn is_closing(row: &SessionRow) -> bool {
    row.room.as_ref().is_some_and(|room| room.phase == RoomPhase::Closing)
}

/// The agent as changed for one run.
fn with_command(
    by: &Caller,
    mut agent: AgentSpec,
    command: Option<CommandSpec>,
) -> Result<AgentSpec, EngineError> {
    let Some(mut command) = command else { return Ok(agent) };
    let Some(own) = &agent.command else {
        let message = "the agent is no command, so a run of it has none of its own";
        return Err(EngineError::invalid("command", message));
    };
    if command.argv.is_empty() {
        command.argv.clone_from(&own.argv);
        command.exact = own.exact;
    }
    if command.env_from.is_empty() {
        command.env_from.clone_from(&own.env_from);
    }
    if command.models.is_empty() {
        command.models.clone_from(&own.models);
    } else if !own.models.is_empty() && command.models.iter().any(|one| !own.models.contains(one)) {
        let message = "a run may name fewer models than its agent, and no others";
        return Err(EngineError::invalid("command.models", message));
    }
    command.gateway = command.gateway.or(own.gateway);
    command.limits = command.limits.or(own.limits);
    command.network = command.network.or(own.network);
    // A caller that selects the program for a credential can read the credential.
    let same =
        command.env_from == own.env_from && (own.env_from.is_empty() || command.runs_as(own));
    if !same {
        may_name_credentials(by)?;
    }
    command.check().map_err(|err| EngineError::invalid("command", err.to_string()))?;
    granted_by(by, own, Some(&command))?;
    agent.command = Some(command);
    Ok(agent)
}

/// The agent with the sandbox that a run requests.
fn with_sandbox(
    mut agent: AgentSpec,
    level: Option<SandboxLevel>,
) -> Result<AgentSpec, EngineError> {
    let Some(level) = level else { return Ok(agent) };
    if agent.command.is_none() {
        let message = "the agent is no command: its sandbox is in its definition";
        return Err(EngineError::invalid("sandbox", message));
    }
    if level < agent.sandbox {
        let message = format!(
            "the agent's commands run in the sandbox `{}`, and a run may ask for no weaker one",
            agent.sandbox.as_str()
        );
        return Err(EngineError::invalid("sandbox", message));
    }
    sandbox_of_commands(level)?;
    agent.sandbox = level;
    Ok(agent)
}

impl Engine {
    /// Refuses a text that cannot be sent to a run: it is empty or too long, or contains something
    /// that would be masked, so that the run would get another text.
    pub(crate) fn can_be_told(&self, message: &str) -> Result<(), EngineError> {
        if message.trim().is_empty() {
            return Err(EngineError::invalid("message", "message must be a non-empty string"));
        }
        if message.len() > TASK_BYTES {
            let text = format!("message must have at most {TASK_BYTES} bytes");
            return Err(EngineError::invalid("message", text));
        }
        self.as_said("message", "the message", message)
    }
}
