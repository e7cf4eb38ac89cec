//! Checks a call before it starts: the policy's verdict, and a human's consent.
//!
//! A session with a policy requests a verdict before each call starts. The verdict is an input,
//! recorded in the commit that requested it, so a replay does not evaluate the policy again. Before
//! a human is asked, the Hive describes exactly what would happen and hashes the description.
//! Consent applies only to that hash.

use serde_json::{Value, json};

use super::phase::{Call, CallState, Clearance, Phase};
use super::{Decision, Session, Step};
use crate::approval::{Approval, action_hash};
use crate::canary::{self, Alarm};
use crate::effect::{Bound, Effect, EffectAction};
use crate::gate::{self, GateVerdict, Labels};
use crate::ids::{ApprovalId, InboxId};
use crate::inbox::{InboxKind, Waiting, shown_args, title};
use crate::row::SessionStatus;
use crate::sandbox::SandboxLevel;
use crate::time::Timestamp;
use crate::tool::ToolOutcome;
use crate::tool_traits::is_command;

/// The error of a call that no longer matched its approval when it started.
pub const STALE_APPROVAL: &str = "approval_stale";

/// A call that waits for a verdict. The session does not continue until [`super::Input::Judged`]
/// answers, in the same commit.
#[derive(Clone, Copy, Debug)]
pub struct ToJudge<'a> {
    pub tool: &'a str,
    pub args: &'a Value,
    pub labels: Labels,
}

/// The next thing to do before a call can start.
pub(super) enum Next {
    Begin,
    Judge,
    /// Let the Hive describe exactly what a human would agree to.
    Bind,
    /// Ask a human at once. This is for sessions without a policy. All new sessions have one, but
    /// sessions of older logs must replay as they ran.
    Ask,
}

impl Session {
    /// Returns whether everything that a call may have changed is in the session's environment,
    /// whose files were saved before it. That holds for a command in the environment's sandbox that
    /// needed no approval, unless it talks to this server, which can cause changes elsewhere.
    pub(super) fn stays_inside(&self, at: usize) -> bool {
        let Phase::Acting { calls } = &self.phase else { return false };
        let Some(call) = calls.get(at) else { return false };
        self.row.has_worktree()
            && self.agent.sandbox != SandboxLevel::None
            && is_command(&call.name)
            && call.clearance.bound().is_none()
            && !call.args.to_string().contains("overmind")
    }

    /// Returns the call that needs a verdict now, if there is one.
    pub fn to_judge(&self) -> Option<ToJudge<'_>> {
        let Phase::Acting { calls } = &self.phase else { return None };
        let call = calls.iter().find(|call| call.state == CallState::Judging)?;
        Some(ToJudge { tool: &call.name, args: &call.args, labels: self.labels })
    }

    pub(super) fn next_for(&self, call: &Call) -> Next {
        // Tools of the session itself touch nothing, and an unknown one is refused by its gateway.
        let outside = self.toolset.find(&call.name).is_some_and(|tool| !tool.internal);
        match &call.clearance {
            Clearance::Given { .. } => Next::Begin,
            Clearance::Asked(_) => Next::Bind,
            Clearance::None if !outside => Next::Begin,
            Clearance::None if self.gated => Next::Judge,
            Clearance::None if self.agent_asks(&call.name) => Next::Ask,
            Clearance::None => Next::Begin,
        }
    }

    /// Returns whether the agent's definition requires a human's approval for this tool.
    pub fn agent_asks(&self, tool: &str) -> bool {
        self.agent.approvals.iter().any(|name| name == "*" || *name == tool)
    }

    pub(super) fn judged(&mut self, verdict: &GateVerdict, now: Timestamp, out: &mut Step) {
        let Phase::Acting { calls } = &self.phase else { return };
        let Some(at) = calls.iter().position(|call| call.state == CallState::Judging) else {
            return;
        };
        let call = calls[at].clone();
        let wanted = match self.agent_asks(&call.name) {
            true => gate::Decision::Ask,
            false => gate::Decision::Allow,
        };
        self.with_call(at, |call| call.state = CallState::Waiting);
        match verdict.decision.max(wanted) {
            gate::Decision::Allow => {
                self.with_call(at, |call| call.clearance = Clearance::Given { bound: None });
            }
            gate::Decision::Ask => {
                let verdict = Box::new(verdict.clone());
                self.with_call(at, |call| call.clearance = Clearance::Asked(verdict));
            }
            gate::Decision::Deny if verdict.is_misfit() => {
                return self.misfit(at, verdict.advice.clone(), now, out);
            }
            gate::Decision::Deny => {
                if verdict.rule.place == canary::RULE_PLACE {
                    self.alarm(Alarm::Tripped, &call, None, &verdict.reason, out);
                }
                return self.deny(at, verdict.advice.clone(), now, out);
            }
        }
        self.advance(now, out);
    }

    /// Records the canaries (planted secrets) that the result of a call reports.
    pub(super) fn tell_of_canary(
        &mut self,
        call: &Call,
        effect: u64,
        outcome: &ToolOutcome,
        out: &mut Step,
    ) {
        if let Some((alarm, what)) = canary::told_by(&outcome.result) {
            self.alarm(alarm, call, Some(effect), what, out);
        }
    }

    fn alarm(
        &mut self,
        alarm: Alarm,
        call: &Call,
        effect: Option<u64>,
        what: &str,
        out: &mut Step,
    ) {
        // A session that looked for one secret may have others.
        self.labels.private = true;
        let step = call.step.as_ref().map(|step| step.id);
        out.events.push(Decision {
            kind: alarm.kind(),
            payload: json!({
                "run_id": self.row.id, "step_id": step, "effect": effect,
                "tool_name": call.name, "what": what,
            }),
        });
    }

    /// Asks the Hive what exactly the call at `at` would do.
    pub(super) fn begin_binding(&mut self, at: usize, out: &mut Step) {
        let (n, _) = self.new_effect();
        self.with_call(at, |call| call.state = CallState::Binding { effect: n });
        self.bind_again(at, n, out);
    }

    pub(super) fn bind_again(&self, at: usize, effect: u64, out: &mut Step) {
        let Phase::Acting { calls } = &self.phase else { return };
        let Clearance::Asked(verdict) = &calls[at].clearance else { return };
        out.effects.push(Effect {
            id: crate::ids::EffectId::derive(self.row.id, effect),
            step: calls[at].step.as_ref().map(|step| step.id),
            not_before: None,
            action: EffectAction::Bind {
                name: calls[at].name.clone(),
                args: calls[at].args.clone(),
                files: verdict.files.clone(),
                policy: verdict.policy.clone(),
            },
        });
    }

    pub(super) fn bound(
        &mut self,
        effect: u64,
        hash: &str,
        expires_at: Option<Timestamp>,
        now: Timestamp,
        out: &mut Step,
    ) {
        let Phase::Acting { calls } = &self.phase else { return };
        let Some(at) = calls.iter().position(|call| call.state == CallState::Binding { effect })
        else {
            return;
        };
        let call = calls[at].clone();
        let Clearance::Asked(verdict) = &call.clearance else { return };
        self.with_call(at, |call| call.state = CallState::Waiting);
        let about = json!({
            "reason": verdict.reason, "risk": verdict.risk, "rule": verdict.rule,
            "policy": verdict.policy, "actions": verdict.actions, "files": verdict.files,
            "expires_at": expires_at,
        });
        let group = verdict.group.clone();
        let what = super::model_turn::preview(&shown(&call.args));
        let prompt = format!(
            "May it {} `{what}`? {} ({} risk)",
            verb(&call.name),
            verdict.reason,
            verdict.risk
        );
        self.ask_consent(&call, hash.to_owned(), expires_at, prompt, about, group, now, out);
    }

    /// Asks a human for a session without a policy: see [`Next::Ask`].
    pub(super) fn begin_approval(&mut self, call: &Call, now: Timestamp, out: &mut Step) {
        let action = action_hash(&call.name, &call.args);
        let prompt = format!(
            "May `{}` run? {}",
            call.name,
            super::model_turn::preview(&call.args.to_string())
        );
        self.ask_consent(call, action, None, prompt, Value::Null, None, now, out);
    }

    #[expect(clippy::too_many_arguments, reason = "each is a part of one question")]
    fn ask_consent(
        &mut self,
        call: &Call,
        action: String,
        expires_at: Option<Timestamp>,
        prompt: String,
        about: Value,
        group: Option<String>,
        now: Timestamp,
        out: &mut Step,
    ) {
        let id = ApprovalId::derive(self.row.id, self.next_approval);
        self.next_approval += 1;
        let mut payload = json!({
            "run_id": self.row.id, "approval_id": id, "tool_name": call.name,
            "args": call.args, "action_hash": action,
        });
        if let (Some(payload), Value::Object(about)) = (payload.as_object_mut(), about) {
            payload.extend(about);
        }
        if let Some(group) = &group {
            payload["group"] = json!(group);
        }
        let mut details = payload.clone();
        let (args, cut) = shown_args(&call.args);
        details["args"] = args;
        if cut {
            details["args_cut"] = json!(true);
        }
        details["prompt"] = json!(prompt);
        details["sandbox"] = json!(self.agent.sandbox);
        details["workspace"] = json!(self.row.directory());
        out.events.push(Decision { kind: "approval.requested", payload });
        self.waiting = Some(Box::new(Waiting {
            id: InboxId::from_u128(id.as_u128()),
            kind: InboxKind::Approval,
            title: title(&format!("{}: {}", call.name, shown(&call.args))),
            details,
            group,
            asked_at: now,
            expires_at,
        }));
        self.stop_clock(now);
        self.row.status = SessionStatus::AwaitingApproval;
        self.row.approval = Some(id);
        self.row.prompt = Some(prompt);
        let calls = self.take_calls();
        self.phase = Phase::Approving { calls, approval: Approval::ask(id, action, expires_at) };
    }

    /// Records the consent for the call at `at`.
    pub(super) fn cleared(&mut self, at: usize, hash: String) {
        self.with_call(at, |call| {
            let bound = match &call.clearance {
                Clearance::Asked(verdict) => Some(Bound {
                    hash,
                    files: verdict.files.clone(),
                    policy: verdict.policy.clone(),
                }),
                Clearance::None | Clearance::Given { .. } => None,
            };
            call.clearance = Clearance::Given { bound };
        });
    }

    /// Resets the call at `at`, so that it waits for a verdict again.
    pub(super) fn judge_anew(&mut self, at: usize) {
        self.with_call(at, |call| {
            call.clearance = Clearance::None;
            call.state = CallState::Waiting;
        });
    }
}

/// Returns what a tool does, as the beginning of a sentence that continues with its arguments.
fn verb(tool: &str) -> String {
    match tool {
        "run_shell" => "run".to_owned(),
        other => format!("call {other} with"),
    }
}

/// Returns the one argument that is enough to describe the call, or all of them.
fn shown(args: &Value) -> String {
    match args.get("command").or_else(|| args.get("url")).and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => args.to_string(),
    }
}
