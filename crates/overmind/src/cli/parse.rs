//! Reading the arguments, without building what they do not name.
//!
//! clap gives every command a copy of every global option before it looks at a word: some four
//! hundred of them, which is more work than most commands are. So the first word that is the name of
//! a command is taken for it, and all is read with a grammar of that command alone. That grammar is
//! a part of the whole one: what it accepts means the same there. What it does not accept is read
//! with the whole one, which then says what is wrong, or shows the help.

use std::ffi::OsString;

use clap::{Args as _, CommandFactory as _, FromArgMatches as _, Parser as _};

use super::args::{Cli, Global};

/// What the process's arguments say. Prints help and usage errors itself, and ends with 0 or 2.
pub fn parse() -> Cli {
    let args: Vec<OsString> = std::env::args_os().collect();
    quickly(&args).unwrap_or_else(|| Cli::parse_from(args))
}

/// What `args` say, when they are right and name a command.
pub fn quickly(args: &[OsString]) -> Option<Cli> {
    let mut words = args.iter().skip(1).filter_map(|word| word.to_str());
    let whole = Cli::command();
    let command = words.find_map(|word| whole.find_subcommand(word))?.clone();
    let part = Global::augment_args(clap::Command::new("overmind"))
        .propagate_version(true)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .subcommand(command);
    let mut matches = part.try_get_matches_from(args).ok()?;
    Cli::from_arg_matches_mut(&mut matches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn what_is_read_quickly_means_what_the_whole_grammar_says() {
        for line in [
            "overmind ps",
            "overmind ps --all --agent coder -o json",
            "overmind --data ps ps -q",
            "overmind -o wide --color=never agents list",
            "overmind run coder do ps --data /tmp/x",
            "overmind run --name a -- sh -c true",
            "overmind kill --all",
            "overmind -q send build yes, go on",
            "overmind mesh get tasks/1 --server unix:/tmp/s",
        ] {
            let args = words(line);
            let whole = Cli::try_parse_from(&args);
            let whole = whole.unwrap_or_else(|err| panic!("{line}: {err}"));
            let quick = quickly(&args).unwrap_or_else(|| panic!("{line}: not read quickly"));
            assert_eq!(format!("{quick:?}"), format!("{whole:?}"), "{line}");
        }
    }

    #[test]
    fn what_is_wrong_or_asks_for_help_is_left_to_the_whole_grammar() {
        for line in [
            "overmind",
            "overmind --version",
            "overmind ps --help",
            "overmind ps --limit 0",
            "overmind stauts",
            "overmind --data ps",
            "overmind -q -v ps",
        ] {
            assert!(quickly(&words(line)).is_none(), "{line}");
        }
    }
}
