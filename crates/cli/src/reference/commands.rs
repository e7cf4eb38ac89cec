//! Every command: usage, arguments, options and examples, from the grammar itself.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory as _};

use super::{cell, code, head};
use crate::args::Cli;
use crate::whole::{DAILY, GROUPS};

/// `docs/reference/cli.md`.
pub(super) fn page() -> String {
    let mut whole = Cli::command();
    whole.build();
    let mut text = head(
        "Commands",
        "`overmind help COMMAND` prints the same. [Output, exit codes and files](../cli.md) are common to \
         all commands; hidden older names of commands are not listed.",
    );
    text.push_str("\n## Global options\n\nEvery command takes them.\n\n");
    options(&mut text, whole.get_arguments().filter(|arg| arg.is_global_set()));
    let daily = [("Daily use", &DAILY[..])];
    let groups = daily.into_iter().chain(GROUPS.iter().map(|group| (group.about, group.commands)));
    for (title, commands) in groups {
        let _ = write!(text, "\n## {title}\n");
        for name in commands {
            if let Some(command) = whole.find_subcommand(name) {
                one(&mut text, command, &format!("overmind {name}"));
            }
        }
    }
    text
}

/// A command and those below it.
fn one(text: &mut String, command: &Command, path: &str) {
    let _ = write!(text, "\n### {path}\n\n");
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        let _ = write!(text, "{}\n\n", prose(&about.to_string()));
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines().map(str::trim).collect::<Vec<_>>();
    let _ = write!(text, "```text\n{}\n```\n", usage.join("\n").trim());
    let aliases: Vec<String> = command.get_visible_aliases().map(code).collect();
    if !aliases.is_empty() {
        let _ = write!(text, "\nAlso called {}.\n", aliases.join(", "));
    }
    let own = |arg: &&Arg| {
        !arg.is_hide_set()
            && !arg.is_global_set()
            && arg.get_id() != "help"
            && arg.get_id() != "version"
    };
    if command.get_arguments().any(|arg| own(&arg)) {
        text.push('\n');
        options(text, command.get_arguments().filter(own));
    }
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        examples(text, after);
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        if below.get_name() != "help" {
            one(text, below, &format!("{path} {}", below.get_name()));
        }
    }
}

fn options<'a>(text: &mut String, args: impl Iterator<Item = &'a Arg>) {
    text.push_str("| argument | meaning |\n|---|---|\n");
    for arg in args.filter(|arg| !arg.is_hide_set()) {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
        let mut meaning = cell(&help.unwrap_or_default());
        let values: Vec<_> = arg.get_possible_values();
        let values: Vec<String> = values
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| code(value.get_name()))
            .collect();
        if !values.is_empty() && arg.get_action().takes_values() {
            let _ = write!(meaning, "; one of {}", values.join(", "));
        }
        let defaults: Vec<_> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if !defaults.is_empty() && arg.get_action().takes_values() {
            let _ = write!(meaning, " (default {})", code(&defaults.join(",")));
        }
        let _ =
            writeln!(text, "| {} | {} |", code(&written(arg)), meaning.trim_start_matches("; "));
    }
}

/// An argument as it is typed: `-n, --limit N`.
fn written(arg: &Arg) -> String {
    let values = || -> String {
        let names = arg.get_value_names().map(|names| names.to_vec()).unwrap_or_default();
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        match names.is_empty() {
            true => arg.get_id().as_str().to_uppercase(),
            false => names.join(" "),
        }
    };
    if arg.is_positional() {
        let many = arg.get_num_args().is_some_and(|range| range.max_values() > 1);
        return format!("{}{}", values(), if many { "…" } else { "" });
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let mut names: Vec<String> = short.into_iter().chain(long).collect();
    names.extend(
        arg.get_visible_aliases().unwrap_or_default().iter().map(|name| format!("--{name}")),
    );
    let names = names.join(", ");
    match arg.get_action().takes_values() {
        true => format!("{names} {}", values()),
        false => names,
    }
}

/// The text after the help: indented lines are examples, the others text.
fn examples(text: &mut String, after: &StyledStr) {
    let mut in_code = false;
    for line in after.to_string().lines() {
        let shown = line.starts_with("  ");
        match (in_code, shown) {
            (false, true) => text.push_str("\n```sh\n"),
            (true, false) => text.push_str("```\n"),
            _ => {}
        }
        // Prose after an example is a paragraph of its own.
        if in_code && !shown && !line.is_empty() {
            text.push('\n');
        }
        in_code = shown;
        match line.trim() {
            "Examples:" | "Example:" if !shown => {}
            "" if !shown => text.push('\n'),
            plain if !shown => {
                let _ = writeln!(text, "{}", prose(plain));
            }
            _ => {
                let _ = writeln!(text, "{}", line.strip_prefix("  ").unwrap_or(line));
            }
        }
    }
    if in_code {
        text.push_str("```\n");
    }
}

/// Text outside of a table.
fn prose(text: &str) -> String {
    cell(text).replace("\\|", "|")
}
