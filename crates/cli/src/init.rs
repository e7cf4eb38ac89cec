//! `overmind init`: a first `.overmind.yml` from what a project already has, and an agent for it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use overmind_workspace::config::{Config, FILE, Sources};
use overmind_workspace::rooms::project_top;
use serde_json::json;

use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::init_agent::Found;
use crate::{asked, trust};

#[derive(Clone, Debug, Args)]
pub struct InitArgs {
    /// Any directory of the project [default: the current directory]
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
    /// Write nothing
    #[arg(long, conflicts_with = "force")]
    pub print: bool,
    /// Also outside of a git repository, where runs have no branches and no worktrees
    #[arg(long)]
    pub here: bool,
}

/// Prints the proposal, and writes it if no file exists.
///
/// # Errors
///
/// [`Exit::Conflict`] when there is a file already, and outside of a repository without `--here`.
pub async fn run(cx: &Context, args: &InitArgs) -> Outcome {
    let dir = cx.cwd.join(args.dir.as_deref().unwrap_or_else(|| ".".as_ref()));
    let dir = dir.canonicalize().map_err(|err| {
        Failure::new(Exit::NotFound, format!("looking at {}: {err}", dir.display()))
    })?;
    let repository = project_top(&dir);
    let in_repository = repository.is_some();
    let top = repository.unwrap_or(dir);
    let file = top.join(FILE);
    let there = file.symlink_metadata().is_ok();
    if there && !args.print && !args.force {
        let text = format!("{} already exists and is not changed", file.display());
        return Err(Failure::new(Exit::Conflict, text)
            .hint("`--force` replaces it; `--print` shows what would be written"));
    }
    if !in_repository && !args.print && !args.here {
        let text = format!("{} is not in a git repository: nothing was written", top.display());
        return Err(Failure::new(Exit::Conflict, text).hint(
            "change to your repository, or make one: git init; git add .; git commit -m first. \
                `overmind init --here` writes the file without one",
        ));
    }
    let proposal = Sources::read(&top).propose();
    // A mistake in the configuration does not prevent a first file.
    let agent = cx.config(None).map(|config| Found::of(&config)).unwrap_or_default().propose();
    let write = !args.print;
    if write {
        // Atomically, and never through a link.
        let half = top.join(format!("{FILE}.{}", std::process::id()));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&half)
            .and_then(|mut half| half.write_all(proposal.text.as_bytes()))
            .and_then(|()| std::fs::rename(&half, &file));
        written.map_err(|err| {
            // A partial file is useless.
            let _ = std::fs::remove_file(&half);
            Failure::failed(format!("writing {}: {err}", file.display()))
        })?;
    }
    if cx.out.for_people() {
        cx.out.text(&proposal.text)?;
    } else {
        cx.out.value(&json!({
            "file": file.display().to_string(),
            "written": write,
            "text": proposal.text,
            "notes": proposal.notes,
            "agent": agent,
        }))?;
    }
    if write {
        cx.out.note(&format!("wrote {}", file.display()));
        let orders = Config::parse(&proposal.text).map(|config| config.orders());
        // A user who had it written at the terminal has seen it.
        if orders.is_ok_and(|orders| !orders.is_empty())
            && !(asked::possible(cx) && trust::of_init(cx, &top).await?)
        {
            cx.out.note("its commands run only after you confirm them: overmind trust");
        }
    }
    if cx.out.for_people() {
        cx.out.note(&format!("\n{}:", agent.why));
        agent.commands.iter().for_each(|command| cx.out.note(&format!("  {command}")));
    }
    Ok(Exit::Done)
}
