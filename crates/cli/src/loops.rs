//! `overmind loop`: what the server does again and again.

use clap::Subcommand;
use overmind_api::{Loop, LoopPass, LoopState};
use std::time::Duration;

use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::output::{clean, when};
use crate::remote::Remote;
use crate::show::{self, cell, dim, or_dash};

/// Widest result in a table, in characters.
const RESULT: usize = 60;

#[derive(Clone, Debug, Subcommand)]
pub enum LoopCommand {
    /// List loops with the results of their last passes
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Example:
  overmind loop list -o wide")]
    List,
    /// Pause a loop, also across restarts
    #[command(after_help = "\
Example:
  overmind loop pause retention")]
    Pause {
        /// Its name
        name: String,
    },
    /// Resume a loop
    #[command(after_help = "\
Example:
  overmind loop resume retention")]
    Resume {
        /// Its name
        name: String,
    },
    /// Run one pass now and wait for its end, also of a paused loop
    #[command(after_help = "\
Example:
  overmind loop run retention")]
    Run {
        /// Its name
        name: String,
    },
}

/// # Errors
///
/// Returns an error if the command fails; a pass that failed is [`Exit::Failed`].
pub(crate) async fn run(cx: &Context, command: LoopCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    let client = remote.client();
    match command {
        LoopCommand::List => {
            let all = client.loop_list().await.map_err(Failure::from)?;
            show::list(
                &cx.out,
                &all,
                |one| one.name.clone(),
                |wide| table(cx, &all, wide),
                "this server has no loops",
            )?;
        }
        LoopCommand::Pause { name } => {
            let done = client.loop_pause(&name).await.map_err(Failure::from)?;
            tell(cx, &done)?;
        }
        LoopCommand::Resume { name } => {
            let done = client.loop_resume(&name).await.map_err(Failure::from)?;
            tell(cx, &done)?;
        }
        LoopCommand::Run { name } => {
            let done = client.loop_run(&name).await.map_err(Failure::from)?;
            tell(cx, &done)?;
            if done.last.is_some_and(|last| !last.ok) {
                return Ok(Exit::Failed);
            }
        }
    }
    Ok(Exit::Done)
}

fn state(one: &Loop) -> (String, Tone) {
    let tone = match one.state {
        LoopState::Waiting => Tone::Plain,
        LoopState::Running => Tone::Good,
        LoopState::Failing => Tone::Bad,
        LoopState::Paused => Tone::Dim,
    };
    (one.state.as_str().to_owned(), tone)
}

fn result(last: Option<&LoopPass>, wide: bool) -> (String, Tone) {
    let Some(last) = last else { return dim("-") };
    let text = if wide { last.said.clone() } else { clean::cut(&last.said, RESULT).to_string() };
    match (last.ok, last.said.is_empty()) {
        (true, true) => dim("nothing to do"),
        (true, false) => cell(text),
        (false, _) => (text, Tone::Bad),
    }
}

fn took(last: Option<&LoopPass>) -> (String, Tone) {
    or_dash(last.map(|last| when::precise(Duration::from_millis(last.took_ms))))
}

fn last(cx: &Context, one: &Loop, wide: bool) -> (String, Tone) {
    or_dash(one.last.as_ref().map(|last| match wide {
        true => last.began_at.to_string(),
        false => format!("{} ago", when::ago(last.began_at, cx.now())),
    }))
}

fn next(cx: &Context, one: &Loop, wide: bool) -> (String, Tone) {
    or_dash(one.next_at.map(|at| match wide {
        true => at.to_string(),
        false if at <= cx.now() => "now".to_owned(),
        false => format!("in {}", when::span(at.since(cx.now()))),
    }))
}

fn table(cx: &Context, all: &[Loop], wide: bool) -> Table {
    let mut table = Table::new(&["NAME", "STATE", "LAST", "RESULT", "DURATION", "NEXT"]);
    for one in all {
        let of = one.last.as_ref();
        table.row(vec![
            cell(&one.name),
            state(one),
            last(cx, one, wide),
            result(of, wide),
            took(of),
            next(cx, one, wide),
        ]);
    }
    table
}

fn tell(cx: &Context, one: &Loop) -> Result<(), Failure> {
    show::one(&cx.out, one, &one.name, || {
        vec![
            ("loop", cell(&one.name)),
            ("state", state(one)),
            ("last", last(cx, one, false)),
            ("result", result(one.last.as_ref(), true)),
            ("duration", took(one.last.as_ref())),
            ("next", next(cx, one, false)),
        ]
    })
}
