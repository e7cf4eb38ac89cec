//! Watching: `logs`, `events`, `replay`, and followed runs. A restart of the server does not end a
//! watch: the watch reconnects and continues after the last shown entry.

use std::time::Duration;

use overmind_api::{Event, Run, RunBasic, RunStatus, Timeline, TimelineData};
use overmind_core::time::{Clock as _, Timestamp};
use overmind_node::app::clock::SystemClock;

use crate::args::{EventsArgs, Format, LogsArgs};
use crate::asked;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::Table;
use crate::output::{clean, paint, when};
use crate::remote::{Item, Remote};
use crate::show::{self, cell, or_dash};
use crate::story::{self, Story};
use crate::{command, ids, inbox, session};

/// How long a watch waits for a server that went away.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// The condition that ends a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Recorded output was shown already.
    Now,
    /// The run has ended.
    Ended,
    /// The run has ended, is idle, or waits for a person.
    Settled,
    /// The run has ended or is idle.
    Rested,
    /// Its program runs, or could not be started.
    Begun,
}

/// The position at which a watch continues: after the entry with this id.
pub type Place = Option<String>;

/// # Errors
///
/// Returns an error if the run could not be shown.
pub async fn logs(cx: &Context, args: &LogsArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    if args.all {
        return crate::logs_all::all(cx, &remote, args).await;
    }
    let id = match &args.id {
        Some(given) => remote.find_run(given).await?,
        None => match remote.runs::<RunBasic>(&[], None, 1).await?.first() {
            Some(run) => run.id.to_string(),
            None => {
                cx.out.note("no runs yet; start one: overmind run AGENT \"what to do\"");
                return Ok(Exit::Done);
            }
        },
    };
    let run = remote.run(&id).await?;
    if is_of_command(&remote, &run).await? {
        return Box::pin(command::logs(cx, &remote, &run, args)).await;
    }
    crate::logs_agent::logs(cx, &remote, &id, args).await
}

/// Whether a run's agent is a command.
///
/// # Errors
///
/// When its agent cannot be asked for.
pub async fn is_of_command(remote: &Remote, run: &Run) -> Result<bool, Failure> {
    // A queued run has no environment yet.
    let may_be = run.room.is_some() || run.status == RunStatus::Queued;
    Ok(run.process.is_some()
        || (may_be && remote.find_agent(&run.agent_id.to_string()).await?.command.is_some()))
}

/// # Errors
///
/// Returns an error if the run could not be shown.
pub async fn replay(cx: &Context, id: &str, follow_on: bool) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(id).await?;
    follow(cx, &remote, &id, if follow_on { Until::Rested } else { Until::Now }).await?;
    Ok(Exit::Done)
}

/// Shows a run's timeline: in words for people, as the API's entries otherwise. The exit code gives
/// the state of the run at the end.
///
/// # Errors
///
/// Returns an error if it could not be shown, also if the server does not come back.
pub async fn follow(cx: &Context, remote: &Remote, id: &str, until: Until) -> Outcome {
    let run = tell(cx, remote, id, until, &mut Place::None).await?;
    if cx.out.for_people() {
        epilogue(cx, remote, &run).await;
    }
    Ok(exit_of(run.status))
}

/// Shows a run's timeline from `place` on, and returns the run in its state at the end.
///
/// # Errors
///
/// See [`follow`].
pub async fn tell(
    cx: &Context,
    remote: &Remote,
    id: &str,
    until: Until,
    place: &mut Place,
) -> Result<Run, Failure> {
    let mut story = Story::new(cx.out.colour, cx.out.verbose || cx.out.wide())
        .asked(until == Until::Settled && asked::possible(cx));
    each(cx, remote, id, until, place, &mut |entry| {
        if cx.out.for_people() {
            cx.out.text(&story.tell(entry))?;
        } else if cx.out.format != Format::Name {
            cx.out.streamed(&show::to_value(entry))?;
        }
        Ok(())
    })
    .await?;
    remote.run(id).await
}

/// Waits without showing anything, and returns the run in its state at the end.
///
/// # Errors
///
/// Returns an error if the server does not come back.
pub async fn until(
    cx: &Context,
    remote: &Remote,
    id: &str,
    until: Until,
    place: &mut Place,
) -> Result<Run, Failure> {
    each(cx, remote, id, until, place, &mut |_| Ok(())).await?;
    remote.run(id).await
}

/// Reads a timeline from `after` on to its end as `until` says, through restarts of the server.
///
/// # Errors
///
/// Returns an error if the server does not come back, or an entry could not be shown.
pub async fn each(
    cx: &Context,
    remote: &Remote,
    id: &str,
    until: Until,
    after: &mut Place,
    show: &mut dyn FnMut(&Timeline) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut away = Away::default();
    loop {
        let opened = remote.replay(id, until != Until::Now, after.as_deref()).await;
        let failure = match opened {
            Ok(mut stream) => loop {
                match stream.next().await {
                    Ok(Some(Item::Entry { id: place, entry })) => {
                        away.is_back();
                        show(&entry)?;
                        *after = place.or(after.take());
                        if is_reached(remote, id, until, &entry).await? {
                            return Ok(());
                        }
                    }
                    Ok(Some(Item::Done)) => return Ok(()),
                    Ok(None) if until == Until::Now => return Ok(()),
                    Ok(None) => break None,
                    Err(failure) => break Some(failure),
                }
            },
            Err(failure) => Some(failure),
        };
        match failure {
            Some(failure) if failure.exit != Exit::Unreachable || until == Until::Now => {
                return Err(failure);
            }
            // The server stops or was killed; the run continues when it is back.
            failure => away.wait(cx, failure).await?,
        }
    }
}

/// Whether an entry ends a watch.
async fn is_reached(
    remote: &Remote,
    id: &str,
    until: Until,
    entry: &Timeline,
) -> Result<bool, Failure> {
    let TimelineData::Event(event) = &entry.data else { return Ok(false) };
    Ok(match until {
        Until::Now | Until::Ended => false,
        Until::Rested => {
            event.kind == "run.idle" && remote.run(id).await?.status == RunStatus::Idle
        }
        Until::Settled => {
            (event.kind.contains("await")
                || event.kind.starts_with("approval.")
                || event.kind == "run.idle")
                && stands(remote.run(id).await?.status)
        }
        Until::Begun => match event.kind.as_str() {
            "process.started" => true,
            // It ended before its start was recorded. One that could not be started ends the run.
            "process.ended" => remote
                .run(id)
                .await?
                .process
                .is_some_and(|process| process.exit_code.is_some() || process.signal.is_some()),
            _ => false,
        },
    })
}

/// Patience with a server that went away while something was watched.
#[derive(Debug, Default)]
pub struct Away(Option<Timestamp>);

impl Away {
    pub fn is_back(&mut self) {
        self.0 = None;
    }

    /// Returns when it is time to try again.
    ///
    /// # Errors
    ///
    /// The error, except a missing server that may still come back.
    pub async fn wait(&mut self, cx: &Context, failure: Option<Failure>) -> Result<(), Failure> {
        let failure = match failure {
            Some(failure) if failure.exit != Exit::Unreachable => return Err(failure),
            failure => failure,
        };
        let now = SystemClock.now();
        let since = *self.0.get_or_insert_with(|| {
            cx.out.note("the connection to the server was lost; waiting for the server");
            now
        });
        if now.since(since) > PATIENCE {
            return Err(failure.unwrap_or_else(|| {
                Failure::new(
                    Exit::Unreachable,
                    "the connection to the server was lost, and it \
                    did not come back",
                )
            }));
        }
        SystemClock.sleep_until(now.after(BETWEEN_TRIES)).await;
        Ok(())
    }
}

/// The pause between polls for changes without an event.
pub async fn pause() {
    SystemClock.sleep_until(SystemClock.now().after(BETWEEN_TRIES)).await;
}

/// Waits until a run has ended, whatever it waits for meanwhile.
///
/// # Errors
///
/// Returns an error if the server does not come back.
pub async fn ended(cx: &Context, remote: &Remote, id: &str) -> Result<Run, Failure> {
    until(cx, remote, id, Until::Ended, &mut Place::None).await
}

/// Waits until a run has ended or is idle.
///
/// # Errors
///
/// Returns an error if the server does not come back.
pub async fn rested(cx: &Context, remote: &Remote, id: &str) -> Result<Run, Failure> {
    until(cx, remote, id, Until::Rested, &mut Place::None).await
}

/// Whether a run in this state waits for a person.
fn stands(status: RunStatus) -> bool {
    waits(status) || status == RunStatus::Idle
}

/// Whether a run in this state has asked a person something.
pub fn waits(status: RunStatus) -> bool {
    match status {
        RunStatus::AwaitingInput | RunStatus::AwaitingApproval => true,
        RunStatus::Queued
        | RunStatus::Running
        | RunStatus::Idle
        | RunStatus::Succeeded
        | RunStatus::Failed
        | RunStatus::Canceled => false,
    }
}

/// The exit code for the state of a run.
pub fn exit_of(status: RunStatus) -> Exit {
    match status {
        RunStatus::Succeeded | RunStatus::Queued | RunStatus::Running | RunStatus::Idle => {
            Exit::Done
        }
        RunStatus::Failed => Exit::RunFailed,
        RunStatus::Canceled => Exit::RunCanceled,
        RunStatus::AwaitingInput | RunStatus::AwaitingApproval => Exit::RunWaits,
    }
}

/// The state of a run, in lines.
pub fn summary(run: &Run) -> Vec<(&'static str, (String, crate::output::table::Tone))> {
    let took = run.started_at.map(|start| {
        let end = run.finished_at.unwrap_or_else(|| SystemClock.now());
        when::precise(end.since(start))
    });
    let mut lines = vec![
        ("run", cell(run.id.to_string())),
        ("state", (session::state_of(run).to_owned(), story::tone(run.status))),
        ("time", or_dash(took)),
    ];
    // A program takes none that are counted.
    if run.process.is_none() {
        lines.insert(2, ("steps", cell(run.step_count.to_string())));
    }
    if run.model_call_count > 0 {
        let usage = &run.usage;
        let tokens = format!(
            "{} in ({} cached), {} out",
            when::thousands(usage.input_tokens),
            when::thousands(usage.cached_input_tokens),
            when::thousands(usage.output_tokens)
        );
        lines.push(("tokens", cell(tokens)));
        lines.push(("cost", or_dash(session::cost(run))));
    }
    if let Some(answer) = &run.final_answer {
        lines.push(("answer", cell(answer)));
    }
    if let Some(error) = &run.error {
        let word = if run.status == RunStatus::Canceled { "reason" } else { "error" };
        lines.push((word, cell(story::error_text(error))));
    }
    if let Some(prompt) = &run.prompt {
        lines.push(("asks", cell(prompt)));
    }
    lines
}

/// One line at the end of a story, for the person at the terminal.
pub async fn epilogue(cx: &Context, remote: &Remote, run: &Run) {
    let name = &run.name;
    let request = Box::pin(session::budget_request(remote, run)).await;
    let mut line = format!(
        "{name}: {}",
        paint(
            request.as_ref().map_or_else(|| session::state_of(run), |_| session::OVER_BUDGET),
            story::tone(run.status),
            cx.out.err_colour
        )
    );
    if run.step_count > 0 {
        line.push_str(&format!(" after {}", when::counted(run.step_count.into(), "step")));
    }
    if run.model_call_count > 0 {
        let tokens = run.usage.input_tokens + run.usage.output_tokens;
        line.push_str(&format!(", {} tokens", when::thousands(tokens)));
        if let Some(cost) = session::cost(run) {
            line.push_str(&format!(", {cost}"));
        }
    }
    cx.out.note(&line);
    match run.status {
        RunStatus::AwaitingInput if let Some(item) = &request => {
            let more = inbox::amount(item);
            cx.out.note(&format!(
                "decide the budget request: overmind approve {name} {more}, or overmind deny {name}"
            ));
        }
        RunStatus::AwaitingInput => {
            cx.out.note(&format!("answer it: overmind answer {name} \"…\""));
        }
        RunStatus::AwaitingApproval => {
            cx.out.note(&format!("decide: overmind approve {name}, or overmind deny {name}"));
        }
        RunStatus::Idle => cx.out.note(&turn_of(run)),
        RunStatus::Queued
        | RunStatus::Running
        | RunStatus::Succeeded
        | RunStatus::Failed
        | RunStatus::Canceled => {}
    }
}

/// The commands that a person can use on an idle run.
fn turn_of(run: &Run) -> String {
    let name = &run.name;
    let worktree = run.room.as_ref().is_some_and(|room| room.worktree.is_some());
    let decide = match worktree {
        true => {
            format!("see its work: overmind work {name}; merge it: overmind done {name} --merge")
        }
        false => format!("end it: overmind stop {name}"),
    };
    format!("your turn: overmind send {name} \"…\"; {decide}")
}

/// # Errors
///
/// Returns an error if the events could not be shown.
pub async fn events(cx: &Context, args: &EventsArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let run = match &args.id {
        Some(given) => Some(remote.find_run(given).await?),
        None => None,
    };
    if args.follow {
        match run {
            Some(id) => {
                each(cx, &remote, &id, Until::Ended, &mut Place::None, &mut |entry| match &entry
                    .data
                {
                    TimelineData::Event(event) => show_event(cx, event),
                    TimelineData::Step(_)
                    | TimelineData::ToolCall(_)
                    | TimelineData::ModelCall(_) => Ok(()),
                })
                .await?;
            }
            None => tail(cx, &remote).await?,
        }
        return Ok(Exit::Done);
    }
    let mut events = match &run {
        Some(id) => remote.run_events(id, args.limit).await?,
        None => remote.events(args.limit).await?,
    };
    if run.is_none() {
        events.reverse(); // the API answers newest first; a log reads downwards
    }
    show::list(
        &cx.out,
        &events,
        |event| event.id.clone(),
        |wide| event_table(&events, wide),
        "no events yet",
    )?;
    Ok(Exit::Done)
}

/// Follows all streams, through restarts of the server.
async fn tail(cx: &Context, remote: &Remote) -> Result<(), Failure> {
    let mut seen = remote.events(1).await?.first().map_or(0, |event| event.global);
    let mut away = Away::default();
    loop {
        let failure = match remote.watch_events(Some(seen)).await {
            Ok(mut stream) => loop {
                match stream.next().await {
                    Some(Ok(event)) => {
                        away.is_back();
                        seen = event.global;
                        show_event(cx, &event)?;
                    }
                    Some(Err(err)) => break Some(Failure::from(err)),
                    None => break None,
                }
            },
            Err(failure) => Some(failure),
        };
        match failure {
            Some(failure) if failure.exit != Exit::Unreachable => return Err(failure),
            failure => away.wait(cx, failure).await?,
        }
    }
}

fn show_event(cx: &Context, event: &Event) -> Result<(), Failure> {
    match cx.out.format {
        Format::Json | Format::Yaml => cx.out.streamed(&show::to_value(event))?,
        Format::Name => cx.out.line(&event.id)?,
        Format::Table | Format::Wide => {
            let stream = stream_of(event);
            let payload = clean::line(event.payload_json.as_str()).into_owned();
            let payload =
                if cx.out.wide() { payload } else { clean::cut(&payload, 120).into_owned() };
            let stamp = event.ts.to_string();
            let line = format!(
                "{}  {stream:>8}.{:<5} {:<24} {payload}",
                &stamp[11..23],
                event.seq,
                event.kind
            );
            cx.out.line(&line)?;
        }
    }
    Ok(())
}

fn stream_of(event: &Event) -> String {
    match event.run_id {
        Some(id) => ids::short(&id.to_string()).to_owned(),
        None => "system".to_owned(),
    }
}

fn event_table(events: &[Event], wide: bool) -> Table {
    let header: &[&str] = if wide {
        &["GLOBAL", "ID", "TYPE", "TIME", "HASH", "PAYLOAD"]
    } else {
        &["STREAM", "SEQ", "TYPE", "TIME", "PAYLOAD"]
    };
    let mut table = Table::new(header).right("SEQ").right("GLOBAL");
    for event in events {
        let stamp = event.ts.to_string();
        let payload = event.payload_json.as_str();
        table.row(if wide {
            vec![
                cell(event.global.to_string()),
                cell(&event.id),
                cell(&event.kind),
                cell(stamp),
                cell(&event.hash),
                cell(payload),
            ]
        } else {
            vec![
                cell(stream_of(event)),
                cell(event.seq.to_string()),
                cell(&event.kind),
                cell(stamp.get(11..23).unwrap_or(&stamp)),
                cell(clean::cut(payload, 80)),
            ]
        });
    }
    table
}
