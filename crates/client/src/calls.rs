//! One method per operation of the API.

use std::sync::Arc;

use hyper::Method;
use hyper::header::{HeaderName, IF_MATCH};
use overmind_api::{
    Agent, AgentCreate, AgentPatch, ApprovalAnswer, AttachMode, AttestationRecord, AuditReport,
    BackupDone, BackupRequest, Diff, Event, ForkRequest, InboxAnswer, InboxBatch, InboxBatchDone,
    InboxGroup, InboxItem, InboxListQuery, InboxProposal, Key, KeyCreate, KeyCreated, Leaks,
    ListQuery, Loop, McpPin, McpServer, McpServerPut, McpServers, McpUnpin, MemoryFound,
    MemoryItem, MemoryListQuery, MemoryReembed, MemoryReembedded, MemorySearch, MemoryStore,
    MemoryStored, ModelCall, Okay, ProcessUsage, ProjectConfirm, ProjectRevoked, ProjectTrust,
    ProviderKeyView, PruneDone, PruneRequest, Ready, RoomDone, RoomDoneResult, RoomUndo,
    RoomUndone, RoomWork, Run, RunBasic, RunCreate, RunInput, RunListQuery, RunSend, RunStop,
    RunUsages, RunView, RunsKill, RunsKilled, SignInLink, Status, Step, TerminalSize, Tool,
    ToolCall, ToolCallRequest, VerifyReport, Version,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::connection::{Answer, Call, Connections, Options, Patience};
use crate::error::ClientError;
use crate::inbox::InboxWatch;
use crate::log::LogWatch;
use crate::page::{Page, TargetPath, next_of};
use crate::replay::{Replay, ReplayOptions};
use crate::run_log::{LogOptions, RunLog};
use crate::target::Target;
use crate::terminal::Terminal;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A client of one server; clones share its connections.
///
/// Methods fail with a [`ClientError`]. A parameter `agent: &str` accepts an id or an exact name.
/// Dropping a method's future closes its connection; work that the server has started continues.
#[derive(Clone, Debug)]
pub struct Client {
    connections: Arc<Connections>,
}

/// How many fields of a run are read from an answer.
pub trait RunShape: DeserializeOwned {
    const VIEW: RunView;
}

impl RunShape for Run {
    const VIEW: RunView = RunView::Full;
}

impl RunShape for RunBasic {
    const VIEW: RunView = RunView::Basic;
}

impl Client {
    /// Creates a client with default [`Options`]. Opens no connection yet.
    ///
    /// # Errors
    ///
    /// [`ClientError::Argument`] if the token cannot be sent in a header.
    pub fn connect(target: Target, token: Option<&str>) -> Result<Self, ClientError> {
        Self::with_options(target, token, Options::default())
    }

    /// Creates a client: see [`Client::connect`].
    ///
    /// # Errors
    ///
    /// The same as there.
    pub fn with_options(
        target: Target,
        token: Option<&str>,
        options: Options,
    ) -> Result<Self, ClientError> {
        let connections = Arc::new(Connections::new(target, token, options)?);
        Ok(Self { connections })
    }

    pub fn target(&self) -> &Target {
        &self.connections.target
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    // --- health

    pub async fn health(&self) -> Result<Okay, ClientError> {
        self.get("/health").await
    }

    /// Returns whether the server is ready. A server that is not ready is no error here.
    pub async fn ready(&self) -> Result<Ready, ClientError> {
        let call = Call {
            method: Method::GET,
            target: "/readyz",
            headers: vec![],
            body: None,
            patience: Patience::Quick,
            also_fine: &[503],
        };
        parse(&Box::pin(self.connections.call(call)).await?)
    }

    pub async fn version(&self) -> Result<Version, ClientError> {
        self.get("/api/version").await
    }

    pub async fn status(&self) -> Result<Status, ClientError> {
        self.get("/api/status").await
    }

    /// Returns metrics in the OpenMetrics text format.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        self.text("/metrics").await
    }

    /// Returns the OpenAPI document that the server itself serves.
    pub async fn openapi(&self) -> Result<String, ClientError> {
        self.text("/api/openapi.json").await
    }

    // --- agents

    /// Creates an agent. With an `idempotency_key`, a repeated call returns the first call's agent.
    pub async fn agent_create(
        &self,
        agent: &AgentCreate,
        idempotency_key: Option<&str>,
    ) -> Result<Agent, ClientError> {
        self.create("/api/agents", agent, idempotency_key).await
    }

    pub async fn agent_list(&self, query: &ListQuery) -> Result<Page<Agent>, ClientError> {
        self.page(listed(TargetPath::new("/api/agents"), query)).await
    }

    pub async fn agent_fetch(&self, agent: &str) -> Result<Agent, ClientError> {
        self.get(agent_path(agent)?.as_str()).await
    }

    /// Changes an agent. With `if_version`, fails with status 412 if it was changed in between.
    pub async fn agent_patch(
        &self,
        agent: &str,
        patch: &AgentPatch,
        if_version: Option<u32>,
    ) -> Result<Agent, ClientError> {
        let headers = if_version.map(|version| (IF_MATCH, format!("\"{version}\"")));
        let path = agent_path(agent)?;
        self.send(Method::PATCH, path.as_str(), patch, headers, Patience::Quick).await
    }

    pub async fn agent_disable(&self, agent: &str) -> Result<Agent, ClientError> {
        self.act(Method::POST, agent_path(agent)?.then("/disable").as_str()).await
    }

    pub async fn agent_remove(&self, agent: &str) -> Result<Agent, ClientError> {
        self.act(Method::DELETE, agent_path(agent)?.as_str()).await
    }

    /// Returns all versions, newest first.
    pub async fn agent_versions(
        &self,
        agent: &str,
        query: &ListQuery,
    ) -> Result<Page<Agent>, ClientError> {
        self.page(listed(agent_path(agent)?.then("/versions"), query)).await
    }

    // --- runs

    /// Creates a run. With an `idempotency_key`, a repeated call returns the first call's run.
    pub async fn run_create(
        &self,
        run: &RunCreate,
        idempotency_key: Option<&str>,
    ) -> Result<Run, ClientError> {
        self.create("/api/runs", run, idempotency_key).await
    }

    /// Returns runs, newest first.
    pub async fn run_list(&self, query: &RunListQuery) -> Result<Page<Run>, ClientError> {
        self.run_list_as(query).await
    }

    /// Returns runs with the fields of `R`, whatever view the query names.
    pub async fn run_list_as<R: RunShape>(
        &self,
        query: &RunListQuery,
    ) -> Result<Page<R>, ClientError> {
        self.page(runs_path(query, R::VIEW)).await
    }

    pub async fn run_fetch(&self, run: &str) -> Result<Run, ClientError> {
        self.get(run_path(run)?.as_str()).await
    }

    pub async fn run_cancel(&self, run: &str) -> Result<Run, ClientError> {
        self.act(Method::POST, run_path(run)?.then("/cancel").as_str()).await
    }

    /// Cancels a run and all runs below it.
    pub async fn run_cancel_all(&self, run: &str) -> Result<Run, ClientError> {
        let path = run_path(run)?.then("/cancel").query("cascade", Some(true));
        self.act(Method::POST, path.as_str()).await
    }

    /// Ends the command of a run.
    pub async fn run_stop(&self, run: &str, stop: RunStop) -> Result<Run, ClientError> {
        self.post(run_path(run)?.then("/stop").as_str(), &stop).await
    }

    /// Kills many runs. The result for each is in the answer and is not an error.
    pub async fn run_kill_all(&self, kill: &RunsKill) -> Result<RunsKilled, ClientError> {
        self.post("/api/runs/kill", kill).await
    }

    /// Writes to the input of a run's command.
    pub async fn run_send(&self, run: &str, send: &RunSend) -> Result<Run, ClientError> {
        self.post(run_path(run)?.then("/send").as_str(), send).await
    }

    /// Reads the output of a run's command.
    pub async fn run_log(&self, run: &str, options: &LogOptions) -> Result<RunLog, ClientError> {
        RunLog::open(self, run, options).await
    }

    /// Attaches to the terminal of the run's command.
    pub async fn run_attach(
        &self,
        run: &str,
        mode: AttachMode,
        size: Option<TerminalSize>,
    ) -> Result<Terminal, ClientError> {
        Box::pin(Terminal::open(self, run, mode, size)).await
    }

    /// Returns the resources that the processes of all runs use.
    pub async fn run_usages(&self) -> Result<RunUsages, ClientError> {
        self.get("/api/runs/usage").await
    }

    /// Removes an ended run with its log. `discard` first discards undecided work.
    pub async fn run_remove(&self, run: &str, discard: bool) -> Result<PruneDone, ClientError> {
        let path = run_path(run)?.then(if discard { "?discard=true" } else { "" });
        parse(&self.ask(Method::DELETE, path.as_str(), None, vec![], Patience::Long).await?)
    }

    /// Returns a run's changes in its environment.
    pub async fn run_work(&self, run: &str) -> Result<RoomWork, ClientError> {
        self.get_long(run_path(run)?.then("/work").as_str()).await
    }

    /// Carries out a decision about a run's work.
    pub async fn run_done(
        &self,
        run: &str,
        done: &RoomDone,
    ) -> Result<RoomDoneResult, ClientError> {
        let path = run_path(run)?.then("/done");
        self.send(Method::POST, path.as_str(), done, None, Patience::Long).await
    }

    /// Restores the files of a run's worktree.
    pub async fn run_undo(&self, run: &str, undo: &RoomUndo) -> Result<RoomUndone, ClientError> {
        let path = run_path(run)?.then("/undo");
        self.send(Method::POST, path.as_str(), undo, None, Patience::Long).await
    }

    /// Returns all resources that belong to no living run.
    pub async fn room_leaks(&self) -> Result<Leaks, ClientError> {
        self.get_long("/api/rooms/leaks").await
    }

    /// Removes those that certainly belong to the server, and returns the rest.
    pub async fn room_fix(&self) -> Result<Leaks, ClientError> {
        let (method, target) = (Method::POST, "/api/rooms/fix");
        parse(&self.ask(method, target, None, vec![], Patience::Long).await?)
    }

    /// Returns the orders of the project around a directory, and whether they were confirmed.
    pub async fn project_trust(&self, project: &str) -> Result<ProjectTrust, ClientError> {
        let path = TargetPath::new("/api/projects/trust").query("project", Some(project));
        self.get(path.as_str()).await
    }

    /// Confirms the orders of a project in the version that was read.
    pub async fn project_confirm(
        &self,
        confirm: &ProjectConfirm,
    ) -> Result<ProjectTrust, ClientError> {
        self.send(Method::PUT, "/api/projects/trust", confirm, None, Patience::Quick).await
    }

    /// Revokes a project's confirmation.
    pub async fn project_revoke(&self, project: &str) -> Result<ProjectRevoked, ClientError> {
        let path = TargetPath::new("/api/projects/trust").query("project", Some(project));
        self.act(Method::DELETE, path.as_str()).await
    }

    /// Returns the resources that a run's processes use now.
    pub async fn run_usage(&self, run: &str) -> Result<ProcessUsage, ClientError> {
        self.get(run_path(run)?.then("/usage").as_str()).await
    }

    /// Answers a run's question.
    pub async fn run_input(&self, run: &str, message: &str) -> Result<Run, ClientError> {
        let body = RunInput { message: message.to_owned() };
        self.post(run_path(run)?.then("/input").as_str(), &body).await
    }

    /// Approves or denies an action that waits for approval.
    pub async fn run_decide(
        &self,
        run: &str,
        approval: &str,
        answer: &ApprovalAnswer,
    ) -> Result<Run, ClientError> {
        let path = run_path(run)?.then("/approvals").segment(filled("the approval", approval)?);
        self.post(path.as_str(), answer).await
    }

    /// Returns the measured isolation of the sandbox of the run's commands, or with `of`, of a
    /// program of its environment.
    pub async fn run_attestation(
        &self,
        run: &str,
        of: Option<&str>,
    ) -> Result<AttestationRecord, ClientError> {
        self.get(run_path(run)?.then("/attestation").query("of", of).as_str()).await
    }

    /// Returns steps in the order of `idx`.
    pub async fn run_steps(&self, run: &str, query: &ListQuery) -> Result<Page<Step>, ClientError> {
        self.page(listed(run_path(run)?.then("/steps"), query)).await
    }

    /// Returns tool calls, oldest first.
    pub async fn run_tool_calls(
        &self,
        run: &str,
        query: &ListQuery,
    ) -> Result<Page<ToolCall>, ClientError> {
        self.page(listed(run_path(run)?.then("/tool-calls"), query)).await
    }

    /// Returns model calls, oldest first.
    pub async fn run_model_calls(
        &self,
        run: &str,
        query: &ListQuery,
    ) -> Result<Page<ModelCall>, ClientError> {
        self.page(listed(run_path(run)?.then("/model-calls"), query)).await
    }

    /// Returns events, oldest first.
    pub async fn run_events(
        &self,
        run: &str,
        query: &ListQuery,
    ) -> Result<Page<Event>, ClientError> {
        self.page(listed(run_path(run)?.then("/events"), query)).await
    }

    /// Streams the run's timeline, and reconnects automatically.
    pub async fn run_replay(
        &self,
        run: &str,
        options: ReplayOptions,
    ) -> Result<Replay, ClientError> {
        Replay::open(self.clone(), filled("the run", run)?, options).await
    }

    /// Calls a tool in the name of the run. A denied or failed call is an answer and not an error.
    pub async fn run_tool_call(
        &self,
        run: &str,
        call: &ToolCallRequest,
    ) -> Result<Value, ClientError> {
        let path = run_path(run)?.then("/tools/call");
        self.send(Method::POST, path.as_str(), call, None, Patience::Long).await
    }

    /// Replays the decisions of the whole run from its log, and compares them.
    pub async fn run_verify(&self, run: &str) -> Result<VerifyReport, ClientError> {
        self.get_long(run_path(run)?.then("/verify").as_str()).await
    }

    /// Creates a run that repeats this one up to a step.
    pub async fn run_fork(&self, run: &str, fork: &ForkRequest) -> Result<Run, ClientError> {
        let path = run_path(run)?.then("/fork");
        self.send(Method::POST, path.as_str(), fork, None, Patience::Long).await
    }

    /// Compares two runs.
    pub async fn run_diff(&self, a: &str, b: &str) -> Result<Diff, ClientError> {
        let path = TargetPath::new("/api/diff").query("a", Some(a)).query("b", Some(b));
        self.get_long(path.as_str()).await
    }

    // --- the inbox

    /// Returns items, newest first.
    pub async fn inbox_list(&self, query: &InboxListQuery) -> Result<Page<InboxItem>, ClientError> {
        let path = TargetPath::new("/api/inbox")
            .query("limit", query.limit)
            .query("cursor", query.cursor.as_ref())
            .query("state", query.state.as_ref())
            .query("kind", query.kind)
            .query("run_id", query.run_id.as_ref())
            .query("group", query.group.as_ref());
        self.page(path).await
    }

    pub async fn inbox_fetch(&self, item: &str) -> Result<InboxItem, ClientError> {
        self.get(inbox_path(item)?.as_str()).await
    }

    /// Answers an item. The first answer counts; a second one fails with a conflict that names the
    /// first.
    pub async fn inbox_answer(
        &self,
        item: &str,
        answer: &InboxAnswer,
    ) -> Result<InboxItem, ClientError> {
        self.post(inbox_path(item)?.then("/answer").as_str(), answer).await
    }

    /// Answers several items. The result for each is in the answer and is not an error.
    pub async fn inbox_answer_all(
        &self,
        batch: &InboxBatch,
    ) -> Result<InboxBatchDone, ClientError> {
        self.post("/api/inbox/answer", batch).await
    }

    /// Returns groups of open items that are alike, largest group first.
    pub async fn inbox_groups(&self) -> Result<Vec<InboxGroup>, ClientError> {
        self.get("/api/inbox/groups").await
    }

    /// Returns proposed rules for actions that were approved often.
    pub async fn inbox_proposals(&self) -> Result<Vec<InboxProposal>, ClientError> {
        self.get("/api/inbox/proposals").await
    }

    /// Streams the changes of the inbox: first the open items, or the changes after the position
    /// `after`. Reconnects automatically, up to `max_resumes` times in a row.
    pub async fn inbox_watch(
        &self,
        after: Option<String>,
        max_resumes: u32,
    ) -> Result<InboxWatch, ClientError> {
        InboxWatch::open(self.clone(), after, max_resumes).await
    }

    // --- memory

    pub async fn memory_store(&self, item: &MemoryStore) -> Result<MemoryStored, ClientError> {
        self.post("/api/memory/store", item).await
    }

    /// Returns matches, best first.
    pub async fn memory_search(&self, search: &MemorySearch) -> Result<MemoryFound, ClientError> {
        self.post("/api/memory/search", search).await
    }

    /// Returns items, newest first.
    pub async fn memory_list(
        &self,
        query: &MemoryListQuery,
    ) -> Result<Page<MemoryItem>, ClientError> {
        let path = TargetPath::new("/api/memory")
            .query("limit", query.limit)
            .query("cursor", query.cursor.as_ref())
            .query("collection", query.collection.as_ref());
        self.page(path).await
    }

    pub async fn memory_fetch(&self, item: &str) -> Result<MemoryItem, ClientError> {
        let path = TargetPath::new("/api/memory").segment(filled("the memory item", item)?);
        self.get(path.as_str()).await
    }

    /// Embeds one batch of items. Call again while the answer has `more`.
    pub async fn memory_reembed(
        &self,
        batch: &MemoryReembed,
    ) -> Result<MemoryReembedded, ClientError> {
        self.send(Method::POST, "/api/memory/reembed", batch, None, Patience::Long).await
    }

    pub async fn memory_delete(&self, item: &str) -> Result<Okay, ClientError> {
        let path = TargetPath::new("/api/memory").segment(filled("the memory item", item)?);
        self.act(Method::DELETE, path.as_str()).await
    }

    // --- the server itself

    pub async fn tool_list(&self) -> Result<Vec<Tool>, ClientError> {
        self.get("/api/tools").await
    }

    /// Returns events of all runs and the system, newest first.
    pub async fn event_list(&self, query: &ListQuery) -> Result<Page<Event>, ClientError> {
        self.page(listed(TargetPath::new("/api/events"), query)).await
    }

    /// Streams the whole log: new events, or all events after the one with this global number.
    /// Reconnects automatically, up to `max_resumes` times in a row.
    pub async fn event_watch(
        &self,
        after: Option<u64>,
        max_resumes: u32,
    ) -> Result<LogWatch, ClientError> {
        LogWatch::open(self.clone(), after, max_resumes).await
    }

    /// Returns the state of a provider's key. `provider`: `openai`, `deepseek` or `anthropic`.
    pub async fn provider_key(&self, provider: &str) -> Result<ProviderKeyView, ClientError> {
        self.get(TargetPath::new("/api/settings").segment(&format!("{provider}-key")).as_str())
            .await
    }

    /// Creates a link that signs one browser in to the dashboard, once.
    pub async fn sign_in_link(&self) -> Result<SignInLink, ClientError> {
        self.act(Method::POST, "/api/sign-in/links").await
    }

    pub async fn key_create(&self, key: &KeyCreate) -> Result<KeyCreated, ClientError> {
        self.post("/api/keys", key).await
    }

    pub async fn key_list(&self, query: &ListQuery) -> Result<Page<Key>, ClientError> {
        self.page(listed(TargetPath::new("/api/keys"), query)).await
    }

    pub async fn key_revoke(&self, key: &str) -> Result<Key, ClientError> {
        let path = TargetPath::new("/api/keys").segment(filled("the key", key)?);
        self.act(Method::DELETE, path.as_str()).await
    }

    /// Returns the server's loops.
    pub async fn loop_list(&self) -> Result<Vec<Loop>, ClientError> {
        self.get("/api/loops").await
    }

    /// Pauses a loop. From then on it runs only on request.
    pub async fn loop_pause(&self, name: &str) -> Result<Loop, ClientError> {
        self.act(Method::POST, loop_path(name)?.then("/pause").as_str()).await
    }

    pub async fn loop_resume(&self, name: &str) -> Result<Loop, ClientError> {
        self.act(Method::POST, loop_path(name)?.then("/resume").as_str()).await
    }

    /// Runs one pass of a loop, and returns when it has ended.
    pub async fn loop_run(&self, name: &str) -> Result<Loop, ClientError> {
        let path = loop_path(name)?.then("/run");
        parse(&self.ask(Method::POST, path.as_str(), None, vec![], Patience::Long).await?)
    }

    /// Returns the tool servers (MCP) with their tools.
    pub async fn mcp_list(&self) -> Result<McpServers, ClientError> {
        self.get("/api/settings/mcp/servers").await
    }

    pub async fn mcp_fetch(&self, id: &str) -> Result<McpServer, ClientError> {
        self.get(mcp_path(id)?.as_str()).await
    }

    /// Adds a server, or replaces the one with the same id. Returns after the server has answered
    /// or failed.
    pub async fn mcp_put(&self, server: &McpServerPut) -> Result<McpServers, ClientError> {
        let path = "/api/settings/mcp/servers";
        self.send(Method::POST, path, server, None, Patience::Long).await
    }

    pub async fn mcp_remove(&self, id: &str) -> Result<McpServers, ClientError> {
        self.act(Method::DELETE, mcp_path(id)?.as_str()).await
    }

    /// Approves tools in their present form.
    pub async fn mcp_pin(&self, id: &str, pin: &McpPin) -> Result<McpServer, ClientError> {
        self.post(mcp_path(id)?.then("/pin").as_str(), pin).await
    }

    /// Revokes the approval of a tool.
    pub async fn mcp_unpin(&self, id: &str, tool: &McpUnpin) -> Result<McpServer, ClientError> {
        self.post(mcp_path(id)?.then("/unpin").as_str(), tool).await
    }

    pub async fn audit_verify(&self) -> Result<AuditReport, ClientError> {
        self.get_long("/api/audit/verify").await
    }

    pub async fn backup(&self, backup: &BackupRequest) -> Result<BackupDone, ClientError> {
        self.send(Method::POST, "/api/backup", backup, None, Patience::Long).await
    }

    pub async fn prune(&self, prune: &PruneRequest) -> Result<PruneDone, ClientError> {
        self.send(Method::POST, "/api/prune", prune, None, Patience::Long).await
    }

    // --- lists

    /// Returns the part of a list after `page`; `None` if that was the last one.
    pub async fn page_next<T: DeserializeOwned>(
        &self,
        page: &Page<T>,
    ) -> Result<Option<Page<T>>, ClientError> {
        match &page.next {
            None => Ok(None),
            Some(target) => self.page(TargetPath::new(target)).await.map(Some),
        }
    }

    // --- underneath

    pub(crate) async fn page<T: DeserializeOwned>(
        &self,
        path: TargetPath,
    ) -> Result<Page<T>, ClientError> {
        let answer = self.ask(Method::GET, path.as_str(), None, vec![], Patience::Quick).await?;
        let next = next_of(&answer.headers);
        Ok(Page { items: parse(&answer)?, next })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, ClientError> {
        parse(&self.ask(Method::GET, target, None, vec![], Patience::Quick).await?)
    }

    async fn get_long<T: DeserializeOwned>(&self, target: &str) -> Result<T, ClientError> {
        parse(&self.ask(Method::GET, target, None, vec![], Patience::Long).await?)
    }

    async fn text(&self, target: &str) -> Result<String, ClientError> {
        let answer = self.ask(Method::GET, target, None, vec![], Patience::Quick).await?;
        String::from_utf8(answer.body.into()).map_err(|err| unreadable(answer.attempt, &err))
    }

    /// Sends a request without a body.
    pub(crate) async fn act<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
    ) -> Result<T, ClientError> {
        parse(&self.ask(method, target, None, vec![], Patience::Quick).await?)
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        target: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(Method::POST, target, body, None, Patience::Quick).await
    }

    async fn create<T: DeserializeOwned>(
        &self,
        target: &str,
        body: &impl Serialize,
        idempotency_key: Option<&str>,
    ) -> Result<T, ClientError> {
        let header = idempotency_key.map(|key| (IDEMPOTENCY_KEY, key.to_owned()));
        self.send(Method::POST, target, body, header, Patience::Quick).await
    }

    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: &impl Serialize,
        header: Option<(HeaderName, String)>,
        patience: Patience,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|_| ClientError::Argument {
            what: "the body",
            why: "it cannot be written as JSON",
        })?;
        let headers = header.into_iter().collect();
        parse(&self.ask(method, target, Some(body), headers, patience).await?)
    }

    async fn ask(
        &self,
        method: Method,
        target: &str,
        body: Option<Vec<u8>>,
        headers: Vec<(HeaderName, String)>,
        patience: Patience,
    ) -> Result<Answer, ClientError> {
        let body = body.map(Into::into);
        let call = Call { method, target, headers, body, patience, also_fine: &[] };
        // Boxed: every method above would carry its states, and some callers nest them.
        Box::pin(self.connections.call(call)).await
    }
}

pub(crate) fn parse<T: DeserializeOwned>(answer: &Answer) -> Result<T, ClientError> {
    serde_json::from_slice(&answer.body).map_err(|err| unreadable(answer.attempt.clone(), &err))
}

fn unreadable(attempt: String, why: &dyn std::fmt::Display) -> ClientError {
    ClientError::Unreadable { attempt, why: why.to_string() }
}

/// Checks that a path segment is not empty, since an empty one would name another path.
pub(crate) fn filled<'a>(what: &'static str, text: &'a str) -> Result<&'a str, ClientError> {
    if text.is_empty() { Err(ClientError::Argument { what, why: "it is empty" }) } else { Ok(text) }
}

fn agent_path(agent: &str) -> Result<TargetPath, ClientError> {
    Ok(TargetPath::new("/api/agents").segment(filled("the agent", agent)?))
}

fn runs_path(query: &RunListQuery, view: RunView) -> TargetPath {
    let statuses: Vec<_> = query.status.iter().map(|status| status.as_str()).collect();
    let statuses = statuses.join(",");
    TargetPath::new("/api/runs")
        .query("limit", query.limit)
        .query("cursor", query.cursor.as_ref())
        .query("status", (!query.status.is_empty()).then_some(statuses))
        .query("agent", query.agent.as_ref())
        .query("parent", query.parent.as_ref())
        .query("name", query.name.as_ref())
        .query("selector", query.selector.as_ref())
        .query("owner", query.owner.as_ref())
        .query("view", (view != RunView::Full).then_some(view.as_str()))
}

fn run_path(run: &str) -> Result<TargetPath, ClientError> {
    Ok(TargetPath::new("/api/runs").segment(filled("the run", run)?))
}

fn inbox_path(item: &str) -> Result<TargetPath, ClientError> {
    Ok(TargetPath::new("/api/inbox").segment(filled("the inbox item", item)?))
}

fn loop_path(name: &str) -> Result<TargetPath, ClientError> {
    Ok(TargetPath::new("/api/loops").segment(filled("the loop", name)?))
}

fn mcp_path(id: &str) -> Result<TargetPath, ClientError> {
    Ok(TargetPath::new("/api/settings/mcp/servers").segment(filled("the MCP server", id)?))
}

pub(crate) fn listed(path: TargetPath, query: &ListQuery) -> TargetPath {
    path.query("limit", query.limit).query("cursor", query.cursor.as_ref())
}
