//! Conversations: a session that is idle after its answer, and continues when somebody sends a
//! message.
//!
//! While it is idle, a session has no running effect except a program that waits for input, and it
//! keeps its environment. An ended session continues in the same way, with what is left of its
//! environment or a new one.

use serde_json::json;

use super::phase::Phase;
use super::supervise::History;
use super::{Decision, Input, Refusal, Session, Step};
use crate::agent::PolicyKind;
use crate::ids::HiveId;
use crate::process::provider::launch;
use crate::row::{SessionStatus, StepKind};
use crate::time::Timestamp;

/// The result of a call that ended a turn, given to the model before the next turn.
const ANSWERED: &str = "{\"ok\": true}";

impl Session {
    /// Handles an answer: the session becomes idle if it is a conversation that can continue, and
    /// otherwise ends.
    pub(super) fn succeed(&mut self, answer: String, now: Timestamp, out: &mut Step) {
        if !self.later.is_empty() && self.has_conversation() {
            let message = std::mem::take(&mut self.later).join("\n\n");
            self.halt("it was said more", now, out);
            self.running_since = Some(now);
            return self.woken(&message, now, out);
        }
        if self.spec.conversation && self.has_conversation() {
            return self.rest(answer, now, out);
        }
        self.row.final_answer = Some(answer);
        self.end(SessionStatus::Succeeded, "the session ended", now, out);
    }

    pub(super) fn rest(&mut self, answer: String, now: Timestamp, out: &mut Step) {
        self.halt("the session rests", now, out);
        self.phase = Phase::Resting;
        self.rests_with(answer, out);
    }

    /// Records that it is idle. The caller sets the phase.
    pub(super) fn rests_with(&mut self, answer: String, out: &mut Step) {
        self.row.status = SessionStatus::Idle;
        out.events.push(Decision {
            kind: "run.idle",
            payload: json!({"run_id": self.row.id, "final_answer": answer}),
        });
        self.row.final_answer = Some(answer);
    }

    /// Returns whether it has a conversation that can continue without a process.
    pub(super) fn has_conversation(&self) -> bool {
        self.command().is_none_or(launch::is_own)
            && self.row.command.as_ref().is_none_or(|row| row.conversation.is_some())
    }

    /// Returns whether it has failed and a message would continue its conversation.
    pub fn failed_with_conversation(&self) -> bool {
        self.row.status == SessionStatus::Failed && self.has_conversation()
    }

    /// Returns whether it is idle without a program. If a program runs, the program gets the next
    /// message.
    pub(super) fn is_resting(&self) -> bool {
        matches!(self.phase, Phase::Resting)
    }

    /// Checks that a person's message is valid now.
    ///
    /// # Errors
    ///
    /// [`Refusal`], with the text for the user.
    pub(super) fn may_be_told(&self, input: &Input) -> Result<(), Refusal> {
        let Input::Told { epoch, .. } = input else { return Err(Refusal::Stale) };
        if self.rests_alive() || self.is_thinking() || self.hears_later() {
            return Ok(());
        }
        if !self.is_resting() && !self.row.status.is_terminal() {
            return Err(Refusal::NotResting);
        }
        if !self.command().is_none_or(launch::is_own) {
            return Err(Refusal::NoConversation);
        }
        match *epoch > self.row.epoch {
            true => Ok(()),
            false => Err(Refusal::Stale),
        }
    }

    /// Returns whether a model works on it. The model gets the message before its next turn.
    fn is_thinking(&self) -> bool {
        self.row.status == SessionStatus::Running
            && self.policy() != PolicyKind::Deterministic
            && matches!(self.phase, Phase::Deciding { .. } | Phase::Acting { .. })
    }

    /// Returns whether its program works and gets messages only after its turn.
    fn hears_later(&self) -> bool {
        matches!(self.row.status, SessionStatus::Queued | SessionStatus::Running)
            && !matches!(self.phase, Phase::Resting | Phase::Ended)
            && self.command().is_some_and(launch::hears_later)
    }

    /// Handles a person's message.
    pub(super) fn told_more(&mut self, message: &str, by: &str, now: Timestamp, out: &mut Step) {
        if self.rests_alive() {
            self.tell_life(message, by, now, out);
        } else if matches!(self.phase, Phase::Deciding { .. } | Phase::Acting { .. }) {
            self.notes.push(format!("The user says: {message}"));
        } else if self.hears_later() {
            self.later.push(message.to_owned());
        } else {
            // It ended before it got the last message, which is not lost.
            self.later.push(message.to_owned());
            let message = std::mem::take(&mut self.later).join("\n\n");
            self.woken(&message, now, out);
        }
    }

    /// Restores a session that has ended. A conversation becomes idle, and nothing of it is
    /// repeated. A session without a conversation, or one that never started, starts again with its
    /// files.
    pub(super) fn restored(&mut self, epoch: u32, hive: HiveId, now: Timestamp, out: &mut Step) {
        let has_begun = match self.command() {
            Some(_) => self.row.command.is_some(),
            None => self.row.steps > 0,
        };
        if has_begun && self.has_conversation() {
            (self.row.finished_at, self.row.error) = (None, None);
            (self.row.epoch, self.row.status) = (epoch, SessionStatus::Idle);
            self.phase = Phase::Resting;
            let payload = json!({"run_id": self.row.id, "final_answer": self.row.final_answer});
            return out.events.push(Decision { kind: "run.idle", payload });
        }
        self.place(epoch, hive, now);
        self.anew();
        self.lives_anew();
        if self.room_wish().is_some() && !self.has_room() {
            return self.prepare_room(Box::new(Phase::Fresh), out);
        }
        self.phase = Phase::Fresh;
        self.start(now, out);
    }

    /// Resets the result of its last turn.
    fn anew(&mut self) {
        (self.row.finished_at, self.row.final_answer, self.row.error) = (None, None, None);
        // Limits are counted separately for each message.
        if self.spec.step_limit > 0 {
            self.row.step_limit = self.row.steps.saturating_add(self.spec.step_limit);
        }
        self.ran = std::time::Duration::ZERO;
        (self.history, self.failures, self.nudged) = (History::default(), 0, false);
        self.turn += 1;
    }

    /// Handles a message to a session that was idle or had ended, and that has its place again.
    fn woken(&mut self, message: &str, now: Timestamp, out: &mut Step) {
        self.anew();
        let waking = Phase::Waking { message: message.to_owned() };
        if self.room_wish().is_some() && !self.has_room() {
            return self.prepare_room(Box::new(waking), out);
        }
        self.phase = waking;
        self.wake(now, out);
    }

    /// Continues with the messages.
    pub(super) fn wake(&mut self, now: Timestamp, out: &mut Step) {
        let Phase::Waking { message } = std::mem::replace(&mut self.phase, Phase::Ended) else {
            return;
        };
        if self.command().is_some() {
            return self.begin_life_with(message, now, out);
        }
        let input = json!({"task": message, "agent_id": self.row.agent, "run_id": self.row.id});
        let Some(step) = self.open_step(StepKind::Plan, input, now, out) else { return };
        self.close_step(step, json!({"ok": true, "note": "told more"}), None, now, out);
        if self.policy() == PolicyKind::Deterministic {
            return self.decide_by_rules(&message, now, out);
        }
        self.convo.close_calls(ANSWERED);
        if self.convo.is_empty() {
            // It ended before its first turn: the task has not been said yet.
            self.convo.user(self.row.task.clone());
        }
        self.convo.user(message);
        self.ask_model(now, out);
    }
}
