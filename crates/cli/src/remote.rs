//! The server, as commands see it: found, spoken to, its errors turned into exit codes.
//!
//! A command finds its server by `--server`, else OVERMIND_SERVER, else the file that the server
//! of the data directory wrote. The admin token of the data directory is sent only to that very
//! server; any other address needs OVERMIND_TOKEN, so that a mistyped URL gets nothing.

use std::collections::BTreeSet;
use std::path::Path;

use overmind_api::{
    Agent, AgentCreate, AgentPatch, ApiKeyId, AttachMode, AttestationRecord, AuditReport,
    BackupDone, BackupRequest, Diff, Event, ForkRequest, InboxAnswer, InboxBatch, InboxBatchDone,
    InboxItem, InboxKind, InboxListQuery, InboxProposal, Key, KeyCreate, KeyCreated, Leaks,
    ListQuery, MAX_LIMIT, McpPin, McpServerPut, McpUnpin, MemoryId, MemoryItem, MemoryListQuery,
    MemoryMatch, MemoryReembed, MemoryReembedded, MemorySearch, MemoryStore, ProblemKind,
    ProcessUsage, PruneDone, RoomDone, RoomDoneResult, RoomUndo, RoomUndone, RoomWork, Run,
    RunBasic, RunCreate, RunListQuery, RunSend, RunStatus, RunStop, RunUsages, RunsKill,
    RunsKilled, SessionId, Status, TerminalSize, Timeline, Tool, ToolCallRequest, VerifyReport,
};
use overmind_client::{
    Client, ClientError, InboxWatch, LogOptions, LogWatch, Options, Page, Replay, ReplayItem,
    ReplayOptions, RunLog, RunShape, Target, Terminal,
};
use overmind_core::trace::Traceparent;
use overmind_node::app::lock::{Holder, ServerFile, holder, read_server_file};
use overmind_node::config::{DataDir, Env, Secret, env};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::ids;

mod agents;

/// Runs, agents and the like that are looked through for a part of an id.
const MAX_SCANNED: u32 = 10_000;
/// The number of runs whose names are searched for a suggestion.
const NEWEST: u32 = 200;

/// A connection to one server; opened by the first call.
#[derive(Clone, Debug)]
pub struct Remote {
    client: Client,
    /// The run whose own token is shown.
    own: Option<String>,
}

/// The name that a run uses for itself.
const ITSELF: &str = "me";
/// The prefix of a run's own token.
const OWN_TOKEN: &str = "ovs_";

/// One item of a timeline.
#[derive(Debug)]
pub enum Item {
    Entry {
        /// The position to resume.
        id: Option<String>,
        entry: Box<Timeline>,
    },
    /// The run has ended.
    Done,
}

/// A live timeline. It ends when the connection breaks; the caller decides how to continue.
#[derive(Debug)]
pub struct Items(Replay);

impl Items {
    /// The next item; `None` at the end of what is recorded.
    ///
    /// # Errors
    ///
    /// [`Exit::Unreachable`] when the connection broke.
    pub async fn next(&mut self) -> Result<Option<Item>, Failure> {
        match self.0.next().await {
            None => Ok(None),
            Some(Ok(ReplayItem::Entry { id, entry, .. })) => {
                let id = (!id.is_empty()).then_some(id);
                Ok(Some(Item::Entry { id, entry }))
            }
            Some(Ok(ReplayItem::Done(_))) => Ok(Some(Item::Done)),
            Some(Err(err)) => Err(err.into()),
        }
    }
}

impl Remote {
    /// The server that the flags, the environment or the data directory name.
    ///
    /// # Errors
    ///
    /// [`Exit::Unreachable`] when no server runs there, [`Exit::Denied`] without a token for it.
    pub fn connect(cx: &Context) -> Result<Self, Failure> {
        let named = cx.global.server.as_deref().or_else(|| cx.env.text(env::SERVER));
        match named {
            Some(named) => Self::named(cx, named),
            None => Self::of_data(cx),
        }
    }

    fn named(cx: &Context, named: &str) -> Result<Self, Failure> {
        let target: Target = named
            .parse()
            .map_err(|err: overmind_client::TargetError| Failure::usage(err.to_string()))?;
        let token = match cx.env.text(env::TOKEN) {
            Some(token) => Secret::new(token),
            None => own_token(cx, &target)?.ok_or_else(|| {
                Failure::new(Exit::Denied, format!("there is no token for {target}")).hint(
                    "create a key there with `overmind key create`, and set OVERMIND_TOKEN to it",
                )
            })?,
        };
        Self::open(cx, target, &token)
    }

    fn of_data(cx: &Context) -> Result<Self, Failure> {
        let data = cx.data()?;
        // The file alone is enough: a dead server is found out by the connection it refuses.
        let Some(file) = read_server_file(&data) else {
            return Err(no_server(&data));
        };
        let target = target_of(&file)
            .ok_or_else(|| Failure::failed("the server does not report where it listens"))?;
        let token = match cx.env.text(env::TOKEN) {
            Some(token) => Secret::new(token),
            None => data.existing_admin_token()?.ok_or_else(|| {
                Failure::new(
                    Exit::Denied,
                    format!("{} is not there", data.admin_token_file().display()),
                )
                .hint(
                    "the server creates it when it starts; set OVERMIND_TOKEN to use a key \
                    instead",
                )
            })?,
        };
        Self::open(cx, target, &token)
    }

    /// A server that this program has started itself.
    ///
    /// # Errors
    ///
    /// When its token cannot be read.
    pub fn to_server(server: &ServerFile, data: &Path) -> Result<Self, Failure> {
        let target = target_of(server)
            .ok_or_else(|| Failure::failed("the server does not report where it listens"))?;
        let data = DataDir::locate(Some(data), &Env::default(), Path::new("/"))?;
        let token = data
            .existing_admin_token()?
            .ok_or_else(|| Failure::new(Exit::Denied, "the server has no admin token"))?;
        Ok(Self { client: Client::connect(target, Some(token.expose()))?, own: None })
    }

    fn open(cx: &Context, target: Target, token: &Secret) -> Result<Self, Failure> {
        cx.out.detail(&format!("talking to {target}"));
        // An invalid trace context is ignored, as the recommendation requires.
        let span = cx.env.text(env::TRACEPARENT).and_then(Traceparent::parse);
        let options = Options {
            ca_file: cx.env.path(env::CA_FILE),
            traceparent: span.map(|span| span.to_string()),
            colony: cx.colony().map(str::to_owned),
            ..Options::default()
        };
        let own = cx.env.text(env::SESSION_ID).filter(|_| token.expose().starts_with(OWN_TOKEN));
        let own = own.map(str::to_owned);
        Ok(Self { client: Client::with_options(target, Some(token.expose()), options)?, own })
    }

    /// Whether it is on this machine for certain: it was reached by its socket.
    pub fn is_here(&self) -> bool {
        matches!(self.client.target(), Target::Unix(_))
    }

    /// The run that this program is of, where it speaks with that run's own token.
    pub fn own(&self) -> Option<&str> {
        self.own.as_deref()
    }

    /// The address of the server, for people.
    pub fn place(&self) -> String {
        self.client.target().to_string()
    }

    /// The state of the server.
    ///
    /// # Errors
    ///
    /// All methods return the error of the server, or of the connection to it.
    pub async fn status(&self) -> Result<Status, Failure> {
        Ok(self.client.status().await?)
    }

    pub async fn agent_create(&self, agent: &AgentCreate) -> Result<Agent, Failure> {
        Ok(self.client.agent_create(agent, None).await?)
    }

    pub async fn run_stop(&self, id: &str, stop: RunStop) -> Result<Run, Failure> {
        Ok(self.client.run_stop(id, stop).await?)
    }

    pub async fn run_kill_all(&self, kill: &RunsKill) -> Result<RunsKilled, Failure> {
        Ok(self.client.run_kill_all(kill).await?)
    }

    pub async fn run_work(&self, id: &str) -> Result<RoomWork, Failure> {
        Ok(self.client.run_work(id).await?)
    }

    pub async fn run_done(&self, id: &str, done: &RoomDone) -> Result<RoomDoneResult, Failure> {
        Ok(self.client.run_done(id, done).await?)
    }

    pub async fn run_remove(&self, id: &str, discard: bool) -> Result<PruneDone, Failure> {
        Ok(self.client.run_remove(id, discard).await?)
    }

    pub async fn run_undo(&self, id: &str, undo: &RoomUndo) -> Result<RoomUndone, Failure> {
        Ok(self.client.run_undo(id, undo).await?)
    }

    /// The client, for live output.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub async fn room_leaks(&self) -> Result<Leaks, Failure> {
        Ok(self.client.room_leaks().await?)
    }

    pub async fn room_fix(&self) -> Result<Leaks, Failure> {
        Ok(self.client.room_fix().await?)
    }

    pub async fn run_send(&self, id: &str, send: &RunSend) -> Result<Run, Failure> {
        Ok(self.client.run_send(id, send).await?)
    }

    pub async fn run_attach(
        &self,
        id: &str,
        mode: AttachMode,
        size: Option<TerminalSize>,
    ) -> Result<Terminal, Failure> {
        Ok(self.client.run_attach(id, mode, size).await?)
    }

    /// The resource use of the processes of all runs.
    pub async fn usages(&self) -> Result<RunUsages, Failure> {
        Ok(self.client.run_usages().await?)
    }

    /// The resource use of a run's processes; `None` while it has none.
    pub async fn usage(&self, id: &str) -> Result<Option<ProcessUsage>, Failure> {
        match self.client.run_usage(id).await.map_err(Failure::from) {
            Ok(usage) => Ok(Some(usage)),
            Err(failure) if failure.exit == Exit::Conflict => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    pub async fn run_log(&self, id: &str, options: &LogOptions) -> Result<RunLog, Failure> {
        Ok(self.client.run_log(id, options).await?)
    }

    /// At most `limit`, newest first.
    pub async fn agents(&self, limit: u32) -> Result<Vec<Agent>, Failure> {
        let first = self.client.agent_list(&first(limit)).await?;
        self.rest(first, limit).await
    }

    pub async fn agent_patch(
        &self,
        agent: &Agent,
        patch: &AgentPatch,
        if_version: Option<u32>,
    ) -> Result<Agent, Failure> {
        Ok(self.client.agent_patch(&agent.id.to_string(), patch, if_version).await?)
    }

    pub async fn agent_disable(&self, agent: &Agent) -> Result<Agent, Failure> {
        Ok(self.client.agent_disable(&agent.id.to_string()).await?)
    }

    pub async fn agent_remove(&self, agent: &Agent) -> Result<Agent, Failure> {
        Ok(self.client.agent_remove(&agent.id.to_string()).await?)
    }

    pub async fn agent_versions(&self, agent: &Agent) -> Result<Vec<Agent>, Failure> {
        let first = self.client.agent_versions(&agent.id.to_string(), &first(MAX_SCANNED)).await?;
        self.rest(first, MAX_SCANNED).await
    }

    pub async fn run_create(&self, run: &RunCreate, key: Option<&str>) -> Result<Run, Failure> {
        Ok(self.client.run_create(run, key).await?)
    }

    /// At most `limit`, newest first.
    pub async fn runs<R: RunShape>(
        &self,
        status: &[RunStatus],
        agent: Option<&str>,
        limit: u32,
    ) -> Result<Vec<R>, Failure> {
        let (status, agent) = (status.to_vec(), agent.map(str::to_owned));
        self.runs_of(RunListQuery { status, agent, ..RunListQuery::default() }, limit).await
    }

    /// The results of a query, at most `limit`, newest first.
    pub async fn runs_of<R: RunShape>(
        &self,
        query: RunListQuery,
        limit: u32,
    ) -> Result<Vec<R>, Failure> {
        let query = RunListQuery { limit: Some(limit.min(MAX_LIMIT)), ..query };
        let first = self.client.run_list_as(&query).await?;
        self.rest(first, limit).await
    }

    /// Hands over what a query finds page by page, newest first, and whether pages follow, until `take`
    /// wants no more. `limit`: no page needs more runs than this.
    ///
    /// # Errors
    ///
    /// Returns an error if a page cannot be fetched; otherwise the value of `take`.
    pub async fn runs_by_page<R: RunShape>(
        &self,
        query: RunListQuery,
        limit: u32,
        take: &mut dyn FnMut(Vec<R>, bool) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let query = RunListQuery { limit: Some(limit.min(MAX_LIMIT)), ..query };
        let mut page = self.client.run_list_as(&query).await?;
        while take(std::mem::take(&mut page.items), page.next.is_some())? {
            let Some(next) = self.client.page_next(&page).await? else { break };
            page = next;
        }
        Ok(())
    }

    pub async fn run(&self, id: &str) -> Result<Run, Failure> {
        Ok(self.client.run_fetch(id).await?)
    }

    /// The measured sandbox of the run's commands; `of`: that of a program of its environment.
    pub async fn run_attestation(
        &self,
        id: &str,
        of: Option<&str>,
    ) -> Result<AttestationRecord, Failure> {
        Ok(self.client.run_attestation(id, of).await?)
    }

    /// The id of a run by its id, name or unique part; inside a run, `me` is the run itself.
    pub async fn find_run(&self, given: &str) -> Result<String, Failure> {
        self.run_meant(given, true).await
    }

    /// Like [`Remote::find_run`], for commands that end a run or discard its work: only whole names
    /// count.
    pub async fn find_run_exactly(&self, given: &str) -> Result<String, Failure> {
        self.run_meant(given, false).await
    }

    async fn run_meant(&self, given: &str, beginnings: bool) -> Result<String, Failure> {
        if given.parse::<SessionId>().is_ok() {
            return Ok(given.to_owned());
        }
        if given.is_empty() {
            return Err(ids::none("run", given, "overmind ps --all"));
        }
        if let Some(own) = self.own.as_ref().filter(|_| given == ITSELF) {
            return Ok(own.clone());
        }
        // The newest of that name: of those that have not ended there is one at most.
        if let Some(run) = self.runs_named(given, 1).await?.first() {
            return Ok(run.id.to_string());
        }
        let mut found: Vec<String> = Vec::new();
        if ids::plausible(given, SessionId::PREFIX) {
            let runs: Vec<RunBasic> = self.runs(&[], None, MAX_SCANNED).await?;
            let all = runs.iter().map(|run| run.id.to_string());
            found.extend(all.filter(|id| ids::matches(given, id)));
        }
        if found.is_empty() && given.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let runs = self.runs_named(&format!("{given}*"), 100).await?;
            let (open, over): (Vec<_>, Vec<_>) =
                runs.iter().partition(|run| !crate::session::ended(run.status));
            // An unfinished run has precedence over an ended one.
            let meant = if open.is_empty() { over } else { open };
            let names: BTreeSet<&str> = meant.iter().map(|run| run.name.as_str()).collect();
            if let Some(first) = names.first().filter(|_| !beginnings) {
                let message = format!("there is no run `{given}`");
                let hint = format!(
                    "commands that end a run need its whole name: did you mean \
                    `{first}`?"
                );
                return Err(Failure::new(Exit::NotFound, message).hint(hint));
            }
            if names.len() > 1 {
                let names = names.into_iter().map(str::to_owned).collect();
                return ids::only("run", given, names, "overmind ps --all");
            }
            found.extend(meant.first().map(|run| run.id.to_string()));
        }
        if found.is_empty() {
            let newest: Vec<RunBasic> = self.runs(&[], None, NEWEST).await?;
            let names = newest.iter().map(|run| run.name.as_str());
            return Err(ids::none_but("run", given, names, "overmind ps --all"));
        }
        ids::only("run", given, found, "overmind ps --all")
    }

    /// Whether a run has this very name.
    pub async fn is_name_of_run(&self, given: &str) -> Result<bool, Failure> {
        let a_name = overmind_core::name::check(given).is_ok();
        Ok(a_name && !self.runs_named(given, 1).await?.is_empty())
    }

    /// Runs of this name, newest first; with a `*` at its end of names that begin so.
    async fn runs_named(&self, name: &str, limit: u32) -> Result<Vec<RunBasic>, Failure> {
        let query = RunListQuery { name: Some(name.to_owned()), ..RunListQuery::default() };
        self.runs_of(query, limit).await
    }

    /// The runs that were started for `parent`, newest first.
    pub async fn runs_below<R: RunShape>(
        &self,
        parent: &str,
        limit: u32,
    ) -> Result<Vec<R>, Failure> {
        let query = RunListQuery { parent: Some(parent.to_owned()), ..RunListQuery::default() };
        self.runs_of(query, limit).await
    }

    /// Tool servers, by id.
    pub async fn mcp_list(&self) -> Result<Vec<Value>, Failure> {
        Ok(self.client.mcp_list().await?.servers)
    }

    pub async fn mcp_fetch(&self, id: &str) -> Result<Value, Failure> {
        Ok(self.client.mcp_fetch(id).await?.server)
    }

    pub async fn mcp_put(&self, server: &McpServerPut) -> Result<Vec<Value>, Failure> {
        Ok(self.client.mcp_put(server).await?.servers)
    }

    pub async fn mcp_remove(&self, id: &str) -> Result<(), Failure> {
        self.client.mcp_remove(id).await?;
        Ok(())
    }

    pub async fn mcp_pin(&self, id: &str, pin: &McpPin) -> Result<Value, Failure> {
        Ok(self.client.mcp_pin(id, pin).await?.server)
    }

    pub async fn mcp_unpin(&self, id: &str, tool: &McpUnpin) -> Result<Value, Failure> {
        Ok(self.client.mcp_unpin(id, tool).await?.server)
    }

    pub async fn secrets(&self) -> Result<Vec<overmind_api::SecretInfo>, Failure> {
        let all = self.client.secret_list(&first(MAX_LIMIT)).await?;
        self.rest(all, u32::MAX).await
    }

    /// Whether the server has a key of a provider: `anthropic`, `openai` or `deepseek`. For admins.
    pub async fn has_key(&self, provider: &str) -> Result<bool, Failure> {
        Ok(self.client.provider_key(provider).await?.configured)
    }

    pub async fn services(&self) -> Result<Vec<overmind_api::ServiceInfo>, Failure> {
        let all = self.client.service_list(&first(MAX_LIMIT)).await?;
        self.rest(all, u32::MAX).await
    }

    pub async fn grants(&self) -> Result<Vec<overmind_api::GrantInfo>, Failure> {
        let all = self.client.grant_list(&first(MAX_LIMIT)).await?;
        self.rest(all, u32::MAX).await
    }

    pub async fn run_cancel(&self, id: &str, cascade: bool) -> Result<Run, Failure> {
        Ok(match cascade {
            true => self.client.run_cancel_all(id).await?,
            false => self.client.run_cancel(id).await?,
        })
    }

    pub async fn run_input(&self, id: &str, message: &str) -> Result<Run, Failure> {
        Ok(self.client.run_input(id, message).await?)
    }

    /// The items that wait for a person, or with `all` all items: at most `limit`, newest first.
    pub async fn inbox(
        &self,
        all: bool,
        kind: Option<InboxKind>,
        group: Option<&str>,
        limit: u32,
    ) -> Result<Vec<InboxItem>, Failure> {
        let query = InboxListQuery {
            limit: Some(limit.min(MAX_LIMIT)),
            state: all.then(|| "all".to_owned()),
            kind,
            group: group.map(str::to_owned),
            ..InboxListQuery::default()
        };
        let first = self.client.inbox_list(&query).await?;
        self.rest(first, limit).await
    }

    pub async fn inbox_fetch(&self, item: &str) -> Result<InboxItem, Failure> {
        Ok(self.client.inbox_fetch(item).await?)
    }

    pub async fn inbox_answer(
        &self,
        item: &str,
        answer: &InboxAnswer,
    ) -> Result<InboxItem, Failure> {
        Ok(self.client.inbox_answer(item, answer).await?)
    }

    pub async fn inbox_answer_all(&self, batch: &InboxBatch) -> Result<InboxBatchDone, Failure> {
        Ok(self.client.inbox_answer_all(batch).await?)
    }

    pub async fn inbox_proposals(&self) -> Result<Vec<InboxProposal>, Failure> {
        Ok(self.client.inbox_proposals().await?)
    }

    /// The inbox as it changes, from what is open now on.
    pub async fn inbox_watch(&self) -> Result<InboxWatch, Failure> {
        Ok(self.client.inbox_watch(None, 10).await?)
    }

    pub async fn run_fork(&self, id: &str, fork: &ForkRequest) -> Result<Run, Failure> {
        Ok(self.client.run_fork(id, fork).await?)
    }

    pub async fn diff(&self, a: &str, b: &str) -> Result<Diff, Failure> {
        Ok(self.client.run_diff(a, b).await?)
    }

    pub async fn verify(&self, id: &str) -> Result<VerifyReport, Failure> {
        Ok(self.client.run_verify(id).await?)
    }

    /// A run's timeline after `after`, to its end if `follow`.
    pub async fn replay(
        &self,
        id: &str,
        follow: bool,
        after: Option<&str>,
    ) -> Result<Items, Failure> {
        // The caller resumes: it informs the person that the server is away.
        let options = ReplayOptions { follow, after: after.map(str::to_owned), max_resumes: 0 };
        Ok(Items(self.client.run_replay(id, options).await?))
    }

    /// A run's events, oldest first.
    pub async fn run_events(&self, id: &str, limit: u32) -> Result<Vec<Event>, Failure> {
        let first = self.client.run_events(id, &first(limit)).await?;
        self.rest(first, limit).await
    }

    /// Events of all streams, newest first.
    pub async fn events(&self, limit: u32) -> Result<Vec<Event>, Failure> {
        let first = self.client.event_list(&first(limit)).await?;
        self.rest(first, limit).await
    }

    /// Events of all streams as they come: from now on, or after a number.
    pub async fn watch_events(&self, after: Option<u64>) -> Result<LogWatch, Failure> {
        // Resuming is the caller's business here, too.
        Ok(self.client.event_watch(after, 0).await?)
    }

    pub async fn tools(&self) -> Result<Vec<Tool>, Failure> {
        Ok(self.client.tool_list().await?)
    }

    pub async fn tool_call(&self, id: &str, call: &ToolCallRequest) -> Result<Value, Failure> {
        Ok(self.client.run_tool_call(id, call).await?)
    }

    pub async fn memory_store(&self, item: &MemoryStore) -> Result<MemoryItem, Failure> {
        Ok(self.client.memory_store(item).await?.item)
    }

    pub async fn memory_search(&self, search: &MemorySearch) -> Result<Vec<MemoryMatch>, Failure> {
        Ok(self.client.memory_search(search).await?.results)
    }

    pub async fn memories(
        &self,
        collection: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MemoryItem>, Failure> {
        let query = MemoryListQuery {
            limit: Some(limit.min(MAX_LIMIT)),
            collection: collection.map(str::to_owned),
            cursor: None,
        };
        let first = self.client.memory_list(&query).await?;
        self.rest(first, limit).await
    }

    pub async fn find_memory(&self, given: &str) -> Result<String, Failure> {
        if given.parse::<MemoryId>().is_ok() {
            return Ok(given.to_owned());
        }
        let items = if ids::plausible(given, MemoryId::PREFIX) {
            self.memories(None, MAX_SCANNED).await?
        } else {
            Vec::new()
        };
        let found = items.iter().map(|item| item.id.to_string());
        let found = found.filter(|id| ids::matches(given, id)).collect();
        ids::only("memory item", given, found, "overmind memory list")
    }

    pub async fn memory_fetch(&self, id: &str) -> Result<MemoryItem, Failure> {
        Ok(self.client.memory_fetch(id).await?)
    }

    pub async fn memory_reembed(&self) -> Result<MemoryReembedded, Failure> {
        Ok(self.client.memory_reembed(&MemoryReembed { limit: 100 }).await?)
    }

    pub async fn memory_delete(&self, id: &str) -> Result<(), Failure> {
        self.client.memory_delete(id).await?;
        Ok(())
    }

    pub async fn key_create(&self, key: &KeyCreate) -> Result<KeyCreated, Failure> {
        Ok(self.client.key_create(key).await?)
    }

    pub async fn keys(&self, limit: u32) -> Result<Vec<Key>, Failure> {
        let first = self.client.key_list(&first(limit)).await?;
        self.rest(first, limit).await
    }

    /// The id of a key that is not revoked, by its name, its id or a unique part of it.
    pub async fn find_key(&self, given: &str) -> Result<String, Failure> {
        if given.parse::<ApiKeyId>().is_ok() {
            return Ok(given.to_owned());
        }
        let keys = self.keys(MAX_SCANNED).await?;
        let named = keys.iter().find(|key| key.name == given && key.revoked_at.is_none());
        if let Some(key) = named {
            return Ok(key.id.to_string());
        }
        let found = keys.iter().map(|key| key.id.to_string());
        let plausible = ids::plausible(given, ApiKeyId::PREFIX);
        let found = found.filter(|id| plausible && ids::matches(given, id)).collect();
        ids::only("key", given, found, "overmind key list")
    }

    pub async fn key_revoke(&self, id: &str) -> Result<Key, Failure> {
        Ok(self.client.key_revoke(id).await?)
    }

    pub async fn audit(&self) -> Result<AuditReport, Failure> {
        Ok(self.client.audit_verify().await?)
    }

    pub async fn backup(&self, path: &str) -> Result<BackupDone, Failure> {
        Ok(self.client.backup(&BackupRequest { path: path.to_owned() }).await?)
    }

    /// Goes on with a list until it has `limit` items or ends.
    async fn rest<T: DeserializeOwned>(
        &self,
        mut page: Page<T>,
        limit: u32,
    ) -> Result<Vec<T>, Failure> {
        let limit = limit as usize;
        let mut items = std::mem::take(&mut page.items);
        while items.len() < limit {
            let Some(mut next) = self.client.page_next(&page).await? else { break };
            items.append(&mut next.items);
            page = next;
        }
        items.truncate(limit);
        Ok(items)
    }
}

fn first(limit: u32) -> ListQuery {
    ListQuery { limit: Some(limit.min(MAX_LIMIT)), cursor: None }
}

/// The address of a server: its socket if it has one, because no other user can listen there.
fn target_of(file: &ServerFile) -> Option<Target> {
    match (&file.socket, &file.url) {
        (Some(path), _) => Some(Target::Unix(path.clone())),
        (None, Some(url)) => url.parse().ok(),
        (None, None) => None,
    }
}

/// The data directory's own token, if `target` is the server of the data directory.
fn own_token(cx: &Context, target: &Target) -> Result<Option<Secret>, Failure> {
    let Ok(data) = cx.data() else { return Ok(None) };
    let Some(file) = read_server_file(&data) else { return Ok(None) };
    let url = file.url.as_deref().and_then(|url| url.parse::<Target>().ok());
    let own =
        file.socket.map(Target::Unix).as_ref() == Some(target) || url.as_ref() == Some(target);
    if own { Ok(data.existing_admin_token()?) } else { Ok(None) }
}

fn no_server(data: &DataDir) -> Failure {
    let place = data.path().display();
    let (message, hint) = match holder(data) {
        Holder::Server { pid, .. } => (
            format!("the server on {place} (pid {pid}) is only just starting"),
            "try again in a moment",
        ),
        Holder::Dead { pid } => (
            format!("no server runs on {place}: the last one (pid {pid}) was killed"),
            "`overmind up -d` starts it again; nothing that it acknowledged is lost",
        ),
        Holder::Nobody => (
            format!("no server runs on {place}"),
            "`overmind up -d` starts one; --data or --server name another",
        ),
    };
    Failure::new(Exit::Unreachable, message).hint(hint)
}

impl From<ClientError> for Failure {
    fn from(err: ClientError) -> Self {
        let exit = match &err {
            ClientError::Connect { .. }
            | ClientError::Tls { .. }
            | ClientError::Timeout { .. }
            | ClientError::Broken { .. } => Exit::Unreachable,
            ClientError::Refused(problem) => match problem.known_kind() {
                Some(kind) => exit_of(kind),
                None => Exit::Failed,
            },
            ClientError::Argument { .. } => Exit::Usage,
            ClientError::Foreign { .. } | ClientError::Unreadable { .. } => Exit::Failed,
        };
        Self { exit, message: overmind_node::app::chain(&err), hint: err.hint() }
    }
}

fn exit_of(kind: ProblemKind) -> Exit {
    match kind {
        ProblemKind::NotFound => Exit::NotFound,
        ProblemKind::Conflict | ProblemKind::Stale | ProblemKind::Gone => Exit::Conflict,
        ProblemKind::Unauthenticated | ProblemKind::Forbidden | ProblemKind::Untrusted => {
            Exit::Denied
        }
        ProblemKind::BadRequest | ProblemKind::Invalid | ProblemKind::TooLarge => Exit::Usage,
        ProblemKind::MethodNotAllowed
        | ProblemKind::MediaType
        | ProblemKind::Timeout
        | ProblemKind::Misdirected
        | ProblemKind::RateLimited
        | ProblemKind::Internal
        | ProblemKind::Unavailable
        | ProblemKind::Slow => Exit::Failed,
    }
}
