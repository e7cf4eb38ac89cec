//! Invariants after every step of every session.

use std::collections::BTreeSet;

use overmind_core::approval::action_hash;
use overmind_core::command::LifeInput;
use overmind_core::effect::{Effect, EffectAction};
use overmind_core::gate;
use overmind_core::ids::HiveId;
use overmind_core::inbox::InboxKind;
use overmind_core::model::{Message, ModelRequest};
use overmind_core::row::SessionStatus;
use overmind_core::session::{Decision, Input, Recorded, STALE_APPROVAL, Session, Step};
use overmind_core::tool::EffectClass;
use serde_json::Value;

use super::{Flight, World};

impl World {
    /// The recorded input equals the input.
    #[track_caller]
    pub(super) fn check_record(&self, kind: &str, payload: &Value, input: &Input) {
        let back = Recorded::decode(kind, &payload.to_string()).expect("its own payload");
        assert_eq!(back, Recorded::Input(input.clone()), "read back from the log as `{kind}`");
    }

    #[track_caller]
    pub(super) fn check(&mut self, before: &Session, kind: &str, input: &Input, step: &Step) {
        let wakes = matches!(input, Input::Told { .. } | Input::Restored { .. });
        assert!(wakes || !before.status().is_terminal(), "an ended session took {input:?}");
        if before.status().is_terminal() {
            self.ends = 0;
        }
        let may_repeat = self.may_repeat(input);
        self.note_verdict(before, input);
        self.check_placement(before, input);
        self.leave_behind(input);
        if kind == "run.canceled" {
            self.ends += 1;
        }
        for event in &step.events {
            self.check_event(event);
        }
        self.check_steps(before, step);
        // Aborted before the start: an aborted effect is never one that the same step starts.
        for id in &step.aborted {
            let found = self.flights.iter().find(|(_, flight)| flight.id == *id).map(|(n, _)| *n);
            let n = found.unwrap_or_else(|| {
                panic!("{id} is aborted and not under way at {input:?}: {:?}", self.flights)
            });
            self.flights.remove(&n);
        }
        for effect in &step.effects {
            self.take_off(effect, may_repeat);
        }
        self.check_state();
    }

    /// Epochs only grow, and a placement is stored in the row.
    #[track_caller]
    fn check_placement(&self, before: &Session, input: &Input) {
        let (old, new) = (before.row(), self.session.row());
        match input {
            Input::Started { epoch, hive, .. }
            | Input::Recovered { epoch, hive }
            | Input::Answered { epoch, hive, .. }
            | Input::Decided { epoch, hive, .. } => {
                assert!(*epoch > old.epoch, "a stale epoch was accepted");
                assert_eq!((new.epoch, new.hive), (*epoch, Some(*hive)));
            }
            Input::Told { epoch, hive, .. } if old.status != SessionStatus::Running => {
                assert!(*epoch > old.epoch, "a stale epoch was accepted");
                assert_eq!((new.epoch, new.hive), (*epoch, Some(*hive)));
            }
            Input::Restored { epoch, hive, .. } => {
                assert!(old.status.is_terminal(), "what has not ended was brought back");
                assert!(*epoch > old.epoch, "a stale epoch was accepted");
                assert_eq!(new.epoch, *epoch);
                assert!(new.hive == Some(*hive) || new.status == SessionStatus::Idle);
            }
            Input::Told { .. }
            | Input::ToolDone { .. }
            | Input::ModelDone { .. }
            | Input::Judged { .. }
            | Input::Bound { .. }
            | Input::Canceled { .. }
            | Input::TimeLimit
            | Input::Life(_)
            | Input::Room(_)
            | Input::Forked
            | Input::HandedOver { .. } => assert_eq!((new.epoch, new.hive), (old.epoch, old.hive)),
        }
        assert!(matches!(new.hive, None | Some(HiveId::LOCAL)));
    }

    /// Removes the effects that the input answers, or that ended with the old attempt.
    #[track_caller]
    fn leave_behind(&mut self, input: &Input) {
        match input {
            Input::ToolDone { effect, .. } | Input::ModelDone { effect, .. } => {
                let flight = self.flights.remove(effect).expect("a result of what is under way");
                let model = matches!(input, Input::ModelDone { .. });
                assert_eq!(model, flight.tool().is_none(), "a result of the wrong sort");
                assert!(!flight.is_binding(), "a result of the wrong sort");
                if let Input::ToolDone { outcome, .. } = input
                    && outcome.result["error"]["code"] == STALE_APPROVAL
                {
                    // The Hive found that the action differs from the approved one, and did nothing.
                    let step = flight.step.expect("a tool works for a step");
                    self.begun.remove(&step);
                }
            }
            Input::Bound { effect, .. } => {
                let flight = self.flights.remove(effect).expect("a result of what is under way");
                assert!(flight.is_binding(), "a result of the wrong sort");
            }
            Input::Judged { .. } => {}
            Input::Recovered { .. } => {
                self.flights.clear();
                self.handed_over = false;
            }
            Input::HandedOver { not_begun } => {
                self.handed_over = true;
                for n in not_begun {
                    let flight = self.flights.remove(n).expect("what is under way");
                    self.taken_back.insert(flight.step.expect("a tool"));
                }
            }
            Input::Life(LifeInput::StopAsked { .. }) => {}
            Input::Life(_) | Input::Room(_) => {
                panic!("these sessions run no commands: see `lives`")
            }
            Input::Forked => {
                // No part of the repeated steps was carried out for the fork.
                self.flights.clear();
                self.begun.clear();
                self.granted = None;
                if self.status() != SessionStatus::AwaitingApproval {
                    self.cleared.clear();
                }
            }
            Input::Decided { approve, .. } => {
                let requested = self.requested.take().expect("an approval was asked for");
                self.granted = approve.then_some(requested);
            }
            Input::Started { .. }
            | Input::Answered { .. }
            | Input::Told { .. }
            | Input::Restored { .. }
            | Input::Canceled { .. }
            | Input::TimeLimit => {}
        }
    }

    #[track_caller]
    fn check_event(&mut self, event: &Decision) {
        let Decision { kind, payload } = event;
        let idx = || u32::try_from(payload["idx"].as_u64().expect("an index")).expect("small");
        match *kind {
            "step.started" => {
                assert_eq!(idx(), self.opened, "steps are numbered without gaps, and begin once");
                self.opened += 1;
                self.open.insert(idx());
            }
            "step.finished" => {
                assert!(self.open.remove(&idx()), "step {} ended without a beginning", idx());
            }
            "run.succeeded" | "run.failed" => self.ends += 1,
            "run.awaiting_input" => {
                self.asked = payload["reason"].as_str().expect("a reason").to_owned();
                assert_eq!(payload["prompt"].as_str(), self.session.row().prompt.as_deref());
            }
            "approval.requested" => {
                self.requested = Some(payload["action_hash"].as_str().expect("a hash").to_owned());
            }
            _ => {}
        }
    }

    /// Rows of steps: finished ones never change, and rows tell the same as the events.
    #[track_caller]
    fn check_steps(&mut self, before: &Session, step: &Step) {
        let mut seen = BTreeSet::new();
        for row in &step.steps {
            assert!(seen.insert(row.idx), "step {} is written twice in one commit", row.idx);
            assert_eq!(row.session, before.row().id);
            if let Some(old) = self.steps.get(&row.idx) {
                assert_eq!(old.finished_at, None, "a finished step changed");
                assert_eq!((old.id, old.kind, old.started_at), (row.id, row.kind, row.started_at));
                assert_eq!((&old.input, old.turn), (&row.input, row.turn));
            }
            assert_eq!(row.finished_at.is_some(), row.output.is_some());
            assert_eq!(row.finished_at.is_none(), self.open.contains(&row.idx));
            self.steps.insert(row.idx, row.clone());
        }
    }

    /// An effect is handed out.
    #[track_caller]
    fn take_off(&mut self, effect: &Effect, may_repeat: bool) {
        assert_eq!(self.status(), SessionStatus::Running, "an effect of a session that waits");
        let n = self.session.effect_number(effect.id).expect("a new effect is under way");
        match &effect.action {
            EffectAction::Tool { name, args, class, bound, definition: _, step: _, restore: _ } => {
                let known = self.toolset.find(name).map_or(EffectClass::Pure, |tool| tool.class);
                assert_eq!(*class, known);
                let step = effect.step.expect("a tool works for a step");
                let row = self.steps.values().find(|row| row.id == step).expect("a written step");
                assert_eq!(row.finished_at, None, "a tool that works for a step of the past");
                let first = self.begun.insert(step);
                let taken_back = self.taken_back.remove(&step);
                assert!(
                    first || taken_back || may_repeat || *class != EffectClass::Once,
                    "`{name}` is done again and nobody said that it may be"
                );
                let outside = self.toolset.find(name).is_some_and(|tool| !tool.internal);
                if first && self.gated() && outside {
                    let wanted = match bound {
                        None => gate::Decision::Allow,
                        Some(bound) => {
                            assert_eq!(self.granted.take().as_deref(), Some(&*bound.hash));
                            assert_eq!(bound.files, ["a.sh"]);
                            gate::Decision::Ask
                        }
                    };
                    let at = self.verdict_about(name, args, wanted);
                    self.cleared.remove(at);
                } else if first && self.needs_approval(name) {
                    let granted = self.granted.take();
                    assert_eq!(granted, Some(action_hash(name, args)), "`{name}` begins ungranted");
                }
                let later = effect.not_before.is_none_or(|at| at > self.now);
                assert!(later, "a backoff lies in the future");
            }
            EffectAction::Bind { name, args, files, policy: _ } => {
                self.verdict_about(name, args, gate::Decision::Ask);
                assert_eq!(files.as_slice(), ["a.sh"]);
            }
            EffectAction::Live(_) | EffectAction::Room(_) => {
                panic!("these sessions run no commands: see `lives`")
            }
            EffectAction::Model(request) => {
                assert!(effect.step.is_none() && effect.not_before.is_none());
                check_conversation(request);
            }
        }
        let Effect { id, step, not_before: _, action } = effect.clone();
        let was = self.flights.insert(n, Flight { id, step, action });
        assert!(was.is_none(), "effect {n} is under way already");
    }

    /// Whether calls are judged: a fork's repeated part is as it was.
    fn gated(&self) -> bool {
        self.session.spec().gated
    }

    fn note_verdict(&mut self, before: &Session, input: &Input) {
        let Input::Judged { verdict } = input else { return };
        let call = before.to_judge().expect("a verdict that somebody waits for");
        let (tool, args) = (call.tool.to_owned(), call.args.clone());
        let wanted =
            if self.needs_approval(&tool) { gate::Decision::Ask } else { gate::Decision::Allow };
        self.granted = None;
        self.cleared.push((tool, args, verdict.decision.max(wanted)));
    }

    /// The position of the newest such verdict about this call.
    #[track_caller]
    fn verdict_about(&self, tool: &str, args: &Value, decision: gate::Decision) -> usize {
        let found = self
            .cleared
            .iter()
            .rposition(|(name, judged, what)| (&**name, judged, *what) == (tool, args, decision));
        found.unwrap_or_else(|| panic!("nobody said {decision} about {tool} {args}"))
    }

    fn needs_approval(&self, tool: &str) -> bool {
        let known = self.toolset.find(tool);
        let asks = &self.session.agent().approvals;
        known.is_some_and(|tool| !tool.internal) && asks.iter().any(|a| a == "*" || a == tool)
    }

    #[track_caller]
    fn check_state(&self) {
        let (session, row) = (&self.session, self.session.row());
        for (n, flight) in &self.flights {
            assert_eq!(session.effect_number(flight.id), Some(*n), "forgot what is under way");
        }
        let (running, waits) = (row.status == SessionStatus::Running, !self.flights.is_empty());
        assert!(
            running == waits || (running && (self.handed_over || session.to_judge().is_some())),
            "a session runs if and only if something is under way for it"
        );
        assert_eq!(row.prompt.is_some(), self.awaits());
        assert_eq!(row.approval.is_some(), row.status == SessionStatus::AwaitingApproval);
        let waiting = session.waiting();
        assert_eq!(waiting.is_some(), self.awaits(), "one open item while it waits, else none");
        if let Some(waiting) = waiting {
            let kind =
                if row.approval.is_some() { InboxKind::Approval } else { InboxKind::Question };
            assert_eq!(waiting.kind, kind);
            let same = row.approval.is_none_or(|id| id.as_u128() == waiting.id.as_u128());
            assert!(same, "the item of an approval has its digits");
            assert_eq!(waiting.details["prompt"].as_str(), row.prompt.as_deref());
        }
        assert_eq!(self.steps.len(), row.steps as usize, "a row for each step");
        let ended = row.status.is_terminal();
        assert_eq!(row.finished_at.is_some(), ended);
        assert_eq!(self.ends, u32::from(ended), "exactly one event tells the end");
        if ended {
            assert!(self.open.is_empty(), "steps left open: {:?}", self.open);
            assert!(self.steps.values().all(|step| step.finished_at.is_some()));
            assert_eq!(session.deadline(), None);
        }
        if !running {
            assert_eq!(session.deadline(), None, "time runs while it does not");
        }
    }

    fn awaits(&self) -> bool {
        matches!(self.status(), SessionStatus::AwaitingInput | SessionStatus::AwaitingApproval)
    }
}

/// A conversation that every provider takes: it begins with the user, every call has exactly one
/// result before anything else is said, and the model has not the last word.
#[track_caller]
pub(crate) fn check_conversation(request: &ModelRequest) {
    let mut unanswered: Vec<&str> = Vec::new();
    let mut calls_seen = BTreeSet::new();
    for (n, message) in request.messages.iter().enumerate() {
        match message {
            Message::Tool { call_id, .. } => {
                let at = unanswered.iter().position(|id| id == call_id);
                let at = at.unwrap_or_else(|| panic!("message {n} answers no call: {message:?}"));
                unanswered.remove(at);
            }
            Message::User { text } => {
                assert!(unanswered.is_empty(), "message {n} comes before {unanswered:?}");
                assert!(!text.trim().is_empty(), "message {n} says nothing");
            }
            Message::Assistant { text, calls, .. } => {
                assert!(unanswered.is_empty(), "message {n} comes before {unanswered:?}");
                assert!(n > 0, "a conversation begins with the user");
                assert!(!text.is_empty() || !calls.is_empty(), "message {n} says nothing");
                unanswered.extend(calls.iter().map(|call| call.id.as_str()));
                let new = calls.iter().all(|call| calls_seen.insert(call.id.as_str()));
                assert!(new, "two calls share an id");
            }
        }
    }
    assert!(unanswered.is_empty(), "calls without a result: {unanswered:?}");
    let last = request.messages.last().expect("a conversation is never empty");
    assert!(!matches!(last, Message::Assistant { .. }), "the model has the last word");
}
