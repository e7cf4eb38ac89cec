//! Lists: runs and agents.

use overmind_api::{Agent, AgentStatus, RunBasic, Timestamp};

use crate::clean;
use crate::parts::{Pill, Tone, money_at_most, status};
use crate::when::{When, span};

/// The page `/runs`.
#[derive(Clone, Debug)]
pub struct RunsPage {
    pub rows: Vec<RunRow>,
    /// The cursor of the next page; `None` on the last one.
    pub next: Option<String>,
}

/// A run in the table.
#[derive(Clone, Debug)]
pub struct RunRow {
    pub id: String,
    pub name: String,
    pub link: String,
    pub agent: String,
    pub pill: Pill,
    pub task: String,
    pub created: When,
    /// Its duration; empty while it runs.
    pub took: String,
    pub cost: String,
    pub steps: u32,
    pub branch: String,
}

impl RunRow {
    pub fn new(run: &RunBasic, now: Timestamp) -> Self {
        let began = run.started_at.unwrap_or(run.created_at);
        Self {
            id: run.id.to_string(),
            name: clean::line(&run.name).into_owned(),
            link: format!("/runs/{}", run.id),
            agent: clean::line(run.agent_name.as_deref().unwrap_or_default()).into_owned(),
            pill: status(run.status),
            task: clean::cut(&clean::line(run.task.trim()), 160).into_owned(),
            created: When::new(run.created_at, now),
            took: run.finished_at.map(|end| span(end.since(began))).unwrap_or_default(),
            cost: match run.cost_usd.filter(|usd| *usd > 0.0) {
                Some(usd) => money_at_most(usd, run.cost_at_most),
                None => String::new(),
            },
            steps: run.step_count,
            branch: clean::line(run.branch.as_deref().unwrap_or_default()).into_owned(),
        }
    }
}

/// The page `/agents`.
#[derive(Clone, Debug)]
pub struct AgentsPage {
    pub rows: Vec<AgentRow>,
}

/// An agent in the table.
#[derive(Clone, Debug)]
pub struct AgentRow {
    pub id: String,
    pub name: String,
    /// The model, or the program that it runs.
    pub runs_on: String,
    pub role: String,
    pub sandbox: String,
    pub version: u32,
    /// Whether new runs of it may be started.
    pub active: bool,
    pub pill: Pill,
    pub changed: When,
}

impl AgentRow {
    pub fn new(agent: &Agent, now: Timestamp) -> Self {
        let program = agent.command.as_ref().map(|command| command.argv.join(" "));
        let runs_on =
            program.filter(|text| !text.is_empty()).unwrap_or_else(|| agent.model.clone());
        Self {
            id: agent.id.to_string(),
            name: clean::line(&agent.name).into_owned(),
            runs_on: clean::cut(&clean::line(&runs_on), 80).into_owned(),
            role: clean::cut(&clean::line(agent.role.trim()), 160).into_owned(),
            sandbox: agent.sandbox.as_str().to_owned(),
            version: agent.version,
            active: agent.status == AgentStatus::Active,
            pill: match agent.status {
                AgentStatus::Active => Pill::new(Tone::Good, "●", "active"),
                AgentStatus::Disabled => Pill::new(Tone::Flat, "○", "disabled"),
                AgentStatus::Removed => Pill::new(Tone::Flat, "✕", "removed"),
            },
            changed: When::new(agent.updated_at, now),
        }
    }
}
