//! Manual pages, made from the program itself.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::Stdio;

use clap::{Command, CommandFactory as _};
use overmind_core::nearest::nearest;

use crate::args::Cli;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};

/// Shows the page of the whole or of a command, or writes a page for every command to a directory.
///
/// # Errors
///
/// When there is no such command, or a page cannot be written.
pub fn man(cx: &Context, of: &[String]) -> Outcome {
    if let [dir] = of
        && (dir.contains('/')
            || (Cli::command().find_subcommand(dir).is_none() && cx.cwd.join(dir).is_dir()))
    {
        return write_pages(cx, &cx.cwd.join(dir));
    }
    let mut whole = Cli::command();
    whole.build();
    let mut found = &whole;
    for word in of {
        let names = found.get_subcommands().map(Command::get_name);
        let near = nearest(word, names);
        found = found.find_subcommand(word).ok_or_else(|| {
            let failure = Failure::usage(format!("there is no command `{}`", of.join(" ")));
            match near {
                Some(near) => failure.hint(format!("did you mean `{near}`?")),
                None => failure.hint(format!(
                    "to write the pages to a directory with this name: overmind man ./{word}"
                )),
            }
        })?;
    }
    let title = match of {
        [] => "overmind".to_owned(),
        of => format!("overmind-{}", of.join("-")),
    };
    let mut roff = Vec::new();
    clap_mangen::Man::new(found.clone()).title(title).render(&mut roff)?;
    if std::io::stdout().is_terminal() && cx.out.for_people() {
        if paged(&roff) {
            return Ok(Exit::Done);
        }
        // Without the program `man`, the same text as help.
        cx.out.text(&found.clone().render_long_help().to_string())?;
        return Ok(Exit::Done);
    }
    cx.out.text(&String::from_utf8_lossy(&roff))?;
    Ok(Exit::Done)
}

/// Whether the program `man` has shown the page.
fn paged(roff: &[u8]) -> bool {
    let started = std::process::Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).spawn();
    let Ok(mut man) = started else { return false };
    // A closed pager is no error.
    let written = man.stdin.take().map(|mut into| into.write_all(roff));
    drop(written);
    man.wait().is_ok_and(|status| status.success())
}

fn write_pages(cx: &Context, dir: &Path) -> Outcome {
    let failed = |err| Failure::failed(format!("writing manual pages to {}: {err}", dir.display()));
    std::fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(failed)?;
    cx.out.note(&format!("manual pages are in {}", dir.display()));
    Ok(Exit::Done)
}
