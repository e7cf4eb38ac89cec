//! Messages between Cortex and Hives, and the port that carries them.
//!
//! Cortex and Hive know each other only through these, even inside one process, so that taking
//! them apart is surgery and not a rewrite. Every message about a session carries its epoch: a
//! Hive refuses work of an older start, a Cortex refuses results of one.

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
use crate::time::Timestamp;
use crate::tool::ToolOutcome;
use crate::trace::Trail;

/// Raised whenever a message changes its meaning. A receiver refuses versions it does not know.
pub const BUS_VERSION: u16 = 1;

#[derive(Clone, Debug)]
pub struct Envelope<Body> {
    pub version: u16,
    pub hive: HiveId,
    pub body: Body,
}

/// What a hive must know to work for a session.
#[derive(Clone, Debug)]
pub struct Assignment {
    pub session: SessionId,
    pub epoch: u32,
    /// What people call the session.
    pub name: String,
    pub colony: ColonyId,
    pub agent: AgentId,
    /// What grants know the agent by.
    pub agent_name: String,
    pub tools_allowed: Arc<[String]>,
    pub sandbox: SandboxLevel,
    /// Where its tools work: in its room, or in what it was started for.
    pub workspace: PathBuf,
    /// Its room, if it has a worktree of its own: variables for its commands, and what they see.
    pub room: Option<Arc<Surroundings>>,
    /// Variables that the session's contexts give its commands.
    pub given: Arc<[(String, String)]>,
    /// Files that they give: path and contents.
    pub files: Arc<[(String, String)]>,
    /// The trace that the work belongs to.
    pub trail: Option<Trail>,
}

/// From the Cortex to a Hive.
#[derive(Clone, Debug)]
pub enum ToHive {
    Assign(Assignment),
    /// Do this. Allowed only between `Assign` and `Release` of the same epoch.
    Perform {
        session: SessionId,
        epoch: u32,
        effect: Effect,
        /// What a command speaks to the API with, for as long as its life goes on.
        token: Option<String>,
    },
    /// Something is wanted of a command's life that is under way.
    Order {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        order: LifeOrder,
    },
    /// End the commands of this session, of whatever epoch, before it stands in the log: the store
    /// cannot be written, and what fills its disk may be them. The order of the log follows.
    EndUnrecorded {
        session: SessionId,
        how: StopHow,
        reason: String,
    },
    /// The end of this life stands in the log: whatever keeps it may forget it.
    Recorded {
        session: SessionId,
        life: u32,
    },
    /// Said once, before anything else: the lives that are still wanted, as (session, life), and
    /// the sessions whose rooms are. Whatever else an earlier process left is ended.
    Keep {
        lives: Vec<(SessionId, u32)>,
        rooms: Vec<SessionId>,
    },
    /// Stop this effect and kill what it started. No report follows.
    Abort {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
    },
    /// The session is not here any more: abort what is left and forget it.
    Release {
        session: SessionId,
        epoch: u32,
        /// It has ended: what its tools keep for it can go as well.
        over: bool,
        /// Its provider's conversation can go on after the end, with what is in its home.
        resumable: bool,
    },
    /// Call a tool in a session's name, asked for through the API and not by the session.
    CallTool {
        call: EffectId,
        assignment: Assignment,
        name: String,
        args: Value,
    },
}

/// From a Hive to the Cortex.
#[derive(Clone, Debug)]
pub enum ToCortex {
    /// The answer to `Assign`: false when a newer epoch is known here.
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
        /// What a model call streamed and no [`ToCortex::Progress`] has carried yet. It comes
        /// with the result so that both are one commit.
        streamed: Vec<ModelDelta>,
        /// The same of a tool call that [`ToCortex::Live`] was sent for.
        live: Vec<LivePiece>,
    },
    /// Pieces of a model's reply while it streams.
    Progress {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        delta: ModelDelta,
    },
    /// What a tool call says while it is under way, gathered.
    Live {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        pieces: Vec<LivePiece>,
    },
    /// What is to be said of a command's life while it goes on.
    Life {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        word: LifeWord,
    },
    /// What is to be said of a room while it is made or given back.
    Room {
        session: SessionId,
        epoch: u32,
        effect: EffectId,
        word: RoomWord,
    },
    /// What the session's sandbox was measured to give; said before the first command runs in it.
    Attested {
        session: SessionId,
        epoch: u32,
        attested: Arc<Attested>,
    },
    /// What the sandbox of a program of the session's room was measured to give; said before the
    /// program begins. A room is no epoch's.
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
        /// What the sandbox that it ran in was measured to give.
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

/// The Cortex's end of the bus. Sends wait while the receiver's bounded queue is full.
pub trait CortexBus: Send + Sync + fmt::Debug {
    /// # Errors
    ///
    /// [`BusError`]; the message was not delivered then.
    fn send(&self, hive: HiveId, body: ToHive) -> Fut<'_, Result<(), BusError>>;
    /// The next message from any hive; `None` when the bus is closed.
    fn receive(&self) -> Fut<'_, Option<Envelope<ToCortex>>>;
}

/// A Hive's end of the bus.
pub trait HiveBus: Send + Sync + fmt::Debug {
    /// # Errors
    ///
    /// [`BusError`]; the message was not delivered then.
    fn send(&self, body: ToCortex) -> Fut<'_, Result<(), BusError>>;
    /// The next message for this hive; `None` when the bus is closed.
    fn receive(&self) -> Fut<'_, Option<Envelope<ToHive>>>;
}
