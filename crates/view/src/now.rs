//! The first page: items that need a person, working runs, and finished ones.

use overmind_api::{InboxItem, InboxKind, Run, RunStatus, Timestamp};
use serde_json::Value;

use crate::parts::{Pill, Tone, error_text, headline, money_at_most, status};
use crate::when::When;
use crate::{clean, span};

/// Longest quotation in a row, in characters.
const QUOTE: usize = 200;

/// Maximum number of runs of one fleet, lineage or sentinel that are listed individually.
pub const FOLDED: usize = 3;

/// The data of the page.
#[derive(Clone, Debug)]
pub struct NowData {
    /// Open items of the inbox.
    pub inbox: Vec<InboxItem>,
    /// Runs that have not ended, each with the last line of its output, if known.
    pub active: Vec<(Run, Option<String>)>,
    /// Runs that have ended, in any order.
    pub ended: Vec<Run>,
    /// The fleets, lineages and sentinels whose runs may become a fold.
    pub groups: Vec<Group>,
    /// US dollars spent today, and whether that is an upper bound; `None` if unknown.
    pub spent_today: Option<(f64, bool)>,
    pub now: Timestamp,
}

/// A resource that starts many runs.
#[derive(Clone, Debug)]
pub struct Group {
    pub uid: String,
    /// Its kind as in paths: `fleet`, `lineage` or `sentinel`.
    pub kind: &'static str,
    pub name: String,
}

/// The page `/` with its three columns.
#[derive(Clone, Debug)]
pub struct Now {
    /// Cards by risk, highest first, then by age, oldest first. Idle runs come after everything
    /// that blocks a run.
    pub needs: Vec<Card>,
    pub working: Vec<Item>,
    /// Groups with more than [`FOLDED`] active runs. These runs are not in `working`.
    pub folds: Vec<Fold>,
    /// Number of active runs, including those in `folds`.
    pub at_work: usize,
    /// Ended runs, last ended first.
    pub done: Vec<Item>,
    pub spent_today: Option<String>,
}

/// The form of a card's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Approve or deny, with an optional reason.
    Consent,
    /// A text.
    Words,
    /// A higher limit, or the end of the run.
    Raise,
    /// A message to an idle run, or its end.
    Turn,
}

/// A card for one item that waits for a person.
#[derive(Clone, Debug)]
pub struct Card {
    /// The item's id.
    pub id: String,
    /// The run's name, or else the agent's.
    pub title: String,
    pub agent: String,
    /// The path `/runs/…`; `None` if no run waits for it.
    pub link: Option<String>,
    pub pill: Pill,
    /// The exact action to approve; empty for a question.
    pub action: String,
    /// The question, or why the action needs approval.
    pub text: String,
    /// The effects that the policy found: `curl: network`.
    pub effects: Vec<String>,
    pub asked: When,
    pub answer: Answer,
    /// For a budget request: whether it is about tokens and not US dollars.
    pub tokens: bool,
    /// For a budget request: the requested amount; empty if unknown.
    pub amount: String,
}

/// One run in a list.
#[derive(Clone, Debug)]
pub struct Item {
    pub id: String,
    pub name: String,
    pub agent: String,
    pub link: String,
    pub pill: Pill,
    /// Its task, on one line.
    pub task: String,
    /// The last line of its output, its answer, or its error; empty if there is none.
    pub last: String,
    pub at: When,
    /// Its duration, if it has ended.
    pub took: Option<String>,
    /// Its cost; `None` if nothing was spent or a price is not known.
    pub cost: Option<String>,
    pub branch: Option<String>,
    /// `◈ sandboxed` with the level; `None` if it runs without a sandbox.
    pub sandbox: Option<String>,
    /// Whether its work waits for a decision.
    pub undecided: bool,
}

impl Now {
    pub fn new(data: NowData) -> Self {
        let NowData { inbox, active, ended, groups, spent_today, now } = data;
        let names: Vec<(String, String)> =
            active.iter().map(|(run, _)| (run.id.to_string(), run.name.clone())).collect();
        let mut inbox = inbox;
        inbox.sort_by_key(|item| (std::cmp::Reverse(weight(item)), item.asked_at));
        let asks = inbox.iter().map(|item| Card::new(item, &names, now));
        let rests = active.iter().filter(|(run, _)| run.status == RunStatus::Idle);
        let needs = asks.chain(rests.map(|(run, last)| Card::resting(run, last.as_deref(), now)));
        let needs = needs.collect();
        let works = |run: &Run| {
            use RunStatus::{AwaitingApproval, AwaitingInput, Idle};
            !matches!(run.status, AwaitingApproval | AwaitingInput | Idle)
        };
        let at_work: Vec<_> = active.iter().filter(|(run, _)| works(run)).collect();
        let (folds, working) = fold(&at_work, &groups, now);
        let mut ended = ended;
        ended.sort_by_key(|run| std::cmp::Reverse(run.finished_at));
        let done = ended.iter().map(|run| Item::new(run, None, now)).collect();
        let at_work = at_work.len();
        let spent_today = spent_today.map(|(usd, at_most)| money_at_most(usd, at_most));
        Self { needs, working, folds, at_work, done, spent_today }
    }
}

/// Splits active runs into single rows and one fold for each group with many.
fn fold(
    at_work: &[&(Run, Option<String>)],
    groups: &[Group],
    now: Timestamp,
) -> (Vec<Fold>, Vec<Item>) {
    let owner = |run: &Run| run.owner.map(|owner| owner.to_string());
    let mut folds = Vec::new();
    for group in groups {
        let of: Vec<_> =
            at_work.iter().filter(|(run, _)| owner(run).as_ref() == Some(&group.uid)).collect();
        if of.len() > FOLDED {
            let items = of.iter().map(|(run, last)| Item::new(run, last.as_deref(), now));
            let cost: f64 = of.iter().filter_map(|(run, _)| run.cost_usd).sum();
            let at_most = of.iter().any(|(run, _)| run.cost_at_most);
            folds.push(Fold::new(group, items.collect(), (cost, at_most)));
        }
    }
    let folded = |run: &Run| folds.iter().any(|fold| Some(&fold.id) == owner(run).as_ref());
    let alone = at_work.iter().filter(|(run, _)| !folded(run));
    let alone = alone.map(|(run, last)| Item::new(run, last.as_deref(), now)).collect();
    (folds, alone)
}

/// The runs of one group in one row.
#[derive(Clone, Debug)]
pub struct Fold {
    /// The group's uid.
    pub id: String,
    pub kind: &'static str,
    pub name: String,
    /// The path `/resources/fleet/…`; `None` if a path cannot contain the name.
    pub link: Option<String>,
    /// Each state with the number of runs in it.
    pub states: Vec<(Pill, usize)>,
    pub cost: Option<String>,
    pub items: Vec<Item>,
}

impl Fold {
    fn new(group: &Group, items: Vec<Item>, (cost, at_most): (f64, bool)) -> Self {
        let Group { uid, kind, name } = group;
        let mut states: Vec<(Pill, usize)> = Vec::new();
        for item in &items {
            match states.iter_mut().find(|(pill, _)| *pill == item.pill) {
                Some((_, count)) => *count += 1,
                None => states.push((item.pill.clone(), 1)),
            }
        }
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
        Self {
            id: uid.clone(),
            kind,
            name: clean::line(name).into_owned(),
            link: plain.then(|| format!("/resources/{kind}/{name}")),
            states,
            cost: (cost > 0.0).then(|| money_at_most(cost, at_most)),
            items,
        }
    }
}

fn weight(item: &InboxItem) -> u8 {
    match item.risk.as_deref() {
        Some("critical") => 4,
        Some("high") => 3,
        Some("medium") => 2,
        Some(_) => 1,
        None => 0,
    }
}

impl Card {
    /// Creates the card of an idle run. `last`: the last line of its output.
    pub fn resting(run: &Run, last: Option<&str>, now: Timestamp) -> Self {
        let item = Item::new(run, None, now);
        let said = run.final_answer.as_deref().or(last).unwrap_or_default();
        Self {
            id: item.id,
            title: item.name,
            agent: item.agent,
            link: Some(item.link),
            pill: item.pill,
            action: String::new(),
            text: clean::cut(&clean::block(said.trim()), 2000).into_owned(),
            effects: Vec::new(),
            asked: item.at,
            answer: Answer::Turn,
            tokens: false,
            amount: String::new(),
        }
    }

    /// Creates the card of an item. `names`: ids of runs with their names.
    pub fn new(item: &InboxItem, names: &[(String, String)], now: Timestamp) -> Self {
        let run = item.run_id.map(|id| id.to_string());
        let name = names.iter().find(|(id, _)| Some(id) == run.as_ref());
        let agent = clean::line(&item.agent).into_owned();
        let detail = |key: &str| item.details.get(key).and_then(Value::as_str).unwrap_or_default();
        let refusal =
            |key: &str| item.details.pointer(&format!("/refusal/{key}")).unwrap_or(&Value::Null);
        let (pill, action, text, answer) = match item.kind {
            InboxKind::Approval => {
                let args = item.details.get("args").unwrap_or(&Value::Null);
                let tool = detail("tool_name");
                let action = format!("{} {}", clean::line(tool), headline(tool, args));
                let why = match (detail("reason"), detail("prompt")) {
                    ("", prompt) => prompt,
                    (reason, _) => reason,
                };
                (risk(item.risk.as_deref()), action, why.to_owned(), Answer::Consent)
            }
            InboxKind::Question | InboxKind::Work => {
                let prompt = detail("prompt");
                let text = if prompt.is_empty() { item.title.as_str() } else { prompt };
                let pill = match item.kind {
                    InboxKind::Work => Pill::new(Tone::Ask, "±", "work"),
                    _ => Pill::new(Tone::Ask, "?", "question"),
                };
                (pill, String::new(), text.to_owned(), Answer::Words)
            }
            InboxKind::Raise => {
                let pill = Pill::new(Tone::Ask, "$", "budget");
                (pill, String::new(), item.title.clone(), Answer::Raise)
            }
        };
        Self {
            id: item.id.to_string(),
            title: name.map_or_else(|| agent.clone(), |(_, name)| clean::line(name).into_owned()),
            agent,
            link: run.map(|id| format!("/runs/{id}")),
            pill,
            action: action.trim().to_owned(),
            text: clean::cut(&clean::block(&text), 2000).into_owned(),
            effects: effects(&item.details),
            asked: When::new(item.asked_at, now),
            answer,
            tokens: refusal("unit").as_str().is_some_and(|unit| unit.contains("token")),
            amount: amount(refusal("unit"), refusal("asked")),
        }
    }
}

/// Returns the amount that a refused call requested. Dollars are rounded up.
fn amount(unit: &Value, asked: &Value) -> String {
    let tokens = unit.as_str().is_some_and(|unit| unit.contains("token"));
    match asked.as_f64() {
        Some(asked) if tokens => format!("{asked:.0}"),
        // Millionths of a dollar.
        Some(asked) => format!("{:.0}", (asked / 1e6).ceil().max(1.0)),
        None => String::new(),
    }
}

fn risk(risk: Option<&str>) -> Pill {
    match risk {
        Some("critical") => Pill::new(Tone::Bad, "▲", "critical"),
        Some("high") => Pill::new(Tone::Bad, "▲", "high"),
        Some(other) => Pill::new(Tone::Ask, "▲", clean::line(other)),
        None => Pill::new(Tone::Ask, "▲", "approval"),
    }
}

/// Returns at most six effects of an approval's actions (`ls: read /`). Actions without effects
/// outside of their project are left out.
fn effects(details: &Value) -> Vec<String> {
    let actions = details.get("actions").and_then(Value::as_array);
    let line = |action: &Value| {
        let program = action.get("program").and_then(Value::as_str)?;
        let touches = action.get("touches").and_then(Value::as_array)?;
        let touch = |touch: &Value| {
            let part = |key: &str| touch.get(key).and_then(Value::as_str).unwrap_or_default();
            format!("{} {}", part("kind"), part("target")).trim().to_owned()
        };
        let touches: Vec<_> = touches.iter().map(touch).collect();
        (!touches.is_empty()).then(|| format!("{program}: {}", touches.join(", ")))
    };
    let lines = actions.into_iter().flatten().filter_map(line);
    lines.take(6).map(|text| clean::cut(&clean::line(&text), QUOTE).into_owned()).collect()
}

impl Item {
    pub fn new(run: &Run, last: Option<&str>, now: Timestamp) -> Self {
        let stopping = run.process.as_ref().is_some_and(|process| process.stopping);
        let restarting = run.process.as_ref().is_some_and(|process| process.restart_at.is_some());
        let ended = run.status.is_terminal();
        let pill = match (stopping, restarting) {
            (true, _) if !ended => Pill::new(Tone::Flat, "◒", "stopping"),
            (_, true) if !ended => Pill::new(Tone::Ask, "↻", "restarting"),
            _ => status(run.status),
        };
        let said = match (&run.error, &run.final_answer) {
            (Some(error), _) if ended => error_text(error),
            (_, Some(answer)) => answer.trim().to_owned(),
            _ => last.unwrap_or_default().trim().to_owned(),
        };
        let began = run.started_at.unwrap_or(run.created_at);
        let room = run.room.as_ref();
        Self {
            id: run.id.to_string(),
            name: clean::line(&run.name).into_owned(),
            agent: clean::line(run.agent_name.as_deref().unwrap_or_default()).into_owned(),
            link: format!("/runs/{}", run.id),
            pill,
            task: clean::cut(&clean::line(run.task.trim()), QUOTE).into_owned(),
            last: clean::cut(&clean::line(&said), QUOTE).into_owned(),
            at: When::new(run.finished_at.unwrap_or(began), now),
            took: run.finished_at.map(|end| span(end.since(began))),
            cost: run
                .cost_usd
                .filter(|usd| *usd > 0.0)
                .map(|usd| money_at_most(usd, run.cost_at_most)),
            branch: room
                .and_then(|room| room.branch.as_deref())
                .map(|branch| clean::line(branch).into_owned()),
            sandbox: match run.sandbox {
                overmind_api::SandboxLevel::None => None,
                level => Some(level.as_str().to_owned()),
            },
            undecided: room.is_some_and(|room| room.undecided),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(id: u8, asked: &str, risk: Option<&str>) -> InboxItem {
        serde_json::from_value(json!({
            "id": format!("inb_{id:032x}"), "kind": "approval", "state": "open", "title": "t",
            "risk": risk, "run_id": null, "approval_id": null, "agent_id": null, "agent": "sh",
            "epoch": 1, "group": null, "asked_at": asked, "expires_at": null, "answered_at": null,
            "answered_by": null, "answer": null, "changed": 1,
            "details": {"tool_name": "run_shell", "args": {"command": "ls /\u{1b}[2J"},
                "reason": "`ls` would read `/`",
                "actions": [
                    {"program": "echo", "touches": []},
                    {"program": "ls", "touches": [{"kind": "read", "target": "/"}]},
                ]},
        }))
        .unwrap()
    }

    #[test]
    fn items_are_sorted_by_risk_and_then_by_waiting_time() {
        let inbox = vec![
            item(1, "2026-11-25T16:03:00+00:00", None),
            item(2, "2026-11-25T16:02:00+00:00", Some("low")),
            item(3, "2026-11-25T16:01:00+00:00", Some("high")),
            item(4, "2026-11-25T16:00:00+00:00", Some("high")),
        ];
        let now = Timestamp::default();
        let data = NowData {
            inbox,
            active: vec![],
            ended: vec![],
            groups: vec![],
            spent_today: Some((1.5, true)),
            now,
        };
        let page = Now::new(data);
        let order: Vec<_> = page.needs.iter().map(|card| card.id.ends_with('4')).collect();
        assert_eq!(order, [true, false, false, false]);
        let first = page.needs.first().unwrap();
        assert_eq!(first.action, "run_shell ls /\\u{1b}[2J");
        assert_eq!(first.text, "`ls` would read `/`");
        assert_eq!(first.effects, ["ls: read /"]);
        assert_eq!(page.spent_today.as_deref(), Some("≤ $1.50"));
    }

    fn run(id: u8, status: &str, finished: Option<&str>) -> Run {
        let at = "2026-11-25T16:00:00+00:00";
        serde_json::from_value(json!({
            "id": format!("ses_{id:032x}"), "name": format!("run-{id}"), "parent_id": null,
            "agent_id": "agt_00000000000000000000000000000001", "task": "t", "status": status,
            "step_limit": 0, "created_at": at, "started_at": at, "finished_at": finished,
            "agent_version": 1, "epoch": 1, "hive": null, "prompt": null, "approval_id": null,
            "final_answer": "done:\u{1b}[2J\nyes", "error": null, "cost_usd": 0.0,
            "usage": {"input_tokens": 0, "output_tokens": 0, "cached_input_tokens": 0,
                "cache_write_tokens": 0, "reasoning_tokens": 0},
            "step_count": 0, "model_call_count": 0, "sandbox": "none", "workspace": "/w",
            "forked_from": null, "created_by": "ann",
            "colony": "col_00000000000000000000000000000001",
        }))
        .unwrap()
    }

    #[test]
    fn ended_runs_are_newest_first_and_idle_runs_need_attention() {
        let ended = vec![
            run(1, "succeeded", Some("2026-11-25T16:05:00+00:00")),
            run(2, "failed", Some("2026-11-25T16:09:00+00:00")),
            run(3, "canceled", Some("2026-11-25T16:07:00+00:00")),
        ];
        let active = vec![(run(4, "idle", None), None), (run(5, "running", None), None)];
        let inbox = vec![item(1, "2026-11-25T16:03:00+00:00", None)];
        let now = Timestamp::default();
        let page =
            Now::new(NowData { inbox, active, ended, groups: vec![], spent_today: None, now });
        let names: Vec<_> = page.done.iter().map(|item| item.name.as_str()).collect();
        assert_eq!(names, ["run-2", "run-3", "run-1"]);
        let working: Vec<_> = page.working.iter().map(|item| item.name.as_str()).collect();
        assert_eq!(working, ["run-5"]);
        let rests = page.needs.last().unwrap();
        assert_eq!((page.needs.len(), rests.title.as_str()), (2, "run-4"));
        assert_eq!(rests.answer, Answer::Turn);
        assert_eq!(rests.text, "done:\\u{1b}[2J\nyes");
    }

    #[test]
    fn many_working_runs_of_a_resource_are_folded_into_one_line() {
        let uid = |n: u8| format!("rec_{n:032x}");
        let owned = |id: u8, status: &str, of: u8| {
            let mut run = run(id, status, None);
            run.owner = uid(of).parse().ok();
            (run, None)
        };
        let mut active: Vec<_> = (1..5).map(|id| owned(id, "running", 1)).collect();
        active.push(owned(5, "queued", 1));
        active.extend((6..9).map(|id| owned(id, "running", 2)));
        // Runs without such a resource are never folded.
        active.extend((10..15).map(|id| owned(id, "running", 9)));
        active.extend((20..24).map(|id| owned(id, "running", 3)));
        active.extend((30..35).map(|id| owned(id, "running", 4)));
        let group = |n, kind, name: &str| Group { uid: uid(n), kind, name: name.to_owned() };
        let groups = vec![
            group(1, "fleet", "web"),
            group(2, "fleet", "few"),
            group(3, "lineage", "db"),
            group(4, "sentinel", "eye"),
        ];
        let now = Timestamp::default();
        let (inbox, ended) = (vec![], vec![]);
        let page = Now::new(NowData { inbox, active, ended, groups, spent_today: None, now });
        assert_eq!((page.at_work, page.working.len(), page.folds.len()), (22, 8, 3));
        let links: Vec<_> = page.folds.iter().map(|fold| fold.link.as_deref().unwrap()).collect();
        let want = ["/resources/fleet/web", "/resources/lineage/db", "/resources/sentinel/eye"];
        assert_eq!(links, want);
        let kinds: Vec<_> = page.folds.iter().map(|fold| (fold.kind, fold.items.len())).collect();
        assert_eq!(kinds, [("fleet", 5), ("lineage", 4), ("sentinel", 5)]);
        let web = page.folds.first().unwrap();
        let states: Vec<_> = web.states.iter().map(|(pill, n)| (pill.text.as_str(), *n)).collect();
        assert_eq!((states, web.items.len()), (vec![("working", 4), ("queued", 1)], 5));
    }
}
