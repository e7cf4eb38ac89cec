//! Answering what waits for a human: `approve`, `deny`, `answer`.
//!
//! The item is found by its id or by the id of its run. A group is answered as it was shown: with
//! the ids of the shown items, and none that was added since.

use std::io::{BufRead as _, IsTerminal as _};

use overmind_api::{
    InboxAnswer, InboxBatch, InboxDecision, InboxId, InboxItem, InboxKind, InboxRaise, InboxState,
    MAX_INBOX_BATCH, RunStatus,
};

use crate::args_inbox::{AnswerArgs, ApproveArgs, DenyArgs};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::inbox::{flat_table, show_item};
use crate::output::clean;
use crate::output::table::Tone;
use crate::remote::Remote;
use crate::show::{self, cell};
use crate::{asked, ids, inbox, session};

/// Open items that are looked through for a part of an id.
const MAX_OPEN: u32 = 10_000;
/// Closed ones.
const MAX_CLOSED: u32 = 1_000;

/// # Errors
///
/// Returns an error if one of them could not be approved.
pub async fn approve(cx: &Context, args: ApproveArgs) -> Outcome {
    let ApproveArgs { ids, group, yes, reason, raise } = args;
    let words = (reason, crate::budget::raise(&raise));
    decide(cx, InboxDecision::Approve, &ids, group, yes, words).await
}

/// # Errors
///
/// Returns an error if one of them could not be denied.
pub async fn deny(cx: &Context, args: DenyArgs) -> Outcome {
    let DenyArgs { ids, group, yes, reason } = args;
    decide(cx, InboxDecision::Deny, &ids, group, yes, (reason, None)).await
}

/// # Errors
///
/// Returns an error if the answer could not be given.
pub async fn answer(cx: &Context, args: AnswerArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let item = find_open(&remote, &args.id, InboxDecision::Answer).await?;
    let message = Some(args.text.join(" "));
    let answer =
        InboxAnswer { decision: InboxDecision::Answer, message, reason: None, raise: None };
    let item = remote.inbox_answer(&item.id.to_string(), &answer).await;
    let item = item.map_err(|failure| failure.of_run(&args.id))?;
    show_answered(cx, &remote, &item).await?;
    Ok(Exit::Done)
}

/// Why, and how much more of a limit.
type Words = (Option<String>, Option<InboxRaise>);

async fn decide(
    cx: &Context,
    decision: InboxDecision,
    given: &[String],
    group: Option<String>,
    yes: bool,
    (reason, raise): Words,
) -> Outcome {
    let remote = Remote::connect(cx)?;
    if let Some(group) = group {
        return together(cx, &remote, decision, &group, yes, (reason, raise)).await;
    }
    // Continues after one that cannot be answered, and returns the worst error at the end.
    let mut failed: Option<Failure> = None;
    for id in given {
        let done = async {
            let item = find_open(&remote, id, decision).await?;
            has_amount(&item, decision, raise.as_ref())?;
            if !yes && !sure(cx, &item, decision).await? {
                cx.out.note("nothing was answered");
                return Ok(());
            }
            let answer = InboxAnswer {
                decision,
                message: None,
                reason: reason.clone(),
                raise: raise.clone(),
            };
            let item = remote.inbox_answer(&item.id.to_string(), &answer).await;
            show_answered(cx, &remote, &item.map_err(|failure| failure.of_run(id))?).await
        };
        if let Err(failure) = done.await
            && let Some(before) = failed.replace(failure)
        {
            cx.out.error(&before.message, before.hint.as_deref());
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None => Ok(Exit::Done),
    }
}

/// Refuses to approve a budget request by no amount.
fn has_amount(
    item: &InboxItem,
    decision: InboxDecision,
    raise: Option<&InboxRaise>,
) -> Result<(), Failure> {
    let given = raise.is_some_and(|raise| raise.usd.is_some() || raise.tokens.is_some());
    let open = item.kind == InboxKind::Raise && item.state == InboxState::Open;
    if given || !open || decision != InboxDecision::Approve {
        return Ok(());
    }
    let title = clean::line(&item.title);
    Err(Failure::usage("give an amount: --usd N or --tokens N").hint(title))
}

/// Asks the person at the terminal once more before something of high risk is approved.
async fn sure(cx: &Context, item: &InboxItem, decision: InboxDecision) -> Result<bool, Failure> {
    let high = matches!(item.risk.as_deref(), Some("high" | "critical"));
    let open = item.state == InboxState::Open;
    if !(high && open && decision == InboxDecision::Approve && asked::possible(cx)) {
        return Ok(true);
    }
    inbox::tell(cx, item);
    let typed = asked::typed("allow it, this once? [y]es, [N]o: ").await?;
    Ok(matches!(typed.as_deref(), Some("y" | "Y" | "yes")))
}

/// Answers all items of a group that are open now and shown here; later ones are not answered.
async fn together(
    cx: &Context,
    remote: &Remote,
    decision: InboxDecision,
    given: &str,
    yes: bool,
    (reason, raise): Words,
) -> Outcome {
    let group = match find_group(remote, given, false).await {
        Err(failure) if failure.exit == Exit::NotFound => {
            return Err(no_group(remote, given, decision, failure).await);
        }
        found => found?,
    };
    let items = remote.inbox(false, None, Some(&group), MAX_OPEN).await?;
    for item in &items {
        fitting(&item.id.to_string(), item.clone(), decision)?;
    }
    items.iter().try_for_each(|item| has_amount(item, decision, raise.as_ref()))?;
    if !yes {
        let word = if decision == InboxDecision::Approve { "approve" } else { "deny" };
        if !std::io::stdin().is_terminal() {
            let message = format!("{} items of group {group} are open", items.len());
            let hint =
                format!("look at them with `overmind inbox --group {group}`, then add --yes");
            return Err(Failure::usage(message).hint(hint));
        }
        cx.out.note(
            flat_table(&items, false, &inbox::names(remote, &items).await?, cx.now())
                .render(cx.out.err_colour)
                .trim_end(),
        );
        cx.out.note(&format!("{word} these {}? [y/N]", items.len()));
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        read.map_err(|err| Failure::failed(format!("reading the answer: {err}")))?;
        if !matches!(line.trim(), "y" | "Y" | "yes") {
            cx.out.note("nothing was answered");
            return Ok(Exit::Done);
        }
    }
    let ids: Vec<InboxId> = items.iter().map(|item| item.id).collect();
    let mut failed: Option<Failure> = None;
    for ids in ids.chunks(MAX_INBOX_BATCH) {
        let (ids, group) = (ids.to_vec(), Some(group.clone()));
        let (reason, raise) = (reason.clone(), raise.clone());
        let batch = InboxBatch { ids, group, decision, message: None, reason, raise };
        for result in remote.inbox_answer_all(&batch).await?.results {
            if let Some(item) = result.item {
                show_answered(cx, remote, &item).await?;
                continue;
            }
            let why = result.problem.map_or_else(|| "it failed".to_owned(), |it| it.error);
            let failure = Failure::new(Exit::Conflict, format!("{}: {why}", result.id));
            if let Some(before) = failed.replace(failure) {
                cx.out.error(&before.message, None);
            }
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None => Ok(Exit::Done),
    }
}

/// Shows the run that continues, and reports if it does not.
async fn show_answered(cx: &Context, remote: &Remote, item: &InboxItem) -> Result<(), Failure> {
    match item.run_id {
        Some(run) => {
            let run = remote.run(&run.to_string()).await?;
            if cx.out.for_people() && item.state != InboxState::Expired {
                show::facts(&cx.out, answered(item))?;
            }
            session::show_run(cx, &run)?;
        }
        None => show_item(cx, item)?,
    }
    if item.state == InboxState::Expired {
        cx.out.warn(
            "the approval came too late: the request had expired and is asked again; see \
            `overmind inbox`",
        );
    }
    Ok(())
}

/// The approved, denied or answered item: the call and its effects.
fn answered(item: &InboxItem) -> Vec<(&'static str, (String, Tone))> {
    let (word, tone) = match item.state {
        InboxState::Approved => ("approved", Tone::Good),
        InboxState::Denied => ("denied", Tone::Bad),
        InboxState::Answered => ("answered", Tone::Good),
        InboxState::Open | InboxState::Expired | InboxState::Withdrawn => return Vec::new(),
    };
    let mut lines = vec![(word, (inbox::effective(item), tone))];
    if matches!(item.kind, InboxKind::Question | InboxKind::Work) {
        lines.extend(item.answer.clone().map(|answer| ("answer", cell(answer))));
    }
    lines.extend(inbox::actions(item).map(|does| ("does", cell(does))));
    lines
}

/// A group by its key or a beginning of it.
///
/// # Errors
///
/// [`Exit::NotFound`] for none, [`Exit::Usage`] for several.
pub(super) async fn find_group(remote: &Remote, given: &str, all: bool) -> Result<String, Failure> {
    let given = given.trim_end_matches('…');
    if given.is_empty() {
        return Err(Failure::usage("the group's key is blank"));
    }
    let items = remote.inbox(all, None, None, MAX_OPEN).await?;
    let mut keys: Vec<String> = items.into_iter().filter_map(|item| item.group).collect();
    keys.retain(|key| key.starts_with(given));
    keys.sort();
    keys.dedup();
    ids::only("group of open items", given, keys, "overmind inbox --flat -o wide")
}

/// Why there is no such group: what was given may be an item or a run, and then the command for that.
async fn no_group(
    remote: &Remote,
    given: &str,
    decision: InboxDecision,
    missing: Failure,
) -> Failure {
    match find_open(remote, given, decision).await {
        Ok(item) if item.state == InboxState::Open => {
            let word = if decision == InboxDecision::Approve { "approve" } else { "deny" };
            Failure { hint: None, ..missing }
                .hint(format!("it is a single request: overmind {word} {given}"))
        }
        // It waits for something else, or for nothing.
        Err(failure) if failure.exit == Exit::Conflict => failure,
        Ok(_) | Err(_) => match remote.inbox(false, None, None, 1).await {
            Ok(open) if open.is_empty() => missing
                .hint("nothing waits for you; `overmind inbox --all` lists what was answered"),
            Ok(_) | Err(_) => missing,
        },
    }
}

/// The possible answers to a question, as far as its text names them.
fn likely_answer(asked: &str) -> &'static str {
    let asked = asked.to_lowercase();
    let words = asked.split(|c: char| !c.is_alphanumeric());
    let has = |wanted: &str| words.clone().any(|word| word == wanted);
    match (has("yes") && has("no"), has("y") && has("n")) {
        (true, _) => "yes (or no)",
        (false, true) => "y (or n)",
        (false, false) => "\"…\"",
    }
}

fn fits(given: &str, item: &InboxItem) -> bool {
    ids::matches(given, &item.id.to_string())
        || item.run_id.is_some_and(|run| ids::matches(given, &run.to_string()))
}

/// The id of the run of this name, and which of the items are its.
async fn of_run(
    remote: &Remote,
    given: &str,
    items: Vec<InboxItem>,
) -> Result<(String, Vec<InboxItem>), Failure> {
    let id = remote.find_run(given).await.map_err(|failure| match failure.exit {
        Exit::NotFound => {
            let none = ids::none("item or run", given, "overmind inbox --all");
            let near = failure.hint.filter(|hint| hint.starts_with("did you mean"));
            Failure { hint: near.or(none.hint.clone()), ..none }
        }
        _ => failure,
    })?;
    let its = |item: &InboxItem| item.run_id.is_some_and(|run| run.to_string() == id);
    let its = items.into_iter().filter(its).collect();
    Ok((id, its))
}

/// An item, open or not, by its id, its run's, a part of either, or its run's name.
///
/// # Errors
///
/// [`Exit::NotFound`] for none, [`Exit::Usage`] for several.
pub(super) async fn find(remote: &Remote, given: &str) -> Result<InboxItem, Failure> {
    if given.parse::<InboxId>().is_ok() {
        return remote.inbox_fetch(given).await;
    }
    let mut all = Vec::new();
    for closed in [false, true] {
        let limit = if closed { MAX_CLOSED } else { MAX_OPEN };
        let found = remote.inbox(closed, None, None, limit).await?;
        let fit: Vec<_> = found.iter().filter(|item| fits(given, item)).cloned().collect();
        if !fit.is_empty() {
            return one_of(given, fit);
        }
        // All of them have the open ones among them.
        all = found;
    }
    match of_run(remote, given, all).await? {
        (_, its) if its.is_empty() => Err(ids::none("item", given, "overmind inbox --all")),
        (_, its) => one_of(given, its),
    }
}

fn one_of(given: &str, mut found: Vec<InboxItem>) -> Result<InboxItem, Failure> {
    let names = found.iter().map(|item| item.id.to_string()).collect();
    let id = ids::only("item", given, names, "overmind inbox --all")?;
    let at = found.iter().position(|item| item.id.to_string() == id);
    Ok(found.swap_remove(at.expect("it is one of them")))
}

/// The open item that the argument names, if it can be answered this way.
async fn find_open(
    remote: &Remote,
    given: &str,
    decision: InboxDecision,
) -> Result<InboxItem, Failure> {
    if given.parse::<InboxId>().is_ok() {
        return fitting(given, remote.inbox_fetch(given).await?, decision);
    }
    let open = remote.inbox(false, None, None, MAX_OPEN).await?;
    // A name that looks like a part of an id is a name first.
    if remote.is_name_of_run(given).await? {
        return open_of_run(remote, given, open, decision).await;
    }
    let found: Vec<_> = open.iter().filter(|item| fits(given, item)).cloned().collect();
    if !found.is_empty() {
        return fitting(given, one_of(given, found)?, decision);
    }
    // No item with this id is open: report its state.
    if ids::plausible(given, InboxId::PREFIX) {
        let mut closed = remote.inbox(true, None, None, MAX_CLOSED).await?;
        closed.retain(|item| ids::matches(given, &item.id.to_string()));
        if !closed.is_empty() {
            return one_of(given, closed);
        }
    }
    open_of_run(remote, given, open, decision).await
}

/// The one open item of a run.
async fn open_of_run(
    remote: &Remote,
    given: &str,
    open: Vec<InboxItem>,
    decision: InboxDecision,
) -> Result<InboxItem, Failure> {
    let (id, found) = of_run(remote, given, open).await?;
    if !found.is_empty() {
        return fitting(given, one_of(given, found)?, decision);
    }
    let run = remote.run(&id).await?;
    let for_what = match decision {
        InboxDecision::Answer => "an answer",
        InboxDecision::Approve | InboxDecision::Deny => "approval",
    };
    Err(Failure::new(
        Exit::Conflict,
        format!("run {given} does not wait for {for_what}: it is {}", session::state(run.status)),
    )
    .hint(match run.status {
        RunStatus::Idle => format!("overmind send {given} \"…\" continues it"),
        RunStatus::Queued
        | RunStatus::Running
        | RunStatus::AwaitingInput
        | RunStatus::AwaitingApproval
        | RunStatus::Succeeded
        | RunStatus::Failed
        | RunStatus::Canceled => "`overmind inbox` lists what waits".to_owned(),
    }))
}

/// Refuses an answer that is not of the item's kind, with the command that is.
fn fitting(given: &str, item: InboxItem, decision: InboxDecision) -> Result<InboxItem, Failure> {
    if item.state != InboxState::Open {
        // The server names the first answer's author.
        return Ok(item);
    }
    match (item.kind, decision) {
        (InboxKind::Approval, InboxDecision::Answer) => Err(Failure::new(
            Exit::Conflict,
            format!("{} waits for approval, not for an answer", clean::line(&item.title)),
        )
        .hint(format!("decide: overmind approve {given}, or overmind deny {given}"))),
        (InboxKind::Work, InboxDecision::Approve | InboxDecision::Deny) => Err(Failure::new(
            Exit::Conflict,
            format!("this does not wait for approval: {}", clean::line(inbox::asked(&item))),
        )
        .hint(format!("decide: overmind answer {given} merge (or keep, or discard)"))),
        (InboxKind::Question, InboxDecision::Approve | InboxDecision::Deny) => Err(Failure::new(
            Exit::Conflict,
            format!(
                "this does not wait for approval, it asks: {}",
                clean::line(inbox::asked(&item))
            ),
        )
        .hint(format!(
            "answer it: overmind answer {given} {}",
            likely_answer(inbox::asked(&item))
        ))),
        (InboxKind::Approval, InboxDecision::Approve | InboxDecision::Deny)
        | (InboxKind::Question | InboxKind::Work, InboxDecision::Answer)
        | (InboxKind::Raise, _) => Ok(item),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yes_or_no_question_takes_only_yes_or_no() {
        for (asked, answer) in [
            ("go on? (Yes, No)", "yes (or no)"),
            ("continue [y/N]", "y (or n)"),
            ("is there no file of yesterday?", "\"…\""),
            ("which port?", "\"…\""),
        ] {
            assert_eq!(likely_answer(asked), answer, "{asked}");
        }
    }
}
