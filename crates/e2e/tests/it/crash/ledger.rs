//! The requests of the harness and the answers: the outside view that the log must agree with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use overmind_api::{Run, RunCreate, RunStatus};
use overmind_core::ids::{ApprovalId, SessionId};

use super::agents::{MARKS, RULES, mark_number};
use super::rng::Rng;

/// One run that is wanted. Asked for again after every crash until it is acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The Idempotency-Key; the task contains it, too.
    pub(crate) key: String,
    pub(crate) request: RunCreate,
    /// Also the number of its workspace.
    pub(crate) number: usize,
}

/// An order that a daemon accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Cancel,
    Answer(String),
    Decide { approval: ApprovalId, approve: bool },
}

/// The final answer of the API about a run.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) status: RunStatus,
    pub(crate) tool_calls: usize,
    pub(crate) steps: usize,
    /// `Err` names the position of the divergence.
    pub(crate) verified: Result<(), String>,
}

/// The run as the API showed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) status: RunStatus,
    pub(crate) epoch: u32,
    pub(crate) steps: u32,
    /// When the answer came.
    heard: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) plans: Vec<Plan>,
    /// Plans that no daemon has answered yet, by their place.
    pub(crate) pending: BTreeSet<usize>,
    /// Those without an open request at the moment.
    idle: BTreeSet<usize>,
    pub(crate) acknowledged: BTreeMap<usize, SessionId>,
    /// Forks that a daemon accepted, and their originals.
    pub(crate) forks: BTreeMap<SessionId, SessionId>,
    pub(crate) orders: Vec<(SessionId, Order)>,
    /// Each run as it was last shown.
    pub(crate) shown: BTreeMap<SessionId, Shown>,
    /// Counts answers, so that "before" means something among requests side by side.
    heard: u64,
    pub(crate) views: BTreeMap<SessionId, View>,
    /// Answers that contradict earlier ones.
    pub(crate) contradictions: Vec<String>,
    pub(crate) answers: BTreeMap<&'static str, u32>,
}

impl Ledger {
    /// A plan that was never answered, or a new one.
    pub(crate) fn take_pending(&mut self) -> Option<usize> {
        self.idle.pop_first()
    }

    pub(crate) fn give_back(&mut self, plan: usize) {
        self.idle.insert(plan);
    }

    /// Requests that a crash cut off may be repeated.
    pub(crate) fn all_idle(&mut self) {
        self.idle = self.pending.clone();
    }

    /// Plans one more run. `fat` ones make the write-ahead log grow.
    pub(crate) fn plan(&mut self, rng: &mut Rng, fat: bool, tag: &str, work: &Path) -> usize {
        const SCRIPTED: &[&str] = &[
            "steady", "marker", "eager", "frank", "careful", "curious", "chatty", "steady",
            "marker",
        ];
        let number = self.plans.len();
        let key = format!("{tag}-{number}");
        let (agent, task) = if fat {
            (RULES, format!("remember:fat: {key} {}", "heavy ".repeat(15_000)))
        } else if rng.one_in(4) {
            let task = match rng.below(6) {
                0 | 1 => format!("remember:crash: {key}"),
                2 => format!("write: out.txt: {key}"),
                3 => format!("recall:crash: {key}"),
                4 => format!("shell: echo {key}; sleep 0.02"),
                _ => format!("remember: {key} in the default collection"),
            };
            (*rng.pick(&[RULES, RULES, "rules-report"]), task)
        } else if rng.one_in(12) {
            (*rng.pick(&["short", "unlucky"]), format!("task {key}"))
        } else {
            (*rng.pick(SCRIPTED), format!("task {key}"))
        };
        self.add(agent, key, task, work)
    }

    /// Plans a run of this agent.
    pub(crate) fn plan_for(&mut self, agent: &str, tag: &str, work: &Path) -> usize {
        let key = format!("{tag}-{}", self.plans.len());
        // For the rules, a text to store; for a script, any text.
        let task = format!("remember:crash: {key}");
        self.add(agent, key, task, work)
    }

    fn add(&mut self, agent: &str, key: String, task: String, work: &Path) -> usize {
        let number = self.plans.len();
        let workspace = work.join(number.to_string()).to_string_lossy().into_owned();
        let request = RunCreate {
            agent_id: agent.into(),
            task,
            step_limit: None,
            workspace: Some(workspace),
            ..RunCreate::default()
        };
        self.plans.push(Plan { key, request, number });
        self.pending.insert(number);
        number
    }

    pub(crate) fn acknowledge(&mut self, plan: usize, run: &Run) {
        self.pending.remove(&plan);
        let before = self.acknowledged.insert(plan, run.id);
        if before.is_some_and(|before| before != run.id) {
            let key = &self.plans[plan].key;
            self.contradictions.push(format!("{key} was answered with two runs"));
        }
    }

    pub(crate) fn plan_of(&self, run: SessionId) -> Option<&Plan> {
        let (plan, _) = self.acknowledged.iter().find(|(_, id)| **id == run)?;
        self.plans.get(*plan)
    }

    /// To be called before a request is sent, for [`Self::observe`].
    pub(crate) fn now(&self) -> u64 {
        self.heard
    }

    /// Remembers how a run was shown by the answer to a request that was sent at `sent`. What
    /// was shown before that as ended stays ended, and epochs only grow: what the API shows is
    /// durable. Of answers to requests side by side neither is the later one.
    pub(crate) fn observe(&mut self, run: &Run, sent: u64) {
        self.heard += 1;
        let new = Shown {
            status: run.status,
            epoch: run.epoch,
            steps: run.step_count,
            heard: self.heard,
        };
        let Some(old) = self.shown.get(&run.id).copied() else {
            self.shown.insert(run.id, new);
            return;
        };
        let revived = old.status.is_terminal() && old.status != new.status;
        let older = revived || new.epoch < old.epoch;
        if older && old.heard <= sent {
            self.contradictions.push(format!("{}: {old:?}, and later {new:?}", run.id));
        }
        if !older {
            self.shown.insert(run.id, new);
        }
    }

    /// Everything was answered, and has ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.live().is_empty()
    }

    /// Runs that were not yet shown as ended.
    pub(crate) fn live(&self) -> Vec<SessionId> {
        let alive = self.shown.iter().filter(|(_, shown)| !shown.status.is_terminal());
        alive.map(|(id, _)| *id).collect()
    }
}

/// The view of a person who looks into a run's workspace: was the action carried out?
pub(crate) fn was_done(prompt: &str, run: SessionId, workspace: &Path) -> Option<bool> {
    if prompt.contains("`edit_file`") {
        let seed = std::fs::read_to_string(workspace.join("seed.txt")).unwrap_or_default();
        return Some(seed.contains("count: 0+"));
    }
    let wanted = format!("{run}-{}", mark_number(prompt)?);
    let marks = std::fs::read_to_string(workspace.join(MARKS)).unwrap_or_default();
    Some(marks.lines().any(|line| line == wanted))
}
