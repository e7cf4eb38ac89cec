//! Runs: what lists show of them, `input`, `cancel`, `fork`, `diff`, `replay --verify`.

use std::collections::HashSet;

use overmind_api::{
    AgentId, Diff, ForkRequest, InboxItem, InboxKind, RoomAction, Run, RunBasic, RunStatus,
    SandboxLevel, SessionId, Step, Timestamp, VerifyReport,
};
use overmind_client::RunShape;
use serde::Serialize;

use crate::args::ForkArgs;
use crate::args_command::Status;
use crate::beside::projects;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::output::{clean, when};
use crate::progress::spin;
use crate::remote::Remote;
use crate::show::{self, cell, dim, or_dash};
use crate::{ids, room, story};

/// Runs that are looked through at most.
const MOST: u32 = 1_000_000;

/// The data from which lines about a run are made, whether all of it was fetched or not.
pub trait Listed: RunShape + Serialize {
    fn basics(&self) -> Basics<'_>;
}

#[derive(Clone, Copy, Debug)]
pub struct Basics<'a> {
    pub id: SessionId,
    pub parent: Option<SessionId>,
    pub name: &'a str,
    pub status: RunStatus,
    /// The decision about its work.
    pub done: Option<RoomAction>,
    pub standing: Standing,
}

macro_rules! listed {
    ($($run:ty: $done:expr),+) => {$(
        impl Listed for $run {
            fn basics(&self) -> Basics<'_> {
                Basics {
                    id: self.id,
                    parent: self.parent_id,
                    name: &self.name,
                    status: self.status,
                    done: $done(self),
                    standing: self.into(),
                }
            }
        }
    )+};
}

listed!(Run: done_of, RunBasic: |run: &RunBasic| run.done);

impl Status {
    /// The state that the server looks for.
    pub(crate) fn of_api(self) -> RunStatus {
        match self {
            Self::Queued => RunStatus::Queued,
            Self::Working => RunStatus::Running,
            Self::Idle => RunStatus::Idle,
            Self::AwaitingApproval => RunStatus::AwaitingApproval,
            Self::AwaitingInput => RunStatus::AwaitingInput,
            Self::Done | Self::Merged | Self::Discarded => RunStatus::Succeeded,
            Self::Failed => RunStatus::Failed,
            Self::Stopped => RunStatus::Canceled,
        }
    }

    /// Whether a run that has its status is meant: of those that are done, by what became of their work.
    pub(crate) fn means(self, run: Basics<'_>) -> bool {
        let decided = match self {
            Self::Merged => Some(RoomAction::Merge),
            Self::Discarded => Some(RoomAction::Discard),
            Self::Queued
            | Self::Working
            | Self::Idle
            | Self::AwaitingApproval
            | Self::AwaitingInput
            | Self::Done
            | Self::Failed
            | Self::Stopped => None,
        };
        self.of_api() == run.status && (decided.is_none() || decided == run.done)
    }
}

/// Whether a run in this state stays in it for ever.
pub fn ended(status: RunStatus) -> bool {
    match status {
        RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled => true,
        RunStatus::Queued
        | RunStatus::Running
        | RunStatus::AwaitingInput
        | RunStatus::AwaitingApproval
        | RunStatus::Idle => false,
    }
}

/// The name of its agent; the agent's id if the name is not known.
fn agent_cell(name: Option<&String>, id: AgentId) -> (String, Tone) {
    name.map_or_else(|| dim(ids::short(&id.to_string())), cell)
}

/// The state of a run, in a word that a person can act on.
pub fn state(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Queued => "queued",
        RunStatus::Running => "working",
        RunStatus::AwaitingInput => "has a question",
        RunStatus::AwaitingApproval => "needs approval",
        RunStatus::Idle => "your turn",
        RunStatus::Succeeded => "done",
        RunStatus::Failed => "failed",
        RunStatus::Canceled => "stopped",
    }
}

/// The state of a run that waits for an answer to its budget request.
pub const OVER_BUDGET: &str = "over budget";

/// The open budget request of a run; `None` also where this key may not see the inbox.
pub async fn budget_request(remote: &Remote, run: &Run) -> Option<InboxItem> {
    if !may_ask(run.status, run.trouble.as_deref()) {
        return None;
    }
    let open = Box::pin(remote.inbox(false, Some(InboxKind::Raise), None, MOST)).await.ok()?;
    open.into_iter().find(|item| item.run_id == Some(run.id))
}

/// Whether a run may have a budget request: it waits for a person, or its program's calls are refused.
pub(crate) fn may_ask(status: RunStatus, trouble: Option<&str>) -> bool {
    status == RunStatus::AwaitingInput || trouble.is_some()
}

/// The runs that have an open budget request. The inbox is asked only where one `may` have.
pub(crate) async fn over_budget(remote: &Remote, may: bool) -> HashSet<SessionId> {
    if !may {
        return HashSet::new();
    }
    let open = remote.inbox(false, Some(InboxKind::Raise), None, MOST).await.unwrap_or_default();
    open.into_iter().filter_map(|item| item.run_id).collect()
}

/// The same, with what became of its work.
fn state_and_work(status: RunStatus, done: Option<RoomAction>) -> &'static str {
    match (status, done) {
        (RunStatus::Succeeded, Some(RoomAction::Merge)) => "merged",
        (RunStatus::Succeeded, Some(RoomAction::Discard)) => "discarded",
        (status, _) => state(status),
    }
}

/// The state of a run and of its work, in a word.
pub fn state_of(run: &Run) -> &'static str {
    state_and_work(run.status, done_of(run))
}

fn done_of(run: &Run) -> Option<RoomAction> {
    run.room.as_ref()?.done.as_ref().map(|done| done.action)
}

/// The state of a run in a list: also the decision about its work, and the number of restarts.
fn state_cell(run: &RunBasic, over: bool) -> (String, Tone) {
    let standing = Standing { exit_code: None, signal: None, ..run.into() };
    let word = if over { OVER_BUDGET } else { state_and_work(run.status, run.done) };
    let (mut text, tone) = standing_cell(run.status, word, standing, run.alarms);
    if run.trouble.is_some() && !over {
        text.push_str(", no model");
    }
    if run.undecided && !text.contains(',') {
        text.push_str(", undecided");
    }
    match run.restarts {
        0 => {}
        1 => text.push_str(", 1 restart"),
        n => text.push_str(&format!(", {n} restarts")),
    }
    (text, tone)
}

fn standing_cell(status: RunStatus, word: &str, command: Standing, alarms: u32) -> (String, Tone) {
    let (mut text, mut tone) = (word.to_owned(), story::tone(status));
    match (ended(status), command) {
        (false, Standing { stopping: true, .. }) => (text, tone) = ("stopping".into(), Tone::Waits),
        (false, Standing { restarting: true, .. }) => {
            (text, tone) = ("restarting".into(), Tone::Waits);
        }
        (true, Standing { exit_code: Some(code), .. }) if code != 0 => {
            text = format!("{text}, exit {code}");
        }
        (true, Standing { signal: Some(signal), .. }) => text = format!("{text}, signal {signal}"),
        (_, Standing { .. }) => {}
    }
    match alarms {
        0 => (text, tone),
        1 => (format!("{text}, 1 alarm"), Tone::Bad),
        n => (format!("{text}, {n} alarms"), Tone::Bad),
    }
}

/// The state of the command of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    exit_code: Option<i32>,
    signal: Option<i32>,
    stopping: bool,
    restarting: bool,
}

impl From<&RunBasic> for Standing {
    fn from(run: &RunBasic) -> Self {
        let RunBasic { exit_code, signal, stopping, restarting, .. } = run;
        Self {
            exit_code: *exit_code,
            signal: *signal,
            stopping: *stopping,
            restarting: *restarting,
        }
    }
}

impl From<&Run> for Standing {
    fn from(run: &Run) -> Self {
        run.process.as_ref().map_or_else(Self::default, |process| Self {
            exit_code: process.exit_code,
            signal: process.signal,
            stopping: process.stopping,
            restarting: process.restart_at.is_some(),
        })
    }
}

pub(crate) fn short_table(
    runs: &[RunBasic],
    branches: &[String],
    over: &HashSet<SessionId>,
    now: Timestamp,
) -> Table {
    let projects = projects(runs.iter().filter_map(|run| run.project.as_deref()));
    // Runs of one project need no column for it.
    let several = projects.len() > 1;
    let colonies: HashSet<_> = runs.iter().map(|run| run.colony_name.as_deref()).collect();
    let colonies = colonies.len() > 1;
    let mut columns = vec![
        "COLONY", "RUN", "AGENT", "PROJECT", "STATE", "AGE", "COST", "BRANCH", "CHANGES", "EXIT",
        "TASK",
    ];
    columns.retain(|column| several || *column != "PROJECT");
    columns.retain(|column| colonies || *column != "COLONY");
    let mut table = Table::new(&columns).right("COST").right("EXIT");
    for (run, branch) in runs.iter().zip(branches) {
        // The cost of models; a program's cost is shown only if it used some.
        let cost = run.cost_usd.filter(|cost| *cost > 0.0);
        let cost = cost.map(|cost| dollars(cost, run.cost_at_most));
        let exit = match (run.exit_code, run.signal) {
            (Some(code), _) => Some(code.to_string()),
            (None, Some(signal)) => Some(format!("signal {signal}")),
            (None, None) => None,
        };
        let project = run.project.as_deref().and_then(|project| projects.get(project).cloned());
        let mut row = Vec::new();
        row.extend(colonies.then(|| cell(run.colony_name.as_deref().unwrap_or("default"))));
        row.extend([
            cell(format!("{branch}{}", run.name)),
            agent_cell(run.agent_name.as_ref(), run.agent_id),
        ]);
        row.extend(several.then(|| or_dash(project)));
        row.extend([
            state_cell(run, over.contains(&run.id)),
            cell(when::ago(run.created_at, now)),
            or_dash(cost),
            or_dash(run.branch.clone()),
            room::changes_cell(run.changes),
            or_dash(exit),
            cell(clean::cut(&run.task, 60)),
        ]);
        table.row(row);
    }
    table
}

pub(crate) fn wide_table(runs: &[Run], branches: &[String], over: &HashSet<SessionId>) -> Table {
    let mut table = Table::new(&[
        "ID",
        "NAME",
        "AGENT",
        "PROJECT",
        "STATE",
        "RESTARTS",
        "STEPS",
        "START",
        "TOKENS IN",
        "OUT",
        "COST",
        "SANDBOX",
        "ATTESTED",
        "CREATED",
        "FINISHED",
        "BY",
        "PARENT",
        "BRANCH",
        "CHANGES",
        "ROOM",
        "WORKSPACE",
        "COLONY",
        "TASK",
    ])
    .right("RESTARTS")
    .right("STEPS")
    .right("START")
    .right("TOKENS IN")
    .right("OUT");
    let of = |run: &Run| run.room.is_some().then(|| run.workspace.clone());
    let paths: Vec<String> = runs.iter().filter_map(of).collect();
    let projects = projects(paths.iter().map(String::as_str));
    for (run, branch) in runs.iter().zip(branches) {
        table.row(vec![
            cell(run.id.to_string()),
            cell(format!("{branch}{}", run.name)),
            agent_cell(run.agent_name.as_ref(), run.agent_id),
            or_dash(of(run).and_then(|project| projects.get(project.as_str()).cloned())),
            {
                let word = if over.contains(&run.id) { OVER_BUDGET } else { state_of(run) };
                standing_cell(run.status, word, run.into(), run.alarms)
            },
            or_dash(run.process.as_ref().map(|process| process.restarts.to_string())),
            cell(run.step_count.to_string()),
            cell(run.epoch.to_string()),
            cell(when::thousands(run.usage.input_tokens)),
            cell(when::thousands(run.usage.output_tokens)),
            or_dash(cost(run)),
            cell(run.sandbox.as_str()),
            attested(run),
            cell(run.created_at.to_string()),
            or_dash(run.finished_at.map(|at| at.to_string())),
            cell(&run.created_by),
            or_dash(run.parent_id.map(|id| ids::short(&id.to_string()).to_owned())),
            room::branch_cell(run),
            room::changes_cell(run.room.as_ref().and_then(|room| room.changes)),
            room::phase_cell(run),
            cell(&run.workspace),
            cell(run.colony_name.as_deref().unwrap_or("default")),
            cell(&run.task),
        ]);
    }
    table
}

/// The proven isolation of a run's commands, and when it was measured; a dash until a command ran.
fn attested(run: &Run) -> (String, Tone) {
    let Some(found) = &run.attestation else { return dim("-") };
    if found.achieved == SandboxLevel::None {
        return ("none: NOT ISOLATED".to_owned(), Tone::Bad);
    }
    let mark = if found.signer.is_some() { '✓' } else { '?' };
    let at = found.at.to_string();
    // Precise to the minute; the record contains the exact time.
    let minute = at.get(..16).unwrap_or(&at);
    let tone = if found.signer.is_some() { Tone::Good } else { Tone::Waits };
    (format!("{} {mark} {minute}", found.achieved), tone)
}

/// The cost of a run; `None` when a price is not known.
pub fn cost(run: &Run) -> Option<String> {
    run.cost_usd.map(|cost| dollars(cost, run.cost_at_most))
}

/// `at_most`: what it really cost is not known.
fn dollars(dollars: f64, at_most: bool) -> String {
    let text = format!("{dollars:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}${text}", if at_most { "≤ " } else { "" })
}

/// A single run after a change of it.
///
/// # Errors
///
/// When the result cannot be written.
pub fn show_run<R: Listed>(cx: &Context, run: &R) -> Result<(), Failure> {
    let basics = run.basics();
    show::one(&cx.out, run, &basics.id.to_string(), || {
        vec![
            ("run", cell(basics.id.to_string())),
            ("name", cell(basics.name)),
            ("state", {
                let word = state_and_work(basics.status, basics.done);
                standing_cell(basics.status, word, basics.standing, 0)
            }),
        ]
    })
}

/// Many runs that something was just done to, a line each.
///
/// # Errors
///
/// When the result cannot be written.
pub fn list_ended(cx: &Context, runs: &[RunBasic]) -> Result<(), Failure> {
    let mut table = Table::new(&["ID", "NAME", "STATE", "TASK"]);
    for run in runs {
        table.row(vec![
            cell(ids::short(&run.id.to_string())),
            cell(&run.name),
            standing_cell(run.status, state_and_work(run.status, run.done), run.into(), run.alarms),
            cell(clean::cut(&run.task, 60)),
        ]);
    }
    Ok(cx.out.table(&table)?)
}

/// # Errors
///
/// Returns an error if the answer could not be given.
pub async fn input(cx: &Context, id: &str, message: &str) -> Outcome {
    let remote = Remote::connect(cx)?;
    let run = remote.run_input(&remote.find_run(id).await?, message).await;
    let run = run.map_err(|failure| failure.of_run(id))?;
    show_run(cx, &run)?;
    Ok(Exit::Done)
}

/// Cancels each run; continues after one that fails, and returns the worst error at the end.
///
/// # Errors
///
/// Returns an error if one of them could not be canceled.
pub async fn cancel(cx: &Context, given: &[String], cascade: bool) -> Outcome {
    let remote = Remote::connect(cx)?;
    let mut failed: Option<Failure> = None;
    for id in given {
        let done = async {
            let run = remote.run_cancel(&remote.find_run_exactly(id).await?, cascade).await;
            let run = run.map_err(|failure| failure.of_run(id))?;
            show_run(cx, &run)
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

/// # Errors
///
/// Returns an error if the fork could not be made, or followed.
pub async fn fork(cx: &Context, args: ForkArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(&args.id).await?;
    let ForkArgs { id: _, at, model, prompt, name, follow: _ } = args.clone();
    let request = ForkRequest { at, model, prompt, name };
    let run = remote.run_fork(&id, &request).await.map_err(|err| err.of_run(&args.id))?;
    if args.follow {
        return Box::pin(crate::run::follow(cx, &remote, &run, false)).await;
    }
    show_run(cx, &run)?;
    if cx.out.for_people() {
        // The second event of a fork of a run with an environment.
        let begun = remote.run_events(&run.id.to_string(), 2).await?;
        if let Some(files) = begun.iter().find(|event| event.kind == "room.forked") {
            cx.out.note(&clean::line(&story::forked_files(&files.payload_json.value())));
        }
        cx.out.note(&format!("watch it: overmind logs -f {}", run.name));
    }
    Ok(Exit::Done)
}

/// # Errors
///
/// Returns an error if the runs could not be compared.
pub async fn diff(cx: &Context, a: &str, b: &str) -> Outcome {
    let remote = Remote::connect(cx)?;
    let (a, b) = (remote.find_run(a).await?, remote.find_run(b).await?);
    let diff = remote.diff(&a, &b).await?;
    if !cx.out.for_people() {
        show::one(&cx.out, &diff, &format!("{a} {b}"), Vec::new)?;
        return Ok(Exit::Done);
    }
    diff_table(cx, &diff)?;
    Ok(Exit::Done)
}

/// The positions, in characters, at which two texts are shown, so that the difference is within
/// `width`: shortly before their first difference, or from their beginning if it is early.
fn differs_from(a: &str, b: &str, width: usize) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    if same < width / 2 { 0 } else { same - width / 4 }
}

fn diff_table(cx: &Context, diff: &Diff) -> Result<(), Failure> {
    let mut table = Table::new(&["STEP", "", "A", "B"]).right("STEP");
    let width = if cx.out.wide() { usize::MAX } else { 48 };
    let text = |step: &Step| {
        let output = step.output_json.as_ref().map(ToString::to_string).unwrap_or_default();
        let error = step.error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
        format!("{} {} → {output}{error}", step.kind, step.input_json)
    };
    let cut = |step: Option<&Step>, from: usize| match step {
        Some(step) if from == 0 => cell(clean::cut(&text(step), width)),
        Some(step) => {
            let rest: String = text(step).chars().skip(from).collect();
            cell(clean::cut(&format!("{} …{rest}", step.kind), width))
        }
        None => dim("-"),
    };
    for row in &diff.rows {
        let mark =
            if row.same { ("=".to_owned(), Tone::Dim) } else { ("≠".to_owned(), Tone::Bad) };
        let from = match (&row.a, &row.b) {
            (Some(a), Some(b)) if !row.same => differs_from(&text(a), &text(b), width),
            _ => 0,
        };
        table.row(vec![
            cell(row.idx.to_string()),
            mark,
            cut(row.a.as_ref(), from),
            cut(row.b.as_ref(), from),
        ]);
    }
    if !table.is_empty() {
        cx.out.table(&table)?;
    }
    let same = diff.rows.iter().all(|row| row.same);
    if same {
        cx.out.note("the runs took the same steps");
    } else {
        let (steps, are) = (
            when::counted(diff.common.into(), "step"),
            if diff.common == 1 { "is" } else { "are" },
        );
        cx.out.note(&format!("{steps} {are} equal; later steps differ"));
    }
    let outcome = |run: &Run| match (&run.final_answer, &run.error) {
        (Some(answer), _) => format!("{}: {}", state_of(run), clean::line(answer)),
        (None, Some(error)) => format!("{}: {}", state_of(run), story::error_text(error)),
        (None, None) => state_of(run).to_owned(),
    };
    cx.out.note(&format!("A {}", outcome(&diff.a)));
    cx.out.note(&format!("B {}", outcome(&diff.b)));
    Ok(())
}

/// # Errors
///
/// [`Exit::Failed`] with the place of the first difference.
pub async fn verify(cx: &Context, id: &str) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(id).await?;
    let report = spin(&cx.out, "deciding the run again", remote.verify(&id)).await?;
    show::one(&cx.out, &report, &id, || vec![("verified", verdict(&report))])?;
    match &report.divergence {
        None => Ok(Exit::Done),
        Some(divergence) => Err(Failure::failed(format!(
            "run {id} decides differently now, first at event {}: recorded `{}`, decided `{}`",
            divergence.seq,
            clean::cut(&divergence.recorded, 400),
            clean::cut(&divergence.decided, 400)
        ))
        .hint(
            "the log was changed, or this version decides differently from the one that wrote it",
        )),
    }
}

fn verdict(report: &VerifyReport) -> (String, Tone) {
    let text = format!(
        "{} read, {} decided again, {}",
        when::counted(report.events, "event"),
        when::thousands(report.decided),
        if report.ok { "no difference" } else { "they differ" }
    );
    (text, if report.ok { Tone::Good } else { Tone::Bad })
}
