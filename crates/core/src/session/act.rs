//! Runs the calls of a decision from start to result, through failures, human answers and crashes.

use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use super::gating::{Next, STALE_APPROVAL};
use super::model_turn::message_of;
use super::phase::{Call, CallState, Phase, Question};
use super::supervise::Trace;
use super::{Decision, Session, Step};
use crate::agent::PolicyKind;
use crate::approval::ApprovalEvent;
use crate::effect::{Effect, EffectAction, Recovery, after_crash};
use crate::ids::EffectId;
use crate::inbox::DENY;
use crate::policy::rules::{self, Decided};
use crate::retry;
use crate::row::{StepKind, StepRow};
use crate::time::Timestamp;
use crate::tool::{EffectClass, ToolOutcome, shown_to_model};

impl Session {
    /// Runs the one action that the rules find in `task`.
    pub(super) fn decide_by_rules(&mut self, task: &str, now: Timestamp, out: &mut Step) {
        let model = &self.agent.model;
        if model.starts_with("fail") {
            let message = format!("model '{model}' is unavailable");
            return self.fail(
                json!({"code": "model_inference_error", "message": message}),
                now,
                out,
            );
        }
        self.act_by_rules(rules::decide(task), now, out);
    }

    /// Runs the one action that the rules decided on.
    fn act_by_rules(&mut self, decided: Decided, now: Timestamp, out: &mut Step) {
        match decided {
            Decided::Tool { name, args } => {
                let class = self.toolset.find(name).map_or(EffectClass::Pure, |tool| tool.class);
                let call = Call::new(None, name.into(), args, class);
                self.phase = Phase::Acting { calls: vec![call] };
                self.advance(now, out);
            }
            Decided::Ask { prompt } => {
                let input = json!({"prompt": prompt});
                let Some(step) = self.open_step(StepKind::AskUser, input, now, out) else { return };
                let id = step.id;
                let question = Question::Agent { step: Some(Box::new(step)), calls: Vec::new() };
                self.ask(question, prompt.into(), Some(id), now, out);
            }
        }
    }

    /// Starts the calls that can start now. Calls run one at a time in their order; only
    /// neighbouring calls that change nothing run together.
    pub(super) fn advance(&mut self, now: Timestamp, out: &mut Step) {
        loop {
            let Phase::Acting { calls } = &self.phase else { return };
            if calls.iter().any(|call| call.state.is_being_cleared()) {
                return;
            }
            let Some(at) = calls.iter().position(|call| call.state == CallState::Waiting) else {
                if calls.iter().all(|call| call.state == CallState::Done) {
                    self.turn_done(now, out);
                }
                return;
            };
            let busy = calls.iter().any(|call| matches!(call.state, CallState::Running { .. }));
            let together = calls[at].class == EffectClass::Pure
                && !self.is_special(&calls[at])
                && calls[..at].iter().all(|call| call.class == EffectClass::Pure);
            if busy && !together {
                return;
            }
            self.begin_call(at, now, out);
        }
    }

    fn is_special(&self, call: &Call) -> bool {
        matches!(call.name.as_str(), "ask_user" | "final_answer")
            || matches!(self.next_for(call), Next::Bind | Next::Ask)
    }

    fn begin_call(&mut self, at: usize, now: Timestamp, out: &mut Step) {
        let Phase::Acting { calls } = &self.phase else { return };
        let call = calls[at].clone();
        if call.name == "final_answer" && !message_of(&call.args).trim().is_empty() {
            let answer = message_of(&call.args).to_owned();
            self.drop_calls();
            return self.finish_with_answer(answer, now, out);
        }
        if call.name == "ask_user" && !message_of(&call.args).trim().is_empty() {
            return self.begin_question(at, message_of(&call.args).to_owned(), now, out);
        }
        match self.next_for(&call) {
            Next::Begin => {}
            Next::Judge => return self.with_call(at, |call| call.state = CallState::Judging),
            Next::Bind => return self.begin_binding(at, out),
            Next::Ask => return self.begin_approval(&call, now, out),
        }
        let bound = call.clearance.bound();
        let Some(step) = self.step_for(at, &call, now, out) else { return };
        let (n, effect) = self.new_effect();
        out.effects.push(Effect {
            id: effect,
            step: Some(step.id),
            not_before: None,
            action: EffectAction::Tool {
                definition: self.toolset.definition(&call.name),
                name: call.name,
                args: call.args,
                class: call.class,
                bound,
                step: step.idx,
                restore: false,
            },
        });
        self.with_call(at, |call| call.state = CallState::Running { effect: n, attempt: 1 });
    }

    /// Drops the calls after a final answer; they never start.
    fn drop_calls(&mut self) {
        if let Phase::Acting { calls } = &mut self.phase {
            calls.retain(|call| call.step.is_some());
        }
    }

    fn begin_question(&mut self, at: usize, prompt: String, now: Timestamp, out: &mut Step) {
        let input = json!({"prompt": prompt});
        let Some(step) = self.open_step(StepKind::AskUser, input, now, out) else { return };
        let id = step.id;
        let mut calls = self.take_calls();
        calls[at].state = CallState::Waiting;
        self.ask(Question::Agent { step: Some(Box::new(step)), calls }, prompt, Some(id), now, out);
    }

    pub(super) fn take_calls(&mut self) -> Vec<Call> {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Acting { calls } | Phase::Approving { calls, .. } => calls,
            Phase::Fresh
            | Phase::Deciding { .. }
            | Phase::Asking { .. }
            | Phase::Resting
            | Phase::Waking { .. }
            | Phase::Forked { .. }
            | Phase::Preparing { .. }
            | Phase::Living(_)
            | Phase::Closing(_)
            | Phase::Ended => Vec::new(),
        }
    }

    /// Takes the calls and aborts the running ones. These change nothing, since only such calls run
    /// together, and they start again when the calls continue. Results that arrive in between are
    /// stale.
    fn interrupt_calls(&mut self, out: &mut Step) -> Vec<Call> {
        let mut calls = self.take_calls();
        for call in &mut calls {
            match call.state {
                CallState::Running { effect, .. } | CallState::Binding { effect } => {
                    out.aborted.push(EffectId::derive(self.row.id, effect));
                    call.state = CallState::Waiting;
                }
                CallState::Judging => call.state = CallState::Waiting,
                CallState::Waiting | CallState::Done => {}
            }
        }
        calls
    }

    pub(super) fn with_call(&mut self, at: usize, change: impl FnOnce(&mut Call)) {
        if let Phase::Acting { calls } = &mut self.phase {
            change(&mut calls[at]);
        }
    }

    // --- results

    pub(super) fn tool_done(
        &mut self,
        effect: u64,
        outcome: &ToolOutcome,
        now: Timestamp,
        out: &mut Step,
    ) {
        let Phase::Acting { calls } = &self.phase else { return };
        let found = calls.iter().enumerate().find_map(|(at, call)| match call.state {
            CallState::Running { effect: n, attempt } if n == effect => Some((at, attempt)),
            CallState::Running { .. }
            | CallState::Waiting
            | CallState::Judging
            | CallState::Binding { .. }
            | CallState::Done => None,
        });
        let Some((at, attempt)) = found else { return };
        let call = calls[at].clone();
        // A session keeps the labels of everything that it has read.
        self.labels |= outcome.labels();
        self.tell_of_canary(&call, effect, outcome, out);
        if let Some(error) = outcome.result.get("error").filter(|_| !outcome.ok()) {
            if error.get("code").and_then(Value::as_str) == Some(STALE_APPROVAL) {
                // No action was carried out: the next one asks as a new one.
                self.judge_anew(at);
                return self.advance(now, out);
            }
            let max = self.agent.limits.max_attempts;
            if retry::may_retry(call.class, error, attempt, max) {
                return self.try_again(at, &call, attempt, error, now, out);
            }
            return self.call_failed(at, &call, outcome, error.clone(), now, out);
        }
        let error = (!outcome.ok()).then(|| failure_text(&call.name, &outcome.result));
        self.finish_call(at, outcome.result.clone(), error.clone(), now, out);
        if let Some(error) = error {
            // A command with a non-zero exit: a result for a model, the end for the rules.
            if self.policy() == PolicyKind::Deterministic {
                let mut error = json!({"code": "tool_failed", "message": error});
                if let Some(code) = outcome.result.get("exit_code") {
                    error["exit_code"] = code.clone();
                }
                return self.fail(error, now, out);
            }
        }
        self.failures = 0;
        self.validate(&call, &outcome.result, outcome.ok(), out);
        self.advance(now, out);
    }

    fn try_again(
        &mut self,
        at: usize,
        call: &Call,
        attempt: u32,
        error: &Value,
        now: Timestamp,
        out: &mut Step,
    ) {
        let step = call.step.as_ref().map(|step| step.id);
        out.events.push(Decision {
            kind: "tool.retry",
            payload: json!({
                "step_id": step, "tool_name": call.name, "attempt": attempt, "error": error,
            }),
        });
        out.events.push(Decision {
            kind: "tool.retry.classified",
            payload: json!({
                "step_id": step, "tool_name": call.name, "attempt": attempt, "retryable": true,
                "category": retry::classify(error).as_str(),
            }),
        });
        let (n, id) = self.new_effect();
        out.effects.push(Effect {
            id,
            step,
            not_before: Some(now.after(retry::backoff(id, attempt))),
            action: EffectAction::Tool {
                name: call.name.clone(),
                args: call.args.clone(),
                class: call.class,
                bound: call.clearance.bound(),
                definition: self.toolset.definition(&call.name),
                step: call.step.as_ref().map_or(self.row.steps, |step| step.idx),
                restore: false,
            },
        });
        self.with_call(at, |call| {
            call.state = CallState::Running { effect: n, attempt: attempt + 1 };
        });
    }

    fn call_failed(
        &mut self,
        at: usize,
        call: &Call,
        outcome: &ToolOutcome,
        error: Value,
        now: Timestamp,
        out: &mut Step,
    ) {
        let message =
            error.get("message").and_then(Value::as_str).unwrap_or("tool failed").to_owned();
        let step = call.step.as_ref().map(|step| step.id);
        self.finish_call(at, outcome.result.clone(), Some(message.clone()), now, out);
        let verify = call.name == "verify"
            && error.get("code").and_then(Value::as_str) == Some("verification_failed");
        if verify {
            if let Some(prompt) = call.args.get("on_fail_prompt").and_then(Value::as_str) {
                let (prompt, calls) = (prompt.to_owned(), self.interrupt_calls(out));
                return self.ask(Question::Verify { calls }, prompt, step, now, out);
            }
            // A check that fails is news for the model, not a mistake of its own.
            self.validate(call, &outcome.result, false, out);
            return self.advance(now, out);
        }
        out.events.push(Decision {
            kind: "tool.failed",
            payload: json!({
                "run_id": self.row.id, "step_id": step, "tool_name": call.name, "retryable": false,
                "category": retry::classify(&error).as_str(), "error": error,
            }),
        });
        if self.policy() == PolicyKind::Deterministic {
            return self.fail(error, now, out);
        }
        // Calls that fail side by side are one failure: the model has not seen the first yet.
        if !std::mem::replace(&mut self.turn_failed, true) {
            self.failures += 1;
        }
        if self.failures >= self.agent.limits.failure_budget {
            let error = json!({
                "code": "failure_budget_exhausted",
                "message": "too many consecutive failed actions", "last_error": error,
            });
            return self.fail(error, now, out);
        }
        // It goes into a prompt of ours, where no text from outside may stand.
        self.last_error = match outcome.labels().untrusted {
            true => format!("`{}` failed; its result says why", call.name),
            false => message,
        };
        self.validate(call, &outcome.result, false, out);
        self.advance(now, out);
    }

    /// Closes the call's step and passes the result to the model.
    fn finish_call(
        &mut self,
        at: usize,
        output: Value,
        error: Option<String>,
        now: Timestamp,
        out: &mut Step,
    ) {
        let Phase::Acting { calls } = &mut self.phase else { return };
        let call = &mut calls[at];
        let shown = match call.state {
            CallState::Running { effect, .. } => {
                shown_to_model(EffectId::derive(self.row.id, effect), &output)
            }
            // It never ran: what it answers is ours.
            CallState::Waiting
            | CallState::Judging
            | CallState::Binding { .. }
            | CallState::Done => output.to_string(),
        };
        call.state = CallState::Done;
        let (id, name, step) = (call.id.clone(), call.name.clone(), call.step.clone());
        if let Some(id) = id {
            self.convo.tool(&id, &name, shown, error.is_some());
        } else if self.policy() != PolicyKind::Deterministic {
            // The rules decided on this call, and a fork has given the session to a model.
            self.notes.push(format!("`{name}` was called for the task and returned: {shown}"));
        }
        if let Some(step) = step {
            self.close_step(step, output, error, now, out);
        }
    }

    /// Records the action's fingerprint for the supervisor.
    fn validate(&mut self, call: &Call, result: &Value, ok: bool, out: &mut Step) {
        if self.policy() == PolicyKind::Deterministic {
            return;
        }
        let trace = Trace {
            tool: call.name.clone(),
            args: fingerprint(&call.args),
            result: fingerprint(result),
            ok,
        };
        let low = self.history.repeats(&trace);
        let code = match (ok, low) {
            (false, _) => "tool_error",
            (true, true) => "repeated_observation",
            (true, false) => "validated_generic",
        };
        out.events.push(Decision {
            kind: "worker.validation",
            payload: json!({
                "run_id": self.row.id, "step_id": call.step.as_ref().map(|step| step.id),
                "tool_name": call.name,
                "validation": {"ok": ok, "low_progress": low || !ok, "code": code},
            }),
        });
        self.history.push(trace);
    }

    /// Ends the turn after all calls of a decision are done.
    fn turn_done(&mut self, now: Timestamp, out: &mut Step) {
        if self.policy() != PolicyKind::Deterministic {
            return self.ask_model(now, out);
        }
        let Phase::Acting { calls } = &self.phase else { return };
        if calls.iter().any(|call| call.id.is_some()) {
            // A fork has given a model's session to the rules: their turn begins now.
            let task = self.row.task.clone();
            return self.decide_by_rules(&task, now, out);
        }
        // The one call of the rules closed its step just now, in this very commit.
        let answer = out.steps.last().and_then(|step| {
            let name = step.input.get("tool_name").and_then(Value::as_str)?;
            Some(rules::summary(name, step.output.as_ref()?))
        });
        self.finish_with_answer(answer.unwrap_or_default(), now, out);
    }

    // --- humans

    pub(super) fn answered(&mut self, message: &str, now: Timestamp, out: &mut Step) {
        let Phase::Asking { question } = std::mem::replace(&mut self.phase, Phase::Ended) else {
            return;
        };
        self.turn += 1;
        match &question {
            Question::Agent { .. } | Question::Verify { .. } => {
                self.row.task = format!("{}{}{}", self.row.task, rules::ANSWER, message.trim());
            }
            // A word to the engine, not to the agent.
            Question::Unknown { .. } | Question::Model | Question::Budget { .. } => {}
        }
        match question {
            Question::Agent { step, mut calls } => {
                if let Some(step) = step {
                    let prompt = step.input.get("prompt").cloned().unwrap_or(Value::Null);
                    let output = json!({"ok": true, "status": "answered", "prompt": prompt, "answer": message});
                    self.close_step(*step, output, None, now, out);
                }
                let Some(call) = calls.iter_mut().find(|call| call.state == CallState::Waiting)
                else {
                    return match self.policy() {
                        PolicyKind::Deterministic => {
                            let decided = rules::decide_answered(&self.row.task, message);
                            self.act_by_rules(decided, now, out);
                        }
                        // The answer stands in the task, which the model has not seen yet.
                        PolicyKind::Auto | PolicyKind::Model => self.ask_model(now, out),
                    };
                };
                call.state = CallState::Done;
                let answer = json!({"ok": true, "answer": message}).to_string();
                if let Some(id) = call.id.clone() {
                    self.convo.tool(&id, "ask_user", answer, false);
                }
                self.phase = Phase::Acting { calls };
                self.advance(now, out);
            }
            Question::Unknown { calls } => self.unknown_settled(calls, message, now, out),
            Question::Verify { calls } => {
                self.phase = Phase::Acting { calls };
                // Said once every call of the decision has its result: until then providers
                // accept nothing but results.
                self.notes.push(format!("The user says: {message}"));
                self.advance(now, out);
            }
            Question::Budget { code, message: said } if message.trim() == DENY => {
                self.fail(json!({"code": code, "message": said}), now, out);
            }
            Question::Model | Question::Budget { .. }
                if self.policy() == PolicyKind::Deterministic =>
            {
                let task = self.row.task.clone();
                self.decide_by_rules(&task, now, out);
            }
            Question::Model | Question::Budget { .. } => self.send_request(out),
        }
    }

    /// Handles a human's statement about an effect whose outcome was lost in a crash.
    fn unknown_settled(&mut self, calls: Vec<Call>, message: &str, now: Timestamp, out: &mut Step) {
        self.phase = Phase::Acting { calls };
        let at = self.first_waiting();
        let (ok, note) = match message.trim().to_lowercase().as_str() {
            "retry" | "again" => return self.advance(now, out),
            "done" | "skip" | "ok" => (true, "a human said that it was done".to_owned()),
            _ => (false, format!("its outcome is unknown; a human said: {message}")),
        };
        let Some(at) = at else { return self.advance(now, out) };
        let output = if ok {
            json!({"ok": true, "note": note})
        } else {
            json!({"ok": false, "error": {"code": "unknown_outcome", "message": note}})
        };
        self.finish_call(at, output, (!ok).then_some(note.clone()), now, out);
        if !ok && self.policy() == PolicyKind::Deterministic {
            return self.fail(json!({"code": "unknown_outcome", "message": note}), now, out);
        }
        self.advance(now, out);
    }

    fn first_waiting(&self) -> Option<usize> {
        let Phase::Acting { calls } = &self.phase else { return None };
        calls.iter().position(|call| call.state == CallState::Waiting)
    }

    pub(super) fn decided(
        &mut self,
        approve: bool,
        reason: Option<&str>,
        by: &str,
        now: Timestamp,
        out: &mut Step,
    ) {
        let Phase::Approving { calls, approval } = std::mem::replace(&mut self.phase, Phase::Ended)
        else {
            return;
        };
        self.phase = Phase::Acting { calls };
        let Some(at) = self.first_waiting() else { return self.advance(now, out) };
        if approve && approval.is_expired(now) {
            out.events.push(Decision {
                kind: "approval.expired",
                payload: json!({
                    "run_id": self.row.id, "approval_id": approval.id,
                    "expires_at": approval.expires_at,
                }),
            });
            self.judge_anew(at);
            return self.advance(now, out);
        }
        let answer = if approve {
            ApprovalEvent::Grant { by: by.to_owned() }
        } else {
            ApprovalEvent::Deny { by: by.to_owned(), reason: reason.map(str::to_owned) }
        };
        let (approval, _) = approval.step(answer);
        // The Hive checks right before the start that it is still the same action.
        let action = approval.action.clone();
        let (_, granted) = approval.step(ApprovalEvent::Use { action: action.clone() });
        if granted {
            self.cleared(at, action);
            return self.advance(now, out);
        }
        let message = match reason {
            Some(reason) => format!("{by} denied this: {reason}"),
            None => format!("{by} denied this"),
        };
        self.deny(at, message, now, out);
    }

    pub(super) fn deny(&mut self, at: usize, message: String, now: Timestamp, out: &mut Step) {
        let Phase::Acting { calls } = &self.phase else { return };
        let call = calls[at].clone();
        if self.step_for(at, &call, now, out).is_none() {
            return;
        }
        let error = json!({"code": "denied", "message": message});
        self.finish_call(at, json!({"ok": false, "error": error}), Some(message), now, out);
        if self.policy() == PolicyKind::Deterministic {
            return self.fail(error, now, out);
        }
        self.advance(now, out);
    }

    /// Answers the call at `at` with the error that its arguments do not match the schema. It
    /// counts like any failed call.
    pub(super) fn misfit(&mut self, at: usize, why: String, now: Timestamp, out: &mut Step) {
        let Phase::Acting { calls } = &self.phase else { return };
        let mut call = calls[at].clone();
        call.step = self.step_for(at, &call, now, out);
        if call.step.is_none() {
            return;
        }
        let outcome = ToolOutcome::failure("bad_args", why);
        let error = outcome.result["error"].clone();
        self.call_failed(at, &call, &outcome, error, now, out);
    }

    /// Returns the step of a call, and opens one unless a fork already has the step of the call
    /// that it repeats. `None` when the session has no step left and has ended.
    fn step_for(
        &mut self,
        at: usize,
        call: &Call,
        now: Timestamp,
        out: &mut Step,
    ) -> Option<StepRow> {
        if let Some(step) = &call.step {
            return Some(step.clone());
        }
        let (kind, input) = match call.name.as_str() {
            "verify" => (StepKind::Verify, call.args.clone()),
            _ => (StepKind::Tool, json!({"tool_name": call.name, "args": call.args})),
        };
        let step = self.open_step(kind, input, now, out)?;
        self.with_call(at, |call| call.step = Some(step.clone()));
        Some(step)
    }

    // --- crashes

    /// Continues after a crash. Each effect that was running is handled by its class.
    pub(super) fn recover(&mut self, now: Timestamp, out: &mut Step) {
        if let Phase::Deciding { effect, .. } = self.phase {
            return self.request_again(effect, out);
        }
        self.recover_room(now, out);
        self.recover_life(now, out);
        self.take_back_judging();
        let Phase::Acting { calls } = &self.phase else { return };
        for (at, call) in calls.iter().enumerate() {
            if let CallState::Binding { effect } = call.state {
                self.bind_again(at, effect, out);
            }
        }
        let hidden: Vec<_> = calls
            .iter()
            .enumerate()
            .filter_map(|(at, call)| match call.state {
                CallState::Running { effect, .. } => Some((at, effect, call.class)),
                CallState::Waiting
                | CallState::Judging
                | CallState::Binding { .. }
                | CallState::Done => None,
            })
            .collect();
        for (at, effect, class) in hidden {
            match after_crash(class, self.agent.on_unknown) {
                Recovery::Redo => self.redo(at, effect, false, out),
                Recovery::AskHuman if self.stays_inside(at) => self.redo(at, effect, true, out),
                Recovery::AskHuman => return self.ask_about_unknown(at, now, out),
                Recovery::ReportUnknown => {
                    let note = "the node stopped while this ran; whether it was done is unknown";
                    let output =
                        json!({"ok": false, "error": {"code": "unknown_outcome", "message": note}});
                    self.finish_call(at, output, Some(note.into()), now, out);
                    if self.policy() == PolicyKind::Deterministic {
                        let error = json!({"code": "unknown_outcome", "message": note});
                        return self.fail(error, now, out);
                    }
                }
            }
        }
        self.advance(now, out);
    }

    /// Starts the effects that a fork's repeated part decided on and never started. Approvals were
    /// given to the original session, so the fork requests its own.
    pub(super) fn recover_forked(&mut self, now: Timestamp, out: &mut Step) {
        match &self.phase {
            Phase::Deciding { .. } if self.policy() == PolicyKind::Deterministic => {
                // The model is not asked any more: no effect belongs to this turn.
                self.phase = Phase::Ended;
                let task = self.row.task.clone();
                self.decide_by_rules(&task, now, out);
            }
            Phase::Deciding { effect, .. } => {
                let effect = *effect;
                self.request_again(effect, out);
            }
            Phase::Acting { calls } => {
                let waiting: Vec<_> = calls
                    .iter()
                    .enumerate()
                    .filter_map(|(at, call)| match call.state {
                        CallState::Running { effect, .. } => Some((at, Some(effect))),
                        CallState::Binding { .. } | CallState::Judging => Some((at, None)),
                        CallState::Waiting | CallState::Done => None,
                    })
                    .collect();
                for (at, effect) in waiting {
                    let Phase::Acting { calls } = &self.phase else { return };
                    match (effect, self.next_for(&calls[at])) {
                        (Some(effect), Next::Begin) => self.redo(at, effect, false, out),
                        (_, Next::Begin | Next::Judge | Next::Bind | Next::Ask) => {
                            self.with_call(at, |call| call.state = CallState::Waiting);
                        }
                    }
                }
                self.advance(now, out);
            }
            Phase::Fresh => self.start(now, out),
            Phase::Waking { .. } => self.wake(now, out),
            Phase::Asking { .. }
            | Phase::Approving { .. }
            | Phase::Resting
            | Phase::Forked { .. }
            | Phase::Preparing { .. }
            | Phase::Living(_)
            | Phase::Closing(_)
            | Phase::Ended => {}
        }
    }

    fn redo(&self, at: usize, effect: u64, restore: bool, out: &mut Step) {
        let Phase::Acting { calls } = &self.phase else { return };
        let call = &calls[at];
        let step = call.step.as_ref().map(|step| step.id);
        let mut payload = json!({
            "run_id": self.row.id, "step_id": step, "effect": effect, "tool_name": call.name,
        });
        if restore {
            payload["restored"] = json!(true);
        }
        out.events.push(Decision { kind: "effect.redone", payload });
        out.effects.push(Effect {
            id: EffectId::derive(self.row.id, effect),
            step,
            not_before: None,
            action: EffectAction::Tool {
                name: call.name.clone(),
                args: call.args.clone(),
                class: call.class,
                bound: call.clearance.bound(),
                definition: self.toolset.definition(&call.name),
                step: call.step.as_ref().map_or(self.row.steps, |step| step.idx),
                restore,
            },
        });
    }

    /// Resets a call that waits for a verdict, so that the verdict is requested again.
    fn take_back_judging(&mut self) {
        let Phase::Acting { calls } = &mut self.phase else { return };
        for call in calls.iter_mut().filter(|call| call.state == CallState::Judging) {
            call.state = CallState::Waiting;
        }
    }

    /// Marks effects that never started as waiting, so that a recovery starts them like new ones.
    pub(super) fn hand_over(&mut self, not_begun: &[u64]) {
        let Phase::Acting { calls } = &mut self.phase else { return };
        for call in calls {
            if let CallState::Running { effect, .. } = call.state
                && not_begun.contains(&effect)
            {
                call.state = CallState::Waiting;
            }
        }
    }

    fn ask_about_unknown(&mut self, at: usize, now: Timestamp, out: &mut Step) {
        let mut calls = self.take_calls();
        out.effects.clear();
        // All of them wait again; those that may be repeated start again after the answer.
        for call in &mut calls {
            match call.state {
                CallState::Running { .. } | CallState::Binding { .. } | CallState::Judging => {
                    call.state = CallState::Waiting;
                }
                CallState::Waiting | CallState::Done => {}
            }
        }
        let call = &calls[at];
        let shown = super::model_turn::preview(&call.args.to_string());
        let prompt = format!(
            "The node stopped while `{}` ran with {shown}. Whether it was done is unknown. Answer \
             `retry` to do it again, `done` to go on as if it was done, or anything else to tell \
             the agent.",
            call.name
        );
        let step = call.step.as_ref().map(|step| step.id);
        self.ask(Question::Unknown { calls }, prompt, step, now, out);
    }
}

fn failure_text(tool: &str, result: &Value) -> String {
    match result.get("exit_code").and_then(Value::as_i64) {
        Some(code) => format!("the command exited with {code}"),
        None => format!("{tool} failed"),
    }
}

/// Returns a hash that distinguishes values. The duration of a call does not change it.
fn fingerprint(value: &Value) -> u64 {
    let mut hash = blake3::Hasher::new();
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| *name != "latency_ms") {
                hash.update(&(name.len() as u64).to_be_bytes()).update(name.as_bytes());
                mix(&mut hash, value);
            }
        }
        other => mix(&mut hash, other),
    }
    let hash = hash.finalize();
    u64::from_be_bytes(hash.as_bytes()[..8].try_into().expect("a BLAKE3 hash has 32 bytes"))
}

fn mix(hash: &mut blake3::Hasher, value: &Value) {
    struct Sink<'a>(&'a mut blake3::Hasher);
    impl fmt::Write for Sink<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0.update(part.as_bytes());
            Ok(())
        }
    }
    write!(Sink(hash), "{value}").expect("hashing does not fail");
}
