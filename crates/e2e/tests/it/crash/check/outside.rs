//! Rules about the answers that the harness got, and about objects outside of the store.

use std::collections::BTreeMap;

use overmind_core::ids::EffectId;
use overmind_core::row::SessionStatus;
use serde_json::{Value, json};

use super::super::agents;
use super::super::evidence::{Evidence, Story};
use super::super::ledger::Order;
use super::Found;

/// The name that a half-written file of a workspace has, before the effect that wrote it.
const DRAFT: &str = ".overmind-tmp-";
/// The number of effects of one session that are examined; far more than any session has.
const EFFECTS: u64 = 500;

fn task_of(story: &Story) -> &str {
    story.spec().get("task").and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn acknowledged(evidence: &Evidence, found: &mut Found) {
    let ledger = &evidence.outside.ledger;
    let mut by_task: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let forks = evidence.stories.values().filter(|story| story.row.forked_from.is_some()).count();
    for (session, source) in &ledger.forks {
        let kept = evidence.stories.get(session).and_then(|story| story.row.forked_from);
        found.unless(kept.is_some_and(|(from, _)| from == *source), || {
            format!("the fork {session} of {source} was acknowledged and is gone")
        });
    }
    for (session, story) in &evidence.stories {
        if story.row.forked_from.is_some() {
            continue;
        }
        by_task.entry(task_of(story)).or_default().push(session.to_string());
    }
    let mut planned = 0;
    for (number, plan) in ledger.plans.iter().enumerate() {
        let made = by_task.get(plan.request.task.as_str()).map_or(&[][..], Vec::as_slice);
        planned += made.len();
        found.unless(made.len() <= 1, || format!("{} was made twice: {made:?}", plan.key));
        match ledger.acknowledged.get(&number) {
            Some(session) => found.unless(made.contains(&session.to_string()), || {
                format!("{} was acknowledged as {session} and is gone", plan.key)
            }),
            None => found.unless(!evidence.outside.settled, || {
                format!("{} was never acknowledged", plan.key)
            }),
        }
    }
    found.unless(planned + forks == evidence.stories.len(), || {
        format!(
            "{} sessions, of which {planned} were asked for and {forks} are forks",
            evidence.stories.len()
        )
    });
    let mut wanted: Vec<_> = agents::all("").into_iter().map(|(agent, _)| agent.name).collect();
    let mut names = evidence.agents.clone();
    wanted.sort_unstable();
    names.sort_unstable();
    found.unless(names == wanted, || format!("the agents are {names:?}, not {wanted:?}"));
}

pub(super) fn orders(evidence: &Evidence, story: &Story, found: &mut Found) {
    let mut wanted: BTreeMap<&str, usize> = BTreeMap::new();
    let given = evidence.outside.ledger.orders.iter();
    for (_, order) in given.filter(|(session, _)| *session == story.row.id) {
        match order {
            Order::Cancel => found.unless(story.row.status == SessionStatus::Canceled, || {
                format!("it was canceled, and is {}", story.row.status.as_str())
            }),
            Order::Answer(message) => *wanted.entry(message).or_default() += 1,
            Order::Decide { approval, approve } => {
                let id = approval.to_string();
                let kept = story.of_kind("approval.answered").any(|event| {
                    event.text("approval_id") == id
                        && event.value.get("approve") == Some(&json!(approve))
                });
                found.unless(kept, || format!("the answer to {approval} is not in its log"));
            }
        }
    }
    for (message, times) in wanted {
        let kept = story.of_kind("run.input_received");
        let kept = kept.filter(|event| event.text("message") == message).count();
        // There may be more: an answer is durable before it is acknowledged.
        found.unless(kept >= times, || {
            format!("`{message}` was accepted {times} times and stands {kept} times in its log")
        });
    }
}

pub(super) fn views(evidence: &Evidence, story: &Story, found: &mut Found) {
    if !evidence.outside.settled {
        return;
    }
    let Some(view) = evidence.outside.ledger.views.get(&story.row.id) else {
        return found.add("the API never showed it");
    };
    let status = story.row.status;
    found.unless(SessionStatus::from(view.status) == status, || {
        format!("the API shows {}, the row {}", view.status, status.as_str())
    });
    let calls = story.tool_events().count();
    found.unless(view.tool_calls == calls, || {
        format!("the API shows {} tool calls, the log {calls}", view.tool_calls)
    });
    found.unless(view.steps == story.steps.len(), || {
        format!("the API shows {} steps, there are {}", view.steps, story.steps.len())
    });
    if let Err(divergence) = &view.verified {
        found.add(format!("the API's verification: {divergence}"));
    }
}

pub(super) fn processes(evidence: &Evidence, found: &mut Found) {
    for process in &evidence.outside.processes {
        found.add(format!("still there: {process}"));
    }
}

/// A half-written file may stay only if the effect that wrote it never gave a result: a crash
/// hid it, and it was not done again.
pub(super) fn litter(evidence: &Evidence, found: &mut Found) {
    for name in &evidence.outside.litter {
        found.add(format!("{name} in the data directory"));
    }
    for (number, files) in &evidence.outside.files {
        for path in files.keys() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(effect) = name.strip_prefix(DRAFT) else { continue };
            let session = evidence.outside.ledger.acknowledged.get(number);
            let story = session.and_then(|session| evidence.stories.get(session));
            let hidden = story.is_some_and(|story| {
                let id = |n: &u64| EffectId::derive(story.row.id, *n).to_string() == effect;
                let n = (0..EFFECTS).find(id);
                n.is_some() && story.tool_events().all(|event| event.number("effect") != n)
            });
            found.unless(hidden || !evidence.outside.settled, || {
                format!("{} in workspace {number}", path.display())
            });
        }
    }
}

pub(super) fn locks(evidence: &Evidence, found: &mut Found) {
    for lock in &evidence.outside.locks {
        found.add(format!("{lock} is still locked"));
    }
}

pub(super) fn complaints(evidence: &Evidence, found: &mut Found) {
    let outside = &evidence.outside;
    for line in outside.complaints.iter().chain(&outside.ledger.contradictions) {
        found.add(line.clone());
    }
}
