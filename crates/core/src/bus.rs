//! Messages between Cortex and Hives, and the port that carries them.
//!
//! Cortex and Hive communicate only with these messages, even inside one process, so that they can
//! later be separated without a rewrite. Every message about a session contains its epoch: a Hive
//! refuses work of an older start, and a Cortex refuses its results.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::Fut;
use crate::attest::Attested;
use crate::command::{LifeOrder, LifeWord, StopHow};
use crate::effect::{Effect, EffectResult};
use crate::enclosure::Surroundings;
use crate::ids::{AgentId, ColonyId, EffectId, HiveId, SessionId};
use crate::live::LivePiece;
use crate::model::ModelDelta;
use crate::room::stay::RoomWord;
use crate::sandbox::SandboxLevel;
use crate::session::claims::GivenClaim;
use crate::time::Timestamp;
use crate::tool::ToolOutcome;
use crate::trace::Trail;

/// Increased whenever a message changes its meaning. A receiver refuses unknown versions.
pub const BUS_VERSION: u16 = 1;

#[derive(Clone, Debug)]
pub struct Envelope<Body> {
    pub version: u16,
    pub hive: HiveId,
    pub body: Body,
}

/// The facts that a hive needs to work for a session.
#[derive(Clone, Debug)]
pub struct Assignment {
    pub session: SessionId,
    pub epoch: u32,
    /// The session's name.
    pub name: String,
    pub colony: ColonyId,
    pub agent: AgentId,
    /// The agent's name in grants.
    pub agent_name: String,
    pub tools_allowed: Arc<[String]>,
    pub sandbox: SandboxLevel,
    /// The directory in which its tools work: its environment's, or its workspace.
    pub workspace: PathBuf,
    /// Its environment, if it has a worktree of its own: variables for its commands, and what they
    /// see.
    pub room: Option<Arc<Surroundings>>,
    /// Variables that the session's contexts give its commands.
    pub given: Arc<[(String, String)]>,
    /// Files of the session's contexts: path and contents.
    pub files: Arc<[(String, String)]>,
    /// The session's memory claims.
    pub claims: Arc<[GivenClaim]>,
    /// The trace to which the work belongs.
    pub trail: Option<Trail>,
}

/// A message from the Cortex to a Hive.
#[derive(Clone, Debug)]
pub enum ToHive {
    Assign(Assignment),
    /// Execute this effect. Allowed only between `Assign` and `Release` of the same epoch.
    Perform {
        session: SessionId,
        epoch: u32,
        effect: Effect,
        /// The token with which a command uses the API during its attempt.
        token: Option<String>,
    },
    /// An order to a running attempt of a command.
    Order {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        order: LifeOrder,
    },
    /// End the commands of this session at any epoch, before the log records it. Used when the
    /// store cannot be written, possibly because they fill its disk. The recorded order follows
    /// later.
    EndUnrecorded {
        session: SessionId,
        how: StopHow,
        reason: String,
    },
    /// The end of this attempt was recorded, so its supervisor process may remove it.
    Recorded {
        session: SessionId,
        life: u32,
    },
    /// Sent once, before anything else: the attempts that are still needed, as (session, attempt),
    /// and the sessions whose environments are. Everything else from an earlier process is ended.
    Keep {
        lives: Vec<(SessionId, u32)>,
        rooms: Vec<SessionId>,
    },
    /// Stop this effect and kill its processes. No report follows.
    Abort {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
    },
    /// The session has left this hive: abort its remaining effects and forget it.
    Release {
        session: SessionId,
        epoch: u32,
        /// Whether it has ended, so that its tools can also remove what they keep for it.
        over: bool,
        /// Whether its provider's conversation can continue after the end, from files in its home
        /// directory.
        resumable: bool,
    },
    /// Call a tool in a session's name, requested through the API and not by the session.
    CallTool {
        call: EffectId,
        assignment: Assignment,
        name: String,
        args: Value,
    },
}

/// A message from a Hive to the Cortex.
#[derive(Clone, Debug)]
pub enum ToCortex {
    /// The answer to `Assign`; false if this hive knows a newer epoch.
    Acknowledge {
        session: SessionId,
        epoch: u32,
        accepted: bool,
    },
    Report {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        result: EffectResult,
        /// Streamed pieces of a model call that no [`ToCortex::Progress`] has sent yet. They come
        /// with the result, so that both are in one commit.
        streamed: Vec<ModelDelta>,
        /// Pieces of a tool call's live output that no [`ToCortex::Live`] has sent yet.
        live: Vec<LivePiece>,
    },
    /// Pieces of a model's reply while it streams.
    Progress {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        delta: ModelDelta,
    },
    /// Gathered output of a running tool call.
    Live {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        pieces: Vec<LivePiece>,
    },
    /// A report about a running attempt of a command.
    Life {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        word: LifeWord,
    },
    /// A report about an environment that is being created or removed.
    Room {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        word: RoomWord,
    },
    /// The measured isolation of the session's sandbox, sent before the first command runs in it.
    Attested {
        session: SessionId,
        epoch: u32,
        attested: Arc<Attested>,
    },
    /// The measured isolation of the sandbox of a program of the session's environment, sent before
    /// the program starts. It has no epoch, because an environment outlasts epochs.
    RoomAttested {
        session: SessionId,
        of: String,
        attested: Arc<Attested>,
    },
    /// The answer to `CallTool`.
    Called {
        call: EffectId,
        outcome: ToolOutcome,
        latency_ms: u64,
        /// The measured isolation of the sandbox in which it ran.
        attested: Option<Arc<Attested>>,
    },
    Heartbeat {
        at: Timestamp,
        sessions: u32,
        effects: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    #[error("{hive} is not connected")]
    NoHive { hive: HiveId },
    #[error("the bus is closed")]
    Closed,
}

/// The Cortex's end of the bus. A send waits while the receiver's bounded queue is full.
pub trait CortexBus: Send + Sync + fmt::Debug {
    /// # Errors
    ///
    /// [`BusError`]; then the message was not delivered.
    fn send(&self, hive: HiveId, body: ToHive) -> Fut<'_, Result<(), BusError>>;
    /// Returns the next message from any hive; `None` if the bus is closed.
    fn receive(&self) -> Fut<'_, Option<Envelope<ToCortex>>>;
}

/// A Hive's end of the bus.
pub trait HiveBus: Send + Sync + fmt::Debug {
    /// # Errors
    ///
    /// [`BusError`]; then the message was not delivered.
    fn send(&self, body: ToCortex) -> Fut<'_, Result<(), BusError>>;
    /// Returns the next message for this hive; `None` if the bus is closed.
    fn receive(&self) -> Fut<'_, Option<Envelope<ToHive>>>;
}
