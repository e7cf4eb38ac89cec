//! Rules about actions in the world, and their number.

use std::collections::{BTreeMap, BTreeSet};

use overmind_core::ids::SessionId;
use overmind_core::row::{StepKind, StepRow};
use serde_json::{Value, json};

use super::super::agents::{EDITED, SEED, mark_number};
use super::super::evidence::{Evidence, Story};
use super::Found;

fn tool(step: &StepRow) -> &str {
    step.input.get("tool_name").and_then(Value::as_str).unwrap_or_default()
}

fn argument<'a>(step: &'a StepRow, key: &str) -> &'a str {
    step.input.pointer(&format!("/args/{key}")).and_then(Value::as_str).unwrap_or_default()
}

fn is_ok(step: &StepRow) -> bool {
    step.output.as_ref().and_then(|output| output.get("ok")) == Some(&json!(true))
}

fn error_code(step: &StepRow) -> &str {
    let code = step.output.as_ref().and_then(|output| output.pointer("/error/code"));
    code.and_then(Value::as_str).unwrap_or_default()
}

/// How often the effect of a step may have started: once, and once more for each time that the log
/// records.
fn begun(story: &Story, step: &StepRow) -> u32 {
    let id = step.id.to_string();
    let again = story.events.iter().filter(|event| {
        matches!(event.kind(), "effect.redone" | "tool.retry") && event.text("step_id") == id
    });
    1 + u32::try_from(again.count()).expect("few retries")
}

pub(super) fn tool_calls(_: &Evidence, story: &Story, found: &mut Found) {
    let mut effects = BTreeSet::new();
    let mut results: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for event in story.tool_events() {
        let effect = event.number("effect").expect("tool events have one");
        found.unless(effects.insert(effect), || format!("effect {effect} has two results"));
        results.entry(event.text("step_id")).or_default().extend(event.value.get("result"));
    }
    let known: BTreeSet<String> = story.steps.iter().map(|step| step.id.to_string()).collect();
    for step in results.keys().filter(|step| !known.contains(**step)) {
        found.add(format!("a result belongs to step {step}, which does not exist"));
    }
    let calls = |step: &&StepRow| matches!(step.kind, StepKind::Tool | StepKind::Verify);
    for step in story.steps.iter().filter(calls) {
        let Some(output) = &step.output else { continue };
        let last = results.get(step.id.to_string().as_str()).and_then(|all| all.last());
        if last == Some(&output) {
            continue;
        }
        // Without its own result: an answer of a person, a crash, a denial, or the run's end.
        let note = output.get("note").and_then(Value::as_str).unwrap_or_default();
        let told = note == "a human said that it was done" && asked_about(story, step);
        let unknown = error_code(step) == "unknown_outcome" && !is_ok(step);
        let denied = error_code(step) == "denied";
        let cut_off = !is_ok(step) && output.get("error").is_none() && !note.is_empty();
        found.unless(told || unknown || denied || cut_off, || {
            format!("step {} has an output that no call gave: {output}", step.idx)
        });
    }
}

/// Whether a human was asked what became of this step.
fn asked_about(story: &Story, step: &StepRow) -> bool {
    let id = step.id.to_string();
    story
        .of_kind("run.awaiting_input")
        .any(|event| event.text("reason") == "unknown_outcome" && event.text("step_id") == id)
}

pub(super) fn model_calls(_: &Evidence, story: &Story, found: &mut Found) {
    let mut effects = BTreeSet::new();
    for event in &story.events {
        let own = event.log.seq > story.own_from();
        if own && matches!(event.kind(), "model.infer.completed" | "model.infer.failed") {
            let effect = event.number("effect").unwrap_or(u64::MAX);
            found.unless(effects.insert(effect), || {
                format!("the model answered twice to effect {effect}")
            });
        }
    }
    found.unless(story.row.model_calls as usize == effects.len(), || {
        format!("its row counts {} model calls, its log {}", story.row.model_calls, effects.len())
    });
}

/// The number of each step's mark.
fn mark_steps(story: &Story) -> BTreeMap<u32, &StepRow> {
    let shells = story.steps.iter().filter(|step| tool(step) == "run_shell");
    shells.filter_map(|step| Some((mark_number(argument(step, "command"))?, step))).collect()
}

pub(super) fn marks(evidence: &Evidence, story: &Story, found: &mut Found) {
    let on_unknown = story.spec().pointer("/agent/on_unknown").and_then(Value::as_str);
    for (n, step) in mark_steps(story) {
        let name = format!("{}-{n}", story.row.id);
        let made = evidence.outside.marks.get(&name).copied().unwrap_or(0);
        let may_repeat = on_unknown == Some("retry");
        let most = if may_repeat { begun(story, step) } else { 1 };
        let least = u32::from(is_ok(step));
        let never = error_code(step) == "denied" || story.is_repeated(step);
        let (least, most) = if never { (0, 0) } else { (least, most) };
        found.unless((least..=most).contains(&made), || {
            format!(
                "mark {n} was made {made} times, not {least} to {most}; on_unknown is \
                 {on_unknown:?}, the step's output {:?}",
                step.output
            )
        });
    }
}

pub(super) fn marks_of_nobody(evidence: &Evidence, found: &mut Found) {
    for name in evidence.outside.marks.keys() {
        let known = name.split_once('-').is_some_and(|(session, n)| {
            let session = session.parse::<SessionId>().ok();
            let story = session.and_then(|session| evidence.stories.get(&session));
            let n = n.parse::<u32>().ok();
            story.zip(n).is_some_and(|(story, n)| mark_steps(story).contains_key(&n))
        });
        found.unless(known, || format!("mark `{name}` was made by no step"));
    }
}

fn memory_steps(story: &Story) -> impl Iterator<Item = &StepRow> {
    story.steps.iter().filter(|step| tool(step) == "store_memory")
}

pub(super) fn memory(evidence: &Evidence, story: &Story, found: &mut Found) {
    let of_it: Vec<_> =
        evidence.memory.iter().filter(|item| item.source == Some(story.row.id)).collect();
    for step in memory_steps(story) {
        let text = argument(step, "text");
        let stored = of_it.iter().filter(|item| item.text == text).count();
        let (least, most) = match story.is_repeated(step) {
            true => (0, 0),
            false => (usize::from(is_ok(step)), 1),
        };
        found.unless((least..=most).contains(&stored), || {
            format!("step {} stored its text {stored} times, not {least} to {most}", step.idx)
        });
    }
    let told: Vec<_> = story.of_kind("memory.stored").map(|event| event.text("item_id")).collect();
    found.unless(told.len() == of_it.len(), || {
        format!("its log knows {} items in memory, there are {}", told.len(), of_it.len())
    });
    for item in of_it {
        let id = item.id.to_string();
        found.unless(told.contains(&id.as_str()), || format!("its log does not know item {id}"));
    }
}

/// A repeated call saves once.
pub(super) fn artifacts(_: &Evidence, story: &Story, found: &mut Found) {
    let told = story.of_kind("artifact.saved").count();
    // The original of a fork did the repeated steps.
    let own = |step: &&StepRow| tool(step) == "save_artifact" && !story.is_repeated(step);
    let saves: Vec<_> = story.steps.iter().filter(own).collect();
    let least = saves.iter().filter(|step| is_ok(step)).count();
    found.unless((least..=saves.len()).contains(&told), || {
        format!("{told} artifacts were saved by {} steps, {least} of them well", saves.len())
    });
}

pub(super) fn memory_of_nobody(evidence: &Evidence, found: &mut Found) {
    for item in &evidence.memory {
        let story = item.source.and_then(|session| evidence.stories.get(&session));
        let asked =
            |story: &Story| memory_steps(story).any(|step| argument(step, "text") == item.text);
        found.unless(story.is_some_and(asked), || {
            format!("item {} was asked for by no step", item.id)
        });
    }
}

pub(super) fn files(evidence: &Evidence, story: &Story, found: &mut Found) {
    let plan = evidence.outside.ledger.plan_of(story.row.id);
    let Some(files) = plan.and_then(|plan| evidence.outside.files.get(&plan.number)) else {
        return;
    };
    let content = |path: &str| files.get(std::path::Path::new(path)).map(String::as_str);
    for step in story.steps.iter().filter(|step| is_ok(step) && tool(step) == "write_file") {
        let (path, wanted) = (argument(step, "path"), argument(step, "content"));
        found.unless(content(path) == Some(wanted), || {
            format!("{path} holds {:?}, not what step {} wrote", content(path), step.idx)
        });
    }
    let edit = story.steps.iter().find(|step| tool(step) == "edit_file");
    let fine: &[&str] = match edit {
        None => &[SEED],
        Some(step) if is_ok(step) => &[EDITED],
        Some(_) => &[SEED, EDITED],
    };
    let seed = content("seed.txt").unwrap_or_default();
    found.unless(fine.contains(&seed), || format!("seed.txt holds {seed:?}, not one of {fine:?}"));
}

pub(super) fn approvals(_: &Evidence, story: &Story, found: &mut Found) {
    let mut answers: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
    for event in story.of_kind("approval.answered") {
        let yes = event.value.get("approve") == Some(&json!(true));
        answers.entry(event.text("approval_id")).or_default().push(yes);
    }
    for (approval, all) in &answers {
        found.unless(all.len() == 1, || format!("{approval} was answered {} times", all.len()));
    }
    let gated = story.spec().pointer("/agent/approvals").and_then(Value::as_array);
    let gated = gated.is_some_and(|names| names.contains(&json!("run_shell")));
    if !gated {
        return;
    }
    for event in story.tool_events().filter(|event| event.text("tool_name") == "run_shell") {
        let granted = story.of_kind("approval.requested").any(|asked| {
            asked.log.seq < event.log.seq
                && asked.text("tool_name") == "run_shell"
                && asked.value.get("args") == event.value.get("args")
                && answers.get(asked.text("approval_id")).is_some_and(|all| all.contains(&true))
        });
        found.unless(granted, || format!("event {}: a command ran without consent", event.log.seq));
    }
}
