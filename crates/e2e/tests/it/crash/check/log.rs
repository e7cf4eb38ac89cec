//! Rules about the log and the rows.

use std::collections::BTreeMap;

use overmind_core::ids::{ApprovalId, InboxId, StepId};
use overmind_core::inbox::InboxState;
use overmind_core::room::stay::RoomPhase;
use overmind_core::row::{SessionRow, SessionStatus};
use serde_json::Value;

use super::super::evidence::{Evidence, Story};
use super::Found;

/// The events that end a session, and the status that belongs to each.
const ENDS: &[(&str, SessionStatus)] = &[
    ("run.succeeded", SessionStatus::Succeeded),
    ("run.failed", SessionStatus::Failed),
    ("run.canceled", SessionStatus::Canceled),
];
/// The events that raise the epoch.
const STARTS: &[&str] =
    &["run.started", "run.recovered", "run.input_received", "approval.answered"];

pub(super) fn audit(evidence: &Evidence, found: &mut Found) {
    match &evidence.audit {
        Err(err) => found.add(format!("the audit failed: {err}")),
        Ok(report) => {
            for finding in &report.findings {
                found.add(format!("{finding:?}"));
            }
            found.unless(report.events == evidence.globals.len() as u64, || {
                format!("it saw {} events of {}", report.events, evidence.globals.len())
            });
        }
    }
}

pub(super) fn globals(evidence: &Evidence, found: &mut Found) {
    for (expected, global) in (1_u64..).zip(&evidence.globals) {
        if expected != *global {
            return found.add(format!("event {expected} overall is missing, {global} follows"));
        }
    }
}

pub(super) fn settled(evidence: &Evidence, story: &Story, found: &mut Found) {
    if evidence.outside.settled {
        let status = story.row.status;
        found.unless(status.is_terminal(), || format!("it is still {}", status.as_str()));
    }
}

pub(super) fn sequence(_: &Evidence, story: &Story, found: &mut Found) {
    let first = story.events.first().map(super::super::evidence::Event::kind);
    found.unless(first == Some("run.queued"), || format!("its log begins with {first:?}"));
    for (expected, event) in (1_u64..).zip(&story.events) {
        if expected != event.log.seq {
            return found.add(format!("event {expected} is missing, {} follows", event.log.seq));
        }
    }
}

pub(super) fn one_end(_: &Evidence, story: &Story, found: &mut Found) {
    let ends: Vec<_> = story
        .events
        .iter()
        .enumerate()
        .filter_map(|(at, event)| {
            let (_, status) = ENDS.iter().find(|(kind, _)| *kind == event.kind())?;
            Some((at, *status))
        })
        .collect();
    let status = story.row.status;
    match (ends.as_slice(), status.is_terminal()) {
        ([], false) => {}
        // A cancellation is recorded first; the run has ended when its environment is removed.
        ([(_, SessionStatus::Canceled)], false) if is_closing(&story.row) => {}
        ([(at, said)], true) => {
            found.unless(*said == status, || {
                format!("its log says {}, its row {}", said.as_str(), status.as_str())
            });
            let end = &story.events[*at];
            let late = story.events[at + 1..].iter().find(|event| match event.kind() {
                // An order to cancel is recorded before the steps that it closes. So is the release
                // of its environment, also by the start after a kill.
                "room.closing" | "room.progress" | "room.closed" | "room.left"
                | "run.recovered" => {
                    *said != SessionStatus::Canceled
                        || story.events[at + 1..].iter().all(|one| one.kind() != "room.closing")
                }
                "step.finished" => *said != SessionStatus::Canceled || event.log.ts != end.log.ts,
                // A text that was being stored in memory when its run was ended is stored
                // nevertheless, and the log records it as an observation without consequences. The
                // same applies to a file.
                "memory.stored" | "artifact.saved" => *said == SessionStatus::Succeeded,
                _ => true,
            });
            if let Some(late) = late {
                found.add(format!("{} comes after its end", late.kind()));
            }
        }
        (ends, _) => found.add(format!(
            "{} terminal events, and its row says {}",
            ends.len(),
            status.as_str()
        )),
    }
    let said = |key| story.events.iter().rev().find_map(|event| event.value.get(key)).cloned();
    if status == SessionStatus::Succeeded {
        let row = story.row.final_answer.clone().map(Value::String);
        found.unless(row == said("final_answer"), || "its answer is not the log's".into());
    }
}

fn is_closing(row: &SessionRow) -> bool {
    row.room.as_ref().is_some_and(|room| room.phase == RoomPhase::Closing)
}

pub(super) fn replay(_: &Evidence, story: &Story, found: &mut Found) {
    if let Err(err) = &story.replayed {
        found.add(err.clone());
    }
}

pub(super) fn row_is_log(_: &Evidence, story: &Story, found: &mut Found) {
    let Ok((row, steps)) = &story.replayed else { return };
    found.unless(*row == story.row, || {
        format!("the row is {:?}, the log leads to {row:?}", story.row)
    });
    for (step, replayed) in story.steps.iter().zip(steps) {
        found.unless(step == replayed, || {
            format!("step {} is {step:?}, the log leads to {replayed:?}", step.idx)
        });
    }
    found.unless(steps.len() == story.steps.len(), || {
        format!("{} steps, the log leads to {}", story.steps.len(), steps.len())
    });
}

pub(super) fn steps(_: &Evidence, story: &Story, found: &mut Found) {
    let mut events: BTreeMap<&str, (u32, u32, Option<bool>)> = BTreeMap::new();
    for event in &story.events {
        let entry = || event.text("step_id");
        match event.kind() {
            "step.started" => events.entry(entry()).or_default().0 += 1,
            "step.finished" => {
                let (_, finished, ok) = events.entry(entry()).or_default();
                *finished += 1;
                *ok = event.value.get("ok").and_then(Value::as_bool);
            }
            _ => {}
        }
    }
    found.unless(story.row.steps as usize == story.steps.len(), || {
        format!("its row counts {} steps, there are {}", story.row.steps, story.steps.len())
    });
    found.unless(events.len() == story.steps.len(), || {
        format!("its log knows {} steps, there are {}", events.len(), story.steps.len())
    });
    let ended = story.row.status.is_terminal();
    for (idx, step) in (0_u32..).zip(&story.steps) {
        let id = StepId::derive(story.row.id, u64::from(idx));
        found.unless(step.idx == idx && step.id == id, || {
            format!("step {} stands where {idx} should", step.idx)
        });
        let done = step.finished_at.is_some();
        found.unless(done == step.output.is_some(), || {
            format!("step {idx}: an end without an output, or the other way round")
        });
        found.unless(done || !ended, || format!("step {idx} never ended"));
        let said = events.get(step.id.to_string().as_str()).copied().unwrap_or_default();
        let wanted = (1, u32::from(done), done.then_some(step.error.is_none()));
        found.unless(said == wanted, || {
            format!("step {idx}: started, finished and ok are {said:?} in its log, not {wanted:?}")
        });
    }
}

pub(super) fn epochs(_: &Evidence, story: &Story, found: &mut Found) {
    let mut last = 0;
    for event in story.events.iter().filter(|event| STARTS.contains(&event.kind())) {
        let epoch = event.number("epoch").unwrap_or(0);
        found.unless(epoch > last, || {
            format!("event {} starts epoch {epoch} after {last}", event.log.seq)
        });
        last = epoch;
    }
    found.unless(u64::from(story.row.epoch) == last, || {
        format!("its row says epoch {}, its log {last}", story.row.epoch)
    });
}

/// Exactly the items of the log exist, in the state that the log gives.
pub(super) fn inbox(_: &Evidence, story: &Story, found: &mut Found) {
    let mut told: BTreeMap<InboxId, InboxState> = BTreeMap::new();
    let (mut open, mut last, mut questions) = (None, None, 0);
    for event in &story.events {
        let closed = match event.kind() {
            "approval.requested" => {
                let asked: Result<ApprovalId, _> = event.text("approval_id").parse();
                open = asked.ok().map(|id| InboxId::from_u128(id.as_u128()));
                continue;
            }
            "run.awaiting_input" => {
                open = Some(InboxId::derive(story.row.id, questions));
                questions += 1;
                continue;
            }
            // The original of a fork asked the repeated questions, except the one at the fork.
            "run.forked" => {
                told.clear();
                continue;
            }
            "approval.expired" => {
                if let Some(state) = last.and_then(|id| told.get_mut(&id)) {
                    *state = InboxState::Expired;
                }
                continue;
            }
            "run.input_received" => InboxState::Answered,
            "approval.answered" if event.value.get("approve") == Some(&Value::Bool(true)) => {
                InboxState::Approved
            }
            "approval.answered" => InboxState::Denied,
            "run.canceled" => InboxState::Withdrawn,
            _ => continue,
        };
        last = open.take();
        told.extend(last.map(|id| (id, closed)));
    }
    told.extend(open.map(|id| (id, InboxState::Open)));
    let there: BTreeMap<_, _> = story.inbox.iter().map(|item| (item.id, item.state)).collect();
    found.unless(there == told, || format!("its inbox has {there:?}, its log tells of {told:?}"));
}
