//! Environments of runs: `work`, `done`, `url`, and their part of `run` and `ps`.

use std::io::{BufRead as _, IsTerminal as _};

use overmind_api::{
    FileChange, Room, RoomAction, RoomChanges, RoomDone, RoomPhase, RoomUndo, RoomUndone, RoomWork,
    Run, RunStatus, RunsLater,
};
use serde::Serialize;

use crate::args::Format;
use crate::args_room::{DoneArgs, PruneArgs, RmArgs, UndoArgs, UrlArgs, WorkArgs};
use crate::command::Worst;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::ids;
use crate::output::table::{Table, Tone};
use crate::output::{clean, paint, when};
use crate::remote::Remote;
use crate::show::{self, cell, dim, or_dash};

/// Prints the environment of a started run.
pub fn announce(cx: &Context, run: &Run) {
    let Some(room) = &run.room else { return };
    match room.phase {
        RoomPhase::Preparing => cx.out.note(
            "its environment is still being created; `overmind logs` shows the \
                progress",
        ),
        RoomPhase::Failed => {}
        RoomPhase::Ready
        | RoomPhase::Closing
        | RoomPhase::Closed
        | RoomPhase::Kept
        | RoomPhase::Left => cx.out.note(&line(room)),
    }
    for warning in &room.warnings {
        cx.out.note(&clean::line(warning));
    }
}

/// The environment of a run, in one line.
fn line(room: &Room) -> String {
    let directory = room.directory.as_deref().unwrap_or("-");
    let mut line = match (&room.worktree, &room.branch) {
        (Some(_), Some(branch)) => format!("works on branch {branch} in {directory}"),
        (Some(_), None) => format!("works in a copy, {directory}"),
        (None, _) => format!("works in {directory} itself"),
    };
    let services = services(room).map(|(name, url)| format!("{name} {url}"));
    let services: Vec<_> = services.collect();
    if !services.is_empty() {
        line.push_str(&format!("; {}", services.join(", ")));
    }
    clean::line(&line).into_owned()
}

/// The services of an environment and where they answer. Not its bare ports: whether and how something
/// answers there is not known.
pub fn services(room: &Room) -> impl Iterator<Item = (&str, &str)> {
    let urls = room.urls.iter().filter(|(name, _)| !room.ports.contains_key(*name));
    urls.map(|(name, url)| (name.as_str(), url.as_str()))
}

/// The addresses of its services; if none is declared, that of `PORT`.
fn addresses(room: &Room) -> Vec<(String, String)> {
    if room.urls.is_empty()
        && let Some(port) = room.ports.get("PORT")
    {
        return vec![("PORT".to_owned(), format!("http://127.0.0.1:{port}"))];
    }
    room.urls.iter().map(|(name, url)| (name.clone(), url.clone())).collect()
}

/// The branch of a run, and the state of its environment, for columns.
pub fn branch_cell(run: &Run) -> (String, Tone) {
    or_dash(run.room.as_ref().and_then(|room| room.branch.clone()))
}

/// `3 +41 −7`: files, added and removed lines.
pub fn changes_cell(changes: Option<RoomChanges>) -> (String, Tone) {
    or_dash(changes.filter(|changes| changes.files > 0).map(said_changes))
}

pub fn said_changes(changes: RoomChanges) -> String {
    format!("{} +{} −{}", changes.files, changes.added, changes.removed)
}

pub fn phase_cell(run: &Run) -> (String, Tone) {
    let Some(room) = &run.room else { return dim("-") };
    match (room.phase, room.leaks.len()) {
        (phase, 0) => {
            let tone = match phase {
                RoomPhase::Failed | RoomPhase::Left => Tone::Bad,
                RoomPhase::Preparing | RoomPhase::Closing => Tone::Busy,
                RoomPhase::Ready | RoomPhase::Closed | RoomPhase::Kept => Tone::Plain,
            };
            (phase.as_str().to_owned(), tone)
        }
        (phase, leaks) => {
            (format!("{}, {}", phase.as_str(), when::counted(leaks as u64, "leak")), Tone::Bad)
        }
    }
}

/// # Errors
///
/// Returns an error if the work could not be shown.
pub async fn work(cx: &Context, args: &WorkArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(&args.id).await?;
    let work = remote.run_work(&id).await.map_err(|err| err.of_run(&args.id))?;
    match cx.out.format {
        Format::Json | Format::Yaml => cx.out.value(&show::to_value(&work))?,
        Format::Name => cx.out.line(work.branch.as_deref().unwrap_or_default())?,
        Format::Table | Format::Wide => {
            cx.out.line(&stat(&work))?;
            if !args.stat {
                print_diff(cx, &work)?;
            }
        }
    }
    Ok(Exit::Done)
}

/// The amount of work, in one line.
fn stat(work: &RoomWork) -> String {
    let commits = match (work.commits, work.files) {
        (0, 1..) => "not committed yet,".to_owned(),
        (commits, _) => when::counted(commits.into(), "commit"),
    };
    let mut line = format!(
        "{}, {} added, {} removed; {commits}",
        when::counted(work.files.into(), "file"),
        when::counted(work.insertions, "line"),
        when::counted(work.deletions, "line"),
    );
    match &work.branch {
        Some(branch) => line.push_str(&format!(" on {branch}")),
        None => line.truncate(line.trim_end_matches(',').len()),
    }
    if let Some(base) = &work.base {
        line.push_str(&format!(", from {}", clean::cut(base, 12)));
    }
    clean::line(&line).into_owned()
}

fn print_diff(cx: &Context, work: &RoomWork) -> Result<(), Failure> {
    for line in work.diff.lines() {
        let tone = match line.as_bytes().first() {
            Some(b'+') => Tone::Good,
            Some(b'-') => Tone::Bad,
            Some(b'@') => Tone::Busy,
            Some(_) | None => Tone::Plain,
        };
        cx.out.line(&paint(&clean::line(line), tone, cx.out.colour))?;
    }
    if work.truncated {
        cx.out.note("the diff is longer; this is its beginning");
    }
    Ok(())
}

/// # Errors
///
/// Returns an error if the decision could not be carried out; [`Exit::Usage`] when work is to be thrown away
/// and nobody can be asked.
pub async fn done(cx: &Context, args: &DoneArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    if let ([_, _, ..], Some(Some(name))) = (args.ids.as_slice(), &args.pr_branch) {
        let message = format!("`--pr-branch {name}` is one branch, and several runs are named");
        return Err(Failure::usage(message)
            .hint("without a name, each run's work gets a branch of its own name"));
    }
    let mut worst = Worst::default();
    for given in &args.ids {
        worst.of(cx, Box::pin(done_one(cx, &remote, args, given)).await);
    }
    worst.told()
}

/// Decides about the work of one run; for several runs, it prints the name of each first.
async fn done_one(
    cx: &Context,
    remote: &Remote,
    args: &DoneArgs,
    given: &str,
) -> Result<(), Failure> {
    let id = remote.find_run_exactly(given).await?;
    if args.ids.len() > 1 {
        cx.out.note(&format!("{given}:"));
    }
    let mut done = args.done();
    // Shows the work first. A missing diff may be the reason to discard the work.
    let shown = match remote.run_work(&id).await {
        Ok(work) => Some(work),
        Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
        // There is no environment, so nothing else is printed about it.
        Err(failure) if failure.exit == Exit::NotFound && done.action != RoomAction::Discard => {
            return Err(failure.of_run(given));
        }
        Err(failure) => {
            cx.out.note(&format!("its work cannot be shown: {}", failure.of_run(given).message));
            None
        }
    };
    if let Some(work) = &shown {
        cx.out.note(&stat(work));
    }
    if done.action == RoomAction::Discard && !args.yes {
        let hint = format!("look at it with `overmind work {}`, then add --yes", given);
        if !agreed(cx, "--discard throws work away", "throw this away?", hint)? {
            cx.out.note("nothing was done");
            return Ok(());
        }
    }
    let runs_later = shown.map(|work| work.runs_later).unwrap_or_default();
    if !runs_later.is_empty() {
        tell_runs_later(cx, &runs_later);
    }
    if done.action == RoomAction::Merge && !runs_later.is_empty() {
        let hint = format!("look at them with `overmind work {}`, then add --yes", given);
        let why = "the work changes files that are executed automatically later; nothing was \
            merged";
        if !args.yes && !agreed(cx, why, "merge them?", hint)? {
            cx.out.note("nothing was done");
            return Ok(());
        }
        done.accept = runs_later.into_iter().map(|file| file.path).collect();
    }
    let result = remote.run_done(&id, &done).await.map_err(|err| err.of_run(given))?;
    for warning in &result.decision.warnings {
        cx.out.note(&format!("remark: {}", clean::line(warning)));
    }
    show::one(&cx.out, &result, &id, || {
        let decision = &result.decision;
        let at = match (&decision.commit, &decision.branch) {
            (Some(commit), Some(branch)) => Some(format!("{} on {branch}", clean::cut(commit, 12))),
            (Some(commit), None) => Some(clean::cut(commit, 12).into_owned()),
            (None, branch) => branch.clone(),
        };
        let mut lines = vec![("done", (decision.said.clone(), Tone::Good))];
        lines.extend(at.map(|at| ("commit", cell(at))));
        lines
    })
}

/// # Errors
///
/// [`Exit::Conflict`] when a run has not ended or its work is undecided, after all others.
pub async fn rm(cx: &Context, args: &RmArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let mut worst = Worst::default();
    for given in &args.ids {
        worst.of(cx, Box::pin(rm_one(cx, &remote, args, given)).await);
    }
    worst.told()
}

async fn rm_one(cx: &Context, remote: &Remote, args: &RmArgs, given: &str) -> Result<(), Failure> {
    let id = remote.find_run_exactly(given).await?;
    if !args.yes {
        let what =
            if args.discard { "log, artifacts and undecided work" } else { "log and artifacts" };
        let why = format!("`overmind rm` removes the {what} of {given}");
        let question = format!("remove the {what} of {given}?");
        let hint = "add --yes to do it without being asked".to_owned();
        if !agreed(cx, &why, &question, hint)? {
            cx.out.note("nothing was removed");
            return Ok(());
        }
    }
    let removed = remote.run_remove(&id, args.discard).await.map_err(|err| err.of_run(given))?;
    show::one(&cx.out, &removed, &id, || {
        vec![
            ("run", cell(&id)),
            ("removed", (given.to_owned(), Tone::Good)),
            ("events", cell(removed.events.to_string())),
            ("steps", cell(removed.steps.to_string())),
        ]
    })
}

/// Names the changed files that other programs run by themselves.
fn tell_runs_later(cx: &Context, files: &[RunsLater]) {
    cx.out.note("files that are executed automatically later:");
    for RunsLater { path, why } in files {
        let path = paint(&clean::line(path), Tone::Bad, cx.out.err_colour);
        cx.out.note(&format!("  {path}  {}", clean::line(why)));
    }
}

/// Asks the person at the terminal. If nobody can be asked, `why` and `hint` explain it.
fn agreed(cx: &Context, why: &str, question: &str, hint: String) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(why).hint(hint));
    }
    cx.out.note(&format!("{question} [y/N]"));
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|err| Failure::failed(format!("reading the answer: {err}")))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Runs that are looked through at most.
const MOST_PRUNED: u32 = 1_000_000;

/// # Errors
///
/// Returns an error if the runs could not be listed; [`Exit::Failed`] when the worktree of one could not be removed,
/// after all others.
pub async fn prune(cx: &Context, args: &PruneArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let ended = [RunStatus::Succeeded, RunStatus::Failed, RunStatus::Canceled];
    let mut runs: Vec<Run> = remote.runs(&ended, None, MOST_PRUNED).await?;
    let now = cx.now();
    runs.retain(|run| {
        let old = |at| args.older_than.is_none_or(|age| now.since(at) >= age);
        run.room.as_ref().is_some_and(|room| room.undecided) && run.finished_at.is_some_and(old)
    });
    let park = RoomDone::of(RoomAction::Park);
    let (mut told, mut failed) = (Vec::new(), 0);
    for run in runs {
        let id = run.id.to_string();
        let said = match args.dry_run {
            true => run.room.as_ref().and_then(|room| room.kept.clone()).unwrap_or_default(),
            false => match remote.run_done(&id, &park).await {
                Ok(done) => done.decision.said,
                Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
                Err(failure) => {
                    failed += 1;
                    failure.of_run(&run.name).message
                }
            },
        };
        told.push(Pruned { id, name: run.name, said });
    }
    show::list(
        &cx.out,
        &told,
        |one| one.id.clone(),
        |_| {
            let said = if args.dry_run { "WORKTREE" } else { "DONE" };
            let mut table = Table::new(&["ID", "NAME", said]);
            for one in &told {
                let id = cell(ids::short(&one.id));
                table.row(vec![id, cell(&one.name), cell(clean::line(&one.said))]);
            }
            table
        },
        "nothing to prune: no worktree of an ended run waits for a decision",
    )?;
    match failed {
        0 => Ok(Exit::Done),
        failed => Err(Failure::failed(format!("{failed} of these could not be pruned"))),
    }
}

/// The result for a worktree.
#[derive(Serialize)]
struct Pruned {
    id: String,
    name: String,
    said: String,
}

/// # Errors
///
/// Returns an error if the files could not be restored; [`Exit::Failed`] when some of them could not be.
pub async fn undo(cx: &Context, args: UndoArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(&args.id).await?;
    let undone = remote.run_undo(&id, &RoomUndo { to: args.to }).await;
    let undone = undone.map_err(|err| err.of_run(&args.id))?;
    match cx.out.format {
        Format::Json | Format::Yaml => cx.out.value(&show::to_value(&undone))?,
        Format::Name => cx.out.line(&undone.to)?,
        Format::Table | Format::Wide => tell_undone(cx, &args.id, &undone)?,
    }
    if undone.failed.is_empty() {
        return Ok(Exit::Done);
    }
    let failed = undone.failed.join("\n  ");
    let hint = format!("`overmind undo {} --to {}` restores the files", args.id, undone.saved);
    Err(Failure::failed(format!("not brought back:\n  {failed}")).hint(hint))
}

fn tell_undone(cx: &Context, name: &str, undone: &RoomUndone) -> Result<(), Failure> {
    let RoomUndone { to, saved, files, more, failed: _, left_out } = undone;
    for file in files {
        let (word, tone) = match file.change {
            FileChange::Added => ("back", Tone::Good),
            FileChange::Modified => ("changed back", Tone::Plain),
            FileChange::Deleted => ("removed again", Tone::Bad),
        };
        let word = paint(&format!("{word:<14}"), tone, cx.out.colour);
        cx.out.line(&format!("{word}{}", clean::line(&file.path)))?;
    }
    if *more > 0 {
        cx.out.line(&format!("and {} more", when::counted((*more).into(), "file")))?;
    }
    for path in left_out {
        cx.out.note(&format!(
            "{} is too large for a snapshot and was not changed",
            clean::line(path)
        ));
    }
    if files.is_empty() {
        cx.out.note(&format!("nothing to do: the files already match snapshot {to}"));
        return Ok(());
    }
    cx.out.note(&format!("the files are restored to snapshot {to}"));
    cx.out.note(&format!("to undo this: overmind undo {} --to {saved}", clean::line(name)));
    Ok(())
}

/// # Errors
///
/// [`Exit::NotFound`] when the run has no environment, or no such service.
pub async fn url(cx: &Context, args: &UrlArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(&args.id).await?;
    let run = remote.run(&id).await?;
    let none = |why: String| Failure::new(Exit::NotFound, why);
    let Some(room) = &run.room else {
        return Err(none(format!(
            "{} has no environment, and therefore no address of its own",
            args.id
        )));
    };
    let mut addresses = addresses(room);
    if let Some(service) = &args.service {
        let known: Vec<_> = addresses.iter().map(|(name, _)| name.clone()).collect();
        addresses.retain(|(name, _)| name == service);
        if addresses.is_empty() {
            let mut failure = none(format!("{} has no service `{service}`", args.id));
            if !known.is_empty() {
                failure = failure.hint(format!("it has {}", known.join(", ")));
            }
            return Err(failure);
        }
    }
    if addresses.is_empty() {
        return Err(none(match room.phase {
            RoomPhase::Preparing => {
                format!("the environment of {} is still being created", args.id)
            }
            RoomPhase::Ready
            | RoomPhase::Closing
            | RoomPhase::Closed
            | RoomPhase::Kept
            | RoomPhase::Failed
            | RoomPhase::Left => format!("{} has no ports", args.id),
        }));
    }
    if room.phase != RoomPhase::Ready {
        cx.out
            .note(&format!("its environment is {}: services may not answer", room.phase.as_str()));
    }
    if !cx.out.for_people() && cx.out.format != Format::Name {
        let map: serde_json::Map<_, _> =
            addresses.into_iter().map(|(name, url)| (name, url.into())).collect();
        cx.out.value(&map.into())?;
        return Ok(Exit::Done);
    }
    let bare = args.service.is_some() || addresses.len() == 1;
    for (name, url) in &addresses {
        let name = clean::line(name);
        cx.out.line(&if bare { url.clone() } else { format!("{name}  {url}") })?;
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_url_is_shown_with_its_service_and_a_bare_port_has_no_url() {
        let mut room: Room = serde_json::from_value(json!({
            "phase": "ready", "directory": "/w/tree", "worktree": "/w/tree", "branch": "overmind/fix",
            "base": null, "parked": false, "leaks": [], "ports": {"PORT": 7, "web/http": 8},
            "urls": {"PORT": "http://127.0.0.1:7", "web": "http://127.0.0.1:8"}, "warnings": [],
        }))
        .unwrap();
        assert_eq!(line(&room), "works on branch overmind/fix in /w/tree; web http://127.0.0.1:8");
        room.urls.remove("web");
        assert_eq!(line(&room), "works on branch overmind/fix in /w/tree");
    }
}
