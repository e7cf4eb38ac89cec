//! The lives of a session whose agent is a command: begun, ended, begun again, or not.

use std::time::Duration;

use serde_json::{Value, json};

use super::phase::Phase;
use super::{Decision, Session, Step};
use crate::command::{
    CommandKind, CommandRow, CommandSpec, Launch, LifeEnded, LifeInput, LifeOrder, Notice, StopHow,
};
use crate::effect::{Effect, EffectAction};
use crate::ids::{EffectId, InboxId};
use crate::inbox::{InboxKind, Waiting, title};
use crate::process::prompt::Question;
use crate::process::restart::{LifeEnd, RestartState, Verdict};
use crate::row::SessionStatus;
use crate::time::Timestamp;

/// Grace of a stop that names none.
pub const STOP_GRACE_MS: u32 = 10_000;

/// What a session remembers about its command between lives.
#[derive(Clone, Debug, Default)]
pub(super) struct Lives {
    restarts: RestartState,
    /// The provider's last word.
    result: Option<(String, bool)>,
}

/// A life under way, or the pause before the next one.
#[derive(Clone, Debug)]
pub(super) struct Living {
    pub(super) effect: Option<u64>,
    /// Since when the program runs.
    up: Option<Timestamp>,
    ending: Option<Ending>,
    /// The question that it waits with, while it does.
    asks: Option<Question>,
    /// When the next life begins; there while none is under way.
    due: Option<Timestamp>,
}

/// Why a life is being ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    Asked { how: StopHow, by: String },
    Silent { seconds: u64 },
}

impl Session {
    /// The command that the session runs, if its agent is one.
    pub(super) fn command(&self) -> Option<&CommandSpec> {
        self.agent.command.as_ref()
    }

    fn living(&mut self) -> Option<&mut Living> {
        let Phase::Living(living) = &mut self.phase else { return None };
        Some(living)
    }

    fn command_row(&mut self) -> &mut CommandRow {
        self.row.command.get_or_insert_default()
    }

    /// When the next life is due, while one is waited for.
    pub(super) fn next_life(&self) -> Option<Timestamp> {
        self.phase.living()?.due
    }

    /// Whether a word about its command means anything now.
    pub(super) fn life_fits(&self, input: &LifeInput) -> bool {
        let Some(living) = self.phase.living() else { return false };
        let present = |effect: &u64| living.effect == Some(*effect);
        match input {
            LifeInput::Started { effect, .. } => present(effect) && living.up.is_none(),
            LifeInput::Ended { effect, .. } => present(effect),
            LifeInput::Noticed { effect, notice } => {
                present(effect)
                    && match notice {
                        Notice::Waits(question) => {
                            living.ending.is_none() && living.asks.as_ref() != Some(question)
                        }
                        Notice::GoesOn => living.asks.is_some(),
                        Notice::Silent { .. } => living.ending.is_none(),
                        Notice::Conversation { .. } | Notice::Result { .. } => true,
                    }
            }
            LifeInput::StopAsked { how, .. } => match &living.ending {
                // A second wish means something only when it is the stronger one.
                Some(Ending::Asked { how: before, .. }) => {
                    *how == StopHow::Kill && *before != StopHow::Kill
                }
                Some(Ending::Silent { .. }) | None => true,
            },
            LifeInput::Due => living.due.is_some(),
        }
    }

    /// Whether what it asks must stand in no log, and so be answered in its terminal only.
    pub(super) fn asks_for_secret(&self) -> bool {
        let Some(living) = self.phase.living() else { return false };
        living.asks.as_ref().is_some_and(|question| question.secret)
    }

    pub(super) fn begin_life(&mut self, now: Timestamp, out: &mut Step) {
        let (effect, _) = self.new_effect();
        let row = self.command_row();
        row.life += 1;
        row.restart_at = None;
        let life = row.life;
        self.phase = Phase::Living(Box::new(Living {
            effect: Some(effect),
            up: None,
            ending: None,
            asks: None,
            due: None,
        }));
        let Some(launch) = self.launch() else {
            let message = "the agent has no command";
            return self.fail(json!({"code": "no_command", "message": message}), now, out);
        };
        out.events.push(Decision {
            kind: "process.starting",
            payload: json!({"run_id": self.row.id, "life": life, "argv": launch.argv}),
        });
        self.perform(effect, launch, out);
    }

    fn perform(&self, effect: u64, launch: Launch, out: &mut Step) {
        out.effects.push(Effect {
            id: EffectId::derive(self.row.id, effect),
            step: None,
            not_before: None,
            action: EffectAction::Live(Box::new(launch)),
        });
    }

    /// What the present life runs.
    fn launch(&self) -> Option<Launch> {
        let command = self.command()?;
        let row = self.row.command.as_ref()?;
        let silence = u64::from(command.activity_timeout);
        Some(Launch {
            life: row.life,
            argv: command.line(&self.row.task),
            env: command.env.clone(),
            terminal: command.terminal,
            input: command.kind == CommandKind::Session,
            provider: command.provider,
            silence: (silence > 0).then(|| Duration::from_secs(silence)),
            directory: self
                .row
                .room
                .as_ref()
                .and_then(|room| Some(room.made.as_ref()?.directory.clone())),
        })
    }

    pub(super) fn life(&mut self, input: &LifeInput, now: Timestamp, out: &mut Step) {
        match input {
            LifeInput::Started { effect: _, pid } => {
                self.command_row().pid = Some(*pid);
                if let Some(living) = self.living() {
                    living.up = Some(now);
                }
            }
            LifeInput::Ended { effect: _, end } => self.life_ended(end, now, out),
            LifeInput::Noticed { effect: _, notice } => self.noticed(notice, now, out),
            LifeInput::StopAsked { how, by } => self.stop_asked(*how, by, now, out),
            LifeInput::Due => {
                self.begin_life(now, out);
            }
        }
    }

    fn stop_asked(&mut self, how: StopHow, by: &str, now: Timestamp, out: &mut Step) {
        // Before its first life nothing has to be ended but the making of its room.
        let Some(living) = self.living() else { return self.stopped(by, now, out) };
        living.ending = Some(Ending::Asked { how, by: by.to_owned() });
        let Some(effect) = living.effect else {
            // Between two lives there is nothing to be ended but the waiting.
            return self.stopped(by, now, out);
        };
        self.no_question(now);
        let reason = format!("stopped by {by}");
        self.order(effect, LifeOrder::End { how, reason }, out);
    }

    fn order(&self, effect: u64, order: LifeOrder, out: &mut Step) {
        out.orders.push((EffectId::derive(self.row.id, effect), order));
    }

    fn stopped(&mut self, by: &str, now: Timestamp, out: &mut Step) {
        let row = self.row.command.clone().unwrap_or_default();
        out.events.push(Decision {
            kind: "run.stopped",
            payload: json!({
                "run_id": self.row.id, "by": by, "exit_code": row.exit_code, "signal": row.signal,
            }),
        });
        self.end(SessionStatus::Canceled, "stopped", now, out);
    }

    fn life_ended(&mut self, end: &LifeEnded, now: Timestamp, out: &mut Step) {
        let Some(living) = self.phase.living() else { return };
        let (up, ending) = (living.up.unwrap_or(end.at), living.ending.clone());
        self.no_question(now);
        let row = self.command_row();
        row.pid = None;
        (row.exit_code, row.signal) = (end.exit_code, end.signal);
        if let Some(living) = self.living() {
            living.effect = None;
        }
        let cause = match (&ending, end.status()) {
            (Some(Ending::Asked { .. }), _) => LifeEnd::Asked,
            (Some(Ending::Silent { .. }), _) | (None, None) => LifeEnd::Failed,
            (None, Some(status)) => LifeEnd::Exited(status),
        };
        let Some(policy) = self.command().map(|command| command.restart.into()) else { return };
        // The clock may have been set back between the two.
        let at = end.at.max(up);
        match self.lives.restarts.ended(&policy, cause, up, at) {
            Verdict::Restart { at, delay } => {
                let total = self.lives.restarts.total;
                out.events.push(Decision {
                    kind: "process.restarting",
                    payload: json!({
                        "run_id": self.row.id, "restart": total, "at": at,
                        "delay_ms": u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                    }),
                });
                let row = self.command_row();
                row.restarts = total;
                row.restart_at = Some(at);
                if let Some(living) = self.living() {
                    *living =
                        Living { effect: None, up: None, ending: None, asks: None, due: Some(at) };
                }
            }
            Verdict::Done => self.last_life_ended(end, ending, now, out),
            Verdict::GaveUp { restarts, within } => {
                let told = end.told();
                let message = format!(
                    "the command {told}; it was restarted {restarts} times within {} s, which is \
                     as often as its agent allows",
                    within.as_secs()
                );
                let mut error = json!({"code": "restart_budget", "message": message});
                note_exit(&mut error, end);
                self.fail(error, now, out);
            }
        }
    }

    fn last_life_ended(
        &mut self,
        end: &LifeEnded,
        ending: Option<Ending>,
        now: Timestamp,
        out: &mut Step,
    ) {
        let (code, message) = match ending {
            Some(Ending::Asked { how: _, by }) => return self.stopped(&by, now, out),
            Some(Ending::Silent { seconds }) => {
                ("stuck", format!("the command said nothing for {seconds} s and was ended"))
            }
            None => {
                let good = end.status().is_some_and(|status| status.is_success());
                let said = self.lives.result.clone();
                match (good, said) {
                    (true, Some((text, true))) => ("provider_error", text),
                    (true, said) => {
                        let answer = said.map(|(text, _)| text).unwrap_or_default();
                        return self.succeed(answer, now, out);
                    }
                    (false, _) => match end.status() {
                        Some(_) => ("exited", format!("the command {}", end.told())),
                        None => ("lost", format!("the command {}", end.told())),
                    },
                }
            }
        };
        let mut error = json!({"code": code, "message": message});
        note_exit(&mut error, end);
        self.fail(error, now, out);
    }

    fn noticed(&mut self, notice: &Notice, now: Timestamp, out: &mut Step) {
        match notice {
            Notice::Waits(question) => self.waits(question, now, out),
            Notice::GoesOn => {
                self.no_question(now);
                out.events.push(Decision {
                    kind: "run.went_on",
                    payload: json!({"run_id": self.row.id}),
                });
            }
            Notice::Silent { seconds } => {
                self.no_question(now);
                let Some(living) = self.living() else { return };
                living.ending = Some(Ending::Silent { seconds: *seconds });
                let Some(effect) = living.effect else { return };
                let reason = format!("killed: no activity for {seconds}s");
                self.order(effect, LifeOrder::End { how: StopHow::Kill, reason }, out);
            }
            Notice::Conversation { id } => self.command_row().conversation = Some(id.clone()),
            Notice::Result { text, is_error, cost_microusd, details: _ } => {
                self.lives.result = Some((text.clone(), *is_error));
                self.row.cost_microusd = match (self.row.cost_microusd, cost_microusd) {
                    (Some(before), Some(more)) => Some(before.saturating_add(*more)),
                    (before, None) => before,
                    (None, Some(_)) => None,
                };
            }
        }
    }

    /// The program asks a person: it goes on living meanwhile, and may go on by itself.
    fn waits(&mut self, question: &Question, now: Timestamp, out: &mut Step) {
        let Some(living) = self.living() else { return };
        living.asks = Some(question.clone());
        self.stop_clock(now);
        let details = json!({
            "prompt": question.text, "reason": "terminal", "options": question.options,
            "secret": question.secret,
        });
        out.events.push(Decision {
            kind: "run.awaiting_input",
            payload: json!({
                "run_id": self.row.id, "step_id": Value::Null, "prompt": question.text,
                "reason": "terminal", "options": question.options,
            }),
        });
        let id = InboxId::derive(self.row.id, self.next_question);
        self.next_question += 1;
        self.waiting = Some(Box::new(Waiting {
            id,
            kind: InboxKind::Question,
            title: title(&question.text),
            details,
            group: None,
            asked_at: now,
            expires_at: None,
        }));
        self.row.status = SessionStatus::AwaitingInput;
        self.row.prompt = Some(question.text.clone());
    }

    /// What was asked needs no answer any more.
    fn no_question(&mut self, now: Timestamp) {
        let asked = self.living().is_some_and(|living| living.asks.take().is_some());
        if asked {
            self.waiting = None;
            self.row.prompt = None;
            self.row.status = SessionStatus::Running;
            self.running_since = Some(now);
        }
    }

    /// A person answered what the program asks: it is typed.
    pub(super) fn answer_life(&mut self, message: &str, by: &str, now: Timestamp, out: &mut Step) {
        let Some(living) = self.living() else { return };
        let effect = living.effect;
        self.no_question(now);
        if let Some(effect) = effect {
            let (text, by) = (message.to_owned(), by.to_owned());
            self.order(effect, LifeOrder::Type { text, by }, out);
        }
    }

    /// After a crash of the Cortex or the Hive: the same life is looked for, not another begun.
    pub(super) fn recover_life(&mut self, out: &mut Step) {
        let Some(living) = self.living() else { return };
        // What it asks is asked again by whoever looks after it now.
        living.asks = None;
        let Some(effect) = living.effect else { return };
        let ending = living.ending.clone();
        if let Some(launch) = self.launch() {
            self.perform(effect, launch, out);
        }
        let (how, reason) = match ending {
            Some(Ending::Asked { how, by }) => (how, format!("stopped by {by}")),
            Some(Ending::Silent { seconds }) => {
                (StopHow::Kill, format!("killed: no activity for {seconds}s"))
            }
            None => return,
        };
        self.order(effect, LifeOrder::End { how, reason }, out);
    }
}

fn note_exit(error: &mut Value, end: &LifeEnded) {
    if let Some(code) = end.exit_code {
        error["exit_code"] = json!(code);
    }
    if let Some(signal) = end.signal {
        error["signal"] = json!(signal);
    }
}
