//! A session's environment (`Room`): requested before its first attempt or turn, and removed before
//! its end.
//!
//! After an environment was requested, every end goes through [`Phase::Closing`]: the session's
//! result is decided and nothing of it runs. Its status shows the result only when the environment
//! was removed, or could not be.

use serde::Deserialize;
use serde_json::{Value, json};

use super::phase::Phase;
use super::{Decision, Session, Step};
use crate::effect::{Effect, EffectAction};
use crate::enclosure::Network;
use crate::ids::{EffectId, SessionId};
use crate::room::history::RoomChanges;
use crate::room::stay::{RoomAct, RoomAttested, RoomDecision, RoomInput, RoomPhase, RoomRow};
use crate::room::{
    RoomClosed, RoomError, RoomMade, RoomOrder, RoomSandbox, RoomWhen, RoomWish, about,
};
use crate::row::SessionStatus;
use crate::time::Timestamp;

/// The kind of the event for a decision about a session's work.
pub const ROOM_DONE: &str = "room.done";
/// The kind of the event for a saved snapshot of the environment's files.
pub const ROOM_SNAPSHOT: &str = "room.snapshot";
/// The kind of the event that names the snapshot with which the environment of a fork starts.
pub const ROOM_FORKED: &str = "room.forked";
/// The kind of the event for restored files.
pub const ROOM_UNDONE: &str = "room.undone";

/// A session whose result is decided and whose environment is being removed.
#[derive(Clone, Debug)]
pub(super) struct Closing {
    pub(super) effect: u64,
    status: SessionStatus,
    answer: Option<String>,
    error: Option<Value>,
}

impl Session {
    /// Returns the environment that it requests, if it is to have one.
    pub(super) fn room_wish(&self) -> Option<&RoomWish> {
        let wish = self.spec.room.as_ref()?;
        (wish.when != RoomWhen::Never).then_some(wish)
    }

    fn room(&mut self) -> &mut RoomRow {
        self.row.room.get_or_insert_with(|| Box::new(RoomRow::preparing()))
    }

    /// Returns whether its result is decided and only its environment is still to be removed.
    pub fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing(_))
    }

    /// Returns whether its environment is being created.
    pub(super) fn is_preparing(&self) -> bool {
        matches!(self.phase, Phase::Preparing { .. })
    }

    /// Returns whether an input about its environment is valid now.
    pub(super) fn room_fits(&self, input: &RoomInput) -> bool {
        match (input, &self.phase) {
            (
                RoomInput::Ready { effect, .. } | RoomInput::Failed { effect, .. },
                Phase::Preparing { effect: present, .. },
            ) => effect == present,
            (
                RoomInput::Closed { effect, .. } | RoomInput::Left { effect, .. },
                Phase::Closing(closing),
            ) => *effect == closing.effect,
            (
                RoomInput::Ready { .. }
                | RoomInput::Failed { .. }
                | RoomInput::Closed { .. }
                | RoomInput::Left { .. },
                _,
            ) => false,
        }
    }

    /// Returns the order from which its environment is created.
    pub fn room_order(&self) -> Option<RoomOrder> {
        let command = self.command();
        let sandbox = RoomSandbox {
            level: self.agent.sandbox,
            network: command.map_or(Network::Mesh, |command| command.network_in(false)),
            read: command.map(|command| command.read.clone()).unwrap_or_default(),
        };
        Some(RoomOrder {
            sandbox,
            session: self.row.id,
            name: self.row.name.clone(),
            about: about(&self.spec.task),
            agent: self.agent.name.clone(),
            project: self.row.workspace.clone().into(),
            wish: self.room_wish()?.clone(),
            before: self.row.room.as_ref().and_then(|room| room.made.clone()).map(Box::new),
        })
    }

    /// Requests its environment. `then` is the phase that follows when it is ready.
    pub(super) fn prepare_room(&mut self, then: Box<Phase>, out: &mut Step) {
        // A fork has an effect of its own for this, which the session that it repeats had for its
        // room: the numbers of all others stay those that a fork of this one finds in the log.
        let effect = match self.forked && self.next_effect > 0 {
            true => 0,
            false => self.new_effect().0,
        };
        self.phase = Phase::Preparing { effect, then };
        let before = self.row.room.take().map(|room| *room);
        self.row.room = Some(Box::new(RoomRow::again(before)));
        out.events.push(Decision {
            kind: "room.preparing",
            payload: json!({
                "run_id": self.row.id, "project": self.row.workspace, "wish": self.room_wish(),
            }),
        });
        self.act_on_room(effect, out);
    }

    /// Requests the action for which the present phase waits.
    fn act_on_room(&self, effect: u64, out: &mut Step) {
        let Some(order) = self.room_order() else { return };
        let act = match self.is_closing() {
            false => RoomAct::Prepare(Box::new(order)),
            true => RoomAct::Close { end: order.wish.end },
        };
        out.effects.push(Effect {
            id: EffectId::derive(self.row.id, effect),
            step: None,
            not_before: None,
            action: EffectAction::Room(act),
        });
    }

    /// Continues after a crash: requests the interrupted action on the environment again.
    pub(super) fn recover_room(&mut self, now: Timestamp, out: &mut Step) {
        match &self.phase {
            Phase::Preparing { effect, .. } => self.act_on_room(*effect, out),
            Phase::Closing(closing) => {
                let effect = closing.effect;
                // Its own time was over when its end was decided.
                self.stop_clock(now);
                self.act_on_room(effect, out);
            }
            Phase::Fresh
            | Phase::Deciding { .. }
            | Phase::Acting { .. }
            | Phase::Asking { .. }
            | Phase::Approving { .. }
            | Phase::Resting
            | Phase::Waking { .. }
            | Phase::Forked { .. }
            | Phase::Living(_)
            | Phase::Ended => {}
        }
    }

    pub(super) fn room_said(&mut self, input: &RoomInput, now: Timestamp, out: &mut Step) {
        match input {
            RoomInput::Ready { effect: _, made } => {
                let room = self.room();
                (room.phase, room.made) = (RoomPhase::Ready, Some((**made).clone()));
                if let Phase::Preparing { then, .. } =
                    std::mem::replace(&mut self.phase, Phase::Ended)
                {
                    self.phase = *then;
                    self.recover_forked(now, out);
                }
            }
            RoomInput::Failed { effect: _, error } => {
                self.room().error = Some(error.clone());
                self.phase = Phase::Ended;
                let error = json!({"code": "room", "message": error.message, "kind": error.kind});
                self.fail(error, now, out);
            }
            RoomInput::Closed { effect: _, closed } => self.room_closed(closed, now, out),
            RoomInput::Left { effect: _, error } => {
                let room = self.room();
                (room.phase, room.error) = (RoomPhase::Left, Some(error.clone()));
                self.leave(now, out);
            }
        }
    }

    fn room_closed(&mut self, closed: &RoomClosed, now: Timestamp, out: &mut Step) {
        let room = self.room();
        room.phase = match (&room.made, &room.error, &closed.kept) {
            (None, Some(_), _) => RoomPhase::Failed,
            (_, _, Some(_)) => RoomPhase::Kept,
            (_, _, None) => RoomPhase::Closed,
        };
        room.closed = Some(closed.clone());
        room.changes = closed.changes.or(room.changes);
        if !closed.leaks.is_empty() {
            out.events.push(Decision {
                kind: "room.leaked",
                payload: json!({"run_id": self.row.id, "leaks": closed.leaks}),
            });
        }
        self.leave(now, out);
    }

    /// Ends the session with the decided result, after its environment was removed or cannot be.
    fn leave(&mut self, now: Timestamp, out: &mut Step) {
        let Phase::Closing(closing) = std::mem::replace(&mut self.phase, Phase::Ended) else {
            return;
        };
        let Closing { effect: _, status, answer, error } = *closing;
        (self.row.final_answer, self.row.error) = (answer, error);
        self.finish(status, now, out);
    }

    /// Requests the environment of a fork that continues from a question. Its next action waits for
    /// it.
    pub(super) fn room_of_fork(&mut self, out: &mut Step) {
        let waits = matches!(
            self.phase,
            Phase::Asking { .. }
                | Phase::Approving { .. }
                | Phase::Resting
                | Phase::Closing(_)
                | Phase::Ended
        );
        if waits || !self.forked || self.row.room.is_some() || self.room_wish().is_none() {
            return;
        }
        out.effects.clear();
        let then = std::mem::replace(&mut self.phase, Phase::Ended);
        self.prepare_room(Box::new(then), out);
    }

    /// Returns whether an environment was requested and not yet removed.
    pub(super) fn has_room(&self) -> bool {
        self.row.room.as_ref().is_some_and(|room| room.phase.is_open())
    }

    /// Removes the environment after the result is decided and everything has stopped.
    pub(super) fn close_room(&mut self, status: SessionStatus, out: &mut Step) {
        let (effect, _) = self.new_effect();
        let (answer, error) = (self.row.final_answer.take(), self.row.error.take());
        self.phase = Phase::Closing(Box::new(Closing { effect, status, answer, error }));
        self.row.status = SessionStatus::Running;
        self.room().phase = RoomPhase::Closing;
        let end = self.room_wish().map(|wish| wish.end);
        out.events.push(Decision {
            kind: "room.closing",
            payload: json!({"run_id": self.row.id, "end": end, "status": status}),
        });
        self.act_on_room(effect, out);
    }

    /// Records the measured isolation of a program of its environment.
    pub fn note_room_attested(&mut self, one: RoomAttested) {
        if let Some(room) = &mut self.row.room {
            room.note(one);
        }
    }

    /// Records who ended its idle state, to show it in the row.
    pub(super) fn rest_ended(&mut self, by: &str) {
        if let Some(room) = &mut self.row.room {
            room.rest_ended_by = Some(by.to_owned());
        }
    }

    /// Ends a session that somebody stopped while it was idle without a program. Its status is a
    /// success.
    pub(super) fn end_rest(&mut self, by: &str, now: Timestamp, out: &mut Step) {
        self.rest_ended(by);
        self.end(SessionStatus::Succeeded, "the session ended", now, out);
    }

    /// Records the present size of its changes. Returns whether the row changed.
    pub fn note_changes(&mut self, changes: RoomChanges) -> bool {
        let Some(room) = &mut self.row.room else { return false };
        room.changes.replace(changes) != Some(changes)
    }

    /// Records the decision about its work, to show it in the row.
    pub fn note_done(&mut self, decision: RoomDecision) {
        if let Some(room) = &mut self.row.room {
            room.done = Some(decision);
        }
    }
}

#[derive(Deserialize)]
struct ReadyPayload {
    effect: u64,
    made: RoomMade,
}

#[derive(Deserialize)]
struct ClosedPayload {
    effect: u64,
    closed: RoomClosed,
}

#[derive(Deserialize)]
struct ErrorPayload {
    effect: u64,
    error: RoomError,
}

/// Decodes an input about an environment; `None` for an event of another kind.
pub(super) fn decode(kind: &str, payload: &str) -> Option<serde_json::Result<RoomInput>> {
    Some(match kind {
        "room.ready" => serde_json::from_str(payload)
            .map(|ReadyPayload { effect, made }| RoomInput::Ready { effect, made: made.into() }),
        "room.failed" => serde_json::from_str(payload)
            .map(|ErrorPayload { effect, error }| RoomInput::Failed { effect, error }),
        "room.closed" => serde_json::from_str(payload).map(|ClosedPayload { effect, closed }| {
            RoomInput::Closed { effect, closed: closed.into() }
        }),
        "room.left" => serde_json::from_str(payload)
            .map(|ErrorPayload { effect, error }| RoomInput::Left { effect, error }),
        _ => return None,
    })
}

/// Returns the event that records an input about an environment.
pub(super) fn record(input: &RoomInput, run: SessionId) -> (&'static str, Value) {
    match input {
        RoomInput::Ready { effect, made } => {
            ("room.ready", json!({"run_id": run, "effect": effect, "made": made}))
        }
        RoomInput::Failed { effect, error } => {
            ("room.failed", json!({"run_id": run, "effect": effect, "error": error}))
        }
        RoomInput::Closed { effect, closed } => {
            ("room.closed", json!({"run_id": run, "effect": effect, "closed": closed}))
        }
        RoomInput::Left { effect, error } => {
            ("room.left", json!({"run_id": run, "effect": effect, "error": error}))
        }
    }
}
