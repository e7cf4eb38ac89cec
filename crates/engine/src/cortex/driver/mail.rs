//! What reaches the driver of a session.

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

/// What reaches a session.
#[derive(Debug)]
pub(crate) enum Mail {
    /// It is new: `opening` makes it, and it begins in the same commit.
    Begin {
        opening: Box<Commit>,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    /// Its turn in the queue has come.
    Start,
    /// It ran when the last process ended.
    Recover,
    Report {
        epoch: u32,
        effect: EffectId,
        result: EffectResult,
        /// The end of what the model streamed.
        streamed: Vec<ModelDelta>,
        /// The end of what a tool said.
        live: Vec<LivePiece>,
    },
    /// What a tool says while it runs.
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
    /// What is said of its command's life.
    Life {
        epoch: u32,
        effect: EffectId,
        word: LifeWord,
    },
    /// What is said of its room while it is made or given back.
    Room {
        epoch: u32,
        effect: EffectId,
        word: RoomWord,
    },
    /// What was decided over the work of its room, and done.
    RoomDone {
        decision: Box<RoomDecision>,
        reply: oneshot::Sender<Result<SessionRow, EngineError>>,
    },
    /// The files of its room were brought back.
    RoomUndone {
        by: String,
        undone: Box<RoomUndone>,
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    /// What its sandbox was measured to give.
    Attested {
        epoch: u32,
        attested: Arc<Attested>,
    },
    /// What the sandbox of a program of its room was measured to give.
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

/// Where mail for a driver is put. Boxed: a letter may be large, and there is one queue for each
/// session that moves.
pub(crate) type Slot = mpsc::UnboundedSender<Box<Mail>>;

/// The driver's end. Dropped, whoever waits for an answer is told that there is none.
pub(crate) type Mailbox = mpsc::UnboundedReceiver<Box<Mail>>;

/// What a caller asks of a session.
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
    /// Ends a session that rests; one that does not is left alone.
    EndRest {
        by: String,
    },
    /// Ends its command at once; cancels what has none.
    Kill {
        by: String,
    },
    /// To the question `item`; without one, to whatever it asks now.
    Answer {
        item: Option<InboxId>,
        message: String,
        by: String,
    },
    /// More to do for a conversation that rests, works or has ended.
    Tell {
        message: String,
        by: String,
    },
    /// What has ended, with the epoch `ended`, is to be there again.
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
    /// How the session's commands end by it, and who wants that.
    pub(crate) fn end(&self) -> Option<(StopHow, String)> {
        match self {
            Self::Stop { how, by } => Some((*how, by.clone())),
            Self::Cancel { by, .. } | Self::Kill { by } => Some((StopHow::Kill, by.clone())),
            // What was begun meanwhile is not ended.
            Self::EndRest { .. }
            | Self::Answer { .. }
            | Self::Tell { .. }
            | Self::Restore { .. }
            | Self::Decide { .. } => None,
        }
    }
}
