//! The page of one run: its summary and the possible actions.

use overmind_api::{InboxItem, Run, SandboxLevel, Timestamp};

use crate::now::Card;
use crate::parts::{Pill, error_text, money_at_most, thousands};
use crate::when::{When, span};
use crate::{Item, clean};

/// One fact of the summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub name: &'static str,
    pub value: String,
}

/// The page `/runs/{id}`.
#[derive(Clone, Debug)]
pub struct RunPage {
    pub id: String,
    pub name: String,
    pub link: String,
    pub pill: Pill,
    pub task: String,
    pub started: When,
    pub facts: Vec<Fact>,
    /// Its final answer, unchanged.
    pub answer: Option<String>,
    pub error: Option<String>,
    /// Cards of the items for which it waits.
    pub waits: Vec<Card>,
    /// Whether it has not ended, so that it can be stopped.
    pub active: bool,
    /// Whether its agent runs a program, so that there is a log.
    pub has_log: bool,
    /// Whether it has, or had, a worktree of its own.
    pub has_room: bool,
    /// Whether its work waits for a decision.
    pub undecided: bool,
    /// The decision about its work, in a sentence.
    pub decided: Option<String>,
}

impl RunPage {
    pub fn new(run: &Run, waits: &[InboxItem], now: Timestamp) -> Self {
        let item = Item::new(run, None, now);
        let names = [(run.id.to_string(), run.name.clone())];
        let began = run.started_at.unwrap_or(run.created_at);
        let mut facts = Vec::new();
        let mut fact = |name: &'static str, value: String| {
            if !value.is_empty() {
                facts.push(Fact { name, value: clean::line(&value).into_owned() });
            }
        };
        fact("agent", format!("{} v{}", item.agent, run.agent_version));
        fact("time", span(run.finished_at.unwrap_or(now).since(began)));
        let tokens = run.usage.input_tokens + run.usage.output_tokens;
        if tokens > 0 {
            fact("tokens", thousands(tokens));
        }
        match run.cost_usd {
            Some(usd) if usd > 0.0 => fact("cost", money_at_most(usd, run.cost_at_most)),
            None if run.model_call_count > 0 => fact("cost", "price unknown".to_owned()),
            Some(_) | None => {}
        }
        fact("branch", item.branch.clone().unwrap_or_default());
        fact("sandbox", sandbox(run));
        if run.epoch > 1 {
            fact("start", run.epoch.to_string());
        }
        if let Some(process) = &run.process {
            if process.restarts > 0 {
                fact("restarts", process.restarts.to_string());
            }
            if let Some(code) = process.exit_code {
                fact("exit", code.to_string());
            }
        }
        // An ended run serves nothing.
        if let Some(room) = run.room.as_ref().filter(|_| !run.status.is_terminal()) {
            for (service, url) in &room.urls {
                fact("serves", format!("{service} {url}"));
            }
        }
        fact("started by", run.created_by.clone());
        Self {
            id: item.id,
            name: item.name,
            link: item.link,
            pill: item.pill,
            task: clean::cut(&clean::block(run.task.trim()), 4000).into_owned(),
            started: When::new(began, now),
            facts,
            answer: run.final_answer.as_deref().map(|text| clean::block(text.trim()).into_owned()),
            error: run.error.as_ref().map(error_text).or_else(|| {
                let why = clean::line(run.trouble.as_deref()?).into_owned();
                Some(format!("its model calls fail: {}", clean::cut(&why, 400)))
            }),
            waits: waits.iter().map(|item| Card::new(item, &names, now)).collect(),
            active: !run.status.is_terminal(),
            has_log: run.process.is_some(),
            has_room: run.room.is_some(),
            undecided: item.undecided,
            decided: run.room.as_ref().and_then(|room| room.done.as_ref()).map(|done| {
                let said = format!("{}, by {}", done.said.trim_end_matches('.'), done.by);
                clean::cut(&clean::line(&said), 400).into_owned()
            }),
        }
    }
}

/// Returns the sandbox level, and whether it was measured.
fn sandbox(run: &Run) -> String {
    match (run.sandbox, &run.attestation) {
        (SandboxLevel::None, _) => "none: on the host itself".to_owned(),
        (level, Some(proof)) if proof.achieved == level => format!("{level}, attested"),
        (level, _) => level.to_string(),
    }
}
