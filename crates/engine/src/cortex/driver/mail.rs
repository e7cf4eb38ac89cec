//! The messages to the driver of a session.

use std::sync::Arc;

use overmind_core::attest::Attested;
use overmind_core::command::{LifeWord, StopHow};
use overmind_core::effect::EffectResult;
use overmind_core::ids::{ApprovalId, EffectId, InboxId};
use overmind_core::live::LivePiece;
use overmind_core::model::ModelDelta;
use overmind_core::room::history::RoomUndone;
use overmind_core::room::stay::{RoomDecision, RoomWord};
use overmind_core::row::SessionRow;
use overmind_core::store::{Commit, StoreError};
use tokio::sync::{mpsc, oneshot};

use crate::error::EngineError;

/// A message to a session.
#[derive(Debug)]
pub(crate) enum Mail {
    /// The session is new: `opening` creates it, and it starts in the same commit.
    Begin {
        opening: Box<Commit>,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    /// Its turn in the queue has come.
    Start,
    /// It was running when the last process ended.
    Recover,
    Report {
        epoch: u32,
        effect: EffectId,
        result: EffectResult,
        /// The last part of the model's stream.
        streamed: Vec<ModelDelta>,
        /// The last part of the tool's live output.
        live: Vec<LivePiece>,
    },
    /// Live output of a tool.
    Live {
        epoch: u32,
        effect: EffectId,
        pieces: Vec<LivePiece>,
    },
    Progress {
        epoch: u32,
        effect: EffectId,
        delta: ModelDelta,
    },
    /// A report about its command's process.
    Life {
        epoch: u32,
        effect: EffectId,
        word: LifeWord,
    },
    /// A report about its environment while that is being made or removed.
    Room {
        epoch: u32,
        effect: EffectId,
        word: RoomWord,
    },
    /// The decision about its environment's work was carried out.
    RoomDone {
        decision: Box<RoomDecision>,
        reply: oneshot::Sender<Result<SessionRow, EngineError>>,
    },
    /// The files of its environment were restored.
    RoomUndone {
        by: String,
        undone: Box<RoomUndone>,
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    /// The attestation of its sandbox.
    Attested {
        epoch: u32,
        attested: Arc<Attested>,
    },
    /// The attestation of the sandbox of a program in its environment.
    RoomAttested {
        of: String,
        attested: Arc<Attested>,
    },
    Order {
        order: Order,
        reply: oneshot::Sender<Result<SessionRow, EngineError>>,
    },
    /// The engine shuts down.
    Drain,
}

/// The queue of a driver. Entries are boxed: a message may be large, and there is one queue for
/// each active session.
pub(crate) type Slot = mpsc::UnboundedSender<Box<Mail>>;

/// The driver's end of the queue. After its drop, waiting callers learn that there is no answer.
pub(crate) type Mailbox = mpsc::UnboundedReceiver<Box<Mail>>;

/// A caller's request to a session.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Cancel {
        by: String,
        reason: Option<String>,
    },
    /// Ends the command of a session that has one.
    Stop {
        how: StopHow,
        by: String,
    },
    /// Ends an idle session; any other is not changed.
    EndRest {
        by: String,
    },
    /// Ends its command at once; cancels a session without a command.
    Kill {
        by: String,
    },
    /// Answers the question `item`; without one, the current question.
    Answer {
        item: Option<InboxId>,
        message: String,
        by: String,
    },
    /// Sends another text to a conversation that is idle, working or ended.
    Tell {
        message: String,
        by: String,
    },
    /// Restores a session that ended with the epoch `ended`.
    Restore {
        ended: u32,
        by: String,
    },
    Decide {
        approval: ApprovalId,
        approve: bool,
        reason: Option<String>,
        by: String,
    },
}

impl Order {
    /// How the session's commands are ended by it, and who requested that.
    pub(crate) fn end(&self) -> Option<(StopHow, String)> {
        match self {
            Self::Stop { how, by } => Some((*how, by.clone())),
            Self::Cancel { by, .. } | Self::Kill { by } => Some((StopHow::Kill, by.clone())),
            // A process that was started meanwhile is not ended.
            Self::EndRest { .. }
            | Self::Answer { .. }
            | Self::Tell { .. }
            | Self::Restore { .. }
            | Self::Decide { .. } => None,
        }
    }
}
