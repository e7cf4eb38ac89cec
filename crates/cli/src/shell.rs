//! Completions, manual pages, the OpenAPI document: what is made from the program itself.

use std::path::Path;

use clap::CommandFactory as _;

use crate::args::Cli;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};

/// # Errors
///
/// When the result cannot be written.
pub fn completions(cx: &Context, shell: clap_complete::Shell) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "overmind", &mut text);
    cx.out.text(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Done)
}

/// Prints the page of the whole, or writes a page for every command.
///
/// # Errors
///
/// When a page cannot be written.
pub fn man(cx: &Context, dir: Option<&Path>) -> Outcome {
    let command = Cli::command();
    let Some(dir) = dir else {
        let mut text = Vec::new();
        clap_mangen::Man::new(command).render(&mut text)?;
        cx.out.text(&String::from_utf8_lossy(&text))?;
        return Ok(Exit::Done);
    };
    let failed = |err| Failure::failed(format!("writing manual pages to {}: {err}", dir.display()));
    std::fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(command, dir).map_err(failed)?;
    cx.out.note(&format!("manual pages are in {}", dir.display()));
    Ok(Exit::Done)
}
