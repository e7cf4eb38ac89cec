//! The displayed inbox: waiting items, groups, changes, and proposed rules.

use std::collections::{BTreeMap, HashMap};

use overmind_api::{
    InboxItem, InboxKind, InboxProposal, InboxState, RunBasic, SessionId, Timestamp,
};
use overmind_client::InboxNews;

use crate::args_inbox::{InboxArgs, InboxCommand, Kind};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::ids;
use crate::inbox_answer::{find, find_group};
use crate::output::table::{Table, Tone};
use crate::output::{clean, paint, when};
use crate::remote::Remote;
use crate::show::{self, cell, dim, or_dash};

/// Characters of a title in a row.
const TITLE: usize = 72;

/// # Errors
///
/// Returns an error if the inbox could not be shown.
pub async fn run(cx: &Context, args: InboxArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    match &args.command {
        Some(InboxCommand::Show { id }) => {
            let item = find(&remote, id).await?;
            show_item(cx, &item)?;
        }
        Some(InboxCommand::Proposals) => proposals(cx, &remote.inbox_proposals().await?)?,
        None if args.watch => return watch(cx, &remote, &args).await,
        None => {
            let items = listed(&remote, &args).await?;
            let names = match cx.out.for_people() && !cx.out.wide() {
                true => names(&remote, &items).await?,
                false => Names::default(),
            };
            list(cx, &items, &names, &args)?;
        }
    }
    Ok(Exit::Done)
}

/// The names of runs.
pub(super) type Names = HashMap<SessionId, String>;

/// Runs that are listed to know the names of many at once.
const MANY: u32 = 10_000;
/// Runs that are asked for one by one.
const FEW: usize = 8;

/// The names of the runs of items, as far as the runs are still there.
pub(super) async fn names(remote: &Remote, items: &[InboxItem]) -> Result<Names, Failure> {
    let mut names = Names::new();
    let mut ids: Vec<SessionId> = items.iter().filter_map(|item| item.run_id).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() > FEW {
        let all: Vec<RunBasic> = remote.runs(&[], None, MANY).await?;
        names.extend(all.into_iter().map(|run| (run.id, run.name)));
        return Ok(names);
    }
    for id in ids {
        match remote.run(&id.to_string()).await {
            Ok(run) => drop(names.insert(id, run.name)),
            Err(failure) if failure.exit == Exit::NotFound => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(names)
}

impl From<Kind> for InboxKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Approval => Self::Approval,
            Kind::Question => Self::Question,
            Kind::Raise => Self::Raise,
            Kind::Work => Self::Work,
        }
    }
}

async fn listed(remote: &Remote, args: &InboxArgs) -> Result<Vec<InboxItem>, Failure> {
    let group = match &args.group {
        Some(given) => Some(find_group(remote, given, args.all).await?),
        None => None,
    };
    remote.inbox(args.all, args.kind.map(InboxKind::from), group.as_deref(), args.limit).await
}

fn list(cx: &Context, items: &[InboxItem], names: &Names, args: &InboxArgs) -> Result<(), Failure> {
    let empty = match (args.all, args.kind.is_some() || args.group.is_some()) {
        (_, true) => "no such items; `overmind inbox --all` also lists closed items",
        (false, false) => "the inbox is empty: nothing waits for you",
        (true, false) => "the inbox is empty: there were never any items",
    };
    let now = cx.now();
    let together = cx.out.for_people() && !cx.out.wide() && !args.flat && !args.all;
    let groups = groups(items);
    show::list(
        &cx.out,
        items,
        |item| item.id.to_string(),
        |wide| match (wide, together) {
            (true, _) => wide_table(items),
            (false, true) => grouped_table(items, &groups, names, now),
            (false, false) => flat_table(items, args.all, names, now),
        },
        empty,
    )?;
    if together && let Some((key, alike)) = groups.iter().max_by_key(|(_, alike)| alike.len()) {
        let key = key.get(..8).unwrap_or(key);
        let all: usize = groups.values().map(Vec::len).sum();
        cx.out.note(&format!(
            "{all} similar items are grouped in {}; `overmind inbox --group {key}` lists {}, \
                `overmind approve --group {key}` answers them together",
            if groups.len() == 1 { "one row".to_owned() } else { format!("{} rows", groups.len()) },
            if groups.len() == 1 { "them".to_owned() } else { format!("the {}", alike.len()) },
        ));
    }
    Ok(())
}

/// Open items that are not alone in their group.
fn groups(items: &[InboxItem]) -> BTreeMap<&str, Vec<&InboxItem>> {
    let mut groups: BTreeMap<&str, Vec<&InboxItem>> = BTreeMap::new();
    for item in items.iter().filter(|item| item.state == InboxState::Open) {
        if let Some(group) = &item.group {
            groups.entry(group).or_default().push(item);
        }
    }
    groups.retain(|_, alike| alike.len() > 1);
    groups
}

fn risk(item: &InboxItem) -> (String, Tone) {
    match item.risk.as_deref() {
        Some(risk @ "critical") | Some(risk @ "high") => (risk.to_owned(), Tone::Bad),
        Some(risk @ "medium") => (risk.to_owned(), Tone::Waits),
        Some(risk) => cell(risk),
        None => dim("-"),
    }
}

/// The run of an item, by its name where that is known.
fn run_of(item: &InboxItem, names: &Names) -> (String, Tone) {
    or_dash(item.run_id.map(|run| called(run, names)))
}

fn called(run: SessionId, names: &Names) -> String {
    names.get(&run).cloned().unwrap_or_else(|| ids::short(&run.to_string()).to_owned())
}

fn agent_of(item: &InboxItem) -> (String, Tone) {
    or_dash((!item.agent.is_empty()).then(|| item.agent.clone()))
}

fn what(item: &InboxItem, now: Timestamp) -> (String, Tone) {
    let late = item.state == InboxState::Open && item.expires_at.is_some_and(|at| now >= at);
    let title = clean::cut(&item.title, TITLE).into_owned();
    if late { (format!("{title} (expired; will be asked again)"), Tone::Dim) } else { cell(title) }
}

fn state_tone(state: InboxState) -> Tone {
    match state {
        InboxState::Open => Tone::Waits,
        InboxState::Approved | InboxState::Answered => Tone::Good,
        InboxState::Denied => Tone::Bad,
        InboxState::Expired | InboxState::Withdrawn => Tone::Dim,
    }
}

fn row(item: &InboxItem, names: &Names, now: Timestamp) -> Vec<(String, Tone)> {
    vec![
        cell(ids::short(&item.id.to_string())),
        cell(kind_word(item.kind)),
        agent_of(item),
        run_of(item, names),
        cell(when::ago(item.asked_at, now)),
        risk(item),
        what(item, now),
    ]
}

const COLUMNS: [&str; 7] = ["ID", "KIND", "AGENT", "RUN", "AGE", "RISK", "WHAT"];

fn grouped_table(
    items: &[InboxItem],
    groups: &BTreeMap<&str, Vec<&InboxItem>>,
    names: &Names,
    now: Timestamp,
) -> Table {
    let mut table = Table::new(&COLUMNS);
    let mut shown: Vec<&str> = Vec::new();
    for item in items {
        let alike = item.group.as_deref().and_then(|key| Some((key, groups.get(key)?)));
        let Some((key, alike)) = alike else {
            table.row(row(item, names, now));
            continue;
        };
        if shown.contains(&key) {
            continue;
        }
        shown.push(key);
        let several = |mut names: Vec<String>, word: &str| {
            names.sort();
            names.dedup();
            match &names[..] {
                [one] => one.clone(),
                more => format!("{} {word}", more.len()),
            }
        };
        let agents = alike.iter().map(|item| item.agent.clone()).collect();
        let runs = alike.iter().filter_map(|item| item.run_id);
        let runs = runs.map(|run| called(run, names)).collect();
        let oldest = alike.iter().map(|item| item.asked_at).min().unwrap_or(item.asked_at);
        let (title, tone) = what(item, now);
        table.row(vec![
            (format!("{}…", key.get(..8).unwrap_or(key)), Tone::Busy),
            cell(format!("{} ×{}", kind_word(item.kind), alike.len())),
            cell(several(agents, "agents")),
            cell(several(runs, "runs")),
            cell(when::ago(oldest, now)),
            risk(item),
            (format!("{title} (and {} alike)", alike.len() - 1), tone),
        ]);
    }
    table
}

pub(super) fn flat_table(items: &[InboxItem], all: bool, names: &Names, now: Timestamp) -> Table {
    if !all {
        let mut table = Table::new(&COLUMNS);
        for item in items {
            table.row(row(item, names, now));
        }
        return table;
    }
    let mut table =
        Table::new(&["ID", "KIND", "STATE", "BY", "AGENT", "RUN", "AGE", "RISK", "WHAT"]);
    for item in items {
        let mut cells = row(item, names, now);
        let state = (item.state.to_string(), state_tone(item.state));
        cells.splice(2..2, [state, or_dash(item.answered_by.clone())]);
        table.row(cells);
    }
    table
}

fn wide_table(items: &[InboxItem]) -> Table {
    let mut table = Table::new(&[
        "ID", "KIND", "STATE", "AGENT", "RUN", "ASKED", "EXPIRES", "ANSWERED", "BY", "RISK",
        "GROUP", "WHAT", "ANSWER",
    ]);
    for item in items {
        table.row(vec![
            cell(item.id.to_string()),
            cell(kind_word(item.kind)),
            (item.state.to_string(), state_tone(item.state)),
            agent_of(item),
            or_dash(item.run_id.map(|run| run.to_string())),
            cell(item.asked_at.to_string()),
            or_dash(item.expires_at.map(|at| at.to_string())),
            or_dash(item.answered_at.map(|at| at.to_string())),
            or_dash(item.answered_by.clone()),
            risk(item),
            or_dash(item.group.clone()),
            cell(&item.title),
            or_dash(item.answer.clone()),
        ]);
    }
    table
}

/// The kind of the waiting item, in words for people.
pub(super) fn kind_word(kind: InboxKind) -> &'static str {
    match kind {
        InboxKind::Approval | InboxKind::Question | InboxKind::Work => kind.as_str(),
        InboxKind::Raise => "budget request",
    }
}

/// The whole question, because the title is truncated. For a budget request, without the note about
/// answers in words, because it is approved with an amount.
pub(super) fn asked(item: &InboxItem) -> &str {
    let prompt = item.details.get("prompt").and_then(|value| value.as_str()).unwrap_or_default();
    let prompt = match item.kind {
        InboxKind::Approval => "",
        InboxKind::Question | InboxKind::Work => prompt,
        InboxKind::Raise => prompt.split(" Answer `").next().unwrap_or(prompt),
    };
    if prompt.trim().is_empty() { &item.title } else { prompt }
}

/// The option of `approve` that grants a budget request: what the refused call asked for, in the
/// limit's unit. Dollars are rounded up to whole ones.
pub(super) fn amount(item: &InboxItem) -> String {
    let of = |key: &str| {
        let refusal = item.details.pointer(&format!("/refusal/{key}"));
        refusal.or_else(|| item.details.get(key)).cloned().unwrap_or_default()
    };
    let asked = of("asked").as_u64().unwrap_or_default();
    match of("unit").as_str() {
        Some("tokens") => format!("--tokens {}", asked.max(1)),
        _ => format!("--usd {}", asked.div_ceil(1_000_000).max(1)),
    }
}

/// Says what an item is about to the person who follows its run: what would be done, and why it is
/// asked.
pub(super) fn tell(cx: &Context, item: &InboxItem) {
    let text = |key: &str| item.details.get(key).and_then(|value| value.as_str());
    let head = match item.kind {
        InboxKind::Approval => "waits for approval",
        InboxKind::Question => "asks",
        InboxKind::Raise => "has a budget request",
        InboxKind::Work => "has left work",
    };
    // A person who is asked sees all of it; only tables truncate.
    cx.out.note(&format!("\n{} {head}: {}", clean::line(&item.agent), clean::block(asked(item))));
    let more = |name: &str, value: Option<&str>| {
        let lines = value.into_iter().flat_map(str::lines);
        lines.for_each(|line| cx.out.note(&format!("  {name}{}", clean::line(line))));
    };
    let command = item.details.pointer("/args/command").and_then(|value| value.as_str());
    more("$ ", command.filter(|_| item.kind == InboxKind::Approval));
    more("would ", actions(item).as_deref());
    more("why: ", text("reason"));
    more("risk: ", item.risk.as_deref());
}

pub(super) fn show_item(cx: &Context, item: &InboxItem) -> Result<(), Failure> {
    let detail = |key: &str| item.details.get(key).filter(|value| !value.is_null());
    let text = |key: &str| detail(key).and_then(|value| value.as_str()).map(str::to_owned);
    show::one(&cx.out, item, &item.id.to_string(), || {
        let mut lines = vec![
            ("item", cell(item.id.to_string())),
            ("kind", cell(kind_word(item.kind))),
            ("state", (item.state.to_string(), state_tone(item.state))),
            ("agent", agent_of(item)),
            ("run", or_dash(item.run_id.map(|run| run.to_string()))),
            ("asked", cell(item.asked_at.to_string())),
        ];
        let mut more = |name, value: Option<String>| {
            lines.extend(value.map(|value| (name, cell(value))));
        };
        more("expires", item.expires_at.map(|at| at.to_string()));
        more("answered", item.answered_at.map(|at| at.to_string()));
        more("by", item.answered_by.clone());
        more("answer", item.answer.clone());
        match item.kind {
            InboxKind::Approval => {
                more("tool", text("tool_name"));
                more("args", detail("args").map(|args| format!("{args:#}")));
                let cut = "too long to show here; `overmind events RUN` shows them completely";
                more("", detail("args_cut").map(|_| cut.to_owned()));
                more("risk", item.risk.clone());
                more("reason", text("reason"));
                let rule = |key: &str| item.details.pointer(key)?.as_str().map(str::to_owned);
                let place = rule("/rule/place").map(|place| format!(" ({place})"));
                more("rule", rule("/rule/id").map(|id| id + &place.unwrap_or_default()));
                more("does", actions(item));
                more("sandbox", text("sandbox"));
                more("group", item.group.clone());
            }
            InboxKind::Question | InboxKind::Raise | InboxKind::Work => {
                more("asks", text("prompt"));
            }
        }
        lines
    })
}

/// The approved or denied action in one line: the call, with a command unchanged.
pub(super) fn effective(item: &InboxItem) -> String {
    let text = |pointer: &str| item.details.pointer(pointer).and_then(|value| value.as_str());
    let command = text("/args/command").filter(|_| item.kind == InboxKind::Approval);
    match (text("/tool_name"), command) {
        (Some(tool), Some(command)) => format!("{tool}: {command}"),
        _ => item.title.clone(),
    }
}

/// The effects of the call, a line for each touch.
pub(super) fn actions(item: &InboxItem) -> Option<String> {
    let actions = item.details.get("actions")?.as_array()?;
    let mut lines = Vec::new();
    for action in actions {
        let program = action.get("program")?.as_str()?;
        for touch in action.get("touches")?.as_array()? {
            let (kind, target) = (touch.get("kind")?.as_str()?, touch.get("target")?.as_str()?);
            lines.push(format!("{program}: {kind} {target}"));
        }
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn proposals(cx: &Context, found: &[InboxProposal]) -> Result<(), Failure> {
    if !cx.out.for_people() {
        return show::list(
            &cx.out,
            found,
            |proposal| proposal.sample.id.to_string(),
            |_| Table::new(&[]),
            "",
        );
    }
    if found.is_empty() {
        cx.out.note(
            "no rules to propose: nothing was approved often enough in exactly the same form \
                (`policy.propose_after`)",
        );
    }
    for proposal in found {
        let InboxProposal { rule, count, sample, .. } = proposal;
        let title = clean::line(&sample.title).into_owned();
        let agent = clean::line(&sample.agent).into_owned();
        cx.out
            .text(&format!("# approved {count} times for {agent}: {title}\n{}\n", rule.trim()))?;
    }
    Ok(())
}

async fn watch(cx: &Context, remote: &Remote, args: &InboxArgs) -> Outcome {
    let kind = args.kind.map(InboxKind::from);
    let wanted = |item: &InboxItem| {
        kind.is_none_or(|kind| item.kind == kind)
            && args
                .group
                .as_deref()
                .is_none_or(|group| item.group.as_deref().is_some_and(|key| key.starts_with(group)))
    };
    let mut news = remote.inbox_watch().await?;
    while let Some(next) = news.next().await {
        match next? {
            InboxNews::Opened(item) | InboxNews::Closed(item) if wanted(&item) => {
                if cx.out.for_people() {
                    cx.out.line(&news_line(cx, &item))?;
                } else {
                    cx.out.streamed(&show::to_value(&*item))?;
                }
            }
            InboxNews::Opened(_) | InboxNews::Closed(_) => {}
            InboxNews::Snapshot(snapshot) if snapshot.open == 0 => {
                cx.out.note("the inbox is empty; waiting for new items");
            }
            InboxNews::Snapshot(_) => {}
        }
    }
    Ok(Exit::Done)
}

fn news_line(cx: &Context, item: &InboxItem) -> String {
    let (id, run) = (item.id.to_string(), run_of(item, &Names::new()).0);
    let tone = state_tone(item.state);
    let state = paint(&format!("{:9}", item.state.as_str()), tone, cx.out.colour);
    let by = item.answered_by.as_ref().map(|by| format!(" by {}", clean::line(by)));
    let risk = item.risk.as_ref().map(|risk| format!(" ({risk} risk)"));
    format!(
        "{state} {}  {:8}  {}  {}  {}{}{}",
        ids::short(&id),
        kind_word(item.kind),
        clean::line(&agent_of(item).0),
        run,
        clean::line(&item.title),
        risk.unwrap_or_default(),
        by.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(kind: &str, details: serde_json::Value) -> InboxItem {
        serde_json::from_value(json!({
            "id": "inb_0190b2c4d5e67000800000000000002a", "kind": kind, "state": "open",
            "run_id": null, "agent_id": null, "agent": "worker", "epoch": 0,
            "title": "a title that is cut…", "details": details, "group": null,
            "asked_at": "2026-11-28T00:00:00Z", "expires_at": null, "answered_at": null,
            "answered_by": null, "answer": null, "risk": null, "approval_id": null, "changed": 1,
        }))
        .unwrap()
    }

    #[test]
    fn a_person_sees_the_whole_prompt_and_tables_show_budget_request() {
        let long = format!("why {}? Answer `deny` to end the run, or try again.", "x".repeat(300));
        assert_eq!(asked(&item("question", json!({"prompt": long}))), long);
        let request =
            item("raise", json!({"prompt": "It is spent. Answer `deny` to end the run."}));
        assert_eq!(asked(&request), "It is spent.");
        assert_eq!(kind_word(request.kind), "budget request");
        for kind in ["question", "raise"] {
            assert_eq!(asked(&item(kind, json!({}))), "a title that is cut…");
        }
    }

    #[test]
    fn a_granted_amount_has_the_unit_of_its_limit() {
        let of = |unit: &str, asked: u64| {
            amount(&item("raise", json!({"refusal": {"unit": unit, "asked": asked}})))
        };
        assert_eq!(of("microusd", 1_500_000), "--usd 2");
        assert_eq!(of("microusd", 10), "--usd 1");
        assert_eq!(of("tokens", 9_000), "--tokens 9000");
        assert_eq!(amount(&item("raise", json!({"why": "soft_limit"}))), "--usd 1");
    }
}
