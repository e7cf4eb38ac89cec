//! The attempts (`Life`) of a session that runs a command: each start of the command, its end, and
//! whether another one follows.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::given;
use super::phase::Phase;
use super::{Decision, Session, Step};
use crate::command::{
    CommandKind, CommandRow, CommandSpec, Launch, LifeEnded, LifeInput, LifeOrder, Notice, StopHow,
};
use crate::effect::{Effect, EffectAction};
use crate::ids::{EffectId, InboxId};
use crate::inbox::{InboxKind, Waiting, title};
use crate::model::Usage;
use crate::process::ExitStatus;
use crate::process::prompt::Question;
use crate::process::provider::{Answer, Ask, Asked as AskedTools, Scope, Spent, Told, launch};
use crate::process::restart::{LifeEnd, RestartState, Verdict};
use crate::row::SessionStatus;
use crate::sandbox::SandboxLevel;
use crate::time::Timestamp;

/// Milliseconds between TERM and KILL if a stop sets no grace period.
pub const STOP_GRACE_MS: u32 = 10_000;

/// Most questions that may wait behind the one that is shown.
const MOST_ASKS: usize = 32;

/// State of a session's command that is kept between attempts.
#[derive(Clone, Debug, Default)]
pub(super) struct Lives {
    restarts: RestartState,
    /// The provider's last result.
    result: Option<Answer>,
    /// A message to a conversation whose program does not run. The next attempt starts with it.
    said: Option<String>,
    /// Position in the log up to which the output has been read.
    read: u64,
    of_life: Figures,
    of_conversation: Figures,
    /// Whether the provider has ever reported a cost.
    priced: bool,
    /// The tool calls for which its program asked a person.
    asked: AskedTools,
}

/// Usage and cost reported so far for an attempt or a conversation.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    usage: Usage,
    cost_microusd: u64,
}

/// An attempt that runs, or the pause before the next one.
#[derive(Clone, Debug, Default)]
pub(super) struct Living {
    pub(super) effect: Option<u64>,
    /// Time at which the program started.
    up: Option<Timestamp>,
    ending: Option<Ending>,
    /// The question to which it waits for an answer.
    asks: Option<Asked>,
    /// Further questions of its protocol.
    more: VecDeque<Ask>,
    /// The message with which it starts in place of its task.
    said: Option<String>,
    /// The conversation that it was told to continue.
    conversation: Option<String>,
    /// Whether it has not yet confirmed that it continues the conversation.
    resuming: bool,
    /// Whether its protocol has reported an answer.
    answered: bool,
    /// Whether its turn is over, so that it is idle.
    rests: bool,
    /// Time of the next attempt, while none runs.
    due: Option<Timestamp>,
}

/// A question that was seen on the screen or asked in the provider's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    question: Question,
    /// For a question of the protocol: its id, and its position in the log.
    ask: Option<(String, u64)>,
}

/// Why an attempt is being ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    /// Somebody stopped it. `rested`: it was idle, so it ends with the result of its last answer.
    Asked {
        how: StopHow,
        by: String,
        rested: bool,
    },
    Silent {
        seconds: u64,
    },
}

impl Session {
    /// Returns the command that the session runs, if its agent has one.
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

    /// Returns the time of the next attempt, if one is scheduled.
    pub(super) fn next_life(&self) -> Option<Timestamp> {
        self.phase.living()?.due
    }

    /// Returns whether an input about the command is valid now.
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
                            let asked = living.asks.as_ref().map(|asked| &asked.question);
                            living.ending.is_none() && asked != Some(question)
                        }
                        Notice::GoesOn => living.asks.is_some(),
                        // An idle session reports nothing.
                        Notice::Silent { .. } => living.ending.is_none() && !living.rests,
                        // Lines that are read again after a restart were processed already.
                        Notice::Told(told) => told.upto > self.lives.read,
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

    /// Returns whether it asks for a secret. The answer must not be logged, so it can only be typed
    /// in its terminal.
    pub(super) fn asks_for_secret(&self) -> bool {
        let Some(living) = self.phase.living() else { return false };
        living.asks.as_ref().is_some_and(|asked| asked.question.secret)
    }

    pub(super) fn begin_life(&mut self, now: Timestamp, out: &mut Step) {
        let (effect, _) = self.new_effect();
        let row = self.command_row();
        row.life += 1;
        row.restart_at = None;
        let life = row.life;
        let conversation = row.conversation.clone();
        let resuming = conversation.is_some();
        self.lives.of_life = Figures::default();
        self.lives.result.take_if(|result| result.is_error);
        self.phase = Phase::Living(Box::new(Living {
            effect: Some(effect),
            said: self.lives.said.take(),
            conversation,
            resuming,
            ..Living::default()
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

    /// Returns the launch of the present attempt.
    fn launch(&self) -> Option<Launch> {
        let command = self.command()?;
        let row = self.row.command.as_ref()?;
        let silence = u64::from(command.activity_timeout);
        let living = self.phase.living()?;
        let fresh = living.up.is_none();
        // The earlier state at the start of the attempt, not the state that it reported since.
        let (conversation, said) = (living.conversation.clone(), living.said.as_deref());
        let room = self.row.room.as_ref().and_then(|room| room.made.as_ref());
        let level = room.and_then(|room| room.sandbox).unwrap_or(SandboxLevel::None);
        let enclosed = self.agent.sandbox.max(level) != SandboxLevel::None;
        let instructions = given::instructions(&self.spec.contexts, &self.spec.claims);
        let launch::Line { argv, first } = launch::line(
            command,
            enclosed,
            &instructions,
            &self.row.task,
            conversation.as_deref(),
            said,
        );
        Some(Launch {
            life: row.life,
            argv,
            env: command.env.clone(),
            env_from: command.env_from.clone(),
            gateway: command.gateway,
            limits: command.limits,
            terminal: launch::has_terminal(command),
            input: launch::input_of(command, enclosed),
            is_own: launch::is_own(command),
            answered: living.answered,
            provider: command.provider,
            read_from: launch::is_read(command).then_some(self.lives.read),
            asked: self.lives.asked.iter().cloned().collect(),
            first: first.filter(|_| fresh),
            conversation,
            silence: (silence > 0).then(|| Duration::from_secs(silence)),
            read: command.read.clone(),
            write: command.write.clone(),
            network: command.network_in(room.is_some_and(|room| room.serves)),
            ports: room.map(|room| room.own_ports()).unwrap_or_default(),
            reaches: room.map(|room| room.reaches.clone()).unwrap_or_default(),
            beyond: room.map(|room| room.beyond.clone()).unwrap_or_default(),
            directory: room.map(|room| room.directory.clone()),
            worktree: room.and_then(|room| room.worktree.clone()),
            borrowed: room.map(|room| room.borrowed.clone()).unwrap_or_default(),
            bounded: room.is_some_and(|room| room.bounded),
            sandbox: room.and_then(|room| room.sandbox),
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
        let rested = living.rests && how != StopHow::Kill;
        living.ending = Some(Ending::Asked { how, by: by.to_owned(), rested });
        let effect = living.effect;
        if rested {
            self.rest_ended(by);
        }
        let Some(effect) = effect else {
            // Between two lives there is nothing to be ended but the waiting.
            return self.stopped(by, now, out);
        };
        self.no_question(now);
        self.command_row().stopping = true;
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
        let refused = matches!(end.status(), Some(ExitStatus::Code(code)) if code != 0);
        let unknown = living.resuming && refused;
        let rested = living.rests && living.ending.is_none();
        let said = living.said.clone();
        self.no_question(now);
        if rested && self.has_conversation() {
            // However it ended, the conversation exists, and no program is awaited.
            return self.rests_on(end, now, out);
        }
        if unknown {
            self.lives.said = said;
            // It ended without a word of the conversation: the next life begins a new one.
            self.command_row().conversation = None;
        }
        let row = self.command_row();
        (row.pid, row.stopping) = (None, false);
        (row.exit_code, row.signal) = (end.exit_code, end.signal);
        row.log_removed |= end.log_removed;
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
                    *living = Living { due: Some(at), ..Living::default() };
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
            Some(Ending::Asked { how: _, by: _, rested: true }) => {
                return self.end(SessionStatus::Succeeded, "the session ended", now, out);
            }
            Some(Ending::Asked { how: _, by, rested: false }) => {
                return self.stopped(&by, now, out);
            }
            Some(Ending::Silent { seconds }) => {
                ("stuck", format!("the command said nothing for {seconds} s and was ended"))
            }
            None => {
                let good = end.status().is_some_and(|status| status.is_success());
                let said = self.lives.result.clone();
                match (good, said) {
                    (_, Some(Answer { text, is_error: true })) => ("provider_error", text),
                    (true, _) if self.owes_an_answer() => (
                        "no_answer",
                        format!(
                            "the command {} without an answer: what it was to do is not done",
                            end.told()
                        ),
                    ),
                    (true, said) => {
                        let answer = said.map(|answer| answer.text).unwrap_or_default();
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

    /// Returns whether the last attempt ended without completing its task.
    fn owes_an_answer(&self) -> bool {
        let must = self.command().is_some_and(launch::must_answer);
        must && self.phase.living().is_none_or(|living| !living.answered)
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
                let reason = format!("no activity for {seconds}s");
                self.order(effect, LifeOrder::End { how: StopHow::Kill, reason }, out);
            }
            Notice::Told(told) => self.told(told, now, out),
        }
    }

    /// Handles a report of the provider's protocol.
    fn told(&mut self, told: &Told, now: Timestamp, out: &mut Step) {
        self.lives.read = told.upto;
        if let Some(id) = &told.conversation {
            let before = self.command_row().conversation.replace(id.clone());
            if before.as_ref() != Some(id) {
                self.lives.of_conversation = Figures::default();
            }
            if let Some(living) = self.living() {
                living.resuming = false;
            }
        }
        for spent in &told.spent {
            self.spent(spent);
        }
        if let Some(answer) = &told.answer {
            self.lives.result = Some(answer.clone());
            if let Some(living) = self.living() {
                living.answered = true;
            }
        }
        for ask in &told.asks {
            self.lives.asked.extend(ask.tool_use.clone());
            self.asked(ask, now, out);
        }
        match told.turn_over {
            Some(true) => self.turn_over(now, out),
            Some(false) => self.works_again(now, out),
            None => {}
        }
        for id in &told.gone {
            let Some(living) = self.living() else { return };
            living.more.retain(|ask| ask.id != *id);
            let shown = |asked: &Asked| asked.ask.as_ref().is_some_and(|(ask, _)| ask == id);
            if living.asks.as_ref().is_some_and(shown) {
                self.no_question(now);
                let payload = json!({"run_id": self.row.id});
                out.events.push(Decision { kind: "run.went_on", payload });
                self.ask_next(now, out);
            }
        }
    }

    /// Adds the usage and cost since the last report.
    fn spent(&mut self, spent: &Spent) {
        let mut none = Figures::default();
        let before = match spent.scope {
            Scope::Turn => &mut none,
            Scope::Life => &mut self.lives.of_life,
            Scope::Conversation => &mut self.lives.of_conversation,
        };
        if let Some(usage) = spent.usage {
            self.row.usage.add(usage.beyond(before.usage));
            before.usage = usage;
        }
        let more = spent.cost_microusd.map(|cost| {
            let more = cost.saturating_sub(before.cost_microusd);
            before.cost_microusd = cost;
            more
        });
        self.row.model_calls = self.row.model_calls.saturating_add(spent.calls);
        self.lives.priced |= more.is_some();
        let so_far = self.row.cost_microusd.unwrap_or(0);
        // Tokens without a known price have an unknown cost, which is not zero.
        self.row.cost_microusd =
            self.lives.priced.then(|| so_far.saturating_add(more.unwrap_or(0)));
    }

    /// Handles a question of the protocol to a person.
    fn asked(&mut self, ask: &Ask, now: Timestamp, out: &mut Step) {
        let Some(living) = self.living() else { return };
        if living.ending.is_some() {
            return;
        }
        if living.asks.is_none() {
            self.waits_with(&ask.question, Some((ask.id.clone(), ask.at)), now, out);
        } else if living.more.len() < MOST_ASKS {
            living.more.push_back(ask.clone());
        }
    }

    /// Shows the next waiting question.
    fn ask_next(&mut self, now: Timestamp, out: &mut Step) {
        let next = self.living().and_then(|living| living.more.pop_front());
        if let Some(ask) = next {
            self.asked(&ask, now, out);
        }
    }

    /// Handles a question of the program to a person. The program runs meanwhile, and may continue
    /// by itself.
    fn waits(&mut self, question: &Question, now: Timestamp, out: &mut Step) {
        self.waits_with(question, None, now, out);
    }

    fn waits_with(
        &mut self,
        question: &Question,
        ask: Option<(String, u64)>,
        now: Timestamp,
        out: &mut Step,
    ) {
        let reason = if ask.is_some() { "permission" } else { "terminal" };
        let Some(living) = self.living() else { return };
        living.asks = Some(Asked { question: question.clone(), ask });
        self.stop_clock(now);
        let details = json!({
            "prompt": question.text, "reason": reason, "options": question.options,
            "secret": question.secret,
        });
        out.events.push(Decision {
            kind: "run.awaiting_input",
            payload: json!({
                "run_id": self.row.id, "step_id": Value::Null, "prompt": question.text,
                "reason": reason, "options": question.options,
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

    /// Marks the session as idle: the program waits for the next message.
    fn turn_over(&mut self, now: Timestamp, out: &mut Step) {
        let is_session = self.command().is_some_and(|it| it.kind == CommandKind::Session);
        if !self.spec.conversation || !is_session {
            return;
        }
        let answer = self.lives.result.as_ref().map(|it| it.text.clone()).unwrap_or_default();
        let Some(living) = self.living() else { return };
        if living.ending.is_some() || living.asks.is_some() {
            return;
        }
        living.rests = true;
        self.stop_clock(now);
        self.rests_with(answer, out);
    }

    /// Handles a program that continues by itself, because somebody typed in its terminal or a
    /// message arrived.
    fn works_again(&mut self, now: Timestamp, out: &mut Step) {
        if !self.goes_on(now) {
            return;
        }
        out.events.push(Decision { kind: "run.went_on", payload: json!({"run_id": self.row.id}) });
    }

    /// Ends the idle state. Returns false if the session was not idle.
    fn goes_on(&mut self, now: Timestamp) -> bool {
        let rested = self.living().is_some_and(|living| std::mem::take(&mut living.rests));
        if rested {
            self.row.status = SessionStatus::Running;
            self.row.final_answer = None;
            self.running_since = Some(now);
        }
        rested
    }

    /// Returns whether its program runs and waits for the next message.
    pub(super) fn rests_alive(&self) -> bool {
        self.phase.living().is_some_and(|living| living.rests && living.ending.is_none())
    }

    /// Passes a person's message to an idle program.
    pub(super) fn tell_life(&mut self, message: &str, by: &str, now: Timestamp, out: &mut Step) {
        let Some(effect) = self.phase.living().and_then(|living| living.effect) else { return };
        self.goes_on(now);
        let (text, by) = (message.to_owned(), by.to_owned());
        self.order(effect, LifeOrder::Type { text, by, asked_at: None }, out);
    }

    /// Handles the end of a program while the session was idle: the session stays idle without it.
    fn rests_on(&mut self, end: &LifeEnded, now: Timestamp, out: &mut Step) {
        let row = self.command_row();
        (row.exit_code, row.signal) = (end.exit_code, end.signal);
        row.log_removed |= end.log_removed;
        let answer = self.row.final_answer.take().unwrap_or_default();
        self.rest(answer, now, out);
    }

    /// Sets the message with which the next attempt starts.
    pub(super) fn begin_life_with(&mut self, said: String, now: Timestamp, out: &mut Step) {
        self.lives_anew();
        self.lives.said = Some(said);
        self.begin_life(now, out);
    }

    /// Resets the restart count.
    pub(super) fn lives_anew(&mut self) {
        self.lives.restarts = RestartState::default();
    }

    /// Closes the open question, which needs no answer any more.
    fn no_question(&mut self, now: Timestamp) {
        let asked = self.living().is_some_and(|living| living.asks.take().is_some());
        if asked {
            self.waiting = None;
            self.row.prompt = None;
            self.row.status = SessionStatus::Running;
            self.running_since = Some(now);
        }
    }

    /// Types a person's answer to the question of the program.
    pub(super) fn answer_life(&mut self, message: &str, by: &str, now: Timestamp, out: &mut Step) {
        let Some(living) = self.living() else { return };
        let effect = living.effect;
        let ask = living.asks.as_ref().and_then(|asked| asked.ask.clone());
        self.no_question(now);
        if let Some(effect) = effect {
            let (text, by) = (message.to_owned(), by.to_owned());
            let asked_at = ask.map(|(_, at)| at);
            self.order(effect, LifeOrder::Type { text, by, asked_at }, out);
            self.ask_next(now, out);
        }
    }

    /// Continues after a crash of the Cortex or the Hive: looks for the same attempt, and does not
    /// start another.
    pub(super) fn recover_life(&mut self, now: Timestamp, out: &mut Step) {
        let Some(living) = self.living() else { return };
        // A question on the program's screen is asked again by the next supervisor; a question in
        // its protocol was sent once, and still waits.
        let asked = living.asks.take().and_then(|asked| {
            let (id, at) = asked.ask?;
            Some(Ask { id, question: asked.question, at, tool_use: None })
        });
        let Some(effect) = living.effect else { return };
        let (ending, rests) = (living.ending.clone(), living.rests);
        if let Some(launch) = self.launch() {
            self.perform(effect, launch, out);
        }
        if let Some(ask) = asked {
            self.asked(&ask, now, out);
        }
        if rests && ending.is_none() {
            self.stop_clock(now);
            self.row.status = SessionStatus::Idle;
        }
        let (how, reason) = match ending {
            Some(Ending::Asked { how, by, rested: _ }) => (how, format!("stopped by {by}")),
            Some(Ending::Silent { seconds }) => {
                (StopHow::Kill, format!("no activity for {seconds}s"))
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
