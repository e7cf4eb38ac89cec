//! `ps`: the runs of a server, as a table or a tree for people, page by page for programs.

use std::collections::{HashMap, HashSet};
use std::io::IsTerminal as _;

use overmind_api::{Run, RunBasic, RunListQuery, RunStatus};

use crate::args::{Format, PsArgs};
use crate::args_command::Status;
use crate::beside::troubles;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::remote::Remote;
use crate::session::{self, Basics, Listed};
use crate::show::{self, Pieces};

/// Idle runs without changes; above this number, `ps` prints only their number.
const RESTING: usize = 8;
/// The default number of rows of a table.
const ROWS: u32 = 1000;
/// Runs of which a tree or a template is made at most: both need all of them at once.
const AT_ONCE: u32 = 100_000;

/// # Errors
///
/// Returns an error if the runs could not be listed.
pub async fn ps(cx: &Context, args: &PsArgs) -> Outcome {
    let all = args.all_colonies.then(|| cx.in_all_colonies());
    let cx = all.as_ref().unwrap_or(cx);
    let remote = Remote::connect(cx)?;
    let agent = match &args.agent {
        Some(given) => Some(remote.find_agent(given).await?.id.to_string()),
        None => None,
    };
    let parent = match &args.children {
        Some(given) => Some(remote.find_run(given).await?),
        None => None,
    };
    let mut statuses: Vec<_> = args.status.iter().map(|status| status.of_api()).collect();
    statuses.dedup();
    let open_only = !args.all && statuses.is_empty();
    if open_only && parent.is_none() {
        statuses.extend(RunStatus::ALL.iter().filter(|status| !session::ended(**status)));
    }
    let wish = Wish { args, statuses, agent, parent };
    let pieces = !args.tree && cx.out.template.is_none();
    match cx.out.format {
        Format::Table | Format::Wide if only_names(cx) && pieces => {
            wish.each(&remote, args.limit.unwrap_or(u32::MAX), &mut |runs: Vec<RunBasic>| {
                runs.iter().try_for_each(|run| Ok(cx.out.line(run.basics().name)?))
            })
            .await?;
        }
        Format::Name if pieces => {
            wish.each(&remote, args.limit.unwrap_or(u32::MAX), &mut |runs: Vec<RunBasic>| {
                runs.iter().try_for_each(|run| Ok(cx.out.line(&run.id.to_string())?))
            })
            .await?;
        }
        Format::Json | Format::Yaml if pieces => {
            let mut list = Pieces::new(&cx.out);
            wish.each(&remote, args.limit.unwrap_or(u32::MAX), &mut |runs: Vec<Run>| {
                list.more(&runs)
            })
            .await?;
            list.end()?;
        }
        Format::Table | Format::Name => table(cx, &remote, wish, open_only).await?,
        Format::Wide | Format::Json | Format::Yaml => {
            let limit = if cx.out.for_people() { ROWS } else { AT_ONCE };
            let Found { runs, branches, cut } = wish.all::<Run>(&remote, limit).await?;
            let may_ask = |run: &Run| session::may_ask(run.status, run.trouble.as_deref());
            let over = session::over_budget(&remote, runs.iter().any(may_ask)).await;
            if only_names(cx) {
                return names(cx, &runs);
            }
            let table = |_: bool| session::wide_table(&runs, &branches, &over);
            show::list(&cx.out, &runs, |run| run.id.to_string(), table, empty(open_only))?;
            if cx.out.format == Format::Wide {
                troubles(cx, runs.iter().map(|run| (run.name.as_str(), &run.trouble)));
            }
            tell_cut(cx, cut, runs.len());
        }
    }
    Ok(Exit::Done)
}

/// The short table, and the remarks below it.
async fn table(
    cx: &Context,
    remote: &Remote,
    wish: Wish<'_>,
    open_only: bool,
) -> Result<(), Failure> {
    let limit = if cx.out.for_people() { ROWS } else { AT_ONCE };
    let Found { mut runs, mut branches, cut } = wish.all::<RunBasic>(remote, limit).await?;
    let found = runs.len();
    let is_table = cx.out.format == Format::Table;
    let mut folded = 0;
    if open_only && !wish.args.tree && is_table {
        folded = rests_last(&mut runs);
        branches.truncate(runs.len());
    }
    let may_ask = |run: &RunBasic| session::may_ask(run.status, run.trouble.as_deref());
    let over = session::over_budget(remote, runs.iter().any(may_ask)).await;
    if only_names(cx) {
        names(cx, &runs)?;
        return Ok(());
    }
    let now = cx.now();
    let rows = |_: bool| session::short_table(&runs, &branches, &over, now);
    show::list(&cx.out, &runs, |run| run.id.to_string(), rows, empty(open_only))?;
    if is_table {
        troubles(cx, runs.iter().map(|run| (run.name.as_str(), &run.trouble)));
    }
    if folded > 0 {
        let rest = if folded == 1 { "rests" } else { "rest" };
        cx.out.note(&format!("{folded} more {rest} without changes: overmind ps --all"));
    }
    tell_cut(cx, cut, found);
    if open_only && is_table && std::io::stdout().is_terminal() {
        let Found { runs, .. } = wish.ended().all::<RunBasic>(remote, ROWS).await?;
        let undecided = runs.iter().filter(|run| run.undecided).count();
        if undecided > 0 {
            cx.out.note(&format!("{undecided} ended with work to decide: overmind ps -a"));
        }
    }
    Ok(())
}

/// A hint for an empty list.
fn empty(open_only: bool) -> &'static str {
    match open_only {
        true => "no unfinished runs; `overmind ps --all` also lists those that have ended",
        false => "no such runs; start one: overmind run AGENT \"what to do\"",
    }
}

/// Says that there are more runs than are listed, and how to list them.
fn tell_cut(cx: &Context, cut: bool, listed: usize) {
    if cut {
        let more = listed.saturating_mul(10);
        cx.out.note(&format!(
            "only the newest {listed} are listed; --limit {more} lists more of them, -o name all"
        ));
    }
}

/// `ps -q`: for scripts, a name on each line.
fn only_names(cx: &Context) -> bool {
    cx.global.quiet && matches!(cx.out.format, Format::Table | Format::Wide)
}

fn names<R: Listed>(cx: &Context, runs: &[R]) -> Outcome {
    for run in runs {
        cx.out.line(run.basics().name)?;
    }
    Ok(Exit::Done)
}

/// Puts idle runs without changes below all others, and leaves out those above a small number.
/// Returns how many it left out.
fn rests_last(runs: &mut Vec<RunBasic>) -> usize {
    let rests = |run: &RunBasic| {
        run.status == RunStatus::Idle && run.changes.is_none_or(|changes| changes.files == 0)
    };
    // Stable: both keep their order.
    runs.sort_by_key(rests);
    let folded = runs.iter().filter(|run| rests(run)).count().saturating_sub(RESTING);
    runs.truncate(runs.len() - folded);
    folded
}

/// Which runs `ps` was asked for.
struct Wish<'a> {
    args: &'a PsArgs,
    /// Those that the server looks for; empty: all.
    statuses: Vec<RunStatus>,
    agent: Option<String>,
    parent: Option<String>,
}

/// Runs that were all fetched at once.
struct Found<R> {
    runs: Vec<R>,
    /// The prefix to draw before each name.
    branches: Vec<String>,
    /// There may be more of them.
    cut: bool,
}

impl Wish<'_> {
    /// The same, of runs that have ended.
    fn ended(self) -> Self {
        let over = RunStatus::ALL.iter().copied().filter(|status| session::ended(*status));
        Self { statuses: over.collect(), ..self }
    }

    /// The requested ones among the runs that the server finds: the server does not know the
    /// decisions about their work.
    fn means(&self, run: Basics<'_>) -> bool {
        if self.parent.is_some() {
            return self.args.all || !session::ended(run.status);
        }
        let decided = [Status::Merged, Status::Discarded];
        let statuses = &self.args.status;
        !statuses.iter().any(|status| decided.contains(status))
            || statuses.iter().any(|status| status.means(run))
    }

    /// Hands over the runs page by page, newest first, at most `limit` of them. Answers whether there may
    /// be more.
    async fn each<R: Listed>(
        &self,
        remote: &Remote,
        limit: u32,
        take: &mut dyn FnMut(Vec<R>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let query = match &self.parent {
            Some(parent) => {
                RunListQuery { parent: Some(parent.clone()), ..RunListQuery::default() }
            }
            None => RunListQuery {
                status: self.statuses.clone(),
                agent: self.agent.clone(),
                selector: self.args.selector.clone(),
                ..RunListQuery::default()
            },
        };
        let mut left = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut cut = false;
        remote
            .runs_by_page(query, limit, &mut |mut runs: Vec<R>, more| {
                runs.retain(|run| self.means(run.basics()));
                cut = runs.len() > left || (runs.len() == left && more);
                runs.truncate(left);
                left -= runs.len();
                take(runs)?;
                Ok(left > 0)
            })
            .await?;
        Ok(cut)
    }

    /// The runs, at most `limit` or the requested number, and the text to draw before the name of each.
    async fn all<R: Listed>(&self, remote: &Remote, limit: u32) -> Result<Found<R>, Failure> {
        let mut runs: Vec<R> = Vec::new();
        let cut = self
            .each(remote, self.args.limit.unwrap_or(limit), &mut |mut page: Vec<R>| {
                runs.append(&mut page);
                Ok(())
            })
            .await?;
        let tree = self.args.tree.then(|| tree(&mut runs));
        let branches = tree.unwrap_or_else(|| vec![String::new(); runs.len()]);
        Ok(Found { runs, branches, cut })
    }
}

/// Puts each run below the one that it was started for, where that is listed too; siblings stay in
/// their order. What to draw before each name.
fn tree<R: Listed>(runs: &mut Vec<R>) -> Vec<String> {
    let listed: HashSet<_> = runs.iter().map(|run| run.basics().id).collect();
    let mut below: HashMap<_, Vec<R>> = HashMap::new();
    for run in runs.drain(..) {
        let parent = run.basics().parent.filter(|parent| listed.contains(parent));
        below.entry(parent).or_default().push(run);
    }
    // Last in, first out: the branches of the next rows, and the text drawn before them.
    let mut next: Vec<(R, String, String)> = Vec::new();
    let push = |next: &mut Vec<_>, runs: Vec<R>, indent: Option<&str>| {
        let last = runs.len().saturating_sub(1);
        let runs = runs.into_iter().enumerate().map(|(at, run)| match (indent, at == last) {
            (None, _) => (run, String::new(), String::new()),
            (Some(indent), false) => (run, format!("{indent}├─ "), format!("{indent}│  ")),
            (Some(indent), true) => (run, format!("{indent}└─ "), format!("{indent}   ")),
        });
        let mut runs: Vec<_> = runs.collect();
        runs.reverse();
        next.append(&mut runs);
    };
    push(&mut next, below.remove(&None).unwrap_or_default(), None);
    let mut branches = Vec::new();
    while let Some((run, branch, indent)) = next.pop() {
        let children = below.remove(&Some(run.basics().id)).unwrap_or_default();
        push(&mut next, children, Some(&indent));
        runs.push(run);
        branches.push(branch);
    }
    branches
}
