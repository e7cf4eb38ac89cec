//! The public contract: every type that crosses the network to users, and nothing else.
//!
//! Rows keep the exact keys of the earlier control planes (`tools_allowed`, `input_json`, …) and
//! add ours; `docs/decisions/` lists them with the reasons. Server and client both use these types,
//! so they cannot drift apart. The OpenAPI document is generated from them.
//!
//! Where to start: [`Run`] and [`Agent`] are the main resources, [`Problem`] describes every error,
//! and a replay streams [`Timeline`] entries.
//!
//! # Rules of the surface
//!
//! * **Requests are strict.** The server refuses unknown keys (so that a typo does not become a
//!   default) and numbers in quotes (`"7"`). `null` means "not given". Each request type checks its
//!   own bounds in `check`, so that client and server agree on them.
//! * **Responses may grow.** Clients must ignore keys that they do not know. Under the same path,
//!   no key is ever removed or changes its type.
//! * Ids are `<prefix>_` and 32 hexadecimal digits; times are RFC 3339 in UTC with microseconds.
//!
//! This crate does no I/O and makes no decisions: the engine decides what is allowed.

mod admin;
mod agent;
mod artifact;
mod attach;
mod budget;
mod command;
mod inbox;
mod kill;
mod loops;
mod mcp;
mod memory;
mod mesh;
mod policy;
mod problem;
mod project;
mod query;
mod raw;
mod resource;
mod room;
mod run;
mod sign_in;
mod timeline;
mod vault;
mod vocabulary;

pub use admin::{
    AuditFinding, AuditReport, BackupDone, BackupRequest, Key, KeyCreate, KeyCreated, Okay,
    PolicyStatus, ProviderKeyView, PruneDone, PruneRequest, Ready, Status, StatusCount,
    StoreStatus, Tool, Version,
};
pub use agent::{Agent, AgentCreate, AgentLimits, AgentPatch};
pub use artifact::{Artifact, ArtifactSaved, MAX_ARTIFACT};
pub use attach::{
    ATTACH_PROTOCOL, ATTACH_TOKEN_PROTOCOL, AttachMode, AttachSaid, AttachWord, MAX_ATTACH_MESSAGE,
    TerminalSize,
};
pub use budget::{
    AgentBudget, Budget, BudgetAmount, BudgetLeft, BudgetPut, Cost, CostsQuery, HaltMode,
    HaltRequest, HaltState, InboxRaise, RunBudget, microusd_of, usd_of,
};
pub use command::{
    Command, CommandKind, CommandLimits, CommandNetwork, Process, ProcessUsage, Provider, Restart,
    RunSend, RunStop, RunUsage, RunUsages,
};
pub use inbox::{
    InboxAnswer, InboxBatch, InboxBatchDone, InboxDecision, InboxGroup, InboxItem, InboxListQuery,
    InboxProposal, InboxResult, InboxSnapshot, MAX_INBOX_BATCH,
};
pub use kill::{MAX_KILL_BATCH, RunKilled, RunsKill, RunsKilled};
pub use loops::{Loop, LoopPass, LoopState};
pub use mcp::{McpPin, McpServer, McpServerPut, McpServers, McpUnpin};
pub use memory::{
    MemoryFound, MemoryItem, MemoryMatch, MemoryReembed, MemoryReembedded, MemorySearch,
    MemoryStore, MemoryStored,
};
pub use mesh::{
    Acl, AclChanged, AclEffective, AclEntry, AclLayer, AgentHistory, AgentMessage,
    BlackboardChange, BlackboardEntry, BlackboardHistory, BlackboardListQuery, BlackboardPutQuery,
    BlackboardRevision, Can, CanQuery, Letter, LetterDone, LetterIds, LetterListQuery,
    LetterReceive, MAX_LETTERS, MAX_WAIT_MS, MeshAgent, MeshAgents, MeshEvent, MessageReceived,
    OnMessage, Permissions, Published, Register, Registered, SpawnDone, SpawnRequest,
    SubscribeQuery, Subscribed, Subscription, Unsubscribed,
};
pub use policy::{
    MAX_EXPLAINED, PolicyAction, PolicyExplain, PolicyExplained, PolicyRule, PolicyTouch,
};
pub use problem::{FieldError, Problem, ProblemKind};
pub use project::{
    ProjectConfirm, ProjectQuery, ProjectRevoked, ProjectTrust, ProjectTrustGiven, path_mistake,
};
pub use query::{
    AttestationQuery, CancelQuery, DiffQuery, ListQuery, MemoryListQuery, RemoveQuery, ReplayQuery,
    RunListQuery,
};
pub use raw::RawJson;
pub use resource::{
    COLONY_HEADER, KindView, Manifest, OwnerReference, RESOURCE_API_VERSION, Resource,
    ResourceApplied, ResourceApply, ResourceDeleteQuery, ResourceDeleted, ResourceGone,
    ResourceListQuery, ResourceMeta, ResourceOwned, ResourceSnapshot, ResourcesApplied, kind_of,
    kind_title, ritual_ticks,
};
pub use room::{
    FileChange, Leak, Leaks, Room, RoomAction, RoomAttested, RoomChanges, RoomDecision, RoomDone,
    RoomDoneResult, RoomEnd, RoomFile, RoomPhase, RoomUndo, RoomUndone, RoomWhen, RoomWish,
    RoomWork, RunsLater,
};
pub use run::{
    ApprovalAnswer, Attestation, AttestationRecord, Diff, DiffRow, Divergence, ForkRequest,
    ForkedFrom, Run, RunBasic, RunCreate, RunInput, Step, ToolCallRequest, Usage, VerifyReport,
};
pub use sign_in::SignInLink;
pub use timeline::{Done, Event, ModelCall, Timeline, TimelineData, ToolCall};
pub use vault::{
    ApiProxyReply, ApiProxyRequest, GrantInfo, GrantPut, SecretImport, SecretInfo, SecretPut,
    SecretRotate, SecretText, ServiceInfo, ServicePut, VaultInfo, VaultPassphrase,
};
pub use vocabulary::{
    AgentStatus, CostBy, EffectClass, InboxKind, InboxState, OnUnknown, Period, Policy, Role,
    RunStatus, RunView, SandboxLevel, StepType, UnknownPrice, Verdict,
};

// The ground's ids and times stand in the rows, so a user of this crate needs no other.
pub use overmind_core::ids::{
    AgentId, ApiKeyId, ApprovalId, CallId, ColonyId, EffectId, HiveId, IdError, InboxId, LetterId,
    LimitId, MemoryId, SessionId, StepId, SubscriptionId,
};
pub use overmind_core::time::{Timestamp, TimestampError};
pub use overmind_core::tool_traits::traits as tool_traits;

/// Items per page when a list's `limit` is not given.
pub const DEFAULT_LIMIT: u32 = 100;
/// The largest `limit` of a list.
pub const MAX_LIMIT: u32 = 1000;
/// Largest `top_k` of a memory search.
pub const MAX_TOP_K: u32 = 50;
