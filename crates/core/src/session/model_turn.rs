//! Turns that a model decides: the request, and the calls in its reply.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::phase::{Call, Phase, Question};
use super::supervise::{Mode, STRIKES};
use super::{Decision, Session, Step};
use crate::budget::Refusal;
use crate::effect::{Effect, EffectAction};
use crate::inbox::{DENY, InboxKind, title};
use crate::model::{ModelCall, ModelFailure, ModelReply, ModelRequest, StopReason, ToolChoice};
use crate::policy::prompt;
use crate::row::StepKind;
use crate::time::Timestamp;
use crate::tool::EffectClass;

/// Longest time without data from a provider. Providers that think long send pings.
const IDLE: Duration = Duration::from_secs(120);
/// Longest time of a call, including retries.
const TOTAL: Duration = Duration::from_secs(600);
/// Characters of a message in a preview.
const PREVIEW: usize = 280;

impl Session {
    /// Asks the model for the next action, after the supervisor has added its advice.
    pub(super) fn ask_model(&mut self, now: Timestamp, out: &mut Step) {
        self.turn_failed = false;
        if self.convo.is_empty() {
            let task = self.row.task.clone();
            // Providers refuse an empty message.
            self.convo.user(if task.trim().is_empty() { prompt::NO_TASK.into() } else { task });
        }
        let directive = self.history.directive(self.steps_left(), self.failures);
        out.events.push(Decision {
            kind: "supervisor.decided",
            payload: json!({
                "run_id": self.row.id, "idx": self.row.steps, "directive": directive.to_value(),
            }),
        });
        if let Some(stall) = self.history.stall() {
            out.events.push(Decision {
                kind: "supervisor.stalled",
                payload: json!({
                    "run_id": self.row.id, "idx": self.row.steps, "pattern": stall.pattern,
                    "what": stall.what, "strike": stall.strike,
                }),
            });
            if stall.strike >= STRIKES {
                let message = format!("the session goes in circles: {}", stall.what);
                return self.fail(json!({"code": "stalled", "message": message}), now, out);
            }
            self.convo.user(prompt::stalled(&stall.what, stall.strike));
        } else if directive.mode == Mode::Recovery && self.failures > 0 {
            let budget = self.agent.limits.failure_budget;
            self.convo.user(prompt::recover(self.failures, budget, &self.last_error));
        }
        for note in std::mem::take(&mut self.notes) {
            self.convo.user(note);
        }
        self.send_request(out);
    }

    pub(super) fn send_request(&mut self, out: &mut Step) {
        let (effect, _) = self.new_effect();
        self.request_again(effect, out);
    }

    /// Sends the present conversation as effect number `effect`.
    pub(super) fn request_again(&mut self, effect: u64, out: &mut Step) {
        let tool_choice = if self.nudged { ToolChoice::Required } else { ToolChoice::Auto };
        // A fork changes the decider, never the available tools: the first offer is final.
        let offer = self
            .offer
            .get_or_insert_with(|| Arc::new(self.toolset.offer(&self.agent.tools_allowed)));
        let tools = Arc::clone(&offer.tools);
        let mut request = self.convo.prepare(&self.agent.model, &self.system, &offer.key);
        request["tools"] = offer.names.clone();
        out.events.push(Decision {
            kind: "model.infer.started",
            payload: json!({
                "run_id": self.row.id, "effect": effect, "kind": "action",
                "model": self.agent.model, "request": request,
            }),
        });
        out.effects.push(Effect {
            id: crate::ids::EffectId::derive(self.row.id, effect),
            step: None,
            not_before: None,
            action: EffectAction::Model(Box::new(ModelRequest {
                model: self.agent.model.clone(),
                system: self.system.to_string(),
                messages: self.convo.messages(),
                tools,
                tool_choice,
                max_output_tokens: self.agent.max_output_tokens,
                temperature: Some(0.0),
                reasoning_effort: self.agent.reasoning_effort.clone(),
                idle_timeout: IDLE,
                total_timeout: TOTAL,
                // The sender knows the span.
                traceparent: None,
            })),
        });
        self.phase = Phase::Deciding { effect, request };
    }

    pub(super) fn model_done(
        &mut self,
        reply: &Result<Box<ModelReply>, ModelFailure>,
        now: Timestamp,
        out: &mut Step,
    ) {
        let refused = reply.as_ref().err().filter(|failure| is_budget(failure));
        if refused.is_none() {
            self.row.model_calls += 1;
        }
        // Answered: an end need not stop anything any more.
        self.phase = Phase::Ended;
        match reply {
            Ok(reply) => self.model_replied(reply, now, out),
            Err(failure) if is_budget(failure) => self.ask_for_budget(failure, now, out),
            Err(failure) if failure.transient => {
                let prompt = format!(
                    "The model could not be reached: {}. Answer anything to try again, or cancel.",
                    failure.message
                );
                self.ask(Question::Model, prompt, None, now, out);
            }
            Err(failure) => {
                let error = json!({
                    "code": "model_inference_error", "message": failure.message,
                    "details": {"code": failure.code, "status": failure.status, "body": failure.body},
                });
                self.fail(error, now, out);
            }
        }
    }

    /// Waits for a human to raise a budget, to set the price of a model, or to end an emergency
    /// stop.
    fn ask_for_budget(&mut self, failure: &ModelFailure, now: Timestamp, out: &mut Step) {
        let prompt = format!(
            "{}. Answer `{DENY}` to end the run, anything else to try again.",
            failure.message
        );
        let (code, message) = (failure.code.clone(), failure.message.clone());
        self.ask(Question::Budget { code, message }, prompt, None, now, out);
        let Some(waiting) = &mut self.waiting else { return };
        waiting.title = title(&failure.message);
        waiting.details["why"] = failure.code.clone().into();
        let refusal: Option<Refusal> =
            failure.body.as_deref().and_then(|body| serde_json::from_str(body).ok());
        match &refusal {
            Some(Refusal::Over { id, unit, .. }) => {
                waiting.kind = InboxKind::Raise;
                waiting.group = Some(format!("raise:{id}"));
                waiting.details["limit_id"] = id.to_string().into();
                waiting.details["unit"] = json!(unit);
            }
            Some(Refusal::Halted { .. }) => waiting.group = Some("halted".to_owned()),
            Some(Refusal::UnknownPrice { .. }) | None => {}
        }
        if let Some(refusal) = refusal {
            waiting.details["refusal"] = json!(refusal);
        }
    }

    fn model_replied(&mut self, reply: &ModelReply, now: Timestamp, out: &mut Step) {
        self.row.usage.add(reply.usage);
        self.row.cost_microusd = self
            .row
            .cost_microusd
            .zip(reply.cost_microusd)
            .map(|(sum, cost)| sum.saturating_add(cost));
        let state = reply.provider_state.clone();
        if !reply.calls.is_empty() {
            self.nudged = false;
            self.convo.assistant(reply.text.clone(), reply.calls.clone(), state);
            let calls = reply.calls.iter().map(|call| self.call_of(call)).collect();
            self.selected(&reply.calls, out);
            self.phase = Phase::Acting { calls };
            return self.advance(now, out);
        }
        let refused = |code: &str, message: &str| json!({"code": code, "message": message});
        match reply.stop {
            StopReason::Refusal => {
                self.fail(refused("model_refused", "the model refused to answer"), now, out);
            }
            StopReason::MaxTokens => {
                let message =
                    "the model's answer was cut at its token limit; raise max_output_tokens";
                self.fail(refused("model_output_truncated", message), now, out);
            }
            StopReason::End | StopReason::ToolCalls if reply.text.trim().is_empty() => {
                if self.nudged {
                    let message = "the model answered twice with neither text nor a tool call";
                    return self.fail(refused("model_inference_error", message), now, out);
                }
                self.nudged = true;
                self.convo.user(prompt::NUDGE.to_owned());
                self.send_request(out);
            }
            StopReason::End | StopReason::ToolCalls => {
                // Words without a call are the answer.
                self.convo.assistant(reply.text.clone(), Vec::new(), state);
                self.action_selected("final_answer", json!({"message": preview(&reply.text)}), out);
                self.finish_with_answer(reply.text.clone(), now, out);
            }
        }
    }

    fn call_of(&self, call: &ModelCall) -> Call {
        // An unknown tool is refused by the gateway without an effect, so nothing is lost.
        let class = self.toolset.find(&call.name).map_or(EffectClass::Pure, |tool| tool.class);
        Call::new(Some(call.id.clone()), call.name.clone(), call.args.clone(), class)
    }

    fn selected(&self, calls: &[ModelCall], out: &mut Step) {
        for call in calls {
            let message = || json!({"message": preview(message_of(&call.args))});
            match call.name.as_str() {
                "ask_user" => self.action_selected("ask_user", message(), out),
                "final_answer" => self.action_selected("final_answer", message(), out),
                "verify" => {
                    self.action_selected("verify", json!({"checks": call.args.get("checks")}), out)
                }
                name => self.action_selected(
                    "tool_call",
                    json!({"tool_name": name, "args": preview_args(&call.args)}),
                    out,
                ),
            }
        }
    }

    fn action_selected(&self, kind: &str, action: Value, out: &mut Step) {
        out.events.push(Decision {
            kind: "plan.action_selected",
            payload: json!({
                "run_id": self.row.id, "idx": self.row.steps, "kind": kind, "action": action,
            }),
        });
    }

    /// Writes the step of the answer and ends the session successfully.
    pub(super) fn finish_with_answer(&mut self, answer: String, now: Timestamp, out: &mut Step) {
        let Some(step) = self.open_step(StepKind::Eval, json!({"result": "done"}), now, out) else {
            return;
        };
        self.close_step(step, json!({"ok": true, "final_answer": answer}), None, now, out);
        self.succeed(answer, now, out);
    }
}

/// Returns whether a budget refused the call, so that no model was asked.
fn is_budget(failure: &ModelFailure) -> bool {
    matches!(failure.code.as_str(), "budget_exhausted" | "price_unknown" | "halted")
}

pub(super) fn message_of(args: &Value) -> &str {
    args.get("message").and_then(Value::as_str).unwrap_or("")
}

pub(super) fn preview(text: &str) -> String {
    match text.char_indices().nth(PREVIEW) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Shortens long texts in arguments. The step contains them in full.
fn preview_args(args: &Value) -> Value {
    match args {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| {
                let short = match value {
                    Value::String(text) => Value::String(preview(text)),
                    Value::Array(_) | Value::Object(_) => {
                        Value::String(preview(&value.to_string()))
                    }
                    Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
                };
                (key.clone(), short)
            })
            .collect(),
        other => Value::String(preview(&other.to_string())),
    }
}
