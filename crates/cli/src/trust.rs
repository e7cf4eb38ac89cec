//! `overmind trust`: what a project's file orders to be run is shown, and run only after somebody
//! confirmed it. `run` asks the same where it meets such a project.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use overmind_api::{ProjectConfirm, ProjectTrust};

use crate::asked;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::Tone;
use crate::output::{clean, paint};
use crate::remote::Remote;
use crate::show::{self, cell};

#[derive(Clone, Debug, Args)]
pub struct TrustArgs {
    /// Any directory of the project [default: the current directory]
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Only show what it would run, and whether that is confirmed
    #[arg(long)]
    pub show: bool,
    /// Revoke the confirmation
    #[arg(long, conflicts_with = "show")]
    pub revoke: bool,
    /// Also give `setup` the network of this machine in sandboxes, to install packages
    #[arg(long, conflicts_with_all = ["show", "revoke"])]
    pub setup_network: bool,
    /// Do not ask
    #[arg(short, long, conflicts_with_all = ["show", "revoke"])]
    pub yes: bool,
}

/// # Errors
///
/// [`Exit::Usage`] when there is something to confirm and nobody can be asked; [`Exit::Failed`] when
/// the person says no, and with `--show` when it is not confirmed.
pub(crate) async fn run(cx: &Context, args: &TrustArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let dir = cx.cwd.join(args.dir.as_deref().unwrap_or_else(|| ".".as_ref()));
    let dir = match args.revoke {
        // What is gone can be taken back too.
        true => dir.canonicalize().unwrap_or(dir),
        false => dir.canonicalize().map_err(|err| {
            Failure::new(Exit::NotFound, format!("looking at {}: {err}", dir.display()))
        })?,
    };
    let path = text(&dir)?;
    if args.revoke {
        let done = remote.client().project_revoke(path).await.map_err(Failure::from)?;
        cx.out.note(match done.revoked {
            true => "revoked: its commands do not run until they are confirmed again",
            false => "this project was not confirmed",
        });
        return Ok(Exit::Done);
    }
    let found = remote.client().project_trust(path).await.map_err(Failure::from)?;
    let granted = found.given.as_ref().is_some_and(|given| given.setup_network);
    let enough = found.trusted && (granted || !args.setup_network);
    if args.show || found.orders.is_empty() || enough {
        tell(cx, &found)?;
        return Ok(if found.trusted || !args.show { Exit::Done } else { Exit::Failed });
    }
    if !args.yes {
        // Somebody who confirmed this content already is only asked for what is new.
        if !asked::possible(cx) {
            return Err(Failure::usage("there is no terminal to ask at").hint(
                "read its commands with `overmind trust --show`, then confirm them with --yes",
            ));
        }
        show_orders(cx, &found);
    }
    let network = match args.yes {
        true => args.setup_network,
        false => match ask(&found, args.setup_network).await? {
            Some(network) => network,
            None => return Err(Failure::failed("nothing was confirmed")),
        },
    };
    let confirmed = confirm(&remote, &found, network).await?;
    tell(cx, &confirmed)?;
    Ok(Exit::Done)
}

fn text(dir: &Path) -> Result<&str, Failure> {
    dir.to_str().ok_or_else(|| Failure::usage(format!("{} is not UTF-8", dir.display())))
}

fn tell(cx: &Context, found: &ProjectTrust) -> Result<(), Failure> {
    if cx.out.for_people() && !found.orders.is_empty() {
        show_orders(cx, found);
    }
    show::one(&cx.out, found, &found.project, || {
        let state = match (&found.given, found.trusted) {
            (_, true) if found.orders.is_empty() => ("it orders nothing".to_owned(), Tone::Good),
            (Some(given), true) => {
                let network = if given.setup_network { ", setup with network" } else { "" };
                (format!("confirmed by {}{network}", given.by), Tone::Good)
            }
            (Some(given), false) => (format!("changed since {} confirmed it", given.by), Tone::Bad),
            (None, _) => ("not confirmed".to_owned(), Tone::Bad),
        };
        vec![("project", cell(clean::line(&found.project))), ("orders", state)]
    })
}

/// The exact text of each order.
fn show_orders(cx: &Context, found: &ProjectTrust) {
    cx.out.note(&format!("the .overmind.yml of {} orders:", clean::line(&found.project)));
    for order in &found.orders {
        for line in order.lines() {
            let line = clean::line(line);
            cx.out.note(&format!("  {}", paint(&line, Tone::Busy, cx.out.err_colour)));
        }
    }
}

/// Asks the person at the terminal, who has seen the orders. `Some`: confirmed, and whether setup has
/// the network.
async fn ask(found: &ProjectTrust, network: bool) -> Result<Option<bool>, Failure> {
    let installs = found.orders.iter().any(|order| order.starts_with("setup"));
    let question = match (network, installs) {
        (true, _) => "run this for runs of the project, setup with the network? [y]es, [n]o: ",
        (false, true) => {
            "run this for runs of the project? [y]es, [w]ith network for setup in sandboxes, [n]o: "
        }
        (false, false) => "run this for runs of the project? [y]es, [n]o: ",
    };
    loop {
        let Some(typed) = asked::typed(question).await? else { return Ok(None) };
        match typed.as_str() {
            "y" | "yes" => return Ok(Some(network)),
            "w" if installs => return Ok(Some(true)),
            "n" | "no" => return Ok(None),
            _ => {}
        }
    }
}

async fn confirm(
    remote: &Remote,
    found: &ProjectTrust,
    setup_network: bool,
) -> Result<ProjectTrust, Failure> {
    let hash = found.hash.clone().unwrap_or_default();
    let confirm = ProjectConfirm { project: found.project.clone(), hash, setup_network };
    Ok(remote.client().project_confirm(&confirm).await?)
}

/// The treatment of a run that was refused because its project's orders are not confirmed: `true` when
/// they are now.
///
/// # Errors
///
/// Returns an error if they could not be read or confirmed.
pub(crate) async fn agreed(
    cx: &Context,
    remote: &Remote,
    dir: &str,
    without_asking: bool,
) -> Result<bool, Failure> {
    if remote.own().is_some() || !(without_asking || asked::possible(cx)) {
        return Ok(false);
    }
    let found = match remote.client().project_trust(dir).await.map_err(Failure::from) {
        Ok(found) => found,
        // A caller who is not an admin learns so from the refusal.
        Err(failure) if failure.exit == Exit::Denied => return Ok(false),
        Err(failure) => return Err(failure),
    };
    if found.trusted {
        return Ok(true);
    }
    if without_asking {
        confirm(remote, &found, false).await?;
        return Ok(true);
    }
    show_orders(cx, &found);
    match ask(&found, false).await? {
        Some(network) => {
            confirm(remote, &found, network).await?;
            Ok(true)
        }
        None => Ok(false),
    }
}

/// Confirms the file that `overmind init` has just written for the person at the terminal, where a
/// server is there and takes it; otherwise the first run asks.
pub(crate) async fn of_init(cx: &Context, top: &Path) -> Result<bool, Failure> {
    let Ok(remote) = Remote::connect(cx) else { return Ok(false) };
    let Ok(found) = remote.client().project_trust(text(top)?).await else { return Ok(false) };
    if found.orders.is_empty() {
        return Ok(true);
    }
    Ok(confirm(&remote, &found, true).await.is_ok())
}
