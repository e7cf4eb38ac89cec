//! How a session ends, and what must stop first.

use serde_json::{Value, json};

use super::phase::Phase;
use super::{Decision, Session, Step};
use crate::ids::EffectId;
use crate::row::SessionStatus;
use crate::time::Timestamp;

impl Session {
    pub(super) fn fail(&mut self, error: Value, now: Timestamp, out: &mut Step) {
        let why = error.get("message").and_then(Value::as_str).unwrap_or("failed").to_owned();
        self.row.error = Some(error);
        self.end(SessionStatus::Failed, &why, now, out);
    }

    pub(super) fn canceled(&mut self, reason: Option<&str>, now: Timestamp, out: &mut Step) {
        if let Some(reason) = reason {
            self.row.error = Some(json!({"code": "canceled", "message": reason}));
        }
        self.end(SessionStatus::Canceled, "canceled", now, out);
    }

    /// Ends the session; every end uses this. Stops everything, removes the environment, and
    /// records the end once.
    pub(super) fn end(&mut self, status: SessionStatus, why: &str, now: Timestamp, out: &mut Step) {
        self.halt(why, now, out);
        match self.has_room() {
            true => self.close_room(status, out),
            false => self.finish(status, now, out),
        }
    }

    /// Closes open steps and aborts effects. Nothing of the session continues after this.
    pub(super) fn halt(&mut self, why: &str, now: Timestamp, out: &mut Step) {
        self.stop_clock(now);
        // Effects that this step would have started need not be stopped: they never start.
        let begins = std::mem::take(&mut out.effects);
        let under_way = self.phase.running().map(|n| EffectId::derive(self.row.id, n));
        out.aborted.extend(under_way.filter(|id| begins.iter().all(|new| new.id != *id)));
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        for step in phase.into_open_steps() {
            let output = json!({"ok": false, "note": why});
            self.close_step(step, output, Some(why.to_owned()), now, out);
        }
        self.row.prompt = None;
        self.row.approval = None;
        self.waiting = None;
        out.orders.clear();
        if let Some(command) = &mut self.row.command {
            (command.pid, command.restart_at, command.stopping) = (None, None, false);
        }
    }

    pub(super) fn finish(&mut self, status: SessionStatus, now: Timestamp, out: &mut Step) {
        self.row.status = status;
        self.row.finished_at = Some(now);
        let run = self.row.id;
        let event = match status {
            SessionStatus::Succeeded => Some(Decision {
                kind: "run.succeeded",
                payload: json!({"run_id": run, "final_answer": self.row.final_answer}),
            }),
            SessionStatus::Failed => Some(Decision {
                kind: "run.failed",
                payload: json!({"run_id": run, "error": self.row.error}),
            }),
            // `run.canceled` is the input itself: an order from outside.
            SessionStatus::Canceled
            | SessionStatus::Queued
            | SessionStatus::Running
            | SessionStatus::AwaitingInput
            | SessionStatus::AwaitingApproval
            | SessionStatus::Idle => None,
        };
        out.events.extend(event);
    }
}
